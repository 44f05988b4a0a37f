/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Descriptors come, go and are duplicated: keeps the table, the count of descriptors of
 * each flow and what epoll knows in step with the kernel.
 *
 * Order: an entry is taken out before the real call frees the number, and set after the
 * real call gave it out, so an entry never names a file of somebody else's.  Exactly one
 * of several racing closes takes an entry and ends the flow.
 */
#include "hook.h"
#include <sys/single_threaded.h>
#include "closing.h"
#include "epoll.h"
#include "hold.h"
#include "ready.h"
#include "relay.h"
#include "spare.h"

static struct xr_flow *entry_flow(uintptr_t e)
{
	return (e & 3) == XR_FD_FLOW ? (struct xr_flow *)(e & ~(uintptr_t)3) : NULL;
}

/* One of several descriptors of the flow goes; the flow must know another one.  0: there is none. */
static int name_another(struct xr_flow *f, int fd)
{
	int other;

	if (xr_flow_fd(f) != fd)
		return 1;
	for (other = xr_fd_next(0); other >= 0; other = xr_fd_next(other + 1))
		if (xr_fd_flow(other) == f) {
			xr_store_relaxed(&f->priv->fd, other);
			return 1;
		}
	return 0;
}

void xr_fds_stale(int fd)
{
	uintptr_t e = xr_fd_entry(fd);
	struct xr_flow *f;

	if (!e || xr_vfork_depth)
		return;
	xr_fork_check();
	/* closed behind our back: there is nothing left to say to the peer */
	if ((e & 3) == XR_FD_EPOLL)
		xr_epoll_close(fd);
	f = entry_flow(xr_fd_take(fd));
	if (f)
		xr_flow_kid_counts(f);
	if (!f)
		return;
	if (xr_fetch_sub(&f->priv->fds, 1) == 1) {
		xr_epoll_flow_closed(f);
		xr_fd_close(xr_load_relaxed(&f->priv->orphan));
		xr_flow_release(f);
	} else if (!name_another(f, fd)) {
		xr_store_relaxed(&f->priv->fd, xr_load_relaxed(&f->priv->orphan));
	}
}

/* The entry of fd was taken out.  1: nothing refers to the flow any more. */
static int let_go(struct xr_flow *f, int fd)
{
	uint32_t n = xr_load_relaxed(&f->priv->fds);
	int named = 0;

	do {
		if (n > 1 && !named) {
			named = 1;
			/* what is left sleeps in a call, or is a duplicate in the making */
			if (!name_another(f, fd))
				xr_hold_orphan(f, fd);
		}
	} while (!xr_cas(&f->priv->fds, &n, n - 1));
	return n == 1;
}

/*
 * A registration outlives its descriptor when a duplicate is left.  One in our own set does
 * as the kernel's would; one in the kernel's could not be moved any more.
 */
static void close_registered(struct xr_flow *f, int fd)
{
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || !xr_epoll_flow_attached(f))
		xr_flow_stay_tcp(f, fd, XR_REASON_EPOLL_EXCLUSIVE);
}

/* Nothing refers to the flow any more: what is to be done before the real close. */
static void close_last(struct xr_flow *f, int fd)
{
	/* nothing was begun, nothing is owed, nobody is to be told */
	if (!f->link && !xr_flow_up(f) && !f->st && !xr_load_relaxed(&f->own->regs)) {
		xr_fetch_sub(&f->procs, 1);
		return;
	}
	xr_epoll_flow_closed(f);
	xr_flow_last_close(f, fd);
}

/* last: it has been let go of.  1: nothing refers to the flow any more. */
static int let_go_and_close(struct xr_flow *f, int fd, int last)
{
	int moved = f->link != NULL;

	if (moved)
		xr_closing_begin();
	if (!last)
		last = let_go(f, fd);
	if (last)
		close_last(f, fd);
	if (moved)
		xr_closing_end();
	return last;
}

struct xr_fds_closing xr_fds_close_begin(int fd)
{
	struct xr_fds_closing c = { xr_fd_entry(fd), 0 };
	struct xr_flow *f;

	if (!c.entry)
		return c;
	xr_fork_check();
	if ((c.entry & 3) == XR_FD_EPOLL)
		xr_epoll_close(fd);
	f = entry_flow(c.entry);
	if (f && xr_load_relaxed(&f->priv->fds) > 1) {
		xr_hold_thread(0);
		if (xr_load_relaxed(&f->priv->fds) > 1 && xr_load_acquire(&f->path) && xr_epoll_flow_registered(f))
			close_registered(f, fd);
	}
	c.entry = xr_fd_take(fd);
	f = entry_flow(c.entry);
	if (!f)
		return c;
	xr_flow_kid_counts(f);
	c.last = let_go_and_close(f, fd, 0);
	return c;
}

void xr_fds_close_end(struct xr_fds_closing c)
{
	struct xr_flow *f = entry_flow(c.entry);

	if (!c.last)
		return;
	/* of a call that has left since it was made */
	xr_fd_close(xr_load_relaxed(&f->priv->orphan));
	xr_flow_closed(f);
	xr_flow_sweep();
}

int xr_fds_close(int fd)
{
	struct xr_fds_closing c;
	int r, saved = errno;

	if (xr_unlikely(xr_vfork_depth)) {
		xr_vfork_changed(fd);
		return xr_real.close(fd) ? -errno : 0;
	}
	c = xr_fds_close_begin(fd);
	r = xr_real.close(fd) ? -errno : 0;
	xr_fds_close_end(c);
	errno = saved;
	return r;
}

/* The entry was taken out, and with it the last descriptor. */
static __attribute__((noinline)) int close_rest(struct xr_flow *f, int fd, uintptr_t e, int last)
{
	struct xr_fds_closing c = { e, last };
	int r, saved = errno;

	c.last = let_go_and_close(f, fd, last);
	r = xr_real.close(fd);
	if (!r)
		errno = saved;
	saved = errno;
	xr_fds_close_end(c);
	errno = saved;
	return r;
}

XR_HOT int xr_fds_close_any(int fd, uintptr_t e)
{
	struct xr_flow *f = entry_flow(e);
	uint32_t one = 1;

	/* most connections: nothing was begun, nothing is owed, nobody is to be told */
	if (xr_unlikely(!f || !xr_process_calm() || f->owner_pid != xr_load_relaxed(&xr_mem_pid) || f->link || f->st ||
			xr_flow_up(f) || xr_load_relaxed(&f->own->regs) || xr_load_relaxed(&f->priv->orphan) >= 0 ||
			xr_load_relaxed(&f->priv->fds) != 1))
		return (int)xr_ret(xr_fds_close(fd));
	/* another thread was first */
	if (xr_unlikely(!xr_fd_swap(fd, e, NULL, XR_FD_NONE)))
		return (int)xr_ret(xr_fds_close(fd));
	/* another one makes a duplicate of it */
	if (xr_unlikely(!xr_cas(&f->priv->fds, &one, 0)))
		return close_rest(f, fd, e, 0);
	if (xr_unlikely(!xr_flow_drop(f)))
		return close_rest(f, fd, e, 1);
	/* the flow is gone before its descriptor, of which nobody can learn here any more */
	return xr_real.close(fd);
}

uintptr_t xr_fds_dup_begin(int fd, int low)
{
	uintptr_t e = xr_fd_entry(fd);
	struct xr_flow *f = entry_flow(e);

	if (xr_likely(!e))
		return 0;
	if (xr_unlikely(xr_vfork_depth)) {
		/* for the program that the child is about to become */
		if (f && !xr_vfork_is_changed(fd)) {
			xr_let_go(f, fd, XR_REASON_RETREAT_CALL, XR_HANDOVER_WAIT_NS);
			if (!xr_vfork_is_changed(fd))
				xr_fetch_add(&f->procs, 1);
		}
		return 0;
	}
	xr_fork_check();
	if (f) {
		xr_fetch_add(&f->priv->fds, 1);
		/* what stands there goes through stdio and into children */
		if (low)
			xr_let_go(f, fd, XR_REASON_RETREAT_CALL, XR_HANDOVER_WAIT_NS);
		/* another file has taken its place */
		if (xr_unlikely(xr_fd_entry(fd) != e)) {
			xr_fds_dup_end(e, fd, -1);
			return 0;
		}
	}
	return e;
}

void xr_fds_dup_end(uintptr_t e, int fd, int newfd)
{
	struct xr_flow *f = entry_flow(e);

	if (newfd < 0) {
		/* a close that raced with us has left the end of the flow to us */
		if (f && xr_fetch_sub(&f->priv->fds, 1) == 1) {
			xr_fd_close(xr_load_relaxed(&f->priv->orphan));
			xr_flow_release(f);
		}
		return;
	}
	if (!e)
		return;
	if ((e & 3) == XR_FD_EPOLL) {
		xr_epoll_dup(fd, newfd);
		return;
	}
	if (xr_fd_set(newfd, (void *)(e & ~(uintptr_t)3), e & 3) == (uintptr_t)-1 && f) {
		/* a descriptor that hooks cannot find: the kernel alone must serve it */
		xr_fetch_sub(&f->priv->fds, 1);
		xr_flow_hand_over(f, fd, XR_REASON_RETREAT_CALL, XR_HANDOVER_WAIT_NS);
		return;
	}
	if (f && newfd <= STDERR_FILENO)
		xr_let_go(f, newfd, XR_REASON_RETREAT_CALL, XR_HANDOVER_WAIT_NS);
}

/*
 * A flow that this process inherited and now alone holds (a server that forks after
 * accept): a flow of its own, which it may upgrade, takes the place of the parent's.
 */
void xr_fds_adopt(struct xr_flow *f, int fd)
{
	uint32_t path = xr_load_acquire(&f->path);
	struct xr_flow *own;

	if (path != XR_PATH_COUNT || xr_flow_holders(f) != 1 || f->upgrade_off || f->link ||
	    xr_load_relaxed(&f->priv->fds) != 1 || xr_epoll_flow_registered(f) || xr_vfork_depth || !xr_active)
		return;
	own = xr_flow_new(fd, f->family, f->role == XR_FLOW_ACCEPT ? XR_FLOW_ACCEPT : XR_FLOW_UNSET,
			  f->nonblock);
	if (!own) {
		/* it stays the parent's, on TCP; each of its calls comes by here */
		if (!f->own->unlisted) {
			f->own->unlisted = 1;
			xr_policy_unlisted((enum xr_reason)xr_load_relaxed(&xr_flow_refused));
		}
		return;
	}
	/* before anybody can find it: the upgrade compares these with the kernel's counts */
	xr_store_relaxed(&own->tcp_tx, xr_load_relaxed(&f->tcp_tx));
	xr_store_relaxed(&own->tcp_rx, xr_load_relaxed(&f->tcp_rx));
	xr_store_relaxed(&own->turns, xr_load_relaxed(&f->turns));
	xr_store_relaxed(&own->last_dir, xr_load_relaxed(&f->last_dir));
	own->rcvtimeo_ns = f->rcvtimeo_ns;
	own->sndtimeo_ns = f->sndtimeo_ns;
	own->rcvlowat = f->rcvlowat;
	if (f->role != XR_FLOW_ACCEPT)
		xr_flow_connecting(own, fd);
	if (!xr_fd_swap(fd, (uintptr_t)f | XR_FD_FLOW, own, XR_FD_FLOW)) {
		xr_flow_release(own);
		return;
	}
	xr_flow_kid_counts(f);
	xr_fetch_sub(&f->priv->fds, 1);
	xr_flow_release(f);
}

/*
 * Another thread may close the descriptor, the number become another file's and the flow another
 * connection's: the flow is held, and a duplicate that was taken while it had the number is its own.
 * Where nobody can, neither is needed, and there may be no descriptor to be had.
 */
void xr_fds_retreat(struct xr_flow *f, enum xr_reason why)
{
	struct xr_hold hold = { NULL };
	int fd = xr_flow_fd(f), own;

	if (f->owner_pid != xr_getpid())
		return;
	if (__libc_single_threaded) {
		if (xr_fd_flow(fd) == f)
			xr_flow_retreat(f, fd, why, 0);
		return;
	}
	if (xr_hold_take(&hold, f) || !hold.flow)
		return;
	fd = xr_flow_fd(f);
	own = fd < 0 ? -1 : (int)xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
	if (own >= 0 && xr_flow_fd(f) == fd)
		xr_flow_retreat(f, own, why, 0);
	if (own >= 0)
		xr_sys1(SYS_close, own);
	xr_hold_drop(&hold);
}

#define FDS_ABOVE	256	/* numbers below are what programs look at */

void xr_fds_far_look(struct xr_flow *f)
{
	struct xr_hold hold = { NULL };
	int fd, own;

	/* the flow stays, and is not closed by anybody else, as under a call that sleeps */
	if (f->owner_pid != xr_getpid() || !xr_load_acquire(&f->path) || xr_hold_take(&hold, f) || !hold.flow)
		return;
	fd = xr_flow_fd(f);
	own = fd < 0 || !f->far ? -1 : (int)xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FDS_ABOVE);
	if (own == -EINVAL)
		own = (int)xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
	if (own >= 0 && xr_flow_fd(f) == fd) {
		xr_far_look(f, own);
		if (xr_far_owes(f))
			xr_flow_tx_care(f, own);
	}
	if (own >= 0)
		xr_sys1(SYS_close, own);
	xr_hold_drop(&hold);
}
