/* SPDX-License-Identifier: BSD-2-Clause */
/* What connections to other hosts need, see far.h. */
#include "far.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include "config.h"
#include "flow.h"
#include "log.h"
#include "mem.h"

#define FAR_DEVICE "/dev/infiniband/rdma_cm"

/* written before the process has a second thread, by xr_process_init() */
static uint8_t far_key[XR_KEY_LEN];
static int far_key_error = -1;

void xr_far_init(void)
{
	const char *path = xr_key_path(&xr_cfg);

	if (!xr_cfg.rdma || xr_cfg.rdma_trust != XR_TRUST_KEY)
		return;
	far_key_error = xr_key_load(path, far_key);
	if (far_key_error)
		xr_info("key %s: %s", path, far_key_error == -EPERM ? "others than its owner and group may use it, or "
			"it belongs to somebody else" : far_key_error == -EINVAL ? "it is not a key" :
			xr_error_text(far_key_error));
}

const uint8_t *xr_far_key(void)
{
	return far_key_error ? NULL : far_key;
}

int xr_far_is_shm(void)
{
	return xr_cfg.rdma && !strcmp(xr_cfg.rdma_device, "shm") && xr_far_off() == XR_REASON_NONE;
}

enum xr_reason xr_far_off(void)
{
	if (!xr_cfg.rdma || xr_cfg.fabric == XR_FABRIC_SHM || !xr_slab.far)
		return XR_REASON_NOT_LOCAL;
	if (xr_cfg.rdma_trust == XR_TRUST_KEY && far_key_error)
		return XR_REASON_NO_KEY;
	/* the kernel's side of RDMA is not there, or not for us: no thread is started to find that out */
	if (strcmp(xr_cfg.rdma_device, "shm") && xr_sys4(SYS_faccessat, AT_FDCWD, FAR_DEVICE, 6 /* R_OK | W_OK */, 0))
		return XR_REASON_NO_VERBS;
	return XR_REASON_NONE;
}
