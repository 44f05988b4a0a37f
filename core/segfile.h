/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Files that a process publishes for others to read: <stats_dir>/xrdma-<euid>/<pid>.<starttime><suffix>, the directory
 * 0700, the file 0600; a directory that is not ours, or is open to others, is refused.  Pages are committed before
 * they are used, so that a full file system can never turn into SIGBUS.  Raw system calls only.
 */
#ifndef XR_SEGFILE_H
#define XR_SEGFILE_H

#include <stddef.h>
#include <stdint.h>

#define XR_SEGFILE_PATH	256u

struct xr_segfile {
	char path[XR_SEGFILE_PATH];
	int fd, pid;
	uint32_t uid;		/* effective */
	uint64_t start;		/* field 22 of /proc/PID/stat */
};

/* Its name and whose it is, without making it.  -ENAMETOOLONG. */
int xr_segfile_name(struct xr_segfile *f, const char *dir, const char *suffix);

/* Makes the file; one of the same name is from before an exec, and goes.  0 or -errno; the caller closes fd. */
int xr_segfile_create(struct xr_segfile *f, const char *dir, const char *suffix);

/* The longest file up to `want` bytes, whole pages, that the process may make; -EFBIG: not even `least`. */
int xr_segfile_size(size_t want, size_t least, size_t *size);

/* Gives pages to a part of the mapping.  0, or -ENOSPC. */
int xr_segfile_commit(void *from, size_t len);

/* Gives the file its size and maps it, with pages for the first `commit` bytes.  0 or -errno. */
int xr_segfile_map(int fd, size_t size, size_t commit, void **map);

/* Removes the file, and the directory when it was the last one in there. */
void xr_segfile_remove(char *path);

/* Inode of the PID namespace of this process; 0 unknown. */
uint64_t xr_segfile_pid_namespace(void);

/* The base name of a path, "" for NULL. */
const char *xr_segfile_program(const char *path);

#endif
