/* SPDX-License-Identifier: BSD-2-Clause */
#include "caretaker.h"
#include <errno.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "flow.h"
#include "log.h"
#include "mem.h"

#define CARE_NAP_NS	10000000u	/* what came while a lock was held elsewhere is seen after so long */

void xr_care_add(struct xr_care *c, struct xr_flow *f, int fd)
{
	if (!xr_flow_owes(f, fd))
		return;
	if (c->n == XR_CARE_JOBS)
		xr_care_run(c, XR_CARE_SOON_NS);
	c->job[c->n++] = (struct xr_care_job){ .f = f, .fd = fd };
}

static void care_reset(const struct xr_care_job *j)
{
	static const struct linger rst = { 1, 0 };

	/* a stream with a hole, or an end that is none, would be the other choice */
	xr_sys5(SYS_setsockopt, j->fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	xr_stats_add(XR_STAT_UNDELIVERED, 1);
}

/* Jobs that are done leave the list; `over` is told of each. */
static void care_until(struct xr_care *c, uint64_t end, void (*over)(struct xr_care_job *j))
{
	struct pollfd p[XR_CARE_JOBS];
	struct timespec ts;
	uint64_t now, nap;
	uint32_t i, n;

	for (;;) {
		for (i = 0, n = 0; i < c->n; i++) {
			uint32_t ev = xr_flow_owes(c->job[i].f, c->job[i].fd);

			if (!ev) {
				if (over)
					over(&c->job[i]);
				continue;
			}
			c->job[n] = c->job[i];
			p[n++] = (struct pollfd){ .fd = c->job[i].fd, .events = (short)ev };
		}
		c->n = n;
		now = xr_now_ns();
		if (!n || now >= end)
			return;
		nap = end - now < CARE_NAP_NS ? end - now : CARE_NAP_NS;
		ts = (struct timespec){ 0, (long)nap };
		xr_sys5(SYS_ppoll, p, n, &ts, 0, 8);
	}
}

/* ---- the process that is left behind ---------------------------------------- */

static void care_close_range(long first, long last)
{
	struct rlimit rl;
	long fd;

	if (first > last || xr_sys3(SYS_close_range, first, last, 0) != -ENOSYS)
		return;
	if (last == UINT32_MAX) {
		last = 1 << 20;
		if (!xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl) && rl.rlim_cur < (1 << 20))
			last = (long)rl.rlim_cur;
	}
	for (fd = first; fd <= last; fd++)
		xr_sys1(SYS_close, fd);
}

/* Pipes and files of the program must not stay open here, nor directories in use. */
static void care_let_go(const int *keep, uint32_t n)
{
	long from = 0, next;
	uint32_t i;

	for (;;) {
		next = -1;
		for (i = 0; i < n; i++)
			if (keep[i] >= from && (next < 0 || keep[i] < next))
				next = keep[i];
		if (next < 0)
			break;
		care_close_range(from, next - 1);
		from = next + 1;
	}
	care_close_range(from, UINT32_MAX);
	xr_sys1(SYS_chdir, "/");
}

static void __attribute__((noreturn)) care_exit(int status)
{
	for (;;)
		xr_sys1(SYS_exit_group, status);
}

/* As the kernel wants it; the flags and the restorer of a default action do not matter. */
struct care_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

/* Who stops a service asks every process of it to end. */
static void care_may_be_ended(void)
{
	static const struct care_sigaction dfl = { .handler = NULL };
	const uint64_t but_term = ~(1ull << (SIGTERM - 1));

	xr_sys4(SYS_rt_sigaction, SIGTERM, &dfl, 0, sizeof(but_term));
	xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &but_term, 0, sizeof(but_term));
}

int xr_care_spawn(const char *name, const int *keep, uint32_t n, void (*run)(void *arg), void *arg)
{
	const uint64_t all = ~0ull;
	uint64_t mask;
	long pid, r;
	int status = 0;

	/* a handler of the program must not run in it */
	xr_sys4(SYS_rt_sigprocmask, SIG_BLOCK, &all, &mask, sizeof(mask));
	/*
	 * Twice, so that it is nobody's child: of one that ends after an exec of its parent the
	 * kernel sends a SIGCHLD, whatever was asked for, and leaves a zombie.
	 */
	pid = xr_sys5(SYS_clone, 0, 0, 0, 0, 0);
	if (!pid) {
		pid = xr_sys5(SYS_clone, 0, 0, 0, 0, 0);
		if (pid)
			care_exit(pid < 0);
		xr_process_forked();
		xr_sys2(SYS_prctl, PR_SET_NAME, name);
		xr_sys0(SYS_setsid);
		care_let_go(keep, n);
		care_may_be_ended();
		run(arg);
		care_exit(0);
	}
	if (pid > 0)
		do {
			r = xr_sys4(SYS_wait4, pid, &status, __WCLONE, 0);
		} while (r == -EINTR);
	xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, sizeof(mask));
	return pid < 0 ? (int)pid : status ? -EAGAIN : 0;
}

static void care_close(struct xr_care_job *j)
{
	/* the owner reclaims the flow, if it lives */
	xr_fetch_sub(&j->f->procs, 1);
	xr_sys1(SYS_close, j->fd);
}

static void care_over(struct xr_care_job *j)
{
	xr_sys5(SYS_setsockopt, j->fd, SOL_SOCKET, SO_LINGER, &j->linger, sizeof(j->linger));
	care_close(j);
}

static void care_child(void *arg)
{
	static const struct linger rst = { 1, 0 };
	struct xr_care *c = arg;
	uint32_t i;

	/* who ends it before its time ends the connections with an RST, not with less than was sent */
	for (i = 0; i < c->n; i++) {
		socklen_t len = sizeof(rst);
		int fd = c->job[i].fd;

		xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, &c->job[i].linger, &len);
		xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	}
	care_until(c, xr_now_ns() + XR_CARE_NS, care_over);
	for (i = 0; i < c->n; i++) {
		care_reset(&c->job[i]);
		care_close(&c->job[i]);
	}
}

void xr_care_run(struct xr_care *c, uint64_t soon)
{
	int keep[XR_CARE_JOBS];
	uint32_t i;
	int r;

	care_until(c, soon ? xr_now_ns() + soon : 0, NULL);
	if (!c->n)
		return;
	/* before it is there: the flow is not reclaimed under its hands */
	for (i = 0; i < c->n; i++) {
		keep[i] = c->job[i].fd;
		xr_fetch_add(&c->job[i].f->procs, 1);
	}
	r = xr_care_spawn("xrdma-caretaker", keep, c->n, care_child, c);
	if (!r) {
		xr_stats_add(XR_STAT_CARETAKERS, 1);
	} else {
		xr_warn("no process to finish %u closed connections (error %d): they are reset", c->n, -r);
		for (i = 0; i < c->n; i++) {
			care_reset(&c->job[i]);
			xr_fetch_sub(&c->job[i].f->procs, 1);
		}
	}
	c->n = 0;
}
