/* SPDX-License-Identifier: BSD-2-Clause */
/* select(2) as poll: sets of any size, as the kernel takes them. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "fdtab.h"
#include "mem.h"
#include "pollset.h"
#include "ready.h"
#include "user.h"
#include "waiter.h"

#define SELECT_SMALL	32
#define WORD_BITS	(8 * (int)sizeof(unsigned long))
#define SELECT_WORDS	16	/* of a set for which the stack will do: FD_SETSIZE */

/* Results that put a descriptor into the read, write and exception set. */
static const uint32_t select_answer[3] = {
	POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR,
	POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR,
	POLLPRI,
};

/* What to poll for on behalf of each. */
static const short select_ask[3] = {
	POLLIN | POLLRDNORM | POLLRDBAND,
	POLLOUT | POLLWRNORM | POLLWRBAND,
	POLLPRI,
};

/* Copies of the program's sets. */
struct select_sets {
	unsigned long *set[3];
	unsigned long *user[3];
	int n;
	size_t words;		/* of each */
};

static int sets_get(struct select_sets *s, unsigned long *room)
{
	int i;

	for (i = 0; i < 3; i++) {
		s->set[i] = s->user[i] ? room + (size_t)i * s->words : NULL;
		if (s->user[i] && xr_user_get(s->set[i], s->user[i], s->words * sizeof(long)))
			return -EFAULT;
	}
	return 0;
}

static int sets_put(const struct select_sets *s)
{
	int i;

	for (i = 0; i < 3; i++)
		if (s->user[i] && xr_user_put(s->user[i], s->set[i], s->words * sizeof(long)))
			return -EFAULT;
	return 0;
}

static unsigned long select_word(const struct select_sets *s, int which, int word)
{
	unsigned long bits = s->set[which] ? s->set[which][word] : 0;
	int left = s->n - word * WORD_BITS;

	/* bits beyond n are not looked at */
	return left < WORD_BITS ? bits & ((1ul << left) - 1) : bits;
}

static int select_count(const struct select_sets *s)
{
	int word, n = 0;

	for (word = 0; word * WORD_BITS < s->n; word++)
		n += __builtin_popcountl(select_word(s, 0, word) | select_word(s, 1, word) |
					 select_word(s, 2, word));
	return n;
}

static void select_fill(const struct select_sets *s, struct pollfd *p)
{
	int word, i;

	for (word = 0; word * WORD_BITS < s->n; word++) {
		unsigned long in[3], all;

		for (i = 0; i < 3; i++)
			in[i] = select_word(s, i, word);
		for (all = in[0] | in[1] | in[2]; all; all &= all - 1, p++) {
			int bit = __builtin_ctzl(all);

			p->fd = word * WORD_BITS + bit;
			p->events = 0;
			p->revents = 0;
			for (i = 0; i < 3; i++)
				if (in[i] >> bit & 1)
					p->events |= select_ask[i];
		}
	}
}

/* The sets hold the answer; returns the number of bits in them. */
static int select_answers(const struct select_sets *s, const struct pollfd *p, int n)
{
	int i, j, bits = 0;

	for (j = 0; j < 3; j++)
		if (s->set[j])
			memset(s->set[j], 0, s->words * sizeof(long));
	for (i = 0; i < n; i++)
		for (j = 0; j < 3; j++)
			if ((p[i].events & select_ask[j]) &&
			    ((uint32_t)(unsigned short)p[i].revents & select_answer[j])) {
				s->set[j][p[i].fd / WORD_BITS] |= 1ul << (p[i].fd % WORD_BITS);
				bits++;
			}
	return bits;
}

static int select_run(const struct select_sets *s, struct xr_poll_args *a)
{
	struct pollfd small[SELECT_SMALL], *p = small;
	int count = select_count(s), i, ret;
	size_t len = 0;

	if (count > SELECT_SMALL) {
		/* not the thread's scratch memory: the poll below wants that */
		len = (size_t)count * sizeof(*p);
		p = xr_map_private(len);
		if (!p)
			return -ENOMEM;
	}
	select_fill(s, p);
	a->fds = p;
	a->n = (nfds_t)count;
	ret = xr_poll_wait(a);
	for (i = 0; ret > 0 && i < count; i++)
		if (p[i].revents & POLLNVAL)
			ret = -EBADF;
	if (ret >= 0)
		ret = select_answers(s, p, count);
	if (len)
		xr_unmap(p, len);
	return ret;
}

int xr_select(int n, fd_set *r, fd_set *w, fd_set *e, uint64_t deadline, int has_deadline,
	      const sigset_t *sigmask)
{
	struct select_sets s = { .user = { (unsigned long *)(void *)r, (unsigned long *)(void *)w,
					   (unsigned long *)(void *)e }, .n = n };
	struct xr_poll_args a = { .deadline = deadline, .has_deadline = has_deadline,
				  .sigmask = sigmask, .select = 1 };
	unsigned long small[3 * SELECT_WORDS], *room = small;
	int ret;

	if (n < 0)
		return -EINVAL;
	s.words = ((size_t)n + WORD_BITS - 1) / WORD_BITS;
	if (s.words > SELECT_WORDS) {
		room = xr_map_private(3 * s.words * sizeof(long));
		if (!room)
			return -ENOMEM;
	}
	ret = sets_get(&s, room);
	if (!ret)
		ret = select_run(&s, &a);
	if (ret >= 0 && sets_put(&s))
		ret = -EFAULT;
	if (room != small)
		xr_unmap(room, 3 * s.words * sizeof(long));
	return ret;
}
