/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two ends of a connection find each other, both in this process: over the shm device, or over the one that
 * XRDMA_TEST_FABRIC names ("verbs:ADDRESS").
 */
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
static enum xr_nat host_nat = XR_NAT_AUTO, caller_nat = XR_NAT_AUTO;
static int lone_says, lone_asked, lone_trusts;
static struct xr_tuple lone_of;

/* The connections of this test are none of the kernel's. */
static int lone(const struct xr_tuple *own, int trust_namespace)
{
	lone_asked++;
	lone_of = *own;
	lone_trusts = trust_namespace;
	return lone_says;
}

static void on_up(void *flow, struct xrdma_channel *ch, const struct meet_result *r)
{
	struct flow *f = flow;

	f->up++;
	f->ch = ch;
	f->r = *r;
}

static void on_failed(void *flow, enum xr_reason why, uint32_t again)
{
	struct flow *f = flow;

	f->failed++;
	f->why = why;
	f->again = again;
}

static void on_message(void *flow, struct xrdma_channel *ch, const struct xrdma_msg *m)
{
	struct flow *f = flow;

	assert_ptr_equal(ch, f->ch);
	assert_true(m->len < sizeof(f->text));
	memcpy(f->text, m->data, m->len);
	f->text[m->len] = 0;
	f->got++;
}

static void on_sent(void *flow, struct xrdma_channel *ch, uint64_t id)
{
	(void)flow;
	(void)ch;
	(void)id;
}

static void on_closed(void *flow, struct xrdma_channel *ch, int error)
{
	struct flow *f = flow;

	(void)error;
	assert_ptr_equal(ch, f->ch);
	f->closed++;
	f->ch = NULL;
}

static void on_opened(void *arg, struct xrdma_context *ctx)
{
	(void)arg;
	assert_non_null(ctx);
	opened++;
}

static void on_gone(void *arg, struct xrdma_context *ctx)
{
	(void)arg;
	assert_non_null(ctx);
	gone++;
}

static const struct meet_ops ops = {
	.up = on_up, .failed = on_failed, .message = on_message, .sent = on_sent, .closed = on_closed,
	.opened = on_opened, .gone = on_gone,
};

static struct meet *make(const uint8_t *k, int trust)
{
	struct meet_config cfg = { .device = address ? "auto" : "shm", .software = 1, .key = k, .trust_fabric = trust,
				   .timeout = patience, .nat = host ? caller_nat : host_nat, .lone = lone };
	struct meet *m;

	assert_int_equal(meet_open(&m, &cfg, &ops, NULL), 0);
	return m;
}

static int say(struct xrdma_channel *ch, const void *data, size_t len)
{
	return xrdma_send_msg(ch, &(struct xrdma_msg){ .data = data, .len = len });
}

/* A connection of its own for each test: names are those of the network namespace. */
static void pair(struct flow *h, struct flow *c)
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

static int run(const int *until, int ms)
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

static void finish(int contexts)
{
	meet_close(host);
	if (caller)
		meet_close(caller);
	host = caller = NULL;
	assert_int_equal(opened, contexts);
	assert_int_equal(gone, opened);
	opened = gone = 0;
}

static void both(const uint8_t *k, int trust, int late)
{
	static const char *const word[2] = { "from the host", "from the caller" };
	struct flow h, c, *f[2] = { &h, &c };
	int i;

	host = make(k, trust);
	caller = make(k, trust);
	pair(&h, &c);
	meet_begin(late ? caller : host, late ? &c : &h, late ? &c.tuple : &h.tuple, !late);
	run(&c.up, late);	/* nobody is there yet */
	meet_begin(late ? host : caller, late ? &h : &c, late ? &h.tuple : &c.tuple, late);
	assert_int_equal(run(&h.up, 2000), 1);
	assert_int_equal(run(&c.up, 2000), 1);
	assert_int_equal(h.failed + c.failed, 0);
	assert_memory_equal(h.r.secret, c.r.secret, sizeof(h.r.secret));
	for (i = 0; i < 2; i++)
		assert_int_equal(say(f[i]->ch, word[i], strlen(word[i])), 0);
	assert_int_equal(run((int *)&h.got, 2000), 1);
	assert_int_equal(run((int *)&c.got, 2000), 1);
	assert_string_equal(h.text, word[1]);
	assert_string_equal(c.text, word[0]);
	meet_cancel(caller, &c);
	assert_int_equal(run(&h.closed, 2000), 1);
	assert_int_equal(c.closed, 0);
	finish(2);
}

static void meets(void **state)
{
	(void)state;
	both(key, 0, 0);
}

static void meets_by_trust(void **state)
{
	(void)state;
	both(NULL, 1, 0);
}

/* The caller was first: it calls again. */
static void meets_late(void **state)
{
	(void)state;
	both(key, 0, 100);
}

static void many(void **state)
{
	static struct flow h[100], c[100];
	int n = address ? 30 : 100, i;

	(void)state;
	host = make(key, 0);
	caller = make(key, 0);
	for (i = 0; i < n; i++) {
		/* half of them share an address and port of the host: other servers */
		pair(&h[i], &c[i]);
		if (i & 1) {
			h[i].tuple.lport = h[i - 1].tuple.lport;
			h[i].tuple.pport = htons(81);
			xr_tuple_mirror(&c[i].tuple, &h[i].tuple);
		}
		meet_begin(host, &h[i], &h[i].tuple, 1);
		meet_begin(caller, &c[i], &c[i].tuple, 0);
	}
	for (i = 0; i < n; i++) {
		run(&h[i].up, 5000);
		run(&c[i].up, 5000);
		/* names what went wrong, if anything did */
		assert_string_equal(xr_reason_name(h[i].why), "none");
		assert_string_equal(xr_reason_name(c[i].why), "none");
		assert_int_equal(h[i].up + c[i].up, 2);
		assert_memory_equal(h[i].r.secret, c[i].r.secret, sizeof(h[i].r.secret));
	}
	for (i = 1; i < n; i++)
		assert_memory_not_equal(h[i].r.secret, h[i - 1].r.secret, sizeof(h[i].r.secret));
	/* both ends go at once, without a goodbye */
	finish(2);
}

static void nobody(void **state)
{
	struct flow h, c;

	(void)state;
	patience = 100 * MS;
	host = make(key, 0);
	caller = make(key, 0);
	patience = 1000 * MS;
	pair(&h, &c);
	meet_begin(caller, &c, &c.tuple, 0);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(c.why, XR_REASON_PEER_NOT_XRDMA);
	assert_true(c.again >= 1000);
	pair(&h, &c);
	meet_begin(host, &h, &h.tuple, 1);
	assert_int_equal(run(&h.failed, 3000), 1);
	assert_int_equal(h.why, XR_REASON_PEER_NOT_XRDMA);
	assert_true(h.again > 0);
	/* after some of them the peer is left alone, at no cost */
	{
		int i;

		for (i = 0; i < 10 && h.why == XR_REASON_PEER_NOT_XRDMA; i++) {
			h.failed = 0;
			h.tuple.lport = htons(port++);
			meet_begin(host, &h, &h.tuple, 1);
			assert_int_equal(run(&h.failed, 3000), 1);
		}
		assert_in_range(i, 7, 9);
	}
	assert_int_equal(h.why, XR_REASON_RDMA_UNREACHABLE);
	assert_true(h.again > 20000);
	finish(2);
}

/* The wrong key, none, or trust on one side only: the connection that waits is not harmed by it. */
static void strangers(void **state)
{
	static const struct { const uint8_t *key; int trust; } bad[] = { { other_key, 0 }, { NULL, 1 } };
	struct flow h, c;
	size_t i;

	(void)state;
	for (i = 0; i < 2; i++) {
		host = make(key, 0);
		caller = make(bad[i].key, bad[i].trust);
		pair(&h, &c);
		meet_begin(host, &h, &h.tuple, 1);
		meet_begin(caller, &c, &c.tuple, 0);
		assert_int_equal(run(&c.failed, 3000), 1);
		assert_int_equal(c.why, XR_REASON_PROOF_FAILED);
		assert_int_equal(c.again, 0);
		assert_int_equal(h.up + h.failed, 0);
		meet_close(caller);
		caller = make(key, 0);
		c.failed = 0;
		meet_begin(caller, &c, &c.tuple, 0);
		assert_int_equal(run(&h.up, 3000), 1);
		assert_int_equal(run(&c.up, 3000), 1);
		finish(3);
	}
}

static void no_key(void **state)
{
	struct flow h, c;

	(void)state;
	host = make(NULL, 0);
	caller = NULL;
	pair(&h, &c);
	meet_begin(host, &h, &h.tuple, 1);
	assert_int_equal(h.failed, 1);
	assert_int_equal(h.why, XR_REASON_NO_KEY);
	finish(0);
}

/* Another process has the name. */
static void busy(void **state)
{
	struct flow h, c, h2;

	(void)state;
	host = make(key, 0);
	caller = make(key, 0);
	pair(&h, &c);
	pair(&h2, &c);
	h2.tuple.lport = h.tuple.lport;
	meet_begin(host, &h, &h.tuple, 1);
	meet_begin(caller, &h2, &h2.tuple, 1);
	assert_int_equal(h2.failed, 1);
	assert_int_equal(h2.why, XR_REASON_RENDEZVOUS_BUSY);
	meet_cancel(host, &h);
	h2.failed = 0;
	meet_begin(caller, &h2, &h2.tuple, 1);
	assert_int_equal(h2.failed, 0);
	finish(2);
}

/*
 * Not this connection: whoever calls about another gets nothing, and calls again for a while.  (With a key it
 * may be this one, by other addresses: see "translated" below.)
 */
static void wrong_tuple(void **state)
{
	struct flow h, c;

	(void)state;
	host = make(NULL, 1);
	caller = make(NULL, 1);
	pair(&h, &c);
	c.tuple.lport = htons(81);
	meet_begin(host, &h, &h.tuple, 1);
	meet_begin(caller, &c, &c.tuple, 0);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(c.why, XR_REASON_PEER_NOT_XRDMA);
	assert_int_equal(h.up, 0);
	finish(2);
}

/*
 * The host knows the caller by an address and port that are not the caller's.  nat: of the host and of the caller;
 * says: of the host's address and port.  Afterwards `h` and `c` have what became of it.
 */
static void behind(struct flow *h, struct flow *c, const uint8_t *k, enum xr_nat of_host, enum xr_nat of_caller,
		   int says)
{
	host_nat = of_host;
	caller_nat = of_caller;
	lone_says = says;
	lone_asked = 0;
	patience = 300 * MS;
	host = make(k, !k);
	caller = make(k, !k);
	patience = 1000 * MS;
	pair(h, c);
	inet_pton(h->tuple.family, h->tuple.family == AF_INET6 ? "2001:db8::99" : "192.0.2.99", h->tuple.peer);
	h->tuple.pport = htons(8080);
	meet_begin(host, h, &h->tuple, 1);
	meet_begin(caller, c, &c->tuple, 0);
	host_nat = caller_nat = XR_NAT_AUTO;
}

static void translated(void **state)
{
	struct flow h, c;
	int nat;

	(void)state;
	for (nat = XR_NAT_AUTO; nat <= XR_NAT_YES; nat++) {
		behind(&h, &c, key, nat, XR_NAT_AUTO, 0);
		assert_int_equal(run(&c.up, 3000), 1);
		assert_int_equal(run(&h.up, 3000), 1);
		assert_int_equal(lone_asked, 1);
		assert_int_equal(lone_trusts, nat == XR_NAT_YES);
		assert_memory_equal(&lone_of, &h.tuple, sizeof(lone_of));
		assert_memory_equal(h.r.secret, c.r.secret, sizeof(h.r.secret));
		assert_int_equal(say(c.ch, "moved", 5), 0);
		assert_int_equal(run((int *)&h.got, 2000), 1);
		assert_string_equal(h.text, "moved");
		finish(2);
	}
}

/* It may be another's: both ends say so, and nothing moves. */
static void translated_refused(void **state)
{
	struct flow h, c;

	(void)state;
	behind(&h, &c, key, XR_NAT_AUTO, XR_NAT_AUTO, -EADDRINUSE);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(run(&h.failed, 3000), 1);
	assert_int_equal(c.why, XR_REASON_TRANSLATED);
	assert_int_equal(h.why, XR_REASON_TRANSLATED);
	assert_true(c.again && h.again);
	assert_int_equal(h.up + c.up, 0);
	finish(2);
	/* nobody is asked where the setting of either end says no */
	behind(&h, &c, key, XR_NAT_NO, XR_NAT_YES, 0);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(c.why, XR_REASON_TRANSLATED);
	assert_int_equal(h.up + c.up + lone_asked, 0);
	finish(2);
	behind(&h, &c, key, XR_NAT_YES, XR_NAT_NO, 0);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(c.why, XR_REASON_TRANSLATED);
	assert_int_equal(h.up + c.up, 0);
	finish(2);
}

/* Without a key it is its addresses that a connection is known by: not even asked. */
static void translated_by_trust(void **state)
{
	struct flow h, c;

	(void)state;
	behind(&h, &c, NULL, XR_NAT_YES, XR_NAT_YES, 0);
	run(&c.failed, 1000);
	assert_int_equal(h.up + c.up + lone_asked, 0);
	finish(2);
}

/*
 * Two connections wait that have the local address and port in common, as Linux allows.  A call that is for neither
 * by its addresses is for nobody; one that is for one of them is, whatever the other is.
 */
static void translated_twice(void **state)
{
	struct flow h, c, h2;

	(void)state;
	behind(&h, &c, key, XR_NAT_YES, XR_NAT_YES, 0);
	h2 = h;
	h2.tuple.pport = htons(8081);
	meet_begin(host, &h2, &h2.tuple, 1);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(h.up + h2.up + c.up + lone_asked, 0);
	finish(2);
	behind(&h, &c, key, XR_NAT_YES, XR_NAT_YES, 0);
	h2 = h;
	xr_tuple_mirror(&h2.tuple, &c.tuple);
	meet_begin(host, &h2, &h2.tuple, 1);
	assert_int_equal(run(&c.up, 3000), 1);
	assert_int_equal(run(&h2.up, 3000), 1);
	assert_int_equal(h.up + lone_asked, 0);
	finish(2);
}

/* The wrong key: who cannot prove anything is not even looked for. */
static void translated_stranger(void **state)
{
	struct flow h, c;

	(void)state;
	behind(&h, &c, key, XR_NAT_YES, XR_NAT_YES, 0);
	meet_close(caller);
	caller = make(other_key, 0);
	c.failed = 0;
	meet_begin(caller, &c, &c.tuple, 0);
	assert_int_equal(run(&c.failed, 3000), 1);
	assert_int_equal(c.why, XR_REASON_PROOF_FAILED);
	assert_int_equal(h.up + lone_asked, 0);
	finish(3);
}

/* A peer that says nothing, or nonsense, at every step. */
static void nonsense(void **state)
{
	uint8_t junk[3][200] = { { 0 } };
	static const struct xrdma_callbacks none;
	struct xrdma_context *ctx;
	struct xrdma_channel *ch;
	struct flow h, c;
	char name[65], addr[INET6_ADDRSTRLEN];
	const char *device = getenv("XRDMA_TEST_FABRIC");
	int i, never = 0;

	(void)state;
	patience = 10000 * MS;
	host = make(key, 0);
	caller = NULL;
	patience = 1000 * MS;
	pair(&h, &c);
	inet_ntop(h.tuple.family, h.tuple.local, addr, sizeof(addr));
	snprintf(name, sizeof(name), !address ? "meet.%s.%u" : strchr(addr, ':') ? "[%s]:%u" : "%s:%u", addr,
		 ntohs(h.tuple.lport));
	meet_begin(host, &h, &h.tuple, 1);
	assert_int_equal(xrdma_context_create(&ctx, device ? device : "shm", &none, NULL), 0);
	for (i = 0; i < 6; i++) {
		struct proof p = { .type = (uint8_t)(i - 1), .flags = PROOF_KEYED, .tuple = c.tuple };
		int n;

		if (i)
			proof_put(junk[1], &p);
		assert_int_equal(xrdma_connect(ctx, name, &ch), 0);
		for (n = 0; n < 50; n++) {
			xrdma_process_event(ctx);
			run(&never, 1);
			if (i && n == 20)
				say(ch, junk[1], i == 5 ? 200 : PROOF_LEN);
		}
		assert_int_equal(h.up + h.failed, 0);
	}
	xrdma_context_destroy(ctx);
	caller = make(key, 0);
	meet_begin(caller, &c, &c.tuple, 0);
	assert_int_equal(run(&h.up, 3000), 1);
	finish(2);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(meets),
		cmocka_unit_test(meets_by_trust),
		cmocka_unit_test(meets_late),
		cmocka_unit_test(many),
		cmocka_unit_test(nobody),
		cmocka_unit_test(strangers),
		cmocka_unit_test(no_key),
		cmocka_unit_test(busy),
		cmocka_unit_test(wrong_tuple),
		cmocka_unit_test(nonsense),
		cmocka_unit_test(translated),
		cmocka_unit_test(translated_refused),
		cmocka_unit_test(translated_by_trust),
		cmocka_unit_test(translated_twice),
		cmocka_unit_test(translated_stranger),
	};
	const char *device = getenv("XRDMA_TEST_FABRIC");

	if (device && !strncmp(device, "verbs:", 6))
		address = device + 6;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
