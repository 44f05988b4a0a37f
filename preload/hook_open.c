/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Calls that make descriptors of files that never are flows.  They are hooked where the
 * program is about to run short of numbers, some of which ours take (spare.h); a number that
 * the table still knows was closed behind our back.
 */
#include "hook.h"
#include "spare.h"

static int opened(int fd)
{
	if (xr_likely(fd >= 0)) {
		int saved = errno;

		xr_fds_fresh(fd);
		errno = saved;
	}
	return fd;
}

#define OPEN(call)	opened(XR_SPARE(call))

/* O_TMPFILE has a bit of O_DIRECTORY in it. */
#define HAS_MODE(flags)	((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE)

#define MODE_OF(flags, mode)			\
	do {					\
		if (HAS_MODE(flags)) {		\
			va_list ap;		\
						\
			va_start(ap, flags);	\
			mode = va_arg(ap, mode_t); \
			va_end(ap);		\
		}				\
	} while (0)

XR_HOOK int open(const char *path, int flags, ...)
{
	mode_t mode = 0;

	MODE_OF(flags, mode);
	return OPEN(xr_real.open(path, flags, mode));
}

XR_HOOK int open64(const char *path, int flags, ...)
{
	mode_t mode = 0;

	MODE_OF(flags, mode);
	return OPEN(xr_real.open64(path, flags, mode));
}

XR_ALIAS(open) int __open(const char *path, int flags, ...);
XR_ALIAS(open64) int __open64(const char *path, int flags, ...);

XR_HOOK int openat(int dir, const char *path, int flags, ...)
{
	mode_t mode = 0;

	MODE_OF(flags, mode);
	return OPEN(xr_real.openat(dir, path, flags, mode));
}

XR_HOOK int openat64(int dir, const char *path, int flags, ...)
{
	mode_t mode = 0;

	MODE_OF(flags, mode);
	return OPEN(xr_real.openat64(dir, path, flags, mode));
}

/* With _FORTIFY_SOURCE, where the compiler cannot see whether a mode is needed. */
XR_HOOK int __open_2(const char *path, int flags)
{
	return OPEN(xr_real.__open_2(path, flags));
}

XR_HOOK int __open64_2(const char *path, int flags)
{
	return OPEN(xr_real.__open64_2(path, flags));
}

XR_HOOK int __openat_2(int dir, const char *path, int flags)
{
	return OPEN(xr_real.__openat_2(dir, path, flags));
}

XR_HOOK int __openat64_2(int dir, const char *path, int flags)
{
	return OPEN(xr_real.__openat64_2(dir, path, flags));
}

XR_HOOK int creat(const char *path, mode_t mode)
{
	return OPEN(xr_real.creat(path, mode));
}

XR_HOOK int creat64(const char *path, mode_t mode)
{
	return OPEN(xr_real.creat64(path, mode));
}

/* libc opens for these without passing the hooks. */
#define OPEN_FILE(type, call)	XR_SPARE_FOR(type *, NULL, call)

XR_HOOK FILE *fopen(const char *restrict path, const char *restrict mode)
{
	return OPEN_FILE(FILE, xr_real.fopen(path, mode));
}

XR_HOOK FILE *fopen64(const char *restrict path, const char *restrict mode)
{
	return OPEN_FILE(FILE, xr_real.fopen64(path, mode));
}

XR_HOOK FILE *tmpfile(void)
{
	return OPEN_FILE(FILE, xr_real.tmpfile());
}

XR_HOOK FILE *tmpfile64(void)
{
	return OPEN_FILE(FILE, xr_real.tmpfile64());
}

XR_HOOK DIR *opendir(const char *path)
{
	return OPEN_FILE(DIR, xr_real.opendir(path));
}

static int piped(int r, const int fd[2])
{
	if (!r) {
		opened(fd[0]);
		opened(fd[1]);
	}
	return r;
}

XR_HOOK int pipe(int fd[2])
{
	return piped(XR_SPARE(xr_real.pipe(fd)), fd);
}

XR_ALIAS(pipe) int __pipe(int fd[2]);

XR_HOOK int pipe2(int fd[2], int flags)
{
	return piped(XR_SPARE(xr_real.pipe2(fd, flags)), fd);
}

XR_HOOK int eventfd(unsigned int count, int flags)
{
	return OPEN(xr_real.eventfd(count, flags));
}

XR_HOOK int timerfd_create(clockid_t clock, int flags)
{
	return OPEN(xr_real.timerfd_create(clock, flags));
}

XR_HOOK int signalfd(int fd, const sigset_t *mask, int flags)
{
	int r = XR_SPARE(xr_real.signalfd(fd, mask, flags));

	/* else it is the one that it was */
	return fd == -1 ? opened(r) : r;
}

XR_HOOK int memfd_create(const char *name, unsigned int flags)
{
	return OPEN(xr_real.memfd_create(name, flags));
}

XR_HOOK int inotify_init(void)
{
	return OPEN(xr_real.inotify_init());
}

XR_HOOK int inotify_init1(int flags)
{
	return OPEN(xr_real.inotify_init1(flags));
}
