/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The way to a peer, remembered.  The manager takes two steps, each a system call and a wake-up, to find out by which
 * address and route a peer is reached, and an id that knows is used up by one connection.  So when a connection to
 * a place that was connected to before is over, another id goes the way while nobody waits for it, and the next
 * connection to there begins with its request.
 *
 * Only for places that are met again: between sockets each has a port of its own, and nothing is made for those.
 * Only for V_SPARE_NS: the kernel itself believes longer than that what it was told of a neighbour; and not
 * beyond a change of the port or of its addresses.
 */
#include <string.h>
#include "fabric_verbs.h"

static int same_place(const struct xr_addr *a, const struct xr_addr *b)
{
	return a->family == b->family && a->port == b->port && !memcmp(a->ip, b->ip, sizeof(a->ip)) &&
	       !memcmp(a->source, b->source, sizeof(a->source));
}

static int place_known(struct v_dev *d, const struct xr_addr *addr, uint8_t tos)
{
	uint32_t i, n = d->nplaces < V_PLACES ? d->nplaces : V_PLACES;

	for (i = 0; i < n; i++)
		if (d->places[i].tos == tos && same_place(&d->places[i].addr, addr))
			return 1;
	d->places[d->nplaces++ % V_PLACES] = (struct v_place){ *addr, tos };
	return 0;
}

struct v_id *v_spare_take(struct v_dev *d, const struct xr_addr *addr, uint8_t tos, int *known)
{
	struct v_id *id;
	uint64_t now;

	*known = place_known(d, addr, tos);
	if (!*known || !d->spares)
		return NULL;
	now = xr_now_ns();
	for (id = d->ids; id; id = id->next) {
		if (!id->spare || id->state != V_ID_SPARE || id->deadline <= now || id->tos != tos ||
		    !same_place(&id->addr, addr))
			continue;
		id->spare = 0;
		id->foreseen = 1;
		d->spares--;
		d->count.foreseen++;
		return id;
	}
	return NULL;
}

void v_spare_make(struct v_dev *d, const struct xr_addr *addr, uint8_t tos)
{
	struct v_id *id;

	if (d->closing || d->dying || !d->ctx || !d->up || d->gid_index < 0 || d->spares >= V_SPARES)
		return;
	id = v_id_new(d, V_ID_ADDRESS);
	if (!id)
		return;
	id->spare = 1;
	d->spares++;
	id->addr = *addr;
	id->tos = tos;
	id->resolve_ms = V_SPARE_MS;
	id->deadline = xr_now_ns() + V_SPARE_NS;
	v_cm_timer(d, id->deadline);
	/* nobody waits for it: what goes wrong is told to whoever connects */
	if (v_cm_resolve(id))
		v_id_free(id);
}

void v_spare_drop(struct v_dev *d)
{
	struct v_id *id, *next;

	for (id = d->ids; id; id = next) {
		next = id->next;
		if (id->spare)
			v_id_free(id);
	}
}

void v_spare_doubt(struct v_dev *d)
{
	struct v_id *id;

	/* v_spare_take() passes them by, and the timer that was set for them frees them */
	for (id = d->ids; id; id = id->next)
		if (id->spare)
			id->deadline = 1;
}
