/* SPDX-License-Identifier: BSD-2-Clause */
/* write, send and their family. */
#include "hook.h"
#include <alloca.h>
#include <string.h>

ssize_t xr_hook_sendv(struct xr_flow *f, int fd, const struct iovec *iov, size_t cnt, int flags)
{
	struct iovec *part;
	size_t left = XR_RW_MAX, i;
	int cut;
	ssize_t n = xr_iov_total(iov, cnt, &cut);

	if (xr_unlikely(n < 0))
		return n;
	if (xr_likely(!cut))
		return xr_flow_send(f, fd, iov, (int)cnt, flags);
	part = alloca(cnt * sizeof(*part));
	for (i = 0; i < cnt && left; i++) {
		part[i] = iov[i];
		if (part[i].iov_len > left)
			part[i].iov_len = left;
		left -= part[i].iov_len;
	}
	return xr_flow_send(f, fd, part, (int)i, flags);
}

static ssize_t send_buf(struct xr_flow *f, int fd, const void *buf, size_t n, int flags)
{
	struct iovec iov = { (void *)(uintptr_t)buf, n > XR_RW_MAX ? XR_RW_MAX : n };

	return xr_flow_send(f, fd, &iov, 1, flags);
}

static ssize_t write_buf(struct xr_flow *f, int fd, const void *buf, size_t n)
{
	if (xr_unlikely((ssize_t)n < 0))
		return -EINVAL;
	return send_buf(f, fd, buf, n, 0);
}

XR_SLOW ssize_t write_flow(struct xr_flow *f, int fd, const void *buf, size_t n)
{
	return XR_CARRY_TX(f, fd, write_buf(f, fd, buf, n), xr_real.write(fd, buf, n));
}

XR_HOOK ssize_t write(int fd, const void *buf, size_t n)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.write(fd, buf, n) : write_flow(f, fd, buf, n);
}

XR_ALIAS(write) ssize_t __write(int fd, const void *buf, size_t n);

static ssize_t write_iov(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags)
{
	ssize_t n;
	int cut;

	if (cnt < 0 || cnt > IOV_MAX)
		return -EINVAL;
	/* as in the kernel, vectors of nothing do not reach the socket: write(2) and send(2) do */
	n = xr_iov_total(iov, (size_t)cnt, &cut);
	return n <= 0 ? n : xr_hook_sendv(f, fd, iov, (size_t)cnt, flags);
}

XR_SLOW ssize_t writev_flow(struct xr_flow *f, int fd, const struct iovec *iov, int cnt)
{
	return XR_CARRY_TX(f, fd, write_iov(f, fd, iov, cnt, 0), xr_real.writev(fd, iov, cnt));
}

XR_HOOK ssize_t writev(int fd, const struct iovec *iov, int cnt)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.writev(fd, iov, cnt) : writev_flow(f, fd, iov, cnt);
}

static ssize_t hook_pwritev2(__typeof__(pwritev2) *real, int fd, const struct iovec *iov, int cnt,
			     off_t off, int flags)
{
	struct xr_flow *f = xr_hook_flow(fd);

	if (xr_likely(!f) || off != -1)
		return real(fd, iov, cnt, off, flags);
	if (flags & ~RWF_NOWAIT)
		xr_flow_stay_tcp(f, fd, XR_REASON_RETREAT_CALL);
	return XR_CARRY_TX(f, fd,
			   write_iov(f, fd, iov, cnt, flags & RWF_NOWAIT ? MSG_DONTWAIT : 0),
			   real(fd, iov, cnt, off, flags));
}

XR_HOOK ssize_t pwritev2(int fd, const struct iovec *iov, int cnt, off_t off, int flags)
{
	return hook_pwritev2(xr_real.pwritev2, fd, iov, cnt, off, flags);
}

XR_HOOK ssize_t pwritev64v2(int fd, const struct iovec *iov, int cnt, off64_t off, int flags)
{
	return hook_pwritev2(xr_real.pwritev64v2, fd, iov, cnt, off, flags);
}

void xr_hook_send_kernel(struct xr_flow *f, int fd, int flags)
{
	if (xr_fork_check_fd(fd))
		return;
	xr_flow_stay_tcp(f, fd, flags & MSG_OOB ? XR_REASON_OOB :
				flags & MSG_FASTOPEN ? XR_REASON_FASTOPEN : XR_REASON_OPTION);
}

XR_SLOW ssize_t send_flow(struct xr_flow *f, int fd, const void *buf, size_t n, int flags)
{
	if (xr_unlikely(flags & XR_SEND_KERNEL))
		xr_hook_send_kernel(f, fd, flags);
	return XR_CARRY_TX(f, fd, send_buf(f, fd, buf, n, flags), xr_real.send(fd, buf, n, flags));
}

XR_HOOK ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.send(fd, buf, n, flags) : send_flow(f, fd, buf, n, flags);
}

XR_ALIAS(send) ssize_t __send(int fd, const void *buf, size_t n, int flags);

/*
 * A connection that begins with MSG_FASTOPEN has no connect() that would tell of it;
 * its flow, which has no path yet, is marked for good.
 */
static void fastopen(int fd)
{
	struct xr_flow *f = xr_fd_flow(fd);

	if (f && !xr_fork_check_fd(fd))
		xr_flow_stay_tcp(f, fd, XR_REASON_FASTOPEN);
}

/* TCP ignores the address of a connected socket. */
XR_SLOW ssize_t sendto_flow(struct xr_flow *f, int fd, const void *buf, size_t n, int flags,
			    const struct sockaddr *addr, socklen_t len)
{
	if (xr_unlikely(flags & XR_SEND_KERNEL))
		xr_hook_send_kernel(f, fd, flags);
	return XR_CARRY_TX(f, fd, send_buf(f, fd, buf, n, flags),
			   xr_real.sendto(fd, buf, n, flags, addr, len));
}

XR_HOOK ssize_t sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *addr,
		       socklen_t len)
{
	struct xr_flow *f = xr_hook_find(fd);

	if (xr_unlikely(flags & MSG_FASTOPEN))
		fastopen(fd);
	if (xr_likely(!f))
		return xr_real.sendto(fd, buf, n, flags, addr, len);
	return sendto_flow(f, fd, buf, n, flags, addr, len);
}

ssize_t xr_hook_sendmsg(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	if (mh->msg_iovlen > IOV_MAX)
		return -EMSGSIZE;
	if (mh->msg_name && (int)mh->msg_namelen < 0)
		return -EINVAL;
	return xr_hook_sendv(f, fd, mh->msg_iov, mh->msg_iovlen, flags);
}

/* A flow whose descriptor leaves for another process must be all in its kernel socket. */
static void send_right(int fd)
{
	struct xr_flow *f = xr_fd_flow(fd);

	if (!f)
		return;
	xr_fork_check();
	if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		xr_flow_retreat(f, fd, XR_REASON_PASSED_FD, XR_HANDOVER_WAIT_NS);
	xr_flow_stay_tcp(f, fd, XR_REASON_PASSED_FD);
	xr_fetch_add(&f->procs, 1);
}

static void send_rights(const struct msghdr *mh)
{
	struct cmsghdr *c;

	for (c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR((struct msghdr *)(uintptr_t)mh, c)) {
		const unsigned char *p = CMSG_DATA(c);
		const unsigned char *end = (unsigned char *)c + c->cmsg_len;

		if (c->cmsg_len < CMSG_LEN(0))
			return;
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (; p + sizeof(int) <= end; p += sizeof(int)) {
			int passed;

			memcpy(&passed, p, sizeof(passed));
			send_right(passed);
		}
	}
}

/* What of a message concerns the kernel: before it is sent by either carrier. */
static void sendmsg_prepare(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	if (mh->msg_controllen && mh->msg_control) {
		send_rights(mh);
		if (f && !xr_fork_check_fd(fd))
			xr_flow_stay_tcp(f, fd, XR_REASON_RETREAT_CALL);
	}
	if (xr_unlikely(flags & MSG_FASTOPEN))
		fastopen(fd);
	if (f && xr_unlikely(flags & XR_SEND_KERNEL))
		xr_hook_send_kernel(f, fd, flags);
}

XR_SLOW ssize_t sendmsg_flow(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	return XR_CARRY_TX(f, fd, xr_hook_sendmsg(f, fd, mh, flags),
			   xr_real.sendmsg(fd, mh, flags));
}

XR_HOOK ssize_t sendmsg(int fd, const struct msghdr *mh, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	/* NULL: the kernel says EFAULT */
	if (xr_likely(mh) && xr_unlikely(mh->msg_controllen || flags & XR_SEND_KERNEL))
		sendmsg_prepare(f, fd, mh, flags);
	return xr_likely(!f) ? xr_real.sendmsg(fd, mh, flags) : sendmsg_flow(f, fd, mh, flags);
}

/* The loop of the kernel's __sys_sendmmsg: it ends after a message that did not fit. */
static int sendmmsg_loop(struct xr_flow *f, int fd, struct mmsghdr *vec, unsigned int vlen,
			 int flags)
{
	unsigned int i;

	for (i = 0; i < vlen && i < IOV_MAX; i++) {
		const struct msghdr *mh = &vec[i].msg_hdr;
		ssize_t total, n;
		int cut;

		n = XR_CARRY_TX(f, fd, xr_hook_sendmsg(f, fd, mh, flags),
				xr_real.sendmsg(fd, mh, flags));
		if (n < 0)
			return i ? (int)i : -1;
		vec[i].msg_len = (unsigned int)n;
		total = xr_iov_total(mh->msg_iov, mh->msg_iovlen, &cut);
		if (n < total)
			return (int)i + 1;
	}
	return (int)i;
}

XR_HOOK int sendmmsg(int fd, struct mmsghdr *vec, unsigned int vlen, int flags)
{
	struct xr_flow *f = xr_hook_flow(fd);
	unsigned int i;

	for (i = 0; i < vlen && i < IOV_MAX; i++)
		if (vec[i].msg_hdr.msg_controllen || flags & XR_SEND_KERNEL)
			sendmsg_prepare(f, fd, &vec[i].msg_hdr, flags);
	if (xr_likely(!f))
		return xr_real.sendmmsg(fd, vec, vlen, flags);
	return sendmmsg_loop(f, fd, vec, vlen, flags);
}
