/* SPDX-License-Identifier: BSD-2-Clause */
/* What lies around a flow: memory, clock, link, the messages of the handshake, epoll. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "core/log.h"
#include "core/stats.h"
#include "core/trace.h"
#include "preload/caretaker.h"
#include "preload/hold.h"
#include "preload/ready.h"
#include "preload/rundir.h"
#include "preload/user.h"
#include "fabric.h"
#include "world.h"

struct xr_config xr_cfg;
int xr_active = 1;
int xr_log_threshold;
static struct xr_stats_segment segment;
struct xr_stats_segment *xr_stats_seg = &segment;

static int of(const struct xr_flow *f)
{
	return f == &W.flow[1];
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

uint64_t xr_now_tick(void) { return xr_now_ns(); }

__thread int xr_mem_tid;
_Atomic int xr_mem_pid;
int xr_gettid_ask(void) { return cur + 1; }
int xr_getpid_ask(void) { return 1; }
int xr_random(void *p, size_t len) { memset(p, 7, len); return 0; }
void *xr_map_private(size_t len) { return calloc(1, len); }
void *xr_map_own(size_t len) { return calloc(1, len); }
void *xr_keep_private(size_t len) { return calloc(1, len); }
void *xr_keep_own(size_t len) { return calloc(1, len); }
void *xr_map_family(size_t len) { return calloc(1, len); }
void xr_unmap(void *p, size_t len) { (void)len; free(p); }

void xr_fd_close(int fd)
{
	if (fd == CONN(0) || fd == CONN(1))
		W.rdv.closed |= (uint8_t)(1 << (fd - CONN(0)));
	if (fd == LISTEN)
		W.rdv.listening = 0;
}

/* a lock asks for its holder's state where the kernel of the model has none: there it is alive */
int xr_snprintf(char *buf, size_t size, const char *fmt, ...)
{
	(void)size, (void)fmt;
	*buf = '\0';
	return 0;
}

void xr_log_write(struct xr_log_site *site, enum xr_log_level level, const char *fmt, ...)
{
	(void)site, (void)level, (void)fmt;
}

/* ---- trace.h: nothing is traced ------------------------------------------------------ */

_Atomic int xr_trace_state;
/* locks are taken as where there are several: the threads of the model are */
_Atomic uint32_t xr_care_made = 1;
int xr_policy_trace(void) { return -EPERM; }
void xr_trace_write(struct xr_trace_data *d) { (void)d; }
void xr_trace_skipped(void) { }
int xr_trace_due(uint64_t every) { (void)every; return 0; }
void xr_trace_new(uint64_t no, uint64_t id[2], uint64_t *span) { id[0] = id[1] = *span = no; }
void xr_clock_bound(struct xr_clock *c, int64_t lo, int64_t hi, uint64_t now)
{
	(void)c, (void)lo, (void)hi, (void)now;
}

int xr_clock_get(const struct xr_clock *c, uint64_t now, int64_t *offset, uint64_t *error)
{
	(void)c, (void)now, (void)offset, (void)error;
	return 0;
}

/* ---- user.h, usercopy.h: no program in here gives a bad address ---------------------- */

int xr_copy_to_user(void *user, const void *src, size_t n) { memcpy(user, src, n); return 0; }
int xr_copy_from_user(void *dst, const void *user, size_t n) { memcpy(dst, user, n); return 0; }
void xr_user_guard(void) { }
/* ---- the caretaker: as if close() waited for as long as it takes ------------------- */

void xr_care_add(struct xr_care *c, struct xr_flow *f, int fd)
{
	if (xr_flow_owes(f, fd))
		c->job[c->n++] = (struct xr_care_job){ f, fd };
}

void xr_care_hurry(int on) { (void)on; }
int xr_frame_alive(uintptr_t own, uintptr_t frame) { return own < frame; }

void xr_care_run(struct xr_care *c, uint64_t soon)
{
	uint32_t ev;

	(void)soon;
	while (c->n && (ev = xr_flow_owes(c->job[0].f, c->job[0].fd)) != 0) {
		struct pollfd p = { .fd = c->job[0].fd, .events = (short)ev };
		struct timespec ts = { 0, 10000000 };

		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
	}
}

void xr_care_reap(void) { }

/* ---- the link ----------------------------------------------------------------------- */

int xr_shm_link_notify(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie)
{
	int e = l == &W.link[1] || l == &X.link[1], module = l == &X.link[0] || l == &X.link[1];
	struct side *told = &W.side[hosts ? e : 1 - e];

	(void)cookie;
	if (!waiter)
		return 0;
	wrong_if(waiter != WAITER, "a waiter that does not exist is told");
	if (!coarse)
		model_yield();
	model_barrier();
	if (hosts && !module) {
		fabric_ring(e);
		return 1;
	}
	told->entry = 1;
	if (!coarse)
		model_yield();
	told->bell = told->sleeping;
	return told->bell;
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

int xr_shm_link_strip(struct xr_shm_link *l)
{
	(void)l;
	return 0;
}

int xr_shm_link_progress(struct xr_shm_link *l)
{
	int e = l == &W.link[1];

	if (!coarse)
		model_yield();
	/* the module lives as long as its program */
	if (hosts || !W.side[1 - e].hung_up)
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
	int e = l == &W.link[1] || l == &X.link[1];
	struct block *b = &W.block[e][off - 1];
	struct xr_shm_slot *s;
	uint32_t gen;

	if (l == &X.link[e]) {
		b = (struct block *)(void *)((uint8_t *)&X + off);
		X.dirs[e] &= (uint8_t)~(1u << (b - X.block[e]));
	} else {
		W.side[e].dirs &= (uint8_t)~(1u << (off - 1));
	}
	gen = b->dir.gen;
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
	/* the message that names it to the peer is a system call */
	model_barrier();
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

/* The two ends have no link when they begin, and go by name. */
struct xr_upgrade *xr_up_link_claim(struct xr_flow *f) { (void)f; return NULL; }
void xr_up_link_free(struct xr_upgrade *u) { (void)u; }
void xr_up_link_nonce(struct xr_upgrade *u) { (void)u; }
struct xr_upgrade *xr_up_link_at(uint32_t i) { (void)i; return &xr_up_table[0]; }
int xr_up_offer(struct xr_upgrade *u) { (void)u; return -ENOENT; }
int xr_up_offers(void) { return 0; }
int xr_up_call_link(struct xr_upgrade *u, int fd) { (void)u, (void)fd; return -ENOENT; }
void xr_up_link_forked(void) { }

int xr_up_offered(const struct xr_tuple *t, int take, struct xr_shm_link **l, uint64_t *nonce)
{
	(void)t, (void)take, (void)l, (void)nonce;
	return 0;
}

void xr_up_offer_back(const struct xr_tuple *t, const struct xr_shm_link *l, uint64_t nonce)
{
	(void)t, (void)l, (void)nonce;
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
int xr_tuple_get(int fd, struct xr_tuple *t, union xr_sockaddr *local, union xr_sockaddr *peer)
{
	(void)fd, (void)t, (void)local, (void)peer;
	return -ENOTCONN;
}

/* other network namespaces are not part of it */
int xr_rundir_listen(const struct xr_tuple *t) { (void)t; return -ENOENT; }
void xr_rundir_unlink(const struct xr_tuple *t) { (void)t; }
void xr_witness_look(struct xr_upgrade *u, int fd, int after) { (void)u, (void)fd, (void)after; }
int xr_witness_done(const struct xr_upgrade *u) { (void)u; return 1; }
enum xr_reason xr_far_off(void) { return hosts ? XR_REASON_NONE : XR_REASON_NOT_LOCAL; }

/* the blocks of a flow to another host: the peer's is the module's */
int xr_up_own_dir(struct xr_upgrade *u) { return own_dir(u); }

int xr_up_peer_dir(struct xr_upgrade *u)
{
	struct xr_shm_dir *dir = (struct xr_shm_dir *)(void *)((uint8_t *)&X + u->peer_dir_off);

	xr_shm_rx_init(&u->f->rx, dir, SLOTS, (const uint8_t *)&X, sizeof(X));
	u->f->peer_dir_gen = dir->gen;
	u->f->peer_cookie = u->peer_cookie;
	u->f->link = u->link;
	return 0;
}

enum xr_reason xr_up_eligible(struct xr_flow *f, int fd, struct xr_tuple *t, uint32_t *way)
{
	(void)f, (void)fd;
	if (hosts)
		*way = XR_WAY_FAR;
	memset(t, 0, sizeof(*t));
	return XR_REASON_NONE;
}

/* ---- what the flow is told nothing by ----------------------------------------------------- */

void xr_stats_flow_free(struct xr_stats_flow *f) { (void)f; }
void xr_stats_flow_rdma(struct xr_stats_flow *f, const char *device, const uint8_t gid[16], uint32_t qpn, uint32_t peer)
{
	(void)f, (void)device, (void)gid, (void)qpn, (void)peer;
}
void xr_stats_flow_closing(struct xr_stats_flow *f) { (void)f; }
void xr_stats_flow_state(struct xr_stats_flow *f, enum xr_stats_state s) { (void)f; (void)s; }
void xr_stats_flow_reason(struct xr_stats_flow *f, enum xr_reason r) { (void)f; (void)r; }
void xr_stats_flow_again(struct xr_stats_flow *f, uint64_t at) { (void)f; (void)at; }
void xr_stats_flow_carrier(struct xr_stats_flow *f, enum xr_carrier t, enum xr_carrier r, uint32_t p)
{
	(void)f, (void)t, (void)r, (void)p;
}

_Atomic uint32_t xr_control_seen, xr_control_tune_seen;
int xr_control_holds(const struct xr_flow *f) { (void)f; return 0; }
void xr_flow_list(struct xr_flow *f, int fd) { (void)f, (void)fd; }
void xr_flow_stats_last(struct xr_flow *f, int fd) { (void)f, (void)fd; }
void xr_flow_stats_child(struct xr_flow *f, enum xr_carrier t, enum xr_carrier r) { (void)f, (void)t, (void)r; }
void xr_control_run(void) { }
void xr_control_tune(void) { }
void xr_control_open(void) { }

int xr_epoll_flow_attach(struct xr_flow *f) { (void)f; return 0; }
int xr_epoll_flow_attached(struct xr_flow *f) { (void)f; return 0; }
void xr_epoll_flow_detach(struct xr_flow *f) { (void)f; }
__thread uint32_t xr_vfork_depth;
void xr_epoll_flow_kick(struct xr_flow *f) { (void)f; }
void xr_epoll_flow_full(struct xr_flow *f) { (void)f; }
void xr_fd_each(void (*fn)(void *arg, int fd, uintptr_t entry), void *arg) { (void)fn; (void)arg; }
struct xr_signal_mark xr_signal_mark(void) { return (struct xr_signal_mark){ 0, 0 }; }

int xr_hold_take(struct xr_hold *h, struct xr_flow *f) { (void)h, (void)f; return 0; }
void xr_hold_drop(struct xr_hold *h) { (void)h; }
void xr_hold_forked(struct xr_flow *f, uint32_t n) { (void)f, (void)n; }

int xr_sleep_poll(struct pollfd *fds, unsigned int n, uint64_t deadline, const sigset_t *sigmask,
		  struct xr_signal_mark mark, int any)
{
	(void)fds, (void)n, (void)deadline, (void)sigmask, (void)mark, (void)any;
	abort();
}

int xr_wait_flow(struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
		 struct xr_signal_mark mark)
{
	(void)f, (void)fd, (void)mask, (void)deadline, (void)mark;
	/* no program in here blocks in a call */
	abort();
}
