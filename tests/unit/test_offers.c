/* SPDX-License-Identifier: BSD-2-Clause */
/* Messages of handshakes over a link, both of whose ends are this process: what is offered is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/mem.h"
#include "preload/upgrade.h"

#define CREDIT		64u	/* to begin with */
#define PER_CALL	8u
#define CREDIT_MAX	8192u

static struct xr_shm_link *host, *caller;
static struct xr_flow flow;

static void links_make(void)
{
	static uint64_t id = 1;
	struct xr_shm_arena own[2], peer[2];
	struct xr_shm_link *l;
	int s[2], i;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	for (i = 0; i < 2; i++) {
		assert_int_equal(xr_shm_arena_create(&own[i], 8 << 20, 16), 0);
		assert_int_equal(xr_shm_arena_attach(&peer[i], own[i].fd), 0);
	}
	for (i = 0; i < 2; i++) {
		l = xr_shm_link_new(s[i], &own[i], &peer[!i]);
		assert_non_null(l);
		l->side = i;
		l->id = id;
		memcpy(l->peer_uuid, xr_uuid, 16);
		xr_up_link_open(l);
		xr_link_ref(l);
		xr_links_add(l);
		*(i ? &host : &caller) = l;
	}
	id++;
}

static void links_drop(void)
{
	/* else they are kept for a while, and lead to the same place */
	xr_store_release(&host->dead, 1);
	xr_store_release(&caller->dead, 1);
	xr_link_unref(host);
	xr_link_unref(caller);
}

static int begin(void **state)
{
	(void)state;
	links_make();
	return 0;
}

static int end(void **state)
{
	(void)state;
	links_drop();
	xr_up_link_forked();
	return 0;
}

/* Connection i to port 80, as the connecting end sees it. */
static struct xr_tuple tuple(uint32_t i)
{
	struct xr_tuple t = { .family = AF_INET, .pport = htons(80), .lport = htons((uint16_t)(i + 1)) };

	inet_pton(AF_INET, "192.0.2.1", t.local);
	inet_pton(AF_INET, "192.0.2.2", t.peer);
	t.local[15] = (uint8_t)(i >> 16);
	return t;
}

static struct xr_upgrade *claim(const struct xr_tuple *t, uint64_t nonce)
{
	struct xr_upgrade *u = xr_up_link_claim(&flow);

	assert_non_null(u);
	u->tuple = u->real = *t;
	u->nonce = nonce << 32;
	xr_up_link_nonce(u);
	return u;
}

/* The calling end of t finds the offer; its nonce, or 0. */
static uint64_t found(const struct xr_tuple *t, int take)
{
	struct xr_shm_link *l = NULL;
	struct xr_tuple far;
	uint64_t nonce = 0;

	xr_tuple_mirror(&far, t);
	xr_shm_link_progress(caller);
	if (!xr_up_offered(&far, take, &l, &nonce))
		return 0;
	if (!take)
		return 1;
	assert_ptr_equal(l, caller);
	xr_link_unref(l);
	return nonce;
}

static void compose(struct xr_up_msg *m, enum xr_up_type type, uint64_t nonce, uint64_t echo)
{
	*m = (struct xr_up_msg){ .magic = XR_UP_MAGIC, .version = XR_UP_VERSION, .type = type,
				 .size = sizeof(*m), .nonce = nonce, .echo = echo };
	memcpy(m->uuid, xr_uuid, 16);
}

static int say(struct xr_shm_link *l, enum xr_up_type type, uint64_t nonce, uint64_t echo)
{
	struct xr_up_msg m;
	int fd = type == XR_UP_CALL || type == XR_UP_ANSWER ? l->conn : -1;

	compose(&m, type, nonce, echo);
	return xr_shm_link_send(l, &m, sizeof(m), &fd, fd >= 0);
}

static void an_offer_is_found_once_and_by_the_right_flow(void **state)
{
	struct xr_tuple a = tuple(1), b = tuple(2);
	struct xr_upgrade *u = claim(&a, 7);

	(void)state;
	/* nobody has gone there over this link */
	assert_int_equal(xr_up_offer(u), -ENOENT);
	xr_links_goes_to(host, &a);
	assert_int_equal(xr_up_offer(u), 0);
	assert_int_equal(u->state, XR_UP_OFFERED);
	assert_int_equal(found(&b, 1), 0);
	assert_int_equal(found(&a, 0), 1);
	assert_int_equal(found(&a, 1), u->nonce);
	assert_int_equal(found(&a, 1), 0);
	xr_up_link_free(u);
}

static void a_call_reaches_the_offer_with_its_proof(void **state)
{
	struct xr_tuple t = tuple(1);
	struct xr_upgrade *u = claim(&t, 7);
	struct xr_proof_seen seen;
	struct xr_up_msg m;
	struct stat st;

	(void)state;
	xr_links_goes_to(host, &t);
	assert_int_equal(xr_up_offer(u), 0);
	assert_int_equal(xr_up_link_get(u, &m, &seen), -EAGAIN);
	/* to somebody else, and for who had the place before */
	assert_int_equal(say(caller, XR_UP_CALL, 3, u->nonce + 1), 0);
	assert_int_equal(say(caller, XR_UP_CALL, 3, u->nonce + XR_UP_LINKED), 0);
	assert_int_equal(say(caller, XR_UP_CALL, 5, u->nonce), 0);
	/* a second one is lost */
	assert_int_equal(say(caller, XR_UP_CALL, 6, u->nonce), 0);
	xr_shm_link_progress(host);
	assert_int_equal(fstat(caller->conn, &st), 0);
	assert_int_equal(xr_up_link_get(u, &m, &seen), 0);
	assert_int_equal(m.nonce, 5);
	assert_true(seen.is && seen.ino == st.st_ino && seen.dev == st.st_dev);
	assert_ptr_equal(u->via, host);
	assert_int_equal(xr_up_link_get(u, &m, &seen), -EAGAIN);
	xr_up_link_free(u);
}

static void who_calls_too_late_is_told(void **state)
{
	struct xr_tuple t = tuple(1);
	struct xr_upgrade *u = claim(&t, 7), *c = claim(&t, 9);
	struct xr_proof_seen seen;
	struct xr_up_msg m;
	int i;

	(void)state;
	xr_links_goes_to(host, &t);
	xr_link_ref(caller);
	c->via = caller;
	for (i = 0; i < 2; i++) {
		assert_int_equal(xr_up_offer(u), 0);
		/* given up before the call comes, or when it lies in the box */
		if (!i)
			xr_up_link_free(u);
		assert_int_equal(say(caller, XR_UP_CALL, c->nonce, u->nonce ? u->nonce : 7ull << 32), 0);
		xr_shm_link_progress(host);
		if (i)
			xr_up_link_free(u);
		assert_int_equal(xr_up_link_get(c, &m, &seen), 0);
		assert_int_equal(m.type, XR_UP_REFUSE);
		u = i ? u : claim(&t, 8);
	}
	xr_up_link_free(c);
}

/* A host whose offers nobody answers stops soon; calls give it more to make, and time does. */
static void credit(void **state)
{
	struct xr_tuple t = tuple(1);
	struct xr_upgrade *u = claim(&t, 7);
	uint32_t i;
	int r = 0;

	(void)state;
	xr_links_goes_to(host, &t);
	xr_store_relaxed(&host->earned, UINT64_MAX);
	for (i = 0; i < CREDIT; i++)
		assert_int_equal(xr_up_offer(u), 0);
	assert_int_equal(xr_up_offer(u), -EBUSY);
	assert_int_equal(xr_shm_link_progress(caller), 0);
	xr_fetch_add(&caller->calls, 1);
	assert_int_equal(say(caller, XR_UP_CALL, 5, u->nonce), 0);
	assert_int_equal(xr_shm_link_progress(host), 0);
	for (i = 0; i < PER_CALL; i++)
		assert_int_equal(xr_up_offer(u), 0);
	assert_int_equal(xr_up_offer(u), -EBUSY);
	assert_int_equal(xr_shm_link_progress(caller), 0);
	/* five for five milliseconds, but no more for an hour than there were to begin with */
	xr_store_relaxed(&host->earned, xr_now_ns() - 5500000);
	for (i = 0; i < 5; i++)
		assert_int_equal(xr_up_offer(u), 0);
	/* or since the machine has been up, where that is less */
	xr_store_relaxed(&host->earned, xr_now_ns() > 3600000000000 ? xr_now_ns() - 3600000000000 : 1);
	for (i = 0; i < CREDIT; i++)
		assert_int_equal(xr_up_offer(u), 0);
	xr_store_relaxed(&host->earned, UINT64_MAX);
	while (!xr_up_offer(u))
		assert_true(++i < 2 * CREDIT);
	assert_int_equal(xr_shm_link_progress(caller), 0);
	/* who offers more than any credit allows is no honest host */
	for (i = 0; !r; i++) {
		assert_int_equal(say(host, XR_UP_OFFER, 1, 0), 0);
		r = xr_shm_link_progress(caller);
	}
	assert_int_equal(r, -EPROTO);
	assert_in_range(i, CREDIT_MAX - 4 * CREDIT, CREDIT_MAX + 4 * CREDIT);
	xr_up_link_free(u);
}

/* A thousand offers, in whatever order they are looked for. */
static void many(void **state)
{
	struct xr_upgrade *u[1000];
	struct xr_tuple t = tuple(0);
	uint32_t i;

	(void)state;
	xr_links_goes_to(host, &t);
	xr_store_relaxed(&host->credit, 1000);
	xr_fetch_add(&caller->calls, 1000);
	for (i = 0; i < 1000; i++) {
		t = tuple(i);
		u[i] = claim(&t, i + 1);
		/* what waits for a peer is bounded */
		if (xr_up_offer(u[i]) == -EAGAIN) {
			xr_shm_link_progress(caller);
			assert_int_equal(xr_up_offer(u[i]), 0);
		}
	}
	for (i = 1000; i-- > 0;) {
		t = tuple(i);
		assert_int_equal(found(&t, 1), u[i]->nonce);
		xr_up_link_free(u[i]);
	}
}

/* Each offer would keep it for some seconds more, as long as connections are made. */
static void a_spare_link_is_left_to_end(void **state)
{
	struct xr_shm_link *old[2] = { host, caller }, *to[4];
	struct xr_tuple t = tuple(1);

	(void)state;
	xr_links_goes_to(host, &t);
	links_make();
	xr_links_goes_to(host, &t);
	/* in use it may be of help */
	assert_int_equal(xr_links_to(&t, 0, to, 4), 2);
	xr_link_unref(to[0]);
	xr_link_unref(to[1]);
	xr_link_unref(old[0]);
	assert_int_equal(xr_links_to(&t, 0, to, 4), 1);
	assert_ptr_equal(to[0], host);
	xr_link_unref(host);
	/* alone it is not spare */
	links_drop();
	host = old[0];
	caller = old[1];
	assert_int_equal(xr_links_to(&t, 0, to, 4), 1);
	assert_ptr_equal(to[0], host);
}

static void a_liar_is_not_heard(void **state)
{
	struct xr_tuple t = tuple(1);
	struct xr_upgrade *u = claim(&t, 7);

	(void)state;
	xr_links_goes_to(host, &t);
	xr_store_relaxed(&caller->liar, 1);
	assert_int_equal(xr_up_offer(u), 0);
	assert_int_equal(found(&t, 1), 0);
	xr_store_relaxed(&host->liar, 1);
	assert_int_equal(xr_up_offer(u), -ENOENT);
	xr_up_link_free(u);
}

static void nonsense_ends_the_link(void **state)
{
	struct xr_up_msg m;
	int i, fd;

	(void)state;
	for (i = 0; i < 6; i++) {
		compose(&m, i == 5 ? XR_UP_CALL : XR_UP_OFFER, 1, 0);
		fd = caller->conn;
		m.magic += i == 0;
		m.version += i == 1;
		m.uuid[15] ^= i == 2;
		/* an offer with a descriptor, a call without, a message that is too short */
		assert_int_equal(xr_shm_link_send(host, &m, sizeof(m) - (i == 4), &fd, i == 3), 0);
		assert_int_equal(xr_shm_link_progress(caller), -EPROTO);
		links_drop();
		links_make();
	}
}

/* Places are used again and never twice at a time. */
static void places(void **state)
{
	static struct xr_upgrade *u[XR_UP_LINKED];
	uint32_t i;

	(void)state;
	for (i = 0; i < XR_UP_LINKED; i++) {
		u[i] = xr_up_link_claim(&flow);
		assert_non_null(u[i]);
		u[i]->nonce = 1ull << 40;
		xr_up_link_nonce(u[i]);
		assert_ptr_equal(u[i], xr_up_link_at((uint32_t)(u[i]->nonce % XR_UP_LINKED)));
	}
	assert_null(xr_up_link_claim(&flow));
	xr_up_link_free(u[77]);
	assert_ptr_equal(xr_up_link_claim(&flow), u[77]);
	assert_null(xr_up_link_claim(&flow));
	for (i = 0; i < XR_UP_LINKED; i++)
		xr_up_link_free(u[i]);
}

/* Of several links to one process, which many connections make that begin at once, one takes the offer. */
static void one_offer_for_each_process(void **state)
{
	struct xr_shm_link *h[4], *c[4];
	uint32_t i, spent, each[4];
	struct xr_upgrade *u;
	struct xr_tuple t;

	(void)state;
	for (i = 0; i < 4; i++) {
		if (i)
			links_make();
		h[i] = host;
		c[i] = caller;
		xr_links_goes_to(h[i], &(struct xr_tuple){ .family = AF_INET, .pport = htons(80),
							   .peer = { 192, 0, 2, 2 } });
	}
	/* by what the kernel says, the last one leads to another process, whatever that claims to be */
	h[3]->peer_pid++;
	t = tuple(0);
	u = claim(&t, 5);
	assert_int_equal(xr_up_offer(u), 0);
	for (i = spent = 0; i < 4; i++)
		spent += each[i] = CREDIT - xr_load_relaxed(&h[i]->credit);
	assert_int_equal(spent, 2);
	assert_int_equal(each[3], 1);
	xr_up_link_free(u);
	/* where that one takes no more, another is as good; both are, the first had no credit */
	for (i = 0; i < 4; i++)
		xr_store_relaxed(&h[i]->credit, i == 2 ? 0 : CREDIT);
	xr_store_relaxed(&h[2]->earned, UINT64_MAX);
	t = tuple(1);
	u = claim(&t, 6);
	assert_int_equal(xr_up_offer(u), 0);
	assert_int_equal(xr_load_relaxed(&h[2]->credit), 0);
	assert_int_equal(xr_load_relaxed(&h[0]->credit) + xr_load_relaxed(&h[1]->credit), 2 * CREDIT - 1);
	xr_up_link_free(u);
	for (i = 0; i < 3; i++) {
		host = h[i];
		caller = c[i];
		links_drop();
	}
	host = h[3];
	caller = c[3];
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_offer_is_found_once_and_by_the_right_flow, begin, end),
		cmocka_unit_test_setup_teardown(a_call_reaches_the_offer_with_its_proof, begin, end),
		cmocka_unit_test_setup_teardown(who_calls_too_late_is_told, begin, end),
		cmocka_unit_test_setup_teardown(credit, begin, end),
		cmocka_unit_test_setup_teardown(one_offer_for_each_process, begin, end),
		cmocka_unit_test_setup_teardown(many, begin, end),
		cmocka_unit_test_setup_teardown(a_spare_link_is_left_to_end, begin, end),
		cmocka_unit_test_setup_teardown(a_liar_is_not_heard, begin, end),
		cmocka_unit_test_setup_teardown(nonsense_ends_the_link, begin, end),
		cmocka_unit_test_setup_teardown(places, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
