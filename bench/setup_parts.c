/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of setting up a channel, by the same calls as channels make, of this end alone but for the connection:
 *	queue pair	made and taken to INIT, or from the cache
 *	memory		4 MiB registered, or 4 KiB of what is
 *	connection	from the call until both ends know, with queue pairs that are there; the way to the
 *			peer is found out, or known
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/fabric.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/qpcache.h"
#include "setup_parts.h"

#define MOST	1000u
#define PLACES	32u	/* more than a device remembers */
#define ROUNDS	20u	/* of one at once */

struct end {
	const struct xr_fabric_ops *ops;
	struct xr_dev *dev;
	struct xr_dev_caps caps;
	struct xr_pd *pd;
	struct xr_cq *cq;
	struct xr_qpcache cache;
	struct xr_qp_attr attr;
	struct xr_qp *qp[MOST];
	struct xr_cm_id *id[MOST];
	uint32_t made, ended;
};

static struct end client, server;
static uint64_t sample[2][2 * MOST + ROUNDS], begun[MOST];
static uint32_t nsample[2];
static int as_json, way_known;

static void must(int r, const char *what)
{
	if (r) {
		fprintf(stderr, "xr-setup: %s: %s\n", what, strerror(-r));
		exit(1);
	}
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static double percentile(int kept, uint32_t of_100)
{
	uint32_t n = nsample[kept];

	return n ? (double)sample[kept][(n - 1) * of_100 / 100] / 1000 : 0;
}

/* kept: how many of the second kind were from what was kept, all of them by rights. */
static void say(const char *part, uint32_t many, uint32_t kept)
{
	int k;

	for (k = 0; k < 2; k++)
		qsort(sample[k], nsample[k], sizeof(sample[k][0]), compare);
	printf(as_json ? "{\"part\": \"%s\", \"at_once\": %u, \"new_p50_us\": %.1f, \"new_p99_us\": %.1f, "
			 "\"kept_p50_us\": %.1f, \"kept_p99_us\": %.1f, \"samples\": [%u, %u], \"kept\": %u}\n" :
	       "%-10s %4u at once: new p50 %9.1f us, p99 %9.1f us; kept p50 %9.1f us, p99 %9.1f us "
	       "(%u and %u samples, %u kept)\n",
	       part, many, percentile(0, 50), percentile(0, 99), percentile(1, 50), percentile(1, 99), nsample[0],
	       nsample[1], kept);
	nsample[0] = nsample[1] = 0;
}

static void took(int kept, uint64_t since)
{
	sample[kept][nsample[kept]++] = xr_now_ns() - since;
}

static void end_open(struct end *e, const char *device)
{
	const char *what;

	e->ops = xr_fabric_find(device, &what);
	must(e->ops ? 0 : -ENODEV, device);
	must(e->ops->open(what, &e->dev), device);
	e->ops->query(e->dev, &e->caps);
	must(e->ops->pd_alloc(e->dev, &e->pd), "pd_alloc");
	must(e->ops->cq_create(e->dev, e->caps.max_cqe < 65536 ? e->caps.max_cqe : 65536, &e->cq), "cq_create");
	xr_qpcache_init(&e->cache, e->ops, e->dev, &e->caps, MOST + 1);
	e->attr = (struct xr_qp_attr){ .pd = e->pd, .send_cq = e->cq, .recv_cq = e->cq, .sq_depth = 4, .rq_depth = 4 };
}

static void end_close(struct end *e)
{
	xr_qpcache_end(&e->cache);
	must(e->ops->cq_destroy(e->cq), "cq_destroy");
	must(e->ops->pd_free(e->pd), "pd_free");
	must(e->ops->close(e->dev), "close");
}

static void rest(const struct end *e)
{
	usleep(e->caps.quarantine_us + 1000);
}

static void get(struct end *e, uint32_t i)
{
	must(xr_qpcache_get(&e->cache, &e->attr, xr_now_ns(), &e->qp[i]), "a queue pair");
}

static void put(struct end *e, uint32_t i)
{
	xr_qpcache_put(&e->cache, e->qp[i], &e->attr, xr_now_ns());
	e->qp[i] = NULL;
}

/* --- queue pairs and memory -------------------------------------------------------------------- */

static void queue_pairs(struct end *e, uint32_t many)
{
	uint32_t i, k, kept, rounds = many > 1 ? 1 : ROUNDS;
	uint64_t since, hits = e->cache.hits;

	for (kept = 0; kept < 2; kept++) {
		for (k = 0; k < rounds; k++) {
			if (!kept)
				xr_qpcache_limit(&e->cache, 0);
			xr_qpcache_limit(&e->cache, MOST + 1);
			since = xr_now_ns();
			for (i = 0; i < many; i++) {
				get(e, i);
				took((int)kept, since);
			}
			for (i = 0; i < many; i++)
				put(e, i);
			if (kept || k + 1 == rounds)
				rest(e);
		}
	}
	say("queue pair", many, (uint32_t)(e->cache.hits - hits));
}

static void memory(struct end *e)
{
	struct xr_pool pool;
	struct xr_buf buf;
	struct xr_mr *mr;
	uint64_t since;
	uint32_t k;

	must(xr_pool_init(&pool, e->ops, e->pd, 64u << 20), "xr_pool_init");
	must(xr_pool_get(&pool, 4096, &buf), "xr_pool_get");
	xr_pool_put(&pool, &buf);
	for (k = 0; k < ROUNDS; k++) {
		since = xr_now_ns();
		must(e->ops->mr_alloc(e->pd, 4u << 20, XR_ACCESS_LOCAL_WRITE, &mr), "mr_alloc");
		took(0, since);
		must(e->ops->mr_dereg(mr), "mr_dereg");
		since = xr_now_ns();
		must(xr_pool_get(&pool, 4096, &buf), "xr_pool_get");
		took(1, since);
		xr_pool_put(&pool, &buf);
	}
	must(xr_pool_destroy(&pool), "xr_pool_destroy");
	say("memory", 1, ROUNDS);
}

/* --- connections -------------------------------------------------------------------------------- */

static void end_turn(struct end *e)
{
	struct xr_cm_event ev;
	struct xr_wc wc[32];

	e->ops->cq_poll(e->cq, wc, 32);
	while (e->ops->cm_get_event(e->dev, &ev) > 0) {
		uint32_t i;

		switch (ev.type) {
		case XR_CM_CONNECT_REQUEST:
			for (i = 0; e->id[i]; i++)
				;
			e->id[i] = ev.id;
			must(e->ops->cm_accept(ev.id, e->qp[i], NULL, 0), "cm_accept");
			break;
		case XR_CM_ESTABLISHED:
			if (e == &client)
				took(way_known, *(uint64_t *)ev.id->user);
			e->made++;
			break;
		case XR_CM_DISCONNECTED:
			e->ended++;
			break;
		case XR_CM_REJECTED:
		case XR_CM_UNREACHABLE:
			must(ev.status ? ev.status : -ECONNREFUSED, "a connection");
			break;
		case XR_CM_DEVICE:
			break;
		}
	}
}

/* Sleeps while nothing happens: the kernel's share of the work is done on this processor, too. */
static void until(const uint32_t *a, const uint32_t *b, uint32_t n)
{
	struct pollfd p[2] = { { client.ops->cm_fd(client.dev), POLLIN, 0 },
			       { server.ops->cm_fd(server.dev), POLLIN, 0 } };

	while (*a < n || *b < n) {
		end_turn(&client);
		end_turn(&server);
		if (*a < n || *b < n)
			poll(p, 2, 1);
	}
}

static void connections_round(const struct xr_addr *addr, uint32_t many, int known)
{
	uint32_t i;

	way_known = known;
	client.made = client.ended = server.made = server.ended = 0;
	for (i = 0; i < many; i++) {
		get(&client, i);
		get(&server, i);
	}
	for (i = 0; i < many; i++) {
		begun[i] = xr_now_ns();
		must(client.ops->cm_connect(client.dev, addr, client.qp[i], NULL, 0, &client.id[i]), "cm_connect");
		client.id[i]->user = &begun[i];
	}
	until(&client.made, &server.made, many);
	for (i = 0; i < many; i++)
		client.ops->cm_disconnect(client.id[i]);
	until(&client.ended, &server.ended, many);
	for (i = 0; i < many; i++) {
		client.ops->cm_destroy(client.id[i]);
		server.ops->cm_destroy(server.id[i]);
		client.id[i] = server.id[i] = NULL;
		put(&client, i);
		put(&server, i);
	}
	/* what is made ahead finds its way */
	for (i = 0; i < 200 + 2 * many; i++) {
		end_turn(&client);
		usleep(500);
	}
}

static void connections(const char *at, uint32_t many)
{
	static uint32_t place;
	struct xr_listen_attr attr = { .backlog = 2 * MOST };
	uint32_t i, rounds = many > 1 ? 1 : ROUNDS;
	struct xr_cm_id *listener[PLACES];
	struct xr_addr addr[PLACES];
	uint64_t known;

	for (i = 0; i < PLACES; i++) {
		must(client.ops->address(at, &addr[i]), at);
		addr[i].port = (uint16_t)(addr[i].port + place++);
		must(server.ops->cm_listen(server.dev, &addr[i], &attr, &listener[i]), "cm_listen");
	}
	rest(&client);
	for (i = 0; i < rounds; i++)
		connections_round(&addr[i % PLACES], many, 0);
	/* the first finds its way, the second is the reason to remember it */
	for (i = 0; i < 2; i++)
		connections_round(&addr[PLACES - 1], many, 1);
	nsample[1] = 0;
	client.ops->query(client.dev, &client.caps);
	known = client.caps.foreseen;
	for (i = 0; i < rounds; i++)
		connections_round(&addr[PLACES - 1], many, 1);
	client.ops->query(client.dev, &client.caps);
	for (i = 0; i < PLACES; i++)
		server.ops->cm_destroy(listener[i]);
	say("connection", many, (uint32_t)(client.caps.foreseen - known));
}

int setup_parts(const char *device, const char *at, uint32_t most, int json)
{
	as_json = json;
	end_open(&client, device);
	end_open(&server, device);
	if (client.caps.quarantine_us > 1000000)
		return 1;
	queue_pairs(&client, 1);
	if (most > 1)
		queue_pairs(&client, most);
	memory(&client);
	if (at) {
		connections(at, 1);
		if (most > 1)
			connections(at, most);
	}
	end_close(&client);
	end_close(&server);
	return 0;
}
