/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels: what is counted of them, for the program and for xr-stat (chanstats.h). */
#include <arpa/inet.h>
#include <string.h>
#include "channel.h"
#include "config.h"
#include "log.h"
#include "mem.h"

static _Atomic uint64_t stats_channels;		/* numbers so far */
static _Atomic uint32_t stats_contexts;

/* --- a channel ------------------------------------------------------------------------- */

static void stats_gauges(const struct xrdma_channel *ch)
{
	uint64_t at[XR_CHAN_COUNT];
	_Atomic uint64_t *v = ch->count;

	at[XR_CHAN_UNACKED_MSGS] = ch->win.snd_nxt - ch->win.snd_una;
	at[XR_CHAN_UNACKED_BYTES] = ch->win.snd_out;
	at[XR_CHAN_QUEUED_MSGS] = ch->queued - ch->win.snd_nxt;
	at[XR_CHAN_UNREAD_MSGS] = ch->arr_tail - ch->arr_head;
	at[XR_CHAN_PEER_MSGS] = ch->win.snd_msgs;
	at[XR_CHAN_PEER_BYTES] = ch->win.snd_bytes;
	at[XR_CHAN_RECV_MSGS] = ch->win.rcv_msgs;
	at[XR_CHAN_RECV_BYTES] = xr_bank_bytes(ch);
	at[XR_CHAN_NET_BYTES] = xr_adapt_window(&ch->tx);
	at[XR_CHAN_NET_FETCH_BYTES] = xr_adapt_window(&ch->rx);
	at[XR_CHAN_RTT_NS] = ch->tx.srtt;
#define PUT(SYM, name, gauge, text) if (gauge) xr_store_relaxed(&v[XR_CHAN_##SYM], at[XR_CHAN_##SYM]);
	XR_CHANSTATS_TABLE(PUT)
#undef PUT
	/* counted elsewhere, and there by direction and cause */
	xr_store_relaxed(&v[XR_CHAN_CUTS], (uint64_t)ch->tx.cuts_rtt + ch->tx.cuts_ecn + ch->tx.cuts_rnr +
			 ch->rx.cuts_rtt + ch->rx.cuts_ecn);
}

void xrdma_get_channel_stats(const struct xrdma_channel *ch, struct xrdma_channel_stats *stats)
{
	stats_gauges(ch);
#define GET(SYM, name, gauge, text) stats->name = xr_load_relaxed(&ch->count[XR_CHAN_##SYM]);
	XR_CHANSTATS_PUBLIC(GET)
#undef GET
}

static const struct xr_addr *stats_listener(const struct xrdma_context *ctx, const struct xr_cm_id *id)
{
	const struct xr_listener *l;

	for (l = ctx->listeners; l; l = l->next)
		if (l->id == id)
			return &l->addr;
	return NULL;
}

static void stats_name(char *to, const struct xr_addr *a)
{
	char ip[INET6_ADDRSTRLEN];

	if (a->family == XR_AF_SHM)
		xr_snprintf(to, XR_CHANSTATS_NAME, "%s", a->name);
	else if (a->family && inet_ntop(a->family, a->ip, ip, sizeof(ip)))
		xr_snprintf(to, XR_CHANSTATS_NAME, a->family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip,
			    (unsigned int)a->port);
}

void xr_channel_stats_list(struct xrdma_channel *ch, const struct xr_cm_id *listener)
{
	struct xrdma_context *ctx = ch->ctx;
	struct xr_chanstats_ident id = { .opened_ns = 0 };
	const struct xr_addr *at = listener && !ctx->caps.passive ? stats_listener(ctx, listener) : &ch->peer;

	if (!ctx->listed)
		return;
	/* relaxed: numbers that nothing else is read by */
	id.no = atomic_fetch_add_explicit(&stats_channels, 1, memory_order_relaxed) + 1;
	id.opened_ns = xr_now_ns();
	id.context = ctx->listed;
	id.role = ch->accepting ? XR_ROLE_SERVER : XR_ROLE_CLIENT;
	id.carrier = ctx->caps.passive ? XR_CARRIER_RDMA : XR_CARRIER_SHM;
	xr_snprintf(id.device, sizeof(id.device), "%s", *ctx->caps.device ? ctx->caps.device : ctx->caps.name);
	if (at)
		stats_name(id.name, at);
	xr_chanstats_add(XR_CHANPROC_OPENED, 1);
	ch->listed = 1;
	ch->slot = xr_chanstats_take(&id);
	if (!ch->slot)
		return;
	/* nothing was counted yet */
	ch->count = ch->slot->v;
	ch->untold = 0;
	xr_channel_changed(ch);
}

void xr_channel_stats_end(struct xrdma_channel *ch)
{
	if (!ch->listed)
		return;
	/* it may stand in the list of those that changed */
	xr_context_tell(ch->ctx);
	stats_gauges(ch);
	xr_chanstats_give(ch->slot, ch->count);
	ch->count = ch->own;
	ch->listed = 0;
	ch->untold = 1;
}

static void stats_tell(struct xrdma_channel *ch)
{
	struct xr_chanstats_slot *s = ch->slot;

	stats_gauges(ch);
	xr_store_relaxed(&s->state, (uint32_t)ch->state + XR_CHANSTATS_OPENING);
	xr_store_relaxed(&s->qpn, ch->qp->num);
	xr_store_relaxed(&s->peer_qpn, ch->qp->peer_num);
}

/* --- a context ------------------------------------------------------------------------- */

static void stats_figures(const struct xrdma_context *ctx, uint64_t *at, uint64_t alive)
{
	at[XR_CHANPROC_CONTEXTS] = alive;
	at[XR_CHANPROC_QP_HITS] = ctx->qps.hits;
	at[XR_CHANPROC_QP_MISSES] = ctx->qps.misses;
	at[XR_CHANPROC_QP_CACHED] = alive * ctx->qps.n;
	at[XR_CHANPROC_QP_DROPPED] = ctx->qps.dropped;
	at[XR_CHANPROC_STALE] = ctx->stale;
	at[XR_CHANPROC_POOL_BYTES] = alive * ctx->pool.used;
	at[XR_CHANPROC_POOL_BUFFERS] = alive * ctx->pool.bufs;
	at[XR_CHANPROC_POOL_HUGE] = alive * ctx->pool.huge;
	at[XR_CHANPROC_HUGE_MISSED] = ctx->pool.missed;
	at[XR_CHANPROC_POOL_FAR] = alive * (ctx->pool.far + ctx->mem_far);
	at[XR_CHANPROC_NODE_REFUSED] = ctx->pool.refused;
}

static void stats_context(struct xrdma_context *ctx, uint64_t alive)
{
	uint64_t at[XR_CHANPROC_COUNT] = { 0 };
	int i;

	stats_figures(ctx, at, alive);
	for (i = 0; i < XR_CHANPROC_COUNT; i++) {
		if (at[i] == ctx->told[i])
			continue;
		xr_chanstats_add((enum xr_chanproc)i, at[i] - ctx->told[i]);
		ctx->told[i] = at[i];
	}
}

/* A thread may have moved to another node, and a node that was full may have given its memory elsewhere. */
static void stats_place(struct xrdma_context *ctx)
{
	uint64_t now = xr_now_ns();
	struct xrdma_mem *m;
	int node, r;

	if (now < ctx->placed_at)
		return;
	ctx->placed_at = now + XR_CONTEXT_PLACE;
	xr_pool_look(&ctx->pool);
	node = xr_place_node(&ctx->dev->place);
	ctx->mem_far = 0;
	for (m = ctx->mems; m; m = m->next) {
		r = !m->own || node < 0 ? 0 : xr_place_far(m->mr->addr, m->mr->len, node);
		/* what cannot be asked keeps what was known of it */
		if (r >= 0)
			m->far = r > 0;
		ctx->mem_far += m->far ? m->mr->len : 0;
	}
}

void xr_context_tell(struct xrdma_context *ctx)
{
	struct xrdma_channel *ch;

	if (xr_unlikely(ctx->dev->place.nodes))
		stats_place(ctx);
	if (!ctx->listed)
		return;
	while ((ch = ctx->untold)) {
		ctx->untold = ch->next_untold;
		ch->untold = 0;
		stats_tell(ch);
	}
	stats_context(ctx, 1);
}

void xr_context_list(struct xrdma_context *ctx)
{
	if (xr_chanstats_open())
		return;
	/* never 0: that is none.  relaxed: see above */
	while (!ctx->listed)
		ctx->listed = atomic_fetch_add_explicit(&stats_contexts, 1, memory_order_relaxed) + 1;
	xr_context_tell(ctx);
}

void xr_context_unlist(struct xrdma_context *ctx)
{
	if (!ctx->listed)
		return;
	stats_context(ctx, 0);
	ctx->listed = 0;
	xr_chanstats_close();
}
