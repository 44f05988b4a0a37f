/* SPDX-License-Identifier: BSD-2-Clause */
/* Registered buffers in size classes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "log.h"
#include "mem.h"
#include "pool.h"

/* 4224: an eager message of 4 KiB with what stands in front of it. */
static const uint32_t class_size[XR_POOL_CLASSES] = {
	256, 1024, 4224, 16384, 65536 + 128, 262144 + 128, 1048576, XR_POOL_ARENA
};

#define NO_CLASS XR_POOL_CLASSES	/* an arena for one large request */

struct xr_arena {
	struct xr_arena *next;				/* all of the pool */
	struct xr_arena *part_next, **part_prev;	/* those with a free buffer; prev NULL: none */
	struct xr_pool *pool;
	struct xr_mr *mr;
	size_t len, size;	/* of the arena, of one buffer */
	uint32_t class, count, nfree;
	uint32_t *stack;	/* indexes of free buffers, the last one put on top: warm */
	uint64_t *out;		/* a bit per buffer */
	uint8_t huge, far;	/* counted in the pool */
};

static void part_add(struct xr_pool *p, struct xr_arena *a)
{
	struct xr_arena **head = &p->part[a->class];

	a->part_next = *head;
	a->part_prev = head;
	if (*head)
		(*head)->part_prev = &a->part_next;
	*head = a;
}

static void part_remove(struct xr_arena *a)
{
	if (!a->part_prev)
		return;
	*a->part_prev = a->part_next;
	if (a->part_next)
		a->part_next->part_prev = a->part_prev;
	a->part_prev = NULL;
}

/* Cuts an empty arena. */
static int arena_cut(struct xr_arena *a, uint32_t class)
{
	size_t size = class == NO_CLASS ? a->len : class_size[class];
	uint32_t i, count = (uint32_t)(a->len / size);
	uint32_t *stack = malloc(count * sizeof(*stack));
	uint64_t *out = calloc((count + 63) / 64, sizeof(*out));

	if (!stack || !out) {
		free(stack);
		free(out);
		return -ENOMEM;
	}
	free(a->stack);
	free(a->out);
	for (i = 0; i < count; i++)
		stack[i] = count - 1 - i;
	a->stack = stack;
	a->out = out;
	a->class = class;
	a->size = size;
	a->count = a->nfree = count;
	return 0;
}

static void arena_free(struct xr_arena *a)
{
	struct xr_pool *p = a->pool;
	struct xr_arena **pp = &p->all;
	int r;

	while (*pp != a)
		pp = &(*pp)->next;
	*pp = a->next;
	part_remove(a);
	r = p->ops->mr_dereg(a->mr);
	if (r)
		xr_error("a pool arena of %zu bytes cannot be given back: error %d", a->len, -r);
	p->used -= a->len;
	p->huge -= a->huge ? a->len : 0;
	p->far -= a->far ? a->len : 0;
	free(a->stack);
	free(a->out);
	free(a);
}

static int arena_new(struct xr_pool *p, size_t len, uint32_t class, struct xr_arena **arena)
{
	struct xr_arena *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return -ENOMEM;
	a->pool = p;
	a->len = len;
	r = p->ops->mr_alloc(p->pd, len, XR_ACCESS_LOCAL_WRITE, &a->mr);
	if (r) {
		xr_warn("no registered memory, %zu bytes: error %d", len, -r);
		goto free_arena;
	}
	r = arena_cut(a, class);
	if (r)
		goto dereg;
	a->next = p->all;
	p->all = a;
	p->used += len;
	a->huge = a->mr->placed.huge;
	p->huge += a->huge ? len : 0;
	p->missed += a->mr->placed.missed;
	p->refused += a->mr->placed.refused;
	*arena = a;
	return 0;
dereg:
	p->ops->mr_dereg(a->mr);
free_arena:
	free(a);
	return r;
}

static struct xr_arena *find_empty(struct xr_pool *p)
{
	struct xr_arena *a;

	for (a = p->all; a; a = a->next)
		if (a->nfree == a->count && a->len == XR_POOL_ARENA)
			return a;
	return NULL;
}

/* An arena with a free buffer for this class. */
static int arena_get(struct xr_pool *p, size_t len, uint32_t class, struct xr_arena **arena)
{
	struct xr_arena *a;
	int r;

	if (p->used + len <= p->budget)
		return arena_new(p, len, class, arena);
	if (class != NO_CLASS) {
		a = find_empty(p);
		if (!a)
			return -ENOBUFS;
		part_remove(a);
		r = arena_cut(a, class);
		if (r) {
			part_add(p, a);
			return r;
		}
		*arena = a;
		return 0;
	}
	/* several empty ones may make room for a large one */
	while (p->used + len > p->budget) {
		a = find_empty(p);
		if (!a)
			return -ENOBUFS;
		arena_free(a);
	}
	return arena_new(p, len, class, arena);
}

int xr_pool_init(struct xr_pool *p, const struct xr_fabric_ops *ops, struct xr_pd *pd,
		 uint64_t budget)
{
	if (budget < XR_POOL_ARENA)
		return -EINVAL;
	memset(p, 0, sizeof(*p));
	p->ops = ops;
	p->pd = pd;
	p->budget = budget;
	return 0;
}

int xr_pool_destroy(struct xr_pool *p)
{
	if (p->bufs)
		return -EBUSY;
	while (p->all)
		arena_free(p->all);
	return 0;
}

void xr_pool_trim(struct xr_pool *p)
{
	struct xr_arena *a;

	while ((a = find_empty(p)))
		arena_free(a);
}

void xr_pool_look(struct xr_pool *p)
{
	int node = xr_place_node(&p->pd->dev->place), r;
	struct xr_arena *a;

	p->far = 0;
	for (a = p->all; a; a = a->next) {
		r = node < 0 ? 0 : xr_place_far(a->mr->addr, a->mr->len, node);
		if (r < 0)
			xr_info("the kernel does not say where memory lies: error %d", -r);
		a->far = r > 0;
		p->far += a->far ? a->len : 0;
	}
}

int xr_pool_get(struct xr_pool *p, size_t len, struct xr_buf *buf)
{
	size_t arena_len = XR_POOL_ARENA;
	struct xr_arena *a = NULL;
	uint32_t class = 0, i;
	int r;

	if (!len)
		return -EINVAL;
	while (class < XR_POOL_CLASSES && class_size[class] < len)
		class++;
	if (class == NO_CLASS) {
		if (len > p->budget)
			return -EMSGSIZE;
		arena_len = XR_ALIGN(len, (size_t)4096);
		if (arena_len > p->budget)
			return -EMSGSIZE;
	} else {
		a = p->part[class];
	}
	if (!a) {
		r = arena_get(p, arena_len, class, &a);
		if (r)
			return r;
		if (class != NO_CLASS)
			part_add(p, a);
	}
	i = a->stack[--a->nfree];
	a->out[i / 64] |= 1ull << (i % 64);
	if (!a->nfree)
		part_remove(a);
	p->bufs++;
	buf->addr = (uint8_t *)a->mr->addr + (size_t)i * a->size;
	buf->size = a->size;
	buf->mr = a->mr;
	buf->arena = a;
	buf->index = i;
	return 0;
}

int xr_pool_put(struct xr_pool *p, struct xr_buf *buf)
{
	struct xr_arena *a;
	uint32_t i = buf->index;

	/* by the list, not by the pointer: the arena of a large buffer goes with it */
	for (a = p->all; a && a != buf->arena; a = a->next)
		;
	if (!a || i >= a->count || buf->addr != (uint8_t *)a->mr->addr + (size_t)i * a->size ||
	    !(a->out[i / 64] & 1ull << (i % 64))) {
		xr_error("a pool buffer was freed twice, or is none");
		return -EINVAL;
	}
	a->out[i / 64] &= ~(1ull << (i % 64));
	a->stack[a->nfree++] = i;
	p->bufs--;
	memset(buf, 0, sizeof(*buf));
	if (a->class == NO_CLASS)
		arena_free(a);
	else if (!a->part_prev)
		part_add(p, a);
	return 0;
}
