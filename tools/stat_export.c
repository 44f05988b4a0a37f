/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-stat's output for programs: JSON and the Prometheus text format. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "core/reason.h"
#include "stat.h"

static json_t *addr(const struct xr_stats_addr *a)
{
	char text[80], buf[80], *colon;

	if (a->family != AF_INET && a->family != AF_INET6)
		return json_null();
	snprintf(buf, sizeof(buf), "%s", xr_stat_addr(a, true, false, text, sizeof(text)));
	colon = strrchr(buf, ':');
	if (colon)
		*colon = '\0';
	if (buf[0] == '[') { /* brackets belong to the text form only */
		buf[strlen(buf) - 1] = '\0';
		return json_pack("{s:s, s:i}", "address", buf + 1, "port", (int)a->port);
	}
	return json_pack("{s:s, s:i}", "address", buf, "port", (int)a->port);
}

#define DIRECTION(d)                                                                               \
	json_pack("{s:{s:I, s:I, s:I}, s:I, s:I, s:I, s:I, s:I, s:I}", "bytes", "tcp",             \
		  (json_int_t)(d).bytes[XR_CARRIER_TCP], "shm",                                    \
		  (json_int_t)(d).bytes[XR_CARRIER_SHM], "rdma",                                   \
		  (json_int_t)(d).bytes[XR_CARRIER_RDMA], "messages", (json_int_t)(d).msgs,        \
		  "queue", (json_int_t)(d).queue, "window", (json_int_t)(d).window, "slots",       \
		  (json_int_t)(d).slots, "credits", (json_int_t)(d).credits, "rnr",                \
		  (json_int_t)(d).rnr)

static json_t *flow(const struct xr_segment_flow *f)
{
	static const char *const carriers[] = {"tcp", "shm", "rdma", "unknown"};
	static const char *const roles[] = {"unknown", "client", "server"};
	unsigned int tx = f->id.carrier_tx, rx = f->id.carrier_rx;
	json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:o, s:o, s:s, s:s, s:s}", "state",
			      xr_segment_state(f), "carrier", xr_segment_carrier(f), "carrier_tx",
			      carriers[tx < 3 ? tx : 3], "carrier_rx", carriers[rx < 3 ? rx : 3], "fd",
			      (int)f->id.fd, "inode", (json_int_t)f->id.inode, "local",
			      addr(&f->id.local), "peer", addr(&f->id.peer), "role",
			      roles[f->id.role < 3 ? f->id.role : 0], "reason",
			      xr_reason_name(f->id.reason), "last_reason",
			      xr_reason_name(f->id.last_reason));

	if (!o)
		return NULL;
	json_object_set_new(o, "peer_pid", json_integer(f->id.peer_pid));
	json_object_set_new(o, "opened_ns", json_integer((json_int_t)f->id.opened_ns));
	json_object_set_new(o, "upgraded_ns", json_integer((json_int_t)f->id.upgraded_ns));
	json_object_set_new(o, "turns", json_integer((json_int_t)f->turns));
	json_object_set_new(o, "upgrade_attempts", json_integer((json_int_t)f->attempts));
	json_object_set_new(o, "upgrades", json_integer((json_int_t)f->upgrades));
	json_object_set_new(o, "retreats", json_integer((json_int_t)f->retreats));
	json_object_set_new(o, "tx", DIRECTION(f->tx));
	json_object_set_new(o, "rx", DIRECTION(f->rx));
	return o;
}

static json_t *process(const struct xr_segment *seg)
{
	static const char *const life[] = {"live", "dead", "foreign"};
	json_t *counters = json_object(), *reasons = json_object(), *flows = json_array();

	for (int i = 0; i < XR_STAT_COUNT; i++)
		json_object_set_new(counters, xr_segment_counter_names[i],
				    json_integer((json_int_t)seg->counter[i]));
	for (unsigned int i = 1; i < XR_REASON_COUNT; i++)
		if (seg->reason[i])
			json_object_set_new(reasons, xr_reason_name(i),
					    json_integer((json_int_t)seg->reason[i]));
	for (uint32_t i = 0; i < seg->n_flows; i++)
		json_array_append_new(flows, flow(&seg->flow[i]));
	return json_pack("{s:i, s:s, s:I, s:s, s:s, s:b, s:I, s:o, s:o, s:o}", "pid", (int)seg->pid,
			 "program", seg->program, "uid", (json_int_t)seg->uid, "life",
			 life[seg->life], "xrdma_version", seg->version, "helper_thread",
			 (int)seg->helper_thread, "opened_ns", (json_int_t)seg->opened_ns, "counters",
			 counters, "reasons", reasons, "flows", flows);
}

int xr_stat_print_json(FILE *out, const struct xr_stat_set *set)
{
	json_t *root = json_object(), *list = json_array();
	int err;

	json_object_set_new(root, "format", json_integer(1));
	json_object_set(root, "processes", list);
	for (size_t i = 0; i < set->n; i++)
		json_array_append_new(list, process(&set->seg[i]));
	json_decref(list);
	err = json_dumpf(root, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER) ? -ENOMEM : 0;
	json_decref(root);
	putc('\n', out);
	return err;
}

/* Program names are printable ASCII already. */
static void labels(FILE *out, const struct xr_segment *seg)
{
	fprintf(out, "{pid=\"%d\",program=\"", (int)seg->pid);
	for (const char *p = seg->program; *p; p++)
		fprintf(out, "%s%c", *p == '"' || *p == '\\' ? "\\" : "", *p);
	putc('"', out);
}

static void print_flows(FILE *out, const struct xr_stat_set *set)
{
	static const char *const carriers[] = {"tcp", "shm", "rdma"};

	fputs("# HELP xrdma_flows Connections by the carrier of what they send.\n"
	      "# TYPE xrdma_flows gauge\n",
	      out);
	for (size_t s = 0; s < set->n; s++) {
		unsigned int n[XR_CARRIER_COUNT] = {0};

		for (uint32_t i = 0; i < set->seg[s].n_flows; i++)
			if (set->seg[s].flow[i].id.state != XR_STATE_LISTEN &&
			    set->seg[s].flow[i].id.carrier_tx < XR_CARRIER_COUNT)
				n[set->seg[s].flow[i].id.carrier_tx]++;
		for (int c = 0; c < XR_CARRIER_COUNT; c++) {
			fputs("xrdma_flows", out);
			labels(out, &set->seg[s]);
			fprintf(out, ",carrier=\"%s\"} %u\n", carriers[c], n[c]);
		}
	}
}

void xr_stat_print_prometheus(FILE *out, const struct xr_stat_set *set)
{
	static const char *const help[XR_STAT_COUNT] = {
#define HELP(sym, name, text) [XR_STAT_##sym] = text,
		XR_STATS_TABLE(HELP)
#undef HELP
	};

	print_flows(out, set);
	for (int i = 0; i < XR_STAT_COUNT; i++) {
		const char *name = xr_segment_counter_names[i];
		bool gauge = xr_segment_is_gauge((enum xr_stat)i);
		const char *total = gauge ? "" : "_total";

		fprintf(out, "# HELP xrdma_%s%s %s.\n# TYPE xrdma_%s%s %s\n", name, total, help[i],
			name, total, gauge ? "gauge" : "counter");
		for (size_t s = 0; s < set->n; s++) {
			fprintf(out, "xrdma_%s%s", name, total);
			labels(out, &set->seg[s]);
			fprintf(out, "} %" PRIu64 "\n", set->seg[s].counter[i]);
		}
	}
	fputs("# HELP xrdma_reason_total Times a connection was given this reason for being on TCP.\n"
	      "# TYPE xrdma_reason_total counter\n",
	      out);
	for (size_t s = 0; s < set->n; s++) {
		for (unsigned int i = 1; i < XR_REASON_COUNT; i++) {
			if (!set->seg[s].reason[i])
				continue;
			fputs("xrdma_reason_total", out);
			labels(out, &set->seg[s]);
			fprintf(out, ",reason=\"%s\"} %" PRIu64 "\n", xr_reason_name(i),
				set->seg[s].reason[i]);
		}
	}
}
