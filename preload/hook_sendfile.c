/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * sendfile into a flow on a fabric, by way of a buffer: the file is read with pread,
 * which a concurrent truncation cannot turn into SIGBUS as it could a mapping.
 */
#include "hook.h"
#include <sys/stat.h>
#include "relay.h"
#include "user.h"

#define PIECE		(128u << 10)
#define SPARE		8		/* buffers kept for the next call */

static _Atomic(void *) spare[SPARE];

static void *piece_get(void)
{
	int i;

	for (i = 0; i < SPARE; i++) {
		/* acquire: pairs with the release of the thread that gave it back */
		void *p = xr_load_relaxed(&spare[i]) ? xr_xchg(&spare[i], NULL) : NULL;

		if (p)
			return p;
	}
	return xr_map_private(PIECE);
}

static void piece_put(void *p)
{
	void *none;
	int i;

	for (i = 0; i < SPARE; i++) {
		none = NULL;
		if (xr_cas(&spare[i], &none, p))
			return;
	}
	xr_unmap(p, PIECE);
}

/* Files of which pread at an offset gives what sendfile would. */
static int source_carried(int in)
{
	struct stat st;

	if (xr_sys2(SYS_fstat, in, &st))
		return 0;
	return S_ISREG(st.st_mode) || S_ISBLK(st.st_mode);
}

/*
 * Sends from *pos on, at most count bytes; advances *pos by what was sent.  Bytes or
 * -errno; -EREMOTEIO with *done bytes sent: the rest is the kernel's.
 */
static ssize_t send_pieces(struct xr_flow *f, int fd, int in, off_t *pos, size_t count,
			   size_t *done, void *buf)
{
	*done = 0;
	while (*done < count) {
		size_t want = count - *done < PIECE ? count - *done : PIECE;
		struct iovec iov = { buf, 0 };
		ssize_t n = xr_sys4(SYS_pread64, in, buf, want, *pos);

		if (n <= 0)
			return *done ? (ssize_t)*done : n;
		iov.iov_len = (size_t)n;
		/* a short send is no reason to read the rest of the piece again right now */
		n = xr_flow_send(f, fd, &iov, 1, 0);
		if (n == -EREMOTEIO)
			return n;
		if (n < 0)
			return *done ? (ssize_t)*done : n;
		*pos += n;
		*done += (size_t)n;
		if ((size_t)n < iov.iov_len)
			break;
	}
	return (ssize_t)*done;
}

/*
 * Everything written so far must be in the kernel before it writes more by itself.
 * 0, or -EAGAIN when that would block and the program does not want to.
 */
static int all_in_kernel(struct xr_flow *f, int fd)
{
	xr_flow_stay_tcp(f, fd, XR_REASON_RETREAT_CALL);
	while (xr_load_acquire(&f->path) & XR_PATH_TX)
		if (xr_flow_retreat(f, fd, XR_REASON_RETREAT_CALL,
				    f->nonblock ? 0 : XR_HANDOVER_WAIT_NS) == -EAGAIN && f->nonblock)
			return -EAGAIN;
	return 0;
}

/* Bytes, or -1 and errno.  The flow has XR_PATH_TX. */
static ssize_t sendfile_fabric(struct xr_flow *f, int fd, int in, off_t *offset, size_t count)
{
	size_t done = 0;
	ssize_t n, more;
	void *buf;
	off_t pos;

	if (!offset)
		pos = xr_sys3(SYS_lseek, in, 0, SEEK_CUR);
	else if (xr_user_get(&pos, offset, sizeof(pos)))
		return xr_ret(-EFAULT);
	if (pos < 0)
		return xr_ret(offset ? -EINVAL : pos);
	buf = piece_get();
	if (!buf)
		return xr_ret(-ENOMEM);
	if (count > XR_RW_MAX)
		count = XR_RW_MAX;
	n = send_pieces(f, fd, in, &pos, count, &done, buf);
	piece_put(buf);
	/* as in the kernel: what was sent is sent, but that it was cannot be said */
	if (offset && xr_user_put(offset, &pos, sizeof(pos)))
		return xr_ret(-EFAULT);
	if (done && !offset)
		xr_sys3(SYS_lseek, in, pos, SEEK_SET);
	if (n != -EREMOTEIO)
		return xr_ret(n);
	more = sendfile(fd, in, offset, count - done);
	return more < 0 && done ? (ssize_t)done : more + (ssize_t)done;
}

static ssize_t hook_sendfile(int out, int in, off_t *offset, size_t count)
{
	struct xr_flow *f = xr_hook_flow(out), *src = xr_hook_flow(in);
	uint32_t gen = f ? xr_load_relaxed(&f->gen) : 0;
	ssize_t n;
	off_t pos;

	/* before anything is moved on its account; the kernel says EFAULT before all else, too */
	if (offset && (f || src) && xr_user_get(&pos, offset, sizeof(pos)))
		return xr_ret(-EFAULT);
	if (xr_unlikely(src))
		xr_flow_stay_tcp(src, in, XR_REASON_RETREAT_CALL);
	if (xr_likely(!f))
		return xr_real.sendfile(out, in, offset, count);
	if (xr_load_acquire(&f->path) & XR_PATH_TX) {
		if (source_carried(in))
			return sendfile_fabric(f, out, in, offset, count);
		if (all_in_kernel(f, out))
			return xr_ret(-EAGAIN);
	}
	if (!(xr_load_acquire(&f->path) & XR_PATH_COUNT))
		return xr_real.sendfile(out, in, offset, count);
	if (!xr_flow_tcp_tx_begin(f))
		return hook_sendfile(out, in, offset, count);
	n = xr_real.sendfile(out, in, offset, count);
	/* as in XR_CARRY */
	if (xr_unlikely(xr_load_relaxed(&f->gen) != gen))
		return n;
	if (n < 0) {
		int saved = errno;

		xr_flow_tcp_tx_end(f, out, -saved);
		errno = saved;
		return n;
	}
	xr_flow_tcp_tx_end(f, out, n);
	return n;
}

XR_HOOK ssize_t sendfile(int out, int in, off_t *offset, size_t count)
{
	return hook_sendfile(out, in, offset, count);
}

XR_HOOK ssize_t sendfile64(int out, int in, off64_t *offset, size_t count)
{
	return hook_sendfile(out, in, offset, count);
}

/*
 * Only the kernel moves pages between a socket and a pipe.  tee and vmsplice take pipes
 * alone and copy_file_range files alone: they fail on a socket whatever carries it.
 */
XR_HOOK ssize_t splice(int in, off64_t *off_in, int out, off64_t *off_out, size_t len,
		       unsigned int flags)
{
	struct xr_flow *src = xr_hook_flow(in), *dst = xr_hook_flow(out);

	/* what lies unread here the kernel does not know of */
	if (xr_unlikely(src))
		xr_let_go(src, in, XR_REASON_RETREAT_CALL,
			  src->nonblock ? XR_HANDOVER_WAIT_NS / 10 : XR_HANDOVER_WAIT_NS);
	if (xr_unlikely(dst) && all_in_kernel(dst, out))
		return xr_ret(-EAGAIN);
	return xr_real.splice(in, off_in, out, off_out, len, flags);
}
