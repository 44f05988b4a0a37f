/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A discrete-event model of an incast: senders, each on a link of its own, send messages through one
 * switch to one receiver.  Deterministic: the same settings give the same numbers.
 *
 *	heap.c	events in order of time
 *	net.c	links, switch (shared buffer, ECN, PFC), and the reliable transport of the NICs
 *	dcqcn.c	rate control of the NICs: the baseline
 *	app.c	messages, and the flow control of the library (core/window_adapt)
 *	run.c	one run, and what is measured
 *	main.c	options, tables
 *
 * Times are picoseconds.  Names of packets: a "unit" is what is acknowledged as one, that is a message,
 * an announcement, or the answer to one READ.
 */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>
#include <stdint.h>
#include "core/window_adapt.h"

#define PS_PER_NS	1000ull
#define US		(1000 * PS_PER_NS)
#define MS		(1000 * US)
#define MTU		4096u
#define OVERHEAD	82u		/* Ethernet, IP, UDP, BTH, ICRC, preamble and gap of a packet */
#define MSG_HDR		32u		/* the library's, and what an announcement adds to it */
#define ANNOUNCE	64u
#define EAGER		4096u
#define FRAGMENT	65536u
#define UNITS		512u		/* of one flow, under way */
#define READS		16u
#define BINS		256u
#define ARRIVED		8192u	/* a program that is further behind than that makes no more */

enum mode { MODE_NONE, MODE_DCQCN, MODE_XRDMA, MODE_BOTH };

struct settings {
	enum mode mode;
	uint32_t senders, size, depth;	/* messages that a sender has posted and that are not complete */
	uint32_t load;			/* hundredths of the link that are asked for; 0: all that depth allows */
	uint32_t gbps;
	uint32_t pfc, ecn;		/* 1: on */
	uint32_t rtt_signal, ecn_signal;	/* what the library listens to */
	uint64_t buffer;		/* bytes of the switch */
	uint64_t delay;			/* of one link, one way, with what is at its end */
	uint64_t warm, time;		/* not measured; measured */
	uint64_t churn;			/* half of the senders leave at warm + churn, and are back after twice that */
	uint64_t seed;
};

struct result {
	double goodput;			/* Gb/s that arrived, without the headers of packets */
	double share;			/* of the bottleneck: packets that were of use, with their headers */
	double mean, p50, p99;		/* us from post to completion */
	double wire_mean, wire_p99;	/* us from the first byte on the wire to completion */
	double queue_mean, queue_max;	/* bytes in the switch, by time */
	double jain;
	uint64_t messages, drops, timeouts, retransmitted, pauses, marks;
	double paused;			/* share of all senders' time */
	double leave_ms, join_ms;	/* until the rest has the link and shares it fairly; < 0: never */
	uint64_t backlog;		/* messages that had come and were not complete at the end */
	uint64_t events;
};

enum ev_kind {
	EV_NIC, EV_SWITCH, EV_EGRESS, EV_RECEIVE, EV_ACK, EV_NAK, EV_CNP, EV_PAUSE, EV_RESUME, EV_ALPHA,
	EV_RATE, EV_RTO, EV_READ, EV_DONE, EV_POST, EV_PULL, EV_LEAVE, EV_JOIN, EV_BIN,
	EV_ARRIVE
};

struct packet {
	uint32_t psn, unit;
	uint16_t len;			/* payload */
	uint8_t last, marked, again;
};

struct event {
	uint64_t at;
	uint64_t order;
	uint32_t host;
	enum ev_kind kind;
	struct packet p;
	uint64_t arg;
};

struct heap {
	struct event *v;
	uint32_t n, room;
	uint64_t order;
};

void heap_push(struct heap *h, const struct event *e);
int heap_pop(struct heap *h, struct event *e);

enum unit_kind { UNIT_MESSAGE, UNIT_ANNOUNCE, UNIT_ANSWER };

struct unit {
	enum unit_kind kind;
	uint32_t len, psn, packets;
	uint64_t begun;			/* when it was given to the NIC */
	uint64_t wire;			/* when its first byte left; 0: not yet */
};

struct message {
	uint64_t posted, wire;
};

struct host {
	uint32_t num;
	uint8_t active;			/* it has work; one that left only finishes what it began */
	/* NIC */
	struct unit unit[UNITS];
	uint32_t una_unit, cur_unit, end_unit;
	uint32_t una, next, sent_to;	/* packets: not acked, to be sent, never sent */
	uint64_t free_at, wake_at, may_at;
	uint64_t rto_at;
	uint8_t paused;
	uint64_t paused_since;
	/* DCQCN */
	double rate, target, alpha;
	uint32_t timer_rounds, byte_rounds;
	uint64_t byte_count, timer_gen;
	uint8_t cnp_since_alpha;
	/* messages that the program has posted, in order; done <= given <= posted */
	struct message msg[256];
	uint32_t posted, given, done;
	uint64_t bytes, bin_bytes;	/* completed, payload */
	uint64_t binned[BINS];		/* the same of the last bins */
	/* with a load: when the program had a message, those that it has not posted yet */
	uint64_t *arrived;
	uint32_t arrivals, taken;
	struct xr_adapt tx;
	uint64_t post_at;		/* a timer of ours is set */
	/* the receiver's end of it */
	uint32_t expect;
	uint8_t nak_sent, unit_marked;
	uint64_t cnp_at;
	uint32_t announced, fetched;	/* messages */
	uint32_t asked, got;		/* bytes of the one that is asked for, that arrives */
	uint32_t completing;		/* all is here, the sender does not know yet */
	uint32_t reads;
	uint64_t read_at[READS];
	uint32_t read_len[READS], read_head, read_done;
	struct xr_adapt rx;
	uint64_t pull_at;
	/* of the switch: bytes that came in here */
	uint64_t ingress;
	uint8_t xoff;
};

struct queued {
	uint32_t host;
	struct packet p;
};

struct sim {
	struct settings set;
	struct heap heap;
	uint64_t now;
	double ps_per_byte;
	struct host *host;
	/* switch */
	struct queued *fifo;
	uint32_t fifo_head, fifo_tail, fifo_mask;
	uint64_t buffered, buffered_since;
	uint8_t egress_busy;
	uint64_t rng;
	/* the receiver's context */
	struct xr_budget budget;
	struct xr_adapt context;
	/* what is measured */
	uint8_t measuring;
	uint32_t *lat, *wire;
	uint64_t nlat, lat_room;
	uint64_t useful, payload;	/* bytes that arrived in order: with headers, without */
	double queue_area;
	uint64_t left_at, joined_at;
	uint32_t bins, since_bin;
	struct result r;
};

static inline void sim_at(struct sim *s, uint64_t at, enum ev_kind kind, uint32_t host, uint64_t arg)
{
	struct event e = { .at = at, .kind = kind, .host = host, .arg = arg };

	heap_push(&s->heap, &e);
}

static inline uint64_t sim_random(struct sim *s)
{
	s->rng ^= s->rng << 13;
	s->rng ^= s->rng >> 7;
	s->rng ^= s->rng << 17;
	return s->rng;
}

/* A message of these settings with the headers of its packets. */
static inline uint64_t sim_wire_bytes(const struct sim *s)
{
	return s->set.size + MSG_HDR + (uint64_t)OVERHEAD * ((s->set.size + MTU - 1) / MTU);
}

static inline int sim_dcqcn(const struct sim *s)
{
	return s->set.mode == MODE_DCQCN || s->set.mode == MODE_BOTH;
}

static inline int sim_xrdma(const struct sim *s)
{
	return s->set.mode == MODE_XRDMA || s->set.mode == MODE_BOTH;
}

/* --- net.c --- */

/* Hands len bytes to the NIC of a sender. */
void net_send(struct sim *s, struct host *h, enum unit_kind kind, uint32_t len);
void net_event(struct sim *s, const struct event *e);
/* One way without any queue: acknowledgements and READ requests meet none. */
uint64_t net_back(const struct sim *s);
/* Where there is room for one unit more. */
int net_room(const struct host *h);

/* --- dcqcn.c --- */

void dcqcn_start(struct sim *s, struct host *h);
void dcqcn_cnp(struct sim *s, struct host *h);
void dcqcn_sent(struct sim *s, struct host *h, uint32_t bytes);
void dcqcn_event(struct sim *s, const struct event *e);

/* --- app.c --- */

void app_start(struct sim *s, struct host *h);
/* The program posts as much as it may, the library gives it to the NIC as it may. */
void app_progress(struct sim *s, struct host *h);
/* A unit is acknowledged (sender); it is complete (receiver). */
void app_acked(struct sim *s, struct host *h, const struct unit *u, int marked);
void app_received(struct sim *s, struct host *h, const struct unit *u, int marked);
void app_event(struct sim *s, const struct event *e);
/* With a load: a message comes, sooner or later; it has come. */
void app_expect(struct sim *s, struct host *h);
void app_arrive(struct sim *s, struct host *h);

/* --- run.c --- */

void sim_defaults(struct settings *set);
/* -1: settings that make no sense, or no memory. */
int sim_run(const struct settings *set, struct result *r);
void sim_complete(struct sim *s, struct host *h, const struct message *m);

#endif
