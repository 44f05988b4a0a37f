/* SPDX-License-Identifier: BSD-2-Clause */
/* Names in the run directory, see rundir.h. */
#include "rundir.h"
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "upgrade.h"

#define RUNDIR_OLD	600	/* seconds, after which a name is nobody's any more */
#define RUNDIR_PREFIX	"xrdma-"

/* The names that processes have left behind which were killed. */
static void rundir_sweep(int dir)
{
	_Alignas(uint64_t) char buf[4096];
	struct timespec now;
	long n, at;

	xr_sys2(SYS_clock_gettime, CLOCK_REALTIME, &now);
	while ((n = xr_sys3(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
		for (at = 0; at < n;) {
			const char *name = buf + at + 19;	/* struct linux_dirent64 */
			struct stat st;
			uint16_t len;

			memcpy(&len, buf + at + 16, sizeof(len));
			at += len;
			if (!strncmp(name, RUNDIR_PREFIX, strlen(RUNDIR_PREFIX)) &&
			    !xr_sys4(SYS_newfstatat, dir, name, &st, AT_SYMLINK_NOFOLLOW) &&
			    S_ISSOCK(st.st_mode) && now.tv_sec - st.st_ctim.tv_sec > RUNDIR_OLD)
				xr_sys3(SYS_unlinkat, dir, name, 0);
		}
	}
}

static int rundir_open(void)
{
	const char *why = NULL;
	struct stat st;
	long fd = xr_sys4(SYS_openat, AT_FDCWD, xr_cfg.run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), r;

	if (fd == -EMFILE || fd == -ENFILE)
		return -EAGAIN;
	if (fd < 0) {
		why = xr_error_text((int)fd);
	} else {
		r = xr_sys2(SYS_fstat, fd, &st);
		if (r)
			why = xr_error_text((int)r);
		/* as for a key: who may write there is trusted */
		else if ((st.st_mode & S_IWOTH) || (st.st_uid && st.st_uid != (uid_t)xr_sys0(SYS_geteuid)))
			why = "others than root, the user and a group may write there";
		else
			rundir_sweep((int)fd);
		xr_sys1(SYS_close, fd);
	}
	if (why)
		xr_warn("run_dir %s: %s: connections to other network namespaces stay on TCP", xr_cfg.run_dir, why);
	return why ? -EPERM : 0;
}

int xr_rundir_usable(void)
{
	static _Atomic uint32_t state;	/* 0: not looked yet, 1: good, 2: not */
	uint32_t now = xr_load_relaxed(&state);
	int r;

	if (xr_likely(!*xr_cfg.run_dir))
		return 0;
	if (!now) {
		r = rundir_open();
		if (r == -EAGAIN)
			return 0;
		now = r ? 2 : 1;
		xr_store_relaxed(&state, now);
	}
	return now == 1;
}

static socklen_t rundir_name(struct sockaddr_un *sa, const struct xr_tuple *t)
{
	static const uint64_t key[2] = { 0x7872646d612d7264ull, 0x7a2d706f696e7431ull };
	struct xr_tuple canon = *t;
	uint64_t a, b;

	/* the end that connected first */
	if (!t->lport)
		xr_tuple_mirror(&canon, t);
	a = xr_siphash(key, &canon, sizeof(canon));
	canon.zero = 1;
	b = xr_siphash(key, &canon, sizeof(canon));
	memset(sa, 0, sizeof(*sa));
	sa->sun_family = AF_UNIX;
	xr_snprintf(sa->sun_path, sizeof(sa->sun_path), "%s/" RUNDIR_PREFIX "%016llx%016llx", xr_cfg.run_dir,
		    (unsigned long long)a, (unsigned long long)b);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(sa->sun_path) + 1);
}

int xr_rundir_call(const struct xr_tuple *t)
{
	struct sockaddr_un sa;
	socklen_t len = rundir_name(&sa, t);
	int fd = xr_rendezvous_socket();
	long r;

	if (fd < 0)
		return fd;
	r = xr_sys3(SYS_connect, fd, &sa, len);
	if (!r)
		return fd;
	xr_fd_close(fd);
	/* as where nobody has the abstract name */
	return r == -ENOENT ? -ECONNREFUSED : (int)r;
}

void xr_rundir_unlink(const struct xr_tuple *t)
{
	struct sockaddr_un sa;

	rundir_name(&sa, t);
	xr_sys3(SYS_unlinkat, AT_FDCWD, sa.sun_path, 0);
}

/*
 * Names outlive who made them.  One that nobody answers to is taken over; where two do that at the same
 * time, or one has not begun to listen, an attempt is lost, and there will be another.
 */
static int rundir_bind(int fd, const struct sockaddr_un *sa, socklen_t len)
{
	long r = xr_sys3(SYS_bind, fd, sa, len);
	int probe;

	if (r != -EADDRINUSE)
		return (int)r;
	probe = xr_rendezvous_socket();
	if (probe < 0)
		return probe;
	r = xr_sys3(SYS_connect, probe, sa, len);
	xr_fd_close(probe);
	if (r != -ECONNREFUSED)
		return -EADDRINUSE;
	xr_sys3(SYS_unlinkat, AT_FDCWD, sa->sun_path, 0);
	return (int)xr_sys3(SYS_bind, fd, sa, len);
}

int xr_rundir_listen(const struct xr_tuple *t)
{
	struct sockaddr_un sa;
	socklen_t len = rundir_name(&sa, t);
	int fd = xr_rendezvous_socket(), r;

	if (fd < 0)
		return fd;
	r = rundir_bind(fd, &sa, len);
	if (r) {
		xr_fd_close(fd);
		return r;
	}
	/* it is the directory that says who may come */
	xr_sys3(SYS_fchmodat, AT_FDCWD, sa.sun_path, 0666);
	r = (int)xr_sys2(SYS_listen, fd, 4);
	if (!r)
		return fd;
	xr_rundir_unlink(t);
	xr_fd_close(fd);
	return r;
}
