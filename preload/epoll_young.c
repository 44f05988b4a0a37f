/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * epoll_ctl while a flow is young.  Most connections live for one request and never leave
 * TCP: what has to be known of one, should it move, is its registration as the kernel has
 * it now.  There is one, as a rule, and it is kept in the flow itself; a second one, or a
 * move, makes it a record like all others (xr_ep_settle).
 *
 * A lock of the flow alone keeps it in step with the kernel: threads that register their
 * own connections do not meet.  Before it come big, after it the lock of the file.
 */
#include <errno.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "fdtab.h"
#include "mem.h"
#include "ready.h"

/* The file may have been closed since, and its memory be another one's. */
static int young_stands(const struct xr_flow_young *y)
{
	return y->ep && y->ep->gen == xr_ep_gen && (uint32_t)y->ep->token == y->file && y->ep->fds;
}

int xr_ep_settle(struct xr_flow *f)
{
	struct xr_flow_young *y = &f->own->young;
	struct epoll_event ev;
	struct xr_epflow *ef;
	struct xr_epreg *r;
	int e;

	/* a forked child does not wait for a lock that was its parent's: nothing there is for it */
	if (f->owner_pid != xr_getpid() || (f->own->regs && !y->ep))
		return 0;
	/* whoever is in the system call now has the registration when it is looked for below */
	if (xr_lock_soon(&y->lock))
		return -EAGAIN;
	/* made under the lock: who gets it next takes the long way */
	ef = xr_ep_flow(f, 1);
	e = ef ? 0 : -ENOMEM;
	if (e || !young_stands(y))
		goto forget;
	e = xr_ep_lock(y->ep);
	if (e)
		goto unlock;
	ev.events = y->events;
	ev.data.u64 = y->data;
	r = xr_ep_reg_new(y->ep, f, ef, y->fd, &ev);
	xr_ep_unlock(y->ep);
	e = r ? 0 : -ENOMEM;
forget:
	if (!e)
		y->ep = NULL;
unlock:
	xr_unlock(&y->lock);
	return e;
}

int xr_epoll_flow_registered(struct xr_flow *f)
{
	const struct xr_epflow *ef = xr_ep_flow(f, 0);

	return (ef && ef->regs) || young_stands(&f->own->young);
}

/* Where the kernel's registration is all that there will ever be: the flow stays on TCP. */
static __attribute__((noinline, cold)) int young_alone(struct xr_flow *f, int epfd, int op, int fd,
						       struct epoll_event *ev)
{
	int e = (int)xr_sys4(SYS_epoll_ctl, epfd, op, fd, ev);

	xr_flow_stay_tcp(f, fd, XR_REASON_EPOLL_EXCLUSIVE);
	return e;
}

int xr_epoll_ctl_young(struct xr_epoll *ep, int epfd, int op, int fd, struct xr_flow *f,
		       struct epoll_event *ev)
{
	struct xr_flow_young *y = &f->own->young;
	int mine, e = 1;

	if (ep->gen != xr_ep_gen || f->own->regs || f->owner_pid != xr_getpid() ||
	    (unsigned int)op - 1 > 2)
		return 1;
	/* a signal handler on top of this very work, or a thread that was taken out of it by one */
	if (xr_unlikely(xr_trylock(&y->lock)) && xr_lock_soon(&y->lock))
		return young_alone(f, epfd, op, fd, ev);
	mine = y->ep == ep && y->file == (uint32_t)ep->token && y->fd == fd;
	/* a record there is by now: it is kept in step the long way */
	if (f->own->regs || (!mine && (op != EPOLL_CTL_ADD || young_stands(y) || !ep->fds)))
		goto unlock;
	/* the kernel looks at the event first: what it took is valid, and can be read */
	e = (int)xr_sys4(SYS_epoll_ctl, epfd, op, fd, ev);
	if (e)
		goto unlock;
	y->ep = op == EPOLL_CTL_DEL ? NULL : ep;
	if (op == EPOLL_CTL_DEL)
		goto unlock;
	y->file = (uint32_t)ep->token;
	y->fd = fd;
	y->events = ev->events;
	y->data = ev->data.u64;
unlock:
	xr_unlock(&y->lock);
	return e;
}
