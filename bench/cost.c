/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xr-cost: instructions of a round trip of 64 bytes, to be counted from outside (bench/cost).
 * Both ends are of this one thread, so nothing waits and two runs execute the same: "tcp" is a connection
 * of the program with itself, which the preload object moves to shared memory; "api" is a channel.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "core/xrdma.h"

#define SIZE	64
#define WARM	20000

static void check(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "xr-cost: %s failed\n", what);
	exit(1);
}

static void tcp(unsigned long rounds)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	char buf[SIZE] = { 0 };
	int l = socket(AF_INET, SOCK_STREAM, 0), a = socket(AF_INET, SOCK_STREAM, 0), b;

	check(!bind(l, (struct sockaddr *)&sa, sizeof(sa)) && !listen(l, 1) &&
	      !getsockname(l, (struct sockaddr *)&sa, &len) && !connect(a, (struct sockaddr *)&sa, sizeof(sa)),
	      "connect");
	b = accept(l, NULL, NULL);
	check(b >= 0, "accept");
	for (rounds += WARM; rounds; rounds--) {
		check(send(a, buf, SIZE, 0) == SIZE && recv(b, buf, SIZE, 0) == SIZE &&
		      send(b, buf, SIZE, 0) == SIZE && recv(a, buf, SIZE, 0) == SIZE, "a round trip");
	}
}

static struct xrdma_channel *server, *answering;
static unsigned long got;

static void on_accepted(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	server = ch;
}

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg)
{
	(void)ch;
	(void)msg;
	(void)arg;
	got++;
}

static void on_connected(struct xrdma_channel *ch, void *arg)
{
	(void)ch;
	++*(unsigned long *)arg;
}

/* What is counted between two ends that are there (valgrind --toggle-collect=api_turns). */
static __attribute__((noinline)) void api_turns(struct xrdma_context *a, struct xrdma_channel *ch,
						struct xrdma_context *b, unsigned long rounds)
{
	char buf[SIZE] = { 0 };
	const struct xrdma_msg m = { .data = buf, .len = SIZE };

	check(!xrdma_send_msg(ch, &m), "send");
	for (; rounds; rounds--) {
		unsigned long want = got + 1;

		while (got != want)
			xrdma_polling(b);
		check(!xrdma_send_msg(server, &m), "send");
		while (got != want + 1)
			xrdma_polling(a);
		check(!xrdma_send_msg(ch, &m), "send");
	}
}

/* rests: it comes to rest before; idle: so many channels more between the two, which carry nothing. */
static void api(unsigned long rounds, int rests, unsigned long idle)
{
	static const struct xrdma_callbacks cb = { .accepted = on_accepted, .connected = on_connected,
						   .message = on_message };
	const char *sample = getenv("XRDMA_TRACE_SAMPLE");
	struct xrdma_context *a, *b;
	char name[32];
	struct xrdma_channel *ch, *other;
	unsigned long connected = 0;
	time_t until;

	snprintf(name, sizeof(name), "xr-cost.%d", (int)getpid());
	check(!xrdma_context_create(&a, "shm", &cb, &connected) && !xrdma_context_create(&b, "shm", &cb, NULL) &&
	      !xrdma_listen(b, name) && !xrdma_connect(a, name, &ch), "connect");
	/* as the setting of this name does for connections */
	if (sample)
		check(!xrdma_set_flag(a, "trace_sample", sample) && !xrdma_set_flag(b, "trace_sample", sample),
		      "xrdma_set_flag");
	while (!server || !connected) {
		xrdma_polling(a);
		xrdma_polling(b);
	}
	/* the pair was accepted first, and on_accepted() tells of the last */
	answering = server;
	while (idle--) {
		unsigned long want = connected + 1;

		server = NULL;
		check(!xrdma_connect(a, name, &other), "connect");
		while (!server || connected != want) {
			xrdma_polling(a);
			xrdma_polling(b);
		}
	}
	server = answering;
	/* without traffic all of them come to rest, the one that will have some, too */
	for (until = rests ? time(NULL) + 3 : 0; time(NULL) < until; usleep(10000)) {
		xrdma_process_event(a);
		xrdma_process_event(b);
	}
	api_turns(a, ch, b, rounds + WARM);
	xrdma_context_destroy(a);
	xrdma_context_destroy(b);
}

int main(int argc, char **argv)
{
	unsigned long rounds = argc >= 3 ? strtoul(argv[2], NULL, 10) : 0;

	if (rounds && !strcmp(argv[1], "tcp"))
		tcp(rounds);
	else if (rounds && !strcmp(argv[1], "api"))
		api(rounds, argc == 4, argc == 4 ? strtoul(argv[3], NULL, 10) : 0);
	else
		fprintf(stderr, "usage: xr-cost tcp|api ROUNDS [IDLE]\n");
	return rounds ? 0 : 2;
}
