/* SPDX-License-Identifier: BSD-2-Clause */
/* What connections to other hosts need at this end; the programs and the tools that speak for them ask here. */
#ifndef XR_REACH_H
#define XR_REACH_H

#include "config.h"

/*
 * Why no connection to another host can move; NONE: nothing speaks against it before one is tried. key_error is what
 * xr_key_load() said. Raw system calls only.
 */
enum xr_reason xr_reach_off(const struct xr_config *cfg, int key_error);

#endif /* XR_REACH_H */
