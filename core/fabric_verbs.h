/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inside the verbs fabric: librdmacm and libibverbs behind fabric.h, a module of its own (fabric.c opens it).
 *
 *	fabric_verbs.c		the table of operations, opening, closing, what a device can
 *	fabric_verbs_dev.c	finding a device and its port; asynchronous events; a device that goes away
 *	fabric_verbs_quirk.c	the one table of what is assumed of a kind of device
 *	fabric_verbs_gid.c	which address of the port a connection goes by
 *	fabric_verbs_mr.c	memory, and windows in it
 *	fabric_verbs_cq.c	completion queues: every request completes exactly once
 *	fabric_verbs_qp.c	queue pairs and their states
 *	fabric_verbs_post.c	posting
 *	fabric_verbs_cm.c	connections: what the program asks for
 *	fabric_verbs_event.c	connections: what the manager reports
 *	fabric_verbs_late.c	connections: those that cannot be ended now
 *	fabric_verbs_spare.c	connections: those that may be made soon
 *	fabric_verbs_wire.c	private data
 *
 * Every request has a shadow in here, so that what the hardware reports can be checked, and what it will never
 * report (a device that is gone) can be made up for.  The wr_id of the hardware is
 * index of the queue pair : 16 | its life : 15 | receive : 1 | position : 32.
 *
 * Errors of the two libraries come in every form there is: -1 with errno, errno itself, NULL with errno.  They
 * leave here as -errno.
 *
 * Locking: none, a device has one user at a time (fabric.h).
 */
#ifndef XR_FABRIC_VERBS_H
#define XR_FABRIC_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "fabric_impl.h"
#include "mem.h"

#define V_MAX_SGE	4u
#define V_BATCH		16u
#define V_MAX_WR	8192u		/* per queue, of the user; three times as many are in hardware */
#define V_MAX_RD	16u
#define V_MAX_QP	65536u
#define V_MAX_INLINE	256u		/* what a send queue entry is made large enough for */
#define V_CONNECT_NS	10000000000ull	/* an answer to connect takes no longer */
#define V_RESOLVE_MS	50		/* first wait for an address, doubled each time */
#define V_PLACES	16u
#define V_SPARES	1024u		/* each is an id and a port of the manager */
#define V_SPARE_NS	5000000000ull
#define V_SPARE_MS	1000		/* nobody waits for its address */
#define V_RETRY		6u		/* of a request that is not acknowledged; rxe takes 7 for "for ever" */
#define V_DETECT_MS	1000u
#define V_MARK		16u		/* bytes */
#define V_MARK_SURE	8u		/* so many are not met by chance */

#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))

/* Fewer READs under way do not fill a path: 4 of 64 KiB are 100 Gb/s over 20 us. */
#define V_FEW_READS	4u

struct v_quirk {
	const char *driver;
	uint32_t vendor;	/* that the device reports */
	uint8_t software;	/* emulated: slower than the kernel's TCP */
	uint8_t no_reuse;	/* a queue pair is not taken back to RESET */
	uint8_t no_window;	/* windows are regions */
	uint8_t loose_window;	/* windows are as large as their region */
	uint8_t no_zero_write;
	uint8_t silent;		/* does not say what was wrong with memory of this end */
	uint8_t slow_read;	/* WRITE is the better one */
	uint8_t hollow;		/* says of a READ that failed that it has succeeded */
	uint8_t brittle;	/* who connects and disconnects by it never can again after sending without a route */
};

struct v_window {
	struct v_window *next;
	struct v_qp *qp;
	struct v_mr *mr;
	struct ibv_mw *mw;
	/* instead of mw, or for it alone; then it is kept when the window is closed, see V_REGIONS */
	struct ibv_mr *region;
	unsigned int flags;	/* IBV_ACCESS_* of that */
	uint32_t rkey;
	uint8_t closing;	/* its invalidation is posted */
	uint8_t due;		/* ... or could not be, yet */
};

struct v_mr {
	struct xr_mr mr;
	struct v_mr *next;
	struct ibv_mr *ib;	/* NULL: the device is gone */
	uint32_t access;
	uint32_t windows;	/* open */
	uint32_t closing;	/* and those whose invalidation is under way */
	uint8_t owned;
	uint8_t over;		/* the user has given it back; goes with the last of those */
};

struct v_pd {
	struct xr_pd pd;
	struct v_pd *next;
	struct ibv_pd *ib;
	uint32_t refs;
	struct v_window *spare;	/* type 2 windows that are closed, the last first */
	uint32_t regions;	/* of them with a region */
};

struct v_cq {
	struct xr_cq cq;
	struct v_cq *next;
	struct ibv_cq *ib;
	uint32_t cqe;		/* entries that the hardware has */
	uint32_t reserved;	/* of them for queue pairs that exist */
	uint32_t refs;
	struct xr_wc *ring;	/* what was taken off the hardware, or made up, before it was asked for */
	uint32_t mask, head, tail;
	uint8_t armed;
	/* Sends of one of its queue pairs that wait to be posted together, with one doorbell. */
	struct v_qp *batch_qp;	/* NULL: none */
	uint32_t batched;
	struct ibv_send_wr batch[V_BATCH];
	struct ibv_sge batch_sge[V_BATCH][V_MAX_SGE];
};

/*
 * Closed windows of a protection domain that keep their region, "loose_window" only: the memory of messages comes from
 * few places again and again, and to register it costs more than to move it. Nobody can read it by these: a region that
 * a window is bound to has no access of its own.
 */
#define V_REGIONS	32u
#define V_REGION_MAX	(256u << 10)	/* bytes of one that is kept: all together hold 8 MiB at most */

enum { V_OP_BIND = 64, V_OP_CLOSE, V_OP_LAST };	/* beside XR_WR_*: requests of our own */

struct v_swr {
	uint64_t wr_id;
	uint32_t len;
	uint8_t op, report;	/* report: on success too */
	uint8_t signaled;	/* the hardware tells */
	uint8_t bad;		/* its memory is not what its keys are for; "silent" only */
	uint8_t mark_len;
	uint8_t *mark;		/* READ, "hollow" only: the end of its memory, see v_mark_left */
	uint8_t was[V_MARK];	/* there */
	struct v_window *window;
};

struct v_rwr {
	uint64_t wr_id;
	void *addr;
	uint32_t len, lkey;
	uint8_t bad;
};

/* Positions are counters that run on; they are masked to index. */
struct v_qp {
	struct xr_qp qp;
	struct xr_qp_attr attr;
	struct ibv_qp *ib;	/* NULL: the device is gone */
	struct v_id *id;
	uint32_t index, life;
	struct v_swr *sq;
	uint32_t sq_mask, sq_depth;	/* depth: of the hardware */
	uint32_t sq_head, sq_hw, sq_done;	/* hw: what the hardware has; behind it is what was posted in ERR */
	uint32_t out;		/* requests of the user that are not complete */
	uint32_t quiet;		/* posted since the hardware was last told to tell */
	struct v_rwr *rq;
	uint32_t rq_mask, rq_head, rq_hw, rq_done;
	struct v_window *windows;
	uint32_t due;		/* of them to be closed when there is room */
	uint8_t err;		/* XR_WC_*: why, for the first send that failed */
	uint8_t flushing;	/* that one is out */
	uint8_t refused;	/* a post found no room */
};

enum v_id_state {
	V_ID_LISTEN, V_ID_ADDRESS, V_ID_ROUTE, V_ID_SPARE, V_ID_CONNECTING, V_ID_REQUESTED, V_ID_ACCEPTED,
	V_ID_CONNECTED, V_ID_DEAD
};

struct v_id {
	struct xr_cm_id id;
	struct v_id *next;
	enum v_id_state state;
	struct rdma_cm_id *cm;	/* NULL: the device is gone */
	/* listener */
	uint32_t backlog, pending;
	/* connection */
	struct v_id *listener;
	struct xr_addr addr;	/* of the other end */
	uint64_t deadline;
	int resolve_ms;
	uint8_t mtu;		/* enum ibv_mtu: what both ends can */
	uint8_t reads_in, reads_out;	/* what the other end asked for, and takes */
	uint8_t gone;		/* REQUESTED: taken back */
	uint8_t tos;
	uint8_t spare;		/* nobody's yet: ADDRESS, ROUTE, SPARE */
	uint8_t foreseen;	/* it was */
	uint8_t again;		/* V_AGAIN_*: worth a spare one when it is over */
	uint8_t len;
	uint8_t data[56];
};

#define V_AGAIN_KNOWN	1u	/* there was one to the same place before */
#define V_AGAIN_MADE	2u	/* it came to be */

/* Of a connection that is over here, but for the manager. */
struct v_late {
	struct v_late *next;
	struct rdma_cm_id *cm;
};

/* What happened to a device that should not; in the log when it closes. */
struct v_count {
	uint64_t lost;		/* completions that the hardware never gave */
	uint64_t twice;		/* ... or gave twice */
	uint64_t hollow;	/* ... or gave for READs that brought nothing */
	uint64_t strange;	/* ... or gave for requests of queue pairs that are gone */
	uint64_t strangers;	/* connections that were not for us */
	uint64_t events;	/* asynchronous ones */
	uint64_t foreseen;	/* connections whose way was known before they were asked for */
};

struct v_place {
	struct xr_addr addr;
	uint8_t tos;
};

struct v_dev {
	struct xr_dev dev;
	const struct v_quirk *quirk;
	struct ibv_context *ctx;	/* NULL: the device is gone */
	struct ibv_device_attr attr;
	char name[IBV_SYSFS_NAME_MAX];
	__be64 guid;
	uint8_t port, up, windows;	/* windows: the device has type 2 */
	uint8_t dying;
	uint8_t mtu;			/* enum ibv_mtu */
	uint32_t max_inline;
	uint64_t secret;		/* of marks */
	struct xr_addr own;		/* the address that it was found by */
	union ibv_gid gid;
	int gid_index;			/* -1: the address is gone */
	struct ibv_comp_channel *channel;
	struct rdma_event_channel *cm;
	struct v_pd *pds;
	struct v_cq *cqs;
	struct v_mr *mrs;
	struct v_mr *keys[64];		/* found lately, by key */
	struct v_qp **qps;
	uint16_t *lives;
	uint32_t nqps, qp_room;
	struct v_id *ids;
	struct v_late *late;
	uint8_t unmute;			/* looks that found that it may speak */
	uint8_t closing;
	struct v_place places[V_PLACES];	/* connected to lately */
	uint32_t nplaces;		/* ever: the last V_PLACES of them are there */
	uint32_t spares;
	struct xr_cm_queue events;
	int cq_epoll, cq_event;
	uint8_t rung;			/* cq_event was written to */
	int cm_epoll, cm_event, cm_timer;
	uint64_t timer_at;
	struct v_count count;
};

static inline struct v_dev *v_dev(struct xr_dev *d)
{
	return container_of(d, struct v_dev, dev);
}

static inline struct v_qp *v_qp(struct xr_qp *q)
{
	return container_of(q, struct v_qp, qp);
}

static inline struct v_cq *v_cq(struct xr_cq *c)
{
	return container_of(c, struct v_cq, cq);
}

static inline struct v_pd *v_pd(struct xr_pd *p)
{
	return container_of(p, struct v_pd, pd);
}

static inline struct v_id *v_id(struct xr_cm_id *i)
{
	return container_of(i, struct v_id, id);
}

/* Of a call that returns -1 or errno or -errno, whichever its authors preferred. */
static inline int v_errno(int r)
{
	if (!r)
		return 0;
	if (r == -1 || (r > 0 && r > 4095))
		r = errno ? errno : EIO;
	return r > 0 ? -r : r;
}

/* Of a call that returned NULL.  EAGAIN is an rdma cgroup's word, and nothing to wait for: its share is used up. */
static inline int v_null(void)
{
	return errno == EAGAIN ? -ENOMEM : errno > 0 ? -errno : -ENOMEM;
}

static inline uint32_t v_pow2(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

/* --- fabric_verbs_quirk.c --- */

const struct v_quirk *v_quirk(uint32_t vendor);

/* --- fabric_verbs_dev.c --- */

int v_dev_open(struct v_dev *d, const char *what);
void v_dev_close(struct v_dev *d);
int v_dev_port(struct v_dev *d);
/* Takes the asynchronous events. */
void v_dev_events(struct v_dev *d);
/* Everything that the kernel has of us goes; what the user has stays, dead. */
void v_dev_die(struct v_dev *d);

/* --- fabric_verbs_gid.c --- */

int v_address(const char *text, struct xr_addr *addr);
void v_gid_of(const struct xr_addr *addr, union ibv_gid *gid);
int v_gid_link_local(const union ibv_gid *gid);
/* 1: an address that other hosts can have a route to. */
int v_routable(const struct xr_addr *addr);
socklen_t v_sockaddr(const struct xr_addr *addr, const uint8_t *ip, uint16_t port, struct sockaddr_storage *ss);
void v_addr(const struct sockaddr *sa, struct xr_addr *addr);
/* The index of this address as RoCE v2 (InfiniBand: as it is), or -EADDRNOTAVAIL. */
int v_gid_index(struct ibv_context *ctx, uint8_t port, const union ibv_gid *gid);
/* Looks again, after the table has changed: 1 when that made a difference. */
int v_gid_refresh(struct v_dev *d);
/* Makes the address vector of a connection go by the right entry. */
int v_gid_fix(struct v_dev *d, struct ibv_ah_attr *ah);

/* --- fabric_verbs_mr.c --- */

int v_pd_alloc(struct xr_dev *dev, struct xr_pd **pd);
int v_pd_free(struct xr_pd *pd);
int v_mr_reg(struct xr_pd *pd, void *addr, size_t len, uint32_t access, struct xr_mr **mr);
int v_mr_alloc(struct xr_pd *pd, size_t len, uint32_t access, struct xr_mr **mr);
int v_mr_dereg(struct xr_mr *mr);
int v_mw_bind(struct xr_qp *qp, struct xr_mr *mr, void *addr, size_t len, uint32_t access, uint32_t *rkey);
void v_mw_invalidate(struct xr_qp *qp, uint32_t rkey, uint32_t flags);
/* Its invalidation has completed. */
void v_window_closed(struct v_qp *q, struct v_window *w);
/* The queue pair is in ERR. */
void v_windows_drop(struct v_qp *q);
/* Closes what could not be closed for want of room. */
void v_windows_due(struct v_qp *q);
/* 1: the key does not cover it. */
int v_key_bad(struct v_dev *d, const struct xr_sge *sge, int write);
void v_mr_die(struct v_dev *d);
void v_pd_die(struct v_dev *d);

/* --- fabric_verbs_cq.c --- */

int v_cq_create(struct xr_dev *dev, uint32_t cqe, struct xr_cq **cq);
int v_cq_destroy(struct xr_cq *cq);
int v_cq_poll(struct xr_cq *cq, struct xr_wc *wc, int n);
int v_cq_arm(struct xr_cq *cq);
int v_cq_fd(struct xr_cq *cq);
void v_cq_event(struct xr_cq *cq);
/* Room for the completions of a queue pair: a queue never overruns. */
int v_cq_reserve(struct v_cq *c, uint32_t n);
/* Takes everything off the hardware, into the ring. */
void v_cq_drain(struct v_cq *c);
void v_cq_push(struct v_cq *c, const struct xr_wc *wc);
/* Forgets what a queue pair that ceases to exist had completed. */
void v_cq_forget(struct v_cq *c, const struct xr_qp *qp);
/* What the hardware does not have completes as flushed, when all that it has is complete. */
void v_flush_rest(struct v_qp *q);
/* Everything does, without the hardware. */
void v_flush(struct v_qp *q);
void v_wake(struct v_dev *d);
enum xr_wc_status v_status(enum ibv_wc_status status);

/* --- fabric_verbs_qp.c --- */

int v_qp_create(struct xr_dev *dev, const struct xr_qp_attr *attr, struct xr_qp **qp);
int v_qp_destroy(struct xr_qp *qp);
int v_qp_modify(struct xr_qp *qp, enum xr_qp_state state);
/* To ERR; status is for the first send that has not completed. */
void v_qp_fail(struct v_qp *q, enum xr_wc_status status);
/* As the connection of its id says, to RTS; one that cannot stays in INIT, with its receives. */
int v_qp_connect(struct v_qp *q);
/* Back to INIT: the connection came to nothing. */
int v_qp_unconnect(struct v_qp *q);
/* Exponent of the acknowledge timer, from what detection may take; of the RNR timer, never 0. */
uint8_t v_ack_timeout(uint32_t detect_ms);
uint8_t v_rnr_timer(uint32_t us);
/* The TIMEWAIT of a connection. */
uint32_t v_quarantine_us(const struct v_dev *d);

/* --- fabric_verbs_post.c --- */

int v_post_send(struct xr_qp *qp, const struct xr_send_wr *wr);
int v_post_recv(struct xr_qp *qp, const struct xr_recv_wr *wr);
void v_recv_release(struct xr_qp *qp, uint32_t ref);
/* In ERR: sees to it that the end of all that the hardware has will be known. */
int v_post_last(struct v_qp *q);
/* 1: the hardware says that the send at this position is done, and it is a READ that is not. */
int v_mark_left(struct v_qp *q, uint32_t pos);
/* A READ that failed: what it has not touched is as it was. */
void v_mark_undo(struct v_qp *q, uint32_t pos);
/* The user's memory is not looked at any more. */
void v_marks_forget(struct v_qp *q);
/* Shows the hardware receive `pos`. */
int v_post_recv_hw(struct v_qp *q, uint32_t pos);
/* A request of our own, V_OP_*. */
int v_post_window(struct v_qp *q, struct v_window *w, struct ibv_send_wr *wr, uint8_t op, int more);
/* Rings for what waits in the batch of the CQ. */
void v_ring(struct v_cq *c);

/* --- fabric_verbs_cm.c --- */

int v_cm_listen(struct xr_dev *dev, const struct xr_addr *addr, const struct xr_listen_attr *attr,
		struct xr_cm_id **id);
int v_cm_connect(struct xr_dev *dev, const struct xr_addr *addr, struct xr_qp *qp, const void *data,
		 uint32_t len, struct xr_cm_id **id);
int v_cm_accept(struct xr_cm_id *id, struct xr_qp *qp, const void *data, uint32_t len);
int v_cm_reject(struct xr_cm_id *id, const void *data, uint32_t len);
int v_cm_disconnect(struct xr_cm_id *id);
void v_cm_destroy(struct xr_cm_id *id);
int v_cm_get_event(struct xr_dev *dev, struct xr_cm_event *ev);
int v_cm_fd(struct xr_dev *dev);
/* Asks the manager for the way to its address, from the beginning. */
int v_cm_resolve(struct v_id *id);
/* ... which is known: asks the other end. */
int v_cm_request(struct v_id *id);
struct v_id *v_id_new(struct v_dev *d, enum v_id_state state);
void v_id_free(struct v_id *id);
/* The QP of this id went to ERR. */
void v_cm_qp_failed(struct v_id *id);
/* The accepting side knows that the other end is there. */
void v_cm_established(struct v_qp *q);
void v_cm_unreachable(struct v_id *id, int error);
void v_cm_die(struct v_dev *d);

/* --- fabric_verbs_late.c --- */

/* 1: the manager must not be made to send anything now. */
int v_cm_mute(const struct v_dev *d);
/* The id is destroyed, when it may be; speaks: the other end may be told then. */
void v_cm_let_go(struct v_dev *d, struct rdma_cm_id *cm, int speaks);
/* Those that may be: when to look again, 0: none is left. */
uint64_t v_late_expire(struct v_dev *d, uint64_t now);
/* All of them, whatever comes of it. */
void v_late_end(struct v_dev *d);

/* --- fabric_verbs_spare.c --- */

/* An id whose way there is known, or NULL; known: there was a connection to there lately. */
struct v_id *v_spare_take(struct v_dev *d, const struct xr_addr *addr, uint8_t tos, int *known);
/* A connection to there is over, and may be made again. */
void v_spare_make(struct v_dev *d, const struct xr_addr *addr, uint8_t tos);
/* What was known may not be so any more. */
void v_spare_drop(struct v_dev *d);
/* ... and nothing may be freed now. */
void v_spare_doubt(struct v_dev *d);

/* --- fabric_verbs_event.c --- */

void v_event(struct v_dev *d, struct v_id *id, enum xr_cm_type type, int status, const void *data, uint32_t len);
/* Takes what the manager reports, lets time pass. */
void v_cm_progress(struct v_dev *d);
void v_cm_timer(struct v_dev *d, uint64_t deadline);

/* --- fabric_verbs_wire.c --- */

#define V_WIRE	6u	/* bytes in front of the program's private data */

enum v_wire_code { V_WIRE_DATA = 1, V_WIRE_REFUSED, V_WIRE_BACKLOG, V_WIRE_MEMORY };

struct v_wire {
	uint8_t code, len, mtu;
	const uint8_t *data;
};

/* Returns the length. */
uint8_t v_wire_put(uint8_t *to, const struct v_wire *w);
/* What a peer sent: -EPROTO when it makes no sense. */
int v_wire_get(const void *from, size_t len, struct v_wire *w);

#endif
