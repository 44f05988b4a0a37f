/* SPDX-License-Identifier: BSD-2-Clause */
/* The public functions; what they promise stands in xrdma.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "channel.h"
#include "context.h"
#include "option_table.h"
#include "xrdma.h"

int xrdma_context_create(struct xrdma_context **ctx, const char *device,
			 const struct xrdma_callbacks *callbacks, void *arg)
{
	int r = xr_context_create(ctx, device, callbacks, arg);

	if (!r)
		xr_context_list(*ctx);
	return r;
}

int xrdma_context_destroy(struct xrdma_context *ctx)
{
	return ctx ? xr_context_destroy(ctx) : 0;
}

int xrdma_set_option(struct xrdma_context *ctx, enum xrdma_option option, uint64_t value)
{
	static const struct { uint64_t least, most; } range[XRDMA_OPT_COUNT] = {
#define RANGE(SYM, name, unit, least, most, preset, text) [XRDMA_OPT_##SYM] = { least, most },
		XR_OPTION_TABLE(RANGE)
#undef RANGE
	};

	if ((unsigned int)option >= XRDMA_OPT_COUNT || value < range[option].least ||
	    value > range[option].most)
		return -EINVAL;
	if (option == XRDMA_OPT_POOL_BYTES) {
		if (ctx->pool.used)
			return -EBUSY;
		ctx->pool.budget = value;
	}
	if ((option == XRDMA_OPT_QUEUE_US || option == XRDMA_OPT_FETCH_BYTES) && ctx->pool.used)
		return -EBUSY;
	if (option == XRDMA_OPT_TRACE_SAMPLE) {
		int r = xr_trace_sample(ctx, value);

		if (r)
			return r;
	}
	ctx->option[option] = value;
	if (option == XRDMA_OPT_HUGE_PAGES)
		ctx->dev->place.huge = (uint8_t)value;
	if (option == XRDMA_OPT_QP_CACHE)
		xr_qpcache_limit(&ctx->qps, (uint32_t)value);
	if (option == XRDMA_OPT_REST_MS)
		ctx->rest = value ? xr_now_ns() : 0;
	if (option == XRDMA_OPT_KEEPALIVE_MS || option == XRDMA_OPT_REST_MS)
		return xr_keepalive_set(ctx);
	if (option == XRDMA_OPT_QUEUE_US || option == XRDMA_OPT_FETCH_BYTES)
		xr_context_flow(ctx);
	ctx->byref = !ctx->option[XRDMA_OPT_COPY] && ctx->caps.max_byref >= XR_MSG_EAGER_MAX;
	return 0;
}

int xrdma_listen(struct xrdma_context *ctx, const char *name)
{
	/* requests are answered as they come, but a thousand may come between two rounds */
	static const struct xr_listen_attr attr = { .backlog = 4096 };
	struct xr_addr addr;
	struct xr_listener *l;
	int r;

	if (!name || ctx->ops->address(name, &addr))
		return -EINVAL;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	r = ctx->ops->cm_listen(ctx->dev, &addr, &attr, &l->id);
	if (r) {
		free(l);
		return r;
	}
	l->addr = addr;
	l->next = ctx->listeners;
	ctx->listeners = l;
	return 0;
}

int xrdma_connect(struct xrdma_context *ctx, const char *name, struct xrdma_channel **ch)
{
	return xr_channel_connect(ctx, name, ch);
}

int xrdma_send_msg(struct xrdma_channel *ch, const struct xrdma_msg *msg)
{
	return xr_channel_send(ch, msg, msg->id, 0);
}

int xrdma_send_request(struct xrdma_channel *ch, const struct xrdma_msg *msg, xrdma_reply_fn *reply,
		       void *arg)
{
	return xr_rpc_request(ch, msg, reply, arg);
}

int xrdma_send_response(struct xrdma_channel *ch, uint64_t id, const struct xrdma_msg *msg)
{
	return xr_channel_send(ch, msg, id, XR_MSG_RESPONSE);
}

int xrdma_polling(struct xrdma_context *ctx)
{
	return xr_context_poll(ctx);
}

int xrdma_get_event_fd(struct xrdma_context *ctx)
{
	return ctx->epoll;
}

int xrdma_process_event(struct xrdma_context *ctx)
{
	return xr_context_event(ctx);
}

static int mem_new(struct xrdma_context *ctx, void *addr, size_t len, struct xrdma_mem **mem)
{
	struct xrdma_mem *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	r = addr ? ctx->ops->mr_reg(ctx->pd, addr, len, XR_ACCESS_LOCAL_WRITE, &m->mr) :
		   ctx->ops->mr_alloc(ctx->pd, len, XR_ACCESS_LOCAL_WRITE, &m->mr);
	if (r) {
		free(m);
		return r;
	}
	m->ctx = ctx;
	m->own = !addr;
	m->next = ctx->mems;
	ctx->mems = m;
	*mem = m;
	return 0;
}

int xrdma_reg_mem(struct xrdma_context *ctx, void *addr, size_t len, struct xrdma_mem **mem)
{
	return addr ? mem_new(ctx, addr, len, mem) : -EINVAL;
}

int xrdma_alloc_mem(struct xrdma_context *ctx, size_t len, struct xrdma_mem **mem, void **addr)
{
	int r = mem_new(ctx, NULL, len, mem);

	if (!r)
		*addr = (*mem)->mr->addr;
	return r;
}

int xrdma_dereg_mem(struct xrdma_mem *mem)
{
	struct xrdma_mem **pp;
	uint64_t far;
	int r;

	if (!mem)
		return 0;
	if (mem->refs)
		return -EBUSY;
	far = mem->far ? mem->mr->len : 0;
	r = mem->ctx->ops->mr_dereg(mem->mr);
	if (r)
		return r;
	for (pp = &mem->ctx->mems; *pp != mem; pp = &(*pp)->next)
		;
	*pp = mem->next;
	mem->ctx->mem_far -= far;
	free(mem);
	return 0;
}

void xrdma_close(struct xrdma_channel *ch)
{
	if (ch)
		xr_channel_close(ch);
}

void xrdma_get_context_stats(const struct xrdma_context *ctx, struct xrdma_context_stats *s)
{
	const struct xrdma_channel *ch;

	memset(s, 0, sizeof(*s));
	for (ch = ctx->channels; ch; ch = ch->next) {
		s->channels++;
		s->recv_bytes += xr_bank_bytes(ch);
	}
	s->qp_hits = ctx->qps.hits;
	s->qp_misses = ctx->qps.misses;
	s->qp_cached = ctx->qps.n;
	s->qp_dropped = ctx->qps.dropped;
	s->stale = ctx->stale;
	s->pool_bytes = ctx->pool.used;
	s->pool_buffers = ctx->pool.bufs;
	s->pool_huge = ctx->pool.huge;
	s->huge_missed = ctx->pool.missed;
	s->pool_far = ctx->pool.far + ctx->mem_far;
	s->node_refused = ctx->pool.refused;
	s->fetching = ctx->budget.used;
}

void xrdma_set_user(struct xrdma_channel *ch, void *user)
{
	ch->user = user;
}

void *xrdma_get_user(const struct xrdma_channel *ch)
{
	return ch->user;
}

struct xrdma_context *xrdma_get_context(const struct xrdma_channel *ch)
{
	return ch->ctx;
}
