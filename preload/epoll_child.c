/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An epoll file that a forked child has inherited.
 *
 * The kernel's objects are shared with the parent, the records are not: the child has a copy of them
 * as they were at the fork, and never edits the inner set.  What it uses goes back to TCP, in family
 * memory, so that the parent sees it, and into the outer set, whose registrations are both processes'.
 */
#include <errno.h>
#include "epoll.h"
#include "fdtab.h"
#include "mem.h"
#include "ready.h"

#define CHANGED_ALL	UINT16_MAX	/* several files */

/* ---- what a child inherits ----------------------------------------------- */

#define HEIRS	1638u	/* in 64 KiB */

/* Never given back: a registration has one for as long as its memory is there. */
static struct heirs {
	struct heirs *next;
	uint32_t n;
	struct xr_epheir heir[HEIRS];
} *heirs;

struct xr_epheir *xr_ep_heir_new(void)
{
	struct heirs *c = heirs;

	if (!c || c->n == HEIRS) {
		c = xr_keep_private(sizeof(*c));
		if (!c)
			return NULL;
		c->next = heirs;
		heirs = c;
	}
	return &c->heir[c->n++];
}

/*
 * The next one of the file, after h.  The parent's do not change here, and a file's own are another's: no lock.
 * All of them are looked at, for calls that few children make.
 */
static struct xr_epheir *heir_next(const struct xr_epoll *ep, struct heirs **chunk, struct xr_epheir *h)
{
	struct heirs *c = *chunk;

	for (h = h ? h + 1 : c ? c->heir : NULL; c; h = c ? c->heir : NULL) {
		for (; h < c->heir + c->n; h++)
			if (h->ep == ep)
				goto found;
		c = c->next;
	}
	h = NULL;
found:
	*chunk = c;
	return h;
}

/* ---- the child's calls --------------------------------------------------- */

/* Which file, in the 16 bits that a flow has for it; two that share them cost one registration a system call. */
static uint16_t file_mark(const struct xr_epoll *ep)
{
	return (uint16_t)(ep->token % (CHANGED_ALL - 1) + 1);
}

static int child_changed(const struct xr_flow *f, const struct xr_epoll *ep)
{
	uint16_t mark = xr_load_acquire(&f->epoll_child);	/* pairs with xr_ep_child_ctl */

	return xr_unlikely(mark) && (mark == CHANGED_ALL || mark == file_mark(ep));
}

/*
 * The parent's epoll_wait finds the flow on TCP and gets EEXIST; or does not come by here at all,
 * since it waits for the child to end.
 */
void xr_ep_adopt(struct xr_epoll *ep)
{
	struct heirs *c = heirs;
	struct xr_epheir *h;

	if (ep->adopted || xr_ep_big_lock())
		return;
	if (ep->adopted) {
		xr_ep_big_unlock();
		return;
	}
	ep->adopted = 1;
	xr_ep_big_unlock();
	for (h = heir_next(ep, &c, NULL); h; h = heir_next(ep, &c, h)) {
		if (!h->attached || xr_fd_flow(h->fd) != h->flow)
			continue;
		xr_flow_retreat(h->flow, h->fd, XR_REASON_FORKED, 1000000000u);
		if (!h->fired && !h->absent && !child_changed(h->flow, ep))
			xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, h->fd, h->events, h->data);
	}
	xr_store_relaxed(&ep->attached, 0);
}

/* As it was at the fork. */
static const struct xr_epheir *reg_at_fork(struct xr_epoll *ep, struct xr_flow *f, int fd)
{
	struct heirs *c = heirs;
	struct xr_epheir *h;

	for (h = heir_next(ep, &c, NULL); h; h = heir_next(ep, &c, h))
		if (h->flow == f && h->fd == fd)
			return h;
	return NULL;
}

/*
 * The registration changes for both processes.  So the flow goes to TCP for good, where the kernel's
 * set is all there is to know: the parent drops its record when it next comes by, and only then, since
 * it may be asleep in a call that is no hook.
 */
int xr_ep_child_ctl(struct xr_epoll *ep, int epfd, int op, int fd, struct xr_flow *f, struct epoll_event *ev)
{
	const struct xr_epheir *r = reg_at_fork(ep, f, fd);
	/* in the parent's inner set, or about to be, or fired and in none: the kernel knows it not */
	int away = (xr_load_acquire(&f->path) & XR_PATH_FABRIC) || xr_flow_up(f) || (r && r->parked), e;
	uint16_t none = 0;

	/* before it is on TCP: the parent, which may be what brings it there, leaves the outer set alone */
	if (!xr_cas(&f->epoll_child, &none, file_mark(ep)) && none != file_mark(ep))
		xr_store_release(&f->epoll_child, CHANGED_ALL);
	xr_flow_hand_over(f, fd, XR_REASON_INHERITED, XR_HANDOVER_WAIT_NS);
	/* one that the parent had removed is in no set either */
	away &= !r || !r->absent;
	if (op == EPOLL_CTL_ADD && away && r)
		return -EEXIST;
	e = xr_ep_sys_ctl(epfd, op, fd, ev ? ev->events : 0, ev ? ev->data.u64 : 0);
	if (e != -ENOENT || !away)
		return e;
	return op == EPOLL_CTL_DEL ? 0 : xr_ep_sys_ctl(epfd, EPOLL_CTL_ADD, fd, ev->events, ev->data.u64);
}

int xr_ep_child_changed(const struct xr_epreg *r)
{
	return child_changed(r->flow, r->ep);
}

/*
 * A flow of the parent's in a file of the child's own.  It has gone back to TCP for good, but what is unread, or owed,
 * the hooks still carry, in this process as in others: so it is in the inner set, like any flow on a fabric,
 * for as long as that lasts.  There is no link to it: nobody rings here, since all that is new comes by the socket.
 */
void xr_ep_child_carries(struct xr_flow *f, struct xr_epflow *ef)
{
	if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		ef->attached = 1;
}

void xr_ep_child_forget(struct xr_flow *f)
{
	struct xr_epflow *ef;
	struct xr_epreg *r, *next;

	xr_epoll_flow_detach(f);
	if (xr_ep_big_lock())
		return;
	ef = xr_ep_flow(f, 0);
	for (r = ef ? ef->regs : NULL; r; r = next) {
		struct xr_epoll *ep = r->ep;

		next = r->flow_next;
		/* attached: bytes are still on their way back to TCP */
		if (r->attached || !xr_ep_child_changed(r) || xr_ep_lock(ep))
			continue;
		xr_ep_reg_free(r);
		xr_ep_unlock(ep);
	}
	xr_ep_big_unlock();
}
