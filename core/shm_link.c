/* SPDX-License-Identifier: BSD-2-Clause */
#include <asm/ioctls.h>
#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "defer.h"
#include "log.h"
#include "mem.h"
#include "shm_link.h"
#include "stats.h"

#define LINK_MSG_BELL	1u
#define LINK_MSG_MAX	128u	/* bytes, of any message */
#define LINK_MSGS	1024u	/* taken at a time: a peer that talks without end must not hold anybody up */
#define LINK_QUEUE	(512 << 10)	/* of the control connection, where the system permits as much */

struct link_msg {
	uint32_t type;
	uint32_t waiter;
};

/* Bytes of own arenas in use by directions and chunks, all links of the process together. */
static _Atomic uint64_t link_used, link_budget = UINT64_MAX;

void xr_shm_budget(uint64_t bytes)
{
	xr_store_relaxed(&link_budget, bytes);
}

uint64_t xr_shm_used(void)
{
	return xr_load_relaxed(&link_used);
}

/* 1 when n more bytes are within the budget, and taken. */
static int link_charge(uint64_t n)
{
	if (xr_fetch_add(&link_used, n) + n <= xr_load_relaxed(&link_budget))
		return 1;
	xr_fetch_sub(&link_used, n);
	return 0;
}

static void link_lock(struct xr_shm_link *l)
{
	uint32_t free = 0;

	xr_defer_begin();
	if (xr_likely(xr_cas(&l->lock, &free, (uint32_t)xr_gettid())))
		return;
	xr_stats_add(XR_STAT_LOCK_WAITS, 1);
	/* critical sections are a few dozen instructions, or one system call at first use */
	do {
		xr_sys0(SYS_sched_yield);
		free = 0;
	} while (!xr_cas(&l->lock, &free, (uint32_t)xr_gettid()));
}

static void link_unlock(struct xr_shm_link *l)
{
	/* release: what the section wrote is visible to the next holder's cas */
	xr_store_release(&l->lock, 0);
	xr_defer_end();
}

struct xr_shm_link *xr_shm_link_new(int conn, const struct xr_shm_arena *own,
				    const struct xr_shm_arena *peer)
{
	size_t words = own->hdr.ndirs + 3 * (size_t)XR_WAITERS;
	size_t cells = xr_chunk_cells(own->hdr.nchunks) * sizeof(struct xr_chunk_cell);
	size_t len = sizeof(struct xr_shm_link) + cells + words * sizeof(uint32_t);
	struct xr_shm_link *l = xr_shm_link_memory(len);
	struct ucred cred;
	socklen_t clen = sizeof(cred);
	int want = LINK_QUEUE;

	if (!l)
		return NULL;
	l->map_len = len;
	l->conn = conn;
	l->diag = -1;
	l->own = *own;
	l->peer = *peer;
	l->owner_pid = xr_getpid();
	xr_chunk_init(&l->chunks, (struct xr_chunk_cell *)(l + 1), own->hdr.nchunks);
	l->dir_next = (uint32_t *)((uint8_t *)(l + 1) + cells);
	l->cq_head = l->dir_next + own->hdr.ndirs;
	l->bell_rx = (_Atomic int *)(l->cq_head + XR_WAITERS);
	l->bell_tx = l->bell_rx + XR_WAITERS;
	l->dir_free = UINT32_MAX;
	xr_store_relaxed(&l->heard, INT64_MAX);
	if (!xr_sys5(SYS_getsockopt, conn, SOL_SOCKET, SO_PEERCRED, &cred, &clen)) {
		l->peer_pid = cred.pid;
		l->peer_uid = cred.uid;
	}
	xr_sys5(SYS_setsockopt, conn, SOL_SOCKET, SO_SNDBUF, &want, sizeof(want));
	if (!xr_sys5(SYS_getsockopt, conn, SOL_SOCKET, SO_SNDBUF, &want, &(socklen_t){ sizeof(want) }))
		l->queue = (uint32_t)want / 2;
	return l;
}

void xr_shm_link_free(struct xr_shm_link *l)
{
	uint32_t w;

	for (w = 0; w < XR_WAITERS; w++) {
		if (xr_load_relaxed(&l->bell_rx[w]))
			xr_fd_close(xr_load_relaxed(&l->bell_rx[w]) - 1);
		if (xr_load_relaxed(&l->bell_tx[w]))
			xr_fd_close(xr_load_relaxed(&l->bell_tx[w]) - 1);
	}
	/* whatever was not given back goes with the arena */
	xr_fetch_sub(&link_used, (uint64_t)xr_load_relaxed(&l->chunks.used) * XR_CHUNK +
		     (uint64_t)l->dirs_used * XR_DIR_BYTES(l->own.hdr.dir_slots));
	xr_fd_close(l->conn);
	xr_fd_close(l->diag);
	xr_shm_arena_destroy(&l->own);
	xr_shm_arena_destroy(&l->peer);
	xr_shm_link_memory_put(l);
}

uint64_t xr_shm_link_dir_get(struct xr_shm_link *l)
{
	uint64_t size = XR_DIR_BYTES(l->own.hdr.dir_slots);
	uint32_t i;

	if (!link_charge(size))
		return 0;
	link_lock(l);
	i = l->dir_free;
	if (i != UINT32_MAX)
		l->dir_free = l->dir_next[i];
	else if (l->dir_fresh < l->own.hdr.ndirs)
		i = l->dir_fresh++;
	if (i != UINT32_MAX)
		l->dirs_used++;
	link_unlock(l);
	if (i == UINT32_MAX) {
		xr_fetch_sub(&link_used, size);
		return 0;
	}
	return l->own.hdr.dir_off + (uint64_t)i * size;
}

void xr_shm_link_dir_put(struct xr_shm_link *l, uint64_t off)
{
	uint32_t i = (uint32_t)((off - l->own.hdr.dir_off) / XR_DIR_BYTES(l->own.hdr.dir_slots));

	link_lock(l);
	l->dir_next[i] = l->dir_free;
	l->dir_free = i;
	l->dirs_used--;
	link_unlock(l);
	xr_fetch_sub(&link_used, XR_DIR_BYTES(l->own.hdr.dir_slots));
}

struct xr_shm_dir *xr_shm_link_peer_dir(struct xr_shm_link *l, uint64_t off)
{
	const struct xr_shm_hdr *h = &l->peer.hdr;
	uint64_t stride = XR_DIR_BYTES(h->dir_slots);

	if (off < h->dir_off || (off - h->dir_off) % stride ||
	    (off - h->dir_off) / stride >= h->ndirs)
		return NULL;
	return (struct xr_shm_dir *)(l->peer.base + off);
}

static uint32_t link_chunk_get(void *ctx)
{
	struct xr_shm_link *l = ctx;
	uint32_t i;

	/* a forked child may replay what its parent left, never take more of the parent's arena */
	if (xr_unlikely(l->owner_pid != xr_getpid()))
		return XR_NO_CHUNK;
	if (xr_unlikely(!link_charge(XR_CHUNK)))
		return XR_NO_CHUNK;
	xr_defer_begin();
	while (xr_unlikely((i = xr_chunk_get(&l->chunks)) == XR_CHUNK_TRIM)) {
		/* it is trimmed under the lock */
		link_lock(l);
		link_unlock(l);
	}
	xr_defer_end();
	if (xr_likely(i != XR_CHUNK_NONE))
		return i;
	xr_fetch_sub(&link_used, XR_CHUNK);
	return XR_NO_CHUNK;
}

static void link_chunk_put(void *ctx, uint32_t i)
{
	struct xr_shm_link *l = ctx;

	if (xr_unlikely(l->owner_pid != xr_getpid()) || i >= l->own.hdr.nchunks)
		return;
	xr_defer_begin();
	/*
	 * The peer of a broken link cannot be asked, and may be reading it: no other flow gets it.  Acquire: pairs with
	 * link_die; who gives back what was not read does so because the link is.
	 */
	if (xr_unlikely(xr_load_acquire(&l->dead)))
		xr_chunk_lose(&l->chunks);
	else
		xr_chunk_put(&l->chunks, i);
	xr_defer_end();
	xr_fetch_sub(&link_used, XR_CHUNK);
}

#define LINK_TRIM_NS		500000000u

int xr_shm_link_trim(struct xr_shm_link *l, uint64_t now)
{
	struct xr_chunks *c = &l->chunks;
	uint32_t fresh = xr_load_relaxed(&c->fresh);
	int r = 0;

	/* racy look: most links have nothing to give */
	if (xr_likely(fresh <= XR_CHUNKS_HOT || xr_load_relaxed(&c->used)))
		return 0;
	link_lock(l);
	/* the peer has read all of it, and one that still looks finds zeros */
	if (!xr_load_relaxed(&l->dead) && now - xr_load_relaxed(&c->ns) > LINK_TRIM_NS && xr_chunk_trim_begin(c)) {
		fresh = xr_load_relaxed(&c->fresh);
		if (fresh > XR_CHUNKS_HOT)
			/* nobody can be given one meanwhile */
			xr_sys3(SYS_madvise, l->own.base + l->own.hdr.chunk_off + (uint64_t)XR_CHUNKS_HOT * XR_CHUNK,
				(uint64_t)(fresh - XR_CHUNKS_HOT) * XR_CHUNK, MADV_REMOVE);
		xr_chunk_trim_end(c, 1);
		r = 1;
	}
	link_unlock(l);
	return r;
}

void xr_shm_link_chunks(struct xr_shm_link *l, struct xr_shm_chunks *c)
{
	c->get = link_chunk_get;
	c->put = link_chunk_put;
	c->ctx = l;
}

static _Atomic uint32_t *link_sleeping(const struct xr_shm_arena *a, uint32_t w)
{
	return (_Atomic uint32_t *)(a->base + a->hdr.sleep_off + (size_t)w * XR_CACHELINE);
}

/*
 * Writes to the descriptor in *bell, if there is one.  Counted: xr_shm_link_strip must not
 * close it in between, when the number may at once be a file of the program's.
 */
static int link_ring_one(struct xr_shm_link *l, _Atomic int *bell)
{
	static const uint64_t one = 1;
	int fd;

	/* count, then look; pairs with "take out, then look at the count" in link_strip_one */
	xr_fetch_add(&l->ringing, 1);
	xr_fence_store_load();
	fd = xr_load_acquire(bell);
	if (fd)
		/* EAGAIN: the peer filled its own bell, which also wakes it */
		xr_sys3(SYS_write, fd - 1, &one, sizeof(one));
	xr_fetch_sub(&l->ringing, 1);
	return fd != 0;
}

static int link_ring(struct xr_shm_link *l, uint32_t w)
{
	if (link_ring_one(l, &l->bell_tx[w]))
		return 1;
	/* the peer passed it before it first named this waiter: it is in the socket */
	if (l->owner_pid == xr_getpid())
		xr_shm_link_progress(l);
	return link_ring_one(l, &l->bell_tx[w]) ? 1 : -ENOENT;
}

static void link_enter(const struct xr_shm_arena *a, uint32_t waiter, uint32_t cookie)
{
	struct xr_shm_cq *cq = xr_shm_arena_cq(a, waiter);
	uint32_t n = xr_fetch_add(&cq->tail, 1);

	/* release: the entry vouches for what was published before it */
	xr_store_release(&cq->entry[n % XR_CQ_ENTRIES], ((uint64_t)(n + 1) << 32) | cookie);
}

int xr_shm_link_notify(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie)
{
	if (xr_unlikely(!waiter || waiter >= XR_WAITERS))
		return 0;
	link_enter(&l->own, waiter, cookie);
	/* pairs with the fence in xr_shm_link_sleeping: enter, then look for a sleeper */
	xr_fence_store_load();
	if (!xr_load_relaxed(link_sleeping(&l->peer, waiter)))
		return 0;
	return link_ring(l, waiter);
}

void xr_shm_link_notify_own(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie)
{
	if (!waiter || waiter >= XR_WAITERS)
		return;
	/* the peer's arena: that is where our waiters look */
	link_enter(&l->peer, waiter, cookie);
	link_ring_one(l, &l->bell_rx[waiter]);
}

static void link_die(struct xr_shm_link *l)
{
	xr_fd_close(l->conn);
	l->conn = -1;
	/* release: pairs with acquire loads of dead by flows */
	xr_store_release(&l->dead, 1);
}

#define LINK_MSG_COST	2048u	/* more than a message takes in the queue of a socket, with all that the kernel adds */

/* The kernel is asked when it might be too much.  0: the connection is none. */
static int link_queued(struct xr_shm_link *l)
{
	int queued = 0;

	if (l->queued <= l->queue)
		return 1;
	if (xr_sys3(SYS_ioctl, l->conn, SIOCOUTQ, &queued))
		return 0;
	l->queued = (uint32_t)queued;
	return 1;
}

int xr_shm_link_send(struct xr_shm_link *l, const void *msg, size_t len, const int *fds, int nfds)
{
	ssize_t r = -EPIPE;

	if (l->owner_pid != xr_getpid())
		return -EPIPE;
	link_lock(l);
	if (l->conn >= 0 && link_queued(l)) {
		r = l->queued > l->queue ? -EAGAIN : xr_unix_send(l->conn, msg, len, fds, nfds);
		if (r >= 0)
			l->queued += LINK_MSG_COST;
		if (r == -EPIPE || r == -ECONNRESET)
			link_die(l);
		/* too many descriptors of this user are under way */
		if (r == -ETOOMANYREFS)
			r = -EAGAIN;
	}
	link_unlock(l);
	return r < 0 ? (int)r : 0;
}

static int link_bell_make(struct xr_shm_link *l, uint32_t w)
{
	struct link_msg m = { LINK_MSG_BELL, w };
	long fd, r;

	if (l->conn < 0)
		return -EPIPE;
	fd = xr_sys2(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		return (int)fd;
	r = xr_fd_high((int)fd);
	if (r < 0)
		goto close_fd;
	fd = r;
	r = xr_unix_send(l->conn, &m, sizeof(m), (int[]){ (int)fd }, 1);
	if (r == -EPIPE || r == -ECONNRESET)
		link_die(l);
	if (r < 0)
		goto close_fd;
	/* release: pairs with the acquire in xr_shm_link_bell */
	xr_store_release(&l->bell_rx[w], (int)fd + 1);
	return (int)fd;

close_fd:
	xr_fd_close((int)fd);
	xr_info("no doorbell for waiter %u: error %d", w, (int)-r);
	return (int)r;
}

int xr_shm_link_bell(struct xr_shm_link *l, uint32_t w)
{
	int fd;

	if (!w || w >= XR_WAITERS)
		return -EINVAL;
	fd = xr_load_acquire(&l->bell_rx[w]);
	if (xr_likely(fd))
		return fd - 1;
	link_lock(l);
	fd = xr_load_relaxed(&l->bell_rx[w]);
	fd = fd ? fd - 1 : link_bell_make(l, w);
	link_unlock(l);
	return fd;
}

void xr_shm_link_sleeping(struct xr_shm_link *l, uint32_t w, uint32_t on)
{
	xr_store_relaxed(link_sleeping(&l->own, w), on);
	/* pairs with the fence in xr_shm_link_notify: say that I sleep, then look again */
	if (on)
		xr_fence_store_load();
}

void xr_shm_link_harvest(struct xr_shm_link *l, uint32_t w,
			 void (*fn)(void *arg, struct xr_shm_link *l, uint32_t cookie), void *arg)
{
	struct xr_shm_cq *cq = xr_shm_arena_cq(&l->peer, w);
	/* acquire: pairs with the read-modify-write of tail in xr_shm_link_notify */
	uint32_t tail = xr_load_acquire(&cq->tail), head = l->cq_head[w];
	int all = 0;

	/* the peer may write any tail: the work here is bounded by the ring */
	if (tail - head > XR_CQ_ENTRIES) {
		head = tail;
		all = 1;
	}
	for (; head != tail; head++) {
		/* acquire: pairs with the release of the entry */
		uint64_t e = xr_load_acquire(&cq->entry[head % XR_CQ_ENTRIES]);

		if ((uint32_t)(e >> 32) == head + 1)
			fn(arg, l, (uint32_t)e);
		else
			all = 1;
	}
	l->cq_head[w] = head;
	if (xr_unlikely(all))
		fn(arg, l, UINT32_MAX);
}

static int link_take(struct xr_shm_link *l, const void *msg, ssize_t n, const int *fds, int nfds)
{
	const struct link_msg *m = msg;
	int i, r = -EPROTO;

	/* each waiter has one for as long as the link lives: who rings it holds no lock */
	if (n == sizeof(*m) && m->type == LINK_MSG_BELL && nfds == 1 && m->waiter &&
	    m->waiter < XR_WAITERS && !xr_load_relaxed(&l->bell_tx[m->waiter])) {
		/* release: pairs with the acquire in link_ring_one */
		xr_store_release(&l->bell_tx[m->waiter], fds[0] + 1);
		return 0;
	}
	/* also of descriptors that are not ours */
	if (n > (ssize_t)sizeof(*m) && l->said)
		r = l->said(l, msg, (size_t)n, fds, nfds);
	for (i = 0; i < nfds; i++)
		xr_fd_close(fds[i]);
	if (r)
		xr_warn("peer process %d broke the control protocol", l->peer_pid);
	return r;
}

int xr_shm_link_progress(struct xr_shm_link *l)
{
	uint32_t left = LINK_MSGS;
	int r = 0;

	/* acquire: pairs with link_die */
	if (xr_load_acquire(&l->dead))
		return -EPIPE;
	/* the number of the connection is anybody's in a child, and the lock another thread's */
	if (l->owner_pid != xr_getpid())
		return 0;
	link_lock(l);
	while (l->conn >= 0 && left--) {
		_Alignas(uint64_t) uint8_t m[LINK_MSG_MAX];
		int fds[2], nfds = 2;
		ssize_t n = xr_unix_recv_low(l->conn, m, sizeof(m), fds, &nfds);

		/* what comes with other messages is looked at and closed: it needs no number that is ours */
		if (n == (ssize_t)sizeof(struct link_msg) && xr_unix_raise(fds, &nfds))
			n = -EBADMSG;

		if (n == -EAGAIN || n == -EINTR)
			break;
		if (n == -EBADMSG) {
			/* out of descriptors: that bell is lost, whoever needs it retreats */
			xr_info("a doorbell of process %d was lost", l->peer_pid);
			continue;
		}
		r = n <= 0 ? -EPIPE : link_take(l, m, n, fds, nfds);
		if (r) {
			link_die(l);
			break;
		}
	}
	link_unlock(l);
	return r;
}

/* 1: *bell is closed; -EBUSY: it is there still. */
static int link_strip_one(struct xr_shm_link *l, _Atomic int *bell)
{
	int fd = xr_load_relaxed(bell) ? xr_xchg(bell, 0) : 0, tries;

	if (!fd)
		return 0;
	/* take out, then look at the count; pairs with link_ring_one */
	xr_fence_store_load();
	for (tries = 0; xr_load_acquire(&l->ringing); tries++) {
		/* perhaps this very thread, below a signal handler */
		if (tries == 100) {
			xr_store_release(bell, fd);
			return -EBUSY;
		}
		xr_sys0(SYS_sched_yield);
	}
	xr_fd_close(fd - 1);
	return 1;
}

int xr_shm_link_strip(struct xr_shm_link *l)
{
	uint32_t w;
	int n = 0, r = 0;

	link_lock(l);
	if (l->conn >= 0) {
		link_die(l);
		n++;
	}
	n += l->diag >= 0;
	xr_fd_close(l->diag);
	l->diag = -1;
	for (w = 1; w < XR_WAITERS && r >= 0; w++) {
		r = link_strip_one(l, &l->bell_rx[w]);
		n += r > 0;
		if (r >= 0) {
			r = link_strip_one(l, &l->bell_tx[w]);
			n += r > 0;
		}
	}
	link_unlock(l);
	return n;
}
