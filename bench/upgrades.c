/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What an upgrade of a connection costs: the same connections and turns are gone through with and without xrdma, and
 * bench/mechanisms takes the difference.  Both ends share a core, and a turn is taken on all open connections before
 * the other process has to run: changes between them are few, and cost the same in both runs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "counters.h"
#include "upgrades.h"

#define BATCH	200u
#define SIZE	64

struct end {
	double cpu, first;	/* seconds; of the first batch, which has no link to the other process yet */
	uint64_t upgraded, attempts, links, tcp;	/* tcp: bytes sent before they moved */
};

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

static double wall(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* One turn on each connection. */
static void turn(const int *fd, uint32_t n, int first)
{
	uint8_t data[SIZE] = { 0 };
	uint32_t i;

	for (i = 0; first && i < n; i++)
		if (send(fd[i], data, SIZE, 0) != SIZE)
			die("send");
	for (i = 0; i < n; i++)
		if (recv(fd[i], data, SIZE, MSG_WAITALL) != SIZE)
			die("recv");
	for (i = 0; !first && i < n; i++)
		if (send(fd[i], data, SIZE, 0) != SIZE)
			die("send");
}

static void batch(int l, const struct sockaddr_in *sa, uint32_t n, uint32_t turns, int *fd)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		fd[i] = l < 0 ? socket(AF_INET, SOCK_STREAM, 0) : accept(l, NULL, NULL);
		if (fd[i] < 0 || (l < 0 && connect(fd[i], (const struct sockaddr *)sa, sizeof(*sa))))
			die("connect");
	}
	for (i = 0; i < turns; i++)
		turn(fd, n, l < 0);
	/* the one who has nothing to read any more is last */
	for (i = 0; i < n; i++) {
		uint8_t c;

		if (l >= 0 && read(fd[i], &c, 1))
			die("end");
		close(fd[i]);
	}
}

static struct end run(int l, const struct sockaddr_in *sa, uint32_t n, uint32_t turns)
{
	const struct xr_stats_segment *seg;
	struct end e = { 0 };
	int fd[BATCH];
	uint32_t i;
	double from;

	for (i = 0; i < n + BATCH; i += BATCH) {
		from = cpu();
		batch(l, sa, BATCH, turns, fd);
		*(i ? &e.cpu : &e.first) += cpu() - from;
	}
	seg = counters_own();
	if (seg) {
		e.upgraded = xr_load_relaxed(&seg->counter[XR_STAT_FLOWS_UPGRADED]);
		e.attempts = xr_load_relaxed(&seg->counter[XR_STAT_UPGRADE_ATTEMPTS]);
		e.tcp = xr_load_relaxed(&seg->counter[XR_STAT_BYTES_TX_TCP]);
		e.links = xr_load_relaxed(&seg->counter[XR_STAT_LINKS_MADE]);
	}
	return e;
}

int upgrades(uint32_t n, uint32_t turns)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(sa);
	int l = socket(AF_INET, SOCK_STREAM, 0), out[2];
	struct end e[2];
	cpu_set_t core;
	double begun;
	pid_t pid;

	n = (n + BATCH - 1) / BATCH * BATCH;
	CPU_ZERO(&core);
	CPU_SET(sched_getcpu(), &core);
	if (l < 0 || bind(l, (struct sockaddr *)&sa, len) || listen(l, (int)BATCH) ||
	    getsockname(l, (struct sockaddr *)&sa, &len) || pipe(out) || sched_setaffinity(0, sizeof(core), &core))
		die("listen");
	begun = wall();
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		close(l);
		e[0] = run(-1, &sa, n, turns);
		exit(write(out[1], &e[0], sizeof(e[0])) != sizeof(e[0]));
	}
	e[1] = run(l, &sa, n, turns);
	if (read(out[0], &e[0], sizeof(e[0])) != sizeof(e[0]) || waitpid(pid, NULL, 0) != pid)
		die("the other end");
	printf("{\"what\": \"upgrades\", \"connections\": %u, \"turns\": %u, \"upgraded\": [%lu, %lu], \"attempts\": "
	       "[%lu, %lu], \"links\": [%lu, %lu], ", n, turns, (unsigned long)e[0].upgraded,
	       (unsigned long)e[1].upgraded, (unsigned long)e[0].attempts, (unsigned long)e[1].attempts,
	       (unsigned long)e[0].links, (unsigned long)e[1].links);
	printf("\"tcp_turns\": %.3f, ", (double)(e[0].tcp + e[1].tcp) / 2 / SIZE / (n + BATCH));
	printf("\"cpu_s\": [%.6f, %.6f], \"first_s\": [%.6f, %.6f], \"wall_s\": %.6f}\n", e[0].cpu, e[1].cpu,
	       e[0].first, e[1].first, wall() - begun);
	return 0;
}
