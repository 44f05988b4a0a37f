/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Private data.  The connection manager pads it, so that its length must be said in it:
 *
 *	0  0xd7			1  version
 *	2  enum v_wire_code	3  length of what follows
 *	4  enum ibv_mtu: request: what the asking end can; answer: what both can
 *	5  0
 *	6  the program's
 *
 * All of it is the word of a stranger.
 */
#include <string.h>
#include "fabric_verbs.h"

#define WIRE_MAGIC	0xd7
#define WIRE_VERSION	1

uint8_t v_wire_put(uint8_t *to, const struct v_wire *w)
{
	to[0] = WIRE_MAGIC;
	to[1] = WIRE_VERSION;
	to[2] = w->code;
	to[3] = w->len;
	to[4] = w->mtu;
	to[5] = 0;
	if (w->len)
		memcpy(to + V_WIRE, w->data, w->len);
	return (uint8_t)(V_WIRE + w->len);
}

int v_wire_get(const void *from, size_t len, struct v_wire *w)
{
	const uint8_t *p = from;

	if (!p || len < V_WIRE || p[0] != WIRE_MAGIC || p[1] != WIRE_VERSION || p[5])
		return -EPROTO;
	w->code = p[2];
	w->len = p[3];
	w->mtu = p[4];
	w->data = p + V_WIRE;
	if (w->code < V_WIRE_DATA || w->code > V_WIRE_MEMORY || w->len > len - V_WIRE)
		return -EPROTO;
	if (w->code == V_WIRE_DATA && (w->mtu < IBV_MTU_256 || w->mtu > IBV_MTU_4096))
		return -EPROTO;
	return 0;
}
