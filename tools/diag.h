/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_DIAG_H
#define XR_DIAG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/stats.h"

/* What the kernel says of one TCP connection. */
struct xr_diag {
	uint32_t inode;
	uint32_t rqueue, wqueue; /* bytes unread, bytes unacknowledged */
	bool counted;		 /* the kernel knows the following */
	uint64_t written, read;	 /* bytes that programs ever gave to and took from the socket */
	/*
	 * Bytes acknowledged and bytes that wait for that: written, and the SYN of the end that connected. Less when
	 * packets could not leave their host, which the kernel has counted in written (preload/ksock.h).
	 */
	uint64_t confirmed;
};

/*
 * One exact look-up by inet_diag: 0, -ENOENT no such connection, or -errno. In the network namespace of process pid,
 * 0: our own; another one takes CAP_SYS_ADMIN. Keeps a descriptor open for each.
 */
int xr_diag_find(pid_t pid, const struct xr_stats_addr *local, const struct xr_stats_addr *peer,
		 struct xr_diag *out);

#endif /* XR_DIAG_H */
