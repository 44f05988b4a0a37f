/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that make, replace and end processes, and calls on signals. */
#include "xrhooks.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include <wordexp.h>

static char got[TEXT];
static long before;

static void readable(void)
{
	dial();
	before = kernel_bytes();
	pending();
}

static void is_read(void)
{
	MUST(recv(conn, got, TEXT, MSG_WAITALL) == TEXT);
	is_text(got);
}

/* ---- children: what waited is theirs to read ---- */

static void inherited(pid_t pid)
{
	MUST(pid >= 0);
	if (!pid) {
		is_read();
		turns(3);
		_exit(7);
	}
	MUST(status(pid) == 7);
	turns(3);
}

static void c_fork(void *f)
{
	FUNCTION(pid_t, (void));

	readable();
	inherited(g());
}

static void c_forkpty(void *f)
{
	FUNCTION(pid_t, (int *, char *, const struct termios *, const struct winsize *));
	int tty;

	readable();
	inherited(g(&tty, NULL, NULL, NULL));
}

/* The child borrows all that there is; the connection stays where it was. */
static void c_vfork(void *f)
{
	FUNCTION(pid_t, (void));
	pid_t pid;

	readable();
	pid = g();
	if (!pid)
		_exit(7);
	MUST(pid > 0 && status(pid) == 7);
	is_read();
	turns(3);
	stayed(before);
}

static void c_daemon(void *f)
{
	FUNCTION(int, (int, int));
	pid_t pid = child();

	if (!pid) {
		readable();
		MUST(!g(1, 1));
		is_read();
		turns(3);
		_exit(0);
	}
	MUST(status(pid) == 0);
	ended();
}

/* ---- programs that are given the connection, and know nothing of xrdma ---- */

static char *argv[4], **env;

/* The program reads what waits and says it again. */
static void will_be_passed(void)
{
	static char number[16];

	MUST(!unsetenv("LD_PRELOAD"));
	env = environ;
	readable();
	snprintf(number, sizeof(number), "%d", conn);
	argv[0] = (char *)program;
	argv[1] = "after";
	argv[2] = number;
	said_elsewhere();
}

static void c_execve(void *f)
{
	FUNCTION(int, (const char *, char *const[], char *const[]));

	will_be_passed();
	g(program, argv, env);
	MUST(!"execve");
}

static void c_execv(void *f)
{
	FUNCTION(int, (const char *, char *const[]));

	will_be_passed();
	g(program, argv);
	MUST(!"execv");
}

static void c_fexecve(void *f)
{
	FUNCTION(int, (int, char *const[], char *const[]));
	int fd = open(program, O_RDONLY | O_CLOEXEC);

	will_be_passed();
	g(fd, argv, env);
	MUST(!"fexecve");
}

static void c_execveat(void *f)
{
	FUNCTION(int, (int, const char *, char *const[], char *const[], int));

	will_be_passed();
	g(AT_FDCWD, program, argv, env, 0);
	MUST(!"execveat");
}

static void c_execl(void *f)
{
	FUNCTION(int, (const char *, const char *, ...));

	will_be_passed();
	g(program, argv[0], argv[1], argv[2], (char *)NULL);
	MUST(!"execl");
}

static void c_execle(void *f)
{
	FUNCTION(int, (const char *, const char *, ...));

	will_be_passed();
	g(program, argv[0], argv[1], argv[2], (char *)NULL, env);
	MUST(!"execle");
}

static void in_child(void (*exec)(void *), void *f)
{
	pid_t pid = child();

	if (!pid)
		exec(f);
	MUST(status(pid) == 0);
	ended();
}

#define IN_CHILD(check) \
	static void child_##check(void *f) \
	{ \
		in_child(check, f); \
	}
IN_CHILD(c_execve)
IN_CHILD(c_execv)
IN_CHILD(c_fexecve)
IN_CHILD(c_execveat)
IN_CHILD(c_execl)
IN_CHILD(c_execle)

static void was_passed(pid_t pid)
{
	MUST(status(pid) == 0);
	passed(before);
	turns(3);
}

static void c_posix_spawn(void *f)
{
	FUNCTION(int, (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
		       char *const[], char *const[]));
	pid_t pid;

	will_be_passed();
	MUST(!g(&pid, program, NULL, NULL, argv, env));
	was_passed(pid);
}

static void c_adddup2(void *f)
{
	FUNCTION(int, (posix_spawn_file_actions_t *, int, int));
	posix_spawn_file_actions_t a;
	pid_t pid;

	will_be_passed();
	MUST(fcntl(conn, F_SETFD, FD_CLOEXEC) == 0);
	argv[2] = "50";
	MUST(!posix_spawn_file_actions_init(&a) && !g(&a, conn, 50));
	MUST(!posix_spawn(&pid, program, &a, NULL, argv, env));
	was_passed(pid);
}

static const char *shell_words(const char *format)
{
	static char b[64];

	MUST(!unsetenv("LD_PRELOAD"));
	readable();
	MUST(conn < 10); /* as much as a shell can name */
	snprintf(b, sizeof(b), format, conn, conn);
	return b;
}

static void c_system(void *f)
{
	FUNCTION(int, (const char *));

	MUST(g(shell_words("head -c 100 <&%d >&%d")) == 0);
	said_elsewhere();
	echoed();
	passed(before);
	turns(3);
}

static void c_popen(void *f)
{
	FUNCTION(FILE *, (const char *, const char *));
	FILE *s = g(shell_words("head -c 100 <&%d"), "r");

	MUST(s && fread(got, 1, TEXT, s) == TEXT && !pclose(s));
	is_text(got);
	passed(before);
	turns(3);
}

static void c_wordexp(void *f)
{
	FUNCTION(int, (const char *, wordexp_t *, int));
	wordexp_t w;

	MUST(!g(shell_words("$(head -c 100 <&%d)"), &w, 0) && w.we_wordc == 1);
	MUST(strlen(w.we_wordv[0]) == TEXT);
	is_text(w.we_wordv[0]);
	passed(before);
	turns(3);
}

/* ---- the end: what was written arrives ---- */

static void c_exit(void *f)
{
	FUNCTION(void, (int));
	pid_t pid = child();

	if (!pid) {
		dial();
		new_text();
		no_answer();
		MUST(send(conn, text, TEXT, 0) == TEXT);
		g(7);
	}
	MUST(status(pid) == 7);
	ended();
}

/* ---- what shuts the ways of xrdma: all connections to TCP, for good ---- */

static void for_good(void)
{
	long was;

	is_read();
	turns(50);
	was = kernel_bytes();
	turns(3);
	MUST(kernel_bytes() - was == 6 * TEXT);
}

static void c_prctl(void *f)
{
	FUNCTION(int, (int, ...));
	struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
	struct sock_fprog p = { 1, &all };

	readable();
	MUST(!g(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L));
	MUST(!g(PR_SET_SECCOMP, (long)SECCOMP_MODE_FILTER, &p));
	for_good();
}

static void c_unshare(void *f)
{
	FUNCTION(int, (int));

	readable();
	MUST(!g(CLONE_FILES));
	for_good();
}

static void c_setns(void *f)
{
	FUNCTION(int, (int, int));

	readable();
	/* fails for what it is given */
	errno = 0;
	MUST(g(conn, CLONE_NEWNS) == -1 && errno == EINVAL);
	errno = 0;
	MUST(syscall(SYS_setns, -1, 0) == -1 && errno == EBADF);
	stayed(before);
}

static void c_syscall(void *f)
{
	FUNCTION(long, (long, ...));

	readable();
	MUST(g(SYS_read, (long)conn, got, (long)TEXT) == TEXT);
	is_text(got);
	new_text();
	MUST(g(SYS_write, (long)conn, text, (long)TEXT) == TEXT);
	echoed();
	stayed(before);
}

/* ---- signals: the kernel is told of the counter, the program sees its own handler ---- */

static volatile sig_atomic_t handled;

static void handler(int s)
{
	handled = s;
}

typedef void (*handler_t)(int);

/* The signal comes while recv sleeps: it ends the call, or what is sent then does. */
static void says(int s)
{
	handled = s;
	new_text();
	MUST(send(conn, text, TEXT, 0) == TEXT);
}

static void was_set(handler_t mine, bool restarts)
{
	struct itimerval soon = { .it_value = { 0, 30000 } };
	struct sigaction known, real;
	ssize_t n;

	MUST(!sigaction(SIGALRM, NULL, &known) && known.sa_handler == mine);
	MUST(!LIBC(sigaction)(SIGALRM, NULL, &real));
	MUST(!lifts || real.sa_handler != mine);
	MUST(!setitimer(ITIMER_REAL, &soon, NULL));
	n = recv(conn, got, TEXT, 0);
	MUST(handled == SIGALRM);
	MUST(restarts ? n == TEXT : n == -1 && errno == EINTR);
	if (!restarts)
		is_read();
	is_text(got);
	stayed(before);
}

static void used_before(void)
{
	dial();
	before = kernel_bytes();
}

static void c_sigaction(void *f)
{
	FUNCTION(int, (int, const struct sigaction *, struct sigaction *));
	struct sigaction a = { .sa_handler = handler }, old;

	used_before();
	MUST(!g(SIGALRM, &a, NULL));
	a.sa_handler = says;
	MUST(!g(SIGALRM, &a, &old) && old.sa_handler == handler);
	was_set(says, false);
	a.sa_flags = SA_RESTART;
	MUST(!g(SIGALRM, &a, NULL));
	was_set(says, true);
}

static void simple(void *f, bool restarts)
{
	FUNCTION(handler_t, (int, handler_t));

	used_before();
	MUST(g(SIGALRM, handler) == SIG_DFL);
	MUST(g(SIGALRM, says) == handler);
	was_set(says, restarts);
}

static void c_signal(void *f)
{
	simple(f, true);
}

static void c_sigset(void *f)
{
	simple(f, false);
}

/* The handler is for one time. */
static void c_sysv_signal(void *f)
{
	struct sigaction real;

	simple(f, false);
	MUST(!LIBC(sigaction)(SIGALRM, NULL, &real));
	MUST(lifts || real.sa_handler == SIG_DFL);
	MUST(!sigaction(SIGALRM, NULL, &real) && real.sa_handler == SIG_DFL);
}

static void c_siginterrupt(void *f)
{
	FUNCTION(int, (int, int));

	used_before();
	MUST(signal(SIGALRM, says) == SIG_DFL);
	MUST(!g(SIGALRM, 1));
	was_set(says, false);
	MUST(!g(SIGALRM, 0));
	was_set(says, true);
}

const struct hook hooks_process[] = {
	{ "fork", c_fork }, { "_Fork", c_fork }, { "__fork", c_fork }, { "vfork", c_vfork }, { "__vfork", c_vfork },
	{ "forkpty", c_forkpty }, { "daemon", c_daemon }, { "execve", child_c_execve }, { "execv", child_c_execv },
	{ "execvp", child_c_execv }, { "execvpe", child_c_execve }, { "fexecve", child_c_fexecve },
	{ "execveat", child_c_execveat }, { "execl", child_c_execl }, { "execlp", child_c_execl },
	{ "execle", child_c_execle }, { "posix_spawn", c_posix_spawn }, { "posix_spawnp", c_posix_spawn },
	{ "posix_spawn_file_actions_adddup2", c_adddup2 }, { "system", c_system }, { "popen", c_popen },
	{ "_IO_popen", c_popen }, { "wordexp", c_wordexp }, { "_exit", c_exit }, { "_Exit", c_exit },
	{ "quick_exit", c_exit }, { "prctl", c_prctl }, { "unshare", c_unshare }, { "setns", c_setns },
	{ "syscall", c_syscall }, {}
};

const struct hook hooks_signal[] = {
	{ "sigaction", c_sigaction }, { "__sigaction", c_sigaction }, { "signal", c_signal },
	{ "bsd_signal", c_signal }, { "ssignal", c_signal }, { "sysv_signal", c_sysv_signal },
	{ "__sysv_signal", c_sysv_signal }, { "sigset", c_sigset }, { "siginterrupt", c_siginterrupt }, {}
};
