/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the time of a message went: records that other processes read (tools/trace_read.c) while this one
 * lives or after it crashed.
 *
 * A message that is traced has a trace id (16 bytes, W3C Trace Context), which it may share with others, and a span of
 * its own, by which the records of both its ends are put together.  Each end writes a record per stage, into
 * a ring in a file beside that of the statistics (segfile.h): older records are overwritten.  A record has a
 * number; who reads takes it before and after, so that none is ever seen torn, also when its writer died over it.
 *
 * Cost: nothing is called, and no file made, before the first message that is traced.
 */
#ifndef XR_TRACE_H
#define XR_TRACE_H

#include <stdint.h>
#include "atomic.h"
#include "stats.h"

#define XR_TRACE_MAGIC	  0x3152545844525858ull /* "XXRDXTR1" in little-endian order */
#define XR_TRACE_VERSION  1u
#define XR_TRACE_OFF	  4096u
#define XR_TRACE_RECORDS  4096u	/* a power of two */
#define XR_TRACE_BUSY	  (1ull << 63)
#define XR_TRACE_ID	  16u
#define XR_TRACE_FLOWS	  ".trace"	/* behind the name of the statistics: connections of the preload object */
#define XR_TRACE_CHANNELS ".trace-api"	/* channels of the library */

/* X(symbol, name, sentence) */
#define XR_TRACE_TABLE(X)								\
	X(QUEUED, "queued", "the program called to send it")				\
	X(POSTED, "posted", "its first byte was handed to the fabric")			\
	X(SENT, "sent", "all of it was, and its memory is the program's again")		\
	X(RECEIVED, "received", "the receiving end found it")				\
	X(DELIVERED, "delivered", "the receiving program has all of it")		\
	X(ACKED, "acked", "the sending end learned of that")

enum xr_trace_stage {
#define XR_TRACE_ENUM(sym, name, text) XR_TRACE_##sym,
	XR_TRACE_TABLE(XR_TRACE_ENUM)
#undef XR_TRACE_ENUM
	XR_TRACE_STAGES
};

#define XR_TRACE_FAR	1u	/* flags: the other end's word, in the other end's time */
#define XR_TRACE_CLOCK	2u	/* offset and error are known */
#define XR_TRACE_REQUEST 4u
#define XR_TRACE_RESPONSE 8u

struct xr_trace_data {
	uint64_t id[2];			/* the 16 bytes as they are */
	uint64_t span, at_ns;		/* at_ns: CLOCK_MONOTONIC */
	uint64_t len, flow;		/* flow: tells connections, or channels, of this process apart */
	struct xr_stats_addr local, peer;
	int64_t offset_ns;		/* the other end's clock less this one's */
	uint32_t error_ns;		/* most that offset_ns can be wrong by; saturates */
	int32_t fd;			/* -1: none */
	uint32_t tid;
	uint8_t stage, carrier, flags, zero;
	uint64_t spare[1];
};

#define XR_TRACE_WORDS	(sizeof(struct xr_trace_data) / 8)

struct xr_trace_rec {
	_Atomic uint64_t seq;		/* its number, from 1; 0: never used; BUSY: being written */
	_Atomic uint64_t word[XR_TRACE_WORDS];
};

struct xr_trace_header {
	_Atomic uint64_t magic;		/* stored last, with release */
	uint32_t version, header_size, record_size, record_off;
	uint32_t records;		/* a power of two */
	int32_t pid;
	uint32_t uid, zero;
	uint64_t pid_ns, time_ns;	/* inodes of namespaces; 0 unknown */
	uint64_t start_time;		/* as in the statistics */
	uint64_t mono_ns, real_ns;	/* both clocks at the same moment, when it was made */
	uint8_t boot[16];		/* this start of the kernel; zeros: unknown */
	_Atomic uint64_t head;		/* records so far */
	_Atomic uint64_t lost;		/* that found their place taken by a writer who stalled */
	_Atomic uint64_t skipped;	/* messages that were due, and not traced: one of their flow was under way */
	_Atomic uint32_t exited;
	uint32_t zero2;
	char program[128], xrdma_version[32];
};

_Static_assert(sizeof(struct xr_trace_data) == 120, "layout");
_Static_assert(sizeof(struct xr_trace_rec) == 128, "layout");
_Static_assert(sizeof(struct xr_trace_header) <= XR_TRACE_OFF, "layout");

enum {				/* of xr_trace_state; an errno (negative) after a failure */
	XR_TRACE_NONE,
	XR_TRACE_OPENING,
	XR_TRACE_OPEN,
};

extern _Atomic int xr_trace_state __attribute__((visibility("hidden")));

static inline int xr_trace_is_open(void)
{
	/* acquire: pairs with the release in xr_trace_open, the ring is there */
	return xr_load_acquire(&xr_trace_state) == XR_TRACE_OPEN;
}

/*
 * Makes the file; later calls return the first result.  -EALREADY while another call is at it.  A failure
 * is counted (stats_errors) and logged once.  Async-signal-safe.
 */
int xr_trace_open(const char *dir, const char *suffix, const char *program);
/* Adds a record, d->spare and d->zero aside; a file must be open.  Fires the probe of its stage unless FAR. */
void xr_trace_write(struct xr_trace_data *d);
void xr_trace_skipped(void);
/* At clean exit: the file goes. */
void xr_trace_close(void);
/* In the child of a fork: the parent's file is not its own. */
void xr_trace_forked(void);
const char *xr_trace_path(void);

/* Trace id and span of the message with this number; other processes have others.  Costs a few multiplications. */
void xr_trace_new(uint64_t no, uint64_t id[2], uint64_t *span);

/* The span of a message that both ends number alike, on a channel that they tell from others by a number each. */
uint64_t xr_trace_span_of(const uint64_t id[2], uint32_t sender, uint32_t receiver, uint32_t seq);

/* 1: a message is due, of those that one in `every` is; differs from thread to thread. */
int xr_trace_due(uint64_t every);

/*
 * What is known of the other end's clock: its reading less ours lies between lo and hi.  As time passes the two
 * may drift apart, and the bounds with them.
 */
struct xr_clock {
	int64_t lo, hi;
	uint64_t at;			/* ns: when that held; 0: nothing is known */
};

#define XR_CLOCK_DRIFT	100000u		/* one in so many: 10 ppm */

/* Something said that the difference is within lo and hi now; nonsense is left alone. */
void xr_clock_bound(struct xr_clock *c, int64_t lo, int64_t hi, uint64_t now);
/* The middle, and how far it may be off.  0: nothing is known. */
int xr_clock_get(const struct xr_clock *c, uint64_t now, int64_t *offset, uint64_t *error);

#endif
