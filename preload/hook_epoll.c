/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll: the work is in epoll.c, for epoll files made through these hooks. */
#include "hook.h"
#include "epoll_young.h"
#include "ready.h"
#include "spare.h"
#include "user.h"

static int created(int fd, int flags)
{
	int saved = errno;

	if (fd < 0 || xr_vfork_depth)
		return fd;
	xr_fds_fresh(fd);
	xr_process_init();
	if (xr_active) {
		xr_fork_check();
		/* without memory for it the file stays unknown, and flows in it on TCP */
		xr_epoll_created(fd, flags);
	}
	errno = saved;
	return fd;
}

XR_HOOK int epoll_create(int size)
{
	return created(XR_SPARE(xr_real.epoll_create(size)), 0);
}

XR_HOOK int epoll_create1(int flags)
{
	return created(XR_SPARE(xr_real.epoll_create1(flags)), flags);
}

/* The file, when it is one of ours and this process may use it. */
static inline struct xr_epoll *known(int epfd)
{
	struct xr_epoll *ep = xr_fd_epoll(epfd);

	if (xr_likely(xr_process_calm()))
		return ep;
	if (!ep || xr_vfork_depth)
		return NULL;
	xr_fork_check();
	return ep;
}

XR_SLOW int ctl_flow(struct xr_flow *f, int epfd, int op, int fd, struct epoll_event *ev)
{
	struct epoll_event own;
	int r;

	if (known(epfd)) {
		/* first of all, as in the kernel: and it, when that fails, says EFAULT */
		if (op != EPOLL_CTL_DEL && ev) {
			if (xr_user_get(&own, ev, sizeof(own)))
				return xr_real.epoll_ctl(epfd, op, fd, ev);
			ev = &own;
		}
		/* what is registered cannot change hands any more */
		if (f && op == EPOLL_CTL_ADD && xr_unlikely(f->owner_pid != xr_getpid()))
			xr_fds_adopt(f, fd);
		return (int)xr_ret(xr_epoll_ctl(epfd, op, fd, ev));
	}
	r = xr_real.epoll_ctl(epfd, op, fd, ev);
	/* an epoll file that came from elsewhere watches the kernel socket alone */
	if (f && !r && !xr_vfork_depth && op != EPOLL_CTL_DEL)
		xr_flow_stay_tcp(f, fd, XR_REASON_EPOLL_EXCLUSIVE);
	return r;
}

XR_HOOK XR_HOT int epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct xr_flow *f = xr_fd_flow(fd);
	struct xr_epoll *ep;
	int r;

	if (f) {
		/* what can never move needs no record: the kernel's is all there is to know */
		if (xr_unlikely(xr_load_relaxed(&f->upgrade_off)) && xr_flow_settled(f))
			return xr_real.epoll_ctl(epfd, op, fd, ev);
		ep = known(epfd);
		r = ep ? xr_epoll_ctl_young(ep, epfd, op, fd, f, ev) : 1;
		if (xr_likely(r != 1))
			return r;
	}
	return ctl_flow(f, epfd, op, fd, ev);
}

/* What is no room for events at all is for the kernel to refuse. */
static inline struct xr_epoll *carried(int epfd, const struct epoll_event *ev, int max)
{
	struct xr_epoll *ep = known(epfd);

	return ep && max > 0 && (size_t)max <= INT_MAX / sizeof(*ev) &&
	       xr_user_range(ev, (size_t)max * sizeof(*ev)) ? ep : NULL;
}

XR_HOOK XR_HOT int epoll_wait(int epfd, struct epoll_event *ev, int max, int timeout)
{
	struct xr_epoll *ep = carried(epfd, ev, max);

	return xr_likely(ep != NULL) ? xr_epoll_wait_ms(ep, epfd, ev, max, timeout, NULL) :
				       xr_real.epoll_wait(epfd, ev, max, timeout);
}

XR_HOOK int epoll_pwait(int epfd, struct epoll_event *ev, int max, int timeout,
			const sigset_t *mask)
{
	struct xr_epoll *ep = carried(epfd, ev, max);
	sigset_t own;

	if (!ep)
		return xr_real.epoll_pwait(epfd, ev, max, timeout, mask);
	if (mask && xr_mask_import(&own, mask))
		return (int)xr_ret(-EFAULT);
	return xr_epoll_wait_ms(ep, epfd, ev, max, timeout, mask ? &own : NULL);
}

XR_HOOK int epoll_pwait2(int epfd, struct epoll_event *ev, int max, const struct timespec *ts,
			 const sigset_t *mask)
{
	uint64_t deadline = 0, ns;
	struct timespec t = { 0, 0 };
	sigset_t own;

	if (!carried(epfd, ev, max) || (ts && xr_user_get(&t, ts, sizeof(t))) ||
	    t.tv_sec < 0 || t.tv_nsec < 0 || t.tv_nsec >= 1000000000)
		return xr_real.epoll_pwait2(epfd, ev, max, ts, mask);
	if (mask && xr_mask_import(&own, mask))
		return (int)xr_ret(-EFAULT);
	if (t.tv_sec || t.tv_nsec) {
		deadline = xr_now_ns();
		if ((uint64_t)t.tv_sec > UINT64_MAX / 4000000000u)
			ns = UINT64_MAX - deadline;
		else
			ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		deadline += ns;
	}
	return (int)xr_ret(xr_epoll_wait(epfd, ev, max, deadline, ts != NULL,
					 mask ? &own : NULL));
}
