/* SPDX-License-Identifier: BSD-2-Clause */
/* Flows between a program's rings and a channel, see carry.h. */
#include "carry.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "log.h"
#include "mem.h"

#define CARRY_TURN	(1u << 20)	/* bytes of one flow before others have their turn */
#define CARRY_WINDOW	(1u << 30)	/* the sender's ring is what bounds it */

/* ---- links ----------------------------------------------------------------- */

int carry_link_new(struct carry_all *a, uint64_t id, const int fds[3])
{
	struct xr_shm_arena peer = { .fd = -1 }, own = { .fd = -1 };
	struct carry_link *k = calloc(1, sizeof(*k));
	int r = k ? xr_shm_arena_attach(&peer, fds[0]) : -ENOMEM;

	if (!r)
		r = xr_shm_arena_attach(&own, fds[1]);
	if (!r) {
		k->l = xr_shm_link_new(fds[2], &own, &peer);
		r = k->l ? 0 : -ENOMEM;
	}
	if (r) {
		xr_shm_arena_destroy(&peer);
		xr_shm_arena_destroy(&own);
		xr_fd_close(fds[2]);
		free(k);
		return r;
	}
	k->l->id = id;
	k->bell = xr_shm_link_bell(k->l, CARRY_WAITER);
	k->next = a->links;
	a->links = k;
	return k->bell < 0 ? k->bell : 0;
}

void carry_link_close(struct carry_all *a, struct carry_link *k)
{
	struct carry_link **pp = &a->links;

	while (*pp != k)
		pp = &(*pp)->next;
	*pp = k->next;
	xr_shm_link_free(k->l);
	free(k);
}

/* ---- flows: beginning and end ------------------------------------------------ */

void carry_answer(const struct carry_all *a, const struct xr_bridge_answer *ans)
{
	/* without room for it the program's attempt stays without one, and the flow on TCP */
	if (xr_unix_send(a->cmd, ans, sizeof(*ans), NULL, 0) < 0)
		xr_info("an answer to the program was lost");
}

static uint32_t cookie_take(struct carry_all *a, struct carry *c)
{
	uint32_t i, n = a->cookies ? 2 * a->cookies : 64;
	struct carry **p;

	for (i = 0; i < a->cookies; i++)
		if (!a->by_cookie[i])
			break;
	if (i == a->cookies) {
		p = realloc(a->by_cookie, n * sizeof(struct carry *));
		if (!p)
			return UINT32_MAX;
		memset(p + a->cookies, 0, (n - a->cookies) * sizeof(struct carry *));
		a->by_cookie = p;
		a->cookies = n;
	}
	a->by_cookie[i] = c;
	return i;
}

struct carry *carry_begin(struct carry_all *a, const struct xr_bridge_cmd *cmd)
{
	struct carry_link *k;
	struct carry *c;

	for (k = a->links; k && k->l->id != cmd->link; k = k->next)
		;
	c = k ? calloc(1, sizeof(*c)) : NULL;
	if (!c)
		return NULL;
	c->all = a;
	c->id = cmd->id;
	c->link = k;
	c->connecting = cmd->connecting != 0;
	c->queue_end = &c->queue;
	c->cookie = cookie_take(a, c);
	if (c->cookie == UINT32_MAX) {
		free(c);
		return NULL;
	}
	k->flows++;
	c->next = a->flows;
	a->flows = c;
	return c;
}

static void queue_free(struct carry *c)
{
	while (c->queue) {
		struct carry_blob *b = c->queue;

		c->queue = b->next;
		free(b);
	}
	c->queue_end = &c->queue;
	c->queued = 0;
}

void carry_free(struct carry *c)
{
	struct carry_all *a = c->all;
	struct carry **pp;

	for (pp = &a->flows; *pp != c; pp = &(*pp)->next)
		;
	*pp = c->next;
	if (c->working) {
		for (pp = &a->work; *pp != c; pp = &(*pp)->work)
			;
		*pp = c->work;
	}
	queue_free(c);
	if (c->dir_off) {
		xr_shm_tx_destroy(&c->tx);
		xr_shm_link_dir_put(c->link->l, c->dir_off);
	}
	a->by_cookie[c->cookie] = NULL;
	c->link->flows--;
	free(c->meta);
	free(c);
}

void carry_cancel(struct carry_all *a, uint64_t id)
{
	struct carry *c;

	for (c = a->flows; c && (c->id != id || c->state > CARRY_MET); c = c->next)
		;
	if (!c)
		return;
	meet_cancel(a->meet, c);
	carry_free(c);
}

void carry_wake(struct carry *c)
{
	if (c->working)
		return;
	c->working = 1;
	c->work = c->all->work;
	c->all->work = c;
}

void carry_attach(struct carry_all *a, const struct xr_bridge_cmd *cmd)
{
	struct xr_shm_dir *dir;
	struct carry *c;

	for (c = a->flows; c && (c->id != cmd->id || c->state != CARRY_MET); c = c->next)
		;
	if (!c)
		return;
	dir = xr_shm_link_peer_dir(c->link->l, cmd->dir_off);
	if (!dir) {
		carry_cancel(a, cmd->id);
		return;
	}
	xr_shm_rx_init(&c->rx, dir, c->link->l->peer.hdr.dir_slots, c->link->l->peer.base, c->link->l->peer.size);
	c->gen = xr_load_relaxed(&dir->gen);
	c->index = cmd->cookie;
	c->seq = 1;
	c->state = CARRY_ON;
	xr_shm_rx_arm(&c->rx, CARRY_WAITER);
	xr_shm_tx_want_space(&c->tx, CARRY_WAITER);
	if (c->lost)
		carry_end(c, CARRY_LOST);
	else
		carry_wake(c);
}

void carry_tell_reader(struct carry *c)
{
	uint32_t w = 0;

	if (xr_shm_tx_armed(&c->tx, &w) && w)
		xr_shm_link_notify(c->link->l, w, c->index);
}

/* The program's dir is not touched after this. */
void carry_end(struct carry *c, enum carry_end how)
{
	uint32_t said = XR_DIR_GONE, reader, writer;

	if (c->state != CARRY_ON)
		return;
	if (how == CARRY_STOPPED)
		carry_say(c, CARRY_STOP, (xr_load_relaxed(&c->rx.dir->state) & XR_DIR_ENDED) != 0, NULL, 0);
	if (how == CARRY_LOST)
		said |= XR_DIR_LOST;
	if (how == CARRY_PEER_LEFT)
		said |= XR_DIR_LEFT;
	reader = XR_ARM_WAITER(xr_load_relaxed(&c->tx.dir->arm));
	writer = XR_TXARM_WAITER(xr_load_relaxed(&c->rx.dir->tx_arm));
	xr_debug("a connection left its channel: %d, %llu sent, %llu received", (int)how, (unsigned long long)c->sent,
		 (unsigned long long)c->got);
	c->state = CARRY_OVER;
	if (c->ch) {
		c->ch = NULL;
		meet_cancel(c->all->meet, c);
	}
	queue_free(c);
	/* release: nothing in the program's direction is touched from here on */
	atomic_fetch_or_explicit(&c->tx.dir->state, said, memory_order_release);
	xr_shm_link_notify(c->link->l, reader, c->index);
	if (writer != reader)
		xr_shm_link_notify(c->link->l, writer, c->index);
	if (how != CARRY_QUIET)
		carry_answer(c->all, &(struct xr_bridge_answer){ .type = XR_BRIDGE_LEFT, .cookie = c->index });
	if (!c->all->reap_at)
		c->all->reap_at = xr_now_ns() + CARRY_REAP_NS;
}

/* ---- to the channel ------------------------------------------------------------ */

int carry_say(struct carry *c, enum carry_msg type, uint64_t id, const void *data, size_t len)
{
	int r = c->ch ? xrdma_send_msg(c->ch, &(struct xrdma_msg){ .data = data, .len = len, .id = id,
								   .imm = (uint32_t)type }) : -EPIPE;

	if (r)
		c->blocked = 1;
	return !r;
}

/* acquire: it is never taken back, so what was looked at before was none either */
static int in_frozen(struct carry *c)
{
	return (xr_load_acquire(&c->tx.dir->consumed) & XR_FROZEN) != 0;
}

/*
 * Of which the peer may be told.  In a seal the word says how far the program will read here, or another one that gets
 * the connection from it will not: then the peer has to have the rest of it still.
 */
static uint64_t consumed(struct carry *c)
{
	uint64_t done = c->tx.sent - xr_shm_tx_unconsumed(&c->tx);

	return in_frozen(c) ? c->told : done;
}

static uint64_t where(struct carry *c, uint64_t done)
{
	return done << 32 | (uint32_t)c->sent;
}

/* If it is so much more than the peer knows. */
static void say_consumed(struct carry *c, uint64_t done, uint64_t least)
{
	if (done - c->told >= least && carry_say(c, CARRY_ACK_ONLY, where(c, done), NULL, 0))
		c->told = done;
}

/* Small pieces together, a large one alone.  Bytes that went; 0: none. */
static size_t out_one(struct carry *c)
{
	uint8_t buf[XR_CHANNEL_EAGER];
	uint32_t seq = c->seq, byte = c->byte;
	const void *data = buf;
	uint64_t done;
	struct xr_view v;
	size_t n = 0, k;

	while (xr_shm_rx_peek_from(&c->rx, &seq, &byte, &v) == 1 && v.op == XR_OP_SEND) {
		k = v.len < CARRY_PIECE ? v.len : CARRY_PIECE;
		if (!n && k > sizeof(buf) / 2) {
			data = v.data;
		} else {
			if (k > sizeof(buf) - n)
				k = sizeof(buf) - n;
			memcpy(buf + n, v.data, k);
		}
		n += k;
		byte += (uint32_t)k;
		if (k == v.len && !(v.flags & XR_SLOT_OPEN)) {
			seq++;
			byte = 0;
		}
		if (data != buf || n == sizeof(buf))
			break;
	}
	if (!n)
		return 0;
	done = consumed(c);
	if (!carry_say(c, CARRY_DATA, where(c, done), data, n))
		return 0;
	c->told = done;
	c->seq = seq;
	c->byte = byte;
	c->sent += n;
	return n;
}

/* START goes first, and nothing follows it before the peer's program has taken it: until then it may never be. */
static void out_start(struct carry *c)
{
	struct xr_view v;

	if (xr_shm_rx_peek(&c->rx, &v) == 1 && v.op == XR_OP_START && carry_say(c, CARRY_START, v.arg, NULL, 0))
		c->start = 1;
}

static void run_out(struct carry *c)
{
	size_t n, sum = 0;

	if (c->rx.frozen)
		return;
	if (!c->start)
		out_start(c);
	while (c->start == 2 && !c->blocked) {
		n = out_one(c);
		sum += n;
		if (!n || sum >= CARRY_TURN)
			break;
	}
	if (c->blocked)
		return;
	if (sum >= CARRY_TURN) {
		carry_wake(c);
		return;
	}
	xr_shm_rx_arm(&c->rx, CARRY_WAITER);
	/* what came before the program could see that */
	if (c->start == 2 && out_one(c))
		carry_wake(c);
	else if (!c->start)
		out_start(c);
}

int carry_acked(struct carry *c, uint32_t to)
{
	uint64_t n = (uint32_t)(to - (uint32_t)c->acked);
	struct xr_view v;
	uint32_t w;

	if (n > c->sent - c->acked)
		return -EPROTO;
	c->acked += n;
	while (n && xr_shm_rx_peek(&c->rx, &v) == 1 && v.op == XR_OP_SEND) {
		size_t k = v.len < n ? v.len : n;

		xr_shm_rx_take(&c->rx, &v, k);
		n -= k;
	}
	if (!xr_shm_rx_commit(&c->rx) && xr_shm_rx_wants_notice(&c->rx, &w))
		xr_shm_link_notify(c->link->l, w, c->index);
	return 0;
}

/* ---- to the program ------------------------------------------------------------- */

/* Bytes that went into the ring; -ESTALE: the program reads there no more. */
static ssize_t ring_put(struct carry *c, const void *data, size_t len)
{
	struct iovec iov = { (void *)(uintptr_t)data, len };

	c->tx.stamp = xr_cycles();
	return xr_shm_tx_send(&c->tx, &iov, 1, 0, len);
}

int carry_put(struct carry *c, const void *data, size_t len)
{
	ssize_t n = c->queue ? 0 : ring_put(c, data, len);
	struct carry_blob *b;

	if (n < 0)
		return n == -ESTALE ? 0 : (int)n;
	if ((size_t)n == len)
		return 0;
	len -= (size_t)n;
	if (c->queued + len > CARRY_QUEUE)
		return -EPROTO;
	b = malloc(sizeof(*b) + len);
	if (!b)
		return -ENOMEM;
	b->next = NULL;
	b->len = (uint32_t)len;
	b->off = 0;
	memcpy(b->data, (const uint8_t *)data + n, len);
	*c->queue_end = b;
	c->queue_end = &b->next;
	c->queued += len;
	return 0;
}

static void run_queue(struct carry *c)
{
	struct carry_blob *b;
	ssize_t n;

	while ((b = c->queue) != NULL) {
		n = ring_put(c, b->data + b->off, b->len - b->off);
		if (n <= 0)
			break;
		c->queued -= (uint64_t)n;
		b->off += (uint32_t)n;
		if (b->off < b->len)
			continue;
		c->queue = b->next;
		if (!c->queue)
			c->queue_end = &c->queue;
		free(b);
	}
}

static void run_in(struct carry *c)
{
	uint64_t open, at = xr_load_acquire(&c->tx.dir->consumed);

	/* behind a seal of the program it may be, or not: the peer need not know */
	if (c->started_due && XR_CONSUMED_SEQ(at) != 1 && !(at & XR_FROZEN) && carry_say(c, CARRY_STARTED, 0, NULL, 0))
		c->started_due = 0;
	if (c->queue)
		run_queue(c);
	open = xr_shm_tx_unconsumed(&c->tx);
	say_consumed(c, consumed(c), CARRY_ACK);
	/* little is told with data, or a moment later */
	if (c->queue || c->started_due || open >= CARRY_ACK)
		xr_shm_tx_want_space(&c->tx, CARRY_WAITER);
	if (c->tx.sent != c->told && !c->all->ack_at && !in_frozen(c))
		c->all->ack_at = xr_now_ns() + CARRY_ACK_NS;
	carry_tell_reader(c);
}

static void run_one(struct carry *c)
{
	uint32_t state;
	int frozen;

	if (c->state != CARRY_ON)
		return;
	/* acquire: what the program left in its ring is final */
	state = xr_load_acquire(&c->rx.dir->state);
	if ((state & XR_DIR_CLOSED) || xr_load_relaxed(&c->rx.dir->gen) != c->gen) {
		carry_end(c, CARRY_QUIET);
		return;
	}
	/*
	 * One direction may end before the other: the program, or its peer, has shut it.  What was sent and is not
	 * acknowledged lies in the ring still, but it is not for this end any more: the program sends it again.
	 */
	frozen = xr_shm_rx_is_frozen(&c->rx) || c->rx.frozen;
	/* but not one of which the peer was told that it begins, and may believe it: the stream went on without it */
	if ((state & XR_DIR_GONE) || (frozen && (c->start == 1 || xr_shm_tx_is_frozen(&c->tx)))) {
		carry_end(c, CARRY_STOPPED);
		return;
	}
	c->blocked = 0;
	if (c->peer_ready == 1) {
		xr_store_relaxed(&c->rx.dir->room, c->peer_room);
		xr_shm_rx_ready(&c->rx);
		c->peer_ready = 2;
	}
	/* acquire: pairs with xr_shm_rx_ready, its room is there */
	if (!c->ready_told && xr_load_acquire(&c->tx.dir->ready))
		c->ready_told = (uint8_t)carry_say(c, CARRY_READY, xr_load_relaxed(&c->tx.dir->room), NULL, 0);
	run_in(c);
	run_out(c);
	if (c->start == 2 && c->sent == c->acked && c->got && !c->queue && !c->blocked && c->ch)
		meet_quiet(c->all->meet, c);
}

int carry_work(struct carry_all *a)
{
	struct carry *list = a->work, *c;

	a->work = NULL;
	while ((c = list) != NULL) {
		list = c->work;
		c->working = 0;
		run_one(c);
	}
	return a->work != NULL;
}

uint64_t carry_tick(struct carry_all *a, uint64_t now)
{
	struct carry *c, *next;

	if (a->ack_at && now >= a->ack_at) {
		a->ack_at = 0;
		for (c = a->flows; c; c = c->next) {
			if (c->state != CARRY_ON)
				continue;
			say_consumed(c, consumed(c), 1);
			if (c->tx.sent != c->told && !in_frozen(c))
				a->ack_at = now + CARRY_ACK_NS;
		}
	}
	if (a->reap_at && now >= a->reap_at) {
		a->reap_at = 0;
		for (c = a->flows; c; c = next) {
			next = c->next;
			if (c->state != CARRY_OVER)
				continue;
			/* acquire: the program has read what it wanted */
			if (xr_load_acquire(&c->rx.dir->state) & (XR_DIR_CLOSED | XR_DIR_GONE) ||
			    xr_load_relaxed(&c->rx.dir->gen) != c->gen || xr_load_acquire(&c->link->l->dead))
				carry_free(c);
			else
				a->reap_at = now + CARRY_REAP_NS;
		}
	}
	return a->ack_at && (!a->reap_at || a->ack_at < a->reap_at) ? a->ack_at : a->reap_at;
}
