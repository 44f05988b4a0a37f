/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The rendezvous of two ends of a TCP connection on different hosts.
 *
 * The end that connected listens, by RDMA connection management, on the address and port that its TCP socket has; the
 * end that accepted calls there, and both prove themselves (proof_msg.h).  One listener serves all connections of a
 * process that have this address and port; another process that has it as well finds it taken, and its connection
 * stays on TCP.
 *
 *	meet.c		connections, and what becomes of them
 *	meet_dev.c	devices: one context for each local address
 *	meet_talk.c	what the two ends say to each other
 *	lone.c		whether a call whose server is known here by another address can mean this connection
 *
 * Locking: none, one thread at a time.  Callbacks run inside meet_begin(), meet_step() and meet_poll() only; they
 * may call meet_cancel(), and send.
 */
#ifndef XR_BRIDGE_MEET_H
#define XR_BRIDGE_MEET_H

#include <stdint.h>
#include "bridge.h"
#include "channel.h"
#include "config.h"
#include "path.h"
#include "proof.h"
#include "proof_msg.h"
#include "reason.h"

struct meet;

/* Of a connection whose ends have proved themselves. */
struct meet_result {
	uint8_t secret[PROOF_SECRET];	/* both know it, and nobody else: whatever else is to be agreed upon */
	uint32_t qpn, peer_qpn;		/* peer: 0 when the device does not know */
	char device[64];
	uint8_t gid[16], peer_gid[16];
};

struct meet_ops {
	/* From now on the channel is the flow's; what comes over it comes to the three below. */
	void (*up)(void *flow, struct xrdma_channel *ch, const struct meet_result *r);
	/* again_ms: when another attempt may do better; 0: none will.  The flow is forgotten. */
	void (*failed)(void *flow, enum xr_reason why, uint32_t again_ms);
	void (*message)(void *flow, struct xrdma_channel *ch, const struct xrdma_msg *msg);
	void (*sent)(void *flow, struct xrdma_channel *ch, uint64_t id);
	/* One-sided operations, in order; may be NULL. */
	void (*done)(void *flow, struct xrdma_channel *ch, uint64_t id);
	/* The flow is forgotten, the channel is no more. */
	void (*closed)(void *flow, struct xrdma_channel *ch, int error);
	/* A context is new: its options may be set, memory registered. */
	void (*opened)(void *arg, struct xrdma_context *ctx);
	/* ... and goes, with all of that; nothing of it is used any more. */
	void (*gone)(void *arg, struct xrdma_context *ctx);
};

struct meet_config {
	const char *device;		/* setting rdma_device: "auto", the name of a device; "shm": for tests */
	const uint8_t *key;		/* XR_KEY_LEN bytes, or NULL */
	int trust_fabric, software;	/* settings rdma_trust, rdma_software */
	enum xr_nat nat;		/* setting rdma_nat */
	int compare;			/* setting rdma_compare */
	uint64_t timeout;		/* ns: setting rendezvous_timeout */
	int huge_pages;			/* setting rdma_huge_pages */
	/* NULL, or as in bridge.h */
	void (*counted)(const uint64_t by[XR_BRIDGE_FIGURES]);
	/* lone_check(), or what a test puts in its place */
	int (*lone)(const struct xr_tuple *own, int trust_namespace);
};

int meet_open(struct meet **m, const struct meet_config *cfg, const struct meet_ops *ops, void *arg);
/* Cuts all channels, without callbacks but gone(). */
void meet_close(struct meet *m);

/* flow: the caller's name for it, once at a time.  What fails at once is told by failed() before the return. */
void meet_begin(struct meet *m, void *flow, const struct xr_tuple *t, int connecting);
/* The least round trip of its TCP connection, ns, which the way over RDMA is compared with; 0: not known. */
void meet_tcp(struct meet *m, void *flow, uint64_t rtt);
/* Nothing of it is under way: a moment to see how long a round trip takes.  Often nothing happens. */
void meet_quiet(struct meet *m, void *flow);
/* No more callbacks of this flow, which may be unknown; a channel that it has delivers what was sent, and closes. */
void meet_cancel(struct meet *m, void *flow);

/* Does what there is to do; ms until it has to be called again even if meet_fd() is not readable, -1: never. */
int meet_step(struct meet *m, uint64_t now);
int meet_fd(const struct meet *m);
/* Completions alone, without system calls and without arming: how many things happened. */
int meet_poll(struct meet *m);

/* ---- inside ---------------------------------------------------------------------------------- */

#define MEET_STRANGERS	64u		/* channels at a time, per context, of which it is not known what they want */
#define MEET_CALLS	16u		/* at a time, of one process */
#define MEET_WORD_NS	2000000000ull	/* a message is waited for so long */
#define MEET_PROBE_NS	100000000ull	/* between two round trips of connections that have moved */
#define MEET_TRANSLATED_MS 60000u	/* what a call may mean is not clear: that may pass, but hardly soon */
#define MEET_GONE_MS	100u		/* a device has just gone: it may come back */

enum meet_state {
	MEET_LISTENING,		/* host: nobody has called */
	MEET_ANSWERED,		/* host: waits for CONFIRM */
	MEET_WAITING,		/* caller: until it is time to call */
	MEET_CONNECTING,	/* caller: the channel is being made */
	MEET_CALLED,		/* caller: waits for ANSWER */
	MEET_PACING,		/* caller: has it, and sees how long the way is */
	MEET_UP,
};

struct meet_listener {
	struct meet_listener *next;
	struct xr_cm_id *id;
	uint8_t addr[16];
	uint16_t port;		/* network order, as in a tuple */
	uint32_t users;
};

struct meet_dev {
	struct meet_dev *next;
	struct meet *meet;
	uint16_t family;
	uint8_t addr[16];		/* local */
	struct xrdma_context *ctx;	/* NULL: none, for `why` */
	enum xr_reason why;
	uint64_t again, rest;		/* ns: when to look again, and when that is in vain */
	struct meet_listener *listeners;
	uint32_t strangers;
	uint64_t called;		/* ns: when somebody last did */
};

/* What a channel's user pointer is. */
struct meet_end {
	struct meet_flow *flow;		/* NULL: a stranger */
	struct meet_dev *dev;
	struct meet_end *next;		/* strangers, and flows, of a meet */
	struct xrdma_channel *ch;
	uint64_t deadline;
};

struct meet_flow {
	struct meet_flow *next;
	struct meet *meet;
	void *flow;
	struct xr_tuple tuple;
	enum meet_state state;
	struct meet_dev *dev;
	struct meet_listener *listener;
	struct meet_end *end;
	struct proof_talk talk;
	uint64_t begun, next_at, deadline;
	uint32_t tries;
	uint8_t calling;		/* counted in calls */
	uint8_t heard;			/* the peer's host answers over RDMA */
	uint8_t translated;		/* host: a call was refused that may have been its own */
	struct pace pace;
	uint64_t tcp;			/* ns: its round trip; 0: not known */
};

struct meet {
	struct meet_config cfg;
	uint8_t key[XR_KEY_LEN];
	struct meet_ops ops;
	void *arg;
	int epoll;
	struct meet_dev *devs;
	struct meet_flow *flows;
	struct meet_end *strangers;	/* and the ends of flows */
	uint32_t calls;			/* flows in CONNECTING or CALLED */
	struct path path;
	uint64_t probe_at, probe_look;	/* ns, cycles: not before */
	uint64_t memory[XR_BRIDGE_FIGURES];	/* as they were told */
	uint64_t before[XR_BRIDGE_FIGURES];	/* of contexts that are gone, what is counted */
};

/* --- meet.c --- */

void meet_failed(struct meet_flow *f, enum xr_reason why, uint32_t again_ms);
/* Why there is no memory, or no object of the device. */
enum xr_reason meet_memory_reason(void);
void meet_up(struct meet_flow *f);
/*
 * Who waits on this device for a call from the other end of `far`, as its caller sees it; NULL: nobody. *translated: it
 * is the one connection from the caller's peer that is waiting, but goes to another address than the caller has.
 */
struct meet_flow *meet_expected(struct meet_dev *d, const struct xr_tuple *far, int *translated);
struct meet_end *meet_end_new(struct meet_dev *d, struct xrdma_channel *ch, struct meet_flow *f);
/* The channel forgets its end. */
void meet_end_free(struct meet_end *e);
/* TCP is faster: the attempt, or what was made of it, ends. */
void meet_slower(struct meet_flow *f);
void meet_moved_slower(struct meet_flow *f);
/* A caller's channel came to nothing. */
void meet_call_failed(struct meet_flow *f, int error);

/* --- meet_dev.c --- */

/* The context for a local address: NULL, why, and when to ask again. */
struct meet_dev *meet_dev_get(struct meet *m, uint16_t family, const uint8_t addr[16], uint64_t now,
			      enum xr_reason *why, uint32_t *again_ms);
/* Those whose device is gone, and those that nobody uses. */
void meet_dev_close(struct meet_dev *d);
/* Tells what memory all of them have, when that has changed. */
void meet_dev_memory(struct meet *m);
int meet_listen(struct meet_dev *d, struct meet_flow *f);
void meet_unlisten(struct meet_flow *f);
int meet_call(struct meet_dev *d, struct meet_flow *f, struct xrdma_channel **ch);

/* --- meet_talk.c --- */

void meet_say_call(struct meet_flow *f);
/* A round trip of a flow that is not up yet; or NULL, the first is to begin. */
void meet_paced(struct meet_flow *f, const uint64_t *rtt);
/* A message before the flow is up. */
void meet_hear(struct meet_end *e, const struct xrdma_msg *msg);

#endif
