/* SPDX-License-Identifier: BSD-2-Clause */
/* The sending end's bookkeeping, shared by the ring's two faces: stream and messages. */
#ifndef XR_SHM_RING_TX_H
#define XR_SHM_RING_TX_H

#include <errno.h>
#include "shm_ring.h"

static inline struct xr_shm_slot *tx_slot(const struct xr_shm_tx *tx, uint32_t seq)
{
	return &tx->slots[seq & tx->mask];
}

static inline struct xr_shm_meta *tx_meta(const struct xr_shm_tx *tx, uint32_t seq)
{
	return &tx->meta[seq & tx->mask];
}

/*
 * The receiver's position.  -EPROTO: it is a lie, further on than what this end has published or behind what
 * was consumed before; seq and byte are then the last one that was none.
 */
static inline int tx_position(const struct xr_shm_tx *tx, uint64_t consumed, uint32_t *seq, uint32_t *byte)
{
	uint32_t s = XR_CONSUMED_SEQ(consumed), b = XR_CONSUMED_BYTE(consumed);

	if (xr_unlikely(s - tx->done > tx->head - tx->done || (s == tx->done && b < tx->part) ||
			b > (s == tx->head ? 0 : tx_meta(tx, s)->len))) {
		*seq = tx->done;
		*byte = tx->part;
		return -EPROTO;
	}
	*seq = s;
	*byte = b;
	return 0;
}

static inline void tx_chunk_close(struct xr_shm_tx *tx)
{
	uint32_t seq;

	/* what is open lies in it: should the next slot not come about, nothing may be appended to that one */
	tx->open = 0;
	if (tx->chunk == XR_NO_CHUNK)
		return;
	/* the youngest slot that uses the chunk frees it; if all are reclaimed, do it now */
	for (seq = tx->head; seq != tx->done; seq--) {
		struct xr_shm_meta *m = tx_meta(tx, seq - 1);

		if (m->chunk == tx->chunk) {
			m->last = 1;
			tx->chunk = XR_NO_CHUNK;
			return;
		}
	}
	tx->chunks.put(tx->chunks.ctx, tx->chunk);
	tx->chunk = XR_NO_CHUNK;
}

static inline void tx_reclaim(struct xr_shm_tx *tx)
{
	/* acquire: pairs with the receiver's cas in commit, it has read what it lets go of */
	uint64_t c = xr_load_acquire(&tx->dir->consumed);
	uint32_t seq, byte;
	int lie = tx_position(tx, c, &seq, &byte);

	if (xr_unlikely(lie || (c & XR_FROZEN))) {
		tx->lied |= lie != 0;
		xr_store_relaxed(&tx->frozen, 1);
		return;
	}
	while (tx->done != seq) {
		struct xr_shm_meta *m = tx_meta(tx, tx->done);

		tx->acked += m->len;
		if (m->last)
			tx->chunks.put(tx->chunks.ctx, m->chunk);
		m->last = 0;
		m->chunk = XR_NO_CHUNK;
		tx->done++;
	}
	tx->part = byte;
	/* all consumed and nothing open: start over at the chunk's hot beginning */
	if (tx->done == tx->head)
		tx->fill = 0;
}

#endif
