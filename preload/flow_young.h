/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The short way of a connection that lives for one request and never moves, as most do.  What it needs is
 * a line of the flow, and another one at its beginning and its end; all else waits until it is worth a move,
 * or somebody asks for it.
 */
#ifndef XR_FLOW_YOUNG_H
#define XR_FLOW_YOUNG_H

#include "defer.h"
#include "flow.h"
#include "mem.h"

/* The thresholds are others now: for flows that begin after this. */
void xr_flow_tuned(void);

/* ---- calls ---------------------------------------------------------------- */

/* The accounting has reached a threshold. */
void xr_flow_due(struct xr_flow *f, int fd);

/* inside: &f->k_rx or &f->k_tx, path: the bits that are in the way.  1, or 0: the long way. */
static inline int xr_flow_tcp_begin(struct xr_flow *f, _Atomic uint32_t *inside, uint32_t path)
{
	/* full barrier: count, then look at path; the upgrade sets path, then looks at the count */
	xr_fetch_add(inside, 1);
	if (xr_likely(!(xr_load_acquire(&f->path) & path)))
		return 1;
	xr_fetch_sub(inside, 1);
	return 0;
}

/*
 * dir: of last_dir.  `inside` falls after the bytes were added: who finds nobody inside finds every
 * byte accounted for.
 */
static inline void xr_flow_tcp_end(struct xr_flow *f, int fd, uint32_t dir, _Atomic uint32_t *inside,
				   _Atomic uint64_t *total, _Atomic uint64_t *other, ssize_t n)
{
	uint64_t sum;

	if (xr_unlikely(n <= 0)) {
		xr_fetch_sub(inside, 1);
		return;
	}
	sum = atomic_fetch_add_explicit(total, (uint64_t)n, memory_order_relaxed) + (uint64_t)n;
	xr_fetch_sub(inside, 1);
	if (xr_load_relaxed(&f->last_dir) != dir) {
		xr_store_relaxed(&f->last_dir, (uint16_t)dir);
		/* not an atomic addition, which costs more: a turn may be lost */
		xr_store_relaxed(&f->turns, xr_load_relaxed(&f->turns) + 1);
	}
	if (xr_unlikely(xr_load_relaxed(&f->turns) >= xr_load_relaxed(&f->need_turns) ||
			sum + xr_load_relaxed(other) >= xr_load_relaxed(&f->need_bytes)))
		xr_flow_due(f, fd);
}

#define XR_FLOW_RX_BEGIN(f)		xr_flow_tcp_begin(f, &(f)->k_rx, XR_PATH_RX)
#define XR_FLOW_TX_BEGIN(f)		xr_flow_tcp_begin(f, &(f)->k_tx, XR_PATH_TX | XR_PATH_WITNESS)
#define XR_FLOW_RX_END(f, fd, n)	xr_flow_tcp_end(f, fd, 1, &(f)->k_rx, &(f)->tcp_rx, &(f)->tcp_tx, n)
#define XR_FLOW_TX_END(f, fd, n)	xr_flow_tcp_end(f, fd, 2, &(f)->k_tx, &(f)->tcp_tx, &(f)->tcp_rx, n)

/* ---- slots ---------------------------------------------------------------- */

/* Of the next one, which has found it taken. */
void xr_slab_wait(void);

static inline void xr_slab_lock(void)
{
	uint32_t free = 0;

	xr_defer_begin();
	if (xr_unlikely(!xr_cas(&xr_slab.lock, &free, 1)))
		xr_slab_wait();
}

static inline void xr_slab_unlock(void)
{
	/* release: pairs with the cas of the next holder */
	xr_store_release(&xr_slab.lock, 0);
	xr_defer_end();
}

/*
 * Of a flow of this process without descriptors.  1: nothing was begun with it, nobody else has it, and it is
 * gone; 0: it goes the long way.
 */
static inline int xr_flow_drop(struct xr_flow *f)
{
	struct xr_flow_slab *s = &xr_slab;
	uint64_t tx, rx;

	/* as in flow_in_use and flow_reclaim; acquire: pairs with xr_flow_tcp_end, which adds up first */
	if (xr_unlikely((xr_load_acquire(&f->k_rx) | xr_load_acquire(&f->k_tx)) || f->link || f->dir_off ||
			f->st || xr_flow_up(f) || xr_load_relaxed(&f->procs) != 1 ||
			xr_load_relaxed(&f->own->zc_used) || xr_load_relaxed(&s->kids->forks) != f->born))
		return 0;
	/* relaxed: the lock orders it for the next connection in the slot; others look at gen */
	xr_store_relaxed(&f->path, 0);
	tx = xr_load_relaxed(&f->tcp_tx);
	rx = xr_load_relaxed(&f->tcp_rx);
	xr_slab_lock();
	f->next_free = s->free;
	s->free = f->index;
	/* under the lock, and nowhere else */
	xr_count(&xr_stats_now()->counter[XR_STAT_FLOWS_CLOSED], f->connected);
	xr_slab_unlock();
	if (tx)
		xr_stats_add(XR_STAT_BYTES_TX_TCP, tx);
	if (rx)
		xr_stats_add(XR_STAT_BYTES_RX_TCP, rx);
	return 1;
}

#endif
