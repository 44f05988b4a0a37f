/* SPDX-License-Identifier: BSD-2-Clause */
/* Which processes hold a flow; included by flow.h. */
#ifndef XR_FLOW_KIDS_H
#define XR_FLOW_KIDS_H

#include <stdint.h>
#include "atomic.h"

struct xr_flow;

/*
 * Forked children hold every flow that their parent had.  A child is counted here, once,
 * until it lets go of a single one of them; then it counts itself in the procs of each.  Most
 * children do not: they end, or start another program.
 */
#define XR_FLOW_KIDS	64		/* more are counted at once */

struct xr_flow_kids {
	_Atomic uint32_t forks;		/* so far */
	_Atomic uint32_t used;		/* of serial[] */
	_Atomic uint32_t left;		/* flows that the owner let go of while children held them */
	_Atomic uint32_t serial[XR_FLOW_KIDS];	/* which fork made the child; 0: none */
	_Atomic uint64_t pid[XR_FLOW_KIDS];	/* serial:32 | its pid, as the owner knows it */
};

/* Before fork: counts the child as a holder (after a failed fork: undo = 1). */
void xr_flow_fork_prepare(int undo);
/* After fork, in the parent. */
void xr_flow_kid_is(int pid);
/* Children that were killed let go of what they held.  For the owner of the slab. */
void xr_flow_kids_reap(void);
/* Forks so far by the owner of the slab, as far as they are known; and: may one of their children live? */
uint32_t xr_flow_kid_forks(void);
int xr_flow_kid_lives(void);
/* 1: this process may be the last one to hold a flow of its parent's. */
int xr_flow_kid_heir(void);
/* In the child, while the slab is the parent's still. */
void xr_flow_kid_begin(void);
/* This process is about to let go of this flow, or of some (NULL): it counts in each from now on. */
void xr_flow_kid_counts(struct xr_flow *f);
/* Processes that may hold the flow: an upper bound. */
uint32_t xr_flow_holders(const struct xr_flow *f);
/* At its exit. */
void xr_flow_kid_exit(void);
/* At the exit of a child that never came to xr_flow_kid_begin.  0: there is more to do. */
int xr_flow_kid_leave(void);

#endif
