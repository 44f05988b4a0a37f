/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Channels: receives, in banks (channel.h says how the peer hears of them).  At rest few are posted, which hold
 * little; there are more when a peer uses all of those, and long ones when it has messages for them.
 *
 * Why they cannot run dry: a bank has a receive for each message that may be sent ahead, and those of control
 * messages.  The peer gets no credit back from receives of the old bank before it has heard of the new one, since
 * ACKs arrive in order.
 */
#include <errno.h>
#include <stdlib.h>
#include "atomic.h"
#include "channel.h"
#include "log.h"

#define GROWTH	4u	/* times as many */
#define CRAMPED	255u	/* times that more would be wanted, before memory for it is asked for again */

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t bank_rest(const struct xrdma_channel *ch)
{
	return least(XR_CHANNEL_REST, ch->most);
}

static uint32_t bank_msgs(const struct xrdma_channel *ch)
{
	return ch->bank[ch->cur].n - XR_WINDOW_CTL;
}

static struct xr_bank *bank_old(struct xrdma_channel *ch)
{
	return &ch->bank[!ch->cur];
}

static int in_post(struct xrdma_channel *ch, uint32_t arg)
{
	struct xr_recv_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_RECV, arg) };
	struct xr_bank *b = &ch->bank[arg >> 16];
	struct xr_buf *buf = &xr_bank_in(ch, arg)->buf;
	int r;

	if (b->size)
		wr.sge = (struct xr_sge){ buf->addr, b->size, buf->mr->lkey };
	r = ch->ctx->ops->post_recv(ch->qp, &wr);
	if (!r)
		ch->posted++;
	return r;
}

static void bank_drop(struct xrdma_channel *ch, struct xr_bank *b)
{
	uint32_t i;

	for (i = 0; b->in && i < b->n; i++)
		if (b->in[i].buf.addr)
			xr_pool_put(&ch->ctx->pool, &b->in[i].buf);
	free(b->in);
	b->in = NULL;
	b->n = b->left = 0;
}

/* A bank with its memory, that is not posted yet. */
static int bank_make(struct xrdma_channel *ch, struct xr_bank *b, uint32_t msgs, uint32_t size)
{
	uint32_t i;
	int r = 0;

	b->n = msgs + XR_WINDOW_CTL;
	b->left = 0;
	b->size = size;
	b->in = calloc(b->n, sizeof(*b->in));
	if (!b->in)
		return -ENOMEM;
	for (i = 0; size && i < b->n && !r; i++)
		r = xr_pool_get(&ch->ctx->pool, size, &b->in[i].buf);
	if (r)
		bank_drop(ch, b);
	return r;
}

static int bank_post(struct xrdma_channel *ch, uint32_t which)
{
	struct xr_bank *b = &ch->bank[which];
	int r;

	ch->cur = which;
	ch->begins = ch->posted;
	for (; b->left < b->n; b->left++) {
		r = in_post(ch, which << 16 | b->left);
		if (r)
			return r;
	}
	return 0;
}

int xr_bank_first(struct xrdma_channel *ch)
{
	int r = bank_make(ch, &ch->bank[0], bank_rest(ch), ch->ctx->byref ? 0 : XR_CHANNEL_LEAN);

	return r ? r : bank_post(ch, 0);
}

/* One that is being emptied delays the next. */
static void bank_change(struct xrdma_channel *ch, uint32_t msgs, uint32_t size)
{
	int r;

	if (bank_old(ch)->in || ch->close_seen || ch->close_sent)
		return;
	if (ch->cramped) {
		ch->cramped--;
		return;
	}
	r = bank_make(ch, bank_old(ch), msgs, size);
	if (r) {
		ch->cramped = CRAMPED;
		return;
	}
	r = bank_post(ch, !ch->cur);
	if (r) {
		xr_warn("a channel ends, a receive was refused: error %d", -r);
		xr_channel_fail(ch, -EIO);
		return;
	}
	/* fewer are granted when the peer has heard of it, which is when the old ones are used up */
	if (msgs > ch->win.rcv_msgs)
		xr_window_grant(&ch->win, msgs);
	ch->long_wanted = 0;
	ch->grant_due = 1;
	xr_channel_count(ch, XR_CHAN_RESIZED, 1);
}

void xr_bank_repost(struct xrdma_channel *ch, uint32_t arg)
{
	struct xr_bank *b = &ch->bank[arg >> 16];
	struct xr_in *in = xr_bank_in(ch, arg);

	if (in->ref)
		ch->ctx->ops->recv_release(ch->qp, in->ref);
	in->ref = 0;
	if (in->copied)
		xr_pool_put(&ch->ctx->pool, &in->buf);
	in->copied = 0;
	if (ch->state == XR_CH_DEAD)
		return;
	if (arg >> 16 == ch->cur) {
		if (in_post(ch, arg))
			xr_channel_fail(ch, -EIO);
		return;
	}
	if (in->buf.addr)
		xr_pool_put(&ch->ctx->pool, &in->buf);
	if (--b->left)
		return;
	bank_drop(ch, b);
	xr_window_grant(&ch->win, bank_msgs(ch));
}

uint32_t xr_bank_grant(const struct xrdma_channel *ch)
{
	const struct xr_bank *b = &ch->bank[ch->cur];
	uint32_t most = XR_MSG_EAGER_MAX - XR_CHANNEL_EAGER;

	return XR_GRANT(b->n - XR_WINDOW_CTL, b->size ? b->size - most : XR_CHANNEL_EAGER);
}

void xr_bank_traffic(struct xrdma_channel *ch, const struct xr_msg_hdr *h)
{
	const struct xr_bank *b = &ch->bank[ch->cur];
	uint32_t msgs = bank_msgs(ch), size = b->size;

	xr_rest_stir(ch);
	if (h->type == XR_MSG_ANNOUNCE && h->len <= XR_CHANNEL_EAGER)
		ch->long_wanted = 1;
	if (size && ch->long_wanted)
		size = XR_MSG_EAGER_MAX;
	if (msgs < ch->most && (h->flags & XR_MSG_LAST))
		msgs = least(GROWTH * msgs, ch->most);
	if (xr_unlikely(msgs != bank_msgs(ch) || size != b->size))
		bank_change(ch, msgs, size);
}

uint64_t xr_bank_bytes(const struct xrdma_channel *ch)
{
	return (uint64_t)ch->bank[0].left * ch->bank[0].size + (uint64_t)ch->bank[1].left * ch->bank[1].size;
}

void xr_bank_let_go(struct xrdma_channel *ch)
{
	uint32_t k, i;

	for (k = 0; k < 2; k++) {
		for (i = 0; ch->bank[k].in && i < ch->bank[k].n; i++) {
			struct xr_in *in = &ch->bank[k].in[i];

			if (in->ref && ch->qp)
				ch->ctx->ops->recv_release(ch->qp, in->ref);
			in->ref = 0;
		}
	}
}

void xr_bank_free(struct xrdma_channel *ch)
{
	bank_drop(ch, &ch->bank[0]);
	bank_drop(ch, &ch->bank[1]);
}

/* --- rest ---------------------------------------------------------------------------- */

static uint64_t rest_ns(const struct xrdma_context *ctx)
{
	return ctx->option[XRDMA_OPT_REST_MS] * 1000000u;
}

void xr_rest_wake(struct xrdma_channel *ch)
{
	struct xrdma_context *ctx = ch->ctx;

	ch->awake = 1;
	if (!ctx->rest && rest_ns(ctx))
		ctx->rest = xr_now_ns() + rest_ns(ctx);
}

static int rest_may_say(const struct xrdma_channel *ch)
{
	return ch->state == XR_CH_OPEN && !ch->close_sent && xr_window_lazy(&ch->win) &&
	       ch->ctl_posted - ch->ctl_done < XR_WINDOW_CTL;
}

/* 1: there is no more to give back. */
static int rest_channel(struct xrdma_channel *ch)
{
	const struct xr_bank *b = &ch->bank[ch->cur];
	uint32_t size = b->size ? XR_CHANNEL_LEAN : 0;

	if (ch->state != XR_CH_OPEN)
		return ch->state != XR_CH_OPENING;
	/* fewer than half a window are not acked by themselves, and the peer cannot rest before they are */
	if (ch->win.rcv_done != ch->win.rcv_acked && rest_may_say(ch))
		xr_channel_control(ch, XR_MSG_ACK);
	if (ch->released != ch->queued || ch->win.rcv_done != ch->win.rcv_nxt || bank_old(ch)->in)
		return 0;
	if (bank_msgs(ch) != bank_rest(ch) || size != b->size) {
		/* what the old bank brings is not acked before the peer knows: shorter receives follow */
		if (rest_may_say(ch)) {
			bank_change(ch, bank_rest(ch), size);
			if (ch->grant_due && ch->state == XR_CH_OPEN)
				xr_channel_control(ch, XR_MSG_ACK);
		}
		return 0;
	}
	return !xr_channel_ring(ch, XR_CHANNEL_REST);
}

void xr_rest(struct xrdma_context *ctx)
{
	uint64_t now = xr_now_ns();
	struct xrdma_channel *ch;
	int more = 0;

	if (now < ctx->rest)
		return;
	for (ch = ctx->channels; ch; ch = ch->next) {
		if (!ch->awake)
			continue;
		if (ch->stirred)
			ch->stirred = 0;
		else if (rest_channel(ch))
			ch->awake = 0;
		more |= ch->awake;
	}
	ctx->rest = more && rest_ns(ctx) ? now + rest_ns(ctx) : 0;
	if (!more)
		xr_pool_trim(&ctx->pool);
}
