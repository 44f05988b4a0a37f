/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An epoll file that a forked child has inherited.
 *
 * The kernel's objects are shared with the parent, the records are not: the child finds in family memory
 * what is registered, and never edits the parent's inner set.  All that is in the file goes back to TCP, and
 * into the outer set, whose registrations are both processes': what both have the child brings there, the
 * rest, which it may know nothing of, the parent, which is told (child_tells, xr_ep_lend).  From then on
 * nothing in the file leaves TCP.
 * Until nothing lies unread in the ring any more, and nothing is owed, it is in an inner set of the child's own.
 * That lies in no set that the parent has, so the child sleeps on a third one (`top`) that holds both.
 *
 * The parent's token is for the parent, but the kernel tells of it whom it finds first.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include "control.h"
#include "epoll.h"
#include "fdtab.h"
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "segfile.h"

#define CHANGED_ALL	UINT16_MAX	/* several files */

/* ---- what a child inherits ----------------------------------------------- */

/* Together 64 KiB. */
#define HEIRS	1180u
#define SHARES	12u

#define SHARES_MORE	80u	/* in 64 KiB */

/* Family memory, never given back: a registration has one for as long as its memory is there. */
static struct heirs {
	struct heirs *next;
	_Atomic uint32_t n;
	uint32_t gen;			/* xr_ep_gen of the process that takes from it */
	struct xr_epshare share[SHARES];	/* of its first files; in the first that it made */
	char bell[XR_SEGFILE_PATH];	/* as said in xr_epshare */
	struct xr_epheir heir[HEIRS];
} *heirs;
_Static_assert(sizeof(struct heirs) <= 65536, "pages of it are not shared with anything else");

static XR_FORK_DATA struct xr_epheir *heir_free;
static XR_FORK_DATA uint32_t heir_orphans;
static XR_FORK_DATA struct heirs *heirs_own;	/* the first */
static XR_FORK_DATA struct xr_epshare *share_fresh;
static XR_FORK_DATA uint32_t share_left;

static struct heirs *heirs_more(void)
{
	struct heirs *c = xr_map_family(sizeof(*c));

	if (!c)
		return NULL;
	c->next = heirs;
	c->gen = xr_ep_gen;
	heirs = c;
	if (!heirs_own || heirs_own->gen != xr_ep_gen) {
		/* what is left of the parent's is not for a child to take */
		heirs_own = c;
		share_fresh = c->share;
		share_left = SHARES;
	}
	return c;
}

struct xr_epshare *xr_ep_share_new(void)
{
	struct xr_epshare *more;

	/* most processes have few files: these cost the fork no mapping of their own */
	if ((!heirs_own || heirs_own->gen != xr_ep_gen) && !heirs_more())
		return NULL;
	if (!share_left) {
		more = xr_map_family(SHARES_MORE * sizeof(*more));
		if (!more)
			return NULL;
		share_fresh = more;
		share_left = SHARES_MORE;
	}
	share_left--;
	return share_fresh++;
}

void xr_ep_share_bell(struct xr_epoll *ep)
{
	const char *bell = xr_control_bell();

	if (ep->parents || !bell || xr_load_relaxed(&ep->share->bell) || strlen(bell) >= sizeof(heirs_own->bell))
		return;
	/* the path of a process is the same as long as it lives */
	if (!*heirs_own->bell)
		memcpy(heirs_own->bell, bell, strlen(bell) + 1);
	/* release: pairs with xr_ep_share_ring */
	xr_store_release(&ep->share->bell, heirs_own->bell);
}

/* For the owner of a file, by the eventfd that was there at the fork, or else by what there is for operators. */
int xr_ep_share_ring(const struct xr_epoll *old)
{
	static const uint64_t one = 1;
	const char *bell;

	if (old->kick >= 0)
		return xr_sys3(SYS_write, old->kick, &one, sizeof(one)) > 0;
	/* acquire: pairs with xr_ep_share_bell */
	bell = old->parents || !old->share ? NULL : xr_load_acquire(&old->share->bell);
	if (!bell)
		return 0;
	xr_control_ring(bell);
	return 1;
}

/* No child is left who might go by them. */
static void heirs_sweep(void)
{
	struct heirs *c;
	uint32_t i;

	if (xr_flow_kid_lives())
		return;
	heir_orphans = 0;
	for (c = heirs; c && c->gen == xr_ep_gen; c = c->next)
		for (i = 0; i < xr_load_relaxed(&c->n); i++)
			if (c->heir[i].orphan) {
				c->heir[i].orphan = 0;
				c->heir[i].ep = NULL;
				c->heir[i].flow = (struct xr_flow *)(void *)heir_free;
				heir_free = &c->heir[i];
			}
}

struct xr_epheir *xr_ep_heir_new(void)
{
	struct heirs *c = heirs;
	struct xr_epheir *h;
	uint32_t n;

	if (xr_unlikely(heir_orphans >= HEIRS / 4))
		heirs_sweep();
	h = heir_free;
	if (h) {
		heir_free = (struct xr_epheir *)(void *)h->flow;
		return h;
	}
	/* one of the parent's is not for a child to take from */
	if (!c || c->gen != xr_ep_gen || xr_load_relaxed(&c->n) == HEIRS)
		c = heirs_more();
	if (!c)
		return NULL;
	n = xr_load_relaxed(&c->n);
	/* release: what is new there is zero */
	xr_store_release(&c->n, n + 1);
	return &c->heir[n];
}

void xr_ep_heir_leave(struct xr_epreg *r)
{
	if (!r->heir)
		return;
	r->heir->orphan = 1;
	r->heir = NULL;
	heir_orphans++;
}

/* What a registration is now, in a process that may not be the one that changes it. */
static struct xr_epheir heir_read(const struct xr_epheir *h)
{
	struct xr_epheir got;
	uint32_t seq, tries = 0;

	do {
		/* acquire: pairs with xr_ep_heir */
		seq = xr_load_acquire(&h->seq);
		got = *h;
		atomic_thread_fence(memory_order_acquire);
		/* who was killed in the middle of it will not come to an end */
	} while (((seq & 1) || seq != xr_load_relaxed(&h->seq)) && ++tries < 100000);
	return got;
}

/* The next one of the file, after h.  All of them are looked at, for calls that few children make. */
static struct xr_epheir *heir_next(const struct xr_epoll *ep, struct heirs **chunk, struct xr_epheir *h)
{
	struct heirs *c = *chunk;

	for (h = h ? h + 1 : c ? c->heir : NULL; c; h = c ? c->heir : NULL) {
		/* acquire: pairs with xr_ep_heir_new */
		for (; h < c->heir + xr_load_acquire(&c->n); h++)
			if (h->ep == ep && h->token == ep->token)
				goto found;
		c = c->next;
	}
	h = NULL;
found:
	*chunk = c;
	return h;
}

/* ---- the child's calls --------------------------------------------------- */

/* Which file, in the 16 bits that a flow has for it; two that share them cost one registration a system call. */
static uint16_t file_mark(const struct xr_epoll *ep)
{
	return (uint16_t)(ep->token % (CHANGED_ALL - 1) + 1);
}

static int child_changed(const struct xr_flow *f, const struct xr_epoll *ep)
{
	uint16_t mark = xr_load_acquire(&f->epoll_child);	/* pairs with xr_ep_child_changes */

	return xr_unlikely(mark) && (mark == CHANGED_ALL || mark == file_mark(ep));
}

/*
 * What the parent had in its inner set.  While the hooks still carry the flow, for what is unread or owed, it
 * lies in the inner sets of both; then in the outer one, where the first of the two puts it, and the other meets
 * EEXIST.  Under big, the file's lock held.
 */
static void take_over(struct xr_epoll *ep, const struct xr_epheir *h)
{
	struct epoll_event ev = { .events = h->events };
	struct xr_flow *f = h->flow;
	int carried = (xr_load_acquire(&f->path) & XR_PATH_FABRIC) != 0, e = -ENOMEM;
	struct xr_epflow *ef;
	struct xr_epreg *r;

	ev.data.u64 = h->data;
	/* another child's, which has it on record or has put it where all find it */
	if (child_changed(f, ep) && !h->heir)
		return;
	if (!carried && !h->fired) {
		xr_ep_sys_ctl(ep->epfd, EPOLL_CTL_ADD, h->fd, h->events, h->data);
		return;
	}
	ef = xr_ep_flow(f, 1);
	if (!ef)
		goto lost;
	ef->heir |= h->heir;
	xr_ep_child_carries(f, ef);
	if (carried && xr_ep_share(ef, ep))
		goto lost;
	r = xr_ep_reg_new(ep, f, ef, h->fd, &ev);
	if (!r)
		goto lost;
	r->fired = h->fired;
	r->parked = !carried;
	xr_ep_heir(r);
	e = carried ? xr_ep_reg_attach(r, 0) : 0;
	if (!e)
		return;
	xr_ep_reg_free(r);
lost:
	/* what lies unread is told with what comes next */
	xr_warn("a descriptor of a parent's epoll set is watched by the kernel alone: error %d", -e);
	if (!h->fired)
		xr_ep_sys_ctl(ep->epfd, EPOLL_CTL_ADD, h->fd, h->events, h->data);
}

static int is_heir(const struct xr_epheir *h)
{
	return (h->attached || h->parked) && !h->absent && xr_fd_flow(h->fd) == h->flow;
}

#define TELL_WAIT	1000000000u	/* ns: on a machine that is busy even one that is woken may take its time */
#define TELL_PAUSE	50000u		/* ns; at first */
#define TELL_PAUSE_MAX	2000000u

/* A child comes: what is wanted from now on; 0: its parent has closed the file, and nobody is to be told. */
static uint64_t share_take(struct xr_epshare *s, uint32_t life)
{
	uint64_t was = xr_load_relaxed(&s->want), want;

	do {
		if ((uint32_t)(was >> 32) != life)
			return 0;
		/* never 0, which would mean that none has come */
		want = (uint64_t)life << 32 | ((uint32_t)(was + 1) ? (uint32_t)(was + 1) : 1);
		/* seq_cst: pairs with xr_ep_is_taken and wait_is_asleep */
	} while (!xr_cas(&s->want, &was, want));
	return want;
}

/* Its parent has done so, or has closed the file. */
static int share_is_seen(const struct xr_epshare *s, uint64_t want)
{
	/* acquire: pairs with xr_ep_lend; what it has put into the kernel's set is there */
	uint64_t seen = xr_load_acquire(&s->seen);

	return seen >> 32 != want >> 32 || (int32_t)((uint32_t)seen - (uint32_t)want) >= 0;
}

/*
 * The file is this process's too from now on, and what is in it the kernel's to tell.  Its owner sees to that with its
 * next call on it; where it sleeps in one it is rung for, and given the time to come.  What it does
 * not do, since it has gone or is busy, this process does for what it has itself.
 */
static void child_tells(const struct xr_epoll *old)
{
	struct xr_epshare *s = old->share;
	uint64_t want = s ? share_take(s, old->life) : 0, end;
	struct timespec pause = { 0, TELL_PAUSE };
	const struct xr_epoll *p;

	if (!want)
		return;
	for (p = old; p; p = p->parents)
		xr_ep_share_ring(p);
	end = xr_now_ns() + TELL_WAIT;
	while (!share_is_seen(s, want) && atomic_load(&s->asleep) && xr_ns_left(end)) {
		/* who was killed in its sleep still counts */
		if (xr_sys2(SYS_kill, xr_load_relaxed(&s->owner), 0) == -ESRCH)
			break;
		xr_sys2(SYS_nanosleep, &pause, NULL);
		if (pause.tv_nsec < (long)TELL_PAUSE_MAX)
			pause.tv_nsec *= 2;
	}
}

/* A flow that is in the inner set, and has not been told to leave the fabric; NULL: there is none. */
static struct xr_flow *lend_next(struct xr_epoll *ep, int *fd)
{
	struct xr_epreg *r;
	uint32_t i;

	for (i = 0; i < ep->nbuckets; i++)
		for (r = ep->bucket[i]; r; r = r->hash_next)
			if (r->attached && !xr_load_relaxed(&r->flow->upgrade_off) && xr_fd_flow(r->fd) == r->flow) {
				*fd = r->fd;
				return r->flow;
			}
	return NULL;
}

void xr_ep_lend(struct xr_epoll *ep)
{
	uint64_t want = xr_load_acquire(&ep->share->want);
	struct xr_flow *f;
	int fd = -1;

	do {
		if (xr_ep_lock(ep))
			return;
		/* closed meanwhile, and another file by now, which nobody has taken up */
		if (xr_unlikely(ep->life != want >> 32)) {
			xr_ep_unlock(ep);
			return;
		}
		f = lend_next(ep, &fd);
		if (!f) {
			xr_store_relaxed(&ep->lent, want);
			xr_ep_inner_alone(ep);
		}
		xr_ep_unlock(ep);
		if (!f)
			break;
		if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
			xr_flow_retreat_as(f, fd, XR_REASON_INHERITED, XR_RETREAT_SEAL, 0);
		else
			xr_flow_stay_tcp(f, fd, XR_REASON_INHERITED);
	} while (xr_load_relaxed(&f->upgrade_off));
	/* a handler on top of who has it: with the next call */
	if (f)
		return;
	/* release: pairs with share_is_seen */
	xr_store_release(&ep->share->seen, want);
}

struct xr_epoll *xr_ep_adopt(struct xr_epoll *old, int epfd)
{
	struct heirs *c;
	struct xr_epoll *ep;
	struct xr_epheir *h, got;
	uint32_t heard;
	int fd;

	child_tells(old);
	heard = old->share ? xr_load_relaxed(&old->share->nsaid) : 0;
	c = heirs;
	/* before big: it takes locks of the flow */
	for (h = heir_next(old, &c, NULL); h; h = heir_next(old, &c, h)) {
		got = heir_read(h);
		if (is_heir(&got))
			xr_flow_retreat_as(got.flow, got.fd, XR_REASON_FORKED, XR_RETREAT_SEAL, 0);
	}
	if (xr_ep_big_lock())
		return NULL;
	ep = xr_fd_epoll(epfd);
	if (ep != old) {
		/* another thread was faster */
		xr_ep_big_unlock();
		return ep && ep->gen == xr_ep_gen ? ep : NULL;
	}
	ep = xr_ep_file_new(epfd, old->token, old);
	if (!ep || xr_ep_lock(ep)) {
		xr_ep_big_unlock();
		return NULL;
	}
	ep->fds = 0;
	/* what the owner has said before is in what it left */
	xr_store_relaxed(&ep->heard, heard);
	for (fd = xr_fd_next(0); fd >= 0; fd = xr_fd_next(fd + 1))
		if (xr_fd_epoll(fd) == old && xr_fd_set(fd, ep, XR_FD_EPOLL) != (uintptr_t)-1)
			ep->fds++;
	c = heirs;
	for (h = heir_next(old, &c, NULL); h; h = heir_next(old, &c, h)) {
		got = heir_read(h);
		if (is_heir(&got))
			take_over(ep, &got);
	}
	xr_ep_unlock(ep);
	xr_ep_big_unlock();
	return ep;
}

#define PASS_ON_ECHO	10000000u	/* ns: a token that comes so soon is what this process has rung for */
#define PASS_ON_PAUSE	100000		/* ns */

void xr_ep_child_pass_on(struct xr_epoll *ep)
{
	static const struct timespec pause = { 0, PASS_ON_PAUSE };
	uint64_t now = xr_now_ns();
	const struct xr_epoll *old;
	int rung = 0;

	/* the parent does not listen now: it looks when it comes */
	if (now - xr_xchg(&ep->passed, 0) < PASS_ON_ECHO)
		return;
	for (old = ep->parents; old; old = old->parents)
		rung |= xr_ep_share_ring(old);
	if (!rung)
		return;
	/* relaxed: threads that meet here ring once more, or once less */
	xr_store_relaxed(&ep->passed, now);
	xr_sys2(SYS_nanosleep, &pause, NULL);
}

int xr_ep_lent(const struct xr_epoll *ep)
{
	return ep->forks != xr_flow_kid_forks() && xr_flow_kid_lives();
}

void xr_ep_child_changes(struct xr_epoll *ep, struct xr_flow *f, struct xr_epflow *ef)
{
	uint16_t none = 0, mark = file_mark(ep);

	/* release: pairs with child_changed */
	if (!xr_cas(&f->epoll_child, &none, mark) && none != mark)
		xr_store_release(&f->epoll_child, CHANGED_ALL);
	if (ef)
		ef->heir = 1;
}

/*
 * The registration changes for both processes.  So the flow goes to TCP for good, where the kernel's
 * set is all there is to know: the parent drops its record when it next comes by, and only then, since
 * it may be asleep in a call that is no hook.
 */
void xr_ep_child_ctl(struct xr_epoll *ep, int fd, struct xr_flow *f)
{
	/* before it is on TCP: the parent, which may be what brings it there, leaves the outer set alone */
	xr_ep_child_changes(ep, f, NULL);
	xr_flow_retreat_as(f, fd, XR_REASON_INHERITED, XR_RETREAT_SEAL, 0);
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		xr_epoll_flow_detach(f);
	if (xr_ep_big_lock())
		return;
	xr_ep_child_changes(ep, f, xr_ep_flow(f, 1));
	xr_ep_big_unlock();
}

void xr_ep_child_close(struct xr_epoll *ep)
{
	struct xr_epoll *old;
	struct xr_epreg *r;
	uint32_t i;

	for (i = 0; i < ep->nbuckets; i++)
		for (r = ep->bucket[i]; r; r = r->hash_next)
			if (r->attached && !r->absent && !r->fired && r->ef->heir && xr_fd_flow(r->fd) == r->flow)
				xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, r->fd, r->events, r->data);
	for (old = ep->parents; old; old = old->parents) {
		xr_fd_close(old->inner);
		xr_fd_close(old->kick);
		xr_fd_close(old->nudge);
		xr_fd_close(old->outer);
		xr_fd_close(xr_load_relaxed(&old->top));
	}
}

int xr_ep_child_changed(const struct xr_epreg *r)
{
	return child_changed(r->flow, r->ep);
}

/*
 * A flow of the parent's in a file of the child's own.  It has gone back to TCP for good, but what is unread, or owed,
 * the hooks still carry, in this process as in others: so it is in the inner set, like any flow on a fabric,
 * for as long as that lasts.  There is no link to it: nobody rings here, since all that is new comes by the socket.
 */
void xr_ep_child_carries(struct xr_flow *f, struct xr_epflow *ef)
{
	if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		ef->attached = 1;
}

void xr_ep_child_forget(struct xr_flow *f)
{
	struct xr_epflow *ef;
	struct xr_epreg *r, *next;

	if (xr_ep_big_lock())
		return;
	ef = xr_ep_flow(f, 0);
	/* the kernel gets it as this process leaves it, now or when all bytes are back on TCP */
	for (r = ef ? ef->regs : NULL; r; r = r->flow_next)
		if (r->attached && xr_ep_child_changed(r))
			ef->heir = 1;
	xr_ep_big_unlock();
	xr_epoll_flow_detach(f);
	if (xr_ep_big_lock())
		return;
	ef = xr_ep_flow(f, 0);
	for (r = ef ? ef->regs : NULL; r; r = next) {
		struct xr_epoll *ep = r->ep;

		next = r->flow_next;
		if (!xr_ep_child_changed(r) || r->attached || r->parked || xr_ep_lock(ep))
			continue;
		xr_ep_reg_free(r);
		xr_ep_unlock(ep);
	}
	xr_ep_big_unlock();
}
