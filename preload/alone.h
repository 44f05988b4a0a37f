/* SPDX-License-Identifier: BSD-2-Clause */
/* Whether this thread is the program's only one, but for threads of ours, and when those are gone. */
#ifndef XR_ALONE_H
#define XR_ALONE_H

#include <stdint.h>
#include "atomic.h"

/* Of a thread that is to say by its kernel id that it is there (release).  0: there is none. */
#define XR_THREAD_COMES	UINT32_MAX

/* 1: of the n there are some, and nothing but them beside this one, as far as anybody can say. */
int xr_threads_alone(_Atomic uint32_t *const tid[], int n);

/* 0: the kernel has forgotten the thread, and the word is 0; -EBUSY: not by `end` (xr_now_ns). */
int xr_thread_goes(_Atomic uint32_t *tid, uint64_t end);

/*
 * From here on descriptors are this thread's own: of the program's it keeps none but `cmd`.  What a library writes to
 * its standard error is nobody's.  0 or -errno.
 */
int xr_thread_apart(int cmd);

#endif
