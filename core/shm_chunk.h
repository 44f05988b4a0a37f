/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The chunks of an arena: which are free.  All flows between two processes share them, each 64 KiB that one sends takes
 * one and gives one back, and flows of different threads have nothing else to do with each other; so no thread waits
 * here for another.
 *
 * First in, first out, over a pool that fits the caches: the chunk given back last is the one that the reader's core
 * still holds, and taking it from there costs more than the shared cache does (measured: 64 KiB sends 3.0 GB/s last
 * out first, 5.3 GB/s so).
 *
 * Any thread.  A caller holds off signal handlers (defer.h): one that left by longjmp would leave a cell half-written.
 */
#ifndef XR_SHM_CHUNK_H
#define XR_SHM_CHUNK_H

#include <stdint.h>
#include "atomic.h"

#define XR_CHUNKS_HOT	8u		/* 512 KiB: so many are taken before one is used again */
#define XR_CHUNK_NONE	UINT32_MAX
#define XR_CHUNK_TRIM	(UINT32_MAX - 1)	/* not now: see xr_chunk_trim_begin() */

/* A place in the ring; zeroed memory is an empty ring. */
struct xr_chunk_cell {
	/* how often it was gone through, less its number: the round in which it may be filled; + 1: it is full */
	_Atomic uint32_t turn;
	_Atomic uint32_t chunk;
};

struct xr_chunks {
	struct xr_chunk_cell *cell;
	uint32_t mask, count;
	_Atomic uint32_t fresh;		/* never used from here on */
	_Atomic uint32_t used;		/* that are out, and those who are about to take one */
	_Atomic uint32_t trimming;
	_Atomic uint64_t ns;		/* when one was taken last */
	_Alignas(XR_PAIRLINE) _Atomic uint32_t head;	/* taken from */
	_Alignas(XR_PAIRLINE) _Atomic uint32_t tail;	/* put to */
};

/* Cells for so many chunks: a power of two. */
uint32_t xr_chunk_cells(uint32_t count);
/* cell: zeroed, xr_chunk_cells(count) of them. */
void xr_chunk_init(struct xr_chunks *c, struct xr_chunk_cell *cell, uint32_t count);
/* A number below count; XR_CHUNK_NONE; XR_CHUNK_TRIM. */
uint32_t xr_chunk_get(struct xr_chunks *c);
void xr_chunk_put(struct xr_chunks *c, uint32_t i);
/* The same, for one that nobody shall be given again. */
void xr_chunk_lose(struct xr_chunks *c);
/*
 * 1: none is out, and none is given out until xr_chunk_trim_end(): get says XR_CHUNK_TRIM.  0: one is.  One thread at
 * a time.
 */
int xr_chunk_trim_begin(struct xr_chunks *c);
/* empty: all are as good as never used. */
void xr_chunk_trim_end(struct xr_chunks *c, int empty);

#endif
