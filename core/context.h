/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A context: one device handle and what one thread drives over it, that is the completion
 * queue, the pool, the listeners and the channels, behind one descriptor to sleep on.
 *
 * Callbacks run inside xr_context_poll().  They may send and close; a channel that ended
 * is told to the program and freed when the round is over, never under the caller.
 *
 * Locking: none, one thread at a time (xrdma.h says so to the program).
 */
#ifndef XR_CONTEXT_H
#define XR_CONTEXT_H

#include <stdint.h>
#include "chanstats.h"
#include "fabric.h"
#include "pool.h"
#include "qpcache.h"
#include "window_adapt.h"
#include "xrdma.h"

#define XR_CONTEXT_CQE	16384u
#define XR_CONTEXT_EVENTS 64u	/* rounds of a spinning program between two looks at connections ... */
#define XR_CONTEXT_PLACE	1000000000u	/* ns between two looks at where memory lies */
#define XR_CONTEXT_BUSY	2500000u	/* ... and cycles, about a ms, while messages keep it busy */

struct xr_listener {
	struct xr_listener *next;
	struct xr_addr addr;
	struct xr_cm_id *id;
};

struct xrdma_mem {
	struct xrdma_context *ctx;
	struct xrdma_mem *next;
	struct xr_mr *mr;
	uint32_t refs;		/* messages that are not settled */
	uint8_t own;		/* allocated for the program, so that where it lies was chosen here */
	uint8_t far;		/* counted in mem_far */
};

struct xrdma_context {
	const struct xr_fabric_ops *ops;
	struct xr_dev *dev;
	struct xr_dev_caps caps;
	struct xr_pd *pd;
	struct xr_cq *cq;
	struct xr_pool pool;
	struct xr_qpcache qps;
	uint32_t generation;	/* of the last channel */
	uint64_t stale;		/* completions of earlier generations */
	struct xrdma_callbacks cb;
	void *arg;
	int epoll;		/* both descriptors of the device, and the timer */
	uint8_t polling;
	uint8_t ended;		/* a channel is DEAD, or drained */
	uint8_t starved;	/* a channel waits for a buffer */
	uint8_t owing;		/* a channel has something to say when nothing else happens */
	uint8_t byref;		/* messages are delivered where the device has them */
	uint8_t rnr_retry;	/* of queue pairs: 0 */
	uint8_t gone;		/* the device is gone for good: nothing new will succeed */
	/* of a user inside the library: 0 refuses a connection before anything is made for it; NULL: none is */
	int (*admit)(struct xrdma_context *ctx, const struct xr_cm_event *ev);
	/* NULL, or told of each round trip of a probe, in ns; it may close the channel */
	void (*probed)(struct xrdma_channel *ch, uint64_t rtt);
	uint32_t rounds, useful;	/* since the program slept; with messages, of the last XR_CONTEXT_EVENTS */
	uint64_t looked;		/* cycle count of the last look at connections */
	int timer;		/* for keepalive, for pauses and for rest, in epoll */
	uint64_t timer_at;	/* ns: what it is set to */
	uint64_t keepalive;	/* ns: when to look after the channels again; 0: never */
	uint64_t rest;		/* ns: when to look for those without traffic; 0: all are at rest */
	struct xrdma_mem *mems;
	uint64_t mem_far;	/* bytes of those that are own, as pool.far */
	struct xr_budget budget;	/* READs of all channels */
	struct xr_adapt fetch;	/* what the network takes of them */
	uint64_t pace;		/* ns: when a channel that was held back may go on; 0: none */
	uint64_t placed_at;	/* ns: when to look where its memory lies; machines with several nodes */
	uint64_t out_bytes;	/* buffers of messages that are not settled */
	struct xrdma_channel *channels;
	struct xr_listener *listeners;
	uint64_t option[XRDMA_OPT_COUNT];
	uint8_t traces;		/* it is one of those for which records are kept */
	/* channel_stats.c: its number for xr-stat, 0: not shown; channels that changed; what was said of itself */
	uint32_t listed;
	struct xrdma_channel *untold;
	uint64_t told[XR_CHANPROC_COUNT];
};

int xr_context_create(struct xrdma_context **ctx, const char *device,
		      const struct xrdma_callbacks *cb, void *arg);
/* Cuts every connection. -EBUSY: from inside a callback. */
int xr_context_destroy(struct xrdma_context *ctx);
/* channel_stats.c: xr-stat shows it; what changed is written there; and no longer. */
void xr_context_list(struct xrdma_context *ctx);
void xr_context_tell(struct xrdma_context *ctx);
void xr_context_unlist(struct xrdma_context *ctx);
/* One round: number of things that happened. */
int xr_context_poll(struct xrdma_context *ctx);
/* Polls until nothing happens and arms: 0; 1 when that takes too long. */
int xr_context_event(struct xrdma_context *ctx);
/* The budget of READs as the options say; before there is a channel. */
void xr_context_flow(struct xrdma_context *ctx);
/* Bytes of one message that this end takes. */
uint64_t xr_context_max_msg(const struct xrdma_context *ctx);

#endif
