/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xr-mechanism: figures of single mechanisms, as lines of JSON, for bench/mechanisms.
 *
 *	counts [messages]	what a message of 64 bytes costs on channels of the library, both ends in one
 *				thread: system calls, allocations, locks, over that many; instructions, by
 *				single steps over some
 *	socket-counts [...]	the same between two ends of a TCP connection, which a fabric carries under
 *				xrdma-run
 *	copies			one copy by the kernel beside two by way of shared memory, see copies.c
 *	death			how long until the other end of a channel is told of a process that was
 *				killed; of one that was stopped, where the program asks for a limit
 *	idle FLOWS SECONDS	CPU of two processes with so many TCP connections that carry nothing, asleep in
 *				epoll_wait
 *	upgrades FLOWS TURNS	CPU of two processes that make so many TCP connections, take so many turns on
 *				each and close them, see upgrades.c
 *	threads THREADS MESSAGES [shared]
 *				how often threads wait for each other, see threads.c
 *
 * The counting program is traced by its parent, so nothing that it does can be overlooked.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "copies.h"
#include "core/xrdma.h"
#include "threads.h"
#include "upgrades.h"

#define SIZE	64
#define STEPPED	20u	/* messages that are gone through instruction by instruction */

/* What the traced program says to its parent: a system call that has no effect, and that nobody else makes. */
enum mark { MARK_CALLS = 1000, MARK_STEPS };

static _Atomic uint64_t allocations, locks;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED	0	/* sanitizers have these themselves */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTED	0
#endif
#endif
#ifndef COUNTED
#define COUNTED	1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

/* These take the place of libc's, for the library, too. */
void *malloc(size_t n)
{
	allocations++;
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	allocations++;
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	allocations++;
	return __libc_realloc(p, n);
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*real)(pthread_mutex_t *);

	if (!real)
		real = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
	locks++;
	return real(m);
}
#endif

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "xr-mechanism: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void mark(enum mark m)
{
	syscall(SYS_getpriority, m, 0);
}

/* --- the traced program ----------------------------------------------------------------------- */

static struct xrdma_context *server, *client;
static struct xrdma_channel *channel, *answering;
static uint32_t received, connected, ended;
static int ended_with;
static int fd[2];

static void on_accepted(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	answering = ch;
}

static void on_connected(struct xrdma_channel *ch, void *arg)
{
	(void)ch;
	(void)arg;
	connected = 1;
}

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	(void)ch;
	(void)m;
	(void)arg;
	received++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	(void)ch;
	(void)arg;
	ended = 1;
	ended_with = error;
}

static const struct xrdma_callbacks callbacks = { .accepted = on_accepted, .connected = on_connected,
						  .message = on_message, .closed = on_closed };

static void api_message(void)
{
	static uint8_t data[SIZE];
	struct xrdma_msg m = { .data = data, .len = sizeof(data) };
	uint32_t before = received;

	while (xrdma_send_msg(channel, &m))
		xrdma_polling(client);
	while (received == before) {
		xrdma_polling(server);
		xrdma_polling(client);
	}
}

/* A channel, and n more on which nothing happens. */
static void api_begin(uint32_t n)
{
	struct xrdma_channel *more, *busy;
	char name[64];

	snprintf(name, sizeof(name), "xr-mechanism.%d", (int)getpid());
	if (xrdma_context_create(&server, "shm", &callbacks, NULL) ||
	    xrdma_context_create(&client, "shm", &callbacks, NULL) || xrdma_listen(server, name) ||
	    xrdma_connect(client, name, &channel))
		die("no channel");
	while (!connected || !answering) {
		xrdma_polling(client);
		xrdma_polling(server);
	}
	/* the first one is the one that is used */
	busy = answering;
	for (; n && !ended; n--) {
		connected = 0;
		answering = NULL;
		if (xrdma_connect(client, name, &more))
			die("no idle channel");
		while ((!connected || !answering) && !ended) {
			xrdma_polling(client);
			xrdma_polling(server);
		}
	}
	answering = busy;
	if (ended)
		die("an idle channel ended");
}

static void socket_message(void)
{
	uint8_t data[SIZE] = { 0 };

	if (send(fd[0], data, SIZE, 0) != SIZE || recv(fd[1], data, SIZE, MSG_WAITALL) != SIZE)
		die("send and recv");
}

static int listen_on(struct sockaddr_in *sa, int backlog)
{
	socklen_t len = sizeof(*sa);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	*sa = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	if (l < 0 || bind(l, (struct sockaddr *)sa, len) || listen(l, backlog) ||
	    getsockname(l, (struct sockaddr *)sa, &len))
		die("listen");
	return l;
}

/* Connected, and a few turns, so that it moves where it can. */
static void socket_pair(int l, const struct sockaddr_in *sa, uint32_t turns)
{
	uint8_t data[SIZE] = { 0 };
	uint32_t i;

	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd[0], (const struct sockaddr *)sa, sizeof(*sa)))
		die("connect");
	fd[1] = accept(l, NULL, NULL);
	for (i = 0; i < turns; i++)
		if (send(fd[i & 1], data, SIZE, 0) != SIZE || recv(fd[!(i & 1)], data, SIZE, MSG_WAITALL) != SIZE)
			die("send and recv");
}

/* One that is used, and before it n on which nothing happens any more. */
static void socket_begin(uint32_t n)
{
	struct sockaddr_in sa;
	int l = listen_on(&sa, 1);

	while (n--)
		socket_pair(l, &sa, 60);
	socket_pair(l, &sa, 2000);
}

static int traced(int sockets, uint32_t n, uint32_t beside)
{
	void (*message)(void) = sockets ? socket_message : api_message;
	uint64_t mallocs, mutexes;
	uint32_t i;

	if (!COUNTED)
		die("allocations are not counted in this build");
	if (sockets)
		socket_begin(beside);
	else
		api_begin(beside);
	/* pools and queues grow with the first ones */
	for (i = 0; i < 10000; i++)
		message();
	mallocs = allocations;
	mutexes = locks;
	mark(MARK_CALLS);
	for (i = 0; i < n; i++)
		message();
	mark(MARK_STEPS);
	mallocs = allocations - mallocs;
	mutexes = locks - mutexes;
	for (i = 0; i < STEPPED; i++)
		message();
	/* no system call stops a program that is stepped through, a signal does; the parent keeps it */
	raise(SIGUSR2);
	printf("{\"what\": \"%s\", \"messages\": %u, \"allocations\": %lu, \"mutexes\": %lu, ", sockets ? "sockets" :
	       "channel", n, (unsigned long)mallocs, (unsigned long)mutexes);
	return fflush(stdout);
}

/* --- who traces it ------------------------------------------------------------------------------ */

/* The mark that a system call is, 0 for all others. */
static long mark_of(pid_t pid)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) <= 0 ||
	    info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return -1;
	if (info.entry.nr != SYS_getpriority || info.entry.args[0] < MARK_CALLS || info.entry.args[0] > MARK_STEPS)
		return 0;
	return (long)info.entry.args[0];
}

/* A string instruction stops once for each round of it, and is one all the same. */
static int step_is_new(pid_t pid)
{
#ifdef __x86_64__
	static long before;
	long at = ptrace(PTRACE_PEEKUSER, pid, offsetof(struct user, regs.rip), NULL), same = at == before;

	before = at;
	return !same;
#else
	(void)pid;
	return 1;
#endif
}

static int trace(const char *what, const char *n)
{
	uint64_t calls = 0, steps = 0;
	enum __ptrace_request go = PTRACE_SYSCALL;
	long state = 0;
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			die("ptrace");
		execl("/proc/self/exe", "xr-mechanism", what, n, NULL);
		die("exec");
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))
		die("ptrace");
	for (;;) {
		int sig = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
		long m = sig == (SIGTRAP | 0x80) ? mark_of(pid) : -1;

		if (m > 0) {
			state = m;
			go = m == MARK_STEPS ? PTRACE_SINGLESTEP : PTRACE_SYSCALL;
		} else if (m == 0 && state == MARK_CALLS) {
			calls++;
		} else if (state == MARK_STEPS && sig == SIGTRAP) {
			steps += step_is_new(pid);
		}
		if (sig == SIGUSR2) {
			sig = 0;
			state = 0;
			go = PTRACE_SYSCALL;
		}
		if (ptrace(go, pid, NULL, sig == SIGTRAP || sig == (SIGTRAP | 0x80) || sig == SIGSTOP ? 0 : sig))
			break;
		if (waitpid(pid, &status, 0) != pid || WIFEXITED(status) || WIFSIGNALED(status))
			break;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "xr-mechanism: the traced program ended with %#x\n", status);
		return 1;
	}
	printf("\"system_calls\": %lu, \"instructions\": %.1f}\n", (unsigned long)calls,
	       (double)steps / STEPPED);
	return 0;
}

/* --- the death of a peer -------------------------------------------------------------------------- */

static void pump(struct xrdma_context *ctx, int timeout)
{
	struct pollfd p = { .fd = xrdma_get_event_fd(ctx), .events = POLLIN };

	if (!xrdma_process_event(ctx))
		poll(&p, 1, timeout);
}

static pid_t peer(const char *name)
{
	struct xrdma_context *ctx;
	pid_t pid = fork();

	if (pid)
		return pid;
	if (xrdma_context_create(&ctx, "shm", &callbacks, NULL) || xrdma_listen(ctx, name))
		die("no context");
	for (;;)
		pump(ctx, -1);
}

/* us until the other end knows, < 0: it was not told within 10 s. */
static double one_death(int sig, uint64_t keepalive_ms)
{
	struct xrdma_context *ctx;
	uint64_t begun;
	char name[64];
	double us;
	pid_t pid;

	snprintf(name, sizeof(name), "xr-mechanism.%d", (int)getpid());
	pid = peer(name);
	connected = ended = 0;
	if (pid < 0 || xrdma_context_create(&ctx, "shm", &callbacks, NULL) ||
	    xrdma_set_option(ctx, XRDMA_OPT_KEEPALIVE_MS, keepalive_ms) ||
	    xrdma_set_option(ctx, XRDMA_OPT_KEEPALIVE_PROBES, keepalive_ms ? 3 : 0))
		die("no context");
	while (!connected) {
		ended = 0;
		if (xrdma_connect(ctx, name, &channel))
			die("connect");
		while (!connected && !ended)
			pump(ctx, 100);
	}
	/* asleep, as a program is that waits */
	for (begun = now(); now() - begun < 20000000;)
		pump(ctx, 5);
	kill(pid, sig);
	begun = now();
	while (!ended && now() - begun < 10000000000ull)
		pump(ctx, 1000);
	us = ended ? (double)(now() - begun) / 1000 : -1;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	xrdma_context_destroy(ctx);
	return us;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int death(void)
{
	double killed[11];
	int i;

	for (i = 0; i < 11; i++)
		killed[i] = one_death(SIGKILL, 0);
	qsort(killed, 11, sizeof(*killed), compare);
	printf("{\"what\": \"death\", \"killed_p50_us\": %.0f, \"killed_max_us\": %.0f, \"keepalive_ms\": 100, "
	       "\"probes\": 3, \"stopped_ms\": %.0f}\n", killed[5], killed[10], one_death(SIGSTOP, 100) / 1000);
	return killed[0] < 0;
}

/* --- connections that carry nothing ---------------------------------------------------------------- */

static double cpu(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static double asleep(const int *fds, uint32_t n, double seconds)
{
	struct epoll_event ev[64];
	uint64_t end;
	double used;
	int ep = epoll_create1(0);
	uint32_t i;

	for (i = 0; i < n; i++) {
		ev[0] = (struct epoll_event){ .events = EPOLLIN, .data.u32 = i };
		if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], ev))
			die("epoll_ctl");
	}
	epoll_wait(ep, ev, 64, 500);
	used = cpu();
	for (end = now() + (uint64_t)(seconds * 1e9); now() < end;)
		epoll_wait(ep, ev, 64, (int)((end - now()) / 1000000) + 1);
	return cpu() - used;
}

/* Both ends take turns over each connection, then both sleep; 0 or the exit status. */
static void use(int *fds, uint32_t n, int first)
{
	uint8_t data[SIZE] = { 0 };
	uint32_t i, k;

	for (i = 0; i < n; i++)
		for (k = 0; k < 40; k++)
			if ((first && send(fds[i], data, SIZE, 0) != SIZE) ||
			    recv(fds[i], data, SIZE, MSG_WAITALL) != SIZE ||
			    (!first && send(fds[i], data, SIZE, 0) != SIZE))
				die("turns");
}

static int idle(uint32_t n, double seconds)
{
	struct rlimit files;
	struct sockaddr_in sa;
	int *fds = calloc(n, sizeof(*fds)), l = listen_on(&sa, 128), child, up[2];
	double used, others;
	uint32_t i;

	if (!fds || !n || pipe(up) || getrlimit(RLIMIT_NOFILE, &files))
		die("descriptors");
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	child = !fork();
	for (i = 0; i < n; i++) {
		if (child) {
			fds[i] = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(fds[i], (struct sockaddr *)&sa, sizeof(sa)))
				die("connect");
		} else {
			fds[i] = accept(l, NULL, NULL);
		}
	}
	use(fds, n, child);
	used = asleep(fds, n, seconds);
	if (child)
		return write(up[1], &used, sizeof(used)) != sizeof(used);
	if (read(up[0], &others, sizeof(others)) != sizeof(others))
		die("the other end");
	wait(NULL);
	printf("{\"what\": \"idle\", \"connections\": %u, \"seconds\": %.1f, \"cpu_share\": [%.5f, %.5f]}\n", n,
	       seconds, used / seconds, others / seconds);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	const char *n = argc > 2 ? argv[2] : "1000000";

	if (!strcmp(what, "counts"))
		return trace("traced-counts", n);
	if (!strcmp(what, "socket-counts"))
		return trace("traced-socket-counts", n);
	if (!strcmp(what, "traced-counts") || !strcmp(what, "traced-socket-counts"))
		return traced(!strcmp(what, "traced-socket-counts"), (uint32_t)strtoul(n, NULL, 0),
			      strchr(n, '+') ? (uint32_t)strtoul(strchr(n, '+') + 1, NULL, 0) : 0);
	if (!strcmp(what, "death"))
		return death();
	if (!strcmp(what, "copies"))
		return copies();
	if (!strcmp(what, "idle") && argc == 4)
		return idle((uint32_t)strtoul(n, NULL, 0), strtod(argv[3], NULL));
	if (!strcmp(what, "upgrades") && argc == 4)
		return upgrades((uint32_t)strtoul(n, NULL, 0), (uint32_t)strtoul(argv[3], NULL, 0));
	if (!strcmp(what, "threads") && argc >= 4)
		return threads((uint32_t)strtoul(n, NULL, 0), (uint32_t)strtoul(argv[3], NULL, 0), argc > 4);
	fprintf(stderr, "usage: xr-mechanism counts|socket-counts [MESSAGES[+IDLE]] | copies | death |\n"
		"       idle CONNECTIONS SECONDS | upgrades CONNECTIONS TURNS | threads THREADS MESSAGES [shared]\n");
	return 2;
}
