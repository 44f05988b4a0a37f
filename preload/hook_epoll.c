/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll: the work is in epoll.c, for epoll files made through these hooks. */
#include "hook.h"
#include "ready.h"

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
	return created(xr_real.epoll_create(size), 0);
}

XR_HOOK int epoll_create1(int flags)
{
	return created(xr_real.epoll_create1(flags), flags);
}

static int known(int epfd)
{
	if (xr_likely(!xr_fd_epoll(epfd)) || xr_unlikely(xr_vfork_depth))
		return 0;
	xr_fork_check();
	return 1;
}

XR_SLOW int ctl_flow(struct xr_flow *f, int epfd, int op, int fd, struct epoll_event *ev)
{
	int r;

	if (known(epfd)) {
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

XR_HOOK int epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct xr_flow *f = xr_fd_flow(fd);

	/* what can never move needs no record: the kernel's is all there is to know */
	return f && xr_flow_settled(f) ? xr_real.epoll_ctl(epfd, op, fd, ev) :
					 ctl_flow(f, epfd, op, fd, ev);
}

XR_HOOK int epoll_wait(int epfd, struct epoll_event *ev, int max, int timeout)
{
	if (!known(epfd) || max <= 0)
		return xr_real.epoll_wait(epfd, ev, max, timeout);
	return (int)xr_ret(xr_epoll_wait_ms(epfd, ev, max, timeout, NULL));
}

XR_HOOK int epoll_pwait(int epfd, struct epoll_event *ev, int max, int timeout,
			const sigset_t *mask)
{
	if (!known(epfd) || max <= 0)
		return xr_real.epoll_pwait(epfd, ev, max, timeout, mask);
	return (int)xr_ret(xr_epoll_wait_ms(epfd, ev, max, timeout, mask));
}

XR_HOOK int epoll_pwait2(int epfd, struct epoll_event *ev, int max, const struct timespec *ts,
			 const sigset_t *mask)
{
	uint64_t deadline = 0, ns;

	if (!known(epfd) || max <= 0 ||
	    (ts && (ts->tv_sec < 0 || ts->tv_nsec < 0 || ts->tv_nsec >= 1000000000)))
		return xr_real.epoll_pwait2(epfd, ev, max, ts, mask);
	if (ts && (ts->tv_sec || ts->tv_nsec)) {
		deadline = xr_now_ns();
		if ((uint64_t)ts->tv_sec > UINT64_MAX / 4000000000u)
			ns = UINT64_MAX - deadline;
		else
			ns = (uint64_t)ts->tv_sec * 1000000000u + (uint64_t)ts->tv_nsec;
		deadline += ns;
	}
	return (int)xr_ret(xr_epoll_wait(epfd, ev, max, deadline, ts != NULL, mask));
}
