/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll_ctl: every registration of a flow is remembered from the start. */
#include <errno.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "fdtab.h"
#include "mem.h"
#include "ready.h"

static struct xr_epreg *reg_find(struct xr_epoll *ep, struct xr_flow *f, int fd)
{
	struct xr_epreg *r;

	for (r = xr_ep_bucket(ep, f); r; r = r->hash_next)
		if (r->flow == f && r->fd == fd && r->ef == f->own->regs)
			return r;
	return NULL;
}

int xr_ep_sys_ctl(int epfd, int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = { .events = events };

	ev.data.u64 = data;
	return (int)xr_sys4(SYS_epoll_ctl, epfd, op, fd, &ev);
}

static int sys_ctl_program(int epfd, int op, int fd, struct epoll_event *ev)
{
	return (int)xr_sys4(SYS_epoll_ctl, epfd, op, fd, ev);
}

void xr_ep_reg_set(struct xr_epreg *r, const struct epoll_event *ev)
{
	r->events = ev->events | EPOLLERR | EPOLLHUP;
	r->data = ev->data.u64;
	r->parked = 0;
	r->fired = 0;
	r->absent = 0;
	xr_ep_heir(r);
	r->last = 0;
	r->force = 1;
	r->seq++;
	if (r->attached) {
		if (!r->shown)
			r->since = xr_cycles();
		xr_ep_push(r);
		xr_ep_kick(r->ep);
	}
}

static void reg_set(struct xr_epreg *r, const struct epoll_event *ev)
{
	xr_ep_reg_set(r, ev);
	xr_ep_say(r, XR_EP_SAYS_SET);
}

/*
 * On a fabric no kernel set need change: a socket that the program removed stays in the
 * inner set, silent, since many programs add it again for every request.  Returns 1 for
 * what has to go the long way.
 */
static int ctl_quick(struct xr_epoll *ep, int op, int fd, struct xr_flow *f,
		     const struct epoll_event *ev)
{
	struct xr_epreg *r;
	int e = 1;

	if (!f->own->regs || !xr_load_relaxed(&ep->attached) || xr_ep_lock(ep))
		return 1;
	r = ep->fds ? reg_find(ep, f, fd) : NULL;
	if (!r || !r->attached)
		goto unlock;
	if (op == EPOLL_CTL_ADD) {
		if (!r->absent)
			e = -EEXIST;
		/* racy, but whoever registers the flow elsewhere finds this one under big */
		if (e < 0 || (ev->events & EPOLLEXCLUSIVE) || r->ef->regs != r || r->flow_next)
			goto unlock;
		reg_set(r, ev);
		e = 0;
	} else if (r->absent) {
		e = -ENOENT;
	} else if (op == EPOLL_CTL_DEL) {
		r->absent = 1;
		xr_ep_heir(r);
		r->seq++;
		xr_ep_unlist(r);
		xr_ep_say(r, XR_EP_SAYS_GONE);
		e = 0;
	} else if ((ev->events | r->events) & EPOLLEXCLUSIVE) {
		e = -EINVAL;
	} else {
		reg_set(r, ev);
		e = 0;
	}
unlock:
	xr_ep_unlock(ep);
	return e;
}

/* Both locks held.  The flow is on a fabric (or moving there). */
static int ctl_add_attached(struct xr_epoll *ep, struct xr_flow *f, struct xr_epflow *ef, int fd,
			    struct epoll_event *ev)
{
	struct xr_epreg *r = reg_find(ep, f, fd);
	int e;

	if (r && r->absent) {
		reg_set(r, ev);
		return 0;
	}
	if (r)
		return -EEXIST;
	/* before it is on record: it has nothing that could be armed anew */
	e = xr_ep_share(ef, ep);
	if (e)
		return e;
	r = xr_ep_reg_new(ep, f, ef, fd, ev);
	if (!r)
		return -ENOMEM;
	e = xr_ep_reg_attach(r, 0);
	if (e) {
		xr_ep_reg_free(r);
		return e;
	}
	xr_ep_kick(ep);
	xr_ep_say(r, XR_EP_SAYS_SET);
	return 0;
}

/* Both locks held.  The kernel carries the flow. */
static int ctl_add_plain(struct xr_epoll *ep, int epfd, struct xr_flow *f, struct xr_epflow *ef,
			 int fd, struct epoll_event *ev)
{
	struct xr_epreg *r = reg_find(ep, f, fd);
	int e;

	/* fired while the flow was on a fabric: in no kernel set, yet registered */
	if (r && r->parked)
		return -EEXIST;
	e = sys_ctl_program(epfd, EPOLL_CTL_ADD, fd, ev);
	if (e)
		return e;
	if (r) {
		/* a system call that went round the hooks had removed it */
		r->events = ev->events | EPOLLERR | EPOLLHUP;
		r->data = ev->data.u64;
		xr_ep_heir(r);
	} else if (!ef || !xr_ep_reg_new(ep, f, ef, fd, ev)) {
		return 1;
	}
	return 0;
}

static int ctl_mod(int epfd, struct xr_epreg *r, int fd, struct epoll_event *ev)
{
	int e = 0;

	if (r->attached) {
		/* moved to a fabric since ctl_quick looked */
		e = r->absent ? -ENOENT : (ev->events | r->events) & EPOLLEXCLUSIVE ? -EINVAL : 0;
	} else if (r->parked) {
		e = sys_ctl_program(epfd, EPOLL_CTL_ADD, fd, ev);
	} else {
		e = sys_ctl_program(epfd, EPOLL_CTL_MOD, fd, ev);
	}
	if (!e)
		reg_set(r, ev);
	return e;
}

static int ctl_del(int epfd, struct xr_epreg *r, int fd, struct epoll_event *ev)
{
	int e = 0;

	if (r->attached && r->absent)
		return -ENOENT;
	if (!r->attached && !r->parked)
		e = sys_ctl_program(epfd, EPOLL_CTL_DEL, fd, ev);
	if (e)
		return e;
	xr_ep_say(r, XR_EP_SAYS_GONE);
	if (r->attached)
		xr_ep_reg_leave(r);
	xr_ep_reg_free(r);
	return e;
}

/* Returns 1 when the registration was made but cannot be followed: the flow stays on TCP. */
static int ctl_flow(struct xr_epoll *ep, int epfd, int op, int fd, struct xr_flow *f,
		    struct epoll_event *ev)
{
	struct xr_epflow *ef = xr_ep_flow(f, op == EPOLL_CTL_ADD);
	struct xr_epreg *r;

	if (op == EPOLL_CTL_ADD && ef && xr_unlikely(f->owner_pid != xr_getpid()))
		xr_ep_child_carries(f, ef);
	if (op == EPOLL_CTL_ADD)
		return ef && ef->attached ? ctl_add_attached(ep, f, ef, fd, ev) :
					    ctl_add_plain(ep, epfd, f, ef, fd, ev);
	r = reg_find(ep, f, fd);
	if (op == EPOLL_CTL_MOD && r)
		return ctl_mod(epfd, r, fd, ev);
	if (op == EPOLL_CTL_DEL && r)
		return ctl_del(epfd, r, fd, ev);
	return sys_ctl_program(epfd, op, fd, ev);
}

/*
 * A registration that keeps its flow on TCP: in an epoll file of which we know nothing or that
 * another process shares, or in several files with EPOLLEXCLUSIVE.  The reason, or 0.  No lock may be held here.
 */
static int ctl_keeps_tcp(struct xr_epoll *ep, struct xr_flow *f, const struct epoll_event *ev)
{
	struct xr_epflow *ef = f->own->regs;
	struct xr_epreg *r;
	int keep = 0;

	if (!ep || ep->gen != xr_ep_gen || ep->parents || xr_ep_is_taken(ep))
		return XR_REASON_INHERITED;
	/* a child that has both would not know: it has what was registered at the fork */
	if (xr_unlikely(xr_ep_lent(ep)) && xr_flow_holders(f) > 1)
		return XR_REASON_INHERITED;
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || !ef || !ev)
		return 0;
	if (xr_ep_big_lock())
		return 0;
	for (r = ef->regs; r; r = r->flow_next)
		if (r->ep != ep && !r->absent && ((ev->events | r->events) & EPOLLEXCLUSIVE))
			keep = XR_REASON_EPOLL_EXCLUSIVE;
	xr_ep_big_unlock();
	return keep;
}

static void ctl_stays(const struct xr_epoll *ep, struct xr_flow *f, int fd, enum xr_reason why)
{
	/* what is unread there is told here, whatever the peer does */
	if (ep && why == XR_REASON_INHERITED && (xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		xr_flow_retreat_as(f, fd, why, XR_RETREAT_SEAL, 0);
	else
		xr_flow_stay_tcp(f, fd, why);
}

/*
 * An epoll file inside another one, or in a poll set: its readiness must show in the
 * kernel from now on, whenever no thread is in its epoll_wait.  What shows there by now may be
 * old: a bell for what was read since.
 */
int xr_epoll_watch(int epfd)
{
	struct xr_epoll *ep = xr_ep_own(xr_fd_epoll(epfd), epfd);
	int busy;

	if (!ep || xr_ep_lock(ep))
		return epfd;
	ep->watched = 1;
	busy = xr_load_relaxed(&ep->attached) != 0;
	/* like a thread in epoll_wait: the file stays while the lock is dropped */
	ep->inside++;
	if (busy && xr_now_ns() - ep->patrolled >= XR_WAIT_PEER - XR_WAIT_SLICE) {
		ep->patrolled = xr_now_ns();
		xr_ep_patrol(ep);
	}
	if (busy && !xr_load_relaxed(&ep->awake) && (!ep->rested || xr_ksock_poll(ep->inner, POLLIN)))
		xr_ep_handover(ep);
	ep->inside--;
	xr_ep_put(ep);
	return xr_epoll_shown(epfd);
}

int xr_epoll_shown(int epfd)
{
	struct xr_epoll *ep = xr_fd_epoll(epfd);

	int top = ep && ep->gen == xr_ep_gen ? xr_load_acquire(&ep->top) : -1;

	return top >= 0 ? top : epfd;
}

/* As the kernel: what may stand beside EPOLLEXCLUSIVE, and that it cannot be set later. */
static int ctl_is_valid(int op, const struct epoll_event *ev)
{
	const uint32_t ok = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET |
			    EPOLLEXCLUSIVE;

	if (op == EPOLL_CTL_DEL || !(ev->events & EPOLLEXCLUSIVE))
		return 1;
	return op == EPOLL_CTL_ADD && !(ev->events & ~ok);
}

#define CTL_AGAIN	8	/* it may come to the fabric again meanwhile */

/*
 * What a registration of a flow on a fabric needs of ours, and the kernel's own does not.  The kernel has no
 * word of descriptors for it, so that is ours even where another thread has brought the flow to TCP since.
 */
static int ctl_is_short(int op, const struct xr_flow *f, int r)
{
	return op == EPOLL_CTL_ADD && (r == -EMFILE || r == -ENFILE || ((r == -ENOSPC || r == -ENOMEM) &&
								       (xr_load_acquire(&f->path) & XR_PATH_FABRIC)));
}

/* Of what is no flow. */
static int ctl_other(int epfd, int op, int fd, struct epoll_event *ev)
{
	int shown = op == EPOLL_CTL_ADD ? xr_epoll_watch(fd) : xr_epoll_shown(fd);
	int r = sys_ctl_program(epfd, op, shown, ev);

	/* it was registered before there was another */
	return shown != fd && r == -ENOENT ? sys_ctl_program(epfd, op, fd, ev) : r;
}

int xr_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct xr_epoll *ep = xr_fd_epoll(epfd);
	struct xr_flow *f = xr_fd_flow(fd);
	int r, again = 0, last = 0, away = 0, inherited = 0, shared, keep;

	if (!f || (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) ||
	    (op != EPOLL_CTL_DEL && !ev)) {
		return ctl_other(epfd, op, fd, ev);
	}
	if (!ctl_is_valid(op, ev))
		return -EINVAL;
	if (ep && f->owner_pid != xr_getpid() && xr_unlikely(ep->gen != xr_ep_gen || ep->parents)) {
		ep = xr_ep_own(ep, epfd);
		if (!ep)
			return -ENOMEM;
		/* the parent is about to have it in its inner set: then the kernel does not know it */
		away = xr_flow_up(f) != NULL;
		inherited = 1;
		xr_ep_child_ctl(ep, fd, f);
	}
	if (ep && ep->gen == xr_ep_gen) {
		/* acquire: pairs with xr_ep_child_changes */
		if (xr_unlikely(xr_load_acquire(&f->epoll_child)) && f->owner_pid == xr_getpid())
			xr_ep_child_forget(f);
		if (xr_ep_must_lend(ep))
			xr_ep_lend(ep);
		if (xr_ep_must_hear(ep))
			xr_ep_hear(ep);
		r = ctl_quick(ep, op, fd, f, ev);
		if (r != 1)
			return r;
	}
	shared = !ep || ((ep->gen != xr_ep_gen || ep->parents) && !inherited);
	if (inherited)
		;
	else if (op == EPOLL_CTL_ADD && xr_unlikely(f->owner_pid != xr_getpid()) && !shared)
		xr_flow_retreat_as(f, fd, XR_REASON_INHERITED, XR_RETREAT_SEAL, 0);
	else if (op == EPOLL_CTL_ADD && (keep = ctl_keeps_tcp(ep, f, ev)))
		ctl_stays(ep, f, fd, (enum xr_reason)keep);
	if (shared)
		return sys_ctl_program(epfd, op, fd, ev);
retry:
	r = xr_ep_big_lock();
	if (r)
		return -ENOMEM;
	if (xr_ep_settle(f) || xr_ep_lock(ep)) {
		xr_ep_big_unlock();
		return -ENOMEM;
	}
	xr_fd_must = last;
	r = ep->fds ? ctl_flow(ep, epfd, op, fd, f, ev) : -EBADF;
	xr_fd_must = 0;
	xr_ep_unlock(ep);
	xr_ep_big_unlock();
	/* the program is to have what the kernel says of its socket, not what we lack */
	if (xr_unlikely(ctl_is_short(op, f, r)) && !last) {
		if ((xr_load_acquire(&f->path) & XR_PATH_FABRIC) || xr_flow_up(f))
			/* where the peer does not take what it is owed the flow stays, and we take what there is */
			last = xr_flow_hand_over(f, fd, r == -EMFILE || r == -ENFILE ? XR_REASON_LIMIT_FDS :
						 XR_REASON_LIMIT_MEMORY, XR_HANDOVER_WAIT_NS) != 0;
		last |= ++again == CTL_AGAIN;
		goto retry;
	}
	if (xr_unlikely(r == 1)) {
		xr_flow_stay_tcp(f, fd, XR_REASON_LIMIT_MEMORY);
		r = 0;
	}
	if (!r && op == EPOLL_CTL_ADD)
		xr_flow_link_lost(f, fd);
	if (xr_unlikely(r == -ENOENT && away))
		r = op == EPOLL_CTL_DEL ? 0 : sys_ctl_program(epfd, EPOLL_CTL_ADD, fd, ev);
	return r;
}
