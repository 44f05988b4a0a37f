/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which device.  The connection manager knows best which one an address of this network namespace belongs to, so
 * it is asked, address by address: all devices can be seen in every namespace, but not all can be used.
 *
 * A device may go away under us.  It waits for its users, some kinds for ever, so all that the kernel has of us is
 * given back at once (v_dev_die); what the user has made stays until he destroys it, and does nothing any more.
 */
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "atomic.h"
#include "fabric_verbs.h"
#include "log.h"

/* What an address leads to. */
struct v_found {
	struct xr_addr addr;
	char name[IBV_SYSFS_NAME_MAX];
	__be64 guid;
	uint8_t port, software, iwarp, up;
};

static int dev_nonblock(int fd)
{
	int f = fcntl(fd, F_GETFL);

	return f < 0 || fcntl(fd, F_SETFL, f | O_NONBLOCK) < 0 ? -errno : 0;
}

/* 0: a device has this address. */
static int dev_of_address(struct rdma_event_channel *ch, const struct xr_addr *addr, struct v_found *f)
{
	struct sockaddr_storage ss;
	struct ibv_port_attr p;
	struct ibv_device_attr a;
	struct rdma_cm_id *id;
	int r = v_errno(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));

	if (r)
		return r;
	v_sockaddr(addr, addr->ip, 0, &ss);
	r = v_errno(rdma_bind_addr(id, (struct sockaddr *)&ss));
	if (!r && !id->verbs)
		r = -ENODEV;
	if (!r) {
		memset(f, 0, sizeof(*f));
		f->addr = *addr;
		strncpy(f->name, ibv_get_device_name(id->verbs->device), sizeof(f->name) - 1);
		f->guid = ibv_get_device_guid(id->verbs->device);
		f->port = id->port_num;
		f->iwarp = id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
		f->up = !ibv_query_port(id->verbs, id->port_num, &p) && p.state == IBV_PORT_ACTIVE;
		f->software = !ibv_query_device(id->verbs, &a) && v_quirk(a.vendor_id)->software;
	}
	rdma_destroy_id(id);
	return r;
}

/* The best device, or the one with this name, over all addresses. */
static int dev_search(struct rdma_event_channel *ch, const char *name, struct v_found *best)
{
	struct ifaddrs *list, *i;
	int have = 0, score, top = -1, error = -ENODEV;

	if (getifaddrs(&list))
		return -errno;
	for (i = list; i; i = i->ifa_next) {
		struct v_found f;
		struct xr_addr a;

		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
		    (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
			continue;
		v_addr(i->ifa_addr, &a);
		if (!v_routable(&a) || dev_of_address(ch, &a, &f) || (name && strcmp(f.name, name)))
			continue;
		if (f.iwarp) {
			error = -EPROTONOSUPPORT;
			continue;
		}
		score = 2 * f.up + !f.software;
		if (score > top) {
			*best = f;
			top = score;
			have = 1;
		}
	}
	freeifaddrs(list);
	return have ? 0 : error;
}

/* The library looks in several places, and its error is that of the last one. */
static int dev_why(int r)
{
	if (!faccessat(AT_FDCWD, "/dev/infiniband/rdma_cm", R_OK | W_OK, AT_EACCESS))
		return r;
	return errno == EACCES ? -EACCES : -ENODEV;
}

/*
 * In the child of a fork.  The connection manager's library keeps each device that it ever opened, for good, and takes
 * a protection domain from it for its own use; what it keeps are descriptors, and here these are none, or somebody
 * else's: the thread that opened them had a table of its own.  It gets those of a context that this process has opened,
 * which therefore stays.  A device that is gone stays as it is: when it comes back it is another one.
 */
static void dev_renew(void)
{
	struct ibv_context **list = rdma_get_devices(NULL), *fresh;
	int i;

	for (i = 0; list && list[i]; i++) {
		fresh = ibv_open_device(list[i]->device);
		if (!fresh)
			continue;
		list[i]->cmd_fd = fresh->cmd_fd;
		list[i]->async_fd = fresh->async_fd;
	}
	if (list)
		rdma_free_devices(list);
}

static _Atomic pid_t dev_pid;

static int dev_find(const char *what, struct v_found *f)
{
	struct rdma_event_channel *ch;
	char with_port[128];
	struct xr_addr addr;
	pid_t was;
	int r;

	/* one thread does it; another that comes meanwhile fails this once */
	was = xr_xchg(&dev_pid, getpid());
	if (was && was != getpid())
		dev_renew();
	ch = rdma_create_event_channel();
	if (!ch)
		return dev_why(v_null());
	if (what && xr_snprintf(with_port, sizeof(with_port), strchr(what, ':') ? "[%s]:1" : "%s:1", what) <
	    (int)sizeof(with_port) && !v_address(with_port, &addr)) {
		r = v_routable(&addr) ? dev_of_address(ch, &addr, f) : -EADDRNOTAVAIL;
		if (!r && f->iwarp)
			r = -EPROTONOSUPPORT;
	} else {
		r = dev_search(ch, what, f);
	}
	rdma_destroy_event_channel(ch);
	if (r == -EPROTONOSUPPORT)
		xr_info("iWARP maps RDMA ports to TCP ports: such a device is not used");
	return r;
}

static struct ibv_context *dev_context(const struct v_found *f)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;
	int i;

	errno = ENODEV;
	if (!list)
		return NULL;
	for (i = 0; list[i] && !ctx; i++)
		if (ibv_get_device_guid(list[i]) == f->guid && !strcmp(ibv_get_device_name(list[i]), f->name))
			ctx = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	return ctx;
}

int v_dev_port(struct v_dev *d)
{
	struct ibv_port_attr p;
	int r = v_errno(ibv_query_port(d->ctx, d->port, &p));

	if (r)
		return r;
	d->up = p.state == IBV_PORT_ACTIVE;
	d->mtu = (uint8_t)p.active_mtu;
	return 0;
}

/* Bytes that a send queue entry can hold: nobody reports it, so it is tried. */
static uint32_t dev_inline(struct v_dev *d)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd = ibv_alloc_pd(d->ctx);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 4, NULL, NULL, 0);
	uint32_t n = V_MAX_INLINE;
	struct ibv_qp *qp;

	for (; pd && cq && n >= 32; n /= 2) {
		a.send_cq = a.recv_cq = cq;
		a.cap = (struct ibv_qp_cap){ .max_send_wr = 2, .max_recv_wr = 1, .max_send_sge = V_MAX_SGE,
					     .max_recv_sge = 1, .max_inline_data = n };
		qp = ibv_create_qp(pd, &a);
		if (!qp)
			continue;
		ibv_destroy_qp(qp);
		break;
	}
	if (cq)
		ibv_destroy_cq(cq);
	if (pd)
		ibv_dealloc_pd(pd);
	return pd && cq && n >= 32 ? n : 0;
}

/*
 * Registered memory and fork.  Since Linux 5.12 a child gets its own copy of pinned pages and nothing is needed.
 * Before, the library must be told, and takes registered pages from the children; memory of mr_alloc() is shared, needs
 * no such protection and is given back to them (fabric_verbs_mr.c).
 */
static void dev_fork(void)
{
	if (ibv_is_fork_initialized() == IBV_FORK_DISABLED && ibv_fork_init())
		xr_warn("memory of a program that forks may not be registered on this kernel");
}

int v_dev_open(struct v_dev *d, const char *what)
{
	struct v_found f;
	int r = dev_find(what, &f);

	if (r)
		return r;
	dev_fork();
	d->ctx = dev_context(&f);
	if (!d->ctx)
		return v_null();
	memcpy(d->name, f.name, sizeof(d->name));
	d->guid = f.guid;
	d->port = f.port;
	d->own = f.addr;
	v_gid_of(&f.addr, &d->gid);
	r = v_errno(ibv_query_device(d->ctx, &d->attr));
	if (!r)
		r = v_dev_port(d);
	if (!r)
		r = dev_nonblock(d->ctx->async_fd);
	if (r)
		goto close_context;
	d->quirk = v_quirk(d->attr.vendor_id);
	r = d->quirk->hollow ? xr_random(&d->secret, sizeof(d->secret)) : 0;
	if (r)
		goto close_context;
	d->windows = !d->quirk->no_window &&
		     (d->attr.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
	d->gid_index = v_gid_index(d->ctx, d->port, &d->gid);
	d->max_inline = dev_inline(d);
	d->channel = ibv_create_comp_channel(d->ctx);
	r = d->channel ? dev_nonblock(d->channel->fd) : v_null();
	if (r)
		goto close_channel;
	d->cm = rdma_create_event_channel();
	r = d->cm ? dev_nonblock(d->cm->fd) : v_null();
	if (r)
		goto close_cm;
	xr_debug("device %s port %u: %s, inline %u, windows %u, mtu %u", d->name, d->port, d->quirk->driver,
		 d->max_inline, d->windows, 128u << d->mtu);
	return 0;
close_cm:
	if (d->cm)
		rdma_destroy_event_channel(d->cm);
close_channel:
	if (d->channel)
		ibv_destroy_comp_channel(d->channel);
close_context:
	ibv_close_device(d->ctx);
	return r;
}

void v_dev_close(struct v_dev *d)
{
	rdma_destroy_event_channel(d->cm);
	if (!d->ctx)
		return;
	ibv_destroy_comp_channel(d->channel);
	ibv_close_device(d->ctx);
}

/* --- asynchronous events -------------------------------------------------------------------- */

static void dev_cq_error(struct v_dev *d, struct v_cq *c)
{
	uint32_t i;

	xr_error("device %s: a completion queue failed", d->name);
	for (i = 0; i < d->qp_room; i++) {
		struct v_qp *q = d->qps[i];

		if (!q || (q->qp.send_cq != &c->cq && q->qp.recv_cq != &c->cq))
			continue;
		v_qp_fail(q, XR_WC_FATAL_ERR);
		/* nothing will come through it any more */
		v_flush(q);
	}
}

static void dev_event(struct v_dev *d, const struct ibv_async_event *e)
{
	struct v_qp *q = NULL;
	int was = d->up;

	d->count.events++;
	switch (e->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
		q = e->element.qp->qp_context;
		break;
	case IBV_EVENT_CQ_ERR:
		dev_cq_error(d, e->element.cq->cq_context);
		break;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_PORT_ACTIVE:
		if (e->element.port_num != d->port)
			break;
		v_spare_drop(d);
		if (v_dev_port(d))
			break;
		if (d->up != was)
			v_event(d, NULL, XR_CM_DEVICE, d->up ? 0 : -ENETDOWN, NULL, 0);
		break;
	case IBV_EVENT_GID_CHANGE:
		if (e->element.port_num != d->port)
			break;
		v_spare_drop(d);
		if (v_gid_refresh(d))
			v_event(d, NULL, XR_CM_DEVICE, d->gid_index < 0 ? -EADDRNOTAVAIL : 0, NULL, 0);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		d->dying = 1;
		break;
	default:
		break;
	}
	if (!q)
		return;
	if (e->event_type == IBV_EVENT_COMM_EST)
		v_cm_established(q);
	else
		/* fatal is of this end; the others say that what the peer asked for was wrong */
		v_qp_fail(q, e->event_type == IBV_EVENT_QP_FATAL ? XR_WC_FATAL_ERR : XR_WC_WR_FLUSH_ERR);
}

void v_dev_events(struct v_dev *d)
{
	struct ibv_async_event e;

	while (d->ctx && !d->dying && !ibv_get_async_event(d->ctx, &e)) {
		struct ibv_async_event copy = e;

		/* at once: destroying a queue pair waits for it */
		ibv_ack_async_event(&e);
		dev_event(d, &copy);
	}
	if (d->dying && d->ctx)
		v_dev_die(d);
}

void v_dev_die(struct v_dev *d)
{
	uint32_t i;

	xr_warn("device %s is gone", d->name);
	d->up = 0;
	d->gid_index = -1;
	v_cm_die(d);
	for (i = 0; i < d->qp_room; i++)
		if (d->qps[i])
			v_qp_fail(d->qps[i], XR_WC_FATAL_ERR);
	for (i = 0; i < d->qp_room; i++) {
		struct v_qp *q = d->qps[i];

		if (!q)
			continue;
		if (q->ib)
			ibv_destroy_qp(q->ib);
		q->ib = NULL;
	}
	v_mr_die(d);
	for (struct v_cq *c = d->cqs; c; c = c->next) {
		v_cq_drain(c);
		ibv_destroy_cq(c->ib);
		c->ib = NULL;
	}
	v_pd_die(d);
	for (i = 0; i < d->qp_room; i++)
		if (d->qps[i])
			v_flush(d->qps[i]);
	ibv_destroy_comp_channel(d->channel);
	ibv_close_device(d->ctx);
	d->ctx = NULL;
	v_event(d, NULL, XR_CM_DEVICE, -ENODEV, NULL, 0);
	v_wake(d);
}
