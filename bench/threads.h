/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef THREADS_H
#define THREADS_H

#include <stdint.h>

/*
 * Two processes with so many threads each, which send messages to each other: every thread over a connection of its
 * own, or (shared) all over one.  How often one of them had to wait for another, and what a message cost.  One line
 * of JSON; 0 or the exit status.
 */
int threads(uint32_t n, uint32_t messages, int shared);

#endif
