/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What counts as the same.  Everything that an operation came to must be equal, but for what is
 * listed in here, each with its reason: outcomes that kernel TCP itself does not promise.
 */
#include "oracle.h"
#include "calls.h"

#include <poll.h>
#include <string.h>
#include <sys/epoll.h>

#define LEGAL_TABLE(X) \
	X(LATE, "one of several descriptors of a socket is closed that was registered with epoll: " \
	  "only the kernel keeps such a registration, the connection goes back to TCP, and bytes " \
	  "that were not read come again from the peer's process when it next makes a call; the " \
	  "peer makes one before the script goes on") \
	X(OUTQ, "SIOCOUTQ: acknowledgements arrive when the kernel sends them; any number of " \
	  "bytes between none and all that were sent may be outstanding")

enum legal {
#define X(sym, text) LEGAL_##sym,
	LEGAL_TABLE(X)
#undef X
	LEGAL_COUNT
};
static const char *const legal_text[] = {
#define X(sym, text) text,
	LEGAL_TABLE(X)
#undef X
};
uint64_t legal_used[LEGAL_COUNT];

void legal_print(FILE *f)
{
	int i;

	for (i = 0; i < LEGAL_COUNT; i++)
		fprintf(f, "%8llu  %s\n", (unsigned long long)legal_used[i], legal_text[i]);
}

static int legal(enum legal which)
{
	legal_used[which]++;
	return 1;
}

int legal_late(const struct model *m, const struct op *o)
{
	int slot = dup_names_target(o->arg[1]) && o->kind == OP_DUP ? o->arg[2] : o->arg[0];
	const struct m_file *f;

	if (slot < 0 || slot >= SLOTS)
		return 0;
	f = &m->slot[o->side][slot];
	return f->conn >= 0 && model_refs(m, f->conn, f->end) > 1 && legal(LEGAL_LATE);
}

static int extra_legal(const struct op *o, int i, int64_t p, int64_t q)
{
	if (o->kind == OP_IOCTL && o->arg[1] == IOC_SIOCOUTQ && !i && p >= 0 && q >= 0)
		return legal(LEGAL_OUTQ);
	return 0;
}

static const char *compare_one(const struct op *o, const struct res *p, const struct res *q)
{
	int i;

	if (p->done != q->done)
		return "one did not return";
	if (q->bad)
		return "wrong bytes";
	if (p->bad)
		return "wrong bytes on plain TCP: the oracle is at fault";
	if (p->ret != q->ret)
		return "result";
	if (p->err != q->err)
		return "errno";
	if (p->sigpipe != q->sigpipe || p->sigusr != q->sigusr)
		return "signals";
	if (p->nextra != q->nextra)
		return "number of details";
	for (i = 0; i < p->nextra; i++)
		if (p->extra[i] != q->extra[i] && !extra_legal(o, i, p->extra[i], q->extra[i]))
			return "details";
	return NULL;
}

const char *compare(const struct script *s, const struct shared *plain, const struct shared *other,
		    uint32_t *op, int *part)
{
	uint32_t i;
	int k;

	for (i = 0; i < s->n; i++)
		for (k = 0; k < 1 + (s->op[i].side == BOTH); k++) {
			const char *why = compare_one(&s->op[i], &plain->res[i][k], &other->res[i][k]);

			if (why) {
				*op = i;
				*part = k;
				return why;
			}
		}
	return NULL;
}
