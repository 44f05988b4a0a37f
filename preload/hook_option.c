/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Socket options and ioctls.  All of them go to the kernel socket.  Those that a fabric
 * must honour itself are remembered; those that only the kernel can serve keep the flow
 * on TCP.  The lists below name what is harmless: an option that is not known here is
 * taken to be one that is not.
 */
#include "hook.h"
#include <asm/ioctls.h>
#include <asm/socket.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/time.h>
#include "info.h"
#include "user.h"

/* Options newer than the oldest headers that this is built with. */
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL	69
#endif
#ifndef SO_BUSY_POLL_BUDGET
#define SO_BUSY_POLL_BUDGET	70
#endif
#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY		37
#endif
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS		44
#endif

static int socket_option_harmless(int name)
{
	switch (name) {
	case SO_DEBUG: case SO_REUSEADDR: case SO_REUSEPORT: case SO_DONTROUTE: case SO_BROADCAST:
	case SO_SNDBUF: case SO_RCVBUF: case SO_SNDBUFFORCE: case SO_RCVBUFFORCE:
	case SO_KEEPALIVE: case SO_OOBINLINE: case SO_NO_CHECK: case SO_PRIORITY: case SO_LINGER:
	case SO_PASSCRED: case SO_PASSSEC: case SO_RCVLOWAT:
	case SO_RCVTIMEO_OLD: case SO_SNDTIMEO_OLD: case SO_RCVTIMEO_NEW: case SO_SNDTIMEO_NEW:
	case SO_BINDTODEVICE: case SO_BINDTOIFINDEX: case SO_MARK: case SO_BUSY_POLL:
	case SO_ZEROCOPY:
	case SO_PREFER_BUSY_POLL: case SO_BUSY_POLL_BUDGET: case SO_MAX_PACING_RATE:
	case SO_INCOMING_CPU: case SO_CNX_ADVICE:
		return 1;
	default:
		return 0;
	}
}

static int tcp_option_harmless(int name)
{
	switch (name) {
	case TCP_NODELAY: case TCP_MAXSEG: case TCP_CORK: case TCP_KEEPIDLE: case TCP_KEEPINTVL:
	case TCP_KEEPCNT: case TCP_SYNCNT: case TCP_LINGER2: case TCP_DEFER_ACCEPT:
	case TCP_WINDOW_CLAMP: case TCP_QUICKACK: case TCP_CONGESTION: case TCP_THIN_LINEAR_TIMEOUTS:
	case TCP_THIN_DUPACK: case TCP_USER_TIMEOUT: case TCP_FASTOPEN: case TCP_FASTOPEN_KEY:
	case TCP_FASTOPEN_NO_COOKIE: case TCP_NOTSENT_LOWAT: case TCP_SAVE_SYN: case TCP_TX_DELAY:
	case TCP_RTO_MAX_MS:
		return 1;
	default:
		return 0;
	}
}

/* Options that switch a thing on for non-zero, and are nothing when they say zero. */
static int option_off(int level, int name, const void *val, socklen_t len)
{
	int on;

	if (len != sizeof(on) || !val)
		return 0;
	/* what cannot be read is refused by the kernel, and changes nothing */
	if (xr_user_get(&on, val, sizeof(on)))
		return 1;
	if (level == SOL_SOCKET && name == SO_PEEK_OFF)
		return on < 0;
	if (level == IPPROTO_TCP && (name == TCP_ULP || name == TCP_MD5SIG))
		return 0;
	return on == 0;
}

/* XR_REASON_NONE: the option may be set on a flow that is on a fabric. */
static enum xr_reason option_reason(int level, int name, const void *val, socklen_t len)
{
	switch (level) {
	case SOL_SOCKET:
		if (socket_option_harmless(name))
			return XR_REASON_NONE;
		break;
	case IPPROTO_TCP:
		if (tcp_option_harmless(name))
			return XR_REASON_NONE;
		if (name == TCP_ULP)
			return XR_REASON_ULP;
		if (name == TCP_FASTOPEN_CONNECT && !option_off(level, name, val, len))
			return XR_REASON_FASTOPEN;
		break;
	case IPPROTO_IP:
		if (name != IP_RECVERR)
			return XR_REASON_NONE;
		break;
	case IPPROTO_IPV6:
		if (name != IPV6_RECVERR)
			return XR_REASON_NONE;
		break;
	default:
		return XR_REASON_ULP;
	}
	return option_off(level, name, val, len) ? XR_REASON_NONE : XR_REASON_OPTION;
}

/* As sock_set_timeout() in the kernel: 0 is for ever, less than 0 is at once. */
static uint64_t option_time(const void *val, int old_layout)
{
	int64_t sec, usec;

	if (old_layout) {
		struct timeval tv;

		memcpy(&tv, val, sizeof(tv));
		sec = tv.tv_sec;
		usec = tv.tv_usec;
	} else {
		int64_t tv[2];

		memcpy(tv, val, sizeof(tv));
		sec = tv[0];
		usec = tv[1];
	}
	if (sec < 0)
		return 1;
	if ((uint64_t)sec > UINT64_MAX / 2000000000u)
		return 0;
	return (uint64_t)sec * 1000000000u + (uint64_t)usec * 1000u;
}

/* The kernel has taken the option. */
static void option_note(struct xr_flow *f, int fd, int name, const void *val)
{
	switch (name) {
	case SO_RCVTIMEO_OLD:
	case SO_RCVTIMEO_NEW:
		f->rcvtimeo_ns = option_time(val, name == SO_RCVTIMEO_OLD);
		break;
	case SO_SNDTIMEO_OLD:
	case SO_SNDTIMEO_NEW:
		f->sndtimeo_ns = option_time(val, name == SO_SNDTIMEO_OLD);
		break;
	case SO_RCVLOWAT:
		xr_flow_lowat_set(f, fd);
		break;
	case SO_SNDBUF:
	case SO_RCVBUF:
	case SO_SNDBUFFORCE:
	case SO_RCVBUFFORCE:
		xr_flow_room_changed(f, fd);
		break;
	default:
		break;
	}
}

XR_HOOK int setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	struct xr_flow *f = xr_fd_flow(fd);
	enum xr_reason why;
	int r;

	if (!f || xr_vfork_depth)
		return xr_real.setsockopt(fd, level, name, val, len);
	xr_fork_check();
	why = option_reason(level, name, val, len);
	if (why)
		xr_flow_stay_tcp(f, fd, why);
	r = xr_real.setsockopt(fd, level, name, val, len);
	if (!r && level == SOL_SOCKET)
		option_note(f, fd, name, val);
	return r;
}

XR_HOOK int getsockopt(int fd, int level, int name, void *restrict val, socklen_t *restrict len)
{
	struct xr_flow *f;
	int err, r;

	/* a read in disguise */
	if (xr_unlikely(level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE)) {
		f = xr_fd_flow(fd);
		if (f)
			xr_flow_stay_tcp(f, fd, XR_REASON_OPTION);
	}
	r = xr_real.getsockopt(fd, level, name, val, len);
	if (xr_unlikely(level == SOL_SOCKET && name == SO_ERROR) && !r && *len == sizeof(err)) {
		f = xr_hook_flow(fd);
		memcpy(&err, val, sizeof(err));
		err = f && !err ? xr_flow_take_error(f) : err;
		memcpy(val, &err, sizeof(err));
	}
	if (xr_unlikely(level == SOL_SOCKET && name == SO_RCVLOWAT) && !r && *len == sizeof(err)) {
		f = xr_fd_flow(fd);
		if (f && f->kernel_lowat)
			memcpy(val, &f->rcvlowat, sizeof(f->rcvlowat));
	}
	if (xr_unlikely(level == IPPROTO_TCP && name == TCP_INFO) && !r && !xr_vfork_depth) {
		f = xr_fd_flow(fd);
		if (f && f->link && !xr_fork_check_fd(fd))
			xr_info_amend(f, fd, val, *len);
	}
	return r;
}

/* FIONREAD, SIOCOUTQ: a count that the flow gives. */
static int ioctl_count(int fd, long n, void *arg, unsigned long req)
{
	int count;

	if (n == -EREMOTEIO)
		return xr_real.ioctl(fd, req, arg);
	if (n < 0)
		return (int)xr_ret(n);
	count = n > INT_MAX ? INT_MAX : (int)n;
	return (int)xr_ret(xr_user_put(arg, &count, sizeof(count)));
}

static int ioctl_flow(struct xr_flow *f, int fd, unsigned long req, void *arg)
{
	uint32_t path = xr_load_acquire(&f->path);
	int r;

	switch (req) {
	case FIONREAD:		/* SIOCINQ is the same number */
		if (path & XR_PATH_RX)
			return ioctl_count(fd, xr_flow_inq(f, fd), arg, req);
		break;
	case SIOCOUTQ:
		if (path & XR_PATH_TX)
			return ioctl_count(fd, xr_flow_outq(f, fd), arg, req);
		break;
	case SIOCATMARK:
		if (path & XR_PATH_RX)
			return ioctl_count(fd, xr_flow_at_mark(f, fd), arg, req);
		break;
	case FIONBIO:
		r = xr_real.ioctl(fd, req, arg);
		if (!r)
			f->nonblock = *(int *)arg != 0;
		return r;
	case FIOASYNC:
		if (!xr_user_get(&r, arg, sizeof(r)) && r)
			xr_flow_stay_tcp(f, fd, XR_REASON_IOCTL);
		break;
	case FIOSETOWN:
	case SIOCSPGRP:
		xr_flow_stay_tcp(f, fd, XR_REASON_IOCTL);
		break;
	default:
		break;
	}
	return xr_real.ioctl(fd, req, arg);
}

XR_HOOK int ioctl(int fd, unsigned long req, ...)
{
	struct xr_flow *f = xr_fd_flow(fd);
	va_list ap;
	void *arg;

	va_start(ap, req);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (xr_likely(!f) || (xr_vfork_depth && xr_vfork_is_changed(fd)))
		return xr_real.ioctl(fd, req, arg);
	xr_fork_check();
	return ioctl_flow(f, fd, req, arg);
}
