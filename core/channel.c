/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels: how they begin and end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "channel.h"
#include "log.h"
#include "mem.h"

#define SENTINEL 1u	/* room for it in each queue */
#define XR_FLOOR 32u	/* bytes per round trip of a flow that is held back as far as can be */

static uint32_t pow2(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

/* A channel whose QP is in INIT, with all of its receives posted. */
static int channel_new(struct xrdma_context *ctx, struct xrdma_channel **out)
{
	uint32_t msgs = (uint32_t)ctx->option[XRDMA_OPT_WINDOW_MSGS], ring = pow2(2 * msgs);
	struct xrdma_channel *ch = calloc(1, sizeof(*ch));
	struct xr_qp_attr attr = { .pd = ctx->pd, .send_cq = ctx->cq, .recv_cq = ctx->cq, .sig_all = 1,
				   .rnr_retry = ctx->rnr_retry,
				   .tos = (uint8_t)ctx->option[XRDMA_OPT_TOS],
				   .detect_ms = (uint32_t)ctx->option[XRDMA_OPT_DETECT_MS] };
	int r = -ENOMEM, i;

	if (!ch)
		return r;
	ch->ctx = ctx;
	ch->count = ch->own;
	ch->untold = 1;
	ch->most = msgs;
	ch->own_bytes = ctx->option[XRDMA_OPT_WINDOW_BYTES];
	ch->own_max = xr_context_max_msg(ctx);
	ch->out_most = ring;
	ch->arr_mask = pow2(msgs + XR_WINDOW_CTL) - 1;
	ch->places = (uint8_t)xr_write_wanted(ctx);
	ch->rd_max = ctx->caps.max_rd_atomic < XR_READ_MAX ? ctx->caps.max_rd_atomic : XR_READ_MAX;
	ch->arrived = calloc((size_t)ch->arr_mask + 1, sizeof(*ch->arrived));
	/* a ring of messages, and what needs no credit; rnr_retry is 0: receives never run out */
	attr.sq_depth = ring + ch->rd_max + XR_READ_MAX + XR_WINDOW_CTL + XR_ONE_MAX + XR_CHANNEL_FILLS + 1 + SENTINEL;
	/* two banks */
	attr.rq_depth = 2 * (msgs + XR_WINDOW_CTL) + SENTINEL;
	ch->attr = attr;
	/* never 0: that is none */
	do
		ch->generation = ++ctx->generation & XR_GENERATIONS;
	while (!ch->generation);
	if (ch->arrived && !xr_channel_ring(ch, XR_CHANNEL_REST < ring ? XR_CHANNEL_REST : ring))
		r = xr_qpcache_get(&ctx->qps, &attr, ctx->qps.quarantine ? xr_now_ns() : 0, &ch->qp);
	if (!r) {
		ch->qp->user = ch;
		r = xr_bank_first(ch);
	}
	for (i = 0; i < 2 && !r; i++)
		r = xr_pool_get(&ctx->pool, XR_WINDOW_CTL / 2 * sizeof(struct xr_msg_hdr), &ch->ctl[i]);
	if (r) {
		xr_channel_free(ch);
		return r;
	}
	*out = ch;
	return 0;
}

static void channel_link(struct xrdma_channel *ch, const struct xr_cm_id *listener)
{
	ch->id->user = ch;
	ch->next = ch->ctx->channels;
	ch->ctx->channels = ch;
	xr_channel_stats_list(ch, listener);
}

void xr_channel_free(struct xrdma_channel *ch)
{
	struct xrdma_context *ctx = ch->ctx;
	int i;

	xr_channel_stats_end(ch);
	if (ch->id)
		ctx->ops->cm_destroy(ch->id);
	xr_bank_let_go(ch);
	/* the device touches no buffer of a QP that is gone, or drained */
	if (ch->qp && ch->draining && !ch->sentinels)
		xr_qpcache_put(&ctx->qps, ch->qp, &ch->attr, ctx->qps.quarantine ? xr_now_ns() : 0);
	else if (ch->qp)
		ctx->ops->qp_destroy(ch->qp);
	ch->qp = NULL;
	xr_rpc_end(ch, 0);
	xr_onesided_end(ch);
	for (; ch->released != ch->queued; ch->released++)
		xr_channel_release(ch, &ch->out[ch->released & ch->out_mask]);
	xr_bank_free(ch);
	for (i = 0; i < 2; i++)
		if (ch->ctl[i].addr)
			xr_pool_put(&ctx->pool, &ch->ctl[i]);
	if (ch->rd.addr)
		xr_pool_put(&ctx->pool, &ch->rd);
	xr_budget_forget(&ctx->budget, &ch->rx);
	xr_budget_give(&ctx->budget, ch->rx.inflight + ch->placed);
	if (ch->rx.inflight)
		xr_adapt_acked(&ctx->fetch, ch->rx.inflight, 0, 0);
	free(ch->charge);
	free(ch->out);
	free(ch->arrived);
	free(ch);
}

int xr_channel_drained(struct xrdma_channel *ch)
{
	const struct xr_fabric_ops *ops = ch->ctx->ops;
	struct xr_send_wr send = { .wr_id = XR_WR_ID(ch, XR_WR_ID_SENTINEL, 0), .op = XR_WR_SEND };
	struct xr_recv_wr recv = { .wr_id = XR_WR_ID(ch, XR_WR_ID_SENTINEL, 1) };

	if (ch->draining)
		return !ch->sentinels;
	if (!xr_qpcache_wants(&ch->ctx->qps))
		return 1;
	if (ch->id)
		ops->cm_destroy(ch->id);
	ch->id = NULL;
	/* in ERR they are flushed behind all that was posted before; one that cannot be posted: no reuse */
	if (ops->post_send(ch->qp, &send))
		return 1;
	ch->sentinels++;
	ch->draining = 1;
	if (ops->post_recv(ch->qp, &recv))
		ch->draining = 0;
	else
		ch->sentinels++;
	return !ch->draining;
}

void xr_channel_fail(struct xrdma_channel *ch, int error)
{
	if (ch->state == XR_CH_DEAD)
		return;
	ch->state = XR_CH_DEAD;
	xr_channel_changed(ch);
	ch->error = error;
	ch->ctx->ended = 1;
	ch->ctx->ops->qp_modify(ch->qp, XR_QPS_ERR);
}

/* --- connecting -------------------------------------------------------------------- */

static void hello_fill(const struct xrdma_channel *ch, uint32_t first, struct xr_hello *h)
{
	const struct xrdma_context *ctx = ch->ctx;

	memset(h, 0, sizeof(*h));
	h->magic = XR_CHANNEL_MAGIC;
	h->version = XR_CHANNEL_VERSION;
	h->most = (uint16_t)ch->most;
	h->grant = xr_bank_grant(ch);
	h->first = first;
	h->bytes = ch->own_bytes;
	h->max_msg = xr_context_max_msg(ctx);
	h->generation = ch->generation;
	h->answers = ch->peer_generation;
	h->features = XR_HELLO_WRITES | (ch->places ? XR_HELLO_PLACES : 0);
}

/*
 * The windows for what the network takes.  Where round trips say nothing about it, they start wide
 * open, and only marks and refusals narrow them.
 */
static void channel_network(struct xrdma_channel *ch, uint64_t bytes)
{
	struct xr_adapt_params p = {
		.floor = XR_CHANNEL_EAGER, .start = bytes, .ceiling = bytes, .unit = XR_CHANNEL_EAGER,
		.target = (uint32_t)ch->ctx->option[XRDMA_OPT_QUEUE_US] * 1000,
	};

	if (p.target) {
		p.floor = XR_FLOOR;
		p.start = bytes < XR_CHANNEL_FRAGMENT ? bytes : XR_CHANNEL_FRAGMENT;
	}
	if (p.ceiling < p.floor)
		p.ceiling = p.start = p.floor;
	xr_adapt_init(&ch->tx, &p);
	p.floor = XR_CHANNEL_EAGER;
	p.ceiling = XR_READ_MAX * XR_CHANNEL_FRAGMENT;
	p.start = p.target ? XR_CHANNEL_FRAGMENT : p.ceiling;
	xr_adapt_init(&ch->rx, &p);
}

/* Takes over what the peer grants; it was written by a stranger. */
static int channel_hello(struct xrdma_channel *ch, const struct xr_cm_event *ev, uint32_t *first)
{
	uint32_t ring, rest;
	struct xr_hello h = { .features = 0 };

	if (ev->len < XR_HELLO_LEAST)
		return -EPROTO;
	memcpy(&h, ev->data, ev->len < sizeof(h) ? XR_HELLO_LEAST : sizeof(h));
	if (h.magic != XR_CHANNEL_MAGIC || h.version != XR_CHANNEL_VERSION || !h.max_msg ||
	    !h.generation || (first && (h.first != *first || h.answers != ch->generation)))
		return -EPROTO;
	if (h.bytes && h.bytes <= XR_WINDOW_MAX_BYTES)
		channel_network(ch, h.bytes);
	if (!h.most || h.most > XR_WINDOW_MAX_MSGS)
		return -EPROTO;
	/* written before they are read, by number */
	ring = pow2(h.most);
	ch->charge = malloc(ring * sizeof(*ch->charge));
	if (!ch->charge)
		return -ENOMEM;
	rest = XR_GRANT_MSGS(xr_bank_grant(ch));
	if (xr_window_init(&ch->win, h.first, XR_GRANT_MSGS(h.grant), h.bytes, rest, ch->own_bytes,
			   ch->charge, ring) || xr_channel_granted(ch, h.grant, 0))
		return -EPROTO;
	ch->places &= (h.features & XR_HELLO_WRITES) != 0;
	ch->peer_places = (h.features & XR_HELLO_PLACES) != 0;
	if (!ch->places && !ch->rd_max)
		return -EOPNOTSUPP;
	ch->max_msg = h.max_msg;
	ch->peer_generation = h.generation;
	ch->released = ch->completed = ch->queued = h.first;
	return 0;
}

int xr_channel_connect(struct xrdma_context *ctx, const char *name, struct xrdma_channel **out)
{
	struct xr_addr addr;

	if (!name || ctx->ops->address(name, &addr))
		return -EINVAL;
	return xr_channel_connect_to(ctx, &addr, out);
}

int xr_channel_connect_to(struct xrdma_context *ctx, const struct xr_addr *addr, struct xrdma_channel **out)
{
	struct xrdma_channel *ch;
	struct xr_hello hello;
	uint32_t first;
	int r;

	r = xr_random(&first, sizeof(first));
	if (r < 0)
		return r;
	r = channel_new(ctx, &ch);
	if (r)
		return r;
	hello_fill(ch, first, &hello);
	/* kept where the answer is compared with it; nothing is in the ring yet */
	ch->released = ch->completed = ch->queued = first;
	ch->peer = *addr;
	r = ctx->ops->cm_connect(ctx->dev, addr, ch->qp, &hello, sizeof(hello), &ch->id);
	if (r) {
		xr_channel_free(ch);
		return r;
	}
	channel_link(ch, NULL);
	*out = ch;
	return 0;
}

void xr_channel_request(struct xrdma_context *ctx, const struct xr_cm_event *ev)
{
	struct xrdma_channel *ch;
	struct xr_hello hello;
	int r;

	if (ctx->admit && !ctx->admit(ctx, ev)) {
		ctx->ops->cm_reject(ev->id, NULL, 0);
		return;
	}
	r = channel_new(ctx, &ch);
	if (r) {
		xr_warn("a channel cannot be accepted: error %d", -r);
		ctx->ops->cm_reject(ev->id, NULL, 0);
		return;
	}
	ch->accepting = 1;
	ch->peer = ev->peer;
	r = channel_hello(ch, ev, NULL);
	if (r) {
		xr_warn("a channel was refused: its peer's greeting makes no sense");
		goto reject;
	}
	hello_fill(ch, ch->queued, &hello);
	r = ctx->ops->cm_accept(ev->id, ch->qp, &hello, sizeof(hello));
	if (r)
		goto reject;
	ch->id = ev->id;
	channel_link(ch, ev->listener);
	return;
reject:
	ctx->ops->cm_reject(ev->id, NULL, 0);
	xr_channel_free(ch);
}

static void channel_established(struct xrdma_channel *ch, const struct xr_cm_event *ev)
{
	struct xrdma_context *ctx = ch->ctx;
	uint32_t first = ch->queued;

	if (ch->state != XR_CH_OPENING)
		return;
	if (!ch->accepting && channel_hello(ch, ev, &first)) {
		xr_channel_fail(ch, -EPROTO);
		return;
	}
	ch->state = XR_CH_OPEN;
	xr_channel_changed(ch);
	ch->alive = 1;
	xr_channel_early(ch);
	if (ch->state == XR_CH_DEAD) {
		ch->silent |= ch->accepting;
		return;
	}
	if (ch->accepting && ctx->cb.accepted)
		ctx->cb.accepted(ch, ctx->arg);
	else if (!ch->accepting && ctx->cb.connected)
		ctx->cb.connected(ch, ctx->arg);
	xr_channel_progress(ch);
}

void xr_channel_event(struct xrdma_channel *ch, const struct xr_cm_event *ev)
{
	switch (ev->type) {
	case XR_CM_ESTABLISHED:
		channel_established(ch, ev);
		break;
	case XR_CM_REJECTED:
	case XR_CM_UNREACHABLE:
		/* one that nobody has heard of yet goes without a word */
		ch->silent |= ch->accepting;
		ch->rejected = ev->type == XR_CM_REJECTED;
		xr_channel_fail(ch, ev->status ? ev->status : -ECONNREFUSED);
		break;
	case XR_CM_DISCONNECTED:
		xr_channel_fail(ch, ev->status ? ev->status : -ECONNRESET);
		break;
	case XR_CM_CONNECT_REQUEST:
	case XR_CM_DEVICE:
		break;
	}
}

void xr_channel_close(struct xrdma_channel *ch)
{
	if (ch->silent)
		return;
	ch->silent = 1;
	if (ch->state == XR_CH_OPENING) {
		xr_channel_fail(ch, 0);
	} else if (ch->state == XR_CH_OPEN) {
		ch->state = XR_CH_CLOSING;
		xr_channel_changed(ch);
		xr_channel_progress(ch);
	}
}
