/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The ring as a queue of messages: what the verbs face (fabric_shm.c) puts on the
 * same slots, chunks and control lines that the byte stream uses.
 *
 * A slot is one operation or one piece of one.  The receiver works through the
 * slots in order and says how far it came in `taken` (the sender's requests before
 * it are complete); it may hold on to payload of slots that it has taken, and gives
 * them back through `consumed`.  Nothing here is ever open or frozen.
 *
 * Layout of a slot: SEND and READ_RESP without immediate carry their inline payload
 * from the first byte of the slot's union; every other operation has its parameters
 * in `ref` and its inline payload behind it.
 *
 * Locking and trust are those of shm_ring.h.
 */
#ifndef XR_SHM_MSG_H
#define XR_SHM_MSG_H

#include "shm_ring.h"

#define XR_MSG_PARAMS	40u				/* bytes of `ref` */
#define XR_MSG_INLINE	(XR_SLOT_INLINE - XR_MSG_PARAMS)	/* payload beside parameters */

struct xr_msg {
	uint32_t op, flags;	/* XR_OP_*; XR_SLOT_EOM, XR_SLOT_IMM */
	uint32_t len;		/* payload of this slot, 0..XR_CHUNK */
	uint32_t rkey;
	uint64_t arg, raddr, wr;
	const uint8_t *data;	/* looked at: the payload, in the peer's arena */
};

/*
 * Publishes one slot with m->len bytes of iov from byte `skip`.  The payload is
 * copied and lies in one piece.  -EAGAIN: no slot or no window; -ENOBUFS: it needs
 * a chunk and there is none (xr_shm_msg_inline() bytes fit without one).
 */
int xr_shm_msg_post(struct xr_shm_tx *tx, const struct xr_msg *m, const struct iovec *iov,
		    size_t skip);

/* Largest payload that needs no chunk. */
uint32_t xr_shm_msg_inline(uint32_t op, uint32_t flags);

/* Has the peer executed every slot before `seq`?  Looks at the shared word when it must. */
int xr_shm_msg_taken(struct xr_shm_tx *tx, uint32_t *cache, uint32_t seq);

/* Asks to be told when `seq` is taken or given back; the caller looks again afterwards. */
void xr_shm_msg_want(struct xr_shm_tx *tx, uint32_t seq, uint32_t waiter);

/* Slot `seq` of the peer: 1 with a checked private copy, 0 not there yet, -EPROTO. */
int xr_shm_msg_look(struct xr_shm_rx *rx, uint32_t seq, struct xr_msg *m);

/*
 * Tells the sender: slots before `taken` are executed, slots before `consumed` are
 * given back.  -ESTALE: the shared word was overwritten.  Look for a waiting sender
 * afterwards with xr_shm_rx_wants_notice().
 */
int xr_shm_msg_advance(struct xr_shm_rx *rx, uint32_t taken, uint32_t consumed);

#endif
