/* SPDX-License-Identifier: BSD-2-Clause */
/* When a flow looks for the fabric again that it has left, or could not get back to. */
#include "flow_rig.h"

#define SECOND	1000000000ull

/* However often in a row: the peer's end may be a program without xrdma today, and one with it tomorrow. */
static void in_vain(void **state)
{
	uint64_t wait, last = 0;
	int i;

	(void)state;
	flow_make();
	xr_cfg.return_after = SECOND;
	R.f->upgrade_off = 0;
	for (i = 0; i < 300; i++) {
		uint64_t now = xr_now_ns();

		assert_int_equal(xr_flow_return_failed(R.f, XR_REASON_TIMEOUT), 1);
		wait = R.f->up_after - now;
		/* 2 s of a test that somebody holds up */
		assert_true(wait + 2 * SECOND >= last && wait < 700 * SECOND);
		last = wait;
	}
	assert_true(last > 500 * SECOND);
	/* what cannot pass is not waited for */
	assert_int_equal(xr_flow_return_failed(R.f, XR_REASON_OPTION), 0);
	xr_cfg.return_after = 0;
	flow_end();
}

/* With no time to wait between two attempts they do not become a program's main business. */
static void in_vain_at_once(void **state)
{
	uint64_t now;
	int i;

	(void)state;
	flow_make();
	R.f->upgrade_off = 0;
	for (i = 0; i < 100; i++)
		assert_int_equal(xr_flow_return_failed(R.f, XR_REASON_TIMEOUT), 1);
	now = xr_now_ns();
	assert_true(R.f->up_after > now + 500 * SECOND);
	flow_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(in_vain), cmocka_unit_test(in_vain_at_once) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
