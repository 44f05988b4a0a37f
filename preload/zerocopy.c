/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends with MSG_ZEROCOPY are counted, see zerocopy.h. */
#include "zerocopy.h"
#include <asm/socket.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "ready.h"

/* Accepted sockets have it from their listener: the kernel knows. */
static int zerocopy_on(int fd)
{
	socklen_t len = sizeof(int);
	int on = 0;

	return !xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, &on, &len) && on;
}

void xr_zerocopy_let_go(struct xr_flow *f)
{
	if (xr_zerocopy_holds(f) || !(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || xr_flow_tx_lock(f))
		return;
	if ((xr_load_acquire(&f->path) & XR_PATH_FABRIC) && f->link && xr_load_relaxed(&f->tx_state) == XR_TX_TCP &&
	    xr_load_relaxed(&f->rx_state) == XR_RX_TCP && !f->up)
		xr_flow_leave(f);
	xr_flow_tx_unlock(f);
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		xr_epoll_flow_detach(f);
}

int xr_zerocopy_begin(struct xr_flow *f, int fd)
{
	if (!zerocopy_on(fd))
		return 0;
	/* before the send: the flow must not leave the hooks between the send and its notice */
	xr_fetch_add(&f->own->zc.hold, 1);
	return 1;
}

void xr_zerocopy_end(struct xr_flow *f, ssize_t n)
{
	struct xr_zc *z = &f->own->zc;
	uint64_t told = xr_load_relaxed(&z->told);

	if (n > 0) {
		xr_fetch_add(&f->zc_extra, 1);
		while (!xr_cas(&z->told, &told, told + 1))
			;
	}
	xr_fetch_sub(&z->hold, 1);
	if (n > 0)
		xr_flow_wake(f);
	else
		xr_zerocopy_let_go(f);
}

int xr_zerocopy_kernel_begin(struct xr_flow *f, int fd)
{
	if (!zerocopy_on(fd))
		return 0;
	/* relaxed: the flow is not done with while this call counts in k_tx */
	xr_store_relaxed(&f->own->zc_used, 1);
	xr_fetch_add(&f->own->zc.sent, 1);
	return 1;
}

void xr_zerocopy_kernel_end(struct xr_flow *f, ssize_t n)
{
	/* as the kernel, which gives the number back when it has taken nothing */
	if (n <= 0)
		xr_fetch_sub(&f->own->zc.sent, 1);
}
