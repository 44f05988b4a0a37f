/* SPDX-License-Identifier: BSD-2-Clause */
/* close, dup and fcntl. */
#include "hook.h"
#include <linux/close_range.h>
#include "spare.h"

/* Of the program's table: the helper has another one. */
static int fd_is_ours(int fd)
{
	return xr_fd_is_ours(fd) && !xr_helper_thread;
}

XR_HOOK XR_HOT int close(int fd)
{
	uintptr_t e = xr_fd_entry(fd);

	if (e)
		return xr_fds_close_any(fd, e);
	/* loops that close everything meet ours too */
	if (xr_unlikely(fd_is_ours(fd)))
		return (int)xr_ret(-EBADF);
	return xr_real.close(fd);
}

XR_ALIAS(close) int __close(int fd);

/* Without close_range(2), before Linux 5.9. */
static void close_each(unsigned int first, unsigned int last)
{
	unsigned int limit = (unsigned int)sysconf(_SC_OPEN_MAX), fd;

	for (fd = first; fd <= last && fd < limit; fd++)
		xr_real.close((int)fd);
}

/* Closes what lies between descriptors of ours.  0 or -errno. */
static int close_around(unsigned int first, unsigned int last, int flags, int emulate)
{
	while (first <= last) {
		int ours = first <= INT_MAX ? xr_fd_next_ours((int)first) : -1;
		unsigned int end = ours < 0 || (unsigned int)ours > last ? last :
				   (unsigned int)ours - 1;

		if (ours < 0 || (unsigned int)ours != first) {
			if (emulate) {
				close_each(first, end);
			} else if (xr_real.close_range(first, end, flags)) {
				if (errno != ENOSYS)
					return -errno;
				return -ENOSYS;
			}
			/* unshared once is enough */
			flags &= ~CLOSE_RANGE_UNSHARE;
		}
		if (end == last)
			break;
		first = (unsigned int)ours + 1;
		if (!first)
			break;
	}
	return 0;
}

static int close_span(unsigned int first, unsigned int last, int flags, int emulate)
{
	int fd, saved = errno, r;

	if (first > last || flags & ~(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC))
		return -EINVAL;
	/* ours are close-on-exec already */
	if (flags & CLOSE_RANGE_CLOEXEC)
		return xr_real.close_range(first, last, flags) ? -errno : 0;
	if (first <= INT_MAX) {
		for (fd = xr_fd_next((int)first); fd >= 0 && (unsigned int)fd <= last;
		     fd = xr_fd_next(fd + 1))
			xr_fds_close(fd);
	}
	r = close_around(first, last, flags, emulate);
	errno = saved;
	return r;
}

XR_HOOK int close_range(unsigned int first, unsigned int last, int flags)
{
	return (int)xr_ret(close_span(first, last, flags, 0));
}

XR_HOOK void closefrom(int low)
{
	unsigned int first = low < 0 ? 0 : (unsigned int)low;

	if (close_span(first, ~0u, 0, 0) == -ENOSYS)
		close_span(first, ~0u, 0, 1);
}

/* dup, F_DUPFD, F_DUPFD_CLOEXEC: the kernel chooses the number. */
#define HOOK_DUP(fd, call)					\
	__extension__({						\
		uintptr_t dup_e = xr_fds_dup_begin(fd, 0);	\
		int dup_new = XR_SPARE(call);			\
								\
		if (dup_new >= 0)				\
			xr_fds_fresh(dup_new);			\
		xr_fds_dup_end(dup_e, fd, dup_new);		\
		dup_new;					\
	})

XR_HOOK int dup(int fd)
{
	return HOOK_DUP(fd, xr_real.dup(fd));
}

/* The number that dup2 and dup3 close on the way is closed as close() would. */
static int dup_over(int fd, int newfd, int flags, int three)
{
	struct xr_fds_closing c = { 0, 0 };
	uintptr_t e;
	int r, saved;

	if (xr_vfork_depth) {
		xr_fds_dup_begin(fd, 0);
		xr_vfork_changed(newfd);
		return three ? xr_real.dup3(fd, newfd, flags) : xr_real.dup2(fd, newfd);
	}
	/* a number that the program may have, unless it is beyond its limit */
	if (xr_unlikely(fd_is_ours(newfd)))
		xr_spare_number(newfd);
	if (fd_is_ours(newfd) || fd_is_ours(fd))
		return (int)xr_ret(-EBADF);
	e = xr_fds_dup_begin(fd, newfd >= 0 && newfd <= STDERR_FILENO);
	/* a call that fails closes nothing */
	if (xr_fd_entry(newfd) && xr_sys3(SYS_fcntl, fd, F_GETFD, 0) >= 0 && !(flags & ~O_CLOEXEC))
		c = xr_fds_close_begin(newfd);
	r = three ? xr_real.dup3(fd, newfd, flags) : xr_real.dup2(fd, newfd);
	saved = errno;
	xr_fds_close_end(c);
	xr_fds_dup_end(e, fd, r);
	errno = saved;
	return r;
}

XR_HOOK int dup2(int fd, int newfd)
{
	if (fd == newfd || (xr_likely(!xr_fd_entry(fd)) && xr_likely(!xr_fd_entry(newfd)) &&
			    !fd_is_ours(newfd)))
		return xr_real.dup2(fd, newfd);
	return dup_over(fd, newfd, 0, 0);
}

XR_ALIAS(dup2) int __dup2(int fd, int newfd);

XR_HOOK int dup3(int fd, int newfd, int flags)
{
	if (fd == newfd || (xr_likely(!xr_fd_entry(fd)) && xr_likely(!xr_fd_entry(newfd)) &&
			    !fd_is_ours(newfd)))
		return xr_real.dup3(fd, newfd, flags);
	return dup_over(fd, newfd, flags, 1);
}

static XR_HOT int hook_fcntl(__typeof__(fcntl) *real, int fd, int cmd, void *arg)
{
	struct xr_flow *f;
	int r;

	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC) {
		if (xr_unlikely(fd_is_ours(fd)))
			return (int)xr_ret(-EBADF);
		return HOOK_DUP(fd, real(fd, cmd, arg));
	}
	f = xr_fd_flow(fd);
	if (xr_likely(!f)) {
		/* a probing loop sees no descriptor where close() says that there is none */
		if (xr_unlikely(fd_is_ours(fd)))
			return (int)xr_ret(-EBADF);
		return real(fd, cmd, arg);
	}
	switch (cmd) {
	case F_SETFL:
		if ((intptr_t)arg & O_ASYNC)
			xr_flow_stay_tcp(f, fd, XR_REASON_OPTION);
		r = real(fd, cmd, arg);
		if (!r)
			f->nonblock = ((intptr_t)arg & O_NONBLOCK) != 0;
		return r;
	case F_SETOWN:
	case F_SETOWN_EX:
	case F_SETSIG:
		xr_flow_stay_tcp(f, fd, XR_REASON_OPTION);
		return real(fd, cmd, arg);
	default:
		return real(fd, cmd, arg);
	}
}

XR_HOOK XR_HOT int fcntl(int fd, int cmd, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	return hook_fcntl(xr_real.fcntl, fd, cmd, arg);
}

XR_ALIAS(fcntl) int __fcntl(int fd, int cmd, ...);

XR_HOOK XR_HOT int fcntl64(int fd, int cmd, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	return hook_fcntl(xr_real.fcntl64, fd, cmd, arg);
}
