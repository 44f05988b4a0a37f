/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of the program, at addresses that it gave us and that may be bad: the kernel says
 * EFAULT then, and so do we.  All that is read and written there on behalf of a flow goes
 * through these, or through the kernel.
 */
#ifndef XR_USER_H
#define XR_USER_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include "atomic.h"
#include "usercopy.h"

/*
 * From the first flow on that moves to a fabric: a fault in a copy makes it fail.  The
 * handlers of SIGSEGV and SIGBUS that this takes are not there before (fault.c).
 */
void xr_user_guard(void);

/* 1: xr_user_guard() was called; no flow of this process is on a fabric, or was, before. */
extern _Atomic uint32_t xr_user_moved;

/* Those handlers are there: written under the lock of signal.c, read anywhere. */
extern _Atomic uint32_t xr_user_guarded;

/* Where the kernel takes the program's addresses to end; it looks at ranges before all else. */
extern _Atomic uintptr_t xr_user_end;

static inline int xr_user_range(const void *user, size_t n)
{
	uintptr_t end = xr_load_relaxed(&xr_user_end);

	return n <= end && (uintptr_t)user <= end - n;
}

/* The same for what no call exceeds, XR_RW_MAX: less than any end. */
static inline int xr_user_buffer(const void *user, size_t n)
{
	return (uintptr_t)user <= xr_load_relaxed(&xr_user_end) - n;
}

/*
 * The slow way, without the handlers: asks the kernel about each page.  0 or -EFAULT.  Only
 * what is aligned to 8 bytes is asked about before it is written: a set of select(2), a time.
 */
int xr_user_get_asking(void *dst, const void *user, size_t n);
int xr_user_put_asking(void *user, const void *src, size_t n);

/* A structure from the program.  0 or -EFAULT. */
static inline int xr_user_get(void *dst, const void *user, size_t n)
{
	/* acquire: pairs with the store after the handlers were installed */
	return xr_likely(xr_load_acquire(&xr_user_guarded)) ? xr_copy_from_user(dst, user, n) :
							     xr_user_get_asking(dst, user, n);
}

/* A structure to the program.  0 or -EFAULT. */
static inline int xr_user_put(void *user, const void *src, size_t n)
{
	return xr_likely(xr_load_acquire(&xr_user_guarded)) ? xr_copy_to_user(user, src, n) :
							     xr_user_put_asking(user, src, n);
}

#endif
