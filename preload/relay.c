/* SPDX-License-Identifier: BSD-2-Clause */
/* The process that carries bytes between a connection and what stands in for it: see relay.h. */
#include "relay.h"
#include <asm/ioctls.h>
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "caretaker.h"
#include "control.h"
#include "flow.h"
#include "mem.h"
#include "proof.h"

#define RELAY_BUF	65536u
#define RELAY_NAP_NS	1000000000	/* what no event tells of is looked for so often */
#define RELAY_SOON_NS	10000000	/* ... and where its end is all that is missing */
#define RELAY_SHUT_WR	2		/* SEND_SHUTDOWN of the kernel, alone */

enum relay_eof { RELAY_OPEN, RELAY_EOF, RELAY_RESET };

/* Bytes in one direction. */
struct relay_pipe {
	uint8_t *buf;
	size_t at, end;
	enum relay_eof eof;	/* nothing more comes in */
	int over;		/* and all of it, and the end, went out, or has nowhere to go */
};

struct relay {
	struct xr_flow *f;
	int fd, far;
	int tcp;			/* far is; then the program's end is near */
	struct xr_tuple near;
	uint64_t closed;		/* when the program had gone, ns; 0: not yet */
	uint64_t looked;		/* ... and when that was looked for, where nothing tells of it */
	uint64_t ended;			/* when the program's end came, ns */
	struct relay_pipe down, up;	/* from the peer, to the peer */
	int lost;			/* the peer takes nothing any more */
};

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

/* Another process goes on with the connection: when it ends is not for this program alone to say. */
static int relay_shared(const struct relay *r)
{
	return xr_flow_holders(r->f) > 1;
}

static void relay_reset(int fd)
{
	static const struct linger rst = { 1, 0 };

	xr_sys5(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
}

/* The program, or the time for what it left, is gone: as its own close would, for who has it alone. */
static void relay_abort(struct relay *r)
{
	if (!relay_shared(r))
		relay_reset(r->fd);
}

/* Nobody has the program's end of it: the kernel shows no file for the socket, or no socket. */
static int relay_no_file(struct relay *r, uint32_t *shut)
{
	struct xr_sock_ident id = { 0, 0, 0 };
	int e = xr_proof_lookup(&r->near, &id);

	*shut = id.shut;
	return e == -ENOENT || (!e && !id.inode);
}

/*
 * The program's end came, and the connection has others.  1: by shutdown(2), which ends it for all;
 * 0: by the last close, which does not; -EAGAIN: that is seen in a moment.
 */
static int relay_ends(struct relay *r)
{
	uint64_t now = xr_now_ns();
	uint32_t shut = 0;

	if (!r->tcp)
		return !(xr_ksock_poll(r->far, 0) & POLLHUP);
	if (!r->ended)
		r->ended = now;
	if (relay_no_file(r, &shut)) {
		r->closed = now;
		return 0;
	}
	/* close(2) shuts both directions down, and the end goes out before the file goes */
	return shut == RELAY_SHUT_WR || now - r->ended >= RELAY_SOON_NS ? 1 : -EAGAIN;
}

static int relay_failed(ssize_t n)
{
	return n < 0 && n != -EAGAIN && n != -EINTR;
}

/*
 * As far as it goes without waiting.  What poll(2) is to wait for comes back in *in and *out; -1:
 * the program has gone, and with it the reader of what is left.
 */
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
			if (p->eof == RELAY_EOF)
				xr_sys2(SYS_shutdown, r->far, SHUT_WR);
			p->over = 1;
			break;
		}
		n = relay_recv(r, p->buf, RELAY_BUF);
		if (n < 0 && !relay_failed(n)) {
			*in |= POLLIN;
			return 0;
		}
		p->at = 0;
		p->end = n > 0 ? (size_t)n : 0;
		p->eof = n > 0 ? RELAY_OPEN : n ? RELAY_RESET : RELAY_EOF;
	}
	return 0;
}

/* The same, of the peer.  -1: the program has reset the connection. */
static int relay_up(struct relay *r, short *in, short *out)
{
	struct relay_pipe *p = &r->up;
	ssize_t n;

	while (!p->over) {
		if (p->at < p->end) {
			n = relay_send(r, p->buf + p->at, p->end - p->at);
			if (relay_failed(n)) {
				/* what comes from there still counts */
				r->lost = 1;
				p->over = 1;
				break;
			}
			if (n < 0) {
				*out |= POLLOUT;
				return 0;
			}
			p->at += (size_t)n;
			continue;
		}
		if (p->eof == RELAY_RESET)
			return -1;
		if (p->eof) {
			/* before its FIN all that was sent must be in the kernel */
			if (xr_flow_owes(r->f, r->fd) & POLLOUT) {
				*out |= POLLOUT;
				return 0;
			}
			if (relay_shared(r)) {
				int end = relay_ends(r);

				if (end < 0)
					return 0;
				if (!end) {
					p->over = 1;
					break;
				}
			}
			relay_shut(r);
			p->over = 1;
			break;
		}
		n = xr_sys6(SYS_recvfrom, r->far, p->buf, RELAY_BUF, MSG_DONTWAIT, 0, 0);
		if (n < 0 && !relay_failed(n)) {
			*in |= POLLIN;
			return 0;
		}
		p->at = 0;
		p->end = n > 0 ? (size_t)n : 0;
		p->eof = n > 0 ? RELAY_OPEN : n ? RELAY_RESET : RELAY_EOF;
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

/* The same, looked for now and then: nothing tells of it. */
static int relay_orphaned(struct relay *r)
{
	uint32_t shut;
	uint64_t now;

	if (!r->tcp || !r->up.eof)
		return 0;
	now = xr_now_ns();
	if (now - r->looked < RELAY_NAP_NS / 2)
		return 0;
	r->looked = now;
	return relay_no_file(r, &shut);
}

/* The program has gone altogether: nobody reads what the peer may send yet. */
static int relay_closed(struct relay *r)
{
	if (!r->closed && ((xr_ksock_poll(r->far, 0) & POLLHUP) || relay_orphaned(r)))
		r->closed = xr_now_ns();
	return r->closed != 0;
}

/* The program has gone, and the peer takes nothing: as long as a caretaker waits, no longer. */
static int relay_expired(struct relay *r)
{
	if (!relay_closed(r) || xr_now_ns() - r->closed < XR_CARE_NS)
		return 0;
	relay_abort(r);
	xr_stats_add(XR_STAT_UNDELIVERED, 1);
	return 1;
}

/*
 * The peer has gone, not by an end alone.  1: the program has, or can get, all that came before,
 * and the reset after it.
 */
static int relay_peer_gone(struct relay *r)
{
	int left = 0;

	if (!r->down.over || (!r->lost && r->down.eof != RELAY_RESET))
		return 0;
	if (!relay_closed(r) && r->tcp && !xr_sys3(SYS_ioctl, r->far, SIOCOUTQ, &left) && left > 0)
		return 0;
	relay_reset(r->far);
	return 1;
}

/* One step of one of them.  What to wait for; 1: it is over. */
static int relay_step(struct relay *r, struct pollfd p[2], long *nap)
{
	short from_peer = 0, to_prog = 0, from_prog = 0, to_peer = 0;
	uint32_t owes;

	if (relay_down(r, &from_peer, &to_prog) || relay_up(r, &from_prog, &to_peer)) {
		relay_abort(r);
		return 1;
	}
	if (relay_expired(r) || relay_peer_gone(r))
		return 1;
	owes = xr_flow_owes(r->f, r->fd);
	if (r->up.over && !r->lost && (r->down.over || r->closed) && !owes)
		return 1;
	from_peer |= (short)owes;
	p[0] = (struct pollfd){ .fd = from_peer | to_peer ? r->fd : -1,
				.events = (short)(from_peer | to_peer) };
	p[1] = (struct pollfd){ .fd = to_prog | from_prog ? r->far : -1,
				.events = (short)(to_prog | from_prog) };
	/* a hang-up stands for ever: it is looked for only where it says something new */
	if (r->up.over && !r->down.over && !r->closed)
		p[1].fd = r->far;
	if ((r->down.over && (r->lost || r->down.eof == RELAY_RESET)) || (r->ended && !r->up.over))
		*nap = RELAY_SOON_NS;
	return 0;
}

static void relay_serve(struct relay *r, uint32_t n)
{
	struct pollfd p[2 * XR_RELAY_JOBS];
	uint32_t i, k;

	for (;;) {
		struct timespec ts = { 0, RELAY_NAP_NS - 1 };

		for (i = 0, k = 0; i < n; i++) {
			if (!r[i].f)
				continue;
			if (relay_step(&r[i], p + k, &ts.tv_nsec))
				relay_end(&r[i]);
			else
				k += 2;
		}
		if (!k)
			return;
		xr_sys5(SYS_ppoll, p, k, &ts, 0, 8);
	}
}

void xr_relay_child(void *arg)
{
	struct xr_relay *jobs = arg;
	struct relay *r = xr_map_private(sizeof(*r) * XR_RELAY_JOBS);
	struct xr_tuple t;
	uint32_t i;

	xr_control_forked();
	xr_proof_forked();
	for (i = 0; r && i < jobs->n; i++) {
		uint8_t *buf = xr_map_private(2 * RELAY_BUF);

		if (!buf)
			return;
		r[i] = (struct relay){ .f = jobs->job[i].f, .fd = jobs->job[i].fd,
				       .far = jobs->job[i].far, .down.buf = buf,
				       .up.buf = buf + RELAY_BUF };
		if (!xr_tuple_get(r[i].far, &t, NULL, NULL)) {
			r[i].tcp = 1;
			xr_tuple_mirror(&r[i].near, &t);
		}
	}
	if (r)
		relay_serve(r, jobs->n);
}
