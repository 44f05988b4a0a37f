/* SPDX-License-Identifier: BSD-2-Clause */
/* What programs do to a connection in mid-stream beside reading and writing it. */
#include "pattern.h"
#include "xrsh.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE 65536

/* ---- pages --------------------------------------------------------------------------------- */

static int file_of(uint64_t key, uint64_t off, size_t n)
{
	int fd = memfd_create("pages", MFD_CLOEXEC);
	uint8_t *p;

	if (fd < 0 || ftruncate(fd, n))
		exit(97);
	p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		exit(97);
	pattern_fill(key, off, p, n);
	munmap(p, n);
	return fd;
}

/* sendfile FD N - KEY OFF: from a file; returns what was sent */
static long c_sendfile(struct call *k)
{
	size_t n = arg(k, 2), done = 0;
	int file = file_of(arg(k, 4), arg(k, 5), n), e = 0;
	off_t at = 0;

	while (done < n) {
		ssize_t r = sendfile(arg(k, 1), file, &at, n - done);

		if (r <= 0) {
			e = r ? errno : 0;
			break;
		}
		done += r;
	}
	close(file);
	extra(k, " %d %d", e, (size_t)at == done);
	return done;
}

/* splice_out FD N from KEY OFF: by way of a pipe that is filled from: a file, or "memory" */
static long c_splice_out(struct call *k)
{
	size_t n = arg(k, 2), put = 0, done = 0;
	int from_file = !strcmp(k->argv[3], "file"), file = -1, p[2], e = 0;
	uint8_t b[PIECE];
	loff_t at = 0;

	if (pipe(p))
		return -1;
	if (from_file)
		file = file_of(arg(k, 4), arg(k, 5), n);
	while (done < n && !e) {
		size_t want = n - put < PIECE ? n - put : PIECE;
		ssize_t r;

		if (from_file) {
			r = splice(file, &at, p[1], NULL, want, SPLICE_F_MOVE);
		} else {
			pattern_fill(arg(k, 4), arg(k, 5) + put, b, want);
			r = write(p[1], b, want);
		}
		if (r <= 0)
			break;
		put += r;
		while (done < put) {
			r = splice(p[0], NULL, arg(k, 1), NULL, put - done, SPLICE_F_MORE);
			if (r <= 0) {
				e = r ? errno : EPIPE;
				break;
			}
			done += r;
		}
	}
	close(p[0]);
	close(p[1]);
	if (from_file)
		close(file);
	extra(k, " %d", e);
	return done;
}

/* splice_in FD N - KEY OFF: into a pipe, looked at from there */
static long c_splice_in(struct call *k)
{
	size_t n = arg(k, 2), done = 0, bad = 0;
	uint8_t b[PIECE];
	int p[2], e = 0;

	if (pipe(p))
		return -1;
	while (done < n) {
		ssize_t r = splice(arg(k, 1), NULL, p[1], NULL, n - done < PIECE ? n - done : PIECE, 0);

		if (r <= 0) {
			e = r ? errno : 0;
			break;
		}
		if (read(p[0], b, r) != r ||
		    pattern_check(arg(k, 4), arg(k, 5) + done, b, r) != (size_t)r)
			bad = 1;
		done += r;
	}
	close(p[0]);
	close(p[1]);
	extra(k, bad ? " bad %d" : " ok %d", e);
	return done;
}

/* copy_range FD N out|in: between it and a file */
static long c_copy_range(struct call *k)
{
	int file = file_of(1, 0, arg(k, 2)), e;
	long r = *k->argv[3] == 'o' ? copy_file_range(file, NULL, arg(k, 1), NULL, arg(k, 2), 0) :
				      copy_file_range(arg(k, 1), NULL, file, NULL, arg(k, 2), 0);

	e = errno;
	close(file);
	errno = e;
	return r;
}

/* ---- options ------------------------------------------------------------------------------- */

/* sockopt_text FD LEVEL NAME TEXT */
static long c_sockopt_text(struct call *k)
{
	return setsockopt(arg(k, 1), arg(k, 2), arg(k, 3), k->argv[4], strlen(k->argv[4]));
}

/* filter FD classic|bpf: one that lets everything pass */
static long c_filter(struct call *k)
{
	struct sock_filter pass = BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
	struct sock_fprog prog = { 1, &pass };
	struct bpf_insn insn[] = {
		{ .code = BPF_ALU | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0x7fffffff },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr attr = { .prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
				.insns = (uintptr_t)insn,
				.insn_cnt = 2,
				.license = (uintptr_t)"BSD" };
	int fd;
	long r;

	if (*k->argv[2] == 'c')
		return setsockopt(arg(k, 1), SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog));
	fd = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
	if (fd < 0)
		return -1;
	r = setsockopt(arg(k, 1), SOL_SOCKET, SO_ATTACH_BPF, &fd, sizeof(fd));
	close(fd);
	return r;
}

/* ---- processes ----------------------------------------------------------------------------- */

static long c_unsetenv(struct call *k)
{
	return unsetenv(k->argv[1]);
}

static long c_unshare(struct call *k)
{
	return unshare(arg(k, 1));
}

/* setns PATH TYPE */
static long c_setns(struct call *k)
{
	int fd = open(k->argv[1], O_RDONLY | O_CLOEXEC), e;
	long r;

	if (fd < 0)
		return -1;
	r = setns(fd, arg(k, 2));
	e = errno;
	close(fd);
	errno = e;
	return r;
}

/* dlopen PATH [SYMBOL] */
static long c_dlopen(struct call *k)
{
	void *h = dlopen(k->argv[1], RTLD_NOW | RTLD_GLOBAL);

	if (!h) {
		extra(k, " %s", dlerror());
		errno = ELIBACC;
		return -1;
	}
	return 0;
}

/* last FD N KEY OFF how: writes, and ends in this way at once */
static long c_last(struct call *k)
{
	size_t n = arg(k, 2), done = 0;
	const char *how = k->argv[5];
	uint8_t *b = malloc(n + 1);

	pattern_fill(arg(k, 3), arg(k, 4), b, n);
	while (done < n) {
		ssize_t r = send(arg(k, 1), b + done, n - done, MSG_NOSIGNAL);

		if (r <= 0)
			_exit(98);
		done += r;
	}
	if (!strcmp(how, "_exit"))
		_exit(0);
	if (!strcmp(how, "quick_exit"))
		quick_exit(0);
	if (!strcmp(how, "exit"))
		exit(0);
	if (!strcmp(how, "exec"))
		execlp("true", "true", (char *)NULL);
	if (!strcmp(how, "return"))
		return dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0); /* main finds no orders */
	_exit(99);
}

/*
 * scribble FD N WHO KEY PIECE: a stream of which two are written into one connection at once.
 * The top bit of a byte says whose it is, the others where it stands in that writer's stream.
 */
static long c_scribble(struct call *k)
{
	size_t n = arg(k, 2), done = 0, piece = arg(k, 5);
	uint8_t *b = malloc(n + 1);
	int e = 0;

	pattern_fill(arg(k, 4), 0, b, n);
	for (size_t i = 0; i < n; i++)
		b[i] = (b[i] & 0x7f) | (arg(k, 3) ? 0x80 : 0);
	while (done < n) {
		size_t want = n - done < piece ? n - done : piece;
		ssize_t r = send(arg(k, 1), b + done, want, MSG_NOSIGNAL);

		if (r < 0) {
			e = errno;
			break;
		}
		done += r;
	}
	free(b);
	extra(k, " %d", e);
	return done;
}

/* decipher FD N KEY0 KEY1: both streams to their end; how much of each, and what was wrong */
static long c_decipher(struct call *k)
{
	size_t n = arg(k, 2), at[2] = { 0, 0 }, wrong = 0;
	uint8_t *want[2], b[PIECE];
	ssize_t r;
	int e;

	for (int i = 0; i < 2; i++) {
		want[i] = malloc(n + 1);
		pattern_fill(arg(k, 3 + i), 0, want[i], n);
	}
	while ((r = recv(arg(k, 1), b, sizeof(b), 0)) > 0)
		for (ssize_t i = 0; i < r; i++) {
			int who = b[i] >> 7;

			if (at[who] >= n || (want[who][at[who]] & 0x7f) != (b[i] & 0x7f))
				wrong++;
			at[who]++;
		}
	e = errno;
	extra(k, " %zu %zu %zu", at[0], at[1], wrong);
	free(want[0]);
	free(want[1]);
	errno = e;
	return r;
}

static volatile pid_t forked = -1;

static void forking_handler(int sig)
{
	int saved = errno;

	(void)sig;
	forked = fork();
	errno = saved;
}

/* n more bytes of the stream. */
static void say(int fd, uint64_t key, size_t *sent, size_t n)
{
	uint8_t b[4096];
	ssize_t r;

	pattern_fill(key, *sent, b, n);
	r = send(fd, b, n, MSG_NOSIGNAL);
	*sent += r > 0 ? r : 0;
}

/*
 * fork_in_handler EPFD FD N KEY OFF: talks to who echoes, and N times a handler forks somewhere in epoll_wait; each
 * child returns into what the handler interrupted, and ends with that.  How many bytes; how many children ended
 * badly, and whether an answer was wrong
 */
static long c_fork_in_handler(struct call *k)
{
	struct sigaction sa = { .sa_handler = forking_handler, .sa_flags = SA_RESTART }, old;
	int fd = arg(k, 2);
	uint64_t key = arg(k, 4), off = arg(k, 5);
	size_t sent = off, got = off;
	unsigned int seed = key;
	long bad = 0, wrong = 0;
	sigset_t alarms;

	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarms, NULL);
	sigaction(SIGALRM, &sa, &old);
	say(fd, key, &sent, 1000);
	for (long n = arg(k, 3); n--;) {
		struct itimerval it = { .it_value.tv_usec = 1 + rand_r(&seed) % 700 };
		int status;

		forked = -1;
		setitimer(ITIMER_REAL, &it, NULL);
		while (forked < 0) {
			struct epoll_event ev[4];
			uint8_t b[4096];
			ssize_t r;

			pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
			epoll_wait(arg(k, 1), ev, 4, 100);
			pthread_sigmask(SIG_BLOCK, &alarms, NULL);
			if (!forked)
				_exit(0);
			/* of an edge the child may have been told */
			r = recv(fd, b, sizeof(b), MSG_DONTWAIT);
			if (r <= 0)
				continue;
			wrong |= pattern_check(key, got, b, r) != (size_t)r;
			got += r;
			say(fd, key, &sent, r);
		}
		if (waitpid(forked, &status, 0) != forked || status)
			bad++;
	}
	sigaction(SIGALRM, &old, NULL);
	pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
	while (got < sent) {
		uint8_t b[4096];
		ssize_t r = recv(fd, b, sizeof(b), 0);

		if (r <= 0)
			break;
		wrong |= pattern_check(key, got, b, r) != (size_t)r;
		got += r;
	}
	extra(k, " %ld %ld", bad, wrong);
	return got - off;
}

/* ---- costs --------------------------------------------------------------------------------- */

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/*
 * forks N: children that do nothing; shows the time of each fork, that to the child's end, what both
 * processes computed for it, in us, and the child's faults
 */
static long c_forks(struct call *k)
{
	struct rusage u;

	for (long i = 0; i < arg(k, 1); i++) {
		double t = now_us(), cpu = cpu_us(), t1;
		pid_t p = fork();

		if (!p)
			_exit(0);
		t1 = now_us();
		if (p < 0 || wait4(p, NULL, 0, &u) != p)
			return -1;
		extra(k, " %.0f:%.0f:%.0f:%ld", t1 - t, now_us() - t,
		      cpu_us() - cpu + u.ru_utime.tv_usec + u.ru_stime.tv_usec, u.ru_minflt);
	}
	return arg(k, 1);
}

/* sink FD N: reads and throws away; sleeps for the first byte, so that its time is the stream's */
static long c_sink(struct call *k)
{
	size_t n = arg(k, 2), done = 0, room = 1 << 18;
	uint8_t *b = malloc(room);

	while (done < n) {
		ssize_t r = recv(arg(k, 1), b, n - done < room ? n - done : room, 0);

		if (r <= 0)
			break;
		done += r;
	}
	free(b);
	return done;
}

/* pump FD N PATH: the file, over and over, by sendfile */
static long c_pump(struct call *k)
{
	size_t n = arg(k, 2), done = 0;
	int file = open(k->argv[3], O_RDONLY | O_CLOEXEC);
	off_t at = 0;

	if (file < 0)
		return -1;
	while (done < n) {
		ssize_t r = sendfile(arg(k, 1), file, &at, n - done);

		if (r < 0)
			break;
		if (!r)
			at = 0;
		done += r;
	}
	close(file);
	return done;
}

static atomic_int in_masked;

static void masked_handler(int sig)
{
	(void)sig;
	in_masked++;
}

/*
 * masked HOW FD EVENTS MS OPEN: SIGUSR2 is blocked, and pending; HOW (ppoll, pselect, epoll_pwait, epoll_pwait2) lets
 * it through if OPEN.  Shows how often it was handled in the call, and if it is pending behind it.
 */
static long c_masked(struct call *k)
{
	int fd = arg(k, 2), events = arg(k, 3), ms = arg(k, 4), e;
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };
	struct sigaction sa = { .sa_handler = masked_handler, .sa_flags = SA_RESTART }, old;
	sigset_t blocked, open, before, pending;
	const char *how = k->argv[1];
	long r;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	blocked = before;
	sigaddset(&blocked, SIGUSR2);
	open = blocked;
	if (arg(k, 5))
		sigdelset(&open, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &blocked, NULL);
	sigaction(SIGUSR2, &sa, &old);
	in_masked = 0;
	pthread_kill(pthread_self(), SIGUSR2);
	if (!strcmp(how, "ppoll")) {
		struct pollfd p = { .fd = fd, .events = events };

		r = ppoll(&p, 1, &ts, &open);
	} else if (!strcmp(how, "pselect")) {
		fd_set set;

		FD_ZERO(&set);
		FD_SET(fd, &set);
		r = pselect(fd + 1, events & EPOLLIN ? &set : NULL, events & EPOLLOUT ? &set : NULL, NULL, &ts, &open);
	} else {
		struct epoll_event ev = { .events = events };
		int ep = epoll_create1(EPOLL_CLOEXEC);

		epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
		r = how[11] ? epoll_pwait2(ep, &ev, 1, &ts, &open) : epoll_pwait(ep, &ev, 1, ms, &open);
		e = errno;
		close(ep);
		errno = e;
	}
	e = errno;
	extra(k, " %d", in_masked);
	sigpending(&pending);
	extra(k, " %d", sigismember(&pending, SIGUSR2));
	/* it is handled here at the latest */
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	sigaction(SIGUSR2, &old, NULL);
	errno = e;
	return r;
}

const struct command shape_commands[] = {
	{ "masked", 5, c_masked },
	{ "sendfile", 5, c_sendfile },
	{ "splice_out", 5, c_splice_out },
	{ "splice_in", 5, c_splice_in },
	{ "copy_range", 3, c_copy_range },
	{ "sockopt_text", 4, c_sockopt_text },
	{ "filter", 2, c_filter },
	{ "unsetenv", 1, c_unsetenv },
	{ "unshare", 1, c_unshare },
	{ "setns", 2, c_setns },
	{ "dlopen", 1, c_dlopen },
	{ "last", 5, c_last },
	{ "scribble", 5, c_scribble },
	{ "decipher", 4, c_decipher },
	{ "fork_in_handler", 5, c_fork_in_handler },
	{ "forks", 1, c_forks },
	{ "sink", 2, c_sink },
	{ "pump", 3, c_pump },
	{},
};
