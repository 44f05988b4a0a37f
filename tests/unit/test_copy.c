/* SPDX-License-Identifier: BSD-2-Clause */
/* xr_copy(): the same bytes as memcpy() at every distance and length, and not one beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core/copy.h"

#define AREA	(24u << 10)
#define GUARD	0xa5

static uint8_t *src_page, *dst_page;

static void copies_at(size_t src_off, size_t dst_off, size_t n)
{
	uint8_t *dst = dst_page + dst_off;
	const uint8_t *src = src_page + src_off;
	size_t i;

	memset(dst_page, GUARD, AREA);
	xr_copy(dst, src, n);
	for (i = 0; i < n && dst[i] == src[i]; i++)
		;
	assert_int_equal(i, n);
	for (i = 0; i < AREA; i++)
		if ((i < dst_off || i >= dst_off + n) && dst_page[i] != GUARD)
			fail_msg("byte %zu beside %zu + %zu was written", i, dst_off, n);
}

static void every_distance(void **state)
{
	size_t s, d;

	(void)state;
	for (s = 0; s < 48; s += 5)
		for (d = 0; d < 100; d++)
			copies_at(s, d, 2048 + (s * 13 + d) % 200);
	for (d = 4096 - 80; d < 4096 + 80; d++)
		copies_at(1, d, 5000);
}

static void every_length(void **state)
{
	size_t n;

	(void)state;
	for (n = 0; n < 300; n++)
		copies_at(0, 16, n);
	for (n = XR_COPY_LOOP_MIN - 3; n < XR_COPY_LOOP_MIN + 300; n++)
		copies_at(0, 16, n);
	copies_at(0, 16, 16384);
	copies_at(7, 16, 16385);
}

static int setup(void **state)
{
	size_t i;

	(void)state;
	src_page = aligned_alloc(4096, AREA);
	dst_page = aligned_alloc(4096, AREA);
	if (!src_page || !dst_page)
		return -1;
	for (i = 0; i < AREA; i++)
		src_page[i] = (uint8_t)((i * 2654435761u) >> 13);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(src_page);
	free(dst_page);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_distance),
		cmocka_unit_test(every_length),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
