/* SPDX-License-Identifier: BSD-2-Clause */
/* Start, fork, end of the process; and giving up for good.  See process.h. */
#include "hook.h"
#include <sys/mman.h>
#include "caretaker.h"
#include "control.h"
#include "far.h"
#include "helper.h"
#include "hold.h"
#include "log.h"
#include "module.h"
#include "ready.h"
#include "relay.h"
#include "signals.h"
#include "spare.h"
#include "trace.h"
#include "upgrade.h"

struct xr_config xr_cfg;
XR_FORK_DATA int xr_active;

/* Until the page is there, and for ever where the kernel cannot wipe one. */
static _Atomic uint32_t process_always = 1;
XR_NEAR _Atomic uint32_t *xr_process_alive = &process_always;

static uint32_t process_passed;	/* enum xr_reason of pass_through */
static int process_quiet;		/* under a filter of system calls, with nothing left to do for any connection */
static XR_FORK_DATA uint32_t process_is_child;		/* has flows of an ancestor */
static __thread uint32_t process_forking;	/* this thread is in a fork that was prepared */
static __thread uint32_t process_in_handler;	/* ... by a signal handler */

#define PAGE	4096u

static void alive_page(void)
{
	_Atomic uint32_t *p = xr_keep_own(PAGE);

	/* asked for once more, since it must be so; a kernel that cannot has said so to xr_keep_own too */
	if (!p || xr_sys3(SYS_madvise, p, PAGE, MADV_WIPEONFORK))
		return;
	xr_store_relaxed(p, 1);
	xr_process_alive = p;
}

void xr_process_init(void)
{
	static _Atomic uint32_t state;	/* 0: not yet, 1: somebody is at it, 2: done */
	uint32_t old = 0;

	/* acquire: pairs with the release below, the configuration is complete */
	if (xr_likely(xr_load_acquire(&state) == 2))
		return;
	/* a socket that is made meanwhile stays unknown, and on TCP */
	if (!xr_cas(&state, &old, 1))
		return;
	xr_real_resolve();
	alive_page();
	xr_stats_add(XR_STAT_CONFIG_WARNINGS,
		     (uint64_t)xr_config_load(&xr_cfg, NULL, environ, NULL, NULL));
	xr_policy_init();
	xr_active = xr_cfg.enabled && xr_cfg.fabric != XR_FABRIC_NONE && xr_cfg.max_flows;
	xr_stats_off(xr_config_off(&xr_cfg));
	xr_far_init();
	xr_module_init();
	xr_store_release(&state, 2);
}

/* With the loader's lock held: nothing here may load anything or wait for a thread. */
__attribute__((constructor)) static void process_constructor(void)
{
	int saved = errno;

	xr_process_init();
	errno = saved;
}

/* ---- fork ------------------------------------------------------------------ */

/* Flows of an ancestor are not in the slab of this process, but its children hold them too. */
static void count_inherited(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

	if ((entry & 3) == XR_FD_FLOW && f->owner_pid != xr_getpid() && xr_flow_fd(f) == fd)
		xr_fetch_add(&f->procs, *(const uint32_t *)arg);
}

static void fork_prepare(int undo)
{
	uint32_t n = undo ? (uint32_t)-1 : 1;

	xr_flow_fork_prepare(undo);
	if (process_is_child)
		xr_fd_each(count_inherited, &n);
}

/* 1: somebody else has done it, or this thread is at it. */
static int child_is_done(_Atomic uint32_t *by)
{
	uint32_t self = (uint32_t)xr_sys0(SYS_gettid), free = 0;

	if (xr_cas(by, &free, self))
		return 0;
	/* acquire: pairs with the release at the end, all of it is done */
	while (free != self && !xr_load_acquire(xr_process_alive))
		xr_sys0(SYS_sched_yield);
	return 1;
}

void xr_process_child(void)
{
	/* the word beside it is wiped with it: what follows passes hooks' checks, and other threads wait */
	if (xr_process_alive != &process_always && child_is_done(xr_process_alive + 1))
		return;
	/* before the process is known by its new id: the flows are counted for the parent's slab */
	if (!process_forking)
		fork_prepare(0);
	process_forking = 0;
	process_is_child = 1;
	xr_vfork_depth = 0;
	xr_process_forked();
	xr_care_forked();
	xr_stats_after_fork();
	xr_trace_forked();
	xr_signal_forked();
	xr_upgrade_forked();
	xr_flow_forked();
	xr_helper_forked();
	xr_control_forked();
	xr_spare_forked();
	xr_epoll_forked();
	xr_store_release(xr_process_alive, 1);
}

/*
 * Most children end, or start another program, and use nothing of ours: the wiped page says to the
 * first hook that needs it that there is something to do.  Until then the child is what it was when
 * the kernel made it.
 */
XR_FORK_CODE void xr_process_forked_here(void)
{
	int saved;

	/*
	 * A connection that was closed under a thread that sleeps in it is not the child's, as no file is
	 * without a descriptor: it must not be kept open here.
	 */
	if (xr_unlikely(xr_hold_inherited())) {
		saved = errno;
		xr_fork_check();
		errno = saved;
	}
	/* handlers of pthread_atfork may have met the page before */
	if (xr_unlikely(process_forking && xr_process_alive == &process_always)) {
		saved = errno;
		xr_process_child();
		errno = saved;
	}
}

/* A child ends that no hook has met.  1: there is no more to it. */
static XR_FORK_CODE int child_ends(void)
{
	if (xr_load_relaxed(xr_process_alive) || !process_forking || process_is_child || !xr_flow_kid_leave())
		return 0;
	/* should a hook be called once more, it counts itself anew */
	process_forking = 0;
	return 1;
}

void xr_process_fork_begin(void)
{
	xr_fork_check();
	/* counted once: a child that a vfork child forks has lost its way in our table */
	if (!xr_vfork_depth) {
		/* a child has no control connections: a bell that it has not got it cannot ring */
		xr_links_progress();
		fork_prepare(0);
	}
	process_forking = 1;
	process_in_handler = xr_signal_inside();
	if (xr_unlikely(process_in_handler))
		xr_epoll_forking(1);
}

void xr_process_fork_end(pid_t child)
{
	if (!process_forking)
		return;
	process_forking = 0;
	if (xr_unlikely(process_in_handler))
		xr_epoll_forking(0);
	if (child < 0)
		fork_prepare(1);
	else
		xr_flow_kid_is(child);
}

/* ---- giving up ------------------------------------------------------------- */

struct giving_up {
	enum xr_reason why;
	uint64_t end;		/* of the wait for peers */
	struct xr_relay relay;
};

static void to_kernel(void *arg, int fd, uintptr_t entry)
{
	struct giving_up *g = arg;
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

	if ((entry & 3) != XR_FD_FLOW)
		return;
	/* all peers are asked before the first is waited for */
	if (g->end)
		xr_relay_let_go(&g->relay, f, fd, g->why, xr_ns_left(g->end));
	else if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		xr_flow_hand_over(f, fd, g->why, 0);
}

/* Its peer did not help in time: there is still something to be done for it. */
static void not_quiet(void *arg, int fd, uintptr_t entry)
{
	const struct xr_flow *f = (const struct xr_flow *)(entry & ~(uintptr_t)3);

	(void)arg;
	(void)fd;
	if ((entry & 3) == XR_FD_FLOW && xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		process_quiet = 0;
}

static void forget(void *arg, int fd, uintptr_t entry)
{
	(void)arg;
	(void)entry;
	xr_fd_take(fd);
}

void xr_process_pass_through(enum xr_reason why)
{
	struct giving_up g;

	if (xr_vfork_depth)
		return;
	xr_fork_check();
	xr_active = 0;
	g.why = why;
	g.end = 0;
	g.relay.n = 0;
	xr_fd_each(to_kernel, &g);
	g.end = xr_now_ns() + XR_HANDOVER_WAIT_NS;
	xr_fd_each(to_kernel, &g);
	xr_relay_run(&g.relay);
	/* after the flows, which may make the segment */
	process_passed = why;
	xr_stats_off(why);
	if (why != XR_REASON_SECCOMP)
		return;
	/* the filter may not know of calls that the program does not make */
	process_quiet = 1;
	xr_fd_each(not_quiet, NULL);
	if (!process_quiet)
		return;
	/* the calls that hooks make from here on are the program's own, and no others: they find nothing of ours */
	xr_fd_each(forget, NULL);
	xr_store_relaxed(&xr_fd_any, 0);
	/* it may be for all threads */
	xr_helper_park();
	xr_trace_close();
	xr_control_drop();
}

enum xr_reason xr_process_passed(void)
{
	return (enum xr_reason)process_passed;
}

/* ---- exit ------------------------------------------------------------------ */

static void process_exit(void)
{
	/* what is left in the file system others take away */
	if (process_quiet)
		return;
	xr_fork_check();
	xr_active = 0;
	/* handlers that run later make no segment that nobody would remove */
	if (!process_passed)
		process_passed = XR_REASON_CLOSED;
	xr_care_reap();
	xr_flow_exit();
	xr_helper_park();
	xr_control_close();
	/* before the statistics, which take the directory with them */
	xr_trace_close();
	xr_stats_close();
}

XR_FORK_CODE void xr_process_exit(void)
{
	/* a vfork child has the flows of its parent, who goes on */
	if (!xr_vfork_depth && !child_ends())
		process_exit();
}

/* exit() and the return of main(): after the program's own handlers, which may still send. */
__attribute__((destructor)) static void process_destructor(void)
{
	int saved = errno;

	xr_process_exit();
	errno = saved;
}

XR_HOOK XR_FORK_CODE void _exit(int status)
{
	xr_process_exit();
	xr_real._exit(status);
	__builtin_unreachable();
}

XR_HOOK XR_FORK_CODE void _Exit(int status)
{
	xr_process_exit();
	xr_real._exit(status);
	__builtin_unreachable();
}

/* Handlers of at_quick_exit that send find the flows ended: the one order that can be had. */
XR_HOOK void quick_exit(int status)
{
	xr_process_exit();
	xr_real.quick_exit(status);
	__builtin_unreachable();
}
