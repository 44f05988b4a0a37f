/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Peers that die at any moment: ten thousand connections without an end, after which there is what there was before.
 * Each process makes some, sends, and kills itself at a random step: before it is connected, between messages, in the
 * middle of one that is being READ.  Its siblings, forked meanwhile, have copies of all descriptors.  XRT_DEATHS=10000
 * is so many processes.
 */
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "child.h"
#include "core/channel.h"
#include "ring_rig.h"
#include "side_rig.h"

#define DEATHS	1700u
#define BROKEN	10000u
#define FIRST	200u	/* until what is made once is there: caches, tables that have grown */
#define AT_ONCE	8u
#define CHANNELS 8u	/* of each */

static uint8_t data[200000];
static uint32_t whole, broken;

struct held {
	uint32_t fds, maps;
	uint64_t heap, registered;
};

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	(void)ch;
	(void)arg;
	/* what is delivered is whole, whoever dies */
	assert_true(stream_check(m->imm, 0, m->data, m->len) == m->len);
	whole++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	struct xrdma_channel **own = xrdma_get_user(ch);

	((struct side *)arg)->closed++;
	/* in a process that will die: nothing answered when it connected */
	if (own) {
		*own = NULL;
		return;
	}
	assert_true(error == -ECONNRESET || error == -EIO || !error);
	broken += error != 0;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = side_opened, .connected = side_opened, .message = on_message, .closed = on_closed,
};

static uint32_t lines(const char *file)
{
	FILE *f = fopen(file, "r");
	uint32_t n = 0;
	int c;

	assert_non_null(f);
	while ((c = fgetc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

static uint32_t entries(const char *dir)
{
	DIR *d = opendir(dir);
	uint32_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void count(struct held *h)
{
	struct xrdma_context_stats s;

	xrdma_get_context_stats(a.ctx, &s);
	assert_int_equal(s.channels + s.pool_buffers + s.recv_bytes + s.fetching, 0);
	h->fds = entries("/proc/self/fd");
	h->maps = lines("/proc/self/maps");
	h->heap = mallinfo2().uordblks;
	h->registered = s.pool_bytes;
}

/* The process that will die: each step may be its last. */
static _Noreturn void live(uint32_t seed)
{
	static struct xrdma_channel *ch[CHANNELS];
	struct rng g = { seed };
	uint32_t left = rng_below(&g, 60), i;

	memset(&b, 0, sizeof(b));
	/* what it has of its parent is not its own */
	a.ctx = NULL;
	if (xrdma_context_create(&b.ctx, "shm", &callbacks, &b))
		_exit(1);
	for (i = 0; i < CHANNELS; i++) {
		if (xrdma_connect(b.ctx, name, &ch[i]))
			_exit(1);
		xrdma_set_user(ch[i], &ch[i]);
	}
	/* three of four live to see all of their channels */
	while (seed % 4 && b.opened + b.closed < CHANNELS) {
		struct pollfd p = { .fd = xrdma_get_event_fd(b.ctx), .events = POLLIN };

		if (!xrdma_process_event(b.ctx))
			poll(&p, 1, 100);
	}
	while (left--) {
		struct xrdma_msg m = { .data = data, .len = rng_below(&g, 4) ? 2000 : sizeof(data), .imm = 7 };

		i = rng_below(&g, CHANNELS);
		if (ch[i])
			xrdma_send_msg(ch[i], &m);
		for (i = 0; i < 20 && rng_below(&g, 30); i++)
			xrdma_polling(b.ctx);
		if (!rng_below(&g, 20))
			sched_yield();
	}
	kill(getpid(), SIGKILL);
	_exit(1);
}

/* Sleeps when there is nothing to do: the processor is for those who are to die. */
static void look(void)
{
	struct pollfd p = { .fd = xrdma_get_event_fd(a.ctx), .events = POLLIN };

	if (!xrdma_process_event(a.ctx))
		poll(&p, 1, 2);
}

/* All channels are gone, and what was shared with the last of the dead, whose end is told separately. */
static void all_gone(uint32_t fds)
{
	uint32_t i;

	wait_for(!a.ctx->channels);
	for (i = 0; i < 20 || (i < 500 && entries("/proc/self/fd") > fds); i++)
		look();
}

/* What is kept for the next message goes back when nobody has wanted it for a second. */
static void at_rest(uint64_t registered)
{
	struct xrdma_context_stats s;
	uint32_t i = 0;

	do {
		look();
		xrdma_get_context_stats(a.ctx, &s);
	} while (s.pool_bytes > registered && i++ < 2000);
}

static void die_by_the_thousand(void **state)
{
	const char *more = getenv("XRT_DEATHS");
	uint32_t deaths = more ? (uint32_t)atoi(more) : DEATHS;
	uint32_t begun = 0, died = 0, seed = 1, alive = 0;
	struct held before = { 0 }, after;
	int status;
	pid_t pid;

	(void)state;
	stream_fill(7, 0, data, sizeof(data));
	while (died < deaths) {
		while (alive < AT_ONCE && begun < (died < FIRST ? FIRST : deaths)) {
			pid = child_fork();
			assert_true(pid >= 0);
			if (!pid)
				live(seed);
			seed++;
			begun++;
			alive++;
		}
		look();
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
			assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
			died++;
			alive--;
		}
		if (died == FIRST && !alive && !before.fds) {
			all_gone(UINT32_MAX);
			count(&before);
		}
	}
	all_gone(before.fds);
	at_rest(before.registered + XR_POOL_ARENA);
	count(&after);
	print_message("%u channels, %u broken, %u whole messages; descriptors %u, mappings %u, heap %lu and %lu\n",
		      a.opened, broken, whole, after.fds, after.maps, (unsigned long)before.heap,
		      (unsigned long)after.heap);
	assert_int_equal(a.opened, a.closed);
	assert_true(broken >= BROKEN && whole > BROKEN);
	assert_true(after.fds <= before.fds);
	/* arenas and queues that are kept come and go; a mapping of each death would be hundreds */
	/* a sanitizer's own are more and more */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
	assert_true(after.maps <= before.maps + 16);
#endif
	assert_true(after.registered <= before.registered + XR_POOL_ARENA);
	/* the smallest piece of each would be twice as much; how full caches are differs by tens of KiB */
	assert_true(after.heap < before.heap + 16 * BROKEN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(die_by_the_thousand, side_start, side_stop),
	};

	/* what the dead published would stay for xr-stat, ten thousand files of it */
	if (setenv("XRDMA_STATS", "no", 1))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
