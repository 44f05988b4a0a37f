/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * exec: a flow whose descriptor stays open becomes a plain socket before the new program
 * starts.  One that exec closes is closed as close() would, and only the kernel can do
 * that after the point of no return: so it, too, returns to the kernel first, unless it
 * is a parent's, which goes on using it.  If exec fails the flows work on, over TCP.  Where the
 * peer does not help in time, a process is left behind: caretaker.h, relay.h.
 */
#include "hook.h"
#include <alloca.h>
#include "caretaker.h"
#include "closing.h"
#include "log.h"
#include "relay.h"

struct exec_left {
	uint64_t end;			/* of the wait for peers */
	struct xr_care care;
	struct xr_relay relay;
};

/* Rather than a stream with a hole, where no process can carry it. */
static void reset(int fd)
{
	static const struct sockaddr none = { .sa_family = AF_UNSPEC };

	xr_error("a connection cannot be handed over to the new program: it is reset");
	xr_stats_add(XR_STAT_UNDELIVERED, 1);
	xr_sys3(SYS_connect, fd, &none, sizeof(none));
}

static void to_program(struct exec_left *e, struct xr_flow *f, int fd)
{
	/* from here on it is no flow: if exec fails the program goes on with what takes its place */
	if (!xr_flow_hand_over(f, fd, XR_REASON_EXEC, xr_ns_left(e->end)) ||
	    !xr_relay_add(&e->relay, f, fd))
		return;
	xr_flow_let_go(f, fd, XR_REASON_EXEC, 0);
	/* a vfork child has the connection of its parent, which goes on */
	if (!xr_vfork_depth)
		reset(fd);
}

/* A flow made by another process, of which this one has a single descriptor, closed by exec. */
static int leaves_parent(const struct xr_flow *f, int fd)
{
	return f->owner_pid != xr_getpid() && !xr_vfork_depth &&
	       xr_load_relaxed(&f->priv->fds) == 1 && xr_flow_fd(f) == fd;
}

static void exec_one(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);
	struct exec_left *e = arg;
	long flags;

	if ((entry & 3) != XR_FD_FLOW || (xr_vfork_depth && xr_vfork_is_changed(fd)))
		return;
	flags = xr_sys3(SYS_fcntl, fd, F_GETFD, 0);
	if (flags < 0)
		return;
	if (!(flags & FD_CLOEXEC)) {
		to_program(e, f, fd);
		/* a vfork child is one more process that has it */
		if (xr_vfork_depth)
			xr_fetch_add(&f->procs, 1);
	} else if (leaves_parent(f, fd)) {
		xr_fetch_sub(&f->procs, 1);
	} else if (!xr_vfork_depth && f->owner_pid == xr_getpid() &&
		   xr_load_acquire(&f->path) & XR_PATH_FABRIC) {
		xr_flow_retreat_as(f, fd, XR_REASON_EXEC, XR_RETREAT_EITHER, 0);
		xr_flow_stay_tcp(f, fd, XR_REASON_EXEC);
		xr_care_add(&e->care, f, fd);
	}
}

static void exec_undo(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);
	long flags;

	(void)arg;
	if ((entry & 3) != XR_FD_FLOW)
		return;
	flags = xr_sys3(SYS_fcntl, fd, F_GETFD, 0);
	if (flags > 0 && flags & FD_CLOEXEC && leaves_parent(f, fd))
		xr_fetch_add(&f->procs, 1);
}

/* All peers are asked before the first is waited for. */
static void exec_ask(void *arg, int fd, uintptr_t entry)
{
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);

	(void)arg;
	if ((entry & 3) == XR_FD_FLOW && !(xr_vfork_depth && xr_vfork_is_changed(fd)) &&
	    xr_load_acquire(&f->path) & XR_PATH_FABRIC &&
	    xr_sys3(SYS_fcntl, fd, F_GETFD, 0) == 0)
		xr_flow_hand_over(f, fd, XR_REASON_EXEC, 0);
}

void xr_exec_begin(void)
{
	struct exec_left e = { .care.n = 0, .care.orphan = 1, .relay.n = 0 };

	xr_fork_check();
	if (!xr_vfork_depth) {
		xr_flow_kid_counts(NULL);
		xr_care_part();
	}
	if (!xr_vfork_depth)
		xr_closing_wait();
	xr_fd_each(exec_ask, NULL);
	e.end = xr_now_ns() + XR_HANDOVER_WAIT_NS;
	xr_fd_each(exec_one, &e);
	xr_relay_run(&e.relay);
	xr_care_run(&e.care, XR_CARE_SOON_NS);
}

void xr_exec_failed(void)
{
	int saved = errno;

	if (!xr_vfork_depth)
		xr_fd_each(exec_undo, NULL);
	errno = saved;
}

/* Callers that walk PATH themselves fail many times before they succeed: no retreat for those. */
static int hopeless(int dir, const char *path)
{
	return path && xr_sys4(SYS_faccessat, dir, path, X_OK, 0) < 0;
}

#define HOOK_EXEC(dir, path, call)			\
	__extension__({					\
		int exec_r, exec_try;			\
		const char *exec_path = (path);		\
							\
		exec_try = !hopeless(dir, exec_path);	\
		if (exec_try)				\
			xr_exec_begin();		\
		exec_r = (call);			\
		if (exec_try)				\
			xr_exec_failed();		\
		exec_r;					\
	})

XR_HOOK int execve(const char *path, char *const argv[], char *const envp[])
{
	return HOOK_EXEC(AT_FDCWD, path, xr_real.execve(path, argv, envp));
}

XR_HOOK int execv(const char *path, char *const argv[])
{
	return HOOK_EXEC(AT_FDCWD, path, xr_real.execv(path, argv));
}

XR_HOOK int execvp(const char *file, char *const argv[])
{
	return HOOK_EXEC(AT_FDCWD, NULL, xr_real.execvp(file, argv));
}

XR_HOOK int execvpe(const char *file, char *const argv[], char *const envp[])
{
	return HOOK_EXEC(AT_FDCWD, NULL, xr_real.execvpe(file, argv, envp));
}

XR_HOOK int fexecve(int fd, char *const argv[], char *const envp[])
{
	return HOOK_EXEC(AT_FDCWD, NULL, xr_real.fexecve(fd, argv, envp));
}

XR_HOOK int execveat(int fd, const char *path, char *const argv[], char *const envp[], int flags)
{
	/* AT_EMPTY_PATH: the program is fd itself */
	return HOOK_EXEC(fd, *path ? path : NULL, xr_real.execveat(fd, path, argv, envp, flags));
}

/* The argument list on the stack, as libc does: execl is async-signal-safe. */
static size_t list_count(va_list ap)
{
	size_t n = 1;

	while (va_arg(ap, const char *))
		n++;
	return n;
}

/* Leaves ap behind the NULL that ends the list. */
#define LIST_ARGV(argv, n, arg, ap)					\
	do {								\
		size_t list_i;						\
									\
		argv = alloca(((n) + 1) * sizeof(*argv));		\
		argv[0] = (char *)(uintptr_t)(arg);			\
		for (list_i = 1; list_i <= (n); list_i++)		\
			argv[list_i] = va_arg(ap, char *);		\
	} while (0)

XR_HOOK int execl(const char *path, const char *arg, ...)
{
	va_list ap;
	char **argv;
	size_t n;

	va_start(ap, arg);
	n = list_count(ap);
	va_end(ap);
	va_start(ap, arg);
	LIST_ARGV(argv, n, arg, ap);
	va_end(ap);
	return execv(path, argv);
}

XR_HOOK int execlp(const char *file, const char *arg, ...)
{
	va_list ap;
	char **argv;
	size_t n;

	va_start(ap, arg);
	n = list_count(ap);
	va_end(ap);
	va_start(ap, arg);
	LIST_ARGV(argv, n, arg, ap);
	va_end(ap);
	return execvp(file, argv);
}

XR_HOOK int execle(const char *path, const char *arg, ...)
{
	char **argv, *const *envp;
	va_list ap;
	size_t n;

	va_start(ap, arg);
	n = list_count(ap);
	va_end(ap);
	va_start(ap, arg);
	LIST_ARGV(argv, n, arg, ap);
	envp = va_arg(ap, char *const *);
	va_end(ap);
	return execve(path, argv, envp);
}
