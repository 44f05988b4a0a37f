/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-ping: what is printed. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ping.h"

static const char *fabric_name(const struct ping_path *p)
{
	return p->fabric == 's' ? "shm" : "rdma";
}

static const char *gid_text(const uint8_t gid[16], char *buf, socklen_t size)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (!memcmp(gid, mapped, 12))
		return inet_ntop(AF_INET, gid + 12, buf, size);
	return inet_ntop(AF_INET6, gid, buf, size);
}

/*
 * What decides, of all that was found out; NONE: it would be upgraded. A program goes by its settings before it tries
 * anything; which device there is it knows when it has tried.
 */
static enum xr_reason verdict(const struct ping_path *p)
{
	if (p->why != XR_REASON_NONE && (p->here == XR_REASON_NONE || p->here == XR_REASON_SOFTWARE_DEVICE))
		return p->why;
	return p->here != XR_REASON_NONE ? p->here : p->there;
}

static void show_verdict(const struct ping_path *p)
{
	enum xr_reason why = verdict(p);

	if (why == XR_REASON_NONE)
		printf("upgrade  yes, to %s\n", fabric_name(p));
	else if (why == p->why && why == XR_REASON_PEER_NOT_XRDMA)
		/* a program under xrdma, too, does not meet us: it has not used the connection */
		printf("upgrade  no: %s (tried). No xr-ping -l answers at port %s%s%s%s%s.\n", xr_reason_name(why),
		       p->opt->port, p->is_local ? "; of another program tells xrdma-run --check=" : "",
		       p->is_local ? p->opt->host : "", p->is_local ? ":" : "", p->is_local ? p->opt->port : "");
	else
		printf("upgrade  no: %s (%s). %s\n", xr_reason_name(why),
		       why == p->why ? "tried" : why == p->here ? "settings of this end" :
		       "settings of the other end", xr_reason_text(why));
	/* who mends the one only meets the other next */
	if (p->why != XR_REASON_NONE && p->why != why && p->why != XR_REASON_PEER_NOT_XRDMA)
		printf("         nor without that: %s (tried). %s\n", xr_reason_name(p->why), xr_reason_text(p->why));
}

void ping_show_path(const struct ping_path *p)
{
	char buf[64];

	if (p->opt->json)
		return;
	printf("tcp      %s -> %s, connected in %.3f ms\n", p->local, p->peer, (double)p->tcp_ns / 1e6);
	printf("fabric   %s: the peer is on %s host\n", fabric_name(p), p->is_local ? "this" : "another");
	if (p->fabric == 'r') {
		if (!p->opt->cfg.rdma || p->opt->cfg.fabric == XR_FABRIC_SHM)
			printf("settings do not allow RDMA: %s\n", !p->opt->cfg.rdma ? "rdma = no" : "fabric = shm");
		if (p->opt->cfg.rdma_trust == XR_TRUST_FABRIC)
			printf("trust    the network\n");
		else if (p->opt->key_error)
			printf("key      none: %s: %s\n", xr_key_path(&p->opt->cfg),
			       xr_key_error_text(p->opt->key_error));
		else
			printf("key      yes\n");
	}
	if (p->have_dev && p->fabric == 'r')
		printf("device   %s port %u, address %s, MTU %u%s%s\n", p->caps.device, p->caps.port,
		       gid_text(p->caps.gid, buf, sizeof(buf)), p->caps.mtu, p->caps.software ? ", software" : "",
		       p->caps.up ? "" : ", down");
	if (p->up && p->met.peer_qpn)
		printf("meeting  proved in %.3f ms; queue pairs %u and %u\n", (double)p->meet_ns / 1e6, p->met.qpn,
		       p->met.peer_qpn);
	else if (p->up)
		printf("meeting  proved in %.3f ms\n", (double)p->meet_ns / 1e6);
	show_verdict(p);
	fflush(stdout);
}

void ping_show_round(const struct ping_path *p, const struct ping_series *s, uint64_t seq, uint64_t ns)
{
	if (p->opt->json || !p->opt->verbose)
		return;
	printf("%s of %u bytes: seq=%" PRIu64 " time=%.3f us%s\n", ping_op_name[s->op], s->size, seq, (double)ns / 1e3,
	       p->good ? "" : " WRONG");
	fflush(stdout);
}

/* --- figures ------------------------------------------------------------------------------------------ */

struct figures {
	double min, avg, p50, p90, p99, max, mdev;	/* us */
};

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The value that so many percent do not exceed. */
static double percentile(const uint64_t *ns, size_t n, unsigned int percent)
{
	size_t rank = (n * percent + 99) / 100;

	return (double)ns[rank ? rank - 1 : 0] / 1e3;
}

static bool figures(struct ping_series *s, struct figures *f)
{
	size_t n = s->got < s->room ? (size_t)s->got : s->room, i;
	double sum = 0, sq = 0;

	if (!n)
		return false;
	qsort(s->ns, n, sizeof(*s->ns), by_value);
	for (i = 0; i < n; i++) {
		double us = (double)s->ns[i] / 1e3;

		sum += us;
		sq += us * us;
	}
	f->min = (double)s->ns[0] / 1e3;
	f->max = (double)s->ns[n - 1] / 1e3;
	f->avg = sum / (double)n;
	sq = sq / (double)n - f->avg * f->avg;
	f->mdev = sq > 0 ? sqrt(sq) : 0;
	f->p50 = percentile(s->ns, n, 50);
	f->p90 = percentile(s->ns, n, 90);
	f->p99 = percentile(s->ns, n, 99);
	return true;
}

void ping_show_end(const struct ping_path *p, struct ping_series *s, size_t n)
{
	struct figures f;
	size_t i;

	if (p->opt->json)
		return;
	printf("\n--- %s by %s: round trips, us ---\n", p->peer, fabric_name(p));
	printf("%-6s %8s %7s %6s %6s %9s %9s %9s %9s %9s %9s %9s\n", "op", "bytes", "sent", "lost", "wrong", "min",
	       "avg", "p50", "p90", "p99", "max", "mdev");
	for (i = 0; i < n; i++) {
		if (!s[i].sent)
			continue;
		printf("%-6s %8u %7" PRIu64 " %6" PRIu64 " %6" PRIu64, ping_op_name[s[i].op], s[i].size, s[i].sent,
		       s[i].sent - s[i].got, s[i].bad);
		if (figures(&s[i], &f))
			printf(" %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f", f.min, f.avg, f.p50, f.p90, f.p99, f.max,
			       f.mdev);
		putchar('\n');
	}
}

int ping_show_json(const struct ping_path *p, struct ping_series *s, size_t n)
{
	enum xr_reason why = verdict(p);
	json_t *o = json_pack("{s:s, s:s, s:s, s:b, s:b, s:s, s:f}", "peer", p->peer, "local", p->local, "fabric",
			      fabric_name(p), "same_host", p->is_local, "upgrade", why == XR_REASON_NONE, "reason",
			      xr_reason_name(why), "connect_ms", (double)p->tcp_ns / 1e6);
	json_t *list = json_array();
	struct figures f;
	char buf[64];
	size_t i;
	int r;

	json_object_set_new(o, "meeting_ms", p->up ? json_real((double)p->meet_ns / 1e6) : json_null());
	if (p->have_dev && p->fabric == 'r')
		json_object_set_new(o, "device", json_pack("{s:s, s:i, s:s, s:i, s:b, s:b, s:i, s:i}", "name",
							   p->caps.device, "port", (int)p->caps.port, "address",
							   gid_text(p->caps.gid, buf, sizeof(buf)), "mtu",
							   (int)p->caps.mtu, "software", (int)p->caps.software, "up",
							   (int)p->caps.up, "qp", (int)p->met.qpn, "peer_qp",
							   (int)p->met.peer_qpn));
	for (i = 0; i < n; i++) {
		json_t *e = json_pack("{s:s, s:I, s:I, s:I, s:I}", "op", ping_op_name[s[i].op], "bytes",
				      (json_int_t)s[i].size, "sent", (json_int_t)s[i].sent, "lost",
				      (json_int_t)(s[i].sent - s[i].got), "wrong", (json_int_t)s[i].bad);

		if (figures(&s[i], &f))
			json_object_set_new(e, "rtt_us",
					    json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "min", f.min, "avg", f.avg,
						      "p50", f.p50, "p90", f.p90, "p99", f.p99, "max", f.max, "mdev",
						      f.mdev));
		json_array_append_new(list, e);
	}
	json_object_set_new(o, "round_trips", list);
	r = json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(o);
	return r ? PING_TROUBLE : 0;
}
