/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is remembered of peer hosts: those that do not answer over RDMA, or whose programs do not run under xrdma, are
 * left alone for a while, which doubles each time that they do not answer again; for a short while, if they once did.
 * So are those to which the way is slower than TCP, which is not changed by that they answer.
 *
 * Pure.  One user at a time.
 */
#ifndef XR_BRIDGE_PATH_H
#define XR_BRIDGE_PATH_H

#include <stdint.h>
#include "pace.h"

#define PATH_HOSTS	256u			/* the one that was heard of longest ago makes room */
#define PATH_FIRST_NS	30000000000ull		/* a host that cannot be reached */
#define PATH_LAST_NS	3600000000000ull
#define PATH_GOOD_FIRST_NS 1000000000ull	/* one that was reached before: something has failed, and is seen to */
#define PATH_GOOD_LAST_NS 64000000000ull
#define PATH_SLOW_FIRST_NS 60000000000ull	/* a way that is slower; no time is doubled after PATH_SLOW_OLD_NS */
#define PATH_SLOW_OLD_NS (2 * PATH_LAST_NS)
#define PATH_QUIET	8u			/* connections in a row that nobody answered for */

enum path_news {
	PATH_GOOD,		/* it was reached: all else is forgotten */
	PATH_HEARD,		/* somebody calls from there */
	PATH_NOBODY,		/* it can be reached, or nobody tried: no xrdma program was there for this connection */
	PATH_UNREACHABLE,	/* no answer, or no way */
	PATH_SLOW,		/* TCP is faster */
};

struct path_host {
	uint8_t addr[16];
	uint16_t family;	/* 0: free */
	uint8_t quiet;		/* PATH_NOBODY in a row */
	uint8_t times;		/* that it was left alone */
	uint8_t good;		/* it was reached once */
	uint64_t until;		/* ns: and until when */
	uint64_t heard;
	uint64_t slow_until, slow_at;
	uint8_t slow_times;
	struct pace pace;	/* of connections that have moved */
};

struct path {
	struct path_host host[PATH_HOSTS];
};

void path_news(struct path *p, uint16_t family, const uint8_t addr[16], enum path_news news, uint64_t now);
/* ns that it is to be left alone; 0: try. */
uint64_t path_rest(const struct path *p, uint16_t family, const uint8_t addr[16], uint64_t now);
/* The same for a way that is slow alone. */
uint64_t path_slow(const struct path *p, uint16_t family, const uint8_t addr[16], uint64_t now);
/* NULL: nothing is known of that host. */
struct pace *path_pace(struct path *p, uint16_t family, const uint8_t addr[16]);
int path_was_good(const struct path *p, uint16_t family, const uint8_t addr[16]);

#endif
