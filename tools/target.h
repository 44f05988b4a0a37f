/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_TARGET_H
#define XR_TARGET_H

#include <limits.h>
#include <stddef.h>

/* Exit codes of wrappers, as env(1), nohup(1) and POSIX have them. */
enum {
	XR_EXIT_SELF = 125,	 /* the wrapper itself failed */
	XR_EXIT_CANNOT_RUN = 126, /* found, but it cannot be run */
	XR_EXIT_NOT_FOUND = 127,
};

/*
 * The file that execvp(3) would start for name: name itself when it has a slash, else
 * the first executable along PATH. 0 or -ENOENT (nothing there), -EACCES (there, but not
 * executable), -EISDIR, -ENOTDIR, -ENAMETOOLONG, -ELOOP.
 */
int xr_target_find(const char *name, char path[PATH_MAX]);

/*
 * Can the dynamic loader put our object into this program? Follows #! lines. NULL if so
 * or if the file cannot be read (the kernel decides then); else a phrase that says why
 * not, which may point into buf.
 */
const char *xr_target_obstacle(const char *path, char *buf, size_t size);

/*
 * The program that the kernel starts this one with, where it cannot: after #! in a script, or the loader of an ELF
 * file.  NULL if there is none, or nothing is wrong with it; else its name, in buf, and in *err why not.
 */
const char *xr_target_interpreter(const char *path, char *buf, size_t size, int *err);

/*
 * How [rule] sees the program once it runs: exe is the executable behind the links, or what interprets a
 * script; as the path that the kernel is given for it, made plain as the program does it at its start.  A
 * script for env(1) is known by what env starts.  Both are empty where that cannot be told.
 */
void xr_target_seen(const char *path, char exe[PATH_MAX], char as[PATH_MAX]);

/* Why a file cannot be a preload object of this machine, or NULL. */
const char *xr_target_object_obstacle(const char *path);

/*
 * Where the preload object is: explicit (may be NULL), XRDMA_PRELOAD, the build tree that
 * this program was started from, the installed library. 0, or -errno of the last place
 * with its name in path.
 */
int xr_target_preload(const char *explicit, char path[PATH_MAX]);

/* LD_PRELOAD with object first and once, then what old (may be NULL) had; malloc'd or NULL. */
char *xr_target_ld_preload(const char *object, const char *old);

#define XR_PRELOAD_NAME "libxrdma_preload.so"

#endif /* XR_TARGET_H */
