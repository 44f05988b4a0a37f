/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <limits.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/log.h"
#include "core/reason.h"

static void every_code_has_its_own_kebab_name(void **state)
{
	(void)state;
	for (int i = 0; i < XR_REASON_COUNT; i++) {
		const char *name = xr_reason_name((unsigned int)i);
		size_t len = strlen(name);

		assert_in_range(len, 2, 24);
		assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz-"), len);
		assert_int_equal(xr_reason_by_name(name), i);
	}
}

static void every_text_is_a_sentence(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < XR_REASON_COUNT; i++) {
		const char *text = xr_reason_text(i);

		assert_true(text[0] >= 'A' && text[0] <= 'Z');
		assert_int_equal(text[strlen(text) - 1], '.');
	}
}

/* Codes reach peers and xr-stat of other versions: these numbers are for ever. */
static void numbers_are_stable(void **state)
{
	(void)state;
	assert_int_equal(XR_REASON_NONE, 0);
	assert_int_equal(XR_REASON_PEER_NOT_XRDMA, 2);
	assert_int_equal(XR_REASON_PROOF_FAILED, 24);
	assert_int_equal(XR_REASON_TIMEOUT, 44);
	assert_int_equal(XR_REASON_INTERNAL, 45);
}

static void unknown_codes_and_names_are_told(void **state)
{
	(void)state;
	assert_string_equal(xr_reason_name(XR_REASON_COUNT), "unknown");
	assert_string_equal(xr_reason_name(UINT_MAX), "unknown");
	assert_non_null(strstr(xr_reason_text(UINT_MAX), "does not know"));
	assert_int_equal(xr_reason_by_name("peer-not"), -ENOENT);
	assert_int_equal(xr_reason_by_name(""), -ENOENT);
}

/* xr_snprintf against the C library's: text, and length when cut. */
#define SAME(size, ...)                                                                            \
	do {                                                                                       \
		char want[256], got[256];                                                          \
		int n_ = snprintf(want, size, __VA_ARGS__);                                        \
		assert_int_equal(xr_snprintf(got, size, __VA_ARGS__), n_);                         \
		if (size)                                                                          \
			assert_string_equal(got, want);                                            \
	} while (0)

static void formats_as_the_library_does(void **state)
{
	/* beyond the compiler's reach, so that neither side is computed at compile time */
	volatile size_t room = 256, small = 6, none = 0;

	(void)state;
	SAME(room, "%d %i %u %x", INT_MIN, INT_MAX, UINT_MAX, 0xbeefu);
	SAME(room, "%ld %lu %lx %lld %llu", LONG_MIN, ULONG_MAX, ULONG_MAX, LLONG_MIN, ULLONG_MAX);
	SAME(room, "%zu %zd %jd %td", (size_t)-1, (ssize_t)-1, (intmax_t)-5, (ptrdiff_t)7);
	SAME(room, "%hd %hu %hhd %hhx", (short)-3, (unsigned short)65535, (signed char)-128,
	     (unsigned char)255);
	SAME(room, "[%5d] [%-5d] [%05d] [%-5s] [%5s] [%.2s] [%.*s]", -42, -42, -42, "ab", "ab",
	     "abcdef", 3, "abcdef");
	SAME(room, "[%*d] [%-*d] [%*d] [%08x] [%.5u] [%8.3d]", 6, 1, 6, 2, -6, 3, 0xabu, 12u, 7);
	SAME(room, "%c%c%% %p", 'x', 'y', (void *)0x1234abcd);
	SAME(small, "%s", "longer than that");
	SAME(small, "%d", 123456789);
	SAME(none, "%s %d", "nothing fits", 1);
}

static void what_is_not_understood_is_shown(void **state)
{
	char buf[64];
	const char *volatile fmt = "a %f b %d";

	(void)state;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	xr_snprintf(buf, sizeof(buf), fmt, 1.5, 2);
	assert_string_equal(buf, "a %f b %d");
	fmt = "%s";
	xr_snprintf(buf, sizeof(buf), fmt, (char *)NULL);
#pragma GCC diagnostic pop
	assert_string_equal(buf, "(null)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_code_has_its_own_kebab_name),
		cmocka_unit_test(every_text_is_a_sentence),
		cmocka_unit_test(numbers_are_stable),
		cmocka_unit_test(unknown_codes_and_names_are_told),
		cmocka_unit_test(formats_as_the_library_does),
		cmocka_unit_test(what_is_not_understood_is_shown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
