/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The way back to a fabric, after a retreat whose cause may pass.
 *
 * Both ends have the direction blocks of the last time still mapped.  Each says there when
 * it is willing (XR_DIR_BACK), once its own patience is over; the connecting end opens the
 * rendezvous point when both are, and says so (XR_DIR_NAMED); the accepting end calls.  The
 * handshake is the one of a young flow, with fresh blocks.  Where the link is dead (another
 * process has taken the peer's end over) nothing can be said, and both try like young flows.
 *
 * Hysteresis: return_after on TCP at least, twice as long after each retreat or failed
 * attempt, up to 512 times; forgiven when the flow stayed on the fabric for 64 times as long.
 * Who has tried in vain RETURN_ATTEMPTS times in a row goes on at RETURN_SELDOM_NS.
 *
 * Links of earlier times stay mapped, since who looked at the flow without a lock before it left one may do so
 * still.  A flow remembers three.  When it has lost as many it stays on TCP (limit-returns) until nobody can look
 * any more: PAST_QUIET seconds, of which each counts as one look at the clock at most.  A process that was stopped
 * for an hour has counted one, and its threads have yet to come to the end of what they were at.
 *
 * Two hosts cannot tell each other when they are willing, and each needs the other to look at the same time.  But they
 * left the fabric at nearly the same time, and so both count from there: they look when twice, four, eight times
 * as long has gone by, whatever became of the attempts before, and never give up.
 */
#include <errno.h>
#include <string.h>
#include "control.h"
#include "flow_rx.h"
#include "flow_young.h"
#include "mem.h"
#include "process.h"
#include "ready.h"
#include "upgrade.h"
#include "waiter.h"
#include "tune.h"

#define RETURN_DOUBLINGS	9u
#define RETURN_FORGIVEN		64u
#define RETURN_ATTEMPTS		24u	/* in a row without success */
#define RETURN_SELDOM_NS	600000000000ull
#define PAST_QUIET		10u
#define PAST_LOOK_NS		1000000000ull
#define FAR_DOUBLINGS		15u
#define FAR_FIRST_NS		100000000ull	/* of a flow that has not been on the fabric yet */

int xr_flow_may_return(enum xr_reason why)
{
	switch (why) {
	case XR_REASON_NONE:
	case XR_REASON_YOUNG:
	case XR_REASON_PEER_REFUSED:
	case XR_REASON_FORKED:
	case XR_REASON_LIMIT_FDS:
	case XR_REASON_LIMIT_MEMORY:
	case XR_REASON_LIMIT_THREADS:
	case XR_REASON_PEER_DIED:
	case XR_REASON_FABRIC_LOST:
	case XR_REASON_RETREAT_REQUESTED:
	case XR_REASON_TIMEOUT:
	case XR_REASON_OPERATOR:
	case XR_REASON_LIMIT_RETURNS:
		return 1;
	default:
		return 0;
	}
}

static uint64_t return_wait(const struct xr_flow *f)
{
	uint32_t n = f->returns < RETURN_DOUBLINGS ? f->returns : RETURN_DOUBLINGS;

	return xr_tuned(&xr_cfg.return_after) << n;
}

static void return_thresholds(struct xr_flow *f)
{
	uint64_t turns = xr_tuned(&xr_cfg.upgrade_turns), bytes = xr_tuned(&xr_cfg.upgrade_bytes);

	xr_flow_need(f, (uint32_t)turns, bytes);
}

/* The next time at which the other end looks as well, not before `least` ns from now. */
static void far_next(struct xr_flow *f, uint64_t first, uint64_t least)
{
	uint64_t now = xr_now_ns(), from = xr_slab.far[f->index].from, at = first, want = now + least - from;
	uint32_t n;

	for (n = 0; n < FAR_DOUBLINGS && at < want; n++)
		at *= 2;
	if (at < want)
		at = first ? (want + at - 1) / at * at : want;
	f->up_after = from + at;
	xr_stats_flow_again(f->st, f->up_after);
	/* each call that moves bytes would look at the clock until then */
	if (f->up_after - now > FAR_FIRST_NS)
		xr_flow_need(f, 16, 65536);
	else
		return_thresholds(f);
}

int xr_flow_far_again(struct xr_flow *f, uint32_t again_ms, uint64_t begun)
{
	uint64_t first = f->link ? xr_tuned(&xr_cfg.return_after) : FAR_FIRST_NS;

	if (f->upgrade_off)
		return 0;
	if (!f->link && !f->up_tries)
		xr_slab.far[f->index].from = begun;
	if (f->up_tries < UINT8_MAX)
		f->up_tries++;
	far_next(f, first, again_ms * 1000000ull);
	return 1;
}

int xr_flow_return_plan(struct xr_flow *f)
{
	uint64_t now;

	if (f->upgrade_off || f->tx_shut || f->rx_shut || f->rx_end || xr_load_relaxed(&f->rx_dead) || f->rx_reset ||
	    !xr_flow_may_return((enum xr_reason)f->reason))
		return 0;
	now = xr_now_ns();
	if (f->moved_ns && now - f->moved_ns > RETURN_FORGIVEN * return_wait(f))
		f->returns = 0;
	f->up_tries = 0;
	if (f->far) {
		f->far->from = now;
		far_next(f, xr_tuned(&xr_cfg.return_after), return_wait(f));
	} else {
		f->up_after = now + return_wait(f);
		xr_stats_flow_again(f->st, f->up_after);
		return_thresholds(f);
	}
	if (f->returns < UINT8_MAX)
		f->returns++;
	return 1;
}

int xr_flow_return_failed(struct xr_flow *f, enum xr_reason why)
{
	uint64_t wait = return_wait(f);

	if (f->upgrade_off || !xr_flow_may_return(why))
		return 0;
	if (f->fails < RETURN_ATTEMPTS)
		f->fails++;
	else if (wait < RETURN_SELDOM_NS)
		wait = RETURN_SELDOM_NS;
	f->up_after = xr_now_ns() + wait;
	xr_stats_flow_again(f->st, f->up_after);
	if (f->returns < UINT8_MAX)
		f->returns++;
	f->up_tries = 0;
	return_thresholds(f);
	return 1;
}

/* Nothing of the last time is in use any more, at either end. */
static int return_is_over(struct xr_flow *f)
{
	/* acquire: pairs with link_die */
	if (xr_load_acquire(&f->link->dead) || xr_load_relaxed(&f->rx.dir->gen) != f->peer_dir_gen)
		return 1;
	return (xr_flow_peer_state(f) & (XR_DIR_CLOSED | XR_DIR_GONE)) != 0;
}

static int return_agreed(struct xr_flow *f)
{
	uint32_t said;

	/* the other end of the link is the module's: the two programs can say nothing over it */
	if (f->far || xr_load_acquire(&f->link->dead) || xr_load_relaxed(&f->rx.dir->gen) != f->peer_dir_gen)
		return 1;
	/* release: with it the peer may re-use what it knows of this end */
	xr_fetch_or(&f->tx.dir->state, XR_DIR_BACK);
	said = xr_flow_peer_state(f);
	if (said & XR_DIR_CLOSED)
		return 1;
	return (said & (f->role == XR_FLOW_CONNECT ? XR_DIR_BACK : XR_DIR_NAMED)) != 0;
}

/* tx_lock held.  1: there is room for one more link of an earlier time. */
static int return_room(struct xr_flow *f)
{
	struct xr_shm_link *l[XR_FLOW_PAST];
	uint32_t i, n = xr_load_relaxed(&f->npast), quiet = xr_load_relaxed(&f->quiet);

	if (n < XR_FLOW_PAST)
		return 1;
	if (!quiet) {
		xr_flow_blame(f, XR_REASON_LIMIT_RETURNS);
		/* who sleeps on their bells comes out, and goes to sleep on the socket */
		xr_flow_wake(f);
	}
	if (quiet < PAST_QUIET) {
		/* relaxed: who saw it zero has as many seconds */
		xr_store_relaxed(&f->quiet, (uint8_t)(quiet + 1));
		f->up_after = xr_now_ns() + PAST_LOOK_NS;
		xr_stats_flow_again(f->st, f->up_after + (PAST_QUIET - quiet - 1) * PAST_LOOK_NS);
		return_thresholds(f);
		return 0;
	}
	/* xr_links_strip() goes through them under this lock */
	xr_slab_lock();
	memcpy(l, f->past, sizeof(l));
	xr_store_relaxed(&f->npast, 0);
	xr_slab_unlock();
	/* release: who finds it zero finds none of them */
	xr_store_release(&f->quiet, 0);
	for (i = 0; i < n; i++)
		xr_link_unref(l[i]);
	return 1;
}

int xr_flow_return_due(struct xr_flow *f)
{
	int held = xr_control_holds(f);

	/* an operator wants what the peer has asked for before */
	if (held && f->reason == XR_REASON_RETREAT_REQUESTED)
		xr_flow_blame(f, XR_REASON_OPERATOR);
	if (f->tx_shut || f->rx_shut || xr_load_relaxed(&f->rx_dead) || xr_flow_holders(f) > 1 || held) {
		xr_flow_kids_reap();
		xr_flow_need(f, 8, 65536);
		return 0;
	}
	if (xr_unlikely(!return_room(f)))
		return 0;
	/* from here on each I/O call looks, at the price of a few loads */
	if (!return_is_over(f)) {
		xr_shm_link_progress(f->link);
		return 0;
	}
	if (!xr_load_relaxed(&f->link->dead) && (xr_flow_peer_state(f) & XR_DIR_STAYS)) {
		xr_store_relaxed(&f->upgrade_off, 1);
		xr_stats_flow_again(f->st, 0);
		xr_fetch_and(&f->path, ~XR_PATH_COUNT);
		return 0;
	}
	if (!return_agreed(f)) {
		/* who finds the link broken says no more over it */
		if (!(xr_load_relaxed(&f->turns) % 16))
			xr_shm_link_progress(f->link);
		return 0;
	}
	/* sleepers that the last time has left behind look again, and are counted from then on */
	xr_flow_wake(f);
	xr_epoll_flow_detach(f);
	return !xr_epoll_flow_attached(f);
}

void xr_flow_wake(struct xr_flow *f)
{
	struct xr_shm_link *l = f->link;
	uint32_t w, i, n;
	int dir;

	if (!l)
		return;
	if (f->owner_pid != xr_getpid()) {
		/* whom the parent armed for is all that a child knows */
		xr_shm_link_notify_own(l, XR_ARM_WAITER(xr_load_relaxed(&f->rx.dir->arm)), f->index);
		xr_shm_link_notify_own(l, XR_TXARM_WAITER(xr_load_relaxed(&f->tx.dir->tx_arm)),
				       f->index);
		if (!xr_vfork_depth)
			xr_epoll_flow_kick(f);
		return;
	}
	/* acquire: before npast, which goes first */
	n = xr_load_acquire(&f->quiet) ? 0 : xr_load_relaxed(&f->npast);
	for (dir = 0; dir < 2; dir++) {
		w = xr_waiter_claimed(f, dir);
		if (!w)
			continue;
		/* it sleeps on the bell of the link that the flow was on when it went to sleep */
		xr_shm_link_notify_own(l, w, f->index);
		for (i = 0; i < n; i++)
			xr_shm_link_notify_own(f->past[i], w, f->index);
	}
	xr_epoll_flow_kick(f);
}

/* ---- the last time, if there was one --------------------------------------- */

void xr_up_past_keep(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (!f->link)
		return;
	u->past = (struct xr_up_past){ .link = f->link, .own = f->tx.dir, .peer = f->rx.dir,
				       .dir_off = f->dir_off, .gen = f->peer_dir_gen,
				       .cookie = f->peer_cookie };
	xr_shm_tx_destroy(&f->tx);
}

/* The attempt came to nothing: all is as it was before it. */
void xr_up_past_restore(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (!u->past.link)
		return;
	f->link = u->past.link;
	f->tx.dir = u->past.own;
	f->rx.dir = u->past.peer;
	f->dir_off = u->past.dir_off;
	f->peer_dir_gen = u->past.gen;
	f->peer_cookie = u->past.cookie;
}

/*
 * The new blocks are agreed upon.  Nobody waits for the old one, but who looked at the flow
 * without a lock before it retreated may do so still: the mapping stays.
 */
void xr_up_past_forget(struct xr_upgrade *u)
{
	struct xr_shm_link *l = u->past.link;
	struct xr_flow *f = u->f;
	uint32_t i, n = xr_load_relaxed(&f->npast);

	if (!l)
		return;
	xr_shm_link_dir_put(l, u->past.dir_off);
	u->past.link = NULL;
	if (l != f->link) {
		for (i = 0; i < n && f->past[i] != l; i++)
			;
		if (i == XR_FLOW_PAST) {
			/* no attempt begins then; the link stays rather than be unmapped under somebody */
			xr_stats_add(XR_STAT_INTERNAL_ERRORS, 1);
			return;
		}
		if (i == n) {
			f->past[n] = l;
			/* release: who counts it finds it */
			xr_store_release(&f->npast, (uint8_t)(n + 1));
			return;
		}
	}
	xr_link_unref(l);
}
