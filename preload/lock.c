/* SPDX-License-Identifier: BSD-2-Clause */
/* A lock that is held: see lock.h. */
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include "lock.h"
#include "stats.h"

static int lock_owner_gone(uint32_t tid)
{
	return xr_sys2(SYS_tkill, tid, 0) == -ESRCH;
}

int xr_lock_slow(struct xr_lock *l)
{
	uint32_t self = (uint32_t)xr_gettid(), seen, rounds = 0;

	if (xr_load_relaxed(&l->owner) != self)
		xr_stats_add(XR_STAT_LOCK_WAITS, 1);
	for (;;) {
		seen = 0;
		if (xr_likely(xr_cas(&l->owner, &seen, self)))
			return 0;
		if (seen == self)
			return -EDEADLK;
		if (++rounds % 64) {
			xr_cpu_relax();
			continue;
		}
		xr_sys0(SYS_sched_yield);
		/* killed inside its section: another process of the family, within ours all would be dead */
		if (rounds % 4096 == 0 && lock_owner_gone(seen) && xr_cas(&l->owner, &seen, self))
			return 1;
	}
}

int xr_lock_soon(struct xr_lock *l)
{
	uint32_t tries;

	for (tries = 0; tries < 50; tries++) {
		if (!xr_trylock(l))
			return 0;
		/* this thread's own will not be free before it has returned */
		if (xr_load_relaxed(&l->owner) == (uint32_t)xr_gettid())
			break;
		xr_sys0(SYS_sched_yield);
	}
	return -EAGAIN;
}

int xr_lock_left(struct xr_lock *l)
{
	uint32_t seen;

	if (!xr_trylock(l))
		return 0;
	seen = xr_load_relaxed(&l->owner);
	return seen && lock_owner_gone(seen) && xr_cas(&l->owner, &seen, (uint32_t)xr_gettid()) ? 0 : -EBUSY;
}
