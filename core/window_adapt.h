/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The congestion window of one flow, beside the credits of window.h: how many bytes may be under way
 * in the network at once.  Pure arithmetic, no I/O, no clock, no allocation; the caller says what
 * time it is.  The library and bench/incast run this very code.
 *
 * Signals, each of them optional
 *	RTT	A round trip that takes longer than the smallest one seen by more than `target` means
 *		that a queue is standing: the window is cut in proportion, by half at most.  A row of
 *		rounds that do not makes it grow faster: alpha doubles with each.
 *	ECN	What was marked on its way cuts the window by beta, 0.8 for a few marks to 0.5 when
 *		everything is marked.
 *	RNR	A receiver that was not ready scales the window down by the share of sends that it
 *		turned away, by half at most.
 * There is one cut for what was under way at the same time.
 *
 * The window may fall below the size of a message.  Then one message is under way at most, and
 * the next goes after a pause that makes the rate what the window says: a thousand senders share a
 * link on which each has room for 30 bytes per round trip.  The smaller a window is, the more
 * delay it tolerates; that is what makes the shares of many small windows alike.
 *
 * A budget bounds what all flows of a context have under way together; flows that it turned away have
 * their turn in the order in which they came, messages that were begun before all others.
 *
 * Locking: the caller's.
 */
#ifndef XR_WINDOW_ADAPT_H
#define XR_WINDOW_ADAPT_H

#include <stdint.h>

#define XR_ADAPT_MAX	(1ull << 40)

/* beta, and all other factors, are in 256ths */
#define XR_BETA_MOST	128u	/* 0.5 */
#define XR_BETA_LEAST	205u	/* 0.8 */

struct xr_adapt_params {
	uint64_t floor, start, ceiling;	/* bytes: 1 <= floor <= start <= ceiling <= XR_ADAPT_MAX */
	uint32_t unit;			/* bytes: a full message or fragment, what growth is measured in */
	uint32_t target;		/* ns of standing queue that are aimed at; 0: RTT is not a signal */
};

struct xr_adapt {
	struct xr_adapt_params p;
	uint64_t window;		/* in 256ths of bytes */
	uint64_t inflight;		/* bytes */
	uint64_t sent, acked;		/* bytes ever, inflight is their difference */
	uint64_t recover;		/* signals of what was sent before are those of a cut that was made */
	uint64_t round;			/* a round ends when this much is acked */
	uint64_t last;			/* ns: when the last message went, its bytes */
	uint64_t last_len;
	uint32_t base, base_old;	/* ns: smallest RTT of this epoch and of the one before; 0: none */
	uint64_t epoch;			/* ns: when it began */
	uint32_t srtt;			/* ns, smoothed */
	uint32_t round_rtt;		/* the largest one of this round */
	uint32_t calm;			/* rounds in a row without a signal: alpha is 2^calm */
	uint32_t marked, rnr;		/* smoothed shares, in 65536ths */
	uint8_t limited;		/* somebody was turned away since it grew last */
	uint8_t cut;			/* recover is valid */
	uint64_t cuts_rtt, cuts_ecn, cuts_rnr;
	/* xr_budget: */
	struct xr_adapt *next;
	uint8_t waiting, begun;
};

/* -EINVAL: the parameters are not in order. */
int xr_adapt_init(struct xr_adapt *a, const struct xr_adapt_params *p);
/* Bytes; at least 1. */
uint64_t xr_adapt_window(const struct xr_adapt *a);
/* Smallest round trip that is remembered, ns; 0: none yet. */
uint32_t xr_adapt_base(const struct xr_adapt *a);
/* ns until it opens by time alone: 0: it is open, or an ack must come first (then *ack is 1). */
uint64_t xr_adapt_wait(const struct xr_adapt *a, uint64_t now, uint64_t len, int *ack);
/*
 * len bytes are not under way any more.  rtt: ns, 0 when it was not measured; marked: 1 when they met
 * congestion.  -EINVAL: more than was under way.
 */
static inline int xr_adapt_acked(struct xr_adapt *a, uint64_t len, uint64_t rtt, int marked);
/* The receiver turned a message away, which will be tried again. */
void xr_adapt_rnr(struct xr_adapt *a);

/* --- what most messages need of it: a wide window and no signal ------------------------------ */

int xr_adapt_open_slow(struct xr_adapt *a, uint64_t now, uint64_t len);
int xr_adapt_acked_slow(struct xr_adapt *a, uint64_t len, uint64_t rtt, int marked);

/* 1 when len bytes may go now; len 0 always may. */
static inline int xr_adapt_open(struct xr_adapt *a, uint64_t now, uint64_t len)
{
	if (a->inflight + len <= a->window >> 8 && a->last_len <= a->window >> 8)
		return 1;
	return xr_adapt_open_slow(a, now, len);
}

static inline void xr_adapt_sent(struct xr_adapt *a, uint64_t now, uint64_t len)
{
	a->sent += len;
	a->inflight += len;
	a->last = now;
	a->last_len = len;
	/* a window of which one message fills all is as limited as one that turns others away */
	if (a->inflight >= a->window >> 8)
		a->limited = 1;
}

static inline int xr_adapt_acked(struct xr_adapt *a, uint64_t len, uint64_t rtt, int marked)
{
	if (rtt || marked || a->marked || a->rnr || a->window >> 8 < a->p.ceiling || len > a->inflight)
		return xr_adapt_acked_slow(a, len, rtt, marked);
	a->inflight -= len;
	a->acked += len;
	return 0;
}

/* --- all flows of a context ---------------------------------------------------------------- */

struct xr_budget {
	uint64_t limit, used;		/* bytes */
	struct xr_adapt *first, **last;	/* who waits */
};

void xr_budget_init(struct xr_budget *b, uint64_t limit);
/*
 * Takes len bytes for a flow: 0. -EAGAIN: there is no room, or others came before; the flow waits from
 * now on.  A length beyond the limit goes when nothing else is under way.  begun: 1 for what goes on with
 * a message; it comes before those that have not begun, so that few messages are half here.
 */
int xr_budget_take(struct xr_budget *b, struct xr_adapt *a, uint64_t len, int begun);
/* -EINVAL: more than was taken. */
int xr_budget_give(struct xr_budget *b, uint64_t len);
/* The flow whose turn it is when there is room again; NULL: none waits, or there is no room. */
struct xr_adapt *xr_budget_next(const struct xr_budget *b);
/* The flow does not wait any more. */
void xr_budget_forget(struct xr_budget *b, struct xr_adapt *a);

#endif
