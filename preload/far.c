/* SPDX-License-Identifier: BSD-2-Clause */
/* What connections to other hosts need, see far.h. */
#include "far.h"
#include <string.h>
#include "config.h"
#include "flow.h"
#include "log.h"
#include "reach.h"

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
		xr_info("key %s: %s", path, xr_key_error_text(far_key_error));
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
	return xr_slab.far ? xr_reach_off(&xr_cfg, far_key_error) : XR_REASON_NOT_LOCAL;
}
