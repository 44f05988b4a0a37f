/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef UPGRADES_H
#define UPGRADES_H

#include <stdint.h>

/*
 * Connections between two processes on one core, so many, a few hundred at a time: made, used for some turns, in
 * which they move where they can, and closed.  One line of JSON; 0 or the exit status.
 */
int upgrades(uint32_t connections, uint32_t turns);

#endif
