/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * MSG_ZEROCOPY.  A fabric copies the bytes before the call returns, so the program's memory is its own again
 * at once; it is told as the kernel tells of a send over loopback: a range of calls on the error queue, with
 * SO_EE_CODE_ZEROCOPY_COPIED, and POLLERR while that is unread.
 *
 * Calls are numbered by socket, from 0 on, on whatever carrier.  The kernel numbers those that it sees: what
 * a fabric carried is added to the numbers that it tells afterwards.  For that to be one number a flow leaves
 * TCP when all that the kernel had to tell was read, and comes back when all that we had was: then no two
 * notices of the two are ever unread at once.  A flow that goes to a program without hooks does not wait;
 * what is unread then is lost.
 *
 * Two threads of which one sends so while the other moves the flow may get the same number.
 */
#ifndef XR_ZEROCOPY_H
#define XR_ZEROCOPY_H

#include "flow.h"
#include "mem.h"

#define XR_ZC_COUNT(t)	((uint32_t)(t))
#define XR_ZC_FIRST(t)	((uint32_t)((t) >> 32))

/* 1: this process has something to tell, or is about to: the flow stays in its hands. */
static inline int xr_zerocopy_holds(const struct xr_flow *f)
{
	return f->owner_pid == xr_getpid() &&
	       (xr_load_acquire(&f->own->zc.hold) || XR_ZC_COUNT(xr_load_acquire(&f->own->zc.told)));
}

/* The flow is about to leave TCP.  1: not yet. */
static inline int xr_zerocopy_busy(struct xr_flow *f)
{
	struct xr_zc *z = &f->own->zc;
	uint32_t sent = xr_load_acquire(&z->sent);

	if (sent != xr_load_acquire(&z->done) || xr_zerocopy_holds(f))
		return 1;
	xr_store_release(&z->told, (uint64_t)(sent + xr_load_relaxed(&f->zc_extra)) << 32);
	return 0;
}

/* Around a send that the hooks carry: begin says whether the socket wants it; n: what the send returned. */
int xr_zerocopy_begin(struct xr_flow *f, int fd);
void xr_zerocopy_end(struct xr_flow *f, ssize_t n);

/* The same around one that the kernel carries; n is -1 after an error. */
int xr_zerocopy_kernel_begin(struct xr_flow *f, int fd);
void xr_zerocopy_kernel_end(struct xr_flow *f, ssize_t n);

#define XR_ZEROCOPY_KERNEL(f, fd, flags, call)							\
	__extension__({										\
		int zc_on = xr_unlikely((flags) & MSG_ZEROCOPY) && xr_zerocopy_kernel_begin(f, fd);	\
		ssize_t zc_n = (call);								\
												\
		if (xr_unlikely(zc_on))								\
			xr_zerocopy_kernel_end(f, zc_n);					\
		zc_n;										\
	})

/* When nothing is left to be told a flow that waited for that goes back to TCP.  No lock held. */
void xr_zerocopy_let_go(struct xr_flow *f);

/* recvmsg with MSG_ERRQUEUE; mh NULL: recv.  1: *n is the answer, as libc gives it; 0: the kernel has it. */
int xr_zerocopy_tell(struct xr_flow *f, struct msghdr *mh, int flags, ssize_t *n);
/* The kernel has answered with this: its numbers become those of the program. */
void xr_zerocopy_heard(struct xr_flow *f, struct msghdr *mh);

#endif
