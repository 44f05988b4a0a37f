/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Explores every interleaving of two ends of a flow, at each access to shared memory and
 * each system call, for a scenario: what each program may do, and how often.  Depth first;
 * a state that was met before is not followed again.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/stats.h"
#include "fabric.h"
#include "scenario.h"
#include "world.h"

#define STEPS_MAX	32
#define PATH_MAX	4096
#define FRAMES_MAX	2048

enum kind { RESUME, BEGIN, KILL, FIN, HANG_UP, DELIVER, FLUSH, FABRIC };

struct step {
	uint8_t kind, e, act;
};

struct frame {
	struct snapshot *snap;
	struct step step[STEPS_MAX];
	int n, next, len;
};

static struct frame frame[FRAMES_MAX];
static struct step path[PATH_MAX];
static int path_len, path_limit;
static struct snapshot *start, *aside;
static const struct scenario *sc;
static uint64_t states, moves, drains;
static int on_ring;		/* both directions of an end were on the ring in some state */
static time_t deadline;
static int brief;

/* ---- states met ------------------------------------------------------------------- */

static struct {
	uint64_t *key;
	uint16_t *len;
	uint64_t size, used;
} seen;

static void seen_clear(uint64_t size)
{
	free(seen.key);
	free(seen.len);
	seen.size = size;
	seen.used = 0;
	seen.key = calloc(size, sizeof(*seen.key));
	seen.len = calloc(size, sizeof(*seen.len));
	if (!seen.key || !seen.len)
		abort();
}

static int seen_put(uint64_t h, uint16_t len, int again)
{
	uint64_t i;

	for (i = h & (seen.size - 1); seen.key[i]; i = (i + 1) & (seen.size - 1))
		if (seen.key[i] == h) {
			if (!again || seen.len[i] <= len)
				return 0;
			seen.len[i] = len;
			return 1;
		}
	seen.key[i] = h;
	seen.len[i] = len;
	seen.used++;
	return 1;
}

static void seen_grow(void)
{
	uint64_t *key = seen.key, n = seen.size, i;
	uint16_t *len = seen.len;

	if (seen.used * 2 < seen.size)
		return;
	seen.key = NULL;
	seen.len = NULL;
	seen_clear(n * 4);
	for (i = 0; i < n; i++)
		if (key[i])
			seen_put(key[i], len[i], 0);
	free(key);
	free(len);
}

/* ---- what may happen next ------------------------------------------------------------ */

static int enabled(struct step *out)
{
	int e, n = 0;
	uint8_t a;

	for (e = 0; e < 2; e++) {
		struct side *s = &W.side[e];

		for (a = 0; hosts && a < FABRIC_STEPS; a++)
			if (fabric_may((enum fabric_step)a, e))
				out[n++] = (struct step){ FABRIC, (uint8_t)e, a };

		if (s->npending)
			out[n++] = (struct step){ FLUSH, (uint8_t)e, 0 };
		if (lag && kernel_may_deliver(e))
			out[n++] = (struct step){ DELIVER, (uint8_t)e, 0 };
		if (s->dead) {
			if (!W.sock[e].closed)
				out[n++] = (struct step){ FIN, (uint8_t)e, 0 };
			if (!s->hung_up)
				out[n++] = (struct step){ HANG_UP, (uint8_t)e, 0 };
			continue;
		}
		if (s->left[ACT_KILL] && !s->closed)
			out[n++] = (struct step){ KILL, (uint8_t)e, 0 };
		if (s->in_call) {
			if (world_may_run(e))
				out[n++] = (struct step){ RESUME, (uint8_t)e, 0 };
			continue;
		}
		for (a = ACT_SEND; a < ACT_KILL && !s->closed; a++)
			if (s->left[a] && !(s->shut && (a == ACT_SEND || a == ACT_BULK)))
				out[n++] = (struct step){ BEGIN, (uint8_t)e, a };
	}
	return n;
}

static void apply(struct step st)
{
	struct side *s = &W.side[st.e];

	moves++;
	xr_stats_seg->counter[XR_STAT_INTERNAL_ERRORS] = 0;
	switch (st.kind) {
	case RESUME:
		world_resume(st.e);
		break;
	case BEGIN:
		if (s->left[st.act] != ALWAYS)
			s->left[st.act]--;
		world_begin(st.e, (enum act)st.act);
		break;
	case KILL:
		/* its memory is final now, its descriptors close in any order */
		s->dead = 1;
		world_abandon(st.e);
		fabric_killed(st.e);
		break;
	case FIN:
		kernel_close(st.e);
		break;
	case HANG_UP:
		s->hung_up = 1;
		break;
	case DELIVER:
		kernel_deliver(st.e);
		break;
	case FLUSH:
		world_flush_one(st.e);
		break;
	case FABRIC:
		fabric_do((enum fabric_step)st.act, st.e);
		break;
	}
	if (hosts && plain)
		fabric_settle();
	wrong_if(!sc->handover && xr_stats_seg->counter[XR_STAT_INTERNAL_ERRORS] != 0,
		 "an internal error");
	wrong_if(W.flow[st.e].reason == XR_REASON_SEGMENT_CORRUPT, "a good peer is taken for a bad one");
	wrong_if(W.flow[st.e].reason == XR_REASON_UNHOOKED_IO, "bytes are miscounted");
}

/* ---- from any state on: what is owed must come ------------------------------------------ */

static void drain_end(int e)
{
	struct side *s = &W.side[e];

	if (s->dead) {
		kernel_close(e);
		s->hung_up = 1;
		return;
	}
	while (world_may_run(e))
		world_resume(e);
	if (s->in_call || s->closed)
		return;
	W.flow[e].rx_checked = W.flow[e].tx_checked = 0;
	world_begin(e, ACT_RECV);
	while (world_may_run(e))
		world_resume(e);
}

static uint64_t drain_mark(void)
{
	uint64_t m = 0;
	int e;

	for (e = 0; e < 2; e++) {
		struct side *s = &W.side[e];

		m = m * 31 + s->got;
		m = m * 31 + s->eof + 2u * s->err + 4u * s->in_call;
		m = m * 31 + W.wire[e].in + W.wire[e].n + 16u * W.wire[e].fin;
		m = m * 7 + W.flow[e].tx_state;
		m = m * 7 + W.flow[e].rx_state;
	}
	return m;
}

/* Waits that time-outs of our own end: no more than a delay. */
static int drain_time_out(void)
{
	int e, any = 0;

	for (e = 0; e < 2; e++) {
		struct side *s = &W.side[e];

		if (s->in_call && (s->act == ACT_CLOSE || s->act == ACT_EXEC)) {
			s->now += 1;
			s->blocked = 0;
			any = 1;
		}
	}
	return any;
}

static void drained(int e)
{
	struct side *s = &W.side[e], *far = &W.side[1 - e];
	uint32_t want, ev;

	if (s->dead || s->closed || s->err)
		return;
	if (s->in_call && (s->act == ACT_WAIT_IN || s->act == ACT_WAIT_OUT)) {
		want = (s->act == ACT_WAIT_IN ? POLLIN : POLLOUT) | POLLERR | POLLHUP;
		cur = e;
		ev = W.flow[e].path & XR_PATH_FABRIC ? xr_flow_poll(&W.flow[e], FD(e)) : UINT32_MAX;
		if (ev == UINT32_MAX)
			ev = kernel_poll(e);
		wrong_if((ev & want) != 0, "a sleeper is not woken");
		return;
	}
	wrong_if(s->in_call, "a call that does not end");
	if (lost_to_exec(e))
		return;
	wrong_if(s->got < far->sent, "bytes that do not come");
	wrong_if((far->shut || far->closed || far->dead) && !s->eof, "an end that does not come");
}

/* A peer that is away, asleep or computing, holds up nobody, but for a replay that it owes. */
static void drain_alone(int e)
{
	struct side *s = &W.side[e], *far = &W.side[1 - e];
	int quiet;

	/* between hosts what is on its way, and the word of who leaves, is the peer's to see to */
	if (hosts || s->dead || s->closed || s->err || s->unaware || s->in_call || far->dead || far->unaware ||
	    (far->in_call && far->act != ACT_WAIT_IN && far->act != ACT_WAIT_OUT) ||
	    W.flow[1 - e].tx_state == XR_TX_REPLAY)
		return;
	for (quiet = 0; quiet < 3; quiet++) {
		drain_end(e);
		while (kernel_may_deliver(0) || kernel_may_deliver(1))
			kernel_deliver(!kernel_may_deliver(0));
	}
	wrong_if(s->got < far->sent && !s->err, "bytes wait for a peer that is away");
}

static void drain(void)
{
	int was = coarse, rounds, quiet = 0, e;
	uint64_t mark = 0, now;

	drains++;
	coarse = 1;
	for (e = 0; e < 2; e++)
		world_flush(e);
	for (e = 0; e < 2; e++)
		drain_alone(e);
	for (rounds = 0; rounds < 64 && quiet < 2 && !wrong; rounds++) {
		for (e = 0; e < 2; e++) {
			drain_end(e);
			fabric_pump();
			while (kernel_may_deliver(0) || kernel_may_deliver(1))
				kernel_deliver(!kernel_may_deliver(0));
		}
		now = drain_mark();
		quiet = now == mark ? quiet + 1 : 0;
		mark = now;
		if (quiet == 2 && drain_time_out())
			quiet = 0;
	}
	for (e = 0; e < 2 && !wrong; e++)
		drained(e);
	coarse = was;
}

/* ---- the search ------------------------------------------------------------------------- */

static int quiescent(void)
{
	int e;

	for (e = 0; e < 2; e++)
		if (W.side[e].in_call && !W.side[e].blocked)
			return 0;
	return 1;
}

/* 1: a new state to go on from; 0: not. */
static int arrive(void)
{
	struct step only[STEPS_MAX];

	/* nothing to choose: no state of its own */
	while (!wrong && path_len < path_limit && enabled(only) == 1 && only[0].kind == RESUME) {
		apply(only[0]);
		path[path_len++] = only[0];
	}
	if (wrong)
		return 0;
	if (path_len >= path_limit)
		return 0;
	seen_grow();
	if (!seen_put(world_hash(), (uint16_t)path_len, path_limit < PATH_MAX))
		return 0;
	states++;
	on_ring |= W.flow[0].rx_state == XR_RX_RING && W.flow[0].tx_state == XR_TX_RING;
	if (quiescent()) {
		snapshot_save(aside);
		drain();
		snapshot_load(aside);
	}
	return !wrong;
}

static void push(int d)
{
	struct frame *f = &frame[d];

	if (!f->snap)
		f->snap = snapshot_new();
	snapshot_save(f->snap);
	f->n = enabled(f->step);
	f->next = 0;
	f->len = path_len;
}

/* 0 when every state was visited, 1 when one is wrong, -1 out of time or depth. */
static int search(void)
{
	int d = 0, deep = 0;

	snapshot_load(start);
	path_len = 0;
	wrong = NULL;
	seen_clear(1u << 16);
	if (!arrive())
		return wrong ? 1 : 0;
	push(0);
	while (d >= 0) {
		struct frame *f = &frame[d];

		if (f->next == f->n) {
			d--;
			continue;
		}
		snapshot_load(f->snap);
		path_len = f->len;
		path[path_len] = f->step[f->next++];
		apply(path[path_len++]);
		if (arrive()) {
			if (d + 1 == FRAMES_MAX)
				deep = 1;
			else
				push(++d);
		}
		if (wrong)
			return 1;
		if (!(moves & 0xffff) && deadline && time(NULL) > deadline)
			return -1;
	}
	return deep ? -1 : 0;
}

/* ---- showing ------------------------------------------------------------------------------ */

static const char *const act_name[] = {
	"-", "send 1", "send 5", "recv", "recv 1", "poll", "wait for input", "wait for room",
	"shutdown", "close", "retreat for good", "retreat", "retreat for exec", "kill"
};
static const char *const rx_name[] = { "TCP", "READY", "DRAIN", "RING", "SKIP" };
static const char *const tx_name[] = { "TCP", "RING", "REPLAY" };

static char line[2][512], *out;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	out += vsprintf(out, fmt, ap);
	va_end(ap);
}

static void show_end(int e)
{
	struct xr_flow *f = &W.flow[e];
	struct side *s = &W.side[e];
	struct xr_shm_dir *d = f->tx.dir;

	say(" | %c%s rx %s tx %s sent %u got %u%s%s", "AB"[e], s->dead ? " dead" : s->closed ?
	       " closed" : s->unaware ? " unaware" : "", rx_name[f->rx_state % 5],
	       tx_name[f->tx_state % 3], s->sent, s->got, s->eof ? " eof" : "", s->err ? " err" : "");
	if (d)
		say(" ring %u..%u%s%s st %x", XR_CONSUMED_SEQ(d->consumed), f->tx.head,
		       d->consumed & XR_FROZEN ? " frozen" : "",
		       d->consumed & XR_REPLAYING ? " replaying" : "", d->state);
	say(" wire %u%s%s", W.wire[e].n, W.wire[e].fin ? " fin" : "", W.wire[e].rst ? " rst" : "");
}

static void show_path(void)
{
	static const char *const kind_name[] = { "goes on", "", "is killed", "its socket closes",
						 "its control connection closes", "bytes arrive",
						 "a store becomes visible", "" };
	static const char *const fabric_name[] = {
		"its module works", "its module hears a message", "its module hears of the peer",
		"its module hears that the channel is gone", "its module's clock", "the channel dies" };
	int i, back, n = path_len;
	const char *what = wrong;

	snapshot_load(start);
	wrong = NULL;
	out = line[0];
	show_end(0);
	show_end(1);
	printf("  at first%s\n", line[0]);
	for (i = 0; i < n; i++) {
		struct step st = path[i];

		apply(st);
		back = (st.kind == BEGIN || st.kind == RESUME) && !W.side[st.e].in_call;
		out = line[i & 1];
		show_end(0);
		show_end(1);
		/* steps that change nothing that is shown are left out */
		if (i && i + 1 < n && st.kind == RESUME && !back && !strcmp(line[0], line[1]))
			continue;
		printf("%4d %c %s%s%s\n", i, "AB"[st.e],
		       st.kind == BEGIN ? act_name[st.act] : st.kind == FABRIC ? fabric_name[st.act] :
		       kind_name[st.kind], back ? ", returns" : "",
		       i && !strcmp(line[0], line[1]) ? "" : line[i & 1]);
	}
	if (!wrong) {
		drain();
		out = line[0];
		show_end(0);
		show_end(1);
		printf("and from there, with both ends reading:%s\n", line[0]);
	}
	wrong = what;
}

/* A path that is found may be long: look for shorter ones for a while. */
static void shorten(void)
{
	static struct step best[PATH_MAX];
	const char *what = wrong;
	int len = path_len;
	time_t end = time(NULL) + 20;

	memcpy(best, path, sizeof(path));
	deadline = end;
	for (;;) {
		path_limit = len - 1;
		if (search() != 1)
			break;
		len = path_len;
		what = wrong;
		memcpy(best, path, sizeof(path));
	}
	deadline = 0;
	path_len = len;
	memcpy(path, best, sizeof(path));
	path_limit = PATH_MAX;
	wrong = what;
}

static int run(const struct scenario *s)
{
	struct timespec a, b;
	int r;

	sc = s;
	states = moves = drains = 0;
	on_ring = 0;
	scenario_start(s);
	snapshot_save(start);
	path_limit = PATH_MAX;
	clock_gettime(CLOCK_MONOTONIC, &a);
	r = search();
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%-24s %9llu states %10llu steps %6.1f s  %s\n", s->name, (unsigned long long)states,
	       (unsigned long long)moves, (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec),
	       r == 1 ? wrong : r ? "not finished" : on_ring ? "holds" : "is never on the ring");
	if (!r && !on_ring)
		r = -1;
	fflush(stdout);
	if (r == 1 && !brief) {
		shorten();
		printf("%s:\n", wrong);
		show_path();
	}
	return r;
}

/* check [--brief] [SCENARIO]...: all but the deep ones; --list names them */
int main(int argc, char **argv)
{
	int i = 1, k, bad = 0, known;

	start = snapshot_new();
	aside = snapshot_new();
	if (argc > 1 && !strcmp(argv[1], "--list")) {
		for (k = 0; scenarios[k].name; k++)
			if (!scenarios[k].deep)
				printf("%s\n", scenarios[k].name);
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "--brief"))
		brief = i++;
	for (k = 0; i == argc && scenarios[k].name; k++)
		if (!scenarios[k].deep)
			bad |= run(&scenarios[k]) != 0;
	for (; i < argc; i++) {
		for (k = 0, known = 0; scenarios[k].name && !known; k++)
			if (!strcmp(argv[i], scenarios[k].name)) {
				known = 1;
				bad |= run(&scenarios[k]) != 0;
			}
		if (!known) {
			fprintf(stderr, "no scenario '%s', see scenario.c\n", argv[i]);
			return 2;
		}
	}
	return bad;
}
