/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Channels: what the network takes.  A SEND goes when the window for it is open; a message that was
 * announced is READ in fragments, as its window and the budget of the context allow.
 */
#include <errno.h>
#include <stddef.h>
#include "channel.h"
#include "mem.h"

int xr_channel_may(struct xrdma_channel *ch, struct xr_adapt *a, uint64_t len)
{
	uint64_t now = xr_channel_now(ch), wait;
	int ack;

	if (xr_adapt_open(a, now, len))
		return 1;
	xr_channel_count(ch, XR_CHAN_HELD, 1);
	wait = xr_adapt_wait(a, now, len, &ack);
	/* an ack leads here again, time alone does not */
	if (wait && (!ch->ctx->pace || now + wait < ch->ctx->pace))
		ch->ctx->pace = now + wait;
	return 0;
}

void xr_channel_sent(struct xrdma_channel *ch, struct xr_out *o, const struct xr_wc *wc)
{
	if (xr_unlikely(o->flags & XR_OUT_TRACED))
		xr_channel_trace_out(ch, o, ch->completed - 1, XR_TRACE_SENT);
	if (wc->flags & XR_WC_RNR) {
		xr_channel_count(ch, XR_CHAN_RNR, 1);
		xr_adapt_rnr(&ch->tx);
	}
	xr_adapt_acked(&ch->tx, o->wire, o->at ? xr_now_ns() - o->at : 0, 0);
}

/* --- READs --------------------------------------------------------------------------- */

uint32_t xr_channel_fragment(const struct xr_adapt *a, uint64_t left)
{
	uint64_t n = xr_adapt_window(a) / 4 / XR_CHANNEL_EAGER * XR_CHANNEL_EAGER;

	if (n < XR_CHANNEL_EAGER)
		n = XR_CHANNEL_EAGER;
	if (n > XR_CHANNEL_FRAGMENT)
		n = XR_CHANNEL_FRAGMENT;
	return (uint32_t)(n < left ? n : left);
}

/* 1: n bytes more may be READ, and there is memory for all of the message. */
static int fetch_may(struct xrdma_channel *ch, uint64_t len, uint32_t n)
{
	struct xrdma_context *ctx = ch->ctx;
	int r;

	if (!xr_channel_may(ch, &ch->rx, n)) {
		/* others may have the turn */
		xr_budget_forget(&ctx->budget, &ch->rx);
		return 0;
	}
	if (xr_budget_take(&ctx->budget, &ch->rx, n, ch->rd.addr != NULL)) {
		ctx->fetch.limited = 1;
		xr_channel_count(ch, XR_CHAN_HELD, 1);
		return 0;
	}
	if (ch->rd.addr)
		return 1;
	r = xr_pool_get(&ctx->pool, len, &ch->rd);
	if (!r) {
		ch->rd_posted = ch->rd_got = 0;
		return 1;
	}
	xr_budget_give(&ctx->budget, n);
	if (r == -ENOBUFS)
		ctx->starved = 1;
	else
		xr_channel_fail(ch, r);
	return 0;
}

/* READs that go out together have one doorbell. */
int xr_channel_fetch(struct xrdma_channel *ch, const struct xr_msg_hdr *h, const struct xr_msg_where *w)
{
	struct xr_send_wr wr = { .op = XR_WR_READ, .nsge = 1, .rkey = w->rkey };
	struct xr_sge sge = { .len = 0 };

	while ((!ch->rd.addr || ch->rd_posted < h->len) && ch->rd_out < ch->rd_max &&
	       (ch->state == XR_CH_OPEN || ch->state == XR_CH_CLOSING)) {
		uint64_t now = xr_channel_now(ch);
		uint32_t n = xr_channel_fragment(&ch->rx, ch->rd.addr ? h->len - ch->rd_posted : h->len);

		if (!fetch_may(ch, h->len, n))
			break;
		if (wr.sge) {
			wr.flags = XR_SEND_MORE;
			xr_channel_post(ch, &wr);
		}
		sge = (struct xr_sge){ ch->rd.addr + ch->rd_posted, n, ch->rd.mr->lkey };
		wr.wr_id = XR_WR_ID(ch, XR_WR_ID_FETCH, n);
		wr.sge = &sge;
		wr.raddr = w->addr + ch->rd_posted;
		xr_adapt_sent(&ch->rx, now, n);
		xr_adapt_sent(&ch->ctx->fetch, now, n);
		ch->rd_at[(ch->rd_first + ch->rd_out++) % XR_READ_MAX] = now;
		ch->rd_posted += n;
	}
	wr.flags = 0;
	if (wr.sge)
		xr_channel_post(ch, &wr);
	return ch->rd.addr && ch->rd_got == h->len;
}

void xr_channel_fetched(struct xrdma_channel *ch, uint32_t len, const struct xr_wc *wc)
{
	struct xrdma_context *ctx = ch->ctx;
	uint64_t at = ch->rd_at[ch->rd_first++ % XR_READ_MAX], rtt = at ? xr_now_ns() - at : 0;
	int marked = (wc->flags & XR_WC_ECN) != 0;

	ch->rd_out--;
	ch->rd_got += len;
	xr_channel_count(ch, XR_CHAN_MARKED, (uint64_t)marked);
	xr_adapt_acked(&ch->rx, len, rtt, marked);
	xr_adapt_acked(&ctx->fetch, len, rtt, marked);
	xr_budget_give(&ctx->budget, len);
	ctx->budget.limit = xr_adapt_window(&ctx->fetch);
}

void xr_channel_turns(struct xrdma_context *ctx)
{
	struct xr_adapt *a;

	while ((a = xr_budget_next(&ctx->budget))) {
		xr_channel_progress((struct xrdma_channel *)((char *)a - offsetof(struct xrdma_channel, rx)));
		/* it cannot go on now, and leads here again when it can */
		if (xr_budget_next(&ctx->budget) == a)
			break;
	}
}
