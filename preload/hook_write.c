/* SPDX-License-Identifier: BSD-2-Clause */
/* write, send and their family. */
#include "hook.h"
#include "relay.h"
#include "user.h"
#include <string.h>

static ssize_t send_buf(struct xr_flow *f, int fd, const void *buf, size_t n, int flags)
{
	struct iovec iov = { (void *)(uintptr_t)buf, n > XR_RW_MAX ? XR_RW_MAX : n };

	if (xr_unlikely(!xr_user_buffer(buf, iov.iov_len)))
		return -EFAULT;
	return xr_flow_send(f, fd, &iov, 1, flags);
}

static ssize_t write_buf(struct xr_flow *f, int fd, const void *buf, size_t n)
{
	struct iovec iov = { (void *)(uintptr_t)buf, n > XR_RW_MAX ? XR_RW_MAX : n };

	if (xr_unlikely(!xr_user_range(buf, n)))
		return -EFAULT;
	if (xr_unlikely((ssize_t)n < 0))
		return -EINVAL;
	return xr_flow_send(f, fd, &iov, 1, 0);
}

XR_SLOW ssize_t write_flow(struct xr_flow *f, int fd, const void *buf, size_t n)
{
	return XR_CARRY_TX(f, fd, write_buf(f, fd, buf, n), xr_real.write(fd, buf, n));
}

XR_YOUNG ssize_t write_young(struct xr_flow *f, int fd, const void *buf, size_t n)
{
	return XR_CARRY_YOUNG(f, fd, TX, xr_real.write(fd, buf, n), write_flow(f, fd, buf, n));
}

XR_HOOK XR_HOT ssize_t write(int fd, const void *buf, size_t n)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.write(fd, buf, n) : write_young(f, fd, buf, n);
}

XR_ALIAS(write) ssize_t __write(int fd, const void *buf, size_t n);

static ssize_t write_iov(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags)
{
	struct iovec few[XR_IOV_FEW], *own;
	ssize_t n;

	if (cnt < 0 || cnt > IOV_MAX)
		return -EINVAL;
	own = XR_IOV_ROOM(few, cnt);
	/* as in the kernel, vectors of nothing do not reach the socket: write(2) and send(2) do */
	n = xr_iov_import(own, iov, (size_t)cnt);
	return n <= 0 ? n : xr_flow_send(f, fd, own, cnt, flags);
}

XR_SLOW ssize_t writev_flow(struct xr_flow *f, int fd, const struct iovec *iov, int cnt)
{
	return XR_CARRY_TX(f, fd, write_iov(f, fd, iov, cnt, 0), xr_real.writev(fd, iov, cnt));
}

XR_YOUNG ssize_t writev_young(struct xr_flow *f, int fd, const struct iovec *iov, int cnt)
{
	return XR_CARRY_YOUNG(f, fd, TX, xr_real.writev(fd, iov, cnt),
			      writev_flow(f, fd, iov, cnt));
}

XR_HOOK XR_HOT ssize_t writev(int fd, const struct iovec *iov, int cnt)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.writev(fd, iov, cnt) : writev_young(f, fd, iov, cnt);
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
	return XR_CARRY_TX(f, fd, send_buf(f, fd, buf, n, flags),
			   XR_ZEROCOPY_KERNEL(f, fd, flags, xr_real.send(fd, buf, n, flags)));
}

XR_YOUNG ssize_t send_young(struct xr_flow *f, int fd, const void *buf, size_t n, int flags)
{
	if (xr_unlikely(flags & XR_SEND_OTHER))
		return send_flow(f, fd, buf, n, flags);
	return XR_CARRY_YOUNG(f, fd, TX, xr_real.send(fd, buf, n, flags),
			      send_flow(f, fd, buf, n, flags));
}

XR_HOOK XR_HOT ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.send(fd, buf, n, flags) : send_young(f, fd, buf, n, flags);
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

/* TCP ignores the address of a connected socket, after it was copied in. */
static ssize_t sendto_buf(struct xr_flow *f, int fd, const void *buf, size_t n, int flags,
			  const struct sockaddr *addr, socklen_t len)
{
	int r;

	if (xr_unlikely(addr != NULL)) {
		if (!xr_user_range(buf, n > XR_RW_MAX ? XR_RW_MAX : n))
			return -EFAULT;
		r = xr_addr_import(addr, len);
		if (r)
			return r;
	}
	return send_buf(f, fd, buf, n, flags);
}

XR_SLOW ssize_t sendto_flow(struct xr_flow *f, int fd, const void *buf, size_t n, int flags,
			    const struct sockaddr *addr, socklen_t len)
{
	if (xr_unlikely(flags & XR_SEND_KERNEL))
		xr_hook_send_kernel(f, fd, flags);
	return XR_CARRY_TX(f, fd, sendto_buf(f, fd, buf, n, flags, addr, len),
			   XR_ZEROCOPY_KERNEL(f, fd, flags, xr_real.sendto(fd, buf, n, flags, addr, len)));
}

XR_YOUNG ssize_t sendto_young(struct xr_flow *f, int fd, const void *buf, size_t n, int flags,
			      const struct sockaddr *addr, socklen_t len)
{
	if (xr_unlikely(flags & XR_SEND_OTHER))
		return sendto_flow(f, fd, buf, n, flags, addr, len);
	return XR_CARRY_YOUNG(f, fd, TX, xr_real.sendto(fd, buf, n, flags, addr, len),
			      sendto_flow(f, fd, buf, n, flags, addr, len));
}

XR_HOOK XR_HOT ssize_t sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *addr,
		       socklen_t len)
{
	struct xr_flow *f = xr_hook_find(fd);

	if (xr_unlikely(flags & MSG_FASTOPEN))
		fastopen(fd);
	if (xr_likely(!f))
		return xr_real.sendto(fd, buf, n, flags, addr, len);
	return sendto_young(f, fd, buf, n, flags, addr, len);
}

ssize_t xr_hook_sendmsg(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	struct iovec few[XR_IOV_FEW], *own;
	struct msghdr m;
	ssize_t n = xr_msghdr_import(&m, mh, 1);

	if (xr_unlikely(n))
		return n;
	own = XR_IOV_ROOM(few, m.msg_iovlen);
	n = xr_iov_import(own, m.msg_iov, m.msg_iovlen);
	return n < 0 ? n : xr_flow_send(f, fd, own, (int)m.msg_iovlen, flags);
}

/* A flow whose descriptor leaves for another process must be all in its kernel socket. */
static void send_right(int fd, struct xr_relay *r)
{
	struct xr_flow *f = xr_fd_flow(fd);

	if (!f)
		return;
	xr_fork_check();
	xr_relay_let_go(r, f, fd, XR_REASON_PASSED_FD, XR_HANDOVER_WAIT_NS);
	if (xr_fd_flow(fd) == f)
		xr_fetch_add(&f->procs, 1);
}

/* Control data that is not what it should be is the kernel's to refuse. */
static void send_rights(const struct msghdr *m)
{
	const uint8_t *control = m->msg_control;
	size_t off = 0, at;
	struct xr_relay r;
	struct cmsghdr c;
	int passed;

	r.n = 0;
	while (off < m->msg_controllen && m->msg_controllen - off >= sizeof(c)) {
		if (xr_user_get(&c, control + off, sizeof(c)) || c.cmsg_len < CMSG_LEN(0) ||
		    c.cmsg_len > m->msg_controllen - off)
			break;
		if (c.cmsg_level == SOL_SOCKET && c.cmsg_type == SCM_RIGHTS)
			for (at = CMSG_LEN(0); at + sizeof(int) <= c.cmsg_len; at += sizeof(int)) {
				if (xr_user_get(&passed, control + off + at, sizeof(passed)))
					break;
				send_right(passed, &r);
			}
		off += CMSG_ALIGN(c.cmsg_len);
	}
	xr_relay_run(&r);
}

/* Without an entry in the table there is no flow that could be passed, and no need to look. */
static int has_control(const struct msghdr *mh)
{
	size_t len;

	return xr_load_relaxed(&xr_fd_any) &&
	       !xr_user_get(&len, &mh->msg_controllen, sizeof(len)) && len;
}

/* What of a message concerns the kernel: before it is sent by either carrier. */
static void sendmsg_prepare(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	struct msghdr m;

	if (has_control(mh) && !xr_user_get(&m, mh, sizeof(m)) && m.msg_control) {
		send_rights(&m);
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
			   XR_ZEROCOPY_KERNEL(f, fd, flags, xr_real.sendmsg(fd, mh, flags)));
}

XR_SLOW ssize_t sendmsg_control(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	sendmsg_prepare(f, fd, mh, flags);
	return xr_likely(!f) ? xr_real.sendmsg(fd, mh, flags) : sendmsg_flow(f, fd, mh, flags);
}

XR_YOUNG ssize_t sendmsg_young(struct xr_flow *f, int fd, const struct msghdr *mh, int flags)
{
	if (xr_unlikely(flags & XR_SEND_OTHER))
		return sendmsg_flow(f, fd, mh, flags);
	return XR_CARRY_YOUNG(f, fd, TX, xr_real.sendmsg(fd, mh, flags),
			      sendmsg_flow(f, fd, mh, flags));
}

XR_HOOK XR_HOT ssize_t sendmsg(int fd, const struct msghdr *mh, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	if (xr_unlikely(has_control(mh)))
		return sendmsg_control(f, fd, mh, flags);
	if (xr_unlikely(flags & XR_SEND_KERNEL))
		sendmsg_prepare(f, fd, mh, flags);
	return xr_likely(!f) ? xr_real.sendmsg(fd, mh, flags) : sendmsg_young(f, fd, mh, flags);
}

/* The bytes of a message that the kernel or a flow has taken. */
static ssize_t msg_total(const struct msghdr *mh)
{
	struct iovec few[XR_IOV_FEW], *own;
	struct msghdr m;

	if (xr_user_get(&m, mh, sizeof(m)) || m.msg_iovlen > IOV_MAX)
		return 0;
	own = XR_IOV_ROOM(few, m.msg_iovlen);
	return xr_iov_import(own, m.msg_iov, m.msg_iovlen);
}

/* The loop of the kernel's __sys_sendmmsg: it ends after a message that did not fit. */
static int sendmmsg_loop(struct xr_flow *f, int fd, struct mmsghdr *vec, unsigned int vlen,
			 int flags)
{
	unsigned int i;

	for (i = 0; i < vlen && i < IOV_MAX; i++) {
		const struct msghdr *mh = &vec[i].msg_hdr;
		unsigned int len;
		ssize_t n;

		n = XR_CARRY_TX(f, fd, xr_hook_sendmsg(f, fd, mh, flags),
				XR_ZEROCOPY_KERNEL(f, fd, flags, xr_real.sendmsg(fd, mh, flags)));
		if (n < 0)
			return i ? (int)i : -1;
		len = (unsigned int)n;
		if (xr_user_put(&vec[i].msg_len, &len, sizeof(len)))
			return i ? (int)i : (int)xr_ret(-EFAULT);
		if (n < msg_total(mh))
			return (int)i + 1;
	}
	return (int)i;
}

static int is_unix(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	return domain == AF_UNIX;
}

XR_HOOK int sendmmsg(int fd, struct mmsghdr *vec, unsigned int vlen, int flags)
{
	struct xr_flow *f = xr_hook_flow(fd);
	unsigned int i;

	/* before a flow has moved a look at each message is dear: not for what can pass none */
	if (!f && !(flags & MSG_FASTOPEN) && !xr_load_relaxed(&xr_user_guarded) && !is_unix(fd))
		return xr_real.sendmmsg(fd, vec, vlen, flags);
	for (i = 0; i < vlen && i < IOV_MAX; i++)
		sendmsg_prepare(f, fd, &vec[i].msg_hdr, flags);
	if (xr_likely(!f))
		return xr_real.sendmmsg(fd, vec, vlen, flags);
	return sendmmsg_loop(f, fd, vec, vlen, flags);
}
