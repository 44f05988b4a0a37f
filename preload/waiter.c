/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiters, busy-waiting, and the sleep of a blocking call on one flow. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "control.h"
#include "flow.h"
#include "hold.h"
#include "mem.h"
#include "ready.h"
#include "waiter.h"
#include "tune.h"

/*
 * Spinning.  An idle core takes ~35 us to wake, a look at a cache line a few ns, a turn
 * by sched_yield between two tasks of one core 1.3 us.
 */
#define SPIN_FIRST	32		/* looks before the first yield, ~1 us */
#define SPIN_ROUND	8		/* looks between two yields, ~0.3 us */
#define SPIN_MIN	1000u		/* ns; the budget of a caller that never hits */
#define SPIN_SWITCH	3000u		/* cycles: a yield that took longer ran somebody else */
#define SPIN_QUIET	16		/* yields that came back at once until the core is ours */
#define SPIN_HOG	1000000u	/* cycles: whoever ran does not give the core back soon */
/*
 * Where that happened a yield costs a turn of all who want the core, and a sleeper is woken before them:
 * no spinning for so long, twice as long each time that nothing has changed.
 */
#define SPIN_AWAY	5000000u	/* ns; doubled at most SPIN_AWAYS times */
#define SPIN_AWAYS	7u

struct waiter_tls {
	void *scratch;
	size_t scratch_len;
	uintptr_t scratch_frame;
	uint32_t self;
	uint32_t crowded;	/* > 0: others want this core, yield after every look */
	uint32_t tx_spin, poll_spin;
	uint32_t hogs;		/* yields, of late, that took the core away */
	uint64_t away;		/* ns: no yield before then */
};
static __thread struct waiter_tls tls = { .crowded = SPIN_QUIET };

/* Written by the owner of the number; waiting is read by threads that meet its claims. */
static struct waiter_slot {
	_Atomic int tid;	/* of a thread's waiter, 0 for an epoll file's */
	_Atomic uint32_t waiting;
} waiter_slot[XR_WAITERS];
static _Atomic uint64_t waiter_map[XR_WAITERS / 64] = { 1 };	/* number 0 is nobody */

static pthread_key_t waiter_key;
static int waiter_key_made;

/* Claims of sleeping threads on the two directions of each flow of this process. */
struct waiter_claim {
	_Atomic uint32_t by[2];
};
static _Atomic(struct waiter_claim *) waiter_claims;

/* ---- numbers ------------------------------------------------------------- */

static uint32_t waiter_alloc(void)
{
	uint32_t i;

	/* the lowest free number: its bells exist already */
	for (i = 0; i < XR_WAITERS / 64; i++) {
		uint64_t m = xr_load_relaxed(&waiter_map[i]);

		while (~m) {
			uint32_t b = (uint32_t)__builtin_ctzll(~m);

			if (xr_cas(&waiter_map[i], &m, m | 1ull << b))
				return i * 64 + b;
		}
	}
	return 0;
}

/* Threads that ended without their destructor leave their numbers behind. */
static int waiter_reclaim(void)
{
	uint32_t w, n = 0;

	for (w = 1; w < XR_WAITERS; w++) {
		int tid = xr_load_relaxed(&waiter_slot[w].tid);

		if (tid && xr_sys3(SYS_tgkill, xr_getpid(), tid, 0) == -ESRCH &&
		    xr_cas(&waiter_slot[w].tid, &tid, 0)) {
			xr_waiter_put(w);
			n++;
		}
	}
	return n != 0;
}

uint32_t xr_waiter_get(void)
{
	uint32_t w = waiter_alloc();

	if (xr_unlikely(!w) && waiter_reclaim())
		w = waiter_alloc();
	return w;
}

/*
 * The bells stay with the number for its next owner, who may see them ring once for
 * something that was meant for us.
 */
void xr_waiter_put(uint32_t w)
{
	if (!w || w >= XR_WAITERS)
		return;
	xr_store_relaxed(&waiter_slot[w].waiting, 0);
	xr_store_relaxed(&waiter_slot[w].tid, 0);
	xr_fetch_and(&waiter_map[w / 64], ~(1ull << (w % 64)));
}

static void waiter_thread_exit(void *arg)
{
	(void)arg;
	xr_hold_thread(1);
	xr_waiter_put(tls.self);
	tls.self = 0;
	xr_unmap(tls.scratch, tls.scratch_len);
	tls.scratch = NULL;
	tls.scratch_len = 0;
}

__attribute__((constructor)) static void waiter_init(void)
{
	/*
	 * Values of the first 32 keys lie in the thread itself; a later key would make
	 * pthread_setspecific allocate, so those threads are left to waiter_reclaim.
	 */
	if (pthread_key_create(&waiter_key, waiter_thread_exit))
		return;
	if (waiter_key < 32)
		waiter_key_made = 1;
	else
		pthread_key_delete(waiter_key);
}

static void waiter_at_exit(void)
{
	if (waiter_key_made)
		pthread_setspecific(waiter_key, &tls);
}

uint32_t xr_waiter_self(void)
{
	if (xr_likely(tls.self))
		return tls.self;
	tls.self = xr_waiter_get();
	if (tls.self) {
		xr_store_relaxed(&waiter_slot[tls.self].tid, xr_gettid());
		waiter_at_exit();
	}
	return tls.self;
}

void xr_waiter_forked(void)
{
	uint64_t m;
	uint32_t i, w;

	/* those in use alone: pages that are not written need no copy */
	for (i = 0; i < XR_WAITERS / 64; i++) {
		for (m = xr_load_relaxed(&waiter_map[i]); m; m &= m - 1) {
			w = i * 64 + (uint32_t)__builtin_ctzll(m);
			if (!w)
				continue;
			xr_store_relaxed(&waiter_slot[w].tid, 0);
			xr_store_relaxed(&waiter_slot[w].waiting, 0);
		}
		xr_store_relaxed(&waiter_map[i], i ? 0 : 1);
	}
	/* the parent's claims mean nothing here, and are not mapped */
	xr_store_relaxed(&waiter_claims, NULL);
	tls.self = 0;
	tls.scratch_frame = 0;
}

/* ---- scratch memory ------------------------------------------------------ */

int xr_frame_alive(uintptr_t own, uintptr_t frame)
{
	stack_t ss;

	if (!frame)
		return 0;
	if (own < frame)
		return 1;
	/* a handler on a stack of its own may lie anywhere */
	return !xr_sys2(SYS_sigaltstack, 0, &ss) && (ss.ss_flags & SS_ONSTACK);
}

void *xr_scratch_get(size_t len, uintptr_t frame, size_t *own)
{
	void *p;

	len = XR_ALIGN(len, 65536);
	if (!xr_frame_alive(frame, tls.scratch_frame)) {
		if (tls.scratch_len < len) {
			p = xr_map_private(len);
			if (!p)
				return NULL;
			xr_unmap(tls.scratch, tls.scratch_len);
			tls.scratch = p;
			tls.scratch_len = len;
			waiter_at_exit();
		}
		*own = 0;
		tls.scratch_frame = frame;
		return tls.scratch;
	}
	*own = len;
	return xr_map_private(len);
}

void xr_scratch_put(void *p, size_t own)
{
	if (own)
		xr_unmap(p, own);
	else
		tls.scratch_frame = 0;
}

/* ---- spinning ------------------------------------------------------------ */

/* Lets others run.  1 when one did, and for so long that spinning makes no sense here. */
static int spin_yield(void)
{
	uint64_t c = xr_cycles();

	xr_sys0(SYS_sched_yield);
	c = xr_cycles() - c;
	if (c >= SPIN_SWITCH)
		tls.crowded = SPIN_QUIET;
	else if (tls.crowded)
		tls.crowded--;
	if (xr_likely(c < SPIN_HOG)) {
		tls.hogs -= tls.hogs != 0;
		return 0;
	}
	tls.away = xr_now_ns() + ((uint64_t)SPIN_AWAY << tls.hogs);
	if (tls.hogs < SPIN_AWAYS)
		tls.hogs++;
	return 1;
}

/* Threads that share a budget race for it: any of their values will do. */
static uint32_t budget_get(uint32_t *budget)
{
	return xr_load_relaxed((_Atomic uint32_t *)budget);
}

static void budget_set(uint32_t *budget, uint64_t v)
{
	xr_store_relaxed((_Atomic uint32_t *)budget, v > SPIN_MIN ? (uint32_t)v : SPIN_MIN);
}

static uint64_t spin_max(uint32_t times)
{
	uint64_t max = xr_tuned(&xr_cfg.spin) * times;

	return max > UINT32_MAX ? UINT32_MAX : max;
}

int xr_spin(uint32_t *budget, uint32_t times, int (*again)(void *arg), void *arg)
{
	uint64_t start = 0, now, max = spin_max(times);
	uint32_t b = budget_get(budget);
	int i, r, hog = 0, looks = tls.crowded ? 1 : SPIN_FIRST;

	if (!max || (xr_unlikely(tls.hogs) && xr_now_ns() < tls.away))
		return again(arg);
	if (!b || b > max)
		b = (uint32_t)max;
	for (;;) {
		for (i = 0; i < looks; i++) {
			r = again(arg);
			if (r) {
				if (start) /* it was a wait, not a look */
					xr_stats_add(XR_STAT_SPINS_HIT, 1);
				if (b < max)
					budget_set(budget, b * 2ull < max ? b * 2ull : max);
				return r;
			}
			xr_cpu_relax();
		}
		hog = spin_yield();
		now = xr_now_ns();
		if (!start)
			start = now;
		else if (now - start >= b)
			break;
		if (hog)
			break;
		looks = tls.crowded ? 1 : SPIN_ROUND;
	}
	budget_set(budget, hog ? 0 : b / 2);
	xr_stats_add(XR_STAT_SPINS_MISSED, 1);
	return again(arg);
}

void xr_spin_slept(uint32_t *budget, uint32_t times, uint64_t ns)
{
	uint64_t max = spin_max(times);
	uint64_t b = budget_get(budget);

	/* a wake-up takes about as long as the longest spin: this sleep ended within the spin */
	if (ns > 2 * max)
		return;
	budget_set(budget, b * 4 < max ? b * 4 : max);
}

uint32_t *xr_spin_tx(void)
{
	return &tls.tx_spin;
}

uint32_t *xr_spin_poll(void)
{
	return &tls.poll_spin;
}

/* ---- going to sleep ------------------------------------------------------ */

uint32_t xr_waiter_enter(void)
{
	uint32_t w = xr_waiter_self();

	/* relaxed: a claim that is met is checked again every XR_WAIT_SLICE */
	if (w)
		xr_store_relaxed(&waiter_slot[w].waiting, 1);
	return w;
}

void xr_waiter_leave(uint32_t w)
{
	if (w)
		xr_store_relaxed(&waiter_slot[w].waiting, 0);
}

static void forget_entry(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	(void)arg;
	(void)l;
	(void)cookie;
}

void xr_waiter_forget(struct xr_shm_link *l, uint32_t w)
{
	xr_shm_link_harvest(l, w, forget_entry, NULL);
}

int xr_waiter_doze(struct xr_shm_link *l, uint32_t w)
{
	xr_shm_link_sleeping(l, w, 1);
	return xr_shm_link_pending(l, w);
}

void xr_waiter_rise(struct xr_shm_link *l, uint32_t w)
{
	xr_shm_link_sleeping(l, w, 0);
	/* whom the entries speak of does not matter: the caller looks at all its flows */
	xr_shm_link_harvest(l, w, forget_entry, NULL);
}

void xr_bell_drain(int bell)
{
	uint64_t n;

	xr_sys3(SYS_read, bell, &n, sizeof(n));
}

/* ---- claims -------------------------------------------------------------- */

static _Atomic uint32_t *claim_word(struct xr_flow *f, int dir, int make)
{
	struct waiter_claim *c = xr_load_acquire(&waiter_claims), *seen = NULL;
	size_t i = (size_t)(f - xr_slab.flow), len = xr_slab.max * sizeof(*c);

	if (f < xr_slab.flow || i >= xr_slab.max)
		return NULL;
	if (xr_unlikely(!c)) {
		if (!make)
			return NULL;
		c = xr_map_private(len);
		if (!c)
			return NULL;
		/* of no use to a child, and pages for each fork to share */
		xr_sys3(SYS_madvise, c, len, MADV_DONTFORK);
		if (!xr_cas(&waiter_claims, &seen, c)) {
			xr_unmap(c, len);
			c = seen;
		}
	}
	return &c[i].by[dir];
}

int xr_waiter_claim(struct xr_flow *f, int dir, uint32_t w)
{
	_Atomic uint32_t *p = claim_word(f, dir, 1);
	uint32_t by;

	if (!p)
		return 0;
	by = xr_load_relaxed(p);
	for (;;) {
		if (by == w)
			return 1;
		/* a claim whose owner is not waiting was left by longjmp or a thread that ended */
		if (by && by < XR_WAITERS && xr_load_relaxed(&waiter_slot[by].waiting))
			return 0;
		/* full barrier: claim, then arm; pairs with the epoll file's "arm, then look" */
		if (xr_cas(p, &by, w))
			return 1;
	}
}

void xr_waiter_unclaim(struct xr_flow *f, int dir, uint32_t w)
{
	_Atomic uint32_t *p = claim_word(f, dir, 0);

	if (p && xr_cas(p, &w, 0) && f->own->regs)
		xr_epoll_flow_kick(f);
}

uint32_t xr_waiter_claimed(struct xr_flow *f, int dir)
{
	_Atomic uint32_t *p = claim_word(f, dir, 0);
	uint32_t by = p ? xr_load_acquire(p) : 0;

	return by < XR_WAITERS && xr_load_relaxed(&waiter_slot[by].waiting) ? by : 0;
}

/* ---- one flow ------------------------------------------------------------ */

struct wait_arg {
	struct xr_flow *f;
	uint32_t mask;
	uint32_t any;		/* handlers that had run when the wait began */
};

static int wait_look(void *arg)
{
	struct wait_arg *a = arg;

	return xr_flow_peek(a->f, a->mask) || xr_signal_mark().any != a->any;
}

/* What a sleep has to undo, also when the thread is cancelled in it. */
struct wait_sleep {
	struct xr_flow *f;
	struct xr_shm_link *l;	/* referenced */
	uint32_t w;
	int dir, claimed;
	int held;		/* xr_flow_kpoll_begin done: the flow stays on the kernel meanwhile */
};

static void wait_undo(void *arg)
{
	struct wait_sleep *s = arg;

	if (s->held)
		xr_flow_kpoll_end(s->f);
	if (s->claimed) {
		xr_waiter_rise(s->l, s->w);
		xr_waiter_unclaim(s->f, s->dir, s->w);
	}
	xr_waiter_leave(s->w);
	if (s->l)
		xr_link_unref(s->l);
}

static void wait_cancelled(void *arg)
{
	wait_undo(arg);
	xr_hold_thread(1);
}

/* The sleep itself: 0 look again, -EAGAIN deadline, -EINTR any handler ran. */
static int wait_in_kernel(struct wait_sleep *s, int fd, uint32_t mask, int bell, uint64_t deadline,
			  struct xr_signal_mark mark)
{
	struct pollfd p[3] = { { .fd = -1 }, { .fd = -1, .events = POLLIN },
			       { .fd = xr_control_fd(), .events = POLLIN } };
	uint32_t ev = xr_flow_kernel_mask(s->f, mask);
	uint64_t slice = 0;
	int n = 0;

	if (ev) {
		p[0].fd = fd;
		p[0].events = (short)ev;
	} else {
		slice = XR_WAIT_LONG;
	}
	if (s->claimed)
		p[1].fd = bell;
	else
		slice = XR_WAIT_SLICE;
	/* a child that takes the flow to TCP may not have our bell, nor a child of the peer's */
	if (!slice)
		slice = xr_flow_holders(s->f) > 1 ? XR_WAIT_LONG : XR_WAIT_PEER;
	if (slice)
		slice += xr_now_ns();
	pthread_cleanup_push(wait_cancelled, s);
	n = xr_sleep_poll(p, 3, xr_deadline_min(deadline, slice), NULL, mark, 1);
	pthread_cleanup_pop(0);
	if (n > 0 && p[1].revents)
		xr_bell_drain(bell);
	if (xr_unlikely(n > 0 && p[2].revents))
		xr_control_drain();
	if (n > 0 && p[0].revents)
		xr_flow_kernel_event(s->f, (uint32_t)(unsigned short)p[0].revents);
	if (n == 0 && deadline && (!slice || deadline <= slice))
		return -EAGAIN;
	if (n == 0 && s->claimed)
		xr_flow_unrung(s->f);
	return n == -EINTR ? -EINTR : 0;
}

/* Takes over the reference to l. */
static int wait_sleep(struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
		      struct xr_signal_mark mark, struct xr_shm_link *l)
{
	struct wait_sleep s = { .f = f, .l = l, .dir = mask & POLLIN ? 0 : 1 };
	int bell = -1, r = 0;
	uint32_t now;

	s.w = xr_waiter_enter();
	if (l && s.w && l->owner_pid == xr_getpid())
		bell = xr_shm_link_bell(l, s.w);
	if (xr_unlikely(bell < 0) && l && xr_flow_link_lost(f, fd)) {
		wait_undo(&s);
		return 0;
	}
	if (bell >= 0) {
		/* entries of earlier sleeps, so that doze reports only new ones */
		xr_waiter_forget(l, s.w);
		s.claimed = xr_waiter_claim(f, s.dir, s.w);
	}
	if (s.claimed)
		xr_flow_arm(f, s.w, mask);
	/* UINT32_MAX: back on the kernel, whose socket is then all there is to watch */
	now = xr_flow_poll(f, fd);
	if (now == UINT32_MAX && s.claimed && (atomic_load(&f->path) & XR_PATH_MOVE)) {
		/* the claim is seen, and we are woken, when it has moved */
		now = xr_ksock_poll(fd, mask);
	} else if (now == UINT32_MAX) {
		s.held = xr_flow_kpoll_begin(f);
		/* on a fabric again: from the beginning */
		now = s.held ? xr_ksock_poll(fd, mask) : UINT32_MAX;
	}
	if (!(now & xr_ready_bits(mask)) &&
	    !(s.claimed && xr_waiter_doze(l, s.w)))
		r = wait_in_kernel(&s, fd, mask, bell, deadline, mark);
	wait_undo(&s);
	return r;
}

int xr_wait_flow(struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
		 struct xr_signal_mark mark)
{
	struct xr_signal_mark now = xr_signal_mark();
	struct wait_arg arg = { f, mask, now.any };
	uint32_t *budget = mask & POLLIN ? &f->rx_spin : &tls.tx_spin, times = f->far ? XR_BRIDGE_SPIN : 1;
	struct xr_shm_link *l;
	uint64_t then;
	int r;

	/* SA_RESTART does not hold for a socket with a time-out */
	if (now.norestart != mark.norestart || (deadline && now.any != mark.any))
		return -EINTR;
	mark = now;
	/* the reference keeps shared memory mapped if another thread closes the flow */
	l = xr_flow_link_get(f);
	if (xr_spin(budget, times, wait_look, &arg) && xr_signal_mark().any == mark.any) {
		if (l)
			xr_link_unref(l);
		/* who never needs to sleep either, if there may be something: racy, as in xr_flow_sweep */
		if (xr_unlikely(xr_load_relaxed(&xr_slab.limbo) != UINT32_MAX))
			xr_flow_sweep_slept(xr_now_ns());
		return 0;
	}
	then = xr_now_ns();
	r = wait_sleep(f, fd, mask, deadline, mark, l);
	/* a process that goes on with this flow may close no other, nor open one, for long */
	xr_flow_sweep_slept(then);
	/* a handler that ran may have slept on the same bell: look again even after SA_RESTART */
	if (r == -EINTR && !deadline && xr_signal_mark().norestart == mark.norestart)
		r = 0;
	if (!r)
		xr_spin_slept(budget, times, xr_now_ns() - then);
	return r;
}
