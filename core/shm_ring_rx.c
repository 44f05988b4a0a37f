/* SPDX-License-Identifier: BSD-2-Clause */
/* The receiving end of the ring. */
#include <errno.h>
#include <string.h>
#include "mem.h"
#include "shm_ring.h"

void xr_shm_rx_init(struct xr_shm_rx *rx, struct xr_shm_dir *dir, uint32_t nslots,
		    const uint8_t *arena, uint64_t arena_len)
{
	memset(rx, 0, sizeof(*rx));
	rx->dir = dir;
	rx->slots = (struct xr_shm_slot *)(dir + 1);
	rx->arena = arena;
	rx->arena_len = arena_len;
	rx->mask = nslots - 1;
	rx->seq = 1;
	rx->committed = XR_CONSUMED(1, 0);
}

/* A payload that may be marked: notes when it was seen.  Not 0: it lies in a chunk. */
static uint32_t rx_marked(struct xr_shm_rx *rx, uint32_t flags, uint32_t seq)
{
	if (xr_unlikely(flags & XR_SLOT_TRACED) && rx->traced != seq) {
		rx->traced = seq;
		rx->traced_ns = xr_now_ns();
	}
	return flags & XR_SLOT_REF;
}

/* 1: view filled; 0: nothing; -EPROTO.  *byte may be at the end of an open slot. */
static int rx_look(struct xr_shm_rx *rx, uint32_t *seq, uint32_t *byte, struct xr_view *v)
{
	for (;;) {
		struct xr_shm_slot *s = &rx->slots[*seq & rx->mask];
		/* acquire: pairs with the release of head by the sender */
		uint64_t h = xr_load_acquire(&s->head);
		uint64_t off;
		uint32_t len;

		if (XR_HEAD_SEQ(h) != *seq)
			return 0;
		v->op = XR_HEAD_OP(h);
		v->flags = XR_HEAD_FLAGS(h);
		if (v->op == XR_OP_NONE || v->op >= XR_OP_MAX)
			return -EPROTO;
		if (v->op != XR_OP_SEND) {
			/* only payload can be open: a reader would never get past this one */
			if (v->flags & XR_SLOT_OPEN)
				return -EPROTO;
			v->data = s->data;
			v->len = 0;
			v->arg = s->arg;
			return 1;
		}
		if (!(v->flags & (XR_SLOT_REF | XR_SLOT_TRACED)) || !rx_marked(rx, v->flags, *seq)) {
			len = XR_HEAD_LEN(h);
			if (len > XR_SLOT_INLINE || len <= *byte)
				return -EPROTO;
			v->data = s->data + *byte;
			v->len = len - *byte;
			return 1;
		}
		/* acquire: pairs with the release of len in tx_append */
		len = xr_load_acquire(&s->ref.len);
		off = s->ref.off;
		if (!len || len > XR_CHUNK || len < *byte || off > rx->arena_len ||
		    rx->arena_len - off < len)
			return -EPROTO;
		if (len > *byte) {
			v->data = rx->arena + off + *byte;
			v->len = len - *byte;
			return 1;
		}
		/*
		 * Open and taken to its present end.  Once the next slot is published the
		 * sender appends no more: then, and only then, a length read again is final.
		 */
		if (!(v->flags & XR_SLOT_OPEN))
			return -EPROTO;
		if (XR_HEAD_SEQ(xr_load_acquire(&rx->slots[(*seq + 1) & rx->mask].head)) != *seq + 1)
			return 0;
		if (xr_load_acquire(&s->ref.len) != len)
			continue;
		*seq += 1;
		*byte = 0;
	}
}

/* At the end of what a sealed direction has kept here, or further on. */
static int rx_behind_seal(const struct xr_shm_rx *rx, uint32_t seq, uint32_t byte)
{
	return (int32_t)(seq - rx->end_seq) > 0 || (seq == rx->end_seq && byte >= rx->end_byte);
}

/*
 * What is taken is final: no other process looks at `consumed` for it any more, so this one flag is what makes it so.
 * late: what comes once more, with it.
 */
static void rx_redo(struct xr_shm_rx *rx)
{
	if (rx->replayed)
		rx->late = rx->late_next;
	xr_store_relaxed(&rx->got, rx->taken);
	rx->committed = XR_CONSUMED(rx->seq, rx->byte);
	xr_then();
	rx->redo = 0;
}

static void rx_final(struct xr_shm_rx *rx)
{
	if (rx->replayed)
		rx->late_next = rx->late + (rx->taken - xr_load_relaxed(&rx->got));
	xr_then();
	rx->redo = 1;
	xr_then();
	rx_redo(rx);
}

/* Back to what was made final last. */
static void rx_forget(struct xr_shm_rx *rx)
{
	rx->seq = XR_CONSUMED_SEQ(rx->committed);
	rx->byte = XR_CONSUMED_BYTE(rx->committed);
	rx->taken = xr_load_relaxed(&rx->got);
}

/*
 * What is behind the seal was published before the sender took notice of it, and it replays
 * that, if it lives to do so.  Whoever has come so far reads on as if the sender had frozen.
 */
static void rx_unseal(struct xr_shm_rx *rx)
{
	/* acquire: as in xr_shm_rx_is_frozen */
	if (rx->final || !rx_behind_seal(rx, rx->seq, rx->byte) ||
	    !(xr_load_acquire(&rx->dir->consumed) & XR_REPLAYING))
		return;
	rx_final(rx);
	rx->replayed = 1;
	/* release: never neither of them */
	xr_store_release(&rx->sealed, 0);
}

/* What may still be read: all of it, or up to the end of a sealed direction. */
static int rx_next(struct xr_shm_rx *rx, uint32_t *seq, uint32_t *byte, struct xr_view *v)
{
	int r;

	if (xr_likely(!rx->frozen) && xr_likely(!rx->sealed))
		return rx_look(rx, seq, byte, v);
	if (xr_unlikely(rx->lied))
		return -EPROTO;
	if (rx->replayed) {
		/* all that there is was published before the freeze */
		r = rx_look(rx, seq, byte, v);
		return r ? r : -ESTALE;
	}
	if (!rx->sealed)
		return -ESTALE;
	if (rx_behind_seal(rx, *seq, *byte))
		return -ESTALE;
	r = rx_look(rx, seq, byte, v);
	/* the last slot may have grown since: those bytes are replayed */
	if (r == 1 && *seq == rx->end_seq && v->len > rx->end_byte - *byte)
		v->len = rx->end_byte - *byte;
	return r;
}

int xr_shm_rx_peek(struct xr_shm_rx *rx, struct xr_view *v)
{
	if (xr_unlikely(rx->sealed))
		rx_unseal(rx);
	return rx_next(rx, &rx->seq, &rx->byte, v);
}

int xr_shm_rx_peek_from(struct xr_shm_rx *rx, uint32_t *seq, uint32_t *byte, struct xr_view *v)
{
	if (xr_unlikely(rx->sealed))
		rx_unseal(rx);
	return rx_next(rx, seq, byte, v);
}

void xr_shm_rx_take(struct xr_shm_rx *rx, const struct xr_view *v, size_t n)
{
	rx->byte += (uint32_t)n;
	rx->taken += n;
	if (n == v->len && !(v->flags & XR_SLOT_OPEN)) {
		rx->seq++;
		rx->byte = 0;
	}
}

/* The end of what is published now, from a position on. */
static void rx_walk(struct xr_shm_rx *rx, uint32_t *seq, uint32_t *byte)
{
	struct xr_view v;
	int r;

	/* bounded by the ring: a slot further on would carry a number it cannot have yet */
	while ((r = rx_look(rx, seq, byte, &v)) == 1) {
		*byte += v.len;
		if (!(v.flags & XR_SLOT_OPEN)) {
			*seq += 1;
			*byte = 0;
		}
	}
	/* nobody comes there any more: what follows would seem to be the next of the stream */
	if (xr_unlikely(r < 0))
		rx->lied = 1;
}

#define RX_SEAL_TRIES	64

static void rx_is_sealed(struct xr_shm_rx *rx)
{
	xr_store_relaxed(&rx->sealed, 1);
	/* release, both: in this order */
	xr_store_release(&rx->frozen, 1);
	xr_store_release(&rx->sealing, 0);
}

static void rx_is_frozen_by(struct xr_shm_rx *rx, uint64_t word);

/*
 * The shared word goes from `old` to the end of what is published, until there is no more of it; i: how often it has.
 * A process of the family may be killed at any step: what the word may say then is between the two positions that
 * `old` and [end) have, and `sealing` is set.
 */
static int rx_seal_from(struct xr_shm_rx *rx, uint64_t old, uint32_t i)
{
	uint32_t seq = i ? XR_CONSUMED_SEQ(old) : rx->seq, byte = i ? XR_CONSUMED_BYTE(old) : rx->byte;
	uint64_t want, seen;

	for (; i < RX_SEAL_TRIES; i++) {
		if (i) {
			rx->arm_gen++;
			xr_store_relaxed(&rx->dir->arm, ((uint64_t)rx->arm_gen << 32) | XR_ARM_FROZEN);
			/*
			 * Pairs with the fence in xr_shm_tx_armed: a publication that is not seen by the
			 * next walk is followed by a look at the hint, and the sender replays it.
			 */
			xr_fence_store_load();
		}
		rx_walk(rx, &seq, &byte);
		want = XR_CONSUMED(seq, byte) | XR_FROZEN;
		if (i && want == old)
			break;
		/* in this order: half of it is still not before what the word says */
		rx->end_seq = seq;
		xr_then();
		rx->end_byte = byte;
		/* release: the end is there before it may be needed; the exchange comes behind it as well */
		xr_store_release(&rx->sealing, 1);
		seen = old;
		if (!xr_cas(&rx->dir->consumed, &seen, want)) {
			if (!i) {
				xr_store_relaxed(&rx->sealing, 0);
				rx_is_frozen_by(rx, seen);
				return -ESTALE;
			}
			/* the sender took notice: it replays from where the last round left it */
			rx->lied |= seen != (old | XR_REPLAYING);
			rx->end_seq = XR_CONSUMED_SEQ(old);
			rx->end_byte = XR_CONSUMED_BYTE(old);
			break;
		}
		old = want;
	}
	rx_is_sealed(rx);
	return 0;
}

static int rx_before(uint32_t seq, uint32_t byte, uint32_t seq2, uint32_t byte2)
{
	return (int32_t)(seq - seq2) < 0 || (seq == seq2 && byte < byte2);
}

/* 1: the word is what one has left who was killed while he sealed this direction; it is sealed now. */
static int rx_seal_left(struct xr_shm_rx *rx, uint64_t word)
{
	uint32_t seq = XR_CONSUMED_SEQ(word), byte = XR_CONSUMED_BYTE(word);

	if (xr_likely(!xr_load_relaxed(&rx->sealing)) || !(word & XR_FROZEN))
		return 0;
	if (rx_before(seq, byte, XR_CONSUMED_SEQ(rx->committed), XR_CONSUMED_BYTE(rx->committed)) ||
	    rx_before(rx->end_seq, rx->end_byte, seq, byte))
		return 0;
	rx->end_seq = seq;
	rx->end_byte = byte;
	if (!(word & XR_REPLAYING)) {
		rx_seal_from(rx, word, 1);
	} else {
		/* the sender has taken notice, and goes on from there */
		rx_is_sealed(rx);
	}
	return 1;
}

/*
 * Frozen by neither end's doing that the flow knows of: for a reader without hooks, or the word of a peer that
 * scribbles.  Nothing more comes from here.
 */
static void rx_not_ours(struct xr_shm_rx *rx, uint64_t word)
{
	if (word != (rx->committed | XR_FROZEN))
		rx->lied = 1;
	rx_forget(rx);
}

/* The shared word is not what this end wrote last: the sender froze it, and goes on with what it says there. */
static void rx_is_frozen_by(struct xr_shm_rx *rx, uint64_t word)
{
	xr_store_relaxed(&rx->frozen, 1);
	rx->replayed = word == (rx->committed | XR_FROZEN | XR_REPLAYING);
	if (!rx->replayed)
		rx_not_ours(rx, word);
}

int xr_shm_rx_commit(struct xr_shm_rx *rx)
{
	uint64_t want = XR_CONSUMED(rx->seq, rx->byte), old = rx->committed;

	if (want == old)
		return 0;
	/* sealed: the shared word says the end already; the position is this family's own */
	if (xr_unlikely(rx->replayed || rx->sealed)) {
		rx_final(rx);
		return 0;
	}
	/*
	 * What was taken is there before the exchange that makes it final, and xr_shm_rx_left writes down the rest.
	 * seq_cst: also orders the look at tx_arm after it, see xr_shm_rx_wants_notice
	 */
	if (xr_likely(xr_cas(&rx->dir->consumed, &old, want))) {
		/* this first, since `committed` says that nothing is left to be done */
		xr_store_relaxed(&rx->got, rx->taken);
		xr_then();
		rx->committed = want;
		return 0;
	}
	rx_is_frozen_by(rx, old);
	return rx->replayed || rx->sealed ? xr_shm_rx_commit(rx) : -ESTALE;
}

int xr_shm_rx_wants_notice(struct xr_shm_rx *rx, uint32_t *waiter)
{
	uint64_t a = xr_load_relaxed(&rx->dir->tx_arm);

	if (xr_likely((uint32_t)a == rx->tx_arm_seen))
		return 0;
	if ((int32_t)(rx->seq - XR_TXARM_SLOT(a)) < 0)
		return 0;
	rx->tx_arm_seen = (uint32_t)a;
	*waiter = XR_TXARM_WAITER(a);
	return *waiter != 0;
}

int xr_shm_rx_box(const struct xr_shm_rx *rx, struct xr_shm_box *box)
{
	/* acquire: pairs with the release in tx_box */
	uint32_t seq = xr_load_acquire(&rx->dir->box_seq), i;
	uint64_t words[XR_BOX_WORDS];

	if (!seq || seq & 1)
		return 0;
	for (i = 0; i < XR_BOX_WORDS; i++)
		words[i] = xr_load_relaxed(&rx->dir->box[i]);
	/* the words before the second look */
	atomic_thread_fence(memory_order_acquire);
	if (xr_load_relaxed(&rx->dir->box_seq) != seq)
		return 0;
	memcpy(box, words, sizeof(words));
	return 1;
}

void xr_shm_rx_arm(struct xr_shm_rx *rx, uint32_t waiter)
{
	rx->arm_gen++;
	/* the word that the direction is sealed stays for a sender that has not seen it */
	xr_store_relaxed(&rx->dir->arm, ((uint64_t)rx->arm_gen << 32) | (waiter & 0xffffu) |
					(rx->frozen ? XR_ARM_FROZEN : 0));
	/* pairs with the fence in xr_shm_tx_armed: say that I wait, then look again */
	xr_fence_store_load();
}

void xr_shm_rx_ready(struct xr_shm_rx *rx)
{
	/* release: the arming that comes with it is visible first; pairs with the sender's acquire */
	xr_store_release(&rx->dir->ready, 1);
}

int xr_shm_rx_seal(struct xr_shm_rx *rx)
{
	if (rx->frozen)
		return rx->sealed ? 0 : -ESTALE;
	return rx_seal_from(rx, rx->committed, 0);
}

/* By this end, and what is not final is for the sender to replay. */
static void rx_is_frozen(struct xr_shm_rx *rx)
{
	rx_forget(rx);
	rx->arm_gen++;
	/* release: FROZEN in consumed before the hint that makes the sender look there */
	xr_store_release(&rx->dir->arm, ((uint64_t)rx->arm_gen << 32) | XR_ARM_FROZEN);
	/* release: who finds this has no hint to give */
	xr_store_release(&rx->frozen, 1);
}

void xr_shm_rx_left(struct xr_shm_rx *rx)
{
	/* acquire: as in xr_shm_rx_is_frozen */
	uint64_t word = xr_load_acquire(&rx->dir->consumed), at = XR_CONSUMED(rx->seq, rx->byte);

	/* it got as far as the exchange; what it took before that is forgotten */
	if (rx->redo)
		rx_redo(rx);
	else if (!rx->frozen && at != rx->committed && at == (word & ~(XR_FROZEN | XR_REPLAYING)))
		rx_final(rx);
	rx_forget(rx);
	if (xr_load_relaxed(&rx->sealing) && !rx_seal_left(rx, word))
		xr_store_relaxed(&rx->sealing, 0);
	if (!rx->frozen && word == (rx->committed | XR_FROZEN))
		rx_is_frozen(rx);
}

int xr_shm_rx_freeze(struct xr_shm_rx *rx)
{
	uint64_t word;

	if (!rx->sealed)
		xr_shm_rx_is_frozen(rx);
	if (rx->sealed) {
		/* the seal is ours to move back as long as the sender has not taken notice */
		uint64_t old = XR_CONSUMED(rx->end_seq, rx->end_byte) | XR_FROZEN;

		/* release: as in rx_seal_from, whose doing it is taken for if this process does not come to the end */
		xr_store_release(&rx->sealing, 1);
		if (!rx_behind_seal(rx, rx->seq, rx->byte) &&
		    !xr_cas(&rx->dir->consumed, &old, XR_CONSUMED(rx->seq, rx->byte) | XR_FROZEN)) {
			rx->lied |= old != (XR_CONSUMED(rx->end_seq, rx->end_byte) | XR_FROZEN | XR_REPLAYING);
			xr_store_relaxed(&rx->sealing, 0);
			return -ESTALE;
		}
		xr_store_relaxed(&rx->frozen, 1);
		/* release, both: never neither of them, and the seal is no more before it is not looked for */
		xr_store_release(&rx->sealed, 0);
		xr_store_release(&rx->sealing, 0);
		return 0;
	}
	if (rx->replayed) {
		/* the sender does the same; the socket is to be read from behind what is late */
		rx_forget(rx);
		return 0;
	}
	word = atomic_fetch_or(&rx->dir->consumed, XR_FROZEN);
	if (!rx->frozen && word != rx->committed && word != (rx->committed | XR_FROZEN | XR_REPLAYING))
		rx_not_ours(rx, word);
	rx_is_frozen(rx);
	return 0;
}

int xr_shm_rx_is_frozen(struct xr_shm_rx *rx)
{
	if (rx->sealed)
		rx_unseal(rx);
	if (rx->sealed)
		return rx_behind_seal(rx, rx->seq, rx->byte) && !rx->lied;
	if (!rx->frozen) {
		/* acquire: with REPLAYING all that the sender has published is visible */
		uint64_t c = xr_load_acquire(&rx->dir->consumed);

		if (xr_likely(!(c & XR_FROZEN)))
			return 0;
		rx_is_frozen_by(rx, c);
		if (xr_unlikely(rx->sealed))
			return xr_shm_rx_is_frozen(rx);
	}
	/* whoever peeks is told */
	if (xr_unlikely(rx->lied))
		return 0;
	if (rx->replayed) {
		uint32_t seq = rx->seq, byte = rx->byte;
		struct xr_view v;

		return rx_look(rx, &seq, &byte, &v) == 0;
	}
	return 1;
}

uint64_t xr_shm_rx_readable(struct xr_shm_rx *rx)
{
	uint32_t seq = rx->seq, byte = rx->byte;
	uint64_t sum = 0;
	struct xr_view v;

	while (rx_next(rx, &seq, &byte, &v) == 1 && v.op == XR_OP_SEND) {
		sum += v.len;
		byte += v.len;
		if (!(v.flags & XR_SLOT_OPEN)) {
			seq++;
			byte = 0;
		}
	}
	return sum;
}

/* Behind more slots than this the first ones are older than anything else that is waiting. */
#define RX_STAMPS	16u

uint64_t xr_shm_rx_stamp(const struct xr_shm_rx *rx, uint64_t since)
{
	uint32_t seq = rx->seq, i;

	for (i = 0; i < RX_STAMPS; i++, seq++) {
		struct xr_shm_slot *s = &rx->slots[seq & rx->mask];
		/* acquire: pairs with the release of head, which the stamp goes before */
		uint64_t h = xr_load_acquire(&s->head), stamp;

		if (XR_HEAD_SEQ(h) != seq)
			return 0;
		/* taken to its end, and still open */
		if (!i && rx->byte && (XR_HEAD_FLAGS(h) & XR_SLOT_OPEN) &&
		    xr_load_relaxed(&s->ref.len) <= rx->byte)
			continue;
		stamp = xr_load_relaxed(&s->stamp);
		if (!stamp || (int64_t)(stamp - since) > 0)
			return stamp;
	}
	return since;
}
