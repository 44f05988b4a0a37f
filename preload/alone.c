/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads of ours beside those of the program.  See alone.h. */
#include "alone.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include "mem.h"

#define DOTS	2u	/* links to a folder that has no other in it */

static int thread_is(uint32_t t)
{
	return t == XR_THREAD_COMES || xr_sys3(SYS_tgkill, xr_getpid(), t, 0) != -ESRCH;
}

int xr_threads_alone(_Atomic uint32_t *const tid[], int n)
{
	unsigned long ours = 0;
	struct stat st;
	uint32_t t;
	int i;

	for (i = 0; i < n; i++) {
		/* acquire: pairs with the release of the thread itself */
		t = xr_load_acquire(tid[i]);
		ours += t && thread_is(t);
	}
	if (!ours)
		return 0;
	return xr_sys4(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &st, 0) || st.st_nlink <= DOTS + 1 + ours;
}

int xr_thread_goes(_Atomic uint32_t *tid, uint64_t end)
{
	static const struct timespec nap = { 0, 50000 };
	uint32_t t;

	/* acquire: as above */
	while ((t = xr_load_acquire(tid))) {
		/* what a thread has said that is gone nobody changes */
		if (!thread_is(t))
			xr_store_relaxed(tid, 0);
		else if (!xr_ns_left(end))
			return -EBUSY;
		else
			xr_sys2(SYS_nanosleep, &nap, 0);
	}
	return 0;
}

int xr_thread_apart(int cmd)
{
	long r = xr_sys3(SYS_close_range, (long)cmd + 1, UINT32_MAX, CLOSE_RANGE_UNSHARE), i;

	if (!r && cmd)
		r = xr_sys3(SYS_close_range, 0, (long)cmd - 1, 0);
	for (i = 0; !r && i < 3; i++)
		if (xr_sys4(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0) < 0)
			r = -EMFILE;
	return (int)r;
}
