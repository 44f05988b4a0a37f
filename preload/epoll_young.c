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
#include "epoll_young.h"
#include "fdtab.h"
#include "mem.h"
#include "ready.h"
#include "real.h"

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
	if (e || !xr_ep_young_stands(y))
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

	return (ef && ef->regs) || xr_ep_young_stands(&f->own->young);
}

/* Where the kernel's registration is all that there will ever be: the flow stays on TCP. */
int xr_ep_young_alone(struct xr_flow *f, int epfd, int op, int fd, struct epoll_event *ev)
{
	int r = xr_real.epoll_ctl(epfd, op, fd, ev), saved = errno;

	xr_flow_stay_tcp(f, fd, XR_REASON_EPOLL_EXCLUSIVE);
	errno = saved;
	return r;
}
