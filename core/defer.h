/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sections that no handler of the program interrupts.
 *
 * A handler may make every call that POSIX calls safe there, and may leave by longjmp.  On top of a thread
 * that holds a lock without an owner the one waits for itself, and the other leaves the lock for ever.  To
 * block signals around each section is two system calls; so a handler that comes in one (signal.c)
 * puts the signal off until the section has ended.  Only what this library does itself may be in a
 * section: nothing that blocks, and no call of the program's.
 */
#ifndef XR_DEFER_H
#define XR_DEFER_H

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include "atomic.h"

/* Of this thread: how many sections it is in; the signals that are blocked until it has left them. */
extern __thread uint32_t xr_defer_depth __attribute__((tls_model("initial-exec")));
extern __thread uint64_t xr_defer_put_off __attribute__((tls_model("initial-exec")));

void xr_defer_deliver(void);

static inline void xr_defer_begin(void)
{
	xr_defer_depth++;
	/* a handler of this thread comes before it, or finds it */
	atomic_signal_fence(memory_order_seq_cst);
}

static inline void xr_defer_end(void)
{
	uint32_t depth = xr_defer_depth - 1;

	atomic_signal_fence(memory_order_seq_cst);
	xr_defer_depth = depth;
	/* one that comes from here on is not put off; one that was is seen here */
	atomic_signal_fence(memory_order_seq_cst);
	if (xr_unlikely(xr_defer_put_off) && !depth)
		xr_defer_deliver();
}

/*
 * In a handler, first of all.  1: the thread is in a section, and the signal comes again, so that the
 * handler is to return; 0: go on.  `context` is its third argument.
 */
int xr_defer_signal(int sig, const siginfo_t *info, void *context);

#endif
