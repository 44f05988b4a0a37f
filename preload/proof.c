/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "proof.h"

static int proof_nl = -1;		/* under proof_lock */
static struct xr_lock proof_lock;
static uint32_t proof_seq, proof_mask;	/* who may read along must not know the next number */
static const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };

static void tuple_side(uint8_t addr[16], uint16_t *port, uint16_t *family,
		       const union xr_sockaddr *sa)
{
	memset(addr, 0, 16);
	*family = AF_INET;
	if (sa->sa.sa_family == AF_INET) {
		memcpy(addr, &sa->in.sin_addr, 4);
		*port = sa->in.sin_port;
		return;
	}
	*port = sa->in6.sin6_port;
	if (IN6_IS_ADDR_V4MAPPED(&sa->in6.sin6_addr)) {
		memcpy(addr, (const uint8_t *)&sa->in6.sin6_addr + 12, 4);
		return;
	}
	memcpy(addr, &sa->in6.sin6_addr, 16);
	*family = AF_INET6;
}

int xr_tuple_get(int fd, struct xr_tuple *t, union xr_sockaddr *local, union xr_sockaddr *peer)
{
	union xr_sockaddr l, p;
	socklen_t nl = sizeof(l), np = sizeof(p);
	uint16_t fam;
	long r;

	r = xr_sys3(SYS_getsockname, fd, &l, &nl);
	if (!r)
		r = xr_sys3(SYS_getpeername, fd, &p, &np);
	if (r)
		return (int)r;
	if ((l.sa.sa_family != AF_INET && l.sa.sa_family != AF_INET6) ||
	    l.sa.sa_family != p.sa.sa_family)
		return -EAFNOSUPPORT;
	memset(t, 0, sizeof(*t));
	tuple_side(t->local, &t->lport, &fam, &l);
	tuple_side(t->peer, &t->pport, &t->family, &p);
	if (fam != t->family)
		return -EAFNOSUPPORT;
	if (local)
		*local = l;
	if (peer)
		*peer = p;
	return 0;
}

static int proof_socket(void)
{
	long fd;
	int high;

	if (proof_nl >= 0)
		return 0;
	fd = xr_sys3(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
		     NETLINK_SOCK_DIAG);
	if (fd < 0)
		return (int)fd;
	high = xr_fd_high((int)fd);
	if (high < 0) {
		xr_sys1(SYS_close, fd);
		return high;
	}
	proof_nl = high;
	return 0;
}

struct proof_answer {
	struct nlmsghdr h;
	struct inet_diag_msg m;
	uint8_t attr[2048];
};

/* An attribute of the answer, and its length; or NULL. */
static const uint8_t *proof_attr(const struct proof_answer *a, size_t n, uint32_t type, size_t *len)
{
	size_t at = 0;

	n -= offsetof(struct proof_answer, attr);
	while (at + sizeof(struct nlattr) <= n) {
		struct nlattr h;

		memcpy(&h, a->attr + at, sizeof(h));
		if (h.nla_len < sizeof(h) || h.nla_len > n - at)
			break;
		if (h.nla_type == type) {
			*len = h.nla_len - sizeof(h);
			return a->attr + at + sizeof(h);
		}
		at += (h.nla_len + 3u) & ~3u;
	}
	return NULL;
}

/* What the kernel counts, if the answer holds it. */
static int proof_info(const struct proof_answer *a, size_t n, struct tcp_info *info)
{
	size_t len = 0;
	const uint8_t *from = proof_attr(a, n, INET_DIAG_INFO, &len);

	if (!from || len < offsetof(struct tcp_info, tcpi_bytes_received) + 8)
		return -EOPNOTSUPP;
	memset(info, 0, sizeof(*info));
	memcpy(info, from, len < sizeof(*info) ? len : sizeof(*info));
	return 0;
}

/* Which directions its program has shut down. */
static uint32_t proof_shut(const struct proof_answer *a, size_t n)
{
	size_t len = 0;
	const uint8_t *at = proof_attr(a, n, INET_DIAG_SHUTDOWN, &len);

	return at && len ? *at : 0;
}

/* info: NULL, not asked for. */
static int proof_query(int nl, const struct xr_tuple *t, struct xr_sock_ident *id, uint32_t device,
		       struct tcp_info *info)
{
	struct {
		struct nlmsghdr h;
		struct inet_diag_req_v2 r;
	} q;
	struct proof_answer a;
	int tries;

	memset(&q, 0, sizeof(q));
	q.h.nlmsg_len = sizeof(q);
	q.h.nlmsg_type = SOCK_DIAG_BY_FAMILY;
	q.h.nlmsg_flags = NLM_F_REQUEST;
	q.h.nlmsg_seq = ++proof_seq ^ proof_mask;
	q.r.sdiag_family = (uint8_t)t->family;
	q.r.sdiag_protocol = IPPROTO_TCP;
	q.r.idiag_states = ~0u;
	if (info)
		q.r.idiag_ext = 1u << (INET_DIAG_INFO - 1);
	q.r.id.idiag_sport = t->lport;
	q.r.id.idiag_dport = t->pport;
	memcpy(q.r.id.idiag_src, t->local, 16);
	memcpy(q.r.id.idiag_dst, t->peer, 16);
	q.r.id.idiag_if = device;
	q.r.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
	q.r.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	/* to the kernel, whatever the maker of the socket has connected it to */
	if (xr_sys6(SYS_sendto, nl, &q, sizeof(q), MSG_DONTWAIT, &kernel, sizeof(kernel)) != (long)sizeof(q))
		return -EIO;
	/* the answer is there when sendto returns; older answers may lie in front of it */
	for (tries = 0; tries < 8; tries++) {
		struct sockaddr_nl from = { .nl_pid = 1 };
		socklen_t len = sizeof(from);
		long n = xr_sys6(SYS_recvfrom, nl, &a, sizeof(a), MSG_DONTWAIT, &from, &len);

		if (n < (long)sizeof(a.h))
			return -EIO;
		/* 0 is the kernel */
		if (a.h.nlmsg_seq != q.h.nlmsg_seq || from.nl_pid)
			continue;
		if (a.h.nlmsg_type == NLMSG_ERROR) {
			struct nlmsgerr e;

			if (n < (long)(sizeof(a.h) + sizeof(e)))
				return -EIO;
			memcpy(&e, &a.m, sizeof(e));
			return e.error ? e.error : -EIO;
		}
		if (a.h.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		    n < (long)offsetof(struct proof_answer, attr))
			return -EIO;
		/* a listener matches when the connection itself is gone */
		if (a.m.id.idiag_dport != t->pport)
			return -ENOENT;
		id->inode = a.m.idiag_inode;
		id->uid = a.m.idiag_uid;
		id->shut = proof_shut(&a, (size_t)n);
		return info ? proof_info(&a, (size_t)n, info) : 0;
	}
	return -EIO;
}

#define LOOPBACK	1	/* LOOPBACK_IFINDEX of the kernel, in every network namespace */

int xr_proof_lookup(const struct xr_tuple *t, struct xr_sock_ident *id)
{
	int r;

	/* below a signal handler that interrupted a query: another time */
	if (xr_lock(&proof_lock))
		return -EAGAIN;
	r = proof_socket();
	if (!r)
		r = proof_query(proof_nl, t, id, 0, NULL);
	/* a socket that is bound to a device is found by that alone: whoever it is, we reach it by lo */
	if (r == -ENOENT)
		r = proof_query(proof_nl, t, id, LOOPBACK, NULL);
	xr_unlock(&proof_lock);
	return r;
}

int xr_proof_lookup_by(int diag, const struct xr_tuple *t, struct xr_sock_ident *id, struct tcp_info *info)
{
	int domain = 0, protocol = -1, r;
	socklen_t len = sizeof(int);

	if (xr_sys5(SYS_getsockopt, diag, SOL_SOCKET, SO_DOMAIN, &domain, &len) || domain != AF_NETLINK ||
	    xr_sys5(SYS_getsockopt, diag, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) ||
	    protocol != NETLINK_SOCK_DIAG)
		return -EACCES;
	if (xr_lock(&proof_lock))
		return -EAGAIN;
	if (!proof_mask)
		xr_random(&proof_mask, sizeof(proof_mask));
	r = proof_query(diag, t, id, 0, info);
	xr_unlock(&proof_lock);
	return r;
}

int xr_proof_diag(void)
{
	return (int)xr_sys3(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
}

#ifndef SYS_open_tree
#define SYS_open_tree	428
#endif

enum { TREE_UNASKED, TREE_GOOD, TREE_NONE };
static _Atomic uint32_t proof_tree;	/* whether there is open_tree(2) */

/*
 * A filter that the process was begun under may kill it for a system call that few programs make.  One that it makes
 * itself finds us idle (process.c).
 */
static int proof_filtered(void)
{
	char buf[4096];
	int fd = (int)xr_sys4(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
	long n;

	if (fd < 0)
		return 1;
	n = xr_sys3(SYS_read, fd, buf, sizeof(buf) - 1);
	xr_sys1(SYS_close, fd);
	buf[n > 0 ? n : 0] = '\0';
	return !strstr(buf, "\nSeccomp:\t0\n");
}

/* Without OPEN_TREE_CLONE it is open(2) with O_PATH of what is open already, and walks no path. */
static long proof_open_tree(int fd)
{
	uint32_t tree = xr_load_relaxed(&proof_tree);
	long r = -ENOSYS;

	if (tree == TREE_UNASKED)
		tree = proof_filtered() ? TREE_NONE : TREE_GOOD;
	if (tree == TREE_GOOD)
		r = xr_sys3(SYS_open_tree, fd, "", AT_EMPTY_PATH | O_CLOEXEC);
	/* an old kernel, or a module that forbids it */
	if (r == -ENOSYS || r == -EPERM || r == -EACCES || r == -EINVAL)
		tree = TREE_NONE;
	/* relaxed: each thread finds the same */
	xr_store_relaxed(&proof_tree, tree);
	return tree == TREE_NONE ? -ENOSYS : r;
}

int xr_proof_open(int fd)
{
	char path[32];
	long r = proof_open_tree(fd);

	if (r != -ENOSYS)
		return (int)r;
	xr_snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = xr_sys4(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0);
	return (int)r;
}

void xr_proof_see(int fd, struct xr_proof_seen *s)
{
	struct stat st;

	memset(s, 0, sizeof(*s));
	if (xr_sys2(SYS_fstat, fd, &st))
		return;
	s->is = S_ISSOCK(st.st_mode);
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	s->uid = st.st_uid;
}

int xr_proof_match(const struct xr_proof_seen *s, uint32_t uid, int own, const struct xr_tuple *t)
{
	static _Atomic uint64_t sockfs;	/* st_dev of all sockets, as long as the system runs; 0: not known */
	uint64_t dev = xr_load_relaxed(&sockfs);
	struct xr_sock_ident id;
	struct xr_tuple far;
	struct stat self;
	int r;

	if (!dev) {
		if (xr_sys2(SYS_fstat, own, &self))
			return -EACCES;
		dev = self.st_dev;
		xr_store_relaxed(&sockfs, dev);
	}
	xr_tuple_mirror(&far, t);
	r = xr_proof_lookup(&far, &id);
	if (r)
		return r;
	if (!s->is || s->dev != dev || !id.inode || s->ino != id.inode)
		return -EACCES;
	/* root may hold any socket; anybody else is expected to have made it */
	return uid == id.uid || uid == 0 ? 0 : -EACCES;
}

int xr_proof_check(int fd, int conn, int own, const struct xr_tuple *t)
{
	struct xr_proof_seen s;
	struct ucred cred;
	socklen_t len = sizeof(cred);

	xr_proof_see(fd, &s);
	if (xr_sys5(SYS_getsockopt, conn, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return -EACCES;
	return xr_proof_match(&s, cred.uid, own, t);
}

int xr_proof_strip(void)
{
	int had;

	if (xr_lock(&proof_lock))
		return 0;
	had = proof_nl >= 0;
	xr_fd_close(proof_nl);
	proof_nl = -1;
	xr_unlock(&proof_lock);
	return had;
}

void xr_proof_forked(void)
{
	xr_fd_close(proof_nl);
	proof_nl = -1;
	xr_store_relaxed(&proof_lock.owner, 0);
}
