/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Behind an address that is translated on the way (DNAT) the connecting end knows its server by another address than
 * the server does, and what it knows for certain is its own: who proves by the key that its connection comes from that
 * address and port means this connection, if nothing else can come from there.  Three things could:
 *
 *	another socket of this network namespace	Linux lets connections to different servers share a local port:
 *							the kernel's list of sockets tells (inet_diag)
 *	one whose own address was translated here	where connections are tracked, that may be
 *	one that came through here from elsewhere	where packets are forwarded, that may be
 *
 * The last two cannot be told from what a program without privileges may read; that there is neither tracking nor
 * forwarding can.  A connection that has ended at this end, and is not known at the other to have, does not call: its
 * program has seen the end, or its socket gets the kernel's RST for the first byte that it sends.
 */
#ifndef XR_BRIDGE_LONE_H
#define XR_BRIDGE_LONE_H

#include "proof.h"

/*
 * Is `own`, a connection of this namespace, the only one with its local address and port?  0: yes; -EADDRINUSE: no;
 * -EPERM: something may be behind them that is not seen here (not looked at, where the setting says so); else it
 * cannot be found out.
 */
int lone_check(const struct xr_tuple *own, int trust_namespace);

/* The parts, for tests. */
int lone_socket(const struct xr_tuple *own);
/* root: "/proc/sys/net" */
int lone_namespace(const char *root);

#endif
