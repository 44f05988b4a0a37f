/* SPDX-License-Identifier: BSD-2-Clause */
/* Scripts from a seed. */
#include "oracle.h"
#include "calls.h"

#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

uint64_t rnd64(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

struct gen {
	struct model m;
	struct script *s;
	uint64_t rng;
	uint32_t limit;
	int focus;		/* what this script has more of */
};

static uint32_t rnd(struct gen *g, uint32_t n)
{
	return (uint32_t)(rnd64(&g->rng) >> 33) % n;
}

static int chance(struct gen *g, uint32_t percent)
{
	return rnd(g, 100) < percent;
}

static int emit(struct gen *g, struct op o)
{
	if (g->s->n >= OPS_MAX || !model_step(&g->m, &o))
		return 0;
	g->s->op[g->s->n++] = o;
	return 1;
}

#define OP(k, s, ...) ((struct op){ .kind = OP_##k, .side = (uint8_t)(s), .arg = { __VA_ARGS__ } })

/* ---- random parts -------------------------------------------------------- */

static int size(struct gen *g)
{
	static const int edges[] = { 0, 1, 2, 7, 8, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 255,
				     256, 511, 1000, 1024, 1460, 4095, 4096, 4097, 8192, 16383, 16384,
				     16385, 20000, 32767, 32768 };

	switch (rnd(g, 4)) {
	case 0:
		return edges[rnd(g, sizeof(edges) / sizeof(edges[0]))];
	case 1:
		return (int)rnd(g, 64);
	case 2:
		return (int)rnd(g, 2000);
	default:
		return (int)(rnd64(&g->rng) % (1u << rnd(g, 15)));
	}
}

static int side(struct gen *g)
{
	int s = (int)rnd(g, 2);

	if (g->m.forked[s] == 1 && chance(g, 50))
		return s + CHILD_A;
	return s;
}

/* A slot of this process, mostly one that is open. */
static int slot(struct gen *g, int s)
{
	int i, at = (int)rnd(g, SLOTS);

	if (chance(g, 2))
		return at;
	for (i = 0; i < SLOTS; i++)
		if (g->m.slot[s][(at + i) % SLOTS].conn >= 0)
			return (at + i) % SLOTS;
	return at;
}

static int empty_slot(struct gen *g, int s)
{
	int i;

	for (i = 0; i < SLOTS; i++)
		if (g->m.slot[s][i].conn < 0)
			return i;
	return (int)rnd(g, SLOTS);
}

static int conn(struct gen *g)
{
	int i, at = (int)rnd(g, CONNS);

	for (i = 0; i < CONNS; i++)
		if (g->m.conn[(at + i) % CONNS].connected == 2)
			return (at + i) % CONNS;
	return 0;
}

static int recv_flags(struct gen *g)
{
	int f = 0;

	if (chance(g, 25))
		f |= MSG_PEEK;
	if (chance(g, 20))
		f |= MSG_WAITALL;
	if (chance(g, 35))
		f |= MSG_DONTWAIT;
	if (chance(g, 8))
		f |= MSG_TRUNC;
	if (chance(g, 3))
		f |= MSG_CMSG_CLOEXEC;
	if (chance(g, 2))
		f |= MSG_ERRQUEUE;
	if (chance(g, 2))
		f |= MSG_NOSIGNAL;
	return f;
}

static int send_flags(struct gen *g)
{
	int f = 0;

	if (chance(g, 40))
		f |= MSG_NOSIGNAL;
	if (chance(g, 25))
		f |= MSG_DONTWAIT;
	if (chance(g, 15))
		f |= MSG_MORE;
	if (chance(g, 4))
		f |= MSG_EOR;
	if (chance(g, 3))
		f |= MSG_CONFIRM;
	return f;
}

static int poll_events(struct gen *g)
{
	static const int some[] = { POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP,
				    POLLIN | POLLOUT | POLLRDHUP | POLLPRI, POLLRDHUP, 0, POLLPRI,
				    POLLRDNORM, POLLWRNORM, POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND };

	return some[rnd(g, sizeof(some) / sizeof(some[0]))];
}

static int epoll_events(struct gen *g)
{
	static const uint32_t some[] = { EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP,
					 EPOLLIN | EPOLLOUT | EPOLLRDHUP, 0, EPOLLRDHUP,
					 EPOLLRDNORM | EPOLLWRNORM, EPOLLPRI };
	uint32_t e = some[rnd(g, sizeof(some) / sizeof(some[0]))];

	if (chance(g, 45))
		e |= EPOLLET;
	if (chance(g, 20))
		e |= EPOLLONESHOT;
	if (chance(g, 2))
		e |= EPOLLEXCLUSIVE;
	return (int)e;
}

static int timeout(struct gen *g)
{
	return chance(g, 3) ? 1 + (int)rnd(g, 2) : 0;
}

static int some_slots(struct gen *g, int s)
{
	int set = 1 << slot(g, s);

	while (chance(g, 30))
		set |= 1 << slot(g, s);
	return set;
}

/* ---- operations ---------------------------------------------------------- */

static void gen_send(struct gen *g, int s, int where)
{
	int n = size(g), call = (int)rnd(g, SEND_CALLS);

	if (n > SAFE)
		n = SAFE;
	emit(g, OP(SEND, s, where, call, n, send_has_flags(call) ? send_flags(g) : 0,
		   send_has_iov(call) ? (int)rnd(g, 6) : 0));
}

static struct op recv_op(struct gen *g, int s, int where)
{
	int n = chance(g, 30) ? SAFE : size(g), call = (int)rnd(g, RECV_CALLS);

	return OP(RECV, s, where, call, n, recv_has_flags(call) ? recv_flags(g) : 0,
		  recv_has_iov(call) ? (int)rnd(g, 6) : 0);
}

static void gen_recv(struct gen *g, int s, int where)
{
	emit(g, recv_op(g, s, where));
}

static void gen_wait(struct gen *g, int s)
{
	int set = some_slots(g, s);

	if (chance(g, 60))
		emit(g, OP(POLL, s, (int)rnd(g, 2), set, poll_events(g), timeout(g)));
	else
		emit(g, OP(SELECT, s, (int)rnd(g, 2), set, chance(g, 50) ? set : 0,
			   chance(g, 20) ? set : 0, timeout(g)));
}

/* Which of several events are left out when there is no room for all is up to the kernel. */
static int sockets(const struct gen *g, int s)
{
	int i, n = 0;

	for (i = 0; i < SLOTS; i++)
		n += g->m.slot[s][i].conn >= 0;
	return n;
}

static void gen_epoll(struct gen *g, int s)
{
	int ep = (int)rnd(g, EPS);

	if (!g->m.ep[s][ep] && chance(g, 90)) {
		emit(g, OP(EPCREATE, s, ep));
		emit(g, OP(EPCTL, s, ep, 0, slot(g, s), epoll_events(g)));
		return;
	}
	switch (rnd(g, 10)) {
	case 0:
	case 1:
		emit(g, OP(EPCTL, s, ep, 0, slot(g, s), epoll_events(g)));
		break;
	case 2:
	case 3:
		emit(g, OP(EPCTL, s, ep, 1, slot(g, s), epoll_events(g) & ~EPOLLEXCLUSIVE));
		break;
	case 4:
		if (chance(g, 40))
			emit(g, OP(EPCTL, s, ep, 2, slot(g, s), 0));
		else if (chance(g, 10))
			emit(g, OP(EPCLOSE, s, ep));
		break;
	case 5:
		if (chance(g, 30)) {
			emit(g, OP(EPNEST, s, 0, (int)rnd(g, 4) / 3, 1 + (int)rnd(g, EPS - 1)));
			break;
		}
		/* fall through */
	default:
		emit(g, OP(EPWAIT, s, ep, (int)rnd(g, 3), chance(g, 80) || sockets(g, s) > 1 ? 8 : 1,
			   timeout(g)));
		break;
	}
}

static void gen_option(struct gen *g, int s)
{
	static const int lowat[] = { 1, 1, 2, 10, 100, 4096 };
	/* what only the kernel models, so a retreat: often enough that most connections see one */
	int w = slot(g, s), which = chance(g, 40) ? OPT_RXQ_OVFL : (int)rnd(g, OPT_SETS);

	if (chance(g, 50)) {
		emit(g, OP(GETOPT, s, w, (int)rnd(g, OPT_CALLS)));
		return;
	}
	switch (which) {
	case OPT_RCVLOWAT:
		emit(g, OP(SETOPT, s, w, which, lowat[rnd(g, 6)]));
		break;
	case OPT_RCVTIMEO:
	case OPT_SNDTIMEO:
		emit(g, OP(SETOPT, s, w, which, chance(g, 50) ? 0 : 2));
		break;
	case OPT_LINGER:
		emit(g, OP(SETOPT, s, w, which, (int)rnd(g, 3) - 1));
		break;
	case OPT_RXQ_OVFL:
		emit(g, OP(SETOPT, s, w, which, 1));
		break;
	case OPT_RCVBUF:
	case OPT_SNDBUF:
		emit(g, OP(SETOPT, s, w, which, 1 << 20));
		break;
	case OPT_USER_TIMEOUT:
		emit(g, OP(SETOPT, s, w, which, 30000));
		break;
	default:
		emit(g, OP(SETOPT, s, w, which, (int)rnd(g, 2)));
		break;
	}
}

static void gen_both(struct gen *g)
{
	int c = conn(g), big = chance(g, 4);
	int n = (int)(rnd64(&g->rng) % (big ? PAT_MAX : 1u << (8 + rnd(g, 10))));

	switch (rnd(g, 4)) {
	case 0:
	case 1:
		emit(g, OP(BULK, BOTH, c, (int)rnd(g, 2), n, 1 + (int)(rnd64(&g->rng) % (big ? PAT_MAX : 90000)),
			   1 + (int)(rnd64(&g->rng) % (big ? 500000 : 90000))));
		break;
	case 2:
		emit(g, OP(DUPLEX, BOTH, c, n, 100 + (int)rnd(g, 90000), 100 + (int)rnd(g, 90000)));
		break;
	default:
		/* it goes to TCP, and stays there */
		if (chance(g, 40))
			emit(g, OP(URGENT, BOTH, c, (int)rnd(g, 2), chance(g, 30) ? 0 : (int)rnd(g, 1u << rnd(g, 15)),
				   1 + (int)rnd(g, 1u << rnd(g, 13)), (int)rnd(g, 3)));
		else if (chance(g, 20))
			emit(g, OP(FILL, BOTH, c, (int)rnd(g, 2), 1000 + (int)rnd(g, 300000)));
		break;
	}
}

/* A call that blocks, what wakes it, and its return. */
static void gen_blocked(struct gen *g)
{
	int s = side(g), w = slot(g, s), t = 1 + (int)rnd(g, THREADS), peer, pw, i;
	struct m_file f = g->m.slot[s][w];
	struct op o;

	if (f.conn < 0)
		return;
	peer = !(s % 2);
	for (pw = 0; pw < SLOTS; pw++)
		if (g->m.slot[peer][pw].conn == f.conn && g->m.slot[peer][pw].end != f.end)
			break;
	if (pw == SLOTS)
		return;
	switch (rnd(g, 6)) {
	case 0:
		o = OP(POLL, s, (int)rnd(g, 2), 1 << w, chance(g, 70) ? POLLIN : poll_events(g), 300);
		break;
	case 1:
		o = OP(SELECT, s, (int)rnd(g, 2), 1 << w, 0, 0, 300);
		break;
	case 2:
		for (i = 0; i < EPS && !g->m.ep[s][i]; i++)
			;
		if (i == EPS)
			return;
		o = OP(EPWAIT, s, i, (int)rnd(g, 3), 8, 300);
		break;
	default:
		o = recv_op(g, s, w);
		o.arg[3] &= ~(MSG_DONTWAIT | MSG_ERRQUEUE);
		break;
	}
	o.thread = (uint8_t)t;
	if (!emit(g, o))
		return;
	/* until it is certain to have returned */
	for (i = 0; i < 20 && g->m.thread[s][t] != THREAD_DONE && g->m.thread[s][t] != THREAD_WOKEN; i++) {
		switch (rnd(g, 8)) {
		case 0:
			if (o.kind == OP_EPWAIT && chance(g, 50))
				emit(g, OP(EPCTL, s, o.arg[0], (int)rnd(g, 3), chance(g, 70) ? w : slot(g, s),
					   epoll_events(g) & ~(int)EPOLLEXCLUSIVE));
			else
				emit(g, OP(SIGNAL, s, t, (int)rnd(g, 2)));
			break;
		case 1:
			emit(g, OP(SHUTDOWN, chance(g, 50) ? s : peer, chance(g, 50) ? w : pw, (int)rnd(g, 3)));
			break;
		default:
			gen_send(g, peer, pw);
			break;
		}
	}
	for (i = 0; i < 3 && g->m.thread[s][t] != THREAD_DONE && g->m.thread[s][t] != THREAD_WOKEN; i++)
		emit(g, i < 2 ? OP(SEND, peer, pw, 0, g->m.conn[f.conn].end[f.end].want + 1, MSG_NOSIGNAL, 0) :
				OP(SHUTDOWN, peer, pw, SHUT_WR));
	if (g->m.thread[s][t] == THREAD_READS)
		emit(g, OP(SIGNAL, s, t, 0));
	emit(g, OP(JOIN, s, t));
}

static void gen_connect(struct gen *g)
{
	static const int family[] = { 4, 4, 4, 4, 6, 46 };
	int c, s = (int)rnd(g, 2);

	for (c = 0; c < CONNS && g->m.conn[c].used; c++)
		;
	if (c == CONNS || g->m.slot[s][empty_slot(g, s)].conn >= 0 ||
	    g->m.slot[!s][empty_slot(g, !s)].conn >= 0)
		return;
	if (!emit(g, OP(CONNECT, s, empty_slot(g, s), c, family[rnd(g, 6)], chance(g, 20) ? SOCK_NONBLOCK : 0)))
		return;
	emit(g, OP(ACCEPT, !s, empty_slot(g, !s), c, chance(g, 20) ? SOCK_NONBLOCK : 0, (int)rnd(g, 2)));
	if (chance(g, 95))
		emit(g, OP(WARM, BOTH, c, 1 + (int)rnd(g, 3)));
}

static void gen_one(struct gen *g)
{
	int s = side(g), r = (int)rnd(g, 1000);

	if (g->focus == 1 && chance(g, 50)) {
		gen_epoll(g, s);
	} else if (r < 330) {
		gen_send(g, s, slot(g, s));
	} else if (r < 640) {
		gen_recv(g, s, slot(g, s));
	} else if (r < 730) {
		gen_wait(g, s);
	} else if (r < 800) {
		gen_epoll(g, s);
	} else if (r < 840) {
		emit(g, OP(IOCTL, s, slot(g, s), (int)rnd(g, IOC_CALLS)));
	} else if (r < 880) {
		gen_option(g, s);
	} else if (r < 900) {
		emit(g, OP(NONBLOCK, s, slot(g, s), (int)rnd(g, 2), (int)rnd(g, 2)));
	} else if (r < 920) {
		emit(g, OP(BAD, s, slot(g, s), (int)rnd(g, BAD_CALLS)));
	} else if (r < 935) {
		emit(g, OP(DUP, s, slot(g, s), (int)rnd(g, 3), empty_slot(g, s)));
	} else if (r < 940) {
		emit(g, OP(DUP, s, slot(g, s), DUP_DUP2 + (int)rnd(g, 2), slot(g, s)));
	} else if (r < 952) {
		gen_both(g);
	} else if (r < 965) {
		if (g->focus == 2 || chance(g, 10))
			gen_blocked(g);
	} else if (r < 972) {
		emit(g, OP(NAME, s, slot(g, s), (int)rnd(g, 2)));
	} else if (r < 980) {
		if (chance(g, 30))
			gen_connect(g);
	} else if (r < 988) {
		/* ends are rarer while the script is young */
		if (g->s->n * 100 > g->limit * 40 || chance(g, 10))
			emit(g, OP(SHUTDOWN, s, slot(g, s), (int)rnd(g, 3)));
	} else if (r < 996) {
		if (g->s->n * 100 > g->limit * 60 || chance(g, 10))
			emit(g, OP(CLOSE, s, slot(g, s)));
	} else if (r < 998) {
		if (g->focus == 3)
			emit(g, OP(FORK, s));
	} else if (s >= CHILD_A) {
		emit(g, OP(EXIT, s, (int)rnd(g, 2)));
	}
}

void generate(struct script *s, uint64_t seed)
{
	struct gen g = { .s = s, .rng = seed };
	int i, tries;

	s->seed = seed;
	s->n = 0;
	model_init(&g.m);
	/* in half of all, the upgrade is done before the script is; see enum mode */
	s->warm = rnd(&g, 7);
	g.limit = 20 + rnd(&g, 160);
	g.focus = (int)rnd(&g, 40);
	g.focus = g.focus < 10 ? 1 : g.focus < 12 ? 2 : g.focus == 12 ? 3 : 0;
	gen_connect(&g);
	for (tries = 0; tries < 2000 && s->n < g.limit && s->n < OPS_MAX - 20; tries++)
		gen_one(&g);
	for (i = 0; i < 2; i++)
		if (g.m.forked[i] == 1)
			emit(&g, OP(EXIT, i + CHILD_A, 0));
	emit(&g, OP(DRAIN, A));
	emit(&g, OP(DRAIN, B));
	emit(&g, OP(END, A));
	emit(&g, OP(END, B));
}
