/* SPDX-License-Identifier: BSD-2-Clause */
/* What connections to other hosts need, see reach.h. */
#include "reach.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#include "mem.h"

#define REACH_DEVICE "/dev/infiniband/rdma_cm"

enum xr_reason xr_reach_off(const struct xr_config *cfg, int key_error)
{
	if (!cfg->rdma || cfg->fabric == XR_FABRIC_SHM)
		return XR_REASON_NOT_LOCAL;
	if (cfg->rdma_trust == XR_TRUST_KEY && key_error)
		return XR_REASON_NO_KEY;
	/* the kernel's side of RDMA is not there, or not for us: no thread is started to find that out */
	if (strcmp(cfg->rdma_device, "shm") &&
	    xr_sys4(SYS_faccessat, AT_FDCWD, REACH_DEVICE, 6 /* R_OK | W_OK */, 0))
		return XR_REASON_NO_VERBS;
	return XR_REASON_NONE;
}
