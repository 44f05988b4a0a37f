/* SPDX-License-Identifier: BSD-2-Clause */
/* What comes over the channel of a flow, and of the rendezvous before. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "carry.h"
#include "log.h"
#include "mem.h"

_Static_assert(PROOF_SECRET == XR_BRIDGE_SECRET, "what both ends know goes to the program as it is");

static void on_failed(void *flow, enum xr_reason why, uint32_t again_ms)
{
	struct carry *c = flow;
	struct xr_bridge_answer ans = { .type = XR_BRIDGE_FAILED, .id = c->id, .reason = (uint32_t)why,
					.again_ms = again_ms };

	carry_answer(c->all, &ans);
	carry_free(c);
}

/* The module's own direction of the link, where the program will read. */
static int make_dir(struct carry *c)
{
	struct xr_shm_link *l = c->link->l;
	struct xr_shm_chunks chunks;
	uint32_t slots = l->own.hdr.dir_slots;
	uint64_t off;

	c->meta = calloc(slots, sizeof(*c->meta));
	off = c->meta ? xr_shm_link_dir_get(l) : 0;
	if (!off)
		return -ENOMEM;
	xr_shm_link_chunks(l, &chunks);
	xr_shm_tx_init(&c->tx, (struct xr_shm_dir *)(void *)(l->own.base + off), slots, c->meta, &chunks,
		       l->own.base + l->own.hdr.chunk_off, l->own.hdr.chunk_off, 1u << 30);
	c->dir_off = off;
	return 0;
}

static void on_up(void *flow, struct xrdma_channel *ch, const struct meet_result *r)
{
	struct carry *c = flow;
	struct xr_bridge_answer ans = { .type = XR_BRIDGE_UP, .id = c->id, .cookie = c->cookie, .qpn = r->qpn,
					.peer_qpn = r->peer_qpn };

	if (make_dir(c)) {
		meet_cancel(c->all->meet, c);
		on_failed(c, XR_REASON_LIMIT_MEMORY, 10000);
		return;
	}
	c->ch = ch;
	c->state = CARRY_MET;
	ans.dir_off = c->dir_off;
	memcpy(ans.secret, r->secret, sizeof(ans.secret));
	memcpy(ans.gid, r->gid, sizeof(ans.gid));
	memcpy(ans.device, r->device, sizeof(ans.device) - 1);
	carry_answer(c->all, &ans);
	explicit_bzero(&ans, sizeof(ans));
}

static int hear(struct carry *c, const struct xrdma_msg *m)
{
	uint32_t off = (uint32_t)m->id, ack = (uint32_t)(m->id >> 32);
	int r;

	switch (m->imm) {
	case CARRY_READY:
		if (c->peer_ready)
			return -EPROTO;
		c->peer_ready = 1;
		c->peer_room = (uint32_t)m->id;
		return 0;
	case CARRY_START:
		if (c->peer_started)
			return -EPROTO;
		c->peer_started = c->started_due = 1;
		r = xr_shm_tx_control(&c->tx, XR_OP_START, m->id);
		/* frozen: the program left before it */
		return r == -ESTALE ? 0 : r;
	case CARRY_STARTED: {
		struct xr_view v;

		if (c->state != CARRY_ON || c->start != 1)
			return -EPROTO;
		/* the program finds it consumed, and from then on bytes may go: not the other way round */
		if (xr_shm_rx_peek(&c->rx, &v) != 1 || v.op != XR_OP_START)
			return 0;
		xr_shm_rx_take(&c->rx, &v, 0);
		if (!xr_shm_rx_commit(&c->rx) && !c->rx.frozen) {
			c->start = 2;
			c->seq = 2;
		}
		return 0;
	}
	case CARRY_DATA:
	case CARRY_ACK_ONLY:
		if (c->state != CARRY_ON || (m->imm == CARRY_ACK_ONLY && m->len))
			return -EPROTO;
		r = carry_acked(c, ack);
		if (r || m->imm == CARRY_ACK_ONLY)
			return r;
		if (off != (uint32_t)c->got || !c->peer_started || c->started_due)
			return -EPROTO;
		c->got += m->len;
		return carry_put(c, m->data, m->len);
	default:
		return -EPROTO;
	}
}

static void on_message(void *flow, struct xrdma_channel *ch, const struct xrdma_msg *m)
{
	struct carry *c = flow;
	int r;

	(void)ch;
	if (c->state == CARRY_OVER)
		return;
	if (m->imm == CARRY_STOP && c->state == CARRY_ON) {
		carry_end(c, m->id ? CARRY_LOST : CARRY_PEER_LEFT);
		return;
	}
	if (m->imm == CARRY_STOP) {
		c->lost = 1;
		return;
	}
	r = hear(c, m);
	if (!r) {
		carry_wake(c);
		return;
	}
	xr_warn("a peer host broke the protocol of a connection (message %u)", m->imm);
	if (c->state == CARRY_ON) {
		carry_end(c, CARRY_LOST);
	} else {
		c->lost = 1;
		c->ch = NULL;
		meet_cancel(c->all->meet, c);
	}
}

static void on_sent(void *flow, struct xrdma_channel *ch, uint64_t id)
{
	(void)flow;
	(void)ch;
	(void)id;
}

static void on_closed(void *flow, struct xrdma_channel *ch, int error)
{
	struct carry *c = flow;

	(void)ch;
	xr_info("the channel of a connection ended: error %d", -error);
	c->ch = NULL;
	if (c->state == CARRY_ON)
		carry_end(c, CARRY_LOST);
	else
		c->lost = 1;
}

const struct meet_ops carry_ops = {
	.up = on_up, .failed = on_failed, .message = on_message, .sent = on_sent, .closed = on_closed,
};
