/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inside epoll*.c.
 *
 * A program's epoll file (the "outer" set) keeps all that the kernel carries.  When a
 * flow leaves TCP, its socket moves to an "inner" set of ours, which lies in the outer
 * one as a single edge-triggered registration under a random token.  The inner set also
 * holds the doorbells of the file's waiter, one per link, and an eventfd to kick with,
 * all edge-triggered and never drained: a bell that rings again is a new edge, and a
 * condition of a silent socket that lasts (RDHUP) cannot keep a sleeper spinning.
 *
 * A registration on a fabric is in one of these places:
 *
 *	ready	to be looked at by the next epoll_wait: told by a completion entry, just
 *		reported (level-triggered), changed by epoll_ctl
 *	hot	was active lately: looked at for new bytes without asking to be told, which
 *		saves both ends the completion entry.  Only while a thread is in epoll_wait.
 *	none	armed: the peer writes a completion entry when something happens; or
 *		nothing is wanted (a fired EPOLLONESHOT)
 *
 * A flow in several files is armed for a waiter that all files share: epoll_shared.c.
 *
 * Rest: before the last thread in epoll_wait sleeps or leaves others sleeping, all hot
 * registrations are armed and all links are told that the waiter sleeps.
 *
 * Locks: xr_ep_big guards the lists of registrations by flow and the life of epoll
 * files; the lock of a file guards everything else in it.  Order: locks of a flow, big,
 * file, link.  No function of the flow that takes its locks is called under either.  A
 * signal handler that finds a lock held by its own thread leaves a note (`missed`) for
 * the holder.
 */
#ifndef XR_EPOLL_H
#define XR_EPOLL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include "atomic.h"
#include "flow.h"
#include "waiter.h"

#define XR_EP_BUCKETS	16u	/* of a fresh table */
#define XR_EP_HOT	64u	/* hot registrations at most */
#define XR_EP_MISSES	64u	/* calls in which one had nothing, until it is armed instead */
#define XR_EP_ACTIVE	32u	/* links awake at most */

struct xr_epnode {
	struct xr_epnode *prev, *next;
};

enum xr_epplace { XR_EP_NOWHERE, XR_EP_IN_READY, XR_EP_IN_HOT };

/* What epoll knows about one flow of this process.  Under big. */
struct xr_epflow {
	struct xr_epreg *regs;
	struct xr_epflow *next_free;
	uint32_t gen;			/* xr_ep_gen of the process that made it */
	uint8_t attached;		/* its registrations are in inner sets */
	uint8_t heir;			/* a child changed its registration: this process, or this one did so later */
	_Atomic uint8_t shared;		/* by several files: armed for the waiter that they share */
	_Atomic uint8_t closed;		/* the flow is gone, whatever still refers to it */
	_Atomic uint8_t missed;		/* a signal handler met a held lock: kick again */
};

/*
 * What a forked child has to know of a registration, in family memory: it is the set's, and so the child's too,
 * as it is now and not as it was at the fork.  The rest is wiped in a child: a fork copies the page tables of what it
 * leaves, and most children never ask.
 */
struct xr_epheir {
	struct xr_epoll *ep;		/* of the process that made it; NULL: there is no such registration */
	struct xr_flow *flow;
	uint64_t token;			/* the file's */
	uint64_t data;
	_Atomic uint32_t seq;		/* odd while it changes */
	uint32_t events;
	int fd;
	uint8_t attached : 1, fired : 1, absent : 1, parked : 1, heir : 1;
	uint8_t orphan;			/* the process that made it knows of it no more, others may */
};

/*
 * Family memory: has a child taken up the file?  Each file of a process has its own, which stays with the memory of
 * its record.  That may be another file's by the time a child comes for one that it inherited: so what is counted
 * is counted in a life (the upper half), which is new with each file.
 */
#define XR_EP_SAYINGS	16u	/* of a file that are kept for processes that have yet to hear them */

/* back: it is in the kernel's set from now on */
enum xr_ep_says { XR_EP_SAYS_SET, XR_EP_SAYS_GONE, XR_EP_SAYS_FIRED, XR_EP_SAYS_BACK };

/* What a process has made of a registration that is in the inner sets of several (epoll_said.c). */
struct xr_epsaid {
	_Atomic uint32_t seq;		/* which one it is; while it is written: 0 */
	int fd, by;			/* whose, and of which process */
	uint32_t events;
	struct xr_flow *flow;
	uint64_t data;
	uint8_t what;			/* enum xr_ep_says */
};

struct xr_epshare {
	_Atomic uint64_t want;		/* a child has come, and counts */
	_Atomic uint64_t seen;		/* as far as the owner knows */
	_Atomic uint32_t asleep;	/* its threads in epoll_wait that would have to be woken to see */
	_Atomic int owner;		/* its process */
	_Atomic uint32_t nsaid;		/* in this life */
	const char *_Atomic bell;	/* path of the FIFO that wakes them, family memory as well; NULL: none */
	struct xr_epsaid said[XR_EP_SAYINGS];
} __attribute__((aligned(XR_CACHELINE)));

/* One registration: (epoll file, descriptor, flow). */
struct xr_epreg {
	struct xr_epnode node;		/* ready or hot */
	struct xr_epoll *ep;
	struct xr_flow *flow;
	struct xr_epflow *ef;
	struct xr_eplink *link;		/* while attached; NULL: a flow of the parent's (epoll_child.c) */
	struct xr_epreg *hash_next;	/* by flow, within the file */
	struct xr_epreg *flow_next;	/* by flow, over all files; under big */
	struct xr_epheir *heir;		/* its own, for as long as this memory is a registration's or free; or NULL */
	uint64_t data;
	uint64_t key;			/* since when it is ready; of xr_ep_order */
	uint64_t since;			/* cycle count: when it was last reported, or had nothing */
	uint64_t pos;			/* EPOLLET: bytes that had arrived when IN was reported */
	uint32_t events;		/* the program's, with ERR and HUP */
	uint32_t last;			/* EPOLLET: what was reported and still stands */
	uint32_t want;			/* POLLIN, POLLOUT to look for while hot */
	uint32_t kernel;		/* events of the socket not yet passed on */
	uint32_t round;			/* of the epoll_wait that reported it last */
	int fd;
	uint16_t seq;			/* changes with every epoll_ctl */
	uint16_t gen;			/* changes when the slot is re-used */
	uint16_t misses;
	uint8_t place;			/* enum xr_epplace */
	uint8_t attached;		/* in the inner set */
	uint8_t fired;			/* EPOLLONESHOT, until the next MOD */
	uint8_t absent;			/* removed by the program, but still in the inner set */
	uint8_t parked;			/* fired, and in no kernel set since the flow came back */
	uint8_t armed;			/* XR_EP_ARM_* asked for and not answered */
	uint8_t must_arm;
	uint8_t force;			/* report what is there, as after ADD and MOD */
	uint8_t shown;			/* reported by the last look */
	uint8_t blocked;		/* there was no space to send when last looked at */
	uint8_t again;			/* told while busy */
	uint8_t dead;			/* the thread that is busy with it frees it */
	uint8_t said;			/* a change of it was, by this process or another */
	uint32_t busy;			/* thread id that looks at it without the lock */
} __attribute__((aligned(64)));

#define XR_EP_ARM_IN	1u
#define XR_EP_ARM_OUT	2u

/* A link that flows of the file are on.  Where a flow has none NULL will do below. */
struct xr_eplink {
	struct xr_epnode node;		/* of the active ones */
	struct xr_eplink *next;		/* of the file */
	struct xr_shm_link *link;	/* referenced */
	uint32_t nregs;
	int bell;			/* in the inner set; -1: the peer is gone */
	int shared;			/* as well, for flows in several files; -1: none of those */
	uint8_t active;			/* not "sleeping": looked at by every epoll_wait */
	uint8_t rang;			/* the shared bell did: xr_ep_shared_take */
} __attribute__((aligned(64)));

/* An epoll file.  Type-stable. */
struct xr_epoll {
	struct xr_lock lock;
	_Atomic uint32_t attached;	/* registrations in the inner set */
	_Atomic uint32_t plain;		/* threads in a real epoll_wait that know of no fabric */
	_Atomic uint32_t dirty;		/* the inner set has something */
	_Atomic uint32_t missed;	/* a signal handler met the held lock */
	_Atomic uint32_t rang;		/* a link's shared bell did */
	_Atomic uint32_t spinning;
	uintptr_t lock_frame;
	uint64_t token;
	uint32_t gen;			/* xr_ep_gen of the process that made it */
	uint32_t fds;			/* the program's descriptors; 0: closed.  Under big. */
	struct xr_epoll *parents;	/* inherited: the record that the parent made */
	uint32_t inside;		/* threads in the fabric's epoll_wait */
	_Atomic uint32_t awake;		/* of those; written under the lock */
	uint32_t sleepers;
	uint32_t round;			/* number of the latest epoll_wait, never 0 */
	uint32_t rested;		/* all armed, all links sleeping */
	uint32_t watched;		/* something sleeps on the epoll descriptor itself */
	uint32_t waiter;
	uint32_t spin;			/* budget, owned by xr_spin */
	/* pacing, racy by design: */
	_Atomic uint32_t quiet;		/* looks at the kernel in a row that found nothing */
	_Atomic uint32_t kernel_first;	/* maxevents 1: whose turn it is */
	_Atomic uint32_t stands;	/* the last look at the kernel found something, which may stand */
	_Atomic uint64_t looked;	/* cycle count of the last look at the kernel */
	uint64_t patrolled;		/* ns: last look for flows that nobody rings for */
	_Atomic uint64_t passed;	/* ns: in a child, when it passed on what was the parent's */
	uint32_t forks;			/* of this process before it was made */
	_Atomic uint64_t lent;		/* what was wanted when all in it last went to the kernel's set */
	struct xr_epshare *share;	/* of the process whose file it was first */
	struct xr_epshare *own_share;	/* of this memory, whatever file it is; NULL: none yet */
	uint32_t life;			/* in `share` */
	_Atomic uint32_t heard;		/* of what was said there; written under the lock */
	int epfd;			/* one of the program's descriptors */
	int outer, inner, kick;		/* ours; -1 until the first flow attaches */
	int nudge;			/* ours, in the outer set: wakes other processes; -1: nothing was said yet */
	_Atomic int top;		/* of several processes: holds outer and inner; else -1 */
	struct xr_epnode ready, hot, active;
	uint32_t nready, nhot, nactive;
	struct xr_eplink *links;
	struct xr_epreg **bucket;
	uint32_t nbuckets, nregs;
	struct xr_epreg *first_bucket[XR_EP_BUCKETS];
	struct xr_epoll *next_free;
} __attribute__((aligned(XR_CACHELINE)));

extern uint32_t xr_ep_gen;

/* ---- lists --------------------------------------------------------------- */

static inline void xr_epnode_init(struct xr_epnode *h)
{
	h->prev = h;
	h->next = h;
}

static inline void xr_epnode_add_tail(struct xr_epnode *h, struct xr_epnode *n)
{
	n->prev = h->prev;
	n->next = h;
	h->prev->next = n;
	h->prev = n;
}

static inline void xr_epnode_del(struct xr_epnode *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
}

/* The structures begin with their node. */
static inline struct xr_epreg *xr_epreg_of(struct xr_epnode *n)
{
	return (struct xr_epreg *)n;
}

static inline struct xr_eplink *xr_eplink_of(struct xr_epnode *n)
{
	return (struct xr_eplink *)n;
}

/* ---- epoll.c, epoll_ctl.c: files, registrations, locks -------------------------------- */

/* 0, or -EDEADLK: the caller runs in a signal handler on top of the holder. */
int xr_ep_lock(struct xr_epoll *ep);
void xr_ep_unlock(struct xr_epoll *ep);
int xr_ep_big_lock(void);
void xr_ep_big_unlock(void);

/* A signal handler could not kick: the holder of big will. */
void xr_ep_note(struct xr_epflow *ef);

/* Real system calls; -errno. */
int xr_ep_sys_ctl(int epfd, int op, int fd, uint32_t events, uint64_t data);

/* ef of a flow; made when `make`.  Under big. */
struct xr_epflow *xr_ep_flow(struct xr_flow *f, int make);
/* First registration of the flow in the file; the others follow on hash_next. */
struct xr_epreg *xr_ep_bucket(struct xr_epoll *ep, struct xr_flow *f);
void xr_ep_flow_free(struct xr_epflow *ef);
/* The registration that a young flow keeps by itself becomes a record.  Under big.  0 or -errno. */
int xr_ep_settle(struct xr_flow *f);
/* A record, in the tables of both; NULL when memory is short. */
struct xr_epreg *xr_ep_reg_new(struct xr_epoll *ep, struct xr_flow *f, struct xr_epflow *ef, int fd,
			       const struct epoll_event *ev);
struct xr_eplink *xr_ep_link_alloc(void);
void xr_ep_link_free(struct xr_eplink *k);
/* A file's record, for one descriptor; `parents`: of one that is inherited.  NULL when memory is short.  Under big. */
struct xr_epoll *xr_ep_file_new(int epfd, uint64_t token, struct xr_epoll *parents);
/* Frees a registration that is in no kernel set any more.  Under big and the file's lock. */
void xr_ep_reg_free(struct xr_epreg *r);
/* Its second half, for a registration that was busy; the file's lock is enough. */
void xr_ep_reg_recycle(struct xr_epreg *r);
/* Lets go of the file when nobody uses it any more; the file's lock is released. */
void xr_ep_put(struct xr_epoll *ep);

/* ---- epoll_mem.c: memory, never given back ---------------------------------- */

enum xr_ep_mem { XR_EP_MEM_FILE, XR_EP_MEM_REG, XR_EP_MEM_FLOW, XR_EP_MEM_LINK };

/* Under big; what is in it is what it was put back with, or zeros.  NULL when memory is short. */
void *xr_ep_mem_get(enum xr_ep_mem kind);
void xr_ep_mem_put(enum xr_ep_mem kind, void *o);
/* An empty table of n buckets, more than XR_EP_BUCKETS. */
struct xr_epreg **xr_ep_table_get(uint32_t n);
void xr_ep_table_put(struct xr_epreg **b, uint32_t n);
void xr_ep_mem_forked(void);

/* ---- epoll_inner.c ------------------------------------------------------- */

int xr_ep_inner_make(struct xr_epoll *ep);
/* From now on who waits here sleeps on a set that no other process has.  The file's lock held. */
void xr_ep_inner_alone(struct xr_epoll *ep);
/* The silent socket of a registration; the bell of a link for flows in several files. */
int xr_ep_inner_add(struct xr_epreg *r);
int xr_ep_inner_add_shared(struct xr_epoll *ep, struct xr_eplink *k, int bell);
int xr_ep_link_get(struct xr_epoll *ep, struct xr_flow *f, struct xr_eplink **out);
void xr_ep_link_put(struct xr_epoll *ep, struct xr_eplink *k);
/* Takes what the inner set reports. */
void xr_ep_take_inner(struct xr_epoll *ep);

/* ---- epoll_shared.c: flows in several files ------------------------------ */

/* The waiter that all files share; 0: there is none yet. */
uint32_t xr_ep_shared_waiter(void);
/* Its bell on the link lies in the inner set.  Both locks; -errno. */
int xr_ep_shared_bell(struct xr_epoll *ep, struct xr_eplink *k);
/* `ep`, which is locked, is about to have the flow as well.  Under big; -errno: nothing changed. */
int xr_ep_share(struct xr_epflow *ef, struct xr_epoll *ep);
/* It rang: somebody has to take what it says to all files.  The file's lock held. */
void xr_ep_shared_rang(struct xr_epoll *ep, struct xr_eplink *k);
/* Does that.  No lock held. */
void xr_ep_shared_take(struct xr_epoll *ep);
void xr_ep_shared_forked(void);

/* ---- epoll_move.c: between the sets -------------------------------------- */

/* Moves a registration into the inner set.  Under both locks.  -errno: nothing changed. */
int xr_ep_reg_attach(struct xr_epreg *r, int in_outer);
/* Out of the inner set and off the lists; the outer one is not touched.  Both locks. */
void xr_ep_reg_leave(struct xr_epreg *r);
/* All files of the flow look at it again.  Under big. */
void xr_ep_flow_kick(struct xr_epflow *ef);
/* An EPOLLONESHOT in the kernel's hands: 1 fired, 0 armed, -errno. */
int xr_ep_reg_has_fired(const struct xr_epreg *r);
/* ---- epoll_child.c: files of a parent ------------------------------------- */

/* Under big; NULL when memory is short. */
struct xr_epheir *xr_ep_heir_new(void);
/* Zeros, for a file of this process; NULL when memory is short.  Under big. */
struct xr_epshare *xr_ep_share_new(void);
/* Children that were forked before the file had a bell of its own ring for its owner by another one.  Under big. */
void xr_ep_share_bell(struct xr_epoll *ep);
/* This process lets go of the registration; a child that has the file goes by what is there. */
void xr_ep_heir_leave(struct xr_epreg *r);

/* After each change of what is in it; the file's lock held. */
static inline void xr_ep_heir(struct xr_epreg *r)
{
	struct xr_epheir *h = r->heir;
	uint32_t seq;

	if (!h)
		return;
	seq = xr_load_relaxed(&h->seq);
	xr_store_relaxed(&h->seq, seq | 1);
	/* release: who reads something new below sees that it changes */
	atomic_thread_fence(memory_order_release);
	h->events = r->events;
	h->data = r->data;
	h->attached = r->attached;
	h->fired = r->fired;
	h->absent = r->absent;
	h->parked = r->parked;
	h->heir = r->ef->heir;
	/* release: pairs with heir_read */
	xr_store_release(&h->seq, (seq | 1) + 1);
}

/* A child waits in this process's file, or has changed it: what is in it is the kernel's, from now on. */
static inline int xr_ep_is_taken(const struct xr_epoll *ep)
{
	/* seq_cst: a registration that moves is on record before this; pairs with share_take */
	return ep->share && !ep->parents && xr_unlikely((uint32_t)atomic_load(&ep->share->want) != 0);
}

/* The same, and this process has yet to see to it. */
static inline int xr_ep_must_lend(const struct xr_epoll *ep)
{
	return xr_ep_is_taken(ep) && atomic_load(&ep->share->want) != xr_load_relaxed(&ep->lent);
}

/* Does that: all flows in it go to TCP.  No lock held. */
void xr_ep_lend(struct xr_epoll *ep);
/* Wakes the owner of a file that this process has inherited; 0: there is no way to. */
int xr_ep_share_ring(const struct xr_epoll *old);

/*
 * An inherited epoll file is used by the child: its members go back to TCP.  Returns what takes its place in this
 * process; NULL when memory is short.
 */
struct xr_epoll *xr_ep_adopt(struct xr_epoll *ep, int epfd);
/* What this process has of an epoll file, adopted if need be; NULL: nothing. */
static inline struct xr_epoll *xr_ep_own(struct xr_epoll *ep, int epfd)
{
	return xr_likely(!ep || ep->gen == xr_ep_gen) ? ep : xr_ep_adopt(ep, epfd);
}
/* The child's epoll_ctl on an inherited file, of a flow that it inherited too: before anything changes. */
void xr_ep_child_ctl(struct xr_epoll *ep, int fd, struct xr_flow *f);
/*
 * Its parent's token has come to this process, and the kernel tells of it but once.  The parent is rung again, and
 * given the time to hear it.
 */
void xr_ep_child_pass_on(struct xr_epoll *ep);
/* A child may have the file too, and hear there what is for this process: it looks without being told. */
int xr_ep_lent(const struct xr_epoll *ep);
/* This process changes what an adopted file has of the flow. */
void xr_ep_child_changes(struct xr_epoll *ep, struct xr_flow *f, struct xr_epflow *ef);
/* An adopted file, which is locked, is closed here: what only this process has on record goes to the kernel's set. */
void xr_ep_child_close(struct xr_epoll *ep);
/* The child's registration of a flow that it inherited in a file of its own.  Under big. */
void xr_ep_child_carries(struct xr_flow *f, struct xr_epflow *ef);
/* In the parent: did a child change it? */
int xr_ep_child_changed(const struct xr_epreg *r);
/* In the parent, no lock held: the flow's registrations are the kernel's, as far as a child changed them. */
void xr_ep_child_forget(struct xr_flow *f);

/* ---- epoll_said.c: registrations of several processes --------------------- */

/* This process has changed one: others that have it in a set of their own are to do so too.  The file's lock held. */
void xr_ep_say(struct xr_epreg *r, enum xr_ep_says what);
/* Others have. */
static inline int xr_ep_must_hear(const struct xr_epoll *ep)
{
	/* relaxed: a hint, xr_ep_hear looks again; what comes later rings, or is heard with the next call */
	return ep->share && xr_unlikely(xr_load_relaxed(&ep->share->nsaid) != xr_load_relaxed(&ep->heard));
}
/* Does as they did.  No lock held; or both are. */
void xr_ep_hear(struct xr_epoll *ep);
void xr_ep_hear_locked(struct xr_epoll *ep);
/* Both changed or added, without a word to others. */
void xr_ep_reg_set(struct xr_epreg *r, const struct epoll_event *ev);

/* ---- epoll_order.c: what was ready first is reported first --------------- */

/*
 * Sorts what came behind `last` on the ready list by its age.  1: some of it came after `now`, when
 * the looks began, so others may have come before it that were looked at too early.
 */
int xr_ep_order(struct xr_epoll *ep, struct xr_epnode *last, uint64_t now);

/* ---- epoll_ready.c: the ready list; the file's lock held unless said otherwise ---- */

void xr_ep_push(struct xr_epreg *r);
void xr_ep_unlist(struct xr_epreg *r);
void xr_ep_activate(struct xr_epoll *ep, struct xr_eplink *k);
/* ep locked: looks for flows that changed without the bell being rung (xr_flow_unrung). */
void xr_ep_patrol(struct xr_epoll *ep);
/* 1 when there is something for xr_ep_collect. */
int xr_ep_has_work(struct xr_epoll *ep);
/*
 * Reports up to max events, lock not held, each registration once per round (not 0).
 * rest: arms whatever is not ready.  evs is the program's: -EFAULT when the first cannot be
 * written; what could not be told is told by the next call.
 */
int xr_ep_collect(struct xr_epoll *ep, struct epoll_event *evs, int max, int rest, uint32_t round);
/* Tells all links that the waiter sleeps; 1 when entries came in meanwhile. */
int xr_ep_doze(struct xr_epoll *ep);
/* Arms everything without reporting.  The lock is held, and dropped in between. */
void xr_ep_handover(struct xr_epoll *ep);
/* Rings the file's own eventfd when somebody would sleep through the news. */
void xr_ep_kick(struct xr_epoll *ep);
/* A thread left its look at registrations by longjmp. */
void xr_ep_unbusy(struct xr_epoll *ep);

#endif
