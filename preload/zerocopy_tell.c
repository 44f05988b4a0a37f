/* SPDX-License-Identifier: BSD-2-Clause */
/* What a program reads of its sends with MSG_ZEROCOPY from the error queue, see zerocopy.h. */
#include "zerocopy.h"
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include "user.h"

/* put_cmsg() of the kernel: what does not fit is cut, and the flags say so. */
static int tell_put(struct msghdr *own, int level, int type, const void *data, size_t len, size_t *used)
{
	struct cmsghdr c = { .cmsg_level = level, .cmsg_type = type };
	uint8_t *at = own->msg_control;
	size_t room = at ? own->msg_controllen : 0, whole = CMSG_LEN(len);

	if (room < sizeof(c)) {
		own->msg_flags |= MSG_CTRUNC;
		return 0;
	}
	if (room < whole) {
		own->msg_flags |= MSG_CTRUNC;
		whole = room;
	}
	c.cmsg_len = whole;
	*used = CMSG_SPACE(len) < room ? CMSG_SPACE(len) : room;
	return xr_user_put(at, &c, sizeof(c)) || xr_user_put(at + CMSG_LEN(0), data, whole - CMSG_LEN(0));
}

static ssize_t tell(struct xr_flow *f, struct msghdr *mh, uint64_t told, int flags)
{
	struct {
		struct sock_extended_err ee;
		struct sockaddr_in6 offender;	/* all zero: none; that of IPv4 is shorter */
	} e = { .ee = { .ee_origin = SO_EE_ORIGIN_ZEROCOPY, .ee_code = SO_EE_CODE_ZEROCOPY_COPIED,
			.ee_info = XR_ZC_FIRST(told), .ee_data = XR_ZC_FIRST(told) + XR_ZC_COUNT(told) - 1 } };
	int v6 = f->family == AF_INET6, out;
	const socklen_t none = 0;
	struct msghdr own;
	size_t used = 0;

	if (xr_user_get(&own, mh, sizeof(own)))
		return -EFAULT;
	own.msg_flags = MSG_ERRQUEUE | (flags & MSG_CMSG_CLOEXEC);
	if (tell_put(&own, v6 ? SOL_IPV6 : SOL_IP, v6 ? IPV6_RECVERR : IP_RECVERR, &e,
		     v6 ? sizeof(e) : sizeof(e.ee) + sizeof(struct sockaddr_in), &used))
		return -EFAULT;
	out = own.msg_flags;
	if ((own.msg_name && xr_user_put(&mh->msg_namelen, &none, sizeof(none))) ||
	    xr_user_put(&mh->msg_flags, &out, sizeof(out)) ||
	    xr_user_put(&mh->msg_controllen, &used, sizeof(used)))
		return -EFAULT;
	return 0;
}

int xr_zerocopy_tell(struct xr_flow *f, struct msghdr *mh, int flags, ssize_t *n)
{
	struct xr_zc *z = &f->own->zc;
	uint64_t told = xr_load_acquire(&z->told);

	if (f->owner_pid != xr_getpid())
		return 0;
	do {
		if (!XR_ZC_COUNT(told))
			return 0;
	} while (!xr_cas(&z->told, &told, (uint64_t)(XR_ZC_FIRST(told) + XR_ZC_COUNT(told)) << 32));
	*n = mh ? tell(f, mh, told, flags) : 0;
	xr_zerocopy_let_go(f);
	return 1;
}

void xr_zerocopy_heard(struct xr_flow *f, struct msghdr *mh)
{
	struct xr_zc *z = &f->own->zc;
	struct sock_extended_err ee;
	struct cmsghdr *c;

	/* the kernel has just written there */
	for (c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
		if (!((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
		      (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) ||
		    c->cmsg_len < CMSG_LEN(sizeof(ee)))
			continue;
		memcpy(&ee, CMSG_DATA(c), sizeof(ee));
		if (ee.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
			continue;
		xr_store_release(&z->done, ee.ee_data + 1);
		ee.ee_info += xr_load_relaxed(&f->zc_extra);
		ee.ee_data += xr_load_relaxed(&f->zc_extra);
		memcpy(CMSG_DATA(c), &ee, sizeof(ee));
	}
}
