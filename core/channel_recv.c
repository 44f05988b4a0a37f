/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels: what arrives, and its way to the program. */
#include <errno.h>
#include <string.h>
#include "channel.h"
#include "log.h"

#define HDR		sizeof(struct xr_msg_hdr)
#define WHERE		sizeof(struct xr_msg_where)

#define KNOWN_FLAGS	(XR_MSG_TRACE | XR_MSG_REQUEST | XR_MSG_RESPONSE | XR_MSG_LAST)

/* The layout of a data message: what follows the header is where the header says. */
static int in_parse(struct xrdma_channel *ch, struct xr_in *in)
{
	const struct xr_msg_hdr *h = &in->h;
	uint32_t at = HDR;

	if ((h->flags & ~KNOWN_FLAGS) ||
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
	if (!h->len || in->len != at + WHERE || h->len > ch->own_max)
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
	ch->ctx->ops->recv_release(ch->qp, in->ref);
	in->ref = 0;
}

/* Everything in it is the peer's word. */
void xr_channel_receive(struct xrdma_channel *ch, uint32_t arg)
{
	struct xr_in *in = xr_bank_in(ch, arg);
	struct xr_msg_hdr *h = &in->h;

	if (!in->len) {
		/* nothing but the use of a receive */
		xr_bank_repost(ch, arg);
		return;
	}
	if (in->len < HDR)
		goto nonsense;
	memcpy(h, in->data, HDR);
	/* nothing follows a CLOSE but acks of what the other end still says, and what was asked for before */
	if (h->version != XR_CHANNEL_VERSION ||
	    (ch->close_seen && h->type != XR_MSG_ACK && h->type != XR_MSG_THERE) ||
	    xr_window_acked(&ch->win, h->ack) < 0 || xr_window_ctl_acked(&ch->win, h->ctl))
		goto nonsense;
	if (xr_unlikely(ch->put | ch->asked) && xr_write_acked(ch, h->ack))
		goto nonsense;
	if (h->flags & XR_MSG_ECE) {
		h->flags &= (uint8_t)~XR_MSG_ECE;
		xr_channel_count(ch, XR_CHAN_MARKED, 1);
		xr_adapt_acked(&ch->tx, 0, 0, 1);
	}
	switch (h->type) {
	case XR_MSG_ACK:
	case XR_MSG_CLOSE:
		if (in->len != HDR || h->flags || h->seq != ch->win.rcv_nxt)
			goto nonsense;
		if (h->type == XR_MSG_ACK && xr_channel_granted(ch, h->imm, (uint32_t)h->id))
			goto nonsense;
		if (xr_unlikely(h->type == XR_MSG_ACK && h->len))
			xr_channel_trace_clock(ch, h->len, h->ack);
		xr_window_ctl_receive(&ch->win);
		xr_channel_count(ch, XR_CHAN_CONTROL_RECEIVED, 1);
		ch->ctx->owing = 1;
		ch->close_seen |= h->type == XR_MSG_CLOSE;
		xr_bank_repost(ch, arg);
		break;
	case XR_MSG_PLACE:
	case XR_MSG_THERE:
		if (in->len != HDR || h->flags || h->seq != ch->win.rcv_nxt ||
		    (h->type == XR_MSG_PLACE ? xr_write_asked(ch, h) : xr_write_there(ch, h)))
			goto nonsense;
		xr_window_ctl_receive(&ch->win);
		xr_channel_count(ch, XR_CHAN_CONTROL_RECEIVED, 1);
		ch->ctx->owing = 1;
		xr_bank_repost(ch, arg);
		break;
	case XR_MSG_EAGER:
	case XR_MSG_ANNOUNCE:
		if (in_parse(ch, in) || xr_window_receive(&ch->win, h->seq, h->len))
			goto nonsense;
		xr_bank_traffic(ch, h);
		if (xr_unlikely(h->flags & XR_MSG_TRACE))
			xr_channel_trace_in(ch, in, XR_TRACE_RECEIVED);
		in_settle(ch, in);
		ch->arrived[ch->arr_tail++ & ch->arr_mask] = arg;
		break;
	default:
		goto nonsense;
	}
	xr_channel_settle(ch);
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
	for (i = 0; i < n && xr_channel_usable(ch); i++)
		xr_channel_receive(ch, ch->arrived[at++ & ch->arr_mask]);
}

/* To the program: as an answer, or as a message. */
static void ch_hand_over(struct xrdma_channel *ch, struct xr_in *in, const uint8_t *data)
{
	struct xrdma_msg m = { .data = data, .len = (size_t)in->h.len, .id = in->h.id, .imm = in->h.imm,
			       .kind = in->h.flags & XR_MSG_REQUEST ? XRDMA_REQUEST :
				       in->h.flags & XR_MSG_RESPONSE ? XRDMA_RESPONSE : XRDMA_MESSAGE };

	if (xr_unlikely(in->h.flags & XR_MSG_TRACE)) {
		m.trace = in->trace;
		xr_channel_trace_in(ch, in, XR_TRACE_DELIVERED);
	}
	xr_channel_count(ch, XR_CHAN_MSGS_RECEIVED, 1);
	xr_channel_count(ch, XR_CHAN_BYTES_RECEIVED, in->h.len);
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

void xr_channel_say(struct xrdma_channel *ch)
{
	if (!xr_channel_usable(ch))
		return;
	/* what is granted can wait for an ack that goes anyway, and need not */
	if (xr_window_ack_due(&ch->win) || xr_window_answer_due(&ch->win) ||
	    ((ch->grant_due | ch->clock_due) && xr_window_lazy(&ch->win) && !ch->close_sent))
		xr_channel_control(ch, XR_MSG_ACK);
}

void xr_channel_deliver(struct xrdma_channel *ch)
{
	while (ch->arr_head != ch->arr_tail && xr_channel_usable(ch)) {
		uint32_t arg = ch->arrived[ch->arr_head & ch->arr_mask];
		struct xr_in *in = xr_bank_in(ch, arg);
		const uint8_t *data = in->payload;
		uint64_t len = in->h.len;

		/* nobody wants it any more: one that is being read is read to its end */
		if (in->h.type == XR_MSG_ANNOUNCE) {
			if (!ch->silent || ch->rd.addr) {
				if (!(ch->places ? xr_write_place(ch, &in->h) :
				      xr_channel_fetch(ch, &in->h, &in->where)))
					return;
				data = ch->rd.addr;
				xr_channel_count(ch, ch->places ? XR_CHAN_PLACED : XR_CHAN_FETCHED, 1);
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
		xr_bank_repost(ch, arg);
		xr_window_done(&ch->win, len);
		xr_channel_say(ch);
	}
}
