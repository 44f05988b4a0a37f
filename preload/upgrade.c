/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The upgrade of a flow to shm: a handful of non-blocking steps, driven by the I/O
 * calls that the program makes anyway.  tx_lock of the flow guards its handshake.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "control.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "upgrade.h"
#include "user.h"
#include "zerocopy.h"

struct xr_upgrade xr_up_table[XR_UP_MAX];	/* entries claimed under up_lock */
static _Atomic uint32_t up_lock;

#define UP_LOOKS	24u
/*
 * The other end was not told that an operator kept this one on TCP: it has looked in vain, and looks
 * ever more rarely, for UP_LISTEN_TURNS each time.  One of these calls meets it there.
 */
#define UP_HELD_CALLS	250u
#define UP_HELD_TURNS	96u
#define UP_HELD_BYTES	1048576u
#define UP_NEVER_TURNS	UINT32_MAX
#define UP_NEVER_BYTES	UINT64_MAX

static struct xr_upgrade *up_claim(struct xr_flow *f)
{
	struct xr_upgrade *u = NULL;
	uint32_t free = 0;
	int i;

	if (!xr_cas(&up_lock, &free, 1))
		return NULL;
	for (i = 0; i < XR_UP_MAX && !u; i++)
		/* acquire: pairs with up_free */
		if (!xr_load_acquire(&xr_up_table[i].f))
			u = &xr_up_table[i];
	if (u) {
		memset((char *)u + sizeof(u->f), 0, sizeof(*u) - sizeof(u->f));
		u->lfd = u->conn = -1;
		u->arena.fd = -1;
		/* release: others look at it under the lock of this flow */
		xr_store_release(&u->f, f);
	}
	/* release: pairs with the cas of the next claimant */
	xr_store_release(&up_lock, 0);
	return u;
}

static void up_free(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	xr_fetch_and(&f->path, ~XR_PATH_MOVE);
	if (u->far)
		xr_up_far_drop(u);
	if (u->past.link && u->lfd >= 0)
		xr_fetch_and(&u->past.own->state, ~XR_DIR_NAMED);
	xr_fd_close(u->lfd);
	xr_fd_close(u->conn);
	xr_shm_arena_destroy(&u->arena);
	if (u->link)
		xr_link_unref(u->link);
	xr_store_relaxed(&f->up, NULL);
	/* last, release: the entry is anybody's now */
	xr_store_release(&u->f, NULL);
}

/* No further attempt: the flow stays where it is, for this reason. */
static void up_give_up(struct xr_flow *f, enum xr_reason why)
{
	if (f->link)
		xr_fetch_or(&f->tx.dir->state, XR_DIR_STAYS);
	f->upgrade_off = 1;
	xr_debug("descriptor %d: stays on TCP: %s", f->priv->fd, xr_reason_name(why));
	xr_store_relaxed(&f->need_turns, UP_NEVER_TURNS);
	xr_store_relaxed(&f->need_bytes, UP_NEVER_BYTES);
	f->reason = (uint16_t)why;
	xr_stats_reason(why);
	xr_stats_flow_reason(f->st, why);
	if (!(xr_load_relaxed(&f->path) & XR_PATH_FABRIC)) {
		xr_fetch_and(&f->path, ~XR_PATH_COUNT);
		xr_stats_flow_state(f->st, XR_STATE_ESTAB);
	}
}

/* Another attempt when the connection has lived on for a while. */
static void up_later(struct xr_flow *f, uint32_t turns, uint64_t bytes)
{
	xr_flow_need(f, turns, bytes);
}

/* The handshake ends without result; what it named to the peer is marked gone. */
static void up_drop(struct xr_upgrade *u)
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
	up_free(u);
}

/* Another host could not be reached this way, now. */
static void up_far_failed(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	enum xr_reason why = u->why;
	uint32_t ms = u->again_ms;

	xr_stats_add(XR_STAT_UPGRADE_FAILED, 1);
	up_drop(u);
	if (!ms || ++f->up_tries >= UP_LOOKS) {
		up_give_up(f, why);
		return;
	}
	f->reason = (uint16_t)why;
	xr_stats_reason(why);
	xr_stats_flow_reason(f->st, why);
	f->up_after = xr_now_ns() + (uint64_t)ms * 1000000u;
	up_later(f, 1, 4096);
}

/* tx_lock held; the caller has taken the fabric path out of use, or never into it. */
static void up_fail(struct xr_upgrade *u, enum xr_reason why)
{
	struct xr_flow *f = u->f;

	xr_stats_add(XR_STAT_UPGRADE_FAILED, 1);
	up_drop(u);
	/* a link here is of the last time, or one that the flow is about to leave again */
	if (f->link && xr_flow_return_failed(f, why)) {
		xr_stats_reason(why);
		xr_stats_flow_reason(f->st, why);
		xr_stats_flow_state(f->st, XR_STATE_ESTAB);
		return;
	}
	up_give_up(f, why);
}

void xr_upgrade_abort(struct xr_flow *f, int fd, enum xr_reason why)
{
	struct xr_upgrade *u;
	int ready;

	if (f->owner_pid != xr_getpid() || xr_lock(&f->tx_lock))
		return;
	u = xr_flow_up(f);
	if (!u) {
		xr_unlock(&f->tx_lock);
		return;
	}
	ready = u->state >= XR_UP_EXCHANGED;
	up_fail(u, why);
	xr_unlock(&f->tx_lock);
	if (ready && why != XR_REASON_CLOSED)
		xr_flow_give_back(f, fd, why);
}

/* ---- the machine --------------------------------------------------------------- */

#define UP_PATIENCE_IOS	256u		/* I/O calls that a handshake is given at least */
#define UP_LISTEN_NS	50000000ull	/* an uncalled name keeps its place for so long if others want it */
#define UP_LISTEN_TURNS	128u		/* and a program that took so many turns would have called */
#define UP_EVICT_TIMEOUTS 8u		/* and a handshake under way for so long */

static int up_is_expired(const struct xr_upgrade *u)
{
	/*
	 * A peer under xrdma calls within a turn or two.  To wait longer costs an accept(2)
	 * per handful of I/O calls, and the bookkeeping of a flow that might still move.
	 */
	if (u->state == XR_UP_LISTENING && u->conn < 0 &&
	    xr_load_relaxed(&u->f->turns) - u->turns >= UP_LISTEN_TURNS && xr_now_ns() - u->begun > UP_LISTEN_NS)
		return 1;
	/* an idle flow advances nothing, and the peer's end of it is as idle */
	if (u->ios < UP_PATIENCE_IOS || u->state == XR_UP_FAR)
		return 0;
	return u->ios > 4096 || xr_now_ns() - u->begun > xr_cfg.rendezvous_timeout;
}

static void up_expired(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (u->state == XR_UP_LISTENING && u->conn < 0) {
		/*
		 * One more look, later; where xrdma peers were met the peer of this one may be held on
		 * TCP for now: then a look each time the connection has lived twice as long.
		 */
		uint32_t tries = f->up_tries++, shift = tries < 16 ? tries : 16;
		int again = !tries || (tries < UP_LOOKS && xr_links_any());

		if (u->past.link) {
			up_fail(u, XR_REASON_TIMEOUT);
			return;
		}
		up_free(u);
		if (again)
			up_later(f, 64 + xr_load_relaxed(&f->turns), 1ull << (20 + shift));
		else
			up_give_up(f, XR_REASON_PEER_NOT_XRDMA);
		return;
	}
	/* the programs may just have been idle for longer than the handshake may take */
	if (++f->up_tries < 4) {
		up_drop(u);
		up_later(f, 8u << f->up_tries, 65536ull << f->up_tries);
		return;
	}
	up_fail(u, XR_REASON_TIMEOUT);
}

static void up_evict(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (u->state == XR_UP_LISTENING && u->conn < 0) {
		/* not one that has a caller waiting */
		if (xr_now_ns() - u->begun > UP_LISTEN_NS && !xr_ksock_poll(u->lfd, POLLIN)) {
			up_drop(u);
			up_later(f, 1, 4096);
		}
	} else if (u->state < XR_UP_EXCHANGED && u->state != XR_UP_FAR &&
		   xr_now_ns() - u->begun > UP_EVICT_TIMEOUTS * xr_cfg.rendezvous_timeout) {
		up_expired(u);
	}
}

/*
 * Handshakes advance with the I/O of their flows: those of idle connections must not keep
 * all others from theirs.  The caller's own tx_lock is held, so others are only tried.
 */
static struct xr_upgrade *up_claim_evicting(struct xr_flow *f)
{
	int i;

	for (i = 0; i < XR_UP_MAX; i++) {
		struct xr_upgrade *u = &xr_up_table[i];
		struct xr_flow *o = xr_load_acquire(&u->f);

		if (!o || o == f || xr_trylock(&o->tx_lock))
			continue;
		if (xr_load_relaxed(&u->f) == o && xr_flow_up(o) == u)
			up_evict(u);
		xr_unlock(&o->tx_lock);
	}
	return up_claim(f);
}

/*
 * The link of two processes may end (its last flow closed) while the next handshake is
 * about to use it: the caller does not find it, the host sees it hang up.  Both try again.
 */
static void up_step_failed(struct xr_upgrade *u, int r)
{
	struct xr_flow *f = u->f;

	if (r == -ECANCELED && !u->past.link) {
		up_far_failed(u);
		return;
	}
	if (r == -ECANCELED) {
		/* the two ends come back at times of their own */
		up_fail(u, u->again_ms ? XR_REASON_TIMEOUT : u->why);
		return;
	}
	xr_info("upgrade attempt ended: error %d", -r);
	if ((r == -EAGAIN || r == -EPIPE) && ++f->up_tries < 4) {
		up_drop(u);
		up_later(f, 2u << f->up_tries, 32768ull << f->up_tries);
		return;
	}
	up_fail(u, xr_up_errno_reason(r));
}

/* tx_lock held. */
static void up_begin(struct xr_flow *f, int fd)
{
	struct xr_tuple t;
	struct xr_upgrade *u;
	enum xr_reason why;
	uint32_t far = 0;
	int r;

	if (f->up_after && xr_now_ns() < f->up_after)
		return;
	if (f->link && !xr_flow_return_due(f))
		return;
	why = xr_up_eligible(f, fd, &t, &far);
	if (why == XR_REASON_YOUNG || why == XR_REASON_CONNECTING) {
		up_later(f, 1, 4096);
		return;
	}
	if (why == XR_REASON_NONE && xr_control_holds(f))
		why = XR_REASON_OPERATOR;
	if (why == XR_REASON_OPERATOR) {
		f->reason = XR_REASON_OPERATOR;
		xr_stats_flow_reason(f->st, XR_REASON_OPERATOR);
		up_later(f, 8, 65536);
		return;
	}
	if (why != XR_REASON_NONE) {
		up_give_up(f, why);
		return;
	}
	u = up_claim(f);
	if (!u)
		u = up_claim_evicting(f);
	if (!u) {
		up_later(f, 8, 65536);
		return;
	}
	xr_store_relaxed(&f->up, u);
	xr_up_past_keep(u);
	u->tuple = t;
	u->far = far;
	u->begun = xr_now_ns();
	u->turns = xr_load_relaxed(&f->turns);
	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 1);
	if (f->st) {
		xr_stats_inc(&f->st->ctl.attempts, 1);
		xr_stats_gauge(&f->st->ctl.turns, xr_load_relaxed(&f->turns));
	}
	do {
		r = xr_random(&u->nonce, sizeof(u->nonce));
	} while (!r && !u->nonce);
	if (!r && far) {
		r = xr_up_far_begin(u);
		if (r == -EAGAIN) {
			up_drop(u);
			up_later(f, 1, 4096);
			return;
		}
	} else if (!r && f->role == XR_FLOW_CONNECT) {
		u->state = XR_UP_LISTENING;
		r = xr_rendezvous_listen(&t);
		if (r >= 0) {
			u->lfd = r;
			r = 0;
			/* release: the name is open */
			if (u->past.link)
				xr_fetch_or(&u->past.own->state, XR_DIR_NAMED);
		}
	} else if (!r) {
		r = xr_up_call(u, fd);
		if ((r == -ECONNREFUSED || r == -EAGAIN) && u->past.link) {
			/* the other end said that it is there, and has just gone; or nobody said so */
			if (xr_load_acquire(&u->past.link->dead)) {
				up_fail(u, XR_REASON_TIMEOUT);
			} else {
				up_drop(u);
				up_later(f, 1, 4096);
			}
			return;
		}
		if (r == -ECONNREFUSED || r == -EAGAIN) {
			/*
			 * Not there (yet): bytes that this end has sent may wait unread for long, so it
			 * is given 170 ms; where others were met, some seconds: all places may be taken.
			 */
			int n = f->up_tries < 4 ? f->up_tries : 4;

			up_free(u);
			if (f->reason == XR_REASON_OPERATOR && xr_links_any() && ++f->up_tries < UP_HELD_CALLS) {
				up_later(f, UP_HELD_TURNS, UP_HELD_BYTES);
				return;
			}
			f->up_after = xr_now_ns() + (2000000ull << (2 * n));
			if (++f->up_tries >= (xr_links_any() ? 16 : 5))
				up_give_up(f, XR_REASON_PEER_NOT_XRDMA);
			else
				up_later(f, 2u << n, 8192ull << n);
			return;
		}
	}
	if (r == -ECANCELED && far) {
		up_step_failed(u, r);
	} else if (r) {
		xr_info("no upgrade: error %d", -r);
		up_fail(u, xr_up_errno_reason(r));
	}
}

/* Not every I/O call of a busy flow pays for a look at the handshake. */
static int up_due(struct xr_upgrade *u)
{
	u->ios++;
	return u->ios <= 64 || u->ios % 16 == 0;
}

/*
 * In the last two states nothing expires: the peer has all it needs, and takes its
 * next step when its program next does I/O.  It, or the kernel, tells us if it gave up.
 */
static int up_peer_lost(struct xr_flow *f)
{
	return xr_load_acquire(&f->link->dead) ||
	       xr_load_relaxed(&f->rx.dir->gen) != f->peer_dir_gen ||
	       (xr_flow_peer_state(f) & XR_DIR_GONE);
}

static void up_step_locked(struct xr_flow *f, int fd, uint32_t *waiter, int *attach, int *retreat)
{
	struct xr_upgrade *u = xr_flow_up(f);
	int r = 0;

	if (!u) {
		if (!f->upgrade_off && !(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
			up_begin(f, fd);
		return;
	}
	if (u->state < XR_UP_EXCHANGED) {
		if (!up_due(u))
			return;
		r = u->far ? xr_up_far_step(u) :
		    f->role == XR_FLOW_CONNECT ? xr_up_host_step(u, fd) : xr_up_caller_step(u, fd);
		if (r) {
			up_step_failed(u, r);
			return;
		}
		/* after the step: while the flow was idle the peer's message may have come */
		if (u->state < XR_UP_EXCHANGED && up_is_expired(u)) {
			up_expired(u);
			return;
		}
	}
	if (u->state >= XR_UP_EXCHANGED && up_peer_lost(f)) {
		*retreat = XR_REASON_PEER_REFUSED;
		return;
	}
	if (u->state == XR_UP_EXCHANGED) {
		/* the program has yet to hear from the kernel */
		if (xr_unlikely(xr_zerocopy_busy(f)))
			return;
		xr_up_past_forget(u);
		/* from now on it is us who copy from and to the program's buffers */
		xr_user_guard();
		xr_fetch_or(&f->path, XR_PATH_MOVE);
		if (xr_control_holds(f)) {
			*retreat = XR_REASON_OPERATOR;
			return;
		}
		/* a child that was forked before the link was made has not got it mapped */
		if (xr_flow_holders(f) > 1) {
			*retreat = XR_REASON_FORKED;
			return;
		}
		r = xr_up_finish(u, fd);
		if (!r)
			*attach = 1;
		else if (r != -EAGAIN)
			*retreat = xr_up_switch_reason(r);
		return;
	}
	/* acquire: pairs with the release in xr_shm_rx_ready, what the peer armed is visible */
	if (u->state == XR_UP_READY && xr_load_acquire(&f->tx.dir->ready)) {
		r = xr_up_start(u, fd, waiter);
		if (!r) {
			/* the link's reference goes over to the flow */
			u->link = NULL;
			up_free(u);
		} else if (r != -EAGAIN) {
			*retreat = xr_up_switch_reason(r);
		}
	}
}

void xr_upgrade_step(struct xr_flow *f, int fd)
{
	uint32_t waiter = 0;
	int attach = 0, retreat = 0;

	if (f->owner_pid != xr_getpid() || xr_trylock(&f->tx_lock))
		return;
	up_step_locked(f, fd, &waiter, &attach, &retreat);
	/* the flow keeps its link, in case the peer looks at it; close lets go of both */
	if (retreat)
		up_fail(xr_flow_up(f), (enum xr_reason)retreat);
	xr_unlock(&f->tx_lock);
	if (waiter)
		xr_flow_tell(f, waiter);
	if (attach) {
		int r = xr_epoll_flow_attach(f);

		/* sleepers now watch the doorbell as well as the socket: the peer may leave TCP */
		if (!r) {
			/* they arm for the ring before the peer may write there, or find it there */
			xr_flow_wake(f);
			xr_flow_room_rx(f, fd);
			xr_shm_rx_ready(&f->rx);
			if (f->far)
				xr_flow_tell_sender(f);
		} else {
			/* an armed EPOLLONESHOT fires sooner or later */
			xr_upgrade_abort(f, fd, r == -EINVAL ? XR_REASON_EPOLL_EXCLUSIVE :
					 r == -EAGAIN ? XR_REASON_YOUNG : xr_up_errno_reason(r));
		}
	}
	if (retreat)
		xr_flow_give_back(f, fd, (enum xr_reason)retreat);
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
		xr_fd_close(u->arena.fd);
		u->f = NULL;
	}
	xr_store_relaxed(&up_lock, 0);
	xr_proof_forked();
}
