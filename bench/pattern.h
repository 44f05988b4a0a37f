/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A seeded byte stream that depends on its position and costs almost nothing to make.
 *
 * Message k is a slice of a table of random words, at a place that depends on k, with its first
 * eight bytes replaced by a stamp of (seed, k). The sender makes it by writing the stamp into
 * the table around the send; no byte is copied. A lost, repeated, reordered or shifted piece
 * breaks the stamp of the next message even where the table repeats (every 32768 messages).
 *
 * A checker looks at the first and the last word of every message and compares one message in
 * 16 whole, or every message when asked: at 64 KiB per message the sampled check costs 1% of a
 * memcpy, which the full one does not.
 */
#ifndef BENCH_PATTERN_H
#define BENCH_PATTERN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_SLOTS	32768u		/* starting places, 8 bytes apart: 256 KiB stays in L2 */
#define PATTERN_STAMP	8u
#define PATTERN_SAMPLE	16u

struct pattern {
	uint64_t seed;
	size_t size;			/* bytes per message */
	uint8_t *table;
	uint8_t saved[PATTERN_STAMP];	/* what the stamp covers while a message is taken */
};

struct check {
	const struct pattern *p;
	uint64_t k, pos, errors, first_bad;
	size_t off;			/* within message k */
	bool full;
};

/* The finaliser of MurmurHash3: every bit of the input reaches every bit of the result. */
static inline uint64_t pattern_mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ (x >> 33);
}

static inline int pattern_init(struct pattern *p, uint64_t seed, size_t size)
{
	size_t words = PATTERN_SLOTS + (size + 7) / 8, i;
	uint64_t w;

	p->seed = pattern_mix(seed + 0x9e3779b97f4a7c15ull);
	p->size = size;
	p->table = malloc(words * 8);
	if (!p->table)
		return -1;
	for (i = 0; i < words; i++) {
		w = pattern_mix(p->seed + i * 0x9e3779b97f4a7c15ull);
		memcpy(p->table + i * 8, &w, 8);
	}
	return 0;
}

static inline void pattern_free(struct pattern *p)
{
	free(p->table);
}

static inline uint8_t *pattern_slice(const struct pattern *p, uint64_t k)
{
	return p->table + k * 40503 % PATTERN_SLOTS * 8;
}

static inline size_t pattern_stamp(const struct pattern *p, uint64_t k, uint8_t *stamp)
{
	uint64_t w = pattern_mix(p->seed ^ k);

	memcpy(stamp, &w, PATTERN_STAMP);
	return p->size < PATTERN_STAMP ? p->size : PATTERN_STAMP;
}

/* Message k, valid until pattern_give() of the same k. */
static inline const void *pattern_take(struct pattern *p, uint64_t k)
{
	uint8_t *slice = pattern_slice(p, k), stamp[PATTERN_STAMP];
	size_t n = pattern_stamp(p, k, stamp);

	memcpy(p->saved, slice, n);
	memcpy(slice, stamp, n);
	return slice;
}

static inline void pattern_give(struct pattern *p, uint64_t k)
{
	memcpy(pattern_slice(p, k), p->saved, p->size < PATTERN_STAMP ? p->size : PATTERN_STAMP);
}

static inline void check_init(struct check *c, const struct pattern *p, bool full)
{
	memset(c, 0, sizeof(*c));
	c->p = p;
	c->full = full;
}

static inline void check_differs(struct check *c)
{
	if (!c->errors++)
		c->first_bad = c->pos;
}

/* The next @n bytes of the stream, cut anywhere. */
static inline void check_feed(struct check *c, const void *buf, size_t n)
{
	const struct pattern *p = c->p;
	const uint8_t *b = buf, *want;
	uint8_t stamp[PATTERN_STAMP];
	size_t head, len, skip, off;

	while (n) {
		off = c->off;
		len = p->size - off < n ? p->size - off : n;
		want = pattern_slice(p, c->k);
		skip = 0;
		if (off < PATTERN_STAMP) {
			head = pattern_stamp(p, c->k, stamp);
			skip = head - off < len ? head - off : len;
			if (memcmp(b, stamp + off, skip))
				check_differs(c);
		}
		if (!c->full && c->k % PATTERN_SAMPLE && len - skip > PATTERN_STAMP)
			skip = off + len == p->size ? len - PATTERN_STAMP : len;
		if (memcmp(b + skip, want + off + skip, len - skip))
			check_differs(c);
		c->pos += len;
		c->off += len;
		if (c->off == p->size) {
			c->off = 0;
			c->k++;
		}
		b += len;
		n -= len;
	}
}

#endif
