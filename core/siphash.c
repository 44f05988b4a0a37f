/* SPDX-License-Identifier: BSD-2-Clause */
/* SipHash-2-4 (Aumasson, Bernstein 2012): a keyed 64-bit tag for short messages. */
#include <string.h>
#include "shm_link.h"

#define ROTL(x, b)	(((x) << (b)) | ((x) >> (64 - (b))))

static void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = ROTL(v[1], 13) ^ v[0];
	v[0] = ROTL(v[0], 32);
	v[2] += v[3];
	v[3] = ROTL(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = ROTL(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = ROTL(v[1], 17) ^ v[2];
	v[2] = ROTL(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t m)
{
	v[3] ^= m;
	sip_round(v);
	sip_round(v);
	v[0] ^= m;
}

uint64_t xr_siphash(const uint64_t key[2], const void *msg, size_t len)
{
	uint64_t v[4] = {
		key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull,
		key[0] ^ 0x6c7967656e657261ull, key[1] ^ 0x7465646279746573ull,
	};
	const uint8_t *p = msg;
	uint64_t m, last = (uint64_t)len << 56;
	size_t i;

	for (; len >= 8; len -= 8, p += 8) {
		memcpy(&m, p, 8);
		sip_word(v, m);
	}
	for (i = 0; i < len; i++)
		last |= (uint64_t)p[i] << (8 * i);
	sip_word(v, last);
	v[2] ^= 0xff;
	for (i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
