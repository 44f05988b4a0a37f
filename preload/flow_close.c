/* SPDX-License-Identifier: BSD-2-Clause */
/* The ends of a flow: shutdown, close, exit; and the way back to the kernel socket. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "fdtab.h"
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "ready.h"

/*
 * Publishes END and wakes the peer.  tx_lock held; the ring keeps slots in reserve for it.
 * The waiter to tell after unlocking comes back in *waiter.
 */
static int close_publish_end(struct xr_flow *f, int closed, uint32_t *waiter)
{
	uint32_t flags = XR_DIR_ENDED | (closed ? XR_DIR_CLOSED : 0);
	int r = 0;

	*waiter = 0;
	if (!f->tx.ended) {
		r = xr_shm_tx_control(&f->tx, XR_OP_END, closed ? XR_END_CLOSE : 0);
		if (r)
			return r;
	}
	/* release: END is in the ring before the flag that announces it */
	xr_store_release(&f->tx.dir->state, xr_load_relaxed(&f->tx.dir->state) | flags);
	xr_shm_tx_armed(&f->tx, waiter);
	return f->tx.frozen ? -ESTALE : 0;
}

/* Wakes the peer's sender too: one that waits for space shall see CLOSED. */
static void close_tell_sender(struct xr_flow *f)
{
	uint64_t a = xr_load_relaxed(&f->rx.dir->tx_arm);

	if (XR_TXARM_WAITER(a))
		xr_shm_link_notify(f->link, XR_TXARM_WAITER(a), f->peer_cookie);
}

int xr_flow_shutdown(struct xr_flow *f, int fd, int how)
{
	uint32_t waiter = 0;
	int r = 0, e;

	if (how < SHUT_RD || how > SHUT_RDWR)
		return -EINVAL;
	if (f->owner_pid != xr_getpid()) {
		xr_flow_retreat(f, fd, XR_REASON_FORKED, 0);
		return (int)xr_sys2(SYS_shutdown, fd, how);
	}
	/* nobody can ask for a replay any more: the FIN that waited for that may go */
	if (f->tx_shut && !f->tx_kfin && (xr_flow_peer_state(f) & XR_DIR_CLOSED)) {
		f->tx_kfin = 1;
		xr_sys2(SYS_shutdown, fd, SHUT_WR);
	}
	if (xr_ksock_poll(fd, 0) & (POLLERR | POLLHUP)) {
		/* over: the kernel says so, and wakes whoever still waits */
		f->rx_shut |= how != SHUT_WR;
		f->tx_shut |= how != SHUT_RD;
		return (int)xr_sys2(SYS_shutdown, fd, how);
	}
	/* this first: who is woken by the other half shall see both */
	if (how != SHUT_RD) {
		if (xr_lock(&f->tx_lock))
			return -EAGAIN;
		if (f->tx_state == XR_TX_RING && !f->tx_shut) {
			f->tx_shut = 1;
			r = close_publish_end(f, 0, &waiter);
			if (r == -ESTALE) {
				/* frozen: the replay ends with the real FIN */
				xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
				xr_flow_tx_push_replay(f, fd);
				r = 0;
			}
		} else if (f->tx_state == XR_TX_REPLAY) {
			f->tx_shut = 1;
			xr_flow_tx_push_replay(f, fd);
		} else if (f->tx_state == XR_TX_TCP) {
			f->tx_shut = 1;
			f->tx_kfin = 1;
			r = (int)xr_sys2(SYS_shutdown, fd, SHUT_WR);
		}
		xr_unlock(&f->tx_lock);
		if (waiter)
			xr_flow_tell(f, waiter);
	}
	if (how != SHUT_WR) {
		if (xr_lock(&f->rx_lock))
			return -EAGAIN;
		f->rx_shut = 1;
		xr_unlock(&f->rx_lock);
		/* wakes who sleeps in a read, since every sleeper watches the socket too */
		e = (int)xr_sys2(SYS_shutdown, fd, SHUT_RD);
		/* after the other half the connection may be over, which is no error */
		r = how == SHUT_RD ? e : r;
	}
	/*
	 * Closed both ways: a peer that still writes shall be answered with RST, and only the
	 * kernel does that.
	 */
	f->rx.final = f->rx_shut && f->tx_shut;
	if (f->rx.final)
		xr_flow_retreat(f, fd, XR_REASON_CLOSED, 0);
	xr_epoll_flow_kick(f);
	return r;
}

#define CLOSE_PATIENCE	1000000000u	/* ns that a peer which does not act may hold up a close */

/*
 * Bytes that the program has read, and that come once more over the socket, must not be
 * found unread there by the kernel: it would reset the connection.  rx_lock held.
 */
static void close_skip(struct xr_flow *f, int fd)
{
	uint64_t end = xr_now_ns() + CLOSE_PATIENCE;

	while (f->rx.late && xr_flow_rx_skip(f, fd) == -EAGAIN && xr_now_ns() < end) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct timespec ts = { 0, 10000000 };

		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
	}
}

/*
 * What close() leaves to do on the fabric for a flow that this process alone holds.
 * Unread data means RST, as on TCP: the peer reads what it has, then ECONNRESET.
 */
static void close_sole(struct xr_flow *f, int fd)
{
	static const struct linger rst = { 1, 0 };
	struct linger now = { 0, 0 };
	socklen_t len = sizeof(now);
	uint32_t waiter = 0;
	int unread, abort, r;

	/* wherever it lies: what was to come over TCP before the ring counts as well */
	unread = xr_load_relaxed(&f->rx_state) != XR_RX_TCP && !f->rx_end && xr_flow_inq(f, fd) > 0;

	if (!xr_lock(&f->rx_lock)) {
		if (!unread && (f->rx_state == XR_RX_RING || f->rx_state == XR_RX_SKIP))
			close_skip(f, fd);
		f->rx_state = XR_RX_TCP;
		xr_unlock(&f->rx_lock);
	}
	xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, &now, &len);
	/* an RST tells the peer itself: END would turn it into a clean end */
	abort = unread || (now.l_onoff && !now.l_linger);
	if (unread)
		xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	if (xr_lock(&f->tx_lock))
		return;
	if (f->tx_state == XR_TX_RING) {
		r = xr_shm_tx_is_frozen(&f->tx) ? -ESTALE :
		    abort ? 0 : close_publish_end(f, 1, &waiter);
		if (r == -ESTALE)
			xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
	}
	if (f->tx_state == XR_TX_REPLAY) {
		uint64_t end = xr_now_ns() + CLOSE_PATIENCE;

		/*
		 * The rest of a replay must be in the kernel before the descriptor goes.  A peer
		 * that does not read can hold this up, for a second at most; then it gets an RST
		 * rather than a stream with a hole.
		 */
		while (xr_flow_tx_push_replay(f, fd) == -EAGAIN) {
			struct pollfd p = { .fd = fd, .events = POLLOUT };
			struct timespec ts = { 0, 10000000 };

			if (xr_now_ns() > end) {
				xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
				xr_stats_add(XR_STAT_INTERNAL_ERRORS, 1);
				break;
			}
			xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		}
	}
	/* release: everything this end does in shared memory comes before CLOSED */
	xr_store_release(&f->tx.dir->state, xr_load_relaxed(&f->tx.dir->state) | XR_DIR_CLOSED);
	xr_unlock(&f->tx_lock);
	if (waiter)
		xr_shm_link_notify(f->link, waiter, f->peer_cookie);
	close_tell_sender(f);
}

/* What becomes of bytes that are unread. */
enum retreat_how {
	RETREAT_FREEZE,		/* the sender replays them: the next reader knows only the kernel socket */
	RETREAT_SEAL,		/* the next reader drains the ring itself */
	RETREAT_EITHER,		/* replayed; a reader with hooks need not wait for it, and skips it then */
};
static int retreat(struct xr_flow *f, int fd, enum xr_reason why, enum retreat_how how,
		   uint64_t wait_ns);

void xr_flow_last_close(struct xr_flow *f, int fd)
{
	if (f->up)
		xr_upgrade_abort(f, fd, XR_REASON_CLOSED);
	if (!f->link || f->owner_pid != xr_getpid())
		return;
	if (xr_flow_holders(f) > 1) {
		/* others hold the socket: they and the kernel decide when it ends */
		if (xr_load_relaxed(&f->path) & XR_PATH_FABRIC)
			retreat(f, fd, XR_REASON_FORKED, RETREAT_EITHER, 1000000000u);
		return;
	}
	close_sole(f, fd);
}

static void exit_one(void *arg, struct xr_flow *f)
{
	(void)arg;
	if (f->owner_pid == xr_getpid() && xr_flow_holders(f) == 1 && f->link &&
	    xr_load_relaxed(&f->priv->fds))
		close_sole(f, f->priv->fd);
}

/* ---- who holds it ---------------------------------------------------------- */

/* The slab of the parent, while this process is counted there as its child; all of them private. */
static XR_FORK_DATA struct {
	_Atomic uint32_t *serial;	/* NULL: is counted in each flow */
	struct xr_flow *flow;
	struct xr_flow_priv *priv;
	uint32_t n;
	uint32_t depth;			/* forks since the first process */
	struct xr_lock lock;
} kid;
static __thread _Atomic uint32_t *kid_next;	/* of the fork that this thread is in */
static __thread uint32_t kid_next_serial;

uint32_t xr_flow_holders(const struct xr_flow *f)
{
	struct xr_flow_kids *k = f->kids;
	uint32_t i, serial, n = 0;

	/* acquire: pairs with kid_count; who is not found here any more is found in procs */
	for (i = k ? xr_load_acquire(&k->used) : 0; i--;) {
		serial = xr_load_acquire(&k->serial[i]);
		n += serial && (int32_t)(serial - f->born) > 0;
	}
	return n + xr_load_acquire(&f->procs);
}

static _Atomic uint32_t *kid_new(struct xr_flow_kids *k)
{
	uint32_t serial = xr_fetch_add(&k->forks, 1) + 1, i, used, none;

	for (i = 0; serial && i < XR_FLOW_KIDS; i++) {
		none = 0;
		if (xr_load_relaxed(&k->serial[i]) || !xr_cas(&k->serial[i], &none, serial))
			continue;
		used = xr_load_relaxed(&k->used);
		while (used <= i && !xr_cas(&k->used, &used, i + 1))
			;
		kid_next_serial = serial;
		return &k->serial[i];
	}
	return NULL;
}

/* Not f->priv: a free flow has none. */
static void kid_count(struct xr_flow *flow, struct xr_flow_priv *priv, uint32_t n, uint32_t by)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (xr_load_relaxed(&priv[i].fds))
			xr_fetch_add(&flow[i].procs, by);
}

void xr_flow_fork_prepare(int undo)
{
	if (!undo)
		kid_next = NULL;
	if (xr_slab.pid != xr_getpid())
		return;
	if (undo && kid_next) {
		xr_store_release(kid_next, 0);
		return;
	}
	if (!undo) {
		xr_flow_kids_reap();
		kid_next = kid_new(xr_slab.kids);
	}
	if (!kid_next)
		kid_count(xr_slab.flow, xr_slab.priv, xr_slab.fresh, undo ? (uint32_t)-1 : 1);
}

void xr_flow_kid_is(int pid)
{
	uint32_t serial = kid_next ? xr_load_relaxed(kid_next) : 0;

	/* it may have gone by now, and its place be another's: then the serials do not match */
	if (serial && serial == kid_next_serial)
		xr_store_relaxed(&xr_slab.kids->pid[kid_next - xr_slab.kids->serial],
				 (uint64_t)serial << 32 | (uint32_t)pid);
}

void xr_flow_kids_reap(void)
{
	struct xr_flow_kids *k = xr_slab.kids;
	uint32_t i, serial;
	uint64_t who;

	if (!k || xr_slab.pid != xr_getpid())
		return;
	for (i = xr_load_acquire(&k->used); i--;) {
		serial = xr_load_relaxed(&k->serial[i]);
		who = xr_load_relaxed(&k->pid[i]);
		if (serial && who >> 32 == serial &&
		    xr_sys2(SYS_kill, (uint32_t)who, 0) == -ESRCH)
			xr_cas(&k->serial[i], &serial, 0);
	}
}

void xr_flow_kid_begin(void)
{
	kid.serial = kid_next;
	kid.flow = xr_slab.flow;
	kid.priv = xr_slab.priv;
	kid.n = xr_slab.fresh;
	kid.depth++;
	xr_store_relaxed(&kid.lock.owner, 0);
}

static int kid_has(const struct xr_flow *f)
{
	return f >= kid.flow && f < kid.flow + kid.n;
}

static void kid_end(void)
{
	if (kid.serial)
		/* release: pairs with xr_flow_holders */
		xr_store_release(kid.serial, 0);
	kid.serial = NULL;
}

void xr_flow_kid_counts(struct xr_flow *f)
{
	if (xr_likely(!kid.serial) || (f && !kid_has(f)))
		return;
	if (xr_lock(&kid.lock)) {
		/* a handler that came in between: counted twice is not too few */
		if (f)
			xr_fetch_add(&f->procs, 1);
		return;
	}
	if (kid.serial)
		kid_count(kid.flow, kid.priv, kid.n, 1);
	kid_end();
	xr_unlock(&kid.lock);
}

/* A flow that is held one by one is let go of by one. */
static void exit_holder(void *arg, int fd, uintptr_t entry)
{
	(void)fd;
	if ((entry & 3) == XR_FD_FLOW) {
		struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

		if (arg && kid_has(f))
			return;
		/* a descriptor each: the last one lets the flow go */
		if (xr_fetch_sub(&f->priv->fds, 1) == 1)
			xr_fetch_sub(&f->procs, 1);
	}
}

void xr_flow_exit(void)
{
	if (!xr_slab.flow)
		return;
	if (xr_slab.pid == xr_getpid())
		xr_flow_each(NULL, exit_one, NULL);
	/* a child that has nothing beside what it was counted for at once: no need to look for more */
	if (!kid.serial || kid.depth > 1 || xr_slab.pid == xr_getpid())
		xr_fd_each(exit_holder, kid.serial ? &kid : NULL);
	kid_end();
}

/*
 * Will whoever reads next come through the hooks?  Then it drains the ring itself, and a
 * peer that is away or dead holds up nobody.  Else the bytes must reach the kernel, which
 * only the peer can do.
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

static int retreat(struct xr_flow *f, int fd, enum xr_reason why, enum retreat_how how,
		   uint64_t wait_ns)
{
	int seal = how == RETREAT_SEAL;
	uint64_t end = wait_ns ? xr_now_ns() + wait_ns : 0;
	uint32_t waiter = 0;
	int r = 0, late = 0, froze = 0;

	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		return 0;
	/* half on its way: what is left to do then is in xr_flow_give_back */
	if (xr_unlikely(f->up != NULL) && f->owner_pid == xr_getpid())
		xr_upgrade_abort(f, fd, why);
	if (xr_lock(&f->tx_lock))
		return -EAGAIN;
	if (xr_lock(&f->rx_lock)) {
		xr_unlock(&f->tx_lock);
		return -EAGAIN;
	}
	if (!xr_flow_may_return(why))
		f->upgrade_off = 1;
	if (f->reason != why) {
		f->reason = (uint16_t)why;
		xr_stats_reason(why);
		xr_stats_flow_reason(f->st, why);
	}
	/* also before START was seen: the sender may have published it, and all the rest, by now */
	if (seal && f->rx_end) {
		/* read to the end, of which the kernel socket may not know yet: the hooks do */
	} else if (f->rx_state != XR_RX_TCP && seal) {
		froze = !f->rx.sealed;
		if (!xr_shm_rx_seal(&f->rx) && xr_shm_rx_is_frozen(&f->rx))
			f->rx_state = XR_RX_TCP;
	} else if (f->rx_state == XR_RX_RING && how == RETREAT_EITHER && !f->rx.sealed) {
		froze = !f->rx.frozen;
		xr_shm_rx_freeze(&f->rx);
		f->rx.replayed = 1;
	} else if (f->rx_state != XR_RX_TCP) {
		if (f->rx_state != XR_RX_SKIP && xr_shm_rx_freeze(&f->rx)) {
			/* sealed before, and the sender went on behind the seal: they stay here */
			xr_error("unread bytes of a flow cannot be handed over");
			xr_stats_add(XR_STAT_INTERNAL_ERRORS, 1);
		}
		froze = 1;
		f->rx_state = f->rx.late ? XR_RX_SKIP : XR_RX_TCP;
	}
	if (f->rx_state == XR_RX_SKIP)
		late = xr_flow_rx_skip(f, fd);
	xr_flow_tx_start_replay(f, why);
	xr_flow_leave(f);
	if (f->tx_state == XR_TX_REPLAY)
		r = xr_flow_tx_push_replay(f, fd);
	/* whoever sleeps at the other end in a read wakes up and sees that we froze it */
	waiter = XR_ARM_WAITER(xr_load_relaxed(&f->tx.dir->arm));
	xr_unlock(&f->rx_lock);
	if (froze) {
		if (waiter)
			xr_shm_link_notify(f->link, waiter, f->peer_cookie);
		close_tell_sender(f);
	}
	/* what is late matters only to a reader who would not know it for what it is */
	while ((r == -EAGAIN || (late == -EAGAIN && !seal)) && end && xr_now_ns() < end) {
		struct pollfd p = { .fd = fd, .events = (short)((r ? POLLOUT : 0) |
								(late ? POLLIN : 0)) };
		struct timespec ts = { 0, 10000000 };

		xr_unlock(&f->tx_lock);
		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		if (xr_lock(&f->tx_lock))
			return -EAGAIN;
		if (f->tx_state == XR_TX_REPLAY)
			r = xr_flow_tx_push_replay(f, fd);
		else
			r = 0;
		if (late && !xr_lock(&f->rx_lock)) {
			late = f->rx_state == XR_RX_SKIP ? xr_flow_rx_skip(f, fd) : 0;
			xr_unlock(&f->rx_lock);
		}
	}
	if (late == -EAGAIN && !seal) {
		xr_error("bytes that were read will be found again on a flow that is handed over");
		xr_stats_add(XR_STAT_INTERNAL_ERRORS, 1);
		r = -EAGAIN;
	}
	xr_unlock(&f->tx_lock);
	/* who sleeps here waits for what may come another way now */
	xr_flow_wake(f);
	/* with a replay pending the hooks, and the epoll files, still carry the flow */
	if (f->owner_pid == xr_getpid() && !(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		xr_epoll_flow_detach(f);
	return r;
}

int xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	return retreat(f, fd, why, retreat_hooked(why) ? RETREAT_SEAL : RETREAT_FREEZE, wait_ns);
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
