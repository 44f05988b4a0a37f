/* SPDX-License-Identifier: BSD-2-Clause */
/* Windows of a device: who may read what is opened, for how long, and how often it can be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>
#include "child.h"
#include "fabric_rig.h"

static struct end a, b;

static int clean(void **state)
{
	(void)state;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	/* what hangs has failed */
	alarm(60);
	return 0;
}

static void end_both(void)
{
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

/* A window is for one peer, and for no byte more than it says. */
static void windows(void **state)
{
	static const int64_t off[] = { 0, -1, 0, 99 };
	static const uint32_t len[] = { 100, 2, 101, 2 };
	struct end c;
	uint32_t key, i;

	(void)state;
	for (i = 0; i < 5; i++) {
		clean(NULL);
		memset(&c, 0, sizeof(c));
		rig_connect(&a, &b);
		assert_int_equal(a.ops->mw_bind(a.qp, a.mr, a.mem + 5000, 100, XR_ACCESS_REMOTE_READ, &key), 0);
		rig_told(&a, &b);
		if (i < 4) {
			assert_int_equal(post(&b, XR_WR_READ, 1, b.mem, len[i], XR_SEND_SIGNALED,
					      (uintptr_t)a.mem + 5000 + (uint64_t)off[i], key), 0);
			until_refused(&b, &a, b.nwc == 1);
			assert_int_equal(b.wc[0].status, i ? XR_WC_REM_ACCESS_ERR : XR_WC_SUCCESS);
		} else {
			/* another connection of the same two devices */
			struct xr_addr addr;
			struct xr_qp *mine = a.qp, *other = b.qp;

			rig_address(&addr);
			end_qp(&a);
			end_qp(&b);
			a.events[XR_CM_CONNECT_REQUEST] = a.events[XR_CM_ESTABLISHED] = b.events[XR_CM_ESTABLISHED] = 0;
			a.ops->cm_destroy(a.listener);
			assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
			assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &c.id), 0);
			until(&a, &b, a.events[XR_CM_CONNECT_REQUEST] == 1);
			assert_int_equal(a.ops->cm_accept(a.ev.id, a.qp, NULL, 0), 0);
			until(&a, &b, a.events[XR_CM_ESTABLISHED] && b.events[XR_CM_ESTABLISHED]);
			assert_int_equal(post(&b, XR_WR_READ, 1, b.mem, 100, XR_SEND_SIGNALED,
					      (uintptr_t)a.mem + 5000, key), 0);
			until_refused(&b, &a, b.nwc == 1);
			assert_int_equal(b.wc[0].status, XR_WC_REM_ACCESS_ERR);
			assert_int_equal(a.ops->qp_destroy(a.qp), 0);
			assert_int_equal(b.ops->qp_destroy(b.qp), 0);
			a.qp = mine;
			b.qp = other;
		}
		end_both();
	}
}

#define AGAIN	40u

/* b reads what a has opened to it; then it is closed. */
static void window_once(struct xr_mr *mr, uint8_t *at, uint32_t len, uint8_t fill, uint32_t *key)
{
	memset(at, fill, len);
	memset(b.mem, 0, len);
	b.nwc = 0;
	assert_int_equal(a.ops->mw_bind(a.qp, mr, at, len, XR_ACCESS_REMOTE_READ | XR_ACCESS_MORE, key), 0);
	rig_told(&a, &b);
	assert_int_equal(post(&b, XR_WR_READ, 1, b.mem, len, XR_SEND_SIGNALED, (uintptr_t)at, *key), 0);
	until(&b, &a, b.nwc == 1);
	assert_int_equal(b.wc[0].status, XR_WC_SUCCESS);
	assert_int_equal(b.mem[0], fill);
	assert_int_equal(b.mem[len - 1], fill);
	a.ops->mw_invalidate(a.qp, *key, XR_SEND_MORE);
}

/* The same memory again and again, more pieces than are remembered, and others where they were. */
static void windows_again(void **state)
{
	uint32_t len = 3 * 4096, first = 0, key = 0, i;
	struct xr_mr *mr, *old;
	uint8_t *p;

	(void)state;
	rig_connect(&a, &b);
	for (i = 0; i < 3 * AGAIN; i++) {
		window_once(a.mr, a.mem + 64 * (i % AGAIN), 64, (uint8_t)(i + 1), &key);
		if (!i)
			first = key;
		else
			assert_int_not_equal(key, first);
	}
	for (i = 0; i < 3; i++) {
		p = mmap(i ? p : NULL, len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | (i ? MAP_FIXED : 0), -1, 0);
		assert_true(p != MAP_FAILED);
		assert_int_equal(a.ops->mr_reg(a.pd, p, len, XR_ACCESS_LOCAL_WRITE, &mr), 0);
		/* two of one piece of memory are two */
		assert_int_equal(a.ops->mr_reg(a.pd, p, len, XR_ACCESS_LOCAL_WRITE, &old), 0);
		window_once(mr, p, len, (uint8_t)(0x40 + i), &key);
		window_once(old, p, len, (uint8_t)(0x50 + i), &key);
		window_once(mr, p, len, (uint8_t)(0x60 + i), &key);
		assert_int_equal(a.ops->mr_dereg(old), 0);
		assert_int_equal(a.ops->mr_dereg(mr), 0);
		/* it stays: other memory is to come there */
		munmap(p, len);
	}
	/* what is closed is closed */
	b.nwc = 0;
	assert_int_equal(post(&b, XR_WR_READ, 1, b.mem, 64, XR_SEND_SIGNALED, (uintptr_t)a.mem, first), 0);
	until_refused(&b, &a, b.nwc == 1);
	assert_int_equal(b.wc[0].status, XR_WC_REM_ACCESS_ERR);
	end_both();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(windows, clean),
		cmocka_unit_test_setup(windows_again, clean),
	};

	return rig_run(tests);
}
