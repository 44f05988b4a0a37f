/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that move bytes or wait for them. Data carries a key and a stream offset: see pattern.h. */
#include "pattern.h"
#include "xrsh.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* send FD N FLAGS KEY OFF */
static long c_send(struct call *k)
{
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n + 1);
	long r;
	int e;

	pattern_fill(arg(k, 4), arg(k, 5), b, n);
	if (k->argv[0][0] == 'w')
		r = write(arg(k, 1), b, n);
	else
		r = send(arg(k, 1), b, n, arg(k, 3));
	e = errno;
	free(b);
	errno = e;
	return r;
}

/* sendall FD N FLAGS KEY OFF: until all is sent or a call fails; returns what was sent. */
static long c_sendall(struct call *k)
{
	size_t n = arg(k, 2), done = 0;
	uint8_t *b = malloc(n + 1);
	int e = 0;

	pattern_fill(arg(k, 4), arg(k, 5), b, n);
	while (done < n) {
		ssize_t r = send(arg(k, 1), b + done, n - done, arg(k, 3));

		if (r < 0) {
			e = errno;
			break;
		}
		done += r;
	}
	free(b);
	extra(k, " %d", e);
	return done;
}

static void judge(struct call *k, uint64_t key, uint64_t off, const uint8_t *b, long n)
{
	size_t ok = n > 0 ? pattern_check(key, off, b, n) : 0;

	if (n > 0 && ok != (size_t)n)
		extra(k, " bad@%zu", ok);
	else
		extra(k, " ok");
}

/* recv FD N FLAGS KEY OFF; read FD N - KEY OFF */
static long c_recv(struct call *k)
{
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n + 1);
	long r;
	int e;

	if (k->argv[0][2] == 'a')
		r = read(arg(k, 1), b, n);
	else
		r = recv(arg(k, 1), b, n, arg(k, 3));
	e = errno;
	judge(k, arg(k, 4), arg(k, 5), b, r);
	free(b);
	errno = e;
	return r;
}

/* recvmsg FD N FLAGS KEY OFF: also shows msg_flags and the length of control data. */
static long c_recvmsg(struct call *k)
{
	size_t n = arg(k, 2);
	uint8_t *b = malloc(n + 1);
	struct iovec v[2] = { { b, n / 2 }, { b + n / 2, n - n / 2 } };
	char control[512];
	struct msghdr m = { .msg_iov = v,
			    .msg_iovlen = 2,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	long r = recvmsg(arg(k, 1), &m, arg(k, 3));
	int e = errno;

	judge(k, arg(k, 4), arg(k, 5), b, r);
	extra(k, " %d %zu", r < 0 ? 0 : m.msg_flags, r < 0 ? 0 : (size_t)m.msg_controllen);
	free(b);
	errno = e;
	return r;
}

/* drain FD FLAGS KEY OFF: to end of stream or error; returns the bytes, shows errno (0: end). */
static long c_drain(struct call *k)
{
	static _Thread_local uint8_t b[65536];
	long sum = 0;

	for (;;) {
		ssize_t r = recv(arg(k, 1), b, sizeof(b), arg(k, 2));
		int e = errno;

		if (r <= 0) {
			extra(k, " %d ok", r < 0 ? e : 0);
			return sum;
		}
		if (pattern_check(arg(k, 3), arg(k, 4) + sum, b, r) != (size_t)r) {
			extra(k, " 0 bad@%ld", sum);
			return sum + r;
		}
		sum += r;
	}
}

/* echo FD: send back all that comes, to end of stream */
static long c_echo(struct call *k)
{
	static _Thread_local uint8_t b[65536];
	long sum = 0;
	ssize_t r;

	while ((r = recv(arg(k, 1), b, sizeof(b), 0)) > 0)
		for (ssize_t at = 0; at < r;) {
			ssize_t s = send(arg(k, 1), b + at, r - at, MSG_NOSIGNAL);

			if (s < 0)
				return -1;
			at += s;
			sum += s;
		}
	return r < 0 ? -1 : sum;
}

/* turns FD COUNT SIZE FIRST KEYTX OFFTX KEYRX OFFRX: ping-pong, FIRST sends first */
static long c_turns(struct call *k)
{
	int fd = arg(k, 1), first = arg(k, 4);
	long n = arg(k, 2);
	size_t size = arg(k, 3);
	uint8_t *b = malloc(size);

	for (long i = 0; i < 2 * n; i++) {
		if ((i % 2 == 0) == !!first) {
			pattern_fill(arg(k, 5), arg(k, 6) + i / 2 * size, b, size);
			if (send(fd, b, size, MSG_NOSIGNAL) != (ssize_t)size)
				return -1;
			continue;
		}
		if (recv(fd, b, size, MSG_WAITALL) != (ssize_t)size)
			return -1;
		if (pattern_check(arg(k, 7), arg(k, 8) + i / 2 * size, b, size) != size) {
			errno = EBADMSG;
			return -1;
		}
	}
	free(b);
	return n;
}

/* poll TIMEOUT_MS FD EVENTS ...; ppoll the same, with all signals let through */
static long c_poll(struct call *k)
{
	int n = (k->argc - 2) / 2, e;
	struct pollfd *p = calloc(n + 1, sizeof(*p));
	long ms = arg(k, 1), r;
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	sigset_t none;

	sigemptyset(&none);
	for (int i = 0; i < n; i++)
		p[i] = (struct pollfd){ .fd = arg(k, 2 + 2 * i), .events = arg(k, 3 + 2 * i) };
	if (k->argv[0][1] == 'p')
		r = ppoll(p, n, ms < 0 ? NULL : &t, &none);
	else
		r = poll(p, n, ms);
	e = errno;
	for (int i = 0; i < n; i++)
		extra(k, " %d", p[i].revents);
	free(p);
	errno = e;
	return r;
}

/* select TIMEOUT_US FD BITS ...: 1 read, 2 except, 4 write; shows bits and the time left */
static long c_select(struct call *k)
{
	int n = (k->argc - 2) / 2, max = -1, e;
	long us = arg(k, 1), r;
	struct timeval tv = { us / 1000000, us % 1000000 };
	struct timespec ts = { us / 1000000, us % 1000000 * 1000 };
	fd_set s[3];

	for (int j = 0; j < 3; j++)
		FD_ZERO(&s[j]);
	for (int i = 0; i < n; i++) {
		int fd = arg(k, 2 + 2 * i), bits = arg(k, 3 + 2 * i);

		for (int j = 0; j < 3; j++)
			if (bits >> j & 1)
				FD_SET(fd, &s[j]);
		max = fd > max ? fd : max;
	}
	if (k->argv[0][0] == 'p')
		r = pselect(max + 1, &s[0], &s[2], &s[1], us < 0 ? NULL : &ts, NULL);
	else
		r = select(max + 1, &s[0], &s[2], &s[1], us < 0 ? NULL : &tv);
	e = errno;
	for (int i = 0; i < n; i++) {
		int fd = arg(k, 2 + 2 * i), bits = 0;

		for (int j = 0; j < 3 && r >= 0; j++)
			bits |= !!FD_ISSET(fd, &s[j]) << j;
		extra(k, " %d", bits);
	}
	extra(k, " %ld", us < 0 ? -1 : tv.tv_sec * 1000000 + tv.tv_usec);
	errno = e;
	return r;
}

static long c_epoll_create(struct call *k)
{
	return epoll_create1(arg(k, 1));
}

/* epoll_ctl EP OP FD EVENTS DATA */
static long c_epoll_ctl(struct call *k)
{
	struct epoll_event ev = { .events = arg(k, 4), .data.u64 = arg(k, 5) };

	return epoll_ctl(arg(k, 1), arg(k, 2), arg(k, 3), &ev);
}

/* epoll_wait EP MAX TIMEOUT_MS: shows EVENTS:DATA for each; epoll_pwait, epoll_pwait2 likewise */
static long c_epoll_wait(struct call *k)
{
	struct epoll_event ev[256];
	int max = arg(k, 2) > 256 ? 256 : arg(k, 2), e;
	long ms = arg(k, 3), r;
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	const char *n = k->argv[0];

	if (!strcmp(n, "epoll_pwait2"))
		r = epoll_pwait2(arg(k, 1), ev, max, ms < 0 ? NULL : &t, NULL);
	else if (!strcmp(n, "epoll_pwait"))
		r = epoll_pwait(arg(k, 1), ev, max, ms, NULL);
	else
		r = epoll_wait(arg(k, 1), ev, max, ms);
	e = errno;
	for (int i = 0; i < r; i++)
		extra(k, " %u:%lu", ev[i].events, (unsigned long)ev[i].data.u64);
	errno = e;
	return r;
}

const struct command io_commands[] = {
	{ "send", 5, c_send },
	{ "write", 5, c_send },
	{ "sendall", 5, c_sendall },
	{ "recv", 5, c_recv },
	{ "read", 5, c_recv },
	{ "recvmsg", 5, c_recvmsg },
	{ "drain", 4, c_drain },
	{ "echo", 1, c_echo },
	{ "turns", 8, c_turns },
	{ "poll", 3, c_poll },
	{ "ppoll", 3, c_poll },
	{ "select", 3, c_select },
	{ "pselect", 3, c_select },
	{ "epoll_create", 1, c_epoll_create },
	{ "epoll_ctl", 5, c_epoll_ctl },
	{ "epoll_wait", 3, c_epoll_wait },
	{ "epoll_pwait", 3, c_epoll_wait },
	{ "epoll_pwait2", 3, c_epoll_wait },
	{},
};
