/* SPDX-License-Identifier: BSD-2-Clause */
/* Files that a process publishes; see segfile.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "log.h"
#include "mem.h"
#include "segfile.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE 4096u

/*
 * Old kernels: a futex operation that adds 0 takes the same write fault and reports it.
 * Harmless on pages that are in use, so threads may race here.
 */
int xr_segfile_commit(void *start, size_t len)
{
	char *from = start;
	long err = xr_sys3(SYS_madvise, from, len, MADV_POPULATE_WRITE);

	if (err == -EINVAL || err == -ENOSYS) {
		err = 0;
		for (size_t i = 0; i < len && err >= 0; i += PAGE)
			err = xr_sys6(SYS_futex, from + i, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0,
				      from + i,
				      FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0));
	}
	return err == -EFAULT ? -ENOSPC : err < 0 ? (int)err : 0;
}

int xr_segfile_map(int fd, size_t size, size_t commit, void **map)
{
	long p, err = xr_sys2(SYS_ftruncate, fd, size);

	if (err)
		return (int)err;
	p = xr_sys6(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p < 0 && p > -4096)
		return (int)p;
	err = xr_segfile_commit((void *)p, commit);
	if (err) {
		xr_sys2(SYS_munmap, p, size);
		return (int)err;
	}
	*map = (void *)p;
	return 0;
}

/* The name in field 2 may hold blanks and brackets. */
static uint64_t start_time(void)
{
	char buf[1024], *p;
	uint64_t v = 0;
	long n;
	int fd = (int)xr_sys4(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return 0;
	n = xr_sys3(SYS_read, fd, buf, sizeof(buf) - 1);
	xr_sys1(SYS_close, fd);
	if (n <= 0)
		return 0;
	buf[n] = '\0';
	p = strrchr(buf, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	for (p = p ? p + 1 : buf + n; *p >= '0' && *p <= '9'; p++)
		v = v * 10 + (uint64_t)(*p - '0');
	return v;
}

uint64_t xr_segfile_pid_namespace(void)
{
	struct stat st;

	if (xr_sys4(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0))
		return 0;
	return st.st_ino;
}

/* The directory of this user, made if need be; refused unless it is ours alone. */
static int open_dir(const char *path, uint32_t uid)
{
	struct stat st;
	long err = xr_sys3(SYS_mkdirat, AT_FDCWD, path, 0700);
	int fd;

	if (err && err != -EEXIST)
		return (int)err;
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, path,
			  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return fd == -ELOOP || fd == -ENOTDIR ? -EACCES : fd;
	err = xr_sys4(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH);
	if (!err && (st.st_uid != uid || (st.st_mode & 077)))
		err = -EACCES;
	if (!err)
		return fd;
	xr_sys1(SYS_close, fd);
	return (int)err;
}

int xr_segfile_name(struct xr_segfile *f, const char *dir, const char *suffix)
{
	int n;

	f->uid = (uint32_t)xr_sys0(SYS_geteuid);
	f->pid = (int)xr_sys0(SYS_getpid);
	f->start = start_time();
	f->fd = -1;
	n = xr_snprintf(f->path, sizeof(f->path), "%s/xrdma-%u/%d.%lu%s", dir, f->uid, f->pid,
			(unsigned long)f->start, suffix);
	return n >= (int)sizeof(f->path) ? -ENAMETOOLONG : 0;
}

/* The directory may vanish under us when another process exits. */
int xr_segfile_create(struct xr_segfile *f, const char *dir, const char *suffix)
{
	int dirfd, fd = -ENOENT, err = xr_segfile_name(f, dir, suffix);
	char *slash;

	if (err)
		return err;
	slash = strrchr(f->path, '/');
	*slash = '\0';
	for (int i = 0; i < 8 && (fd == -ENOENT || fd == -EEXIST); i++) {
		dirfd = open_dir(f->path, f->uid);
		if (dirfd < 0) {
			fd = dirfd;
			continue;
		}
		fd = (int)xr_sys4(SYS_openat, dirfd, slash + 1,
				  O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		/* ours, from before an exec: that program is gone */
		if (fd == -EEXIST)
			xr_sys3(SYS_unlinkat, dirfd, slash + 1, 0);
		xr_sys1(SYS_close, dirfd);
	}
	*slash = '/';
	if (fd < 0)
		return fd;
	f->fd = fd;
	return 0;
}

int xr_segfile_size(size_t want, size_t least, size_t *size)
{
	struct rlimit rl = {RLIM_INFINITY, RLIM_INFINITY};

	/* past this limit ftruncate would send SIGXFSZ */
	xr_sys4(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &rl);
	if (rl.rlim_cur < least)
		return -EFBIG;
	if (want > rl.rlim_cur)
		want = rl.rlim_cur;
	want = XR_ALIGN(want, (size_t)PAGE);
	if (want > rl.rlim_cur)
		want -= PAGE;
	*size = want;
	return 0;
}

void xr_segfile_remove(char *path)
{
	char *slash;

	xr_sys3(SYS_unlinkat, AT_FDCWD, path, 0);
	slash = strrchr(path, '/');
	if (slash) { /* the last one out; fails while others have files there */
		*slash = '\0';
		xr_sys3(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
		*slash = '/';
	}
}

const char *xr_segfile_program(const char *path)
{
	const char *slash = path ? strrchr(path, '/') : NULL;

	return slash ? slash + 1 : path ? path : "";
}
