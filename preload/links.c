/* SPDX-License-Identifier: BSD-2-Clause */
/* The links of this process, and who refers to them.  The list is under the lock of the slab. */
#include <string.h>
#include "flow_young.h"
#include "mem.h"
#include "proof.h"

static XR_FORK_DATA struct xr_shm_link *flow_links;
static XR_FORK_DATA _Atomic uint32_t links_there;	/* there are some; written under the lock, looked at without */

/*
 * A link outlives its last flow for a while: programs that talk to each other by one connection at
 * a time would make memory and bells for each of them.  Few, since what they hold is lost on others.
 */
#define LINKS_KEPT	8u
#define LINKS_KEPT_NS	5000000000ull
XR_FORK_DATA _Atomic uint32_t xr_links_kept;

/* One more reference, under the lock; perhaps the first for a while. */
static void link_again(struct xr_shm_link *l)
{
	if (xr_fetch_add(&l->nflows, 1))
		return;
	xr_fetch_sub(&xr_links_kept, 1);
	xr_stats_add(XR_STAT_LINKS_REUSED, 1);
}

struct xr_shm_link *xr_links_find(const uint8_t uuid[16], uint64_t id, int side)
{
	struct xr_shm_link *l;

	xr_slab_lock();
	for (l = flow_links; l; l = l->next)
		if (!memcmp(l->peer_uuid, uuid, 16) && !xr_load_relaxed(&l->dead) &&
		    (!id || l->id == id) && (side < 0 || l->side == side))
			break;
	if (l)
		link_again(l);
	xr_slab_unlock();
	return l;
}

/* Under the lock: no other link is to the same process, which is not this one. */
static int link_is_only(const struct xr_shm_link *l)
{
	const struct xr_shm_link *o;

	for (o = flow_links; o; o = o->next)
		if (o != l && !memcmp(o->peer_uuid, l->peer_uuid, 16))
			return 0;
	return memcmp(l->peer_uuid, xr_uuid, 16) != 0;
}

#define LINKS_NEAR	64u	/* a process with more of them looks at the latest */

static int link_goes_to(const struct xr_shm_link *l, const struct xr_tuple *t)
{
	uint32_t i;

	for (i = 0; i < l->ndest; i++)
		if (l->dest[i].port == t->pport && l->dest[i].family == t->family &&
		    !memcmp(l->dest[i].addr, t->peer, 16))
			return 1;
	return 0;
}

void xr_links_goes_to(struct xr_shm_link *l, const struct xr_tuple *t)
{
	xr_slab_lock();
	if (!link_goes_to(l, t)) {
		struct xr_link_dest *d = &l->dest[l->ndest % 4];

		memcpy(d->addr, t->peer, 16);
		d->port = t->pport;
		d->family = t->family;
		if (l->ndest < 4)
			l->ndest++;
	}
	xr_slab_unlock();
}

/* Under the lock: nobody uses it, and one of the n leads to the same process: it is to end when its time is over. */
static int link_is_spare(const struct xr_shm_link *l, struct xr_shm_link *const *out, int n)
{
	if (xr_load_relaxed(&l->nflows))
		return 0;
	while (n--)
		if (out[n]->peer_pid == l->peer_pid && !memcmp(out[n]->peer_uuid, l->peer_uuid, 16))
			return 1;
	return 0;
}

int xr_links_to(const struct xr_tuple *t, int dir, struct xr_shm_link **out, int max)
{
	struct xr_shm_link *l;
	uint32_t near = LINKS_NEAR;
	int n = 0;

	xr_slab_lock();
	for (l = flow_links; l && near-- && n < max; l = l->next) {
		if (xr_load_relaxed(&l->dead) || xr_load_relaxed(&l->liar) || (l->diag >= 0) != dir ||
		    !link_goes_to(l, t))
			continue;
		/* both ends are this process: the host's end is wanted */
		if (!l->side && !memcmp(l->peer_uuid, xr_uuid, 16))
			continue;
		if (link_is_spare(l, out, n))
			continue;
		link_again(l);
		out[n++] = l;
	}
	xr_slab_unlock();
	return n;
}

struct xr_shm_link *xr_links_by_id(uint64_t id, int side)
{
	struct xr_shm_link *l;

	xr_slab_lock();
	for (l = flow_links; l && (l->id != id || l->side != side || xr_load_relaxed(&l->dead));)
		l = l->next;
	if (l)
		link_again(l);
	xr_slab_unlock();
	return l;
}

uint32_t xr_links_hear(uint32_t from, uint32_t max)
{
	struct xr_shm_link *l;
	uint32_t i = 0;

	xr_slab_lock();
	for (l = flow_links; l && i < from + max; l = l->next)
		if (i++ >= from)
			xr_shm_link_progress(l);
	xr_slab_unlock();
	return l ? i : 0;
}

void xr_links_add(struct xr_shm_link *l)
{
	xr_slab_lock();
	if (link_is_only(l))
		xr_stats_add(XR_STAT_PAIRS, 1);
	l->next = flow_links;
	flow_links = l;
	xr_store_relaxed(&links_there, 1);
	xr_slab_unlock();
	xr_stats_add(XR_STAT_LINKS_MADE, 1);
}

void xr_links_progress(void)
{
	struct xr_shm_link *l;

	xr_slab_lock();
	for (l = flow_links; l; l = l->next)
		xr_shm_link_progress(l);
	xr_slab_unlock();
}

int xr_links_any(void)
{
	/* racy, a hint */
	return xr_load_relaxed(&links_there) != 0;
}

void xr_link_ref(struct xr_shm_link *l)
{
	xr_fetch_add(&l->nflows, 1);
}

struct xr_shm_link *xr_flow_link_get(struct xr_flow *f)
{
	/* acquire: what was written before the flow got its link */
	struct xr_shm_link *l = xr_load_acquire(&f->link);

	/*
	 * Threads that wait, each with a flow of its own, do not wait for each other: while f->link stands its
	 * reference does, and so the one that was found is the right one if it stands afterwards.
	 */
	if (xr_likely(l && xr_shm_link_try_ref(l))) {
		if (xr_likely(xr_load_acquire(&f->link) == l))
			return l;
		xr_link_unref(l);
	}
	xr_slab_lock();
	/* a link is let go after f->link was cleared, and ends under this lock at the earliest */
	l = f->link;
	if (l)
		xr_fetch_add(&l->nflows, 1);
	xr_slab_unlock();
	return l;
}

/* Under the lock: takes a link that nobody refers to out of the list. */
static void link_unlist(struct xr_shm_link *l)
{
	struct xr_shm_link **p;

	for (p = &flow_links; *p; p = &(*p)->next)
		if (*p == l) {
			*p = l->next;
			break;
		}
	xr_store_relaxed(&links_there, flow_links != NULL);
	if (link_is_only(l))
		xr_stats_sub(XR_STAT_PAIRS, 1);
}

/* Under the lock: the link that has been kept longest, if it has been for so long. */
static struct xr_shm_link *link_kept(uint64_t now, uint64_t ns)
{
	struct xr_shm_link *l, *old = NULL;

	for (l = flow_links; l; l = l->next)
		if (!xr_load_relaxed(&l->nflows) && (xr_load_relaxed(&l->dead) || now - l->idle_ns >= ns) &&
		    (!old || l->idle_ns < old->idle_ns))
			old = l;
	if (!old)
		return NULL;
	link_unlist(old);
	xr_fetch_sub(&xr_links_kept, 1);
	return old;
}

void xr_links_sweep(void)
{
	struct xr_shm_link *l;
	uint64_t now;

	if (xr_likely(!xr_load_relaxed(&xr_links_kept)))
		return;
	now = xr_now_ns();
	do {
		xr_slab_lock();
		l = link_kept(now, LINKS_KEPT_NS);
		xr_slab_unlock();
		if (l)
			xr_shm_link_free(l);
	} while (l);
}

void xr_link_unref(struct xr_shm_link *l)
{
	uint32_t left = xr_load_relaxed(&l->nflows);

	if (l->owner_pid != xr_getpid())
		return;
	/* not the last one: no lock; sleepers hold a reference and come by often */
	while ((left & ~XR_LINK_HELD) > 1)
		if (xr_cas(&l->nflows, &left, left - 1))
			return;
	xr_slab_lock();
	/* under the lock: xr_links_find must not hand out a link on its way out */
	left = xr_fetch_sub(&l->nflows, 1) - 1;
	if (left) {
		xr_slab_unlock();
		return;
	}
	if (!xr_load_relaxed(&l->dead) && !xr_load_relaxed(&l->liar)) {
		l->idle_ns = xr_now_ns();
		l = xr_fetch_add(&xr_links_kept, 1) < LINKS_KEPT ? NULL : link_kept(l->idle_ns, 0);
	} else {
		link_unlist(l);
	}
	xr_slab_unlock();
	if (l)
		xr_shm_link_free(l);
}

/* References of flows that need no bells: those that are on it are not counted, and so missing. */
static void link_count(const struct xr_flow *f)
{
	/* acquire: the link is there before it counts */
	uint32_t i, n = xr_load_acquire(&f->npast);

	if (!f->link)
		return;
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) && !xr_flow_up(f))
		f->link->counted++;
	for (i = 0; i < n; i++)
		f->past[i]->counted++;
}

int xr_links_strip(void)
{
	struct xr_shm_link *l;
	uint32_t i;
	int n = 0;

	xr_slab_lock();
	for (l = flow_links; l; l = l->next)
		l->counted = 0;
	for (i = 0; i < xr_slab.fresh; i++)
		link_count(&xr_slab.flow[i]);
	/* one more reference is a flow's that is on it, or a sleeper's, who has the number of a bell in hand */
	for (l = flow_links; l; l = l->next) {
		uint32_t counted = l->counted;

		/* whoever goes to sleep now waits for this lock, and has its bell made anew */
		if (!xr_cas(&l->nflows, &counted, counted | XR_LINK_HELD))
			continue;
		n += xr_shm_link_strip(l);
		xr_fetch_and(&l->nflows, ~XR_LINK_HELD);
	}
	xr_slab_unlock();
	return n;
}

void xr_links_forked(void)
{
	struct xr_shm_link *l;

	/*
	 * The child may replay and notify over the parent's links, and shall not keep their
	 * control connections open: their end tells the peer of the parent's death.
	 */
	for (l = flow_links; l; l = l->next) {
		xr_fd_close(l->conn);
		xr_fd_close(l->diag);
		l->diag = -1;
	}
	flow_links = NULL;
	xr_store_relaxed(&links_there, 0);
	xr_store_relaxed(&xr_links_kept, 0);
}
