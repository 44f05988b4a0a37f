/* SPDX-License-Identifier: BSD-2-Clause */
/* What the program at an end does in one call, as the hooks do it, and what it must see. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "core/log.h"
#include "core/stats.h"
#include "preload/ready.h"
#include "fabric.h"
#include "world.h"

/* ---- a program ----------------------------------------------------------------- */

static void received(int e, const uint8_t *p, ssize_t n)
{
	struct side *s = &W.side[e], *far = &W.side[1 - e];
	ssize_t i;

	for (i = 0; i < n; i++) {
		wrong_if(p[i] != (uint8_t)(s->got + 1) && !lost_to_exec(e), "a byte is lost, repeated or reordered");
		s->got++;
	}
	wrong_if(s->got > far->tried, "bytes that nobody sent");
}

/*
 * The hand-over that cannot be had: bytes that lie in the ring when the next reader does not
 * know of it, and the sender has gone, or has gone on behind a seal.
 */
int lost_to_exec(int e)
{
	return handover && W.side[e].unaware;
}

/* The program was told of the end of the stream (0) or of an error. */
static void ended(int e, ssize_t n)
{
	struct side *s = &W.side[e], *far = &W.side[1 - e];

	if (!n) {
		s->eof = 1;
		wrong_if(!far->shut && !far->closed && !far->dead, "an end that nobody made");
		/* a replay of ours may have met the error of the socket first */
		wrong_if(far->threw && !far->shut && !s->err && W.flow[e].path & XR_PATH_FABRIC,
			 "a clean end though the peer threw bytes away");
		wrong_if(s->got < far->sent && !lost_to_exec(e) && !(hosts && s->err),
			 "the stream ends before its last byte");
		return;
	}
	s->err = 1;
	wrong_if(n != -ECONNRESET && n != -EPIPE, "an error that TCP does not give");
	wrong_if(!far->closed && !far->dead, "an error though the peer is there");
	/* a socket that is closed with everything read says FIN; what is retained dies with its process */
	wrong_if(n == -ECONNRESET && !(hosts && far->dead) && !s->sent && !s->tried,
		 "a reset though the peer has read all");
}

static int fabric(int e, uint32_t path)
{
	return !W.side[e].unaware && (xr_load_acquire(&W.flow[e].path) & (path | XR_PATH_MOVE));
}

static int counted(int e)
{
	return !W.side[e].unaware && (xr_load_acquire(&W.flow[e].path) & XR_PATH_COUNT);
}

static ssize_t program_recv(int e, void *p, size_t len)
{
	struct xr_flow *f = &W.flow[e];
	struct iovec iov = { p, len };
	ssize_t n;

	for (;;) {
		if (fabric(e, XR_PATH_RX)) {
			n = xr_flow_recv(f, FD(e), &iov, 1, 0);
			if (n != -EREMOTEIO)
				return n;
			continue;
		}
		if (!counted(e))
			return xr_ksock_recv(FD(e), &iov, 1, 0);
		if (!xr_flow_tcp_rx_begin(f))
			continue;
		n = xr_ksock_recv(FD(e), &iov, 1, 0);
		xr_flow_tcp_rx_end(f, FD(e), n);
		return n;
	}
}

static ssize_t program_send(int e, void *p, size_t len)
{
	struct xr_flow *f = &W.flow[e];
	struct iovec iov = { p, len };
	ssize_t n;

	for (;;) {
		if (fabric(e, XR_PATH_TX)) {
			n = xr_flow_send(f, FD(e), &iov, 1, 0);
			if (n != -EREMOTEIO)
				return n;
			continue;
		}
		if (!counted(e))
			return xr_ksock_send(FD(e), &iov, 1, 0);
		if (!xr_flow_tcp_tx_begin(f))
			continue;
		n = xr_ksock_send(FD(e), &iov, 1, 0);
		xr_flow_tcp_tx_end(f, FD(e), n);
		return n;
	}
}

static void do_send(int e, uint8_t len)
{
	struct side *s = &W.side[e];
	uint8_t buf[8];
	ssize_t n;
	int i;

	for (i = 0; i < len; i++)
		buf[i] = (uint8_t)(s->sent + 1 + i);
	s->tried = (uint8_t)(s->sent + len);
	n = program_send(e, buf, len);
	s = &W.side[e];
	if (n > 0)
		s->sent += (uint8_t)n;
	s->tried = s->sent;
	if (n < 0 && n != -EAGAIN) {
		s->err = 1;
		wrong_if(n != -EPIPE && n != -ECONNRESET, "a send fails as it does not on TCP");
		wrong_if(!s->shut && !W.side[1 - e].closed && !W.side[1 - e].dead,
			 "a send fails though the peer is there");
	}
}

static void do_recv(int e, size_t len)
{
	uint8_t buf[32];
	ssize_t n = program_recv(e, buf, len);

	if (n > 0)
		received(e, buf, n);
	else if (n != -EAGAIN)
		ended(e, n);
}

static void do_wait(int e, uint32_t mask)
{
	struct xr_flow *f = &W.flow[e];
	uint32_t now;
	int held = 0;

	/* poll() on a flow that only counts: no switch while it lasts */
	if (!fabric(e, XR_PATH_FABRIC)) {
		int counts = counted(e) && xr_flow_kpoll_begin(f);

		if (counts || !counted(e))
			model_block(mask | POLLERR | POLLHUP, 0);
		if (counts)
			xr_flow_kpoll_end(f);
		return;
	}
	/* as wait_sleep and wait_in_kernel of preload/waiter.c */
	W.side[e].entry = 0;
	W.side[e].claimed = mask & POLLIN ? 1 : 2;
	xr_flow_arm(f, WAITER, mask);
	now = xr_flow_poll(f, FD(e));
	if (now == UINT32_MAX && !(xr_load_acquire(&f->path) & XR_PATH_MOVE)) {
		held = xr_flow_kpoll_begin(f);
		if (!held)
			goto out;
	}
	if (now == UINT32_MAX)
		now = xr_ksock_poll(FD(e), mask);
	if (now & (mask | POLLERR | POLLHUP))
		goto out;
	model_barrier();
	W.side[e].sleeping = 1;
	if (!coarse)
		model_yield();
	if (!W.side[e].entry) {
		uint32_t ev = xr_flow_kernel_mask(f, mask);

		model_block(ev ? ev | POLLERR | POLLHUP : 0, 1);
		if (kernel_poll(e) & (ev | POLLERR | POLLHUP))
			xr_flow_kernel_event(f, kernel_poll(e));
	}
out:
	if (held)
		xr_flow_kpoll_end(f);
	W.side[e].sleeping = W.side[e].bell = W.side[e].entry = W.side[e].claimed = 0;
}

/* Bytes of the ring that a close throws away: its peer must be told, as TCP would. */
static int unread(struct xr_flow *f)
{
	int was = coarse, n;

	coarse = 1;
	n = f->rx_state == XR_RX_RING && !f->rx_end && xr_shm_rx_readable(&f->rx);
	coarse = was;
	return n;
}

void end_act(int e, enum act a)
{
	struct xr_flow *f = &W.flow[e];

	switch (a) {
	case ACT_SEND:
		do_send(e, 1);
		break;
	case ACT_BULK:
		do_send(e, 5);
		break;
	case ACT_RECV:
	case ACT_RECV1:
		do_recv(e, a == ACT_RECV1 ? 1 : 32);
		break;
	case ACT_POLL:
		if (fabric(e, XR_PATH_FABRIC))
			xr_flow_poll(f, FD(e));
		break;
	case ACT_WAIT_IN:
	case ACT_WAIT_OUT:
		do_wait(e, a == ACT_WAIT_IN ? POLLIN : POLLOUT);
		break;
	case ACT_SHUT:
		W.side[e].shut = 1;
		if (fabric(e, XR_PATH_FABRIC))
			xr_flow_shutdown(f, FD(e), SHUT_WR);
		else
			xr_sys(SYS_shutdown, FD(e), SHUT_WR, 0, 0, 0, 0);
		break;
	case ACT_CLOSE:
		W.side[e].closed = 1;
		W.side[e].threw = unread(f);
		if (!W.side[e].unaware)
			xr_flow_last_close(f, FD(e));
		if (!coarse)
			model_yield();
		kernel_close(e);
		if (!W.side[e].unaware)
			xr_flow_closed(f);
		break;
	case ACT_SEAL:
		xr_flow_stay_tcp(f, FD(e), XR_REASON_OPTION);
		break;
	case ACT_LEAVE:
		if (fabric(e, XR_PATH_FABRIC))
			xr_flow_retreat(f, FD(e), XR_REASON_OPERATOR, 0);
		break;
	case ACT_EXEC:
		/* what the peer does not see to in time is carried by a process that has our hooks */
		if (fabric(e, XR_PATH_FABRIC) &&
		    xr_flow_retreat(f, FD(e), XR_REASON_EXEC, 1000000000u) == -EAGAIN)
			break;
		xr_flow_stay_tcp(f, FD(e), XR_REASON_EXEC);
		/* close(), had the program none of us any more, would not be ours to see */
		W.side[e].unaware = 1;
		break;
	default:
		abort();
	}
}

/* What only counts, or is a clock, is no part of a state. */
void end_settle(int e)
{
	struct xr_flow *f = &W.flow[e];

	f->turns = f->last_dir = f->rx_spin = f->next_free = f->returns = 0;
	f->up_after = f->moved_ns = f->moved_cycles = f->moved_tx = f->moved_rx = 0;
	f->need_bytes = UINT64_MAX;
	/* a look at the kernel socket is due at each call, or only when there is a reason */
	f->rx_checked = f->tx_checked = hurried ? model_cycles() : 0;
	if (!f->upgrade_off) {
		f->up_tries = 0;
		f->need_turns = 0;
	}
	if (f->up) {
		f->up->ios = 0;
		f->up->nonce = hosts ? f->up->nonce : 0;
		f->up->turns = 0;
	}
	W.side[e].now = 0;
}

/* ---- two ends of an accepted connection ------------------------------------------------------ */

void end_start(void)
{
	int e;

	memset(&xr_slab, 0, sizeof(xr_slab));
	memset(xr_up_table, 0, sizeof(struct xr_upgrade) * 2);
	xr_cfg.enabled = 1;
	xr_cfg.flow_window = 8;
	xr_cfg.rendezvous_timeout = 1u << 30;
	xr_cfg.max_flows = 2;
	xr_cfg.ring_slots = SLOTS;
	xr_slab.flow = W.flow;
	xr_slab.priv = W.priv;
	xr_slab.own = W.own;
	xr_slab.meta = W.meta[0];
	xr_slab.max = xr_slab.fresh = 2;
	xr_slab.slots = SLOTS;
	xr_store_relaxed(&xr_slab.pid, 1);
	xr_slab.free = UINT32_MAX;
	xr_store_relaxed(&xr_slab.limbo, UINT32_MAX);
	for (e = 0; e < 2; e++) {
		struct xr_flow *f = &W.flow[e];

		cur = e;
		f->index = (uint32_t)e;
		f->owner_pid = 1;
		f->procs = 1;
		f->role = e ? XR_FLOW_ACCEPT : XR_FLOW_CONNECT;
		f->nonblock = 1;
		f->connected = 1;
		f->reason = XR_REASON_YOUNG;
		f->meta = W.meta[e];
		f->priv = &W.priv[e];
		f->own = &W.own[e];
		f->priv->fds = 1;
		xr_store_relaxed(&f->priv->fd, FD(e));
		f->path = XR_PATH_COUNT;
		W.link[e].side = !e;
		W.link[e].owner_pid = 1;
		W.link[e].nflows = 1;
		W.link[e].conn = 40 + e;
		end_settle(e);
	}
}
