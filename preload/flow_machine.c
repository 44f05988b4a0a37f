/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The state machine of a flow.  Every change of state is in this file, and only here; who
 * reads and writes bytes (flow_rx.c, flow_tx.c), who ends a flow (flow_close.c) and who
 * brings it up (upgrade.c) calls what is below.  xrdma-protocol(7) has the same from outside.
 *
 *	RECEIVE DIRECTION (rx_lock)
 *
 *	                    both ends know all, nobody is in a kernel read        xr_flow_rx_ready
 *	    +--> RX_TCP ---------------------------------------------> RX_READY
 *	    |      ^ ^                                                  |   |
 *	    |      | |  frozen before START; peer gone                  |   | START(N) seen
 *	    |      | +--------------------------------------------------+   | xr_rx_try_start
 *	    |      |                                                        v
 *	    |      |  we freeze: the sender replays                     RX_DRAIN  N - read bytes of
 *	    |      +<---------------------------------------------------+   |     TCP are left
 *	    |      |                                                        | xr_flow_rx_drained
 *	    |      |  we freeze (reader without hooks);                     v
 *	    |      |  sealed by us, read to the seal                    RX_RING
 *	    |      +<---------------------------------------------------+   |
 *	    |                                                               | frozen by the sender, or by
 *	    |  `late` bytes came over TCP again                             | us for a reader with hooks:
 *	    +<------------------------------- RX_SKIP <---------------------+ read on to its end
 *	       xr_flow_rx_skip                                 xr_rx_to_tcp
 *
 *	SEND DIRECTION (tx_lock)
 *
 *	              peer READY, nobody in a kernel write: START(N) published    xr_flow_tx_start
 *	    TX_TCP ----------------------------------------------------> TX_RING
 *	      ^                                                             |
 *	      |                                  frozen by either end, or   | xr_flow_tx_start_replay
 *	      |  retained bytes are in the       the peer is gone           v
 *	      +<------------------------------------------------------- TX_REPLAY
 *	         kernel socket (or it is dead)        xr_flow_tx_push_replay
 *
 *	THE FLOW (xr_flow_leave): RX_TCP and TX_TCP after either was elsewhere: the hooks let go of
 *	it (XR_PATH_FABRIC cleared), and where the reason permits it comes back (flow_return.c).
 *
 * A retreat may begin at either end, at both at once, during an upgrade or another retreat: each
 * end changes its own two states only, and what it tells the other is one bit (FROZEN) in a
 * word that both map.  Whoever freezes first wins; the other finds out at its next access.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "flow_rx.h"
#include "log.h"
#include "mem.h"
#include "process.h"
#include "ready.h"
#include "zerocopy.h"

/* ---- receive direction ---------------------------------------------------- */

void xr_flow_rx_ready(struct xr_flow *f)
{
	f->rx_state = XR_RX_READY;
}

/* START in the first slot: how much of the stream is still to come over TCP. */
static int rx_take_start(struct xr_flow *f, const struct xr_view *v)
{
	/* own count: checked against the kernel's when the upgrade began, all reads are ours since */
	uint64_t got = xr_load_relaxed(&f->tcp_rx);
	int r;

	if (v->arg < got) {
		xr_warn("peer process %d leaves TCP at offset %lu of %lu that were read: %lx%s",
			f->link->peer_pid, (unsigned long)v->arg, (unsigned long)got,
			(unsigned long)xr_load_relaxed(&f->rx.dir->consumed), f->rx.sealed ? ", sealed" : "");
		return -EPROTO;
	}
	/* first: xr_flow_rx_left goes by it when START was taken, and nothing else is done */
	f->drain_to = v->arg;
	xr_shm_rx_take(&f->rx, v, 0);
	r = xr_shm_rx_commit(&f->rx);
	if (r)
		return r;
	f->rx_state = f->drain_to != got ? XR_RX_DRAIN : XR_RX_RING;
	xr_stats_add(XR_STAT_FLOWS_UPGRADED, 1);
	xr_stats_rx_base(f->st, xr_flow_fabric(f));
	xr_flow_show_carriers(f);
	/* what follows waits at the other end until it knows that this was taken */
	if (f->far)
		xr_flow_tell_sender(f);
	return 0;
}

/* READY: has the sender left TCP?  1 when the state moved on, 0, or an error. */
int xr_rx_try_start(struct xr_flow *f, int fd)
{
	struct xr_view v;
	int r = xr_shm_rx_peek(&f->rx, &v);

	if (xr_unlikely(xr_load_relaxed(&f->rx.dir->gen) != f->peer_dir_gen)) {
		r = -ESTALE;	/* the block is another flow's by now, and so is what lies in it */
	} else if (xr_likely(!r)) {
		if (!xr_shm_rx_is_frozen(&f->rx) && !(xr_flow_peer_state(f) & XR_DIR_GONE))
			return 0;
		r = -ESTALE;
	} else if (r == 1 && v.arg < xr_load_relaxed(&f->tcp_rx) && !xr_shm_rx_is_frozen(&f->rx) &&
		   f->rx.replayed) {
		/* what was read beyond START is the replay, since it was looked for before START */
		r = -ESTALE;
	} else if (r == 1 && f->far && v.op == XR_OP_START && v.arg < xr_load_relaxed(&f->tcp_rx)) {
		/* its sender did not wait for this end, and has gone on over TCP */
		xr_shm_rx_freeze(&f->rx);
		xr_store_release(&f->far->answer, 1);
		r = -ESTALE;
	} else if (r == 1) {
		r = v.op == XR_OP_START ? rx_take_start(f, &v) : -EPROTO;
		if (!r)
			return 1;
	}
	if (r == -EPROTO || f->rx.lied)
		return xr_rx_corrupt(f, fd);
	xr_rx_to_tcp(f);
	return 1;
}

void xr_flow_rx_drained(struct xr_flow *f)
{
	/* START was taken by one who was killed before he could say so */
	if (f->rx_state == XR_RX_READY)
		f->rx_state = XR_RX_DRAIN;
	if (!xr_flow_drain_left(f))
		f->rx_state = XR_RX_RING;
}

/* The direction is frozen and read to its end: the kernel socket carries the rest. */
void xr_rx_to_tcp(struct xr_flow *f)
{
	/* of a flow to another host: START was taken, so a frame goes first */
	if (f->far && f->rx.seq == 1)
		f->far->rx_due = 0;
	if (f->rx.late || (f->far && f->far->rx_due)) {
		f->rx_state = XR_RX_SKIP;
		return;
	}
	f->rx_state = XR_RX_TCP;
	if (xr_flow_lowat_split(f))
		xr_flow_lowat(f, xr_flow_fd(f));
	xr_flow_leave(f);
}

int xr_flow_rx_skip(struct xr_flow *f, int fd)
{
	int r = f->far ? xr_far_rx_take(f, fd) : 0;

	if (!r)
		r = xr_rx_drop_late(f, fd);
	if (!r)
		xr_rx_to_tcp(f);
	return r;
}

void xr_flow_rx_close(struct xr_flow *f)
{
	if (f->far && f->rx_state != XR_RX_SKIP && f->rx_state != XR_RX_TCP)
		xr_far_rx_close(f, xr_flow_fd(f));
	/* END may be left in the ring: there is nothing to it that the socket does not say */
	if (f->rx_state == XR_RX_RING && f->rx.late)
		f->rx_state = XR_RX_SKIP;
	else if (f->rx_state != XR_RX_SKIP)
		f->rx_state = XR_RX_TCP;
}

/* ---- send direction ------------------------------------------------------- */

int xr_flow_tx_start(struct xr_flow *f, uint64_t written)
{
	int r;

	/* first: a process that is killed at it has a direction that can be frozen, whether START is there or not */
	f->tx_state = XR_TX_RING;
	r = xr_shm_tx_control(&f->tx, XR_OP_START, written);
	if (r) {
		f->tx_state = XR_TX_TCP;
		return r;
	}
	f->trace_end = 0;
	xr_store_relaxed(&f->reason, XR_REASON_NONE);
	xr_stats_tx_base(f->st, xr_flow_fabric(f));
	return 0;
}

void xr_flow_tx_start_replay(struct xr_flow *f, enum xr_reason why)
{
	if (f->tx_state != XR_TX_RING)
		return;
	xr_shm_tx_freeze(&f->tx);
	/* before the state that it goes with */
	f->tx.replay_from = (uint32_t)xr_load_relaxed(&f->tcp_tx);
	if (f->far)
		xr_far_tx_frozen(f);
	f->tx_state = XR_TX_REPLAY;
	/* release: pairs with the exchange of who looks, the state that it finds is this one or a later one */
	if (f->far)
		xr_store_release(&xr_far_owing, 1);
	/* a retreat of the whole flow has given its reason already; a lie is one of its own */
	if (!f->reason && !f->tx.lied)
		xr_flow_blame(f, why);
}

/* The kernel socket takes the direction over; nothing is owed on the fabric. */
void xr_flow_tx_to_tcp(struct xr_flow *f)
{
	f->tx_state = XR_TX_TCP;
	xr_flow_leave(f);
}

/*
 * Moves retained bytes into the kernel.  0 when all are there (state is then TX_TCP),
 * -EAGAIN when the kernel took only a part, or the error of the socket.
 */
int xr_flow_tx_push_replay(struct xr_flow *f, int fd)
{
	struct iovec iov[16];
	size_t n, moved = 0;

	/* nobody knows what the peer has read: nothing can follow that */
	if (xr_unlikely(f->tx.lied))
		xr_flow_liar(f, fd);
	/* an error that waits there is the program's to take */
	if (f->tx.lied || xr_ksock_poll(fd, 0) & POLLERR) {
		xr_flow_tx_to_tcp(f);
		return -EPIPE;
	}
	if (f->far) {
		int r = xr_load_relaxed(&f->far->tx_lazy) ? 0 : xr_far_tx_push(f, fd);

		if (xr_load_relaxed(&f->far->tx_lazy) || r == -EAGAIN || r == -EINTR)
			return r ? -EAGAIN : 0;
		if (r < 0) {
			if (r != -EPIPE)
				xr_store_release(&f->err, (uint32_t)-r);
			xr_flow_tx_to_tcp(f);
			return r;
		}
	}
	while ((n = xr_shm_tx_replay(&f->tx, iov, 16)) > 0) {
		ssize_t r = xr_ksock_send(fd, iov, (int)n, 0);

		if (r < 0) {
			if (r == -EAGAIN || r == -EINTR)
				return -EAGAIN;
			/*
			 * The connection is gone: what is retained has nowhere to go.  An RST that came
			 * just now the kernel tells of once, and this was not the program's call.
			 */
			if (r != -EPIPE)
				xr_store_release(&f->err, (uint32_t)-r);
			xr_flow_tx_to_tcp(f);
			return (int)r;
		}
		xr_shm_tx_replayed(&f->tx, (size_t)r);
		moved += (size_t)r;
		atomic_fetch_add_explicit(&f->tcp_tx, (uint64_t)r, memory_order_relaxed);
		f->moved_tx -= (uint64_t)r;
		xr_stats_tx_twice(f->st, (uint64_t)r);
	}
	if (f->tx_shut && !f->tx_kfin) {
		f->tx_kfin = 1;
		xr_sys2(SYS_shutdown, fd, SHUT_WR);
	} else if (moved) {
		/* it had been sent: neither a cork nor Nagle may hold it back a second time */
		xr_ksock_push_tail(fd);
	}
	xr_flow_tx_to_tcp(f);
	return 0;
}

/* ---- the flow ------------------------------------------------------------- */

/*
 * Will whoever reads next come through the hooks?  Then it drains the ring itself, and a peer that is
 * away or dead holds up nobody.  Else the bytes must reach the kernel, which only the peer can do.
 */
static int retreat_hooked(enum xr_reason why)
{
	switch (why) {
	case XR_REASON_EXEC:
	case XR_REASON_PASSED_FD:
	case XR_REASON_INHERITED:
	case XR_REASON_RETREAT_CALL:
	case XR_REASON_SECCOMP:
		return 0;
	default:
		return 1;
	}
}

/* Both directions are on TCP.  1: this call it was that took the flow off the fabric. */
static int leave_fabric(struct xr_flow *f)
{
	/* thresholds first: once COUNT is set a hook may reach them */
	uint32_t next = xr_flow_return_plan(f) ? XR_PATH_COUNT : 0;
	uint32_t path = xr_load_acquire(&f->path);

	do {
		if (!(path & XR_PATH_FABRIC))
			return 0;
	} while (!xr_cas(&f->path, &path, (path & ~XR_PATH_FABRIC) | next));
	xr_fetch_or(&f->tx.dir->state, XR_DIR_GONE | (next ? 0 : XR_DIR_STAYS));
	return 1;
}

void xr_flow_leave(struct xr_flow *f)
{
	/*
	 * Both states are seq_cst: of two directions that come back at the same time at least
	 * one sees the other.
	 */
	if (atomic_load(&f->rx_state) == XR_RX_TCP && atomic_load(&f->tx_state) == XR_TX_TCP &&
	    !(retreat_hooked((enum xr_reason)f->reason) && xr_zerocopy_holds(f)) && leave_fabric(f)) {
		/* an end of the connection is no retreat */
		if (!xr_load_relaxed(&f->rx_dead) && !(xr_flow_peer_state(f) & XR_DIR_CLOSED))
			xr_stats_add(XR_STAT_RETREATS, 1);
		xr_debug("descriptor %d: back on TCP: %s", xr_flow_fd(f),
			 xr_reason_name(f->reason));
		xr_flow_wake(f);
	}
	xr_flow_show_carriers(f);
}

/* ---- retreat -------------------------------------------------------------- */

XR_FORK_DATA uint32_t xr_flow_touched;

/* Both locks held.  1: the peer must hear of it. */
static int retreat_rx_as(struct xr_flow *f, enum xr_retreat how)
{
	int froze = 1;

	if (f->rx_state == XR_RX_TCP)
		return 0;
	if (f->far)
		return xr_far_rx_retreat(f, how);
	/* sealed before, by another process that holds it: the sender has gone on behind that */
	if (how == XR_RETREAT_EITHER && f->rx.sealed)
		how = XR_RETREAT_SEAL;
	/* also before START was seen: the sender may have published it, and all the rest, by now */
	if (how == XR_RETREAT_SEAL) {
		/* read to the end, of which the kernel socket may not know yet: the hooks do */
		if (f->rx_end)
			return 0;
		froze = !f->rx.frozen;
		xr_shm_rx_seal(&f->rx);
		/* nothing is left in it, also where its sender was first: what follows is on the socket */
		if (xr_shm_rx_is_frozen(&f->rx))
			f->rx_state = f->rx.late ? XR_RX_SKIP : XR_RX_TCP;
		return froze;
	}
	/* a seal that moves back is news to the sender */
	froze = !f->rx.frozen || f->rx.sealed;
	/* sealed, and the sender went on behind that: what is unread stays here, for whoever has the hooks */
	if (f->rx_state != XR_RX_SKIP && xr_shm_rx_freeze(&f->rx))
		return 0;
	if (f->rx_state == XR_RX_RING && (how == XR_RETREAT_EITHER || how == XR_RETREAT_HAND_OVER)) {
		f->rx.replayed = 1;
		return froze;
	}
	f->rx_state = f->rx.late ? XR_RX_SKIP : XR_RX_TCP;
	return 1;
}

static int retreat_rx(struct xr_flow *f, int fd, enum xr_retreat how)
{
	int froze = retreat_rx_as(f, how);

	if (xr_unlikely(f->rx.lied && f->rx_reset != XR_RESET_LIAR))
		xr_flow_liar(f, fd);
	/* the connection is over: no carrier has anything that could be read */
	if (xr_unlikely(f->rx.lied || f->rx_reset == XR_RESET_LIAR))
		f->rx_state = XR_RX_TCP;
	return froze;
}

/* tx_lock held.  0, or -EAGAIN while retained bytes wait for room in the kernel. */
static int retreat_push(struct xr_flow *f, int fd)
{
	return f->tx_state == XR_TX_REPLAY ? xr_flow_tx_push_replay(f, fd) : 0;
}

/* rx_lock held.  0, or -EAGAIN while bytes that were read are to come once more. */
static int retreat_late(struct xr_flow *f, int fd)
{
	/* a frame behind what is still to be read over TCP cannot be reached */
	if (f->far && f->rx_state == XR_RX_DRAIN)
		return -EAGAIN;
	return f->rx_state == XR_RX_SKIP ? xr_flow_rx_skip(f, fd) : 0;
}

/* On one host: a hand-over leaves these states, but for a seal that cannot be moved back. */
static int retreat_kept(const struct xr_flow *f)
{
	return !f->far && f->rx_state != XR_RX_TCP && f->rx_state != XR_RX_SKIP && f->rx.sealed;
}

/*
 * rx_lock held.  0, or what is unread lies here alone: -EAGAIN, its sender has yet to take notice
 * that it is to come over the socket; -ESTALE, he has gone on behind it.
 */
static int retreat_unread(struct xr_flow *f)
{
	/* before the first of it was due, too, a seal may have kept it here */
	if (f->rx_state != XR_RX_RING)
		return retreat_kept(f) ? -ESTALE : 0;
	if (!xr_shm_rx_is_frozen(&f->rx)) {
		/* acquire: with it the sender's end of the flow is what it will be */
		if (f->rx.sealed)
			return -ESTALE;
		if (!(xr_load_acquire(&f->rx.dir->consumed) & XR_REPLAYING))
			return -EAGAIN;
	}
	xr_rx_to_tcp(f);
	return 0;
}

uint32_t xr_flow_owes(struct xr_flow *f, int fd)
{
	uint32_t ev = 0;

	/* racy looks: the states are what this end made them, or the lock is held for long */
	if (f->tx_state == XR_TX_REPLAY && !xr_flow_tx_lock(f)) {
		ev |= retreat_push(f, fd) == -EAGAIN ? POLLOUT : 0;
		xr_flow_tx_unlock(f);
	}
	if (f->rx_state == XR_RX_SKIP && !xr_flow_rx_lock(f)) {
		ev |= retreat_late(f, fd) == -EAGAIN ? POLLIN : 0;
		xr_flow_rx_unlock(f);
	}
	return ev;
}

/* What is missing before the kernel socket is all there is to the flow. */
struct retreat_missing {
	int owed, late, unread;		/* -EAGAIN: the peer may bring it yet */
};

static int retreat_waits(const struct retreat_missing *m)
{
	return m->owed == -EAGAIN || m->late == -EAGAIN || m->unread == -EAGAIN;
}

/* Waits for the replays of both ends. */
static void retreat_wait(struct xr_flow *f, int fd, struct retreat_missing *m, uint64_t wait_ns)
{
	uint64_t end = xr_now_ns() + wait_ns;
	int alone = 0;

	while (retreat_waits(m) && !alone && xr_now_ns() < end) {
		struct pollfd p = { .fd = fd, .events = (short)((m->owed ? POLLOUT : 0) |
								(m->late || m->unread ? POLLIN : 0)) };
		struct timespec ts = { 0, 10000000 };

		alone = xr_flow_alone(f, fd);
		if (!alone)
			xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		if (xr_flow_tx_lock(f))
			return;
		m->owed = retreat_push(f, fd);
		if (!xr_flow_rx_lock(f)) {
			m->unread = m->unread ? retreat_unread(f) : 0;
			m->late = m->late || f->rx_state == XR_RX_SKIP ? retreat_late(f, fd) : 0;
			xr_flow_rx_unlock(f);
		}
		xr_flow_tx_unlock(f);
	}
}

int xr_flow_retreat_as(struct xr_flow *f, int fd, enum xr_reason why, enum xr_retreat how,
		       uint64_t wait_ns)
{
	struct retreat_missing m = { 0, 0, 0 };
	uint32_t waiter;
	int froze;

	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		return 0;
	if (f->owner_pid != xr_getpid())
		xr_flow_touched = 1;
	/* half on its way: what is left to do then is in xr_flow_give_back */
	if (xr_unlikely(xr_flow_up(f) != NULL) && f->owner_pid == xr_getpid())
		xr_upgrade_abort(f, fd, why);
	if (xr_flow_tx_lock(f))
		return -EAGAIN;
	if (xr_flow_rx_lock(f)) {
		xr_flow_tx_unlock(f);
		return -EAGAIN;
	}
	if (!xr_flow_may_return(why))
		xr_store_relaxed(&f->upgrade_off, 1);
	if (f->reason != why)
		xr_flow_blame(f, why);
	/* the peer's frame is waited for, and it may wait for ours */
	if (f->far && how != XR_RETREAT_SEAL)
		xr_store_relaxed(&f->far->tx_lazy, 0);
	froze = retreat_rx(f, fd, how) | xr_far_tx_unused(f) | (f->tx_state == XR_TX_RING);
	if (xr_flow_lowat_split(f))
		xr_flow_lowat(f, fd);
	if (how == XR_RETREAT_HAND_OVER)
		m.unread = retreat_unread(f);
	m.late = retreat_late(f, fd);
	xr_flow_tx_start_replay(f, why);
	xr_flow_leave(f);
	m.owed = retreat_push(f, fd);
	/* whoever sleeps at the other end in a read sees that we froze it */
	waiter = XR_ARM_WAITER(xr_load_relaxed(&f->tx.dir->arm));
	xr_flow_rx_unlock(f);
	xr_flow_tx_unlock(f);
	if (froze) {
		if (waiter)
			xr_shm_link_notify(f->link, waiter, f->peer_cookie);
		xr_flow_tell_sender(f);
	}
	/* what is late matters only to a reader who would not know it for what it is */
	if (how == XR_RETREAT_SEAL || how == XR_RETREAT_EITHER)
		m.late = 0;
	if (wait_ns)
		retreat_wait(f, fd, &m, wait_ns);
	/* who sleeps here waits for what may come another way now; a child comes by here with each call */
	if (froze || f->owner_pid == xr_getpid())
		xr_flow_wake(f);
	/* with a replay pending the hooks, and the epoll files, still carry the flow */
	if (!xr_vfork_depth && !(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		xr_epoll_flow_detach(f);
	return retreat_waits(&m) || m.unread ? -EAGAIN : m.owed;
}

int xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	return xr_flow_retreat_as(f, fd, why, retreat_hooked(why) ? XR_RETREAT_SEAL :
				  wait_ns ? XR_RETREAT_HAND_OVER : XR_RETREAT_FREEZE, wait_ns);
}

int xr_flow_link_lost(struct xr_flow *f, int fd)
{
	/*
	 * The link is memory of the owner alone: a child that was forked before the owner met the peer
	 * must not look.  acquire: pairs with link_die
	 */
	if (f->owner_pid != xr_getpid() || !(xr_load_acquire(&f->path) & XR_PATH_FABRIC) ||
	    xr_likely(!f->link || !xr_load_acquire(&f->link->dead)) ||
	    f->reason == XR_REASON_FABRIC_LOST ||
	    /* both directions have left it before: the link went with the helper, for a call of this program */
	    f->reason == XR_REASON_LIMIT_THREADS)
		return 0;
	/* the end of the peer's process is told by the end of the connection */
	if ((xr_flow_peer_state(f) & XR_DIR_CLOSED) ||
	    (xr_ksock_poll(fd, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)))
		return 0;
	xr_flow_retreat(f, fd, XR_REASON_FABRIC_LOST, 0);
	return 1;
}

int xr_flow_hand_over(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	int r;

	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC)) {
		xr_flow_stay_tcp(f, fd, why);
		return 0;
	}
	/* one wait is enough, for all descriptors and steps of the way to the other program */
	r = xr_flow_retreat_as(f, fd, why, XR_RETREAT_HAND_OVER, f->waited || !wait_ns ? 1 : wait_ns);
	f->waited = r == -EAGAIN && (f->waited || wait_ns);
	return r == -EAGAIN ? r : 0;
}

void xr_flow_let_go(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	if (xr_flow_hand_over(f, fd, why, wait_ns) &&
	    (f->rx_state == XR_RX_SKIP || f->tx_state == XR_TX_REPLAY)) {
		xr_error("bytes of a flow that is handed over are found twice there, or out of order");
		xr_stats_add(XR_STAT_INTERNAL_ERRORS, 1);
	}
	/* what the peer has yet to send again comes when it next calls */
	xr_flow_stay_tcp(f, fd, why);
	if (retreat_kept(f)) {
		xr_error("unread bytes of a flow cannot be handed over");
		xr_stats_add(XR_STAT_INTERNAL_ERRORS, 1);
	}
}

void xr_flow_give_back(struct xr_flow *f, int fd, enum xr_reason why)
{
	xr_flow_retreat(f, fd, why, 0);
	/*
	 * release: the freeze before it; the peer stops waiting for START.  While sealed bytes
	 * are left to read here xr_flow_leave says it later.
	 */
	if (f->link && f->rx_state == XR_RX_TCP)
		xr_fetch_or(&f->tx.dir->state, XR_DIR_GONE);
}
