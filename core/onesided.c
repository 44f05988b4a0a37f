/* SPDX-License-Identifier: BSD-2-Clause */
/* One-sided operations: a peer's memory, as far as the peer has granted it to this channel. */
#include <errno.h>
#include "channel.h"
#include "context.h"

int xrdma_grant(struct xrdma_channel *ch, struct xrdma_mem *mem, void *addr, size_t len,
		unsigned int access, struct xrdma_remote *remote)
{
	uint32_t fabric = (access & XRDMA_GRANT_READ ? XR_ACCESS_REMOTE_READ : 0) |
			  (access & XRDMA_GRANT_WRITE ? XR_ACCESS_REMOTE_WRITE : 0), key;
	int r;

	if (!fabric || (access & ~(unsigned int)(XRDMA_GRANT_READ | XRDMA_GRANT_WRITE)) ||
	    mem->ctx != ch->ctx)
		return -EINVAL;
	if (ch->state != XR_CH_OPEN)
		return ch->state == XR_CH_OPENING ? -ENOTCONN : -EPIPE;
	r = ch->ctx->ops->mw_bind(ch->qp, mem->mr, addr, len, fabric, &key);
	if (r)
		return r;
	remote->addr = (uintptr_t)addr;
	remote->len = len;
	remote->key = key;
	remote->access = access;
	return 0;
}

void xrdma_revoke(struct xrdma_channel *ch, const struct xrdma_remote *remote)
{
	if (ch->state != XR_CH_DEAD)
		ch->ctx->ops->mw_invalidate(ch->qp, remote->key, 0);
}

static int one_post(struct xrdma_channel *ch, enum xr_wr_op op, struct xrdma_mem *mem, void *local,
		    size_t len, const struct xrdma_remote *remote, uint64_t offset, uint64_t id)
{
	struct xr_one *one = &ch->one[ch->one_head % XR_ONE_MAX];
	size_t off = (size_t)((uintptr_t)local - (uintptr_t)mem->mr->addr);
	struct xr_sge sge = { local, (uint32_t)len, mem->mr->lkey };
	struct xr_send_wr wr = { .wr_id = XR_WR_ID(ch, XR_WR_ID_ONE, 0), .op = op, .sge = &sge, .nsge = 1,
				 .raddr = remote->addr + offset, .rkey = remote->key };

	if (!len || len > ch->ctx->caps.max_msg || len > UINT32_MAX || mem->ctx != ch->ctx ||
	    off > mem->mr->len || len > mem->mr->len - off || offset > remote->len ||
	    len > remote->len - offset)
		return -EINVAL;
	if (ch->state != XR_CH_OPEN)
		return ch->state == XR_CH_OPENING ? -ENOTCONN : -EPIPE;
	if (ch->one_head - ch->one_done == XR_ONE_MAX)
		return -EAGAIN;
	one->mem = mem;
	one->id = id;
	mem->refs++;
	ch->one_head++;
	xr_channel_post(ch, &wr);
	return ch->state == XR_CH_DEAD ? -EPIPE : 0;
}

int xrdma_read(struct xrdma_channel *ch, struct xrdma_mem *mem, void *to, size_t len,
	       const struct xrdma_remote *remote, uint64_t offset, uint64_t id)
{
	return one_post(ch, XR_WR_READ, mem, to, len, remote, offset, id);
}

int xrdma_write(struct xrdma_channel *ch, struct xrdma_mem *mem, const void *from, size_t len,
		const struct xrdma_remote *remote, uint64_t offset, uint64_t id)
{
	return one_post(ch, XR_WR_WRITE, mem, (void *)(uintptr_t)from, len, remote, offset, id);
}

void xr_onesided_done(struct xrdma_channel *ch)
{
	struct xr_one *one = &ch->one[ch->one_done++ % XR_ONE_MAX];
	uint64_t id = one->id;

	one->mem->refs--;
	if (!ch->silent && ch->ctx->cb.done)
		ch->ctx->cb.done(ch, id, ch->ctx->arg);
}

void xr_onesided_end(struct xrdma_channel *ch)
{
	while (ch->one_done != ch->one_head)
		ch->one[ch->one_done++ % XR_ONE_MAX].mem->refs--;
}
