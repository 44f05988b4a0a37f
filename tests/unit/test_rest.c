/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Channels at rest hold little, and grow and shrink with their traffic, without a receive ever missing: there is
 * no second try for a message that finds none.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "ring_rig.h"

#define SIDE_OWN			\
	uint64_t said, heard;
#include "side_rig.h"

#define REST_BYTES	((XR_CHANNEL_REST + XR_WINDOW_CTL) * XR_CHANNEL_LEAN)

static uint8_t data[300000];

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	struct side *s = arg;

	(void)ch;
	assert_true(m->id == s->heard++);
	assert_true(stream_check(9, m->id, m->data, m->len) == m->len);
	s->got++;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .closed = side_closed,
};

static int say(struct side *s, size_t len)
{
	struct xrdma_msg m = { .data = data, .len = len, .id = s->said };
	int r;

	stream_fill(9, s->said, data, len);
	r = xrdma_send_msg(s->ch, &m);
	s->said += !r;
	return r;
}

static void say_many(struct side *s, uint32_t n, size_t len)
{
	uint64_t end = xr_now_ns() + 20000000000ull;

	while (n && xr_now_ns() < end) {
		if (!say(s, len))
			n--;
		else
			turn();
	}
	assert_int_equal(n, 0);
}

static struct xrdma_channel_stats of(const struct side *s)
{
	struct xrdma_channel_stats st;

	xrdma_get_channel_stats(s->ch, &st);
	return st;
}

/* Both ends copy, so that each has receives of its own on every device. */
static void connect_resting(uint32_t rest_ms)
{
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_COPY, 1), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_COPY, 1), 0);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_REST_MS, rest_ms), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_REST_MS, rest_ms), 0);
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	wait_for(a.opened && b.opened);
}

static void grows_and_shrinks(void **state)
{
	uint32_t round;

	(void)state;
	/* longer than a machine that is busy stands still between two looks of this test */
	connect_resting(rig_verbs() ? 200 : 50);
	for (round = 0; round < 3; round++) {
		uint32_t before = a.got;
		struct xrdma_context_stats cs;
		uint64_t fetched;

		assert_int_equal(of(&a).recv_bytes, REST_BYTES);
		assert_int_equal(of(&b).recv_bytes, REST_BYTES);
		assert_int_equal(of(&b).peer_msgs, XR_CHANNEL_REST);
		xrdma_get_context_stats(a.ctx, &cs);
		assert_int_equal(cs.recv_bytes, REST_BYTES);
		assert_int_equal(cs.pool_bytes, XR_POOL_ARENA);
		/*
		 * One small message at a time needs no more.  An ack goes alone for each half of the window, and the
		 * network may be behind with it: who sends on until the window is closed is in need of more.
		 */
		for (; a.got < before + 50; ) {
			say_many(&b, 1, 100);
			wait_for(a.heard == b.said && b.ch->win.snd_nxt - b.ch->win.snd_una < XR_CHANNEL_REST / 2);
		}
		assert_int_equal(of(&a).recv_bytes, REST_BYTES);
		/* many small ones: more receives, as short as before */
		say_many(&b, 500, 200);
		wait_for(a.heard == b.said && of(&b).peer_msgs == 64);
		wait_for(of(&a).recv_bytes == (64 + XR_WINDOW_CTL) * XR_CHANNEL_LEAN);
		/* longer ones: the first are READ, then receives take them */
		fetched = of(&a).fetched;
		say_many(&b, 500, 4096);
		wait_for(a.heard == b.said);
		wait_for(of(&a).recv_bytes == (64 + XR_WINDOW_CTL) * XR_MSG_EAGER_MAX);
		assert_true(of(&a).fetched > fetched && of(&a).fetched < fetched + 200);
		fetched = of(&a).fetched;
		say_many(&b, 100, 4096);
		wait_for(a.heard == b.said);
		assert_int_equal(of(&a).fetched, fetched);
		/* the other direction has not changed */
		assert_int_equal(of(&b).recv_bytes, REST_BYTES);
		/* and back, while nothing is said */
		wait_for(of(&a).recv_bytes == REST_BYTES && of(&b).peer_msgs == XR_CHANNEL_REST);
		assert_true(a.ctx->pool.used > XR_POOL_ARENA);
		wait_for(!a.ctx->rest && !b.ctx->rest);
		/* what nobody uses any more is not kept either */
		assert_int_equal(a.ctx->pool.used, XR_POOL_ARENA);
		assert_int_equal(b.ctx->pool.used, XR_POOL_ARENA);
		assert_int_equal(of(&a).recv_msgs, XR_CHANNEL_REST);
		assert_int_equal(b.ch->out_mask, XR_CHANNEL_REST - 1);
		assert_int_equal(a.ctx->pool.bufs, XR_CHANNEL_REST + XR_WINDOW_CTL + 2);
		assert_int_equal(b.ctx->pool.bufs, XR_CHANNEL_REST + XR_WINDOW_CTL + 2);
		assert_true(of(&b).fillers > 0);
	}
	xrdma_close(b.ch);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
}

/* Fewer messages than an ack goes alone for: they are acked all the same, and both ends come to rest. */
static void few(void **state)
{
	uint32_t n;

	(void)state;
	connect_resting(10);
	for (n = 1; n < 5; n++) {
		say_many(&b, n, 100);
		say_many(&a, 5 - n, 100);
		wait_for(a.heard == b.said && b.heard == a.said);
		wait_for(!a.ctx->rest && !b.ctx->rest);
		assert_int_equal(b.ch->released, b.ch->queued);
		assert_int_equal(a.ch->released, a.ch->queued);
	}
}

/* A program that sleeps on the descriptor is woken to shrink, and not any more afterwards. */
static void asleep(void **state)
{
	struct pollfd p[2];
	uint64_t end;
	int i;

	(void)state;
	connect_resting(20);
	p[0] = (struct pollfd){ .fd = xrdma_get_event_fd(a.ctx), .events = POLLIN };
	p[1] = (struct pollfd){ .fd = xrdma_get_event_fd(b.ctx), .events = POLLIN };
	say_many(&b, 300, 4000);
	wait_for(a.heard == b.said);
	end = xr_now_ns() + 10000000000ull;
	while ((of(&a).recv_bytes != REST_BYTES || a.ctx->rest || b.ctx->rest) && xr_now_ns() < end) {
		while (xrdma_process_event(a.ctx) | xrdma_process_event(b.ctx))
			;
		poll(p, 2, 1000);
	}
	assert_int_equal(of(&a).recv_bytes, REST_BYTES);
	for (i = 0; i < 20 && poll(p, 2, 100); i++)
		while (xrdma_process_event(a.ctx) | xrdma_process_event(b.ctx))
			;
	assert_true(i < 20);
}

static void never(void **state)
{
	uint64_t end;

	(void)state;
	connect_resting(0);
	say_many(&b, 300, 4000);
	wait_for(a.heard == b.said);
	end = xr_now_ns() + 50000000;
	while (xr_now_ns() < end)
		turn();
	assert_true(of(&a).recv_bytes > (64 + XR_WINDOW_CTL) * 4096);
	/* holds at once */
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_REST_MS, 1), 0);
	wait_for(of(&a).recv_bytes == REST_BYTES);
}

/* Bursts and pauses of both ends as chance has it, with a look every millisecond. */
static void any_traffic(void **state)
{
	struct rng g = { 20261130 };
	uint64_t end = xr_now_ns() + (getenv("GUEST") ? 20000000000ull : 4000000000ull);
	/* where all is slow the same happens later */
	uint64_t late = end + 60000000000ull, resized = 0, enough = rig_verbs() ? 4 : 20;
	uint32_t round;

	(void)state;
	connect_resting(1);
	for (round = 0; round < 3000 && xr_now_ns() < (resized > enough ? end : late); round++) {
		struct side *s = rng_below(&g, 2) ? &a : &b;
		uint32_t n = rng_below(&g, rng_below(&g, 3) ? 10 : 300), kind = rng_below(&g, 4);

		while (n) {
			size_t len = kind == 0 ? rng_below(&g, 209) : kind == 1 ? rng_below(&g, 4097) :
				     kind == 2 ? rng_below(&g, 70000) : rng_size(&g);

			if (!say(s, len))
				n--;
			else
				turn();
			if (!rng_below(&g, 8))
				s = s == &a ? &b : &a;
			if (!rng_below(&g, 30))
				turn();
		}
		if (!rng_below(&g, 4)) {
			uint64_t pause = xr_now_ns() + rng_below(&g, 4000000);

			/* one end may be away */
			while (xr_now_ns() < pause)
				xrdma_polling(rng_below(&g, 3) ? a.ctx : b.ctx);
		}
		assert_int_equal(a.closed + b.closed, 0);
		resized = of(&a).resized + of(&b).resized;
	}
	wait_for(a.heard == b.said && b.heard == a.said);
	resized = of(&a).resized + of(&b).resized;
	print_message("%u rounds, %u messages, receives changed %u times\n", round, a.got + b.got, (uint32_t)resized);
	assert_true(resized > enough);
	wait_for(of(&a).recv_bytes == REST_BYTES && of(&b).recv_bytes == REST_BYTES);
}

/* Where there is no memory for more, a channel stays as it is, and works. */
static void cramped(void **state)
{
	(void)state;
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_POOL_BYTES, 4u << 20), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_POOL_BYTES, 4u << 20), 0);
	connect_resting(0);
	say_many(&b, 3000, 150);
	wait_for(a.heard == b.said);
	assert_int_equal(of(&a).peer_msgs, XR_CHANNEL_REST);
	assert_int_equal(of(&a).recv_bytes, (64 + XR_WINDOW_CTL) * XR_CHANNEL_LEAN);
}

/* The peer's word on its receives is checked as all others. */
static void nonsense(void **state)
{
	uint32_t from, was;

	(void)state;
	connect_resting(0);
	from = b.ch->fill_to;
	was = b.ch->grant;
	assert_int_equal(xr_channel_granted(b.ch, was, from), 0);
	assert_int_equal(xr_channel_granted(b.ch, XR_GRANT(0, 208), from), -EPROTO);
	assert_int_equal(xr_channel_granted(b.ch, XR_GRANT(65, 208), from), -EPROTO);
	assert_int_equal(xr_channel_granted(b.ch, XR_GRANT(64, XR_CHANNEL_EAGER + 1), from), -EPROTO);
	assert_int_equal(xr_channel_granted(b.ch, XR_GRANT(64, XR_EAGER_LEAST - 1), from), -EPROTO);
	assert_int_equal(xr_channel_granted(b.ch, XR_GRANT(64, 208), b.ch->sends + 5000), -EPROTO);
	assert_int_equal(b.ch->grant, was);
	assert_int_equal(b.ch->fill_to, from);
	/* what lies behind is nothing to fill */
	assert_int_equal(xr_channel_granted(b.ch, XR_GRANT(64, 208), b.ch->sends - 1), 0);
	assert_int_equal(b.ch->filling, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(grows_and_shrinks, side_start, side_stop),
		cmocka_unit_test_setup_teardown(few, side_start, side_stop),
		cmocka_unit_test_setup_teardown(asleep, side_start, side_stop),
		cmocka_unit_test_setup_teardown(never, side_start, side_stop),
		cmocka_unit_test_setup_teardown(any_traffic, side_start, side_stop),
		cmocka_unit_test_setup_teardown(cramped, side_start, side_stop),
		cmocka_unit_test_setup_teardown(nonsense, side_start, side_stop),
	};

	return rig_run(tests);
}
