/* SPDX-License-Identifier: BSD-2-Clause */
/* The ring against a peer that writes anything into any word that both ends map. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include "ring_rig.h"

static ssize_t put(struct rig *r, size_t n)
{
	static uint8_t buf[300000];
	struct iovec iov = { buf, n };

	return xr_shm_tx_send(&r->tx, &iov, 1, 0, n);
}

static struct xr_shm_slot *slot(struct rig *r, uint32_t seq)
{
	return &r->tx.slots[seq & r->tx.mask];
}

static void expect_refusal(struct rig *r)
{
	struct xr_view v;

	assert_int_equal(xr_shm_rx_peek(&r->rx, &v), -EPROTO);
	/* and again: the reader does not stumble on */
	assert_int_equal(xr_shm_rx_peek(&r->rx, &v), -EPROTO);
	assert_int_equal(xr_shm_rx_readable(&r->rx), 0);
	assert_int_equal(rig_fini(r), 0);
}

static void bad_headers(void **state)
{
	static const uint64_t heads[] = {
		XR_HEAD(1, 5, 0, XR_OP_NONE), XR_HEAD(1, 5, 0, XR_OP_MAX),
		XR_HEAD(1, 5, 0, 255), XR_HEAD(1, 0, 0, XR_OP_SEND),
		XR_HEAD(1, XR_SLOT_INLINE + 1, 0, XR_OP_SEND), XR_HEAD(1, 0xffff, 0, XR_OP_SEND),
		XR_HEAD(1, 0, XR_SLOT_OPEN, XR_OP_START), XR_HEAD(1, 9, 0xff, XR_OP_END),
	};
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(heads); i++) {
		struct rig r;

		rig_init(&r, 16, 2, 1 << 20);
		xr_store_release(&slot(&r, 1)->head, heads[i]);
		expect_refusal(&r);
	}
}

static void bad_references(void **state)
{
	static const struct {
		uint64_t off;
		uint32_t len;
	} ref[] = {
		{ 0, 0 }, { 0, XR_CHUNK + 1 }, { 0, UINT32_MAX }, { UINT64_MAX, 1 },
		{ UINT64_MAX - 5, 10 }, { 1ull << 63, 1 }, { (uint64_t)-1 << 20, XR_CHUNK },
	};
	struct rig r;
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(ref); i++) {
		rig_init(&r, 16, 2, 1 << 20);
		assert_int_equal(put(&r, 500), 500);
		slot(&r, 1)->ref.off = ref[i].off;
		xr_store_release(&slot(&r, 1)->ref.len, ref[i].len);
		expect_refusal(&r);
	}
	/* exactly at the end of the arena is fine, one byte further is not */
	rig_init(&r, 16, 2, 1 << 20);
	assert_int_equal(put(&r, 500), 500);
	slot(&r, 1)->ref.off = r.guard - 500;
	assert_int_equal(xr_shm_rx_readable(&r.rx), 500);
	slot(&r, 1)->ref.off++;
	expect_refusal(&r);
}

static void a_length_that_shrinks(void **state)
{
	struct xr_view v;
	struct rig r;

	(void)state;
	rig_init(&r, 16, 2, 1 << 20);
	assert_int_equal(put(&r, 20000), 20000);
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
	xr_shm_rx_take(&r.rx, &v, 10000);
	xr_store_release(&slot(&r, 1)->ref.len, 9000);
	expect_refusal(&r);
}

static void a_sequence_of_another_round_is_nothing(void **state)
{
	struct xr_view v;
	struct rig r;

	(void)state;
	rig_init(&r, 16, 2, 1 << 20);
	assert_int_equal(put(&r, 5), 5);
	xr_store_release(&slot(&r, 1)->head, XR_HEAD(17, 5, 0, XR_OP_SEND));
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 0);
	assert_int_equal(rig_fini(&r), 0);
}

static void a_consumer_that_lies(void **state)
{
	static const uint64_t lies[] = {
		XR_CONSUMED(0, 0), XR_CONSUMED(1, 0x7fffffff), XR_CONSUMED(2, 101), XR_CONSUMED(3, 1),
		XR_CONSUMED(4, 0), XR_CONSUMED(9, 0), XR_CONSUMED(UINT32_MAX, 77), XR_CONSUMED(0x80000001u, 3),
		XR_CONSUMED(2, 0x10000), XR_FROZEN | XR_CONSUMED(77, 0x7fffffff),
	};
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(lies); i++) {
		struct iovec iov[64];
		struct rig r;
		size_t n, k;
		int rounds;

		rig_init(&r, 16, 4, 1 << 20);
		assert_true(put(&r, 40000) > 0);
		assert_true(put(&r, 100) > 0);
		xr_store_relaxed(&r.dir->consumed, lies[i]);
		for (rounds = 0; rounds < 50; rounds++) {
			ssize_t got = put(&r, 30000);

			if (got <= 0)
				break;
			assert_true(xr_shm_tx_unconsumed(&r.tx) <= r.tx.sent);
		}
		assert_true(rounds < 50);
		xr_shm_tx_freeze(&r.tx);
		/* nothing that follows could be right: whoever owns the connection ends it */
		assert_int_equal(r.tx.lied, 1);
		assert_int_equal(put(&r, 1), -ESTALE);
		assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_END, 0), -ESTALE);
		/* what is replayed lies in this end's own slots and chunks */
		while ((n = xr_shm_tx_replay(&r.tx, iov, 64)) > 0) {
			size_t sum = 0;

			for (k = 0; k < n; k++) {
				uint8_t *p = iov[k].iov_base;

				assert_true(p >= r.arena && p + iov[k].iov_len <= r.arena + r.guard);
				sum += iov[k].iov_len;
			}
			xr_shm_tx_replayed(&r.tx, sum);
		}
		assert_int_equal(rig_fini(&r), 0);
	}
}

/* What was consumed is not unread again, and what is frozen at a good place is no lie. */
static void a_consumer_that_goes_back(void **state)
{
	static const struct {
		uint64_t word;
		int lie;
	} second[] = {
		{ XR_CONSUMED(1, 0), 1 }, { XR_CONSUMED(1, 15000), 1 }, { XR_CONSUMED(2, 9), 1 },
		{ XR_FROZEN | XR_CONSUMED(2, 9), 1 }, { XR_FROZEN | XR_CONSUMED(1, 16384), 1 },
		{ XR_CONSUMED(2, 10), 0 }, { XR_FROZEN | XR_CONSUMED(2, 10), 0 },
		{ XR_CONSUMED(2, 100), 0 }, { XR_CONSUMED(3, 0), 0 }, { XR_CONSUMED(2, 101), 1 },
		{ XR_CONSUMED(3, 1), 1 }, { XR_REPLAYING | XR_CONSUMED(2, 10), 0 },
	};
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(second); i++) {
		struct rig r;

		rig_init(&r, 16, 4, 1 << 20);
		assert_int_equal(put(&r, 16384), 16384);
		assert_int_equal(put(&r, 100), 100);
		xr_store_relaxed(&r.dir->consumed, XR_CONSUMED(2, 10));
		assert_int_equal(xr_shm_tx_unconsumed(&r.tx), 90);
		xr_store_relaxed(&r.dir->consumed, second[i].word);
		xr_shm_tx_freeze(&r.tx);
		assert_int_equal(r.tx.lied, second[i].lie);
		assert_int_equal(rig_fini(&r), 0);
	}
}

/* The sender freezes, and does nothing else to the word: whatever it makes of the position is a lie. */
static void a_sender_that_moves_the_position(void **state)
{
	static const struct {
		uint64_t word;
		int lie;
	} word[] = {
		{ XR_CONSUMED(1, 0), 1 }, { XR_CONSUMED(2, 1), 1 }, { XR_CONSUMED(3, 0), 1 }, { 0, 1 },
		{ XR_FROZEN | XR_CONSUMED(1, 3), 1 }, { UINT64_MAX, 1 }, { XR_REPLAYING | XR_CONSUMED(2, 0), 1 },
		{ XR_FROZEN | XR_REPLAYING | XR_CONSUMED(3, 0), 1 },
		{ XR_CONSUMED(2, 0), 0 }, { XR_FROZEN | XR_CONSUMED(2, 0), 0 },
		{ XR_FROZEN | XR_REPLAYING | XR_CONSUMED(2, 0), 0 },
	};
	size_t i, how;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(word); i++)
		for (how = 0; how < 3; how++) {
			struct xr_view v;
			struct rig r;

			rig_init(&r, 16, 4, 1 << 20);
			assert_int_equal(put(&r, 5), 5);
			assert_int_equal(put(&r, 7), 7);
			assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
			xr_shm_rx_take(&r.rx, &v, 5);
			assert_int_equal(xr_shm_rx_commit(&r.rx), 0);
			xr_store_relaxed(&r.dir->consumed, word[i].word);
			if (how == 0) {
				assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
				xr_shm_rx_take(&r.rx, &v, 7);
				xr_shm_rx_commit(&r.rx);
			} else if (how == 1) {
				xr_shm_rx_seal(&r.rx);
			} else {
				xr_shm_rx_freeze(&r.rx);
			}
			assert_int_equal(r.rx.lied, word[i].lie);
			if (word[i].lie) {
				assert_int_equal(xr_shm_rx_is_frozen(&r.rx), 0);
				assert_int_equal(xr_shm_rx_peek(&r.rx, &v), -EPROTO);
				assert_int_equal(xr_shm_rx_readable(&r.rx), 0);
			}
			assert_int_equal(rig_fini(&r), 0);
		}
}

/* What a seal walked over is not made good by what the sender does then. */
static void nonsense_under_a_seal_is_remembered(void **state)
{
	struct rig r;

	(void)state;
	rig_init(&r, 16, 4, 1 << 20);
	assert_int_equal(put(&r, 5), 5);
	assert_int_equal(put(&r, 7), 7);
	xr_store_release(&slot(&r, 3)->head, XR_HEAD(3, 5, 0, 255));
	xr_shm_rx_seal(&r.rx);
	assert_int_equal(r.rx.lied, 1);
	xr_shm_tx_freeze(&r.tx);
	assert_int_equal(xr_shm_rx_freeze(&r.rx), -ESTALE);
	assert_int_equal(r.rx.lied, 1);
	assert_int_equal(rig_fini(&r), 0);
}

static void check_view(struct rig *r, const struct xr_view *v)
{
	volatile uint8_t sum = 0;
	uint32_t i;

	assert_true(v->data >= r->arena && v->data + v->len <= r->arena + r->guard);
	assert_true(v->len <= XR_CHUNK);
	for (i = 0; i < v->len; i += 61)
		sum = (uint8_t)(sum + v->data[i]);
}

/* A word that makes sense nearly always, and now and then none at all. */
static uint64_t evil(struct rng *g, uint64_t now)
{
	switch (rng_below(g, 6)) {
	case 0:
		return rng_next(g);
	case 1:
		return now ^ (1ull << rng_below(g, 64));
	case 2:
		return now + rng_below(g, 5) - 2;
	case 3:
		return now + ((uint64_t)(rng_below(g, 5) - 2) << 32);
	case 4:
		return 0;
	default:
		return UINT64_MAX >> rng_below(g, 64);
	}
}

static void evil_sender(void **state)
{
	struct rng g = { 11 };
	int round;

	(void)state;
	for (round = 0; round < 1000; round++) {
		struct rig r;
		int i;

		rig_init(&r, 16, 2, 100000);
		for (i = 0; i < 60; i++) {
			struct xr_shm_slot *s = slot(&r, r.rx.seq + rng_below(&g, 2));
			struct xr_view v;
			int k;

			put(&r, 1 + rng_below(&g, rng_below(&g, 2) ? 200 : 40000));
			switch (rng_below(&g, 5)) {
			case 0:
				xr_store_relaxed(&s->head, evil(&g, xr_load_relaxed(&s->head)));
				break;
			case 1:
				s->ref.off = evil(&g, s->ref.off);
				break;
			case 2:
				xr_store_relaxed(&s->ref.len,
						 (uint32_t)evil(&g, xr_load_relaxed(&s->ref.len)));
				break;
			}
			k = xr_shm_rx_peek(&r.rx, &v);
			if (k < 0)
				break;
			if (k == 1) {
				check_view(&r, &v);
				xr_shm_rx_take(&r.rx, &v, v.len ? 1 + rng_below(&g, v.len) : 0);
			}
			xr_shm_rx_readable(&r.rx);
			if (rng_below(&g, 2) && xr_shm_rx_commit(&r.rx))
				break;
		}
		assert_int_equal(rig_fini(&r), 0);
	}
}

static void evil_receiver(void **state)
{
	struct rng g = { 12 };
	int round;

	(void)state;
	for (round = 0; round < 1000; round++) {
		struct iovec iov[4];
		struct rig r;
		uint32_t w;
		size_t n;
		int i;

		rig_init(&r, 16, 3, 100000);
		for (i = 0; i < 60; i++) {
			ssize_t k = put(&r, 1 + rng_below(&g, rng_below(&g, 2) ? 200 : 90000));

			if (k == -ESTALE)
				break;
			assert_true(k >= 0);
			xr_store_relaxed(&r.dir->consumed,
					 rng_below(&g, 8) ?
					 XR_CONSUMED(r.tx.done + rng_below(&g, 18), rng_below(&g, 70000)) :
					 evil(&g, xr_load_relaxed(&r.dir->consumed)));
			xr_store_relaxed(&r.dir->arm, evil(&g, xr_load_relaxed(&r.dir->arm)));
			xr_shm_tx_armed(&r.tx, &w);
			xr_shm_tx_want_space(&r.tx, 1);
			assert_true(xr_shm_tx_space(&r.tx) <= r.tx.inflight_max);
			xr_shm_tx_control(&r.tx, XR_OP_START, 1);
		}
		xr_shm_tx_freeze(&r.tx);
		while ((n = xr_shm_tx_replay(&r.tx, iov, 4)) > 0) {
			uint8_t *p = iov[0].iov_base;

			assert_true(p >= r.arena && p + iov[0].iov_len <= r.arena + r.guard);
			xr_shm_tx_replayed(&r.tx, iov[0].iov_len);
		}
		assert_int_equal(rig_fini(&r), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_headers),
		cmocka_unit_test(bad_references),
		cmocka_unit_test(a_length_that_shrinks),
		cmocka_unit_test(a_sequence_of_another_round_is_nothing),
		cmocka_unit_test(a_consumer_that_lies),
		cmocka_unit_test(a_consumer_that_goes_back),
		cmocka_unit_test(a_sender_that_moves_the_position),
		cmocka_unit_test(nonsense_under_a_seal_is_remembered),
		cmocka_unit_test(evil_sender),
		cmocka_unit_test(evil_receiver),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
