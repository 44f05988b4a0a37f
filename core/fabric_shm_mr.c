/* SPDX-License-Identifier: BSD-2-Clause */
/* Protection domains, memory regions and windows of the shm device. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fabric_shm.h"

#define KEY_ACCESS	(XR_ACCESS_LOCAL_WRITE | XR_ACCESS_REMOTE_WRITE | XR_ACCESS_REMOTE_READ)

int shm_pd_alloc(struct xr_dev *dev, struct xr_pd **pd)
{
	struct shm_pd *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->pd.dev = dev;
	shm_dev(dev)->npd++;
	*pd = &p->pd;
	return 0;
}

int shm_pd_free(struct xr_pd *pd)
{
	struct shm_pd *p = container_of(pd, struct shm_pd, pd);

	if (p->refs)
		return -EBUSY;
	shm_dev(pd->dev)->npd--;
	free(p);
	return 0;
}

/* A key is index + 1 : 24 | generation : 8, so that an old one does not fit a new entry. */
static int key_new(struct shm_dev *d, uint32_t *key)
{
	uint32_t i, n = d->nkeys ? 2 * d->nkeys : 64;
	struct shm_key *k;

	if (d->key_free == SHM_KEY_NONE) {
		if (n >= 1u << 24)
			return -ENOMEM;
		k = realloc(d->keys, n * sizeof(*k));
		if (!k)
			return -ENOMEM;
		d->keys = k;
		memset(k + d->nkeys, 0, (n - d->nkeys) * sizeof(*k));
		for (i = n; i-- > d->nkeys; ) {
			k[i].next = d->key_free;
			d->key_free = i;
		}
		d->nkeys = n;
	}
	i = d->key_free;
	d->key_free = d->keys[i].next;
	d->keys[i].used = 1;
	d->keys[i].gen++;
	*key = ((i + 1) << 8) | d->keys[i].gen;
	return 0;
}

static struct shm_key *key_find(struct shm_dev *d, uint32_t key)
{
	uint32_t i = (key >> 8) - 1;

	if (i >= d->nkeys || !d->keys[i].used || d->keys[i].gen != (uint8_t)key)
		return NULL;
	return &d->keys[i];
}

static void key_free(struct shm_dev *d, struct shm_key *k)
{
	k->used = 0;
	k->qp = NULL;
	k->next = d->key_free;
	d->key_free = (uint32_t)(k - d->keys);
}

void *shm_key_check(struct shm_dev *d, uint32_t key, uint64_t addr, uint64_t len, uint32_t access,
		    const struct shm_qp *q, int remote)
{
	struct shm_key *k;
	uint64_t base;

	if (!len)
		return (void *)(uintptr_t)addr;
	k = key_find(d, key);
	if (!k || (k->access & access) != access || k->pd != q->qp.pd)
		return NULL;
	/* a window is open to one peer, and to nobody at this end */
	if (k->qp && (!remote || k->qp != q))
		return NULL;
	base = (uintptr_t)k->addr;
	if (addr < base || len > k->len || addr - base > k->len - len)
		return NULL;
	return k->addr + (addr - base);
}

static int mr_new(struct xr_pd *pd, void *addr, size_t len, uint32_t access, int owned,
		  struct xr_mr **mr)
{
	struct shm_dev *d = shm_dev(pd->dev);
	struct shm_mr *m = calloc(1, sizeof(*m));
	struct shm_key *k;
	uint32_t key;
	int r;

	if (!m)
		return -ENOMEM;
	r = key_new(d, &key);
	if (r) {
		free(m);
		return r;
	}
	if (access & XR_ACCESS_REMOTE_WRITE)
		access |= XR_ACCESS_LOCAL_WRITE;
	k = key_find(d, key);
	k->addr = addr;
	k->len = len;
	k->pd = pd;
	k->mr = m;
	k->access = access;
	m->mr.pd = pd;
	m->mr.addr = addr;
	m->mr.len = len;
	m->mr.lkey = key;
	m->mr.rkey = access & (XR_ACCESS_REMOTE_READ | XR_ACCESS_REMOTE_WRITE) ? key : 0;
	m->access = access;
	m->owned = (uint8_t)owned;
	container_of(pd, struct shm_pd, pd)->refs++;
	d->nmr++;
	*mr = &m->mr;
	return 0;
}

int shm_mr_reg(struct xr_pd *pd, void *addr, size_t len, uint32_t access, struct xr_mr **mr)
{
	if (!len || !addr || (access & ~KEY_ACCESS) || (uintptr_t)addr + len < len)
		return -EINVAL;
	return mr_new(pd, addr, len, access, 0, mr);
}

int shm_mr_alloc(struct xr_pd *pd, size_t len, uint32_t access, struct xr_mr **mr)
{
	struct xr_placed placed;
	void *p = NULL;
	int r;

	if (!len || (access & ~KEY_ACCESS))
		return -EINVAL;
	r = xr_place_memory(&len, MAP_NORESERVE, &pd->dev->place, &placed, &p);
	if (r)
		return r;
	r = mr_new(pd, p, len, access, 1, mr);
	if (r)
		munmap(p, len);
	else
		(*mr)->placed = placed;
	return r;
}

int shm_mr_dereg(struct xr_mr *mr)
{
	struct shm_mr *m = container_of(mr, struct shm_mr, mr);
	struct shm_dev *d = shm_dev(mr->pd->dev);

	if (m->windows)
		return -EBUSY;
	key_free(d, key_find(d, mr->lkey));
	container_of(mr->pd, struct shm_pd, pd)->refs--;
	d->nmr--;
	if (m->owned)
		munmap(mr->addr, mr->len);
	free(m);
	return 0;
}

int shm_mw_bind(struct xr_qp *qp, struct xr_mr *mr, void *addr, size_t len, uint32_t access,
		uint32_t *rkey)
{
	struct shm_dev *d = shm_dev(qp->dev);
	struct shm_mr *m = container_of(mr, struct shm_mr, mr);
	size_t off = (size_t)((uint8_t *)addr - (uint8_t *)mr->addr);
	struct shm_key *k;
	uint32_t key;
	int r;

	access &= ~XR_ACCESS_MORE;
	if (!len || off > mr->len || len > mr->len - off || mr->pd != qp->pd || !access ||
	    (access & ~(XR_ACCESS_REMOTE_READ | XR_ACCESS_REMOTE_WRITE)))
		return -EINVAL;
	if ((access & XR_ACCESS_REMOTE_WRITE) && !(m->access & XR_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	if (qp->state == XR_QPS_ERR || qp->state == XR_QPS_RESET)
		return -EINVAL;
	r = key_new(d, &key);
	if (r)
		return r;
	k = key_find(d, key);
	k->addr = addr;
	k->len = len;
	k->pd = mr->pd;
	k->mr = m;
	k->access = access;
	k->qp = shm_qp(qp);
	m->windows++;
	*rkey = key;
	return 0;
}

/* Nothing is posted for it. */
void shm_mw_invalidate(struct xr_qp *qp, uint32_t rkey, uint32_t flags)
{
	struct shm_dev *d = shm_dev(qp->dev);
	struct shm_key *k = key_find(d, rkey);

	(void)flags;
	if (!k || k->qp != shm_qp(qp))
		return;
	k->mr->windows--;
	key_free(d, k);
}

void shm_key_drop_qp(struct shm_dev *d, struct shm_qp *q)
{
	uint32_t i;

	for (i = 0; i < d->nkeys; i++) {
		if (d->keys[i].used && d->keys[i].qp == q) {
			d->keys[i].mr->windows--;
			key_free(d, &d->keys[i]);
		}
	}
}
