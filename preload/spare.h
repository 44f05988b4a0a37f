/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Descriptors of ours that the program needs.
 *
 * Where the hard limit of open files leaves no numbers above the soft one, ours take some
 * that the program could have (core/mem.h).  They are given back before it misses them: all
 * flows return to TCP, and what served them is closed.  That happens when a new descriptor of the
 * program's has come near the limit, and when a call fails for want of one; it is made again then.
 */
#ifndef XR_SPARE_H
#define XR_SPARE_H

#include <errno.h>
#include "atomic.h"
#include "mem.h"

/* The program has got fd, which is near its limit.  No lock may be held.  Keeps errno. */
void xr_spare_near(int fd);
/* A call of the program's found none.  1: something was closed, try again.  Keeps errno. */
int xr_spare_none(void);

/* It names a number of ours for itself, which is below its limit: the same. */
int xr_spare_number(int fd);

static inline void xr_spare_check(int fd)
{
	if (xr_unlikely((uint32_t)fd >= xr_load_relaxed(&xr_fd_press)) && fd >= 0)
		xr_spare_near(fd);
}

/* `failed` tells failure of `r`, the result of `call`, which is made once more where that may help. */
#define XR_SPARE_FOR(type, failed, call)						\
	__extension__({									\
		type spare_r = (call);							\
											\
		if (xr_unlikely(spare_r == (failed)) && errno == EMFILE && xr_spare_none()) \
			spare_r = (call);						\
		spare_r;								\
	})
#define XR_SPARE(call)	XR_SPARE_FOR(int, -1, call)

void xr_spare_forked(void);

/* epoll.c: the inner sets that no flow is in.  Returns how many descriptors were closed. */
int xr_epoll_strip(void);

#endif
