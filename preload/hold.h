/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Calls that sleep on a flow hold it.  As in the kernel, close() under a sleeping call frees the
 * number at once and nothing else: the call goes on, and the connection ends when it returns.
 *
 * A hold counts as one more descriptor of the flow.  When the last descriptor of the program is
 * closed under it, the flow keeps one of our own in its place (priv->orphan), which priv->fd then
 * names; the last hold to go closes that as close() would have closed the program's.
 */
#ifndef XR_HOLD_H
#define XR_HOLD_H

#include <sys/single_threaded.h>
#include "flow.h"
#include "ready.h"

struct xr_hold {
	struct xr_flow *flow;		/* NULL: none */
};

extern _Atomic uint32_t xr_care_made;	/* this process has made one of ours: caretaker.c */

/*
 * One of a process with one thread, which has not forked since it has the flow, nor made a process of ours:
 * nobody else can want its locks.  What changes that does so in this thread, between two calls.
 */
static inline int xr_flow_only(const struct xr_flow *f)
{
	return xr_likely(__libc_single_threaded) && xr_likely(!xr_load_relaxed(&xr_care_made)) &&
	       xr_likely(xr_load_relaxed(&f->kids->forks) == f->born);
}

/* 0, or -EBADF: the flow has no descriptor left.  No lock may be held, here as in all of these. */
int xr_hold_take(struct xr_hold *h, struct xr_flow *f);
void xr_hold_drop(struct xr_hold *h);

/*
 * Before a call sleeps.  A process with one thread has nobody to close anything meanwhile, but
 * for its signal handlers, which the kernel lets pull a descriptor from under a sleeping call.
 */
static inline int xr_hold_begin(struct xr_hold *h, struct xr_flow *f)
{
	return xr_likely(__libc_single_threaded) || h->flow ? 0 : xr_hold_take(h, f);
}

static inline void xr_hold_end(struct xr_hold *h)
{
	if (xr_unlikely(h->flow != NULL))
		xr_hold_drop(h);
}

/* The program has closed all its descriptors of the flow. */
static inline int xr_hold_alone(const struct xr_hold *h)
{
	return xr_unlikely(h->flow != NULL) && xr_flow_fd(h->flow) == xr_load_relaxed(&h->flow->priv->orphan);
}

/* ... and there was none to be had for us in their place. */
static inline int xr_hold_lost(const struct xr_hold *h)
{
	return xr_unlikely(h->flow != NULL) && xr_flow_fd(h->flow) < 0;
}

/*
 * A call sleeps until the flow may have what it waits for; part: some of it was done.  0: it looks again; -errno: it
 * ends, with that part or with this.  mark: of the call, renewed where a handler ran and it goes on.
 */
static inline int xr_hold_wait(struct xr_hold *h, struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
			       struct xr_signal_mark *mark, int part)
{
	int r = xr_hold_begin(h, f);

	if (!r)
		r = xr_wait_flow(f, fd, mask, deadline, *mark);
	if (r || xr_likely(xr_signal_mark().any == mark->any))
		return r;
	/* after a handler a part is the answer; with none yet the call is restarted */
	if (part)
		return -EINTR;
	/* with a number that was closed meanwhile */
	if (xr_hold_alone(h))
		return xr_signal_restart(*mark).any == mark->any ? -EINTR : -EBADF;
	*mark = xr_signal_restart(*mark);
	return 0;
}

/* What to use for fd, which the program may have closed.  A lock of the flow is held. */
static inline int xr_hold_fd(const struct xr_flow *f, int fd)
{
	return xr_likely(!xr_load_relaxed(&f->priv->holds)) ? fd : xr_flow_fd(f);
}

/* A descriptor of ours in the place of the program's last one, which is about to be closed. */
void xr_hold_orphan(struct xr_flow *f, int fd);
/* All holds of this thread: it ends, or (0) those that it has left by longjmp. */
void xr_hold_thread(int all);
/* In a forked child: those of other threads, which are not here.  inherited: 1 when there may be some. */
int xr_hold_inherited(void);
void xr_hold_forked(struct xr_flow *f, uint32_t n);

#endif
