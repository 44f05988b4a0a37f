/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SETUP_PARTS_H
#define SETUP_PARTS_H

#include <stdint.h>

/*
 * Prints what the parts of setting up a channel take, each anew and from what was kept: the queue pair, registered
 * memory, and connection management.  at: what is listened to; NULL for shm, which needs none.
 */
int setup_parts(const char *device, const char *at, uint32_t most, int json);

#endif
