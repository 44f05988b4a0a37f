/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of epoll files: type-stable, never given back.  What a forked child has no use for is wiped
 * there, since a fork copies the page tables of the rest.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "mem.h"
#include "ready.h"

#define POOL_CHUNK	65536u

struct ep_pool {
	size_t size, next_off;		/* of an object; of the link in a free one */
	void *(*map)(size_t len);	/* a piece that begins with a header */
	uint8_t *fresh;
	size_t left;
	_Atomic(void *) free;
};

/* What xr_keep_own gave, each piece with a link to the one before. */
struct ep_chunk {
	struct ep_chunk *before;
	size_t len;
} __attribute__((aligned(XR_CACHELINE)));

static _Atomic(struct ep_chunk *) own_chunks;

/* len bytes, its header among them, that mean nothing to a child. */
static void *own_new(size_t len)
{
	struct ep_chunk *c = xr_keep_own(len), *before = xr_load_relaxed(&own_chunks);

	if (!c)
		return NULL;
	c->len = len;
	do {
		c->before = before;
		/* release by the exchange: pairs with xr_epoll_forking */
	} while (!xr_cas(&own_chunks, &before, c));
	return c;
}

static struct ep_pool pools[] = {
	[XR_EP_MEM_FILE] = { .size = sizeof(struct xr_epoll), .map = xr_keep_private,
		.next_off = offsetof(struct xr_epoll, next_free) },
	[XR_EP_MEM_REG] = { .size = sizeof(struct xr_epreg), .map = own_new,
		.next_off = offsetof(struct xr_epreg, hash_next) },
	[XR_EP_MEM_FLOW] = { .size = sizeof(struct xr_epflow), .map = own_new,
		.next_off = offsetof(struct xr_epflow, next_free) },
	[XR_EP_MEM_LINK] = { .size = sizeof(struct xr_eplink), .map = own_new,
		.next_off = offsetof(struct xr_eplink, next) },
};

static int pool_more(struct ep_pool *p)
{
	struct ep_chunk *c = p->map(POOL_CHUNK);

	if (!c)
		return -ENOMEM;
	p->fresh = (uint8_t *)(c + 1);
	p->left = POOL_CHUNK - sizeof(*c);
	return 0;
}

static void **pool_next(const struct ep_pool *p, void *o)
{
	return (void **)((uint8_t *)o + p->next_off);
}

void *xr_ep_mem_get(enum xr_ep_mem kind)
{
	struct ep_pool *p = &pools[kind];
	/* one thread takes out at a time, so that no object can come back meanwhile */
	void *o = xr_load_acquire(&p->free);

	while (o)
		if (xr_cas(&p->free, &o, *pool_next(p, o)))
			return o;
	if (p->left < p->size && pool_more(p))
		return NULL;
	o = p->fresh;
	p->fresh += p->size;
	p->left -= p->size;
	return o;
}

void xr_ep_mem_put(enum xr_ep_mem kind, void *o)
{
	struct ep_pool *p = &pools[kind];
	void *head = xr_load_relaxed(&p->free);

	do {
		*pool_next(p, o) = head;
	} while (!xr_cas(&p->free, &head, o));
}

/* ---- tables ---------------------------------------------------------------- */

#define TABLES	8u	/* sizes */

/* Larger tables than the first of a file; the next one of a size is named by its first word. */
static struct ep_table {
	void *next;
} *table_free[TABLES];
static struct xr_lock table_lock;

/* Which size, by the number of buckets: XR_EP_BUCKETS << 2 is 0, each next one four times as large. */
static uint32_t table_size(uint32_t n)
{
	return ((uint32_t)__builtin_ctz(n / XR_EP_BUCKETS) / 2) - 1;
}

struct xr_epreg **xr_ep_table_get(uint32_t n)
{
	uint32_t size = table_size(n);
	struct ep_table *t = NULL;
	struct ep_chunk *c;

	if (size >= TABLES || xr_lock(&table_lock))
		return NULL;
	t = table_free[size];
	if (t)
		table_free[size] = t->next;
	xr_unlock(&table_lock);
	if (!t) {
		c = own_new(sizeof(*c) + n * sizeof(struct xr_epreg *));
		return c ? (struct xr_epreg **)(c + 1) : NULL;
	}
	memset(t, 0, n * sizeof(struct xr_epreg *));
	return (struct xr_epreg **)t;
}

void xr_ep_table_put(struct xr_epreg **b, uint32_t n)
{
	struct ep_table *t = (struct ep_table *)b;

	/* a handler on top of who takes one: it is lost */
	if (xr_lock(&table_lock))
		return;
	t->next = table_free[table_size(n)];
	table_free[table_size(n)] = t;
	xr_unlock(&table_lock);
}

/* ---- fork ------------------------------------------------------------------ */

void xr_epoll_forking(int keep)
{
	struct ep_chunk *c = xr_load_acquire(&own_chunks);

	for (; c; c = c->before)
		xr_sys3(SYS_madvise, c, c->len, keep ? MADV_KEEPONFORK : MADV_WIPEONFORK);
}

void xr_ep_mem_forked(void)
{
	size_t i;

	/* locks and free lists may have been caught in the middle of anything */
	for (i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		pools[i].left = 0;
		xr_store_relaxed(&pools[i].free, NULL);
	}
	memset(table_free, 0, sizeof(table_free));
	xr_store_relaxed(&table_lock.owner, 0);
}
