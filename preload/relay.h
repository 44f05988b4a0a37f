/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The last resort of a hand-over.  A program, or a part of libc, that has no hooks is about to
 * use a connection of which bytes are still ours to give or to throw away, and the peer, who could
 * put that right, is stopped, busy or dead.  All descriptors that this process has of it are
 * replaced by one end of a stream within the host, and a process of this family, which has the
 * hooks, carries the bytes between the other end and the connection for as long as both last.
 * What the program sees is a socket with other addresses: reason "substituted".
 */
#ifndef XR_RELAY_H
#define XR_RELAY_H

#include <stdint.h>
#include "reason.h"

struct xr_flow;

#define XR_RELAY_JOBS	128	/* connections that one process carries */

/* On the caller's stack. */
struct xr_relay {
	uint32_t n;
	struct xr_relay_job {
		struct xr_flow *f;
		int fd;		/* of the connection: a duplicate of our own */
		int near;	/* a vfork child's, which may meet it under more numbers; else -1 */
		int far;	/* the end that the relay has */
	} job[XR_RELAY_JOBS];
};

/* ---- in the program (substitute.c) ------------------------------------------- */

/*
 * xr_flow_let_go(), and where that would leave anything behind, a stream in the place of the flow.
 * What was added is served from xr_relay_run() on.
 */
void xr_relay_let_go(struct xr_relay *r, struct xr_flow *f, int fd, enum xr_reason why,
		     uint64_t wait_ns);
/* Both, for one flow. */
void xr_let_go(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns);

/* A stream in the place of the flow, or -errno: nothing has changed. */
int xr_relay_add(struct xr_relay *r, struct xr_flow *f, int fd);

/* Starts the process that serves what was added. */
void xr_relay_run(struct xr_relay *r);

/* ---- between the two files ---------------------------------------------------- */

/* pair[0] is like the socket fd, pair[1] the relay's.  0 or -errno. */
int xr_relay_pair(int fd, int pair[2]);
/* The process itself, from its first moment on; arg is the list. */
void xr_relay_child(void *arg);

#endif
