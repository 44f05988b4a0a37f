/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults of the shm device; what they are stands in fabric_shm_fault.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fabric_shm.h"
#include "fabric_shm_fault.h"

struct shm_fault {
	struct xr_shm_fault f;
	struct xr_shm_fault_count n;
	uint64_t rng;
};

int xr_shm_fault_set(struct xr_dev *dev, const struct xr_shm_fault *f)
{
	struct shm_dev *d = shm_dev(dev);
	struct shm_fault *x = NULL;

	if (strcmp(dev->ops->name, "shm"))
		return -EINVAL;
	if (f) {
		const uint32_t share[] = { f->drop, f->delay, f->reorder, f->duplicate, f->fail, f->kill,
					   f->rnr, f->ecn };
		size_t i;

		for (i = 0; i < XR_ARRAY_LEN(share); i++)
			if (share[i] > XR_FAULT_ALWAYS)
				return -EINVAL;
		x = calloc(1, sizeof(*x));
		if (!x)
			return -ENOMEM;
		x->f = *f;
		x->rng = f->seed * 0x9e3779b97f4a7c15ull | 1;
	}
	shm_fault_end(d);
	d->fault = x;
	return 0;
}

void xr_shm_fault_count(struct xr_dev *dev, struct xr_shm_fault_count *c)
{
	memset(c, 0, sizeof(*c));
	if (shm_dev(dev)->fault)
		*c = shm_dev(dev)->fault->n;
}

/* What was held back goes on. */
void shm_fault_end(struct shm_dev *d)
{
	uint32_t i;

	free(d->fault);
	d->fault = NULL;
	for (i = 0; i < d->qp_room; i++) {
		struct shm_qp *q = d->qps[i];

		if (!q)
			continue;
		q->tx_hold = q->rx_hold = 0;
		q->fate.seq = q->fault_seq = 0;
		shm_activate(q);
	}
}

static int chance(struct shm_fault *x, uint32_t share, uint64_t *count)
{
	if (!share)
		return 0;
	x->rng ^= x->rng << 13;
	x->rng ^= x->rng >> 7;
	x->rng ^= x->rng << 17;
	if ((uint32_t)(x->rng >> 40 & 0xffff) >= share)
		return 0;
	(*count)++;
	return 1;
}

static uint64_t later(uint32_t us)
{
	return xr_now_ns() + us * 1000ull;
}

/* A request that was not thrown for yet. */
static void fate_of(struct shm_qp *q, struct shm_fault *x)
{
	struct shm_fate *t = &q->fate;

	memset(t, 0, sizeof(*t));
	t->seq = q->sq_sent + 1;
	q->tx_hold = 0;
	if (x->n.sent < x->f.after)
		return;
	if (chance(x, x->f.kill, &x->n.kill)) {
		shm_qp_fail(q, XR_WC_WR_FLUSH_ERR);
		return;
	}
	t->fail = (uint8_t)chance(x, x->f.fail, &x->n.fail);
	t->duplicate = (uint8_t)chance(x, x->f.duplicate, &x->n.duplicate);
	t->reorder = (uint8_t)chance(x, x->f.reorder, &x->n.reorder);
	t->others = x->n.sent;
	while (t->tries <= x->f.retries && chance(x, x->f.drop, &x->n.drop))
		t->tries++;
	if (t->tries)
		q->tx_hold = later(t->tries * x->f.rto_us);
	else if (t->reorder)
		q->tx_hold = later(x->f.delay_us);
	else if (x->f.delay_us && chance(x, x->f.delay, &x->n.delay))
		q->tx_hold = later((uint32_t)(x->rng >> 8) % (x->f.delay_us + 1));
}

int shm_fault_send(struct shm_qp *q, struct shm_swr *w)
{
	struct shm_fault *x = shm_dev(q->qp.dev)->fault;
	struct shm_fate *t = &q->fate;

	if (t->seq != q->sq_sent + 1)
		fate_of(q, x);
	if (q->qp.state == XR_QPS_ERR)
		return 1;
	if (q->tx_hold && (!t->reorder || t->tries || x->n.sent == t->others) && xr_now_ns() < q->tx_hold)
		return 1;
	q->tx_hold = 0;
	if (t->fail)
		w->status = (uint8_t)x->f.status;
	if (t->tries > x->f.retries)
		w->status = XR_WC_RETRY_EXC_ERR;
	/* an inline request cannot go twice, and a status is for the queue to tell */
	return w->status || (t->duplicate && (w->flags & XR_SEND_INLINE));
}

void shm_fault_sent(struct shm_qp *q)
{
	shm_dev(q->qp.dev)->fault->n.sent++;
	q->fate.seq = 0;
	q->fate.duplicate = 0;
}

int shm_fault_execute(struct shm_qp *q, int send)
{
	struct shm_fault *x = shm_dev(q->qp.dev)->fault;

	if (q->fault_seq != q->req_seq + 1) {
		q->fault_seq = q->req_seq + 1;
		q->rx_hold = 0;
		if (x->n.executed++ < x->f.after)
			return 0;
		if (x->f.slow_us) {
			x->n.slow++;
			q->rx_hold = later(x->f.slow_us);
		}
		/* the first slot of a message, that is where a receive is looked for */
		if (send && !q->in_msg && q->rq_done != q->rq_head && chance(x, x->f.rnr, &x->n.rnr)) {
			q->rnr_told = 0;
			shm_exec_rnr(q);
			q->rx_hold = later(x->f.rnr_us);
		}
	}
	if (q->rx_hold && xr_now_ns() < q->rx_hold)
		return 1;
	q->rx_hold = 0;
	return 0;
}

int shm_fault_marks(struct shm_qp *q)
{
	struct shm_fault *x = shm_dev(q->qp.dev)->fault;

	return x->n.executed > x->f.after && chance(x, x->f.ecn, &x->n.ecn);
}
