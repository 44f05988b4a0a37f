/* SPDX-License-Identifier: BSD-2-Clause */
/* Descriptors of ours: out of the program's way, and few where they cannot be.  Memory that is never given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

/* How many mappings the process has. */
static int mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	int n = 0, c;

	while (f && (c = fgetc(f)) != EOF)
		n += c == '\n';
	if (f)
		fclose(f);
	return n;
}

/* 64 pieces of each kind lie in a few mappings, do not overlap, and are what they are in a child. */
static int kept(void)
{
	static uint8_t *p[64], *o[64];
	int before = mappings(), i, j, status;
	pid_t pid;

	for (i = 0; i < 64; i++) {
		p[i] = xr_keep_private(60000 + (size_t)i);
		o[i] = xr_keep_own(60000 + (size_t)i);
		if (!p[i] || !o[i] || p[i][0] || o[i][60000])
			return 1;
		memset(p[i], i + 1, 60000 + (size_t)i);
		memset(o[i], i + 101, 60000 + (size_t)i);
	}
	/* two regions of each */
	if (mappings() > before + 4)
		return 2;
	for (i = 0; i < 64; i++)
		for (j = 0; j < 60000 + i; j++)
			if (p[i][j] != i + 1 || o[i][j] != i + 101)
				return 3;
	pid = child_fork();
	if (!pid) {
		uint8_t *more = xr_keep_own(4096);

		for (i = 0; i < 64; i++)
			if (p[i][100] != i + 1 || o[i][100])
				_exit(1);
		/* it goes on where its parent was */
		memset(more, 1, 4096);
		for (i = 0; i < 64; i++)
			if (o[i][0] || o[i][60000])
				_exit(2);
		_exit(more[0] != 1);
	}
	return waitpid(pid, &status, 0) != pid || status ? 4 : 0;
}

static int kept_under_a_limit(void)
{
	struct rlimit rl = { 1 << 20, RLIM_INFINITY };
	uint8_t *p;

	if (setrlimit(RLIMIT_DATA, &rl))
		return 1;
	/* less than a region: what is asked for can be had all the same, and no more is taken */
	p = xr_keep_private(8192);
	if (!p)
		return 2;
	p[8191] = 1;
	return xr_keep_own(4 << 20) ? 3 : 0;
}

static void what_is_never_given_back(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip();		/* they have mappings of their own, and more data than the limit */
#endif
	in_child(kept);
	in_child(kept_under_a_limit);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_that_the_program_cannot_have),
		cmocka_unit_test(an_eighth_of_the_limit_and_no_more),
		cmocka_unit_test(none_where_they_are_scarce),
		cmocka_unit_test(what_is_never_given_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
