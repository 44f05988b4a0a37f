/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The end of a process under a close.  What one thread closes no other one finds any more: exit(3) and exec, which
 * end all threads, must not take place before it is done.  In the kernel close() is over, or has not begun.
 */
#ifndef XR_CLOSING_H
#define XR_CLOSING_H

/* Around the step that takes the last descriptor of a flow away, and xr_flow_last_close. */
void xr_closing_begin(void);
void xr_closing_end(void);
/* Before exit and exec: other threads come to the end of their closes, without lingering. */
void xr_closing_wait(void);
/* In a child. */
void xr_closing_forked(void);

#endif
