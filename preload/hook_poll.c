/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * poll and select.  Sets without a flow that is, or may come, on a fabric go to the
 * kernel untouched; so does a look that does not wait, at flows that are on TCP.
 */
#include "hook.h"
#include "ready.h"

/*
 * What a descriptor brings into the set, as a mask of paths.  An epoll file counts as a
 * flow on a fabric: it may hold some, and shows them to the kernel only when asked to.
 */
static uint32_t fd_paths(int fd)
{
	uintptr_t e = xr_fd_entry(fd);
	struct xr_flow *f;

	if (xr_likely(!e))
		return 0;
	if ((e & 3) == XR_FD_EPOLL)
		return xr_vfork_depth ? 0 : XR_PATH_FABRIC;
	f = xr_hook_flow(fd);
	return f ? xr_load_relaxed(&f->path) : 0;
}

static uint32_t poll_paths(struct pollfd *fds, nfds_t n)
{
	uint32_t paths = 0;
	nfds_t i;

	for (i = 0; i < n; i++)
		paths |= fd_paths(fds[i].fd);
	return paths;
}

static int poll_kernel(uint32_t paths, int waits)
{
	return xr_likely(!paths) || (!(paths & XR_PATH_FABRIC) && !waits);
}

static uint64_t deadline_ns(uint64_t ns)
{
	uint64_t now = xr_now_ns();

	return ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
}

XR_HOOK int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	uint64_t deadline = 0;

	if (poll_kernel(poll_paths(fds, n), timeout))
		return xr_real.poll(fds, n, timeout);
	if (timeout >= 0)
		deadline = deadline_ns((uint64_t)timeout * 1000000u);
	return (int)xr_ret(xr_poll(fds, n, deadline, timeout >= 0, NULL));
}

XR_ALIAS(poll) int __poll(struct pollfd *fds, nfds_t n, int timeout);

XR_HOOK int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room)
{
	if (xr_unlikely(room / sizeof(*fds) < n))
		return xr_real.__poll_chk(fds, n, timeout, room);
	return poll(fds, n, timeout);
}

/* Nanoseconds; UINT64_MAX for what is not a valid time, the kernel then says EINVAL. */
static uint64_t timespec_ns(const struct timespec *ts)
{
	if (ts->tv_sec < 0 || ts->tv_nsec < 0 || ts->tv_nsec >= 1000000000)
		return UINT64_MAX;
	if ((uint64_t)ts->tv_sec > UINT64_MAX / 2000000000u)
		return UINT64_MAX - 1;
	return (uint64_t)ts->tv_sec * 1000000000u + (uint64_t)ts->tv_nsec;
}

XR_HOOK int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask)
{
	uint64_t ns = ts ? timespec_ns(ts) : 1;

	if (poll_kernel(poll_paths(fds, n), ns != 0) || ns == UINT64_MAX)
		return xr_real.ppoll(fds, n, ts, mask);
	return (int)xr_ret(xr_poll(fds, n, ts ? deadline_ns(ns) : 0, ts != NULL, mask));
}

XR_HOOK int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *ts,
			const sigset_t *mask, size_t room)
{
	if (xr_unlikely(room / sizeof(*fds) < n))
		return xr_real.__ppoll_chk(fds, n, ts, mask, room);
	return ppoll(fds, n, ts, mask);
}

/* ---- select --------------------------------------------------------------- */

#define WORD_BITS	(8 * (int)sizeof(long))

/* Programs use sets of more than FD_SETSIZE bits: they are arrays of longs, n says how long. */
static uint32_t select_paths(int n, const fd_set *r, const fd_set *w, const fd_set *e)
{
	const unsigned long *set[3] = { (const unsigned long *)(const void *)r,
					(const unsigned long *)(const void *)w,
					(const unsigned long *)(const void *)e };
	uint32_t paths = 0;
	int i, s, fd;

	for (i = 0; i * WORD_BITS < n; i++) {
		unsigned long bits = 0;

		for (s = 0; s < 3; s++)
			if (set[s])
				bits |= set[s][i];
		for (; bits; bits &= bits - 1) {
			fd = i * WORD_BITS + __builtin_ctzl(bits);
			if (fd >= n)
				break;
			paths |= fd_paths(fd);
		}
	}
	return paths;
}

/* As the kernel: microseconds may exceed a second, neither part may be negative. */
static uint64_t timeval_ns(const struct timeval *tv)
{
	if (tv->tv_sec < 0 || tv->tv_usec < 0)
		return UINT64_MAX;
	if ((uint64_t)tv->tv_sec > UINT64_MAX / 4000000000u)
		return UINT64_MAX - 1;
	return (uint64_t)tv->tv_sec * 1000000000u + (uint64_t)tv->tv_usec * 1000u;
}

XR_HOOK int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		   struct timeval *restrict tv)
{
	uint64_t ns = tv ? timeval_ns(tv) : 1, deadline, now;
	int ret;

	if (poll_kernel(select_paths(n, r, w, e), ns != 0) || ns == UINT64_MAX)
		return xr_real.select(n, r, w, e, tv);
	deadline = tv ? deadline_ns(ns) : 0;
	ret = xr_select(n, r, w, e, deadline, tv != NULL, NULL);
	if (tv) {
		/* Linux tells what is left of the time, whatever the outcome */
		now = xr_now_ns();
		ns = deadline > now ? deadline - now : 0;
		tv->tv_sec = (time_t)(ns / 1000000000u);
		tv->tv_usec = (suseconds_t)(ns % 1000000000u / 1000u);
	}
	return (int)xr_ret(ret);
}

XR_ALIAS(select) int __select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
				struct timeval *restrict tv);

XR_HOOK int pselect(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		    const struct timespec *restrict ts, const sigset_t *restrict mask)
{
	uint64_t ns = ts ? timespec_ns(ts) : 1;

	if (poll_kernel(select_paths(n, r, w, e), ns != 0) || ns == UINT64_MAX)
		return xr_real.pselect(n, r, w, e, ts, mask);
	return (int)xr_ret(xr_select(n, r, w, e, ts ? deadline_ns(ns) : 0, ts != NULL, mask));
}
