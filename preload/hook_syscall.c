/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * syscall(2): calls that the hooks know go to them, with the meaning of the function of
 * the same name.  And the calls after which hooks can no longer see what happens.
 */
#include "hook.h"
#include <linux/seccomp.h>
#include "helper.h"
#include "user.h"

#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup	425
#endif
#ifndef SYS_close_range
#define SYS_close_range		436
#endif
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2	441
#endif

/* Numbers that syscall_hooked takes; all others go straight on. */
#define SYSCALL_TABLE	512
__attribute__((visibility("hidden"), used))
const uint8_t xr_syscall_table[SYSCALL_TABLE] = {
	[SYS_read] = 1, [SYS_readv] = 1, [SYS_recvfrom] = 1, [SYS_recvmsg] = 1, [SYS_recvmmsg] = 1,
	[SYS_write] = 1, [SYS_writev] = 1, [SYS_sendto] = 1, [SYS_sendmsg] = 1, [SYS_sendmmsg] = 1,
	[SYS_sendfile] = 1, [SYS_splice] = 1,
	[SYS_close] = 1, [SYS_close_range] = 1, [SYS_dup] = 1, [SYS_dup3] = 1, [SYS_fcntl] = 1,
	[SYS_ioctl] = 1, [SYS_shutdown] = 1, [SYS_setsockopt] = 1, [SYS_connect] = 1,
	[SYS_listen] = 1, [SYS_accept4] = 1, [SYS_ppoll] = 1, [SYS_epoll_ctl] = 1,
	[SYS_epoll_create1] = 1, [SYS_epoll_pwait] = 1, [SYS_epoll_pwait2] = 1,
	[SYS_execve] = 1, [SYS_exit_group] = 1,
	[SYS_io_uring_setup] = 1, [SYS_seccomp] = 1, [SYS_prctl] = 1, [SYS_unshare] = 1,
	[SYS_setns] = 1,
#if defined(__x86_64__)
	[SYS_accept] = 1, [SYS_dup2] = 1, [SYS_poll] = 1, [SYS_select] = 1, [SYS_epoll_create] = 1,
	[SYS_epoll_wait] = 1, [SYS_fork] = 1,
#endif
};

static long raw(long nr, long a, long b, long c, long d, long e, long f)
{
	long r = xr_sys6(nr, a, b, c, d, e, f);

	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

/* The kernel's signal sets are of 8 bytes, libc's larger. */
static const sigset_t *wide_mask(sigset_t *set, long mask)
{
	if (!mask)
		return NULL;
	sigemptyset(set);
	/* a bad address stays one: who gets it says so */
	return xr_user_get(set, (const void *)mask, sizeof(uint64_t)) ? (const sigset_t *)mask : set;
}

/* Waits, and what newer machines have only in another shape. */
static long syscall_wait(long nr, long a, long b, long c, long d, long e, long f)
{
	sigset_t set;

	switch (nr) {
	case SYS_ppoll:
		return ppoll((struct pollfd *)a, (nfds_t)b, (const struct timespec *)c,
			     wide_mask(&set, d));
	case SYS_epoll_pwait:
		return epoll_pwait((int)a, (struct epoll_event *)b, (int)c, (int)d,
				   wide_mask(&set, e));
	case SYS_epoll_pwait2:
		return epoll_pwait2((int)a, (struct epoll_event *)b, (int)c,
				    (const struct timespec *)d, wide_mask(&set, e));
#if defined(__x86_64__)
	case SYS_accept:
		return accept((int)a, (struct sockaddr *)b, (socklen_t *)c);
	case SYS_dup2:
		return dup2((int)a, (int)b);
	case SYS_poll:
		return poll((struct pollfd *)a, (nfds_t)b, (int)c);
	case SYS_select:
		return select((int)a, (fd_set *)b, (fd_set *)c, (fd_set *)d, (struct timeval *)e);
	case SYS_epoll_create:
		return epoll_create((int)a);
	case SYS_epoll_wait:
		return epoll_wait((int)a, (struct epoll_event *)b, (int)c, (int)d);
	case SYS_fork:
		return fork();
#endif
	default:
		return raw(nr, a, b, c, d, e, f);
	}
}

static long syscall_fd(long nr, long a, long b, long c, long d, long e, long f)
{
	switch (nr) {
	case SYS_close:
		return close((int)a);
	case SYS_close_range:
		return close_range((unsigned int)a, (unsigned int)b, (int)c);
	case SYS_dup:
		return dup((int)a);
	case SYS_dup3:
		return dup3((int)a, (int)b, (int)c);
	case SYS_fcntl:
		return fcntl((int)a, (int)b, c);
	case SYS_ioctl:
		return ioctl((int)a, (unsigned long)b, c);
	case SYS_shutdown:
		return shutdown((int)a, (int)b);
	case SYS_setsockopt:
		return setsockopt((int)a, (int)b, (int)c, (const void *)d, (socklen_t)e);
	case SYS_connect:
		return connect((int)a, (const struct sockaddr *)b, (socklen_t)c);
	case SYS_listen:
		return listen((int)a, (int)b);
	case SYS_accept4:
		return accept4((int)a, (struct sockaddr *)b, (socklen_t *)c, (int)d);
	case SYS_epoll_ctl:
		return epoll_ctl((int)a, (int)b, (int)c, (struct epoll_event *)d);
	case SYS_epoll_create1:
		return epoll_create1((int)a);
	default:
		return syscall_wait(nr, a, b, c, d, e, f);
	}
}

/*
 * What a ring does with descriptors passes no hook.  The program has none before this returns, and
 * many programs only try: where the kernel or a container has none to give, flows stay.
 */
static long syscall_ring(long entries, long params)
{
	long fd = raw(SYS_io_uring_setup, entries, params, 0, 0, 0, 0);

	if (fd >= 0)
		xr_process_pass_through(XR_REASON_UNHOOKED_IO);
	return fd;
}

static long syscall_process(long nr, long a, long b, long c, long d, long e, long f)
{
	switch (nr) {
	case SYS_execve:
		return execve((const char *)a, (char *const *)b, (char *const *)c);
	case SYS_exit_group:
		_exit((int)a);
	case SYS_io_uring_setup:
		return syscall_ring(a, b);
	case SYS_seccomp:
		if (a == SECCOMP_SET_MODE_STRICT || a == SECCOMP_SET_MODE_FILTER)
			xr_process_pass_through(XR_REASON_SECCOMP);
		break;
	case SYS_prctl:
		return prctl((int)a, b, c, d, e);
	case SYS_unshare:
		return unshare((int)a);
	case SYS_setns:
		return setns((int)a, (int)b);
	default:
		return syscall_fd(nr, a, b, c, d, e, f);
	}
	return raw(nr, a, b, c, d, e, f);
}

__attribute__((visibility("hidden"), used))
long xr_syscall_hooked(long nr, long a, long b, long c, long d, long e, long f);

long xr_syscall_hooked(long nr, long a, long b, long c, long d, long e, long f)
{
	switch (nr) {
	case SYS_read:
		return read((int)a, (void *)b, (size_t)c);
	case SYS_readv:
		return readv((int)a, (const struct iovec *)b, (int)c);
	case SYS_recvfrom:
		return recvfrom((int)a, (void *)b, (size_t)c, (int)d, (struct sockaddr *)e,
				(socklen_t *)f);
	case SYS_recvmsg:
		return recvmsg((int)a, (struct msghdr *)b, (int)c);
	case SYS_recvmmsg:
		return recvmmsg((int)a, (struct mmsghdr *)b, (unsigned int)c, (int)d,
				(struct timespec *)e);
	case SYS_write:
		return write((int)a, (const void *)b, (size_t)c);
	case SYS_writev:
		return writev((int)a, (const struct iovec *)b, (int)c);
	case SYS_sendto:
		return sendto((int)a, (const void *)b, (size_t)c, (int)d,
			      (const struct sockaddr *)e, (socklen_t)f);
	case SYS_sendmsg:
		return sendmsg((int)a, (const struct msghdr *)b, (int)c);
	case SYS_sendmmsg:
		return sendmmsg((int)a, (struct mmsghdr *)b, (unsigned int)c, (int)d);
	case SYS_sendfile:
		return sendfile((int)a, (int)b, (off_t *)c, (size_t)d);
	case SYS_splice:
		return splice((int)a, (off64_t *)b, (int)c, (off64_t *)d, (size_t)e,
			      (unsigned int)f);
	default:
		return syscall_process(nr, a, b, c, d, e, f);
	}
}

#if defined(__x86_64__)
__attribute__((visibility("hidden"), used)) long xr_syscall_failed(long r);

long xr_syscall_failed(long r)
{
	errno = (int)-r;
	return -1;
}

/*
 * In assembly, so that a call that is none of ours leaves no frame behind: clone()
 * through here may return on another stack.  From 1 on it is what libc does.
 */
__asm__(
	"	.text\n"
	"	.globl	syscall\n"
	"	.type	syscall, @function\n"
	"	.p2align 4\n"
	"syscall:\n"
	"	.cfi_startproc\n"
	"	cmpq	$512, %rdi\n"
	"	jae	1f\n"
	"	leaq	xr_syscall_table(%rip), %rax\n"
	"	cmpb	$0, (%rax,%rdi)\n"
	"	jne	xr_syscall_hooked\n"
	"1:	movq	%rdi, %rax\n"
	"	movq	%rsi, %rdi\n"
	"	movq	%rdx, %rsi\n"
	"	movq	%rcx, %rdx\n"
	"	movq	%r8, %r10\n"
	"	movq	%r9, %r8\n"
	"	movq	8(%rsp), %r9\n"
	"	syscall\n"
	"	cmpq	$-4095, %rax\n"
	"	jae	2f\n"
	"	ret\n"
	"2:	movq	%rax, %rdi\n"
	"	jmp	xr_syscall_failed\n"
	"	.cfi_endproc\n"
	"	.size	syscall, . - syscall\n");
#else
XR_HOOK long syscall(long nr, ...)
{
	long a[6];
	va_list ap;
	int i;

	va_start(ap, nr);
	for (i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (nr >= 0 && nr < SYSCALL_TABLE && xr_syscall_table[nr])
		return xr_syscall_hooked(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	return raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}
#endif

/* ---- sandboxes ------------------------------------------------------------ */

XR_HOOK int prctl(int op, ...)
{
	unsigned long a[4];
	va_list ap;
	int i;

	va_start(ap, op);
	for (i = 0; i < 4; i++)
		a[i] = va_arg(ap, unsigned long);
	va_end(ap);
	/* a filter may forbid what a flow on a fabric needs */
	if (op == PR_SET_SECCOMP)
		xr_process_pass_through(XR_REASON_SECCOMP);
	return xr_real.prctl(op, a[0], a[1], a[2], a[3]);
}

/*
 * The kernel refuses some of it to a process with a second thread.  Only then, and where that is the
 * helper, is there anything to do: such a call fails before it has changed anything.
 */
XR_HOOK int unshare(int flags)
{
	int saved = errno, r;

	/* a thread with descriptors of its own: the table is about the others' */
	if (flags & CLONE_FILES)
		xr_process_pass_through(XR_REASON_UNHOOKED_IO);
	r = xr_real.unshare(flags);
	if (xr_likely(!r || errno != EINVAL ||
		      !(flags & (CLONE_NEWUSER | CLONE_VM | CLONE_SIGHAND | CLONE_THREAD))))
		return r;
	xr_fork_check();
	if (xr_helper_retire())
		return r;
	r = xr_real.unshare(flags);
	if (!r)
		errno = saved;
	return r;
}

XR_HOOK int setns(int fd, int type)
{
	int saved = errno, r = xr_real.setns(fd, type);

	/* EUSERS: a namespace of time; EINVAL: of users, or of mounts */
	if (xr_likely(!r || (errno != EINVAL && errno != EUSERS)))
		return r;
	xr_fork_check();
	if (xr_helper_retire())
		return r;
	r = xr_real.setns(fd, type);
	if (!r)
		errno = saved;
	return r;
}
