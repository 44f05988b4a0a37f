/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Links, the switch and the transport: packets are numbered, a gap makes the receiver ask once for all
 * from there (go back N), and a sender that hears nothing for RTO begins again where it was.
 */
#include <stdlib.h>
#include <string.h>
#include "sim.h"

#define RTO		(16 * MS)	/* a local ack timeout of 12: 16.8 ms */
#define CNP_GAP		(50 * US)
#define ACK_EVERY	16u
/* ECN as in the DCQCN paper for 40 Gb/s, the same in time for other rates */
#define K_MIN(s)	(5000 * (s)->set.gbps / 40)
#define K_MAX(s)	(200000 * (s)->set.gbps / 40)
#define P_MAX		0.01
#define XOFF_SHARE	8u	/* a port pauses its sender when it holds an eighth of what is free */
#define XON_GAP		(2 * (MTU + OVERHEAD))

uint64_t net_back(const struct sim *s)
{
	return 2 * s->set.delay + (uint64_t)(OVERHEAD * s->ps_per_byte);
}

int net_room(const struct host *h)
{
	return h->end_unit - h->una_unit < UNITS;
}

/* --- the NIC of a sender --------------------------------------------------------------------- */

static void nic_wake(struct sim *s, struct host *h, uint64_t at)
{
	if (h->wake_at && h->wake_at <= at && h->wake_at >= s->now)
		return;
	h->wake_at = at;
	sim_at(s, at, EV_NIC, h->num, 0);
}

static void nic_send(struct sim *s, struct host *h)
{
	struct unit *u;
	struct event e = { .kind = EV_SWITCH, .host = h->num };
	uint32_t index, bytes;
	uint64_t may;

	if (h->paused)
		return;
	while (h->cur_unit != h->end_unit &&
	       h->next - h->unit[h->cur_unit % UNITS].psn >= h->unit[h->cur_unit % UNITS].packets)
		h->cur_unit++;
	if (h->cur_unit == h->end_unit)
		return;
	may = h->free_at > h->may_at ? h->free_at : h->may_at;
	if (s->now < may) {
		nic_wake(s, h, may);
		return;
	}
	u = &h->unit[h->cur_unit % UNITS];
	index = h->next - u->psn;
	e.p.psn = h->next;
	e.p.unit = h->cur_unit;
	e.p.last = index + 1 == u->packets;
	e.p.len = (uint16_t)(e.p.last ? u->len - index * MTU : MTU);
	e.p.again = (int32_t)(h->next - h->sent_to) < 0;
	if (e.p.again)
		s->r.retransmitted += s->measuring;
	else
		h->sent_to = h->next + 1;
	if (!u->wire)
		u->wire = s->now;
	if (h->next == h->una)
		h->rto_at = h->rto_at ? s->now + RTO : 0;
	h->next++;
	bytes = e.p.len + OVERHEAD;
	h->free_at = s->now + (uint64_t)(bytes * s->ps_per_byte);
	if (sim_dcqcn(s)) {
		h->may_at = s->now + (uint64_t)(bytes * 8000.0 / h->rate);
		dcqcn_sent(s, h, bytes);
	}
	e.at = h->free_at + s->set.delay;
	heap_push(&s->heap, &e);
	if (!h->rto_at) {
		h->rto_at = s->now + RTO;
		sim_at(s, h->rto_at, EV_RTO, h->num, 0);
	}
	nic_wake(s, h, h->free_at > h->may_at ? h->free_at : h->may_at);
}

void net_send(struct sim *s, struct host *h, enum unit_kind kind, uint32_t len)
{
	struct unit *u = &h->unit[h->end_unit % UNITS];
	const struct unit *before = &h->unit[(h->end_unit - 1) % UNITS];

	if (!net_room(h))
		abort();
	u->kind = kind;
	u->len = len;
	u->packets = (len + MTU - 1) / MTU;
	u->psn = h->end_unit ? before->psn + before->packets : 0;
	u->begun = s->now;
	u->wire = 0;
	h->end_unit++;
	nic_send(s, h);
}

static void nic_back(struct sim *s, struct host *h, uint32_t psn)
{
	/* every packet before it has arrived; a request that is older than what was acked is void */
	if ((int32_t)(psn - h->una) < 0 || (int32_t)(psn - h->next) >= 0)
		return;
	h->next = psn;
	for (h->cur_unit = h->una_unit; h->next - h->unit[h->cur_unit % UNITS].psn >=
	     h->unit[h->cur_unit % UNITS].packets; )
		h->cur_unit++;
	nic_send(s, h);
}

static void nic_ack(struct sim *s, struct host *h, uint32_t psn, int marked)
{
	if ((int32_t)(psn + 1 - h->una) <= 0)
		return;
	h->una = psn + 1;
	/* a go-back that crossed this ack does not send what has arrived */
	if ((int32_t)(h->next - h->una) < 0)
		h->next = h->una;
	h->rto_at = s->now + RTO;
	while (h->una_unit != h->end_unit) {
		struct unit u = h->unit[h->una_unit % UNITS];

		if ((int32_t)(h->una - u.psn - u.packets) < 0)
			break;
		h->una_unit++;
		if ((int32_t)(h->cur_unit - h->una_unit) < 0)
			h->cur_unit = h->una_unit;
		app_acked(s, h, &u, marked);
	}
	nic_send(s, h);
}

static void nic_timeout(struct sim *s, struct host *h)
{
	if (h->una == h->sent_to) {
		h->rto_at = 0;
		return;
	}
	if (s->now < h->rto_at) {
		sim_at(s, h->rto_at, EV_RTO, h->num, 0);
		return;
	}
	h->rto_at = s->now + RTO;
	sim_at(s, h->rto_at, EV_RTO, h->num, 0);
	/* a sender that is paused waits for nothing but that */
	if (h->paused)
		return;
	s->r.timeouts += s->measuring;
	nic_back(s, h, h->una);
}

/* --- the switch ------------------------------------------------------------------------------- */

static void switch_account(struct sim *s)
{
	if (s->measuring)
		s->queue_area += (double)s->buffered * (double)(s->now - s->buffered_since);
	s->buffered_since = s->now;
	if (s->measuring && (double)s->buffered > s->r.queue_max)
		s->r.queue_max = (double)s->buffered;
}

static void switch_pause(struct sim *s, struct host *h)
{
	uint64_t free_bytes = s->buffered < s->set.buffer ? s->set.buffer - s->buffered : 0;
	uint64_t xoff = free_bytes / XOFF_SHARE;

	if (!s->set.pfc)
		return;
	if (!h->xoff && h->ingress > xoff) {
		h->xoff = 1;
		s->r.pauses += s->measuring;
		sim_at(s, s->now + s->set.delay, EV_PAUSE, h->num, 0);
	} else if (h->xoff && (!h->ingress || h->ingress + XON_GAP < xoff)) {
		h->xoff = 0;
		sim_at(s, s->now + s->set.delay, EV_RESUME, h->num, 0);
	}
}

static int switch_marks(struct sim *s)
{
	if (!s->set.ecn || s->buffered <= K_MIN(s))
		return 0;
	if (s->buffered >= K_MAX(s))
		return 1;
	return (double)(sim_random(s) >> 11) / 9007199254740992.0 <
	       P_MAX * (double)(s->buffered - K_MIN(s)) / (K_MAX(s) - K_MIN(s));
}

static void switch_next(struct sim *s)
{
	struct queued *q = &s->fifo[s->fifo_head & s->fifo_mask];

	if (s->egress_busy || s->fifo_head == s->fifo_tail)
		return;
	s->egress_busy = 1;
	sim_at(s, s->now + (uint64_t)((q->p.len + OVERHEAD) * s->ps_per_byte), EV_EGRESS, 0, 0);
}

static void switch_arrive(struct sim *s, struct host *h, const struct packet *p)
{
	struct packet x = *p;
	uint32_t bytes = p->len + OVERHEAD;

	switch_account(s);
	/* with PFC there is a headroom beside the buffer, which is taken to suffice */
	if ((!s->set.pfc && s->buffered + bytes > s->set.buffer) ||
	    s->fifo_tail - s->fifo_head > s->fifo_mask) {
		s->r.drops += s->measuring;
		return;
	}
	if (switch_marks(s)) {
		x.marked = 1;
		s->r.marks += s->measuring;
	}
	s->fifo[s->fifo_tail++ & s->fifo_mask] = (struct queued){ h->num, x };
	s->buffered += bytes;
	h->ingress += bytes;
	switch_pause(s, h);
	switch_next(s);
}

static void switch_sent(struct sim *s)
{
	struct queued q = s->fifo[s->fifo_head++ & s->fifo_mask];
	struct host *h = &s->host[q.host];
	struct event e = { .at = s->now + s->set.delay, .kind = EV_RECEIVE, .host = q.host, .p = q.p };

	switch_account(s);
	s->buffered -= q.p.len + OVERHEAD;
	h->ingress -= q.p.len + OVERHEAD;
	heap_push(&s->heap, &e);
	switch_pause(s, h);
	s->egress_busy = 0;
	switch_next(s);
}

/* --- the receiver ------------------------------------------------------------------------------ */

static void receive(struct sim *s, struct host *h, const struct packet *p)
{
	struct event back = { .at = s->now + net_back(s), .host = h->num, .p = *p };

	if (p->marked && s->now >= h->cnp_at && sim_dcqcn(s)) {
		h->cnp_at = s->now + CNP_GAP;
		sim_at(s, back.at, EV_CNP, h->num, 0);
	}
	if (p->psn != h->expect) {
		if ((int32_t)(p->psn - h->expect) > 0 && !h->nak_sent) {
			h->nak_sent = 1;
			sim_at(s, back.at, EV_NAK, h->num, h->expect);
		} else if ((int32_t)(p->psn - h->expect) < 0 && p->last) {
			/* it was acked before, and that may be lost on nobody: acks are not lost here */
			back.kind = EV_ACK;
			heap_push(&s->heap, &back);
		}
		return;
	}
	if (s->measuring) {
		s->useful += p->len + OVERHEAD;
		s->payload += p->len;
	}
	h->expect++;
	h->nak_sent = 0;
	h->unit_marked |= p->marked;
	if (p->last) {
		struct unit u = h->unit[p->unit % UNITS];

		back.p.marked = h->unit_marked;
		h->unit_marked = 0;
		app_received(s, h, &u, back.p.marked);
	}
	if (p->last || h->expect % ACK_EVERY == 0) {
		back.kind = EV_ACK;
		heap_push(&s->heap, &back);
	}
}

void net_event(struct sim *s, const struct event *e)
{
	struct host *h = &s->host[e->host];

	switch (e->kind) {
	case EV_NIC:
		if (h->wake_at == s->now)
			h->wake_at = 0;
		nic_send(s, h);
		break;
	case EV_SWITCH:
		switch_arrive(s, h, &e->p);
		break;
	case EV_EGRESS:
		switch_sent(s);
		break;
	case EV_RECEIVE:
		receive(s, h, &e->p);
		break;
	case EV_ACK:
		nic_ack(s, h, e->p.psn, e->p.marked);
		break;
	case EV_NAK:
		nic_back(s, h, (uint32_t)e->arg);
		break;
	case EV_PAUSE:
		h->paused = 1;
		h->paused_since = s->now;
		break;
	case EV_RESUME:
		if (h->paused && s->measuring)
			s->r.paused += (double)(s->now - h->paused_since);
		h->paused = 0;
		nic_send(s, h);
		break;
	case EV_RTO:
		nic_timeout(s, h);
		break;
	case EV_CNP:
		dcqcn_cnp(s, h);
		break;
	default:
		break;
	}
}
