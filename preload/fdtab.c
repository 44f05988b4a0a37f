/* SPDX-License-Identifier: BSD-2-Clause */
#include "fdtab.h"
#include "mem.h"

_Atomic(_Atomic(uintptr_t) *) xr_fdtab[XR_FDTAB_L1];
_Atomic uint32_t xr_fd_any;
__thread uint32_t xr_helper_thread;

#define FDTAB_L2_SIZE	(XR_FDTAB_L2 * sizeof(uintptr_t))

/* The second level that holds fd; NULL: out of range, or none and none to be had. */
static _Atomic(uintptr_t) *fdtab_l2(int fd, int make)
{
	_Atomic(_Atomic(uintptr_t) *) *l1;
	_Atomic(uintptr_t) *l2, *seen = NULL;

	if ((unsigned int)fd >= XR_FDTAB_L1 * XR_FDTAB_L2)
		return NULL;
	l1 = &xr_fdtab[(unsigned int)fd / XR_FDTAB_L2];
	l2 = xr_load_acquire(l1);
	if (l2 || !make)
		return l2;
	xr_store_relaxed(&xr_fd_any, 1);
	l2 = xr_map_private(FDTAB_L2_SIZE);
	if (!l2)
		return NULL;
	/* tables are never unmapped, look-ups hold no reference; the loser of a race unmaps its own */
	if (xr_cas(l1, &seen, l2))
		return l2;
	xr_unmap((void *)l2, FDTAB_L2_SIZE);
	return seen;
}

uintptr_t xr_fd_set(int fd, void *p, enum xr_fd_kind kind)
{
	_Atomic(uintptr_t) *l2 = fdtab_l2(fd, 1);

	if (!l2)
		return (uintptr_t)-1;
	return xr_xchg(&l2[(unsigned int)fd % XR_FDTAB_L2], (uintptr_t)p | (uintptr_t)kind);
}

void xr_fd_set_new(int fd, void *p, enum xr_fd_kind kind)
{
	_Atomic(uintptr_t) *l2 = fdtab_l2(fd, 1);
	uintptr_t none = 0;

	if (l2)
		xr_cas(&l2[(unsigned int)fd % XR_FDTAB_L2], &none, (uintptr_t)p | (uintptr_t)kind);
}

int xr_fd_swap(int fd, uintptr_t from, void *p, enum xr_fd_kind kind)
{
	_Atomic(uintptr_t) *l2 = fdtab_l2(fd, 0);

	return l2 && xr_cas(&l2[(unsigned int)fd % XR_FDTAB_L2], &from, (uintptr_t)p | (uintptr_t)kind);
}

uintptr_t xr_fd_take(int fd)
{
	_Atomic(uintptr_t) *l2 = fdtab_l2(fd, 0);

	if (!l2 || !xr_load_relaxed(&l2[(unsigned int)fd % XR_FDTAB_L2]))
		return 0;
	return xr_xchg(&l2[(unsigned int)fd % XR_FDTAB_L2], 0);
}

int xr_fd_next(int fd)
{
	unsigned int i = fd < 0 ? 0 : (unsigned int)fd;

	while (i < XR_FDTAB_L1 * XR_FDTAB_L2) {
		_Atomic(uintptr_t) *l2 = xr_load_acquire(&xr_fdtab[i / XR_FDTAB_L2]);

		if (!l2) {
			i = (i / XR_FDTAB_L2 + 1) * XR_FDTAB_L2;
			continue;
		}
		do {
			if (xr_load_relaxed(&l2[i % XR_FDTAB_L2]))
				return (int)i;
		} while (++i % XR_FDTAB_L2);
	}
	return -1;
}

void xr_fd_each(void (*fn)(void *arg, int fd, uintptr_t entry), void *arg)
{
	int fd;

	for (fd = xr_fd_next(0); fd >= 0; fd = xr_fd_next(fd + 1)) {
		uintptr_t e = xr_fd_entry(fd);

		/* it may have gone since */
		if (e)
			fn(arg, fd, e);
	}
}
