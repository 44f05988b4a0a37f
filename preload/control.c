/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What an operator asks of a running process: to keep its flows, or one of them, on TCP; to change a setting.
 *
 * The wish lies in the statistics segment, which the process's own user may write to: a
 * word for the whole process, one per flow, names of devices, and a number that changes with them.  Hooks
 * compare that number with the one they saw last.  A process that sleeps is woken by a
 * FIFO beside the segment, which all sleepers watch; without one (no statistics, no
 * descriptor) it obeys when it next calls.
 */
#include "hook.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include "control.h"
#include "flow_rx.h"
#include "log.h"
#include "tune.h"

XR_NEAR _Atomic uint32_t xr_control_seen, xr_control_tune_seen;
static _Atomic int control_fifo = -1;	/* -1: not tried, -2: there is none */
static char control_path[512];

int xr_control_fd(void)
{
	int fd = xr_load_acquire(&control_fifo);

	return fd < 0 ? -1 : fd;
}

void xr_control_open(void)
{
	int none = -1;
	long fd;

	if (xr_likely(xr_load_relaxed(&control_fifo) != -1) || !*xr_stats_path())
		return;
	/* one thread makes it; the others do without until it is there */
	if (!xr_cas(&control_fifo, &none, -2))
		return;
	xr_snprintf(control_path, sizeof(control_path), "%s" XR_STATS_BELL, xr_stats_path());
	fd = xr_sys4(SYS_mknodat, AT_FDCWD, control_path, S_IFIFO | 0600, 0);
	if (!fd)
		/* also for writing: the end of a writer is no end of file */
		fd = xr_sys4(SYS_openat, AT_FDCWD, control_path,
			     O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd >= 0)
		fd = xr_fd_high((int)fd);
	if (fd < 0) {
		xr_info("no bell for operators: error %d", (int)-fd);
		return;
	}
	/* release: pairs with xr_control_fd */
	xr_store_release(&control_fifo, (int)fd);
}

const char *xr_control_bell(void)
{
	return xr_control_fd() < 0 ? NULL : control_path;
}

void xr_control_ring(const char *bell)
{
	long fd = xr_sys4(SYS_openat, AT_FDCWD, bell, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0);

	if (fd < 0)
		return;
	xr_sys3(SYS_write, fd, "", 1);
	xr_fd_close((int)fd);
}

void xr_control_drain(void)
{
	char buf[64];
	int fd = xr_control_fd();

	if (fd >= 0)
		xr_sys3(SYS_read, fd, buf, sizeof(buf));
}

int xr_control_holds(const struct xr_flow *f)
{
	const struct xr_stats_header *h = &xr_stats_now()->h;

	return xr_load_relaxed(&h->hold) || (f->st && xr_load_relaxed(&f->st->hold)) ||
	       xr_stats_device_held(h, f->st && *f->st->device ? f->st->device : XR_STATS_SHM);
}

static void control_one(void *arg, struct xr_flow *f)
{
	(void)arg;
	if (!xr_control_holds(f))
		return;
	/* where it fails, its own next call retreats it */
	xr_fds_retreat(f, XR_REASON_OPERATOR);
	/* the peer was told first, and has taken it along: from now on it is this wish that keeps it there */
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC) && f->reason == XR_REASON_RETREAT_REQUESTED)
		xr_flow_blame(f, XR_REASON_OPERATOR);
}

/* Values that are out of bounds were written by somebody else than xr-stat. */
void xr_control_tune(void)
{
	/* acquire: the settings were written before the number; two threads that come at once do the same */
	uint32_t now = xr_load_acquire(&xr_stats_now()->h.control), i;

	for (i = 0; i < XR_STATS_TUNES; i++) {
		const struct xr_config_key *k = &xr_config_keys[xr_tune_key[i]];
		uint64_t v = xr_load_relaxed(&xr_stats_now()->h.tune[i]);

		if (v && v - 1 >= k->min && v - 1 <= k->max)
			/* relaxed: pairs with xr_tuned(), which orders nothing */
			xr_store_relaxed((_Atomic uint64_t *)xr_tune_field(&xr_cfg, k), v - 1);
	}
	xr_flow_tuned();
	xr_store_relaxed(&xr_control_tune_seen, now);
}

void xr_control_run(void)
{
	uint32_t now = xr_load_acquire(&xr_stats_now()->h.control);
	uint32_t seen = xr_load_relaxed(&xr_control_seen);

	if (now == seen || !xr_cas(&xr_control_seen, &seen, now))
		return;
	/* before the work: whoever asks again rings again */
	xr_control_drain();
	xr_control_tune();
	xr_flow_each(NULL, control_one, NULL);
}

void xr_control_close(void)
{
	if (xr_control_fd() >= 0)
		xr_sys3(SYS_unlinkat, AT_FDCWD, control_path, 0);
}

int xr_control_drop(void)
{
	int fd = xr_control_fd();

	/* who sleeps on it looks the number up again before it reads */
	if (fd < 0 || !xr_cas(&control_fifo, &fd, -2))
		return 0;
	xr_sys3(SYS_unlinkat, AT_FDCWD, control_path, 0);
	xr_fd_close(fd);
	/* release: the path is free for the next one */
	xr_store_release(&control_fifo, -1);
	return 1;
}

void xr_control_forked(void)
{
	int fd = xr_control_fd();

	/* the parent's: its sleepers shall hear it */
	if (fd >= 0)
		xr_fd_close(fd);
	xr_store_relaxed(&control_fifo, -1);
	xr_store_relaxed(&xr_control_seen, 0);
	xr_store_relaxed(&xr_control_tune_seen, 0);
}
