/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The upgrade of a flow to shm: the places of attempts, how one ends without result, and
 * what gives up its place for others.  tx_lock of the flow guards its handshake.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include "control.h"
#include "defer.h"
#include "far.h"
#include "log.h"
#include "mem.h"
#include "rundir.h"
#include "upgrade.h"

struct xr_upgrade xr_up_table[XR_UP_MAX];	/* entries claimed under up_lock */
static _Atomic uint32_t up_lock;
static uint32_t up_room = XR_UP_MAX;	/* of them may be used: fewer where descriptors are scarce; under up_lock */

#define UP_LOOKS	24u		/* of a host that nobody calls, where xrdma peers were met ... */
#define UP_LOOKS_ALONE	2u		/* ... and where none was, if it does not answer: it may not have read yet */
#define UP_NEVER_TURNS	UINT32_MAX
#define UP_NEVER_BYTES	UINT64_MAX

static struct xr_upgrade *up_claim(struct xr_flow *f)
{
	struct xr_upgrade *u = NULL;
	uint32_t free = 0, used = 0;
	int i;

	xr_defer_begin();
	if (!xr_cas(&up_lock, &free, 1)) {
		xr_defer_end();
		return NULL;
	}
	for (i = 0; i < XR_UP_MAX && used < up_room; i++)
		/* acquire: pairs with xr_up_free */
		if (xr_load_acquire(&xr_up_table[i].f))
			used++;
		else if (!u)
			u = &xr_up_table[i];
	if (used >= up_room)
		u = NULL;
	if (u) {
		memset((char *)u + sizeof(u->f), 0, sizeof(*u) - sizeof(u->f));
		u->lfd = u->conn = u->diag = -1;
		u->arena.fd = -1;
		/* release: others look at it under the lock of this flow */
		xr_store_release(&u->f, f);
	}
	/* release: pairs with the cas of the next claimant */
	xr_store_release(&up_lock, 0);
	xr_defer_end();
	return u;
}

#define UP_ROOM_MIN	2u	/* both ends may be this process */
#define UP_SCARCE_TRIES	8u

/*
 * No descriptor to be had.  A handshake by name needs a handful, and gives all but the link's back:
 * where many compete for the last ones none gets through, so that fewer are begun from here on.
 */
static void up_scarce(void)
{
	uint32_t free = 0;

	if (!xr_cas(&up_lock, &free, 1))
		return;
	up_room = up_room / 2 > UP_ROOM_MIN ? up_room / 2 : UP_ROOM_MIN;
	/* release: pairs with the cas of the next claimant */
	xr_store_release(&up_lock, 0);
}

/* One got through. */
static void up_plenty(void)
{
	uint32_t free = 0;

	if (!xr_cas(&up_lock, &free, 1))
		return;
	if (up_room < XR_UP_MAX)
		up_room++;
	xr_store_release(&up_lock, 0);
}

void xr_up_free(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	xr_fetch_and(&f->path, ~(XR_PATH_MOVE | XR_PATH_WITNESS));
	if (u->counted)
		xr_stats_add(XR_STAT_UPGRADE_FAILED, 1);
	if (u->far)
		xr_up_far_drop(u);
	if (u->past.link && (u->lfd >= 0 || u->state == XR_UP_OFFERED))
		xr_fetch_and(&u->past.own->state, ~XR_DIR_NAMED);
	if (u->dir && u->lfd >= 0)
		xr_rundir_unlink(&u->tuple);
	xr_up_close(&u->lfd);
	xr_up_close(&u->conn);
	xr_up_close(&u->diag);
	xr_shm_arena_destroy(&u->arena);
	if (u->link)
		xr_link_unref(u->link);
	xr_store_relaxed(&f->up, NULL);
	if (u->box) {
		xr_up_link_free(u);
		return;
	}
	if (u->state >= XR_UP_EXCHANGED)
		up_plenty();
	/* last, release: the entry is anybody's now */
	xr_store_release(&u->f, NULL);
}

int xr_up_elsewhere(struct xr_flow *f, uint32_t dir)
{
	/* nobody came to the run directory: then it is another host */
	if (!dir || xr_far_off() != XR_REASON_NONE)
		return 0;
	f->own->not_dir = 1;
	f->up_tries = 0;
	xr_up_later(f, 1, 4096);
	return 1;
}

/* No further attempt: the flow stays where it is, for this reason. */
void xr_up_give_up(struct xr_flow *f, enum xr_reason why)
{
	if (f->link)
		xr_fetch_or(&f->tx.dir->state, XR_DIR_STAYS);
	xr_store_relaxed(&f->upgrade_off, 1);
	xr_debug("descriptor %d: stays on TCP: %s", xr_flow_fd(f), xr_reason_name(why));
	xr_store_relaxed(&f->need_turns, UP_NEVER_TURNS);
	xr_store_relaxed(&f->need_bytes, UP_NEVER_BYTES);
	xr_store_relaxed(&f->reason, (uint16_t)why);
	xr_stats_reason(why);
	xr_stats_flow_reason(f->st, why);
	xr_stats_flow_again(f->st, 0);
	if (!(xr_load_relaxed(&f->path) & XR_PATH_FABRIC)) {
		xr_fetch_and(&f->path, ~XR_PATH_COUNT);
		xr_stats_flow_state(f->st, XR_STATE_ESTAB);
	}
}

void xr_up_found_nobody(struct xr_flow *f)
{
	xr_store_relaxed(&f->reason, XR_REASON_PEER_NOT_XRDMA);
	xr_stats_reason(XR_REASON_PEER_NOT_XRDMA);
	xr_stats_flow_reason(f->st, XR_REASON_PEER_NOT_XRDMA);
}

/* What is known before the attempts are over.  It is shown, and counted when they are. */
void xr_up_show(struct xr_flow *f, enum xr_reason why)
{
	if (f->st && xr_load_relaxed(&f->st->ident.reason) == XR_REASON_YOUNG)
		xr_stats_flow_reason(f->st, why);
}

/* Another attempt when the connection has lived on for a while. */
void xr_up_later(struct xr_flow *f, uint32_t turns, uint64_t bytes)
{
	xr_flow_need(f, turns, bytes);
}

/* The handshake ends without result; what it named to the peer is marked gone. */
void xr_up_drop(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (u->state >= XR_UP_EXCHANGED) {
		/* the link's reference is the flow's */
		u->link = NULL;
		xr_up_past_forget(u);
	} else {
		/*
		 * A direction that was named to the peer must be found gone, and is not used
		 * again while this link lasts: the peer may still write there.
		 */
		if (u->own_dir)
			xr_store_release(&f->tx.dir->state, XR_DIR_GONE);
		f->link = NULL;
		xr_up_past_restore(u);
	}
	xr_up_free(u);
}

/* Another host could not be reached this way, now. */
static void up_far_failed(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	enum xr_reason why = u->why;
	uint32_t ms = u->again_ms;
	uint64_t begun = u->begun;

	xr_up_drop(u);
	if (!ms || !xr_flow_far_again(f, ms, begun)) {
		xr_up_give_up(f, why);
		return;
	}
	xr_store_relaxed(&f->reason, (uint16_t)why);
	xr_stats_reason(why);
	xr_stats_flow_reason(f->st, why);
	if (f->link)
		xr_stats_flow_state(f->st, XR_STATE_ESTAB);
}

/* The program may close some, and so may handshakes that are under way.  0: waited long enough. */
int xr_up_scarce_later(struct xr_flow *f)
{
	if (f->upgrade_off || f->up_tries >= UP_SCARCE_TRIES)
		return 0;
	xr_store_relaxed(&f->reason, XR_REASON_LIMIT_FDS);
	xr_stats_reason(XR_REASON_LIMIT_FDS);
	xr_stats_flow_reason(f->st, XR_REASON_LIMIT_FDS);
	if (!xr_links_any()) {
		xr_up_later(f, 8u << f->up_tries, 32768ull << f->up_tries);
	} else if (f->role == XR_FLOW_ACCEPT) {
		/* by name then; an offer needs no descriptor */
		f->up_after = xr_now_ns() + (2000000ull << f->up_tries);
		xr_up_later(f, 1, 4096);
	} else {
		f->own->offered = 0;
		xr_up_later(f, 8, 32768);
	}
	f->up_tries++;
	return 1;
}

/* tx_lock held; the caller has taken the fabric path out of use, or never into it. */
void xr_up_fail(struct xr_upgrade *u, enum xr_reason why)
{
	struct xr_flow *f = u->f;

	xr_up_drop(u);
	if (why == XR_REASON_LIMIT_FDS)
		up_scarce();
	if (why == XR_REASON_LIMIT_FDS && !f->link && xr_up_scarce_later(f))
		return;
	/* a link here is of the last time, or one that the flow is about to leave again */
	if (f->link && xr_flow_return_failed(f, why)) {
		xr_stats_reason(why);
		xr_stats_flow_reason(f->st, why);
		xr_stats_flow_state(f->st, XR_STATE_ESTAB);
		return;
	}
	xr_up_give_up(f, why);
}

/* ---- the machine --------------------------------------------------------------- */

#define UP_PATIENCE_IOS	256u		/* I/O calls that a handshake is given at least */
#define UP_PATIENCE_LINK 32u		/* over a link, where nobody has to be found */
#define UP_BUSY_IOS	4096u		/* a busy flow has paid enough for it by then, */
#define UP_BUSY_NS	100000000ull	/* unless that were a few milliseconds, which a peer may sleep */
#define UP_LISTEN_NS	50000000ull	/* an uncalled name keeps its place for so long if others want it */
#define UP_GAP_NS	5000000ull	/* of it counts between two looks: either end may have been stopped */
#define UP_LISTEN_TURNS	1024u		/* and a program that took so many turns would have called, ... */
#define UP_LISTEN_ALONE	128u		/* ... where none was met that others keep from it: UP_CALLS */
#define UP_LISTEN_BYTES	(16ull << 20)	/* likewise one that has read so much: more than sockets hold */
#define UP_UNHEARD_TURNS 16u		/* a peer with these settings would have called: shown before it is given up */
#define UP_UNHEARD_BYTES (4ull << 20)
#define UP_OFFER_NS	2000000ull	/* an offer that nobody takes for so long, and so many turns, goes by name */
#define UP_OFFER_TURNS	8u
#define UP_OFFER_IDLE_NS 1000000000ull	/* ... and of an idle connection keeps its place, if others want it */
#define UP_EVICT_TIMEOUTS 8u		/* and a handshake under way for so long */

/* The peer has read and written that often since. */
static int up_answered(const struct xr_upgrade *u)
{
	return xr_load_relaxed(&u->f->turns) - u->turns >= (xr_links_any() ? UP_LISTEN_TURNS : UP_LISTEN_ALONE);
}

/*
 * How long it has been listened for a caller while both programs were at it.  What lay in the sockets makes turns as
 * well, when the peer does not run: those are over in no time, and the next one comes when it does.
 */
static uint64_t up_lived(struct xr_upgrade *u)
{
	uint64_t now = xr_now_ns(), gap = now - u->looked;

	u->looked = now;
	u->lived += gap < UP_GAP_NS ? gap : UP_GAP_NS;
	return u->lived;
}

/* A peer under xrdma would have called by now.  Time alone tells nothing: it may not have read yet what was sent. */
static int up_listened(struct xr_upgrade *u)
{
	const struct xr_flow *f = u->f;

	return up_lived(u) > UP_LISTEN_NS &&
	       (up_answered(u) ||
		xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx) - u->bytes >= UP_LISTEN_BYTES);
}

/* Nor by now, where it has the settings of this end; it is still listened for. */
void xr_up_unheard(struct xr_upgrade *u)
{
	const struct xr_flow *f = u->f;

	if (u->state != XR_UP_LISTENING || u->conn >= 0 || u->past.link || !f->st ||
	    xr_load_relaxed(&f->st->ident.reason) != XR_REASON_YOUNG)
		return;
	if ((xr_load_relaxed(&f->turns) - u->turns >= UP_UNHEARD_TURNS ||
	     xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx) - u->bytes >= UP_UNHEARD_BYTES) &&
	    up_lived(u) > UP_LISTEN_NS)
		xr_up_show(u->f, XR_REASON_PEER_NOT_XRDMA);
}

int xr_up_is_expired(struct xr_upgrade *u)
{
	/*
	 * A peer under xrdma calls within a turn or two.  To wait longer costs an accept(2)
	 * per handful of I/O calls, and the bookkeeping of a flow that might still move.
	 */
	if (u->state == XR_UP_OFFERED)
		return xr_load_relaxed(&u->f->turns) - u->turns >= UP_OFFER_TURNS &&
		       xr_now_ns() - u->begun > UP_OFFER_NS;
	if (u->state == XR_UP_LISTENING && u->conn < 0)
		return up_listened(u);
	/* an idle flow advances nothing, and the peer's end of it is as idle */
	if (u->ios < (u->box ? UP_PATIENCE_LINK : UP_PATIENCE_IOS) || u->state == XR_UP_FAR)
		return 0;
	return xr_now_ns() - u->begun > (u->ios > UP_BUSY_IOS ? UP_BUSY_NS : xr_cfg.rendezvous_timeout);
}

void xr_up_expired(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (u->state == XR_UP_OFFERED) {
		xr_up_drop(u);
		f->own->offered = UINT16_MAX;
		xr_up_later(f, 1, 4096);
		return;
	}
	if (u->state == XR_UP_LISTENING && u->conn < 0) {
		/*
		 * A look each time the connection has lived twice as long: the peer may not have read what
		 * was sent, or, where xrdma peers were met, be held on TCP for now.
		 */
		uint32_t tries = f->up_tries++, shift = tries < 16 ? tries : 16;
		int again = xr_links_any() ? tries + 1 < UP_LOOKS : tries + 1 < UP_LOOKS_ALONE && !up_answered(u);
		int dir = (int)u->dir;

		if (u->past.link) {
			xr_up_fail(u, XR_REASON_TIMEOUT);
			return;
		}
		xr_up_show(f, XR_REASON_PEER_NOT_XRDMA);
		xr_up_free(u);
		/* "young" is not the truth any more */
		if (again && tries && xr_load_relaxed(&f->reason) == XR_REASON_YOUNG)
			xr_up_found_nobody(f);
		if (again)
			xr_up_later(f, 64 + xr_load_relaxed(&f->turns), 1ull << (20 + shift));
		else if (!xr_up_elsewhere(f, (uint32_t)dir))
			xr_up_give_up(f, XR_REASON_PEER_NOT_XRDMA);
		return;
	}
	/* the programs may just have been idle for longer than the handshake may take */
	if (++f->up_tries < 4) {
		xr_up_show(f, XR_REASON_TIMEOUT);
		xr_up_drop(u);
		xr_up_later(f, 8u << f->up_tries, 65536ull << f->up_tries);
		return;
	}
	xr_up_fail(u, XR_REASON_TIMEOUT);
}

static void up_evict(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (u->state == XR_UP_LISTENING && u->conn < 0) {
		/* not one that has a caller waiting */
		if (xr_now_ns() - u->begun > UP_LISTEN_NS && !xr_ksock_poll(u->lfd, POLLIN)) {
			xr_up_drop(u);
			xr_up_later(f, 1, 4096);
		}
	} else if (u->state == XR_UP_OFFERED) {
		if (xr_now_ns() - u->begun > UP_OFFER_IDLE_NS) {
			xr_up_drop(u);
			xr_up_later(f, 1, 4096);
		}
	} else if (u->state < XR_UP_EXCHANGED && u->state != XR_UP_FAR &&
		   xr_now_ns() - u->begun > UP_EVICT_TIMEOUTS * xr_cfg.rendezvous_timeout) {
		xr_up_expired(u);
	}
}

static void up_try_evict(struct xr_upgrade *u, const struct xr_flow *self)
{
	struct xr_flow *o = u ? xr_load_acquire(&u->f) : NULL;

	if (!o || o == self || xr_flow_tx_trylock(o))
		return;
	if (xr_load_relaxed(&u->f) == o && xr_flow_up(o) == u)
		up_evict(u);
	xr_flow_tx_unlock(o);
}

/*
 * Handshakes advance with the I/O of their flows: those of idle connections must not keep
 * all others from theirs.  The caller's own tx_lock is held, so others are only tried.
 */
struct xr_upgrade *xr_up_claim(struct xr_flow *f)
{
	struct xr_upgrade *u = up_claim(f);
	int i;

	if (u)
		return u;
	for (i = 0; i < XR_UP_MAX; i++)
		up_try_evict(&xr_up_table[i], f);
	return up_claim(f);
}

/* The same over a link; there are many, so not each flow that finds no place looks. */
struct xr_upgrade *xr_up_claim_link(struct xr_flow *f)
{
	static _Atomic uint64_t next;
	struct xr_upgrade *u = xr_up_link_claim(f);
	uint64_t now, due;
	uint32_t i;

	if (u)
		return u;
	now = xr_now_ns();
	due = xr_load_relaxed(&next);
	if (now < due || !xr_cas(&next, &due, now + UP_LISTEN_NS))
		return NULL;
	for (i = 0; i < XR_UP_LINKED; i++)
		up_try_evict(xr_up_link_at(i), f);
	return xr_up_link_claim(f);
}

#define UP_REFUSALS	64u	/* by hosts that offered the flow */

/*
 * The link of two processes may end (its last flow closed) while the next handshake is
 * about to use it: the caller does not find it, the host sees it hang up.  Both try again.
 */
void xr_up_step_failed(struct xr_upgrade *u, int r)
{
	struct xr_flow *f = u->f;

	if (r == -ECANCELED) {
		up_far_failed(u);
		return;
	}
	xr_info("upgrade attempt ended: error %d", -r);
	/* the host has offered the flow to others, too, or its patience was over */
	if (u->via && (r == -EAGAIN || r == -EPIPE) && ++f->own->offered < UP_REFUSALS) {
		xr_up_drop(u);
		xr_up_later(f, 1, 4096);
		return;
	}
	if (u->via && (r == -EACCES || r == -EBADMSG)) {
		/* whoever offered it does not have it: what else it offers is not looked at */
		xr_store_relaxed(&u->via->liar, 1);
		xr_up_drop(u);
		xr_up_later(f, 2, 8192);
		return;
	}
	if ((r == -EAGAIN || r == -EPIPE) && ++f->up_tries < 4) {
		xr_up_show(f, xr_up_errno_reason(r));
		xr_up_drop(u);
		xr_up_later(f, 2u << f->up_tries, 32768ull << f->up_tries);
		return;
	}
	xr_up_fail(u, xr_up_errno_reason(r));
}

void xr_upgrade_forked(void)
{
	int i;

	/* the parent goes on with its handshakes; the child's copies of the sockets close */
	for (i = 0; i < XR_UP_MAX; i++) {
		struct xr_upgrade *u = &xr_up_table[i];

		if (!u->f)
			continue;
		xr_fd_close(u->lfd);
		xr_fd_close(u->conn);
		xr_fd_close(u->diag);
		xr_fd_close(u->arena.fd);
		u->f = NULL;
	}
	xr_store_relaxed(&up_lock, 0);
	xr_up_link_forked();
	xr_proof_forked();
}
