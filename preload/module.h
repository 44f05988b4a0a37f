/* SPDX-License-Identifier: BSD-2-Clause */
/* The module for connections to other hosts (bridge.h): it links what the preload object must not. */
#ifndef XR_MODULE_H
#define XR_MODULE_H

#include "bridge.h"

/* When the process starts: where the module would be.  Reads the environment. */
void xr_module_init(void);
/* On the helper; NULL: there is none that fits, and why is in the log. */
const struct xr_bridge_ops *xr_module_open(const struct xr_bridge_host *host);

#endif
