/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs that are used again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "log.h"
#include "qpcache.h"

struct xr_qp_idle {
	struct xr_qp_idle *next;
	struct xr_qp *qp;
	struct xr_qp_attr attr;
	uint64_t ready;		/* ns: end of its quarantine */
};

void xr_qpcache_init(struct xr_qpcache *c, const struct xr_fabric_ops *ops, struct xr_dev *dev,
		     const struct xr_dev_caps *caps, uint32_t limit)
{
	memset(c, 0, sizeof(*c));
	c->ops = ops;
	c->dev = dev;
	c->reuse = caps->reuse;
	c->quarantine = caps->quarantine_us * 1000ull;
	c->limit = limit;
	c->last = &c->first;
}

/* Takes it out of the list; pp: where it hangs. */
static struct xr_qp *cache_take(struct xr_qpcache *c, struct xr_qp_idle **pp)
{
	struct xr_qp_idle *i = *pp;
	struct xr_qp *qp = i->qp;

	*pp = i->next;
	if (c->last == &i->next)
		c->last = pp;
	c->n--;
	free(i);
	return qp;
}

void xr_qpcache_limit(struct xr_qpcache *c, uint32_t limit)
{
	c->limit = limit;
	while (c->n > limit) {
		c->ops->qp_destroy(cache_take(c, &c->first));
		c->dropped++;
	}
}

void xr_qpcache_end(struct xr_qpcache *c)
{
	while (c->first)
		c->ops->qp_destroy(cache_take(c, &c->first));
}

static int cache_fits(const struct xr_qp_attr *a, const struct xr_qp_attr *b)
{
	return a->pd == b->pd && a->send_cq == b->send_cq && a->recv_cq == b->recv_cq &&
	       a->sq_depth == b->sq_depth && a->rq_depth == b->rq_depth && a->sig_all == b->sig_all &&
	       a->rnr_retry == b->rnr_retry && a->min_rnr_timer_us == b->min_rnr_timer_us &&
	       a->max_rd_atomic == b->max_rd_atomic && a->tos == b->tos && a->detect_ms == b->detect_ms;
}

int xr_qpcache_get(struct xr_qpcache *c, const struct xr_qp_attr *attr, uint64_t now, struct xr_qp **qp)
{
	struct xr_qp_idle **pp = &c->first;
	int r;

	while (*pp && (*pp)->ready <= now) {
		struct xr_qp *old;

		if (!cache_fits(&(*pp)->attr, attr)) {
			pp = &(*pp)->next;
			continue;
		}
		old = cache_take(c, pp);
		if (!c->ops->qp_modify(old, XR_QPS_INIT)) {
			c->hits++;
			*qp = old;
			return 0;
		}
		c->ops->qp_destroy(old);
		c->dropped++;
	}
	c->misses++;
	/* a device has room for so many: those that wait here, perhaps in quarantine, give way to one that is wanted */
	while ((r = c->ops->qp_create(c->dev, attr, qp)) != 0) {
		if ((r != -ENOMEM && r != -ENOSPC && r != -ENOBUFS) || !c->first)
			return r;
		c->ops->qp_destroy(cache_take(c, &c->first));
		c->dropped++;
	}
	r = c->ops->qp_modify(*qp, XR_QPS_INIT);
	if (r)
		c->ops->qp_destroy(*qp);
	return r;
}

int xr_qpcache_wants(const struct xr_qpcache *c)
{
	return c->reuse && c->limit;
}

void xr_qpcache_put(struct xr_qpcache *c, struct xr_qp *qp, const struct xr_qp_attr *attr, uint64_t now)
{
	struct xr_qp_idle *i = NULL;
	int r = 0;

	/* a full cache keeps the young ones out: the old ones are those that may be used */
	if (xr_qpcache_wants(c) && c->n < c->limit) {
		r = c->ops->qp_modify(qp, XR_QPS_RESET);
		if (!r)
			i = malloc(sizeof(*i));
		else
			xr_warn("a queue pair cannot be used again: error %d", -r);
	}
	if (!i) {
		c->dropped += xr_qpcache_wants(c) != 0;
		c->ops->qp_destroy(qp);
		return;
	}
	qp->user = NULL;
	i->qp = qp;
	i->attr = *attr;
	i->ready = now + c->quarantine;
	i->next = NULL;
	*c->last = i;
	c->last = &i->next;
	c->n++;
}
