/* SPDX-License-Identifier: BSD-2-Clause */
/* The verbs fabric: the table of operations, and a device from its beginning to its end. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "fabric_verbs.h"
#include "log.h"
#include "xrdma.h"

static const struct xr_fabric_ops verbs_ops;

static int verbs_watch(int epoll, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN };

	return fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static void verbs_close_fds(struct v_dev *d)
{
	int fd[5] = { d->cq_epoll, d->cq_event, d->cm_epoll, d->cm_event, d->cm_timer };
	int i;

	for (i = 0; i < 5; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

static int verbs_fds(struct v_dev *d)
{
	int r;

	d->cq_epoll = epoll_create1(EPOLL_CLOEXEC);
	d->cm_epoll = epoll_create1(EPOLL_CLOEXEC);
	d->cq_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	d->cm_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	d->cm_timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (d->cq_epoll < 0 || d->cm_epoll < 0 || d->cq_event < 0 || d->cm_event < 0 || d->cm_timer < 0)
		return -errno;
	r = verbs_watch(d->cq_epoll, d->cq_event);
	if (!r)
		r = verbs_watch(d->cq_epoll, d->channel->fd);
	if (!r)
		r = verbs_watch(d->cm_epoll, d->cm_event);
	if (!r)
		r = verbs_watch(d->cm_epoll, d->cm_timer);
	if (!r)
		r = verbs_watch(d->cm_epoll, d->cm->fd);
	return r ? r : verbs_watch(d->cm_epoll, d->ctx->async_fd);
}

static int verbs_open(const char *what, struct xr_dev **dev)
{
	struct v_dev *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	d->cq_epoll = d->cq_event = d->cm_epoll = d->cm_event = d->cm_timer = -1;
	xr_cm_queue_init(&d->events);
	d->dev.ops = &verbs_ops;
	r = v_dev_open(d, what && *what ? what : NULL);
	if (r) {
		xr_info("no RDMA device%s%s: error %d", what ? " " : "", what ? what : "", -r);
		free(d);
		return r;
	}
	r = verbs_fds(d);
	if (r) {
		verbs_close_fds(d);
		v_dev_close(d);
		free(d);
		return r;
	}
	*dev = &d->dev;
	return 0;
}

static int verbs_close(struct xr_dev *dev)
{
	struct v_dev *d = v_dev(dev);

	if (d->pds || d->cqs || d->nqps || d->mrs)
		return -EBUSY;
	d->closing = 1;
	while (d->ids)
		v_cm_destroy(&d->ids->id);
	v_late_end(d);
	xr_cm_queue_drop(&d->events, NULL);
	if (d->count.lost | d->count.twice | d->count.hollow | d->count.strangers)
		xr_warn("device %s: %llu completions were lost, %llu came twice, %llu told of READs that had failed, "
			"%llu connections were not for us", d->name, (unsigned long long)d->count.lost,
			(unsigned long long)d->count.twice, (unsigned long long)d->count.hollow,
			(unsigned long long)d->count.strangers);
	verbs_close_fds(d);
	v_dev_close(d);
	free(d->qps);
	free(d->lives);
	free(d);
	return 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void verbs_query(struct xr_dev *dev, struct xr_dev_caps *caps)
{
	const struct v_dev *d = v_dev(dev);
	const struct ibv_device_attr *a = &d->attr;

	memset(caps, 0, sizeof(*caps));
	memcpy(caps->name, "verbs", 6);
	caps->max_inline = d->max_inline;
	caps->max_msg = 1u << 30;
	caps->max_sge = least(V_MAX_SGE, (uint32_t)a->max_sge);
	caps->max_wr = least(V_MAX_WR, (uint32_t)a->max_qp_wr / 3);
	caps->max_cqe = (uint32_t)a->max_cqe;
	/* what a peer asks of us is bounded by the first, what we ask by the second */
	caps->max_rd_atomic = least(V_MAX_RD, least((uint32_t)a->max_qp_rd_atom, (uint32_t)a->max_qp_init_rd_atom));
	caps->max_private[0] = 56 - V_WIRE;
	caps->max_private[1] = 196 - V_WIRE;
	caps->max_private[2] = 148 - V_WIRE;
	caps->rnr = 1;
	caps->passive = 1;
	caps->reuse = !d->quirk->no_reuse;
	caps->quarantine_us = v_quarantine_us(d);
	caps->zero_write = !d->quirk->no_zero_write;
	caps->few_reads = caps->max_rd_atomic < V_FEW_READS || d->quirk->slow_read;
	caps->network = 1;
	caps->software = d->quirk->software;
	caps->port = d->port;
	caps->up = d->up;
	caps->mtu = 128u << d->mtu;
	caps->foreseen = d->count.foreseen;
	memcpy(caps->device, d->name, sizeof(d->name) < sizeof(caps->device) ? sizeof(d->name) :
	       sizeof(caps->device) - 1);
	if (d->gid_index >= 0)
		memcpy(caps->gid, d->gid.raw, 16);
}

static const struct xr_fabric_ops verbs_ops = {
	.name = "verbs",
	.open = verbs_open,
	.address = v_address,
	.close = verbs_close,
	.query = verbs_query,
	.pd_alloc = v_pd_alloc,
	.pd_free = v_pd_free,
	.mr_reg = v_mr_reg,
	.mr_alloc = v_mr_alloc,
	.mr_dereg = v_mr_dereg,
	.mw_bind = v_mw_bind,
	.mw_invalidate = v_mw_invalidate,
	.cq_create = v_cq_create,
	.cq_destroy = v_cq_destroy,
	.cq_poll = v_cq_poll,
	.cq_arm = v_cq_arm,
	.cq_fd = v_cq_fd,
	.cq_event = v_cq_event,
	.qp_create = v_qp_create,
	.qp_destroy = v_qp_destroy,
	.qp_modify = v_qp_modify,
	.post_send = v_post_send,
	.post_recv = v_post_recv,
	.recv_release = v_recv_release,
	.cm_listen = v_cm_listen,
	.cm_connect = v_cm_connect,
	.cm_accept = v_cm_accept,
	.cm_reject = v_cm_reject,
	.cm_disconnect = v_cm_disconnect,
	.cm_destroy = v_cm_destroy,
	.cm_get_event = v_cm_get_event,
	.cm_fd = v_cm_fd,
};

__attribute__((visibility("default"))) xr_fabric_module_fn xr_fabric_module;

const struct xr_fabric_ops *xr_fabric_module(const struct xr_fabric_host *host)
{
	if (host->abi != XR_FABRIC_ABI || strcmp(host->version, xrdma_version()))
		return NULL;
	xr_log_init((enum xr_log_level)host->log_threshold, host->log_file);
	return &verbs_ops;
}
