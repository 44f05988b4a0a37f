/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <string.h>
#include "copy.h"
#include "mem.h"
#include "shm_msg.h"
#include "shm_ring_tx.h"

_Static_assert(offsetof(struct xr_shm_slot, ref.wr) + 8 == 16 + XR_MSG_PARAMS, "layout");

static int msg_has_params(uint32_t op, uint32_t flags)
{
	return (op != XR_OP_SEND && op != XR_OP_READ_RESP) || (flags & XR_SLOT_IMM);
}

uint32_t xr_shm_msg_inline(uint32_t op, uint32_t flags)
{
	return msg_has_params(op, flags) ? XR_MSG_INLINE : XR_SLOT_INLINE;
}

static void msg_copy(uint8_t *dst, const struct iovec *iov, size_t skip, size_t n)
{
	while (n) {
		size_t k;

		if (skip >= iov->iov_len) {
			skip -= iov->iov_len;
			iov++;
			continue;
		}
		k = iov->iov_len - skip < n ? iov->iov_len - skip : n;
		xr_copy(dst, (const uint8_t *)iov->iov_base + skip, k);
		dst += k;
		n -= k;
		skip = 0;
		iov++;
	}
}

/* Room for n bytes in one chunk: its place, or -ENOBUFS. */
static int msg_chunk(struct xr_shm_tx *tx, uint32_t n)
{
	if (tx->chunk != XR_NO_CHUNK && XR_CHUNK - tx->fill < n) {
		/* when all before is given back, the chunk's hot beginning serves again */
		tx_reclaim(tx);
		if (XR_CHUNK - tx->fill < n)
			tx_chunk_close(tx);
	}
	if (tx->chunk == XR_NO_CHUNK) {
		tx->chunk = tx->chunks.get(tx->chunks.ctx);
		if (tx->chunk == XR_NO_CHUNK)
			return -ENOBUFS;
		tx->fill = 0;
	}
	return 0;
}

int xr_shm_msg_post(struct xr_shm_tx *tx, const struct xr_msg *m, const struct iovec *iov,
		    size_t skip)
{
	struct xr_shm_slot *s = tx_slot(tx, tx->head);
	struct xr_shm_meta *meta = tx_meta(tx, tx->head);
	uint32_t used = tx->head - tx->done, flags = m->flags, hlen = m->len;
	int params = msg_has_params(m->op, m->flags), r;
	uint64_t inflight = tx->sent - tx->acked;

	if (xr_unlikely(used > tx->mask / 4 || inflight >= tx->inflight_max / 2)) {
		tx_reclaim(tx);
		used = tx->head - tx->done;
		inflight = tx->sent - tx->acked;
	}
	if (xr_unlikely(used > tx->mask || (inflight && inflight + m->len > tx->inflight_max)))
		return -EAGAIN;
	meta->chunk = XR_NO_CHUNK;
	meta->start = 0;
	if (m->len <= (params ? XR_MSG_INLINE : XR_SLOT_INLINE)) {
		msg_copy(s->data + (params ? XR_MSG_PARAMS : 0), iov, skip, m->len);
	} else {
		r = msg_chunk(tx, m->len);
		if (xr_unlikely(r))
			return r;
		meta->chunk = tx->chunk;
		meta->start = tx->fill;
		msg_copy(tx->chunk_base + (size_t)tx->chunk * XR_CHUNK + tx->fill, iov, skip, m->len);
		s->ref.off = tx->chunk_off + (uint64_t)tx->chunk * XR_CHUNK + tx->fill;
		xr_store_relaxed(&s->ref.len, m->len);
		tx->fill += m->len;
		tx->fill = tx->fill > XR_CHUNK - 63 ? XR_CHUNK : (tx->fill + 63) & ~63u;
		flags |= XR_SLOT_REF;
		hlen = 0;
	}
	if (params) {
		s->ref.arg = m->arg;
		s->ref.rkey = m->rkey;
		s->ref.raddr = m->raddr;
		s->ref.wr = m->wr;
	}
	meta->len = m->len;
	meta->op = (uint8_t)m->op;
	meta->last = 0;
	/* release: payload and parameters before the header; pairs with xr_shm_msg_look */
	xr_store_release(&s->head, XR_HEAD(tx->head, hlen, flags, m->op));
	tx->head++;
	tx->sent += m->len;
	return 0;
}

int xr_shm_msg_taken(struct xr_shm_tx *tx, uint32_t *cache, uint32_t seq)
{
	uint32_t t;

	if ((int32_t)(*cache - seq) >= 0)
		return 1;
	/* acquire: pairs with xr_shm_msg_advance, what the peer did for these slots is done */
	t = xr_load_acquire(&tx->dir->taken);
	/* it only grows, and not beyond what was published: anything else is a lie */
	if (t - *cache <= tx->head - *cache)
		*cache = t;
	return (int32_t)(*cache - seq) >= 0;
}

void xr_shm_msg_want(struct xr_shm_tx *tx, uint32_t seq, uint32_t waiter)
{
	tx->tx_gen++;
	xr_store_relaxed(&tx->dir->tx_arm, ((uint64_t)seq << 32) | ((uint32_t)tx->tx_gen << 16) |
			 (waiter & 0xffffu));
	/* pairs with the fence in xr_shm_msg_advance: ask, then look again */
	xr_fence_store_load();
}

int xr_shm_msg_look(struct xr_shm_rx *rx, uint32_t seq, struct xr_msg *m)
{
	struct xr_shm_slot *s = &rx->slots[seq & rx->mask];
	/* acquire: pairs with the release of head in xr_shm_msg_post */
	uint64_t h = xr_load_acquire(&s->head), off;
	int params;

	if (XR_HEAD_SEQ(h) != seq)
		return 0;
	m->op = XR_HEAD_OP(h);
	m->flags = XR_HEAD_FLAGS(h);
	if (m->op == XR_OP_NONE || m->op >= XR_OP_MAX ||
	    (m->flags & ~(XR_SLOT_REF | XR_SLOT_EOM | XR_SLOT_IMM)))
		return -EPROTO;
	params = msg_has_params(m->op, m->flags);
	if (params) {
		m->arg = s->ref.arg;
		m->rkey = s->ref.rkey;
		m->raddr = s->ref.raddr;
		m->wr = s->ref.wr;
	}
	if (!(m->flags & XR_SLOT_REF)) {
		m->len = XR_HEAD_LEN(h);
		m->data = s->data + (params ? XR_MSG_PARAMS : 0);
		return m->len <= (params ? XR_MSG_INLINE : XR_SLOT_INLINE) ? 1 : -EPROTO;
	}
	/* the peer may change both words while they are read: one load each, then the check */
	m->len = xr_load_relaxed(&s->ref.len);
	off = __atomic_load_n(&s->ref.off, __ATOMIC_RELAXED);
	if (!m->len || m->len > XR_CHUNK || off > rx->arena_len || rx->arena_len - off < m->len)
		return -EPROTO;
	m->data = rx->arena + off;
	return 1;
}

int xr_shm_msg_advance(struct xr_shm_rx *rx, uint32_t taken, uint32_t consumed)
{
	uint64_t want = XR_CONSUMED(consumed, 0), old = rx->committed;

	/* where xr_shm_rx_wants_notice() believes this end to be */
	rx->seq = taken;
	/* release: what was executed before the word that says so; pairs with xr_shm_msg_taken */
	xr_store_release(&rx->dir->taken, taken);
	if (want == old) {
		/* pairs with the fence in xr_shm_msg_want: say how far, then look for a waiter */
		xr_fence_store_load();
		return 0;
	}
	/* seq_cst: payload is read before it is given back, and tx_arm is looked at after */
	if (xr_unlikely(!xr_cas(&rx->dir->consumed, &old, want)))
		return -ESTALE;
	rx->committed = want;
	return 0;
}
