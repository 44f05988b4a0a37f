/* SPDX-License-Identifier: BSD-2-Clause */
/* The helper thread: how it starts, the module that it opens, and the pair of sockets to it.  See helper.h. */
#include "hook.h"
#include "helper.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "alone.h"
#include "far.h"
#include "fdtab.h"
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "module.h"
#include "process.h"
#include "ready.h"
#include "tune.h"
#include "xrdma.h"

#define HELPER_STACK	(1u << 20)
#define AGENT_NAP_NS	2000000
#define AGENT_FLOWS	64u
#define AGENT_OWED_NS	10000000	/* between two looks at whether a socket takes more */
#define PARK_NS		200000000u	/* a call into the kernel for a device may take long */
#define RETIRE_NS	5000000000ull
#define RETIRE_AGAIN_MS	50u
#define HELPER_WAITS	64u		/* attempts at a time: those of xr_up_table */
#define HELPER_ARENA	(256ull << 20)
#define HELPER_SMALL	(32ull << 20)

enum helper_state { HELPER_NONE, HELPER_RETIRES, HELPER_RUNS, HELPER_DEAD };

static XR_FORK_DATA _Atomic uint32_t helper_state;
static XR_FORK_DATA _Atomic uint32_t helper_tid, agent_tid;	/* alone.h */
static XR_FORK_DATA int helper_pair[2] = { -1, -1 };	/* ours; its own, until it says HELLO */
static XR_FORK_DATA uint8_t helper_uuid[16];		/* what the module is called in the list of links */
static XR_FORK_DATA _Atomic uint32_t helper_why;	/* once it is dead: enum xr_reason */
static _Atomic uint32_t helper_ending, helper_parked;

/* Guards the list below, the reading of the pair, and the making of links.  Never waited for. */
static XR_FORK_DATA struct xr_lock helper_lock;
static struct helper_wait {
	uint64_t id;		/* 0: free */
	uint32_t come;
	struct xr_bridge_answer a;
} helper_wait[HELPER_WAITS];

/* Flows for the agent to look at; more of them than have a place: at all. */
static XR_FORK_DATA uint32_t agent_left[AGENT_FLOWS];
static XR_FORK_DATA _Atomic uint32_t agent_n;

/* ---- the thread ------------------------------------------------------------ */

static void helper_memory(const uint64_t by[XR_BRIDGE_FIGURES])
{
	static const enum xr_stat id[XR_BRIDGE_FIGURES] = {
		[XR_BRIDGE_MEMORY] = XR_STAT_RDMA_MEMORY, [XR_BRIDGE_HUGE] = XR_STAT_RDMA_MEMORY_HUGE,
		[XR_BRIDGE_FAR] = XR_STAT_RDMA_MEMORY_FAR, [XR_BRIDGE_MISSED] = XR_STAT_RDMA_HUGE_MISSED,
		[XR_BRIDGE_REFUSED] = XR_STAT_RDMA_NODE_REFUSED,
	};
	int i;

	for (i = 0; i < XR_BRIDGE_FIGURES; i++)
		if (by[i])
			xr_stats_add(id[i], by[i]);
}

/* It does not run again, unless it was told to go. */
static void helper_over(void)
{
	uint32_t runs = HELPER_RUNS;	/* full order: the reason is there then, and the answers that it sent */

	xr_cas(&helper_state, &runs, HELPER_DEAD);
}

/* To the end of the process, which is near. */
static void __attribute__((noreturn)) helper_park(void)
{
	xr_debug("the process ends: the module stands still");
	/* release: it is in no library any more; pairs with xr_helper_park */
	xr_store_release(&helper_parked, 1);
	for (;;)
		xr_sys5(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

static void *helper_main(void *arg)
{
	struct xr_bridge_answer hello = { .type = XR_BRIDGE_HELLO };
	struct xr_bridge_host host = {
		.abi = XR_BRIDGE_ABI, .version = xrdma_version(), .log_threshold = xr_log_threshold,
		.log_file = xr_log_path(), .device = xr_cfg.rdma_device, .key = xr_far_key(),
		.trust_fabric = xr_cfg.rdma_trust != XR_TRUST_KEY, .software = xr_cfg.rdma_software != 0,
		.nat = (int)xr_cfg.rdma_nat, .compare = xr_cfg.rdma_compare != 0,
		.timeout = xr_cfg.rendezvous_timeout, .memory = xr_cfg.max_memory,
		.spin = xr_tuned(&xr_cfg.spin), .huge_pages = xr_cfg.rdma_huge_pages != 0,
		.counted = helper_memory, .ending = &helper_ending,
	};
	const struct xr_bridge_ops *ops;
	int cmd = (int)(intptr_t)arg, r;

	/* no hook has any business with what this thread does */
	xr_helper_thread = 1;
	/* relaxed: of threads this one alone is meant */
	xr_store_relaxed(&xr_helper_any, 1);
	xr_vfork_depth = 1;
	/* release: pairs with xr_thread_goes */
	xr_store_release(&helper_tid, (uint32_t)xr_gettid());
	xr_sys2(SYS_prctl, PR_SET_NAME, "xrdma-helper");
	r = xr_thread_apart(cmd);
	if (r) {
		xr_info("no helper thread: error %d", -r);
		xr_store_relaxed(&helper_why, XR_REASON_LIMIT_THREADS);
		/* the number is the program's as well: its own end tells it */
		helper_over();
		return NULL;
	}
	xr_unix_send(cmd, &hello, sizeof(hello), NULL, 0);
	xr_store_relaxed(&xr_stats_now()->h.helper_thread, 1);
	ops = xr_module_open(&host);
	r = ops ? ops->run(&host, cmd) : -ENOENT;
	if (xr_load_acquire(&helper_ending))
		helper_park();
	if (r)
		xr_info("the module for connections to other hosts ended: error %d", -r);
	xr_store_relaxed(&xr_stats_now()->h.helper_thread, 0);
	helper_over();
	xr_sys1(SYS_close, cmd);
	return NULL;
}

static void *agent_main(void *arg);

static void pair_close(void)
{
	xr_fd_close(helper_pair[0]);
	xr_fd_close(helper_pair[1]);
	helper_pair[0] = helper_pair[1] = -1;
}

/* helper_lock held. */
static int helper_start(void)
{
	const uint64_t all = ~0ull;
	pthread_attr_t attr;
	pthread_t thread;
	uint64_t mask;
	int fds[2], i, r;

	r = xr_random(helper_uuid, sizeof(helper_uuid));
	if (!r)
		r = (int)xr_sys4(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds);
	if (r)
		return r;
	for (i = 0; i < 2; i++) {
		helper_pair[i] = xr_fd_high(fds[i]);
		if (helper_pair[i] < 0) {
			r = helper_pair[i];
			xr_sys1(SYS_close, fds[i]);
		}
	}
	if (!r)
		r = -pthread_attr_init(&attr);
	if (!r) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, HELPER_STACK);
		xr_store_relaxed(&helper_tid, XR_THREAD_COMES);
		xr_store_relaxed(&agent_tid, XR_THREAD_COMES);
		xr_store_release(&helper_state, HELPER_RUNS);
		/* a handler of the program must never run on it */
		xr_sys4(SYS_rt_sigprocmask, SIG_BLOCK, &all, &mask, sizeof(mask));
		r = -pthread_create(&thread, &attr, helper_main, (void *)(intptr_t)helper_pair[1]);
		/* without it a program that does not look is late, no more */
		if (r)
			xr_store_relaxed(&helper_tid, 0);
		if (r || pthread_create(&thread, &attr, agent_main, (void *)(intptr_t)helper_pair[0]))
			xr_store_relaxed(&agent_tid, 0);
		if (!r && !xr_load_relaxed(&agent_tid))
			xr_info("no thread for connections to other hosts that their program does not look at");
		xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, sizeof(mask));
		pthread_attr_destroy(&attr);
	}
	if (!r)
		return 0;
	xr_info("no helper thread: error %d", -r);
	pair_close();
	xr_store_relaxed(&helper_why, XR_REASON_LIMIT_THREADS);
	/* release: with it the reason is there */
	xr_store_release(&helper_state, HELPER_DEAD);
	return -ENODEV;
}

enum xr_reason xr_helper_why(void)
{
	/* acquire: see helper_start */
	if (xr_load_acquire(&helper_state) == HELPER_DEAD && xr_load_relaxed(&helper_why))
		return (enum xr_reason)xr_load_relaxed(&helper_why);
	return XR_REASON_NO_VERBS;
}

/*
 * The agent: a second thread, in the program's table of descriptors.  A program that computes, or waits for something
 * else, does not notice that a flow of its own has left the channel with bytes in it; the agent does what there is
 * to do, as another thread of the program would.
 */
static void answers_take(void);

static void agent_look(void *arg, struct xr_flow *f)
{
	(void)arg;
	xr_fds_far_look(f);
}

/*
 * A program that has sent its last byte, and shut the connection down, waits for something else and does not come
 * back to it: with TCP what the socket has yet to take would be the kernel's business.
 */
static void agent_push(void *arg, struct xr_flow *f)
{
	if (!xr_far_owes(f))
		return;
	xr_fds_far_look(f);
	*(uint32_t *)arg |= (uint32_t)xr_far_owes(f);
}

static void *agent_main(void *arg)
{
	static const struct timespec nap = { 0, AGENT_NAP_NS }, slice = { 1, 0 }, soon = { 0, AGENT_OWED_NS };
	uint32_t left[AGENT_FLOWS], n, i, owed = 0;
	int fd = (int)(intptr_t)arg;

	/* release: pairs with xr_thread_goes */
	xr_store_release(&agent_tid, (uint32_t)xr_gettid());
	xr_sys2(SYS_prctl, PR_SET_NAME, "xrdma-agent");
	while (xr_load_acquire(&helper_state) == HELPER_RUNS) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct timespec ts = owed ? soon : slice;

		xr_sys5(SYS_ppoll, &p, 1, &ts, 0, 8);
		/* the exchange: pairs with xr_far_tx_frozen */
		if (xr_xchg(&xr_far_owing, 0) | owed) {
			owed = 0;
			xr_flow_each(NULL, agent_push, &owed);
		}
		/* what another thread has taken on its way to an answer of its own is found then */
		if (!p.revents && !xr_load_relaxed(&agent_n))
			continue;
		if (xr_lock(&helper_lock))
			break;
		if (helper_pair[0] == fd)
			answers_take();
		n = xr_xchg(&agent_n, 0);
		memcpy(left, agent_left, sizeof(left));
		xr_unlock(&helper_lock);
		if ((p.revents & POLLHUP) || helper_pair[0] != fd)
			break;
		/* whoever waits for the flow has been rung, and is nearer to it */
		if (n)
			xr_sys2(SYS_nanosleep, &nap, 0);
		if (n > AGENT_FLOWS) {
			xr_flow_each(NULL, agent_look, NULL);
			n = 0;
		}
		for (i = 0; i < n; i++)
			if (left[i] < xr_slab.fresh)
				xr_fds_far_look(&xr_slab.flow[left[i]]);
	}
	return NULL;
}

/* ---- links ----------------------------------------------------------------- */

static int link_arena(struct xr_shm_arena *a)
{
	uint64_t size = xr_cfg.max_memory < HELPER_ARENA ? xr_cfg.max_memory : HELPER_ARENA;
	int r = xr_shm_arena_create(a, size, xr_slab.slots);

	return r && r != -EMFILE && r != -ENFILE ? xr_shm_arena_create(a, HELPER_SMALL, xr_slab.slots) : r;
}

/* helper_lock held: makes one, and passes it. */
static int link_make(struct xr_shm_link **out)
{
	struct xr_bridge_cmd cmd = { .type = XR_BRIDGE_LINK };
	struct xr_shm_arena own = { .fd = -1 }, far = { .fd = -1 };
	struct xr_shm_link *l = NULL;
	int conn[2] = { -1, -1 }, r;

	r = (int)xr_sys4(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, conn);
	if (r)
		return r;
	r = link_arena(&own);
	if (!r)
		r = link_arena(&far);
	if (!r)
		r = xr_random(&cmd.link, sizeof(cmd.link));
	if (!r)
		r = xr_fd_high(conn[0]);
	if (r < 0)
		goto close_all;
	conn[0] = r;
	l = xr_shm_link_new(conn[0], &own, &far);
	r = l ? (int)xr_unix_send(helper_pair[0], &cmd, sizeof(cmd), (int[]){ own.fd, far.fd, conn[1] }, 3) : -ENOMEM;
	if (r < 0)
		goto close_all;
	xr_sys1(SYS_close, conn[1]);
	xr_fd_close(l->own.fd);
	xr_fd_close(l->peer.fd);
	l->own.fd = l->peer.fd = -1;
	memcpy(l->peer_uuid, helper_uuid, sizeof(l->peer_uuid));
	l->id = cmd.link;
	xr_link_ref(l);
	xr_links_add(l);
	*out = l;
	return 0;

close_all:
	xr_sys1(SYS_close, conn[1]);
	if (l) {
		xr_shm_link_free(l);
		return r;
	}
	xr_fd_close(conn[0]);
	xr_shm_arena_destroy(&own);
	xr_shm_arena_destroy(&far);
	return r;
}

int xr_helper_link(struct xr_shm_link **out)
{
	struct xr_shm_link *l;
	int r = 0;

	if (xr_load_acquire(&helper_state) == HELPER_DEAD)
		return -ENODEV;
	/* to start a thread takes memory, from an allocator that a handler may have come upon */
	if (xr_signal_inside())
		return -EDEADLK;
	if (xr_vfork_depth || xr_trylock(&helper_lock))
		return -EAGAIN;
	if (xr_load_relaxed(&helper_state) == HELPER_NONE)
		r = helper_start();
	else if (xr_load_relaxed(&helper_state) == HELPER_RETIRES)
		r = -EAGAIN;
	if (!r) {
		l = xr_links_find(helper_uuid, 0, -1);
		/* one that was given up for its descriptors is found dead here, and not again */
		if (l && xr_shm_link_progress(l)) {
			xr_link_unref(l);
			l = NULL;
		}
		if (l)
			*out = l;
		else
			r = link_make(out);
	}
	xr_unlock(&helper_lock);
	return r;
}

/* ---- commands and answers ---------------------------------------------------- */

/* helper_lock held. */
static struct helper_wait *wait_of(uint64_t id)
{
	uint32_t i;

	for (i = 0; i < HELPER_WAITS; i++)
		if (helper_wait[i].id == id)
			return &helper_wait[i];
	return NULL;
}

int xr_helper_send(const struct xr_bridge_cmd *cmd)
{
	struct helper_wait *w = NULL;
	int r = (int)xr_load_acquire(&helper_state);

	if (r != HELPER_RUNS)
		return r == HELPER_DEAD ? -ENODEV : -EAGAIN;
	if (cmd->type == XR_BRIDGE_BEGIN) {
		if (xr_trylock(&helper_lock))
			return -EAGAIN;
		w = wait_of(0);
		if (w) {
			w->id = cmd->id;
			w->come = 0;
		}
		xr_unlock(&helper_lock);
		if (!w)
			return -EAGAIN;
	}
	r = (int)xr_unix_send(helper_pair[0], cmd, sizeof(*cmd), NULL, 0);
	if (r >= 0)
		return 0;
	if (w)
		xr_helper_forget(cmd->id);
	return r == -EAGAIN || r == -EINTR ? -EAGAIN : -ENODEV;
}

/* helper_lock held: all that has come. */
static void answers_take(void)
{
	struct xr_bridge_answer a;
	struct helper_wait *w;
	int nfds;

	for (;;) {
		nfds = 0;
		if (xr_unix_recv(helper_pair[0], &a, sizeof(a), NULL, &nfds) != (ssize_t)sizeof(a))
			return;
		if (a.type == XR_BRIDGE_HELLO) {
			xr_fd_close(helper_pair[1]);
			helper_pair[1] = -1;
			continue;
		}
		if (a.type == XR_BRIDGE_LEFT) {
			nfds = (int)xr_fetch_add(&agent_n, 1);
			if ((uint32_t)nfds < AGENT_FLOWS)
				agent_left[nfds] = a.cookie;
			continue;
		}
		w = a.id ? wait_of(a.id) : NULL;
		if (w) {
			w->a = a;
			w->come = 1;
		} else if (a.type == XR_BRIDGE_UP) {
			/* the attempt was given up while this was on its way */
			xr_unix_send(helper_pair[0], &(struct xr_bridge_cmd){ .type = XR_BRIDGE_CANCEL, .id = a.id },
				     sizeof(struct xr_bridge_cmd), NULL, 0);
		}
	}
}

int xr_helper_answer(uint64_t id, struct xr_bridge_answer *a)
{
	/* acquire: pairs with the end of the helper, whose last answers are there */
	uint32_t state = xr_load_acquire(&helper_state);
	struct helper_wait *w;
	int r = 0;

	if (xr_trylock(&helper_lock))
		return 0;
	if (helper_pair[0] >= 0)
		answers_take();
	w = wait_of(id);
	if (w && w->come) {
		*a = w->a;
		memset(w, 0, sizeof(*w));
		r = 1;
	} else if (!w || state != HELPER_RUNS) {
		r = -ENODEV;
	}
	xr_unlock(&helper_lock);
	return r;
}

void xr_helper_forget(uint64_t id)
{
	struct helper_wait *w;

	/* below a handler that came upon its own thread here: its place is lost, the flow is not */
	if (xr_lock(&helper_lock))
		return;
	w = wait_of(id);
	if (w)
		memset(w, 0, sizeof(*w));
	xr_unlock(&helper_lock);
}

/* ---- calls that are for processes of one thread -------------------------------- */

static void flow_without(void *arg, struct xr_flow *f)
{
	if (!arg && f->far && (xr_load_acquire(&f->path) & XR_PATH_FABRIC))
		xr_fds_retreat(f, XR_REASON_LIMIT_THREADS);
}

int xr_helper_retire(void)
{
	static const struct xr_bridge_answer again = { .type = XR_BRIDGE_FAILED, .again_ms = RETIRE_AGAIN_MS,
						       .reason = XR_REASON_LIMIT_THREADS };
	uint64_t end = xr_now_ns() + RETIRE_NS;
	uint32_t runs = HELPER_RUNS;
	int i, r;

	if (xr_vfork_depth || !xr_threads_alone((_Atomic uint32_t *const[]){ &helper_tid, &agent_tid }, 2))
		return -EBUSY;
	/* what the module has taken, and the peer's program has not, goes once more over TCP */
	xr_flow_each(NULL, flow_without, NULL);
	if (xr_lock(&helper_lock))
		return -EDEADLK;
	/* full order; fails where it has come to its end already */
	if (xr_cas(&helper_state, &runs, HELPER_RETIRES))
		xr_sys2(SYS_shutdown, helper_pair[0], SHUT_RDWR);
	/* the agent takes this lock on its way out */
	xr_unlock(&helper_lock);
	r = xr_thread_goes(&helper_tid, end);
	if (!r)
		r = xr_thread_goes(&agent_tid, end);
	if (r || runs == HELPER_DEAD || xr_lock(&helper_lock))
		return r;
	pair_close();
	/* those that wait ask the next one */
	for (i = 0; i < (int)HELPER_WAITS; i++)
		helper_wait[i] = (struct helper_wait){ helper_wait[i].id, 1, again };
	xr_store_relaxed(&agent_n, 0);
	xr_store_release(&helper_state, HELPER_NONE);
	xr_unlock(&helper_lock);
	/* hears that they are dead */
	xr_links_progress();
	return 0;
}

void xr_helper_park(void)
{
	static const struct timespec nap = { 0, 50000 };
	uint64_t end = xr_now_ns() + PARK_NS;
	uint32_t tid = xr_load_acquire(&helper_tid);

	if (!tid || xr_load_acquire(&helper_state) != HELPER_RUNS)
		return;
	/* release: before the end of the pair, which it hears of */
	xr_store_release(&helper_ending, 1);
	xr_sys2(SYS_shutdown, helper_pair[0], SHUT_RDWR);
	/* acquire: as above */
	while (!xr_load_acquire(&helper_parked) && xr_ns_left(end) &&
	       xr_sys3(SYS_tgkill, xr_getpid(), tid, 0) != -ESRCH)
		xr_sys2(SYS_nanosleep, &nap, NULL);
}

void xr_helper_forked(void)
{
	xr_store_relaxed(&helper_ending, 0);
	pair_close();
	memset(helper_wait, 0, sizeof(helper_wait));
	xr_store_relaxed(&agent_n, 0);
	xr_store_relaxed(&helper_lock.owner, 0);
	xr_store_relaxed(&helper_why, 0);
	xr_store_relaxed(&helper_tid, 0);
	xr_store_relaxed(&agent_tid, 0);
	xr_store_relaxed(&helper_state, HELPER_NONE);
}
