/* SPDX-License-Identifier: BSD-2-Clause */
/* The sending end of the ring. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include "shm_ring.h"
#include "shm_ring_tx.h"
#include "usercopy.h"

/*
 * With more than a quarter of the slots in flight the receiver is behind, and small
 * sends are appended to an open slot instead of taking one each: the ring then
 * holds (n - n/4) chunks, whatever the size of the program's writes.
 */
#define TX_CROWDED(tx)	((tx)->head - (tx)->done > ((tx)->mask + 1) / 4)

/* ... and so they are in a stream of them, each of which then costs both ends one line of memory instead of two. */
#define TX_APPENDS(tx)	((tx)->stream || TX_CROWDED(tx))

/* Where a stream will write soon: the receiver has the line from the last time. */
#define TX_AHEAD	256u

void xr_shm_tx_init(struct xr_shm_tx *tx, struct xr_shm_dir *dir, uint32_t nslots,
		    struct xr_shm_meta *meta, const struct xr_shm_chunks *chunks,
		    uint8_t *chunk_base, uint64_t chunk_off, uint32_t window)
{
	memset(tx, 0, sizeof(*tx));
	tx->dir = dir;
	tx->slots = (struct xr_shm_slot *)(dir + 1);
	tx->chunk_base = chunk_base;
	tx->chunk_off = chunk_off;
	tx->chunks = *chunks;
	tx->meta = meta;
	tx->mask = nslots - 1;
	tx->head = 1;
	tx->done = 1;
	tx->chunk = XR_NO_CHUNK;
	tx->inflight_max = window;
	{
		/* the generation survives: it tells a peer that still looks that the block moved on */
		uint32_t gen = xr_load_relaxed(&dir->gen);

		/* the slots of a block that nobody had are zero, and take no memory until they are used */
		memset(dir, 0, gen ? XR_DIR_BYTES(nslots) : sizeof(*dir));
		xr_store_relaxed(&dir->gen, gen + 1);
	}
	xr_store_relaxed(&dir->consumed, XR_CONSUMED(1, 0));
}

static uint64_t tx_inflight(const struct xr_shm_tx *tx)
{
	return tx->sent - tx->acked - tx->part;
}

static uint32_t tx_free_slots(const struct xr_shm_tx *tx)
{
	uint32_t used = tx->head - tx->done;
	uint32_t n = tx->mask + 1 - XR_RING_CTL;

	return used < n ? n - used : 0;
}

/* The cursor over the program's buffers. */
struct tx_cursor {
	const struct iovec *iov;
	size_t off;
};

static __attribute__((noinline)) int tx_copy_many(uint8_t *dst, struct tx_cursor *c, size_t n)
{
	while (n) {
		size_t k = c->iov->iov_len - c->off;

		if (k > n)
			k = n;
		if (xr_unlikely(xr_copy_from_user(dst, (const uint8_t *)c->iov->iov_base + c->off, k)))
			return -EFAULT;
		dst += k;
		n -= k;
		c->off += k;
		if (c->off == c->iov->iov_len) {
			c->iov++;
			c->off = 0;
		}
	}
	return 0;
}

/* Copies n bytes from the program's buffers into dst and moves the cursor.  0 or -EFAULT. */
static inline int tx_copy(uint8_t *dst, struct tx_cursor *c, size_t n)
{
	if (xr_unlikely(n > c->iov->iov_len - c->off))
		return tx_copy_many(dst, c, n);
	/* at the end of a buffer the cursor stays: the next copy finds no byte left there */
	if (xr_unlikely(xr_copy_from_user(dst, (const uint8_t *)c->iov->iov_base + c->off, n)))
		return -EFAULT;
	c->off += n;
	return 0;
}

/*
 * Publishes the slot at head.  It is this end's before it is the peer's: a position behind one that this end does
 * not know of would be a lie.
 */
static inline void tx_next(struct xr_shm_tx *tx, struct xr_shm_slot *s, uint64_t head)
{
	/* its meta first */
	xr_then();
	tx->head++;
	/* release: payload before header; pairs with the acquire in rx_peek */
	xr_store_release(&s->head, head);
}

/*
 * The three ways to publish.  None changes anything that the receiver looks at, or that this
 * end remembers, before all its bytes are copied: after -EFAULT nothing has happened.
 */
static inline int tx_publish_inline(struct xr_shm_tx *tx, struct tx_cursor *c, uint32_t n, uint32_t mark)
{
	struct xr_shm_slot *s = tx_slot(tx, tx->head);
	struct xr_shm_meta *m = tx_meta(tx, tx->head);

	if (xr_unlikely(tx_copy(s->data, c, n)))
		return -EFAULT;
	m->chunk = XR_NO_CHUNK;
	m->start = 0;
	m->len = n;
	m->op = XR_OP_SEND;
	m->last = 0;
	tx->open = 0;
	xr_shm_stamp(s, tx->stamp);
	tx_next(tx, s, XR_HEAD(tx->head, n, mark, XR_OP_SEND));
	tx->sent += n;
	return 0;
}

/* Appends up to n bytes to the open slot; returns what fitted. */
static ssize_t tx_append(struct xr_shm_tx *tx, struct tx_cursor *c, size_t n)
{
	struct xr_shm_slot *s = tx_slot(tx, tx->head - 1);
	struct xr_shm_meta *m = tx_meta(tx, tx->head - 1);
	size_t room = XR_CHUNK - tx->fill;
	uint8_t *to;

	if (n > room)
		n = room;
	if (n > XR_PUBLISH)
		n = XR_PUBLISH;
	if (!n)
		return 0;
	to = tx->chunk_base + (size_t)tx->chunk * XR_CHUNK + tx->fill;
	xr_prefetch_write(to + TX_AHEAD);
	if (xr_unlikely(tx_copy(to, c, n)))
		return -EFAULT;
	/*
	 * The stamp stays: something in the slot is unread, or this send has opened it, or it is a
	 * moment old.  Who finds all consumed, and does not stream, begins a new one.
	 */
	tx->way |= XR_TX_WAY_APPEND;
	tx->fill += (uint32_t)n;
	m->len += (uint32_t)n;
	/* release: bytes before the length that admits them; pairs with rx_peek */
	xr_store_release(&s->ref.len, m->len);
	tx->sent += n;
	return (ssize_t)n;
}

/* Opens a slot by reference with up to n bytes; returns what went in, 0 without a chunk. */
static ssize_t tx_publish_ref(struct xr_shm_tx *tx, struct tx_cursor *c, size_t n, int keep_open, uint32_t mark)
{
	struct xr_shm_slot *s = tx_slot(tx, tx->head);
	struct xr_shm_meta *m = tx_meta(tx, tx->head);
	uint32_t start;

	if (n > XR_PUBLISH)
		n = XR_PUBLISH;
	/* a payload does not straddle chunks; do not leave a sliver for a bulk send either */
	if (tx->chunk != XR_NO_CHUNK && XR_CHUNK - tx->fill < n)
		tx_chunk_close(tx);
	if (tx->chunk == XR_NO_CHUNK) {
		tx->chunk = tx->chunks.get(tx->chunks.ctx);
		if (tx->chunk == XR_NO_CHUNK)
			return 0;
		tx->fill = 0;
	}
	start = tx->fill;
	if (xr_unlikely(tx_copy(tx->chunk_base + (size_t)tx->chunk * XR_CHUNK + start, c, n)))
		return -EFAULT;
	tx->fill = start + (uint32_t)n;
	/* the next payload begins on a line of its own, where the chunk has one left */
	if (!keep_open)
		tx->fill = tx->fill > XR_CHUNK - 63 ? XR_CHUNK : (tx->fill + 63) & ~63u;
	tx->way |= XR_TX_WAY_REF;
	m->chunk = tx->chunk;
	m->start = start;
	m->len = (uint32_t)n;
	m->op = XR_OP_SEND;
	m->last = 0;
	s->ref.off = tx->chunk_off + (uint64_t)tx->chunk * XR_CHUNK + start;
	xr_store_relaxed(&s->ref.len, (uint32_t)n);
	xr_shm_stamp(s, tx->stamp);
	tx_next(tx, s, XR_HEAD(tx->head, 0, XR_SLOT_REF | mark | (keep_open ? XR_SLOT_OPEN : 0), XR_OP_SEND));
	tx->open = keep_open;
	tx->sent += n;
	return (ssize_t)n;
}

/* Twice in the object: the one that marks nothing does not look whether it should. */
static inline __attribute__((always_inline)) ssize_t tx_send(struct xr_shm_tx *tx, const struct iovec *iov,
							      int cnt, size_t skip, size_t len, uint32_t mark)
{
	struct tx_cursor c = { iov, 0 };
	size_t done = 0;
	ssize_t r;

	if (xr_unlikely(tx->ended))
		return -EPIPE;
	while (cnt && skip >= c.iov->iov_len) {
		skip -= c.iov->iov_len;
		c.iov++;
		cnt--;
	}
	c.off = skip;
	while (done < len) {
		size_t n = len - done, win;

		if (xr_unlikely(TX_CROWDED(tx) || tx_inflight(tx) >= tx->inflight_max / 2 ||
				tx->frozen))
			tx_reclaim(tx);
		if (xr_unlikely(tx->frozen))
			return done ? (ssize_t)done : -ESTALE;
		if (n <= XR_SLOT_INLINE && tx_free_slots(tx) && !TX_APPENDS(tx)) {
			if (xr_unlikely(tx_publish_inline(tx, &c, (uint32_t)n, mark)))
				goto fault;
			done += n;
			break;
		}
		win = tx_inflight(tx) >= tx->inflight_max ? 0 : tx->inflight_max - tx_inflight(tx);
		if (n > win)
			n = win;
		if (!n)
			break;
		if (tx->open && tx->fill < XR_CHUNK && (TX_APPENDS(tx) || done)) {
			r = tx_append(tx, &c, n);
			if (xr_unlikely(r < 0))
				goto fault;
			done += (size_t)r;
			continue;
		}
		if (!tx_free_slots(tx)) {
			tx_reclaim(tx);
			if (tx->frozen || !tx_free_slots(tx))
				break;
		}
		if (tx->chunk != XR_NO_CHUNK && XR_CHUNK - tx->fill < n) {
			/* one chunk in use at most when all before it is consumed: keep it hot */
			tx_reclaim(tx);
			if (tx->frozen)
				continue;
		}
		r = tx_publish_ref(tx, &c, n, n > XR_PUBLISH || TX_APPENDS(tx), mark);
		if (!r) {
			/* the arena has no chunk: the slots themselves still carry the stream */
			r = (ssize_t)(n < XR_SLOT_INLINE ? n : XR_SLOT_INLINE);
			if (xr_unlikely(tx_publish_inline(tx, &c, (uint32_t)r, mark)))
				goto fault;
		}
		if (xr_unlikely(r < 0))
			goto fault;
		mark = 0;
		done += (size_t)r;
	}
	return (ssize_t)done;
fault:
	/* as in the kernel what went before is sent, and the piece that has a hole is not */
	return done ? (ssize_t)done : -EFAULT;
}

ssize_t xr_shm_tx_send(struct xr_shm_tx *tx, const struct iovec *iov, int cnt, size_t skip,
		       size_t len)
{
	return tx_send(tx, iov, cnt, skip, len, 0);
}

size_t xr_shm_tx_send_next(struct xr_shm_tx *tx, const void *buf, size_t len)
{
	struct xr_shm_meta *m = tx_meta(tx, tx->head - 1);
	uint8_t *to;

	/* a large one is published as it goes, and may not fit the window */
	if (xr_unlikely(!tx->open || len > XR_PUBLISH || len > XR_CHUNK - tx->fill || tx->ended || tx->frozen ||
			tx_inflight(tx) >= tx->inflight_max / 2))
		return 0;
	to = tx->chunk_base + (size_t)tx->chunk * XR_CHUNK + tx->fill;
	xr_prefetch_write(to + TX_AHEAD);
	if (xr_unlikely(xr_copy_from_user(to, buf, len)))
		return 0;
	tx->fill += (uint32_t)len;
	m->len += (uint32_t)len;
	/* release: as in tx_append */
	xr_store_release(&tx_slot(tx, tx->head - 1)->ref.len, m->len);
	tx->sent += len;
	return len;
}

static void tx_box(struct xr_shm_tx *tx, const struct xr_shm_box *box)
{
	struct xr_shm_dir *dir = tx->dir;
	uint32_t seq = xr_load_relaxed(&dir->box_seq) | 1, i;
	uint64_t words[XR_BOX_WORDS];

	memcpy(words, box, sizeof(words));
	xr_store_relaxed(&dir->box_seq, seq);
	/* the odd number before any word; pairs with the acquire fence in xr_shm_rx_box */
	atomic_thread_fence(memory_order_release);
	for (i = 0; i < XR_BOX_WORDS; i++)
		xr_store_relaxed(&dir->box[i], words[i]);
	/* release: all words before the even number */
	xr_store_release(&dir->box_seq, seq + 1);
}

void xr_shm_tx_box_end(struct xr_shm_tx *tx, uint64_t end)
{
	/* relaxed: a receiver that is faster takes the longer message for one that never ends */
	xr_store_relaxed(&tx->dir->box[offsetof(struct xr_shm_box, end) / 8], end);
}

ssize_t xr_shm_tx_send_traced(struct xr_shm_tx *tx, const struct iovec *iov, int cnt, size_t skip,
			      size_t len, struct xr_shm_box *box)
{
	tx_reclaim(tx);
	box->end = 0;
	if (tx->ended || tx->frozen || !tx_free_slots(tx))
		return tx_send(tx, iov, cnt, skip, len, 0);
	/* it begins a slot of its own */
	tx->open = 0;
	box->begin = tx->sent;
	box->end = tx->sent + len;
	box->slot = tx->head;
	tx_box(tx, box);
	return tx_send(tx, iov, cnt, skip, len, XR_SLOT_TRACED);
}

int xr_shm_tx_control(struct xr_shm_tx *tx, enum xr_slot_op op, uint64_t arg)
{
	struct xr_shm_slot *s;
	struct xr_shm_meta *m;

	tx_reclaim(tx);
	if (tx->frozen)
		return -ESTALE;
	if (tx->head - tx->done > tx->mask)
		return -EAGAIN;
	s = tx_slot(tx, tx->head);
	m = tx_meta(tx, tx->head);
	m->chunk = XR_NO_CHUNK;
	m->len = 0;
	m->op = (uint8_t)op;
	m->last = 0;
	s->arg = arg;
	xr_shm_stamp(s, tx->stamp);
	tx->open = 0;
	tx_next(tx, s, XR_HEAD(tx->head, 0, 0, op));
	if (op == XR_OP_END)
		tx->ended = 1;
	return 0;
}

size_t xr_shm_tx_space(struct xr_shm_tx *tx)
{
	size_t win;

	tx_reclaim(tx);
	if (tx->frozen || tx->ended || tx_inflight(tx) >= tx->inflight_max)
		return 0;
	win = tx->inflight_max - tx_inflight(tx);
	if (tx_free_slots(tx))
		return win;
	if (tx->open && tx->fill < XR_CHUNK)
		return win < XR_CHUNK - tx->fill ? win : XR_CHUNK - tx->fill;
	return 0;
}

uint64_t xr_shm_tx_unconsumed(struct xr_shm_tx *tx)
{
	uint32_t seq, byte, s;
	uint64_t gone = 0;

	if (!tx->frozen)
		tx_reclaim(tx);
	tx_position(tx, xr_load_acquire(&tx->dir->consumed), &seq, &byte);
	/* what was consumed before a freeze is not reclaimed */
	for (s = tx->done; s != seq; s++)
		gone += tx_meta(tx, s)->len;
	return tx->sent - tx->acked - gone - byte;
}

int xr_shm_tx_all_consumed(const struct xr_shm_tx *tx)
{
	uint64_t c = xr_load_acquire(&tx->dir->consumed);
	uint32_t seq = XR_CONSUMED_SEQ(c), head = tx->head;

	for (; head != tx->done && tx_meta(tx, head - 1)->op != XR_OP_SEND; head--)
		if (seq == head)
			return 1;
	if (seq == head || head == tx->done)
		return 1;
	return seq == head - 1 && XR_CONSUMED_BYTE(c) >= tx_meta(tx, seq)->len;
}

int xr_shm_tx_armed(struct xr_shm_tx *tx, uint32_t *waiter)
{
	uint64_t a;

	/* pairs with the fence in xr_shm_rx_arm: publish, then look for a sleeper */
	xr_fence_store_load();
	a = xr_load_relaxed(&tx->dir->arm);
	if (xr_likely(a == tx->arm_seen))
		return 0;
	tx->arm_seen = a;
	if (a & XR_ARM_FROZEN)
		xr_store_relaxed(&tx->frozen, 1);
	*waiter = XR_ARM_WAITER(a);
	return *waiter != 0;
}

void xr_shm_tx_want_space(struct xr_shm_tx *tx, uint32_t waiter)
{
	/* a quarter of what is in flight must be consumed before the wake-up pays */
	uint32_t used = tx->head - tx->done;
	uint32_t thr = tx->done + (used + 3) / 4;

	/* the open slot is left only when the next one comes: never wait beyond its front */
	if (thr - tx->done >= used && used)
		thr = tx->head - 1;
	tx->tx_gen++;
	xr_store_relaxed(&tx->dir->tx_arm, ((uint64_t)thr << 32) | ((uint32_t)tx->tx_gen << 16) |
			 (waiter & 0xffffu));
	/* pairs with the cas of the receiver's commit: ask, then look at consumed again */
	xr_fence_store_load();
}

void xr_shm_tx_freeze(struct xr_shm_tx *tx)
{
	uint64_t c;

	/* seq_cst RMW: no commit of the receiver can succeed after it */
	c = atomic_fetch_or(&tx->dir->consumed, XR_FROZEN | XR_REPLAYING);
	xr_store_relaxed(&tx->frozen, 1);
	if (xr_unlikely(tx_position(tx, c, &tx->replay_seq, &tx->replay_byte)))
		tx->lied = 1;
	tx->open = 0;
}

int xr_shm_tx_is_frozen(struct xr_shm_tx *tx)
{
	if (!tx->frozen && (xr_load_acquire(&tx->dir->consumed) & XR_FROZEN))
		xr_store_relaxed(&tx->frozen, 1);
	return tx->frozen != 0;
}

size_t xr_shm_tx_replay(struct xr_shm_tx *tx, struct iovec *iov, int cnt)
{
	uint32_t seq = tx->replay_seq, byte = tx->replay_byte;
	int n = 0;

	for (; n < cnt && seq != tx->head; seq++, byte = 0) {
		struct xr_shm_meta *m = tx_meta(tx, seq);
		uint8_t *p;

		if (m->len == byte)
			continue;
		p = m->chunk == XR_NO_CHUNK ? tx_slot(tx, seq)->data :
			tx->chunk_base + (size_t)m->chunk * XR_CHUNK + m->start;
		iov[n].iov_base = p + byte;
		iov[n].iov_len = m->len - byte;
		n++;
	}
	return (size_t)n;
}

void xr_shm_tx_replayed(struct xr_shm_tx *tx, size_t n)
{
	while (tx->replay_seq != tx->head) {
		uint32_t left = tx_meta(tx, tx->replay_seq)->len - tx->replay_byte;

		if (n < left) {
			tx->replay_byte += (uint32_t)n;
			return;
		}
		n -= left;
		tx->replay_seq++;
		tx->replay_byte = 0;
	}
}

uint64_t xr_shm_tx_owed(struct xr_shm_tx *tx)
{
	uint64_t n = 0;
	uint32_t seq;

	for (seq = tx->replay_seq; seq != tx->head; seq++)
		n += tx_meta(tx, seq)->len;
	return n - tx->replay_byte;
}

void xr_shm_tx_rest(struct xr_shm_tx *tx)
{
	if (tx->chunk == XR_NO_CHUNK && tx->done == tx->head)
		return;
	if (!tx->frozen)
		tx_reclaim(tx);
	if (tx->done == tx->head)
		tx_chunk_close(tx);
}

void xr_shm_tx_left(struct xr_shm_tx *tx)
{
	uint32_t seq;

	/* `done` may be at a slot of which it does not say how much is consumed, nor `acked` be what is before it */
	tx->part = 0;
	tx->open = 0;
	tx->sent = tx->acked;
	for (seq = tx->done; seq != tx->head; seq++) {
		tx->sent += tx_meta(tx, seq)->len;
		tx->ended |= tx_meta(tx, seq)->op == XR_OP_END;
	}
}

void xr_shm_tx_destroy(struct xr_shm_tx *tx)
{
	tx_chunk_close(tx);
	for (; tx->done != tx->head; tx->done++) {
		struct xr_shm_meta *m = tx_meta(tx, tx->done);

		if (m->last)
			tx->chunks.put(tx->chunks.ctx, m->chunk);
		m->last = 0;
	}
	xr_store_relaxed(&tx->frozen, 1);
}
