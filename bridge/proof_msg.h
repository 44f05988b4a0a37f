/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How the two ends of a connection prove themselves to each other before a byte of it moves: three messages over
 * the channel that is to carry it, between the end that connected ("host": it listens) and the one that accepted
 * ("caller").
 *
 *	caller				host
 *	CALL    nonce, tag
 *					ANSWER  nonce, tag	(or REFUSE)
 *	CONFIRM tag
 *
 * Each says which TCP connection is meant, as its sender sees it, and by which queue pair and address of the device it
 * speaks; its tag is HMAC-SHA256 under the key of the cluster over its own text and all messages before it, so neither
 * can be replayed, turned round, or taken to another connection.  Where the network is trusted instead
 * of a key, the key is zeros and the tags prove nothing.
 *
 * Private data of connection management is too small for that (a request has 56 bytes, of which the
 * channel takes 46), so a stranger gets as far as a channel; meet.c bounds how many and how long.
 *
 * Pure, but for the arithmetic of libnettle, which has no state either.
 */
#ifndef XR_BRIDGE_PROOF_MSG_H
#define XR_BRIDGE_PROOF_MSG_H

#include <stddef.h>
#include <stdint.h>
#include "key.h"
#include "proof.h"

#define PROOF_VERSION	1u
#define PROOF_LEN	124u
#define PROOF_TAG	32u
#define PROOF_TEXT	(PROOF_LEN - PROOF_TAG)	/* what the tag of a message is of, beside those before it */

enum proof_type { PROOF_CALL = 1, PROOF_ANSWER, PROOF_CONFIRM, PROOF_REFUSE };

#define PROOF_KEYED	1u	/* the tag is under a key */

struct proof {
	uint8_t type;			/* enum proof_type */
	uint8_t flags;
	uint16_t reason;		/* REFUSE: enum xr_reason; any number may come */
	uint32_t qpn;			/* of the sender */
	uint8_t gid[16];
	uint8_t nonce[16];
	struct xr_tuple tuple;		/* as the sender sees it */
};

/* Writes the message, with a tag of zeros. */
void proof_put(uint8_t to[PROOF_LEN], const struct proof *p);
/* 0; -EPROTONOSUPPORT: another version; -EBADMSG.  The tag is another matter. */
int proof_get(const void *from, size_t len, struct proof *p);

/* Messages so far, as they were sent. */
struct proof_talk {
	uint8_t key[XR_KEY_LEN];
	uint8_t said[3][PROOF_LEN];
	uint32_t n;
};

void proof_begin(struct proof_talk *t, const uint8_t key[XR_KEY_LEN]);
/* Our next message: gets its tag, and is noted. */
void proof_say(struct proof_talk *t, uint8_t msg[PROOF_LEN]);
/* The peer's next: 0 and noted; -EACCES: its tag is not what it would be with our key and all that was said. */
int proof_hear(struct proof_talk *t, const uint8_t msg[PROOF_LEN]);
/* After the third message: what both know now and nobody else does. */
#define PROOF_SECRET	32u
void proof_secret(const struct proof_talk *t, uint8_t secret[PROOF_SECRET]);
void proof_end(struct proof_talk *t);

#endif
