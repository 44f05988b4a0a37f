/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Completion queues.  Requests of one queue complete in order, so each completion is held against the shadow that
 * is next: those before it that the hardware was not to tell of have succeeded, a position that was there before is
 * a duplicate, and what is missing is made up for.  So each request completes exactly once, whatever the device does.
 *
 * An event is acknowledged as soon as it is taken: destroying a queue waits for those that are not.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "atomic.h"
#include "fabric_verbs.h"
#include "log.h"

#define BATCH 32

static int cq_ring(struct v_cq *c, uint32_t n)
{
	struct xr_wc *ring;
	uint32_t i, mask = v_pow2(n) - 1, have = c->tail - c->head;

	if (c->ring && mask <= c->mask)
		return 0;
	ring = malloc(((size_t)mask + 1) * sizeof(*ring));
	if (!ring)
		return -ENOMEM;
	for (i = 0; i < have; i++)
		ring[i] = c->ring[(c->head + i) & c->mask];
	free(c->ring);
	c->ring = ring;
	c->mask = mask;
	c->head = 0;
	c->tail = have;
	return 0;
}

int v_cq_create(struct xr_dev *dev, uint32_t cqe, struct xr_cq **cq)
{
	struct v_dev *d = v_dev(dev);
	struct v_cq *c;
	int r;

	if (!d->ctx)
		return -ENODEV;
	if (!cqe || cqe > (uint32_t)d->attr.max_cqe)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	r = cq_ring(c, cqe);
	if (r)
		goto free_cq;
	c->ib = ibv_create_cq(d->ctx, (int)cqe, c, d->channel, 0);
	if (!c->ib) {
		r = v_null();
		if (r == -ENOMEM)
			xr_warn("no completion queue of %u entries: out of memory, or of what may be locked", cqe);
		goto free_ring;
	}
	c->cq.dev = dev;
	c->cqe = (uint32_t)c->ib->cqe;
	c->next = d->cqs;
	d->cqs = c;
	*cq = &c->cq;
	return 0;
free_ring:
	free(c->ring);
free_cq:
	free(c);
	return r;
}

int v_cq_destroy(struct xr_cq *cq)
{
	struct v_cq *c = v_cq(cq), **pp = &v_dev(cq->dev)->cqs;
	int r;

	if (c->refs)
		return -EBUSY;
	r = c->ib ? v_errno(ibv_destroy_cq(c->ib)) : 0;
	if (r)
		return r;
	while (*pp != c)
		pp = &(*pp)->next;
	*pp = c->next;
	free(c->ring);
	free(c);
	return 0;
}

int v_cq_reserve(struct v_cq *c, uint32_t n)
{
	struct v_dev *d = v_dev(c->cq.dev);
	uint32_t want = c->reserved + n, size = 2 * c->cqe;
	int r;

	if (want > c->cqe) {
		if (want > (uint32_t)d->attr.max_cqe)
			return -ENOMEM;
		if (size < want)
			size = want;
		if (size > (uint32_t)d->attr.max_cqe)
			size = (uint32_t)d->attr.max_cqe;
		r = v_errno(ibv_resize_cq(c->ib, (int)size));
		if (r) {
			xr_info("a completion queue of %u entries cannot grow: error %d", c->cqe, -r);
			return -ENOMEM;
		}
		c->cqe = (uint32_t)c->ib->cqe;
	}
	c->reserved = want;
	return 0;
}

void v_wake(struct v_dev *d)
{
	static const uint64_t one = 1;

	d->rung = 1;
	if (write(d->cq_event, &one, sizeof(one)) < 0)
		return;		/* full: it is readable already */
}

void v_cq_push(struct v_cq *c, const struct xr_wc *wc)
{
	if (c->tail - c->head > c->mask && cq_ring(c, 2 * (c->mask + 1))) {
		xr_error("a completion was lost: no memory");
		return;
	}
	c->ring[c->tail++ & c->mask] = *wc;
	if (c->armed)
		v_wake(v_dev(c->cq.dev));
}

void v_cq_forget(struct v_cq *c, const struct xr_qp *qp)
{
	uint32_t i, to = c->head;

	for (i = c->head; i != c->tail; i++)
		if (c->ring[i & c->mask].qp != qp)
			c->ring[to++ & c->mask] = c->ring[i & c->mask];
	c->tail = to;
}

enum xr_wc_status v_status(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return XR_WC_SUCCESS;
	case IBV_WC_LOC_LEN_ERR:
		return XR_WC_LOC_LEN_ERR;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
	case IBV_WC_MW_BIND_ERR:
		return XR_WC_LOC_PROT_ERR;
	case IBV_WC_WR_FLUSH_ERR:
		return XR_WC_WR_FLUSH_ERR;
	case IBV_WC_REM_INV_REQ_ERR:
		return XR_WC_REM_INV_REQ_ERR;
	case IBV_WC_REM_ACCESS_ERR:
		return XR_WC_REM_ACCESS_ERR;
	case IBV_WC_REM_OP_ERR:
		return XR_WC_REM_OP_ERR;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return XR_WC_RETRY_EXC_ERR;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return XR_WC_RNR_RETRY_EXC_ERR;
	default:
		return XR_WC_FATAL_ERR;
	}
}

/* --- sends ---------------------------------------------------------------------------------- */

/* The send at sq_done has ended; 1 with a completion for the user. */
static int send_end(struct v_qp *q, enum xr_wc_status status, struct xr_wc *out)
{
	struct v_swr *s = &q->sq[q->sq_done & q->sq_mask];

	if (status != XR_WC_SUCCESS)
		v_mark_undo(q, q->sq_done);
	q->sq_done++;
	if (status != XR_WC_SUCCESS && q->flushing)
		status = XR_WC_WR_FLUSH_ERR;
	if (s->op >= V_OP_BIND) {
		if (s->op == V_OP_CLOSE && s->window && status == XR_WC_SUCCESS)
			v_window_closed(q, s->window);
		return 0;
	}
	q->out--;
	/* a post was turned away, and whoever polled may see nothing come of it: do not let him sleep */
	if (xr_unlikely(q->refused)) {
		q->refused = 0;
		v_wake(v_dev(q->qp.dev));
	}
	if (status == XR_WC_SUCCESS && !s->report)
		return 0;
	if (status != XR_WC_SUCCESS) {
		/* the first one has the reason, also where the hardware keeps it to itself */
		if (status == XR_WC_WR_FLUSH_ERR && !q->flushing && q->err)
			status = q->err;
		q->flushing = 1;
	}
	*out = (struct xr_wc){ .wr_id = s->wr_id, .qp = &q->qp, .status = status, .op = (enum xr_wr_op)s->op,
			       .len = s->len };
	return 1;
}

/* What the hardware says of a send that it has done, unless that cannot be. */
static enum xr_wc_status send_told(struct v_qp *q, uint32_t pos)
{
	struct v_dev *d = v_dev(q->qp.dev);

	if (xr_likely(!v_mark_left(q, pos)))
		return XR_WC_SUCCESS;
	d->count.hollow++;
	xr_info("device %s: a READ is said to be done that has not brought all", d->name);
	return XR_WC_FATAL_ERR;
}

/* The hardware went to ERR and gives no reason: one of these may be it. */
static enum xr_wc_status send_reason(const struct v_qp *q, uint32_t pos)
{
	for (; pos != q->sq_hw; pos++)
		if (q->sq[pos & q->sq_mask].bad)
			return XR_WC_LOC_PROT_ERR;
	return XR_WC_WR_FLUSH_ERR;
}

static int take_send(struct v_cq *c, struct v_qp *q, uint32_t pos, enum xr_wc_status status, struct xr_wc *out)
{
	struct v_dev *d = v_dev(c->cq.dev);

	if (pos - q->sq_done >= q->sq_hw - q->sq_done) {
		d->count.twice++;
		return 0;
	}
	while (q->sq_done != pos) {
		const struct v_swr *s = &q->sq[q->sq_done & q->sq_mask];
		enum xr_wc_status st = XR_WC_SUCCESS;
		struct xr_wc wc;

		/* in order: it must have succeeded, unless all is flushed */
		if (s->signaled) {
			d->count.lost++;
			if (status == XR_WC_WR_FLUSH_ERR)
				st = status;
		}
		if (st == XR_WC_SUCCESS)
			st = send_told(q, q->sq_done);
		/* then the queue pair has failed, and what is behind it with it */
		if (st == XR_WC_FATAL_ERR && status == XR_WC_SUCCESS)
			status = XR_WC_WR_FLUSH_ERR;
		if (send_end(q, st, &wc))
			v_cq_push(c, &wc);
	}
	if (status == XR_WC_SUCCESS)
		status = send_told(q, pos);
	if (status != XR_WC_SUCCESS) {
		const struct v_swr *s = &q->sq[pos & q->sq_mask];

		if (status == XR_WC_WR_FLUSH_ERR && q->qp.state != XR_QPS_ERR)
			status = send_reason(q, pos);
		/* one of our own that failed: the user is told with the next of his */
		if (s->op >= V_OP_BIND && !q->err && status != XR_WC_WR_FLUSH_ERR)
			q->err = (uint8_t)status;
		v_qp_fail(q, status);
		/* where the device is gone by now it was made up for, and with its status */
		if (q->sq_done != pos)
			return 0;
	}
	return send_end(q, status, out);
}

/* --- receives --------------------------------------------------------------------------------- */

static void recv_flushed(struct v_cq *c, struct v_qp *q)
{
	const struct v_rwr *r = &q->rq[q->rq_done++ & q->rq_mask];
	struct xr_wc wc = { .wr_id = r->wr_id, .qp = &q->qp, .status = XR_WC_WR_FLUSH_ERR, .op = XR_WR_RECV };

	v_cq_push(c, &wc);
}

static int take_recv(struct v_cq *c, struct v_qp *q, uint32_t pos, const struct ibv_wc *w, struct xr_wc *out)
{
	struct v_dev *d = v_dev(c->cq.dev);
	const struct v_rwr *r;

	if (pos - q->rq_done >= q->rq_hw - q->rq_done) {
		d->count.twice++;
		return 0;
	}
	for (; q->rq_done != pos; d->count.lost++)
		recv_flushed(c, q);
	r = &q->rq[q->rq_done++ & q->rq_mask];
	*out = (struct xr_wc){ .wr_id = r->wr_id, .qp = &q->qp, .status = v_status(w->status), .op = XR_WR_RECV };
	if (out->status != XR_WC_SUCCESS) {
		if (w->status == IBV_WC_LOC_QP_OP_ERR && d->quirk->silent)
			out->status = r->bad ? XR_WC_LOC_PROT_ERR : XR_WC_LOC_LEN_ERR;
		/* what the peer sent was wrong: our own sends are not to blame */
		v_qp_fail(q, XR_WC_WR_FLUSH_ERR);
		return 1;
	}
	/* the first message may be here before the connection manager knows */
	if (xr_unlikely(q->qp.state == XR_QPS_RTR))
		v_cm_established(q);
	if (w->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		out->op = XR_WR_RECV_WRITE_IMM;
	out->len = w->byte_len;
	out->data = r->addr;
	if (w->wc_flags & IBV_WC_WITH_IMM) {
		out->flags = XR_WC_WITH_IMM;
		out->imm = be32toh(w->imm_data);
	}
	return 1;
}

static int cq_take(struct v_cq *c, const struct ibv_wc *w, struct xr_wc *out)
{
	struct v_dev *d = v_dev(c->cq.dev);
	uint32_t index = (uint32_t)(w->wr_id >> 48), life = (uint32_t)(w->wr_id >> 33) & 0x7fff;
	uint32_t pos = (uint32_t)w->wr_id;
	struct v_qp *q = index < d->qp_room ? d->qps[index] : NULL;
	int r;

	if (!q || q->life != life) {
		d->count.strange++;
		return 0;
	}
	r = w->wr_id & 1ull << 32 ? take_recv(c, q, pos, w, out) : take_send(c, q, pos, v_status(w->status), out);
	if (xr_unlikely(q->qp.state == XR_QPS_ERR) &&
	    (q->sq_hw != q->sq_head || q->rq_hw != q->rq_head)) {
		/* in this order */
		if (r)
			v_cq_push(c, out);
		v_flush_rest(q);
		return 0;
	}
	if (xr_unlikely(q->due))
		v_windows_due(q);
	return r;
}

void v_flush_rest(struct v_qp *q)
{
	struct v_cq *sc = v_cq(q->qp.send_cq), *rc = v_cq(q->qp.recv_cq);
	struct xr_wc wc;

	while (q->sq_done == q->sq_hw && q->sq_hw != q->sq_head) {
		q->sq_hw++;
		if (send_end(q, XR_WC_WR_FLUSH_ERR, &wc))
			v_cq_push(sc, &wc);
	}
	while (q->rq_done == q->rq_hw && q->rq_hw != q->rq_head) {
		q->rq_hw++;
		recv_flushed(rc, q);
	}
}

void v_flush(struct v_qp *q)
{
	struct v_cq *c = v_cq(q->qp.send_cq);

	if (c->batch_qp == q) {
		c->batched = 0;
		c->batch_qp = NULL;
	}
	q->sq_hw = q->sq_done;
	q->rq_hw = q->rq_done;
	v_flush_rest(q);
}

void v_cq_drain(struct v_cq *c)
{
	struct ibv_wc w[BATCH];
	struct xr_wc wc;
	int i, k;

	while (c->ib && (k = ibv_poll_cq(c->ib, BATCH, w)) > 0)
		for (i = 0; i < k; i++)
			if (cq_take(c, &w[i], &wc))
				v_cq_push(c, &wc);
}

int v_cq_poll(struct xr_cq *cq, struct xr_wc *wc, int n)
{
	struct v_cq *c = v_cq(cq);
	struct ibv_wc w[BATCH];
	struct xr_wc one;
	int i = 0, j, k;

	v_ring(c);
	for (;;) {
		while (i < n && c->head != c->tail)
			wc[i++] = c->ring[c->head++ & c->mask];
		if (i == n || xr_unlikely(!c->ib))
			return i;
		k = ibv_poll_cq(c->ib, n - i < BATCH ? n - i : BATCH, w);
		if (k <= 0)
			return i;
		for (j = 0; j < k; j++) {
			if (!cq_take(c, &w[j], &one))
				continue;
			/* behind what had to be put aside */
			if (xr_unlikely(c->head != c->tail))
				v_cq_push(c, &one);
			else
				wc[i++] = one;
		}
	}
}

int v_cq_arm(struct xr_cq *cq)
{
	struct v_cq *c = v_cq(cq);
	int r = 0;

	v_ring(c);
	if (c->head != c->tail || !c->ib)
		v_wake(v_dev(cq->dev));
	/* armed, and its event was not taken: then it has rung, or will */
	if (c->ib && !c->armed)
		r = v_errno(ibv_req_notify_cq(c->ib, 0));
	c->armed = !r;
	return r;
}

int v_cq_fd(struct xr_cq *cq)
{
	return v_dev(cq->dev)->cq_epoll;
}

void v_cq_event(struct xr_cq *cq)
{
	struct v_dev *d = v_dev(cq->dev);
	struct ibv_cq *ib;
	uint64_t count;
	void *user;

	while (d->ctx && !ibv_get_cq_event(d->channel, &ib, &user)) {
		((struct v_cq *)user)->armed = 0;
		ibv_ack_cq_events(ib, 1);
		/* each rings once before it is armed again: there is no other */
		if (user == cq && !v_cq(cq)->next && d->cqs == user)
			break;
	}
	if (d->rung && read(d->cq_event, &count, sizeof(count)) > 0)
		d->rung = 0;
}
