/* SPDX-License-Identifier: BSD-2-Clause */
/* The chunks of an arena: a ring of the free ones, and a count of those that nobody had yet. */
#include <sys/syscall.h>
#include "mem.h"
#include "shm_chunk.h"

uint32_t xr_chunk_cells(uint32_t count)
{
	uint32_t n = 2;

	while (n < count)
		n *= 2;
	return n;
}

void xr_chunk_init(struct xr_chunks *c, struct xr_chunk_cell *cell, uint32_t count)
{
	c->cell = cell;
	c->mask = xr_chunk_cells(count) - 1;
	c->count = count;
}

/* XR_CHUNK_NONE: the ring is empty, or the next one is just being put there. */
static uint32_t chunk_pop(struct xr_chunks *c)
{
	uint32_t pos = xr_load_relaxed(&c->head);

	for (;;) {
		struct xr_chunk_cell *cell = &c->cell[pos & c->mask];
		uint32_t round = pos & ~c->mask;
		/* acquire: pairs with the release in chunk_push */
		int32_t ahead = (int32_t)(xr_load_acquire(&cell->turn) - (round + 1));

		if (ahead < 0)
			return XR_CHUNK_NONE;
		if (ahead > 0) {
			pos = xr_load_relaxed(&c->head);
			continue;
		}
		if (xr_cas(&c->head, &pos, pos + 1)) {
			uint32_t i = xr_load_relaxed(&cell->chunk);

			/* release: pairs with the acquire in chunk_push, the number has been read */
			xr_store_release(&cell->turn, round + c->mask + 1);
			return i;
		}
	}
}

static void chunk_push(struct xr_chunks *c, uint32_t i)
{
	uint32_t pos = xr_load_relaxed(&c->tail);

	for (;;) {
		struct xr_chunk_cell *cell = &c->cell[pos & c->mask];
		uint32_t round = pos & ~c->mask;
		/* acquire: pairs with the release in chunk_pop */
		int32_t ahead = (int32_t)(xr_load_acquire(&cell->turn) - round);

		if (!ahead && xr_cas(&c->tail, &pos, pos + 1)) {
			xr_store_relaxed(&cell->chunk, i);
			/* release: pairs with the acquire in chunk_pop, the number is there */
			xr_store_release(&cell->turn, round + 1);
			return;
		}
		/* there is room for all: somebody was stopped in chunk_pop while others went once round */
		if (ahead < 0)
			xr_sys0(SYS_sched_yield);
		if (ahead)
			pos = xr_load_relaxed(&c->tail);
	}
}

static uint32_t chunk_fresh(struct xr_chunks *c)
{
	uint32_t i = xr_load_relaxed(&c->fresh);

	while (i < c->count)
		if (xr_cas(&c->fresh, &i, i + 1))
			return i;
	return XR_CHUNK_NONE;
}

uint32_t xr_chunk_get(struct xr_chunks *c)
{
	uint32_t i = XR_CHUNK_NONE;

	xr_fetch_add(&c->used, 1);
	/* first this, then the look; who trims does it the other way round, so that one sees the other */
	xr_fence_store_load();
	/* acquire: pairs with the release in xr_chunk_trim_end */
	if (xr_unlikely(xr_load_acquire(&c->trimming))) {
		xr_fetch_sub(&c->used, 1);
		return XR_CHUNK_TRIM;
	}
	if (xr_likely(xr_load_relaxed(&c->fresh) >= XR_CHUNKS_HOT))
		i = chunk_pop(c);
	if (i == XR_CHUNK_NONE)
		i = chunk_fresh(c);
	if (i == XR_CHUNK_NONE)
		i = chunk_pop(c);
	if (i == XR_CHUNK_NONE)
		xr_fetch_sub(&c->used, 1);
	else
		xr_store_relaxed(&c->ns, xr_now_ns());
	return i;
}

void xr_chunk_put(struct xr_chunks *c, uint32_t i)
{
	chunk_push(c, i);
	/* last: with none out the ring has all that were */
	xr_fetch_sub(&c->used, 1);
}

void xr_chunk_lose(struct xr_chunks *c)
{
	xr_fetch_sub(&c->used, 1);
}

int xr_chunk_trim_begin(struct xr_chunks *c)
{
	xr_store_relaxed(&c->trimming, 1);
	/* pairs with the one in xr_chunk_get */
	xr_fence_store_load();
	/* acquire: pairs with xr_chunk_put, what was put is in the ring */
	if (!xr_load_acquire(&c->used))
		return 1;
	xr_chunk_trim_end(c, 0);
	return 0;
}

void xr_chunk_trim_end(struct xr_chunks *c, int empty)
{
	if (empty) {
		while (chunk_pop(c) != XR_CHUNK_NONE)
			;
		xr_store_relaxed(&c->fresh, 0);
	}
	/* release: pairs with the acquire in xr_chunk_get */
	xr_store_release(&c->trimming, 0);
}
