/* SPDX-License-Identifier: BSD-2-Clause */
/* Data that knows its place: each byte is a function of a key and its offset in the stream. */
#ifndef PATTERN_H
#define PATTERN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t pattern_mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

static inline void pattern_fill(uint64_t key, uint64_t off, uint8_t *buf, size_t len)
{
	while (len) {
		uint64_t word = pattern_mix(key + (off / 8) * 0x9e3779b97f4a7c15ULL);
		size_t skip = off % 8, n = 8 - skip < len ? 8 - skip : len;

		memcpy(buf, (uint8_t *)&word + skip, n);
		buf += n;
		off += n;
		len -= n;
	}
}

/* The first wrong byte, or len. */
static inline size_t pattern_check(uint64_t key, uint64_t off, const uint8_t *buf, size_t len)
{
	uint8_t want[512];
	size_t at = 0;

	while (at < len) {
		size_t n = len - at < sizeof(want) ? len - at : sizeof(want);

		pattern_fill(key, off + at, want, n);
		if (memcmp(want, buf + at, n))
			for (size_t i = 0; i < n; i++)
				if (want[i] != buf[at + i])
					return at + i;
		at += n;
	}
	return len;
}

#endif
