/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll_wait: one wait on two worlds. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/syscall.h>
#include "control.h"
#include "epoll_young.h"
#include "fdtab.h"
#include "mem.h"
#include "process.h"
#include "ready.h"
#include "real.h"
#include "waiter.h"

/* Between two looks at the kernel while the fabric is busy, and while spinning (~2 us). */
#define LOOK_BUSY	12000u		/* cycles */
#define LOOK_QUIET	48000u		/* after many looks that found nothing */
#define LOOK_SPIN	6000u
#define QUIET_LOOKS	64u

struct ep_wait {
	struct xr_epoll *ep;
	struct epoll_event *evs;
	const sigset_t *sigmask;
	uint64_t deadline;
	uint64_t token;
	struct xr_signal_mark mark;
	uint32_t round;
	int epfd, max, has_deadline;
	int first;		/* what the kernel said before all else, INT_MIN: it was not asked */
	int ms;			/* of the time-out as the program gave it, while nothing is gone of it; 0: unknown */
	int n;			/* events found so far, or -errno */
	int token_seen;
	int kernel_done;	/* its events are among them: a second look would repeat them */
};

enum in_sleep { IN_AWAKE, IN_SLEEP, IN_WOKEN };	/* woken: a child may wait for what it does first */

/*
 * The fabric's epoll_wait that this thread is in: what to undo when a signal handler
 * left it by longjmp.
 */
static __thread struct {
	struct xr_epoll *ep;
	uintptr_t frame;
	uint32_t asleep;	/* enum in_sleep */
} in;

static int wait_expired(const struct ep_wait *w)
{
	return w->has_deadline && (!w->deadline || xr_now_ns() >= w->deadline);
}

/* Takes our token out of events that the kernel has just written, so that they can be read. */
static int wait_strip(struct ep_wait *w, struct epoll_event *evs, int n)
{
	int i, k = 0;

	for (i = 0; i < n; i++) {
		if (xr_unlikely(evs[i].data.u64 == w->token)) {
			w->token_seen = 1;
			xr_store_relaxed(&w->ep->dirty, 1);
			continue;
		}
		if (k != i)
			evs[k] = evs[i];
		k++;
	}
	if (xr_unlikely(k != n && w->ep->parents))
		xr_ep_child_pass_on(w->ep);
	return k;
}

/*
 * The kernel could not write to the program's room.  If our token was all that it had to write
 * this is not for the program to hear: the token is taken for seen.  So it asks once more
 * while the token is silent.  Lock not held; -EFAULT, or what there is now.
 */
static int wait_refused(struct ep_wait *w)
{
	struct xr_epoll *ep = w->ep;
	int r;

	if (xr_ep_lock(ep))
		return -EFAULT;
	if (ep->inner < 0) {
		xr_ep_unlock(ep);
		return -EFAULT;
	}
	/* no change of the set that could fail; the second one looks at the inner set again */
	xr_ep_sys_ctl(ep->outer, EPOLL_CTL_MOD, ep->inner, 0, w->token);
	r = (int)xr_sys6(SYS_epoll_pwait, w->epfd, w->evs + w->n, w->max - w->n, 0, NULL, 8);
	xr_ep_sys_ctl(ep->outer, EPOLL_CTL_MOD, ep->inner, EPOLLIN | EPOLLET, w->token);
	xr_ep_unlock(ep);
	if (r >= 0) {
		w->token_seen = 1;
		xr_store_relaxed(&ep->dirty, 1);
	}
	return r;
}

/* ---- nothing on a fabric -------------------------------------------------- */

static int plain_real(struct ep_wait *w)
{
	static _Atomic int no_pwait2;
	struct timespec ts = { 0, 0 };
	int r, saved = errno;

	if (!w->has_deadline || !w->deadline || w->ms) {
		r = xr_real.epoll_pwait(w->epfd, w->evs, w->max, w->has_deadline ? w->ms : -1,
					w->sigmask);
		w->ms = 0;
		goto done;
	}
	if (w->deadline) {
		uint64_t now = xr_now_ns(), left = w->deadline > now ? w->deadline - now : 0;

		ts.tv_sec = (time_t)(left / 1000000000u);
		ts.tv_nsec = (long)(left % 1000000000u);
		if (ts.tv_sec > INT_MAX / 1000 - 1)
			ts.tv_sec = INT_MAX / 1000 - 1;
	}
	if (!xr_load_relaxed(&no_pwait2)) {
		r = xr_real.epoll_pwait2(w->epfd, w->evs, w->max, &ts, w->sigmask);
		if (r >= 0 || errno != ENOSYS)
			goto done;
		xr_store_relaxed(&no_pwait2, 1);
	}
	r = xr_real.epoll_pwait(w->epfd, w->evs, w->max,
				(int)ts.tv_sec * 1000 + (int)((ts.tv_nsec + 999999) / 1000000),
				w->sigmask);
done:
	if (r < 0)
		r = -errno;
	errno = saved;
	return r;
}

/* The real call; returns with w->token_seen when a flow has moved meanwhile. */
static int wait_plain(struct ep_wait *w)
{
	int n = w->first;

	w->first = INT_MIN;
	if (n == INT_MIN) {
		/* full barrier: count this sleeper, then look; pairs with "attached, then kick" */
		xr_fetch_add(&w->ep->plain, 1);
		if (xr_load_acquire(&w->ep->attached)) {
			w->token_seen = 1;
			n = 0;
		} else {
			n = plain_real(w);
		}
		xr_fetch_sub(&w->ep->plain, 1);
	}
	if (xr_unlikely(n == -EFAULT))
		n = wait_refused(w);
	if (n > 0)
		n = wait_strip(w, w->evs, n);
	w->kernel_done = n > 0;
	return n;
}

/* An epoll file that a parent shares, and of which this process has no record: its token means nothing here. */
static int wait_inherited(struct ep_wait *w)
{
	int n;

	do {
		w->token_seen = 0;
		n = plain_real(w);
		if (n > 0)
			n = wait_strip(w, w->evs, n);
	} while (!n && w->token_seen && !wait_expired(w));
	return n;
}

/* ---- in and out ----------------------------------------------------------- */

/* Is asleep, where a child that takes up the file has to ring for it, and gives it time. */
static void wait_is_asleep(struct xr_epoll *ep, uint32_t by)
{
	/* seq_cst: pairs with share_take */
	if (ep->share && !ep->parents)
		xr_fetch_add(&ep->share->asleep, by);
}

static void wait_repair(void)
{
	struct xr_epoll *ep = in.ep;

	in.ep = NULL;
	if (in.asleep && ep->gen == xr_ep_gen)
		wait_is_asleep(ep, -1u);
	if (ep->gen != xr_ep_gen || xr_ep_lock(ep))
		return;
	xr_store_relaxed(&ep->spinning, 0);
	if (in.asleep == IN_SLEEP)
		ep->sleepers--;
	else
		xr_count(&ep->awake, -1u);
	ep->inside--;
	xr_ep_unbusy(ep);
	xr_ep_put(ep);
}

static int wait_enter(struct ep_wait *w)
{
	struct xr_epoll *ep = w->ep;

	if (xr_ep_lock(ep))
		return -EDEADLK;
	if (xr_unlikely(!ep->fds || xr_fd_epoll(w->epfd) != ep)) {
		xr_ep_unlock(ep);
		return -EBADF;
	}
	ep->inside++;
	xr_count(&ep->awake, 1u);
	w->round = ++ep->round ? ep->round : ++ep->round;
	xr_ep_unlock(ep);
	return 0;
}

/* Who leaves others asleep, or something asleep on the descriptor, leaves all armed. */
static void wait_leave(struct xr_epoll *ep)
{
	int tries;

	if (xr_ep_lock(ep))
		return;
	for (tries = 0; tries < 3 && xr_load_relaxed(&ep->awake) == 1 && !ep->rested &&
	     (ep->sleepers || ep->watched || xr_load_relaxed(&ep->plain)); tries++)
		xr_ep_handover(ep);
	xr_count(&ep->awake, -1u);
	ep->inside--;
	xr_ep_put(ep);
}

static void sleep_cancelled(void *arg)
{
	struct xr_epoll *ep = arg;

	in.ep = NULL;
	wait_is_asleep(ep, -1u);
	if (xr_ep_lock(ep))
		return;
	ep->sleepers--;
	ep->inside--;
	xr_ep_put(ep);
}

/* ---- looking and sleeping --------------------------------------------------- */

/* What the kernel has right now, behind the n events that are there already. */
static int wait_look(struct ep_wait *w, const sigset_t *sigmask)
{
	struct xr_epoll *ep = w->ep;
	int seen = w->token_seen, r;

	w->token_seen = 0;
	r = (int)xr_sys6(SYS_epoll_pwait, w->epfd, w->evs + w->n, w->max - w->n, 0, sigmask, 8);
	if (xr_unlikely(r == -EFAULT))
		r = wait_refused(w);
	if (r > 0)
		r = wait_strip(w, w->evs + w->n, r);
	/* our own event took the only place: an edge, so what stands behind it comes now */
	if (!r && w->token_seen && w->max - w->n == 1) {
		r = (int)xr_sys6(SYS_epoll_pwait, w->epfd, w->evs + w->n, 1, 0, sigmask, 8);
		if (r > 0)
			r = wait_strip(w, w->evs + w->n, r);
	}
	w->kernel_done |= r > 0;
	xr_store_relaxed(&ep->looked, xr_cycles());
	xr_store_relaxed(&ep->quiet, r > 0 || w->token_seen ? 0 : xr_load_relaxed(&ep->quiet) + 1);
	xr_store_relaxed(&ep->stands, r > 0);
	w->token_seen |= seen;
	/* of a parent's file: no token tells */
	if (xr_unlikely(xr_load_acquire(&ep->top) >= 0) && xr_ksock_poll(ep->inner, POLLIN))
		xr_store_relaxed(&ep->dirty, 1);
	return r;
}

static int wait_due(const struct xr_epoll *ep)
{
	return xr_load_relaxed(&ep->stands) || xr_cycles() - xr_load_relaxed(&ep->looked) >
	       (xr_load_relaxed(&ep->quiet) > QUIET_LOOKS ? LOOK_QUIET : LOOK_BUSY);
}

static int signalled(const struct ep_wait *w)
{
	return xr_signal_mark().any != w->mark.any;
}

static int spin_look(void *arg)
{
	struct ep_wait *w = arg;
	struct xr_epoll *ep = w->ep;
	int r;

	if (xr_ep_lock(ep))
		return 1;
	r = xr_ep_has_work(ep);
	xr_ep_unlock(ep);
	if (r || signalled(w))
		return 1;
	if (xr_cycles() - xr_load_relaxed(&ep->looked) <= LOOK_SPIN)
		return 0;
	r = wait_look(w, NULL);
	if (r)
		w->n = r;
	return r || xr_load_relaxed(&ep->dirty) || wait_expired(w);
}

#define LOOK_AT_BOTH	INT_MAX

/* The kernel's part of the sleep: its events, 0 or -errno; LOOK_AT_BOTH: a child's sets have something. */
static int wait_in_kernel(struct ep_wait *w, uint64_t deadline)
{
	struct xr_epoll *ep = w->ep;
	struct epoll_event own;
	/* acquire: pairs with top_make */
	int r, top = xr_load_acquire(&ep->top);

	if (xr_likely(top < 0))
		return xr_sleep_epoll(w->epfd, w->evs, w->max, deadline, w->sigmask, w->mark);
	r = xr_sleep_epoll(top, &own, 1, deadline, w->sigmask, w->mark);
	return r > 0 ? LOOK_AT_BOTH : r;
}

/* 1: look again; 0: slept as long as there was time; w->n: what the kernel had. */
static int wait_sleep(struct ep_wait *w)
{
	struct xr_epoll *ep = w->ep;
	uint64_t then, slice;
	int r, lend, ours;

	if (xr_ep_lock(ep))
		return 1;
	if (xr_load_relaxed(&ep->awake) == 1) {
		/* nobody else looks after the flows now: all must be armed already */
		if (ep->nready || ep->nhot || xr_load_relaxed(&ep->dirty) || xr_ep_doze(ep)) {
			xr_ep_unlock(ep);
			return 1;
		}
		ep->rested = 1;
	}
	xr_count(&ep->awake, -1u);
	ep->sleepers++;
	xr_ep_unlock(ep);
	wait_is_asleep(ep, 1);
	in.asleep = IN_SLEEP;
	/* who rings looks for sleepers after it has asked, and this one for that after it counts */
	lend = xr_ep_must_lend(ep) || xr_ep_must_hear(ep);
	then = xr_now_ns();
	slice = then + XR_WAIT_PEER;
	pthread_cleanup_push(sleep_cancelled, ep);
	/* a deadline of 0 would mean none */
	r = lend ? LOOK_AT_BOTH :
	    wait_in_kernel(w, xr_deadline_min(!w->has_deadline ? 0 : w->deadline ? w->deadline : 1, slice));
	pthread_cleanup_pop(0);
	/* a child that a handler has forked in the meantime returns here as well: it has never been counted */
	xr_fork_check();
	ours = ep->gen == xr_ep_gen;
	in.asleep = IN_WOKEN;
	if (!xr_ep_lock(ep)) {
		ep->sleepers--;
		xr_count(&ep->awake, 1u);
		/* not for each of many short waits */
		if (!r && xr_now_ns() - ep->patrolled >= XR_WAIT_PEER - XR_WAIT_SLICE) {
			ep->patrolled = xr_now_ns();
			xr_ep_patrol(ep);
			if (xr_ep_lent(ep))
				xr_store_relaxed(&ep->dirty, 1);
		}
		xr_ep_unlock(ep);
	}
	/* a child that has rung goes on when nobody counts as asleep, and is to find all with the kernel by then */
	if (ours && xr_ep_must_lend(ep))
		xr_ep_lend(ep);
	in.asleep = IN_AWAKE;
	wait_is_asleep(ep, ours ? -1u : 0);
	/* as in xr_wait_flow */
	xr_flow_sweep_slept(then);
	xr_store_relaxed(&ep->looked, xr_cycles());
	if (xr_unlikely(r == LOOK_AT_BOTH)) {
		xr_spin_slept(&ep->spin, 1, xr_now_ns() - then);
		xr_store_relaxed(&ep->stands, 1);
		w->n = 0;
		return 1;
	}
	if (xr_unlikely(r == -EFAULT)) {
		w->n = 0;
		r = wait_refused(w);
		if (!r)
			return 1;
	}
	if (r > 0) {
		xr_spin_slept(&ep->spin, 1, xr_now_ns() - then);
		w->n = wait_strip(w, w->evs, r);
		w->kernel_done = w->n > 0;
		xr_store_relaxed(&ep->stands, w->n > 0);
		return 1;
	}
	w->n = r;
	/* the time was up, or only the slice's */
	return r < 0 || !wait_expired(w);
}

/* Both worlds, without waiting.  0 nothing, else w->n is set. */
static int wait_both(struct ep_wait *w, int rest, const sigset_t *sigmask, int must_look)
{
	struct xr_epoll *ep = w->ep;
	int due = !w->kernel_done && (must_look || wait_due(ep)), r, room;

	if (due && w->max == 1 && xr_load_relaxed(&ep->kernel_first)) {
		xr_store_relaxed(&ep->kernel_first, 0);
		r = wait_look(w, sigmask);
		if (r) {
			w->n = r;
			return 1;
		}
		/* the last look comes after all else: a flow may go back to the kernel in between */
		due = must_look;
	}
	/* when the kernel is looked at, one slot stays for it */
	room = w->max - w->n - (due && w->max > 1);
	r = room > 0 ? xr_ep_collect(ep, w->evs + w->n, room, rest, w->round) : 0;
	if (r < 0) {
		/* a bad address, or inside a handler that interrupted this very work */
		w->n = w->n ? w->n : r == -EFAULT ? r : -EINTR;
		return 1;
	}
	w->n += r;
	if (w->n >= w->max) {
		xr_store_relaxed(&ep->kernel_first, (uint32_t)due);
		return 1;
	}
	if (!due)
		return w->n > 0;
	r = wait_look(w, sigmask);
	if (r < 0) {
		w->n = w->n ? w->n : r;
		return 1;
	}
	w->n += r;
	if (w->n < w->max && xr_load_relaxed(&ep->dirty)) {
		r = xr_ep_collect(ep, w->evs + w->n, w->max - w->n, rest, w->round);
		if (r > 0)
			w->n += r;
		else if (xr_unlikely(r == -EFAULT))
			w->n = w->n ? w->n : r;
		/* what it found may be that a flow is back with the kernel */
		else if (must_look && !w->n)
			w->n = wait_look(w, sigmask);
	}
	return w->n != 0;
}

/* 1: no flow is on a fabric any more; else w->n says what came of it. */
static int wait_fabric(struct ep_wait *w)
{
	struct xr_epoll *ep = w->ep;
	uint32_t free = 0;
	int last = w->has_deadline && !w->deadline, more;

	for (;;) {
		xr_control_check();
		if (xr_ep_must_lend(ep))
			xr_ep_lend(ep);
		if (xr_ep_must_hear(ep))
			xr_ep_hear(ep);
		if (wait_both(w, 0, last ? w->sigmask : NULL, last))
			return 0;
		if (!last && !signalled(w) && !xr_load_acquire(&ep->attached) &&
		    !xr_load_relaxed(&ep->dirty))
			return 1;
		if (!last && wait_expired(w)) {
			/* as the kernel does, one more look when the time is over */
			last = 1;
			continue;
		}
		if (last)
			return 0;
		if (!xr_load_relaxed(&ep->spinning) && xr_cas(&ep->spinning, &free, 1)) {
			more = xr_spin(&ep->spin, 1, spin_look, w);
			xr_store_release(&ep->spinning, 0);
			if (w->n)
				return 0;
			if (signalled(w)) {
				w->n = -EINTR;
				return 0;
			}
			if (more)
				continue;
		}
		/*
		 * Whoever is last awake arms all and looks once more.  Racy: wait_sleep decides,
		 * and sends us round again.
		 */
		if (wait_both(w, xr_load_relaxed(&ep->awake) == 1, NULL, 0))
			return 0;
		more = wait_sleep(w);
		if (w->n < 0)
			return 0;
		last = !more;
	}
}

static int wait_all(struct ep_wait *w)
{
	struct xr_epoll *outer_ep = in.ep;
	uintptr_t outer_frame = in.frame, frame = (uintptr_t)__builtin_frame_address(0);
	uint32_t outer_asleep = in.asleep;
	int r;

	if (!w->ep || w->max <= 0)
		return plain_real(w);
	w->token = w->ep->token;
	if (xr_unlikely(w->ep->gen != xr_ep_gen)) {
		struct xr_epoll *own = xr_ep_adopt(w->ep, w->epfd);

		if (!own)
			return wait_inherited(w);
		w->ep = own;
	}
	if (xr_ep_must_lend(w->ep))
		xr_ep_lend(w->ep);
	if (xr_ep_must_hear(w->ep))
		xr_ep_hear(w->ep);
	/* what a child has heard in its place */
	if (xr_load_acquire(&w->ep->attached) && xr_unlikely(xr_ep_lent(w->ep)))
		xr_store_relaxed(&w->ep->dirty, 1);
again:
	while (w->first != INT_MIN ||
	       (!xr_load_acquire(&w->ep->attached) && !xr_load_relaxed(&w->ep->dirty))) {
		w->n = wait_plain(w);
		if (xr_likely(!w->token_seen))
			return w->n;
		/* a flow moved; or it moved back, and its last echo was all there was */
		w->token_seen = 0;
		if (w->n < 0)
			return w->n;
		/* beside the token: the kernel tells these once, and they are not asked for again */
		if (w->n)
			break;
	}
	if (xr_unlikely(in.ep && !xr_frame_alive(frame, in.frame))) {
		wait_repair();
		outer_ep = NULL;
	}
	r = wait_enter(w);
	if (xr_unlikely(r))
		return w->n ? w->n : r == -EDEADLK ? -EINTR : wait_inherited(w);
	in.ep = w->ep;
	in.frame = frame;
	in.asleep = IN_AWAKE;
	r = wait_fabric(w);
	wait_leave(w->ep);
	in.ep = outer_ep;
	in.frame = outer_frame;
	in.asleep = outer_asleep;
	if (r) {
		/* the token that woke us is dealt with: the next one is news */
		w->token_seen = 0;
		w->ms = 0;
		goto again;
	}
	return w->n;
}

int xr_epoll_wait(int epfd, struct epoll_event *evs, int max, uint64_t deadline, int has_deadline,
		  const sigset_t *sigmask)
{
	struct ep_wait w = {
		.ep = xr_fd_epoll(epfd), .evs = evs, .sigmask = sigmask, .deadline = deadline,
		.epfd = epfd, .max = max, .has_deadline = has_deadline, .first = INT_MIN,
		.mark = xr_signal_mark(),
	};

	return wait_all(&w);
}

int xr_epoll_wait_moved(struct xr_epoll *ep, int epfd, struct epoll_event *evs, int max, int ms,
			const sigset_t *sigmask, struct xr_signal_mark mark, int first, uint64_t begun)
{
	/* while nothing has moved the kernel keeps the time, and ours need not be told exactly */
	uint64_t deadline = ms <= 0 ? 0 : (uint64_t)ms * 1000000u + (begun ? begun + xr_tick_ns() : xr_now_ns());
	struct ep_wait w = {
		.ep = ep, .evs = evs, .sigmask = sigmask, .deadline = deadline, .epfd = epfd, .max = max,
		.has_deadline = ms >= 0, .first = first, .mark = mark, .ms = ms > 0 && first == INT_MIN ? ms : 0,
	};
	int r = wait_all(&w);

	if (r >= 0)
		return r;
	errno = -r;
	return -1;
}
