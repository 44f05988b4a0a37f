/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_STATS_H
#define XR_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "atomic.h"
#include "reason.h"

/*
 * Statistics that other processes read while this one lives or after it crashed.
 *
 * File: <stats_dir>/xrdma-<euid>/<pid>.<starttime>, directory 0700, file 0600; a
 * directory that is not ours, or is open to others, is refused. Sparse, mapped once,
 * shared. Pages are committed before they are used, so a full file system can never
 * turn into SIGBUS. If anything fails there are no statistics: the same calls then
 * count into private memory and flow slots are NULL, which every function accepts.
 *
 * Writers and cost:
 *  - process totals and per-reason counters: any thread, one relaxed fetch_add (about
 *    5 ns): for events, not for every message.
 *  - flow slots: one writer per group of fields, so a counter is a relaxed load and a
 *    relaxed store (about 1 ns, no lock prefix). The tx group belongs to whoever holds
 *    the flow's send lock, the rx group to the holder of its receive lock, the rest to
 *    the holder of the flow's control lock.
 *  - xr_stats_flow_free() adds the slot's counters to the totals.
 * Counters are aligned 64-bit words and are never torn. Identity fields are read under
 * the slot's sequence number: odd while they change.
 */
#define XR_STATS_MAGIC	 0x3153414d44525858ull /* "XXRDMAS1" in little-endian order */
#define XR_STATS_VERSION 7
#define XR_STATS_TUNES	5u /* settings that operators can change: tune.h */
#define XR_STATS_COUNTER_ROOM 128 /* counters and reasons each; grow into the room */
#define XR_STATS_FLOWS_OFF    4096
#define XR_STATS_BELL	 ".bell" /* the FIFO beside the file: wakes the process to look at `control` */

/*
 * X(symbol, name, sentence): totals of the process. Append only. FLOWS_SHM, FLOWS_RDMA and
 * what flow slots count (bytes, messages, RNR) are summed up by the reader, who takes what is eager for the rest of the
 * messages that were sent.
 */
#define XR_STATS_TABLE(X)                                                                          \
	X(FLOWS_OPENED, "flows_opened", "TCP connections begun or accepted; less those closed, what is open now") \
	X(FLOWS_CLOSED, "flows_closed", "of these, connections that are closed")                                \
	X(FLOWS_UPGRADED, "flows_upgraded", "connections moved to a fabric")                       \
	X(FLOWS_SHM, "flows_now_shm", "connections on shared memory now")                          \
	X(FLOWS_RDMA, "flows_now_rdma", "connections on RDMA now")                                 \
	X(UPGRADE_ATTEMPTS, "upgrade_attempts", "attempts to upgrade a connection")               \
	X(UPGRADE_FAILED, "upgrade_failed", "attempts to upgrade a connection that ended on TCP")  \
	X(HANDSHAKE_REFUSED, "handshake_refused", "calls to a rendezvous point that were refused") \
	X(RETREATS, "retreats", "connections moved back to TCP")                                   \
	X(BYTES_TX_TCP, "bytes_tx_tcp", "bytes sent over TCP, not by unlisted connections")        \
	X(BYTES_RX_TCP, "bytes_rx_tcp", "bytes received over TCP, not by unlisted connections")    \
	X(BYTES_TX_SHM, "bytes_tx_shm", "bytes sent over shared memory")                           \
	X(BYTES_RX_SHM, "bytes_rx_shm", "bytes received over shared memory")                       \
	X(BYTES_TX_RDMA, "bytes_tx_rdma", "bytes sent over RDMA")                                  \
	X(BYTES_RX_RDMA, "bytes_rx_rdma", "bytes received over RDMA")                              \
	X(MSGS_TX, "msgs_tx", "sends that a fabric carried")                                       \
	X(MSGS_RX, "msgs_rx", "receives that a fabric served")                                     \
	X(RNR, "rnr", "receiver-not-ready events")                                                 \
	X(DOORBELLS_TX, "doorbells_sent", "wake-ups sent to peers")                                \
	X(SPINS_HIT, "spins_hit", "busy waits that ended with work")                               \
	X(SPINS_MISSED, "spins_missed", "busy waits that ended in sleep")                          \
	X(PAIRS, "peer_processes", "other processes that memory is shared with now")               \
	X(CONFIG_WARNINGS, "config_warnings", "mistakes found in the configuration")               \
	X(STATS_ERRORS, "stats_errors", "statistics that could not be kept")                       \
	X(INTERNAL_ERRORS, "internal_errors", "internal checks that failed")                       \
	X(LOG_LOST, "log_lines_lost", "lines that neither log_file nor standard error took")           \
	X(CARETAKERS, "caretakers", "processes left behind to finish closed connections")          \
	X(UNDELIVERED, "undelivered", "closed connections reset because bytes could not be delivered") \
	X(LATE_WAKES, "late_wakes", "sleepers that nobody could ring, found by the look once a second") \
	X(DESCRIPTORS_SPARED, "descriptors_spared",                                                \
	  "descriptors of xrdma closed because the program ran short of them")                     \
	X(MSGS_EAGER, "msgs_eager", "sends whose bytes lay in the slots themselves")               \
	X(MSGS_RENDEZVOUS, "msgs_rendezvous", "sends whose bytes the receiver fetched")             \
	X(MSGS_COALESCED, "msgs_coalesced", "sends added to one that the receiver had not come to yet") \
	X(QP_CACHE_HITS, "qp_cache_hits", "upgrades over queues that a connection had used before")  \
	X(QP_CACHE_MISSES, "qp_cache_misses", "upgrades over new queues")                            \
	X(LINKS_MADE, "links_made", "times that memory was shared anew with another process")       \
	X(LINKS_REUSED, "links_reused",                                                            \
	  "times that memory kept for some seconds after the last connection was found good") \
	X(KEEPALIVE_PROBES, "keepalive_probes", "looks at the other end of connections that were idle") \
	X(LOCK_WAITS, "lock_waits", "times that a thread found a lock of xrdma held by another one") \
	X(RDMA_MEMORY, "rdma_memory", "bytes of registered memory for RDMA now")                   \
	X(RDMA_MEMORY_HUGE, "rdma_memory_huge", "bytes of that in huge pages")                     \
	X(RDMA_MEMORY_FAR, "rdma_memory_far",                                                      \
	  "bytes of that on another node of the machine than the device or the thread that uses it") \
	X(RDMA_HUGE_MISSED, "rdma_huge_missed", "pieces of that for which there were no huge pages") \
	X(RDMA_NODE_REFUSED, "rdma_node_refused", "pieces of that whose node could not be chosen")

enum xr_stat {
#define XR_STATS_ENUM(sym, name, text) XR_STAT_##sym,
	XR_STATS_TABLE(XR_STATS_ENUM)
#undef XR_STATS_ENUM
	XR_STAT_COUNT
};

enum xr_carrier {
	XR_CARRIER_TCP,
	XR_CARRIER_SHM,
	XR_CARRIER_RDMA,
	XR_CARRIER_COUNT
};

enum xr_stats_state { /* of a slot; 0 is a free one */
	XR_STATE_FREE,
	XR_STATE_ESTAB,
	XR_STATE_UPGRADING,
	XR_STATE_RETREATING,
	XR_STATE_FIN_TX, /* our direction is closed */
	XR_STATE_FIN_RX, /* the peer's direction is closed */
	XR_STATE_CLOSING, /* the program closed it; bytes are being delivered */
	XR_STATE_LISTEN,
	XR_STATE_COUNT
};

#define XR_STATS_DEVICE 24	/* bytes of a device's name */
#define XR_STATS_HOLDS 4	/* devices that an operator can take out of use */
#define XR_STATS_SHM "shm"	/* the name of shared memory, as a device */

struct xr_stats_addr {
	uint8_t addr[16]; /* network order; the first 4 bytes for AF_INET */
	uint16_t port;	  /* host order */
	uint16_t family;  /* AF_INET, AF_INET6; 0: none */
};

/* Identity: under seq. Multiples of 8 bytes, no padding, same layout on every ABI. */
/* What two threads may write at once, or a child of the process, is atomic: a reader then gets one or the other. */
struct xr_stats_ident {
	struct xr_stats_addr local, peer; /* 40 bytes */
	uint64_t inode;			  /* of the socket; 0 unknown */
	uint64_t opened_ns;		  /* CLOCK_MONOTONIC: slot taken */
	_Atomic uint64_t upgraded_ns;	  /* last upgrade; 0 never */
	_Atomic int32_t fd;
	_Atomic uint32_t peer_pid; /* 0 unknown */
	_Atomic uint8_t state;	   /* enum xr_stats_state */
	uint8_t role;		   /* enum xr_role of config.h */
	_Atomic uint8_t carrier_tx, carrier_rx;
	_Atomic uint16_t reason;      /* why it is on TCP now; 0 on a fabric */
	_Atomic uint16_t last_reason; /* of the last failed attempt or retreat */
};

/* One direction. Written under the flow's send (receive) lock only. */
struct xr_stats_dir {
	_Atomic uint64_t bytes[XR_CARRIER_COUNT];
	_Atomic uint64_t msgs;
	_Atomic uint64_t queue;	 /* gauge: bytes sent and not yet consumed / not yet read */
	_Atomic uint64_t window; /* gauge: bytes that may be in flight */
	_Atomic uint32_t slots;	 /* gauge: ring slots */
	_Atomic uint32_t credits; /* gauge: of them usable now */
	_Atomic uint64_t rnr;	 /* waits for a slot or for window */
	_Atomic uint64_t base;	 /* bytes[] of the fabric when it took the direction over last */
	_Atomic uint64_t twice;	 /* bytes that went over the kernel socket after the fabric: not in bytes[] of TCP */
	_Atomic uint64_t rendezvous; /* of msgs sent: by reference to the sender's memory */
	_Atomic uint64_t coalesced;  /* of msgs sent: added to the one before */
	_Atomic uint64_t probes; /* rx: looks at the peer while nothing came; by whoever sleeps, so an atomic add */
};

/* Of a flow on RDMA, or that was: written when it moves there, not under seq but while qpn is 0. */
struct xr_stats_rdma {
	_Atomic uint32_t qpn, peer_qpn;	/* qpn 0: none, or they change */
	uint8_t gid[16];		/* of the device that carries it */
};

/* Written under the flow's control lock only. */
struct xr_stats_ctl {
	_Atomic uint64_t turns;
	_Atomic uint64_t attempts;
	_Atomic uint64_t upgrades;
	_Atomic uint64_t retreats;
};

struct xr_stats_flow {
	_Atomic uint32_t seq; /* odd while ident changes */
	_Atomic uint32_t next_free;
	struct xr_stats_ident ident;
	struct xr_stats_ctl ctl;
	_Atomic uint32_t hold; /* written by operators: not 0: it shall be on TCP */
	_Atomic uint32_t again_ms; /* CLOCK_MONOTONIC, modulo 2^32: may leave TCP again; 0: does not wait */
	_Alignas(128) struct xr_stats_dir tx;
	struct xr_stats_rdma rdma;
	_Alignas(128) struct xr_stats_dir rx;
	char device[XR_STATS_DEVICE];	/* as rdma */
};

struct xr_stats_header {
	_Atomic uint64_t magic; /* stored last, with release */
	uint32_t version;
	uint32_t header_size; /* sizeof(struct xr_stats_header) */
	uint32_t flow_size;   /* sizeof(struct xr_stats_flow) */
	uint32_t flows_off;   /* XR_STATS_FLOWS_OFF */
	uint32_t n_counters;  /* XR_STAT_COUNT of the writer */
	uint32_t n_reasons;   /* XR_REASON_COUNT of the writer */
	uint32_t max_flows;   /* slots that the file has room for */
	_Atomic uint32_t flows_used; /* slots below this index were in use once */
	uint64_t pid_ns;	     /* inode of the PID namespace; 0 unknown */
	uint64_t start_time;	     /* field 22 of /proc/PID/stat: clock ticks since boot */
	uint64_t opened_ns;	     /* CLOCK_MONOTONIC */
	int32_t pid;
	uint32_t uid; /* effective, when it was made */
	_Atomic uint32_t helper_thread; /* 1 while a helper thread runs */
	_Atomic uint32_t exited;	/* 1: closed in order */
	/* written by operators (xr-stat), obeyed by the process: */
	_Atomic uint32_t control;	/* changes after each change of a `hold` or `tune` */
	_Atomic uint32_t hold;		/* not 0: every flow shall be on TCP */
	_Atomic uint32_t off;		/* enum xr_reason: why no flow at all can leave TCP; 0: some can */
	uint32_t zero;
	char program[128];		/* base name of the executable */
	char xrdma_version[32];
	_Atomic uint64_t tune[XR_STATS_TUNES]; /* written by operators, as `control` above */
	/* likewise: names of devices, with zeroes behind, whose flows shall be on TCP */
	_Atomic uint64_t hold_device[XR_STATS_HOLDS][XR_STATS_DEVICE / 8];
};

struct xr_stats_segment {
	struct xr_stats_header h;
	_Alignas(512) _Atomic uint64_t counter[XR_STATS_COUNTER_ROOM];
	_Atomic uint64_t reason[XR_STATS_COUNTER_ROOM]; /* times a flow got this reason */
	/* of these, connections that have no slot; NONE: there was no room for one */
	_Atomic uint64_t unlisted[XR_STATS_COUNTER_ROOM];
};

_Static_assert(sizeof(struct xr_stats_addr) == 20, "layout");
_Static_assert(sizeof(struct xr_stats_ident) == 80, "layout");
_Static_assert(sizeof(struct xr_stats_dir) == 104, "layout");
_Static_assert(sizeof(struct xr_stats_rdma) == 24, "layout");
_Static_assert(sizeof(struct xr_stats_flow) == 384, "layout");
_Static_assert(sizeof(struct xr_stats_segment) <= XR_STATS_FLOWS_OFF, "layout");
_Static_assert(XR_STAT_COUNT <= XR_STATS_COUNTER_ROOM, "room");
_Static_assert(XR_REASON_COUNT <= XR_STATS_COUNTER_ROOM, "room");

/* Never NULL: private memory until xr_stats_open() succeeded. */
extern struct xr_stats_segment *xr_stats_seg __attribute__((visibility("hidden")));

/*
 * Makes the segment; to be called lazily, at the first flow. dir is the stats_dir
 * setting, program the path of the executable, max_flows the largest number of slots
 * (lowered to what RLIMIT_FSIZE allows). Idempotent: later calls return the first
 * result at the price of one load. 0 or -errno: -EACCES a directory that is not ours,
 * -ENOSPC, ... The failure is counted and logged once. Not async-signal-safe while
 * the first call runs (a second caller gets -EALREADY and no statistics meanwhile).
 */
int xr_stats_open(const char *dir, const char *program, uint32_t max_flows);

/* Marks the end and unlinks the file: at clean exit. The mapping stays usable. */
void xr_stats_close(void);

/*
 * In the child of a fork, before it counts: lets go of the parent's segment. All
 * addresses stay valid (they become private zero pages), so slots of inherited flows
 * may still be written to, in vain; they must not be freed into the new segment, so
 * forget them. xr_stats_open() makes a segment of the child's own afterwards, with what
 * operators had asked of the parent until then (hold, hold_device, tune, control); before,
 * xr_stats_now() has what they had asked until the fork. Not for vfork children.
 * Async-signal-safe.
 */
void xr_stats_after_fork(void);

/*
 * In a child: the slot of a connection with this inode that the parent goes on showing, in
 * place of the zero pages at f, to be changed under the same locks as by the parent. NULL:
 * its segment is gone, or is not that of the process that f was of, or the slot is another's.
 * A few system calls.
 */
struct xr_stats_map {
	void *at;
	size_t len;
};
struct xr_stats_flow *xr_stats_parent_map(const struct xr_stats_flow *f, uint64_t inode, struct xr_stats_map *m);
void xr_stats_parent_unmap(struct xr_stats_map *m);

/* Name of the file, or "" without one. For --check and tests. */
const char *xr_stats_path(void);

/*
 * A slot for a flow in state XR_STATE_ESTAB, counters zero; NULL when there are none.
 * Lock-free, about 50 ns; async-signal-safe. local and peer may be NULL.
 */
struct xr_stats_flow *xr_stats_flow_alloc(int fd, uint64_t inode, unsigned int role,
					  const struct sockaddr *local,
					  const struct sockaddr *peer);

/* Gives the slot back, its counters to the totals. Nobody may write to it any more. */
void xr_stats_flow_free(struct xr_stats_flow *f);

void xr_stats_addr_set(struct xr_stats_addr *a, const struct sockaddr *sa);

/* The process's counters; relaxed everywhere below: a count orders nothing. */
static inline struct xr_stats_segment *xr_stats_now(void)
{
	return __atomic_load_n(&xr_stats_seg, __ATOMIC_RELAXED);
}

static inline void xr_stats_add(enum xr_stat id, uint64_t n)
{
	atomic_fetch_add_explicit(&xr_stats_now()->counter[id], n, memory_order_relaxed);
}

static inline void xr_stats_sub(enum xr_stat id, uint64_t n)
{
	atomic_fetch_sub_explicit(&xr_stats_now()->counter[id], n, memory_order_relaxed);
}

static inline uint64_t xr_stats_get(enum xr_stat id)
{
	return xr_load_relaxed(&xr_stats_now()->counter[id]);
}

/* Single writer of *p: see the groups above. */
static inline void xr_stats_inc(_Atomic uint64_t *p, uint64_t n)
{
	xr_count(p, n);
}

/*
 * One send or receive of a flow: n bytes, and 1 message on a fabric. The direction's lock
 * is held. What the kernel carries past the hooks is not counted here: readers ask the kernel
 * for all bytes of an open socket, less `twice`, and the writer does when it is closed.
 */
static inline void xr_stats_tx(struct xr_stats_flow *f, enum xr_carrier c, uint64_t n)
{
	if (f) {
		xr_stats_inc(&f->tx.bytes[c], n);
		if (c != XR_CARRIER_TCP)
			xr_stats_inc(&f->tx.msgs, 1);
	}
}

static inline void xr_stats_rx(struct xr_stats_flow *f, enum xr_carrier c, uint64_t n)
{
	if (f) {
		xr_stats_inc(&f->rx.bytes[c], n);
		if (c != XR_CARRIER_TCP)
			xr_stats_inc(&f->rx.msgs, 1);
	}
}

/* Bytes that a fabric had carried (and counted) go over the kernel socket once more. */
static inline void xr_stats_tx_twice(struct xr_stats_flow *f, uint64_t n)
{
	if (f)
		xr_stats_inc(&f->tx.twice, n);
}

static inline void xr_stats_rx_twice(struct xr_stats_flow *f, uint64_t n)
{
	if (f)
		xr_stats_inc(&f->rx.twice, n);
}

/* A fabric takes the direction over: its bytes count anew. */
static inline void xr_stats_tx_base(struct xr_stats_flow *f, enum xr_carrier c)
{
	if (f)
		xr_store_relaxed(&f->tx.base, xr_load_relaxed(&f->tx.bytes[c]));
}

static inline void xr_stats_rx_base(struct xr_stats_flow *f, enum xr_carrier c)
{
	if (f)
		xr_store_relaxed(&f->rx.base, xr_load_relaxed(&f->rx.bytes[c]));
}

static inline void xr_stats_gauge(_Atomic uint64_t *p, uint64_t v)
{
	xr_store_relaxed(p, v);
}

static inline void xr_stats_gauge32(_Atomic uint32_t *p, uint32_t v)
{
	xr_store_relaxed(p, v);
}

/*
 * Brackets of a change of f->ident, under the flow's control lock. For example
 *	xr_stats_ident_begin(f);
 *	xr_store_relaxed(&f->ident.carrier_tx, XR_CARRIER_SHM);
 *	xr_stats_ident_end(f);
 * f must not be NULL. A signal handler may read the segment in between, not change it.
 */
static inline void xr_stats_ident_begin(struct xr_stats_flow *f)
{
	/*
	 * An addition, not a store: the two directions of a flow may come at once, from the two threads that
	 * hold their locks, and the number must be even at rest.  What a reader gets then may be of both.
	 */
	atomic_fetch_add_explicit(&f->seq, 1, memory_order_relaxed);
	/* the odd number must be visible before any field of the change */
	atomic_thread_fence(memory_order_release);
}

static inline void xr_stats_ident_end(struct xr_stats_flow *f)
{
	/* release: all fields before the even number */
	atomic_fetch_add_explicit(&f->seq, 1, memory_order_release);
}

/*
 * Common changes of the identity, f may be NULL; each is one bracket. What is counted is
 * the slot's retreats: when the second of both directions is back on TCP.
 */
void xr_stats_flow_state(struct xr_stats_flow *f, enum xr_stats_state state);
/* The program has closed it: XR_STATE_CLOSING, and no descriptor any more. */
void xr_stats_flow_closing(struct xr_stats_flow *f);
void xr_stats_flow_reason(struct xr_stats_flow *f, enum xr_reason reason);
/* It may leave TCP again from this time on; 0: nobody knows when, or it has. */
void xr_stats_flow_again(struct xr_stats_flow *f, uint64_t at_ns);
void xr_stats_flow_carrier(struct xr_stats_flow *f, enum xr_carrier tx, enum xr_carrier rx,
			   uint32_t peer_pid);
/* 1: an operator has taken this device out of use. */
int xr_stats_device_held(const struct xr_stats_header *h, const char *name);
/* What carries it when its carrier is RDMA. */
void xr_stats_flow_rdma(struct xr_stats_flow *f, const char *device, const uint8_t gid[16],
			uint32_t qpn, uint32_t peer_qpn);

/* Counts a reason; what a flow shows of it is set by xr_stats_flow_reason(). */
static inline void xr_stats_reason(enum xr_reason reason)
{
	unsigned int i = (unsigned int)reason % XR_STATS_COUNTER_ROOM;

	atomic_fetch_add_explicit(&xr_stats_now()->reason[i], 1, memory_order_relaxed);
}

/* Counts a connection that xr-stat cannot list, because it never gets a slot. */
static inline void xr_stats_unlisted(enum xr_reason reason)
{
	unsigned int i = (unsigned int)reason % XR_STATS_COUNTER_ROOM;

	atomic_fetch_add_explicit(&xr_stats_now()->unlisted[i], 1, memory_order_relaxed);
}

/* No flow of this process leaves TCP, for this reason. */
static inline void xr_stats_off(enum xr_reason reason)
{
	xr_store_relaxed(&xr_stats_now()->h.off, (uint32_t)reason);
}

#endif /* XR_STATS_H */
