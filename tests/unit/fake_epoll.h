/* SPDX-License-Identifier: BSD-2-Clause */
/* One epoll file with fabric flows and a pipe: what the tests of epoll have in common. */
#ifndef FAKE_EPOLL_H
#define FAKE_EPOLL_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "epoll_young.h"
#include "fake_flow.h"

static int ep = -1;
static int pipe_fd[2] = { -1, -1 };

static inline int setup(void **state)
{
	(void)state;
	fake_setup();
	ep = epoll_create1(EPOLL_CLOEXEC);
	assert_true(ep >= 0);
	assert_int_equal(xr_epoll_created(ep, 0), 0);
	assert_int_equal(pipe(pipe_fd), 0);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	if (ep >= 0) {
		xr_epoll_close(ep);
		close(ep);
	}
	close(pipe_fd[0]);
	close(pipe_fd[1]);
	fake_teardown();
	return 0;
}

/* As the hook does. */
static inline int ctl_at(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct xr_flow *f = xr_fd_flow(fd);
	struct xr_epoll *file = xr_fd_epoll(epfd);
	int r = f && file ? xr_epoll_ctl_young(file, epfd, op, fd, f, ev) : 1;

	return r == 1 ? xr_epoll_ctl(epfd, op, fd, ev) : r < 0 ? -errno : r;
}

static inline int ctl(int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = { .events = events };

	ev.data.u64 = data;
	return ctl_at(ep, op, fd, &ev);
}

static inline int wait_ev(struct epoll_event *ev, int max, int ms)
{
	uint64_t deadline = ms > 0 ? xr_now_ns() + (uint64_t)ms * 1000000u : 0;

	return xr_epoll_wait(ep, ev, max, deadline, ms >= 0, NULL);
}

static inline void expect(int ms, uint32_t events, uint64_t data)
{
	struct epoll_event ev[8];
	int n = wait_ev(ev, 8, ms);

	assert_int_equal(n, 1);
	assert_int_equal(ev[0].events, events);
	assert_int_equal(ev[0].data.u64, data);
}

static inline void expect_none(int ms)
{
	struct epoll_event ev[8];

	assert_int_equal(wait_ev(ev, 8, ms), 0);
}

static inline struct fake *moved(uint32_t i, uint32_t events)
{
	struct fake *k = fake_open(i);

	/* an armed EPOLLONESHOT does not move, see below */
	if (events & EPOLLONESHOT)
		assert_int_equal(fake_move(k), 0);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, events, 100 + i), 0);
	if (!(events & EPOLLONESHOT))
		assert_int_equal(fake_move(k), 0);
	return k;
}

#define T(f)	cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
