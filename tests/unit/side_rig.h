/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pair of pair_rig.h with one channel between its contexts, and what the callbacks write down of each end.  A file
 * defines its `callbacks`; before it includes this SIDE_OWN, what else it keeps of an end, SIDE_DEVICE, where not
 * every device will do, and SIDE_RENDEZVOUS, how large messages are to come.
 */
#ifndef SIDE_RIG_H
#define SIDE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "pair_rig.h"

#ifndef SIDE_OWN
#define SIDE_OWN
#endif
#ifndef SIDE_DEVICE
#define SIDE_DEVICE	rig_device()
#endif

struct side {
	struct xrdma_context *ctx;
	struct xrdma_channel *ch;
	uint32_t opened, got, sent, done, closed;
	int error;
	SIDE_OWN
};

static struct side a, b;	/* a listens, b connects */
static char name[XR_ADDR_NAME];
static const struct xrdma_callbacks callbacks;

static inline void side_opened(struct xrdma_channel *ch, void *arg)
{
	struct side *s = arg;

	s->opened++;
	s->ch = ch;
}

static inline void side_closed(struct xrdma_channel *ch, int error, void *arg)
{
	struct side *s = arg;

	(void)ch;
	s->closed++;
	s->error = error;
	s->ch = NULL;
}

static inline int side_start(void **state)
{
	(void)state;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	if (pair_start(&a.ctx, &b.ctx, SIDE_DEVICE, &callbacks, &a, &b, name))
		return -1;
#ifdef SIDE_RENDEZVOUS
	if (xrdma_set_option(a.ctx, XRDMA_OPT_RENDEZVOUS, SIDE_RENDEZVOUS) ||
	    xrdma_set_option(b.ctx, XRDMA_OPT_RENDEZVOUS, SIDE_RENDEZVOUS))
		return -1;
#endif
	return 0;
}

static inline int side_stop(void **state)
{
	(void)state;
	return pair_stop(a.ctx, b.ctx);
}

static inline void turn(void)
{
	pair_turn(a.ctx, b.ctx);
}

#define wait_for(cond)	pair_wait(a.ctx, b.ctx, cond)

static inline void connect_both(void)
{
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	assert_int_equal(xrdma_send_msg(b.ch, &(struct xrdma_msg){ 0 }), -ENOTCONN);
	wait_for(a.opened && b.opened);
}

#endif
