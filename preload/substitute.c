/* SPDX-License-Identifier: BSD-2-Clause */
/* Descriptors of the program that become those of a stream which a relay serves: see relay.h. */
#include "hook.h"
#include "caretaker.h"
#include "log.h"
#include "ready.h"
#include "relay.h"

static void drop(struct xr_relay *r)
{
	uint32_t i;

	for (i = 0; i < r->n; i++) {
		xr_sys1(SYS_close, r->job[i].fd);
		xr_sys1(SYS_close, r->job[i].far);
		if (r->job[i].near >= 0)
			xr_sys1(SYS_close, r->job[i].near);
	}
	r->n = 0;
}

/* near in the place of fd, which keeps its flags. */
static void replace(int near, int fd)
{
	long flags = xr_sys3(SYS_fcntl, fd, F_GETFD, 0);

	xr_sys3(SYS_dup3, near, fd, flags > 0 && flags & FD_CLOEXEC ? O_CLOEXEC : 0);
}

/* As if the program had closed all its descriptors of the flow, and got near for each. */
static void replace_all(struct xr_flow *f, int near)
{
	struct xr_epoll_kept kept;
	int fd;

	xr_epoll_flow_take(f, &kept);
	for (fd = xr_fd_next(0); fd >= 0; fd = xr_fd_next(fd + 1)) {
		struct xr_fds_closing c;

		if (xr_fd_flow(fd) != f)
			continue;
		c = xr_fds_close_begin(fd);
		replace(near, fd);
		xr_fds_close_end(c);
	}
	xr_epoll_flow_put(&kept);
}

static const struct xr_relay_job *known(const struct xr_relay *r, const struct xr_flow *f)
{
	uint32_t i;

	for (i = 0; i < r->n; i++)
		if (r->job[i].f == f)
			return &r->job[i];
	return NULL;
}

int xr_relay_add(struct xr_relay *r, struct xr_flow *f, int fd)
{
	const struct xr_relay_job *old = known(r, f);
	int pair[2], own, e;

	if (old && old->near >= 0) {
		replace(old->near, fd);
		xr_vfork_changed(fd);
		return 0;
	}
	/*
	 * The parent goes on with the connection, and what a relay has taken from it is not the
	 * parent's any more: not while the peer may yet bring it to them both.
	 */
	if (xr_vfork_depth && !xr_flow_alone(f, fd))
		return -EBUSY;
	if (r->n == XR_RELAY_JOBS)
		xr_relay_run(r);
	e = xr_relay_pair(fd, pair);
	if (e)
		return e;
	own = (int)xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
	if (own < 0) {
		xr_sys1(SYS_close, pair[0]);
		xr_sys1(SYS_close, pair[1]);
		return own;
	}
	xr_store_relaxed(&f->reason, XR_REASON_SUBSTITUTED);
	xr_stats_reason(XR_REASON_SUBSTITUTED);
	xr_stats_flow_reason(f->st, XR_REASON_SUBSTITUTED);
	/* the relay's, before this process lets go */
	xr_fetch_add(&f->procs, 1);
	r->job[r->n] = (struct xr_relay_job){ .f = f, .fd = own, .near = -1, .far = pair[1] };
	if (xr_vfork_depth) {
		/* the table is the parent's, who has the connection and goes on with it */
		replace(pair[0], fd);
		xr_vfork_changed(fd);
		r->job[r->n].near = pair[0];
	} else {
		replace_all(f, pair[0]);
		xr_sys1(SYS_close, pair[0]);
	}
	r->n++;
	return 0;
}

void xr_relay_run(struct xr_relay *r)
{
	int keep[2 * XR_RELAY_JOBS];
	uint32_t i, k = 0;

	if (xr_likely(!r->n))
		return;
	for (i = 0; i < r->n; i++) {
		keep[k++] = r->job[i].fd;
		keep[k++] = r->job[i].far;
	}
	if (xr_care_spawn("xrdma-relay", keep, k, xr_relay_child, r)) {
		xr_error("no process to carry %u connections that are handed over: they end", r->n);
		xr_stats_add(XR_STAT_UNDELIVERED, r->n);
		for (i = 0; i < r->n; i++)
			xr_fetch_sub(&r->job[i].f->procs, 1);
	}
	drop(r);
}

void xr_relay_let_go(struct xr_relay *r, struct xr_flow *f, int fd, enum xr_reason why,
		     uint64_t wait_ns)
{
	if (xr_likely(!xr_flow_hand_over(f, fd, why, wait_ns)) || !xr_relay_add(r, f, fd))
		return;
	xr_flow_let_go(f, fd, why, 0);
}

void xr_let_go(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	struct xr_relay r;

	if (xr_likely(!xr_flow_hand_over(f, fd, why, wait_ns)))
		return;
	r.n = 0;
	xr_relay_let_go(&r, f, fd, why, wait_ns);
	xr_relay_run(&r);
}
