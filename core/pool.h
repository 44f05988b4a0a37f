/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Registered memory of one context: arenas of XR_POOL_ARENA bytes from the device's mr_alloc,
 * each cut into buffers of one size class.  A request beyond the largest class gets an arena of
 * its own, which is given back with it.  An arena that is empty is kept until xr_pool_trim(),
 * and cut anew for another class when the budget is used up.
 *
 * Regions are open to no peer: what a peer may read is opened with a window (mw_bind), buffer
 * by buffer.
 *
 * Every buffer is aligned to XR_POOL_ALIGN.  A buffer that is put twice, or that is none, is
 * refused with -EINVAL and logged, always: the bit per buffer costs nothing.
 *
 * Locking: the context's.
 */
#ifndef XR_POOL_H
#define XR_POOL_H

#include <stddef.h>
#include <stdint.h>
#include "fabric.h"

#define XR_POOL_ARENA	(4u << 20)
#define XR_POOL_ALIGN	64u
#define XR_POOL_CLASSES	8u

struct xr_arena;

struct xr_buf {
	uint8_t *addr;		/* NULL: none */
	size_t size;		/* usable bytes, at least what was asked for */
	struct xr_mr *mr;
	struct xr_arena *arena;
	uint32_t index;
};

struct xr_pool {
	const struct xr_fabric_ops *ops;
	struct xr_pd *pd;
	uint64_t budget, used;	/* bytes of arenas */
	uint64_t bufs;		/* buffers that are out */
	uint64_t huge, far;	/* bytes of arenas in huge pages; on another node than they should be, when looked at */
	uint64_t missed, refused;	/* arenas for which there were no huge pages; whose node could not be chosen */
	struct xr_arena *part[XR_POOL_CLASSES];	/* arenas with a free buffer, by class */
	struct xr_arena *all;
};

/* budget: bytes of registered memory at most, at least one arena (-EINVAL). */
int xr_pool_init(struct xr_pool *p, const struct xr_fabric_ops *ops, struct xr_pd *pd,
		 uint64_t budget);
/* Gives the memory back; -EBUSY while a buffer is out. */
int xr_pool_destroy(struct xr_pool *p);
/*
 * A buffer of at least len bytes; its content is undefined.  -ENOBUFS: the budget is used up,
 * until a buffer is put; -EMSGSIZE: beyond the whole budget; -EINVAL: len 0; -ENOMEM.
 */
int xr_pool_get(struct xr_pool *p, size_t len, struct xr_buf *buf);
/* Gives arenas without a buffer that is out back to the device. */
void xr_pool_trim(struct xr_pool *p);
/* Looks where the arenas lie. */
void xr_pool_look(struct xr_pool *p);
/* Takes it back and clears *buf.  -EINVAL: not a buffer of this pool that is out. */
int xr_pool_put(struct xr_pool *p, struct xr_buf *buf);

#endif
