/* SPDX-License-Identifier: BSD-2-Clause */
/* The shm device against the semantics of a reliable connection: data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ring_rig.h"
#include "fabric_rig.h"

static struct end a, b;

static void start(void)
{
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	rig_connect(&a, &b);
}

static void stop(void)
{
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

static void check_wc(const struct xr_wc *wc, uint64_t id, enum xr_wr_op op, enum xr_wc_status st)
{
	assert_int_equal(wc->wr_id, id);
	assert_int_equal(wc->op, op);
	assert_string_equal(xr_wc_status_name(wc->status), xr_wc_status_name(st));
}

static const uint32_t sizes[] = { 0, 1, 79, 80, 81, 119, 120, 121, 4096, 16384, 16385, 65535,
				  65536, 65537, 1000003, 4u << 20 };

static void send_and_receive_every_size(void **state)
{
	size_t i;

	(void)state;
	start();
	for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
		uint32_t n = sizes[i];

		a.nwc = b.nwc = 0;
		memset(b.mem, 0xee, END_MEM);
		stream_fill(7 + i, 0, a.mem, n);
		assert_int_equal(post_recv(&b, 100 + i, b.mem, END_MEM), 0);
		assert_int_equal(post_send(&a, 200 + i, a.mem, n), 0);
		until(&a, &b, a.nwc == 1 && b.nwc == 1);
		check_wc(&a.wc[0], 200 + i, XR_WR_SEND, XR_WC_SUCCESS);
		check_wc(&b.wc[0], 100 + i, XR_WR_RECV, XR_WC_SUCCESS);
		assert_int_equal(b.wc[0].len, n);
		assert_int_equal(b.wc[0].flags, 0);
		assert_ptr_equal(b.wc[0].data, b.mem);
		assert_int_equal(stream_check(7 + i, 0, b.mem, n), n);
		assert_true(n == END_MEM || b.mem[n] == 0xee);
	}
	stop();
}

static void gather_and_immediate(void **state)
{
	struct xr_sge sge[4];
	struct xr_send_wr wr = { .wr_id = 1, .op = XR_WR_SEND_IMM, .flags = XR_SEND_SIGNALED,
				 .sge = sge, .nsge = 4, .imm = 0xcafe };
	size_t cut;

	(void)state;
	start();
	stream_fill(5, 0, a.mem, 200000);
	for (cut = 0; cut < 3; cut++) {
		uint32_t n = cut == 0 ? 60 : cut == 1 ? 500 : 200000;

		a.nwc = b.nwc = 0;
		sge[0] = (struct xr_sge){ a.mem, n / 3, a.mr->lkey };
		sge[1] = (struct xr_sge){ a.mem + n / 3, 0, a.mr->lkey };
		sge[2] = (struct xr_sge){ a.mem + n / 3, 7, a.mr->lkey };
		sge[3] = (struct xr_sge){ a.mem + n / 3 + 7, n - n / 3 - 7, a.mr->lkey };
		assert_int_equal(post_recv(&b, 2, b.mem, END_MEM), 0);
		assert_int_equal(a.ops->post_send(a.qp, &wr), 0);
		until(&a, &b, a.nwc == 1 && b.nwc == 1);
		assert_int_equal(b.wc[0].len, n);
		assert_int_equal(b.wc[0].flags, XR_WC_WITH_IMM);
		assert_int_equal(b.wc[0].imm, 0xcafe);
		assert_int_equal(stream_check(5, 0, b.mem, n), n);
	}
	stop();
}

static void inline_is_copied_at_the_post(void **state)
{
	static uint8_t own[XR_CHUNK + 1];
	uint32_t most;

	(void)state;
	start();
	most = a.caps.max_inline;
	assert_in_range(most, 32, XR_CHUNK);
	assert_int_equal(post(&a, XR_WR_SEND, 1, own, most + 1, XR_SEND_INLINE, 0, 0), -EMSGSIZE);
	assert_int_equal(post(&a, XR_WR_READ, 1, own, 8, XR_SEND_INLINE, 0, 0), -EINVAL);
	/* memory that is not registered is fine, and may be overwritten at once */
	stream_fill(3, 0, own, most);
	assert_int_equal(post(&a, XR_WR_SEND, 1, own, most, XR_SEND_INLINE | XR_SEND_SIGNALED, 0, 0),
			 0);
	memset(own, 0, sizeof(own));
	assert_int_equal(post_recv(&b, 2, b.mem, END_MEM), 0);
	until(&a, &b, a.nwc == 1 && b.nwc == 1);
	assert_int_equal(stream_check(3, 0, b.mem, most), most);
	stop();
}

static void messages_arrive_in_order(void **state)
{
	struct rng g = { 77 };
	uint32_t sent = 0, got = 0, posted = 0, done = 0, all = rig_verbs() ? 500 : 5000;
	uint32_t len[64];

	(void)state;
	start();
	while (got < all) {
		while (posted - got < 32) {
			post_recv(&b, posted, b.mem + (posted % 32) * 65536, 65536);
			posted++;
		}
		while (sent < all && sent - done < 60) {
			uint32_t n = rng_size(&g) % 60000;

			len[sent % 64] = n;
			stream_fill(sent, 0, a.mem + (sent % 64) * 65536, n);
			if (post_send(&a, sent, a.mem + (sent % 64) * 65536, n))
				break;
			sent++;
		}
		a.nwc = b.nwc = 0;
		both_poll(&a, &b);
		for (uint32_t i = 0; i < b.nwc; i++, got++) {
			check_wc(&b.wc[i], got, XR_WR_RECV, XR_WC_SUCCESS);
			assert_int_equal(b.wc[i].len, len[got % 64]);
			assert_int_equal(stream_check(got, 0, b.wc[i].data, b.wc[i].len), b.wc[i].len);
		}
		for (uint32_t i = 0; i < a.nwc; i++, done++)
			check_wc(&a.wc[i], done, XR_WR_SEND, XR_WC_SUCCESS);
	}
	a.nwc = 0;
	until(&a, &b, done + a.nwc == sent);
	stop();
}

static void by_reference_until_released(void **state)
{
	uint32_t i, order[8] = { 3, 0, 7, 1, 2, 6, 5, 4 };

	(void)state;
	rig_shm_only();
	start();
	for (i = 0; i < 8; i++) {
		assert_int_equal(post_recv(&b, i, NULL, 0), 0);
		stream_fill(i, 0, a.mem, 50 + i * 9000);
		assert_int_equal(post(&a, XR_WR_SEND, i, a.mem, 50 + i * 9000, XR_SEND_INLINE, 0, 0), 0);
	}
	until(&a, &b, b.nwc == 8);
	/* more traffic behind what is held */
	for (i = 0; i < 40; i++) {
		assert_int_equal(post_recv(&b, 100, b.mem, 4096), 0);
		assert_int_equal(post_send(&a, 100, a.mem + 500000, 4096), 0);
	}
	until(&a, &b, b.nwc == 48 && a.nwc == 40);
	for (i = 0; i < 8; i++) {
		struct xr_wc *wc = &b.wc[order[i]];

		assert_int_not_equal(wc->ref, 0);
		assert_int_equal(stream_check(order[i], 0, wc->data, wc->len), 50 + order[i] * 9000);
		b.ops->recv_release(b.qp, wc->ref);
		/* twice is once, and nonsense is nothing */
		b.ops->recv_release(b.qp, wc->ref);
		b.ops->recv_release(b.qp, 0);
		b.ops->recv_release(b.qp, 12345678);
	}
	stop();
}

/* What is held closes the sender's ring, never more: it goes on when it is released. */
static void held_messages_are_backpressure(void **state)
{
	uint32_t sent = 0, i;

	(void)state;
	rig_shm_only();
	start();
	for (i = 0; i < 64; i++)
		assert_int_equal(post_recv(&b, i, NULL, 0), 0);
	while (sent < 64 && !post(&a, XR_WR_SEND, sent, a.mem, XR_CHUNK, XR_SEND_INLINE, 0, 0))
		sent++;
	/* 4 MiB of 64 KiB pieces are in flight at most */
	assert_int_equal(sent, 64);
	assert_int_equal(post(&a, XR_WR_SEND, sent, a.mem, XR_CHUNK, XR_SEND_INLINE, 0, 0), -EAGAIN);
	until(&a, &b, b.nwc == 64);
	assert_int_equal(post(&a, XR_WR_SEND, sent, a.mem, XR_CHUNK, XR_SEND_INLINE, 0, 0), -EAGAIN);
	for (i = 0; i < 64; i++)
		b.ops->recv_release(b.qp, b.wc[i].ref);
	settle(&a, &b);
	assert_int_equal(post(&a, XR_WR_SEND, sent, a.mem, XR_CHUNK, XR_SEND_INLINE, 0, 0), 0);
	stop();
}

static void write_of_every_size(void **state)
{
	size_t i;

	(void)state;
	start();
	for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
		uint32_t n = sizes[i];

		a.nwc = b.nwc = 0;
		memset(b.mem, 0xee, END_MEM);
		stream_fill(i, 0, a.mem, n);
		assert_int_equal(post(&a, XR_WR_WRITE, i, a.mem, n, XR_SEND_SIGNALED,
				      (uintptr_t)b.mem, b.mr->rkey), 0);
		until(&a, &b, a.nwc == 1);
		check_wc(&a.wc[0], i, XR_WR_WRITE, XR_WC_SUCCESS);
		assert_int_equal(stream_check(i, 0, b.mem, n), n);
		assert_true(n == END_MEM || b.mem[n] == 0xee);
		assert_int_equal(b.nwc, 0);
	}
	stop();
}

static void write_with_immediate(void **state)
{
	size_t i;

	(void)state;
	start();
	for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
		a.nwc = b.nwc = 0;
		stream_fill(i, 0, a.mem, sizes[i]);
		assert_int_equal(post(&a, XR_WR_WRITE_IMM, i, a.mem, sizes[i], XR_SEND_SIGNALED,
				      (uintptr_t)b.mem, b.mr->rkey), 0);
		/* it takes a receive; until there is one the peer is not ready */
		settle(&a, &b);
		assert_int_equal(a.nwc + b.nwc, 0);
		assert_int_equal(post_recv(&b, 9, NULL, 0), 0);
		until(&a, &b, a.nwc == 1 && b.nwc == 1);
		check_wc(&b.wc[0], 9, XR_WR_RECV_WRITE_IMM, XR_WC_SUCCESS);
		assert_int_equal(b.wc[0].imm, 0xfeed);
		assert_int_equal(b.wc[0].len, sizes[i]);
		assert_int_equal(stream_check(i, 0, b.mem, sizes[i]), sizes[i]);
	}
	stop();
}

static void read_of_every_size(void **state)
{
	size_t i;

	(void)state;
	start();
	for (i = 0; i < XR_ARRAY_LEN(sizes); i++) {
		uint32_t n = sizes[i];

		a.nwc = b.nwc = 0;
		memset(a.mem, 0xee, END_MEM);
		stream_fill(i, 0, b.mem, n);
		assert_int_equal(post(&a, XR_WR_READ, i, a.mem, n, XR_SEND_SIGNALED,
				      (uintptr_t)b.mem, b.mr->rkey), 0);
		until(&a, &b, a.nwc == 1);
		check_wc(&a.wc[0], i, XR_WR_READ, XR_WC_SUCCESS);
		assert_int_equal(a.wc[0].len, n);
		assert_int_equal(stream_check(i, 0, a.mem, n), n);
		assert_true(n == END_MEM || a.mem[n] == 0xee);
	}
	stop();
}

/* The answer to a READ passes SENDs that wait for a receive. */
static void read_passes_sends_that_are_stuck(void **state)
{
	uint32_t i;

	(void)state;
	start();
	for (i = 0; i < 60; i++)
		assert_int_equal(post(&a, XR_WR_SEND, i, a.mem + (2 << 20), 60000, 0, 0, 0), 0);
	stream_fill(9, 0, a.mem, 1 << 20);
	settle(&a, &b);
	assert_int_equal(post(&b, XR_WR_READ, 1, b.mem, 1 << 20, XR_SEND_SIGNALED,
			      (uintptr_t)a.mem, a.mr->rkey), 0);
	until(&a, &b, b.nwc == 1);
	check_wc(&b.wc[0], 1, XR_WR_READ, XR_WC_SUCCESS);
	assert_int_equal(stream_check(9, 0, b.mem, 1 << 20), 1 << 20);
	for (i = 0; i < 60; i++)
		assert_int_equal(post_recv(&b, i, b.mem + (2 << 20), 60000), 0);
	until(&a, &b, b.nwc == 61);
	stop();
}

static void many_reads_are_queued(void **state)
{
	uint32_t i;

	(void)state;
	start();
	stream_fill(1, 0, b.mem, 1 << 20);
	for (i = 0; i < 60; i++)
		assert_int_equal(post(&a, XR_WR_READ, i, a.mem + i * 16384, 16384, XR_SEND_SIGNALED,
				      (uintptr_t)b.mem + i * 16384, b.mr->rkey), 0);
	until(&a, &b, a.nwc == 60);
	for (i = 0; i < 60; i++)
		check_wc(&a.wc[i], i, XR_WR_READ, XR_WC_SUCCESS);
	assert_int_equal(stream_check(1, 0, a.mem, 60 * 16384), 60 * 16384);
	stop();
}

static void fence_waits_for_reads(void **state)
{
	(void)state;
	start();
	stream_fill(1, 0, b.mem, 1 << 20);
	assert_int_equal(post(&a, XR_WR_READ, 1, a.mem, 1 << 20, XR_SEND_SIGNALED,
			      (uintptr_t)b.mem, b.mr->rkey), 0);
	/* overwrites what is being read: with the fence the READ has the old bytes */
	assert_int_equal(post(&a, XR_WR_WRITE, 2, a.mem + (2 << 20), 1 << 20,
			      XR_SEND_SIGNALED | XR_SEND_FENCE, (uintptr_t)b.mem, b.mr->rkey), 0);
	until(&a, &b, a.nwc == 2);
	check_wc(&a.wc[0], 1, XR_WR_READ, XR_WC_SUCCESS);
	check_wc(&a.wc[1], 2, XR_WR_WRITE, XR_WC_SUCCESS);
	assert_int_equal(stream_check(1, 0, a.mem, 1 << 20), 1 << 20);
	stop();
}

static void unsignalled_sends_stay_silent(void **state)
{
	uint32_t i, sent;

	(void)state;
	start();
	for (i = 0, sent = 0; sent < 1000; i++) {
		post_recv(&b, 1, b.mem, 64);
		if (!post(&a, XR_WR_SEND, sent, a.mem, 64, sent == 999 ? XR_SEND_SIGNALED : 0, 0, 0))
			sent++;
		b.nwc = 0;
		both_poll(&a, &b);
	}
	until(&a, &b, (b.nwc = 0, a.nwc == 1));
	check_wc(&a.wc[0], 999, XR_WR_SEND, XR_WC_SUCCESS);
	settle(&a, &b);
	assert_int_equal(a.nwc, 1);
	stop();
}

static void a_full_completion_queue_holds_back(void **state)
{
	struct xr_wc wc[256];
	uint32_t i, n = 0;

	(void)state;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	b.cqe = 4;
	rig_connect(&a, &b);
	for (i = 0; i < 60; i++) {
		assert_int_equal(post_recv(&b, i, b.mem, 64), 0);
		assert_int_equal(post(&a, XR_WR_SEND, i, a.mem, 64, XR_SEND_SIGNALED, 0, 0), 0);
	}
	while (n < 60) {
		int k = b.ops->cq_poll(b.cq, wc, 3);

		end_poll(&a);
		for (i = 0; i < (uint32_t)k; i++)
			assert_int_equal(wc[i].wr_id, n + i);
		n += (uint32_t)k;
	}
	until(&a, &b, a.nwc == 60);
	stop();
}

/* Sleeping on the descriptors alone: no wake-up is lost over many rounds. */
static void armed_queues_wake(void **state)
{
	struct pollfd p[2];
	int i;

	(void)state;
	start();
	p[0] = (struct pollfd){ a.ops->cq_fd(a.cq), POLLIN, 0 };
	p[1] = (struct pollfd){ b.ops->cq_fd(b.cq), POLLIN, 0 };
	for (i = 0; i < (rig_verbs() ? 300 : 2000); i++) {
		uint32_t size = i % 3 ? 64 : 30000;

		a.nwc = b.nwc = 0;
		assert_int_equal(post_recv(&b, 1, b.mem, 65536), 0);
		do {
			b.ops->cq_arm(b.cq);
		} while (end_poll(&b));
		assert_int_equal(post_send(&a, 2, a.mem, size), 0);
		do {
			a.ops->cq_arm(a.cq);
		} while (end_poll(&a));
		/* the receiver was rung for */
		assert_int_equal(poll(&p[1], 1, 5000), 1);
		while (!b.nwc) {
			b.ops->cq_event(b.cq);
			end_poll(&b);
		}
		if (!a.nwc) {
			assert_int_equal(poll(&p[0], 1, 5000), 1);
			while (!a.nwc) {
				a.ops->cq_event(a.cq);
				end_poll(&a);
			}
		}
		/* and then they are quiet */
		a.ops->cq_event(a.cq);
		b.ops->cq_event(b.cq);
		assert_int_equal(poll(p, 2, 0), 0);
	}
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(send_and_receive_every_size),
		cmocka_unit_test(gather_and_immediate),
		cmocka_unit_test(inline_is_copied_at_the_post),
		cmocka_unit_test(messages_arrive_in_order),
		cmocka_unit_test(by_reference_until_released),
		cmocka_unit_test(held_messages_are_backpressure),
		cmocka_unit_test(write_of_every_size),
		cmocka_unit_test(write_with_immediate),
		cmocka_unit_test(read_of_every_size),
		cmocka_unit_test(read_passes_sends_that_are_stuck),
		cmocka_unit_test(many_reads_are_queued),
		cmocka_unit_test(fence_waits_for_reads),
		cmocka_unit_test(unsignalled_sends_stay_silent),
		cmocka_unit_test(a_full_completion_queue_holds_back),
		cmocka_unit_test(armed_queues_wake),
	};

	return rig_run(tests);
}
