/* SPDX-License-Identifier: BSD-2-Clause */
/* The rendezvous point: an abstract socket named by both endpoints of a connection. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include "log.h"
#include "mem.h"
#include "rundir.h"
#include "upgrade.h"

/*
 * Abstract names are private to a network namespace, as the endpoints are.  The name
 * holds both endpoints: flows to different servers may share a local port.  The
 * connecting end is always first.
 */
static socklen_t rdv_name(struct sockaddr_un *sa, const struct xr_tuple *t, int connecting)
{
	static const uint64_t key[2] = { 0x7872646d612d7264ull, 0x7a2d706f696e7431ull };
	struct xr_tuple canon = *t;
	uint64_t a, b;

	if (!connecting)
		xr_tuple_mirror(&canon, t);
	a = xr_siphash(key, &canon, sizeof(canon));
	canon.zero = 1;
	b = xr_siphash(key, &canon, sizeof(canon));
	memset(sa, 0, sizeof(*sa));
	sa->sun_family = AF_UNIX;
	xr_snprintf(sa->sun_path + 1, sizeof(sa->sun_path) - 1, "xrdma/%016llx%016llx",
		    (unsigned long long)a, (unsigned long long)b);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 6 + 32);
}

int xr_rendezvous_socket(void)
{
	long fd = xr_sys3(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int high;

	if (fd < 0)
		return (int)fd;
	high = xr_fd_high((int)fd);
	if (high < 0)
		xr_sys1(SYS_close, fd);
	return high;
}

static int rdv_open(const struct xr_tuple *t, int connecting)
{
	struct sockaddr_un sa;
	socklen_t len = rdv_name(&sa, t, connecting);
	int fd = xr_rendezvous_socket();
	long r;

	if (fd < 0)
		return fd;
	r = xr_sys3(connecting ? SYS_bind : SYS_connect, fd, &sa, len);
	if (!r && connecting)
		r = xr_sys2(SYS_listen, fd, 4);
	if (!r)
		return fd;
	xr_fd_close(fd);
	return (int)r;
}

int xr_rendezvous_listen(const struct xr_tuple *t)
{
	return rdv_open(t, 1);
}

int xr_rendezvous_call(const struct xr_tuple *t)
{
	return rdv_open(t, 0);
}

int xr_rendezvous_accept(int lfd)
{
	struct pollfd p = { .fd = lfd, .events = POLLIN };
	struct timespec none = { 0 };
	long fd;
	int high;

	/* it makes a socket, with all that belongs to it, before it finds that nobody is there: mostly that is so */
	if (!xr_sys5(SYS_ppoll, &p, 1, &none, 0, 8))
		return -EAGAIN;
	fd = xr_sys4(SYS_accept4, lfd, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return (int)fd;
	high = xr_fd_high((int)fd);
	if (high < 0)
		xr_sys1(SYS_close, fd);
	return high;
}

enum xr_reason xr_up_errno_reason(int r)
{
	switch (r) {
	case -EMFILE:
	case -ENFILE:
		return XR_REASON_LIMIT_FDS;
	case -ENOMEM:
	case -EFBIG:
	case -ENOSPC:
		return XR_REASON_LIMIT_MEMORY;
	case -ENODEV:
		return XR_REASON_NO_SHM;
	case -EADDRINUSE:
		return XR_REASON_RENDEZVOUS_BUSY;
	case -EPIPE:
	case -ECONNRESET:
		/* it was there, and hung up */
		return XR_REASON_PEER_REFUSED;
	case -EPROTONOSUPPORT:
		return XR_REASON_VERSION_MISMATCH;
	case -EACCES:
		return XR_REASON_PROOF_FAILED;
	case -EBADMSG:
	case -EPROTO:
		return XR_REASON_BAD_HANDSHAKE;
	default:
		return XR_REASON_RENDEZVOUS_FAILED;
	}
}

int xr_up_check(const struct xr_up_msg *m, size_t len, enum xr_up_type type,
		const struct xr_tuple *own)
{
	struct xr_tuple far, said;

	if (len < 8 || m->magic != XR_UP_MAGIC)
		return -EBADMSG;
	if (m->version != XR_UP_VERSION)
		return -EPROTONOSUPPORT;
	if (len != sizeof(*m) || m->size != sizeof(*m) || m->type != (uint32_t)type ||
	    (m->flags & ~(XR_UP_LINK | XR_UP_DIR)) || !m->nonce)
		return -EBADMSG;
	xr_tuple_mirror(&far, own);
	said = m->tuple;
	if (m->flags & XR_UP_DIR)
		xr_rundir_tuple(&said, &said, type == XR_UP_CALL || type == XR_UP_SETUP);
	return memcmp(&far, &said, sizeof(far)) ? -EBADMSG : 0;
}

uint64_t xr_up_tag(const struct xr_shm_link *l, enum xr_up_type type, uint64_t nonce,
		   uint64_t echo)
{
	uint64_t m[3] = { (uint64_t)type, nonce, echo };

	return xr_siphash(l->secret, m, sizeof(m));
}
