/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends every message back: echo-server NAME [DEVICE]; over a network: echo-server 10.9.0.1:7000 verbs. */
#include <err.h>
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
	struct pollfd p = { .events = POLLIN };
	struct xrdma_context *ctx;

	if (argc < 2 || xrdma_context_create(&ctx, argv[2], &callbacks, NULL) || xrdma_listen(ctx, argv[1]))
		errx(1, "usage: echo-server NAME [DEVICE]");
	p.fd = xrdma_get_event_fd(ctx);
	while (xrdma_process_event(ctx) || poll(&p, 1, -1)) /* it sleeps when there was nothing to do, and never ends */
		;
}
