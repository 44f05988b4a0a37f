/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the implementations of fabric.h have in common: the events of connections that wait to be asked for, and the
 * memory that a device allocates.  A device is used by one thread at a time (fabric.h), and so is its queue.
 */
#ifndef XR_FABRIC_IMPL_H
#define XR_FABRIC_IMPL_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fabric.h"
#include "log.h"
#include "mem.h"

/* ---- events, oldest first ---------------------------------------------------- */

struct xr_cm_queued {
	struct xr_cm_queued *next;
	struct xr_cm_event ev;
};

struct xr_cm_queue {
	struct xr_cm_queued *head, **tail;
};

static inline void xr_cm_queue_init(struct xr_cm_queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

/*
 * fd: the eventfd that tells of them.  id: NULL, of the device.  Returns the event, for what else there is to say in
 * it; NULL: no memory, and logged.
 */
static inline struct xr_cm_event *xr_cm_queue_add(struct xr_cm_queue *q, int fd, enum xr_cm_type type,
						  struct xr_cm_id *id, int status, const void *data, uint32_t len)
{
	struct xr_cm_queued *e = calloc(1, sizeof(*e));
	static const uint64_t one = 1;

	if (!e) {
		xr_error("an event of a connection was lost: no memory");
		return NULL;
	}
	e->ev.type = type;
	e->ev.id = id;
	e->ev.status = status;
	e->ev.len = len;
	if (len)
		memcpy(e->ev.data, data, len);
	*q->tail = e;
	q->tail = &e->next;
	/* one that is full is readable already */
	if (write(fd, &one, sizeof(one)) < 0)
		return &e->ev;
	return &e->ev;
}

/* 1, or 0: there is none. */
static inline int xr_cm_queue_take(struct xr_cm_queue *q, struct xr_cm_event *ev)
{
	struct xr_cm_queued *e = q->head;

	if (!e)
		return 0;
	*ev = e->ev;
	q->head = e->next;
	if (!q->head)
		q->tail = &q->head;
	free(e);
	return 1;
}

static inline int xr_cm_queue_has(const struct xr_cm_queue *q, const struct xr_cm_id *id)
{
	const struct xr_cm_queued *e = q->head;

	while (e && e->ev.id != id)
		e = e->next;
	return e != NULL;
}

/* Those of id; NULL: all. */
static inline void xr_cm_queue_drop(struct xr_cm_queue *q, const struct xr_cm_id *id)
{
	struct xr_cm_queued **pp = &q->head;

	while (*pp) {
		struct xr_cm_queued *e = *pp;

		if (id && e->ev.id != id) {
			pp = &e->next;
			continue;
		}
		*pp = e->next;
		free(e);
	}
	q->tail = pp;
}

#endif
