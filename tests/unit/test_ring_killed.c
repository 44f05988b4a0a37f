/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A process that is killed while it reads, writes, seals, freezes a direction which another one of its family has as
 * well: at each instruction that has changed anything, the other one goes on, and so does the peer, and no byte is
 * lost, repeated, or taken for the word of a liar.
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
	struct xr_shm_meta meta[SLOTS];
	_Atomic uint32_t done;
	_Atomic uint64_t sent;
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

/* What is sent next, made before: it takes many instructions. */
static uint8_t next[40000];

static void put_next(size_t from, size_t n)
{
	struct iovec iov = { next + from, n };

	xr_shm_tx_send(&S->r.tx, &iov, 1, 0, n);
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

/* What is left to be replayed is the stream, from `pos` on. */
static uint64_t replay(uint64_t pos)
{
	struct xr_shm_tx *tx = &S->r.tx;
	struct iovec iov[4];
	uint64_t owed = xr_shm_tx_owed(tx), sum = 0;
	size_t n, i;

	while ((n = xr_shm_tx_replay(tx, iov, 4)) > 0)
		for (i = 0; i < n; i++) {
			assert_int_equal(stream_check(SEED, pos + sum, iov[i].iov_base, iov[i].iov_len),
					 iov[i].iov_len);
			sum += iov[i].iov_len;
			xr_shm_tx_replayed(tx, iov[i].iov_len);
		}
	assert_int_equal(sum, owed);
	return sum;
}

/* What the reader's end does first, or that the other one has frozen before; and whether the sender goes on. */
enum first { READS, LOOKS, SEALS, FREEZES, FROZEN, FIRSTS };

/* 1: the direction is on the ring still. */
static int go_on(enum first first, size_t more)
{
	struct xr_shm_rx *rx = &S->r.rx;
	struct xr_shm_tx *tx = &S->r.tx;
	uint64_t begin;
	uint32_t w = 0;
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
	/* whoever froze it has told the sender where to look */
	if (xr_load_relaxed(&tx->dir->consumed) & XR_FROZEN && !tx->frozen)
		assert_true(xr_load_relaxed(&tx->dir->arm) & XR_ARM_FROZEN);
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
	begin = rx->got - rx->late;
	assert_int_equal(begin + replay(begin), tx->sent);
	return 0;
}

/* The sender's process is gone: another one of its family, which does not send here, goes back to TCP. */
static int sender_left(enum first first, size_t more)
{
	struct xr_shm_rx *rx = &S->r.rx;
	struct xr_shm_tx *tx = &S->r.tx;
	uint64_t before = rx->got, begin, end;

	xr_shm_tx_left(tx);
	if (more)
		get(more);
	if (first == LOOKS)
		get(SIZE_MAX);
	else if (first == SEALS)
		xr_shm_rx_seal(rx);
	else if (first == FREEZES)
		xr_shm_rx_freeze(rx);
	xr_shm_tx_unconsumed(tx);
	xr_shm_tx_freeze(tx);
	assert_int_equal(tx->lied, 0);
	get(SIZE_MAX);
	assert_int_equal(rx->lied, 0);
	assert_int_equal(xr_shm_rx_is_frozen(rx), 1);
	begin = rx->got - rx->late;
	assert_true(begin >= before);
	/* all that it had sent before, and what of the last call the peer may have seen */
	end = begin + replay(begin);
	assert_true(end >= xr_load_relaxed(&S->sent));
	assert_true(rx->got <= end && end <= tx->sent);
	return 0;
}

static int reader_left(enum first first, size_t more)
{
	if (first == FROZEN)
		xr_shm_tx_freeze(&S->r.tx);
	xr_shm_rx_left(&S->r.rx);
	return go_on(first, more);
}

/* Anything that others see, or go by. */
static int changed(void)
{
	static struct shared is;
	static struct xr_shm_meta meta[SLOTS];
	static uint8_t dir[XR_DIR_BYTES(SLOTS)];
	int r = memcmp(&is.r, &S->r, sizeof(is.r)) || memcmp(meta, S->r.meta, sizeof(meta)) ||
		memcmp(dir, S->r.arena, sizeof(dir));

	is.r = S->r;
	memcpy(meta, S->r.meta, sizeof(meta));
	memcpy(dir, S->r.arena, sizeof(dir));
	return r;
}

/* before: what has happened; deed: what the one does who is killed at it; left: how the others go on. */
static void killed_at_each_step(void (*before)(void), void (*deed)(void), int (*left)(enum first first, size_t more))
{
	static const size_t more[] = { 0, 9, 5000 };
	uint32_t steps = 0, states = 0, on_ring = 0;
	size_t first, i;
	int st;
	pid_t pid;

	rig_init(&S->r, SLOTS, CHUNKS, 1 << 20);
	/* the child's changes are to be seen */
	free(S->r.meta);
	S->r.meta = S->r.tx.meta = S->meta;
	memset(S->meta, 0, sizeof(S->meta));
	saved.arena = xr_map_private(S->r.guard);
	xr_store_relaxed(&S->done, 0);
	before();
	stream_fill(SEED, S->r.tx.sent, next, sizeof(next));
	xr_store_relaxed(&S->sent, S->r.tx.sent);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(7);
		raise(SIGSTOP);
		deed();
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
				on_ring += left((enum first)first, more[i]) != 0;
				restore();
			}
		changed();
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	print_message("%u instructions, %u states, on the ring %u times\n", steps, states, on_ring);
	assert_true(states > 2);
	xr_unmap(saved.arena, S->r.guard);
	xr_shm_tx_destroy(&S->r.tx);
	xr_unmap(S->r.arena, S->r.len);
}

/* ---- what has happened ------------------------------------------------------- */

static void sent(size_t big)
{
	assert_int_equal(put(100), 100);
	assert_int_equal(put(big), big);
	assert_int_equal(put(30), 30);
}

static void none_read(void)
{
	sent(50);
}

static void read_into_a_slot(void)
{
	sent(70);
	get(120);
}

static void read_into_an_open_slot(void)
{
	sent(9000);
	get(3000);
}

static void read_of_a_stream(void)
{
	S->r.tx.stream = 1;
	sent(200);
	get(150);
}

static void all_read(void)
{
	sent(9000);
	get(SIZE_MAX);
}

static void sealed(void)
{
	read_into_an_open_slot();
	assert_int_equal(xr_shm_rx_seal(&S->r.rx), 0);
}

static void sealed_and_found(void)
{
	uint32_t w = 0;

	read_into_an_open_slot();
	/* published between the seal and its being found: replayed */
	assert_int_equal(xr_shm_rx_seal(&S->r.rx), 0);
	S->r.tx.frozen = 0;
	assert_int_equal(put(60), 60);
	xr_shm_tx_armed(&S->r.tx, &w);
	assert_int_equal(xr_shm_tx_is_frozen(&S->r.tx), 1);
	xr_shm_tx_freeze(&S->r.tx);
}

static void frozen_by_sender(void)
{
	read_into_an_open_slot();
	xr_shm_tx_freeze(&S->r.tx);
}

static void streams(void)
{
	S->r.tx.stream = 1;
	sent(200);
}

static void crowded(void)
{
	int i;

	for (i = 0; i < 9; i++)
		assert_int_equal(put(20), 20);
	get(90);
}

static void crowded_and_found(void)
{
	crowded();
	get(5);
	assert_int_equal(put(20), 20);
	/* further on, and to less of a slot than was known to be consumed of the last one */
	get(30);
}

/* ---- what is done ------------------------------------------------------------ */

static void reads(size_t n)
{
	struct xr_shm_rx *rx = &S->r.rx;
	struct xr_view v;
	size_t k;

	while (n && xr_shm_rx_peek(rx, &v) == 1) {
		k = v.len < n ? v.len : n;
		xr_shm_rx_take(rx, &v, k);
		n -= k;
	}
	xr_shm_rx_commit(rx);
}

static void reads_a_part(void)
{
	reads(20);
}

static void reads_all(void)
{
	reads(SIZE_MAX);
}

static void reads_twice(void)
{
	reads(25);
	reads(SIZE_MAX);
}

static void seals(void)
{
	xr_shm_rx_seal(&S->r.rx);
}

static void freezes(void)
{
	xr_shm_rx_freeze(&S->r.rx);
}

static void looks(void)
{
	xr_shm_rx_is_frozen(&S->r.rx);
	reads(SIZE_MAX);
}

static void sends_few(void)
{
	put_next(0, 11);
	put_next(11, 7);
}

static void sends_many(void)
{
	put_next(0, sizeof(next));
}

static void sends_on(void)
{
	xr_shm_tx_send_next(&S->r.tx, next, 300);
}

static void ends(void)
{
	xr_shm_tx_control(&S->r.tx, XR_OP_END, 0);
}

static void sender_freezes(void)
{
	xr_shm_tx_freeze(&S->r.tx);
}

#define KILLED(name, before, deed, left)			\
	static void name(void **state)				\
	{							\
		(void)state;					\
		killed_at_each_step(before, deed, left);	\
	}

KILLED(seals_unread, none_read, seals, reader_left)
KILLED(seals_within_a_slot, read_into_a_slot, seals, reader_left)
KILLED(seals_an_open_slot, read_into_an_open_slot, seals, reader_left)
KILLED(seals_what_is_read, all_read, seals, reader_left)
KILLED(reads_the_first, none_read, reads_a_part, reader_left)
KILLED(reads_on, read_into_a_slot, reads_twice, reader_left)
KILLED(reads_an_open_slot, read_into_an_open_slot, reads_all, reader_left)
KILLED(reads_a_stream, read_of_a_stream, reads_twice, reader_left)
KILLED(reads_what_is_sealed, sealed, reads_twice, reader_left)
KILLED(reads_behind_a_seal, sealed_and_found, reads_twice, reader_left)
KILLED(reads_what_comes_again, frozen_by_sender, reads_twice, reader_left)
KILLED(looks_what_is_left, frozen_by_sender, looks, reader_left)
KILLED(freezes_unread, none_read, freezes, reader_left)
KILLED(freezes_an_open_slot, read_into_an_open_slot, freezes, reader_left)
KILLED(moves_a_seal_back, sealed, freezes, reader_left)
KILLED(sends_into_slots, none_read, sends_few, sender_left)
KILLED(sends_into_chunks, read_into_a_slot, sends_many, sender_left)
KILLED(sends_behind_others, crowded, sends_few, sender_left)
KILLED(finds_what_is_consumed, crowded_and_found, sends_few, sender_left)
KILLED(sends_much_behind_others, crowded, sends_many, sender_left)
KILLED(sends_to_a_reader_of_all, all_read, sends_many, sender_left)
KILLED(sends_a_stream, streams, sends_on, sender_left)
KILLED(ends_it, read_into_an_open_slot, ends, sender_left)
KILLED(freezes_its_own, read_into_an_open_slot, sender_freezes, sender_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(seals_unread),
		cmocka_unit_test(seals_within_a_slot),
		cmocka_unit_test(seals_an_open_slot),
		cmocka_unit_test(seals_what_is_read),
		cmocka_unit_test(reads_the_first),
		cmocka_unit_test(reads_on),
		cmocka_unit_test(reads_an_open_slot),
		cmocka_unit_test(reads_a_stream),
		cmocka_unit_test(reads_what_is_sealed),
		cmocka_unit_test(reads_behind_a_seal),
		cmocka_unit_test(reads_what_comes_again),
		cmocka_unit_test(looks_what_is_left),
		cmocka_unit_test(freezes_unread),
		cmocka_unit_test(freezes_an_open_slot),
		cmocka_unit_test(moves_a_seal_back),
		cmocka_unit_test(sends_into_slots),
		cmocka_unit_test(sends_into_chunks),
		cmocka_unit_test(sends_behind_others),
		cmocka_unit_test(finds_what_is_consumed),
		cmocka_unit_test(sends_much_behind_others),
		cmocka_unit_test(sends_to_a_reader_of_all),
		cmocka_unit_test(sends_a_stream),
		cmocka_unit_test(ends_it),
		cmocka_unit_test(freezes_its_own),
	};

	S = xr_map_family(sizeof(*S));
	return S ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
