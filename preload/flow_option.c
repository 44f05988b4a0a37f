/* SPDX-License-Identifier: BSD-2-Clause */
/* Options of the kernel socket that the fabric must honour by itself. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include "flow_rx.h"
#include "mem.h"

static uint64_t option_time(int fd, int name)
{
	struct timeval tv = { 0, 0 };
	socklen_t len = sizeof(tv);

	if (xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, name, &tv, &len) || tv.tv_sec < 0)
		return 0;
	return (uint64_t)tv.tv_sec * 1000000000u + (uint64_t)tv.tv_usec * 1000u;
}

static uint32_t option_lowat(int fd)
{
	socklen_t len = sizeof(int);
	int low = 0;

	return xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &low, &len) || low < 1 ? 1 : (uint32_t)low;
}

void xr_flow_options(struct xr_flow *f, int fd)
{
	/* what was set on the socket itself is known, and more exactly; a socket that was made has nothing else */
	if (f->role != XR_FLOW_ACCEPT)
		return;
	if (!f->rcvtimeo_ns)
		f->rcvtimeo_ns = option_time(fd, SO_RCVTIMEO);
	if (!f->sndtimeo_ns)
		f->sndtimeo_ns = option_time(fd, SO_SNDTIMEO);
	if (!f->rcvlowat)
		f->rcvlowat = option_lowat(fd);
}

/* ---- SO_RCVLOWAT ---------------------------------------------------------- */

void xr_flow_lowat(struct xr_flow *f, int fd)
{
	uint32_t want = f->rcvlowat, has = f->kernel_lowat ? f->kernel_lowat : want;
	uint64_t n;
	int low;

	if (f->rx_state != XR_RX_TCP && xr_load_relaxed(&f->rx.frozen)) {
		/* a replay brings first what was read here, and what can be read here */
		n = f->rx.late;
		if (xr_load_relaxed(&f->rx.sealed)) {
			n = xr_shm_rx_readable(&f->rx);
			want = n < want ? want - (uint32_t)n : 1;
		} else if (f->rx_state == XR_RX_RING && n < INT32_MAX - want) {
			want += (uint32_t)n;
		}
	}
	if (want == has)
		return;
	low = (int)want;
	if (!xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)))
		f->kernel_lowat = want == f->rcvlowat ? 0 : want;
}

void xr_flow_lowat_set(struct xr_flow *f, int fd)
{
	if (xr_flow_rx_lock(f)) {
		/* a handler on top of a read, which goes on with what it finds */
		f->rcvlowat = option_lowat(fd);
		f->kernel_lowat = 0;
		return;
	}
	/* as the kernel has bounded it */
	f->rcvlowat = option_lowat(fd);
	f->kernel_lowat = 0;
	if (xr_flow_lowat_split(f))
		xr_flow_lowat(f, fd);
	xr_flow_rx_unlock(f);
}
