/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Farewells that are said later.  The manager says goodbye to the other end when an id goes, by a queue pair
 * that all programs of this host share.  With rxe that queue pair is lost when there is no route for what it
 * sends, and nobody is connected by this device any more until it is made anew.  So an id stays while the port
 * is down or the address is gone.
 */
#include <stdlib.h>
#include <string.h>
#include "fabric_verbs.h"

#define LATE_NS		250000000ull	/* between two looks; routes are there a little after the port is */

int v_cm_mute(const struct v_dev *d)
{
	struct ibv_port_attr p;
	union ibv_gid gid;

	if (!d->quirk->brittle || !d->ctx)
		return 0;
	/* asked now: the event that says so may be still to come */
	return ibv_query_port(d->ctx, d->port, &p) || p.state != IBV_PORT_ACTIVE || d->gid_index < 0 ||
	       ibv_query_gid(d->ctx, d->port, d->gid_index, &gid) || memcmp(&gid, &d->gid, sizeof(gid)) != 0;
}

void v_cm_let_go(struct v_dev *d, struct rdma_cm_id *cm, int speaks)
{
	struct v_late *l = speaks && v_cm_mute(d) ? calloc(1, sizeof(*l)) : NULL;

	if (!l) {
		rdma_destroy_id(cm);
		return;
	}
	cm->context = NULL;
	l->cm = cm;
	l->next = d->late;
	d->late = l;
	v_cm_timer(d, xr_now_ns() + LATE_NS);
}

void v_late_end(struct v_dev *d)
{
	while (d->late) {
		struct v_late *l = d->late;

		d->late = l->next;
		rdma_destroy_id(l->cm);
		free(l);
	}
}

uint64_t v_late_expire(struct v_dev *d, uint64_t now)
{
	if (!d->late)
		return 0;
	/* one look after it may speak again, for what else has to come back */
	d->unmute = v_cm_mute(d) ? 0 : d->unmute + 1;
	if (d->unmute < 2)
		return now + LATE_NS;
	d->unmute = 0;
	v_late_end(d);
	return 0;
}
