/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the hook trampolines share.  First include of every hook_*.c: with
 * _FORTIFY_SOURCE libc's headers would define some of the functions themselves.
 *
 * A trampoline finds the flow (two loads), asks its path and calls the kernel or the
 * flow.  errno is set here and nowhere below, and left alone on success.
 */
#ifndef XR_HOOK_H
#define XR_HOOK_H

#undef _FORTIFY_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include "atomic.h"
#include "fdtab.h"
#include "flow_young.h"
#include "mem.h"
#include "process.h"
#include "real.h"
#include "spare.h"
#include "zerocopy.h"

#define XR_HOOK		__attribute__((visibility("default")))
#if __has_attribute(copy)
#define XR_ALIAS(name)	__attribute__((visibility("default"), alias(#name), copy(name)))
#else
#define XR_ALIAS(name)	__attribute__((visibility("default"), alias(#name)))
#endif

/* The most that one call moves, as in the kernel (fs.h): larger requests are cut. */
#define XR_RW_MAX	((size_t)(INT_MAX & ~4095))

/* Bytes or -errno to what libc returns. */
static inline ssize_t xr_ret(ssize_t n)
{
	if (xr_likely(n >= 0))
		return n;
	errno = (int)-n;
	return -1;
}

/* The flow of fd when the kernel alone will not do; all that a hook does for other files. */
static inline struct xr_flow *xr_hook_find(int fd)
{
	struct xr_flow *f = xr_fd_flow(fd);

	return xr_likely(!f) || xr_likely(!xr_load_acquire(&f->path)) ? NULL : f;
}

/*
 * The same, and it may be used: a flow in a process that was forked behind our back must
 * not be touched before that is noticed.
 */
static inline struct xr_flow *xr_hook_flow(int fd)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) || xr_unlikely(xr_fork_check_fd(fd)) ? NULL : f;
}

/* The part of a hook that is not for other files; keeps the stack frame out of the rest. */
#define XR_SLOW		static __attribute__((noinline))
/* The part before it, for young flows. */
#define XR_YOUNG	static inline __attribute__((always_inline))

/* The kernel carries it in both directions, for this process alone, and it may move one day. */
static inline int xr_hook_young(const struct xr_flow *f)
{
	return xr_load_acquire(&f->path) == XR_PATH_COUNT && f->owner_pid == xr_load_relaxed(&xr_mem_pid) &&
	       xr_process_calm();
}

/*
 * One read (write) on a flow that may be young, as most are to their end: then what XR_CARRY would do
 * at last, without all that goes before.  n: the kernel's call is as long as that; errno is its own.
 */
#define XR_CARRY_YOUNG(f, fd, DIR, kernel, otherwise)					\
	__extension__({									\
		uint32_t young_gen = xr_load_relaxed(&(f)->gen);			\
		ssize_t young_n;							\
											\
		if (xr_likely(xr_hook_young(f)) && xr_likely(XR_FLOW_##DIR##_BEGIN(f))) {	\
			young_n = (kernel);						\
			/* not closed while it slept, and by now another connection's */	\
			if (xr_likely(xr_load_relaxed(&(f)->gen) == young_gen))		\
				XR_FLOW_##DIR##_END(f, fd, young_n);			\
		} else {								\
			young_n = (otherwise);						\
		}									\
		young_n;								\
	})

/*
 * One read (write) on a flow: `fabric` when a fabric carries the direction, else
 * `kernel`, bracketed when it counts.  `moved` is what to account for n bytes from the
 * kernel: a look at bytes (MSG_PEEK) moves none.
 */
#define XR_CARRY(f, fd, dir, PATH, fabric, kernel, moved)					\
	__extension__({										\
		ssize_t carry_n;								\
		int carry_not = xr_fork_check_fd(fd);						\
		uint32_t carry_gen = xr_load_relaxed(&(f)->gen);				\
												\
		for (;;) {									\
			uint32_t carry_path = xr_likely(!carry_not) ?				\
					      xr_load_acquire(&(f)->path) : 0;			\
												\
			if (xr_unlikely(carry_path & XR_PATH_MOVE) &&				\
			    (f)->owner_pid != xr_getpid())					\
				carry_path &= ~XR_PATH_MOVE;					\
			if (carry_path & ((PATH) | XR_PATH_MOVE)) {				\
				carry_n = (fabric);						\
				/* the flow has gone back to TCP meanwhile */			\
				if (carry_n == -EREMOTEIO)					\
					continue;						\
				carry_n = xr_ret(carry_n);					\
				break;								\
			}									\
			if (!(carry_path & XR_PATH_COUNT)) {					\
				carry_n = (kernel);						\
				break;								\
			}									\
			if (!xr_flow_tcp_##dir##_begin(f))					\
				continue;							\
			carry_n = (kernel);							\
			/* closed while it slept, and by now another connection's */		\
			if (xr_unlikely(xr_load_relaxed(&(f)->gen) != carry_gen))		\
				break;								\
			if (carry_n < 0) {							\
				int carry_errno = errno;					\
												\
				xr_flow_tcp_##dir##_end(f, fd, -carry_errno);			\
				errno = carry_errno;						\
			} else {								\
				xr_flow_tcp_##dir##_end(f, fd, (moved) ? carry_n : -EAGAIN);	\
			}									\
			if (xr_unlikely((f)->owner_pid != xr_getpid()))				\
				xr_fds_adopt(f, fd);						\
			break;									\
		}										\
		carry_n;									\
	})

#define XR_CARRY_RX(f, fd, fabric, kernel, moved) \
	XR_CARRY(f, fd, rx, XR_PATH_RX, fabric, kernel, moved)
#define XR_CARRY_TX(f, fd, fabric, kernel) \
	XR_CARRY(f, fd, tx, XR_PATH_TX, fabric, kernel, 1)

/* ---- import.c: what the kernel copies in before a call begins -------------- */

#define XR_IOV_FEW	8	/* buffers of a vector for which a fixed array will do */

/*
 * A vector of the program: total length, cut at XR_RW_MAX, and the buffers with it.  -EFAULT,
 * or -EINVAL for a length below zero.
 */
ssize_t xr_iov_import(struct iovec *own, const struct iovec *iov, size_t cnt);

/* An address that is only looked at.  0 or -errno. */
int xr_addr_import(const void *addr, socklen_t len);

/* The kernel's part of a signal mask, which is shorter than libc's.  0 or -EFAULT. */
int xr_mask_import(sigset_t *own, const sigset_t *mask);

/* A message header, with the address of one that is to be sent.  0 or -errno. */
int xr_msghdr_import(struct msghdr *own, const struct msghdr *mh, int send);

/* Room for the imported vector, on the stack of the caller, which has an array of the few. */
#define XR_IOV_ROOM(few, cnt) \
	(xr_likely((size_t)(cnt) <= XR_IOV_FEW) ? (few) : \
	 (struct iovec *)__builtin_alloca((size_t)(cnt) * sizeof(struct iovec)))

/* ---- shared by the hooks of reads and writes -------------------------------- */

/* One message; bytes or -errno.  The flow has the direction on a fabric. */
ssize_t xr_hook_recvmsg(struct xr_flow *f, int fd, struct msghdr *mh, int flags);
ssize_t xr_hook_sendmsg(struct xr_flow *f, int fd, const struct msghdr *mh, int flags);

/* Flags that the kernel must see: the flow stays on (returns to) TCP. */
#define XR_SEND_KERNEL	(MSG_OOB | MSG_FASTOPEN)
/* Those with which a call on a young flow is not like all others. */
#define XR_SEND_OTHER	(XR_SEND_KERNEL | MSG_ZEROCOPY)
#define XR_RECV_OTHER	(MSG_OOB | MSG_ERRQUEUE | MSG_PEEK)

void xr_hook_send_kernel(struct xr_flow *f, int fd, int flags);

/* ---- descriptors (fds.c) ------------------------------------------------- */

/* The kernel has just returned fd as new: what the table says about it is out of date. */
static inline void xr_fds_fresh(int fd);
/* There is an entry, which is. */
void xr_fds_stale(int fd);
/* close(2) of a descriptor that has an entry, whatever it is.  0 or -errno. */
int xr_fds_close(int fd);
/* The same with the result as libc gives it: e is the entry. */
int xr_fds_close_any(int fd, uintptr_t e);
/* The two halves around a real call that closes fd as a side effect. */
struct xr_fds_closing { uintptr_t entry; int last; };
struct xr_fds_closing xr_fds_close_begin(int fd);
void xr_fds_close_end(struct xr_fds_closing c);
/* A duplicate of fd: take a reference before the real call, then name it or give it back. */
uintptr_t xr_fds_dup_begin(int fd, int low);
void xr_fds_dup_end(uintptr_t entry, int fd, int newfd);
/* A flow of this process, whoever the caller is, goes back to TCP, unless it is being closed. */
void xr_fds_retreat(struct xr_flow *f, enum xr_reason why);
/* The same with what the peer, or the module for other hosts, has said of the flow. */
void xr_fds_far_look(struct xr_flow *f);
/* After I/O on an inherited flow: makes it one of this process when nobody else has it. */
void xr_fds_adopt(struct xr_flow *f, int fd);

static inline void xr_fds_fresh(int fd)
{
	xr_spare_check(fd);
	if (xr_unlikely(xr_fd_entry(fd)))
		xr_fds_stale(fd);
}

#endif
