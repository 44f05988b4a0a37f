/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels: messages out, and what completes. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "atomic.h"
#include "channel.h"
#include "log.h"
#include "mem.h"

#define HDR		sizeof(struct xr_msg_hdr)
#define WHERE		sizeof(struct xr_msg_where)
#define FRONT		64u	/* in front of a payload: room for any header, aligned */

_Static_assert(HDR == 32 && HDR + XR_MSG_TRACE_LEN + WHERE <= FRONT &&
	       HDR + XR_MSG_TRACE_LEN + XR_CHANNEL_EAGER == XR_MSG_EAGER_MAX, "layout of messages");

static const struct xr_fabric_ops *ops(const struct xrdma_channel *ch)
{
	return ch->ctx->ops;
}

/* It uses a receive of the peer. */
static void ch_count(struct xrdma_channel *ch)
{
	if (++ch->sends == ch->fill_to)
		ch->filling = 0;
}

/* Room and credit were seen to before: a post that is refused now is the end of the channel. */
void xr_channel_post(struct xrdma_channel *ch, const struct xr_send_wr *wr)
{
	int r = ops(ch)->post_send(ch->qp, wr);

	if (wr->op == XR_WR_SEND)
		ch_count(ch);
	if (r) {
		xr_warn("a channel ends, a post was refused: error %d", -r);
		xr_channel_fail(ch, -EIO);
	}
}

/* --- the peer's receives ------------------------------------------------------------ */

/* Bytes that the next SEND may carry. */
static uint32_t ch_eager(const struct xrdma_channel *ch)
{
	return xr_likely(!ch->filling) || ch->eager < ch->eager_before ? ch->eager : ch->eager_before;
}

int xr_channel_granted(struct xrdma_channel *ch, uint32_t grant, uint32_t from)
{
	uint32_t eager = XR_GRANT_EAGER(grant), before = ch_eager(ch);

	/* every ACK says it again; and numbers wrap */
	if (grant == ch->grant && from == ch->fill_to)
		return 0;
	if (eager < XR_EAGER_LEAST || eager > XR_CHANNEL_EAGER ||
	    (int32_t)(from - ch->sends) > (int32_t)(2 * (XR_WINDOW_MAX_MSGS + XR_WINDOW_CTL)) ||
	    xr_window_granted(&ch->win, XR_GRANT_MSGS(grant)))
		return -EPROTO;
	ch->grant = grant;
	ch->eager_before = before;
	ch->fill_to = from;
	ch->filling = (int32_t)(from - ch->sends) > 0;
	ch->eager = eager;
	return 0;
}

/* Whatever else is sent meanwhile fills as well. */
static void ch_fill(struct xrdma_channel *ch)
{
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_FILL, 0), .op = XR_WR_SEND };

	while (xr_channel_usable(ch) && ch->fill_to != ch->sends && ch->fills < XR_CHANNEL_FILLS) {
		ch->fills++;
		xr_channel_count(ch, XR_CHAN_FILLERS, 1);
		xr_channel_post(ch, &wr);
	}
}

/* --- sending ----------------------------------------------------------------------- */

static void hdr_fill(const struct xrdma_channel *ch, void *to, enum xr_msg_type type, uint32_t seq)
{
	struct xr_msg_hdr h = { .version = XR_CHANNEL_VERSION, .type = (uint8_t)type, .seq = seq,
				.flags = ch->ece ? XR_MSG_ECE : 0, .ack = ch->win.rcv_done,
				.ctl = ch->win.ctl_got };

	if (type == XR_MSG_ACK) {
		h.imm = xr_bank_grant(ch);
		h.id = ch->begins;
		h.len = xr_unlikely(ch->clock_due) ? xr_now_ns() : 0;
	} else if (type == XR_MSG_PLACE) {
		h.id = (uintptr_t)ch->rd.addr;
		h.len = ch->place_rkey;
		h.imm = (uint32_t)ch->placed;
	} else if (type == XR_MSG_THERE) {
		h.imm = ch->put_seq;
	}
	memcpy(to, &h, sizeof(h));
}

/* A header that was filled goes out for certain. */
static void hdr_said(struct xrdma_channel *ch)
{
	xr_window_ack(&ch->win);
	xr_window_ctl_ack(&ch->win);
	ch->owes = ch->ece = 0;
}

int xr_channel_control(struct xrdma_channel *ch, enum xr_msg_type type)
{
	uint32_t i = ch->ctl_posted % XR_WINDOW_CTL;
	struct xr_buf *b = &ch->ctl[i % 2];
	uint8_t *at = b->addr + i / 2 * HDR;
	struct xr_sge sge = { at, HDR, b->mr->lkey };
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_CTL, 0), .op = XR_WR_SEND, .sge = &sge, .nsge = 1 };

	if (ch->ctl_posted - ch->ctl_done == XR_WINDOW_CTL)
		return 0;
	ch->ctl_posted++;
	xr_channel_count(ch, XR_CHAN_CONTROL_SENT, 1);
	xr_window_ctl_send(&ch->win);
	hdr_fill(ch, at, type, ch->win.snd_nxt);
	hdr_said(ch);
	if (type == XR_MSG_ACK)
		ch->grant_due = ch->clock_due = 0;
	xr_channel_post(ch, &wr);
	return 1;
}

/* Header of the data message with number seq, and the trace id; returns their length. */
static uint32_t data_head(const struct xrdma_channel *ch, uint8_t *to, const struct xr_out *o, uint32_t seq,
			  enum xr_msg_type type)
{
	struct xr_msg_hdr h;

	hdr_fill(ch, &h, type, seq);
	h.flags |= o->flags;
	if (seq + 1 - ch->win.snd_una >= ch->win.snd_msgs)
		h.flags |= XR_MSG_LAST;
	h.imm = o->imm;
	h.id = o->id;
	h.len = o->len;
	memcpy(to, &h, HDR);
	if (xr_likely(!(o->flags & XR_MSG_TRACE)))
		return HDR;
	to[offsetof(struct xr_msg_hdr, flags)] = h.flags & (uint8_t)~(XR_OUT_TRACED | XR_OUT_QUEUED);
	memcpy(to + HDR, o->trace, XR_MSG_TRACE_LEN);
	return HDR + XR_MSG_TRACE_LEN;
}

static inline void data_sent(struct xrdma_channel *ch, struct xr_out *o, uint32_t seq, uint32_t wire)
{
	if (xr_unlikely(o->flags & XR_OUT_TRACED))
		xr_channel_trace_out(ch, o, seq, XR_TRACE_POSTED);
	o->at = xr_channel_now(ch);
	o->wire = wire;
	xr_rest_stir(ch);
	xr_adapt_sent(&ch->tx, o->at, wire);
	hdr_said(ch);
	xr_channel_count(ch, XR_CHAN_MSGS_SENT, 1);
	xr_channel_count(ch, XR_CHAN_BYTES_SENT, o->len);
}

/* Bytes that the network is to carry for its SEND, the trace id aside. */
static uint32_t data_wire(const struct xrdma_channel *ch, const struct xr_out *o)
{
	return o->len > ch_eager(ch) ? FRONT : HDR + (uint32_t)o->len;
}

/* The message at snd_nxt has its credit and goes.  0: it does not, the channel ends. */
static int ch_data(struct xrdma_channel *ch, struct xr_out *o)
{
	int large = o->len > ch_eager(ch), r;
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_DATA, 0), .op = XR_WR_SEND };
	struct xr_sge sge[2];
	uint32_t seq, head;

	if (large && !ch->peer_places) {
		r = ops(ch)->mw_bind(ch->qp, o->mem ? o->mem->mr : o->buf.mr, (void *)(uintptr_t)o->data,
				     o->len, XR_ACCESS_REMOTE_READ | XR_ACCESS_MORE, &o->rkey);
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
	head = data_head(ch, o->buf.addr, o, seq, large ? XR_MSG_ANNOUNCE : XR_MSG_EAGER);
	o->announced = (uint8_t)large;
	if (large) {
		/* one that is to be placed is not opened to the peer, and nobody needs to know where it lies */
		struct xr_msg_where w = { .addr = o->rkey ? (uintptr_t)o->data : 0, .rkey = o->rkey };

		memcpy(o->buf.addr + head, &w, WHERE);
		head += WHERE;
	}
	sge[0] = (struct xr_sge){ o->buf.addr, head, o->buf.mr->lkey };
	sge[1] = (struct xr_sge){ (void *)(uintptr_t)o->data, (uint32_t)o->len, o->buf.mr->lkey };
	wr.sge = sge;
	wr.nsge = large || !o->len ? 1 : 2;
	data_sent(ch, o, seq, wr.nsge == 1 ? head : head + (uint32_t)o->len);
	if (large)
		xr_channel_count(ch, XR_CHAN_ANNOUNCED, 1);
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

	if (o->len > ch_eager(ch) || ch->ctx->caps.max_inline < XR_MSG_EAGER_MAX ||
	    ch->win.snd_nxt != ch->queued || !xr_window_open(&ch->win, o->len) ||
	    !xr_adapt_open(&ch->tx, xr_channel_now(ch), data_wire(ch, o)))
		return -EAGAIN;
	sge[0].len = data_head(ch, head, o, ch->win.snd_nxt, XR_MSG_EAGER);
	if (ops(ch)->post_send(ch->qp, &wr))
		return -EAGAIN;
	ch_count(ch);
	o->data = NULL;
	data_sent(ch, o, ch->win.snd_nxt, sge[0].len + (uint32_t)o->len);
	o->announced = 0;
	return xr_window_send(&ch->win, o->len, &seq);
}

static void ch_pump(struct xrdma_channel *ch)
{
	while (xr_channel_usable(ch) && !ch->close_sent && ch->win.snd_nxt != ch->queued) {
		struct xr_out *o = &ch->out[ch->win.snd_nxt & ch->out_mask];

		if (!xr_window_open(&ch->win, o->len) || !xr_channel_may(ch, &ch->tx, data_wire(ch, o)) ||
		    !ch_data(ch, o))
			break;
	}
}

void xr_channel_release(struct xrdma_channel *ch, struct xr_out *o)
{
	/* qp NULL: it is gone, and its windows with it */
	if (o->rkey && ch->qp)
		ops(ch)->mw_invalidate(ch->qp, o->rkey, XR_SEND_MORE);
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
void xr_channel_settle(struct xrdma_channel *ch)
{
	while (ch->released != ch->win.snd_una && ch->released != ch->completed &&
	       (xr_likely(!ch->put) || ch->released != ch->put_seq)) {
		struct xr_out *o = &ch->out[ch->released++ & ch->out_mask];
		int told = o->mem && !ch->silent && ch->ctx->cb.sent;
		uint64_t id = o->id;

		if (xr_unlikely(o->flags & XR_OUT_TRACED))
			xr_channel_trace_out(ch, o, ch->released - 1, XR_TRACE_ACKED);
		xr_channel_release(ch, o);
		if (told)
			ch->ctx->cb.sent(ch, id, ch->ctx->arg);
	}
}

int xr_channel_ring(struct xrdma_channel *ch, uint32_t n)
{
	struct xr_out *out;
	uint32_t i;

	if (ch->out && n == ch->out_mask + 1)
		return 0;
	out = malloc(n * sizeof(*out));
	if (!out)
		return -ENOMEM;
	for (i = ch->released; i != ch->queued; i++)
		out[i & (n - 1)] = ch->out[i & ch->out_mask];
	free(ch->out);
	ch->out = out;
	ch->out_mask = n - 1;
	return 0;
}

static int in_mem(const struct xrdma_msg *m)
{
	const struct xr_mr *mr = m->mem->mr;
	size_t off = (size_t)((uintptr_t)m->data - (uintptr_t)mr->addr);

	return off <= mr->len && m->len <= mr->len - off;
}

static int ch_refuse(struct xrdma_channel *ch)
{
	xr_channel_count(ch, XR_CHAN_REFUSED, 1);
	return -EAGAIN;
}

/* Memory for the header, and for the payload unless that lies in registered memory. */
static int ch_buffer(struct xrdma_channel *ch, struct xr_out *o, const struct xrdma_msg *m)
{
	struct xrdma_context *ctx = ch->ctx;
	size_t room = FRONT + (o->mem ? 0 : m->len);
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
	o->data = o->buf.addr + FRONT;
	if (m->len)
		memcpy(o->buf.addr + FRONT, m->data, m->len);
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
	if (xr_unlikely(ch->queued - ch->released > ch->out_mask) &&
	    (ch->out_mask + 1 >= ch->out_most || xr_channel_ring(ch, 2 * (ch->out_mask + 1))))
		return ch_refuse(ch);
	o = &ch->out[ch->queued & ch->out_mask];
	o->buf.addr = NULL;
	o->mem = m->len > XR_CHANNEL_EAGER ? m->mem : NULL;
	o->data = m->data;
	o->id = id;
	o->len = m->len;
	o->imm = m->imm;
	o->rkey = 0;
	o->flags = (uint8_t)flags;
	if (xr_unlikely(m->trace || ch->ctx->option[XRDMA_OPT_TRACE_SAMPLE]))
		xr_channel_trace_new(ch, o, m);
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
	if (ch->win.snd_nxt != ch->queued) {
		xr_channel_count(ch, XR_CHAN_WAITED, 1);
		if (xr_unlikely(ch->out[(ch->queued - 1) & ch->out_mask].flags & XR_OUT_TRACED))
			xr_channel_trace_out(ch, &ch->out[(ch->queued - 1) & ch->out_mask], ch->queued - 1,
					     XR_TRACE_QUEUED);
	}
	return ch->state == XR_CH_DEAD ? -EPIPE : 0;
}

/* --- rounds ------------------------------------------------------------------------ */

void xr_channel_idle(struct xrdma_channel *ch)
{
	if (!xr_channel_usable(ch) || ch->close_sent)
		return;
	if (!(ch->owes && ch->win.rcv_done != ch->win.rcv_acked) && !xr_window_answer_lazy(&ch->win))
		return;
	/* where it may not, it asks again when the peer has heard of the others */
	if (!xr_window_lazy(&ch->win) || !xr_channel_control(ch, XR_MSG_ACK))
		ch->ctx->owing = 1;
}

/* The peer has closed and all that it had sent is delivered. */
static void ch_closed(struct xrdma_channel *ch)
{
	if (!ch->close_sent) {
		if (!xr_channel_control(ch, XR_MSG_CLOSE))
			return;
		ch->close_sent = ch->close_done = 1;
		if (!ch->silent && xr_channel_usable(ch)) {
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
	if (ch->busy || !xr_channel_usable(ch))
		return;
	ch->busy = 1;
	if (xr_unlikely(ch->filling))
		ch_fill(ch);
	ch_pump(ch);
	if (xr_unlikely(ch->put | ch->asked))
		xr_write_progress(ch);
	/* callbacks run in a poll only */
	if (ch->ctx->polling) {
		xr_channel_deliver(ch);
		xr_channel_say(ch);
		if (xr_channel_usable(ch) && ch->close_seen && !ch->close_done && ch->arr_head == ch->arr_tail)
			ch_closed(ch);
	}
	if (ch->state == XR_CH_CLOSING && !ch->close_sent && ch->win.snd_nxt == ch->queued)
		ch->close_sent = (uint8_t)xr_channel_control(ch, XR_MSG_CLOSE);
	ch->busy = 0;
}

void xr_channel_complete(struct xrdma_channel *ch, const struct xr_wc *wc)
{
	struct xr_in *in;

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
	if (ch->state == XR_CH_DEAD) {
		/* the queue pair is not drained while something of it is held */
		if (wc->status == XR_WC_SUCCESS && wc->ref)
			ops(ch)->recv_release(ch->qp, wc->ref);
		return;
	}
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
		in = xr_bank_in(ch, XR_WR_ARG(wc->wr_id));
		in->data = wc->data;
		in->len = wc->len;
		in->ref = wc->ref;
		ch->ece |= (wc->flags & XR_WC_ECN) != 0;
		if (ch->state == XR_CH_OPENING)
			ch->arrived[ch->arr_tail++ & ch->arr_mask] = XR_WR_ARG(wc->wr_id);
		else
			xr_channel_receive(ch, XR_WR_ARG(wc->wr_id));
		break;
	case XR_WR_ID_DATA:
		xr_channel_sent(ch, &ch->out[ch->completed++ & ch->out_mask], wc);
		xr_channel_settle(ch);
		break;
	case XR_WR_ID_CTL:
		ch->ctl_done++;
		break;
	case XR_WR_ID_FETCH:
		xr_channel_fetched(ch, XR_WR_ARG(wc->wr_id), wc);
		break;
	case XR_WR_ID_PUT:
		xr_write_done(ch, XR_WR_ARG(wc->wr_id));
		break;
	case XR_WR_ID_ONE:
		xr_onesided_done(ch);
		break;
	case XR_WR_ID_FILL:
		ch->fills--;
		break;
	case XR_WR_ID_PROBE:
		ch->probing = 0;
		if (ch->ctx->probed)
			ch->ctx->probed(ch, xr_now_ns() - ch->probe_at);
		break;
	}
	xr_channel_progress(ch);
	/* what was READ, or is THERE, makes room for others */
	if (XR_WR_KIND(wc->wr_id) == XR_WR_ID_FETCH || ch->places)
		xr_channel_turns(ch->ctx);
}
