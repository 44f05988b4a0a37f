/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inside the shm device.  A queue pair is four directions: requests and responses,
 * each way.  Requests (SEND, WRITE, READ) may have to wait for the peer's receives;
 * responses (READ_RESP, NAK) never wait for anything but the peer's polling, which is
 * why they have a ring of their own.
 *
 *	fabric_shm.c		device, completion queues, driving
 *	fabric_shm_mr.c		memory
 *	fabric_shm_qp.c		queue pairs and their states, posting, completion
 *	fabric_shm_io.c		requester's half and driving
 *	fabric_shm_exec.c	responder's half
 *	fabric_shm_cm.c		connection management
 *	fabric_shm_peer.c	the control connection to another process
 *	fabric_shm_fault.c	faults, for tests (fabric_shm_fault.h)
 *
 * Locking: none, a device has one user at a time (fabric.h).
 */
#ifndef XR_FABRIC_SHM_H
#define XR_FABRIC_SHM_H

#include <sys/uio.h>
#include "fabric_impl.h"
#include "mem.h"
#include "shm_link.h"
#include "shm_msg.h"

#define SHM_WAITER	1u		/* a device is one waiter to each of its peers */
#define SHM_ARENA	(256ull << 20)	/* per peer and side; touched as it is used: 1900 queue pairs */
#define SHM_SLOTS	128u
#define SHM_INFLIGHT	(4u << 20)	/* bytes per direction */
#define SHM_MAX_SGE	4u
#define SHM_MAX_RD	16u
#define SHM_MAX_WR	4096u
#define SHM_MAX_CQE	65536u
#define SHM_MAX_MSG	(1u << 30)
#define SHM_MAX_QP	4096u
#define SHM_CONNECT_NS	10000000000ull	/* an answer to connect takes no longer */
#define SHM_HELLO_NS	2000000000ull	/* a stranger says hello by then or is dropped */
#define SHM_HELLO_MAX	64u		/* strangers at once */

#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))

struct shm_key {
	uint8_t *addr;
	size_t len;
	struct xr_pd *pd;
	struct shm_mr *mr;
	struct shm_qp *qp;	/* a window of this QP; NULL: a region */
	uint32_t access;
	uint32_t next;		/* free list */
	uint8_t gen, used;
};

struct shm_mr {
	struct xr_mr mr;
	uint32_t access, windows;
	uint8_t owned;
};

struct shm_pd {
	struct xr_pd pd;
	uint32_t refs;
};

struct shm_cq {
	struct xr_cq cq;
	struct shm_cq *next;
	struct xr_wc *ring;
	uint32_t mask, head, tail, refs;
	uint8_t armed;
};

/* Of shm_swr.flags, beside XR_SEND_*: what its completion says. */
#define SHM_SEND_RNR	0x80000000u
#define SHM_SEND_ECN	0x40000000u

/* Positions in queues are counters that run on; they are masked to index. */
struct shm_swr {
	uint64_t wr_id, raddr;
	uint32_t op, flags, imm, rkey;
	uint32_t len;
	uint32_t moved;		/* bytes published; READ: received */
	uint32_t end;		/* slot after the last one of it */
	uint8_t status;		/* refused by this end, known at the post */
	uint8_t done;		/* READ: all is here */
	uint8_t nsge;
	struct iovec iov[SHM_MAX_SGE];
};

struct shm_rwr {
	uint64_t wr_id;
	uint8_t *addr;
	uint32_t len, lkey;
};

struct shm_read {
	uint64_t raddr;
	uint32_t rkey, len, off;
};

/* What a fault does to one request. */
struct shm_fate {
	uint32_t seq;		/* position in the send queue, plus 1; 0: none */
	uint32_t tries;		/* drops */
	uint64_t others;	/* reorder: what other queue pairs had sent by then */
	uint8_t duplicate, reorder, fail;
};

enum { SHM_ROOM_NONE, SHM_ROOM_SQ, SHM_ROOM_RING };

struct shm_qp {
	struct xr_qp qp;
	struct xr_qp_attr attr;
	struct shm_peer *peer;
	struct shm_id *id;
	struct shm_qp *peer_next;		/* QPs of one peer */
	struct shm_qp *prev, *next;		/* the active ones */
	uint32_t peer_num;
	uint32_t idle;
	uint8_t active;
	uint8_t parted;		/* the peer has let go of our directions for good */
	uint8_t told;		/* we have told the peer that we are in ERR */

	/* own directions */
	uint64_t off[2];
	struct xr_shm_meta *meta;
	struct shm_zombie *zombie;	/* becomes the rest of this QP */
	struct xr_shm_tx req_tx, resp_tx;
	/* the peer's */
	struct xr_shm_rx req_rx, resp_rx;

	/* send queue: done <= sent <= head */
	struct shm_swr *sq;
	uint32_t sq_mask, sq_head, sq_sent, sq_done;
	uint32_t sq_signalled;	/* not complete and to be reported */
	uint32_t taken;
	uint32_t reads, read_next;
	uint8_t starved;	/* waits for a chunk that another QP holds */
	uint64_t tx_hold, rx_hold;	/* faults: nothing is sent, executed before */
	struct shm_fate fate;	/* of the request at the head of those not sent */
	uint8_t bell_due;	/* published and not yet told */
	uint8_t want_room;	/* a post was turned away: SHM_ROOM_*, what it lacked */
	uint8_t err;		/* status of the first send that fails */
	uint8_t flushing;	/* that one is out */
	/* requester's side of RNR */
	uint8_t rnr_count;
	uint32_t rnr_seq, rnr_us;
	uint64_t rnr_deadline;

	/* receive queue */
	struct shm_rwr *rq;
	uint32_t rq_mask, rq_head, rq_done;

	/* responder */
	uint32_t req_seq, rel_seq;	/* next to execute, next to give back */
	uint8_t *held;			/* by slot: received by reference */
	uint32_t held_count;
	uint8_t rel_due;		/* given back and not yet told */
	uint32_t msg_len;		/* bytes of the message that is arriving */
	uint8_t in_msg;
	uint8_t rnr_told;
	uint32_t fault_seq;		/* the slot that the dice were thrown for, plus 1 */
	uint8_t stalled;		/* on a full completion queue */
	struct shm_read rd[SHM_MAX_RD];
	uint32_t rd_head, rd_done;
	uint32_t resp_seq;

	/* the peer is leaving: what it published before `limit` is still executed */
	uint8_t gone;			/* XR_WC_* that its end means for our sends */
	uint32_t limit;
};

enum shm_id_state {
	SHM_ID_LISTEN, SHM_ID_CONNECTING, SHM_ID_REQUESTED, SHM_ID_ACCEPTED, SHM_ID_CONNECTED,
	SHM_ID_DEAD
};

struct shm_id {
	struct xr_cm_id id;
	struct shm_id *next;
	enum shm_id_state state;
	char name[XR_ADDR_NAME];
	/* listener */
	int sock;
	uint32_t backlog, pending;
	uint8_t any_user;
	/* connection */
	struct shm_peer *peer;
	struct shm_id *listener;
	uint32_t remote;
	uint64_t remote_off[2];
	uint64_t deadline;
	uint8_t fresh;		/* the connection was made for this very request */
	uint8_t sent;		/* the request is out */
	uint32_t data_len;
	uint8_t data[56];
};

enum shm_peer_state { SHM_PEER_KNOCK, SHM_PEER_HELLO, SHM_PEER_UP, SHM_PEER_DEAD };

/* Directions that the peer may still look at although their QP is destroyed. */
struct shm_zombie {
	struct shm_zombie *next;
	uint32_t num;
	uint64_t off[2];
	struct xr_shm_meta *meta;
	struct xr_shm_tx tx[2];
};

#define SHM_CM_MAGIC	0x78724d43u	/* changes with the layout of messages */
#define SHM_CM_VERSION	1u

enum shm_cm_type {
	SHM_CM_HELLO = 1, SHM_CM_REQ, SHM_CM_REP, SHM_CM_RTU, SHM_CM_REJ,
	SHM_CM_DISC,	/* src in ERR: slots from `slot` on were not sent; status XR_WC_* */
	SHM_CM_CANCEL,	/* src takes its request back */
	SHM_CM_GONE,	/* src will not look at dst's directions again */
	SHM_CM_NUDGE,	/* dst has something to do (a doorbell was lost) */
};

/* One message on the control connection; host order, one machine. */
struct shm_cm_msg {
	uint32_t magic;
	uint16_t version, type;
	uint32_t src, dst;
	uint64_t off[2];
	int32_t status;
	uint32_t slot;
	uint32_t data_len;
	char name[XR_ADDR_NAME + 3];
	uint8_t data[256];
};

/* A message that the control connection did not take at once. */
struct shm_late {
	struct shm_late *next;
	struct shm_cm_msg m;
};

struct shm_peer {
	struct shm_peer *next;
	struct shm_dev *dev;
	enum shm_peer_state state;
	uint8_t caller;			/* we connected */
	uint8_t any_user;
	int sock;
	char name[XR_ADDR_NAME];	/* what we connected to */
	uint64_t deadline;
	struct xr_shm_arena own;	/* until the link has it */
	int ctl;
	struct xr_shm_link *link;
	struct shm_qp *qps;
	struct shm_zombie *zombies;
	struct shm_late *late, **late_tail;
	uint32_t nlate;
};

struct shm_dev {
	struct xr_dev dev;
	uint32_t npd, nmr;
	struct shm_key *keys;
	uint32_t nkeys, key_free;
	struct shm_cq *cqs;
	struct shm_qp **qps;		/* by the low bits of their number */
	uint16_t *qp_gen;
	uint32_t nqps, qp_room;
	struct shm_qp *active;
	uint32_t nactive;
	uint32_t armed;			/* completion queues that are */
	struct shm_peer *peers;
	uint32_t strangers;
	struct shm_id *ids;
	struct xr_cm_queue events;
	int cq_epoll, cq_event, cq_timer;
	int cm_epoll, cm_event, cm_timer;
	uint64_t cm_deadline;
	struct shm_fault *fault;	/* NULL: none */
};

static inline struct shm_dev *shm_dev(struct xr_dev *d)
{
	return container_of(d, struct shm_dev, dev);
}

static inline struct shm_qp *shm_qp(struct xr_qp *q)
{
	return container_of(q, struct shm_qp, qp);
}

static inline struct shm_cq *shm_cq(struct xr_cq *c)
{
	return container_of(c, struct shm_cq, cq);
}

/* --- fabric_shm_mr.c --- */

#define SHM_KEY_NONE	UINT32_MAX

int shm_pd_alloc(struct xr_dev *dev, struct xr_pd **pd);
int shm_pd_free(struct xr_pd *pd);
int shm_mr_reg(struct xr_pd *pd, void *addr, size_t len, uint32_t access, struct xr_mr **mr);
int shm_mr_alloc(struct xr_pd *pd, size_t len, uint32_t access, struct xr_mr **mr);
int shm_mr_dereg(struct xr_mr *mr);
/* Memory behind a key, or NULL; len 0 is always allowed (and then the key is not looked at). */
void *shm_key_check(struct shm_dev *d, uint32_t key, uint64_t addr, uint64_t len, uint32_t access,
		    const struct shm_qp *q, int remote);
void shm_key_drop_qp(struct shm_dev *d, struct shm_qp *q);
int shm_mw_bind(struct xr_qp *qp, struct xr_mr *mr, void *addr, size_t len, uint32_t access,
		uint32_t *rkey);
void shm_mw_invalidate(struct xr_qp *qp, uint32_t rkey, uint32_t flags);

/* --- fabric_shm.c --- */

static inline int shm_cq_room(const struct shm_cq *c)
{
	return c->tail - c->head <= c->mask;
}

void shm_cq_push(struct shm_cq *c, const struct xr_wc *wc);
/* Makes cq_fd readable: somebody may sleep who should look again. */
void shm_wake(struct shm_dev *d);
void shm_activate(struct shm_qp *q);
void shm_deactivate(struct shm_qp *q);

/* --- fabric_shm_qp.c --- */

int shm_qp_create(struct xr_dev *dev, const struct xr_qp_attr *attr, struct xr_qp **qp);
int shm_qp_destroy(struct xr_qp *qp);
int shm_qp_modify(struct xr_qp *qp, enum xr_qp_state state);
int shm_post_send(struct xr_qp *qp, const struct xr_send_wr *wr);
int shm_post_recv(struct xr_qp *qp, const struct xr_recv_wr *wr);
void shm_recv_release(struct xr_qp *qp, uint32_t ref);
/* Own directions in the arena of a peer: before connect and accept. */
int shm_qp_directions(struct shm_qp *q, struct shm_peer *p);
/* Gives them back before anybody has seen them. */
void shm_qp_undirect(struct shm_qp *q);
/* Both ends know each other: RTR. */
int shm_qp_attach(struct shm_qp *q, uint32_t num, const uint64_t off[2]);
/* To ERR; status is for the first send that has not completed. */
void shm_qp_fail(struct shm_qp *q, enum xr_wc_status status);
/* The peer said or showed that it ends: ERR once everything it had published is executed. */
void shm_qp_gone(struct shm_qp *q, enum xr_wc_status status, uint32_t limit);
struct shm_qp *shm_qp_find(struct shm_dev *d, uint32_t num);
/* Completes what is complete; ERR: flushes.  Number of requests that ended. */
int shm_sq_complete(struct shm_qp *q);
int shm_flush(struct shm_qp *q);
int shm_sq_done(struct shm_qp *q, const struct shm_swr *wr);
void shm_zombie_free(struct shm_peer *p, struct shm_zombie *z);

/* --- fabric_shm_io.c --- */

/* Moves what can be moved; number of things that were. */
int shm_qp_progress(struct shm_qp *q);
/* Arms every direction; 1: there is something to do already. */
int shm_qp_arm(struct shm_qp *q);
void shm_nonsense(struct shm_qp *q, const char *what);
/* Tells a sender that waits for the receiver's progress. */
void shm_notice(struct shm_qp *q, struct xr_shm_rx *rx);
/* Publishes what is queued. */
int shm_sq_emit(struct shm_qp *q);
int shm_emit_inline(struct shm_qp *q, struct shm_swr *wr);
void shm_doorbell(struct shm_qp *q, struct xr_shm_tx *tx);

/* --- fabric_shm_exec.c --- */

#define SHM_BUDGET	64	/* slots of one QP before the others have their turn */
#define SHM_NAK_RNR	0xffu	/* the status of a NAK is XR_WC_* or this */

int shm_execute(struct shm_qp *q);
int shm_respond(struct shm_qp *q);
/* Tells the sender that there is no receive for slot req_seq, once. */
int shm_exec_rnr(struct shm_qp *q);
/* Tells the sender how far this end is. */
void shm_rx_advance(struct shm_qp *q);

/* --- fabric_shm_fault.c --- */

/* Our own request w, at the head of those not sent: 1 when it is not to go now. */
int shm_fault_send(struct shm_qp *q, struct shm_swr *w);
/* It went. */
void shm_fault_sent(struct shm_qp *q);
/* Slot req_seq of the peer: 1 when it is not to be executed now. */
int shm_fault_execute(struct shm_qp *q, int send);
/* 1: it came with a mark. */
int shm_fault_marks(struct shm_qp *q);
void shm_fault_end(struct shm_dev *d);

/* --- fabric_shm_cm.c --- */

int shm_cm_listen(struct xr_dev *dev, const struct xr_addr *addr, const struct xr_listen_attr *attr,
		  struct xr_cm_id **id);
int shm_cm_connect(struct xr_dev *dev, const struct xr_addr *addr, struct xr_qp *qp,
		   const void *data, uint32_t len, struct xr_cm_id **id);
int shm_cm_accept(struct xr_cm_id *id, struct xr_qp *qp, const void *data, uint32_t len);
int shm_cm_reject(struct xr_cm_id *id, const void *data, uint32_t len);
int shm_cm_disconnect(struct xr_cm_id *id);
void shm_cm_destroy(struct xr_cm_id *id);
int shm_cm_get_event(struct xr_dev *dev, struct xr_cm_event *ev);
int shm_cm_fd(struct xr_dev *dev);
int shm_cm_event(struct shm_id *id, enum xr_cm_type type, int status, const void *data, uint32_t len);
/* The accepting side knows that the other end is there: by RTU, or by its first message. */
void shm_cm_established(struct shm_qp *q);
/* The QP of this id went to ERR. */
void shm_cm_qp_failed(struct shm_id *id);
/* Connections that were not answered in time end; returns the next deadline. */
uint64_t shm_cm_expire(struct shm_dev *d, uint64_t now);
/* The peer came up, or will not: what waited for it goes on. */
void shm_cm_peer_up(struct shm_peer *p);
void shm_cm_peer_dead(struct shm_peer *p, int error);

void shm_cm_message(struct shm_peer *p, const struct shm_cm_msg *m);

/* --- fabric_shm_peer.c --- */

/* In the low bits of what epoll reports: a descriptor to drain, a peer, a listener. */
enum shm_watched { SHM_WATCH_COUNTER, SHM_WATCH_PEER, SHM_WATCH_LISTENER };

int shm_watch(int epoll, int fd, void *object, enum shm_watched kind);
/* Before fd is closed: where a forked child has a copy of it, epoll would go on to tell of an object that is gone. */
void shm_unwatch(int epoll, int fd);
int shm_peer_listen(struct shm_dev *d, struct shm_id *id);
/* A peer that listens to this name, made if need be (always, with fresh). */
int shm_peer_get(struct shm_dev *d, const char *name, int fresh, struct shm_peer **peer);
/* Connects one that was made; what comes of it goes to shm_cm_peer_up or _dead. */
void shm_peer_knock(struct shm_peer *p);
int shm_peer_send(struct shm_peer *p, struct shm_cm_msg *m, enum shm_cm_type type);
void shm_peer_die(struct shm_peer *p, int error);
void shm_peer_reap(struct shm_dev *d);
/* Takes what came in, lets time pass; called by get_event. */
void shm_peer_progress(struct shm_dev *d);
void shm_peer_timer(struct shm_dev *d, uint64_t deadline);

#endif
