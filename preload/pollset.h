/* SPDX-License-Identifier: BSD-2-Clause */
/* Between poll.c and select.c. */
#ifndef XR_POLLSET_H
#define XR_POLLSET_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>

struct xr_poll_args {
	struct pollfd *fds;	/* revents are set like poll(2) does */
	struct pollfd *user;	/* the same in the program's memory, instead; or NULL */
	nfds_t n;
	uint64_t deadline;
	int has_deadline;
	const sigset_t *sigmask;
	/* 1: an event counts only if select(2) would report it for what was asked */
	int select;
};

/* How many entries have events; 0: the time is over; -errno. */
int xr_poll_wait(const struct xr_poll_args *a);

#endif
