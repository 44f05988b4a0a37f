/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A caretaker: the process that is left behind where this one ends or closes a flow in
 * mid-retreat, with bytes still to be replayed or thrown away.  On TCP the kernel goes on
 * delivering after close() and exit(); what lies in our memory only a process can deliver.
 *
 * It has a session of its own, and of the descriptors it keeps those of its flows alone.  It ends when
 * they are in order, or after XR_CARE_NS or a SIGTERM, with an RST.
 *
 * Of a program that goes on it is a child, of the kind that tells nobody of its end and that wait(2)
 * does not find: later calls collect it.  (Nobody's child is collected by process 1, which in many a
 * container collects nothing, or by a subreaper, which would wonder.)  Before exec it leaves the
 * program: of one that ends after that the kernel sends a SIGCHLD, whatever was asked for.
 */
#ifndef XR_CARETAKER_H
#define XR_CARETAKER_H

#include <stdint.h>
#include <sys/socket.h>

struct xr_flow;

#define XR_CARE_JOBS	32
#ifndef XR_CARE_NS
#define XR_CARE_NS	120000000000u	/* about as long as the kernel keeps an orphan that nobody reads from */
#endif
#define XR_CARE_SOON_NS	1000000u	/* what a peer at work needs: not worth a process */

/* On the caller's stack. */
struct xr_care {
	uint32_t n;
	uint32_t orphan;	/* this program is about to become another one */
	struct xr_care_job {
		struct xr_flow *f;
		int fd;
		struct linger linger;	/* the program's, in the caretaker */
	} job[XR_CARE_JOBS];
};

/*
 * The flow is about to lose its descriptor fd in this process.  Adds it if there is anything
 * left to do; the list runs when it is full.
 */
void xr_care_add(struct xr_care *c, struct xr_flow *f, int fd);

/*
 * Does what there is to do: here, for `soon` nanoseconds at most, then in a caretaker.  The
 * descriptors may be closed afterwards.
 */
void xr_care_run(struct xr_care *c, uint64_t soon);

/*
 * The process itself: run(arg) in a grandchild that nobody waits for, with all signals but SIGTERM
 * blocked, of the descriptors only those in keep open.  It ends with run.  0 or -errno.
 */
int xr_care_spawn(const char *name, const int *keep, uint32_t n, void (*run)(void *arg), void *arg);

/* The process is about to end: threads of it that are in xr_care_run do not wait any more.  0: wait again. */
void xr_care_hurry(int on);

/* Collects caretakers that have ended; any hook may call it. */
void xr_care_reap(void);
/* Before exec: those that are children of this process leave it. */
void xr_care_part(void);
/* After fork, in the child: they are the parent's. */
void xr_care_forked(void);

#endif
