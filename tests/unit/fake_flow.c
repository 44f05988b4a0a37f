/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>
#include "control.h"
#include "fake_flow.h"
#include "hold.h"

struct fake fake[FAKE_FLOWS];
_Atomic uint32_t fake_polls;
uint32_t fake_stay_reason;

/* what the objects under test refer to */
struct xr_config xr_cfg;
int xr_active = 1;
struct xr_flow_slab xr_slab;
__thread uint32_t xr_vfork_depth;

static struct xr_shm_link *near_link[2], *far_link[2];

static struct fake *of(const struct xr_flow *f)
{
	return &fake[f->index];
}

/* ---- the interface of flow*.c ---------------------------------------------- */

int xr_lock_slow(struct xr_lock *l)
{
	uint32_t self = (uint32_t)xr_gettid(), seen = 0;

	while (!xr_cas(&l->owner, &seen, self)) {
		if (seen == self)
			return -EDEADLK;
		seen = 0;
		xr_sys0(SYS_sched_yield);
	}
	return 0;
}

int xr_lock_soon(struct xr_lock *l)
{
	return xr_trylock(l);
}

struct xr_shm_link *xr_flow_link_get(struct xr_flow *f)
{
	if (f->link)
		xr_fetch_add(&f->link->nflows, 1);
	return f->link;
}

uint32_t xr_flow_holders(const struct xr_flow *f)
{
	return xr_load_relaxed(&f->procs);
}

/* no process.c here: a test that forks says so by itself */
static _Atomic uint32_t alive[2] = { 1, 1 };
_Atomic uint32_t *xr_process_alive = alive;

void xr_process_child(void)
{
}

/* no operator here */
_Atomic uint32_t xr_control_seen, xr_control_tune_seen;

int xr_control_fd(void)
{
	return -1;
}

void xr_control_drain(void)
{
}

const char *xr_control_bell(void)
{
	return NULL;
}

void xr_control_ring(const char *bell)
{
	(void)bell;
}

void xr_control_tune(void)
{
}

void xr_control_run(void)
{
}

void xr_link_ref(struct xr_shm_link *l)
{
	xr_fetch_add(&l->nflows, 1);
}

void xr_link_unref(struct xr_shm_link *l)
{
	assert_true(xr_fetch_sub(&l->nflows, 1) > 0);
}

uint32_t xr_flow_poll(struct xr_flow *f, int fd)
{
	(void)fd;
	xr_fetch_add(&fake_polls, 1);
	xr_fetch_add(&of(f)->polls, 1);
	if (!(xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		return UINT32_MAX;
	return xr_load_acquire(&of(f)->mask);
}

void xr_flow_sweep_slept(uint64_t now)
{
	(void)now;
}

int xr_flow_unrung(struct xr_flow *f)
{
	(void)f;
	return 0;
}

int xr_flow_link_lost(struct xr_flow *f, int fd)
{
	(void)f;
	(void)fd;
	return 0;
}

int xr_flow_peek(struct xr_flow *f, uint32_t mask)
{
	return !(xr_load_acquire(&f->path) & XR_PATH_FABRIC) ||
	       (xr_load_acquire(&of(f)->mask) & mask) != 0;
}

uint32_t xr_flow_kernel_mask(struct xr_flow *f, uint32_t mask)
{
	(void)mask;
	return f->rx_dead ? 0 : POLLIN | POLLRDHUP;
}

void xr_flow_kernel_event(struct xr_flow *f, uint32_t revents)
{
	xr_fetch_add(&of(f)->kernel_events, 1);
	if (revents & (POLLRDHUP | POLLHUP)) {
		f->rx_dead = POLLRDHUP;
		xr_fetch_or(&of(f)->mask, POLLIN | POLLRDHUP);
	}
}

void xr_flow_arm(struct xr_flow *f, uint32_t waiter, uint32_t mask)
{
	if (mask & POLLIN)
		xr_store_relaxed(&of(f)->arm[0], waiter);
	if (mask & POLLOUT)
		xr_store_relaxed(&of(f)->arm[1], waiter);
	xr_fence_store_load();
}

struct xr_flow *xr_flow_by_cookie(struct xr_shm_link *l, uint32_t cookie)
{
	if (cookie >= FAKE_FLOWS || !fake[cookie].f || fake[cookie].f->link != l)
		return NULL;
	return fake[cookie].f;
}

void xr_flow_each(struct xr_shm_link *l, void (*fn)(void *arg, struct xr_flow *f), void *arg)
{
	uint32_t i;

	for (i = 0; i < FAKE_FLOWS; i++)
		if (fake[i].f && fake[i].f->link == l)
			fn(arg, fake[i].f);
}

long xr_flow_inq(struct xr_flow *f, int fd)
{
	(void)fd;
	return (long)xr_load_relaxed(&of(f)->queued);
}

int xr_flow_kpoll_begin(struct xr_flow *f)
{
	if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		return 0;
	xr_fetch_add(&f->k_rx, 1);
	return 1;
}

void xr_flow_kpoll_end(struct xr_flow *f)
{
	xr_fetch_sub(&f->k_rx, 1);
}

void xr_hold_thread(int all)
{
	(void)all;
}

int xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	(void)fd;
	(void)why;
	(void)wait_ns;
	xr_fetch_add(&of(f)->retreats, 1);
	xr_store_release(&f->path, XR_PATH_COUNT);
	if (f->owner_pid == xr_getpid())
		xr_epoll_flow_detach(f);
	return 0;
}

int xr_flow_retreat_as(struct xr_flow *f, int fd, enum xr_reason why, enum xr_retreat how, uint64_t wait_ns)
{
	(void)how;
	return xr_flow_retreat(f, fd, why, wait_ns);
}

int xr_flow_hand_over(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	return of(f)->stuck ? -EAGAIN : xr_flow_retreat(f, fd, why, wait_ns);
}

void xr_flow_stay_tcp(struct xr_flow *f, int fd, enum xr_reason why)
{
	fake_stay_reason = (uint32_t)why;
	if (xr_load_acquire(&f->path) & XR_PATH_FABRIC)
		xr_flow_retreat(f, fd, why, 0);
	xr_store_release(&f->path, 0);
}

uint32_t xr_ksock_poll(int fd, uint32_t events)
{
	struct pollfd p = { .fd = fd, .events = (short)events };

	return poll(&p, 1, 0) > 0 ? (uint32_t)(unsigned short)p.revents : 0;
}

/* ---- the test's hands -------------------------------------------------------- */

static void link_make(int i)
{
	struct xr_shm_arena a, b, a_far, b_far;
	int sv[2], type = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

	assert_int_equal(socketpair(AF_UNIX, type, 0, sv), 0);
	assert_int_equal(xr_shm_arena_create(&a, 16u << 20, 16), 0);
	assert_int_equal(xr_shm_arena_create(&b, 16u << 20, 16), 0);
	assert_int_equal(xr_shm_arena_attach(&a_far, a.fd), 0);
	assert_int_equal(xr_shm_arena_attach(&b_far, b.fd), 0);
	near_link[i] = xr_shm_link_new(sv[0], &a, &b_far);
	far_link[i] = xr_shm_link_new(sv[1], &b, &a_far);
	assert_non_null(near_link[i]);
	assert_non_null(far_link[i]);
}

void fake_setup(void)
{
	memset(fake, 0, sizeof(fake));
	xr_cfg.spin = 50000;
	xr_slab.max = FAKE_FLOWS;
	xr_slab.fresh = FAKE_FLOWS;
	xr_store_relaxed(&xr_slab.pid, xr_getpid());
	xr_slab.flow = xr_map_family(FAKE_FLOWS * sizeof(struct xr_flow));
	xr_slab.priv = xr_map_private(FAKE_FLOWS * sizeof(struct xr_flow_priv));
	assert_non_null(xr_slab.flow);
	assert_non_null(xr_slab.priv);
	xr_slab.own = xr_map_own(FAKE_FLOWS * sizeof(struct xr_flow_own));
	assert_non_null(xr_slab.own);
	fake_polls = 0;
	fake_stay_reason = 0;
	link_make(0);
	link_make(1);
}

void fake_teardown(void)
{
	uint32_t i;

	for (i = 0; i < FAKE_FLOWS; i++)
		if (fake[i].f)
			fake_close(&fake[i]);
	for (i = 0; i < 2; i++) {
		/* every reference was let go of */
		assert_int_equal(near_link[i]->nflows, 0);
		xr_shm_link_free(near_link[i]);
		xr_shm_link_free(far_link[i]);
	}
	xr_unmap(xr_slab.flow, FAKE_FLOWS * sizeof(struct xr_flow));
	xr_unmap(xr_slab.priv, FAKE_FLOWS * sizeof(struct xr_flow_priv));
	xr_unmap(xr_slab.own, FAKE_FLOWS * sizeof(struct xr_flow_own));
}

struct fake *fake_open(uint32_t i)
{
	struct fake *k = &fake[i];
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	memset(k, 0, sizeof(*k));
	k->f = &xr_slab.flow[i];
	memset(k->f, 0, sizeof(*k->f));
	k->fd = sv[0];
	k->peer = sv[1];
	k->f->index = i;
	k->f->owner_pid = xr_getpid();
	k->f->priv = &xr_slab.priv[i];
	xr_store_relaxed(&k->f->priv->fd, k->fd);
	k->f->priv->fds = 1;
	k->f->own = &xr_slab.own[i];
	memset(k->f->own, 0, sizeof(*k->f->own));
	k->f->rx_state = XR_RX_RING;
	k->f->rx.slots = &k->slot;
	k->f->rx.mask = 0;
	k->f->rx.seq = 1;
	k->f->rx.byte = 0;
	xr_store_relaxed(&k->slot.head, 0);
	k->f->tx_state = XR_TX_RING;
	k->mask = POLLOUT;
	xr_store_release(&k->f->path, XR_PATH_COUNT);
	assert_true(xr_fd_set(k->fd, k->f, XR_FD_FLOW) != (uintptr_t)-1);
	return k;
}

int fake_move(struct fake *k)
{
	int r;

	k->f->link = near_link[k->link];
	xr_store_release(&k->f->path, XR_PATH_FABRIC);
	r = xr_epoll_flow_attach(k->f);
	if (r) {
		xr_store_release(&k->f->path, XR_PATH_COUNT);
		k->f->link = NULL;
	}
	return r;
}

void fake_back(struct fake *k)
{
	xr_flow_retreat(k->f, k->fd, XR_REASON_RETREAT_CALL, 0);
}

void fake_close(struct fake *k)
{
	xr_fd_take(k->fd);
	xr_epoll_flow_closed(k->f);
	xr_store_release(&k->f->path, 0);
	k->f->link = NULL;
	close(k->fd);
	close(k->peer);
	k->f = NULL;
}

static void tell(struct fake *k, int dir)
{
	/* as the ring does: publish, fence, then look for a sleeper, and tell it once */
	xr_fence_store_load();
	if (xr_load_relaxed(&k->arm[dir]))
		xr_shm_link_notify(far_link[k->link], xr_xchg(&k->arm[dir], 0), k->f->index);
}

void fake_send(struct fake *k, uint32_t n)
{
	if (!xr_fetch_add(&k->queued, n)) {
		xr_store_relaxed(&k->slot.stamp, xr_cycles());
		xr_store_release(&k->slot.head, XR_HEAD(k->f->rx.seq, n, 0, XR_OP_SEND));
	}
	xr_fetch_or(&k->mask, POLLIN);
	tell(k, 0);
}

void fake_space(struct fake *k)
{
	xr_fetch_or(&k->mask, POLLOUT);
	tell(k, 1);
}

void fake_drain(struct fake *k)
{
	uint32_t n = xr_xchg(&k->queued, 0);

	xr_count(&k->f->rx.got, n);
	k->f->rx.seq += n != 0;
	xr_fetch_and(&k->mask, ~(uint32_t)POLLIN);
}

void fake_fill(struct fake *k)
{
	xr_fetch_and(&k->mask, ~(uint32_t)POLLOUT);
	xr_epoll_flow_full(k->f);
}

uint32_t xr_flow_kid_forks(void)
{
	return 0;
}

int xr_flow_kid_lives(void)
{
	return 0;
}
