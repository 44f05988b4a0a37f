/* SPDX-License-Identifier: BSD-2-Clause */
/* How a program waits for its turn: blocking calls, threads, or any of the readiness calls. */
#include "xrt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

int __poll_chk(struct pollfd *fds, nfds_t nfds, int timeout, size_t fdslen);

/* A wait that a program of ours can never need: longer means a lost wake-up. */
static int stall_s;

void wait_patience(int seconds)
{
	stall_s = seconds;
}

struct waiter {
	const char *name;
	void (*run)(const struct waiter *w, struct conn *c, int n);
	int (*sleep)(struct pollfd *p, int n); /* poll family */
	uint32_t flags;			       /* epoll family */
	int variant;
};

static void stalled(struct conn *c, int n)
{
	for (int i = 0; i < n; i++)
		if (!conn_done(&c[i]))
			conn_fail(&c[i], "stalled", ETIMEDOUT, c[i].rx_off);
}

/* Blocking calls, one connection after the other; receives whenever it may not send. */
static void run_block(const struct waiter *w, struct conn *c, int n)
{
	(void)w;
	for (int i = 0; i < n; i++)
		while (!conn_done(&c[i]))
			if (conn_tx(&c[i]) == 0)
				conn_rx(&c[i]);
}

static void *writer(void *arg)
{
	struct conn *c = arg;

	while (!c->tx_shut && !c->bad_op) {
		if (conn_tx(c))
			continue;
		pthread_mutex_lock(&c->lock);
		while (!conn_may_tx(c) && !c->rx_eof && !c->bad_op && c->tx_off != c->tx_total)
			pthread_cond_wait(&c->turned, &c->lock);
		/* The last byte of a half-close server's answer may be no byte at all. */
		while (c->tx_off == c->tx_total && !c->rx_eof && !c->bad_op && !c->o->client &&
		       !strcmp(c->o->proto, "halfclose"))
			pthread_cond_wait(&c->turned, &c->lock);
		pthread_mutex_unlock(&c->lock);
	}
	return NULL;
}

static void *reader(void *arg)
{
	struct conn *c = arg;

	while (!c->rx_eof && !c->bad_op)
		conn_rx(c);
	pthread_mutex_lock(&c->lock);
	pthread_cond_broadcast(&c->turned);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* One reader and one writer for each connection. */
static void run_threads(const struct waiter *w, struct conn *c, int n)
{
	pthread_t *t = calloc(2 * n, sizeof(*t));

	(void)w;
	for (int i = 0; i < n; i++) {
		pthread_create(&t[2 * i], NULL, reader, &c[i]);
		pthread_create(&t[2 * i + 1], NULL, writer, &c[i]);
	}
	for (int i = 0; i < 2 * n; i++)
		pthread_join(t[i], NULL);
	free(t);
}

static int sleep_poll(struct pollfd *p, int n)
{
	return poll(p, n, stall_s * 1000);
}

static int sleep_poll_chk(struct pollfd *p, int n)
{
	return __poll_chk(p, n, stall_s * 1000, n * sizeof(*p));
}

static int sleep_ppoll(struct pollfd *p, int n)
{
	struct timespec t = { .tv_sec = stall_s };
	sigset_t none;

	sigemptyset(&none);
	return ppoll(p, n, &t, &none);
}

static int select_any(struct pollfd *p, int n, int variant)
{
	struct timeval tv = { .tv_sec = stall_s };
	struct timespec ts = { .tv_sec = stall_s };
	fd_set r, w, x;
	int max = -1, got;

	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_ZERO(&x);
	for (int i = 0; i < n; i++) {
		if (p[i].fd < 0)
			continue;
		if (p[i].events & POLLIN)
			FD_SET(p[i].fd, &r);
		if (p[i].events & POLLOUT)
			FD_SET(p[i].fd, &w);
		FD_SET(p[i].fd, &x);
		max = p[i].fd > max ? p[i].fd : max;
	}
	if (variant)
		got = pselect(max + 1, &r, &w, &x, &ts, NULL);
	else
		got = select(max + 1, &r, &w, &x, &tv);
	for (int i = 0; i < n && got > 0; i++) {
		p[i].revents = 0;
		if (p[i].fd < 0)
			continue;
		if (FD_ISSET(p[i].fd, &r))
			p[i].revents |= POLLIN;
		if (FD_ISSET(p[i].fd, &w))
			p[i].revents |= POLLOUT;
		if (FD_ISSET(p[i].fd, &x))
			p[i].revents |= POLLPRI;
	}
	return got;
}

static int sleep_select(struct pollfd *p, int n)
{
	return select_any(p, n, 0);
}

static int sleep_pselect(struct pollfd *p, int n)
{
	return select_any(p, n, 1);
}

static short interest(const struct conn *c)
{
	bool out = conn_may_tx(c) ||
		   (!c->tx_shut && c->tx_off == c->tx_total &&
		    (c->o->client || c->rx_eof || strcmp(c->o->proto, "halfclose")));

	return (c->rx_eof ? 0 : POLLIN) | (out ? POLLOUT : 0);
}

static bool nonblock(struct conn *c, int n)
{
	for (int i = 0; i < n; i++)
		if (fcntl(c[i].fd, F_SETFL, fcntl(c[i].fd, F_GETFL) | O_NONBLOCK))
			return false;
	return true;
}

/* One false readiness in a row may be a race; a hundred is a program that burns its core. */
#define FALSE_MAX 100

static void step(struct conn *c, bool in, bool out)
{
	int moved = 0;

	if (in)
		moved |= conn_rx(c);
	if (out && !conn_done(c))
		moved |= conn_tx(c);
	c->false_wakes = moved ? 0 : c->false_wakes + 1;
	if (c->false_wakes > FALSE_MAX)
		conn_fail(c, "false-readiness", EPROTO, c->rx_off);
}

static void run_poll(const struct waiter *w, struct conn *c, int n)
{
	struct pollfd *p = calloc(n, sizeof(*p));
	int left = n;

	if (!nonblock(c, n))
		conn_fail(c, "fcntl", errno, 0);
	for (;;) {
		int got;

		left = 0;
		for (int i = 0; i < n; i++) {
			bool done = conn_done(&c[i]);

			p[i] = (struct pollfd){ .fd = done ? -1 : c[i].fd,
						.events = done ? 0 : interest(&c[i]) };
			left += !done;
		}
		if (!left)
			break;
		got = w->sleep(p, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			stalled(c, n);
			break;
		}
		for (int i = 0; i < n; i++) {
			if (p[i].fd < 0 || !p[i].revents)
				continue;
			if (p[i].revents & (POLLNVAL | POLLPRI))
				conn_fail(&c[i], "revents", EPROTO, c[i].rx_off);
			step(&c[i], p[i].revents & (POLLIN | POLLHUP | POLLERR) && !c[i].rx_eof,
			     p[i].revents & (POLLOUT | POLLERR));
		}
	}
	free(p);
}

static int epoll_sleep(const struct waiter *w, int ep, struct epoll_event *ev, int max)
{
	struct timespec t = { .tv_sec = stall_s };
	sigset_t none;

	sigemptyset(&none);
	if (w->variant == 1)
		return epoll_pwait(ep, ev, max, stall_s * 1000, &none);
	if (w->variant == 2)
		return epoll_pwait2(ep, ev, max, &t, &none);
	return epoll_wait(ep, ev, max, stall_s * 1000);
}

/* Interest follows need under level trigger and one-shot; edge trigger is set once, for all. */
static int epoll_arm(const struct waiter *w, int ep, struct conn *c, struct conn *base)
{
	uint32_t want = w->flags & EPOLLET ? EPOLLIN | EPOLLOUT | EPOLLRDHUP : (uint32_t)interest(c);
	struct epoll_event ev = { .events = want | w->flags, .data.u64 = c - base };

	if (c->armed == ev.events && !(w->flags & EPOLLONESHOT))
		return 0;
	if (epoll_ctl(ep, c->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &ev)) {
		conn_fail(c, "epoll_ctl", errno, c->rx_off);
		return -1;
	}
	c->armed = ev.events;
	return 0;
}

static void drain_edge(struct conn *c)
{
	int moved;

	do {
		moved = 0;
		if (!conn_done(c))
			moved |= conn_rx(c) > 0;
		if (!conn_done(c))
			moved |= conn_tx(c) > 0;
	} while (moved && !conn_done(c));
}

static void run_epoll(const struct waiter *w, struct conn *c, int n)
{
	struct epoll_event ev[16];
	int ep = epoll_create1(EPOLL_CLOEXEC), left = n;

	if (ep < 0 || !nonblock(c, n))
		conn_fail(c, "epoll_create1", errno, 0);
	for (int i = 0; i < n; i++)
		epoll_arm(w, ep, &c[i], c);
	while (left) {
		int got = epoll_sleep(w, ep, ev, 16);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			stalled(c, n);
			break;
		}
		for (int i = 0; i < got; i++) {
			struct conn *k = &c[ev[i].data.u64 < (uint64_t)n ? ev[i].data.u64 : 0];

			if (ev[i].data.u64 >= (uint64_t)n)
				conn_fail(k, "epoll-data", EPROTO, k->rx_off);
			if (conn_done(k))
				continue;
			if (w->flags & EPOLLET)
				drain_edge(k);
			else
				step(k, ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !k->rx_eof,
				     ev[i].events & (EPOLLOUT | EPOLLERR));
			if (conn_done(k)) {
				if (epoll_ctl(ep, EPOLL_CTL_DEL, k->fd, NULL))
					conn_fail(k, "epoll_ctl-del", errno, k->rx_off);
				left--;
			} else {
				epoll_arm(w, ep, k, c);
			}
		}
	}
	close(ep);
}

static const struct waiter waiters[] = {
	{ .name = "block", .run = run_block },
	{ .name = "threads", .run = run_threads },
	{ .name = "poll", .run = run_poll, .sleep = sleep_poll },
	{ .name = "poll_chk", .run = run_poll, .sleep = sleep_poll_chk },
	{ .name = "ppoll", .run = run_poll, .sleep = sleep_ppoll },
	{ .name = "select", .run = run_poll, .sleep = sleep_select },
	{ .name = "pselect", .run = run_poll, .sleep = sleep_pselect },
	{ .name = "epoll", .run = run_epoll },
	{ .name = "epollet", .run = run_epoll, .flags = EPOLLET },
	{ .name = "oneshot", .run = run_epoll, .flags = EPOLLONESHOT },
	{ .name = "epoll_pwait", .run = run_epoll, .variant = 1 },
	{ .name = "epoll_pwait2", .run = run_epoll, .variant = 2 },
};

int wait_find(const char *name)
{
	for (size_t i = 0; i < sizeof(waiters) / sizeof(*waiters); i++)
		if (!strcmp(waiters[i].name, name))
			return 0;
	return -ENOENT;
}

void wait_run(const char *name, struct conn *c, int n)
{
	for (size_t i = 0; i < sizeof(waiters) / sizeof(*waiters); i++)
		if (!strcmp(waiters[i].name, name))
			waiters[i].run(&waiters[i], c, n);
}
