/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A process that is killed while it seals a direction which another one of its family has as well: at each
 * instruction that has changed anything, the other one goes on, and so does the sender, and no byte is lost,
 * repeated, or taken for the word of a liar.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include "child.h"
#include "ring_rig.h"

#define SEED	0x5ea1ull
#define SLOTS	16u
#define CHUNKS	4u

/* In memory that the child shares. */
static struct shared {
	struct rig r;
	_Atomic uint32_t done;
} *S;

/* All that the ones who go on may change. */
static struct {
	struct rig r;
	struct xr_shm_meta meta[SLOTS];
	uint8_t *arena;
} saved;

static void save(void)
{
	saved.r = S->r;
	memcpy(saved.meta, S->r.meta, sizeof(saved.meta));
	memcpy(saved.arena, S->r.arena, S->r.guard);
}

static void restore(void)
{
	S->r = saved.r;
	memcpy(S->r.meta, saved.meta, sizeof(saved.meta));
	memcpy(S->r.arena, saved.arena, S->r.guard);
}

static ssize_t put(size_t n)
{
	static uint8_t buf[XR_CHUNK];
	struct iovec iov = { buf, n };

	stream_fill(SEED, S->r.tx.sent, buf, n);
	return xr_shm_tx_send(&S->r.tx, &iov, 1, 0, n);
}

/* Up to n bytes, the last of them not to the end of its slot, perhaps. */
static void get(size_t n)
{
	struct xr_shm_rx *rx = &S->r.rx;
	uint64_t pos = rx->got;
	struct xr_view v;

	while (n && xr_shm_rx_peek(rx, &v) == 1) {
		size_t k = v.len < n ? v.len : n;

		assert_int_equal(stream_check(SEED, pos, v.data, k), k);
		xr_shm_rx_take(rx, &v, k);
		pos += k;
		n -= k;
	}
	assert_int_equal(xr_shm_rx_commit(rx), 0);
	assert_int_equal(rx->got, pos);
}

/* What the one who is left does first, and whether the sender goes on before it looks. */
enum first { READS, LOOKS, SEALS, FREEZES, FIRSTS };

/* 1: the direction is on the ring still. */
static int go_on(enum first first, size_t more)
{
	struct xr_shm_rx *rx = &S->r.rx;
	struct xr_shm_tx *tx = &S->r.tx;
	uint64_t left = 0, begin;
	uint32_t w = 0, i;
	ssize_t n = 0;

	if (more) {
		n = put(more);
		assert_true(n == (ssize_t)more || n == -ESTALE);
		/* as flow_tx.c: who has published looks whether it was for somebody */
		xr_shm_tx_armed(tx, &w);
	}
	if ((xr_load_relaxed(&tx->dir->arm) & XR_ARM_FROZEN) && xr_shm_tx_is_frozen(tx))
		xr_shm_tx_freeze(tx);
	if (first == LOOKS)
		xr_shm_rx_is_frozen(rx);
	else if (first == SEALS)
		xr_shm_rx_seal(rx);
	else if (first == FREEZES)
		xr_shm_rx_freeze(rx);
	get(first == READS ? 40 : SIZE_MAX);
	get(SIZE_MAX);
	assert_int_equal(rx->lied, 0);
	if (!xr_shm_tx_is_frozen(tx)) {
		assert_int_equal(rx->frozen, 0);
		assert_int_equal(rx->got, tx->sent);
		return 1;
	}
	xr_shm_tx_freeze(tx);
	assert_int_equal(tx->lied, 0);
	/* what is behind the seal is the sender's now, and no byte twice */
	get(SIZE_MAX);
	assert_int_equal(xr_shm_rx_is_frozen(rx), 1);
	for (i = tx->replay_seq; i != tx->head; i++)
		left += S->r.meta[i & tx->mask].len;
	begin = tx->sent - (left - tx->replay_byte);
	assert_int_equal(rx->got - rx->late, begin);
	return 0;
}

static int changed(void)
{
	static struct xr_shm_rx rx;
	static uint64_t consumed, arm;
	const struct xr_shm_dir *d = S->r.dir;
	int is = memcmp(&rx, &S->r.rx, sizeof(rx)) != 0 || consumed != xr_load_relaxed(&d->consumed) ||
		 arm != xr_load_relaxed(&d->arm);

	rx = S->r.rx;
	consumed = xr_load_relaxed(&d->consumed);
	arm = xr_load_relaxed(&d->arm);
	return is;
}

/* read: bytes that were consumed before; more: what the sender sends afterwards; append: into its last slot. */
static void killed_at_each_step(size_t read, size_t big)
{
	static const size_t more[] = { 0, 9, 5000 };
	uint32_t steps = 0, states = 0, on_ring = 0;
	size_t first, i;
	int st;
	pid_t pid;

	rig_init(&S->r, SLOTS, CHUNKS, 1 << 20);
	saved.arena = xr_map_private(S->r.guard);
	xr_store_relaxed(&S->done, 0);
	assert_int_equal(put(100), 100);
	assert_int_equal(put(big), big);
	assert_int_equal(put(30), 30);
	get(read);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(7);
		raise(SIGSTOP);
		xr_shm_rx_seal(&S->r.rx);
		xr_store_relaxed(&S->done, 1);
		for (;;)
			pause();
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	if (WIFEXITED(st) && WEXITSTATUS(st) == 7) {
		print_message("no ptrace here\n");
		skip();
	}
	changed();
	while (!xr_load_relaxed(&S->done)) {
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_true(WIFSTOPPED(st));
		steps++;
		if (!changed())
			continue;
		states++;
		save();
		for (first = 0; first < FIRSTS; first++)
			for (i = 0; i < XR_ARRAY_LEN(more); i++) {
				on_ring += go_on((enum first)first, more[i]) != 0;
				restore();
			}
		changed();
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	print_message("%u instructions, %u states, on the ring %u times\n", steps, states, on_ring);
	assert_true(states > 4);
	xr_unmap(saved.arena, S->r.guard);
	assert_int_equal(rig_fini(&S->r), 0);
}

static void by_a_reader_of_nothing(void **state)
{
	(void)state;
	killed_at_each_step(0, 50);
}

static void in_the_middle_of_a_slot(void **state)
{
	(void)state;
	killed_at_each_step(120, 70);
}

static void in_an_open_slot(void **state)
{
	(void)state;
	killed_at_each_step(3000, 9000);
}

static void with_all_read(void **state)
{
	(void)state;
	killed_at_each_step(SIZE_MAX, 9000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_a_reader_of_nothing),
		cmocka_unit_test(in_the_middle_of_a_slot),
		cmocka_unit_test(in_an_open_slot),
		cmocka_unit_test(with_all_read),
	};

	S = xr_map_family(sizeof(*S));
	return S ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
