/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One flow with real rings and a real TCP connection, whose peer the test plays by hand.  What
 * lies around flow*.c (handshakes, epoll, sleeping, operators) does nothing.
 */
#ifndef FLOW_RIG_H
#define FLOW_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/mem.h"
#include "preload/caretaker.h"
#include "preload/control.h"
#include "preload/flow.h"
#include "preload/hold.h"
#include "preload/ready.h"
#include "preload/waiter.h"

#define SLOTS	16u
#define WINDOW	64u

/* ---- what lies around a flow --------------------------------------------------- */

struct xr_config xr_cfg;
int xr_active = 1;
_Atomic uint32_t xr_control_seen, xr_control_tune_seen;

void xr_upgrade_step(struct xr_flow *f, int fd) { (void)f, (void)fd; }
void xr_upgrade_witness(struct xr_flow *f) { (void)f; }
void xr_upgrade_abort(struct xr_flow *f, int fd, enum xr_reason why) { (void)f, (void)fd, (void)why; }
#ifndef FLOW_RIG_TRACE
int xr_policy_trace(void) { return -EPERM; }
#endif
void xr_flow_list(struct xr_flow *f, int fd) { (void)f, (void)fd; }
void xr_flow_stats_last(struct xr_flow *f, int fd) { (void)f, (void)fd; }
void xr_flow_stats_child(struct xr_flow *f, enum xr_carrier t, enum xr_carrier r) { (void)f, (void)t, (void)r; }
int xr_control_holds(const struct xr_flow *f) { (void)f; return 0; }
void xr_control_run(void) { }
void xr_control_tune(void) { }
int xr_epoll_flow_attached(struct xr_flow *f) { (void)f; return 0; }
void xr_epoll_flow_detach(struct xr_flow *f) { (void)f; }
__thread uint32_t xr_vfork_depth;
void xr_epoll_flow_kick(struct xr_flow *f) { (void)f; }
void xr_epoll_flow_full(struct xr_flow *f) { (void)f; }
uint32_t xr_waiter_claimed(struct xr_flow *f, int dir) { (void)f, (void)dir; return 0; }
void xr_fd_each(void (*fn)(void *arg, int fd, uintptr_t entry), void *arg) { (void)fn, (void)arg; }
/* what a caretaker would go on with stays as it is */
void xr_care_add(struct xr_care *c, struct xr_flow *f, int fd) { (void)c, (void)f, (void)fd; }
void xr_care_run(struct xr_care *c, uint64_t soon) { (void)c, (void)soon; }
void xr_care_hurry(int on) { (void)on; }
int xr_frame_alive(uintptr_t own, uintptr_t frame) { return own < frame; }
void xr_care_reap(void) { }
_Atomic uint32_t xr_care_kids;
_Atomic uint32_t xr_care_made;
struct xr_signal_mark xr_signal_mark(void) { return (struct xr_signal_mark){ 0, 0 }; }

int xr_hold_take(struct xr_hold *h, struct xr_flow *f) { (void)h, (void)f; return 0; }
void xr_hold_drop(struct xr_hold *h) { (void)h; }
void xr_hold_forked(struct xr_flow *f, uint32_t n) { (void)f, (void)n; }

int xr_sleep_poll(struct pollfd *fds, unsigned int n, uint64_t deadline, const sigset_t *sigmask,
		  struct xr_signal_mark mark, int any)
{
	(void)fds, (void)n, (void)deadline, (void)sigmask, (void)mark, (void)any;
	fail_msg("a call that must not block sleeps");
	return -EINTR;
}

int xr_wait_flow(struct xr_flow *f, int fd, uint32_t mask, uint64_t deadline,
		 struct xr_signal_mark mark)
{
	(void)f, (void)fd, (void)mask, (void)deadline, (void)mark;
	fail_msg("a call that must not block sleeps");
	return -EINTR;
}

/* ---- a flow, and its peer ---------------------------------------------------------- */

static struct {
	struct xr_flow *f;
	int fd, far_fd;
	int closed;			/* xr_flow_last_close has counted it out */
	struct xr_shm_link *near, *far;
	struct xr_shm_tx tx;		/* the peer's sending end: what the flow receives */
	struct xr_shm_rx rx;		/* and what the flow sends */
	struct xr_shm_meta meta[SLOTS];
	uint64_t far_off;
	int far_closed;
} R;

static inline void sockets(int *a, int *b)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(sa);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, small = 4608;

	setsockopt(l, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	assert_int_equal(bind(l, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&sa, &len), 0);
	*a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(*a, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	assert_int_equal(connect(*a, (struct sockaddr *)&sa, sizeof(sa)), 0);
	*b = accept(l, NULL, NULL);
	assert_true(*b >= 0);
	setsockopt(*a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(*b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	close(l);
}

static inline void links(void)
{
	struct xr_shm_arena a, b, a_far, b_far;
	int sv[2], type = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

	assert_int_equal(socketpair(AF_UNIX, type, 0, sv), 0);
	assert_int_equal(xr_shm_arena_create(&a, 8u << 20, SLOTS), 0);
	assert_int_equal(xr_shm_arena_create(&b, 8u << 20, SLOTS), 0);
	assert_int_equal(xr_shm_arena_attach(&a_far, a.fd), 0);
	assert_int_equal(xr_shm_arena_attach(&b_far, b.fd), 0);
	R.near = xr_shm_link_new(sv[0], &a, &b_far);
	R.far = xr_shm_link_new(sv[1], &b, &a_far);
	assert_non_null(R.near);
	assert_non_null(R.far);
	xr_link_ref(R.near);
}

/* A flow whose two ends have all they need, and have sent nothing yet. */
static inline void flow_make(void)
{
	struct xr_shm_chunks c;
	struct xr_shm_dir *own, *peer;
	struct xr_flow *f;

	memset(&R, 0, sizeof(R));
	xr_cfg.max_flows = 4;
	xr_cfg.ring_slots = SLOTS;
	xr_cfg.max_memory = 64u << 20;
	xr_cfg.flow_window = WINDOW;
	sockets(&R.fd, &R.far_fd);
	links();
	R.f = f = xr_flow_new(R.fd, AF_INET, XR_FLOW_CONNECT, 1);
	assert_non_null(f);
	f->dir_off = xr_shm_link_dir_get(R.near);
	R.far_off = xr_shm_link_dir_get(R.far);
	own = (struct xr_shm_dir *)(R.near->own.base + f->dir_off);
	xr_shm_link_chunks(R.near, &c);
	xr_shm_tx_init(&f->tx, own, SLOTS, f->meta, &c, R.near->own.base + R.near->own.hdr.chunk_off,
		       R.near->own.hdr.chunk_off, WINDOW);
	xr_shm_link_chunks(R.far, &c);
	xr_shm_tx_init(&R.tx, (struct xr_shm_dir *)(R.far->own.base + R.far_off), SLOTS, R.meta, &c,
		       R.far->own.base + R.far->own.hdr.chunk_off, R.far->own.hdr.chunk_off, WINDOW);
	peer = xr_shm_link_peer_dir(R.near, R.far_off);
	assert_non_null(peer);
	xr_shm_rx_init(&f->rx, peer, SLOTS, R.near->peer.base, R.near->peer.size);
	xr_shm_rx_init(&R.rx, xr_shm_link_peer_dir(R.far, f->dir_off), SLOTS, R.far->peer.base,
		       R.far->peer.size);
	f->peer_dir_gen = xr_load_relaxed(&peer->gen);
	f->link = R.near;
	f->reason = XR_REASON_NONE;
	f->upgrade_off = 1;
	f->tx_state = XR_TX_RING;
	xr_store_release(&f->path, XR_PATH_FABRIC);
}

static inline void flow_end(void)
{
	struct xr_flow *f = R.f;

	if (!f->own->regs && R.fd >= 0)
		close(R.fd);
	/* the peer is done with it, so that its memory comes back at once */
	xr_fetch_or(&R.tx.dir->state, XR_DIR_GONE);
	if (R.closed)
		xr_flow_closed(f);
	else
		xr_flow_release(f);
	R.closed = 0;
	xr_shm_tx_destroy(&R.tx);
	xr_shm_link_free(R.far);
	if (R.far_fd >= 0)
		close(R.far_fd);
}

static inline void far_write(const char *s)
{
	assert_int_equal(send(R.far_fd, s, strlen(s), MSG_NOSIGNAL), strlen(s));
}

static inline void far_start(uint64_t n)
{
	assert_int_equal(xr_shm_tx_control(&R.tx, XR_OP_START, n), 0);
}

static inline void far_send(const char *s)
{
	struct iovec iov = { (void *)(uintptr_t)s, strlen(s) };

	assert_int_equal(xr_shm_tx_send(&R.tx, &iov, 1, 0, strlen(s)), strlen(s));
}

static inline void far_end(int closed)
{
	xr_shm_tx_control(&R.tx, XR_OP_END, closed ? XR_END_CLOSE : 0);
	xr_fetch_or(&R.tx.dir->state, XR_DIR_ENDED | (closed ? XR_DIR_CLOSED : 0));
}

static inline void far_shut(void)
{
	assert_int_equal(shutdown(R.far_fd, SHUT_WR), 0);
}

static inline void far_close(void)
{
	close(R.far_fd);
	R.far_fd = -1;
}

static inline void far_rst(void)
{
	static const struct linger now = { 1, 0 };

	setsockopt(R.far_fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	far_close();
}

static inline void far_hang_up(void)
{
	xr_fd_close(R.far->conn);
	R.far->conn = -1;
}

static inline ssize_t flow_recv(void)
{
	char buf[256];
	struct iovec iov = { buf, sizeof(buf) };

	R.f->rx_checked = 0;
	return xr_flow_recv(R.f, R.fd, &iov, 1, 0);
}

static inline ssize_t flow_send(size_t n)
{
	static char buf[65536];
	struct iovec iov = { buf, n };

	R.f->tx_checked = R.f->rx_checked = 0;
	return xr_flow_send(R.f, R.fd, &iov, 1, MSG_NOSIGNAL);
}

/* The receive direction goes to the ring, at offset 0. */
static inline void flow_on_ring(void)
{
	R.f->rx_state = XR_RX_READY;
	xr_shm_rx_ready(&R.f->rx);
	far_start(0);
	assert_int_equal(flow_recv(), -EAGAIN);
	assert_int_equal(R.f->rx_state, XR_RX_RING);
}

static inline const char *told(ssize_t n, char *s, size_t len)
{
	switch (n) {
	case -EAGAIN:
		return "none";
	case -ECONNRESET:
		return "reset";
	case -EPIPE:
		return "pipe";
	case -EREMOTEIO:
		return "kernel";
	default:
		snprintf(s, len, "%zd", n);
		return s;
	}
}

/* A cell of a table. */
static inline int cell_is_wrong(const char *state, const char *event, const char *is,
				const char *should)
{
	if (should && !strcmp(is, should))
		return 0;
	print_error("%s, %s: is \"%s\", should be \"%s\"\n", state, event, is, should ? should : "in the table");
	return 1;
}

#endif
