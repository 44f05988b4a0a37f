/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Queue pairs that are used again.  Making one is what takes long in setting up a connection; a device
 * that says so (caps.reuse) lets one be taken back to RESET and on from there.
 *
 * The life of a queue pair in here
 *	the owner	ERR, then a sentinel is posted to both queues: when these have completed, everything
 *			else has, once each (RESET would drop it without a word)
 *	put		RESET, and quarantine: what is under way in the network for its last connection
 *			must have died before a new one begins (caps.quarantine_us)
 *	get		INIT, and its receives are posted anew by the owner before the peer may send
 * What the numbers of old connections are told from: the device gives every connection a fresh packet
 * sequence number, channels have a random first sequence number, and a generation that travels in the greeting
 * and in every wr_id.
 *
 * Locking: the context's.
 */
#ifndef XR_QPCACHE_H
#define XR_QPCACHE_H

#include <stdint.h>
#include "fabric.h"

struct xr_qp_idle;

struct xr_qpcache {
	const struct xr_fabric_ops *ops;
	struct xr_dev *dev;
	uint64_t quarantine;		/* ns */
	uint32_t limit, n;
	uint8_t reuse;			/* 0: the device is left alone */
	struct xr_qp_idle *first, **last;	/* oldest first, so those out of quarantine come first */
	uint64_t hits, misses;
	uint64_t dropped;		/* given back, and destroyed: no room, or it would not RESET */
};

/* limit: queue pairs that are kept; 0: none. */
void xr_qpcache_init(struct xr_qpcache *c, const struct xr_fabric_ops *ops, struct xr_dev *dev,
		     const struct xr_dev_caps *caps, uint32_t limit);
/* Destroys all. */
void xr_qpcache_end(struct xr_qpcache *c);
/* Keeps so many from now on. */
void xr_qpcache_limit(struct xr_qpcache *c, uint32_t limit);
/* A queue pair with these attributes, in INIT: an old one, or a new one. -errno of the device. */
int xr_qpcache_get(struct xr_qpcache *c, const struct xr_qp_attr *attr, uint64_t now, struct xr_qp **qp);
/* 1: put() would keep it, so that draining it is worth while. */
int xr_qpcache_wants(const struct xr_qpcache *c);
/* Takes one over: drained, in ERR, made with these attributes.  Whatever happens, it is the cache's. */
void xr_qpcache_put(struct xr_qpcache *c, struct xr_qp *qp, const struct xr_qp_attr *attr, uint64_t now);

#endif
