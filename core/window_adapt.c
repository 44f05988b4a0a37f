/* SPDX-License-Identifier: BSD-2-Clause */
/* The congestion window: arithmetic only. */
#include <errno.h>
#include <string.h>
#include "window_adapt.h"

#define Q		8u	/* binary places of the window */
#define SHARE_ONE	65536u
#define SHARE_GAIN	4u	/* shares are smoothed over 2^4 signals */
#define EPOCH		10000000000ull	/* ns after which an old smallest RTT is forgotten, once over */
#define STEP		128u	/* slow growth: a 128th of a unit per round */
#define MOST		128u	/* a window below a unit grows by a 128th with each answer at most ... */
#define HASTE		8u	/* ... and so many times more where there is no queue */
#define SLOPE		176u	/* ... and tolerates 256/176 of the target more for each halving below it */
#define CALM_MAX	24u
#define EMPTY		3u	/* so many rounds without a signal, and no queue: the link stands empty */
#define PAUSE_MAX	100000000u	/* ns: a floor of one byte and a long RTT must not stop a flow for good */
#define CUT_GENTLE	250u	/* no cut is smaller than this, of 256 */

int xr_adapt_init(struct xr_adapt *a, const struct xr_adapt_params *p)
{
	if (!p->floor || p->start < p->floor || p->ceiling < p->start || p->ceiling > XR_ADAPT_MAX ||
	    p->unit < STEP)
		return -EINVAL;
	memset(a, 0, sizeof(*a));
	a->p = *p;
	a->window = p->start << Q;
	return 0;
}

uint64_t xr_adapt_window(const struct xr_adapt *a)
{
	return a->window >> Q;
}

uint32_t xr_adapt_base(const struct xr_adapt *a)
{
	if (!a->base)
		return a->base_old;
	return a->base_old && a->base_old < a->base ? a->base_old : a->base;
}

/* log2 in 256ths, linear between powers of two. */
static uint32_t log2_256(uint64_t x)
{
	uint32_t e = 63 - (uint32_t)__builtin_clzll(x);

	return (e << 8) + (uint32_t)(e >= 8 ? (x >> (e - 8)) & 255 : (x << (8 - e)) & 255);
}

/* Each halving below a unit adds to the target: equal windows are where equal queues lead. */
static uint32_t adapt_target(const struct xr_adapt *a)
{
	uint64_t unit = (uint64_t)a->p.unit << Q, t;

	if (a->window >= unit)
		return a->p.target;
	t = (uint64_t)a->p.target * (SLOPE + log2_256(unit) - log2_256(a->window)) / SLOPE;
	return t > UINT32_MAX ? UINT32_MAX : (uint32_t)t;
}

/* The share of marks that is no news where RTT speaks: random early marking, and what a small window tolerates. */
static uint32_t adapt_marks(const struct xr_adapt *a)
{
	uint64_t unit = (uint64_t)a->p.unit << Q;

	if (a->window >= unit)
		return SHARE_ONE / 4;
	return SHARE_ONE - (uint32_t)((uint64_t)SHARE_ONE / 4 * 3 * a->window / unit);
}

/* ns between two messages of which the first is larger than the window. */
static uint64_t adapt_pause(const struct xr_adapt *a)
{
	uint64_t len = a->last_len << Q, rtt = a->srtt, aim;

	if (len <= a->window || !rtt)
		return 0;
	/* what was measured in a bad moment is not waited for again and again */
	aim = (uint64_t)xr_adapt_base(a) + adapt_target(a);
	if (a->p.target && rtt > aim)
		rtt = aim;
	if (len / a->window >= PAUSE_MAX / rtt)
		return PAUSE_MAX;
	/* a quarter more or less: senders that were held back together must not come back together */
	rtt = rtt * (192 + (((a->last ^ (uint64_t)a->srtt << 20 ^ a->window) * 0x9e3779b97f4a7c15ull) >> 57)) / 256;
	return rtt * (len / a->window) + rtt * (len % a->window) / a->window;
}

uint64_t xr_adapt_wait(const struct xr_adapt *a, uint64_t now, uint64_t len, int *ack)
{
	uint64_t pause;

	*ack = 0;
	if (!len)
		return 0;
	if (a->inflight && (a->inflight + len) << Q > a->window) {
		*ack = 1;
		return 0;
	}
	pause = adapt_pause(a);
	return pause && now < a->last + pause ? a->last + pause - now : 0;
}

int xr_adapt_open_slow(struct xr_adapt *a, uint64_t now, uint64_t len)
{
	int ack;

	if (!xr_adapt_wait(a, now, len, &ack) && !ack)
		return 1;
	a->limited = 1;
	return 0;
}

/* --- signals -------------------------------------------------------------------------------- */

/* What was under way at the last cut is not all back. */
static int adapt_recovers(const struct xr_adapt *a)
{
	return a->cut && a->acked <= a->recover;
}

static void adapt_cut(struct xr_adapt *a, uint32_t factor, uint64_t *count)
{
	uint64_t floor = a->p.floor << Q;

	a->calm = 0;
	if (adapt_recovers(a))
		return;
	a->recover = a->sent;
	a->cut = 1;
	a->window = (a->window >> 8) * factor + ((a->window & 255) * factor >> 8);
	if (a->window < floor)
		a->window = floor;
	(*count)++;
}

static void share_add(uint32_t *share, int hit)
{
	if (hit)
		*share += (SHARE_ONE - *share) >> SHARE_GAIN;
	else if (*share >> SHARE_GAIN)
		*share -= *share >> SHARE_GAIN;
	else
		*share = 0;
}

static void adapt_rtt(struct xr_adapt *a, uint64_t rtt)
{
	uint32_t ns = rtt > INT32_MAX ? INT32_MAX : (uint32_t)rtt, queue, target, cut;

	if (!a->base || ns < a->base)
		a->base = ns;
	a->srtt = a->srtt ? a->srtt - a->srtt / 8 + ns / 8 : ns;
	if (!a->srtt)
		a->srtt = 1;
	if (ns > a->round_rtt)
		a->round_rtt = ns;
	if (!a->p.target)
		return;
	queue = ns - xr_adapt_base(a);
	target = adapt_target(a);
	if (queue <= target)
		return;
	/* 0.8 of the share by which the delay is too long */
	cut = (uint32_t)((uint64_t)(queue - target) * XR_BETA_LEAST / queue);
	cut = 256 - cut < XR_BETA_MOST ? XR_BETA_MOST : 256 - cut;
	adapt_cut(a, cut > CUT_GENTLE ? CUT_GENTLE : cut, &a->cuts_rtt);
}

static void adapt_round(struct xr_adapt *a)
{
	if (a->acked < a->round)
		return;
	a->round = a->sent + 1;
	/* the queue has to be well below what is tolerated before growth speeds up */
	if (a->p.target && a->round_rtt && a->round_rtt - xr_adapt_base(a) > adapt_target(a) / 2)
		a->calm = 0;
	else if (a->calm < CALM_MAX)
		a->calm++;
	a->round_rtt = 0;
	if (a->last - a->epoch >= EPOCH) {
		a->epoch = a->last;
		if (a->base)
			a->base_old = a->base;
		a->base = 0;
	}
}

/*
 * Many small windows are evened out by this: the one that is smallest is the furthest below the delay that it
 * tolerates, and grows fastest.
 */
static uint64_t adapt_most(const struct xr_adapt *a, uint64_t rtt)
{
	uint64_t most = a->window / MOST, queue, target;

	if (!a->p.target || !rtt)
		return most;
	queue = rtt - xr_adapt_base(a);
	target = adapt_target(a);
	/* a link that stands empty answer after answer: all that share it were cut too often when they met */
	if (queue < target / 16 && a->calm >= EMPTY)
		return a->window / 2;
	return queue < target ? most + most * HASTE * (target - queue) / target : most;
}

static void adapt_grow(struct xr_adapt *a, uint64_t len, uint64_t rtt)
{
	uint64_t step = ((uint64_t)a->p.unit << Q) / STEP << a->calm, most = adapt_most(a, rtt), add;

	if (!a->limited || a->window >= a->p.ceiling << Q || adapt_recovers(a))
		return;
	/* per round, a half at most; of it the share of the window that this ack stands for */
	if (step > a->window / 2)
		step = a->window / 2;
	len <<= Q;
	/* an ack of many round trips' worth is still only one answer */
	add = len > 8 * a->window ? 8 * step : step * (len >> 4) / (a->window >> 4 ? a->window >> 4 : 1);
	if (add > most && a->window < (uint64_t)a->p.unit << Q)
		add = most;
	a->window += add ? add : 1;
	if (a->window > a->p.ceiling << Q)
		a->window = a->p.ceiling << Q;
}

int xr_adapt_acked_slow(struct xr_adapt *a, uint64_t len, uint64_t rtt, int marked)
{
	uint64_t cuts = a->cuts_rtt + a->cuts_ecn;

	if (len > a->inflight)
		return -EINVAL;
	a->inflight -= len;
	a->acked += len;
	share_add(&a->marked, marked);
	share_add(&a->rnr, 0);
	if (rtt)
		adapt_rtt(a, rtt);
	/* where RTT speaks, marks that come now and then (random early marking) are no news */
	if (marked && (!a->p.target || a->marked > adapt_marks(a)))
		adapt_cut(a, XR_BETA_LEAST - (uint32_t)((uint64_t)(XR_BETA_LEAST - XR_BETA_MOST) * a->marked /
							SHARE_ONE), &a->cuts_ecn);
	adapt_round(a);
	if (cuts == a->cuts_rtt + a->cuts_ecn)
		adapt_grow(a, len, rtt);
	if (!a->inflight)
		a->limited = 0;
	return 0;
}

void xr_adapt_rnr(struct xr_adapt *a)
{
	uint32_t cut;

	share_add(&a->rnr, 1);
	cut = 256 - a->rnr / (SHARE_ONE / 128);
	adapt_cut(a, cut > CUT_GENTLE ? CUT_GENTLE : cut < XR_BETA_MOST ? XR_BETA_MOST : cut, &a->cuts_rnr);
}

/* --- all flows of a context ------------------------------------------------------------------ */

void xr_budget_init(struct xr_budget *b, uint64_t limit)
{
	memset(b, 0, sizeof(*b));
	b->limit = limit;
	b->last = &b->first;
}

/* Behind those that wait, but what was begun before what was not. */
static void budget_wait(struct xr_budget *b, struct xr_adapt *a, int begun)
{
	struct xr_adapt **pp = begun ? &b->first : b->last;

	while (begun && *pp && (*pp)->begun)
		pp = &(*pp)->next;
	a->waiting = 1;
	a->begun = (uint8_t)begun;
	a->next = *pp;
	*pp = a;
	if (!a->next)
		b->last = &a->next;
}

int xr_budget_take(struct xr_budget *b, struct xr_adapt *a, uint64_t len, int begun)
{
	int turn = !b->first || b->first == a || (begun && !b->first->begun);

	if (turn && (!b->used || (len <= b->limit && b->used <= b->limit - len))) {
		xr_budget_forget(b, a);
		b->used += len;
		return 0;
	}
	if (a->waiting && a->begun != (begun != 0))
		xr_budget_forget(b, a);
	if (!a->waiting)
		budget_wait(b, a, begun != 0);
	return -EAGAIN;
}

int xr_budget_give(struct xr_budget *b, uint64_t len)
{
	if (len > b->used)
		return -EINVAL;
	b->used -= len;
	return 0;
}

struct xr_adapt *xr_budget_next(const struct xr_budget *b)
{
	return !b->used || b->used < b->limit ? b->first : NULL;
}

void xr_budget_forget(struct xr_budget *b, struct xr_adapt *a)
{
	struct xr_adapt **pp = &b->first;

	if (!a->waiting)
		return;
	while (*pp != a)
		pp = &(*pp)->next;
	*pp = a->next;
	if (b->last == &a->next)
		b->last = pp;
	a->waiting = 0;
	a->next = NULL;
}
