/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernel socket under a flow, by raw system calls that never block. */
#ifndef XR_KSOCK_H
#define XR_KSOCK_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Bytes or -errno. */
ssize_t xr_ksock_recv(int fd, const struct iovec *iov, int cnt, int flags);
ssize_t xr_ksock_send(int fd, const struct iovec *iov, int cnt, int flags);
uint32_t xr_ksock_poll(int fd, uint32_t events);
/* Sends what corking or Nagle holds back: nothing comes after it that would. */
void xr_ksock_push_tail(int fd);

/*
 * Stream offsets so far, `known` of read at least, program bytes only; -errno, -ESHUTDOWN: half-closed or more.  Both
 * in one call, so that they cannot tear.  But the kernel counts a packet as sent before it knows whether it can go, and
 * again when it does: where there is no route for a moment, or a filter or a full queue of this host drops it, written
 * is too much ever after.
 */
int xr_ksock_offsets(int fd, uint64_t known, uint64_t *written, uint64_t *read);
/*
 * What was written, by what is acknowledged and what waits for that: exact, but of several calls that have to agree,
 * else -EAGAIN.  connects: this end did.
 */
int xr_ksock_written(int fd, int connects, uint64_t *written);
/* The same as xr_ksock_offsets() in any state; for display: may be a byte off after a reset, and tear. */
int xr_ksock_moved(int fd, uint64_t *written, uint64_t *read);
/* The least round trip that the kernel has seen, microseconds; 0: none, or it does not say. */
uint32_t xr_ksock_rtt_us(int fd);

#endif
