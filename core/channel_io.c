/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels: messages out and in. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include "channel.h"
#include "log.h"
#include "mem.h"

#define HDR		sizeof(struct xr_msg_hdr)
#define WHERE		sizeof(struct xr_msg_where)
#define LARGE_HDR	64u	/* payload behind the header of an announcement: aligned */

_Static_assert(HDR == 32 && HDR + XR_MSG_TRACE_LEN + WHERE <= LARGE_HDR &&
	       HDR + XR_MSG_TRACE_LEN + XR_CHANNEL_EAGER == XR_MSG_EAGER_MAX, "layout of messages");

static const struct xr_fabric_ops *ops(const struct xrdma_channel *ch)
{
	return ch->ctx->ops;
}

static int ch_usable(const struct xrdma_channel *ch)
{
	return ch->state == XR_CH_OPEN || ch->state == XR_CH_CLOSING;
}

/* Room and credit were seen to before: a post that is refused now is the end of the channel. */
void xr_channel_post(struct xrdma_channel *ch, const struct xr_send_wr *wr)
{
	int r = ops(ch)->post_send(ch->qp, wr);

	if (r) {
		xr_warn("a channel ends, a post was refused: error %d", -r);
		xr_channel_fail(ch, -EIO);
	}
}

int xr_channel_post_recv(struct xrdma_channel *ch, uint32_t i)
{
	struct xr_recv_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_RECV, i) };
	struct xr_buf *b = &ch->in[i].buf;

	if (b->addr)
		wr.sge = (struct xr_sge){ b->addr, XR_MSG_EAGER_MAX, b->mr->lkey };
	return ops(ch)->post_recv(ch->qp, &wr);
}

/* The device has its memory back. */
static void in_let_go(struct xrdma_channel *ch, struct xr_in *in)
{
	if (in->ref)
		ops(ch)->recv_release(ch->qp, in->ref);
	in->ref = 0;
}

static void ch_repost(struct xrdma_channel *ch, uint32_t i)
{
	in_let_go(ch, &ch->in[i]);
	if (ch->in[i].copied)
		xr_pool_put(&ch->ctx->pool, &ch->in[i].buf);
	ch->in[i].copied = 0;
	if (ch->state != XR_CH_DEAD && xr_channel_post_recv(ch, i))
		xr_channel_fail(ch, -EIO);
}

/* --- sending ----------------------------------------------------------------------- */

static void hdr_fill(const struct xrdma_channel *ch, void *to, enum xr_msg_type type, uint32_t seq)
{
	struct xr_msg_hdr h = { .version = XR_CHANNEL_VERSION, .type = (uint8_t)type, .seq = seq,
				.flags = ch->ece ? XR_MSG_ECE : 0, .ack = ch->win.rcv_done,
				.ctl = ch->win.ctl_got };

	memcpy(to, &h, sizeof(h));
}

/* A header that was filled goes out for certain. */
static void hdr_said(struct xrdma_channel *ch)
{
	xr_window_ack(&ch->win);
	xr_window_ctl_ack(&ch->win);
	ch->owes = ch->ece = 0;
}

/* 1: it is out. 0: its buffers are all under way, try again when one has completed. */
static int ch_control(struct xrdma_channel *ch, enum xr_msg_type type)
{
	struct xr_buf *b = &ch->ctl[ch->ctl_posted % XR_WINDOW_CTL];
	struct xr_sge sge = { b->addr, HDR, b->mr->lkey };
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_CTL, 0), .op = XR_WR_SEND, .sge = &sge, .nsge = 1 };

	if (ch->ctl_posted - ch->ctl_done == XR_WINDOW_CTL)
		return 0;
	ch->ctl_posted++;
	ch->stats.control_sent++;
	xr_window_ctl_send(&ch->win);
	hdr_fill(ch, b->addr, type, ch->win.snd_nxt);
	hdr_said(ch);
	xr_channel_post(ch, &wr);
	return 1;
}

/* Header of the data message with number seq, and the trace id; returns their length. */
static uint32_t data_head(const struct xrdma_channel *ch, uint8_t *to, const struct xr_out *o, uint32_t seq)
{
	struct xr_msg_hdr h;

	hdr_fill(ch, &h, o->len > XR_CHANNEL_EAGER ? XR_MSG_ANNOUNCE : XR_MSG_EAGER, seq);
	h.flags |= o->flags;
	h.imm = o->imm;
	h.id = o->id;
	h.len = o->len;
	memcpy(to, &h, HDR);
	if (!(o->flags & XR_MSG_TRACE))
		return HDR;
	memcpy(to + HDR, o->trace, XR_MSG_TRACE_LEN);
	return HDR + XR_MSG_TRACE_LEN;
}

static void data_sent(struct xrdma_channel *ch, struct xr_out *o, uint32_t wire)
{
	o->at = xr_channel_now(ch);
	o->wire = wire;
	xr_adapt_sent(&ch->tx, o->at, wire);
	hdr_said(ch);
	ch->stats.msgs_sent++;
	ch->stats.bytes_sent += o->len;
}

/* Bytes that the network is to carry for its SEND, the trace id aside. */
static uint32_t data_wire(const struct xr_out *o)
{
	return o->len > XR_CHANNEL_EAGER ? LARGE_HDR : HDR + (uint32_t)o->len;
}

/* The message at snd_nxt has its credit and goes.  0: it does not, the channel ends. */
static int ch_data(struct xrdma_channel *ch, struct xr_out *o)
{
	int large = o->len > XR_CHANNEL_EAGER, r;
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_DATA, 0), .op = XR_WR_SEND };
	struct xr_sge sge[2];
	uint32_t seq, head;

	if (large) {
		r = ops(ch)->mw_bind(ch->qp, o->mem ? o->mem->mr : o->buf.mr, (void *)(uintptr_t)o->data,
				     o->len, XR_ACCESS_REMOTE_READ, &o->rkey);
		if (r) {
			/* in ERR the first completion says why */
			if (ch->qp->state == XR_QPS_ERR)
				return 0;
			xr_warn("a message cannot be opened to the peer: error %d", -r);
			xr_channel_fail(ch, -EIO);
			return 0;
		}
	}
	if (xr_window_send(&ch->win, o->len, &seq))
		return 0;
	head = data_head(ch, o->buf.addr, o, seq);
	if (large) {
		struct xr_msg_where w = { .addr = (uintptr_t)o->data, .rkey = o->rkey };

		memcpy(o->buf.addr + head, &w, WHERE);
		head += WHERE;
	}
	sge[0] = (struct xr_sge){ o->buf.addr, head, o->buf.mr->lkey };
	sge[1] = (struct xr_sge){ (void *)(uintptr_t)o->data, (uint32_t)o->len, o->buf.mr->lkey };
	wr.sge = sge;
	wr.nsge = large || !o->len ? 1 : 2;
	data_sent(ch, o, wr.nsge == 1 ? head : head + (uint32_t)o->len);
	xr_channel_post(ch, &wr);
	return 1;
}

/* Small, nothing before it, and a device that copies: no buffer.  0: it is out. */
static int ch_data_inline(struct xrdma_channel *ch, struct xr_out *o)
{
	uint8_t head[HDR + XR_MSG_TRACE_LEN];
	struct xr_sge sge[2] = { { head, 0, 0 }, { (void *)(uintptr_t)o->data, (uint32_t)o->len, 0 } };
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_DATA, 0), .op = XR_WR_SEND,
				 .flags = XR_SEND_INLINE, .sge = sge, .nsge = o->len ? 2 : 1 };
	uint32_t seq;

	if (o->len > XR_CHANNEL_EAGER || ch->ctx->caps.max_inline < XR_MSG_EAGER_MAX ||
	    ch->win.snd_nxt != ch->queued || !xr_window_open(&ch->win, o->len) ||
	    !xr_adapt_open(&ch->tx, xr_channel_now(ch), data_wire(o)))
		return -EAGAIN;
	sge[0].len = data_head(ch, head, o, ch->win.snd_nxt);
	if (ops(ch)->post_send(ch->qp, &wr))
		return -EAGAIN;
	o->data = NULL;
	data_sent(ch, o, sge[0].len + (uint32_t)o->len);
	return xr_window_send(&ch->win, o->len, &seq);
}

static void ch_pump(struct xrdma_channel *ch)
{
	while (ch_usable(ch) && !ch->close_sent && ch->win.snd_nxt != ch->queued) {
		struct xr_out *o = &ch->out[ch->win.snd_nxt & ch->out_mask];

		if (!xr_window_open(&ch->win, o->len) || !xr_channel_may(ch, &ch->tx, data_wire(o)) ||
		    !ch_data(ch, o))
			break;
	}
}

void xr_channel_release(struct xrdma_channel *ch, struct xr_out *o)
{
	/* qp NULL: it is gone, and its windows with it */
	if (o->rkey && ch->qp)
		ops(ch)->mw_invalidate(ch->qp, o->rkey);
	if (o->mem)
		o->mem->refs--;
	if (o->buf.addr) {
		ch->ctx->out_bytes -= o->buf.size;
		xr_pool_put(&ch->ctx->pool, &o->buf);
	}
	o->mem = NULL;
	o->rkey = 0;
}

/* A buffer is free when the peer has processed it and the device has let go of it. */
static void ch_release(struct xrdma_channel *ch)
{
	while (ch->released != ch->win.snd_una && ch->released != ch->completed) {
		struct xr_out *o = &ch->out[ch->released++ & ch->out_mask];
		int told = o->mem && !ch->silent && ch->ctx->cb.sent;
		uint64_t id = o->id;

		xr_channel_release(ch, o);
		if (told)
			ch->ctx->cb.sent(ch, id, ch->ctx->arg);
	}
}

static int in_mem(const struct xrdma_msg *m)
{
	const struct xr_mr *mr = m->mem->mr;
	size_t off = (size_t)((uintptr_t)m->data - (uintptr_t)mr->addr);

	return off <= mr->len && m->len <= mr->len - off;
}

static int ch_refuse(struct xrdma_channel *ch)
{
	ch->stats.refused++;
	return -EAGAIN;
}

/* Memory for the header, and for the payload unless that lies in registered memory. */
static int ch_buffer(struct xrdma_channel *ch, struct xr_out *o, const struct xrdma_msg *m)
{
	struct xrdma_context *ctx = ch->ctx;
	size_t head = m->len > XR_CHANNEL_EAGER ? LARGE_HDR : HDR + XR_MSG_TRACE_LEN;
	size_t room = head + (o->mem ? 0 : m->len);
	int r;

	/* the other half is for what peers send: two ends that are full of messages could not read any */
	if (ctx->out_bytes + room > ctx->pool.budget / 2)
		return -EAGAIN;
	r = xr_pool_get(&ctx->pool, room, &o->buf);
	if (r)
		return r == -ENOBUFS ? -EAGAIN : r;
	ctx->out_bytes += o->buf.size;
	if (o->mem)
		return 0;
	o->data = o->buf.addr + head;
	if (m->len)
		memcpy(o->buf.addr + head, m->data, m->len);
	return 0;
}

int xr_channel_send(struct xrdma_channel *ch, const struct xrdma_msg *m, uint64_t id, uint32_t flags)
{
	struct xr_out *o;
	int r;

	if (m->len && !m->data)
		return -EINVAL;
	if (m->mem && (m->mem->ctx != ch->ctx || !in_mem(m)))
		return -EINVAL;
	if (ch->state == XR_CH_OPENING && !ch->silent)
		return -ENOTCONN;
	if (ch->state != XR_CH_OPEN)
		return -EPIPE;
	if (m->len > ch->max_msg || m->len > ch->own_max)
		return -EMSGSIZE;
	if (ch->queued - ch->released > ch->out_mask)
		return ch_refuse(ch);
	o = &ch->out[ch->queued & ch->out_mask];
	o->buf.addr = NULL;
	o->mem = m->len > XR_CHANNEL_EAGER ? m->mem : NULL;
	o->data = m->data;
	o->id = id;
	o->len = m->len;
	o->imm = m->imm;
	o->rkey = 0;
	o->flags = (uint8_t)(flags | (m->trace ? XR_MSG_TRACE : 0));
	if (m->trace)
		memcpy(o->trace, m->trace, XR_MSG_TRACE_LEN);
	if (!ch_data_inline(ch, o)) {
		ch->queued++;
		return 0;
	}
	r = ch_buffer(ch, o, m);
	if (r)
		return r == -EAGAIN ? ch_refuse(ch) : r;
	if (o->mem)
		o->mem->refs++;
	ch->queued++;
	ch_pump(ch);
	if (ch->win.snd_nxt != ch->queued)
		ch->stats.waited++;
	return ch->state == XR_CH_DEAD ? -EPIPE : 0;
}

/* --- receiving --------------------------------------------------------------------- */

/* The layout of a data message: what follows the header is where the header says. */
static int in_parse(struct xrdma_channel *ch, struct xr_in *in)
{
	const struct xr_msg_hdr *h = &in->h;
	uint32_t at = HDR;

	if ((h->flags & ~(XR_MSG_TRACE | XR_MSG_REQUEST | XR_MSG_RESPONSE)) ||
	    (h->flags & (XR_MSG_REQUEST | XR_MSG_RESPONSE)) == (XR_MSG_REQUEST | XR_MSG_RESPONSE))
		return -EPROTO;
	if (h->flags & XR_MSG_TRACE) {
		if (in->len < HDR + XR_MSG_TRACE_LEN)
			return -EPROTO;
		memcpy(in->trace, in->data + HDR, XR_MSG_TRACE_LEN);
		at += XR_MSG_TRACE_LEN;
	}
	if (h->type == XR_MSG_EAGER) {
		in->payload = in->data + at;
		return h->len <= XR_CHANNEL_EAGER && in->len == at + h->len ? 0 : -EPROTO;
	}
	if (h->len <= XR_CHANNEL_EAGER || in->len != at + WHERE || h->len > ch->own_max)
		return -EPROTO;
	memcpy(&in->where, in->data + at, WHERE);
	return 0;
}

/*
 * The memory of the device is a ring, in which READs of this end need room as well: nothing that has to
 * wait for them may stay in there, else two ends could wait for each other.
 */
static void in_settle(struct xrdma_channel *ch, struct xr_in *in)
{
	if (!in->ref)
		return;
	if (in->h.type == XR_MSG_EAGER) {
		/* nothing is before it, so it is delivered now; or no memory, so it has to stay */
		if (ch->arr_head == ch->arr_tail || xr_pool_get(&ch->ctx->pool, XR_MSG_EAGER_MAX, &in->buf))
			return;
		in->copied = 1;
		memcpy(in->buf.addr, in->payload, in->h.len);
		in->payload = in->buf.addr;
	}
	in_let_go(ch, in);
}

/* A message arrived in receive i. Everything in it is the peer's word. */
static void ch_receive(struct xrdma_channel *ch, uint32_t i)
{
	struct xr_in *in = &ch->in[i];
	struct xr_msg_hdr *h = &in->h;

	if (in->len < HDR)
		goto nonsense;
	memcpy(h, in->data, HDR);
	/* nothing follows a CLOSE but acks of what the other end still says */
	if (h->version != XR_CHANNEL_VERSION || (ch->close_seen && h->type != XR_MSG_ACK) ||
	    xr_window_acked(&ch->win, h->ack) < 0 ||
	    xr_window_ctl_acked(&ch->win, h->ctl))
		goto nonsense;
	if (h->flags & XR_MSG_ECE) {
		h->flags &= (uint8_t)~XR_MSG_ECE;
		ch->stats.marked++;
		xr_adapt_acked(&ch->tx, 0, 0, 1);
	}
	switch (h->type) {
	case XR_MSG_ACK:
	case XR_MSG_CLOSE:
		if (in->len != HDR || h->flags || h->seq != ch->win.rcv_nxt)
			goto nonsense;
		xr_window_ctl_receive(&ch->win);
		ch->stats.control_received++;
		ch->ctx->owing = 1;
		ch->close_seen |= h->type == XR_MSG_CLOSE;
		ch_repost(ch, i);
		break;
	case XR_MSG_EAGER:
	case XR_MSG_ANNOUNCE:
		if (in_parse(ch, in) || xr_window_receive(&ch->win, h->seq, h->len))
			goto nonsense;
		in_settle(ch, in);
		ch->arrived[ch->arr_tail++ & ch->arr_mask] = i;
		break;
	default:
		goto nonsense;
	}
	ch_release(ch);
	return;
nonsense:
	xr_warn("a channel ends, its peer sent a message that cannot be");
	xr_channel_fail(ch, -EPROTO);
}

void xr_channel_early(struct xrdma_channel *ch)
{
	uint32_t n = ch->arr_tail - ch->arr_head, at = ch->arr_head, i;

	/* what is taken out at `at` is put back at or before it */
	ch->arr_tail = ch->arr_head;
	for (i = 0; i < n && ch_usable(ch); i++)
		ch_receive(ch, ch->arrived[at++ & ch->arr_mask]);
}

/* To the program: as an answer, or as a message. */
static void ch_hand_over(struct xrdma_channel *ch, struct xr_in *in, const uint8_t *data)
{
	struct xrdma_msg m = { .data = data, .len = (size_t)in->h.len, .id = in->h.id, .imm = in->h.imm,
			       .kind = in->h.flags & XR_MSG_REQUEST ? XRDMA_REQUEST :
				       in->h.flags & XR_MSG_RESPONSE ? XRDMA_RESPONSE : XRDMA_MESSAGE };

	if (in->h.flags & XR_MSG_TRACE)
		m.trace = in->trace;
	ch->stats.msgs_received++;
	ch->stats.bytes_received += in->h.len;
	if (ch->silent)
		return;
	if (m.kind != XRDMA_RESPONSE) {
		if (ch->ctx->cb.message)
			ch->ctx->cb.message(ch, &m, ch->ctx->arg);
	} else if (xr_rpc_answer(ch, &m)) {
		xr_warn("a channel ends, its peer answered what was not asked");
		xr_channel_fail(ch, -EPROTO);
	}
}

/* Acks that go alone, and answers to such of the peer. */
static void ch_say_what_is_due(struct xrdma_channel *ch)
{
	if (ch_usable(ch) && (xr_window_ack_due(&ch->win) || xr_window_answer_due(&ch->win)))
		ch_control(ch, XR_MSG_ACK);
}

/* Delivers what is complete, in order. */
static void ch_deliver(struct xrdma_channel *ch)
{
	while (ch->arr_head != ch->arr_tail && ch_usable(ch)) {
		uint32_t i = ch->arrived[ch->arr_head & ch->arr_mask];
		struct xr_in *in = &ch->in[i];
		const uint8_t *data = in->payload;
		uint64_t len = in->h.len;

		/* nobody wants it any more: one that is being read is read to its end */
		if (in->h.type == XR_MSG_ANNOUNCE) {
			if (!ch->silent || ch->rd.addr) {
				if (!xr_channel_fetch(ch, &in->h, &in->where))
					return;
				data = ch->rd.addr;
				ch->stats.fetched++;
			} else {
				xr_budget_forget(&ch->ctx->budget, &ch->rx);
			}
			/* its sender keeps memory for it */
			ch->owes = ch->ctx->owing = 1;
		}
		ch_hand_over(ch, in, data);
		if (ch->state == XR_CH_DEAD)
			return;
		if (ch->rd.addr)
			xr_pool_put(&ch->ctx->pool, &ch->rd);
		ch->arr_head++;
		ch_repost(ch, i);
		xr_window_done(&ch->win, len);
		ch_say_what_is_due(ch);
	}
}

void xr_channel_idle(struct xrdma_channel *ch)
{
	if (!ch_usable(ch) || ch->close_sent)
		return;
	if (!(ch->owes && ch->win.rcv_done != ch->win.rcv_acked) && !xr_window_answer_lazy(&ch->win))
		return;
	/* where it may not, it asks again when the peer has heard of the others */
	if (!xr_window_lazy(&ch->win) || !ch_control(ch, XR_MSG_ACK))
		ch->ctx->owing = 1;
}

/* The peer has closed and all that it had sent is delivered. */
static void ch_closed(struct xrdma_channel *ch)
{
	if (!ch->close_sent) {
		if (!ch_control(ch, XR_MSG_CLOSE))
			return;
		ch->close_sent = ch->close_done = 1;
		if (!ch->silent && ch_usable(ch)) {
			ch->state = XR_CH_CLOSING;
			xr_rpc_end(ch, -ECONNRESET);
			/* closed in such a callback: then there is no more to say */
			if (!ch->silent && ch->ctx->cb.closed)
				ch->ctx->cb.closed(ch, 0, ch->ctx->arg);
			ch->silent = 1;
		}
		return;
	}
	ch->close_done = 1;
	xr_channel_fail(ch, 0);
}

void xr_channel_progress(struct xrdma_channel *ch)
{
	if (ch->busy || !ch_usable(ch))
		return;
	ch->busy = 1;
	ch_pump(ch);
	/* callbacks run in a poll only */
	if (ch->ctx->polling) {
		ch_deliver(ch);
		ch_say_what_is_due(ch);
		if (ch_usable(ch) && ch->close_seen && !ch->close_done && ch->arr_head == ch->arr_tail)
			ch_closed(ch);
	}
	if (ch->state == XR_CH_CLOSING && !ch->close_sent && ch->win.snd_nxt == ch->queued)
		ch->close_sent = (uint8_t)ch_control(ch, XR_MSG_CLOSE);
	ch->busy = 0;
}

void xr_channel_complete(struct xrdma_channel *ch, const struct xr_wc *wc)
{
	uint32_t i;

	/* of a connection that had the queue pair before */
	if (XR_WR_GENERATION(wc->wr_id) != ch->generation) {
		ch->ctx->stale++;
		return;
	}
	if (XR_WR_KIND(wc->wr_id) == XR_WR_ID_SENTINEL) {
		if (!--ch->sentinels)
			ch->ctx->ended = 1;
		return;
	}
	if (ch->state == XR_CH_DEAD)
		return;
	if (wc->status != XR_WC_SUCCESS) {
		/* flushed: why is what the event says, or the completion that came before */
		if (wc->status == XR_WC_WR_FLUSH_ERR)
			return;
		xr_info("a channel ends: %s", xr_wc_status_name(wc->status));
		xr_channel_fail(ch, wc->status == XR_WC_RETRY_EXC_ERR ? -ECONNRESET : -EIO);
		return;
	}
	ch->alive = 1;
	switch (XR_WR_KIND(wc->wr_id)) {
	case XR_WR_ID_RECV:
		i = XR_WR_ARG(wc->wr_id);
		ch->in[i].data = wc->data;
		ch->in[i].len = wc->len;
		ch->in[i].ref = wc->ref;
		ch->ece |= (wc->flags & XR_WC_ECN) != 0;
		if (ch->state == XR_CH_OPENING)
			ch->arrived[ch->arr_tail++ & ch->arr_mask] = i;
		else
			ch_receive(ch, i);
		break;
	case XR_WR_ID_DATA:
		xr_channel_sent(ch, &ch->out[ch->completed++ & ch->out_mask], wc);
		ch_release(ch);
		break;
	case XR_WR_ID_CTL:
		ch->ctl_done++;
		break;
	case XR_WR_ID_FETCH:
		xr_channel_fetched(ch, XR_WR_ARG(wc->wr_id), wc);
		break;
	case XR_WR_ID_ONE:
		xr_onesided_done(ch);
		break;
	case XR_WR_ID_PROBE:
		ch->probing = 0;
		break;
	}
	xr_channel_progress(ch);
	if (XR_WR_KIND(wc->wr_id) == XR_WR_ID_FETCH)
		xr_channel_turns(ch->ctx);
}
