/* SPDX-License-Identifier: BSD-2-Clause */
/* Between signal.c, fault.c, hook_signal.c and process.c. */
#ifndef XR_SIGNALS_H
#define XR_SIGNALS_H

#include <signal.h>
#include <stdint.h>

/* sigaction(2) with the handler wrapped.  0 or -errno. */
int xr_signal_action(int sig, const struct sigaction *act, struct sigaction *old);
/* The same for SIGSEGV and SIGBUS (fault.c). */
int xr_fault_action(int sig, const struct sigaction *act, struct sigaction *old);

/*
 * Guards what the wrappers know of the program's handlers.  Signals are blocked meanwhile, as
 * sigaction may be called by a handler; lock returns the mask for unlock.
 */
uint64_t xr_signal_lock(void);
void xr_signal_unlock(uint64_t mask);

/* A handler with these flags is about to be entered in this thread. */
void xr_signal_note(int flags);

/* In the child of a fork: whoever held the lock is not here. */
void xr_signal_forked(void);

#endif
