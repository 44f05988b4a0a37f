/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What threads that have nothing to do with each other cost each other.  Counted is from when all connections have
 * moved until the last message has come: to make connections is another matter, for which there are locks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "counters.h"
#include "threads.h"

#define MOST	64u
#define SMALL	64u
#define LARGE	16384u		/* fetched by the receiver */
#define BATCH	16u		/* messages of which one is large */
#define BYTES	((BATCH - 1) * SMALL + LARGE)
#define WARM	64u		/* batches, in which they move */

struct worker {
	pthread_t thread;
	int fd;
	uint32_t batches;
};

struct end {
	double cpu;
	uint64_t waits, moved;
};

static pthread_barrier_t barrier;
static int first, common;	/* this end speaks first; all share a connection, and speak one way only */
static uint32_t nthreads;

static void die(const char *what)
{
	fprintf(stderr, "xr-mechanism: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double cpu(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void say(int fd)
{
	static const uint8_t data[LARGE];
	uint32_t i;

	for (i = 0; i < BATCH; i++) {
		size_t len = i ? SMALL : LARGE;

		if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
			die("send");
	}
}

static void hear(int fd)
{
	uint8_t data[BYTES];
	size_t left = BYTES;
	ssize_t r;

	for (; left; left -= (size_t)r) {
		r = recv(fd, data, left, 0);
		if (r <= 0)
			die("recv");
	}
}

static void turn(int fd)
{
	if (first)
		say(fd);
	hear(fd);
	if (!first)
		say(fd);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint32_t i;

	/* one who is alone takes the turns in which a connection that all share moves */
	for (i = 0; i < WARM && (!common || w->batches >> 31); i++)
		turn(w->fd);
	w->batches &= INT32_MAX;
	pthread_barrier_wait(&barrier);
	/* main looks at the counters */
	pthread_barrier_wait(&barrier);
	for (i = 0; i < w->batches; i++) {
		if (!common)
			turn(w->fd);
		else if (first)
			say(w->fd);
		else
			hear(w->fd);
	}
	pthread_barrier_wait(&barrier);
	return NULL;
}

static struct end run(const int *fd, uint32_t batches)
{
	const struct xr_stats_segment *seg;
	struct worker w[MOST];
	struct end e = { 0 };
	uint32_t i;

	if (pthread_barrier_init(&barrier, NULL, nthreads + 1))
		die("barrier");
	for (i = 0; i < nthreads; i++) {
		w[i].fd = fd[common ? 0 : i];
		w[i].batches = batches | (i ? 0 : 1u << 31);
		if (pthread_create(&w[i].thread, NULL, work, &w[i]))
			die("thread");
	}
	pthread_barrier_wait(&barrier);
	seg = counters_own();
	if (seg) {
		e.waits = xr_load_relaxed(&seg->counter[XR_STAT_LOCK_WAITS]);
		e.moved = xr_load_relaxed(&seg->counter[XR_STAT_FLOWS_UPGRADED]);
	}
	e.cpu = cpu();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	e.cpu = cpu() - e.cpu;
	if (seg)
		e.waits = xr_load_relaxed(&seg->counter[XR_STAT_LOCK_WAITS]) - e.waits;
	for (i = 0; i < nthreads; i++)
		pthread_join(w[i].thread, NULL);
	return e;
}

int threads(uint32_t n, uint32_t messages, int shared)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	uint32_t i, nfd = shared ? 1 : n, batches;
	socklen_t len = sizeof(sa);
	int l = socket(AF_INET, SOCK_STREAM, 0), out[2], fd[MOST];
	struct end e[2];
	pid_t pid;

	if (!n || n > MOST)
		return 2;
	/* both directions of connections of their own, one of a common one */
	batches = messages / n / BATCH / (shared ? 1 : 2) + 1;
	nthreads = n;
	common = shared;
	if (l < 0 || bind(l, (struct sockaddr *)&sa, len) || listen(l, (int)MOST) ||
	    getsockname(l, (struct sockaddr *)&sa, &len) || pipe(out))
		die("listen");
	pid = fork();
	if (pid < 0)
		die("fork");
	first = !pid;
	for (i = 0; i < nfd; i++) {
		fd[i] = first ? socket(AF_INET, SOCK_STREAM, 0) : accept(l, NULL, NULL);
		if (fd[i] < 0 || (first && connect(fd[i], (struct sockaddr *)&sa, sizeof(sa))))
			die("connect");
	}
	close(l);
	e[first] = run(fd, batches);
	if (first)
		exit(write(out[1], &e[1], sizeof(e[1])) != sizeof(e[1]));
	if (read(out[0], &e[1], sizeof(e[1])) != sizeof(e[1]) || waitpid(pid, NULL, 0) != pid)
		die("the other end");
	printf("{\"what\": \"threads\", \"threads\": %u, \"shared\": %d, \"messages\": %lu, \"moved\": [%lu, %lu], "
	       "\"lock_waits\": [%lu, %lu], \"cpu_s\": [%.6f, %.6f]}\n", n, shared,
	       (unsigned long)n * batches * BATCH * (shared ? 1 : 2), (unsigned long)e[0].moved,
	       (unsigned long)e[1].moved, (unsigned long)e[0].waits, (unsigned long)e[1].waits, e[0].cpu, e[1].cpu);
	return 0;
}
