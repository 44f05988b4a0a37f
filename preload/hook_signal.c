/* SPDX-License-Identifier: BSD-2-Clause */
/* The functions that install signal handlers, in terms of one; see signal.c. */
#include "hook.h"
#include "signals.h"

/* Signals for which siginterrupt(sig, 1) is in force: signal() does not restart then. */
static _Atomic uint64_t signal_interrupts;

XR_HOOK int sigaction(int sig, const struct sigaction *restrict act,
		      struct sigaction *restrict old)
{
	/* here and below: a lock may be held by a thread that a child has not got */
	xr_fork_check();
	return (int)xr_ret(xr_signal_action(sig, act, old));
}

XR_ALIAS(sigaction) int __sigaction(int sig, const struct sigaction *restrict act,
				    struct sigaction *restrict old);

static __sighandler_t install(int sig, __sighandler_t handler, int flags, int block_self)
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = flags }, old;
	int r;

	if (handler == SIG_ERR || sig < 1 || sig >= NSIG) {
		errno = EINVAL;
		return SIG_ERR;
	}
	sigemptyset(&act.sa_mask);
	if (block_self)
		sigaddset(&act.sa_mask, sig);
	xr_fork_check();
	r = xr_signal_action(sig, &act, &old);
	if (r) {
		errno = -r;
		return SIG_ERR;
	}
	return old.sa_handler;
}

/* BSD: the handler stays, the signal is blocked in it, system calls restart. */
XR_HOOK __sighandler_t signal(int sig, __sighandler_t handler)
{
	int interrupts = sig > 0 && sig < 65 &&
			 (xr_load_relaxed(&signal_interrupts) >> (sig - 1)) & 1;

	return install(sig, handler, interrupts ? 0 : SA_RESTART, 1);
}

XR_ALIAS(signal) __sighandler_t bsd_signal(int sig, __sighandler_t handler);
XR_ALIAS(signal) __sighandler_t ssignal(int sig, __sighandler_t handler);

/* System V: the handler is used once, nothing is blocked, system calls are interrupted. */
XR_HOOK __sighandler_t sysv_signal(int sig, __sighandler_t handler)
{
	return install(sig, handler, SA_RESETHAND | SA_NODEFER, 0);
}

XR_ALIAS(sysv_signal) __sighandler_t __sysv_signal(int sig, __sighandler_t handler);

XR_HOOK __sighandler_t sigset(int sig, __sighandler_t disp)
{
	struct sigaction old;
	sigset_t set, was;
	__sighandler_t before;
	int r;

	if (disp == SIG_ERR || sig < 1 || sig >= NSIG) {
		errno = EINVAL;
		return SIG_ERR;
	}
	sigemptyset(&set);
	sigaddset(&set, sig);
	if (disp == SIG_HOLD) {
		if (sigprocmask(SIG_BLOCK, &set, &was))
			return SIG_ERR;
		if (sigismember(&was, sig))
			return SIG_HOLD;
		xr_fork_check();
		r = xr_signal_action(sig, NULL, &old);
		if (r) {
			errno = -r;
			return SIG_ERR;
		}
		return old.sa_handler;
	}
	before = install(sig, disp, 0, 0);
	if (before == SIG_ERR || sigprocmask(SIG_UNBLOCK, &set, &was))
		return SIG_ERR;
	return sigismember(&was, sig) ? SIG_HOLD : before;
}

XR_HOOK int siginterrupt(int sig, int flag)
{
	struct sigaction act;
	int r;

	xr_fork_check();
	r = xr_signal_action(sig, NULL, &act);

	if (r)
		return (int)xr_ret(r);
	if (flag) {
		xr_fetch_or(&signal_interrupts, 1ull << (sig - 1));
		act.sa_flags &= ~SA_RESTART;
	} else {
		xr_fetch_and(&signal_interrupts, ~(1ull << (sig - 1)));
		act.sa_flags |= SA_RESTART;
	}
	return (int)xr_ret(xr_signal_action(sig, &act, NULL));
}
