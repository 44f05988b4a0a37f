/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keepalive: a channel that was not heard of for one interval is probed with a WRITE of zero
 * bytes, which needs no receive, no credit and no program at the other end.  A probe that is not
 * answered for so many intervals as the option says ends the channel.
 *
 * Where one-sided operations need the CPU of the target, a peer that computes answers late: its
 * death is then told by the device alone, unless the program asks for a limit.
 */
#include <errno.h>
#include <sys/timerfd.h>
#include "channel.h"
#include "context.h"
#include "log.h"
#include "mem.h"

int xr_channel_probe(struct xrdma_channel *ch)
{
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_PROBE, 0), .op = XR_WR_WRITE };

	if ((ch->state != XR_CH_OPEN && ch->state != XR_CH_CLOSING) || ch->probing)
		return -EAGAIN;
	ch->probing = 1;
	ch->probe_at = xr_now_ns();
	ch->missed = 0;
	xr_channel_count(ch, XR_CHAN_PROBES, 1);
	xr_channel_post(ch, &wr);
	return 0;
}

static void keepalive_look(struct xrdma_channel *ch, uint64_t limit)
{
	if (ch->state != XR_CH_OPEN && ch->state != XR_CH_CLOSING)
		return;
	if (ch->alive) {
		ch->alive = 0;
	} else if (!ch->probing) {
		xr_channel_probe(ch);
	} else if (++ch->missed >= limit && limit) {
		xr_info("a channel ends, its peer has not answered %u probes", ch->missed);
		xr_channel_fail(ch, -ETIMEDOUT);
	}
}

/* 0 is never. */
static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a && (!b || a < b) ? a : b;
}

int xr_keepalive_timer(struct xrdma_context *ctx)
{
	uint64_t at = sooner(sooner(ctx->pace, ctx->keepalive), ctx->rest);
	struct itimerspec it = { .it_value = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) } };

	if (at == ctx->timer_at)
		return 0;
	ctx->timer_at = at;
	return timerfd_settime(ctx->timer, TFD_TIMER_ABSTIME, &it, NULL) ? -errno : 0;
}

int xr_keepalive_set(struct xrdma_context *ctx)
{
	uint64_t ms = ctx->option[XRDMA_OPT_KEEPALIVE_MS];

	/* off: a deadline of zero disarms the timer, too */
	ctx->keepalive = ms ? xr_now_ns() + ms * 1000000u : 0;
	return xr_keepalive_timer(ctx);
}

void xr_keepalive(struct xrdma_context *ctx)
{
	uint64_t now = xr_now_ns();
	struct xrdma_channel *ch;

	if (!ctx->keepalive || now < ctx->keepalive)
		return;
	for (ch = ctx->channels; ch; ch = ch->next)
		keepalive_look(ch, ctx->option[XRDMA_OPT_KEEPALIVE_PROBES]);
	ctx->keepalive = now + ctx->option[XRDMA_OPT_KEEPALIVE_MS] * 1000000u;
	if (xr_keepalive_timer(ctx))
		xr_error("keepalive has lost its timer");
}
