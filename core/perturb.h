/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * configure --enable-perturb: at one in XR_PERTURB of the atomic operations a thread stands still
 * for up to two milliseconds, as one does that is preempted or stopped there.  What another thread
 * or process may do in between, and must not, is then done often enough for the tests to see it.
 * Never for use: a build with it is as slow as it is rude.
 */
#ifndef XR_PERTURB_H
#define XR_PERTURB_H

#include <stdint.h>
#include <sys/syscall.h>

#if !defined(__x86_64__)
#error "--enable-perturb is for x86-64"
#endif

/* One sleep in so many times, by a generator of each thread's own. */
static inline __attribute__((no_instrument_function)) void xr_perturb(void)
{
	static __thread uint64_t x __attribute__((tls_model("initial-exec")));
	long ts[2], r;

	if (!x)
		x = (uint64_t)__builtin_ia32_rdtsc() | 1;
	/* xorshift64 */
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	if (__builtin_expect((uint32_t)x % XR_PERTURB != 0, 1))
		return;
	ts[0] = 0;
	ts[1] = (long)(x >> 32) % 2000000;
	/* the kernel's call itself: errno is the program's, and this may be a signal handler */
	__asm__ __volatile__("syscall" : "=a"(r) : "a"(SYS_nanosleep), "D"(ts), "S"(0) : "rcx", "r11", "memory");
}

#endif
