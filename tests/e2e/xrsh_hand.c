/* SPDX-License-Identifier: BSD-2-Clause */
/* Ways in which a connection gets to code that makes its own system calls. */
#include "pattern.h"
#include "xrsh.h"

#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wordexp.h>

extern char **environ;

static long status_of(int e, pid_t pid)
{
	int status;

	if (e) {
		errno = e;
		return -1;
	}
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

/* pspawn FD N OUT inherit|dup: a program reads N bytes of FD into the file OUT */
static long c_pspawn(struct call *k)
{
	char text[4096], n[32];
	char *shell[] = { "bash", "-c", text, NULL }, *head[] = { "head", "-c", n, NULL };
	posix_spawn_file_actions_t fa;
	pid_t pid;
	int e;

	snprintf(n, sizeof(n), "%lld", arg(k, 2));
	snprintf(text, sizeof(text), "exec head -c %s <&%lld >%s", n, arg(k, 1), k->argv[3]);
	if (*k->argv[4] == 'i') {
		e = posix_spawnp(&pid, "bash", NULL, NULL, shell, environ);
		return status_of(e, pid);
	}
	fcntl(arg(k, 1), F_SETFD, FD_CLOEXEC);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, arg(k, 1), 0);
	posix_spawn_file_actions_addopen(&fa, 1, k->argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0600);
	e = posix_spawnp(&pid, "head", &fa, NULL, head, environ);
	posix_spawn_file_actions_destroy(&fa);
	return status_of(e, pid);
}

/* vspawn FD N OUT: the same by vfork, dup2 and exec */
static long c_vspawn(struct call *k)
{
	int fd = arg(k, 1), out = open(k->argv[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	char n[32];
	pid_t pid;
	long r;

	snprintf(n, sizeof(n), "%lld", arg(k, 2));
	pid = vfork();
	if (!pid) {
		dup2(fd, 0);
		dup2(out, 1);
		execlp("head", "head", "-c", n, (char *)NULL);
		_exit(127);
	}
	r = status_of(pid < 0 ? errno : 0, pid);
	close(out);
	return r;
}

static long check(struct call *k, const uint8_t *b, size_t n)
{
	size_t good = pattern_check(arg(k, 3), arg(k, 4), b, n);

	extra(k, good == n ? " ok" : " bad at %zu", good);
	return n;
}

/* fread FD N KEY OFF: a stream of stdio's on a duplicate */
static long c_fread(struct call *k)
{
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n);
	FILE *f = fdopen(dup(arg(k, 1)), "r");

	if (!f)
		return -1;
	setvbuf(f, NULL, _IONBF, 0);
	n = fread(b, 1, n, f);
	fclose(f);
	return check(k, b, n);
}

/* fwrite FD N - KEY OFF: a buffered stream of stdio's on a duplicate */
static long c_fwrite(struct call *k)
{
	size_t n = arg(k, 2), done;
	uint8_t *b = malloc(n + 1);
	FILE *f = fdopen(dup(arg(k, 1)), "w");
	int e = 0;

	if (!f)
		return -1;
	pattern_fill(arg(k, 4), arg(k, 5), b, n);
	done = fwrite(b, 1, n, f);
	if (fclose(f))
		e = errno;
	free(b);
	extra(k, " %d", e);
	return done;
}

/* fread0 FD N KEY OFF: as standard input, which is put back afterwards */
static long c_fread0(struct call *k)
{
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n);
	int old = fcntl(0, F_DUPFD_CLOEXEC, 3);
	FILE *f;

	if (dup2(arg(k, 1), 0))
		return -1;
	f = fdopen(0, "r");
	setvbuf(f, NULL, _IONBF, 0);
	n = fread(b, 1, n, f);
	dup2(old, 0);
	close(old);
	return check(k, b, n);
}

/* sendfd2 SOCKET FD: by sendmmsg, in the second of two messages */
static long c_sendfd2(struct call *k)
{
	char c = 'x', control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec v = { &c, 1 };
	struct mmsghdr m[2] = { { .msg_hdr = { .msg_iov = &v } },
				{ .msg_hdr = { .msg_iov = &v,
					       .msg_iovlen = 1,
					       .msg_control = control,
					       .msg_controllen = sizeof(control) } } };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m[1].msg_hdr);
	int fd = arg(k, 2);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof(int));
	return sendmmsg(arg(k, 1), m, 2, 0) - 2;
}

/* ---- libc's own calls that no hook of reads and writes sees ------------------------------------- */

static ssize_t aio_once(int fd, uint8_t *b, size_t n, int list)
{
	struct aiocb cb = { .aio_fildes = fd, .aio_buf = b, .aio_nbytes = n, .aio_lio_opcode = LIO_READ };
	struct aiocb *all[] = { &cb };

	if (list ? lio_listio(LIO_WAIT, all, 1, NULL) : aio_read(&cb))
		return -1;
	while (aio_error(&cb) == EINPROGRESS)
		aio_suspend((const struct aiocb *const *)all, 1, NULL);
	errno = aio_error(&cb);
	return aio_return(&cb);
}

static long aio_all(struct call *k, int list)
{
	size_t n = arg(k, 2), done = 0;
	uint8_t *b = malloc(n);

	while (done < n) {
		ssize_t r = aio_once(arg(k, 1), b + done, n - done, list);

		if (r <= 0)
			break;
		done += r;
	}
	return check(k, b, done);
}

/* aio_read FD N KEY OFF */
static long c_aio_read(struct call *k)
{
	return aio_all(k, 0);
}

/* lio_listio FD N KEY OFF */
static long c_lio_listio(struct call *k)
{
	return aio_all(k, 1);
}

/* seccomp FD N KEY OFF: installs a filter that allows all, and reads */
static long c_seccomp(struct call *k)
{
	struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
	struct sock_fprog prog = { 1, &all };
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n);

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		return -1;
	return check(k, b, recv(arg(k, 1), b, n, MSG_WAITALL));
}

/* ---- handlers on top of calls that are made all the time ------------------------------------------ */

static volatile int on_top, on_top_bad, on_top_over;
static sigjmp_buf on_top_out;
static const char *on_top_how;

/* Once, soon: the next one comes when this one is done with. */
static void on_top_soon(void)
{
	struct itimerval once = { .it_value = { 0, 20 + on_top % 41 } };

	setitimer(ITIMER_REAL, &once, NULL);
}

static void on_top_handler(int sig)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	on_top_bad += fd < 0 || close(fd);
	on_top++;
	if (!strcmp(on_top_how, "reset"))
		sysv_signal(sig, on_top_handler);
	if (on_top_over)
		return;
	if (!strcmp(on_top_how, "jump"))
		siglongjmp(on_top_out, 1);
	on_top_soon();
}

/* on_top MS return|reset|jump: makes and closes sockets; so do handlers on top of that, and return or do not */
static long c_on_top(struct call *k)
{
	struct itimerval none = {};
	struct sigaction act = { .sa_handler = on_top_handler };
	volatile long n = 0;
	struct timespec now;
	volatile int first = dup(0);
	time_t end;

	close(first);
	on_top_how = k->argv[2];
	on_top = on_top_bad = on_top_over = 0;
	if (!strcmp(on_top_how, "reset"))
		sysv_signal(SIGALRM, on_top_handler);
	else
		sigaction(SIGALRM, &act, NULL);
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec * 1000 + now.tv_nsec / 1000000 + arg(k, 1);
	if (sigsetjmp(on_top_out, 1))
		close_range(first, first + 20, 0);
	on_top_soon();
	for (;;) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec * 1000 + now.tv_nsec / 1000000 >= end)
			break;
		for (int i = 0; i < 50; i++, n++) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);

			if (fd < 0 || close(fd))
				on_top_bad++;
		}
	}
	/* the last one may come when setitimer() returns */
	on_top_over = 1;
	setitimer(ITIMER_REAL, &none, NULL);
	signal(SIGALRM, SIG_DFL);
	extra(k, " %d %d", on_top, on_top_bad);
	return n;
}

/* dprintf FD TEXT */
static long c_dprintf(struct call *k)
{
	return dprintf(arg(k, 1), "%s", k->argv[2]);
}

/* wordexp WORD...: the words of a shell, substitutions and all */
static long c_wordexp(struct call *k)
{
	char text[4096] = "";
	wordexp_t we;
	long r;

	for (int i = 1; i < k->argc; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i > 1 ? " " : "", k->argv[i]);
	r = wordexp(text, &we, 0);
	if (!r)
		wordfree(&we);
	return r;
}

const struct command hand_commands[] = {
	{ "pspawn", 4, c_pspawn },
	{ "vspawn", 3, c_vspawn },
	{ "fread", 4, c_fread },
	{ "fread0", 4, c_fread0 },
	{ "fwrite", 5, c_fwrite },
	{ "sendfd2", 2, c_sendfd2 },
	{ "aio_read", 4, c_aio_read },
	{ "lio_listio", 4, c_lio_listio },
	{ "seccomp", 4, c_seccomp },
	{ "on_top", 2, c_on_top },
	{ "dprintf", 2, c_dprintf },
	{ "wordexp", 1, c_wordexp },
	{},
};
