/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What counts as the same.  Everything that an operation came to must be equal, but for what is
 * listed in here, each with its reason: outcomes that kernel TCP itself does not promise.
 */
#include "oracle.h"
#include "calls.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>

#define LEGAL_TABLE(X) \
	X(STATE, "TCP_INFO: the state of a socket that is shut down, which changes with the peer's " \
	  "acknowledgement of the FIN") \
	X(NAME, "getpeername or shutdown of a connection that is shut down both ways: the kernel forgets the " \
	  "peer when the last FIN is acknowledged, and on shm FINs follow when the end was read") \
	X(EDGE, "a connection that changes its carrier is registered anew: an edge-triggered set reports " \
	  "once more what still stands, and one with EPOLLONESHOT has then been fired by that; and " \
	  "room to write that still stands need not be reported again when bytes arrive, nor what " \
	  "stands when SO_RCVLOWAT or the size of a buffer is set or shutdown is called, and its FIN acknowledged") \
	X(NESTED, "a set within a set: it may be shown readable in vain when something about its " \
	  "connections on shm has changed; it is left out only where the edge within may be, see above") \
	X(OUTQ, "SIOCOUTQ: acknowledgements arrive when the kernel sends them; any number of " \
	  "bytes between none and all that were sent may be outstanding")

/* Registrations as the script made them, for LEGAL_EDGE. */
struct regs {
	uint32_t events[SIDES][EPS][SLOTS];
	uint8_t nests[SIDES][EPS];	/* has another set in it */
	uint8_t option[SIDES][EPS];	/* looks since then to which it may show */
};

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

/* The state once a FIN that was sent has been acknowledged. */
static int64_t state_settled(int64_t state)
{
	switch (state) {
	case TCP_FIN_WAIT1:
		return TCP_FIN_WAIT2;
	case TCP_LAST_ACK:
	case TCP_CLOSING:
	case TCP_TIME_WAIT:
		return TCP_CLOSE;
	default:
		return state;
	}
}

static int extra_legal(const struct op *o, int i, int64_t p, int64_t q)
{
	if (o->kind == OP_IOCTL && o->arg[1] == IOC_SIOCOUTQ && !i && p >= 0 && q >= 0)
		return legal(LEGAL_OUTQ);
	if (o->kind == OP_GETOPT && o->arg[1] == OPT_STATE && i == 1 && state_settled(p) == state_settled(q))
		return legal(LEGAL_STATE);
	return 0;
}

static void note_registration(struct regs *g, const struct op *o, const struct res *p)
{
	if (o->kind == OP_EPNEST && !p->ret && o->arg[0] >= 0 && o->arg[0] < EPS)
		g->nests[o->side][o->arg[0]] = 1;
	if (o->kind == OP_FORK)
		memcpy(g->events[o->side + CHILD_A], g->events[o->side], sizeof(g->events[0]));
	if (o->kind == OP_SETOPT && (o->arg[1] == OPT_RCVLOWAT || o->arg[1] == OPT_RCVBUF ||
				     o->arg[1] == OPT_SNDBUF))
		memset(g->option, 1, sizeof(g->option));
	/* and once more when the peer's kernel acknowledges the FIN, which may be when its program reads */
	if (o->kind == OP_SHUTDOWN)
		memset(g->option, UINT8_MAX, sizeof(g->option));
	/* a look that had room for all */
	if (o->kind == OP_EPWAIT && p->ret >= 0 && p->ret < o->arg[2] && o->arg[0] >= 0 &&
	    o->arg[0] < EPS && g->option[o->side][o->arg[0]])
		g->option[o->side][o->arg[0]]--;
	if (o->kind == OP_EPCTL && !p->ret && o->arg[2] >= 0 && o->arg[2] < SLOTS && o->arg[0] < EPS)
		g->events[o->side][o->arg[0]][o->arg[2]] = (uint32_t)o->arg[3];
}

static int find_event(const struct res *r, int64_t tag)
{
	int i;

	for (i = 0; i < r->nextra && r->ret > 0; i++)
		if (r->extra[i] >> 32 == tag)
			return i;
	return -1;
}

/* Registrations of duplicates have one tag. */
static int has_event(const struct res *r, int64_t event)
{
	int i;

	for (i = 0; i < r->nextra && r->ret > 0; i++)
		if (r->extra[i] == event)
			return 1;
	return 0;
}

/* What stands in a set, and need not be reported again: so one around it need not show it. */
static int edge_within(const struct regs *g, int side, int ep)
{
	int slot;

	for (slot = 0; ep < EPS && slot < SLOTS; slot++)
		if (g->events[side][ep][slot] & EPOLLET &&
		    (g->events[side][ep][slot] & (EPOLLOUT | EPOLLWRNORM) || g->option[side][ep]))
			return 1;
	return 0;
}

/* Everything but edges is the same. */
static int edges_differ_only(const struct regs *g, const struct op *o, const struct res *p,
			     const struct res *q)
{
	const uint32_t *events = g->events[o->side][o->arg[0]];
	int i, slot, cut = p->ret == o->arg[2] && q->ret == o->arg[2], nested = 0;

	/* who was to be interrupted in his sleep has returned with it before */
	if (q->ret < 0 || (p->ret < 0 && (p->err != EINTR || !o->thread)))
		return 0;
	for (i = 0; i < q->nextra && q->ret > 0; i++) {
		if (q->extra[i] >> 32 & EP_NESTED) {
			nested++;
			continue;
		}
		slot = (int)(q->extra[i] >> 32 & 0xff);
		if (!has_event(p, q->extra[i]) && !(events[slot] & EPOLLET) && !cut)
			return 0;
	}
	/* who was shown nothing but a set that is empty has left his sleep for it, before there was more to see */
	if (o->thread && q->ret > 0 && nested == q->ret)
		return legal(LEGAL_NESTED);
	for (i = 0; i < p->nextra && p->ret > 0; i++) {
		if (p->extra[i] >> 32 & EP_NESTED) {
			if (find_event(q, p->extra[i] >> 32) < 0 && !cut &&
			    !edge_within(g, o->side, (int)(p->extra[i] >> 32 & 0xff)))
				return 0;
			nested = 1;
			continue;
		}
		slot = (int)(p->extra[i] >> 32 & 0xff);
		/* what was reported once and still stands */
		if (events[slot] & EPOLLET && (!((uint32_t)p->extra[i] & ~(EPOLLOUT | EPOLLWRNORM)) ||
					       g->option[o->side][o->arg[0]]))
			continue;
		if (find_event(q, p->extra[i] >> 32) < 0 && !cut &&
		    (events[slot] & (EPOLLET | EPOLLONESHOT)) != (EPOLLET | EPOLLONESHOT))
			return 0;
	}
	return legal(nested ? LEGAL_NESTED : LEGAL_EDGE);
}

/* The same edges and sets in a set, where all that a program hears of one is that there was no room for it. */
static int edges_in_vain(const struct regs *g, const struct op *o, const struct res *p,
			 const struct res *q)
{
	const uint32_t *events = g->events[o->side][0];
	int slot, edges = 0, room = 0;

	if ((o->arg[1] != BAD_EPWAIT && o->arg[1] != BAD_EPWAIT_TOP) || p->done != q->done)
		return 0;
	for (slot = 0; slot < SLOTS; slot++) {
		edges |= (events[slot] & EPOLLET) != 0;
		room |= (events[slot] & EPOLLET) && (events[slot] & (EPOLLOUT | EPOLLWRNORM));
	}
	if (!p->ret && q->ret < 0 && q->err == EFAULT && (edges || g->nests[o->side][0]))
		return legal(edges ? LEGAL_EDGE : LEGAL_NESTED);
	if (!q->ret && p->ret < 0 && p->err == EFAULT && edges && (room || g->option[o->side][0]))
		return legal(LEGAL_EDGE);
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
	if (((o->kind == OP_NAME && o->arg[1]) || o->kind == OP_SHUTDOWN) && p->ret < 0 &&
	    p->err == ENOTCONN && !q->ret) {
		legal(LEGAL_NAME);
		return NULL;
	}
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
	struct regs g = { 0 };
	uint32_t i;
	int k;

	for (i = 0; i < s->n; i++, note_registration(&g, &s->op[i - 1], &plain->res[i - 1][0]))
		for (k = 0; k < 1 + (s->op[i].side == BOTH); k++) {
			const char *why = compare_one(&s->op[i], &plain->res[i][k], &other->res[i][k]);

			if (why && s->op[i].kind == OP_EPWAIT &&
			    edges_differ_only(&g, &s->op[i], &plain->res[i][0], &other->res[i][0]))
				why = NULL;
			if (why && s->op[i].kind == OP_BAD &&
			    edges_in_vain(&g, &s->op[i], &plain->res[i][0], &other->res[i][0]))
				why = NULL;
			if (why) {
				*op = i;
				*part = k;
				return why;
			}
		}
	return NULL;
}
