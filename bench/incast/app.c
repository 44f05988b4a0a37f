/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the programs and the library do.  Without the library, a message is the NIC's at once.  With it, a
 * small message goes when the sender's window says so; a large one is announced, and the receiver
 * fetches it in fragments, as its window for that sender and the budget of its context say.
 */
#include "sim.h"

#define NS(s)	((s)->now / PS_PER_NS)

static void set_timer(struct sim *s, struct host *h, uint64_t *at, enum ev_kind kind, uint64_t ns)
{
	uint64_t when = s->now + ns * PS_PER_NS;

	if (*at > s->now && *at <= when)
		return;
	*at = when;
	sim_at(s, when, kind, h->num, 0);
}

void app_start(struct sim *s, struct host *h)
{
	struct xr_adapt_params p = {
		.floor = 32, .start = s->set.size < EAGER ? s->set.size + MSG_HDR : EAGER + MSG_HDR,
		.ceiling = 1u << 20, .unit = EAGER, .target = s->set.rtt_signal ? 8000 : 0,
	};

	if (xr_adapt_init(&h->tx, &p))
		__builtin_trap();
	p.floor = p.start = EAGER;
	if (xr_adapt_init(&h->rx, &p))
		__builtin_trap();
	/* what the probe of a connection saw that was made in quiet times */
	if (xr_adapt_acked(&h->tx, 0, 2 * net_back(s) / PS_PER_NS, 0) ||
	    xr_adapt_acked(&h->rx, 0, 2 * net_back(s) / PS_PER_NS, 0))
		__builtin_trap();
}

/* --- the sender ------------------------------------------------------------------------------- */

/* 1: the oldest message that waits is the NIC's now. */
static int app_give(struct sim *s, struct host *h)
{
	uint32_t len = s->set.size + MSG_HDR;
	uint64_t wait;
	int ack;

	if (!net_room(h))
		return 0;
	if (!sim_xrdma(s)) {
		net_send(s, h, UNIT_MESSAGE, len);
		return 1;
	}
	if (s->set.size > EAGER) {
		net_send(s, h, UNIT_ANNOUNCE, ANNOUNCE);
		return 1;
	}
	if (!xr_adapt_open(&h->tx, NS(s), len)) {
		wait = xr_adapt_wait(&h->tx, NS(s), len, &ack);
		if (wait)
			set_timer(s, h, &h->post_at, EV_POST, wait);
		return 0;
	}
	xr_adapt_sent(&h->tx, NS(s), len);
	net_send(s, h, UNIT_MESSAGE, len);
	return 1;
}

/* The program has a message to post. */
static int app_has(const struct sim *s, const struct host *h)
{
	return s->set.load ? h->arrivals != h->taken : h->active;
}

void app_expect(struct sim *s, struct host *h)
{
	/* uniform gaps: the sum of many senders is as good as random, and needs no library of mathematics */
	double gap = 2.0 * s->set.senders * (double)sim_wire_bytes(s) * s->ps_per_byte * 100 / s->set.load;

	sim_at(s, s->now + (uint64_t)(gap * (double)(sim_random(s) >> 11) / 9007199254740992.0), EV_ARRIVE, h->num, 0);
}

void app_arrive(struct sim *s, struct host *h)
{
	app_expect(s, h);
	if (!h->active || h->arrivals - h->taken == ARRIVED)
		return;
	h->arrived[h->arrivals++ % ARRIVED] = s->now;
	app_progress(s, h);
}

void app_progress(struct sim *s, struct host *h)
{
	do {
		while (app_has(s, h) && h->posted - h->done < s->set.depth) {
			struct message *m = &h->msg[h->posted++ % 256];

			m->posted = s->set.load ? h->arrived[h->taken++ % ARRIVED] : s->now;
			m->wire = 0;
		}
		if (h->given == h->posted || !app_give(s, h))
			return;
		h->given++;
	} while (1);
}

static void app_done(struct sim *s, struct host *h)
{
	sim_complete(s, h, &h->msg[h->done++ % 256]);
	app_progress(s, h);
}

void app_acked(struct sim *s, struct host *h, const struct unit *u, int marked)
{
	if (u->kind != UNIT_MESSAGE)
		return;
	if (sim_xrdma(s) && xr_adapt_acked(&h->tx, u->len, (s->now - u->begun) / PS_PER_NS,
					   marked && s->set.ecn_signal))
		__builtin_trap();
	h->msg[h->done % 256].wire = u->wire;
	app_done(s, h);
}

/* --- the receiver ------------------------------------------------------------------------------ */

/* What one READ asks for: a quarter of what may be under way, so that there are always several. */
static uint32_t fragment(const struct sim *s, const struct host *h)
{
	uint64_t w = xr_adapt_window(&h->rx), c = xr_adapt_window(&s->context);
	uint32_t left = s->set.size - h->asked % s->set.size, n;

	w = (w < c ? w : c) / 4;
	n = w < EAGER ? EAGER : w > FRAGMENT ? FRAGMENT : (uint32_t)w / EAGER * EAGER;
	return n < left ? n : left;
}

static void app_pull(struct sim *s, struct host *h)
{
	while (h->fetched != h->announced && h->reads < READS) {
		uint32_t n = fragment(s, h);
		uint64_t wait;
		int ack;

		if (!xr_adapt_open(&h->rx, NS(s), n)) {
			wait = xr_adapt_wait(&h->rx, NS(s), n, &ack);
			if (wait)
				set_timer(s, h, &h->pull_at, EV_PULL, wait);
			xr_budget_forget(&s->budget, &h->rx);
			return;
		}
		if (xr_budget_take(&s->budget, &h->rx, n, h->asked != 0)) {
			s->context.limited = 1;
			return;
		}
		xr_adapt_sent(&h->rx, NS(s), n);
		xr_adapt_sent(&s->context, NS(s), n);
		h->read_at[h->read_head % READS] = s->now;
		h->read_len[h->read_head++ % READS] = n;
		h->reads++;
		h->asked += n;
		if (h->asked == s->set.size) {
			h->asked = 0;
			h->fetched++;
		}
		sim_at(s, s->now + net_back(s), EV_READ, h->num, n);
	}
	xr_budget_forget(&s->budget, &h->rx);
}

static void app_answer(struct sim *s, struct host *h, const struct unit *u, int marked)
{
	uint64_t rtt = (s->now - h->read_at[h->read_done % READS]) / PS_PER_NS;
	uint32_t n = h->read_len[h->read_done++ % READS];
	struct message *m = &h->msg[(h->done + h->completing) % 256];
	struct xr_adapt *a;

	marked = marked && s->set.ecn_signal;
	if (n != u->len || xr_adapt_acked(&h->rx, n, rtt, marked) ||
	    xr_adapt_acked(&s->context, n, rtt, marked) || xr_budget_give(&s->budget, n))
		__builtin_trap();
	s->budget.limit = xr_adapt_window(&s->context);
	h->reads--;
	if (!h->got)
		m->wire = u->wire;
	h->got += n;
	if (h->got == s->set.size) {
		h->got = 0;
		h->completing++;
		sim_at(s, s->now + net_back(s), EV_DONE, h->num, 0);
	}
	app_pull(s, h);
	while ((a = xr_budget_next(&s->budget))) {
		app_pull(s, (struct host *)((char *)a - offsetof(struct host, rx)));
		if (xr_budget_next(&s->budget) == a)
			break;
	}
}

void app_received(struct sim *s, struct host *h, const struct unit *u, int marked)
{
	if (u->kind == UNIT_ANNOUNCE) {
		h->announced++;
		app_pull(s, h);
	} else if (u->kind == UNIT_ANSWER) {
		app_answer(s, h, u, marked);
	}
}

void app_event(struct sim *s, const struct event *e)
{
	struct host *h = &s->host[e->host];

	switch (e->kind) {
	case EV_READ:
		net_send(s, h, UNIT_ANSWER, (uint32_t)e->arg);
		break;
	case EV_DONE:
		h->completing--;
		app_done(s, h);
		break;
	case EV_POST:
		h->post_at = 0;
		app_progress(s, h);
		break;
	case EV_PULL:
		h->pull_at = 0;
		app_pull(s, h);
		break;
	default:
		break;
	}
}
