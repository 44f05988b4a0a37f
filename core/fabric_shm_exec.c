/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The responder's half of a queue pair of the shm device: the peer's requests go into
 * posted receives and registered memory, its READs are answered, what cannot be done
 * is refused.
 *
 * All that is read from the peer's memory is a checked private copy (shm_msg.h); the
 * payload itself may change while it is copied, which only hurts what the peer sent.
 */
#include <errno.h>
#include "copy.h"
#include "fabric_shm.h"
#include "log.h"

#define RNR_DEFAULT_US	10u

/* Outcome of executing a slot. */
enum { EXEC_STALL, EXEC_DONE, EXEC_HELD, EXEC_FAILED };

/* in_msg: whose pieces are arriving */
enum { IN_SEND = 1, IN_WRITE = 2 };

/* --- answering READs ------------------------------------------------------------- */

static int exec_nak(struct shm_qp *q, uint32_t status, uint32_t seq)
{
	struct xr_msg m = { .op = XR_OP_NAK, .flags = XR_SLOT_EOM, .arg = status, .raddr = seq,
			    .wr = q->attr.min_rnr_timer_us ? q->attr.min_rnr_timer_us : RNR_DEFAULT_US };
	int r = xr_shm_msg_post(&q->resp_tx, &m, NULL, 0);

	if (!r)
		shm_doorbell(q, &q->resp_tx);
	return r;
}

int shm_respond(struct shm_qp *q)
{
	int n = 0, r = 0;

	while (q->rd_done != q->rd_head) {
		struct shm_read *rd = &q->rd[q->rd_done % SHM_MAX_RD];
		uint32_t left = rd->len - rd->off, k = left > XR_PUBLISH ? XR_PUBLISH : left;
		struct xr_msg m = { .op = XR_OP_READ_RESP };
		struct iovec iov;

		iov.iov_base = shm_key_check(shm_dev(q->qp.dev), rd->rkey, rd->raddr + rd->off, k,
					     XR_ACCESS_REMOTE_READ, q, 1);
		iov.iov_len = k;
		if (!iov.iov_base && k) {
			/* closed while it was read */
			exec_nak(q, XR_WC_REM_ACCESS_ERR, 0);
			shm_qp_fail(q, XR_WC_WR_FLUSH_ERR);
			return n;
		}
		m.len = k;
		m.flags = k == left ? XR_SLOT_EOM : 0;
		r = xr_shm_msg_post(&q->resp_tx, &m, &iov, 0);
		if (r == -ENOBUFS) {
			/* slow, and never stuck */
			m.len = xr_shm_msg_inline(XR_OP_READ_RESP, 0);
			m.flags = 0;
			r = xr_shm_msg_post(&q->resp_tx, &m, &iov, 0);
		}
		if (r)
			break;
		n++;
		rd->off += m.len;
		if (m.flags & XR_SLOT_EOM)
			q->rd_done++;
	}
	if (n)
		shm_doorbell(q, &q->resp_tx);
	return n;
}

/* --- executing the peer's requests ------------------------------------------------- */

int shm_exec_rnr(struct shm_qp *q)
{
	if (!q->rnr_told && !exec_nak(q, SHM_NAK_RNR, q->req_seq))
		q->rnr_told = 1;
	return EXEC_STALL;
}

/* Refuses slot req_seq; local: status of the receive that it had begun to fill. */
static int exec_refuse(struct shm_qp *q, enum xr_wc_status nak, enum xr_wc_status local)
{
	/* in order: the answers to earlier READs go out first */
	if (q->rd_done != q->rd_head)
		return EXEC_STALL;
	if (local != XR_WC_SUCCESS) {
		struct shm_rwr *w = &q->rq[q->rq_done & q->rq_mask];
		struct xr_wc wc = { .wr_id = w->wr_id, .qp = &q->qp, .status = local,
				    .op = XR_WR_RECV };

		if (!shm_cq_room(shm_cq(q->qp.recv_cq)))
			return EXEC_STALL;
		shm_cq_push(shm_cq(q->qp.recv_cq), &wc);
		q->rq_done++;
	}
	/* the sender's earlier requests are complete: say so before the refusal */
	shm_rx_advance(q);
	exec_nak(q, nak, q->req_seq);
	xr_info("refused a request of process %d: %s", q->peer->link->peer_pid,
		xr_wc_status_name(nak));
	shm_qp_fail(q, XR_WC_WR_FLUSH_ERR);
	return EXEC_FAILED;
}

static int exec_send(struct shm_qp *q, const struct xr_msg *m)
{
	struct shm_cq *cq = shm_cq(q->qp.recv_cq);
	struct shm_rwr *w = &q->rq[q->rq_done & q->rq_mask];
	int last = m->flags & XR_SLOT_EOM;
	struct xr_wc wc;
	uint8_t *to;

	if (!last && !m->len) {
		shm_nonsense(q, "empty piece of a message");
		return EXEC_FAILED;
	}
	if (q->rq_done == q->rq_head)
		return shm_exec_rnr(q);
	if (last && !shm_cq_room(cq)) {
		q->stalled = 1;
		return EXEC_STALL;
	}
	q->rnr_told = 0;
	wc.data = w->addr;
	wc.ref = 0;
	if (!w->addr) {
		if (!last || q->in_msg)
			return exec_refuse(q, XR_WC_REM_INV_REQ_ERR, XR_WC_LOC_LEN_ERR);
		wc.data = (void *)(uintptr_t)m->data;
		wc.ref = m->len ? (q->req_seq & q->req_rx.mask) + 1 : 0;
	} else {
		if (!q->in_msg)
			q->msg_len = 0;
		if (m->len > w->len - q->msg_len)
			return exec_refuse(q, XR_WC_REM_INV_REQ_ERR, XR_WC_LOC_LEN_ERR);
		to = shm_key_check(shm_dev(q->qp.dev), w->lkey, (uintptr_t)w->addr + q->msg_len, m->len,
				   XR_ACCESS_LOCAL_WRITE, q, 0);
		if (!to && m->len)
			return exec_refuse(q, XR_WC_REM_OP_ERR, XR_WC_LOC_PROT_ERR);
		if (m->len)
			xr_copy(to, m->data, m->len);
		q->msg_len += m->len;
		q->in_msg = last ? 0 : IN_SEND;
		if (!last)
			return EXEC_DONE;
	}
	wc.wr_id = w->wr_id;
	wc.qp = &q->qp;
	wc.status = XR_WC_SUCCESS;
	wc.op = XR_WR_RECV;
	wc.len = w->addr ? q->msg_len : m->len;
	wc.flags = m->flags & XR_SLOT_IMM ? XR_WC_WITH_IMM : 0;
	wc.imm = m->flags & XR_SLOT_IMM ? (uint32_t)m->arg : 0;
	if (xr_unlikely(shm_dev(q->qp.dev)->fault) && shm_fault_marks(q))
		wc.flags |= XR_WC_ECN;
	shm_cq_push(cq, &wc);
	q->rq_done++;
	return wc.ref ? EXEC_HELD : EXEC_DONE;
}

static int exec_write(struct shm_qp *q, const struct xr_msg *m)
{
	struct shm_cq *cq = shm_cq(q->qp.recv_cq);
	uint8_t *to;

	if (m->op == XR_OP_WRITE_IMM) {
		if (q->rq_done == q->rq_head)
			return shm_exec_rnr(q);
		if (!shm_cq_room(cq)) {
			q->stalled = 1;
			return EXEC_STALL;
		}
		q->rnr_told = 0;
	}
	/* the whole of what is announced must be ours to write, not just this piece */
	to = shm_key_check(shm_dev(q->qp.dev), m->rkey, m->raddr, m->wr, XR_ACCESS_REMOTE_WRITE, q, 1);
	if (m->wr < m->len || (!to && m->wr))
		return exec_refuse(q, XR_WC_REM_ACCESS_ERR, XR_WC_SUCCESS);
	if (m->len)
		xr_copy(to, m->data, m->len);
	if (!q->in_msg)
		q->msg_len = 0;
	q->msg_len += m->len;
	q->in_msg = m->flags & XR_SLOT_EOM ? 0 : IN_WRITE;
	if (m->op == XR_OP_WRITE_IMM) {
		struct shm_rwr *w = &q->rq[q->rq_done & q->rq_mask];
		struct xr_wc wc = { .wr_id = w->wr_id, .qp = &q->qp, .op = XR_WR_RECV_WRITE_IMM,
				    .len = q->msg_len, .imm = (uint32_t)m->arg,
				    .flags = XR_WC_WITH_IMM };

		shm_cq_push(cq, &wc);
		q->rq_done++;
	}
	return EXEC_DONE;
}

static int exec_read(struct shm_qp *q, const struct xr_msg *m)
{
	struct shm_read *rd = &q->rd[q->rd_head % SHM_MAX_RD];

	if (q->rd_head - q->rd_done == SHM_MAX_RD)
		return EXEC_STALL;
	if (m->wr > SHM_MAX_MSG)
		return exec_refuse(q, XR_WC_REM_INV_REQ_ERR, XR_WC_SUCCESS);
	if (m->wr && !shm_key_check(shm_dev(q->qp.dev), m->rkey, m->raddr, m->wr, XR_ACCESS_REMOTE_READ, q, 1))
		return exec_refuse(q, XR_WC_REM_ACCESS_ERR, XR_WC_SUCCESS);
	rd->raddr = m->raddr;
	rd->rkey = m->rkey;
	rd->len = (uint32_t)m->wr;
	rd->off = 0;
	q->rd_head++;
	return EXEC_DONE;
}

static int exec_slot(struct shm_qp *q, const struct xr_msg *m)
{
	int kind = m->op == XR_OP_SEND ? IN_SEND :
		   m->op == XR_OP_WRITE || m->op == XR_OP_WRITE_IMM ? IN_WRITE : 0;

	/* pieces of one message follow each other */
	if (q->in_msg && q->in_msg != kind) {
		shm_nonsense(q, "message within a message");
		return EXEC_FAILED;
	}
	if (kind == IN_SEND)
		return exec_send(q, m);
	if (kind == IN_WRITE)
		return exec_write(q, m);
	if (m->op == XR_OP_READ)
		return exec_read(q, m);
	shm_nonsense(q, "not a request");
	return EXEC_FAILED;
}

void shm_rx_advance(struct shm_qp *q)
{
	while (q->rel_seq != q->req_seq && !q->held[q->rel_seq & q->req_rx.mask])
		q->rel_seq++;
	q->rel_due = 0;
	if (xr_shm_msg_advance(&q->req_rx, q->req_seq, q->rel_seq)) {
		shm_nonsense(q, "position overwritten");
		return;
	}
	shm_notice(q, &q->req_rx);
}

int shm_execute(struct shm_qp *q)
{
	struct xr_msg m;
	int n, r = 0;

	q->stalled = 0;
	for (n = 0; n < SHM_BUDGET; n++) {
		if (q->gone && (int32_t)(q->req_seq - q->limit) >= 0)
			break;
		r = xr_shm_msg_look(&q->req_rx, q->req_seq, &m);
		if (r <= 0)
			break;
		if (xr_unlikely(shm_dev(q->qp.dev)->fault) && shm_fault_execute(q, m.op == XR_OP_SEND)) {
			r = 0;
			break;
		}
		r = exec_slot(q, &m);
		if (r == EXEC_STALL || r == EXEC_FAILED)
			break;
		if (r == EXEC_HELD)
			q->held_count++;
		q->held[q->req_seq & q->req_rx.mask] = r == EXEC_HELD;
		q->req_seq++;
	}
	if (xr_unlikely(r < 0))
		shm_nonsense(q, "bad slot");
	/* as COMM_EST does: whoever sends has seen the acceptance, the RTU may come later */
	if (xr_unlikely(n && q->qp.state == XR_QPS_RTR))
		shm_cm_established(q);
	if ((n || q->rel_due) && q->qp.state != XR_QPS_ERR)
		shm_rx_advance(q);
	return n;
}
