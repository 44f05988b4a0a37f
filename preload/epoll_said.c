/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What several processes make of a registration in a file that all of them have.
 *
 * What is in the kernel's set is the same for all.  But as long as bytes lie unread in a ring each process has
 * the flow in an inner set of its own, by a record of its own.  So whoever changes such a registration writes in family
 * memory, beside the count of those who use the file, what has become of it, and the others do the
 * same with their next call on the file, or in one where they sleep.
 *
 * Who has not called while XR_EP_SAYINGS more were said goes on with what it had until the bytes are read.
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include "epoll.h"
#include "fdtab.h"
#include "log.h"
#include "mem.h"

/*
 * An edge in the set that all have, under the token that each takes for its own: one that sleeps is woken by it.
 * Without a descriptor for it others hear when they next look.
 */
static void say_nudge(struct xr_epoll *ep)
{
	static const uint64_t one = 1;
	long fd;

	if (ep->outer < 0)
		return;
	if (ep->nudge < 0) {
		fd = xr_sys2(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC);
		fd = fd < 0 ? fd : xr_fd_high((int)fd);
		if (fd < 0 || xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, (int)fd, EPOLLIN | EPOLLET, ep->token)) {
			xr_info("no eventfd to wake the other processes of an epoll file with");
			xr_fd_close((int)fd);
			return;
		}
		ep->nudge = (int)fd;
	}
	xr_sys3(SYS_write, ep->nudge, &one, sizeof(one));
}

void xr_ep_say(struct xr_epreg *r, enum xr_ep_says what)
{
	struct xr_epoll *ep = r->ep;
	const struct xr_epoll *p;
	struct xr_epshare *s = ep->share;
	struct xr_epsaid *e;
	uint32_t n;

	if (xr_likely(!ep->parents && !xr_ep_is_taken(ep)) || !s)
		return;
	/* what was the kernel's all the time is so for all */
	if ((!r->attached && !r->said) || xr_load_relaxed(&s->want) >> 32 != ep->life)
		return;
	r->said = 1;
	/* relaxed: each has a number of its own, and `seq` says when it is there */
	n = xr_fetch_add(&s->nsaid, 1) + 1;
	e = &s->said[n % XR_EP_SAYINGS];
	xr_store_relaxed(&e->seq, 0);
	/* release: who reads something new below sees that it changes */
	atomic_thread_fence(memory_order_release);
	e->fd = r->fd;
	e->by = xr_getpid();
	e->events = r->events;
	e->flow = r->flow;
	e->data = r->data;
	e->what = (uint8_t)what;
	/* release: pairs with hear_next */
	xr_store_release(&e->seq, n);
	for (p = ep->parents; p; p = p->parents)
		xr_ep_share_ring(p);
	say_nudge(ep);
}

#define HEAR_TRIES	100
#define HEAR_PAUSE	100000	/* ns */

/* The one after those that were heard; 0: there is none. */
static int hear_next(struct xr_epoll *ep, struct xr_epsaid *got)
{
	static const struct timespec pause = { 0, HEAR_PAUSE };
	struct xr_epshare *s = ep->share;
	uint32_t at = xr_load_relaxed(&ep->heard), n, seq, tries = 0;
	struct xr_epsaid *e;

	/* acquire: what is said there is not looked for before it was begun */
	while ((n = xr_load_acquire(&s->nsaid)) != at) {
		if (n - at > XR_EP_SAYINGS) {
			xr_info("%u changes of a shared epoll file were not heard in time", n - at - XR_EP_SAYINGS);
			at = n - XR_EP_SAYINGS;
		}
		e = &s->said[(at + 1) % XR_EP_SAYINGS];
		/* acquire: pairs with xr_ep_say */
		seq = xr_load_acquire(&e->seq);
		*got = *e;
		atomic_thread_fence(memory_order_acquire);
		if (seq == at + 1 && xr_load_relaxed(&e->seq) == seq) {
			xr_store_relaxed(&ep->heard, at + 1);
			return 1;
		}
		/* it is being written, or over it; who was killed in the middle of that will not come to an end */
		if (++tries > HEAR_TRIES)
			at++;
		else
			xr_sys2(SYS_nanosleep, &pause, NULL);
	}
	xr_store_relaxed(&ep->heard, at);
	return 0;
}

/* Another process has added it.  Both locks. */
static void hear_added(struct xr_epoll *ep, const struct xr_epsaid *e, const struct epoll_event *ev)
{
	struct xr_flow *f = e->flow;
	struct xr_epflow *ef = xr_ep_flow(f, 1);
	struct xr_epreg *r;

	if (!ef)
		return;
	if (f->owner_pid != xr_getpid())
		xr_ep_child_carries(f, ef);
	/* back with the kernel, or about to be: then that has it */
	if (!ef->attached || !(xr_load_acquire(&f->path) & XR_PATH_FABRIC) || xr_ep_share(ef, ep))
		return;
	r = xr_ep_reg_new(ep, f, ef, e->fd, ev);
	if (!r)
		return;
	r->said = 1;
	if (xr_ep_reg_attach(r, 0))
		xr_ep_reg_free(r);
	else
		xr_ep_kick(ep);
}

static void hear_one(struct xr_epoll *ep, const struct xr_epsaid *e)
{
	struct epoll_event ev = { .events = e->events };
	struct xr_epreg *r;

	ev.data.u64 = e->data;
	if (e->by == xr_getpid() || xr_fd_flow(e->fd) != e->flow)
		return;
	for (r = xr_ep_bucket(ep, e->flow); r; r = r->hash_next)
		if (r->flow == e->flow && r->fd == e->fd && r->ef == e->flow->own->regs)
			break;
	if (!r) {
		if (e->what == XR_EP_SAYS_SET)
			hear_added(ep, e, &ev);
		return;
	}
	if (!r->attached)
		return;
	/* this process knows as much of it now as the one that changed it, and may bring it to the kernel too */
	r->ef->heir = 1;
	r->said = 1;
	if (e->what == XR_EP_SAYS_SET) {
		xr_ep_reg_set(r, &ev);
		return;
	}
	if (e->what == XR_EP_SAYS_BACK) {
		/* what has become of it since is known to the kernel alone */
		xr_ep_reg_leave(r);
		if (r->absent)
			xr_ep_reg_free(r);
		return;
	}
	if (e->what == XR_EP_SAYS_GONE)
		r->absent = 1;
	else
		r->fired = 1;
	xr_ep_heir(r);
	r->seq++;
	xr_ep_unlist(r);
}

void xr_ep_hear_locked(struct xr_epoll *ep)
{
	struct xr_epsaid got;

	while (hear_next(ep, &got))
		hear_one(ep, &got);
}

void xr_ep_hear(struct xr_epoll *ep)
{
	/* a handler on top of who has it: with the next call */
	if (xr_ep_big_lock())
		return;
	if (!xr_ep_lock(ep)) {
		xr_ep_hear_locked(ep);
		xr_ep_unlock(ep);
	}
	xr_ep_big_unlock();
}
