/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults in copies from and to the program's memory.  SIGSEGV and SIGBUS are handled by
 * fault_entry from the first flow on that moves to a fabric.  It lets a copy fail that met a
 * bad address of the program (usercopy.h).  Every other fault is the program's own: its
 * handler is entered as if ours were not there, from the same frame, or, where it has none,
 * the default action is restored and the instruction that faulted is left to do it again.
 *
 * The program sees its own handlers in everything that sigaction reports.  While it ignores
 * a signal the kernel is told so, and nothing is installed.
 */
#include "hook.h"
#include <string.h>
#include <sys/syscall.h>
#include "signals.h"
#include "user.h"

#ifndef BUS_MCEERR_AO
#define BUS_MCEERR_AO	5
#endif

/* Flags of which the kernel is told something else than the program said. */
#define FAULT_FLAGS	(SA_SIGINFO | SA_RESETHAND | SA_ONSTACK)

/* From now on handlers are installed wherever the program permits. */
_Atomic uint32_t xr_user_moved;
_Atomic uint32_t xr_user_guarded;
_Atomic uintptr_t xr_user_end = UINTPTR_MAX;

/*
 * What the program wants done.  Written under the lock of signal.c, read by the handler at
 * any moment; means something while the kernel's handler is fault_entry.
 */
static struct fault_slot {
	_Atomic(void *) handler;
	_Atomic int flags;
} fault_slot[2];

static struct fault_slot *slot_of(int sig)
{
	return &fault_slot[sig == SIGBUS];
}

/* ---- the handler ---------------------------------------------------------- */

/* Raised by an instruction, which will do it again. */
static int fault_repeats(int sig, const siginfo_t *info)
{
	return info->si_code > 0 && info->si_code != SI_KERNEL &&
	       !(sig == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

static void default_action(int sig)
{
	struct sigaction dfl;

	memset(&dfl, 0, sizeof(dfl));
	dfl.sa_handler = SIG_DFL;
	xr_real.sigaction(sig, &dfl, NULL);
}

/* Sent, not caused: once more, for the default action.  It waits until the handler returns. */
static void raise_again(int sig, const siginfo_t *info)
{
	/* asked for, since a vfork child finds its parent's in the cache */
	long pid = xr_sys0(SYS_getpid), tid = xr_sys0(SYS_gettid);

	if (xr_sys4(SYS_rt_tgsigqueueinfo, pid, tid, sig, info))
		xr_sys3(SYS_tgkill, pid, tid, sig);
}

/* The program's handler; NULL: it has none, and the default action is under way. */
static void *fault_handler(int sig, const siginfo_t *info)
{
	struct fault_slot *s = slot_of(sig);
	/* acquire: pairs with the release in slot_set, the flags are its own */
	void *handler = xr_load_acquire(&s->handler);
	int flags = xr_load_relaxed(&s->flags);

	if (flags & SA_RESETHAND && handler != (void *)SIG_DFL) {
		if (xr_vfork_depth)
			default_action(sig);
		else if (!xr_cas(&s->handler, &handler, (void *)SIG_DFL))
			handler = (void *)SIG_DFL;
	}
	if (handler != (void *)SIG_DFL) {
		xr_signal_note(flags);
		return handler;
	}
	default_action(sig);
	if (!fault_repeats(sig, info))
		raise_again(sig, info);
	return NULL;
}

static void fault_entry(int sig, siginfo_t *info, void *context)
{
	void (*handler)(int, siginfo_t *, void *);

	/* no positive code: sent by somebody, and what it interrupted did nothing wrong */
	if (info->si_code > 0 &&
	    xr_usercopy_fixup(context, (uintptr_t)info->si_addr, info->si_code == SI_KERNEL))
		return;
	handler = (void (*)(int, siginfo_t *, void *))fault_handler(sig, info);
	/* the last thing that is done: crash handlers walk the stack, and some change it */
	if (handler)
		handler(sig, info, context);
}

/* ---- what the program installs -------------------------------------------- */

static void slot_set(struct fault_slot *s, void *handler, int flags)
{
	xr_store_relaxed(&s->flags, flags);
	/* release: before the kernel can enter fault_entry for it */
	xr_store_release(&s->handler, handler);
}

/* What the kernel is told for the program's action. */
static void action_wrap(struct sigaction *mine, const struct sigaction *act)
{
	*mine = *act;
	mine->sa_sigaction = fault_entry;
	/* the address of the fault must be told; RESETHAND is ours to do, a copy uses nothing up */
	mine->sa_flags = (act->sa_flags | SA_SIGINFO) & ~(int)SA_RESETHAND;
	/* on the stack that is there for it, so that a thread which ran out of its own may end */
	if (act->sa_handler == SIG_DFL)
		mine->sa_flags |= SA_ONSTACK;
}

int xr_fault_action(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct fault_slot *s = slot_of(sig);
	struct sigaction mine, was;
	int r, flags, wrap, keep;
	uint64_t mask;
	void *before;

	/* a bad address is met here, and not with the lock held */
	if (act) {
		mine = *act;
		act = &mine;
	}
	mask = xr_signal_lock();
	if (!xr_load_relaxed(&xr_user_moved)) {
		xr_signal_unlock(mask);
		return xr_real.sigaction(sig, act, old) ? -errno : 0;
	}
	before = xr_load_relaxed(&s->handler);
	flags = xr_load_relaxed(&s->flags);
	/* a vfork child has handlers of its own, but the slot is its parent's */
	keep = !act || xr_vfork_depth;
	wrap = !keep && act->sa_handler != SIG_IGN;
	if (wrap) {
		slot_set(s, (void *)act->sa_handler, act->sa_flags);
		action_wrap(&mine, act);
	}
	r = xr_real.sigaction(sig, act, &was) ? -errno : 0;
	if (r && wrap)
		slot_set(s, before, flags);
	else if (!r && !keep && sig == SIGSEGV)
		xr_store_release(&xr_user_guarded, (uint32_t)wrap);
	xr_signal_unlock(mask);
	if (!r && old) {
		if (was.sa_sigaction == fault_entry) {
			was.sa_handler = (__sighandler_t)before;
			was.sa_flags = (was.sa_flags & ~(int)FAULT_FLAGS) | (flags & (int)FAULT_FLAGS);
		}
		*old = was;
	}
	return r;
}

/* ---- from the first flow on ------------------------------------------------ */

static int guard_install(int sig)
{
	struct sigaction was, mine;

	if (xr_real.sigaction(sig, NULL, &was) || was.sa_handler == SIG_IGN)
		return 0;
	slot_set(slot_of(sig), (void *)was.sa_handler, was.sa_flags);
	action_wrap(&mine, &was);
	return !xr_real.sigaction(sig, &mine, NULL);
}

/*
 * As the kernel checks a range before it looks at the descriptor, a wrong descriptor makes it
 * tell where it ends: below a power of two, but for a page.
 */
static uintptr_t address_end(void)
{
	static const uint8_t bits[] = { 47, 48, 52, 56, 63 };
	uintptr_t end = UINTPTR_MAX;
	size_t i;

	for (i = 0; i < XR_ARRAY_LEN(bits); i++) {
		uintptr_t e = ((uintptr_t)1 << bits[i]) - 4096;

		if (xr_sys6(SYS_recvfrom, -1, e - 1, 1, 0, 0, 0) != -EBADF)
			break;
		end = e;
	}
	return end;
}

void xr_user_guard(void)
{
	uint64_t mask;

	if (xr_likely(xr_load_relaxed(&xr_user_moved)))
		return;
	mask = xr_signal_lock();
	if (!xr_load_relaxed(&xr_user_moved)) {
		xr_store_relaxed(&xr_user_end, address_end());
		xr_store_relaxed(&xr_user_moved, 1);
		guard_install(SIGBUS);
		if (guard_install(SIGSEGV))
			/* release: pairs with the acquire in xr_user_get */
			xr_store_release(&xr_user_guarded, 1);
	}
	xr_signal_unlock(mask);
}

/* ---- without the handlers -------------------------------------------------- */

/* Whether the kernel would read, or write, in each page of the range; what it writes is lost. */
static int pages_ask(const void *user, size_t n, int write)
{
	uintptr_t p = (uintptr_t)user & ~(uintptr_t)7, end = (uintptr_t)user + n;
	long r;

	if (n && end < (uintptr_t)user)
		return -EFAULT;
	/* NULL would mean that there is no set: the same page is asked about at another place */
	if (!p && n)
		end = end > 8 ? end : 9, p = 8;
	for (; n && p < end; p = (p & ~(uintptr_t)4095) + 4096) {
		/* no such way to change the mask, which the kernel finds out after it has read the set */
		r = write ? xr_sys4(SYS_rt_sigprocmask, SIG_BLOCK, NULL, p, 8) :
			    xr_sys4(SYS_rt_sigprocmask, -1, p, NULL, 8);
		if (r == -EFAULT)
			return -EFAULT;
	}
	return 0;
}

int xr_user_get_asking(void *dst, const void *user, size_t n)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0), p = (uintptr_t)user;

	/* most structures are in a frame above this one: its own page need not be asked about */
	if (((p ^ here) | ((p + n - 1) ^ here)) >= 4096 && pages_ask(user, n, 0))
		return -EFAULT;
	memcpy(dst, user, n);
	return 0;
}

int xr_user_put_asking(void *user, const void *src, size_t n)
{
	if (!(((uintptr_t)user | n) & 7) && pages_ask(user, n, 1))
		return -EFAULT;
	memcpy(user, src, n);
	return 0;
}
