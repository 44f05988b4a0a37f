/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sleeping and waking: waiters, poll/select, epoll.
 *
 * A waiter is a number (1..XR_WAITERS-1) under which peers wake whatever sleeps: each
 * thread that blocks has one, each epoll file with upgraded flows has one.  Towards a
 * given link it owns a doorbell eventfd (xr_shm_link_bell).
 */
#ifndef XR_READY_H
#define XR_READY_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include "flow.h"

/* A number for a new waiter, 0 when all are taken.  Lock-free. */
uint32_t xr_waiter_get(void);
/* Its bells stay with the number, for the next who gets it. */
void xr_waiter_put(uint32_t w);
/* This thread's waiter (TLS), 0 when there is none to be had; released at thread exit. */
uint32_t xr_waiter_self(void);

/* Signal bookkeeping (signal.c): handlers run so far on this thread. */
struct xr_signal_mark { uint32_t any, norestart; };
struct xr_signal_mark xr_signal_mark(void);
/* 1: this thread is in a handler of the program. */
int xr_signal_inside(void);

/* A call that had this mark is restarted if all handlers since then allow it: its new mark. */
static inline struct xr_signal_mark xr_signal_restart(struct xr_signal_mark mark)
{
	struct xr_signal_mark now = xr_signal_mark();

	return now.norestart == mark.norestart ? now : mark;
}

/*
 * Sleeps until the flow may be ready for mask (POLLIN or POLLOUT), the kernel socket
 * says something that matters, a signal handler ran, or the deadline (xr_now_ns time
 * base, 0: none) passed.  Spins first, as long as it has been paying.  Returns 0 to
 * look again, -EINTR (a handler without SA_RESTART ran since the mark, which the
 * caller took before its first look; any handler when there is a deadline, as on a
 * socket with a time-out), -EAGAIN (deadline).  The caller holds no lock.
 */
int xr_wait_flow(struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
		 struct xr_signal_mark mark);

/*
 * Bounded busy-wait: calls again(arg) until it is non-zero or the budget is used up,
 * at most so many times the setting.  Yields between rounds so that a peer on the same
 * core can run; adapts *budget (shrinks when it missed, grows when it hit).  Returns what
 * again() returned.
 */
int xr_spin(uint32_t *budget, uint32_t times, int (*again)(void *arg), void *arg);

/*
 * ppoll that cannot lose a signal: blocks signals, returns -EINTR at once when a handler
 * ran since the mark (any handler when `any`, else one without SA_RESTART), else sleeps
 * with the program's mask (sigmask overrides it when not NULL).  Returns ppoll's result or
 * -errno; restarts by itself (with the remaining time) when only SA_RESTART handlers ran
 * and `any` is 0.  The deadline is absolute, 0: none.
 */
int xr_sleep_poll(struct pollfd *fds, unsigned int n, uint64_t deadline, const sigset_t *sigmask,
		  struct xr_signal_mark mark, int any);
/* The same around epoll_pwait; any handler gives -EINTR. */
int xr_sleep_epoll(int epfd, struct epoll_event *ev, int max, uint64_t deadline,
		   const sigset_t *sigmask, struct xr_signal_mark mark);

/* poll/ppoll/select/pselect with upgraded flows in the set; logic behind the hooks. */
int xr_poll(struct pollfd *fds, nfds_t n, uint64_t deadline, int has_deadline,
	    const sigset_t *sigmask);
int xr_select(int n, fd_set *r, fd_set *w, fd_set *e, uint64_t deadline, int has_deadline,
	      const sigset_t *sigmask);

/* epoll: all return 0/count or -errno. */
int xr_epoll_created(int epfd, int flags);
struct xr_epoll;
int xr_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev);
int xr_epoll_wait(int epfd, struct epoll_event *evs, int max, uint64_t deadline, int has_deadline,
		  const sigset_t *sigmask);
/* dup of an epoll descriptor; close of one; close of the last descriptor of a flow. */
void xr_epoll_dup(int oldfd, int newfd);
void xr_epoll_close(int epfd);
void xr_epoll_flow_closed(struct xr_flow *f);
/*
 * Another file is about to take the place of the flow at all of its descriptors: its registrations
 * are taken out of all sets, and put back for what is found at their numbers then.
 */
#define XR_EPOLL_KEPT	16	/* those beyond it are lost */
struct xr_epoll_kept {
	uint32_t n;
	struct {
		int epfd, fd;
		uint32_t events;
		uint64_t data;
	} reg[XR_EPOLL_KEPT];
};
void xr_epoll_flow_take(struct xr_flow *f, struct xr_epoll_kept *kept);
void xr_epoll_flow_put(const struct xr_epoll_kept *kept);
/*
 * The flow is about to leave / has come back to the kernel (no lock of the flow is held,
 * xr_flow_link_get works).  attach returns -errno and changes nothing when its
 * registrations cannot be carried: -EINVAL for EPOLLEXCLUSIVE in one of several files, an
 * inherited epoll file, a registration under a closed number (the upgrade is then given
 * up with XR_REASON_EPOLL_EXCLUSIVE), -EXDEV for a file that a child uses as well
 * (XR_REASON_INHERITED); -EAGAIN while an EPOLLONESHOT is armed; -EMFILE, -ENFILE, -ENOMEM,
 * -ENOSPC.  detach is idempotent; an epoll_wait that meets a flow that
 * went back makes up for one that was not called.
 */
int xr_epoll_flow_attach(struct xr_flow *f);
void xr_epoll_flow_detach(struct xr_flow *f);
/* In some epoll set, through whichever descriptor: a racing epoll_ctl is the program's race. */
int xr_epoll_flow_registered(struct xr_flow *f);
/* 1: a registration of the flow is in an inner set. */
int xr_epoll_flow_attached(struct xr_flow *f);
/*
 * Something about the flow changed under this process's own hands: its epoll files look
 * at it again.  Any lock of the flow may be held.
 */
void xr_epoll_flow_kick(struct xr_flow *f);
/*
 * The program was told that the flow takes no more bytes (EAGAIN or a short count of a
 * non-blocking send): space that comes after it is an edge for EPOLLET.  Any lock of the
 * flow may be held.
 */
void xr_epoll_flow_full(struct xr_flow *f);
/*
 * Something sleeps, or is about to, on the epoll descriptor itself (poll, select, another
 * epoll file).  Returns the descriptor for that, which is its own but for an inherited file; also for what is
 * no epoll file.
 */
int xr_epoll_watch(int epfd);
int xr_epoll_shown(int epfd);
void xr_epoll_forked(void);
/*
 * Before (1) and after (0) a fork by a signal handler, whose child may return into the call that the handler
 * interrupted: it must find there what was in that call's hands.
 */
void xr_epoll_forking(int keep);

#endif
