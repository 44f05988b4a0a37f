/* SPDX-License-Identifier: BSD-2-Clause */
/* What the kernel copies in before a call begins: vectors, message headers, addresses. */
#include "hook.h"
#include <string.h>
#include "user.h"

ssize_t xr_iov_import(struct iovec *own, const struct iovec *iov, size_t cnt)
{
	size_t i, sum = 0;

	if (xr_user_get(own, iov, cnt * sizeof(*own)))
		return -EFAULT;
	for (i = 0; i < cnt; i++)
		if ((ssize_t)own[i].iov_len < 0)
			return -EINVAL;
	/* a single buffer is cut first and looked at then, others the other way round */
	if (cnt == 1 && own[0].iov_len > XR_RW_MAX)
		own[0].iov_len = XR_RW_MAX;
	for (i = 0; i < cnt; i++) {
		if (!xr_user_range(own[i].iov_base, own[i].iov_len))
			return -EFAULT;
		if (own[i].iov_len > XR_RW_MAX - sum)
			own[i].iov_len = XR_RW_MAX - sum;
		sum += own[i].iov_len;
	}
	return (ssize_t)sum;
}

int xr_addr_import(const void *addr, socklen_t len)
{
	struct sockaddr_storage own;

	if (len > sizeof(own))
		return -EINVAL;
	return xr_user_get(&own, addr, len);
}

int xr_mask_import(sigset_t *own, const sigset_t *mask)
{
	memset(own, 0, sizeof(*own));
	return xr_user_get(own, mask, sizeof(uint64_t));
}

int xr_msghdr_import(struct msghdr *own, const struct msghdr *mh, int send)
{
	int r = xr_user_get(own, mh, sizeof(*own));

	if (r)
		return r;
	if (own->msg_name && (int)own->msg_namelen < 0)
		return -EINVAL;
	/* TCP ignores the address of a connected socket, after it was copied in */
	if (send && own->msg_name)
		r = xr_addr_import(own->msg_name, own->msg_namelen < sizeof(struct sockaddr_storage) ?
				   own->msg_namelen : (socklen_t)sizeof(struct sockaddr_storage));
	return r ? r : own->msg_iovlen > IOV_MAX ? -EMSGSIZE : 0;
}
