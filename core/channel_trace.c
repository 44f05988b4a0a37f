/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Channels: records of messages that are traced (trace.h).
 *
 * The trace id travels with the message.  Its span is not sent: both ends make it from the id, the message's number and
 * the two generations.  Nor is any time of the sender; but who receives a traced message says in an ACK what its
 * clock is, now and then, which bounds how far the two clocks are apart.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "channel.h"
#include "config.h"
#include "mem.h"

#define CLOCK_EVERY_NS	100000000u

static _Atomic uint32_t trace_contexts;		/* that trace */
static _Atomic uint64_t trace_next, trace_channel;

/*
 * The sender of a message: both directions begin with the same number, which is random, and generations of two
 * contexts are often equal.
 */
#define SENDER(accepting)	((accepting) ? 1u << 31 : 0)

static void trace_start(struct xrdma_channel *ch, struct xr_trace_data *d, const uint8_t *id)
{
	memset(d, 0, sizeof(*d));
	memcpy(d->id, id, sizeof(d->id));
	if (!ch->trace_no)
		ch->trace_no = atomic_fetch_add_explicit(&trace_channel, 1, memory_order_relaxed) + 1;
	d->flow = ch->trace_no;
	d->fd = -1;
	d->carrier = ch->ctx->caps.passive ? XR_CARRIER_RDMA : XR_CARRIER_SHM;
}

static void trace_clock(const struct xrdma_channel *ch, struct xr_trace_data *d, uint64_t now)
{
	uint64_t error;

	if (!xr_clock_get(&ch->clock, now, &d->offset_ns, &error))
		return;
	d->error_ns = error < UINT32_MAX ? (uint32_t)error : UINT32_MAX;
	d->flags |= XR_TRACE_CLOCK;
}

static void trace_at(struct xr_trace_data *d, enum xr_trace_stage stage, uint64_t ns)
{
	d->stage = (uint8_t)stage;
	d->at_ns = ns;
	xr_trace_write(d);
}

static uint8_t trace_kind(uint8_t flags)
{
	return (flags & XR_MSG_REQUEST ? XR_TRACE_REQUEST : 0) | (flags & XR_MSG_RESPONSE ? XR_TRACE_RESPONSE : 0);
}

/* ---- sending ---- */

void xr_channel_trace_new(struct xrdma_channel *ch, struct xr_out *o, const struct xrdma_msg *m)
{
	uint64_t every = ch->ctx->option[XRDMA_OPT_TRACE_SAMPLE], id[2], span;

	if (m->trace) {
		memcpy(o->trace, m->trace, XR_MSG_TRACE_LEN);
	} else {
		if (!xr_trace_due(every))
			return;
		xr_trace_new(atomic_fetch_add_explicit(&trace_next, 1, memory_order_relaxed) + 1, id, &span);
		memcpy(o->trace, id, XR_MSG_TRACE_LEN);
	}
	o->flags |= XR_MSG_TRACE;
	if (!every)
		return;
	o->flags |= XR_OUT_TRACED;
	o->at = xr_now_ns();
}

void xr_channel_trace_out(struct xrdma_channel *ch, struct xr_out *o, uint32_t seq, enum xr_trace_stage stage)
{
	uint64_t now = xr_now_ns();
	struct xr_trace_data d;

	trace_start(ch, &d, o->trace);
	d.span = xr_trace_span_of(d.id, SENDER(ch->accepting) | ch->generation, ch->peer_generation, seq);
	d.len = o->len;
	d.flags = trace_kind(o->flags);
	if (!(o->flags & XR_OUT_QUEUED)) {
		o->flags |= XR_OUT_QUEUED;
		trace_at(&d, XR_TRACE_QUEUED, o->at);
	}
	if (stage == XR_TRACE_QUEUED)
		return;
	if (stage == XR_TRACE_POSTED && (!ch->clock_at || (int32_t)(ch->win.snd_una - ch->clock_seq) > 0)) {
		ch->clock_at = now;
		ch->clock_seq = seq;
	}
	if (stage == XR_TRACE_ACKED)
		trace_clock(ch, &d, now);
	trace_at(&d, stage, now);
}

void xr_channel_trace_clock(struct xrdma_channel *ch, uint64_t theirs, uint32_t ack)
{
	uint64_t now = xr_now_ns();

	/* it was read after that message came there, and before this ACK came here */
	if (!ch->clock_at || (int32_t)(ack - ch->clock_seq) <= 0)
		return;
	xr_clock_bound(&ch->clock, (int64_t)(theirs - now), (int64_t)(theirs - ch->clock_at), now);
	ch->clock_at = 0;
}

/* ---- receiving ---- */

void xr_channel_trace_in(struct xrdma_channel *ch, const struct xr_in *in, enum xr_trace_stage stage)
{
	uint64_t now;
	struct xr_trace_data d;

	if (!ch->ctx->option[XRDMA_OPT_TRACE_SAMPLE])
		return;
	now = xr_now_ns();
	trace_start(ch, &d, in->trace);
	d.span = xr_trace_span_of(d.id, SENDER(!ch->accepting) | ch->peer_generation, ch->generation, in->h.seq);
	d.len = in->h.len;
	d.flags = trace_kind(in->h.flags);
	trace_clock(ch, &d, now);
	trace_at(&d, stage, now);
	if (stage == XR_TRACE_DELIVERED && now - ch->clock_said > CLOCK_EVERY_NS) {
		ch->clock_said = now;
		ch->clock_due = 1;
	}
}

/* ---- the option ---- */

static void ignore(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg, (void)where, (void)line, (void)msg;
}

static int trace_open(void)
{
	struct xr_config *cfg = malloc(sizeof(*cfg));
	char exe[512];
	ssize_t n;
	int r;

	if (!cfg)
		return -ENOMEM;
	xr_config_load(cfg, NULL, environ, ignore, NULL);
	n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	r = xr_trace_open(cfg->stats_dir, XR_TRACE_CHANNELS, exe);
	/* a program may do something about it, and try again */
	if (r && r != -EALREADY)
		xr_trace_forked();
	free(cfg);
	return r;
}

int xr_trace_sample(struct xrdma_context *ctx, uint64_t value)
{
	int r;

	if (!value == !ctx->traces)
		return 0;
	if (value) {
		r = trace_open();
		if (r)
			return r;
		atomic_fetch_add(&trace_contexts, 1);
	} else if (atomic_fetch_sub(&trace_contexts, 1) == 1) {
		/* the last one: its messages that are under way come to an end without records */
		xr_trace_close();
		xr_trace_forked();
	}
	ctx->traces = value != 0;
	return 0;
}
