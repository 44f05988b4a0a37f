/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Queue pairs.  They are made and moved through their states here and not by the connection manager, so that they can
 * be used again; it only says which attributes a state needs (rdma_init_qp_attr), and some of those we know better:
 * the timers, the MTU that both ends can, the traffic class, the GID.
 */
#include <stdlib.h>
#include <string.h>
#include "fabric_verbs.h"
#include "log.h"

static int qp_slot(struct v_dev *d, uint32_t *index)
{
	uint32_t i, n = d->qp_room ? 2 * d->qp_room : 16;
	struct v_qp **qps;
	uint16_t *lives;

	for (i = 0; i < d->qp_room; i++) {
		if (!d->qps[i]) {
			*index = i;
			return 0;
		}
	}
	if (n > V_MAX_QP)
		return -ENOMEM;
	qps = realloc(d->qps, n * sizeof(*qps));
	if (!qps)
		return -ENOMEM;
	d->qps = qps;
	lives = realloc(d->lives, n * sizeof(*lives));
	if (!lives)
		return -ENOMEM;
	d->lives = lives;
	memset(qps + d->qp_room, 0, (n - d->qp_room) * sizeof(*qps));
	memset(lives + d->qp_room, 0, (n - d->qp_room) * sizeof(*lives));
	*index = d->qp_room;
	d->qp_room = n;
	return 0;
}

static void qp_life(struct v_dev *d, struct v_qp *q)
{
	q->life = ++d->lives[q->index] & 0x7fff;
}

static int qp_hardware(struct v_dev *d, struct v_qp *q)
{
	struct ibv_qp_init_attr a = { .qp_context = q, .qp_type = IBV_QPT_RC };

	a.send_cq = v_cq(q->qp.send_cq)->ib;
	a.recv_cq = v_cq(q->qp.recv_cq)->ib;
	a.cap = (struct ibv_qp_cap){ .max_send_wr = q->sq_depth + 1, .max_recv_wr = q->attr.rq_depth,
				     .max_send_sge = V_MAX_SGE, .max_recv_sge = 1,
				     .max_inline_data = d->max_inline };
	q->ib = ibv_create_qp(v_pd(q->qp.pd)->ib, &a);
	if (!q->ib)
		return v_null();
	q->qp.num = q->ib->qp_num;
	return 0;
}

int v_qp_create(struct xr_dev *dev, const struct xr_qp_attr *attr, struct xr_qp **qp)
{
	struct v_dev *d = v_dev(dev);
	uint32_t max = V_MAX_WR < (uint32_t)d->attr.max_qp_wr / 3 ? V_MAX_WR : (uint32_t)d->attr.max_qp_wr / 3;
	struct v_qp *q;
	int r;

	if (!attr->pd || !attr->send_cq || !attr->recv_cq || attr->pd->dev != dev ||
	    attr->send_cq->dev != dev || attr->recv_cq->dev != dev)
		return -EINVAL;
	if (!attr->sq_depth || attr->sq_depth > max || !attr->rq_depth || attr->rq_depth > max ||
	    attr->rnr_retry > 7 || attr->max_rd_atomic > V_MAX_RD)
		return -EINVAL;
	if (!d->ctx)
		return -ENODEV;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->attr = *attr;
	/* and places for the windows; in hardware one more, see v_post_last() */
	q->sq_depth = attr->sq_depth + attr->sq_depth / 2 + 16;
	q->sq_mask = v_pow2(q->sq_depth + 1) - 1;
	q->rq_mask = v_pow2(attr->rq_depth) - 1;
	q->sq = calloc((size_t)q->sq_mask + 1, sizeof(*q->sq));
	q->rq = calloc((size_t)q->rq_mask + 1, sizeof(*q->rq));
	r = q->sq && q->rq ? qp_slot(d, &q->index) : -ENOMEM;
	if (r)
		goto free_qp;
	q->qp.dev = dev;
	q->qp.pd = attr->pd;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->qp.state = XR_QPS_RESET;
	r = v_cq_reserve(v_cq(attr->send_cq), q->sq_depth + 1);
	if (r)
		goto free_qp;
	r = v_cq_reserve(v_cq(attr->recv_cq), attr->rq_depth);
	if (r)
		goto unreserve_send;
	r = qp_hardware(d, q);
	if (r)
		goto unreserve;
	d->qps[q->index] = q;
	d->nqps++;
	qp_life(d, q);
	v_pd(attr->pd)->refs++;
	v_cq(attr->send_cq)->refs++;
	v_cq(attr->recv_cq)->refs++;
	*qp = &q->qp;
	return 0;
unreserve:
	v_cq(attr->recv_cq)->reserved -= attr->rq_depth;
unreserve_send:
	v_cq(attr->send_cq)->reserved -= q->sq_depth + 1;
free_qp:
	free(q->sq);
	free(q->rq);
	free(q);
	return r;
}

static void qp_forget_id(struct v_qp *q)
{
	if (q->id)
		q->id->id.qp = NULL;
	q->id = NULL;
}

static void qp_drain(struct v_qp *q)
{
	v_cq_drain(v_cq(q->qp.send_cq));
	if (q->qp.recv_cq != q->qp.send_cq)
		v_cq_drain(v_cq(q->qp.recv_cq));
}

int v_qp_destroy(struct xr_qp *qp)
{
	struct v_dev *d = v_dev(qp->dev);
	struct v_qp *q = v_qp(qp);

	v_marks_forget(q);
	v_qp_fail(q, XR_WC_WR_FLUSH_ERR);
	qp_forget_id(q);
	if (q->ib)
		ibv_destroy_qp(q->ib);
	q->ib = NULL;
	/* not every library takes the completions of a queue pair away with it */
	qp_drain(q);
	d->qps[q->index] = NULL;
	v_cq_forget(v_cq(qp->send_cq), qp);
	v_cq_forget(v_cq(qp->recv_cq), qp);
	v_cq(qp->send_cq)->reserved -= q->sq_depth + 1;
	v_cq(qp->recv_cq)->reserved -= q->attr.rq_depth;
	v_cq(qp->send_cq)->refs--;
	v_cq(qp->recv_cq)->refs--;
	v_pd(qp->pd)->refs--;
	d->nqps--;
	free(q->sq);
	free(q->rq);
	free(q);
	return 0;
}

/* --- states ---------------------------------------------------------------------------------- */

void v_qp_fail(struct v_qp *q, enum xr_wc_status status)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	enum xr_qp_state was = q->qp.state;

	if (was == XR_QPS_ERR)
		return;
	/* what was posted before is flushed, too */
	if (q->ib && v_cq(q->qp.send_cq)->batch_qp == q)
		v_ring(v_cq(q->qp.send_cq));
	q->qp.state = XR_QPS_ERR;
	/* the status belongs to a send that is outstanding now, not to one posted later */
	q->flushing = !q->out;
	if (!q->err)
		q->err = (uint8_t)status;
	if (was != XR_QPS_RESET && (!q->ib || ibv_modify_qp(q->ib, &a, IBV_QP_STATE) || v_post_last(q)))
		v_flush(q);
	v_windows_drop(q);
	if (q->id)
		v_cm_qp_failed(q->id);
}

static int qp_init(struct v_qp *q, uint16_t pkey_index)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .pkey_index = pkey_index };

	a.port_num = v_dev(q->qp.dev)->port;
	/* what a window opens the queue pair must let in, and a WRITE of nothing needs it, too */
	a.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	return v_errno(ibv_modify_qp(q->ib, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static int qp_reset(struct v_qp *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	int r;

	if (!q->ib)
		return -ENODEV;
	/* the hardware would drop them without a word */
	if (q->out || q->rq_head != q->rq_done)
		return -EBUSY;
	v_qp_fail(q, XR_WC_WR_FLUSH_ERR);
	qp_forget_id(q);
	r = v_errno(ibv_modify_qp(q->ib, &a, IBV_QP_STATE));
	if (r)
		return r;
	qp_drain(q);
	q->sq_head = q->sq_hw = q->sq_done = q->rq_head = q->rq_hw = q->rq_done = q->quiet = 0;
	q->err = q->flushing = q->refused = 0;
	/* completions that are still under way belong to the life before */
	qp_life(v_dev(q->qp.dev), q);
	q->qp.state = XR_QPS_RESET;
	return 0;
}

int v_qp_modify(struct xr_qp *qp, enum xr_qp_state state)
{
	struct v_qp *q = v_qp(qp);
	int r;

	switch (state) {
	case XR_QPS_RESET:
		return qp_reset(q);
	case XR_QPS_INIT:
		if (qp->state != XR_QPS_RESET)
			return -EINVAL;
		r = q->ib ? qp_init(q, 0) : -ENODEV;
		if (!r)
			qp->state = XR_QPS_INIT;
		return r;
	case XR_QPS_ERR:
		v_qp_fail(q, XR_WC_WR_FLUSH_ERR);
		return 0;
	default:
		return -EINVAL;
	}
}

/*
 * A request that is not acknowledged is sent again after T = 4.096 us * 2^timeout, V_RETRY times, so the end is seen
 * after (V_RETRY + 1) * T; the specification lets a device take up to four times as long.  With 1000 ms:
 * 1000 ms / 7 = 143 ms, the largest T below it is 4.096 us * 2^15 = 134 ms, and 7 * 134 ms = 940 ms, 3.8 s at the
 * latest.  Zero would be for ever; below 2^8 (1 ms) software devices repeat themselves for nothing.
 */
uint8_t v_ack_timeout(uint32_t detect_ms)
{
	uint64_t limit = (detect_ms ? detect_ms : V_DETECT_MS) * 1000000ull / (V_RETRY + 1);
	uint8_t t = 8;

	while (t < 31 && 4096ull << (t + 1) <= limit)
		t++;
	return t;
}

uint8_t v_rnr_timer(uint32_t us)
{
	/* IBTA volume 1, table 45, in units of 10 us; code 0 is 655 ms and never what is meant */
	static const uint16_t units[32] = {
		65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
		3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152
	};
	uint8_t i = 1;

	if (!us)
		us = 640;
	while (i < 31 && units[i] * 10u < us)
		i++;
	return i;
}

/*
 * What is under way in the network for the last connection must have died: twice the life of a packet, 4.096 us * 2^14
 * (67 ms), and what the device takes to acknowledge.
 */
uint32_t v_quarantine_us(const struct v_dev *d)
{
	uint32_t delay = d->attr.local_ca_ack_delay & 31;

	return (uint32_t)((2 * (4096ull << 14) + (4096ull << (delay > 16 ? 16 : delay))) / 1000);
}

static int qp_rtr(struct v_dev *d, struct v_qp *q, struct v_id *id)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
	int mask, r = v_errno(rdma_init_qp_attr(id->cm, &a, &mask));

	if (!r)
		r = v_gid_fix(d, &a.ah_attr);
	if (r)
		return r;
	a.min_rnr_timer = v_rnr_timer(q->attr.min_rnr_timer_us);
	if (id->mtu && a.path_mtu > id->mtu)
		a.path_mtu = id->mtu;
	q->qp.peer_num = a.dest_qp_num;
	memset(q->qp.peer_gid, 0, sizeof(q->qp.peer_gid));
	if (a.ah_attr.is_global) {
		a.ah_attr.grh.traffic_class = q->attr.tos;
		memcpy(q->qp.peer_gid, a.ah_attr.grh.dgid.raw, sizeof(q->qp.peer_gid));
	}
	return v_errno(ibv_modify_qp(q->ib, &a, mask));
}

static int qp_rts(struct v_qp *q, struct v_id *id)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS };
	int mask, r = v_errno(rdma_init_qp_attr(id->cm, &a, &mask));

	if (r)
		return r;
	a.timeout = v_ack_timeout(q->attr.detect_ms);
	a.retry_cnt = V_RETRY;
	a.rnr_retry = q->attr.rnr_retry;
	return v_errno(ibv_modify_qp(q->ib, &a, mask));
}

int v_qp_connect(struct v_qp *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT };
	struct v_dev *d = v_dev(q->qp.dev);
	int mask, r;

	if (!q->ib)
		return -ENODEV;
	/*
	 * Where the request was taken back meanwhile, this is what shows it.  InfiniBand may have put the connection
	 * into another partition.
	 */
	r = v_errno(rdma_init_qp_attr(q->id->cm, &a, &mask));
	if (!r && a.pkey_index)
		r = qp_init(q, a.pkey_index);
	if (r)
		return r;
	r = qp_rtr(d, q, q->id);
	if (!r)
		r = qp_rts(q, q->id);
	if (r) {
		xr_info("a queue pair cannot be connected: error %d", -r);
		v_qp_unconnect(q);
	}
	return r;
}

int v_qp_unconnect(struct v_qp *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	int r = v_errno(ibv_modify_qp(q->ib, &a, IBV_QP_STATE));
	uint32_t i;

	if (!r)
		r = qp_init(q, 0);
	/* RESET has dropped them */
	for (i = q->rq_done; !r && i != q->rq_hw; i++)
		r = v_post_recv_hw(q, i);
	if (r)
		v_qp_fail(q, XR_WC_WR_FLUSH_ERR);
	return r;
}
