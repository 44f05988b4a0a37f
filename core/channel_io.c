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

_Static_assert(HDR == 32 && HDR + WHERE <= LARGE_HDR, "layout of messages");

/* wr_id is kind : 8 | argument : 56 */
enum { WR_RECV = 1, WR_DATA, WR_CTL, WR_READ };
#define WR_ID(kind, arg)	((uint64_t)(kind) << 56 | (arg))
#define WR_KIND(id)		((id) >> 56)
#define WR_ARG(id)		((uint32_t)(id))

static const struct xr_fabric_ops *ops(const struct xrdma_channel *ch)
{
	return ch->ctx->ops;
}

static int ch_usable(const struct xrdma_channel *ch)
{
	return ch->state == XR_CH_OPEN || ch->state == XR_CH_CLOSING;
}

/* Room and credit were seen to before: a post that is refused now is the end of the channel. */
static void ch_post(struct xrdma_channel *ch, const struct xr_send_wr *wr)
{
	int r = ops(ch)->post_send(ch->qp, wr);

	if (r) {
		xr_warn("a channel ends, a post was refused: error %d", -r);
		xr_channel_fail(ch, -EIO);
	}
}

int xr_channel_post_recv(struct xrdma_channel *ch, uint32_t i)
{
	struct xr_recv_wr wr = {
		.wr_id = WR_ID(WR_RECV, i),
		.sge = { ch->in[i].addr, (uint32_t)(HDR + XR_CHANNEL_EAGER), ch->in[i].mr->lkey },
	};

	return ops(ch)->post_recv(ch->qp, &wr);
}

static void ch_repost(struct xrdma_channel *ch, uint32_t i)
{
	if (ch->state != XR_CH_DEAD && xr_channel_post_recv(ch, i))
		xr_channel_fail(ch, -EIO);
}

/* --- sending ----------------------------------------------------------------------- */

static void hdr_fill(struct xrdma_channel *ch, void *to, enum xr_msg_type type, uint32_t seq)
{
	struct xr_msg_hdr h = { .version = XR_CHANNEL_VERSION, .type = (uint8_t)type, .seq = seq,
				.ack = xr_window_ack(&ch->win) };

	memcpy(to, &h, sizeof(h));
}

/* 1: it is out. 0: its buffers are all under way, try again when one has completed. */
static int ch_control(struct xrdma_channel *ch, enum xr_msg_type type)
{
	struct xr_buf *b = &ch->ctl[ch->ctl_posted % XR_WINDOW_CTL];
	struct xr_sge sge = { b->addr, HDR, b->mr->lkey };
	struct xr_send_wr wr = { .wr_id = WR_ID(WR_CTL, 0), .op = XR_WR_SEND, .sge = &sge, .nsge = 1 };

	if (ch->ctl_posted - ch->ctl_done == XR_WINDOW_CTL)
		return 0;
	ch->ctl_posted++;
	hdr_fill(ch, b->addr, type, ch->win.snd_nxt);
	ch_post(ch, &wr);
	return 1;
}

/* The message at snd_nxt has its credit and goes. */
static void ch_data(struct xrdma_channel *ch, struct xr_out *o)
{
	int large = o->len > XR_CHANNEL_EAGER;
	struct xr_sge sge = { o->buf.addr, (uint32_t)(HDR + (large ? WHERE : o->len)), o->buf.mr->lkey };
	struct xr_send_wr wr = { .op = XR_WR_SEND, .sge = &sge, .nsge = 1 };
	struct xr_msg_hdr *h = (struct xr_msg_hdr *)o->buf.addr;
	uint32_t seq;
	int r;

	if (large) {
		struct xr_msg_where w = { .addr = (uintptr_t)o->data };

		r = ops(ch)->mw_bind(ch->qp, o->mem ? o->mem->mr : o->buf.mr, (void *)(uintptr_t)o->data,
				     o->len, XR_ACCESS_REMOTE_READ, &o->rkey);
		if (r) {
			xr_warn("a message cannot be opened to the peer: error %d", -r);
			xr_channel_fail(ch, -EIO);
			return;
		}
		w.rkey = o->rkey;
		memcpy(o->buf.addr + HDR, &w, sizeof(w));
	}
	if (xr_window_send(&ch->win, o->len, &seq))
		return;
	hdr_fill(ch, h, large ? XR_MSG_ANNOUNCE : XR_MSG_EAGER, seq);
	h->imm = o->imm;
	h->id = o->id;
	h->len = o->len;
	wr.wr_id = WR_ID(WR_DATA, 0);
	ch_post(ch, &wr);
}

static void ch_pump(struct xrdma_channel *ch)
{
	while (ch_usable(ch) && !ch->close_sent && ch->win.snd_nxt != ch->queued) {
		struct xr_out *o = &ch->out[ch->win.snd_nxt & ch->out_mask];

		if (!xr_window_open(&ch->win, o->len))
			break;
		ch_data(ch, o);
	}
}

void xr_channel_release(struct xrdma_channel *ch, struct xr_out *o)
{
	/* qp NULL: it is gone, and its windows with it */
	if (o->rkey && ch->qp)
		ops(ch)->mw_invalidate(ch->qp, o->rkey);
	if (o->mem)
		o->mem->refs--;
	ch->ctx->out_bytes -= o->buf.size;
	xr_pool_put(&ch->ctx->pool, &o->buf);
	memset(o, 0, sizeof(*o));
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

int xr_channel_send(struct xrdma_channel *ch, const struct xrdma_msg *m)
{
	struct xrdma_context *ctx = ch->ctx;
	int large = m->len > XR_CHANNEL_EAGER, r;
	struct xr_out *o;
	size_t room;

	if (m->len && !m->data)
		return -EINVAL;
	if (m->mem && (m->mem->ctx != ctx || !in_mem(m)))
		return -EINVAL;
	if (ch->state == XR_CH_OPENING && !ch->silent)
		return -ENOTCONN;
	if (ch->state != XR_CH_OPEN)
		return -EPIPE;
	if (m->len > ch->max_msg || m->len > ch->own_max)
		return -EMSGSIZE;
	if (ch->queued - ch->released > ch->out_mask)
		return -EAGAIN;
	room = !large ? HDR + m->len : m->mem ? LARGE_HDR : LARGE_HDR + m->len;
	/* the other half is for what peers send: two ends that are full of messages could not read any */
	if (ctx->out_bytes + room > ctx->pool.budget / 2)
		return -EAGAIN;
	o = &ch->out[ch->queued & ch->out_mask];
	r = xr_pool_get(&ctx->pool, room, &o->buf);
	if (r)
		return r == -ENOBUFS ? -EAGAIN : r;
	ctx->out_bytes += o->buf.size;
	o->id = m->id;
	o->len = m->len;
	o->imm = m->imm;
	if (large && m->mem) {
		o->mem = m->mem;
		o->mem->refs++;
		o->data = m->data;
	} else {
		o->data = o->buf.addr + (large ? LARGE_HDR : HDR);
		if (m->len)
			memcpy((void *)(uintptr_t)o->data, m->data, m->len);
	}
	ch->queued++;
	ch_pump(ch);
	return ch->state == XR_CH_DEAD ? -EPIPE : 0;
}

/* --- receiving --------------------------------------------------------------------- */

/* A message arrived in receive i. Everything in it is the peer's word. */
static void ch_receive(struct xrdma_channel *ch, uint32_t i)
{
	uint32_t len = ch->in_len[i];
	struct xr_msg_hdr h;

	if (len < HDR)
		goto nonsense;
	memcpy(&h, ch->in[i].addr, HDR);
	if (h.version != XR_CHANNEL_VERSION || h.reserved || ch->close_seen ||
	    xr_window_acked(&ch->win, h.ack) < 0)
		goto nonsense;
	switch (h.type) {
	case XR_MSG_ACK:
	case XR_MSG_CLOSE:
		if (len != HDR || h.seq != ch->win.rcv_nxt)
			goto nonsense;
		ch->close_seen = h.type == XR_MSG_CLOSE;
		ch_repost(ch, i);
		break;
	case XR_MSG_EAGER:
	case XR_MSG_ANNOUNCE:
		if (h.type == XR_MSG_EAGER ?
		    h.len > XR_CHANNEL_EAGER || len != HDR + h.len :
		    h.len <= XR_CHANNEL_EAGER || len != HDR + WHERE || h.len > ch->own_max)
			goto nonsense;
		if (xr_window_receive(&ch->win, h.seq, h.len))
			goto nonsense;
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

/* 1: it is all here. */
static int ch_read(struct xrdma_channel *ch, const struct xr_msg_hdr *h, const struct xr_msg_where *w)
{
	int r;

	if (!ch->rd.addr) {
		r = xr_pool_get(&ch->ctx->pool, h->len, &ch->rd);
		if (r == -ENOBUFS) {
			ch->ctx->starved = 1;
			return 0;
		}
		if (r) {
			xr_channel_fail(ch, r);
			return 0;
		}
		ch->rd_posted = ch->rd_got = 0;
	}
	while (ch->rd_posted < h->len && ch->rd_out < ch->rd_max && ch_usable(ch)) {
		uint64_t left = h->len - ch->rd_posted;
		struct xr_sge sge = { ch->rd.addr + ch->rd_posted,
				      left < XR_CHANNEL_FRAGMENT ? (uint32_t)left : XR_CHANNEL_FRAGMENT,
				      ch->rd.mr->lkey };
		struct xr_send_wr wr = { .wr_id = WR_ID(WR_READ, sge.len), .op = XR_WR_READ, .sge = &sge,
					 .nsge = 1, .raddr = w->addr + ch->rd_posted, .rkey = w->rkey };

		ch->rd_posted += sge.len;
		ch->rd_out++;
		ch_post(ch, &wr);
	}
	return ch->rd_got == h->len;
}

/* Delivers what is complete, in order. */
static void ch_deliver(struct xrdma_channel *ch)
{
	while (ch->arr_head != ch->arr_tail && ch_usable(ch)) {
		uint32_t i = ch->arrived[ch->arr_head & ch->arr_mask];
		struct xrdma_msg m = { 0 };
		struct xr_msg_where w;
		struct xr_msg_hdr h;

		memcpy(&h, ch->in[i].addr, HDR);
		m.data = ch->in[i].addr + HDR;
		/* nobody wants it any more: one that is being read is read to its end */
		if (h.type == XR_MSG_ANNOUNCE && (!ch->silent || ch->rd.addr)) {
			memcpy(&w, ch->in[i].addr + HDR, WHERE);
			if (!ch_read(ch, &h, &w))
				return;
			m.data = ch->rd.addr;
		}
		m.len = (size_t)h.len;
		m.id = h.id;
		m.imm = h.imm;
		if (!ch->silent && ch->ctx->cb.message)
			ch->ctx->cb.message(ch, &m, ch->ctx->arg);
		if (ch->state == XR_CH_DEAD)
			return;
		if (ch->rd.addr)
			xr_pool_put(&ch->ctx->pool, &ch->rd);
		ch->arr_head++;
		ch_repost(ch, i);
		xr_window_done(&ch->win, h.len);
		if (xr_window_ack_due(&ch->win) && ch_usable(ch))
			ch_control(ch, XR_MSG_ACK);
	}
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
			if (ch->ctx->cb.closed)
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
		if (ch_usable(ch) && xr_window_ack_due(&ch->win))
			ch_control(ch, XR_MSG_ACK);
		if (ch_usable(ch) && ch->close_seen && !ch->close_done && ch->arr_head == ch->arr_tail)
			ch_closed(ch);
	}
	if (ch->state == XR_CH_CLOSING && !ch->close_sent && ch->win.snd_nxt == ch->queued)
		ch->close_sent = (uint8_t)ch_control(ch, XR_MSG_CLOSE);
	ch->busy = 0;
}

void xr_channel_complete(struct xrdma_channel *ch, const struct xr_wc *wc)
{
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
	switch (WR_KIND(wc->wr_id)) {
	case WR_RECV:
		ch->in_len[WR_ARG(wc->wr_id)] = wc->len;
		if (ch->state == XR_CH_OPENING)
			ch->arrived[ch->arr_tail++ & ch->arr_mask] = WR_ARG(wc->wr_id);
		else
			ch_receive(ch, WR_ARG(wc->wr_id));
		break;
	case WR_DATA:
		ch->completed++;
		ch_release(ch);
		break;
	case WR_CTL:
		ch->ctl_done++;
		break;
	case WR_READ:
		ch->rd_out--;
		ch->rd_got += WR_ARG(wc->wr_id);
		break;
	}
	xr_channel_progress(ch);
}
