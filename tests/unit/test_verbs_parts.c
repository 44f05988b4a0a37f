/* SPDX-License-Identifier: BSD-2-Clause */
/* The parts of the verbs fabric that need no device: private data, addresses, timers, the table of devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
