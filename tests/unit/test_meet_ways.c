/* SPDX-License-Identifier: BSD-2-Clause */
/* What a way between two hosts may be like: addresses that are translated on it, and a way that is slower than TCP. */
#include "meet_rig.h"

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

/* The host's device answers so much later; TCP's round trip is what the caller knows. */
static void paced(struct flow *h, struct flow *c, uint32_t slow_us, uint64_t tcp)
{
	compare = 1;
	if (!host) {
		host = make(key, 0);
		caller = make(key, 0);
	}
	compare = 0;
	pair(h, c);
	meet_begin(host, h, &h->tuple, 1);
	if (slow_us && !h->failed)
		assert_int_equal(xr_shm_fault_set(latest->dev, &(struct xr_shm_fault){ .slow_us = slow_us }), 0);
	meet_begin(caller, c, &c->tuple, 0);
	meet_tcp(caller, c, tcp);
	meet_tcp(host, h, tcp);
}

static void as_fast(void **state)
{
	struct flow h, c;

	(void)state;
	/* the faults are those of the shm device */
	if (address)
		skip();
	paced(&h, &c, 0, 1000 * MS);
	assert_int_equal(run(&h.up, 3000), 1);
	assert_int_equal(run(&c.up, 3000), 1);
	finish(2);
	/* slow, and so is TCP, or nobody knows what that is */
	paced(&h, &c, 3000, 100 * MS);
	assert_int_equal(run(&h.up, 3000), 1);
	finish(2);
	paced(&h, &c, 3000, 0);
	assert_int_equal(run(&h.up, 3000), 1);
	finish(2);
}

/* Both ends know it, for a while, of all connections to that host. */
static void slower(void **state)
{
	struct flow h, c;
	int i;

	(void)state;
	/* the faults are those of the shm device */
	if (address)
		skip();
	for (i = 0; i < 2; i++) {
		paced(&h, &c, 3000, MS / 10);
		assert_int_equal(run(&c.failed, 3000), 1);
		assert_int_equal(run(&h.failed, 3000), 1);
		assert_int_equal(h.up + c.up, 0);
		assert_int_equal(c.why, XR_REASON_SLOWER_PATH);
		assert_int_equal(h.why, XR_REASON_SLOWER_PATH);
		assert_true(c.again > PATH_SLOW_FIRST_NS / MS - 5000 && c.again <= PATH_SLOW_FIRST_NS / MS + 1);
		assert_true(h.again > PATH_SLOW_FIRST_NS / MS - 5000 && h.again <= PATH_SLOW_FIRST_NS / MS + 1);
	}
	finish(2);
}

/* It was fast when it moved: all that go there leave. */
static void slower_later(void **state)
{
	struct flow h[2], c[2], after[2];
	struct xrdma_context *ctx;
	uint32_t i;

	(void)state;
	for (i = 0; i < 2; i++) {
		paced(&h[i], &c[i], 0, 1000 * MS);
		assert_int_equal(run(&h[i].up, 3000), 1);
		assert_int_equal(run(&c[i].up, 3000), 1);
	}
	ctx = c[0].ch->ctx;
	/* one short one among them, and nothing is said */
	for (i = 1; i <= 3 * PACE_MANY; i++)
		ctx->probed(c[0].ch, i % PACE_MANY ? 30000 * MS : MS);
	assert_int_equal(c[0].closed + c[1].closed, 0);
	for (i = 0; i < PACE_MANY && c[0].ch; i++)
		ctx->probed(c[i % 2].ch, 30000 * MS);
	assert_int_equal(i, PACE_MANY);
	assert_int_equal(c[0].closed, 1);
	assert_int_equal(c[1].closed, 1);
	assert_int_equal(run(&h[0].closed, 2000), 1);
	assert_int_equal(run(&h[1].closed, 2000), 1);
	paced(&after[0], &after[1], 0, MS / 10);
	assert_int_equal(after[1].failed, 1);
	assert_int_equal(after[1].why, XR_REASON_SLOWER_PATH);
	finish(2);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(translated),
		cmocka_unit_test(translated_refused),
		cmocka_unit_test(translated_by_trust),
		cmocka_unit_test(translated_twice),
		cmocka_unit_test(translated_stranger),
		cmocka_unit_test(as_fast),
		cmocka_unit_test(slower),
		cmocka_unit_test(slower_later),
	};
	const char *device = getenv("XRDMA_TEST_FABRIC");

	if (device && !strncmp(device, "verbs:", 6))
		address = device + 6;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
