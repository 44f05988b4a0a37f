/* SPDX-License-Identifier: BSD-2-Clause */
/* The ends of a flow: shutdown, close, exit. */
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

static const struct linger rst = { 1, 0 };

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

/* Wherever it lies: what was to come over TCP before the ring counts as well. */
static int close_unread(struct xr_flow *f, int fd)
{
	return xr_load_relaxed(&f->rx_state) != XR_RX_TCP && !f->rx_end && xr_flow_inq(f, fd) > 0;
}

/*
 * What close() leaves to do on the fabric for a flow that this process alone holds.
 * Unread data means RST, as on TCP: the peer reads what it has, then ECONNRESET.
 */
static void close_sole(struct xr_flow *f, int fd)
{
	static const struct linger off = { 0, 0 };
	struct linger now = { 0, 0 };
	socklen_t len = sizeof(now);
	uint32_t waiter = 0;
	int unread = close_unread(f, fd), abort, r;

	if (!xr_lock(&f->rx_lock)) {
		if (!unread && (f->rx_state == XR_RX_RING || f->rx_state == XR_RX_SKIP))
			close_skip(f, fd);
		xr_flow_rx_close(f);
		xr_unlock(&f->rx_lock);
	}
	xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, &now, &len);
	/* both have ended: TCP's connection would be closed by now, and reset no more */
	if (f->tx_shut && (xr_flow_peer_state(f) & XR_DIR_ENDED) && f->tx_state == XR_TX_RING) {
		unread = 0;
		if (now.l_onoff)
			xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
		now.l_onoff = 0;
	}
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
	xr_flow_tell_sender(f);
}

void xr_flow_last_close(struct xr_flow *f, int fd)
{
	if (f->up)
		xr_upgrade_abort(f, fd, XR_REASON_CLOSED);
	xr_flow_stats_last(f, fd);
	if (!f->link)
		return;
	if (f->owner_pid != xr_getpid()) {
		/* the parent has let go of it before; what it left unread resets it now */
		if (xr_flow_holders(f) <= 1 && close_unread(f, fd))
			xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
		return;
	}
	if (xr_flow_holders(f) > 1) {
		/* others hold the socket: they and the kernel decide when it ends */
		if (xr_load_relaxed(&f->path) & XR_PATH_FABRIC)
			xr_flow_retreat_as(f, fd, XR_REASON_FORKED, XR_RETREAT_EITHER,
					   1000000000u);
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

static void exit_inherited(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

	(void)arg;
	if ((entry & 3) == XR_FD_FLOW && f->owner_pid != xr_getpid() && f->priv->fd == fd)
		xr_flow_last_close(f, fd);
}

void xr_flow_exit(void)
{
	if (!xr_slab.flow)
		return;
	if (xr_slab.pid == xr_getpid())
		xr_flow_each(NULL, exit_one, NULL);
	if (xr_unlikely(xr_flow_kid_heir()))
		xr_fd_each(exit_inherited, NULL);
	xr_flow_kid_exit();
}
