/* SPDX-License-Identifier: BSD-2-Clause */
/* Which processes hold a flow. */
#include <errno.h>
#include <sys/syscall.h>
#include "fdtab.h"
#include "flow.h"
#include "mem.h"

/* The slab of the parent, while this process is counted there as its child; all of them private. */
static XR_FORK_DATA struct {
	_Atomic uint32_t *serial;	/* NULL: is counted in each flow */
	struct xr_flow *flow;
	struct xr_flow_priv *priv;
	uint32_t n;
	uint32_t depth;			/* forks since the first process */
	struct xr_flow_kids *kids;	/* of the parent */
	struct xr_lock lock;
} kid;
static __thread _Atomic uint32_t *kid_next;	/* of the fork that this thread is in */
static __thread uint32_t kid_next_serial;

uint32_t xr_flow_holders(const struct xr_flow *f)
{
	struct xr_flow_kids *k = f->kids;
	uint32_t i, serial, n = 0;

	/* acquire: pairs with kid_count; who is not found here any more is found in procs */
	for (i = k ? xr_load_acquire(&k->used) : 0; i--;) {
		serial = xr_load_acquire(&k->serial[i]);
		n += serial && (int32_t)(serial - f->born) > 0;
	}
	return n + xr_load_acquire(&f->procs);
}

static _Atomic uint32_t *kid_new(struct xr_flow_kids *k)
{
	uint32_t serial = xr_fetch_add(&k->forks, 1) + 1, i, used, none;

	for (i = 0; serial && i < XR_FLOW_KIDS; i++) {
		none = 0;
		if (xr_load_relaxed(&k->serial[i]) || !xr_cas(&k->serial[i], &none, serial))
			continue;
		used = xr_load_relaxed(&k->used);
		while (used <= i && !xr_cas(&k->used, &used, i + 1))
			;
		kid_next_serial = serial;
		return &k->serial[i];
	}
	return NULL;
}

/* Not f->priv: a free flow has none. */
static void kid_count(struct xr_flow *flow, struct xr_flow_priv *priv, uint32_t n, uint32_t by)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (xr_load_relaxed(&priv[i].fds))
			xr_fetch_add(&flow[i].procs, by);
}

void xr_flow_fork_prepare(int undo)
{
	if (!undo)
		kid_next = NULL;
	if (xr_load_relaxed(&xr_slab.pid) != xr_getpid())
		return;
	if (undo && kid_next) {
		xr_store_release(kid_next, 0);
		return;
	}
	if (!undo) {
		xr_flow_kids_reap();
		kid_next = kid_new(xr_slab.kids);
	}
	if (!kid_next)
		kid_count(xr_slab.flow, xr_slab.priv, xr_slab.fresh, undo ? (uint32_t)-1 : 1);
}

void xr_flow_kid_is(int pid)
{
	uint32_t serial = kid_next ? xr_load_relaxed(kid_next) : 0;

	/* it may have gone by now, and its place be another's: then the serials do not match */
	if (serial && serial == kid_next_serial)
		xr_store_relaxed(&xr_slab.kids->pid[kid_next - xr_slab.kids->serial],
				 (uint64_t)serial << 32 | (uint32_t)pid);
}

void xr_flow_kids_reap(void)
{
	struct xr_flow_kids *k = xr_slab.kids;
	uint32_t i, serial;
	uint64_t who;

	if (!k || xr_load_relaxed(&xr_slab.pid) != xr_getpid())
		return;
	for (i = xr_load_acquire(&k->used); i--;) {
		serial = xr_load_relaxed(&k->serial[i]);
		who = xr_load_relaxed(&k->pid[i]);
		if (serial && who >> 32 == serial &&
		    xr_sys2(SYS_kill, (uint32_t)who, 0) == -ESRCH)
			xr_cas(&k->serial[i], &serial, 0);
	}
}

uint32_t xr_flow_kid_forks(void)
{
	/* relaxed: a number to compare with an earlier one of this process */
	return xr_slab.kids ? xr_load_relaxed(&xr_slab.kids->forks) : 0;
}

int xr_flow_kid_lives(void)
{
	struct xr_flow_kids *k = xr_slab.kids;
	uint32_t i;

	/* acquire: as in xr_flow_holders */
	for (i = k ? xr_load_acquire(&k->used) : 0; i--;)
		if (xr_load_relaxed(&k->serial[i]))
			return 1;
	return 0;
}

void xr_flow_kid_begin(void)
{
	kid.serial = kid_next;
	kid.flow = xr_slab.flow;
	kid.priv = xr_slab.priv;
	kid.n = xr_slab.fresh;
	kid.kids = xr_slab.kids;
	kid.depth++;
	xr_store_relaxed(&kid.lock.owner, 0);
}

static int kid_has(const struct xr_flow *f)
{
	return f >= kid.flow && f < kid.flow + kid.n;
}

static void kid_end(void)
{
	if (kid.serial)
		/* release: pairs with xr_flow_holders */
		xr_store_release(kid.serial, 0);
	kid.serial = NULL;
}

XR_HOT void xr_flow_kid_counts(struct xr_flow *f)
{
	if (xr_likely(!kid.serial) || (f && !kid_has(f)))
		return;
	if (xr_lock(&kid.lock)) {
		/* a handler that came in between: counted twice is not too few */
		if (f)
			xr_fetch_add(&f->procs, 1);
		return;
	}
	if (kid.serial)
		kid_count(kid.flow, kid.priv, kid.n, 1);
	kid_end();
	xr_unlock(&kid.lock);
}

/* A flow that is held one by one is let go of by one. */
static void exit_holder(void *arg, int fd, uintptr_t entry)
{
	(void)fd;
	if ((entry & 3) == XR_FD_FLOW) {
		struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

		if (arg && kid_has(f))
			return;
		/* a descriptor each: the last one lets the flow go */
		if (xr_fetch_sub(&f->priv->fds, 1) == 1)
			xr_fetch_sub(&f->procs, 1);
	}
}

int xr_flow_kid_heir(void)
{
	return kid.depth > 1 || (kid.kids && xr_load_acquire(&kid.kids->left));
}

XR_FORK_CODE int xr_flow_kid_leave(void)
{
	struct xr_flow_kids *k = xr_slab.kids;

	if (!xr_slab.flow || !kid_next || kid.depth || xr_load_acquire(&k->left))
		return 0;
	/* release: as in kid_end */
	xr_store_release(kid_next, 0);
	return 1;
}

void xr_flow_kid_exit(void)
{
	/* a child that has nothing beside what it was counted for at once: no need to look for more */
	if (!kid.serial || kid.depth > 1 || xr_load_relaxed(&xr_slab.pid) == xr_getpid())
		xr_fd_each(exit_holder, kid.serial ? &kid : NULL);
	kid_end();
}
