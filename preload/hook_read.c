/* SPDX-License-Identifier: BSD-2-Clause */
/* read, recv and their family. */
#include "hook.h"
#include <alloca.h>
#include <string.h>

ssize_t xr_hook_recvv(struct xr_flow *f, int fd, const struct iovec *iov, size_t cnt, int flags)
{
	struct iovec *part;
	size_t left = XR_RW_MAX, i;
	int cut;
	ssize_t n = xr_iov_total(iov, cnt, &cut);

	if (xr_unlikely(n < 0))
		return n;
	if (xr_likely(!cut))
		return xr_flow_recv(f, fd, iov, (int)cnt, flags);
	part = alloca(cnt * sizeof(*part));
	for (i = 0; i < cnt && left; i++) {
		part[i] = iov[i];
		if (part[i].iov_len > left)
			part[i].iov_len = left;
		left -= part[i].iov_len;
	}
	return xr_flow_recv(f, fd, part, (int)i, flags);
}

static ssize_t recv_buf(struct xr_flow *f, int fd, void *buf, size_t n, int flags)
{
	struct iovec iov = { buf, n > XR_RW_MAX ? XR_RW_MAX : n };

	return xr_flow_recv(f, fd, &iov, 1, flags);
}

/* read(2) of a socket checks the length and returns 0 for none, recv(2) does neither. */
static ssize_t read_buf(struct xr_flow *f, int fd, void *buf, size_t n)
{
	if (xr_unlikely((ssize_t)n <= 0))
		return n ? -EINVAL : 0;
	return recv_buf(f, fd, buf, n, 0);
}

XR_SLOW ssize_t read_flow(struct xr_flow *f, int fd, void *buf, size_t n)
{
	return XR_CARRY_RX(f, fd, read_buf(f, fd, buf, n), xr_real.read(fd, buf, n), n);
}

XR_HOOK ssize_t read(int fd, void *buf, size_t n)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.read(fd, buf, n) : read_flow(f, fd, buf, n);
}

XR_ALIAS(read) ssize_t __read(int fd, void *buf, size_t n);

XR_HOOK ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
	/* the real one ends the program, with its own message */
	return xr_unlikely(n > room) ? xr_real.__read_chk(fd, buf, n, room) : read(fd, buf, n);
}

static ssize_t read_iov(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags)
{
	ssize_t n;
	int cut;

	if (cnt < 0 || cnt > IOV_MAX)
		return -EINVAL;
	n = xr_iov_total(iov, (size_t)cnt, &cut);
	return n <= 0 ? n : xr_hook_recvv(f, fd, iov, (size_t)cnt, flags);
}

XR_SLOW ssize_t readv_flow(struct xr_flow *f, int fd, const struct iovec *iov, int cnt)
{
	return XR_CARRY_RX(f, fd, read_iov(f, fd, iov, cnt, 0), xr_real.readv(fd, iov, cnt), 1);
}

XR_HOOK ssize_t readv(int fd, const struct iovec *iov, int cnt)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.readv(fd, iov, cnt) : readv_flow(f, fd, iov, cnt);
}

/* At any offset but -1 a socket says ESPIPE, which the kernel can do as well. */
static ssize_t hook_preadv2(__typeof__(preadv2) *real, int fd, const struct iovec *iov, int cnt,
			    off_t off, int flags)
{
	struct xr_flow *f = xr_hook_flow(fd);

	if (xr_likely(!f) || off != -1)
		return real(fd, iov, cnt, off, flags);
	if (flags & ~RWF_NOWAIT)
		xr_flow_stay_tcp(f, fd, XR_REASON_RETREAT_CALL);
	return XR_CARRY_RX(f, fd,
			   read_iov(f, fd, iov, cnt, flags & RWF_NOWAIT ? MSG_DONTWAIT : 0),
			   real(fd, iov, cnt, off, flags), 1);
}

XR_HOOK ssize_t preadv2(int fd, const struct iovec *iov, int cnt, off_t off, int flags)
{
	return hook_preadv2(xr_real.preadv2, fd, iov, cnt, off, flags);
}

XR_HOOK ssize_t preadv64v2(int fd, const struct iovec *iov, int cnt, off64_t off, int flags)
{
	return hook_preadv2(xr_real.preadv64v2, fd, iov, cnt, off, flags);
}

/* Urgent data lives in the kernel only.  The error queue too, and that of a flow is empty. */
static int recv_kernel(struct xr_flow *f, int fd, int flags)
{
	if (flags & MSG_OOB && !xr_fork_check_fd(fd))
		xr_flow_stay_tcp(f, fd, XR_REASON_OOB);
	return (flags & (MSG_OOB | MSG_ERRQUEUE)) != 0;
}

XR_SLOW ssize_t recv_flow(struct xr_flow *f, int fd, void *buf, size_t n, int flags)
{
	if (xr_unlikely(flags & (MSG_OOB | MSG_ERRQUEUE)) && recv_kernel(f, fd, flags))
		return xr_real.recv(fd, buf, n, flags);
	return XR_CARRY_RX(f, fd, recv_buf(f, fd, buf, n, flags), xr_real.recv(fd, buf, n, flags),
			   n && !(flags & MSG_PEEK));
}

XR_HOOK ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.recv(fd, buf, n, flags) : recv_flow(f, fd, buf, n, flags);
}

XR_HOOK ssize_t __recv_chk(int fd, void *buf, size_t n, size_t room, int flags)
{
	return xr_unlikely(n > room) ? xr_real.__recv_chk(fd, buf, n, room, flags) :
				       recv(fd, buf, n, flags);
}

/* A connected stream has no source address to tell: the length becomes 0. */
static ssize_t recvfrom_buf(struct xr_flow *f, int fd, void *buf, size_t n, int flags,
			    const void *addr, socklen_t *len)
{
	ssize_t r = recv_buf(f, fd, buf, n, flags);

	if (r >= 0 && addr) {
		if (!len)
			return -EFAULT;
		*len = 0;
	}
	return r;
}

XR_SLOW ssize_t recvfrom_flow(struct xr_flow *f, int fd, void *buf, size_t n, int flags,
			      struct sockaddr *addr, socklen_t *len)
{
	if (xr_unlikely(flags & (MSG_OOB | MSG_ERRQUEUE)) && recv_kernel(f, fd, flags))
		return xr_real.recvfrom(fd, buf, n, flags, addr, len);
	return XR_CARRY_RX(f, fd, recvfrom_buf(f, fd, buf, n, flags, addr, len),
			   xr_real.recvfrom(fd, buf, n, flags, addr, len),
			   n && !(flags & MSG_PEEK));
}

XR_HOOK ssize_t recvfrom(int fd, void *restrict buf, size_t n, int flags,
			 struct sockaddr *restrict addr, socklen_t *restrict len)
{
	struct xr_flow *f = xr_hook_find(fd);

	if (xr_likely(!f))
		return xr_real.recvfrom(fd, buf, n, flags, addr, len);
	return recvfrom_flow(f, fd, buf, n, flags, addr, len);
}

XR_HOOK ssize_t __recvfrom_chk(int fd, void *restrict buf, size_t n, size_t room, int flags,
			       struct sockaddr *restrict addr, socklen_t *restrict len)
{
	if (xr_unlikely(n > room))
		return xr_real.__recvfrom_chk(fd, buf, n, room, flags, addr, len);
	return recvfrom(fd, buf, n, flags, addr, len);
}

ssize_t xr_hook_recvmsg(struct xr_flow *f, int fd, struct msghdr *mh, int flags)
{
	ssize_t n;

	if (mh->msg_iovlen > IOV_MAX)
		return -EMSGSIZE;
	if (mh->msg_name && (int)mh->msg_namelen < 0)
		return -EINVAL;
	n = xr_hook_recvv(f, fd, mh->msg_iov, mh->msg_iovlen, flags);
	if (n < 0)
		return n;
	if (mh->msg_name)
		mh->msg_namelen = 0;
	mh->msg_controllen = 0;
	mh->msg_flags = flags & MSG_CMSG_CLOEXEC;
	return n;
}

/* Descriptors that came over a Unix socket: the table may remember older files there. */
static void recv_rights(struct msghdr *mh)
{
	struct cmsghdr *c;

	for (c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
		const unsigned char *p = CMSG_DATA(c);
		const unsigned char *end = (unsigned char *)c + c->cmsg_len;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (; p + sizeof(int) <= end; p += sizeof(int)) {
			int fd;

			memcpy(&fd, p, sizeof(fd));
			xr_fds_fresh(fd);
		}
	}
}

static ssize_t real_recvmsg(int fd, struct msghdr *mh, int flags)
{
	ssize_t n = xr_real.recvmsg(fd, mh, flags);

	if (n >= 0 && mh->msg_controllen && !xr_vfork_depth)
		recv_rights(mh);
	return n;
}

static size_t iov_any(const struct msghdr *mh)
{
	size_t i;

	for (i = 0; i < mh->msg_iovlen; i++)
		if (mh->msg_iov[i].iov_len)
			return 1;
	return 0;
}

XR_SLOW ssize_t recvmsg_flow(struct xr_flow *f, int fd, struct msghdr *mh, int flags)
{
	if (xr_unlikely(flags & (MSG_OOB | MSG_ERRQUEUE)) && recv_kernel(f, fd, flags))
		return xr_real.recvmsg(fd, mh, flags);
	return XR_CARRY_RX(f, fd, xr_hook_recvmsg(f, fd, mh, flags),
			   xr_real.recvmsg(fd, mh, flags), iov_any(mh) && !(flags & MSG_PEEK));
}

XR_HOOK ssize_t recvmsg(int fd, struct msghdr *mh, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? real_recvmsg(fd, mh, flags) : recvmsg_flow(f, fd, mh, flags);
}

/* One message of recvmmsg: bytes or -1 and errno. */
static ssize_t recvmmsg_one(struct xr_flow *f, int fd, struct msghdr *mh, int flags)
{
	return XR_CARRY_RX(f, fd, xr_hook_recvmsg(f, fd, mh, flags),
			   xr_real.recvmsg(fd, mh, flags), iov_any(mh) && !(flags & MSG_PEEK));
}

/* The loop of the kernel's do_recvmmsg: the time-out is looked at after each message. */
static int recvmmsg_loop(struct xr_flow *f, int fd, struct mmsghdr *vec, unsigned int vlen,
			 int flags, struct timespec *timeout)
{
	uint64_t deadline = 0, now;
	unsigned int i;

	if (timeout) {
		if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000)
			return (int)xr_ret(-EINVAL);
		deadline = xr_now_ns() + (uint64_t)timeout->tv_sec * 1000000000u +
			   (uint64_t)timeout->tv_nsec;
	}
	for (i = 0; i < vlen && i < IOV_MAX; i++) {
		ssize_t n = recvmmsg_one(f, fd, &vec[i].msg_hdr, flags & ~MSG_WAITFORONE);

		if (n < 0)
			return i ? (int)i : -1;
		vec[i].msg_len = (unsigned int)n;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (!timeout)
			continue;
		now = xr_now_ns();
		if (now >= deadline) {
			timeout->tv_sec = 0;
			timeout->tv_nsec = 0;
			return (int)i + 1;
		}
		timeout->tv_sec = (time_t)((deadline - now) / 1000000000u);
		timeout->tv_nsec = (long)((deadline - now) % 1000000000u);
	}
	return (int)i;
}

XR_HOOK int recvmmsg(int fd, struct mmsghdr *vec, unsigned int vlen, int flags,
		     struct timespec *timeout)
{
	struct xr_flow *f = xr_hook_flow(fd);
	int n, i;

	if (f && !(flags & (MSG_OOB | MSG_ERRQUEUE))) {
		/* as in the kernel an error comes before what could still be read */
		n = xr_flow_error(f, fd);
		if (n)
			return (int)xr_ret(-n);
		return recvmmsg_loop(f, fd, vec, vlen, flags, timeout);
	}
	if (f)
		recv_kernel(f, fd, flags);
	n = xr_real.recvmmsg(fd, vec, vlen, flags, timeout);
	for (i = 0; i < n; i++)
		if (vec[i].msg_hdr.msg_controllen && !xr_vfork_depth)
			recv_rights(&vec[i].msg_hdr);
	return n;
}
