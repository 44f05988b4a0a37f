/* SPDX-License-Identifier: BSD-2-Clause */
/* Sockets are made, connected, accepted from, shut down. */
#include "hook.h"
#include <netinet/in.h>
#include "spare.h"
#include "user.h"

/* The number is new, and has no entry.  1, or 0: it goes without a flow. */
static int new_flow(int fd, int family, enum xr_flow_role role, int nonblock)
{
	struct xr_flow *f;

	if (xr_unlikely(!xr_active)) {
		xr_process_init();
		if (!xr_active)
			return 0;
	}
	xr_fork_check();
	xr_flow_sweep();
	f = xr_flow_new(fd, family, role, nonblock);
	if (xr_likely(f && xr_fd_put(fd, (uintptr_t)f | XR_FD_FLOW)))
		return 1;
	if (f && xr_fd_set(fd, f, XR_FD_FLOW) == (uintptr_t)-1) {
		xr_store_relaxed(&xr_flow_refused, XR_REASON_LIMIT_MEMORY);
		xr_flow_release(f);
		f = NULL;
	}
	return f != NULL;
}

/* The protocol of an internet stream socket, or 0. */
static int stream_protocol(int fd)
{
	int protocol = 0;
	socklen_t len = sizeof(int);

	if (xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len))
		return 0;
	return protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP ? protocol : 0;
}

/* A connection without a flow: xr-stat shall be able to say how many there are, and why. */
XR_SLOW void count_unlisted(int fd, int server)
{
	enum xr_reason why;
	int protocol;

	xr_process_init();
	/* behind a filter of the program's own, no system call that it does not make is safe */
	if (xr_process_passed())
		return;
	xr_fork_check();
	protocol = stream_protocol(fd);
	if (!protocol)
		return;
	why = xr_config_off(&xr_cfg);
	if (protocol == IPPROTO_MPTCP)
		why = XR_REASON_MPTCP;
	else if (why == XR_REASON_NONE || (why == XR_REASON_LIMIT_MEMORY && xr_active))
		why = (enum xr_reason)xr_load_relaxed(&xr_flow_refused);
	xr_policy_unlisted(why != XR_REASON_NONE ? why :
			   server ? XR_REASON_INTERNAL : XR_REASON_INHERITED);
}

XR_HOOK XR_HOT int socket(int domain, int type, int protocol)
{
	int fd = XR_SPARE(xr_real.socket(domain, type, protocol));

	if (fd < 0 || xr_vfork_depth)
		return fd;
	xr_fds_fresh(fd);
	if ((domain == AF_INET || domain == AF_INET6) &&
	    (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM &&
	    (protocol == 0 || protocol == IPPROTO_TCP))
		new_flow(fd, domain, XR_FLOW_UNSET, type & SOCK_NONBLOCK);
	return fd;
}

XR_HOOK int socketpair(int domain, int type, int protocol, int sv[2])
{
	int r = XR_SPARE(xr_real.socketpair(domain, type, protocol, sv));

	if (!r) {
		xr_fds_fresh(sv[0]);
		xr_fds_fresh(sv[1]);
	}
	return r;
}

#define LISTENER_MPTCP	AF_MAX		/* no family */

/*
 * The address family of a TCP listener, 0 for other sockets.  A listener that was not
 * made by a hook (inherited, passed) is asked once.
 */
XR_SLOW int listener_ask(int fd)
{
	uintptr_t e = xr_fd_entry(fd);
	int family = 0, protocol;
	socklen_t len = sizeof(int);

	if ((e & 3) == XR_FD_FLOW)
		return xr_fd_flow(fd)->family;
	protocol = stream_protocol(fd);
	if (protocol == IPPROTO_MPTCP)
		family = LISTENER_MPTCP;
	else if (!protocol || xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &family, &len))
		family = 0;
	/* not over a new entry: the number may have changed hands */
	xr_fd_set_new(fd, XR_FD_LISTENER(family), XR_FD_LISTEN);
	return family;
}

static int listener_family(int fd)
{
	uintptr_t e = xr_fd_entry(fd);

	return xr_likely((e & 3) == XR_FD_LISTEN) ? (int)(e >> 2) : listener_ask(fd);
}

static inline int accepted(int listener, int fd, int flags)
{
	int family;

	if (fd < 0 || xr_vfork_depth)
		return fd;
	xr_fds_fresh(fd);
	if (xr_unlikely(!xr_active)) {
		count_unlisted(fd, 1);
		return fd;
	}
	family = listener_family(listener);
	if (xr_likely(family == AF_INET || family == AF_INET6) &&
	    xr_likely(new_flow(fd, family, XR_FLOW_ACCEPT, flags & SOCK_NONBLOCK)))
		return fd;
	if (xr_unlikely(family && !xr_fd_entry(fd)))
		count_unlisted(fd, 1);
	return fd;
}

XR_HOOK XR_HOT int accept(int fd, struct sockaddr *restrict addr, socklen_t *restrict len)
{
	return accepted(fd, XR_SPARE(xr_real.accept(fd, addr, len)), 0);
}

XR_HOOK XR_HOT int accept4(int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags)
{
	return accepted(fd, XR_SPARE(xr_real.accept4(fd, addr, len, flags)), flags);
}

XR_SLOW int connect_unknown(int fd, const struct sockaddr *addr, socklen_t len)
{
	int r = xr_real.connect(fd, addr, len), saved = errno;

	if ((!r || saved == EINPROGRESS || saved == EINTR) && addr &&
	    (addr->sa_family == AF_INET || addr->sa_family == AF_INET6))
		count_unlisted(fd, 0);
	errno = saved;
	return r;
}

/* There is more than the kernel's connection to dissolve, and that goes first. */
static int connect_dissolves(const struct sockaddr *addr, socklen_t len)
{
	sa_family_t family;

	return len >= sizeof(family) && !xr_user_get(&family, &addr->sa_family, sizeof(family)) &&
	       family == AF_UNSPEC;
}

/* What was done to the socket before keeps it on TCP, and shows once it is connected. */
XR_SLOW int connect_off(struct xr_flow *f, int fd, const struct sockaddr *addr, socklen_t len)
{
	int r = xr_real.connect(fd, addr, len), saved = errno;

	/* an interrupted connect goes on in the background as well */
	if ((!r || saved == EINPROGRESS || saved == EINTR) && addr->sa_family != AF_UNSPEC)
		xr_flow_connecting(f, fd);
	errno = saved;
	return r;
}

static inline int connect_flow(struct xr_flow *f, int fd, const struct sockaddr *addr, socklen_t len)
{
	int r, saved;

	if (xr_unlikely(xr_flow_up(f) || f->link) && connect_dissolves(addr, len))
		xr_flow_stay_tcp(f, fd, XR_REASON_RETREAT_CALL);
	if (xr_unlikely(xr_load_relaxed(&f->upgrade_off)))
		return connect_off(f, fd, addr, len);
	/* before it, while all that is at hand; where it fails no byte will be counted, and it can be tried again */
	xr_flow_connecting(f, fd);
	r = xr_real.connect(fd, addr, len);
	/* the kernel has just read it */
	if (!r && xr_unlikely(addr->sa_family == AF_UNSPEC)) {
		saved = errno;
		xr_flow_stay_tcp(f, fd, XR_REASON_RETREAT_CALL);
		errno = saved;
	}
	return r;
}

XR_SLOW int connect_odd(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct xr_flow *f;

	if (xr_vfork_depth)
		return xr_real.connect(fd, addr, len);
	f = xr_fd_flow(fd);
	if (!f)
		return connect_unknown(fd, addr, len);
	xr_fork_check();
	return connect_flow(f, fd, addr, len);
}

XR_HOOK XR_HOT int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct xr_flow *f = xr_fd_flow(fd);

	return xr_likely(f && xr_process_calm()) ? connect_flow(f, fd, addr, len) :
						   connect_odd(fd, addr, len);
}

XR_ALIAS(connect) int __connect(int fd, const struct sockaddr *addr, socklen_t len);

/* A server whose connections will have no flows is to be seen, too. */
XR_SLOW void listen_unknown(int fd)
{
	int saved = errno;

	xr_process_init();
	if (!xr_active && !xr_process_passed() && stream_protocol(fd)) {
		xr_fork_check();
		xr_policy_publish();
	}
	errno = saved;
}

/* A listener carries no bytes: what the table keeps of it is its family, for accept. */
XR_HOOK int listen(int fd, int backlog)
{
	struct xr_flow *f = xr_fd_flow(fd);
	int r = xr_real.listen(fd, backlog);
	int family;

	if (r || xr_vfork_depth)
		return r;
	if (!f) {
		listen_unknown(fd);
		return r;
	}
	xr_fork_check();
	/* a server is there for operators before its first client comes */
	xr_policy_publish();
	xr_flow_stay_tcp(f, fd, XR_REASON_LISTENER);
	if (xr_load_relaxed(&f->priv->fds) != 1)
		return r;
	family = f->family;
	xr_fds_fresh(fd);
	xr_fd_set_new(fd, XR_FD_LISTENER(family), XR_FD_LISTEN);
	return r;
}

/*
 * By the kernel, while it carries both directions: neither moves meanwhile.  A FIN behind the offset
 * at which the direction has left TCP would be taken for the death of this process.  1: they have moved.
 */
static int shutdown_kernel(struct xr_flow *f, int fd, int how, int *r)
{
	uint32_t gen = xr_load_relaxed(&f->gen);
	int counts = (xr_load_acquire(&f->path) & XR_PATH_COUNT) != 0;

	if (counts && !xr_flow_kpoll_begin(f))
		return 1;
	*r = xr_real.shutdown(fd, how);
	/* closed meanwhile, and by now another connection's */
	if (xr_unlikely(xr_load_relaxed(&f->gen) != gen))
		return 0;
	if (counts)
		xr_flow_kpoll_end(f);
	/* not worth a move any more, and what it would be told of the peer's end is ambiguous */
	if (!*r)
		xr_flow_stay_tcp(f, fd, XR_REASON_CLOSED);
	return 0;
}

XR_HOOK int shutdown(int fd, int how)
{
	struct xr_flow *f = how >= SHUT_RD && how <= SHUT_RDWR ? xr_hook_flow(fd) : NULL;
	int r;

	while (f) {
		if (xr_load_acquire(&f->path) & XR_PATH_FABRIC) {
			r = xr_flow_shutdown(f, fd, how);
			if (r != -EREMOTEIO)
				return (int)xr_ret(r);
		} else if (!shutdown_kernel(f, fd, how, &r)) {
			return r;
		}
	}
	return xr_real.shutdown(fd, how);
}
