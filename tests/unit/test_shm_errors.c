/* SPDX-License-Identifier: BSD-2-Clause */
/* The shm device when things go wrong: every failing request ends once, with the right status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include "ring_rig.h"
#include "child.h"
#include "fabric_rig.h"

static struct end a, b;

static void start(uint8_t rnr_retry)
{
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = rnr_retry;
	/* a second where nothing must wait for it: 20 ms where it is waited for */
	a.attr.min_rnr_timer_us = b.attr.min_rnr_timer_us = rnr_retry ? 20000 : 1000000;
	rig_connect(&a, &b);
}

static void stop(void)
{
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

static void check_wc(const struct xr_wc *wc, uint64_t id, enum xr_wr_op op, enum xr_wc_status st)
{
	assert_int_equal(wc->wr_id, id);
	assert_int_equal(wc->op, op);
	assert_string_equal(xr_wc_status_name(wc->status), xr_wc_status_name(st));
}

/* Both in ERR, told once. */
static void both_down(void)
{
	until(&a, &b, a.events[XR_CM_DISCONNECTED] && b.events[XR_CM_DISCONNECTED]);
	settle(&a, &b);
	assert_int_equal(a.events[XR_CM_DISCONNECTED], 1);
	assert_int_equal(b.events[XR_CM_DISCONNECTED], 1);
	assert_int_equal(a.qp->state, XR_QPS_ERR);
	assert_int_equal(b.qp->state, XR_QPS_ERR);
}

static void rnr_retry_zero_fails_at_once(void **state)
{
	uint64_t t;

	(void)state;
	start(0);
	t = xr_now_ns();
	assert_int_equal(post_send(&a, 1, a.mem, 100), 0);
	assert_int_equal(post_send(&a, 2, a.mem, 100), 0);
	until(&a, &b, a.nwc == 2);
	assert_true(xr_now_ns() - t < 900000000u);
	check_wc(&a.wc[0], 1, XR_WR_SEND, XR_WC_RNR_RETRY_EXC_ERR);
	check_wc(&a.wc[1], 2, XR_WR_SEND, XR_WC_WR_FLUSH_ERR);
	both_down();
	assert_int_equal(b.nwc, 0);
	stop();
}

static void rnr_is_counted(void **state)
{
	uint64_t t;

	(void)state;
	start(3);
	t = xr_now_ns();
	assert_int_equal(post_send(&a, 1, a.mem, 100), 0);
	until(&a, &b, a.nwc == 1);
	t = xr_now_ns() - t;
	/* three waits of the receiver's 20 ms */
	assert_in_range(t, 60000000u, 4500000000u);
	check_wc(&a.wc[0], 1, XR_WR_SEND, XR_WC_RNR_RETRY_EXC_ERR);
	both_down();
	stop();
}

static void rnr_ends_with_a_receive(void **state)
{
	uint64_t t;
	int i;

	(void)state;
	start(6);
	for (i = 0; i < 3; i++) {
		assert_int_equal(post_send(&a, 1, a.mem, 100), 0);
		for (t = xr_now_ns(); xr_now_ns() - t < 50000000u; )
			both_poll(&a, &b);
		assert_int_equal(a.nwc, i);
		assert_int_equal(post_recv(&b, 5, b.mem, 100), 0);
		/* the count begins anew with every message */
		until(&a, &b, a.nwc == (uint32_t)i + 1 && b.nwc == (uint32_t)i + 1);
		check_wc(&a.wc[i], 1, XR_WR_SEND, XR_WC_SUCCESS);
	}
	stop();
}

static void rnr_seven_is_for_ever(void **state)
{
	uint64_t t;

	(void)state;
	start(7);
	assert_int_equal(post_send(&a, 1, a.mem, 100), 0);
	for (t = xr_now_ns(); xr_now_ns() - t < 300000000u; )
		both_poll(&a, &b);
	assert_int_equal(a.nwc, 0);
	assert_int_equal(post_recv(&b, 5, b.mem, 100), 0);
	until(&a, &b, a.nwc == 1 && b.nwc == 1);
	stop();
}

struct access {
	enum xr_wr_op op;
	int64_t off, len;
	uint32_t access;	/* of the region at b */
	int key;		/* 0: right, 1: of another entry, 2: of a dead region, 3: other PD */
	enum xr_wc_status want;
};

static void remote_access_is_checked(void **state)
{
	static const struct access t[] = {
		{ XR_WR_WRITE, 0, 4096, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_SUCCESS },
		{ XR_WR_READ, 0, 4096, XR_ACCESS_REMOTE_READ, 0, XR_WC_SUCCESS },
		{ XR_WR_WRITE, 4096, 0, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_SUCCESS },
		{ XR_WR_WRITE, 0, 0, XR_ACCESS_LOCAL_WRITE, 1, XR_WC_SUCCESS },
		{ XR_WR_WRITE, 0, 4097, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 4095, 2, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, -1, 2, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, -4096, 4096, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, INT64_MAX, 10, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 0, 1 << 20, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 0, 8, XR_ACCESS_REMOTE_READ, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 0, 8, XR_ACCESS_LOCAL_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 0, 8, XR_ACCESS_REMOTE_WRITE, 1, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 0, 8, XR_ACCESS_REMOTE_WRITE, 2, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_WRITE, 0, 8, XR_ACCESS_REMOTE_WRITE, 3, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_READ, 0, 4097, XR_ACCESS_REMOTE_READ, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_READ, -1, 2, XR_ACCESS_REMOTE_READ, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_READ, 0, 8, XR_ACCESS_REMOTE_WRITE, 0, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_READ, 0, 8, XR_ACCESS_REMOTE_READ, 1, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_READ, 0, 8, XR_ACCESS_REMOTE_READ, 2, XR_WC_REM_ACCESS_ERR },
		{ XR_WR_READ, 0, 8, XR_ACCESS_REMOTE_READ, 3, XR_WC_REM_ACCESS_ERR },
	};
	static uint8_t region[3 * 4096];
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(t); i++) {
		struct xr_pd *other = NULL;
		struct xr_mr *mr;
		uint32_t key;

		start(7);
		memset(region, 0x55, sizeof(region));
		if (t[i].key == 3)
			assert_int_equal(b.ops->pd_alloc(b.dev, &other), 0);
		assert_int_equal(b.ops->mr_reg(other ? other : b.pd, region + 4096, 4096,
					       t[i].access, &mr), 0);
		key = mr->lkey + (t[i].key == 1 ? 0x10000 : 0);
		if (t[i].key == 2)
			assert_int_equal(b.ops->mr_dereg(mr), 0);
		assert_int_equal(post(&a, XR_WR_SEND, 1, a.mem, 8, XR_SEND_SIGNALED, 0, 0), 0);
		assert_int_equal(post_recv(&b, 1, b.mem, 8), 0);
		assert_int_equal(post_recv(&b, 2, b.mem, 8), 0);
		/* what a network has not acknowledged may be flushed, though it arrived */
		if (rig_verbs())
			until(&a, &b, a.nwc == 1);
		memset(a.mem, 0xaa, 1 << 20);
		assert_int_equal(post(&a, t[i].op, 2, a.mem, (uint32_t)t[i].len, XR_SEND_SIGNALED,
				      (uint64_t)(uintptr_t)region + 4096 + (uint64_t)t[i].off, key), 0);
		assert_int_equal(post(&a, XR_WR_SEND, 3, a.mem, 8, XR_SEND_SIGNALED, 0, 0), 0);
		until_refused(&a, &b, a.nwc == 3);
		check_wc(&a.wc[0], 1, XR_WR_SEND, XR_WC_SUCCESS);
		check_wc(&a.wc[1], 2, t[i].op, t[i].want);
		if (t[i].want == XR_WC_SUCCESS) {
			check_wc(&a.wc[2], 3, XR_WR_SEND, XR_WC_SUCCESS);
			assert_int_equal(region[4096], t[i].op == XR_WR_WRITE && t[i].len ? 0xaa : 0x55);
		} else {
			check_wc(&a.wc[2], 3, XR_WR_SEND, XR_WC_WR_FLUSH_ERR);
			both_down();
			/* nothing was written or read, the receive that is left was flushed */
			assert_int_equal(region[4096], 0x55);
			assert_int_equal(region[8191], 0x55);
			assert_int_equal(a.mem[0], 0xaa);
			assert_int_equal(b.nwc, 2);
			check_wc(&b.wc[1], 2, XR_WR_RECV, XR_WC_WR_FLUSH_ERR);
		}
		assert_int_equal(region[4095], 0x55);
		assert_int_equal(region[8192], 0x55);
		if (t[i].key != 2)
			assert_int_equal(b.ops->mr_dereg(mr), 0);
		if (other)
			assert_int_equal(b.ops->pd_free(other), 0);
		stop();
	}
}

static void a_refusal_comes_after_earlier_reads(void **state)
{
	(void)state;
	start(7);
	stream_fill(4, 0, b.mem, 1 << 20);
	assert_int_equal(post(&a, XR_WR_READ, 1, a.mem, 1 << 20, XR_SEND_SIGNALED,
			      (uintptr_t)b.mem, b.mr->rkey), 0);
	assert_int_equal(post(&a, XR_WR_WRITE, 2, a.mem, 8, XR_SEND_SIGNALED, 4711, 12), 0);
	until_refused(&a, &b, a.nwc == 2);
	check_wc(&a.wc[0], 1, XR_WR_READ, XR_WC_SUCCESS);
	check_wc(&a.wc[1], 2, XR_WR_WRITE, XR_WC_REM_ACCESS_ERR);
	assert_int_equal(stream_check(4, 0, a.mem, 1 << 20), 1 << 20);
	both_down();
	stop();
}

static void windows_open_one_range_to_one_peer(void **state)
{
	uint32_t key, again;

	(void)state;
	start(7);
	assert_int_equal(b.ops->mw_bind(b.qp, b.mr, b.mem + END_MEM - 10, 11, XR_ACCESS_REMOTE_READ, &key), -EINVAL);
	assert_int_equal(b.ops->mw_bind(b.qp, b.mr, b.mem, 0, XR_ACCESS_REMOTE_READ, &key), -EINVAL);
	assert_int_equal(b.ops->mw_bind(b.qp, b.mr, b.mem - 1, 2, XR_ACCESS_REMOTE_READ, &key), -EINVAL);
	assert_int_equal(b.ops->mw_bind(b.qp, b.mr, b.mem + 100, 50, XR_ACCESS_REMOTE_READ, &key), 0);
	assert_int_equal(b.ops->mr_dereg(b.mr), -EBUSY);
	rig_told(&b, &a);
	assert_int_equal(post(&a, XR_WR_READ, 1, a.mem, 50, XR_SEND_SIGNALED, (uintptr_t)b.mem + 100, key), 0);
	until(&a, &b, a.nwc == 1);
	check_wc(&a.wc[0], 1, XR_WR_READ, XR_WC_SUCCESS);
	/* an entry that is used again has another key */
	b.ops->mw_invalidate(b.qp, key, 0);
	assert_int_equal(b.ops->mw_bind(b.qp, b.mr, b.mem + 100, 50, XR_ACCESS_REMOTE_READ, &again), 0);
	assert_int_not_equal(again, key);
	rig_told(&b, &a);
	assert_int_equal(post(&a, XR_WR_READ, 2, a.mem, 50, XR_SEND_SIGNALED,
			      (uintptr_t)b.mem + 100, key), 0);
	until_refused(&a, &b, a.nwc == 2);
	check_wc(&a.wc[1], 2, XR_WR_READ, XR_WC_REM_ACCESS_ERR);
	both_down();
	/* ERR closed the other one */
	assert_int_equal(b.ops->mw_bind(b.qp, b.mr, b.mem, 1, XR_ACCESS_REMOTE_READ, &key), -EINVAL);
	stop();
}

static void a_window_is_not_for_others(void **state)
{
	struct xr_qp_attr attr;
	struct xr_qp *q;
	uint32_t key;

	(void)state;
	rig_shm_only();		/* test_verbs has one with two connections: only those can have windows */
	start(7);
	attr = b.attr;
	assert_int_equal(b.ops->qp_create(b.dev, &attr, &q), 0);
	assert_int_equal(b.ops->qp_modify(q, XR_QPS_INIT), 0);
	assert_int_equal(b.ops->mw_bind(q, b.mr, b.mem, 50, XR_ACCESS_REMOTE_WRITE, &key), 0);
	assert_int_equal(post(&a, XR_WR_WRITE, 1, a.mem, 50, XR_SEND_SIGNALED,
			      (uintptr_t)b.mem, key), 0);
	until(&a, &b, a.nwc == 1);
	check_wc(&a.wc[0], 1, XR_WR_WRITE, XR_WC_REM_ACCESS_ERR);
	/* nor is it a key for local use */
	assert_int_equal(b.ops->qp_destroy(q), 0);
	stop();
}

static void local_keys_are_checked(void **state)
{
	struct xr_sge sge = { NULL, 16, 0 };
	struct xr_send_wr wr = { .wr_id = 2, .op = XR_WR_SEND, .sge = &sge, .nsge = 1 };
	uint8_t own[16];

	(void)state;
	start(7);
	assert_int_equal(post_recv(&b, 7, b.mem, 16), 0);
	assert_int_equal(post_recv(&b, 8, b.mem, 16), 0);
	assert_int_equal(post_send(&a, 1, a.mem, 16), 0);
	if (rig_verbs())
		until(&a, &b, a.nwc == 1);
	sge.addr = own;
	sge.lkey = a.mr->lkey;
	/* not even signalled: errors always show */
	assert_int_equal(a.ops->post_send(a.qp, &wr), 0);
	until(&a, &b, a.nwc == 2);
	check_wc(&a.wc[0], 1, XR_WR_SEND, XR_WC_SUCCESS);
	check_wc(&a.wc[1], 2, XR_WR_SEND, XR_WC_LOC_PROT_ERR);
	both_down();
	check_wc(&b.wc[0], 7, XR_WR_RECV, XR_WC_SUCCESS);
	check_wc(&b.wc[1], 8, XR_WR_RECV, XR_WC_WR_FLUSH_ERR);
	stop();
}

static void a_receive_with_a_bad_key(void **state)
{
	uint8_t own[16];

	(void)state;
	start(7);
	assert_int_equal(post_recv(&b, 7, own, 16), 0);
	assert_int_equal(post_send(&a, 1, a.mem, 16), 0);
	until_refused(&a, &b, a.nwc == 1);
	check_wc(&a.wc[0], 1, XR_WR_SEND, XR_WC_REM_OP_ERR);
	both_down();
	check_wc(&b.wc[0], 7, XR_WR_RECV, XR_WC_LOC_PROT_ERR);
	stop();
}

static void a_message_larger_than_the_receive(void **state)
{
	static const uint32_t len[] = { 33, 5000, 70000, 300000 };
	size_t i;

	(void)state;
	for (i = 0; i < 2 * XR_ARRAY_LEN(len); i++) {
		uint32_t n = len[i / 2];
		int byref = i & 1;

		if (byref && (n <= XR_CHUNK || rig_verbs()))
			continue;
		start(7);
		memset(b.mem, 0x11, END_MEM);
		assert_int_equal(post_recv(&b, 7, byref ? NULL : b.mem, byref ? 0 : n - 1), 0);
		assert_int_equal(post_recv(&b, 8, b.mem, END_MEM), 0);
		assert_int_equal(post_send(&a, 1, a.mem, n), 0);
		until_refused(&a, &b, a.nwc == 1);
		/* some devices make no difference */
		check_wc(&a.wc[0], 1, XR_WR_SEND, rig_verbs() && a.wc[0].status == XR_WC_REM_OP_ERR ?
			 XR_WC_REM_OP_ERR : XR_WC_REM_INV_REQ_ERR);
		both_down();
		check_wc(&b.wc[0], 7, XR_WR_RECV, XR_WC_LOC_LEN_ERR);
		check_wc(&b.wc[1], 8, XR_WR_RECV, XR_WC_WR_FLUSH_ERR);
		assert_int_equal(b.mem[n - 1], 0x11);
		stop();
	}
}

static void states_allow_what_verbs_allow(void **state)
{
	struct xr_send_wr wr = { .op = XR_WR_SEND };
	struct xr_recv_wr rr = { 1, { NULL, 0, 0 } };
	struct xr_qp_attr attr;
	struct xr_qp *q;

	(void)state;
	start(7);
	attr = a.attr;
	attr.rq_depth = 2;
	assert_int_equal(a.ops->qp_create(a.dev, &attr, &q), 0);
	assert_int_equal(q->state, XR_QPS_RESET);
	assert_int_equal(a.ops->post_recv(q, &rr), -EINVAL);
	assert_int_equal(a.ops->post_send(q, &wr), -EINVAL);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_RTR), -EINVAL);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_RTS), -EINVAL);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_INIT), 0);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_INIT), -EINVAL);
	assert_int_equal(a.ops->post_recv(q, &rr), 0);
	assert_int_equal(a.ops->post_recv(q, &rr), 0);
	assert_int_equal(a.ops->post_recv(q, &rr), -EAGAIN);
	assert_int_equal(a.ops->post_send(q, &wr), -EINVAL);
	/* RESET would make the receives vanish */
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_RESET), -EBUSY);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_ERR), 0);
	/* in ERR both are taken, and flushed */
	assert_int_equal(a.ops->post_send(q, &wr), 0);
	until(&a, &b, a.nwc == 3);
	assert_int_equal(a.wc[0].status, XR_WC_WR_FLUSH_ERR);
	assert_int_equal(a.wc[1].status, XR_WC_WR_FLUSH_ERR);
	assert_int_equal(a.wc[2].status, XR_WC_WR_FLUSH_ERR);
	assert_ptr_equal(a.wc[0].qp, q);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_RESET), 0);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_INIT), 0);
	assert_int_equal(a.ops->qp_destroy(q), 0);
	/* wrong arguments */
	attr = a.attr;
	attr.sq_depth = 0;
	assert_int_equal(a.ops->qp_create(a.dev, &attr, &q), -EINVAL);
	attr.sq_depth = 1 << 20;
	assert_int_equal(a.ops->qp_create(a.dev, &attr, &q), -EINVAL);
	attr.sq_depth = 8;
	attr.rnr_retry = 8;
	assert_int_equal(a.ops->qp_create(a.dev, &attr, &q), -EINVAL);
	attr.rnr_retry = 0;
	attr.pd = b.pd;
	assert_int_equal(a.ops->qp_create(a.dev, &attr, &q), -EINVAL);
	wr.op = XR_WR_RECV;
	assert_int_equal(a.ops->post_send(a.qp, &wr), -EINVAL);
	/* inside out, or not at all */
	assert_int_equal(a.ops->cq_destroy(a.cq), -EBUSY);
	assert_int_equal(a.ops->pd_free(a.pd), -EBUSY);
	assert_int_equal(a.ops->close(a.dev), -EBUSY);
	stop();
}

/* Everything that is posted ends exactly once, at both ends, whatever the moment. */
static void flush_is_exactly_once(void **state)
{
	struct rng g = { 99 };
	int round, read;

	(void)state;
	for (round = 0; round < (rig_verbs() ? 15 : 60); round++) {
		uint32_t ns = 0, nr = 0, i, when = rng_below(&g, 40), polls = rng_below(&g, 4);
		uint8_t seen[2][512] = { { 0 } };
		struct end *e;

		start(7);
		for (i = 0; i < 40; i++) {
			if (i == when) {
				switch (rng_below(&g, 3)) {
				case 0:
					a.ops->qp_modify(a.qp, XR_QPS_ERR);
					break;
				case 1:
					a.ops->cm_disconnect(a.id);
					break;
				case 2:
					b.ops->cm_disconnect(b.id);
					break;
				}
			}
			nr += rng_below(&g, 2) && !post_recv(&b, 1000 + nr, b.mem, 65536);
			/* where a READ goes, nothing else does before it is done */
			read = !rng_below(&g, 3) * (ns % 48 + 1);
			ns += !post(&a, read ? XR_WR_READ : XR_WR_SEND, ns, a.mem + read * 65536, rng_below(&g, 60000),
				    XR_SEND_SIGNALED, (uintptr_t)b.mem, b.mr->rkey);
			for (uint32_t k = 0; k < polls; k++)
				both_poll(&a, &b);
		}
		until(&a, &b, a.nwc == ns && b.nwc == nr);
		settle(&a, &b);
		assert_int_equal(a.nwc, ns);
		assert_int_equal(b.nwc, nr);
		for (e = &a; e; e = e == &a ? &b : NULL) {
			int failed = 0;

			for (i = 0; i < e->nwc; i++) {
				uint64_t id = e->wc[i].wr_id % 1000;

				/* in order, and no success behind a failure */
				assert_int_equal(id, i);
				assert_int_equal(seen[e == &b][id]++, 0);
				if (e->wc[i].status)
					failed = 1;
				else
					assert_int_equal(failed, 0);
			}
		}
		stop();
	}
}

static void what_was_sent_before_disconnect_arrives(void **state)
{
	uint32_t i;

	(void)state;
	rig_shm_only();		/* a network knows only of what was acknowledged */
	start(7);
	for (i = 0; i < 50; i++)
		assert_int_equal(post(&a, XR_WR_SEND, i, a.mem, 10000, XR_SEND_INLINE, 0, 0), 0);
	assert_int_equal(a.ops->cm_disconnect(a.id), 0);
	assert_int_equal(a.qp->state, XR_QPS_ERR);
	for (i = 0; i < 50; i++)
		assert_int_equal(post_recv(&b, i, i % 2 ? NULL : b.mem, i % 2 ? 0 : 10000), 0);
	until(&a, &b, b.nwc == 50);
	for (i = 0; i < 50; i++)
		check_wc(&b.wc[i], i, XR_WR_RECV, XR_WC_SUCCESS);
	both_down();
	assert_int_equal(a.ops->cm_disconnect(a.id), 0);
	stop();
}

/* A peer that is killed: what it had published arrives, then the end, soon. */
static void death_of_a_peer(void **state)
{
	struct xr_addr addr;
	int round, st;
	uint32_t i;

	(void)state;
	for (round = 0; round < (rig_verbs() ? 3 : 10); round++) {
		uint64_t t;
		pid_t pid;

		memset(&a, 0, sizeof(a));
		memset(&b, 0, sizeof(b));
		a.attr.rnr_retry = b.attr.rnr_retry = 7;
		rig_address(&addr);
		end_open(&a);
		end_qp(&a);
		assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
		pid = child_fork();
		assert_true(pid >= 0);
		if (!pid) {
			end_open(&b);
			end_qp(&b);
			if (b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id))
				_exit(1);
			while (!b.events[XR_CM_ESTABLISHED])
				end_poll(&b);
			for (i = 0; i < 20; i++)
				if (post(&b, XR_WR_SEND, i, b.mem, 3000, XR_SEND_SIGNALED, 0, 0))
					_exit(2);
			/* what a network has not acknowledged goes with it */
			while (rig_verbs() && b.nwc < 20)
				end_poll(&b);
			kill(getpid(), SIGKILL);
		}
		until(&a, &a, a.events[XR_CM_CONNECT_REQUEST]);
		a.id = a.ev.id;
		for (i = 0; i < 25; i++)
			assert_int_equal(post_recv(&a, i, a.mem, 3000), 0);
		assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_true(WIFSIGNALED(st));
		t = xr_now_ns();
		until(&a, &a, a.nwc == 25 && a.events[XR_CM_DISCONNECTED]);
		assert_true(xr_now_ns() - t < 1000000000u);
		assert_int_equal(a.ev.status, rig_verbs() ? 0 : -ECONNRESET);
		for (i = 0; i < 25; i++)
			check_wc(&a.wc[i], i, XR_WR_RECV, i < 20 ? XR_WC_SUCCESS : XR_WC_WR_FLUSH_ERR);
		assert_int_equal(end_close(&a), 0);
	}
}

static void sends_to_a_dead_peer(void **state)
{
	struct xr_addr addr;
	int st;
	pid_t pid;

	(void)state;
	memset(&a, 0, sizeof(a));
	a.attr.rnr_retry = 7;
	rig_address(&addr);
	end_open(&a);
	end_qp(&a);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		memset(&b, 0, sizeof(b));
		end_open(&b);
		end_qp(&b);
		if (b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id))
			_exit(1);
		while (!b.events[XR_CM_ESTABLISHED])
			end_poll(&b);
		for (;;)
			pause();
	}
	until(&a, &a, a.events[XR_CM_CONNECT_REQUEST]);
	a.id = a.ev.id;
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
	until(&a, &a, a.events[XR_CM_ESTABLISHED]);
	assert_int_equal(post_send(&a, 1, a.mem, 100), 0);
	assert_int_equal(post(&a, XR_WR_READ, 2, a.mem, 100, 0, 4711, 4711), 0);
	settle(&a, &a);
	assert_int_equal(a.nwc, 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	until(&a, &a, a.nwc == 2);
	/* its kernel says goodbye for it */
	check_wc(&a.wc[0], 1, XR_WR_SEND, rig_verbs() ? XR_WC_WR_FLUSH_ERR : XR_WC_RETRY_EXC_ERR);
	check_wc(&a.wc[1], 2, XR_WR_READ, XR_WC_WR_FLUSH_ERR);
	assert_int_equal(end_close(&a), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rnr_retry_zero_fails_at_once),
		cmocka_unit_test(rnr_is_counted),
		cmocka_unit_test(rnr_ends_with_a_receive),
		cmocka_unit_test(rnr_seven_is_for_ever),
		cmocka_unit_test(remote_access_is_checked),
		cmocka_unit_test(a_refusal_comes_after_earlier_reads),
		cmocka_unit_test(windows_open_one_range_to_one_peer),
		cmocka_unit_test(a_window_is_not_for_others),
		cmocka_unit_test(local_keys_are_checked),
		cmocka_unit_test(a_receive_with_a_bad_key),
		cmocka_unit_test(a_message_larger_than_the_receive),
		cmocka_unit_test(states_allow_what_verbs_allow),
		cmocka_unit_test(flush_is_exactly_once),
		cmocka_unit_test(what_was_sent_before_disconnect_arrives),
		cmocka_unit_test(death_of_a_peer),
		cmocka_unit_test(sends_to_a_dead_peer),
	};

	return rig_run(tests);
}
