/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Traps of RDMA that others fell into, each a test, over any device.  What only the verbs libraries can show is
 * in test_verbs: unacknowledged CQ events, GIDs, locked memory, memory regions across a fork, retry timers.
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
#include "side_rig.h"

static struct end x, y;		/* x listens, y connects */

static int clean(void **state)
{
	(void)state;
	memset(&x, 0, sizeof(x));
	memset(&y, 0, sizeof(y));
	return 0;
}

static void end_both(void)
{
	assert_int_equal(end_close(&x), 0);
	assert_int_equal(end_close(&y), 0);
}

/* RESET drops work requests without completions. */
static void reset_needs_a_drained_queue(void **state)
{
	uint32_t seen[64] = { 0 }, i;

	(void)state;
	y.attr.rnr_retry = 7;
	rig_connect(&x, &y);
	for (i = 0; i < 20; i++)
		assert_int_equal(post_send(&y, i, y.mem, 100), 0);	/* nothing takes them */
	for (i = 20; i < 40; i++)
		assert_int_equal(post_recv(&y, i, y.mem, 100), 0);
	settle(&x, &y);
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_RESET), -EBUSY);
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_ERR), 0);
	/* sentinels: what was before them has completed when they have */
	assert_int_equal(post_send(&y, 40, NULL, 0), 0);
	assert_int_equal(post_recv(&y, 41, y.mem, 100), 0);
	until(&x, &y, y.nwc == 42);
	for (i = 0; i < 42; i++)
		seen[y.wc[i].wr_id]++;
	for (i = 0; i < 42; i++)
		assert_int_equal(seen[i], 1);
	settle(&x, &y);
	assert_int_equal(y.nwc, 42);
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_RESET), 0);
	end_both();
}

/* y's queue pair goes through RESET for another connection. */
static void again(struct xr_addr *addr)
{
	if (y.id)
		y.ops->cm_destroy(y.id);
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_ERR), 0);
	while (end_poll(&y))
		;
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_RESET), 0);
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_INIT), 0);
	assert_int_equal(y.ops->cm_connect(y.dev, addr, y.qp, NULL, 0, &y.id), 0);
}

static void begin(struct xr_addr *addr)
{
	rig_address(addr);
	end_open(&x);
	end_open(&y);
	end_qp(&x);
	end_qp(&y);
	assert_int_equal(x.ops->cm_listen(x.dev, addr, NULL, &x.listener), 0);
	assert_int_equal(y.ops->cm_connect(y.dev, addr, y.qp, NULL, 0, &y.id), 0);
}

/* A late handshake configures a queue pair that is used again. */
static void late_handshake(void **state)
{
	struct xr_cm_id *first;
	struct xr_qp *other;
	struct xr_addr addr;
	uint32_t number;

	(void)state;
	begin(&addr);
	until(&x, &y, x.events[XR_CM_CONNECT_REQUEST] == 1);
	first = x.ev.id;
	number = y.qp->num;
	/* the answer is under way, and y has not looked yet */
	assert_int_equal(x.ops->cm_accept(first, x.qp, NULL, 0), 0);
	y.ops->cm_destroy(y.id);
	y.id = NULL;
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_RESET), 0);
	assert_int_equal(y.ops->qp_modify(y.qp, XR_QPS_INIT), 0);
	if (y.caps.renumbers)
		assert_int_not_equal(y.qp->num, number);
	assert_int_equal(y.ops->cm_connect(y.dev, &addr, y.qp, NULL, 0, &y.id), 0);
	until(&x, &y, x.events[XR_CM_CONNECT_REQUEST] == 2);
	assert_int_equal(y.events[XR_CM_ESTABLISHED], 0);
	assert_int_equal(y.qp->state, XR_QPS_INIT);
	x.id = x.ev.id;
	assert_int_equal(x.ops->qp_create(x.dev, &x.attr, &other), 0);
	assert_int_equal(x.ops->qp_modify(other, XR_QPS_INIT), 0);
	assert_int_equal(x.ops->cm_accept(x.id, other, NULL, 0), 0);
	until(&x, &y, y.events[XR_CM_ESTABLISHED] == 1);
	until(&x, &y, x.qp->state == XR_QPS_ERR);	/* the first one has come to nothing */
	x.ops->cm_destroy(first);
	assert_int_equal(x.ops->qp_destroy(x.qp), 0);
	x.qp = other;
	assert_int_equal(post_recv(&x, 1, x.mem, 100), 0);
	assert_int_equal(post_send(&y, 2, y.mem, 100), 0);
	until(&x, &y, x.nwc == 1 && y.nwc == 1);
	assert_int_equal(x.wc[0].status, XR_WC_SUCCESS);
	end_both();
}

/* Receives are not posted anew after RESET: endless RNR. */
static void receives_after_reset(void **state)
{
	struct xr_addr addr;
	uint32_t i;

	(void)state;
	begin(&addr);
	until(&x, &y, x.events[XR_CM_CONNECT_REQUEST] == 1);
	assert_int_equal(x.ops->cm_reject(x.ev.id, NULL, 0), 0);
	until(&x, &y, y.events[XR_CM_REJECTED] == 1);
	assert_int_equal(post_recv(&y, 1, y.mem, 100), 0);	/* of the life that is over */
	again(&addr);
	for (i = 0; i < 3; i++)
		assert_int_equal(post_recv(&y, 10 + i, y.mem + 100 * i, 100), 0);
	until(&x, &y, x.events[XR_CM_CONNECT_REQUEST] == 2);
	x.id = x.ev.id;
	assert_int_equal(x.ops->cm_accept(x.id, x.qp, NULL, 0), 0);
	y.nwc = 0;
	until(&x, &y, x.events[XR_CM_ESTABLISHED] == 1);
	for (i = 0; i < 3; i++)
		assert_int_equal(post_send(&x, i, x.mem, 100), 0);	/* rnr_retry 0: one that is missing ends it */
	until(&x, &y, x.nwc == 3 && y.nwc == 3);
	for (i = 0; i < 3; i++) {
		assert_int_equal(x.wc[i].status, XR_WC_SUCCESS);
		assert_int_equal(y.wc[i].status, XR_WC_SUCCESS);
		assert_int_equal(y.wc[i].wr_id, 10 + i);
	}
	end_both();
}

/* min_rnr_timer 0 means 655 ms. */
static void no_rnr_timer(void **state)
{
	uint64_t start;

	(void)state;
	x.attr.min_rnr_timer_us = 0;
	y.attr.rnr_retry = 3;
	rig_connect(&x, &y);
	start = xr_now_ns();
	assert_int_equal(post_send(&y, 1, y.mem, 100), 0);
	until(&x, &y, y.nwc == 1);
	assert_int_equal(y.wc[0].status, XR_WC_RNR_RETRY_EXC_ERR);
	assert_true(xr_now_ns() - start < 500000000);
	end_both();
}

/* A CQ is armed, and only one of two is looked at again: lost wake-up. */
static void two_queues_one_descriptor(void **state)
{
	struct xr_addr addr;
	struct pollfd p;
	struct xr_cq *second;
	struct xr_wc wc;
	uint32_t i;

	(void)state;
	rig_address(&addr);
	end_open(&x);
	end_open(&y);
	assert_int_equal(x.ops->cq_create(x.dev, 64, &second), 0);
	x.attr.recv_cq = second;
	end_qp(&x);
	end_qp(&y);
	assert_int_equal(x.ops->cm_listen(x.dev, &addr, NULL, &x.listener), 0);
	assert_int_equal(y.ops->cm_connect(y.dev, &addr, y.qp, NULL, 0, &y.id), 0);
	until(&x, &y, x.events[XR_CM_CONNECT_REQUEST] == 1);
	x.id = x.ev.id;
	assert_int_equal(x.ops->cm_accept(x.id, x.qp, NULL, 0), 0);
	until(&x, &y, x.events[XR_CM_ESTABLISHED] && y.events[XR_CM_ESTABLISHED]);
	p = (struct pollfd){ .fd = x.ops->cq_fd(x.cq), .events = POLLIN };
	for (i = 0; i < 100; i++) {
		assert_int_equal(post_recv(&x, i, x.mem, 64), 0);
		x.ops->cq_event(x.cq);
		assert_int_equal(x.ops->cq_arm(x.cq), 0);
		if (i % 2)		/* the message may come between the two */
			assert_int_equal(post_send(&y, i, y.mem, 64), 0);
		assert_int_equal(x.ops->cq_arm(second), 0);
		if (i % 2 == 0)
			assert_int_equal(post_send(&y, i, y.mem, 64), 0);
		assert_int_equal(x.ops->cq_poll(x.cq, &wc, 1), 0);
		while (!x.ops->cq_poll(second, &wc, 1)) {
			assert_int_equal(poll(&p, 1, 5000), 1);
			x.ops->cq_event(x.cq);
		}
		assert_int_equal(wc.wr_id, i);
		y.nwc = 0;
		until(&x, &y, y.nwc == 1);
	}
	x.ops->cm_destroy(x.id);
	x.id = NULL;
	assert_int_equal(x.ops->qp_destroy(x.qp), 0);
	x.qp = NULL;
	assert_int_equal(x.ops->cq_destroy(second), 0);
	end_both();
}

/* Missing REMOTE_WRITE kills the keepalive: a WRITE of nothing needs no memory at the other end. */
static void a_probe_needs_no_memory(void **state)
{
	(void)state;
	rig_connect(&x, &y);
	assert_int_equal(post(&y, XR_WR_WRITE, 1, NULL, 0, XR_SEND_SIGNALED, 0, 0), 0);
	assert_int_equal(post(&y, XR_WR_WRITE, 2, NULL, 0, XR_SEND_SIGNALED, UINT64_MAX, UINT32_MAX), 0);
	until(&x, &y, y.nwc == 2);
	assert_int_equal(y.wc[0].status, XR_WC_SUCCESS);
	assert_int_equal(y.wc[1].status, XR_WC_SUCCESS);
	end_both();
}

/* The status of what is flushed hides the first error. */
static void the_first_error_says_why(void **state)
{
	static const enum xr_wc_status want[] = { XR_WC_SUCCESS, XR_WC_SUCCESS, XR_WC_LOC_PROT_ERR, XR_WC_WR_FLUSH_ERR,
						  XR_WC_WR_FLUSH_ERR };
	uint32_t i;

	(void)state;
	rig_connect(&x, &y);
	for (i = 0; i < 5; i++)
		assert_int_equal(post_recv(&x, i, x.mem, 100), 0);
	for (i = 0; i < 5; i++) {
		struct xr_sge sge = { y.mem, 100, i == 2 ? y.mr->lkey + 1 : y.mr->lkey };
		struct xr_send_wr wr = { .wr_id = i, .op = XR_WR_SEND, .flags = XR_SEND_SIGNALED, .sge = &sge,
					 .nsge = 1 };

		/* a network knows of those before when they were acknowledged */
		if (rig_verbs() && i == 2)
			until(&x, &y, y.nwc == 2);
		assert_int_equal(y.ops->post_send(y.qp, &wr), 0);
	}
	until(&x, &y, y.nwc == 5);
	for (i = 0; i < 5; i++) {
		assert_int_equal(y.wc[i].wr_id, i);
		assert_int_equal(y.wc[i].status, want[i]);
	}
	end_both();
}

/* --- channels ------------------------------------------------------------------------------------- */

static uint8_t data[100000];
static struct xrdma_remote remote;

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	(void)ch;
	if (m->len == sizeof(remote))
		memcpy(&remote, m->data, sizeof(remote));
	((struct side *)arg)->got++;
}

static void on_done(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	(void)ch;
	(void)id;
	((struct side *)arg)->done++;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .done = on_done,
	.closed = side_closed,
};

/* One counter for slots of the send queue and for credits: ENOMEM. */
static void slots_and_credits(void **state)
{
	uint32_t sent = 0, asked = 0, i;
	struct xrdma_msg m = { .data = data };
	struct xrdma_mem *ma, *mb;
	void *pa, *pb;

	(void)state;
	/* the peer grants far more than this end's queue has slots for */
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 1024), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_WINDOW_MSGS, 2), 0);
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	wait_for(a.opened && b.opened);
	assert_int_equal(xrdma_alloc_mem(a.ctx, 4096, &ma, &pa), 0);
	assert_int_equal(xrdma_alloc_mem(b.ctx, 4096, &mb, &pb), 0);
	assert_int_equal(xrdma_grant(a.ch, ma, pa, 4096, XRDMA_GRANT_READ | XRDMA_GRANT_WRITE, &remote), 0);
	m.data = &remote;
	m.len = sizeof(remote);
	assert_int_equal(xrdma_send_msg(a.ch, &m), 0);
	wait_for(b.got == 1);
	m.data = data;
	/* everything at once, at both ends, without the other one moving for a while */
	while (sent < (rig_verbs() ? 1000u : 20000u)) {
		for (i = 0; i < 200; i++) {
			m.len = i % 16 ? 100 : sizeof(data);
			sent += !xrdma_send_msg(b.ch, &m);
			xrdma_send_msg(a.ch, &m);
			asked += !xrdma_read(b.ch, mb, pb, 64, &remote, 0, 0);
			if (i % 8 == 0)
				xrdma_polling(b.ctx);
		}
		for (i = 0; i < 20; i++) {
			xrdma_polling(a.ctx);
			xrdma_polling(b.ctx);
		}
		assert_int_equal(a.closed + b.closed, 0);
	}
	wait_for(a.got == sent && b.done == asked);
	assert_true(asked > 100);
	assert_int_equal(a.closed + b.closed, 0);
}

/* Numbers repeat when a queue pair is used again. */
static void fresh_numbers(void **state)
{
	static uint32_t first[300];
	uint32_t i, k, same = 0, rounds = rig_verbs() ? 40 : 300;

	(void)state;
	for (i = 0; i < rounds; i++) {
		a.opened = b.opened = 0;
		assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
		wait_for(a.opened && b.opened);
		first[i] = b.ch->win.snd_nxt;
		assert_true(first[i] == a.ch->win.rcv_nxt);
		for (k = 0; k < i; k++)
			same += first[k] == first[i];
		xrdma_close(b.ch);
		wait_for(!a.ctx->channels && !b.ctx->channels);
	}
	if (!b.ctx->qps.quarantine)
		assert_int_equal(b.ctx->qps.hits, rounds - 1);	/* one queue pair, */
	assert_true(same <= 1);				/* 300 beginnings: two alike are a chance of one in 10^5 */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(reset_needs_a_drained_queue, clean),
		cmocka_unit_test_setup(late_handshake, clean),
		cmocka_unit_test_setup(receives_after_reset, clean),
		cmocka_unit_test_setup(no_rnr_timer, clean),
		cmocka_unit_test_setup(two_queues_one_descriptor, clean),
		cmocka_unit_test_setup(a_probe_needs_no_memory, clean),
		cmocka_unit_test_setup(the_first_error_says_why, clean),
		cmocka_unit_test_setup_teardown(slots_and_credits, side_start, side_stop),
		cmocka_unit_test_setup_teardown(fresh_numbers, side_start, side_stop),
	};

	return rig_run(tests);
}
