/* SPDX-License-Identifier: BSD-2-Clause */
/* fork, vfork and what libc makes of them. */
#include "hook.h"
#include <paths.h>
#include <sys/stat.h>

__thread uint32_t xr_vfork_depth;
static __thread uint64_t *vfork_map;		/* descriptors that the child has changed */

#define VFORK_MAP_SIZE	(XR_FDTAB_L1 * XR_FDTAB_L2 / 8)

/* ---- fork ------------------------------------------------------------------ */

#define HOOK_FORK(call)						\
	__extension__({						\
		int fork_errno;					\
		pid_t fork_pid;					\
								\
		xr_process_fork_begin();			\
		fork_pid = (call);				\
		if (fork_pid) {					\
			fork_errno = errno;			\
			xr_process_fork_end(fork_pid);		\
			errno = fork_errno;			\
		} else {					\
			xr_process_forked_here();		\
		}						\
		fork_pid;					\
	})

XR_HOOK XR_FORK_CODE pid_t fork(void)
{
	return HOOK_FORK(xr_real.fork());
}

XR_ALIAS(fork) pid_t __fork(void);

XR_HOOK XR_FORK_CODE pid_t _Fork(void)
{
	return HOOK_FORK(xr_real._Fork());
}

XR_HOOK int forkpty(int *master, char *name, const struct termios *term, const struct winsize *win)
{
	return HOOK_FORK(xr_real.forkpty(master, name, term, win));
}

/* As in libc, where fork and dup2 would not come by here. */
XR_HOOK int daemon(int nochdir, int noclose)
{
	struct stat st;
	int fd;

	switch (fork()) {
	case -1:
		return -1;
	case 0:
		break;
	default:
		_exit(0);
	}
	if (setsid() == -1)
		return -1;
	if (!nochdir && chdir("/"))
		errno = 0;
	if (noclose)
		return 0;
	fd = open(_PATH_DEVNULL, O_RDWR);
	if (fd < 0 || fstat(fd, &st))
		goto close;
	if (!S_ISCHR(st.st_mode)) {
		errno = ENODEV;
		goto close;
	}
	dup2(fd, STDIN_FILENO);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
	return 0;

close:
	if (fd >= 0) {
		int saved = errno;

		close(fd);
		errno = saved;
	}
	return -1;
}

/* ---- vfork ----------------------------------------------------------------- */

void xr_vfork_changed(int fd)
{
	if ((unsigned int)fd >= XR_FDTAB_L1 * XR_FDTAB_L2 || !xr_fd_entry(fd))
		return;
	if (!vfork_map)
		vfork_map = xr_map_private(VFORK_MAP_SIZE);
	if (vfork_map)
		vfork_map[fd / 64] |= 1ull << (fd % 64);
}

int xr_vfork_is_changed(int fd)
{
	return vfork_map && (unsigned int)fd < XR_FDTAB_L1 * XR_FDTAB_L2 &&
	       (vfork_map[fd / 64] >> (fd % 64)) & 1;
}

#if defined(__x86_64__)
/* Called by the code below; the child runs between the two, in the parent's memory. */
void xr_vfork_enter(void) __attribute__((visibility("hidden")));
long xr_vfork_leave(long r) __attribute__((visibility("hidden")));

void xr_vfork_enter(void)
{
	xr_fork_check();
	xr_vfork_depth++;
	/* relaxed: it is this thread, in the child, that is to see it */
	atomic_fetch_add_explicit(xr_process_alive, 1, memory_order_relaxed);
}

long xr_vfork_leave(long r)
{
	atomic_fetch_sub_explicit(xr_process_alive, 1, memory_order_relaxed);
	if (!--xr_vfork_depth && vfork_map) {
		xr_unmap(vfork_map, VFORK_MAP_SIZE);
		vfork_map = NULL;
	}
	if (r < 0) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

/*
 * The child returns from here first and goes on to use the stack below; the parent then
 * finds its return address overwritten.  So, as in libc, the address waits in a register,
 * which the kernel keeps for each of the two.
 */
__asm__(
	"	.text\n"
	"	.globl	vfork, __vfork\n"
	"	.type	vfork, @function\n"
	"	.type	__vfork, @function\n"
	"	.p2align 4\n"
	"vfork:\n"
	"__vfork:\n"
	"	.cfi_startproc\n"
	"	subq	$8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call	xr_vfork_enter\n"
	"	addq	$8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq	%rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	.cfi_register %rip, %rdi\n"
	"	movl	$58, %eax\n"
	"	syscall\n"
	"	pushq	%rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %rip, 0\n"
	"	testq	%rax, %rax\n"
	"	je	1f\n"
	"	movq	%rax, %rdi\n"
	"	subq	$8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call	xr_vfork_leave\n"
	"	addq	$8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"1:	ret\n"
	"	.cfi_endproc\n"
	"	.size	vfork, . - vfork\n"
	"	.size	__vfork, . - __vfork\n");
#else
/* POSIX lets vfork be fork. */
XR_HOOK pid_t vfork(void)
{
	return fork();
}

XR_HOOK pid_t __vfork(void)
{
	return fork();
}
#endif
