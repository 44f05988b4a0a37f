/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a script has led to, as far as it decides whether the next operation has one outcome on
 * kernel TCP.  An operation that could block for ever, whose outcome depends on time or on the
 * size of buffers, or that leaves the script's own bookkeeping behind, is refused: the generator
 * then proposes another, and shrinking keeps what it tried to take away.
 */
#include "model.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

void model_init(struct model *m)
{
	int s, i;

	memset(m, 0, sizeof(*m));
	for (s = 0; s < SIDES; s++)
		for (i = 0; i < SLOTS; i++)
			m->slot[s][i].conn = -1;
}

int model_refs(const struct model *m, int conn, int end)
{
	int s, i, n = 0;

	for (s = 0; s < SIDES; s++)
		for (i = 0; i < SLOTS && alive(m, s); i++)
			n += m->slot[s][i].conn == conn && m->slot[s][i].end == end;
	return n;
}

/* A read of n bytes returns at once. */
int model_read_returns(const struct m_end *e, int n, int flags)
{
	int target = flags & MSG_WAITALL ? n : e->lowat < n ? e->lowat : n;

	if (e->fin || e->reset || e->shut_rd)
		return 1;
	return e->avail >= (target > 0 ? target : 1);
}

void model_read_takes(struct m_end *e, int n, int flags)
{
	if (!(flags & MSG_PEEK))
		e->avail -= n < e->avail ? n : e->avail;
}

/* What completes who is blocked in a read of this end. */
void model_wake(struct model *m, struct m_end *e)
{
	int side = e->reader - 1, t;

	if (!e->reader || !model_read_returns(e, e->want, e->target > 1 ? MSG_WAITALL : 0))
		return;
	model_read_takes(e, e->want, e->peeks ? MSG_PEEK : 0);
	e->reader = 0;
	for (t = 1; t <= THREADS; t++)
		if (m->thread[side][t] == THREAD_READS &&
		    &m->conn[m->thread_conn[side][t]].end[m->thread_end[side][t]] == e)
			m->thread[side][t] = THREAD_DONE;
}

/* Calls that have no flags argument. */
static int recv_flags(const struct op *o)
{
	return recv_has_flags(o->arg[1]) ? o->arg[3] : 0;
}

static int send_flags(const struct op *o)
{
	return send_has_flags(o->arg[1]) ? o->arg[3] : 0;
}

static int step_connect(struct model *m, const struct op *o)
{
	struct m_conn *c;
	int conn = o->arg[1], slot = o->arg[0];

	if (conn < 0 || conn >= CONNS || slot < 0 || slot >= SLOTS || o->side > B ||
	    m->slot[o->side][slot].conn >= 0)
		return 0;
	c = &m->conn[conn];
	if (c->used)
		return 0;
	memset(c, 0, sizeof(*c));
	c->used = 1;
	c->connector = o->side;
	c->end[0].lowat = c->end[1].lowat = 1;
	c->end[0].linger = c->end[1].linger = -1;
	c->end[0].nonblock = (o->arg[3] & SOCK_NONBLOCK) != 0;
	c->connected = 1;
	m->slot[o->side][slot] = (struct m_file){ (int8_t)conn, 0 };
	return 1;
}

static int step_accept(struct model *m, const struct op *o)
{
	struct m_conn *c;
	int conn = o->arg[1], slot = o->arg[0], i;

	if (conn < 0 || conn >= CONNS || slot < 0 || slot >= SLOTS || o->side > B ||
	    m->slot[o->side][slot].conn >= 0)
		return 0;
	/* in the order of the queue: nothing else is half-made */
	for (i = 0; i < CONNS; i++)
		if (i != conn && m->conn[i].used && m->conn[i].connected == 1)
			return 0;
	c = &m->conn[conn];
	if (c->connected != 1 || c->connector == o->side || c->end[0].closed)
		return 0;
	c->connected = 2;
	c->end[1].nonblock = o->arg[3] && (o->arg[2] & SOCK_NONBLOCK);
	m->slot[o->side][slot] = (struct m_file){ (int8_t)conn, 1 };
	return 1;
}

/* Operations of both sides that move bytes: both ends open, quiet, and held by A and B. */
static int both_ready(struct model *m, int conn)
{
	struct m_conn *c;
	int e;

	if (conn < 0 || conn >= CONNS)
		return 0;
	c = &m->conn[conn];
	if (c->connected != 2 || !idle(m, conn))
		return 0;
	for (e = 0; e < 2; e++) {
		struct m_end *x = &c->end[e];
		int holder = e ? !c->connector : c->connector, i, found = 0;

		if (x->fin || x->shut_rd || x->shut_wr || x->closed || x->reset || x->avail ||
		    x->lowat > 1 || x->dirty)
			return 0;
		for (i = 0; i < SLOTS; i++)
			found |= m->slot[holder][i].conn == conn && m->slot[holder][i].end == e;
		if (!found || m->ended[holder])
			return 0;
	}
	return 1;
}

static int step_send(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]);
	int n = o->arg[2];
	struct m_end *e, *p;

	if (n < 0 || n > SAFE || o->thread)
		return 0;
	if (!f)
		return 1;
	e = end_of(m, f);
	p = peer_of(m, f);
	if (m->conn[f->conn].connected != 2)
		return 0;
	if (send_flags(o) & MSG_OOB && (n != 1 || p->reader))
		return 0;
	if (e->shut_wr || e->reset)
		return 1;
	if (p->avail + n > SAFE && !p->closed)
		return 0;
	if (!n)
		return 1;
	if (p->closed) {
		/* the peer's kernel answers with RST */
		e->reset = 1;
		e->fin = 1;
		model_wake(m, e);
		return 1;
	}
	p->avail += n;
	model_wake(m, p);
	return 1;
}

static int step_recv(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]);
	int n = o->arg[2], flags = recv_flags(o);
	struct m_end *e;

	if (n < 0 || n > PAT_MAX)
		return 0;
	if (!f)
		return !o->thread;
	e = end_of(m, f);
	if (e->reader || m->conn[f->conn].connected != 2)
		return 0;
	/* read and its vectors return at once when there is nothing to be filled */
	if (!n && recv_is_read(o->arg[1]))
		return !o->thread;
	if (flags & MSG_ERRQUEUE)
		return !o->thread;
	if (o->thread) {
		if (e->nonblock || flags & MSG_DONTWAIT || model_read_returns(e, n, flags) || e->rcvtimeo)
			return 0;
		/* what PEEK with WAITALL does when a part is there is a busy loop of the kernel's */
		if (flags & MSG_PEEK && (flags & MSG_WAITALL || e->avail))
			return 0;
		/*
		 * The kernel wakes it only when SO_RCVLOWAT bytes lie unread, whatever it asked for
		 * and has taken so far: what it returns may then come late, or never.
		 */
		if (e->lowat > 1 && (e->avail || n < e->lowat || flags & MSG_WAITALL))
			return 0;
		if (m->thread[o->side][o->thread])
			return 0;
		m->thread[o->side][o->thread] = THREAD_READS;
		m->thread_conn[o->side][o->thread] = (uint8_t)f->conn;
		m->thread_end[o->side][o->thread] = (uint8_t)f->end;
		e->reader = (int8_t)(o->side + 1);
		e->want = n;
		e->target = flags & MSG_WAITALL ? n : 1;
		e->peeks = (flags & MSG_PEEK) != 0;
		return 1;
	}
	if (!e->nonblock && !(flags & MSG_DONTWAIT) && !model_read_returns(e, n, flags)) {
		if (!e->rcvtimeo)
			return 0;
	}
	model_read_takes(e, n, flags);
	return 1;
}

static int step_setopt(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]);
	struct m_end *e;

	if (!f)
		return 1;
	e = end_of(m, f);
	if (e->reader)
		return 0;
	switch (o->arg[1]) {
	case OPT_RCVLOWAT:
		e->lowat = o->arg[2] < 0 ? 0x7fffffff : o->arg[2] ? o->arg[2] : 1;
		return o->arg[2] > 0 && o->arg[2] <= SAFE;
	case OPT_RCVTIMEO:
		e->rcvtimeo = o->arg[2];
		return o->arg[2] >= 0;
	case OPT_SNDTIMEO:
		e->sndtimeo = o->arg[2];
		return o->arg[2] >= 0;
	case OPT_LINGER:
		e->linger = (int8_t)(o->arg[2] > 1 ? 1 : o->arg[2]);
		return 1;
	default:
		return 1;
	}
}

static int step_nonblock(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]);

	if (f && end_of(m, f)->reader)
		return 0;
	if (f)
		end_of(m, f)->nonblock = o->arg[1] != 0;
	return 1;
}

static int step_waiting(struct model *m, const struct op *o, int timeout)
{
	if (timeout < 0)
		return 0;
	if (!o->thread)
		return timeout <= 5;
	if (m->thread[o->side][o->thread])
		return 0;
	m->thread[o->side][o->thread] = THREAD_WAITS;
	return timeout >= 100;
}

static int no_threads(const struct model *m)
{
	int s, t;

	for (s = 0; s < SIDES; s++)
		for (t = 1; t <= THREADS; t++)
			if (m->thread[s][t])
				return 0;
	return 1;
}

static int step_drain(struct model *m, const struct op *o)
{
	int i;

	if (o->side > B || !no_threads(m))
		return 0;
	for (i = 0; i < SLOTS; i++)
		if (m->slot[o->side][i].conn >= 0)
			end_of(m, &m->slot[o->side][i])->avail = 0;
	return 1;
}

static int step_signal(struct model *m, const struct op *o)
{
	uint8_t *t;
	struct m_end *e;
	int part;

	if (o->arg[0] < 1 || o->arg[0] > THREADS)
		return 0;
	t = &m->thread[o->side][o->arg[0]];
	if (*t != THREAD_READS && *t != THREAD_WAITS)
		return 0;
	if (*t == THREAD_READS) {
		e = &m->conn[m->thread_conn[o->side][o->arg[0]]].end[m->thread_end[o->side][o->arg[0]]];
		/* with MSG_WAITALL or SO_RCVLOWAT what is there already is returned, whatever the handler */
		part = e->avail && (e->target > 1 || e->lowat > 1);
		if (o->arg[1] && !part)
			return 1;
		if (part)
			model_read_takes(e, e->want, e->peeks ? MSG_PEEK : 0);
		e->reader = 0;
	}
	*t = THREAD_DONE;
	return 1;
}

/* Threads that have returned, or may have: joined before anything else happens. */
static int must_join(const struct model *m, const struct op *o)
{
	int s, t;

	for (s = 0; s < SIDES; s++)
		for (t = 1; t <= THREADS; t++)
			if ((m->thread[s][t] == THREAD_DONE || m->thread[s][t] == THREAD_WOKEN) &&
			    !(o->kind == OP_JOIN && o->side == s && o->arg[0] == t))
				return 1;
	return 0;
}

static int step(struct model *m, const struct op *o)
{
	const struct m_file *f;
	uint8_t *t;

	switch (o->kind) {
	case OP_CONNECT:
		return step_connect(m, o);
	case OP_ACCEPT:
		return step_accept(m, o);
	case OP_WARM:
		return both_ready(m, o->arg[0]);
	case OP_BULK:
		return both_ready(m, o->arg[0]) && o->arg[2] >= 0 && o->arg[3] > 0 && o->arg[4] > 0;
	case OP_DUPLEX:
		return both_ready(m, o->arg[0]) && o->arg[1] >= 0 && o->arg[2] > 0 && o->arg[3] > 0;
	case OP_FILL:
		return both_ready(m, o->arg[0]);
	case OP_URGENT:
		return both_ready(m, o->arg[0]) && o->arg[2] >= 0 && o->arg[3] > 0 &&
		       o->arg[2] + o->arg[3] < SAFE;
	case OP_SEND:
		return step_send(m, o);
	case OP_RECV:
		return step_recv(m, o);
	case OP_SHUTDOWN:
		return model_shutdown(m, o);
	case OP_CLOSE:
		return model_close(m, o);
	case OP_DUP:
		return model_dup(m, o);
	case OP_NONBLOCK:
		return step_nonblock(m, o);
	case OP_SETOPT:
		return step_setopt(m, o);
	case OP_BAD:
		/* bind, listen, connect, accept of what is shut both ways: see LEGAL_NAME */
		f = slot_of(m, o->side, o->arg[0]);
		/* a segment that is not full takes of the good part what it has room for, and the call says so */
		if (o->arg[1] == BAD_WRITEV_MIXED && f && peer_of(m, f)->avail)
			return 0;
		return o->arg[1] < 14 || o->arg[1] > 17 || !f || !end_of(m, f)->shut_wr ||
		       !end_of(m, f)->fin;
	case OP_POLL:
		return step_waiting(m, o, o->arg[3]);
	case OP_SELECT:
		return step_waiting(m, o, o->arg[4]);
	case OP_EPWAIT:
		if (o->arg[0] >= 0 && o->arg[0] < EPS && m->ep[o->side][o->arg[0]] == EP_INHERITED)
			return 0;
		return step_waiting(m, o, o->arg[3]);
	case OP_EPCTL:
		return o->arg[0] < 0 || o->arg[0] >= EPS || m->ep[o->side][o->arg[0]] != EP_INHERITED;
	case OP_EPNEST:
		/* one way only: no loops */
		return o->arg[0] >= 0 && o->arg[0] < o->arg[2] && o->arg[2] < EPS &&
		       m->ep[o->side][o->arg[0]] == 1 && m->ep[o->side][o->arg[2]] == 1;
	case OP_EPCREATE:
		if (o->arg[0] < 0 || o->arg[0] >= EPS || m->ep[o->side][o->arg[0]])
			return 0;
		m->ep[o->side][o->arg[0]] = 1;
		return 1;
	case OP_EPCLOSE:
		if (!no_threads(m))
			return 0;
		m->ep[o->side][o->arg[0]] = 0;
		return 1;
	case OP_JOIN:
		t = &m->thread[o->side][o->arg[0]];
		if (*t != THREAD_DONE && *t != THREAD_WOKEN)
			return 0;
		*t = 0;
		return 1;
	case OP_SIGNAL:
		return step_signal(m, o);
	case OP_FORK:
		return model_fork(m, o);
	case OP_EXIT:
		return model_exit(m, o);
	case OP_DRAIN:
		return step_drain(m, o);
	case OP_END:
		if (o->side > B || !no_threads(m) || m->forked[o->side] == 1)
			return 0;
		model_side_closes(m, o->side);
		m->ended[o->side] = 1;
		return 1;
	default:
		return 1;
	}
}

int model_step(struct model *m, const struct op *o)
{
	struct model before = *m;
	int s, t;

	if (o->side < SIDES && !alive(m, o->side))
		return 0;
	if (must_join(m, o) || !step(m, o)) {
		*m = before;
		return 0;
	}
	/* who waits for readiness may have seen this: only the first operation is certain */
	for (s = 0; s < SIDES; s++)
		for (t = 1; t <= THREADS; t++)
			if (before.thread[s][t] == THREAD_WAITS && m->thread[s][t] == THREAD_WAITS)
				m->thread[s][t] = THREAD_WOKEN;
	return 1;
}

int model_accepts(const struct script *s)
{
	struct model m;
	uint32_t i;

	model_init(&m);
	for (i = 0; i < s->n; i++)
		if (!model_step(&m, &s->op[i]))
			return 0;
	/* a connection that nobody accepts would be there for the next script */
	for (i = 0; i < CONNS; i++)
		if (m.conn[i].used && m.conn[i].connected != 2)
			return 0;
	return m.ended[A] && m.ended[B];
}
