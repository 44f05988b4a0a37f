/* SPDX-License-Identifier: BSD-2-Clause */
/* poll, select and blocking waits on fabric flows, with readiness set by hand. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "fake_flow.h"
#include "preload/waiter.h"

static int pipe_fd[2];

static int setup(void **state)
{
	(void)state;
	fake_setup();
	assert_int_equal(pipe(pipe_fd), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	close(pipe_fd[0]);
	close(pipe_fd[1]);
	fake_teardown();
	return 0;
}

static struct fake *moved(uint32_t i)
{
	struct fake *k = fake_open(i);

	assert_int_equal(fake_move(k), 0);
	return k;
}

static int poll_ms(struct pollfd *p, nfds_t n, int ms)
{
	return xr_poll(p, n, ms > 0 ? xr_now_ns() + (uint64_t)ms * 1000000u : 0, ms >= 0, NULL);
}

/* ---- poll ---------------------------------------------------------------------- */

static void masks(void **state)
{
	struct fake *k = moved(1);
	struct pollfd p = { .fd = k->fd, .events = POLLIN };

	(void)state;
	assert_int_equal(poll_ms(&p, 1, 0), 0);
	assert_int_equal(p.revents, 0);
	p.events = POLLOUT | POLLWRNORM;
	assert_int_equal(poll_ms(&p, 1, 0), 1);
	assert_int_equal(p.revents, POLLOUT | POLLWRNORM);
	fake_send(k, 1);
	p.events = POLLIN | POLLRDNORM | POLLPRI;
	assert_int_equal(poll_ms(&p, 1, -1), 1);
	assert_int_equal(p.revents, POLLIN | POLLRDNORM);
	/* what nobody asked for */
	k->mask = POLLHUP | POLLERR | POLLIN | POLLRDHUP;
	p.events = 0;
	assert_int_equal(poll_ms(&p, 1, -1), 1);
	assert_int_equal(p.revents, POLLHUP | POLLERR);
}

static void odd_sets(void **state)
{
	struct fake *k = moved(1);
	struct pollfd p[5] = {
		{ .fd = -1, .events = POLLIN, .revents = 77 }, { .fd = k->fd, .events = POLLIN },
		{ .fd = k->fd, .events = POLLOUT }, { .fd = 900000, .events = POLLIN },
		{ .fd = pipe_fd[0], .events = POLLIN },
	};

	(void)state;
	fake_send(k, 1);
	assert_int_equal(write(pipe_fd[1], "x", 1), 1);
	assert_int_equal(poll_ms(p, 5, 0), 4);
	assert_int_equal(p[0].revents, 0);
	assert_int_equal(p[1].revents, POLLIN);
	assert_int_equal(p[2].revents, POLLOUT);
	assert_int_equal(p[3].revents, POLLNVAL);
	assert_int_equal(p[4].revents, POLLIN);
	/* an invalid one ends a wait at once */
	fake_drain(k);
	p[1] = p[3];
	assert_int_equal(poll_ms(p, 2, -1), 1);
	/* no descriptors at all: a sleep */
	assert_int_equal(poll_ms(p, 0, 2), 0);
}

static void poll_time(void **state)
{
	struct fake *k = moved(1);
	struct pollfd p = { .fd = k->fd, .events = POLLIN };
	uint64_t then = xr_now_ns();

	(void)state;
	assert_int_equal(poll_ms(&p, 1, 5), 0);
	assert_true(xr_now_ns() - then >= 5000000);
	assert_true(xr_now_ns() - then < 500000000);
	then = xr_now_ns();
	assert_int_equal(xr_poll(&p, 1, then + 1000, 1, NULL), 0);
	assert_true(xr_now_ns() - then >= 1000);
}

/* ---- sleepers -------------------------------------------------------------------- */

struct sleeper {
	pthread_t t;
	struct pollfd p[3];
	nfds_t n;
	_Atomic int ret, done;
};

static void *poll_thread(void *arg)
{
	struct sleeper *s = arg;

	s->ret = poll_ms(s->p, s->n, -1);
	s->done = 1;
	return NULL;
}

static void sleep_on(struct sleeper *s, int a, int b)
{
	memset(s, 0, sizeof(*s));
	s->p[0] = (struct pollfd){ .fd = a, .events = POLLIN };
	s->p[1] = (struct pollfd){ .fd = b, .events = POLLIN };
	s->n = 2;
	assert_int_equal(pthread_create(&s->t, NULL, poll_thread, s), 0);
	usleep(10000);
	assert_int_equal(s->done, 0);
}

static void woken(struct sleeper *s)
{
	int i;

	for (i = 0; i < 2000 && !s->done; i++)
		usleep(1000);
	assert_int_equal(s->done, 1);
	pthread_join(s->t, NULL);
	assert_int_equal(s->ret, 1);
}

static void sleepers_are_woken(void **state)
{
	struct fake *k = moved(1), *m = fake_open(2);
	struct sleeper s, t;

	(void)state;
	m->link = 1;
	assert_int_equal(fake_move(m), 0);
	sleep_on(&s, k->fd, m->fd);
	fake_send(m, 1);
	woken(&s);
	assert_int_equal(s.p[1].revents, POLLIN);
	fake_drain(m);
	sleep_on(&s, k->fd, pipe_fd[0]);
	assert_int_equal(write(pipe_fd[1], "x", 1), 1);
	woken(&s);
	assert_int_equal(read(pipe_fd[0], &(char){ 0 }, 1), 1);
	/* two threads on one direction, which has room for one waiter */
	sleep_on(&s, k->fd, -1);
	sleep_on(&t, k->fd, -1);
	fake_send(k, 1);
	woken(&s);
	woken(&t);
	fake_drain(k);
	/* the end of the peer, which only the kernel tells */
	sleep_on(&s, k->fd, -1);
	assert_int_equal(shutdown(k->peer, SHUT_WR), 0);
	woken(&s);
	assert_true(k->kernel_events > 0);
}

/* A thread in poll takes the place of an epoll file, and gives it back. */
static void poll_beside_epoll(void **state)
{
	struct fake *k = moved(1);
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN };
	struct sleeper s;

	(void)state;
	assert_int_equal(xr_epoll_created(ep, 0), 0);
	assert_int_equal(xr_epoll_ctl(ep, EPOLL_CTL_ADD, k->fd, &ev), 0);
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, xr_now_ns() + 3000000, 1, NULL), 0);
	sleep_on(&s, k->fd, -1);
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, xr_now_ns() + 3000000, 1, NULL), 0);
	fake_send(k, 1);
	woken(&s);
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, xr_now_ns() + 1000000000, 1, NULL), 1);
	fake_drain(k);
	/* the other way round: armed by the thread last, needed by the file */
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, xr_now_ns() + 3000000, 1, NULL), 0);
	assert_int_equal(poll_ms(&(struct pollfd){ .fd = k->fd, .events = POLLIN }, 1, 3), 0);
	fake_send(k, 1);
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, xr_now_ns() + 1000000000, 1, NULL), 1);
	xr_epoll_close(ep);
	close(ep);
}

/* A flow on TCP stays there as long as somebody polls its kernel socket. */
static void counted_flows_are_held(void **state)
{
	struct fake *k = fake_open(1);
	struct sleeper s;

	(void)state;
	sleep_on(&s, k->fd, -1);
	assert_int_equal(k->f->k_rx, 1);
	assert_int_equal(write(k->peer, "x", 1), 1);
	woken(&s);
	assert_int_equal(k->f->k_rx, 0);
	assert_int_equal(fake_polls, 0);
}

static _Atomic int handled;

static void on_signal(int sig)
{
	(void)sig;
	handled++;
}

static void ticking(int on)
{
	struct sigaction sa = { .sa_handler = on ? on_signal : SIG_DFL, .sa_flags = SA_RESTART };
	struct itimerval it = { { 0, on ? 3000 : 0 }, { 0, on ? 3000 : 0 } };

	if (on)
		sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &it, NULL);
	if (!on)
		sigaction(SIGALRM, &sa, NULL);
}

static void interrupted(void **state)
{
	struct fake *k = moved(1);
	struct pollfd p = { .fd = k->fd, .events = POLLIN };
	fd_set r;

	(void)state;
	ticking(1);
	assert_int_equal(poll_ms(&p, 1, -1), -EINTR);
	assert_int_equal(poll_ms(&p, 1, 1000), -EINTR);
	FD_ZERO(&r);
	FD_SET(k->fd, &r);
	assert_int_equal(xr_select(k->fd + 1, &r, NULL, NULL, 0, 0, NULL), -EINTR);
	assert_true(FD_ISSET(k->fd, &r));
	ticking(0);
	assert_true(handled >= 3);
}

static void large_sets(void **state)
{
	enum { N = 400 };
	struct pollfd *p = calloc(N, sizeof(*p));
	uint32_t i;

	(void)state;
	assert_non_null(p);
	for (i = 0; i < N; i++) {
		struct fake *k = moved(i);

		p[i] = (struct pollfd){ .fd = k->fd, .events = POLLIN };
	}
	assert_int_equal(poll_ms(p, N, 2), 0);
	fake_send(&fake[17], 1);
	fake_send(&fake[N - 1], 1);
	assert_int_equal(poll_ms(p, N, -1), 2);
	assert_int_equal(p[17].revents, POLLIN);
	assert_int_equal(p[18].revents, 0);
	assert_int_equal(p[N - 1].revents, POLLIN);
	free(p);
}

/* As many descriptors as the limit allows: there is no room for a bell in the kernel's set. */
static void set_at_the_limit(void **state)
{
	struct rlimit old, rl;
	struct pollfd *p = calloc(64, sizeof(*p));
	struct fake *k;
	int i, n;

	(void)state;
	assert_non_null(p);
	k = moved(1);
	/* bells are made while there is room for them */
	assert_int_equal(poll_ms(&(struct pollfd){ .fd = k->fd, .events = POLLIN }, 1, 1), 0);
	getrlimit(RLIMIT_NOFILE, &old);
	rl = old;
	rl.rlim_cur = 64;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &rl), 0);
	for (i = 0; i < 64; i++)
		p[i] = (struct pollfd){ .fd = k->fd, .events = POLLIN };
	n = poll_ms(p, 64, 5);
	fake_send(k, 1);
	assert_int_equal(poll_ms(p, 64, -1), 64);
	setrlimit(RLIMIT_NOFILE, &old);
	assert_int_equal(n, 0);
	free(p);
}

/* ---- select ------------------------------------------------------------------------ */

static void select_sets(void **state)
{
	struct fake *k = moved(1);
	unsigned long r[64], w[64];
	uint64_t then;
	int n = k->fd + 1, high;
	fd_set e;

	(void)state;
	memset(r, 0, sizeof(r));
	memset(w, 0, sizeof(w));
	r[k->fd / 64] |= 1ul << (k->fd % 64);
	w[k->fd / 64] |= 1ul << (k->fd % 64);
	fake_send(k, 1);
	/* one bit each: counted twice */
	assert_int_equal(xr_select(n, (fd_set *)r, (fd_set *)w, NULL, 0, 1, NULL), 2);
	assert_int_equal(r[k->fd / 64] >> (k->fd % 64), 1);
	fake_drain(k);
	/* bits from n on are not looked at, and gone from the answer */
	r[k->fd / 64] |= ~0ul << (n % 64);
	assert_int_equal(xr_select(n, (fd_set *)r, NULL, NULL, 0, 1, NULL), 0);
	assert_int_equal(r[k->fd / 64], 0);
	/* beyond FD_SETSIZE */
	high = fcntl(k->fd, F_DUPFD, 2000);
	if (high >= 0) {
		xr_fd_set(high, k->f, XR_FD_FLOW);
		fake_send(k, 1);
		memset(r, 0, sizeof(r));
		r[high / 64] |= 1ul << (high % 64);
		assert_int_equal(xr_select(high + 1, (fd_set *)r, NULL, NULL, 0, 0, NULL), 1);
		assert_int_equal(r[high / 64], 1ul << (high % 64));
		xr_fd_take(high);
		close(high);
		fake_drain(k);
	}
	/* a closed one: EBADF, and the sets are left alone */
	memset(r, 0, sizeof(r));
	r[0] = 1ul << k->fd | 1ul << 63;
	close(63);
	assert_int_equal(xr_select(64, (fd_set *)r, NULL, NULL, 0, 0, NULL), -EBADF);
	assert_int_equal(r[0], 1ul << k->fd | 1ul << 63);
	assert_int_equal(xr_select(-1, (fd_set *)r, NULL, NULL, 0, 0, NULL), -EINVAL);
	/* hung up and in no set that shows it: no answer, and no spinning either */
	FD_ZERO(&e);
	FD_SET(pipe_fd[0], &e);
	FD_SET(k->fd, &e);
	close(pipe_fd[1]);
	pipe_fd[1] = -1;
	then = xr_now_ns();
	n = pipe_fd[0] > k->fd ? pipe_fd[0] : k->fd;
	assert_int_equal(xr_select(n + 1, NULL, NULL, &e, then + 30000000, 1, NULL), 0);
	assert_true(xr_now_ns() - then >= 30000000);
	assert_true(fake_polls < 1000);
	assert_false(FD_ISSET(pipe_fd[0], &e));
}

/* ---- blocking calls ------------------------------------------------------------------ */

static int wait_for(struct fake *k, uint32_t mask, uint64_t deadline)
{
	return xr_wait_flow(k->f, k->fd, mask, deadline, xr_signal_mark());
}

static void *send_later(void *arg)
{
	usleep(20000);
	fake_send(arg, 1);
	return NULL;
}

static void wait_flow(void **state)
{
	struct fake *k = moved(1);
	uint64_t then = xr_now_ns();
	struct xr_signal_mark mark;
	pthread_t t;

	(void)state;
	assert_int_equal(wait_for(k, POLLIN, then + 3000000), -EAGAIN);
	assert_true(xr_now_ns() - then >= 3000000);
	assert_int_equal(wait_for(k, POLLOUT, 0), 0);
	pthread_create(&t, NULL, send_later, k);
	while (!(k->mask & POLLIN))
		assert_int_equal(wait_for(k, POLLIN, then + 5000000000), 0);
	pthread_join(t, NULL);
	assert_int_equal(wait_for(k, POLLIN, 0), 0);
	fake_drain(k);
	/* handlers that ran since the caller's first look: only one without SA_RESTART counts */
	mark = xr_signal_mark();
	mark.any--;
	pthread_create(&t, NULL, send_later, k);
	assert_int_equal(xr_wait_flow(k->f, k->fd, POLLIN, 0, mark), 0);
	pthread_join(t, NULL);
	fake_drain(k);
	assert_int_equal(xr_wait_flow(k->f, k->fd, POLLIN, xr_now_ns() + 1000000, mark), -EINTR);
	mark.norestart--;
	assert_int_equal(xr_wait_flow(k->f, k->fd, POLLIN, 0, mark), -EINTR);
	/* no link left: the flow is on its way back */
	k->f->link = NULL;
	assert_int_equal(wait_for(k, POLLIN, xr_now_ns() + 100000), -EAGAIN);
}

static _Atomic int again_calls;

static int again_after(void *arg)
{
	again_calls++;
	return arg && again_calls >= *(int *)arg;
}

static void spinning(void **state)
{
	uint32_t budget = 0, first;
	int at = 2, i;

	(void)state;
	/* what a machine with other work to do has taught this thread is over by then */
	usleep(650000);
	again_calls = 0;
	assert_int_equal(xr_spin(&budget, 1, again_after, &at), 1);
	assert_int_equal(again_calls, 2);
	/* misses cost less and less */
	assert_int_equal(xr_spin(&budget, 1, again_after, NULL), 0);
	first = budget;
	assert_in_range(first, 1, 25000);
	for (i = 0; i < 10; i++)
		assert_int_equal(xr_spin(&budget, 1, again_after, NULL), 0);
	assert_int_equal(budget, 1000);
	/* a sleep that a spin would have covered brings it back, a long one does not */
	xr_spin_slept(&budget, 1, 1000000000);
	assert_int_equal(budget, 1000);
	for (i = 0; i < 6; i++)
		xr_spin_slept(&budget, 1, 20000);
	assert_int_equal(budget, 50000);
	/* none at all when the setting says so */
	xr_cfg.spin = 0;
	again_calls = 0;
	assert_int_equal(xr_spin(&budget, 1, again_after, NULL), 0);
	assert_int_equal(again_calls, 1);
}

#define HOGS	4

/*
 * On a core that others keep a yield takes as long as they all run, and who sleeps is woken before them:
 * 300 waits in vain need a yield or two, not 300 (2 ms each at the least).
 */
static void spinning_on_a_crowded_core(void **state)
{
	uint32_t budget = 0, i;
	pid_t hog[HOGS];
	cpu_set_t all, one;
	uint64_t begun;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	CPU_ZERO(&one);
	for (i = 0; !CPU_ISSET(i, &all); i++)
		;
	CPU_SET(i, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	for (i = 0; i < HOGS; i++) {
		hog[i] = fork();
		if (!hog[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				;
		}
	}
	xr_cfg.spin = 50000;
	usleep(50000);
	begun = xr_now_ns();
	for (i = 0; i < 300; i++)
		assert_int_equal(xr_spin(&budget, 1, again_after, NULL), 0);
	begun = xr_now_ns() - begun;
	for (i = 0; i < HOGS; i++) {
		kill(hog[i], SIGKILL);
		waitpid(hog[i], NULL, 0);
	}
	sched_setaffinity(0, sizeof(all), &all);
	assert_in_range(begun, 0, 400000000);
}

static void *take_number(void *arg)
{
	*(uint32_t *)arg = xr_waiter_self();
	return NULL;
}

static void numbers(void **state)
{
	uint32_t mine[XR_WAITERS], other = 0, again = 0, i, n = 0;
	uint8_t seen[XR_WAITERS] = { 0 };
	pthread_t t;

	(void)state;
	seen[xr_waiter_self()] = 1;
	assert_int_equal(xr_waiter_self(), xr_waiter_self());
	/* given back by a thread that ends */
	pthread_create(&t, NULL, take_number, &other);
	pthread_join(t, NULL);
	pthread_create(&t, NULL, take_number, &again);
	pthread_join(t, NULL);
	assert_true(other != 0 && other == again && !seen[other]);
	while ((mine[n] = xr_waiter_get())) {
		assert_true(mine[n] < XR_WAITERS);
		assert_false(seen[mine[n]]);
		seen[mine[n++]] = 1;
	}
	assert_in_range(n, XR_WAITERS - 32, XR_WAITERS - 1);
	/* without one the thread still wakes, a little late */
	other = 1;
	pthread_create(&t, NULL, take_number, &other);
	pthread_join(t, NULL);
	assert_int_equal(other, 0);
	for (i = 0; i < n; i++)
		xr_waiter_put(mine[i]);
	xr_waiter_put(0);
	xr_waiter_put(XR_WAITERS);
	assert_int_equal(xr_waiter_get(), mine[0]);
	xr_waiter_put(mine[0]);
}

#define T(f)	cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(masks), T(odd_sets), T(poll_time), T(sleepers_are_woken), T(poll_beside_epoll),
		T(counted_flows_are_held), T(interrupted), T(large_sets), T(set_at_the_limit),
		T(select_sets), T(wait_flow), T(spinning), T(spinning_on_a_crowded_core), T(numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
