/* SPDX-License-Identifier: BSD-2-Clause */
/* The send direction of a flow: into the ring, and back to the kernel by replay. */
#include <alloca.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include "control.h"
#include "defer.h"
#include "fdtab.h"
#include "flow.h"
#include "hold.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "zerocopy.h"
#include "tune.h"

/*
 * A dead peer does not read, and TCP would answer the second write to it with EPIPE:
 * a writer looks at the kernel socket this often, whatever it writes.
 */
#define TX_CHECK_CYCLES		100000000u	/* ~50 ms */
#define TX_STAMP_CYCLES		1000000u	/* ~0.5 ms */

#define TX_NONE			((ssize_t)-EAGAIN)

/* r: what the lock has said. */
static __attribute__((noinline, cold)) int tx_enter_late(struct xr_flow *f, int r)
{
	if (r > 0) {
		xr_flow_tx_left(f);
		return 0;
	}
	xr_defer_end();
	return r;
}

/*
 * No handler comes in between: one that leaves by longjmp would leave the lock, and one that sends would find it
 * taken.  From here on nor does one fork, so that what xr_flow_only() says holds.
 */
static inline int tx_enter(struct xr_flow *f)
{
	int r;

	xr_defer_begin();
	r = xr_flow_only(f) ? xr_lock_alone(&f->tx_lock) : xr_lock_or_left(&f->tx_lock);
	if (xr_unlikely(r))
		r = tx_enter_late(f, r);
	return r;
}

void xr_flow_tell(struct xr_flow *f, uint32_t waiter)
{
	int r;

	if (!waiter)
		return;
	r = xr_shm_link_notify(f->link, waiter, f->peer_cookie);
	if (r > 0) {
		xr_stats_add(XR_STAT_DOORBELLS_TX, 1);
	} else if (r < 0) {
		/* no bell: bytes on the kernel socket wake the peer */
		xr_info("no doorbell towards process %d, a flow goes back to TCP", f->link->peer_pid);
		if (!xr_flow_tx_lock(f)) {
			if (f->tx_state == XR_TX_RING) {
				xr_flow_tx_start_replay(f, XR_REASON_LIMIT_FDS);
				xr_flow_tx_push_replay(f, xr_flow_fd(f));
			}
			xr_flow_tx_unlock(f);
		}
	}
}

void xr_flow_tell_sender(struct xr_flow *f)
{
	uint64_t a = xr_load_relaxed(&f->rx.dir->tx_arm);

	if (XR_TXARM_WAITER(a))
		xr_shm_link_notify(f->link, XR_TXARM_WAITER(a), f->peer_cookie);
}

void xr_flow_tx_care(struct xr_flow *f, int fd)
{
	uint32_t st = f->tx_state;

	if (xr_unlikely(xr_flow_up(f) != NULL)) {
		xr_upgrade_step(f, fd);
		st = f->tx_state;
	}
	if (xr_likely(st == XR_TX_RING &&
		      !(xr_load_relaxed(&f->tx.dir->arm) & XR_ARM_FROZEN) && !f->tx.frozen))
		return;
	if (st == XR_TX_TCP || tx_enter(f))
		return;
	fd = xr_hold_fd(f, fd);
	if (f->tx_state == XR_TX_RING && xr_shm_tx_is_frozen(&f->tx))
		xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
	if (f->tx_state == XR_TX_REPLAY)
		xr_flow_tx_push_replay(f, fd);
	xr_flow_tx_unlock(f);
}

/*
 * Sends that follow each other on the same flow, each within a microsecond of the one before, are a stream.  Its clock
 * is the kernel's tick, which costs half as much, and is good enough for what looks at the time.  Who reads in between
 * does not stream, however fast the answers come: the other end is to have each message at once.
 */
#define TX_STREAM_CYCLES	2000u
#define TX_STREAM_SENDS		16u

static __thread struct {
	const struct xr_flow *flow;
	uint64_t tick;
	uint32_t sends;
} tx_stream __attribute__((tls_model("initial-exec")));

void xr_flow_tx_answered(void)
{
	tx_stream.sends = 0;
}

static inline void tx_clock(struct xr_flow *f)
{
	uint64_t then = f->tx.stamp, tick;

	if (xr_likely(tx_stream.flow != f)) {
		tx_stream.flow = f;
		tx_stream.sends = 0;
	} else if (tx_stream.sends == TX_STREAM_SENDS) {
		tick = xr_now_tick();
		if (xr_likely(tick == tx_stream.tick && f->tx.stream))
			return;
		tx_stream.tick = tick;
	}
	f->tx.stamp = xr_cycles();
	/* signed: the cycle counter of another core, which the last send may have read, may be a little ahead */
	if ((int64_t)(f->tx.stamp - then) > (int64_t)TX_STREAM_CYCLES)
		tx_stream.sends = 0;
	else if (tx_stream.sends < TX_STREAM_SENDS)
		tx_stream.sends++;
	f->tx.stream = tx_stream.sends == TX_STREAM_SENDS;
}

/*
 * 1 when the peer's end is gone for good and the kernel shall answer as it does.  With
 * END from the peer that is CLOSED; without, what the socket says.
 */
static int tx_peer_gone(struct xr_flow *f, int fd, uint64_t now)
{
	uint32_t ev;

	if (xr_unlikely(xr_flow_peer_state(f) & XR_DIR_CLOSED))
		return 1;
	/*
	 * A peer on another host does not say so there, nor does an administrator who destroyed an end: what
	 * the socket has shown, perhaps to a read that was told, has to do.
	 */
	if (xr_unlikely(xr_load_relaxed(&f->rx_dead) & (POLLERR | POLLHUP)))
		return 1;
	if (xr_likely(now - f->tx_checked < TX_CHECK_CYCLES && !xr_load_relaxed(&f->rx_look)))
		return 0;
	f->tx_checked = now;
	xr_flow_rx_look(f, fd);
	ev = xr_ksock_poll(fd, POLLRDHUP);
	if (ev & (POLLERR | POLLHUP))
		return 1;
	return (ev & POLLRDHUP) && xr_flow_fin_is_death(f);
}

/* What both ends' TCP_INFO says of the last write.  The peer reads this line after each read: not often. */
static void tx_stamp(struct xr_flow *f, uint64_t now)
{
	_Atomic uint64_t *at = &f->tx.dir->sent_at;

	if (xr_unlikely(now - xr_load_relaxed(at) > TX_STAMP_CYCLES))
		xr_store_relaxed(at, now);
}

/* What xr-stat shows: as of the last send, consumption since then is not in it. */
static void tx_gauges(struct xr_flow *f)
{
	uint32_t used = f->tx.head - f->tx.done;

	if (!f->st)
		return;
	xr_stats_gauge(&f->st->tx.queue, f->tx.sent - f->tx.acked - f->tx.part);
	xr_stats_gauge32(&f->st->tx.credits, f->tx.mask + 1 > used ? f->tx.mask + 1 - used : 0);
}

/* How the bytes of a send went, where it was not within the slot itself. */
static __attribute__((noinline)) void tx_count_way(struct xr_flow *f)
{
	if (f->st)
		xr_stats_inc(f->tx.way & XR_TX_WAY_REF ? &f->st->tx.rendezvous : &f->st->tx.coalesced, 1);
	f->tx.way = 0;
}

/* The kernel socket carries the direction while the hooks still carry the flow. */
static ssize_t tx_tcp(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, size_t skip,
		      int flags)
{
	struct iovec *v = alloca((size_t)cnt * sizeof(*v));
	ssize_t n;
	int i = 0;

	for (; cnt; iov++, cnt--) {
		if (skip >= iov->iov_len) {
			skip -= iov->iov_len;
			continue;
		}
		v[i].iov_base = (uint8_t *)iov->iov_base + skip;
		v[i++].iov_len = iov->iov_len - skip;
		skip = 0;
	}
	n = xr_ksock_send(fd, v, i, flags & (MSG_MORE | MSG_OOB));
	if (n > 0) {
		atomic_fetch_add_explicit(&f->tcp_tx, (uint64_t)n, memory_order_relaxed);
		xr_stats_tx(f->st, XR_CARRIER_TCP, (uint64_t)n);
	}
	return n;
}

/* A peer that had sent its FIN before the RST: on TCP that is EPIPE. */
static ssize_t tx_reset(struct xr_flow *f, ssize_t n)
{
	return n == -ECONNRESET && (xr_flow_peer_state(f) & XR_DIR_ENDED) ? -EPIPE : n;
}

static inline ssize_t tx_ring(struct xr_flow *f, const struct iovec *iov, int cnt, size_t skip, size_t len,
			      int flags)
{
	/*
	 * Published in pieces: the first would be replayed before the others, and the kernel's
	 * answer to it, from a peer that has shut the connection both ways, end the rest.
	 */
	if (xr_unlikely(len > XR_PUBLISH) && xr_shm_tx_is_frozen(&f->tx))
		return -ESTALE;
	if (xr_unlikely(xr_tuned(&xr_cfg.trace_sample)))
		return xr_flow_trace_send(f, iov, cnt, skip, len, f->nonblock || (flags & MSG_DONTWAIT));
	return xr_shm_tx_send(&f->tx, iov, cnt, skip, len);
}

/* The receiver froze it under our hands: what was just sent goes with the replay. */
static __attribute__((noinline, cold)) void tx_frozen(struct xr_flow *f, int fd)
{
	xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
	xr_flow_tx_push_replay(f, fd);
}

/* One attempt under tx_lock.  > 0, TX_NONE, errors. */
static ssize_t tx_some(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, size_t skip,
		       size_t len, int flags, uint32_t *waiter)
{
	ssize_t n;
	uint32_t began;
	int r;

	*waiter = 0;
	began = f->tx_state;
	n = xr_flow_take_error(f);
	if (xr_unlikely(n))
		return -n;
	switch (xr_load_relaxed(&f->tx_state)) {
	case XR_TX_RING:
		if (xr_unlikely(f->tx_shut)) {
			n = xr_flow_error(f, fd);
			return n ? -n : -EPIPE;
		}
		/*
		 * Before the first byte is published is soon enough: what the program sent earlier,
		 * on whatever connection, was seen by then.
		 */
		tx_clock(f);
		r = tx_peer_gone(f, fd, f->tx.stamp);
		if (xr_unlikely(f->rx_reset)) {
			n = xr_flow_take_error(f);
			return n ? -n : -EPIPE;
		}
		if (xr_unlikely(r)) {
			/*
			 * Nobody reads the ring any more: the kernel gives the answer TCP gives.  What
			 * is unread is replayed all the same, so that a wrong guess costs no byte.
			 */
			xr_flow_tx_start_replay(f, XR_REASON_PEER_DIED);
			r = xr_flow_tx_push_replay(f, fd);
			if (r == -EAGAIN)
				return TX_NONE;
			n = xr_flow_take_error(f);
			return tx_reset(f, n ? -n : tx_tcp(f, fd, iov, cnt, skip, flags));
		}
		n = tx_ring(f, iov, cnt, skip, len, flags);
		if (n > 0) {
			xr_stats_tx(f->st, xr_flow_fabric(f), (uint64_t)n);
			if (f->tx.way)
				tx_count_way(f);
			tx_gauges(f);
			tx_stamp(f, f->tx.stamp);
			xr_shm_tx_armed(&f->tx, waiter);
			if (xr_unlikely(f->tx.frozen))
				tx_frozen(f, fd);
			return n;
		}
		if (n == 0) {
			if (f->st)
				xr_stats_inc(&f->st->tx.rnr, 1);
			return TX_NONE;
		}
		if (n != -ESTALE)
			return n;
		xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
		/* fall through */
	case XR_TX_REPLAY:
		if (f->far)
			xr_store_relaxed(&f->far->tx_lazy, 0);
		r = xr_flow_tx_push_replay(f, fd);
		if (r == -EAGAIN)
			return f->tx_shut ? -EPIPE : TX_NONE;
		/* an RST that it has met */
		n = xr_flow_take_error(f);
		if (xr_unlikely(n))
			return -n;
		/* fall through */
	default:
		n = tx_tcp(f, fd, iov, cnt, skip, flags);
		/* what was still owed may have caused it */
		return began == XR_TX_TCP ? tx_reset(f, n) : n;
	}
}

static ssize_t tx_error(struct xr_flow *f, ssize_t err, int flags)
{
	/* EPIPE may be that of its own shutdown; relaxed: a read that comes at the same time may be first */
	if (f->far && (err == -ECONNRESET || (err == -EPIPE && !f->tx_shut)))
		xr_store_relaxed(&f->far->tx_told, 1);
	if (err == -EPIPE && !(flags & MSG_NOSIGNAL))
		xr_sys3(SYS_tgkill, xr_getpid(), xr_gettid(), SIGPIPE);
	return err;
}

/* A write of no bytes: moves none, but fails where one of a byte would. */
static ssize_t send_none(struct xr_flow *f, int fd)
{
	int err = xr_flow_error(f, fd);

	if (err)
		return -err;
	return f->tx_shut || f->rx_reset ? -EPIPE : xr_ksock_send(fd, NULL, 0, 0);
}

/* Whoever only writes sees here that nothing more comes over the fabric, or the flow would never be all back. */
static __attribute__((noinline, cold)) void tx_look_back(struct xr_flow *f, int fd)
{
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		return;
	if (!xr_flow_rx_trylock(f)) {
		xr_flow_rx_poll(f, xr_hold_fd(f, fd));
		xr_flow_rx_unlock(f);
	}
}

static inline ssize_t send_held(struct xr_flow *f, int fd, const struct iovec *iov, int cnt,
				int flags, struct xr_hold *hold)
{
	struct xr_signal_mark mark = xr_signal_mark();
	int nonblock = f->nonblock || (flags & MSG_DONTWAIT), i;
	size_t len = 0, done = 0;
	uint64_t deadline = 0;

	if (xr_unlikely(f->owner_pid != xr_getpid())) {
		xr_flow_retreat(f, fd, XR_REASON_FORKED, 0);
		if (!(xr_load_acquire(&f->path) & XR_PATH_TX))
			return -EREMOTEIO;
	}
	for (i = 0; i < cnt; i++)
		len += iov[i].iov_len;
	if (xr_unlikely(!len))
		return tx_error(f, send_none(f, fd), flags);
	for (;;) {
		uint32_t waiter, from;
		ssize_t n;

		xr_control_check();
		if (xr_unlikely(f->far != NULL))
			xr_far_look(f, fd);
		/* back on TCP: the hook starts over, unless a part was sent and the rest is owed */
		if (!done && !(xr_load_acquire(&f->path) & (XR_PATH_TX | XR_PATH_MOVE)) &&
		    !xr_hold_alone(hold))
			return -EREMOTEIO;
		if (xr_hold_lost(hold))
			return done ? (ssize_t)done : -EBADF;
		if (xr_unlikely(xr_flow_up(f) != NULL))
			xr_upgrade_step(f, fd);
		if (tx_enter(f))
			return done ? (ssize_t)done : -EAGAIN;
		fd = xr_unlikely(hold->flow != NULL) ? xr_flow_fd(f) : fd;
		from = f->tx_state;
		n = tx_some(f, fd, iov, cnt, done, len - done, flags, &waiter);
		xr_flow_tx_unlock(f);
		if (waiter)
			xr_flow_tell(f, waiter);
		if (xr_unlikely(from == XR_TX_TCP))
			tx_look_back(f, fd);
		if (xr_likely(n > 0)) {
			done += (size_t)n;
			if (xr_likely(done == len))
				return (ssize_t)done;
			/* it froze under our hands, full or not: the rest goes another way */
			if (xr_unlikely(f->tx_state != from))
				continue;
		} else if (n != TX_NONE) {
			return done ? (ssize_t)done : tx_error(f, n, flags);
		}
		if (nonblock) {
			/* as SOCK_NOSPACE: space that comes from now on is an edge */
			xr_epoll_flow_full(f);
			return done ? (ssize_t)done : -EAGAIN;
		}
		if (f->sndtimeo_ns && !deadline)
			deadline = xr_now_ns() + f->sndtimeo_ns;
		n = xr_hold_wait(hold, f, fd, POLLOUT, deadline, &mark, done != 0);
		if (n)
			return done ? (ssize_t)done : n;
	}
}

/* Under tx_lock: nothing has come up since the last send that this one would have to look at. */
static inline int tx_steady(struct xr_flow *f)
{
	return f->tx.stream && xr_load_relaxed(&f->tx_state) == XR_TX_RING &&
	       !(f->tx_shut | f->rx_reset | xr_load_relaxed(&f->rx_look) | xr_load_relaxed(&f->err)) &&
	       !(xr_load_relaxed(&f->rx_dead) & (POLLERR | POLLHUP)) && !xr_flow_up(f) && !f->far &&
	       !xr_tuned(&xr_cfg.trace_sample) && !(xr_flow_peer_state(f) & XR_DIR_CLOSED);
}

/*
 * One more send of a stream: what send_held would come to, and no more.  0: nothing was done, and it shall see to it;
 * so it does with each tick of the clock in any case.
 */
static ssize_t tx_stream_next(struct xr_flow *f, int fd, const struct iovec *iov, int flags)
{
	uint32_t waiter = 0;
	size_t n = 0;

	if (f->owner_pid != xr_getpid() || flags & ~(MSG_NOSIGNAL | MSG_DONTWAIT) ||
	    xr_now_tick() != tx_stream.tick)
		return 0;
	if (tx_enter(f))
		return 0;
	if (xr_likely(tx_steady(f)))
		n = xr_shm_tx_send_next(&f->tx, iov->iov_base, iov->iov_len);
	if (xr_likely(n)) {
		xr_stats_tx(f->st, XR_CARRIER_SHM, n);
		if (f->st)
			xr_stats_inc(&f->st->tx.coalesced, 1);
		tx_gauges(f);
		xr_shm_tx_armed(&f->tx, &waiter);
		if (xr_unlikely(f->tx.frozen))
			tx_frozen(f, fd);
	}
	xr_flow_tx_unlock(f);
	if (xr_unlikely(waiter))
		xr_flow_tell(f, waiter);
	return (ssize_t)n;
}

ssize_t xr_flow_send(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags)
{
	struct xr_hold hold = { NULL };
	ssize_t n;
	int zc;

	if (tx_stream.flow == f && tx_stream.sends == TX_STREAM_SENDS && cnt == 1) {
		n = tx_stream_next(f, fd, iov, flags);
		if (xr_likely(n))
			return n;
	}
	zc = xr_unlikely(flags & MSG_ZEROCOPY) && xr_zerocopy_begin(f, fd);
	n = send_held(f, fd, iov, cnt, flags, &hold);
	if (xr_unlikely(zc))
		xr_zerocopy_end(f, n);
	xr_hold_end(&hold);
	return n;
}

long xr_flow_outq(struct xr_flow *f, int fd)
{
	int outq = 0;
	long n;

	n = xr_sys3(SYS_ioctl, fd, 0x5411 /* SIOCOUTQ */, &outq);
	if (n)
		return n;
	/* what is in the ring lies in the peer's memory: TCP would call it acknowledged */
	n = outq;
	if (f->tx_state == XR_TX_REPLAY && !xr_flow_tx_lock(f)) {
		/* by now all of it may be in the kernel */
		if (f->tx_state == XR_TX_REPLAY)
			n += (long)xr_shm_tx_owed(&f->tx);
		xr_flow_tx_unlock(f);
	}
	return n;
}

/* poll(2) bits of the send direction; tx_lock held. */
uint32_t xr_flow_tx_poll(struct xr_flow *f, int fd)
{
	size_t space;

	if (f->tx_state == XR_TX_RING && xr_shm_tx_is_frozen(&f->tx))
		xr_flow_tx_start_replay(f, XR_REASON_RETREAT_REQUESTED);
	switch (xr_load_relaxed(&f->tx_state)) {
	case XR_TX_RING:
		if (f->tx_shut || (xr_flow_peer_state(f) & XR_DIR_CLOSED))
			return POLLOUT;
		space = xr_shm_tx_space(&f->tx);
		/* frozen since, or found to be a lie */
		if (xr_unlikely(f->tx.frozen))
			return xr_flow_tx_poll(f, fd);
		/* as sk_stream_is_writeable: a third of the buffer must be free */
		return space && space >= xr_shm_tx_unconsumed(&f->tx) / 2 ? POLLOUT : 0;
	case XR_TX_REPLAY:
		if (xr_flow_tx_push_replay(f, fd) == -EAGAIN)
			return f->tx_shut ? POLLOUT : 0;
		/* fall through */
	case XR_TX_TCP:
	default:
		return xr_load_acquire(&f->path) & XR_PATH_TX ? xr_ksock_poll(fd, POLLOUT) : UINT32_MAX;
	}
}
