/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counting of signal handlers.  A blocking call looks at shared memory first and sleeps
 * afterwards; a signal in between has run its handler by the time of the sleep and would
 * be missed, where the kernel would have said EINTR.  So every handler of the program is
 * entered through signal_entry, which counts; the call compares the counts before it
 * sleeps, with signals blocked, and sleeps with the program's mask.
 *
 * The program sees its own pointers in everything that sigaction reports.  SIG_DFL and
 * SIG_IGN run no code and are left alone, and so are the signals of faults: nobody
 * sleeps through those, and crash handlers like to find themselves on top of the stack.
 * SIGSEGV and SIGBUS are fault.c's business.
 */
#include "hook.h"
#include <pthread.h>
#include <string.h>
#include "defer.h"
#include "ready.h"
#include "signals.h"
#include "waiter.h"

#define SIGNALS		65

/*
 * The handler belongs to a signal, whoever asks: read by handlers at any moment, written
 * under signal_lock.  A slot counts only while the kernel's handler is signal_entry.
 */
static struct signal_slot {
	_Atomic(void *) handler;
	_Atomic int flags;
} signal_slot[SIGNALS];

static XR_FORK_DATA _Atomic uint32_t signal_busy;
static _Atomic uint32_t signal_wrapped;		/* a handler has ever been wrapped */
static __thread struct xr_signal_mark signal_count;
static __thread uintptr_t signal_frame;		/* of the wrapper that was entered last */

void xr_signal_note(int flags)
{
	/* own thread only; a handler that interrupts this one counts for both */
	signal_count.any++;
	if (!(flags & SA_RESTART))
		signal_count.norestart++;
}

static void signal_entry(int sig, siginfo_t *info, void *context);

/* It comes again, and the kernel has forgotten a handler that was to be used once. */
static __attribute__((noinline, cold)) void signal_rearm(int sig)
{
	struct sigaction act;

	if (xr_real.sigaction(sig, NULL, &act))
		return;
	act.sa_sigaction = signal_entry;
	xr_real.sigaction(sig, &act, NULL);
}

static void signal_entry(int sig, siginfo_t *info, void *context)
{
	struct signal_slot *s = &signal_slot[sig];
	uintptr_t outer = signal_frame;
	void (*handler)(int, siginfo_t *, void *);

	if (xr_unlikely(xr_defer_depth)) {
		/* before it is sent once more: the default action may be to end the process */
		if (xr_load_relaxed(&s->flags) & SA_RESETHAND)
			signal_rearm(sig);
		if (xr_defer_signal(sig, info, context))
			return;
	}
	xr_signal_note(xr_load_relaxed(&s->flags));
	signal_frame = (uintptr_t)__builtin_frame_address(0);
	/* acquire: pairs with the store before the kernel learnt of signal_entry */
	handler = (void (*)(int, siginfo_t *, void *))xr_load_acquire(&s->handler);
	handler(sig, info, context);
	signal_frame = outer;
}

int xr_signal_inside(void)
{
	/* one that was left by longjmp counts as long as this stack is as deep */
	return xr_frame_alive((uintptr_t)__builtin_frame_address(0), signal_frame);
}

XR_HOT struct xr_signal_mark xr_signal_mark(void)
{
	return signal_count;
}

static int signal_is_fault(int sig)
{
	return sig == SIGFPE || sig == SIGILL || sig == SIGTRAP || sig == SIGSYS;
}

/* Blocks every signal but those that libc needs for itself (cancellation, setuid). */
static uint64_t signal_block(void)
{
	const uint64_t all = ~(3ull << 31);
	uint64_t old;

	xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof(old));
	return old;
}

static void signal_restore(uint64_t old)
{
	xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof(old));
}

uint64_t xr_signal_lock(void)
{
	uint64_t mask = signal_block();
	uint32_t old = 0;

	while (!xr_cas(&signal_busy, &old, 1)) {
		old = 0;
		xr_sys0(SYS_sched_yield);
	}
	return mask;
}

void xr_signal_unlock(uint64_t mask)
{
	/* release: the slot is complete for the next holder */
	xr_store_release(&signal_busy, 0);
	signal_restore(mask);
}

void xr_signal_forked(void)
{
	xr_store_relaxed(&signal_busy, 0);
}

static int signal_wraps(const struct sigaction *act)
{
	return act && act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

int xr_signal_action(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction mine, was;
	struct signal_slot *s;
	uint64_t mask;
	void *before;
	int r, flags;

	if (sig == SIGSEGV || sig == SIGBUS)
		return xr_fault_action(sig, act, old);
	if (sig < 1 || sig >= SIGNALS || signal_is_fault(sig))
		return xr_real.sigaction(sig, act, old) ? -errno : 0;
	s = &signal_slot[sig];
	mask = xr_signal_lock();
	before = xr_load_relaxed(&s->handler);
	flags = xr_load_relaxed(&s->flags);
	/* a vfork child has handlers of its own, but this table is its parent's */
	if (signal_wraps(act) && !xr_vfork_depth) {
		mine = *act;
		mine.sa_sigaction = signal_entry;
		mine.sa_flags = act->sa_flags;
		/* release: before the kernel can enter signal_entry for it */
		xr_store_relaxed(&s->flags, act->sa_flags);
		xr_store_release(&s->handler, (void *)act->sa_handler);
		xr_store_release(&signal_wrapped, 1);
		act = &mine;
	}
	r = xr_real.sigaction(sig, act, &was) ? -errno : 0;
	if (r && act == &mine) {
		xr_store_relaxed(&s->flags, flags);
		xr_store_release(&s->handler, before);
	}
	xr_signal_unlock(mask);
	if (!r && old) {
		*old = was;
		if (was.sa_sigaction == signal_entry)
			old->sa_handler = (__sighandler_t)before;
	}
	return r;
}

/* ---- sleeping ------------------------------------------------------------- */

static int signal_ran(struct xr_signal_mark mark, int any)
{
	return any ? signal_count.any != mark.any : signal_count.norestart != mark.norestart;
}

/* A thread that is cancelled in its sleep runs its clean-up handlers with its own mask. */
struct sleep_guard {
	int on;
	uint64_t own;		/* the thread's mask, while on */
	sigset_t set;
	const sigset_t *use;	/* what to sleep with */
};

static void sleep_end(void *arg)
{
	struct sleep_guard *g = arg;

	if (g->on)
		signal_restore(g->own);
}

static struct timespec *sleep_left(uint64_t deadline, struct timespec *ts)
{
	uint64_t now, left;

	if (!deadline)
		return NULL;
	now = xr_now_ns();
	left = deadline > now ? deadline - now : 0;
	ts->tv_sec = (time_t)(left / 1000000000u);
	ts->tv_nsec = (long)(left % 1000000000u);
	return ts;
}

/*
 * Until a handler has been wrapped there is nothing to be missed, and signals need not be
 * blocked.
 */
static void sleep_begin(struct sleep_guard *g, const sigset_t *program)
{
	/* acquire: pairs with xr_signal_action */
	g->on = (int)xr_load_acquire(&signal_wrapped);
	g->use = program;
	if (!g->on)
		return;
	g->own = signal_block();
	if (program)
		return;
	memset(&g->set, 0, sizeof(g->set));
	memcpy(&g->set, &g->own, sizeof(g->own));
	g->use = &g->set;
}

/* The real functions below, and not system calls, since they are cancellation points. */
int xr_sleep_poll(struct pollfd *fds, unsigned int n, uint64_t deadline, const sigset_t *sigmask,
		  struct xr_signal_mark mark, int any)
{
	struct sleep_guard g;
	struct timespec ts;
	int r, saved = errno;

	sleep_begin(&g, sigmask);
	pthread_cleanup_push(sleep_end, &g);
	do {
		if (signal_ran(mark, any)) {
			r = -EINTR;
			break;
		}
		r = xr_real.ppoll(fds, n, sleep_left(deadline, &ts), g.use);
		if (r < 0)
			r = -errno;
		/* a handler that does not count was put there by libc, and asks for a restart */
	} while (r == -EINTR && !any);
	pthread_cleanup_pop(1);
	errno = saved;
	return r;
}

static int sleep_epoll(int epfd, struct epoll_event *ev, int max, uint64_t deadline,
		       const sigset_t *mask)
{
	static _Atomic int no_pwait2;
	struct timespec ts;
	int r;

	if (!deadline)
		return xr_real.epoll_pwait(epfd, ev, max, -1, mask);
	sleep_left(deadline, &ts);
	if (ts.tv_sec > INT_MAX / 1000 - 1)
		ts.tv_sec = INT_MAX / 1000 - 1;
	/* nanoseconds where the kernel has them, else milliseconds, rounded up */
	if (!xr_load_relaxed(&no_pwait2)) {
		r = xr_real.epoll_pwait2(epfd, ev, max, &ts, mask);
		if (r >= 0 || errno != ENOSYS)
			return r;
		xr_store_relaxed(&no_pwait2, 1);
	}
	return xr_real.epoll_pwait(epfd, ev, max,
				   (int)ts.tv_sec * 1000 + (int)((ts.tv_nsec + 999999) / 1000000),
				   mask);
}

int xr_sleep_epoll(int epfd, struct epoll_event *ev, int max, uint64_t deadline,
		   const sigset_t *sigmask, struct xr_signal_mark mark)
{
	struct sleep_guard g;
	int r, saved = errno;

	sleep_begin(&g, sigmask);
	pthread_cleanup_push(sleep_end, &g);
	if (signal_ran(mark, 1)) {
		r = -EINTR;
	} else {
		r = sleep_epoll(epfd, ev, max, deadline, g.use);
		if (r < 0)
			r = -errno;
	}
	pthread_cleanup_pop(1);
	errno = saved;
	return r;
}
