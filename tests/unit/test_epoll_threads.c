/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll_wait against time, signals, other threads, other sets and other processes. */
#include "child.h"
#include <sys/mman.h>
#include "fake_epoll.h"

/* ---- time and signals ------------------------------------------------------------ */

static void time_outs(void **state)
{
	struct epoll_event ev;
	uint64_t then, took;

	(void)state;
	moved(1, EPOLLIN);
	expect_none(0);
	then = xr_now_ns();
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, then + 3000000, 1, NULL), 0);
	took = xr_now_ns() - then;
	assert_true(took >= 3000000);
	assert_true(took < 500000000);
	/* shorter than the spin */
	then = xr_now_ns();
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, then + 10000, 1, NULL), 0);
	assert_true(xr_now_ns() - then >= 10000);
}

static _Atomic int handled;

static void on_signal(int sig)
{
	(void)sig;
	handled++;
}

/* A signal that comes before the call is one that it does not hear of. */
static int main_sleeps(void)
{
	char text[512] = "", *p;
	FILE *f = fopen("/proc/self/stat", "r");

	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	p = strrchr(text, ')');
	return p && p[2] == 'S';
}

static void *signal_later(void *arg)
{
	usleep(20000);
	while (!main_sleeps())
		usleep(1000);
	pthread_kill(*(pthread_t *)arg, SIGUSR1);
	return NULL;
}

static void interrupted(void **state)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	pthread_t self = pthread_self(), t;
	struct epoll_event ev;
	sigset_t all, none;

	(void)state;
	moved(1, EPOLLIN);
	sigaction(SIGUSR1, &sa, NULL);
	handled = 0;
	pthread_create(&t, NULL, signal_later, &self);
	assert_int_equal(wait_ev(&ev, 1, -1), -EINTR);
	pthread_join(t, NULL);
	assert_int_equal(handled, 1);
	/* pending and let in by the mask of the call: not looked at when there is no time */
	sigfillset(&all);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &all, NULL);
	raise(SIGUSR1);
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, 0, 1, &none), 0);
	assert_int_equal(handled, 1);
	assert_int_equal(xr_epoll_wait(ep, &ev, 1, 0, 0, &none), -EINTR);
	sigprocmask(SIG_SETMASK, &none, NULL);
	assert_int_equal(handled, 2);
	signal(SIGUSR1, SIG_DFL);
}

static sigjmp_buf jump;

static void on_jump(int sig)
{
	(void)sig;
	siglongjmp(jump, 1);
}

/* A handler that does not return leaves epoll_wait anywhere; the file works on. */
static void left_by_longjmp(void **state)
{
	struct sigaction sa = { .sa_handler = on_jump, .sa_flags = SA_NODEFER };
	pthread_t self = pthread_self(), t;
	struct fake *k = moved(1, EPOLLIN);
	struct epoll_event ev;
	_Atomic int i;

	(void)state;
	sigaction(SIGUSR1, &sa, NULL);
	for (i = 0; i < 5; i++) {
		pthread_create(&t, NULL, signal_later, &self);
		if (!sigsetjmp(jump, 1))
			assert_int_equal(wait_ev(&ev, 1, -1), -1234);
		pthread_join(t, NULL);
	}
	fake_send(k, 1);
	expect(1000, EPOLLIN, 101);
	fake_drain(k);
	expect_none(5);
	signal(SIGUSR1, SIG_DFL);
}

/* ---- threads ---------------------------------------------------------------------- */

struct waiter {
	pthread_t t;
	struct epoll_event ev[4];
	_Atomic int n, done;
	int max;
};

static void *wait_thread(void *arg)
{
	struct waiter *w = arg;

	w->n = wait_ev(w->ev, w->max, -1);
	w->done = 1;
	return NULL;
}

static void sleeper(struct waiter *w)
{
	memset(w, 0, sizeof(*w));
	w->max = 4;
	pthread_create(&w->t, NULL, wait_thread, w);
	/* beyond any spin */
	usleep(20000);
	assert_int_equal(w->done, 0);
}

static void woken(struct waiter *w, uint64_t data)
{
	int i;

	for (i = 0; i < 2000 && !w->done; i++)
		usleep(1000);
	assert_int_equal(w->done, 1);
	pthread_join(w->t, NULL);
	if (w->n != 1)
		print_message("%d events: %d %x, %d %x\n", w->n, (int)w->ev[0].data.u64,
			      w->ev[0].events, (int)w->ev[1].data.u64, w->ev[1].events);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->ev[0].data.u64, data);
}

static void sleepers_are_woken(void **state)
{
	struct fake *k = moved(1, EPOLLIN), *m = fake_open(2), *p = fake_open(3);
	struct waiter w;

	(void)state;
	sleeper(&w);
	fake_send(k, 1);
	woken(&w, 101);
	fake_drain(k);
	/* by the kernel */
	assert_int_equal(ctl(EPOLL_CTL_ADD, pipe_fd[0], EPOLLIN, 200), 0);
	sleeper(&w);
	assert_int_equal(write(pipe_fd[1], "x", 1), 1);
	woken(&w, 200);
	assert_int_equal(read(pipe_fd[0], &(char){ 0 }, 1), 1);
	/* by MOD, ADD, and a kick */
	sleeper(&w);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLOUT, 5), 0);
	woken(&w, 5);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN, 5), 0);
	assert_int_equal(fake_move(m), 0);
	sleeper(&w);
	assert_int_equal(ctl(EPOLL_CTL_ADD, m->fd, EPOLLOUT, 6), 0);
	woken(&w, 6);
	assert_int_equal(ctl(EPOLL_CTL_DEL, m->fd, 0, 0), 0);
	sleeper(&w);
	xr_fetch_or(&k->mask, POLLIN);
	xr_epoll_flow_kick(k->f);
	woken(&w, 5);
	fake_drain(k);
	/* by a flow that moves while it sleeps, and is told of bytes afterwards */
	assert_int_equal(ctl(EPOLL_CTL_ADD, p->fd, EPOLLIN, 7), 0);
	sleeper(&w);
	assert_int_equal(fake_move(p), 0);
	usleep(5000);
	fake_send(p, 1);
	woken(&w, 7);
	fake_drain(p);
	/* and by one that moves back */
	sleeper(&w);
	fake_back(p);
	assert_int_equal(write(p->peer, "x", 1), 1);
	woken(&w, 7);
}

/* A thread that slept before the first flow moved knows of no fabric. */
static void plain_sleepers_are_woken(void **state)
{
	struct fake *k = fake_open(1);
	struct waiter w[3];
	int i;

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLONESHOT, 1), 0);
	for (i = 0; i < 3; i++)
		sleeper(&w[i]);
	assert_int_equal(write(k->peer, "x", 1), 1);
	for (i = 0; i < 2000 && !(w[0].done + w[1].done + w[2].done); i++)
		usleep(1000);
	assert_int_equal(w[0].done + w[1].done + w[2].done, 1);
	assert_int_equal(fake_move(k), 0);
	usleep(5000);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, 2), 0);
	usleep(5000);
	fake_send(k, 1);
	for (i = 0; i < 2000 && w[0].done + w[1].done + w[2].done < 2; i++)
		usleep(1000);
	assert_int_equal(w[0].done + w[1].done + w[2].done, 2);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, 3), 0);
	for (i = 0; i < 3; i++) {
		pthread_join(w[i].t, NULL);
		assert_int_equal(w[i].n, 1);
	}
}

struct blind {
	pthread_t t;
	void *nowhere;
	_Atomic int asleep;
	int n, error;
};

static void *blind_thread(void *arg)
{
	struct blind *b = arg;
	struct xr_epoll *file = xr_fd_epoll(ep);

	b->asleep = 1;
	errno = ENOTUNIQ;
	b->n = xr_epoll_wait_ms(file, ep, b->nowhere, 4, 200, NULL);
	b->error = errno;
	return NULL;
}

/*
 * The kernel cannot write the event of ours that wakes a plain sleeper when a flow moves.  That is no
 * business of the program's: nothing happened, so it gets 0 and its errno is what it was.
 */
static void an_event_of_ours_fails_unseen(void **state)
{
	struct fake *k = fake_open(1);
	struct blind b = { .nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };

	(void)state;
	assert_true(b.nowhere != MAP_FAILED);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	pthread_create(&b.t, NULL, blind_thread, &b);
	while (!b.asleep)
		usleep(1000);
	usleep(20000);
	assert_int_equal(fake_move(k), 0);
	pthread_join(b.t, NULL);
	assert_int_equal(b.n, 0);
	assert_int_equal(b.error, ENOTUNIQ);
	munmap(b.nowhere, 4096);
}

/* One slot each, two flows: who leaves with one wakes another for the rest. */
static void leaver_wakes_the_next(void **state)
{
	struct fake *k = moved(1, EPOLLIN | EPOLLONESHOT), *m;
	struct waiter w[2];
	int i, round;

	(void)state;
	m = moved(2, EPOLLIN | EPOLLONESHOT);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 2; i++) {
			memset(&w[i], 0, sizeof(w[i]));
			w[i].max = 1;
			pthread_create(&w[i].t, NULL, wait_thread, &w[i]);
		}
		usleep(round % 2 ? 3000 : 10);
		fake_send(k, 1);
		fake_send(m, 1);
		for (i = 0; i < 3000 && w[0].done + w[1].done < 2; i++)
			usleep(1000);
		assert_int_equal(w[0].done + w[1].done, 2);
		for (i = 0; i < 2; i++)
			pthread_join(w[i].t, NULL);
		assert_int_equal(w[0].ev[0].data.u64 + w[1].ev[0].data.u64, 203);
		fake_drain(k);
		fake_drain(m);
		assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, 101), 0);
		assert_int_equal(ctl(EPOLL_CTL_MOD, m->fd, EPOLLIN | EPOLLONESHOT, 102), 0);
	}
}

static void *cancelled_thread(void *arg)
{
	struct epoll_event ev;

	(void)arg;
	wait_ev(&ev, 1, -1);
	return NULL;
}

static void cancelled(void **state)
{
	struct fake *k = moved(1, EPOLLIN);
	pthread_t t;
	void *ret;

	(void)state;
	pthread_create(&t, NULL, cancelled_thread, NULL);
	usleep(20000);
	assert_int_equal(pthread_cancel(t), 0);
	assert_int_equal(pthread_join(t, &ret), 0);
	assert_ptr_equal(ret, PTHREAD_CANCELED);
	fake_send(k, 1);
	expect(0, EPOLLIN, 101);
}

static _Atomic uint64_t storm_got;
static _Atomic int storm_end;

static void *storm_thread(void *arg)
{
	struct epoll_event ev[4];

	(void)arg;
	while (!storm_end) {
		int i, n = wait_ev(ev, 4, 50);

		for (i = 0; i < n; i++) {
			struct fake *k = &fake[ev[i].data.u64 - 100];
			uint32_t had = xr_xchg(&k->queued, 0);

			xr_fetch_and(&k->mask, ~(uint32_t)POLLIN);
			had += xr_xchg(&k->queued, 0);
			storm_got += had;
			ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, ev[i].data.u64);
		}
	}
	return NULL;
}

/* Nothing that was sent is left behind, with three threads on one file. */
static void storm(void **state)
{
	pthread_t t[3];
	uint64_t sent = 0;
	uint32_t i;

	(void)state;
	for (i = 0; i < 8; i++)
		moved(i, EPOLLIN | EPOLLONESHOT);
	storm_got = 0;
	storm_end = 0;
	for (i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, storm_thread, NULL);
	for (i = 0; i < 20000; i++) {
		fake_send(&fake[i * 7 % 8], 1);
		sent++;
		if (i % 64 == 0)
			usleep(i % 1024 ? 10 : 2000);
	}
	for (i = 0; i < 1000 && storm_got != sent; i++)
		usleep(2000);
	storm_end = 1;
	for (i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(storm_got, sent);
}

/* ---- others that look at the descriptor --------------------------------------------- */

static int readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	/* as the hook does */
	xr_epoll_watch(fd);
	return poll(&p, 1, ms);
}

static void nested(void **state)
{
	struct fake *k = moved(1, EPOLLIN);
	int outer = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN };

	(void)state;
	assert_int_equal(xr_epoll_created(outer, 0), 0);
	assert_int_equal(readable(ep, 0), 0);
	assert_int_equal(xr_epoll_ctl(outer, EPOLL_CTL_ADD, ep, &ev), 0);
	assert_int_equal(xr_epoll_wait(outer, &ev, 1, 0, 1, NULL), 0);
	fake_send(k, 1);
	assert_int_equal(readable(ep, 1000), 1);
	assert_int_equal(xr_epoll_wait(outer, &ev, 1, 0, 0, NULL), 1);
	expect(0, EPOLLIN, 101);
	assert_int_equal(readable(ep, 0), 1);
	fake_drain(k);
	expect_none(0);
	assert_int_equal(readable(ep, 0), 0);
	assert_int_equal(xr_epoll_wait(outer, &ev, 1, 0, 1, NULL), 0);
	fake_send(k, 1);
	assert_int_equal(xr_epoll_wait(outer, &ev, 1, 0, 0, NULL), 1);
	xr_epoll_close(outer);
	close(outer);
}

/* The child's copy of the epoll file: its members are back on TCP, and the parent works on. */
static void forked(void **state)
{
	struct fake *k = moved(1, EPOLLIN);
	int status;
	pid_t pid;

	(void)state;
	expect_none(0);
	pid = child_fork();
	if (!pid) {
		struct epoll_event ev;
		int bad = 0;

		xr_process_forked();
		xr_epoll_forked();
		bad |= xr_epoll_wait(ep, &ev, 1, 0, 1, NULL) != 0;
		bad |= (k->retreats != 1) << 1;
		bad |= (write(k->peer, "x", 1) != 1) << 2;
		bad |= (xr_epoll_wait(ep, &ev, 1, xr_now_ns() + 1000000000u, 1, NULL) != 1 ||
			ev.data.u64 != 101) << 3;
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* the path is in family memory: the parent's flow is on TCP as well */
	expect(1000, EPOLLIN, 101);
	expect(0, EPOLLIN, 101);
	assert_int_equal(read(k->fd, &(char){ 0 }, 1), 1);
	expect_none(5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(time_outs), T(interrupted), T(left_by_longjmp), T(sleepers_are_woken),
		T(plain_sleepers_are_woken), T(an_event_of_ours_fails_unseen),
		T(leaver_wakes_the_next), T(cancelled), T(storm),
		T(nested), T(forked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
