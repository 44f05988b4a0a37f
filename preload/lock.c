/* SPDX-License-Identifier: BSD-2-Clause */
/* A lock that is held: see lock.h. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include "lock.h"
#include "log.h"
#include "stats.h"

#define LOCK_LOOK	4096	/* rounds: is its holder alive? */
#define LOCK_LONG	65536	/* rounds: some milliseconds.  It has not got the processor, or is stopped */
#define LOCK_NAP_NS	1000000

/* Killed, and its parent has not waited for it: to a signal it is still there. */
static int lock_owner_dead(uint32_t tid)
{
	char buf[128];
	const char *p;
	long n;
	int fd;

	xr_snprintf(buf, sizeof(buf), "/proc/%u/stat", tid);
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, buf, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	n = xr_sys3(SYS_read, fd, buf, sizeof(buf) - 1);
	xr_sys1(SYS_close, fd);
	buf[n > 0 ? n : 0] = '\0';
	/* proc(5): the name before it may hold anything */
	p = strrchr(buf, ')');
	return p && (!strncmp(p, ") Z", 3) || !strncmp(p, ") X", 3));
}

static int lock_owner_gone(uint32_t tid)
{
	return xr_sys2(SYS_tkill, tid, 0) == -ESRCH || lock_owner_dead(tid);
}

int xr_lock_slow(struct xr_lock *l)
{
	struct timespec nap = { 0, LOCK_NAP_NS };
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
		if (rounds < LOCK_LONG)
			xr_sys0(SYS_sched_yield);
		else
			xr_sys2(SYS_nanosleep, &nap, NULL);
		/* killed inside its section: another process of the family, within ours all would be dead */
		if (rounds % LOCK_LOOK == 0 && lock_owner_gone(seen) && xr_cas(&l->owner, &seen, self))
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
