/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Flows whose readiness a test sets by hand, under the real poll, select and epoll.
 *
 * Links, completion entries and doorbells are the real ones of core/: both ends of each
 * link are in this process.  What stands in for flow*.c is the rest.
 */
#ifndef FAKE_FLOW_H
#define FAKE_FLOW_H

#include <stdint.h>
#include <sys/epoll.h>
#include "core/mem.h"
#include "core/shm_link.h"
#include "preload/epoll.h"
#include "preload/fdtab.h"
#include "preload/flow.h"
#include "preload/ready.h"

#define FAKE_FLOWS	2048

struct fake {
	struct xr_flow *f;
	int fd, peer;		/* the "kernel socket": a pair of Unix sockets */
	_Atomic uint32_t mask;	/* what xr_flow_poll says */
	_Atomic uint32_t queued;	/* bytes */
	struct xr_shm_slot slot;	/* the first of them */
	_Atomic uint32_t arm[2];	/* waiter that asked, 0 */
	_Atomic uint32_t polls, kernel_events, retreats;
	uint32_t link;		/* 0 or 1 */
	uint32_t stuck;		/* its peer does not take what it is owed: it cannot be handed over */
};

extern struct fake fake[FAKE_FLOWS];
extern _Atomic uint32_t fake_polls;		/* calls of xr_flow_poll on any flow */
extern uint32_t fake_stay_reason;

void fake_setup(void);
void fake_teardown(void);

/* Flow number i with descriptors; on the kernel (XR_PATH_COUNT) until fake_move. */
struct fake *fake_open(uint32_t i);
/* To the fabric: attach as the upgrade does.  0 or -errno, then the flow is where it was. */
int fake_move(struct fake *k);
/* Back: as a retreat. */
void fake_back(struct fake *k);
void fake_close(struct fake *k);

/* The peer sends n bytes, or consumes so that there is space; tells who armed. */
void fake_send(struct fake *k, uint32_t n);
void fake_space(struct fake *k);
/* The program reads all, or fills the flow. */
void fake_drain(struct fake *k);
void fake_fill(struct fake *k);

#endif
