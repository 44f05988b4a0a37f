/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices for rendezvous: a context for each local address, its listeners, calls from it. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include "log.h"
#include "meet.h"
#include "mem.h"

#define DEV_FIRST_NS	50000000ull	/* a device that is not there, or not fit, is looked for again, ever later */
#define DEV_LAST_NS	10000000000ull

static int dev_is_shm(const struct meet *m)
{
	return !strcmp(m->cfg.device, "shm");
}

static enum xr_reason dev_reason(int r)
{
	switch (r) {
	case -EPROTONOSUPPORT:
		return XR_REASON_IWARP;
	case -ENOMEM:
		return meet_memory_reason();
	case -EMFILE:
	case -ENFILE:
		return XR_REASON_LIMIT_FDS;
	default:
		return XR_REASON_NO_VERBS;
	}
}

/* Is this what the settings want? */
static enum xr_reason dev_fit(const struct meet *m, const struct xr_dev_caps *c)
{
	if (dev_is_shm(m))
		return XR_REASON_NONE;
	if (strcmp(m->cfg.device, "auto") && strcmp(m->cfg.device, c->device))
		return XR_REASON_NO_VERBS;
	if (c->software && !m->cfg.software)
		return XR_REASON_SOFTWARE_DEVICE;
	return c->up ? XR_REASON_NONE : XR_REASON_NO_VERBS;
}

/* --- callbacks of a context --------------------------------------------------------------------- */

/* Nothing is made for whoever cannot be the other end of a connection that waits. */
static int dev_admit(struct xrdma_context *ctx, const struct xr_cm_event *ev)
{
	struct meet_dev *d = ctx->arg;
	const struct meet *m = d->meet;
	const struct meet_flow *f;

	d->called = xr_now_ns();
	path_news(&d->meet->path, d->family, ev->peer.ip, PATH_HEARD, d->called);
	if (d->strangers >= MEET_STRANGERS)
		return 0;
	/* a key tells who may; where the network is trusted, it is its addresses that are */
	if (!m->cfg.trust_fabric || dev_is_shm(m))
		return 1;
	for (f = m->flows; f; f = f->next)
		if (f->dev == d && f->state == MEET_LISTENING && f->listener->id == ev->listener &&
		    !memcmp(f->tuple.peer, ev->peer.ip, 16))
			return 1;
	xr_info("a call was refused: no connection goes to where it comes from");
	return 0;
}

static void dev_accepted(struct xrdma_channel *ch, void *arg)
{
	if (!meet_end_new(arg, ch, NULL))
		xrdma_close(ch);
}

static void dev_connected(struct xrdma_channel *ch, void *arg)
{
	struct meet_end *e = xrdma_get_user(ch);

	(void)arg;
	if (e && e->flow)
		meet_say_call(e->flow);
}

static void dev_message(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg)
{
	struct meet_end *e = xrdma_get_user(ch);
	struct meet_dev *d = arg;

	if (!e)
		return;
	if (e->flow && e->flow->state == MEET_UP)
		d->meet->ops.message(e->flow->flow, ch, msg);
	else
		meet_hear(e, msg);
}

static void dev_sent(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	struct meet_end *e = xrdma_get_user(ch);
	struct meet_dev *d = arg;

	if (e && e->flow && e->flow->state == MEET_UP)
		d->meet->ops.sent(e->flow->flow, ch, id);
}

static void dev_done(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	struct meet_end *e = xrdma_get_user(ch);
	struct meet_dev *d = arg;

	if (e && e->flow && e->flow->state == MEET_UP && d->meet->ops.done)
		d->meet->ops.done(e->flow->flow, ch, id);
}

/* A round trip to the device of the peer and back. */
static void dev_probed(struct xrdma_channel *ch, uint64_t rtt)
{
	struct meet_end *e = xrdma_get_user(ch);
	struct meet_flow *f = e ? e->flow : NULL;
	uint64_t now;
	struct pace *p;

	if (!f || !f->meet->cfg.compare)
		return;
	if (f->state == MEET_PACING) {
		meet_paced(f, &rtt);
		return;
	}
	p = f->state == MEET_UP ? path_pace(&f->meet->path, f->tuple.family, f->tuple.peer) : NULL;
	if (!p)
		return;
	now = xr_now_ns();
	/* each is compared with TCP of its own connection, and is one of those of the host */
	if (!p->moved)
		pace_begin(p, f->tcp, 1, now);
	p->tcp = f->tcp;
	if (pace_add(p, rtt, now) != PACE_SLOW)
		return;
	xr_info("round trips over RDMA have come to take %llu us or more, those of TCP took %llu us",
		(unsigned long long)p->least / 1000, (unsigned long long)p->tcp / 1000);
	p->moved = 0;
	meet_moved_slower(f);
}

static void dev_closed(struct xrdma_channel *ch, int error, void *arg)
{
	struct meet_end *e = xrdma_get_user(ch);
	struct meet_dev *d = arg;
	struct meet_flow *f = e ? e->flow : NULL;

	if (!e)
		return;
	if (!f) {
		meet_end_free(e);
	} else if (f->state == MEET_UP) {
		d->meet->ops.closed(f->flow, ch, error);
		/* it may have cancelled it */
		e = xrdma_get_user(ch);
		if (e) {
			meet_end_free(e);
			f->end = NULL;
			meet_cancel(f->meet, f->flow);
		}
	} else {
		meet_end_free(e);
		f->end = NULL;
		meet_call_failed(f, ch->rejected ? -EBUSY : error ? error : -ECONNRESET);
	}
}

/* --- contexts -------------------------------------------------------------------------------------- */

static int dev_open(struct meet_dev *d)
{
	static const struct xrdma_callbacks cb = {
		.accepted = dev_accepted, .connected = dev_connected, .message = dev_message, .sent = dev_sent,
		.done = dev_done, .closed = dev_closed,
	};
	char name[16 + INET6_ADDRSTRLEN] = "verbs:";
	struct epoll_event ev = { .events = EPOLLIN };
	int r;

	if (dev_is_shm(d->meet))
		memcpy(name, "shm", 4);
	else
		inet_ntop(d->family, d->addr, name + 6, INET6_ADDRSTRLEN);
	r = xr_context_create(&d->ctx, name, &cb, d);
	if (r) {
		d->ctx = NULL;
		d->why = dev_reason(r);
		return r;
	}
	d->why = dev_fit(d->meet, &d->ctx->caps);
	if (d->why == XR_REASON_NONE &&
	    epoll_ctl(d->meet->epoll, EPOLL_CTL_ADD, xrdma_get_event_fd(d->ctx), &ev))
		d->why = XR_REASON_INTERNAL;
	if (d->why != XR_REASON_NONE) {
		xr_info("device %s is not used: %s", d->ctx->caps.device, xr_reason_name(d->why));
		xr_context_destroy(d->ctx);
		d->ctx = NULL;
		return -ENODEV;
	}
	d->ctx->admit = dev_admit;
	d->ctx->probed = dev_probed;
	/* 0 and 1 are within its bounds */
	xrdma_set_option(d->ctx, XRDMA_OPT_HUGE_PAGES, d->meet->cfg.huge_pages != 0);
	xr_info("device %s for connections from %s", d->ctx->caps.device, name);
	if (d->meet->ops.opened)
		d->meet->ops.opened(d->meet->arg, d->ctx);
	return 0;
}

void meet_dev_close(struct meet_dev *d)
{
	struct xrdma_channel *ch;

	if (!d->ctx)
		return;
	for (ch = d->ctx->channels; ch; ch = ch->next)
		ch->user = NULL;
	while (d->listeners) {
		struct meet_listener *l = d->listeners;

		d->listeners = l->next;
		d->ctx->ops->cm_destroy(l->id);
		free(l);
	}
	if (d->meet->ops.gone)
		d->meet->ops.gone(d->meet->arg, d->ctx);
	epoll_ctl(d->meet->epoll, EPOLL_CTL_DEL, xrdma_get_event_fd(d->ctx), NULL);
	d->meet->before[XR_BRIDGE_MISSED] += d->ctx->pool.missed;
	d->meet->before[XR_BRIDGE_REFUSED] += d->ctx->pool.refused;
	xr_context_destroy(d->ctx);
	d->ctx = NULL;
}

void meet_dev_memory(struct meet *m)
{
	uint64_t now[XR_BRIDGE_FIGURES], by[XR_BRIDGE_FIGURES];
	struct meet_dev *d;
	int i, changed = 0;

	if (!m->cfg.counted)
		return;
	memcpy(now, m->before, sizeof(now));
	for (d = m->devs; d; d = d->next) {
		if (!d->ctx)
			continue;
		now[XR_BRIDGE_MEMORY] += d->ctx->pool.used;
		now[XR_BRIDGE_HUGE] += d->ctx->pool.huge;
		now[XR_BRIDGE_FAR] += d->ctx->pool.far;
		now[XR_BRIDGE_MISSED] += d->ctx->pool.missed;
		now[XR_BRIDGE_REFUSED] += d->ctx->pool.refused;
	}
	for (i = 0; i < XR_BRIDGE_FIGURES; i++) {
		by[i] = now[i] - m->memory[i];
		changed |= by[i] != 0;
	}
	if (changed)
		m->cfg.counted(by);
	memcpy(m->memory, now, sizeof(now));
}

struct meet_dev *meet_dev_get(struct meet *m, uint16_t family, const uint8_t addr[16], uint64_t now,
			      enum xr_reason *why, uint32_t *again_ms)
{
	struct meet_dev *d;

	*again_ms = MEET_GONE_MS;

	for (d = m->devs; d; d = d->next)
		if (d->family == family && !memcmp(d->addr, addr, 16))
			break;
	if (!d) {
		d = calloc(1, sizeof(*d));
		if (!d) {
			*why = XR_REASON_LIMIT_MEMORY;
			return NULL;
		}
		d->meet = m;
		d->family = family;
		memcpy(d->addr, addr, 16);
		d->next = m->devs;
		m->devs = d;
	}
	if (!d->ctx && now >= d->again && dev_open(d)) {
		d->rest = !d->rest ? DEV_FIRST_NS : 2 * d->rest < DEV_LAST_NS ? 2 * d->rest : DEV_LAST_NS;
		d->again = now + d->rest;
	}
	if (d->ctx && !d->ctx->gone) {
		d->rest = 0;
		return d;
	}
	*why = d->ctx ? XR_REASON_NO_VERBS : d->why;
	if (!d->ctx)
		*again_ms = (uint32_t)((d->again - now) / 1000000) + 1;
	return NULL;
}

/* --- listening and calling ------------------------------------------------------------------------- */

/* The rendezvous point of the end that has this address and port. */
static void dev_point(const struct meet_dev *d, const uint8_t addr[16], uint16_t port, struct xr_addr *to)
{
	char text[INET6_ADDRSTRLEN] = "";
	char *p;

	memset(to, 0, sizeof(*to));
	to->port = ntohs(port);
	if (dev_is_shm(d->meet)) {
		inet_ntop(d->family, addr, text, sizeof(text));
		for (p = text; *p; p++)
			if (*p == ':')
				*p = '_';
		to->family = XR_AF_SHM;
		xr_snprintf(to->name, sizeof(to->name), "meet.%s.%u", text, to->port);
		return;
	}
	to->family = d->family == AF_INET6 ? XR_AF_INET6 : XR_AF_INET;
	memcpy(to->ip, addr, 16);
}

int meet_listen(struct meet_dev *d, struct meet_flow *f)
{
	struct meet_listener *l;
	struct xr_addr at;
	int r;

	for (l = d->listeners; l; l = l->next)
		if (l->port == f->tuple.lport && !memcmp(l->addr, f->tuple.local, 16))
			break;
	if (!l) {
		l = calloc(1, sizeof(*l));
		if (!l)
			return -ENOMEM;
		dev_point(d, f->tuple.local, f->tuple.lport, &at);
		r = d->ctx->ops->cm_listen(d->ctx->dev, &at, NULL, &l->id);
		if (r) {
			free(l);
			return r;
		}
		memcpy(l->addr, f->tuple.local, 16);
		l->port = f->tuple.lport;
		l->next = d->listeners;
		d->listeners = l;
	}
	l->users++;
	f->listener = l;
	return 0;
}

void meet_unlisten(struct meet_flow *f)
{
	struct meet_listener *l = f->listener, **pp;

	f->listener = NULL;
	if (!l || --l->users)
		return;
	for (pp = &f->dev->listeners; *pp != l; pp = &(*pp)->next)
		;
	*pp = l->next;
	f->dev->ctx->ops->cm_destroy(l->id);
	free(l);
}

int meet_call(struct meet_dev *d, struct meet_flow *f, struct xrdma_channel **ch)
{
	struct xr_addr to;

	dev_point(d, f->tuple.peer, f->tuple.pport, &to);
	/* from the address that the connection has: that is what its other end expects */
	if (!dev_is_shm(d->meet))
		memcpy(to.source, f->tuple.local, 16);
	return xr_channel_connect_to(d->ctx, &to, ch);
}
