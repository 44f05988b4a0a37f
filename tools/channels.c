/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads what core/chanstats.c writes; see channels.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "channels.h"

const struct xr_channels_field xr_channels_fields[XR_CHAN_COUNT] = {
#define FIELD(SYM, name, gauge, text) [XR_CHAN_##SYM] = {#name, text, gauge},
	XR_CHANSTATS_TABLE(FIELD)
#undef FIELD
};

const struct xr_channels_field xr_channels_proc_fields[XR_CHANPROC_COUNT] = {
#define FIELD(SYM, name, gauge, text) [XR_CHANPROC_##SYM] = {#name, text, gauge},
	XR_CHANPROC_TABLE(FIELD)
#undef FIELD
};

int xr_channels_name(const char *name, pid_t *pid, uint64_t *start_time)
{
	size_t n = strlen(name), tail = strlen(XR_CHANSTATS_SUFFIX);
	char stem[64];

	if (n <= tail || n - tail >= sizeof(stem) || strcmp(name + n - tail, XR_CHANSTATS_SUFFIX))
		return -EINVAL;
	memcpy(stem, name, n - tail);
	stem[n - tail] = '\0';
	return xr_segment_name(stem, pid, start_time);
}

const char *xr_channels_state(const struct xr_channels_one *one)
{
	static const char *const names[XR_CHANSTATS_STATES] = {"-", "OPENING", "OPEN", "CLOSING", "ENDED"};

	return names[one->state < XR_CHANSTATS_STATES ? one->state : 0];
}

static int check_header(const struct xr_chanstats_seg *h, size_t size, uint32_t *used, const char **why)
{
	uint64_t magic = xr_load_acquire(&h->magic); /* pairs with the writer's release */
	uint32_t version = __atomic_load_n(&h->version, __ATOMIC_RELAXED);

	if (!magic)
		return *why = "is being made", -EAGAIN;
	if (magic != XR_CHANSTATS_MAGIC)
		return *why = "has no statistics of channels", -EBADMSG;
	if (version != XR_CHANSTATS_VERSION)
		return *why = "is of another version of xrdma", -EPROTONOSUPPORT;
	*used = xr_load_acquire(&h->used);
	if (h->header_size != sizeof(*h) || h->slot_size != sizeof(struct xr_chanstats_slot) ||
	    h->slots_off != XR_CHANSTATS_OFF ||
	    *used > (size - XR_CHANSTATS_OFF) / sizeof(struct xr_chanstats_slot) || h->pid <= 0)
		return *why = "has a header that makes no sense", -EBADMSG;
	return 0;
}

/* One slot; false if it is free, or changes all the time (its writer died in a change). */
static bool copy_slot(const struct xr_chanstats_slot *s, struct xr_channels_one *out)
{
	for (int i = 0; i < 1000; i++) {
		uint32_t seq = xr_load_acquire(&s->seq); /* before the fields */
		struct xr_chanstats_ident id;

		if (seq & 1)
			continue;
		memcpy(&id, &s->ident, sizeof(id));
		out->state = xr_load_relaxed(&s->state);
		out->qpn = xr_load_relaxed(&s->qpn);
		out->peer_qpn = xr_load_relaxed(&s->peer_qpn);
		for (int k = 0; k < XR_CHAN_COUNT; k++)
			out->v[k] = xr_load_relaxed(&s->v[k]);
		/* the fields before the second look */
		atomic_thread_fence(memory_order_acquire);
		if (xr_load_relaxed(&s->seq) != seq)
			continue;
		out->id = id;
		xr_segment_text(out->id.device, id.device, sizeof(id.device));
		xr_segment_text(out->id.name, id.name, sizeof(id.name));
		return out->state != XR_CHANSTATS_FREE && out->state < XR_CHANSTATS_STATES;
	}
	return false;
}

/* A channel that ends while we look takes its counters to the totals: it must not be seen in both, or in neither. */
static void copy_all(const struct xr_chanstats_seg *from, uint32_t used, struct xr_channels *c)
{
	const struct xr_chanstats_slot *slots =
		(const struct xr_chanstats_slot *)((const char *)from + XR_CHANSTATS_OFF);
	const _Atomic uint64_t *closed = &from->proc[XR_CHANPROC_CLOSED];
	bool moved = true;

	for (int attempt = 0; attempt < 8 && moved; attempt++) {
		uint64_t before = xr_load_acquire(closed);

		for (int i = 0; i < XR_CHAN_COUNT; i++)
			c->total[i] = xr_load_acquire(&from->total[i]);
		c->n = 0;
		for (uint32_t i = 0; i < used; i++)
			c->n += copy_slot(&slots[i], &c->chan[c->n]);
		atomic_thread_fence(memory_order_acquire);
		moved = before != xr_load_relaxed(closed);
		for (int i = 0; i < XR_CHAN_COUNT; i++)
			moved |= c->total[i] != xr_load_relaxed(&from->total[i]);
	}
	for (int i = 0; i < XR_CHANPROC_COUNT; i++)
		c->proc[i] = xr_load_relaxed(&from->proc[i]);
	for (uint32_t i = 0; i < c->n; i++)
		for (int k = 0; k < XR_CHAN_COUNT; k++)
			c->total[k] += c->chan[i].v[k];
}

/* The process lives on, and has executed another program, which knows nothing of these channels. */
static bool executed(const struct xr_chanstats_seg *h)
{
	char path[40];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/exe", (int)h->pid);
	return h->exe_ino && !stat(path, &st) && (st.st_ino != h->exe_ino || st.st_dev != h->exe_dev);
}

static int read_mapped(const void *map, size_t size, void *arg, const char **why)
{
	const struct xr_chanstats_seg *from = map;
	struct xr_channels *c = arg;
	uint32_t used;
	int err = check_header(from, size, &used, why);

	if (err)
		return err;
	c->chan = calloc(used ? used : 1, sizeof(*c->chan));
	if (!c->chan)
		return *why = "is too large for memory", -ENOMEM;
	c->pid = from->pid;
	c->opened_ns = from->opened_ns;
	xr_segment_text(c->program, from->program, sizeof(c->program));
	xr_segment_text(c->version, from->xrdma_version, sizeof(c->version));
	c->life = xr_segment_life(xr_load_acquire(&from->exited), from->pid_ns, from->pid, from->start_time);
	if (c->life == XR_SEGMENT_LIVE && executed(from))
		c->life = XR_SEGMENT_DEAD;
	copy_all(from, used, c);
	return 0;
}

int xr_channels_read(int dirfd, const char *name, struct xr_channels *c, const char **why)
{
	int err;

	memset(c, 0, sizeof(*c));
	err = xr_segment_map(dirfd, name, XR_CHANSTATS_OFF, &c->uid, read_mapped, c, why);
	if (err)
		xr_channels_free(c);
	return err;
}

void xr_channels_free(struct xr_channels *c)
{
	free(c->chan);
	c->chan = NULL;
	c->n = 0;
}
