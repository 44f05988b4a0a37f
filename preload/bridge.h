/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Between the preload object and the module that carries connections between hosts, libxrdma-
 * rdma.so.
 *
 * The module runs on one thread of this process, the helper, with a table of descriptors of its
 * own, so that the numbers that the program sees are its own alone.  A flow that goes to another
 * host is, for the flow code, one on a link of this process with itself: the module holds the
 * other ends of both rings and moves their bytes over a channel.
 *
 * They talk over a pair of SOCK_SEQPACKET sockets, in records of one size each way; LINK passes
 * the memory of a link. Nothing else is shared: neither side calls the other, but for what starts
 * the module, and what counts its memory.
 */
#ifndef XR_BRIDGE_H
#define XR_BRIDGE_H

#include <stdint.h>
#include "key.h"
#include "proof.h"
#include "reason.h"

#define XR_BRIDGE_ABI	4u
#define XR_BRIDGE_SECRET 32u
/* Times the setting spin: a round trip over a network takes longer than one between cores. */
#define XR_BRIDGE_SPIN	4u

enum xr_bridge_type {
	/* to the module */
	XR_BRIDGE_LINK = 1,	/* descriptors: the program's arena, the module's arena, a control connection */
	XR_BRIDGE_BEGIN,	/* look for the other end of this connection */
	XR_BRIDGE_CANCEL,	/* forget it: an attempt that has not come to ATTACH */
	XR_BRIDGE_ATTACH,	/* the program's direction is ready to be read */
	/* to the program */
	XR_BRIDGE_HELLO,	/* the helper has its own table of descriptors */
	XR_BRIDGE_UP,		/* both ends have proved themselves; the module's direction is ready */
	XR_BRIDGE_FAILED,
	XR_BRIDGE_LEFT,		/* cookie: the program's flow has left the channel, and may not have noticed */
};

struct xr_bridge_cmd {
	uint32_t type;
	uint32_t connecting;	/* BEGIN: this end connected */
	uint64_t id;		/* of the attempt */
	uint64_t link;		/* LINK, BEGIN */
	uint64_t dir_off;	/* ATTACH: the program's direction in its arena */
	uint32_t cookie;	/* ATTACH: what the program calls the flow */
	uint32_t rtt_us;	/* BEGIN: the least round trip of the TCP connection; 0: not known */
	struct xr_tuple tuple;	/* BEGIN */
};

struct xr_bridge_answer {
	uint32_t type;
	uint32_t reason;	/* FAILED: enum xr_reason */
	uint64_t id;
	uint32_t again_ms;	/* FAILED: when another attempt may do better; 0: none will */
	uint32_t cookie;	/* UP: what the module calls the flow; LEFT: what the program does */
	uint64_t dir_off;	/* UP: the module's direction in its arena */
	uint8_t secret[XR_BRIDGE_SECRET];	/* UP: known to the two ends alone */
	uint32_t qpn, peer_qpn;
	uint8_t gid[16];
	char device[24];
};

enum xr_bridge_figure {	/* as the counters rdma_memory and so on */
	XR_BRIDGE_MEMORY, XR_BRIDGE_HUGE, XR_BRIDGE_FAR, XR_BRIDGE_MISSED, XR_BRIDGE_REFUSED,
	XR_BRIDGE_FIGURES
};

struct xr_bridge_host {
	uint32_t abi;
	const char *version;
	int log_threshold;
	const char *log_file;
	const char *device;	/* the settings of section rdma */
	const uint8_t *key;	/* XR_KEY_LEN bytes; NULL: none */
	int trust_fabric, software;
	int nat;		/* enum xr_nat */
	int compare;
	uint64_t timeout;	/* ns */
	uint64_t memory;	/* bytes at most */
	uint64_t spin;		/* ns: setting spin */
	int huge_pages;		/* setting rdma_huge_pages */
	/* Not 0: the process ends, and what the libraries have destructors for they must not be asked for any more. */
	const _Atomic uint32_t *ending;
	/* Registered memory has changed: by how much each figure has, modulo 2^64.  On the helper. */
	void (*counted)(const uint64_t by[XR_BRIDGE_FIGURES]);
};

struct xr_bridge_ops {
	uint32_t abi;
	/* On the helper; returns when nobody is at the other end of cmd any more, or it cannot begin: -errno. */
	int (*run)(const struct xr_bridge_host *host, int cmd);
};

/* The one symbol of the module, "xr_bridge_module".  NULL: it is of another version. */
typedef const struct xr_bridge_ops *xr_bridge_module_fn(const struct xr_bridge_host *host);

#endif
