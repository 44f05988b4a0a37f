/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies of payload between a program's buffers and shared memory.
 *
 * libc copies from about 2 KiB on with "rep movsb" where the processor advertises it. On AMD's
 * Zen 3 that runs at a twelfth of its speed (2-3 GB/s) when the destination stands a little
 * after the source modulo 4 KiB (glibc bugs 30994 and 30995). This is the common case here: chunks are
 * aligned to pages, and what a big malloc() returns is 16 bytes into one. A plain loop is as fast
 * as the string instruction elsewhere, so those distances take the loop.
 */
#ifndef XR_COPY_H
#define XR_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define XR_COPY_LOOP_MIN	2048u
#define XR_COPY_NEAR		64u	/* measured: 1 to 31 bytes are slow; a cache line for safety */

#ifdef __SSE2__
static inline void xr_copy_loop(uint8_t *dst, const uint8_t *src, size_t n)
{
	size_t head = (size_t)(-(uintptr_t)dst & 15);

	memcpy(dst, src, head);
	dst += head;
	src += head;
	n -= head;
	for (; n >= 64; n -= 64, dst += 64, src += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)src);
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + 48));

		_mm_store_si128((__m128i *)(void *)dst, a);
		_mm_store_si128((__m128i *)(void *)(dst + 16), b);
		_mm_store_si128((__m128i *)(void *)(dst + 32), c);
		_mm_store_si128((__m128i *)(void *)(dst + 48), d);
		/* or the compiler could see a memcpy in the loop */
		__asm__ volatile("" : : : "memory");
	}
	memcpy(dst, src, n);
}
#endif

/* As memcpy(): the buffers do not overlap. */
static inline void xr_copy(void *dst, const void *src, size_t n)
{
#ifdef __SSE2__
	if (n >= XR_COPY_LOOP_MIN && (((uintptr_t)dst - (uintptr_t)src) & 4095) < XR_COPY_NEAR) {
		xr_copy_loop(dst, src, n);
		return;
	}
#endif
	memcpy(dst, src, n);
}

#endif
