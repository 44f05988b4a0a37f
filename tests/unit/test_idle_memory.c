/* SPDX-License-Identifier: BSD-2-Clause */
/* What is not in use takes no memory: blocks that nobody had, chunks of senders and links that rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/shm_link.h"
#include "ring_rig.h"

#define SIZE	(16ull << 20)
#define SLOTS	32u

/* A block that nobody had takes memory as it is used; one that somebody had is as good as new. */
static void a_fresh_block_is_not_touched(void **state)
{
	static const struct xr_shm_chunks none;
	struct xr_shm_tx tx;
	uint8_t *block = xr_map_family(XR_DIR_BYTES(64)), *slots = block + sizeof(struct xr_shm_dir);
	struct xr_shm_dir *dir = (struct xr_shm_dir *)block;
	size_t i;

	(void)state;
	slots[64 * XR_SLOT_SIZE - 1] = 7;	/* nobody looks there before it is written */
	xr_shm_tx_init(&tx, dir, 64, NULL, &none, block, 0, 1 << 20);
	assert_int_equal(slots[64 * XR_SLOT_SIZE - 1], 7);
	assert_int_equal(xr_load_relaxed(&dir->gen), 1);
	xr_store_relaxed(&dir->state, XR_DIR_GONE);
	xr_shm_tx_init(&tx, dir, 64, NULL, &none, block, 0, 1 << 20);
	for (i = 0; i < 64 * XR_SLOT_SIZE; i++)
		assert_int_equal(slots[i], 0);
	assert_int_equal(xr_load_relaxed(&dir->gen), 2);
	assert_int_equal(xr_load_relaxed(&dir->state), 0);
	xr_unmap(block, XR_DIR_BYTES(64));
}

/* A sender that rests keeps no chunk, once the receiver has read it. */
static void a_chunk_is_given_back_at_rest(void **state)
{
	uint8_t data[5000];
	struct iovec iov = { data, sizeof(data) };
	struct xr_view v;
	struct rig r;
	uint32_t all;

	(void)state;
	stream_fill(1, 0, data, sizeof(data));
	rig_init(&r, 64, RIG_CHUNKS, 1 << 20);
	all = r.nfree;
	assert_int_equal(xr_shm_tx_send(&r.tx, &iov, 1, 0, sizeof(data)), sizeof(data));
	xr_shm_tx_rest(&r.tx);
	assert_int_equal(r.nfree, all - 1);
	assert_int_equal(xr_shm_rx_peek(&r.rx, &v), 1);
	assert_memory_equal(v.data, data, sizeof(data));
	xr_shm_rx_take(&r.rx, &v, v.len);
	assert_int_equal(xr_shm_rx_commit(&r.rx), 0);
	xr_shm_tx_rest(&r.tx);
	assert_int_equal(r.nfree, all);
	assert_int_equal(rig_fini(&r), 0);
}

/* Pages of n chunks, from the first one on, that take memory. */
static uint32_t resident(const struct xr_shm_link *l, uint32_t n)
{
	static uint8_t vec[64 * XR_CHUNK / 4096];
	uint32_t i, sum = 0;

	assert_int_equal(mincore(l->own.base + l->own.hdr.chunk_off, (size_t)n * XR_CHUNK, vec), 0);
	for (i = 0; i < n * XR_CHUNK / 4096; i++)
		sum += vec[i] & 1;
	return sum;
}

static void memory_of_idle_chunks_is_given_back(void **state)
{
	struct xr_shm_arena own, peer;
	struct xr_shm_chunks c;
	struct xr_shm_link *a;
	uint32_t chunk[40], i;
	uint64_t now;
	int s[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	assert_int_equal(xr_shm_arena_create(&own, SIZE, SLOTS), 0);
	assert_int_equal(xr_shm_arena_attach(&peer, own.fd), 0);
	a = xr_shm_link_new(s[0], &own, &peer);
	assert_non_null(a);
	xr_shm_link_chunks(a, &c);
	for (i = 0; i < 40; i++) {
		chunk[i] = c.get(c.ctx);
		memset(a->own.base + a->own.hdr.chunk_off + (size_t)chunk[i] * XR_CHUNK, 1, XR_CHUNK);
	}
	assert_int_equal(resident(a, 40), 40 * XR_CHUNK / 4096);
	now = xr_now_ns() + 1000000000u;
	for (i = 0; i < 40; i++) {
		/* not while one is in use, nor at once */
		assert_int_equal(xr_shm_link_trim(a, now), 0);
		c.put(c.ctx, chunk[i]);
	}
	assert_int_equal(xr_shm_link_trim(a, xr_now_ns()), 0);
	assert_int_equal(xr_shm_link_trim(a, now), 1);
	assert_int_equal(resident(a, 40), 8 * XR_CHUNK / 4096);
	assert_int_equal(xr_shm_link_trim(a, now), 0);
	/* all can be had again, each once */
	for (i = 0; i < a->own.hdr.nchunks; i++)
		assert_int_equal(c.get(c.ctx), i);
	assert_int_equal(c.get(c.ctx), XR_NO_CHUNK);
	xr_shm_link_free(a);
	close(s[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fresh_block_is_not_touched),
		cmocka_unit_test(a_chunk_is_given_back_at_rest),
		cmocka_unit_test(memory_of_idle_chunks_is_given_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
