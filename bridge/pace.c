/* SPDX-License-Identifier: BSD-2-Clause */
/* Round trips over RDMA against those of TCP, see pace.h. */
#include "pace.h"
#include <string.h>

void pace_begin(struct pace *p, uint64_t tcp, int moved, uint64_t now)
{
	memset(p, 0, sizeof(*p));
	p->tcp = tcp;
	p->moved = moved != 0;
	p->since = p->last = now;
}

static uint64_t pace_bound(const struct pace *p)
{
	return p->moved ? 8 * p->tcp + PACE_LATE_NS : 2 * p->tcp + PACE_SLACK_NS;
}

enum pace_says pace_add(struct pace *p, uint64_t rtt, uint64_t now)
{
	uint64_t lasted;

	if (!p->tcp || rtt <= pace_bound(p)) {
		p->n = 0;
		p->last = now;
		return PACE_FAST;
	}
	if (p->moved && now - p->last > PACE_PAUSE_NS)
		p->n = 0;
	if (!p->n) {
		p->since = now - (rtt < now ? rtt : now);
		p->least = rtt;
	}
	p->last = now;
	p->n++;
	if (rtt < p->least)
		p->least = rtt;
	lasted = now - p->since;
	if (p->moved)
		return p->n >= PACE_MANY && lasted >= PACE_LONG_NS ? PACE_SLOW : PACE_MORE;
	if ((p->n >= PACE_FEW && lasted >= PACE_SHORT_NS) || (p->n >= PACE_LEAST && lasted >= PACE_LIMIT_NS))
		return PACE_SLOW;
	return PACE_MORE;
}
