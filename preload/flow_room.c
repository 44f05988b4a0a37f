/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Socket buffers that the program has bounded.  Left alone, the kernel lets the buffers of a
 * connection grow to megabytes, and so does the window.  A program that set SO_SNDBUF at one
 * end and SO_RCVBUF at the other is promised that no more than that is under way unread.
 */
#include <sys/socket.h>
#include <sys/syscall.h>
#include "flow.h"
#include "mem.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK	72
#endif
#define ROOM_SNDBUF	1u	/* bits of SO_BUF_LOCK: the program set it */
#define ROOM_RCVBUF	2u
#define ROOM_LEAST	65536u	/* a segment on loopback, and the least that flow_window may be */

/* Size of the buffer if the program set it, else 0: also on kernels that do not tell (before 5.14). */
static uint32_t room_bound(int fd, unsigned int bit, int name)
{
	int locked = 0, size = 0;
	socklen_t len = sizeof(int);

	if (xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_BUF_LOCK, &locked, &len) ||
	    !((unsigned int)locked & bit))
		return 0;
	if (xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, name, &size, &len) || size <= 0)
		return 0;
	return (uint32_t)size;
}

void xr_flow_room_rx(struct xr_flow *f, int fd)
{
	/* relaxed: before READY that orders it, later it is a hint */
	xr_store_relaxed(&f->rx.dir->room, room_bound(fd, ROOM_RCVBUF, SO_RCVBUF));
}

void xr_flow_room_tx(struct xr_flow *f, int fd)
{
	uint64_t max = xr_cfg.flow_window;
	uint64_t theirs = xr_load_relaxed(&f->tx.dir->room);
	uint64_t sum = theirs ? room_bound(fd, ROOM_SNDBUF, SO_SNDBUF) : 0;

	/* a peer that lies about its room makes the window small, never larger than ours */
	if (sum) {
		sum += theirs;
		if (sum < ROOM_LEAST)
			sum = ROOM_LEAST;
		if (sum < max)
			max = sum;
	}
	f->tx.inflight_max = (uint32_t)max;
}

void xr_flow_room_changed(struct xr_flow *f, int fd)
{
	uint32_t path = xr_load_acquire(&f->path);

	if (path & XR_PATH_RX && !xr_flow_rx_lock(f)) {
		if (xr_load_relaxed(&f->path) & XR_PATH_RX)
			xr_flow_room_rx(f, fd);
		xr_flow_rx_unlock(f);
	}
	if (path & XR_PATH_TX && !xr_flow_tx_lock(f)) {
		if (f->tx_state == XR_TX_RING)
			xr_flow_room_tx(f, fd);
		xr_flow_tx_unlock(f);
	}
}
