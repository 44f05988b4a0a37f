/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Descriptor number -> what we know of it.  An entry is one atomic word: a pointer
 * with its kind in the low bits.  Look-up takes no lock; two levels, the second
 * mapped on demand.  Entries are private to the process and copied by fork.
 */
#ifndef XR_FDTAB_H
#define XR_FDTAB_H

#include <stddef.h>
#include <stdint.h>
#include "atomic.h"

struct xr_flow;
struct xr_epoll;

/* LISTEN: no pointer, the entry is XR_FD_LISTENER(address family) */
enum xr_fd_kind { XR_FD_NONE = 0, XR_FD_FLOW = 1, XR_FD_EPOLL = 2, XR_FD_LISTEN = 3 };

#define XR_FD_LISTENER(family)	((void *)((uintptr_t)(family) << 2))

#define XR_FDTAB_L2	8192u	/* few mappings: each is one more for a fork to copy */
#define XR_FDTAB_L1	128u
#define XR_FDTAB_NEAR	128u		/* those below, which few programs exceed, have a table that is there */

extern _Atomic(_Atomic(uintptr_t) *) xr_fdtab[XR_FDTAB_L1];
extern _Atomic(uintptr_t) xr_fdtab_near[XR_FDTAB_NEAR];

/* 1: this thread has descriptors of its own, and no business with the table (helper.h). */
extern __thread uint32_t xr_helper_thread;
/* 0: there never was such a thread. */
extern _Atomic uint32_t xr_helper_any;

/* 1: there is, or was, an entry.  Programs without one are left alone altogether. */
extern _Atomic uint32_t xr_fd_any;

/* Where the entry of fd is; NULL: there is none, or no room for it. */
static inline _Atomic(uintptr_t) *xr_fd_slot(int fd)
{
	_Atomic(uintptr_t) *l2;

	if (xr_likely((unsigned int)fd < XR_FDTAB_NEAR))
		return &xr_fdtab_near[fd];
	if (xr_unlikely((unsigned int)fd >= XR_FDTAB_L1 * XR_FDTAB_L2))
		return NULL;
	/* acquire: pairs with the cas in fdtab.c, the table is empty */
	l2 = xr_load_acquire(&xr_fdtab[(unsigned int)fd / XR_FDTAB_L2]);
	return xr_likely(l2 != NULL) ? &l2[(unsigned int)fd % XR_FDTAB_L2] : NULL;
}

/* Out of line: of a number that is not near. */
uintptr_t xr_fd_entry_far(int fd);

static inline uintptr_t xr_fd_entry(int fd)
{
	/* acquire: pairs with the releases in xr_fd_set, what it points to is complete */
	uintptr_t e = xr_likely((unsigned int)fd < XR_FDTAB_NEAR) ? xr_load_acquire(&xr_fdtab_near[fd]) :
								  xr_fd_entry_far(fd);

	return xr_unlikely(e && xr_load_relaxed(&xr_helper_any)) && xr_helper_thread ? 0 : e;
}

static inline struct xr_flow *xr_fd_flow(int fd)
{
	uintptr_t e = xr_fd_entry(fd);

	return (e & 3) == XR_FD_FLOW ? (struct xr_flow *)(e & ~(uintptr_t)3) : NULL;
}

static inline struct xr_epoll *xr_fd_epoll(int fd)
{
	uintptr_t e = xr_fd_entry(fd);

	return (e & 3) == XR_FD_EPOLL ? (struct xr_epoll *)(e & ~(uintptr_t)3) : NULL;
}

/* Sets the entry of a number that the kernel has just given out.  1, or 0: there is no table for it. */
static inline int xr_fd_put(int fd, uintptr_t entry)
{
	_Atomic(uintptr_t) *slot = xr_fd_slot(fd);

	if (xr_unlikely(!slot))
		return 0;
	if (xr_unlikely(!xr_load_relaxed(&xr_fd_any)))
		xr_store_relaxed(&xr_fd_any, 1);
	/* release: pairs with xr_fd_entry, the flow is complete */
	xr_store_release(slot, entry);
	return 1;
}

/* Sets the entry, returns the old one.  -1 cast to uintptr_t when there is no memory. */
uintptr_t xr_fd_set(int fd, void *p, enum xr_fd_kind kind);
/* Sets the entry unless there is one. */
void xr_fd_set_new(int fd, void *p, enum xr_fd_kind kind);
/* Replaces the entry when it is this one: 1, else 0. */
static inline int xr_fd_swap(int fd, uintptr_t from, void *p, enum xr_fd_kind kind)
{
	_Atomic(uintptr_t) *slot = xr_fd_slot(fd);

	return slot && xr_cas(slot, &from, (uintptr_t)p | (uintptr_t)kind);
}

/* Takes the entry out: exactly one of several racing callers gets it. */
static inline uintptr_t xr_fd_take(int fd)
{
	_Atomic(uintptr_t) *slot = xr_fd_slot(fd);

	return slot && xr_load_relaxed(slot) ? xr_xchg(slot, 0) : 0;
}

/* The first descriptor >= fd that has an entry, -1 when there is none. */
int xr_fd_next(int fd);
/* Calls fn for each descriptor that has an entry. */
void xr_fd_each(void (*fn)(void *arg, int fd, uintptr_t entry), void *arg);

#endif
