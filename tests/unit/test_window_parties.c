/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two parties that keep to the window, in every order of events that chance finds: no receive is
 * ever missing, everything is acked in the end, and neither waits for the other for ever.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include "core/window.h"
#include "ring_rig.h"

#define WIRE 4096u

struct item {
	uint32_t seq, ack, len;
	uint8_t ctl, control;
};

struct party {
	struct xr_window w;
	struct item wire[WIRE];		/* towards this party */
	uint32_t head, tail;
	uint32_t charge[XR_WINDOW_MAX_MSGS];
	uint32_t len[WIRE];		/* of what arrived, by number */
	uint32_t want;			/* messages that it still wants to send */
	uint32_t posted;		/* receives that are free */
	uint32_t owes;			/* messages done and not acked that somebody waits for */
};

static void give(struct party *to, struct item it)
{
	/* without a receive the connection would end here */
	assert_true(to->posted > 0);
	to->posted--;
	to->wire[to->tail++ % WIRE] = it;
}

static struct item header(struct party *p)
{
	struct item it = { .ack = xr_window_ack(&p->w), .ctl = xr_window_ctl_ack(&p->w) };

	p->owes = 0;
	return it;
}

static int act_send(struct party *p, struct party *peer, struct rng *g)
{
	uint32_t len = rng_below(g, 8) ? rng_below(g, 5000) : rng_below(g, 90000), seq;
	struct item it;

	if (!p->want || xr_window_send(&p->w, len, &seq))
		return 0;
	it = header(p);
	it.seq = seq;
	it.len = len;
	give(peer, it);
	p->want--;
	return 1;
}

static int act_control(struct party *p, struct party *peer, int quiet)
{
	struct item it;

	if (!xr_window_ack_due(&p->w) && !xr_window_answer_due(&p->w) &&
	    !(quiet && (p->owes || xr_window_answer_lazy(&p->w)) && xr_window_lazy(&p->w)))
		return 0;
	it = header(p);
	it.control = 1;
	xr_window_ctl_send(&p->w);
	give(peer, it);
	return 1;
}

/* What is due is said at once, as the channel does: before anything else happens at this end. */
static void say_what_is_due(struct party *p, struct party *peer)
{
	act_control(p, peer, 0);
}

static int act_hear(struct party *p, struct party *peer)
{
	struct item *it;

	if (p->head == p->tail)
		return 0;
	it = &p->wire[p->head++ % WIRE];
	assert_true(xr_window_acked(&p->w, it->ack) >= 0);
	assert_int_equal(xr_window_ctl_acked(&p->w, it->ctl), 0);
	if (it->control) {
		xr_window_ctl_receive(&p->w);
		p->posted++;
	} else {
		assert_int_equal(xr_window_receive(&p->w, it->seq, it->len), 0);
		p->len[it->seq % WIRE] = it->len;
	}
	say_what_is_due(p, peer);
	return 1;
}

static int act_done(struct party *p, struct party *peer)
{
	uint32_t seq = p->w.rcv_done;

	if (seq == p->w.rcv_nxt)
		return 0;
	p->posted++;
	assert_int_equal(xr_window_done(&p->w, p->len[seq % WIRE]), 0);
	p->owes++;
	say_what_is_due(p, peer);
	return 1;
}

static void two_parties(void **state)
{
	static struct party p[2];
	uint32_t seed;

	(void)state;
	for (seed = 1; seed <= 400; seed++) {
		struct rng g = { seed };
		uint32_t msgs[2], bytes[2], bias[7], i, steps, idle = 0;

		memset(p, 0, sizeof(p));
		for (i = 0; i < 2; i++) {
			msgs[i] = 1 + rng_below(&g, rng_below(&g, 2) ? 4 : 64);
			bytes[i] = 1 + rng_below(&g, 200000);
			p[i].want = rng_below(&g, 6) ? 300 + rng_below(&g, 700) : 0;
			p[i].posted = msgs[i] + XR_WINDOW_CTL - 2;	/* the closes are not played */
		}
		for (i = 0; i < 2; i++)
			assert_int_equal(xr_window_init(&p[i].w, UINT32_MAX - 200, msgs[!i], bytes[!i],
							msgs[i], bytes[i], p[i].charge,
							XR_WINDOW_MAX_MSGS), 0);
		/* each run prefers other things: one end lags, or only listens, or never is quiet */
		for (i = 0; i < 7; i++)
			bias[i] = 1 + rng_below(&g, 10) * rng_below(&g, 10);
		for (steps = 0; idle < 20000 && steps < 3000000; steps++) {
			uint32_t sum = 0, k, pick, who = rng_below(&g, 2);
			int r = 0;

			for (i = 0; i < 7; i++)
				sum += bias[i];
			pick = rng_below(&g, sum);
			for (k = 0; pick >= bias[k]; k++)
				pick -= bias[k];
			switch (k) {
			case 0: r = act_send(&p[who], &p[!who], &g); break;
			case 1: r = act_send(&p[0], &p[1], &g); break;
			case 2: r = act_control(&p[who], &p[!who], 1); break;
			case 3: r = act_hear(&p[0], &p[1]); break;
			case 4: r = act_hear(&p[1], &p[0]); break;
			case 5: r = act_done(&p[0], &p[1]); break;
			case 6: r = act_done(&p[1], &p[0]); break;
			}
			idle = r ? 0 : idle + 1;
		}
		for (i = 0; i < 2; i++) {
			assert_int_equal(p[i].want, 0);
			assert_int_equal(p[i].head, p[i].tail);
			assert_int_equal(p[i].w.rcv_done, p[i].w.rcv_nxt);
			assert_int_equal(p[i].w.snd_una, p[i].w.snd_nxt);
			assert_int_equal(p[i].w.snd_out, 0);
			assert_int_equal(p[i].owes, 0);
		}
	}
}

static void control_is_counted(void **state)
{
	uint32_t charge[8], i;
	struct xr_window w;

	(void)state;
	assert_int_equal(xr_window_init(&w, 5, 8, 1000, 8, 1000, charge, 8), 0);
	for (i = 0; i < 1000; i++) {
		assert_true(xr_window_lazy(&w));
		xr_window_ctl_send(&w);
		assert_int_equal(xr_window_ctl_acked(&w, (uint8_t)(w.ctl_sent + 1)), -EPROTO);
		assert_int_equal(xr_window_ctl_acked(&w, (uint8_t)(w.ctl_acked - 1)), -EPROTO);
		assert_int_equal(xr_window_ctl_acked(&w, w.ctl_sent), 0);
	}
	for (i = 0; i < XR_WINDOW_LAZY; i++)
		xr_window_ctl_send(&w);
	assert_false(xr_window_lazy(&w));
	for (i = 1; i <= XR_WINDOW_LAZY; i++) {
		xr_window_ctl_receive(&w);
		assert_int_equal(xr_window_answer_lazy(&w), i >= 2);
		assert_int_equal(xr_window_answer_due(&w), i >= XR_WINDOW_LAZY);
	}
	assert_int_equal(xr_window_ctl_ack(&w), XR_WINDOW_LAZY);
	assert_false(xr_window_answer_lazy(&w));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(control_is_counted),
		cmocka_unit_test(two_parties),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
