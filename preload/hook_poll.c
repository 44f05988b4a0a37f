/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * poll and select.  Sets without a flow that is, or may come, on a fabric go to the
 * kernel untouched; so does a look that does not wait, at flows that are on TCP.
 */
#include "hook.h"
#include "ready.h"
#include "user.h"

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

#define LOOK	32	/* descriptors copied in at a time */

/* What cannot be read is for the kernel to refuse. */
static uint32_t poll_paths(struct pollfd *fds, nfds_t n)
{
	struct pollfd own[LOOK];
	uint32_t paths = 0;
	nfds_t i, k;

	if (!xr_load_relaxed(&xr_fd_any))
		return 0;
	for (; n; n -= k, fds += k) {
		k = n < LOOK ? n : LOOK;
		if (xr_user_get(own, fds, k * sizeof(own[0])))
			return 0;
		for (i = 0; i < k; i++)
			paths |= fd_paths(own[i].fd);
	}
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

	/* nothing is carried yet, and nothing held up: not worth a look at the set */
	if (!timeout && !xr_load_relaxed(&xr_user_moved))
		return xr_real.poll(fds, n, timeout);
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

/*
 * Nanoseconds; UINT64_MAX for what is not a valid time, the kernel then says EINVAL.
 * 0 or -EFAULT.
 */
static int timespec_get_ns(const struct timespec *user, uint64_t *ns)
{
	struct timespec ts;

	if (xr_user_get(&ts, user, sizeof(ts)))
		return -EFAULT;
	if (ts.tv_sec < 0 || ts.tv_nsec < 0 || ts.tv_nsec >= 1000000000)
		*ns = UINT64_MAX;
	else if ((uint64_t)ts.tv_sec > UINT64_MAX / 2000000000u)
		*ns = UINT64_MAX - 1;
	else
		*ns = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	return 0;
}

XR_HOOK int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask)
{
	uint32_t paths = poll_paths(fds, n);
	uint64_t ns = 1;
	sigset_t own;

	if (xr_likely(!paths))
		return xr_real.ppoll(fds, n, ts, mask);
	if (ts && timespec_get_ns(ts, &ns))
		return (int)xr_ret(-EFAULT);
	if (poll_kernel(paths, ns != 0) || ns == UINT64_MAX)
		return xr_real.ppoll(fds, n, ts, mask);
	if (mask && xr_mask_import(&own, mask))
		return (int)xr_ret(-EFAULT);
	return (int)xr_ret(xr_poll(fds, n, ts ? deadline_ns(ns) : 0, ts != NULL,
				   mask ? &own : NULL));
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
	unsigned long own[LOOK], bits;
	uint32_t paths = 0;
	int i, k, s, fd, words = n / WORD_BITS + (n % WORD_BITS > 0);

	if (!xr_load_relaxed(&xr_fd_any))
		return 0;
	for (s = 0; s < 3; s++) {
		for (i = 0; set[s] && i < words; i++) {
			k = i % LOOK;
			if (!k && xr_user_get(own, set[s] + i, sizeof(long) * (size_t)
					      (words - i < LOOK ? words - i : LOOK)))
				return 0;
			bits = own[k];
			for (; bits; bits &= bits - 1) {
				fd = i * WORD_BITS + __builtin_ctzl(bits);
				if (fd >= n)
					break;
				paths |= fd_paths(fd);
			}
		}
	}
	return paths;
}

/*
 * As the kernel: microseconds may exceed a second, neither part may be negative.
 * 0 or -EFAULT.
 */
static int timeval_get_ns(const struct timeval *user, uint64_t *ns)
{
	struct timeval tv;

	if (xr_user_get(&tv, user, sizeof(tv)))
		return -EFAULT;
	if (tv.tv_sec < 0 || tv.tv_usec < 0)
		*ns = UINT64_MAX;
	else if ((uint64_t)tv.tv_sec > UINT64_MAX / 4000000000u)
		*ns = UINT64_MAX - 1;
	else
		*ns = (uint64_t)tv.tv_sec * 1000000000u + (uint64_t)tv.tv_usec * 1000u;
	return 0;
}

/* Linux tells what is left of the time, whatever the outcome; where it cannot, it does not mind. */
static void timeval_put_left(struct timeval *user, uint64_t deadline)
{
	uint64_t now = xr_now_ns(), ns = deadline > now ? deadline - now : 0;
	struct timeval tv;

	tv.tv_sec = (time_t)(ns / 1000000000u);
	tv.tv_usec = (suseconds_t)(ns % 1000000000u / 1000u);
	xr_user_put(user, &tv, sizeof(tv));
}

XR_HOOK int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		   struct timeval *restrict tv)
{
	uint32_t paths = select_paths(n, r, w, e);
	uint64_t ns = 1, deadline;
	int ret;

	if (xr_likely(!paths))
		return xr_real.select(n, r, w, e, tv);
	if (tv && timeval_get_ns(tv, &ns))
		return (int)xr_ret(-EFAULT);
	if (poll_kernel(paths, ns != 0) || ns == UINT64_MAX)
		return xr_real.select(n, r, w, e, tv);
	deadline = tv ? deadline_ns(ns) : 0;
	ret = xr_select(n, r, w, e, deadline, tv != NULL, NULL);
	if (tv)
		timeval_put_left(tv, deadline);
	return (int)xr_ret(ret);
}

XR_ALIAS(select) int __select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
				struct timeval *restrict tv);

XR_HOOK int pselect(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		    const struct timespec *restrict ts, const sigset_t *restrict mask)
{
	uint32_t paths = select_paths(n, r, w, e);
	uint64_t ns = 1;
	sigset_t own;

	if (xr_likely(!paths))
		return xr_real.pselect(n, r, w, e, ts, mask);
	if (ts && timespec_get_ns(ts, &ns))
		return (int)xr_ret(-EFAULT);
	if (poll_kernel(paths, ns != 0) || ns == UINT64_MAX)
		return xr_real.pselect(n, r, w, e, ts, mask);
	if (mask && xr_mask_import(&own, mask))
		return (int)xr_ret(-EFAULT);
	return (int)xr_ret(xr_select(n, r, w, e, ts ? deadline_ns(ns) : 0, ts != NULL,
				   mask ? &own : NULL));
}
