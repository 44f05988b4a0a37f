/* SPDX-License-Identifier: BSD-2-Clause */
/* Two threads over the shm device that sleep in poll(2) whenever they have nothing to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include "ring_rig.h"
#include "fabric_rig.h"

static struct end a, b;

/* A receive where the device has the message; a network wants memory, of which each has a piece of its own. */
static int recv_any(struct end *e)
{
	static uint32_t n;

	return rig_verbs() ? post_recv(e, 0, e->mem + (1 << 20) + n++ % 40 * 65536, 65536) : post_recv(e, 0, NULL, 0);
}

/* Sleeps until something completes; 0 when nothing did in ten seconds. */
static int sleep_for_work(struct end *e)
{
	struct pollfd p[2] = { { e->ops->cq_fd(e->cq), POLLIN, 0 },
			       { e->ops->cm_fd(e->dev), POLLIN, 0 } };

	if (end_poll(e))
		return 1;
	e->ops->cq_arm(e->cq);
	if (end_poll(e))
		return 1;
	if (poll(p, 2, 10000) < 1)
		return 0;
	e->ops->cq_event(e->cq);
	end_poll(e);
	return 1;
}

static void start(void)
{
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	rig_connect(&a, &b);
}

static void finish(pthread_t t)
{
	void *ret;

	pthread_join(t, &ret);
	if (ret)
		fprintf(stderr, "the other thread failed: %s\n", (char *)ret);
	assert_null(ret);
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

/* --- a turn each ------------------------------------------------------------------- */

#define TURNS	(rig_verbs() ? 500u : 3000u)

static void *echo(void *arg)
{
	struct end *e = &a;
	uint32_t turns = 0, i;

	(void)arg;
	while (turns < TURNS) {
		e->nwc = 0;
		if (!sleep_for_work(e))
			return "nothing came";
		for (i = 0; i < e->nwc; i++) {
			struct xr_wc *wc = &e->wc[i];

			if (wc->status || wc->op != XR_WR_RECV)
				return "not a message";
			if (recv_any(e) ||
			    post(e, XR_WR_SEND, 0, wc->data, wc->len, rig_verbs() ? 0 : XR_SEND_INLINE, 0, 0))
				return "no room for a single message";
			if (wc->ref)
				e->ops->recv_release(e->qp, wc->ref);
			turns++;
		}
	}
	return NULL;
}

static void ping_pong(void **state)
{
	struct rng g = { 8 };
	uint32_t i;
	pthread_t t;

	(void)state;
	start();
	assert_int_equal(recv_any(&a), 0);
	assert_int_equal(pthread_create(&t, NULL, echo, NULL), 0);
	for (i = 0; i < TURNS; i++) {
		uint32_t n = rng_size(&g) % 60000;

		stream_fill(i, 0, b.mem, n);
		assert_int_equal(post_recv(&b, 1, b.mem + 100000, 65536), 0);
		assert_int_equal(post(&b, XR_WR_SEND, 2, b.mem, n, XR_SEND_SIGNALED, 0, 0), 0);
		b.nwc = 0;
		while (b.nwc < 2)
			assert_true(sleep_for_work(&b));
		assert_int_equal(b.wc[0].status + b.wc[1].status, 0);
		assert_int_equal(stream_check(i, 0, b.mem + 100000, n), n);
	}
	finish(t);
}

/* --- one way, the sender blocked most of the time ------------------------------------- */

#define MANY	(rig_verbs() ? 3000u : 20000u)

static void *sink(void *arg)
{
	uint32_t got = 0, i, held[64], nheld = 0;
	struct end *e = &a;
	struct rng g = { 6 };

	(void)arg;
	while (got < MANY) {
		e->nwc = 0;
		/* the oldest one that is held closes the ring: nothing is kept over a sleep */
		if (!end_poll(e)) {
			while (nheld)
				e->ops->recv_release(e->qp, held[--nheld]);
			if (!sleep_for_work(e))
				return "nothing came";
		}
		for (i = 0; i < e->nwc; i++) {
			struct xr_wc *wc = &e->wc[i];

			if (wc->status || wc->op != XR_WR_RECV)
				return "not a message";
			if (stream_check(got, 0, wc->data, wc->len) != wc->len)
				return "not what was sent";
			got++;
			if (recv_any(e))
				return "receive queue full";
			if (wc->ref)
				held[nheld++] = wc->ref;
			/* holds on to some, and gives them back in any order */
			while (nheld > 30 || (nheld && rng_below(&g, 3))) {
				uint32_t k = rng_below(&g, nheld);

				e->ops->recv_release(e->qp, held[k]);
				held[k] = held[--nheld];
			}
		}
	}
	while (nheld)
		e->ops->recv_release(e->qp, held[--nheld]);
	end_poll(e);
	return NULL;
}

static void one_way(void **state)
{
	struct rng g = { 9 };
	uint32_t sent, i;
	pthread_t t;

	(void)state;
	start();
	for (i = 0; i < 36; i++)
		assert_int_equal(recv_any(&a), 0);
	assert_int_equal(pthread_create(&t, NULL, sink, NULL), 0);
	for (sent = 0; sent < MANY; sent++) {
		uint32_t n = rng_below(&g, 4) ? rng_below(&g, 300) : rng_below(&g, 40000);

		uint8_t *from = rig_verbs() ? b.mem + sent % 100 * 40960 : b.mem;

		stream_fill(sent, 0, from, n);
		/* unsignalled: only room wakes this end */
		while (post(&b, XR_WR_SEND, 0, from, n, rig_verbs() ? 0 : XR_SEND_INLINE, 0, 0)) {
			b.nwc = 0;
			assert_true(sleep_for_work(&b));
		}
	}
	finish(t);
}

/* --- one-sided: the target sleeps too, and only lends its CPU --------------------------- */

static _Atomic int target_stop;

static void *target(void *arg)
{
	(void)arg;
	/* acquire: pairs with the release of the main thread, which ends by a message */
	while (!xr_load_acquire(&target_stop)) {
		a.nwc = 0;
		if (!sleep_for_work(&a))
			return "nothing came";
	}
	return NULL;
}

static void one_sided(void **state)
{
	struct rng g = { 10 };
	uint32_t i;
	pthread_t t;

	(void)state;
	start();
	xr_store_release(&target_stop, 0);
	assert_int_equal(recv_any(&a), 0);
	assert_int_equal(pthread_create(&t, NULL, target, NULL), 0);
	for (i = 0; i < (rig_verbs() ? 200u : 1000u); i++) {
		uint32_t n = 1 + rng_size(&g);
		uint64_t at = (uintptr_t)a.mem + rng_below(&g, 1 << 20);

		stream_fill(i, 0, b.mem, n);
		b.nwc = 0;
		assert_int_equal(post(&b, XR_WR_WRITE, 1, b.mem, n, i & 1 ? XR_SEND_SIGNALED : 0, at,
				      a.mr->rkey), 0);
		assert_int_equal(post(&b, XR_WR_READ, 2, b.mem + 200000, n, XR_SEND_SIGNALED, at,
				      a.mr->rkey), 0);
		while (b.nwc < 1 + (i & 1))
			assert_true(sleep_for_work(&b));
		assert_int_equal(b.wc[0].status, 0);
		assert_int_equal(stream_check(i, 0, b.mem + 200000, n), n);
	}
	xr_store_release(&target_stop, 1);
	assert_int_equal(post_send(&b, 1, b.mem, 1), 0);
	finish(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ping_pong),
		cmocka_unit_test(one_way),
		cmocka_unit_test(one_sided),
	};

	return rig_run(tests);
}
