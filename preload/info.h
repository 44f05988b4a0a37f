/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_INFO_H
#define XR_INFO_H

#include <sys/socket.h>

struct xr_flow;

/* The kernel has written TCP_INFO, len bytes of it, for a flow that has a link. */
void xr_info_amend(struct xr_flow *f, int fd, void *val, socklen_t len);

/* f->tx (f->rx) is about to be made anew for another time on a fabric: its counts are kept. */
void xr_info_tx_again(struct xr_flow *f);
void xr_info_rx_again(struct xr_flow *f);

#endif
