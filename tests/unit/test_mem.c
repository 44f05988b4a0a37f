/* SPDX-License-Identifier: BSD-2-Clause */
/* Descriptors of ours: out of the program's way, and few where they cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "child.h"
#include "core/mem.h"

/* In a child: a hard limit that was lowered stays so. */
static void in_child(int (*test)(void))
{
	int status;
	pid_t pid = child_fork();

	if (!pid) {
		xr_process_forked();
		_exit(test());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int limit(rlim_t soft, rlim_t hard)
{
	struct rlimit rl = { soft, hard };

	return setrlimit(RLIMIT_NOFILE, &rl);
}

static int above(void)
{
	struct rlimit rl;
	int i, fd, n = 0;

	if (limit(64, 1000))
		return 1;
	for (i = 0; i < 500; i++) {
		fd = xr_fd_high(open("/dev/null", O_RDONLY));
		if (fd < 64 || !xr_fd_is_ours(fd) || !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
			return 2;
	}
	if (getrlimit(RLIMIT_NOFILE, &rl) || rl.rlim_cur != 64 || rl.rlim_max != 1000)
		return 3;
	/* all of its numbers are the program's still */
	while ((fd = dup(0)) >= 0)
		n++;
	return errno != EMFILE || n < 64 - 10 ? 4 : 0;
}

static int below(void)
{
	int i, fd, one = -1;

	if (limit(200, 200))
		return 1;
	for (i = 0; i < 200 / 8; i++) {
		one = xr_fd_high(open("/dev/null", O_RDONLY));
		if (one < 128 || one >= 200)
			return 2;
	}
	fd = open("/dev/null", O_RDONLY);
	if (xr_fd_high(fd) != -EMFILE || fcntl(fd, F_GETFD) < 0)
		return 3;
	xr_fd_close(one);
	return xr_fd_high(fd) < 128 ? 4 : 0;
}

static int scarce(void)
{
	int fd;

	if (limit(XR_FD_SCARCE - 1, XR_FD_SCARCE - 1))
		return 1;
	fd = open("/dev/null", O_RDONLY);
	if (xr_fd_high(fd) != -EMFILE || fcntl(fd, F_GETFD) < 0 || xr_fd_is_ours(fd))
		return 2;
	/* for what would have the program fail otherwise: it stays where it is, and is ours */
	xr_fd_must = 1;
	if (xr_fd_high(fd) != fd || fcntl(fd, F_GETFD) < 0 || !xr_fd_is_ours(fd))
		return 3;
	xr_fd_close(fd);
	return xr_fd_is_ours(fd) ? 4 : 0;
}

static void numbers_that_the_program_cannot_have(void **state)
{
	(void)state;
	in_child(above);
}

static void an_eighth_of_the_limit_and_no_more(void **state)
{
	(void)state;
	in_child(below);
}

static void none_where_they_are_scarce(void **state)
{
	(void)state;
	in_child(scarce);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_that_the_program_cannot_have),
		cmocka_unit_test(an_eighth_of_the_limit_and_no_more),
		cmocka_unit_test(none_where_they_are_scarce),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
