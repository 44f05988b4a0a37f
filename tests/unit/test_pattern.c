/* SPDX-License-Identifier: BSD-2-Clause */
/* The benchmark's verified stream: what it must accept however it is cut, and what it must catch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bench/pattern.h"

#define MESSAGES	400u

static const size_t sizes[] = { 1, 7, 8, 9, 16, 64, 1000, 4096 };
#define SIZES	(sizeof(sizes) / sizeof(sizes[0]))

static uint8_t *make_stream(uint64_t seed, uint64_t first, size_t size, size_t *len)
{
	struct pattern p;
	uint8_t *out;
	uint64_t k;

	assert_int_equal(pattern_init(&p, seed, size), 0);
	*len = size * MESSAGES;
	out = malloc(*len);
	assert_non_null(out);
	for (k = 0; k < MESSAGES; k++) {
		memcpy(out + k * size, pattern_take(&p, first + k), size);
		pattern_give(&p, first + k);
	}
	pattern_free(&p);
	return out;
}

/* Feeds @len bytes in pieces of random length and returns the errors seen. */
static uint64_t feed(uint64_t seed, size_t size, const uint8_t *buf, size_t len, bool full,
		     uint64_t *first_bad)
{
	uint64_t rnd = seed, errors;
	struct pattern p;
	struct check c;
	size_t n;

	assert_int_equal(pattern_init(&p, seed, size), 0);
	check_init(&c, &p, full);
	while (len) {
		rnd = pattern_mix(rnd + 1);
		n = 1 + rnd % (3 * size + 5);
		if (n > len)
			n = len;
		check_feed(&c, buf, n);
		buf += n;
		len -= n;
	}
	errors = c.errors;
	if (first_bad)
		*first_bad = c.first_bad;
	pattern_free(&p);
	return errors;
}

static void accepts_its_own(void **state)
{
	size_t i, len;
	uint8_t *s;

	(void)state;
	for (i = 0; i < SIZES; i++) {
		s = make_stream(i, 0, sizes[i], &len);
		assert_int_equal(feed(i, sizes[i], s, len, true, NULL), 0);
		assert_int_equal(feed(i, sizes[i], s, len, false, NULL), 0);
		free(s);
	}
}

static void full_catches_every_bit(void **state)
{
	uint64_t bad, rnd = 7;
	size_t i, n, at, len;
	uint8_t *s;

	(void)state;
	for (i = 0; i < SIZES; i++) {
		s = make_stream(i, 0, sizes[i], &len);
		for (n = 0; n < 50; n++) {
			rnd = pattern_mix(rnd + 1);
			at = rnd % len;
			s[at] ^= (uint8_t)(1u << (rnd >> 61));
			assert_int_equal(feed(i, sizes[i], s, len, true, &bad), 1);
			assert_true(bad <= at);
			s[at] ^= (uint8_t)(1u << (rnd >> 61));
		}
		free(s);
	}
}

/* The sampled check need not see a flipped bit, but no byte may vanish, repeat or move. */
static void sampled_catches_displacement(void **state)
{
	size_t i, cut, len;
	uint8_t *s, *t;

	(void)state;
	for (i = 2; i < SIZES; i++) {
		s = make_stream(i, 0, sizes[i], &len);
		t = malloc(2 * len);
		assert_non_null(t);
		for (cut = 1; cut <= 3 * sizes[i]; cut += 1 + sizes[i] / 9) {
			memcpy(t, s, len / 2);				/* lost */
			memcpy(t + len / 2, s + len / 2 + cut, len / 2 - cut);
			assert_true(feed(i, sizes[i], t, len - cut, false, NULL) > 0);
			memcpy(t, s, len / 2);				/* repeated */
			memcpy(t + len / 2, s + len / 2 - cut, len / 2 + cut);
			assert_true(feed(i, sizes[i], t, len + cut, false, NULL) > 0);
		}
		free(t);
		free(s);
	}
}

static void sampled_catches_another_seed_and_period(void **state)
{
	size_t len;
	uint8_t *s;

	(void)state;
	s = make_stream(2, 0, 64, &len);
	assert_true(feed(1, 64, s, len, false, NULL) >= MESSAGES);
	free(s);
	s = make_stream(1, PATTERN_SLOTS, 64, &len);	/* same slices, other stamps */
	assert_true(feed(1, 64, s, len, false, NULL) >= MESSAGES);
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(accepts_its_own),
		cmocka_unit_test(full_catches_every_bit),
		cmocka_unit_test(sampled_catches_displacement),
		cmocka_unit_test(sampled_catches_another_seed_and_period),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
