/* SPDX-License-Identifier: BSD-2-Clause */
/* Who asks a process that runs: xr-stat, and the process itself.  It obeys in preload/control.c. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include "log.h"
#include "mem.h"
#include "tune.h"

static int put(int fd, size_t at, const void *v, size_t len)
{
	long n = xr_sys4(SYS_pwrite64, fd, v, len, at);

	return n == (long)len ? 0 : n < 0 ? (int)n : -EIO;
}

int xr_tune_head(int fd, struct xr_stats_header *h)
{
	long n = xr_sys4(SYS_pread64, fd, h, sizeof(*h), 0);

	if (n != (long)sizeof(*h) || h->magic != XR_STATS_MAGIC)
		return n < 0 ? (int)n : -EBADMSG;
	return h->version != XR_STATS_VERSION || h->flow_size != sizeof(struct xr_stats_flow) ? -EPROTONOSUPPORT : 0;
}

int xr_tune_put(int fd, uint32_t i, uint64_t value)
{
	value++;
	return put(fd, offsetof(struct xr_stats_header, tune) + i * sizeof(value), &value, sizeof(value));
}

int xr_tune_tell(int fd, const char *path, uint32_t control)
{
	char bell[600];
	int r;

	control++;
	r = put(fd, offsetof(struct xr_stats_header, control), &control, sizeof(control));
	if (r)
		return r;
	xr_snprintf(bell, sizeof(bell), "%s" XR_STATS_BELL, path);
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, bell, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0);
	/* none: it has no flow that moved, or no descriptor for one, and looks when it next calls */
	if (fd < 0)
		return 0;
	/* full: then it rings already */
	r = (int)xr_sys3(SYS_write, fd, "", 1);
	xr_sys1(SYS_close, fd);
	return r < 0 && r != -EAGAIN ? r : 0;
}
