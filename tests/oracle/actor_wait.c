/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that wait. */
#include "actor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

/* An answer before its time, or long after, is told apart from one in time. */
static void res_time(struct res *r, uint64_t begun, int timeout, long ret)
{
	uint64_t took = now_us() - begun;

	if (!ret && timeout > 0)
		res_extra(r, took + 1000 < (uint64_t)timeout * 1000 ? -1 : 0);
}

long do_poll(const struct op *o, struct res *r)
{
	int call = o->arg[0], ms = o->arg[3], i, n = 0, e;
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };
	struct pollfd p[SLOTS];
	uint64_t begun;
	long ret;

	for (i = 0; i < SLOTS; i++)
		if (o->arg[1] >> i & 1)
			p[n++] = (struct pollfd){ .fd = a.fd[i], .events = (short)o->arg[2] };
	begun = now_us();
	ret = call ? ppoll(p, (nfds_t)n, &ts, NULL) : poll(p, (nfds_t)n, ms);
	e = errno;
	res_time(r, begun, ms, ret);
	for (i = 0; i < n && ret >= 0; i++)
		res_extra(r, (unsigned short)p[i].revents);
	errno = e;
	return ret;
}

long do_select(const struct op *o, struct res *r)
{
	int call = o->arg[0], ms = o->arg[4], i, j, max = -1, e;
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };
	struct timeval tv = { ms / 1000, ms % 1000 * 1000L };
	uint64_t begun = now_us();
	fd_set set[3];
	long ret;

	for (j = 0; j < 3; j++) {
		FD_ZERO(&set[j]);
		for (i = 0; i < SLOTS; i++)
			if (o->arg[1 + j] >> i & 1 && a.fd[i] >= 0) {
				FD_SET(a.fd[i], &set[j]);
				max = a.fd[i] > max ? a.fd[i] : max;
			}
	}
	ret = call ? pselect(max + 1, &set[0], &set[1], &set[2], &ts, NULL) :
		     select(max + 1, &set[0], &set[1], &set[2], &tv);
	e = errno;
	res_time(r, begun, ms, ret);
	for (j = 0; j < 3 && ret >= 0; j++) {
		int bits = 0;

		for (i = 0; i < SLOTS; i++)
			if (a.fd[i] >= 0 && FD_ISSET(a.fd[i], &set[j]))
				bits |= 1 << i;
		res_extra(r, bits);
	}
	if (!call && ret >= 0 && !ms)
		res_extra(r, tv.tv_sec * 1000000 + tv.tv_usec);
	errno = e;
	return ret;
}

static int ep_of(int ep)
{
	return ep >= 0 && ep < EPS ? a.ep[ep] : -1;
}

#define EP_TAG	0x51a70000u

long do_epctl(const struct op *o, struct res *r)
{
	static const int ops[] = { EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL };
	struct epoll_event ev = { .events = (uint32_t)o->arg[3],
				  .data.u64 = EP_TAG + (uint32_t)o->arg[2] };
	int slot = o->arg[2];

	(void)r;
	return epoll_ctl(ep_of(o->arg[0]), ops[o->arg[1] % 3],
			 slot >= 0 && slot < SLOTS ? a.fd[slot] : -1, &ev);
}

/* Another set as a member; level-triggered. */
long do_epnest(const struct op *o)
{
	static const int ops[] = { EPOLL_CTL_ADD, EPOLL_CTL_DEL };
	struct epoll_event ev = { .events = EPOLLIN,
				  .data.u64 = EP_TAG + EP_NESTED + (uint32_t)o->arg[2] };

	a.nests |= 1u << (o->arg[0] & 31);
	return epoll_ctl(ep_of(o->arg[0]), ops[o->arg[1] % 2], ep_of(o->arg[2]), &ev);
}

static int by_tag(const void *x, const void *y)
{
	const struct epoll_event *p = x, *q = y;
	uint64_t u = p->data.u64, v = q->data.u64;

	if (u != v)
		return u < v ? -1 : 1;
	return p->events < q->events ? -1 : p->events > q->events;
}

long do_epwait(const struct op *o, struct res *r)
{
	struct epoll_event ev[EXTRA];
	int ep = ep_of(o->arg[0]), max = o->arg[2], ms = o->arg[3], e;
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };
	uint64_t begun = now_us();
	long ret, i;

	/* a set that is shown as readable in vain must not take the place of what comes after it */
	if (max > EXTRA - 1 || (max > 0 && a.nests >> (o->arg[0] & 31) & 1))
		max = EXTRA - 1;
	ret = o->arg[1] == 2 ? epoll_pwait2(ep, ev, max, &ts, NULL) :
	      o->arg[1] == 1 ? epoll_pwait(ep, ev, max, ms, NULL) : epoll_wait(ep, ev, max, ms);
	e = errno;
	res_time(r, begun, ms, ret);
	if (ret > 0) {
		qsort(ev, (size_t)ret, sizeof(ev[0]), by_tag);
		for (i = 0; i < ret; i++)
			res_extra(r, (int64_t)((ev[i].data.u64 << 32) | ev[i].events));
	}
	errno = e;
	return ret;
}
