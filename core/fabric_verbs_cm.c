/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections: what the program asks for.  The connection manager of the kernel does not know our queue pairs, only
 * their numbers, so each step that it reports is ours to follow (fabric_verbs_event.c).
 *
 * The accepting side moves its queue pair to RTS before it answers, as the manager wants it, but tells the
 * program only when it knows that the other end is there.
 */
#include <stdlib.h>
#include <string.h>
#include "fabric_verbs.h"
#include "log.h"

#define CM_BACKLOG 64u

struct v_id *v_id_new(struct v_dev *d, enum v_id_state state)
{
	struct v_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->id.dev = &d->dev;
	id->state = state;
	id->next = d->ids;
	d->ids = id;
	return id;
}

static void id_pending_done(struct v_id *id)
{
	if (id->listener)
		id->listener->pending--;
	id->listener = NULL;
}

void v_id_free(struct v_id *id)
{
	struct v_id **pp = &v_dev(id->id.dev)->ids;

	id_pending_done(id);
	xr_cm_queue_drop(&v_dev(id->id.dev)->events, &id->id);
	v_dev(id->id.dev)->spares -= id->spare;
	/* of a listener, and of what nobody has heard of, there is nothing to say */
	if (id->cm)
		v_cm_let_go(v_dev(id->id.dev), id->cm, id->state != V_ID_LISTEN && !id->spare);
	while (*pp != id)
		pp = &(*pp)->next;
	*pp = id->next;
	free(id);
}

static int id_manager(struct v_dev *d, struct v_id *id)
{
	return v_errno(rdma_create_id(d->cm, &id->cm, id, RDMA_PS_TCP));
}

/* --- listening ------------------------------------------------------------------------------ */

static int cm_family(const struct xr_addr *addr)
{
	if (addr->family != XR_AF_INET && addr->family != XR_AF_INET6)
		return -EAFNOSUPPORT;
	return addr->port ? 0 : -EINVAL;
}

int v_cm_listen(struct xr_dev *dev, const struct xr_addr *addr, const struct xr_listen_attr *attr,
		struct xr_cm_id **out)
{
	struct v_dev *d = v_dev(dev);
	struct sockaddr_storage ss;
	int r = cm_family(addr), one = 1;
	struct v_id *id;

	if (r)
		return r;
	if (!d->ctx)
		return -ENODEV;
	id = v_id_new(d, V_ID_LISTEN);
	if (!id)
		return -ENOMEM;
	id->backlog = attr && attr->backlog ? attr->backlog : CM_BACKLOG;
	v_sockaddr(addr, addr->ip, addr->port, &ss);
	r = id_manager(d, id);
	/* an IPv6 address is one, and no window to all of IPv4 */
	if (!r && addr->family == XR_AF_INET6)
		r = v_errno(rdma_set_option(id->cm, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)));
	if (!r)
		r = v_errno(rdma_bind_addr(id->cm, (struct sockaddr *)&ss));
	/* requests beyond the backlog are answered by us; the kernel would let them time out */
	if (!r)
		r = v_errno(rdma_listen(id->cm, (int)id->backlog + 64));
	if (r) {
		v_id_free(id);
		return r;
	}
	*out = &id->id;
	return 0;
}

/* --- the connecting side ---------------------------------------------------------------------- */

void v_cm_unreachable(struct v_id *id, int error)
{
	struct v_qp *q = id->id.qp ? v_qp(id->id.qp) : NULL;

	if (id->state == V_ID_DEAD)
		return;
	if (id->spare) {
		v_id_free(id);
		return;
	}
	if (id->foreseen)
		v_spare_doubt(v_dev(id->id.dev));
	id->state = V_ID_DEAD;
	v_event(v_dev(id->id.dev), id, XR_CM_UNREACHABLE, error, NULL, 0);
	if (q)
		v_qp_fail(q, XR_WC_RETRY_EXC_ERR);
}

int v_cm_resolve(struct v_id *id)
{
	static const uint8_t none[16];
	struct sockaddr_storage dst, src;
	int bound = memcmp(id->addr.source, none, 16) != 0, r;

	/* an id that has failed is good for nothing any more */
	if (id->cm)
		rdma_destroy_id(id->cm);
	id->cm = NULL;
	id->state = V_ID_ADDRESS;
	r = id_manager(v_dev(id->id.dev), id);
	if (!r)
		r = v_errno(rdma_set_option(id->cm, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &id->tos, sizeof(id->tos)));
	if (r)
		return r;
	v_sockaddr(&id->addr, id->addr.ip, id->addr.port, &dst);
	v_sockaddr(&id->addr, id->addr.source, 0, &src);
	return v_errno(rdma_resolve_addr(id->cm, bound ? (struct sockaddr *)&src : NULL, (struct sockaddr *)&dst,
					 id->resolve_ms));
}

int v_cm_connect(struct xr_dev *dev, const struct xr_addr *addr, struct xr_qp *qp, const void *data,
		 uint32_t len, struct xr_cm_id **out)
{
	struct v_dev *d = v_dev(dev);
	struct v_qp *q = v_qp(qp);
	int r = cm_family(addr), known;
	struct v_id *id;

	if (r)
		return r;
	if (q->id)
		return -EISCONN;
	if (qp->state != XR_QPS_INIT || qp->dev != dev || len > sizeof(id->data) - V_WIRE)
		return -EINVAL;
	/* nothing behind a link-local address can be told from its like on another link */
	if (!v_routable(addr))
		return -EADDRNOTAVAIL;
	if (!d->ctx)
		return -ENODEV;
	if (v_cm_mute(d))
		return -ENETDOWN;
	id = v_spare_take(d, addr, q->attr.tos, &known);
	if (!id)
		id = v_id_new(d, V_ID_ADDRESS);
	if (!id)
		return -ENOMEM;
	id->addr = *addr;
	id->tos = q->attr.tos;
	id->again = known ? V_AGAIN_KNOWN : 0;
	id->resolve_ms = V_RESOLVE_MS;
	id->len = v_wire_put(id->data, &(struct v_wire){ V_WIRE_DATA, (uint8_t)len, d->mtu, data });
	id->id.qp = qp;
	q->id = id;
	id->deadline = xr_now_ns() + V_CONNECT_NS;
	v_cm_timer(d, id->deadline);
	*out = &id->id;
	/* what was foreseen, and turns out otherwise, is asked for again */
	if (!id->foreseen || v_cm_request(id))
		r = v_cm_resolve(id);
	if (r && !id->cm) {
		q->id = NULL;
		v_id_free(id);
		return r;
	}
	if (r)
		v_cm_unreachable(id, r);
	return 0;
}

void v_cm_qp_failed(struct v_id *id)
{
	struct v_qp *q = v_qp(id->id.qp);
	int status = q->err == XR_WC_RETRY_EXC_ERR ? -ECONNRESET : q->err == XR_WC_FATAL_ERR ? -EIO : 0;
	struct v_dev *d = v_dev(id->id.dev);

	switch (id->state) {
	case V_ID_CONNECTED:
		id->state = V_ID_DEAD;
		if (id->cm && !v_cm_mute(d))
			rdma_disconnect(id->cm);
		v_event(d, id, XR_CM_DISCONNECTED, status, NULL, 0);
		break;
	case V_ID_ADDRESS:
	case V_ID_ROUTE:
	case V_ID_CONNECTING:
	case V_ID_ACCEPTED:
		if (id->cm && id->state == V_ID_ACCEPTED && !v_cm_mute(d))
			rdma_disconnect(id->cm);
		v_cm_unreachable(id, status ? status : -ECONNABORTED);
		break;
	default:
		break;
	}
}

/* --- the accepting side ----------------------------------------------------------------------- */

void v_cm_established(struct v_qp *q)
{
	struct v_id *id = q->id;

	if (!id || id->state != V_ID_ACCEPTED || q->qp.state != XR_QPS_RTR)
		return;
	q->qp.state = XR_QPS_RTS;
	id->state = V_ID_CONNECTED;
	/* it stops repeating its answer; when the other end has said so meanwhile, it knows */
	if (id->cm)
		rdma_notify(id->cm, IBV_EVENT_COMM_EST);
	v_event(v_dev(id->id.dev), id, XR_CM_ESTABLISHED, 0, NULL, 0);
}

int v_cm_accept(struct xr_cm_id *cid, struct xr_qp *qp, const void *data, uint32_t len)
{
	struct v_id *id = v_id(cid);
	struct v_dev *d = v_dev(cid->dev);
	struct v_qp *q = v_qp(qp);
	struct rdma_conn_param p = { 0 };
	uint8_t wire[196];
	int r;

	if (id->state != V_ID_REQUESTED || qp->state != XR_QPS_INIT || qp->dev != cid->dev ||
	    len > sizeof(wire) - V_WIRE || q->id)
		return -EINVAL;
	if (id->gone || !id->cm)
		return -ENOTCONN;
	q->id = id;
	cid->qp = qp;
	r = v_qp_connect(q);
	if (r)
		goto forget;
	p.private_data = wire;
	p.private_data_len = v_wire_put(wire, &(struct v_wire){ V_WIRE_DATA, (uint8_t)len, id->mtu, data });
	p.responder_resources = id->reads_in;
	p.initiator_depth = id->reads_out;
	p.rnr_retry_count = q->attr.rnr_retry;
	p.qp_num = q->ib->qp_num;
	r = v_errno(rdma_accept(id->cm, &p));
	if (r) {
		v_qp_unconnect(q);
		goto forget;
	}
	id_pending_done(id);
	id->state = V_ID_ACCEPTED;
	qp->state = XR_QPS_RTR;
	id->deadline = xr_now_ns() + V_CONNECT_NS;
	v_cm_timer(d, id->deadline);
	return 0;
forget:
	q->id = NULL;
	cid->qp = NULL;
	/* what the manager says of an id whose request was taken back */
	return r == -EINVAL || r == -ENOENT ? -ENOTCONN : r;
}

int v_cm_reject(struct xr_cm_id *cid, const void *data, uint32_t len)
{
	struct v_id *id = v_id(cid);
	uint8_t wire[148];

	if (id->state != V_ID_REQUESTED || len > sizeof(wire) - V_WIRE)
		return -EINVAL;
	if (id->cm && !id->gone)
		rdma_reject(id->cm, wire, v_wire_put(wire, &(struct v_wire){ V_WIRE_REFUSED, (uint8_t)len, 0, data }));
	v_id_free(id);
	return 0;
}

/* --- the end ---------------------------------------------------------------------------------- */

int v_cm_disconnect(struct xr_cm_id *cid)
{
	struct v_id *id = v_id(cid);

	if (!cid->qp || id->state == V_ID_LISTEN || id->state == V_ID_REQUESTED)
		return -ENOTCONN;
	v_qp_fail(v_qp(cid->qp), XR_WC_WR_FLUSH_ERR);
	return 0;
}

static void cm_listener_close(struct v_id *l)
{
	struct v_id *id, *next;

	for (id = v_dev(l->id.dev)->ids; id; id = next) {
		next = id->next;
		if (id->listener != l)
			continue;
		id->listener = NULL;
		/* a request that the program has not seen yet will not be answered by it */
		if (xr_cm_queue_has(&v_dev(id->id.dev)->events, &id->id))
			v_cm_reject(&id->id, NULL, 0);
	}
}

void v_cm_destroy(struct xr_cm_id *cid)
{
	struct v_id *id = v_id(cid);
	struct v_dev *d = v_dev(cid->dev);
	struct xr_addr addr = id->addr;
	uint8_t tos = id->tos, again = id->again == (V_AGAIN_KNOWN | V_AGAIN_MADE);

	if (id->state == V_ID_LISTEN)
		cm_listener_close(id);
	if (id->state == V_ID_REQUESTED) {
		v_cm_reject(cid, NULL, 0);
		return;
	}
	if (cid->qp) {
		v_qp_fail(v_qp(cid->qp), XR_WC_WR_FLUSH_ERR);
		v_qp(cid->qp)->id = NULL;
	}
	v_id_free(id);
	if (again)
		v_spare_make(d, &addr, tos);
}

void v_cm_die(struct v_dev *d)
{
	struct v_id *id;

	v_spare_drop(d);
	for (id = d->ids; id; id = id->next) {
		if (id->cm)
			rdma_destroy_id(id->cm);
		id->cm = NULL;
		id->gone = 1;
	}
	v_late_end(d);
}
