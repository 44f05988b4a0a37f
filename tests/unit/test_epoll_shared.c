/* SPDX-License-Identifier: BSD-2-Clause */
/* A flow in several epoll files: each of them is told, whoever hears of it first. */
#include "child.h"
#include "fake_epoll.h"

static int two = -1;

static int setup_two(void **state)
{
	setup(state);
	two = epoll_create1(EPOLL_CLOEXEC);
	assert_int_equal(xr_epoll_created(two, 0), 0);
	return 0;
}

static int teardown_two(void **state)
{
	if (two >= 0) {
		xr_epoll_close(two);
		close(two);
		two = -1;
	}
	return teardown(state);
}

static int ctl_two(int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = { .events = events };

	ev.data.u64 = data;
	return ctl_at(two, op, fd, &ev);
}

static uint64_t wait_of(int epfd, int ms)
{
	struct epoll_event ev[8];
	int n = xr_epoll_wait(epfd, ev, 8, ms ? xr_now_ns() + (uint64_t)ms * 1000000u : 0, 1, NULL);

	assert_true(n >= 0 && n <= 1);
	return n ? ev[0].data.u64 : 0;
}

/* Both files, in either order, whether hot (at once) or armed (after a rest of some ms). */
static void told(struct fake *k, int rounds)
{
	int i;

	for (i = 0; i < rounds; i++) {
		int first = i & 1 ? two : ep, second = i & 1 ? ep : two, rest = i & 2 ? 3 : 0;

		assert_int_equal(wait_of(first, rest), 0);
		assert_int_equal(wait_of(second, rest), 0);
		fake_send(k, 1);
		assert_int_equal(wait_of(first, 1000), first == ep ? 1 : 2);
		assert_int_equal(wait_of(second, 1000), second == ep ? 1 : 2);
		fake_drain(k);
	}
}

static void before_the_move(void **state)
{
	struct fake *k = fake_open(1);

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN, 2), 0);
	assert_int_equal(fake_move(k), 0);
	told(k, 200);
	/* and back, and once more */
	fake_back(k);
	assert_int_equal(write(k->peer, "x", 1), 1);
	assert_int_equal(wait_of(ep, 100), 1);
	assert_int_equal(wait_of(two, 100), 2);
	assert_int_equal(read(k->fd, pipe_fd, 1), 1);
	assert_int_equal(fake_move(k), 0);
	told(k, 20);
	fake_back(k);
	assert_int_equal(ctl_two(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	assert_int_equal(fake_move(k), 0);
	fake_send(k, 1);
	assert_int_equal(wait_of(two, 5), 0);
	assert_int_equal(wait_of(ep, 100), 1);
}

static void after_the_move(void **state)
{
	struct fake *k = fake_open(1), *other = fake_open(2);

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	assert_int_equal(fake_move(k), 0);
	/* armed for the first file alone by now */
	assert_int_equal(wait_of(ep, 5), 0);
	assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN, 2), 0);
	assert_int_equal(k->retreats, 0);
	assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN, 2), -EEXIST);
	told(k, 200);
	/* out of one and in again, as programs do between two requests */
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	fake_send(k, 1);
	assert_int_equal(wait_of(two, 100), 2);
	assert_int_equal(wait_of(ep, 3), 0);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	assert_int_equal(wait_of(ep, 100), 1);
	fake_drain(k);
	told(k, 20);
	/* a file that goes takes its registrations along, and those of the other stay */
	assert_int_equal(ctl_two(EPOLL_CTL_ADD, other->fd, EPOLLIN, 3), 0);
	assert_int_equal(fake_move(other), 0);
	xr_epoll_close(two);
	close(two);
	two = -1;
	fake_send(k, 1);
	fake_send(other, 1);
	assert_int_equal(wait_of(ep, 100), 1);
}

/* One file asleep, the other's thread somewhere else. */
static void *sleep_in(void *arg)
{
	return (void *)(uintptr_t)wait_of(*(int *)arg, 5000);
}

static void one_sleeps(void **state)
{
	struct fake *k = fake_open(1);
	pthread_t t;
	void *r;
	int i;

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLET, 2), 0);
	assert_int_equal(fake_move(k), 0);
	for (i = 0; i < 10; i++) {
		int *asleep = i & 1 ? &two : &ep, awake = i & 1 ? ep : two;

		assert_int_equal(wait_of(awake, i & 2 ? 3 : 0), 0);
		pthread_create(&t, NULL, sleep_in, asleep);
		usleep(20000);
		fake_send(k, 1);
		pthread_join(t, &r);
		assert_int_equal((uintptr_t)r, i & 1 ? 2 : 1);
		/* who was told by the other file, and not by a bell of its own that it has heard */
		assert_int_equal(wait_of(awake, 1000), i & 1 ? 1 : 2);
		fake_drain(k);
		assert_int_equal(wait_of(*asleep, 0), 0);
	}
}

/* More entries than the shared waiter has room for: all is looked at, in all files. */
static void many_at_once(void **state)
{
	enum { MANY = XR_CQ_ENTRIES + 100 };
	struct epoll_event ev[64];
	int i, n, left[2] = { MANY, MANY };

	(void)state;
	for (i = 0; i < MANY; i++) {
		struct fake *k = fake_open((uint32_t)i);

		assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLET, (uint64_t)i), 0);
		assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLET, (uint64_t)i), 0);
		assert_int_equal(fake_move(k), 0);
	}
	assert_int_equal(wait_of(ep, 3), 0);
	assert_int_equal(wait_of(two, 3), 0);
	for (i = 0; i < MANY; i++)
		fake_send(&fake[i], 1);
	for (i = 0; i < 2; i++)
		do {
			n = xr_epoll_wait(i ? two : ep, ev, 64, xr_now_ns() + 100000000u, 1, NULL);
			left[i] -= n;
		} while (n > 0);
	assert_int_equal(left[0], 0);
	assert_int_equal(left[1], 0);
}

/* A file in a poll set hears of it as well. */
static void files_that_are_polled(void **state)
{
	struct fake *k = fake_open(1);
	struct pollfd p[2] = { { .fd = ep, .events = POLLIN }, { .fd = two, .events = POLLIN } };
	int i;

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN, 2), 0);
	assert_int_equal(fake_move(k), 0);
	for (i = 0; i < 4; i++) {
		assert_int_equal(wait_of(ep, 0), 0);
		assert_int_equal(wait_of(two, 0), 0);
		xr_epoll_watch(ep);
		xr_epoll_watch(two);
		fake_send(k, 1);
		assert_true(poll(&p[i & 1], 1, 1000) == 1);
		assert_int_equal(wait_of(ep, 100), 1);
		assert_true(poll(&p[1], 1, 1000) == 1);
		assert_int_equal(wait_of(two, 100), 2);
		fake_drain(k);
	}
}

/* ---- at the same time ------------------------------------------------------ */

static _Atomic int seen[2], stop;

static void *follow(void *arg)
{
	int which = *(int *)arg;
	struct epoll_event ev[4];

	while (!stop)
		if (xr_epoll_wait(which ? two : ep, ev, 4, xr_now_ns() + 200000000u, 1, NULL) > 0)
			seen[which]++;
	return NULL;
}

/* Edges come one by one, and each reaches both; a third file comes and goes meanwhile. */
static void sleepers_miss_nothing(void **state)
{
	struct fake *k = fake_open(1);
	int which[2] = { 0, 1 }, three = epoll_create1(EPOLL_CLOEXEC), i, j, before[2];
	struct epoll_event ev = { .events = EPOLLIN };
	pthread_t t[2];

	(void)state;
	seen[0] = seen[1] = stop = 0;
	assert_int_equal(xr_epoll_created(three, 0), 0);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLET, 1), 0);
	assert_int_equal(fake_move(k), 0);
	for (i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, follow, &which[i]);
	for (i = 0; i < 3000; i++) {
		int both = i % 3;

		/* from one file to two under the eyes of a thread that may be arming for itself */
		if (both == 1)
			assert_int_equal(ctl_two(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLET, 2), 0);
		if (i % 5 == 1)
			ctl_at(three, i & 1 ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, k->fd, &ev);
		if (i % 7 == 0)
			usleep(300);
		before[0] = seen[0];
		before[1] = seen[1];
		fake_send(k, 1);
		for (j = 0; j < 20000 && (seen[0] == before[0] || (both && seen[1] == before[1])); j++)
			usleep(100);
		assert_true(seen[0] > before[0]);
		assert_true(!both || seen[1] > before[1]);
		fake_drain(k);
		if (both == 2) {
			assert_int_equal(ctl_two(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
			if (i % 2) {
				fake_back(k);
				assert_int_equal(fake_move(k), 0);
			}
		}
	}
	stop = 1;
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	xr_epoll_close(three);
	close(three);
}

#define S(f)	cmocka_unit_test_setup_teardown(f, setup_two, teardown_two)

int main(void)
{
	const struct CMUnitTest tests[] = {
		S(before_the_move),
		S(after_the_move),
		S(one_sleeps),
		S(many_at_once),
		S(files_that_are_polled),
		S(sleepers_miss_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
