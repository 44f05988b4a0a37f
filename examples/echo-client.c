/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends one text and prints what comes back: echo-client NAME TEXT [DEVICE]. */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <xrdma.h>

static void connected(struct xrdma_channel *ch, void *text)
{
	xrdma_send_msg(ch, &(struct xrdma_msg){ .data = text, .len = strlen(text) });
}

static void message(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *text)
{
	printf("%.*s\n", (int)msg->len, (const char *)msg->data);
	*(char *)text = 0;
	xrdma_close(ch);
}

static void closed(struct xrdma_channel *ch, int error, void *text)
{
	(void)ch, (void)text;
	errx(1, "%s", strerror(-error));
}

int main(int argc, char **argv)
{
	struct xrdma_callbacks callbacks = { .connected = connected, .message = message, .closed = closed };
	struct xrdma_context *ctx;
	struct xrdma_channel *ch;

	if (argc < 3 || xrdma_context_create(&ctx, argv[3], &callbacks, argv[2]) || xrdma_connect(ctx, argv[1], &ch))
		errx(1, "usage: echo-client NAME TEXT [DEVICE]");
	while (*argv[2])
		xrdma_polling(ctx);
	return xrdma_context_destroy(ctx);
}
