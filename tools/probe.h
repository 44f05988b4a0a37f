/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_PROBE_H
#define XR_PROBE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* Tries what an upgrade needs of the kernel. Each returns 0 or -errno and leaves nothing behind. */
int xr_probe_memory(uint64_t size, uint64_t flows, uint32_t slots); /* what two processes share can be made */
int xr_probe_abstract(void); /* an abstract Unix socket can be bound and called */
int xr_probe_path_fd(void);  /* an O_PATH descriptor of a socket shows its inode */

/*
 * Makes a connection over loopback and asks inet_diag for its far end, as the proof of
 * an upgrade does: -ENOENT when the answer names another socket.
 */
int xr_probe_inet_diag(void);

/* Nothing is left for xrdma beside a program with these limits of open files. */
bool xr_probe_fds_scarce(uint64_t soft, uint64_t hard);

/* Why no connection can be met in this directory, the setting run_dir; NULL: it is good. */
const char *xr_probe_run_dir(const char *path);

/* The address is one of this host. */
bool xr_probe_is_local(const struct sockaddr *sa, socklen_t len);

struct xr_listener {
	pid_t pid;	   /* 0: a socket listens, but its process cannot be seen */
	uid_t uid;
	char program[64];
	char exe[PATH_MAX];
	char as[PATH_MAX]; /* what the kernel was given to start it; empty: not ours to read */
	bool preloaded;	   /* it runs under xrdma */
	bool known;	   /* whether it does could be found out */
};

/* Who listens on a port of this host for sa: 0, or -ENOENT nobody does. */
int xr_probe_listener(const struct sockaddr *sa, struct xr_listener *who);

#endif /* XR_PROBE_H */
