/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handshakes over a link that two processes have already.  A name for each flow would cost a
 * listening socket and a connection, so only a few could be open at a time, and a caller would
 * have to guess when; over a link thousands are under way without a descriptor.
 *
 * The host offers a flow on the links to processes that took others to the same address: a hint
 * without proof, that the right one finds when its own end of the flow is due.  CALL, ANSWER and
 * SETUP follow, with proofs as ever.  Messages are taken from the control connection by whatever
 * flow has something to look for, and put into the boxes of those that they are for; each flow goes
 * on with its own next I/O.  No lock but the link's is held there.
 *
 * Whoever offers in vain (the other end is a process without the link, as where a server forks for
 * each connection) soon has no credit left and goes by name.  Time gives a little back: of several
 * processes behind one address each is offered what is the others', until its turn comes.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include "defer.h"
#include "log.h"
#include "mem.h"
#include "rundir.h"
#include "upgrade.h"

#define OFFERS		32768u		/* remembered; a power of two */
#define OFFER_WAYS	8u		/* places where one may be; enough for as many as one host makes at a time */
#define CHUNK		1024u		/* entries */
#define OFFER_LINKS	8		/* that a flow is offered on */
#define CREDIT_START	64u
#define CREDIT_PER_CALL	8u
#define CREDIT_MAX	8192u
#define CREDIT_NS	1000000u	/* gives one, where none is left */
#define HEAR_NS		50000u		/* between looks at the links */
#define HEAR_LINKS	32u		/* looked at each time */
#define LOOK_NS		20000u		/* what one found missing on a link others believe for so long */
#define OFFER_FRESH_NS	60000000000u	/* offers that nobody wanted for so long are not looked for at each turn */

struct xr_up_box {
	uint32_t index, next;		/* of the entry; of the next free one, + 1 */
	_Atomic uint64_t nonce;		/* of who has the entry; 0: nobody */
	_Atomic uint32_t full;		/* 0: empty, 1: being filled, 2 */
	uint64_t link;			/* it came over */
	int side;
	struct xr_up_msg m;
	struct xr_proof_seen seen;
};

struct up_offer {
	uint64_t key;			/* 0: none */
	uint64_t link, nonce;
	uint32_t when;			/* ms */
	int side;
};

/* Memory is mapped when it is needed: the program may be under RLIMIT_AS or RLIMIT_DATA. */
struct up_chunk {
	struct xr_upgrade up[CHUNK];
	struct xr_up_box box[CHUNK];
};

static _Atomic(struct up_chunk *) up_chunks[XR_UP_LINKED / CHUNK];
static struct up_offer *up_offers;	/* NULL: none has come yet */
static _Atomic uint32_t up_fresh;	/* never used from here on */
static uint32_t up_free_list;		/* its head, number + 1 */
static _Atomic uint32_t up_link_lock;	/* of the entries and the offers */
static _Atomic uint64_t offer_last;	/* when one came in */
static _Atomic uint32_t offers_held;

static void up_lock_links(void)
{
	uint32_t free = 0;

	xr_defer_begin();
	if (xr_likely(xr_cas(&up_link_lock, &free, 1)))
		return;
	xr_stats_add(XR_STAT_LOCK_WAITS, 1);
	/* a few dozen instructions */
	do {
		xr_sys0(SYS_sched_yield);
		free = 0;
	} while (!xr_cas(&up_link_lock, &free, 1));
}

static void up_unlock_links(void)
{
	/* release: pairs with the cas of the next holder */
	xr_store_release(&up_link_lock, 0);
	xr_defer_end();
}

/* ---- entries --------------------------------------------------------------- */

struct xr_upgrade *xr_up_link_at(uint32_t i)
{
	/* acquire: pairs with the release in up_entry */
	return i < xr_load_acquire(&up_fresh) ? &xr_load_relaxed(&up_chunks[i / CHUNK])->up[i % CHUNK] : NULL;
}

/* The next one that was never used, under the lock; NULL: no memory, or there is none left. */
static struct xr_upgrade *up_entry(void)
{
	uint32_t i = xr_load_relaxed(&up_fresh);
	struct up_chunk *c;

	if (i == XR_UP_LINKED)
		return NULL;
	c = xr_load_relaxed(&up_chunks[i / CHUNK]);
	if (!c) {
		c = xr_keep_own(sizeof(*c));
		if (!c)
			return NULL;
		xr_store_relaxed(&up_chunks[i / CHUNK], c);
	}
	c->up[i % CHUNK].box = &c->box[i % CHUNK];
	c->box[i % CHUNK].index = i;
	/* release: pairs with the acquire in xr_up_link_at */
	xr_store_release(&up_fresh, i + 1);
	return &c->up[i % CHUNK];
}

struct xr_upgrade *xr_up_link_claim(struct xr_flow *f)
{
	struct xr_upgrade *u = NULL;
	struct xr_up_box *b;

	up_lock_links();
	if (up_free_list) {
		u = xr_up_link_at(up_free_list - 1);
		up_free_list = u->box->next;
	} else {
		u = up_entry();
	}
	if (u) {
		b = u->box;
		memset((char *)u + sizeof(u->f), 0, sizeof(*u) - sizeof(u->f));
		u->box = b;
		u->lfd = u->conn = u->diag = -1;
		u->arena.fd = -1;
		/* release: pairs with who looks through all entries without the lock */
		xr_store_release(&u->f, f);
	}
	up_unlock_links();
	return u;
}

static void refusal(struct xr_up_msg *a, const struct xr_up_msg *call)
{
	*a = (struct xr_up_msg){ .magic = XR_UP_MAGIC, .version = XR_UP_VERSION, .type = XR_UP_REFUSE,
				 .size = sizeof(*a), .nonce = 1, .echo = call->nonce };
	memcpy(a->uuid, xr_uuid, 16);
}

/* A CALL that came and was not taken: where no word of it gets through, the caller's patience ends some time. */
static void box_drop(struct xr_up_box *b)
{
	struct xr_up_msg m = b->m, a;
	struct xr_shm_link *l = m.type == XR_UP_CALL ? xr_links_by_id(b->link, b->side) : NULL;

	/* release: who fills it finds it empty */
	xr_store_release(&b->full, 0);
	if (!l)
		return;
	refusal(&a, &m);
	xr_shm_link_send(l, &a, sizeof(a), NULL, 0);
	xr_link_unref(l);
}

void xr_up_link_free(struct xr_upgrade *u)
{
	if (u->via)
		xr_link_unref(u->via);
	/* nobody fills it from here on, but who does already: the next one has another nonce */
	xr_store_relaxed(&u->box->nonce, 0);
	/* release: pairs with who looks through all entries without the lock */
	xr_store_release(&u->f, NULL);
	/* acquire: pairs with the release in up_said */
	if (xr_load_acquire(&u->box->full) == 2)
		box_drop(u->box);
	up_lock_links();
	u->box->next = up_free_list;
	up_free_list = u->box->index + 1;
	up_unlock_links();
}

void xr_up_link_nonce(struct xr_upgrade *u)
{
	u->nonce = (u->nonce & ~(uint64_t)(XR_UP_LINKED - 1)) | u->box->index;
	if (!u->nonce)
		u->nonce = XR_UP_LINKED;
	xr_store_relaxed(&u->box->nonce, u->nonce);
}

/* ---- what a peer says ------------------------------------------------------- */

static uint64_t offer_key(const struct xr_tuple *t)
{
	uint64_t k[2];

	/* peers choose addresses, to some degree: they shall not choose places */
	memcpy(k, xr_uuid, sizeof(k));
	return xr_siphash(k, t, sizeof(*t)) | 1;
}

/* Its places; the low bit of a key says nothing. */
static struct up_offer *offer_at(uint64_t key)
{
	return &up_offers[key / 2 % (OFFERS / OFFER_WAYS) * OFFER_WAYS];
}

static void offer_put(uint64_t key, uint64_t link, int side, uint64_t nonce)
{
	struct up_offer *o, *at;
	uint64_t now = xr_now_ns();
	uint32_t ms = (uint32_t)(now / 1000000), i;

	up_lock_links();
	if (!up_offers)
		up_offers = xr_keep_own(OFFERS * sizeof(*up_offers));
	if (!up_offers) {
		/* the flow goes by name */
		up_unlock_links();
		return;
	}
	at = o = offer_at(key);
	/* that of the same flow, else a free one, else the oldest */
	for (i = 0; i < OFFER_WAYS && at->key != key; i++)
		if (o[i].key == key || (at->key && (!o[i].key || ms - o[i].when > ms - at->when)))
			at = &o[i];
	if (!at->key)
		xr_fetch_add(&offers_held, 1);
	*at = (struct up_offer){ key, link, nonce, ms, side };
	xr_store_relaxed(&offer_last, now);
	up_unlock_links();
}

static int said_offer(struct xr_shm_link *l, const struct xr_up_msg *m)
{
	struct xr_tuple t;

	/* more than it has credit for, and than the time between the two ends' opening explains */
	if (l->offers++ >= CREDIT_MAX + CREDIT_PER_CALL * xr_load_relaxed(&l->calls) &&
	    l->offers > CREDIT_MAX + CREDIT_PER_CALL * xr_load_relaxed(&l->calls) +
			(xr_now_ns() - l->opened) / CREDIT_NS)
		return -EPROTO;
	if (xr_load_relaxed(&l->liar) || !m->nonce)
		return 0;
	xr_tuple_mirror(&t, &m->tuple);
	t.zero = 0;
	if (m->flags & XR_UP_DIR)
		xr_rundir_tuple(&t, &t, 1);
	offer_put(offer_key(&t), l->id, l->side, m->nonce);
	return 0;
}

/* The link's lock is held, and no other may be taken. */
static int up_said(struct xr_shm_link *l, const void *msg, size_t len, const int *fds, int nfds)
{
	const struct xr_up_msg *m = msg;
	struct xr_up_msg a;
	struct xr_upgrade *u;
	struct xr_up_box *b;
	uint32_t empty = 0;

	if (len != sizeof(*m) || m->magic != XR_UP_MAGIC || m->version != XR_UP_VERSION ||
	    memcmp(m->uuid, l->peer_uuid, 16) ||
	    nfds != (m->type == XR_UP_CALL || m->type == XR_UP_ANSWER))
		return -EPROTO;
	if (m->type == XR_UP_CALL && xr_load_relaxed(&l->credit) < CREDIT_MAX)
		xr_fetch_add(&l->credit, CREDIT_PER_CALL);
	if (m->type == XR_UP_OFFER)
		return said_offer(l, m);
	u = xr_up_link_at(m->echo % XR_UP_LINKED);
	/* it may be given up just now: who empties the box looks again */
	if (!m->echo || !u || xr_load_relaxed(&u->box->nonce) != m->echo) {
		if (m->type == XR_UP_CALL) {
			refusal(&a, m);
			xr_unix_send(l->conn, &a, sizeof(a), NULL, 0);
		}
		return 0;
	}
	b = u->box;
	/* a second message before the first was taken is against the protocol, and lost */
	if (!xr_cas(&b->full, &empty, 1))
		return 0;
	b->m = *m;
	xr_proof_see(nfds ? fds[0] : -1, &b->seen);
	b->link = l->id;
	b->side = l->side;
	/* release: pairs with the acquire in xr_up_link_get */
	xr_store_release(&b->full, 2);
	return 0;
}

void xr_up_link_open(struct xr_shm_link *l)
{
	xr_store_relaxed(&l->credit, CREDIT_START);
	l->opened = xr_now_ns();
	xr_store_relaxed(&l->earned, l->opened);
	l->said = up_said;
}

/*
 * Where many are under way over one link each would ask the kernel for what another has just found missing.  One that
 * looks again itself always gets to see what has come: a connection that is alone waits for nothing.
 */
static int up_link_look(struct xr_shm_link *l, uint32_t index)
{
	uint64_t now = xr_now_ns();

	/* racy, a hint: at worst one look too many, or one that the next call makes up for */
	if (now - xr_load_relaxed(&l->looked_ns) < LOOK_NS && xr_load_relaxed(&l->looked_by) != index &&
	    !xr_load_relaxed(&l->dead))
		return 0;
	xr_store_relaxed(&l->looked_ns, now);
	xr_store_relaxed(&l->looked_by, index);
	return xr_shm_link_progress(l);
}

int xr_up_link_get(struct xr_upgrade *u, struct xr_up_msg *m, struct xr_proof_seen *s)
{
	struct xr_up_box *b = u->box;
	int r = 0;

	/* acquire: pairs with the release in up_said */
	if (xr_load_acquire(&b->full) != 2) {
		if (u->via)
			r = up_link_look(u->via, b->index);
		else
			xr_up_offers();
		if (xr_load_acquire(&b->full) != 2)
			return r ? -EPIPE : -EAGAIN;
		r = 0;
	}
	*m = b->m;
	*s = b->seen;
	/* for whoever had the entry before, or from somebody else */
	if (m->echo != u->nonce || (u->via && (u->via->id != b->link || u->via->side != b->side)))
		r = -EAGAIN;
	else if (!u->via)
		u->via = xr_links_by_id(b->link, b->side);
	/* release: who fills it finds it empty */
	xr_store_release(&b->full, 0);
	return r ? r : u->via ? 0 : -EAGAIN;
}

/* ---- offers ------------------------------------------------------------------ */

/* What the time since the last look is worth, at most what there was to begin with.  0: nothing. */
static uint32_t credit_earned(struct xr_shm_link *l)
{
	uint64_t now = xr_now_ns(), last = xr_load_relaxed(&l->earned), n;

	n = now > last ? (now - last) / CREDIT_NS : 0;
	if (!n || !xr_cas(&l->earned, &last, now))
		return 0;
	n = n < CREDIT_START ? n : CREDIT_START;
	return xr_fetch_add(&l->credit, (uint32_t)n) + (uint32_t)n;
}

static int offer_on(struct xr_upgrade *u, struct xr_shm_link *l)
{
	struct xr_up_msg m = { .magic = XR_UP_MAGIC, .version = XR_UP_VERSION, .type = XR_UP_OFFER,
			       .size = sizeof(m), .nonce = u->nonce, .tuple = u->real,
			       .flags = u->dir ? XR_UP_DIR : 0 };
	uint32_t left = xr_load_relaxed(&l->credit);
	int r;

	do {
		if (!left)
			left = credit_earned(l);
		if (!left)
			return -EBUSY;
	} while (!xr_cas(&l->credit, &left, left - 1));
	memcpy(m.uuid, xr_uuid, 16);
	r = xr_shm_link_send(l, &m, sizeof(m), NULL, 0);
	if (r)
		xr_fetch_add(&l->credit, 1);
	return r == -EAGAIN ? r : r ? -ENOENT : 0;
}

/* 1: l[i] leads to a process that was reached by one before it; who it is the kernel says, too. */
static int offer_made(struct xr_shm_link *const *l, uint32_t made, int i)
{
	int k;

	for (k = 0; k < i; k++)
		if (made >> k & 1 && l[k]->peer_pid == l[i]->peer_pid &&
		    !memcmp(l[k]->peer_uuid, l[i]->peer_uuid, 16))
			return 1;
	return 0;
}

int xr_up_offer(struct xr_upgrade *u)
{
	struct xr_shm_link *l[OFFER_LINKS];
	int i, n = 0, r, best = -ENOENT;
	uint32_t made = 0;		/* bits of those that took it */

	if (u->past.link && !xr_load_acquire(&u->past.link->dead)) {
		xr_link_ref(u->past.link);
		l[n++] = u->past.link;
	} else {
		n = xr_links_to(&u->real, (int)u->dir, l, OFFER_LINKS);
	}
	u->state = XR_UP_OFFERED;
	for (i = 0; i < n; i++) {
		/* once to each process: several links lead to one where many connections began at once */
		if (offer_made(l, made, i))
			continue;
		r = offer_on(u, l[i]);
		made |= (uint32_t)!r << i;
		/* made, or might be next time, or will be when calls have come */
		if (!r || best == -ENOENT || (best == -EBUSY && r == -EAGAIN))
			best = r;
	}
	for (i = 0; i < n; i++)
		xr_link_unref(l[i]);
	return best;
}

int xr_up_offers(void)
{
	static _Atomic uint64_t next;
	static _Atomic uint32_t from;
	uint64_t now = xr_now_ns(), due = xr_load_relaxed(&next);

	/* the more links there are, the longer it takes to come to those at the end of the list */
	if (now >= due && xr_cas(&next, &due, now + HEAR_NS + 1000ull * xr_load_relaxed(&from)))
		xr_store_relaxed(&from, xr_links_hear(xr_load_relaxed(&from), HEAR_LINKS));
	/* racy, a hint */
	return xr_load_relaxed(&offers_held) &&
	       now - xr_load_relaxed(&offer_last) < OFFER_FRESH_NS;
}

int xr_up_offered(const struct xr_tuple *t, int take, struct xr_shm_link **l, uint64_t *nonce)
{
	uint64_t key = offer_key(t);
	struct up_offer *o, got = { 0 };
	uint32_t i;

	up_lock_links();
	if (!up_offers) {
		up_unlock_links();
		return 0;
	}
	o = offer_at(key);
	for (i = 0; i < OFFER_WAYS && o[i].key != key; i++)
		;
	if (i < OFFER_WAYS) {
		got = o[i];
		if (take) {
			memset(&o[i], 0, sizeof(o[i]));
			xr_fetch_sub(&offers_held, 1);
		}
	}
	up_unlock_links();
	if (!take || !got.key)
		return got.key != 0;
	*l = xr_links_by_id(got.link, got.side);
	*nonce = got.nonce;
	return *l != NULL;
}

void xr_up_offer_back(const struct xr_tuple *t, const struct xr_shm_link *l, uint64_t nonce)
{
	offer_put(offer_key(t), l->id, l->side, nonce);
}

void xr_up_link_forked(void)
{
	uint32_t i;

	/* links and flows are the parent's; what it had under way is nothing here */
	for (i = 0; i < XR_UP_LINKED / CHUNK && xr_load_relaxed(&up_chunks[i]); i++) {
		xr_unmap(xr_load_relaxed(&up_chunks[i]), sizeof(struct up_chunk));
		xr_store_relaxed(&up_chunks[i], NULL);
	}
	xr_store_relaxed(&up_fresh, 0);
	up_free_list = 0;
	/* keys are of another process now */
	if (up_offers)
		xr_unmap(up_offers, OFFERS * sizeof(*up_offers));
	up_offers = NULL;
	xr_store_relaxed(&offers_held, 0);
	xr_store_relaxed(&up_link_lock, 0);
	xr_store_relaxed(&offer_last, 0);
}
