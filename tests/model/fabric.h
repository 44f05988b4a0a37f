/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two hosts: each end has a module beside it (bridge/carry*.c, as it is) at the other end of its rings, and the
 * two modules have a channel that may die.  A second block of state, part of it only where a scenario says `far`.
 *
 * A channel is a queue of whole messages each way.  When it dies each module hears of it at some step of its
 * own, and what had not come to it by then never does: any suffix, of either direction, independently.
 */
#ifndef MODEL_FABRIC_H
#define MODEL_FABRIC_H

#include "bridge/carry.h"
#include "world.h"

#define PIPES	2u
#define MESSAGES 4u		/* on their way at a time, each way: then the channel takes none */
#define PAYLOAD	16u

struct message {
	uint64_t id;
	uint32_t imm, len;
	uint8_t data[PAYLOAD];
};

struct pipe {
	void *flow[2];			/* of each module, NULL: it has let go */
	uint8_t up[2];			/* it is to hear that the ends have met */
	uint8_t left[2];		/* closed it: what it sent comes first */
	uint8_t n[2], dying, number;
	struct message q[2][MESSAGES];	/* q[e]: to the module of e */
};

struct pool {
	uint8_t big[2][768];
	uint8_t small[6][192];
	uint8_t bigs, smalls, pad[6];	/* taken, a bit each */
};

struct fabric {
	struct block block[2][DIRS];	/* the modules' directions */
	uint8_t chunk[2][CHUNKS][128];
	uint8_t chunk_used[2], dirs[2], rung[2], gone[2];
	uint8_t ncmd[2], waits[2], answered[2], meetings, deaths;
	struct xr_bridge_cmd cmd[2][3];
	struct xr_bridge_answer answer[2];
	struct carry_all all[2];
	struct carry_link klink[2];
	struct carry *cookie[2][4];
	struct xr_shm_link link[2];	/* the modules' side of it */
	struct pool pool[2];
	void *meeting[2];
	struct pipe pipe[PIPES];
	struct xr_flow_far far[2];
};

extern struct fabric X;
extern int hosts;		/* the ends are on two of them */

/* Steps of the world beside the two programs. */
enum fabric_step { FABRIC_WORK, FABRIC_HEAR, FABRIC_UP, FABRIC_CLOSED, FABRIC_TICK, FABRIC_DIES, FABRIC_STEPS };

void fabric_start(void);
int fabric_may(enum fabric_step what, int e);
void fabric_do(enum fabric_step what, int e);
/* The process of e is no more, and its module with it. */
void fabric_killed(int e);
/* Generations of armings are compared for equality alone: states that differ in nothing else are one. */
void fabric_settle(void);
/* Until nothing is left to be done. */
void fabric_pump(void);
/* The program rings for its module. */
void fabric_ring(int e);

#endif
