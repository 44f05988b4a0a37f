/* SPDX-License-Identifier: BSD-2-Clause */
/* The last steps of an upgrade: each direction leaves TCP at an exact offset of its stream. */
#include <errno.h>
#include "control.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "upgrade.h"

/* ---- both ends know all: attach, READY, START ------------------------------ */

/* Has the kernel been given what the hooks gave it, and no more?  tx_lock held. */
static int up_written(const struct xr_flow *f, int fd, uint64_t *written)
{
	uint64_t own = xr_load_relaxed(&f->tcp_tx);
	int r;

	if (*written == own)
		return 0;
	r = xr_ksock_written(fd, f->role == XR_FLOW_CONNECT, written);
	return r ? r : *written == own ? 0 : -EILSEQ;
}

/* tx_lock and rx_lock held.  1: the receive direction now goes through the hooks. */
static int up_enter_rx(struct xr_flow *f, int fd)
{
	uint64_t written, got;
	int r;

	/* full barrier: path first, then the count of readers; pairs with xr_flow_tcp_rx_begin */
	xr_fetch_or(&f->path, XR_PATH_RX);
	if (xr_load_acquire(&f->k_rx)) {
		xr_fetch_and(&f->path, ~XR_PATH_RX);
		return -EAGAIN;
	}
	r = xr_ksock_offsets(fd, xr_load_relaxed(&f->tcp_rx), &written, &got);
	if (!r && got != xr_load_relaxed(&f->tcp_rx))
		r = -EILSEQ;
	if (!r && !xr_load_acquire(&f->k_tx))
		r = up_written(f, fd, &written);
	if (r) {
		xr_fetch_and(&f->path, ~XR_PATH_RX);
		return r;
	}
	xr_flow_rx_ready(f);
	return 0;
}

int xr_up_finish(struct xr_upgrade *u, int fd)
{
	struct xr_flow *f = u->f;
	int r;

	if (xr_flow_rx_lock(f))
		return -EAGAIN;
	r = up_enter_rx(f, fd);
	xr_flow_rx_unlock(f);
	if (r)
		return r;
	u->state = XR_UP_READY;
	xr_control_open();
	/* what was shown while nobody answered is not the truth any more */
	if (f->st && xr_load_relaxed(&f->st->ident.reason) == XR_REASON_PEER_NOT_XRDMA)
		xr_stats_flow_reason(f->st, XR_REASON_YOUNG);
	xr_stats_flow_state(f->st, XR_STATE_UPGRADING);
	return 0;
}

/* Both locks held: publishes START at this very offset. */
static int up_leave_tcp(struct xr_flow *f, int fd)
{
	uint64_t written, got;
	int r;

	/* as in up_enter_rx, for writers */
	xr_fetch_or(&f->path, XR_PATH_TX);
	if (xr_load_acquire(&f->k_tx)) {
		xr_fetch_and(&f->path, ~XR_PATH_TX);
		return -EAGAIN;
	}
	r = xr_ksock_offsets(fd, xr_load_relaxed(&f->tcp_rx), &written, &got);
	if (!r)
		r = up_written(f, fd, &written);
	if (!r)
		r = xr_flow_tx_start(f, written);
	if (r) {
		xr_fetch_and(&f->path, ~XR_PATH_TX);
		return f->tx.lied ? -EPROTO : r;
	}
	xr_ksock_push_tail(fd);
	f->moved_ns = xr_now_ns();
	f->moved_cycles = xr_cycles();
	f->fails = 0;
	return 0;
}

int xr_up_start(struct xr_upgrade *u, int fd, uint32_t *waiter)
{
	struct xr_flow *f = u->f;
	int r;

	/* the receive direction must not leave meanwhile: the flow would be gone, and START there */
	if (xr_flow_rx_lock(f))
		return -EAGAIN;
	r = f->rx_state == XR_RX_TCP ? -ESTALE : up_leave_tcp(f, fd);
	xr_flow_rx_unlock(f);
	if (r)
		return r;
	xr_flow_wake(f);	/* who sleeps till the socket takes more */
	xr_debug("descriptor %d: sends over %s to process %d", fd, f->far ? "RDMA" : "shm", f->link->peer_pid);
	xr_flow_room_tx(f, fd);
	xr_shm_tx_armed(&f->tx, waiter);
	if (f->st) {
		xr_stats_gauge(&f->st->tx.window, f->tx.inflight_max);
		xr_stats_gauge32(&f->st->tx.slots, f->tx.mask + 1);
		xr_stats_gauge32(&f->st->tx.credits, f->tx.mask + 1);
		xr_stats_gauge32(&f->st->rx.slots, f->rx.mask + 1);
		xr_stats_inc(&f->st->ctl.upgrades, 1);
	}
	xr_stats_flow_state(f->st, XR_STATE_ESTAB);
	xr_flow_show_carriers(f);
	return 0;
}

int xr_up_switch_reason(int r)
{
	switch (r) {
	case -EILSEQ:
		return XR_REASON_UNHOOKED_IO;
	case -ESHUTDOWN:
		/* half-closed before it could move */
		return XR_REASON_CLOSED;
	case -ESTALE:
		return XR_REASON_RETREAT_REQUESTED;
	case -EPROTO:
		/* it has read what nobody has sent yet: nothing is lost, and nothing is moved */
		return XR_REASON_SEGMENT_CORRUPT;
	default:
		return XR_REASON_INTERNAL;
	}
}
