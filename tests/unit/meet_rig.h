/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two ends that look for each other, both in this process: over the shm device, or over the one that
 * XRDMA_TEST_FABRIC names ("verbs:ADDRESS").
 */
#ifndef XR_MEET_RIG_H
#define XR_MEET_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bridge/meet.h"
#include "core/context.h"
#include "core/fabric_shm_fault.h"
#include "core/mem.h"

#define MS 1000000ull

struct flow {
	struct xr_tuple tuple;
	struct xrdma_channel *ch;
	struct meet_result r;
	int up, failed, closed;
	enum xr_reason why;
	uint32_t again, got;
	char text[32];
};

static const uint8_t key[XR_KEY_LEN] = { 7 }, other_key[XR_KEY_LEN] = { 8 };
static struct meet *host, *caller;
static int opened, gone;
static uint16_t port = 10000;
static const char *address;	/* NULL: shm */
static uint64_t patience = 1000 * MS;
static struct xrdma_context *latest;
static int compare;
static enum xr_nat host_nat = XR_NAT_AUTO, caller_nat = XR_NAT_AUTO;
static int lone_says, lone_asked, lone_trusts;
static struct xr_tuple lone_of;

/* The connections of this test are none of the kernel's. */
static inline int lone(const struct xr_tuple *own, int trust_namespace)
{
	lone_asked++;
	lone_of = *own;
	lone_trusts = trust_namespace;
	return lone_says;
}

static inline void on_up(void *flow, struct xrdma_channel *ch, const struct meet_result *r)
{
	struct flow *f = flow;

	f->up++;
	f->ch = ch;
	f->r = *r;
}

static inline void on_failed(void *flow, enum xr_reason why, uint32_t again)
{
	struct flow *f = flow;

	f->failed++;
	f->why = why;
	f->again = again;
}

static inline void on_message(void *flow, struct xrdma_channel *ch, const struct xrdma_msg *m)
{
	struct flow *f = flow;

	assert_ptr_equal(ch, f->ch);
	assert_true(m->len < sizeof(f->text));
	memcpy(f->text, m->data, m->len);
	f->text[m->len] = 0;
	f->got++;
}

static inline void on_sent(void *flow, struct xrdma_channel *ch, uint64_t id)
{
	(void)flow;
	(void)ch;
	(void)id;
}

static inline void on_closed(void *flow, struct xrdma_channel *ch, int error)
{
	struct flow *f = flow;

	(void)error;
	assert_ptr_equal(ch, f->ch);
	f->closed++;
	f->ch = NULL;
}

static inline void on_opened(void *arg, struct xrdma_context *ctx)
{
	(void)arg;
	assert_non_null(ctx);
	latest = ctx;
	opened++;
}

static inline void on_gone(void *arg, struct xrdma_context *ctx)
{
	(void)arg;
	assert_non_null(ctx);
	gone++;
}

static const struct meet_ops ops = {
	.up = on_up, .failed = on_failed, .message = on_message, .sent = on_sent, .closed = on_closed,
	.opened = on_opened, .gone = on_gone,
};

static inline struct meet *make(const uint8_t *k, int trust)
{
	struct meet_config cfg = { .device = address ? "auto" : "shm", .software = 1, .key = k, .trust_fabric = trust,
				   .timeout = patience, .nat = host ? caller_nat : host_nat, .lone = lone,
				   .compare = compare };
	struct meet *m;

	assert_int_equal(meet_open(&m, &cfg, &ops, NULL), 0);
	return m;
}

static inline int say(struct xrdma_channel *ch, const void *data, size_t len)
{
	return xrdma_send_msg(ch, &(struct xrdma_msg){ .data = data, .len = len });
}

/* A connection of its own for each test: names are those of the network namespace. */
static inline void pair(struct flow *h, struct flow *c)
{
	memset(h, 0, sizeof(*h));
	memset(c, 0, sizeof(*c));
	h->tuple.family = address && strchr(address, ':') ? AF_INET6 : AF_INET;
	inet_pton(h->tuple.family, address ? address : "192.0.2.1", h->tuple.local);
	inet_pton(h->tuple.family, address ? address : "192.0.2.2", h->tuple.peer);
	/* the process id: tests run beside each other */
	if (!address)
		memcpy(h->tuple.local + 1, &(uint16_t){ (uint16_t)getpid() }, 2);
	h->tuple.lport = htons(port++);
	h->tuple.pport = htons(80);
	xr_tuple_mirror(&c->tuple, &h->tuple);
}

static inline int run(const int *until, int ms)
{
	uint64_t end = xr_now_ns() + (uint64_t)ms * MS;

	while (!*until && xr_now_ns() < end) {
		struct pollfd p[2] = { { meet_fd(host), POLLIN, 0 }, { caller ? meet_fd(caller) : -1, POLLIN, 0 } };
		int a = meet_step(host, xr_now_ns()), b = caller ? meet_step(caller, xr_now_ns()) : -1;
		int t = a < 0 ? b : b < 0 ? a : a < b ? a : b;

		if (*until)
			break;
		poll(p, 2, t < 0 || t > 10 ? ms < 10 ? ms : 10 : t);
	}
	return *until;
}

static inline void finish(int contexts)
{
	meet_close(host);
	if (caller)
		meet_close(caller);
	host = caller = NULL;
	assert_int_equal(opened, contexts);
	assert_int_equal(gone, opened);
	opened = gone = 0;
}

#endif
