/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_SEGMENT_H
#define XR_SEGMENT_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/stats.h"

/*
 * A copy of one process's statistics. The segment it comes from is written by a process
 * that need not be ours, lives or crashed at any moment, and may be of another version:
 * every number is checked, and a file that shrinks while it is read is an error, not a
 * crash. Not thread-safe (a SIGBUS handler is in force during xr_segment_read()).
 */
struct xr_segment_flow {
	struct xr_stats_ident id;
	struct {
		uint64_t bytes[XR_CARRIER_COUNT], msgs, queue, window, rnr, base, twice;
		uint64_t rendezvous, coalesced, probes;
		uint32_t slots, credits;
	} tx, rx;
	uint64_t turns, attempts, upgrades, retreats;
	uint32_t again_ms; /* of stats.h: for xr_segment_again() */
	char device[XR_STATS_DEVICE]; /* of RDMA, if it ever was there; printable ASCII */
	struct {
		uint32_t qpn, peer_qpn; /* qpn 0: it never was on RDMA */
		uint8_t gid[16];
	} rdma;
	bool held; /* an operator keeps it, its process, or its device on TCP */
};

enum xr_segment_life {
	XR_SEGMENT_LIVE,
	XR_SEGMENT_DEAD,    /* its process is gone */
	XR_SEGMENT_FOREIGN, /* of another PID namespace: nobody here can tell */
};

struct xr_segment {
	char program[128]; /* printable ASCII */
	char version[32];
	pid_t pid;
	uid_t uid; /* owner of the file */
	char file[48]; /* its name, once it was found in a directory */
	enum xr_segment_life life;
	uint64_t tune[XR_STATS_TUNES]; /* what operators set, plus 1; 0: nothing */
	bool helper_thread;
	bool held; /* an operator keeps all its flows on TCP */
	char held_device[XR_STATS_HOLDS][XR_STATS_DEVICE]; /* ... those of these devices; "" none */
	unsigned int off; /* enum xr_reason: why none of its flows can leave TCP; 0: some can */
	uint64_t opened_ns;
	uint64_t counter[XR_STAT_COUNT];   /* totals, with those of open flows */
	uint64_t reason[XR_REASON_COUNT];
	uint64_t unlisted[XR_REASON_COUNT]; /* connections without a slot; NONE: no room for one */
	uint32_t n_flows;
	struct xr_segment_flow *flow; /* malloc'd */
};

/*
 * Reads the file name in the directory dirfd. 0, or -errno with a phrase in *why:
 * -EPROTONOSUPPORT another version, -EBADMSG not a sound segment, -EAGAIN being made at
 * this moment, or what open and read gave.
 */
int xr_segment_read(int dirfd, const char *name, struct xr_segment *seg, const char **why);

void xr_segment_free(struct xr_segment *seg);

/*
 * Maps the file name in the directory dirfd, which has `least` bytes at least, and has it read: what `read` returns, or
 * -errno with a phrase in *why, as above. It may be left at any point, when the file shrinks: what it makes belongs
 * in *arg.
 */
typedef int xr_segment_reader(const void *map, size_t size, void *arg, const char **why);
int xr_segment_map(int dirfd, const char *name, size_t least, uid_t *uid, xr_segment_reader *read, void *arg,
		   const char **why);

/* Text of another process, made fit for a terminal and for JSON. */
void xr_segment_text(char *dst, const char *src, size_t size);

/* Is the process alive that says this of itself? */
enum xr_segment_life xr_segment_life(bool exited, uint64_t pid_ns, pid_t pid, uint64_t start_time);

/*
 * A directory of files that processes publish, by its name in `base`: XR_SEGMENT_DIR and a user.  It has
 * to belong to that user, and nobody else may write there.  A descriptor, or -errno.
 */
#define XR_SEGMENT_DIR "xrdma-"
int xr_segment_open_dir(int base, const char *name, uid_t *uid);

/*
 * All of them below the directory `base` that may be read, until `in` returns other than 0; one that is empty then, and
 * ours, goes.  name: the path, for messages.  0, what `in` returned, or -errno.
 */
typedef int xr_segment_dir_fn(void *arg, const char *name, DIR *dir, uid_t uid);
int xr_segment_dirs(const char *base, xr_segment_dir_fn *in, void *arg);

/* What is surely dead is removed for its owner, and by root for all: daemons run no xr-stat. */
bool xr_segment_may_remove(uid_t uid);

/* "pid.starttime" of a file name: 0 or -EINVAL. */
int xr_segment_name(const char *name, pid_t *pid, uint64_t *start_time);

/* There is such a process, but another user's, and what it publishes is not for us. */
bool xr_segment_foreign(pid_t pid);

/* Is this process, of our PID namespace, gone? */
bool xr_segment_gone(pid_t pid, uint64_t start_time);

const char *xr_segment_state(const struct xr_segment_flow *f);

/* "shm", "tcp", or "shm/tcp" when the directions differ (sending first). */
const char *xr_segment_carrier(const struct xr_segment_flow *f);

/* Why all flows of the process are on TCP: enum xr_reason, an operator's hand first; 0: they need not be. */
unsigned int xr_segment_off(const struct xr_segment *seg);

/* A direction of the flow is on a fabric. */
bool xr_segment_on_fabric(const struct xr_segment_flow *f);

/* It is on TCP, and nobody holds it there: seconds until this end may leave it again, 0 with its next data. */
bool xr_segment_again(const struct xr_segment_flow *f, double *seconds);

/* "fe80::1": the GID of the device that carries the flow over RDMA, or did. The text lives in buf. */
const char *xr_segment_gid(const struct xr_segment_flow *f, char *buf, size_t size);

/* The device that carries the flow, or would. */
const char *xr_segment_device(const struct xr_segment_flow *f);

extern const char *const xr_segment_counter_names[XR_STAT_COUNT];

/* The counter may go down. */
bool xr_segment_is_gauge(enum xr_stat id);

#endif /* XR_SEGMENT_H */
