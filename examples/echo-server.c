/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends every message back: echo-server NAME [DEVICE]; over a network: echo-server 10.9.0.1:7000 verbs. */
#include <poll.h>
#include <xrdma.h>

static void message(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg)
{
	(void)arg;
	xrdma_send_msg(ch, msg);
}

int main(int argc, char **argv)
{
	struct xrdma_callbacks callbacks = { .message = message };
	struct xrdma_context *ctx;

	if (argc < 2 || xrdma_context_create(&ctx, argv[2], &callbacks, NULL) || xrdma_listen(ctx, argv[1]))
		return 1;
	for (;;) {
		struct pollfd p = { .fd = xrdma_get_event_fd(ctx), .events = POLLIN };

		if (xrdma_process_event(ctx) == 0)
			poll(&p, 1, -1);
	}
}
