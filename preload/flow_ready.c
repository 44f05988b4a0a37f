/* SPDX-License-Identifier: BSD-2-Clause */
/* What a sleeper or a poller sees of a flow. */
#include <errno.h>
#include <poll.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "flow.h"
#include "mem.h"
#include "ready.h"
#include "zerocopy.h"

uint32_t xr_flow_poll(struct xr_flow *f, int fd)
{
	uint32_t tx, rx, mask;

	if (f->owner_pid != xr_getpid()) {
		xr_flow_retreat(f, fd, XR_REASON_FORKED, 0);
		if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
			return UINT32_MAX;
	}
	if (xr_unlikely(f->far != NULL))
		xr_far_look(f, fd);
	xr_flow_tx_care(f, fd);
	/* a handler that interrupted this thread's own section: report nothing new */
	if (xr_flow_tx_lock(f))
		return 0;
	tx = xr_flow_tx_poll(f, fd);
	xr_flow_tx_unlock(f);
	/* an error or end that the kernel shows in one direction stands in both */
	if (tx != UINT32_MAX && xr_unlikely(tx & (POLLERR | POLLHUP)))
		xr_flow_kernel_event(f, tx);
	if (xr_flow_rx_lock(f))
		return 0;
	rx = xr_flow_rx_poll(f, fd);
	xr_flow_rx_unlock(f);
	/* the frame of the peer was met just now */
	if (xr_unlikely(f->far != NULL))
		xr_far_look(f, fd);
	if (tx == UINT32_MAX && rx == UINT32_MAX)
		return UINT32_MAX;
	mask = 0;
	if (tx == UINT32_MAX)
		mask |= xr_ksock_poll(fd, POLLOUT);
	else
		mask |= tx;
	if (rx == UINT32_MAX)
		mask |= xr_ksock_poll(fd, POLLIN | POLLRDHUP | POLLPRI);
	else
		mask |= rx;
	if ((mask & POLLRDHUP) && f->tx_shut)
		mask |= POLLHUP;
	if (xr_unlikely(XR_ZC_COUNT(xr_load_acquire(&f->own->zc.told))))
		mask |= POLLERR;
	/* an error or hang-up of the connection leaves nothing to wait for */
	if (xr_load_relaxed(&f->rx_dead) & (POLLERR | POLLHUP))
		mask |= POLLOUT;
	return mask;
}

static int peek_rx(struct xr_flow *f)
{
	struct xr_shm_rx *rx = &f->rx;
	struct xr_shm_slot *s;
	uint64_t h;

	/* all of it racy reads of positions: a hint, xr_flow_poll decides under the lock */
	if (f->rx_end || xr_load_relaxed(&f->rx_dead) || f->rx_shut || rx->frozen || xr_load_relaxed(&f->rx_look))
		return 1;
	s = &rx->slots[rx->seq & rx->mask];
	h = xr_load_acquire(&s->head);
	if (XR_HEAD_SEQ(h) != rx->seq)
		return (xr_load_relaxed(&rx->dir->consumed) & XR_FROZEN) != 0;
	if (!rx->byte || !(XR_HEAD_FLAGS(h) & XR_SLOT_OPEN))
		return 1;
	if (xr_load_relaxed(&s->ref.len) > rx->byte)
		return 1;
	h = xr_load_acquire(&rx->slots[(rx->seq + 1) & rx->mask].head);
	return XR_HEAD_SEQ(h) == rx->seq + 1 ||
	       (xr_load_relaxed(&rx->dir->consumed) & XR_FROZEN) != 0;
}

static int peek_tx(struct xr_flow *f)
{
	uint64_t c = xr_load_relaxed(&f->tx.dir->consumed);

	if ((c & XR_FROZEN) || f->tx_shut || (xr_flow_peer_state(f) & XR_DIR_CLOSED))
		return 1;
	return XR_CONSUMED_SEQ(c) != f->tx.done || XR_CONSUMED_BYTE(c) != f->tx.part;
}

int xr_flow_peek(struct xr_flow *f, uint32_t mask)
{
	uint32_t path = xr_load_acquire(&f->path);

	/* a call that began on the fabric may end on the kernel socket */
	if (!(path & XR_PATH_FABRIC))
		return xr_ksock_poll(xr_flow_fd(f), mask) != 0;
	/* a child retreats what it inherited before it looks */
	if (f->owner_pid != xr_getpid() && (f->tx_state == XR_TX_RING ||
					    (f->rx_state == XR_RX_RING && !f->rx.sealed)))
		return 1;
	if (xr_unlikely(f->far != NULL) && xr_far_peek(f))
		return 1;
	if (mask & POLLIN) {
		/* also asks for a replay that the peer wants from us */
		if (xr_load_relaxed(&f->tx.dir->arm) & XR_ARM_FROZEN && f->tx_state != XR_TX_TCP)
			return 1;
		if (f->rx_state == XR_RX_RING ? peek_rx(f) :
		    ((f->rx_state == XR_RX_READY && peek_rx(f)) ||
		     xr_ksock_poll(xr_flow_fd(f), POLLIN | POLLRDHUP)))
			return 1;
	}
	if (mask & POLLOUT) {
		if (f->tx_state == XR_TX_RING ? peek_tx(f) :
		    xr_ksock_poll(xr_flow_fd(f), POLLOUT) != 0)
			return 1;
	}
	return 0;
}

/*
 * TCP_USER_TIMEOUT ends a connection whose peer takes nothing of what waits for it.  That is for the
 * kernel to do: it gets the bytes when the window has been shut, and has not moved, between two looks.
 */
#define SHUT_NS		500000000u

static void flow_shut(struct xr_flow *f)
{
	uint64_t consumed = xr_load_relaxed(&f->tx.dir->consumed);
	socklen_t len = sizeof(uint32_t);
	uint32_t ms = 0;
	int shut;

	if (f->owner_pid != xr_getpid() || xr_flow_tx_trylock(f))
		return;
	shut = f->tx_state == XR_TX_RING && !f->tx_shut && !xr_shm_tx_space(&f->tx);
	if (!shut || !f->shut_ns || consumed != f->shut_consumed) {
		f->shut_ns = shut ? xr_now_ns() : 0;
		f->shut_consumed = consumed;
		shut = 0;
	}
	xr_flow_tx_unlock(f);
	if (!shut || xr_now_ns() - f->shut_ns < SHUT_NS)
		return;
	if (!xr_sys5(SYS_getsockopt, xr_flow_fd(f), IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &len) && ms)
		xr_flow_retreat(f, xr_flow_fd(f), XR_REASON_OPTION, 0);
}

#define PROBE_NS	500000000u	/* of one link, for all its flows */

/* Nothing came since the last look: is the peer's process there?  Its link tells, once for all that are on it. */
static void flow_probe(struct xr_flow *f)
{
	uint64_t got = xr_load_relaxed(&f->rx.got), now, then;
	struct xr_shm_link *l;

	if (f->owner_pid != xr_getpid() || xr_xchg(&f->own->probed, got + 1) != got + 1)
		return;
	xr_stats_add(XR_STAT_KEEPALIVE_PROBES, 1);
	if (f->st)
		xr_fetch_add(&f->st->rx.probes, 1);
	l = xr_flow_link_get(f);
	if (!l)
		return;
	now = xr_now_ns();
	then = xr_load_relaxed(&l->probed);
	if (now - then > PROBE_NS && xr_cas(&l->probed, &then, now))
		xr_shm_link_progress(l);
	xr_link_unref(l);
}

int xr_flow_unrung(struct xr_flow *f)
{
	flow_probe(f);
	if (f->tx_state == XR_TX_RING)
		flow_shut(f);
	if (!(f->tx_state == XR_TX_RING && !f->tx.frozen &&
	      (xr_load_relaxed(&f->tx.dir->arm) & XR_ARM_FROZEN)) &&
	    !(f->rx_state == XR_RX_RING && !f->rx.frozen &&
	      (xr_load_relaxed(&f->rx.dir->consumed) & XR_FROZEN)))
		return 0;
	xr_stats_add(XR_STAT_LATE_WAKES, 1);
	return 1;
}

uint32_t xr_flow_kernel_mask(struct xr_flow *f, uint32_t mask)
{
	uint32_t ev = 0;

	/*
	 * POLLIN even when the ring carries the direction: the kernel queue is empty then, so
	 * it means FIN, RST or the replay of a frozen direction.  Once the end of the peer is
	 * known the condition would stay and the sleeper spin.
	 */
	if (f->rx_state == XR_RX_RING && !xr_load_relaxed(&f->rx_dead))
		ev |= f->rx.frozen && !(f->rcvlowat > 1 && mask & POLLIN) ? POLLRDHUP : POLLIN | POLLRDHUP;
	/* own SHUT_RD shows there, for good */
	if (f->far && f->rx_shut)
		ev = 0;
	/*
	 * Elsewhere, and behind a freeze, bytes may lie in the socket: they wake only who waits
	 * for them, since the others would not sleep at all.
	 */
	if (f->rx_state != XR_RX_RING && (mask & POLLIN))
		ev |= POLLIN | POLLRDHUP;
	/*
	 * A writer must hear of the death of a peer that will not read on.  Of one on another host the
	 * module tells: what shows here may be its end of the stream, for good.
	 */
	else if (f->rx_state != XR_RX_RING &&
		 ((f->tx_state == XR_TX_RING && !f->far) || (mask & POLLRDHUP)))
		ev |= POLLRDHUP;
	/* who reads finishes the replay of a writer that is away */
	if ((f->tx_state == XR_TX_REPLAY && !(f->far && xr_load_relaxed(&f->far->tx_lazy))) ||
	    ((mask & POLLOUT) && f->tx_state != XR_TX_RING))
		ev |= POLLOUT;
	return ev;
}

void xr_flow_arm(struct xr_flow *f, uint32_t waiter, uint32_t mask)
{
	if (f->owner_pid != xr_getpid())
		return;
	if ((mask & POLLIN) && !xr_flow_rx_lock(f)) {
		if (f->rx_state != XR_RX_TCP)
			xr_shm_rx_arm(&f->rx, waiter);
		xr_flow_rx_unlock(f);
	}
	if ((mask & POLLOUT) && !xr_flow_tx_lock(f)) {
		if (f->tx_state == XR_TX_RING)
			xr_shm_tx_want_space(&f->tx, waiter);
		xr_flow_tx_unlock(f);
	}
}

/* ---- for display ------------------------------------------------------------- */

static enum xr_carrier tx_carrier(struct xr_flow *f)
{
	return f->tx_state == XR_TX_RING ? xr_flow_fabric(f) : XR_CARRIER_TCP;
}

/* What is still to come over TCP is little, and nobody tells when it has. */
static enum xr_carrier rx_carrier(struct xr_flow *f)
{
	return f->rx_state == XR_RX_RING || f->rx_state == XR_RX_DRAIN ? xr_flow_fabric(f) : XR_CARRIER_TCP;
}

void xr_flow_show_carriers(struct xr_flow *f)
{
	enum xr_carrier tx, rx;

	do {
		tx = tx_carrier(f);
		rx = rx_carrier(f);
		xr_stats_flow_carrier(f->st, tx, rx, (uint32_t)f->link->peer_pid);
		/* another thread may have moved the other direction, and said so before */
	} while (tx != tx_carrier(f) || rx != rx_carrier(f));
	/* the parent may never use it again, nor hear of this */
	if (xr_unlikely(f->owner_pid != xr_getpid()))
		xr_flow_stats_child(f, tx, rx);
}
