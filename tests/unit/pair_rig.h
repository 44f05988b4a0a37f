/* SPDX-License-Identifier: BSD-2-Clause */
/* Two contexts of one thread, the first one listening: what the tests of channels begin with. */
#ifndef PAIR_RIG_H
#define PAIR_RIG_H

#include "core/mem.h"
#include "core/xrdma.h"
#include "fabric_rig.h"

/* name is written; what `a` and `b` hold of an earlier pair is forgotten before. */
static inline int pair_start(struct xrdma_context **a, struct xrdma_context **b, const char *device,
			     const struct xrdma_callbacks *callbacks, void *arg_a, void *arg_b, char *name)
{
	rig_name(name);
	return xrdma_context_create(a, device, callbacks, arg_a) ||
	       xrdma_context_create(b, device, callbacks, arg_b) || xrdma_listen(*a, name);
}

/* A test may have destroyed its own, and left NULL. */
static inline int pair_stop(struct xrdma_context *a, struct xrdma_context *b)
{
	return (a && xrdma_context_destroy(a)) || (b && xrdma_context_destroy(b));
}

static inline void pair_turn(struct xrdma_context *a, struct xrdma_context *b)
{
	if (a)
		xrdma_polling(a);
	if (b)
		xrdma_polling(b);
}

/* Turns until it holds, for 20 s at most. */
#define pair_wait(a, b, cond)								\
	do {										\
		uint64_t end_ = xr_now_ns() + 20000000000ull;				\
		while (!(cond) && xr_now_ns() < end_)					\
			pair_turn(a, b);						\
		assert_true(cond);							\
	} while (0)

#endif
