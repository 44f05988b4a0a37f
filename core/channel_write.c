/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Channels: large messages that are WRITten by their sender instead of being READ by their receiver.
 *
 *	READ	ANNOUNCE (where it lies) ->	<- READs of it				<- ack
 *	WRITE	ANNOUNCE ->			<- PLACE (where it may go)
 *		WRITEs of it, THERE ->							<- ack
 *
 * Both take one way more than the SEND that announces, and the data.  READ needs the receiver alone once it is
 * announced, opens no memory to be written to, and lets the receiver, who sees all of its senders, say when a fragment
 * travels; so it is the rule.  WRITE needs the sender to be there a second time, but has no limit to what is under way
 * (READs have max_rd_atomic, and the devices at both ends keep state for each), so the receiver asks for it where its
 * device has few READs, none, or slow ones (xr_dev_caps.few_reads), or where XRDMA_OPT_RENDEZVOUS says so.  It says
 * which in its greeting.  A peer that does not say there that it can WRITE is READ from, and one that does not
 * say how it wants its messages READs them.
 *
 * The receiver places one message at a time, the next one to be delivered, in memory that is all there before and is
 * open to this peer, this message and its length alone; it is closed again when THERE arrives, before the message is
 * looked at.  A device closes a window in its own time: whoever must not see memory change has XRDMA_OPT_COPY, with
 * which nothing is placed.  THERE is a SEND behind the WRITEs, so it arrives after all of them.
 *
 * PLACE and THERE are control messages, of those that may go before an ack is due (window.h): that they wait for the
 * peer to have heard of others bounds the receives that they use, and the peer answers, whatever it waits for itself.
 */
#include <errno.h>
#include "channel.h"
#include "log.h"
#include "mem.h"

int xr_write_wanted(const struct xrdma_context *ctx)
{
	uint64_t how = ctx->option[XRDMA_OPT_RENDEZVOUS];

	if (ctx->option[XRDMA_OPT_COPY])
		return 0;
	return how == XR_RENDEZVOUS_WRITE || (how == XR_RENDEZVOUS_AUTO && ctx->caps.few_reads);
}

/* A control message may go now, without an ack that is due. */
static int write_may_say(const struct xrdma_channel *ch)
{
	return xr_window_lazy(&ch->win) && ch->ctl_posted - ch->ctl_done != XR_WINDOW_CTL;
}

/* --- the receiver ---------------------------------------------------------------------- */

int xr_write_place(struct xrdma_channel *ch, const struct xr_msg_hdr *h)
{
	struct xrdma_context *ctx = ch->ctx;
	int r;

	if (ch->rd.addr)
		return ch->rd_got == h->len;
	if (!write_may_say(ch)) {
		/* others may have the turn */
		xr_budget_forget(&ctx->budget, &ch->rx);
		return 0;
	}
	if (xr_budget_take(&ctx->budget, &ch->rx, h->len, 0)) {
		ctx->fetch.limited = 1;
		xr_channel_count(ch, XR_CHAN_HELD, 1);
		return 0;
	}
	r = xr_pool_get(&ctx->pool, h->len, &ch->rd);
	if (!r) {
		ch->rd_got = 0;
		ch->placed = h->len;
		r = ctx->ops->mw_bind(ch->qp, ch->rd.mr, ch->rd.addr, h->len,
				      XR_ACCESS_REMOTE_WRITE | XR_ACCESS_MORE, &ch->place_rkey);
		if (!r)
			xr_channel_control(ch, XR_MSG_PLACE);
	} else {
		xr_budget_give(&ctx->budget, h->len);
	}
	if (r == -ENOBUFS)
		ctx->starved = 1;
	else if (r && ch->qp->state != XR_QPS_ERR)
		xr_channel_fail(ch, r);
	/* in ERR the first completion says why */
	return 0;
}

int xr_write_there(struct xrdma_channel *ch, const struct xr_msg_hdr *h)
{
	if (!ch->placed || h->imm != ch->win.rcv_done)
		return -EPROTO;
	ch->ctx->ops->mw_invalidate(ch->qp, ch->place_rkey, XR_SEND_MORE);
	xr_budget_give(&ch->ctx->budget, ch->placed);
	ch->rd_got = ch->placed;
	ch->placed = 0;
	return 0;
}

/* --- the sender ------------------------------------------------------------------------ */

int xr_write_asked(struct xrdma_channel *ch, const struct xr_msg_hdr *h)
{
	const struct xr_out *o = &ch->out[h->ack & ch->out_mask];

	/* the ack was looked at: it is the first one that is not done, if there is one */
	if (!ch->peer_places || ch->asked || h->ack == ch->win.snd_nxt || !o->announced || h->imm != (uint32_t)o->len ||
	    (ch->put && (ch->put != XR_PUT_SAID || h->ack == ch->put_seq)))
		return -EPROTO;
	ch->asked = 1;
	ch->asked_seq = h->ack;
	ch->asked_addr = h->id;
	ch->asked_rkey = (uint32_t)h->len;
	return 0;
}

int xr_write_acked(const struct xrdma_channel *ch, uint32_t ack)
{
	if (ch->put && ch->put != XR_PUT_SAID && (int32_t)(ack - ch->put_seq) > 0)
		return -EPROTO;
	return ch->asked && (int32_t)(ack - ch->asked_seq) > 0 ? -EPROTO : 0;
}

/* What was asked for, once all of the message before has left the device. */
static void put_begin(struct xrdma_channel *ch)
{
	if (ch->put || !ch->asked)
		return;
	ch->asked = 0;
	ch->put = XR_PUT_WRITES;
	ch->put_seq = ch->asked_seq;
	ch->put_addr = ch->asked_addr;
	ch->put_rkey = ch->asked_rkey;
	ch->put_posted = 0;
}

/* As much as may be under way. */
static void put_post(struct xrdma_channel *ch)
{
	const struct xr_out *o = &ch->out[ch->put_seq & ch->out_mask];
	struct xr_send_wr wr = { .op = XR_WR_WRITE, .nsge = 1, .rkey = ch->put_rkey };
	struct xr_sge sge;

	while (xr_channel_usable(ch) && ch->put == XR_PUT_WRITES && ch->put_out < XR_READ_MAX) {
		uint32_t n = xr_channel_fragment(&ch->tx, o->len - ch->put_posted);
		uint64_t now = xr_channel_now(ch);

		if (!xr_channel_may(ch, &ch->tx, n))
			break;
		/* those that go out together have one doorbell */
		if (wr.sge) {
			wr.flags = XR_SEND_MORE;
			xr_channel_post(ch, &wr);
		}
		sge = (struct xr_sge){ (uint8_t *)(uintptr_t)o->data + ch->put_posted, n,
				       o->mem ? o->mem->mr->lkey : o->buf.mr->lkey };
		wr.wr_id = XR_WR_ID(ch, XR_WR_ID_PUT, n);
		wr.sge = &sge;
		wr.raddr = ch->put_addr + ch->put_posted;
		xr_adapt_sent(&ch->tx, now, n);
		ch->put_at[(ch->put_first + ch->put_out++) % XR_READ_MAX] = now;
		ch->put_posted += n;
		if (ch->put_posted == o->len)
			ch->put = XR_PUT_SAYS;
	}
	wr.flags = 0;
	if (wr.sge)
		xr_channel_post(ch, &wr);
}

void xr_write_progress(struct xrdma_channel *ch)
{
	put_begin(ch);
	put_post(ch);
	if (xr_channel_usable(ch) && ch->put == XR_PUT_SAYS && write_may_say(ch)) {
		ch->put = XR_PUT_SAID;
		xr_channel_control(ch, XR_MSG_THERE);
	}
	/* the memory is the program's, or the pool's, when the device has let go of it and the peer has it */
	if (ch->put == XR_PUT_SAID && !ch->put_out) {
		ch->put = XR_PUT_NONE;
		xr_channel_settle(ch);
		put_begin(ch);
		put_post(ch);
	}
}

void xr_write_done(struct xrdma_channel *ch, uint32_t len)
{
	uint64_t at = ch->put_at[ch->put_first++ % XR_READ_MAX];

	ch->put_out--;
	xr_adapt_acked(&ch->tx, len, at ? xr_now_ns() - at : 0, 0);
}
