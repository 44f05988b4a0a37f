/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-ping -l: the other end. */
#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/mem.h"
#include "ping.h"

#define SERVE_CLIENTS	32u
#define SERVE_SOCKETS	8u
#define SERVE_SPIN_NS	500000u	/* after something happened the next thing is looked for so long */
#define SERVE_WORD_NS	5000000000ull
#define SERVE_RTT_MOST	60000000u	/* us: none was measured */

struct serve;

struct client {
	struct serve *serve;
	int fd;			/* -1: free, unless there is a channel */
	struct meet *meet;	/* asked for, or up; NULL: has not said yet what it wants */
	struct xrdma_channel *ch;
	struct xrdma_mem *mem;
	uint64_t deadline;
	char line[64];
	size_t have;
};

struct serve {
	const struct ping_options *opt;
	struct meet *meet[2];	/* shm, rdma */
	struct xrdma_context *ctx[8];
	uint32_t n_ctx;
	int sock[SERVE_SOCKETS];
	uint32_t n_socks;
	struct client client[SERVE_CLIENTS];
	bool busy;		/* something came in */
};

static void client_end(struct client *c)
{
	if (c->meet)
		meet_cancel(c->meet, c);
	if (c->fd >= 0)
		close(c->fd);
	/* the channel that granted it is closing: its grant goes with that */
	c->fd = -1;
	c->meet = NULL;
	c->ch = NULL;
}

/* Why it came to nothing. */
static void client_refuse(struct client *c, enum xr_reason why)
{
	char line[64];
	int n = snprintf(line, sizeof(line), PING_HELLO "%s\n", xr_reason_name(why));

	if (c->fd >= 0 && send(c->fd, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && c->serve->opt->verbose)
		perror("xr-ping: a client");
	client_end(c);
}

/* --- what comes over the channel ------------------------------------------------------------------------ */

static void on_up(void *flow, struct xrdma_channel *ch, const struct meet_result *r)
{
	struct client *c = flow;
	struct xrdma_context *ctx = xrdma_get_context(ch);
	struct ping_offer o = { .magic = PING_MAGIC, .room = PING_ROOM };
	void *at;

	(void)r;
	c->ch = ch;
	o.reason = ping_policy(c->serve->opt, c->meet == c->serve->meet[0] ? 's' : 'r', &ctx->caps);
	if (c->mem || xrdma_alloc_mem(ctx, PING_ROOM, &c->mem, &at)) {
		client_refuse(c, XR_REASON_LIMIT_MEMORY);
		return;
	}
	ping_fill(at, PING_ROOM, 0);
	if (xrdma_grant(ch, c->mem, at, PING_ROOM, XRDMA_GRANT_READ | XRDMA_GRANT_WRITE, &o.remote) ||
	    xrdma_send_msg(ch, &(struct xrdma_msg){ .data = &o, .len = sizeof(o) }))
		client_refuse(c, XR_REASON_LIMIT_MEMORY);
}

static void on_failed(void *flow, enum xr_reason why, uint32_t again_ms)
{
	struct client *c = flow;

	(void)again_ms;
	c->meet = NULL;
	client_refuse(c, why);
}

static void on_message(void *flow, struct xrdma_channel *ch, const struct xrdma_msg *msg)
{
	struct client *c = flow;
	struct xrdma_msg answer = { .data = msg->data, .len = msg->len };

	c->serve->busy = true;
	if (msg->kind == XRDMA_REQUEST && msg->len <= PING_ROOM && !xrdma_send_response(ch, msg->id, &answer))
		return;
	client_end(c);
}

static void on_sent(void *flow, struct xrdma_channel *ch, uint64_t id)
{
	(void)flow;
	(void)ch;
	(void)id;
}

static void on_closed(void *flow, struct xrdma_channel *ch, int error)
{
	struct client *c = flow;

	(void)ch;
	(void)error;
	c->meet = NULL;
	client_end(c);
}

static void on_opened(void *arg, struct xrdma_context *ctx)
{
	struct serve *s = arg;

	if (s->n_ctx < XR_ARRAY_LEN(s->ctx))
		s->ctx[s->n_ctx++] = ctx;
}

static void on_gone(void *arg, struct xrdma_context *ctx)
{
	struct serve *s = arg;
	uint32_t i;

	for (i = 0; i < s->n_ctx; i++)
		if (s->ctx[i] == ctx)
			s->ctx[i] = s->ctx[--s->n_ctx];
	for (i = 0; i < SERVE_CLIENTS; i++)
		if (s->client[i].mem && s->client[i].mem->ctx == ctx)
			s->client[i].mem = NULL;
}

static const struct meet_ops ops = {
	.up = on_up, .failed = on_failed, .message = on_message, .sent = on_sent, .closed = on_closed,
	.opened = on_opened, .gone = on_gone,
};

/* --- TCP ---------------------------------------------------------------------------------------------- */

static void serve_accept(struct serve *s, int sock)
{
	int fd = accept4(sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	uint32_t i;

	if (fd < 0)
		return;
	for (i = 0; i < SERVE_CLIENTS; i++) {
		struct client *c = &s->client[i];

		/* memory is free when the channel that granted it is gone */
		if (c->mem && !c->ch && !xrdma_dereg_mem(c->mem))
			c->mem = NULL;
		if (c->fd >= 0 || c->ch || c->mem)
			continue;
		*c = (struct client){ .serve = s, .fd = fd, .deadline = xr_now_ns() + SERVE_WORD_NS };
		return;
	}
	close(fd);
}

static void client_begin(struct client *c)
{
	const size_t hello = sizeof(PING_HELLO) - 1;
	const char *want = c->line + hello;
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	struct xr_tuple t;

	if (memcmp(c->line, PING_HELLO, hello) || (strcmp(want, "shm") && strcmp(want, "rdma")) ||
	    xr_tuple_get(c->fd, &t, NULL, NULL)) {
		client_end(c);
		return;
	}
	c->meet = c->serve->meet[!strcmp(want, "rdma")];
	meet_begin(c->meet, c, &t, 0);
	if (!getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) && info.tcpi_min_rtt < SERVE_RTT_MOST)
		meet_tcp(c->meet, c, info.tcpi_min_rtt * 1000ull);
}

/* The first line says what is wanted; after that only the end of the connection matters. */
static void client_read(struct client *c)
{
	ssize_t n = recv(c->fd, c->line + c->have, sizeof(c->line) - 1 - c->have, MSG_DONTWAIT);
	char *end;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0 || c->meet) {
		/* the client closes it when it has its channel */
		if (c->ch) {
			close(c->fd);
			c->fd = -1;
		} else {
			client_end(c);
		}
		return;
	}
	c->have += (size_t)n;
	c->line[c->have] = 0;
	end = strchr(c->line, '\n');
	if (end) {
		*end = 0;
		client_begin(c);
	} else if (c->have == sizeof(c->line) - 1) {
		client_end(c);
	}
}

static int serve_listen(struct serve *s)
{
	const struct ping_options *opt = s->opt;
	struct addrinfo hints = { .ai_family = opt->family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	struct addrinfo *list, *ai;
	int r = getaddrinfo(opt->address, opt->port, &hints, &list), one = 1, error = 0;

	if (r) {
		fprintf(stderr, "xr-ping: %s: %s\n", opt->address ? opt->address : opt->port, gai_strerror(r));
		return -ENOENT;
	}
	for (ai = list; ai && s->n_socks < SERVE_SOCKETS; ai = ai->ai_next) {
		int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (ai->ai_family == AF_INET6)
			setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
		if (bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, 64)) {
			error = errno;
			close(fd);
			continue;
		}
		s->sock[s->n_socks++] = fd;
	}
	freeaddrinfo(list);
	if (s->n_socks)
		return 0;
	fprintf(stderr, "xr-ping: port %s: %s\n", opt->port, strerror(error));
	return -error;
}

/* --- the loop ----------------------------------------------------------------------------------------- */

static int serve_step(struct serve *s, uint64_t now)
{
	int i, ms = -1;

	for (i = 0; i < 2; i++) {
		int t = meet_step(s->meet[i], now);

		if (t >= 0 && (ms < 0 || t < ms))
			ms = t;
	}
	return ms < 0 || ms > 1000 ? 1000 : ms;
}

static void serve_sleep(struct serve *s, int ms)
{
	struct pollfd p[2 + SERVE_SOCKETS + SERVE_CLIENTS];
	uint32_t n = 2, i;

	for (i = 0; i < 2; i++)
		p[i] = (struct pollfd){ meet_fd(s->meet[i]), POLLIN, 0 };
	for (i = 0; i < s->n_socks; i++)
		p[n++] = (struct pollfd){ s->sock[i], POLLIN, 0 };
	for (i = 0; i < SERVE_CLIENTS; i++)
		p[n++] = (struct pollfd){ s->client[i].fd, POLLIN, 0 };
	if (poll(p, n, ms) <= 0)
		return;
	for (i = 0; i < s->n_socks; i++)
		if (p[2 + i].revents)
			serve_accept(s, s->sock[i]);
	for (i = 0; i < SERVE_CLIENTS; i++)
		if (p[2 + s->n_socks + i].revents && p[2 + s->n_socks + i].fd == s->client[i].fd)
			client_read(&s->client[i]);
}

static void serve_expire(struct serve *s, uint64_t now)
{
	uint32_t i;

	for (i = 0; i < SERVE_CLIENTS; i++)
		if (s->client[i].fd >= 0 && !s->client[i].meet && now > s->client[i].deadline)
			client_end(&s->client[i]);
}

int ping_serve(const struct ping_options *opt)
{
	struct serve *s = calloc(1, sizeof(*s));
	uint64_t active = 0, now;
	uint32_t i;
	int r = s ? 0 : -ENOMEM;

	if (s) {
		s->opt = opt;
		for (i = 0; i < SERVE_CLIENTS; i++)
			s->client[i].fd = -1;
		r = ping_meet(opt, 's', &ops, s, &s->meet[0]);
	}
	if (!r)
		r = ping_meet(opt, 'r', &ops, s, &s->meet[1]);
	if (r)
		fprintf(stderr, "xr-ping: %s\n", strerror(-r));
	if (!r)
		r = serve_listen(s);
	if (!r && !opt->quiet) {
		printf("xr-ping listens on port %s\n", opt->port);
		fflush(stdout);
	}
	while (!r && !ping_stopped) {
		now = xr_now_ns();
		if (s->busy)
			active = now;
		s->busy = false;
		if (now - active < SERVE_SPIN_NS) {
			for (i = 0; i < s->n_ctx; i++)
				s->busy |= xrdma_polling(s->ctx[i]) > 0;
			continue;
		}
		serve_sleep(s, serve_step(s, now));
		serve_expire(s, now);
	}
	if (s) {
		for (i = 0; i < 2; i++)
			if (s->meet[i])
				meet_close(s->meet[i]);
		for (i = 0; i < s->n_socks; i++)
			close(s->sock[i]);
		for (i = 0; i < SERVE_CLIENTS; i++)
			if (s->client[i].fd >= 0)
				close(s->client[i].fd);
	}
	free(s);
	return r ? PING_TROUBLE : PING_GOOD;
}
