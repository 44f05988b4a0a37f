/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The proof, see proof_msg.h.  A message, in network order:
 *
 *	0  magic	4  version	5  type		6  flags	7  0
 *	8  reason	10  0		12  queue pair
 *	16  nonce	32  address of the device
 *	48  4 or 6	50  local port	52  peer's port	54  0
 *	56  local address		72  peer's address	88  0
 *	92  tag
 */
#include <errno.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include "proof_msg.h"

#define PROOF_MAGIC	0x58525046u	/* "XRPF" */

static void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)v);
}

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

void proof_put(uint8_t to[PROOF_LEN], const struct proof *p)
{
	memset(to, 0, PROOF_LEN);
	put32(to, PROOF_MAGIC);
	to[4] = PROOF_VERSION;
	to[5] = p->type;
	to[6] = p->flags;
	put16(to + 8, p->reason);
	put32(to + 12, p->qpn);
	memcpy(to + 16, p->nonce, 16);
	memcpy(to + 32, p->gid, 16);
	put16(to + 48, p->tuple.family == AF_INET6 ? 6 : 4);
	/* ports of a tuple are in network order already */
	memcpy(to + 50, &p->tuple.lport, 2);
	memcpy(to + 52, &p->tuple.pport, 2);
	memcpy(to + 56, p->tuple.local, 16);
	memcpy(to + 72, p->tuple.peer, 16);
}

int proof_get(const void *from, size_t len, struct proof *p)
{
	static const uint8_t none[12];
	const uint8_t *b = from;
	uint16_t family;

	if (len < 8 || get32(b) != PROOF_MAGIC)
		return -EBADMSG;
	if (b[4] != PROOF_VERSION)
		return -EPROTONOSUPPORT;
	if (len != PROOF_LEN || b[5] < PROOF_CALL || b[5] > PROOF_REFUSE || (b[6] & ~PROOF_KEYED) || b[7] ||
	    get16(b + 10) || get16(b + 54) || get32(b + 88) || (b[5] != PROOF_REFUSE && get16(b + 8)))
		return -EBADMSG;
	family = get16(b + 48);
	if (family != 4 && family != 6)
		return -EBADMSG;
	/* what an IPv4 address does not fill would be a second form of the same tuple */
	if (family == 4 && (memcmp(b + 60, none, 12) || memcmp(b + 76, none, 12)))
		return -EBADMSG;
	memset(p, 0, sizeof(*p));
	p->type = b[5];
	p->flags = b[6];
	p->reason = get16(b + 8);
	p->qpn = get32(b + 12);
	memcpy(p->nonce, b + 16, 16);
	memcpy(p->gid, b + 32, 16);
	p->tuple.family = family == 6 ? AF_INET6 : AF_INET;
	memcpy(&p->tuple.lport, b + 50, 2);
	memcpy(&p->tuple.pport, b + 52, 2);
	memcpy(p->tuple.local, b + 56, 16);
	memcpy(p->tuple.peer, b + 72, 16);
	return 0;
}

/* Over what `msg` is to be the next of, which ends with the text of `msg` itself, if there is one. */
static void proof_hmac(const struct proof_talk *t, const char *what, const uint8_t *msg, uint8_t out[PROOF_TAG])
{
	struct hmac_sha256_ctx h;

	hmac_sha256_set_key(&h, XR_KEY_LEN, t->key);
	/* with its 0: no label is the beginning of another */
	hmac_sha256_update(&h, strlen(what) + 1, (const uint8_t *)what);
	hmac_sha256_update(&h, t->n * (size_t)PROOF_LEN, t->said[0]);
	if (msg)
		hmac_sha256_update(&h, PROOF_TEXT, msg);
	hmac_sha256_digest(&h, PROOF_TAG, out);
	explicit_bzero(&h, sizeof(h));
}

static const char *const label[3] = { "xrdma call", "xrdma answer", "xrdma confirm" };

void proof_begin(struct proof_talk *t, const uint8_t key[XR_KEY_LEN])
{
	memset(t, 0, sizeof(*t));
	memcpy(t->key, key, XR_KEY_LEN);
}

void proof_say(struct proof_talk *t, uint8_t msg[PROOF_LEN])
{
	if (t->n == 3)
		return;
	proof_hmac(t, label[t->n], msg, msg + PROOF_TEXT);
	memcpy(t->said[t->n++], msg, PROOF_LEN);
}

int proof_hear(struct proof_talk *t, const uint8_t msg[PROOF_LEN])
{
	uint8_t tag[PROOF_TAG];

	if (t->n == 3)
		return -EACCES;
	proof_hmac(t, label[t->n], msg, tag);
	/* in constant time: the time that it takes tells nothing about the tag */
	if (!memeql_sec(tag, msg + PROOF_TEXT, PROOF_TAG))
		return -EACCES;
	memcpy(t->said[t->n++], msg, PROOF_LEN);
	return 0;
}

void proof_secret(const struct proof_talk *t, uint8_t secret[PROOF_SECRET])
{
	proof_hmac(t, "xrdma frames", NULL, secret);
}

void proof_end(struct proof_talk *t)
{
	explicit_bzero(t, sizeof(*t));
}
