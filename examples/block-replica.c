/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory that clients write blocks to and read them from: block-replica NAME [DEVICE]. */
#include <err.h>
#include <poll.h>
#include <string.h>
#include <xrdma.h>

#define SIZE (64u << 20)

static struct xrdma_mem *mem;
static void *blocks;

static void accepted(struct xrdma_channel *ch, void *arg)
{
	struct xrdma_remote grant;

	(void)arg;
	if (xrdma_grant(ch, mem, blocks, SIZE, XRDMA_GRANT_READ | XRDMA_GRANT_WRITE, &grant) ||
	    xrdma_send_msg(ch, &(struct xrdma_msg){ .data = &grant, .len = sizeof(grant) }))
		xrdma_close(ch);
}

int main(int argc, char **argv)
{
	struct xrdma_callbacks callbacks = { .accepted = accepted };
	struct xrdma_context *ctx;
	int err;

	if (argc < 2)
		errx(2, "usage: block-replica NAME [DEVICE]");
	err = xrdma_context_create(&ctx, argv[2], &callbacks, NULL);
	if (!err)
		err = xrdma_alloc_mem(ctx, SIZE, &mem, &blocks);
	if (!err)
		err = xrdma_listen(ctx, argv[1]);
	if (err)
		errx(1, "%s: %s", argv[1], strerror(-err));
	for (;;) {
		struct pollfd p = { .fd = xrdma_get_event_fd(ctx), .events = POLLIN };

		if (xrdma_process_event(ctx) == 0)
			poll(&p, 1, -1);
	}
}
