/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Between waiter.c, poll.c, select.c and epoll*.c: how a thread goes to sleep.
 *
 * A direction of a flow has room for one waiter (the arm words of the ring).  Threads
 * that sleep on the same direction therefore take turns: the one that claimed it is
 * told by the peer, the others look again every XR_WAIT_SLICE.  An epoll file gives way
 * to a thread, and is kicked when the thread leaves.
 */
#ifndef XR_WAITER_H
#define XR_WAITER_H

#include <stddef.h>
#include <stdint.h>
#include "flow.h"
#include "ready.h"

#define XR_WAIT_SLICE	1000000u	/* ns; for sleepers that nobody can wake */
#define XR_WAIT_PEER	1000000000u	/* ns; a forked child of the peer's may lack the bell to ring */
#define XR_WAIT_LONG	100000000u	/* ns; where the kernel socket has said all it will say */

/* poll(2) bits that answer a question for mask on a flow. */
static inline uint32_t xr_ready_bits(uint32_t mask)
{
	return mask | POLLERR | POLLHUP;
}

/* The earlier of two deadlines, 0 being none. */
static inline uint64_t xr_deadline_min(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

/*
 * 1 when a stack address that was remembered in TLS or beside a lock of this thread lies
 * in an outer frame of the caller's, which is at `own`; 0 when that frame was left by
 * longjmp: then the stack has been wound back beyond it.
 */
int xr_frame_alive(uintptr_t own, uintptr_t frame);

/* After a sleep of ns: would spinning have paid? */
void xr_spin_slept(uint32_t *budget, uint32_t times, uint64_t ns);
/* Budgets of this thread: for sends, for poll and select. */
uint32_t *xr_spin_tx(void);
uint32_t *xr_spin_poll(void);

/*
 * Brackets a sleep of this thread; returns its waiter, 0 when there is none to be had.
 * A wait inside a signal handler may share the waiter with the wait that it interrupted,
 * and take its bell: whoever slept looks again after any handler ran.
 */
uint32_t xr_waiter_enter(void);
void xr_waiter_leave(uint32_t w);

/* Drops completion entries that came before the thread arms its flows. */
void xr_waiter_forget(struct xr_shm_link *l, uint32_t w);
/* Says "sleeping" on a link; 1 when there is something to look at again instead. */
int xr_waiter_doze(struct xr_shm_link *l, uint32_t w);
/* Undoes it. */
void xr_waiter_rise(struct xr_shm_link *l, uint32_t w);
void xr_bell_drain(int bell);

/* dir: 0 receive, 1 send.  1: the caller may arm the flow; 0: another thread sleeps on it. */
int xr_waiter_claim(struct xr_flow *f, int dir, uint32_t w);
void xr_waiter_unclaim(struct xr_flow *f, int dir, uint32_t w);
/* The thread that sleeps on the direction, 0 when none does. */
uint32_t xr_waiter_claimed(struct xr_flow *f, int dir);

/*
 * Scratch memory of this thread, kept for its next call; NULL when there is none.
 * frame: where the caller's stack is.  *own: to be handed to xr_scratch_put.
 */
void *xr_scratch_get(size_t len, uintptr_t frame, size_t *own);
void xr_scratch_put(void *p, size_t own);

void xr_waiter_forked(void);


#endif
