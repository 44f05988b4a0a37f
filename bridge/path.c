/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of peer hosts, see path.h. */
#include <string.h>
#include "path.h"

static int path_find(const struct path *p, uint16_t family, const uint8_t addr[16])
{
	uint32_t i;

	for (i = 0; i < PATH_HOSTS; i++)
		if (p->host[i].family == family && !memcmp(p->host[i].addr, addr, 16))
			return (int)i;
	return -1;
}

static struct path_host *path_make(struct path *p, uint16_t family, const uint8_t addr[16])
{
	struct path_host *h = &p->host[0];
	uint32_t i;

	for (i = 0; i < PATH_HOSTS && h->family; i++)
		if (!p->host[i].family || p->host[i].heard < h->heard)
			h = &p->host[i];
	memset(h, 0, sizeof(*h));
	h->family = family;
	memcpy(h->addr, addr, 16);
	return h;
}

static void path_is_slow(struct path_host *h, uint64_t now)
{
	uint64_t rest = PATH_SLOW_FIRST_NS;

	if (h->slow_until > now)
		return;
	if (!h->slow_at || now - h->slow_at > PATH_SLOW_OLD_NS)
		h->slow_times = 0;
	rest <<= h->slow_times;
	if (rest >= PATH_LAST_NS)
		rest = PATH_LAST_NS;
	else
		h->slow_times++;
	h->slow_at = now;
	h->slow_until = now + rest;
}

void path_news(struct path *p, uint16_t family, const uint8_t addr[16], enum path_news news, uint64_t now)
{
	int i = path_find(p, family, addr);
	uint64_t rest, last;
	struct path_host *h;

	if (news == PATH_HEARD) {
		if (i >= 0)
			p->host[i].until = 0;
		return;
	}
	h = i >= 0 ? &p->host[i] : path_make(p, family, addr);
	h->heard = now;
	if (news == PATH_SLOW) {
		path_is_slow(h, now);
		return;
	}
	if (news == PATH_GOOD) {
		h->good = 1;
		h->quiet = h->times = 0;
		h->until = 0;
		return;
	}
	rest = h->good ? PATH_GOOD_FIRST_NS : PATH_FIRST_NS;
	last = h->good ? PATH_GOOD_LAST_NS : PATH_LAST_NS;
	/* several connections may have found out the same thing at the same time */
	if (h->until > now)
		return;
	if (news == PATH_NOBODY && ++h->quiet < PATH_QUIET)
		return;
	h->quiet = PATH_QUIET - 1;	/* after that, once is enough */
	rest <<= h->times;
	if (rest >= last)
		rest = last;
	else
		h->times++;
	h->until = now + rest;
}

uint64_t path_rest(const struct path *p, uint16_t family, const uint8_t addr[16], uint64_t now)
{
	int i = path_find(p, family, addr);

	return i >= 0 && p->host[i].until > now ? p->host[i].until - now : 0;
}

uint64_t path_slow(const struct path *p, uint16_t family, const uint8_t addr[16], uint64_t now)
{
	int i = path_find(p, family, addr);

	return i >= 0 && p->host[i].slow_until > now ? p->host[i].slow_until - now : 0;
}

struct pace *path_pace(struct path *p, uint16_t family, const uint8_t addr[16])
{
	int i = path_find(p, family, addr);

	return i >= 0 ? &p->host[i].pace : NULL;
}

int path_was_good(const struct path *p, uint16_t family, const uint8_t addr[16])
{
	int i = path_find(p, family, addr);

	return i >= 0 && p->host[i].good;
}
