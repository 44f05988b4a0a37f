/* SPDX-License-Identifier: BSD-2-Clause */
/* The parts of the verbs fabric that need no device: private data, addresses, timers, the table of devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/fabric_verbs.h"

/* A handshake of another version, or of nobody that we know, configures nothing. */
static void private_data(void **state)
{
	uint8_t wire[64], bad[64];
	struct v_wire w = { V_WIRE_DATA, 5, IBV_MTU_4096, (const uint8_t *)"hello" };
	uint32_t i;

	(void)state;
	memset(wire, 0, sizeof(wire));
	assert_int_equal(v_wire_put(wire, &w), V_WIRE + 5);
	memset(&w, 0, sizeof(w));
	/* the connection manager pads: the length is what was sent */
	assert_int_equal(v_wire_get(wire, 56, &w), 0);
	assert_int_equal(w.len, 5);
	assert_int_equal(w.mtu, IBV_MTU_4096);
	assert_memory_equal(w.data, "hello", 5);
	assert_int_equal(v_wire_get(wire, V_WIRE + 5, &w), 0);
	for (i = 0; i < V_WIRE + 5; i++)
		assert_int_equal(v_wire_get(wire, i, &w), -EPROTO);
	assert_int_equal(v_wire_get(NULL, 56, &w), -EPROTO);
	/* every byte of the head, and every value that it must not have */
	for (i = 0; i < V_WIRE * 256; i++) {
		uint32_t at = i / 256;
		uint8_t v = (uint8_t)i;
		int good = v == wire[at] || (at == 3 && v <= 64 - V_WIRE) || (at == 4 && v >= 1 && v <= 5) ||
			   (at == 2 && v >= V_WIRE_DATA && v <= V_WIRE_MEMORY);

		memcpy(bad, wire, sizeof(bad));
		bad[at] = v;
		assert_int_equal(v_wire_get(bad, sizeof(bad), &w), good ? 0 : -EPROTO);
	}
}

static void addresses(void **state)
{
	static const char *const bad[] = { "", ":", "1.2.3.4", "1.2.3.4:", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:1x",
		"1.2.3:80", "fd00::1:80", "[fd00::1:80", "[fd00::1]80", "[]:80", "[1.2.3.4]:80", "host:80", "[*]:80",
		"]:80" };
	struct xr_addr a;
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(bad); i++)
		assert_int_equal(v_address(bad[i], &a), -EINVAL);
	assert_int_equal(v_address("10.9.0.1:7000", &a), 0);
	assert_int_equal(a.family, XR_AF_INET);
	assert_int_equal(a.port, 7000);
	assert_memory_equal(a.ip, "\x0a\x09\x00\x01", 4);
	assert_true(v_routable(&a));
	assert_int_equal(v_address("[fd00::1]:65535", &a), 0);
	assert_int_equal(a.family, XR_AF_INET6);
	assert_int_equal(a.port, 65535);
	assert_true(v_routable(&a));
	assert_int_equal(v_address("*:1", &a), 0);
	assert_false(v_routable(&a));
}

/* A link-local GID is chosen. */
static void link_local(void **state)
{
	static const char *const local[] = { "[fe80::1]:1", "[febf::1]:1", "169.254.1.1:1", "127.0.0.1:1", "[::1]:1" };
	struct xr_addr a;
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(local); i++) {
		assert_int_equal(v_address(local[i], &a), 0);
		assert_false(v_routable(&a));
	}
}

/* Retry timers that are left alone detect nothing for 4.3 s. */
static void detection(void **state)
{
	uint32_t ms;

	(void)state;
	assert_int_equal(v_ack_timeout(0), 15);
	assert_int_equal(v_ack_timeout(1000), 15);
	for (ms = 10; ms <= 60000; ms += 7) {
		uint64_t t = (V_RETRY + 1) * (4096ull << v_ack_timeout(ms));

		/* as much of it as a power of two can be */
		assert_true(t <= ms * 1000000ull || v_ack_timeout(ms) == 8);
		assert_true(2 * t > ms * 1000000ull);
	}
	assert_true(v_ack_timeout(UINT32_MAX) <= 31);
}

/* min_rnr_timer 0 means 655 ms. */
static void rnr_timer(void **state)
{
	static const struct { uint32_t us; uint8_t code; } t[] = {
		{ 0, 12 }, { 1, 1 }, { 10, 1 }, { 11, 2 }, { 640, 12 }, { 641, 13 }, { 20000, 22 }, { 491520, 31 },
		{ 491521, 31 }, { UINT32_MAX, 31 },
	};
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(t); i++)
		assert_int_equal(v_rnr_timer(t[i].us), t[i].code);
}

/* Errors come as -1 with errno, as errno and as -errno. */
static void signs(void **state)
{
	(void)state;
	assert_int_equal(v_errno(0), 0);
	assert_int_equal(v_errno(ENOMEM), -ENOMEM);
	assert_int_equal(v_errno(-ENOMEM), -ENOMEM);
	errno = EAGAIN;
	assert_int_equal(v_errno(-1), -EAGAIN);
	errno = 0;
	assert_int_equal(v_errno(-1), -EIO);
	assert_int_equal(v_null(), -ENOMEM);
}

static void every_status_is_one_of_ours(void **state)
{
	int i;

	(void)state;
	assert_int_equal(v_status(IBV_WC_SUCCESS), XR_WC_SUCCESS);
	for (i = 1; i < 64; i++)
		assert_in_range(v_status((enum ibv_wc_status)i), 1, XR_WC_STATUS_COUNT - 1);
	assert_int_equal(v_status(IBV_WC_WR_FLUSH_ERR), XR_WC_WR_FLUSH_ERR);
	assert_int_equal(v_status(IBV_WC_RETRY_EXC_ERR), XR_WC_RETRY_EXC_ERR);
	assert_int_equal(v_status(IBV_WC_RNR_RETRY_EXC_ERR), XR_WC_RNR_RETRY_EXC_ERR);
}

static void devices(void **state)
{
	(void)state;
	assert_true(v_quirk(0xffffff)->software);
	assert_string_equal(v_quirk(0x626d74)->driver, "siw");
	assert_false(v_quirk(0x2c9)->software);
	assert_string_equal(v_quirk(1)->driver, "unknown");
}

/* --- a device that says of READs that failed that they are done ------------------------------------------- */

#define RAW_POSTS 32u

static struct {
	struct v_dev dev;
	struct v_cq cq;
	struct v_mr mr;
	struct v_qp qp, *table[1];
	struct v_swr sq[RAW_POSTS];
	struct ibv_context ctx;
	struct ibv_qp ib;
	struct ibv_cq ibcq;
	struct ibv_wc wc[RAW_POSTS];
	uint32_t posted, told, done;
	int mute;		/* refuses without a word of what */
	uint32_t rang, refuse;	/* doorbells; from the how-manieth on none is taken, 0: all are */
	uint8_t mem[4][4096];
} raw;

static int raw_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	raw.rang++;
	for (; wr; wr = wr->next) {
		if (raw.refuse && raw.posted + 1 >= raw.refuse) {
			if (!raw.mute)
				*bad = wr;
			return EINVAL;
		}
		raw.wc[raw.posted++] = (struct ibv_wc){ .wr_id = wr->wr_id, .status = IBV_WC_SUCCESS };
	}
	return 0;
}

/* The library's does not know this device. */
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	(void)attr;
	(void)mask;
	return 0;
}

static int raw_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int i = 0;

	(void)cq;
	for (; i < n && raw.done < raw.told; i++)
		wc[i] = raw.wc[raw.done++];
	return i;
}

/* One queue pair of a device of this kind, which is as good as its word until `told` says more than was done. */
static void raw_begin(uint32_t vendor)
{
	memset(&raw, 0, sizeof(raw));
	memset(raw.mem, 0x33, sizeof(raw.mem));
	raw.ctx.ops.post_send = raw_post;
	raw.ctx.ops.poll_cq = raw_poll;
	raw.ib.context = raw.ibcq.context = &raw.ctx;
	raw.dev.quirk = v_quirk(vendor);
	raw.dev.secret = 42;
	raw.dev.qps = raw.table;
	raw.dev.qp_room = raw.dev.nqps = 1;
	raw.dev.mrs = &raw.mr;
	raw.mr.access = XR_ACCESS_LOCAL_WRITE;
	raw.mr.mr = (struct xr_mr){ .addr = raw.mem, .len = sizeof(raw.mem), .lkey = 7 };
	raw.cq.cq.dev = raw.qp.qp.dev = &raw.dev.dev;
	raw.cq.ib = &raw.ibcq;
	raw.cq.ring = calloc(16, sizeof(*raw.cq.ring));
	raw.cq.mask = 15;
	raw.table[0] = &raw.qp;
	raw.qp.qp.send_cq = raw.qp.qp.recv_cq = &raw.cq.cq;
	raw.qp.qp.state = XR_QPS_RTS;
	raw.qp.attr = (struct xr_qp_attr){ .sq_depth = 4, .rq_depth = 1, .sig_all = 1 };
	raw.qp.ib = &raw.ib;
	raw.qp.sq = raw.sq;
	raw.qp.sq_mask = RAW_POSTS - 1;
	raw.qp.sq_depth = RAW_POSTS;
}

static int raw_send(struct v_qp *q, uint32_t i, uint32_t flags)
{
	/* as a caller does it whose memory for the request is soon something else */
	struct xr_sge sge = { raw.mem[i % 4], 8, 7 };
	struct xr_send_wr wr = { .wr_id = 100 + i, .op = XR_WR_WRITE, .sge = &sge, .nsge = 1, .flags = flags };

	return v_post_send(&q->qp, &wr);
}

static void raw_read(uint32_t i, uint32_t len)
{
	struct xr_sge sge = { raw.mem[i], len, 7 };
	struct xr_send_wr wr = { .wr_id = 100 + i, .op = XR_WR_READ, .sge = &sge, .nsge = 1 };

	assert_int_equal(v_post_send(&raw.qp.qp, &wr), 0);
}

/* The device does what it says, for so many bytes of it. */
static void raw_bring(uint32_t i, uint32_t len)
{
	memset(raw.mem[i], 0x55, len);
	raw.told++;
}

static uint32_t raw_take(struct xr_wc wc[RAW_POSTS])
{
	int n = v_cq_poll(&raw.cq.cq, wc, RAW_POSTS);

	free(raw.cq.ring);
	assert_in_range(n, 0, RAW_POSTS);
	return (uint32_t)n;
}

static void a_read_that_brings_all(void **state)
{
	struct xr_wc wc[RAW_POSTS];
	uint32_t i;

	(void)state;
	raw_begin(0xffffff);
	for (i = 0; i < 3; i++)
		raw_read(i, 4096 - 5 * i);
	for (i = 0; i < 3; i++)
		raw_bring(i, 4096 - 5 * i);
	assert_int_equal(raw_take(wc), 3);
	for (i = 0; i < 3; i++) {
		assert_int_equal(wc[i].status, XR_WC_SUCCESS);
		assert_int_equal(wc[i].wr_id, 100 + i);
	}
	assert_int_equal(raw.dev.count.hollow, 0);
	assert_int_equal(raw.qp.qp.state, XR_QPS_RTS);
	/* nothing is written in front of it, or behind it */
	assert_int_equal(raw.mem[1][4096 - 5], 0x33);
	assert_int_equal(raw.mem[2][4096 - 10], 0x33);
}

/* Nothing, a first packet, all but the last one: it failed, what is behind it is flushed. */
static void a_read_that_brings_less(void **state)
{
	static const struct { uint32_t len, brings; } t[] = {
		{ 4096, 0 }, { 4096, 1024 }, { 4096, 3840 }, { 4088, 3840 }, { 3850, 3840 }, { 3848, 3840 }, { 256, 0 },
		{ 16, 0 }, { 8, 0 },
	};
	struct xr_wc wc[RAW_POSTS];
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(t); i++) {
		raw_begin(0xffffff);
		raw_read(0, 4096);
		raw_read(1, t[i].len);
		raw_read(2, 4096);
		raw_bring(0, 4096);
		raw_bring(1, t[i].brings);
		raw.wc[2].status = IBV_WC_WR_FLUSH_ERR;
		raw.told++;
		/* it is gone when it is to fail the queue pair: what it says after that was made up for */
		raw.qp.ib = NULL;
		assert_int_equal(raw_take(wc), 3);
		assert_int_equal(wc[0].status, XR_WC_SUCCESS);
		assert_int_equal(wc[1].status, XR_WC_FATAL_ERR);
		assert_int_equal(wc[1].wr_id, 101);
		assert_int_equal(wc[2].status, XR_WC_WR_FLUSH_ERR);
		assert_int_equal(raw.dev.count.hollow, 1);
		/* what it did not bring is as it was */
		assert_int_equal(raw.mem[1][t[i].len - 1], 0x33);
		assert_int_equal(raw.mem[2][4095], 0x33);
		assert_int_equal(raw.qp.qp.state, XR_QPS_ERR);
	}
}

/* Others do as they say: nobody writes into their memory. */
static void other_devices(void **state)
{
	struct xr_wc wc[RAW_POSTS];

	(void)state;
	raw_begin(0x2c9);
	raw_read(0, 4096);
	raw_bring(0, 0);
	assert_int_equal(raw.mem[0][4095], 0x33);
	assert_int_equal(raw_take(wc), 1);
	assert_int_equal(wc[0].status, XR_WC_SUCCESS);
}

/* Posts that others follow wait for them, and have one doorbell with them. */
static void doorbells(void **state)
{
	struct xr_wc wc[RAW_POSTS];
	struct v_qp other;
	uint32_t i;

	(void)state;
	raw_begin(0x2c9);
	raw.qp.attr.sq_depth = RAW_POSTS;
	other = raw.qp;
	for (i = 0; i < 4; i++) {
		assert_int_equal(raw_send(&raw.qp, i, i < 3 ? XR_SEND_MORE : 0), 0);
		assert_int_equal(raw.rang, i == 3);
	}
	assert_int_equal(raw.posted, 4);
	/* whoever looks for what has become of them, or is about to sleep, rings */
	assert_int_equal(raw_send(&raw.qp, 4, XR_SEND_MORE), 0);
	assert_int_equal(v_cq_poll(&raw.cq.cq, wc, 0), 0);
	assert_int_equal(raw.rang, 2);
	assert_int_equal(raw_send(&raw.qp, 5, XR_SEND_MORE), 0);
	raw.cq.armed = 1;
	assert_int_equal(v_cq_arm(&raw.cq.cq), 0);
	assert_int_equal(raw.rang, 3);
	/* what is copied during the post does not wait */
	raw.dev.max_inline = 64;
	assert_int_equal(raw_send(&raw.qp, 6, XR_SEND_MORE), 0);
	assert_int_equal(raw_send(&raw.qp, 7, XR_SEND_MORE | XR_SEND_INLINE), 0);
	assert_int_equal(raw.rang, 4);
	/* there is room for so many, and for one queue pair */
	for (; i < 7 + V_BATCH + 1; i++)
		assert_int_equal(raw_send(&raw.qp, 4 + i, XR_SEND_MORE), 0);
	assert_int_equal(raw.rang, 5);
	raw.table[0] = &other;
	other.sq_head = other.sq_hw = other.sq_done = 0;
	assert_int_equal(raw_send(&other, 0, 0), 0);
	assert_int_equal(raw.rang, 7);
	assert_int_equal(raw.cq.batched, 0);
	raw.table[0] = &raw.qp;
	raw.told = raw.posted - 1;
	assert_int_equal(raw_take(wc), raw.told);
	for (i = 0; i < raw.told; i++) {
		assert_int_equal(wc[i].status, XR_WC_SUCCESS);
		assert_int_equal(raw.wc[i].wr_id & 0xffffffff, i);
	}
}

/* One that the hardware does not take after all: the queue pair fails, and each post completes once, in order. */
static void refused_in_the_batch(void **state)
{
	struct xr_wc wc[RAW_POSTS];
	uint32_t i;
	int mute;

	(void)state;
	for (mute = 0; mute < 2; mute++) {
		raw_begin(0x2c9);
		raw.qp.attr.sq_depth = RAW_POSTS;
		raw.refuse = 3;
		raw.mute = mute;
		for (i = 0; i < 6; i++)
			assert_int_equal(raw_send(&raw.qp, i, i < 5 ? XR_SEND_MORE : 0), 0);
		assert_int_equal(raw.qp.qp.state, XR_QPS_ERR);
		assert_int_equal(raw_take(wc), 6);
		for (i = 0; i < 6; i++) {
			assert_int_equal(wc[i].wr_id, 100 + i);
			assert_int_not_equal(wc[i].status, XR_WC_SUCCESS);
		}
		assert_int_equal(raw.qp.out, 0);
	}
	/* but one that waits for nobody is refused to its poster */
	raw_begin(0x2c9);
	raw.refuse = 2;
	assert_int_equal(raw_send(&raw.qp, 0, XR_SEND_MORE), 0);
	assert_int_equal(raw_send(&raw.qp, 1, 0), -EINVAL);
	assert_int_equal(raw.qp.qp.state, XR_QPS_RTS);
	raw.told = 1;
	assert_int_equal(raw_take(wc), 1);
	assert_int_equal(wc[0].wr_id, 100);
}

/* A queue pair that fails takes what waits with it: posted before it failed, it completes. */
static void failed_with_a_batch(void **state)
{
	struct xr_wc wc[RAW_POSTS];

	(void)state;
	raw_begin(0x2c9);
	assert_int_equal(raw_send(&raw.qp, 0, XR_SEND_MORE), 0);
	v_qp_fail(&raw.qp, XR_WC_WR_FLUSH_ERR);
	assert_int_equal(raw.cq.batched, 0);
	assert_int_equal(raw.rang, 1);
	raw.wc[0].status = IBV_WC_WR_FLUSH_ERR;
	raw.told = 1;
	assert_int_equal(raw_take(wc), 1);
	assert_int_equal(wc[0].wr_id, 100);
	/* and when the device is gone */
	raw_begin(0x2c9);
	assert_int_equal(raw_send(&raw.qp, 0, XR_SEND_MORE), 0);
	raw.qp.ib = NULL;
	v_qp_fail(&raw.qp, XR_WC_FATAL_ERR);
	assert_int_equal(raw.rang, 0);
	assert_int_equal(raw.cq.batched, 0);
	assert_int_equal(raw_take(wc), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(private_data),
		cmocka_unit_test(addresses),
		cmocka_unit_test(link_local),
		cmocka_unit_test(detection),
		cmocka_unit_test(rnr_timer),
		cmocka_unit_test(signs),
		cmocka_unit_test(every_status_is_one_of_ours),
		cmocka_unit_test(devices),
		cmocka_unit_test(a_read_that_brings_all),
		cmocka_unit_test(a_read_that_brings_less),
		cmocka_unit_test(other_devices),
		cmocka_unit_test(doorbells),
		cmocka_unit_test(refused_in_the_batch),
		cmocka_unit_test(failed_with_a_batch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
