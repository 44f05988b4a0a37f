/* SPDX-License-Identifier: BSD-2-Clause */
/* The table of real functions and their stand-ins; see real.h. */
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include "atomic.h"
#include "mem.h"
#include "real.h"

#define NR(nr)	(nr)
#define NONE	(-1)
#define NIL	(-2)

/* System calls that newer ports of Linux do not have, or older headers do not know. */
#ifdef SYS_accept
#define XR_NR_accept		SYS_accept
#else
#define XR_NR_accept		NONE
#endif
#ifdef SYS_dup2
#define XR_NR_dup2		SYS_dup2
#else
#define XR_NR_dup2		NONE
#endif
#ifdef SYS_poll
#define XR_NR_poll		SYS_poll
#else
#define XR_NR_poll		NONE
#endif
#ifdef SYS_select
#define XR_NR_select		SYS_select
#else
#define XR_NR_select		NONE
#endif
#ifdef SYS_epoll_create
#define XR_NR_epoll_create	SYS_epoll_create
#else
#define XR_NR_epoll_create	NONE
#endif
#ifdef SYS_epoll_wait
#define XR_NR_epoll_wait	SYS_epoll_wait
#else
#define XR_NR_epoll_wait	NONE
#endif
#ifdef SYS_close_range
#define XR_NR_close_range	SYS_close_range
#else
#define XR_NR_close_range	NONE
#endif
/* their offset is two registers, with a gap on 64-bit kernels */
#define XR_NR_preadv2		NONE
#define XR_NR_pwritev2		NONE

enum { REAL_UNKNOWN, REAL_BUSY, REAL_DONE };
static _Atomic uint32_t real_state;
static _Atomic int real_owner;		/* thread id, while REAL_BUSY */

typedef long (*real_fn)(long, long, long, long, long, long);
typedef _Atomic(real_fn) real_slot;

/*
 * The arguments of all functions in the table are integers and pointers, so a stand-in
 * that hands six registers on serves each of them.  Functions that libc makes of more
 * than one system call have none before the table is there: those are not called by
 * loaders and allocators.
 */
static long stand_in(real_slot *slot, real_fn self, long nr, const long *a)
{
	real_fn fn;
	long r;

	xr_real_resolve();
	/* what has no system call waits for another thread's resolution, not for its own */
	while (nr < 0 && xr_load_acquire(&real_state) == REAL_BUSY &&
	       xr_load_relaxed(&real_owner) != xr_gettid())
		xr_sys0(SYS_sched_yield);
	/* acquire: pairs with the store in xr_real_resolve */
	fn = xr_load_acquire(slot);
	if (fn != self)
		return fn(a[0], a[1], a[2], a[3], a[4], a[5]);
	if (nr < 0) {
		errno = ENOSYS;
		return nr == NIL ? 0 : -1;
	}
	r = xr_sys6(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

#define REAL_SLOT(name)	((real_slot *)(void *)&xr_real.name)

#define REAL_STAND_IN(name, subject, before, ...)						\
	static long real_##name(long a, long b, long c, long d, long e, long f)			\
	{											\
		const long args[6] = { a, b, c, d, e, f };					\
												\
		return stand_in(REAL_SLOT(name), real_##name, before, args);			\
	}
XR_HOOKS(REAL_STAND_IN, XR_REAL_NOTHING)

/* Functions whose raw system call has other arguments than the function. */
static long real_by_hand_recv(long fd, long buf, long n, long flags, long e, long f)
{
	const long args[6] = { fd, buf, n, flags, 0, 0 };

	(void)e;
	(void)f;
	return stand_in(REAL_SLOT(recv), real_by_hand_recv, SYS_recvfrom, args);
}

static long real_by_hand_send(long fd, long buf, long n, long flags, long e, long f)
{
	const long args[6] = { fd, buf, n, flags, 0, 0 };

	(void)e;
	(void)f;
	return stand_in(REAL_SLOT(send), real_by_hand_send, SYS_sendto, args);
}

static long real_by_hand_open(long path, long flags, long mode, long d, long e, long f)
{
	const long args[6] = { AT_FDCWD, path, flags, mode, 0, 0 };

	(void)d;
	(void)e;
	(void)f;
	return stand_in(REAL_SLOT(open), real_by_hand_open, SYS_openat, args);
}

static long real_by_hand_open64(long path, long flags, long mode, long d, long e, long f)
{
	const long args[6] = { AT_FDCWD, path, flags | O_LARGEFILE, mode, 0, 0 };

	(void)d;
	(void)e;
	(void)f;
	return stand_in(REAL_SLOT(open64), real_by_hand_open64, SYS_openat, args);
}

#define REAL_INIT(name, ...)	.name = (__typeof__(name) *)(void *)real_##name,
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif
XR_NEAR struct xr_real xr_real = {
	XR_HOOKS(REAL_INIT, XR_REAL_NOTHING)
	.open = (__typeof__(open) *)(void *)real_by_hand_open,
	.open64 = (__typeof__(open64) *)(void *)real_by_hand_open64,
	.recv = (__typeof__(recv) *)(void *)real_by_hand_recv,
	.send = (__typeof__(send) *)(void *)real_by_hand_send,
};
#pragma GCC diagnostic pop

static const struct {
	const char *name;
	size_t offset;
} real_names[] = {
#define REAL_NAME(name, ...)	{ #name, offsetof(struct xr_real, name) },
	XR_HOOKS(REAL_NAME, XR_REAL_NOTHING)
};

void xr_real_resolve(void)
{
	uint32_t old = REAL_UNKNOWN;
	int saved = errno;
	size_t i;

	if (xr_load_acquire(&real_state) != REAL_UNKNOWN || !xr_cas(&real_state, &old, REAL_BUSY))
		return;
	xr_store_relaxed(&real_owner, xr_gettid());
	for (i = 0; i < XR_ARRAY_LEN(real_names); i++) {
		void *fn = dlsym(RTLD_NEXT, real_names[i].name);

		/* release: whatever the loader did for the function comes first */
		if (fn)
			xr_store_release((_Atomic(void *) *)(void *)((char *)&xr_real +
								     real_names[i].offset), fn);
	}
	xr_store_release(&real_state, REAL_DONE);
	errno = saved;
}
