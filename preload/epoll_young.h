/* SPDX-License-Identifier: BSD-2-Clause */
/* What epoll calls come to while nothing has moved: the kernel's, and a note.  Inside hook_epoll.c and epoll*.c. */
#ifndef XR_EPOLL_YOUNG_H
#define XR_EPOLL_YOUNG_H

#include <limits.h>
#include <sys/single_threaded.h>
#include "epoll.h"
#include "mem.h"
#include "ready.h"
#include "real.h"

/* The file may have been closed since, and its memory be another one's. */
static inline int xr_ep_young_stands(const struct xr_flow_young *y)
{
	return y->ep && y->ep->gen == xr_ep_gen && (uint32_t)y->ep->token == y->file && y->ep->fds;
}

/* Owner of the lock of a registration: nobody asks which thread that is, whose number would be farther away. */
#define XR_EP_YOUNG_TAKEN	UINT32_MAX

int xr_ep_young_alone(struct xr_flow *f, int epfd, int op, int fd, struct epoll_event *ev);

/*
 * epoll_ctl of a flow of this process that never moved, with the event where the program has it, and the
 * result as libc gives it.  1: the long way, nothing was done.
 */
static inline int xr_epoll_ctl_young(struct xr_epoll *ep, int epfd, int op, int fd, struct xr_flow *f,
				     struct epoll_event *ev)
{
	struct xr_flow_young *y = &f->own->young;
	uint32_t none = 0;
	int mine, r = 1;

	if (xr_unlikely(ep->gen != xr_ep_gen || xr_load_relaxed(&f->own->regs) ||
			f->owner_pid != xr_load_relaxed(&xr_mem_pid) ||
			(unsigned int)op - 1 > 2))
		return 1;
	/* a signal handler on top of this very work, or a thread that was taken out of it by one */
	if (xr_unlikely(!xr_cas(&y->lock.owner, &none, XR_EP_YOUNG_TAKEN)) && xr_lock_soon(&y->lock))
		return xr_ep_young_alone(f, epfd, op, fd, ev);
	mine = y->ep == ep && y->file == (uint32_t)ep->token && y->fd == fd;
	/* a record there is by now: it is kept in step the long way */
	if (xr_unlikely(xr_load_relaxed(&f->own->regs) ||
			(!mine && (op != EPOLL_CTL_ADD || xr_ep_young_stands(y) || !ep->fds))))
		goto unlock;
	/* the kernel looks at the event first: what it took is valid, and can be read */
	r = xr_real.epoll_ctl(epfd, op, fd, ev);
	if (xr_unlikely(r))
		goto unlock;
	if (op == EPOLL_CTL_DEL) {
		y->ep = NULL;
		goto unlock;
	}
	y->ep = ep;
	y->file = (uint32_t)ep->token;
	y->fd = fd;
	y->events = ev->events;
	y->data = ev->data.u64;
unlock:
	xr_unlock(&y->lock);
	return r;
}

static inline int xr_ep_told(const struct xr_epoll *ep, const struct epoll_event *evs, int n)
{
	uint64_t token = ep->token;
	int i;

	for (i = 0; i < n; i++)
		if (xr_unlikely(evs[i].data.u64 == token))
			return 1;
	return 0;
}

/*
 * The rest of epoll_wait.  first: what the kernel has said, as -errno, or INT_MIN; begun: when it was asked, 0
 * where that is just now.
 */
int xr_epoll_wait_moved(struct xr_epoll *ep, int epfd, struct epoll_event *evs, int max, int ms,
			const sigset_t *sigmask, struct xr_signal_mark mark, int first, uint64_t begun);

/*
 * epoll_wait with the time-out of epoll_wait(2), which the kernel gets as it is in the common case, and the
 * result as libc gives it.
 */
static inline int xr_epoll_wait_ms(struct xr_epoll *ep, int epfd, struct epoll_event *evs, int max,
				   int ms, const sigset_t *sigmask)
{
	struct xr_signal_mark mark = xr_signal_mark();
	int first = INT_MIN, saved = errno;
	uint64_t begun = 0;

	/* the call of a program of which nothing has moved: the kernel's, and a look at its answer */
	if (xr_likely(ep->gen == xr_ep_gen && !xr_load_relaxed(&ep->dirty) && !xr_ep_must_hear(ep))) {
		/*
		 * Another thread may move a flow meanwhile; else only a handler can, at once before the call
		 * or in it, which then fails with EINTR.
		 */
		if (ms > 0 && xr_unlikely(!__libc_single_threaded))
			begun = xr_now_tick();
		/* as in wait_plain */
		xr_fetch_add(&ep->plain, 1);
		if (xr_likely(!xr_load_acquire(&ep->attached)))
			first = xr_real.epoll_pwait(epfd, evs, max, ms, sigmask);
		xr_fetch_sub(&ep->plain, 1);
		if (xr_likely(first >= 0) && xr_likely(!xr_ep_told(ep, evs, first)))
			return first;
		if (first == -1) {
			first = -errno;
			/* it may be of our own event that the kernel complains */
			errno = saved;
		}
	}
	return xr_epoll_wait_moved(ep, epfd, evs, max, ms, sigmask, mark, first, first == INT_MIN ? 0 : begun);
}

#endif
