/* SPDX-License-Identifier: BSD-2-Clause */
/* Messages with descriptors over SOCK_SEQPACKET sockets. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "mem.h"
#include "shm_link.h"

#define UNIX_FDS	4

ssize_t xr_unix_send(int fd, const void *msg, size_t len, const int *fds, int nfds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(UNIX_FDS * sizeof(int))];
	} c;
	struct iovec iov = { (void *)(uintptr_t)msg, len };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cm;

	if (nfds > UNIX_FDS)
		return -EINVAL;
	if (nfds) {
		memset(&c, 0, sizeof(c));
		mh.msg_control = c.buf;
		mh.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
		cm = CMSG_FIRSTHDR(&mh);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, (size_t)nfds * sizeof(int));
	}
	return xr_sys3(SYS_sendmsg, fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t xr_unix_recv_low(int fd, void *msg, size_t len, int *fds, int *nfds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(UNIX_FDS * sizeof(int))];
	} c;
	struct iovec iov = { msg, len };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1,
			     .msg_control = c.buf, .msg_controllen = sizeof(c.buf) };
	int got[UNIX_FDS], n = 0, room = *nfds, i, bad = 0;
	struct cmsghdr *cm;
	ssize_t r;

	*nfds = 0;
	memset(&c, 0, sizeof(c));
	r = xr_sys3(SYS_recvmsg, fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (r < 0)
		return r;
	for (cm = CMSG_FIRSTHDR(&mh); cm; cm = CMSG_NXTHDR(&mh, cm)) {
		int k;

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		k = (int)((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (i = 0; i < k && n < UNIX_FDS; i++)
			memcpy(&got[n++], CMSG_DATA(cm) + (size_t)i * sizeof(int), sizeof(int));
	}
	if ((mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || n > room)
		bad = 1;
	for (i = 0; i < n; i++)
		if (bad)
			xr_sys1(SYS_close, got[i]);
		else
			fds[(*nfds)++] = got[i];
	return bad ? -EBADMSG : r;
}

int xr_unix_raise(int *fds, int *nfds)
{
	int n = *nfds, i, bad = 0;

	*nfds = 0;
	for (i = 0; i < n; i++) {
		int high = bad ? -1 : xr_fd_high(fds[i]);

		if (high >= 0) {
			fds[(*nfds)++] = high;
			continue;
		}
		xr_sys1(SYS_close, fds[i]);
		bad = 1;
	}
	while (bad && *nfds)
		xr_fd_close(fds[--*nfds]);
	return bad ? -EBADMSG : 0;
}

ssize_t xr_unix_recv(int fd, void *msg, size_t len, int *fds, int *nfds)
{
	ssize_t n = xr_unix_recv_low(fd, msg, len, fds, nfds);

	return n > 0 && xr_unix_raise(fds, nfds) ? -EBADMSG : n;
}
