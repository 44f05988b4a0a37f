/* SPDX-License-Identifier: BSD-2-Clause */
/* The messages of an upgrade: CALL, ANSWER, SETUP, and the link they leave behind. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include "info.h"
#include "log.h"
#include "mem.h"
#include "rundir.h"
#include "upgrade.h"

#define UP_ARENA	(512ull << 20)
#define UP_ARENA_SMALL	(32ull << 20)
#define UP_LINK_PATIENCE	5000000u	/* ns */

static void up_msg_init(struct xr_upgrade *u, struct xr_up_msg *m, enum xr_up_type type)
{
	memset(m, 0, sizeof(*m));
	m->magic = XR_UP_MAGIC;
	m->version = XR_UP_VERSION;
	m->type = (uint32_t)type;
	m->size = sizeof(*m);
	memcpy(m->uuid, xr_uuid, 16);
	m->nonce = u->nonce;
	m->echo = u->peer_nonce;
	m->cookie = u->f->index;
	m->flags = u->dir ? XR_UP_DIR : 0;
	m->tuple = u->real;
}

/* A message, the proof that came with it, who sent it, a query socket, and arenas. */
struct up_got {
	struct xr_up_msg m;
	struct xr_proof_seen seen;
	uint32_t uid;
	int diag;
	int fds[3], nfds;
};

static void up_got_close(struct up_got *g)
{
	while (g->nfds > 0)
		xr_fd_close(g->fds[--g->nfds]);
	xr_fd_close(g->diag);
	g->diag = -1;
}

static int up_got_first(struct up_got *g)
{
	int fd = g->fds[0];

	memmove(g->fds, g->fds + 1, (size_t)--g->nfds * sizeof(g->fds[0]));
	return fd;
}

/* 0, -EAGAIN: nothing yet, or what is wrong with it. */
static int up_get_named(struct xr_upgrade *u, enum xr_up_type type, struct up_got *g)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	ssize_t n;
	int r, proof;

	g->nfds = 3;
	n = xr_unix_recv(u->conn, &g->m, sizeof(g->m), g->fds, &g->nfds);
	if (n == -EAGAIN || n == -EINTR)
		return -EAGAIN;
	r = n > 0 ? xr_up_check(&g->m, (size_t)n, type, &u->tuple) :
	    type == XR_UP_CALL ? -EBADMSG : -EPIPE;
	if (type == XR_UP_SETUP || r)
		return r;
	if (g->nfds < (u->dir ? 2 : 1))
		return -EBADMSG;
	proof = up_got_first(g);
	xr_proof_see(proof, &g->seen);
	xr_fd_close(proof);
	if (u->dir)
		g->diag = up_got_first(g);
	if (xr_sys5(SYS_getsockopt, u->conn, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return -EACCES;
	g->uid = cred.uid;
	return 0;
}

static int up_get(struct xr_upgrade *u, enum xr_up_type type, struct up_got *g)
{
	int r;

	memset(&g->seen, 0, sizeof(g->seen));
	g->diag = -1;
	if (!u->box)
		return up_get_named(u, type, g);
	g->nfds = 0;
	r = xr_up_link_get(u, &g->m, &g->seen);
	if (r)
		return r;
	g->uid = u->via->peer_uid;
	/* the host has given the offer up meanwhile */
	if (g->m.type == XR_UP_REFUSE && u->state == XR_UP_CALLING)
		return -ECONNREFUSED;
	return xr_up_check(&g->m, sizeof(g->m), type, &u->tuple);
}

static int up_put(struct xr_upgrade *u, const struct xr_up_msg *m, const int *fds, int nfds)
{
	ssize_t r = u->via ? xr_shm_link_send(u->via, m, sizeof(*m), fds, nfds) :
			     xr_unix_send(u->conn, m, sizeof(*m), fds, nfds);

	return r < 0 ? (int)r : 0;
}

static int up_arena(struct xr_upgrade *u)
{
	uint64_t size = xr_cfg.max_memory < UP_ARENA ? xr_cfg.max_memory : UP_ARENA;
	int r;

	if (u->arena.base)
		return 0;
	r = xr_shm_arena_create(&u->arena, size, xr_slab.slots);
	if (r && r != -EMFILE && r != -ENFILE)
		r = xr_shm_arena_create(&u->arena, UP_ARENA_SMALL, xr_slab.slots);
	/* what no limit says: there is no such memory here */
	return r && xr_up_errno_reason(r) == XR_REASON_RENDEZVOUS_FAILED ? -ENODEV : r;
}

/* Who sent this has the other end of the flow, as far as can be said without a byte of it. */
static int up_proved(struct xr_upgrade *u, int fd, struct up_got *g)
{
	int r;

	if (!u->dir)
		return xr_proof_match(&g->seen, g->uid, fd, &u->tuple);
	r = xr_witness_check(u->via ? u->via->diag : g->diag, &g->seen, g->uid, fd, &g->m.tuple);
	if (r)
		return r;
	u->witness.claim = g->m.tuple;
	u->witness.inode = (uint32_t)g->seen.ino;
	u->diag = g->diag;
	g->diag = -1;
	return 0;
}

/* The descriptors that go with CALL and ANSWER, by name; what is opened here for that is closed by up_shown(). */
static int up_show(const struct xr_upgrade *u, int fd, int fds[3])
{
	int r;

	fds[0] = xr_proof_open(fd);
	if (fds[0] < 0)
		return fds[0];
	if (!u->dir || u->via)
		return 1;
	r = xr_proof_diag();
	fds[1] = r;
	if (r >= 0)
		return 2;
	xr_sys1(SYS_close, fds[0]);
	return r;
}

static void up_shown(const int *fds, int n)
{
	while (n-- > 0)
		xr_sys1(SYS_close, fds[n]);
}

/* Must be done before the peer is told of the block: from then on it writes there. */
static void up_tx_init(struct xr_upgrade *u, const struct xr_shm_arena *a, uint64_t off)
{
	static const struct xr_shm_chunks none;
	struct xr_flow *f = u->f;
	struct xr_shm_tx tx;

	f->dir_off = off;
	u->own_dir = 1;
	/* what has a generation was used before */
	xr_stats_add(xr_load_relaxed(&((struct xr_shm_dir *)(a->base + off))->gen) ? XR_STAT_QP_CACHE_HITS :
		     XR_STAT_QP_CACHE_MISSES, 1);
	xr_shm_tx_init(&tx, (struct xr_shm_dir *)(a->base + off), a->hdr.dir_slots, f->meta,
		       &none, a->base + a->hdr.chunk_off, a->hdr.chunk_off,
		       (uint32_t)xr_cfg.flow_window);
	xr_info_tx_again(f);
	/* whoever still looks at the last time without a lock finds one address or the other */
	f->tx = tx;
}

/* Our direction in the arena of an existing link. */
int xr_up_own_dir(struct xr_upgrade *u)
{
	uint64_t off = xr_shm_link_dir_get(u->link);

	if (!off)
		return -ENOMEM;
	up_tx_init(u, &u->link->own, off);
	return 0;
}

int xr_up_peer_dir(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	struct xr_shm_link *l = u->link;
	struct xr_shm_dir *dir = xr_shm_link_peer_dir(l, u->peer_dir_off);
	struct xr_shm_rx rx;

	if (!dir)
		return -EBADMSG;
	xr_shm_rx_init(&rx, dir, l->peer.hdr.dir_slots, l->peer.base, l->peer.size);
	xr_info_rx_again(f);
	f->rx = rx;
	f->peer_dir_gen = xr_load_relaxed(&dir->gen);
	f->peer_cookie = u->peer_cookie;
	xr_shm_link_chunks(l, &f->tx.chunks);
	f->link = l;
	return 0;
}

/* A link keeps the peer's query socket: what both know of each other serves later flows. */
static void up_keep_diag(struct xr_upgrade *u)
{
	if (u->diag < 0 || u->link->diag >= 0)
		return;
	u->link->diag = u->diag;
	u->diag = -1;
}

/* The link of a first handshake: conn and arenas become its own. */
static int up_make_link(struct xr_upgrade *u, const struct xr_up_msg *m, int fd)
{
	struct xr_shm_arena peer;
	struct xr_shm_link *l;
	int r = xr_shm_arena_attach(&peer, fd);

	if (r)
		return r;
	l = xr_shm_link_new(u->conn, &u->arena, &peer);
	if (!l) {
		xr_shm_arena_destroy(&peer);
		return -ENOMEM;
	}
	/* the peer has it mapped or will have: the descriptor is not needed any more */
	xr_fd_close(l->own.fd);
	l->own.fd = -1;
	memset(&u->arena, 0, sizeof(u->arena));
	u->arena.fd = -1;
	u->conn = -1;
	memcpy(l->peer_uuid, m->uuid, 16);
	l->side = u->state != XR_UP_CALLING;
	/* both nonces went over this connection alone */
	l->secret[0] = l->side ? m->nonce : u->nonce;
	l->secret[1] = l->side ? u->nonce : m->nonce;
	l->id = xr_siphash(l->secret, "id", 2);
	u->link = l;
	up_keep_diag(u);
	xr_up_link_open(l);
	/*
	 * The host has named the first direction in its ANSWER: it is taken before the flows of other
	 * threads find the link, which would take it, and have this flow's peer read their stream.
	 */
	if (l->side && xr_shm_link_dir_get(l) != u->f->dir_off) {
		u->own_dir = 0;
		u->link = NULL;
		xr_shm_link_free(l);
		return -ENOMEM;
	}
	xr_link_ref(l);
	xr_links_add(l);
	return 0;
}

/* ---- host ------------------------------------------------------------------- */

/*
 * The link that another handshake is about to make serves this flow too.  When that takes long this one makes its
 * own, for which all others wait in their turn: a crowd that is slow makes a few of them, not one each.
 */
static int up_link_pending(const struct xr_upgrade *u)
{
	uint64_t now = xr_now_ns();
	int i, pending, busy = 0;

	for (i = 0; i < XR_UP_MAX; i++) {
		const struct xr_upgrade *o = &xr_up_table[i];
		/* acquire: pairs with up_claim */
		struct xr_flow *f = xr_load_acquire(&o->f);
		/* locked: another thread is at it, perhaps at that very step */
		int locked = o != u && f && xr_flow_tx_trylock(f);

		busy |= locked;
		if (o == u || !f || locked)
			continue;
		pending = xr_load_relaxed(&o->f) == f && o->state == XR_UP_ANSWERED && o->new_link &&
			  now - o->answered < UP_LINK_PATIENCE && !memcmp(o->call.uuid, u->call.uuid, 16);
		xr_flow_tx_unlock(f);
		if (pending)
			return 1;
	}
	return busy && now - u->begun < UP_LINK_PATIENCE;
}

/* The link to the caller, if there is one, with a reference in u->link. */
static int up_host_link(struct xr_upgrade *u)
{
	if (u->via) {
		if (xr_load_acquire(&u->via->dead))
			return -EPIPE;
		if (!u->link)
			xr_link_ref(u->via);
		u->link = u->via;
		return 0;
	}
	/* both ends may be this process: then the host's end of the link is wanted */
	do {
		if (u->link)
			xr_link_unref(u->link);
		u->link = xr_links_find(u->call.uuid, 0,
					memcmp(u->call.uuid, xr_uuid, 16) ? -1 : 1);
		/* one that the caller has let go of meanwhile is found dead here, and not again */
	} while (u->link && xr_shm_link_progress(u->link));
	return 0;
}

static int up_host_answer(struct xr_upgrade *u, int fd)
{
	struct xr_up_msg m;
	int fds[3], n, shown, r = up_host_link(u);

	if (r)
		return r;
	if (!u->link && up_link_pending(u))
		return u->state = XR_UP_CALLED, 0;
	u->peer_nonce = u->call.nonce;
	u->peer_cookie = u->call.cookie;
	up_msg_init(u, &m, XR_UP_ANSWER);
	n = shown = up_show(u, fd, fds);
	if (n < 0)
		return n;
	if (u->link) {
		r = u->own_dir ? 0 : xr_up_own_dir(u);
		if (r)
			goto close_shown;
		up_keep_diag(u);
		m.flags |= XR_UP_LINK;
		m.link_id = u->link->id;
		m.tag = xr_up_tag(u->link, XR_UP_ANSWER, u->nonce, u->peer_nonce);
		m.dir_off = u->f->dir_off;
	} else {
		r = up_arena(u);
		if (r)
			goto close_shown;
		u->new_link = 1;
		/* the first direction of a fresh arena, taken when the link stands */
		up_tx_init(u, &u->arena, u->arena.hdr.dir_off);
		m.dir_off = u->f->dir_off;
		fds[n++] = u->arena.fd;
	}
	r = up_put(u, &m, fds, n);
	if (!r) {
		u->state = XR_UP_ANSWERED;
		u->answered = u->new_link ? xr_now_ns() : 0;
	} else if (r == -EAGAIN && u->via) {
		/* the link is full: with the next step */
		u->state = XR_UP_CALLED;
		r = 0;
	}
close_shown:
	up_shown(fds, shown);
	return r;
}

/* A caller came: whoever it is, the name stays open for the right one until it proved itself. */
static int up_host_call(struct xr_upgrade *u, int fd)
{
	struct up_got g;
	int r = up_get(u, XR_UP_CALL, &g);

	if (r == -EAGAIN || (r == -EPIPE && u->box))
		return 0;
	if (!r && g.nfds)
		r = -EBADMSG;
	if (!r)
		r = up_proved(u, fd, &g);
	up_got_close(&g);
	if (!r) {
		if (u->dir && u->lfd >= 0)
			xr_rundir_unlink(&u->tuple);
		xr_up_close(&u->lfd);
		u->call = g.m;
		return up_host_answer(u, fd);
	}
	xr_info("a caller was refused: error %d", -r);
	xr_stats_add(XR_STAT_HANDSHAKE_REFUSED, 1);
	xr_stats_reason(xr_up_errno_reason(r));
	xr_up_close(&u->conn);
	if (u->via) {
		xr_store_relaxed(&u->via->liar, 1);
		xr_link_unref(u->via);
		u->via = NULL;
	}
	return ++u->refused >= 8 ? r : 0;
}

/* Where what the peer said is not so, nothing that it shares with us is kept for the next flow. */
static void up_refused(struct xr_upgrade *u, int r)
{
	xr_stats_add(XR_STAT_HANDSHAKE_REFUSED, 1);
	if (u->link && (r == -EBADMSG || r == -EPROTO || r == -EACCES))
		xr_store_relaxed(&u->link->liar, 1);
}

static int up_host_setup(struct xr_upgrade *u)
{
	struct up_got g;
	int r = up_get(u, XR_UP_SETUP, &g);

	if (r == -EAGAIN)
		return 0;
	if (!r && (g.m.echo != u->nonce || g.m.nonce != u->peer_nonce ||
		   memcmp(g.m.uuid, u->call.uuid, 16) || g.nfds != u->new_link ||
		   (g.m.flags & XR_UP_LINK) != (u->new_link ? 0 : XR_UP_LINK)))
		r = -EBADMSG;
	if (!r && u->new_link) {
		r = up_make_link(u, &g.m, g.fds[0]);
	} else if (!r && g.m.tag != xr_up_tag(u->link, XR_UP_SETUP, g.m.nonce, g.m.echo)) {
		r = -EACCES;
	}
	up_got_close(&g);
	if (!r) {
		u->peer_dir_off = g.m.dir_off;
		u->peer_cookie = g.m.cookie;
		r = xr_up_peer_dir(u);
	}
	if (!r) {
		u->state = XR_UP_EXCHANGED;
		if (!u->box)
			xr_links_goes_to(u->link, &u->tuple);
	} else {
		up_refused(u, r);
	}
	return r;
}

int xr_up_host_step(struct xr_upgrade *u, int fd)
{
	int r;

	switch (u->state) {
	case XR_UP_OFFERED:
		return up_host_call(u, fd);
	case XR_UP_LISTENING:
		if (u->conn < 0) {
			r = xr_rendezvous_accept(u->lfd);
			if (r < 0)
				return r == -EAGAIN || r == -ECONNABORTED ? 0 : r;
			u->conn = r;
			u->begun = xr_now_ns(); /* it is from now on that the peer is waited for */
			u->ios = 0;
		}
		return up_host_call(u, fd);
	case XR_UP_CALLED:
		return up_host_answer(u, fd);
	default:
		return up_host_setup(u);
	}
}

/* ---- caller ------------------------------------------------------------------ */

static int up_say_call(struct xr_upgrade *u, int fd)
{
	struct xr_up_msg m;
	int fds[3], r, n = up_show(u, fd, fds);

	if (n < 0)
		return n;
	up_msg_init(u, &m, XR_UP_CALL);
	r = up_put(u, &m, fds, n);
	up_shown(fds, n);
	u->state = XR_UP_CALLING;
	return r;
}

int xr_up_call(struct xr_upgrade *u, int fd)
{
	int r = u->dir ? xr_rundir_call(&u->tuple) : xr_rendezvous_call(&u->tuple);

	if (r < 0)
		return r;
	u->conn = r;
	return up_say_call(u, fd);
}

int xr_up_call_link(struct xr_upgrade *u, int fd)
{
	int r;

	/* before it is sent: the answer may bring new offers with it, which count on it */
	xr_fetch_add(&u->via->calls, 1);
	r = up_say_call(u, fd);
	if (r)
		xr_fetch_sub(&u->via->calls, 1);
	return r;
}

static int up_caller_link(struct xr_upgrade *u, const struct up_got *g, struct xr_up_msg *s, int *out,
			  int *nout)
{
	const struct xr_up_msg *a = &g->m;
	int r;

	if (a->flags & XR_UP_LINK) {
		if (u->via && u->via->id == a->link_id) {
			xr_link_ref(u->via);
			u->link = u->via;
		} else if (!u->via) {
			u->link = xr_links_find(a->uuid, a->link_id,
						memcmp(a->uuid, xr_uuid, 16) ? -1 : 0);
		}
		if (!u->link)
			return -EAGAIN;
		if (a->tag != xr_up_tag(u->link, XR_UP_ANSWER, a->nonce, a->echo))
			return -EACCES;
		up_keep_diag(u);
		s->flags |= XR_UP_LINK;
		s->link_id = u->link->id;
		s->tag = xr_up_tag(u->link, XR_UP_SETUP, u->nonce, a->nonce);
		return 0;
	}
	r = up_arena(u);
	if (r)
		return r;
	/* a copy goes to the peer: making the link lets go of ours */
	r = (int)xr_sys3(SYS_fcntl, u->arena.fd, F_DUPFD_CLOEXEC, 3);
	if (r < 0)
		return r;
	out[0] = r;
	*nout = 1;
	u->new_link = 1;
	return up_make_link(u, a, g->fds[0]);
}

/* The flow's link is set when the peer has all it needs. */
static int up_say_setup(struct xr_upgrade *u, int conn, const int *out, int nout)
{
	int r = u->via ? up_put(u, &u->call, NULL, 0) :
			 (int)xr_unix_send(conn, &u->call, sizeof(u->call), out, nout);

	if (r >= 0) {
		u->f->link = u->link;
		u->state = XR_UP_EXCHANGED;
		return 0;
	}
	u->f->link = NULL;
	if (r != -EAGAIN || !u->via)
		return r;
	u->state = XR_UP_SETTING;
	return 0;
}

int xr_up_caller_step(struct xr_upgrade *u, int fd)
{
	struct up_got g;
	struct xr_up_msg *s = &u->call;
	int out[1] = { -1 }, nout = 0, conn = u->conn, r;

	if (u->state == XR_UP_SETTING)
		return up_say_setup(u, -1, NULL, 0);
	r = up_get(u, XR_UP_ANSWER, &g);
	if (r == -EAGAIN)
		return 0;
	if (r == -ECONNREFUSED)
		return -EAGAIN;
	if (!r && (g.nfds != !(g.m.flags & XR_UP_LINK) || g.m.echo != u->nonce ||
		   (u->box && g.m.nonce != u->peer_nonce)))
		r = -EBADMSG;
	if (!r)
		r = up_proved(u, fd, &g);
	if (r)
		goto close_fds;
	u->peer_nonce = g.m.nonce;
	u->peer_cookie = g.m.cookie;
	u->peer_dir_off = g.m.dir_off;
	up_msg_init(u, s, XR_UP_SETUP);
	r = up_caller_link(u, &g, s, out, &nout);
	if (!r)
		r = xr_up_own_dir(u);
	if (!r)
		r = xr_up_peer_dir(u);
	if (!r) {
		s->dir_off = u->f->dir_off;
		r = up_say_setup(u, conn, out, nout);
	}
	if (out[0] >= 0)
		xr_sys1(SYS_close, out[0]);
close_fds:
	up_got_close(&g);
	if (r)
		up_refused(u, r);
	return r;
}
