/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory and system calls for code that lives inside somebody else's process:
 * no malloc, and no libc wrapper that the preload object interposes.  Thread-safe
 * unless said otherwise; errors are -errno.
 */
#ifndef XR_MEM_H
#define XR_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "atomic.h"

/* The raw system call: -errno on failure, errno untouched.  x86-64 and AArch64 Linux. */
long xr_sys(long nr, long a, long b, long c, long d, long e, long f);

#define xr_sys0(nr)			xr_sys((nr), 0, 0, 0, 0, 0, 0)
#define xr_sys1(nr, a)			xr_sys((nr), (long)(a), 0, 0, 0, 0, 0)
#define xr_sys2(nr, a, b)		xr_sys((nr), (long)(a), (long)(b), 0, 0, 0, 0)
#define xr_sys3(nr, a, b, c)		xr_sys((nr), (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define xr_sys4(nr, a, b, c, d)		xr_sys((nr), (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define xr_sys5(nr, a, b, c, d, e) \
	xr_sys((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define xr_sys6(nr, a, b, c, d, e, f) \
	xr_sys((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* Zeroed pages, private to the process (after fork: copy on write).  NULL when there are none. */
void *xr_map_private(size_t len);

/* The same for what means nothing to a forked child: it may find zeros there, which costs the fork nothing. */
void *xr_map_own(size_t len);

/*
 * Both kinds of zeroed memory for what is never given back, in whole pages, side by side: each mapping that
 * a fork finds costs it a microsecond, each page table three.
 */
void *xr_keep_private(size_t len);
void *xr_keep_own(size_t len);

/* Zeroed pages shared with every process forked from this one (the "family"). */
void *xr_map_family(size_t len);

void xr_unmap(void *p, size_t len);

/* Monotonic time in nanoseconds (vDSO, ~20 ns). */
uint64_t xr_now_ns(void);
/* The same clock at the kernel's last tick, for a fraction of the cost; how far that may be behind. */
uint64_t xr_now_tick(void);
uint64_t xr_tick_ns(void);

/* ns until then, 0 when it is over. */
static inline uint64_t xr_ns_left(uint64_t end)
{
	uint64_t now = xr_now_ns();

	return end > now ? end - now : 0;
}


/* Cycle counter, for bounding short spins only; not comparable across machines. */
static inline uint64_t xr_cycles(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return xr_now_ns();
#endif
}

/* Asked for once, by xr_gettid_ask() and xr_getpid_ask(); 0: not yet. */
extern __thread int xr_mem_tid;
extern _Atomic int xr_mem_pid;
int xr_gettid_ask(void);
int xr_getpid_ask(void);

/* Kernel thread id, cached in TLS and renewed after fork. */
static inline int xr_gettid(void)
{
	int tid = xr_mem_tid;

	return __builtin_expect(tid != 0, 1) ? tid : xr_gettid_ask();
}

/* getpid() cached; xr_process_forked() in the child renews both. */
static inline int xr_getpid(void)
{
	int pid = xr_load_relaxed(&xr_mem_pid);

	return __builtin_expect(pid != 0, 1) ? pid : xr_getpid_ask();
}

void xr_process_forked(void);

/* `len` random bytes: getrandom, never blocking after boot. */
int xr_random(void *p, size_t len);

/*
 * Moves a descriptor of ours out of the program's way, close-on-exec: to a number that the
 * soft limit keeps from the program, where the hard limit permits that, else to the highest
 * free one below it, up to an eighth of the limit and while the program uses less than half of it.
 * Returns the new number (the old one is closed) or -errno with the old one still open.
 */
int xr_fd_high(int fd);
/* While this thread has it set there is nothing else to do: the number stays the program's, and the descriptor ours. */
extern __thread int xr_fd_must;
#define XR_FD_SCARCE	128u	/* a program that can have fewer needs all of them: -EMFILE */

/*
 * A new descriptor of the program's with at least this number says that it may soon need
 * what ours take of its limit (room.h).  UINT32_MAX while they take nothing.
 */
extern _Atomic uint32_t xr_fd_press;
/* Reads the limit again.  1: fd is beyond three quarters of it. */
int xr_fd_pressed(int fd);

/* 1 if fd is one of ours (kept in a table by xr_fd_high), which close loops must skip. */
int xr_fd_is_ours(int fd);
/* The first of ours that is >= fd, -1 when there is none. */
int xr_fd_next_ours(int fd);
void xr_fd_close(int fd);

#define XR_ALIGN(x, a)	(((x) + (a) - 1) & ~((typeof(x))(a) - 1))
#define XR_ARRAY_LEN(a)	(sizeof(a) / sizeof((a)[0]))

#endif
