/* SPDX-License-Identifier: BSD-2-Clause */
/* The lock of a direction, held by another process of the family that is killed, or stopped, in its section. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "child.h"
#include "core/mem.h"
#include "preload/lock.h"

static struct xr_lock *L;	/* in memory that children share */

static void wait_for_owner(void)
{
	while (!xr_load_acquire(&L->owner))
		usleep(1000);
}

/* A child that has it, and neither lets go nor ends. */
static pid_t holder(void)
{
	pid_t pid = child_fork();

	assert_true(pid >= 0);
	if (!pid) {
		xr_process_forked();
		if (xr_trylock(L))
			_exit(1);
		for (;;)
			pause();
	}
	wait_for_owner();
	return pid;
}

static void killed(pid_t pid)
{
	siginfo_t si;

	assert_int_equal(kill(pid, SIGKILL), 0);
	/* it is dead, and not waited for */
	assert_int_equal(waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT), 0);
}

static void of_a_dead_process(void **state)
{
	pid_t pid = holder();

	(void)state;
	killed(pid);
	waitpid(pid, NULL, 0);
	alarm(20);
	assert_int_equal(xr_lock_or_left(L), 1);
	alarm(0);
	xr_unlock(L);
}

/* As that of a parent which does not look after its children, or of a container without an init. */
static void of_one_that_nobody_waits_for(void **state)
{
	pid_t pid = holder();

	(void)state;
	killed(pid);
	alarm(20);
	assert_int_equal(xr_lock_or_left(L), 1);
	alarm(0);
	xr_unlock(L);
	waitpid(pid, NULL, 0);
}

static void of_this_thread(void **state)
{
	(void)state;
	assert_int_equal(xr_lock_or_left(L), 0);
	assert_int_equal(xr_lock_or_left(L), -EDEADLK);
	xr_unlock(L);
}

static void waiting_for_a_stopped_one_takes_no_processor(void **state)
{
	pid_t pid = holder(), waiter;
	struct rusage u;
	int st;

	(void)state;
	assert_int_equal(kill(pid, SIGSTOP), 0);
	waiter = child_fork();
	assert_true(waiter >= 0);
	if (!waiter) {
		xr_process_forked();
		alarm(20);
		_exit(xr_lock_or_left(L) != 0);
	}
	usleep(700000);
	/* it is let go of */
	xr_unlock(L);
	assert_int_equal(wait4(waiter, &st, 0, &u), waiter);
	assert_true(WIFEXITED(st) && !WEXITSTATUS(st));
	assert_in_range(u.ru_utime.tv_sec + u.ru_stime.tv_sec, 0, 0);
	/* a tenth of a second, of seven */
	assert_in_range(u.ru_utime.tv_usec + u.ru_stime.tv_usec, 0, 100000);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	xr_store_relaxed(&L->owner, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_a_dead_process),
		cmocka_unit_test(of_one_that_nobody_waits_for),
		cmocka_unit_test(of_this_thread),
		cmocka_unit_test(waiting_for_a_stopped_one_takes_no_processor),
	};

	L = xr_map_family(sizeof(*L));
	return L ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
