/* SPDX-License-Identifier: BSD-2-Clause */
/* Descriptors, options, and calls that must fail. */
#include "actor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

/* family: 4, 6, or 46 for an IPv4 address in an IPv6 socket */
long do_connect(const struct op *o, struct res *r)
{
	int family = o->arg[2] == 4 ? AF_INET : AF_INET6, on = 1, i, e;
	const uint16_t *port = a.sh->port[!a.side];
	struct sockaddr_in6 s6 = { .sin6_family = AF_INET6, .sin6_port = htons(port[1]),
				   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in s4 = { .sin_family = AF_INET, .sin_port = htons(port[0]),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(family, SOCK_STREAM | (o->arg[3] & (SOCK_NONBLOCK | SOCK_CLOEXEC)), 0);
	long ret;

	if (o->arg[2] == 46) {
		s6.sin6_port = htons(port[0]);
		memset(&s6.sin6_addr, 0, sizeof(s6.sin6_addr));
		s6.sin6_addr.s6_addr[10] = s6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(s6.sin6_addr.s6_addr + 12, &s4.sin_addr, 4);
	}
	res_extra(r, fd);
	a.fd[o->arg[0]] = fd;
	ret = family == AF_INET ? connect(fd, (struct sockaddr *)&s4, sizeof(s4)) :
				  connect(fd, (struct sockaddr *)&s6, sizeof(s6));
	e = errno;
	for (i = 0; ret && e == EINPROGRESS && i < 1000 && !raw_poll(fd, POLLOUT); i++)
		yield();
	/* the call that ends it: until then the kernel's socket is "connecting" for some calls */
	if (ret && e == EINPROGRESS)
		res_extra(r, connect(fd, (struct sockaddr *)&s6, sizeof(s6)));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	errno = e;
	return ret;
}

long do_accept(const struct op *o, struct res *r)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	int on = 1, fd, lfd, v6;

	/* which listener: the connection waits in one of them */
	v6 = a.lfd[1] >= 0 && raw_poll(a.lfd[1], POLLIN);
	lfd = a.lfd[v6];
	if (o->arg[3])
		fd = accept4(lfd, (struct sockaddr *)&ss, &len,
			     o->arg[2] & (SOCK_NONBLOCK | SOCK_CLOEXEC));
	else
		fd = accept(lfd, NULL, NULL);
	if (fd < 0)
		return -1;
	if (o->arg[3])
		res_extra(r, len);
	a.fd[o->arg[0]] = fd;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

long do_dup(const struct op *o, struct res *r)
{
	int fd = fd_of(o), to = o->arg[2], n;

	(void)r;
	switch (o->arg[1]) {
	case DUP_DUP:
		n = dup(fd);
		break;
	case DUP_FCNTL:
		n = fcntl(fd, F_DUPFD, 3);
		break;
	case DUP_FCNTL_CLOEXEC:
		n = fcntl(fd, F_DUPFD_CLOEXEC, 40);
		break;
	case DUP_DUP2:
		return dup2(fd, a.fd[to]);
	default:
		return dup3(fd, a.fd[to], O_CLOEXEC);
	}
	if (n >= 0)
		a.fd[to] = n;
	return n;
}

long do_nonblock(const struct op *o, struct res *r)
{
	int fd = fd_of(o), on = o->arg[1], fl;

	(void)r;
	if (o->arg[2])
		return ioctl(fd, FIONBIO, &on);
	fl = fcntl(fd, F_GETFL);
	if (fl < 0)
		return -1;
	return fcntl(fd, F_SETFL, on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
}

struct option_name {
	int level, name;
};
static const struct option_name option_names[OPT_CALLS] = {
	[OPT_RCVLOWAT] = { SOL_SOCKET, SO_RCVLOWAT },
	[OPT_RCVTIMEO] = { SOL_SOCKET, SO_RCVTIMEO },
	[OPT_SNDTIMEO] = { SOL_SOCKET, SO_SNDTIMEO },
	[OPT_LINGER] = { SOL_SOCKET, SO_LINGER },
	[OPT_NODELAY] = { IPPROTO_TCP, TCP_NODELAY },
	[OPT_CORK] = { IPPROTO_TCP, TCP_CORK },
	[OPT_KEEPALIVE] = { SOL_SOCKET, SO_KEEPALIVE },
	[OPT_OOBINLINE] = { SOL_SOCKET, SO_OOBINLINE },
	[OPT_RXQ_OVFL] = { SOL_SOCKET, SO_RXQ_OVFL },
	[OPT_QUICKACK] = { IPPROTO_TCP, TCP_QUICKACK },
	[OPT_PRIORITY] = { SOL_SOCKET, SO_PRIORITY },
	[OPT_USER_TIMEOUT] = { IPPROTO_TCP, TCP_USER_TIMEOUT },
	[OPT_RCVBUF] = { SOL_SOCKET, SO_RCVBUF },
	[OPT_SNDBUF] = { SOL_SOCKET, SO_SNDBUF },
	[OPT_ERROR] = { SOL_SOCKET, SO_ERROR },
	[OPT_TYPE] = { SOL_SOCKET, SO_TYPE },
	[OPT_DOMAIN] = { SOL_SOCKET, SO_DOMAIN },
	[OPT_PROTOCOL] = { SOL_SOCKET, SO_PROTOCOL },
	[OPT_ACCEPTCONN] = { SOL_SOCKET, SO_ACCEPTCONN },
	[OPT_STATE] = { IPPROTO_TCP, TCP_INFO },
	[OPT_KEEPIDLE] = { IPPROTO_TCP, TCP_KEEPIDLE },
	[OPT_MAXSEG] = { IPPROTO_TCP, TCP_MAXSEG },
	[OPT_UNKNOWN] = { SOL_SOCKET, 9999 },
};

long do_setopt(const struct op *o, struct res *r)
{
	const struct option_name *n = &option_names[o->arg[1] % OPT_CALLS];
	struct linger l = { o->arg[2] >= 0, o->arg[2] };
	struct timeval tv = { o->arg[2] / 1000, o->arg[2] % 1000 * 1000L };
	int fd = fd_of(o), value = o->arg[2];

	(void)r;
	switch (o->arg[1]) {
	case OPT_LINGER:
		return setsockopt(fd, n->level, n->name, &l, sizeof(l));
	case OPT_RCVTIMEO:
	case OPT_SNDTIMEO:
		return setsockopt(fd, n->level, n->name, &tv, sizeof(tv));
	default:
		return setsockopt(fd, n->level, n->name, &value, sizeof(value));
	}
}

long do_getopt(const struct op *o, struct res *r)
{
	const struct option_name *n = &option_names[o->arg[1] % OPT_CALLS];
	union {
		int i;
		struct linger l;
		struct timeval tv;
		struct tcp_info info;
	} u = { 0 };
	socklen_t len = sizeof(u);
	long ret = getsockopt(fd_of(o), n->level, n->name, &u, &len);

	if (ret)
		return ret;
	res_extra(r, len);
	switch (o->arg[1]) {
	case OPT_STATE:
		res_extra(r, u.info.tcpi_state);
		break;
	case OPT_LINGER:
		res_extra(r, u.l.l_onoff);
		res_extra(r, u.l.l_linger);
		break;
	case OPT_RCVTIMEO:
	case OPT_SNDTIMEO:
		res_extra(r, u.tv.tv_sec * 1000000 + u.tv.tv_usec);
		break;
	case OPT_QUICKACK: /* the kernel's own, from moment to moment */
	case OPT_SNDBUF: /* grows by itself */
	case OPT_RCVBUF:
	case OPT_MAXSEG:
		break;
	default:
		res_extra(r, u.i);
		break;
	}
	return ret;
}

long do_ioctl(const struct op *o, struct res *r)
{
	int fd = fd_of(o), v = 0;
	struct stat st;
	long ret;

	switch (o->arg[1]) {
	case IOC_FIONREAD:
		ret = ioctl(fd, FIONREAD, &v);
		break;
	case IOC_SIOCOUTQ:
		ret = ioctl(fd, SIOCOUTQ, &v);
		break;
	case IOC_SIOCATMARK:
		ret = ioctl(fd, SIOCATMARK, &v);
		break;
	case IOC_GETFL:
		return fcntl(fd, F_GETFL);
	case IOC_GETFD:
		return fcntl(fd, F_GETFD);
	case IOC_SETFD:
		return fcntl(fd, F_SETFD, FD_CLOEXEC);
	case IOC_FSTAT:
		ret = fstat(fd, &st);
		v = (int)(st.st_mode & S_IFMT);
		break;
	case IOC_LSEEK:
		return lseek(fd, 0, SEEK_CUR);
	default:
		return ioctl(fd, 0xabcd, &v);
	}
	if (!ret)
		res_extra(r, v);
	return ret;
}

long do_name(const struct op *o, struct res *r)
{
	struct sockaddr_in6 sa = { 0 };
	socklen_t len = sizeof(sa);
	long ret = o->arg[1] ? getpeername(fd_of(o), (struct sockaddr *)&sa, &len) :
			       getsockname(fd_of(o), (struct sockaddr *)&sa, &len);

	if (!ret) {
		res_extra(r, sa.sin6_family);
		res_extra(r, len);
	}
	return ret;
}

/* A number that the compiler does not know, and so does not warn of. */
static int as_is(int n)
{
	__asm__("" : "+r"(n));
	return n;
}

/* Calls that the kernel refuses, or that do nothing. */
long do_bad(const struct op *o, struct res *r)
{
	int fd = fd_of(o), v = 0;
	struct iovec one = { a.buf[0], 100 }, neg = { a.buf[0], (size_t)-5 };
	struct iovec hole = { a.hole, 100 }, mixed[2] = { { a.buf[0], 100 }, { a.hole, 100 } };
	struct msghdr mh = { .msg_iov = &one, .msg_iovlen = 1025 };
	struct timespec odd = { 0, 2000000000 }, none = { 0, 0 };
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct epoll_event ev = { .events = EPOLLIN };
	struct sockaddr_in sa = { .sin_family = AF_INET };
	struct timeval tv = { 0, 0 };
	socklen_t len = 2;

	(void)r;
	switch (o->arg[1]) {
	case 0: return readv(fd, &one, as_is(-1));
	case 1: return readv(fd, &one, as_is(1025));
	case 2: return writev(fd, &one, as_is(-1));
	case 3: return writev(fd, &one, as_is(1025));
	case 4: return readv(fd, &neg, 1);
	case 5: return writev(fd, &neg, 1);
	case 6: return sendmsg(fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
	case 7: return recvmsg(fd, &mh, MSG_DONTWAIT);
	case 8: return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, 1);
	case 9: return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, 2);
	case 10: return shutdown(fd, 7);
	case 11: return dup2(fd, -1);
	case 12: return dup3(fd, fd, 0);
	case 13: return fcntl(fd, F_DUPFD, -1);
	case 14: return listen(fd, 1);
	case 15: return connect(fd, (struct sockaddr *)&sa, sizeof(sa));
	case 16: return bind(fd, (struct sockaddr *)&sa, sizeof(sa));
	case 17: return accept(fd, NULL, NULL);
	case 18: return pread(fd, a.buf[0], 10, 0);
	case 19: return pwrite(fd, a.buf[0], 10, 0);
	case 20: return fsync(fd);
	case 21: return ppoll(&p, 1, &odd, NULL);
	case 22: return epoll_ctl(a.ep[0], EPOLL_CTL_ADD, a.ep[0], &ev);
	case 23: return epoll_ctl(a.ep[0], 77, fd, &ev);
	case 24: return epoll_wait(a.ep[0], &ev, 0, 0);
	case 25: return epoll_wait(a.ep[0], &ev, as_is(-1), 0);
	case 26: return epoll_ctl(fd, EPOLL_CTL_ADD, fd, &ev);
	case 27: return epoll_wait(fd, &ev, 1, 0);
	case 28: return recvmmsg(fd, NULL, 0, MSG_DONTWAIT, NULL);
	case 29: return sendmmsg(fd, NULL, 0, MSG_DONTWAIT | MSG_NOSIGNAL);
	case 30: return select(-1, NULL, NULL, NULL, &tv);
	case 31: return preadv2(fd, &one, 1, 5, 0);
	case 32: return pwritev2(fd, &one, 1, 5, 0);
	case 33: return ftruncate(fd, 0);
	case 34: return getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &len) ? -1 : (long)len;
	case 35: return write(fd, NULL, 0);
	case 36: return recv(fd, NULL, 0, MSG_DONTWAIT | MSG_PEEK);
	case 37: return fcntl(fd, 9999);
	case 38: return dup2(fd, fd) == fd ? 0 : -1;
	case 39: return fchmod(fd, 0600) ? -1 : 0;
	/* from here on: addresses that fault */
	case 40: return recv(fd, a.hole, 10, MSG_DONTWAIT);
	case 41: return recv(fd, NULL, 10, MSG_DONTWAIT | MSG_PEEK);
	case 42: return send(fd, a.hole, 10, MSG_NOSIGNAL | MSG_DONTWAIT);
	case 43: return writev(fd, &hole, 1);
	case BAD_WRITEV_MIXED: return writev(fd, mixed, 2);
	case 45: return recvmsg(fd, NULL, MSG_DONTWAIT);
	case 46: return sendmsg(fd, NULL, MSG_DONTWAIT | MSG_NOSIGNAL);
	case 47: return readv(fd, (struct iovec *)a.hole, 1);
	case 48: return writev(fd, (struct iovec *)a.hole, 1);
	case 49: return getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, (socklen_t *)a.hole);
	case 50: return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, a.hole, 4);
	case 51: return poll((struct pollfd *)a.hole, 1, 0);
	case 52: return epoll_ctl(a.ep[0], EPOLL_CTL_ADD, fd, (struct epoll_event *)a.hole);
	case 53: return select(fd + 1, (fd_set *)a.hole, NULL, NULL, &tv);
	case 54: return ioctl(fd, FIONREAD, a.hole);
	case 55: return ioctl(fd, FIONBIO, a.hole);
	case 56: return ioctl(fd, SIOCOUTQ, a.hole);
	case BAD_EPWAIT: return epoll_wait(a.ep[0], (struct epoll_event *)a.hole, 4, 0);
	case 58: return recv(fd, a.hole, 10, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
	case 59: return recv(fd, (void *)-4096l, 10, MSG_DONTWAIT);
	case 60: return send(fd, (void *)-4096l, 10, MSG_NOSIGNAL | MSG_DONTWAIT);
	case 61: return sendto(fd, a.buf[0], 10, MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)a.hole, 16);
	case 62: return recvmmsg(fd, (struct mmsghdr *)a.hole, 2, MSG_DONTWAIT, NULL);
	case 63: return sendmmsg(fd, (struct mmsghdr *)a.hole, 2, MSG_DONTWAIT | MSG_NOSIGNAL);
	case 64: return ppoll(&p, 1, &none, (sigset_t *)a.hole);
	case BAD_EPWAIT_TOP: return epoll_wait(a.ep[0], (struct epoll_event *)-4096l, 4, 0);
	case 66: return epoll_ctl(a.ep[0], EPOLL_CTL_MOD, fd, (struct epoll_event *)a.hole);
	case 67: return sendfile(fd, fd, (off_t *)a.hole, 10);
	default: errno = 0; return 0;
	}
}

long do_end(struct res *r)
{
	struct linger rst = { 1, 0 };
	int i;

	for (i = 0; i < SLOTS; i++) {
		if (a.fd[i] < 0)
			continue;
		/* no TIME_WAIT: thousands of connections a second would leave no port */
		raw(SYS_setsockopt, a.fd[i], SOL_SOCKET, SO_LINGER, (long)&rst, sizeof(rst));
		close(a.fd[i]);
		a.fd[i] = -1;
	}
	for (i = 0; i < EPS; i++)
		if (a.ep[i] >= 0) {
			close(a.ep[i]);
			a.ep[i] = -1;
		}
	i = fcntl(a.lfd[0], F_DUPFD, 3);
	close(i);
	res_extra(r, i);
	return 0;
}
