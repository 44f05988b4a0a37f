/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Flows: which sends are traced (trace.h), and the records that both ends make of them.
 *
 * A message is one send of the program; what the receiver's program reads at once is its own affair.  The sender
 * marks the first slot and says more in the direction's box (shm_ring.h), of one message at a time: the next one is
 * traced when the peer has consumed it.  Both see that when they look: "received" is the receiver's first look at the
 * marked slot, "acked" the sender's first look at the receiver's position afterwards, which is its next send
 * or its close.
 */
#include <limits.h>
#include <string.h>
#include "flow.h"
#include "mem.h"
#include "trace.h"
#include "tune.h"

/* trace_end of a flow whose next send is to be traced; trace_no is the time of its first attempt then. */
#define TRACE_WAITS	UINT64_MAX

static _Atomic uint64_t trace_next;	/* number of the last message that was traced */

static void trace_flow(const struct xr_flow *f, struct xr_trace_data *d)
{
	memset(d, 0, sizeof(*d));
	d->flow = (uint64_t)xr_load_relaxed(&f->gen) << 32 | f->index;
	d->fd = xr_flow_fd(f);
	d->carrier = XR_CARRIER_SHM;
	if (f->st) {
		d->local = f->st->ident.local;
		d->peer = f->st->ident.peer;
	}
}

static void trace_at(struct xr_trace_data *d, enum xr_trace_stage stage, uint64_t ns)
{
	d->stage = (uint8_t)stage;
	d->at_ns = ns;
	xr_trace_write(d);
}

/* The clocks of two ends on one host are one, unless a time namespace has moved either. */
static void trace_clock(struct xr_trace_data *d, int64_t heard, int64_t peer_heard)
{
	struct xr_clock c = { 0, 0, 0 };
	uint64_t error;

	if (heard == INT64_MAX || peer_heard == INT64_MAX)
		return;
	/* no message arrives before it was sent: neither way */
	xr_clock_bound(&c, (int64_t)-(uint64_t)heard, peer_heard, 1);
	if (!xr_clock_get(&c, 1, &d->offset_ns, &error))
		return;
	d->error_ns = error < UINT32_MAX ? (uint32_t)error : UINT32_MAX;
	d->flags |= XR_TRACE_CLOCK;
}

/* ---- sending ---------------------------------------------------------------- */

/* The message that is traced: what it is known by follows from its number. */
static void trace_mine(const struct xr_flow *f, struct xr_trace_data *d)
{
	trace_flow(f, d);
	xr_trace_new(f->trace_no, d->id, &d->span);
}

void xr_flow_trace_settle(struct xr_flow *f)
{
	struct xr_trace_data d;

	if (!f->trace_end || f->trace_end == TRACE_WAITS || f->tx_state != XR_TX_RING ||
	    f->tx.sent < f->trace_end || f->tx.sent - xr_shm_tx_unconsumed(&f->tx) < f->trace_end)
		return;
	trace_mine(f, &d);
	trace_at(&d, XR_TRACE_ACKED, xr_now_ns());
	f->trace_end = 0;
}

/* The send that is due: goes with a mark, if the ring has a place for one. */
static ssize_t trace_begin(struct xr_flow *f, const struct iovec *iov, int cnt, size_t skip, size_t len)
{
	uint64_t queued = f->trace_no, no = atomic_fetch_add_explicit(&trace_next, 1, memory_order_relaxed) + 1;
	struct xr_shm_box box = { .queued = queued, .posted = xr_now_ns(), .heard = xr_load_relaxed(&f->link->heard) };
	struct xr_trace_data d;
	ssize_t n;

	xr_trace_new(no, box.id, &box.span);
	n = xr_shm_tx_send_traced(&f->tx, iov, cnt, skip, len, &box);
	/* nothing of it went, and the next attempt is for the same; what failed is no message */
	if (n <= 0) {
		f->trace_end = n ? 0 : TRACE_WAITS;
		return n;
	}
	f->trace_end = box.end;
	if (!box.end) {
		xr_trace_skipped();
		return n;
	}
	f->trace_no = no;
	trace_mine(f, &d);
	d.len = len;
	trace_at(&d, XR_TRACE_QUEUED, queued);
	trace_at(&d, XR_TRACE_POSTED, box.posted);
	return n;
}

ssize_t xr_flow_trace_send(struct xr_flow *f, const struct iovec *iov, int cnt, size_t skip, size_t len, int last)
{
	uint64_t before = f->tx.sent;
	struct xr_trace_data d;
	ssize_t n;

	if (xr_unlikely(!xr_trace_is_open()) && xr_policy_trace())
		return xr_shm_tx_send(&f->tx, iov, cnt, skip, len);
	xr_flow_trace_settle(f);
	/* the rest of a send is no new one */
	if (!skip && f->trace_end != TRACE_WAITS && xr_trace_due(xr_tuned(&xr_cfg.trace_sample))) {
		if (f->trace_end) {
			xr_trace_skipped();
		} else {
			f->trace_end = TRACE_WAITS;
			f->trace_no = xr_now_ns();
		}
	}
	if (f->trace_end == TRACE_WAITS && !skip)
		n = trace_begin(f, iov, cnt, skip, len);
	else
		n = xr_shm_tx_send(&f->tx, iov, cnt, skip, len);
	if (n <= 0 || !f->trace_end || before >= f->trace_end)
		return n;
	/* a part is all that the program is told of: so that is the message */
	if (last && f->tx.sent < f->trace_end) {
		f->trace_end = f->tx.sent;
		xr_shm_tx_box_end(&f->tx, f->trace_end);
	}
	if (f->tx.sent >= f->trace_end) {
		trace_mine(f, &d);
		d.len = len;
		trace_at(&d, XR_TRACE_SENT, xr_now_ns());
	}
	return n;
}

/* ---- receiving -------------------------------------------------------------- */

/* Times of the peer are its word, and shown as such. */
static void trace_arrived(struct xr_flow *f, const struct xr_shm_box *box)
{
	int64_t took = (int64_t)(f->rx.traced_ns - box->posted), heard = xr_load_relaxed(&f->link->heard);
	struct xr_trace_data d;

	if (took < heard)
		xr_store_relaxed(&f->link->heard, heard = took);
	trace_flow(f, &d);
	memcpy(d.id, box->id, sizeof(d.id));
	d.span = box->span;
	d.len = box->end - box->begin;
	trace_clock(&d, heard, box->heard);
	d.flags |= XR_TRACE_FAR;
	trace_at(&d, XR_TRACE_QUEUED, box->queued);
	trace_at(&d, XR_TRACE_POSTED, box->posted);
	d.flags &= (uint8_t)~XR_TRACE_FAR;
	trace_at(&d, XR_TRACE_RECEIVED, f->rx.traced_ns);
	trace_at(&d, XR_TRACE_DELIVERED, xr_now_ns());
}

int xr_flow_trace_commit(struct xr_flow *f)
{
	uint64_t at = f->rx.taken;
	struct xr_shm_box box;
	int mine, r;

	/* before the commit, which allows the sender to fill the box again */
	mine = xr_tuned(&xr_cfg.trace_sample) && (xr_trace_is_open() || !xr_policy_trace()) &&
		xr_shm_rx_box(&f->rx, &box);
	r = xr_shm_rx_commit(&f->rx);
	if (!mine || box.end <= box.begin || box.slot != f->rx.traced) {
		f->rx.traced = 0;
	} else if (!r && at >= box.end) {
		trace_arrived(f, &box);
		f->rx.traced = 0;
	}
	return r;
}
