/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two parties that keep to the window, in every order of events that chance finds: no receive is
 * ever missing, everything is acked in the end, and neither waits for the other for ever.  What they grant changes
 * as in channel_bank.c: another bank of receives behind the one that is emptied.
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
	uint8_t ctl, control, filler;
	uint32_t msgs, from;		/* control: what is granted, and from which receive on */
	uint32_t at;			/* the receive that it used */
};

struct party {
	struct xr_window w;
	struct item wire[WIRE];		/* towards this party */
	uint32_t head, tail;
	uint32_t charge[XR_WINDOW_MAX_MSGS];
	uint32_t len[WIRE];		/* of what arrived, by number */
	uint32_t want;			/* messages that it still wants to send */
	uint32_t posted;		/* receives that are free */
	uint32_t ever, used;		/* receives that were ever posted, that were used */
	uint32_t begins, old;		/* where the bank begins; receives of the one before that are left */
	uint32_t msgs, most;		/* what it grants, and may come to */
	uint32_t changes;
	uint8_t due;			/* the peer is to be told */
	uint32_t fill_to;		/* of the peer */
	uint32_t at[WIRE];		/* the receives that messages are in, by number */
	uint32_t owes;			/* messages done and not acked that somebody waits for */
};

static void give(struct party *to, struct item it)
{
	/* without a receive the connection would end here */
	assert_true(to->posted > 0);
	to->posted--;
	it.at = to->used++;
	to->wire[to->tail++ % WIRE] = it;
}

/* A receive is done with: posted again, or given up with its bank. */
static void repost(struct party *p, uint32_t at)
{
	if ((int32_t)(at - p->begins) >= 0) {
		p->posted++;
		p->ever++;
	} else if (!--p->old) {
		assert_int_equal(xr_window_grant(&p->w, p->msgs), 0);
	}
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

static void control(struct party *p, struct party *peer)
{
	struct item it = header(p);

	it.control = 1;
	it.msgs = p->msgs;
	it.from = p->begins;
	p->due = 0;
	xr_window_ctl_send(&p->w);
	give(peer, it);
}

static int act_control(struct party *p, struct party *peer, int quiet)
{
	if (!xr_window_ack_due(&p->w) && !xr_window_answer_due(&p->w) && !(p->due && xr_window_lazy(&p->w)) &&
	    !(quiet && (p->owes || xr_window_answer_lazy(&p->w)) && xr_window_lazy(&p->w)))
		return 0;
	control(p, peer);
	return 1;
}

static void change(struct party *p, uint32_t msgs)
{
	p->old = p->msgs + XR_WINDOW_CTL - 2;
	p->begins = p->ever;
	p->msgs = msgs;
	p->ever += msgs + XR_WINDOW_CTL - 2;
	p->posted += msgs + XR_WINDOW_CTL - 2;
	if (msgs > p->w.rcv_msgs)
		assert_int_equal(xr_window_grant(&p->w, msgs), 0);
	p->due = 1;
	p->changes++;
}

/* More while there is traffic; fewer when all is done, and then the peer is told before anything else is. */
static int act_change(struct party *p, struct party *peer, struct rng *g)
{
	if (p->old)
		return 0;
	if (rng_below(g, 2)) {
		if (p->msgs == p->most)
			return 0;
		change(p, p->msgs * 4 < p->most ? p->msgs * 4 : p->most);
		return 1;
	}
	if (p->msgs == 1 || p->w.rcv_done != p->w.rcv_nxt || p->w.snd_una != p->w.snd_nxt ||
	    !xr_window_lazy(&p->w))
		return 0;
	change(p, 1 + rng_below(g, p->msgs - 1));
	control(p, peer);
	return 1;
}

static int act_fill(struct party *p, struct party *peer)
{
	if ((int32_t)(p->fill_to - peer->used) <= 0)
		return 0;
	give(peer, (struct item){ .filler = 1 });
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
	if (it->filler) {
		repost(p, it->at);
		return 1;
	}
	assert_true(xr_window_acked(&p->w, it->ack) >= 0);
	assert_int_equal(xr_window_ctl_acked(&p->w, it->ctl), 0);
	if (it->control) {
		xr_window_ctl_receive(&p->w);
		assert_int_equal(xr_window_granted(&p->w, it->msgs), 0);
		p->fill_to = it->from;
		repost(p, it->at);
	} else {
		assert_int_equal(xr_window_receive(&p->w, it->seq, it->len), 0);
		p->len[it->seq % WIRE] = it->len;
		p->at[it->seq % WIRE] = it->at;
	}
	say_what_is_due(p, peer);
	return 1;
}

static int act_done(struct party *p, struct party *peer)
{
	uint32_t seq = p->w.rcv_done;

	if (seq == p->w.rcv_nxt)
		return 0;
	repost(p, p->at[seq % WIRE]);
	assert_int_equal(xr_window_done(&p->w, p->len[seq % WIRE]), 0);
	p->owes++;
	say_what_is_due(p, peer);
	return 1;
}

static void two_parties(void **state)
{
	static struct party p[2];
	uint32_t seed, changes = 0;

	(void)state;
	for (seed = 1; seed <= 400; seed++) {
		struct rng g = { seed };
		uint32_t msgs[2], bytes[2], bias[9], i, steps, idle = 0;

		memset(p, 0, sizeof(p));
		for (i = 0; i < 2; i++) {
			msgs[i] = 1 + rng_below(&g, rng_below(&g, 2) ? 4 : 64);
			bytes[i] = 1 + rng_below(&g, 200000);
			p[i].want = rng_below(&g, 6) ? 300 + rng_below(&g, 700) : 0;
			p[i].posted = p[i].ever = msgs[i] + XR_WINDOW_CTL - 2;	/* the closes are not played */
			p[i].msgs = msgs[i];
			p[i].most = seed % 4 ? msgs[i] + rng_below(&g, 100) : msgs[i];
		}
		for (i = 0; i < 2; i++)
			assert_int_equal(xr_window_init(&p[i].w, UINT32_MAX - 200, msgs[!i], bytes[!i],
							msgs[i], bytes[i], p[i].charge,
							XR_WINDOW_MAX_MSGS), 0);
		/* each run prefers other things: one end lags, or only listens, or never is quiet */
		for (i = 0; i < 9; i++)
			bias[i] = 1 + rng_below(&g, 10) * rng_below(&g, 10);
		bias[7] += 30;
		for (steps = 0; idle < 20000 && steps < 10000000; steps++) {
			uint32_t sum = 0, k, pick, who = rng_below(&g, 2);
			int r = 0;

			for (i = 0; i < 9; i++)
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
			case 7: r = act_fill(&p[who], &p[!who]); break;
			case 8:
				/* enough of it: the end must come */
				if (p[who].most != msgs[who] && p[who].changes < 60)
					r = act_change(&p[who], &p[!who], &g);
				break;
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
			assert_int_equal(p[i].old, 0);
			assert_int_equal(p[i].w.rcv_msgs, p[i].msgs);
			assert_int_equal(p[!i].w.snd_msgs, p[i].msgs);
			assert_int_equal(p[i].posted, p[i].msgs + XR_WINDOW_CTL - 2);
			changes += p[i].changes;
		}
	}
	assert_true(changes > 5000);
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
