/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a process of the family that was killed while it held the lock of a direction has left half done.  Whoever gets
 * the lock comes here first, and need not be the one that began the flow: it brings it back to TCP.
 *
 * A system call and the note of what it did are two steps, between which one can be killed.  So nothing is noted that
 * the kernel cannot be asked for: what is still to come or to go follows from how far the socket is (tcp_rx, tcp_tx).
 */
#include <errno.h>
#include "flow.h"
#include "ksock.h"

#define LEFT_TRIES	1000u

void xr_flow_tx_left(struct xr_flow *f)
{
	uint64_t written;
	uint32_t n, tries = 0;
	int r;

	/* acquire: with it the memory of the ring is there */
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || f->tx_state == XR_TX_TCP)
		return;
	xr_shm_tx_left(&f->tx);
	/* with the FIN all is in the kernel */
	if (f->tx_state != XR_TX_REPLAY || f->tx_kfin || f->tx.lied)
		return;
	/* -EAGAIN: it moves meanwhile */
	do
		r = xr_ksock_written(xr_flow_fd(f), f->role == XR_FLOW_CONNECT, &written);
	while (r == -EAGAIN && ++tries < LEFT_TRIES);
	if (r)
		return;
	/* to its beginning, and on by what is there */
	xr_shm_tx_freeze(&f->tx);
	n = (uint32_t)written - f->tx.replay_from;
	if (f->far)
		n = xr_far_tx_left(f, n);
	xr_shm_tx_replayed(&f->tx, n);
	xr_store_relaxed(&f->tcp_tx, written);
}

void xr_flow_rx_left(struct xr_flow *f)
{
	uint64_t written, read, more;

	/* acquire: as above */
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || f->rx_state == XR_RX_TCP)
		return;
	xr_shm_rx_left(&f->rx);
	if (xr_ksock_moved(xr_flow_fd(f), &written, &read))
		return;
	if (f->far)
		xr_far_rx_left(f, read);
	/* signed: after a reset the kernel may be a byte behind */
	more = read - xr_load_relaxed(&f->tcp_rx);
	if ((int64_t)more > 0) {
		/* read, and not noted; nothing but what is late was read while it was */
		xr_store_relaxed(&f->tcp_rx, read);
		f->rx.late -= more < f->rx.late ? more : f->rx.late;
	} else if (f->rx.late && f->rx.late_next < f->rx.late) {
		/* noted, but for what is left */
		f->rx.late = f->rx.late_next;
	}
	/* START was taken: the state follows */
	if (f->rx_state == XR_RX_DRAIN || (f->rx_state == XR_RX_READY && f->rx.seq > 1))
		xr_flow_rx_drained(f);
}
