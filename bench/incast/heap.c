/* SPDX-License-Identifier: BSD-2-Clause */
/* Events in order of time; those of the same time in the order in which they were made. */
#include <stdlib.h>
#include "sim.h"

static int before(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void heap_push(struct heap *h, const struct event *e)
{
	struct event x = *e;
	uint32_t i;

	if (h->n == h->room) {
		h->room = h->room ? 2 * h->room : 4096;
		h->v = realloc(h->v, h->room * sizeof(*h->v));
		if (!h->v)
			abort();
	}
	x.order = h->order++;
	for (i = h->n++; i && before(&x, &h->v[(i - 1) / 2]); i = (i - 1) / 2)
		h->v[i] = h->v[(i - 1) / 2];
	h->v[i] = x;
}

int heap_pop(struct heap *h, struct event *e)
{
	struct event *x;
	uint32_t i = 0, k;

	if (!h->n)
		return 0;
	*e = h->v[0];
	x = &h->v[--h->n];
	while ((k = 2 * i + 1) < h->n) {
		if (k + 1 < h->n && before(&h->v[k + 1], &h->v[k]))
			k++;
		if (!before(&h->v[k], x))
			break;
		h->v[i] = h->v[k];
		i = k;
	}
	h->v[i] = *x;
	return 1;
}
