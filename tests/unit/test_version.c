/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "autoconf.h"
#include "core/xrdma.h"

static void version_is_that_of_the_package(void **state)
{
	(void)state;
	assert_string_equal(xrdma_version(), PACKAGE_VERSION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(version_is_that_of_the_package),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
