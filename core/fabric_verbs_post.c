/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Posting.  A request that the user wants no word of still takes a place until the hardware tells of a later
 * one, so every so often it is made to.  What is posted in ERR is flushed here and never shown to the
 * hardware: not every device takes it.
 *
 * A request that others follow (XR_SEND_MORE) waits for them in the batch of its CQ: one doorbell serves all, a
 * write to the device, or a system call where it is emulated.  The next look at the CQ rings for what is left, so none
 * waits longer than its thread is busy.
 *
 * A device that is "hollow" says of a READ that has failed that it is done, although all or the end of what it was to
 * bring is missing.  A READ fills its memory from front to back, packet by packet: so what this end has written at its
 * very end before, where the last packet goes, and nobody else knows, must be gone.
 */
#include <string.h>
#include <time.h>
#include "atomic.h"
#include "fabric_verbs.h"

#define MARK_PACKET	256u	/* packets end at multiples of that, whatever the MTU is */
#define MARK_WAIT_NS	2000000		/* it tells of the READ a moment before it fails the queue pair */

static uint64_t post_id(const struct v_qp *q, uint32_t pos, uint64_t recv)
{
	return (uint64_t)q->index << 48 | (uint64_t)q->life << 33 | recv << 32 | pos;
}

static void mark_fill(const struct v_qp *q, uint32_t pos, uint8_t mark[V_MARK])
{
	uint64_t z = v_dev(q->qp.dev)->secret ^ post_id(q, pos, 0);
	uint32_t i;

	/* splitmix64: no two of them are the same */
	for (i = 0; i < V_MARK; i += 8) {
		uint64_t m = z += 0x9e3779b97f4a7c15u;

		m = (m ^ m >> 30) * 0xbf58476d1ce4e5b9u;
		m = (m ^ m >> 27) * 0x94d049bb133111ebu;
		m ^= m >> 31;
		memcpy(mark + i, &m, 8);
	}
}

static void post_mark(const struct v_qp *q, struct v_swr *s, const struct ibv_sge *last)
{
	uint32_t packet = (s->len - 1) % MARK_PACKET + 1, n = last->length < V_MARK ? last->length : V_MARK;
	uint8_t mark[V_MARK];

	mark_fill(q, q->sq_head, mark);
	s->mark_len = (uint8_t)(n < packet ? n : packet);
	s->mark = (uint8_t *)(uintptr_t)last->addr + last->length - s->mark_len;
	memcpy(s->was, s->mark, s->mark_len);
	memcpy(s->mark, mark, s->mark_len);
}

int v_mark_left(struct v_qp *q, uint32_t pos)
{
	const struct v_swr *s = &q->sq[pos & q->sq_mask];
	struct timespec wait = { 0, MARK_WAIT_NS };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	uint8_t mark[V_MARK];

	if (!s->mark)
		return 0;
	mark_fill(q, pos, mark);
	if (xr_likely(memcmp(s->mark, mark, s->mark_len)))
		return 0;
	if (s->mark_len >= V_MARK_SURE || !q->ib)
		return 1;
	/* so little may be the same by chance, but a queue pair that works has not failed */
	nanosleep(&wait, NULL);
	return ibv_query_qp(q->ib, &a, IBV_QP_STATE, &init) || a.qp_state != IBV_QPS_RTS;
}

void v_mark_undo(struct v_qp *q, uint32_t pos)
{
	struct v_swr *s = &q->sq[pos & q->sq_mask];
	uint8_t mark[V_MARK];

	if (!s->mark)
		return;
	mark_fill(q, pos, mark);
	if (!memcmp(s->mark, mark, s->mark_len))
		memcpy(s->mark, s->was, s->mark_len);
	s->mark = NULL;
}

void v_marks_forget(struct v_qp *q)
{
	uint32_t i;

	for (i = q->sq_done; i != q->sq_head; i++)
		q->sq[i & q->sq_mask].mark = NULL;
}

static int post_error(int r)
{
	r = v_errno(r);
	return r == -ENOMEM ? -EAGAIN : r;	/* a full queue, in words of the library */
}

/* The library looks at the key that a window has had when its next one is posted. */
static void key_posted(struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_BIND_MW)
		wr->bind_mw.mw->rkey = wr->bind_mw.rkey;
}

/* Posts the batch, and tail behind it.  -errno: tail was refused; what is in the batch has been promised. */
static int ring(struct v_cq *c, struct v_qp *q, struct ibv_send_wr *tail)
{
	struct ibv_send_wr *bad = NULL;
	uint32_t i, n = c->batched, gone;
	int r;

	for (i = 0; i < n; i++)
		c->batch[i].next = i + 1 < n ? &c->batch[i + 1] : tail;
	c->batched = 0;
	c->batch_qp = NULL;
	r = post_error(ibv_post_send(q->ib, n ? c->batch : tail, &bad));
	gone = !r || (tail && bad == tail) ? n : 0;
	/* a device that is gone does not say which, and may have them all in its queue */
	for (i = 0; r && i < n; i++)
		if (bad == &c->batch[i])
			gone = i;
	q->sq_hw += gone + (!r && tail);
	for (i = 0; i < gone; i++)
		key_posted(&c->batch[i]);
	if (!r && tail)
		key_posted(tail);
	if (!r || gone == n)
		return r;
	/* queued, and not in the hardware: it is flushed behind what is */
	xr_error("%u posts were refused: error %d", n - gone, -r);
	q->sq_head += tail != NULL;
	v_qp_fail(q, XR_WC_FATAL_ERR);
	q->sq_head -= tail != NULL;
	return 0;
}

void v_ring(struct v_cq *c)
{
	if (c->batched)
		ring(c, c->batch_qp, NULL);
}

static int post_hw(struct v_qp *q, struct ibv_send_wr *wr, struct v_swr *s, int more)
{
	struct v_cq *c = v_cq(q->qp.send_cq);
	uint32_t n;
	int r = 0;

	if (!s->signaled && ++q->quiet >= (q->attr.sq_depth + 1) / 2)
		s->signaled = 1;
	wr->wr_id = post_id(q, q->sq_head, 0);
	if (s->signaled)
		wr->send_flags |= IBV_SEND_SIGNALED;
	if (c->batched && (c->batch_qp != q || c->batched == V_BATCH))
		v_ring(c);
	if (more && !(wr->send_flags & IBV_SEND_INLINE)) {
		n = c->batched++;
		c->batch_qp = q;
		c->batch[n] = *wr;
		memcpy(c->batch_sge[n], wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
		c->batch[n].sg_list = c->batch_sge[n];
	} else {
		r = ring(c, q, wr);
	}
	if (r)
		return r;
	if (s->signaled)
		q->quiet = 0;
	q->sq_head++;
	return 0;
}

int v_post_window(struct v_qp *q, struct v_window *w, struct ibv_send_wr *wr, uint8_t op, int more)
{
	struct v_swr *s = &q->sq[q->sq_head & q->sq_mask];

	/* places that are left to the user's own requests */
	if (q->sq_head - q->sq_done + (q->attr.sq_depth - q->out) >= q->sq_depth)
		return -EAGAIN;
	if (q->qp.state != XR_QPS_RTS)
		return -EINVAL;
	*s = (struct v_swr){ .op = op, .window = w, .signaled = op == V_OP_CLOSE };
	return post_hw(q, wr, s, more);
}

/* What ended well and was to be silent about it shows by what is flushed behind it. */
int v_post_last(struct v_qp *q)
{
	struct v_swr *s = &q->sq[q->sq_head & q->sq_mask];
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	/* it would not be the last */
	if (q->sq_hw != q->sq_head)
		return -EAGAIN;
	if (q->sq_hw == q->sq_done || q->sq[(q->sq_hw - 1) & q->sq_mask].signaled)
		return 0;
	*s = (struct v_swr){ .op = V_OP_LAST, .signaled = 1 };
	return post_hw(q, &wr, s, 0);
}

static const enum ibv_wr_opcode opcode[] = {
	[XR_WR_SEND] = IBV_WR_SEND,
	[XR_WR_SEND_IMM] = IBV_WR_SEND_WITH_IMM,
	[XR_WR_WRITE] = IBV_WR_RDMA_WRITE,
	[XR_WR_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
	[XR_WR_READ] = IBV_WR_RDMA_READ,
};

int v_post_send(struct xr_qp *qp, const struct xr_send_wr *x)
{
	struct v_qp *q = v_qp(qp);
	struct v_swr *s = &q->sq[q->sq_head & q->sq_mask];
	struct ibv_send_wr wr = { .num_sge = (int)x->nsge };
	struct ibv_sge sge[V_MAX_SGE];
	uint64_t len = 0;
	uint32_t i, n = 0;

	if (xr_unlikely(qp->state != XR_QPS_RTS && qp->state != XR_QPS_ERR))
		return -EINVAL;
	if (xr_unlikely(x->op > XR_WR_READ || x->nsge > V_MAX_SGE ||
			(x->op == XR_WR_READ && (x->flags & XR_SEND_INLINE))))
		return -EINVAL;
	for (i = 0; i < x->nsge; i++) {
		len += x->sge[i].len;
		/* an empty piece would have its key looked at, or mean 2 GiB */
		if (x->sge[i].len)
			sge[n++] = (struct ibv_sge){ (uintptr_t)x->sge[i].addr, x->sge[i].len, x->sge[i].lkey };
	}
	if (xr_unlikely(len > ((x->flags & XR_SEND_INLINE) ? v_dev(qp->dev)->max_inline : 1u << 30)))
		return -EMSGSIZE;
	if (xr_unlikely(q->out >= q->attr.sq_depth || q->sq_head - q->sq_done >= q->sq_depth)) {
		q->refused = 1;
		return -EAGAIN;
	}
	*s = (struct v_swr){ .wr_id = x->wr_id, .len = (uint32_t)len, .op = (uint8_t)x->op };
	s->report = s->signaled = q->attr.sig_all || (x->flags & XR_SEND_SIGNALED);
	if (v_dev(qp->dev)->quirk->silent && !(x->flags & XR_SEND_INLINE))
		for (i = 0; i < x->nsge; i++)
			s->bad |= (uint8_t)v_key_bad(v_dev(qp->dev), &x->sge[i], x->op == XR_WR_READ);
	q->out++;
	if (xr_unlikely(qp->state == XR_QPS_ERR)) {
		q->sq_head++;
		v_flush_rest(q);
		return 0;
	}
	if (x->op == XR_WR_READ && v_dev(qp->dev)->quirk->hollow && n && !s->bad)
		post_mark(q, s, &sge[n - 1]);
	wr.sg_list = sge;
	wr.num_sge = (int)n;
	wr.opcode = opcode[x->op];
	if ((x->flags & XR_SEND_INLINE) && len)
		wr.send_flags |= IBV_SEND_INLINE;
	if (x->flags & XR_SEND_FENCE)
		wr.send_flags |= IBV_SEND_FENCE;
	wr.imm_data = htobe32(x->imm);
	wr.wr.rdma.remote_addr = x->raddr;
	wr.wr.rdma.rkey = x->rkey;
	i = (uint32_t)post_hw(q, &wr, s, (x->flags & XR_SEND_MORE) != 0);
	if (xr_unlikely(i)) {
		q->out--;
		v_mark_undo(q, q->sq_head);
	}
	return (int)i;
}

int v_post_recv_hw(struct v_qp *q, uint32_t pos)
{
	const struct v_rwr *w = &q->rq[pos & q->rq_mask];
	struct ibv_sge sge = { (uintptr_t)w->addr, w->len, w->lkey };
	struct ibv_recv_wr wr = { .wr_id = post_id(q, pos, 1), .sg_list = &sge, .num_sge = w->len != 0 }, *bad;

	return post_error(ibv_post_recv(q->ib, &wr, &bad));
}

int v_post_recv(struct xr_qp *qp, const struct xr_recv_wr *x)
{
	struct v_qp *q = v_qp(qp);
	struct v_rwr *w = &q->rq[q->rq_head & q->rq_mask];
	int r;

	if (xr_unlikely(qp->state == XR_QPS_RESET || (!x->sge.addr && x->sge.len)))
		return -EINVAL;
	if (xr_unlikely(q->rq_head - q->rq_done >= q->attr.rq_depth))
		return -EAGAIN;
	*w = (struct v_rwr){ .wr_id = x->wr_id, .addr = x->sge.addr, .len = x->sge.len, .lkey = x->sge.lkey };
	if (v_dev(qp->dev)->quirk->silent)
		w->bad = (uint8_t)v_key_bad(v_dev(qp->dev), &x->sge, 1);
	if (xr_unlikely(qp->state == XR_QPS_ERR)) {
		q->rq_head++;
		v_flush_rest(q);
		return 0;
	}
	r = v_post_recv_hw(q, q->rq_head);
	if (!r)
		q->rq_hw = ++q->rq_head;
	return r;
}

/* There is no receive by reference: the memory was the user's all the time. */
void v_recv_release(struct xr_qp *qp, uint32_t ref)
{
	(void)qp;
	(void)ref;
}
