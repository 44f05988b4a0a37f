/* SPDX-License-Identifier: BSD-2-Clause */
/* The inner set of an epoll file, and the links whose doorbells lie in it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include "control.h"
#include "epoll.h"
#include "fdtab.h"
#include "log.h"
#include "mem.h"
#include "ready.h"

/* What the silent socket of a fabric flow is watched for. */
#define INNER_EVENTS	(EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET)

/* ---- the inner set ------------------------------------------------------- */

static uint64_t inner_data(const void *p, uint32_t tag, uint16_t gen)
{
	/* objects are 64-byte aligned and below 2^48 */
	return ((uint64_t)(uintptr_t)p << 16) | ((uint64_t)tag << 16) | gen;
}

#define TAG_REG		0u
#define TAG_LINK	1u
#define TAG_KICK	2u
#define TAG_CONTROL	3u
#define TAG_SHARED	4u

/* What both processes wait on shows nothing of what one of them alone has: the child sleeps on a set of its own. */
static long top_make(struct xr_epoll *ep)
{
	long r = xr_sys1(SYS_epoll_create1, EPOLL_CLOEXEC);
	int top = (int)r;

	if (r < 0)
		return r;
	r = xr_fd_high(top);
	if (r < 0)
		goto close;
	top = (int)r;
	r = xr_ep_sys_ctl(top, EPOLL_CTL_ADD, ep->outer, EPOLLIN, 0);
	if (!r)
		r = xr_ep_sys_ctl(top, EPOLL_CTL_ADD, ep->inner, EPOLLIN, 0);
	if (r)
		goto close;
	/* release: who sleeps on it finds both there */
	xr_store_release(&ep->top, top);
	return 0;
close:
	xr_fd_close(top);
	return r;
}

int xr_ep_inner_make(struct xr_epoll *ep)
{
	long r;

	if (ep->inner >= 0)
		return 0;
	ep->waiter = xr_waiter_get();
	if (!ep->waiter)
		return -ENOSPC;
	/* of our own for the outer set: another thread may close the program's */
	r = xr_sys3(SYS_fcntl, ep->epfd, F_DUPFD_CLOEXEC, 3);
	if (r < 0)
		goto put_waiter;
	ep->outer = (int)r;
	r = xr_fd_high(ep->outer);
	if (r < 0)
		goto close_outer;
	ep->outer = (int)r;
	r = xr_sys2(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (r < 0)
		goto close_outer;
	ep->kick = (int)r;
	r = xr_fd_high(ep->kick);
	if (r < 0)
		goto close_kick;
	ep->kick = (int)r;
	r = xr_sys1(SYS_epoll_create1, EPOLL_CLOEXEC);
	if (r < 0)
		goto close_kick;
	ep->inner = (int)r;
	r = xr_fd_high(ep->inner);
	if (r < 0)
		goto close_inner;
	ep->inner = (int)r;
	r = xr_ep_sys_ctl(ep->inner, EPOLL_CTL_ADD, ep->kick, EPOLLIN | EPOLLET,
			  inner_data(NULL, TAG_KICK, 0));
	if (!r)
		r = ep->parents || xr_load_relaxed(&ep->lent) ? top_make(ep) :
		    xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, ep->inner, EPOLLIN | EPOLLET, ep->token);
	if (r)
		goto close_inner;
	xr_ep_share_bell(ep);
	/* an edge for each ring: it wakes, and hooks look at what is wanted by themselves */
	if (xr_control_fd() >= 0)
		xr_ep_sys_ctl(ep->inner, EPOLL_CTL_ADD, xr_control_fd(), EPOLLIN | EPOLLET,
			      inner_data(NULL, TAG_CONTROL, 0));
	return 0;

close_inner:
	xr_fd_close(ep->inner);
	ep->inner = -1;
close_kick:
	xr_fd_close(ep->kick);
	ep->kick = -1;
close_outer:
	xr_fd_close(ep->outer);
	ep->outer = -1;
put_waiter:
	xr_waiter_put(ep->waiter);
	ep->waiter = 0;
	xr_info("no inner epoll set: error %d", (int)-r);
	return (int)r;
}

void xr_ep_inner_alone(struct xr_epoll *ep)
{
	/* what sleeps on the program's descriptor, or in epoll_wait by now, would hear of nothing any more */
	if (ep->inner < 0 || xr_load_relaxed(&ep->top) >= 0 || ep->watched || ep->sleepers)
		return;
	/* without descriptors for it a child may hear in the place of this process: it passes on */
	if (!top_make(ep))
		xr_ep_sys_ctl(ep->outer, EPOLL_CTL_DEL, ep->inner, 0, 0);
}

void xr_ep_take_inner(struct xr_epoll *ep)
{
	struct epoll_event ev[64];
	long i, n;

	/* cleared first: whatever comes after it makes a new edge in the outer set */
	xr_store_relaxed(&ep->dirty, 0);
	do {
		n = xr_sys6(SYS_epoll_pwait, ep->inner, ev, 64, 0, NULL, 8);
		for (i = 0; i < n; i++) {
			void *p = (void *)(uintptr_t)((ev[i].data.u64 >> 16) & ~63ull);
			struct xr_epreg *r = p;

			switch ((ev[i].data.u64 >> 16) & 63) {
			case TAG_REG:
				if (r->gen != (uint16_t)ev[i].data.u64 || !r->attached)
					break;
				r->kernel |= ev[i].events;
				xr_ep_push(r);
				break;
			case TAG_LINK:
				xr_ep_activate(ep, p);
				break;
			case TAG_SHARED:
				xr_ep_shared_rang(ep, p);
				break;
			}
		}
	} while (n == 64);
}

int xr_ep_inner_add(struct xr_epreg *r)
{
	return xr_ep_sys_ctl(r->ep->inner, EPOLL_CTL_ADD, r->fd, INNER_EVENTS,
			     inner_data(r, TAG_REG, r->gen));
}

int xr_ep_inner_add_shared(struct xr_epoll *ep, struct xr_eplink *k, int bell)
{
	int e = xr_ep_sys_ctl(ep->inner, EPOLL_CTL_ADD, bell, EPOLLIN | EPOLLET,
			      inner_data(k, TAG_SHARED, 0));

	return e == -EEXIST ? 0 : e;
}

/* ---- links --------------------------------------------------------------- */

int xr_ep_link_get(struct xr_epoll *ep, struct xr_flow *f, struct xr_eplink **out)
{
	struct xr_shm_link *l = xr_flow_link_get(f);
	struct xr_eplink *k;
	int r;

	if (!l)
		return -ENOLINK;
	for (k = ep->links; k; k = k->next)
		if (k->link == l)
			goto found;
	k = xr_ep_link_alloc();
	if (!k) {
		r = -ENOMEM;
		goto unref;
	}
	k->link = l;
	k->nregs = 0;
	k->active = 0;
	k->shared = -1;
	k->rang = 0;
	/* a peer that is gone rings no bell; the kernel tells of its end */
	k->bell = xr_shm_link_bell(l, ep->waiter);
	if (k->bell == -EPIPE || k->bell == -ECONNRESET)
		k->bell = -1;
	r = k->bell < -1 ? k->bell : 0;
	if (!r && k->bell >= 0)
		r = xr_ep_sys_ctl(ep->inner, EPOLL_CTL_ADD, k->bell, EPOLLIN | EPOLLET,
				  inner_data(k, TAG_LINK, 0));
	if (r && r != -EEXIST)
		goto free_link;
	k->next = ep->links;
	ep->links = k;
	xr_ep_activate(ep, k);
	k->nregs = 1;
	*out = k;
	return 0;

found:
	xr_link_unref(l);
	k->nregs++;
	*out = k;
	return 0;

free_link:
	xr_ep_link_free(k);
unref:
	xr_link_unref(l);
	return r;
}

void xr_ep_link_put(struct xr_epoll *ep, struct xr_eplink *k)
{
	struct xr_eplink **p;

	if (!k || --k->nregs)
		return;
	for (p = &ep->links; *p; p = &(*p)->next)
		if (*p == k) {
			*p = k->next;
			break;
		}
	if (k->active) {
		xr_epnode_del(&k->node);
		ep->nactive--;
	} else {
		xr_shm_link_sleeping(k->link, ep->waiter, 0);
	}
	/* the link may outlive us and keep the bell for the next waiter of that number */
	if (k->bell >= 0)
		xr_ep_sys_ctl(ep->inner, EPOLL_CTL_DEL, k->bell, 0, 0);
	if (k->shared >= 0)
		xr_ep_sys_ctl(ep->inner, EPOLL_CTL_DEL, k->shared, 0, 0);
	xr_link_unref(k->link);
	xr_ep_link_free(k);
}
