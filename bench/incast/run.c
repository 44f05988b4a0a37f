/* SPDX-License-Identifier: BSD-2-Clause */
/* One run, and what is measured in it. */
#include <stdlib.h>
#include <string.h>
#include "sim.h"

#define BIN	(250 * US)
#define MEASURE	8.0

void sim_defaults(struct settings *set)
{
	*set = (struct settings){
		.mode = MODE_XRDMA, .senders = 256, .size = 4096, .depth = 16, .gbps = 25, .ecn = 1,
		.rtt_signal = 1, .ecn_signal = 1, .buffer = 12u << 20, .delay = 2 * US,
		.warm = 20 * MS, .time = 50 * MS, .seed = 1,
	};
}

void sim_complete(struct sim *s, struct host *h, const struct message *m)
{
	h->bin_bytes += s->set.size;
	if (!s->measuring)
		return;
	h->bytes += s->set.size;
	s->r.messages++;
	if (s->nlat == s->lat_room) {
		s->lat_room = s->lat_room ? 2 * s->lat_room : 65536;
		s->lat = realloc(s->lat, s->lat_room * sizeof(*s->lat));
		s->wire = realloc(s->wire, s->lat_room * sizeof(*s->wire));
		if (!s->lat || !s->wire)
			abort();
	}
	s->lat[s->nlat] = (uint32_t)((s->now - m->posted) / PS_PER_NS);
	s->wire[s->nlat++] = (uint32_t)((s->now - m->wire) / PS_PER_NS);
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* us */
static double at_share(const uint32_t *v, uint64_t n, double share)
{
	return n ? v[(uint64_t)((double)(n - 1) * share)] / 1000.0 : 0;
}

static double mean(const uint32_t *v, uint64_t n)
{
	double sum = 0;
	uint64_t i;

	for (i = 0; i < n; i++)
		sum += v[i];
	return n ? sum / (double)n / 1000 : 0;
}

static double jain(const struct sim *s)
{
	double sum = 0, squares = 0, x;
	uint32_t i, n = 0;

	for (i = 0; i < s->set.senders; i++) {
		if (!s->host[i].active)
			continue;
		x = (double)s->host[i].bytes;
		sum += x;
		squares += x * x;
		n++;
	}
	return squares > 0 ? sum * sum / (n * squares) : 0;
}

/*
 * Who left or joined: from when on did the rest have the link, and share it?  Judged by windows in which each
 * sender completes MEASURE messages, three bins at least: in fewer nobody can tell what its share is.
 */
static uint32_t window_bins(const struct sim *s, uint32_t active)
{
	uint64_t ps = (uint64_t)(MEASURE * active * (double)sim_wire_bytes(s) * s->ps_per_byte);

	return ps / BIN < 3 ? 3 : (uint32_t)(ps / BIN) + 1;
}

static int window_good(const struct sim *s, uint32_t bins)
{
	double sum = 0, squares = 0, x;
	uint32_t i, k, n = 0;

	for (i = 0; i < s->set.senders; i++) {
		const struct host *h = &s->host[i];

		for (x = 0, k = 0; k < bins; k++)
			x += (double)h->binned[(s->bins - 1 - k) % BINS];
		sum += x;
		if (h->active) {
			squares += x * x;
			n++;
		}
	}
	x = sum * (double)sim_wire_bytes(s) / s->set.size * s->ps_per_byte / ((double)bins * BIN);
	return x >= 0.9 && sum * sum >= 0.9 * n * squares;
}

static void bin(struct sim *s)
{
	double *to = s->joined_at ? &s->r.join_ms : &s->r.leave_ms;
	uint32_t i, n = 0, bins;

	for (i = 0; i < s->set.senders; i++) {
		struct host *h = &s->host[i];

		h->binned[s->bins % BINS] = h->bin_bytes;
		h->bin_bytes = 0;
		n += h->active;
	}
	s->bins++;
	bins = window_bins(s, n);
	if ((s->left_at || s->joined_at) && *to < 0 && bins <= BINS && s->bins - s->since_bin >= bins &&
	    window_good(s, bins))
		*to = (double)(s->bins - s->since_bin - bins) * BIN / MS;
	sim_at(s, s->now + BIN, EV_BIN, 0, 0);
}

static void churn(struct sim *s, int join)
{
	uint32_t i;

	*(join ? &s->joined_at : &s->left_at) = s->now;
	s->since_bin = s->bins;
	for (i = 0; i < s->set.senders; i += 2) {
		s->host[i].active = (uint8_t)join;
		if (join)
			app_progress(s, &s->host[i]);
	}
}

static void dispatch(struct sim *s, const struct event *e)
{
	switch (e->kind) {
	case EV_ALPHA:
	case EV_RATE:
		dcqcn_event(s, e);
		break;
	case EV_READ:
	case EV_DONE:
	case EV_POST:
	case EV_PULL:
		app_event(s, e);
		break;
	case EV_LEAVE:
		churn(s, 0);
		break;
	case EV_JOIN:
		churn(s, 1);
		break;
	case EV_BIN:
		bin(s);
		break;
	case EV_ARRIVE:
		app_arrive(s, &s->host[e->host]);
		break;
	default:
		net_event(s, e);
	}
}

static void report(struct sim *s)
{
	struct result *r = &s->r;
	double ps = (double)s->set.time;
	uint32_t i;

	for (i = 0; i < s->set.senders; i++) {
		const struct host *h = &s->host[i];

		if (h->paused)
			r->paused += (double)(s->now - h->paused_since);
		r->backlog += h->arrivals - h->taken + h->posted - h->done;
	}
	r->goodput = (double)s->payload * 8000 / ps;
	r->share = (double)s->useful * s->ps_per_byte / ps;
	qsort(s->lat, s->nlat, sizeof(*s->lat), compare);
	qsort(s->wire, s->nlat, sizeof(*s->wire), compare);
	r->mean = mean(s->lat, s->nlat);
	r->p50 = at_share(s->lat, s->nlat, 0.5);
	r->p99 = at_share(s->lat, s->nlat, 0.99);
	r->wire_mean = mean(s->wire, s->nlat);
	r->wire_p99 = at_share(s->wire, s->nlat, 0.99);
	r->queue_mean = s->queue_area / ps;
	r->jain = jain(s);
	r->paused /= ps * s->set.senders;
}

static int start(struct sim *s)
{
	const struct settings *set = &s->set;
	struct xr_adapt_params p = { .floor = EAGER, .start = FRAGMENT, .ceiling = 64u << 20, .unit = EAGER,
				     .target = set->rtt_signal ? 8000 : 0 };
	uint32_t n = 1, i;

	if (!set->senders || set->senders > 4096 || !set->size || set->size > 1u << 24 || !set->depth ||
	    set->depth > 200 || !set->gbps || !set->buffer || !set->time || set->load > 200)
		return -1;
	s->ps_per_byte = 8000.0 / set->gbps;
	s->rng = set->seed * 0x9e3779b97f4a7c15ull | 1;
	while (n < 2 * set->buffer / (OVERHEAD + 64) || n < 1u << 18)
		n *= 2;
	s->fifo = malloc(n * sizeof(*s->fifo));
	s->fifo_mask = n - 1;
	s->host = calloc(set->senders, sizeof(*s->host));
	if (!s->fifo || !s->host || xr_adapt_init(&s->context, &p))
		return -1;
	xr_budget_init(&s->budget, p.start);
	s->r.leave_ms = s->r.join_ms = -1;
	for (i = 0; i < set->senders; i++) {
		struct host *h = &s->host[i];

		h->num = i;
		h->active = 1;
		dcqcn_start(s, h);
		app_start(s, h);
		if (set->load) {
			h->arrived = calloc(ARRIVED, sizeof(*h->arrived));
			if (!h->arrived)
				return -1;
			app_expect(s, h);
		} else {
			app_progress(s, h);
		}
	}
	sim_at(s, BIN, EV_BIN, 0, 0);
	if (set->churn) {
		sim_at(s, set->warm + set->churn, EV_LEAVE, 0, 0);
		sim_at(s, set->warm + 2 * set->churn, EV_JOIN, 0, 0);
	}
	return 0;
}

int sim_run(const struct settings *set, struct result *r)
{
	struct sim *s = calloc(1, sizeof(*s));
	struct event e;
	uint32_t i;
	int bad;

	if (!s)
		return -1;
	s->set = *set;
	bad = start(s);
	while (!bad && heap_pop(&s->heap, &e) && e.at < set->warm + set->time) {
		s->now = e.at;
		s->r.events++;
		if (!s->measuring && s->now >= set->warm) {
			s->measuring = 1;
			s->buffered_since = s->now;
			for (i = 0; i < set->senders; i++)
				if (s->host[i].paused)
					s->host[i].paused_since = s->now;
		}
		dispatch(s, &e);
	}
	if (!bad) {
		report(s);
		*r = s->r;
	}
	free(s->heap.v);
	free(s->fifo);
	for (i = 0; s->host && i < set->senders; i++)
		free(s->host[i].arrived);
	free(s->host);
	free(s->lat);
	free(s->wire);
	free(s);
	return bad;
}
