/* SPDX-License-Identifier: BSD-2-Clause */
/* What is remembered of peer hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <sys/socket.h>
#include "bridge/path.h"

static struct path p;
static const uint8_t a[16] = { 10, 0, 0, 1 }, b[16] = { 10, 0, 0, 2 };

static int setup(void **state)
{
	(void)state;
	memset(&p, 0, sizeof(p));
	return 0;
}

static void unreachable(void **state)
{
	uint64_t now = 1000, rest = PATH_FIRST_NS;
	int i;

	(void)state;
	assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
	for (i = 0; i < 20; i++) {
		path_news(&p, AF_INET, a, PATH_UNREACHABLE, now);
		assert_int_equal(path_rest(&p, AF_INET, a, now), rest);
		/* what others find out meanwhile is the same failure */
		path_news(&p, AF_INET, a, PATH_UNREACHABLE, now + 1);
		assert_int_equal(path_rest(&p, AF_INET, a, now), rest);
		now += rest - 1;
		assert_int_equal(path_rest(&p, AF_INET, a, now), 1);
		now++;
		assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
		rest = rest * 2 < PATH_LAST_NS ? rest * 2 : PATH_LAST_NS;
	}
	assert_int_equal(rest, PATH_LAST_NS);
	/* another host, another family */
	path_news(&p, AF_INET, a, PATH_UNREACHABLE, now);
	assert_int_equal(path_rest(&p, AF_INET, b, now), 0);
	assert_int_equal(path_rest(&p, AF_INET6, a, now), 0);
	path_news(&p, AF_INET, a, PATH_GOOD, now);
	assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
	/* who was reached once is tried sooner, and rests are bounded */
	assert_true(path_was_good(&p, AF_INET, a));
	assert_false(path_was_good(&p, AF_INET, b));
	for (rest = PATH_GOOD_FIRST_NS, i = 0; i < 20; i++) {
		path_news(&p, AF_INET, a, PATH_UNREACHABLE, now);
		assert_int_equal(path_rest(&p, AF_INET, a, now), rest);
		now += rest;
		rest = rest * 2 < PATH_GOOD_LAST_NS ? rest * 2 : PATH_GOOD_LAST_NS;
	}
	assert_int_equal(rest, PATH_GOOD_LAST_NS);
	/* a call from there ends the rest, and does not make it good */
	path_news(&p, AF_INET, a, PATH_UNREACHABLE, now);
	path_news(&p, AF_INET, a, PATH_HEARD, now);
	assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
	path_news(&p, AF_INET, b, PATH_HEARD, now);
	assert_false(path_was_good(&p, AF_INET, b));
}

static void nobody(void **state)
{
	uint64_t now = 5;
	uint32_t i;

	(void)state;
	for (i = 1; i < PATH_QUIET; i++)
		path_news(&p, AF_INET, a, PATH_NOBODY, now);
	assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
	path_news(&p, AF_INET, a, PATH_GOOD, now);
	for (i = 1; i < PATH_QUIET; i++)
		path_news(&p, AF_INET, a, PATH_NOBODY, now);
	assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
	path_news(&p, AF_INET, a, PATH_NOBODY, now);
	assert_int_equal(path_rest(&p, AF_INET, a, now), PATH_GOOD_FIRST_NS);
	now += PATH_GOOD_FIRST_NS;
	path_news(&p, AF_INET, a, PATH_NOBODY, now);
	assert_int_equal(path_rest(&p, AF_INET, a, now), 2 * PATH_GOOD_FIRST_NS);
}

/* The table is full: the one that was heard of longest ago is forgotten. */
static void room(void **state)
{
	uint8_t addr[16] = { 0 };
	uint32_t i;

	(void)state;
	for (i = 0; i < PATH_HOSTS + 10; i++) {
		addr[0] = (uint8_t)i;
		addr[1] = (uint8_t)(i >> 8);
		path_news(&p, AF_INET, addr, PATH_UNREACHABLE, i + 1);
	}
	for (i = 0; i < PATH_HOSTS + 10; i++) {
		addr[0] = (uint8_t)i;
		addr[1] = (uint8_t)(i >> 8);
		assert_int_equal(path_rest(&p, AF_INET, addr, 300) != 0, i >= 10);
	}
}

/* Whoever answers, or does not: that it is slow is another matter, and forgotten after a long time without. */
static void slow(void **state)
{
	uint64_t now = 1000, rest = PATH_SLOW_FIRST_NS;
	int i;

	(void)state;
	for (i = 0; i < 12; i++) {
		path_news(&p, AF_INET, a, PATH_SLOW, now);
		path_news(&p, AF_INET, a, PATH_SLOW, now + 1);
		path_news(&p, AF_INET, a, PATH_HEARD, now + 2);
		path_news(&p, AF_INET, a, PATH_GOOD, now + 2);
		assert_int_equal(path_slow(&p, AF_INET, a, now), rest);
		assert_int_equal(path_slow(&p, AF_INET, b, now), 0);
		assert_int_equal(path_rest(&p, AF_INET, a, now), 0);
		now += rest;
		assert_int_equal(path_slow(&p, AF_INET, a, now), 0);
		rest = rest * 2 < PATH_LAST_NS ? rest * 2 : PATH_LAST_NS;
	}
	assert_int_equal(rest, PATH_LAST_NS);
	now += PATH_SLOW_OLD_NS;
	path_news(&p, AF_INET, a, PATH_SLOW, now);
	assert_int_equal(path_slow(&p, AF_INET, a, now), PATH_SLOW_FIRST_NS);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(unreachable, setup),
		cmocka_unit_test_setup(nobody, setup),
		cmocka_unit_test_setup(room, setup),
		cmocka_unit_test_setup(slow, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
