/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts: one thread's device, and the rounds over all of its channels. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "atomic.h"
#include "channel.h"
#include "context.h"
#include "log.h"
#include "mem.h"
#include "option_table.h"

#define BATCH	32
#define WATCH_CQ	1u		/* the descriptors of a context, see context_watch */
#define WATCH_REST	(2u | 4u)	/* connections, timer */
#define ROUNDS	256	/* of one xr_context_event: the program has other descriptors too */

static int context_watch(struct xrdma_context *ctx)
{
	int fd[3] = { ctx->ops->cq_fd(ctx->cq), ctx->ops->cm_fd(ctx->dev), -1 }, i, r;

	ctx->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (ctx->epoll < 0)
		return -errno;
	fd[2] = ctx->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	for (i = 0; i < 3; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.u32 = 1u << i };

		if (fd[i] >= 0 && !epoll_ctl(ctx->epoll, EPOLL_CTL_ADD, fd[i], &ev))
			continue;
		r = -errno;
		close(ctx->epoll);
		if (ctx->timer >= 0)
			close(ctx->timer);
		return r;
	}
	return 0;
}

int xr_context_create(struct xrdma_context **out, const char *device,
		      const struct xrdma_callbacks *cb, void *arg)
{
	static const uint64_t preset[XRDMA_OPT_COUNT] = {
#define PRESET(SYM, name, unit, least, most, preset, text) [XRDMA_OPT_##SYM] = preset,
		XR_OPTION_TABLE(PRESET)
#undef PRESET
	};
	struct xrdma_context *ctx;
	const char *what;
	int r, i;

	if (!cb)
		return -EINVAL;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return -ENOMEM;
	ctx->cb = *cb;
	ctx->arg = arg;
	for (i = 0; i < XRDMA_OPT_COUNT; i++)
		ctx->option[i] = preset[i];
	r = -ENODEV;
	ctx->ops = xr_fabric_find(device ? device : "shm", &what);
	if (!ctx->ops)
		goto free_context;
	r = ctx->ops->open(what, &ctx->dev);
	if (r)
		goto free_context;
	ctx->ops->query(ctx->dev, &ctx->caps);
	xr_place_for(&ctx->dev->place, ctx->caps.network ? ctx->caps.device : NULL);
	ctx->dev->place.huge = (uint8_t)ctx->option[XRDMA_OPT_HUGE_PAGES];
	/* where a probe needs the peer's CPU it proves nothing, and the device knows who died */
	if (!ctx->caps.passive)
		ctx->option[XRDMA_OPT_KEEPALIVE_MS] = ctx->option[XRDMA_OPT_KEEPALIVE_PROBES] = 0;
	/* nor does a round trip say anything about a network then, or where the kernel plays the device */
	if (!ctx->caps.passive || ctx->caps.software)
		ctx->option[XRDMA_OPT_QUEUE_US] = 0;
	xr_context_flow(ctx);
	xr_qpcache_init(&ctx->qps, ctx->ops, ctx->dev, &ctx->caps, (uint32_t)ctx->option[XRDMA_OPT_QP_CACHE]);
	ctx->byref = ctx->caps.max_byref >= XR_MSG_EAGER_MAX;
	r = ctx->ops->pd_alloc(ctx->dev, &ctx->pd);
	if (r)
		goto close_device;
	r = ctx->ops->cq_create(ctx->dev, XR_CONTEXT_CQE < ctx->caps.max_cqe ? XR_CONTEXT_CQE :
				ctx->caps.max_cqe, &ctx->cq);
	if (r)
		goto free_pd;
	r = xr_pool_init(&ctx->pool, ctx->ops, ctx->pd, ctx->option[XRDMA_OPT_POOL_BYTES]);
	if (!r)
		r = context_watch(ctx);
	if (r)
		goto destroy_cq;
	r = xr_keepalive_set(ctx);
	if (r)
		goto close_epoll;
	*out = ctx;
	return 0;
close_epoll:
	close(ctx->timer);
	close(ctx->epoll);
destroy_cq:
	ctx->ops->cq_destroy(ctx->cq);
free_pd:
	ctx->ops->pd_free(ctx->pd);
close_device:
	ctx->ops->close(ctx->dev);
free_context:
	free(ctx);
	return r;
}

static void context_unlink(struct xrdma_channel **pp)
{
	struct xrdma_channel *ch = *pp;

	*pp = ch->next;
	xr_channel_free(ch);
}

int xr_context_destroy(struct xrdma_context *ctx)
{
	const struct xr_fabric_ops *ops = ctx->ops;
	int r;

	if (ctx->polling)
		return -EBUSY;
	while (ctx->channels)
		context_unlink(&ctx->channels);
	xr_qpcache_end(&ctx->qps);
	while (ctx->mems) {
		struct xrdma_mem *m = ctx->mems;

		ctx->mems = m->next;
		ops->mr_dereg(m->mr);
		free(m);
	}
	while (ctx->listeners) {
		struct xr_listener *l = ctx->listeners;

		ctx->listeners = l->next;
		ops->cm_destroy(l->id);
		free(l);
	}
	xr_trace_sample(ctx, 0);
	xr_context_unlist(ctx);
	close(ctx->timer);
	close(ctx->epoll);
	r = xr_pool_destroy(&ctx->pool);
	if (!r)
		r = ops->cq_destroy(ctx->cq);
	if (!r)
		r = ops->pd_free(ctx->pd);
	if (!r)
		r = ops->close(ctx->dev);
	if (r)
		xr_error("a context left something behind: error %d", -r);
	free(ctx);
	return 0;
}

uint64_t xr_context_max_msg(const struct xrdma_context *ctx)
{
	uint64_t most = ctx->option[XRDMA_OPT_POOL_BYTES] / 4;

	return ctx->option[XRDMA_OPT_MAX_MSG] < most ? ctx->option[XRDMA_OPT_MAX_MSG] : most;
}

void xr_context_flow(struct xrdma_context *ctx)
{
	struct xr_adapt_params p = {
		.floor = XR_CHANNEL_EAGER, .start = ctx->option[XRDMA_OPT_FETCH_BYTES],
		.ceiling = ctx->option[XRDMA_OPT_FETCH_BYTES], .unit = XR_CHANNEL_EAGER,
		.target = (uint32_t)ctx->option[XRDMA_OPT_QUEUE_US] * 1000,
	};

	if (p.target)
		p.start = XR_CHANNEL_FRAGMENT;
	/* the options are within bounds, so it cannot fail */
	xr_adapt_init(&ctx->fetch, &p);
	xr_budget_init(&ctx->budget, p.start);
}

static int context_complete(struct xrdma_context *ctx)
{
	struct xr_wc wc[BATCH];
	int i, n = ctx->ops->cq_poll(ctx->cq, wc, BATCH);

	for (i = 0; i < n; i++)
		xr_channel_complete(wc[i].qp->user, &wc[i]);
	return n;
}

/* What its connections make of it they are told by themselves. */
static void context_device(struct xrdma_context *ctx, int status)
{
	ctx->ops->query(ctx->dev, &ctx->caps);
	ctx->gone |= status == -ENODEV;
	if (status)
		xr_warn("device %s: %s", ctx->caps.device, status == -ENETDOWN ? "its port went down" :
			status == -EADDRNOTAVAIL ? "its address is gone" : "it is gone");
	else
		xr_info("device %s is there again", ctx->caps.device);
}

static int context_events(struct xrdma_context *ctx)
{
	struct xr_cm_event ev;
	int n = 0;

	while (ctx->ops->cm_get_event(ctx->dev, &ev) > 0) {
		n++;
		if (ev.type == XR_CM_CONNECT_REQUEST) {
			xr_channel_request(ctx, &ev);
			continue;
		}
		/* what the peer had sent before it went is delivered before its end */
		if (ev.type == XR_CM_DISCONNECTED)
			while (context_complete(ctx) > 0)
				;
		if (ev.type == XR_CM_DEVICE)
			context_device(ctx, ev.status);
		else if (ev.id->user)
			xr_channel_event(ev.id->user, &ev);
	}
	return n;
}

/* Tells the program which channels ended, and frees them. */
static void context_reap(struct xrdma_context *ctx)
{
	struct xrdma_channel **pp, *ch;

	while (ctx->ended) {
		ctx->ended = 0;
		for (pp = &ctx->channels; *pp; ) {
			ch = *pp;
			if (ch->state != XR_CH_DEAD) {
				pp = &ch->next;
				continue;
			}
			if (!ch->silent) {
				/* may make new channels, at the head of the list */
				ch->silent = 1;
				ctx->ended = 1;
				xr_rpc_end(ch, ch->error ? ch->error : -ECONNRESET);
				if (ctx->cb.closed)
					ctx->cb.closed(ch, ch->error, ctx->arg);
				break;
			}
			if (xr_channel_drained(ch))
				context_unlink(pp);
			else
				pp = &ch->next;
		}
	}
}

/* Channels that were held back by time. */
static void context_pace(struct xrdma_context *ctx)
{
	struct xrdma_channel *ch;

	if (xr_now_ns() < ctx->pace)
		return;
	ctx->pace = 0;
	for (ch = ctx->channels; ch; ch = ch->next)
		xr_channel_progress(ch);
}

/* 1: this round looks at connections, timers and memory that rests, which takes system calls. */
static int context_looks(struct xrdma_context *ctx)
{
	uint64_t now;

	if (ctx->rounds++ % XR_CONTEXT_EVENTS)
		return 0;
	now = xr_cycles();
	/* the first round after a sleep always does */
	if (ctx->useful && ctx->rounds > 1 && now - ctx->looked < XR_CONTEXT_BUSY) {
		ctx->useful = 0;
		return 0;
	}
	ctx->useful = 0;
	ctx->looked = now;
	return 1;
}

int xr_context_poll(struct xrdma_context *ctx)
{
	struct xrdma_channel *ch;
	int n;

	if (ctx->polling)
		return -EBUSY;
	ctx->polling = 1;
	n = 0;
	if (xr_unlikely(context_looks(ctx))) {
		n = context_events(ctx);
		if (xr_unlikely(ctx->keepalive))
			xr_keepalive(ctx);
		if (ctx->rest)
			xr_rest(ctx);
		xr_context_tell(ctx);
	}
	n += context_complete(ctx);
	ctx->useful += n > 0;
	if (!n && ctx->owing) {
		ctx->owing = 0;
		for (ch = ctx->channels; ch; ch = ch->next)
			xr_channel_idle(ch);
	}
	if (ctx->starved && n) {
		ctx->starved = 0;
		for (ch = ctx->channels; ch; ch = ch->next)
			xr_channel_progress(ch);
	}
	if (xr_unlikely(ctx->pace))
		context_pace(ctx);
	context_reap(ctx);
	xr_channel_turns(ctx);
	ctx->polling = 0;
	return n;
}

/* What has rung, asked by one system call instead of one for each that might have. */
static uint32_t context_rung(const struct xrdma_context *ctx)
{
	struct epoll_event ev[3];
	int i, n = epoll_wait(ctx->epoll, ev, 3, 0);
	uint32_t rung = 0;

	if (n < 0)
		return WATCH_CQ | WATCH_REST;
	for (i = 0; i < n; i++)
		rung |= ev[i].data.u32;
	return rung;
}

int xr_context_event(struct xrdma_context *ctx)
{
	int rounds = 0, n;
	uint32_t rung;

	if (ctx->polling)
		return -EBUSY;
	rung = context_rung(ctx);
	if (rung & WATCH_CQ)
		ctx->ops->cq_event(ctx->cq);
	for (;;) {
		do {
			/* connections and timers ring until they are looked at, and are then */
			ctx->rounds = rung & WATCH_REST ? 0 : 1;
			rung = 0;
			n = xr_context_poll(ctx);
			if (++rounds > ROUNDS)
				return 1;
		} while (n > 0);
		/* arm, look again, and only then sleep: what came in between does not ring */
		ctx->ops->cq_arm(ctx->cq);
		ctx->rounds = 1;
		if (!xr_context_poll(ctx)) {
			xr_context_tell(ctx);
			return xr_keepalive_timer(ctx) ? 1 : 0;
		}
	}
}
