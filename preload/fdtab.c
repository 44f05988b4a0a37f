/* SPDX-License-Identifier: BSD-2-Clause */
#include "fdtab.h"
#include "mem.h"

_Atomic(_Atomic(uintptr_t) *) xr_fdtab[XR_FDTAB_L1];
XR_NEAR _Atomic(uintptr_t) xr_fdtab_near[XR_FDTAB_NEAR];
XR_NEAR _Atomic uint32_t xr_fd_any;
__thread uint32_t xr_helper_thread;
XR_NEAR _Atomic uint32_t xr_helper_any;

#define FDTAB_L2_SIZE	(XR_FDTAB_L2 * sizeof(uintptr_t))

/* As xr_fd_slot(), with a second level where there was none; NULL: out of range, or none to be had. */
static _Atomic(uintptr_t) *fdtab_slot(int fd)
{
	_Atomic(uintptr_t) *slot = xr_fd_slot(fd), *l2, *seen = NULL;

	xr_store_relaxed(&xr_fd_any, 1);
	if (slot || (unsigned int)fd >= XR_FDTAB_L1 * XR_FDTAB_L2)
		return slot;
	l2 = xr_keep_private(FDTAB_L2_SIZE);
	if (!l2)
		return NULL;
	/* tables are never unmapped, look-ups hold no reference; the loser of a race has made one in vain */
	xr_cas(&xr_fdtab[(unsigned int)fd / XR_FDTAB_L2], &seen, l2);
	return xr_fd_slot(fd);
}

uintptr_t xr_fd_entry_far(int fd)
{
	_Atomic(uintptr_t) *slot = xr_fd_slot(fd);

	/* acquire: as in xr_fd_entry */
	return slot ? xr_load_acquire(slot) : 0;
}

uintptr_t xr_fd_set(int fd, void *p, enum xr_fd_kind kind)
{
	_Atomic(uintptr_t) *slot = fdtab_slot(fd);

	return slot ? xr_xchg(slot, (uintptr_t)p | (uintptr_t)kind) : (uintptr_t)-1;
}

void xr_fd_set_new(int fd, void *p, enum xr_fd_kind kind)
{
	_Atomic(uintptr_t) *slot = fdtab_slot(fd);
	uintptr_t none = 0;

	if (slot)
		xr_cas(slot, &none, (uintptr_t)p | (uintptr_t)kind);
}

int xr_fd_next(int fd)
{
	unsigned int i = fd < 0 ? 0 : (unsigned int)fd;

	for (; i < XR_FDTAB_NEAR; i++)
		if (xr_load_relaxed(&xr_fdtab_near[i]))
			return (int)i;
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
