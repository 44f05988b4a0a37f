/* SPDX-License-Identifier: BSD-2-Clause */
/* The modules' surroundings: helper, rendezvous, channel, link.  See fabric.h. */
#include "fabric.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "core/shm_link.h"
#include "preload/helper.h"

struct fabric X __attribute__((aligned(128)));
int hosts;

static int at;			/* the module that runs */

_Static_assert(sizeof(struct fabric) % 8 == 0, "hashed by words");
_Static_assert(sizeof(struct carry) <= sizeof(X.pool[0].big[0]), "pool");

/* ---- memory of the modules ------------------------------------------------------------ */

void *model_malloc(size_t n)
{
	struct pool *p = &X.pool[at];
	uint32_t i;

	for (i = 0; n <= sizeof(p->small[0]) && i < 6; i++)
		if (!(p->smalls & 1u << i)) {
			p->smalls |= (uint8_t)(1u << i);
			return p->small[i];
		}
	for (i = 0; n > sizeof(p->small[0]) && n <= sizeof(p->big[0]) && i < 2; i++)
		if (!(p->bigs & 1u << i)) {
			p->bigs |= (uint8_t)(1u << i);
			return p->big[i];
		}
	return NULL;
}

/* What is free is zero. */
void *model_calloc(size_t n, size_t size)
{
	return model_malloc(n * size);
}

void *model_realloc(void *m, size_t n)
{
	(void)m, (void)n;
	abort();
}

void model_free(void *m)
{
	struct pool *p = &X.pool[at];
	uint32_t i;

	for (i = 0; i < 6; i++)
		if (m == p->small[i]) {
			memset(m, 0, sizeof(p->small[i]));
			p->smalls &= (uint8_t)~(1u << i);
		}
	for (i = 0; i < 2; i++)
		if (m == p->big[i]) {
			memset(m, 0, sizeof(p->big[i]));
			p->bigs &= (uint8_t)~(1u << i);
		}
}

/* ---- the link, from the module's side ----------------------------------------------------- */

static int host_of(const struct xr_shm_link *l)
{
	return l == &X.link[1];
}

static uint32_t chunk_get(void *ctx)
{
	int e = host_of(ctx);
	uint32_t i;

	for (i = 0; i < CHUNKS; i++)
		if (!(X.chunk_used[e] & 1u << i)) {
			X.chunk_used[e] |= (uint8_t)(1u << i);
			return i;
		}
	return XR_NO_CHUNK;
}

static void chunk_put(void *ctx, uint32_t i)
{
	int e = host_of(ctx);

	wrong_if(i >= CHUNKS || !(X.chunk_used[e] & 1u << i), "a chunk is given back twice");
	X.chunk_used[e] &= (uint8_t)~(1u << i);
}

void xr_shm_link_chunks(struct xr_shm_link *l, struct xr_shm_chunks *c)
{
	*c = (struct xr_shm_chunks){ chunk_get, chunk_put, l };
}

uint64_t xr_shm_link_dir_get(struct xr_shm_link *l)
{
	int e = host_of(l);
	uint32_t i;

	for (i = 0; i < DIRS; i++)
		if (!(X.dirs[e] & 1u << i)) {
			X.dirs[e] |= (uint8_t)(1u << i);
			return offsetof(struct fabric, block) + (e * DIRS + i) * sizeof(struct block);
		}
	return 0;
}

struct xr_shm_dir *xr_shm_link_peer_dir(struct xr_shm_link *l, uint64_t off)
{
	return &W.block[host_of(l)][off - 1].dir;
}

struct xr_shm_link *xr_shm_link_new(int conn, const struct xr_shm_arena *own, const struct xr_shm_arena *peer)
{
	(void)conn, (void)own, (void)peer;
	abort();
}

int xr_shm_link_bell(struct xr_shm_link *l, uint32_t waiter) { (void)l, (void)waiter; abort(); }
int xr_shm_arena_attach(struct xr_shm_arena *a, int fd) { (void)a, (void)fd; abort(); }

void fabric_ring(int e)
{
	X.rung[e] = 1;
}

/* ---- the helper: commands and answers ------------------------------------------------------- */

static void command(int e, const struct xr_bridge_cmd *cmd)
{
	if (X.ncmd[e] == 3)
		abort();
	X.cmd[e][X.ncmd[e]++] = *cmd;
}

int xr_helper_link(struct xr_shm_link **l)
{
	xr_link_ref(&W.link[cur]);
	*l = &W.link[cur];
	return 0;
}

int xr_helper_send(const struct xr_bridge_cmd *cmd)
{
	if (cmd->type == XR_BRIDGE_BEGIN)
		X.waits[cur] = 1;
	command(cur, cmd);
	return 0;
}

int xr_helper_answer(uint64_t id, struct xr_bridge_answer *a)
{
	(void)id;
	if (!X.answered[cur])
		return 0;
	*a = X.answer[cur];
	memset(&X.answer[cur], 0, sizeof(X.answer[cur]));
	X.answered[cur] = X.waits[cur] = 0;
	return 1;
}

void xr_helper_forget(uint64_t id)
{
	(void)id;
	memset(&X.answer[cur], 0, sizeof(X.answer[cur]));
	X.answered[cur] = X.waits[cur] = 0;
}

enum xr_reason xr_helper_why(void) { return XR_REASON_FABRIC_LOST; }

ssize_t xr_unix_send(int fd, const void *msg, size_t len, const int *fds, int nfds)
{
	const struct xr_bridge_answer *a = msg;

	(void)fds, (void)nfds;
	/* LEFT: for a program that does not look; here every one does in the end */
	if (a->type == XR_BRIDGE_LEFT)
		return (ssize_t)len;
	if (X.waits[fd]) {
		X.answer[fd] = *a;
		X.answered[fd] = 1;
	} else if (a->type == XR_BRIDGE_UP) {
		command(fd, &(struct xr_bridge_cmd){ .type = XR_BRIDGE_CANCEL, .id = a->id });
	}
	return (ssize_t)len;
}

/* ---- the rendezvous and the channel ----------------------------------------------------------- */

static struct pipe *pipe_of(int e, const void *flow)
{
	uint32_t i;

	for (i = 0; i < PIPES; i++)
		if (flow && X.pipe[i].flow[e] == flow)
			return &X.pipe[i];
	return NULL;
}

void meet_begin(struct meet *m, void *flow, const struct xr_tuple *t, int connecting)
{
	struct pipe *p;
	int e = at;

	(void)m, (void)t, (void)connecting;
	X.meeting[e] = flow;
	for (p = X.pipe; p < X.pipe + PIPES; p++)
		if (!p->number && X.meeting[0] && X.meeting[1])
			break;
	if (p == X.pipe + PIPES)
		return;
	memcpy(p->flow, X.meeting, sizeof(p->flow));
	p->up[0] = p->up[1] = 1;
	p->number = ++X.meetings;
	memset(X.meeting, 0, sizeof(X.meeting));
}

static void leave(struct pipe *p, int e)
{
	p->flow[e] = NULL;
	p->up[e] = 0;
	p->left[e] = 1;
	p->n[e] = 0;
	memset(p->q[e], 0, sizeof(p->q[e]));
	if (!p->flow[1 - e])
		memset(p, 0, sizeof(*p));
}

/* Time is not modelled. */
void meet_quiet(struct meet *m, void *flow)
{
	(void)m, (void)flow;
}

void meet_cancel(struct meet *m, void *flow)
{
	struct pipe *p = pipe_of(at, flow);

	(void)m;
	if (X.meeting[at] == flow)
		X.meeting[at] = NULL;
	if (p)
		leave(p, at);
}

int xrdma_send_msg(struct xrdma_channel *ch, const struct xrdma_msg *m)
{
	struct pipe *p = (struct pipe *)(void *)ch;
	struct message *to = &p->q[1 - at][p->n[1 - at]];

	/* nobody is there: what is sent is lost, as this end will hear */
	if (!p->flow[1 - at])
		return 0;
	if (p->n[1 - at] == MESSAGES)
		return -EAGAIN;
	if (m->len > PAYLOAD)
		abort();
	to->id = m->id;
	to->imm = m->imm;
	to->len = (uint32_t)m->len;
	if (m->len)
		memcpy(to->data, m->data, m->len);
	p->n[1 - at]++;
	return 0;
}

/* ---- steps ------------------------------------------------------------------------------------- */

static void take_commands(int e)
{
	uint32_t i, n = X.ncmd[e];
	struct carry_all *a = &X.all[e];
	struct xr_bridge_cmd cmd[3];
	struct carry *c;

	memcpy(cmd, X.cmd[e], sizeof(cmd));
	memset(X.cmd[e], 0, sizeof(X.cmd[e]));
	X.ncmd[e] = 0;
	for (i = 0; i < n; i++) {
		/* as cmd_take of bridge/module.c */
		switch (cmd[i].type) {
		case XR_BRIDGE_BEGIN:
			c = carry_begin(a, &cmd[i]);
			if (c)
				meet_begin(a->meet, c, &cmd[i].tuple, c->connecting);
			else
				carry_answer(a, &(struct xr_bridge_answer){
					.type = XR_BRIDGE_FAILED, .id = cmd[i].id,
					.reason = XR_REASON_LIMIT_MEMORY, .again_ms = 10000 });
			break;
		case XR_BRIDGE_CANCEL:
			carry_cancel(a, cmd[i].id);
			break;
		case XR_BRIDGE_ATTACH:
			carry_attach(a, &cmd[i]);
			break;
		}
	}
}

static int blocked(const struct carry *c, int e)
{
	const struct pipe *p = (const struct pipe *)(const void *)c->ch;

	return c->blocked && p && p->n[1 - e] < MESSAGES;
}

static void work(int e)
{
	struct carry_all *a = &X.all[e];
	struct carry *c;

	take_commands(e);
	for (c = a->flows; c; c = c->next)
		if (blocked(c, e) || X.rung[e])
			carry_wake(c);
	X.rung[e] = 0;
	while (carry_work(a))
		;
}

static struct pipe *to_hear(int e, enum fabric_step what)
{
	struct pipe *p;

	for (p = X.pipe; p < X.pipe + PIPES; p++) {
		if (!p->flow[e])
			continue;
		if (what == FABRIC_UP && p->up[e])
			return p;
		if (what == FABRIC_HEAR && p->n[e] && !p->up[e])
			return p;
		if (what == FABRIC_CLOSED && (p->dying || (p->left[1 - e] && !p->n[e])))
			return p;
	}
	return NULL;
}

/* Flows that are over, and whose program looks no more: carry_tick frees them. */
static int to_reap(const struct carry *c)
{
	return c->state == CARRY_OVER && (c->rx.dir->state & (XR_DIR_CLOSED | XR_DIR_GONE) || c->rx.dir->gen != c->gen);
}

int fabric_may(enum fabric_step what, int e)
{
	const struct carry *c;
	uint32_t i;

	if (!hosts)
		return 0;
	if (what == FABRIC_DIES) {
		for (i = 0; i < PIPES && X.deaths && !e; i++)
			if (X.pipe[i].number && !X.pipe[i].dying)
				return 1;
		return 0;
	}
	if (X.gone[e])
		return 0;
	switch (what) {
	case FABRIC_WORK:
		for (c = X.all[e].flows; c; c = c->next)
			if (blocked(c, e) || (X.rung[e] && c->state == CARRY_ON))
				return 1;
		return X.ncmd[e] || X.all[e].work;
	case FABRIC_TICK:
		for (c = X.all[e].flows; c; c = c->next)
			if (to_reap(c))
				return 1;
		return X.all[e].ack_at != 0;
	default:
		return to_hear(e, what) != NULL;
	}
}

static void up(struct pipe *p, int e)
{
	struct meet_result r = { .device = "model" };
	uint32_t i;

	/* the host's and the caller's nonce, other ones each time */
	for (i = 0; i < PROOF_SECRET; i++)
		r.secret[i] = (uint8_t)((i < 16 ? 0x80 : 0xc0) + p->number);
	p->up[e] = 0;
	carry_ops.up(p->flow[e], (struct xrdma_channel *)(void *)p, &r);
}

static void hear(struct pipe *p, int e)
{
	struct message m = p->q[e][0];

	p->n[e]--;
	memmove(p->q[e], p->q[e] + 1, p->n[e] * sizeof(m));
	memset(&p->q[e][p->n[e]], 0, sizeof(m));
	carry_ops.message(p->flow[e], (struct xrdma_channel *)(void *)p,
			  &(struct xrdma_msg){ .data = m.data, .len = m.len, .id = m.id, .imm = m.imm });
}

static void closed(struct pipe *p, int e)
{
	void *flow = p->flow[e];
	int met = !p->up[e];

	leave(p, e);
	if (met)
		carry_ops.closed(flow, (struct xrdma_channel *)(void *)p, -ECONNRESET);
	else
		carry_ops.failed(flow, XR_REASON_FABRIC_LOST, 1);
}

void fabric_do(enum fabric_step what, int e)
{
	int was = coarse, was_cur = cur;
	struct carry_all *a = &X.all[e];
	uint32_t i;

	/* a module's step is one: between two of them everything else may happen */
	coarse = 1;
	cur = at = e;
	switch (what) {
	case FABRIC_WORK:
		work(e);
		break;
	case FABRIC_HEAR:
		hear(to_hear(e, what), e);
		break;
	case FABRIC_UP:
		up(to_hear(e, what), e);
		break;
	case FABRIC_CLOSED:
		closed(to_hear(e, what), e);
		break;
	case FABRIC_TICK:
		carry_tick(a, UINT64_MAX / 2);
		break;
	default:
		X.deaths--;
		for (i = 0; i < PIPES; i++)
			X.pipe[i].dying = X.pipe[i].number != 0;
	}
	/* time is no part of a state */
	a->ack_at = a->ack_at != 0;
	a->reap_at = a->reap_at != 0;
	coarse = was;
	cur = was_cur;
}

static void settle(struct xr_shm_tx *tx, struct xr_shm_rx *rx)
{
	uint64_t arm = (uint32_t)rx->dir->arm, tx_arm = rx->dir->tx_arm & 0xffffffff0000ffffull;

	rx->arm_gen = rx->dir->arm == tx->arm_seen ? 1 : 2;
	tx->arm_seen = tx->arm_seen == rx->dir->arm ? arm | 1ull << 32 : 0;
	rx->dir->arm = arm | (uint64_t)rx->arm_gen << 32;
	tx->tx_gen = (uint32_t)rx->dir->tx_arm == rx->tx_arm_seen ? 1 : 2;
	rx->tx_arm_seen = tx->tx_gen == 1 ? (uint32_t)tx_arm | 1u << 16 : 0;
	rx->dir->tx_arm = tx_arm | (uint64_t)tx->tx_gen << 16;
}

void fabric_settle(void)
{
	struct carry *c;
	int e;

	for (e = 0; e < 2; e++)
		for (c = X.all[e].flows; c; c = c->next) {
			if (c->state != CARRY_ON || W.flow[e].tx.dir != c->rx.dir || W.flow[e].rx.dir != c->tx.dir)
				continue;
			settle(&W.flow[e].tx, &c->rx);
			settle(&c->tx, &W.flow[e].rx);
		}
}

void fabric_pump(void)
{
	int e, n, any;

	if (!hosts)
		return;
	for (n = 0, any = 1; any && n < 64; n++) {
		any = 0;
		for (e = 0; e < 2; e++) {
			enum fabric_step s;

			for (s = FABRIC_WORK; s < FABRIC_TICK; s++)
				if (fabric_may(s, e)) {
					fabric_do(s, e);
					any = 1;
				}
			/* what little is consumed is told after a while, again and again */
			if (!any && n < 48 && fabric_may(FABRIC_TICK, e)) {
				fabric_do(FABRIC_TICK, e);
				n = n < 40 ? 40 : n;
				any = 1;
			}
		}
	}
}

void fabric_killed(int e)
{
	struct pipe *p;

	if (!hosts)
		return;
	X.gone[e] = 1;
	X.meeting[e] = NULL;
	for (p = X.pipe; p < X.pipe + PIPES; p++)
		if (p->flow[e]) {
			p->dying = 1;
			leave(p, e);
		}
}

void fabric_start(void)
{
	int e;

	memset(&X, 0, sizeof(X));
	xr_slab.far = hosts ? X.far : NULL;
	for (e = 0; e < 2; e++) {
		struct xr_shm_link *l = &X.link[e];
		struct carry_all *a = &X.all[e];

		l->own = (struct xr_shm_arena){ .base = (uint8_t *)&X, .size = sizeof(X), .fd = -1 };
		l->own.hdr.dir_slots = SLOTS;
		l->own.hdr.chunk_off = offsetof(struct fabric, chunk) + (size_t)e * sizeof(X.chunk[0]);
		l->peer = (struct xr_shm_arena){ .base = W.chunk[e][0], .size = sizeof(W.chunk[0]), .fd = -1 };
		l->peer.hdr.dir_slots = SLOTS;
		W.link[e].id = l->id = (uint64_t)e + 1;
		X.klink[e].l = l;
		a->cmd = e;
		a->slots = SLOTS;
		a->links = &X.klink[e];
		a->by_cookie = X.cookie[e];
		a->cookies = 4;
	}
}
