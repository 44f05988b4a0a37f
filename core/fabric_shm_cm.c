/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connection management of the shm device: REQ, REP, RTU, REJ as in chapter 12 of the
 * InfiniBand specification, and at the end DISC ("I am in ERR") and GONE ("I will not
 * look at your rings again"), after which the memory of a connection serves another.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fabric_shm.h"
#include "log.h"

#define CM_BACKLOG	64u

static const uint32_t cm_private[3] = { 56, 196, 148 };

static struct shm_id *shm_id(struct xr_cm_id *id)
{
	return container_of(id, struct shm_id, id);
}

/* --- events ------------------------------------------------------------------------ */

int shm_cm_event(struct shm_id *id, enum xr_cm_type type, int status, const void *data, uint32_t len)
{
	struct shm_dev *d = shm_dev(id->id.dev);
	struct xr_cm_event *ev = xr_cm_queue_add(&d->events, d->cm_event, type, &id->id, status, data, len);

	if (!ev)
		return -ENOMEM;
	ev->listener = id->listener ? &id->listener->id : NULL;
	return 0;
}

int shm_cm_get_event(struct xr_dev *dev, struct xr_cm_event *ev)
{
	struct shm_dev *d = shm_dev(dev);

	if (!d->events.head)
		shm_peer_progress(d);
	return xr_cm_queue_take(&d->events, ev);
}

int shm_cm_fd(struct xr_dev *dev)
{
	return shm_dev(dev)->cm_epoll;
}

/* --- ids ---------------------------------------------------------------------------- */

static struct shm_id *id_new(struct shm_dev *d, enum shm_id_state state)
{
	struct shm_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->id.dev = &d->dev;
	id->state = state;
	id->sock = -1;
	id->next = d->ids;
	d->ids = id;
	return id;
}

static void id_free(struct shm_id *id)
{
	struct shm_id **pp = &shm_dev(id->id.dev)->ids;

	xr_cm_queue_drop(&shm_dev(id->id.dev)->events, &id->id);
	while (*pp != id)
		pp = &(*pp)->next;
	*pp = id->next;
	free(id);
}

static int cm_address(const struct xr_addr *addr, const char **name)
{
	static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t n;

	if (addr->family != XR_AF_SHM)
		return -EAFNOSUPPORT;
	n = strnlen(addr->name, XR_ADDR_NAME);
	if (!n || n == XR_ADDR_NAME || strspn(addr->name, ok) != n)
		return -EINVAL;
	*name = addr->name;
	return 0;
}

static struct shm_id *cm_listener(struct shm_dev *d, const char *name)
{
	struct shm_id *id;

	for (id = d->ids; id; id = id->next)
		if (id->state == SHM_ID_LISTEN && !strcmp(id->name, name))
			return id;
	return NULL;
}

int shm_cm_listen(struct xr_dev *dev, const struct xr_addr *addr, const struct xr_listen_attr *attr,
		  struct xr_cm_id **out)
{
	struct shm_dev *d = shm_dev(dev);
	const char *name;
	struct shm_id *id;
	int r = cm_address(addr, &name);

	if (r)
		return r;
	id = id_new(d, SHM_ID_LISTEN);
	if (!id)
		return -ENOMEM;
	memcpy(id->name, name, strlen(name) + 1);
	id->backlog = attr && attr->backlog ? attr->backlog : CM_BACKLOG;
	id->any_user = attr && attr->any_user;
	r = shm_peer_listen(d, id);
	if (r) {
		id_free(id);
		return r;
	}
	*out = &id->id;
	return 0;
}

/* --- the connecting side --------------------------------------------------------------- */

static void cm_unreachable(struct shm_id *id, int error)
{
	struct shm_qp *q = id->id.qp ? shm_qp(id->id.qp) : NULL;

	if (id->state == SHM_ID_DEAD)
		return;
	id->state = SHM_ID_DEAD;
	id->peer = NULL;
	shm_cm_event(id, XR_CM_UNREACHABLE, error, NULL, 0);
	if (q)
		shm_qp_fail(q, XR_WC_RETRY_EXC_ERR);
}

static void cm_request(struct shm_id *id)
{
	struct shm_qp *q = shm_qp(id->id.qp);
	struct shm_cm_msg m = { .src = q->qp.num, .data_len = id->data_len };
	int r = shm_qp_directions(q, id->peer);

	if (!r) {
		m.off[0] = q->off[0];
		m.off[1] = q->off[1];
		memcpy(m.name, id->name, sizeof(id->name));
		memcpy(m.data, id->data, id->data_len);
		id->sent = 1;
		r = shm_peer_send(id->peer, &m, SHM_CM_REQ);
	}
	if (r)
		cm_unreachable(id, r);
}

int shm_cm_connect(struct xr_dev *dev, const struct xr_addr *addr, struct xr_qp *qp,
		   const void *data, uint32_t len, struct xr_cm_id **out)
{
	struct shm_dev *d = shm_dev(dev);
	struct shm_qp *q = shm_qp(qp);
	const char *name;
	struct shm_id *id;
	int r = cm_address(addr, &name);

	if (r)
		return r;
	if (q->id || q->peer)
		return -EISCONN;
	if (qp->state != XR_QPS_INIT || qp->dev != dev || len > cm_private[0])
		return -EINVAL;
	id = id_new(d, SHM_ID_CONNECTING);
	if (!id)
		return -ENOMEM;
	r = shm_peer_get(d, name, 0, &id->peer);
	if (r) {
		id_free(id);
		return r;
	}
	memcpy(id->name, name, strlen(name) + 1);
	id->data_len = len;
	if (len)
		memcpy(id->data, data, len);
	id->id.qp = qp;
	q->id = id;
	id->fresh = id->peer->state == SHM_PEER_KNOCK;
	id->deadline = xr_now_ns() + SHM_CONNECT_NS;
	shm_peer_timer(d, id->deadline);
	*out = &id->id;
	if (id->peer->state == SHM_PEER_UP)
		cm_request(id);
	else if (id->peer->state == SHM_PEER_KNOCK)
		shm_peer_knock(id->peer);
	return 0;
}

void shm_cm_peer_up(struct shm_peer *p)
{
	struct shm_id *id;

	for (id = p->dev->ids; id; id = id->next)
		if (id->peer == p && id->state == SHM_ID_CONNECTING && !id->sent)
			cm_request(id);
}

void shm_cm_peer_dead(struct shm_peer *p, int error)
{
	struct shm_id *id;

	for (id = p->dev->ids; id; id = id->next) {
		if (id->peer != p)
			continue;
		if (id->state == SHM_ID_CONNECTING)
			cm_unreachable(id, error);
		id->peer = NULL;
	}
}

uint64_t shm_cm_expire(struct shm_dev *d, uint64_t now)
{
	uint64_t next = 0;
	struct shm_id *id;

	for (id = d->ids; id; id = id->next) {
		if (!id->deadline)
			continue;
		if (id->state != SHM_ID_CONNECTING && id->state != SHM_ID_ACCEPTED)
			id->deadline = 0;
		else if (now >= id->deadline)
			cm_unreachable(id, -ETIMEDOUT);
		else if (!next || id->deadline < next)
			next = id->deadline;
	}
	return next;
}

void shm_cm_qp_failed(struct shm_id *id)
{
	struct shm_qp *q = shm_qp(id->id.qp);
	int status = q->gone == XR_WC_RETRY_EXC_ERR ? -ECONNRESET :
		     q->err == XR_WC_FATAL_ERR ? -EPROTO : 0;

	switch (id->state) {
	case SHM_ID_CONNECTED:
		id->state = SHM_ID_DEAD;
		shm_cm_event(id, XR_CM_DISCONNECTED, status, NULL, 0);
		break;
	case SHM_ID_ACCEPTED:
		cm_unreachable(id, status ? status : -ECONNABORTED);
		break;
	case SHM_ID_CONNECTING:
		if (id->peer && id->sent && !q->peer_num) {
			struct shm_cm_msg m = { .src = q->qp.num };

			shm_peer_send(id->peer, &m, SHM_CM_CANCEL);
		}
		cm_unreachable(id, status ? status : -ECONNABORTED);
		break;
	default:
		break;
	}
}

/* --- the accepting side ------------------------------------------------------------------ */

static void cm_pending_done(struct shm_id *id)
{
	if (id->listener)
		id->listener->pending--;
	id->listener = NULL;
}

static void cm_refuse(struct shm_peer *p, uint32_t dst, int status, const void *data, uint32_t len)
{
	struct shm_cm_msg m = { .dst = dst, .status = status, .data_len = len };

	if (len)
		memcpy(m.data, data, len);
	shm_peer_send(p, &m, SHM_CM_REJ);
}

int shm_cm_accept(struct xr_cm_id *cid, struct xr_qp *qp, const void *data, uint32_t len)
{
	struct shm_id *id = shm_id(cid);
	struct shm_qp *q = shm_qp(qp);
	struct shm_cm_msg m = { .dst = id->remote, .data_len = len };
	int r;

	if (id->state != SHM_ID_REQUESTED || qp->state != XR_QPS_INIT || qp->dev != cid->dev ||
	    len > cm_private[1] || q->id || q->peer)
		return -EINVAL;
	if (!id->peer || id->peer->state != SHM_PEER_UP)
		return -ENOTCONN;
	r = shm_qp_directions(q, id->peer);
	if (r)
		return r;
	r = shm_qp_attach(q, id->remote, id->remote_off);
	if (r) {
		shm_qp_undirect(q);
		return r;
	}
	m.src = qp->num;
	m.off[0] = q->off[0];
	m.off[1] = q->off[1];
	if (len)
		memcpy(m.data, data, len);
	cm_pending_done(id);
	id->state = SHM_ID_ACCEPTED;
	cid->qp = qp;
	q->id = id;
	id->deadline = xr_now_ns() + SHM_CONNECT_NS;
	shm_peer_timer(shm_dev(cid->dev), id->deadline);
	/* the first message may be here before the RTU */
	shm_activate(q);
	shm_peer_send(id->peer, &m, SHM_CM_REP);
	return 0;
}

int shm_cm_reject(struct xr_cm_id *cid, const void *data, uint32_t len)
{
	struct shm_id *id = shm_id(cid);

	if (id->state != SHM_ID_REQUESTED || len > cm_private[2])
		return -EINVAL;
	if (id->peer)
		cm_refuse(id->peer, id->remote, -ECONNREFUSED, data, len);
	cm_pending_done(id);
	id_free(id);
	return 0;
}

/* --- the end -------------------------------------------------------------------------------- */

int shm_cm_disconnect(struct xr_cm_id *cid)
{
	struct shm_id *id = shm_id(cid);

	if (!cid->qp || id->state == SHM_ID_LISTEN || id->state == SHM_ID_REQUESTED)
		return -ENOTCONN;
	shm_qp_fail(shm_qp(cid->qp), XR_WC_WR_FLUSH_ERR);
	return 0;
}

static void cm_listener_close(struct shm_id *l)
{
	struct shm_id *id, *next;

	shm_unwatch(shm_dev(l->id.dev)->cm_epoll, l->sock);
	/* nobody connects to it any more, whoever has a copy of the descriptor */
	shutdown(l->sock, SHUT_RDWR);
	close(l->sock);
	for (id = shm_dev(l->id.dev)->ids; id; id = next) {
		next = id->next;
		if (id->listener != l)
			continue;
		id->listener = NULL;
		/* a request that the program has not seen yet will not be answered by it */
		if (xr_cm_queue_has(&shm_dev(l->id.dev)->events, &id->id))
			shm_cm_reject(&id->id, NULL, 0);
	}
}

void shm_cm_destroy(struct xr_cm_id *cid)
{
	struct shm_id *id = shm_id(cid);

	if (id->state == SHM_ID_LISTEN)
		cm_listener_close(id);
	if (id->state == SHM_ID_REQUESTED) {
		shm_cm_reject(cid, NULL, 0);
		return;
	}
	if (cid->qp) {
		shm_qp_fail(shm_qp(cid->qp), XR_WC_WR_FLUSH_ERR);
		shm_qp(cid->qp)->id = NULL;
	}
	id_free(id);
}

/* --- messages ---------------------------------------------------------------------------------- */

static void cm_req(struct shm_peer *p, const struct shm_cm_msg *m)
{
	struct shm_id *l = cm_listener(p->dev, m->name), *id;

	if (!l || l->pending >= l->backlog || m->data_len > cm_private[0] || !m->src) {
		cm_refuse(p, m->src, !l ? -ENOENT : -EAGAIN, NULL, 0);
		return;
	}
	id = id_new(p->dev, SHM_ID_REQUESTED);
	if (!id) {
		cm_refuse(p, m->src, -ENOMEM, NULL, 0);
		return;
	}
	id->peer = p;
	id->listener = l;
	id->remote = m->src;
	id->remote_off[0] = m->off[0];
	id->remote_off[1] = m->off[1];
	if (shm_cm_event(id, XR_CM_CONNECT_REQUEST, 0, m->data, m->data_len)) {
		cm_refuse(p, m->src, -ENOMEM, NULL, 0);
		id_free(id);
		return;
	}
	l->pending++;
}

static void cm_rep(struct shm_peer *p, const struct shm_cm_msg *m)
{
	struct shm_qp *q = shm_qp_find(p->dev, m->dst);
	struct shm_cm_msg rtu = { .dst = m->src };
	struct shm_id *id = q ? q->id : NULL;
	int r;

	if (!id || q->peer != p || id->state != SHM_ID_CONNECTING || !m->src ||
	    m->data_len > cm_private[1]) {
		/* taken back meanwhile: the accepting side must not wait for us */
		rtu.src = m->dst;
		shm_peer_send(p, &rtu, SHM_CM_GONE);
		return;
	}
	r = shm_qp_attach(q, m->src, m->off);
	if (r) {
		q->peer_num = m->src;
		cm_unreachable(id, r);
		return;
	}
	q->qp.state = XR_QPS_RTS;
	id->state = SHM_ID_CONNECTED;
	rtu.src = q->qp.num;
	shm_peer_send(p, &rtu, SHM_CM_RTU);
	shm_activate(q);
	if (id->state == SHM_ID_CONNECTED)
		shm_cm_event(id, XR_CM_ESTABLISHED, 0, m->data, m->data_len);
}

void shm_cm_established(struct shm_qp *q)
{
	if (!q->id || q->id->state != SHM_ID_ACCEPTED || q->qp.state != XR_QPS_RTR)
		return;
	q->qp.state = XR_QPS_RTS;
	q->id->state = SHM_ID_CONNECTED;
	shm_activate(q);
	shm_cm_event(q->id, XR_CM_ESTABLISHED, 0, NULL, 0);
}

static void cm_rej(struct shm_qp *q, const struct shm_cm_msg *m)
{
	struct shm_id *id = q->id;
	struct shm_peer *p;

	if (!id || id->state != SHM_ID_CONNECTING || !id->sent || m->data_len > cm_private[2])
		return;
	/* the process that had the name lives on without it: somebody else may have it now */
	if (m->status == -ENOENT && !id->fresh) {
		id->fresh = 1;
		id->sent = 0;
		shm_qp_undirect(q);
		id->peer = NULL;
		if (!shm_peer_get(shm_dev(q->qp.dev), id->name, 1, &p)) {
			id->peer = p;
			shm_peer_knock(p);
			return;
		}
		cm_unreachable(id, -ENOMEM);
		return;
	}
	q->parted = 1;
	id->state = SHM_ID_DEAD;
	id->peer = NULL;
	if (m->status == -ENOENT)
		shm_cm_event(id, XR_CM_UNREACHABLE, -ECONNREFUSED, NULL, 0);
	else
		shm_cm_event(id, XR_CM_REJECTED, m->status == -EAGAIN || m->status == -ENOMEM ?
			     m->status : -ECONNREFUSED, m->data, m->data_len);
	shm_qp_fail(q, XR_WC_WR_FLUSH_ERR);
}

static void cm_cancel(struct shm_peer *p, const struct shm_cm_msg *m)
{
	struct shm_cm_msg gone = { .dst = m->src };
	struct shm_qp *q;
	struct shm_id *id;

	for (q = p->qps; q; q = q->peer_next) {
		if (q->peer_num == m->src) {
			shm_qp_gone(q, XR_WC_WR_FLUSH_ERR, q->req_seq);
			return;
		}
	}
	for (id = p->dev->ids; id; id = id->next)
		if (id->state == SHM_ID_REQUESTED && id->peer == p && id->remote == m->src)
			id->peer = NULL;
	shm_peer_send(p, &gone, SHM_CM_GONE);
}

static void cm_gone(struct shm_peer *p, struct shm_qp *q, uint32_t num)
{
	struct shm_zombie **zz = &p->zombies, *z;

	if (q) {
		q->parted = 1;
		shm_qp_gone(q, XR_WC_WR_FLUSH_ERR, q->req_seq + XR_RING_MAX);
		return;
	}
	for (; (z = *zz); zz = &z->next) {
		if (z->num == num) {
			*zz = z->next;
			shm_zombie_free(p, z);
			return;
		}
	}
}

void shm_cm_message(struct shm_peer *p, const struct shm_cm_msg *m)
{
	struct shm_qp *q = shm_qp_find(p->dev, m->dst);

	if (q && q->peer != p)
		q = NULL;
	switch (m->type) {
	case SHM_CM_REQ:
		cm_req(p, m);
		break;
	case SHM_CM_REP:
		cm_rep(p, m);
		break;
	case SHM_CM_CANCEL:
		cm_cancel(p, m);
		break;
	case SHM_CM_GONE:
		cm_gone(p, q, m->dst);
		break;
	case SHM_CM_RTU:
		if (q)
			shm_cm_established(q);
		break;
	case SHM_CM_REJ:
		if (q)
			cm_rej(q, m);
		break;
	case SHM_CM_DISC:
		if (q)
			shm_qp_gone(q, XR_WC_WR_FLUSH_ERR, m->slot);
		break;
	case SHM_CM_NUDGE:
		if (q)
			shm_activate(q);
		break;
	}
}
