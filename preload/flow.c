/* SPDX-License-Identifier: BSD-2-Clause */
/* Birth and death of flows: the slab, accounting. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "caretaker.h"
#include "closing.h"
#include "control.h"
#include "fdtab.h"
#include "flow_young.h"
#include "hold.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "tune.h"

XR_FORK_DATA struct xr_flow_slab xr_slab;
uint8_t xr_uuid[16];
_Atomic uint32_t xr_flow_refused;

/* ---- slab ---------------------------------------------------------------- */

#define KIDS_ROOM	XR_ALIGN(sizeof(struct xr_flow_kids), (size_t)XR_PAIRLINE)
#define SLAB_SHARE	16u	/* of a limit of address space or data: the program wants it itself */

/* No more than a share of what a limit leaves to the program, which wants to run too. */
static size_t slab_share(int limit, size_t n, size_t each)
{
	struct rlimit rl;

	if (!xr_sys4(SYS_prlimit64, 0, limit, 0, &rl) && rl.rlim_cur != RLIM_INFINITY &&
	    n > rl.rlim_cur / SLAB_SHARE / each)
		n = rl.rlim_cur / SLAB_SHARE / each;
	return n;
}

static size_t slab_flows(size_t slots)
{
	size_t private = sizeof(struct xr_flow_priv) + sizeof(struct xr_flow_own);
	size_t n = slab_share(RLIMIT_DATA, xr_cfg.max_flows, private);

	return slab_share(RLIMIT_AS, n, private + sizeof(struct xr_flow) + slots * sizeof(struct xr_shm_meta) +
			  sizeof(struct xr_stats_flow));
}

int xr_flow_init(void)
{
	struct xr_flow_slab *s = &xr_slab;
	size_t slots = xr_cfg.ring_slots, n = slab_flows(slots);
	/* one mapping, which a fork copies too */
	size_t meta = XR_ALIGN(KIDS_ROOM + n * sizeof(*s->flow), 4096ul);
	int r;

	if (s->flow && xr_load_relaxed(&s->pid) == xr_getpid())
		return 0;
	if (!n)
		return -ENOMEM;
	r = xr_random(xr_uuid, sizeof(xr_uuid));
	if (r)
		return r;
	/* in the page of the first flows, since each asks for the count of forks */
	s->kids = xr_map_family(meta + n * slots * sizeof(*s->meta));
	if (!s->kids)
		return -ENOMEM;
	s->flow = (struct xr_flow *)(void *)((char *)s->kids + KIDS_ROOM);
	s->meta = (struct xr_shm_meta *)(void *)((char *)s->kids + meta);
	s->own = xr_map_own(n * sizeof(*s->own));
	if (!s->own)
		goto unmap_flow;
	if (xr_cfg.rdma) {
		s->far = xr_map_family(n * sizeof(*s->far));
		if (!s->far)
			goto unmap_own;
	}
	/* last, since it is never given back */
	s->priv = xr_keep_private(n * sizeof(*s->priv));
	if (!s->priv)
		goto unmap_far;
	xr_shm_budget(xr_cfg.max_memory);
	s->max = (uint32_t)n;
	s->slots = (uint32_t)slots;
	s->fresh = 0;
	s->free = UINT32_MAX;
	xr_store_relaxed(&s->limbo, UINT32_MAX);
	xr_flow_tuned();
	/* pid last: a slab of another process is never taken for ours */
	xr_store_release(&s->pid, xr_getpid());
	return 0;

unmap_far:
	if (xr_cfg.rdma)
		xr_unmap(s->far, n * sizeof(*s->far));
unmap_own:
	xr_unmap(s->own, n * sizeof(*s->own));
unmap_flow:
	xr_unmap(s->kids, meta + n * slots * sizeof(*s->meta));
	s->flow = NULL;
	return -ENOMEM;
}

/* On TCP for f->reason.  What is about to end, or no connection, is not worth a place in the list. */
static void flow_show(struct xr_flow *f, int fd)
{
	if (f->reason != XR_REASON_CLOSED && f->reason != XR_REASON_LISTENER)
		xr_flow_list(f, fd);
	xr_stats_flow_reason(f->st, (enum xr_reason)f->reason);
	xr_stats_flow_again(f->st, 0);
}

void xr_flow_stay_tcp(struct xr_flow *f, int fd, enum xr_reason why)
{
	if (f->upgrade_off && !(xr_load_relaxed(&f->path) & XR_PATH_FABRIC)) {
		/* a forked child may have said so, which has no list to put its parent's flow in */
		if (!f->st && f->connected && f->owner_pid == xr_getpid())
			flow_show(f, fd);
		return;
	}
	xr_store_relaxed(&f->upgrade_off, 1);
	/* a child that was forked before the two met has no memory of theirs */
	if (f->link && f->owner_pid == xr_getpid())
		xr_fetch_or(&f->tx.dir->state, XR_DIR_STAYS);
	/* also where none is under way: one that another thread has just begun is waited for, and found */
	xr_upgrade_abort(f, fd, why);
	xr_fetch_and(&f->path, ~XR_PATH_COUNT);
	if (xr_load_relaxed(&f->path) & XR_PATH_FABRIC) {
		xr_flow_retreat(f, fd, why, 0);
		return;
	}
	xr_store_relaxed(&f->reason, (uint16_t)why);
	xr_stats_reason(why);
	flow_show(f, fd);
}

/* ---- accounting of kernel I/O -------------------------------------------- */

int xr_flow_kpoll_begin(struct xr_flow *f)
{
	xr_fetch_add(&f->k_tx, 1);
	if (!xr_flow_tcp_rx_begin(f)) {
		xr_fetch_sub(&f->k_tx, 1);
		return 0;
	}
	if (xr_likely(!(xr_load_acquire(&f->path) & XR_PATH_TX)))
		return 1;
	xr_flow_kpoll_end(f);
	return 0;
}

void xr_flow_kpoll_end(struct xr_flow *f)
{
	xr_fetch_sub(&f->k_rx, 1);
	xr_fetch_sub(&f->k_tx, 1);
}

/* ---- release and limbo --------------------------------------------------- */

static void flow_free(struct xr_flow *f)
{
	struct xr_flow_slab *s = &xr_slab;

	xr_slab_lock();
	f->next_free = s->free;
	s->free = f->index;
	xr_slab_unlock();
}

/* Nobody at the other end touches our direction any more, nor waits for what is in it. */
static int flow_peer_done(struct xr_flow *f)
{
	/* acquire: pairs with link_die */
	if (xr_load_acquire(&f->link->dead))
		return 1;
	if (xr_load_relaxed(&f->rx.dir->gen) != f->peer_dir_gen)
		return 1;
	return (xr_flow_peer_state(f) & (XR_DIR_CLOSED | XR_DIR_GONE)) != 0;
}

static void flow_detach_link(struct xr_flow *f)
{
	struct xr_shm_link *l = f->link;
	uint32_t n;

	xr_shm_tx_destroy(&f->tx);
	xr_shm_link_dir_put(l, f->dir_off);
	f->link = NULL;
	xr_link_unref(l);
	for (n = xr_load_relaxed(&f->npast); n; n--)
		xr_link_unref(f->past[n - 1]);
	xr_store_relaxed(&f->npast, 0);
}

/* From behind one member to another one. */
#define flow_zero(f, from, to)										\
	memset((char *)(f) + offsetof(struct xr_flow, from) + sizeof((f)->from), 0,			\
	       offsetof(struct xr_flow, to) - offsetof(struct xr_flow, from) - sizeof((f)->from))

#define INSIDE_NS	10000000000ull	/* from the close on; who comes out later looks at gen */

/*
 * A call of another thread has yet to add up what it moved, or to count itself out: that must not
 * meet the next connection's account.  What a child that was killed, a cancelled thread or a longjmp
 * has left behind is not waited for long.
 */
static int flow_inside(const struct xr_flow *f)
{
	/* acquire: pairs with flow_account, which adds up first */
	if (xr_likely(!(xr_load_acquire(&f->k_rx) | xr_load_acquire(&f->k_tx))))
		return 0;
	return !(f->kids && xr_load_relaxed(&f->kids->forks) != f->born) && xr_now_ns() < f->up_after;
}

/*
 * The slot must not become another flow: the peer may still read from it, or a forked
 * child has it in its table and would take the new one for its own.
 */
static int flow_in_use(struct xr_flow *f)
{
	return xr_flow_holders(f) || flow_inside(f) || (f->link && !flow_peer_done(f));
}

/*
 * 1, or 0: not now.  Most connections are short and never touch the directions: nor does their end.  A
 * thread whose epoll_wait looks at one that has moved does not know of the close yet: it is waited for,
 * since what it has read of this connection must not meet the next one in the slot.  Whoever gets a lock
 * later finds that the kernel carries all, and what belongs to the slot.
 */
static int reclaim(struct xr_flow *f)
{
	int moved = f->link || f->dir_off;

	if (moved && xr_lock_left(&f->tx_lock))
		return 0;
	if (moved && xr_lock_left(&f->rx_lock)) {
		xr_unlock(&f->tx_lock);
		return 0;
	}
	xr_store_release(&f->path, 0);
	if (f->link)
		flow_detach_link(f);
	if (f->st) {
		xr_stats_flow_free(f->st);
		f->st = NULL;
	}
	if (moved) {
		f->dir_off = 0;
		flow_zero(f, rx_lock, tx_lock);
		flow_zero(f, tx_lock, meta);
		xr_unlock(&f->rx_lock);
		xr_unlock(&f->tx_lock);
	}
	if (moved || xr_load_relaxed(&f->own->zc_used)) {
		memset(&f->own->zc, 0, sizeof(f->own->zc));
		xr_store_relaxed(&f->own->probed, 0);
		xr_store_relaxed(&f->own->zc_used, 0);
	}
	flow_free(f);
	return 1;
}

static int flow_reclaim(struct xr_flow *f)
{
	int r;

	/* as in xr_flow_tx_lock */
	xr_defer_begin();
	r = reclaim(f);
	xr_defer_end();
	return r;
}

/* Nothing is left to be seen, but for what the peer has yet to read. */
static int flow_delivered(struct xr_flow *f)
{
	return !f->link || (f->tx_state != XR_TX_REPLAY && f->rx_state != XR_RX_SKIP &&
			    (f->tx_state != XR_TX_RING || xr_shm_tx_all_consumed(&f->tx)));
}

void xr_flow_release(struct xr_flow *f)
{
	xr_fetch_sub(&f->procs, 1);
	xr_flow_closed(f);
}

void xr_flow_closed(struct xr_flow *f)
{
	/* those of the parent that a child closes go on there */
	if (f->owner_pid != xr_getpid())
		return;
	xr_slab_lock();
	xr_count(&xr_stats_now()->counter[XR_STAT_FLOWS_CLOSED], f->connected);
	xr_slab_unlock();
	/* a forked child may take the flow over (xr_fds_adopt), or drain what was left to it */
	if (!xr_flow_holders(f))
		xr_store_release(&f->path, 0);
	else if (f->kids && f->link)
		/* release: after what it leaves, for the child that is the last */
		atomic_fetch_add_explicit(&f->kids->left, 1, memory_order_release);
	if (f->link && !flow_peer_done(f))
		xr_shm_link_progress(f->link);
	if (!f->st) {
		/* it never was in the list */
		xr_stats_add(XR_STAT_BYTES_TX_TCP, xr_load_relaxed(&f->tcp_tx));
		xr_stats_add(XR_STAT_BYTES_RX_TCP, xr_load_relaxed(&f->tcp_rx));
	}
	if (flow_delivered(f)) {
		xr_stats_flow_free(f->st);
		f->st = NULL;
	} else {
		xr_stats_flow_closing(f->st);
	}
	/* of no use for an upgrade any more */
	f->up_after = UINT64_MAX;
	if (!flow_in_use(f) && flow_reclaim(f))
		return;
	if (xr_load_relaxed(&f->k_rx) | xr_load_relaxed(&f->k_tx))
		f->up_after = xr_now_ns() + INSIDE_NS;
	xr_slab_lock();
	f->next_free = xr_load_relaxed(&xr_slab.limbo);
	xr_store_relaxed(&xr_slab.limbo, f->index);
	xr_slab_unlock();
}

void xr_flow_sweep_now(void)
{
	static _Atomic uint64_t last, period;
	struct xr_flow_slab *s = &xr_slab;
	uint64_t now, then = xr_load_relaxed(&last);
	uint32_t i, keep = UINT32_MAX, kept = 0;

	xr_care_reap();
	if (xr_load_relaxed(&s->pid) == xr_getpid())
		xr_links_sweep();
	if (xr_load_relaxed(&s->limbo) == UINT32_MAX || xr_load_relaxed(&s->pid) != xr_getpid())
		return;
	now = xr_now_ns();
	if (now - then < xr_load_relaxed(&period) || !xr_cas(&last, &then, now))
		return;
	xr_flow_kids_reap();
	xr_slab_lock();
	i = xr_load_relaxed(&s->limbo);
	xr_store_relaxed(&s->limbo, UINT32_MAX);
	xr_slab_unlock();
	while (i != UINT32_MAX) {
		struct xr_flow *f = &s->flow[i];

		i = f->next_free;
		if (f->link && !flow_peer_done(f))
			xr_shm_link_progress(f->link);
		if (!flow_in_use(f) && flow_reclaim(f))
			continue;
		if (f->st && flow_delivered(f)) {
			xr_stats_flow_free(f->st);
			f->st = NULL;
		}
		f->next_free = keep;
		keep = f->index;
		kept++;
	}
	/* children that were killed never let go: the longer the list, the rarer the look */
	xr_store_relaxed(&period, 100000000u + 10000u * (uint64_t)kept);
	xr_slab_lock();
	while (keep != UINT32_MAX) {
		struct xr_flow *f = &s->flow[keep];

		keep = f->next_free;
		f->next_free = xr_load_relaxed(&s->limbo);
		xr_store_relaxed(&s->limbo, f->index);
	}
	xr_slab_unlock();
}

#define SWEEP_SLEPT_NS	500000000u

void xr_flow_sweep_slept(uint64_t now)
{
	static _Atomic uint64_t last;
	uint64_t then = xr_load_relaxed(&last);

	if (now - then >= SWEEP_SLEPT_NS && xr_cas(&last, &then, now))
		xr_flow_sweep_now();
}

/* ---- look-up by what a peer says ----------------------------------------- */

struct xr_flow *xr_flow_by_cookie(struct xr_shm_link *l, uint32_t cookie)
{
	struct xr_flow *f;

	if (cookie >= xr_slab.fresh)
		return NULL;
	f = &xr_slab.flow[cookie];
	return f->link == l && (xr_load_acquire(&f->path) & XR_PATH_FABRIC) &&
	       xr_load_relaxed(&f->priv->fds) ? f : NULL;
}

void xr_flow_each(struct xr_shm_link *l, void (*fn)(void *arg, struct xr_flow *f), void *arg)
{
	uint32_t i, n = xr_slab.fresh;

	for (i = 0; i < n; i++) {
		struct xr_flow *f = &xr_slab.flow[i];

		/* a closed one may be a child's still */
		if ((!l || f->link == l) && (xr_load_acquire(&f->path) & XR_PATH_FABRIC) &&
		    xr_load_relaxed(&f->priv->fds))
			fn(arg, f);
	}
}

/* ---- fork ---------------------------------------------------------------- */

void xr_flow_forked(void)
{
	if (!xr_slab.flow)
		return;
	xr_links_forked();
	xr_flow_kid_begin();
	xr_closing_forked();
	xr_hold_forked(xr_slab.flow, xr_slab.fresh);
	xr_flow_touched = 0;
	/* a slab of its own at the first new flow; the inherited one stays mapped */
	xr_slab.lock = 0;
	xr_store_relaxed(&xr_slab.limbo, UINT32_MAX);
	xr_slab.free = UINT32_MAX;
	xr_slab.fresh = 0;
	xr_store_relaxed(&xr_slab.pid, 0);
}
