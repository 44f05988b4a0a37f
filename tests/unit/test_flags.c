/* SPDX-License-Identifier: BSD-2-Clause */
/* Settings by name: those of a context, and those of the process's connections. */
#include "core/channel.h"
#include "core/tune.h"
#include "pair_rig.h"
#include "stats_fixture.h"

static struct xrdma_context *ctx;

static int start(void **state)
{
	static const struct xrdma_callbacks none;

	if (setup(state) || setenv("XRDMA_STATS_DIR", base, 1) || setenv("XRDMA_CONF", "/dev/null", 1))
		return -1;
	return xrdma_context_create(&ctx, rig_device(), &none, NULL);
}

static int end(void **state)
{
	return xrdma_context_destroy(ctx) || teardown(state);
}

static uint64_t value(const char *name)
{
	struct xrdma_flag f;

	for (unsigned int i = 0; !xrdma_get_flag(ctx, i, &f); i++)
		if (!strcmp(f.name, name))
			return f.value;
	fail_msg("%s is not listed", name);
	return 0;
}

static void every_option_is_listed_with_its_bounds(void **state)
{
	struct xrdma_flag f;
	unsigned int i;

	(void)state;
	for (i = 0; i < XRDMA_OPT_COUNT; i++) {
		char text[24];
		int r;

		assert_int_equal(xrdma_get_flag(ctx, i, &f), 0);
		assert_true(*f.name && *f.text && f.least <= f.most);
		assert_true((f.value >= f.least && f.value <= f.most));
		/* the other way to set it has the same bounds */
		assert_int_equal(xrdma_set_option(ctx, (enum xrdma_option)i, f.most + 1), -EINVAL);
		if (f.least)
			assert_int_equal(xrdma_set_option(ctx, (enum xrdma_option)i, f.least - 1), -EINVAL);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)f.most + 1);
		assert_int_equal(xrdma_set_flag(ctx, f.name, text), -ERANGE);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)f.least);
		r = xrdma_set_flag(ctx, f.name, text);
		assert_int_equal(r, 0);
		assert_int_equal(value(f.name), f.least);
		assert_int_equal(ctx->option[i], f.least);
	}
	memset(&f, 7, sizeof(f));
	assert_int_equal(xrdma_get_flag(ctx, i, &f), -ENOENT);
	assert_int_equal(f.least, 0x0707070707070707);
}

static void values_have_units(void **state)
{
	(void)state;
	assert_int_equal(xrdma_set_flag(ctx, "window_bytes", "1M"), 0);
	assert_int_equal(value("window_bytes"), 1 << 20);
	assert_int_equal(xrdma_set_flag(ctx, "pool_bytes", "1GiB"), 0);
	assert_int_equal(value("pool_bytes"), 1 << 30);
	assert_int_equal(xrdma_set_flag(ctx, "keepalive_ms", "2s"), 0);
	assert_int_equal(value("keepalive_ms"), 2000);
	assert_int_equal(xrdma_set_flag(ctx, "keepalive_ms", "1500"), 0);
	assert_int_equal(value("keepalive_ms"), 1500);
	assert_int_equal(xrdma_set_flag(ctx, "keepalive_ms", "2m"), 0);
	assert_int_equal(value("keepalive_ms"), 120000);
	assert_int_equal(xrdma_set_flag(ctx, "queue_us", "0.25ms"), 0);
	assert_int_equal(value("queue_us"), 250);
	assert_int_equal(xrdma_set_flag(ctx, "rest_ms", "0"), 0);
	assert_int_equal(value("rest_ms"), 0);
}

static void what_makes_no_sense_changes_nothing(void **state)
{
	static const struct { const char *name, *value; int error; } bad[] = {
		{ "windows", "1", -ENOENT }, { "", "1", -ENOENT }, { "WINDOW_MSGS", "1", -ENOENT },
		{ "window_msgs", "", -EINVAL }, { "window_msgs", "-1", -EINVAL }, { "window_msgs", "1x", -EINVAL },
		{ "window_msgs", "0", -ERANGE }, { "window_msgs", "1025", -ERANGE },
		{ "window_msgs", "99999999999999999999", -ERANGE }, { "copy", "2", -ERANGE },
		{ "copy", "yes", -EINVAL }, { "keepalive_ms", "1us", -EINVAL },
		{ "keepalive_ms", "2h", -ERANGE }, { "keepalive_ms", "5q", -EINVAL },
		{ "spin", "1us", -ENOENT }, { NULL, "1", -EINVAL }, { "copy", NULL, -EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t before[XRDMA_OPT_COUNT];

		memcpy(before, ctx->option, sizeof(before));
		if (xrdma_set_flag(ctx, bad[i].name, bad[i].value) != bad[i].error)
			fail_msg("%s = %s", bad[i].name ? bad[i].name : "-", bad[i].value ? bad[i].value : "-");
		assert_memory_equal(before, ctx->option, sizeof(before));
	}
}

static void of_a_process_without_connections_there_is_nothing_to_set(void **state)
{
	struct xrdma_flag f;

	(void)state;
	assert_int_equal(xrdma_set_flag(NULL, "spin", "20us"), -ENODEV);
	assert_int_equal(xrdma_get_flag(NULL, 0, &f), -ENODEV);
	assert_int_equal(xrdma_set_flag(NULL, "max_flows", "20"), -ENOENT);
	assert_int_equal(xrdma_set_flag(NULL, "spin", "20"), -EINVAL);
	assert_int_equal(xrdma_set_flag(NULL, "spin", "2h"), -ERANGE);
}

static void of_a_process_it_is_put_where_the_preload_object_looks(void **state)
{
	struct xrdma_flag f;
	uint32_t control;
	int i;

	(void)state;
	assert_int_equal(xr_stats_open(base, "t", 4), 0);
	control = xr_load_relaxed(&xr_stats_now()->h.control);
	assert_int_equal(xrdma_get_flag(NULL, 0, &f), 0);
	assert_string_equal(f.name, "spin");
	assert_int_equal(f.value, 50000);
	assert_int_equal(xrdma_set_flag(NULL, "spin", "20us"), 0);
	assert_int_equal(xr_load_relaxed(&xr_stats_now()->h.tune[0]), 20001);
	assert_int_equal(xr_load_relaxed(&xr_stats_now()->h.control), control + 1);
	assert_int_equal(xrdma_get_flag(NULL, 0, &f), 0);
	assert_int_equal(f.value, 20000);
	assert_int_equal(xrdma_set_flag(NULL, "trace_sample", "7"), 0);
	for (i = 0; !xrdma_get_flag(NULL, (unsigned int)i, &f); i++)
		if (!strcmp(f.name, "trace_sample"))
			assert_int_equal(f.value, 7);
	assert_int_equal(i, XR_STATS_TUNES);
	assert_int_equal(xrdma_set_flag(NULL, "spin", "20"), -EINVAL);
	assert_int_equal(xr_load_relaxed(&xr_stats_now()->h.control), control + 2);
	xr_stats_close();
}

#define FLAG_TEST(f) cmocka_unit_test_setup_teardown(f, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FLAG_TEST(every_option_is_listed_with_its_bounds),
		FLAG_TEST(values_have_units),
		FLAG_TEST(what_makes_no_sense_changes_nothing),
		FLAG_TEST(of_a_process_without_connections_there_is_nothing_to_set),
		FLAG_TEST(of_a_process_it_is_put_where_the_preload_object_looks),
	};

	return rig_run(tests);
}
