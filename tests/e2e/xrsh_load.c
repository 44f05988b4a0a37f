/* SPDX-License-Identifier: BSD-2-Clause */
/* Many calls for one order, where a line per call would drown what is measured. */
#include "where.h"
#include "xrsh.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- race N PORT [TURNS]: N threads whose first call ever is made at the same instant; TURNS more ---- */

static pthread_barrier_t gate;
static int race_port, race_turns;

/* What is this thread's, and this turn's, comes back. */
static int race_turn(int s, uint32_t turn)
{
	uint32_t out[10], in[10];

	for (uint32_t i = 0; i < 10; i++)
		out[i] = (uint32_t)gettid() * 2654435761u + turn * 40503u + i;
	return send(s, out, sizeof(out), MSG_NOSIGNAL) == sizeof(out) &&
	       recv(s, in, sizeof(in), MSG_WAITALL) == sizeof(in) && !memcmp(in, out, sizeof(in));
}

static void *racer(void *unused)
{
	struct sockaddr_in a = where4(race_port);
	char c = 'r';
	int s, t;

	pthread_barrier_wait(&gate);
	s = socket(AF_INET, SOCK_STREAM, 0);
	if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof(a)) || send(s, &c, 1, 0) != 1 ||
	    recv(s, &c, 1, 0) != 1 || c != 'r')
		return "failed";
	for (t = 0; t < race_turns; t++)
		if (!race_turn(s, t))
			return "failed";
	if (shutdown(s, SHUT_WR) || recv(s, &c, 1, 0) != 0 || close(s))
		return "failed";
	return unused;
}

static long c_race(struct call *k)
{
	int n = arg(k, 1);
	long good = 0;
	pthread_t t[256];

	race_port = arg(k, 2);
	race_turns = k->argc > 3 ? arg(k, 3) : 0;
	pthread_barrier_init(&gate, NULL, n);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, racer, NULL))
			exit(92);
	for (int i = 0; i < n; i++) {
		void *r;

		pthread_join(t[i], &r);
		good += r == NULL;
	}
	return good;
}

/* accept_echo LFD N: accepts N connections and echoes each to its end, a thread for each */
static void *echo_one(void *p)
{
	int fd = (long)p;
	char b[4096];
	ssize_t n;

	while ((n = recv(fd, b, sizeof(b), 0)) > 0)
		if (send(fd, b, n, MSG_NOSIGNAL) != n)
			break;
	close(fd);
	return NULL;
}

static long c_accept_echo(struct call *k)
{
	for (long i = 0; i < arg(k, 2); i++) {
		long fd = accept(arg(k, 1), NULL, NULL);
		pthread_t t;

		if (fd < 0)
			return -1;
		if (pthread_create(&t, NULL, echo_one, (void *)fd))
			exit(92);
		pthread_detach(t);
	}
	return arg(k, 2);
}

/* ---- connects N PORT BYTES [1]: times connect, and the first turn when BYTES is not zero ---- */

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* The calls of a short connection: those that the program is given, and libc's own. */
static struct calls {
	int (*accept)(int, struct sockaddr *, socklen_t *);
	int (*close)(int);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*send)(int, const void *, size_t, int);
	int (*shutdown)(int, int);
	int (*socket)(int, int, int);
} given, libcs;

static void find_calls(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	given = (struct calls){ accept, close, connect, recv, send, shutdown, socket };
	if (!libc)
		exit(92);
#define FIND(name) libcs.name = (__typeof__(libcs.name))dlsym(libc, #name)
	FIND(accept);
	FIND(close);
	FIND(connect);
	FIND(recv);
	FIND(send);
	FIND(shutdown);
	FIND(socket);
}

/*
 * With a last word of 1 half of the connections go by libc's own calls at both ends: whatever else the
 * machine does, it does to both kinds.  Not in turn, but as the number is scattered: the end of a
 * connection at the other end, on another core, goes on during the connect() of the next one, and in
 * turn the end of the one kind would always be measured with the other.
 */
static int libcs_own(const struct call *k, long i)
{
	unsigned int x = (unsigned int)i + 1;

	x = (x ^ x >> 16) * 0x85ebca6bu;
	x = (x ^ x >> 13) * 0xc2b2ae35u;
	return arg(k, 4) && !((x ^ x >> 16) & 1);
}

static const struct calls *calls_of(const struct call *k, long i)
{
	return libcs_own(k, i) ? &libcs : &given;
}

static long c_connects(struct call *k)
{
	struct sockaddr_in a = where4(arg(k, 2));
	size_t bytes = arg(k, 3);
	char b[4096] = {};

	find_calls();
	for (long i = 0; i < arg(k, 1); i++) {
		const struct calls *by = calls_of(k, i);
		int s = by->socket(AF_INET, SOCK_STREAM, 0);
		double t = now_us(), t1, t2;

		if (s < 0 || by->connect(s, (struct sockaddr *)&a, sizeof(a)))
			return -1;
		t1 = now_us();
		if (bytes && (by->send(s, b, bytes, 0) != (ssize_t)bytes ||
			      by->recv(s, b, bytes, MSG_WAITALL) != (ssize_t)bytes))
			return -1;
		t2 = now_us();
		/* The other end closes last, so no port of ours waits out TIME_WAIT. */
		if (by->shutdown(s, SHUT_WR) || by->recv(s, b, 1, 0) != 0 || by->close(s))
			return -1;
		extra(k, " %d:%.2f:%.2f", !libcs_own(k, i), t1 - t, t2 - t1);
	}
	return arg(k, 1);
}

/* accepts N LFD BYTES [1]: serves connects */
static long c_accepts(struct call *k)
{
	size_t bytes = arg(k, 3);
	char b[4096];

	find_calls();
	for (long i = 0; i < arg(k, 1); i++) {
		const struct calls *by = calls_of(k, i);
		int s = by->accept(arg(k, 2), NULL, NULL);

		if (s < 0)
			return -1;
		if (bytes && (by->recv(s, b, bytes, MSG_WAITALL) != (ssize_t)bytes ||
			      by->send(s, b, bytes, MSG_NOSIGNAL) != (ssize_t)bytes))
			return -1;
		if (by->recv(s, b, 1, 0) != 0)
			return -1;
		by->close(s);
	}
	return arg(k, 1);
}

/* ---- serve EP N: threads that share one epoll instance and echo what comes, one-shot ---- */

static void *server(void *p)
{
	int ep = (long)p;
	char b[4096];

	for (;;) {
		struct epoll_event ev;
		int fd;

		if (epoll_wait(ep, &ev, 1, -1) != 1)
			return NULL;
		fd = ev.data.fd;
		for (;;) {
			ssize_t n = recv(fd, b, sizeof(b), MSG_DONTWAIT);

			if (n < 0 && errno == EAGAIN)
				break;
			if (n <= 0) {
				close(fd);
				fd = -1;
				break;
			}
			if (send(fd, b, n, MSG_NOSIGNAL) != n)
				exit(95);
		}
		ev.events = EPOLLIN | EPOLLONESHOT;
		if (fd >= 0 && epoll_ctl(ep, EPOLL_CTL_MOD, fd, &ev))
			exit(96);
	}
}

static long c_serve(struct call *k)
{
	for (long i = 0; i < arg(k, 2); i++) {
		pthread_t t;

		if (pthread_create(&t, NULL, server, (void *)(long)arg(k, 1)))
			exit(92);
		pthread_detach(t);
	}
	return 0;
}

/* ---- a crowd: connections that are many and idle ---- */

#define CROWD 10000

static int crowd[CROWD];
static long in_crowd;

static int crowd_turn(int s, unsigned int seed)
{
	unsigned int b[256], got[256];

	for (int i = 0; i < 256; i++)
		b[i] = seed * 2654435761u + i;
	return send(s, b, sizeof(b), MSG_NOSIGNAL) == sizeof(b) &&
	       recv(s, got, sizeof(got), MSG_WAITALL) == sizeof(got) && !memcmp(b, got, sizeof(b));
}

/* dial N PORT TURNS: N more connections, each used for so many turns */
static long c_dial(struct call *k)
{
	struct sockaddr_in a = where4(arg(k, 2));

	for (long i = 0; i < arg(k, 1); i++) {
		int s = socket(AF_INET, SOCK_STREAM, 0);

		if (in_crowd == CROWD || s < 0 || connect(s, (struct sockaddr *)&a, sizeof(a)))
			return -1;
		crowd[in_crowd++] = s;
		for (long t = 0; t < arg(k, 3); t++)
			if (!crowd_turn(s, i * 7919 + t))
				return -1;
	}
	return in_crowd;
}

/* crowd TURNS: each connection is used; how many are sound */
static long c_crowd(struct call *k)
{
	long good = 0;

	for (long i = 0; i < in_crowd; i++) {
		long t = 0;

		while (t < arg(k, 1) && crowd_turn(crowd[i], i * 104729 + t))
			t++;
		good += t == arg(k, 1);
	}
	return good;
}

/* answer LFD: in one thread, accepts whoever comes, until LFD is shut down, and echoes what comes */
static long c_answer(struct call *k)
{
	int lfd = arg(k, 1), ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev[64] = { { .events = EPOLLIN, .data.fd = lfd } };
	char b[65536];

	if (epoll_ctl(ep, EPOLL_CTL_ADD, lfd, ev))
		return -1;
	for (;;) {
		int n = epoll_wait(ep, ev, 64, -1);

		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			ssize_t r;

			if (fd == lfd) {
				struct epoll_event in = { .events = EPOLLIN };

				in.data.fd = accept(lfd, NULL, NULL);
				if (in.data.fd < 0)	/* shut down: no more of them */
					epoll_ctl(ep, EPOLL_CTL_DEL, lfd, NULL);
				else if (epoll_ctl(ep, EPOLL_CTL_ADD, in.data.fd, &in))
					return -1;
				continue;
			}
			r = recv(fd, b, sizeof(b), 0);
			if (r <= 0 || send(fd, b, r, MSG_NOSIGNAL) != r)
				close(fd);
		}
		if (n < 0 && errno != EINTR)
			return -1;
	}
}

const struct command load_commands[] = {
	{ "race", 2, c_race },
	{ "accept_echo", 2, c_accept_echo },
	{ "connects", 3, c_connects },
	{ "accepts", 3, c_accepts },
	{ "serve", 2, c_serve },
	{ "dial", 3, c_dial },
	{ "crowd", 1, c_crowd },
	{ "answer", 1, c_answer },
	{},
};
