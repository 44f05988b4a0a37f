/* SPDX-License-Identifier: BSD-2-Clause */
/* Between flow_rx.c (reading) and flow_machine.c, flow_rx_look.c.  rx_lock is held everywhere here. */
#ifndef XR_FLOW_RX_H
#define XR_FLOW_RX_H

#include "flow.h"

/* A look at the kernel socket of a silent flow costs a system call: at most this often. */
#define XR_RX_CHECK_CYCLES	2000000u	/* ~1 ms */

/* READY: has the sender left TCP?  1 when the state moved on, 0, or -errno (a liar). */
int xr_rx_try_start(struct xr_flow *f, int fd);

/* The direction is frozen and read to its end: RX_SKIP while bytes are late, else RX_TCP. */
void xr_rx_to_tcp(struct xr_flow *f);

/* Throws away what is late as far as it has come.  0: all of it; -EAGAIN; -ENODATA at the end. */
int xr_rx_drop_late(struct xr_flow *f, int fd);

/* What rx_reset says. */
#define XR_RESET_DEAD	1u	/* the peer died */
#define XR_RESET_LIAR	2u	/* it wrote nonsense: the kernel socket is reset, too */

/* The peer has written nonsense: counts it, and resets the connection.  Either lock will do. */
void xr_flow_liar(struct xr_flow *f, int fd);
/* Ends the connection with an RST; the socket shows what it shows after one that came. */
void xr_ksock_reset(int fd);
/* Why it is on TCP, or will be: said and counted. */
void xr_flow_blame(struct xr_flow *f, enum xr_reason why);

/* Nonsense was found in the ring: the connection is reset.  -errno for the program. */
ssize_t xr_rx_corrupt(struct xr_flow *f, int fd);

/* Looks at the kernel socket; remembers what it says about the peer's life. */
void xr_rx_look_kernel(struct xr_flow *f, int fd);
/* It has something to say, or will in a moment. */
int xr_rx_reset_due(struct xr_flow *f);

/* What a read would find, in all places; or -errno. */
long xr_rx_avail(struct xr_flow *f, int fd);
/* The same, once it has been looked whether the sender has left TCP. */
long xr_rx_unread(struct xr_flow *f, int fd);
/* A read that began in state `from` ended short: may the next source have more at hand? */
int xr_rx_more(struct xr_flow *f, int fd, uint32_t from);
/*
 * SO_RCVLOWAT counts what lies in two places, and the kernel knows of one.  So the socket gets what is missing
 * there as its own, for as long as a part is here: sleepers and epoll hear of the rest as they would on TCP.
 */
void xr_flow_lowat(struct xr_flow *f, int fd);
/* 1: that may have to be done. */
static inline int xr_flow_lowat_split(const struct xr_flow *f)
{
	return xr_unlikely(f->rcvlowat > 1) && (f->kernel_lowat || xr_load_relaxed(&f->rx.frozen));
}
/* The socket stands at the urgent mark. */
int xr_rx_is_marked(int fd);
/* What is read next is on the socket, at the urgent mark: a read that has something ends there.  rx_lock held. */
int xr_rx_at_mark(struct xr_flow *f, int fd);
/* 1: what is late is all that is still to come, and so is nothing to wait for. */
int xr_rx_late_ends(struct xr_flow *f);
/* Nothing comes any more behind what can be read now. */
int xr_rx_ended(struct xr_flow *f);

#endif
