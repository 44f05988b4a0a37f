/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The order of events.  The kernel's ready list is first in, first out: a flow goes to its end when
 * it becomes ready, and again when it was reported and is level-triggered.  Ours is told of some
 * by entries, in order, and finds others by looking at them, in whatever order.  But each slot
 * of a ring says when it was published, and a registration when it was last reported or had
 * nothing: what comes new to the list is sorted by that.
 *
 * A peer may lie in its stamps: it then mistakes the place of its own flows.
 */
#include "epoll.h"
#include "mem.h"

/* Behind more slots than these the place is that of the last report. */
static uint64_t ready_since(const struct xr_epreg *r)
{
	const struct xr_shm_rx *rx = &r->flow->rx;
	struct xr_shm_slot *s;
	uint64_t h, stamp;

	/* racy like xr_flow_peek; whoever has room to write, or an end, has had it for an unknown time */
	if (xr_unlikely(r->flow->rx_state != XR_RX_RING))
		return r->since;
	s = &rx->slots[rx->seq & rx->mask];
	/* acquire: as in xr_shm_rx_stamp */
	h = xr_load_acquire(&s->head);
	if (XR_HEAD_SEQ(h) != rx->seq)
		return r->since;
	stamp = xr_load_relaxed(&s->stamp);
	if (xr_likely(!rx->byte && (int64_t)(stamp - r->since) > 0))
		return stamp;
	stamp = xr_shm_rx_stamp(rx, r->since);
	return stamp ? stamp : r->since;
}

int xr_ep_order(struct xr_epoll *ep, struct xr_epnode *last, uint64_t now)
{
	struct xr_epnode *n, *next, *at;
	struct xr_epreg *r;
	int late = 0;

	/*
	 * A place have those that had something when they were sorted, and those that the kernel's
	 * list still has; all others get that of what they have by now.
	 */
	for (; last != &ep->ready; last = last->prev) {
		r = xr_epreg_of(last);
		if ((int64_t)(r->key - r->since) > 0 || (r->shown && !(r->events & EPOLLET)))
			break;
	}
	for (n = last->next; n != &ep->ready; n = next) {
		next = n->next;
		r = xr_epreg_of(n);
		r->key = ready_since(r);
		/* a time that has not come is a lie */
		if (xr_unlikely((int64_t)(r->key - now) > 0))
			late |= (int64_t)(r->key - xr_cycles()) <= 0;
		for (at = n->prev; at != last && (int64_t)(xr_epreg_of(at)->key - r->key) > 0; at = at->prev)
			;
		if (xr_likely(at == n->prev))
			continue;
		xr_epnode_del(n);
		n->prev = at;
		n->next = at->next;
		at->next->prev = n;
		at->next = n;
	}
	return late;
}
