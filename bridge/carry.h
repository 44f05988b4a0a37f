/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections that are being carried: between the two rings that a program has for each, and the channel to the
 * other host.
 *
 * The module is the other end of both rings (preload/bridge.h).  What the program writes is sent as it comes, and given
 * back to the ring only when the peer's program has consumed it: the ring is what is retained.  What comes from
 * the peer goes into the other ring; how far the program has read there is what the peer is told.
 *
 *	carry.c		links, flows, and what moves between a ring and the channel
 *	carry_talk.c	what comes over the channel
 *	module.c	the thread: commands of the program, waiting
 *
 * Everything runs on one thread.
 */
#ifndef XR_BRIDGE_CARRY_H
#define XR_BRIDGE_CARRY_H

#include <stdint.h>
#include "bridge.h"
#include "meet.h"
#include "shm_link.h"

#define CARRY_WAITER	1u		/* this thread, on every link */
#define CARRY_PIECE	65536u		/* bytes of one message */
#define CARRY_ACK	65536u		/* consumed bytes that are told without waiting for data to go along */
#define CARRY_ACK_NS	5000000ull	/* and fewer, after so long */
#define CARRY_QUEUE	(64ull << 20)	/* a peer that sends more than it may */
#define CARRY_REAP_NS	250000000ull	/* flows that are over: does the program still look? */

/* Messages: their type is in imm, what else they say in id. */
enum carry_msg {
	CARRY_READY = 1,	/* the program's receiver is ready; id: its socket buffer, if it bounded that */
	CARRY_START,		/* id: offset of the TCP stream from which on bytes come over the channel */
	CARRY_STARTED,		/* START was taken */
	CARRY_DATA,		/* id: bytes consumed : 32 | offset of the first byte : 32, modulo 2^32 */
	CARRY_ACK_ONLY,		/* the same, without data */
	CARRY_STOP,		/* the program has left the fabric; id: 1 when it reads no more, either */
};

enum carry_state {
	CARRY_MEETING,
	CARRY_MET,		/* the program was told */
	CARRY_ON,		/* and has attached */
	CARRY_OVER,		/* the program may still read the ring */
};

enum carry_end { CARRY_QUIET, CARRY_STOPPED, CARRY_LOST, CARRY_PEER_LEFT };

struct carry_link {
	struct carry_link *next;
	struct xr_shm_link *l;
	int bell;
	uint32_t flows;
};

struct carry_blob {			/* what did not fit into the ring */
	struct carry_blob *next;
	uint32_t len, off;
	uint8_t data[];
};

struct carry {
	struct carry *next;		/* all */
	struct carry *work;		/* those that something happened to */
	uint8_t working;
	uint8_t state;
	uint8_t connecting;
	uint8_t lost;			/* MET: the channel ended before the program attached */
	uint32_t index;			/* what the program calls it */
	uint32_t cookie;		/* what it is called here */
	uint64_t id;
	struct carry_link *link;
	struct xrdma_channel *ch;
	struct carry_all *all;

	struct xr_shm_rx rx;		/* the program's ring */
	uint64_t dir_off;		/* the module's direction: the other ring */
	struct xr_shm_tx tx;
	struct xr_shm_meta *meta;
	uint32_t gen;			/* of the program's direction when it attached */

	/* from the program */
	uint32_t seq, byte;		/* sent so far */
	uint64_t sent, acked;		/* bytes */
	uint8_t ready_told;
	uint8_t start;			/* 0; 1: told; 2: taken, and the program may know it */
	uint8_t blocked;		/* the channel takes no more now */
	uint8_t stop_due;

	/* to the program */
	uint8_t peer_ready, peer_started, started_due;
	uint32_t peer_room;
	uint64_t got;			/* bytes that came */
	uint64_t told;			/* consumed, as the peer knows */
	struct carry_blob *queue, **queue_end;
	uint64_t queued;
};

struct carry_all {
	struct meet *meet;
	int cmd;
	uint32_t slots;
	struct carry_link *links;
	struct carry *flows;
	struct carry *work;		/* in no order */
	struct carry **by_cookie;
	uint32_t cookies;
	uint64_t ack_at, reap_at;	/* ns, 0: none */
};

/* --- carry.c --- */

int carry_link_new(struct carry_all *a, uint64_t id, const int fds[3]);
void carry_link_close(struct carry_all *a, struct carry_link *k);
struct carry *carry_begin(struct carry_all *a, const struct xr_bridge_cmd *cmd);
void carry_cancel(struct carry_all *a, uint64_t id);
void carry_attach(struct carry_all *a, const struct xr_bridge_cmd *cmd);
/* Something may have changed. */
void carry_wake(struct carry *c);
/* Works through what was woken.  1: there is more. */
int carry_work(struct carry_all *a);
/* What is due at this time; ns of the next, 0: nothing is. */
uint64_t carry_tick(struct carry_all *a, uint64_t now);
void carry_end(struct carry *c, enum carry_end how);
void carry_free(struct carry *c);
/* A message; 1: it is out, 0: the channel takes none now, or is gone. */
int carry_say(struct carry *c, enum carry_msg type, uint64_t id, const void *data, size_t len);
/* Tells whoever waits in the program. */
void carry_tell_reader(struct carry *c);
void carry_answer(const struct carry_all *a, const struct xr_bridge_answer *ans);
/* Into the ring, or behind what waits for room there.  0 or -errno. */
int carry_put(struct carry *c, const void *data, size_t len);
/* The peer has consumed so much, modulo 2^32.  0, -EPROTO. */
int carry_acked(struct carry *c, uint32_t to);

/* --- carry_talk.c: the callbacks of the rendezvous --- */

extern const struct meet_ops carry_ops;

#endif
