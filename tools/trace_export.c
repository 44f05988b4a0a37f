/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-trace's output for programs: JSON of its own, and the spans of OpenTelemetry. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "trace.h"

static int dump(json_t *o, FILE *out)
{
	int err = o && !json_dumpf(o, out, JSON_INDENT(1)) ? 0 : -EIO;

	fputc('\n', out);
	json_decref(o);
	return err;
}

static json_t *addr(const struct xr_stats_addr *a)
{
	char text[80];

	xr_trace_addr_text(a, text, sizeof(text));
	return a->family ? json_string(text) : json_null();
}

/* ---- our own ---- */

static json_t *end(const struct xr_trace_end *e)
{
	if (!e->file)
		return json_null();
	return json_pack("{s:i, s:s, s:s, s:I, s:i, s:I, s:o, s:o}", "pid", (int)e->file->pid, "program",
			 e->file->program, "kind", e->file->channels ? "channel" : "connection", "flow",
			 (json_int_t)e->rec->flow, "fd", (int)e->rec->fd, "tid", (json_int_t)e->rec->tid,
			 "local", addr(&e->rec->local), "peer", addr(&e->rec->peer));
}

static json_t *message(const struct xr_trace_msg *m)
{
	static const char *const carriers[] = {"tcp", "shm", "rdma"};
	json_t *o, *stages = json_object(), *parts = json_object();
	const struct xr_trace_data *d = m->sender.rec ? m->sender.rec : m->receiver.rec;
	char id[33], span[17];
	uint64_t ns;

	for (int i = 0; i < XR_TRACE_STAGES; i++)
		if (m->have & 1u << i)
			json_object_set_new(stages, xr_trace_stage_name[i], json_integer((json_int_t)m->at[i]));
	for (unsigned int i = 0; i < XR_TRACE_PARTS; i++)
		if (xr_trace_took(m, i, &ns))
			json_object_set_new(parts, xr_trace_part[i].name, json_integer((json_int_t)ns));
	xr_trace_id_text(m->id, id);
	xr_trace_span_text(m->span, span);
	o = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o, s:o}", "trace_id", id, "span_id", span, "bytes",
		      (json_int_t)m->len, "carrier", carriers[d->carrier], "sender", end(&m->sender), "receiver",
		      end(&m->receiver), "stages", stages, "parts", parts);
	if (o && m->offset_known) {
		json_object_set_new(o, "offset_ns", json_integer((json_int_t)m->offset_ns));
		json_object_set_new(o, "offset_error_ns", json_integer((json_int_t)m->error_ns));
	}
	return o;
}

static json_t *process(const struct xr_trace_file *f)
{
	static const char *const lives[] = {"live", "dead", "foreign"};

	return json_pack("{s:i, s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I}", "pid", (int)f->pid, "program", f->program,
			 "uid", (json_int_t)f->uid, "life", lives[f->life], "kind",
			 f->channels ? "channels" : "connections", "xrdma_version", f->version, "records",
			 (json_int_t)f->written, "lost", (json_int_t)f->lost, "skipped", (json_int_t)f->skipped);
}

static json_t *part(const struct xr_trace_sum *s)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "messages", (json_int_t)s->n, "p50", (json_int_t)s->p50, "p90",
			 (json_int_t)s->p90, "p99", (json_int_t)s->p99, "max", (json_int_t)s->max);
}

int xr_trace_json(FILE *out, const struct xr_trace_set *set, const struct xr_trace_msgs *msgs)
{
	json_t *processes = json_array(), *messages = json_array(), *parts = json_object();

	for (size_t i = 0; i < set->n; i++)
		json_array_append_new(processes, process(&set->file[i]));
	for (size_t i = 0; i < msgs->n; i++)
		json_array_append_new(messages, message(&msgs->msg[i]));
	for (unsigned int i = 0; i < XR_TRACE_PARTS; i++) {
		struct xr_trace_sum s;

		if (!xr_trace_summarise(msgs, i, NULL, NULL, &s))
			json_object_set_new(parts, xr_trace_part[i].name, part(&s));
	}
	return dump(json_pack("{s:i, s:o, s:o, s:o}", "format", 1, "processes", processes, "parts", parts, "messages",
			      messages), out);
}

/* ---- OpenTelemetry ---- */

enum { SPAN_INTERNAL = 1, SPAN_PRODUCER = 4, SPAN_CONSUMER = 5 };

static json_t *text_attr(const char *key, json_t *text)
{
	return json_pack("{s:s, s:{s:o}}", "key", key, "value", "stringValue", text);
}

/* 64-bit numbers are strings in the JSON mapping of protocol buffers. */
static json_t *number(uint64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	return json_string(text);
}

static json_t *int_attr(const char *key, uint64_t v)
{
	return json_pack("{s:s, s:{s:o}}", "key", key, "value", "intValue", number(v));
}

static uint64_t derived(uint64_t span, unsigned int n)
{
	/* odd multiplier: another one for each n, never 0 for a sum that is not */
	uint64_t v = (span + n) * 0x9e3779b97f4a7c15;

	return v + !v;
}

static json_t *otlp_span(const struct xr_trace_msg *m, uint64_t span, uint64_t parent, const char *name, int kind,
			 uint64_t from, uint64_t to)
{
	char id[33], own[17], up[17] = "";

	xr_trace_id_text(m->id, id);
	xr_trace_span_text(span, own);
	if (parent)
		xr_trace_span_text(parent, up);
	return json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:o}", "traceId", id, "spanId", own, "parentSpanId", up,
			 "name", name, "kind", kind, "startTimeUnixNano", number(from), "endTimeUnixNano",
			 number(to > from ? to : from));
}

static bool stage(const struct xr_trace_msg *m, enum xr_trace_stage s)
{
	return m->have & 1u << s;
}

/* A part as a span below that of its end. */
static void add_part(json_t *spans, const struct xr_trace_msg *m, unsigned int p, uint64_t parent)
{
	const struct xr_trace_part *part = &xr_trace_part[p];
	uint64_t ns;

	if (xr_trace_took(m, p, &ns))
		json_array_append_new(spans, otlp_span(m, derived(m->span, p + 1), parent, part->name, SPAN_INTERNAL,
						       m->at[part->from], m->at[part->to]));
}

static void attributes(json_t *span, const struct xr_trace_msg *m, const struct xr_trace_end *e)
{
	json_t *a = json_array();

	json_array_append_new(a, int_attr("messaging.message.body.size", m->len));
	if (e->rec->local.family) {
		json_array_append_new(a, text_attr("network.local.address", addr(&e->rec->local)));
		json_array_append_new(a, text_attr("network.peer.address", addr(&e->rec->peer)));
	}
	json_array_append_new(a, int_attr("thread.id", e->rec->tid));
	json_array_append_new(a, int_attr("xrdma.flow", e->rec->flow));
	json_object_set_new(span, "attributes", a);
}

/* The spans of one process's end of a message. */
static void add_message(json_t *spans, const struct xr_trace_msg *m, const struct xr_trace_file *f)
{
	json_t *s;

	if (m->sender.file == f && stage(m, XR_TRACE_QUEUED)) {
		enum xr_trace_stage last = stage(m, XR_TRACE_ACKED) ? XR_TRACE_ACKED :
					   stage(m, XR_TRACE_SENT) ? XR_TRACE_SENT :
					   stage(m, XR_TRACE_POSTED) ? XR_TRACE_POSTED : XR_TRACE_QUEUED;

		s = otlp_span(m, m->span, 0, "send", SPAN_PRODUCER, m->at[XR_TRACE_QUEUED], m->at[last]);
		attributes(s, m, &m->sender);
		json_array_append_new(spans, s);
		add_part(spans, m, 0, m->span);
		add_part(spans, m, 1, m->span);
	}
	if (m->receiver.file == f && stage(m, XR_TRACE_RECEIVED)) {
		enum xr_trace_stage last = stage(m, XR_TRACE_DELIVERED) ? XR_TRACE_DELIVERED : XR_TRACE_RECEIVED;
		enum xr_trace_stage first = stage(m, XR_TRACE_POSTED) ? XR_TRACE_POSTED : XR_TRACE_RECEIVED;
		uint64_t own = derived(m->span, 0);

		s = otlp_span(m, own, m->sender.file ? m->span : 0, "receive", SPAN_CONSUMER, m->at[first],
			      m->at[last]);
		attributes(s, m, &m->receiver);
		json_array_append_new(spans, s);
		add_part(spans, m, 2, own);
		add_part(spans, m, 3, own);
	}
}

int xr_trace_otlp(FILE *out, const struct xr_trace_set *set, const struct xr_trace_msgs *msgs)
{
	json_t *resources = json_array();

	for (size_t i = 0; i < set->n; i++) {
		const struct xr_trace_file *f = &set->file[i];
		json_t *spans = json_array();

		for (size_t j = 0; j < msgs->n; j++)
			add_message(spans, &msgs->msg[j], f);
		if (!json_array_size(spans)) {
			json_decref(spans);
			continue;
		}
		json_array_append_new(resources, json_pack(
			"{s:{s:[o, o]}, s:[{s:{s:s, s:s}, s:o}]}", "resource", "attributes",
			text_attr("service.name", json_string(f->program)), int_attr("process.pid", (uint64_t)f->pid),
			"scopeSpans", "scope", "name", "xrdma", "version", f->version, "spans", spans));
	}
	return dump(json_pack("{s:o}", "resourceSpans", resources), out);
}
