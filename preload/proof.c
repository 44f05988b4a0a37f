/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "proof.h"

static int proof_nl = -1;		/* under proof_lock */
static struct xr_lock proof_lock;
static uint32_t proof_seq;

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

static int proof_query(const struct xr_tuple *t, struct xr_sock_ident *id, uint32_t device)
{
	struct {
		struct nlmsghdr h;
		struct inet_diag_req_v2 r;
	} q;
	union {
		struct nlmsghdr h;
		uint8_t buf[2048];
	} a;
	int tries;

	memset(&q, 0, sizeof(q));
	q.h.nlmsg_len = sizeof(q);
	q.h.nlmsg_type = SOCK_DIAG_BY_FAMILY;
	q.h.nlmsg_flags = NLM_F_REQUEST;
	q.h.nlmsg_seq = ++proof_seq;
	q.r.sdiag_family = (uint8_t)t->family;
	q.r.sdiag_protocol = IPPROTO_TCP;
	q.r.idiag_states = ~0u;
	q.r.id.idiag_sport = t->lport;
	q.r.id.idiag_dport = t->pport;
	memcpy(q.r.id.idiag_src, t->local, 16);
	memcpy(q.r.id.idiag_dst, t->peer, 16);
	q.r.id.idiag_if = device;
	q.r.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
	q.r.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	if (xr_sys6(SYS_sendto, proof_nl, &q, sizeof(q), 0, 0, 0) != (long)sizeof(q))
		return -EIO;
	/* the answer is there when sendto returns; older answers may lie in front of it */
	for (tries = 0; tries < 8; tries++) {
		long n = xr_sys6(SYS_recvfrom, proof_nl, &a, sizeof(a), MSG_DONTWAIT, 0, 0);

		if (n < (long)sizeof(a.h))
			return -EIO;
		if (a.h.nlmsg_seq != q.h.nlmsg_seq)
			continue;
		if (a.h.nlmsg_type == NLMSG_ERROR) {
			const struct nlmsgerr *e = (const void *)(&a.h + 1);

			if (n < (long)(sizeof(a.h) + sizeof(*e)))
				return -EIO;
			return e->error ? e->error : -EIO;
		}
		if (a.h.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		    n < (long)(sizeof(a.h) + sizeof(struct inet_diag_msg)))
			return -EIO;
		{
			const struct inet_diag_msg *m = (const void *)(&a.h + 1);

			/* a listener matches when the connection itself is gone */
			if (m->id.idiag_dport != t->pport)
				return -ENOENT;
			id->inode = m->idiag_inode;
			id->uid = m->idiag_uid;
		}
		return 0;
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
		r = proof_query(t, id, 0);
	/* a socket that is bound to a device is found by that alone: whoever it is, we reach it by lo */
	if (r == -ENOENT)
		r = proof_query(t, id, LOOPBACK);
	xr_unlock(&proof_lock);
	return r;
}

int xr_proof_open(int fd)
{
	char path[32];
	long r;

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
}

int xr_proof_match(const struct xr_proof_seen *s, uint32_t uid, int own, const struct xr_tuple *t)
{
	struct xr_sock_ident id;
	struct xr_tuple far;
	struct stat self;
	int r;

	if (xr_sys2(SYS_fstat, own, &self))
		return -EACCES;
	xr_tuple_mirror(&far, t);
	r = xr_proof_lookup(&far, &id);
	if (r)
		return r;
	if (!s->is || s->dev != self.st_dev || !id.inode || s->ino != id.inode)
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
