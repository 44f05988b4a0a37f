/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every ordering primitive of the project.  Code elsewhere uses these names and
 * says beside each use which other access it pairs with.
 *
 * The words shared with a peer are plain C11 atomics of lock-free size; a peer
 * may store anything in them at any time, so a value is loaded once into a local
 * and the local is checked.
 */
#ifndef XR_ATOMIC_H
#define XR_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

#ifdef XR_PERTURB
#include "perturb.h"
#define XR_AT(x)		(xr_perturb(), (x))
#else
#define XR_AT(x)		(x)
#endif

#define xr_load_relaxed(p)	XR_AT(atomic_load_explicit((p), memory_order_relaxed))
#define xr_load_acquire(p)	XR_AT(atomic_load_explicit((p), memory_order_acquire))
#define xr_store_relaxed(p, v)	XR_AT(atomic_store_explicit((p), (v), memory_order_relaxed))
#define xr_store_release(p, v)	XR_AT(atomic_store_explicit((p), (v), memory_order_release))

/* Read-modify-write: all of them are full barriers on x86 and acq_rel here. */
#define xr_xchg(p, v)		XR_AT(atomic_exchange_explicit((p), (v), memory_order_acq_rel))
#define xr_fetch_add(p, v)	XR_AT(atomic_fetch_add_explicit((p), (v), memory_order_acq_rel))
#define xr_fetch_sub(p, v)	XR_AT(atomic_fetch_sub_explicit((p), (v), memory_order_acq_rel))
#define xr_fetch_or(p, v)	XR_AT(atomic_fetch_or_explicit((p), (v), memory_order_acq_rel))
#define xr_fetch_and(p, v)	XR_AT(atomic_fetch_and_explicit((p), (v), memory_order_acq_rel))

/* Compare and swap, sequentially consistent: also orders later loads after it. */
#define xr_cas(p, expected, desired) \
	XR_AT(atomic_compare_exchange_strong_explicit((p), (expected), (desired), \
						      memory_order_seq_cst, memory_order_seq_cst))

/*
 * Store-load barrier of the "publish, then look whether the other side sleeps"
 * protocol; its pair is the same barrier in "say that I sleep, then look again".
 * A locked operation on the own stack costs a quarter of mfence on current parts.
 */
static inline void xr_fence_store_load(void)
{
#if defined(__x86_64__)
	__asm__ __volatile__("lock orl $0, -4(%%rsp)" ::: "memory", "cc");
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/*
 * What is written before is there before what is written after it, for whoever finds the memory of a process that was
 * killed in between: no instruction, since the processor completes what it has begun.
 */
static inline void xr_then(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

static inline void xr_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

/* Asks for a line that is about to be written, without waiting for it.  Any address will do. */
static inline void xr_prefetch_write(const void *p)
{
#if defined(__x86_64__)
	/* as such: gcc makes a read of it for the baseline, and parts without it do nothing */
	__asm__("prefetchw %0" : : "m"(*(const char *)p));
#else
	__builtin_prefetch(p, 1);
#endif
}

/*
 * A counter with a single writer at a time (under the flow's lock): a plain load
 * and store, never torn for readers, without the locked bus cycle.
 */
#define xr_count(p, n)	xr_store_relaxed((p), xr_load_relaxed(p) + (n))

#define XR_CACHELINE	64
#define XR_PAIRLINE	128	/* the adjacent-line prefetcher moves lines in pairs */

#define xr_likely(x)	__builtin_expect(!!(x), 1)
#define xr_unlikely(x)	__builtin_expect(!!(x), 0)

/* What most calls pass through lies side by side, apart from what few do. */
#define XR_HOT		__attribute__((hot))

/*
 * Variables that most calls look at, side by side: between two calls of the program the kernel has the caches,
 * and each page that is touched again is dear.
 */
#define XR_NEAR		__attribute__((section("xr_near")))

/* Written in each forked child: with them, since the first write to a page costs a copy of it. */
#define XR_FORK_DATA	XR_NEAR

/* What a forked child runs that ends at once, side by side: it maps each piece of a file anew. */
#define XR_FORK_CODE	__attribute__((section("xr_fork_code")))

#endif
