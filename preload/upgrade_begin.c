/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The upgrade of a flow to shm: how an attempt begins, by link or by name.  tx_lock of the flow is held.
 */
#include <errno.h>
#include <string.h>
#include "control.h"
#include "log.h"
#include "mem.h"
#include "rundir.h"
#include "upgrade.h"

#define UP_OFFERS	2u		/* for want of credit; then by name */
/*
 * Of a caller that has met nobody yet.  Its calls are no farther apart than the host listens for, which is
 * UP_LISTEN_ALONE turns and UP_LISTEN_NS: whenever that begins, one meets it.
 */
#define UP_CALLS	5u		/* within 74 ms ... */
#define UP_CALLS_WAIT	32000000ull	/* ... each that long after the one before, or less; ... */
#define UP_CALLS_LATE	5u		/* ... and then after more and more turns, ... */
#define UP_CALLS_TURNS	32u
#define UP_CALLS_BYTES	(1ull << 20)	/* or bytes */
#define UP_MET_TURNS	64u		/* where others were met, a caller does not give up before so many */

/*
 * Where others were met, an end that is found by nobody may be kept on TCP by an operator, who lets it go
 * some time; or this one was, and the other end looks ever more rarely, for UP_LISTEN_TURNS each time.  Calls
 * that are no farther apart than that meet it there, at the price of a socket that finds nobody.
 */
#define UP_HELD_PART		8u	/* of what the connection has lived lies between two calls, but at least */
#define UP_HELD_TURNS		96u
#define UP_HELD_BYTES		(1ull << 20)
#define UP_HELD_TURNS_MAX	768u	/* ... and at most */
#define UP_HELD_BYTES_MAX	(12ull << 20)

/* Where a flow goes: what both ends know it by, its addresses, enum xr_up_way. */
struct up_target {
	struct xr_tuple tuple, real;
	uint32_t way;
};

/* An entry becomes the flow's attempt. */
static int up_enter(struct xr_upgrade *u, const struct up_target *to)
{
	struct xr_flow *f = u->f;
	int r;

	xr_store_relaxed(&f->up, u);
	xr_up_past_keep(u);
	u->tuple = to->tuple;
	u->real = to->real;
	u->far = to->way == XR_WAY_FAR;
	u->dir = to->way == XR_WAY_DIR;
	u->begun = u->looked = xr_now_ns();
	u->turns = xr_load_relaxed(&f->turns);
	u->bytes = xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx);
	do {
		r = xr_random(&u->nonce, sizeof(u->nonce));
	} while (!r && !u->nonce);
	if (u->box)
		xr_up_link_nonce(u);
	return r;
}

static void up_count_attempt(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	u->counted = 1;
	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 1);
	if (f->st) {
		xr_stats_inc(&f->st->ctl.attempts, 1);
		xr_stats_gauge(&f->st->ctl.turns, xr_load_relaxed(&f->turns));
	}
}

/* ---- by a link: 0: under way, or in a moment; -ENOENT: by name ---------------------- */

static int up_begin_offer(struct xr_flow *f, const struct up_target *to)
{
	struct xr_upgrade *u;
	int r;

	if (f->own->offered >= UP_OFFERS || !xr_links_any()) {
		f->own->offered = 0;
		return -ENOENT;
	}
	u = xr_up_claim_link(f);
	if (!u)
		return -ENOENT;
	r = up_enter(u, to);
	if (!r)
		r = xr_up_offer(u);
	if (!r) {
		/* release: the caller finds the offer */
		if (u->past.link)
			xr_fetch_or(&u->past.own->state, XR_DIR_NAMED);
		up_count_attempt(u);
		return 0;
	}
	xr_up_drop(u);
	if (r != -EAGAIN && r != -EBUSY)
		return -ENOENT;
	if (r == -EBUSY)
		f->own->offered++;
	xr_up_later(f, 1, 4096);
	return 0;
}

static int up_begin_offered(struct xr_flow *f, int fd, const struct up_target *to)
{
	struct xr_shm_link *l;
	struct xr_upgrade *u;
	uint64_t nonce;
	int r;

	if (!xr_links_any() || !xr_up_offers() || !xr_up_offered(&to->tuple, 1, &l, &nonce))
		return -ENOENT;
	if (to->way == XR_WAY_DIR && l->diag < 0) {
		xr_link_unref(l);
		return -ENOENT;
	}
	u = xr_up_claim_link(f);
	if (!u) {
		xr_link_unref(l);
		return -ENOENT;
	}
	u->via = l;
	u->peer_nonce = nonce;
	r = up_enter(u, to);
	if (!r)
		r = xr_up_call_link(u, fd);
	if (!r) {
		up_count_attempt(u);
		return 0;
	}
	if (r == -EAGAIN)
		xr_up_offer_back(&to->tuple, l, nonce);
	xr_up_drop(u);
	if (r != -EAGAIN)
		return -ENOENT;
	xr_up_later(f, 1, 4096);
	return 0;
}

/* ---- by name ------------------------------------------------------------------------- */

static void up_begin_host(struct xr_upgrade *u)
{
	int r = u->dir ? xr_rundir_listen(&u->tuple) : xr_rendezvous_listen(&u->tuple);

	u->state = XR_UP_LISTENING;
	/* another connection from the same address and port, to elsewhere: for a moment */
	if (r == -EADDRINUSE && u->dir && ++u->f->up_tries < 8) {
		struct xr_flow *f = u->f;

		xr_up_drop(u);
		xr_up_later(f, 8u << f->up_tries, 65536ull << f->up_tries);
		return;
	}
	if (r < 0) {
		xr_info("no upgrade: error %d", -r);
		xr_up_fail(u, xr_up_errno_reason(r));
		return;
	}
	u->lfd = r;
	/* release: the name is open */
	if (u->past.link)
		xr_fetch_or(&u->past.own->state, XR_DIR_NAMED);
}

static uint64_t up_share(uint64_t lived, uint64_t least, uint64_t most)
{
	lived /= UP_HELD_PART;
	return lived < least ? least : lived > most ? most : lived;
}

static void up_seldom(struct xr_flow *f)
{
	uint64_t bytes = xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx);

	f->up_tries = 0;
	f->up_after = 0;
	xr_up_later(f, (uint32_t)up_share(xr_load_relaxed(&f->turns), UP_HELD_TURNS, UP_HELD_TURNS_MAX),
		    up_share(bytes, UP_HELD_BYTES, UP_HELD_BYTES_MAX));
}

static void up_begin_call(struct xr_upgrade *u, int fd)
{
	struct xr_flow *f = u->f;
	int r = xr_up_call(u, fd), any = xr_links_any(), n = f->up_tries < 4 ? f->up_tries : 4;
	uint32_t dir = u->dir;
	uint64_t wait;

	if (!r)
		return;
	if (r != -ECONNREFUSED && r != -EAGAIN) {
		xr_info("no upgrade: error %d", -r);
		xr_up_fail(u, xr_up_errno_reason(r));
		return;
	}
	if (u->past.link) {
		/* the other end said that it is there, and has just gone; or nobody said so */
		if (xr_load_acquire(&u->past.link->dead)) {
			xr_up_fail(u, XR_REASON_TIMEOUT);
		} else {
			xr_up_drop(u);
			xr_up_later(f, 1, 4096);
		}
		return;
	}
	/*
	 * Not there (yet): bytes that this end has sent may wait unread for long, so it
	 * is given some time; where others were met, some seconds, in which each turn looks for an offer.
	 */
	xr_up_free(u);
	if (any && (f->reason == XR_REASON_OPERATOR || f->reason == XR_REASON_PEER_NOT_XRDMA)) {
		up_seldom(f);
		return;
	}
	wait = 2000000ull << (2 * n);
	f->up_after = xr_now_ns() + (any || wait < UP_CALLS_WAIT ? wait : UP_CALLS_WAIT);
	if (f->up_tries < UINT8_MAX)
		f->up_tries++;
	if (!any && !dir && f->up_tries >= UP_CALLS && f->up_tries < UP_CALLS + UP_CALLS_LATE) {
		/* on a busy machine it may have begun late.  No clock to look at with each call until then */
		n = f->up_tries - UP_CALLS + 1;
		f->up_after = 0;
		xr_up_found_nobody(f);
		xr_up_later(f, UP_CALLS_TURNS * (uint32_t)(n < 4 ? n : 4), UP_CALLS_BYTES << (n - 1));
		return;
	}
	if (f->up_tries >= (any ? 16 : UP_CALLS) && (!any || xr_load_relaxed(&f->turns) >= UP_MET_TURNS)) {
		if (xr_up_elsewhere(f, dir))
			return;
		if (!any) {
			xr_up_give_up(f, XR_REASON_PEER_NOT_XRDMA);
			return;
		}
		xr_up_found_nobody(f);
		up_seldom(f);
	} else {
		if (f->up_tries >= UP_CALLS)
			xr_up_show(f, XR_REASON_PEER_NOT_XRDMA);
		xr_up_later(f, any ? 1 : 2u << n, any ? 4096 : 8192ull << n);
	}
}

static int up_is_offered(const struct xr_flow *f, struct xr_tuple *t)
{
	if (f->own->is_dir)
		xr_rundir_tuple(t, t, 1);
	return xr_up_offered(t, 0, NULL, NULL);
}

/* The time to call again has not come, and there is no offer either. */
static int up_waits(struct xr_flow *f, int fd)
{
	struct xr_tuple t;

	if (!f->up_after || xr_now_ns() >= f->up_after)
		return 0;
	/* after a retreat it is this end that is not willing yet */
	return f->role != XR_FLOW_ACCEPT || f->link || !xr_links_any() || !xr_up_offers() ||
	       xr_tuple_get(fd, &t, NULL, NULL) || !up_is_offered(f, &t);
}

static void up_begin_far(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	int r = xr_up_far_begin(u);

	if (r == -EAGAIN) {
		xr_up_drop(u);
		xr_up_later(f, 1, 4096);
	} else if (r == -ECANCELED) {
		xr_up_step_failed(u, r);
	} else if (r) {
		xr_info("no upgrade: error %d", -r);
		xr_up_fail(u, xr_up_errno_reason(r));
	}
}

static void up_begin_name(struct xr_flow *f, int fd, const struct up_target *to)
{
	struct xr_upgrade *u = xr_up_claim(f);
	int r;

	if (!u) {
		/* by then there may be a link to go over */
		xr_up_later(f, xr_links_any() ? 1 : 8, 65536);
		return;
	}
	r = up_enter(u, to);
	up_count_attempt(u);
	if (!r && u->far)
		up_begin_far(u);
	else if (r)
		xr_up_fail(u, xr_up_errno_reason(r));
	else if (f->role == XR_FLOW_CONNECT)
		up_begin_host(u);
	else
		up_begin_call(u, fd);
}

/* tx_lock held. */
void xr_up_begin(struct xr_flow *f, int fd)
{
	struct up_target to = { .way = XR_WAY_NEAR };
	enum xr_reason why;
	int r = -ENOENT;

	if (up_waits(f, fd))
		return;
	if (f->link && !xr_flow_return_due(f))
		return;
	why = xr_up_eligible(f, fd, &to.real, &to.way);
	if (why == XR_REASON_YOUNG || why == XR_REASON_CONNECTING) {
		xr_up_later(f, 1, 4096);
		return;
	}
	if (why == XR_REASON_NONE && xr_control_holds(f))
		why = XR_REASON_OPERATOR;
	if (why == XR_REASON_OPERATOR) {
		xr_store_relaxed(&f->reason, XR_REASON_OPERATOR);
		xr_stats_flow_reason(f->st, XR_REASON_OPERATOR);
		/* as soon as it is let go */
		xr_stats_flow_again(f->st, xr_now_ns());
		xr_up_later(f, 8, 65536);
		return;
	}
	if (why == XR_REASON_LIMIT_FDS && !f->link && xr_up_scarce_later(f))
		return;
	if (why != XR_REASON_NONE) {
		xr_up_give_up(f, why);
		return;
	}
	to.tuple = to.real;
	f->own->is_dir = to.way == XR_WAY_DIR;
	if (f->own->is_dir)
		xr_rundir_tuple(&to.tuple, &to.real, f->role == XR_FLOW_ACCEPT);
	if (to.way != XR_WAY_FAR)
		r = f->role == XR_FLOW_CONNECT ? up_begin_offer(f, &to) : up_begin_offered(f, fd, &to);
	if (r)
		up_begin_name(f, fd, &to);
}
