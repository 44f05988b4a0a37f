/* SPDX-License-Identifier: BSD-2-Clause */
/* The thread of the module: what the program asks, what rings, what is due. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "carry.h"
#include "log.h"
#include "mem.h"
#include "xrdma.h"

#define VISIBLE __attribute__((visibility("default")))

/* What a sleep of the thread ends with. */
enum { RANG_CMD = 1, RANG_MEET = 2, RANG_BELL = 4, RANG_LINK = 8, RANG_ALL = 15 };

static int watch(int epoll, int fd, uint32_t what)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = what };

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* 0; -EPIPE: the program is gone. */
static int cmd_take(struct carry_all *a, int epoll)
{
	struct xr_bridge_cmd cmd;
	struct carry *c;
	ssize_t n;

	for (;;) {
		int fds[3], nfds = 3, r = 0;

		n = xr_unix_recv(a->cmd, &cmd, sizeof(cmd), fds, &nfds);
		if (n == -EAGAIN || n == -EINTR)
			return 0;
		if (n != (ssize_t)sizeof(cmd))
			return -EPIPE;
		if (cmd.type == XR_BRIDGE_LINK && nfds == 3) {
			r = carry_link_new(a, cmd.link, fds);
			xr_fd_close(fds[0]);
			xr_fd_close(fds[1]);
			if (!r)
				r = watch(epoll, a->links->bell, RANG_BELL);
			if (!r)
				r = watch(epoll, a->links->l->conn, RANG_LINK);
			if (r)
				xr_info("the memory of the program cannot be had: error %d", -r);
			continue;
		}
		while (nfds > 0)
			xr_fd_close(fds[--nfds]);
		switch (cmd.type) {
		case XR_BRIDGE_BEGIN:
			c = carry_begin(a, &cmd);
			if (c) {
				meet_begin(a->meet, c, &cmd.tuple, c->connecting);
				/* c may be gone: then nobody has that name */
				meet_tcp(a->meet, c, cmd.rtt_us * 1000ull);
				break;
			}
			carry_answer(a, &(struct xr_bridge_answer){ .type = XR_BRIDGE_FAILED, .id = cmd.id,
								    .reason = XR_REASON_LIMIT_MEMORY,
								    .again_ms = 10000 });
			break;
		case XR_BRIDGE_CANCEL:
			carry_cancel(a, cmd.id);
			break;
		case XR_BRIDGE_ATTACH:
			carry_attach(a, &cmd);
			break;
		}
	}
}

static void rung(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	struct carry_all *a = arg;
	struct carry *c;

	if (cookie < a->cookies && a->by_cookie[cookie] && a->by_cookie[cookie]->link->l == l)
		carry_wake(a->by_cookie[cookie]);
	for (c = cookie == UINT32_MAX ? a->flows : NULL; c; c = c->next)
		carry_wake(c);
}

/* What has rung: how many links did. */
static int links_look(struct carry_all *a)
{
	struct carry_link *k;
	int n = 0;

	for (k = a->links; k; k = k->next)
		if (xr_shm_link_pending(k->l, CARRY_WAITER)) {
			xr_shm_link_harvest(k->l, CARRY_WAITER, rung, a);
			n++;
		}
	return n;
}

/* Links whose program has let go of them. */
static void links_reap(struct carry_all *a, int epoll)
{
	struct carry_link *k, *next;
	struct carry *c, *after;

	for (k = a->links; k; k = next) {
		next = k->next;
		xr_shm_link_progress(k->l);
		if (!xr_load_acquire(&k->l->dead))
			continue;
		for (c = a->flows; c; c = after) {
			after = c->next;
			if (c->link != k)
				continue;
			if (c->state == CARRY_ON)
				carry_end(c, CARRY_QUIET);
			else if (c->state != CARRY_OVER)
				meet_cancel(a->meet, c);
			carry_free(c);
		}
		epoll_ctl(epoll, EPOLL_CTL_DEL, k->bell, NULL);
		carry_link_close(a, k);
	}
}

static int links_sleep(struct carry_all *a, uint32_t on)
{
	struct carry_link *k;
	int pending = 0;

	for (k = a->links; k; k = k->next) {
		xr_shm_link_sleeping(k->l, CARRY_WAITER, on);
		pending |= xr_shm_link_pending(k->l, CARRY_WAITER);
	}
	return pending;
}

static void bells_drain(struct carry_all *a)
{
	struct carry_link *k;
	uint64_t n;

	for (k = a->links; k; k = k->next)
		if (read(k->bell, &n, sizeof(n)) < 0 && errno != EAGAIN)
			xr_debug("a bell is broken");
}

/* Channels that took no more: whatever happened, they may now. */
static void unblock(struct carry_all *a)
{
	struct carry *c;

	for (c = a->flows; c; c = c->next)
		if (c->blocked)
			carry_wake(c);
}

/* ---- busy waiting -------------------------------------------------------------- */

/*
 * While messages come one after the other the thread looks for the next one instead of sleeping: a sleep
 * costs a wake-up on the way of each message, a system call to arm, and one for whoever rings.  The bounds are those of
 * the program's own threads (preload/waiter.c).
 */
#define SPIN_GHZ	5 / 2		/* cycles of a nanosecond, about */
#define SPIN_LEAST	2500u		/* cycles: of one that never hits */
#define SPIN_ROUND	8		/* looks between two yields */
#define SPIN_SWITCH	3000u		/* cycles: a yield that took longer ran somebody else */
#define SPIN_QUIET	16		/* yields that came back at once until the core is ours */
#define SPIN_HOG	1000000u	/* cycles: whoever ran does not give the core back soon */
#define SPIN_LONG	2500000u	/* cycles, about a ms: then what takes system calls has its turn */

struct spin {
	uint64_t max, budget;	/* cycles */
	uint32_t crowded;	/* > 0: others want this core */
};

static int spin_turn(struct carry_all *a)
{
	int n = meet_poll(a->meet);

	if (n)
		unblock(a);
	n += links_look(a);
	carry_work(a);
	return n || a->work;
}

/* 1: there is more to do, or to look at. */
static int spin(struct spin *s, struct carry_all *a)
{
	uint64_t begun = xr_cycles(), last = begun, now, c;
	int hit = 0, waited = 0, i;

	for (;;) {
		for (i = s->crowded ? SPIN_ROUND - 1 : 0; i < SPIN_ROUND; i++) {
			if (spin_turn(a)) {
				last = xr_cycles();
				hit |= waited;
			} else {
				xr_cpu_relax();
			}
		}
		c = xr_cycles();
		if (c - begun > SPIN_LONG)
			break;
		if (c - last > s->budget) {
			s->budget = s->budget / 2 > SPIN_LEAST ? s->budget / 2 : SPIN_LEAST;
			return 0;
		}
		sched_yield();
		now = xr_cycles();
		waited = 1;
		if (now - c >= SPIN_HOG) {
			s->budget = SPIN_LEAST;
			return spin_turn(a);
		}
		s->crowded = now - c >= SPIN_SWITCH ? SPIN_QUIET : s->crowded - (s->crowded != 0);
		if (hit)
			s->budget = 2 * s->budget < s->max ? 2 * s->budget : s->max;
		hit = 0;
	}
	return 1;
}

/* After a sleep: would it have paid not to? */
static void spin_slept(struct spin *s, uint64_t cycles)
{
	if (cycles <= 2 * s->max)
		s->budget = 4 * s->budget < s->max ? 4 * s->budget : s->max;
}

static uint32_t thread_sleep(struct carry_all *a, int epoll, int wait)
{
	struct epoll_event ev[8];
	uint32_t rang = 0;
	int i, n = 0;

	if (!links_sleep(a, 1))
		n = epoll_wait(epoll, ev, 8, wait);
	links_sleep(a, 0);
	for (i = 0; i < n; i++)
		rang |= ev[i].data.u32;
	if (rang & RANG_BELL)
		bells_drain(a);
	return rang;
}

static int loop(struct carry_all *a, int epoll, uint64_t spin_ns)
{
	struct spin s = { .max = XR_BRIDGE_SPIN * spin_ns * SPIN_GHZ, .crowded = SPIN_QUIET };
	uint32_t rang = RANG_ALL;
	uint64_t now, due, all = 0;
	int wait, more, said;

	s.budget = s.max;
	for (;;) {
		if ((rang & RANG_CMD) && cmd_take(a, epoll))
			return 0;
		if (rang & RANG_LINK)
			links_reap(a, epoll);
		/* what takes system calls, and has not rung, while there is no sleep that would tell */
		rang = 0;
		if (xr_cycles() - all > SPIN_LONG) {
			all = xr_cycles();
			rang = RANG_ALL;
		}
		more = a->flows && s.max && spin(&s, a);
		now = xr_now_ns();
		wait = meet_step(a->meet, now);
		unblock(a);
		links_look(a);
		said = a->work != NULL;
		more |= carry_work(a);
		due = carry_tick(a, now);
		if (more || a->work)
			continue;
		/* what was said just now may have completed already: armed again before the sleep */
		if (wait && said)
			wait = meet_step(a->meet, xr_now_ns());
		if (!wait || a->work)
			continue;
		if (due) {
			int ms = due <= now ? 0 : (int)((due - now) / 1000000) + 1;

			wait = wait < 0 || ms < wait ? ms : wait;
		}
		now = xr_cycles();
		rang = thread_sleep(a, epoll, wait);
		spin_slept(&s, xr_cycles() - now);
	}
}

static int bridge_run(const struct xr_bridge_host *h, int cmd)
{
	struct meet_config cfg = { .device = h->device, .key = h->key, .trust_fabric = h->trust_fabric,
				   .software = h->software, .nat = (enum xr_nat)h->nat, .compare = h->compare,
				   .timeout = h->timeout, .huge_pages = h->huge_pages, .counted = h->counted };
	struct carry_all *a = calloc(1, sizeof(*a));
	int epoll = epoll_create1(EPOLL_CLOEXEC), r;

	r = !a ? -ENOMEM : epoll < 0 ? -errno : meet_open(&a->meet, &cfg, &carry_ops, a);
	if (r)
		goto free_all;
	a->cmd = cmd;
	xr_shm_budget(h->memory);
	r = watch(epoll, cmd, RANG_CMD);
	if (!r)
		r = watch(epoll, meet_fd(a->meet), RANG_MEET);
	if (!r)
		r = loop(a, epoll, h->spin);
	/* acquire: pairs with xr_helper_park */
	if (xr_load_acquire(h->ending))
		return 0;
	while (a->flows) {
		carry_end(a->flows, CARRY_LOST);
		carry_free(a->flows);
	}
	meet_close(a->meet);
	while (a->links)
		carry_link_close(a, a->links);
	free(a->by_cookie);
free_all:
	if (epoll >= 0)
		close(epoll);
	free(a);
	return r;
}

static const struct xr_bridge_ops bridge_ops = { XR_BRIDGE_ABI, bridge_run };

VISIBLE const struct xr_bridge_ops *xr_bridge_module(const struct xr_bridge_host *h);
const struct xr_bridge_ops *xr_bridge_module(const struct xr_bridge_host *h)
{
	if (h->abi != XR_BRIDGE_ABI || strcmp(h->version, xrdma_version()))
		return NULL;
	xr_log_init((enum xr_log_level)h->log_threshold, h->log_file);
	return &bridge_ops;
}
