/* SPDX-License-Identifier: BSD-2-Clause */
/* The ready list of an epoll file: who is looked at, what is reported, who is armed. */
#include <errno.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "mem.h"
#include "ready.h"
#include "user.h"

#define BATCH	32	/* registrations looked at between two holds of the lock */
#define ORDER_PASSES	3	/* beyond the first, over those that were looked at too early */

/* One look at a registration, by a thread that does not hold the lock. */
struct ep_visit {
	struct xr_epreg *reg;
	struct xr_flow *flow;
	struct xr_epflow *ef;
	struct xr_eplink *link;		/* a reference, so that what is looked at stays mapped */
	uint64_t pos;
	uint32_t events, kernel, raw;
	int fd;
	uint16_t seq;
	uint8_t arm;
};

/* ---- lists --------------------------------------------------------------- */

void xr_ep_unlist(struct xr_epreg *r)
{
	if (r->place == XR_EP_NOWHERE)
		return;
	xr_epnode_del(&r->node);
	if (r->place == XR_EP_IN_READY)
		r->ep->nready--;
	else
		r->ep->nhot--;
	r->place = XR_EP_NOWHERE;
}

/* On the ready list, whatever the caller's reason. */
static void ready_add(struct xr_epreg *r)
{
	if (r->place == XR_EP_IN_READY)
		return;
	xr_ep_unlist(r);
	xr_epnode_add_tail(&r->ep->ready, &r->node);
	r->place = XR_EP_IN_READY;
	r->ep->nready++;
}

void xr_ep_push(struct xr_epreg *r)
{
	r->ep->rested = 0;
	if (r->busy)
		r->again = 1;
	else if (!r->fired && !r->absent)
		ready_add(r);
}

void xr_ep_kick(struct xr_epoll *ep)
{
	static const uint64_t one = 1;

	/* a thread that is awake looks at the lists before it sleeps or leaves */
	if (xr_load_relaxed(&ep->awake) || ep->kick < 0)
		return;
	if (ep->sleepers || xr_load_relaxed(&ep->plain) || ep->watched)
		xr_sys3(SYS_write, ep->kick, &one, sizeof(one));
}

void xr_ep_unbusy(struct xr_epoll *ep)
{
	uint32_t i, self = (uint32_t)xr_gettid();
	struct xr_epreg *r;

	for (i = 0; i < ep->nbuckets; i++)
		for (r = ep->bucket[i]; r; r = r->hash_next)
			if (r->busy == self) {
				r->busy = 0;
				r->again = 0;
				xr_ep_push(r);
			}
}

/* ---- links --------------------------------------------------------------- */

static void push_flow(void *arg, struct xr_flow *f)
{
	struct xr_epreg *r;

	for (r = xr_ep_bucket(arg, f); r; r = r->hash_next)
		if (r->flow == f && r->attached) {
			r->armed = 0;
			xr_ep_push(r);
		}
}

static void take_entry(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	struct xr_flow *f;

	if (xr_unlikely(cookie == UINT32_MAX)) {
		xr_flow_each(l, push_flow, arg);
		return;
	}
	f = xr_flow_by_cookie(l, cookie);
	if (f)
		push_flow(arg, f);
}

static void take_entries(struct xr_epoll *ep)
{
	struct xr_epnode *n;

	for (n = ep->active.next; n != &ep->active; n = n->next) {
		struct xr_shm_link *l = xr_eplink_of(n)->link;

		if (xr_shm_link_pending(l, ep->waiter))
			xr_shm_link_harvest(l, ep->waiter, take_entry, ep);
	}
}

/* "Sleeping" on one link; 1 and nothing changed when entries came in just now. */
static int link_doze(struct xr_epoll *ep, struct xr_eplink *k)
{
	xr_shm_link_sleeping(k->link, ep->waiter, 1);
	if (xr_unlikely(xr_shm_link_pending(k->link, ep->waiter))) {
		xr_shm_link_sleeping(k->link, ep->waiter, 0);
		return 1;
	}
	xr_epnode_del(&k->node);
	k->active = 0;
	ep->nactive--;
	return 0;
}

void xr_ep_activate(struct xr_epoll *ep, struct xr_eplink *k)
{
	ep->rested = 0;
	if (k->active)
		return;
	xr_shm_link_sleeping(k->link, ep->waiter, 0);
	k->active = 1;
	xr_epnode_add_tail(&ep->active, &k->node);
	/* looking at all peers must not cost more than their doorbells would */
	if (++ep->nactive > XR_EP_ACTIVE)
		link_doze(ep, xr_eplink_of(ep->active.next));
}

int xr_ep_doze(struct xr_epoll *ep)
{
	struct xr_epnode *n, *next;
	int hit = 0;

	for (n = ep->active.next; n != &ep->active; n = next) {
		next = n->next;
		hit |= link_doze(ep, xr_eplink_of(n));
	}
	return hit;
}

/* ---- one look ------------------------------------------------------------ */

/* What the program waits for, as POLLIN and POLLOUT. */
static uint32_t reg_wants(const struct xr_epreg *r)
{
	uint32_t want = 0;

	/* RDHUP comes with the peer's END; after our own END so does HUP */
	if ((r->events & (EPOLLIN | EPOLLRDNORM | EPOLLRDHUP)) || r->flow->tx_shut)
		want |= POLLIN;
	if (r->events & (EPOLLOUT | EPOLLWRNORM))
		want |= POLLOUT;
	return want;
}

static void visit_begin(struct ep_visit *v, struct xr_epreg *r, int rest)
{
	uint32_t want;

	xr_ep_unlist(r);
	r->busy = (uint32_t)xr_gettid();
	r->again = 0;
	v->reg = r;
	v->flow = r->flow;
	v->ef = r->ef;
	v->link = r->link;
	if (xr_likely(v->link != NULL))
		v->link->nregs++;
	/* its own number may be closed: any descriptor of the flow will do */
	v->fd = xr_flow_fd(r->flow);
	v->events = r->events;
	v->kernel = r->kernel;
	v->seq = r->seq;
	v->pos = 0;
	v->arm = 0;
	r->key = 0;
	r->kernel = 0;
	if (rest || r->must_arm) {
		want = reg_wants(r);
		v->arm = (want & POLLIN ? XR_EP_ARM_IN : 0) |
			 (want & POLLOUT && r->blocked ? XR_EP_ARM_OUT : 0);
		v->arm &= (uint8_t)~r->armed;
		/* an answer that comes before visit_end clears it again */
		r->armed |= v->arm;
		r->must_arm = 0;
	}
}

/*
 * Arms the flow for this file's waiter.  A thread that sleeps on the flow has lost its
 * place by that: it is rung, looks, arms again, and kicks us when it leaves.
 */
static void visit_arm_for(const struct ep_visit *v, uint32_t waiter)
{
	static const uint64_t one = 1;
	int dir;

	xr_flow_arm(v->flow, waiter, (v->arm & XR_EP_ARM_IN ? POLLIN : 0) |
				     (v->arm & XR_EP_ARM_OUT ? POLLOUT : 0));
	for (dir = 0; dir < 2; dir++) {
		/* after the full barrier of arming; pairs with "claim, then arm" */
		uint32_t t = v->arm & (dir ? XR_EP_ARM_OUT : XR_EP_ARM_IN) ?
			xr_waiter_claimed(v->flow, dir) : 0;
		int bell = t && v->link ? xr_shm_link_bell(v->link->link, t) : -1;

		if (bell >= 0)
			xr_sys3(SYS_write, bell, &one, sizeof(one));
	}
}

static void visit_arm(const struct ep_visit *v, uint32_t waiter)
{
	/* acquire: with it the waiter that the files share is there */
	if (xr_unlikely(xr_load_acquire(&v->ef->shared))) {
		visit_arm_for(v, xr_ep_shared_waiter());
		return;
	}
	visit_arm_for(v, waiter);
	/*
	 * Another file has come to it, and this has undone its arming.  Pairs with the store in
	 * xr_ep_share: arming is a full barrier.
	 */
	if (xr_unlikely(xr_load_relaxed(&v->ef->shared))) {
		visit_arm_for(v, xr_ep_shared_waiter());
		xr_epoll_flow_kick(v->flow);
	}
}

/* Everything that takes locks of the flow. */
static void visit(struct ep_visit *v, uint32_t waiter)
{
	struct xr_flow *f = v->flow;

	if (v->kernel)
		xr_flow_kernel_event(f, v->kernel);
	if (v->arm)
		visit_arm(v, waiter);
	v->raw = xr_flow_poll(f, v->fd);
	if (v->raw == UINT32_MAX)
		return;
	if (v->raw & POLLIN)
		v->raw |= EPOLLRDNORM;
	if (v->raw & POLLOUT)
		v->raw |= EPOLLWRNORM;
	/* as in poll_flow */
	if (xr_unlikely(v->events & EPOLLPRI))
		v->raw |= xr_ksock_poll(v->fd, POLLPRI) & POLLPRI;
	/* also when all was read since: what has arrived is an edge for all that stands */
	if ((v->events & EPOLLET) && (v->events & (EPOLLIN | EPOLLRDNORM))) {
		long inq = xr_flow_inq(f, v->fd);

		/* racy against other readers of the flow: at worst one event too many */
		v->pos = xr_load_relaxed(&f->tcp_rx) + xr_load_relaxed(&f->rx.got) + (uint64_t)(inq > 0 ? inq : 0);
		/* what is left to drain is counted by neither: compare only within one state */
		v->pos -= xr_flow_drain_left(f);
		v->pos ^= (uint64_t)f->rx_state << 60;
	}
	/* each notice on the error queue is an edge */
	v->pos ^= (uint64_t)xr_load_relaxed(&f->zc_extra) << 24;
	/* the end of either direction wakes all who wait, and shows them what stands */
	v->pos ^= (v->raw & POLLRDHUP ? 1ull << 59 : 0) | (uint64_t)(f->rx_shut != 0) << 58 |
		  (uint64_t)(f->tx_shut != 0) << 57;
}

/* What is to be reported: level, or what is new since the last report. */
static uint32_t visit_news(const struct ep_visit *v)
{
	const struct xr_epreg *r = v->reg;
	uint32_t m = v->raw & r->events;

	/* a reset or an end that the kernel tells of wakes all, whatever they wait for */
	if (!(r->events & EPOLLET) || r->force || (v->kernel & (EPOLLERR | EPOLLHUP)))
		return m;
	return (m & ~r->last) || (m && v->pos != r->pos) ? m : 0;
}

/* Nothing to report: who will tell us?  1: it must be looked at once more, after arming. */
static int visit_rest(const struct ep_visit *v, int rest)
{
	struct xr_epreg *r = v->reg;
	struct xr_flow *f = r->flow;
	uint32_t want = reg_wants(r), need = 0, look;

	r->blocked = !(v->raw & POLLOUT);
	if (want & POLLOUT && r->blocked)
		need |= XR_EP_ARM_OUT;
	if (want & POLLIN)
		need |= XR_EP_ARM_IN;
	if (!(need & ~(uint32_t)r->armed))
		return 0;
	/* what is there already cannot be looked for, only new arrivals be told; nor can the rest of SO_RCVLOWAT */
	look = want & ~v->raw & (POLLIN | POLLOUT);
	if (!rest && f->rcvlowat <= 1 && r->ep->nhot < XR_EP_HOT && r->misses < XR_EP_MISSES &&
	    (!(need & XR_EP_ARM_IN) || (look & POLLIN && f->rx_state == XR_RX_RING)) &&
	    (!(need & XR_EP_ARM_OUT) || f->tx_state == XR_TX_RING)) {
		r->want = look;
		xr_epnode_add_tail(&r->ep->hot, &r->node);
		r->place = XR_EP_IN_HOT;
		r->ep->nhot++;
		r->ep->rested = 0;
		return 0;
	}
	r->misses = 0;
	r->must_arm = 1;
	ready_add(r);
	return 1;
}

/* 0: to be left alone, freed or changed meanwhile; UINT32_MAX flows are the caller's. */
static int visit_end(struct ep_visit *v)
{
	struct xr_epreg *r = v->reg;

	r->busy = 0;
	xr_ep_link_put(r->ep, v->link);
	if (xr_unlikely(r->dead)) {
		xr_ep_reg_recycle(r);
		return 0;
	}
	if (xr_unlikely(!r->attached))
		return 0;
	/* closed by a handler that could not take it off the lists */
	if (xr_unlikely(xr_load_relaxed(&r->ef->closed)))
		return 0;
	if (xr_unlikely(r->seq != v->seq)) {
		r->again = 0;
		xr_ep_push(r);
		return 0;
	}
	return v->raw != UINT32_MAX;
}

/*
 * Returns 1 when *ev was filled, -EFAULT when it cannot be; *more when the registration wants
 * another look.  now: when the looks began.
 */
static int visit_report(struct ep_visit *v, struct epoll_event *ev, int rest, uint32_t round,
			uint64_t now, int *more)
{
	struct xr_epreg *r = v->reg;
	struct epoll_event own;
	uint32_t news;
	int again;

	if (!visit_end(v))
		return 0;
	again = r->again;
	r->again = 0;
	news = visit_news(v);
	if (news) {
		own.events = news;
		own.data.u64 = r->data;
		if (xr_unlikely(xr_user_put(ev, &own, sizeof(own)))) {
			/* as if it had not been looked at */
			ready_add(r);
			return -EFAULT;
		}
	}
	r->shown = news != 0;
	r->since = now;
	r->force = 0;
	if (news) {
		r->last = news;
		r->pos = v->pos;
		r->round = round;
		r->misses = 0;
		if (r->events & EPOLLONESHOT) {
			r->fired = 1;
			xr_ep_heir(r);
			if (xr_unlikely(r->ep->parents != NULL))
				xr_ep_child_changes(r->ep, r->flow, r->ef);
			xr_ep_say(r, XR_EP_SAYS_FIRED);
			return 1;
		}
		ready_add(r);
		r->ep->rested = 0;
		return 1;
	}
	r->last &= v->raw;
	if (again) {
		xr_ep_push(r);
		*more += 1;
	} else {
		*more += visit_rest(v, rest);
	}
	return 0;
}

/* ---- all of them --------------------------------------------------------- */

/* Takes up to max off the list, but none that was reported in this round. */
static int batch_begin(struct xr_epoll *ep, struct ep_visit *v, int max, int rest, uint32_t round,
		       int *budget)
{
	int n = 0;

	for (; n < max && *budget > 0 && ep->nready; (*budget)--) {
		struct xr_epreg *r = xr_epreg_of(ep->ready.next);

		if (round && r->round == round) {
			xr_ep_unlist(r);
			ready_add(r);
			continue;
		}
		visit_begin(&v[n++], r, rest);
	}
	return n;
}

/* Flows that went back to the kernel behind our back (the peer's doing, a child's). */
static void batch_heal(struct ep_visit *v, int n)
{
	int i;

	for (i = 0; i < n; i++)
		if (xr_unlikely(v[i].raw == UINT32_MAX))
			xr_epoll_flow_detach(v[i].flow);
}

static void hot_walk(struct xr_epoll *ep, int rest)
{
	struct xr_epnode *n, *next;

	for (n = ep->hot.next; n != &ep->hot; n = next) {
		struct xr_epreg *r = xr_epreg_of(n);

		next = n->next;
		if (rest || xr_flow_peek(r->flow, r->want) || ++r->misses >= XR_EP_MISSES)
			xr_ep_push(r);
	}
}

void xr_ep_patrol(struct xr_epoll *ep)
{
	struct xr_epreg *r;
	uint32_t i;

	for (i = 0; i < ep->nbuckets; i++)
		for (r = ep->bucket[i]; r; r = r->hash_next)
			if (r->attached && xr_flow_unrung(r->flow)) {
				r->armed = 0;
				xr_ep_push(r);
			}
}

/* The lock may be dropped in between; -errno: it was lost by that. */
static int take_inner(struct xr_epoll *ep)
{
	xr_ep_take_inner(ep);
	if (xr_likely(!xr_load_relaxed(&ep->rang)))
		return 0;
	xr_ep_unlock(ep);
	xr_ep_shared_take(ep);
	return xr_ep_lock(ep);
}

int xr_ep_has_work(struct xr_epoll *ep)
{
	struct xr_epnode *n;

	if (ep->nready || xr_load_relaxed(&ep->dirty))
		return 1;
	for (n = ep->active.next; n != &ep->active; n = n->next)
		if (xr_shm_link_pending(xr_eplink_of(n)->link, ep->waiter))
			return 1;
	for (n = ep->hot.next; n != &ep->hot; n = n->next)
		if (xr_flow_peek(xr_epreg_of(n)->flow, xr_epreg_of(n)->want))
			return 1;
	return 0;
}

/* All that is to be looked at comes to the ready list, in order.  Returns when the looks began. */
static uint64_t ready_fill(struct xr_epoll *ep, int rest)
{
	struct xr_epnode *last = ep->ready.prev;
	int passes = 0;
	uint64_t now;

	do {
		now = xr_cycles();
		take_entries(ep);
		hot_walk(ep, rest);
	} while (xr_load_relaxed(&ep->attached) > 1 && xr_unlikely(xr_ep_order(ep, last, now)) &&
		 passes++ < ORDER_PASSES);
	return now;
}

int xr_ep_collect(struct xr_epoll *ep, struct epoll_event *evs, int max, int rest, uint32_t round)
{
	struct ep_visit v[BATCH];
	int n = 0, i, k, r, budget, fault = 0;
	uint64_t now;

	if (xr_ep_lock(ep))
		return -EDEADLK;
	if (xr_load_relaxed(&ep->dirty) && take_inner(ep))
		return 0;
	now = ready_fill(ep, rest);
	/* each once, and once more after arming; what is told meanwhile is for the next call */
	budget = (int)ep->nready;
	while (n < max && budget > 0 && !fault) {
		k = batch_begin(ep, v, max - n < BATCH ? max - n : BATCH, rest, round, &budget);
		if (!k)
			break;
		xr_ep_unlock(ep);
		for (i = 0; i < k; i++)
			visit(&v[i], ep->waiter);
		batch_heal(v, k);
		if (xr_ep_lock(ep))
			return n;
		for (i = 0; i < k; i++) {
			r = visit_report(&v[i], &evs[n], rest, round, now, &budget);
			fault |= r;
			n += r > 0;
		}
		/* the kernel does not try the next one either, but we have looked at them already */
		fault = fault < 0;
	}
	xr_ep_unlock(ep);
	return n || !fault ? n : -EFAULT;
}

/* As visit_report, for the next thread to report.  1: it has something to report. */
static int visit_keep(struct ep_visit *v, int *more)
{
	struct xr_epreg *r = v->reg;

	if (!visit_end(v))
		return 0;
	if (visit_news(v)) {
		/* armed, so that more of it rings; what was just reported is not news */
		ready_add(r);
		return !r->shown;
	}
	r->shown = 0;
	if (r->again) {
		ready_add(r);
		return 1;
	}
	*more += visit_rest(v, 1);
	return 0;
}

void xr_ep_handover(struct xr_epoll *ep)
{
	static const uint64_t one = 1;
	struct ep_visit v[BATCH];
	int i, k, left = 0, budget;

	/* whatever lies in the inner set makes the descriptor readable */
	if ((ep->watched || xr_load_relaxed(&ep->dirty)) && take_inner(ep))
		return;
	ready_fill(ep, 1);
	budget = (int)ep->nready;
	ep->rested = 1;
	while (budget > 0) {
		k = batch_begin(ep, v, BATCH, 1, 0, &budget);
		if (!k)
			break;
		xr_ep_unlock(ep);
		for (i = 0; i < k; i++)
			visit(&v[i], ep->waiter);
		batch_heal(v, k);
		if (xr_ep_lock(ep))
			return;
		for (i = 0; i < k; i++)
			left |= visit_keep(&v[i], &budget);
	}
	left |= xr_ep_doze(ep);
	/* something new came while the lock was free: whoever is kicked sees to it */
	left |= !ep->rested;
	ep->rested = 1;
	if (left || (ep->watched && ep->nready))
		xr_sys3(SYS_write, ep->kick, &one, sizeof(one));
}
