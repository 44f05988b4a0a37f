/* SPDX-License-Identifier: BSD-2-Clause */
/* Connections that look for their other end on another host, see meet.h. */
#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "log.h"
#include "lone.h"
#include "meet.h"
#include "mem.h"

#define MEET_BUSY_NS	50000000ull
#define MEET_LISTEN_MS	10000u
#define MEET_AGAIN_MS	2000u		/* nobody answered: the other end may not have looked up yet */

static uint64_t meet_patience(const struct meet *m)
{
	return m->cfg.timeout ? m->cfg.timeout : 1000000000ull;
}

int meet_open(struct meet **out, const struct meet_config *cfg, const struct meet_ops *ops, void *arg)
{
	struct meet *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->cfg = *cfg;
	if (!m->cfg.lone)
		m->cfg.lone = lone_check;
	m->ops = *ops;
	m->arg = arg;
	if (cfg->key && !cfg->trust_fabric)
		memcpy(m->key, cfg->key, XR_KEY_LEN);
	m->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (m->epoll < 0) {
		int r = -errno;

		free(m);
		return r;
	}
	*out = m;
	return 0;
}

int meet_fd(const struct meet *m)
{
	return m->epoll;
}

/* --- ends ------------------------------------------------------------------------------------------- */

struct meet_end *meet_end_new(struct meet_dev *d, struct xrdma_channel *ch, struct meet_flow *f)
{
	struct meet_end *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->dev = d;
	e->ch = ch;
	e->flow = f;
	if (!f) {
		d->strangers++;
		e->deadline = xr_now_ns() + MEET_WORD_NS;
	}
	e->next = d->meet->strangers;
	d->meet->strangers = e;
	xrdma_set_user(ch, e);
	return e;
}

void meet_end_free(struct meet_end *e)
{
	struct meet_end **pp = &e->dev->meet->strangers;

	while (*pp != e)
		pp = &(*pp)->next;
	*pp = e->next;
	if (!e->flow)
		e->dev->strangers--;
	xrdma_set_user(e->ch, NULL);
	free(e);
}

/* --- flows ------------------------------------------------------------------------------------------ */

static void flow_drop_channel(struct meet_flow *f)
{
	struct meet_end *e = f->end;
	struct xrdma_channel *ch;

	f->end = NULL;
	if (!e)
		return;
	ch = e->ch;
	meet_end_free(e);
	xrdma_close(ch);
}

/* Its call is over, one way or another. */
static void flow_called(struct meet_flow *f)
{
	f->meet->calls -= f->calling;
	f->calling = 0;
}

static void flow_free(struct meet_flow *f)
{
	struct meet_flow **pp = &f->meet->flows;

	flow_called(f);
	flow_drop_channel(f);
	if (f->dev && f->dev->ctx)
		meet_unlisten(f);
	while (*pp != f)
		pp = &(*pp)->next;
	*pp = f->next;
	proof_end(&f->talk);
	free(f);
}

void meet_failed(struct meet_flow *f, enum xr_reason why, uint32_t again_ms)
{
	struct meet *m = f->meet;
	void *flow = f->flow;

	xr_info("no RDMA for a connection: %s", xr_reason_name(why));
	flow_free(f);
	m->ops.failed(flow, why, again_ms);
}

void meet_up(struct meet_flow *f)
{
	const struct xr_qp *qp = f->end->ch->qp;
	struct meet_result r = { .qpn = qp->num, .peer_qpn = qp->peer_num };
	struct meet *m = f->meet;

	memcpy(r.device, f->dev->ctx->caps.device, sizeof(r.device));
	memcpy(r.gid, f->dev->ctx->caps.gid, sizeof(r.gid));
	memcpy(r.peer_gid, qp->peer_gid, sizeof(r.peer_gid));
	proof_secret(&f->talk, r.secret);
	proof_end(&f->talk);
	flow_called(f);
	f->state = MEET_UP;
	meet_unlisten(f);
	path_news(&m->path, f->tuple.family, f->tuple.peer, PATH_GOOD, xr_now_ns());
	m->ops.up(f->flow, f->end->ch, &r);
	explicit_bzero(&r, sizeof(r));
}

struct meet_flow *meet_expected(struct meet_dev *d, const struct xr_tuple *far, int *translated)
{
	struct meet_flow *f, *other = NULL;
	struct xr_tuple mine;
	uint32_t n = 0;

	*translated = 0;
	xr_tuple_mirror(&mine, far);
	for (f = d->meet->flows; f; f = f->next) {
		if (f->dev != d || f->tuple.family != mine.family || f->tuple.lport != mine.lport ||
		    memcmp(f->tuple.local, mine.local, 16))
			continue;
		/* if it is not waiting any more, whoever calls is not to be taken for another's */
		if (!memcmp(&mine, &f->tuple, sizeof(mine)))
			return f->state == MEET_LISTENING ? f : NULL;
		if (f->state == MEET_LISTENING)
			other = f;
		n++;
	}
	if (n != 1 || !other || d->meet->cfg.trust_fabric)
		return NULL;
	*translated = 1;
	return other;
}

/* ms until the memory of paths lets this peer be tried again, and a little more. */
static uint32_t flow_rest(const struct meet_flow *f, uint64_t now)
{
	return (uint32_t)(path_rest(&f->meet->path, f->tuple.family, f->tuple.peer, now) / 1000000) + 1;
}

/* Nobody was there for this connection, or nobody answers at all. */
static void flow_alone(struct meet_flow *f, enum path_news news, uint64_t now)
{
	uint32_t ms;

	/* somebody called, and that is all that can be had here */
	if (f->translated) {
		meet_failed(f, XR_REASON_TRANSLATED, MEET_TRANSLATED_MS);
		return;
	}
	path_news(&f->meet->path, f->tuple.family, f->tuple.peer, news, now);
	ms = flow_rest(f, now);
	/* who listens may do so again at once */
	if (f->state != MEET_LISTENING && ms < MEET_AGAIN_MS)
		ms = MEET_AGAIN_MS;
	meet_failed(f, news == PATH_UNREACHABLE ? XR_REASON_RDMA_UNREACHABLE : XR_REASON_PEER_NOT_XRDMA, ms);
}

void meet_slower(struct meet_flow *f)
{
	struct path *p = &f->meet->path;
	uint64_t now = xr_now_ns();

	path_news(p, f->tuple.family, f->tuple.peer, PATH_SLOW, now);
	meet_failed(f, XR_REASON_SLOWER_PATH,
		    (uint32_t)(path_slow(p, f->tuple.family, f->tuple.peer, now) / 1000000) + 1);
}

/* To its owner that is a channel that was lost.  All that go there are as slow. */
void meet_moved_slower(struct meet_flow *f)
{
	struct xr_tuple t = f->tuple;
	struct meet *m = f->meet;

	path_news(&m->path, t.family, t.peer, PATH_SLOW, xr_now_ns());
	do {
		void *flow = f->flow;

		m->ops.closed(flow, f->end->ch, -ETIME);
		/* the owner may have done so */
		meet_cancel(m, flow);
		for (f = m->flows; f && (f->state != MEET_UP || !f->end || f->tuple.family != t.family ||
					 memcmp(f->tuple.peer, t.peer, 16)); f = f->next)
			;
	} while (f);
}

void meet_tcp(struct meet *m, void *flow, uint64_t rtt)
{
	struct meet_flow *f;

	for (f = m->flows; f && f->flow != flow; f = f->next)
		;
	if (f)
		f->tcp = rtt;
}

void meet_quiet(struct meet *m, void *flow)
{
	uint64_t cycles, now;
	struct meet_flow *f;

	if (!m->cfg.compare)
		return;
	cycles = xr_cycles();
	if (cycles < m->probe_look)
		return;
	/* a look at the clock each quarter of a millisecond, or so */
	m->probe_look = cycles + 500000;
	now = xr_now_ns();
	if (now < m->probe_at)
		return;
	for (f = m->flows; f && f->flow != flow; f = f->next)
		;
	if (f && f->state == MEET_UP && f->end && f->tcp && !xr_channel_probe(f->end->ch))
		m->probe_at = now + MEET_PROBE_NS;
}

/*
 * ENOMEM is what an rdma cgroup says, and registering memory beyond RLIMIT_MEMLOCK, which does not bind
 * who may lock any.
 */
enum xr_reason meet_memory_reason(void)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2] = { { 0 } };
	struct rlimit l;

	if (getrlimit(RLIMIT_MEMLOCK, &l) || l.rlim_cur == RLIM_INFINITY)
		return XR_REASON_LIMIT_MEMORY;
	if (!syscall(SYS_capget, &h, d) && d[0].effective & 1u << CAP_IPC_LOCK)
		return XR_REASON_LIMIT_MEMORY;
	return XR_REASON_MEMLOCK;
}

static const uint16_t call_at[] = { 0, 20, 80, 200, 400, 700 };	/* ms */

void meet_call_failed(struct meet_flow *f, int error)
{
	uint64_t now = xr_now_ns();

	xr_debug("a rendezvous did not come about: error %d", -error);
	flow_drop_channel(f);
	flow_called(f);
	if (f->state == MEET_ANSWERED) {
		/* whoever called has gone */
		f->state = MEET_LISTENING;
		f->deadline = f->begun + 2 * meet_patience(f->meet);
		return;
	}
	f->state = MEET_WAITING;
	switch (error) {
	case -EBUSY:		/* it is there, and has too many callers just now */
		f->heard = 1;
		f->tries--;
		f->next_at = now + MEET_BUSY_NS;
		if (now > f->begun + 10 * meet_patience(f->meet))
			meet_failed(f, XR_REASON_PEER_REFUSED, 10000);
		return;
	case -ECONNREFUSED:	/* not there yet, or not at all */
	case -ECONNRESET:
	case -EAGAIN:
		f->heard = 1;
		if (f->tries < XR_ARRAY_LEN(call_at))
			f->next_at = f->begun + call_at[f->tries] * (meet_patience(f->meet) / 1000);
		if (f->tries < XR_ARRAY_LEN(call_at) && f->next_at < now + 1000000)
			f->next_at = now + 1000000;
		if (f->tries == XR_ARRAY_LEN(call_at))
			flow_alone(f, PATH_NOBODY, now);
		return;
	case -EPROTO:
		meet_failed(f, XR_REASON_VERSION_MISMATCH, 0);
		return;
	case -ENOMEM:
	case -ENOBUFS:
		meet_failed(f, meet_memory_reason(), 10000);
		return;
	case -ENODEV:
	case -ENETDOWN:
	case -EIO:
		meet_failed(f, XR_REASON_NO_VERBS, MEET_GONE_MS);
		return;
	default:
		flow_alone(f, f->heard ? PATH_NOBODY : PATH_UNREACHABLE, now);
	}
}

static void flow_call(struct meet_flow *f)
{
	struct xrdma_channel *ch;
	int r;

	f->tries++;
	f->calling = 1;
	f->meet->calls++;
	f->state = MEET_CONNECTING;
	/* the device gives up before: 10 s; who was reached before answers at once, or not before another attempt */
	f->deadline = xr_now_ns() + 12000000000ull;
	if (path_was_good(&f->meet->path, f->tuple.family, f->tuple.peer))
		f->deadline = xr_now_ns() + 2 * meet_patience(f->meet);
	r = meet_call(f->dev, f, &ch);
	if (!r) {
		f->end = meet_end_new(f->dev, ch, f);
		if (!f->end) {
			xrdma_close(ch);
			r = -ENOMEM;
		}
	}
	if (r)
		meet_call_failed(f, r);
}

/* The listener cannot be had, now. */
static void meet_not_heard(struct meet_flow *f, int error)
{
	xr_info("no rendezvous point: error %d", -error);
	switch (error) {
	case -EADDRINUSE:
		meet_failed(f, XR_REASON_RENDEZVOUS_BUSY, MEET_LISTEN_MS);
		break;
	case -ENOMEM:
		meet_failed(f, meet_memory_reason(), MEET_LISTEN_MS);
		break;
	case -ENODEV:
	case -EADDRNOTAVAIL:
		/* the device goes, and that it does has not come through yet; or its address does */
		meet_failed(f, XR_REASON_NO_VERBS, MEET_GONE_MS);
		break;
	default:
		meet_failed(f, XR_REASON_RENDEZVOUS_FAILED, MEET_LISTEN_MS);
	}
}

void meet_begin(struct meet *m, void *flow, const struct xr_tuple *t, int connecting)
{
	uint64_t now = xr_now_ns();
	struct meet_flow *f = calloc(1, sizeof(*f));
	enum xr_reason why = XR_REASON_LIMIT_MEMORY;
	struct meet_flow **pp;
	uint32_t again_ms;
	int r;

	if (!f) {
		m->ops.failed(flow, why, 0);
		return;
	}
	f->meet = m;
	f->flow = flow;
	f->tuple = *t;
	f->begun = now;
	f->state = connecting ? MEET_LISTENING : MEET_WAITING;
	/* in turn: one that came first is not to wait longest */
	for (pp = &m->flows; *pp; pp = &(*pp)->next)
		;
	*pp = f;
	if (!m->cfg.key && !m->cfg.trust_fabric) {
		meet_failed(f, XR_REASON_NO_KEY, 0);
		return;
	}
	if (path_rest(&m->path, t->family, t->peer, now)) {
		meet_failed(f, XR_REASON_RDMA_UNREACHABLE, flow_rest(f, now));
		return;
	}
	if (m->cfg.compare && path_slow(&m->path, t->family, t->peer, now)) {
		meet_slower(f);
		return;
	}
	f->dev = meet_dev_get(m, t->family, t->local, now, &why, &again_ms);
	if (!f->dev) {
		meet_failed(f, why, why == XR_REASON_SOFTWARE_DEVICE || why == XR_REASON_IWARP ? 0 : again_ms);
		return;
	}
	if (!connecting)
		return;	/* meet_step() calls: the flow may not be known to its owner yet */
	f->deadline = now + 2 * meet_patience(m);
	r = meet_listen(f->dev, f);
	if (r)
		meet_not_heard(f, r);
}

void meet_cancel(struct meet *m, void *flow)
{
	struct meet_flow *f;

	for (f = m->flows; f && f->flow != flow; f = f->next)
		;
	if (f)
		flow_free(f);
}

/* --- time ------------------------------------------------------------------------------------------- */

static void flow_expired(struct meet_flow *f, uint64_t now)
{
	switch (f->state) {
	case MEET_LISTENING:
		/* while others are being called one by one, its own turn may be still to come */
		if (f->dev->called + meet_patience(f->meet) > now && f->begun + 10 * meet_patience(f->meet) > now)
			f->deadline = f->dev->called + meet_patience(f->meet);
		else
			flow_alone(f, PATH_NOBODY, now);
		break;
	case MEET_ANSWERED:
	case MEET_CALLED:
	case MEET_PACING:
		meet_call_failed(f, -ETIMEDOUT);
		break;
	default:
		flow_alone(f, PATH_UNREACHABLE, now);
	}
}

static uint64_t flow_due(const struct meet_flow *f)
{
	return f->state == MEET_UP ? UINT64_MAX : f->state == MEET_WAITING ? f->next_at : f->deadline;
}

/* One that it is time for; callbacks may change the list. */
static int meet_due(struct meet *m, uint64_t now)
{
	struct meet_flow *f;
	struct meet_end *e;

	for (f = m->flows; f; f = f->next) {
		if (flow_due(f) > now || (f->state == MEET_WAITING && m->calls >= MEET_CALLS))
			continue;
		if (f->dev->ctx->gone)
			meet_failed(f, XR_REASON_NO_VERBS, MEET_GONE_MS);
		else if (f->state == MEET_WAITING)
			flow_call(f);
		else
			flow_expired(f, now);
		return 1;
	}
	for (e = m->strangers; e; e = e->next) {
		struct xrdma_channel *ch = e->ch;

		if (e->flow || e->deadline > now)
			continue;
		xr_info("a caller that said nothing was dropped");
		meet_end_free(e);
		xrdma_close(ch);
		return 1;
	}
	return 0;
}

/* A context whose device is gone ends when its last flow has been told. */
static void meet_reap(struct meet *m)
{
	struct meet_dev *d;
	struct meet_flow *f;

	for (d = m->devs; d; d = d->next) {
		if (!d->ctx || !d->ctx->gone)
			continue;
		do {
			for (f = m->flows; f && (f->dev != d || f->state == MEET_UP); f = f->next)
				;
			if (f)
				meet_failed(f, XR_REASON_NO_VERBS, MEET_GONE_MS);
		} while (f);
		for (f = m->flows; f && f->dev != d; f = f->next)
			;
		if (!f)
			meet_dev_close(d);
	}
}

int meet_step(struct meet *m, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	struct meet_dev *d;
	struct meet_flow *f;
	struct meet_end *e;
	int more = 0;

	while (meet_due(m, now))
		;
	for (d = m->devs; d; d = d->next)
		if (d->ctx)
			more |= xr_context_event(d->ctx) > 0;
	meet_reap(m);
	meet_dev_memory(m);
	if (more)
		return 0;
	for (f = m->flows; f; f = f->next)
		if (flow_due(f) < next && (f->state != MEET_WAITING || m->calls < MEET_CALLS))
			next = flow_due(f);
	for (e = m->strangers; e; e = e->next)
		if (!e->flow && e->deadline < next)
			next = e->deadline;
	if (next == UINT64_MAX)
		return -1;
	return next <= now ? 0 : (int)((next - now) / 1000000) + 1;
}

int meet_poll(struct meet *m)
{
	struct meet_dev *d;
	int n = 0, r;

	for (d = m->devs; d; d = d->next) {
		r = d->ctx ? xr_context_poll(d->ctx) : 0;
		n += r > 0 ? r : 0;
	}
	return n;
}

void meet_close(struct meet *m)
{
	struct meet_flow *f;

	/* destroying a context closes its channels; what a flow has of one goes first */
	while (m->flows) {
		f = m->flows;
		m->flows = f->next;
		proof_end(&f->talk);
		free(f);
	}
	while (m->devs) {
		struct meet_dev *d = m->devs;

		m->devs = d->next;
		meet_dev_close(d);
		free(d);
	}
	meet_dev_memory(m);
	while (m->strangers) {
		struct meet_end *e = m->strangers;

		m->strangers = e->next;
		free(e);
	}
	close(m->epoll);
	explicit_bzero(m, sizeof(*m));
	free(m);
}
