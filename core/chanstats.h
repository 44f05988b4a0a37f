/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Statistics of channels that other processes read while this one lives or after it crashed: those of programs on the
 * public interface, whose channels are no connections of the preload object and do not stand in its segment.
 *
 * A file beside that of the statistics (segfile.h), made at the first context of the process and removed with the last
 * one, or at exit.  A channel has a slot there, or, without a file or without room, memory of its own that counts in
 * the same way.
 *
 * Writers and cost: a slot has one writer, the thread of its context; counters are counted in place, by a load and a
 * store.  Gauges and what the context has are written when a context is about to sleep, and by one that spins about
 * once a millisecond, for the channels alone that something happened to.  Totals: any thread, by atomic addition.
 * Counters are aligned 64-bit words and never torn.  Identity is read under the slot's number: odd while it changes.
 */
#ifndef XR_CHANSTATS_H
#define XR_CHANSTATS_H

#include <stdint.h>
#include "atomic.h"
#include "stats.h"

#define XR_CHANSTATS_MAGIC	0x3153484352525858ull	/* "XXRRCHS1" in little-endian order */
#define XR_CHANSTATS_VERSION	1u
#define XR_CHANSTATS_SUFFIX	".channels"		/* behind the name of the statistics */
#define XR_CHANSTATS_SLOTS	16384u
#define XR_CHANSTATS_OFF	4096u
#define XR_CHANSTATS_NAME	80u

/* X(symbol, name, gauge, sentence): of a channel; the names are those of struct xrdma_channel_stats.  Append only. */
#define XR_CHANSTATS_PUBLIC(X)									\
	X(MSGS_SENT, msgs_sent, 0, "messages sent")						\
	X(BYTES_SENT, bytes_sent, 0, "bytes of messages sent")					\
	X(MSGS_RECEIVED, msgs_received, 0, "messages received")					\
	X(BYTES_RECEIVED, bytes_received, 0, "bytes of messages received")			\
	X(FETCHED, fetched, 0, "messages received that were READ from memory of the sender")	\
	X(CONTROL_SENT, control_sent, 0, "acknowledgements and closes sent alone")		\
	X(CONTROL_RECEIVED, control_received, 0, "acknowledgements and closes received alone")	\
	X(WAITED, waited, 0, "messages that had to wait for credit of the peer")		\
	X(REFUSED, refused, 0, "messages that were not taken, as too many waited")		\
	X(PROBES, probes, 0, "keepalive probes sent")						\
	X(UNACKED_MSGS, unacked_msgs, 1, "messages that the peer has not processed")		\
	X(UNACKED_BYTES, unacked_bytes, 1, "bytes of these")					\
	X(QUEUED_MSGS, queued_msgs, 1, "messages that wait for credit of the peer")		\
	X(PEER_MSGS, peer_msgs, 1, "messages that the peer lets be sent ahead")			\
	X(PEER_BYTES, peer_bytes, 1, "bytes that the peer lets be sent ahead")			\
	X(NET_BYTES, net_bytes, 1, "bytes that the network is thought to take of SENDs")	\
	X(NET_FETCH_BYTES, net_fetch_bytes, 1, "bytes that the network is thought to take of READs") \
	X(HELD, held, 0, "times that something waited for the network")				\
	X(MARKED, marked, 0, "marks of congestion")						\
	X(RNR, rnr, 0, "times that the peer had no receive")					\
	X(CUTS, cuts, 0, "times that a window for the network was made smaller")		\
	X(RECV_MSGS, recv_msgs, 1, "messages that this end lets be sent ahead")			\
	X(RECV_BYTES, recv_bytes, 1, "bytes of memory that receives hold")			\
	X(RESIZED, resized, 0, "times that the receives were changed")				\
	X(FILLERS, fillers, 0, "SENDs of no bytes, for receives of the peer that go")		\
	X(RTT_NS, rtt_ns, 1, "smoothed time from post to completion, nanoseconds; 0 not measured")

#define XR_CHANSTATS_TABLE(X)									\
	XR_CHANSTATS_PUBLIC(X)									\
	X(ANNOUNCED, announced, 0, "messages sent that did not travel in their SEND")			\
	X(UNREAD_MSGS, unread_msgs, 1, "messages that have arrived and are not delivered")	\
	X(PLACED, placed, 0, "messages received that the sender WROTE into memory of this end")

enum xr_chanstat {
#define XR_CHANSTATS_ENUM(SYM, name, gauge, text) XR_CHAN_##SYM,
	XR_CHANSTATS_TABLE(XR_CHANSTATS_ENUM)
#undef XR_CHANSTATS_ENUM
	XR_CHAN_COUNT
};

/* X(symbol, name, gauge, sentence): of the process.  Append only. */
#define XR_CHANPROC_TABLE(X)									\
	X(CONTEXTS, contexts, 1, "contexts")							\
	X(OPENED, channels_opened, 0, "channels that were begun or asked for by a peer")	\
	X(CLOSED, channels_closed, 0, "channels that are gone")					\
	X(UNLISTED, channels_unlisted, 0, "channels that had no room in the list")		\
	X(QP_HITS, qp_hits, 0, "channels over a queue pair that was used before")		\
	X(QP_MISSES, qp_misses, 0, "channels over a new queue pair")				\
	X(QP_CACHED, qp_cached, 1, "queue pairs that wait to be used again")			\
	X(QP_DROPPED, qp_dropped, 0, "queue pairs that could not be kept")			\
	X(STALE, stale, 0, "completions of earlier users of a queue pair")			\
	X(POOL_BYTES, pool_bytes, 1, "registered memory of the contexts")			\
	X(POOL_BUFFERS, pool_buffers, 1, "buffers of it in use")				\
	X(POOL_HUGE, pool_huge, 1, "bytes of it in huge pages")					\
	X(HUGE_MISSED, huge_missed, 0, "pieces of it that there were no huge pages for")	\
	X(POOL_FAR, pool_far, 1, "bytes of it, and of xrdma_alloc_mem(), on another node")		\
	X(NODE_REFUSED, node_refused, 0, "pieces of it whose node could not be chosen")

enum xr_chanproc {
#define XR_CHANPROC_ENUM(SYM, name, gauge, text) XR_CHANPROC_##SYM,
	XR_CHANPROC_TABLE(XR_CHANPROC_ENUM)
#undef XR_CHANPROC_ENUM
	XR_CHANPROC_COUNT
};

#define XR_CHANSTATS_ROOM	40u	/* counters of a slot */

enum xr_chanstats_state {	/* of a slot's channel */
	XR_CHANSTATS_FREE,
	XR_CHANSTATS_OPENING,
	XR_CHANSTATS_OPEN,
	XR_CHANSTATS_CLOSING,	/* the program is out of it, what it had sent is being delivered */
	XR_CHANSTATS_ENDED,	/* its queue pair is being drained */
	XR_CHANSTATS_STATES
};

struct xr_chanstats_ident {
	uint64_t no;		/* tells channels of the process apart */
	uint64_t opened_ns;	/* CLOCK_MONOTONIC */
	uint32_t context;	/* likewise contexts */
	uint8_t role;		/* enum xr_role of config.h */
	uint8_t carrier;	/* enum xr_carrier */
	uint8_t zero[2];
	char device[XR_STATS_DEVICE];
	/* client: what it is connected to; server: where the peer came in, or over a network the peer's address */
	char name[XR_CHANSTATS_NAME];
};

struct xr_chanstats_slot {
	_Atomic uint32_t taken;		/* by a channel, or one that is letting go of it */
	_Atomic uint32_t seq;		/* odd while ident changes, and while counters go to the totals */
	_Atomic uint32_t state;		/* enum xr_chanstats_state */
	_Atomic uint32_t qpn, peer_qpn;	/* queue pairs, 0: not known */
	uint32_t zero;
	struct xr_chanstats_ident ident;
	uint32_t spare[10];
	_Atomic uint64_t v[XR_CHANSTATS_ROOM];
};

struct xr_chanstats_seg {
	_Atomic uint64_t magic;		/* stored last, with release */
	uint32_t version, header_size, slot_size, slots_off;
	uint32_t n_counters, n_proc;	/* of the writer */
	uint32_t max_slots;
	_Atomic uint32_t used;		/* slots below this index were in use once */
	int32_t pid;
	uint32_t uid;
	uint64_t pid_ns, start_time;	/* as in the statistics */
	uint64_t opened_ns;
	uint64_t exe_dev, exe_ino;	/* the executable: who has executed another one has left this behind */
	_Atomic uint32_t exited;
	uint32_t zero;
	char program[128], xrdma_version[32];
	_Atomic uint64_t total[XR_CHANSTATS_ROOM];	/* of channels that are gone, counters alone */
	_Atomic uint64_t proc[XR_CHANSTATS_ROOM];
};

_Static_assert(sizeof(struct xr_chanstats_ident) == 128, "layout");
_Static_assert(sizeof(struct xr_chanstats_slot) == 512, "layout");
_Static_assert(sizeof(struct xr_chanstats_seg) <= XR_CHANSTATS_OFF, "layout");
_Static_assert(XR_CHAN_COUNT <= XR_CHANSTATS_ROOM && XR_CHANPROC_COUNT <= XR_CHANSTATS_ROOM, "room");

/*
 * A user more of the process's file, which is made for the first one, where the configuration says.  0, or -errno:
 * there is none, which was counted and said; nothing of what is below is to be called then.  -ECANCELED: it is
 * switched off (the setting stats).  Any thread.
 */
int xr_chanstats_open(void);
/* One less; the file goes with the last one. */
void xr_chanstats_close(void);

/* A slot, counters zero, its state OPENING; NULL: there is no room, which is counted. */
struct xr_chanstats_slot *xr_chanstats_take(const struct xr_chanstats_ident *ident);
/* Counters (of a slot, or of a channel without one) go to the totals, and the slot, unless NULL, back. */
void xr_chanstats_give(struct xr_chanstats_slot *s, _Atomic uint64_t *v);
/* Adds to what the process has; of a gauge also what is below zero, as an unsigned number. */
void xr_chanstats_add(enum xr_chanproc id, uint64_t n);

/* Name of the file, or "" without one. */
const char *xr_chanstats_path(void);

#endif
