/* SPDX-License-Identifier: BSD-2-Clause */
/* The process that is left behind: what it keeps, when it ends, what becomes of the connection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define XR_CARE_NS	300000000u	/* instead of two minutes */
#include "preload/caretaker.c"
#include "child.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Shared with the caretaker, as flows are. */
static struct shared {
	struct xr_flow flow[XR_CARE_JOBS + 8];
	_Atomic uint32_t owes[XR_CARE_JOBS + 8];	/* what there is to wait for */
	_Atomic uint32_t until_readable;	/* is done as soon as there is something to read */
	_Atomic uint32_t looks;
} *S;

__thread uint32_t xr_vfork_depth;

static int owed_fd[XR_CARE_JOBS + 8];

uint32_t xr_flow_owes(struct xr_flow *f, int fd)
{
	long i = f - S->flow;
	struct pollfd p = { .fd = fd, .events = POLLIN };

	xr_fetch_add(&S->looks, 1);
	if (S->until_readable && poll(&p, 1, 0) == 1)
		S->owes[i] = 0;
	return S->owes[i];
}

static int tcp_pair(int fd[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(l, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(connect(fd[0], (struct sockaddr *)&a, len), 0);
	fd[1] = accept(l, NULL, NULL);
	assert_true(fd[1] >= 0);
	return close(l);
}

static uint64_t counter(enum xr_stat s)
{
	return xr_load_relaxed(&xr_stats_now()->counter[s]);
}

static int begin(void **state)
{
	(void)state;
	/* those of the test before */
	for (int ms = 0; ms < 3000 && xr_care_kids; ms++, usleep(1000))
		xr_care_reap();
	S = mmap(NULL, sizeof(*S), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	xr_store_relaxed(&xr_stats_now()->counter[XR_STAT_CARETAKERS], 0);
	xr_store_relaxed(&xr_stats_now()->counter[XR_STAT_UNDELIVERED], 0);
	return S == MAP_FAILED;
}

static int end(void **state)
{
	(void)state;
	return munmap(S, sizeof(*S));
}

static void wait_procs(uint32_t i, uint32_t n)
{
	int ms;

	for (ms = 0; ms < 3000 && S->flow[i].procs != n; ms++)
		usleep(1000);
	assert_int_equal(S->flow[i].procs, n);
}

static void nothing_owed_is_no_process(void **state)
{
	struct xr_care c = { .n = 0 };

	(void)state;
	xr_care_add(&c, S->flow, 0);
	assert_int_equal(c.n, 0);
	xr_care_run(&c, XR_CARE_SOON_NS);
	assert_int_equal(counter(XR_STAT_CARETAKERS), 0);
}

static void what_ends_soon_is_waited_for(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2];

	(void)state;
	tcp_pair(fd);
	S->owes[0] = POLLIN;
	S->until_readable = 1;
	xr_care_add(&c, S->flow, fd[0]);
	assert_int_equal(c.n, 1);
	assert_int_equal(write(fd[1], "x", 1), 1);
	xr_care_run(&c, 1000000000u);
	assert_int_equal(counter(XR_STAT_CARETAKERS), 0);
	assert_int_equal(c.n, 0);
	close(fd[0]);
	close(fd[1]);
}

static void it_keeps_the_socket_and_no_pipe(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2], p[2];
	char b;

	(void)state;
	tcp_pair(fd);
	assert_int_equal(pipe(p), 0);
	S->flow[0].procs = 1;
	S->owes[0] = POLLIN;
	S->until_readable = 1;
	xr_care_add(&c, S->flow, fd[0]);
	xr_care_run(&c, XR_CARE_SOON_NS);
	assert_int_equal(counter(XR_STAT_CARETAKERS), 1);
	assert_int_equal(S->flow[0].procs, 2);
	close(fd[0]);
	close(p[1]);
	/* the pipe ends here and now, the connection does not */
	assert_int_equal(read(p[0], &b, 1), 0);
	assert_int_equal(S->flow[0].procs, 2);
	/* wait(2) does not see it */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(write(fd[1], "x", 1), 1);
	wait_procs(0, 1);
	/* with a byte unread: as the kernel ends such a connection */
	assert_int_equal(read(fd[1], &b, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	assert_int_equal(counter(XR_STAT_UNDELIVERED), 0);
	close(fd[1]);
	close(p[0]);
}

static void it_gives_up_with_a_reset(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2];
	char b;

	(void)state;
	tcp_pair(fd);
	S->flow[0].procs = 1;
	S->owes[0] = POLLIN;
	xr_care_add(&c, S->flow, fd[0]);
	xr_care_run(&c, 0);
	close(fd[0]);
	assert_int_equal(read(fd[1], &b, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	wait_procs(0, 1);
	close(fd[1]);
}

static void one_for_many_and_more_when_it_is_full(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2], far[XR_CARE_JOBS + 8], i;
	char b;

	(void)state;
	S->until_readable = 1;
	for (i = 0; i < XR_CARE_JOBS + 8; i++) {
		tcp_pair(fd);
		owed_fd[i] = fd[0];
		far[i] = fd[1];
		S->owes[i] = POLLIN;
		S->flow[i].procs = 1;
		xr_care_add(&c, &S->flow[i], fd[0]);
	}
	assert_int_equal(counter(XR_STAT_CARETAKERS), 1);
	xr_care_run(&c, XR_CARE_SOON_NS);
	assert_int_equal(counter(XR_STAT_CARETAKERS), 2);
	for (i = 0; i < XR_CARE_JOBS + 8; i++)
		close(owed_fd[i]);
	/* each ends by itself */
	for (i = XR_CARE_JOBS + 7; i >= 0; i--) {
		assert_int_equal(write(far[i], "x", 1), 1);
		wait_procs((uint32_t)i, 1);
		assert_int_equal(read(far[i], &b, 1), -1);
		close(far[i]);
	}
}

/* Children of any kind that have ended and are to be collected; -1: there are no children. */
static int ended_children(void)
{
	siginfo_t info = { .si_pid = 0 };

	if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL))
		return -1;
	return info.si_pid != 0;
}

static void begin_one(struct xr_care *c, int fd[2])
{
	tcp_pair(fd);
	S->flow[0].procs = 1;
	S->owes[0] = POLLIN;
	S->until_readable = 1;
	xr_care_add(c, S->flow, fd[0]);
	xr_care_run(c, 0);
	close(fd[0]);
	assert_int_equal(ended_children(), 0);
	assert_int_equal(S->flow[0].procs, 2);
}

static void it_is_collected(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2], ms;

	(void)state;
	begin_one(&c, fd);
	xr_care_reap();
	assert_int_equal(ended_children(), 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	wait_procs(0, 1);
	for (ms = 0; ms < 3000 && !ended_children(); ms++)
		usleep(1000);
	assert_int_equal(ended_children(), 1);
	/* not by the program */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
	xr_care_reap();
	assert_int_equal(ended_children(), -1);
	assert_int_equal(xr_care_kids, 0);
	close(fd[1]);
}

static void it_leaves_before_exec(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2];
	char b;

	(void)state;
	begin_one(&c, fd);
	xr_care_part();
	assert_int_equal(ended_children(), -1);
	assert_int_equal(S->flow[0].procs, 2);
	/* and works on */
	assert_int_equal(write(fd[1], "x", 1), 1);
	wait_procs(0, 1);
	assert_int_equal(read(fd[1], &b, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(fd[1]);
	/* the next one stays, if there was no exec */
	begin_one(&c, fd);
	usleep(50000);
	assert_int_equal(ended_children(), 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	wait_procs(0, 1);
	xr_care_part();
	assert_int_equal(ended_children(), -1);
	close(fd[1]);
}

static void before_exec_it_is_nobodys_child(void **state)
{
	struct xr_care c = { .n = 0, .orphan = 1 };
	int fd[2];

	(void)state;
	tcp_pair(fd);
	S->flow[0].procs = 1;
	S->owes[0] = POLLIN;
	S->until_readable = 1;
	xr_care_add(&c, S->flow, fd[0]);
	xr_care_run(&c, 0);
	close(fd[0]);
	assert_int_equal(ended_children(), -1);
	assert_int_equal(write(fd[1], "x", 1), 1);
	wait_procs(0, 1);
	close(fd[1]);
}

static void a_forked_child_has_none(void **state)
{
	struct xr_care c = { .n = 0 };
	int fd[2], status;
	pid_t pid;

	(void)state;
	begin_one(&c, fd);
	pid = child_fork();
	if (!pid) {
		xr_care_forked();
		/* no wait for one that is not its own */
		_exit(xr_care_kids || care_part);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(xr_care_kids, 1);
	assert_int_equal(write(fd[1], "x", 1), 1);
	wait_procs(0, 1);
	xr_care_part();
	assert_int_equal(ended_children(), -1);
	close(fd[1]);
}

/* Its own process, for it gives its rights away: may not have another. */
static void without_a_process_it_is_reset_at_once(void **state)
{
	static const struct rlimit none = { 0, 0 };
	struct xr_care c = { .n = 0 };
	int fd[2], status;
	pid_t pid;
	char b;

	(void)state;
	tcp_pair(fd);
	S->flow[0].procs = 1;
	S->owes[0] = POLLOUT;
	pid = child_fork();
	if (!pid) {
		if (setrlimit(RLIMIT_NPROC, &none) || (!getuid() && setuid(65534)))
			_exit(2);
		close(fd[1]);
		xr_care_add(&c, S->flow, fd[0]);
		xr_care_run(&c, 0);
		_exit(counter(XR_STAT_UNDELIVERED) == 1 && !counter(XR_STAT_CARETAKERS) &&
		      S->flow[0].procs == 1 ? 0 : 1);
	}
	close(fd[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(read(fd[1], &b, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(fd[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_owed_is_no_process, begin, end),
		cmocka_unit_test_setup_teardown(what_ends_soon_is_waited_for, begin, end),
		cmocka_unit_test_setup_teardown(it_keeps_the_socket_and_no_pipe, begin, end),
		cmocka_unit_test_setup_teardown(it_gives_up_with_a_reset, begin, end),
		cmocka_unit_test_setup_teardown(one_for_many_and_more_when_it_is_full, begin, end),
		cmocka_unit_test_setup_teardown(it_is_collected, begin, end),
		cmocka_unit_test_setup_teardown(it_leaves_before_exec, begin, end),
		cmocka_unit_test_setup_teardown(before_exec_it_is_nobodys_child, begin, end),
		cmocka_unit_test_setup_teardown(a_forked_child_has_none, begin, end),
		cmocka_unit_test_setup_teardown(without_a_process_it_is_reset_at_once, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
