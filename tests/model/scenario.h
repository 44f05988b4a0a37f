/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef MODEL_SCENARIO_H
#define MODEL_SCENARIO_H

#include "world.h"

#define ALWAYS	255	/* an action without limit */

struct scenario {
	const char *name;
	uint8_t on_tcp;		/* begins before the upgrade, else with both directions on the ring */
	uint8_t after;		/* not 0: A has left the ring since, and so many - 1 bytes went to and fro */
	uint8_t tso;		/* stores become visible late, as x86 permits */
	uint8_t lag;		/* what TCP carries takes time */
	uint8_t hurried;	/* no time passes: the kernel socket is not looked at without a reason */
	uint8_t handover;	/* bytes that an exec cannot take along may be lost */
	uint8_t far;		/* on two hosts; begins with both directions on the fabric or, on_tcp, before */
	uint8_t fine;		/* of those: each access to memory is a point; else system calls and rings */
	uint8_t deaths;		/* so often the channel may die */
	uint8_t deep;		/* takes long */
	uint8_t left[2][ACT_COUNT];
};

extern const struct scenario scenarios[];

void scenario_start(const struct scenario *s);

#endif
