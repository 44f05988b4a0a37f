/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory.  What a peer may read is opened with a window of type 2 that is bound to one queue pair: by a request
 * in its send queue, so that it is open before a SEND that is posted behind it can tell of it.  Where a device has no
 * such windows, a region of its own is registered for each: slower, and open to every peer that guesses its key.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "fabric_verbs.h"
#include "log.h"

#define MR_ACCESS	(XR_ACCESS_LOCAL_WRITE | XR_ACCESS_REMOTE_WRITE | XR_ACCESS_REMOTE_READ)

int v_pd_alloc(struct xr_dev *dev, struct xr_pd **pd)
{
	struct v_dev *d = v_dev(dev);
	struct v_pd *p;

	if (!d->ctx)
		return -ENODEV;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->ib = ibv_alloc_pd(d->ctx);
	if (!p->ib) {
		int r = v_null();

		free(p);
		return r;
	}
	p->pd.dev = dev;
	p->next = d->pds;
	d->pds = p;
	*pd = &p->pd;
	return 0;
}

static void region_drop(struct v_pd *p, struct v_window *w)
{
	ibv_dereg_mr(w->region);
	w->region = NULL;
	p->regions--;
}

/* What closed windows keep: of m, of all with NULL. */
static void regions_drop(struct v_pd *p, const struct v_mr *m)
{
	struct v_window *w;

	for (w = p->spare; w && p->regions; w = w->next)
		if (w->region && (!m || w->mr == m))
			region_drop(p, w);
}

static void pd_spare_free(struct v_pd *p)
{
	regions_drop(p, NULL);
	while (p->spare) {
		struct v_window *w = p->spare;

		p->spare = w->next;
		ibv_dealloc_mw(w->mw);
		free(w);
	}
}

int v_pd_free(struct xr_pd *pd)
{
	struct v_pd *p = v_pd(pd), **pp = &v_dev(pd->dev)->pds;

	if (p->refs)
		return -EBUSY;
	pd_spare_free(p);
	while (*pp != p)
		pp = &(*pp)->next;
	*pp = p->next;
	if (p->ib)
		ibv_dealloc_pd(p->ib);
	free(p);
	return 0;
}

void v_pd_die(struct v_dev *d)
{
	struct v_pd *p;

	for (p = d->pds; p; p = p->next) {
		pd_spare_free(p);
		ibv_dealloc_pd(p->ib);
		p->ib = NULL;
	}
}

/* --- regions ------------------------------------------------------------------------------ */

static unsigned int mr_flags(uint32_t access)
{
	return (access & (XR_ACCESS_LOCAL_WRITE | XR_ACCESS_REMOTE_WRITE) ? IBV_ACCESS_LOCAL_WRITE : 0) |
	       (access & XR_ACCESS_REMOTE_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0) |
	       (access & XR_ACCESS_REMOTE_READ ? IBV_ACCESS_REMOTE_READ : 0);
}

/* "Out of memory" that is none: what may be locked is used up. */
static void mr_memlock(size_t len)
{
	struct rlimit l;

	if (!getrlimit(RLIMIT_MEMLOCK, &l) && l.rlim_cur != RLIM_INFINITY)
		xr_warn("%zu bytes cannot be registered: RLIMIT_MEMLOCK is %llu", len,
			(unsigned long long)l.rlim_cur);
}

/* What is kept for its speed alone does not stand in the way of what is needed. */
static struct ibv_mr *region_new(struct v_pd *p, void *addr, size_t len, unsigned int flags)
{
	struct ibv_mr *ib = ibv_reg_mr(p->ib, addr, len, (int)flags);

	if (ib || !p->regions)
		return ib;
	regions_drop(p, NULL);
	return ibv_reg_mr(p->ib, addr, len, (int)flags);
}

static int mr_new(struct xr_pd *pd, void *addr, size_t len, uint32_t access, int owned, struct xr_mr **mr)
{
	struct v_dev *d = v_dev(pd->dev);
	struct v_mr *m;
	int r;

	if (!d->ctx)
		return -ENODEV;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->ib = region_new(v_pd(pd), addr, len, mr_flags(access) | (d->windows ? IBV_ACCESS_MW_BIND : 0));
	if (!m->ib) {
		r = v_null();
		if (r == -ENOMEM)
			mr_memlock(len);
		free(m);
		return r;
	}
	if (access & XR_ACCESS_REMOTE_WRITE)
		access |= XR_ACCESS_LOCAL_WRITE;
	m->mr.pd = pd;
	m->mr.addr = addr;
	m->mr.len = len;
	m->mr.lkey = m->ib->lkey;
	m->mr.rkey = access & (XR_ACCESS_REMOTE_READ | XR_ACCESS_REMOTE_WRITE) ? m->ib->rkey : 0;
	m->access = access;
	m->owned = (uint8_t)owned;
	m->next = d->mrs;
	d->mrs = m;
	v_pd(pd)->refs++;
	*mr = &m->mr;
	return 0;
}

int v_mr_reg(struct xr_pd *pd, void *addr, size_t len, uint32_t access, struct xr_mr **mr)
{
	if (!len || !addr || (access & ~MR_ACCESS) || (uintptr_t)addr + len < len)
		return -EINVAL;
	return mr_new(pd, addr, len, access, 0, mr);
}

int v_mr_alloc(struct xr_pd *pd, size_t len, uint32_t access, struct xr_mr **mr)
{
	int old = ibv_is_fork_initialized() == IBV_FORK_ENABLED, r;
	struct xr_place want = pd->dev->place;
	struct xr_placed placed;
	void *p = NULL;

	if (!len || (access & ~MR_ACCESS))
		return -EINVAL;
	/* the library takes parts of it from children, which huge pages do not let it */
	if (old)
		want.huge = 0;
	r = xr_place_memory(&len, 0, &want, &placed, &p);
	if (r)
		return r;
	placed.missed |= old && pd->dev->place.huge;
	r = mr_new(pd, p, len, access, 1, mr);
	if (r) {
		munmap(p, len);
		return r;
	}
	(*mr)->placed = placed;
	if (old)
		madvise(p, len, MADV_DOFORK);
	return 0;
}

/* The last of it: the hardware knows no window of it any more. */
static void mr_end(struct v_mr *m)
{
	struct v_dev *d = v_dev(m->mr.pd->dev);
	struct v_mr **pp = &d->mrs;
	int r;

	regions_drop(v_pd(m->mr.pd), m);
	r = m->ib ? v_errno(ibv_dereg_mr(m->ib)) : 0;
	if (r)
		xr_error("memory cannot be given back: error %d", -r);
	while (*pp != m)
		pp = &(*pp)->next;
	*pp = m->next;
	pp = &d->keys[(m->mr.lkey >> 8) % XR_ARRAY_LEN(d->keys)];
	if (*pp == m)
		*pp = NULL;
	v_pd(m->mr.pd)->refs--;
	free(m);
}

int v_mr_dereg(struct xr_mr *mr)
{
	struct v_mr *m = container_of(mr, struct v_mr, mr);

	if (m->windows)
		return -EBUSY;
	/* the device holds the pages themselves, as long as it has to */
	if (m->owned)
		munmap(mr->addr, mr->len);
	m->over = 1;
	if (!m->closing)
		mr_end(m);
	return 0;
}

int v_key_bad(struct v_dev *d, const struct xr_sge *sge, int write)
{
	struct v_mr **slot = &d->keys[(sge->lkey >> 8) % XR_ARRAY_LEN(d->keys)], *m = *slot;
	size_t off;

	if (!m || m->mr.lkey != sge->lkey) {
		for (m = d->mrs; m && m->mr.lkey != sge->lkey; m = m->next)
			;
		if (!m)
			return sge->len != 0;
		*slot = m;
	}
	off = (size_t)((uint8_t *)sge->addr - (uint8_t *)m->mr.addr);
	return m->over || off > m->mr.len || sge->len > m->mr.len - off ||
	       (write && !(m->access & XR_ACCESS_LOCAL_WRITE));
}

void v_mr_die(struct v_dev *d)
{
	struct v_mr *m, *next;

	for (m = d->mrs; m; m = next) {
		next = m->next;
		ibv_dereg_mr(m->ib);
		m->ib = NULL;
		if (m->over)
			mr_end(m);
	}
}

/* --- windows ------------------------------------------------------------------------------ */

/* With the region that it needs, if there is such a one. */
static struct v_window *window_spare(struct v_pd *p, const struct v_mr *m, const void *addr, size_t len,
				     unsigned int flags)
{
	struct v_window **pp, *w;

	for (pp = &p->spare; (w = *pp) != NULL; pp = &w->next)
		if (w->region && w->mr == m && w->region->addr == addr && w->region->length == len &&
		    w->flags == flags)
			break;
	if (!w) {
		/* rather one without, and else the one that was closed first */
		for (pp = &p->spare; (w = *pp) != NULL; pp = &w->next)
			if (!w->next || !w->region)
				break;
		if (w && w->region)
			region_drop(p, w);
	} else {
		p->regions--;
	}
	if (w)
		*pp = w->next;
	return w;
}

static struct v_window *window_get(struct v_qp *q, const struct v_mr *m, const void *addr, size_t len,
				   unsigned int flags)
{
	struct v_pd *p = v_pd(q->qp.pd);
	struct v_window *w = window_spare(p, m, addr, len, flags);

	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return NULL;
		if (v_dev(q->qp.dev)->windows) {
			w->mw = ibv_alloc_mw(p->ib, IBV_MW_TYPE_2);
			if (!w->mw) {
				free(w);
				return NULL;
			}
		}
	}
	w->qp = q;
	w->closing = w->due = 0;
	return w;
}

/* The region that was not used for longest. */
static void region_oldest_drop(struct v_pd *p)
{
	struct v_window *w, *oldest = NULL;

	for (w = p->spare; w; w = w->next)
		if (w->region)
			oldest = w;
	if (oldest)
		region_drop(p, oldest);
}

/* It is in no list. */
static void window_put(struct v_pd *p, struct v_window *w, int usable)
{
	/* a window before what it lies in */
	if (w->mw && !usable) {
		ibv_dealloc_mw(w->mw);
		w->mw = NULL;
	}
	if (w->region) {
		p->regions++;
		if (!w->mw || !w->mr || w->mr->over || w->region->length > V_REGION_MAX)
			region_drop(p, w);
	}
	if (!w->mw) {
		free(w);
		return;
	}
	w->next = p->spare;
	p->spare = w;
	if (p->regions > V_REGIONS)
		region_oldest_drop(p);
}

static void window_unlink(struct v_qp *q, struct v_window *w)
{
	struct v_window **pp = &q->windows;

	while (*pp != w)
		pp = &(*pp)->next;
	*pp = w->next;
}

static int window_bind(struct v_qp *q, struct v_window *w, struct v_mr *m, void *addr, size_t len, uint32_t access,
		       int more)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	if (!w->region && (!w->mw || v_dev(q->qp.dev)->quirk->loose_window)) {
		w->region = region_new(v_pd(q->qp.pd), addr, len, w->flags);
		if (!w->region)
			return v_null();
	}
	if (!w->mw) {
		w->rkey = w->region->rkey;
		return 0;
	}
	/* each life of a window has a key of its own */
	w->rkey = ibv_inc_rkey(w->mw->rkey);
	wr.bind_mw.mw = w->mw;
	wr.bind_mw.rkey = w->rkey;
	wr.bind_mw.bind_info.mr = w->region ? w->region : m->ib;
	wr.bind_mw.bind_info.addr = (uintptr_t)addr;
	wr.bind_mw.bind_info.length = len;
	wr.bind_mw.bind_info.mw_access_flags = mr_flags(access) & ~(unsigned int)IBV_ACCESS_LOCAL_WRITE;
	return v_post_window(q, w, &wr, V_OP_BIND, more);
}

int v_mw_bind(struct xr_qp *qp, struct xr_mr *mr, void *addr, size_t len, uint32_t access, uint32_t *rkey)
{
	struct v_mr *m = container_of(mr, struct v_mr, mr);
	size_t off = (size_t)((uint8_t *)addr - (uint8_t *)mr->addr);
	struct v_qp *q = v_qp(qp);
	int r, more = (access & XR_ACCESS_MORE) != 0;
	unsigned int flags;
	struct v_window *w;

	access &= ~XR_ACCESS_MORE;
	if (!len || off > mr->len || len > mr->len - off || mr->pd != qp->pd || !access ||
	    (access & ~(XR_ACCESS_REMOTE_READ | XR_ACCESS_REMOTE_WRITE)))
		return -EINVAL;
	if ((access & XR_ACCESS_REMOTE_WRITE) && !(m->access & XR_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	if (qp->state != XR_QPS_RTS)
		return -EINVAL;
	flags = mr_flags(access);
	if (v_dev(qp->dev)->windows)
		flags = (flags & IBV_ACCESS_LOCAL_WRITE) | IBV_ACCESS_MW_BIND;
	w = window_get(q, m, addr, len, flags);
	if (!w)
		return -ENOMEM;
	w->mr = m;
	w->flags = flags;
	r = window_bind(q, w, m, addr, len, access, more);
	if (r) {
		window_put(v_pd(qp->pd), w, 1);
		return r;
	}
	w->next = q->windows;
	q->windows = w;
	m->windows++;
	*rkey = w->rkey;
	return 0;
}

void v_window_closed(struct v_qp *q, struct v_window *w)
{
	struct v_mr *m = w->mr;

	window_unlink(q, w);
	window_put(v_pd(q->qp.pd), w, 1);
	if (!--m->closing && m->over)
		mr_end(m);
}

static void window_close(struct v_qp *q, struct v_window *w, int more)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = w->rkey };

	if (!w->mw) {
		v_window_closed(q, w);
		return;
	}
	w->due = v_post_window(q, w, &wr, V_OP_CLOSE, more) != 0;
	q->due += w->due;
}

void v_mw_invalidate(struct xr_qp *qp, uint32_t rkey, uint32_t flags)
{
	struct v_qp *q = v_qp(qp);
	struct v_window *w;

	for (w = q->windows; w && (w->rkey != rkey || w->closing); w = w->next)
		;
	if (!w)
		return;
	w->closing = 1;
	w->mr->windows--;
	w->mr->closing++;
	window_close(q, w, (flags & XR_SEND_MORE) != 0);
}

void v_windows_due(struct v_qp *q)
{
	struct v_window *w;

	for (w = q->windows; w && q->due; w = w->next) {
		if (!w->due)
			continue;
		q->due--;
		window_close(q, w, 1);
		if (w->due)
			return;
	}
}

void v_windows_drop(struct v_qp *q)
{
	uint32_t i;

	/* what is still to complete is not to find them */
	for (i = q->sq_done; i != q->sq_head; i++)
		q->sq[i & q->sq_mask].window = NULL;
	q->due = 0;
	while (q->windows) {
		struct v_window *w = q->windows;
		struct v_mr *m = w->mr;

		q->windows = w->next;
		if (w->closing)
			m->closing--;
		else
			m->windows--;
		window_put(v_pd(q->qp.pd), w, 0);
		if (!m->closing && m->over)
			mr_end(m);
	}
}
