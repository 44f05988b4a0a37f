/* SPDX-License-Identifier: BSD-2-Clause */
/* A statistics directory of the test's own, and a reader of what is in it. */
#ifndef STATS_FIXTURE_H
#define STATS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/stats.h"
#include "tools/segment.h"

static char base[64];	/* stats_dir of the test */
static char mine[96];	/* base/xrdma-UID */

static int setup(void **state)
{
	(void)state;
	strcpy(base, "/tmp/xr-test-stats-XXXXXX");
	if (!mkdtemp(base))
		return -1;
	snprintf(mine, sizeof(mine), "%s/xrdma-%u", base, (unsigned int)geteuid());
	xr_stats_after_fork(); /* nothing of the test before */
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	xr_stats_close();
	snprintf(command, sizeof(command), "rm -rf %s", base);
	return system(command);
}

static inline const struct sockaddr *v4(uint16_t port)
{
	static struct sockaddr_in in[4];
	static int next;

	next = (next + 1) % 4;
	in[next] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return (struct sockaddr *)&in[next];
}

/* Reads a segment by its path. */
static int read_path(const char *path, struct xr_segment *seg, const char **why)
{
	char dir[256];
	const char *slash = strrchr(path, '/');
	int fd, err;

	assert_non_null(slash);
	snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	err = xr_segment_read(fd, slash + 1, seg, why);
	close(fd);
	return err;
}

static inline void read_mine(struct xr_segment *seg)
{
	const char *why = "";

	assert_int_equal(read_path(xr_stats_path(), seg, &why), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
