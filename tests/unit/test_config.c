/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/config.h"

static struct xr_config cfg;

/* Warnings of the last parse: "name:line: message\n" each. */
static char warned[65536];
static unsigned int n_warned;

static void take(void *arg, const char *where, unsigned int line, const char *msg)
{
	size_t len = strlen(warned);

	assert_ptr_equal(arg, &cfg);
	assert_null(strchr(msg, '\n'));
	snprintf(warned + len, sizeof(warned) - len, "%s:%u: %s\n", where, line, msg);
	n_warned++;
}

static int parse_bytes(const char *text, size_t len)
{
	warned[0] = '\0';
	n_warned = 0;
	xr_config_defaults(&cfg);
	return xr_config_parse(&cfg, text, len, "t.conf", take, &cfg);
}

static void parse(const char *text)
{
	assert_int_equal(parse_bytes(text, strlen(text)), 0);
	assert_int_equal(cfg.warnings, n_warned);
}

/* The text gives exactly this one warning, and leaves every setting at its default. */
static void mistake(const char *text, const char *warning)
{
	static struct xr_config def;

	parse(text);
	assert_string_equal(warned, warning);
	xr_config_defaults(&def);
	for (int i = 0; i < XR_KEY_COUNT; i++) {
		char a[XR_CONFIG_STR], b[XR_CONFIG_STR];

		xr_config_value(&cfg, (enum xr_config_key_id)i, a, sizeof(a));
		xr_config_value(&def, (enum xr_config_key_id)i, b, sizeof(b));
		assert_string_equal(a, b);
	}
}

static void defaults_are_those_of_the_table(void **state)
{
	(void)state;
	xr_config_defaults(&cfg);
	assert_int_equal(cfg.warnings, 0);
	assert_true(cfg.enabled);
	assert_int_equal(cfg.fabric, XR_FABRIC_AUTO);
	assert_int_equal(cfg.upgrade_turns, 4);
	assert_int_equal(cfg.upgrade_bytes, 32768);
	assert_int_equal(cfg.rendezvous_timeout, 1000000000);
	assert_int_equal(cfg.spin, 50000);
	assert_int_equal(cfg.max_flows, 65536);
	assert_int_equal(cfg.max_memory, 1 << 30);
	assert_int_equal(cfg.flow_window, 4 << 20);
	assert_int_equal(cfg.ring_slots, 64);
	assert_int_equal(cfg.log_level, XR_LOG_WARN);
	assert_string_equal(cfg.log_file, "");
	assert_string_equal(cfg.stats_dir, "/dev/shm");
	assert_int_equal(cfg.n_rules, 0);
}

static void every_default_and_bound_can_be_read_back(void **state)
{
	(void)state;
	for (int i = 0; i < XR_KEY_COUNT; i++) {
		const struct xr_config_key *key = &xr_config_keys[i];
		char value[XR_CONFIG_STR], again[XR_CONFIG_STR];
		uint64_t bound[2] = {key->min, key->max};

		assert_non_null(key->help);
		assert_non_null(key->man);
		xr_config_defaults(&cfg);
		assert_int_equal(cfg.origin[i], XR_ORIGIN_DEFAULT);
		xr_config_value(&cfg, (enum xr_config_key_id)i, value, sizeof(value));
		assert_int_equal(xr_config_set(&cfg, key->name, value, XR_ORIGIN_FILE, "x", 7, take,
					       &cfg), 0);
		assert_int_equal(cfg.origin[i], XR_ORIGIN_FILE);
		assert_int_equal(cfg.origin_line[i], 7);
		if (key->type != XR_TYPE_INT && key->type != XR_TYPE_SIZE &&
		    key->type != XR_TYPE_TIME)
			continue;
		for (int b = 0; b < 2; b++) {
			*(uint64_t *)((char *)&cfg + key->offset) = bound[b];
			xr_config_value(&cfg, (enum xr_config_key_id)i, value, sizeof(value));
			assert_int_equal(xr_config_set(&cfg, key->name, value, XR_ORIGIN_FILE, "x",
						       1, take, &cfg), 0);
			xr_config_value(&cfg, (enum xr_config_key_id)i, again, sizeof(again));
			assert_string_equal(value, again);
			assert_int_equal(*(uint64_t *)((char *)&cfg + key->offset), bound[b]);
		}
	}
}

static void a_file_sets_what_it_says(void **state)
{
	(void)state;
	parse("\xef\xbb\xbf# comment\n"
	      "enabled = no\r\n"
	      "; another\n"
	      "[limits]\n"
	      "  flow_window=2MiB   # inline\n"
	      "rendezvous-timeout = 1.5s\n"
	      "max_flows\t=\t1k\n"
	      "[global]\n"
	      "fabric = shm\n"
	      "log_file = /var/log/a#b.log\n"
	      "fabric = none\n"
	      "[thresholds]\n"
	      "spin = 0\n"
	      "upgrade_bytes = 0");
	assert_string_equal(warned, "");
	assert_false(cfg.enabled);
	assert_int_equal(cfg.flow_window, 2 << 20);
	assert_int_equal(cfg.rendezvous_timeout, 1500000000);
	assert_int_equal(cfg.max_flows, 1024);
	assert_int_equal(cfg.fabric, XR_FABRIC_NONE);
	assert_int_equal(cfg.origin_line[XR_KEY_FABRIC], 11);
	assert_string_equal(cfg.log_file, "/var/log/a#b.log");
	assert_int_equal(cfg.spin, 0);
	assert_int_equal(cfg.upgrade_bytes, 0);
}

static void mistakes_are_told_with_a_suggestion(void **state)
{
	(void)state;
	mistake("\n\nenabeld = no\n", "t.conf:3: unknown key 'enabeld'; did you mean 'enabled'?\n");
	mistake("[limits]\nmax_flow = 3\n",
		"t.conf:2: unknown key 'max_flow'; did you mean 'max_flows'?\n");
	mistake("zzzzzz = 1\n", "t.conf:1: unknown key 'zzzzzz'\n");
	mistake("[limts]\nmax_flows = 3\n",
		"t.conf:1: unknown section [limts], which is passed over; did you mean [limits]?\n");
	mistake("[rule]\nspin = 1us\naction = tcp\n",
		"t.conf:2: spin belongs in [thresholds], not [rule]\n"
		"t.conf:1: this [rule] is ignored because of its mistakes\n");
	mistake("[limits]\nprogram = x\n", "t.conf:2: program belongs in [rule], not [limits]\n");
	mistake("[qqqqqqqqqqq]\n", "t.conf:1: unknown section [qqqqqqqqqqq], which is passed over\n");
	mistake("[limits\nmax_flows = 3\n", "t.conf:1: '[limits' lacks its ]\n");
	mistake("fabric = smh\n",
		"t.conf:1: fabric: 'smh' is none of auto|shm|none; did you mean 'shm'?\n");
	mistake("fabric =\n", "t.conf:1: fabric: '' is none of auto|shm|none\n");
	mistake("just words\n", "t.conf:1: 'just words' is neither [section] nor key = value\n");
	mistake("= 5\n", "t.conf:1: '= 5' is neither [section] nor key = value\n");
	mistake("enabled = maybe\n", "t.conf:1: enabled: 'maybe' is neither yes nor no\n");
	mistake("log_file = relative\n",
		"t.conf:1: log_file: 'relative' is not an absolute path\n");
	mistake("stats_dir =\n", "t.conf:1: stats_dir: the value must have 1 to 200 characters\n");
}

static void numbers_out_of_range_change_nothing(void **state)
{
	(void)state;
	mistake("[limits]\nring_slots = 15\n",
		"t.conf:2: ring_slots: '15' is out of range (16 to 4096)\n");
	mistake("[limits]\nmax_memory = 18446744073709551616\n",
		"t.conf:2: max_memory: '18446744073709551616' is out of range (0 to 64T)\n");
	mistake("[limits]\nmax_memory = 999999999999T\n",
		"t.conf:2: max_memory: '999999999999T' is out of range (0 to 64T)\n");
	mistake("[limits]\nflow_window = -1\n",
		"t.conf:2: flow_window: '-1' is not a size (such as 4096, 64K, 4M)\n");
	mistake("[limits]\nflow_window = 4X\n",
		"t.conf:2: flow_window: '4X' is not a size (such as 4096, 64K, 4M)\n");
	mistake("[limits]\nmax_flows = 0x10\n", "t.conf:2: max_flows: '0x10' is not a number\n");
	mistake("[thresholds]\nspin = 50\n",
		"t.conf:2: spin: '50' is not a time (such as 50us, 2ms, 1s)\n");
	mistake("[thresholds]\nspin = 2s\n", "t.conf:2: spin: '2s' is out of range (0 to 1s)\n");
	mistake("[thresholds]\nspin = 99999999999999999999h\n",
		"t.conf:2: spin: '99999999999999999999h' is out of range (0 to 1s)\n");
	mistake("[thresholds]\nspin = 18446744073709551615h\n",
		"t.conf:2: spin: '18446744073709551615h' is out of range (0 to 1s)\n");
}

static void a_key_in_the_wrong_section_counts_and_is_told(void **state)
{
	(void)state;
	parse("[global]\nspin = 1us\n");
	assert_string_equal(warned, "t.conf:2: spin belongs in [thresholds], not [global]; taken all the same\n");
	assert_int_equal(cfg.spin, 1000);
}

static void broken_text_is_survived(void **state)
{
	char line[1200];

	(void)state;
	assert_int_equal(parse_bytes("enabled = no\0\nfabric = shm\n", 27), 0);
	assert_string_equal(warned, "t.conf:1: holds a NUL byte: ignored\n");
	assert_true(cfg.enabled);
	assert_int_equal(cfg.fabric, XR_FABRIC_SHM);

	memset(line, 'a', sizeof(line));
	memcpy(line + 1100, "\nfabric = shm", 14);
	parse_bytes(line, 1100 + 13);
	assert_string_equal(warned, "t.conf:1: longer than 1023 characters: ignored\n");
	assert_int_equal(cfg.fabric, XR_FABRIC_SHM);

	parse_bytes("", 0);
	assert_string_equal(warned, "");
	parse_bytes("\0", 1);
	assert_int_equal(n_warned, 1);
}

static void huge_files_are_refused_whole(void **state)
{
	size_t len = XR_CONFIG_FILE_MAX + 1;
	char *text = malloc(len);

	(void)state;
	assert_non_null(text);
	memset(text, '\n', len);
	memcpy(text, "enabled = no", 12);
	assert_int_equal(parse_bytes(text, len), -EFBIG);
	assert_int_equal(n_warned, 1);
	assert_true(cfg.enabled);
	assert_int_equal(parse_bytes(text, len - 1), 0);
	assert_false(cfg.enabled);
	free(text);
}

/* Seeded noise over the alphabet of the format: whatever it is, it ends and stays in bounds. */
static void noise_is_survived(void **state)
{
	static const char alphabet[] = "[]=#;\n\r\t ,-/.*abrule0123456789KMs:\0";
	static char text[4096];
	uint64_t x = 0x9e3779b97f4a7c15ull;

	(void)state;
	for (int round = 0; round < 3000; round++) {
		size_t len = x % sizeof(text);

		for (size_t i = 0; i < len; i++) {
			x = x * 6364136223846793005ull + 1442695040888963407ull;
			text[i] = round % 3 ? alphabet[(x >> 33) % (sizeof(alphabet) - 1)]
					    : (char)(x >> 40);
		}
		if (round % 2)
			memcpy(text, "[rule]\naddress=", len < 15 ? len : 15);
		parse_bytes(text, len);
		assert_in_range(cfg.n_rules, 0, XR_CONFIG_RULES);
		assert_in_range(cfg.fabric, XR_FABRIC_AUTO, XR_FABRIC_NONE);
		for (uint32_t i = 0; i < cfg.n_rules; i++) {
			assert_in_range(cfg.rule[i].n_addr, 0, XR_CONFIG_ADDRS);
			assert_in_range(cfg.rule[i].n_port, 0, XR_CONFIG_PORTS);
		}
	}
}

static void the_environment_wins_over_the_file(void **state)
{
	char *const envp[] = {"HOME=/", "XRDMA_SPIN=1ms", "XRDMA_SPIN=2ms", "XRDMA_FABRIC=bogus",
			      "XRDMA_SPINN=3", "XRDMA_CONF=/x", "XRDMA_TEST_ANYTHING=1",
			      "XRDMA_QQQQQQQQQQ=1", "XRDMA_NOTHING", NULL};

	(void)state;
	parse("fabric = shm\n[thresholds]\nspin = 3us\n");
	xr_config_environment(&cfg, envp, take, &cfg);
	assert_string_equal(warned,
			    "XRDMA_FABRIC:0: fabric: 'bogus' is none of auto|shm|none\n"
			    "environment:0: unknown variable XRDMA_SPINN; did you mean XRDMA_SPIN?\n"
			    "environment:0: unknown variable XRDMA_QQQQQQQQQQ\n");
	assert_int_equal(cfg.spin, 1000000);
	assert_int_equal(cfg.origin[XR_KEY_SPIN], XR_ORIGIN_ENV);
	assert_int_equal(cfg.fabric, XR_FABRIC_SHM);
	assert_int_equal(cfg.origin[XR_KEY_FABRIC], XR_ORIGIN_FILE);
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static void loads_from_where_the_environment_says(void **state)
{
	char path[] = "/tmp/xr-test-config-XXXXXX", env[64];
	char *envp[] = {env, "XRDMA_SPIN=7us", NULL};
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	snprintf(env, sizeof(env), "XRDMA_CONF=%s", path);
	write_file(path, "[thresholds]\nspin = 1us\nupgrade_bytes = 8K\n[limits]\nring_slots = 100\n");
	warned[0] = '\0';
	assert_int_equal(xr_config_load(&cfg, "/nonexistent", envp, take, &cfg), 0);
	assert_int_equal(cfg.spin, 7000);
	assert_int_equal(cfg.upgrade_bytes, 8192);
	assert_int_equal(cfg.ring_slots, 128); /* a power of two */
	assert_string_equal(xr_config_path("/other", envp), path);
	assert_int_equal(unlink(path), 0);

	/* asked for by name and not there: a warning; the default file may be missing */
	assert_int_equal(xr_config_load(&cfg, NULL, envp, take, &cfg), 1);
	assert_non_null(strstr(warned, "does not exist"));
	assert_int_equal(xr_config_load(&cfg, "/nonexistent", envp + 1, take, &cfg), 0);

	/* neither a directory, nor a FIFO that nobody writes to, nor an endless device */
	strcpy(env, "XRDMA_CONF=/tmp");
	assert_int_equal(xr_config_load(&cfg, NULL, envp, take, &cfg), 1);
	snprintf(env, sizeof(env), "XRDMA_CONF=%s", path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(xr_config_load(&cfg, NULL, envp, take, &cfg), 1);
	unlink(path);
	strcpy(env, "XRDMA_CONF=/dev/zero");
	assert_int_equal(xr_config_load(&cfg, NULL, envp, take, &cfg), 1);
	assert_int_equal(cfg.spin, 7000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_those_of_the_table),
		cmocka_unit_test(every_default_and_bound_can_be_read_back),
		cmocka_unit_test(a_file_sets_what_it_says),
		cmocka_unit_test(mistakes_are_told_with_a_suggestion),
		cmocka_unit_test(numbers_out_of_range_change_nothing),
		cmocka_unit_test(a_key_in_the_wrong_section_counts_and_is_told),
		cmocka_unit_test(broken_text_is_survived),
		cmocka_unit_test(huge_files_are_refused_whole),
		cmocka_unit_test(noise_is_survived),
		cmocka_unit_test(the_environment_wins_over_the_file),
		cmocka_unit_test(loads_from_where_the_environment_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
