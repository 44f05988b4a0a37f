/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * epoll_ctl while a flow is young.  Most connections live for one request and never leave
 * TCP: what has to be known of one, should it move, is its registration as the kernel has
 * it now.  There is one, as a rule, and it is kept in the flow itself; a second one, or a
 * move, makes it a record like all others (xr_ep_settle).
 */
#include <errno.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "fdtab.h"
#include "mem.h"
#include "ready.h"

/* The file may have been closed since, and its memory be another one's. */
static int young_valid(const struct xr_flow_young *y)
{
	return y->ep && y->ep->gen == xr_ep_gen && y->ep->token == y->token && y->ep->fds;
}

int xr_ep_settle(struct xr_flow *f)
{
	struct xr_flow_young *y = &f->priv->young;
	struct epoll_event ev = { .events = y->events };
	struct xr_epflow *ef;
	struct xr_epreg *r;

	if (!y->ep)
		return 0;
	if (young_valid(y)) {
		if (xr_ep_lock(y->ep))
			return -EDEADLK;
		ev.data.u64 = y->data;
		ef = xr_ep_flow(f, 1);
		r = ef ? xr_ep_reg_new(y->ep, f, ef, y->fd, &ev) : NULL;
		xr_ep_unlock(y->ep);
		if (!r)
			return -ENOMEM;
	}
	y->ep = NULL;
	return 0;
}

int xr_epoll_flow_registered(struct xr_flow *f)
{
	const struct xr_epflow *ef = xr_ep_flow(f, 0);

	return (ef && ef->regs) || young_valid(&f->priv->young);
}

/* Under big. */
static int young_ctl(struct xr_epoll *ep, int epfd, int op, int fd, struct xr_flow *f,
		     struct epoll_event *ev)
{
	struct xr_flow_young *y = &f->priv->young;
	int mine = y->ep == ep && y->token == ep->token && y->fd == fd, e;

	/* a record there is: it is kept in step the long way */
	if (f->priv->regs || !ep->fds || (op == EPOLL_CTL_ADD ? !mine && young_valid(y) : !mine))
		return 1;
	/* the kernel looks at the event first: what it took is valid, and can be read */
	e = (int)xr_sys4(SYS_epoll_ctl, epfd, op, fd, ev);
	if (e)
		return e;
	if (op == EPOLL_CTL_DEL) {
		y->ep = NULL;
		return 0;
	}
	y->ep = ep;
	y->token = ep->token;
	y->fd = fd;
	y->events = ev->events;
	y->data = ev->data.u64;
	return 0;
}

int xr_epoll_ctl_young(int epfd, int op, int fd, struct xr_flow *f, struct epoll_event *ev)
{
	struct xr_epoll *ep = xr_fd_epoll(epfd);
	int r;

	if (!ep || ep->gen != xr_ep_gen || f->priv->regs || f->owner_pid != xr_getpid() ||
	    (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL))
		return 1;
	if (xr_ep_big_lock())
		return -ENOMEM;
	r = young_ctl(ep, epfd, op, fd, f, ev);
	xr_ep_big_unlock();
	return r;
}
