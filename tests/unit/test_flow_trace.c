/* SPDX-License-Identifier: BSD-2-Clause */
/* Which sends of a flow are traced, and what both ends make of them; the peer is played by hand. */
#define FLOW_RIG_TRACE
#include "flow_rig.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include "core/usercopy.h"
#include "tools/trace.h"

static char base[64];

int xr_policy_trace(void) { return xr_trace_open(base, XR_TRACE_FLOWS, "flow"); }

static int start(void **state)
{
	(void)state;
	strcpy(base, "/tmp/xr-test-trace-XXXXXX");
	if (!mkdtemp(base))
		return -1;
	xr_trace_forked();
	xr_cfg.trace_sample = 1;
	flow_make();
	flow_on_ring();
	return 0;
}

static int end(void **state)
{
	char command[100];

	(void)state;
	flow_end();
	xr_cfg.trace_sample = 0;
	xr_trace_close();
	snprintf(command, sizeof(command), "rm -rf %s", base);
	return system(command);
}

/* The records so far, as letters: of stage, a capital one for the other end's word. */
static const char *records(struct xr_trace_file *f)
{
	static char text[64];
	const char *why = "";
	size_t i;

	text[0] = '\0';
	if (!*xr_trace_path())
		return "no file";
	assert_int_equal(xr_trace_read(AT_FDCWD, xr_trace_path(), f, &why), 0);
	for (i = 0; i < f->n && i < sizeof(text) - 1; i++)
		text[i] = (f->rec[i].flags & XR_TRACE_FAR ? "QPSRDA" : "qpsrda")[f->rec[i].stage];
	text[i] = '\0';
	return text;
}

static void are(const char *want)
{
	struct xr_trace_file f = { .n = 0 };

	assert_string_equal(records(&f), want);
	for (size_t i = 1; i < f.n; i++)
		assert_true(f.rec[i].at_ns >= f.rec[i - 1].at_ns);
	xr_trace_file_free(&f);
}

/* The peer takes up to n bytes; how many there were. */
static size_t far_take(size_t n)
{
	size_t sum = 0;
	struct xr_view v;

	while (sum < n && xr_shm_rx_peek(&R.rx, &v) == 1) {
		size_t k = v.len < n - sum ? v.len : n - sum;

		xr_shm_rx_take(&R.rx, &v, k);
		sum += k;
	}
	assert_int_equal(xr_shm_rx_commit(&R.rx), 0);
	return sum;
}

static void off_there_is_no_file(void **state)
{
	struct xr_shm_box box;

	(void)state;
	xr_cfg.trace_sample = 0;
	assert_int_equal(flow_send(5), 5);
	are("no file");
	assert_int_equal(far_take(5), 5);
	assert_int_equal(R.rx.traced, 0);
	assert_int_equal(xr_shm_rx_box(&R.rx, &box), 0);
}

static void a_send_is_marked_and_its_records_made(void **state)
{
	struct xr_trace_file f;
	struct xr_shm_box box;

	(void)state;
	assert_int_equal(flow_send(5), 5);
	are("qps");
	assert_int_equal(far_take(5), 5);
	assert_int_equal(R.rx.traced, 1);
	assert_int_equal(xr_shm_rx_box(&R.rx, &box), 1);
	assert_int_equal(box.begin, 0);
	assert_int_equal(box.end, 5);
	assert_true(box.queued && box.posted >= box.queued && R.rx.traced_ns >= box.posted);
	/* the next one finds that it was consumed, and is traced itself */
	assert_int_equal(flow_send(7), 7);
	are("qpsaqps");
	records(&f);
	assert_true(f.rec[0].id[0] == box.id[0] && f.rec[0].id[1] == box.id[1] && f.rec[0].span == box.span);
	assert_int_equal(f.rec[0].len, 5);
	assert_true(f.rec[3].span == box.span && f.rec[4].span != box.span && f.rec[4].id[0] != box.id[0]);
	xr_trace_file_free(&f);
	/* one at a time: this one is not, and the file says so */
	assert_int_equal(flow_send(9), 9);
	are("qpsaqps");
	records(&f);
	assert_int_equal(f.skipped, 1);
	xr_trace_file_free(&f);
	/* a part is not all of it */
	assert_int_equal(far_take(6), 6);
	assert_int_equal(xr_shm_rx_box(&R.rx, &box), 1);
	assert_int_equal(box.begin, 5);
	assert_int_equal(box.end, 12);
	assert_int_equal(flow_send(1), 1);
	are("qpsaqps");
}

static void large_ones_and_such_behind_open_slots_begin_a_slot(void **state)
{
	struct xr_view v;

	(void)state;
	R.f->tx.inflight_max = 1 << 20;
	xr_cfg.trace_sample = 0;
	/* crowded: small ones are appended to an open slot */
	for (int i = 0; i < 8; i++)
		assert_int_equal(flow_send(300), 300);
	assert_int_equal(R.f->tx.open, 1);
	xr_cfg.trace_sample = 1;
	assert_int_equal(flow_send(300), 300);
	are("qps");
	assert_int_equal(far_take(8 * 300), 8 * 300);
	assert_int_equal(R.rx.traced, 0);
	assert_int_equal(xr_shm_rx_peek(&R.rx, &v), 1);
	assert_int_equal(v.len, 300);
	assert_int_equal(R.rx.traced, R.rx.seq);
	assert_int_equal(far_take(300), 300);
	assert_int_equal(flow_send(65536), 65536);
	are("qpsaqps");
	assert_int_equal(far_take(65536), 65536);
}

static void of_a_full_ring_nothing_is_asked(void **state)
{
	struct xr_trace_file f;

	(void)state;
	R.f->tx.inflight_max = 1 << 20;
	xr_cfg.trace_sample = 0;
	while (R.f->tx.head - R.f->tx.done < SLOTS - XR_RING_CTL)
		assert_int_equal(xr_shm_tx_send_traced(&R.f->tx, &(struct iovec){ base, 1 }, 1, 0, 1,
						       &(struct xr_shm_box){ 0 }), 1);
	xr_cfg.trace_sample = 1;
	/* it is appended to the last slot, which cannot be marked any more */
	assert_int_equal(flow_send(5), 5);
	are("");
	records(&f);
	assert_int_equal(f.skipped, 1);
	xr_trace_file_free(&f);
}

static void behind_a_closed_window_it_waits(void **state)
{
	struct xr_trace_file f;

	(void)state;
	xr_cfg.trace_sample = 0;
	assert_int_equal(flow_send(WINDOW), WINDOW);
	xr_cfg.trace_sample = 1;
	/* more than a slot holds: less of it goes beyond the window */
	assert_int_equal(flow_send(200), -EAGAIN);
	are("");
	usleep(2000);
	assert_int_equal(far_take(WINDOW), WINDOW);
	assert_int_equal(flow_send(50), 50);
	are("qps");
	records(&f);
	assert_true(f.rec[1].at_ns - f.rec[0].at_ns >= 2000000);
	assert_int_equal(f.skipped, 0);
	xr_trace_file_free(&f);
}

static void what_was_sent_in_part_is_as_long_as_that(void **state)
{
	struct xr_shm_box box;

	(void)state;
	/* the window is 64 bytes: a program that does not block is told of these */
	assert_int_equal(flow_send(200), 64);
	are("qps");
	assert_int_equal(xr_shm_rx_box(&R.rx, &box), 1);
	assert_int_equal(box.end, 64);
	assert_int_equal(far_take(64), 64);
	assert_int_equal(flow_send(1), 1);
	are("qpsaqps");
}

static void on_fault(int sig, siginfo_t *si, void *context)
{
	if (!xr_usercopy_fixup(context, (uintptr_t)si->si_addr, 0))
		_exit(sig);
}

static void a_bad_address_is_no_message(void **state)
{
	struct sigaction sa = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	struct iovec bad = { (void *)8, 5 };

	(void)state;
	sigaction(SIGSEGV, &sa, NULL);
	assert_int_equal(xr_flow_send(R.f, R.fd, &bad, 1, MSG_NOSIGNAL), -EFAULT);
	are("");
	assert_int_equal(flow_send(5), 5);
	are("qps");
	assert_int_equal(far_take(5), 5);
}

/* ---- receiving ------------------------------------------------------------------ */

static void far_send_traced(size_t n, struct xr_shm_box *box)
{
	static char buf[64];
	struct iovec iov = { buf, n };

	assert_int_equal(xr_shm_tx_send_traced(&R.tx, &iov, 1, 0, n, box), (ssize_t)n);
	assert_int_equal(box->end - box->begin, n);
}

static void what_the_peer_traced_is_told_by_both_times(void **state)
{
	/* its clock is a second behind, and it took 5 us to hear of us */
	uint64_t then = xr_now_ns() - 1000000000;
	struct xr_shm_box box = { .id = { 1, 2 }, .span = 3, .queued = then, .posted = then + 10,
				  .heard = -999995000 };
	struct xr_trace_file f;

	(void)state;
	far_send("before");
	far_send_traced(20, &box);
	far_send("behind");
	/* looked at, and not read */
	assert_true(xr_flow_poll(R.f, R.fd) & POLLIN);
	are("no file");
	assert_int_equal(flow_recv(), 6 + 20 + 6);
	assert_string_equal(records(&f), "QPrd");
	for (size_t i = 0; i < 4; i++) {
		assert_true(f.rec[i].id[0] == 1 && f.rec[i].id[1] == 2 && f.rec[i].span == 3);
		assert_int_equal(f.rec[i].len, 20);
		assert_true(f.rec[i].flags & XR_TRACE_CLOCK);
		assert_in_range(-f.rec[i].offset_ns, 900000000, 1100000000);
	}
	assert_int_equal(f.rec[0].at_ns, then);
	xr_trace_file_free(&f);
	assert_int_equal(R.f->rx.traced, 0);
}

static void read_in_parts_it_is_delivered_with_the_last(void **state)
{
	struct xr_shm_box box = { .id = { 1, 2 }, .span = 3, .heard = INT64_MAX };
	char buf[8];
	struct iovec iov = { buf, 8 };

	(void)state;
	far_send_traced(20, &box);
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, MSG_PEEK), 8);
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 8);
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 8);
	are("");
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 4);
	are("QPrd");
}

static void who_does_not_trace_makes_nothing_of_it(void **state)
{
	struct xr_shm_box box = { .id = { 1, 2 }, .span = 3 };

	(void)state;
	xr_cfg.trace_sample = 0;
	far_send_traced(20, &box);
	assert_int_equal(flow_recv(), 20);
	are("no file");
	assert_int_equal(R.f->rx.traced, 0);
}

/* Whatever the peer writes there: bytes are what they are, and the rest is shown as its word. */
static void a_box_of_nonsense_harms_nobody(void **state)
{
	uint64_t seed = 7;

	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct xr_shm_box box = { .id = { 1, 2 }, .span = 3, .heard = 0 };

		far_send_traced(20, &box);
		for (unsigned int w = 0; w < XR_BOX_WORDS; w++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			/* the slot stays right now and then, and so does the end */
			if (seed & 1 || (w == offsetof(struct xr_shm_box, slot) / 8 && seed & 2))
				continue;
			xr_store_relaxed(&R.tx.dir->box[w], seed % 3 ? seed : seed >> 60);
		}
		if (i % 7 == 0)
			xr_store_relaxed(&R.tx.dir->box_seq, (uint32_t)seed);
		assert_int_equal(flow_recv(), 20);
	}
	/* a sound one is told of again */
	xr_trace_forked();
	xr_trace_close();
	{
		struct xr_shm_box box = { .id = { 1, 2 }, .span = 3, .heard = 0 };

		far_send_traced(20, &box);
		assert_int_equal(flow_recv(), 20);
		are("QPrd");
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(off_there_is_no_file),
		TEST(a_send_is_marked_and_its_records_made),
		TEST(large_ones_and_such_behind_open_slots_begin_a_slot),
		TEST(of_a_full_ring_nothing_is_asked),
		TEST(behind_a_closed_window_it_waits),
		TEST(what_was_sent_in_part_is_as_long_as_that),
		TEST(a_bad_address_is_no_message),
		TEST(what_the_peer_traced_is_told_by_both_times),
		TEST(read_in_parts_it_is_delivered_with_the_last),
		TEST(who_does_not_trace_makes_nothing_of_it),
		TEST(a_box_of_nonsense_harms_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
