/* SPDX-License-Identifier: BSD-2-Clause */
#include "caretaker.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "flow.h"
#include "hold.h"
#include "log.h"
#include "mem.h"
#include "process.h"

#define CARE_NAP_NS	10000000u	/* what came while a lock was held elsewhere is seen after so long */
#define CARE_PART_NS	200000000u	/* they are given for leaving this process */
#define CARE_KIDS	32u		/* more at once are nobody's */

/* Process ids of those that are children of this process; -1: being made; 0: free. */
static _Atomic int care_kid[CARE_KIDS];
XR_FORK_DATA _Atomic uint32_t xr_care_kids;
XR_FORK_DATA _Atomic uint32_t xr_care_made;
/* In memory shared with them: they are to leave. */
static XR_FORK_DATA _Atomic(_Atomic(uint32_t) *) care_part;
static XR_FORK_DATA uint32_t care_is_kid;	/* in a caretaker: it is such a child */

static _Atomic uint32_t care_hurried;	/* the process is about to end */

void xr_care_hurry(int on)
{
	xr_store_relaxed(&care_hurried, (uint32_t)on);
}

void xr_care_add(struct xr_care *c, struct xr_flow *f, int fd)
{
	if (!xr_flow_owes(f, fd))
		return;
	if (c->n == XR_CARE_JOBS)
		xr_care_run(c, XR_CARE_SOON_NS);
	c->job[c->n++] = (struct xr_care_job){ .f = f, .fd = fd };
}

static void __attribute__((noreturn)) care_exit(int status)
{
	for (;;)
		xr_sys1(SYS_exit_group, status);
}

static void care_reset(const struct xr_care_job *j)
{
	static const struct linger rst = { 1, 0 };

	/* a stream with a hole, or an end that is none, would be the other choice */
	xr_sys5(SYS_setsockopt, j->fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	xr_stats_add(XR_STAT_UNDELIVERED, 1);
}

/* Leaves the program, which is about to become another one: goes on as its own child. */
static void care_leave(void)
{
	long pid = xr_sys5(SYS_clone, 0, 0, 0, 0, 0);

	if (pid > 0)
		care_exit(0);
	if (!pid)
		xr_process_forked();
	/* or there is no room for a process: then it stays one of whatever the program becomes */
	care_is_kid = 0;
}

/* Jobs that are done leave the list; `over` is told of each. */
static void care_until(struct xr_care *c, uint64_t end, void (*over)(struct xr_care_job *j))
{
	struct pollfd p[XR_CARE_JOBS];
	struct timespec ts;
	uint64_t now, nap;
	uint32_t i, n;

	for (;;) {
		if (care_is_kid && xr_load_relaxed(xr_load_relaxed(&care_part)))
			care_leave();
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
		/* over: in the caretaker, which stays */
		if (!n || now >= end || (!over && xr_load_relaxed(&care_hurried)))
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

/* What the process does, as a child of this one or of none. */
struct care_work {
	const char *name;
	const int *keep;
	uint32_t n;
	void (*run)(void *arg);
	void *arg;
};

static void __attribute__((noreturn)) care_work(const struct care_work *w)
{
	xr_process_forked();
	xr_sys2(SYS_prctl, PR_SET_NAME, w->name);
	xr_sys0(SYS_setsid);
	care_let_go(w->keep, w->n);
	care_may_be_ended();
	w->run(w->arg);
	care_exit(0);
}

/*
 * The next process that is made is to be the first of a namespace of process numbers, and the program
 * has plans for it: whoever is the first takes all others with it when it ends.
 */
static int care_is_first(void)
{
	char to[64];

	return xr_sys4(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", to, sizeof(to)) > 0 &&
	       xr_sys4(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid_for_children", to, sizeof(to)) == -ENOENT;
}

static int care_spawn(const struct care_work *w, int orphan)
{
	const uint64_t all = ~0ull;
	uint64_t mask;
	long pid, r;
	int status = 0;

	if (care_is_first())
		return -EPERM;
	/* a handler of the program must not run in it */
	xr_sys4(SYS_rt_sigprocmask, SIG_BLOCK, &all, &mask, sizeof(mask));
	/* relaxed: it asks for no lock before the clone that it begins with */
	xr_store_relaxed(&xr_care_made, 1);
	/* no signal at its end: wait(2) does not find it */
	pid = xr_sys5(SYS_clone, 0, 0, 0, 0, 0);
	if (!pid && !orphan)
		care_work(w);
	if (!pid) {
		pid = xr_sys5(SYS_clone, 0, 0, 0, 0, 0);
		if (pid)
			care_exit(pid < 0);
		care_work(w);
	}
	if (pid > 0 && orphan)
		do {
			r = xr_sys4(SYS_wait4, pid, &status, __WCLONE, 0);
		} while (r == -EINTR);
	xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, sizeof(mask));
	return pid < 0 ? (int)pid : status ? -EAGAIN : (int)pid;
}

int xr_care_spawn(const char *name, const int *keep, uint32_t n, void (*run)(void *arg), void *arg)
{
	int r = care_spawn(&(struct care_work){ name, keep, n, run, arg }, 1);

	return r < 0 ? r : 0;
}

/* ---- those that are children of this process --------------------------------- */

/* A place for one more, or NULL. */
static _Atomic int *care_place(void)
{
	_Atomic(uint32_t) *none = NULL, *word;
	uint32_t i;

	if (!xr_load_acquire(&care_part)) {
		word = xr_map_family(sizeof(*word));
		if (!word)
			return NULL;
		if (!xr_cas(&care_part, &none, word))
			xr_unmap((void *)word, sizeof(*word));
	}
	for (i = 0; i < CARE_KIDS; i++) {
		int free = 0;

		if (xr_cas(&care_kid[i], &free, -1)) {
			xr_fetch_add(&xr_care_kids, 1);
			return &care_kid[i];
		}
	}
	return NULL;
}

static void care_place_free(_Atomic int *kid, int pid)
{
	if (xr_cas(kid, &pid, 0))
		xr_fetch_sub(&xr_care_kids, 1);
}

void xr_care_reap(void)
{
	uint32_t i;

	if (xr_likely(!xr_load_relaxed(&xr_care_kids)))
		return;
	for (i = 0; i < CARE_KIDS; i++) {
		int pid = xr_load_relaxed(&care_kid[i]);
		long r;

		if (pid <= 0)
			continue;
		r = xr_sys4(SYS_wait4, pid, NULL, __WCLONE | WNOHANG, NULL);
		/* ECHILD: another thread was faster, or the program asks for children of all kinds */
		if (r == pid || r == -ECHILD)
			care_place_free(&care_kid[i], pid);
	}
}

void xr_care_part(void)
{
	const struct timespec nap = { 0, 1000000 };
	uint64_t end = xr_now_ns() + CARE_PART_NS;
	_Atomic(uint32_t) *part;

	xr_care_reap();
	if (xr_likely(!xr_load_relaxed(&xr_care_kids)))
		return;
	/* relaxed: they look again and again */
	part = xr_load_relaxed(&care_part);
	xr_store_relaxed(part, 1);
	while (xr_load_relaxed(&xr_care_kids) && xr_now_ns() < end) {
		xr_sys5(SYS_ppoll, NULL, 0, &nap, NULL, 0);
		xr_care_reap();
	}
	/* for those that come if there is no exec after all */
	xr_store_relaxed(part, 0);
}

void xr_care_forked(void)
{
	_Atomic(uint32_t) *part = xr_load_relaxed(&care_part);
	uint32_t i;

	/* of the parent, which has none of the connections that are made here */
	if (xr_load_relaxed(&xr_care_made))
		xr_store_relaxed(&xr_care_made, 0);
	if (!part)
		return;
	for (i = 0; i < CARE_KIDS; i++)
		xr_store_relaxed(&care_kid[i], 0);
	xr_store_relaxed(&xr_care_kids, 0);
	xr_unmap((void *)part, sizeof(*part));
	xr_store_relaxed(&care_part, NULL);
}

/* ---- the caretaker ------------------------------------------------------------ */

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

	care_is_kid = !c->orphan;
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

static int care_start(struct xr_care *c, const int *keep)
{
	struct care_work w = { "xrdma-caretaker", keep, c->n, care_child, c };
	_Atomic int *kid;
	int r;

	xr_care_reap();
	/* a child of vfork has its parent's memory, and its children are not the parent's */
	kid = c->orphan || xr_vfork_depth ? NULL : care_place();
	c->orphan = !kid;
	r = care_spawn(&w, c->orphan);
	if (kid && r > 0)
		xr_store_relaxed(kid, r);
	else if (kid)
		care_place_free(kid, -1);
	return r < 0 ? r : 0;
}

void xr_care_run(struct xr_care *c, uint64_t soon)
{
	int keep[XR_CARE_JOBS];
	uint32_t i, orphan = c->orphan;
	int r;

	care_until(c, soon ? xr_now_ns() + soon : 0, NULL);
	if (!c->n)
		return;
	/* before it is there: the flow is not reclaimed under its hands */
	for (i = 0; i < c->n; i++) {
		keep[i] = c->job[i].fd;
		xr_fetch_add(&c->job[i].f->procs, 1);
	}
	r = care_start(c, keep);
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
	c->orphan = orphan;
}
