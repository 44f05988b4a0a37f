/* SPDX-License-Identifier: BSD-2-Clause */
/* Is a connection the only one that has its local address and port?  Real sockets, and files like those of /proc. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "bridge/lone.h"
#include "core/mem.h"

static int make_listener(int family, uint16_t *port)
{
	union xr_sockaddr a;
	socklen_t len = sizeof(a);
	int fd = socket(family, SOCK_STREAM, 0);

	memset(&a, 0, sizeof(a));
	a.sa.sa_family = (sa_family_t)family;
	if (family == AF_INET)
		a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		a.in6.sin6_addr = in6addr_loopback;
	assert_int_equal(bind(fd, &a.sa, sizeof(a)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, &a.sa, &len), 0);
	*port = a.in.sin_port;
	return fd;
}

/* From this port, 0: any; a socket of `family`, to this port of the loopback address of `to`. */
static int make_client(int family, int to, uint16_t from, uint16_t port)
{
	union xr_sockaddr a, l;
	int fd = socket(family, SOCK_STREAM, 0), one = 1;

	memset(&a, 0, sizeof(a));
	a.sa.sa_family = (sa_family_t)family;
	l = a;
	l.in.sin_port = from;
	if (family == AF_INET)
		l.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		inet_pton(AF_INET6, to == AF_INET ? "::ffff:127.0.0.1" : "::1", &l.in6.sin6_addr);
	a = l;
	a.in.sin_port = port;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
	assert_int_equal(bind(fd, &l.sa, sizeof(l)), 0);
	assert_int_equal(connect(fd, &a.sa, sizeof(a)), 0);
	return fd;
}

/* One side of a tuple: IPv4 in the first four bytes. */
static void side(const union xr_sockaddr *a, uint8_t to[16], uint16_t *port, uint16_t *family)
{
	*port = a->in.sin_port;
	*family = AF_INET;
	if (a->sa.sa_family == AF_INET) {
		memcpy(to, &a->in.sin_addr, 4);
	} else if (IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr)) {
		memcpy(to, (const uint8_t *)&a->in6.sin6_addr + 12, 4);
	} else {
		memcpy(to, &a->in6.sin6_addr, 16);
		*family = AF_INET6;
	}
}

static void ends(int fd, struct xr_tuple *t)
{
	union xr_sockaddr l, p;
	socklen_t nl = sizeof(l), np = sizeof(p);

	memset(t, 0, sizeof(*t));
	assert_int_equal(getsockname(fd, &l.sa, &nl), 0);
	assert_int_equal(getpeername(fd, &p.sa, &np), 0);
	side(&l, t->local, &t->lport, &t->family);
	side(&p, t->peer, &t->pport, &t->family);
}

static int look(int fd)
{
	struct xr_tuple t;

	ends(fd, &t);
	return lone_socket(&t);
}

static uint16_t local_port(int fd)
{
	struct xr_tuple t;

	ends(fd, &t);
	return t.lport;
}

/* One alone; then another from its address and port to another server, of either kind of socket; then alone again. */
static void shared_port(int family, int kind, int other)
{
	uint16_t port[2];
	int a, b, l[2] = { make_listener(family, &port[0]), make_listener(family, &port[1]) };

	a = make_client(kind, family, 0, port[0]);
	assert_int_equal(look(a), 0);
	b = make_client(other, family, local_port(a), port[1]);
	assert_int_equal(look(a), -EADDRINUSE);
	assert_int_equal(look(b), -EADDRINUSE);
	/* half closed by its program, and not by its peer: it can still be meant */
	shutdown(b, SHUT_WR);
	assert_int_equal(look(a), -EADDRINUSE);
	/* an RST: gone at once */
	setsockopt(b, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
	close(b);
	assert_int_equal(look(a), 0);
	close(a);
	close(l[0]);
	close(l[1]);
}

static void ipv4(void **state)
{
	(void)state;
	shared_port(AF_INET, AF_INET, AF_INET);
}

static void ipv6(void **state)
{
	(void)state;
	shared_port(AF_INET6, AF_INET6, AF_INET6);
}

/* An IPv4 connection of an IPv6 socket is in another list of the kernel. */
static void mapped(void **state)
{
	(void)state;
	shared_port(AF_INET, AF_INET6, AF_INET6);
	shared_port(AF_INET, AF_INET6, AF_INET);
	shared_port(AF_INET, AF_INET, AF_INET6);
}

/* The connection itself must be there: else this is not the namespace that it is of. */
static void elsewhere(void **state)
{
	struct xr_tuple t = { .family = AF_INET, .lport = htons(1), .pport = htons(2) };

	(void)state;
	inet_pton(AF_INET, "192.0.2.1", t.local);
	inet_pton(AF_INET, "192.0.2.2", t.peer);
	assert_int_equal(lone_socket(&t), -ENOENT);
}

/* ---- namespaces ------------------------------------------------------------------ */

static char root[] = "/tmp/xrdma-test-XXXXXX";

static void put(const char *name, const char *text)
{
	char path[128], *slash;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
		*slash = 0;
		mkdir(path, 0700);
		*slash = '/';
	}
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void namespaces(void **state)
{
	char cmd[64];

	(void)state;
	assert_non_null(mkdtemp(root));
	/* no tracking and no IPv6 in this kernel */
	put("ipv4/conf/eth0/forwarding", "0\n");
	put("ipv4/conf/all/forwarding", "0\n");
	assert_int_equal(lone_namespace(root), 0);
	put("netfilter/nf_conntrack_count", "0\n");
	put("ipv6/conf/eth0/forwarding", "0\n");
	assert_int_equal(lone_namespace(root), 0);
	put("netfilter/nf_conntrack_count", "1\n");
	assert_int_equal(lone_namespace(root), -EPERM);
	put("netfilter/nf_conntrack_count", "10\n");
	assert_int_equal(lone_namespace(root), -EPERM);
	put("netfilter/nf_conntrack_count", "0\n");
	put("ipv4/conf/eth0/forwarding", "1\n");
	assert_int_equal(lone_namespace(root), -EPERM);
	put("ipv4/conf/eth0/forwarding", "0\n");
	put("ipv6/conf/eth0/forwarding", "1\n");
	assert_int_equal(lone_namespace(root), -EPERM);
	put("ipv6/conf/eth0/forwarding", "");
	assert_int_equal(lone_namespace(root), -EIO);
	snprintf(cmd, sizeof(cmd), "rm -r %s", root);
	assert_int_equal(system(cmd), 0);
	/* nothing to read is nothing known */
	assert_int_equal(lone_namespace(root), -ENOENT);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(ipv4),
		cmocka_unit_test(ipv6),
		cmocka_unit_test(mapped),
		cmocka_unit_test(elsewhere),
		cmocka_unit_test(namespaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
