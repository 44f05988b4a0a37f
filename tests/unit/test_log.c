/* SPDX-License-Identifier: BSD-2-Clause */
/* Lines from inside somebody else's process: where they go, and what they must never do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "child.h"
#include "core/log.h"

static char got[65536]; /* what the child wrote to its stderr */

/* Runs f in a child whose stderr is the end of a pipe (or fd, if not -1). */
static void in_child(int (*f)(void), int fd)
{
	int p[2], status;
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(p), 0);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(p[0]);
		dup2(fd >= 0 ? fd : p[1], STDERR_FILENO);
		close(p[1]);
		xr_log_init(XR_LOG_INFO, NULL);
		_exit(f());
	}
	close(p[1]);
	while ((n = read(p[0], got + len, sizeof(got) - 1 - len)) > 0)
		len += (size_t)n;
	got[len] = '\0';
	close(p[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		fail_msg("signal %d", WTERMSIG(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int speak(void)
{
	errno = 1234;
	xr_warn("%d of %s", 3, "four");
	xr_debug("below the threshold");
	xr_error("esc \x1b[2J and\nanother line");
	return errno == 1234 ? 0 : 1;
}

static void a_line_is_one_line(void **state)
{
	(void)state;
	in_child(speak, -1);
	assert_string_equal(got, "xrdma: 3 of four\nxrdma: esc ?[2J and?another line\n");
}

static int speak_at_length(void)
{
	char text[2000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	xr_warn("%s", text);
	return 0;
}

static void a_long_line_is_cut(void **state)
{
	(void)state;
	in_child(speak_at_length, -1);
	assert_int_equal(strlen(got), XR_LOG_LINE - 1);
	assert_int_equal(got[XR_LOG_LINE - 2], '\n');
	assert_non_null(strstr(got, "xxx\n"));
}

static int repeat(void)
{
	for (int i = 0; i < 1000; i++)
		xr_warn("again");
	xr_warn("another place");
	return 0;
}

static void a_place_that_repeats_itself_falls_silent(void **state)
{
	char want[400] = "";

	(void)state;
	for (int i = 0; i < XR_LOG_BURST; i++)
		strcat(want, "xrdma: again\n");
	strcat(want, "xrdma: another place\n");
	in_child(repeat, -1);
	assert_string_equal(got, want);
}

static int speak_after_a_pause(void)
{
	static struct xr_log_site site;

	for (int i = 0; i < XR_LOG_BURST + 7; i++)
		xr_log_write(&site, XR_LOG_WARN, "x");
	site.start -= XR_LOG_PERIOD_NS; /* as if the period had passed */
	xr_log_write(&site, XR_LOG_WARN, "x");
	return 0;
}

static void what_was_left_out_is_counted(void **state)
{
	(void)state;
	in_child(speak_after_a_pause, -1);
	assert_non_null(strstr(got, "xrdma: x (and 7 lines like this one)\n"));
}

static int speak_into_a_broken_pipe(void)
{
	int p[2];
	sigset_t set;

	if (pipe(p) || dup2(p[1], STDERR_FILENO) < 0)
		return 1;
	close(p[0]);
	xr_log_write(&(struct xr_log_site){0}, XR_LOG_WARN, "not the stderr we know");
	return xr_log_lost() == 1 && !sigpending(&set) && !sigismember(&set, SIGPIPE) ? 0 : 2;
}

static void a_stderr_that_was_replaced_is_left_alone(void **state)
{
	(void)state;
	in_child(speak_into_a_broken_pipe, -1);
	assert_string_equal(got, "");
}

static int speak_to_nobody(void)
{
	sigset_t set;

	xr_warn("nobody reads this");
	if (xr_log_lost() != 1 || sigpending(&set) || sigismember(&set, SIGPIPE))
		return 1;
	return 0;
}

static void a_broken_pipe_raises_nothing(void **state)
{
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	close(p[0]);
	in_child(speak_to_nobody, p[1]);
	close(p[1]);
}

static void a_full_pipe_blocks_nothing(void **state)
{
	static char full[65536];
	int p[2];

	(void)state;
	assert_int_equal(pipe2(p, O_NONBLOCK), 0);
	while (write(p[1], full, sizeof(full)) > 0)
		;
	fcntl(p[1], F_SETFL, 0);
	in_child(speak_to_nobody, p[1]);
	close(p[0]);
	close(p[1]);
}

static void a_socket_is_never_written_to(void **state)
{
	int p[2];
	char c;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, p), 0);
	in_child(speak_to_nobody, p[1]);
	assert_int_equal(recv(p[0], &c, 1, MSG_DONTWAIT), -1);
	close(p[0]);
	close(p[1]);
}

static char file[64];

static int speak_to_the_file(void)
{
	struct rlimit rl;
	struct stat st;

	if (xr_log_init(XR_LOG_WARN, file))
		return 1;
	close(STDERR_FILENO);
	xr_warn("to the file");
	/* not a byte more */
	if (stat(file, &st))
		return 2;
	rl.rlim_cur = rl.rlim_max = (rlim_t)st.st_size;
	if (setrlimit(RLIMIT_FSIZE, &rl))
		return 2;
	for (int i = 0; i < 4; i++)
		xr_log_write(&(struct xr_log_site){0}, XR_LOG_WARN, "up to the limit");
	return xr_log_lost() ? 0 : 3;
}

/* time(2) may be a tick behind the clock that the line has. */
static time_t seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec;
}

static void lines_go_to_the_file_that_is_named(void **state)
{
	char text[256], want[128], day[32], comm[17] = "";
	time_t before, after;
	struct tm tm;
	int ms, pid, fd;
	ssize_t n;

	(void)state;
	strcpy(file, "/tmp/xr-test-log-XXXXXX");
	fd = mkstemp(file);
	assert_true(fd >= 0);
	before = seconds();
	in_child(speak_to_the_file, -1);
	after = seconds();
	assert_string_equal(got, "");
	n = read(fd, text, sizeof(text) - 1);
	assert_in_range(n, 20, 120);
	text[n] = '\0';
	/* "2026-03-01T00:00:00.000Z xrdma test_log[123]: to the file" */
	assert_int_equal(text[19], '.');
	for (; before <= after; before++) {
		strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", gmtime_r(&before, &tm));
		if (!strncmp(text, day, 19))
			break;
	}
	assert_true(before <= after);
	/* libtool's wrapper may run it under another name */
	assert_int_equal(prctl(PR_GET_NAME, comm), 0);
	assert_int_equal(sscanf(text + 19, ".%3dZ xrdma %*[^[][%d]", &ms, &pid), 2);
	snprintf(want, sizeof(want), ".%03dZ xrdma %s[%d]: to the file\n", ms, comm, pid);
	assert_string_equal(text + 19, want);
	close(fd);
	unlink(file);
	assert_int_equal(xr_log_init(XR_LOG_WARN, NULL), 0);
	memset(text, '/', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(xr_log_init(XR_LOG_WARN, text), 0); /* just fits */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_is_one_line),
		cmocka_unit_test(a_long_line_is_cut),
		cmocka_unit_test(a_place_that_repeats_itself_falls_silent),
		cmocka_unit_test(what_was_left_out_is_counted),
		cmocka_unit_test(a_stderr_that_was_replaced_is_left_alone),
		cmocka_unit_test(a_broken_pipe_raises_nothing),
		cmocka_unit_test(a_full_pipe_blocks_nothing),
		cmocka_unit_test(a_socket_is_never_written_to),
		cmocka_unit_test(lines_go_to_the_file_that_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
