/* SPDX-License-Identifier: BSD-2-Clause */
/* The receive direction of a flow: from the kernel socket to the ring and back. */
#include <alloca.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include "control.h"
#include "defer.h"
#include "fdtab.h"
#include "flow_rx.h"
#include "hold.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "rx_dst.h"

#define PEEK_NAP_NS		500000u

/* Private: bytes were read already, an error is for the next call. */
#define RX_LATER		(1 << 24)

/*
 * A reader that overtakes a stream of small sends fetches, for each of them, a line that the writer needs back for the
 * next one.  Who would wait for more in any case lets some come together: a fraction of a microsecond.
 */
#define RX_TRICKLE		8192u
#define RX_LINGER_CYCLES	3000u

#define RX_FLAGS_KERNEL		(MSG_PEEK | MSG_TRUNC)

int xr_dst_copy_many(struct rx_dst *d, const uint8_t *src, size_t n)
{
	struct rx_dst start = *d;

	while (n) {
		size_t k;

		dst_skip_empty(d);
		k = d->iov->iov_len - d->off;
		if (k > n)
			k = n;
		if (xr_copy_to_user((uint8_t *)d->iov->iov_base + d->off, src, k)) {
			*d = start;
			return -EFAULT;
		}
		dst_pass(d, k);
		src += k;
		n -= k;
	}
	return 0;
}

/* Up to max bytes from the kernel into the cursor, which has room for len. */
static ssize_t rx_kernel(int fd, struct rx_dst *d, size_t len, size_t max, int flags)
{
	struct iovec *iov;
	size_t sum = 0;
	ssize_t n;
	int i;

	/* the program's own vector, whole: what comes is not cut */
	if (xr_likely(max >= len && !d->off)) {
		n = xr_ksock_recv(fd, d->iov, d->cnt, flags & RX_FLAGS_KERNEL);
		goto out;
	}
	iov = alloca((size_t)d->cnt * sizeof(*iov));
	for (i = 0; i < d->cnt && sum < max; i++) {
		iov[i] = d->iov[i];
		if (!i) {
			iov[0].iov_base = (uint8_t *)iov[0].iov_base + d->off;
			iov[0].iov_len -= d->off;
		}
		if (iov[i].iov_len > max - sum)
			iov[i].iov_len = max - sum;
		sum += iov[i].iov_len;
	}
	n = xr_ksock_recv(fd, iov, i, flags & RX_FLAGS_KERNEL);
out:
	if (n > 0 && !(flags & MSG_PEEK))
		dst_pass(d, (size_t)n);
	return n;
}

/* The kernel socket carries the direction while the hooks still carry the flow. */
static ssize_t rx_tcp(struct xr_flow *f, int fd, struct rx_dst *d, size_t len, int flags)
{
	ssize_t n;

	/* what an earlier read met behind its bytes */
	if (xr_unlikely(xr_load_relaxed(&f->err)))
		return -xr_flow_take_error(f);
	n = rx_kernel(fd, d, len, len, flags);
	if (n > 0 && !(flags & MSG_PEEK)) {
		atomic_fetch_add_explicit(&f->tcp_rx, (uint64_t)n, memory_order_relaxed);
		xr_stats_rx(f->st, XR_CARRIER_TCP, (uint64_t)n);
	}
	return n;
}

/* 0: what is late has all come, and gone. */
int xr_rx_drop_late(struct xr_flow *f, int fd)
{
	while (f->rx.late) {
		size_t n = f->rx.late < 1u << 30 ? (size_t)f->rx.late : 1u << 30;
		/* MSG_TRUNC: tcp(7) discards instead of copying */
		ssize_t r = xr_sys6(SYS_recvfrom, fd, NULL, n, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);

		if (r <= 0)
			return r ? (int)r : -ENODATA;
		n = f->rx.late - (uint64_t)r;
		if (f->rx.replayed || f->far)
			f->rx.late_next = n;
		xr_then();
		atomic_fetch_add_explicit(&f->tcp_rx, (uint64_t)r, memory_order_relaxed);
		xr_then();
		f->rx.late = n;
		f->moved_rx -= (uint64_t)r;
		xr_stats_rx_twice(f->st, (uint64_t)r);
	}
	return 0;
}

/* Behind what is thrown away, if that has all come. */
static ssize_t rx_skipped(struct xr_flow *f, int fd, struct rx_dst *d, size_t len, int flags)
{
	int r = xr_flow_rx_skip(f, fd);

	if (!r)
		return rx_tcp(f, fd, d, len, flags);
	/* the end of a peer that died while it replayed: all it had sent was read */
	if (r == -ENODATA)
		return flags & RX_LATER ? 0 : -xr_flow_take_error(f);
	/* nobody waits for what is to come behind the own end, or the peer's */
	return r == -EAGAIN && ((f->far && f->rx_shut) || xr_rx_late_ends(f)) ? 0 : r;
}

/* The ring is empty, END was not seen, and the kernel says that the peer is gone. */
static ssize_t rx_peer_gone(struct xr_flow *f, int fd, struct rx_dst *d, int flags)
{
	ssize_t n;

	if (xr_shm_rx_is_frozen(&f->rx)) {
		xr_rx_to_tcp(f);
		return rx_skipped(f, fd, d, 1, flags);
	}
	if (flags & RX_LATER)
		return 0;
	n = xr_flow_take_error(f);
	if (n)
		return -n;
	/* an RST shows as an error of the socket; taking it here clears it, as recv would */
	n = rx_kernel(fd, d, 2, 1, flags | MSG_PEEK);
	return n < 0 && n != -EAGAIN ? n : 0;
}

/*
 * Both directions ended on the fabric, and are read: now the real FIN may follow, the kernel
 * socket is not needed for a retreat any more.  Else it follows with close.
 */
static void rx_maybe_fin(struct xr_flow *f, int fd)
{
	/* acquire: END is in the ring, and not only about to be; a FIN before it would be our death */
	if ((xr_load_acquire(&f->tx.dir->state) & XR_DIR_ENDED) && f->rx_end && !f->tx_kfin &&
	    xr_shm_tx_all_consumed(&f->tx)) {
		f->tx_kfin = 1;
		xr_sys2(SYS_shutdown, fd, SHUT_WR);
	}
}

#define RX_NONE		((ssize_t)-EAGAIN)
#define RX_MOVED	((ssize_t)-EREMOTEIO)	/* internal: look again, another source */

/* Makes what was taken final; how much of it was not, because the direction froze before. */
static size_t rx_commit(struct xr_flow *f)
{
	size_t pending = (size_t)(f->rx.taken - xr_load_relaxed(&f->rx.got));

	if (xr_unlikely(f->rx.traced))
		return xr_flow_trace_commit(f) ? pending : 0;
	return xr_shm_rx_commit(&f->rx) ? pending : 0;
}

/* From the ring: > 0 bytes, 0 EOF, RX_NONE, or an error. */
static ssize_t rx_ring(struct xr_flow *f, int fd, struct rx_dst *d, size_t len, int flags)
{
	uint32_t seq = f->rx.seq, byte = f->rx.byte;
	struct rx_dst start = *d;
	size_t done = 0, lost = 0;
	int r = 0, fault = 0;
	struct xr_view v;

	if (f->rx_end)
		return 0;
	while (done < len) {
		size_t n;

		if (flags & MSG_PEEK)
			r = xr_shm_rx_peek_from(&f->rx, &seq, &byte, &v);
		else
			r = xr_shm_rx_peek(&f->rx, &v);
		if (r != 1)
			break;
		if (v.op == XR_OP_END) {
			if (done)
				break;
			/* its sender may not have come so far as to announce it */
			if (flags & MSG_PEEK)
				return 0;
			xr_shm_rx_take(&f->rx, &v, 0);
			if (xr_shm_rx_commit(&f->rx))
				break;
			f->rx_end = 1 | (v.arg & XR_END_CLOSE ? 2 : 0);
			rx_maybe_fin(f, fd);
			return 0;
		}
		if (v.op != XR_OP_SEND) {
			r = -EPROTO;
			break;
		}
		n = v.len < len - done ? v.len : len - done;
		dst_skip_empty(d);
		if (xr_unlikely(flags & MSG_TRUNC)) {
			dst_pass(d, n);
		} else if (xr_unlikely(dst_copy(d, v.data, n))) {
			/* as in the kernel: the piece stays unread, what went before is read */
			fault = 1;
			break;
		}
		done += n;
		if (flags & MSG_PEEK) {
			byte += (uint32_t)n;
			if (n == v.len && !(v.flags & XR_SLOT_OPEN)) {
				seq++;
				byte = 0;
			}
			continue;
		}
		xr_shm_rx_take(&f->rx, &v, n);
		/* a large read lets go of each chunk as it goes, so that the sender can go on */
		if (n >= XR_PUBLISH && done < len) {
			lost = rx_commit(f);
			if (lost)
				break;
		}
	}
	if (!lost && done && !(flags & MSG_PEEK))
		lost = rx_commit(f);
	if (lost) {
		/* what was copied and not committed comes over TCP again, to the same place */
		done -= lost;
		*d = start;
		dst_pass(d, done);
		r = -ESTALE;
	}
	if (flags & MSG_PEEK)
		*d = start;
	else
		/* r: it was all; no slot is open but that of a stream, or of a large send on its way */
		xr_store_relaxed(&f->rx.trickle, !r && f->rx.byte && done - 1 < RX_TRICKLE);
	if (xr_unlikely(fault)) {
		d->fault = 1;
		return done ? (ssize_t)done : -EFAULT;
	}
	if (done)
		return (ssize_t)done;
	if (r == -EPROTO)
		return xr_rx_corrupt(f, fd);
	if (xr_shm_rx_is_frozen(&f->rx)) {
		xr_rx_to_tcp(f);
		return RX_MOVED;
	}
	return RX_NONE;
}

/* The backlog is a walk over the ring: exact when the read emptied it, else sampled. */
static void rx_stats(struct xr_flow *f, size_t n, size_t asked)
{
	struct xr_stats_flow *st = f->st;

	if (!st)
		return;
	xr_stats_rx(st, xr_flow_fabric(f), n);
	if (n < asked)
		xr_stats_gauge(&st->rx.queue, 0);
	else if (!(xr_load_relaxed(&st->rx.msgs) & 15))
		xr_stats_gauge(&st->rx.queue, xr_shm_rx_readable(&f->rx));
}

/* Bytes: a look that finds none would take an error instead. */
static int rx_kernel_has(int fd)
{
	int inq = 0;

	return !xr_sys3(SYS_ioctl, fd, 0x541b /* FIONREAD */, &inq) && inq > 0;
}

/* An error that is met on the way is for a call that can tell of it. */
static int rx_late_gone(struct xr_flow *f, int fd)
{
	int r = xr_rx_drop_late(f, fd);

	if (r < 0 && r != -EAGAIN && r != -ENODATA)
		xr_store_release(&f->err, (uint32_t)-r);
	return !r;
}

/* Of len bytes the first n and those after the hole, from the kernel. */
static ssize_t rx_peek_around(int fd, const struct rx_dst *d, size_t n, size_t hole, size_t len,
			      int flags)
{
	struct iovec *iov = alloca(2 * (size_t)(d->cnt + 1) * sizeof(*iov));
	struct rx_dst at = *d;
	size_t done = 0, k;
	int cnt = 0, before = 0;
	void *again = NULL;
	ssize_t r;

	while (done < len) {
		size_t end = done < n ? n : len;

		dst_skip_empty(&at);
		k = at.iov->iov_len - at.off;
		if (k > end - done)
			k = end - done;
		iov[cnt].iov_base = (uint8_t *)at.iov->iov_base + at.off;
		iov[cnt++].iov_len = k;
		dst_pass(&at, k);
		done += k;
		if (done == n) {
			before = cnt;
			dst_skip_empty(&at);
			dst_pass(&at, hole);
			done += hole;
		}
	}
	/* too many pieces: those before the hole were looked at already, and need no place again */
	if (cnt > IOV_MAX && before > 1)
		again = xr_map_private(n);
	if (again) {
		iov += before - 1;
		cnt -= before - 1;
		iov[0] = (struct iovec){ again, n };
	}
	r = xr_ksock_recv(fd, iov, cnt < IOV_MAX ? cnt : IOV_MAX, flags & RX_FLAGS_KERNEL);
	xr_unmap(again, n);
	/* less than was there a moment ago: somebody else's read */
	return r < (ssize_t)n ? r : r + (ssize_t)hole;
}

/*
 * n bytes were looked at in one source: those that lie behind them in the next one as well.
 * After a seal the socket has what follows, after a replay the same bytes and what follows.
 */
static ssize_t rx_peek_on(struct xr_flow *f, int fd, const struct rx_dst *d, size_t n, size_t len,
			  int flags)
{
	struct rx_dst rest = *d, all = *d;
	int empty = xr_shm_rx_is_frozen(&f->rx);
	size_t ring = 0;
	ssize_t more;

	if (xr_likely(!f->rx.frozen && f->rx_state == XR_RX_RING))
		return (ssize_t)n;
	/* behind the ring there is a frame first */
	if (f->far && f->rx_state == XR_RX_RING)
		return (ssize_t)n;
	/* nothing in the ring: what follows is on the socket as well */
	if (empty && f->rx_state == XR_RX_DRAIN)
		return f->far ? (ssize_t)n : rx_kernel(fd, &all, len, len, flags);
	dst_pass(&rest, n);
	dst_skip_empty(&rest);
	if (f->rx_state == XR_RX_DRAIN)
		more = rx_ring(f, fd, &rest, len - n, flags);
	else
		more = f->rx.sealed && rx_kernel_has(fd) && !xr_rx_is_marked(fd) ?
		       rx_kernel(fd, &rest, len - n, len - n, flags) : 0;
	ring = more > 0 ? (size_t)more : 0;
	/* sealed before START was seen: what lies around the ring's bytes is on the socket */
	if (f->rx.sealed && f->rx_state == XR_RX_DRAIN && ring && n + ring < len && !f->far)
		return rx_peek_around(fd, d, n, ring, len, flags);
	n += ring;
	if (f->rx.frozen && !f->rx.sealed && n < len && rx_late_gone(f, fd) && rx_kernel_has(fd)) {
		more = rx_kernel(fd, &all, len, len, flags);
		n = more > (ssize_t)n ? (size_t)more : n;
	}
	return (ssize_t)n;
}

/* One attempt under rx_lock, never blocks.  > 0, 0 EOF, RX_NONE, errors. */
static ssize_t rx_some(struct xr_flow *f, int fd, struct rx_dst *d, size_t len, int flags)
{
	ssize_t n;
	int r;

	switch (xr_load_relaxed(&f->rx_state)) {
	case XR_RX_READY:
		r = xr_rx_try_start(f, fd);
		if (r)
			return r < 0 ? r : rx_some(f, fd, d, len, flags);
		n = rx_tcp(f, fd, d, len, flags);
		/* a FIN, after which the peer's memory is final: it may have left TCP since we looked */
		if (n == 0 && len && xr_rx_try_start(f, fd) > 0)
			return rx_some(f, fd, d, len, flags);
		/* the reset of a peer that wrote nonsense was told: the socket knows nothing of it */
		return n == RX_NONE && f->rx_reset ? 0 : n;
	case XR_RX_DRAIN:
		n = rx_kernel(fd, d, len, len < xr_flow_drain_left(f) ? len : xr_flow_drain_left(f), flags);
		if (n > 0 && !(flags & MSG_PEEK)) {
			atomic_fetch_add_explicit(&f->tcp_rx, (uint64_t)n, memory_order_relaxed);
			xr_flow_rx_drained(f);
			xr_stats_rx(f->st, XR_CARRIER_TCP, (uint64_t)n);
		} else if (n > 0 && (uint64_t)n == xr_flow_drain_left(f) && (size_t)n < len) {
			return rx_peek_on(f, fd, d, (size_t)n, len, flags);
		}
		return n;
	case XR_RX_RING:
		n = rx_ring(f, fd, d, len, flags);
		if (xr_unlikely(n == RX_MOVED))
			return rx_skipped(f, fd, d, len, flags);
		if (n > 0 && !(flags & MSG_PEEK))
			rx_stats(f, (size_t)n, len);
		else if (n > 0 && (size_t)n < len)
			return rx_peek_on(f, fd, d, (size_t)n, len, flags);
		if (xr_likely(n != RX_NONE))
			return n;
		if (!xr_load_relaxed(&f->rx_dead) && (xr_load_relaxed(&f->rx_look) || xr_rx_reset_due(f) ||
				    xr_cycles() - f->rx_checked > XR_RX_CHECK_CYCLES))
			xr_rx_look_kernel(f, fd);
		if (xr_load_relaxed(&f->rx_dead)) {
			/* the peer's memory is final once its FIN shows: look once more */
			n = rx_ring(f, fd, d, len, flags);
			if (n == RX_MOVED)
				return rx_skipped(f, fd, d, len, flags);
			return n == RX_NONE ? rx_peer_gone(f, fd, d, flags) : n;
		}
		return f->rx_shut ? 0 : RX_NONE;
	case XR_RX_SKIP:
		return rx_skipped(f, fd, d, len, flags);
	default:
		return rx_tcp(f, fd, d, len, flags);
	}
}

static size_t iov_total(const struct iovec *iov, int cnt)
{
	size_t sum = 0;
	int i;

	for (i = 0; i < cnt; i++)
		sum += iov[i].iov_len;
	return sum;
}

/*
 * A read of no bytes: as on TCP it fails, ends or blocks as one of a byte would, and returns
 * 0 when there is something.
 */
static ssize_t recv_none(struct xr_flow *f, int fd, int flags)
{
	uint8_t byte;
	struct iovec one = { &byte, 1 };
	ssize_t n;

	n = xr_flow_recv(f, fd, &one, 1, (flags & MSG_DONTWAIT) | MSG_PEEK);
	/* it waits once, and does not mind if that was in vain */
	if (n == -EINTR || (n == -EAGAIN && !f->nonblock && !(flags & MSG_DONTWAIT)))
		return 0;
	return n > 0 ? 0 : n;
}

static void rx_linger(void)
{
	uint64_t begin = xr_cycles();
	int i;

	do {
		for (i = 0; i < 8; i++)
			xr_cpu_relax();
	} while (xr_cycles() - begin < RX_LINGER_CYCLES);
}

static inline ssize_t recv_held(struct xr_flow *f, int fd, const struct iovec *iov, int cnt,
				int flags, struct xr_hold *hold)
{
	struct xr_signal_mark mark = xr_signal_mark();
	struct rx_dst d = { iov, cnt, 0, 0 };
	size_t len = iov_total(iov, cnt), done = 0, target;
	int nonblock = f->nonblock || (flags & MSG_DONTWAIT);
	uint64_t deadline = 0;

	if (xr_unlikely(f->owner_pid != xr_getpid())) {
		xr_flow_retreat(f, fd, XR_REASON_FORKED, 0);
		if (!(xr_load_acquire(&f->path) & XR_PATH_RX))
			return -EREMOTEIO;
	}
	flags &= ~RX_LATER;
	if (xr_unlikely(!len))
		return recv_none(f, fd, flags);
	target = flags & MSG_WAITALL ? len : f->rcvlowat < len ? f->rcvlowat : len;
	if (!target)
		target = 1;
	if (xr_load_relaxed(&f->rx.trickle) && !nonblock && !(flags & MSG_PEEK))
		rx_linger();
	for (;;) {
		uint32_t waiter, from;
		int tell, more, r;
		ssize_t n;

		xr_control_check();
		/* back on TCP: the hook starts over, unless MSG_WAITALL has a part already */
		if (!done && !(xr_load_acquire(&f->path) & (XR_PATH_RX | XR_PATH_MOVE)) &&
		    !xr_hold_alone(hold))
			return -EREMOTEIO;
		if (xr_hold_lost(hold))
			return done ? (ssize_t)done : -EBADF;
		if (xr_unlikely(xr_flow_up(f) != NULL))
			xr_upgrade_step(f, fd);
		if (xr_flow_rx_lock(f))
			return done ? (ssize_t)done : -EAGAIN;
		fd = xr_unlikely(hold->flow != NULL) ? xr_flow_fd(f) : fd;
		from = f->rx_state;
		n = rx_some(f, fd, &d, len - done, done ? flags | RX_LATER : flags);
		if (xr_flow_lowat_split(f))
			xr_flow_lowat(f, fd);
		more = n > 0 && !(flags & MSG_PEEK) && (size_t)n < len - done && xr_rx_more(f, fd, from);
		tell = n > 0 && f->rx_state == XR_RX_RING &&
		       xr_shm_rx_wants_notice(&f->rx, &waiter);
		xr_flow_rx_unlock(f);
		if (tell)
			xr_flow_tell(f, waiter);
		/* whoever only reads must not keep the peer waiting for a replay */
		xr_flow_tx_check(f, fd);
		if (n > 0) {
			if (flags & MSG_PEEK) {
				if ((size_t)n >= target || d.fault || nonblock || xr_rx_ended(f))
					return n;
				/* it is readable all the while: the rest is looked for now and then */
				r = xr_sleep_poll(NULL, 0, xr_now_ns() + PEEK_NAP_NS, NULL, mark, 0);
				if (r == -EINTR)
					return r;
				if (f->rcvtimeo_ns && !deadline)
					deadline = xr_now_ns() + f->rcvtimeo_ns;
				if (deadline && xr_now_ns() >= deadline)
					return n;
				continue;
			} else {
				done += (size_t)n;
				if ((done >= target && !more) || xr_unlikely(d.fault))
					return (ssize_t)done;
				/* what the socket itself would say is for the next call to hear */
				if (xr_unlikely(from != XR_RX_RING || f->rx.frozen) &&
				    ((xr_ksock_poll(fd, 0) & POLLERR && xr_rx_avail(f, fd) <= 0) ||
				     xr_flow_at_mark(f, fd)))
					return (ssize_t)done;
				continue;
			}
		} else if (n != RX_NONE) {
			/* an error behind bytes is for the next call, but for a bad address */
			if (done && n < 0 && n != -EFAULT)
				xr_store_release(&f->err, (uint32_t)-n);
			return done ? (ssize_t)done : n;
		}
		if (nonblock || done >= target)
			return done ? (ssize_t)done : -EAGAIN;
		if (f->rcvtimeo_ns && !deadline)
			deadline = xr_now_ns() + f->rcvtimeo_ns;
		n = xr_hold_wait(hold, f, fd, POLLIN, deadline, &mark, done != 0);
		if (n)
			return done ? (ssize_t)done : n;
	}
}

ssize_t xr_flow_recv(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags)
{
	struct xr_hold hold = { NULL };
	ssize_t n = recv_held(f, fd, iov, cnt, flags, &hold);

	if (xr_likely(n > 0))
		xr_flow_tx_answered();
	xr_hold_end(&hold);
	return n;
}
