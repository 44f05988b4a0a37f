/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels: requests, one-sided operations, keepalive, trace ids, statistics, copying. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "ring_rig.h"

#define ASKED	64u
/* asked: requests that wait for an answer, which is given at once where `answer` is set; remote: as last told */
#define SIDE_OWN				\
	uint64_t last_done, last_id;		\
	enum xrdma_kind kind;			\
	uint8_t trace[XRDMA_TRACE_LEN];		\
	int traced, answer;			\
	uint64_t asked[ASKED];			\
	uint32_t nasked;			\
	struct xrdma_remote remote;
#include "side_rig.h"

#define BIG	(8u << 20)

static uint8_t data[BIG];

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	struct side *s = arg;

	s->got++;
	s->kind = m->kind;
	s->last_id = m->id;
	s->traced = m->trace != NULL;
	if (m->trace)
		memcpy(s->trace, m->trace, XRDMA_TRACE_LEN);
	if (m->len == sizeof(s->remote)) {
		memcpy(&s->remote, m->data, m->len);
		return;
	}
	assert_int_equal(stream_check(m->imm, 0, m->data, m->len), m->len);
	if (m->kind != XRDMA_REQUEST)
		return;
	if (s->answer)
		assert_int_equal(xrdma_send_response(ch, m->id, m), 0);
	else if (s->nasked < ASKED)
		s->asked[s->nasked++] = m->id;
}

static void on_sent(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	(void)ch;
	(void)id;
	((struct side *)arg)->sent++;
}

static void on_done(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	struct side *s = arg;

	(void)ch;
	s->done++;
	s->last_done = id;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .sent = on_sent,
	.done = on_done, .closed = side_closed,
};

/* A message of n bytes of stream `seed`. */
static struct xrdma_msg text(uint32_t seed, size_t n)
{
	struct xrdma_msg m = { .data = data, .len = n, .imm = seed, .id = 4711 };

	stream_fill(seed, 0, data, n);
	return m;
}

/* --- requests ---------------------------------------------------------------------- */

struct asker {
	uint32_t calls;
	int error;
	uint32_t imm;
	size_t len;
	int hang_up;
};

static void on_reply(struct xrdma_channel *ch, const struct xrdma_msg *m, int error, void *arg)
{
	struct asker *k = arg;

	k->calls++;
	k->error = error;
	if (m) {
		assert_int_equal(m->kind, XRDMA_RESPONSE);
		assert_int_equal(stream_check(m->imm, 0, m->data, m->len), m->len);
		k->imm = m->imm;
		k->len = m->len;
	}
	if (k->hang_up)
		xrdma_close(ch);
}

static void requests_are_answered(void **state)
{
	static const size_t sizes[] = { 0, 1, 4096, 4097, 300000 };
	struct asker k[2 * XR_ARRAY_LEN(sizes)] = { { 0 } };
	struct xrdma_msg m;
	uint32_t i;

	(void)state;
	connect_both();
	a.answer = b.answer = 1;
	m = text(1, 10);
	assert_int_equal(xrdma_send_request(b.ch, &m, NULL, NULL), -EINVAL);
	for (i = 0; i < XR_ARRAY_LEN(k); i++) {
		/* both ends ask, and their numbers are their own */
		m = text(100 + i, sizes[i / 2]);
		assert_int_equal(xrdma_send_request(i & 1 ? a.ch : b.ch, &m, on_reply, &k[i]), 0);
	}
	wait_for(k[8].calls && k[9].calls);
	for (i = 0; i < XR_ARRAY_LEN(k); i++) {
		assert_int_equal(k[i].calls, 1);
		assert_int_equal(k[i].error, 0);
		assert_int_equal(k[i].imm, 100 + i);
		assert_int_equal(k[i].len, sizes[i / 2]);
	}
	assert_int_equal(a.kind, XRDMA_REQUEST);
	/* a plain message is none */
	m = text(5, 100);
	assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
	wait_for(a.kind == XRDMA_MESSAGE && a.last_id == 4711);
}

static void answers_in_another_order(void **state)
{
	struct asker k[ASKED] = { { 0 } };
	struct rng g = { 4 };
	uint32_t i, left = ASKED;
	struct xrdma_msg m;

	(void)state;
	connect_both();
	for (i = 0; i < ASKED; i++) {
		m = text(i, 50);
		assert_int_equal(xrdma_send_request(b.ch, &m, on_reply, &k[i]), 0);
	}
	wait_for(a.nasked == ASKED);
	while (left) {
		uint32_t n = rng_below(&g, left);
		uint64_t id = a.asked[n];

		a.asked[n] = a.asked[--left];
		/* numbers begin with 0 and are given in order */
		m = text(1000 + (uint32_t)id, 60);
		assert_int_equal(xrdma_send_response(a.ch, id, &m), 0);
		turn();
	}
	wait_for(k[0].calls && k[ASKED - 1].calls && xr_load_relaxed(&b.ch->count[XR_CHAN_MSGS_RECEIVED]) == ASKED);
	for (i = 0; i < ASKED; i++) {
		assert_int_equal(k[i].calls, 1);
		assert_int_equal(k[i].imm, 1000 + i);
	}
}

static void an_answer_to_nothing(void **state)
{
	struct asker k = { 0 };
	struct xrdma_msg m;

	(void)state;
	connect_both();
	a.answer = 1;
	m = text(1, 10);
	assert_int_equal(xrdma_send_request(b.ch, &m, on_reply, &k), 0);
	wait_for(k.calls == 1);
	/* the same once more */
	assert_int_equal(xrdma_send_response(a.ch, 0, &m), 0);
	wait_for(b.closed && a.closed);
	assert_int_equal(b.error, -EPROTO);
	assert_int_equal(k.calls, 1);
}

static void requests_end_with_the_channel(void **state)
{
	struct asker k[3] = { { 0 } };
	struct xrdma_msg m;

	(void)state;
	/* the peer closes */
	connect_both();
	m = text(1, 10);
	assert_int_equal(xrdma_send_request(b.ch, &m, on_reply, &k[0]), 0);
	wait_for(a.nasked == 1);
	xrdma_close(a.ch);
	wait_for(b.closed);
	assert_int_equal(k[0].calls, 1);
	assert_int_equal(k[0].error, -ECONNRESET);
	assert_int_equal(b.error, 0);
	/* we close: not a word */
	a.opened = b.opened = 0;
	connect_both();
	assert_int_equal(xrdma_send_request(b.ch, &m, on_reply, &k[1]), 0);
	xrdma_close(b.ch);
	wait_for(a.closed && !b.ctx->channels);
	assert_int_equal(k[1].calls, 0);
	/* the peer vanishes; the callback closes, so that `closed` has nothing to add */
	a.opened = b.opened = b.closed = 0;
	connect_both();
	k[2].hang_up = 1;
	assert_int_equal(xrdma_send_request(b.ch, &m, on_reply, &k[2]), 0);
	assert_int_equal(xrdma_context_destroy(a.ctx), 0);
	a.ctx = NULL;
	wait_for(!b.ctx->channels);
	assert_int_equal(k[2].calls, 1);
	assert_true(k[2].error < 0);
	assert_int_equal(b.ctx->pool.bufs, 0);
}

/* --- trace ids --------------------------------------------------------------------- */

static void a_trace_id_travels(void **state)
{
	static const size_t sizes[] = { 0, 100, 4096, 4097, 200000 };
	uint8_t id[XRDMA_TRACE_LEN];
	struct xrdma_msg m;
	uint32_t i, copy;

	(void)state;
	for (copy = 0; copy < 2; copy++) {
		assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_COPY, copy), 0);
		a.opened = b.opened = 0;
		connect_both();
		for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
			stream_fill(i + 7, 0, id, sizeof(id));
			m = text(i, sizes[i]);
			m.trace = id;
			a.got = 0;
			assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
			wait_for(a.got == 1);
			assert_int_equal(a.traced, 1);
			assert_memory_equal(a.trace, id, sizeof(id));
			m.trace = NULL;
			assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
			wait_for(a.got == 2);
			assert_int_equal(a.traced, 0);
		}
		xrdma_close(b.ch);
		wait_for(!a.ctx->channels && !b.ctx->channels);
	}
}

/* --- one-sided --------------------------------------------------------------------- */

static void read_and_write(void **state)
{
	struct xrdma_mem *am, *bm;
	void *ap, *bp;
	struct xrdma_remote r, w;
	struct xrdma_msg m = { .data = &r, .len = sizeof(r) };
	uint32_t i;

	(void)state;
	assert_int_equal(xrdma_alloc_mem(a.ctx, 0, &am, &ap), -EINVAL);
	assert_int_equal(xrdma_alloc_mem(a.ctx, BIG, &am, &ap), 0);
	assert_int_equal(xrdma_alloc_mem(b.ctx, BIG, &bm, &bp), 0);
	connect_both();
	assert_int_equal(xrdma_grant(a.ch, am, ap, BIG, 0, &r), -EINVAL);
	assert_int_equal(xrdma_grant(a.ch, am, ap, BIG, 4, &r), -EINVAL);
	assert_int_equal(xrdma_grant(a.ch, am, (uint8_t *)ap + 1, BIG, XRDMA_GRANT_READ, &r), -EINVAL);
	assert_int_equal(xrdma_grant(a.ch, bm, bp, 10, XRDMA_GRANT_READ, &r), -EINVAL);
	assert_int_equal(xrdma_grant(a.ch, am, ap, BIG, XRDMA_GRANT_READ | XRDMA_GRANT_WRITE, &r), 0);
	assert_int_equal(xrdma_send_msg(a.ch, &m), 0);
	wait_for(b.got == 1);
	w = b.remote;
	/* not within what there is */
	assert_int_equal(xrdma_write(b.ch, bm, bp, 10, &w, BIG - 9, 1), -EINVAL);
	assert_int_equal(xrdma_write(b.ch, bm, bp, 10, &w, UINT64_MAX, 1), -EINVAL);
	assert_int_equal(xrdma_write(b.ch, bm, (uint8_t *)bp + BIG - 9, 10, &w, 0, 1), -EINVAL);
	assert_int_equal(xrdma_write(b.ch, bm, bp, 0, &w, 0, 1), -EINVAL);
	assert_int_equal(xrdma_write(b.ch, am, ap, 10, &w, 0, 1), -EINVAL);
	/* there and back, and in order */
	stream_fill(9, 0, bp, BIG);
	assert_int_equal(xrdma_write(b.ch, bm, bp, 1000000, &w, 5000, 77), 0);
	assert_int_equal(xrdma_dereg_mem(bm), -EBUSY);
	wait_for(b.done == 1);
	assert_int_equal(b.last_done, 77);
	assert_int_equal(stream_check(9, 0, (uint8_t *)ap + 5000, 1000000), 1000000);
	memset(bp, 0, BIG);
	for (i = 0; i < XR_ONE_MAX; i++)
		assert_int_equal(xrdma_read(b.ch, bm, (uint8_t *)bp + i * 1000, 1000, &w,
					    5000 + i * 1000, 100 + i), 0);
	assert_int_equal(xrdma_read(b.ch, bm, bp, 10, &w, 0, 1), -EAGAIN);
	wait_for(b.done == 1 + XR_ONE_MAX);
	assert_int_equal(b.last_done, 100 + XR_ONE_MAX - 1);
	assert_int_equal(stream_check(9, 0, bp, XR_ONE_MAX * 1000), XR_ONE_MAX * 1000);
	/* taken back: the next one ends the channel, and the memory is free */
	assert_int_equal(xrdma_dereg_mem(am), -EBUSY);
	xrdma_revoke(a.ch, &r);
	assert_int_equal(xrdma_dereg_mem(am), 0);
	assert_int_equal(xrdma_read(b.ch, bm, bp, 10, &w, 0, 1), 0);
	wait_for(b.closed && a.closed);
	assert_int_equal(b.error, -EIO);
	assert_int_equal(b.done, 1 + XR_ONE_MAX);
	wait_for(!b.ctx->channels);
	assert_int_equal(xrdma_dereg_mem(bm), 0);
}

static void only_what_was_granted(void **state)
{
	struct xrdma_mem *am, *bm;
	struct xrdma_remote r;
	void *ap, *bp;

	(void)state;
	assert_int_equal(xrdma_alloc_mem(a.ctx, 8192, &am, &ap), 0);
	assert_int_equal(xrdma_alloc_mem(b.ctx, 8192, &bm, &bp), 0);
	connect_both();
	assert_int_equal(xrdma_grant(a.ch, am, ap, 4096, XRDMA_GRANT_READ, &r), 0);
	/* b stretches what it was told */
	r.len = 8192;
	assert_int_equal(xrdma_read(b.ch, bm, bp, 4097, &r, 0, 1), 0);
	wait_for(b.closed);
	assert_int_equal(b.error, -EIO);
	a.opened = b.opened = 0;
	wait_for(!a.ctx->channels && !b.ctx->channels);
	/* and a key is for one channel, one way */
	connect_both();
	assert_int_equal(xrdma_grant(a.ch, am, ap, 4096, XRDMA_GRANT_READ, &r), 0);
	memset(ap, 0x11, 8192);
	memset(bp, 0x22, 8192);
	b.closed = 0;
	assert_int_equal(xrdma_write(b.ch, bm, bp, 10, &r, 0, 1), 0);
	wait_for(b.closed);
	assert_int_equal(b.error, -EIO);
	assert_int_equal(*(uint8_t *)ap, 0x11);
}

/* --- keepalive --------------------------------------------------------------------- */

static void run_for(uint64_t ms, int with_a)
{
	uint64_t end = xr_now_ns() + ms * 1000000u;

	while (xr_now_ns() < end) {
		if (with_a)
			xrdma_polling(a.ctx);
		xrdma_polling(b.ctx);
	}
}

static void a_silent_peer_is_probed(void **state)
{
	struct xrdma_channel_stats st;
	uint64_t t;

	(void)state;
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_MS, 3600001), -EINVAL);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_PROBES, 101), -EINVAL);
	connect_both();
	/* preset on shm: none, for the kernel says who died */
	run_for(50, 1);
	xrdma_get_channel_stats(b.ch, &st);
	assert_int_equal(st.probes, 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_PROBES, 3), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_MS, 20), 0);
	/* a peer that polls answers, however long it is silent */
	run_for(400, 1);
	xrdma_get_channel_stats(b.ch, &st);
	assert_in_range(st.probes, 2, 20);
	assert_int_equal(b.closed, 0);
	/* the probes are no messages */
	assert_int_equal(a.got, 0);
	xrdma_get_channel_stats(a.ch, &st);
	assert_int_equal(st.msgs_received + st.control_received, 0);
	if (rig_verbs()) {	/* one that does not poll, too: the device does it */
		run_for(400, 0);
		assert_int_equal(b.closed, 0);
		return;
	}
	/* one that does not is given up after three */
	t = xr_now_ns();
	while (!b.closed && xr_now_ns() - t < 5000000000u)
		xrdma_polling(b.ctx);
	assert_int_equal(b.error, -ETIMEDOUT);
	/* the first look may come at once */
	assert_in_range(xr_now_ns() - t, 35000000u, 4000000000u);
}

static void without_a_limit_nobody_is_given_up(void **state)
{
	(void)state;
	connect_both();
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_MS, 5), 0);
	run_for(200, 0);
	assert_int_equal(b.closed, 0);
	wait_for(a.ch && b.ch);
}

/* The timer wakes a program that sleeps; switched off, nothing does. */
static void keepalive_while_asleep(void **state)
{
	struct pollfd p;
	uint64_t t = xr_now_ns();

	(void)state;
	rig_shm_only();		/* there a peer that does nothing is dead */
	connect_both();
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_PROBES, 2), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_MS, 20), 0);
	p = (struct pollfd){ .fd = xrdma_get_event_fd(b.ctx), .events = POLLIN };
	while (!b.closed && xr_now_ns() - t < 5000000000u) {
		if (!xrdma_process_event(b.ctx))
			assert_int_equal(poll(&p, 1, 5000), 1);
	}
	assert_int_equal(b.error, -ETIMEDOUT);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_KEEPALIVE_MS, 0), 0);
	while (xrdma_process_event(b.ctx))
		;
	assert_int_equal(poll(&p, 1, 100), 0);
}

/* --- the rest ----------------------------------------------------------------------- */

static void statistics(void **state)
{
	struct xrdma_channel_stats st;
	struct xrdma_msg m;
	uint32_t i;

	(void)state;
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 4), 0);
	connect_both();
	m = text(1, 1000);
	for (i = 0; i < 10; i++)
		assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
	xrdma_get_channel_stats(b.ch, &st);
	assert_int_equal(st.peer_msgs, 4);
	assert_int_equal(st.msgs_sent, 4);
	assert_int_equal(st.unacked_msgs, 4);
	assert_int_equal(st.unacked_bytes, 4000);
	assert_int_equal(st.queued_msgs, 6);
	assert_int_equal(st.waited, 6);
	while (!xrdma_send_msg(b.ch, &m))
		i++;
	wait_for(a.got == i);
	m = text(2, 100000);
	assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
	wait_for(a.got == i + 1 && b.ch->win.snd_una == b.ch->win.snd_nxt);
	xrdma_get_channel_stats(b.ch, &st);
	assert_int_equal(st.msgs_sent, i + 1);
	assert_int_equal(st.bytes_sent, i * 1000 + 100000);
	assert_int_equal(st.refused, 1);
	assert_int_equal(st.unacked_msgs + st.unacked_bytes + st.queued_msgs, 0);
	assert_true(st.control_received > 0);
	xrdma_get_channel_stats(a.ch, &st);
	assert_int_equal(st.msgs_received, i + 1);
	assert_int_equal(st.bytes_received, i * 1000 + 100000);
	/* receives that are short at first have the longer ones announced */
	assert_true(rig_verbs() ? st.fetched >= 1 && st.fetched <= i : st.fetched == 1);
}

/* By reference a channel needs no receive buffers; with copies it has its own. */
static void every_size_with_and_without_copies(void **state)
{
	static const size_t sizes[] = { 0, 1, 72, 89, 4096, 4097, 65536, 65537, 1000003, BIG };
	uint32_t copy, i, k;

	(void)state;
	for (copy = 0; copy < 2; copy++) {
		assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_COPY, copy), 0);
		a.opened = b.opened = a.got = 0;
		connect_both();
		assert_int_equal(a.ch->bank[0].in[0].buf.addr != NULL, copy || rig_verbs());
		for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
			struct xrdma_msg m = text(i, sizes[i]);

			assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
			wait_for(a.got == i + 1);
		}
		/* small ones behind a large one that is still being read: held, in order */
		for (k = 0; k < 20; k++) {
			for (i = 0; i < 30; i++) {
				struct xrdma_msg m = text(i, i ? 300 : 500000);

				while (xrdma_send_msg(b.ch, &m) == -EAGAIN)
					turn();
			}
		}
		wait_for(a.got == XR_ARRAY_LEN(sizes) + 600);
		xrdma_close(b.ch);
		wait_for(!a.ctx->channels && !b.ctx->channels);
		assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(requests_are_answered, side_start, side_stop),
		cmocka_unit_test_setup_teardown(answers_in_another_order, side_start, side_stop),
		cmocka_unit_test_setup_teardown(an_answer_to_nothing, side_start, side_stop),
		cmocka_unit_test_setup_teardown(requests_end_with_the_channel, side_start, side_stop),
		cmocka_unit_test_setup_teardown(a_trace_id_travels, side_start, side_stop),
		cmocka_unit_test_setup_teardown(read_and_write, side_start, side_stop),
		cmocka_unit_test_setup_teardown(only_what_was_granted, side_start, side_stop),
		cmocka_unit_test_setup_teardown(a_silent_peer_is_probed, side_start, side_stop),
		cmocka_unit_test_setup_teardown(without_a_limit_nobody_is_given_up, side_start, side_stop),
		cmocka_unit_test_setup_teardown(keepalive_while_asleep, side_start, side_stop),
		cmocka_unit_test_setup_teardown(statistics, side_start, side_stop),
		cmocka_unit_test_setup_teardown(every_size_with_and_without_copies, side_start, side_stop),
	};

	return rig_run(tests);
}
