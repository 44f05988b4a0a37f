/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-ping: round trips over a channel. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/mem.h"
#include "ping.h"

#define PING_WARM_UP 10
#define SPIN_NS 2000000u	/* an answer is looked for so long before the program sleeps */

const char *const ping_op_name[PING_OPS] = { "send", "read", "write" };

static void on_reply(struct xrdma_channel *ch, const struct xrdma_msg *msg, int error, void *arg)
{
	struct ping_path *path = arg;

	(void)ch;
	if (error)
		return;
	path->answers++;
	path->good = msg->len == path->want_len && !memcmp(msg->data, path->want, msg->len);
}

/* Until the counter has moved: 0; -ETIMEDOUT, -EPIPE, -EINTR. */
static int run_wait(struct ping_path *path, const uint64_t *counter, uint64_t was, uint64_t begun)
{
	uint64_t end = begun + (uint64_t)(path->opt->wait * 1e9), now;

	for (;;) {
		if (*counter != was)
			return 0;
		if (path->closed || !path->ctx)
			return -EPIPE;
		if (ping_stopped)
			return -EINTR;
		now = xr_now_ns();
		if (now > end)
			return -ETIMEDOUT;
		if (now - begun < SPIN_NS) {
			xrdma_polling(path->ctx);
		} else {
			struct pollfd p = { meet_fd(path->meet), POLLIN, 0 };
			int ms = meet_step(path->meet, now);

			if (*counter == was && ms)
				poll(&p, 1, 10);
		}
	}
}

static int run_post(struct ping_path *path, struct ping_series *s, struct xrdma_mem *mem, uint8_t *buf, uint64_t seq)
{
	struct xrdma_msg m = { .data = buf, .len = s->size, .mem = s->size > 4096 ? mem : NULL };

	switch (s->op) {
	case PING_SEND:
		return xrdma_send_request(path->ch, &m, on_reply, path);
	case PING_READ:
		return xrdma_read(path->ch, mem, buf, s->size, &path->offer.remote, 0, seq);
	default:
		return xrdma_write(path->ch, mem, buf, s->size, &path->offer.remote, 0, seq);
	}
}

/* One round trip.  0, with its time; 1: lost, or wrong; -errno: no more. */
static int run_round(struct ping_path *path, struct ping_series *s, struct xrdma_mem *mem, uint8_t *buf, uint8_t *cmp,
		     uint64_t *ns)
{
	const uint64_t *counter = s->op == PING_SEND ? &path->answers : &path->dones;
	uint64_t was = *counter, t;
	int r;

	/* READ and WRITE: the memory of the peer holds what was last written, at first what it filled it with */
	if (s->op != PING_READ)
		ping_fill(buf, s->size, s->sent + 1);
	else
		memset(buf, 0, s->size);
	path->want = buf;
	path->want_len = s->size;
	path->good = true;
	t = xr_now_ns();
	r = run_post(path, s, mem, buf, s->sent);
	if (r)
		return r;
	s->sent++;
	r = run_wait(path, counter, was, t);
	if (r)
		return r;
	*ns = xr_now_ns() - t;
	s->ns[s->got++ % s->room] = *ns;
	if (s->op == PING_READ) {
		ping_fill(cmp, s->size, 0);
		path->good = !memcmp(buf, cmp, s->size);
	}
	s->bad += !path->good;
	return !path->good;
}

/* What the last WRITE has left there; and puts back what READs expect. */
static int run_check_write(struct ping_path *path, struct ping_series *s, struct xrdma_mem *mem, uint8_t *buf,
			   uint8_t *cmp)
{
	uint64_t was = path->dones, t = xr_now_ns();
	int r = xrdma_read(path->ch, mem, buf, s->size, &path->offer.remote, 0, 0);

	if (!r)
		r = run_wait(path, &path->dones, was, t);
	if (r)
		return r;
	ping_fill(cmp, s->size, s->sent);
	s->bad += memcmp(buf, cmp, s->size) != 0;
	ping_fill(buf, s->size, 0);
	was = path->dones;
	t = xr_now_ns();
	r = xrdma_write(path->ch, mem, buf, s->size, &path->offer.remote, 0, 0);
	return r ? r : run_wait(path, &path->dones, was, t);
}

static void run_pause(struct ping_path *path, double seconds)
{
	uint64_t end = xr_now_ns() + (uint64_t)(seconds * 1e9), now;

	while ((now = xr_now_ns()) < end && !ping_stopped && !path->closed) {
		struct pollfd p = { meet_fd(path->meet), POLLIN, 0 };
		struct timespec ts = { (time_t)((end - now) / 1000000000u), (long)((end - now) % 1000000000u) };

		if (meet_step(path->meet, now))
			ppoll(&p, 1, &ts, NULL);
	}
}

/*
 * The first round trips pay for cold caches, pages that are touched for the first time and cores that slept:
 * they are made, checked, and left out of the figures.
 */
static int run_warm_up(struct ping_path *path, struct ping_series *s, struct xrdma_mem *mem, uint8_t *buf, uint8_t *cmp,
		       uint64_t end)
{
	uint64_t ns;
	int i, r = 0;

	for (i = 0; i < PING_WARM_UP && r >= 0 && !ping_stopped && !(end && xr_now_ns() >= end); i++)
		r = run_round(path, s, mem, buf, cmp, &ns);
	/* what was lost stays in the count */
	if (r < 0)
		return r;
	s->sent = 0;
	s->got = 0;
	return 0;
}

static int run_series(struct ping_path *path, struct ping_series *s, struct xrdma_mem *mem, uint8_t *buf, uint8_t *cmp,
		      uint64_t end)
{
	const struct ping_options *opt = path->opt;
	uint64_t ns = 0;
	int r = run_warm_up(path, s, mem, buf, cmp, end);

	while (!r) {
		r = run_round(path, s, mem, buf, cmp, &ns);
		if (r < 0)
			return r;
		r = 0;
		ping_show_round(path, s, s->sent, ns);
		if (ping_stopped || (end && xr_now_ns() >= end) || (opt->count && s->sent >= opt->count))
			break;
		if (opt->interval > 0)
			run_pause(path, opt->interval);
	}
	return r ? r : s->op == PING_WRITE ? run_check_write(path, s, mem, buf, cmp) : 0;
}

int ping_run(struct ping_path *path, struct ping_series *s, size_t n)
{
	uint64_t end = path->opt->deadline > 0 ? xr_now_ns() + (uint64_t)(path->opt->deadline * 1e9) : 0;
	struct xrdma_mem *mem;
	uint8_t *cmp = malloc(PING_ROOM);
	void *buf;
	size_t i;
	int r = cmp ? xrdma_alloc_mem(path->ctx, PING_ROOM, &mem, &buf) : -ENOMEM;

	if (r) {
		fprintf(stderr, "xr-ping: memory: %s\n", strerror(-r));
		free(cmp);
		return PING_TROUBLE;
	}
	for (i = 0; i < n && !r && !ping_stopped && !(end && xr_now_ns() >= end); i++)
		r = run_series(path, &s[i], mem, buf, cmp, end);
	free(cmp);
	if (r == -EINTR)
		r = 0;
	if (r)
		fprintf(stderr, "xr-ping: %s\n", r == -EPIPE ? "the other end is gone" : strerror(-r));
	for (i = 0; i < n; i++)
		if (s[i].bad)
			r = -EIO;
	return r ? PING_NOT : PING_GOOD;
}
