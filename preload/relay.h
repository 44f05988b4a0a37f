/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The last resort of a hand-over.  A program without hooks is about to get a connection of
 * which bytes are still ours to give or to throw away, and the peer, who could put that right,
 * is stopped, busy or dead.  The descriptor is replaced by one end of a local stream, and a
 * process of this family, which has the hooks, carries the bytes between the other end and the
 * connection for as long as both last.  What the program sees is a stream socket of another
 * address family: reason "substituted".
 */
#ifndef XR_RELAY_H
#define XR_RELAY_H

#include <stdint.h>

struct xr_flow;

#define XR_RELAY_JOBS	128	/* connections that one exec or message hands over unfinished */

/* On the caller's stack. */
struct xr_relay {
	uint32_t n;
	struct xr_relay_job {
		struct xr_flow *f;
		int fd;		/* of the connection: a duplicate of our own */
		int near;	/* the program's end, until it has taken the place of its descriptor */
		int far;	/* the other one */
	} job[XR_RELAY_JOBS];
};

/*
 * A local stream in the place of the flow; fd stays as it is.  The descriptor of the program's
 * end, ours to close, or -errno: then nothing can be done.
 */
int xr_relay_add(struct xr_relay *r, struct xr_flow *f, int fd);

/* Nothing was handed over: forgets what was added. */
void xr_relay_drop(struct xr_relay *r);

/* Starts the process that serves what was added, and closes what is its own. */
void xr_relay_run(struct xr_relay *r);

#endif
