/* SPDX-License-Identifier: BSD-2-Clause */
/* A stream of small sends: one open slot takes them, whether or not the receiver keeps up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <unistd.h>
#include "ring_rig.h"
#include "core/usercopy.h"

#define SEED	0x57ea3ull
#define SMALL	64u

static ssize_t put(struct rig *r, size_t n)
{
	uint8_t buf[4096];
	struct iovec iov = { buf, n };

	stream_fill(SEED, r->tx.sent, buf, n);
	return xr_shm_tx_send(&r->tx, &iov, 1, 0, n);
}

static size_t put_next(struct rig *r, size_t n)
{
	static uint8_t buf[XR_CHUNK];

	stream_fill(SEED, r->tx.sent, buf, n);
	return xr_shm_tx_send_next(&r->tx, buf, n);
}

static size_t get(struct rig *r)
{
	uint64_t pos = r->rx.got;
	size_t sum = 0;
	struct xr_view v;

	while (xr_shm_rx_peek(&r->rx, &v) == 1) {
		assert_int_equal(v.op, XR_OP_SEND);
		assert_int_equal(stream_check(SEED, pos + sum, v.data, v.len), v.len);
		xr_shm_rx_take(&r->rx, &v, v.len);
		sum += v.len;
	}
	assert_int_equal(xr_shm_rx_commit(&r->rx), 0);
	return sum;
}

static void a_stream_takes_one_slot(void **state)
{
	uint64_t before = SMALL;
	struct rig r;
	int i;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(get(&r), SMALL);
	r.tx.stream = 1;
	assert_int_equal(put_next(&r, SMALL), 0);	/* nothing is open yet */
	assert_int_equal(put(&r, SMALL), SMALL);
	for (i = 0; i < 500; i++) {
		assert_int_equal(i % 2 ? (ssize_t)put_next(&r, SMALL) : put(&r, SMALL), SMALL);
		if (i % 3) {
			assert_int_equal(get(&r), r.tx.sent - before);
			before = r.tx.sent;
		}
	}
	assert_int_equal(r.tx.head, 3);
	get(&r);
	/* it is over: a slot of its own again, and what is behind it does not go before it */
	r.tx.stream = 0;
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(r.tx.head, 4);
	r.tx.stream = 1;
	assert_int_equal(put_next(&r, SMALL), 0);
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(put_next(&r, SMALL), SMALL);
	assert_int_equal(get(&r), 3 * SMALL);
	assert_int_equal(rig_fini(&r), 0);
}

static void it_goes_on_in_the_next_chunk(void **state)
{
	uint64_t n = 0;
	struct rig r;

	(void)state;
	rig_init(&r, 64, 3, 1 << 20);
	r.tx.stream = 1;
	while (n < 40 * (uint64_t)XR_CHUNK) {
		size_t k = put_next(&r, 1000);

		if (!k)
			k = (size_t)put(&r, 1000);
		assert_int_not_equal(k, 0);
		n += k;
		if (n % 7 == 0 || n % 5 == 0)
			get(&r);
	}
	get(&r);
	assert_int_equal(r.rx.got, n);
	assert_int_equal(rig_fini(&r), 0);
}

static void what_the_short_way_does_not_see_to(void **state)
{
	struct rig r;
	uint32_t w;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 40000);
	r.tx.stream = 1;
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(put_next(&r, SMALL), SMALL);
	/* half the window is in flight: the receiver has to be looked at */
	while (put_next(&r, SMALL))
		;
	assert_in_range(r.tx.sent, 20000, 20000 + SMALL);
	get(&r);
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(put_next(&r, SMALL), SMALL);
	xr_shm_rx_freeze(&r.rx);
	xr_shm_tx_armed(&r.tx, &w);
	assert_int_equal(put_next(&r, SMALL), 0);
	xr_shm_tx_freeze(&r.tx);
	assert_int_equal(xr_shm_tx_owed(&r.tx), 2 * SMALL);
	assert_int_equal(rig_fini(&r), 0);
}

/* A large send among the small ones: no more than the window is under way, and it is published piece by piece. */
static void a_large_one(void **state)
{
	const uint32_t unread = 468 * SMALL;
	struct rig r;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 65536);
	r.tx.stream = 1;
	do {
		assert_int_equal(put(&r, SMALL), SMALL);
		get(&r);
	} while (r.tx.fill < XR_CHUNK - unread);
	while (r.tx.fill < XR_CHUNK)
		assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(put(&r, SMALL), SMALL);
	put_next(&r, 60000);
	assert_in_range(r.tx.sent - r.rx.got, unread + SMALL, 65536);
	get(&r);
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(put_next(&r, XR_PUBLISH + 1), 0);
	assert_int_equal(put_next(&r, XR_PUBLISH), XR_PUBLISH);
	assert_int_equal(get(&r), SMALL + XR_PUBLISH);
	assert_int_equal(rig_fini(&r), 0);
}

static void behind_the_end(void **state)
{
	struct rig r;

	(void)state;
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	r.tx.stream = 1;
	assert_int_equal(put(&r, SMALL), SMALL);
	assert_int_equal(put_next(&r, SMALL), SMALL);
	assert_int_equal(xr_shm_tx_control(&r.tx, XR_OP_END, 0), 0);
	assert_int_equal(put_next(&r, SMALL), 0);
	assert_int_equal(put(&r, SMALL), -EPIPE);
	assert_int_equal(rig_fini(&r), 0);
}

static void on_fault(int sig, siginfo_t *si, void *context)
{
	if (!xr_usercopy_fixup(context, (uintptr_t)si->si_addr, 0))
		_exit(sig);
}

/* The chunk is full, the next one was fetched for bytes that cannot be read: what follows is behind all the rest. */
static void a_bad_address_at_the_end_of_a_chunk(void **state)
{
	struct sigaction sa = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	struct iovec bad = { (void *)8, SMALL };
	int chunks, i;
	struct rig r;

	(void)state;
	sigaction(SIGSEGV, &sa, NULL);
	/* with a next chunk, and without: then it is the slot that they would have gone into */
	for (chunks = RIG_CHUNKS; chunks; chunks = chunks == RIG_CHUNKS ? 1 : 0) {
		rig_init(&r, 64, (uint32_t)chunks, 1 << 20);
		r.tx.stream = 1;
		for (i = 0; i < (int)(XR_CHUNK / SMALL); i++)
			assert_int_equal(put(&r, SMALL), SMALL);
		assert_int_equal(r.tx.fill, XR_CHUNK);
		assert_int_equal(xr_shm_tx_send_next(&r.tx, bad.iov_base, SMALL), 0);
		assert_int_equal(xr_shm_tx_send(&r.tx, &bad, 1, 0, SMALL), -EFAULT);
		for (i = 0; i < 3; i++)
			if (!put_next(&r, SMALL))
				assert_int_equal(put(&r, SMALL), SMALL);
		assert_int_equal(get(&r), XR_CHUNK + 3 * SMALL);
		assert_int_equal(rig_fini(&r), 0);
	}
	signal(SIGSEGV, SIG_DFL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stream_takes_one_slot),
		cmocka_unit_test(it_goes_on_in_the_next_chunk),
		cmocka_unit_test(what_the_short_way_does_not_see_to),
		cmocka_unit_test(a_large_one),
		cmocka_unit_test(behind_the_end),
		cmocka_unit_test(a_bad_address_at_the_end_of_a_chunk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
