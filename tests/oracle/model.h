/* SPDX-License-Identifier: BSD-2-Clause */
/* Inside model*.c. */
#ifndef ORACLE_MODEL_H
#define ORACLE_MODEL_H

#include "oracle.h"
#include "calls.h"

static inline int alive(const struct model *m, int side)
{
	return side <= B ? !m->ended[side] : m->forked[side - CHILD_A] == 1;
}

static inline struct m_file *slot_of(struct model *m, int side, int slot)
{
	if (slot < 0 || slot >= SLOTS || m->slot[side][slot].conn < 0)
		return NULL;
	return &m->slot[side][slot];
}

static inline struct m_end *end_of(struct model *m, const struct m_file *f)
{
	return &m->conn[f->conn].end[f->end];
}

static inline struct m_end *peer_of(struct model *m, const struct m_file *f)
{
	return &m->conn[f->conn].end[!f->end];
}

static inline int idle(const struct model *m, int conn)
{
	return !m->conn[conn].end[0].reader && !m->conn[conn].end[1].reader;
}

/* A read of n bytes returns at once; what it then takes. */
int model_read_returns(const struct m_end *e, int n, int flags);
void model_read_takes(struct m_end *e, int n, int flags);
/* Completes who is blocked in a read of this end, if it is. */
void model_wake(struct model *m, struct m_end *e);

/* model_end.c */
int model_shutdown(struct model *m, const struct op *o);
int model_close(struct model *m, const struct op *o);
int model_dup(struct model *m, const struct op *o);
int model_fork(struct model *m, const struct op *o);
int model_exit(struct model *m, const struct op *o);
void model_side_closes(struct model *m, int side);

#endif
