/* SPDX-License-Identifier: BSD-2-Clause */
/* Epoll files and their registrations: life, locks, epoll_ctl. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "fdtab.h"
#include "log.h"
#include "mem.h"
#include "ready.h"

XR_FORK_DATA uint32_t xr_ep_gen;

/* ---- locks --------------------------------------------------------------- */

/*
 * A frame of a handler lies below the one it interrupted by at least what the kernel
 * pushes; calls of one depth that take a lock differ by less.
 */
#define LOCK_MARGIN	512u

static XR_FORK_DATA struct xr_lock ep_big;
static uintptr_t ep_big_frame;
static XR_FORK_DATA _Atomic uint32_t ep_big_missed;

static void big_missed(void);

int xr_ep_big_lock(void)
{
	/* held by this thread: a handler on top of it, unless the holder was left by longjmp */
	uintptr_t own = (uintptr_t)__builtin_frame_address(0);

	if (xr_unlikely(xr_lock(&ep_big)) && xr_frame_alive(own + LOCK_MARGIN, ep_big_frame))
		return -EDEADLK;
	ep_big_frame = own;
	return 0;
}

void xr_ep_big_unlock(void)
{
	/*
	 * A handler on this thread leaves its note before it returns, and another thread
	 * never needs to: looking before and after the unlock leaves no gap.
	 */
	while (xr_unlikely(xr_load_relaxed(&ep_big_missed))) {
		xr_store_relaxed(&ep_big_missed, 0);
		big_missed();
	}
	xr_unlock(&ep_big);
	if (xr_unlikely(xr_load_relaxed(&ep_big_missed)) && !xr_ep_big_lock())
		xr_ep_big_unlock();
}

/* Looks at everything again; also mends lists that a longjmp may have left half linked. */
static void ep_rebuild(struct xr_epoll *ep)
{
	struct xr_epreg *r;
	struct xr_eplink *k;
	uint32_t i;

	xr_epnode_init(&ep->ready);
	xr_epnode_init(&ep->hot);
	xr_epnode_init(&ep->active);
	ep->nready = 0;
	ep->nhot = 0;
	ep->nactive = 0;
	ep->rested = 0;
	for (k = ep->links; k; k = k->next) {
		k->active = 0;
		xr_ep_activate(ep, k);
	}
	for (i = 0; i < ep->nbuckets; i++)
		for (r = ep->bucket[i]; r; r = r->hash_next) {
			r->place = XR_EP_NOWHERE;
			r->armed = 0;
			if (r->attached)
				xr_ep_push(r);
		}
}

static void ep_missed(struct xr_epoll *ep)
{
	xr_store_relaxed(&ep->missed, 0);
	ep_rebuild(ep);
	xr_ep_kick(ep);
}

int xr_ep_lock(struct xr_epoll *ep)
{
	uintptr_t own = (uintptr_t)__builtin_frame_address(0);

	if (xr_likely(!xr_lock(&ep->lock))) {
		ep->lock_frame = own;
		return 0;
	}
	if (xr_frame_alive(own + LOCK_MARGIN, ep->lock_frame)) {
		/* relaxed: read by this thread, once the handler has returned */
		xr_store_relaxed(&ep->missed, 1);
		return -EDEADLK;
	}
	ep->lock_frame = own;
	ep_rebuild(ep);
	return 0;
}

void xr_ep_unlock(struct xr_epoll *ep)
{
	while (xr_unlikely(xr_load_relaxed(&ep->missed)))
		ep_missed(ep);
	xr_unlock(&ep->lock);
	/* as in xr_ep_big_unlock */
	if (xr_unlikely(xr_load_relaxed(&ep->missed)) && !xr_ep_lock(ep))
		xr_ep_unlock(ep);
}

/* ---- by flow ------------------------------------------------------------- */

struct xr_epflow *xr_ep_flow(struct xr_flow *f, int make)
{
	struct xr_epflow *ef = f->own->regs;

	/* what the parent of a forked child knew is of no use to the child */
	if (ef && xr_likely(ef->gen == xr_ep_gen))
		return ef;
	if (!make)
		return NULL;
	ef = xr_ep_mem_get(XR_EP_MEM_FLOW);
	if (!ef)
		return NULL;
	memset(ef, 0, sizeof(*ef));
	ef->gen = xr_ep_gen;
	xr_store_release(&f->own->regs, ef);
	return ef;
}

void xr_ep_flow_free(struct xr_epflow *ef)
{
	xr_ep_mem_put(XR_EP_MEM_FLOW, ef);
}

struct xr_eplink *xr_ep_link_alloc(void)
{
	return xr_ep_mem_get(XR_EP_MEM_LINK);
}

void xr_ep_link_free(struct xr_eplink *k)
{
	xr_ep_mem_put(XR_EP_MEM_LINK, k);
}

static uint32_t ep_hash(const struct xr_epoll *ep, const struct xr_flow *f)
{
	return (uint32_t)(((uintptr_t)f * 0x9e3779b97f4a7c15ull) >> 40) & (ep->nbuckets - 1);
}

struct xr_epreg *xr_ep_bucket(struct xr_epoll *ep, struct xr_flow *f)
{
	return ep->bucket[ep_hash(ep, f)];
}

/* Without the memory for it the chains get longer, that is all. */
static void ep_grow(struct xr_epoll *ep)
{
	uint32_t i, old_n = ep->nbuckets, n = old_n * 4;
	struct xr_epreg **old = ep->bucket, **b, *r, *next;

	b = xr_ep_table_get(n);
	if (!b)
		return;
	ep->nbuckets = n;
	for (i = 0; i < old_n; i++)
		for (r = old[i]; r; r = next) {
			uint32_t h = ep_hash(ep, r->flow);

			next = r->hash_next;
			r->hash_next = b[h];
			b[h] = r;
		}
	ep->bucket = b;
	if (old != ep->first_bucket)
		xr_ep_table_put(old, old_n);
}

struct xr_epreg *xr_ep_reg_new(struct xr_epoll *ep, struct xr_flow *f, struct xr_epflow *ef, int fd,
			       const struct epoll_event *ev)
{
	struct xr_epreg *r = xr_ep_mem_get(XR_EP_MEM_REG);
	struct xr_epheir *heir;
	uint32_t h;
	uint16_t gen;

	if (!r)
		return NULL;
	heir = r->heir ? r->heir : xr_ep_heir_new();
	if (!heir) {
		xr_ep_mem_put(XR_EP_MEM_REG, r);
		return NULL;
	}
	if (ep->nregs >= 2 * ep->nbuckets)
		ep_grow(ep);
	gen = r->gen;
	memset(r, 0, sizeof(*r));
	r->gen = gen;
	r->heir = heir;
	r->ep = ep;
	r->flow = f;
	r->ef = ef;
	r->fd = fd;
	r->events = ev->events | EPOLLERR | EPOLLHUP;
	r->data = ev->data.u64;
	r->flow_next = ef->regs;
	ef->regs = r;
	h = ep_hash(ep, f);
	r->hash_next = ep->bucket[h];
	ep->bucket[h] = r;
	ep->nregs++;
	heir->flow = f;
	heir->fd = fd;
	heir->token = ep->token;
	heir->orphan = 0;
	xr_ep_heir(r);
	heir->ep = ep;
	return r;
}

void xr_ep_reg_recycle(struct xr_epreg *r)
{
	r->gen++;
	xr_ep_mem_put(XR_EP_MEM_REG, r);
}

void xr_ep_reg_free(struct xr_epreg *r)
{
	struct xr_epoll *ep = r->ep;
	struct xr_epreg **p;

	for (p = &r->ef->regs; *p; p = &(*p)->flow_next)
		if (*p == r) {
			*p = r->flow_next;
			break;
		}
	for (p = &ep->bucket[ep_hash(ep, r->flow)]; *p; p = &(*p)->hash_next)
		if (*p == r) {
			*p = r->hash_next;
			break;
		}
	ep->nregs--;
	if (r->heir)
		r->heir->ep = NULL;
	xr_ep_unlist(r);
	if (r->busy)
		r->dead = 1;
	else
		xr_ep_reg_recycle(r);
}

/* ---- files --------------------------------------------------------------- */

/* What children counted for an earlier file of the same memory is none of this one's. */
static void ep_share_begin(struct xr_epoll *ep)
{
	struct xr_epshare *s = ep->own_share;
	uint64_t life = (xr_load_relaxed(&s->want) >> 32) + 1;

	ep->share = s;
	ep->life = (uint32_t)life;
	xr_store_relaxed(&s->asleep, 0);
	xr_store_relaxed(&s->owner, xr_getpid());
	xr_store_relaxed(&s->nsaid, 0);
	memset(s->said, 0, sizeof(s->said));
	/* a child that waits for the earlier one to be seen waits no more */
	xr_store_relaxed(&s->seen, life << 32);
	/* release: who finds this life there finds nothing of the one before */
	xr_store_release(&s->want, life << 32);
}

struct xr_epoll *xr_ep_file_new(int epfd, uint64_t token, struct xr_epoll *parents)
{
	struct xr_epoll *ep = xr_ep_mem_get(XR_EP_MEM_FILE);
	struct xr_epshare *own;

	if (!ep)
		return NULL;
	own = ep->own_share;
	if (!own && !parents)
		own = xr_ep_share_new();
	if (!own && !parents) {
		/* none that a child could take up unseen: the program has it without a record, all in it on TCP */
		xr_ep_mem_put(XR_EP_MEM_FILE, ep);
		return NULL;
	}
	memset(ep, 0, sizeof(*ep));
	ep->own_share = own;
	if (parents) {
		ep->parents = parents;
		ep->share = parents->share;
		ep->life = parents->life;
	} else {
		ep_share_begin(ep);
	}
	ep->token = token;
	ep->gen = xr_ep_gen;
	ep->fds = 1;
	ep->epfd = epfd;
	ep->outer = -1;
	ep->inner = -1;
	ep->kick = -1;
	ep->nudge = -1;
	xr_store_relaxed(&ep->top, -1);
	ep->forks = xr_flow_kid_forks();
	ep->bucket = ep->first_bucket;
	ep->nbuckets = XR_EP_BUCKETS;
	xr_epnode_init(&ep->ready);
	xr_epnode_init(&ep->hot);
	xr_epnode_init(&ep->active);
	return ep;
}

int xr_epoll_created(int epfd, int flags)
{
	struct xr_epoll *ep;
	uint64_t token;

	(void)flags;
	if (!xr_active || xr_random(&token, sizeof(token)) || xr_ep_big_lock())
		return -ENOMEM;
	ep = xr_ep_file_new(epfd, token, NULL);
	if (!ep) {
		xr_ep_big_unlock();
		return -ENOMEM;
	}
	if (xr_fd_set(epfd, ep, XR_FD_EPOLL) == (uintptr_t)-1) {
		xr_ep_mem_put(XR_EP_MEM_FILE, ep);
		xr_ep_big_unlock();
		return -ENOMEM;
	}
	xr_ep_big_unlock();
	return 0;
}

void xr_epoll_dup(int oldfd, int newfd)
{
	struct xr_epoll *ep = xr_fd_epoll(oldfd);

	if (!ep || xr_ep_big_lock())
		return;
	if (xr_fd_epoll(oldfd) == ep && xr_fd_set(newfd, ep, XR_FD_EPOLL) != (uintptr_t)-1)
		ep->fds++;
	xr_ep_big_unlock();
}

/* The file's lock held; nobody is inside.  Returns how many descriptors it had. */
static int ep_inner_close(struct xr_epoll *ep)
{
	int top = xr_load_relaxed(&ep->top), n = 3 + (top >= 0) + (ep->nudge >= 0);
	struct xr_eplink *k;

	for (k = ep->links; k; k = ep->links) {
		k->nregs = 1;
		xr_ep_link_put(ep, k);
	}
	if (ep->inner < 0)
		return 0;
	xr_fd_close(ep->inner);
	xr_fd_close(ep->kick);
	xr_fd_close(ep->nudge);
	xr_fd_close(ep->outer);
	xr_fd_close(top);
	ep->inner = -1;
	ep->kick = -1;
	ep->nudge = -1;
	ep->outer = -1;
	xr_store_relaxed(&ep->top, -1);
	xr_waiter_put(ep->waiter);
	ep->waiter = 0;
	return n;
}

static void ep_teardown(struct xr_epoll *ep)
{
	ep_inner_close(ep);
	if (ep->bucket != ep->first_bucket)
		xr_ep_table_put(ep->bucket, ep->nbuckets);
	/* an empty table of its own, for whoever still looks */
	ep->bucket = ep->first_bucket;
	ep->nbuckets = XR_EP_BUCKETS;
	memset(ep->first_bucket, 0, sizeof(ep->first_bucket));
}

int xr_epoll_strip(void)
{
	struct xr_epoll *ep;
	int fd, n = 0;

	if (xr_ep_big_lock())
		return 0;
	for (fd = xr_fd_next(0); fd >= 0; fd = xr_fd_next(fd + 1)) {
		ep = xr_fd_epoll(fd);
		if (!ep || ep->gen != xr_ep_gen || xr_ep_lock(ep))
			continue;
		/* who is inside, or in the kernel with its token to come, may use them */
		if (!xr_load_relaxed(&ep->attached) && !ep->inside && ep->inner >= 0 &&
		    (xr_load_relaxed(&ep->top) < 0 || !ep->watched)) {
			if (xr_load_relaxed(&ep->top) < 0)
				xr_ep_sys_ctl(ep->outer, EPOLL_CTL_DEL, ep->inner, 0, 0);
			xr_store_relaxed(&ep->dirty, 0);
			n += ep_inner_close(ep);
		}
		xr_ep_unlock(ep);
	}
	xr_ep_big_unlock();
	return n;
}

void xr_ep_put(struct xr_epoll *ep)
{
	int gone = !ep->fds && !ep->inside;

	if (gone)
		ep_teardown(ep);
	xr_ep_unlock(ep);
	if (gone)
		xr_ep_mem_put(XR_EP_MEM_FILE, ep);
}

/* One of several descriptors goes: know another one. */
static void ep_other_fd(struct xr_epoll *ep, int epfd)
{
	int fd;

	if (ep->epfd != epfd)
		return;
	for (fd = xr_fd_next(0); fd >= 0; fd = xr_fd_next(fd + 1))
		if (xr_fd_epoll(fd) == ep) {
			ep->epfd = fd;
			return;
		}
}

/* The registrations go with the file; the kernel has dropped or will drop its own. */
static void ep_drop_regs(struct xr_epoll *ep)
{
	uint32_t i;

	for (i = 0; i < ep->nbuckets; i++)
		while (ep->bucket[i]) {
			struct xr_epreg *r = ep->bucket[i];

			/* the file may be a child's still */
			if (xr_unlikely(xr_ep_lent(ep)))
				xr_ep_heir_leave(r);
			if (r->attached)
				xr_ep_reg_leave(r);
			xr_ep_reg_free(r);
		}
}

void xr_epoll_close(int epfd)
{
	struct xr_epoll *ep = xr_fd_epoll(epfd);

	if (!ep || xr_ep_big_lock())
		return;
	/* one of several racing callers gets it */
	if ((xr_fd_entry(epfd) & ~(uintptr_t)3) != (uintptr_t)ep ||
	    (xr_fd_take(epfd) & ~(uintptr_t)3) != (uintptr_t)ep)
		goto unlock;
	if (--ep->fds) {
		ep_other_fd(ep, epfd);
		goto unlock;
	}
	if (ep->gen != xr_ep_gen) {
		/* the parent's; only the copies of its descriptors are ours */
		xr_fd_close(ep->inner);
		xr_fd_close(ep->kick);
		xr_fd_close(ep->nudge);
		xr_fd_close(ep->outer);
		xr_fd_close(xr_load_relaxed(&ep->top));
		goto unlock;
	}
	if (xr_ep_lock(ep)) {
		/* the handler that closes it interrupted its use: it is never let go of */
		goto unlock;
	}
	if (xr_unlikely(ep->parents != NULL))
		xr_ep_child_close(ep);
	ep_drop_regs(ep);
	xr_ep_put(ep);
unlock:
	xr_ep_big_unlock();
}

/* ---- notes of signal handlers -------------------------------------------- */

static void flow_missed(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);
	struct xr_epflow *ef;

	(void)arg;
	(void)fd;
	if ((entry & 3) != XR_FD_FLOW)
		return;
	ef = xr_ep_flow(f, 0);
	if (ef && xr_xchg(&ef->missed, 0)) {
		struct xr_epreg *r;

		for (r = ef->regs; r; r = r->flow_next)
			if (r->attached && !xr_ep_lock(r->ep)) {
				r->armed = 0;
				xr_ep_push(r);
				xr_ep_kick(r->ep);
				xr_ep_unlock(r->ep);
			}
	}
}

/* Under big: what kick and close in a handler could not do. */
static void big_missed(void)
{
	xr_fd_each(flow_missed, NULL);
}

void xr_ep_note(struct xr_epflow *ef)
{
	xr_store_relaxed(&ef->missed, 1);
	xr_store_relaxed(&ep_big_missed, 1);
}

void xr_epoll_forked(void)
{
	xr_ep_gen++;
	/* locks may have been caught in the middle of anything */
	xr_store_relaxed(&ep_big.owner, 0);
	xr_store_relaxed(&ep_big_missed, 0);
	xr_ep_mem_forked();
	xr_ep_shared_forked();
	xr_waiter_forked();
}
