/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Programs that libc starts by itself: its fork and exec pass no hook.
 *
 * A spawned program may use any descriptor that it finds open, so those flows go back to
 * TCP as for exec.  A shell command can use only what it is told the number of; a flow
 * that its text does not name stays where it is, and is merely counted as shared, so that
 * its close leaves the end to the kernel.
 */
#include "hook.h"
#include <string.h>
#include "relay.h"

struct spawn {
	const char *command;	/* NULL: any program */
	uint64_t end;		/* of the wait for peers; 0: none has been waited for */
	struct xr_relay relay;
};

/* Does the text hold this number, or a path through which descriptors are listed? */
static int names_fd(const char *command, int fd)
{
	const char *p = command;

	if (strstr(p, "/fd"))
		return 1;
	while (*p) {
		long n = 0;

		if (*p < '0' || *p > '9') {
			p++;
			continue;
		}
		for (; *p >= '0' && *p <= '9'; p++)
			n = n < INT_MAX / 16 ? n * 10 + (*p - '0') : INT_MAX;
		if (n == fd)
			return 1;
	}
	return 0;
}

/* One wait for all. */
static uint64_t spawn_wait(struct spawn *s)
{
	if (!s->end)
		s->end = xr_now_ns() + XR_HANDOVER_WAIT_NS;
	return xr_ns_left(s->end);
}

static void spawn_one(void *arg, int fd, uintptr_t entry)
{
	struct spawn *s = arg;
	struct xr_flow *f = (struct xr_flow *)(entry & ~(uintptr_t)3);
	long flags;

	if ((entry & 3) != XR_FD_FLOW)
		return;
	flags = xr_sys3(SYS_fcntl, fd, F_GETFD, 0);
	if (flags < 0 || flags & FD_CLOEXEC)
		return;
	if (!s->command || names_fd(s->command, fd))
		xr_relay_let_go(&s->relay, f, fd, XR_REASON_EXEC, spawn_wait(s));
	/* what stands in for it is counted there */
	if (xr_fd_flow(fd) != f)
		return;
	/* an upper bound, never lowered: once is as good as often */
	if (xr_load_relaxed(&f->procs) == 1)
		xr_fetch_add(&f->procs, 1);
}

void xr_spawn_command(const char *command)
{
	struct spawn s;

	if (xr_vfork_depth)
		return;
	xr_fork_check();
	s.command = command;
	s.end = 0;
	s.relay.n = 0;
	xr_fd_each(spawn_one, &s);
	xr_relay_run(&s.relay);
}

XR_HOOK int posix_spawn(pid_t *restrict pid, const char *restrict path,
			const posix_spawn_file_actions_t *restrict fa,
			const posix_spawnattr_t *restrict attr, char *const argv[restrict],
			char *const envp[restrict])
{
	xr_spawn_command(NULL);
	return xr_real.posix_spawn(pid, path, fa, attr, argv, envp);
}

XR_HOOK int posix_spawnp(pid_t *restrict pid, const char *restrict file,
			 const posix_spawn_file_actions_t *restrict fa,
			 const posix_spawnattr_t *restrict attr, char *const argv[restrict],
			 char *const envp[restrict])
{
	xr_spawn_command(NULL);
	return xr_real.posix_spawnp(pid, file, fa, attr, argv, envp);
}

/* What is duplicated for the child loses close-on-exec there. */
XR_HOOK int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *fa, int fd, int newfd)
{
	struct xr_flow *f = xr_fd_flow(fd);

	if (f && !xr_vfork_depth) {
		xr_fork_check();
		xr_let_go(f, fd, XR_REASON_EXEC, XR_HANDOVER_WAIT_NS);
		if (xr_fd_flow(fd) == f)
			xr_fetch_add(&f->procs, 1);
	}
	return xr_real.posix_spawn_file_actions_adddup2(fa, fd, newfd);
}

XR_HOOK int system(const char *command)
{
	if (command)
		xr_spawn_command(command);
	return xr_real.system(command);
}

XR_HOOK FILE *popen(const char *command, const char *mode)
{
	FILE *fp;

	xr_spawn_command(command ? command : "");
	fp = xr_real.popen(command, mode);
	if (fp) {
		int saved = errno;

		xr_fds_fresh(fileno(fp));
		errno = saved;
	}
	return fp;
}

XR_ALIAS(popen) FILE *_IO_popen(const char *command, const char *mode);

XR_HOOK int wordexp(const char *restrict words, wordexp_t *restrict we, int flags)
{
	if (words && !(flags & WRDE_NOCMD) && (strchr(words, '`') || strstr(words, "$(")))
		xr_spawn_command(words);
	return xr_real.wordexp(words, we, flags);
}
