/* SPDX-License-Identifier: BSD-2-Clause */
/* What an operator asks of a running process (control.c). */
#ifndef XR_CONTROL_H
#define XR_CONTROL_H

#include "atomic.h"
#include "stats.h"

struct xr_flow;

extern _Atomic uint32_t xr_control_seen, xr_control_tune_seen;

/* 1: the operator wants this flow on TCP.  Any thread. */
int xr_control_holds(const struct xr_flow *f);

/* Obeys: retreats the flows that are to be on TCP.  No lock of a flow may be held. */
void xr_control_run(void);

/* To be called by hooks that use a flow: one comparison when nobody asked for anything. */
static inline void xr_control_check(void)
{
	if (xr_unlikely(xr_load_relaxed(&xr_stats_now()->h.control) !=
			xr_load_relaxed(&xr_control_seen)))
		xr_control_run();
}

/* Takes over the settings that were changed.  Locks no flow and touches none. */
void xr_control_tune(void);

/* For what is done before a flow has moved: one comparison, too. */
static inline void xr_control_tuned(void)
{
	if (xr_unlikely(xr_load_relaxed(&xr_stats_now()->h.control) !=
			xr_load_relaxed(&xr_control_tune_seen)))
		xr_control_tune();
}

/* Makes the bell; at the first flow that moves. */
void xr_control_open(void);
/* What sleepers watch for POLLIN beside everything else, and drain; -1: there is none. */
int xr_control_fd(void);
void xr_control_drain(void);
/* Its path, for others of the same user to ring it; NULL: there is none. */
const char *xr_control_bell(void);
void xr_control_ring(const char *bell);

/* Closes the bell until xr_control_open comes by again.  1: there was one. */
int xr_control_drop(void);
void xr_control_close(void);
void xr_control_forked(void);

#endif
