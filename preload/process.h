/* SPDX-License-Identifier: BSD-2-Clause */
/* State of the process: start, fork, exec, exit, giving up. */
#ifndef XR_PROCESS_H
#define XR_PROCESS_H

#include <stdint.h>
#include <sys/types.h>
#include "atomic.h"
#include "reason.h"

/* Idempotent; from the constructor, or from the first hook that could make a flow. */
void xr_process_init(void);

/*
 * A word in a page that the kernel wipes in every forked child (MADV_WIPEONFORK), so
 * that a clone() or a fork() inside libc is noticed too: 0 there, else 1, and more while
 * threads of this process are in vfork().  Elsewhere where the kernel has no such pages.
 */
extern _Atomic uint32_t *xr_process_alive;

/* What a forked child does before a hook of its own does anything else; once per child. */
void xr_process_child(void);

/*
 * Non-zero in a vfork child of this thread: it has the parent's memory (also this
 * word) but its own descriptors, so it must not touch the table of descriptors.
 */
extern __thread uint32_t xr_vfork_depth;

/* In a vfork child: fd no longer is what the parent's table says. */
void xr_vfork_changed(int fd);
int xr_vfork_is_changed(int fd);

static inline void xr_fork_check(void)
{
	/* acquire: pairs with the end of xr_process_child, perhaps in another thread */
	if (xr_unlikely(!xr_load_acquire(xr_process_alive)))
		xr_process_child();
}

/* 1: and no thread of it is in vfork(): the table is right about every descriptor. */
static inline int xr_process_calm(void)
{
	/* acquire: as above */
	return xr_load_acquire(xr_process_alive) == 1;
}

/* The same, and: 1 when the table is wrong about fd, which is then the kernel's. */
static inline int xr_fork_check_fd(int fd)
{
	uint32_t alive = xr_load_acquire(xr_process_alive);	/* as above */

	if (xr_likely(alive == 1))
		return 0;
	if (!alive)
		xr_process_child();
	return xr_vfork_depth && xr_vfork_is_changed(fd);
}

/* In a child that a hook made; the page may not be there to tell. */
void xr_process_forked_here(void);

/* Around a real call that forks inside libc. */
void xr_process_fork_begin(void);
void xr_process_fork_end(pid_t child);

/* All flows back to TCP, and no new ones: for what no hook can see. */
void xr_process_pass_through(enum xr_reason why);
/* That was done: the reason.  What a process may do from then on is not known. */
enum xr_reason xr_process_passed(void);

/* Before exec, from any kind of child too; failed: exec came back. */
void xr_exec_begin(void);
void xr_exec_failed(void);

/*
 * Flows that a program started by this process finds open go back to TCP.  A shell command uses
 * only descriptors that it names; NULL: any program.
 */
void xr_spawn_command(const char *command);

/* The process ends now. */
void xr_process_exit(void);

#endif
