/* SPDX-License-Identifier: BSD-2-Clause */
/* Between signal.c, hook_signal.c and process.c. */
#ifndef XR_SIGNALS_H
#define XR_SIGNALS_H

#include <signal.h>

/* sigaction(2) with the handler wrapped.  0 or -errno. */
int xr_signal_action(int sig, const struct sigaction *act, struct sigaction *old);

/* In the child of a fork: whoever held the lock is not here. */
void xr_signal_forked(void);

#endif
