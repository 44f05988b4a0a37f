/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Signals between a look and the sleep after it.  The hooks are linked into this program,
 * so its sigaction() and signal() are the interposed ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mem.h"
#include "child.h"
#include "ready.h"

/* siginterrupt: programs call it whether or not it is advised */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static _Atomic int ran, ran_sig, info_ok;

static void plain(int sig)
{
	ran++;
	ran_sig = sig;
}

static void informed(int sig, siginfo_t *si, void *context)
{
	ran++;
	ran_sig = sig;
	info_ok = si->si_signo == sig && si->si_pid == getpid() && context;
}

static void install(int sig, void (*fn)(int), int flags)
{
	struct sigaction sa = { .sa_handler = fn, .sa_flags = flags };

	assert_int_equal(sigaction(sig, &sa, NULL), 0);
}

static int reset(void **state)
{
	(void)state;
	signal(SIGUSR1, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
	signal(SIGALRM, SIG_DFL);
	ran = 0;
	return 0;
}

static void own_pointers(void **state)
{
	struct sigaction sa = { .sa_sigaction = informed, .sa_flags = SA_SIGINFO | SA_ONSTACK }, old;

	(void)state;
	sigemptyset(&sa.sa_mask);
	sigaddset(&sa.sa_mask, SIGUSR2);
	assert_int_equal(sigaction(SIGUSR1, &sa, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
	assert_int_equal(sigaction(SIGUSR1, NULL, &old), 0);
	assert_ptr_equal(old.sa_sigaction, informed);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_ONSTACK | SA_RESTART), SA_SIGINFO | SA_ONSTACK);
	assert_true(sigismember(&old.sa_mask, SIGUSR2));
	raise(SIGUSR1);
	assert_int_equal(ran, 1);
	assert_int_equal(ran_sig, SIGUSR1);
	assert_true(info_ok);
	assert_ptr_equal(signal(SIGUSR1, plain), informed);
	assert_ptr_equal(signal(SIGUSR1, SIG_IGN), plain);
	assert_ptr_equal(signal(SIGUSR1, SIG_DFL), SIG_IGN);
	assert_int_equal(sigaction(SIGUSR1, NULL, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
}

static void errors(void **state)
{
	struct sigaction sa = { .sa_handler = plain };

	(void)state;
	errno = 0;
	assert_int_equal(sigaction(SIGKILL, &sa, NULL), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(sigaction(0, &sa, NULL), -1);
	assert_int_equal(sigaction(65, &sa, NULL), -1);
	assert_int_equal(sigaction(-3, NULL, NULL), -1);
	assert_ptr_equal(signal(SIGSTOP, plain), SIG_ERR);
	assert_ptr_equal(signal(1000, plain), SIG_ERR);
}

static void bsd_and_sysv(void **state)
{
	struct sigaction old;

	(void)state;
	signal(SIGUSR1, plain);
	sigaction(SIGUSR1, NULL, &old);
	assert_true(old.sa_flags & SA_RESTART);
	siginterrupt(SIGUSR1, 1);
	sigaction(SIGUSR1, NULL, &old);
	assert_false(old.sa_flags & SA_RESTART);
	assert_ptr_equal(old.sa_handler, plain);
	signal(SIGUSR1, plain);
	sigaction(SIGUSR1, NULL, &old);
	assert_false(old.sa_flags & SA_RESTART);
	siginterrupt(SIGUSR1, 0);
	signal(SIGUSR1, plain);
	sigaction(SIGUSR1, NULL, &old);
	assert_true(old.sa_flags & SA_RESTART);
	/* used once */
	sysv_signal(SIGUSR2, plain);
	raise(SIGUSR2);
	assert_int_equal(ran, 1);
	sigaction(SIGUSR2, NULL, &old);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
}

static void counts(void **state)
{
	struct xr_signal_mark a = xr_signal_mark(), b;

	(void)state;
	install(SIGUSR1, plain, SA_RESTART);
	install(SIGUSR2, plain, 0);
	raise(SIGUSR1);
	b = xr_signal_mark();
	assert_int_equal(b.any, a.any + 1);
	assert_int_equal(b.norestart, a.norestart);
	raise(SIGUSR2);
	b = xr_signal_mark();
	assert_int_equal(b.any, a.any + 2);
	assert_int_equal(b.norestart, a.norestart + 1);
}

/* The handler ran after the look and before the sleep: no sleep at all. */
static void not_lost(void **state)
{
	struct xr_signal_mark mark = xr_signal_mark();
	uint64_t start = xr_now_ns();

	(void)state;
	install(SIGUSR1, plain, 0);
	raise(SIGUSR1);
	assert_int_equal(xr_sleep_poll(NULL, 0, start + 5000000000u, NULL, mark, 0), -EINTR);
	assert_true(xr_now_ns() - start < 1000000000u);
	/* with SA_RESTART: for poll it counts, for recv it does not */
	install(SIGUSR1, plain, SA_RESTART);
	mark = xr_signal_mark();
	raise(SIGUSR1);
	assert_int_equal(xr_sleep_poll(NULL, 0, start + 5000000000u, NULL, mark, 1), -EINTR);
	assert_int_equal(xr_sleep_poll(NULL, 0, xr_now_ns() + 20000000u, NULL, mark, 0), 0);
}

static void alarm_in_sleep(void **state)
{
	struct itimerval it = { .it_value = { 0, 50000 } };
	uint64_t start = xr_now_ns();
	sigset_t before, after;

	(void)state;
	sigprocmask(SIG_SETMASK, NULL, &before);
	install(SIGALRM, plain, 0);
	setitimer(ITIMER_REAL, &it, NULL);
	errno = 77;
	assert_int_equal(xr_sleep_poll(NULL, 0, 0, NULL, xr_signal_mark(), 0), -EINTR);
	assert_int_equal(errno, 77);
	assert_true(xr_now_ns() - start >= 40000000u);
	/* SA_RESTART: sleeps on, until the deadline */
	install(SIGALRM, plain, SA_RESTART);
	start = xr_now_ns();
	setitimer(ITIMER_REAL, &it, NULL);
	assert_int_equal(xr_sleep_poll(NULL, 0, start + 150000000u, NULL, xr_signal_mark(), 0), 0);
	assert_int_equal(ran, 2);
	assert_true(xr_now_ns() - start >= 150000000u);
	sigprocmask(SIG_SETMASK, NULL, &after);
	assert_memory_equal(&before, &after, 8);
}

/* pselect's promise: a signal that is blocked outside interrupts only the sleep. */
static void mask_of_the_call(void **state)
{
	sigset_t block, inside, now;

	(void)state;
	install(SIGUSR1, plain, 0);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigprocmask(SIG_BLOCK, &block, &inside);
	raise(SIGUSR1);
	assert_int_equal(ran, 0);
	assert_int_equal(xr_sleep_poll(NULL, 0, 0, &inside, xr_signal_mark(), 1), -EINTR);
	assert_int_equal(ran, 1);
	sigprocmask(SIG_SETMASK, NULL, &now);
	assert_true(sigismember(&now, SIGUSR1));
	sigprocmask(SIG_SETMASK, &inside, NULL);
}

static void epoll_sleep(void **state)
{
	struct xr_signal_mark mark = xr_signal_mark();
	struct epoll_event ev;
	int epfd = epoll_create1(EPOLL_CLOEXEC);
	uint64_t start = xr_now_ns();

	(void)state;
	assert_true(epfd >= 0);
	assert_int_equal(xr_sleep_epoll(epfd, &ev, 1, start + 20000000u, NULL, mark), 0);
	assert_true(xr_now_ns() - start >= 20000000u);
	install(SIGUSR1, plain, SA_RESTART);
	raise(SIGUSR1);
	assert_int_equal(xr_sleep_epoll(epfd, &ev, 1, 0, NULL, mark), -EINTR);
	close(epfd);
}

/* ---- threads and processes -------------------------------------------------- */

static void *sleeper(void *arg)
{
	(void)arg;
	xr_sleep_poll(NULL, 0, 0, NULL, xr_signal_mark(), 0);
	return NULL;
}

static void cancelled_in_sleep(void **state)
{
	pthread_t t;
	void *ret;

	(void)state;
	install(SIGUSR1, plain, 0);
	assert_int_equal(pthread_create(&t, NULL, sleeper, NULL), 0);
	usleep(30000);
	assert_int_equal(pthread_cancel(t), 0);
	assert_int_equal(pthread_join(t, &ret), 0);
	assert_ptr_equal(ret, PTHREAD_CANCELED);
}

static _Atomic int stop;

static void *changer(void *arg)
{
	(void)arg;
	while (!stop) {
		install(SIGUSR1, plain, 0);
		signal(SIGUSR1, SIG_IGN);
	}
	return NULL;
}

/* Children forked while another thread is inside sigaction can use it themselves. */
static void fork_in_sigaction(void **state)
{
	pthread_t t;
	int i, st;

	(void)state;
	stop = 0;
	assert_int_equal(pthread_create(&t, NULL, changer, NULL), 0);
	for (i = 0; i < 200; i++) {
		pid_t pid = child_fork();

		assert_true(pid >= 0);
		if (!pid) {
			alarm(10);
			signal(SIGUSR2, plain);
			raise(SIGUSR2);
			_exit(ran == 1 ? 0 : 1);
		}
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_int_equal(st, 0);
	}
	stop = 1;
	pthread_join(t, NULL);
}

/* What a vfork child installs is its own affair. */
static void vfork_child(void **state)
{
#ifdef __SANITIZE_THREAD__
	/* its runtime has a vfork of its own, which copies the memory as fork does */
	skip();
#endif
	struct sigaction old;
	int st;
	pid_t pid;

	(void)state;
	install(SIGUSR1, plain, 0);
	pid = vfork();
	if (!pid) {
		signal(SIGUSR1, SIG_DFL);
		signal(SIGUSR2, (void (*)(int))(uintptr_t)informed);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	assert_int_equal(st, 0);
	sigaction(SIGUSR1, NULL, &old);
	assert_ptr_equal(old.sa_handler, plain);
	sigaction(SIGUSR2, NULL, &old);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
	raise(SIGUSR1);
	assert_int_equal(ran, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(own_pointers, reset),
		cmocka_unit_test_setup(errors, reset),
		cmocka_unit_test_setup(bsd_and_sysv, reset),
		cmocka_unit_test_setup(counts, reset),
		cmocka_unit_test_setup(not_lost, reset),
		cmocka_unit_test_setup(alarm_in_sleep, reset),
		cmocka_unit_test_setup(mask_of_the_call, reset),
		cmocka_unit_test_setup(epoll_sleep, reset),
		cmocka_unit_test_setup(cancelled_in_sleep, reset),
		cmocka_unit_test_setup(fork_in_sigaction, reset),
		cmocka_unit_test_setup(vfork_child, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
