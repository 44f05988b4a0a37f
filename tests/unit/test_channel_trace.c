/* SPDX-License-Identifier: BSD-2-Clause */
/* Messages of channels that are traced: what travels, and the records that both ends make. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/channel.h"
#include "pair_rig.h"
#include "tools/trace.h"

static char base[64], name[XR_ADDR_NAME];
static struct xrdma_context *a, *b;
static struct xrdma_channel *ach, *bch;
static uint32_t got, replies;
static uint8_t seen[XRDMA_TRACE_LEN];	/* trace id of the last message */
static int has_id;
static uint8_t data[300000];
static const uint8_t own_id[XRDMA_TRACE_LEN] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

static void on_accepted(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	ach = ch;
}

static void on_connected(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	bch = ch;
}

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	struct xrdma_msg answer = { .data = data, .len = 10, .trace = m->trace };

	(void)arg;
	got++;
	has_id = m->trace != NULL;
	if (has_id)
		memcpy(seen, m->trace, sizeof(seen));
	if (m->kind == XRDMA_REQUEST)
		assert_int_equal(xrdma_send_response(ch, m->id, &answer), 0);
}

static void on_reply(struct xrdma_channel *ch, const struct xrdma_msg *m, int error, void *arg)
{
	(void)ch, (void)arg;
	assert_int_equal(error, 0);
	assert_non_null(m->trace);
	replies++;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = on_accepted, .connected = on_connected, .message = on_message,
};

static int start(void **state)
{
	(void)state;
	strcpy(base, "/tmp/xr-test-trace-XXXXXX");
	if (!mkdtemp(base) || setenv("XRDMA_STATS_DIR", base, 1))
		return -1;
	ach = bch = NULL;
	got = replies = 0;
	if (pair_start(&a, &b, rig_device(), &callbacks, NULL, NULL, name) || xrdma_connect(b, name, &bch))
		return -1;
	bch = NULL;
	pair_wait(a, b, ach && bch);
	return 0;
}

static int end(void **state)
{
	char command[100];
	int r;

	(void)state;
	r = pair_stop(a, b);
	/* with the last context that traces its file goes, and the directory */
	snprintf(command, sizeof(command), "rmdir %s", base);
	return r || system(command);
}

static void send_one(size_t len, const uint8_t *trace)
{
	struct xrdma_msg m = { .data = data, .len = len, .trace = trace };
	uint32_t want = got + 1;

	assert_int_equal(xrdma_send_msg(bch, &m), 0);
	pair_wait(a, b, got == want);
}

/* Until everything is acknowledged, also what is said only when nothing else happens. */
static void all_acked(void)
{
	pair_wait(a, b, bch->released == bch->queued && ach->released == ach->queued);
	for (int i = 0; i < 200; i++)
		pair_turn(a, b);
}

static struct xr_trace_msgs messages(struct xr_trace_file *f)
{
	struct xr_trace_set set = { .file = f, .n = 1 };
	struct xr_trace_msgs m;
	const char *why = "";

	assert_int_equal(xr_trace_read(AT_FDCWD, xr_trace_path(), f, &why), 0);
	assert_int_equal(xr_trace_join(&set, &m), 0);
	return m;
}

#define ALL	((1u << XR_TRACE_STAGES) - 1)

static void off_an_id_travels_and_nothing_is_kept(void **state)
{
	(void)state;
	send_one(64, own_id);
	assert_true(has_id && !memcmp(seen, own_id, sizeof(seen)));
	send_one(64, NULL);
	assert_false(has_id);
	assert_string_equal(xr_trace_path(), "");
}

static void both_ends_of_a_message_come_together(void **state)
{
	static const size_t size[] = { 0, 64, 4096, 4097, 300000 };
	struct xr_trace_file f;
	struct xr_trace_msgs m;

	(void)state;
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 1000000000), 0);
	for (int i = 0; i < 5; i++) {
		send_one(size[i], own_id);
		assert_true(has_id && !memcmp(seen, own_id, sizeof(seen)));
	}
	all_acked();
	m = messages(&f);
	/* the same id for all, a span for each */
	assert_int_equal(m.n, 5);
	for (int i = 0; i < 5; i++) {
		const uint64_t *at = m.msg[i].at;

		assert_memory_equal(m.msg[i].id, own_id, sizeof(own_id));
		assert_int_equal(m.msg[i].len, size[i]);
		assert_int_equal(m.msg[i].have, ALL);
		assert_int_equal(m.msg[i].far, 0);
		assert_true(at[XR_TRACE_QUEUED] <= at[XR_TRACE_POSTED] && at[XR_TRACE_POSTED] <= at[XR_TRACE_SENT] &&
			    at[XR_TRACE_POSTED] <= at[XR_TRACE_RECEIVED] &&
			    at[XR_TRACE_RECEIVED] <= at[XR_TRACE_DELIVERED] &&
			    at[XR_TRACE_DELIVERED] <= at[XR_TRACE_ACKED]);
	}
	free(m.msg);
	xr_trace_file_free(&f);
}

static void sampled_ones_get_an_id(void **state)
{
	struct xr_trace_file f;
	struct xr_trace_msgs m;
	struct xrdma_msg ask = { .data = data, .len = 100 };
	uint32_t ids = 0;

	(void)state;
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 4), 0);
	for (int i = 0; i < 400; i++) {
		send_one(64, NULL);
		ids += (uint32_t)has_id;
	}
	assert_in_range(ids, 60, 140);
	all_acked();
	m = messages(&f);
	assert_int_equal(m.n, ids);
	for (size_t i = 1; i < m.n; i++)
		assert_true(memcmp(m.msg[i].id, m.msg[i - 1].id, 16) && m.msg[i].have == ALL);
	free(m.msg);
	xr_trace_file_free(&f);
	/* an answer that has the id of its request is of the same trace */
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(xrdma_send_request(bch, &ask, on_reply, NULL), 0);
	pair_wait(a, b, replies == 1);
	all_acked();
	m = messages(&f);
	assert_int_equal(m.n, ids + 2);
	assert_memory_equal(m.msg[m.n - 1].id, m.msg[m.n - 2].id, 16);
	assert_true(m.msg[m.n - 1].span != m.msg[m.n - 2].span);
	assert_true(m.msg[m.n - 2].sender.rec->flags & XR_TRACE_REQUEST);
	assert_true(m.msg[m.n - 1].sender.rec->flags & XR_TRACE_RESPONSE);
	free(m.msg);
	xr_trace_file_free(&f);
}

/* Both directions begin with the same number, and both contexts count their channels from 1. */
static void directions_are_told_apart_under_one_id(void **state)
{
	struct xrdma_msg msg = { .data = data, .len = 5, .trace = own_id };
	struct xr_trace_file f;
	struct xr_trace_msgs m;

	(void)state;
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(ach->queued, bch->queued);
	assert_int_equal(xrdma_send_msg(ach, &msg), 0);
	assert_int_equal(xrdma_send_msg(bch, &msg), 0);
	pair_wait(a, b, got == 2);
	all_acked();
	m = messages(&f);
	assert_int_equal(m.n, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(m.msg[i].have, ALL);
		assert_int_equal(m.msg[i].sender.rec->flow, m.msg[1 - i].receiver.rec->flow);
		assert_true(m.msg[i].sender.rec->flow != m.msg[i].receiver.rec->flow);
	}
	free(m.msg);
	xr_trace_file_free(&f);
}

static void one_that_waits_for_credit_shows_it(void **state)
{
	struct xrdma_msg msg = { .data = data, .len = 64, .trace = own_id };
	struct xr_trace_file f;
	struct xr_trace_msgs m;
	uint64_t wait = 0, took;
	uint32_t n = 0;

	(void)state;
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	while (!xrdma_send_msg(bch, &msg))
		n++;
	m = messages(&f);
	/* all are queued; those beyond the credit are not posted */
	assert_int_equal(m.n, n);
	for (size_t i = 0; i < m.n; i++)
		wait += m.msg[i].have == 1u << XR_TRACE_QUEUED;
	assert_int_equal(wait, bch->queued - bch->win.snd_nxt);
	assert_true(wait > 0);
	free(m.msg);
	xr_trace_file_free(&f);
	usleep(2000);
	pair_wait(a, b, got == n);
	all_acked();
	m = messages(&f);
	assert_int_equal(m.n, n);
	assert_true(xr_trace_took(&m.msg[n - 1], 0, &took));
	assert_true(took >= 2000000);
	assert_true(xr_trace_took(&m.msg[0], 0, &took));
	assert_true(took < 2000000);
	/* the other end does not trace */
	assert_int_equal(m.msg[0].have, ALL & ~(1u << XR_TRACE_RECEIVED | 1u << XR_TRACE_DELIVERED));
	free(m.msg);
	xr_trace_file_free(&f);
}

static void the_other_clock_is_bounded_by_an_ack(void **state)
{
	uint64_t error, t = xr_now_ns();
	int64_t offset;

	(void)state;
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	send_one(64, NULL);
	all_acked();
	assert_int_equal(xr_clock_get(&bch->clock, xr_now_ns(), &offset, &error), 1);
	/* the same clock: within the error of nothing, which is less than all of it took */
	assert_true((offset < 0 ? (uint64_t)-offset : (uint64_t)offset) <= error);
	assert_true(error <= xr_now_ns() - t);
	/* what a peer says that lies is a matter of its own */
	xr_channel_trace_clock(bch, UINT64_MAX, bch->win.snd_una);
	bch->clock_at = 1;
	xr_channel_trace_clock(bch, 1ull << 63, bch->win.snd_una);
	xr_clock_get(&bch->clock, xr_now_ns(), &offset, &error);
	send_one(64, NULL);
}

static void a_place_to_keep_records_is_needed(void **state)
{
	(void)state;
	setenv("XRDMA_STATS_DIR", "/nowhere", 1);
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1), -ENOENT);
	assert_int_equal(a->option[XRDMA_OPT_TRACE_SAMPLE], 0);
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1000000001), -EINVAL);
	setenv("XRDMA_STATS_DIR", base, 1);
	/* it is tried again */
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 1), 0);
	assert_int_equal(access(xr_trace_path(), R_OK), 0);
	assert_int_equal(xrdma_set_option(a, XRDMA_OPT_TRACE_SAMPLE, 0), 0);
	assert_int_equal(access(xr_trace_path(), R_OK), 0);
	send_one(64, NULL);
	assert_true(has_id);
	assert_int_equal(xrdma_set_option(b, XRDMA_OPT_TRACE_SAMPLE, 0), 0);
	assert_string_equal(xr_trace_path(), "");
	send_one(64, own_id);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(off_an_id_travels_and_nothing_is_kept),
		TEST(both_ends_of_a_message_come_together),
		TEST(sampled_ones_get_an_id),
		TEST(directions_are_told_apart_under_one_id),
		TEST(one_that_waits_for_credit_shows_it),
		TEST(the_other_clock_is_bounded_by_an_ack),
		TEST(a_place_to_keep_records_is_needed),
	};

	return rig_run(tests);
}
