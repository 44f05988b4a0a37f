/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-ping: the way to a channel, step by step. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "core/key.h"
#include "core/mem.h"
#include "core/reach.h"
#include "ping.h"

static void name_of(const union xr_sockaddr *sa, char *buf, size_t size)
{
	char ip[INET6_ADDRSTRLEN] = "?";
	bool six = sa->sa.sa_family == AF_INET6;

	inet_ntop(sa->sa.sa_family, six ? (const void *)&sa->in6.sin6_addr : &sa->in.sin_addr, ip, sizeof(ip));
	snprintf(buf, size, six ? "[%s]:%u" : "%s:%u", ip, ntohs(six ? sa->in6.sin6_port : sa->in.sin_port));
}

/* --- TCP ------------------------------------------------------------------------------------------ */

static int tcp_one(const struct addrinfo *ai, double wait)
{
	int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r = 0;
	socklen_t len = sizeof(r);
	struct pollfd p = { fd, POLLOUT, 0 };

	if (fd < 0)
		return -errno;
	if (connect(fd, ai->ai_addr, ai->ai_addrlen) && errno != EINPROGRESS)
		r = errno;
	else if (poll(&p, 1, (int)(wait * 1000)) <= 0)
		r = ping_stopped ? EINTR : ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &len);
	if (!r)
		return fd;
	close(fd);
	return -r;
}

static int tcp_connect(struct ping_path *path)
{
	const struct ping_options *opt = path->opt;
	struct addrinfo hints = { .ai_family = opt->family, .ai_socktype = SOCK_STREAM }, *list, *ai;
	uint64_t t;
	int r = getaddrinfo(opt->host, opt->port, &hints, &list), fd = -EHOSTUNREACH;

	if (r) {
		fprintf(stderr, "xr-ping: %s: %s\n", opt->host, gai_strerror(r));
		return -ENOENT;
	}
	for (ai = list; ai && fd < 0; ai = ai->ai_next) {
		t = xr_now_ns();
		fd = tcp_one(ai, opt->wait);
		path->tcp_ns = xr_now_ns() - t;
	}
	freeaddrinfo(list);
	if (fd < 0)
		fprintf(stderr, "xr-ping: %s port %s: %s; is there an xr-ping -l?\n", opt->host, opt->port,
			strerror(-fd));
	return fd;
}

/* --- what the settings say --------------------------------------------------------------------------- */

enum xr_reason ping_policy(const struct ping_options *opt, char fabric, const struct xr_dev_caps *caps)
{
	const struct xr_config *cfg = &opt->cfg;
	enum xr_reason why = xr_config_off(cfg);

	if (why != XR_REASON_NONE || fabric == 's')
		return why;
	why = xr_reach_off(cfg, opt->key_error);
	if (why == XR_REASON_NONE && caps && caps->software && !cfg->rdma_software)
		return XR_REASON_SOFTWARE_DEVICE;
	return why;
}

int ping_meet(const struct ping_options *opt, char fabric, const struct meet_ops *ops, void *arg, struct meet **m)
{
	/* within a host, names are those of the network namespace, and the kernel says who is behind one */
	struct meet_config c = {
		.device = fabric == 's' ? "shm" : opt->cfg.rdma_device,
		.key = opt->key_error ? NULL : opt->key,
		.trust_fabric = fabric == 's' || opt->cfg.rdma_trust == XR_TRUST_FABRIC,
		.compare = fabric != 's' && opt->cfg.rdma_compare,
		.software = 1, .nat = (enum xr_nat)opt->cfg.rdma_nat, .timeout = opt->cfg.rendezvous_timeout,
	};

	return meet_open(m, &c, ops, arg);
}

void ping_fill(uint8_t *p, size_t len, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
	size_t i;

	for (i = 0; i < len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p[i] = (uint8_t)(x >> 24);
	}
}

/* --- the rendezvous ------------------------------------------------------------------------------------ */

static void on_up(void *flow, struct xrdma_channel *ch, const struct meet_result *r)
{
	struct ping_path *path = flow;

	path->up = true;
	path->ch = ch;
	path->met = *r;
}

static void on_failed(void *flow, enum xr_reason why, uint32_t again_ms)
{
	struct ping_path *path = flow;

	(void)again_ms;
	path->why = why;
}

static void on_message(void *flow, struct xrdma_channel *ch, const struct xrdma_msg *msg)
{
	struct ping_path *path = flow;

	(void)ch;
	if (path->offered || msg->len != sizeof(path->offer))
		return;
	memcpy(&path->offer, msg->data, sizeof(path->offer));
	path->offered = !memcmp(path->offer.magic, PING_MAGIC, sizeof(path->offer.magic));
	path->there = (enum xr_reason)path->offer.reason;
}

static void on_sent(void *flow, struct xrdma_channel *ch, uint64_t id)
{
	(void)flow;
	(void)ch;
	(void)id;
}

static void on_done(void *flow, struct xrdma_channel *ch, uint64_t id)
{
	struct ping_path *path = flow;

	(void)ch;
	(void)id;
	path->dones++;
}

static void on_closed(void *flow, struct xrdma_channel *ch, int error)
{
	struct ping_path *path = flow;

	(void)ch;
	path->closed = true;
	path->ch = NULL;
	if (!path->offered)
		path->why = error == -EPROTO ? XR_REASON_BAD_HANDSHAKE : XR_REASON_PEER_REFUSED;
}

static void on_opened(void *arg, struct xrdma_context *ctx)
{
	struct ping_path *path = arg;

	path->ctx = ctx;
	path->have_dev = true;
	path->caps = ctx->caps;
}

static void on_gone(void *arg, struct xrdma_context *ctx)
{
	struct ping_path *path = arg;

	if (path->ctx == ctx)
		path->ctx = NULL;
}

static const struct meet_ops ops = {
	.up = on_up, .failed = on_failed, .message = on_message, .sent = on_sent, .done = on_done,
	.closed = on_closed, .opened = on_opened, .gone = on_gone,
};

/* The other end cannot: it says so in a line. */
static void path_refused(struct ping_path *path, int fd)
{
	char line[80];
	ssize_t n = recv(fd, line, sizeof(line) - 1, MSG_DONTWAIT);
	const size_t hello = sizeof(PING_HELLO) - 1;
	int code;

	if (n < 0 && errno == EAGAIN)
		return;
	path->there = path->why = XR_REASON_PEER_NOT_XRDMA;
	if (n < (ssize_t)hello || memcmp(line, PING_HELLO, hello))
		return;
	line[n] = 0;
	line[strcspn(line, "\n")] = 0;
	code = xr_reason_by_name(line + hello);
	if (code > 0)
		path->there = path->why = (enum xr_reason)code;
}

static int path_meet(struct ping_path *path, int fd, const struct xr_tuple *t)
{
	uint64_t begun = xr_now_ns(), end = begun + (uint64_t)(path->opt->wait * 1e9);
	char line[64];
	int n = snprintf(line, sizeof(line), PING_HELLO "%s\n", path->fabric == 's' ? "shm" : "rdma");
	int r = ping_meet(path->opt, path->fabric, &ops, path, &path->meet);

	if (r)
		return r;
	/* first listen, then ask to be called */
	meet_begin(path->meet, path, t, 1);
	if (path->why == XR_REASON_NONE && send(fd, line, (size_t)n, MSG_NOSIGNAL) != n)
		return -errno;
	while (path->why == XR_REASON_NONE && !path->offered && !ping_stopped) {
		uint64_t now = xr_now_ns();
		int ms = meet_step(path->meet, now);
		struct pollfd p[2] = { { meet_fd(path->meet), POLLIN, 0 }, { path->up ? -1 : fd, POLLIN, 0 } };

		if (path->offered || path->why != XR_REASON_NONE)
			break;
		if (now > end) {
			path->why = XR_REASON_TIMEOUT;
			break;
		}
		poll(p, 2, ms < 0 || ms > 100 ? 100 : ms);
		if (p[1].revents)
			path_refused(path, fd);
	}
	path->meet_ns = xr_now_ns() - begun;
	return path->why != XR_REASON_NONE ? -ECONNREFUSED : ping_stopped ? -EINTR : 0;
}

int ping_path_open(struct ping_path *path)
{
	union xr_sockaddr local, peer;
	struct xr_sock_ident id;
	struct xr_tuple t, far;
	int fd = tcp_connect(path), r;

	if (fd < 0)
		return fd;
	r = xr_tuple_get(fd, &t, &local, &peer);
	if (r) {
		fprintf(stderr, "xr-ping: %s: %s\n", path->opt->host, strerror(-r));
		close(fd);
		return r;
	}
	name_of(&local, path->local, sizeof(path->local));
	name_of(&peer, path->peer, sizeof(path->peer));
	xr_tuple_mirror(&far, &t);
	/* before it is accepted there is no socket that could be found, but its listener says as much */
	path->is_local = !xr_proof_lookup(&far, &id) || !memcmp(t.local, t.peer, sizeof(t.local));
	path->fabric = path->opt->fabric ? (char)path->opt->fabric : path->is_local ? 's' : 'r';
	path->why = path->fabric == 'r' && path->opt->cfg.rdma_trust == XR_TRUST_KEY && path->opt->key_error ?
		    XR_REASON_NO_KEY : XR_REASON_NONE;
	r = path->why == XR_REASON_NONE ? path_meet(path, fd, &t) : -ECONNREFUSED;
	path->here = ping_policy(path->opt, path->fabric, path->have_dev ? &path->caps : NULL);
	close(fd);
	if (r && path->why == XR_REASON_NONE && r != -EINTR) {
		fprintf(stderr, "xr-ping: %s: %s\n", path->opt->host, strerror(-r));
		return r;
	}
	return r ? -ECONNREFUSED : 0;
}

void ping_path_close(struct ping_path *path)
{
	uint64_t end = xr_now_ns() + 200000000ull;

	if (!path->meet)
		return;
	/* a goodbye, so that the other end need not find out */
	meet_cancel(path->meet, path);
	while (path->ctx && path->ctx->channels && xr_now_ns() < end) {
		struct pollfd p = { meet_fd(path->meet), POLLIN, 0 };

		meet_step(path->meet, xr_now_ns());
		poll(&p, 1, 10);
	}
	meet_close(path->meet);
	path->meet = NULL;
}
