/* SPDX-License-Identifier: BSD-2-Clause */
/* The locks of a flow's directions, and what is found half done there; included by flow.h. */
#ifndef XR_FLOW_LEFT_H
#define XR_FLOW_LEFT_H

/*
 * The lock of a direction was held by a process of the family that was killed: what that has left half done is done, or
 * undone (flow_left.c).  With the lock.
 */
void xr_flow_rx_left(struct xr_flow *f);
void xr_flow_tx_left(struct xr_flow *f);

/* As xr_lock(). */
static inline int xr_flow_rx_lock(struct xr_flow *f)
{
	int r = xr_lock_or_left(&f->rx_lock);

	if (xr_likely(r <= 0))
		return r;
	xr_flow_rx_left(f);
	return 0;
}

static inline int xr_flow_tx_lock(struct xr_flow *f)
{
	int r = xr_lock_or_left(&f->tx_lock);

	if (xr_likely(r <= 0))
		return r;
	xr_flow_tx_left(f);
	return 0;
}

/* Bytes still to come over TCP before the ring.  rx_lock held. */
static inline uint64_t xr_flow_drain_left(const struct xr_flow *f)
{
	return xr_load_relaxed(&f->rx_state) == XR_RX_DRAIN ? f->drain_to - xr_load_relaxed(&f->tcp_rx) : 0;
}

#endif
