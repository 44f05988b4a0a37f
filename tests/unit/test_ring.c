/* SPDX-License-Identifier: BSD-2-Clause */
/* The ring as a byte stream: one thread, two threads, two processes, freeze and replay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "child.h"
#include "ring_rig.h"

#define SEED	0x51ee7ull

static ssize_t put(struct rig *r, const void *p, size_t n)
{
	struct iovec iov = { (void *)(uintptr_t)p, n };

	return xr_shm_tx_send(&r->tx, &iov, 1, 0, n);
}

/* Sends n bytes of the stream from where it stands. */
static ssize_t put_stream(struct rig *r, size_t n)
{
	uint8_t *buf = malloc(n);
	ssize_t k;

	stream_fill(SEED, r->tx.sent, buf, n);
	k = put(r, buf, n);
	free(buf);
	return k;
}

/* Takes what is there, up to n bytes, and commits it. */
static size_t get_stream(struct rig *r, size_t n)
{
	uint64_t pos = r->rx.got;
	size_t sum = 0;
	struct xr_view v;

	while (sum < n && xr_shm_rx_peek(&r->rx, &v) == 1) {
		size_t k = v.len < n - sum ? v.len : n - sum;

		assert_int_equal(v.op, XR_OP_SEND);
		assert_int_equal(stream_check(SEED, pos + sum, v.data, k), k);
		xr_shm_rx_take(&r->rx, &v, k);
		sum += k;
	}
	assert_int_equal(xr_shm_rx_commit(&r->rx), 0);
	return sum;
}

static void sizes_around_every_boundary(void **state)
{
	static const size_t sizes[] = { 1, 111, 112, 113, 4096, XR_PUBLISH - 1, XR_PUBLISH,
		XR_PUBLISH + 1, XR_CHUNK - 1, XR_CHUNK, XR_CHUNK + 1, 3 * XR_CHUNK + 7 };
	struct rig r;
	size_t i, j;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
		for (j = 0; j < XR_ARRAY_LEN(sizes); j++) {
			assert_int_equal(put_stream(&r, sizes[i]), sizes[i]);
			assert_int_equal(put_stream(&r, sizes[j]), sizes[j]);
			assert_int_equal(xr_shm_tx_unconsumed(&r.tx), sizes[i] + sizes[j]);
			assert_int_equal(xr_shm_rx_readable(&r.rx), sizes[i] + sizes[j]);
			assert_int_equal(get_stream(&r, SIZE_MAX), sizes[i] + sizes[j]);
			assert_int_equal(xr_shm_tx_unconsumed(&r.tx), 0);
		}
	}
	assert_int_equal(rig_fini(&r), 0);
}

/* Payloads that end within 64 bytes of a chunk's end must not spill into the next chunk. */
static void a_chunk_is_never_overrun(void **state)
{
	uint32_t bulk, small;
	struct rig r;

	(void)state;
	for (bulk = XR_CHUNK - 400; bulk <= XR_CHUNK; bulk += 13) {
		for (small = 121; small < 260; small += 17) {
			int i;

			rig_init(&r, 64, 1, 1 << 20);
			assert_int_equal(put_stream(&r, bulk), bulk);
			for (i = 0; i < 4; i++)
				put_stream(&r, small);
			get_stream(&r, SIZE_MAX);
			assert_int_equal(rig_fini(&r), 0);
		}
	}
}

/* When what is unread came: whoever reads several rings orders them by it. */
static void a_slot_tells_when_it_came(void **state)
{
	struct rig r;
	int i;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 0), 0);
	r.tx.stamp = 1000;
	put_stream(&r, 10);
	r.tx.stamp = 2000;
	put_stream(&r, 200);
	r.tx.stamp = 3000;
	assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_START, 0), 0);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 0), 1000);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 999), 1000);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 1000), 2000);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 2500), 3000);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 3000), 0);
	get_stream(&r, 10);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 0), 2000);
	assert_int_equal(rig_fini(&r), 0);

	/* what is appended to an open slot came with what it is appended to, unless that is read */
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	r.tx.stamp = 1000;
	for (i = 0; i < 40 && !r.tx.open; i++)
		put_stream(&r, 10);
	assert_true(r.tx.open);
	get_stream(&r, SIZE_MAX);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 0), 0);
	r.tx.stamp = 2000;
	put_stream(&r, 10);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 0), 2000);
	r.tx.stamp = 3000;
	put_stream(&r, 10);
	assert_int_equal(xr_shm_rx_stamp(&r.rx, 0), 2000);
	assert_int_equal(rig_fini(&r), 0);
}

static void window_closes_and_opens(void **state)
{
	uint32_t waiter = 0;
	struct rig r;
	size_t sum = 0;
	ssize_t n;

	(void)state;
	rig_init(&r, 16, RIG_CHUNKS, 200000);
	while ((n = put_stream(&r, 7000)) > 0)
		sum += (size_t)n;
	assert_int_equal(n, 0);
	assert_int_equal(sum, 200000);
	assert_int_equal(xr_shm_tx_space(&r.tx), 0);
	xr_shm_tx_want_space(&r.tx, 7);
	assert_int_equal(xr_shm_tx_space(&r.tx), 0);
	assert_int_equal(xr_shm_rx_wants_notice(&r.rx, &waiter), 0);
	assert_int_equal(get_stream(&r, 150000), 150000);
	assert_int_equal(xr_shm_rx_wants_notice(&r.rx, &waiter), 1);
	assert_int_equal(waiter, 7);
	/* once per request */
	assert_int_equal(xr_shm_rx_wants_notice(&r.rx, &waiter), 0);
	assert_true(xr_shm_tx_space(&r.tx) > 0);
	assert_true(put_stream(&r, 1000) > 0);
	assert_int_equal(rig_fini(&r), 0);
}

static void slots_run_out_and_small_sends_coalesce(void **state)
{
	struct rig r;
	size_t n = 0;

	(void)state;
	rig_init(&r, 16, RIG_CHUNKS, 1 << 20);
	/* far more sends than slots: they go into open slots */
	while (n < 100000 && put_stream(&r, 10) == 10)
		n += 10;
	assert_int_equal(n, 100000);
	assert_true(r.tx.head - r.tx.done <= 16 - XR_RING_CTL);
	assert_int_equal(get_stream(&r, SIZE_MAX), 100000);
	assert_int_equal(rig_fini(&r), 0);
}

static void no_chunks_left_still_flows(void **state)
{
	struct rig r;
	int i;

	(void)state;
	rig_init(&r, 16, 0, 1 << 20);
	for (i = 0; i < 100; i++) {
		ssize_t n = put_stream(&r, 5000);

		assert_true(n > 0);
		assert_int_equal(get_stream(&r, SIZE_MAX), n);
	}
	assert_int_equal(rig_fini(&r), 0);
}

static void an_open_slot_is_read_as_it_grows(void **state)
{
	struct rig r;
	int i;

	(void)state;
	rig_init(&r, 16, RIG_CHUNKS, 1 << 20);
	assert_int_equal(put_stream(&r, 20000), 20000);
	assert_int_equal(get_stream(&r, 20000), 20000);
	for (i = 0; i < 5; i++)
		assert_int_equal(put_stream(&r, 100), 100);
	assert_int_equal(get_stream(&r, 450), 450);
	for (i = 0; i < 300; i++) {
		assert_int_equal(put_stream(&r, 33), 33);
		assert_int_equal(get_stream(&r, 30), 30);
	}
	assert_int_equal(get_stream(&r, SIZE_MAX), 50 + 300 * 3);
	assert_int_equal(rig_fini(&r), 0);
}

static void gather_with_a_skip(void **state)
{
	uint8_t buf[5000];
	struct iovec iov[4] = { { buf, 0 }, { buf, 1000 }, { buf + 1000, 1 }, { buf + 1001, 3999 } };
	struct rig r;

	(void)state;
	rig_init(&r, 16, RIG_CHUNKS, 1 << 20);
	stream_fill(SEED, 0, buf + 700, 4300);
	assert_int_equal(xr_shm_tx_send(&r.tx, iov, 4, 700, 4300), 4300);
	assert_int_equal(get_stream(&r, SIZE_MAX), 4300);
	stream_fill(SEED, 4300, buf + 4990, 10);
	assert_int_equal(xr_shm_tx_send(&r.tx, iov, 4, 4990, 10), 10);
	assert_int_equal(get_stream(&r, SIZE_MAX), 10);
	assert_int_equal(rig_fini(&r), 0);
}

static void control_slots_are_kept_back(void **state)
{
	struct xr_view v;
	struct rig r;
	int i;

	(void)state;
	rig_init(&r, 16, 0, 1 << 20);
	assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_START, 4711), 0);
	while (put_stream(&r, 100) > 0)
		;
	assert_int_equal(xr_shm_tx_space(&r.tx), 0);
	for (i = 0; i < (int)XR_RING_CTL; i++)
		assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_END, XR_END_CLOSE), 0);
	assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_END, 0), -EAGAIN);
	assert_int_equal(put_stream(&r, 1), -EPIPE);
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
	assert_int_equal(v.op, XR_OP_START);
	assert_int_equal(v.arg, 4711);
	assert_int_equal(v.len, 0);
	xr_shm_rx_take(&r.rx, &v, 0);
	for (i = 0; xr_shm_rx_peek(&r.rx, &v) == 1 && v.op == XR_OP_SEND; i++)
		xr_shm_rx_take(&r.rx, &v, v.len);
	assert_int_equal(v.op, XR_OP_END);
	assert_int_equal(v.arg, XR_END_CLOSE);
	assert_int_equal(rig_fini(&r), 0);
}

static void armed_once_per_arming(void **state)
{
	uint32_t w = 0;
	struct rig r;

	(void)state;
	rig_init(&r, 16, 0, 1 << 20);
	assert_int_equal(xr_shm_tx_armed(&r.tx, &w), 0);
	xr_shm_rx_arm(&r.rx, 9);
	assert_int_equal(put_stream(&r, 1), 1);
	assert_int_equal(xr_shm_tx_armed(&r.tx, &w), 1);
	assert_int_equal(w, 9);
	assert_int_equal(put_stream(&r, 1), 1);
	assert_int_equal(xr_shm_tx_armed(&r.tx, &w), 0);
	xr_shm_rx_arm(&r.rx, 9);
	assert_int_equal(xr_shm_tx_armed(&r.tx, &w), 1);
	assert_int_equal(rig_fini(&r), 0);
}

/* Replays everything; returns where it began. */
static uint64_t replay_all(struct rig *r, struct rng *g)
{
	uint64_t left = 0, pos, begin;
	struct iovec iov[8];
	size_t n, i;

	for (i = r->tx.replay_seq; (uint32_t)i != r->tx.head; i++)
		left += r->meta[i & r->tx.mask].len;
	begin = pos = r->tx.sent - (left - r->tx.replay_byte);
	while ((n = xr_shm_tx_replay(&r->tx, iov, 8)) > 0) {
		size_t sum = 0, take;

		for (i = 0; i < n; i++) {
			assert_int_equal(stream_check(SEED, pos + sum, iov[i].iov_base,
						      iov[i].iov_len), iov[i].iov_len);
			sum += iov[i].iov_len;
		}
		take = 1 + rng_below(g, (uint32_t)sum);
		xr_shm_tx_replayed(&r->tx, take);
		pos += take;
	}
	assert_int_equal(pos, r->tx.sent);
	return begin;
}

static void sender_freezes_and_replays(void **state)
{
	struct rng g = { 3 };
	struct xr_view v;
	struct rig r;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	assert_int_equal(put_stream(&r, 70000), 70000);
	assert_int_equal(put_stream(&r, 30), 30);
	assert_int_equal(get_stream(&r, 12345), 12345);
	/* taken and not committed: it stays taken, and comes again on the socket */
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
	xr_shm_rx_take(&r.rx, &v, 1000);
	xr_shm_tx_freeze(&r.tx);
	assert_false(xr_shm_rx_is_frozen(&r.rx));
	assert_int_equal(xr_shm_rx_commit(&r.rx), 0);
	assert_int_equal(r.rx.got, 13345);
	assert_int_equal(r.rx.late, 1000);
	/* so does what was readable */
	assert_int_equal(xr_shm_rx_readable(&r.rx), 70030 - 13345);
	assert_int_equal(get_stream(&r, 70030 - 13345), 70030 - 13345);
	assert_int_equal(r.rx.late, 70030 - 12345);
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), -ESTALE);
	assert_true(xr_shm_rx_is_frozen(&r.rx));
	assert_int_equal(put_stream(&r, 1), -ESTALE);
	assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_END, 0), -ESTALE);
	assert_int_equal(xr_shm_tx_unconsumed(&r.tx), 70030 - 12345);
	assert_int_equal(replay_all(&r, &g), 12345);
	assert_int_equal(rig_fini(&r), 0);
}

static void receiver_freezes_and_sender_replays(void **state)
{
	struct rng g = { 4 };
	struct xr_view v;
	struct rig r;
	uint32_t w;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	assert_int_equal(put_stream(&r, 40000), 40000);
	assert_int_equal(put_stream(&r, 100), 100);
	assert_int_equal(put_stream(&r, 40000), 40000);
	assert_int_equal(get_stream(&r, 40050), 40050);
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
	xr_shm_rx_take(&r.rx, &v, 10);
	xr_shm_rx_freeze(&r.rx);
	assert_true(xr_shm_rx_is_frozen(&r.rx));
	assert_int_equal(xr_shm_rx_commit(&r.rx), 0);
	xr_shm_tx_armed(&r.tx, &w);
	assert_true(xr_shm_tx_is_frozen(&r.tx));
	assert_int_equal(put_stream(&r, 1), -ESTALE);
	xr_shm_tx_freeze(&r.tx);
	assert_int_equal(xr_shm_tx_unconsumed(&r.tx), 80100 - 40050);
	assert_int_equal(replay_all(&r, &g), 40050);
	assert_int_equal(rig_fini(&r), 0);
}

/* --- random traffic between two threads or two processes ---------------------------- */

struct duel {
	struct rig *r;
	uint64_t seed;
	uint64_t total;			/* bytes to move unless somebody freezes */
	uint32_t freeze_tx, freeze_rx;	/* operation at which that side freezes; 0: never */
	/* the receiver's findings, in family memory */
	_Atomic uint64_t ops, got;
	_Atomic int bad;
	_Atomic int stop;
};

static void duel_fail(struct duel *d, int line)
{
	int zero = 0;

	/* the first failure is the one that is shown */
	xr_cas(&d->bad, &zero, line);
}

static void duel_receive(struct duel *d)
{
	struct xr_shm_rx *rx = &d->r->rx;
	struct rng g = { d->seed ^ 0xabcdef };
	uint64_t ops = 0, taken = 0;
	uint32_t w;

	while (rx->got < d->total && !xr_load_relaxed(&d->stop)) {
		struct xr_view v;
		int k = xr_shm_rx_peek(rx, &v);

		if (k == 1) {
			uint32_t n = rng_below(&g, 3) ? v.len : 1 + rng_below(&g, v.len);

			if (v.op != XR_OP_SEND || stream_check(SEED, rx->got + taken, v.data, n) != n) {
				duel_fail(d, __LINE__);
				break;
			}
			xr_shm_rx_take(rx, &v, n);
			taken += n;
			ops++;
		} else if (k == -ESTALE) {
			break;
		} else if (k) {
			duel_fail(d, __LINE__);
			break;
		}
		if (k == 0 || !rng_below(&g, 4)) {
			if (xr_shm_rx_commit(rx) == -ESTALE)
				break;
			taken = 0;
			if (xr_shm_rx_wants_notice(rx, &w) && w != 5)
				duel_fail(d, __LINE__);
		}
		if (d->freeze_rx && ops >= d->freeze_rx) {
			xr_shm_rx_freeze(rx);
			break;
		}
		if (k == 0) {
			if (xr_shm_rx_is_frozen(rx))
				break;
			if (!rng_below(&g, 16))
				xr_shm_rx_arm(rx, 3);
			sched_yield();
		}
	}
	xr_store_relaxed(&d->got, rx->got - rx->late);
	/* release: the findings before the word that says they are final */
	xr_store_release(&d->ops, ops + 1);
}

static void *duel_thread(void *arg)
{
	duel_receive(arg);
	return NULL;
}

static uint64_t duel_send(struct duel *d)
{
	struct xr_shm_tx *tx = &d->r->tx;
	static uint8_t buf[150001];
	struct rng g = { d->seed };
	uint64_t ops = 0;
	uint32_t w;

	while (tx->sent < d->total && !xr_load_relaxed(&d->bad)) {
		size_t n = (tx->stream = ops / 8 % 2) ? 1 + rng_below(&g, 200) : rng_size(&g), cut;
		struct iovec iov[2];
		ssize_t k;

		if (n > d->total - tx->sent)
			n = d->total - tx->sent;
		stream_fill(SEED, tx->sent, buf, n);
		cut = rng_below(&g, (uint32_t)n + 1);
		iov[0] = (struct iovec){ buf, cut };
		iov[1] = (struct iovec){ buf + cut, n - cut };
		k = tx->stream ? (ssize_t)xr_shm_tx_send_next(tx, buf, n) : 0;
		if (!k)
			k = xr_shm_tx_send(tx, iov, 2, 0, n);
		ops++;
		if (k == -ESTALE)
			break;
		if (k < 0 || (size_t)k > n)
			duel_fail(d, __LINE__);
		if (xr_shm_tx_armed(tx, &w) && w != 3)
			duel_fail(d, __LINE__);
		if (d->freeze_tx && ops >= d->freeze_tx) {
			xr_shm_tx_freeze(tx);
			break;
		}
		if (k == 0) {
			xr_shm_tx_want_space(tx, 5);
			sched_yield();
		}
		if (xr_shm_tx_is_frozen(tx))
			break;
	}
	return ops;
}

/* One connection; returns the operations it took. */
static uint64_t duel(struct duel *d, struct rng *g, int processes)
{
	static const uint32_t slots[] = { 16, 32, 64, 256 };
	struct rig r;
	pthread_t t;
	pid_t pid = 0;
	uint64_t ops;
	int st, bad;

	memset(d, 0, sizeof(*d));
	rig_init(&r, slots[rng_below(g, 4)], 2 + rng_below(g, RIG_CHUNKS - 2),
		 65536 + rng_below(g, 700000));
	d->r = &r;
	d->seed = rng_next(g);
	d->total = 3000000;
	switch (rng_below(g, 4)) {
	case 0:
		d->freeze_tx = 1 + rng_below(g, 200);
		break;
	case 1:
		d->freeze_rx = 1 + rng_below(g, 400);
		break;
	case 2:
		d->freeze_tx = 1 + rng_below(g, 200);
		d->freeze_rx = 1 + rng_below(g, 400);
		break;
	}
	if (processes) {
		pid = child_fork();
		assert_true(pid >= 0);
		if (!pid) {
			duel_receive(d);
			_exit(0);
		}
	} else {
		assert_int_equal(pthread_create(&t, NULL, duel_thread, d), 0);
	}
	ops = duel_send(d);
	if (!xr_load_relaxed(&d->bad) && (r.tx.frozen || xr_shm_tx_is_frozen(&r.tx)))
		xr_shm_tx_freeze(&r.tx);
	if (xr_load_relaxed(&d->bad))
		xr_store_relaxed(&d->stop, 1);
	if (processes) {
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_int_equal(st, 0);
	} else {
		pthread_join(t, NULL);
	}
	assert_int_equal(d->bad, 0);
	/* the receiver may have frozen after the last send was accepted */
	if (xr_shm_tx_is_frozen(&r.tx)) {
		xr_shm_tx_freeze(&r.tx);
		assert_int_equal(replay_all(&r, g), d->got);
	} else {
		assert_int_equal(d->got, d->total);
		assert_int_equal(xr_shm_tx_unconsumed(&r.tx), 0);
	}
	ops += d->ops;
	bad = rig_fini(&r);
	assert_int_equal(bad, 0);
	return ops;
}

static void duels(uint64_t want, int processes)
{
	struct duel *d = xr_map_family(sizeof(*d));
	struct rng g = { 20260101 + (uint64_t)processes };
	uint64_t ops = 0;

	while (ops < want)
		ops += duel(d, &g, processes);
	xr_unmap(d, sizeof(*d));
}

static void two_threads(void **state)
{
	(void)state;
	duels(100000, 0);
}

static void two_processes(void **state)
{
	(void)state;
	duels(100000, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_around_every_boundary),
		cmocka_unit_test(a_chunk_is_never_overrun),
		cmocka_unit_test(a_slot_tells_when_it_came),
		cmocka_unit_test(window_closes_and_opens),
		cmocka_unit_test(slots_run_out_and_small_sends_coalesce),
		cmocka_unit_test(no_chunks_left_still_flows),
		cmocka_unit_test(an_open_slot_is_read_as_it_grows),
		cmocka_unit_test(gather_with_a_skip),
		cmocka_unit_test(control_slots_are_kept_back),
		cmocka_unit_test(armed_once_per_arming),
		cmocka_unit_test(sender_freezes_and_replays),
		cmocka_unit_test(receiver_freezes_and_sender_replays),
		cmocka_unit_test(two_threads),
		cmocka_unit_test(two_processes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
