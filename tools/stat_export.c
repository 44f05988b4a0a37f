/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-stat's output for programs: JSON and the Prometheus text format. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "core/reason.h"
#include "core/tune.h"
#include "stat.h"

static const char *const roles[] = {"unknown", "client", "server"};
static const char *const lives[] = {"live", "dead", "foreign"};

/* "local_address" and "local_port", or "peer_..."; null and 0 where there is none. */
static void set_addr(json_t *o, const char *end, const struct xr_stats_addr *a)
{
	char text[80], key[16], *p;

	snprintf(text, sizeof(text), "%s", "");
	if (a->family == AF_INET || a->family == AF_INET6) {
		char buf[80];

		/* brackets and port belong to the text form only */
		snprintf(text, sizeof(text), "%s", xr_stat_addr(a, true, false, buf, sizeof(buf)));
		p = strrchr(text, ':');
		if (p)
			*p = '\0';
	}
	p = text + (text[0] == '[');
	if (p > text)
		p[strlen(p) - 1] = '\0';
	snprintf(key, sizeof(key), "%s_address", end);
	json_object_set_new(o, key, *p ? json_string(p) : json_null());
	snprintf(key, sizeof(key), "%s_port", end);
	json_object_set_new(o, key, json_integer(a->port));
}

#define DIRECTION(d)                                                                               \
	json_pack("{s:{s:I, s:I, s:I}, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "bytes", "tcp", \
		  (json_int_t)(d).bytes[XR_CARRIER_TCP], "shm",                                    \
		  (json_int_t)(d).bytes[XR_CARRIER_SHM], "rdma",                                   \
		  (json_int_t)(d).bytes[XR_CARRIER_RDMA], "messages", (json_int_t)(d).msgs,        \
		  "queue", (json_int_t)(d).queue, "window", (json_int_t)(d).window, "slots",       \
		  (json_int_t)(d).slots, "credits", (json_int_t)(d).credits, "rnr",                \
		  (json_int_t)(d).rnr, "rendezvous", (json_int_t)(d).rendezvous, "coalesced",       \
		  (json_int_t)(d).coalesced, "probes", (json_int_t)(d).probes)

/* The queue pair that carries it, or did last; null if it never was on RDMA. */
static json_t *rdma(const struct xr_segment_flow *f)
{
	char gid[64];

	if (!f->rdma.qpn)
		return json_null();
	return json_pack("{s:s, s:s, s:I, s:I}", "device", f->device, "gid", xr_segment_gid(f, gid, sizeof(gid)),
			 "qpn", (json_int_t)f->rdma.qpn, "peer_qpn", (json_int_t)f->rdma.peer_qpn);
}

static json_t *flow(const struct xr_segment *seg, const struct xr_segment_flow *f)
{
	static const char *const carriers[] = {"tcp", "shm", "rdma", "unknown"};
	unsigned int tx = f->id.carrier_tx, rx = f->id.carrier_rx;
	json_t *o = json_pack("{s:i, s:s, s:i, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "pid",
			      (int)seg->pid, "program", seg->program, "fd", (int)f->id.fd, "inode",
			      (json_int_t)f->id.inode, "state", xr_segment_state(f), "role",
			      roles[f->id.role < 3 ? f->id.role : 0], "carrier",
			      xr_segment_carrier(f), "carrier_tx", carriers[tx < 3 ? tx : 3],
			      "carrier_rx", carriers[rx < 3 ? rx : 3], "reason",
			      xr_reason_name(f->id.reason), "last_reason",
			      xr_reason_name(f->id.last_reason));

	if (!o)
		return NULL;
	set_addr(o, "local", &f->id.local);
	set_addr(o, "peer", &f->id.peer);
	json_object_set_new(o, "held", json_boolean(f->held));
	json_object_set_new(o, "peer_pid", json_integer(f->id.peer_pid));
	json_object_set_new(o, "opened_ns", json_integer((json_int_t)f->id.opened_ns));
	json_object_set_new(o, "upgraded_ns", json_integer((json_int_t)f->id.upgraded_ns));
	json_object_set_new(o, "turns", json_integer((json_int_t)f->turns));
	json_object_set_new(o, "upgrade_attempts", json_integer((json_int_t)f->attempts));
	json_object_set_new(o, "upgrades", json_integer((json_int_t)f->upgrades));
	json_object_set_new(o, "retreats", json_integer((json_int_t)f->retreats));
	json_object_set_new(o, "rdma", rdma(f));
	json_object_set_new(o, "tx", DIRECTION(f->tx));
	json_object_set_new(o, "rx", DIRECTION(f->rx));
	return o;
}

static json_t *process(const struct xr_segment *seg)
{
	json_t *counters = json_object(), *reasons = json_object(), *unlisted = json_object(),
	       *set = json_object(), *devices = json_array();

	for (int i = 0; i < XR_STAT_COUNT; i++)
		json_object_set_new(counters, xr_segment_counter_names[i],
				    json_integer((json_int_t)seg->counter[i]));
	for (unsigned int i = 1; i < XR_REASON_COUNT; i++)
		if (seg->reason[i])
			json_object_set_new(reasons, xr_reason_name(i),
					    json_integer((json_int_t)seg->reason[i]));
	for (unsigned int i = 0; i < XR_REASON_COUNT; i++)
		if (seg->unlisted[i])
			json_object_set_new(unlisted, i ? xr_reason_name(i) : "no-room",
					    json_integer((json_int_t)seg->unlisted[i]));
	for (uint32_t i = 0; i < XR_STATS_TUNES; i++)
		if (seg->tune[i])
			json_object_set_new(set, xr_config_keys[xr_tune_key[i]].name,
					    json_integer((json_int_t)(seg->tune[i] - 1)));
	for (uint32_t i = 0; i < XR_STATS_HOLDS; i++)
		if (*seg->held_device[i])
			json_array_append_new(devices, json_string(seg->held_device[i]));
	return json_pack("{s:i, s:s, s:I, s:s, s:s, s:b, s:s, s:b, s:o, s:o, s:I, s:o, s:o, s:o}", "pid",
			 (int)seg->pid, "program", seg->program, "uid", (json_int_t)seg->uid, "life",
			 lives[seg->life], "xrdma_version", seg->version, "helper_thread",
			 (int)seg->helper_thread, "reason", xr_reason_name(xr_segment_off(seg)),
			 "held", (int)seg->held, "held_devices", devices, "set", set, "opened_ns",
			 (json_int_t)seg->opened_ns, "counters", counters, "reasons", reasons, "unlisted", unlisted);
}

static json_t *numbers(const struct xr_channels_field *field, const uint64_t *v, size_t n)
{
	json_t *o = json_object();

	for (size_t i = 0; i < n; i++)
		json_object_set_new(o, field[i].name, json_integer((json_int_t)v[i]));
	return o;
}

static json_t *channel_process(const struct xr_channels *c)
{
	json_t *o = json_pack("{s:i, s:s, s:I, s:s, s:s, s:I}", "pid", (int)c->pid, "program", c->program, "uid",
			      (json_int_t)c->uid, "life", lives[c->life], "xrdma_version", c->version,
			      "opened_ns", (json_int_t)c->opened_ns);

	json_object_set_new(o, "process", numbers(xr_channels_proc_fields, c->proc, XR_CHANPROC_COUNT));
	json_object_set_new(o, "counters", numbers(xr_channels_fields, c->total, XR_CHAN_COUNT));
	return o;
}

static json_t *channel(const struct xr_channels *c, const struct xr_channels_one *one)
{
	static const char *const carriers[] = {"tcp", "shm", "rdma", "unknown"};

	return json_pack("{s:i, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:o}", "pid", (int)c->pid,
			 "program", c->program, "channel", (json_int_t)one->id.no, "context",
			 (json_int_t)one->id.context, "state", xr_channels_state(one), "role",
			 roles[one->id.role < 3 ? one->id.role : 0], "name", one->id.name, "device", one->id.device,
			 "carrier", carriers[one->id.carrier < 3 ? one->id.carrier : 3], "qpn",
			 (json_int_t)one->qpn, "peer_qpn", (json_int_t)one->peer_qpn, "opened_ns",
			 (json_int_t)one->id.opened_ns, "counters", numbers(xr_channels_fields, one->v, XR_CHAN_COUNT));
}

int xr_stat_print_json(FILE *out, const struct xr_stat_set *set)
{
	json_t *processes = json_array(), *flows = json_array(), *apis = json_array(), *channels = json_array();
	json_t *root = json_pack("{s:i, s:o, s:o, s:o, s:o}", "format", 1, "processes", processes, "flows", flows,
				 "channel_processes", apis, "channels", channels);
	int err = 0;

	for (size_t i = 0; i < set->n; i++) {
		const struct xr_segment *seg = &set->seg[i];

		err |= json_array_append_new(processes, process(seg));
		for (uint32_t k = 0; k < seg->n_flows; k++)
			err |= json_array_append_new(flows, flow(seg, &seg->flow[k]));
	}
	for (size_t i = 0; i < set->n_api; i++) {
		err |= json_array_append_new(apis, channel_process(&set->api[i]));
		for (uint32_t k = 0; k < set->api[i].n; k++)
			err |= json_array_append_new(channels, channel(&set->api[i], &set->api[i].chan[k]));
	}
	if (!err)
		err = json_dumpf(root, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	json_decref(root);
	putc('\n', out);
	return err ? -ENOMEM : 0;
}

/* Program names are printable ASCII already. */
void xr_stat_labels(FILE *out, int pid, const char *program)
{
	fprintf(out, "{pid=\"%d\",program=\"", pid);
	for (const char *p = program; *p; p++)
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
			xr_stat_labels(out, (int)set->seg[s].pid, set->seg[s].program);
			fprintf(out, ",carrier=\"%s\"} %u\n", carriers[c], n[c]);
		}
	}
}

static void reason_line(FILE *out, const char *name, const struct xr_segment *seg,
			const char *reason, uint64_t n)
{
	if (!n)
		return;
	fputs(name, out);
	xr_stat_labels(out, (int)seg->pid, seg->program);
	fprintf(out, ",reason=\"%s\"} %" PRIu64 "\n", reason, n);
}

static void print_reasons(FILE *out, const struct xr_stat_set *set)
{
	fputs("# HELP xrdma_reason_total Times a connection was given this reason for being on TCP.\n"
	      "# TYPE xrdma_reason_total counter\n",
	      out);
	for (size_t s = 0; s < set->n; s++)
		for (unsigned int i = 1; i < XR_REASON_COUNT; i++)
			reason_line(out, "xrdma_reason_total", &set->seg[s], xr_reason_name(i),
				    set->seg[s].reason[i]);
	fputs("# HELP xrdma_unlisted_total Connections on TCP that have no place in the list of connections.\n"
	      "# TYPE xrdma_unlisted_total counter\n",
	      out);
	for (size_t s = 0; s < set->n; s++)
		for (unsigned int i = 0; i < XR_REASON_COUNT; i++)
			reason_line(out, "xrdma_unlisted_total", &set->seg[s],
				    i ? xr_reason_name(i) : "no-room", set->seg[s].unlisted[i]);
	fputs("# HELP xrdma_keeps_to_tcp Whether the process keeps all its connections on TCP, and why.\n"
	      "# TYPE xrdma_keeps_to_tcp gauge\n",
	      out);
	for (size_t s = 0; s < set->n; s++)
		reason_line(out, "xrdma_keeps_to_tcp", &set->seg[s],
			    xr_reason_name(xr_segment_off(&set->seg[s])), xr_segment_off(&set->seg[s]) != 0);
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

		/* the phrases of the table as sentences */
		fprintf(out, "# HELP xrdma_%s%s %c%s.\n# TYPE xrdma_%s%s %s\n", name, total,
			toupper((unsigned char)help[i][0]), help[i] + 1, name, total,
			gauge ? "gauge" : "counter");
		for (size_t s = 0; s < set->n; s++) {
			fprintf(out, "xrdma_%s%s", name, total);
			xr_stat_labels(out, (int)set->seg[s].pid, set->seg[s].program);
			fprintf(out, "} %" PRIu64 "\n", set->seg[s].counter[i]);
		}
	}
	print_reasons(out, set);
	xr_stat_print_channel_prometheus(out, set);
}
