/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The system calls of the code under check, on a TCP connection that is a few bytes of
 * memory.  It behaves as Linux does on the loopback: what was sent before a FIN or RST is
 * read before it is noticed, and a socket that nobody holds answers data with an RST.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <netinet/in.h>
#include "fabric.h"
#include "world.h"

/* bytes that the kernel takes before it says EAGAIN; a frame goes in whole only where little is unread */
#define ROOM	(hosts ? XR_FRAME_LEN + 1 : 4u)

static int end_of(long fd)
{
	return fd == FD(1);
}

/* The wire on which e is spoken to. */
static struct wire *to(int e)
{
	return &W.wire[1 - e];
}

/* An RST has come: TCP's tcp_reset. */
static void reset(int e)
{
	struct sock *s = &W.sock[e];

	if (s->reset)
		return;
	s->reset = 1;
	s->err = to(e)->fin == 2 ? EPIPE : ECONNRESET;
}

static void arrived(int e)
{
	struct wire *w = to(e);

	if (W.sock[e].closed) {
		/* nobody is there to read: answered with an RST */
		if (w->n && !W.sock[1 - e].closed && !W.wire[e].rst)
			W.wire[e].rst = 1;
		w->n = w->there = 0;
		return;
	}
	if (w->rst == 2)
		reset(e);
}

int kernel_may_deliver(int e)
{
	struct wire *w = &W.wire[e];

	return w->there < w->n || w->fin == 1 || w->rst == 1;
}

/* The next thing on the way arrives. */
void kernel_deliver(int e)
{
	struct wire *w = &W.wire[e];

	if (w->there < w->n)
		w->there = w->n;
	else if (w->fin == 1)
		w->fin = 2;
	else if (w->rst == 1)
		w->rst = 2;
	arrived(1 - e);
}

static void sent(int e)
{
	/* at once, and the answer that it may cause */
	while (!lag && (kernel_may_deliver(e) || kernel_may_deliver(1 - e)))
		kernel_deliver(kernel_may_deliver(e) ? e : 1 - e);
}

static long k_recv(int e, const struct msghdr *mh, long flags)
{
	struct wire *w = to(e);
	struct sock *s = &W.sock[e];
	size_t i, k, n = 0;

	for (i = 0; i < mh->msg_iovlen && n < w->there; i++) {
		k = mh->msg_iov[i].iov_len < w->there - n ? mh->msg_iov[i].iov_len : w->there - n;
		memcpy(mh->msg_iov[i].iov_base, w->q + n, k);
		n += k;
	}
	if (n && !(flags & MSG_PEEK)) {
		memmove(w->q, w->q + n, w->n - n);
		memset(w->q + w->n - n, 0, n);
		w->n -= (uint8_t)n;
		w->there -= (uint8_t)n;
		w->out += (uint32_t)n;
	}
	if (n)
		return (long)n;
	if (w->fin == 2)
		return 0;
	if (s->err) {
		n = s->err;
		s->err = 0;
		return -(long)n;
	}
	return s->reset ? 0 : -EAGAIN;
}

static size_t room(int e)
{
	return ROOM - W.wire[e].n;
}

static long k_send(int e, const struct msghdr *mh)
{
	struct wire *w = &W.wire[e];
	struct sock *s = &W.sock[e];
	size_t i, k, n = 0;

	if (s->err) {
		n = s->err;
		s->err = 0;
		return -(long)n;
	}
	if (s->shut_wr || s->reset)
		return -EPIPE;
	if (!room(e))
		return -EAGAIN;
	for (i = 0; i < mh->msg_iovlen && room(e); i++) {
		k = mh->msg_iov[i].iov_len < room(e) ? mh->msg_iov[i].iov_len : room(e);
		memcpy(w->q + w->n, mh->msg_iov[i].iov_base, k);
		w->n += (uint8_t)k;
		n += k;
	}
	w->in += (uint32_t)n;
	sent(e);
	return (long)n;
}

uint32_t kernel_poll(int e)
{
	struct wire *w = to(e);
	struct sock *s = &W.sock[e];
	uint32_t ev = 0;

	if (w->there || w->fin == 2 || s->reset)
		ev |= POLLIN;
	if (w->fin == 2 || s->reset)
		ev |= POLLRDHUP;
	if (s->reset || (w->fin == 2 && s->shut_wr))
		ev |= POLLHUP;
	if (s->err)
		ev |= POLLERR;
	if (room(e) || s->shut_wr || s->reset)
		ev |= POLLOUT;
	return ev;
}

void kernel_close(int e)
{
	struct sock *s = &W.sock[e];
	struct wire *w = &W.wire[e];

	if (s->closed)
		return;
	s->closed = 1;
	if (s->linger0 || to(e)->there)
		w->rst = 1;
	else if (!w->fin)
		w->fin = 1;
	if (s->reset)
		w->rst = w->fin = 0;
	arrived(e);
	sent(e);
}

static long k_info(int e, void *out, socklen_t *len)
{
	struct tcp_info i;

	memset(&i, 0, sizeof(i));
	i.tcpi_state = to(e)->fin == 2 || W.sock[e].shut_wr || W.sock[e].reset ? 7 : 1;
	i.tcpi_bytes_sent = W.wire[e].in;
	i.tcpi_bytes_received = to(e)->out + to(e)->there;
	if (*len > sizeof(i))
		*len = sizeof(i);
	memcpy(out, &i, *len);
	return 0;
}

static long k_poll(struct pollfd *p, const struct timespec *ts)
{
	uint32_t want = (uint32_t)(unsigned short)p->events | POLLERR | POLLHUP;
	int e = end_of(p->fd);

	/* a moment's wait for a peer's last word: how much comes within it was decided above */
	if (!(kernel_poll(e) & want) && ts && (ts->tv_sec || ts->tv_nsec) && !hosts)
		model_block(want, 0);
	p->revents = (short)(kernel_poll(e) & want);
	return p->revents != 0;
}

static long k_getopt(int e, long level, long opt, void *out, socklen_t *len)
{
	struct linger l = { W.sock[e].linger0, 0 };
	int one = 1;

	if (level == IPPROTO_TCP && opt == TCP_INFO)
		return k_info(e, out, len);
	if (level == SOL_SOCKET && opt == SO_LINGER)
		memcpy(out, &l, sizeof(l));
	else if (level == SOL_SOCKET && opt == SO_PROTOCOL)
		memcpy(out, &(int){ IPPROTO_TCP }, sizeof(int));
	else
		memcpy(out, &one, sizeof(one));
	return 0;
}

long xr_sys(long nr, long a, long b, long c, long d, long e, long f)
{
	int s = end_of(a);

	(void)f;
	if (!coarse && nr != SYS_tkill && nr != SYS_sched_yield)
		model_yield();
	model_barrier();
	switch (nr) {
	case SYS_recvmsg:
		return k_recv(s, (const struct msghdr *)b, c);
	case SYS_recvfrom: {
		/* MSG_TRUNC without a buffer: thrown away */
		static uint8_t trash[QUEUE];
		struct iovec iov = { trash, c < (long)QUEUE ? (size_t)c : QUEUE };
		struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };

		if (b || !(d & MSG_TRUNC))
			abort();
		return k_recv(s, &mh, 0);
	}
	case SYS_sendmsg:
		return k_send(s, (const struct msghdr *)b);
	case SYS_ppoll:
		return k_poll((struct pollfd *)a, (const struct timespec *)c);
	case SYS_shutdown:
		if (b != SHUT_WR)
			abort();
		if (!W.sock[s].shut_wr && !W.sock[s].reset) {
			W.sock[s].shut_wr = 1;
			W.wire[s].fin = 1;
			sent(s);
		}
		return 0;
	case SYS_setsockopt:
		if (b == SOL_SOCKET && c == SO_LINGER)
			W.sock[s].linger0 = 1;
		return 0;
	case SYS_getsockopt:
		return k_getopt(s, b, c, (void *)d, (socklen_t *)e);
	case SYS_ioctl:
		*(int *)c = b == 0x541b ? to(s)->there : W.wire[s].n;
		return 0;
	case SYS_tkill:
	case SYS_tgkill:
	case SYS_sched_yield:
	case SYS_close:
		return 0;
	default:
		fprintf(stderr, "system call %ld is not in the model\n", nr);
		abort();
	}
}
