/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ways to peers that are known before they are asked for (fabric_verbs_spare.c).  It wants a device as test_verbs.c
 * does, which can talk to itself, on a link of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>
#include "fabric_rig.h"
#include "ring_rig.h"

static struct end a, b;

/* Another address of the own link comes, or goes. */
static void change(const char *how)
{
	static const struct timespec pause = { 0, 300000000 };
	const char *l = getenv("XRDMA_TEST_LINK");
	char line[128];

	snprintf(line, sizeof(line), "ip addr %s 10.77.99.99/32 dev %s", how, l ? l : "eth0");
	assert_int_equal(system(line), 0);
	nanosleep(&pause, NULL);
	settle(&a, &b);
}

static void refused(const struct xr_addr *addr)
{
	b.events[XR_CM_UNREACHABLE] = 0;
	assert_int_equal(b.ops->cm_connect(b.dev, addr, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, b.events[XR_CM_UNREACHABLE]);
	assert_int_equal(b.ev.status, -ECONNREFUSED);
	b.ops->cm_destroy(b.id);
	b.id = NULL;
	settle(&a, &b);
	assert_int_equal(b.ops->qp_modify(b.qp, XR_QPS_RESET), 0);
	assert_int_equal(b.ops->qp_modify(b.qp, XR_QPS_INIT), 0);
}

/* Connects b to a and ends it: 1 when the way was known beforehand. */
static int connect_and_end(const struct xr_addr *addr)
{
	uint64_t was;
	int k;

	b.ops->query(b.dev, &b.caps);
	was = b.caps.foreseen;
	a.events[XR_CM_CONNECT_REQUEST] = a.events[XR_CM_ESTABLISHED] = b.events[XR_CM_ESTABLISHED] = 0;
	assert_int_equal(b.ops->cm_connect(b.dev, addr, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST]);
	a.id = a.ev.id;
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
	until(&a, &b, a.events[XR_CM_ESTABLISHED] && b.events[XR_CM_ESTABLISHED]);
	a.ops->cm_destroy(a.id);
	b.ops->cm_destroy(b.id);
	a.id = b.id = NULL;
	for (k = 0; k < 2; k++) {
		assert_int_equal(a.ops->qp_modify(k ? b.qp : a.qp, XR_QPS_RESET), 0);
		assert_int_equal(a.ops->qp_modify(k ? b.qp : a.qp, XR_QPS_INIT), 0);
	}
	/* what is made ahead has time to find its way */
	settle(&a, &b);
	settle(&a, &b);
	b.ops->query(b.dev, &b.caps);
	return (int)(b.caps.foreseen - was);
}

/* The way to a place that is met again is known when it is wanted, until something has changed. */
static void the_way_is_known(void **state)
{
	struct xr_addr addr, other;
	uint32_t i;

	(void)state;
	alarm(60);	/* what hangs has failed */
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	rig_address(&addr);
	rig_address(&other);
	end_open(&a);
	end_open(&b);
	end_qp(&a);
	end_qp(&b);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	/* the first finds it, the second is the reason to remember it */
	for (i = 0; i < 6; i++)
		assert_int_equal(connect_and_end(&addr), i >= 2);
	/* nothing is known of another place, and a refusal there spoils nothing here */
	refused(&other);
	assert_int_equal(connect_and_end(&addr), 1);
	/* whoever listened there is gone: refused as ever, and nothing is believed any more */
	a.ops->cm_destroy(a.listener);
	a.listener = NULL;
	refused(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	assert_int_equal(connect_and_end(&addr), 0);
	assert_int_equal(connect_and_end(&addr), 1);
	/* nor when addresses of this end change */
	change("add");
	assert_int_equal(connect_and_end(&addr), 0);
	assert_int_equal(connect_and_end(&addr), 1);
	change("del");
	assert_int_equal(connect_and_end(&addr), 0);
	/* what is ready for nobody goes with the device */
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_way_is_known) };

	if (!rig_verbs())
		return 77;
	return rig_run(tests);
}
