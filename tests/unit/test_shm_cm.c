/* SPDX-License-Identifier: BSD-2-Clause */
/* Connection management of the shm device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include "ring_rig.h"
#include "fabric_rig.h"

static struct end a, b;

static void open_both(void)
{
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	end_open(&a);
	end_open(&b);
	end_qp(&a);
	end_qp(&b);
}

static void close_both(void)
{
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Brings the ends, both with a QP in INIT, together once more; a listens already. */
static void join(const struct xr_addr *addr)
{
	uint32_t requests = a.events[XR_CM_CONNECT_REQUEST];

	a.events[XR_CM_ESTABLISHED] = b.events[XR_CM_ESTABLISHED] = 0;
	assert_int_equal(b.ops->cm_connect(b.dev, addr, b.qp, "ping", 4, &b.id), 0);
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST] == requests + 1);
	a.id = a.ev.id;
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, "pong!", 5), 0);
	until(&a, &b, a.events[XR_CM_ESTABLISHED] && b.events[XR_CM_ESTABLISHED]);
}

static void part(void)
{
	a.ops->cm_destroy(a.id);
	b.ops->cm_destroy(b.id);
	a.id = b.id = NULL;
	assert_int_equal(a.ops->qp_destroy(a.qp), 0);
	assert_int_equal(b.ops->qp_destroy(b.qp), 0);
	end_qp(&a);
	end_qp(&b);
}

static void private_data_both_ways(void **state)
{
	uint8_t big[256] = { 1, 2, 3 };
	struct xr_cm_id *id;
	struct xr_addr addr;
	uint32_t *most;

	(void)state;
	open_both();
	most = a.caps.max_private;
	assert_true(most[0] >= 48 && most[1] >= 128 && most[2] >= 128);
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	a.listener->user = &a;
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, big, most[0] + 1, &id), -EINVAL);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, big, most[0], &b.id), 0);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, big, most[0], &id), -EISCONN);
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST]);
	assert_ptr_equal(a.ev.listener, a.listener);
	assert_int_equal(a.ev.len, most[0]);
	assert_memory_equal(a.ev.data, big, most[0]);
	a.id = a.ev.id;
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, big, most[1] + 1), -EINVAL);
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, big, most[1]), 0);
	assert_int_equal(a.qp->state, XR_QPS_RTR);
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, big, 0), -EINVAL);
	assert_int_equal(a.ops->cm_reject(a.id, big, 0), -EINVAL);
	until(&a, &b, b.events[XR_CM_ESTABLISHED]);
	assert_int_equal(b.ev.len, most[1]);
	assert_memory_equal(b.ev.data, big, most[1]);
	assert_int_equal(b.qp->state, XR_QPS_RTS);
	until(&a, &b, a.events[XR_CM_ESTABLISHED]);
	assert_int_equal(a.qp->state, XR_QPS_RTS);
	close_both();
}

static void reject_says_why(void **state)
{
	struct xr_addr addr;

	(void)state;
	open_both();
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	assert_int_equal(post_recv(&b, 5, b.mem, 10), 0);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST]);
	assert_int_equal(a.ops->cm_reject(a.ev.id, "not today", a.caps.max_private[2] + 1), -EINVAL);
	assert_int_equal(a.ops->cm_reject(a.ev.id, "not today", 9), 0);
	until(&a, &b, b.events[XR_CM_REJECTED]);
	assert_int_equal(b.ev.status, -ECONNREFUSED);
	assert_int_equal(b.ev.len, 9);
	assert_memory_equal(b.ev.data, "not today", 9);
	/* the QP is done for, what was posted comes back */
	until(&a, &b, b.nwc == 1);
	assert_int_equal(b.wc[0].status, XR_WC_WR_FLUSH_ERR);
	assert_int_equal(b.qp->state, XR_QPS_ERR);
	settle(&a, &b);
	assert_int_equal(b.events[XR_CM_DISCONNECTED] + b.events[XR_CM_UNREACHABLE], 0);
	/* and can be had again through RESET */
	b.ops->cm_destroy(b.id);
	assert_int_equal(b.ops->qp_modify(b.qp, XR_QPS_RESET), 0);
	assert_int_equal(b.ops->qp_modify(b.qp, XR_QPS_INIT), 0);
	join(&addr);
	close_both();
}

static void wrong_arguments(void **state)
{
	static const char *const bad[] = { "", "a b", "a/b", "\xff", "x:1" };
	struct xr_addr addr = { .family = XR_AF_SHM };
	struct xr_cm_id *id;
	size_t i;

	(void)state;
	open_both();
	for (i = 0; i < XR_ARRAY_LEN(bad) && !rig_verbs(); i++) {
		strcpy(addr.name, bad[i]);
		assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &id), -EINVAL);
		assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &id), -EINVAL);
	}
	memset(addr.name, 'x', sizeof(addr.name));
	if (rig_verbs())
		addr.family = XR_AF_INET;	/* port 0 */
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &id), -EINVAL);
	strcpy(addr.name, "fine");
	addr.family = 7;
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &id), -EAFNOSUPPORT);
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &id), -EADDRINUSE);
	assert_int_equal(b.ops->cm_listen(b.dev, &addr, NULL, &id), -EADDRINUSE);
	/* not in INIT, or of another device */
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, a.qp, NULL, 0, &id), -EINVAL);
	b.ops->qp_modify(b.qp, XR_QPS_ERR);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &id), -EINVAL);
	assert_int_equal(a.ops->cm_disconnect(a.listener), -ENOTCONN);
	close_both();
}

static void nobody_listens(void **state)
{
	struct xr_addr addr;

	(void)state;
	open_both();
	rig_address(&addr);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, b.events[XR_CM_UNREACHABLE]);
	assert_int_equal(b.ev.status, -ECONNREFUSED);
	assert_int_equal(b.qp->state, XR_QPS_ERR);
	close_both();
}

static void a_full_backlog(void **state)
{
	struct xr_listen_attr attr = { .backlog = 2 };
	struct xr_cm_id *id[4], *asked[2];
	struct xr_qp *q[4];
	struct xr_addr addr;
	int i;

	(void)state;
	open_both();
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, &attr, &a.listener), 0);
	for (i = 0; i < 4; i++) {
		assert_int_equal(b.ops->qp_create(b.dev, &b.attr, &q[i]), 0);
		assert_int_equal(b.ops->qp_modify(q[i], XR_QPS_INIT), 0);
		assert_int_equal(b.ops->cm_connect(b.dev, &addr, q[i], NULL, 0, &id[i]), 0);
		if (i < 2) {
			until(&a, &b, a.events[XR_CM_CONNECT_REQUEST] == (uint32_t)i + 1);
			asked[i] = a.ev.id;
		} else {
			until(&a, &b, b.events[XR_CM_REJECTED] == (uint32_t)i - 1);
			assert_int_equal(b.ev.status, -EAGAIN);
		}
	}
	/* one that is answered makes room for another */
	assert_int_equal(a.ops->cm_reject(asked[0], NULL, 0), 0);
	until(&a, &b, b.events[XR_CM_REJECTED] == 3);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST] == 3);
	/* the listener closes: who was seen by the program is still its own to answer */
	a.ops->cm_destroy(a.listener);
	a.listener = NULL;
	assert_int_equal(a.ops->cm_accept(asked[1], a.qp, NULL, 0), 0);
	until(&a, &b, b.events[XR_CM_ESTABLISHED] == 1);
	a.ops->cm_destroy(asked[1]);
	for (i = 0; i < 4; i++) {
		b.ops->cm_destroy(id[i]);
		assert_int_equal(b.ops->qp_destroy(q[i]), 0);
	}
	close_both();
}

/* Both ways of taking a request back, and accepting it too late. */
static void a_request_is_taken_back(void **state)
{
	struct xr_addr addr;
	int how;

	(void)state;
	open_both();
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	for (how = 0; how < 4; how++) {
		uint32_t requests = a.events[XR_CM_CONNECT_REQUEST];

		assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
		if (how & 2)
			until(&a, &b, a.events[XR_CM_CONNECT_REQUEST] == requests + 1);
		if (how & 1)
			b.ops->cm_destroy(b.id);
		assert_int_equal(b.ops->qp_destroy(b.qp), 0);
		if (!(how & 1))
			b.ops->cm_destroy(b.id);
		b.id = NULL;
		b.qp = NULL;
		settle(&a, &b);
		if (how & 2) {
			assert_int_equal(a.ops->cm_accept(a.ev.id, a.qp, NULL, 0), -ENOTCONN);
			a.ops->cm_destroy(a.ev.id);
		}
		end_qp(&b);
	}
	/* accepted while it is being taken back */
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	a.events[XR_CM_CONNECT_REQUEST] = 0;
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST]);
	a.id = a.ev.id;
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
	b.ops->cm_destroy(b.id);
	b.id = NULL;
	until(&a, &b, a.events[XR_CM_UNREACHABLE]);
	assert_int_equal(a.qp->state, XR_QPS_ERR);
	close_both();
}

/* More connections one after the other than a link has room for at once, and nothing stays. */
static void connections_come_and_go(void **state)
{
	struct xr_addr addr;
	int i, fds = 0;

	(void)state;
	open_both();
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	for (i = 0; i < (rig_verbs() ? 200 : 1200); i++) {
		a.nwc = b.nwc = 0;
		join(&addr);
		if (i == 0)
			fds = open_fds();
		assert_int_equal(post_recv(&a, 1, i % 3 || rig_verbs() ? a.mem : NULL,
					   i % 3 || rig_verbs() ? 9000 : 0), 0);
		assert_int_equal(post_send(&b, 1, b.mem, 9000), 0);
		until(&a, &b, a.nwc == 1);
		assert_int_equal(a.wc[0].status, XR_WC_SUCCESS);
		part();
	}
	settle(&a, &b);
	assert_int_equal(open_fds(), fds);
	close_both();
}

/* The name moves to another device while the old link to its former owner lives. */
static void a_name_changes_hands(void **state)
{
	struct xr_addr addr, other;
	struct end c;

	(void)state;
	open_both();
	memset(&c, 0, sizeof(c));
	end_open(&c);
	end_qp(&c);
	rig_address(&addr);
	rig_address(&other);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	join(&addr);
	part();
	a.ops->cm_destroy(a.listener);
	assert_int_equal(a.ops->cm_listen(a.dev, &other, NULL, &a.listener), 0);
	/* nobody has it */
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, b.events[XR_CM_UNREACHABLE]);
	assert_int_equal(b.ev.status, -ECONNREFUSED);
	b.ops->cm_destroy(b.id);
	assert_int_equal(b.ops->qp_destroy(b.qp), 0);
	end_qp(&b);
	/* c has it */
	assert_int_equal(c.ops->cm_listen(c.dev, &addr, NULL, &c.listener), 0);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	until(&c, &b, (both_poll(&a, &a), c.events[XR_CM_CONNECT_REQUEST]));
	c.id = c.ev.id;
	assert_int_equal(c.ops->cm_accept(c.id, c.qp, NULL, 0), 0);
	b.events[XR_CM_ESTABLISHED] = 0;
	until(&c, &b, b.events[XR_CM_ESTABLISHED]);
	assert_int_equal(a.events[XR_CM_CONNECT_REQUEST], 1);
	assert_int_equal(end_close(&c), 0);
	close_both();
}

static void one_device_to_itself(void **state)
{
	struct xr_cm_event ev = { 0 };
	struct xr_cm_id *server;
	struct xr_addr addr;
	struct xr_qp *q;

	(void)state;
	memset(&a, 0, sizeof(a));
	end_open(&a);
	end_qp(&a);
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	assert_int_equal(a.ops->cm_connect(a.dev, &addr, a.qp, "me", 2, &a.id), 0);
	until(&a, &a, a.events[XR_CM_CONNECT_REQUEST]);
	server = a.ev.id;
	assert_int_equal(a.ops->qp_create(a.dev, &a.attr, &q), 0);
	assert_int_equal(a.ops->qp_modify(q, XR_QPS_INIT), 0);
	assert_int_equal(a.ops->cm_accept(server, q, NULL, 0), 0);
	until(&a, &a, a.events[XR_CM_ESTABLISHED] == 2);
	struct xr_recv_wr rr = { 1, { NULL, 0, 0 } };

	if (rig_verbs())
		rr.sge = (struct xr_sge){ a.mem + (1 << 20), 30000, a.mr->lkey };
	assert_int_equal(a.ops->post_recv(q, &rr), 0);
	stream_fill(1, 0, a.mem, 30000);
	assert_int_equal(post_send(&a, 2, a.mem, 30000), 0);
	until(&a, &a, a.nwc == 2);
	assert_ptr_equal(a.wc[0].qp, q);
	assert_int_equal(stream_check(1, 0, a.wc[0].data, 30000), 30000);
	/* destroyed while the message is held, and its completion not yet polled by anybody else */
	a.ops->cm_destroy(server);
	assert_int_equal(a.ops->qp_destroy(q), 0);
	until(&a, &a, a.events[XR_CM_DISCONNECTED] == 1);
	assert_int_equal(a.ops->cm_get_event(a.dev, &ev), 0);
	assert_int_equal(end_close(&a), 0);
}

/* --- two threads ----------------------------------------------------------------- */

#define TURNS (rig_verbs() ? 100 : 3000)

static void *echo_thread(void *arg)
{
	struct end *e = arg;
	uint32_t turns = 0;

	while (!e->events[XR_CM_CONNECT_REQUEST])
		end_poll(e);
	e->id = e->ev.id;
	if (post_recv(e, 0, e->mem, 70000) || e->ops->cm_accept(e->id, e->qp, NULL, 0))
		return "accept";
	while (turns < TURNS) {
		uint32_t i;

		end_poll(e);
		for (i = 0; i < e->nwc; i++) {
			if (e->wc[i].status)
				return "status";
			if (e->wc[i].op != XR_WR_RECV)
				continue;
			memcpy(e->mem + 100000, e->mem, e->wc[i].len);
			if (post_recv(e, 0, e->mem, 70000) ||
			    post(e, XR_WR_SEND, 1, e->mem + 100000, e->wc[i].len,
				 turns % 8 ? 0 : XR_SEND_SIGNALED, 0, 0))
				return "post";
			turns++;
		}
		e->nwc = 0;
	}
	while (!e->events[XR_CM_DISCONNECTED])
		end_poll(e);
	return NULL;
}

static void two_threads(void **state)
{
	struct rng g = { 5 };
	struct xr_addr addr;
	pthread_t t;
	void *ret;
	uint32_t i;

	(void)state;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	end_open(&a);
	end_open(&b);
	end_qp(&a);
	end_qp(&b);
	rig_address(&addr);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	assert_int_equal(pthread_create(&t, NULL, echo_thread, &a), 0);
	assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
	until(&b, &b, b.events[XR_CM_ESTABLISHED]);
	for (i = 0; i < TURNS; i++) {
		uint32_t n = rng_size(&g) % 66000;

		b.nwc = 0;
		stream_fill(i, 0, b.mem, n);
		assert_int_equal(post_recv(&b, i, b.mem + 100000, 70000), 0);
		assert_int_equal(post(&b, XR_WR_SEND, i, b.mem, n, XR_SEND_SIGNALED, 0, 0), 0);
		until(&b, &b, b.nwc == 2);
		assert_int_equal(b.wc[0].status + b.wc[1].status, 0);
		assert_int_equal(stream_check(i, 0, b.mem + 100000, n), n);
	}
	b.ops->cm_disconnect(b.id);
	pthread_join(t, &ret);
	assert_null(ret);
	close_both();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(private_data_both_ways),
		cmocka_unit_test(reject_says_why),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(nobody_listens),
		cmocka_unit_test(a_full_backlog),
		cmocka_unit_test(a_request_is_taken_back),
		cmocka_unit_test(connections_come_and_go),
		cmocka_unit_test(a_name_changes_hands),
		cmocka_unit_test(one_device_to_itself),
		cmocka_unit_test(two_threads),
	};

	return rig_run(tests);
}
