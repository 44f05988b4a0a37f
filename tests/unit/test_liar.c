/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer that lies: every word that it can write where both ends look, and what becomes of the connection.  Either
 * it is as if the peer had said something that it may say, or the connection is reset, and that is counted.
 */
#include "flow_rig.h"
#include "core/stats.h"
#include "preload/flow_far.h"

/*
 * Before the lie: 16 bytes and 40 bytes of this end lie in slots 1 and 2, of which the peer has consumed all of
 * the first and 4 of the second, so that each send looks how far it has come; "hello" and "world" of the peer lie
 * in slots 2 and 3, behind START; "hello" is read.
 */
enum outcome {
	NOTHING,	/* both directions go on over the fabric */
	RESET,		/* one ECONNRESET, then end and EPIPE; the peer gets an RST; counted */
	TX_LEAVES,	/* what this end sends goes on over TCP, as the peer may ask for */
	RX_LEAVES,	/* what the peer sends is awaited there, as it may announce */
	RX_ENDS,	/* as if it had ended its stream */
};

static const char *const outcome_name[] = { "nothing", "reset", "tx leaves", "rx leaves", "rx ends" };

static struct xr_shm_slot *far_slot(uint32_t seq)
{
	return &R.tx.slots[seq & (SLOTS - 1)];
}

#define OWN(name, what)	static void own_##name(void) { struct xr_shm_dir *d = R.f->tx.dir; (void)d; what; }
#define FAR(name, what)	static void far_##name(void) { struct xr_shm_dir *d = R.tx.dir; (void)d; what; }

/* The direction in which this end sends: its receiver is the peer, which may write all of the block. */
OWN(beyond_head, xr_store_relaxed(&d->consumed, XR_CONSUMED(9, 0)))
OWN(beyond_slot, xr_store_relaxed(&d->consumed, XR_CONSUMED(2, 41)))
OWN(beyond_last, xr_store_relaxed(&d->consumed, XR_CONSUMED(3, 1)))
OWN(back_slot, xr_store_relaxed(&d->consumed, XR_CONSUMED(1, 0)))
OWN(back_byte, xr_store_relaxed(&d->consumed, XR_CONSUMED(2, 3)))
OWN(zero, xr_store_relaxed(&d->consumed, 0))
OWN(ones, xr_store_relaxed(&d->consumed, UINT64_MAX))
OWN(frozen_beyond, xr_store_relaxed(&d->consumed, XR_FROZEN | XR_CONSUMED(7, 0)))
OWN(frozen_back, xr_store_relaxed(&d->consumed, XR_FROZEN | XR_REPLAYING | XR_CONSUMED(1, 9)))
OWN(frozen_well, xr_store_relaxed(&d->consumed, XR_FROZEN | XR_CONSUMED(2, 4)))
OWN(frozen_for_us, xr_store_relaxed(&d->consumed, XR_FROZEN | XR_REPLAYING | XR_CONSUMED(2, 4)))
OWN(replaying, xr_store_relaxed(&d->consumed, XR_REPLAYING | XR_CONSUMED(2, 4)))
OWN(arm, xr_store_relaxed(&d->arm, (9ull << 32) | 0xffff))
OWN(arm_frozen, xr_store_relaxed(&d->arm, (9ull << 32) | XR_ARM_FROZEN))
OWN(ready, xr_store_relaxed(&d->ready, 0))
OWN(room, xr_store_relaxed(&d->room, UINT32_MAX))
OWN(taken, xr_store_relaxed(&d->taken, 77))
OWN(tx_arm, xr_store_relaxed(&d->tx_arm, UINT64_MAX))
OWN(gen, xr_store_relaxed(&d->gen, 0))
OWN(state, xr_store_relaxed(&d->state, UINT32_MAX))
OWN(sent_at, xr_store_relaxed(&d->sent_at, UINT64_MAX))
OWN(box_seq, xr_store_relaxed(&d->box_seq, UINT32_MAX))
OWN(head, xr_store_relaxed(&R.f->tx.slots[2].head, UINT64_MAX))

/* The direction in which the peer sends. */
FAR(moved_on, xr_store_relaxed(&d->consumed, XR_CONSUMED(4, 0)))
FAR(moved_back, xr_store_relaxed(&d->consumed, XR_CONSUMED(1, 0)))
FAR(moved_frozen, xr_store_relaxed(&d->consumed, XR_FROZEN | XR_REPLAYING | XR_CONSUMED(4, 0)))
FAR(consumed_ones, xr_store_relaxed(&d->consumed, UINT64_MAX))
FAR(half_frozen, xr_fetch_or(&d->consumed, XR_REPLAYING))
FAR(frozen_and_no_more, xr_fetch_or(&d->consumed, XR_FROZEN))
FAR(frozen_and_silent, xr_fetch_or(&d->consumed, XR_FROZEN | XR_REPLAYING))
FAR(no_op, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 1, 0, XR_OP_NONE)))
FAR(unknown_op, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 1, 0, 200)))
FAR(verbs_op, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 1, 0, XR_OP_READ)))
FAR(start_twice, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 0, 0, XR_OP_START)))
FAR(open_end, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 0, XR_SLOT_OPEN, XR_OP_END)))
FAR(empty, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 0, 0, XR_OP_SEND)))
FAR(too_long, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, XR_SLOT_INLINE + 1, 0, XR_OP_SEND)))
FAR(early_end, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 0, 0, XR_OP_END)))
FAR(number, xr_store_relaxed(&far_slot(4)->head, XR_HEAD(77, 1, 0, XR_OP_SEND)))
FAR(stamp, xr_store_relaxed(&far_slot(3)->stamp, UINT64_MAX))
FAR(flag, xr_store_relaxed(&far_slot(3)->head, XR_HEAD(3, 5, XR_SLOT_TRACED | XR_SLOT_EOM, XR_OP_SEND)))
FAR(tx_arm, xr_store_relaxed(&d->tx_arm, UINT64_MAX))
FAR(state_ended, xr_store_relaxed(&d->state, XR_DIR_ENDED))
FAR(state_closed, xr_store_relaxed(&d->state, XR_DIR_CLOSED))
FAR(state_rest, xr_store_relaxed(&d->state, XR_DIR_BACK | XR_DIR_NAMED | XR_DIR_STAYS | XR_DIR_LOST | XR_DIR_LEFT))
FAR(state_gone, xr_store_relaxed(&d->state, XR_DIR_GONE))
FAR(gen, xr_store_relaxed(&d->gen, 1234))
FAR(arm, xr_store_relaxed(&d->arm, UINT64_MAX))
FAR(sent_at, xr_store_relaxed(&d->sent_at, UINT64_MAX))
FAR(box_seq, xr_store_relaxed(&d->box_seq, 6))

static void far_reference(uint64_t off, uint32_t len)
{
	far_slot(4)->ref.off = off;
	xr_store_relaxed(&far_slot(4)->ref.len, len);
	xr_store_relaxed(&far_slot(4)->head, XR_HEAD(4, 0, XR_SLOT_REF, XR_OP_SEND));
}

static void far_ref_outside(void) { far_reference(R.near->peer.size - 10, 11); }
static void far_ref_wraps(void) { far_reference(UINT64_MAX - 5, 10); }
static void far_ref_empty(void) { far_reference(0, 0); }
static void far_ref_large(void) { far_reference(0, XR_CHUNK + 1); }

/* Once it has been read in part it shrinks. */
static void far_ref_shrinks(void)
{
	char c[8];
	struct iovec iov = { c, sizeof(c) };

	far_reference(0, 100);
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 8);
	xr_store_relaxed(&far_slot(4)->ref.len, 2);
}

#define L(side, name, outcome) { #side ": " #name, side##_##name, outcome }

static const struct lie {
	const char *name;
	void (*tell)(void);
	enum outcome outcome;
} lies[] = {
	L(own, beyond_head, RESET), L(own, beyond_slot, RESET), L(own, beyond_last, RESET),
	L(own, back_slot, RESET), L(own, back_byte, RESET), L(own, zero, RESET), L(own, ones, RESET),
	L(own, frozen_beyond, RESET), L(own, frozen_back, RESET),
	L(own, frozen_well, TX_LEAVES), L(own, frozen_for_us, TX_LEAVES), L(own, arm_frozen, TX_LEAVES),
	L(own, replaying, NOTHING), L(own, arm, NOTHING), L(own, ready, NOTHING), L(own, room, NOTHING),
	L(own, taken, NOTHING), L(own, tx_arm, NOTHING), L(own, gen, NOTHING), L(own, state, NOTHING),
	L(own, sent_at, NOTHING), L(own, box_seq, NOTHING), L(own, head, NOTHING),

	L(far, moved_on, RESET), L(far, moved_back, RESET), L(far, moved_frozen, RESET),
	L(far, consumed_ones, RESET), L(far, half_frozen, RESET),
	L(far, frozen_and_no_more, RX_LEAVES), L(far, frozen_and_silent, RX_LEAVES),
	L(far, no_op, RESET), L(far, unknown_op, RESET), L(far, verbs_op, RESET), L(far, start_twice, RESET),
	L(far, open_end, RESET), L(far, empty, RESET), L(far, too_long, RESET),
	L(far, ref_outside, RESET), L(far, ref_wraps, RESET), L(far, ref_empty, RESET), L(far, ref_large, RESET),
	L(far, ref_shrinks, RESET),
	L(far, early_end, RX_ENDS), L(far, number, NOTHING), L(far, stamp, NOTHING), L(far, flag, NOTHING),
	L(far, tx_arm, NOTHING), L(far, state_ended, NOTHING), L(far, state_closed, TX_LEAVES),
	L(far, state_rest, NOTHING), L(far, state_gone, NOTHING), L(far, gen, NOTHING), L(far, arm, NOTHING),
	L(far, sent_at, NOTHING), L(far, box_seq, NOTHING),
};

static uint64_t blamed(void)
{
	return xr_load_relaxed(&xr_stats_now()->reason[XR_REASON_SEGMENT_CORRUPT]);
}

/* As a hook does: what is back on TCP the kernel answers. */
static ssize_t program(ssize_t n, int out)
{
	char c = 'p';

	if (n != -EREMOTEIO)
		return n;
	n = out ? send(R.fd, &c, 1, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(R.fd, &c, 1, MSG_DONTWAIT);
	return n < 0 ? -errno : n;
}

static void before(void)
{
	char c[5];
	struct iovec iov = { c, sizeof(c) };

	flow_make();
	flow_on_ring();
	assert_int_equal(flow_send(16), 16);
	assert_int_equal(flow_send(40), 40);
	xr_store_relaxed(&R.f->tx.dir->consumed, XR_CONSUMED(2, 4));
	assert_int_equal(xr_shm_tx_space(&R.f->tx), WINDOW - 36);
	far_send("hello");
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 5);
	far_send("world");
}

enum who { READS, WRITES, POLLS, LEAVES, HANDS_OVER, WHOS };

static const char *const who_name[] = { "a reader", "a writer", "a poller", "an operator", "exec" };

struct seen {
	ssize_t in, out;		/* what the last ones gave */
	int resets, blamed, rst;	/* errors that the program got; the counter; the peer's end */
	uint32_t poll;
};

/* Enough of everything that whatever can be met is met. */
static void look(enum who who, struct seen *s)
{
	uint64_t was = blamed();
	char buf[4096];
	int i;

	memset(s, 0, sizeof(*s));
	if (who == POLLS)
		xr_flow_poll(R.f, R.fd);
	else if (who == LEAVES)
		xr_flow_retreat(R.f, R.fd, XR_REASON_OPERATOR, 0);
	else if (who == HANDS_OVER)
		xr_flow_hand_over(R.f, R.fd, XR_REASON_EXEC, 1);
	for (i = 0; i < 6; i++) {
		if ((i + (who == WRITES)) % 2) {
			s->out = program(flow_send(1), 1);
			s->resets += s->out == -ECONNRESET;
		} else {
			s->in = program(flow_recv(), 0);
			s->resets += s->in == -ECONNRESET;
		}
	}
	s->poll = xr_flow_poll(R.f, R.fd);
	if (s->poll == UINT32_MAX)
		s->poll = xr_ksock_poll(R.fd, POLLIN | POLLOUT | POLLRDHUP);
	s->blamed = (int)(blamed() - was);
	while (recv(R.far_fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
	s->rst = errno == ECONNRESET;
}

static enum outcome outcome_of(const struct seen *s)
{
	if (s->blamed || s->resets || s->rst)
		return RESET;
	if (s->in == 0)
		return RX_ENDS;
	if (R.f->tx_state != XR_TX_RING)
		return TX_LEAVES;
	return R.f->rx_state == XR_RX_RING ? NOTHING : RX_LEAVES;
}

/* Half a reset is none: told once, to both ends, counted once, and an end afterwards. */
static int reset_is_whole(const struct seen *s)
{
	return s->resets == 1 && s->blamed == 1 && s->rst && s->in == 0 && s->out == -EPIPE &&
	       (s->poll & (POLLIN | POLLOUT | POLLHUP | POLLERR)) == (POLLIN | POLLOUT | POLLHUP);
}

static int lie_is_wrong(const struct lie *l, enum who who)
{
	enum outcome is;
	struct seen s;
	int bad;

	before();
	l->tell();
	look(who, &s);
	is = outcome_of(&s);
	/* who leaves has left, whatever the peer said */
	bad = who == LEAVES || who == HANDS_OVER ? (is == RESET) != (l->outcome == RESET) : is != l->outcome;
	bad |= is == RESET && !reset_is_whole(&s);
	if (bad)
		print_error("%s, met by %s: %s, should be %s "
			    "(in %zd out %zd, %d errors, %d counted, RST %d, poll 0x%x)\n",
			    l->name, who_name[who], outcome_name[is], outcome_name[l->outcome], s.in, s.out,
			    s.resets, s.blamed, s.rst, s.poll);
	flow_end();
	return bad;
}

static void every_word_of_a_liar(void **state)
{
	size_t i, who;
	int bad = 0;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(lies); i++)
		for (who = 0; who < WHOS; who++)
			bad += lie_is_wrong(&lies[i], (enum who)who);
	assert_int_equal(bad, 0);
}

/* Where the peer is to leave TCP. */
static void start_by_a_liar(void **state)
{
	static const uint64_t word[] = {
		0, XR_CONSUMED(2, 0), XR_CONSUMED(1, 1), XR_REPLAYING | XR_CONSUMED(1, 0), UINT64_MAX,
		XR_FROZEN | XR_CONSUMED(2, 0), XR_FROZEN | XR_REPLAYING | XR_CONSUMED(0, 0),
	};
	struct seen s;
	size_t i, who;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(word); i++)
		for (who = READS; who <= POLLS; who++) {
			flow_make();
			R.f->rx_state = XR_RX_READY;
			xr_shm_rx_ready(&R.f->rx);
			far_start(0);
			xr_store_relaxed(&R.tx.dir->consumed, word[i]);
			look((enum who)who, &s);
			if (!reset_is_whole(&s))
				fail_msg("0x%lx, met by %s: in %zd out %zd, %d errors, %d counted, RST %d, poll 0x%x",
					 (unsigned long)word[i], who_name[who], s.in, s.out, s.resets,
					 s.blamed, s.rst, s.poll);
			flow_end();
		}
}

/* ---- frames of a peer on another host ------------------------------------------ */

static const uint8_t secret[XR_BRIDGE_SECRET] = "host's half, 16.caller's half 16";

/* Of 5 bytes that came over the fabric, and were read. */
static struct xr_frame frame(uint8_t kind, uint64_t offset, uint32_t consumed)
{
	struct xr_frame m = { .kind = kind };
	int i;

	memcpy(m.nonce, secret + 16, sizeof(m.nonce));
	for (i = 0; i < 8; i++)
		m.offset[i] = (uint8_t)(offset >> (56 - 8 * i));
	for (i = 0; i < 4; i++)
		m.consumed[i] = (uint8_t)(consumed >> (24 - 8 * i));
	return m;
}

static const struct wire {
	const char *name;
	uint8_t kind, zero, nonce;	/* nonce: xor of its last byte */
	uint64_t offset;
	uint32_t consumed;
	size_t len;			/* of the frame; 0: all of it */
	const char *then;		/* what follows */
	enum outcome outcome;
	const char *reads;		/* the stream from there on */
} wires[] = {
	{ "an honest one", XR_FRAME_RETREAT, .offset = 5, .then = "next", .outcome = RX_LEAVES, .reads = "next" },
	{ "an honest one, with bytes that were read", XR_FRAME_RETREAT, .offset = 2, .then = "llonext",
	  .outcome = RX_LEAVES, .reads = "next" },
	{ "other bytes in the place of those", XR_FRAME_RETREAT, .offset = 2, .then = "XYZnext",
	  .outcome = RX_LEAVES, .reads = "next" },
	{ "its padding", XR_FRAME_RETREAT, .zero = 9, .offset = 5, .then = "next",
	  .outcome = RX_LEAVES, .reads = "next" },
	{ "an offset ahead", XR_FRAME_RETREAT, .offset = 6, .then = "next", .outcome = RESET },
	{ "an offset far ahead", XR_FRAME_RETREAT, .offset = UINT64_MAX, .then = "next", .outcome = RESET },
	{ "no kind", 0, .offset = 5, .then = "next", .outcome = RESET },
	{ "a kind that there is not", XR_FRAME_CLOSE + 1, .offset = 5, .then = "next", .outcome = RESET },
	{ "another nonce", XR_FRAME_RETREAT, .nonce = 1, .offset = 5, .then = "next", .outcome = RESET },
	{ "bytes and no frame", XR_FRAME_RETREAT, .nonce = 1, .len = 16, .outcome = RESET },
	{ "a close with a lie about what was read", XR_FRAME_CLOSE, .offset = 5, .consumed = UINT32_MAX,
	  .then = "next", .outcome = RX_LEAVES, .reads = "next" },
	{ "half of it, and silence", XR_FRAME_RETREAT, .offset = 5, .len = 20, .outcome = NOTHING },
};

static void before_frames(void)
{
	struct xr_bridge_answer a = { .type = XR_BRIDGE_UP };
	char c[5];
	struct iovec iov = { c, sizeof(c) };

	flow_make();
	memcpy(a.secret, secret, sizeof(a.secret));
	xr_far_attach(R.f, &a);
	flow_on_ring();
	assert_int_equal(flow_send(16), 16);
	far_send("hello");
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 5);
}

static size_t wire_tell(const struct wire *w)
{
	struct xr_frame m = frame(w->kind, w->offset, w->consumed);
	size_t len = w->len ? w->len : sizeof(m);

	m.zero[1] = w->zero;
	m.nonce[15] ^= w->nonce;
	assert_int_equal(send(R.far_fd, &m, len, MSG_NOSIGNAL), len);
	if (w->then)
		far_write(w->then);
	return len;
}

/* All that the program reads, by whichever way it comes. */
static size_t read_all(char *s, size_t len)
{
	struct iovec iov;
	size_t n = 0;
	int i;

	for (i = 0; i < 6; i++) {
		ssize_t r;

		iov = (struct iovec){ s + n, len - n };
		R.f->rx_checked = 0;
		r = xr_flow_recv(R.f, R.fd, &iov, 1, 0);
		if (r == -EREMOTEIO)
			r = recv(R.fd, s + n, len - n, MSG_DONTWAIT);
		if (r > 0)
			n += (size_t)r;
		xr_flow_poll(R.f, R.fd);
	}
	return n;
}

static void every_frame_of_a_liar(void **state)
{
	size_t i, who;
	int bad = 0;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(wires); i++) {
		const struct wire *w = &wires[i];
		char got[64];
		struct seen s;

		for (who = READS; who <= POLLS; who++) {
			before_frames();
			wire_tell(w);
			look((enum who)who, &s);
			if ((outcome_of(&s) == RESET) != (w->outcome == RESET) ||
			    (w->outcome == RESET && !reset_is_whole(&s))) {
				print_error("%s, met by %s: %s, should be %s (in %zd out %zd, %d errors, %d counted, "
					    "RST %d, poll 0x%x)\n", w->name, who_name[who],
					    outcome_name[outcome_of(&s)], outcome_name[w->outcome], s.in, s.out,
					    s.resets, s.blamed, s.rst, s.poll);
				bad++;
			}
			flow_end();
		}
		if (w->outcome == RESET)
			continue;
		before_frames();
		wire_tell(w);
		assert_int_equal(read_all(got, sizeof(got)), w->reads ? strlen(w->reads) : 0);
		assert_memory_equal(got, w->reads ? w->reads : "", w->reads ? strlen(w->reads) : 0);
		flow_end();
	}
	assert_int_equal(bad, 0);
}

/* Said once more: behind a retreat there are only bytes, and the peer may send the program what it likes. */
static void a_frame_twice(void **state)
{
	static const struct wire w = { "twice", XR_FRAME_RETREAT, .offset = 5 };
	struct xr_frame m = frame(w.kind, w.offset, w.consumed);
	char got[64];

	(void)state;
	before_frames();
	wire_tell(&w);
	wire_tell(&w);
	assert_int_equal(read_all(got, sizeof(got)), sizeof(m));
	assert_memory_equal(got, &m, sizeof(m));
	flow_end();
	/* and after this end has answered */
	before_frames();
	wire_tell(&w);
	assert_int_equal(read_all(got, sizeof(got)), 0);
	wire_tell(&w);
	far_write("more");
	assert_int_equal(read_all(got, sizeof(got)), sizeof(m) + 4);
	assert_memory_equal(got + sizeof(m), "more", 4);
	flow_end();
}

/* Half a frame, and then the end: the peer is gone with what was to follow. */
static void half_a_frame_and_the_end(void **state)
{
	static const struct wire w = { "half", XR_FRAME_RETREAT, .offset = 5, .len = 20 };
	char got[64];
	int i;

	(void)state;
	before_frames();
	wire_tell(&w);
	assert_int_equal(read_all(got, sizeof(got)), 0);
	far_close();
	for (i = 0; i < 3; i++)
		if (program(flow_recv(), 0) == -ECONNRESET)
			break;
	assert_true(i < 3);
	assert_int_equal(program(flow_recv(), 0), 0);
	flow_end();
}

/* ---- the other end of the memory, twice ------------------------------------------ */

/* It asks for the way back, gets it, and asks again: by each of the words that ask, in each order. */
static void a_retreat_twice(void **state)
{
	static void (*const ask[])(void) = {
		own_frozen_well, own_frozen_for_us, own_arm_frozen, far_frozen_and_no_more, far_frozen_and_silent,
		far_state_gone, far_state_closed, far_state_rest, own_frozen_beyond, own_zero, far_moved_back,
	};
	size_t a, b;
	struct seen s;

	(void)state;
	for (a = 0; a < 5; a++)
		for (b = 0; b < XR_ARRAY_LEN(ask); b++) {
			before();
			ask[a]();
			look(READS, &s);
			if (s.blamed || s.resets)
				fail_msg("%zu: the first", a);
			ask[b]();
			look(READS, &s);
			/* what is over is not read again; what is not is reset, whole */
			if (outcome_of(&s) == RESET && !reset_is_whole(&s))
				fail_msg("%zu, %zu: in %zd out %zd, %d errors, %d counted, RST %d, poll 0x%x", a, b,
					 s.in, s.out, s.resets, s.blamed, s.rst, s.poll);
			xr_flow_retreat(R.f, R.fd, XR_REASON_OPERATOR, 0);
			look(POLLS, &s);
			flow_end();
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_word_of_a_liar),
		cmocka_unit_test(start_by_a_liar),
		cmocka_unit_test(every_frame_of_a_liar),
		cmocka_unit_test(a_frame_twice),
		cmocka_unit_test(half_a_frame_and_the_end),
		cmocka_unit_test(a_retreat_twice),
	};

	/* for what a flow to another host needs */
	xr_cfg.rdma = 1;

	return cmocka_run_group_tests(tests, NULL, NULL);
}
