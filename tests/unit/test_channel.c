/* SPDX-License-Identifier: BSD-2-Clause */
/* Channels over the shm device, two contexts driven by one thread; a peer that sends nonsense. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "ring_rig.h"

#define SIDE_OWN				\
	uint64_t bytes;				\
	int echo, hang_up;
#include "side_rig.h"

#define BIG (5u << 20)

static uint8_t data[BIG];

static void on_open(struct xrdma_channel *ch, void *arg)
{
	struct side *s = arg;

	s->opened++;
	s->ch = ch;
	assert_int_equal(xrdma_polling(s->ctx), -EBUSY);
	assert_int_equal(xrdma_process_event(s->ctx), -EBUSY);
	assert_int_equal(xrdma_context_destroy(s->ctx), -EBUSY);
}

/* Message number i starts at stream position i; id and imm say the number and the length. */
static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	struct side *s = arg;

	assert_ptr_equal(ch, s->ch);
	assert_true(m->id == s->got);
	assert_true(m->imm == (uint32_t)m->len);
	assert_null(m->mem);
	assert_true(stream_check(3, m->id, m->data, m->len) == m->len);
	s->got++;
	s->bytes += m->len;
	if (s->echo)
		assert_int_equal(xrdma_send_msg(ch, m), 0);
	if (s->hang_up) {
		s->ch = NULL;
		xrdma_close(ch);
		assert_int_equal(xrdma_send_msg(ch, m), -EPIPE);
	}
}

static void on_sent(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	struct side *s = arg;

	(void)ch;
	assert_true(id == s->sent);
	s->sent++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	struct side *s = arg;

	s->closed++;
	s->error = error;
	s->ch = NULL;
	xrdma_close(ch);	/* no harm */
}

static const struct xrdma_callbacks callbacks = {
	.accepted = on_open, .connected = on_open, .message = on_message, .sent = on_sent,
	.closed = on_closed,
};


static int say(struct side *s, uint64_t i, size_t len, struct xrdma_mem *mem)
{
	struct xrdma_msg m = { .data = data, .len = len, .id = i, .imm = (uint32_t)len, .mem = mem };

	stream_fill(3, i, data, len);
	return xrdma_send_msg(s->ch, &m);
}

static const uint32_t sizes[] = { 0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1000003, BIG };

static void every_size_and_back(void **state)
{
	uint32_t i;

	(void)state;
	connect_both();
	a.echo = 1;
	for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
		assert_int_equal(say(&b, i, sizes[i], NULL), 0);
		memset(data, 0, sizes[i]);	/* it was copied */
		wait_for(b.got == i + 1);
	}
}

/* Many more than the window, both ways at once, of all kinds. */
static void full_windows_both_ways(void **state)
{
	struct side *side[2] = { &a, &b };
	uint32_t n[2] = { 0, 0 }, i, refused = 0, all = rig_verbs() ? 400 : 3000;
	struct rng g = { 5 };

	(void)state;
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 4), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_WINDOW_MSGS, 7), 0);
	assert_int_equal(xrdma_set_option(b.ctx, XRDMA_OPT_WINDOW_BYTES, 65536), 0);
	connect_both();
	while (n[0] < all || n[1] < all) {
		for (i = 0; i < 2; i++) {
			while (n[i] < all) {
				uint32_t len = rng_below(&g, 10) ? rng_below(&g, 6000) : rng_below(&g, 200000);
				int r = say(side[i], n[i], len, NULL);

				if (r == -EAGAIN) {
					refused++;
					break;
				}
				assert_int_equal(r, 0);
				n[i]++;
			}
		}
		turn();
	}
	wait_for(a.got == all && b.got == all);
	assert_true(refused > 10);
}

/* READs of both ends need room that small messages behind the large one must not keep. */
static void large_before_many_small_both_ways(void **state)
{
	struct side *side[2] = { &a, &b };
	uint32_t i, k;

	(void)state;
	connect_both();
	for (i = 0; i < 2; i++)
		for (k = 0; k < 128; k++)
			assert_int_equal(say(side[i], k, k ? 4096 : BIG, NULL), 0);
	wait_for(a.got == 128 && b.got == 128);
}

static void registered_memory(void **state)
{
	struct xrdma_msg m = { .data = data, .len = 100000, .imm = 100000 };
	struct xrdma_mem *mem;

	(void)state;
	connect_both();
	assert_int_equal(xrdma_reg_mem(b.ctx, data, 0, &mem), -EINVAL);
	assert_int_equal(xrdma_reg_mem(b.ctx, data, 100000, &mem), 0);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 0), -EINVAL);
	stream_fill(3, 0, data, sizeof(data));
	m.mem = mem;
	m.len = 100001;
	assert_int_equal(xrdma_send_msg(b.ch, &m), -EINVAL);
	m.data = data + 1;
	m.len = 100000;
	assert_int_equal(xrdma_send_msg(b.ch, &m), -EINVAL);
	m.data = data;
	assert_int_equal(xrdma_send_msg(a.ch, &m), -EINVAL);	/* of another context */
	assert_int_equal(xrdma_send_msg(b.ch, &m), 0);
	assert_int_equal(xrdma_dereg_mem(mem), -EBUSY);
	/* with nothing more to come: the memory is not kept waiting */
	wait_for(a.got == 1 && b.sent == 1);
	assert_int_equal(xrdma_dereg_mem(mem), 0);
}

static void closing_delivers_what_was_sent(void **state)
{
	uint32_t i;

	(void)state;
	connect_both();
	for (i = 0; i < 100; i++)
		assert_int_equal(say(&b, i, i % 3 ? 100 : 20000, NULL), 0);
	xrdma_close(b.ch);
	wait_for(a.closed);
	assert_int_equal(a.got, 100);
	assert_int_equal(a.error, 0);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(b.closed, 0);
	assert_int_equal(a.ctx->pool.bufs, 0);
	assert_int_equal(b.ctx->pool.bufs, 0);
	assert_int_equal(b.ctx->out_bytes, 0);
}

static void both_close(void **state)
{
	(void)state;
	connect_both();
	xrdma_close(b.ch);
	xrdma_close(a.ch);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(a.closed + b.closed, 0);
}

static void closing_in_a_callback(void **state)
{
	uint32_t i;

	(void)state;
	connect_both();
	a.hang_up = 1;
	for (i = 0; i < 20; i++)
		assert_int_equal(say(&b, i, i % 2 ? 100 : 20000, NULL), 0);
	wait_for(b.closed);
	assert_int_equal(b.error, 0);
	assert_int_equal(a.got, 1);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
}

static void the_peer_vanishes(void **state)
{
	(void)state;
	connect_both();
	assert_int_equal(say(&b, 0, 300000, NULL), 0);
	assert_int_equal(xrdma_context_destroy(a.ctx), 0);
	a.ctx = NULL;
	wait_for(b.closed);
	assert_true(b.error < 0);
	wait_for(!b.ctx->channels);
	assert_int_equal(b.ctx->pool.bufs, 0);
}

static void nobody_listens(void **state)
{
	(void)state;
	rig_name(name);
	assert_int_equal(xrdma_connect(b.ctx, "not/a name", &b.ch), -EINVAL);
	assert_int_equal(xrdma_connect(b.ctx, name, &b.ch), 0);
	wait_for(b.closed);
	assert_true(b.error < 0);
	assert_int_equal(b.opened, 0);
}

static void limits(void **state)
{
	struct xrdma_context *ctx;
	uint32_t i;

	(void)state;
	assert_int_equal(xrdma_context_create(&ctx, "none such", &callbacks, NULL), -ENODEV);
	assert_int_equal(xrdma_context_create(&ctx, rig_device(), NULL, NULL), -EINVAL);
	assert_int_equal(xrdma_listen(b.ctx, name), -EADDRINUSE);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_COUNT, 1), -EINVAL);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 1025), -EINVAL);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_MAX_MSG, 50000), 0);
	connect_both();
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_POOL_BYTES, 64u << 20), -EBUSY);
	assert_int_equal(say(&a, 0, 50001, NULL), -EMSGSIZE);
	assert_int_equal(say(&b, 0, 50001, NULL), -EMSGSIZE);
	assert_int_equal(say(&b, 0, 50000, NULL), 0);
	wait_for(a.got == 1);
	/* options are for channels that come later */
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_MAX_MSG, 1), 0);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_MSGS, 1), 0);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_WINDOW_BYTES, 65536), 0);
	for (i = 1; i < 100; i++)
		assert_int_equal(say(&b, i, 40000, NULL), 0);
	wait_for(a.got == 100);
}

/* Sleeping on the descriptors instead of spinning. */
static void events(void **state)
{
	struct pollfd p[2];
	uint32_t i, slept = 0;

	(void)state;
	connect_both();
	a.echo = 1;
	p[0] = (struct pollfd){ .fd = xrdma_get_event_fd(a.ctx), .events = POLLIN };
	p[1] = (struct pollfd){ .fd = xrdma_get_event_fd(b.ctx), .events = POLLIN };
	while (xrdma_process_event(a.ctx) | xrdma_process_event(b.ctx))
		;
	for (i = 0; i < 200; i++) {
		assert_int_equal(say(&b, i, i % 5 ? 64 : 30000, NULL), 0);
		while (b.got != i + 1) {
			assert_true(poll(p, 2, 5000) > 0);
			slept++;
			if (p[0].revents)
				while (xrdma_process_event(a.ctx))
					;
			if (p[1].revents)
				while (xrdma_process_event(b.ctx))
					;
		}
	}
	assert_true(slept >= 200);
	/* and nothing rings while nothing happens, but for what was under way */
	for (i = 0; i < 10 && poll(p, 2, 50); i++)
		while (xrdma_process_event(a.ctx) | xrdma_process_event(b.ctx))
			;
	assert_true(i < 10);
}

/* --- a peer that is not a channel --------------------------------------------------- */

static struct end raw;

/* A bare connection to a whose greeting is given; 1 when it was let in. */
static int raw_connect(const struct xr_hello *h, uint32_t len)
{
	uint64_t end = xr_now_ns() + 5000000000ull;
	struct xr_addr addr;
	int i;

	memset(&raw, 0, sizeof(raw));
	end_open(&raw);
	end_qp(&raw);
	for (i = 0; i < 16; i++)
		assert_int_equal(post_recv(&raw, 1, raw.mem + 65536 + i * 8192, 8192), 0);
	assert_int_equal(raw.ops->address(name, &addr), 0);
	assert_int_equal(raw.ops->cm_connect(raw.dev, &addr, raw.qp, h, len, &raw.id), 0);
	while (!raw.events[XR_CM_ESTABLISHED] && !raw.events[XR_CM_REJECTED] && xr_now_ns() < end) {
		turn();
		end_poll(&raw);
	}
	return (int)raw.events[XR_CM_ESTABLISHED];
}

static const struct xr_hello good = { XR_CHANNEL_MAGIC, XR_CHANNEL_VERSION, 64, XR_GRANT(64, XR_CHANNEL_EAGER), 1000,
				      1u << 20, 1u << 20, 1, 0, 0, 0 };

static void nonsense_in_the_greeting(void **state)
{
	struct xr_hello h[13] = { good, good, good, good, good, good, good, good, good, good, good, good, good };
	uint32_t i;

	(void)state;
	h[0].magic++;
	h[1].version++;
	h[2].most = 0;
	h[3].most = UINT16_MAX;
	h[4].bytes = 0;
	h[5].bytes = UINT64_MAX;
	h[6].max_msg = 0;
	h[7].generation = 0;
	h[8].grant = 0;
	h[9].grant = XR_GRANT(0, XR_CHANNEL_EAGER);
	h[10].grant = XR_GRANT(65, XR_CHANNEL_EAGER);
	h[11].grant = XR_GRANT(64, XR_CHANNEL_EAGER + 1);
	h[12].grant = XR_GRANT(64, XR_EAGER_LEAST - 1);
	for (i = 0; i < 13; i++) {
		assert_int_equal(raw_connect(&h[i], sizeof(h[i])), 0);
		assert_int_equal(end_close(&raw), 0);
	}
	assert_int_equal(raw_connect(&good, XR_HELLO_LEAST - 1), 0);
	assert_int_equal(end_close(&raw), 0);
	assert_int_equal(raw_connect(&good, 0), 0);
	assert_int_equal(end_close(&raw), 0);
	assert_int_equal(a.opened + a.closed, 0);
	assert_null(a.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs, 0);
	assert_int_equal(raw_connect(&good, sizeof(good)), 1);
	assert_int_equal(end_close(&raw), 0);
}

static void nonsense_in_messages(void **state)
{
	static const struct xr_msg_hdr ok = { .version = XR_CHANNEL_VERSION, .type = XR_MSG_EAGER, .seq = 1000,
					      .ack = 1000, .len = 100, .imm = 100 };
	struct { struct xr_msg_hdr h; uint32_t len; } bad[] = {
		{ ok, 1 }, { ok, 31 }, { ok, 131 }, { ok, 133 }, { ok, 132 }, { ok, 132 }, { ok, 132 },
		{ ok, 132 }, { ok, 132 }, { ok, 132 }, { ok, 132 }, { ok, 32 }, { ok, 32 }, { ok, 48 },
		{ ok, 48 }, { ok, 48 },
	};
	uint32_t i, n;

	(void)state;
	bad[4].h.version++;
	bad[5].h.type = 0;
	bad[6].h.type = 99;
	bad[7].h.seq++;
	bad[8].h.ack++;
	bad[9].h.flags = 0x80;
	bad[10].h.len = UINT64_MAX;
	bad[11].h.type = XR_MSG_ACK;
	bad[11].h.seq++;
	bad[12].h.type = XR_MSG_ANNOUNCE;
	bad[12].h.len = 5000;		/* without where */
	bad[13].h.type = XR_MSG_ANNOUNCE;
	bad[13].h.len = UINT64_MAX;
	bad[14].h.type = XR_MSG_ANNOUNCE;
	bad[14].h.len = 0;
	bad[15].h.type = XR_MSG_ANNOUNCE;
	bad[15].h.len = 5000;		/* and where there is no memory */
	for (i = 0; i < XR_ARRAY_LEN(bad); i++) {
		a.opened = a.closed = 0;
		assert_int_equal(raw_connect(&good, sizeof(good)), 1);
		wait_for(a.opened);
		memset(raw.mem, 0xff, 4096);
		memcpy(raw.mem, &bad[i].h, sizeof(bad[i].h));
		assert_int_equal(post_send(&raw, 1, raw.mem, bad[i].len), 0);
		for (n = 0; n < 100000 && !a.closed; n++) {
			turn();
			end_poll(&raw);
		}
		assert_int_equal(a.closed, 1);
		assert_int_equal(a.error, i == 15 ? -EIO : -EPROTO);
		assert_int_equal(a.got, 0);
		wait_for(!a.ctx->channels);
		assert_int_equal(end_close(&raw), 0);
	}
	/* the same without a fault is taken */
	a.opened = a.closed = 0;
	assert_int_equal(raw_connect(&good, sizeof(good)), 1);
	memcpy(raw.mem, &ok, sizeof(ok));
	stream_fill(3, 0, raw.mem + sizeof(ok), 100);
	assert_int_equal(post_send(&raw, 1, raw.mem, 132), 0);
	wait_for((end_poll(&raw), a.got == 1));
	assert_int_equal(end_close(&raw), 0);
	wait_for(a.closed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_size_and_back, side_start, side_stop),
		cmocka_unit_test_setup_teardown(full_windows_both_ways, side_start, side_stop),
		cmocka_unit_test_setup_teardown(large_before_many_small_both_ways, side_start, side_stop),
		cmocka_unit_test_setup_teardown(registered_memory, side_start, side_stop),
		cmocka_unit_test_setup_teardown(closing_delivers_what_was_sent, side_start, side_stop),
		cmocka_unit_test_setup_teardown(both_close, side_start, side_stop),
		cmocka_unit_test_setup_teardown(closing_in_a_callback, side_start, side_stop),
		cmocka_unit_test_setup_teardown(the_peer_vanishes, side_start, side_stop),
		cmocka_unit_test_setup_teardown(nobody_listens, side_start, side_stop),
		cmocka_unit_test_setup_teardown(limits, side_start, side_stop),
		cmocka_unit_test_setup_teardown(events, side_start, side_stop),
		cmocka_unit_test_setup_teardown(nonsense_in_the_greeting, side_start, side_stop),
		cmocka_unit_test_setup_teardown(nonsense_in_messages, side_start, side_stop),
	};

	return rig_run(tests);
}
