/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A context: one device handle and what one thread drives over it, that is the completion
 * queue, the pool, the listeners and the channels, behind one descriptor to sleep on.
 *
 * Callbacks run inside xr_context_poll().  They may send and close; a channel that ends
 * meanwhile is freed when the outermost poll is over, never under the caller.
 *
 * Locking: none, one thread at a time (xrdma.h says so to the program).
 */
#ifndef XR_CONTEXT_H
#define XR_CONTEXT_H

#include <stdint.h>
#include "fabric.h"
#include "pool.h"
#include "xrdma.h"

#define XR_CONTEXT_CQE	16384u

struct xrdma_channel;

struct xr_listener {
	struct xr_listener *next;
	struct xr_cm_id *id;
};

struct xrdma_mem {
	struct xrdma_context *ctx;
	struct xr_mr *mr;
	uint32_t refs;		/* messages that are not settled */
};

struct xrdma_context {
	const struct xr_fabric_ops *ops;
	struct xr_dev *dev;
	struct xr_dev_caps caps;
	struct xr_pd *pd;
	struct xr_cq *cq;
	struct xr_pool pool;
	struct xrdma_callbacks cb;
	void *arg;
	int epoll;		/* both descriptors of the device */
	uint32_t depth;		/* polls on the stack */
	uint32_t mems;
	struct xrdma_channel *channels;
	struct xr_listener *listeners;
	uint64_t option[XRDMA_OPT_COUNT];
};

int xr_context_create(struct xrdma_context **ctx, const char *device,
		      const struct xrdma_callbacks *cb, void *arg);
/* Cuts every connection. -EBUSY: from inside a callback, or memory is still registered. */
int xr_context_destroy(struct xrdma_context *ctx);
/* One round: number of things that happened. */
int xr_context_poll(struct xrdma_context *ctx);
/* Poll until nothing happens and the descriptor is armed. */
int xr_context_event(struct xrdma_context *ctx);

#endif
