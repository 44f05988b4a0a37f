/* SPDX-License-Identifier: BSD-2-Clause */
/* A failing script, made as small as it gets while it still fails. */
#include "oracle.h"
#include "calls.h"

#include <string.h>
#include <sys/socket.h>

int differs(struct pair *plain, struct pair *other, const struct script *s, enum mode mode,
	    unsigned int patience_ms, const char **why, uint32_t *op, int *part)
{
	int r;

	*op = 0;
	*part = 0;
	r = pair_run(plain, s, PLAIN, patience_ms);
	if (r) {
		*why = r == PAIR_HANG ? "plain TCP hangs: the oracle is at fault" :
					"a process of the plain pair died: the oracle is at fault";
		*op = plain->stuck;
		return -1;
	}
	r = pair_run(other, s, mode, patience_ms);
	if (r) {
		*why = r == PAIR_HANG ? "hangs" : "a process died";
		*op = other->stuck;
		return 1;
	}
	*why = compare(s, plain->sh, other->sh, op, part);
	return *why != NULL;
}

#define TRIES	3	/* a difference that is not there each time is kept as well */

/* What must stay: the kind of operation that differs, and in what. */
struct aim {
	struct pair *plain, *other;
	enum mode mode;
	const char *why;
	int kind;
};

static int still(const struct aim *a, const struct script *s)
{
	const char *why;
	uint32_t op;
	int part, i, r;

	if (!model_accepts(s))
		return 0;
	for (i = 0; i < TRIES; i++) {
		r = differs(a->plain, a->other, s, a->mode, 700, &why, &op, &part);
		if (r)
			return r > 0 && why == a->why && op < s->n && s->op[op].kind == a->kind;
	}
	return 0;
}

static int without(const struct aim *a, struct script *s, uint32_t at, uint32_t n)
{
	struct script t = *s;

	memmove(&t.op[at], &t.op[at + n], (t.n - at - n) * sizeof(t.op[0]));
	t.n -= n;
	if (!still(a, &t))
		return 0;
	*s = t;
	return 1;
}

static int with(const struct aim *a, struct script *s, uint32_t at, int arg, int32_t value)
{
	struct script t = *s;

	if (s->op[at].arg[arg] == value)
		return 0;
	t.op[at].arg[arg] = value;
	if (!still(a, &t))
		return 0;
	*s = t;
	return 1;
}

/* Simpler values in one operation: fewer flags, smaller numbers. */
static void simplify(const struct aim *a, struct script *s, uint32_t at)
{
	static const int32_t small[] = { 0, 1, 2, 10, 100, 1000, 10000 };
	const char *p = op_args[s->op[at].kind];
	uint32_t bit;
	size_t k;
	int i;

	for (i = 0; (p = strchr(p, ':')); i++, p++) {
		if (strchr("mpexs", p[1])) {
			for (bit = 1u << 31; bit; bit >>= 1)
				if ((uint32_t)s->op[at].arg[i] & bit)
					with(a, s, at, i, (int32_t)((uint32_t)s->op[at].arg[i] & ~bit));
		} else if (!strncmp(p - 6, "family", 6)) {
			with(a, s, at, i, 4);
		} else {
			for (k = 0; k < sizeof(small) / sizeof(small[0]); k++)
				if (s->op[at].arg[i] > small[k] && with(a, s, at, i, small[k]))
					break;
		}
	}
}

void shrink(struct pair *plain, struct pair *other, struct script *s, enum mode mode,
	    const char *why, int kind)
{
	struct aim a = { plain, other, mode, why, kind };
	uint32_t n, at, before;

	do {
		before = s->n;
		for (n = s->n / 2; n; n /= 2)
			for (at = 0; at + n <= s->n;)
				if (!without(&a, s, at, n))
					at += n;
	} while (s->n < before);
	for (at = 0; at < s->n; at++)
		simplify(&a, s, at);
}
