/* SPDX-License-Identifier: BSD-2-Clause */
/* The congestion window: every signal, its bounds, senders that share a link, and the budget of a context. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "core/window_adapt.h"

#define BASE	10000u		/* ns */
#define TARGET	8000u

static const struct xr_adapt_params usual = {
	.floor = 64, .start = 65536, .ceiling = 1u << 20, .unit = 4096, .target = TARGET,
};

static struct xr_adapt fresh(uint64_t start)
{
	struct xr_adapt_params p = usual;
	struct xr_adapt a;

	p.start = start;
	assert_int_equal(xr_adapt_init(&a, &p), 0);
	return a;
}

/* One message there and back, with the window full of it or not. */
static void trip(struct xr_adapt *a, uint64_t *now, uint64_t len, uint32_t rtt, int marked)
{
	xr_adapt_sent(a, *now, len);
	*now += rtt;
	assert_int_equal(xr_adapt_acked(a, len, rtt, marked), 0);
}

/* As many as the window takes. */
static void window_trip(struct xr_adapt *a, uint64_t *now, uint32_t rtt, int marked)
{
	uint64_t n = 0, i;

	while (n < 4096 && xr_adapt_open(a, *now, 4096)) {
		xr_adapt_sent(a, *now, 4096);
		n++;
	}
	*now += rtt;
	for (i = 0; i < n; i++)
		assert_int_equal(xr_adapt_acked(a, 4096, rtt, marked), 0);
}

static void parameters(void **state)
{
	struct xr_adapt_params bad[8];
	struct xr_adapt a;
	size_t i;

	(void)state;
	for (i = 0; i < 8; i++)
		bad[i] = usual;
	bad[0].floor = 0;
	bad[1].start = 63;
	bad[2].ceiling = 65535;
	bad[3].ceiling = XR_ADAPT_MAX + 1;
	bad[4].unit = 0;
	bad[5].unit = 127;
	bad[6].floor = UINT64_MAX;
	bad[7].ceiling = 0;
	for (i = 0; i < 8; i++)
		assert_int_equal(xr_adapt_init(&a, &bad[i]), -EINVAL);
	assert_int_equal(xr_adapt_init(&a, &usual), 0);
	assert_int_equal(xr_adapt_window(&a), 65536);
	assert_int_equal(xr_adapt_base(&a), 0);
}

static void more_acked_than_sent(void **state)
{
	struct xr_adapt a = fresh(65536);

	(void)state;
	assert_int_equal(xr_adapt_acked(&a, 1, 0, 0), -EINVAL);
	xr_adapt_sent(&a, 1, 100);
	assert_int_equal(xr_adapt_acked(&a, 101, BASE, 1), -EINVAL);
	assert_int_equal(a.inflight, 100);
	assert_int_equal(xr_adapt_window(&a), 65536);	/* and nothing was cut */
	assert_int_equal(xr_adapt_acked(&a, 100, BASE, 0), 0);
	assert_int_equal(xr_adapt_acked(&a, UINT64_MAX, 0, 0), -EINVAL);
}

static void the_window_bounds_what_is_under_way(void **state)
{
	struct xr_adapt a = fresh(10000);

	(void)state;
	assert_int_equal(xr_adapt_open(&a, 0, UINT64_MAX / 512), 1);	/* alone anything may go */
	xr_adapt_sent(&a, 0, 6000);
	assert_int_equal(xr_adapt_open(&a, 0, 4000), 1);
	assert_int_equal(xr_adapt_open(&a, 0, 4001), 0);
	assert_int_equal(xr_adapt_open(&a, 0, 0), 1);
	xr_adapt_sent(&a, 0, 4000);
	assert_int_equal(xr_adapt_open(&a, 0, 1), 0);
	assert_int_equal(xr_adapt_acked(&a, 6000, 0, 0), 0);
	assert_int_equal(xr_adapt_open(&a, 0, 6000), 1);
}

static void growth_speeds_up_and_has_a_ceiling(void **state)
{
	struct xr_adapt a = fresh(8192);
	uint64_t now = 0, before, add[3] = { 0 };
	int i;

	(void)state;
	for (i = 0; i < 3; i++) {
		before = a.window;
		window_trip(&a, &now, BASE, 0);
		add[i] = a.window - before;
	}
	assert_true(add[0] > 0 && add[1] > add[0] && add[2] > add[1]);
	for (i = 0; i < 200; i++)
		window_trip(&a, &now, BASE, 0);
	assert_int_equal(xr_adapt_window(&a), 1u << 20);
	assert_int_equal(a.cuts_rtt + a.cuts_ecn + a.cuts_rnr, 0);
	/* and begins slowly again after a cut: a 128th of a unit in the first round that may */
	window_trip(&a, &now, 20 * BASE, 0);
	assert_int_equal(a.calm, 0);
	before = a.window;
	window_trip(&a, &now, BASE, 0);
	assert_true(a.window > before && a.window <= before + (4096 << 8) / 128 + 256);
}

/* Who does not use what it has is not given more. */
static void no_growth_without_need(void **state)
{
	struct xr_adapt a = fresh(65536);
	uint64_t now = 0;
	int i;

	(void)state;
	for (i = 0; i < 1000; i++)
		trip(&a, &now, 4096, BASE, 0);
	assert_int_equal(xr_adapt_window(&a), 65536);
}

/* beta: 0.8 at the first of few marks, 0.5 when all are marked; once for a window; not below the floor. */
static void marks(void **state)
{
	struct xr_adapt_params p = usual;
	struct xr_adapt a;
	uint64_t now = 0, before;
	int i;

	(void)state;
	p.target = 0;
	assert_int_equal(xr_adapt_init(&a, &p), 0);
	before = a.window;
	for (i = 0; i < 8; i++)
		xr_adapt_sent(&a, now, 4096);
	assert_int_equal(xr_adapt_acked(&a, 4096, 0, 1), 0);
	assert_true(a.window <= before * 205 / 256 && a.window >= before * 195 / 256);
	before = a.window;
	for (i = 0; i < 7; i++)		/* of the same window */
		assert_int_equal(xr_adapt_acked(&a, 4096, 0, 1), 0);
	assert_true(a.window == before);
	assert_int_equal(a.cuts_ecn, 1);
	for (i = 0; i < 100; i++)
		trip(&a, &now, 100, 0, 1);
	assert_int_equal(xr_adapt_window(&a), 64);	/* the floor */
	a.window = 65536 << 8;
	trip(&a, &now, 100, 0, 1);
	assert_true(a.window >> 8 >= 32768 && a.window >> 8 < 33500);
}

/* Where RTT is listened to, marks that come now and then are no reason, many are. */
static void few_marks(void **state)
{
	struct xr_adapt a = fresh(65536);
	uint64_t now = 0;
	int i;

	(void)state;
	for (i = 0; i < 300; i++)
		trip(&a, &now, 4096, BASE, i % 20 == 0);
	assert_int_equal(a.cuts_ecn, 0);
	for (i = 0; i < 10; i++)
		trip(&a, &now, 4096, BASE, 1);
	assert_true(a.cuts_ecn > 1);
}

static void a_standing_queue(void **state)
{
	struct xr_adapt a = fresh(65536);
	uint64_t now = 0, before;
	int i;

	(void)state;
	window_trip(&a, &now, BASE, 0);
	assert_int_equal(xr_adapt_base(&a), BASE);
	before = a.window;
	window_trip(&a, &now, BASE + TARGET, 0);	/* as much as is tolerated */
	assert_true(a.window >= before);
	before = a.window;
	window_trip(&a, &now, BASE + TARGET + TARGET / 2, 0);
	assert_true(a.window < before && a.window > before * 7 / 10);	/* in proportion */
	before = a.window;
	window_trip(&a, &now, 100 * BASE, 0);
	assert_true(a.window >= before / 2 && a.window < before * 52 / 100);	/* by half at most */
	for (i = 0; i < 300; i++)
		window_trip(&a, &now, 100 * BASE, 0);
	assert_int_equal(xr_adapt_window(&a), 64);
	/* the same with RTT as no signal changes nothing */
	a = fresh(65536);
	a.p.target = 0;
	window_trip(&a, &now, BASE, 0);
	before = a.window;
	for (i = 0; i < 10; i++)
		window_trip(&a, &now, 100 * BASE, 0);
	assert_true(a.window >= before);
	assert_int_equal(a.cuts_rtt, 0);
}

/* The path changed: after two epochs the old base is no measure any more. */
static void base_is_forgotten(void **state)
{
	struct xr_adapt a = fresh(65536);
	uint64_t now = 0;
	int i;

	(void)state;
	trip(&a, &now, 4096, BASE, 0);
	for (i = 0; i < 1000; i++) {
		trip(&a, &now, 4096, 3 * BASE, 0);
		now += 5000000;		/* 5 s in all */
	}
	assert_int_equal(xr_adapt_base(&a), BASE);
	for (i = 0; i < 2000; i++) {	/* 15 s: the next one has begun */
		trip(&a, &now, 4096, 3 * BASE, 0);
		now += 5000000;
	}
	assert_int_equal(xr_adapt_base(&a), BASE);
	for (i = 0; i < 4000; i++) {
		trip(&a, &now, 4096, 3 * BASE, 0);
		now += 5000000;
	}
	assert_int_equal(xr_adapt_base(&a), 3 * BASE);
}

static void a_receiver_that_is_not_ready(void **state)
{
	struct xr_adapt a = fresh(65536), b = fresh(65536);
	uint64_t now = 0;
	int i;

	(void)state;
	for (i = 0; i < 64; i++) {		/* one of 32 */
		trip(&a, &now, 4096, BASE, 0);
		if (i % 32 == 0) {
			xr_adapt_sent(&a, now, 4096);
			xr_adapt_rnr(&a);
			assert_int_equal(xr_adapt_acked(&a, 4096, BASE, 0), 0);
		}
	}
	assert_int_equal(a.cuts_rnr, 2);
	for (i = 0; i < 2; i++) {		/* nearly all, but as many cuts */
		int k;

		xr_adapt_sent(&b, now, 4096);
		for (k = 0; k < 40; k++)
			xr_adapt_rnr(&b);
		assert_int_equal(xr_adapt_acked(&b, 4096, BASE, 0), 0);
		trip(&b, &now, 4096, BASE, 0);
	}
	assert_int_equal(b.cuts_rnr, 2);
	assert_true(xr_adapt_window(&b) < xr_adapt_window(&a) * 3 / 4);
	for (i = 0; i < 1000; i++) {
		xr_adapt_rnr(&b);
		trip(&b, &now, 4096, BASE, 0);
	}
	assert_true(xr_adapt_window(&b) >= 64 && xr_adapt_window(&b) < 128);
}

/* Below the size of a message: a pause that keeps the rate. */
static void a_window_below_a_message(void **state)
{
	struct xr_adapt a = fresh(1024);
	uint64_t now = 1000000, wait;
	int ack;

	(void)state;
	assert_int_equal(xr_adapt_open(&a, now, 4096), 1);
	xr_adapt_sent(&a, now, 4096);
	assert_int_equal(xr_adapt_wait(&a, now, 4096, &ack), 0);
	assert_int_equal(ack, 1);
	now += BASE;
	assert_int_equal(xr_adapt_acked(&a, 4096, BASE, 0), 0);
	wait = xr_adapt_wait(&a, now, 4096, &ack);
	assert_int_equal(ack, 0);
	assert_true(wait > 19 * BASE / 10 && wait < 4 * BASE);	/* four round trips in all, a quarter more or less */
	assert_int_equal(xr_adapt_open(&a, now, 4096), 0);
	assert_int_equal(xr_adapt_open(&a, now + wait - 1, 1), 0);
	assert_int_equal(xr_adapt_open(&a, now + wait, 4096), 1);
	/* a window of one byte and a long RTT: not for ever */
	a.window = 1;
	a.srtt = INT32_MAX;
	a.p.target = 0;
	wait = xr_adapt_wait(&a, now, 4096, &ack);
	assert_true(wait > 50000000 && wait <= 100000000);
}

/* --- senders on one link --------------------------------------------------------------------- */

#define SENDERS 64

/* A link that takes `rate` bytes per ns and a queue that only these senders fill; a step is 1 us. */
static void share_a_link(void **state)
{
	static struct xr_adapt a[SENDERS];
	static uint64_t sent_at[SENDERS];
	static double done_at[SENDERS];
	static uint64_t bytes[SENDERS];
	double free_at = 0, rate = 3.0, sum = 0, squares = 0;
	uint64_t now, i, steps = 200000;

	(void)state;
	memset(bytes, 0, sizeof(bytes));
	/* very unequal at first */
	for (i = 0; i < SENDERS; i++)
		a[i] = fresh(i % 2 ? 4096 : 64);
	for (now = 1; now < steps * 1000; now += 1000) {
		for (i = 0; i < SENDERS; i++) {
			if (a[i].inflight && done_at[i] <= (double)now) {
				assert_int_equal(xr_adapt_acked(&a[i], 4096, now - sent_at[i], 0), 0);
				bytes[i] += now > steps * 500 ? 4096 : 0;
			}
			if (a[i].inflight || !xr_adapt_open(&a[i], now, 4096))
				continue;
			xr_adapt_sent(&a[i], now, 4096);
			sent_at[i] = now;
			free_at = (free_at > (double)now ? free_at : (double)now) + 4096 / rate;
			done_at[i] = free_at + BASE;
		}
	}
	for (i = 0; i < SENDERS; i++) {
		sum += (double)bytes[i];
		squares += (double)bytes[i] * (double)bytes[i];
	}
	/* the link was used in the second half, and shared */
	assert_true(sum > 0.9 * rate * (double)steps * 500);
	assert_true(sum * sum / (SENDERS * squares) > 0.95);
	/* without the windows the queue would be one message of each: 87 us */
	assert_true(free_at - (double)now < 45000);
}

/* --- the budget of a context --------------------------------------------------------------------- */

static void budget(void **state)
{
	struct xr_adapt a[4] = { 0 };
	struct xr_budget b;

	(void)state;
	xr_budget_init(&b, 1000);
	assert_int_equal(xr_budget_give(&b, 1), -EINVAL);
	assert_int_equal(xr_budget_take(&b, &a[0], 2000, 0), 0);	/* too large, and alone */
	assert_int_equal(xr_budget_take(&b, &a[1], 1, 0), -EAGAIN);
	assert_null(xr_budget_next(&b));
	assert_int_equal(xr_budget_give(&b, 2000), 0);
	assert_ptr_equal(xr_budget_next(&b), &a[1]);
	assert_int_equal(xr_budget_take(&b, &a[2], 1, 0), -EAGAIN);	/* there is room, but a[1] was before */
	assert_int_equal(xr_budget_take(&b, &a[1], 600, 0), 0);
	assert_ptr_equal(xr_budget_next(&b), &a[2]);
	assert_int_equal(xr_budget_take(&b, &a[2], 401, 0), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[2], UINT64_MAX, 0), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[2], 400, 0), 0);
	assert_null(xr_budget_next(&b));
	assert_int_equal(b.used, 1000);
	/* in the order in which they came, one that left in between, what was begun before the others */
	assert_int_equal(xr_budget_take(&b, &a[0], 10, 0), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[1], 10, 0), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[2], 10, 1), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[3], 10, 1), -EAGAIN);
	xr_budget_forget(&b, &a[0]);
	xr_budget_forget(&b, &a[0]);
	assert_int_equal(xr_budget_give(&b, 1000), 0);
	assert_ptr_equal(xr_budget_next(&b), &a[2]);
	assert_int_equal(xr_budget_take(&b, &a[1], 10, 0), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[2], 10, 1), 0);
	assert_int_equal(xr_budget_take(&b, &a[3], 10, 1), 0);
	assert_int_equal(xr_budget_take(&b, &a[0], 990, 1), -EAGAIN);
	assert_int_equal(xr_budget_take(&b, &a[0], 980, 1), 0);
	assert_int_equal(xr_budget_take(&b, &a[1], 10, 0), -EAGAIN);
	/* what was begun need not have waited */
	assert_int_equal(xr_budget_give(&b, 100), 0);
	assert_int_equal(xr_budget_take(&b, &a[3], 50, 1), 0);
	assert_int_equal(xr_budget_take(&b, &a[3], 50, 0), -EAGAIN);
	assert_ptr_equal(xr_budget_next(&b), &a[1]);
	xr_budget_forget(&b, &a[3]);
	xr_budget_forget(&b, &a[1]);
	assert_null(b.first);
	assert_ptr_equal(b.last, &b.first);
	/* a limit that shrank below what is used turns everybody away */
	b.limit = 10;
	assert_int_equal(xr_budget_take(&b, &a[2], 1, 0), -EAGAIN);
	assert_null(xr_budget_next(&b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parameters),
		cmocka_unit_test(more_acked_than_sent),
		cmocka_unit_test(the_window_bounds_what_is_under_way),
		cmocka_unit_test(growth_speeds_up_and_has_a_ceiling),
		cmocka_unit_test(no_growth_without_need),
		cmocka_unit_test(marks),
		cmocka_unit_test(few_marks),
		cmocka_unit_test(a_standing_queue),
		cmocka_unit_test(base_is_forgotten),
		cmocka_unit_test(a_receiver_that_is_not_ready),
		cmocka_unit_test(a_window_below_a_message),
		cmocka_unit_test(share_a_link),
		cmocka_unit_test(budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
