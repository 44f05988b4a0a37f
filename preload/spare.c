/* SPDX-License-Identifier: BSD-2-Clause */
/* Giving descriptors of ours to the program (spare.h). */
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include "control.h"
#include "hook.h"
#include "log.h"
#include "proof.h"
#include "spare.h"

#define SPARE_PAUSE	10000000u	/* ns between two looks at all flows, unless a call has failed */
#define SPARE_TRIES	200		/* ms for sleepers to let go of what they slept on */
#define SPARE_VAIN	1000000000u	/* ns without such a wait after one that brought nothing */

static struct xr_lock spare_lock;
static _Atomic uint64_t spare_last, spare_vain;

static void spare_flow(void *arg, struct xr_flow *f)
{
	(void)arg;
	xr_fds_retreat(f, XR_REASON_LIMIT_FDS);
}

/* tries: how many more when nothing could be closed at first, a millisecond apart. */
static int spare_make(int tries)
{
	static const struct timespec ms = { 0, 1000000 };
	int n;

	if (xr_vfork_depth || xr_process_passed())
		return 0;
	xr_fork_check();
	if (tries && xr_now_ns() - xr_load_relaxed(&spare_vain) < SPARE_VAIN)
		tries = 0;
	if (xr_trylock(&spare_lock)) {
		/* below a signal handler nothing can be done; what another thread closes will do */
		if (xr_lock(&spare_lock))
			return 0;
		xr_unlock(&spare_lock);
		return 1;
	}
	/* the operator's bell first: there is a number for the duplicates then */
	n = xr_control_drop() + xr_proof_strip();
	xr_flow_each(NULL, spare_flow, NULL);
	do {
		n += xr_epoll_strip();
		n += xr_links_strip();
		/* sleepers have been woken, and still hold what they slept on */
	} while (!n && tries-- > 0 && !xr_sys2(SYS_nanosleep, &ms, 0));
	if (!n) {
		xr_store_relaxed(&spare_vain, xr_now_ns());
	} else {
		xr_stats_add(XR_STAT_DESCRIPTORS_SPARED, (uint64_t)n);
		xr_info("the program needs its descriptors: %d of ours closed", n);
	}
	xr_unlock(&spare_lock);
	return n > 0;
}

void xr_spare_forked(void)
{
	xr_store_relaxed(&spare_lock.owner, 0);
}

void xr_spare_near(int fd)
{
	uint64_t now = xr_now_ns();

	if (!xr_fd_pressed(fd) || now - xr_load_relaxed(&spare_last) < SPARE_PAUSE)
		return;
	xr_store_relaxed(&spare_last, now);
	spare_make(0);
}

int xr_spare_none(void)
{
	long probe;

	/* nothing of ours is in the way */
	if (xr_load_relaxed(&xr_fd_press) == UINT32_MAX)
		return 0;
	/* EMFILE says also that a user has too many of one kind, and of watchers only that */
	probe = xr_sys2(SYS_eventfd2, 0, EFD_CLOEXEC);
	if (probe >= 0) {
		xr_sys1(SYS_close, probe);
		return 0;
	}
	return spare_make(xr_fd_next_ours(0) >= 0 ? SPARE_TRIES : 0);
}

int xr_spare_number(int fd)
{
	struct rlimit rl;

	if (xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl) || (unsigned long)fd >= rl.rlim_cur)
		return 0;
	return spare_make(SPARE_TRIES);
}
