/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * All that changes while two ends of a flow run: their flows, the memory they share, the
 * TCP connection beneath, and where each is in the call it makes.  One block, so that a
 * state can be kept, compared and gone back to.
 */
#ifndef MODEL_WORLD_H
#define MODEL_WORLD_H

#include <setjmp.h>
#include <stdint.h>
#include "preload/flow.h"
#include "preload/upgrade.h"

#define SLOTS	8u
#define CHUNKS	2u
#define DIRS	2u		/* direction blocks of each end: one for each time on the ring */
#define QUEUE	48u		/* bytes that a kernel socket may hold in the model */
#define STACK	32768u

#define FD(e)	(10 + (e))	/* the kernel socket of an end */
#define CONN(e)	(20 + (e))	/* its end of the rendezvous connection */
#define LISTEN	30
#define WAITER	1u	/* of an end: one thread */

enum act {
	ACT_NONE,
	ACT_SEND,		/* one byte */
	ACT_BULK,		/* five bytes: a chunk, appended to */
	ACT_RECV,		/* all there is */
	ACT_RECV1,		/* one byte */
	ACT_POLL,
	ACT_WAIT_IN,		/* sleep until readable */
	ACT_WAIT_OUT,
	ACT_SHUT,		/* shutdown(SHUT_WR) */
	ACT_CLOSE,
	ACT_SEAL,		/* retreat for good, the program goes on under the hooks */
	ACT_LEAVE,		/* retreat for a while */
	ACT_EXEC,		/* retreat, the next reader knows nothing of us */
	ACT_KILL,
	ACT_COUNT
};

/* One direction of the TCP connection. */
struct wire {
	uint8_t q[QUEUE];
	uint8_t n, there;	/* bytes on their way or unread; of them: at the reader */
	uint8_t fin, rst;	/* 1: sent, 2: there */
	uint32_t in, out;	/* bytes ever written; read */
};

struct sock {
	uint8_t closed, shut_wr, linger0, err, reset;
};

/* A store that waits in the store buffer of the end that made it. */
struct pending {
	volatile void *p;
	uint64_t v;
	uint64_t size;
};

#define PENDING	4

struct side {
	struct pending pending[PENDING];
	uint8_t npending;
	uint8_t left[ACT_COUNT];	/* how often it may still do what */
	uint8_t act, in_call, blocked;	/* blocked: sleeps, or waits for room */
	uint8_t dead, closed, unaware;
	uint8_t hung_up;		/* dead: its control connection is closed too */
	uint8_t sleeping, bell, entry;	/* of its waiter */
	uint8_t shut, eof, err;		/* what the program did and was told */
	uint8_t threw;			/* it went with bytes unread */
	uint8_t sent, tried, got;	/* bytes accepted; perhaps accepted; received */
	uint8_t dirs;			/* blocks handed out, a bit each */
	uint8_t claimed;		/* by its waiter: 1 receive, 2 send */
	uint16_t events;		/* poll(2) bits that end a block */
	uint64_t now;
	char *sp;
	jmp_buf at;
};

struct rendezvous {
	uint8_t listening, called, answered, set_up, closed;	/* closed: bit of each end */
	uint8_t attempt, dir[2];
};

struct block {
	struct xr_shm_dir dir;
	struct xr_shm_slot slot[SLOTS];
};

struct world {
	struct xr_flow flow[2];
	struct xr_flow_priv priv[2];
	struct xr_flow_own own[2];
	struct xr_shm_meta meta[2][SLOTS];
	struct xr_shm_link link[2];
	uint8_t chunk[2][CHUNKS][128];
	uint8_t chunk_used[2];
	struct side side[2];
	struct sock sock[2];
	struct wire wire[2];		/* wire[e]: written by end e */
	struct rendezvous rdv;
	struct block block[2][DIRS];
};

extern struct world W;
extern int cur;				/* the end that runs */
extern const char *wrong;		/* the property that does not hold, NULL while all do */
extern int coarse;			/* calls are not interrupted */
extern int plain;	/* memory accesses are no points of their own: calls are interrupted at system calls */
extern int tso;		/* stores wait in a buffer */
extern int lag;				/* bytes spend time on the wire */
extern int hurried;	/* between two calls no time passes */
extern int handover;	/* what an exec cannot take along may be lost, see ended() */

void wrong_if(int cond, const char *what);

/* world.c: running an end up to its next point */
void world_init(void);
void world_begin(int e, enum act a);
void world_resume(int e);
void world_abandon(int e);
void model_yield(void);
/* Sleeps until the kernel socket shows one of these bits; in a sleep, also for the bell. */
void model_block(uint32_t events, int bell);
int world_may_run(int e);
/* The oldest store of e becomes visible; all of them do. */
void world_flush_one(int e);
void world_flush(int e);
void model_barrier(void);

struct snapshot;
struct snapshot *snapshot_new(void);
void snapshot_save(struct snapshot *s);
void snapshot_load(const struct snapshot *s);
uint64_t world_hash(void);

/* kernel.c */
uint32_t kernel_poll(int e);
void kernel_close(int e);
int kernel_may_deliver(int e);
void kernel_deliver(int e);

/* ends.c: what a program does in one call */
int lost_to_exec(int e);
void end_act(int e, enum act a);
void end_start(void);
void end_settle(int e);

#endif
