/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * poll(2) over flows and everything else.
 *
 * Each round looks at all flows on a fabric and at the rest through the kernel; then
 * busy-waits; then arms the flows, looks once more and sleeps in one kernel poll over
 * the rest, the sockets of the flows and one doorbell per peer process.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include "control.h"
#include "fdtab.h"
#include "flow.h"
#include "mem.h"
#include "pollset.h"
#include "process.h"
#include "ready.h"
#include "user.h"
#include "waiter.h"

#define POLL_SMALL	32	/* descriptors for which the stack will do */
#define POLL_LOOK	6000u	/* cycles (~2 us) between looks at the kernel while spinning */
#define POLL_MUTE	10000000u /* ns: a descriptor shows only what select does not report */

enum poll_how {
	POLL_KERNEL,		/* the kernel's business alone */
	POLL_COUNT,		/* a flow on TCP that may move: kept there while the kernel polls */
	POLL_FABRIC,
};

struct poll_item {
	struct xr_flow *f;
	uint32_t gen;		/* of f, while held: it may be closed meanwhile */
	uint8_t how;
	uint8_t held;		/* POLL_COUNT: xr_flow_kpoll_begin done */
	uint8_t claimed;	/* POLL_FABRIC: 1 receive, 2 send */
	uint8_t muted;
};

struct poll_link {
	struct xr_shm_link *l;	/* referenced */
	int bell, dozing;
};

struct poll_run {
	const struct xr_poll_args *a;
	struct poll_item *item;
	struct pollfd *k;	/* n for the set, then one per link, then the operator's bell */
	struct poll_link *link;
	uint32_t nlinks, w;
	uint32_t nfabric, nkernel, ncount;
	uint32_t nsets;		/* epoll files */
	uint64_t looked;	/* cycle count of the last look at the kernel */
	struct xr_signal_mark mark;
	void *scratch;
	size_t own;
	uint64_t slice;		/* longest sleep, ns; 0: any */
	int told;		/* the program's revents are set */
};

/* ---- what counts ---------------------------------------------------------- */

/* The results that count as an answer for what was asked. */
static uint32_t poll_relevant(const struct xr_poll_args *a, uint32_t events)
{
	uint32_t m = POLLNVAL;

	if (!a->select)
		return (events & 0xffff) | POLLERR | POLLHUP | POLLNVAL;
	if (events & POLLIN)
		m |= POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR;
	if (events & POLLOUT)
		m |= POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR;
	if (events & POLLPRI)
		m |= POLLPRI;
	return m;
}

/* POLLIN and POLLOUT to arm a flow for. */
static uint32_t poll_wants(const struct xr_flow *f, uint32_t events)
{
	uint32_t want = 0;

	if ((events & (POLLIN | POLLRDNORM | POLLRDHUP)) || f->tx_shut)
		want |= POLLIN;
	if (events & (POLLOUT | POLLWRNORM))
		want |= POLLOUT;
	return want;
}

/*
 * What bytes alone answer: who asks for the peer's end only does not look for them, neither
 * while it spins nor on the socket, where they may lie unread all the time.
 */
static uint32_t poll_wants_now(const struct xr_flow *f, uint32_t events)
{
	uint32_t want = poll_wants(f, events);

	return events & (POLLIN | POLLRDNORM) || !(want & POLLIN) ? want :
	       (want & ~(uint32_t)POLLIN) | POLLRDHUP;
}

static uint32_t poll_flow(const struct pollfd *p, struct xr_flow *f)
{
	uint32_t m = xr_flow_poll(f, p->fd);

	if (m == UINT32_MAX)
		return xr_ksock_poll(p->fd, (uint32_t)(unsigned short)p->events);
	if (m & POLLIN)
		m |= POLLRDNORM;
	if (m & POLLOUT)
		m |= POLLWRNORM;
	/* urgent data is the kernel's, and there before the program has read what the ring still has */
	if (xr_unlikely(p->events & POLLPRI))
		m |= xr_ksock_poll(p->fd, POLLPRI) & POLLPRI;
	return m & ((uint32_t)(unsigned short)p->events | POLLERR | POLLHUP);
}

/* ---- one look -------------------------------------------------------------- */

static void poll_sort(struct poll_run *p)
{
	const struct xr_poll_args *a = p->a;
	nfds_t i;

	p->nfabric = 0;
	p->nkernel = 0;
	p->ncount = 0;
	p->nsets = 0;
	for (i = 0; i < a->n; i++) {
		struct xr_flow *f = xr_fd_flow(a->fds[i].fd);
		uint32_t path = f ? xr_load_acquire(&f->path) : 0;
		struct poll_item *t = &p->item[i];

		t->f = f;
		p->k[i].fd = -1;
		p->k[i].events = a->fds[i].events;
		if (path & (XR_PATH_FABRIC | XR_PATH_MOVE)) {
			t->how = POLL_FABRIC;
			p->nfabric++;
			continue;
		}
		t->how = path ? POLL_COUNT : POLL_KERNEL;
		p->ncount += path != 0;
		if (a->fds[i].fd < 0)
			continue;
		p->nkernel++;
		if (!t->muted)
			p->k[i].fd = a->fds[i].fd;
		/* what its flows have shows in the kernel from here on, and nothing that they had */
		if (!f && xr_unlikely(xr_fd_epoll(a->fds[i].fd) != NULL) && !xr_vfork_depth) {
			int shown = xr_epoll_watch(a->fds[i].fd);

			p->k[i].fd = t->muted ? -1 : shown;
			p->nsets++;
		}
	}
}

static int poll_kernel(struct poll_run *p, const sigset_t *sigmask)
{
	static const struct timespec zero;
	struct timespec ts = zero;

	p->looked = xr_cycles();
	return (int)xr_sys5(SYS_ppoll, p->k, p->a->n, &ts, sigmask, 8);
}

/* Fills in revents after a kernel poll with result r; the number of entries that count, or r. */
static int poll_take(struct poll_run *p, int r)
{
	const struct xr_poll_args *a = p->a;
	nfds_t i;
	int n = 0;

	for (i = 0; i < a->n; i++) {
		struct pollfd *fd = &a->fds[i];
		uint32_t m = 0;

		if (p->item[i].how == POLL_FABRIC)
			m = poll_flow(fd, p->item[i].f);
		else if (r > 0 && p->k[i].fd >= 0)
			m = (uint32_t)(unsigned short)p->k[i].revents;
		fd->revents = (short)m;
		if (!(m & poll_relevant(a, (uint32_t)(unsigned short)fd->events))) {
			p->item[i].muted |= m != 0 && p->item[i].how != POLL_FABRIC;
			fd->revents = 0;
		} else {
			n++;
		}
	}
	return n ? n : r < 0 ? r : 0;
}

static int poll_look(struct poll_run *p, const sigset_t *sigmask)
{
	int r = 0;

	poll_sort(p);
	if (p->nkernel || sigmask)
		r = poll_kernel(p, sigmask);
	return poll_take(p, r);
}

static int poll_expired(const struct xr_poll_args *a)
{
	return a->has_deadline && (!a->deadline || xr_now_ns() >= a->deadline);
}

static int poll_peek(void *arg)
{
	struct poll_run *p = arg;
	const struct xr_poll_args *a = p->a;
	nfds_t i;

	for (i = 0; i < a->n; i++)
		if (p->item[i].how == POLL_FABRIC &&
		    xr_flow_peek(p->item[i].f, poll_wants_now(p->item[i].f,
						(uint32_t)(unsigned short)a->fds[i].events)))
			return 1;
	if (xr_signal_mark().any != p->mark.any)
		return 1;
	if (xr_cycles() - p->looked <= POLL_LOOK)
		return 0;
	if (p->nkernel && poll_kernel(p, NULL))
		return 1;
	p->looked = xr_cycles();
	return poll_expired(a);
}

/* ---- the sleep -------------------------------------------------------------- */

/* The bell of the flow's link; -1: sleep in slices. */
static int poll_link(struct poll_run *p, struct xr_flow *f)
{
	struct xr_shm_link *l = xr_flow_link_get(f);
	uint32_t i;
	int bell;

	if (!l)
		return -1;
	/* flows of one peer process mostly stand together */
	for (i = p->nlinks; i > 0; i--)
		if (p->link[i - 1].l == l) {
			xr_link_unref(l);
			return p->link[i - 1].bell;
		}
	bell = p->w && l->owner_pid == xr_getpid() ? xr_shm_link_bell(l, p->w) : -1;
	if (bell < 0) {
		xr_link_unref(l);
		return -1;
	}
	xr_waiter_forget(l, p->w);
	p->link[p->nlinks++] = (struct poll_link){ .l = l, .bell = bell };
	return bell;
}

static void poll_arm(struct poll_run *p, struct poll_item *t, int fd, uint32_t events)
{
	uint32_t want = poll_wants(t->f, events);

	if (poll_link(p, t->f) < 0) {
		p->slice = XR_WAIT_SLICE;
		xr_flow_link_lost(t->f, fd);
		return;
	}
	if ((want & POLLIN) && xr_waiter_claim(t->f, 0, p->w))
		t->claimed |= 1;
	if ((want & POLLOUT) && xr_waiter_claim(t->f, 1, p->w))
		t->claimed |= 2;
	if ((want & POLLIN && !(t->claimed & 1)) || (want & POLLOUT && !(t->claimed & 2)))
		p->slice = XR_WAIT_SLICE;
	xr_flow_arm(t->f, p->w, (t->claimed & 1 ? POLLIN : 0) | (t->claimed & 2 ? POLLOUT : 0));
}

static void poll_let_go(struct poll_item *t)
{
	if (t->held && xr_load_relaxed(&t->f->gen) == t->gen)
		xr_flow_kpoll_end(t->f);
	t->held = 0;
}

static void poll_undo(void *arg)
{
	struct poll_run *p = arg;
	nfds_t i;
	uint32_t j;

	for (j = 0; j < p->nlinks; j++)
		if (p->link[j].dozing)
			xr_waiter_rise(p->link[j].l, p->w);
	for (i = 0; i < p->a->n; i++) {
		struct poll_item *t = &p->item[i];

		poll_let_go(t);
		if (t->claimed & 1)
			xr_waiter_unclaim(t->f, 0, p->w);
		if (t->claimed & 2)
			xr_waiter_unclaim(t->f, 1, p->w);
		t->claimed = 0;
	}
	for (j = 0; j < p->nlinks; j++)
		xr_link_unref(p->link[j].l);
	p->nlinks = 0;
	xr_waiter_leave(p->w);
}

static void poll_cancelled(void *arg)
{
	struct poll_run *p = arg;

	poll_undo(p);
	if (p->scratch)
		xr_scratch_put(p->scratch, p->own);
}

/* All flows armed and the rest held still.  0: sleep; 1: something moved or is ready. */
static int poll_prepare(struct poll_run *p)
{
	const struct xr_poll_args *a = p->a;
	nfds_t i;
	uint32_t j;

	for (i = 0; i < a->n; i++) {
		struct poll_item *t = &p->item[i];

		if (t->how == POLL_FABRIC) {
			poll_arm(p, t, a->fds[i].fd,
				 (uint32_t)(unsigned short)a->fds[i].events);
			/*
			 * After the claim: from now on its return to TCP wakes us.  seq_cst, as the
			 * claim and the change of path are.
			 */
			if (!(atomic_load(&t->f->path) & (XR_PATH_FABRIC | XR_PATH_MOVE)))
				return 1;
			if (xr_flow_holders(t->f) > 1 && !p->slice)
				p->slice = XR_WAIT_LONG;
		} else if (t->how == POLL_COUNT) {
			t->gen = xr_load_relaxed(&t->f->gen);
			if (!xr_flow_kpoll_begin(t->f))
				return 1;
			t->held = 1;
		}
	}
	for (i = 0; i < a->n; i++) {
		struct poll_item *t = &p->item[i];
		uint32_t events = (uint32_t)(unsigned short)a->fds[i].events, ev;

		if (t->muted)
			p->slice = p->slice ? p->slice : POLL_MUTE;
		if (t->how != POLL_FABRIC)
			continue;
		if (poll_flow(&a->fds[i], t->f) & poll_relevant(a, events))
			return 1;
		ev = xr_flow_kernel_mask(t->f, poll_wants_now(t->f, events));
		p->k[i].fd = ev ? a->fds[i].fd : -1;
		p->k[i].events = (short)(ev | (events & POLLPRI));
		if (!ev && !p->slice)
			p->slice = XR_WAIT_LONG;
	}
	for (j = 0; j < p->nlinks; j++) {
		p->link[j].dozing = 1;
		if (xr_waiter_doze(p->link[j].l, p->w))
			return 1;
		p->k[a->n + j].fd = p->link[j].bell;
		p->k[a->n + j].events = POLLIN;
	}
	return 0;
}

/* The kernel poll.  A function of its own, since cancellation leaves it by longjmp. */
static __attribute__((noinline)) int poll_in_kernel(struct poll_run *p, struct pollfd *k,
						    uint32_t n, uint64_t deadline)
{
	int r;

	pthread_cleanup_push(poll_cancelled, p);
	r = xr_sleep_poll(k, n, deadline, p->a->sigmask, p->mark, 1);
	pthread_cleanup_pop(0);
	return r;
}

/* > 0: look again; 0: the time is over; -errno. */
static int poll_sleep(struct poll_run *p)
{
	const struct xr_poll_args *a = p->a;
	uint64_t deadline = !a->has_deadline ? 0 : a->deadline ? a->deadline : 1, slice = 0;
	uint32_t bell, j;
	nfds_t i;
	int r = 1;

	p->slice = 0;
	p->w = xr_waiter_enter();
	if (poll_prepare(p))
		goto undo;
	if (!p->slice && (p->nfabric || p->nsets))
		p->slice = XR_WAIT_PEER;
	if (p->slice)
		slice = xr_now_ns() + p->slice;
	/* an operator's wish concerns flows on a fabric alone */
	bell = (uint32_t)a->n + p->nlinks;
	p->k[bell].fd = p->nfabric ? xr_control_fd() : -1;
	p->k[bell].events = POLLIN;
	p->k[bell].revents = 0;
	r = poll_in_kernel(p, p->k, bell + (p->k[bell].fd >= 0), xr_deadline_min(deadline, slice));
	if (xr_unlikely(r > 0 && p->k[bell].revents))
		xr_control_drain();
	if (r == -EINVAL && p->nlinks)
		/* more descriptors than the limit with the bells: without them, in slices */
		r = poll_in_kernel(p, p->k, (uint32_t)a->n,
				   xr_deadline_min(deadline, xr_now_ns() + XR_WAIT_SLICE));
	for (j = 0; r > 0 && j < p->nlinks; j++)
		if (p->k[a->n + j].revents)
			xr_bell_drain(p->link[j].bell);
	for (i = 0; r > 0 && i < a->n; i++)
		if (p->item[i].how == POLL_FABRIC && p->k[i].fd >= 0 && p->k[i].revents)
			xr_flow_kernel_event(p->item[i].f,
					     (uint32_t)(unsigned short)p->k[i].revents);
	for (i = 0; !r && p->slice == XR_WAIT_PEER && i < a->n; i++)
		if (p->item[i].how == POLL_FABRIC)
			xr_flow_unrung(p->item[i].f);
	if (!r)
		r = poll_expired(a) ? 0 : 1;
undo:
	poll_undo(p);
	/* as in xr_wait_flow */
	if (p->nfabric)
		xr_flow_sweep_slept(xr_now_ns());
	return r;
}

/* ---- the whole -------------------------------------------------------------- */

/*
 * Flows that may move, but are all on TCP still: one kernel poll, as without us, during
 * which they stay there.  0: take the long way.
 */
static int poll_counted(struct poll_run *p, int *ret)
{
	const struct xr_poll_args *a = p->a;
	int done = 0, r = 0;
	nfds_t i;

	poll_sort(p);
	if (p->nfabric || p->nsets)
		return 0;
	p->slice = 0;
	p->w = 0;
	if (!poll_prepare(p)) {
		r = poll_in_kernel(p, a->user ? a->user : p->k, (uint32_t)a->n,
				   !a->has_deadline ? 0 : a->deadline ? a->deadline : 1);
		done = 1;
	}
	for (i = 0; i < a->n; i++)
		poll_let_go(&p->item[i]);
	if (!done)
		return 0;
	if (a->user) {
		/* the kernel has told the program */
		p->told = 1;
		*ret = r;
		return 1;
	}
	*ret = poll_take(p, r);
	/* nothing, and not for want of time: select has no word for what the kernel showed */
	return *ret || !r;
}

static int poll_run(struct poll_run *p)
{
	const struct xr_poll_args *a = p->a;
	uint32_t *budget = xr_spin_poll();
	int n, last = 0, vain = 0;

	if (poll_counted(p, &n))
		return n;
	for (;;) {
		uint64_t then;

		xr_control_check();
		last |= poll_expired(a);
		n = poll_look(p, last ? a->sigmask : NULL);
		if (n || last)
			return n;
		if (p->nfabric) {
			/* what stands and was not asked for, as unread bytes for RDHUP, is no reason */
			if (vain < 2 && xr_spin(budget, 1, poll_peek, p) &&
			    xr_signal_mark().any == p->mark.any) {
				vain++;
				continue;
			}
			vain = 0;
		}
		then = xr_now_ns();
		n = poll_sleep(p);
		if (n < 0)
			return n;
		if (p->nfabric && n)
			xr_spin_slept(budget, 1, xr_now_ns() - then);
		last = !n;
	}
}

/* The program is told about all of its descriptors, whatever the outcome.  0 or -EFAULT. */
static int poll_tell(struct pollfd *user, const struct pollfd *fds, nfds_t n)
{
	nfds_t i;

	for (i = 0; i < n; i++)
		if (xr_user_put(&user[i].revents, &fds[i].revents, sizeof(fds[i].revents)))
			return -EFAULT;
	return 0;
}

int xr_poll_wait(const struct xr_poll_args *args)
{
	struct xr_poll_args a = *args;
	struct pollfd own[POLL_SMALL];
	struct poll_item item[POLL_SMALL];
	struct poll_link link[POLL_SMALL];
	struct pollfd k[2 * POLL_SMALL + 1];
	struct poll_run p = { .a = &a, .item = item, .link = link, .k = k };
	size_t per = sizeof(item[0]) + sizeof(link[0]) + 2 * sizeof(k[0]) + sizeof(own[0]);
	int n;

	p.mark = xr_signal_mark();
	if (a.user)
		a.fds = own;
	if (a.n > POLL_SMALL) {
		if (a.n > UINT32_MAX / 4)
			return -EINVAL;
		p.scratch = xr_scratch_get(a.n * per + sizeof(k[0]),
					   (uintptr_t)__builtin_frame_address(0), &p.own);
		if (!p.scratch)
			return -ENOMEM;
		p.item = p.scratch;
		p.link = (struct poll_link *)(p.item + a.n);
		p.k = (struct pollfd *)(p.link + a.n);
		if (a.user)
			a.fds = p.k + 2 * a.n + 1;
	}
	memset(p.item, 0, a.n * sizeof(*p.item));
	if (a.user && xr_user_get(a.fds, a.user, a.n * sizeof(own[0]))) {
		n = -EFAULT;
	} else {
		n = poll_run(&p);
		if (a.user && !p.told && (n >= 0 || n == -EINTR) && poll_tell(a.user, a.fds, a.n))
			n = -EFAULT;
	}
	if (p.scratch)
		xr_scratch_put(p.scratch, p.own);
	return n;
}

int xr_poll(struct pollfd *fds, nfds_t n, uint64_t deadline, int has_deadline,
	    const sigset_t *sigmask)
{
	struct xr_poll_args a = { .user = fds, .n = n, .deadline = deadline,
				  .has_deadline = has_deadline, .sigmask = sigmask };

	return xr_poll_wait(&a);
}
