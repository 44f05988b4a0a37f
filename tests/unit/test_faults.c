/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels over a shm device with faults: what a reliable connection hides stays hidden, the rest ends in order. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "core/fabric_shm_fault.h"
#include "ring_rig.h"

#define SIDE_OWN			\
	struct xrdma_channel_stats last; /* when it ended */
#define SIDE_DEVICE	"shm"
#include "side_rig.h"

#define ONE_IN(n)	(XR_FAULT_ALWAYS / (n))
#define LARGEST		200000u

static uint8_t data[LARGEST];

/* Every message once, in order, and what it was. */
static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	struct side *s = arg;

	(void)ch;
	assert_true(m->id == s->got);
	assert_true(m->imm == (uint32_t)m->len);
	assert_true(stream_check(7, m->id, m->data, m->len) == m->len);
	s->got++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	struct side *s = arg;

	xrdma_get_channel_stats(ch, &s->last);
	s->closed++;
	s->error = error;
	s->ch = NULL;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .closed = on_closed,
};

static int say(struct side *s, uint64_t i, size_t len)
{
	struct xrdma_msg m = { .data = data, .len = len, .id = i, .imm = (uint32_t)len };

	stream_fill(7, i, data, len);
	return xrdma_send_msg(s->ch, &m);
}

/* n messages each way, of all kinds; stops when a channel has ended. */
static void converse(uint32_t n, uint32_t seed)
{
	struct side *side[2] = { &a, &b };
	uint64_t end = xr_now_ns() + 30000000000ull;
	struct rng g = { seed };
	uint32_t sent[2] = { 0, 0 }, i;

	while ((a.got < n || b.got < n) && !a.closed && !b.closed && xr_now_ns() < end) {
		for (i = 0; i < 2; i++) {
			while (sent[i] < n && side[i]->ch) {
				uint32_t len = rng_below(&g, 8) ? rng_below(&g, 5000) : rng_below(&g, LARGEST);

				if (say(side[i], sent[i], len))
					break;
				sent[i]++;
			}
		}
		turn();
	}
}

static void both_faulty(const struct xr_shm_fault *f)
{
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, f), 0);
	assert_int_equal(xr_shm_fault_set(b.ctx->dev, f), 0);
}

/* Everything that a channel held is given back. */
static void nothing_left(void)
{
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
	assert_int_equal(a.ctx->out_bytes + b.ctx->out_bytes, 0);
	assert_int_equal(a.ctx->budget.used + b.ctx->budget.used, 0);
	assert_null(a.ctx->budget.first);
	assert_null(b.ctx->budget.first);
}

static void arguments(void **state)
{
	struct xr_shm_fault f = { 0 };
	uint32_t *share[] = { &f.drop, &f.delay, &f.reorder, &f.duplicate, &f.fail, &f.kill, &f.rnr, &f.ecn };
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(share); i++) {
		*share[i] = XR_FAULT_ALWAYS + 1;
		assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), -EINVAL);
		*share[i] = XR_FAULT_ALWAYS;
		assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
		*share[i] = 0;
	}
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, NULL), 0);
}

/* --- what a reliable connection hides --------------------------------------------------- */

static void hidden(void **state)
{
	static const struct xr_shm_fault faults[] = {
		{ .seed = 1, .drop = ONE_IN(8), .retries = 7, .rto_us = 50 },
		{ .seed = 2, .delay = ONE_IN(3), .delay_us = 100 },
		{ .seed = 3, .reorder = ONE_IN(3), .delay_us = 50 },
		{ .seed = 4, .slow_us = 5 },
		{ .seed = 5, .ecn = ONE_IN(5) },
		{ .seed = 6, .rnr = ONE_IN(10), .rnr_us = 30 },
		{ .seed = 7, .drop = ONE_IN(20), .delay = ONE_IN(20), .reorder = ONE_IN(20), .rnr = ONE_IN(20),
		  .ecn = ONE_IN(20), .retries = 7, .rto_us = 20, .delay_us = 20, .rnr_us = 20, .slow_us = 1 },
	};
	struct xr_shm_fault_count c, d;
	size_t i;

	(void)state;
	a.ctx->rnr_retry = b.ctx->rnr_retry = 7;
	for (i = 0; i < XR_ARRAY_LEN(faults); i++) {
		a.opened = b.opened = a.got = b.got = a.closed = b.closed = 0;
		both_faulty(&faults[i]);
		connect_both();
		converse(600, (uint32_t)i + 1);
		assert_int_equal(a.got, 600);
		assert_int_equal(b.got, 600);
		xr_shm_fault_count(a.ctx->dev, &c);
		xr_shm_fault_count(b.ctx->dev, &d);
		assert_true(!faults[i].drop || (c.drop > 10 && d.drop > 10));
		assert_true(!faults[i].delay || (c.delay > 10 && d.delay > 10));
		assert_true(!faults[i].reorder || (c.reorder > 10 && d.reorder > 10));
		assert_true(!faults[i].slow_us || (c.slow > 100 && d.slow > 100));
		assert_true(!faults[i].ecn || (c.ecn > 10 && d.ecn > 10));
		assert_true(!faults[i].rnr || (c.rnr > 10 && d.rnr > 10));
		xrdma_close(b.ch);
		wait_for(a.closed);
		assert_int_equal(a.error, 0);
		nothing_left();
	}
}

/* The same while both ends sleep: timers of the device wake them. */
static void asleep(void **state)
{
	static const struct xr_shm_fault f = { .seed = 9, .drop = ONE_IN(6), .rnr = ONE_IN(6), .retries = 20,
					       .rto_us = 300, .rnr_us = 300, .slow_us = 50 };
	struct pollfd p[2];
	uint32_t i, late = 0;

	(void)state;
	a.ctx->rnr_retry = b.ctx->rnr_retry = 7;
	both_faulty(&f);
	connect_both();
	p[0] = (struct pollfd){ .fd = xrdma_get_event_fd(a.ctx), .events = POLLIN };
	p[1] = (struct pollfd){ .fd = xrdma_get_event_fd(b.ctx), .events = POLLIN };
	while (xrdma_process_event(a.ctx) | xrdma_process_event(b.ctx))
		;
	for (i = 0; i < 100; i++) {
		assert_int_equal(say(&b, i, i % 5 ? 64 : 30000), 0);
		while (a.got != i + 1) {
			uint64_t before = xr_now_ns();

			assert_true(poll(p, 2, 5000) > 0);
			late += xr_now_ns() - before > 100000;
			if (p[0].revents)
				while (xrdma_process_event(a.ctx))
					;
			if (p[1].revents)
				while (xrdma_process_event(b.ctx))
					;
		}
	}
	assert_true(late > 5);
}

/* The same seed marks the same messages, another one does not. */
static void chance_is_repeatable(void **state)
{
	static uint8_t marked[3][200];
	static struct end x, y;
	uint32_t run, i;

	(void)state;
	for (run = 0; run < 3; run++) {
		struct xr_shm_fault f = { .seed = run == 2 ? 12 : 11, .ecn = ONE_IN(3), .after = 10 };

		memset(&x, 0, sizeof(x));
		memset(&y, 0, sizeof(y));
		rig_connect(&x, &y);
		assert_int_equal(xr_shm_fault_set(x.dev, &f), 0);
		for (i = 0; i < 200; i++) {
			uint32_t n = x.nwc;

			assert_int_equal(post_recv(&x, i, x.mem, 64), 0);
			assert_int_equal(post_send(&y, i, y.mem, 64), 0);
			until(&x, &y, x.nwc == n + 1);
			marked[run][i] = x.wc[n].flags & XR_WC_ECN;
			y.nwc = 0;
		}
		assert_int_equal(end_close(&x), 0);
		assert_int_equal(end_close(&y), 0);
	}
	for (i = 0; i < 10; i++)
		assert_int_equal(marked[0][i], 0);
	assert_memory_equal(marked[0], marked[1], 200);
	assert_true(memcmp(marked[0], marked[2], 200) != 0);
}

/* --- signals of congestion ------------------------------------------------------------------ */

static void marks_narrow_the_window(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .ecn = ONE_IN(2) };
	struct xrdma_channel_stats s;
	uint64_t narrow;
	uint32_t i;

	(void)state;
	connect_both();
	xrdma_get_channel_stats(b.ch, &s);
	assert_true(s.net_bytes == s.peer_bytes);
	assert_int_equal(s.cuts + s.held + s.marked, 0);
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	for (i = 0; i < 3000; i++) {
		while (say(&b, i, 1000))
			turn();
	}
	wait_for(a.got == 3000);
	xrdma_get_channel_stats(b.ch, &s);
	assert_true(s.marked > 10 && s.cuts > 10 && s.held > 0);
	assert_true(s.net_bytes < s.peer_bytes / 16);
	assert_true(s.net_bytes >= 4096);	/* the floor: one message always may go */
	narrow = s.net_bytes;
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, NULL), 0);
	for (; i < 30000; i++) {
		while (say(&b, i, 1000))
			turn();
	}
	wait_for(a.got == 30000);
	xrdma_get_channel_stats(b.ch, &s);
	assert_true(s.net_bytes > 2 * narrow);
}

static void marks_narrow_reads(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .ecn = ONE_IN(2) };
	struct xrdma_channel_stats s;
	uint64_t wide;
	uint32_t i;

	(void)state;
#ifdef SIDE_RENDEZVOUS
	skip();		/* there are none */
#endif
	connect_both();
	xrdma_get_channel_stats(a.ch, &s);
	wide = s.net_fetch_bytes;
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	for (i = 0; i < 200; i++) {
		while (say(&b, i, LARGEST))
			turn();
	}
	wait_for(a.got == 200);
	xrdma_get_channel_stats(a.ch, &s);
	assert_true(s.marked > 10 && s.cuts > 10);
	assert_true(s.net_fetch_bytes < wide / 8);
	assert_true(a.ctx->budget.limit < 64u << 20);
}

static void not_ready(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .rnr = ONE_IN(4), .rnr_us = 20, .after = 50 };
	struct xrdma_channel_stats s;
	uint32_t i;

	(void)state;
	b.ctx->rnr_retry = 7;
	connect_both();
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	for (i = 0; i < 500; i++) {
		while (say(&b, i, 1000))
			turn();
		turn();
	}
	wait_for(a.got == 500);
	xrdma_get_channel_stats(b.ch, &s);
	assert_true(s.rnr > 20 && s.cuts > 5);
	assert_true(s.net_bytes < s.peer_bytes);
	/* without a retry it is the end: the sender's, with all that came before delivered */
	xrdma_close(b.ch);
	wait_for(a.closed);
	a.opened = b.opened = a.closed = a.got = 0;
	b.ctx->rnr_retry = 0;
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	connect_both();
	for (i = 0; i < 500 && b.ch; i++) {
		if (say(&b, i, 1000))
			i--;
		turn();
	}
	wait_for(b.closed && a.closed);
	assert_int_equal(b.error, -EIO);
	assert_true(a.error < 0);
	assert_true(a.got >= 40 && a.got < 200);
	nothing_left();
}

/* Round trips as a signal: a slow peer is sent less at a time, and pauses end by themselves. */
static void round_trips(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .slow_us = 200 };
	struct xrdma_channel_stats s;
	uint32_t i;

	(void)state;
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_QUEUE_US, 1000001), -EINVAL);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_QUEUE_US, 100), 0);
	connect_both();
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_QUEUE_US, 0), -EBUSY);
	for (i = 0; i < 20; i++) {
		assert_int_equal(say(&b, i, 64), 0);
		wait_for(a.got == i + 1);
	}
	xrdma_get_channel_stats(b.ch, &s);
	assert_true(s.rtt_ns > 0);
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	for (; i < 400; i++) {
		while (say(&b, i, 4096))
			turn();
		turn();
	}
	wait_for(a.got == 400);
	xrdma_get_channel_stats(b.ch, &s);
	assert_true(s.cuts > 0 && s.held > 0);
	assert_true(s.net_bytes < 8192);
	assert_true(s.rtt_ns > 100000);
}

/* The same for programs that sleep: a pause is a timer of the context. */
static void pauses_while_asleep(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .slow_us = 300 };
	struct pollfd p[2];
	uint32_t i, paused = 0;

	(void)state;
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_QUEUE_US, 5), 0);
	connect_both();
	for (i = 0; i < 20; i++) {
		assert_int_equal(say(&b, i, 64), 0);
		wait_for(a.got == i + 1);
	}
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	for (; i < 120; i++)
		assert_int_equal(say(&b, i, 4096), 0);
	p[0] = (struct pollfd){ .fd = xrdma_get_event_fd(a.ctx), .events = POLLIN };
	p[1] = (struct pollfd){ .fd = xrdma_get_event_fd(b.ctx), .events = POLLIN };
	while (a.got < 120) {
		while (xrdma_process_event(a.ctx) | xrdma_process_event(b.ctx))
			;
		if (a.got == 120)
			break;
		paused += b.ctx->pace != 0;
		assert_true(poll(p, 2, 5000) > 0);
	}
	assert_true(paused > 10);
}

/* --- what it does not hide ------------------------------------------------------------------- */

static void lost_for_good(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .after = 30, .drop = XR_FAULT_ALWAYS, .retries = 3,
					       .rto_us = 100 };
	struct xr_shm_fault_count c;

	(void)state;
	connect_both();
	assert_int_equal(xr_shm_fault_set(b.ctx->dev, &f), 0);
	converse(500, 1);
	wait_for(a.closed && b.closed);
	assert_int_equal(b.error, -ECONNRESET);
	assert_true(a.error < 0);
	xr_shm_fault_count(b.ctx->dev, &c);
	assert_int_equal(c.drop, 4);
	nothing_left();
}

/* No message is ever delivered twice: the sequence numbers say so. */
static void twice(void **state)
{
	static const struct xr_shm_fault f = { .seed = 1, .after = 30, .duplicate = XR_FAULT_ALWAYS };

	(void)state;
	connect_both();
	assert_int_equal(xr_shm_fault_set(b.ctx->dev, &f), 0);
	converse(500, 1);
	wait_for(a.closed && b.closed);
	assert_int_equal(a.error, -EPROTO);
	assert_true(b.error < 0);
	nothing_left();
}

static void every_status(void **state)
{
	uint32_t status, after;

	(void)state;
	for (status = XR_WC_SUCCESS + 1; status < XR_WC_STATUS_COUNT; status++) {
		for (after = 0; after < 90; after += 30) {
			struct xr_shm_fault f = { .seed = 1, .after = after, .fail = XR_FAULT_ALWAYS,
						  .status = (enum xr_wc_status)status };

			a.opened = b.opened = a.got = b.got = a.closed = b.closed = 0;
			connect_both();
			assert_int_equal(xr_shm_fault_set(b.ctx->dev, &f), 0);
			converse(200, status);
			wait_for(a.closed && b.closed);
			assert_int_equal(a.closed, 1);
			assert_int_equal(b.closed, 1);
			assert_true(a.error < 0);
			/* a flush says nothing by itself: the end of the connection does */
			assert_int_equal(b.error, status == XR_WC_RETRY_EXC_ERR || status == XR_WC_WR_FLUSH_ERR ?
					 -ECONNRESET : -EIO);
			nothing_left();
			assert_int_equal(xr_shm_fault_set(b.ctx->dev, NULL), 0);
		}
	}
}

static void killed(void **state)
{
	uint32_t after;

	(void)state;
	for (after = 0; after < 200; after += 7) {
		struct xr_shm_fault f = { .seed = after, .after = after, .kill = XR_FAULT_ALWAYS };

		a.opened = b.opened = a.got = b.got = a.closed = b.closed = 0;
		connect_both();
		assert_int_equal(xr_shm_fault_set(b.ctx->dev, &f), 0);
		converse(200, after);
		wait_for(a.closed && b.closed);
		assert_true(a.error < 0 && b.error < 0);
		nothing_left();
		assert_int_equal(xr_shm_fault_set(b.ctx->dev, NULL), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(arguments, side_start, side_stop),
		cmocka_unit_test_setup_teardown(hidden, side_start, side_stop),
		cmocka_unit_test_setup_teardown(asleep, side_start, side_stop),
		cmocka_unit_test(chance_is_repeatable),
		cmocka_unit_test_setup_teardown(marks_narrow_the_window, side_start, side_stop),
		cmocka_unit_test_setup_teardown(marks_narrow_reads, side_start, side_stop),
		cmocka_unit_test_setup_teardown(not_ready, side_start, side_stop),
		cmocka_unit_test_setup_teardown(round_trips, side_start, side_stop),
		cmocka_unit_test_setup_teardown(pauses_while_asleep, side_start, side_stop),
		cmocka_unit_test_setup_teardown(lost_for_good, side_start, side_stop),
		cmocka_unit_test_setup_teardown(twice, side_start, side_stop),
		cmocka_unit_test_setup_teardown(every_status, side_start, side_stop),
		cmocka_unit_test_setup_teardown(killed, side_start, side_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
