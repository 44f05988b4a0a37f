/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * DCQCN, the rate control of RoCE NICs: "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM
 * 2015), section 3 and figure 7, with the parameters of its section 5 (timer 55 us, byte counter 10 MB,
 * g = 1/256, F = 5, 40 Mb/s steps); hyper increase 10 steps at once.  A flow starts at line rate.
 */
#include "sim.h"

#define TIMER	(55 * US)
#define BYTES	10000000u
#define G	(1.0 / 256)
#define FAST	5u
#define RATE_STEP	0.04	/* Gb/s */
#define LEAST	0.001

void dcqcn_start(struct sim *s, struct host *h)
{
	h->rate = h->target = s->set.gbps;
	h->alpha = 1;
	h->timer_rounds = h->byte_rounds = 0;
	h->byte_count = 0;
	h->timer_gen++;
}

static void rate_up(struct sim *s, struct host *h)
{
	uint32_t least = h->timer_rounds < h->byte_rounds ? h->timer_rounds : h->byte_rounds;
	uint32_t most = h->timer_rounds > h->byte_rounds ? h->timer_rounds : h->byte_rounds;

	if (least > FAST)
		h->target += 10 * RATE_STEP;
	else if (most > FAST)
		h->target += RATE_STEP;
	if (h->target > s->set.gbps)
		h->target = s->set.gbps;
	h->rate = (h->rate + h->target) / 2;
}

void dcqcn_cnp(struct sim *s, struct host *h)
{
	h->target = h->rate;
	h->rate *= 1 - h->alpha / 2;
	if (h->rate < LEAST)
		h->rate = LEAST;
	h->alpha = (1 - G) * h->alpha + G;
	h->timer_rounds = h->byte_rounds = 0;
	h->byte_count = 0;
	h->timer_gen++;
	sim_at(s, s->now + TIMER, EV_ALPHA, h->num, h->timer_gen);
	sim_at(s, s->now + TIMER, EV_RATE, h->num, h->timer_gen);
}

void dcqcn_sent(struct sim *s, struct host *h, uint32_t bytes)
{
	if (h->rate >= s->set.gbps)
		return;
	h->byte_count += bytes;
	if (h->byte_count < BYTES)
		return;
	h->byte_count -= BYTES;
	h->byte_rounds++;
	rate_up(s, h);
}

void dcqcn_event(struct sim *s, const struct event *e)
{
	struct host *h = &s->host[e->host];

	/* timers that a later CNP has set anew */
	if (e->arg != h->timer_gen)
		return;
	if (e->kind == EV_ALPHA) {
		h->alpha *= 1 - G;
	} else {
		h->timer_rounds++;
		rate_up(s, h);
	}
	if (e->kind == EV_ALPHA ? h->alpha > 0.001 : h->rate < 0.999 * s->set.gbps)
		sim_at(s, s->now + TIMER, e->kind, h->num, h->timer_gen);
}
