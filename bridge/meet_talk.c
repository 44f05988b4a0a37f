/* SPDX-License-Identifier: BSD-2-Clause */
/* What the two ends of a rendezvous say to each other. */
#include <errno.h>
#include <string.h>
#include "log.h"
#include "meet.h"
#include "mem.h"

static int talk_keyed(const struct meet *m)
{
	return !m->cfg.trust_fabric;
}

/* The next message of our own, whatever its type needs but for the tag. */
static int talk_fill(const struct meet_end *e, enum proof_type type, const struct xr_tuple *t, struct proof *p)
{
	memset(p, 0, sizeof(*p));
	p->type = (uint8_t)type;
	p->flags = talk_keyed(e->dev->meet) ? PROOF_KEYED : 0;
	p->qpn = e->ch->qp->num;
	memcpy(p->gid, e->dev->ctx->caps.gid, sizeof(p->gid));
	p->tuple = *t;
	return type == PROOF_REFUSE ? 0 : xr_random(p->nonce, sizeof(p->nonce));
}

static int talk_send(struct xrdma_channel *ch, const uint8_t msg[PROOF_LEN])
{
	return xrdma_send_msg(ch, &(struct xrdma_msg){ .data = msg, .len = PROOF_LEN });
}

static int talk_say(struct meet_flow *f, enum proof_type type)
{
	uint8_t msg[PROOF_LEN];
	struct proof p;
	int r = talk_fill(f->end, type, &f->tuple, &p);

	if (r)
		return r;
	proof_put(msg, &p);
	proof_say(&f->talk, msg);
	return talk_send(f->end->ch, msg);
}

/* A word to whoever it is, and the end of it. */
static void talk_refuse(struct meet_end *e, const struct xr_tuple *t, enum xr_reason why)
{
	struct xrdma_channel *ch = e->ch;
	uint8_t msg[PROOF_LEN];
	struct proof p;

	talk_fill(e, PROOF_REFUSE, t, &p);
	p.reason = (uint16_t)why;
	proof_put(msg, &p);
	talk_send(ch, msg);
	if (e->flow)
		e->flow->end = NULL;
	meet_end_free(e);
	xrdma_close(ch);
}

void meet_say_call(struct meet_flow *f)
{
	int r;

	proof_begin(&f->talk, f->meet->key);
	f->heard = 1;
	r = talk_say(f, PROOF_CALL);
	if (r) {
		meet_call_failed(f, r);
		return;
	}
	f->state = MEET_CALLED;
	f->deadline = xr_now_ns() + MEET_WORD_NS;
}

/* What it says of itself must be what the device says of it. */
static enum xr_reason talk_check(const struct meet_end *e, const struct proof *p)
{
	static const uint8_t none[16];
	const struct xr_qp *qp = e->ch->qp;

	if ((p->flags & PROOF_KEYED) != (talk_keyed(e->dev->meet) ? PROOF_KEYED : 0))
		return p->flags & PROOF_KEYED ? XR_REASON_PROOF_FAILED : XR_REASON_NO_KEY;
	if ((qp->peer_num && p->qpn != qp->peer_num) ||
	    (memcmp(qp->peer_gid, none, 16) && memcmp(p->gid, qp->peer_gid, 16)))
		return XR_REASON_PROOF_FAILED;
	return XR_REASON_NONE;
}

static enum xr_reason talk_reason(int r)
{
	return r == -EPROTONOSUPPORT ? XR_REASON_VERSION_MISMATCH : r == -EACCES ? XR_REASON_PROOF_FAILED :
	       XR_REASON_BAD_HANDSHAKE;
}

/* --- host ------------------------------------------------------------------------------------------ */

/*
 * The caller has proved that its connection comes from the address and port of this one, and says that it goes
 * elsewhere.  Without a key nothing of that would be known.
 */
static enum xr_reason talk_translated(struct meet_flow *f)
{
	const struct meet_config *cfg = &f->meet->cfg;
	int r = cfg->nat == XR_NAT_NO ? -EPERM : cfg->lone(&f->tuple, cfg->nat == XR_NAT_YES);

	if (!r)
		return XR_REASON_NONE;
	xr_info("a call may be for a connection whose server has another address there: error %d", -r);
	f->translated = 1;
	return XR_REASON_TRANSLATED;
}

static void hear_call(struct meet_end *e, const uint8_t msg[PROOF_LEN], const struct proof *p)
{
	struct meet_flow *f = NULL;
	enum xr_reason why = talk_check(e, p);
	int r, translated = 0;
	struct xr_tuple mine;

	xr_tuple_mirror(&mine, &p->tuple);
	if (why == XR_REASON_NONE) {
		f = meet_expected(e->dev, &p->tuple, &translated);
		if (!f)
			why = XR_REASON_YOUNG;	/* may be another time */
	}
	/* where it is the network's word that counts, it has to be about this very peer */
	if (f && !talk_keyed(f->meet) && e->dev->ctx->caps.network &&
	    memcmp(e->ch->peer.ip, f->tuple.peer, 16))
		why = XR_REASON_PROOF_FAILED;
	else if (f) {
		proof_begin(&f->talk, f->meet->key);
		r = proof_hear(&f->talk, msg);
		if (r)
			why = talk_reason(r);
	}
	if (why == XR_REASON_NONE && translated)
		why = talk_translated(f);
	if (why != XR_REASON_NONE) {
		/* whoever that was: the connection goes on waiting for its other end */
		xr_info("a call was refused: %s", xr_reason_name(why));
		talk_refuse(e, &mine, why);
		return;
	}
	e->dev->strangers--;
	e->flow = f;
	f->end = e;
	f->heard = 1;
	f->state = MEET_ANSWERED;
	f->deadline = xr_now_ns() + MEET_WORD_NS;
	r = talk_say(f, PROOF_ANSWER);
	if (r)
		meet_call_failed(f, r);
}

/* --- both ------------------------------------------------------------------------------------------ */

/* In front of a key the far end may have another address than the one that we know: a DNAT was in between. */
static int talk_same(const struct meet_flow *f, const struct proof *p)
{
	struct xr_tuple mine;

	xr_tuple_mirror(&mine, &p->tuple);
	if (f->state == MEET_CALLED && talk_keyed(f->meet) && f->meet->cfg.nat != XR_NAT_NO) {
		memcpy(mine.local, f->tuple.local, 16);
		mine.lport = f->tuple.lport;
	}
	if (f->state == MEET_ANSWERED) {
		struct proof call;

		/* what it said first */
		return !proof_get(f->talk.said[0], PROOF_LEN, &call) &&
		       !memcmp(&call.tuple, &p->tuple, sizeof(call.tuple));
	}
	return !memcmp(&mine, &f->tuple, sizeof(mine));
}

/* Which the setting does not permit. */
static int talk_other_address(const struct meet_flow *f, const struct proof *p)
{
	return f->state == MEET_CALLED && p->type == PROOF_ANSWER && p->tuple.family == f->tuple.family &&
	       p->tuple.lport == f->tuple.pport && !memcmp(p->tuple.local, f->tuple.peer, 16);
}

static enum xr_reason talk_confirm(struct meet_flow *f)
{
	return talk_say(f, PROOF_CONFIRM) ? XR_REASON_RENDEZVOUS_FAILED : XR_REASON_NONE;
}

/* Instead of CONFIRM, and as certain. */
static void talk_slower(struct meet_flow *f)
{
	uint8_t msg[PROOF_LEN];
	struct proof p;

	if (!talk_fill(f->end, PROOF_REFUSE, &f->tuple, &p)) {
		p.reason = XR_REASON_SLOWER_PATH;
		proof_put(msg, &p);
		proof_say(&f->talk, msg);
		talk_send(f->end->ch, msg);
	}
}

void meet_paced(struct meet_flow *f, const uint64_t *rtt)
{
	uint64_t now = xr_now_ns();
	enum pace_says says = PACE_MORE;

	if (!rtt)
		pace_begin(&f->pace, f->tcp, 0, now);
	else
		says = pace_add(&f->pace, *rtt, now);
	/* where one is under way already, of the keepalive, it is as good */
	if (says == PACE_MORE) {
		xr_channel_probe(f->end->ch);
		return;
	}
	if (says == PACE_SLOW) {
		xr_info("round trips over RDMA take %llu us or more, those of TCP %llu us",
			(unsigned long long)f->pace.least / 1000, (unsigned long long)f->pace.tcp / 1000);
		talk_slower(f);
		meet_slower(f);
	} else if (talk_confirm(f) == XR_REASON_NONE) {
		meet_up(f);
	} else {
		meet_failed(f, XR_REASON_RENDEZVOUS_FAILED, 0);
	}
}

static void hear_refuse(struct meet_flow *f, uint16_t reason)
{
	switch (reason) {
	case XR_REASON_YOUNG:
		meet_call_failed(f, -ECONNREFUSED);
		return;
	case XR_REASON_TRANSLATED:
		meet_failed(f, XR_REASON_TRANSLATED, MEET_TRANSLATED_MS);
		return;
	case XR_REASON_PROOF_FAILED:
	case XR_REASON_NO_KEY:
	case XR_REASON_VERSION_MISMATCH:
		meet_failed(f, reason == XR_REASON_VERSION_MISMATCH ? XR_REASON_VERSION_MISMATCH :
			    XR_REASON_PROOF_FAILED, 0);
		return;
	default:
		meet_failed(f, XR_REASON_PEER_REFUSED, 0);
	}
}

void meet_hear(struct meet_end *e, const struct xrdma_msg *m)
{
	struct meet_flow *f = e->flow;
	uint8_t msg[PROOF_LEN];
	struct xr_tuple none;
	struct proof p;
	enum xr_reason why;
	int r = m->len <= PROOF_LEN ? 0 : -EBADMSG;

	/* the peer can write where it lies */
	if (!r) {
		memcpy(msg, m->data, m->len);
		r = proof_get(msg, m->len, &p);
	}
	if (!r && !f && p.type == PROOF_CALL) {
		hear_call(e, msg, &p);
		return;
	}
	if (!r && f && p.type == PROOF_REFUSE && f->state == MEET_CALLED) {
		hear_refuse(f, p.reason);
		return;
	}
	if (!r && f && p.type == PROOF_REFUSE && f->state == MEET_ANSWERED && p.reason == XR_REASON_SLOWER_PATH &&
	    talk_same(f, &p) && !proof_hear(&f->talk, msg)) {
		meet_slower(f);
		return;
	}
	if (!r && (!f || p.type != (f->state == MEET_CALLED ? PROOF_ANSWER : PROOF_CONFIRM) || !talk_same(f, &p)))
		r = -EBADMSG;
	why = r ? talk_reason(r) : talk_check(e, &p);
	if (why == XR_REASON_BAD_HANDSHAKE && f && f->meet->cfg.nat == XR_NAT_NO && talk_other_address(f, &p))
		why = XR_REASON_TRANSLATED;
	if (why == XR_REASON_NONE && proof_hear(&f->talk, msg))
		why = XR_REASON_PROOF_FAILED;
	if (why == XR_REASON_NONE && f->state == MEET_CALLED && f->tcp && f->meet->cfg.compare) {
		f->state = MEET_PACING;
		meet_paced(f, NULL);
		return;
	}
	if (why == XR_REASON_NONE && f->state == MEET_CALLED)
		why = talk_confirm(f);
	if (why == XR_REASON_NONE) {
		meet_up(f);
		return;
	}
	memset(&none, 0, sizeof(none));
	talk_refuse(e, f ? &f->tuple : &none, why);
	if (!f)
		return;
	if (f->state == MEET_ANSWERED) {
		/* it was not the other end after all, which may still call */
		meet_call_failed(f, -EACCES);
	} else {
		meet_failed(f, why, 0);
	}
}
