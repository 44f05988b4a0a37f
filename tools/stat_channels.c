/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-stat: channels of programs on the public interface. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "stat.h"

int xr_stat_add_channels(const struct xr_stat_options *opt, struct xr_stat_set *set, const char *dirname,
			 int dirfd, const char *name, uid_t uid)
{
	struct xr_channels c, *more;
	const char *why = "";
	uint64_t start;
	pid_t pid;
	int got;

	if (xr_channels_name(name, &pid, &start))
		return 0;
	got = xr_channels_read(dirfd, name, &c, &why);
	if (got == -ENOENT) /* gone since readdir */
		return 1;
	if (got == -EAGAIN || got == -EPROTONOSUPPORT) {
		/* whose it was its name says */
		if (xr_segment_gone(pid, start) && xr_segment_may_remove(uid)) {
			unlinkat(dirfd, name, 0);
			return 1;
		}
		if (got == -EAGAIN)
			return 1;
	}
	if (got) {
		if (!opt->pid || opt->pid == pid) {
			xr_stat_complain(dirname, name, why);
			set->errors++;
		}
		return 1;
	}
	if (c.pid != pid) {
		xr_stat_complain(dirname, name, "claims another process");
		set->errors++;
		xr_channels_free(&c);
		return 1;
	}
	if (c.life == XR_SEGMENT_DEAD && !opt->dead) {
		if (xr_segment_may_remove(uid))
			unlinkat(dirfd, name, 0);
		xr_channels_free(&c);
		return 1;
	}
	more = reallocarray(set->api, set->n_api + 1, sizeof(*more));
	if (!more) {
		xr_channels_free(&c);
		return -ENOMEM;
	}
	set->api = more;
	set->api[set->n_api++] = c;
	return 1;
}

static int by_pid(const void *a, const void *b)
{
	const struct xr_channels *x = a, *y = b;

	return x->pid != y->pid ? (x->pid > y->pid) - (x->pid < y->pid)
				: (x->opened_ns > y->opened_ns) - (x->opened_ns < y->opened_ns);
}

static int by_number(const void *a, const void *b)
{
	const struct xr_channels_one *x = a, *y = b;

	return (x->id.no > y->id.no) - (x->id.no < y->id.no);
}

void xr_stat_select_channels(const struct xr_stat_options *opt, struct xr_stat_set *set)
{
	size_t kept = 0;

	for (size_t i = 0; i < set->n_api; i++) {
		struct xr_channels *c = &set->api[i];

		if ((opt->pid && opt->pid != c->pid) || (opt->program && !xr_glob(opt->program, c->program))) {
			xr_channels_free(c);
			continue;
		}
		if (c->n)
			qsort(c->chan, c->n, sizeof(*c->chan), by_number);
		set->api[kept++] = *c;
	}
	set->n_api = kept;
	if (kept)
		qsort(set->api, kept, sizeof(*set->api), by_pid);
}

void xr_stat_release_channels(struct xr_stat_set *set)
{
	for (size_t i = 0; i < set->n_api; i++)
		xr_channels_free(&set->api[i]);
	free(set->api);
}

static char *info_line(const struct xr_channels_one *o)
{
	static const char *const roles[] = {"unknown", "client", "server"};
	char *text = NULL;
	size_t size;
	FILE *m = open_memstream(&text, &size);

	if (!m)
		return NULL;
	fprintf(m, "\t channel:%" PRIu64 " context:%u role:%s age:%.1fs qpn:%u/%u", o->id.no, o->id.context,
		roles[o->id.role < 3 ? o->id.role : 0], xr_stat_age(o->id.opened_ns), o->qpn, o->peer_qpn);
	fprintf(m, " msgs:%" PRIu64 "/%" PRIu64 " bytes:%" PRIu64 "/%" PRIu64 " rendezvous:%" PRIu64 "/%" PRIu64,
		o->v[XR_CHAN_MSGS_SENT], o->v[XR_CHAN_MSGS_RECEIVED], o->v[XR_CHAN_BYTES_SENT],
		o->v[XR_CHAN_BYTES_RECEIVED], o->v[XR_CHAN_ANNOUNCED], o->v[XR_CHAN_FETCHED]);
	fprintf(m, " control:%" PRIu64 "/%" PRIu64 " queued:%" PRIu64 " waited:%" PRIu64 " refused:%" PRIu64,
		o->v[XR_CHAN_CONTROL_SENT], o->v[XR_CHAN_CONTROL_RECEIVED], o->v[XR_CHAN_QUEUED_MSGS],
		o->v[XR_CHAN_WAITED], o->v[XR_CHAN_REFUSED]);
	fprintf(m, " rnr:%" PRIu64 " marked:%" PRIu64 " held:%" PRIu64 " cuts:%" PRIu64 " net:%" PRIu64 "/%" PRIu64,
		o->v[XR_CHAN_RNR], o->v[XR_CHAN_MARKED], o->v[XR_CHAN_HELD], o->v[XR_CHAN_CUTS],
		o->v[XR_CHAN_NET_BYTES], o->v[XR_CHAN_NET_FETCH_BYTES]);
	fprintf(m, " receives:%" PRIu64 " receive_bytes:%" PRIu64 " resized:%" PRIu64 " probes:%" PRIu64,
		o->v[XR_CHAN_RECV_MSGS], o->v[XR_CHAN_RECV_BYTES], o->v[XR_CHAN_RESIZED], o->v[XR_CHAN_PROBES]);
	if (fclose(m)) {
		free(text);
		return NULL;
	}
	return text;
}

/* What may be under way: both the peer and the network have to take it. */
static uint64_t window(const struct xr_channels_one *o)
{
	return o->v[XR_CHAN_NET_BYTES] < o->v[XR_CHAN_PEER_BYTES] ? o->v[XR_CHAN_NET_BYTES] : o->v[XR_CHAN_PEER_BYTES];
}

static void make_row(struct xr_stat_row *r, const struct xr_stat_options *opt, const struct xr_channels *c,
		     const struct xr_channels_one *o)
{
	uint64_t all = o->v[XR_CHAN_PEER_MSGS], used = o->v[XR_CHAN_UNACKED_MSGS];
	char buf[32];

	xr_stat_cell(r, 0, "%s", xr_channels_state(o));
	xr_stat_cell(r, 1, "%" PRIu64, o->v[XR_CHAN_UNREAD_MSGS]);
	xr_stat_cell(r, 2, "%" PRIu64, o->v[XR_CHAN_UNACKED_BYTES]);
	xr_stat_cell(r, 3, "%s", *o->id.name ? o->id.name : "-");
	xr_stat_cell(r, 4, "%s", o->id.device);
	xr_stat_cell(r, 5, "%u", o->qpn);
	xr_stat_cell(r, 6, "%s", xr_stat_human(window(o), buf, sizeof(buf)));
	xr_stat_cell(r, 7, "%" PRIu64 "/%" PRIu64, used < all ? all - used : 0, all);
	if (o->v[XR_CHAN_RTT_NS])
		xr_stat_cell(r, 8, "%.1fus", (double)o->v[XR_CHAN_RTT_NS] / 1000);
	else
		xr_stat_cell(r, 8, "-");
	if (opt->process)
		xr_stat_cell(r, 9, "%s[%d]%s", c->program, (int)c->pid, c->life == XR_SEGMENT_DEAD ? " (dead)" : "");
	if (opt->info)
		r->info = info_line(o);
}

void xr_stat_print_channels(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set)
{
	static const char *const titles[XR_STAT_COLUMNS] = {"State", "Unread", "Unacked", "Channel", "Device",
							    "QP", "Win", "Credits", "RTT", "Process"};
	static const bool right[XR_STAT_COLUMNS] = {[1] = true, [2] = true, [5] = true, [6] = true, [7] = true,
						    [8] = true};
	struct xr_stat_row *rows;
	size_t n = 0, room = 0;

	for (size_t i = 0; i < set->n_api; i++)
		room += set->api[i].n;
	if (!room || (opt->listeners && !opt->all))
		return;
	rows = calloc(room, sizeof(*rows));
	if (!rows)
		return;
	for (size_t i = 0; i < set->n_api; i++)
		for (uint32_t k = 0; k < set->api[i].n; k++)
			make_row(&rows[n++], opt, &set->api[i], &set->api[i].chan[k]);
	putc('\n', out);
	xr_stat_print_rows(out, titles, right, rows, n, opt->process ? XR_STAT_COLUMNS : XR_STAT_COLUMNS - 1);
	free(rows);
}

void xr_stat_print_channel_totals(FILE *out, const struct xr_stat_set *set)
{
	for (size_t i = 0; i < set->n_api; i++) {
		const struct xr_channels *c = &set->api[i];

		fprintf(out, "%s%s[%d]  uid %u  xrdma %s  channels%s\n", i || set->n ? "\n" : "", c->program,
			(int)c->pid, (unsigned int)c->uid, c->version, c->life == XR_SEGMENT_DEAD ? "  dead" : "");
		for (int k = 0; k < XR_CHANPROC_COUNT; k++)
			if (c->proc[k])
				fprintf(out, "  %-24s %" PRIu64 "\n", xr_channels_proc_fields[k].name, c->proc[k]);
		/* sums of these say nothing */
		for (int k = 0; k < XR_CHAN_COUNT; k++)
			if (c->total[k] && !xr_channels_fields[k].gauge)
				fprintf(out, "  %-24s %" PRIu64 "\n", xr_channels_fields[k].name, c->total[k]);
	}
}

static void print_family(FILE *out, const struct xr_stat_set *set, const struct xr_channels_field *f, bool process,
			 int k)
{
	const char *prefix = process ? "api" : "channels", *total = f->gauge ? "" : "_total";

	fprintf(out, "# HELP xrdma_%s_%s%s %c%s.\n# TYPE xrdma_%s_%s%s %s\n", prefix, f->name, total,
		toupper((unsigned char)f->text[0]), f->text + 1, prefix, f->name, total,
		f->gauge ? "gauge" : "counter");
	for (size_t i = 0; i < set->n_api; i++) {
		fprintf(out, "xrdma_%s_%s%s", prefix, f->name, total);
		xr_stat_labels(out, (int)set->api[i].pid, set->api[i].program);
		fprintf(out, "} %" PRIu64 "\n", process ? set->api[i].proc[k] : set->api[i].total[k]);
	}
}

/* Nothing at all, not even the explanations, on a host without such programs. */
void xr_stat_print_channel_prometheus(FILE *out, const struct xr_stat_set *set)
{
	if (!set->n_api)
		return;
	for (int k = 0; k < XR_CHANPROC_COUNT; k++)
		print_family(out, set, &xr_channels_proc_fields[k], true, k);
	for (int k = 0; k < XR_CHAN_COUNT; k++)
		if (k != XR_CHAN_RTT_NS)
			print_family(out, set, &xr_channels_fields[k], false, k);
}
