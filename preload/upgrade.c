/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The upgrade of a flow to shm: a handful of non-blocking steps, driven by the I/O
 * calls that the program makes anyway.  tx_lock of the flow guards its handshake.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "log.h"
#include "mem.h"
#include "ready.h"
#include "upgrade.h"

static struct xr_upgrade up_table[XR_UP_MAX];	/* entries claimed under up_lock */
static _Atomic uint32_t up_lock;
static _Atomic uint32_t up_none;	/* rounds in which no entry was free */

#define UP_ARENA	(512ull << 20)
#define UP_ARENA_SMALL	(32ull << 20)
#define UP_NEVER_TURNS	UINT32_MAX
#define UP_NEVER_BYTES	UINT64_MAX

static struct xr_upgrade *up_claim(struct xr_flow *f)
{
	struct xr_upgrade *u = NULL;
	uint32_t free = 0;
	int i;

	if (!xr_cas(&up_lock, &free, 1))
		return NULL;
	for (i = 0; i < XR_UP_MAX && !u; i++)
		if (!up_table[i].f)
			u = &up_table[i];
	if (u) {
		memset(u, 0, sizeof(*u));
		u->f = f;
		u->lfd = u->conn = -1;
		u->arena.fd = -1;
	}
	/* release: pairs with the cas of the next claimant */
	xr_store_release(&up_lock, 0);
	return u;
}

static void up_free(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	xr_fd_close(u->lfd);
	xr_fd_close(u->conn);
	xr_shm_arena_destroy(&u->arena);
	if (u->link)
		xr_link_unref(u->link);
	f->up = NULL;
	/* last: the entry is anybody's now (a claimant on another thread reads it under up_lock) */
	__atomic_store_n(&u->f, NULL, __ATOMIC_RELEASE);
}

/* No further attempt: the flow stays where it is, for this reason. */
static void up_give_up(struct xr_flow *f, enum xr_reason why)
{
	f->upgrade_off = 1;
	f->need_turns = UP_NEVER_TURNS;
	f->need_bytes = UP_NEVER_BYTES;
	f->reason = (uint16_t)why;
	xr_stats_reason(why);
	xr_stats_flow_reason(f->st, why);
	if (!(xr_load_relaxed(&f->path) & XR_PATH_FABRIC)) {
		xr_fetch_and(&f->path, ~XR_PATH_COUNT);
		xr_stats_flow_state(f->st, XR_STATE_ESTAB);
	}
}

/* Another attempt when the connection has lived on for a while. */
static void up_later(struct xr_flow *f, uint32_t turns, uint64_t bytes)
{
	f->need_turns = f->turns + turns;
	f->need_bytes = xr_load_relaxed(&f->tcp_tx) + xr_load_relaxed(&f->tcp_rx) + bytes;
}

/* tx_lock held; the caller has taken the fabric path out of use, or never into it. */
static void up_fail(struct xr_upgrade *u, enum xr_reason why)
{
	struct xr_flow *f = u->f;

	xr_stats_add(XR_STAT_UPGRADE_FAILED, 1);
	if (u->state >= XR_UP_EXCHANGED) {
		/* the link's reference is the flow's */
		u->link = NULL;
	} else {
		/*
		 * A direction that was named to the peer must be found gone, and is not used
		 * again while this link lasts: the peer may still write there.
		 */
		if (u->own_dir)
			xr_store_release(&f->tx.dir->state, XR_DIR_GONE);
		f->link = NULL;
	}
	up_free(u);
	up_give_up(f, why);
}

void xr_upgrade_abort(struct xr_flow *f, int fd, enum xr_reason why)
{
	struct xr_upgrade *u;
	int ready;

	if (f->owner_pid != xr_getpid() || xr_lock(&f->tx_lock))
		return;
	u = f->up;
	if (!u) {
		xr_unlock(&f->tx_lock);
		return;
	}
	ready = u->state >= XR_UP_EXCHANGED;
	up_fail(u, why);
	xr_unlock(&f->tx_lock);
	if (ready && why != XR_REASON_CLOSED)
		xr_flow_give_back(f, fd, why);
}

/* ---- eligibility ---------------------------------------------------------- */

static int up_protocol_is_tcp(int fd)
{
	int proto = 0;
	socklen_t len = sizeof(proto);

	return !xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &proto, &len) &&
	       proto == IPPROTO_TCP;
}

static enum xr_reason up_eligible(struct xr_flow *f, int fd, struct xr_tuple *t)
{
	union xr_sockaddr local, peer;
	struct xr_sock_ident id;
	struct xr_tuple far;
	enum xr_action action;
	int r;

	if (!xr_cfg.enabled || xr_cfg.fabric == XR_FABRIC_NONE)
		return XR_REASON_DISABLED;
	if (xr_load_relaxed(&f->procs) > 1)
		return XR_REASON_FORKED;
	r = xr_tuple_get(fd, t, &local, &peer);
	if (r)
		return r == -EAFNOSUPPORT ? XR_REASON_FAMILY : XR_REASON_CONNECTING;
	if (!f->st) {
		xr_flow_stats_attach(f, fd, &local.sa, &peer.sa);
		xr_stats_flow_reason(f->st, XR_REASON_YOUNG);
	}
	action = xr_flow_rule(f, &local.sa, &peer.sa);
	if (action == XR_ACTION_TCP)
		return XR_REASON_RULE;
	if (!up_protocol_is_tcp(fd))
		return XR_REASON_MPTCP;
	xr_tuple_mirror(&far, t);
	if (!memcmp(&far, t, sizeof(far)))
		return XR_REASON_SELF_CONNECT;
	r = xr_proof_lookup(&far, &id);
	if (r == -EBUSY)
		return XR_REASON_YOUNG;
	if (r == -ENOENT)
		return XR_REASON_NOT_LOCAL;
	if (r)
		return r == -EMFILE || r == -ENFILE ? XR_REASON_LIMIT_FDS :
						      XR_REASON_PROOF_UNAVAILABLE;
	return XR_REASON_NONE;
}

static enum xr_reason up_errno_reason(int r)
{
	switch (r) {
	case -EMFILE:
	case -ENFILE:
		return XR_REASON_LIMIT_FDS;
	case -ENOMEM:
	case -EFBIG:
	case -ENOSPC:
		return XR_REASON_LIMIT_MEMORY;
	case -EADDRINUSE:
		return XR_REASON_RENDEZVOUS_BUSY;
	case -EPROTONOSUPPORT:
		return XR_REASON_VERSION_MISMATCH;
	case -EACCES:
		return XR_REASON_PROOF_FAILED;
	case -EBADMSG:
	case -EPROTO:
		return XR_REASON_BAD_HANDSHAKE;
	default:
		return XR_REASON_RENDEZVOUS_FAILED;
	}
}

/* ---- pieces of the handshake ---------------------------------------------- */

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
	m->tuple = u->tuple;
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
	return r;
}

/* Must be done before the peer is told of the block: from then on it writes there. */
static void up_tx_init(struct xr_upgrade *u, const struct xr_shm_arena *a, uint64_t off)
{
	static const struct xr_shm_chunks none;
	struct xr_flow *f = u->f;

	f->dir_off = off;
	u->own_dir = 1;
	xr_shm_tx_init(&f->tx, (struct xr_shm_dir *)(a->base + off), a->hdr.dir_slots, f->meta,
		       &none, a->base + a->hdr.chunk_off, a->hdr.chunk_off,
		       (uint32_t)xr_cfg.flow_window);
}

/* Our direction in the arena of an existing link. */
static int up_own_dir(struct xr_upgrade *u)
{
	uint64_t off = xr_shm_link_dir_get(u->link);

	if (!off)
		return -ENOMEM;
	up_tx_init(u, &u->link->own, off);
	return 0;
}

static int up_peer_dir(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;
	struct xr_shm_link *l = u->link;
	struct xr_shm_dir *dir = xr_shm_link_peer_dir(l, u->peer_dir_off);

	if (!dir)
		return -EBADMSG;
	xr_shm_rx_init(&f->rx, dir, l->peer.hdr.dir_slots, l->peer.base, l->peer.size);
	f->peer_dir_gen = xr_load_relaxed(&dir->gen);
	f->peer_cookie = u->peer_cookie;
	xr_shm_link_chunks(l, &f->tx.chunks);
	f->link = l;
	return 0;
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
	xr_link_ref(l);
	xr_links_add(l);
	u->link = l;
	return 0;
}

/* ---- both ends know all: attach, READY, START ------------------------------ */

/* tx_lock and rx_lock held.  1: the receive direction now goes through the hooks. */
static int up_enter_rx(struct xr_flow *f, int fd)
{
	uint64_t written, got;
	int r;

	/* full barrier: path first, then the count of readers; pairs with xr_flow_tcp_rx_begin */
	xr_fetch_or(&f->path, XR_PATH_RX);
	if (xr_load_acquire(&f->k_rx)) {
		xr_fetch_and(&f->path, ~XR_PATH_RX);
		return -EAGAIN;
	}
	r = xr_ksock_offsets(fd, &written, &got);
	if (!r && got != xr_load_relaxed(&f->tcp_rx))
		r = -EILSEQ;
	if (!r && !xr_load_acquire(&f->k_tx) && written != xr_load_relaxed(&f->tcp_tx))
		r = -EILSEQ;
	if (r) {
		xr_fetch_and(&f->path, ~XR_PATH_RX);
		return r;
	}
	f->rx_state = XR_RX_READY;
	return 0;
}

static int up_finish(struct xr_upgrade *u, int fd)
{
	struct xr_flow *f = u->f;
	int r;

	if (xr_lock(&f->rx_lock))
		return -EAGAIN;
	r = up_enter_rx(f, fd);
	xr_unlock(&f->rx_lock);
	if (r)
		return r;
	u->state = XR_UP_READY;
	f->upgrade_off = 1;
	xr_stats_flow_state(f->st, XR_STATE_UPGRADING);
	return 0;
}

/* The peer is ready: leave TCP at this very offset.  tx_lock held. */
static int up_start(struct xr_upgrade *u, int fd, uint32_t *waiter)
{
	struct xr_flow *f = u->f;
	uint64_t written, got;
	int r;

	/* as in up_enter_rx, for writers */
	xr_fetch_or(&f->path, XR_PATH_TX);
	if (xr_load_acquire(&f->k_tx)) {
		xr_fetch_and(&f->path, ~XR_PATH_TX);
		return -EAGAIN;
	}
	r = xr_ksock_offsets(fd, &written, &got);
	if (!r && written != xr_load_relaxed(&f->tcp_tx))
		r = -EILSEQ;
	if (!r)
		r = xr_shm_tx_control(&f->tx, XR_OP_START, written);
	if (r) {
		xr_fetch_and(&f->path, ~XR_PATH_TX);
		return r;
	}
	f->tx_state = XR_TX_RING;
	f->reason = XR_REASON_NONE;
	xr_shm_tx_armed(&f->tx, waiter);
	if (f->st) {
		xr_stats_gauge(&f->st->tx.window, f->tx.inflight_max);
		xr_stats_gauge32(&f->st->tx.slots, f->tx.mask + 1);
		xr_stats_gauge32(&f->st->tx.credits, f->tx.mask + 1);
		xr_stats_gauge32(&f->st->rx.slots, f->rx.mask + 1);
		xr_stats_inc(&f->st->ctl.upgrades, 1);
	}
	xr_stats_flow_state(f->st, XR_STATE_ESTAB);
	xr_stats_flow_carrier(f->st, XR_CARRIER_SHM,
			      f->rx_state == XR_RX_RING ? XR_CARRIER_SHM : XR_CARRIER_TCP,
			      (uint32_t)f->link->peer_pid);
	return 0;
}

/* ---- host ------------------------------------------------------------------- */

static int up_link_pending(const struct xr_upgrade *u)
{
	int i;

	for (i = 0; i < XR_UP_MAX; i++) {
		const struct xr_upgrade *o = &up_table[i];

		if (o != u && o->f && o->state == XR_UP_ANSWERED && o->new_link &&
		    !memcmp(o->call.uuid, u->call.uuid, 16))
			return 1;
	}
	return 0;
}

static int up_host_answer(struct xr_upgrade *u, int fd)
{
	struct xr_up_msg m;
	int fds[2], n = 0, proof, r;

	/* both ends may be this process: then the host's end of the link is wanted */
	u->link = xr_links_find(u->call.uuid, 0,
				memcmp(u->call.uuid, xr_uuid, 16) ? -1 : 1);
	if (!u->link && up_link_pending(u)) {
		u->state = XR_UP_CALLED;
		return 0;
	}
	u->peer_nonce = u->call.nonce;
	u->peer_cookie = u->call.cookie;
	up_msg_init(u, &m, XR_UP_ANSWER);
	proof = xr_proof_open(fd);
	if (proof < 0)
		return proof;
	fds[n++] = proof;
	if (u->link) {
		r = up_own_dir(u);
		if (r)
			goto close_proof;
		m.flags = XR_UP_LINK;
		m.link_id = u->link->id;
		m.tag = xr_up_tag(u->link, XR_UP_ANSWER, u->nonce, u->peer_nonce);
		m.dir_off = u->f->dir_off;
	} else {
		r = up_arena(u);
		if (r)
			goto close_proof;
		u->new_link = 1;
		/* the first direction of a fresh arena, taken when the link stands */
		up_tx_init(u, &u->arena, u->arena.hdr.dir_off);
		m.dir_off = u->f->dir_off;
		fds[n++] = u->arena.fd;
	}
	r = (int)xr_unix_send(u->conn, &m, sizeof(m), fds, n);
	if (r >= 0) {
		u->state = XR_UP_ANSWERED;
		r = 0;
	}
close_proof:
	xr_sys1(SYS_close, proof);
	return r;
}

/* A caller came: whoever it is, the name stays open for the right one until it proved itself. */
static int up_host_call(struct xr_upgrade *u, int fd)
{
	struct xr_up_msg m;
	int fds[2], nfds = 2, r;
	ssize_t n = xr_unix_recv(u->conn, &m, sizeof(m), fds, &nfds);

	if (n == -EAGAIN || n == -EINTR)
		return 0;
	r = n <= 0 ? -EBADMSG : xr_up_check(&m, (size_t)n, XR_UP_CALL, &u->tuple);
	if (!r && nfds != 1)
		r = -EBADMSG;
	if (!r)
		r = xr_proof_check(fds[0], u->conn, fd, &u->tuple);
	while (nfds > 0)
		xr_fd_close(fds[--nfds]);
	if (!r) {
		xr_fd_close(u->lfd);
		u->lfd = -1;
		u->call = m;
		return up_host_answer(u, fd);
	}
	xr_info("a caller was refused: error %d", -r);
	xr_stats_add(XR_STAT_HANDSHAKE_REFUSED, 1);
	xr_stats_reason(up_errno_reason(r));
	xr_fd_close(u->conn);
	u->conn = -1;
	return ++u->refused >= 8 ? r : 0;
}

static int up_host_setup(struct xr_upgrade *u)
{
	struct xr_up_msg m;
	int fds[2], nfds = 2, r;
	ssize_t n = xr_unix_recv(u->conn, &m, sizeof(m), fds, &nfds);

	if (n == -EAGAIN || n == -EINTR)
		return 0;
	r = n <= 0 ? -EPIPE : xr_up_check(&m, (size_t)n, XR_UP_SETUP, &u->tuple);
	if (!r && (m.echo != u->nonce || m.nonce != u->peer_nonce ||
		   memcmp(m.uuid, u->call.uuid, 16) || nfds != u->new_link))
		r = -EBADMSG;
	if (!r && u->new_link) {
		r = up_make_link(u, &m, fds[0]);
		if (!r && xr_shm_link_dir_get(u->link) != u->f->dir_off)
			r = -EPROTO;
	} else if (!r && m.tag != xr_up_tag(u->link, XR_UP_SETUP, m.nonce, m.echo)) {
		r = -EACCES;
	}
	while (nfds > 0)
		xr_fd_close(fds[--nfds]);
	if (!r) {
		u->peer_dir_off = m.dir_off;
		u->peer_cookie = m.cookie;
		r = up_peer_dir(u);
	}
	if (!r)
		u->state = XR_UP_EXCHANGED;
	else
		xr_stats_add(XR_STAT_HANDSHAKE_REFUSED, 1);
	return r;
}

static int up_host_step(struct xr_upgrade *u, int fd)
{
	int r;

	switch (u->state) {
	case XR_UP_LISTENING:
		if (u->conn < 0) {
			r = xr_rendezvous_accept(u->lfd);
			if (r < 0)
				return r == -EAGAIN || r == -ECONNABORTED ? 0 : r;
			u->conn = r;
		}
		return up_host_call(u, fd);
	case XR_UP_CALLED:
		return up_host_answer(u, fd);
	default:
		return up_host_setup(u);
	}
}

/* ---- caller ------------------------------------------------------------------ */

static int up_call(struct xr_upgrade *u, int fd)
{
	struct xr_up_msg m;
	int proof, r = xr_rendezvous_call(&u->tuple);

	if (r < 0)
		return r;
	u->conn = r;
	proof = xr_proof_open(fd);
	if (proof < 0)
		return proof;
	up_msg_init(u, &m, XR_UP_CALL);
	r = (int)xr_unix_send(u->conn, &m, sizeof(m), &proof, 1);
	xr_sys1(SYS_close, proof);
	u->state = XR_UP_CALLING;
	return r < 0 ? r : 0;
}

static int up_caller_link(struct xr_upgrade *u, const struct xr_up_msg *a, int *fds, int nfds,
			  struct xr_up_msg *s, int *out, int *nout)
{
	int r;

	if (a->flags & XR_UP_LINK) {
		u->link = xr_links_find(a->uuid, a->link_id, memcmp(a->uuid, xr_uuid, 16) ? -1 : 0);
		if (!u->link)
			return -EAGAIN;
		if (a->tag != xr_up_tag(u->link, XR_UP_ANSWER, a->nonce, a->echo))
			return -EACCES;
		s->flags = XR_UP_LINK;
		s->link_id = u->link->id;
		s->tag = xr_up_tag(u->link, XR_UP_SETUP, u->nonce, a->nonce);
		return 0;
	}
	if (nfds != 2)
		return -EBADMSG;
	r = up_arena(u);
	if (r)
		return r;
	/* a copy goes to the peer: making the link lets go of ours */
	r = (int)xr_sys3(SYS_fcntl, u->arena.fd, 1030 /* F_DUPFD_CLOEXEC */, 3);
	if (r < 0)
		return r;
	out[0] = r;
	*nout = 1;
	u->new_link = 1;
	return up_make_link(u, a, fds[1]);
}

static int up_caller_step(struct xr_upgrade *u, int fd)
{
	struct xr_up_msg a, s;
	int fds[2], nfds = 2, out[1] = { -1 }, nout = 0, conn = u->conn, r;
	ssize_t n = xr_unix_recv(u->conn, &a, sizeof(a), fds, &nfds);

	if (n == -EAGAIN || n == -EINTR)
		return 0;
	r = n <= 0 ? -EPIPE : xr_up_check(&a, (size_t)n, XR_UP_ANSWER, &u->tuple);
	if (!r && (nfds < 1 || a.echo != u->nonce))
		r = -EBADMSG;
	if (!r)
		r = xr_proof_check(fds[0], u->conn, fd, &u->tuple);
	if (r)
		goto close_fds;
	u->peer_nonce = a.nonce;
	u->peer_cookie = a.cookie;
	u->peer_dir_off = a.dir_off;
	up_msg_init(u, &s, XR_UP_SETUP);
	r = up_caller_link(u, &a, fds, nfds, &s, out, &nout);
	if (!r)
		r = up_own_dir(u);
	if (!r)
		r = up_peer_dir(u);
	if (r)
		goto close_out;
	s.dir_off = u->f->dir_off;
	r = (int)xr_unix_send(conn, &s, sizeof(s), out, nout);
	if (r >= 0) {
		u->state = XR_UP_EXCHANGED;
		r = 0;
	} else {
		u->f->link = NULL;
	}
close_out:
	if (out[0] >= 0)
		xr_sys1(SYS_close, out[0]);
close_fds:
	while (nfds > 0)
		xr_fd_close(fds[--nfds]);
	if (r)
		xr_stats_add(XR_STAT_HANDSHAKE_REFUSED, 1);
	return r;
}

/* ---- the machine --------------------------------------------------------------- */

/* tx_lock held. */
static void up_begin(struct xr_flow *f, int fd)
{
	struct xr_tuple t;
	struct xr_upgrade *u;
	enum xr_reason why = up_eligible(f, fd, &t);
	int r;

	if (why == XR_REASON_YOUNG || why == XR_REASON_CONNECTING) {
		up_later(f, 1, 4096);
		return;
	}
	if (why != XR_REASON_NONE) {
		up_give_up(f, why);
		return;
	}
	u = up_claim(f);
	if (!u) {
		xr_fetch_add(&up_none, 1);
		up_later(f, 8, 65536);
		return;
	}
	f->up = u;
	u->tuple = t;
	u->begun = xr_now_ns();
	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 1);
	if (f->st) {
		xr_stats_inc(&f->st->ctl.attempts, 1);
		xr_stats_gauge(&f->st->ctl.turns, f->turns);
	}
	do {
		r = xr_random(&u->nonce, sizeof(u->nonce));
	} while (!r && !u->nonce);
	if (!r && f->role == XR_FLOW_CONNECT) {
		u->state = XR_UP_LISTENING;
		r = xr_rendezvous_listen(&t);
		if (r >= 0) {
			u->lfd = r;
			r = 0;
		}
	} else if (!r) {
		r = up_call(u, fd);
		if (r == -ECONNREFUSED || r == -EAGAIN) {
			/* not there (yet): the host's threshold is lower, so soon or never */
			up_free(u);
			if (++f->up_tries >= 4)
				up_give_up(f, XR_REASON_PEER_NOT_XRDMA);
			else
				up_later(f, 2u << f->up_tries, 32768ull << f->up_tries);
			return;
		}
	}
	if (r) {
		xr_info("no upgrade: error %d", -r);
		up_fail(u, up_errno_reason(r));
	}
}

/* Not every I/O call of a busy flow pays for a look at the handshake. */
static int up_due(struct xr_upgrade *u)
{
	u->ios++;
	return u->ios <= 64 || u->ios % 16 == 0;
}

static void up_expired(struct xr_upgrade *u)
{
	struct xr_flow *f = u->f;

	if (u->state == XR_UP_LISTENING && u->conn < 0) {
		int again = !f->up_tries++;

		up_free(u);
		if (again)
			up_later(f, 64 + f->turns, 1u << 20);
		else
			up_give_up(f, XR_REASON_PEER_NOT_XRDMA);
		return;
	}
	up_fail(u, XR_REASON_TIMEOUT);
}

/*
 * In the last two states nothing expires: the peer has all it needs, and takes its
 * next step when its program next does I/O.  It, or the kernel, tells us if it gave up.
 */
static int up_peer_lost(struct xr_flow *f)
{
	return xr_load_acquire(&f->link->dead) ||
	       xr_load_relaxed(&f->rx.dir->gen) != f->peer_dir_gen ||
	       (xr_flow_peer_state(f) & XR_DIR_GONE);
}

static void up_step_locked(struct xr_flow *f, int fd, uint32_t *waiter, int *attach, int *retreat)
{
	struct xr_upgrade *u = f->up;
	int r = 0;

	if (!u) {
		if (!f->upgrade_off)
			up_begin(f, fd);
		return;
	}
	if (u->state < XR_UP_EXCHANGED) {
		if (!up_due(u))
			return;
		if (u->ios > 4096 || xr_now_ns() - u->begun > xr_cfg.rendezvous_timeout) {
			up_expired(u);
			return;
		}
		r = f->role == XR_FLOW_CONNECT ? up_host_step(u, fd) : up_caller_step(u, fd);
		if (r) {
			xr_info("upgrade given up: error %d", -r);
			up_fail(u, up_errno_reason(r));
			return;
		}
	}
	if (u->state >= XR_UP_EXCHANGED && up_peer_lost(f)) {
		*retreat = XR_REASON_PEER_REFUSED;
		return;
	}
	if (u->state == XR_UP_EXCHANGED) {
		r = up_finish(u, fd);
		if (!r)
			*attach = 1;
		else if (r != -EAGAIN)
			*retreat = r == -EILSEQ ? XR_REASON_UNHOOKED_IO : XR_REASON_INTERNAL;
		return;
	}
	/* acquire: pairs with the release in xr_shm_rx_ready, what the peer armed is visible */
	if (u->state == XR_UP_READY && xr_load_acquire(&f->tx.dir->ready)) {
		r = up_start(u, fd, waiter);
		if (!r) {
			/* the link's reference goes over to the flow */
			u->link = NULL;
			up_free(u);
		} else if (r != -EAGAIN) {
			*retreat = r == -EILSEQ ? XR_REASON_UNHOOKED_IO : XR_REASON_INTERNAL;
		}
	}
}

void xr_upgrade_step(struct xr_flow *f, int fd)
{
	uint32_t waiter = 0;
	int attach = 0, retreat = 0;

	if (f->owner_pid != xr_getpid() || xr_trylock(&f->tx_lock))
		return;
	up_step_locked(f, fd, &waiter, &attach, &retreat);
	if (retreat) {
		/* the flow keeps its link, in case the peer looks at it; close lets go of both */
		up_fail(f->up, (enum xr_reason)retreat);
	}
	xr_unlock(&f->tx_lock);
	if (waiter)
		xr_flow_tell(f, waiter);
	if (attach) {
		int r = xr_epoll_flow_attach(f);

		/* sleepers now watch the doorbell as well as the socket: the peer may leave TCP */
		if (!r)
			xr_shm_rx_ready(&f->rx);
		else
			xr_upgrade_abort(f, fd, XR_REASON_EPOLL_EXCLUSIVE);
	}
	if (retreat)
		xr_flow_give_back(f, fd, (enum xr_reason)retreat);
}

void xr_upgrade_forked(void)
{
	int i;

	/* the parent goes on with its handshakes; the child's copies of the sockets close */
	for (i = 0; i < XR_UP_MAX; i++) {
		struct xr_upgrade *u = &up_table[i];

		if (!u->f)
			continue;
		xr_fd_close(u->lfd);
		xr_fd_close(u->conn);
		xr_fd_close(u->arena.fd);
		u->f = NULL;
	}
	xr_store_relaxed(&up_lock, 0);
	xr_proof_forked();
}
