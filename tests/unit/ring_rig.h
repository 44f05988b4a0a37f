/* SPDX-License-Identifier: BSD-2-Clause */
/* One direction in memory that forked children share, with chunks for one producer. */
#ifndef RING_RIG_H
#define RING_RIG_H

#include <stdlib.h>
#include <string.h>
#include "core/mem.h"
#include "core/shm_ring.h"

#define RIG_CHUNKS	24u

struct rig {
	uint8_t *arena;
	size_t len, guard;
	struct xr_shm_dir *dir;
	struct xr_shm_meta *meta;
	uint32_t free[RIG_CHUNKS], nfree;
	uint32_t chunks;
	int put_twice;
	struct xr_shm_tx tx;
	struct xr_shm_rx rx;
};

static uint32_t rig_get(void *ctx)
{
	struct rig *r = ctx;

	return r->nfree ? r->free[--r->nfree] : XR_NO_CHUNK;
}

static void rig_put(void *ctx, uint32_t chunk)
{
	struct rig *r = ctx;
	uint32_t i;

	for (i = 0; i < r->nfree; i++)
		r->put_twice |= r->free[i] == chunk;
	if (chunk >= r->chunks || r->nfree >= r->chunks)
		r->put_twice = 1;
	else
		r->free[r->nfree++] = chunk;
}

static inline void rig_init(struct rig *r, uint32_t nslots, uint32_t chunks, uint32_t window)
{
	struct xr_shm_chunks src = { rig_get, rig_put, r };
	uint64_t chunk_off = XR_ALIGN((uint64_t)XR_DIR_BYTES(nslots), (uint64_t)XR_CHUNK);
	uint32_t i;

	memset(r, 0, sizeof(*r));
	r->chunks = chunks;
	/* a chunk's worth of canary behind the last chunk: an overrun shows */
	r->guard = chunk_off + (size_t)chunks * XR_CHUNK;
	r->len = r->guard + XR_CHUNK;
	r->arena = xr_map_family(r->len);
	if (!r->arena)
		abort();
	memset(r->arena + r->guard, 0xa5, XR_CHUNK);
	r->dir = (struct xr_shm_dir *)r->arena;
	r->meta = calloc(nslots, sizeof(*r->meta));
	for (i = 0; i < chunks; i++)
		r->free[r->nfree++] = chunks - 1 - i;
	xr_shm_tx_init(&r->tx, r->dir, nslots, r->meta, &src, r->arena + chunk_off, chunk_off,
		       window);
	xr_shm_rx_init(&r->rx, r->dir, nslots, r->arena, r->guard);
}

/* 0 when every chunk came back once and nothing was written behind the last. */
static inline int rig_fini(struct rig *r)
{
	size_t i;
	int bad = 0;

	xr_shm_tx_destroy(&r->tx);
	bad |= r->put_twice ? 1 : 0;
	bad |= r->nfree != r->chunks ? 2 : 0;
	for (i = 0; i < XR_CHUNK; i++)
		bad |= r->arena[r->guard + i] != 0xa5 ? 4 : 0;
	free(r->meta);
	xr_unmap(r->arena, r->len);
	return bad;
}

/* Eight bytes of the stream of a seed: every one depends on its position. */
static inline uint64_t stream_word(uint64_t seed, uint64_t index)
{
	uint64_t x = (seed + index) * 0x9e3779b97f4a7c15ull;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return x ^ (x >> 32);
}

static inline void stream_fill(uint64_t seed, uint64_t pos, uint8_t *p, size_t n)
{
	while (n) {
		uint64_t w = stream_word(seed, pos >> 3) >> (8 * (pos & 7));
		size_t k = 8 - (pos & 7) < n ? 8 - (pos & 7) : n;

		memcpy(p, &w, k);
		p += k;
		pos += k;
		n -= k;
	}
}

/* Returns n when all bytes are right, else a smaller number. */
static inline size_t stream_check(uint64_t seed, uint64_t pos, const uint8_t *p, size_t n)
{
	size_t done = 0;

	while (done < n) {
		uint64_t w = stream_word(seed, pos >> 3) >> (8 * (pos & 7));
		size_t k = 8 - (pos & 7) < n - done ? 8 - (pos & 7) : n - done;

		if (memcmp(p + done, &w, k))
			return done;
		pos += k;
		done += k;
	}
	return n;
}

struct rng {
	uint64_t s;
};

static inline uint64_t rng_next(struct rng *r)
{
	uint64_t z = (r->s += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
	return (uint32_t)(rng_next(r) % n);
}

/* Sizes as programs use them: mostly small, some packets, some bulk. */
static inline uint32_t rng_size(struct rng *r)
{
	switch (rng_below(r, 8)) {
	case 0: case 1: case 2:
		return 1 + rng_below(r, 128);
	case 3: case 4:
		return 1 + rng_below(r, 1500);
	case 5: case 6:
		return 1 + rng_below(r, 9000);
	default:
		return 1 + rng_below(r, 150000);
	}
}

#endif
