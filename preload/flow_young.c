/* SPDX-License-Identifier: BSD-2-Clause */
/* Flows that have not moved: how they begin, and what is counted of their calls.  See flow_young.h. */
#include <sched.h>
#include <sys/syscall.h>
#include "control.h"
#include "flow_young.h"
#include "tune.h"

/* Settings, where they are at hand. */
static XR_NEAR struct {
	_Atomic uint64_t turns, bytes;
} young_need;

void xr_flow_tuned(void)
{
	/* relaxed: two numbers, of which the one is as good as the other */
	xr_store_relaxed(&young_need.turns, xr_tuned(&xr_cfg.upgrade_turns));
	xr_store_relaxed(&young_need.bytes, xr_tuned(&xr_cfg.upgrade_bytes));
}

void xr_slab_wait(void)
{
	uint32_t free;

	xr_stats_add(XR_STAT_LOCK_WAITS, 1);
	do {
		xr_sys0(SYS_sched_yield);
		free = 0;
	} while (!xr_cas(&xr_slab.lock, &free, 1));
}

/* ---- birth ----------------------------------------------------------------- */

/* Out of line: its first flow, and a slab that is full.  Locked; UINT32_MAX: none, and unlocked. */
static __attribute__((noinline, cold)) uint32_t young_first(struct xr_flow_slab *s)
{
	struct xr_flow *f;
	uint32_t i;
	int r;

	if (!s->flow || xr_load_relaxed(&s->pid) != xr_getpid()) {
		r = xr_flow_init();
		if (r) {
			xr_slab_unlock();
			xr_store_relaxed(&xr_flow_refused, r == -ENOMEM ? XR_REASON_LIMIT_MEMORY :
						XR_REASON_RENDEZVOUS_FAILED);
			return UINT32_MAX;
		}
	}
	if (s->fresh >= s->max) {
		xr_slab_unlock();
		xr_store_relaxed(&xr_flow_refused, XR_REASON_LIMIT_FLOWS);
		return UINT32_MAX;
	}
	i = s->fresh++;
	f = &s->flow[i];
	/* what stays so for all flows in the slot */
	f->index = i;
	f->owner_pid = xr_load_relaxed(&s->pid);
	f->kids = s->kids;
	f->meta = s->meta + (size_t)i * s->slots;
	f->priv = &s->priv[i];
	f->own = &s->own[i];
	return i;
}

/* Called by the other end one turn later: this one listens by then. */
static inline void young_thresholds(struct xr_flow *f, int connects)
{
	uint64_t turns = xr_load_relaxed(&young_need.turns), bytes = xr_load_relaxed(&young_need.bytes);

	if (connects) {
		turns = turns > 1 ? turns - 1 : 1;
		bytes = bytes / 2;
	}
	xr_store_relaxed(&f->need_turns, (uint32_t)turns);
	xr_store_relaxed(&f->need_bytes, bytes);
}

XR_HOT struct xr_flow *xr_flow_new(int fd, int family, enum xr_flow_role role, int nonblock)
{
	struct xr_flow_slab *s = &xr_slab;
	struct xr_flow_priv *p;
	struct xr_flow_own *own;
	struct xr_flow *f;
	uint32_t i;

	if (xr_unlikely(!xr_active))
		return NULL;
	xr_slab_lock();
	i = s->free;
	/* the list of another process was forgotten: it is empty */
	if (xr_likely(i != UINT32_MAX && s->flow)) {
		s->free = s->flow[i].next_free;
	} else {
		i = young_first(s);
		if (i == UINT32_MAX)
			return NULL;
	}
	xr_control_tuned();
	/* under the lock, and nowhere else; what may yet listen is no connection */
	if (role == XR_FLOW_ACCEPT)
		xr_count(&xr_stats_now()->counter[XR_STAT_FLOWS_OPENED], 1);
	xr_slab_unlock();
	f = &s->flow[i];
	p = f->priv;
	own = f->own;
	/* the rest of a free flow is zero: flow_reclaim saw to it, for flows that had a fabric */
	xr_store_relaxed(&f->path, 0);
	xr_store_relaxed(&f->gen, xr_load_relaxed(&f->gen) + 1);
	xr_store_relaxed(&f->need_turns, UINT32_MAX);
	xr_store_relaxed(&f->need_bytes, UINT64_MAX);
	xr_store_relaxed(&f->tcp_tx, 0);
	xr_store_relaxed(&f->tcp_rx, 0);
	xr_store_relaxed(&f->k_tx, 0);
	xr_store_relaxed(&f->k_rx, 0);
	xr_store_relaxed(&f->turns, 0);
	xr_store_relaxed(&f->last_dir, 0);
	xr_store_relaxed(&f->reason, XR_REASON_YOUNG);
	xr_store_relaxed(&f->epoll_child, 0);
	f->role = (uint8_t)role;
	f->family = (uint8_t)family;
	f->nonblock = nonblock != 0;
	f->connected = 0;
	xr_store_relaxed(&f->upgrade_off, 0);
	f->up_tries = 0;
	xr_store_relaxed(&f->procs, 1);
	f->born = xr_load_relaxed(&s->kids->forks);
	f->returns = 0;
	f->fails = 0;
	xr_store_relaxed(&f->npast, 0);
	xr_store_relaxed(&f->quiet, 0);
	f->waited = 0;
	f->rcvlowat = 0;
	f->kernel_lowat = 0;
	xr_store_relaxed(&f->up, NULL);
	f->up_after = 0;
	f->moved_ns = 0;
	f->rcvtimeo_ns = 0;
	f->sndtimeo_ns = 0;
	xr_store_relaxed(&p->fds, 1);
	xr_store_relaxed(&p->fd, fd);
	xr_store_relaxed(&p->holds, 0);
	xr_store_relaxed(&p->orphan, -1);
	xr_store_relaxed(&own->regs, NULL);
	own->young.ep = NULL;
	xr_store_relaxed(&own->young.lock.owner, 0);
	own->unlisted = 0;
	own->offered = 0;
	own->not_dir = 0;
	own->is_dir = 0;
	if (role == XR_FLOW_ACCEPT) {
		f->connected = 1;
		young_thresholds(f, 0);
		/* release: pairs with the hooks' acquire of path, the thresholds are set */
		xr_store_release(&f->path, XR_PATH_COUNT);
	}
	return f;
}

/* What was done to the socket before it was connected keeps it on TCP. */
static __attribute__((noinline, cold)) void connected_off(struct xr_flow *f, int fd)
{
	xr_flow_list(f, fd);
	xr_stats_flow_reason(f->st, (enum xr_reason)xr_load_relaxed(&f->reason));
	if (!f->st)
		xr_stats_unlisted((enum xr_reason)xr_load_relaxed(&f->reason));
}

XR_HOT void xr_flow_connecting(struct xr_flow *f, int fd)
{
	int connects = f->role == XR_FLOW_UNSET;

	if (f->connected)
		return;
	if (connects)
		f->role = XR_FLOW_CONNECT;
	xr_slab_lock();
	/* two threads may have met here */
	xr_count(&xr_stats_now()->counter[XR_STAT_FLOWS_OPENED], !f->connected);
	f->connected = 1;
	xr_slab_unlock();
	if (xr_unlikely(xr_load_relaxed(&f->upgrade_off))) {
		connected_off(f, fd);
		return;
	}
	young_thresholds(f, connects);
	/* release: as in xr_flow_new */
	xr_store_release(&f->path, XR_PATH_COUNT);
}

/* ---- accounting of kernel I/O -------------------------------------------- */

void xr_flow_due(struct xr_flow *f, int fd)
{
	/* none: closed under a sleeping call, whose number may be somebody else's now */
	if (xr_load_relaxed(&f->priv->fds))
		xr_upgrade_step(f, fd);
}

int xr_flow_tcp_rx_begin(struct xr_flow *f)
{
	return XR_FLOW_RX_BEGIN(f);
}

void xr_flow_tcp_rx_end(struct xr_flow *f, int fd, ssize_t n)
{
	XR_FLOW_RX_END(f, fd, n);
}

int xr_flow_tcp_tx_begin(struct xr_flow *f)
{
	/* as in xr_flow_tcp_begin */
	xr_fetch_add(&f->k_tx, 1);
	if (xr_likely(!(xr_load_acquire(&f->path) & (XR_PATH_TX | XR_PATH_WITNESS))))
		return 1;
	if (!(xr_load_acquire(&f->path) & XR_PATH_TX)) {
		xr_upgrade_witness(f);
		return 1;
	}
	xr_fetch_sub(&f->k_tx, 1);
	return 0;
}

void xr_flow_tcp_tx_end(struct xr_flow *f, int fd, ssize_t n)
{
	XR_FLOW_TX_END(f, fd, n);
}
