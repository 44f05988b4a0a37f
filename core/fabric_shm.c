/* SPDX-License-Identifier: BSD-2-Clause */
/* The shm device: opening, memory, completion queues, and what drives the rest. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "fabric_shm.h"
#include "log.h"

#define SHM_IDLE_POLLS	1000u	/* polls without work before a QP must ring to be seen */
#define SHM_STARVED_NS	1000000ull

/* --- device ---------------------------------------------------------------------- */

/* An epoll descriptor with an eventfd and a timerfd in it. */
static int dev_fds(int *epoll, int *event, int *timer)
{
	int r;

	*epoll = epoll_create1(EPOLL_CLOEXEC);
	*event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	*timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (*epoll < 0 || *event < 0 || *timer < 0)
		return -errno;
	r = shm_watch(*epoll, *event, NULL, SHM_WATCH_COUNTER);
	return r ? r : shm_watch(*epoll, *timer, NULL, SHM_WATCH_COUNTER);
}

static void dev_close_fds(struct shm_dev *d)
{
	int fd[6] = { d->cq_epoll, d->cq_event, d->cq_timer, d->cm_epoll, d->cm_event, d->cm_timer };
	int i;

	for (i = 0; i < 6; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

static int shm_dev_open(const char *what, struct xr_dev **dev)
{
	struct shm_dev *d;
	int r;

	if (what)
		return -ENODEV;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->cq_epoll = d->cq_event = d->cq_timer = d->cm_epoll = d->cm_event = d->cm_timer = -1;
	d->key_free = SHM_KEY_NONE;
	xr_cm_queue_init(&d->events);
	d->dev.ops = &xr_fabric_shm;
	r = dev_fds(&d->cq_epoll, &d->cq_event, &d->cq_timer);
	if (!r)
		r = dev_fds(&d->cm_epoll, &d->cm_event, &d->cm_timer);
	if (r) {
		xr_warn("the shm device cannot be opened: error %d", -r);
		dev_close_fds(d);
		free(d);
		return r;
	}
	*dev = &d->dev;
	return 0;
}

static int shm_dev_close(struct xr_dev *dev)
{
	struct shm_dev *d = shm_dev(dev);
	struct shm_peer *p;

	if (d->npd || d->cqs || d->nqps || d->nmr)
		return -EBUSY;
	while (d->ids)
		shm_cm_destroy(&d->ids->id);
	for (p = d->peers; p; p = p->next)
		shm_peer_die(p, -ECONNABORTED);
	shm_peer_reap(d);
	xr_cm_queue_drop(&d->events, NULL);
	dev_close_fds(d);
	shm_fault_end(d);
	free(d->keys);
	free(d->qps);
	free(d->qp_gen);
	free(d);
	return 0;
}

static void shm_query(struct xr_dev *dev, struct xr_dev_caps *caps)
{
	(void)dev;
	memset(caps, 0, sizeof(*caps));
	memcpy(caps->name, "shm", 4);
	memcpy(caps->device, "shm", 4);
	caps->max_inline = XR_CHUNK;
	caps->max_byref = XR_CHUNK;
	caps->max_msg = SHM_MAX_MSG;
	caps->max_sge = SHM_MAX_SGE;
	caps->max_wr = SHM_MAX_WR;
	caps->max_cqe = SHM_MAX_CQE;
	caps->max_rd_atomic = SHM_MAX_RD;
	caps->max_private[0] = 56;
	caps->max_private[1] = 196;
	caps->max_private[2] = 148;
	caps->rnr = 1;
	caps->zero_write = 1;
	/* with a new number, and what was sent to the old one finds nobody: no quarantine */
	caps->reuse = 1;
	caps->renumbers = 1;
}

/* --- completion queues ------------------------------------------------------------ */

static int shm_cq_create(struct xr_dev *dev, uint32_t cqe, struct xr_cq **cq)
{
	struct shm_dev *d = shm_dev(dev);
	struct shm_cq *c;
	uint32_t n = 1;

	if (!cqe || cqe > SHM_MAX_CQE)
		return -EINVAL;
	while (n < cqe)
		n *= 2;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->ring = malloc(n * sizeof(*c->ring));
	if (!c->ring) {
		free(c);
		return -ENOMEM;
	}
	c->cq.dev = dev;
	c->mask = n - 1;
	c->next = d->cqs;
	d->cqs = c;
	*cq = &c->cq;
	return 0;
}

static int shm_cq_destroy(struct xr_cq *cq)
{
	struct shm_dev *d = shm_dev(cq->dev);
	struct shm_cq *c = shm_cq(cq), **pp = &d->cqs;

	if (c->refs)
		return -EBUSY;
	while (*pp != c)
		pp = &(*pp)->next;
	*pp = c->next;
	if (c->armed)
		d->armed--;
	free(c->ring);
	free(c);
	return 0;
}

void shm_wake(struct shm_dev *d)
{
	static const uint64_t one = 1;

	if (write(d->cq_event, &one, sizeof(one)) < 0)
		return;		/* full: it is readable already */
}

static void dev_sleeping(struct shm_dev *d, uint32_t on)
{
	struct shm_peer *p;

	for (p = d->peers; p; p = p->next)
		if (p->link)
			xr_shm_link_sleeping(p->link, SHM_WAITER, on);
}

void shm_cq_push(struct shm_cq *c, const struct xr_wc *wc)
{
	struct shm_dev *d = shm_dev(c->cq.dev);

	c->ring[c->tail++ & c->mask] = *wc;
	if (xr_unlikely(c->armed)) {
		c->armed = 0;
		if (!--d->armed)
			dev_sleeping(d, 0);
		shm_wake(d);
	}
}

void shm_activate(struct shm_qp *q)
{
	struct shm_dev *d = shm_dev(q->qp.dev);

	q->idle = 0;
	if (xr_likely(q->active))
		return;
	q->active = 1;
	q->prev = NULL;
	q->next = d->active;
	if (q->next)
		q->next->prev = q;
	d->active = q;
	d->nactive++;
	/* something new to look at after the caller had armed: do not let it sleep */
	if (d->armed)
		shm_wake(d);
}

void shm_deactivate(struct shm_qp *q)
{
	struct shm_dev *d = shm_dev(q->qp.dev);

	if (!q->active)
		return;
	q->active = 0;
	if (q->prev)
		q->prev->next = q->next;
	else
		d->active = q->next;
	if (q->next)
		q->next->prev = q->prev;
	d->nactive--;
}

/* Neither end has anything for the other now: what is kept for the next message goes to all queue pairs. */
static void qp_rest(struct shm_qp *q)
{
	if (q->peer) {
		xr_shm_tx_rest(&q->req_tx);
		xr_shm_tx_rest(&q->resp_tx);
	}
	shm_deactivate(q);
}

static void dev_harvested(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	struct shm_peer *p = arg;
	struct shm_qp *q;

	(void)l;
	if (cookie != UINT32_MAX) {
		q = shm_qp_find(p->dev, cookie);
		if (q && q->peer == p)
			shm_activate(q);
		return;
	}
	for (q = p->qps; q; q = q->peer_next)
		shm_activate(q);
}

/* When a QP must be looked at although nobody rings. */
static void dev_timer(struct shm_dev *d)
{
	uint64_t at = UINT64_MAX, starved = 0;
	struct itimerspec it = { 0 };
	uint32_t i;

	for (i = 0; i < d->qp_room; i++) {
		struct shm_qp *q = d->qps[i];

		if (!q)
			continue;
		if (q->rnr_deadline && q->rnr_deadline < at)
			at = q->rnr_deadline;
		if (q->tx_hold && q->tx_hold < at)
			at = q->tx_hold;
		if (q->rx_hold && q->rx_hold < at)
			at = q->rx_hold;
		starved |= q->starved;
	}
	if (starved && xr_now_ns() + SHM_STARVED_NS < at)
		at = xr_now_ns() + SHM_STARVED_NS;
	if (at == UINT64_MAX)
		return;
	it.it_value.tv_sec = (time_t)(at / 1000000000u);
	it.it_value.tv_nsec = (long)(at % 1000000000u);
	timerfd_settime(d->cq_timer, TFD_TIMER_ABSTIME, &it, NULL);
}

static int dev_needs_time(const struct shm_qp *q)
{
	return q->rnr_deadline || q->starved || q->tx_hold || q->rx_hold;
}

/*
 * While a queue is armed, whoever polls may sleep next: a QP without work is armed at
 * once, and one that is busy without completing anything is not waited for.
 */
static void dev_settle(struct shm_dev *d, struct shm_qp *q)
{
	int i;

	for (i = 0; i < 16; i++) {
		if (!shm_qp_arm(q)) {
			shm_deactivate(q);
			if (dev_needs_time(q))
				dev_timer(d);
			return;
		}
		shm_qp_progress(q);
		if (!d->armed)
			return;
	}
	shm_wake(d);
}

static void dev_progress(struct shm_dev *d)
{
	uint32_t limit = SHM_IDLE_POLLS / (1 + d->nactive / 8);
	struct shm_qp *q, *next;
	struct shm_peer *p;

	for (p = d->peers; p; p = p->next)
		if (p->link && xr_shm_link_pending(p->link, SHM_WAITER))
			xr_shm_link_harvest(p->link, SHM_WAITER, dev_harvested, p);
	for (q = d->active; q; q = next) {
		next = q->next;
		if (shm_qp_progress(q)) {
			q->idle = 0;
			if (xr_unlikely(d->armed))
				dev_settle(d, q);
		} else if (xr_unlikely(d->armed)) {
			dev_settle(d, q);
		} else if (xr_unlikely(++q->idle > limit)) {
			/* nobody rings for what only time brings */
			if (dev_needs_time(q) || shm_qp_arm(q))
				q->idle = 0;
			else
				qp_rest(q);
		}
	}
}

static int shm_cq_poll(struct xr_cq *cq, struct xr_wc *wc, int n)
{
	struct shm_cq *c = shm_cq(cq);
	int i = 0;

	if (c->tail - c->head < (uint32_t)n)
		dev_progress(shm_dev(cq->dev));
	for (; i < n && c->head != c->tail; i++)
		wc[i] = c->ring[c->head++ & c->mask];
	return i;
}

static int shm_cq_arm(struct xr_cq *cq)
{
	struct shm_dev *d = shm_dev(cq->dev);
	struct shm_cq *c = shm_cq(cq);
	struct shm_qp *q, *next;
	struct shm_peer *p;

	if (!c->armed) {
		c->armed = 1;
		if (!d->armed++)
			dev_sleeping(d, 1);
	}
	for (q = d->active; q; q = next) {
		next = q->next;
		if (shm_qp_arm(q))
			shm_wake(d);
		else
			qp_rest(q);
	}
	for (p = d->peers; p; p = p->next)
		if (p->link && xr_shm_link_pending(p->link, SHM_WAITER))
			shm_wake(d);
	dev_timer(d);
	return 0;
}

static int shm_cq_fd(struct xr_cq *cq)
{
	return shm_dev(cq->dev)->cq_epoll;
}

static void shm_cq_event(struct xr_cq *cq)
{
	struct shm_dev *d = shm_dev(cq->dev);
	struct epoll_event ev[16];
	int i, n = epoll_wait(d->cq_epoll, ev, 16, 0);
	struct shm_qp *q;
	uint64_t count;
	uint32_t k;

	for (i = 0; i < n; i++) {
		/* all of them are counters: eventfd or timerfd, non-blocking */
		int fd = (int)(ev[i].data.u64 >> 2);

		if (read(fd, &count, sizeof(count)) < 0 || fd != d->cq_timer)
			continue;
		for (k = 0; k < d->qp_room; k++) {
			q = d->qps[k];
			if (q && dev_needs_time(q))
				shm_activate(q);
		}
	}
}

static int shm_address(const char *text, struct xr_addr *addr)
{
	if (strlen(text) >= sizeof(addr->name))
		return -EINVAL;
	memset(addr, 0, sizeof(*addr));
	addr->family = XR_AF_SHM;
	memcpy(addr->name, text, strlen(text));
	return 0;
}

const struct xr_fabric_ops xr_fabric_shm = {
	.name = "shm",
	.open = shm_dev_open,
	.address = shm_address,
	.close = shm_dev_close,
	.query = shm_query,
	.pd_alloc = shm_pd_alloc,
	.pd_free = shm_pd_free,
	.mr_reg = shm_mr_reg,
	.mr_alloc = shm_mr_alloc,
	.mr_dereg = shm_mr_dereg,
	.mw_bind = shm_mw_bind,
	.mw_invalidate = shm_mw_invalidate,
	.cq_create = shm_cq_create,
	.cq_destroy = shm_cq_destroy,
	.cq_poll = shm_cq_poll,
	.cq_arm = shm_cq_arm,
	.cq_fd = shm_cq_fd,
	.cq_event = shm_cq_event,
	.qp_create = shm_qp_create,
	.qp_destroy = shm_qp_destroy,
	.qp_modify = shm_qp_modify,
	.post_send = shm_post_send,
	.post_recv = shm_post_recv,
	.recv_release = shm_recv_release,
	.cm_listen = shm_cm_listen,
	.cm_connect = shm_cm_connect,
	.cm_accept = shm_cm_accept,
	.cm_reject = shm_cm_reject,
	.cm_disconnect = shm_cm_disconnect,
	.cm_destroy = shm_cm_destroy,
	.cm_get_event = shm_cm_get_event,
	.cm_fd = shm_cm_fd,
};
