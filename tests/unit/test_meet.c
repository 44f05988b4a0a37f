/* SPDX-License-Identifier: BSD-2-Clause */
/* Two ends of a connection find each other, see meet_rig.h. */
#include "meet_rig.h"

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
 * may be this one, by other addresses: see test_meet_ways.c.)
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
	};
	const char *device = getenv("XRDMA_TEST_FABRIC");

	if (device && !strncmp(device, "verbs:", 6))
		address = device + 6;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
