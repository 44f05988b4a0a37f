/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The wire of the shm fabric: one direction of one reliable connection.
 *
 * A direction lives in the arena of its sender and is mapped by both ends:
 *
 *	struct xr_shm_dir	control lines, one writer each (but `consumed`)
 *	struct xr_shm_slot[n]	the send queue, which is at once the peer's receive
 *				buffers and its completion queue: one slot carries
 *				header, sequence number and up to XR_SLOT_INLINE bytes
 *	chunks			64 KiB pieces for larger payloads; a slot refers to
 *				them by arena offset, and the receiver copies from
 *				there into the program's buffer (receive by reference)
 *
 * A slot and its chunk are the retained copy: they are not re-used before the
 * receiver has consumed them, so that the sender can replay the stream from any
 * unconsumed byte.  A slot may be *open*: the sender appends to its chunk and
 * raises `len`; this is how small sends coalesce behind a receiver that is behind, or
 * that could not keep up one by one, and how a large send is published every 16 KiB.
 *
 * `consumed` is the one word both ends write: the receiver advances it by
 * compare-and-swap, and either end may set FROZEN in it.  Once frozen `consumed` stays,
 * and the sender replays from that very byte on the kernel socket.  That is the whole
 * of retreat on this fabric, and it needs no answer from the other end.  A receiver that
 * maps the segment need not wait for the replay: it reads on in the ring, whose content is
 * final, and throws the same number of bytes away when they come over the socket.
 *
 * A slot's stamp orders what several directions have at the same time.  It is a hint: nobody
 * checks it, and who reads it allows for a lie.
 *
 * Trust: the receiver validates all it reads (sequence, lengths, offsets); the
 * sender keeps lengths and offsets of what it retains in its own memory and reads
 * from the shared words nothing but positions.  One that the receiver cannot have ends the
 * direction (`lied`): what it has read is unknown then, and no replay could be right.
 *
 * Locking: one producer and one consumer at a time per direction, the caller's
 * locks see to that.  No function here makes a system call or allocates.
 *
 * Death: what both ends keep is memory of a family of processes, any of which may be killed between two
 * instructions.  Whoever gets the lock that it held calls xr_shm_tx_left() or xr_shm_rx_left() first.  So
 * each change is made final by one store, and what it takes is written before that store (xr_then: the
 * instructions are in this order, and more than that a process that is killed does not need).
 */
#ifndef XR_SHM_RING_H
#define XR_SHM_RING_H

#include <stdint.h>
#include <sys/uio.h>
#include "atomic.h"

#define XR_SLOT_SIZE	128
#define XR_SLOT_INLINE	112
#define XR_CHUNK	65536u		/* bytes; also the largest slot payload */
#define XR_PUBLISH	16384u		/* bulk is published at this grain */
#define XR_RING_MIN	16u
#define XR_RING_MAX	4096u
#define XR_RING_CTL	4u		/* slots that only control operations may take */

enum xr_slot_op {
	XR_OP_NONE = 0,
	XR_OP_SEND = 1,		/* payload inline or by reference */
	XR_OP_START = 2,	/* arg: stream offset at which this direction leaves TCP */
	XR_OP_END = 3,		/* the sender's FIN; arg: XR_END_CLOSE when it also closed */
	XR_OP_WRITE = 4,	/* one-sided operations of the verbs face (fabric_shm.c) */
	XR_OP_WRITE_IMM = 5,
	XR_OP_READ = 6,
	XR_OP_READ_RESP = 7,
	XR_OP_NAK = 8,
	XR_OP_MAX
};

#define XR_END_CLOSE	1u	/* nobody will read at the sender's end any more */

#define XR_SLOT_REF	1u	/* payload lies in a chunk */
#define XR_SLOT_OPEN	2u	/* the sender may still append */
#define XR_SLOT_EOM	4u	/* last slot of a message (message mode) */
#define XR_SLOT_IMM	8u	/* immediate data in `arg` low 32 bits */
#define XR_SLOT_TRACED	16u	/* first slot of a send that is traced: the direction's box says more */

struct xr_shm_slot {
	/* seq:32 | len:16 | flags:8 | op:8, stored last with release */
	_Atomic uint64_t head;
	/* the sender's cycle count, 0: unknown; says who of several senders was first */
	_Atomic uint64_t stamp;
	union {
		uint8_t data[XR_SLOT_INLINE];
		struct {
			uint64_t arg;
			uint64_t off;			/* arena offset of the payload */
			_Atomic uint32_t len;		/* bytes published so far, <= XR_CHUNK */
			uint32_t rkey;
			uint64_t raddr;
			uint64_t wr;
		} ref;
		uint64_t arg;
	};
} __attribute__((aligned(XR_SLOT_SIZE)));

_Static_assert(sizeof(struct xr_shm_slot) == XR_SLOT_SIZE, "layout");

#define XR_HEAD(seq, len, flags, op) \
	(((uint64_t)(uint32_t)(seq) << 32) | ((uint64_t)(uint16_t)(len) << 16) | \
	 ((uint64_t)(uint8_t)(flags) << 8) | (uint8_t)(op))
#define XR_HEAD_SEQ(h)		((uint32_t)((h) >> 32))
#define XR_HEAD_LEN(h)		((uint32_t)((h) >> 16) & 0xffffu)
#define XR_HEAD_FLAGS(h)	((uint32_t)((h) >> 8) & 0xffu)
#define XR_HEAD_OP(h)		((uint32_t)(h) & 0xffu)

/*
 * consumed: frozen:1 | replaying:1 | bytes in the current slot:30 | current slot's sequence:32
 *
 * FROZEN without REPLAYING is the receiver's word alone: as long as the sender has not
 * taken notice, the receiver may move the frozen position on (xr_shm_rx_seal).
 */
#define XR_FROZEN		(1ull << 63)
#define XR_REPLAYING		(1ull << 62)
#define XR_CONSUMED(seq, byte)	(((uint64_t)(byte) << 32) | (uint32_t)(seq))
#define XR_CONSUMED_SEQ(c)	((uint32_t)(c))
#define XR_CONSUMED_BYTE(c)	((uint32_t)((c) >> 32) & 0x3fffffffu)

/*
 * arm: generation:32 | flags:16 | waiter:16.  Written by the end that wants to be
 * told; the other end tells it once per generation.
 */
#define XR_ARM_WAITER(a)	((uint32_t)(a) & 0xffffu)
#define XR_ARM_GEN(a)		((uint32_t)((a) >> 32))
#define XR_ARM_FROZEN		(1ull << 16)	/* receiver froze: sender must replay */

/*
 * What goes with a send that is traced (trace.h), one of a direction at a time: before its first slot is published
 * the sender puts it into the direction's box, and the receiver reads it there before it lets go of the last byte.
 * Times are the sender's.
 */
struct xr_shm_box {
	uint64_t id[2], span;
	uint64_t begin, end;	/* payload bytes of the direction before it, and with it */
	uint64_t slot;		/* the number of its first slot */
	uint64_t queued, posted;
	/* the least that a message of the other direction took, by the two clocks; INT64_MAX: unknown */
	int64_t heard;
};

#define XR_BOX_WORDS	(sizeof(struct xr_shm_box) / 8)

struct xr_shm_dir {
	/* written by the receiver, FROZEN by either */
	_Atomic uint64_t consumed __attribute__((aligned(XR_PAIRLINE)));
	/* message face, written by the receiver: slots before this one are executed */
	_Atomic uint32_t taken;
	/* written by the receiver, read by the sender after each publication */
	_Atomic uint64_t arm __attribute__((aligned(XR_PAIRLINE)));
	_Atomic uint32_t ready;		/* the receiver can take over this direction */
	_Atomic uint32_t room;		/* its socket buffer, if its program bounded it; else 0 */
	/* written by the sender, read by the receiver after each consumption */
	_Atomic uint64_t tx_arm __attribute__((aligned(XR_PAIRLINE)));	/* threshold slot:32 | gen:16 | waiter:16 */
	_Atomic uint32_t state;		/* XR_DIR_*, of the sender's end */
	_Atomic uint32_t gen;		/* changes each time the block is given to a flow */
	_Atomic uint64_t sent_at;	/* xr_cycles() of the last publication, to a millisecond; 0: none */
	_Atomic uint32_t box_seq;	/* odd while the box is written */
	_Atomic uint64_t box[XR_BOX_WORDS];
} __attribute__((aligned(XR_PAIRLINE)));

/* END is in the ring, or nothing will follow what is in it: the peer may show RDHUP before it reads so far */
#define XR_DIR_ENDED	1u
#define XR_DIR_CLOSED	2u	/* the program closed its end, nothing will be read there */
#define XR_DIR_GONE	4u	/* this end touches the peer's direction no more */
/* after GONE, while the blocks are not given away: how both ends agree to come back */
#define XR_DIR_BACK	8u	/* this end would be on a fabric again */
#define XR_DIR_NAMED	16u	/* the connecting end: the rendezvous point is open */
#define XR_DIR_STAYS	32u	/* this end stays on TCP for good */
/* of the module for other hosts, with GONE: */
#define XR_DIR_LOST	64u	/* the channel is gone */
#define XR_DIR_LEFT	128u	/* the peer has left the fabric, and waits for this end to do so */

#define XR_TXARM_SLOT(a)	((uint32_t)((a) >> 32))
#define XR_TXARM_GEN(a)		((uint32_t)((a) >> 16) & 0xffffu)
#define XR_TXARM_WAITER(a)	((uint32_t)(a) & 0xffffu)

/* Bytes of arena that a direction with n slots takes (control lines and slots). */
#define XR_DIR_BYTES(n)		(sizeof(struct xr_shm_dir) + (size_t)(n) * XR_SLOT_SIZE)

/* What the sender keeps about one slot, in memory the peer does not see. */
struct xr_shm_meta {
	uint32_t chunk;		/* index of the chunk, or XR_NO_CHUNK when inline */
	uint32_t start;		/* payload's offset within the chunk */
	uint32_t len;
	uint8_t op;
	uint8_t last;		/* the chunk is free once this slot is consumed */
};

#define XR_NO_CHUNK	UINT32_MAX

/* Where chunks come from: the arena of the link, owned by the sender's process. */
struct xr_shm_chunks {
	uint32_t (*get)(void *ctx);			/* index or XR_NO_CHUNK */
	void (*put)(void *ctx, uint32_t chunk);
	void *ctx;
};

#define XR_TX_WAY_REF	1u	/* bytes went into a chunk, by a slot of their own */
#define XR_TX_WAY_APPEND	2u	/* ... behind those of an open slot */

/* Sender's end.  Lives in family memory; guarded by the flow's tx lock. */
struct xr_shm_tx {
	struct xr_shm_dir *dir;
	struct xr_shm_slot *slots;
	uint8_t *chunk_base;		/* where chunk 0 lies in this process */
	uint64_t chunk_off;		/* arena offset of chunk 0 */
	struct xr_shm_chunks chunks;
	struct xr_shm_meta *meta;	/* one per slot */
	uint32_t mask;
	uint32_t head;			/* sequence of the next slot to publish; first is 1 */
	uint32_t done;			/* slots before this one are consumed and reclaimed */
	uint32_t chunk;			/* the chunk being filled, or XR_NO_CHUNK */
	uint32_t fill;
	uint32_t open;			/* 1: slot head-1 may be appended to */
	uint32_t part;			/* bytes of slot `done` known to be consumed */
	uint32_t inflight_max;		/* window in bytes */
	uint64_t sent;			/* payload bytes published */
	uint64_t acked;			/* payload bytes known to be consumed (lags) */
	uint64_t arm_seen;
	uint64_t stamp;			/* for what is published next; the caller sets it (xr_cycles) */
	/*
	 * This end has seen or set FROZEN.  Here and in the receiver's end: written under the lock, where
	 * relaxed does; who looks without it gets a hint, and takes the lock before it acts on one.
	 */
	_Atomic uint32_t frozen;
	uint16_t ended;			/* END published */
	uint16_t lied;			/* the receiver's position is none that it can have: frozen for good */
	uint16_t tx_gen;
	uint8_t way;			/* XR_TX_WAY_*, of the sends since the caller cleared it */
	uint8_t stream;			/* the caller's word: small sends follow each other without a pause */
	/* replay cursor, valid once frozen */
	uint32_t replay_seq, replay_byte;
	uint32_t replay_from;		/* the caller's: where on the socket it begins, modulo 2^32 */
};

/* Receiver's end; guarded by the flow's rx lock. */
struct xr_shm_rx {
	struct xr_shm_dir *dir;
	struct xr_shm_slot *slots;
	const uint8_t *arena;		/* the peer's arena as mapped here */
	uint64_t arena_len;
	uint32_t mask;
	uint32_t seq;			/* slot being consumed */
	uint32_t byte;			/* bytes of it already taken (maybe uncommitted) */
	uint32_t traced;		/* the slot seen last that begins a traced send, 0: nothing to tell */
	uint64_t committed;		/* value of `consumed` this end wrote last */
	_Atomic uint64_t got;		/* payload bytes committed; epoll looks without the lock */
	uint64_t taken;			/* the same, with those that are taken and not committed */
	uint32_t arm_gen;
	uint32_t tx_arm_seen;		/* gen:16 | waiter:16 of the last space notice given */
	_Atomic uint32_t frozen;
	_Atomic uint32_t sealed;	/* frozen by this end, with [seq, end) still to be read here */
	union {
		struct {
			uint32_t end_seq, end_byte;
		};
		uint64_t late_next;	/* with `redo`: what late is after it */
	};
	_Atomic uint8_t trickle;	/* the caller's hint: the last read took the little there was of a stream */
	uint8_t final;			/* nothing behind a seal is read: the program has shut it */
	uint8_t replayed;		/* frozen by the sender: the rest is read here all the same ... */
	uint8_t lied;			/* the sender changed the position, or wrote nonsense: nothing more is read */
	_Atomic uint8_t sealing;	/* `consumed` may say a seal, up to [end): of a process that was killed at it */
	_Atomic uint8_t redo;		/* what is taken is final, and maybe not all written down yet */
	uint64_t late;			/* ... and so many bytes of it come once more, on the socket */
	uint64_t traced_ns;		/* when it was seen */
};

/* Before head, whose release makes it visible; a reader that is late may see the next one. */
static inline void xr_shm_stamp(struct xr_shm_slot *s, uint64_t stamp)
{
	xr_store_relaxed(&s->stamp, stamp);
}

struct xr_view {
	const uint8_t *data;
	uint32_t len;
	uint32_t op;		/* XR_OP_SEND, or a control operation with `arg` */
	uint32_t flags;
	uint64_t arg;
};

void xr_shm_tx_init(struct xr_shm_tx *tx, struct xr_shm_dir *dir, uint32_t nslots,
		    struct xr_shm_meta *meta, const struct xr_shm_chunks *chunks,
		    uint8_t *chunk_base, uint64_t chunk_off, uint32_t window);

/*
 * Copies up to len bytes of iov (beginning at byte `skip` of it) into the ring and
 * publishes them.  Returns the bytes taken, 0 when the window is closed, -EPIPE
 * after END, -ESTALE when the direction is frozen (replay, then use the socket), -EFAULT
 * when the first piece cannot be read (usercopy.h); what was published before a bad one
 * stays.
 */
ssize_t xr_shm_tx_send(struct xr_shm_tx *tx, const struct iovec *iov, int cnt, size_t skip,
		       size_t len);

/*
 * All of one small buffer, behind the last one of a stream: tx->stream is set.  0, and nothing was done, where
 * that is not enough: no slot is open, the chunk is full, it is more than XR_PUBLISH, the receiver is far behind, the
 * memory cannot be read.  inflight_max is twice XR_PUBLISH at least.
 */
size_t xr_shm_tx_send_next(struct xr_shm_tx *tx, const void *buf, size_t len);

/*
 * The same for a send that is traced: the first slot that it publishes is marked, and `box` tells of it,
 * of which the caller has filled in all but begin, end and slot.  Where the ring has no slot free nothing is
 * marked, and box->end is 0.
 */
ssize_t xr_shm_tx_send_traced(struct xr_shm_tx *tx, const struct iovec *iov, int cnt, size_t skip,
			      size_t len, struct xr_shm_box *box);

/* It ends there: the program takes what went for the whole. */
void xr_shm_tx_box_end(struct xr_shm_tx *tx, uint64_t end);

/* Publishes a control slot; -EAGAIN when even the reserved slots are taken, -ESTALE when frozen. */
int xr_shm_tx_control(struct xr_shm_tx *tx, enum xr_slot_op op, uint64_t arg);

/* Bytes that a send would take now; 0 when closed.  Reclaims. */
size_t xr_shm_tx_space(struct xr_shm_tx *tx);

/* Bytes published and not consumed (looks at the shared word). */
uint64_t xr_shm_tx_unconsumed(struct xr_shm_tx *tx);

/*
 * 1 when the receiver has consumed every payload byte.  Takes no lock and changes nothing:
 * for the receive side of the same flow, exact once the peer is dead.
 */
int xr_shm_tx_all_consumed(const struct xr_shm_tx *tx);

/*
 * To be called after a publication: is there somebody to tell?  Returns 1 and the
 * waiter's number, once per arming, else 0.  Notices a freeze by the receiver.
 */
int xr_shm_tx_armed(struct xr_shm_tx *tx, uint32_t *waiter);

/* Asks to be told when space is there; the caller looks at space again afterwards. */
void xr_shm_tx_want_space(struct xr_shm_tx *tx, uint32_t waiter);

/* Stops consumption for good and puts the replay cursor on the first unconsumed byte. */
void xr_shm_tx_freeze(struct xr_shm_tx *tx);
int xr_shm_tx_is_frozen(struct xr_shm_tx *tx);

/* The bytes still to be replayed, in order: 0 when there are none left. */
size_t xr_shm_tx_replay(struct xr_shm_tx *tx, struct iovec *iov, int cnt);
void xr_shm_tx_replayed(struct xr_shm_tx *tx, size_t n);
/* How many there are. */
uint64_t xr_shm_tx_owed(struct xr_shm_tx *tx);

/* Nothing is being sent: gives back the chunk that was being filled, unless the receiver has yet to read it. */
void xr_shm_tx_rest(struct xr_shm_tx *tx);

/*
 * Its lock was held by a process that was killed: what is half done is undone, or done.  No process but
 * the one that began it sends afterwards, or has to.
 */
void xr_shm_tx_left(struct xr_shm_tx *tx);

/* Gives every chunk back; the direction is dead afterwards. */
void xr_shm_tx_destroy(struct xr_shm_tx *tx);

void xr_shm_rx_init(struct xr_shm_rx *rx, struct xr_shm_dir *dir, uint32_t nslots,
		    const uint8_t *arena, uint64_t arena_len);

/*
 * The next piece of the stream.  Returns 1 with a view, 0 when there is nothing,
 * -EPROTO when the peer wrote nonsense, -ESTALE when frozen.
 */
int xr_shm_rx_peek(struct xr_shm_rx *rx, struct xr_view *v);

/* As peek, for a position beyond what was peeked (MSG_PEEK over several slots). */
int xr_shm_rx_peek_from(struct xr_shm_rx *rx, uint32_t *seq, uint32_t *byte, struct xr_view *v);

/* Takes n bytes of the view last peeked (or a control slot, n = 0); not yet visible to the sender. */
void xr_shm_rx_take(struct xr_shm_rx *rx, const struct xr_view *v, size_t n);

/*
 * Makes what was taken final.  When the sender froze the direction before, it replays what
 * was taken: `late` says how much of the socket's stream is then to be thrown away.  What
 * was readable so stays readable.  -ESTALE: frozen by this end's family, or overwritten by a
 * peer that scribbles (rx->lied, and peek says -EPROTO from then on): all that was taken since
 * the last commit is undone and must be forgotten by the caller.
 */
int xr_shm_rx_commit(struct xr_shm_rx *rx);

/* After a commit: does the sender wait for space?  Returns 1 and its waiter, once per request. */
int xr_shm_rx_wants_notice(struct xr_shm_rx *rx, uint32_t *waiter);

/* The box of the direction, as the sender wrote it: nothing of it is checked.  0: there is none, or it changes. */
int xr_shm_rx_box(const struct xr_shm_rx *rx, struct xr_shm_box *box);

/* Asks to be told of the next publication; the caller peeks again afterwards. */
void xr_shm_rx_arm(struct xr_shm_rx *rx, uint32_t waiter);

/* Says READY: from now on the sender may publish START. */
void xr_shm_rx_ready(struct xr_shm_rx *rx);

/*
 * Receiver's freeze that keeps what is published: from now on the sender uses the socket,
 * and what lies in the ring is read here first, by any process of the family that holds
 * the receive lock; peek, take and commit go on until it is used up (then -ESTALE).  The
 * sender has nothing to replay, so one that is away or dead holds up nobody.  0, or
 * -ESTALE when the sender froze first.  The caller must wake it.
 */
int xr_shm_rx_seal(struct xr_shm_rx *rx);

/*
 * Receiver's freeze: the sender replays from the first byte not yet read (when it froze
 * first: `late` bytes before that); the caller must wake it.  Undoes a seal; -ESTALE when
 * the sender has acted on that already.
 */
int xr_shm_rx_freeze(struct xr_shm_rx *rx);
/* 1: frozen, and nothing is left to be read here. */
int xr_shm_rx_is_frozen(struct xr_shm_rx *rx);

/* As xr_shm_tx_left; what was taken and not committed was not read. */
void xr_shm_rx_left(struct xr_shm_rx *rx);

/* Payload bytes readable now (walks the ring; for FIONREAD and statistics). */
uint64_t xr_shm_rx_readable(struct xr_shm_rx *rx);

/*
 * When the first unread slot came that was published after `since`, by the sender's word; 0 when
 * there is none, or nobody knows.  Takes no lock: a hint.
 */
uint64_t xr_shm_rx_stamp(const struct xr_shm_rx *rx, uint64_t since);

#endif
