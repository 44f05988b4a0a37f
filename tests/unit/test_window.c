/* SPDX-License-Identifier: BSD-2-Clause */
/* The seq-ack window: arithmetic, impossible input, and two ends that must not deadlock. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/window.h"

static uint32_t charge[2][2048];

static void limits(void **state)
{
	static const struct { uint32_t sm; uint64_t sb; uint32_t rm; uint64_t rb; uint32_t ring; } bad[] = {
		{ 0, 1, 1, 1, 1 }, { 1, 0, 1, 1, 1 }, { 1, 1, 0, 1, 1 }, { 1, 1, 1, 0, 1 },
		{ XR_WINDOW_MAX_MSGS + 1, 1, 1, 1, 2048 }, { 1, XR_WINDOW_MAX_BYTES + 1, 1, 1, 1 },
		{ 1, 1, XR_WINDOW_MAX_MSGS + 1, 1, 1 }, { 1, 1, 1, XR_WINDOW_MAX_BYTES + 1, 1 },
		{ 4, 1, 1, 1, 2 }, { 4, 1, 1, 1, 5 }, { 1, 1, 1, 1, 0 }, { UINT32_MAX, 1, 1, 1, 2048 },
	};
	struct xr_window w;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(xr_window_init(&w, 0, bad[i].sm, bad[i].sb, bad[i].rm, bad[i].rb,
						charge[0], bad[i].ring), -EINVAL);
	assert_int_equal(xr_window_init(&w, 0, 1, 1, 1, 1, NULL, 1), -EINVAL);
	assert_int_equal(xr_window_init(&w, 0, XR_WINDOW_MAX_MSGS, XR_WINDOW_MAX_BYTES,
					XR_WINDOW_MAX_MSGS, XR_WINDOW_MAX_BYTES, charge[0], 1024), 0);
	/* the largest message fits, whatever its length, and so does a second one */
	assert_int_equal(xr_window_open(&w, UINT64_MAX), 1);
}

/* Around every interesting start, wrap-around included. */
static const uint32_t starts[] = { 0, 1, 7, INT32_MAX, UINT32_MAX - 3, UINT32_MAX };

static void credits_in_messages(void **state)
{
	struct xr_window w;
	uint32_t seq, s, n;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		s = starts[i];
		assert_int_equal(xr_window_init(&w, s, 5, 1000, 5, 1000, charge[0], 8), 0);
		for (n = 0; n < 5; n++) {
			assert_int_equal(xr_window_send(&w, 0, &seq), 0);
			assert_true(seq == s + n);
		}
		seq = 4711;
		assert_int_equal(xr_window_send(&w, 0, &seq), -EAGAIN);
		assert_int_equal(seq, 4711);
		assert_int_equal(xr_window_acked(&w, s + 2), 2);
		assert_int_equal(xr_window_send(&w, 0, &seq), 0);
		assert_int_equal(xr_window_send(&w, 0, &seq), 0);
		assert_int_equal(xr_window_send(&w, 0, &seq), -EAGAIN);
		assert_int_equal(xr_window_acked(&w, s + 7), 5);
		assert_int_equal(w.snd_out, 0);
	}
}

static void credits_in_bytes(void **state)
{
	struct xr_window w;
	uint32_t seq;

	(void)state;
	assert_int_equal(xr_window_init(&w, 0, 64, 100, 64, 100, charge[0], 64), 0);
	assert_int_equal(xr_window_send(&w, 40, &seq), 0);
	assert_int_equal(xr_window_send(&w, 40, &seq), 0);
	assert_int_equal(xr_window_send(&w, 21, &seq), -EAGAIN);
	assert_int_equal(xr_window_send(&w, 20, &seq), 0);
	assert_int_equal(xr_window_send(&w, 1, &seq), -EAGAIN);
	assert_int_equal(xr_window_send(&w, 0, &seq), 0);	/* costs a message only */
	assert_int_equal(xr_window_acked(&w, 1), 1);
	assert_int_equal(w.snd_out, 60);
	assert_int_equal(xr_window_send(&w, UINT64_MAX, &seq), -EAGAIN);
	assert_int_equal(xr_window_acked(&w, 2), 1);
	/* larger than the window: charged half of it */
	assert_int_equal(xr_window_send(&w, UINT64_MAX, &seq), 0);
	assert_int_equal(w.snd_out, 70);
	assert_int_equal(xr_window_acked(&w, 5), 3);
	assert_int_equal(w.snd_out, 0);
}

static void impossible_acks(void **state)
{
	struct xr_window w;
	uint32_t seq, s;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		s = starts[i];
		assert_int_equal(xr_window_init(&w, s, 8, 1000, 8, 1000, charge[0], 8), 0);
		assert_int_equal(xr_window_acked(&w, s), 0);
		assert_int_equal(xr_window_acked(&w, s + 1), -EPROTO);
		assert_int_equal(xr_window_acked(&w, s - 1), -EPROTO);
		assert_int_equal(xr_window_send(&w, 10, &seq), 0);
		assert_int_equal(xr_window_send(&w, 20, &seq), 0);
		assert_int_equal(xr_window_acked(&w, s + 3), -EPROTO);		/* beyond sent */
		assert_int_equal(xr_window_acked(&w, s + 0x80000000u), -EPROTO);
		assert_int_equal(w.snd_out, 30);				/* and nothing changed */
		assert_int_equal(xr_window_acked(&w, s + 1), 1);
		assert_int_equal(xr_window_acked(&w, s + 1), 0);		/* duplicate */
		assert_int_equal(w.snd_out, 20);
		assert_int_equal(xr_window_acked(&w, s), -EPROTO);		/* going back */
		assert_int_equal(xr_window_acked(&w, s + 2), 1);
		assert_int_equal(xr_window_acked(&w, s + 1), -EPROTO);
	}
}

static void impossible_messages(void **state)
{
	struct xr_window w;
	uint32_t s = UINT32_MAX - 1, n;

	(void)state;
	assert_int_equal(xr_window_init(&w, s, 4, 100, 4, 100, charge[0], 4), 0);
	assert_int_equal(xr_window_done(&w, 1), -EINVAL);
	assert_int_equal(xr_window_receive(&w, s + 1, 1), -EPROTO);	/* one was left out */
	assert_int_equal(xr_window_receive(&w, s, 1), 0);
	assert_int_equal(xr_window_receive(&w, s, 1), -EPROTO);		/* twice */
	for (n = 1; n < 4; n++)
		assert_int_equal(xr_window_receive(&w, s + n, 1), 0);
	assert_int_equal(xr_window_receive(&w, s + 4, 1), -EPROTO);	/* beyond the grant */
	assert_int_equal(xr_window_done(&w, 1), 0);
	assert_int_equal(xr_window_receive(&w, s + 4, 1), -EPROTO);	/* done, but not acked yet */
	assert_true(xr_window_ack(&w) == s + 1);
	assert_int_equal(xr_window_receive(&w, s + 4, 1), 0);
	/* in bytes */
	assert_int_equal(xr_window_init(&w, s, 4, 100, 4, 100, charge[0], 4), 0);
	assert_int_equal(xr_window_receive(&w, s, 1000), 0);
	assert_int_equal(xr_window_receive(&w, s + 1, 1000), 0);
	assert_int_equal(xr_window_receive(&w, s + 2, 1), -EPROTO);
	assert_int_equal(xr_window_receive(&w, s + 2, 0), 0);
}

static void ack_at_half_a_window(void **state)
{
	struct xr_window w;
	uint32_t n;

	(void)state;
	assert_int_equal(xr_window_init(&w, 0, 8, 100, 8, 100, charge[0], 8), 0);
	assert_int_equal(xr_window_ack_due(&w), 0);
	for (n = 0; n < 4; n++) {
		assert_int_equal(xr_window_ack_due(&w), 0);
		assert_int_equal(xr_window_receive(&w, n, 1), 0);
		assert_int_equal(xr_window_ack_due(&w), 0);	/* received is not processed */
		assert_int_equal(xr_window_done(&w, 1), 0);
	}
	assert_int_equal(xr_window_ack_due(&w), 1);
	assert_int_equal(xr_window_ack(&w), 4);
	assert_int_equal(xr_window_ack_due(&w), 0);
	assert_int_equal(xr_window_receive(&w, 4, 49), 0);
	assert_int_equal(xr_window_done(&w, 49), 0);
	assert_int_equal(xr_window_ack_due(&w), 0);
	assert_int_equal(xr_window_receive(&w, 5, 1), 0);
	assert_int_equal(xr_window_done(&w, 1), 0);
	assert_int_equal(xr_window_ack_due(&w), 1);		/* half in bytes */
}

/* --- two ends over two queues ------------------------------------------------------ */

#define QUEUE 4096u

struct packet {
	uint32_t seq, ack, data;
	uint64_t len;
};

struct side {
	struct xr_window w;
	struct packet q[QUEUE];		/* on the way to this end */
	uint32_t head, tail, data, acks;	/* and how many of each kind */
	uint64_t lens[QUEUE];		/* arrived and not processed */
	uint32_t lhead, ltail;
	uint32_t got;
	uint32_t worst_acks, worst_data;
};

static struct side side[2];

static void push(struct side *to, struct packet p)
{
	assert_true(to->tail - to->head < QUEUE);
	to->q[to->tail++ % QUEUE] = p;
	if (p.data) {
		if (++to->data > to->worst_data)
			to->worst_data = to->data;
	} else if (++to->acks > to->worst_acks) {
		to->worst_acks = to->acks;
	}
}

static int try_send(struct side *s, struct side *to, uint64_t len)
{
	struct packet p = { .data = 1, .len = len };

	if (xr_window_send(&s->w, len, &p.seq))
		return 0;
	p.ack = xr_window_ack(&s->w);
	push(to, p);
	return 1;
}

/* One packet arrives. */
static int take(struct side *s)
{
	struct packet p;

	if (s->head == s->tail)
		return 0;
	p = s->q[s->head++ % QUEUE];
	assert_true(xr_window_acked(&s->w, p.ack) >= 0);
	if (p.data) {
		s->data--;
		assert_int_equal(xr_window_receive(&s->w, p.seq, p.len), 0);
		s->lens[s->ltail++ % QUEUE] = p.len;
	} else {
		s->acks--;
	}
	return 1;
}

/* One message is processed. */
static int work(struct side *s, struct side *to)
{
	if (s->lhead == s->ltail)
		return 0;
	assert_int_equal(xr_window_done(&s->w, s->lens[s->lhead++ % QUEUE]), 0);
	s->got++;
	if (xr_window_ack_due(&s->w))
		push(to, (struct packet){ .seq = s->w.snd_nxt, .ack = xr_window_ack(&s->w) });
	return 1;
}

/* Messages that went each way until both queues were empty and both ends had sent `want`. */
static void converse(uint32_t msgs, uint64_t bytes, uint32_t first, uint32_t want, unsigned int seed)
{
	uint32_t sent[2] = { 0, 0 }, i, stuck = 0;
	uint64_t next[2];

	memset(side, 0, sizeof(side));
	for (i = 0; i < 2; i++) {
		assert_int_equal(xr_window_init(&side[i].w, first, msgs, bytes, msgs, bytes, charge[i],
						2048), 0);
		next[i] = (uint64_t)rand_r(&seed) % (2 * bytes + 2);
	}
	while (sent[0] < want || sent[1] < want) {
		int moved = 0, all = rand_r(&seed) % 4;

		for (i = 0; i < 2; i++) {
			struct side *s = &side[i], *to = &side[!i];

			/* all 0: both windows are filled to the brim before anything is taken */
			while (sent[i] < want && try_send(s, to, next[i])) {
				next[i] = (uint64_t)rand_r(&seed) % (2 * bytes + 2);
				sent[i]++;
				moved = 1;
				if (all && rand_r(&seed) % 2)
					break;
			}
		}
		for (i = 0; i < 2; i++) {
			struct side *s = &side[rand_r(&seed) % 2];

			while (all != 1 && take(s)) {
				moved = 1;
				if (all && rand_r(&seed) % 3 == 0)
					break;
			}
			while (work(s, s == &side[0] ? &side[1] : &side[0])) {
				moved = 1;
				if (all && rand_r(&seed) % 3 == 0)
					break;
			}
		}
		stuck = moved ? 0 : stuck + 1;
		assert_true(stuck < 200);	/* each end had many turns and nothing moved */
	}
	for (i = 0; i < 2; i++) {
		assert_true(side[i].worst_acks <= XR_WINDOW_ACKS);
		assert_true(side[i].worst_data <= msgs);
	}
}

static void two_full_windows_make_progress(void **state)
{
	uint32_t msgs, bytes;
	unsigned int seed = 1;

	(void)state;
	for (msgs = 1; msgs <= 9; msgs++)
		for (bytes = 1; bytes <= 17; bytes++)
			converse(msgs, bytes, UINT32_MAX - 100, 400, seed++);
	converse(64, 1u << 20, 0, 20000, seed++);
	converse(1024, 1u << 23, UINT32_MAX - 5000, 20000, seed++);
}

/* The same without acks that go alone stops at once: the check above can fail. */
static void without_reserved_slots_it_deadlocks(void **state)
{
	uint32_t i;

	(void)state;
	memset(side, 0, sizeof(side));
	for (i = 0; i < 2; i++) {
		assert_int_equal(xr_window_init(&side[i].w, 0, 4, 100, 4, 100, charge[i], 4), 0);
	}
	for (i = 0; i < 2; i++)
		while (try_send(&side[i], &side[!i], 1))
			;
	for (i = 0; i < 2; i++)
		while (take(&side[i]))
			assert_int_equal(xr_window_done(&side[i].w, 1), 0);
	for (i = 0; i < 2; i++) {
		assert_int_equal(try_send(&side[i], &side[!i], 1), 0);
		assert_int_equal(xr_window_ack_due(&side[i].w), 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limits),
		cmocka_unit_test(credits_in_messages),
		cmocka_unit_test(credits_in_bytes),
		cmocka_unit_test(impossible_acks),
		cmocka_unit_test(impossible_messages),
		cmocka_unit_test(ack_at_half_a_window),
		cmocka_unit_test(two_full_windows_make_progress),
		cmocka_unit_test(without_reserved_slots_it_deadlocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
