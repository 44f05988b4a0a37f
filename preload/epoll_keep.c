/* SPDX-License-Identifier: BSD-2-Clause */
/* Registrations that outlive the file that they were made for: see ready.h. */
#include <errno.h>
#include "epoll.h"
#include "fdtab.h"
#include "log.h"
#include "ready.h"

/* What is left of the interest: the kernel's word for that is a mask without events. */
static uint32_t keep_events(const struct xr_epreg *r)
{
	if (!(r->events & EPOLLONESHOT) ||
	    !(r->fired || r->parked || (!r->attached && xr_ep_reg_has_fired(r) == 1)))
		return r->events;
	return r->events & (EPOLLONESHOT | EPOLLET);
}

/* Both locks. */
static void keep_one(struct xr_epreg *r, struct xr_epoll_kept *kept)
{
	struct xr_epoll *ep = r->ep;
	int epfd = ep->outer >= 0 ? ep->outer : ep->epfd;

	/* registered under a number that was closed since: nobody can name it */
	if (!r->absent && xr_fd_flow(r->fd) == r->flow) {
		if (kept->n < XR_EPOLL_KEPT) {
			kept->reg[kept->n].epfd = epfd;
			kept->reg[kept->n].fd = r->fd;
			kept->reg[kept->n].events = keep_events(r);
			kept->reg[kept->n++].data = r->data;
		} else {
			xr_warn("a descriptor is in too many epoll sets to stay in all of them");
		}
	}
	if (r->attached)
		xr_ep_reg_leave(r);
	else if (!r->parked)
		xr_ep_sys_ctl(epfd, EPOLL_CTL_DEL, r->fd, 0, 0);
	xr_ep_reg_free(r);
}

void xr_epoll_flow_take(struct xr_flow *f, struct xr_epoll_kept *kept)
{
	struct xr_epflow *ef;
	struct xr_epreg *r, *next;

	kept->n = 0;
	if (xr_ep_big_lock())
		return;
	if (xr_ep_settle(f))
		xr_warn("a descriptor does not stay in its epoll set: no memory");
	ef = xr_ep_flow(f, 0);
	if (!ef)
		goto unlock_big;
	for (r = ef->regs; r; r = next) {
		struct xr_epoll *ep = r->ep;

		next = r->flow_next;
		if (xr_ep_lock(ep))
			continue;
		keep_one(r, kept);
		xr_ep_unlock(ep);
	}
	ef->attached = 0;
unlock_big:
	xr_ep_big_unlock();
}

void xr_epoll_flow_put(const struct xr_epoll_kept *kept)
{
	uint32_t i;

	for (i = 0; i < kept->n; i++)
		xr_ep_sys_ctl(kept->reg[i].epfd, EPOLL_CTL_ADD, kept->reg[i].fd,
			      kept->reg[i].events, kept->reg[i].data);
}
