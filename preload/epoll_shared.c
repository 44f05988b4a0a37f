/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Flows in several epoll files.
 *
 * A direction of a flow has room for one waiter.  So these are armed for one that the files of
 * the process share: it always "sleeps", and its bells lie in the inner sets of all files that
 * have such a flow.  A bell that rings wakes all of them; the first takes what it says to the
 * others, since a file may learn of the news only from there.
 */
#include <errno.h>
#include "epoll.h"
#include "ready.h"

static XR_FORK_DATA _Atomic uint32_t shared_waiter;	/* written under big, never given back */

uint32_t xr_ep_shared_waiter(void)
{
	return xr_load_relaxed(&shared_waiter);
}

int xr_ep_shared_bell(struct xr_epoll *ep, struct xr_eplink *k)
{
	uint32_t w = xr_ep_shared_waiter();
	int bell, e;

	/* in a child, of a flow of its parent: there are no bells */
	if (!k || k->shared >= 0 || k->bell < 0)
		return 0;
	if (!w) {
		w = xr_waiter_get();
		if (!w)
			return -ENOSPC;
		xr_store_relaxed(&shared_waiter, w);
	}
	bell = xr_shm_link_bell(k->link, w);
	/* as for the file's own: the kernel tells of the end of a peer that is gone */
	if (bell == -EPIPE || bell == -ECONNRESET)
		return 0;
	if (bell < 0)
		return bell;
	e = xr_ep_inner_add_shared(ep, k, bell);
	if (e)
		return e;
	k->shared = bell;
	/* whoever attaches or shares a flow looks at it once more afterwards */
	xr_shm_link_sleeping(k->link, w, 1);
	return 0;
}

int xr_ep_share(struct xr_epflow *ef, struct xr_epoll *held)
{
	struct xr_epreg *r;
	int e = 0;

	if (xr_load_relaxed(&ef->shared))
		return 0;
	for (r = ef->regs; r && r->ep == held; r = r->flow_next)
		;
	if (!r)
		return 0;
	/* two locks of files at a time: under big, and who holds one without it waits for no other */
	for (r = ef->regs; r && !e; r = r->flow_next) {
		if (!r->attached || r->ep == held)
			continue;
		e = xr_ep_lock(r->ep);
		if (e)
			break;
		e = xr_ep_shared_bell(r->ep, r->link);
		xr_ep_unlock(r->ep);
	}
	if (e)
		return e;
	/*
	 * seq_cst: who arms for its own waiter looks here afterwards, or has done so before its
	 * registration is looked at again (visit in epoll_ready.c).
	 */
	atomic_store(&ef->shared, 1);
	for (r = ef->regs; r; r = r->flow_next) {
		if (!r->attached || (r->ep != held && xr_ep_lock(r->ep)))
			continue;
		r->armed = 0;
		xr_ep_push(r);
		xr_ep_kick(r->ep);
		if (r->ep != held)
			xr_ep_unlock(r->ep);
	}
	return 0;
}

/* ---- what the bell says -------------------------------------------------- */

void xr_ep_shared_rang(struct xr_epoll *ep, struct xr_eplink *k)
{
	k->rang = 1;
	xr_store_relaxed(&ep->rang, 1);
}

static void tell_flow(void *arg, struct xr_flow *f)
{
	struct xr_epflow *ef = xr_ep_flow(f, 0);

	(void)arg;
	if (ef)
		xr_ep_flow_kick(ef);
}

static void tell_entry(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	struct xr_flow *f;

	if (xr_unlikely(cookie == UINT32_MAX)) {
		xr_flow_each(l, tell_flow, arg);
		return;
	}
	f = xr_flow_by_cookie(l, cookie);
	if (f)
		tell_flow(arg, f);
}

/* A link whose bell rang, referenced; NULL: there is none left. */
static struct xr_shm_link *next_rang(struct xr_epoll *ep)
{
	struct xr_shm_link *l = NULL;
	struct xr_eplink *k;

	if (xr_ep_lock(ep))
		return NULL;
	for (k = ep->links; k && !k->rang; k = k->next)
		;
	if (k) {
		k->rang = 0;
		l = k->link;
		xr_link_ref(l);
	} else {
		xr_store_relaxed(&ep->rang, 0);
	}
	xr_ep_unlock(ep);
	return l;
}

void xr_ep_shared_take(struct xr_epoll *ep)
{
	struct xr_shm_link *l;

	/* in a handler on top of the holder: it stays to be done */
	if (xr_ep_big_lock())
		return;
	/* big: one at a time takes entries of the waiter */
	while ((l = next_rang(ep))) {
		xr_shm_link_harvest(l, xr_ep_shared_waiter(), tell_entry, NULL);
		xr_link_unref(l);
	}
	xr_ep_big_unlock();
}

void xr_ep_shared_forked(void)
{
	xr_store_relaxed(&shared_waiter, 0);
}
