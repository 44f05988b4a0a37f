/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xr-memory: what a channel holds at rest, in use, and at rest again; beside a design that has one receive of the
 * largest message for each one that may be sent ahead, and beside kernel TCP.
 * Both ends are contexts of this one thread over the shm device, and copy, as a network makes them.
 */
#include <getopt.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "core/xrdma.h"

#define MOST 1800u

static struct xrdma_context *server, *client;
static struct xrdma_channel *ch[MOST];
static uint32_t accepted, received;
static char name[64];
static uint8_t data[65536];

static void on_accepted(struct xrdma_channel *c, void *arg)
{
	(void)c;
	(void)arg;
	accepted++;
}

static void on_message(struct xrdma_channel *c, const struct xrdma_msg *m, void *arg)
{
	(void)c;
	(void)m;
	(void)arg;
	received++;
}

static void turn(void)
{
	xrdma_polling(client);
	xrdma_polling(server);
}

static long value(const char *file, const char *key)
{
	char line[256];
	FILE *f = fopen(file, "r");
	long v = -1;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			v = atol(line + strlen(key));
	if (f)
		fclose(f);
	return v;
}

struct held {
	double receives, heap, shared;	/* bytes of one end of one channel */
};

static size_t heap_before;
static long shared_before;

static struct held held(uint32_t n)
{
	struct xrdma_context_stats s;
	struct mallinfo2 m = mallinfo2();
	struct held h;

	xrdma_get_context_stats(server, &s);
	h.receives = (double)s.recv_bytes / n;
	h.heap = (double)(m.uordblks + m.hblkhd - heap_before) / n / 2;
	h.shared = (double)(value("/proc/self/smaps_rollup", "Pss_Shmem:") - shared_before) * 1024 / n / 2;
	return h;
}

/* A burst of `count` messages of len bytes on every channel. */
static void traffic(uint32_t n, uint32_t count, size_t len)
{
	struct xrdma_msg m = { .data = data, .len = len };
	uint32_t i, k;

	received = 0;
	for (i = 0; i < n; i++)
		for (k = 0; k < count; k++)
			while (xrdma_send_msg(ch[i], &m))
				turn();
	while (received < n * count)
		turn();
}

static void rest(void)
{
	struct timespec ts = { 0, 1000000 };
	struct xrdma_context_stats s;
	uint64_t last = UINT64_MAX;
	int same = 0;

	while (same < 300) {
		nanosleep(&ts, NULL);
		xrdma_process_event(client);
		xrdma_process_event(server);
		xrdma_get_context_stats(server, &s);
		same = s.recv_bytes == last ? same + 1 : 0;
		last = s.recv_bytes;
	}
}

/* Kernel memory of one end of an idle TCP connection over loopback, by what all slabs grow; 0: not to be seen. */
static double tcp_idle(uint32_t n)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	long before = value("/proc/meminfo", "Slab:"), after;
	socklen_t len = sizeof(sa);
	int *fd = calloc(2 * n, sizeof(*fd)), l = socket(AF_INET, SOCK_STREAM, 0);
	uint32_t i = 0;

	if (fd && l >= 0 && !bind(l, (struct sockaddr *)&sa, len) && !listen(l, 128) &&
	    !getsockname(l, (struct sockaddr *)&sa, &len)) {
		for (i = 0; i < n; i++) {
			fd[2 * i] = socket(AF_INET, SOCK_STREAM, 0);
			if (fd[2 * i] < 0 || connect(fd[2 * i], (struct sockaddr *)&sa, len))
				break;
			fd[2 * i + 1] = accept(l, NULL, NULL);
		}
	}
	after = value("/proc/meminfo", "Slab:");
	while (fd && i) {
		i--;
		close(fd[2 * i]);
		close(fd[2 * i + 1]);
	}
	free(fd);
	close(l);
	return before < 0 || after <= before ? 0 : (double)(after - before) * 1024 / n / 2;
}

static void line(int json, const char *when, struct held h)
{
	double pure = 64.0 * sizeof(data);

	if (json)
		printf("{\"when\": \"%s\", \"receives\": %.0f, \"heap\": %.0f, \"shared\": %.0f, "
		       "\"one_per_slot\": %.0f}\n", when, h.receives, h.heap, h.shared, pure);
	else
		printf("%-28s %8.0f %8.0f %8.0f %10.0f %7.1f%%\n", when, h.receives, h.heap, h.shared, pure,
		       100 * (1 - h.receives / pure));
}

int main(int argc, char **argv)
{
	static const struct xrdma_callbacks callbacks = { .accepted = on_accepted, .message = on_message };
	struct rlimit files;
	uint32_t n = 500, i;
	int c, json = 0;
	double tcp;

	while ((c = getopt(argc, argv, "n:j")) != -1) {
		if (c == 'n')
			n = (uint32_t)atoi(optarg);
		else if (c == 'j')
			json = 1;
		else
			n = 0;
	}
	if (!n || n > MOST || optind != argc) {
		fprintf(stderr, "usage: xr-memory [-n CHANNELS] [-j]\n  -n  1..%u (500)   -j  JSON\n", MOST);
		return 2;
	}
	if (getrlimit(RLIMIT_NOFILE, &files))
		return 1;
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur < 8 * n)
		n = n < 200 ? n : 200;
	snprintf(name, sizeof(name), "xr-memory.%d", (int)getpid());
	if (xrdma_context_create(&server, "shm", &callbacks, NULL) ||
	    xrdma_context_create(&client, "shm", &callbacks, NULL) || xrdma_listen(server, name) ||
	    xrdma_set_option(server, XRDMA_OPT_COPY, 1) || xrdma_set_option(client, XRDMA_OPT_COPY, 1) ||
	    xrdma_set_option(server, XRDMA_OPT_POOL_BYTES, 4ull << 30) ||
	    xrdma_set_option(server, XRDMA_OPT_REST_MS, 100) || xrdma_set_option(client, XRDMA_OPT_REST_MS, 100)) {
		fprintf(stderr, "xr-memory: no context\n");
		return 1;
	}
	heap_before = mallinfo2().uordblks + mallinfo2().hblkhd;
	shared_before = value("/proc/self/smaps_rollup", "Pss_Shmem:");
	for (i = 0; i < n; i++) {
		if (xrdma_connect(client, name, &ch[i])) {
			fprintf(stderr, "xr-memory: cannot connect\n");
			return 1;
		}
		while (accepted <= i)
			turn();
	}
	turn();
	if (!json)
		printf("bytes of one end of a channel (%u channels): receives (part of shared), heap, shared memory;\n"
		       "last: 64 receives of the largest message here, and how much less ours are\n"
		       "%-28s %8s %8s %8s %10s %8s\n", n, "", "receives", "heap", "shared", "per slot", "less");
	line(json, "new", held(n));
	traffic(n, 1, 64);
	line(json, "after a message of 64", held(n));
	traffic(n, 200, 64);
	line(json, "after 200 of 64", held(n));
	traffic(n, 200, 4096);
	line(json, "after 200 of 4 KiB", held(n));
	traffic(n, 20, 65536);
	line(json, "after 20 of 64 KiB", held(n));
	rest();
	line(json, "at rest again", held(n));
	tcp = tcp_idle(n);
	printf(json ? "{\"when\": \"kernel TCP\", \"heap\": %.0f}\n" :
		      "kernel TCP, idle: %.0f bytes of one end, in the kernel (0: not to be seen)\n", tcp);
	return xrdma_context_destroy(client) || xrdma_context_destroy(server);
}
