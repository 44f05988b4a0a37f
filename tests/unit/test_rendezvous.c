/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a large message comes: READ by its receiver, or WRITten by its sender; who decides; what each leaves behind; and
 * peers that do it wrong.  test_channel_write and test_faults_write go on with all that messages do.
 */
#include <errno.h>
#include "core/channel.h"
#include "ring_rig.h"
#include "side_rig.h"

#define BIG	(5u << 20)
#define HUGE_MSG (8u << 20)

static uint8_t data[HUGE_MSG];

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	struct side *s = arg;

	(void)ch;
	assert_true(stream_check(3, m->id, m->data, m->len) == m->len);
	s->got++;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .closed = side_closed,
};

static void say(struct side *s, uint64_t i, size_t len)
{
	struct xrdma_msg m = { .data = data, .len = len, .id = i };

	stream_fill(3, i, data, len);
	assert_int_equal(xrdma_send_msg(s->ch, &m), 0);
}

static void want(struct side *s, enum xr_rendezvous how)
{
	assert_int_equal(xrdma_set_option(s->ctx, XRDMA_OPT_RENDEZVOUS, how), 0);
}

static void came(const struct side *s, uint64_t fetched, uint64_t placed)
{
	assert_int_equal(s->ch->count[XR_CHAN_FETCHED], fetched);
	assert_int_equal(s->ch->count[XR_CHAN_PLACED], placed);
}

static void nothing_left(void)
{
	xrdma_close(a.ch);
	wait_for(!a.ctx->channels && !b.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
	assert_int_equal(a.ctx->out_bytes + b.ctx->out_bytes, 0);
	assert_int_equal(a.ctx->budget.used + b.ctx->budget.used, 0);
}

/* Each way as its receiver wants it, whatever the other one does. */
static void each_way_by_itself(void **state)
{
	uint32_t i;

	(void)state;
	want(&a, XR_RENDEZVOUS_WRITE);
	want(&b, XR_RENDEZVOUS_READ);
	connect_both();
	for (i = 0; i < 20; i++) {
		say(&a, i, i % 4 ? 100 : 100000 + i);
		say(&b, i, i % 4 ? 100 : 100000 + i);
	}
	wait_for(a.got == 20 && b.got == 20);
	came(&a, 0, 5);
	came(&b, 5, 0);
	nothing_left();
}

/* As suits the device: by its READs; one whose memory must not change while it is looked at is READ all the same. */
static void the_rule(void **state)
{
	static const struct { enum xr_rendezvous how; uint8_t few, copy, placed; } c[] = {
		{ XR_RENDEZVOUS_AUTO, 0, 0, 0 }, { XR_RENDEZVOUS_AUTO, 1, 0, 1 }, { XR_RENDEZVOUS_AUTO, 1, 1, 0 },
		{ XR_RENDEZVOUS_READ, 1, 0, 0 }, { XR_RENDEZVOUS_WRITE, 0, 0, 1 }, { XR_RENDEZVOUS_WRITE, 0, 1, 0 },
	};
	uint32_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(c); i++) {
		want(&a, c[i].how);
		a.ctx->caps.few_reads = c[i].few;
		assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_COPY, c[i].copy), 0);
		a.opened = b.opened = a.got = 0;
		connect_both();
		say(&b, 1, 50000);
		wait_for(a.got == 1);
		came(&a, !c[i].placed, c[i].placed);
		nothing_left();
	}
}

/* A device that has no READs at all. */
static void no_reads(void **state)
{
	(void)state;
	a.ctx->caps.max_rd_atomic = 0;
	a.ctx->caps.few_reads = 1;
	connect_both();
	say(&b, 1, BIG);
	wait_for(a.got == 1);
	came(&a, 0, 1);
	nothing_left();
}

/* One message is on its way in several fragments at once, as many as the device has READs, or is let WRITE. */
static void fragments_side_by_side(void **state)
{
	uint32_t how, most;

	(void)state;
	for (how = XR_RENDEZVOUS_READ; how <= XR_RENDEZVOUS_WRITE; how++) {
		const uint32_t *out = NULL;

		want(&a, how);
		a.opened = b.opened = a.got = 0;
		connect_both();
		out = how == XR_RENDEZVOUS_READ ? &a.ch->rd_out : &b.ch->put_out;
		say(&b, 1, HUGE_MSG);
		most = 0;
		while (!a.got) {
			xrdma_polling(a.ctx);
			most = *out > most ? *out : most;
			xrdma_polling(b.ctx);
			most = *out > most ? *out : most;
		}
		assert_true(most >= 2);
		if (!rig_verbs())
			assert_int_equal(most, how == XR_RENDEZVOUS_READ ? a.ch->rd_max : XR_READ_MAX);
		nothing_left();
	}
}

/* Either end goes while a message is being WRITten. */
static void ends_in_between(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 12; i++) {
		want(&a, XR_RENDEZVOUS_WRITE);
		want(&b, XR_RENDEZVOUS_WRITE);
		a.opened = b.opened = a.got = b.got = 0;
		connect_both();
		say(&b, 1, BIG);
		say(&a, 1, BIG);
		for (uint32_t k = 0; k < i; k++)
			turn();
		if (i % 3)
			xrdma_close(i % 3 == 1 ? a.ch : b.ch);
		else
			xr_channel_fail(a.ch, -EIO);
		wait_for(!a.ctx->channels && !b.ctx->channels);
		assert_int_equal(a.ctx->pool.bufs + b.ctx->pool.bufs, 0);
		assert_int_equal(a.ctx->budget.used + b.ctx->budget.used, 0);
		assert_int_equal(a.ctx->out_bytes + b.ctx->out_bytes, 0);
	}
}

/* There is memory for one message at a time, and there are many channels that want it. */
static void they_take_turns(void **state)
{
	struct xrdma_channel *ch[8];
	uint32_t i;

	(void)state;
	want(&a, XR_RENDEZVOUS_WRITE);
	assert_int_equal(xrdma_set_option(a.ctx, XRDMA_OPT_FETCH_BYTES, 65536), 0);
	for (i = 0; i < 8; i++) {
		assert_int_equal(xrdma_connect(b.ctx, name, &ch[i]), 0);
		wait_for(a.opened == i + 1 && b.opened == i + 1);
	}
	for (i = 0; i < 80; i++) {
		b.ch = ch[i % 8];
		say(&b, i, 200000);
	}
	while (a.got < 80) {
		turn();
		assert_true(a.ctx->budget.used <= 200000);
	}
	assert_int_equal(a.ctx->budget.used, 0);
}

/* --- a peer that is not a channel --------------------------------------------------- */

static struct end raw;

static const struct xr_hello hello = { XR_CHANNEL_MAGIC, XR_CHANNEL_VERSION, 64, XR_GRANT(64, XR_CHANNEL_EAGER), 1000,
				       8u << 20, 64u << 20, 1, 0, XR_HELLO_WRITES | XR_HELLO_PLACES, 0 };

static void raw_connect(uint32_t len)
{
	uint64_t end = xr_now_ns() + 5000000000ull;
	struct xr_addr addr;
	int i;

	a.opened = a.closed = a.got = 0;
	a.error = 0;
	memset(&raw, 0, sizeof(raw));
	end_open(&raw);
	end_qp(&raw);
	for (i = 0; i < 16; i++)
		assert_int_equal(post_recv(&raw, 1, raw.mem + 65536 + i * 8192, 8192), 0);
	assert_int_equal(raw.ops->address(name, &addr), 0);
	assert_int_equal(raw.ops->cm_connect(raw.dev, &addr, raw.qp, &hello, len, &raw.id), 0);
	while (!(raw.events[XR_CM_ESTABLISHED] && a.opened) && xr_now_ns() < end) {
		turn();
		end_poll(&raw);
	}
	assert_true(raw.events[XR_CM_ESTABLISHED] && a.opened);
}

static void raw_say(struct xr_msg_hdr h, const void *more, uint32_t len)
{
	static uint32_t n;
	uint8_t *at = raw.mem + n++ % 64 * 256;

	h.version = XR_CHANNEL_VERSION;
	memcpy(at, &h, sizeof(h));
	if (len)
		memcpy(at + sizeof(h), more, len);
	assert_int_equal(post_send(&raw, 1, at, sizeof(h) + len), 0);
}

#define raw_wait(cond) wait_for((end_poll(&raw), (cond)))

/* The header of the last message of this type that raw has received, NULL: none. */
static const struct xr_msg_hdr *raw_got(uint8_t type)
{
	uint32_t i;

	for (i = raw.nwc; i-- > 0; ) {
		const struct xr_msg_hdr *h = raw.wc[i].data;

		if (raw.wc[i].status == XR_WC_SUCCESS && raw.wc[i].op == XR_WR_RECV &&
		    raw.wc[i].len >= sizeof(*h) && h->type == type)
			return h;
	}
	return NULL;
}

static void raw_announce(uint64_t len)
{
	struct xr_msg_where w = { .addr = (uintptr_t)raw.mem + (1u << 20), .rkey = raw.mr->rkey };

	stream_fill(3, 9, raw.mem + (1u << 20), len);
	raw_say((struct xr_msg_hdr){ .type = XR_MSG_ANNOUNCE, .seq = 1000, .ack = 1000, .len = len, .id = 9 }, &w,
		sizeof(w));
}

/* One that knows nothing of all this is READ from, and READs. */
static void an_older_peer(void **state)
{
	const struct xr_msg_where *w;
	const struct xr_msg_hdr *h;

	(void)state;
	want(&a, XR_RENDEZVOUS_WRITE);
	raw_connect(XR_HELLO_LEAST);
	raw_announce(100000);
	raw_wait(a.got == 1);
	came(&a, 1, 0);
	assert_null(raw_got(XR_MSG_PLACE));
	say(&a, 1, 100000);
	raw_wait(raw_got(XR_MSG_ANNOUNCE));
	h = raw_got(XR_MSG_ANNOUNCE);
	w = (const struct xr_msg_where *)(h + 1);
	assert_true(w->addr && w->rkey);
	assert_int_equal(end_close(&raw), 0);
	wait_for(a.closed);
}

/* What the wire looks like, from both ends. */
static void as_it_should(void **state)
{
	struct xr_msg_hdr p = { .type = XR_MSG_PLACE, .seq = 1001, .ack = 1000, .imm = 100000 };
	const struct xr_msg_where *w;
	const struct xr_msg_hdr *h;
	uint64_t at;
	uint32_t key;

	(void)state;
	want(&a, XR_RENDEZVOUS_WRITE);
	raw_connect(sizeof(hello));
	raw_announce(100000);
	raw_wait(raw_got(XR_MSG_PLACE));
	h = raw_got(XR_MSG_PLACE);
	assert_int_equal(h->ack, 1000);
	assert_int_equal(h->imm, 100000);
	at = h->id;
	key = (uint32_t)h->len;
	assert_int_equal(post(&raw, XR_WR_WRITE, 2, raw.mem + (1u << 20), 100000, 0, at, key), 0);
	raw_say((struct xr_msg_hdr){ .type = XR_MSG_THERE, .seq = 1001, .ack = 1000, .imm = 1000, .ctl = 1 }, NULL, 0);
	raw_wait(a.got == 1);
	came(&a, 0, 1);
	/* the other way round: nothing is opened, and it goes where it is asked to, with a word behind it */
	say(&a, 1, 100000);
	raw_wait(raw_got(XR_MSG_ANNOUNCE));
	w = (const struct xr_msg_where *)(raw_got(XR_MSG_ANNOUNCE) + 1);
	assert_true(!w->addr && !w->rkey);
	p.ctl = raw_got(XR_MSG_ACK) ? 2 : 1;
	p.id = (uintptr_t)raw.mem + (2u << 20);
	p.len = raw.mr->rkey;
	memset(raw.mem + (2u << 20), 0, 100001);
	raw_say(p, NULL, 0);
	raw_wait(raw_got(XR_MSG_THERE));
	assert_int_equal(raw_got(XR_MSG_THERE)->imm, 1000);
	assert_true(stream_check(3, 1, raw.mem + (2u << 20), 100000) == 100000);
	assert_int_equal(raw.mem[(2u << 20) + 100000], 0);
	/* what was placed is closed again: who WRITEs there once more ends the channel, and changes nothing */
	assert_int_equal(a.closed, 0);
	assert_int_equal(post(&raw, XR_WR_WRITE, 2, raw.mem, 8, 0, at, key), 0);
	raw_wait(a.closed);
	assert_int_equal(end_close(&raw), 0);
}

/* raw says `bad` when a has announced `len` bytes (0: nothing), and a ends the channel. */
static void refused(struct xr_msg_hdr bad, uint32_t times, uint32_t len, int error)
{
	want(&a, XR_RENDEZVOUS_WRITE);
	raw_connect(sizeof(hello));
	if (len) {
		say(&a, 1, len);
		raw_wait(raw_got(len > XR_CHANNEL_EAGER ? XR_MSG_ANNOUNCE : XR_MSG_EAGER));
	}
	bad.seq = 1000;
	if (!bad.id)
		bad.id = (uintptr_t)raw.mem + (2u << 20);
	while (times--)
		raw_say(bad, NULL, 0);
	raw_wait(a.closed);
	assert_int_equal(a.error, error);
	wait_for(!a.ctx->channels);
	assert_int_equal(a.ctx->pool.bufs, 0);
	assert_int_equal(a.ctx->out_bytes, 0);
	assert_int_equal(end_close(&raw), 0);
}

static void as_it_should_not(void **state)
{
	struct xr_msg_hdr place = { .type = XR_MSG_PLACE, .ack = 1000, .imm = 100000, .len = 12345 },
			  there = { .type = XR_MSG_THERE, .ack = 1000, .imm = 1000 }, h;

	(void)state;
	/* nothing was announced, or not this, or nothing any more */
	refused(place, 1, 0, -EPROTO);
	refused(place, 1, 100, -EPROTO);
	refused(place, 1, 99999, -EPROTO);
	h = place;
	h.ack = 1001;
	refused(h, 1, 100000, -EPROTO);
	h = place;
	h.imm = BIG;
	refused(h, 2, BIG, -EPROTO);
	/* it travelled in its SEND */
	h = place;
	h.imm = 100;
	refused(h, 1, 100, -EPROTO);
	/* memory that is none */
	refused(place, 1, 100000, -EIO);
	/* nothing was placed */
	refused(there, 1, 0, -EPROTO);
	refused(there, 1, 100000, -EPROTO);
	/* other things of the header */
	h = place;
	h.flags = XR_MSG_TRACE;
	refused(h, 1, 100000, -EPROTO);
}

/* Acknowledged while it is still being WRITten: its memory would be given to others. */
static void too_early(void **state)
{
	struct xr_msg_hdr h = { .type = XR_MSG_PLACE, .ack = 1000, .imm = BIG, .seq = 1000 };

	(void)state;
	raw_connect(sizeof(hello));
	say(&a, 1, BIG);
	raw_wait(raw_got(XR_MSG_ANNOUNCE));
	h.id = (uintptr_t)raw.mem;
	h.len = raw.mr->rkey;
	raw_say(h, NULL, 0);
	raw_say((struct xr_msg_hdr){ .type = XR_MSG_ACK, .ack = 1001, .seq = 1000, .imm = hello.grant }, NULL, 0);
	raw_wait(a.closed);
	assert_int_equal(a.error, -EPROTO);
	wait_for(!a.ctx->channels);
	assert_int_equal(a.ctx->out_bytes, 0);
	assert_int_equal(end_close(&raw), 0);
}

#define sides(test) cmocka_unit_test_setup_teardown(test, side_start, side_stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		sides(each_way_by_itself), sides(the_rule), sides(no_reads), sides(fragments_side_by_side),
		sides(ends_in_between), sides(they_take_turns), sides(an_older_peer), sides(as_it_should),
		sides(as_it_should_not), sides(too_early),
	};

	return rig_run(tests);
}
