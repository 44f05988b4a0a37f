/* SPDX-License-Identifier: BSD-2-Clause */
/* When a way over RDMA is slower than TCP, and when that only looks so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bridge/pace.h"

#define US 1000ull
#define MS 1000000ull
#define S  1000000000ull

/* Round trips of this length, one after the other with a pause: how many until it is said; 0: not within so many. */
static uint32_t until(struct pace *p, uint64_t rtt, uint64_t pause, uint32_t most, enum pace_says what, uint64_t *now)
{
	uint32_t i;

	for (i = 1; i <= most; i++) {
		enum pace_says says;

		*now += rtt + pause;
		says = pace_add(p, rtt, *now);
		if (says == what)
			return i;
		assert_int_equal(says, PACE_MORE);
	}
	return 0;
}

static void fast(void **state)
{
	static const struct { uint64_t tcp, rtt; } same[] = {
		{ 20 * US, 5 * US }, { 20 * US, 20 * US }, { 20 * US, 290 * US }, { 1 * MS, 2 * MS }, { 0, 10 * S },
	};
	struct pace p;
	uint64_t now = S;
	uint32_t i, moved;

	(void)state;
	for (moved = 0; moved < 2; moved++)
		for (i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
			pace_begin(&p, same[i].tcp, (int)moved, now);
			assert_int_equal(until(&p, same[i].rtt, 0, 1, PACE_FAST, &now), 1);
		}
}

static void slow(void **state)
{
	struct pace p;
	uint64_t now = S, begun;
	uint32_t n;

	(void)state;
	/* short ones: over a time in which a busy machine has had its turns */
	pace_begin(&p, 20 * US, 0, now);
	begun = now;
	n = until(&p, 300 * US, 0, 10000, PACE_SLOW, &now);
	assert_true(n >= PACE_FEW);
	assert_true(now - begun >= PACE_SHORT_NS && now - begun < PACE_SHORT_NS + MS);
	assert_int_equal(p.least, 300 * US);
	/* long ones: many */
	pace_begin(&p, 20 * US, 0, now);
	assert_int_equal(until(&p, 20 * MS, 0, 10000, PACE_SLOW, &now), PACE_FEW);
	/* very long ones: few, within the time that the other end waits */
	pace_begin(&p, 20 * US, 0, now);
	begun = now;
	assert_int_equal(until(&p, 250 * MS, 0, 10000, PACE_SLOW, &now), PACE_LEAST);
	assert_true(now - begun <= PACE_LIMIT_NS);
	pace_begin(&p, 20 * US, 0, now);
	begun = now;
	assert_true(until(&p, 70 * MS, 0, 10000, PACE_SLOW, &now));
	assert_true(now - begun < PACE_LIMIT_NS + 200 * MS);
}

/* A busy machine, a full queue, lost packets: all long but one, again and again, and it is never slow. */
static void one_short(void **state)
{
	struct pace p;
	uint64_t now = S;
	uint32_t i, k, moved;

	(void)state;
	for (moved = 0; moved < 2; moved++) {
		pace_begin(&p, 20 * US, (int)moved, now);
		for (i = 0; i < 1000; i++) {
			for (k = 0; k < (moved ? PACE_MANY : PACE_FEW) - 1; k++) {
				now += moved ? S : 50 * MS;
				assert_int_equal(pace_add(&p, 50 * MS, now), PACE_MORE);
				if (!moved && now - p.since >= PACE_LIMIT_NS - 50 * MS)
					break;
			}
			now += S;
			assert_int_equal(pace_add(&p, 30 * US, now), PACE_FAST);
		}
	}
	/* a machine that stood still for a minute: that is one round trip */
	pace_begin(&p, 20 * US, 0, now);
	now += 60 * S;
	assert_int_equal(pace_add(&p, 60 * S, now), PACE_MORE);
	assert_int_equal(pace_add(&p, 30 * US, now + 30 * US), PACE_FAST);
}

static void after_it_moved(void **state)
{
	struct pace p;
	uint64_t now = S, begun = now;
	uint32_t n;

	(void)state;
	/* what is slow before is not slow enough now */
	pace_begin(&p, 20 * US, 1, now);
	assert_int_equal(until(&p, 4 * MS, 100 * MS, 1, PACE_FAST, &now), 1);
	begun = now;
	n = until(&p, 20 * MS, 100 * MS, 1000, PACE_SLOW, &now);
	assert_true(n >= PACE_MANY && now - begun >= PACE_LONG_NS);
	/* some now and some much later are not one after the other */
	pace_begin(&p, 20 * US, 1, now);
	assert_int_equal(until(&p, 20 * MS, PACE_PAUSE_NS, 1000, PACE_SLOW, &now), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(fast),
		cmocka_unit_test(slow),
		cmocka_unit_test(one_short),
		cmocka_unit_test(after_it_moved),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
