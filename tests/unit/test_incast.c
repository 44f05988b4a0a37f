/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The model of an incast, short: the library's flow control holds the link and the queue where the NICs'
 * alone does not; the same settings give the same numbers.  Fails when core/window_adapt stops reacting.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "bench/incast/sim.h"

static struct settings set;

static int preset(void **state)
{
	(void)state;
	sim_defaults(&set);
	set.warm = 10 * MS;
	set.time = 15 * MS;
	return 0;
}

static struct result run(enum mode mode, uint32_t pfc)
{
	struct result r;

	set.mode = mode;
	set.pfc = pfc;
	assert_int_equal(sim_run(&set, &r), 0);
	return r;
}

static void the_same_twice(void **state)
{
	struct result a = run(MODE_XRDMA, 0), b = run(MODE_XRDMA, 0);

	(void)state;
	assert_memory_equal(&a, &b, sizeof(a));
	set.seed++;
	b = run(MODE_XRDMA, 0);
	assert_true(a.marks != b.marks);	/* chance is in the marking */
}

static void impossible_settings(void **state)
{
	struct result r;
	uint32_t *zero[] = { &set.senders, &set.size, &set.depth, &set.gbps };
	size_t i;

	(void)state;
	for (i = 0; i < 4; i++) {
		uint32_t was = *zero[i];

		*zero[i] = 0;
		assert_int_equal(sim_run(&set, &r), -1);
		*zero[i] = was;
	}
	set.depth = 201;
	assert_int_equal(sim_run(&set, &r), -1);
}

static void small_messages(void **state)
{
	struct result plain, ours;

	(void)state;
	set.warm = 20 * MS;
	plain = run(MODE_DCQCN, 0);
	ours = run(MODE_XRDMA, 0);
	assert_true(plain.drops > 1000);
	assert_true(ours.share >= 0.9);
	assert_int_equal(ours.drops + ours.timeouts, 0);
	assert_true(ours.queue_mean < 100000 && plain.queue_mean > 1000000);
	assert_true(ours.wire_p99 * 5 < plain.wire_p99);
	assert_true(ours.jain > 0.8);
}

static void large_messages(void **state)
{
	struct result plain, ours;

	(void)state;
	set.size = 65536;
	set.depth = 2;
	set.warm = 30 * MS;
	plain = run(MODE_DCQCN, 0);
	ours = run(MODE_XRDMA, 0);
	assert_true(plain.drops > 1000);
	assert_true(ours.share >= 0.95 && ours.goodput > plain.goodput);
	assert_int_equal(ours.drops + ours.timeouts, 0);
	assert_true(ours.p99 < plain.p99 && ours.wire_p99 * 5 < plain.wire_p99);
	assert_true(ours.queue_max < 1000000);
	assert_true(ours.jain > 0.95 && plain.jain < 0.9);
}

/* PFC keeps everything, and pauses who sends; with the library nobody needs to be paused. */
static void pauses(void **state)
{
	struct result plain = run(MODE_DCQCN, 1), ours = run(MODE_XRDMA, 1);

	(void)state;
	assert_int_equal(plain.drops, 0);
	assert_true(plain.pauses > 100 && plain.paused > 0.01);
	assert_int_equal(ours.pauses, 0);
	assert_true(ours.paused == 0);
}

static void half_leave_and_come_back(void **state)
{
	struct result r;

	(void)state;
	set.gbps = 100;
	set.churn = 10 * MS;
	set.time = 30 * MS;
	r = run(MODE_XRDMA, 0);
	assert_true(r.leave_ms >= 0 && r.leave_ms < 5);
	assert_true(r.join_ms >= 0 && r.join_ms < 5);
}

/* What flow control is to reach with 256 senders, of every size, with and without PFC. */
static void the_link_is_used(void **state)
{
	static const uint32_t sizes[] = { 1024, 4096, 65536, 1048576 };
	struct result r;
	uint32_t i, pfc;

	(void)state;
	for (i = 0; i < 4; i++)
		for (pfc = 0; pfc < 2; pfc++) {
			set.size = sizes[i];
			set.depth = sizes[i] >= 1048576 ? 1 : sizes[i] >= 65536 ? 4 : 16;
			set.warm = sizes[i] >= 1048576 ? 40 * MS : 20 * MS;
			r = run(MODE_XRDMA, pfc);
			assert_true(r.share >= 0.9);
			assert_int_equal(r.drops + r.timeouts + r.pauses, 0);
		}
}

/*
 * ... a fifth of the latency of NICs that are alone with it: on the wire for messages of every size, with and without
 * PFC.  From post to completion nothing that uses the whole link can beat what is posted divided by its rate.
 */
static void a_fifth_of_the_latency(void **state)
{
	static const uint32_t sizes[] = { 1024, 4096, 65536, 1048576 };
	struct result plain, ours;
	uint32_t i, pfc;
	double least;

	(void)state;
	for (i = 0; i < 4; i++)
		for (pfc = 0; pfc < 2; pfc++) {
			set.size = sizes[i];
			set.depth = sizes[i] >= 1048576 ? 1 : sizes[i] >= 65536 ? 4 : 16;
			set.warm = 20 * MS;
			set.time = sizes[i] >= 1048576 ? 200 * MS : 50 * MS;
			/* where packets are lost messages take so long that a short look does not see them complete */
			if (!pfc && sizes[i] >= 65536)
				set.time = sizes[i] >= 1048576 ? 1000 * MS : 250 * MS;
			plain = run(MODE_DCQCN, pfc);
			ours = run(MODE_XRDMA, pfc);
			assert_true(ours.wire_p99 * 5 <= plain.wire_p99);
			assert_true(ours.p99 <= plain.p99);
			/* us; what is posted, over the rate in Gb/s; of the largest too few complete meanwhile */
			least = 256.0 * set.depth * set.size * 8 / (ours.goodput * 1e3);
			assert_true(sizes[i] >= 1048576 || (ours.mean >= 0.9 * least && ours.mean <= 1.1 * least));
			/* the mean leaves room for a fifth of the baseline only where that loses packets */
			if (!pfc && sizes[i] >= 4096)
				assert_true(plain.drops && ours.p99 * 5 <= plain.p99);
		}
}

/* ... no collapse with 1024. */
static void a_thousand_senders(void **state)
{
	static const uint32_t sizes[] = { 1024, 4096, 65536 };
	struct result r;
	uint32_t i;

	(void)state;
	set.senders = 1024;
	for (i = 0; i < 3; i++) {
		set.size = sizes[i];
		set.depth = sizes[i] >= 65536 ? 4 : 16;
		set.warm = 30 * MS;
		r = run(MODE_XRDMA, 0);
		assert_true(r.share >= 0.9);
		assert_int_equal(r.drops + r.timeouts, 0);
		assert_true(r.wire_p99 < 1000);
	}
}

/* ... and equal shares again within 5 ms after half of them left or came back. */
static void shares_are_equal_soon(void **state)
{
	static const uint32_t sizes[] = { 1024, 4096, 16384, 65536 };
	struct result r;
	uint32_t i, k;

	(void)state;
	for (i = 0; i < 4; i++)
		for (k = 0; k < 2; k++) {
			set.size = sizes[i];
			set.depth = sizes[i] >= 65536 ? 4 : 16;
			set.gbps = k ? 100 : 25;
			/* as long as a window of eight messages of each, and more */
			set.churn = sizes[i] >= 65536 && !k ? 60 * MS : 25 * MS;
			set.warm = 20 * MS;
			set.time = 3 * set.churn;
			r = run(MODE_XRDMA, 0);
			assert_true(r.leave_ms >= 0 && r.leave_ms < 5);
			assert_true(r.join_ms >= 0 && r.join_ms < 5);
		}
}

/* Messages that come at random, together nine tenths of the link: nobody is held back for nothing. */
static void a_link_that_is_not_full(void **state)
{
	struct result r;

	(void)state;
	set.load = 90;
	set.time = 40 * MS;
	r = run(MODE_XRDMA, 0);
	assert_true(r.share > 0.88 && r.share < 0.95);
	assert_true(r.p99 < 100 && r.backlog < 100);
	set.load = 201;
	assert_int_equal(sim_run(&set, &r), -1);
}

/* With no signal at all the windows only grow: what the numbers above come from. */
static void without_signals(void **state)
{
	struct result r;

	(void)state;
	set.rtt_signal = set.ecn_signal = 0;
	r = run(MODE_XRDMA, 0);
	assert_true(r.drops > 1000 || r.queue_mean > 1000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(the_same_twice, preset),
		cmocka_unit_test_setup(impossible_settings, preset),
		cmocka_unit_test_setup(small_messages, preset),
		cmocka_unit_test_setup(large_messages, preset),
		cmocka_unit_test_setup(pauses, preset),
		cmocka_unit_test_setup(half_leave_and_come_back, preset),
		cmocka_unit_test_setup(the_link_is_used, preset),
		cmocka_unit_test_setup(a_fifth_of_the_latency, preset),
		cmocka_unit_test_setup(a_thousand_senders, preset),
		cmocka_unit_test_setup(shares_are_equal_soon, preset),
		cmocka_unit_test_setup(a_link_that_is_not_full, preset),
		cmocka_unit_test_setup(without_signals, preset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
