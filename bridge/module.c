/* SPDX-License-Identifier: BSD-2-Clause */
/* The thread of the module: what the program asks, what rings, what is due. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "carry.h"
#include "log.h"
#include "mem.h"
#include "xrdma.h"

#define VISIBLE __attribute__((visibility("default")))

/* 0; -EPIPE: the program is gone. */
static int cmd_take(struct carry_all *a, int epoll)
{
	struct epoll_event ev = { .events = EPOLLIN };
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
			if (!r && epoll_ctl(epoll, EPOLL_CTL_ADD, a->links->bell, &ev))
				r = -errno;
			if (r)
				xr_info("the memory of the program cannot be had: error %d", -r);
			continue;
		}
		while (nfds > 0)
			xr_fd_close(fds[--nfds]);
		switch (cmd.type) {
		case XR_BRIDGE_BEGIN:
			c = carry_begin(a, &cmd);
			if (c)
				meet_begin(a->meet, c, &cmd.tuple, c->connecting);
			else
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

/* What has rung; links whose program has let go of them. */
static void links_look(struct carry_all *a, int epoll)
{
	struct carry_link *k, *next;
	struct carry *c, *after;

	for (k = a->links; k; k = next) {
		next = k->next;
		if (xr_shm_link_pending(k->l, CARRY_WAITER))
			xr_shm_link_harvest(k->l, CARRY_WAITER, rung, a);
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

static int loop(struct carry_all *a, int epoll)
{
	struct epoll_event ev[8];
	struct carry_link *k;
	uint64_t now, due;
	int wait, more;

	for (;;) {
		if (cmd_take(a, epoll))
			return 0;
		now = xr_now_ns();
		wait = meet_step(a->meet, now);
		unblock(a);
		links_look(a, epoll);
		more = carry_work(a);
		due = carry_tick(a, now);
		if (more || a->work)
			continue;
		/* what was said just now may have completed already: armed again before the sleep */
		if (wait)
			wait = meet_step(a->meet, xr_now_ns());
		if (!wait || a->work)
			continue;
		if (due) {
			int ms = due <= now ? 0 : (int)((due - now) / 1000000) + 1;

			wait = wait < 0 || ms < wait ? ms : wait;
		}
		if (!links_sleep(a, 1))
			epoll_wait(epoll, ev, 8, wait);
		links_sleep(a, 0);
		bells_drain(a);
		for (k = a->links; k; k = k->next)
			xr_shm_link_progress(k->l);
	}
}

static int bridge_run(const struct xr_bridge_host *h, int cmd)
{
	struct meet_config cfg = { .device = h->device, .key = h->key, .trust_fabric = h->trust_fabric,
				   .software = h->software, .timeout = h->timeout };
	struct epoll_event ev = { .events = EPOLLIN };
	struct carry_all *a = calloc(1, sizeof(*a));
	int epoll = epoll_create1(EPOLL_CLOEXEC), r;

	r = !a ? -ENOMEM : epoll < 0 ? -errno : meet_open(&a->meet, &cfg, &carry_ops, a);
	if (r)
		goto free_all;
	a->cmd = cmd;
	xr_shm_budget(h->memory);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, cmd, &ev) || epoll_ctl(epoll, EPOLL_CTL_ADD, meet_fd(a->meet), &ev))
		r = -errno;
	if (!r)
		r = loop(a, epoll);
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
