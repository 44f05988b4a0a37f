/* SPDX-License-Identifier: BSD-2-Clause */
#include "relay.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "caretaker.h"
#include "control.h"
#include "flow.h"
#include "log.h"
#include "mem.h"

#define RELAY_BUF	65536u

/* Bytes in one direction, in the relaying process. */
struct relay_pipe {
	uint8_t *buf;
	size_t at, end;
	int eof;		/* nothing more comes in */
	int over;		/* and all of it, and the end, went out */
};

struct relay {
	struct xr_flow *f;
	int fd, far;
	uint64_t closed;	/* when the program had gone, ns; 0: not yet */
	struct relay_pipe down, up;	/* from the peer, to the peer */
};

int xr_relay_add(struct xr_relay *r, struct xr_flow *f, int fd)
{
	struct xr_relay_job *j = &r->job[r->n];
	int pair[2];
	long e;

	if (r->n == XR_RELAY_JOBS)
		return -EMFILE;
	e = xr_sys4(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
	if (e < 0)
		return (int)e;
	e = xr_sys3(SYS_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, 3);
	if (e < 0) {
		xr_sys1(SYS_close, pair[0]);
		xr_sys1(SYS_close, pair[1]);
		return (int)e;
	}
	*j = (struct xr_relay_job){ .f = f, .fd = (int)e, .near = pair[0], .far = pair[1] };
	r->n++;
	f->reason = XR_REASON_SUBSTITUTED;
	xr_stats_reason(XR_REASON_SUBSTITUTED);
	xr_stats_flow_reason(f->st, XR_REASON_SUBSTITUTED);
	return j->near;
}

/* ---- the process ------------------------------------------------------------ */

static ssize_t relay_recv(struct relay *r, void *buf, size_t n)
{
	struct iovec iov = { buf, n };
	ssize_t got = -EREMOTEIO;

	if (xr_load_acquire(&r->f->path) & XR_PATH_RX)
		got = xr_flow_recv(r->f, r->fd, &iov, 1, MSG_DONTWAIT);
	return got == -EREMOTEIO ? xr_ksock_recv(r->fd, &iov, 1, 0) : got;
}

static ssize_t relay_send(struct relay *r, const void *buf, size_t n)
{
	struct iovec iov = { (void *)(uintptr_t)buf, n };
	ssize_t put = -EREMOTEIO;

	if (xr_load_acquire(&r->f->path) & XR_PATH_TX)
		put = xr_flow_send(r->f, r->fd, &iov, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	return put == -EREMOTEIO ? xr_ksock_send(r->fd, &iov, 1, MSG_NOSIGNAL) : put;
}

static int relay_shut(struct relay *r)
{
	if (xr_load_acquire(&r->f->path) & XR_PATH_FABRIC)
		return xr_flow_shutdown(r->f, r->fd, SHUT_WR);
	return (int)xr_sys2(SYS_shutdown, r->fd, SHUT_WR);
}

static int relay_failed(ssize_t n)
{
	return n < 0 && n != -EAGAIN && n != -EINTR;
}

/* As far as it goes without waiting.  What poll(2) is to wait for comes back in *in and *out; -1: broken. */
static int relay_down(struct relay *r, short *in, short *out)
{
	struct relay_pipe *p = &r->down;
	ssize_t n;

	while (!p->over) {
		if (p->at < p->end) {
			n = xr_sys6(SYS_sendto, r->far, p->buf + p->at, p->end - p->at,
				    MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
			if (relay_failed(n))
				return -1;
			if (n < 0) {
				*out |= POLLOUT;
				return 0;
			}
			p->at += (size_t)n;
			continue;
		}
		if (p->eof) {
			xr_sys2(SYS_shutdown, r->far, SHUT_WR);
			p->over = 1;
			break;
		}
		n = relay_recv(r, p->buf, RELAY_BUF);
		if (relay_failed(n))
			return -1;
		if (n < 0) {
			*in |= POLLIN;
			return 0;
		}
		p->at = 0;
		p->end = (size_t)n;
		p->eof = !n;
	}
	return 0;
}

static int relay_up(struct relay *r, short *in, short *out)
{
	struct relay_pipe *p = &r->up;
	ssize_t n;

	while (!p->over) {
		if (p->at < p->end) {
			n = relay_send(r, p->buf + p->at, p->end - p->at);
			if (relay_failed(n))
				return -1;
			if (n < 0) {
				*out |= POLLOUT;
				return 0;
			}
			p->at += (size_t)n;
			continue;
		}
		if (p->eof) {
			relay_shut(r);
			p->over = 1;
			break;
		}
		n = xr_sys6(SYS_recvfrom, r->far, p->buf, RELAY_BUF, MSG_DONTWAIT, 0, 0);
		if (n < 0 && !relay_failed(n)) {
			*in |= POLLIN;
			return 0;
		}
		/* closed with bytes unread shows as an error here, and is an end to the peer as well */
		p->at = 0;
		p->end = n > 0 ? (size_t)n : 0;
		p->eof = n <= 0;
	}
	return 0;
}

static void relay_end(struct relay *r)
{
	/* with bytes unread on either side this is a reset, as it would be without us */
	xr_sys1(SYS_close, r->far);
	xr_sys1(SYS_close, r->fd);
	xr_fetch_sub(&r->f->procs, 1);
	r->f = NULL;
}

/* The program has gone altogether: nobody reads what the peer may send yet. */
static int relay_closed(struct relay *r)
{
	if (!(xr_ksock_poll(r->far, 0) & POLLHUP))
		return 0;
	if (!r->closed)
		r->closed = xr_now_ns();
	return 1;
}

/* The program has gone, and the peer takes nothing: as long as a caretaker waits, no longer. */
static int relay_expired(struct relay *r)
{
	static const struct linger rst = { 1, 0 };

	if (!relay_closed(r) || xr_now_ns() - r->closed < XR_CARE_NS)
		return 0;
	xr_sys5(SYS_setsockopt, r->fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
	xr_stats_add(XR_STAT_UNDELIVERED, 1);
	return 1;
}

static struct pollfd relay_wants(int fd, int events)
{
	return (struct pollfd){ .fd = events ? fd : -1, .events = (short)events };
}

static void relay_serve(struct relay *r, uint32_t n)
{
	struct pollfd p[2 * XR_RELAY_JOBS];
	struct timespec ts;
	uint32_t i, k;

	for (;;) {
		for (i = 0, k = 0; i < n; i++) {
			short from_peer = 0, to_prog = 0, from_prog = 0, to_peer = 0;

			if (!r[i].f)
				continue;
			if (relay_down(&r[i], &from_peer, &to_prog) ||
			    relay_up(&r[i], &from_prog, &to_peer) ||
			    relay_expired(&r[i]) ||
			    (r[i].up.over && (r[i].down.over || relay_closed(&r[i])) &&
			     !xr_flow_owes(r[i].f, r[i].fd))) {
				relay_end(&r[i]);
				continue;
			}
			/* a hang-up stands for ever: it is looked for only where it says something new */
			p[k++] = relay_wants(r[i].fd, from_peer | to_peer);
			p[k++] = relay_wants(r[i].far, to_prog | from_prog);
			/* by then it says that the program has closed its end, and we go */
			if (r[i].up.over)
				p[k - 1].fd = r[i].far;
		}
		if (!k)
			return;
		/* the system call leaves the rest of the time there */
		ts = (struct timespec){ 1, 0 };
		xr_sys5(SYS_ppoll, p, k, &ts, 0, 8);
	}
}

static void relay_child(void *arg)
{
	struct xr_relay *jobs = arg;
	struct relay *r = xr_map_private(sizeof(*r) * XR_RELAY_JOBS);
	uint32_t i;

	xr_control_forked();
	for (i = 0; r && i < jobs->n; i++) {
		uint8_t *buf = xr_map_private(2 * RELAY_BUF);

		if (!buf)
			return;
		r[i] = (struct relay){ .f = jobs->job[i].f, .fd = jobs->job[i].fd,
				       .far = jobs->job[i].far, .down.buf = buf,
				       .up.buf = buf + RELAY_BUF };
	}
	if (r)
		relay_serve(r, jobs->n);
}

void xr_relay_drop(struct xr_relay *r)
{
	uint32_t i;

	for (i = 0; i < r->n; i++) {
		xr_sys1(SYS_close, r->job[i].fd);
		xr_sys1(SYS_close, r->job[i].far);
	}
	r->n = 0;
}

void xr_relay_run(struct xr_relay *r)
{
	int keep[2 * XR_RELAY_JOBS];
	uint32_t i, k = 0;

	if (!r->n)
		return;
	for (i = 0; i < r->n; i++) {
		keep[k++] = r->job[i].fd;
		keep[k++] = r->job[i].far;
		xr_fetch_add(&r->job[i].f->procs, 1);
	}
	if (xr_care_spawn("xrdma-relay", keep, k, relay_child, r)) {
		xr_error("no process to carry %u connections that are handed over: they end", r->n);
		xr_stats_add(XR_STAT_UNDELIVERED, r->n);
		for (i = 0; i < r->n; i++)
			xr_fetch_sub(&r->job[i].f->procs, 1);
	}
	xr_relay_drop(r);
}
