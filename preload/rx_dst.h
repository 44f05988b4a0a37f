/* SPDX-License-Identifier: BSD-2-Clause */
/* Where flow_rx.c puts what it reads: a cursor over the program's buffers. */
#ifndef XR_RX_DST_H
#define XR_RX_DST_H

#include <errno.h>
#include <stdint.h>
#include <sys/uio.h>
#include "atomic.h"
#include "user.h"

struct rx_dst {
	const struct iovec *iov;
	int cnt;
	size_t off;		/* within iov[0] */
	int fault;		/* bytes that are there could not be copied: what was is the answer */
};

/* Moves on over bytes that are there already, or are not wanted. */
static inline void dst_pass(struct rx_dst *d, size_t n)
{
	while (n) {
		size_t k = d->iov->iov_len - d->off;

		if (k > n)
			k = n;
		n -= k;
		d->off += k;
		if (d->off == d->iov->iov_len) {
			d->iov++;
			d->cnt--;
			d->off = 0;
		}
	}
}

/* dst_copy into more than one buffer. */
int xr_dst_copy_many(struct rx_dst *d, const uint8_t *src, size_t n);

/* 0; -EFAULT: the cursor stands where it was. */
static inline int dst_copy(struct rx_dst *d, const uint8_t *src, size_t n)
{
	if (xr_unlikely(n >= d->iov->iov_len - d->off && d->cnt > 1))
		return xr_dst_copy_many(d, src, n);
	/* at the end of the last buffer the cursor stays: nothing more goes there */
	if (xr_unlikely(xr_copy_to_user((uint8_t *)d->iov->iov_base + d->off, src, n)))
		return -EFAULT;
	d->off += n;
	return 0;
}

static inline void dst_skip_empty(struct rx_dst *d)
{
	while (d->cnt && d->iov->iov_len == d->off) {
		d->iov++;
		d->cnt--;
		d->off = 0;
	}
}

#endif
