/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xrsmall: one end of a stream of pieces of 64 bytes, one send each, as fast as it can; the other end reads and
 * checks every byte.
 *
 *	xrsmall server [duplex|jump|leap]	prints its port, then what it has read
 *	xrsmall client PORT [duplex|jump|leap]	sends until its standard input ends, or has a line
 *
 * duplex: both ends do both, in two threads. jump: both ends are told; a handler of the client leaves its sends by
 * siglongjmp, a thousand times a second, after which nobody knows how much of the piece was sent: all bytes are alike.
 * leap: as jump, but it is the server whose handler leaves its recvs, for which the client's pauses let it sleep.
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PIECE	64u
#define WORDS	(PIECE / 8)

#define LEAPS	10000u

static int fd, client, jumps, leaps;
static sigjmp_buf before_call;
static sig_atomic_t may_jump;

static void on_alarm(int sig)
{
	(void)sig;
	if (may_jump) {
		may_jump = 0;
		siglongjmp(before_call, 1);
	}
}

static void report(const char *what, uint64_t bytes, int err)
{
	printf("{\"%s\": %" PRIu64 ", \"error\": \"%s\"}\n", what, bytes, err ? strerrorname_np(err) : "0");
	fflush(stdout);
}

static uint64_t word(uint64_t i, int from_client)
{
	if (jumps)
		return 0x7878787878787878ull;
	return (i + (uint64_t)from_client) * 0x9e3779b97f4a7c15ull;
}

static void *reader(void *arg)
{
	static uint8_t buf[65536 + 8];
	uint64_t pos = 0;
	size_t have = 0, i;
	ssize_t n;

	(void)arg;
	while ((n = recv(fd, buf + have, 65536, 0)) > 0) {
		have += (size_t)n;
		for (i = 0; i + 8 <= have; i += 8, pos += 8) {
			uint64_t w;

			memcpy(&w, buf + i, 8);
			if (w != word(pos / 8, !client)) {
				printf("{\"wrong\": %" PRIu64 "}\n", pos);
				exit(1);
			}
		}
		memmove(buf, buf + i, have - i);
		have -= i;
	}
	report("read", pos + have, n < 0 ? errno : 0);
	return NULL;
}

static int told(void)
{
	struct pollfd p = { .fd = 0, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

static int jumping_writer(void)
{
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
	struct sigaction sa = { .sa_handler = on_alarm };
	uint64_t piece[WORDS];
	/* not a local of this frame in a register: it counts across the jumps */
	static uint64_t jumped;
	int k;

	for (k = 0; k < (int)WORDS; k++)
		piece[k] = word((uint64_t)k, client);
	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	if (sigsetjmp(before_call, 1))
		jumped++;
	while (jumped < 500) {
		ssize_t r;

		may_jump = 1;
		r = send(fd, piece, PIECE, MSG_NOSIGNAL);
		may_jump = 0;
		if (r != PIECE) {
			report("jumped", jumped, r < 0 ? errno : EIO);
			return 1;
		}
	}
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	shutdown(fd, SHUT_WR);
	report("jumped", jumped, 0);
	return 0;
}

/* Reads what comes and is thrown out of it, until there is no more. */
static int leaping_reader(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } };
	struct sigaction sa = { .sa_handler = on_alarm };
	static uint64_t leapt;
	static uint8_t buf[4096];
	ssize_t n;

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	if (sigsetjmp(before_call, 1) && ++leapt == LEAPS)
		setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	do {
		may_jump = leapt < LEAPS;
		n = recv(fd, buf, sizeof(buf), 0);
		may_jump = 0;
		/* told once: the client ends */
		if (n > 0 && leapt >= LEAPS)
			shutdown(fd, SHUT_WR);
	} while (n > 0 || (n < 0 && errno == EINTR));
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	report("leapt", leapt, n < 0 ? errno : 0);
	return 0;
}

/* A piece at a time, with pauses, until the other end has had enough. */
static int pausing_writer(void)
{
	static const uint8_t piece[PIECE];
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int err = 0;

	while (!err && !poll(&p, 1, 0)) {
		if (send(fd, piece, PIECE, MSG_NOSIGNAL) < 0)
			err = errno;
		usleep(20);
	}
	shutdown(fd, SHUT_WR);
	report("paused", 0, err);
	return 0;
}

static void writer(void)
{
	uint64_t piece[WORDS], i = 0, sent = 0;
	int err = 0, k;

	while (!err && (i % 4096 || !told())) {
		size_t done = 0;

		for (k = 0; k < (int)WORDS; k++)
			piece[k] = word(i * WORDS + (uint64_t)k, client);
		while (done < PIECE && !err) {
			ssize_t n = send(fd, (uint8_t *)piece + done, PIECE - done, MSG_NOSIGNAL);

			if (n > 0)
				done += (size_t)n;
			else
				err = n ? errno : EIO;
		}
		sent += done;
		i++;
	}
	shutdown(fd, SHUT_WR);
	report("sent", sent, err);
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int duplex = argc > 1 && !strcmp(argv[argc - 1], "duplex"), l;
	pthread_t t;

	client = argc > 2 && !strcmp(argv[1], "client");
	jumps = argc > 1 && !strcmp(argv[argc - 1], "jump");
	leaps = argc > 1 && !strcmp(argv[argc - 1], "leap");
	if (client) {
		a.sin_port = htons((uint16_t)atoi(argv[2]));
		fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&a, len))
			return 2;
		/* turns, so that it moves */
		for (int i = 0; leaps && i < 8; i++)
			if (write(fd, &i, 1) != 1 || read(fd, &i, 1) != 1)
				return 2;
	} else {
		l = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(l, (struct sockaddr *)&a, len) || listen(l, 1) || getsockname(l, (struct sockaddr *)&a, &len))
			return 2;
		printf("%u\n", ntohs(a.sin_port));
		fflush(stdout);
		fd = accept(l, NULL, NULL);
		for (int i = 0; leaps && i < 8; i++)
			if (read(fd, &i, 1) != 1 || write(fd, &i, 1) != 1)
				return 2;
	}
	if (duplex) {
		if (pthread_create(&t, NULL, reader, NULL))
			return 2;
		writer();
		pthread_join(t, NULL);
	} else if (leaps) {
		return client ? pausing_writer() : leaping_reader();
	} else if (client && jumps) {
		return jumping_writer();
	} else if (client) {
		writer();
	} else {
		reader(NULL);
	}
	return 0;
}
