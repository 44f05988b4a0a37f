/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes messages of the records of both ends; see trace.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

const char *const xr_trace_stage_name[XR_TRACE_STAGES] = {
#define NAME(sym, name, text) [XR_TRACE_##sym] = name,
	XR_TRACE_TABLE(NAME)
#undef NAME
};

const struct xr_trace_part xr_trace_part[XR_TRACE_PARTS] = {
	{"wait", XR_TRACE_QUEUED, XR_TRACE_POSTED, "for the window or credit"},
	{"post", XR_TRACE_POSTED, XR_TRACE_SENT, "until the fabric had all of it"},
	{"travel", XR_TRACE_POSTED, XR_TRACE_RECEIVED, "until the receiving end looked"},
	{"deliver", XR_TRACE_RECEIVED, XR_TRACE_DELIVERED, "until its program had all of it"},
	{"ack", XR_TRACE_DELIVERED, XR_TRACE_ACKED, "until the sending end looked"},
	{"whole", XR_TRACE_QUEUED, XR_TRACE_DELIVERED, "from program to program"},
};

/* One record, and where it is from: sorted by message. */
struct item {
	const struct xr_trace_data *d;
	const struct xr_trace_file *f;
};

static int by_message(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	int c = memcmp(x->d->id, y->d->id, sizeof(x->d->id));

	if (c || x->d->span == y->d->span)
		return c ? c : (x->d->at_ns > y->d->at_ns) - (x->d->at_ns < y->d->at_ns);
	return x->d->span > y->d->span ? 1 : -1;
}

static bool at_sender(const struct xr_trace_data *d)
{
	return d->stage != XR_TRACE_RECEIVED && d->stage != XR_TRACE_DELIVERED;
}

static bool same_clock(const struct xr_trace_file *a, const struct xr_trace_file *b)
{
	static const uint8_t unknown[16];

	return a == b || (a->time_ns && a->time_ns == b->time_ns && memcmp(a->boot, unknown, 16) &&
			  !memcmp(a->boot, b->boot, 16));
}

static void know(struct xr_trace_msg *m, int64_t offset, uint64_t error)
{
	if (m->offset_known && m->error_ns <= error)
		return;
	m->offset_known = true;
	m->offset_ns = offset;
	m->error_ns = error;
}

/* The receiver's clock less the sender's: known, measured by either, or else taken for none. */
static void find_offset(struct xr_trace_msg *m, const struct item *item, size_t n)
{
	if (m->sender.file && m->receiver.file && same_clock(m->sender.file, m->receiver.file)) {
		know(m, 0, 0);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		const struct xr_trace_data *d = item[i].d;

		if (!(d->flags & XR_TRACE_CLOCK))
			continue;
		/* who wrote it: FAR records are the receiver's */
		if (at_sender(d) && !(d->flags & XR_TRACE_FAR))
			know(m, d->offset_ns, d->error_ns);
		else
			know(m, (int64_t)-(uint64_t)d->offset_ns, d->error_ns);
	}
	/* where the clocks may well be one they are: to correct by less than the error makes nothing better */
	if (m->offset_known && (m->offset_ns < 0 ? -(uint64_t)m->offset_ns : (uint64_t)m->offset_ns) <= m->error_ns)
		m->offset_ns = 0;
}

static void join_one(const struct item *item, size_t n, struct xr_trace_msg *m)
{
	const struct xr_trace_file *base;

	memset(m, 0, sizeof(*m));
	memcpy(m->id, item->d->id, sizeof(m->id));
	m->span = item->d->span;
	for (size_t i = 0; i < n; i++) {
		const struct xr_trace_data *d = item[i].d;
		bool far = d->flags & XR_TRACE_FAR;
		struct xr_trace_end *end = at_sender(d) && !far ? &m->sender : &m->receiver;

		if (!end->file) {
			end->file = item[i].f;
			end->rec = d;
		}
		if (d->len > m->len)
			m->len = d->len;
	}
	find_offset(m, item, n);
	base = m->sender.file ? m->sender.file : m->receiver.file;
	for (size_t i = 0; i < n; i++) {
		const struct xr_trace_data *d = item[i].d;
		unsigned int bit = 1u << d->stage;
		bool far = d->flags & XR_TRACE_FAR;
		uint64_t at = d->at_ns;

		/* the sender's own word before what the receiver heard */
		if (m->have & bit && (far || !(m->far & bit)))
			continue;
		/* all by the clock of `base` */
		if (!at_sender(d) && m->sender.file)
			at -= (uint64_t)m->offset_ns;
		else if (at_sender(d) && !m->sender.file)
			at += (uint64_t)m->offset_ns;
		m->have |= bit;
		m->far = far ? m->far | bit : m->far & ~bit;
		m->at[d->stage] = at + base->real_off;
	}
}

static uint64_t first_at(const struct xr_trace_msg *m)
{
	uint64_t first = UINT64_MAX;

	for (int i = 0; i < XR_TRACE_STAGES; i++)
		if (m->have & 1u << i && m->at[i] < first)
			first = m->at[i];
	return first;
}

static int by_time(const void *a, const void *b)
{
	uint64_t x = first_at(a), y = first_at(b);

	return (x > y) - (x < y);
}

/* What began when the first file had been read already may be half a message, at random. */
static bool too_late(const struct xr_trace_set *set, const struct xr_trace_msg *m)
{
	const struct xr_trace_file *base = m->sender.file ? m->sender.file : m->receiver.file;

	return set->begun && base->here && first_at(m) > set->begun;
}

int xr_trace_join(const struct xr_trace_set *set, struct xr_trace_msgs *msgs)
{
	struct item *item;
	size_t total = 0, n = 0, i, j;

	memset(msgs, 0, sizeof(*msgs));
	for (i = 0; i < set->n; i++)
		total += set->file[i].n;
	item = calloc(total + 1, sizeof(*item));
	msgs->msg = calloc(total + 1, sizeof(*msgs->msg));
	if (!item || !msgs->msg) {
		free(item);
		free(msgs->msg);
		return -ENOMEM;
	}
	for (i = 0; i < set->n; i++)
		for (j = 0; j < set->file[i].n; j++)
			item[n++] = (struct item){&set->file[i].rec[j], &set->file[i]};
	qsort(item, n, sizeof(*item), by_message);
	for (i = 0; i < n; i = j) {
		for (j = i + 1; j < n && item[j].d->span == item[i].d->span &&
		     !memcmp(item[j].d->id, item[i].d->id, sizeof(item[i].d->id)); j++)
			;
		join_one(&item[i], j - i, &msgs->msg[msgs->n]);
		msgs->n += !too_late(set, &msgs->msg[msgs->n]);
	}
	free(item);
	qsort(msgs->msg, msgs->n, sizeof(*msgs->msg), by_time);
	return 0;
}

bool xr_trace_took(const struct xr_trace_msg *m, unsigned int part, uint64_t *ns)
{
	const struct xr_trace_part *p = &xr_trace_part[part];

	if (!(m->have & 1u << p->from) || !(m->have & 1u << p->to))
		return false;
	*ns = m->at[p->to] > m->at[p->from] ? m->at[p->to] - m->at[p->from] : 0;
	return true;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int xr_trace_summarise(const struct xr_trace_msgs *msgs, unsigned int part,
		       bool (*same)(const struct xr_trace_msg *m, const void *arg), const void *arg,
		       struct xr_trace_sum *sum)
{
	uint64_t *v = calloc(msgs->n + 1, sizeof(*v));
	size_t n = 0;

	memset(sum, 0, sizeof(*sum));
	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < msgs->n; i++)
		if (!same || same(&msgs->msg[i], arg))
			n += xr_trace_took(&msgs->msg[i], part, &v[n]);
	sum->n = n;
	if (n) {
		qsort(v, n, sizeof(*v), by_value);
		/* nearest rank */
		sum->p50 = v[(n * 50 + 99) / 100 - 1];
		sum->p90 = v[(n * 90 + 99) / 100 - 1];
		sum->p99 = v[(n * 99 + 99) / 100 - 1];
		sum->max = v[n - 1];
	}
	free(v);
	return 0;
}
