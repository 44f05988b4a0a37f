/* SPDX-License-Identifier: BSD-2-Clause */
/* read, recv and their family. */
#include "hook.h"
#include <string.h>
#include "user.h"

static ssize_t recv_buf(struct xr_flow *f, int fd, void *buf, size_t n, int flags)
{
	struct iovec iov = { buf, n > XR_RW_MAX ? XR_RW_MAX : n };

	if (xr_unlikely(!xr_user_buffer(buf, iov.iov_len)))
		return -EFAULT;
	return xr_flow_recv(f, fd, &iov, 1, flags);
}

/* read(2) of a socket checks the length and returns 0 for none, recv(2) does neither. */
static ssize_t read_buf(struct xr_flow *f, int fd, void *buf, size_t n)
{
	struct iovec iov = { buf, n > XR_RW_MAX ? XR_RW_MAX : n };

	if (xr_unlikely(!xr_user_range(buf, n)))
		return -EFAULT;
	if (xr_unlikely((ssize_t)n <= 0))
		return n ? -EINVAL : 0;
	return xr_flow_recv(f, fd, &iov, 1, 0);
}

XR_SLOW ssize_t read_flow(struct xr_flow *f, int fd, void *buf, size_t n)
{
	return XR_CARRY_RX(f, fd, read_buf(f, fd, buf, n), xr_real.read(fd, buf, n), n);
}

XR_YOUNG ssize_t read_young(struct xr_flow *f, int fd, void *buf, size_t n)
{
	return XR_CARRY_YOUNG(f, fd, RX, xr_real.read(fd, buf, n), read_flow(f, fd, buf, n));
}

XR_HOOK XR_HOT ssize_t read(int fd, void *buf, size_t n)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.read(fd, buf, n) : read_young(f, fd, buf, n);
}

XR_ALIAS(read) ssize_t __read(int fd, void *buf, size_t n);

XR_HOOK ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
	/* the real one ends the program, with its own message */
	return xr_unlikely(n > room) ? xr_real.__read_chk(fd, buf, n, room) : read(fd, buf, n);
}

static ssize_t read_iov(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags)
{
	struct iovec few[XR_IOV_FEW], *own;
	ssize_t n;

	if (cnt < 0 || cnt > IOV_MAX)
		return -EINVAL;
	own = XR_IOV_ROOM(few, cnt);
	n = xr_iov_import(own, iov, (size_t)cnt);
	return n <= 0 ? n : xr_flow_recv(f, fd, own, cnt, flags);
}

XR_SLOW ssize_t readv_flow(struct xr_flow *f, int fd, const struct iovec *iov, int cnt)
{
	return XR_CARRY_RX(f, fd, read_iov(f, fd, iov, cnt, 0), xr_real.readv(fd, iov, cnt), 1);
}

XR_YOUNG ssize_t readv_young(struct xr_flow *f, int fd, const struct iovec *iov, int cnt)
{
	return XR_CARRY_YOUNG(f, fd, RX, xr_real.readv(fd, iov, cnt),
			      readv_flow(f, fd, iov, cnt));
}

XR_HOOK XR_HOT ssize_t readv(int fd, const struct iovec *iov, int cnt)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.readv(fd, iov, cnt) : readv_young(f, fd, iov, cnt);
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

/* Urgent data lives in the kernel only.  The error queue too, but for what zerocopy.h has to tell. */
static int recv_kernel(struct xr_flow *f, int fd, int flags)
{
	if (flags & MSG_OOB && !xr_fork_check_fd(fd))
		xr_flow_stay_tcp(f, fd, XR_REASON_OOB);
	return (flags & (MSG_OOB | MSG_ERRQUEUE)) != 0;
}

XR_SLOW ssize_t recv_flow(struct xr_flow *f, int fd, void *buf, size_t n, int flags)
{
	ssize_t told;

	if (xr_unlikely(flags & (MSG_OOB | MSG_ERRQUEUE)) && recv_kernel(f, fd, flags))
		return flags & MSG_ERRQUEUE && xr_zerocopy_tell(f, NULL, flags, &told) ? told :
		       xr_real.recv(fd, buf, n, flags);
	return XR_CARRY_RX(f, fd, recv_buf(f, fd, buf, n, flags), xr_real.recv(fd, buf, n, flags),
			   n && !(flags & MSG_PEEK));
}

XR_YOUNG ssize_t recv_young(struct xr_flow *f, int fd, void *buf, size_t n, int flags)
{
	if (xr_unlikely(flags & XR_RECV_OTHER))
		return recv_flow(f, fd, buf, n, flags);
	return XR_CARRY_YOUNG(f, fd, RX, xr_real.recv(fd, buf, n, flags),
			      recv_flow(f, fd, buf, n, flags));
}

XR_HOOK XR_HOT ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	return xr_likely(!f) ? xr_real.recv(fd, buf, n, flags) : recv_young(f, fd, buf, n, flags);
}

XR_HOOK ssize_t __recv_chk(int fd, void *buf, size_t n, size_t room, int flags)
{
	return xr_unlikely(n > room) ? xr_real.__recv_chk(fd, buf, n, room, flags) :
				       recv(fd, buf, n, flags);
}

/*
 * A connected stream has no source address to tell: the length becomes 0.  That comes last, as
 * in the kernel: what was read is read, whatever is wrong with the length.
 */
static ssize_t recvfrom_buf(struct xr_flow *f, int fd, void *buf, size_t n, int flags,
			    const void *addr, socklen_t *len)
{
	ssize_t r = recv_buf(f, fd, buf, n, flags);
	int room;

	if (xr_likely(r < 0 || !addr))
		return r;
	if (xr_user_get(&room, len, sizeof(room)))
		return -EFAULT;
	if (room < 0)
		return -EINVAL;
	room = 0;
	return xr_user_put(len, &room, sizeof(room)) ? -EFAULT : r;
}

XR_SLOW ssize_t recvfrom_flow(struct xr_flow *f, int fd, void *buf, size_t n, int flags,
			      struct sockaddr *addr, socklen_t *len)
{
	ssize_t told;

	if (xr_unlikely(flags & (MSG_OOB | MSG_ERRQUEUE)) && recv_kernel(f, fd, flags))
		return flags & MSG_ERRQUEUE && xr_zerocopy_tell(f, NULL, flags, &told) ? told :
		       xr_real.recvfrom(fd, buf, n, flags, addr, len);
	return XR_CARRY_RX(f, fd, recvfrom_buf(f, fd, buf, n, flags, addr, len),
			   xr_real.recvfrom(fd, buf, n, flags, addr, len),
			   n && !(flags & MSG_PEEK));
}

XR_YOUNG ssize_t recvfrom_young(struct xr_flow *f, int fd, void *buf, size_t n, int flags,
				struct sockaddr *addr, socklen_t *len)
{
	if (xr_unlikely(flags & XR_RECV_OTHER))
		return recvfrom_flow(f, fd, buf, n, flags, addr, len);
	return XR_CARRY_YOUNG(f, fd, RX, xr_real.recvfrom(fd, buf, n, flags, addr, len),
			      recvfrom_flow(f, fd, buf, n, flags, addr, len));
}

XR_HOOK XR_HOT ssize_t recvfrom(int fd, void *restrict buf, size_t n, int flags,
			 struct sockaddr *restrict addr, socklen_t *restrict len)
{
	struct xr_flow *f = xr_hook_find(fd);

	if (xr_likely(!f))
		return xr_real.recvfrom(fd, buf, n, flags, addr, len);
	return recvfrom_young(f, fd, buf, n, flags, addr, len);
}

XR_HOOK ssize_t __recvfrom_chk(int fd, void *restrict buf, size_t n, size_t room, int flags,
			       struct sockaddr *restrict addr, socklen_t *restrict len)
{
	if (xr_unlikely(n > room))
		return xr_real.__recvfrom_chk(fd, buf, n, room, flags, addr, len);
	return recvfrom(fd, buf, n, flags, addr, len);
}

/* What a message header is told about what was read.  0 or -EFAULT. */
static int recvmsg_tell(struct msghdr *mh, const struct msghdr *own, int flags)
{
	const socklen_t none = 0;
	const size_t nothing = 0;

	flags &= MSG_CMSG_CLOEXEC;
	if (own->msg_name && xr_user_put(&mh->msg_namelen, &none, sizeof(none)))
		return -EFAULT;
	if (xr_user_put(&mh->msg_flags, &flags, sizeof(flags)))
		return -EFAULT;
	return xr_user_put(&mh->msg_controllen, &nothing, sizeof(nothing));
}

ssize_t xr_hook_recvmsg(struct xr_flow *f, int fd, struct msghdr *mh, int flags)
{
	struct iovec few[XR_IOV_FEW], *own;
	struct msghdr m;
	ssize_t n = xr_msghdr_import(&m, mh, 0);
	int r;

	if (xr_unlikely(n))
		return n;
	own = XR_IOV_ROOM(few, m.msg_iovlen);
	n = xr_iov_import(own, m.msg_iov, m.msg_iovlen);
	if (xr_likely(n >= 0))
		n = xr_flow_recv(f, fd, own, (int)m.msg_iovlen, flags);
	if (n < 0)
		return n;
	r = recvmsg_tell(mh, &m, flags);
	return xr_unlikely(r) ? r : n;
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

/* Of the error queue, whatever carries the flow now. */
XR_SLOW ssize_t recvmsg_errqueue(int fd, struct msghdr *mh, int flags)
{
	struct xr_flow *f = xr_fd_flow(fd);
	ssize_t n;

	if (!f || xr_fork_check_fd(fd))
		return xr_real.recvmsg(fd, mh, flags);
	if (xr_zerocopy_tell(f, mh, flags, &n))
		return xr_ret(n);
	n = xr_real.recvmsg(fd, mh, flags);
	if (n >= 0)
		xr_zerocopy_heard(f, mh);
	return n;
}

XR_YOUNG ssize_t recvmsg_young(struct xr_flow *f, int fd, struct msghdr *mh, int flags)
{
	if (xr_unlikely(flags & XR_RECV_OTHER))
		return recvmsg_flow(f, fd, mh, flags);
	return XR_CARRY_YOUNG(f, fd, RX, xr_real.recvmsg(fd, mh, flags),
			      recvmsg_flow(f, fd, mh, flags));
}

XR_HOOK XR_HOT ssize_t recvmsg(int fd, struct msghdr *mh, int flags)
{
	struct xr_flow *f = xr_hook_find(fd);

	if (xr_unlikely(flags & MSG_ERRQUEUE))
		return recvmsg_errqueue(fd, mh, flags);

	return xr_likely(!f) ? real_recvmsg(fd, mh, flags) : recvmsg_young(f, fd, mh, flags);
}

/* One message of recvmmsg: bytes or -1 and errno. */
static ssize_t recvmmsg_one(struct xr_flow *f, int fd, struct msghdr *mh, int flags)
{
	return XR_CARRY_RX(f, fd, xr_hook_recvmsg(f, fd, mh, flags),
			   xr_real.recvmsg(fd, mh, flags), iov_any(mh) && !(flags & MSG_PEEK));
}

/* 1: there is time for another message. */
static int recvmmsg_time(uint64_t deadline, struct timespec *left)
{
	uint64_t now = xr_now_ns(), ns = now < deadline ? deadline - now : 0;

	left->tv_sec = (time_t)(ns / 1000000000u);
	left->tv_nsec = (long)(ns % 1000000000u);
	return ns != 0;
}

/*
 * The loop of the kernel's do_recvmmsg: the time-out is looked at after each message.  An
 * error behind messages is for the next call, like one of the connection.
 */
static int recvmmsg_loop(struct xr_flow *f, int fd, struct mmsghdr *vec, unsigned int vlen,
			 int flags, struct timespec *timeout)
{
	uint64_t deadline = 0;
	struct timespec left = { 0, 0 };
	unsigned int i;
	int err;

	if (timeout) {
		if (xr_user_get(&left, timeout, sizeof(left)))
			return (int)xr_ret(-EFAULT);
		if (left.tv_sec < 0 || left.tv_nsec < 0 || left.tv_nsec >= 1000000000)
			return (int)xr_ret(-EINVAL);
		deadline = xr_now_ns() + (uint64_t)left.tv_sec * 1000000000u + (uint64_t)left.tv_nsec;
	}
	/* as in the kernel an error comes before what could still be read */
	err = xr_flow_error(f, fd);
	if (err)
		return (int)xr_ret(-err);
	for (i = 0; i < vlen && i < IOV_MAX; i++) {
		ssize_t n = recvmmsg_one(f, fd, &vec[i].msg_hdr, flags & ~MSG_WAITFORONE);
		unsigned int len = (unsigned int)n;

		if (n >= 0 && xr_user_put(&vec[i].msg_len, &len, sizeof(len)))
			n = xr_ret(-EFAULT);
		if (n < 0 && !i)
			return -1;
		if (n < 0 && errno != EAGAIN)
			xr_store_release(&f->err, (uint32_t)errno);
		if (n < 0)
			break;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (timeout && !recvmmsg_time(deadline, &left)) {
			i++;
			break;
		}
	}
	if (i && timeout && xr_user_put(timeout, &left, sizeof(left)))
		return (int)xr_ret(-EFAULT);
	return (int)i;
}

/* Which never waits. */
XR_SLOW int recvmmsg_errqueue(int fd, struct mmsghdr *vec, unsigned int vlen, int flags)
{
	const unsigned int none = 0;
	unsigned int i;

	for (i = 0; i < vlen && i < IOV_MAX; i++)
		if (recvmsg_errqueue(fd, &vec[i].msg_hdr, flags & ~MSG_WAITFORONE) < 0 ||
		    xr_user_put(&vec[i].msg_len, &none, sizeof(none)))
			return i ? (int)i : -1;
	return (int)i;
}

XR_HOOK int recvmmsg(int fd, struct mmsghdr *vec, unsigned int vlen, int flags,
		     struct timespec *timeout)
{
	struct xr_flow *f = xr_hook_flow(fd);
	int n, i;

	if (xr_unlikely(flags & MSG_ERRQUEUE) && xr_fd_flow(fd))
		return recvmmsg_errqueue(fd, vec, vlen, flags);
	if (f && !(flags & (MSG_OOB | MSG_ERRQUEUE)))
		return recvmmsg_loop(f, fd, vec, vlen, flags, timeout);
	if (f)
		recv_kernel(f, fd, flags);
	n = xr_real.recvmmsg(fd, vec, vlen, flags, timeout);
	for (i = 0; i < n; i++)
		if (vec[i].msg_hdr.msg_controllen && !xr_vfork_depth)
			recv_rights(&vec[i].msg_hdr);
	return n;
}
