/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The lock of a direction, of epoll files and of their registrations.  In family memory its
 * holder may be another process of the family; and a signal handler may find that its own
 * thread holds it.
 */
#ifndef XR_LOCK_H
#define XR_LOCK_H

#include <errno.h>
#include <stdint.h>
#include "atomic.h"
#include "mem.h"

struct xr_lock {
	_Atomic uint32_t owner;		/* kernel thread id, 0 when free */
};

/* As xr_lock_or_left(). */
int xr_lock_slow(struct xr_lock *l);

/* 0 or -EBUSY. */
static inline int xr_trylock(struct xr_lock *l)
{
	uint32_t free = 0;

	return xr_likely(xr_cas(&l->owner, &free, (uint32_t)xr_gettid())) ? 0 : -EBUSY;
}

/*
 * 0, or -EDEADLK when this thread holds it (a signal handler came in between).  1: it is held, and was by a process
 * that is gone: what that was doing is half done.
 */
static inline int xr_lock_or_left(struct xr_lock *l)
{
	return xr_likely(!xr_trylock(l)) ? 0 : xr_lock_slow(l);
}

/* Where it does not matter what was half done. */
static inline int xr_lock(struct xr_lock *l)
{
	int r = xr_lock_or_left(l);

	return xr_likely(r <= 0) ? r : 0;
}

/* As xr_lock_or_left() where nobody but this thread can want the lock, and no handler comes in between (defer.h). */
static inline int xr_lock_alone(struct xr_lock *l)
{
	if (xr_unlikely(xr_load_relaxed(&l->owner)))
		return xr_lock_slow(l);
	xr_store_relaxed(&l->owner, (uint32_t)xr_gettid());
	return 0;
}

/* 0, or -EAGAIN: its holder takes long, or has left by longjmp and will never let go. */
int xr_lock_soon(struct xr_lock *l);

/* 0 or -EBUSY: a try that also takes what a process that is gone has left. */
int xr_lock_left(struct xr_lock *l);

static inline void xr_unlock(struct xr_lock *l)
{
	/* release: the section's writes before the lock is seen free */
	xr_store_release(&l->owner, 0);
}

#endif
