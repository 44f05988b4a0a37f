/* SPDX-License-Identifier: BSD-2-Clause */
/* Flows under sleeping calls: see hold.h. */
#include "hold.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include "closing.h"
#include "mem.h"
#include "ready.h"
#include "waiter.h"

#define DEPTH	4	/* calls of one thread that sleep inside handlers of one another */

/* Those of this thread, for a child, for its end, and for those that it left by longjmp. */
static __thread struct hold_stack {
	struct xr_flow *flow;
	uintptr_t frame;
} own[DEPTH];
static __thread uint32_t depth;

static XR_FORK_DATA _Atomic uint32_t holds;	/* of the process, a hint for fork */

/* The last of them, and no descriptor is left: the end that close() did not make. */
static void last_drop(struct xr_flow *f)
{
	int fd = xr_load_relaxed(&f->priv->orphan);

	xr_store_relaxed(&f->priv->orphan, -1);
	xr_flow_kid_counts(f);
	xr_epoll_flow_closed(f);
	/* closed behind our back, or no descriptor was to be had: the kernel has ended it */
	if (fd >= 0) {
		xr_flow_last_close(f, fd);
		xr_fd_close(fd);
		xr_flow_closed(f);
	} else {
		xr_flow_release(f);
	}
	xr_flow_sweep();
}

static void put(struct xr_flow *f)
{
	uint32_t n = xr_load_relaxed(&f->priv->fds);
	int last = 0;

	xr_fetch_sub(&holds, 1);
	xr_fetch_sub(&f->priv->holds, 1);
	do {
		if (xr_unlikely(n == 1) && !last) {
			xr_closing_begin();
			last = 1;
		}
	} while (!xr_cas(&f->priv->fds, &n, n - 1));
	if (xr_unlikely(n == 1))
		last_drop(f);
	if (xr_unlikely(last))
		xr_closing_end();
}

void xr_hold_thread(int all)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);

	while (depth && (all || !xr_frame_alive(frame, own[depth - 1].frame)))
		put(own[--depth].flow);
}

int xr_hold_take(struct xr_hold *h, struct xr_flow *f)
{
	uint32_t n = xr_load_relaxed(&f->priv->fds);

	xr_hold_thread(0);
	/* deeper than anybody nests: as without it, such a call ends with the descriptor */
	if (depth == DEPTH)
		return 0;
	/* a close that races with us has come first, and the flow may be another's already */
	do {
		if (!n)
			return -EBADF;
	} while (!xr_cas(&f->priv->fds, &n, n + 1));
	xr_fetch_add(&f->priv->holds, 1);
	xr_fetch_add(&holds, 1);
	own[depth].flow = f;
	own[depth++].frame = (uintptr_t)h;
	h->flow = f;
	return 0;
}

void xr_hold_drop(struct xr_hold *h)
{
	struct xr_flow *f = h->flow;

	h->flow = NULL;
	/* those above it were left by longjmp */
	while (depth && own[depth - 1].frame != (uintptr_t)h)
		put(own[--depth].flow);
	if (depth) {
		depth--;
		put(f);
	}
}

void xr_hold_orphan(struct xr_flow *f, int fd)
{
	int new = (int)xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3), old = new;

	if (new >= 0)
		new = xr_fd_high(new);
	if (new < 0 && old >= 0)
		xr_sys1(SYS_close, old);
	/* both locks: whoever uses the old number does so under one of them */
	if (xr_flow_tx_lock(f))
		goto forget;
	if (xr_flow_rx_lock(f)) {
		xr_flow_tx_unlock(f);
		goto forget;
	}
	old = xr_load_relaxed(&f->priv->orphan);
	xr_store_relaxed(&f->priv->orphan, new);
	xr_store_relaxed(&f->priv->fd, new);
	xr_flow_rx_unlock(f);
	xr_flow_tx_unlock(f);
	xr_fd_close(old);
	if (new < 0)
		xr_flow_wake(f);
	return;

forget:
	/* in a handler, on top of a call that is at work and does not sleep */
	xr_store_relaxed(&f->priv->fd, -1);
	xr_fd_close(new);
}

/* A flow that was closed under a sleeping call of the parent's is not this process's. */
static void forked_one(struct xr_flow *f, uint32_t mine)
{
	uint32_t gone = xr_load_relaxed(&f->priv->holds) - mine;

	if (!gone)
		return;
	xr_store_relaxed(&f->priv->holds, mine);
	if (xr_load_relaxed(&f->priv->fds) != gone) {
		xr_fetch_sub(&f->priv->fds, gone);
		return;
	}
	/* it was counted as a holder, while the flow still looked held */
	xr_flow_kid_counts(f);
	xr_store_relaxed(&f->priv->fds, 0);
	xr_fetch_sub(&f->procs, 1);
	xr_fd_close(xr_load_relaxed(&f->priv->orphan));
	xr_store_relaxed(&f->priv->orphan, -1);
}

XR_FORK_CODE int xr_hold_inherited(void)
{
	return xr_load_relaxed(&holds) != depth;
}

void xr_hold_forked(struct xr_flow *f, uint32_t n)
{
	uint32_t i, j, mine;

	if (xr_likely(!xr_hold_inherited()))
		return;
	for (i = 0; i < n; i++) {
		if (!xr_load_relaxed(&f[i].priv->holds))
			continue;
		for (j = 0, mine = 0; j < depth; j++)
			mine += own[j].flow == &f[i];
		forked_one(&f[i], mine);
	}
	xr_store_relaxed(&holds, depth);
}
