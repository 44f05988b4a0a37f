/* SPDX-License-Identifier: BSD-2-Clause */
/* The key file of a cluster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/key.h"

static char dir[64], path[96];

static void put(const char *text, size_t len, mode_t mode)
{
	FILE *f;

	unlink(path);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	fclose(f);
	assert_int_equal(chmod(path, mode), 0);
}

static void text(void **state)
{
	uint8_t key[XR_KEY_LEN], back[XR_KEY_LEN];
	char line[XR_KEY_TEXT], bad[XR_KEY_TEXT + 1];
	size_t n, i;

	(void)state;
	for (i = 0; i < sizeof(key); i++)
		key[i] = (uint8_t)(i * 37 + 5);
	n = xr_key_format(key, line);
	assert_int_equal(n, strlen(line));
	assert_int_equal(xr_key_parse(line, n, back), 0);
	assert_memory_equal(key, back, sizeof(key));
	assert_int_equal(xr_key_parse(line, n - 1, back), 0);	/* without the newline */
	memset(back, 0x5a, sizeof(back));
	for (i = 0; i < n - 1; i++)
		assert_int_equal(xr_key_parse(line, i, back), -EINVAL);
	memcpy(bad, line, sizeof(line));
	bad[n] = '\n';
	assert_int_equal(xr_key_parse(bad, n + 1, back), -EINVAL);
	for (i = 0; i < n - 1; i++) {
		memcpy(bad, line, sizeof(line));
		bad[i] = 'g';
		assert_int_equal(xr_key_parse(bad, n, back), -EINVAL);
	}
	for (i = 0; i < sizeof(back); i++)
		assert_int_equal(back[i], 0x5a);
	memset(key, 0, sizeof(key));
	n = xr_key_format(key, line);
	assert_int_equal(xr_key_parse(line, n, back), -EINVAL);
}

static void safe(void **state)
{
	(void)state;
	assert_int_equal(xr_key_safe(0100600, 0, 1000), 0);
	assert_int_equal(xr_key_safe(0100640, 0, 1000), 0);
	assert_int_equal(xr_key_safe(0100400, 1000, 1000), 0);
	assert_int_equal(xr_key_safe(0100660, 0, 1000), -EPERM);
	assert_int_equal(xr_key_safe(0100644, 0, 1000), -EPERM);
	assert_int_equal(xr_key_safe(0100601, 0, 0), -EPERM);
	assert_int_equal(xr_key_safe(0100602, 0, 0), -EPERM);
	assert_int_equal(xr_key_safe(0100600, 1001, 1000), -EPERM);
	assert_int_equal(xr_key_safe(0100600, 1001, 0), -EPERM);
}

static void file(void **state)
{
	uint8_t key[XR_KEY_LEN], other[XR_KEY_LEN];
	char line[XR_KEY_TEXT];
	struct stat st;
	size_t n;

	(void)state;
	unlink(path);
	assert_int_equal(xr_key_load(path, key), -ENOENT);
	assert_int_equal(xr_key_load(dir, key), -EINVAL);
	assert_int_equal(xr_key_load("/dev/null", key), -EINVAL);
	assert_int_equal(xr_key_make(path), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(xr_key_load(path, key), 0);
	assert_int_equal(xr_key_make(path), -EEXIST);
	assert_int_equal(xr_key_load(path, other), 0);
	assert_memory_equal(key, other, sizeof(key));
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(xr_key_load(path, other), -EPERM);
	unlink(path);
	assert_int_equal(xr_key_make(path), 0);
	assert_int_equal(xr_key_load(path, other), 0);
	assert_memory_not_equal(key, other, sizeof(key));
	n = xr_key_format(key, line);
	line[n] = 'x';
	put(line, n + 1, 0600);
	assert_int_equal(xr_key_load(path, other), -EINVAL);
	put("", 0, 0600);
	assert_int_equal(xr_key_load(path, other), -EINVAL);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(xr_key_load(path, other), -EINVAL);
	unlink(path);
	assert_int_equal(xr_key_make("/nonexistent/key"), -ENOENT);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(text),
		cmocka_unit_test(safe),
		cmocka_unit_test(file),
	};
	int r;

	snprintf(dir, sizeof(dir), "/tmp/test_key.XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/key", dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	rmdir(dir);
	return r;
}
