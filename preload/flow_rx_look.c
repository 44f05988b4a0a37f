/* SPDX-License-Identifier: BSD-2-Clause */
/* The receive direction of a flow: what there is, and what the kernel socket says of the peer's life. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "flow_rx.h"
#include "log.h"
#include "mem.h"

void xr_flow_blame(struct xr_flow *f, enum xr_reason why)
{
	xr_store_relaxed(&f->reason, (uint16_t)why);
	xr_stats_reason(why);
	xr_stats_flow_reason(f->st, why);
}

/*
 * Nonsense in shared memory is what a broken TCP peer would be: the connection is reset, at once and for
 * both ends.  From here on the kernel socket says all that there is to say.
 */
void xr_flow_liar(struct xr_flow *f, int fd)
{
	/* one that lies about both directions is one liar */
	if (f->reason != XR_REASON_SEGMENT_CORRUPT) {
		xr_warn("peer process %d corrupted its side of a flow", f->link->peer_pid);
		xr_flow_blame(f, XR_REASON_SEGMENT_CORRUPT);
	}
	xr_store_relaxed(&f->upgrade_off, 1);
	xr_ksock_reset(fd);
	xr_flow_kernel_event(f, POLLERR);
}

/* What was good before it has been delivered. */
ssize_t xr_rx_corrupt(struct xr_flow *f, int fd)
{
	socklen_t len = sizeof(int);
	int told;

	if (f->rx_reset)
		return -xr_flow_take_error(f);
	xr_flow_liar(f, fd);
	xr_fetch_or(&f->rx_dead, POLLERR | POLLHUP | POLLRDHUP);
	f->rx_reset = XR_RESET_LIAR;
	/* this call tells of it */
	xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &told, &len);
	return -ECONNRESET;
}

int xr_flow_fin_is_death(struct xr_flow *f)
{
	uint32_t state = xr_flow_peer_state(f);

	if (state & XR_DIR_CLOSED)
		return 0;
	/* its direction is on the fabric, open and not frozen: only its death puts a FIN here */
	if (!(state & XR_DIR_ENDED) && !f->rx_shut && f->rx_state == XR_RX_RING &&
	    !(xr_load_acquire(&f->rx.dir->consumed) & XR_FROZEN))
		return 1;
	/*
	 * A process that is gone has hung up the control connection as well; so has one that closed
	 * since we looked, and had said so before.
	 */
	return xr_shm_link_progress(f->link) != 0 && !(xr_flow_peer_state(f) & XR_DIR_CLOSED);
}

/*
 * Nobody at the other end will do anything for this flow any more.  A FIN comes from one who has
 * closed or died, as long as bytes of his lie here: none goes out before they are read.
 */
int xr_flow_alone(struct xr_flow *f, int fd)
{
	return (xr_flow_peer_state(f) & XR_DIR_CLOSED) || xr_shm_link_progress(f->link) != 0 ||
	       (f->rx_state == XR_RX_RING && xr_ksock_poll(fd, POLLRDHUP) & (POLLRDHUP | POLLERR));
}

/* Looks at the kernel socket; remembers what it says about the peer's life. */
void xr_rx_look_kernel(struct xr_flow *f, int fd)
{
	uint32_t ev;

	f->rx_checked = xr_cycles();
	xr_store_relaxed(&f->rx_look, 0);
	ev = xr_ksock_poll(fd, POLLIN | POLLRDHUP);
	if (xr_unlikely(f->far != NULL) && xr_far_rx_event(f, fd, ev))
		return;
	/*
	 * Own SHUT_RD also shows as RDHUP; the peer's FIN cannot be told from it then, and
	 * the end of what is readable is all the program can see either way.
	 */
	xr_fetch_or(&f->rx_dead, ev & (POLLRDHUP | POLLHUP | POLLERR));
	if (f->far || !(ev & POLLRDHUP) || (ev & POLLERR) || f->rx_reset || f->tx_state != XR_TX_RING ||
	    !xr_flow_fin_is_death(f))
		return;
	/* with unread bytes in its socket it had sent an RST */
	if (!xr_shm_tx_all_consumed(&f->tx)) {
		f->rx_reset = XR_RESET_DEAD;
		xr_fetch_or(&f->rx_dead, POLLERR | POLLHUP);
		xr_store_relaxed(&f->reason, XR_REASON_PEER_DIED);
		xr_stats_reason(XR_REASON_PEER_DIED);
		xr_store_release(&f->err, ECONNRESET);
	}
}

/* Closed: an RST or FIN is in the kernel socket, or on its way there. */
int xr_rx_reset_due(struct xr_flow *f)
{
	/* RDHUP may be the program's own SHUT_RD */
	if (xr_load_relaxed(&f->rx_dead) & ~(f->rx_shut ? (uint32_t)POLLRDHUP : 0))
		return 0;
	return (xr_flow_peer_state(f) & XR_DIR_CLOSED) != 0;
}

void xr_flow_kernel_event(struct xr_flow *f, uint32_t revents)
{
	(void)revents;
	xr_store_relaxed(&f->rx_look, 1);
}

void xr_flow_rx_look(struct xr_flow *f, int fd)
{
	if (xr_flow_rx_lock(f))
		return;
	if (f->rx_state == XR_RX_RING)
		xr_rx_look_kernel(f, fd);
	else
		xr_store_relaxed(&f->rx_look, 0);	/* reads ask the socket anyway */
	xr_flow_rx_unlock(f);
}

/* ---- what there is -------------------------------------------------------- */

/* What a read would find, in all places; or -errno. */
long xr_rx_avail(struct xr_flow *f, int fd)
{
	uint32_t state = f->rx_state;
	long ring = 0, n;
	int inq = 0;

	if (state == XR_RX_RING || state == XR_RX_DRAIN) {
		xr_shm_rx_is_frozen(&f->rx);
		ring = (long)xr_shm_rx_readable(&f->rx);
		if (state == XR_RX_RING && xr_likely(!f->rx.frozen))
			return ring;
	}
	n = xr_sys3(SYS_ioctl, fd, 0x541b /* FIONREAD */, &inq);
	if (n)
		return n;
	if (state != XR_RX_RING && state != XR_RX_DRAIN && state != XR_RX_SKIP)
		return inq;
	/* a frame, and what was read already, do not count */
	if (f->far && (state != XR_RX_SKIP || f->far->rx_due))
		return ring + (state != XR_RX_DRAIN ? 0 :
			       (uint64_t)inq < xr_flow_drain_left(f) ? inq : (long)xr_flow_drain_left(f));
	/* a replay: the same bytes once more, behind those that were read here */
	if (f->rx.frozen && !f->rx.sealed) {
		n = (uint64_t)inq > f->rx.late ? inq - (long)f->rx.late : 0;
		ring += (long)xr_flow_drain_left(f);
		return n > ring ? n : ring;
	}
	return inq + ring;
}

/* Has the sender left TCP?  Nonsense is for the next call to tell of. */
static void rx_begin(struct xr_flow *f, int fd)
{
	int r;

	if (f->rx_state != XR_RX_READY)
		return;
	r = xr_rx_try_start(f, fd);
	if (r < 0)
		xr_store_release(&f->err, (uint32_t)-r);
}

long xr_rx_unread(struct xr_flow *f, int fd)
{
	rx_begin(f, fd);
	return xr_rx_avail(f, fd);
}

long xr_flow_inq(struct xr_flow *f, int fd)
{
	long n;

	if (xr_flow_rx_lock(f))
		return -EAGAIN;
	n = xr_rx_unread(f, fd);
	xr_flow_rx_unlock(f);
	return n;
}

/*
 * A read that ended short, in the state `from`: may the next source have more at hand?  TCP
 * gives all there is in one call.  An error that waits is for the call after this one.
 */
int xr_rx_more(struct xr_flow *f, int fd, uint32_t from)
{
	if (xr_likely(from == XR_RX_RING)) {
		if (xr_likely(!xr_shm_rx_is_frozen(&f->rx)))
			return 0;
	} else if (from != XR_RX_DRAIN && from == f->rx_state) {
		return 0;
	}
	if (f->rx_reset)
		return 0;
	return !(xr_ksock_poll(fd, 0) & POLLERR) || xr_rx_avail(f, fd) > 0;
}

int xr_rx_is_marked(int fd)
{
	int mark = 0;

	return !xr_sys3(SYS_ioctl, fd, 0x8905 /* SIOCATMARK */, &mark) && mark;
}

int xr_rx_at_mark(struct xr_flow *f, int fd)
{
	uint32_t state = f->rx_state;
	int r;

	if ((state == XR_RX_RING || state == XR_RX_DRAIN) && !xr_shm_rx_is_frozen(&f->rx))
		return 0;
	/* before it comes once more what was read here */
	r = xr_rx_drop_late(f, fd);
	if (r) {
		if (r != -EAGAIN && r != -ENODATA)
			xr_store_release(&f->err, (uint32_t)-r);
		return 0;
	}
	return xr_rx_is_marked(fd);
}

int xr_flow_at_mark(struct xr_flow *f, int fd)
{
	int r;

	if (xr_flow_rx_lock(f))
		return 0;
	rx_begin(f, fd);
	r = xr_rx_at_mark(f, fd);
	xr_flow_rx_unlock(f);
	return r;
}

/* END lies in the ring, behind what is unread; of a direction that was frozen, before that. */
static int rx_has_end(struct xr_flow *f)
{
	uint32_t seq = f->rx.seq, byte = f->rx.byte;
	struct xr_view v;

	while (xr_shm_rx_peek_from(&f->rx, &seq, &byte, &v) == 1) {
		if (v.op == XR_OP_END)
			return 1;
		byte += v.len;
		if (!(v.flags & XR_SLOT_OPEN)) {
			seq++;
			byte = 0;
		}
	}
	return 0;
}

int xr_rx_late_ends(struct xr_flow *f)
{
	/* the block may be another flow's by now: then all is in the socket */
	return !f->far && f->rx_state == XR_RX_SKIP && f->rx.replayed && (xr_flow_peer_state(f) & XR_DIR_ENDED) &&
	       xr_load_relaxed(&f->rx.dir->gen) == f->peer_dir_gen &&
	       /* after that look: its sender may have gone on for a moment in a ring that was frozen here */
	       xr_shm_rx_is_frozen(&f->rx);
}

/* Nothing comes any more behind what can be read now. */
int xr_rx_ended(struct xr_flow *f)
{
	int r;

	if (f->rx_shut || f->rx_end || xr_load_relaxed(&f->rx_dead))
		return 1;
	if (f->rx_state == XR_RX_RING && !f->rx.frozen)
		return (xr_flow_peer_state(f) & (XR_DIR_ENDED | XR_DIR_CLOSED)) != 0;
	/* what was published before a freeze is read here, and the kernel has no FIN of it yet */
	if ((xr_flow_peer_state(f) & XR_DIR_ENDED) && f->rx_state != XR_RX_TCP &&
	    !xr_flow_rx_lock(f)) {
		r = rx_has_end(f);
		xr_flow_rx_unlock(f);
		if (r)
			return 1;
	}
	return (xr_ksock_poll(xr_flow_fd(f), POLLRDHUP) & (POLLRDHUP | POLLERR | POLLHUP)) != 0;
}

/* poll(2) bits of the receive direction; rx_lock held. */
uint32_t xr_flow_rx_poll(struct xr_flow *f, int fd)
{
	uint32_t mask = 0;
	struct xr_view v;
	int r;

	rx_begin(f, fd);
	if (xr_flow_lowat_split(f))
		xr_flow_lowat(f, fd);
	switch (xr_load_relaxed(&f->rx_state)) {
	case XR_RX_RING:
		break;
	case XR_RX_SKIP:
		r = xr_flow_rx_skip(f, fd);
		if (r == -EAGAIN)
			return xr_ksock_poll(fd, POLLRDHUP) |
			       ((f->far && f->rx_shut) || xr_rx_late_ends(f) ? POLLIN | POLLRDHUP : 0);
		if (r < 0 && r != -ENODATA) {
			/* taken on the way: it shows, and the next call tells of it */
			xr_store_release(&f->err, (uint32_t)-r);
			return xr_ksock_poll(fd, POLLIN | POLLRDHUP) | POLLERR;
		}
		/* fall through */
	case XR_RX_TCP:
		if (!(xr_load_acquire(&f->path) & XR_PATH_RX))
			return UINT32_MAX;
		/* fall through */
	default:
		/* this is the look: else who busy-waits finds that one is due, for ever */
		xr_store_relaxed(&f->rx_look, 0);
		mask = xr_ksock_poll(fd, POLLIN | POLLRDHUP | POLLPRI);
		/* SO_RCVLOWAT of what lies in two places */
		if (!(mask & POLLIN) && f->rx_state == XR_RX_DRAIN && f->rcvlowat > 1 &&
		    xr_rx_avail(f, fd) >= (long)f->rcvlowat)
			mask |= POLLIN;
		if (f->rx_state == XR_RX_DRAIN && (xr_flow_peer_state(f) & XR_DIR_ENDED))
			mask |= POLLRDHUP;
		/* the peer wrote nonsense where START should be */
		if (xr_unlikely(f->rx_reset)) {
			mask |= POLLIN | xr_load_relaxed(&f->rx_dead);
			if (!xr_load_relaxed(&f->err))
				mask &= ~(uint32_t)POLLERR;
		}
		return mask;
	}
	if (f->rx_end || (xr_flow_peer_state(f) & XR_DIR_ENDED))
		mask |= POLLRDHUP;
	/* an RST shows at once, whatever is still to be read */
	if (!(xr_load_relaxed(&f->rx_dead) & POLLERR) && (xr_load_relaxed(&f->rx_look) || xr_rx_reset_due(f) ||
					xr_cycles() - f->rx_checked > XR_RX_CHECK_CYCLES))
		xr_rx_look_kernel(f, fd);
	mask |= xr_load_relaxed(&f->rx_dead);
	/* an error shows until somebody has been told */
	if (xr_unlikely(mask & POLLERR) && !xr_load_relaxed(&f->err) &&
	    !(xr_ksock_poll(fd, 0) & POLLERR))
		mask &= ~(uint32_t)POLLERR;
	if (f->rx_shut)
		mask |= POLLRDHUP;
	/* what follows a freeze comes over the socket, and so does the end */
	if (xr_unlikely(xr_shm_rx_is_frozen(&f->rx) || f->rx.frozen))
		mask |= xr_ksock_poll(fd, POLLRDHUP);
	v.op = XR_OP_END;
	r = f->rx_end ? 1 : xr_shm_rx_peek(&f->rx, &v);
	if (r == 0 && xr_shm_rx_is_frozen(&f->rx))
		r = -ESTALE;
	if (r == -ESTALE) {
		xr_rx_to_tcp(f);
		return xr_flow_rx_poll(f, fd);
	}
	if (r == 1 && f->rcvlowat > 1 && v.op == XR_OP_SEND && !mask &&
	    xr_rx_avail(f, fd) < (long)f->rcvlowat)
		return mask;
	if (r)
		return mask | POLLIN;
	if (xr_load_relaxed(&f->rx_dead)) {
		if (xr_shm_rx_is_frozen(&f->rx)) {
			xr_rx_to_tcp(f);
			return xr_flow_rx_poll(f, fd);
		}
		/* final: whatever is in the ring is readable, or the end is */
		return mask | POLLIN | POLLRDHUP;
	}
	if (f->rx_shut)
		mask |= POLLIN | POLLRDHUP;
	return mask;
}
