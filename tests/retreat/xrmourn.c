/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * usage: xrmourn; says {"port": N}, obeys lines of standard input:
 *   connect PORT KEY	a connection; both ends then send and check the stream of KEY for ever
 *   status		says how the connections so far have ended, as JSON
 *
 * For connections whose other end dies: counts endings, and finds bytes that are not the stream.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../e2e/pattern.h"

#define CONNS 256

static struct conn {
	int fd, greeted, id;
	uint64_t key, tx, rx, rng;
	size_t got;		/* of the key */
} conn[CONNS];

static int ep, lfd, open_conns;
static unsigned long eof, reset, broken, other, wrong;
static unsigned long long bytes;

static uint64_t pick(struct conn *c, uint64_t n)
{
	c->rng = c->rng * 6364136223846793005u + 1442695040888963407u;
	return (c->rng >> 33) % n;
}

static void watch(struct conn *c, uint32_t events, int op)
{
	struct epoll_event ev = { .events = events, .data.ptr = c };

	epoll_ctl(ep, op, c->fd, &ev);
}

static struct conn *conn_new(int fd)
{
	for (int i = 0; i < CONNS; i++)
		if (conn[i].fd < 0) {
			conn[i] = (struct conn){ .fd = fd, .id = i, .rng = (uint64_t)fd * 77 + bytes };
			open_conns++;
			return &conn[i];
		}
	exit(3);
}

static void conn_end(struct conn *c, ssize_t n)
{
	if (!n)
		eof++;
	else if (errno == ECONNRESET)
		reset++;
	else if (errno == EPIPE)
		broken++;
	else
		other++;
	close(c->fd);
	c->fd = -1;
	open_conns--;
}

/* 0: go on; else the connection is over. */
static int conn_read(struct conn *c)
{
	static uint8_t buf[65536], want[65536];
	ssize_t n = recv(c->fd, buf, 1 + pick(c, sizeof(buf)), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0) {
		conn_end(c, n);
		return 1;
	}
	pattern_fill(c->key ^ (c->greeted ? 1 : 2), c->rx, want, (size_t)n);
	wrong += memcmp(buf, want, (size_t)n) != 0;
	c->rx += (uint64_t)n;
	bytes += (unsigned long long)n;
	return 0;
}

static int conn_write(struct conn *c)
{
	static uint8_t buf[65536];
	size_t len = 1 + pick(c, pick(c, 4) ? 2000 : sizeof(buf));
	ssize_t n;

	pattern_fill(c->key ^ (c->greeted ? 2 : 1), c->tx, buf, len);
	n = send(c->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n < 0) {
		conn_end(c, n);
		return 1;
	}
	c->tx += (uint64_t)n;
	return 0;
}

static void serve(struct conn *c, uint32_t events)
{
	if (c->got < sizeof(c->key)) { /* accepted: the peer says which stream it is */
		ssize_t n = recv(c->fd, (char *)&c->key + c->got, sizeof(c->key) - c->got, MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			conn_end(c, n);
			return;
		}
		c->got += (size_t)n;
		if (c->got == sizeof(c->key))
			watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
		return;
	}
	if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) && conn_read(c))
		return;
	if (events & EPOLLOUT)
		conn_write(c);
}

static void do_connect(const char *line)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned long long key;
	struct conn *c;
	int port;

	if (fd < 0 || sscanf(line, "connect %d %llu", &port, &key) != 2)
		exit(4);
	to.sin_port = htons((uint16_t)port);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to))) { /* it died first */
		close(fd);
		return;
	}
	c = conn_new(fd);
	c->key = key;
	c->got = sizeof(key);
	c->greeted = 1;
	if (send(fd, &c->key, sizeof(c->key), MSG_NOSIGNAL) != sizeof(c->key)) {
		conn_end(c, -1);
		return;
	}
	watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
}

static void status(void)
{
	printf("{\"open\": %d, \"eof\": %lu, \"reset\": %lu, \"broken\": %lu, \"other\": %lu, "
	       "\"wrong\": %lu, \"bytes\": %llu}\n", open_conns, eof, reset, broken, other, wrong, bytes);
	fflush(stdout);
}

static void orders(void)
{
	static char buf[65536];
	static size_t have;
	ssize_t n = read(STDIN_FILENO, buf + have, sizeof(buf) - 1 - have);
	char *nl;

	if (n <= 0)
		exit(0);
	have += (size_t)n;
	buf[have] = 0;
	while ((nl = strchr(buf, '\n'))) {
		*nl = 0;
		if (!strncmp(buf, "connect", 7))
			do_connect(buf);
		else
			status();
		have -= (size_t)(nl + 1 - buf);
		memmove(buf, nl + 1, have + 1);
	}
}

int main(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct epoll_event ev = { .events = EPOLLIN }, got[64];
	socklen_t len = sizeof(a);

	for (int i = 0; i < CONNS; i++)
		conn[i].fd = -1;
	ep = epoll_create1(EPOLL_CLOEXEC);
	lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (lfd < 0 || bind(lfd, (struct sockaddr *)&a, len) || listen(lfd, 128) ||
	    getsockname(lfd, (struct sockaddr *)&a, &len))
		return 2;
	ev.data.ptr = &lfd;
	epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &ev);
	ev.data.ptr = NULL;
	epoll_ctl(ep, EPOLL_CTL_ADD, STDIN_FILENO, &ev);
	printf("{\"port\": %d}\n", ntohs(a.sin_port));
	fflush(stdout);
	for (;;) {
		int n = epoll_wait(ep, got, 64, -1);

		for (int i = 0; i < n; i++) {
			struct conn *c = got[i].data.ptr;

			if (!c) {
				orders();
			} else if ((void *)c == &lfd) {
				int fd = accept4(lfd, NULL, NULL, SOCK_CLOEXEC);

				if (fd >= 0)
					watch(conn_new(fd), EPOLLIN, EPOLL_CTL_ADD);
			} else if (c->fd >= 0) {
				serve(c, got[i].events);
			}
		}
	}
}
