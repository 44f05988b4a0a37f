/* SPDX-License-Identifier: BSD-2-Clause */
/* The ends of a flow: shutdown, close, exit. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "caretaker.h"
#include "closing.h"
#include "fdtab.h"
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "waiter.h"

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
		f->tx.stamp = xr_cycles();
		r = xr_shm_tx_control(&f->tx, XR_OP_END, closed ? XR_END_CLOSE : 0);
		if (r)
			return r;
	}
	/* release: END is in the ring before the flag that announces it */
	xr_store_release(&f->tx.dir->state, xr_load_relaxed(&f->tx.dir->state) | flags);
	xr_shm_tx_armed(&f->tx, waiter);
	return f->tx.frozen ? -ESTALE : 0;
}

/*
 * The ring is frozen, and the socket does not take all that is to be sent again; the program may never call again
 * for this descriptor.  Who reads the ring to its end has all there is.  tx_lock held; returns whom to tell.
 */
static uint32_t close_tell_end(struct xr_flow *f)
{
	if (f->far || f->tx_state != XR_TX_REPLAY)
		return 0;
	/* all that was published is before it; pairs with xr_rx_late_ends */
	xr_fetch_or(&f->tx.dir->state, XR_DIR_ENDED);
	return XR_ARM_WAITER(xr_load_relaxed(&f->tx.dir->arm));
}

/*
 * By a child, which has taken the flow back to TCP: what is left on the fabric, unread or owed,
 * comes before the end all the same.  The peer's memory need not be mapped here.
 */
static int shutdown_inherited(struct xr_flow *f, int fd, int how)
{
	int r = 0;

	if (xr_flow_tx_lock(f))
		return -EAGAIN;
	f->tx_shut |= how != SHUT_RD;
	if (how != SHUT_RD && f->tx_state == XR_TX_REPLAY) {
		xr_flow_tx_push_replay(f, fd);
	} else if (how != SHUT_RD) {
		f->tx_kfin = 1;
		r = (int)xr_sys2(SYS_shutdown, fd, SHUT_WR);
	}
	xr_flow_tx_unlock(f);
	if (xr_flow_rx_lock(f))
		return -EAGAIN;
	f->rx_shut |= how != SHUT_WR;
	if (how == SHUT_RD)
		r = (int)xr_sys2(SYS_shutdown, fd, SHUT_RD);
	else if (how == SHUT_RDWR)
		xr_sys2(SYS_shutdown, fd, SHUT_RD);
	f->rx.final = f->rx_shut && f->tx_shut;
	xr_flow_rx_unlock(f);
	return r;
}

int xr_flow_shutdown(struct xr_flow *f, int fd, int how)
{
	uint32_t waiter = 0;
	int r = 0, e;

	if (how < SHUT_RD || how > SHUT_RDWR)
		return -EINVAL;
	if (f->owner_pid != xr_getpid()) {
		xr_flow_retreat(f, fd, XR_REASON_FORKED, 0);
		return xr_load_acquire(&f->path) & XR_PATH_FABRIC ? shutdown_inherited(f, fd, how) :
								    -EREMOTEIO;
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
		if (xr_flow_tx_lock(f))
			return -EAGAIN;
		if (f->tx_state == XR_TX_RING && !f->tx_shut) {
			f->tx_shut = 1;
			if (f->far)
				xr_far_tx_kind(f, how == SHUT_RDWR || f->rx_shut ? XR_FRAME_CLOSE : XR_FRAME_SHUT);
			r = f->far ? -ESTALE : close_publish_end(f, 0, &waiter);
			if (r == -ESTALE) {
				/* frozen: the replay ends with the real FIN */
				xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
				xr_flow_tx_push_replay(f, fd);
				waiter = close_tell_end(f);
				r = 0;
			}
		} else if (f->tx_state == XR_TX_REPLAY) {
			f->tx_shut = 1;
			if (f->far)
				xr_store_relaxed(&f->far->tx_lazy, 0);
			xr_flow_tx_push_replay(f, fd);
			waiter = close_tell_end(f);
		} else if (f->tx_state == XR_TX_TCP) {
			f->tx_shut = 1;
			f->tx_kfin = 1;
			r = (int)xr_sys2(SYS_shutdown, fd, SHUT_WR);
		}
		xr_flow_tx_unlock(f);
		if (waiter)
			xr_flow_tell(f, waiter);
	}
	if (how != SHUT_WR) {
		if (xr_flow_rx_lock(f))
			return -EAGAIN;
		f->rx_shut = 1;
		xr_flow_rx_unlock(f);
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
	/* whose answer must not be a frame of a peer that has nothing to write */
	if (f->rx.final && f->far)
		xr_fetch_or(&f->tx.dir->state, XR_DIR_ENDED);
	if (f->rx.final)
		xr_flow_retreat(f, fd, XR_REASON_CLOSED, 0);
	xr_epoll_flow_kick(f);
	return r;
}

static const struct linger rst = { 1, 0 };

/* Wherever it lies: what was to come over TCP before the ring counts as well. */
static int close_unread(struct xr_flow *f, int fd)
{
	return xr_load_relaxed(&f->rx_state) != XR_RX_TCP && !f->rx_end && xr_flow_inq(f, fd) > 0;
}

/*
 * What close() leaves to do on the fabric for a flow that this process alone holds.
 * Unread data means RST, as on TCP: the peer reads what it has, then ECONNRESET.  Returns
 * how long close() may wait, in ns.
 */
static uint64_t close_sole(struct xr_flow *f, int fd)
{
	static const struct linger off = { 0, 0 };
	struct linger now = { 0, 0 };
	socklen_t len = sizeof(now);
	uint32_t waiter = 0;
	int unread = close_unread(f, fd), abort, r;

	if (!xr_flow_rx_lock(f)) {
		xr_flow_rx_close(f);
		xr_flow_rx_unlock(f);
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
	if (xr_flow_tx_lock(f))
		return 0;
	if (f->far)
		xr_far_tx_kind(f, XR_FRAME_CLOSE);
	if (f->tx_state == XR_TX_RING) {
		r = xr_shm_tx_is_frozen(&f->tx) ? -ESTALE :
		    abort ? 0 : f->far ? -ESTALE : close_publish_end(f, 1, &waiter);
		if (r == -ESTALE)
			xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
	}
	if (f->tx_state == XR_TX_REPLAY)
		xr_flow_tx_push_replay(f, fd);
	/* release: of the shared memory this end needs its own direction alone from here on */
	xr_store_release(&f->tx.dir->state, xr_load_relaxed(&f->tx.dir->state) | XR_DIR_CLOSED);
	xr_flow_tx_unlock(f);
	if (waiter)
		xr_shm_link_notify(f->link, waiter, f->peer_cookie);
	xr_flow_tell_sender(f);
	if (now.l_onoff && now.l_linger > 0)
		return (uint64_t)now.l_linger * 1000000000u;
	return XR_CARE_SOON_NS;
}

/* RST: what is owed is owed to nobody. */
static int close_aborts(int fd)
{
	struct linger now = { 0, 0 };
	socklen_t len = sizeof(now);

	xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, &now, &len);
	return now.l_onoff && !now.l_linger;
}

/* The last one to go sees to what is owed; of several that go at once one finds nobody else left. */
static __attribute__((noinline)) void close_owing(struct xr_flow *f, int fd, uint64_t soon)
{
	struct xr_care care = { .n = 0 };

	if (xr_flow_holders(f) > 1) {
		xr_fetch_sub(&f->procs, 1);
		if (xr_flow_holders(f))
			return;
		xr_fetch_add(&f->procs, 1);
	}
	xr_care_add(&care, f, fd);
	xr_care_run(&care, soon);
	xr_fetch_sub(&f->procs, 1);
}

/* 1: this process is the last to hold a flow of an ancestor's.  What that left unread resets it now. */
static int close_inherited(struct xr_flow *f, int fd)
{
	if (xr_flow_holders(f) > 1)
		return 0;
	if (close_unread(f, fd))
		xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	return 1;
}

/* Counts this process out of the flow; most connections never owed anybody anything. */
static void close_count_out(struct xr_flow *f, int fd, uint64_t soon)
{
	if (f->link && xr_flow_owes(f, fd) && !close_aborts(fd))
		close_owing(f, fd, soon);
	else
		xr_fetch_sub(&f->procs, 1);
}

/* Attempts have failed and another was to come: no reason has been counted so far, and none will be. */
static void close_untold(const struct xr_flow *f)
{
	uint32_t shown = f->st ? xr_load_relaxed(&f->st->ident.reason) : XR_REASON_YOUNG;

	if (!f->up_tries || xr_load_relaxed(&f->reason) != XR_REASON_YOUNG || f->owner_pid != xr_getpid())
		return;
	xr_stats_reason(shown == XR_REASON_YOUNG ? XR_REASON_CLOSED : (enum xr_reason)shown);
}

/* ---- the end of the process under a close ------------------------------------- */

#define CLOSE_WAIT_NS	200000000u	/* to make a caretaker takes some milliseconds */

static XR_FORK_DATA _Atomic uint32_t close_busy;	/* threads between begin and end */
/* Of this thread: a handler may end the process on top of it. */
static __thread struct {
	uint32_t busy;
	int fd;
	struct xr_flow *f;		/* in xr_flow_last_close; NULL: none */
	uintptr_t frame;		/* of it, which a longjmp may have left */
} closing __attribute__((tls_model("initial-exec")));

void xr_closing_begin(void)
{
	closing.busy++;
	/* seq_cst: before the last descriptor is gone, which exit_one would have found */
	xr_fetch_add(&close_busy, 1);
}

void xr_closing_end(void)
{
	closing.busy--;
	/* seq_cst: pairs with xr_closing_wait, what there was to do is done */
	xr_fetch_sub(&close_busy, 1);
}

void xr_closing_wait(void)
{
	static const struct timespec nap = { 0, 200000 };
	uint64_t end = xr_now_ns() + CLOSE_WAIT_NS;

	xr_care_hurry(1);
	while (atomic_load(&close_busy) > closing.busy && xr_now_ns() < end)
		xr_sys2(SYS_nanosleep, &nap, NULL);
	xr_care_hurry(0);
}

void xr_closing_forked(void)
{
	/* those of other threads are not here */
	xr_store_relaxed(&close_busy, closing.busy);
}

static void last_close(struct xr_flow *f, int fd)
{
	uint64_t soon = XR_CARE_SOON_NS;

	if (xr_flow_up(f))
		xr_upgrade_abort(f, fd, XR_REASON_CLOSED);
	else
		close_untold(f);
	xr_flow_stats_last(f, fd);
	if (xr_unlikely(f->trace_end) && !xr_flow_tx_lock(f)) {
		xr_flow_trace_settle(f);
		xr_flow_tx_unlock(f);
	}
	if (f->link && f->owner_pid == xr_getpid()) {
		if (xr_flow_holders(f) == 1)
			soon = close_sole(f, fd);
		else if (f->reason != XR_REASON_SUBSTITUTED &&
			 (xr_load_relaxed(&f->path) & XR_PATH_FABRIC))
			/* others hold the socket: they and the kernel decide when it ends */
			xr_flow_retreat_as(f, fd, XR_REASON_FORKED, XR_RETREAT_EITHER, 0);
	}
	/* the parent has let go of it before; what it left unread resets it now */
	if (f->link && f->owner_pid != xr_getpid())
		close_inherited(f, fd);
	close_count_out(f, fd, soon);
}

void xr_flow_last_close(struct xr_flow *f, int fd)
{
	closing.fd = fd;
	closing.frame = (uintptr_t)__builtin_frame_address(0);
	closing.f = f;
	last_close(f, fd);
	closing.f = NULL;
}

static void exit_one(void *arg, struct xr_flow *f)
{
	int fd;

	if (f->owner_pid != xr_getpid() || xr_flow_holders(f) != 1 || !f->link ||
	    !xr_load_relaxed(&f->priv->fds))
		return;
	fd = xr_flow_fd(f);
	/* as in the kernel, a process that ends does not linger */
	close_sole(f, fd);
	if (!close_aborts(fd))
		xr_care_add(arg, f, fd);
}

static void exit_inherited(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

	if ((entry & 3) != XR_FD_FLOW || f->owner_pid == xr_getpid() || !f->link || xr_flow_fd(f) != fd)
		return;
	if (close_inherited(f, fd) && !close_aborts(fd))
		xr_care_add(arg, f, fd);
}

void xr_flow_exit(void)
{
	struct xr_care care = { .n = 0 };

	if (!xr_slab.flow)
		return;
	xr_closing_wait();
	/* by a handler, under a close that lingers */
	if (closing.f && xr_frame_alive((uintptr_t)__builtin_frame_address(0), closing.frame) &&
	    closing.f->owner_pid == xr_getpid() && closing.f->link && !close_aborts(closing.fd))
		xr_care_add(&care, closing.f, closing.fd);
	if (xr_load_relaxed(&xr_slab.pid) == xr_getpid())
		xr_flow_each(NULL, exit_one, &care);
	/* most children touch nothing, and inherit nothing: they pay for no look at all they have */
	if (xr_unlikely(xr_flow_touched || xr_flow_kid_heir()))
		xr_fd_each(exit_inherited, &care);
	xr_care_run(&care, XR_CARE_SOON_NS);
	xr_flow_kid_exit();
}
