/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The seq-ack window of one channel: pure arithmetic, no I/O, no clock, no allocation.
 *
 * A data message takes one credit of messages and its length in credits of bytes; both come
 * back with the cumulative ack, which says up to which message the receiver has processed.
 * Acks ride on whatever is sent; one is sent alone when half a window is owed.
 *
 * A message is charged at most half of the byte window.  That bounds what any message waits
 * for: a sender that is held back by bytes has more than half a window out, which is what
 * makes the receiver ack.
 *
 * Control messages (acks that go alone, a close and its answer) take no credit, else two full
 * windows would wait for each other.  A receiver posts XR_WINDOW_CTL more receives than it
 * grants messages, and never runs dry, because of what is on the way at once
 *	XR_WINDOW_ACKS	cover half a window each, of messages or of bytes, all in flight together
 *	XR_WINDOW_LAZY	are sent sooner, for a sender that waits for its memory; their number is
 *			limited by the count of control messages that every header acks
 *	XR_WINDOW_ANSWERS are sent for XR_WINDOW_LAZY control messages of the peer, all in flight
 *			together; without them two ends that have spent their lazy ones at the
 *			same moment, and have no more data, would wait for each other
 *	2		are the close and its answer
 *
 * Sequence numbers are 32 bits and wrap.  The transport keeps order: a sequence number or an
 * ack that is not possible is -EPROTO, and the channel ends.
 *
 * Locking: the caller's.
 */
#ifndef XR_WINDOW_H
#define XR_WINDOW_H

#include <stdint.h>

#define XR_WINDOW_MAX_MSGS	1024u		/* receives are posted for each */
#define XR_WINDOW_MAX_BYTES	(1ull << 31)
#define XR_WINDOW_ACKS		4u
#define XR_WINDOW_LAZY		4u
#define XR_WINDOW_ANSWERS	2u
#define XR_WINDOW_CTL		(XR_WINDOW_ACKS + XR_WINDOW_LAZY + XR_WINDOW_ANSWERS + 2)

struct xr_window {
	/* sending: una <= nxt, limits are the peer's grant */
	uint32_t snd_una, snd_nxt;
	uint32_t snd_msgs;
	uint64_t snd_bytes, snd_out;	/* limit, and charged for [una, nxt) */
	uint32_t *charge;		/* by sequence number & mask; the caller's memory */
	uint32_t mask;
	/* receiving: acked <= done <= nxt, limits are our grant */
	uint32_t rcv_acked, rcv_done, rcv_nxt;
	uint32_t rcv_msgs;
	uint64_t rcv_bytes, rcv_owed, rcv_out;	/* limit, charged for [acked, done), for [acked, nxt) */
	/* control messages, modulo 256: sent, acked by the peer, received, told to the peer */
	uint8_t ctl_sent, ctl_acked, ctl_got, ctl_told;
};

/*
 * Both directions start at sequence number `first`.  charge: room for `ring` numbers, a power
 * of two and at least snd_msgs.  -EINVAL: a limit is 0 or beyond the maximum, or ring is wrong.
 */
int xr_window_init(struct xr_window *w, uint32_t first, uint32_t snd_msgs, uint64_t snd_bytes,
		   uint32_t rcv_msgs, uint64_t rcv_bytes, uint32_t *charge, uint32_t ring);

/*
 * The peer grants another number of messages from now on; fewer than are out close it.  -EPROTO: none, or
 * beyond the ring.
 */
int xr_window_granted(struct xr_window *w, uint32_t msgs);
/*
 * This end does: more at once, with the receives for them posted; fewer when the peer is known to have
 * heard of it.  -EINVAL.
 */
int xr_window_grant(struct xr_window *w, uint32_t msgs);

/* 1 when a message of len bytes may go now. */
int xr_window_open(const struct xr_window *w, uint64_t len);
/* Takes the credits and the next sequence number.  -EAGAIN: closed. */
int xr_window_send(struct xr_window *w, uint64_t len, uint32_t *seq);
/*
 * The peer has processed every message before `ack`.  Number of messages that are settled by
 * it, 0 for an ack that says nothing new; -EPROTO: not sent yet, or settled before.
 */
int xr_window_acked(struct xr_window *w, uint32_t ack);

/* A data message arrived.  -EPROTO: not the next one, or beyond the grant. */
int xr_window_receive(struct xr_window *w, uint32_t seq, uint64_t len);
/* The oldest one that is not done is; len as it was received.  -EINVAL: there is none. */
int xr_window_done(struct xr_window *w, uint64_t len);
/* 1 when so much is owed that an ack goes alone. */
int xr_window_ack_due(const struct xr_window *w);
/* The ack to put into a message that is sent for certain; nothing is owed afterwards. */
uint32_t xr_window_ack(struct xr_window *w);

/* --- control messages --- */

/* One is sent for certain; one arrived. */
void xr_window_ctl_send(struct xr_window *w);
void xr_window_ctl_receive(struct xr_window *w);
/* What a header says of those that arrived, and hears of those that were sent.  -EPROTO. */
uint8_t xr_window_ctl_ack(struct xr_window *w);
int xr_window_ctl_acked(struct xr_window *w, uint8_t ack);
/* 1 when an ack may go alone before it is due. */
int xr_window_lazy(const struct xr_window *w);
/* 1 when control messages of the peer are to be answered: at once; when it is quiet. */
int xr_window_answer_due(const struct xr_window *w);
int xr_window_answer_lazy(const struct xr_window *w);

#endif
