/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections: what the connection manager reports.  An event is copied and acknowledged before anything is done about
 * it, since destroying an id waits for the acknowledgement of all of its events.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "fabric_verbs.h"
#include "log.h"

/* Why the manager of the other end rejects: IBTA volume 1, table 109. */
#define REJ_INVALID_SERVICE_ID	8	/* nobody listens */
#define REJ_STALE_CONN		10	/* it still has a connection of this queue pair */
#define REJ_CONSUMER		28

/* --- events for the user ---------------------------------------------------------------------- */

static struct xr_cm_event *event_new(struct v_dev *d, struct v_id *id, enum xr_cm_type type, int status,
				     const void *data, uint32_t len)
{
	struct xr_cm_event *ev = xr_cm_queue_add(&d->events, d->cm_event, type, id ? &id->id : NULL, status, data, len);

	if (ev)
		ev->listener = id && id->listener ? &id->listener->id : NULL;
	return ev;
}

void v_event(struct v_dev *d, struct v_id *id, enum xr_cm_type type, int status, const void *data, uint32_t len)
{
	event_new(d, id, type, status, data, len);
}

int v_cm_get_event(struct xr_dev *dev, struct xr_cm_event *ev)
{
	struct v_dev *d = v_dev(dev);

	if (!d->events.head)
		v_cm_progress(d);
	return xr_cm_queue_take(&d->events, ev);
}

int v_cm_fd(struct xr_dev *dev)
{
	return v_dev(dev)->cm_epoll;
}

/* --- the connecting side ------------------------------------------------------------------------ */

static int same_device(const struct v_dev *d, const struct rdma_cm_id *cm)
{
	return cm->verbs && cm->port_num == d->port && ibv_get_device_guid(cm->verbs->device) == d->guid &&
	       !strcmp(ibv_get_device_name(cm->verbs->device), d->name);
}

static void ev_address(struct v_dev *d, struct v_id *id)
{
	int r = same_device(d, id->cm) ? v_errno(rdma_resolve_route(id->cm, 2000)) : -ENETUNREACH;

	if (r)
		v_cm_unreachable(id, r);
	else
		id->state = V_ID_ROUTE;
}

/*
 * An answer to ARP that comes before the question was noted is lost, and only the end of the wait shows that it
 * had come: so the waits begin short.
 */
static void ev_no_address(struct v_id *id, int error)
{
	int r = error;

	if (error == -ETIMEDOUT && !id->spare && id->resolve_ms < 3200) {
		id->resolve_ms *= 2;
		r = v_cm_resolve(id);
	}
	if (r)
		v_cm_unreachable(id, r);
}

static uint8_t reads(uint32_t want, int device)
{
	uint32_t most = device > 0 ? (uint32_t)device : 0;

	if (most > V_MAX_RD)
		most = V_MAX_RD;
	return (uint8_t)(want && want < most ? want : most);
}

int v_cm_request(struct v_id *id)
{
	struct v_dev *d = v_dev(id->id.dev);
	struct v_qp *q = v_qp(id->id.qp);
	struct rdma_conn_param p = { .private_data = id->data, .private_data_len = id->len };
	int r;

	p.responder_resources = reads(0, d->attr.max_qp_rd_atom);
	p.initiator_depth = reads(q->attr.max_rd_atomic, d->attr.max_qp_init_rd_atom);
	p.retry_count = V_RETRY;
	p.rnr_retry_count = q->attr.rnr_retry;
	p.qp_num = q->ib ? q->ib->qp_num : 0;
	r = q->ib ? v_errno(rdma_connect(id->cm, &p)) : -ENODEV;
	if (!r)
		id->state = V_ID_CONNECTING;
	return r;
}

static void ev_route(struct v_id *id)
{
	int r;

	if (id->spare) {
		id->state = V_ID_SPARE;
		return;
	}
	r = v_cm_request(id);
	if (r)
		v_cm_unreachable(id, r);
}

static void ev_response(struct v_id *id, const void *data, size_t len)
{
	struct v_dev *d = v_dev(id->id.dev);
	struct v_qp *q = v_qp(id->id.qp);
	struct v_wire w;
	int r = v_wire_get(data, len, &w);

	if (!r && w.code != V_WIRE_DATA)
		r = -EPROTO;
	if (!r) {
		id->mtu = w.mtu;
		r = v_qp_connect(q);
	}
	if (!r)
		r = v_errno(rdma_establish(id->cm));
	if (r) {
		/* the other end has moved on to an answer that will not be taken */
		rdma_reject(id->cm, NULL, 0);
		v_cm_unreachable(id, r);
		return;
	}
	q->qp.state = XR_QPS_RTS;
	id->state = V_ID_CONNECTED;
	id->again |= V_AGAIN_MADE;
	v_event(d, id, XR_CM_ESTABLISHED, 0, w.data, w.len);
}

static void ev_rejected(struct v_id *id, int reason, const void *data, size_t len)
{
	struct v_dev *d = v_dev(id->id.dev);
	int status = -ECONNREFUSED;
	struct v_wire w = { 0 };

	if (reason != REJ_CONSUMER || v_wire_get(data, len, &w)) {
		v_cm_unreachable(id, reason == REJ_INVALID_SERVICE_ID || reason == REJ_CONSUMER ? -ECONNREFUSED :
				 reason == REJ_STALE_CONN ? -EAGAIN : -ECONNABORTED);
		return;
	}
	if (w.code == V_WIRE_BACKLOG)
		status = -EAGAIN;
	else if (w.code == V_WIRE_MEMORY)
		status = -ENOMEM;
	id->state = V_ID_DEAD;
	v_event(d, id, XR_CM_REJECTED, status, w.data, w.len);
	v_qp_fail(v_qp(id->id.qp), XR_WC_WR_FLUSH_ERR);
}

/* --- the accepting side --------------------------------------------------------------------------- */

static void refuse(struct rdma_cm_id *cm, enum v_wire_code code)
{
	uint8_t wire[V_WIRE];

	rdma_reject(cm, wire, v_wire_put(wire, &(struct v_wire){ (uint8_t)code, 0, 0, NULL }));
	rdma_destroy_id(cm);
}

static void ev_request(struct v_dev *d, struct v_id *l, struct rdma_cm_id *cm, const struct rdma_conn_param *p)
{
	struct xr_cm_event *ev;
	struct v_wire w;
	struct v_id *id;

	/* of another device, or not of ours at all */
	if (!same_device(d, cm) || v_wire_get(p->private_data, p->private_data_len, &w) || w.code != V_WIRE_DATA) {
		d->count.strangers++;
		rdma_reject(cm, NULL, 0);
		rdma_destroy_id(cm);
		return;
	}
	if (l->pending >= l->backlog) {
		refuse(cm, V_WIRE_BACKLOG);
		return;
	}
	id = v_id_new(d, V_ID_REQUESTED);
	if (!id) {
		refuse(cm, V_WIRE_MEMORY);
		return;
	}
	id->listener = l;
	l->pending++;
	id->cm = cm;
	cm->context = id;
	id->mtu = w.mtu < d->mtu ? w.mtu : d->mtu;
	/* the manager has turned it round already: what we are asked to serve, and may ask */
	id->reads_in = reads(p->responder_resources, d->attr.max_qp_rd_atom);
	id->reads_out = reads(p->initiator_depth, d->attr.max_qp_init_rd_atom);
	if (!p->responder_resources)
		id->reads_in = 0;
	if (!p->initiator_depth)
		id->reads_out = 0;
	v_addr(rdma_get_peer_addr(cm), &id->addr);
	ev = event_new(d, id, XR_CM_CONNECT_REQUEST, 0, w.data, w.len);
	if (!ev) {
		id->cm = NULL;
		v_id_free(id);
		refuse(cm, V_WIRE_MEMORY);
		return;
	}
	ev->peer = id->addr;
}

/* --- all of them ---------------------------------------------------------------------------------- */

static void ev_gone(struct v_id *id, int error)
{
	switch (id->state) {
	case V_ID_REQUESTED:
		id->gone = 1;
		break;
	case V_ID_CONNECTED:
		v_qp_fail(v_qp(id->id.qp), XR_WC_WR_FLUSH_ERR);
		break;
	case V_ID_ADDRESS:
	case V_ID_ROUTE:
	case V_ID_CONNECTING:
	case V_ID_ACCEPTED:
		v_cm_unreachable(id, error);
		break;
	default:
		break;
	}
}

static void cm_event(struct v_dev *d, struct v_id *id, enum rdma_cm_event_type type, int status,
		     struct rdma_cm_id *cm, const struct rdma_conn_param *p)
{
	int error = status < 0 ? status : -ETIMEDOUT;

	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (id->state == V_ID_ADDRESS)
			ev_address(d, id);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
		if (id->state == V_ID_ADDRESS)
			ev_no_address(id, error);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (id->state == V_ID_ROUTE)
			ev_route(id);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		ev_request(d, id, cm, p);
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		if (id->state == V_ID_CONNECTING)
			ev_response(id, p->private_data, p->private_data_len);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (id->state == V_ID_ACCEPTED)
			v_cm_established(v_qp(id->id.qp));
		break;
	case RDMA_CM_EVENT_REJECTED:
		if (id->state == V_ID_CONNECTING)
			ev_rejected(id, status, p->private_data, p->private_data_len);
		else
			ev_gone(id, -ECONNABORTED);
		break;
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		ev_gone(id, error);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		ev_gone(id, -ECONNRESET);
		break;
	case RDMA_CM_EVENT_ADDR_CHANGE:
		if (id->spare)
			v_id_free(id);
		break;
	default:
		break;
	}
}

static void cm_expire(struct v_dev *d, uint64_t now)
{
	uint64_t next = v_late_expire(d, now);
	struct v_id *id, *after;

	for (id = d->ids; id; id = after) {
		after = id->next;
		if (!id->deadline)
			continue;
		if (id->spare && now >= id->deadline)
			v_id_free(id);
		else if (id->state == V_ID_CONNECTED || id->state == V_ID_DEAD)
			id->deadline = 0;
		else if (now >= id->deadline)
			v_cm_unreachable(id, -ETIMEDOUT);
		else if (!next || id->deadline < next)
			next = id->deadline;
	}
	d->timer_at = 0;
	if (next)
		v_cm_timer(d, next);
}

void v_cm_timer(struct v_dev *d, uint64_t deadline)
{
	struct itimerspec it = { .it_value = { (time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u) } };

	if (d->timer_at && d->timer_at <= deadline)
		return;
	d->timer_at = deadline;
	timerfd_settime(d->cm_timer, TFD_TIMER_ABSTIME, &it, NULL);
}

void v_cm_progress(struct v_dev *d)
{
	struct epoll_event rung;
	struct rdma_cm_event *ev;
	uint64_t count;

	/* who spins asks often, mostly for nothing: one system call, not one for each that may ring */
	if (!epoll_wait(d->cm_epoll, &rung, 1, 0) && !d->dying)
		return;
	if (read(d->cm_event, &count, sizeof(count)) < 0 && errno != EAGAIN)
		return;
	if (read(d->cm_timer, &count, sizeof(count)) > 0)
		cm_expire(d, xr_now_ns());
	while (!d->dying && !rdma_get_cm_event(d->cm, &ev)) {
		enum rdma_cm_event_type type = ev->event;
		struct rdma_cm_id *cm = ev->id;
		struct v_id *id = ev->listen_id ? ev->listen_id->context : cm->context;
		struct rdma_conn_param p = ev->param.conn;
		uint8_t data[256];
		int status = ev->status;

		if (p.private_data && p.private_data_len)
			memcpy(data, p.private_data, p.private_data_len);
		p.private_data = p.private_data && p.private_data_len ? data : NULL;
		rdma_ack_cm_event(ev);
		if (type == RDMA_CM_EVENT_DEVICE_REMOVAL)
			d->dying = 1;
		else if (id)
			cm_event(d, id, type, status, cm, &p);
	}
	if (d->ctx)
		v_dev_events(d);
}
