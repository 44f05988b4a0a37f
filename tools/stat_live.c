/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What one process's statistics cannot say of an open connection: its queues and bytes on TCP, which
 * the kernel knows; and on a fabric what the other end has read since this one last sent, which the
 * statistics of the other end say.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "diag.h"
#include "stat.h"

/* A number of the kernel in place of ours; the totals have ours in them. */
static void replace(struct xr_segment *seg, enum xr_stat total, uint64_t *bytes, uint64_t now, uint64_t twice)
{
	if (now < twice)
		return;
	seg->counter[total] += now - twice - *bytes;
	*bytes = now - twice;
}

static void ask_kernel(struct xr_segment *seg, struct xr_segment_flow *f)
{
	struct xr_diag d;

	/* only if it is still the same socket */
	if (!f->id.inode || f->id.state == XR_STATE_LISTEN ||
	    xr_diag_find(seg->pid, &f->id.local, &f->id.peer, &d) || d.inode != (uint32_t)f->id.inode)
		return;
	if (!xr_segment_on_fabric(f)) {
		f->rx.queue = d.rqueue;
		f->tx.queue = d.wqueue;
	}
	if (!d.counted)
		return;
	if (d.written > d.confirmed)
		d.written = d.confirmed - (f->id.role == XR_ROLE_CLIENT);
	replace(seg, XR_STAT_BYTES_TX_TCP, &f->tx.bytes[XR_CARRIER_TCP], d.written, f->tx.twice);
	replace(seg, XR_STAT_BYTES_RX_TCP, &f->rx.bytes[XR_CARRIER_TCP], d.read, f->rx.twice);
}

/* One end of a connection, in an order in which the other end can be found. */
struct end {
	struct xr_segment *seg;
	struct xr_segment_flow *f;
	uint8_t key[40];
};

/* IPv4 and its form in IPv6 sockets are one. */
static void put_addr(uint8_t *to, const struct xr_stats_addr *a)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	memset(to, 0, 20);
	if (a->family == AF_INET) {
		memcpy(to, mapped, 12);
		memcpy(to + 12, a->addr, 4);
	} else {
		memcpy(to, a->addr, 16);
	}
	memcpy(to + 16, &a->port, 2);
}

static void put_key(uint8_t key[40], const struct xr_stats_addr *from, const struct xr_stats_addr *to)
{
	put_addr(key, from);
	put_addr(key + 20, to);
}

static int by_key(const void *a, const void *b)
{
	return memcmp(((const struct end *)a)->key, ((const struct end *)b)->key, 40);
}

/* Bytes under way from one end to the other; not more than there were when it last sent. */
static void queue_between(struct xr_segment_flow *from, struct xr_segment_flow *to)
{
	uint64_t sent = from->tx.bytes[XR_CARRIER_SHM] - from->tx.base;
	uint64_t got = to->rx.bytes[XR_CARRIER_SHM] - to->rx.base;
	uint64_t queue = sent > got ? sent - got : 0;

	if (queue > from->tx.queue)
		queue = from->tx.queue;
	from->tx.queue = to->rx.queue = queue;
	/* slots are given back in batches, but those of what was read will be */
	if (!queue && from->tx.credits < from->tx.slots)
		from->tx.credits = from->tx.slots;
}

int xr_stat_live(struct xr_stat_set *set)
{
	size_t n = 0, room = 1;
	struct end *ends;

	for (size_t s = 0; s < set->n; s++)
		room += set->seg[s].n_flows;
	ends = calloc(room, sizeof(*ends));
	if (!ends)
		return -ENOMEM;
	for (size_t s = 0; s < set->n; s++) {
		for (uint32_t i = 0; set->seg[s].life == XR_SEGMENT_LIVE && i < set->seg[s].n_flows; i++) {
			struct xr_segment_flow *f = &set->seg[s].flow[i];

			ask_kernel(&set->seg[s], f);
			if (!xr_segment_on_fabric(f) || f->id.state == XR_STATE_CLOSING)
				continue;
			ends[n].seg = &set->seg[s];
			ends[n].f = f;
			put_key(ends[n++].key, &f->id.local, &f->id.peer);
		}
	}
	qsort(ends, n, sizeof(*ends), by_key);
	for (size_t i = 0; i < n; i++) {
		struct end want, *peer;

		put_key(want.key, &ends[i].f->id.peer, &ends[i].f->id.local);
		peer = bsearch(&want, ends, n, sizeof(*ends), by_key);
		/* the same addresses exist in each network namespace */
		if (peer && peer->seg->pid == (pid_t)ends[i].f->id.peer_pid &&
		    ends[i].f->id.carrier_tx == XR_CARRIER_SHM && peer->f->id.carrier_rx == XR_CARRIER_SHM)
			queue_between(ends[i].f, peer->f);
	}
	free(ends);
	return 0;
}
