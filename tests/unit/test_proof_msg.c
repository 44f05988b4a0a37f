/* SPDX-License-Identifier: BSD-2-Clause */
/* The proof of two ends: its messages, and what they prove. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include "bridge/proof_msg.h"

static const uint8_t key[XR_KEY_LEN] = { 1, 2, 3 }, other_key[XR_KEY_LEN] = { 1, 2, 4 };

static struct proof sample(enum proof_type type)
{
	struct proof p = { .type = (uint8_t)type, .flags = PROOF_KEYED, .qpn = 0x123456 };
	size_t i;

	for (i = 0; i < 16; i++) {
		p.nonce[i] = (uint8_t)(i + 100 * type);
		p.gid[i] = (uint8_t)(i + 50);
	}
	p.tuple.family = AF_INET;
	p.tuple.lport = htons(40000);
	p.tuple.pport = htons(80);
	inet_pton(AF_INET, "10.0.0.1", p.tuple.local);
	inet_pton(AF_INET, "10.0.0.2", p.tuple.peer);
	return p;
}

static void text(void **state)
{
	uint8_t msg[PROOF_LEN + 1], bad[PROOF_LEN + 1];
	struct proof p = sample(PROOF_CALL), q;
	size_t i;
	int v;

	(void)state;
	memset(msg, 0, sizeof(msg));
	proof_put(msg, &p);
	assert_int_equal(proof_get(msg, PROOF_LEN, &q), 0);
	assert_memory_equal(&p, &q, sizeof(p));
	assert_int_equal(proof_get(msg, PROOF_LEN + 1, &q), -EBADMSG);
	for (i = 0; i < PROOF_LEN; i++)
		assert_int_equal(proof_get(msg, i, &q), -EBADMSG);
	/* every value of every byte: either refused, or the one form of what it means */
	for (i = 0; i < PROOF_LEN; i++) {
		for (v = 0; v < 256; v++) {
			memcpy(bad, msg, PROOF_LEN);
			bad[i] = (uint8_t)v;
			if (proof_get(bad, PROOF_LEN, &q)) {
				assert_true(v != msg[i]);
				continue;
			}
			memset(bad + PROOF_TEXT, 0, PROOF_TAG);
			{
				uint8_t again[PROOF_LEN];

				proof_put(again, &q);
				assert_memory_equal(again, bad, PROOF_LEN);
			}
		}
	}
	msg[4] = PROOF_VERSION + 1;
	assert_int_equal(proof_get(msg, PROOF_LEN, &q), -EPROTONOSUPPORT);
	/* a later version may be of any length */
	assert_int_equal(proof_get(msg, 20, &q), -EPROTONOSUPPORT);
	p = sample(PROOF_REFUSE);
	p.reason = 999;
	p.tuple.family = AF_INET6;
	memset(p.tuple.local, 0xfd, 16);
	proof_put(msg, &p);
	assert_int_equal(proof_get(msg, PROOF_LEN, &q), 0);
	assert_memory_equal(&p, &q, sizeof(p));
}

/* Lets a and b speak in turns, from the first message to message n. */
static void talk(struct proof_talk *a, struct proof_talk *b, uint32_t n, uint8_t said[3][PROOF_LEN])
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct proof p = sample((enum proof_type)(PROOF_CALL + i));

		proof_put(said[i], &p);
		proof_say(i & 1 ? b : a, said[i]);
		assert_int_equal(proof_hear(i & 1 ? a : b, said[i]), 0);
	}
}

static void agreed(void **state)
{
	uint8_t said[3][PROOF_LEN], sa[PROOF_SECRET], sb[PROOF_SECRET], msg[PROOF_LEN];
	struct proof_talk a, b;

	(void)state;
	proof_begin(&a, key);
	proof_begin(&b, key);
	talk(&a, &b, 3, said);
	proof_secret(&a, sa);
	proof_secret(&b, sb);
	assert_memory_equal(sa, sb, PROOF_SECRET);
	/* there is no fourth */
	memcpy(msg, said[2], PROOF_LEN);
	assert_int_equal(proof_hear(&a, msg), -EACCES);
	/* of other nonces, other secrets */
	proof_begin(&a, key);
	proof_begin(&b, key);
	talk(&a, &b, 2, said);
	said[2][20] ^= 1;
	proof_say(&a, said[2]);
	assert_int_equal(proof_hear(&b, said[2]), 0);
	proof_secret(&b, sb);
	assert_memory_not_equal(sa, sb, PROOF_SECRET);
	proof_end(&a);
	assert_int_equal(a.n, 0);
}

/* Not one bit of a message can be another, and each counts in its place alone. */
static void refused(void **state)
{
	uint8_t said[3][PROOF_LEN], bad[PROOF_LEN];
	struct proof_talk a, b;
	uint32_t turn, i;

	(void)state;
	for (turn = 0; turn < 3; turn++) {
		struct proof p = sample((enum proof_type)(PROOF_CALL + turn));
		struct proof_talk *hears = turn & 1 ? &a : &b;

		proof_begin(&a, key);
		proof_begin(&b, key);
		talk(&a, &b, turn, said);
		proof_put(said[turn], &p);
		proof_say(turn & 1 ? &b : &a, said[turn]);
		for (i = 0; i < PROOF_LEN * 8; i++) {
			memcpy(bad, said[turn], PROOF_LEN);
			bad[i / 8] ^= (uint8_t)(1u << (i % 8));
			assert_int_equal(proof_hear(hears, bad), -EACCES);
		}
		/* what was said before, sent back */
		for (i = 0; i < turn; i++)
			assert_int_equal(proof_hear(hears, said[i]), -EACCES);
		assert_int_equal(proof_hear(hears, said[turn]), 0);
		assert_int_equal(proof_hear(hears, said[turn]), -EACCES);
	}
	/* another key */
	proof_begin(&a, key);
	proof_begin(&b, other_key);
	memcpy(bad, said[0], PROOF_LEN);
	proof_say(&a, bad);
	assert_int_equal(proof_hear(&b, bad), -EACCES);
	/* a call that was recorded is taken, but the confirmation that was is not: the answer in between is fresh */
	proof_begin(&b, key);
	assert_int_equal(proof_hear(&b, said[0]), 0);
	memcpy(bad, said[1], PROOF_LEN);
	bad[16] ^= 1;
	proof_say(&b, bad);
	assert_int_equal(proof_hear(&b, said[2]), -EACCES);
}

/* What another implementation of HMAC-SHA256 (Python's) says of the first message. */
static void vector(void **state)
{
	static const uint8_t want[PROOF_TAG] = {
		0xe2, 0x33, 0xe0, 0x9f, 0xe6, 0xcd, 0x8e, 0xda, 0x08, 0xf2, 0x9b, 0x01,
		0x59, 0x24, 0xf8, 0x8a, 0x5c, 0x1e, 0x7f, 0xf5, 0x74, 0x78, 0x74, 0x18,
		0xad, 0xb6, 0xb3, 0x3d, 0x7e, 0xc9, 0x91, 0x1a };
	struct proof p = sample(PROOF_CALL);
	uint8_t msg[PROOF_LEN];
	struct proof_talk t;

	(void)state;
	proof_begin(&t, key);
	proof_put(msg, &p);
	proof_say(&t, msg);
	assert_memory_equal(msg + PROOF_TEXT, want, PROOF_TAG);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(text),
		cmocka_unit_test(agreed),
		cmocka_unit_test(refused),
		cmocka_unit_test(vector),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
