/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The functions that the hooks stand in front of.
 *
 * Every pointer is callable from the first instruction of the process on: until the
 * real function is known it points to a stand-in, which resolves the table and, while
 * somebody (this thread, in the middle of it, or another) is at it, makes the raw
 * system call.  So the hooks call through the table without asking.
 */
#ifndef XR_REAL_H
#define XR_REAL_H

#include <aio.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>
#include <wordexp.h>
#include "hooks.def"

/* sigset, siginterrupt: what programs may call is hooked whether or not it is advised */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Exported by glibc without a declaration, or only with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __recv_chk(int fd, void *buf, size_t n, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t n, size_t room, int flags,
		       struct sockaddr *addr, socklen_t *len);
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask,
		size_t room);
int __dprintf_chk(int fd, int flag, const char *fmt, ...);
int __vdprintf_chk(int fd, int flag, const char *fmt, va_list ap);

struct xr_real {
#define XR_REAL_MEMBER(name, ...)	__typeof__(name) *name;
#define XR_REAL_NOTHING(...)
	XR_HOOKS(XR_REAL_MEMBER, XR_REAL_NOTHING)
#undef XR_REAL_MEMBER
};

extern struct xr_real xr_real;

/* Looks every function up; at once when that was done.  Errors leave the stand-in in place. */
void xr_real_resolve(void);

#endif
