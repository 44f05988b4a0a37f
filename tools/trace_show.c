/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-trace's output for people; see trace.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trace.h"

#define BAR	48	/* columns of a picture */

void xr_trace_id_text(const uint64_t id[2], char text[33])
{
	const uint8_t *b = (const uint8_t *)id;

	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", b[i]);
}

void xr_trace_span_text(uint64_t span, char text[17])
{
	snprintf(text, 17, "%016" PRIx64, span);
}

void xr_trace_addr_text(const struct xr_stats_addr *a, char *text, size_t size)
{
	char host[INET6_ADDRSTRLEN];

	if ((a->family != AF_INET && a->family != AF_INET6) ||
	    !inet_ntop(a->family, a->addr, host, sizeof(host)))
		snprintf(text, size, "-");
	else
		snprintf(text, size, a->family == AF_INET ? "%s:%u" : "[%s]:%u", host, a->port);
}

/* Three digits that count. */
static const char *duration(uint64_t ns, char buf[16])
{
	static const char *const units[] = {"ns", "us", "ms", "s"};
	double v = (double)ns;
	int i = 0;

	for (; v >= 999.5 && i < 3; i++)
		v /= 1000;
	snprintf(buf, 16, "%.*f %s", !i || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, v, units[i]);
	return buf;
}

static void end_text(const struct xr_trace_end *e, char *text, size_t size)
{
	if (!e->file)
		snprintf(text, size, "?");
	else
		snprintf(text, size, "%.40s(%d)", e->file->program, (int)e->file->pid);
}

/* ---- percentiles ---- */

static int print_parts(FILE *out, const struct xr_trace_msgs *msgs)
{
	fprintf(out, "%-9s %8s %10s %10s %10s %10s  %s\n", "Part", "Messages", "p50", "p90", "p99", "Max", "Of");
	for (unsigned int i = 0; i < XR_TRACE_PARTS; i++) {
		const struct xr_trace_part *p = &xr_trace_part[i];
		struct xr_trace_sum s;
		char b[4][16];

		if (xr_trace_summarise(msgs, i, NULL, NULL, &s))
			return -ENOMEM;
		if (!s.n) {
			fprintf(out, "%-9s %8d %10s %10s %10s %10s", p->name, 0, "-", "-", "-", "-");
		} else {
			fprintf(out, "%-9s %8zu %10s %10s %10s %10s", p->name, s.n, duration(s.p50, b[0]),
				duration(s.p90, b[1]), duration(s.p99, b[2]), duration(s.max, b[3]));
		}
		fprintf(out, "  %s to %s: %s\n", xr_trace_stage_name[p->from], xr_trace_stage_name[p->to], p->text);
	}
	return 0;
}

/* ---- connections ---- */

/* The ends of the connection as the sender sees them, from whichever record there is. */
static void ends_of(const struct xr_trace_msg *m, struct xr_stats_addr *from, struct xr_stats_addr *to)
{
	const struct xr_trace_data *d = m->sender.rec ? m->sender.rec : m->receiver.rec;

	*from = m->sender.rec ? d->local : d->peer;
	*to = m->sender.rec ? d->peer : d->local;
}

/*
 * The same connection in the same direction.  Of a message that is under way one end's records may be missing: where
 * they are not, they are of the same process.
 */
static bool same_way(const struct xr_trace_msg *a, const void *arg)
{
	const struct xr_trace_msg *b = arg;
	struct xr_stats_addr a_from, a_to, b_from, b_to;

	if ((a->sender.file && b->sender.file && a->sender.file != b->sender.file) ||
	    (a->receiver.file && b->receiver.file && a->receiver.file != b->receiver.file))
		return false;
	ends_of(a, &a_from, &a_to);
	ends_of(b, &b_from, &b_to);
	if (a_from.family || b_from.family)
		return !memcmp(&a_from, &b_from, sizeof(a_from)) && !memcmp(&a_to, &b_to, sizeof(a_to));
	if (a->sender.file && b->sender.file)
		return a->sender.rec->flow == b->sender.rec->flow;
	return a->receiver.file && b->receiver.file && a->receiver.rec->flow == b->receiver.rec->flow;
}

static void way_text(const struct xr_trace_msg *m, char *text, size_t size)
{
	struct xr_stats_addr a, b;
	char from[64], to[64];

	ends_of(m, &a, &b);
	if (a.family) {
		xr_trace_addr_text(&a, from, sizeof(from));
		xr_trace_addr_text(&b, to, sizeof(to));
		snprintf(text, size, "%s > %s", from, to);
	} else {
		snprintf(text, size, "channel %" PRIu64, (m->sender.rec ? m->sender.rec : m->receiver.rec)->flow);
	}
}

static int print_connections(FILE *out, const struct xr_trace_msgs *msgs)
{
	bool *seen = calloc(msgs->n + 1, sizeof(*seen));
	int err = seen ? 0 : -ENOMEM;

	fprintf(out, "%-22s %-22s %-40s %8s", "From", "To", "Connection", "Messages");
	for (unsigned int i = 0; i < XR_TRACE_PARTS; i++)
		fprintf(out, " %9s", xr_trace_part[i].name);
	fprintf(out, "  (p50)\n");
	for (size_t i = 0; i < msgs->n && !err; i++) {
		const struct xr_trace_msg *m = &msgs->msg[i];
		struct xr_trace_end sender = m->sender, receiver = m->receiver;
		char from[64], to[64], way[160], b[16];
		size_t n = 0;

		if (seen[i])
			continue;
		for (size_t j = i; j < msgs->n; j++) {
			const struct xr_trace_msg *o = &msgs->msg[j];

			if (seen[j] || !same_way(o, m))
				continue;
			seen[j] = true;
			n++;
			sender = sender.file ? sender : o->sender;
			receiver = receiver.file ? receiver : o->receiver;
		}
		end_text(&sender, from, sizeof(from));
		end_text(&receiver, to, sizeof(to));
		way_text(m, way, sizeof(way));
		fprintf(out, "%-22s %-22s %-40s %8zu", from, to, way, n);
		for (unsigned int p = 0; p < XR_TRACE_PARTS && !err; p++) {
			struct xr_trace_sum s;

			err = xr_trace_summarise(msgs, p, same_way, m, &s);
			if (!err)
				fprintf(out, " %9s", s.n ? duration(s.p50, b) : "-");
		}
		fputc('\n', out);
	}
	free(seen);
	return err;
}

/* ---- messages ---- */

static void print_head(FILE *out, const struct xr_trace_msg *m)
{
	char id[33], span[17], from[64], to[64], way[160], b[16];

	xr_trace_id_text(m->id, id);
	xr_trace_span_text(m->span, span);
	end_text(&m->sender, from, sizeof(from));
	end_text(&m->receiver, to, sizeof(to));
	way_text(m, way, sizeof(way));
	fprintf(out, "%s-%s %s > %s  %s  %" PRIu64 " bytes", id, span, from, to, way, m->len);
	if (m->offset_known && m->offset_ns)
		fprintf(out, "  clocks %s%s apart, give or take %s", m->offset_ns < 0 ? "-" : "",
			duration(m->offset_ns < 0 ? -(uint64_t)m->offset_ns : (uint64_t)m->offset_ns, b),
			duration(m->error_ns, (char[16]){0}));
	fputc('\n', out);
}

static void print_message(FILE *out, const struct xr_trace_msg *m)
{
	char b[16];
	uint64_t ns;

	print_head(out, m);
	for (unsigned int p = 0; p < XR_TRACE_PARTS; p++)
		fprintf(out, "%s%s %s", p ? "  " : "    ", xr_trace_part[p].name,
			xr_trace_took(m, p, &ns) ? duration(ns, b) : "-");
	fputc('\n', out);
}

/*
 * A line per part, over the time from the first stage to the last:
 *	travel    |      ########          |  1.20 us
 */
static void print_waterfall(FILE *out, const struct xr_trace_msg *m)
{
	uint64_t first = UINT64_MAX, last = 0, ns;
	char b[16];

	for (int i = 0; i < XR_TRACE_STAGES; i++) {
		if (!(m->have & 1u << i))
			continue;
		first = m->at[i] < first ? m->at[i] : first;
		last = m->at[i] > last ? m->at[i] : last;
	}
	print_head(out, m);
	/* the whole is what the picture shows */
	for (unsigned int p = 0; p < XR_TRACE_PARTS - 1; p++) {
		char bar[BAR + 1];
		int from, to;

		memset(bar, ' ', BAR);
		bar[BAR] = '\0';
		if (!xr_trace_took(m, p, &ns)) {
			fprintf(out, "  %-8s|%s|  not known\n", xr_trace_part[p].name, bar);
			continue;
		}
		from = (int)((double)(m->at[xr_trace_part[p].from] - first) / (double)(last - first + 1) * BAR);
		to = from + (int)((double)ns / (double)(last - first + 1) * BAR + 0.5);
		/* what takes no time to speak of is seen all the same */
		from = from < BAR ? from : BAR - 1;
		to = to > from ? to : from + 1;
		memset(bar + from, '#', (size_t)((to < BAR ? to : BAR) - from));
		fprintf(out, "  %-8s|%s|  %s\n", xr_trace_part[p].name, bar, duration(ns, b));
	}
}

/* It is off unless somebody asked for it, and where nothing is found one may have looked in the wrong place. */
static void print_why_none(FILE *out, const struct xr_trace_options *opt, const struct xr_trace_set *set)
{
	if (set->n)
		fprintf(out, "no message that was asked for among the records of %zu process%s\n", set->n,
			set->n == 1 ? "" : "es");
	else if (opt->files && *opt->files)
		fprintf(out, "no records in what was named\n");
	else
		fprintf(out, "no records in %s: programs trace when they are told to, and only what is on a fabric;\n"
			"\"xr-stat --set=trace_sample=100\" turns it on for one send in 100\n", opt->base);
}

int xr_trace_show(FILE *out, const struct xr_trace_options *opt, const struct xr_trace_set *set,
		  const struct xr_trace_msgs *msgs)
{
	uint64_t lost = 0, skipped = 0;
	size_t i = msgs->n > opt->last ? msgs->n - opt->last : 0;
	int err;

	if (!msgs->n)
		print_why_none(out, opt, set);
	if (!set->n)
		return 0;
	if (opt->waterfall || opt->messages) {
		for (; i < msgs->n; i++) {
			if (opt->waterfall)
				print_waterfall(out, &msgs->msg[i]);
			else
				print_message(out, &msgs->msg[i]);
		}
		return 0;
	}
	err = opt->connections ? print_connections(out, msgs) : print_parts(out, msgs);
	for (size_t f = 0; f < set->n; f++) {
		lost += set->file[f].lost;
		skipped += set->file[f].skipped;
	}
	fprintf(out, "%zu message%s of %zu process%s", msgs->n, msgs->n == 1 ? "" : "s", set->n,
		set->n == 1 ? "" : "es");
	if (skipped)
		fprintf(out, "; %" PRIu64 " more were due while one of their connection was under way", skipped);
	if (lost)
		fprintf(out, "; %" PRIu64 " records lost", lost);
	fputc('\n', out);
	return err;
}
