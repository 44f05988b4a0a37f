/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A log with a standby: log-store NAME [DEVICE [PRIMARY]]. Lines of standard input are its records. One is printed
 * when it cannot be lost any more: the standby has pulled it by READ, and has said so by WRITE; neither needs a
 * message, or the primary's program where the device is a network's. With PRIMARY it is the standby of that one. When
 * the primary is gone it takes over: prints what it holds, and serves a standby of its own under NAME. (Who decides
 * between two that cannot see each other is another matter.)
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xrdma.h>

#define SIZE (64u << 20)	/* of the log */

struct log {
	_Atomic uint64_t held;	/* the standby writes: bytes that it has */
	_Atomic uint64_t len;	/* the standby reads: bytes that there are */
	uint64_t seen, have;	/* standby: the primary's len, and what it has of it */
	uint8_t text[SIZE];
};

enum { LEN, TEXT, HELD };	/* ids of what the standby has under way */

static struct xrdma_context *ctx;
static struct xrdma_channel *peer;
static struct xrdma_mem *mem;
static struct log *mine;
static struct xrdma_remote theirs[2];	/* the primary's log to read, its word to write */
static int standby, idle;
static uint64_t printed;
static const char *name;

static void take_over(int error)
{
	int r;

	/* a record that came in part was never acknowledged */
	while (mine->have && mine->text[mine->have - 1] != '\n')
		mine->have--;
	mine->held = mine->len = mine->have;
	standby = 0;
	/* the kernel may be about to take the name from the dead */
	while ((r = xrdma_listen(ctx, name)) == -EADDRINUSE)
		usleep(1000);
	if (r) {
		fprintf(stderr, "log-store: cannot listen: %s\n", strerror(-r));
		exit(1);
	}
	fprintf(stderr, "log-store: primary with %lu bytes (%s)\n", (unsigned long)mine->len, strerror(-error));
}

static void accepted(struct xrdma_channel *ch, void *arg)
{
	struct xrdma_remote grant[2];

	(void)arg;
	mine->held = 0;
	if (peer || xrdma_grant(ch, mem, &mine->len, sizeof(*mine) - 8, XRDMA_GRANT_READ, &grant[0]) ||
	    xrdma_grant(ch, mem, &mine->held, 8, XRDMA_GRANT_WRITE, &grant[1]) ||
	    xrdma_send_msg(ch, &(struct xrdma_msg){ .data = grant, .len = sizeof(grant) }))
		xrdma_close(ch);
	else
		peer = ch;
}

static void look(void)
{
	idle = 0;
	if (xrdma_read(peer, mem, &mine->seen, 8, &theirs[0], 0, LEN))
		xrdma_close(peer);
}

static void message(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg)
{
	(void)arg;
	if (!standby || ch != peer || msg->len != sizeof(theirs))
		return;
	memcpy(theirs, msg->data, sizeof(theirs));
	fprintf(stderr, "log-store: standby\n");
	look();
}

static void done(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	static uint64_t n;
	int r = 0;

	(void)arg;
	if (id == TEXT) {
		mine->have += n;
		r = xrdma_write(ch, mem, &mine->have, 8, &theirs[1], 0, HELD);
	} else if (id == HELD || mine->seen <= mine->have || mine->seen > SIZE) {
		idle = 1;
	} else {
		n = mine->seen - mine->have < 65536 ? mine->seen - mine->have : 65536;
		r = xrdma_read(ch, mem, mine->text + mine->have, n, &theirs[0],
			       (uint64_t)(mine->text - (uint8_t *)&mine->len) + mine->have, TEXT);
	}
	if (r)
		fprintf(stderr, "log-store: %s\n", strerror(-r));
}

static void closed(struct xrdma_channel *ch, int error, void *arg)
{
	(void)arg;
	if (!standby) {
		peer = ch == peer ? NULL : peer;
		return;
	}
	if (!theirs[0].len) {
		fprintf(stderr, "log-store: no primary: %s\n", strerror(-error));
		exit(1);
	}
	peer = NULL;
	take_over(error);
}

/* Whole records of standard input; one that is not whole yet lies behind the end of the log. 0: no more. */
static int append(void)
{
	static uint64_t rest;
	ssize_t n = read(0, mine->text + mine->len + rest, SIZE - mine->len - rest);

	if (n <= 0)
		return 0;
	for (rest += (uint64_t)n, n = (ssize_t)rest; n && mine->text[mine->len + (uint64_t)n - 1] != '\n'; n--)
		;
	rest -= (uint64_t)n;
	mine->len += (uint64_t)n;
	return 1;
}

int main(int argc, char **argv)
{
	struct xrdma_callbacks callbacks = { .accepted = accepted, .message = message, .done = done,
					     .closed = closed };
	uint64_t held;
	struct pollfd p[2] = { { .events = POLLIN }, { .fd = 0, .events = POLLIN } };

	name = argc > 1 ? argv[1] : "";
	standby = argc > 3;
	if (argc < 2 || xrdma_context_create(&ctx, argc > 2 ? argv[2] : "shm", &callbacks, NULL) ||
	    xrdma_set_option(ctx, XRDMA_OPT_DETECT_MS, 100) ||
	    xrdma_alloc_mem(ctx, sizeof(*mine), &mem, (void **)&mine) ||
	    (standby ? xrdma_connect(ctx, argv[3], &peer) : xrdma_listen(ctx, name))) {
		fprintf(stderr, "usage: log-store NAME [DEVICE [PRIMARY]]\n");
		return 1;
	}
	p[0].fd = xrdma_get_event_fd(ctx);
	for (;;) {
		if (xrdma_process_event(ctx))
			continue;
		if (standby && idle)
			look();
		held = mine->held;
		if (!standby && printed < held && held <= mine->len) {
			if (write(1, mine->text + printed, held - printed) < 0)
				return 1;
			printed = held;
		}
		/* nobody tells of what was written here, and of what is new there */
		poll(p, standby ? 1 : 2, standby || (peer && held < mine->len) ? 1 : -1);
		if (!standby && p[1].revents && !append())
			p[1].fd = -1;
	}
}
