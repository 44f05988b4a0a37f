/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The two ends of the stream that stands in for a connection.  A TCP connection of the host with
 * itself, so that the program finds a socket of the family, the type and the protocol that it
 * knows, with the options that it has set; where that cannot be had (a network namespace without
 * a loopback device), a local stream.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include "mem.h"
#include "proof.h"
#include "relay.h"

#define PAIR_TRIES	4		/* strangers that connect to the port that is open for us */
#define PAIR_WAIT_NS	100000000	/* for a connection within the host */

/* What the program may have set, and will look for. */
static const struct pair_option {
	int level, name;
} pair_options[] = {
	{ SOL_SOCKET, SO_RCVTIMEO },
	{ SOL_SOCKET, SO_SNDTIMEO },
	{ SOL_SOCKET, SO_RCVLOWAT },
	{ SOL_SOCKET, SO_LINGER },
	{ SOL_SOCKET, SO_KEEPALIVE },
	{ SOL_SOCKET, SO_PRIORITY },
	{ SOL_SOCKET, SO_MARK },
	{ IPPROTO_TCP, TCP_NODELAY },
	{ IPPROTO_TCP, TCP_KEEPIDLE },
	{ IPPROTO_TCP, TCP_KEEPINTVL },
	{ IPPROTO_TCP, TCP_KEEPCNT },
	{ IPPROTO_TCP, TCP_USER_TIMEOUT },
	{ IPPROTO_IP, IP_TOS },
};

/* What the new socket has no use for, or the process no right to, it does without. */
static void pair_like(int near, int fd)
{
	uint64_t value[2];	/* a time is the longest */
	socklen_t len;
	size_t i;

	for (i = 0; i < sizeof(pair_options) / sizeof(*pair_options); i++) {
		const struct pair_option *o = &pair_options[i];

		len = sizeof(value);
		if (!xr_sys5(SYS_getsockopt, fd, o->level, o->name, value, &len))
			xr_sys5(SYS_setsockopt, near, o->level, o->name, value, len);
	}
	/* shared by all duplicates, as it was */
	xr_sys3(SYS_fcntl, near, F_SETFL, xr_sys3(SYS_fcntl, fd, F_GETFL, 0) & O_NONBLOCK);
}

static socklen_t pair_loopback(union xr_sockaddr *a, const union xr_sockaddr *like)
{
	memset(a, 0, sizeof(*a));
	a->sa.sa_family = like->sa.sa_family;
	if (like->sa.sa_family == AF_INET) {
		a->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		return sizeof(a->in);
	}
	a->in6.sin6_addr = in6addr_loopback;
	if (IN6_IS_ADDR_V4MAPPED(&like->in6.sin6_addr)) {
		static const uint8_t mapped[16] = { [10] = 0xff, 0xff, 127, 0, 0, 1 };

		memcpy(&a->in6.sin6_addr, mapped, 16);
	}
	return sizeof(a->in6);
}

static int pair_same(int fd, const union xr_sockaddr *from)
{
	union xr_sockaddr own;
	socklen_t len = sizeof(own);

	if (xr_sys3(SYS_getsockname, fd, &own, &len) || own.sa.sa_family != from->sa.sa_family)
		return 0;
	if (own.sa.sa_family == AF_INET)
		return own.in.sin_port == from->in.sin_port &&
		       own.in.sin_addr.s_addr == from->in.sin_addr.s_addr;
	return own.in6.sin6_port == from->in6.sin6_port &&
	       !memcmp(&own.in6.sin6_addr, &from->in6.sin6_addr, 16);
}

/* The connection that comes from `near`, of all that may have come.  -errno. */
static int pair_accept(int l, int near)
{
	struct timespec ts = { 0, PAIR_WAIT_NS };
	struct pollfd p = { .fd = l, .events = POLLIN };
	union xr_sockaddr from;
	socklen_t len;
	int i;
	long r;

	for (i = 0; i < PAIR_TRIES; i++) {
		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		len = sizeof(from);
		r = xr_sys4(SYS_accept4, l, &from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (r < 0)
			return (int)r;
		if (pair_same(near, &from))
			return (int)r;
		xr_sys1(SYS_close, r);
	}
	return -ECONNREFUSED;
}

static int pair_connect(int l, int near, const union xr_sockaddr *to, socklen_t len)
{
	struct timespec ts = { 0, PAIR_WAIT_NS };
	struct pollfd p = { .fd = near, .events = POLLOUT };
	int r = (int)xr_sys3(SYS_connect, near, to, len);

	if (r == -EINPROGRESS) {
		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		r = 0;
	}
	return r ? r : pair_accept(l, near);
}

static int pair_tcp(int fd, int pair[2])
{
	union xr_sockaddr like, at;
	socklen_t len = sizeof(like);
	int l, near, r, one = 1;

	r = (int)xr_sys3(SYS_getsockname, fd, &like, &len);
	if (r)
		return r;
	if (like.sa.sa_family != AF_INET && like.sa.sa_family != AF_INET6)
		return -EAFNOSUPPORT;
	l = (int)xr_sys3(SYS_socket, like.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
			 IPPROTO_TCP);
	if (l < 0)
		return l;
	len = pair_loopback(&at, &like);
	r = (int)xr_sys3(SYS_bind, l, &at, len);
	if (!r)
		r = (int)xr_sys2(SYS_listen, l, 1);
	if (!r)
		r = (int)xr_sys3(SYS_getsockname, l, &at, &len);
	if (r)
		goto close_listener;
	near = (int)xr_sys3(SYS_socket, like.sa.sa_family,
			    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	r = near;
	if (near < 0)
		goto close_listener;
	r = pair_connect(l, near, &at, len);
	if (r < 0) {
		xr_sys1(SYS_close, near);
		goto close_listener;
	}
	/* what it passes on has been held back as long as was wanted */
	xr_sys5(SYS_setsockopt, r, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	pair[0] = near;
	pair[1] = r;
	r = 0;
close_listener:
	xr_sys1(SYS_close, l);
	return r;
}

int xr_relay_pair(int fd, int pair[2])
{
	int r = pair_tcp(fd, pair);

	if (r)
		r = (int)xr_sys4(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
	if (!r)
		pair_like(pair[0], fd);
	return r;
}
