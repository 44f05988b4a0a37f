/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults of the shm device, for tests: what a network and a bad device can do to a reliable connection.
 * They belong to one device; what chance decides comes from a seed and the number of the request alone.
 *
 * Requests of this device
 *	drop		is lost, and sent again rto_us later; lost more than `retries` times in a row it
 *			completes with XR_WC_RETRY_EXC_ERR
 *	delay		goes up to delay_us later, and all behind it on its queue pair
 *	reorder		goes after a request of another queue pair, or after delay_us
 *	duplicate	is executed twice: no reliable connection does that, a broken device may
 *	fail		completes with `status`
 *	kill		takes the queue pair to ERR
 * Requests of peers
 *	rnr		(SEND) finds no receive, though there is one; executed rnr_us later
 *	ecn		what came, and what a READ brought, is marked
 *	slow_us		each is executed so much later than the one before
 */
#ifndef XR_FABRIC_SHM_FAULT_H
#define XR_FABRIC_SHM_FAULT_H

#include "fabric.h"

#define XR_FAULT_ALWAYS	65536u	/* chances are in 65536ths */

struct xr_shm_fault {
	uint64_t seed;
	uint32_t after;		/* so many requests of each direction go undisturbed */
	uint32_t drop, delay, reorder, duplicate, fail, kill, rnr, ecn;
	uint32_t retries, rto_us, delay_us, rnr_us, slow_us;
	enum xr_wc_status status;
};

/* How many there were of each. */
struct xr_shm_fault_count {
	uint64_t sent, drop, delay, reorder, duplicate, fail, kill, executed, rnr, ecn, slow;
};

/* Begins anew with counts and chance; NULL: no faults any more. -EINVAL: no shm device, or chances above 1. */
int xr_shm_fault_set(struct xr_dev *dev, const struct xr_shm_fault *f);
void xr_shm_fault_count(struct xr_dev *dev, struct xr_shm_fault_count *c);

#endif
