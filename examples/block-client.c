/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes blocks to three replicas and reads them back: block-client BYTES BLOCKS DEVICE NAME NAME NAME. A block is
 * written when all replicas that are left have it, two at least: the WRITE of each was acknowledged by its device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xrdma.h>

#define SIZE (64u << 20)	/* of a replica */
#define COPIES 3

static struct replica {
	struct xrdma_channel *ch;	/* NULL: lost */
	struct xrdma_remote where;
	uint64_t done;
} replica[COPIES];

static void message(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg)
{
	struct replica *r = xrdma_get_user(ch);

	(void)arg;
	if (msg->len == sizeof(r->where))
		memcpy(&r->where, msg->data, sizeof(r->where));
}

static void done(struct xrdma_channel *ch, uint64_t id, void *arg)
{
	(void)arg;
	((struct replica *)xrdma_get_user(ch))->done = id;
}

static void closed(struct xrdma_channel *ch, int error, void *arg)
{
	struct replica *r = xrdma_get_user(ch);

	(void)arg;
	fprintf(stderr, "block-client: replica %d is lost: %s\n", (int)(r - replica), strerror(-error));
	r->ch = NULL;
}

/* Until all that are left have done this one. */
static void wait_all(struct xrdma_context *ctx, uint64_t id)
{
	int i, left, behind;

	do {
		xrdma_polling(ctx);
		for (i = left = behind = 0; i < COPIES; i++) {
			left += replica[i].ch != NULL;
			behind += replica[i].ch && (id ? replica[i].done != id : !replica[i].where.len);
		}
		if (left < 2) {
			fprintf(stderr, "block-client: too few replicas\n");
			exit(1);
		}
	} while (behind);
}

/* Every byte says which block it is of, and where in it. */
static void fill(uint8_t *to, size_t len, uint64_t block)
{
	size_t i;

	for (i = 0; i < len; i++)
		to[i] = (uint8_t)((block * 2654435761u + i * 40503u) >> 7);
}

int main(int argc, char **argv)
{
	struct xrdma_callbacks callbacks = { .message = message, .done = done, .closed = closed };
	size_t len = argc == 4 + COPIES ? strtoul(argv[1], NULL, 0) : 0;
	uint64_t n, count = len ? strtoul(argv[2], NULL, 0) : 0, id = 0;
	struct xrdma_context *ctx;
	struct xrdma_mem *mem;
	void *at;
	int i;

	if (!len || len > SIZE || xrdma_context_create(&ctx, argv[3], &callbacks, NULL) ||
	    xrdma_alloc_mem(ctx, 2 * len, &mem, &at)) {
		fprintf(stderr, "usage: block-client BYTES BLOCKS DEVICE NAME NAME NAME\n");
		return 1;
	}
	for (i = 0; i < COPIES; i++) {
		if (xrdma_connect(ctx, argv[4 + i], &replica[i].ch))
			return 1;
		xrdma_set_user(replica[i].ch, &replica[i]);
	}
	wait_all(ctx, 0);
	for (n = 0; n < count; n++) {
		uint64_t offset = n % (SIZE / len) * len;

		fill(at, len, n);
		for (id++, i = 0; i < COPIES; i++)
			if (replica[i].ch)
				xrdma_write(replica[i].ch, mem, at, len, &replica[i].where, offset, id);
		wait_all(ctx, id);
		for (i = 0; i < COPIES; i++) {
			uint8_t *back = (uint8_t *)at + len;

			memset(back, 0, len);
			replica[i].done = 0;
			if (!replica[i].ch ||
			    xrdma_read(replica[i].ch, mem, back, len, &replica[i].where, offset, id + 1))
				continue;
			while (replica[i].ch && replica[i].done != id + 1)
				xrdma_polling(ctx);
			if (replica[i].ch && memcmp(at, back, len)) {
				fprintf(stderr, "block-client: replica %d has another block\n", i);
				return 1;
			}
		}
		id++;
		if (n % 64 == 0) {
			printf("%lu\n", (unsigned long)n);
			fflush(stdout);
		}
	}
	for (i = n = 0; i < COPIES; i++)
		n += replica[i].ch != NULL;
	printf("%lu blocks of %zu bytes on %lu replicas\n", (unsigned long)count, len, (unsigned long)n);
	return xrdma_context_destroy(ctx);
}
