/* SPDX-License-Identifier: BSD-2-Clause */
/* The locks of a flow's directions, and what is found half done there; included by flow.h. */
#ifndef XR_FLOW_LEFT_H
#define XR_FLOW_LEFT_H

#include "defer.h"

/*
 * The lock of a direction was held by a process of the family that was killed: what that has left half done is done, or
 * undone (flow_left.c).  With the lock.
 */
void xr_flow_rx_left(struct xr_flow *f);
void xr_flow_tx_left(struct xr_flow *f);

/*
 * As xr_lock(), xr_trylock() and xr_unlock(), and no handler comes in between (defer.h): one that left by longjmp would
 * leave the lock, for ever, and one that waited for another thread would let it wait for the lock.
 */
static inline int xr_flow_rx_lock(struct xr_flow *f)
{
	int r;

	xr_defer_begin();
	r = xr_lock_or_left(&f->rx_lock);
	if (xr_unlikely(r > 0))
		xr_flow_rx_left(f);
	else if (xr_unlikely(r))
		xr_defer_end();
	return r < 0 ? r : 0;
}

static inline int xr_flow_rx_trylock(struct xr_flow *f)
{
	int r;

	xr_defer_begin();
	r = xr_trylock(&f->rx_lock);
	if (r)
		xr_defer_end();
	return r;
}

static inline void xr_flow_rx_unlock(struct xr_flow *f)
{
	xr_unlock(&f->rx_lock);
	xr_defer_end();
}

static inline int xr_flow_tx_lock(struct xr_flow *f)
{
	int r;

	xr_defer_begin();
	r = xr_lock_or_left(&f->tx_lock);
	if (xr_unlikely(r > 0))
		xr_flow_tx_left(f);
	else if (xr_unlikely(r))
		xr_defer_end();
	return r < 0 ? r : 0;
}

static inline int xr_flow_tx_trylock(struct xr_flow *f)
{
	int r;

	xr_defer_begin();
	r = xr_trylock(&f->tx_lock);
	if (r)
		xr_defer_end();
	return r;
}

static inline void xr_flow_tx_unlock(struct xr_flow *f)
{
	xr_unlock(&f->tx_lock);
	xr_defer_end();
}

/* Bytes still to come over TCP before the ring.  rx_lock held. */
static inline uint64_t xr_flow_drain_left(const struct xr_flow *f)
{
	return xr_load_relaxed(&f->rx_state) == XR_RX_DRAIN ? f->drain_to - xr_load_relaxed(&f->tcp_rx) : 0;
}

#endif
