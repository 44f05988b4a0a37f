/* SPDX-License-Identifier: BSD-2-Clause */
/* The helper thread, and what is said to the module that runs on it (bridge.h). */
#ifndef XR_HELPER_H
#define XR_HELPER_H

#include <stdint.h>
#include "bridge.h"

struct xr_shm_link;
struct xr_tuple;

/*
 * A link between this process and the module, with a reference; starts the helper when there is none.  0;
 * -EAGAIN: not now (another thread is at it); -EDEADLK: not below a signal handler; -ENODEV: there is no module, or
 * it came to an end; else what was missing.
 */
int xr_helper_link(struct xr_shm_link **l);

/* Why -ENODEV. */
enum xr_reason xr_helper_why(void);

int xr_helper_send(const struct xr_bridge_cmd *cmd);

/*
 * The answer to an attempt, taken from what has come so far.  1: there it is; 0: not yet; -ENODEV: none will
 * come.  Never blocks.
 */
int xr_helper_answer(uint64_t id, struct xr_bridge_answer *a);
/* Nobody waits for it any more. */
void xr_helper_forget(uint64_t id);

/*
 * A call has failed that is for processes of one thread.  0: the helper and the agent were all there was beside this
 * one, and are gone, so that it is worth another try; flows to other hosts are on TCP.  They come back, and a new
 * helper with them.
 */
int xr_helper_retire(void);

/*
 * The process ends: librdmacm and libibverbs have destructors that give back what the helper works with, and close the
 * numbers of its descriptors in the table of the program.  It stands still from here on, or has not come to it in time.
 */
void xr_helper_park(void);

/* In the child of a fork, where there is no helper. */
void xr_helper_forked(void);

#endif
