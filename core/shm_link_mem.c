/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of links that ended: it stays mapped, empty, for the next one.  Who looks for a link without a lock
 * (xr_shm_link_try_ref) may come too late, and finds no references there, or those of another link.
 */
#include <sys/mman.h>
#include <sys/syscall.h>
#include "defer.h"
#include "mem.h"
#include "shm_link.h"

/* Whole after each single store, since a child may be forked between any two. */
static struct xr_shm_link *link_spare;
/* The process that is at it, 0: none.  A child that was forked meanwhile has no thread that would ever let go. */
static _Atomic uint32_t link_spare_lock;

static void spare_lock(void)
{
	uint32_t self = (uint32_t)xr_sys0(SYS_getpid), is = 0;

	xr_defer_begin();
	/* when links are made and end, a few instructions */
	while (!xr_cas(&link_spare_lock, &is, self)) {
		if (is == self) {
			xr_sys0(SYS_sched_yield);
			is = 0;
		}
		/* else it is the parent's: the next exchange takes it from there */
	}
}

static void spare_unlock(void)
{
	/* release: pairs with the cas of the next holder */
	xr_store_release(&link_spare_lock, 0);
	xr_defer_end();
}

struct xr_shm_link *xr_shm_link_memory(size_t len)
{
	struct xr_shm_link **pp, *l;

	spare_lock();
	for (pp = &link_spare; *pp && (*pp)->map_len != len; pp = &(*pp)->next)
		;
	l = *pp;
	if (l)
		*pp = l->next;
	spare_unlock();
	if (!l)
		return xr_map_private(len);
	l->next = NULL;
	return l;
}

void xr_shm_link_memory_put(struct xr_shm_link *l)
{
	size_t len = l->map_len;

	/* zeros from here on, which take no memory */
	xr_sys3(SYS_madvise, l, len, MADV_DONTNEED);
	l->map_len = len;
	spare_lock();
	l->next = link_spare;
	link_spare = l;
	spare_unlock();
}
