/* SPDX-License-Identifier: BSD-2-Clause */
/* 256 channels to one context over a shm device that marks and turns away: nobody is lost, nobody starves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "core/fabric_shm_fault.h"
#include "ring_rig.h"
#include "pair_rig.h"

#define ONE_IN(n)	(XR_FAULT_ALWAYS / (n))
#define MANY		256u
#define EACH		40u

struct side {
	struct xrdma_context *ctx;
	uint32_t opened, closed;
};

static struct side a, b;	/* a listens, b connects */
static char name[XR_ADDR_NAME];
static uint8_t data[50000];
static uint32_t from[MANY], total;

static void on_open(struct xrdma_channel *ch, void *arg)
{
	(void)ch;
	((struct side *)arg)->opened++;
}

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	uint32_t i = m->imm;

	(void)ch;
	(void)arg;
	assert_true(i < MANY);
	assert_true(m->id == from[i]);
	assert_true(stream_check(7, m->id, m->data, m->len) == m->len);
	from[i]++;
	total++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	(void)ch;
	((struct side *)arg)->closed++;
	assert_int_equal(error, 0);
}

static const struct xrdma_callbacks callbacks = {
	.accepted = on_open, .connected = on_open, .message = on_message, .closed = on_closed,
};

static int start(void **state)
{
	(void)state;
	return pair_start(&a.ctx, &b.ctx, "shm", &callbacks, &a, &b, name);
}

static int stop(void **state)
{
	(void)state;
	return pair_stop(a.ctx, b.ctx);
}

static void turn(void)
{
	pair_turn(a.ctx, b.ctx);
}

#define wait_for(cond)	pair_wait(a.ctx, b.ctx, cond)

/* Nobody is lost, nobody starves: marks and refusals hit all alike. */
static void many_to_one(void **state)
{
	static const struct xr_shm_fault f = { .seed = 3, .ecn = ONE_IN(4), .rnr = ONE_IN(20), .rnr_us = 50 };
	static struct xrdma_channel *ch[MANY];
	uint32_t sent[MANY] = { 0 }, i, least, most, spread = 0;
	uint64_t end = xr_now_ns() + 60000000000ull, marked = 0, cuts = 0;

	(void)state;
	b.ctx->rnr_retry = 7;
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 16), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_WINDOW_MSGS, 16), 0);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_FETCH_BYTES, 262144), 0);
	for (i = 0; i < MANY; i++)
		assert_int_equal(xrdma_connect(b.ctx, name, &ch[i]), 0);
	wait_for(a.opened == MANY && b.opened == MANY);
	assert_int_equal(xr_shm_fault_set(a.ctx->dev, &f), 0);
	while (total < MANY * EACH && xr_now_ns() < end) {
		for (i = 0; i < MANY; i++) {
			while (sent[i] < EACH) {
				size_t len = sent[i] % 8 == 7 ? 50000 : 1000;
				struct xrdma_msg m = { .data = data, .len = len, .id = sent[i], .imm = i };

				stream_fill(7, sent[i], data, len);
				if (xrdma_send_msg(ch[i], &m))
					break;
				sent[i]++;
			}
		}
		turn();
		if (total > MANY * EACH / 2 && !spread) {
			for (least = UINT32_MAX, most = i = 0; i < MANY; i++) {
				least = from[i] < least ? from[i] : least;
				most = from[i] > most ? from[i] : most;
			}
			spread = most - least + 1;
		}
	}
	assert_int_equal(total, MANY * EACH);
	assert_true(spread < EACH);
	for (i = 0; i < MANY; i++) {
		struct xrdma_channel_stats s;

		xrdma_get_channel_stats(ch[i], &s);
		marked += s.marked;
		cuts += s.cuts;
		xrdma_close(ch[i]);
	}
	assert_true(marked > MANY && cuts > MANY);
	wait_for(a.closed == MANY);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
	assert_int_equal(a.ctx->budget.used + b.ctx->budget.used, 0);
	assert_null(a.ctx->budget.first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(many_to_one, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
