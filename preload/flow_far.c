/* SPDX-License-Identifier: BSD-2-Clause */
/* Frames of a flow to another host: see flow_far.h. */
#include "flow_far.h"
#include <asm/ioctls.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "flow_rx.h"
#include "log.h"
#include "mem.h"

#define FAR_PART_NS	200000000u	/* a frame is written by one call into an empty socket */
#define FAR_LAST_WORD	5000000		/* ns: the frame of a process that ends may be a little behind */

static void put_be(uint8_t *p, uint32_t n, uint64_t v)
{
	while (n) {
		p[--n] = (uint8_t)v;
		v >>= 8;
	}
}

static uint64_t get_be(const uint8_t *p, uint32_t n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | *p++;
	return v;
}

void xr_far_attach(struct xr_flow *f, const struct xr_bridge_answer *a)
{
	struct xr_flow_far *far = &xr_slab.far[f->index];
	const uint8_t *host = a->secret, *caller = a->secret + 16;

	memset(far, 0, sizeof(*far));
	memcpy(far->tx_nonce, f->role == XR_FLOW_CONNECT ? host : caller, 16);
	memcpy(far->rx_nonce, f->role == XR_FLOW_CONNECT ? caller : host, 16);
	far->tx_kind = XR_FRAME_RETREAT;
	f->far = far;
	xr_stats_flow_rdma(f->st, a->device, a->gid, a->qpn, a->peer_qpn);
}

/* ---- send direction ---------------------------------------------------------- */

XR_FORK_DATA _Atomic uint32_t xr_far_owing;

int xr_far_owes(const struct xr_flow *f)
{
	return f->far && f->tx_state == XR_TX_REPLAY && !xr_load_relaxed(&f->far->tx_lazy);
}

/* Nobody reads at the other end: what it had not consumed gets the answer that TCP gives, if there is any. */
static void tx_to_nobody(struct xr_flow *f)
{
	f->far->tx_left = 0;
	f->far->tx_framed = 0;
	if ((uint32_t)f->tx.sent == f->far->rx_consumed)
		xr_shm_tx_replayed(&f->tx, xr_shm_tx_owed(&f->tx));
}

void xr_far_tx_frozen(struct xr_flow *f)
{
	struct xr_flow_far *far = f->far;

	far->tx_left = 0;
	far->tx_framed = 0;
	if (far->rx_closed) {
		tx_to_nobody(f);
		return;
	}
	/* slot 1 is START: as far as this end can know the peer still reads the stream from there */
	if (f->tx.replay_seq == 1)
		return;
	memset(&far->tx_frame, 0, sizeof(far->tx_frame));
	memcpy(far->tx_frame.nonce, far->tx_nonce, sizeof(far->tx_nonce));
	put_be(far->tx_frame.offset, 8, f->tx.sent - xr_shm_tx_owed(&f->tx));
	far->tx_frame.kind = far->tx_kind;
	/* racy where another thread reads: then the program that closes does not care */
	put_be(far->tx_frame.consumed, 4, xr_load_relaxed(&f->rx.got));
	far->tx_left = XR_FRAME_LEN;
	far->tx_framed = XR_FRAME_LEN;
}

uint32_t xr_far_tx_left(struct xr_flow *f, uint32_t n)
{
	struct xr_flow_far *far = f->far;
	uint32_t frame = n < far->tx_framed ? n : far->tx_framed;

	far->tx_left = (uint8_t)(far->tx_framed - frame);
	if (!n && far->rx_closed)
		tx_to_nobody(f);
	return n - frame;
}

int xr_far_tx_unused(struct xr_flow *f)
{
	if (!f->far || f->tx_state != XR_TX_TCP || f->tx.frozen || f->owner_pid != xr_getpid())
		return 0;
	xr_shm_tx_freeze(&f->tx);
	return 1;
}

void xr_far_tx_kind(struct xr_flow *f, enum xr_frame_kind kind)
{
	struct xr_flow_far *far = f->far;

	far->tx_kind = (uint8_t)kind;
	if (far->tx_left == XR_FRAME_LEN)
		far->tx_frame.kind = (uint8_t)kind;
	xr_store_relaxed(&far->tx_lazy, 0);
}

int xr_far_tx_push(struct xr_flow *f, int fd)
{
	struct xr_flow_far *far = f->far;

	if (far->rx_closed && far->tx_left == XR_FRAME_LEN)
		tx_to_nobody(f);
	while (far->tx_left) {
		struct iovec iov = { (uint8_t *)&far->tx_frame + XR_FRAME_LEN - far->tx_left, far->tx_left };
		ssize_t r = xr_ksock_send(fd, &iov, 1, 0);

		if (r < 0)
			return (int)r;
		far->tx_left = (uint8_t)(far->tx_left - r);
		/* the kernel counts it, the program must not see that */
		atomic_fetch_add_explicit(&f->tcp_tx, (uint64_t)r, memory_order_relaxed);
		f->moved_tx -= (uint64_t)r;
		xr_stats_tx_twice(f->st, (uint64_t)r);
	}
	return 0;
}

/* ---- receive direction ------------------------------------------------------- */

enum { FRAME_RAW, FRAME_PART, FRAME_WHOLE };

/* What the first n bytes on the socket are: the nonce is known to nobody else, and in no program's data. */
static int frame_look(struct xr_flow *f, const struct xr_frame *m, size_t n)
{
	struct xr_flow_far *far = f->far;

	if (memcmp(m->nonce, far->rx_nonce, n < 16 ? n : 16))
		return FRAME_RAW;
	if (n == XR_FRAME_LEN)
		return FRAME_WHOLE;
	/* bytes that begin like it by chance: only before anything came over the fabric is that possible at all */
	if (!far->rx_part)
		far->rx_part = xr_now_ns();
	if (n < 16 && !xr_load_relaxed(&f->rx.got) && xr_now_ns() - far->rx_part > FAR_PART_NS)
		return FRAME_RAW;
	return FRAME_PART;
}

/* The first bytes that are there; without any, a look would take an error that is. */
static ssize_t frame_here(int fd, struct xr_frame *m)
{
	struct iovec iov = { m, sizeof(*m) };
	int inq = 0;

	if (xr_sys3(SYS_ioctl, fd, FIONREAD, &inq) || inq <= 0)
		return 0;
	return xr_ksock_recv(fd, &iov, 1, MSG_PEEK);
}

static void frame_heed(struct xr_flow *f, const struct xr_frame *m)
{
	struct xr_flow_far *far = f->far;

	if (m->kind == XR_FRAME_CLOSE && !far->rx_closed) {
		far->rx_consumed = (uint32_t)get_be(m->consumed, 4);
		far->rx_closed = 1;
	}
	/* release: pairs with xr_far_look */
	if (m->kind != XR_FRAME_SHUT)
		xr_store_release(&far->answer, 1);
}

/* 1: the n bytes of it are all that ever comes: its sender died at it. */
static int frame_cut(struct xr_flow *f, int fd, ssize_t n)
{
	struct xr_frame m;

	/* bytes that are no frame end as a stream may; own SHUT_RD shows as RDHUP, too */
	if ((n < (ssize_t)sizeof(m.nonce) && !xr_load_relaxed(&f->rx.got)) || f->rx_shut)
		return 0;
	/* what came before the FIN is there when that shows */
	return xr_ksock_poll(fd, POLLRDHUP) & (POLLERR | POLLRDHUP) && frame_here(fd, &m) == n;
}

static void frame_drop(struct xr_flow *f, int fd)
{
	ssize_t r = xr_sys6(SYS_recvfrom, fd, NULL, XR_FRAME_LEN, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);

	if (r <= 0)
		return;
	atomic_fetch_add_explicit(&f->tcp_rx, (uint64_t)r, memory_order_relaxed);
	f->moved_rx -= (uint64_t)r;
	xr_stats_rx_twice(f->st, (uint64_t)r);
}

/*
 * All that is unread comes over the socket, behind the frame: who reads through the hooks can drain the ring first,
 * so as not to wait for it, and whoever does not need not have it.
 */
int xr_far_rx_retreat(struct xr_flow *f, int how)
{
	int drain = how == XR_RETREAT_SEAL || how == XR_RETREAT_EITHER || f->rx_state == XR_RX_DRAIN;
	int froze = !f->rx.frozen;

	if (f->rx_state == XR_RX_SKIP)
		return 0;
	f->far->rx_due = 1;
	if (drain) {
		/* what is to come over TCP before the ring comes before the frame, too */
		if (!xr_shm_rx_seal(&f->rx) && xr_shm_rx_is_frozen(&f->rx) && f->rx_state != XR_RX_DRAIN)
			xr_rx_to_tcp(f);
		return froze;
	}
	/* the sender never goes on behind a seal: it can always be moved back */
	xr_shm_rx_freeze(&f->rx);
	xr_rx_to_tcp(f);
	return froze;
}

/*
 * No byte was there: an error stays where it is, for the program to take.  1: there are some now, which came before
 * the end that shows.
 */
static int frame_missing(struct xr_flow *f, int fd)
{
	uint32_t ev = xr_ksock_poll(fd, POLLRDHUP);
	struct xr_frame m;

	if (!(ev & (POLLERR | POLLRDHUP)) || (f->rx_shut && !f->tx_shut && !(ev & POLLERR)))
		return -EAGAIN;
	/* a frame, and the FIN behind it, may have come since the look that found none */
	if (frame_here(fd, &m) > 0)
		return 1;
	f->far->rx_due = 0;
	if ((ev & POLLERR) || f->rx_shut || !xr_load_relaxed(&f->rx.got) || (xr_load_relaxed(&f->rx_dead) & POLLERR))
		return 0;
	/* a connection ends by one error */
	if (xr_load_relaxed(&f->far->tx_told))
		return 0;
	/* its sender is gone, and with it what was to follow */
	xr_store_relaxed(&f->reason, XR_REASON_PEER_DIED);
	xr_stats_reason(XR_REASON_PEER_DIED);
	xr_store_release(&f->err, ECONNRESET);
	return -ENODATA;
}

/* Not what a peer can mean.  Who looks may have nobody to tell: the socket says it to whoever reads next. */
static int frame_lies(struct xr_flow *f, int fd)
{
	xr_flow_liar(f, fd);
	f->far->rx_due = 0;
	f->rx.late = 0;
	return 0;
}

int xr_far_rx_take(struct xr_flow *f, int fd)
{
	struct xr_flow_far *far = f->far;
	struct xr_frame m;
	uint64_t offset;
	ssize_t n;
	int r;

	if (!far->rx_due)
		return 0;
	/* START was not taken: the stream has gone on where it was */
	if (f->rx.seq == 1) {
		far->rx_due = 0;
		return 0;
	}
	n = frame_here(fd, &m);
	if (n <= 0) {
		r = frame_missing(f, fd);
		if (r != 1)
			return r;
		/* nothing follows an end: this look finds the same */
		n = frame_here(fd, &m);
		if (n <= 0)
			return -EAGAIN;
	}
	switch (frame_look(f, &m, (size_t)n)) {
	case FRAME_PART:
		if (!frame_cut(f, fd, n))
			return -EAGAIN;
		frame_drop(f, fd);
		r = frame_missing(f, fd);
		return r == 1 ? -EAGAIN : r;
	case FRAME_RAW:
		if (xr_load_relaxed(&f->rx.got))
			return frame_lies(f, fd);
		far->rx_due = 0;
		return 0;
	}
	offset = get_be(m.offset, 8);
	if (offset > xr_load_relaxed(&f->rx.got) || m.kind < XR_FRAME_RETREAT || m.kind > XR_FRAME_CLOSE)
		return frame_lies(f, fd);
	frame_heed(f, &m);
	/* in this order: xr_far_rx_left finds what it says, and whether it was taken */
	f->rx.late_next = xr_load_relaxed(&f->rx.got) - offset;
	xr_then();
	f->rx.late = f->rx.late_next;
	far->rx_at = xr_load_relaxed(&f->tcp_rx);
	xr_then();
	far->rx_due = 2;
	xr_then();
	frame_drop(f, fd);
	xr_then();
	far->rx_due = 0;
	return 0;
}

void xr_far_rx_left(struct xr_flow *f, uint64_t read)
{
	struct xr_flow_far *far = f->far;

	if (far->rx_due != 2)
		return;
	if (read - far->rx_at < XR_FRAME_LEN) {
		far->rx_due = 1;
		return;
	}
	xr_store_relaxed(&f->tcp_rx, read);
	far->rx_due = 0;
}

int xr_far_rx_event(struct xr_flow *f, int fd, uint32_t ev)
{
	struct xr_frame m;
	ssize_t n;

	if (f->rx.frozen)
		return 0;
	n = ev & POLLIN ? frame_here(fd, &m) : 0;
	if (n <= 0)
		/* bytes that were sent before may be on their way still: the module says when not */
		return !(ev & POLLERR);
	switch (frame_look(f, &m, (size_t)n)) {
	case FRAME_PART:
		if (!frame_cut(f, fd, n))
			return 1;
		xr_shm_rx_seal(&f->rx);
		f->far->rx_due = 1;
		xr_store_release(&f->far->answer, 1);
		return 1;
	case FRAME_RAW:
		if (xr_load_relaxed(&f->rx.got) || xr_shm_rx_readable(&f->rx)) {
			xr_store_release(&f->err, (uint32_t)-xr_rx_corrupt(f, fd));
			return 1;
		}
		xr_shm_rx_seal(&f->rx);
		xr_store_release(&f->far->answer, 1);
		return 1;
	}
	xr_shm_rx_seal(&f->rx);
	f->far->rx_due = 1;
	frame_heed(f, &m);
	return 1;
}

void xr_far_rx_close(struct xr_flow *f, int fd)
{
	struct xr_frame m;
	ssize_t n;

	/* behind bytes of the stream it cannot be reached, and those are unread */
	if (f->rx_state == XR_RX_DRAIN || f->rx.seq == 1)
		return;
	n = frame_here(fd, &m);
	if (n == XR_FRAME_LEN && frame_look(f, &m, (size_t)n) == FRAME_WHOLE) {
		frame_heed(f, &m);
		frame_drop(f, fd);
	}
	f->far->rx_due = 0;
}

/* ---- both ---------------------------------------------------------------------- */

static void look_at_socket(struct xr_flow *f, int fd)
{
	if (xr_flow_rx_lock(f))
		return;
	if (f->rx_state == XR_RX_RING)
		xr_far_rx_event(f, fd, xr_ksock_poll(fd, POLLIN | POLLRDHUP));
	xr_flow_rx_unlock(f);
}

/* Why it leaves the fabric: what the peer says when this end has begun to is an answer, and changes nothing. */
static enum xr_reason far_why(const struct xr_flow *f, enum xr_reason why)
{
	uint16_t mine = xr_load_relaxed(&f->reason);

	return f->tx.frozen && mine != XR_REASON_NONE ? (enum xr_reason)mine : why;
}

/* The channel is gone, or the peer wants to be told: back to TCP. */
static void far_lost(struct xr_flow *f, int fd, uint32_t said)
{
	struct xr_flow_far *far = f->far;
	uint64_t owed = 0;
	int idle = 0;

	look_at_socket(f, fd);
	if (xr_load_acquire(&far->answer))
		return;
	if (xr_ksock_poll(fd, 0) & POLLERR) {
		/* the socket says how it ended */
		xr_flow_kernel_event(f, POLLERR);
		return;
	}
	if (!xr_flow_tx_lock(f)) {
		owed = f->tx_state == XR_TX_RING ? xr_shm_tx_unconsumed(&f->tx) : 0;
		idle = f->tx_state != XR_TX_REPLAY && !owed;
		xr_flow_tx_unlock(f);
	}
	if ((said & XR_DIR_LOST) && owed) {
		/* a process that ends says what it has read before its channel goes, but another way */
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct timespec ts = { 0, FAR_LAST_WORD };

		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		look_at_socket(f, fd);
		if (xr_load_acquire(&far->answer))
			return;
	}
	/*
	 * With nothing to send the frame can wait: to a socket that is closed by now it would do harm.  What is on its
	 * way already goes on.
	 */
	if ((said & XR_DIR_LOST) && idle)
		xr_store_relaxed(&far->tx_lazy, 1);
	xr_flow_retreat(f, fd, far_why(f, said & XR_DIR_LOST ? XR_REASON_FABRIC_LOST : XR_REASON_RETREAT_REQUESTED), 0);
}

void xr_far_look(struct xr_flow *f, int fd)
{
	struct xr_flow_far *far = f->far;
	uint32_t said;

	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || !f->link)
		return;
	said = xr_flow_peer_state(f);
	if (xr_unlikely(said & (XR_DIR_LOST | XR_DIR_LEFT)) && !xr_load_relaxed(&far->lost) && !xr_flow_up(f)) {
		xr_store_relaxed(&far->lost, 1);
		far_lost(f, fd, said);
	}
	/* acquire: what the frame said is there */
	if (xr_unlikely(xr_load_acquire(&far->answer))) {
		xr_store_relaxed(&far->answer, 0);
		xr_store_relaxed(&far->tx_lazy, 0);
		xr_flow_retreat(f, fd, far_why(f, far->rx_closed ? XR_REASON_CLOSED : XR_REASON_RETREAT_REQUESTED), 0);
	}
}

int xr_far_peek(const struct xr_flow *f)
{
	return xr_load_relaxed(&f->far->answer) ||
	       ((xr_load_acquire(&f->rx.dir->state) & (XR_DIR_LOST | XR_DIR_LEFT)) && !xr_load_relaxed(&f->far->lost));
}
