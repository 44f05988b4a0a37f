/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is a way over RDMA slower than TCP is between the same two hosts?
 *
 * What is compared is round trips: of TCP, the least one that the kernel has seen of the connection
 * (tcpi_min_rtt), which takes no program to answer; of RDMA, a WRITE of no bytes, which the device of the peer answers
 * by itself.
 *
 * A busy machine, a queue in the network and a lost packet make a round trip longer, and nothing makes it shorter
 * than the way is: one that is short enough says that the way is, and it takes many in a row, over a time in
 * which whoever was busy has had its turns, none of them short, to say that it is not.
 *
 *	before a connection moves	PACE_FEW over PACE_SHORT_NS: beyond twice what TCP takes and PACE_SLACK_NS
 *	afterwards			PACE_MANY over PACE_LONG_NS, at moments when the connection has nothing
 *					under way: beyond eight times what TCP takes and PACE_LATE_NS.  TCP was
 *					measured before the load of now, which it would share.
 *
 * Pure.
 */
#ifndef XR_BRIDGE_PACE_H
#define XR_BRIDGE_PACE_H

#include <stdint.h>

#define PACE_SLACK_NS	250000ull	/* less than that is not worth a decision */
#define PACE_LATE_NS	5000000ull
#define PACE_FEW	16u
#define PACE_LEAST	4u		/* of a way so long that more take too much time */
#define PACE_MANY	32u
#define PACE_SHORT_NS	200000000ull
#define PACE_LIMIT_NS	1000000000ull	/* within which PACE_LEAST do */
#define PACE_LONG_NS	5000000000ull
#define PACE_PAUSE_NS	20000000000ull	/* between two of a connection that has moved: those before are forgotten */

enum pace_says { PACE_MORE, PACE_FAST, PACE_SLOW };

struct pace {
	uint64_t tcp;		/* ns; 0: not known, all is fast */
	uint64_t since;		/* ns: the first of the n that were slow, one after the other */
	uint64_t last;
	uint64_t least;		/* of them */
	uint32_t n;
	uint32_t moved;
};

/* moved: the connection is on RDMA. */
void pace_begin(struct pace *p, uint64_t tcp, int moved, uint64_t now);
/* A round trip, which began at now - rtt. */
enum pace_says pace_add(struct pace *p, uint64_t rtt, uint64_t now);

#endif
