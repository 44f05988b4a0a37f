/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies to and from memory that belongs to the program, which may have given us any address.
 *
 * The copies are a marked range of instructions.  A signal handler that finds a fault among
 * them, at an address of the program's side, lets them return -EFAULT (preload/fault.c).
 * Nothing is noted before a copy and nothing undone after it, so it costs no more than
 * memcpy(), and signal handlers may copy in the middle of one.  Without the handler a fault
 * is what it is in memcpy().
 *
 * After -EFAULT a part of the bytes may have been copied.
 */
#ifndef XR_USERCOPY_H
#define XR_USERCOPY_H

#include <stddef.h>
#include <stdint.h>

/* 0 or -EFAULT.  The buffers do not overlap. */
int xr_copy_to_user(void *user, const void *src, size_t n);
int xr_copy_from_user(void *dst, const void *user, size_t n);

/*
 * For the handler: the fault at this address, in the thread with this context, is one of a
 * copy, and the context has been changed to go on behind it.  `any`: the processor did not
 * say the address.
 */
int xr_usercopy_fixup(void *context, uintptr_t addr, int any);

#endif
