/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the program at an end does in one call, as the hooks do it, with what it must see;
 * and stand-ins for what lies around the flow: link, handshake messages, epoll.
 */
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
#include "world.h"

#define WAITER	1u

struct xr_config xr_cfg;
int xr_active = 1;
int xr_log_threshold;
static struct xr_stats_segment segment;
struct xr_stats_segment *xr_stats_seg = &segment;

static int of(const struct xr_flow *f)
{
	return f == &W.flow[1];
}

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
		wrong_if(s->got < far->sent && !lost_to_exec(e), "the stream ends before its last byte");
		return;
	}
	s->err = 1;
	wrong_if(n != -ECONNRESET && n != -EPIPE, "an error that TCP does not give");
	wrong_if(!far->closed && !far->dead, "an error though the peer is there");
	/* a socket that is closed with everything read says FIN */
	wrong_if(n == -ECONNRESET && !s->sent && !s->tried, "a reset though the peer has read all");
}

static int fabric(int e, uint32_t path)
{
	return !W.side[e].unaware && (xr_load_acquire(&W.flow[e].path) & path);
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
	if (now != UINT32_MAX && (now & (mask | POLLERR | POLLHUP)))
		goto out;
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
		do_recv(e, 32);
		break;
	case ACT_RECV1:
		do_recv(e, 1);
		break;
	case ACT_POLL:
		if (fabric(e, XR_PATH_FABRIC))
			xr_flow_poll(f, FD(e));
		break;
	case ACT_WAIT_IN:
		do_wait(e, POLLIN);
		break;
	case ACT_WAIT_OUT:
		do_wait(e, POLLOUT);
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
			xr_flow_release(f);
		break;
	case ACT_SEAL:
		xr_flow_stay_tcp(f, FD(e), XR_REASON_OPTION);
		break;
	case ACT_LEAVE:
		if (fabric(e, XR_PATH_FABRIC))
			xr_flow_retreat(f, FD(e), XR_REASON_OPERATOR, 0);
		break;
	case ACT_EXEC:
		if (fabric(e, XR_PATH_FABRIC))
			xr_flow_retreat(f, FD(e), XR_REASON_EXEC, 1000000000u);
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

	f->turns = 0;
	f->last_dir = 0;
	f->up_after = 0;
	f->rx_spin = 0;
	f->next_free = 0;
	f->moved_ns = 0;
	f->returns = 0;
	f->need_bytes = UINT64_MAX;
	/* a look at the kernel socket is due at each call, or only when there is a reason */
	f->rx_checked = f->tx_checked = hurried ? model_cycles() : 0;
	if (!f->upgrade_off) {
		f->up_tries = 0;
		f->need_turns = 0;
	}
	if (f->up) {
		f->up->ios = 0;
		f->up->nonce = 0;
		f->up->turns = 0;
	}
	W.side[e].now = 0;
}

/* ---- mem.h ------------------------------------------------------------------------ */

uint64_t model_cycles(void)
{
	return 1ull << 40;
}

uint64_t xr_now_ns(void)
{
	return 1000000000000ull + W.side[cur].now;
}

int xr_gettid(void) { return cur + 1; }
int xr_getpid(void) { return 1; }
int xr_random(void *p, size_t len) { memset(p, 7, len); return 0; }
void *xr_map_private(size_t len) { return calloc(1, len); }
void *xr_map_family(size_t len) { return calloc(1, len); }
void xr_unmap(void *p, size_t len) { (void)len; free(p); }

void xr_fd_close(int fd)
{
	if (fd == CONN(0) || fd == CONN(1))
		W.rdv.closed |= (uint8_t)(1 << (fd - CONN(0)));
	if (fd == LISTEN)
		W.rdv.listening = 0;
}

void xr_log_write(struct xr_log_site *site, enum xr_log_level level, const char *fmt, ...)
{
	(void)site, (void)level, (void)fmt;
}

/* ---- the link ----------------------------------------------------------------------- */

int xr_shm_link_notify(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie)
{
	int e = l == &W.link[1];
	struct side *far = &W.side[1 - e];

	(void)cookie;
	if (!waiter)
		return 0;
	wrong_if(waiter != WAITER, "a waiter that does not exist is told");
	if (!coarse)
		model_yield();
	far->entry = 1;
	if (!coarse)
		model_yield();
	far->bell = far->sleeping;
	return far->bell;
}

/* The flow's own sleeper, when the carrier changes without the peer's doing. */
void xr_shm_link_notify_own(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie)
{
	struct side *s = &W.side[l == &W.link[1]];

	(void)cookie;
	if (waiter)
		s->entry = s->bell = 1;
}

uint32_t xr_waiter_claimed(struct xr_flow *f, int dir)
{
	return W.side[of(f)].claimed == 1 + dir ? WAITER : 0;
}

int xr_shm_link_progress(struct xr_shm_link *l)
{
	int e = l == &W.link[1];

	if (!coarse)
		model_yield();
	if (!W.side[1 - e].hung_up)
		return 0;
	xr_store_release(&l->dead, 1);
	return -EPIPE;
}

static uint32_t chunk_get(void *ctx)
{
	int e = ctx == &W.link[1];
	uint32_t i;

	for (i = 0; i < CHUNKS; i++)
		if (!(W.chunk_used[e] & 1u << i)) {
			W.chunk_used[e] |= (uint8_t)(1u << i);
			return i;
		}
	return XR_NO_CHUNK;
}

static void chunk_put(void *ctx, uint32_t i)
{
	int e = ctx == &W.link[1];

	wrong_if(i >= CHUNKS || !(W.chunk_used[e] & 1u << i), "a chunk is given back twice");
	W.chunk_used[e] &= (uint8_t)~(1u << i);
}

/* The block is another flow's from here on. */
void xr_shm_link_dir_put(struct xr_shm_link *l, uint64_t off)
{
	struct block *b = &W.block[l == &W.link[1]][off - 1];
	uint32_t gen = b->dir.gen;
	struct xr_shm_slot *s;

	W.side[l == &W.link[1]].dirs &= (uint8_t)~(1u << (off - 1));
	memset(b, 0, sizeof(*b));
	b->dir.gen = gen + 1;
	b->dir.consumed = XR_CONSUMED(1, 0);
	for (s = b->slot; s < b->slot + SLOTS; s++) {
		s->data[0] = 0xee;
		s->head = XR_HEAD(s - b->slot, 1, 0, XR_OP_SEND);
	}
}

void xr_shm_link_free(struct xr_shm_link *l) { (void)l; }
void xr_shm_arena_destroy(struct xr_shm_arena *a) { (void)a; }
void xr_shm_budget(uint64_t n) { (void)n; }

/* ---- the handshake: upgrade_exchange.c, its messages delivered at once ------------------ */

static int own_dir(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	int e = of(f);
	struct xr_shm_chunks src = { chunk_get, chunk_put, &W.link[e] };
	uint32_t i;

	for (i = 0; i < DIRS && W.side[e].dirs & 1u << i; i++)
		;
	if (i == DIRS)
		return -ENOMEM;
	W.side[e].dirs |= (uint8_t)(1u << i);
	W.rdv.dir[e] = (uint8_t)i;
	f->dir_off = i + 1;
	u->own_dir = 1;
	xr_shm_tx_init(&f->tx, &W.block[e][i].dir, SLOTS, W.meta[e], &src, W.chunk[e][0], 0, 8);
	return 0;
}

static void peer_dir(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	int e = of(f);
	struct block *b = &W.block[1 - e][W.rdv.dir[1 - e]];

	xr_shm_rx_init(&f->rx, &b->dir, SLOTS, W.chunk[1 - e][0], sizeof(W.chunk[0]));
	f->peer_dir_gen = b->dir.gen;
	xr_link_ref(&W.link[e]);
	u->link = &W.link[e];
	f->link = &W.link[e];
	u->state = XR_UP_EXCHANGED;
}

int xr_rendezvous_listen(const struct xr_tuple *t)
{
	uint8_t n = (uint8_t)(W.rdv.attempt + 1);

	(void)t;
	memset(&W.rdv, 0, sizeof(W.rdv));
	W.rdv.attempt = n;
	W.rdv.listening = 1;
	return LISTEN;
}

int xr_up_host_step(struct xr_upgrade *u, int fd)
{
	(void)fd;
	if (u->state == XR_UP_LISTENING && W.rdv.called) {
		xr_fd_close(u->lfd);
		u->lfd = -1;
		u->conn = CONN(0);
		if (own_dir(u))
			return -ENOMEM;
		W.rdv.answered = 1;
		u->state = XR_UP_ANSWERED;
	} else if (u->state == XR_UP_ANSWERED && W.rdv.set_up) {
		peer_dir(u);
	} else if (u->state == XR_UP_ANSWERED && W.rdv.closed & 2) {
		return -EPIPE;
	}
	return 0;
}

int xr_up_call(struct xr_upgrade *u, int fd)
{
	(void)fd;
	if (!W.rdv.listening)
		return -ECONNREFUSED;
	W.rdv.called = 1;
	u->peer_nonce = W.rdv.attempt;
	u->conn = CONN(1);
	u->state = XR_UP_CALLING;
	return 0;
}

int xr_up_caller_step(struct xr_upgrade *u, int fd)
{
	(void)fd;
	if (u->peer_nonce != W.rdv.attempt)
		return -EPIPE;
	if (W.rdv.answered) {
		if (own_dir(u))
			return -ENOMEM;
		peer_dir(u);
		W.rdv.set_up = 1;
	} else if (W.rdv.closed & 1 || !W.rdv.listening) {
		return -EPIPE;
	}
	return 0;
}

enum xr_reason xr_up_errno_reason(int r) { (void)r; return XR_REASON_RENDEZVOUS_FAILED; }
void xr_proof_forked(void) { }

enum xr_reason xr_up_eligible(struct xr_flow *f, int fd, struct xr_tuple *t)
{
	(void)f, (void)fd;
	memset(t, 0, sizeof(*t));
	return XR_REASON_NONE;
}

/* ---- what the flow is told nothing by ----------------------------------------------------- */

void xr_stats_flow_free(struct xr_stats_flow *f) { (void)f; }
void xr_stats_flow_state(struct xr_stats_flow *f, enum xr_stats_state s) { (void)f; (void)s; }
void xr_stats_flow_reason(struct xr_stats_flow *f, enum xr_reason r) { (void)f; (void)r; }
void xr_stats_flow_carrier(struct xr_stats_flow *f, enum xr_carrier t, enum xr_carrier r, uint32_t p)
{
	(void)f, (void)t, (void)r, (void)p;
}

_Atomic uint32_t xr_control_seen;
int xr_control_holds(const struct xr_flow *f) { (void)f; return 0; }
void xr_control_run(void) { }
void xr_control_open(void) { }

int xr_epoll_flow_attach(struct xr_flow *f) { (void)f; return 0; }
int xr_epoll_flow_attached(struct xr_flow *f) { (void)f; return 0; }
void xr_epoll_flow_detach(struct xr_flow *f) { (void)f; }
void xr_epoll_flow_kick(struct xr_flow *f) { (void)f; }
void xr_epoll_flow_full(struct xr_flow *f) { (void)f; }
void xr_fd_each(void (*fn)(void *arg, int fd, uintptr_t entry), void *arg) { (void)fn; (void)arg; }
struct xr_signal_mark xr_signal_mark(void) { return (struct xr_signal_mark){ 0, 0 }; }

int xr_wait_flow(struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
		 struct xr_signal_mark mark)
{
	(void)f, (void)fd, (void)mask, (void)deadline, (void)mark;
	/* no program in here blocks in a call */
	abort();
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
	xr_slab.meta = W.meta[0];
	xr_slab.max = xr_slab.fresh = xr_slab.live = 2;
	xr_slab.slots = SLOTS;
	xr_slab.pid = 1;
	xr_slab.free = xr_slab.limbo = UINT32_MAX;
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
		f->priv->fds = 1;
		f->priv->fd = FD(e);
		f->path = XR_PATH_COUNT;
		W.link[e].side = !e;
		W.link[e].owner_pid = 1;
		W.link[e].nflows = 1;
		W.link[e].conn = 40 + e;
		end_settle(e);
	}
}
