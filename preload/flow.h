/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A flow: one TCP connection seen from one end, and which carrier moves its bytes.
 *
 * Flows live in family memory (shared with forked children) and are type-stable: a
 * pointer stays readable after the flow was released and re-used, so hooks look the
 * flow up without a reference and re-check under the lock where it matters.
 *
 * Directions are independent: each has a state, drawn and changed in flow_machine.c alone.
 * The hooks keep carrying both (XR_PATH_RX, XR_PATH_TX stay set) until both are on TCP again, so
 * that a reader finishes a replay that the writer's end still owes.  Then the flow is what it
 * was before the upgrade, and where the reason of the retreat permits it, may be upgraded
 * again (flow_return.c).  END (the FIN of the fabric) and what the kernel socket says about
 * the peer's life end a direction.
 *
 * Locks: rx_lock guards the receive direction, tx_lock the send direction; both when
 * the state of the whole flow changes, tx_lock first.  They are held for copies and
 * bookkeeping only, never across a sleep.  They live in family memory, which no peer
 * maps.
 */
#ifndef XR_FLOW_H
#define XR_FLOW_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "atomic.h"
#include "config.h"
#include "flow_far.h"
#include "ksock.h"
#include "lock.h"
#include "reason.h"
#include "shm_link.h"
#include "stats.h"

/* How hooks treat the flow; 0: the kernel carries it and nothing is counted. */
#define XR_PATH_COUNT	1u	/* kernel carries it, I/O is accounted: may be upgraded */
#define XR_PATH_RX	2u	/* reads go through xr_flow_recv, waits through xr_flow_poll */
#define XR_PATH_TX	4u	/* writes go through xr_flow_send */
#define XR_PATH_FABRIC	(XR_PATH_RX | XR_PATH_TX)
/*
 * Beside COUNT: about to move.  The kernel carries it still, but by way of xr_flow_recv and
 * xr_flow_send, whose sleep, unlike one in the kernel's, does not hold up the move.
 */
#define XR_PATH_MOVE	8u
/* Beside COUNT: writes are looked at by xr_witness_look. */
#define XR_PATH_WITNESS	16u

enum xr_rx_state { XR_RX_TCP, XR_RX_READY, XR_RX_DRAIN, XR_RX_RING, XR_RX_SKIP };
enum xr_tx_state { XR_TX_TCP, XR_TX_RING, XR_TX_REPLAY };

enum xr_flow_role { XR_FLOW_UNSET, XR_FLOW_CONNECT, XR_FLOW_ACCEPT };

/* Links a flow may have been on: who looked without a lock may be looking still. */
#define XR_FLOW_PAST 3

struct xr_tuple;
struct xr_upgrade;			/* a handshake under way; private memory */

struct xr_flow {
	/* one line, all that a call on a young flow needs */
	_Atomic uint32_t path;		/* XR_PATH_*; written with both locks held */
	_Atomic uint32_t gen;		/* changes when the slot is re-used */
	int owner_pid;			/* process that made it: releases and upgrades it */
	_Atomic uint32_t need_turns;	/* the upgrade takes its next step at ... */
	_Atomic uint64_t need_bytes;	/* ... or at so many bytes both ways */
	/* accounting while XR_PATH_COUNT; relaxed adds */
	_Atomic uint64_t tcp_tx, tcp_rx;
	_Atomic uint32_t k_tx, k_rx;	/* threads inside kernel writes / reads and polls, sleeps included */
	_Atomic uint32_t turns;		/* changes of direction; threads that meet lose some: a hint */
	_Atomic uint16_t last_dir;	/* likewise */
	_Atomic uint16_t epoll_child;	/* a child changed a registration: which file's (epoll_child.c); 0: none */
	_Atomic uint16_t reason;	/* enum xr_reason; relaxed: says nothing of anything else */
	uint8_t role, family, nonblock, connected;
	_Atomic uint8_t upgrade_off;	/* 1: never try (again); relaxed: what matters is decided under tx_lock */
	uint8_t up_tries;		/* attempts that found nobody */

	/* another one, all else that its beginning and its end need */
	uint32_t index;			/* in the slab: the cookie peers know it by */
	_Atomic uint32_t procs;		/* processes that hold it: xr_flow_holders() has the rest */
	uint32_t born;			/* forks of the owner before it was made */
	uint32_t next_free;		/* slab free list or limbo, owner process */
	_Atomic(struct xr_upgrade *) up;	/* owner process only, changed and followed under tx_lock */
	/* fabric attachment: set with both locks held, constant while XR_PATH_FABRIC; link is looked at without, too */
	struct xr_shm_link *_Atomic link;
	uint64_t dir_off;		/* own direction block in the own arena */
	struct xr_stats_flow *st;
	struct xr_flow_priv *priv;	/* this process's side of it, same address after fork */
	struct xr_flow_own *own;	/* the rest of that */

	/* receive direction: rx_lock */
	struct xr_lock rx_lock __attribute__((aligned(XR_PAIRLINE)));
	_Atomic uint32_t rx_state;	/* written under rx_lock; others look */
	uint64_t drain_to;		/* up to this offset TCP comes before the ring */
	uint16_t rx_end;		/* END taken: 1, with XR_END_CLOSE: 3 */
	uint16_t rx_shut;		/* the program did SHUT_RD */
	_Atomic uint32_t rx_dead;	/* POLLRDHUP, POLLHUP, POLLERR that the kernel socket showed */
	_Atomic uint32_t rx_look;	/* the kernel reported something: look before answering */
	_Atomic uint32_t err;		/* errno that recv, send or SO_ERROR shall report once */
	uint32_t rx_reset;		/* XR_RESET_* (flow_rx.h): `err` was set; 0: not */
	uint32_t kernel_lowat;		/* SO_RCVLOWAT of the socket, where it is not rcvlowat; else 0 */
	uint32_t rx_spin;		/* budget of busy waiting, owned by xr_spin */
	_Atomic uint32_t zc_extra;	/* zerocopy.h: calls that the kernel did not number */
	uint64_t rx_checked;		/* cycle count of the last look at the kernel socket */
	struct xr_shm_rx rx;

	/* earlier links, referenced till flow_return.c forgets them or the flow ends; here because there is room */
	struct xr_shm_link *past[XR_FLOW_PAST];

	/*
	 * What the kernel socket does not know of, beside what is in tx and rx (info.c): bytes and messages
	 * of earlier times on a fabric, less bytes that it carried once more, of any time.  Modulo 2^64.
	 * The lock of the direction; here because there is room.
	 */
	uint64_t moved_tx, moved_rx;
	uint32_t moved_tx_msgs, moved_rx_msgs;
	uint64_t moved_cycles;		/* cycle count at moved_ns */

	/* window shut since, and how far the peer was then (flow_ready.c): tx_lock */
	uint64_t shut_ns, shut_consumed;

	struct xr_flow_far *far;	/* its peer is on another host: the carrier is RDMA; NULL: shm */

	/* send direction: tx_lock */
	struct xr_lock tx_lock __attribute__((aligned(XR_PAIRLINE)));
	_Atomic uint32_t tx_state;	/* written under tx_lock; others look */
	uint32_t tx_shut;		/* the program did SHUT_WR: END is published */
	uint16_t tx_kfin;		/* kernel shutdown(SHUT_WR) done */
	_Atomic uint8_t quiet;		/* looks that found past[] full: tx_lock; xr_flow_wake looks */
	uint64_t tx_checked;		/* cycle count of the last look at the kernel socket */
	struct xr_shm_tx tx;
	/* a traced send that is not consumed (flow_trace.c): its end in the stream of the ring, 0: none; its number */
	uint64_t trace_end, trace_no;

	/* as `link` */
	uint32_t peer_cookie __attribute__((aligned(XR_CACHELINE)));	/* what the peer calls its end of the flow */
	uint32_t peer_dir_gen;		/* generation of the peer's direction block when attached */
	/* the slot's own, from its first use on */
	struct xr_shm_meta *meta;	/* slots' worth, family memory */
	struct xr_flow_kids *kids;	/* forked children of the owner; family memory, may be NULL */

	uint64_t up_after;		/* no step of the upgrade before this time, ns */
	uint64_t moved_ns;		/* when it came onto the fabric it is on, or was last on */
	/* options the fabric must honour itself; the kernel socket has them too */
	uint64_t rcvtimeo_ns, sndtimeo_ns;	/* 0: none */
	uint32_t rcvlowat;
	uint8_t returns;		/* retreats and failed returns lately: hysteresis */
	uint8_t fails;			/* failed returns in a row */
	_Atomic uint8_t npast;		/* links in past[]; tx_lock, for less the slab's too; xr_flow_wake looks */
	uint8_t waited;			/* a hand-over has waited in vain */
};

_Static_assert(offsetof(struct xr_flow, index) == XR_CACHELINE, "a call on a young flow needs one line");
_Static_assert(offsetof(struct xr_flow, rx_lock) == 2 * XR_CACHELINE, "its beginning and its end one more");

struct xr_epoll;

/* The one registration of a flow that never moved: epoll_young.c. */
struct xr_flow_young {
	struct xr_epoll *ep;		/* NULL: there is none */
	uint64_t data;
	uint32_t events;
	int fd;
	uint32_t file;			/* which one: the memory may be another one's by now */
	struct xr_lock lock;
};

/*
 * Private to each process, copied on fork: every page of it is one more for each fork to share and for each
 * child to let go of, so it holds nothing but what tells a child which flows it has.
 */
struct xr_flow_priv {
	_Atomic uint32_t fds;		/* descriptors of this process that refer to the flow, and holds */
	_Atomic int fd;			/* one of them, for display and kernel queries */
	_Atomic uint32_t holds;		/* calls that sleep on it: hold.h */
	_Atomic int orphan;		/* ours, in the place of the program's last; -1: none */
};

/* Private to each process, of no use to a child: it finds zeros. */
struct xr_flow_own {
	_Atomic(void *) regs;		/* epoll registrations: epoll.c; written under its lock, others look */
	struct xr_flow_young young;
	uint8_t unlisted;		/* counted as a connection that cannot be listed */
	_Atomic uint8_t zc_used;	/* there are counts in zc */
	uint16_t offered;		/* over links, in vain: the next attempt opens the name; tx_lock */
	uint8_t not_dir, is_dir;	/* nobody in the run directory has its other end; it goes that way; tx_lock */
	uint32_t shown;			/* in a child: what the parent's list says of its flow (policy.c) */

	/* of no use to most connections, and cleared after those that it was of use to */
	/* zerocopy.h: numbers that the kernel gave, and told; sends under way; first:32 | n:32 that we gave */
	struct xr_zc { _Atomic uint32_t sent, done, hold; _Atomic uint64_t told; } zc
		__attribute__((aligned(XR_CACHELINE)));
	_Atomic uint64_t probed;	/* what had been received at the last look at an idle flow */
};

_Static_assert(offsetof(struct xr_flow_own, zc) == XR_CACHELINE, "most connections need one line");

/* ---- life ---------------------------------------------------------------- */

/*
 * A fresh flow for a TCP socket just made by socket() (role UNSET) or accept().  NULL: stays
 * unknown, and xr_flow_refused says why the last one did.
 */
struct xr_flow *xr_flow_new(int fd, int family, enum xr_flow_role role, int nonblock);
extern _Atomic uint32_t xr_flow_refused;	/* enum xr_reason */

/* connect() succeeded or began (EINPROGRESS), or is about to. */
void xr_flow_connecting(struct xr_flow *f, int fd);

/* This flow will never be upgraded; counts the reason.  Retreats first when it is on a fabric. */
void xr_flow_stay_tcp(struct xr_flow *f, int fd, enum xr_reason why);

/*
 * The last descriptor of this process is about to be closed: called before the real
 * close, does all that must happen before it (END, linger, retreat of a shared flow), and
 * counts this process out.
 */
void xr_flow_last_close(struct xr_flow *f, int fd);
/* After it and the real close. */
void xr_flow_closed(struct xr_flow *f);
/* Both at once, where there is nothing to say to the peer. */
void xr_flow_release(struct xr_flow *f);

/* relaxed: written under both locks, and asked whether it is still the same by a sleeping call, which has none */
static inline int xr_flow_fd(const struct xr_flow *f)
{
	return xr_load_relaxed(&f->priv->fd);
}

/* relaxed: who follows it holds tx_lock, for others there is one, or there is none */
static inline struct xr_upgrade *xr_flow_up(const struct xr_flow *f)
{
	return xr_load_relaxed(&f->up);
}

/* The upgrade takes its next step after so many turns more, or bytes both ways. */
static inline void xr_flow_need(struct xr_flow *f, uint32_t turns, uint64_t bytes)
{
	/* relaxed: two thresholds, of which the one is as good as the other */
	xr_store_relaxed(&f->need_turns, xr_load_relaxed(&f->turns) + turns);
	xr_store_relaxed(&f->need_bytes, xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx) + bytes);
}

/* 1: on TCP for good, and never was elsewhere. */
static inline int xr_flow_settled(const struct xr_flow *f)
{
	return f->upgrade_off && !f->link && !xr_flow_up(f) && !xr_load_relaxed(&f->path);
}

/* ---- hooks --------------------------------------------------------------- */

/*
 * Kernel I/O on a flow that has XR_PATH_COUNT: begin before, end after the real call
 * with its result (>= 0 bytes, < 0 error).  begin returns 0 when the path changed
 * meanwhile and the hook must take the fabric path instead (no end then).
 */
int xr_flow_tcp_rx_begin(struct xr_flow *f);
void xr_flow_tcp_rx_end(struct xr_flow *f, int fd, ssize_t n);
int xr_flow_tcp_tx_begin(struct xr_flow *f);
void xr_flow_tcp_tx_end(struct xr_flow *f, int fd, ssize_t n);

/*
 * The same around a kernel poll or select that has the flow in its set: it would not
 * notice a switch, so none happens while it lasts.
 */
int xr_flow_kpoll_begin(struct xr_flow *f);
void xr_flow_kpoll_end(struct xr_flow *f);

/*
 * Reads / writes on a flow with XR_PATH_RX / XR_PATH_TX: whole semantics of
 * recvmsg/sendmsg on TCP (blocking or not, MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT,
 * MSG_TRUNC, MSG_NOSIGNAL, time-outs, EOF, errors; SIGPIPE is raised inside).
 * Bytes or -errno.  -EREMOTEIO: the flow went back to TCP, the hook starts over.
 */
ssize_t xr_flow_recv(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags);
ssize_t xr_flow_send(struct xr_flow *f, int fd, const struct iovec *iov, int cnt, int flags);

/* shutdown() on a flow with XR_PATH_FABRIC.  0 or -errno. */
int xr_flow_shutdown(struct xr_flow *f, int fd, int how);

/* FIONREAD / SIOCINQ, SIOCOUTQ as the program should see them.  Bytes or -errno. */
long xr_flow_inq(struct xr_flow *f, int fd);
int xr_flow_at_mark(struct xr_flow *f, int fd);	/* SIOCATMARK */
long xr_flow_outq(struct xr_flow *f, int fd);

/*
 * Brings the whole flow back to the kernel socket: freezes both directions, replays
 * what the peer has not consumed.  After it path is 0, or still XR_PATH_FABRIC while a
 * replay does not fit or is awaited (finished by later calls).  `wait_ns`: how long to wait
 * for that.  0, or -EAGAIN when something is still missing.
 */
int xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns);

/* The same, where what becomes of unread bytes does not follow from the reason. */
enum xr_retreat {
	XR_RETREAT_FREEZE,	/* the sender replays them: the next reader knows only the kernel socket */
	XR_RETREAT_HAND_OVER,	/* the same once it has taken notice; until then they can still be read here */
	XR_RETREAT_SEAL,	/* the next reader drains the ring itself */
	XR_RETREAT_EITHER,	/* replayed; a reader with hooks need not wait for it, and skips it then */
};
int xr_flow_retreat_as(struct xr_flow *f, int fd, enum xr_reason why, enum xr_retreat how,
		       uint64_t wait_ns);

/*
 * The flow goes to somebody without hooks: waits for as long as the peer may need.  0: it is a
 * plain socket for good; -EAGAIN: that was not enough (relay.h), the hooks go on carrying it.
 */
int xr_flow_hand_over(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns);
/* The same where nothing else can be done: what is missing then is counted, and they stop. */
void xr_flow_let_go(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns);
/*
 * The flow's link is broken and its connection is not: no bell can be passed any more, so it goes
 * back to TCP.  No lock may be held.  1: it has been told to.
 */
int xr_flow_link_lost(struct xr_flow *f, int fd);
/* 1: nobody at the other end will do anything for this flow any more. */
int xr_flow_alone(struct xr_flow *f, int fd);
#define XR_HANDOVER_WAIT_NS	1000000000ull	/* for all flows of a call together */

/* ---- readiness ----------------------------------------------------------- */

/*
 * Level-triggered poll(2) mask of a flow with XR_PATH_FABRIC: POLLIN|OUT|RDHUP|HUP|ERR.
 * UINT32_MAX: the flow went back to the kernel, ask that.
 */
uint32_t xr_flow_poll(struct xr_flow *f, int fd);

/*
 * To be called when the kernel reported events on the socket of a fabric flow, before
 * xr_flow_poll: the next look asks the kernel what they mean.
 */
void xr_flow_kernel_event(struct xr_flow *f, uint32_t revents);

/*
 * Cheap look (no lock, no system call): might xr_flow_poll report something of mask
 * that it did not before?  For spinning.
 */
int xr_flow_peek(struct xr_flow *f, uint32_t mask);

/* Kernel events on the flow's socket that a sleeper must watch beside the doorbell. */
uint32_t xr_flow_kernel_mask(struct xr_flow *f, uint32_t mask);

/*
 * The peer's end has frozen a direction that this end still uses: what its process rings for.
 * A forked child of its that lacks the bell (one that was made after the fork) cannot, so who
 * sleeps looks for this once a second, and whether the link is whole.  Counted, and as a probe if nothing came
 * since the last look.
 */
int xr_flow_unrung(struct xr_flow *f);

/* Wants a doorbell for mask (POLLIN, POLLOUT) on waiter; the caller polls again afterwards. */
void xr_flow_arm(struct xr_flow *f, uint32_t waiter, uint32_t mask);

/* The flow a completion entry of this link speaks of, or NULL (stale or a lie). */
struct xr_flow *xr_flow_by_cookie(struct xr_shm_link *l, uint32_t cookie);

/* For UINT32_MAX cookies: every flow of this process on the link. */
void xr_flow_each(struct xr_shm_link *l, void (*fn)(void *arg, struct xr_flow *f), void *arg);

/* ---- changes of state (flow_machine.c) ------------------------------------- */

/* Both ends know all, and no thread is in a kernel read: START may come.  rx_lock held. */
void xr_flow_rx_ready(struct xr_flow *f);
/* Of the bytes that were to come over TCP before the ring some were read, and are counted.  rx_lock held. */
void xr_flow_rx_drained(struct xr_flow *f);
/* Nobody reads here any more: all that may be left to do is to throw away what is late.  rx_lock held. */
void xr_flow_rx_close(struct xr_flow *f);
/* Publishes START: `written` bytes went over TCP.  Both locks held.  0 or -errno. */
int xr_flow_tx_start(struct xr_flow *f, uint64_t written);

/*
 * Does what a retreat has left to do in this process.  0: nothing is; else what poll(2) must say
 * of the socket first: POLLOUT for a replay, POLLIN for bytes that come again.
 */
uint32_t xr_flow_owes(struct xr_flow *f, int fd);

/* This process has brought a flow of an ancestor back to TCP; in its own children 0. */
extern uint32_t xr_flow_touched;

#include "flow_kids.h"
#include "flow_left.h"
#include "links.h"

/* ---- between flow*.c and upgrade.c ----------------------------------------- */

struct xr_flow_slab {
	struct xr_flow *flow;		/* family memory */
	struct xr_flow_priv *priv;	/* private memory */
	struct xr_flow_own *own;	/* private memory that a child does not get */
	struct xr_shm_meta *meta;	/* family memory */
	struct xr_flow_kids *kids;	/* before the flows */
	struct xr_flow_far *far;	/* family memory; NULL: nothing goes to other hosts */
	uint32_t max, slots;		/* flows; ring slots of each */
	uint32_t fresh, free;		/* never used from here on; head of the free list */
	_Atomic uint32_t limbo;		/* closed here, the peer may still read; others look whether there are any */
	_Atomic uint32_t lock;
	_Atomic int pid;		/* whose it is; the first flow says so, while other threads look */
};
extern struct xr_flow_slab xr_slab;
/* The slab is address space that a program under RLIMIT_AS may want itself. */
_Static_assert(sizeof(struct xr_flow) <= 640, "a flow grows by lines, times max_flows");

extern uint8_t xr_uuid[16];		/* of this process; fresh after fork */

/* poll(2) bits of one direction, its lock held; UINT32_MAX: it is back on TCP. */
uint32_t xr_flow_rx_poll(struct xr_flow *f, int fd);
uint32_t xr_flow_tx_poll(struct xr_flow *f, int fd);

/*
 * A direction has come back to the kernel socket: once both have, the hooks let go of the
 * flow.  Called after the direction's state was set, under its lock.
 */
void xr_flow_leave(struct xr_flow *f);
/* What carries each direction now, for xr-stat. */
void xr_flow_show_carriers(struct xr_flow *f);

/*
 * rx_lock held: throws away what comes over the socket of bytes that were read from the ring.
 * 0: none are missing any more (state RX_TCP), -EAGAIN, or what the socket says instead.
 */
int xr_flow_rx_skip(struct xr_flow *f, int fd);

/* Asks the kernel socket whether the peer lives; takes rx_lock (tx_lock may be held). */
void xr_flow_rx_look(struct xr_flow *f, int fd);

/*
 * The kernel socket shows RDHUP: is the peer's process gone, without having closed?
 * RDHUP is also the program's own SHUT_RD, and the SHUT_WR of a peer whose direction is on
 * TCP, which reads on.
 */
int xr_flow_fin_is_death(struct xr_flow *f);

/* With tx_lock held: takes the direction out of the ring, to be replayed; counts the reason. */
void xr_flow_tx_start_replay(struct xr_flow *f, enum xr_reason why);
int xr_flow_tx_push_replay(struct xr_flow *f, int fd);
void xr_flow_tx_to_tcp(struct xr_flow *f);
/* After unlocking: tells the peer of new data or of a freeze. */
void xr_flow_tell(struct xr_flow *f, uint32_t waiter);
/* Wakes the peer's sender: one that waits for space shall see what became of this end. */
void xr_flow_tell_sender(struct xr_flow *f);
/* The peer froze our direction: replay.  Takes tx_lock.  Also a step of the upgrade. */
void xr_flow_tx_care(struct xr_flow *f, int fd);
/* This thread has read something: what it sends next is no stream. */
void xr_flow_tx_answered(void);
/* The error that the program has not been told yet, taken: errno value or 0. */
static inline int xr_flow_take_error(struct xr_flow *f)
{
	return xr_likely(!xr_load_relaxed(&f->err)) ? 0 : (int)xr_xchg(&f->err, 0);
}

/* The same, or that of the kernel socket: what SO_ERROR says, once. */
int xr_flow_error(struct xr_flow *f, int fd);

/* xr_flow_tx_care, if there is any need. */
static inline void xr_flow_tx_check(struct xr_flow *f, int fd)
{
	uint32_t st;

	if (xr_unlikely(f->far != NULL))
		xr_far_look(f, fd);
	st = f->tx_state;

	/* racy looks, as everywhere where no lock is held: the next call looks again */
	if (xr_likely(!xr_flow_up(f) && (st == XR_TX_TCP ||
	    (st == XR_TX_RING && !f->tx.frozen &&
	     !(xr_load_relaxed(&f->tx.dir->arm) & XR_ARM_FROZEN)))))
		return;
	xr_flow_tx_care(f, fd);
}

/* What carries a direction that is on its ring. */
static inline enum xr_carrier xr_flow_fabric(const struct xr_flow *f)
{
	return f->far ? XR_CARRIER_RDMA : XR_CARRIER_SHM;
}

/* The peer's end of the flow: XR_DIR_* */
static inline uint32_t xr_flow_peer_state(struct xr_flow *f)
{
	/* acquire: what the peer published before it set the flags is visible */
	return xr_load_acquire(&f->rx.dir->state);
}

/* ---- tracing (flow_trace.c); off, it costs a comparison per send ------------ */

/* As xr_shm_tx_send(), for a process that traces; `last`: the program is told what was taken.  tx_lock held. */
ssize_t xr_flow_trace_send(struct xr_flow *f, const struct iovec *iov, int cnt, size_t skip, size_t len,
			   int last);
/* As xr_shm_rx_commit(), when rx.traced says that a traced send was seen.  rx_lock held. */
int xr_flow_trace_commit(struct xr_flow *f);
/* Has the peer consumed what was traced?  tx_lock held. */
void xr_flow_trace_settle(struct xr_flow *f);

/* ---- upgrade (upgrade.c) ------------------------------------------------- */

/*
 * One non-blocking step of the upgrade, driven by any hook on the flow; called when
 * turns or bytes reach f->upgrade_at, then at each call while f->up.
 */
void xr_upgrade_step(struct xr_flow *f, int fd);
void xr_upgrade_abort(struct xr_flow *f, int fd, enum xr_reason why);
/* A write to the kernel is about to begin (XR_PATH_WITNESS). */
void xr_upgrade_witness(struct xr_flow *f);

/* Leaves a fabric for good after a failed upgrade: retreat, and say so to the peer. */
void xr_flow_give_back(struct xr_flow *f, int fd, enum xr_reason why);

/*
 * Socket buffers that the program bounded (flow_room.c).  rx: says so to the sender, rx_lock held or
 * the direction not yet READY; tx: bounds the window, tx_lock held; changed: the program did it now.
 */
void xr_flow_room_rx(struct xr_flow *f, int fd);
/* Time-outs and SO_RCVLOWAT that it has from its listener; the program has set SO_RCVLOWAT. */
void xr_flow_options(struct xr_flow *f, int fd);
void xr_flow_lowat_set(struct xr_flow *f, int fd);
void xr_flow_room_tx(struct xr_flow *f, int fd);
void xr_flow_room_changed(struct xr_flow *f, int fd);

/* ---- coming back after a retreat (flow_return.c) --------------------------- */

/* 1: a flow that is on TCP for this reason may go to a fabric again. */
int xr_flow_may_return(enum xr_reason why);

/* Both directions are on TCP: sets the thresholds for the way back.  1: the hooks go on counting. */
int xr_flow_return_plan(struct xr_flow *f);

/*
 * tx_lock held, f->link is that of the last time.  1: an attempt is due, both ends want
 * it; 0: later (the thresholds have been moved on).
 */
int xr_flow_return_due(struct xr_flow *f);

/* An attempt to come back failed: later, and rarer.  0: it was the last one. */
int xr_flow_return_failed(struct xr_flow *f, enum xr_reason why);

/*
 * An attempt to move to another host, begun then, the first one or not, failed for what may pass: another one when the
 * peer makes one, and again_ms are over.  0: there will be none.
 */
int xr_flow_far_again(struct xr_flow *f, uint32_t again_ms, uint64_t begun);

/*
 * Wakes whoever sleeps on the flow in this process, or in the parent that owns it: the
 * carrier is about to change, or has changed, without the peer's doing.
 */
void xr_flow_wake(struct xr_flow *f);

/* ---- policy (policy.c) ---------------------------------------------------- */

/* What the configuration's rules say about this connection. */
enum xr_action xr_flow_rule(const struct xr_flow *f, const struct sockaddr *local,
			    const struct sockaddr *peer);
/* Opens the statistics segment, if the configuration wants one: the process shows in xr-stat. */
void xr_policy_publish(void);

/* Once, with the configuration, before the program can change its directory: by which path rules know it. */
void xr_policy_init(void);
/* Opens the ring of trace records, unless the process may not.  0 or -errno. */
int xr_policy_trace(void);
/* Counts a connection that has no flow. */
void xr_policy_unlisted(enum xr_reason why);
/* Makes the flow visible to xr-stat; opens the statistics segment at first use. */
void xr_flow_stats_attach(struct xr_flow *f, int fd, const struct sockaddr *local,
			  const struct sockaddr *peer);
/* The same for a flow that stays on TCP, if it is connected. */
void xr_flow_list(struct xr_flow *f, int fd);
/* Its descriptor is about to be closed: asks the kernel for all bytes that TCP has moved. */
void xr_flow_stats_last(struct xr_flow *f, int fd);
/* In a child, of a flow of its parent's that it has changed: what carries it, and why, in the parent's list. */
void xr_flow_stats_child(struct xr_flow *f, enum xr_carrier tx, enum xr_carrier rx);

/* ---- state of the process ------------------------------------------------ */

extern struct xr_config xr_cfg;
extern int xr_active;			/* 0: pass everything through (disabled, or not yet init) */

/* Slabs etc; once, from the constructor or the first hook. */
int xr_flow_init(void);
/* After fork in the child: forgets links, limbo, handshakes. */
void xr_flow_forked(void);
/* Rate-limited house-keeping (closed flows whose peer is done, dead links); any hook may call it. */
void xr_flow_sweep_now(void);
extern _Atomic uint32_t xr_care_kids;	/* processes of ours to be collected: caretaker.c */
extern _Atomic uint32_t xr_links_kept;	/* without a flow, for those who reconnect: links.c */

static inline void xr_flow_sweep(void)
{
	/* a hint: what is there to be swept, racy */
	if (xr_unlikely(xr_load_relaxed(&xr_slab.limbo) != UINT32_MAX || xr_load_relaxed(&xr_care_kids) ||
			xr_load_relaxed(&xr_links_kept)))
		xr_flow_sweep_now();
}

/* After a sleep that began at `now`: the same, some times a second at most. */
void xr_flow_sweep_slept(uint64_t now);
/* exit(), _exit(), destructor: END on everything that this process alone holds. */
void xr_flow_exit(void);

#endif
