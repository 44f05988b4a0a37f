/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests and their answers: messages with a number that this end gave out. */
#include <errno.h>
#include <stdlib.h>
#include "channel.h"

static struct xr_call **rpc_bucket(struct xrdma_channel *ch, uint64_t id)
{
	return &ch->calls[id % XR_CALL_BUCKETS];
}

int xr_rpc_request(struct xrdma_channel *ch, const struct xrdma_msg *msg, xrdma_reply_fn *reply,
		   void *arg)
{
	struct xr_call *c, **b;
	int r;

	if (!reply)
		return -EINVAL;
	if (!ch->calls) {
		ch->calls = calloc(XR_CALL_BUCKETS, sizeof(*ch->calls));
		if (!ch->calls)
			return -ENOMEM;
	}
	c = malloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->id = ch->next_call;
	c->reply = reply;
	c->arg = arg;
	r = xr_channel_send(ch, msg, c->id, XR_MSG_REQUEST);
	if (r) {
		free(c);
		return r;
	}
	ch->next_call++;
	b = rpc_bucket(ch, c->id);
	c->next = *b;
	*b = c;
	return 0;
}

int xr_rpc_answer(struct xrdma_channel *ch, const struct xrdma_msg *msg)
{
	struct xr_call **pp, *c;

	if (!ch->calls)
		return -EPROTO;
	for (pp = rpc_bucket(ch, msg->id); (c = *pp); pp = &c->next) {
		if (c->id != msg->id)
			continue;
		*pp = c->next;
		c->reply(ch, msg, 0, c->arg);
		free(c);
		return 0;
	}
	return -EPROTO;
}

void xr_rpc_end(struct xrdma_channel *ch, int error)
{
	uint32_t i;

	for (i = 0; ch->calls && i < XR_CALL_BUCKETS; i++) {
		while (ch->calls[i]) {
			struct xr_call *c = ch->calls[i];

			ch->calls[i] = c->next;
			if (error)
				c->reply(ch, NULL, error, c->arg);
			free(c);
		}
	}
	free(ch->calls);
	ch->calls = NULL;
}
