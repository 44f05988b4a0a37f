/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs that are used again: over a device that the test plays, and over the shm device. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "core/fabric_shm_fault.h"
#include "core/qpcache.h"
#include "ring_rig.h"
#include "side_rig.h"

/* --- a device that counts ---------------------------------------------------------------- */

static struct xr_qp made[16];
static uint32_t nmade, ndestroyed;
static int create_fails, reset_fails, init_fails;
static uint32_t room;		/* of the device */

static int fake_create(struct xr_dev *dev, const struct xr_qp_attr *attr, struct xr_qp **qp)
{
	(void)dev;
	(void)attr;
	if (create_fails)
		return create_fails;
	if (nmade - ndestroyed == room)
		return -ENOMEM;
	assert_true(nmade < 16);
	*qp = &made[nmade++];
	(*qp)->state = XR_QPS_RESET;
	return 0;
}

static int fake_destroy(struct xr_qp *qp)
{
	assert_in_range((uintptr_t)qp, (uintptr_t)made, (uintptr_t)(made + nmade));
	ndestroyed++;
	return 0;
}

static int fake_modify(struct xr_qp *qp, enum xr_qp_state state)
{
	/* only what verbs allow */
	if (state == XR_QPS_INIT) {
		assert_int_equal(qp->state, XR_QPS_RESET);
		if (init_fails)
			return init_fails;
	}
	if (state == XR_QPS_RESET && reset_fails)
		return reset_fails;
	qp->state = state;
	return 0;
}

static const struct xr_fabric_ops fake = {
	.qp_create = fake_create, .qp_destroy = fake_destroy, .qp_modify = fake_modify,
};

static struct xr_qpcache c;
static const struct xr_qp_attr small = { .sq_depth = 8, .rq_depth = 8 }, large = { .sq_depth = 64, .rq_depth = 8 };

static void begin(uint8_t reuse, uint32_t quarantine_us, uint32_t limit)
{
	struct xr_dev_caps caps = { .reuse = reuse, .quarantine_us = quarantine_us };

	nmade = ndestroyed = 0;
	room = 16;
	create_fails = reset_fails = init_fails = 0;
	xr_qpcache_init(&c, &fake, NULL, &caps, limit);
}

static struct xr_qp *get(const struct xr_qp_attr *attr, uint64_t now)
{
	struct xr_qp *qp;

	assert_int_equal(xr_qpcache_get(&c, attr, now, &qp), 0);
	assert_int_equal(qp->state, XR_QPS_INIT);
	return qp;
}

static void put(struct xr_qp *qp, const struct xr_qp_attr *attr, uint64_t now)
{
	qp->state = XR_QPS_ERR;
	xr_qpcache_put(&c, qp, attr, now);
}

static void used_again(void **state)
{
	struct xr_qp *a, *b;

	(void)state;
	begin(1, 0, 8);
	a = get(&small, 0);
	b = get(&small, 0);
	assert_ptr_not_equal(a, b);
	put(a, &small, 0);
	put(b, &small, 0);
	assert_int_equal(a->state, XR_QPS_RESET);
	assert_ptr_equal(get(&small, 0), a);	/* the oldest */
	assert_ptr_equal(get(&small, 0), b);
	assert_ptr_not_equal(get(&small, 0), a);
	assert_int_equal(c.hits, 2);
	assert_int_equal(c.misses, 3);
	assert_int_equal(c.n, 0);
	assert_ptr_equal(c.last, &c.first);
	xr_qpcache_end(&c);
	assert_int_equal(ndestroyed, 0);
}

/* What waits to be used again takes no room from what is wanted now. */
static void a_full_device(void **state)
{
	struct xr_qp *a, *b, *d, *none;

	(void)state;
	begin(1, 1000, 8);
	room = 3;
	a = get(&small, 0);
	b = get(&small, 0);
	d = get(&small, 0);
	/* all are in use */
	assert_int_equal(xr_qpcache_get(&c, &small, 0, &none), -ENOMEM);
	put(a, &small, 0);
	put(b, &small, 0);
	/* both are in quarantine, or do not fit: the oldest goes, and no more than need be */
	a = get(&small, 1);
	assert_int_equal(ndestroyed, 1);
	assert_int_equal(c.n, 1);
	get(&large, 1);
	assert_int_equal(ndestroyed, 2);
	assert_int_equal(c.n, 0);
	assert_int_equal(c.dropped, 2);
	assert_ptr_equal(c.last, &c.first);
	/* any other error is told as it is */
	put(d, &small, 2);
	create_fails = -EACCES;
	assert_int_equal(xr_qpcache_get(&c, &large, 2, &none), -EACCES);
	assert_int_equal(c.n, 1);
	create_fails = 0;
	assert_int_equal(a->state, XR_QPS_INIT);
	xr_qpcache_end(&c);
}

static void only_what_fits(void **state)
{
	struct xr_qp *a, *b;

	(void)state;
	begin(1, 0, 8);
	a = get(&small, 0);
	b = get(&large, 0);
	put(a, &small, 0);
	put(b, &large, 0);
	assert_ptr_equal(get(&large, 0), b);
	assert_ptr_equal(get(&small, 0), a);
	put(a, &small, 0);
	assert_ptr_not_equal(get(&large, 0), a);
	xr_qpcache_end(&c);
	assert_int_equal(ndestroyed, 1);
}

static void quarantine(void **state)
{
	struct xr_qp *a, *b;

	(void)state;
	begin(1, 100, 8);
	a = get(&small, 0);
	b = get(&small, 0);
	put(a, &small, 1000);
	put(b, &small, 50000);
	assert_ptr_not_equal(get(&small, 100999), a);
	assert_int_equal(c.hits, 0);
	assert_ptr_equal(get(&small, 101000), a);
	assert_ptr_not_equal(get(&small, 149999), b);
	assert_ptr_equal(get(&small, 150000), b);
	xr_qpcache_end(&c);
}

static void not_every_device(void **state)
{
	struct xr_qp *a;

	(void)state;
	begin(0, 0, 8);		/* it says that it cannot */
	assert_false(xr_qpcache_wants(&c));
	a = get(&small, 0);
	put(a, &small, 0);
	assert_int_equal(ndestroyed, 1);
	assert_int_equal(a->state, XR_QPS_ERR);		/* not even tried */
	begin(1, 0, 0);		/* nobody wants it to */
	assert_false(xr_qpcache_wants(&c));
	put(get(&small, 0), &small, 0);
	assert_int_equal(ndestroyed, 1);
	assert_int_equal(c.dropped, 0);
	begin(1, 0, 8);		/* it says that it can, and fails */
	assert_true(xr_qpcache_wants(&c));
	reset_fails = -EBUSY;
	put(get(&small, 0), &small, 0);
	assert_int_equal(ndestroyed, 1);
	assert_int_equal(c.dropped, 1);
	reset_fails = 0;
	a = get(&small, 0);
	put(a, &small, 0);
	init_fails = -EIO;
	assert_int_equal(xr_qpcache_get(&c, &small, 0, &a), -EIO);
	assert_int_equal(ndestroyed, 3);	/* the old one, and the new one that was tried instead */
	create_fails = -ENOMEM;
	assert_int_equal(xr_qpcache_get(&c, &small, 0, &a), -ENOMEM);
	xr_qpcache_end(&c);
	assert_int_equal(ndestroyed, nmade);
}

static void limits(void **state)
{
	struct xr_qp *q[4];
	int i;

	(void)state;
	begin(1, 0, 3);
	for (i = 0; i < 4; i++)
		q[i] = get(&small, 0);
	for (i = 0; i < 4; i++)
		put(q[i], &small, 0);
	assert_int_equal(c.n, 3);
	assert_int_equal(c.dropped, 1);
	assert_int_equal(ndestroyed, 1);
	xr_qpcache_limit(&c, 1);
	assert_int_equal(c.n, 1);
	assert_int_equal(ndestroyed, 3);
	assert_ptr_equal(get(&small, 0), q[2]);
	put(q[2], &small, 0);
	xr_qpcache_end(&c);
	assert_int_equal(ndestroyed, 4);
}

/* --- channels over the shm device --------------------------------------------------------- */

static uint8_t data[100000];

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	(void)ch;
	/* of this incarnation, and no other */
	assert_true(stream_check(m->imm, 0, m->data, m->len) == m->len);
	((struct side *)arg)->got++;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .closed = side_closed,
};

static void say(struct side *s, uint32_t seed, size_t len)
{
	struct xrdma_msg m = { .data = data, .len = len, .imm = seed };

	stream_fill(seed, 0, data, len);
	assert_int_equal(xrdma_send_msg(s->ch, &m), 0);
}

/* Ended in every way, with messages under way, over and over: the same two queue pairs serve. */
static void churn(void **state)
{
	struct xrdma_context_stats s;
	struct rng g = { 3 };
	uint32_t i, k, numbers = 0, last = 0, rounds = rig_verbs() ? 100 : 2000;

	(void)state;
	/* harder than it would be */
	a.ctx->qps.quarantine = b.ctx->qps.quarantine = 0;
	for (i = 0; i < rounds; i++) {
		uint32_t way = rng_below(&g, 4), n = rng_below(&g, 20);

		a.opened = b.opened = a.closed = b.closed = a.got = b.got = 0;
		assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
		numbers += b.ch->qp->num != last;
		last = b.ch->qp->num;
		wait_for(a.opened && b.opened);
		for (k = 0; k < n; k++) {
			say(&b, i, rng_below(&g, 10) ? rng_below(&g, 4000) : 100000);
			if (rng_below(&g, 2))
				say(&a, i, 100);
		}
		if (way == 0) {
			xrdma_close(b.ch);
		} else if (way == 1) {
			xrdma_close(a.ch);
		} else if (way == 2) {
			xrdma_close(a.ch);
			xrdma_close(b.ch);
		} else {	/* without a word to the channel */
			b.ctx->ops->qp_modify(b.ch->qp, XR_QPS_ERR);
		}
		wait_for(!a.ctx->channels && !b.ctx->channels);
		assert_true(way != 0 || a.got == n);
	}
	assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
	/* each life has a number of its own, or all have one */
	assert_int_equal(numbers, a.ctx->caps.renumbers ? rounds : 1);
	for (i = 0; i < 2; i++) {
		xrdma_get_context_stats(i ? a.ctx : b.ctx, &s);
		assert_int_equal(s.qp_misses, 1);
		assert_int_equal(s.qp_hits, rounds - 1);
		assert_int_equal(s.qp_cached, 1);
		assert_int_equal(s.qp_dropped, 0);
		assert_int_equal(s.channels + s.pool_buffers + s.fetching + s.stale, 0);
	}
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_QP_CACHE, 4097), -EINVAL);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_QP_CACHE, 0), 0);
	xrdma_get_context_stats(a.ctx, &s);
	assert_int_equal(s.qp_cached, 0);
	a.opened = b.opened = 0;
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	wait_for(a.opened && b.opened);
	xrdma_close(b.ch);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	xrdma_get_context_stats(a.ctx, &s);
	assert_int_equal(s.qp_misses, 2);
	assert_int_equal(s.qp_cached, 0);
}

/* Each request completes once before the queue pair goes to RESET, whatever the program still holds. */
static void drained(void **state)
{
	uint32_t i;

	(void)state;
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	wait_for(a.opened && b.opened);
	for (i = 0; i < 128; i++)
		say(&b, i, 4000);
	b.ctx->ops->qp_modify(b.ch->qp, XR_QPS_ERR);
	xrdma_polling(b.ctx);
	wait_for(b.closed);
	wait_for(!b.ctx->channels);
	assert_int_equal(b.ctx->qps.n, 1);
	assert_int_equal(b.ctx->qps.first ? b.ctx->qps.dropped : 1, 0);
	assert_int_equal(b.ctx->pool.bufs, 0);
}

#define MANY (rig_verbs() ? 60u : 1000u)	/* a queue for completions of rxe has no more room */

/* More requests, and more ends, than the connection between two processes holds at once. */
static void a_thousand_at_once(void **state)
{
	static struct xrdma_channel *ch[1000];
	struct xrdma_context_stats s;
	uint32_t round, i;

	(void)state;
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 4), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_WINDOW_MSGS, 4), 0);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_QP_CACHE, 4096), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_QP_CACHE, 4096), 0);
	a.ctx->qps.quarantine = b.ctx->qps.quarantine = 0;
	assert_int_equal(xrdma_connect(b.ctx, name, &ch[0]), 0);
	wait_for(a.opened && b.opened);
	for (round = 0; round < 3; round++) {
		a.opened = b.opened = 0;
		for (i = round ? 0 : 1; i < MANY; i++)
			assert_int_equal(xrdma_connect(b.ctx, name, &ch[i]), 0);
		wait_for(a.opened == MANY - !round && b.opened == MANY - !round);
		for (i = 0; i < MANY; i++)
			xrdma_close(ch[i]);
		wait_for(!a.ctx->channels && !b.ctx->channels);
	}
	assert_int_equal(b.closed, 0);
	assert_int_equal(a.closed, 3 * MANY);
	assert_int_equal(a.error, 0);
	xrdma_get_context_stats(b.ctx, &s);
	assert_int_equal(s.qp_misses, MANY);
	assert_int_equal(s.qp_hits, 2 * MANY);
	assert_int_equal(s.qp_cached, MANY);
	assert_int_equal(s.qp_dropped + s.pool_buffers, 0);
}

/* A completion of the connection that had the queue pair before touches nothing. */
static void late_completions(void **state)
{
	struct xr_wc wc = { .status = XR_WC_SUCCESS };
	struct xrdma_channel_stats before, after;
	struct xrdma_context_stats s;
	uint32_t kind;

	(void)state;
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	wait_for(a.opened && b.opened);
	say(&b, 1, 100);
	wait_for(a.got == 1);
	xrdma_get_channel_stats(b.ch, &before);
	wc.qp = b.ch->qp;
	for (kind = XR_WR_ID_RECV; kind <= XR_WR_ID_SENTINEL; kind++) {
		wc.wr_id = XR_WR_ID(b.ch, kind, 0) ^ 1ull << 32;
		xr_channel_complete(b.ch, &wc);
		wc.wr_id = (uint64_t)kind << 56;	/* generation 0: nobody's */
		xr_channel_complete(b.ch, &wc);
	}
	xrdma_get_channel_stats(b.ch, &after);
	assert_memory_equal(&before, &after, sizeof(before));
	xrdma_get_context_stats(b.ctx, &s);
	assert_int_equal(s.stale, 2 * XR_WR_ID_SENTINEL);
	say(&b, 2, 50000);
	wait_for(a.got == 2);
	assert_int_equal(b.closed, 0);
}

/* The generation goes round and is never 0, which is none. */
static void generations(void **state)
{
	uint32_t i;

	(void)state;
	a.ctx->generation = b.ctx->generation = XR_GENERATIONS - 2;
	for (i = 0; i < 5; i++) {
		a.opened = b.opened = a.got = 0;
		assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
		assert_true(b.ch->generation && b.ch->generation <= XR_GENERATIONS);
		wait_for(a.opened && b.opened);
		assert_int_equal(a.ch->peer_generation, b.ch->generation);
		assert_int_equal(b.ch->peer_generation, a.ch->generation);
		say(&b, i, 100);
		wait_for(a.got == 1);
		xrdma_close(b.ch);
		wait_for(!a.ctx->channels && !b.ctx->channels);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(used_again),
		cmocka_unit_test(a_full_device),
		cmocka_unit_test(only_what_fits),
		cmocka_unit_test(quarantine),
		cmocka_unit_test(not_every_device),
		cmocka_unit_test(limits),
		cmocka_unit_test_setup_teardown(churn, side_start, side_stop),
		cmocka_unit_test_setup_teardown(drained, side_start, side_stop),
		cmocka_unit_test_setup_teardown(a_thousand_at_once, side_start, side_stop),
		cmocka_unit_test_setup_teardown(late_completions, side_start, side_stop),
		cmocka_unit_test_setup_teardown(generations, side_start, side_stop),
	};

	return rig_run(tests);
}
