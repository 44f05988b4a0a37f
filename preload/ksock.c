/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernel socket under a flow, by raw system calls that never block. */
#include <errno.h>
#include <asm/ioctls.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "flow_rx.h"
#include "mem.h"

ssize_t xr_ksock_recv(int fd, const struct iovec *iov, int cnt, int flags)
{
	struct msghdr mh = { .msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)cnt };

	return xr_sys3(SYS_recvmsg, fd, &mh, flags | MSG_DONTWAIT);
}

ssize_t xr_ksock_send(int fd, const struct iovec *iov, int cnt, int flags)
{
	struct msghdr mh = { .msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)cnt };

	return xr_sys3(SYS_sendmsg, fd, &mh, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
}

int xr_flow_error(struct xr_flow *f, int fd)
{
	int err = xr_flow_take_error(f);
	socklen_t len = sizeof(err);

	if (err)
		return err;
	xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &err, &len);
	/* a peer that had sent its FIN before the RST: on TCP that is EPIPE */
	return err == ECONNRESET && f->link && (xr_flow_peer_state(f) & XR_DIR_ENDED) ? EPIPE : err;
}

uint32_t xr_ksock_poll(int fd, uint32_t events)
{
	struct pollfd p = { .fd = fd, .events = (short)events };
	struct timespec zero = { 0, 0 };
	long n = xr_sys5(SYS_ppoll, &p, 1, &zero, 0, 8);

	return n > 0 ? (uint32_t)(unsigned short)p.revents : 0;
}

void xr_ksock_reset(int fd)
{
	static const struct sockaddr none = { .sa_family = AF_UNSPEC };
	static const struct linger rst = { 1, 0 };

	/* in case the next one is refused: then it comes with close */
	xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	/* tcp_disconnect: RST to the peer, ECONNRESET here and to whoever sleeps on it */
	xr_sys3(SYS_connect, fd, &none, sizeof(none));
	/* and then an end, as behind an RST that was received; it says ENOTCONN, and does it */
	xr_sys2(SYS_shutdown, fd, SHUT_RDWR);
}

#define KSOCK_RTT_MOST		60000000u	/* us: none was measured */
#define KSOCK_ESTABLISHED	1	/* TCP_ESTABLISHED; its header and linux/tcp.h exclude each other */
/* a FIN counts as a byte: by TCP_* state, one that was received, one that was sent */
#define KSOCK_FIN_RX		(1u << 8 | 1u << 9 | 1u << 11 | 1u << 6)
#define KSOCK_FIN_TX		(1u << 4 | 1u << 5 | 1u << 9 | 1u << 11 | 1u << 6)

static long ksock_info(int fd, struct tcp_info *info)
{
	socklen_t len = sizeof(*info);
	long r = xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, info, &len);

	if (r)
		return r;
	if (len < offsetof(struct tcp_info, tcpi_bytes_retrans) + 8)
		return -EOPNOTSUPP;
	/* a FIN counts as a byte, in either direction */
	return info->tcpi_state != KSOCK_ESTABLISHED ? -ESHUTDOWN : 0;
}

/*
 * written = bytes ever handed to the kernel; read = bytes ever taken from it.  Both in one getsockopt, so that they
 * cannot tear, but for the receive queue, which may grow in between.  It is looked at first: then read comes out too
 * large, if anything, and it is never less than what our caller knows of; so if it is just that, nothing came in
 * between.  Else a second look at bytes_received says so.
 */
int xr_ksock_offsets(int fd, uint64_t known, uint64_t *written, uint64_t *read)
{
	struct tcp_info a, b;
	int i, inq;
	long r;

	for (i = 0; i < 16; i++) {
		r = xr_sys3(SYS_ioctl, fd, SIOCINQ, &inq);
		if (!r)
			r = ksock_info(fd, &a);
		if (r)
			return (int)r;
		*written = a.tcpi_bytes_sent - a.tcpi_bytes_retrans + a.tcpi_notsent_bytes;
		*read = a.tcpi_bytes_received - (uint64_t)(unsigned int)inq;
		if (*read == known)
			return 0;
		r = xr_sys3(SYS_ioctl, fd, SIOCINQ, &inq);
		if (!r)
			r = ksock_info(fd, &b);
		if (r)
			return (int)r;
		*read = a.tcpi_bytes_received - (uint64_t)(unsigned int)inq;
		if (a.tcpi_bytes_received == b.tcpi_bytes_received)
			return 0;
	}
	return -EAGAIN;
}

int xr_ksock_written(int fd, int connects, uint64_t *written)
{
	struct tcp_info a, b;
	int i, outq;

	for (i = 0; i < 16; i++) {
		socklen_t la = sizeof(a), lb = sizeof(b);
		long r = xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &a, &la);

		if (!r)
			r = xr_sys3(SYS_ioctl, fd, SIOCOUTQ, &outq);
		if (!r)
			r = xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &b, &lb);
		if (r)
			return (int)r;
		if (a.tcpi_bytes_acked != b.tcpi_bytes_acked || a.tcpi_state != b.tcpi_state)
			continue;
		/* the SYN of the connecting end was acknowledged as a byte */
		*written = a.tcpi_bytes_acked - (connects && a.tcpi_bytes_acked) + (uint64_t)(unsigned int)outq -
			   (KSOCK_FIN_TX >> a.tcpi_state & 1);
		return 0;
	}
	return -EAGAIN;
}

int xr_ksock_moved(int fd, uint64_t *written, uint64_t *read)
{
	struct tcp_info a;
	socklen_t len = sizeof(a);
	int inq = 0;
	long r = xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &a, &len);

	if (r)
		return (int)r;
	if (len < offsetof(struct tcp_info, tcpi_bytes_retrans) + 8)
		return -EOPNOTSUPP;
	xr_sys3(SYS_ioctl, fd, SIOCINQ, &inq);
	*written = a.tcpi_bytes_sent - a.tcpi_bytes_retrans + a.tcpi_notsent_bytes -
		   (KSOCK_FIN_TX >> a.tcpi_state & 1);
	*read = a.tcpi_bytes_received - (uint64_t)(unsigned int)inq - (KSOCK_FIN_RX >> a.tcpi_state & 1);
	return 0;
}

/*
 * MSG_MORE, TCP_CORK or Nagle may hold back the last bytes before the switch until more
 * come, and no more will: setting TCP_NODELAY sends them.
 */
void xr_ksock_push_tail(int fd)
{
	int on = 1, was = 0;
	socklen_t len = sizeof(was);

	xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &was, &len);
	xr_sys5(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (!was)
		xr_sys5(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &was, sizeof(was));
}

uint32_t xr_ksock_rtt_us(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &len) || info.tcpi_min_rtt > KSOCK_RTT_MOST)
		return 0;
	return info.tcpi_min_rtt;
}
