/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xr-pingpong: one TCP connection, four questions.
 *
 *	rtt	how long does a small message take there and back?
 *	stream	how many bytes per second does one flow carry?
 *	rate	how many small sends per second, not batched by the program?
 *	connect	how long does connect() take, and how long until the first answer?
 *
 * The program knows nothing of xrdma: it is measured as it is, over kernel TCP or preloaded.
 * The client tells the server what to do in a hello, runs for a fixed time and half-closes; the
 * server answers the EOF with its own figures and the client prints one JSON object for both
 * ends. What happens in the warm-up (during which a flow may change carrier) is verified but
 * not measured.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meter.h"
#include "pattern.h"
#include "sock.h"

#define PP_MAGIC	0x78722d70706f6e67ull
#define PP_SIZE_MAX	(64u << 20)
#define PP_RECV_MIN	(256u << 10)	/* one-way receivers read with a large buffer */

enum pp_mode { PP_RTT, PP_STREAM, PP_RATE, PP_CONNECT, PP_MODES };
static const char *const mode_names[PP_MODES] = { "rtt", "stream", "rate", "connect" };

enum pp_flag { PP_SPIN = 1, PP_FULL = 2, PP_FIRST = 4, PP_LAST = 8, PP_NODELAY = 16 };

/* Both are sent in host byte order: a peer of the other order fails the magic. */
struct pp_hello {
	uint64_t magic, mode, size, flags, seed, warm_ns, recv_size, pad;
};

struct pp_result {
	uint64_t magic, messages, bytes, ns, cpu_ns, total_bytes, errors, first_bad;
};

static void stop(struct pp_meter *m)
{
	meter_stop(m);
	if (!m->on)
		die("the run ended within its warm-up");
}

static void send_message(int fd, struct pattern *p, uint64_t k)
{
	send_all(fd, pattern_take(p, k), p->size);
	pattern_give(p, k);
}

static void pattern_open(struct pattern *p, uint64_t seed, size_t size)
{
	if (pattern_init(p, seed, size))
		die("out of memory");
}

/* The server's half of rtt: answer every message until EOF. */
static void serve_rtt(int fd, const struct pp_hello *h, struct pp_meter *m, struct check *rx)
{
	uint64_t start = now_ns(), now, k = 0;
	char *buf = xalloc(h->size);
	struct pattern tx;
	size_t n;

	pattern_open(&tx, h->seed + 1, h->size);
	for (;; k++) {
		n = recv_all(fd, buf, h->size, h->flags & PP_SPIN);
		check_feed(rx, buf, n);
		if (n < h->size)
			break;
		send_message(fd, &tx, k);
		if (m->on)
			m->bytes += n;
		else if ((now = now_ns()) - start >= h->warm_ns)
			meter_start(m, now);
	}
	pattern_free(&tx);
	free(buf);
}

/* The server's half of stream and rate: read until EOF, as much at a time as there is. */
static void serve_sink(int fd, const struct pp_hello *h, struct pp_meter *m, struct check *rx)
{
	uint64_t start = now_ns(), now;
	char *buf = xalloc(h->recv_size);
	ssize_t n;

	for (;;) {
		n = recv(fd, buf, h->recv_size, h->flags & PP_SPIN ? MSG_DONTWAIT : 0);
		if (n < 0) {
			if (errno == EINTR || ((h->flags & PP_SPIN) && errno == EAGAIN))
				continue;
			die("recv: %s", strerror(errno));
		}
		if (!n)
			break;
		check_feed(rx, buf, (size_t)n);
		if (m->on)
			m->bytes += (uint64_t)n;
		else if ((now = now_ns()) - start >= h->warm_ns)
			meter_start(m, now);
	}
	free(buf);
}

static void send_result(int fd, const struct pp_hello *h, const struct pp_meter *m,
			const struct check *rx)
{
	struct pp_result r = {
		.magic = PP_MAGIC,
		.messages = h->size ? m->bytes / h->size : 0,
		.bytes = m->bytes,
		.ns = m->t1 - m->t0,
		.cpu_ns = m->cpu1 - m->cpu0,
		.total_bytes = rx->pos,
		.errors = rx->errors,
		.first_bad = rx->first_bad,
	};

	send_all(fd, &r, sizeof(r));
}

/* One connection. @m lives across connections because a connect run is many of them. */
static void serve_one(int fd, struct pp_meter *m)
{
	struct pp_hello h;
	struct pattern expect;
	struct check rx;

	if (recv_all(fd, &h, sizeof(h), false) < sizeof(h))
		return;		/* somebody only knocked */
	if (h.magic != PP_MAGIC || h.mode >= PP_MODES || !h.size || h.size > PP_SIZE_MAX ||
	    !h.recv_size || h.recv_size > PP_SIZE_MAX)
		die("bad hello");
	if (h.flags & PP_NODELAY)
		set_nodelay(fd);
	if (h.mode != PP_CONNECT || (h.flags & PP_FIRST)) {
		memset(m, 0, sizeof(*m));
		if (h.mode == PP_CONNECT)
			meter_start(m, now_ns());
	}
	pattern_open(&expect, h.seed, h.mode == PP_CONNECT ? 8 : h.size);
	check_init(&rx, &expect, h.mode == PP_RTT || (h.flags & PP_FULL));
	if (h.mode == PP_RTT)
		serve_rtt(fd, &h, m, &rx);
	else if (h.mode != PP_CONNECT)
		serve_sink(fd, &h, m, &rx);
	else
		m->bytes += h.size;
	if (h.mode != PP_CONNECT || (h.flags & PP_LAST)) {
		stop(m);
		send_result(fd, &h, m, &rx);
	} else {
		send_all(fd, &h, sizeof(h));
	}
	/* The client closes first, so that no TIME_WAIT is left at the server's port. */
	recv_all(fd, &h, sizeof(h), false);
	pattern_free(&expect);
}

static void run_server(struct sockaddr_in sa)
{
	struct pp_meter meter = { 0 };
	socklen_t len = sizeof(sa);
	int lfd, fd, one = 1;

	lfd = socket(AF_INET, SOCK_STREAM, 0);
	if (lfd < 0)
		die("socket: %s", strerror(errno));
	setsockopt(lfd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(lfd, (struct sockaddr *)&sa, sizeof(sa)) || listen(lfd, 128) ||
	    getsockname(lfd, (struct sockaddr *)&sa, &len))
		die("port %u: %s", ntohs(sa.sin_port), strerror(errno));
	printf("port %u\n", ntohs(sa.sin_port));
	fflush(stdout);
	for (;;) {
		fd = accept(lfd, NULL, NULL);
		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			die("accept: %s", strerror(errno));
		}
		serve_one(fd, &meter);
		close(fd);
	}
}

static void client_rtt(int fd, const struct pp_hello *h, uint64_t run_ns, struct pp_meter *m,
		       struct hist *hist, struct check *rx)
{
	uint64_t start = now_ns(), prev = start, now, end = start + h->warm_ns + run_ns, k = 0;
	char *buf = xalloc(h->size);
	struct pattern tx;

	pattern_open(&tx, h->seed, h->size);
	do {
		send_message(fd, &tx, k++);
		if (recv_all(fd, buf, h->size, h->flags & PP_SPIN) < h->size)
			die("the server closed the connection");
		check_feed(rx, buf, h->size);
		now = now_ns();
		if (m->on) {
			hist_add(hist, now - prev);
			m->bytes += h->size;
		} else if (now - start >= h->warm_ns) {
			meter_start(m, now);
			now = now_ns();
		}
		prev = now;
	} while (now < end);
	pattern_free(&tx);
	free(buf);
}

static void client_source(int fd, const struct pp_hello *h, uint64_t run_ns, struct pp_meter *m)
{
	uint64_t start = now_ns(), now, end = start + h->warm_ns + run_ns, k = 0;
	unsigned int burst = h->size >= 4096 ? 8 : 64, i;	/* sends between two clock reads */
	struct pattern tx;

	pattern_open(&tx, h->seed, h->size);
	do {
		for (i = 0; i < burst; i++)
			send_message(fd, &tx, k++);
		now = now_ns();
		if (m->on)
			m->bytes += burst * h->size;
		else if (now - start >= h->warm_ns)
			meter_start(m, now);
	} while (now < end);
	pattern_free(&tx);
}

/* Returns the last connection, whose answer is the server's result. */
static int client_connect(const struct sockaddr_in *to, struct pp_hello *h, uint64_t run_ns,
			  struct pp_meter *m, struct hist *conn, struct hist *first,
			  struct check *rx)
{
	uint64_t start = now_ns(), end = start + h->warm_ns + run_ns, t0, t1, t2;
	struct pp_hello echo;
	int fd;

	h->flags |= PP_FIRST;
	for (;;) {
		t0 = now_ns();
		if (!m->on && t0 - start >= h->warm_ns) {
			meter_start(m, t0);
			h->flags |= PP_FIRST;	/* the server's meter starts here too */
		}
		if (t0 >= end)
			h->flags |= PP_LAST;
		t0 = now_ns();
		fd = dial(to);
		t1 = now_ns();
		h->pad = t0;			/* every hello is different */
		send_all(fd, h, sizeof(*h));
		if (h->flags & PP_LAST)
			return fd;
		if (recv_all(fd, &echo, sizeof(echo), false) < sizeof(echo) ||
		    memcmp(h, &echo, sizeof(echo)))
			rx->errors++;
		t2 = now_ns();
		close(fd);
		h->flags &= ~(uint64_t)PP_FIRST;
		if (m->on) {
			hist_add(conn, t1 - t0);
			hist_add(first, t2 - t0);
			m->bytes += h->size;
		}
	}
}

static void print_json(const struct pp_hello *h, const struct pp_meter *m, struct pp_result *r,
		       const struct hist *hist, const struct hist *first, const struct check *rx)
{
	double sec = (double)(h->mode == PP_STREAM || h->mode == PP_RATE ? r->ns : m->t1 - m->t0)
		     / 1e9;
	uint64_t bytes = h->mode == PP_STREAM || h->mode == PP_RATE ? r->bytes : m->bytes;

	printf("{\"mode\": \"%s\", \"size\": %llu, \"spin\": %s, \"seed\": %llu, ",
	       mode_names[h->mode], (unsigned long long)h->size,
	       h->flags & PP_SPIN ? "true" : "false", (unsigned long long)h->seed);
	printf("\"seconds\": %.6f, \"messages\": %llu, \"messages_per_s\": %.1f, ", sec,
	       (unsigned long long)(bytes / h->size), (double)bytes / (double)h->size / sec);
	printf("\"gbytes_per_s\": %.4f, ", (double)bytes / 1e9 / sec);
	if (hist->n)
		printf("\"p50_us\": %.3f, \"p99_us\": %.3f, \"mean_us\": %.3f, ",
		       hist_us(hist, .5), hist_us(hist, .99), hist_mean_us(hist));
	if (first->n)
		printf("\"first_answer_p50_us\": %.3f, ", hist_us(first, .5));
	printf("\"cpu_client_s\": %.6f, \"cpu_server_s\": %.6f, ",
	       (double)(m->cpu1 - m->cpu0) / 1e9, (double)r->cpu_ns / 1e9);
	printf("\"verify\": \"%s\", \"errors\": %llu}\n",
	       h->mode == PP_RTT || h->mode == PP_CONNECT || (h->flags & PP_FULL) ? "full" :
	       "first and last word of every message, 1 message in 16 whole",
	       (unsigned long long)(rx->errors + r->errors));
	if (r->errors)
		fprintf(stderr, "xr-pingpong: server: first wrong byte at or after offset %llu\n",
			(unsigned long long)r->first_bad);
	if (rx->errors)
		fprintf(stderr, "xr-pingpong: client: first wrong byte at or after offset %llu\n",
			(unsigned long long)rx->first_bad);
}

static int run_client(const struct sockaddr_in *to, struct pp_hello *h, uint64_t run_ns)
{
	struct hist *hist = xalloc(sizeof(*hist)), *first = xalloc(sizeof(*first));
	struct pp_meter m = { 0 };
	struct pattern expect;
	struct pp_result r;
	struct check rx;
	bool bad;
	int fd;

	pattern_open(&expect, h->seed + 1, h->size);
	check_init(&rx, &expect, true);
	if (h->mode == PP_CONNECT) {
		fd = client_connect(to, h, run_ns, &m, hist, first, &rx);
	} else {
		fd = dial(to);
		if (h->flags & PP_NODELAY)
			set_nodelay(fd);
		send_all(fd, h, sizeof(*h));
		if (h->mode == PP_RTT)
			client_rtt(fd, h, run_ns, &m, hist, &rx);
		else
			client_source(fd, h, run_ns, &m);
	}
	stop(&m);
	if (shutdown(fd, SHUT_WR))
		die("shutdown: %s", strerror(errno));
	if (recv_all(fd, &r, sizeof(r), false) < sizeof(r) || r.magic != PP_MAGIC)
		die("no result from the server");
	close(fd);
	print_json(h, &m, &r, hist, first, &rx);
	bad = rx.errors || r.errors;
	pattern_free(&expect);
	free(hist);
	free(first);
	return bad ? 1 : 0;
}

static _Noreturn void usage(int status)
{
	fputs("usage: xr-pingpong server [--address IPV4] [--port N] [--cpu N]\n"
	      "       xr-pingpong rtt|stream|rate|connect [--address IPV4] --port N [--cpu N]\n"
	      "                   [--size BYTES] [--seconds S] [--warm S] [--seed N] [--spin]\n"
	      "                   [--nodelay] [--recv BYTES] [--full]\n"
	      "The server prints its port; the client prints one JSON object for both ends.\n"
	      "--spin: busy, non-blocking recv at both ends. --full: verify every byte of a\n"
	      "one-way stream; otherwise the first and last word of every message, and one\n"
	      "message in 16 whole.\n", status ? stderr : stdout);
	exit(status);
}

static double number(const char *what, const char *s, double lo, double hi)
{
	char *end;
	double v = strtod(s, &end);

	if (end == s || *end || !(v >= lo && v <= hi))
		die("--%s %s: a number from %g to %g is wanted", what, s, lo, hi);
	return v;
}

int main(int argc, char **argv)
{
	static const struct option opts[] = {
		{ "address", 1, NULL, 'a' }, { "port", 1, NULL, 'p' },
		{ "cpu", 1, NULL, 'c' }, { "size", 1, NULL, 's' },
		{ "seconds", 1, NULL, 't' }, { "warm", 1, NULL, 'w' }, { "seed", 1, NULL, 'S' },
		{ "spin", 0, NULL, 'x' }, { "nodelay", 0, NULL, 'n' }, { "recv", 1, NULL, 'r' },
		{ "full", 0, NULL, 'f' }, { "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct pp_hello h = { .magic = PP_MAGIC, .seed = 1, .mode = PP_MODES };
	double seconds = 2, warm = .3;
	int c, cpu = -1, i;
	uint16_t port = 0;

	while ((c = getopt_long(argc, argv, "", opts, &i)) != -1) {
		switch (c) {
		case 'a':
			if (inet_pton(AF_INET, optarg, &to.sin_addr) != 1)
				die("--address %s: an IPv4 address is wanted", optarg);
			break;
		case 'p': port = (uint16_t)number("port", optarg, 0, 65535); break;
		case 'c': cpu = (int)number("cpu", optarg, 0, CPU_SETSIZE - 1); break;
		case 's': h.size = (uint64_t)number("size", optarg, 1, PP_SIZE_MAX); break;
		case 't': seconds = number("seconds", optarg, .01, 3600); break;
		case 'w': warm = number("warm", optarg, 0, 60); break;
		case 'S': h.seed = (uint64_t)number("seed", optarg, 0, 1e15); break;
		case 'r': h.recv_size = (uint64_t)number("recv", optarg, 1, PP_SIZE_MAX); break;
		case 'x': h.flags |= PP_SPIN; break;
		case 'n': h.flags |= PP_NODELAY; break;
		case 'f': h.flags |= PP_FULL; break;
		case 'h': usage(0);
		default: usage(2);
		}
	}
	if (optind != argc - 1)
		usage(2);
	pin(cpu);
	to.sin_port = htons(port);
	if (!strcmp(argv[optind], "server"))
		run_server(to);
	for (i = 0; i < PP_MODES; i++)
		if (!strcmp(argv[optind], mode_names[i]))
			h.mode = (uint64_t)i;
	if (h.mode == PP_MODES || !port)
		usage(2);
	if (!h.size)
		h.size = h.mode == PP_STREAM ? 65536 : 64;
	if (h.mode == PP_RTT)
		h.flags |= PP_NODELAY;
	if (!h.recv_size)
		h.recv_size = h.mode == PP_STREAM ? h.size : PP_RECV_MIN;
	h.warm_ns = (uint64_t)(warm * 1e9);
	return run_client(&to, &h, (uint64_t)(seconds * 1e9));
}
