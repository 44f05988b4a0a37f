/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs of the shm device: states, posting, completion, flushing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fabric_shm.h"
#include "log.h"

#define QP_INDEX_BITS	12u
#define QP_FEW		16u	/* requests that a queue has room for at first, of those that it may come to hold */
_Static_assert(SHM_MAX_QP == 1u << QP_INDEX_BITS, "QP numbers");

/* A number is generation : 16 | index : 12, so that a late message finds no stranger. */
static void qp_number(struct shm_dev *d, struct shm_qp *q, uint32_t index)
{
	if (!++d->qp_gen[index])
		d->qp_gen[index] = 1;
	q->qp.num = ((uint32_t)d->qp_gen[index] << QP_INDEX_BITS) | index;
}

struct shm_qp *shm_qp_find(struct shm_dev *d, uint32_t num)
{
	uint32_t i = num & (SHM_MAX_QP - 1);

	return i < d->qp_room && d->qps[i] && d->qps[i]->qp.num == num ? d->qps[i] : NULL;
}

static int qp_slot(struct shm_dev *d, uint32_t *index)
{
	uint32_t i, n = d->qp_room ? 2 * d->qp_room : 16;
	struct shm_qp **qps;
	uint16_t *gen;

	for (i = 0; i < d->qp_room; i++) {
		if (!d->qps[i]) {
			*index = i;
			return 0;
		}
	}
	if (n > SHM_MAX_QP)
		return -ENOMEM;
	qps = realloc(d->qps, n * sizeof(*qps));
	if (!qps)
		return -ENOMEM;
	d->qps = qps;
	gen = realloc(d->qp_gen, n * sizeof(*gen));
	if (!gen)
		return -ENOMEM;
	d->qp_gen = gen;
	memset(qps + d->qp_room, 0, (n - d->qp_room) * sizeof(*qps));
	memset(gen + d->qp_room, 0, (n - d->qp_room) * sizeof(*gen));
	*index = d->qp_room;
	d->qp_room = n;
	return 0;
}

static uint32_t qp_pow2(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

int shm_qp_create(struct xr_dev *dev, const struct xr_qp_attr *attr, struct xr_qp **qp)
{
	struct shm_dev *d = shm_dev(dev);
	struct shm_qp *q;
	uint32_t index;
	int r;

	if (!attr->pd || !attr->send_cq || !attr->recv_cq || attr->pd->dev != dev ||
	    attr->send_cq->dev != dev || attr->recv_cq->dev != dev)
		return -EINVAL;
	if (!attr->sq_depth || attr->sq_depth > SHM_MAX_WR || !attr->rq_depth ||
	    attr->rq_depth > SHM_MAX_WR || attr->rnr_retry > 7 || attr->max_rd_atomic > SHM_MAX_RD)
		return -EINVAL;
	r = qp_slot(d, &index);
	if (r)
		return r;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->attr = *attr;
	if (!q->attr.max_rd_atomic)
		q->attr.max_rd_atomic = SHM_MAX_RD;
	q->sq_mask = qp_pow2(attr->sq_depth < QP_FEW ? attr->sq_depth : QP_FEW) - 1;
	q->rq_mask = qp_pow2(attr->rq_depth < QP_FEW ? attr->rq_depth : QP_FEW) - 1;
	q->sq = calloc((size_t)q->sq_mask + 1, sizeof(*q->sq));
	q->rq = calloc((size_t)q->rq_mask + 1, sizeof(*q->rq));
	if (!q->sq || !q->rq) {
		free(q->sq);
		free(q->rq);
		free(q);
		return -ENOMEM;
	}
	q->qp.dev = dev;
	q->qp.pd = attr->pd;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->qp.state = XR_QPS_RESET;
	d->qps[index] = q;
	d->nqps++;
	qp_number(d, q, index);
	container_of(attr->pd, struct shm_pd, pd)->refs++;
	shm_cq(attr->send_cq)->refs++;
	shm_cq(attr->recv_cq)->refs++;
	*qp = &q->qp;
	return 0;
}

static void qp_detach(struct shm_qp *q);

/* --- directions ------------------------------------------------------------------ */

int shm_qp_directions(struct shm_qp *q, struct shm_peer *p)
{
	struct xr_shm_link *l = p->link;
	uint32_t n = l->own.hdr.dir_slots, i;
	struct xr_shm_chunks chunks;

	/* taken now, so that letting go cannot fail */
	q->zombie = malloc(sizeof(*q->zombie));
	q->meta = calloc(2 * (size_t)n, sizeof(*q->meta));
	if (!q->meta || !q->zombie)
		goto free_memory;
	q->off[0] = xr_shm_link_dir_get(l);
	q->off[1] = q->off[0] ? xr_shm_link_dir_get(l) : 0;
	if (!q->off[1]) {
		if (q->off[0])
			xr_shm_link_dir_put(l, q->off[0]);
		goto free_memory;
	}
	xr_shm_link_chunks(l, &chunks);
	for (i = 0; i < 2; i++)
		xr_shm_tx_init(i ? &q->resp_tx : &q->req_tx,
			       (struct xr_shm_dir *)(l->own.base + q->off[i]), n, q->meta + i * n,
			       &chunks, l->own.base + l->own.hdr.chunk_off, l->own.hdr.chunk_off,
			       SHM_INFLIGHT);
	q->peer = p;
	q->peer_next = p->qps;
	p->qps = q;
	q->parted = 0;
	return 0;

free_memory:
	free(q->zombie);
	free(q->meta);
	q->zombie = NULL;
	q->meta = NULL;
	return -ENOMEM;
}

void shm_qp_undirect(struct shm_qp *q)
{
	q->parted = 1;
	qp_detach(q);
}

int shm_qp_attach(struct shm_qp *q, uint32_t num, const uint64_t off[2])
{
	struct xr_shm_link *l = q->peer->link;
	struct xr_shm_dir *req = xr_shm_link_peer_dir(l, off[0]);
	struct xr_shm_dir *resp = xr_shm_link_peer_dir(l, off[1]);
	uint32_t n = l->peer.hdr.dir_slots;

	if (!req || !resp || req == resp)
		return -EPROTO;
	q->held = calloc(n, 1);
	if (!q->held)
		return -ENOMEM;
	q->peer_num = q->qp.peer_num = num;
	xr_shm_rx_init(&q->req_rx, req, n, l->peer.base, l->peer.size);
	xr_shm_rx_init(&q->resp_rx, resp, n, l->peer.base, l->peer.size);
	q->req_seq = q->rel_seq = q->resp_seq = q->taken = 1;
	q->qp.state = XR_QPS_RTR;
	return 0;
}

void shm_zombie_free(struct shm_peer *p, struct shm_zombie *z)
{
	int i;

	for (i = 0; i < 2; i++) {
		xr_shm_tx_destroy(&z->tx[i]);
		xr_shm_link_dir_put(p->link, z->off[i]);
	}
	free(z->meta);
	free(z);
}

/* Lets go of both ends' directions; ours stay until the peer has let go of them too. */
static void qp_detach(struct shm_qp *q)
{
	struct shm_peer *p = q->peer;
	struct shm_zombie *z = q->zombie;
	struct shm_qp **pp;

	if (!p)
		return;
	for (pp = &p->qps; *pp != q; pp = &(*pp)->peer_next)
		;
	*pp = q->peer_next;
	if (p->state == SHM_PEER_UP && q->peer_num) {
		struct shm_cm_msg m = { .src = q->qp.num, .dst = q->peer_num };

		shm_peer_send(p, &m, SHM_CM_GONE);
	}
	z->num = q->qp.num;
	z->off[0] = q->off[0];
	z->off[1] = q->off[1];
	z->meta = q->meta;
	z->tx[0] = q->req_tx;
	z->tx[1] = q->resp_tx;
	if (q->parted || p->state != SHM_PEER_UP) {
		shm_zombie_free(p, z);
	} else {
		z->next = p->zombies;
		p->zombies = z;
	}
	free(q->held);
	q->held = NULL;
	q->meta = NULL;
	q->zombie = NULL;
	q->peer = NULL;
}

static void qp_forget_id(struct shm_qp *q)
{
	if (q->id)
		q->id->id.qp = NULL;
	q->id = NULL;
}

/* --- states ---------------------------------------------------------------------- */

static uint32_t qp_outstanding(const struct shm_qp *q)
{
	return (q->sq_head - q->sq_done) + (q->rq_head - q->rq_done) + q->held_count;
}

static int qp_reset(struct shm_qp *q)
{
	struct shm_dev *d = shm_dev(q->qp.dev);
	struct shm_qp clean = { 0 };

	if (qp_outstanding(q))
		return -EBUSY;
	if (q->peer || q->id)
		shm_qp_fail(q, XR_WC_WR_FLUSH_ERR);
	shm_deactivate(q);
	qp_forget_id(q);
	qp_detach(q);
	clean.qp = q->qp;
	clean.attr = q->attr;
	clean.sq = q->sq;
	clean.sq_mask = q->sq_mask;
	clean.rq = q->rq;
	clean.rq_mask = q->rq_mask;
	*q = clean;
	q->qp.state = XR_QPS_RESET;
	/* a new life, a new number: what is under way for the old one finds nobody */
	qp_number(d, q, q->qp.num & (SHM_MAX_QP - 1));
	return 0;
}

void shm_qp_fail(struct shm_qp *q, enum xr_wc_status status)
{
	struct shm_dev *d = shm_dev(q->qp.dev);

	if (q->qp.state == XR_QPS_ERR)
		return;
	q->qp.state = XR_QPS_ERR;
	/* the status belongs to a send that is outstanding now, not to one posted later */
	q->flushing = q->sq_done == q->sq_head;
	q->err = (uint8_t)status;
	q->rnr_deadline = q->tx_hold = q->rx_hold = 0;
	q->starved = 0;
	shm_key_drop_qp(d, q);
	if (q->peer && q->peer->state == SHM_PEER_UP && q->peer_num && !q->gone) {
		struct shm_cm_msg m = { .src = q->qp.num, .dst = q->peer_num,
					.status = status == XR_WC_WR_FLUSH_ERR ? 0 : (int)status,
					.slot = q->req_tx.head };

		/* what a receiver was not ready for, the program is told was not sent */
		if (status == XR_WC_RNR_RETRY_EXC_ERR)
			m.slot = q->rnr_seq;
		shm_peer_send(q->peer, &m, SHM_CM_DISC);
	}
	if (q->id)
		shm_cm_qp_failed(q->id);
	shm_activate(q);
}

void shm_qp_gone(struct shm_qp *q, enum xr_wc_status status, uint32_t limit)
{
	if (q->gone || q->qp.state == XR_QPS_ERR) {
		q->gone = (uint8_t)status;
		return;
	}
	q->gone = (uint8_t)status;
	q->limit = limit;
	if (q->qp.state < XR_QPS_RTR)
		shm_qp_fail(q, status);
	shm_activate(q);
}

int shm_qp_modify(struct xr_qp *qp, enum xr_qp_state state)
{
	switch (state) {
	case XR_QPS_RESET:
		return qp_reset(shm_qp(qp));
	case XR_QPS_INIT:
		if (qp->state != XR_QPS_RESET)
			return -EINVAL;
		qp->state = XR_QPS_INIT;
		return 0;
	case XR_QPS_ERR:
		shm_qp_fail(shm_qp(qp), XR_WC_WR_FLUSH_ERR);
		return 0;
	default:
		return -EINVAL;
	}
}

/* Completions of a QP that ceases to exist are taken off the queue, as providers do. */
static void cq_forget(struct shm_cq *c, const struct xr_qp *qp)
{
	uint32_t i, to = c->head;

	for (i = c->head; i != c->tail; i++)
		if (c->ring[i & c->mask].qp != qp)
			c->ring[to++ & c->mask] = c->ring[i & c->mask];
	c->tail = to;
}

int shm_qp_destroy(struct xr_qp *qp)
{
	struct shm_dev *d = shm_dev(qp->dev);
	struct shm_qp *q = shm_qp(qp);

	if (q->peer || q->id)
		shm_qp_fail(q, XR_WC_WR_FLUSH_ERR);
	shm_deactivate(q);
	qp_forget_id(q);
	qp_detach(q);
	shm_key_drop_qp(d, q);
	cq_forget(shm_cq(qp->send_cq), qp);
	cq_forget(shm_cq(qp->recv_cq), qp);
	container_of(qp->pd, struct shm_pd, pd)->refs--;
	shm_cq(qp->send_cq)->refs--;
	shm_cq(qp->recv_cq)->refs--;
	d->qps[qp->num & (SHM_MAX_QP - 1)] = NULL;
	d->nqps--;
	free(q->sq);
	free(q->rq);
	free(q);
	return 0;
}

/* --- posting --------------------------------------------------------------------- */

/* Twice the room in a queue that is full and may be longer; a few times in the life of a queue pair. */
static int qp_grow(void **queue, size_t size, uint32_t *mask, uint32_t first, uint32_t depth)
{
	uint32_t room = *mask + 1, i;
	uint8_t *old = *queue, *new;

	if (room >= depth)
		return -EAGAIN;
	new = malloc(2 * room * size);
	if (!new)
		return -ENOMEM;
	for (i = first; i != first + room; i++)
		memcpy(new + (i & (2 * room - 1)) * size, old + (i & (room - 1)) * size, size);
	free(old);
	*queue = new;
	*mask = 2 * room - 1;
	return 0;
}

static int sq_grow(struct shm_qp *q)
{
	void *sq = q->sq;
	int r = qp_grow(&sq, sizeof(*q->sq), &q->sq_mask, q->sq_done, q->attr.sq_depth);

	q->sq = sq;
	return r;
}

static int rq_grow(struct shm_qp *q)
{
	void *rq = q->rq;
	int r = qp_grow(&rq, sizeof(*q->rq), &q->rq_mask, q->rq_done, q->attr.rq_depth);

	q->rq = rq;
	return r;
}

int shm_post_send(struct xr_qp *qp, const struct xr_send_wr *wr)
{
	struct shm_qp *q = shm_qp(qp);
	struct shm_swr *w;
	uint64_t len = 0;
	uint32_t i;

	if (xr_unlikely(qp->state != XR_QPS_RTS && qp->state != XR_QPS_ERR))
		return -EINVAL;
	if (xr_unlikely(wr->op > XR_WR_READ || wr->nsge > SHM_MAX_SGE ||
			(wr->op == XR_WR_READ && (wr->flags & XR_SEND_INLINE))))
		return -EINVAL;
	for (i = 0; i < wr->nsge; i++)
		len += wr->sge[i].len;
	if (xr_unlikely(len > ((wr->flags & XR_SEND_INLINE) ? XR_CHUNK : SHM_MAX_MSG)))
		return -EMSGSIZE;
	if (xr_unlikely(q->sq_head - q->sq_done > q->sq_mask || q->sq_head - q->sq_done >= q->attr.sq_depth)) {
		if ((qp->state == XR_QPS_ERR || !shm_sq_complete(q)) && sq_grow(q)) {
			q->want_room = SHM_ROOM_SQ;
			shm_activate(q);
			return -EAGAIN;
		}
	}
	q->want_room = 0;
	w = &q->sq[q->sq_head & q->sq_mask];
	w->wr_id = wr->wr_id;
	w->raddr = wr->raddr;
	w->rkey = wr->rkey;
	w->op = wr->op;
	w->flags = wr->flags & (XR_SEND_SIGNALED | XR_SEND_INLINE | XR_SEND_FENCE | XR_SEND_MORE);
	w->imm = wr->imm;
	w->len = (uint32_t)len;
	w->moved = 0;
	w->status = XR_WC_SUCCESS;
	w->done = 0;
	w->nsge = (uint8_t)wr->nsge;
	for (i = 0; i < wr->nsge; i++)
		w->iov[i] = (struct iovec){ wr->sge[i].addr, wr->sge[i].len };
	if (q->attr.sig_all)
		w->flags |= XR_SEND_SIGNALED;
	if (qp->state == XR_QPS_ERR) {
		q->sq_head++;
		shm_activate(q);
		return 0;
	}
	if (w->flags & XR_SEND_INLINE) {
		if (q->sq_sent != q->sq_head)
			shm_sq_emit(q);
		/* a request that a fault is for is not copied: it goes the other way */
		if (q->sq_sent != q->sq_head || ((w->flags & XR_SEND_FENCE) && q->reads) ||
		    (xr_unlikely(shm_dev(qp->dev)->fault) && shm_fault_send(q, w)) || shm_emit_inline(q, w)) {
			q->want_room = SHM_ROOM_RING;
			shm_activate(q);
			return -EAGAIN;
		}
		if (xr_unlikely(shm_dev(qp->dev)->fault))
			shm_fault_sent(q);
		q->sq_sent = ++q->sq_head;
	} else {
		for (i = 0; i < wr->nsge; i++)
			if (!shm_key_check(shm_dev(qp->dev), wr->sge[i].lkey,
					   (uintptr_t)wr->sge[i].addr, wr->sge[i].len,
					   wr->op == XR_WR_READ ? XR_ACCESS_LOCAL_WRITE : 0, q, 0) &&
			    wr->sge[i].len)
				w->status = XR_WC_LOC_PROT_ERR;
		q->sq_head++;
		shm_sq_emit(q);
	}
	if (w->flags & XR_SEND_SIGNALED)
		q->sq_signalled++;
	/* somebody has to see to what is not over with the post */
	if (q->sq_signalled || q->sq_sent != q->sq_head || q->reads || (w->flags & XR_SEND_MORE))
		shm_activate(q);
	if (w->flags & XR_SEND_MORE)
		q->bell_due = 1;
	else
		shm_doorbell(q, &q->req_tx);
	return 0;
}

int shm_post_recv(struct xr_qp *qp, const struct xr_recv_wr *wr)
{
	struct shm_qp *q = shm_qp(qp);
	struct shm_rwr *w;

	if (xr_unlikely(qp->state == XR_QPS_RESET || (!wr->sge.addr && wr->sge.len)))
		return -EINVAL;
	if (xr_unlikely(q->rq_head - q->rq_done >= q->attr.rq_depth))
		return -EAGAIN;
	if (xr_unlikely(q->rq_head - q->rq_done > q->rq_mask)) {
		int r = rq_grow(q);

		if (r)
			return r;
	}
	w = &q->rq[q->rq_head & q->rq_mask];
	w->wr_id = wr->wr_id;
	w->addr = wr->sge.addr;
	w->len = wr->sge.len;
	w->lkey = wr->sge.lkey;
	q->rq_head++;
	/* a message may be waiting for it, or it is to be flushed */
	if (q->rnr_told || qp->state == XR_QPS_ERR)
		shm_activate(q);
	return 0;
}

void shm_recv_release(struct xr_qp *qp, uint32_t ref)
{
	struct shm_qp *q = shm_qp(qp);
	uint32_t i = ref - 1;

	if (!q->held || i > q->req_rx.mask || !q->held[i])
		return;
	q->held[i] = 0;
	q->held_count--;
	if (qp->state == XR_QPS_ERR)
		return;
	/* the sender is told with the next progress, or now when the ring grows short */
	q->rel_due = 1;
	if (q->req_seq - q->rel_seq > q->req_rx.mask / 4)
		shm_rx_advance(q);
	else
		shm_activate(q);
}

/* --- completing ------------------------------------------------------------------ */

int shm_sq_done(struct shm_qp *q, const struct shm_swr *w)
{
	return w->op == XR_WR_READ ? w->done : xr_shm_msg_taken(&q->req_tx, &q->taken, w->end);
}

static void sq_push(struct shm_qp *q, const struct shm_swr *w, enum xr_wc_status status)
{
	struct xr_wc wc = { .wr_id = w->wr_id, .qp = &q->qp, .status = status,
			    .op = (enum xr_wr_op)w->op, .len = w->len };

	if (xr_unlikely(w->flags & (SHM_SEND_RNR | SHM_SEND_ECN)))
		wc.flags = (w->flags & SHM_SEND_RNR ? XR_WC_RNR : 0) | (w->flags & SHM_SEND_ECN ? XR_WC_ECN : 0);
	shm_cq_push(shm_cq(q->qp.send_cq), &wc);
}

int shm_sq_complete(struct shm_qp *q)
{
	int n = 0;

	while (q->sq_done != q->sq_sent) {
		struct shm_swr *w = &q->sq[q->sq_done & q->sq_mask];

		if (!shm_sq_done(q, w))
			break;
		if (w->flags & XR_SEND_SIGNALED) {
			if (!shm_cq_room(shm_cq(q->qp.send_cq)))
				break;
			sq_push(q, w, XR_WC_SUCCESS);
			q->sq_signalled--;
		}
		q->sq_done++;
		n++;
	}
	return n;
}

int shm_flush(struct shm_qp *q)
{
	struct shm_cq *sc = shm_cq(q->qp.send_cq), *rc = shm_cq(q->qp.recv_cq);
	int n = 0;

	/* what the peer had executed before is a success, the first other one has the reason */
	if (!q->flushing)
		n += shm_sq_complete(q);
	while (q->sq_done != q->sq_head && shm_cq_room(sc)) {
		struct shm_swr *w = &q->sq[q->sq_done & q->sq_mask];

		if (!q->flushing && q->sq_done != q->sq_sent && shm_sq_done(q, w))
			break;	/* complete, and no room to say so: room came since */
		sq_push(q, w, q->flushing || !q->err ? XR_WC_WR_FLUSH_ERR : q->err);
		q->flushing = 1;
		q->sq_done++;
		n++;
	}
	while (q->rq_done != q->rq_head && shm_cq_room(rc)) {
		struct shm_rwr *w = &q->rq[q->rq_done & q->rq_mask];
		struct xr_wc wc = { .wr_id = w->wr_id, .qp = &q->qp, .status = XR_WC_WR_FLUSH_ERR,
				    .op = XR_WR_RECV };

		shm_cq_push(rc, &wc);
		q->rq_done++;
		n++;
	}
	return n;
}
