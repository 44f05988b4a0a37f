/* SPDX-License-Identifier: BSD-2-Clause */
/* Connections to other hosts: what must be there before anything is begun for one. */
#ifndef XR_FAR_H
#define XR_FAR_H

#include "key.h"
#include "reason.h"

/*
 * Once, when the process starts: later it may not be allowed to read the key any more.  Children that it forks
 * have it as well, whoever they become.
 */
void xr_far_init(void);

/* The key of the cluster; NULL: none, or none is asked for. */
const uint8_t *xr_far_key(void);

/* 1: connections within this host are to be treated like those to others. */
int xr_far_is_shm(void);

/* Why no connection to another host can move; NONE: nothing that is known yet speaks against it. */
enum xr_reason xr_far_off(void);

#endif
