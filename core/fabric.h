/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The one interface between the middleware and whatever moves its bytes.  It has
 * the shape of RDMA verbs: a device, protection domains, memory regions, completion
 * queues, queue pairs of a reliable connection, and connection management.  The
 * shared-memory device implements it in software; nothing above this header knows
 * which device it drives, but for the capabilities that query() reports.
 *
 * Sources.  The InfiniBand Architecture Specification, volume 1: 9.7 (reliable
 * service, RNR), 9.9 (errors), 10.3 (QP states), 10.6 (memory), 10.7 (work
 * requests), 10.8 (completions), 12 (connection management); and the manual pages
 * of rdma-core that are named beside each operation.  Where this header says less
 * than they do, they hold; where it differs, it says so.
 *
 * Ownership.  What a create call returns belongs to the caller and is given back
 * with the matching destroy call, inside out: QPs before their CQs and PD, MRs
 * before their PD, all before the device; -EBUSY otherwise.  Memory behind a
 * posted work request belongs to the device until the request has completed (with
 * XR_SEND_INLINE: until the post has returned).
 *
 * Locking.  A device handle and everything made from it is used by one thread at a
 * time; the context's lock sees to that.  Handles are independent of each other:
 * two threads of one process open one each, and may connect to each other.  A
 * handle belongs to the process that opened it; a forked child must not touch it.
 *
 * No call blocks.  No call on the data path (post, poll, release) allocates.
 *
 * Ordering.  Work requests of one send queue start in order and complete in order;
 * messages of one QP arrive in order; receives are consumed in order.  A READ may be
 * executed after a later SEND or WRITE unless that one carries XR_SEND_FENCE.
 * Nothing is promised between QPs.
 *
 * Errors.  Calls return 0 or a count, else -errno.  A request that was accepted
 * completes exactly once, with a status; the first error of a QP is the one that
 * says why, the requests behind it complete with XR_WC_WR_FLUSH_ERR.
 */
#ifndef XR_FABRIC_H
#define XR_FABRIC_H

#include <stddef.h>
#include <stdint.h>
#include "place.h"

struct xr_fabric_ops;

/* --- objects: the part every implementation has in common ---------------------- */

struct xr_dev {
	const struct xr_fabric_ops *ops;
	void *user;
	struct xr_place place;	/* the user's: where mr_alloc() is to find memory */
};

struct xr_pd {
	struct xr_dev *dev;
};

struct xr_mr {
	struct xr_pd *pd;
	void *addr;
	size_t len;
	uint32_t lkey, rkey;	/* rkey 0: no remote access */
	struct xr_placed placed;	/* mr_alloc(): where it found it */
};

struct xr_cq {
	struct xr_dev *dev;
	void *user;
};

enum xr_qp_state {
	XR_QPS_RESET,		/* nothing can be posted */
	XR_QPS_INIT,		/* receives can be posted */
	XR_QPS_RTR,		/* and are consumed */
	XR_QPS_RTS,		/* sends can be posted */
	XR_QPS_ERR,		/* what is posted is flushed */
};

struct xr_qp {
	struct xr_dev *dev;
	struct xr_pd *pd;
	struct xr_cq *send_cq, *recv_cq;
	enum xr_qp_state state;	/* read only */
	uint32_t num;		/* unique within the device while the QP lives */
	/* connected: number and, over a network, address of the other end, as the device has them; 0: not known */
	uint32_t peer_num;
	uint8_t peer_gid[16];
	void *user;
};

struct xr_cm_id {
	struct xr_dev *dev;
	struct xr_qp *qp;	/* NULL for a listener and before accept */
	void *user;
};

/* --- device -------------------------------------------------------------------- */

struct xr_dev_caps {
	char name[16];			/* "shm", ... */
	uint32_t max_inline;		/* bytes that a post can copy: "buffered send" when it is large */
	uint32_t max_byref;		/* largest message that a receive by reference takes; 0: none can */
	uint64_t max_msg;		/* bytes of one message or one-sided operation */
	uint32_t max_sge;
	uint32_t max_wr;		/* per queue */
	uint32_t max_cqe;
	uint32_t max_rd_atomic;		/* READs outstanding per QP, either way */
	uint32_t max_private[3];	/* bytes with connect, accept, reject */
	uint8_t rnr;			/* 1: knows receiver-not-ready (0: the receive queue must not run dry) */
	uint8_t passive;		/* 1: one-sided operations need no CPU of the target (0: it must poll) */
	uint8_t reuse;			/* 1: a queue pair that went to RESET may be used again */
	uint32_t quarantine_us;		/* ... after so long (the TIMEWAIT of connection management) */
	uint8_t zero_write;		/* 1: zero-byte WRITE is answered (0: keepalive takes a zero-byte SEND) */
	uint8_t renumbers;		/* 1: a queue pair that went to RESET has another number */
	uint8_t network;		/* 1: leads to other hosts; what follows is of such only */
	uint8_t few_reads;		/* 1: READs are few, slow or not to be had: better let the peer WRITE */
	uint8_t software;		/* 1: emulated by the kernel: slower than its TCP */
	uint8_t port, up;		/* up: the port is, just now */
	uint32_t mtu;
	char device[64];		/* "mlx5_0", ... */
	uint8_t gid[16];		/* the address that it goes by, 0 when it has none now */
	uint64_t foreseen;		/* connections so far whose way was known, since others had gone it */
};

/* --- memory -------------------------------------------------------------------- */

#define XR_ACCESS_LOCAL_WRITE	1u	/* receives and READs may write here */
#define XR_ACCESS_REMOTE_WRITE	2u	/* implies XR_ACCESS_LOCAL_WRITE, as in ibv_reg_mr(3) */
#define XR_ACCESS_REMOTE_READ	4u
#define XR_ACCESS_MORE		8u	/* mw_bind: as XR_SEND_MORE */

struct xr_sge {
	void *addr;
	uint32_t len;
	uint32_t lkey;
};

/* --- work requests and completions --------------------------------------------- */

enum xr_wr_op {
	XR_WR_SEND,
	XR_WR_SEND_IMM,
	XR_WR_WRITE,
	XR_WR_WRITE_IMM,
	XR_WR_READ,
	XR_WR_RECV,		/* in completions: a message arrived */
	XR_WR_RECV_WRITE_IMM,	/* in completions: a WRITE with immediate consumed a receive */
};

#define XR_SEND_SIGNALED	1u	/* complete on success too */
#define XR_SEND_INLINE		2u	/* copy now; the lkeys are not looked at */
#define XR_SEND_FENCE		4u	/* not before all earlier READs are complete */
/* another post follows: the doorbell may wait for it, or for the next look at the CQ (cq_poll, cq_arm) */
#define XR_SEND_MORE		8u

struct xr_send_wr {
	uint64_t wr_id;
	enum xr_wr_op op;
	uint32_t flags;
	const struct xr_sge *sge;	/* only looked at during the post */
	uint32_t nsge;
	uint32_t imm;
	uint64_t raddr;			/* WRITE, READ */
	uint32_t rkey;
};

/* addr NULL: by reference (see max_byref), the device provides the memory. */
struct xr_recv_wr {
	uint64_t wr_id;
	struct xr_sge sge;
};

enum xr_wc_status {
	XR_WC_SUCCESS,
	XR_WC_LOC_LEN_ERR,	/* the message is larger than the receive, or than max_msg */
	XR_WC_LOC_PROT_ERR,	/* an lkey does not cover its sge */
	XR_WC_WR_FLUSH_ERR,	/* not executed, or its outcome unknown: the QP is in ERR */
	XR_WC_REM_INV_REQ_ERR,	/* the peer could not take the message (too large) */
	XR_WC_REM_ACCESS_ERR,	/* the peer's memory does not allow it */
	XR_WC_REM_OP_ERR,	/* the peer could not do it */
	XR_WC_RETRY_EXC_ERR,	/* the peer is gone */
	XR_WC_RNR_RETRY_EXC_ERR,/* the peer had no receive posted */
	XR_WC_FATAL_ERR,	/* the peer wrote nonsense, or the device failed */
	XR_WC_STATUS_COUNT
};

#define XR_WC_WITH_IMM	1u
#define XR_WC_ECN	2u	/* what came, or what a READ brought, met congestion on its way */
#define XR_WC_RNR	4u	/* a send that the receiver was not ready for at first */

struct xr_wc {
	uint64_t wr_id;
	struct xr_qp *qp;
	enum xr_wc_status status;	/* on error only wr_id, qp and op are valid beside it */
	enum xr_wr_op op;
	uint32_t len;			/* bytes received, read or written */
	uint32_t imm;
	uint32_t flags;
	uint32_t ref;			/* not 0: give it back with recv_release() */
	void *data;			/* what was received: the posted buffer, or the device's memory */
};

/* --- connections ---------------------------------------------------------------- */

struct xr_qp_attr {
	struct xr_pd *pd;
	struct xr_cq *send_cq, *recv_cq;
	uint32_t sq_depth, rq_depth;
	uint8_t sig_all;		/* every send completes on success too */
	uint8_t rnr_retry;		/* 0: fail at once, 1..6: so many, 7: for ever */
	uint32_t min_rnr_timer_us;	/* what this end asks a sender to wait before it retries */
	uint8_t max_rd_atomic;		/* READs that this end has outstanding; 0: the device's maximum */
	uint8_t tos;			/* a network: the traffic class of its packets, DSCP in the upper six bits */
	uint32_t detect_ms;		/* a network: a peer that does not answer is given up about then; 0: 1000 */
};

/*
 * Addresses.  The shm device has a family of its own: a name of 1..64 characters
 * out of [A-Za-z0-9._-], known within one network namespace (it is the abstract
 * Unix name "xrdma." NAME).  A network has those of IP; address() reads what people write.
 */
#define XR_AF_SHM	1
#define XR_AF_INET	2
#define XR_AF_INET6	10
#define XR_ADDR_NAME	65

struct xr_addr {
	uint16_t family;
	uint16_t port;			/* host order */
	uint8_t ip[16];			/* IPv4: the first four */
	uint8_t source[16];		/* connect: from where; 0: as the route says */
	char name[XR_ADDR_NAME];	/* XR_AF_SHM */
};

enum xr_cm_type {
	XR_CM_CONNECT_REQUEST,	/* id is new: accept or reject it */
	XR_CM_ESTABLISHED,	/* the QP is in RTS */
	XR_CM_REJECTED,		/* by the peer's program, or with status by its device */
	XR_CM_UNREACHABLE,	/* nobody listens, or no answer in time */
	XR_CM_DISCONNECTED,	/* once per established connection, whoever ended it */
	/*
	 * The device; id is NULL.  status -ENETDOWN: its port went down; -EADDRNOTAVAIL: its addresses
	 * changed, and the one that caps name is gone; 0: neither any more; -ENODEV: it is gone for good,
	 * whatever was made from it is dead and can only be destroyed.
	 */
	XR_CM_DEVICE,
};

struct xr_cm_event {
	enum xr_cm_type type;
	struct xr_cm_id *id;
	struct xr_cm_id *listener;	/* CONNECT_REQUEST: where it came in */
	int status;			/* 0 or -errno */
	struct xr_addr peer;		/* CONNECT_REQUEST over a network: who asks */
	uint32_t len;
	uint8_t data[256];		/* private data of the peer: untrusted */
};

struct xr_listen_attr {
	uint32_t backlog;	/* connections that may wait for accept; 0: 64 */
	uint8_t any_user;	/* 1: peers of every user id; 0: of the own one and of root; network: not looked at */
};

/* --- operations ------------------------------------------------------------------ */

struct xr_fabric_ops {
	const char *name;

	/*
	 * ibv_open_device(3).  -ENOMEM, -EMFILE, -ENODEV.  what: shm knows but one, NULL.  A network: the
	 * name of a device, an address of this host, or NULL for the best there is; -EADDRNOTAVAIL: it has no
	 * address that others could reach; -EPROTONOSUPPORT: iWARP; -EACCES: not allowed to this process.
	 */
	int (*open)(const char *what, struct xr_dev **dev);
	/* Reads an address: "NAME"; "10.9.0.1:7000", "[fd00::1]:7000", "*:7000".  -EINVAL. */
	int (*address)(const char *text, struct xr_addr *addr);
	/* Closes what is still connected, as the death of the process would.  -EBUSY. */
	int (*close)(struct xr_dev *dev);
	void (*query)(struct xr_dev *dev, struct xr_dev_caps *caps);

	int (*pd_alloc)(struct xr_dev *dev, struct xr_pd **pd);
	int (*pd_free)(struct xr_pd *pd);

	/*
	 * ibv_reg_mr(3): any memory of the process.  -EINVAL: length 0 or unknown access.
	 * It must stay mapped until mr_dereg(), after which no key of it is valid.
	 */
	int (*mr_reg)(struct xr_pd *pd, void *addr, size_t len, uint32_t access, struct xr_mr **mr);
	/*
	 * Memory that the device likes best, registered: page-aligned, zeroed, shared with
	 * children that are forked later.  -ENOMEM.
	 */
	int (*mr_alloc)(struct xr_pd *pd, size_t len, uint32_t access, struct xr_mr **mr);
	int (*mr_dereg)(struct xr_mr *mr);

	/*
	 * ibv_bind_mw(3), type 2: opens exactly [addr, addr + len) of a region to the peer
	 * of one QP.  A region itself then needs no remote access at all, and one peer
	 * cannot read what another was sent.  It is open before what is posted behind it.
	 * mw_invalidate() closes it; a QP in ERR has closed all of its own.  -EINVAL, -ENOMEM;
	 * -EOPNOTSUPP where a device has none.
	 */
	int (*mw_bind)(struct xr_qp *qp, struct xr_mr *mr, void *addr, size_t len,
		       uint32_t access, uint32_t *rkey);
	/* flags: XR_SEND_MORE or 0 */
	void (*mw_invalidate)(struct xr_qp *qp, uint32_t rkey, uint32_t flags);

	/* ibv_create_cq(3).  A full CQ holds back the device; it never overruns. */
	int (*cq_create)(struct xr_dev *dev, uint32_t cqe, struct xr_cq **cq);
	int (*cq_destroy)(struct xr_cq *cq);
	/* ibv_poll_cq(3): drives the device; up to n completions. */
	int (*cq_poll)(struct xr_cq *cq, struct xr_wc *wc, int n);
	/*
	 * ibv_req_notify_cq(3): the next completion makes cq_fd() readable, once.  What
	 * came before may or may not: poll, arm, poll again, and only then sleep.
	 */
	int (*cq_arm)(struct xr_cq *cq);
	/* A descriptor to poll for reading; belongs to the device. */
	int (*cq_fd)(struct xr_cq *cq);
	/* ibv_get_cq_event(3) and ibv_ack_cq_events(3) in one: takes the event off cq_fd(). */
	void (*cq_event)(struct xr_cq *cq);

	/* ibv_create_qp(3): in RESET.  -EINVAL: beyond the device's limits; -ENOMEM. */
	int (*qp_create)(struct xr_dev *dev, const struct xr_qp_attr *attr, struct xr_qp **qp);
	/*
	 * ibv_destroy_qp(3), in any state: requests that are not complete vanish, messages
	 * that are held by reference with them.
	 */
	int (*qp_destroy)(struct xr_qp *qp);
	/*
	 * ibv_modify_qp(3): RESET -> INIT, any -> ERR, any -> RESET.  INIT -> RTR -> RTS is
	 * what connect and accept do.  RESET with requests that have not completed or messages
	 * still held is -EBUSY (verbs would drop them without a word); go through ERR and
	 * poll.  -EINVAL: not a transition.
	 */
	int (*qp_modify)(struct xr_qp *qp, enum xr_qp_state state);

	/*
	 * ibv_post_send(3).  -EINVAL: state, opcode or number of sge; -EMSGSIZE: beyond
	 * max_msg or max_inline; -EAGAIN: the queue is full, or an inline payload finds no
	 * room now (nothing is queued; poll and try again: an armed CQ wakes when room came).
	 */
	int (*post_send)(struct xr_qp *qp, const struct xr_send_wr *wr);
	/* ibv_post_recv(3).  -EINVAL, -EAGAIN: the queue is full. */
	int (*post_recv)(struct xr_qp *qp, const struct xr_recv_wr *wr);
	/* Gives a message that was received by reference back; in any order. */
	void (*recv_release)(struct xr_qp *qp, uint32_t ref);

	/* rdma_bind_addr(3), rdma_listen(3).  -EADDRINUSE, -EAFNOSUPPORT, -EINVAL. */
	int (*cm_listen)(struct xr_dev *dev, const struct xr_addr *addr,
			 const struct xr_listen_attr *attr, struct xr_cm_id **id);
	/*
	 * rdma_connect(3) with a QP in INIT (receives posted before are there for the first
	 * message).  Ends in ESTABLISHED, REJECTED or UNREACHABLE.  -EINVAL, -EISCONN.
	 */
	int (*cm_connect)(struct xr_dev *dev, const struct xr_addr *addr, struct xr_qp *qp,
			  const void *data, uint32_t len, struct xr_cm_id **id);
	/*
	 * rdma_accept(3), with a QP in INIT.  It is in RTS with ESTABLISHED, or with the first
	 * message if that is polled before.  -ENOTCONN: the peer is gone meanwhile.
	 */
	int (*cm_accept)(struct xr_cm_id *id, struct xr_qp *qp, const void *data, uint32_t len);
	/* rdma_reject(3); the id is destroyed with it. */
	int (*cm_reject)(struct xr_cm_id *id, const void *data, uint32_t len);
	/* rdma_disconnect(3): both QPs go to ERR. */
	int (*cm_disconnect)(struct xr_cm_id *id);
	/* A listener closes; a connection is disconnected.  The QP stays, in ERR. */
	void (*cm_destroy)(struct xr_cm_id *id);

	/* rdma_get_cm_event(3): 1 with an event, 0 without.  Readable fd: call until 0. */
	int (*cm_get_event)(struct xr_dev *dev, struct xr_cm_event *ev);
	int (*cm_fd)(struct xr_dev *dev);
};

/*
 * Devices by name: "shm", "verbs", each also with ":WHAT" for open() behind it (*what, when asked for).
 * NULL when there is none such, or when its module cannot be loaded: errno says why, ENODEV (no such
 * name, or built without), ENOENT (the module is not installed), ELIBACC (a library that it needs is not), EPROTO
 * (it is of another version).  The first call for a module loads it.  Not for hooks.
 */
const struct xr_fabric_ops *xr_fabric_find(const char *name, const char **what);

extern const struct xr_fabric_ops xr_fabric_shm __attribute__((visibility("hidden")));

/*
 * What a module exports, as "xr_fabric_module": its operations, or NULL for a host that is not of the same build.
 * The module has logging of its own, set as that of the host.
 */
#define XR_FABRIC_ABI	2u

struct xr_fabric_host {
	uint32_t abi;
	const char *version;
	int log_threshold;
	const char *log_file;
};

typedef const struct xr_fabric_ops *xr_fabric_module_fn(const struct xr_fabric_host *host);

/* "success", "remote access error", ...; any number is allowed. */
const char *xr_wc_status_name(unsigned int status);

#endif
