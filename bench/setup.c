/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xr-setup: how long it takes to make a channel, with a new queue pair and with one that was used before.
 * Both ends are contexts of this one thread, over the shm device or the one that is asked for; a channel is made when
 * both programs know of it.  Over a network, what is new is new altogether: each round goes to another port, the way to
 * which is not known; and what is kept has waited long enough to be used.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/xrdma.h"
#include "setup_parts.h"

static struct xrdma_context *server, *client;
static uint32_t accepted, connected, ended, failed;
static uint64_t *sample, *begun, nsample;
static const char *device = "shm", *at;
static char name[80];

#define PLACES	32u		/* more than a device remembers */
#define QUARANTINE_US 200000u

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* What other programs take of the machine is not in it. */
static uint64_t cpu(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void on_accepted(struct xrdma_channel *ch, void *arg)
{
	(void)ch;
	(void)arg;
	accepted++;
}

static void on_connected(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	sample[nsample++] = now() - *(uint64_t *)xrdma_get_user(ch);
	connected++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	(void)ch;
	(void)arg;
	failed += error != 0;
	ended++;
}

/* The kernel's share of connections over a network is done on this processor, too: it is left to it. */
static void turn(void)
{
	struct pollfd p[2] = { { xrdma_get_event_fd(client), POLLIN, 0 },
			       { xrdma_get_event_fd(server), POLLIN, 0 } };

	if (!at) {
		xrdma_polling(client);
		xrdma_polling(server);
	} else if (!(xrdma_process_event(client) | xrdma_process_event(server))) {
		poll(p, 2, 10);
	}
}

static void go_to(uint32_t place)
{
	const char *port = at ? strrchr(at, ':') : NULL;

	if (port)
		snprintf(name, sizeof(name), "%.*s:%u", (int)(port - at), at,
			 (uint32_t)atoi(port + 1) + place % PLACES);
}

static uint64_t made_cpu;

/* Makes `many` channels at once, and ends them; ns that it took until all were made. */
static uint64_t round_of(uint32_t many)
{
	struct xrdma_channel **ch = calloc(many, sizeof(*ch));
	struct xrdma_context_stats s[2];
	uint64_t start = now(), start_cpu = cpu(), took;
	uint32_t i;
	int r;

	if (!ch)
		abort();
	accepted = connected = ended = 0;
	for (i = 0; i < many; i++) {
		begun[i] = now();
		r = xrdma_connect(client, name, &ch[i]);
		if (r) {
			fprintf(stderr, "xr-setup: cannot connect: %s\n", strerror(-r));
			exit(1);
		}
		xrdma_set_user(ch[i], &begun[i]);
	}
	while ((accepted < many || connected < many) && !failed)
		turn();
	took = now() - start;
	made_cpu += cpu() - start_cpu;
	for (i = 0; i < many && !failed; i++)
		xrdma_close(ch[i]);
	do {
		turn();
		xrdma_get_context_stats(client, &s[0]);
		xrdma_get_context_stats(server, &s[1]);
	} while ((s[0].channels || s[1].channels) && !failed);
	free(ch);
	if (failed) {
		fprintf(stderr, "xr-setup: a channel ended with an error\n");
		exit(1);
	}
	return took;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void measure(uint32_t many, uint32_t rounds, uint32_t cache, int json)
{
	struct xrdma_context_stats s;
	uint64_t took = 0, hits, whole;
	uint32_t i;

	if (xrdma_set_option(client, XRDMA_OPT_QP_CACHE, cache) || xrdma_set_option(server, XRDMA_OPT_QP_CACHE, cache))
		abort();
	/* what is made once: the link, memory, and the queue pairs that are kept, of which most are in quarantine */
	go_to(0);
	for (i = 0; i < 2; i++)
		round_of(at && many < 100 && cache ? 100 : many);
	if (at && cache)
		usleep(QUARANTINE_US);
	nsample = 0;
	made_cpu = 0;
	xrdma_get_context_stats(client, &s);
	hits = s.qp_hits;
	whole = now();
	for (i = 0; i < rounds; i++) {
		if (!cache)
			go_to(i + 1);
		took += round_of(many);
		if (at && cache && many > 1)
			usleep(QUARANTINE_US);
	}
	whole = now() - whole;
	xrdma_get_context_stats(client, &s);
	qsort(sample, nsample, sizeof(*sample), compare);
	printf(json ? "{\"at_once\": %u, \"cache\": %u, \"channels\": %lu, \"p50_us\": %.1f, \"p99_us\": %.1f, "
		      "\"made_per_s\": %.0f, \"made_per_cpu_s\": %.0f, \"made_and_ended_per_s\": %.0f, "
		      "\"hits\": %lu}\n" :
		      "%4u at once, cache %4u: %6lu channels, p50 %8.1f us, p99 %8.1f us, %7.0f made per s, "
		      "%7.0f per s of CPU, %7.0f made and ended per s, %lu hits\n",
	       many, cache, (unsigned long)nsample, (double)sample[nsample / 2] / 1000,
	       (double)sample[nsample * 99 / 100] / 1000, (double)nsample * 1e9 / (double)took,
	       (double)nsample * 1e9 / (double)made_cpu,
	       (double)nsample * 1e9 / (double)whole, (unsigned long)(s.qp_hits - hits));
}

int main(int argc, char **argv)
{
	static const struct xrdma_callbacks callbacks = { .accepted = on_accepted, .connected = on_connected,
							  .closed = on_closed };
	static const uint32_t at_once[] = { 1, 100, 1000 };
	uint32_t channels = 10000, window = 0, most = 1000, k;
	int c, json = 0, parts = 0;
	size_t i;

	while ((c = getopt(argc, argv, "a:d:m:n:pw:j")) != -1) {
		switch (c) {
		case 'a': at = optarg; break;
		case 'd': device = optarg; break;
		case 'm': most = (uint32_t)atoi(optarg); break;
		case 'n': channels = (uint32_t)atoi(optarg); break;
		case 'p': parts = 1; break;
		case 'w': window = (uint32_t)atoi(optarg); break;
		case 'j': json = 1; break;
		default: c = -2; break;
		}
		if (c == -2)
			break;
	}
	if (c == -2 || optind != argc || !most || most > 1000 || channels < most) {
		fprintf(stderr, "usage: xr-setup [-d DEVICE -a NAME] [-m MOST] [-n CHANNELS] [-w WINDOW] [-p] [-j]\n"
			"  -d  a device that is not shm, -a  what is listened to there, and connected to\n"
			"  -n  channels per line (10000)   -m  at once, at most (1000)\n"
			"  -w  XRDMA_OPT_WINDOW_MSGS       -j  JSON\n"
			"  -p  the parts: queue pair, memory, connection\n");
		return 2;
	}
	sample = calloc(channels + 1000, sizeof(*sample));
	begun = calloc(1000, sizeof(*begun));
	snprintf(name, sizeof(name), "xr-setup.%d", (int)getpid());
	if (parts)
		return setup_parts(device, at, most, json);
	go_to(0);
	if (!sample || !begun || xrdma_context_create(&server, device, &callbacks, NULL) ||
	    xrdma_context_create(&client, device, &callbacks, NULL)) {
		fprintf(stderr, "xr-setup: no context\n");
		return 1;
	}
	for (k = 0; k < (at ? PLACES : 1); k++) {
		go_to(k);
		if (xrdma_listen(server, name)) {
			fprintf(stderr, "xr-setup: cannot listen to %s\n", name);
			return 1;
		}
	}
	if (window && (xrdma_set_option(client, XRDMA_OPT_WINDOW_MSGS, window) ||
		       xrdma_set_option(server, XRDMA_OPT_WINDOW_MSGS, window))) {
		fprintf(stderr, "xr-setup: a window of %u is out of range\n", window);
		return 2;
	}
	for (i = 0; i < sizeof(at_once) / sizeof(at_once[0]) && at_once[i] <= most; i++) {
		measure(at_once[i], channels / at_once[i], 0, json);
		measure(at_once[i], channels / at_once[i], 4096, json);
	}
	return xrdma_context_destroy(client) || xrdma_context_destroy(server);
}
