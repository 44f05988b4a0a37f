/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two ends of a connection, driven by one thread or by two processes.  Over the shm device, or over the one that
 * XRDMA_TEST_FABRIC names: "verbs:10.9.0.1", a device that has this address and can talk to itself.
 */
#ifndef FABRIC_RIG_H
#define FABRIC_RIG_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/fabric.h"
#include "core/log.h"
#include "core/mem.h"

#define END_MEM	(4u << 20)

struct end {
	const struct xr_fabric_ops *ops;
	struct xr_dev *dev;
	struct xr_pd *pd;
	struct xr_cq *cq;
	struct xr_qp *qp;
	struct xr_cm_id *id, *listener;
	struct xr_mr *mr;
	uint8_t *mem;
	struct xr_cm_event ev;		/* the last one */
	uint32_t events[6];		/* how many of each type */
	struct xr_wc wc[512];		/* completions in the order they came */
	uint32_t nwc;
	struct xr_qp_attr attr;
	struct xr_dev_caps caps;
	uint32_t cqe;
};

/* XRDMA_TEST_ONLY: a pattern that names of tests are to match; XRDMA_TEST_LOG: 0 to 4, what is logged. */
#define rig_run(tests) \
	(rig_log(), cmocka_set_test_filter(getenv("XRDMA_TEST_ONLY")), cmocka_run_group_tests(tests, NULL, NULL))

static inline void rig_log(void)
{
	const char *level = getenv("XRDMA_TEST_LOG");

	if (level)
		xr_log_init((enum xr_log_level)atoi(level), NULL);
}

/* For xrdma_context_create(). */
static inline const char *rig_device(void)
{
	const char *d = getenv("XRDMA_TEST_FABRIC");

	return d && *d ? d : "shm";
}

/* 1: over a network. */
static inline int rig_verbs(void)
{
	return !strncmp(rig_device(), "verbs", 5);
}

static inline const struct xr_fabric_ops *rig_ops(const char **what)
{
	const struct xr_fabric_ops *ops = xr_fabric_find(rig_device(), what);

	if (!ops) {
		fprintf(stderr, "no device %s: %s\n", rig_device(), strerror(errno));
		abort();
	}
	return ops;
}

/* What no network does, or not so. */
#define rig_shm_only()		\
	do {			\
		if (rig_verbs())	\
			skip();		\
	} while (0)

/* An address that nobody else uses, as text. */
static inline void rig_name(char name[XR_ADDR_NAME])
{
	static unsigned int n;

	memset(name, 0, XR_ADDR_NAME);
	if (rig_verbs())
		snprintf(name, XR_ADDR_NAME, "%.40s:%u", rig_device() + 6,
			 10000 + (unsigned int)getpid() % 500 * 100 + n++ % 100);
	else
		snprintf(name, XR_ADDR_NAME, "test.%d.%u", (int)getpid(), n++);
}

static inline void rig_address(struct xr_addr *a)
{
	char name[XR_ADDR_NAME];
	const char *what;

	rig_name(name);
	if (rig_ops(&what)->address(name, a))
		abort();
}

static inline void end_open(struct end *e)
{
	struct xr_qp_attr attr = e->attr;
	uint32_t cqe = e->cqe ? e->cqe : 256;
	const char *what;

	memset(e, 0, sizeof(*e));
	e->attr = attr;
	e->cqe = cqe;
	e->ops = rig_ops(&what);
	if (e->ops->open(what, &e->dev) || e->ops->pd_alloc(e->dev, &e->pd) ||
	    e->ops->cq_create(e->dev, cqe, &e->cq) ||
	    e->ops->mr_alloc(e->pd, END_MEM, XR_ACCESS_LOCAL_WRITE | XR_ACCESS_REMOTE_READ |
			     XR_ACCESS_REMOTE_WRITE, &e->mr))
		abort();
	e->ops->query(e->dev, &e->caps);
	e->mem = e->mr->addr;
	e->attr.pd = e->pd;
	e->attr.send_cq = e->attr.recv_cq = e->cq;
	if (!e->attr.sq_depth)
		e->attr.sq_depth = 64;
	if (!e->attr.rq_depth)
		e->attr.rq_depth = 64;
}

static inline void end_qp(struct end *e)
{
	if (e->ops->qp_create(e->dev, &e->attr, &e->qp) || e->ops->qp_modify(e->qp, XR_QPS_INIT))
		abort();
}

static inline int end_close(struct end *e)
{
	int r = 0;

	if (e->id)
		e->ops->cm_destroy(e->id);
	if (e->listener)
		e->ops->cm_destroy(e->listener);
	if (e->qp)
		r |= e->ops->qp_destroy(e->qp);
	r |= e->ops->mr_dereg(e->mr);
	r |= e->ops->cq_destroy(e->cq);
	r |= e->ops->pd_free(e->pd);
	r |= e->ops->close(e->dev);
	return r;
}

/* One round of everything; returns what happened. */
static inline int end_poll(struct end *e)
{
	struct xr_cm_event ev;
	int n = 0, k;

	while (e->ops->cm_get_event(e->dev, &ev)) {
		e->events[ev.type]++;
		n++;
		if (ev.type != XR_CM_DEVICE)
			e->ev = ev;
	}
	k = e->ops->cq_poll(e->cq, e->wc + e->nwc, (int)(512 - e->nwc > 32 ? 32 : 512 - e->nwc));
	e->nwc += (uint32_t)k;
	return n + k;
}

static inline int both_poll(struct end *a, struct end *b)
{
	int n = end_poll(a);

	return n + end_poll(b);
}

/* Until the condition holds; gives up after five seconds. */
#define until(a, b, cond)								\
	do {										\
		uint64_t end_ = xr_now_ns() + 5000000000ull;				\
		while (!(cond) && xr_now_ns() < end_)					\
			both_poll(a, b);						\
		assert_true(cond);							\
	} while (0)

/*
 * Until what the device of `to` refuses has ended at `from`.  Over a network `to` learns of it as well, and that the
 * connection is over goes to `from` by the connection manager, not behind the refusal: where a kernel thread is kept
 * waiting it is there first, and all is flushed, as verbs have it.  So `to` is not asked before.
 */
#define until_refused(from, to, cond)	until(from, rig_verbs() ? (from) : (to), cond)

/* Long enough for whatever must not happen. */
static inline void settle(struct end *a, struct end *b)
{
	uint64_t end = xr_now_ns() + (rig_verbs() ? 20000000u : 0);
	int i;

	for (i = 0; i < 2000 || xr_now_ns() < end; i++)
		both_poll(a, b);
}

/* a listens, b connects; returns with both established. */
static inline void rig_connect(struct end *a, struct end *b)
{
	struct xr_addr addr;
	uint64_t end = xr_now_ns() + 5000000000ull;

	rig_address(&addr);
	end_open(a);
	end_open(b);
	end_qp(a);
	end_qp(b);
	if (a->ops->cm_listen(a->dev, &addr, NULL, &a->listener) ||
	    b->ops->cm_connect(b->dev, &addr, b->qp, "hello", 5, &b->id))
		abort();
	while (!a->events[XR_CM_CONNECT_REQUEST] && xr_now_ns() < end)
		both_poll(a, b);
	a->id = a->ev.id;
	if (!a->events[XR_CM_CONNECT_REQUEST] || a->ops->cm_accept(a->id, a->qp, "welcome", 7))
		abort();
	while (!(a->events[XR_CM_ESTABLISHED] && b->events[XR_CM_ESTABLISHED]) &&
	       xr_now_ns() < end)
		both_poll(a, b);
	if (!a->events[XR_CM_ESTABLISHED] || !b->events[XR_CM_ESTABLISHED])
		abort();
}

static inline int post_recv(struct end *e, uint64_t id, void *addr, uint32_t len)
{
	struct xr_recv_wr wr = { id, { addr, len, e->mr->lkey } };

	return e->ops->post_recv(e->qp, &wr);
}

static inline int post(struct end *e, enum xr_wr_op op, uint64_t id, void *addr, uint32_t len,
		       uint32_t flags, uint64_t raddr, uint32_t rkey)
{
	struct xr_sge sge = { addr, len, e->mr->lkey };
	struct xr_send_wr wr = { .wr_id = id, .op = op, .flags = flags, .sge = &sge, .nsge = 1,
				 .imm = 0xfeed, .raddr = raddr, .rkey = rkey };

	return e->ops->post_send(e->qp, &wr);
}

static inline int post_send(struct end *e, uint64_t id, void *addr, uint32_t len)
{
	return post(e, XR_WR_SEND, id, addr, len, XR_SEND_SIGNALED, 0, 0);
}

/* What `by` has posted before is done: a window is open, or closed, before what tells of it, and not earlier. */
#define rig_told(by, to)                                                                \
	do {                                                                            \
		uint32_t told_ = (to)->nwc;                                             \
		assert_int_equal(post_recv(to, 90, (to)->mem + 8192, 8), 0);            \
		assert_int_equal(post_send(by, 91, (by)->mem, 8), 0);                   \
		until(by, to, (to)->nwc == told_ + 1);                                  \
		(to)->nwc = told_;                                                      \
	} while (0)

#endif
