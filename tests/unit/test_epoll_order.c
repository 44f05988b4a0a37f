/* SPDX-License-Identifier: BSD-2-Clause */
/* What was ready first is reported first, as by the kernel. */
#include "fake_epoll.h"

#define FLOWS	8

static uint64_t seed;

static int below(int n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (int)((seed >> 33) % (uint64_t)n);
}

/* Bytes for n flows, one after the other; which, in that order. */
static void send_some(int n, int *sent)
{
	int i, j, t, all[FLOWS];

	for (i = 0; i < FLOWS; i++)
		all[i] = i;
	for (i = 0; i < n; i++) {
		j = i + below(FLOWS - i);
		t = all[i];
		all[i] = all[j];
		all[j] = t;
		sent[i] = all[i];
		fake_send(&fake[all[i]], 1);
	}
}

/* Events for them in that order, at most max by each call. */
static void told(int n, const int *sent, int max)
{
	struct epoll_event ev[FLOWS];
	int i, k, got = 0;

	while (got < n) {
		k = wait_ev(ev, max, 1000);
		assert_true(k > 0);
		for (i = 0; i < k; i++, got++) {
			assert_int_equal(ev[i].data.u64, 100 + sent[got]);
			fake_drain(&fake[sent[got]]);
		}
	}
}

static void rounds(uint32_t events)
{
	int i, sent[FLOWS];
	uint32_t f;

	for (f = 0; f < FLOWS; f++)
		moved(f, events);
	for (i = 0; i < 400; i++) {
		int n = 1 + below(FLOWS);

		/* nothing is left of the last round; looked at since, or asked to be told */
		expect_none(i % 16 ? 0 : 3);
		send_some(n, sent);
		told(n, sent, i % 3 ? FLOWS : 1 + i % 2);
	}
}

static void edges(void **state)
{
	(void)state;
	rounds(EPOLLIN | EPOLLET);
}

static void levels(void **state)
{
	(void)state;
	rounds(EPOLLIN);
}

/* The next edge of a flow that was just reported has its own place, however few are asked for. */
static void edges_without_a_pause(void **state)
{
	int i, sent[FLOWS];
	uint32_t f;

	(void)state;
	for (f = 0; f < FLOWS; f++)
		moved(f, EPOLLIN | EPOLLET);
	expect_none(0);
	for (i = 0; i < 400; i++) {
		send_some(FLOWS / 2, sent);
		told(FLOWS / 2, sent, i % 3 ? FLOWS : 1 + i % 2);
	}
}

/* Level-triggered, and still ready: behind what was ready when it was reported, before what came after. */
static void levels_that_stand(void **state)
{
	static const int before[] = { 2, 0 }, after[] = { 2, 0, 5, 1 }, later[] = { 2, 1, 0, 5 };
	struct epoll_event ev[FLOWS];
	uint32_t f;
	int i;

	(void)state;
	for (f = 0; f < FLOWS; f++)
		moved(f, EPOLLIN);
	expect_none(0);
	for (i = 0; i < 2; i++)
		fake_send(&fake[before[i]], 1);
	assert_int_equal(wait_ev(ev, FLOWS, 0), 2);
	for (i = 0; i < 2; i++)
		assert_int_equal(ev[i].data.u64, 100 + before[i]);
	fake_send(&fake[5], 1);
	fake_send(&fake[1], 1);
	/* more of what stands does not move it */
	fake_drain(&fake[2]);
	fake_send(&fake[2], 1);
	assert_int_equal(wait_ev(ev, FLOWS, 0), 4);
	for (i = 0; i < 4; i++)
		assert_int_equal(ev[i].data.u64, 100 + after[i]);
	/* who had nothing when it was looked at comes anew */
	fake_drain(&fake[0]);
	fake_drain(&fake[5]);
	assert_int_equal(wait_ev(ev, FLOWS, 0), 2);
	fake_send(&fake[0], 1);
	fake_send(&fake[5], 1);
	assert_int_equal(wait_ev(ev, FLOWS, 0), 4);
	for (i = 0; i < 4; i++)
		assert_int_equal(ev[i].data.u64, 100 + later[i]);
}

/* Stamps of the peer's that lie: all is reported all the same. */
static void stamps_that_lie(void **state)
{
	static const uint64_t lie[] = { 0, 1, UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 2 + 1 };
	struct epoll_event ev[FLOWS];
	uint32_t f, told;
	int i, j;

	(void)state;
	for (f = 0; f < FLOWS; f++)
		moved(f, f & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
	for (i = 0; i < 200; i++) {
		for (f = 0; f < FLOWS; f++) {
			fake_send(&fake[f], 1);
			xr_store_relaxed(&fake[f].slot.stamp, lie[below(5)]);
		}
		/* in one call, or in two where a place was kept for the kernel; then some come twice */
		for (f = 0, told = 0; f < 2 && told != (1u << FLOWS) - 1; f++)
			for (j = wait_ev(ev, FLOWS, 1000); j > 0; j--)
				told |= 1u << (ev[j - 1].data.u64 - 100);
		assert_int_equal(told, (1u << FLOWS) - 1);
		for (f = 0; f < FLOWS; f++)
			fake_drain(&fake[f]);
		expect_none(0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(edges), T(levels), T(edges_without_a_pause), T(levels_that_stand), T(stamps_that_lie),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
