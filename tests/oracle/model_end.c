/* SPDX-License-Identifier: BSD-2-Clause */
/* The ends of connections: shutdown, close, duplicates, processes. */
#include "model.h"

#include <string.h>
#include <sys/socket.h>

int model_shutdown(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]);
	struct m_end *e, *p;

	if (!f || o->arg[1] < 0 || o->arg[1] > SHUT_RDWR)
		return 1;
	e = end_of(m, f);
	p = peer_of(m, f);
	if (m->conn[f->conn].connected != 2)
		return 0;
	if (e->reset || (e->shut_wr && e->fin))
		return 1;
	if (o->arg[1] != SHUT_WR) {
		e->shut_rd = 1;
		model_wake(m, e);
	}
	if (o->arg[1] != SHUT_RD) {
		e->shut_wr = 1;
		p->fin = 1;
		model_wake(m, p);
	}
	return 1;
}

/* The last descriptor of an end goes. */
static void end_closes(struct model *m, int conn, int end)
{
	struct m_end *e = &m->conn[conn].end[end], *p = &m->conn[conn].end[!end];

	e->closed = 1;
	if (e->avail || e->dirty || !e->linger)
		p->reset = 1;
	p->fin = 1;
	model_wake(m, p);
}

static int may_close(struct model *m, int side, const struct m_file *f)
{
	int i, own = 0;

	/* a thread that is inside keeps the file open */
	if (!idle(m, f->conn) || m->conn[f->conn].connected != 2)
		return 0;
	for (i = 0; i < SLOTS; i++)
		own += m->slot[side][i].conn == f->conn && m->slot[side][i].end == f->end;
	/*
	 * The kernel goes on reporting a socket that this process has closed and another one
	 * still holds; xrdma forgets it with its last descriptor.
	 */
	for (i = 0; i < EPS; i++)
		if (own == 1 && m->ep[side][i] && model_refs(m, f->conn, f->end) > 1)
			return 0;
	return 1;
}

int model_close(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]);
	int conn, end;

	if (!f)
		return 1;
	if (!may_close(m, o->side, f))
		return 0;
	conn = f->conn;
	end = f->end;
	f->conn = -1;
	if (!model_refs(m, conn, end))
		end_closes(m, conn, end);
	else
		m->orphans[o->side] |= (uint8_t)(1 << conn);
	return 1;
}

int model_dup(struct model *m, const struct op *o)
{
	struct m_file *f = slot_of(m, o->side, o->arg[0]), *to;
	int slot = o->arg[2], conn = -1, end = 0;

	if (slot < 0 || slot >= SLOTS)
		return 0;
	to = &m->slot[o->side][slot];
	/*
	 * A number that was closed may still name a registration with epoll, which the kernel
	 * finds again when a duplicate of the same socket gets that number, and xrdma does not
	 * after a change of carrier.
	 */
	if (f && m->orphans[o->side] & 1 << f->conn)
		return 0;
	if (!dup_names_target(o->arg[1])) {
		if (to->conn >= 0)
			return 0;
		if (f)
			*to = *f;
		return 1;
	}
	/* dup2 onto an open slot, which it closes; onto an empty one there is no number to name */
	if (to->conn < 0)
		return 0;
	if (!f || f == to)
		return 1;
	if (!may_close(m, o->side, to))
		return 0;
	conn = to->conn;
	end = to->end;
	*to = *f;
	if (!model_refs(m, conn, end))
		end_closes(m, conn, end);
	else
		m->orphans[o->side] |= (uint8_t)(1 << conn);
	return 1;
}

int model_fork(struct model *m, const struct op *o)
{
	int child = o->side + CHILD_A, t;

	/* one child in a script: a second would be another process in the shared tables */
	if (o->side > B || m->forked[o->side])
		return 0;
	for (t = 1; t <= THREADS; t++)
		if (m->thread[o->side][t])
			return 0;
	m->forked[o->side] = 1;
	memcpy(m->slot[child], m->slot[o->side], sizeof(m->slot[child]));
	for (t = 0; t < EPS; t++)
		m->ep[child][t] = m->ep[o->side][t] ? EP_INHERITED : 0;
	m->orphans[child] = m->orphans[o->side];
	return 1;
}

/* Everything that a process holds is closed. */
void model_side_closes(struct model *m, int side)
{
	int i;

	for (i = 0; i < SLOTS; i++) {
		struct m_file f = m->slot[side][i];

		m->slot[side][i].conn = -1;
		if (f.conn >= 0 && !model_refs(m, f.conn, f.end))
			end_closes(m, f.conn, f.end);
	}
	memset(m->ep[side], 0, sizeof(m->ep[side]));
}

int model_exit(struct model *m, const struct op *o)
{
	int i;

	if (o->side < CHILD_A || !alive(m, o->side))
		return 0;
	for (i = 0; i < CONNS; i++)
		if (!idle(m, i))
			return 0;
	model_side_closes(m, o->side);
	m->forked[o->side - CHILD_A] = 2;
	return 1;
}
