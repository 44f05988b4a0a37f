/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The requester's half of a queue pair of the shm device: its requests into the
 * request ring, what the peer answers, and what drives both halves.
 *
 * All that is read from the peer's memory is a checked private copy (shm_msg.h); the
 * payload itself may change while it is copied, which only hurts what the peer sent.
 */
#include <errno.h>
#include "copy.h"
#include "fabric_shm.h"
#include "log.h"

void shm_doorbell(struct shm_qp *q, struct xr_shm_tx *tx)
{
	uint32_t w;

	q->bell_due = 0;
	if (xr_likely(!xr_shm_tx_armed(tx, &w)))
		return;
	if (xr_unlikely(xr_shm_link_notify(q->peer->link, w, q->peer_num) == -ENOENT)) {
		struct shm_cm_msg m = { .src = q->qp.num, .dst = q->peer_num };

		shm_peer_send(q->peer, &m, SHM_CM_NUDGE);
	}
}

void shm_notice(struct shm_qp *q, struct xr_shm_rx *rx)
{
	uint32_t w;

	if (xr_unlikely(xr_shm_rx_wants_notice(rx, &w)) &&
	    xr_shm_link_notify(q->peer->link, w, q->peer_num) == -ENOENT) {
		struct shm_cm_msg m = { .src = q->qp.num, .dst = q->peer_num };

		shm_peer_send(q->peer, &m, SHM_CM_NUDGE);
	}
}

void shm_nonsense(struct shm_qp *q, const char *what)
{
	xr_warn("peer process %d broke the protocol: %s", q->peer->link->peer_pid, what);
	shm_qp_fail(q, XR_WC_FATAL_ERR);
}

/* --- sending --------------------------------------------------------------------- */

static int emit_piece(struct shm_qp *q, struct shm_swr *w, uint32_t n)
{
	struct xr_msg m = { .len = n };
	int last = w->moved + n == w->len, r;

	switch (w->op) {
	case XR_WR_SEND:
	case XR_WR_SEND_IMM:
		m.op = XR_OP_SEND;
		break;
	case XR_WR_WRITE:
	case XR_WR_WRITE_IMM:
		m.op = last && w->op == XR_WR_WRITE_IMM ? XR_OP_WRITE_IMM : XR_OP_WRITE;
		m.raddr = w->raddr + w->moved;
		m.rkey = w->rkey;
		m.wr = w->len - w->moved;
		break;
	}
	if (last) {
		m.flags = XR_SLOT_EOM;
		if (w->op == XR_WR_SEND_IMM || w->op == XR_WR_WRITE_IMM) {
			m.flags |= XR_SLOT_IMM;
			m.arg = w->imm;
		}
	}
	r = xr_shm_msg_post(&q->req_tx, &m, w->iov, w->moved);
	if (r)
		return r;
	w->moved += n;
	w->end = q->req_tx.head;
	return 0;
}

/* All of a payload of at most one chunk in one slot: what a post copies. */
int shm_emit_inline(struct shm_qp *q, struct shm_swr *w)
{
	int r = emit_piece(q, w, w->len);

	q->starved = r == -ENOBUFS;
	return r;
}

static int emit_read(struct shm_qp *q, struct shm_swr *w)
{
	struct xr_msg m = { .op = XR_OP_READ, .flags = XR_SLOT_EOM, .raddr = w->raddr,
			    .rkey = w->rkey, .wr = w->len };
	int r;

	if (q->reads >= q->attr.max_rd_atomic)
		return -EAGAIN;
	r = xr_shm_msg_post(&q->req_tx, &m, w->iov, 0);
	if (r)
		return r;
	w->end = q->req_tx.head;
	if (!q->reads++)
		q->read_next = q->sq_sent;
	return 0;
}

/* The whole of a request, as far as there is room.  A SEND's pieces are as large as can be. */
static int emit_wr(struct shm_qp *q, struct shm_swr *w)
{
	uint32_t grain = w->op == XR_WR_SEND || w->op == XR_WR_SEND_IMM ? XR_CHUNK : XR_PUBLISH;
	int r;

	if (w->op == XR_WR_READ)
		return emit_read(q, w);
	do {
		uint32_t n = w->len - w->moved;

		r = emit_piece(q, w, n > grain ? grain : n);
	} while (!r && w->moved < w->len);
	return r;
}

int shm_sq_emit(struct shm_qp *q)
{
	uint32_t head = q->req_tx.head;

	q->starved = 0;
	while (q->sq_sent != q->sq_head) {
		struct shm_swr *w = &q->sq[q->sq_sent & q->sq_mask];
		int r;

		if (xr_unlikely(w->status)) {
			/* its error is the QP's first only when all before it went well */
			shm_sq_complete(q);
			if (q->sq_done == q->sq_sent)
				shm_qp_fail(q, w->status);
			break;
		}
		if ((w->flags & XR_SEND_FENCE) && q->reads)
			break;
		if (xr_unlikely(shm_dev(q->qp.dev)->fault) && shm_fault_send(q, w)) {
			if (w->status)
				continue;
			break;
		}
		r = emit_wr(q, w);
		if (r) {
			q->starved = r == -ENOBUFS;
			break;
		}
		if (xr_unlikely(shm_dev(q->qp.dev)->fault)) {
			/* a device that is broken so must not harm: the same slot once more */
			if (q->fate.duplicate && w->op == XR_WR_SEND && w->len <= XR_CHUNK) {
				w->moved = 0;
				emit_piece(q, w, w->len);
			}
			shm_fault_sent(q);
		}
		q->sq_sent++;
	}
	return q->req_tx.head != head;
}

/* --- answers to our own requests ---------------------------------------------------- */

static struct shm_swr *io_read_find(struct shm_qp *q)
{
	/* what is complete may have been overwritten by later posts */
	if ((int32_t)(q->sq_done - q->read_next) > 0)
		q->read_next = q->sq_done;
	for (; q->read_next != q->sq_sent; q->read_next++) {
		struct shm_swr *w = &q->sq[q->read_next & q->sq_mask];

		if (w->op == XR_WR_READ && !w->done)
			return w;
	}
	return NULL;
}

static void io_read_data(struct shm_qp *q, const struct xr_msg *m)
{
	struct shm_swr *w = q->reads ? io_read_find(q) : NULL;
	int last = m->flags & XR_SLOT_EOM;
	uint32_t n = m->len, i, skip;
	const uint8_t *p = m->data;

	if (!w || n > w->len - w->moved || (!n && !last) || (last && w->moved + n != w->len)) {
		shm_nonsense(q, "unasked data");
		return;
	}
	skip = w->moved;
	for (i = 0; n; i++) {
		uint32_t room = (uint32_t)w->iov[i].iov_len, k;

		if (skip >= room) {
			skip -= room;
			continue;
		}
		k = room - skip < n ? room - skip : n;
		xr_copy((uint8_t *)w->iov[i].iov_base + skip, p, k);
		p += k;
		n -= k;
		skip = 0;
	}
	w->moved += m->len;
	if (xr_unlikely(shm_dev(q->qp.dev)->fault) && shm_fault_marks(q))
		w->flags |= SHM_SEND_ECN;
	if (last) {
		w->done = 1;
		q->reads--;
		q->read_next++;
	}
}

static void io_refused(struct shm_qp *q, const struct xr_msg *m)
{
	uint32_t seq = (uint32_t)m->raddr, status = (uint32_t)m->arg;

	if (status != SHM_NAK_RNR) {
		if (status != XR_WC_REM_INV_REQ_ERR && status != XR_WC_REM_OP_ERR)
			status = XR_WC_REM_ACCESS_ERR;
		/* all before it has been executed, so the first that is not complete is meant */
		shm_sq_complete(q);
		shm_qp_fail(q, status);
		return;
	}
	/* nothing of ours is there, or it is taken by now: a refusal that came late */
	if (seq - q->req_tx.done >= q->req_tx.head - q->req_tx.done ||
	    xr_shm_msg_taken(&q->req_tx, &q->taken, seq + 1))
		return;
	shm_sq_complete(q);
	if (q->sq_done != q->sq_sent)
		q->sq[q->sq_done & q->sq_mask].flags |= SHM_SEND_RNR;
	if (q->attr.rnr_retry == 7)
		return;
	q->rnr_seq = seq;
	q->rnr_count = 1;
	q->rnr_us = m->wr > 1000000 ? 1000000 : (uint32_t)m->wr;
	if (!q->attr.rnr_retry)
		shm_qp_fail(q, XR_WC_RNR_RETRY_EXC_ERR);
	else
		q->rnr_deadline = xr_now_ns() + q->rnr_us * 1000ull;
}

/* The receiver looks by itself when a receive is posted; what is counted here is time. */
static void io_rnr_timer(struct shm_qp *q)
{
	uint64_t now;

	if (xr_shm_msg_taken(&q->req_tx, &q->taken, q->rnr_seq + 1)) {
		q->rnr_deadline = 0;
		return;
	}
	now = xr_now_ns();
	if (now < q->rnr_deadline)
		return;
	if (++q->rnr_count > q->attr.rnr_retry)
		shm_qp_fail(q, XR_WC_RNR_RETRY_EXC_ERR);
	else
		q->rnr_deadline = now + q->rnr_us * 1000ull;
}

static int io_responses(struct shm_qp *q)
{
	struct xr_msg m;
	int n = 0, r = 0;

	while (n < SHM_BUDGET && q->qp.state != XR_QPS_ERR) {
		r = xr_shm_msg_look(&q->resp_rx, q->resp_seq, &m);
		if (r <= 0)
			break;
		if (m.op == XR_OP_READ_RESP)
			io_read_data(q, &m);
		else if (m.op == XR_OP_NAK)
			io_refused(q, &m);
		else
			shm_nonsense(q, "not an answer");
		q->resp_seq++;
		n++;
	}
	if (xr_unlikely(r < 0))
		shm_nonsense(q, "bad slot");
	if (n && q->qp.state != XR_QPS_ERR) {
		if (xr_shm_msg_advance(&q->resp_rx, q->resp_seq, q->resp_seq))
			shm_nonsense(q, "position overwritten");
		else
			shm_notice(q, &q->resp_rx);
	}
	return n;
}

/* --- driving ----------------------------------------------------------------------- */

/* The peer has ended: when nothing that it had sent can be delivered any more, so do we. */
static int io_gone(struct shm_qp *q, int moved, int had)
{
	struct xr_msg m;

	if (moved || q->stalled)
		return moved;
	/* nobody waits for answers, and what stalled behind them goes on */
	if (q->rd_done != q->rd_head) {
		q->rd_done = q->rd_head;
		return 1;
	}
	/* a message without a receive: the program polled everything and posted none */
	if ((int32_t)(q->req_seq - q->limit) < 0 &&
	    xr_shm_msg_look(&q->req_rx, q->req_seq, &m) == 1 &&
	    (q->rq_done != q->rq_head || had))
		return 0;
	shm_qp_fail(q, q->gone);
	return 1;
}

int shm_qp_progress(struct shm_qp *q)
{
	struct shm_cq *rcq = shm_cq(q->qp.recv_cq);
	uint32_t had = rcq->tail - rcq->head;
	int n;

	if (xr_unlikely(q->qp.state == XR_QPS_ERR))
		return shm_flush(q);
	if (xr_unlikely(q->qp.state < XR_QPS_RTR))
		return 0;
	n = shm_execute(q);
	/* a refusal needs no READ and no signal to come */
	if (q->sq_done != q->sq_sent)
		n += io_responses(q);
	if (q->rd_done != q->rd_head)
		n += shm_respond(q);
	if (q->qp.state == XR_QPS_ERR)
		return n + shm_flush(q);
	if (q->sq_sent != q->sq_head && shm_sq_emit(q)) {
		q->bell_due = 1;
		n++;
	}
	if (q->qp.state != XR_QPS_ERR && (q->sq_signalled || q->sq_head - q->sq_done > q->sq_mask / 2))
		n += shm_sq_complete(q);
	if (q->bell_due)
		shm_doorbell(q, &q->req_tx);
	if (xr_unlikely(q->rnr_deadline))
		io_rnr_timer(q);
	if (xr_unlikely(q->gone && q->qp.state != XR_QPS_ERR))
		n = io_gone(q, n, had != 0);
	if (q->qp.state == XR_QPS_ERR)
		n += shm_flush(q);
	return n;
}

/* The slot whose end a sleeping sender waits for: the first reported one, or room. */
static uint32_t arm_slot(const struct shm_qp *q)
{
	uint32_t i;

	if (q->sq_sent != q->sq_head || q->want_room == SHM_ROOM_RING)
		return q->req_tx.done + 1;
	if (q->want_room == SHM_ROOM_SQ && q->sq_done != q->sq_sent)
		return q->sq[q->sq_done & q->sq_mask].end;
	for (i = q->sq_done; i != q->sq_sent; i++) {
		const struct shm_swr *w = &q->sq[i & q->sq_mask];

		if (w->op != XR_WR_READ && (w->flags & XR_SEND_SIGNALED))
			return w->end;
	}
	return q->req_tx.done + 1;
}

int shm_qp_arm(struct shm_qp *q)
{
	struct xr_msg m;
	uint32_t slot;

	if (q->qp.state == XR_QPS_ERR)
		return (q->sq_done != q->sq_head && shm_cq_room(shm_cq(q->qp.send_cq))) ||
		       (q->rq_done != q->rq_head && shm_cq_room(shm_cq(q->qp.recv_cq)));
	if (q->qp.state < XR_QPS_RTR)
		return 0;
	if (q->gone || q->stalled)
		return 1;
	if (q->rel_due)
		shm_rx_advance(q);
	xr_shm_rx_arm(&q->req_rx, SHM_WAITER);
	xr_shm_rx_arm(&q->resp_rx, SHM_WAITER);
	if (xr_shm_msg_look(&q->req_rx, q->req_seq, &m) && !q->rnr_told && !q->rx_hold &&
	    q->rd_head - q->rd_done < SHM_MAX_RD)
		return 1;
	if (xr_shm_msg_look(&q->resp_rx, q->resp_seq, &m) && q->sq_done != q->sq_sent)
		return 1;
	if (q->rd_done != q->rd_head) {
		uint64_t before = xr_load_acquire(&q->resp_tx.dir->consumed);

		xr_shm_msg_want(&q->resp_tx, q->resp_tx.done + 1, SHM_WAITER);
		if (xr_load_acquire(&q->resp_tx.dir->consumed) != before || shm_respond(q))
			return 1;
	}
	if (q->sq_signalled || q->sq_sent != q->sq_head || q->want_room) {
		slot = arm_slot(q);
		xr_shm_msg_want(&q->req_tx, slot, SHM_WAITER);
		/* acquire: as in reclaim; the post that failed had brought `done` up to date */
		if (q->want_room == SHM_ROOM_RING && XR_CONSUMED_SEQ(xr_load_acquire(&q->req_tx.dir->consumed)) !=
		    q->req_tx.done)
			return 1;
		if (q->sq_done != q->sq_sent && shm_sq_done(q, &q->sq[q->sq_done & q->sq_mask]) &&
		    shm_cq_room(shm_cq(q->qp.send_cq)))
			return 1;
		if (q->sq_sent != q->sq_head && shm_sq_emit(q)) {
			q->bell_due = 1;
			return 1;
		}
	}
	return 0;
}
