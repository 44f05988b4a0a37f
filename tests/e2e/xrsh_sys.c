/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that make, change and end sockets, signals and processes. */
#include "pattern.h"
#include "xrsh.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILD -1000000 /* see run() */

static atomic_int caught[65];

static void handler(int sig)
{
	caught[sig]++;
}

static socklen_t address(const struct call *k, int i, struct sockaddr_storage *ss)
{
	struct sockaddr_in *a = (void *)ss;
	struct sockaddr_in6 *a6 = (void *)ss;

	memset(ss, 0, sizeof(*ss));
	if (inet_pton(AF_INET6, k->argv[i], &a6->sin6_addr) == 1) {
		a6->sin6_family = AF_INET6;
		a6->sin6_port = htons(arg(k, i + 1));
		return sizeof(*a6);
	}
	if (inet_pton(AF_INET, k->argv[i], &a->sin_addr) != 1)
		exit(93);
	a->sin_family = AF_INET;
	a->sin_port = htons(arg(k, i + 1));
	return sizeof(*a);
}

static void show_address(struct call *k, const struct sockaddr_storage *ss, socklen_t n)
{
	char text[64] = "-";
	const struct sockaddr_in *a = (void *)ss;
	const struct sockaddr_in6 *a6 = (void *)ss;

	if (ss->ss_family == AF_INET6)
		inet_ntop(AF_INET6, &a6->sin6_addr, text, sizeof(text));
	else if (ss->ss_family == AF_INET)
		inet_ntop(AF_INET, &a->sin_addr, text, sizeof(text));
	extra(k, " %s %d %u", text, ntohs(a->sin_port), n);
}

static long c_socket(struct call *k)
{
	return socket(arg(k, 1), arg(k, 2), arg(k, 3));
}

static long c_bind(struct call *k)
{
	struct sockaddr_storage ss;
	socklen_t n = address(k, 2, &ss);

	return bind(arg(k, 1), (struct sockaddr *)&ss, n);
}

static long c_listen(struct call *k)
{
	return listen(arg(k, 1), arg(k, 2));
}

static long c_connect(struct call *k)
{
	struct sockaddr_storage ss;
	socklen_t n = address(k, 2, &ss);

	return connect(arg(k, 1), (struct sockaddr *)&ss, n);
}

/* sendto FD N FLAGS KEY OFF ADDRESS PORT */
static long c_sendto(struct call *k)
{
	struct sockaddr_storage ss;
	socklen_t len = address(k, 6, &ss);
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n + 1);
	long r;
	int e;

	pattern_fill(arg(k, 4), arg(k, 5), b, n);
	r = sendto(arg(k, 1), b, n, arg(k, 3), (struct sockaddr *)&ss, len);
	e = errno;
	free(b);
	errno = e;
	return r;
}

static long c_accept(struct call *k)
{
	struct sockaddr_storage ss = {};
	socklen_t n = sizeof(ss);
	int r = k->argc > 2 ? accept4(arg(k, 1), (struct sockaddr *)&ss, &n, arg(k, 2)) :
			      accept(arg(k, 1), (struct sockaddr *)&ss, &n);
	int e = errno;

	show_address(k, &ss, n);
	errno = e;
	return r;
}

static long c_name(struct call *k)
{
	struct sockaddr_storage ss = {};
	socklen_t n = sizeof(ss);
	int r = k->argv[0][3] == 's' ? getsockname(arg(k, 1), (struct sockaddr *)&ss, &n) :
				       getpeername(arg(k, 1), (struct sockaddr *)&ss, &n);
	int e = errno;

	show_address(k, &ss, n);
	errno = e;
	return r;
}

static long c_shutdown(struct call *k)
{
	return shutdown(arg(k, 1), arg(k, 2));
}

static long c_close(struct call *k)
{
	return close(arg(k, 1));
}

static long c_dup(struct call *k)
{
	return dup(arg(k, 1));
}

static long c_dup2(struct call *k)
{
	return dup3(arg(k, 1), arg(k, 2), arg(k, 3));
}

static long c_fcntl(struct call *k)
{
	return fcntl(arg(k, 1), arg(k, 2), arg(k, 3));
}

static long c_ioctl(struct call *k)
{
	int v = arg(k, 3);
	long r = ioctl(arg(k, 1), arg(k, 2), &v);

	extra(k, " %d", v);
	return r;
}

static long c_getsockopt(struct call *k)
{
	int v = 0;
	socklen_t n = sizeof(v);
	long r = getsockopt(arg(k, 1), arg(k, 2), arg(k, 3), &v, &n);

	extra(k, " %d %u", v, n);
	return r;
}

static long c_setsockopt(struct call *k)
{
	int v = arg(k, 4);

	return setsockopt(arg(k, 1), arg(k, 2), arg(k, 3), &v, sizeof(v));
}

/* timeo FD SO_RCVTIMEO|SO_SNDTIMEO MS */
static long c_timeo(struct call *k)
{
	struct timeval tv = { arg(k, 3) / 1000, arg(k, 3) % 1000 * 1000 };

	return setsockopt(arg(k, 1), SOL_SOCKET, arg(k, 2), &tv, sizeof(tv));
}

static long c_linger(struct call *k)
{
	struct linger l = { arg(k, 2), arg(k, 3) };

	return setsockopt(arg(k, 1), SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

/* tcp_info FD [LEN]: shell.py has the names of what is shown */
static long c_tcp_info(struct call *k)
{
	union {
		struct tcp_info t;
		char room[512];	/* of kernels to come */
	} u = {};
	const struct tcp_info *t = &u.t;
	socklen_t n = k->argc > 2 ? (socklen_t)arg(k, 2) : sizeof(u);
	long r = getsockopt(arg(k, 1), IPPROTO_TCP, TCP_INFO, &u, &n);
	int e = errno;

	extra(k, " %d %u %llu %llu %llu %u %u %u %u", t->tcpi_state, n, t->tcpi_bytes_sent, t->tcpi_bytes_acked,
	      t->tcpi_bytes_received, t->tcpi_segs_out, t->tcpi_segs_in, t->tcpi_data_segs_out, t->tcpi_data_segs_in);
	extra(k, " %u %u %u %u %u %u %u %u %u", t->tcpi_notsent_bytes, t->tcpi_unacked, t->tcpi_rtt, t->tcpi_min_rtt,
	      t->tcpi_snd_mss, t->tcpi_snd_cwnd, t->tcpi_last_data_sent, t->tcpi_last_data_recv, t->tcpi_snd_wnd);
	extra(k, " %llu", t->tcpi_bytes_retrans);
	errno = e;
	return r;
}

static long c_closefrom(struct call *k)
{
	closefrom(arg(k, 1));
	return 0;
}

static long c_close_range(struct call *k)
{
	return close_range(arg(k, 1), arg(k, 2), arg(k, 3));
}

/* Daemons of old close every number they might hold, one by one. */
static long c_close_loop(struct call *k)
{
	for (int fd = arg(k, 1); fd < arg(k, 2); fd++)
		close(fd);
	return 0;
}

/* sigaction SIG ign|dfl|catch|restart */
static long c_sigaction(struct call *k)
{
	struct sigaction sa = { .sa_handler = handler };

	if (!strcmp(k->argv[2], "ign"))
		sa.sa_handler = SIG_IGN;
	else if (!strcmp(k->argv[2], "dfl"))
		sa.sa_handler = SIG_DFL;
	else if (!strcmp(k->argv[2], "restart"))
		sa.sa_flags = SA_RESTART;
	return sigaction(arg(k, 1), &sa, NULL);
}

static volatile int busy_fd = -1, busy_peer = -1;

/*
 * What POSIX lets a handler call, on whatever connection: looks, reads what there is and sends it
 * back, shuts down and closes a duplicate.
 */
static void busy_handler(int sig)
{
	struct pollfd p = { .fd = busy_fd, .events = POLLIN | POLLOUT };
	int saved = errno, value = 0, d;
	socklen_t len = sizeof(value);
	char b[4096];
	ssize_t n;

	caught[sig]++;
	poll(&p, 1, 0);
	getsockopt(busy_fd, SOL_SOCKET, SO_ERROR, &value, &len);
	d = dup(busy_fd);
	n = recv(busy_fd, b, sizeof(b), MSG_DONTWAIT);
	if (n > 0)
		send(busy_peer, b, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (d >= 0)
		close(d);
	errno = saved;
}

/* handler SIG FROM TO: the handler reads FROM and writes that to TO; calls are restarted */
static long c_handler(struct call *k)
{
	struct sigaction sa = { .sa_handler = busy_handler, .sa_flags = SA_RESTART };

	busy_fd = arg(k, 2);
	busy_peer = arg(k, 3);
	return sigaction(arg(k, 1), &sa, NULL);
}

static long c_caught(struct call *k)
{
	return caught[arg(k, 1)];
}

static long c_timer(struct call *k)
{
	struct itimerval it = { .it_value = { arg(k, 1) / 1000000, arg(k, 1) % 1000000 },
				.it_interval = { arg(k, 2) / 1000000, arg(k, 2) % 1000000 } };

	return setitimer(ITIMER_REAL, &it, NULL);
}

/* tkill ID SIG: signal the thread that runs call ID */
static long c_tkill(struct call *k)
{
	pthread_t t;

	if (!thread_of(arg(k, 1), &t)) {
		errno = ESRCH;
		return -1;
	}
	errno = pthread_kill(t, arg(k, 2));
	return errno ? -1 : 0;
}

/* cancel ID: pthread_cancel the thread of call ID */
static long c_cancel(struct call *k)
{
	pthread_t t;

	if (!thread_of(arg(k, 1), &t)) {
		errno = ESRCH;
		return -1;
	}
	errno = pthread_cancel(t);
	return errno ? -1 : 0;
}

static long c_fork(struct call *k)
{
	pid_t p = fork();

	if (p)
		return p;
	if (reopen(k->argv[1], k->argv[2]))
		_exit(94);
	return CHILD;
}

static long c_daemon(struct call *k)
{
	/* The parent is gone after this; its reader sees end of file and turns to the child. */
	if (daemon(1, arg(k, 3)))
		return -1;
	if (reopen(k->argv[1], k->argv[2]))
		_exit(94);
	return CHILD;
}

/* inetd FD PROGRAM ARG...: the child has FD as 0, 1 and 2 and nothing else of it */
static long c_inetd(struct call *k)
{
	int fd = arg(k, 1);
	pid_t p = fork();

	if (p)
		return p;
	dup2(fd, 0);
	dup2(fd, 1);
	dup2(fd, 2);
	if (fd > 2)
		close(fd);
	execvp(k->argv[2], k->argv + 2);
	_exit(127);
}

/* exec NAME ARG...: this program becomes another one */
static long c_exec(struct call *k)
{
	return execvp(k->argv[1], k->argv + 1);
}

static long c_wait(struct call *k)
{
	int st = 0;
	long r = waitpid(arg(k, 1), &st, 0);

	extra(k, " %d", st);
	return r;
}

static void join(struct call *k, int from, char *text, size_t size)
{
	*text = 0;
	for (int i = from; i < k->argc; i++)
		snprintf(text + strlen(text), size - strlen(text), "%s%s", i > from ? " " : "", k->argv[i]);
}

static long c_system(struct call *k)
{
	char text[4096];

	join(k, 1, text, sizeof(text));
	return system(text);
}

static long c_popen(struct call *k)
{
	char text[4096];
	FILE *f;

	join(k, 1, text, sizeof(text));
	f = popen(text, "r");
	if (!f)
		return -1;
	if (fscanf(f, "%4000s", text) == 1)
		extra(k, " %s", text);
	return pclose(f);
}

static long c_rlimit(struct call *k)
{
	struct rlimit r = { arg(k, 2), arg(k, 2) };

	return setrlimit(arg(k, 1), &r);
}

static long c_socketpair(struct call *k)
{
	int v[2];
	long r = socketpair(AF_UNIX, SOCK_STREAM, 0, v);

	extra(k, " %d %d", v[0], v[1]);
	return r;
}

static long c_sendfd(struct call *k)
{
	int fd = arg(k, 2);
	char c = 'x', control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof(int));
	return sendmsg(arg(k, 1), &m, 0);
}

static long c_recvfd(struct call *k)
{
	int fd = -1;
	char c, control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };

	if (recvmsg(arg(k, 1), &m, 0) <= 0)
		return -1;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(h), sizeof(int));
	return fd;
}

/* spin MS: compute without calling anything */
static long c_spin(struct call *k)
{
	struct timespec t;
	long end;

	clock_gettime(CLOCK_MONOTONIC, &t);
	end = t.tv_sec * 1000 + t.tv_nsec / 1000000 + arg(k, 1);
	do
		clock_gettime(CLOCK_MONOTONIC, &t);
	while (t.tv_sec * 1000 + t.tv_nsec / 1000000 < end);
	return 0;
}

static long c_exit(struct call *k)
{
	if (k->argv[0][0] == '_')
		_exit(arg(k, 1));
	exit(arg(k, 1));
}

const struct command sys_commands[] = {
	{ "socket", 3, c_socket },
	{ "bind", 3, c_bind },
	{ "listen", 2, c_listen },
	{ "connect", 3, c_connect },
	{ "sendto", 7, c_sendto },
	{ "accept", 1, c_accept },
	{ "getsockname", 1, c_name },
	{ "getpeername", 1, c_name },
	{ "shutdown", 2, c_shutdown },
	{ "close", 1, c_close },
	{ "dup", 1, c_dup },
	{ "dup3", 3, c_dup2 },
	{ "fcntl", 3, c_fcntl },
	{ "ioctl", 3, c_ioctl },
	{ "getsockopt", 3, c_getsockopt },
	{ "setsockopt", 4, c_setsockopt },
	{ "timeo", 3, c_timeo },
	{ "linger", 3, c_linger },
	{ "tcp_info", 1, c_tcp_info },
	{ "closefrom", 1, c_closefrom },
	{ "close_range", 3, c_close_range },
	{ "close_loop", 2, c_close_loop },
	{ "sigaction", 2, c_sigaction },
	{ "handler", 3, c_handler },
	{ "caught", 1, c_caught },
	{ "timer", 2, c_timer },
	{ "tkill", 2, c_tkill },
	{ "cancel", 1, c_cancel },
	{ "fork", 2, c_fork },
	{ "daemon", 3, c_daemon },
	{ "inetd", 2, c_inetd },
	{ "exec", 1, c_exec },
	{ "wait", 1, c_wait },
	{ "system", 1, c_system },
	{ "popen", 1, c_popen },
	{ "rlimit", 2, c_rlimit },
	{ "socketpair", 0, c_socketpair },
	{ "sendfd", 2, c_sendfd },
	{ "recvfd", 1, c_recvfd },
	{ "spin", 1, c_spin },
	{ "exit", 1, c_exit },
	{ "_exit", 1, c_exit },
	{},
};
