/* SPDX-License-Identifier: BSD-2-Clause */
/* Flows between the outer set, which the program made, and the inner one. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include "epoll.h"
#include "fdtab.h"
#include "log.h"
#include "mem.h"
#include "ready.h"

/* The private bits of an epoll registration: all that is left of a fired EPOLLONESHOT. */
#define PRIVATE_EVENTS	(EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE)

/* ---- registrations ------------------------------------------------------- */

int xr_ep_reg_attach(struct xr_epreg *r, int in_outer)
{
	struct xr_epoll *ep = r->ep;
	int e;

	e = xr_ep_inner_make(ep);
	/* of a flow that a child has from its parent the kernel tells all that is news: its link is the parent's */
	if (!e && r->flow->owner_pid == xr_getpid())
		e = xr_ep_link_get(ep, r->flow, &r->link);
	if (e)
		return e;
	if (xr_load_relaxed(&r->ef->shared)) {
		e = xr_ep_shared_bell(ep, r->link);
		if (e)
			goto put_link;
	}
	if (in_outer && !r->parked) {
		e = xr_ep_sys_ctl(ep->outer, EPOLL_CTL_DEL, r->fd, 0, 0);
		if (e)
			goto put_link;
	}
	e = xr_ep_inner_add(r);
	if (e)
		goto add_outer;
	r->attached = 1;
	r->since = xr_cycles();
	r->shown = 0;
	r->parked = 0;
	xr_ep_heir(r);
	r->armed = 0;
	r->last = 0;
	r->force = 1;
	r->misses = 0;
	xr_fetch_add(&ep->attached, 1);
	xr_ep_push(r);
	return 0;

add_outer:
	if (in_outer && !r->parked)
		xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, r->fd, r->events, r->data);
put_link:
	xr_ep_link_put(ep, r->link);
	r->link = NULL;
	return e;
}

void xr_ep_reg_leave(struct xr_epreg *r)
{
	struct xr_flow *now = xr_fd_flow(r->fd);

	/*
	 * Fails when the descriptor is closed, and then the kernel has done it, or does when the
	 * last duplicate goes: what it reports till then names a generation that is gone.
	 */
	if (!now || now == r->flow)
		xr_ep_sys_ctl(r->ep->inner, EPOLL_CTL_DEL, r->fd, 0, 0);
	r->attached = 0;
	xr_ep_heir(r);
	xr_fetch_sub(&r->ep->attached, 1);
	xr_ep_unlist(r);
	xr_ep_link_put(r->ep, r->link);
	r->link = NULL;
}

#define REGS_CLOSED	32	/* registrations of one socket under numbers that are closed */

/*
 * Its number is closed, or somebody else's: so it stays, as in the kernel, under one that no call
 * can name.  Another one for each: the kernel knows them by number, and keeps those of earlier.
 */
static int reg_add_closed(const struct xr_epreg *r)
{
	int held[REGS_CLOSED], n = 0, e;

	do {
		e = (int)xr_sys3(SYS_fcntl, xr_flow_fd(r->flow), F_DUPFD_CLOEXEC, 3);
		if (e < 0)
			break;
		held[n] = e;
		e = xr_fd_high(e);
		if (e < 0) {
			xr_sys1(SYS_close, held[n]);
			break;
		}
		held[n++] = e;
		e = xr_ep_sys_ctl(r->ep->outer, EPOLL_CTL_ADD, e, r->events, r->data);
	} while (e == -EEXIST && n < REGS_CLOSED);
	while (n)
		xr_fd_close(held[--n]);
	return e;
}

/* Back in the outer set, with the program's interest.  Both locks. */
static void reg_detach(struct xr_epreg *r)
{
	struct xr_epoll *ep = r->ep;
	struct xr_flow *f = r->flow;
	int e;

	/* another process may have brought it there, and changed it since */
	if (xr_ep_must_hear(ep)) {
		uint16_t gen = r->gen;

		xr_ep_hear_locked(ep);
		if (r->gen != gen || !r->attached)
			return;
	}
	xr_ep_reg_leave(r);
	r->seq++;
	/* what a child made of it is in the kernel's set already, or is that child's to bring there */
	if (r->absent || (xr_ep_child_changed(r) && !r->ef->heir)) {
		xr_ep_reg_free(r);
		return;
	}
	if (r->fired && (ep->parents || r->said)) {
		/* the nearest that the kernel has to a fired one: the other processes can arm it again */
		if (!xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, r->fd, EPOLLONESHOT, r->data))
			xr_ep_say(r, XR_EP_SAYS_BACK);
		return;
	}
	if (r->fired) {
		/* no kernel registration says nothing at all; the next MOD makes one */
		r->parked = 1;
		xr_ep_heir(r);
		return;
	}
	if (xr_likely(xr_fd_flow(r->fd) == f))
		e = xr_ep_sys_ctl(ep->outer, EPOLL_CTL_ADD, r->fd, r->events, r->data);
	else
		e = reg_add_closed(r);
	if (!e)
		xr_ep_say(r, XR_EP_SAYS_BACK);
	/* of two processes that changed it the file's own has the last word */
	if (e == -EEXIST && r->ef->heir && !ep->parents)
		e = xr_ep_sys_ctl(ep->outer, EPOLL_CTL_MOD, r->fd, r->events, r->data);
	if (e && e != -EEXIST)
		xr_warn("a descriptor could not return to its epoll set: error %d", -e);
}

/* ---- EPOLLONESHOT: has it fired? ------------------------------------------ */

static unsigned long long hex_after(const char *line, const char *key, int base)
{
	const char *p = strstr(line, key);
	unsigned long long v = 0;

	if (!p)
		return ~0ull;
	for (p += strlen(key); *p == ' '; p++)
		;
	for (;; p++) {
		int d = *p >= '0' && *p <= '9' ? *p - '0' :
			base == 16 && *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;

		if (d < 0)
			return v;
		v = v * (unsigned int)base + (unsigned int)d;
	}
}

/*
 * The kernel shows a registration's present mask in /proc/self/fdinfo, and only there.
 * Returns 1 fired, 0 armed, -errno.
 */
int xr_ep_reg_has_fired(const struct xr_epreg *r)
{
	char path[40] = "/proc/self/fdinfo/", num[12], buf[2048], *nl;
	size_t have = 0, i, d = 0;
	unsigned int v = (unsigned int)r->ep->outer;
	int fd, ret = -ENOENT;

	do {
		num[d++] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	for (i = strlen(path); d; i++)
		path[i] = num[--d];
	path[i] = 0;
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	for (;;) {
		long n = xr_sys3(SYS_read, fd, buf + have, sizeof(buf) - 1 - have);

		if (n <= 0)
			break;
		have += (size_t)n;
		buf[have] = 0;
		while ((nl = strchr(buf, '\n'))) {
			*nl = 0;
			if (!strncmp(buf, "tfd:", 4) &&
			    hex_after(buf, "tfd:", 10) == (unsigned int)r->fd &&
			    hex_after(buf, "data:", 16) == r->data)
				ret = !(hex_after(buf, "events:", 16) & ~(uint64_t)PRIVATE_EVENTS);
			have -= (size_t)(nl + 1 - buf);
			memmove(buf, nl + 1, have + 1);
		}
		if (have == sizeof(buf) - 1)
			have = 0;
	}
	xr_sys1(SYS_close, fd);
	return ret;
}

/* ---- flows --------------------------------------------------------------- */

/* May the registration be moved?  Notes what became of an EPOLLONESHOT. */
static int reg_check(struct xr_epreg *r, int several)
{
	int e;

	/* whom of several the kernel would wake is known to it alone */
	if (r->ep->gen != xr_ep_gen || (several && (r->events & EPOLLEXCLUSIVE)))
		return -EINVAL;
	/* registered under a number that was closed since: nobody can change it any more */
	if (xr_fd_flow(r->fd) != r->flow)
		return -EINVAL;
	/* acquire: pairs with xr_ep_child_changes; what is on record here is not what the kernel has */
	if (xr_load_acquire(&r->flow->epoll_child) || xr_ep_is_taken(r->ep))
		return -EXDEV;
	e = xr_ep_inner_make(r->ep);
	if (e || r->parked || !(r->events & EPOLLONESHOT))
		return e;
	/*
	 * A fired one stays fired until the program's next MOD, which waits for our lock.
	 * An armed one could fire in another thread this very moment.
	 */
	e = xr_ep_reg_has_fired(r);
	if (e == 1) {
		r->fired = 1;
		xr_ep_heir(r);
	}
	return e == 1 ? 0 : e ? e : -EAGAIN;
}

/* All registrations, or none.  Under big, by which they stay as they are. */
static int flow_attach(struct xr_epflow *ef)
{
	struct xr_epreg *r, *done;
	int e = 0, several = 0;

	for (r = ef->regs; r; r = r->flow_next)
		several |= r->ep != ef->regs->ep;
	for (r = ef->regs; r && !e; r = r->flow_next) {
		if (xr_ep_lock(r->ep))
			return -EDEADLK;
		e = reg_check(r, several);
		xr_ep_unlock(r->ep);
	}
	if (e)
		return e;
	xr_store_relaxed(&ef->shared, (uint8_t)several);
	for (r = ef->regs; r; r = r->flow_next) {
		e = xr_ep_lock(r->ep);
		if (e)
			break;
		e = xr_ep_reg_attach(r, 1);
		/* one of the two sees the other: a child that has come since has looked at what was there */
		if (!e && xr_unlikely(xr_ep_is_taken(r->ep))) {
			reg_detach(r);
			e = -EXDEV;
		}
		if (!e)
			xr_ep_kick(r->ep);
		xr_ep_unlock(r->ep);
		if (e)
			break;
	}
	for (done = e ? ef->regs : r; done != r; done = done->flow_next) {
		/* left to the epoll_wait that meets it */
		if (xr_ep_lock(done->ep))
			continue;
		reg_detach(done);
		xr_ep_unlock(done->ep);
	}
	return e;
}

int xr_epoll_flow_attach(struct xr_flow *f)
{
	struct xr_epflow *ef;
	int e = 0;

	if (xr_ep_big_lock())
		return -EDEADLK;
	e = xr_ep_settle(f);
	ef = e ? NULL : xr_ep_flow(f, 1);
	if (!e && !ef)
		e = -ENOMEM;
	if (!e && !ef->attached)
		e = flow_attach(ef);
	if (!e)
		ef->attached = 1;
	xr_ep_big_unlock();
	return e;
}

void xr_epoll_flow_detach(struct xr_flow *f)
{
	struct xr_epflow *ef;
	struct xr_epreg *r, *next;

	if (!f->own->regs || xr_ep_big_lock())
		return;
	ef = xr_ep_flow(f, 0);
	/* a thread that saw the flow on TCP may come here late, when it is on a fabric again */
	if (!ef || !ef->attached || (xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		goto unlock_big;
	for (r = ef->regs; r; r = next) {
		struct xr_epoll *ep = r->ep;

		next = r->flow_next;
		if (!r->attached || xr_ep_lock(ep))
			continue;
		reg_detach(r);
		xr_ep_unlock(ep);
	}
	ef->attached = 0;
	/* one that could not be locked goes when its epoll_wait meets it */
	for (r = ef->regs; r; r = r->flow_next)
		if (r->attached)
			ef->attached = 1;
unlock_big:
	xr_ep_big_unlock();
}

int xr_epoll_flow_attached(struct xr_flow *f)
{
	struct xr_epflow *ef;
	int r;

	if (!f->own->regs)
		return 0;
	if (xr_ep_big_lock())
		return 1;
	ef = xr_ep_flow(f, 0);
	r = ef && ef->attached;
	xr_ep_big_unlock();
	return r;
}

void xr_epoll_flow_closed(struct xr_flow *f)
{
	struct xr_epflow *ef = xr_ep_flow(f, 0);
	struct xr_epreg *r, *next;

	if (!ef)
		return;
	/* before anything else: an epoll_wait that meets a registration now lets it be */
	xr_store_release(&ef->closed, 1);
	if (xr_ep_big_lock()) {
		xr_store_release(&f->own->regs, NULL);
		return;
	}
	for (r = ef->regs; r; r = next) {
		struct xr_epoll *ep = r->ep;

		next = r->flow_next;
		if (xr_ep_lock(ep))
			continue;
		if (xr_unlikely(xr_flow_holders(f) > 1))
			xr_ep_heir_leave(r);
		if (r->attached)
			xr_ep_reg_leave(r);
		xr_ep_reg_free(r);
		xr_ep_unlock(ep);
	}
	if (!ef->regs)
		xr_ep_flow_free(ef);
	xr_store_release(&f->own->regs, NULL);
	xr_ep_big_unlock();
}

void xr_ep_flow_kick(struct xr_epflow *ef)
{
	struct xr_epreg *r;

	for (r = ef->regs; r; r = r->flow_next) {
		/* in a handler on top of the holder: that looks at everything again */
		if (!r->attached || xr_ep_lock(r->ep))
			continue;
		r->armed = 0;
		xr_ep_push(r);
		xr_ep_kick(r->ep);
		xr_ep_unlock(r->ep);
	}
}

void xr_epoll_flow_kick(struct xr_flow *f)
{
	struct xr_epflow *ef = xr_ep_flow(f, 0);

	if (!ef || !ef->regs)
		return;
	if (xr_ep_big_lock()) {
		xr_ep_note(ef);
		return;
	}
	xr_ep_flow_kick(ef);
	xr_ep_big_unlock();
}

void xr_epoll_flow_full(struct xr_flow *f)
{
	struct xr_epflow *ef = xr_ep_flow(f, 0);
	struct xr_epreg *r;

	/* racy look: a registration made this moment reports what it finds anyway */
	if (!ef || !ef->attached || !ef->regs || xr_ep_big_lock())
		return;
	for (r = ef->regs; r; r = r->flow_next) {
		if (!r->attached || !(r->events & EPOLLOUT) || xr_ep_lock(r->ep))
			continue;
		r->last &= ~(uint32_t)(EPOLLOUT | EPOLLWRNORM);
		xr_ep_push(r);
		xr_ep_kick(r->ep);
		xr_ep_unlock(r->ep);
	}
	xr_ep_big_unlock();
}
