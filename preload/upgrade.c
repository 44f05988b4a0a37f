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
#include "defer.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "rundir.h"
#include "upgrade.h"
#include "user.h"
#include "zerocopy.h"

void xr_upgrade_abort(struct xr_flow *f, int fd, enum xr_reason why)
{
	struct xr_upgrade *u;
	int ready;

	if (f->owner_pid != xr_getpid() || xr_flow_tx_lock(f))
		return;
	u = xr_flow_up(f);
	if (!u) {
		xr_flow_tx_unlock(f);
		return;
	}
	ready = u->state >= XR_UP_EXCHANGED;
	xr_up_fail(u, why);
	xr_flow_tx_unlock(f);
	if (ready && why != XR_REASON_CLOSED)
		xr_flow_give_back(f, fd, why);
}

/* Not every I/O call of a busy flow pays for a look at the handshake. */
static int up_due(struct xr_upgrade *u)
{
	u->ios++;
	return u->ios <= 64 || u->ios % 16 == 0;
}

#define UP_LOOK_PART	4u	/* of what the connection has lived meanwhile lies between two looks, but at most */
#define UP_LOOK_TURNS	64u	/* a caller is patient for twice as many calls: UP_PATIENCE_IOS */
#define UP_LOOK_BYTES	65536u

static int up_uncalled(const struct xr_upgrade *u)
{
	return u->state == XR_UP_LISTENING && u->conn < 0;
}

/*
 * The next look for a caller.  A peer under xrdma calls within a turn or two of the time when this end
 * began to listen; the longer nobody has, the less a look is worth, and mostly it is one at a plain peer.
 */
static void up_look_later(const struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	uint32_t turns = (xr_load_relaxed(&f->turns) - u->turns) / UP_LOOK_PART;
	uint64_t bytes = (xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx) - u->bytes) / UP_LOOK_PART;

	if (turns > UP_LOOK_TURNS)
		turns = UP_LOOK_TURNS;
	if (bytes > UP_LOOK_BYTES)
		bytes = UP_LOOK_BYTES;
	if (!up_uncalled(u)) {
		turns = 0;
		bytes = 0;
	}
	xr_flow_need(f, turns, bytes);
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

void xr_upgrade_witness(struct xr_flow *f)
{
	struct xr_upgrade *u;

	if (f->owner_pid != xr_getpid() || xr_flow_tx_trylock(f))
		return;
	u = xr_flow_up(f);
	if (u && u->dir && u->state == XR_UP_EXCHANGED)
		xr_witness_look(u, xr_flow_fd(f), 0);
	xr_flow_tx_unlock(f);
}

/* 1: what is to be seen before the flow moves was seen. */
static int up_seen(struct xr_upgrade *u, int fd, int *retreat)
{
	struct xr_flow *f = u->f;
	int r;

	if (xr_likely(!u->dir))
		return 1;
	xr_fetch_or(&f->path, XR_PATH_WITNESS);
	xr_witness_look(u, fd, 1);
	r = xr_witness_done(u);
	if (r < 0) {
		xr_stats_add(XR_STAT_HANDSHAKE_REFUSED, 1);
		*retreat = XR_REASON_PROOF_FAILED;
	}
	if (r)
		xr_fetch_and(&f->path, ~XR_PATH_WITNESS);
	return r > 0;
}

static void up_step_locked(struct xr_flow *f, int fd, uint32_t *waiter, int *attach, int *retreat)
{
	struct xr_upgrade *u = xr_flow_up(f);
	int r = 0;

	if (!u) {
		if (!f->upgrade_off && !(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
			xr_up_begin(f, fd);
		return;
	}
	if (u->state < XR_UP_EXCHANGED) {
		int uncalled = up_uncalled(u);

		if (!uncalled && !up_due(u))
			return;
		r = u->far ? xr_up_far_step(u) :
		    f->role == XR_FLOW_CONNECT ? xr_up_host_step(u, fd) : xr_up_caller_step(u, fd);
		if (r) {
			xr_up_step_failed(u, r);
			return;
		}
		if (uncalled)
			up_look_later(u);
		/* after the step: while the flow was idle the peer's message may have come */
		if (u->state < XR_UP_EXCHANGED && xr_up_is_expired(u)) {
			xr_up_expired(u);
			return;
		}
		xr_up_unheard(u);
	}
	if (u->state >= XR_UP_EXCHANGED && up_peer_lost(f)) {
		*retreat = XR_REASON_PEER_REFUSED;
		return;
	}
	if (u->state == XR_UP_EXCHANGED) {
		if (!up_seen(u, fd, retreat))
			return;
		/* the program has yet to hear from the kernel */
		if (xr_unlikely(xr_zerocopy_busy(f)))
			return;
		xr_up_past_forget(u);
		/* from now on it is us who copy from and to the program's buffers */
		xr_user_guard();
		if (!(xr_load_relaxed(&f->path) & XR_PATH_MOVE))
			xr_flow_options(f, fd);
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
			u->counted = 0;
			xr_up_free(u);
		} else if (r != -EAGAIN) {
			*retreat = xr_up_switch_reason(r);
		}
	}
}

static void up_step(struct xr_flow *f, int fd)
{
	uint32_t waiter = 0;
	int attach = 0, retreat = 0;

	if (f->owner_pid != xr_getpid() || xr_flow_tx_trylock(f))
		return;
	up_step_locked(f, fd, &waiter, &attach, &retreat);
	/* the flow keeps its link, in case the peer looks at it; close lets go of both */
	if (retreat)
		xr_up_fail(xr_flow_up(f), (enum xr_reason)retreat);
	xr_flow_tx_unlock(f);
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
			xr_upgrade_abort(f, fd, r == -EXDEV ? XR_REASON_INHERITED :
					 r == -EINVAL ? XR_REASON_EPOLL_EXCLUSIVE :
					 r == -EAGAIN ? XR_REASON_YOUNG : xr_up_errno_reason(r));
		}
	}
	if (retreat)
		xr_flow_give_back(f, fd, (enum xr_reason)retreat);
}

void xr_upgrade_step(struct xr_flow *f, int fd)
{
	/* a handler that left a step by longjmp would leave the handshake, and the locks, in the middle of it */
	xr_defer_begin();
	up_step(f, fd);
	xr_defer_end();
}
