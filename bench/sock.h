/* SPDX-License-Identifier: BSD-2-Clause */
/* Plain socket calls of the benchmark programs: whatever fails ends the program with one line. */
#ifndef BENCH_SOCK_H
#define BENCH_SOCK_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static inline _Noreturn void die(const char *fmt, ...)
{
	va_list ap;

	fputs("xr-pingpong: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

static inline void *xalloc(size_t n)
{
	void *p = calloc(1, n);

	if (!p)
		die("out of memory");
	return p;
}

static inline void pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("cpu %d: %s", cpu, strerror(errno));
}

static inline void send_all(int fd, const void *buf, size_t len)
{
	const char *p = buf;
	ssize_t n;

	while (len) {
		n = send(fd, p, len, MSG_NOSIGNAL);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			die("send: %s", strerror(errno));
		}
		p += n;
		len -= (size_t)n;
	}
}

/* Returns the bytes read, less than @len only at the end of the stream. */
static inline size_t recv_all(int fd, void *buf, size_t len, bool spin)
{
	int flags = spin ? MSG_DONTWAIT : 0;
	size_t got = 0;
	ssize_t n;

	while (got < len) {
		n = recv(fd, (char *)buf + got, len - got, flags);
		if (n > 0) {
			got += (size_t)n;
			continue;
		}
		if (!n)
			break;
		if (errno != EINTR && !(spin && errno == EAGAIN))
			die("recv: %s", strerror(errno));
	}
	return got;
}

static inline void set_nodelay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY: %s", strerror(errno));
}

static inline int dial(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket: %s", strerror(errno));
	while (connect(fd, (const struct sockaddr *)to, sizeof(*to)))
		if (errno != EINTR)
			die("connect: %s", strerror(errno));
	return fd;
}

#endif
