/* SPDX-License-Identifier: BSD-2-Clause */
/* The tables of xr-stat, in the manner of ss(8). */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/reason.h"
#include "stat.h"

#define COLUMNS XR_STAT_COLUMNS
#define CELL	320

/* Numeric columns are aligned to the right, addresses at their colon as ss has it. */
static const char *const titles[COLUMNS] = {"State", "Recv-Q", "Send-Q", "Local:Port", "Peer:Port",
					    "Carrier", "Reason", "Win", "Slots", "Process"};
static const bool right[COLUMNS] = {[1] = true, [2] = true, [7] = true, [8] = true};

static void fill_sockaddr(const struct xr_stats_addr *a, struct sockaddr_storage *ss, socklen_t *len)
{
	struct sockaddr_in *in = (struct sockaddr_in *)ss;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ss;

	memset(ss, 0, sizeof(*ss));
	if (a->family == AF_INET) {
		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->addr, 4);
		*len = sizeof(*in);
	} else {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(a->port);
		memcpy(&in6->sin6_addr, a->addr, 16);
		*len = sizeof(*in6);
	}
}

const char *xr_stat_addr(const struct xr_stats_addr *a, bool numeric, bool resolve, char *buf,
			 size_t size)
{
	struct sockaddr_storage ss;
	char host[NI_MAXHOST], port[NI_MAXSERV] = "*";
	socklen_t len;
	bool v6;

	if (a->family != AF_INET && a->family != AF_INET6)
		return "*:*";
	fill_sockaddr(a, &ss, &len);
	if (getnameinfo((struct sockaddr *)&ss, len, host, sizeof(host), port, sizeof(port),
			(resolve ? 0 : NI_NUMERICHOST) | (numeric || !a->port ? NI_NUMERICSERV : 0)))
		return "?:?";
	v6 = strchr(host, ':');
	snprintf(buf, size, "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", a->port ? port : "*");
	return buf;
}

void xr_stat_cell(struct xr_stat_row *r, int column, const char *fmt, ...)
{
	va_list ap;
	char text[CELL];

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	r->cell[column] = strdup(text);
}

const char *xr_stat_human(uint64_t v, char *buf, size_t size)
{
	static const char units[] = "\0KMGT";
	int i = 0;

	for (; v && v % 1024 == 0 && i < 4; i++)
		v /= 1024;
	snprintf(buf, size, "%" PRIu64 "%.1s", v, &units[i]);
	return buf;
}

double xr_stat_age(uint64_t ns)
{
	struct timespec ts;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	return now > ns ? (double)(now - ns) / 1e9 : 0;
}

static char *info_line(const struct xr_segment_flow *f)
{
	static const char *const roles[] = {"", " role:client", " role:server"};
	char *text = NULL;
	double again;
	size_t size;
	FILE *m = open_memstream(&text, &size);

	if (!m)
		return NULL;
	fprintf(m, "\t ino:%" PRIu64 "%s", f->id.inode, f->id.role < 3 ? roles[f->id.role] : "");
	if (f->id.peer_pid)
		fprintf(m, " peer_pid:%u", f->id.peer_pid);
	fprintf(m, " age:%.1fs", xr_stat_age(f->id.opened_ns));
	if (f->id.upgraded_ns)
		fprintf(m, " upgraded:%.1fs", xr_stat_age(f->id.upgraded_ns));
	fprintf(m, " turns:%" PRIu64 " attempts:%" PRIu64 " upgrades:%" PRIu64 " retreats:%" PRIu64,
		f->turns, f->attempts, f->upgrades, f->retreats);
	if (f->id.last_reason)
		fprintf(m, " last_reason:%s", xr_reason_name(f->id.last_reason));
	if (xr_segment_again(f, &again))
		fprintf(m, " again:%.1fs", again);
	fprintf(m,
		" bytes_tcp:%" PRIu64 "/%" PRIu64 " bytes_shm:%" PRIu64 "/%" PRIu64
		" bytes_rdma:%" PRIu64 "/%" PRIu64 " msgs:%" PRIu64 "/%" PRIu64,
		f->tx.bytes[0], f->rx.bytes[0], f->tx.bytes[1], f->rx.bytes[1], f->tx.bytes[2],
		f->rx.bytes[2], f->tx.msgs, f->rx.msgs);
	fprintf(m,
		" window:%" PRIu64 "/%" PRIu64 " slots:%u/%u credits:%u/%u rnr:%" PRIu64 "/%" PRIu64,
		f->tx.window, f->rx.window, f->tx.slots, f->rx.slots, f->tx.credits, f->rx.credits,
		f->tx.rnr, f->rx.rnr);
	fprintf(m, " rendezvous:%" PRIu64 " coalesced:%" PRIu64 " probes:%" PRIu64, f->tx.rendezvous, f->tx.coalesced,
		f->rx.probes);
	if (f->rdma.qpn) {
		char gid[INET6_ADDRSTRLEN];

		fprintf(m, " qpn:%u/%u gid:%s device:%s", f->rdma.qpn, f->rdma.peer_qpn,
			xr_segment_gid(f, gid, sizeof(gid)), f->device);
	}
	if (fclose(m)) {
		free(text);
		return NULL;
	}
	return text;
}

static void make_row(struct xr_stat_row *r, const struct xr_stat_options *opt, const struct xr_segment *seg,
		     const struct xr_segment_flow *f)
{
	bool fabric = xr_segment_on_fabric(f);
	char buf[CELL];
	double again;

	xr_stat_cell(r, 0, "%s", xr_segment_state(f));
	xr_stat_cell(r, 1, "%" PRIu64, f->rx.queue);
	xr_stat_cell(r, 2, "%" PRIu64, f->tx.queue);
	xr_stat_cell(r, 3, "%s", xr_stat_addr(&f->id.local, opt->numeric, opt->resolve, buf, sizeof(buf)));
	xr_stat_cell(r, 4, "%s", xr_stat_addr(&f->id.peer, opt->numeric, opt->resolve, buf, sizeof(buf)));
	xr_stat_cell(r, 5, "%s", xr_segment_carrier(f));
	if (xr_segment_again(f, &again) && again > 0)
		xr_stat_cell(r, 6, "%s (again in %.1fs)", xr_reason_name(f->id.reason), again);
	else
		xr_stat_cell(r, 6, "%s%s", f->id.reason ? xr_reason_name(f->id.reason) : "-",
		    xr_segment_again(f, &again) ? " (until used)" : "");
	if (fabric) {
		xr_stat_cell(r, 7, "%s", xr_stat_human(f->tx.window, buf, sizeof(buf)));
		xr_stat_cell(r, 8, "%u/%u", f->tx.credits, f->tx.slots);
	} else {
		xr_stat_cell(r, 7, "-");
		xr_stat_cell(r, 8, "-");
	}
	if (opt->process)
		xr_stat_cell(r, 9, "%s[%d] fd=%d%s%s", seg->program, (int)seg->pid, f->id.fd,
		    f->held ? " (held)" : "", seg->life == XR_SEGMENT_DEAD ? " (dead)" : "");
	if (opt->info)
		r->info = info_line(f);
}

/* Words do not end at the edge of a terminal; a file gets one line. */
static void print_info(FILE *out, const char *text, int columns)
{
	int at = 0;

	for (const char *word = text + strspn(text, "\t "); *word; word += strspn(word, " ")) {
		int len = (int)strcspn(word, " ");

		if (!at || (columns && at + 1 + len > columns)) {
			fputs(at ? "\n\t" : "\t", out);
			at = 8;
		}
		fprintf(out, " %.*s", len, word);
		at += 1 + len;
		word += len;
	}
	putc('\n', out);
}

static int terminal_columns(void)
{
	struct winsize ws;

	return isatty(STDOUT_FILENO) ? !ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) && ws.ws_col ? ws.ws_col : 80 : 0;
}

void xr_stat_print_rows(FILE *out, const char *const *titles, const bool *right, struct xr_stat_row *rows, size_t n,
			int columns)
{
	int edge = terminal_columns();
	size_t width[COLUMNS];

	for (int c = 0; c < columns; c++) {
		width[c] = strlen(titles[c]);
		for (size_t i = 0; i < n; i++)
			if (rows[i].cell[c] && strlen(rows[i].cell[c]) > width[c])
				width[c] = strlen(rows[i].cell[c]);
	}
	for (size_t i = 0; i <= n; i++) {
		for (int c = 0; c < columns; c++) {
			const char *text = i ? rows[i - 1].cell[c] : titles[c];
			int w = c + 1 == columns && !right[c] ? 0 : (int)width[c];

			fprintf(out, "%s%*s", c ? "  " : "", right[c] ? w : -w, text ? text : "");
		}
		putc('\n', out);
		if (i && rows[i - 1].info)
			print_info(out, rows[i - 1].info, edge);
	}
	for (size_t i = 0; i < n; i++) {
		for (int c = 0; c < columns; c++)
			free(rows[i].cell[c]);
		free(rows[i].info);
	}
}

/* "disabled 3, limit-flows 2" behind a colon; zeros are left out. */
static void print_reasons(FILE *out, const uint64_t *n, const char *none)
{
	const char *sep = ": ";

	for (unsigned int i = 0; i <= XR_REASON_COUNT; i++) {
		if (!n[i])
			continue;
		fprintf(out, "%s%s %" PRIu64, sep, i ? xr_reason_name(i) : none, n[i]);
		sep = ", ";
	}
}

/* "6 more on TCP: peer-not-xrdma 4, young 2"; how many there are. */
static unsigned int print_summary(FILE *out, const struct xr_stat_set *set)
{
	uint64_t by_reason[XR_REASON_COUNT + 1] = {0};
	unsigned int on_tcp = 0;

	for (size_t s = 0; s < set->n; s++) {
		for (uint32_t i = 0; i < set->seg[s].n_flows; i++) {
			const struct xr_segment_flow *f = &set->seg[s].flow[i];
			unsigned int reason = f->id.reason;

			if (f->id.state == XR_STATE_LISTEN || xr_segment_on_fabric(f) ||
			    f->id.state == XR_STATE_RETREATING)
				continue;
			by_reason[reason < XR_REASON_COUNT ? reason : XR_REASON_COUNT]++;
			on_tcp++;
		}
	}
	if (!on_tcp)
		return 0;
	fprintf(out, "%u more on TCP", on_tcp);
	print_reasons(out, by_reason, "upgrading");
	fputs("; -a lists them\n", out);
	return on_tcp;
}

/* What no list can show: connections without a slot, and processes that keep all on TCP; how many there are. */
static uint64_t print_unlisted(FILE *out, const struct xr_stat_set *set)
{
	uint64_t unlisted[XR_REASON_COUNT + 1] = {0}, off[XR_REASON_COUNT + 1] = {0};
	uint64_t n = 0, kept = 0;

	for (size_t s = 0; s < set->n; s++) {
		unsigned int why = xr_segment_off(&set->seg[s]);

		for (int i = 0; i < XR_REASON_COUNT; i++) {
			unlisted[i] += set->seg[s].unlisted[i];
			n += set->seg[s].unlisted[i];
		}
		if (why)
			off[why < XR_REASON_COUNT ? why : XR_REASON_COUNT]++;
		kept += why != 0;
	}
	if (kept) {
		fprintf(out, "%" PRIu64 " program%s to TCP", kept, kept == 1 ? " keeps" : "s keep");
		print_reasons(out, off, "");
		fputs("; -t says which\n", out);
	}
	if (n) {
		fprintf(out, "%" PRIu64 " more%s had no place in the list since the programs began", n,
			n == 1 ? " connection" : " connections");
		print_reasons(out, unlisted, "no room");
		fputs("; -t says whose\n", out);
	}
	return n + kept;
}

/* An empty table could mean that one looked in the wrong place. */
static void print_nothing(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set)
{
	const char *whose = geteuid() ? " of yours" : "";
	const char *what = opt->listeners && !opt->all ? "listening socket" : "connection";
	size_t n = set->n ? set->n : xr_stat_programs(opt), api, channels = 0;

	/* channels are no part of a list of listening sockets */
	api = opt->listeners && !opt->all ? 0 : set->n_api;
	for (size_t i = 0; i < api; i++)
		channels += set->api[i].n;
	/* what is on channels follows; of a single process it is said on standard error */
	if (channels || (opt->pid && !set->n && !set->n_api))
		return;
	if (api && !set->n)
		fprintf(out, "%zu program%s on the public interface, no channels; looked in %s\n", api,
			api == 1 ? "" : "s", opt->base);
	else if (!n && opt->program)
		fprintf(out, "no program%s under xrdma is called %s; looked in %s\n", whose, opt->program,
			opt->base);
	else if (!n)
		fprintf(out, "no programs%s under xrdma; looked in %s\n", whose, opt->base);
	else if (set->n)
		fprintf(out, "%zu program%s under xrdma, no %ss; looked in %s\n", n, n == 1 ? "" : "s", what,
			opt->base);
	else
		fprintf(out, "%zu program%s under xrdma, without statistics in %s: no TCP so far, stats = no, or "
			"another stats_dir\n", n, n == 1 ? "" : "s", opt->base);
}

void xr_stat_print_table(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set)
{
	uint64_t others = 0;
	size_t n = 0, room = 0;
	struct xr_stat_row *rows;

	for (size_t s = 0; s < set->n; s++)
		room += set->seg[s].n_flows;
	rows = calloc(room ? room : 1, sizeof(*rows));
	if (!rows)
		return;
	for (size_t s = 0; s < set->n; s++)
		for (uint32_t i = 0; i < set->seg[s].n_flows; i++)
			if (xr_stat_wanted(opt, &set->seg[s].flow[i]))
				make_row(&rows[n++], opt, &set->seg[s], &set->seg[s].flow[i]);
	xr_stat_print_rows(out, titles, right, rows, n, opt->process ? COLUMNS : COLUMNS - 1);
	if (!opt->all && !opt->listeners)
		others += print_summary(out, set);
	if (opt->all || !opt->listeners)
		others += print_unlisted(out, set);
	if (!n && !others)
		print_nothing(out, opt, set);
	free(rows);
	xr_stat_print_channels(out, opt, set);
}

/* The queues of a device have nothing to do with a program that uses shared memory only. */
static bool applies(const struct xr_segment *seg, int counter)
{
	return (counter != XR_STAT_QP_CACHE_HITS && counter != XR_STAT_QP_CACHE_MISSES) ||
	       seg->counter[XR_STAT_BYTES_TX_RDMA] || seg->counter[XR_STAT_BYTES_RX_RDMA];
}

void xr_stat_print_totals(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set)
{
	if (!set->n && !set->n_api)
		print_nothing(out, opt, set);
	for (size_t s = 0; s < set->n; s++) {
		const struct xr_segment *seg = &set->seg[s];

		unsigned int why = xr_segment_off(seg);

		fprintf(out, "%s%s[%d]  uid %u  xrdma %s%s%s%s%s\n", s ? "\n" : "", seg->program,
			(int)seg->pid, (unsigned int)seg->uid, seg->version,
			seg->helper_thread ? "  helper thread" : "",
			seg->life == XR_SEGMENT_DEAD ? "  dead" : "",
			why ? "  keeps to TCP: " : "", why ? xr_reason_name(why) : "");
		for (int i = 0; i < XR_STAT_COUNT; i++)
			if (seg->counter[i] && applies(seg, i))
				fprintf(out, "  %-24s %" PRIu64 "\n", xr_segment_counter_names[i],
					seg->counter[i]);
		for (unsigned int i = 0; i < XR_REASON_COUNT; i++)
			if (i && seg->reason[i])
				fprintf(out, "  reason %-17s %" PRIu64 "\n", xr_reason_name(i),
					seg->reason[i]);
		for (unsigned int i = 0; i < XR_REASON_COUNT; i++)
			if (seg->unlisted[i])
				fprintf(out, "  unlisted %-15s %" PRIu64 "\n",
					i ? xr_reason_name(i) : "no-room", seg->unlisted[i]);
	}
	xr_stat_print_channel_totals(out, set);
}
