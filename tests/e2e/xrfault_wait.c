/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting with bad sets, options with bad values: no event is lost. */
#include "xrfault.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N	64

static volatile int below_zero = -1;	/* the compiler need not know */

static void polls(void)
{
	struct timespec ts = { 5, 0 };
	struct pollfd p, many[40], *ro = (struct pollfd *)read_only;
	int i;

	for (i = 0; i < nbad; i++) {
		now_at = bad[i].name;
		if (!bad[i].reads) {
			FAILS(poll((struct pollfd *)bad[i].p, 1, -1), EFAULT);
			FAILS(poll((struct pollfd *)bad[i].p, 50, -1), EFAULT);
			FAILS(poll((struct pollfd *)bad[i].p, 1u << 30, -1), EINVAL);
			if (bad[i].p) {
				p.fd = fd_b;
				p.events = POLLIN;
				FAILS(ppoll(&p, 1, &ts, (sigset_t *)bad[i].p), EFAULT);
				FAILS(syscall(SYS_ppoll, &p, 1, bad[i].p, NULL, 8), EFAULT);
			}
		}
		if (i < first_kernel)
			IS(poll((struct pollfd *)bad[i].p, 0, 0), 0);
		else
			FAILS(poll((struct pollfd *)bad[i].p, 0, 0), EFAULT);
	}
	mprotect_rw(1);
	for (i = 0; i < 40; i++) {
		many[i].fd = ro[i].fd = fd_b;
		many[i].events = ro[i].events = POLLIN;
	}
	mprotect_rw(0);
	/* the answer is written also when there is none */
	FAILS(poll(ro, 1, 0), EFAULT);
	FAILS(poll(ro, 40, 10), EFAULT);
	IS(poll(many, 40, 0), 0);
	stream_send(N);
	FAILS(poll(ro, 1, 0), EFAULT);
	IS(poll(many, 40, 0), 40);
	p.fd = fd_b;
	p.events = POLLIN;
	IS(poll(&p, 1, -1), 1);
	IS(p.revents, POLLIN);
	/* one of two lies behind the edge */
	memcpy(edge - sizeof(p), &p, sizeof(p));
	FAILS(poll((struct pollfd *)(edge - sizeof(p)), 2, -1), EFAULT);
	IS(poll((struct pollfd *)(edge - sizeof(p)), 1, -1), 1);
	stream_take(N);
}

static void selects(void)
{
	struct timeval tv = { 5, 0 };
	struct timespec ts = { 5, 0 };
	fd_set set, *ro = (fd_set *)read_only;
	int i, j;

	for (i = 0; i < nbad; i++) {
		if (!bad[i].p || bad[i].reads)
			continue;
		now_at = bad[i].name;
		for (j = 0; j < 3; j++) {
			fd_set *b = (fd_set *)bad[i].p;

			FD_ZERO(&set);
			FD_SET(fd_b, &set);
			FAILS(select(fd_b + 1, j == 0 ? b : j == 1 ? NULL : &set, j == 1 ? b : NULL,
				     j == 2 ? b : NULL, &tv), EFAULT);
		}
		FD_ZERO(&set);
		FD_SET(fd_b, &set);
		FAILS(pselect(fd_b + 1, &set, NULL, NULL, &ts, (sigset_t *)bad[i].p), EFAULT);
#ifdef SYS_select
		FAILS(syscall(SYS_select, fd_b + 1, &set, NULL, NULL, bad[i].p), EFAULT);
#endif
		IS(FD_ISSET(fd_b, &set) != 0, 1);
	}
	mprotect_rw(1);
	FD_ZERO(ro);
	FD_SET(fd_b, ro);
	mprotect_rw(0);
	tv.tv_sec = 0;
	FAILS(select(fd_b + 1, ro, NULL, NULL, &tv), EFAULT);
	stream_send(N);
	FAILS(select(fd_b + 1, ro, NULL, NULL, &tv), EFAULT);
	FD_ZERO(&set);
	FD_SET(fd_b, &set);
	IS(select(fd_b + 1, &set, NULL, NULL, NULL), 1);
	stream_take(N);
}

/* The events that this registration stands for come in spite of calls that cannot say so. */
static void epoll_kept(int ep, uint32_t how)
{
	struct epoll_event ev = { .events = EPOLLIN | how, .data.u64 = 7 }, two[2];
	/* the compiler need not know how many there are in fact */
	struct epoll_event *volatile last = (struct epoll_event *)(edge - sizeof(ev));
	int i;

	IS(epoll_ctl(ep, EPOLL_CTL_ADD, fd_b, &ev), 0);
	for (i = 0; i < nbad; i++) {
		struct epoll_event *b = (struct epoll_event *)bad[i].p;

		now_at = bad[i].name;
		if (i >= first_kernel)
			FAILS(epoll_wait(ep, b, 4, 0), EFAULT);
		else
			IS(epoll_wait(ep, b, 4, 0), 0);
		stream_send(N);
		FAILS(epoll_wait(ep, b, 4, -1), EFAULT);
		FAILS(epoll_wait(ep, b, 1, 0), EFAULT);
		FAILS(epoll_pwait(ep, b, 4, 5000, NULL), EFAULT);
		memset(&ev, 0, sizeof(ev));
		IS(epoll_wait(ep, &ev, 1, 0), 1);
		IS(ev.events, EPOLLIN);
		IS(ev.data.u64, 7);
		IS(epoll_wait(ep, &ev, 1, 0), how ? 0 : 1);
		stream_take(N);
		ev.events = EPOLLIN | how;
		ev.data.u64 = 7;
		if (how & EPOLLONESHOT)
			IS(epoll_ctl(ep, EPOLL_CTL_MOD, fd_b, &ev), 0);
	}
	/* two are ready, there is room for one */
	now_at = "room for one";
	ev.events = EPOLLOUT | how;
	ev.data.u64 = 8;
	IS(epoll_ctl(ep, EPOLL_CTL_ADD, fd_a, &ev), 0);
	stream_send(N);
	IS(epoll_wait(ep, last, 2, -1), 1);
	i = (int)last->data.u64;
	IS(epoll_wait(ep, two, 2, -1), how ? 1 : 2);
	if (how)
		IS(two[0].data.u64 + i, 15);
	stream_take(N);
	IS(epoll_ctl(ep, EPOLL_CTL_DEL, fd_a, NULL), 0);
	IS(epoll_ctl(ep, EPOLL_CTL_DEL, fd_b, NULL), 0);
}

static void epolls(void)
{
	struct epoll_event ev = { .events = EPOLLIN }, got;
	int ep = epoll_create1(0), i;

	for (i = 0; i < nbad; i++) {
		struct epoll_event *b = (struct epoll_event *)bad[i].p;

		now_at = bad[i].name;
		if (!bad[i].reads)
			FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, fd_b, b), EFAULT);
		FAILS(epoll_ctl(ep, EPOLL_CTL_DEL, fd_b, b), ENOENT);
		IS(epoll_ctl(ep, EPOLL_CTL_ADD, fd_b, &ev), 0);
		if (!bad[i].reads)
			FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, fd_b, b), EFAULT);
		FAILS(epoll_wait(ep, b, below_zero, 0), EINVAL);
		FAILS(epoll_wait(ep, b, 0, 0), EINVAL);
		if (b && !bad[i].reads) {
			FAILS(epoll_pwait(ep, &got, 1, 5000, (sigset_t *)bad[i].p), EFAULT);
			FAILS(epoll_pwait2(ep, &got, 1, (struct timespec *)bad[i].p, NULL), EFAULT);
		}
		IS(epoll_ctl(ep, EPOLL_CTL_DEL, fd_b, b), 0);
	}
	epoll_kept(ep, 0);
	epoll_kept(ep, EPOLLET);
	epoll_kept(ep, EPOLLONESHOT);
	close(ep);
}

void wait_cases(void)
{
	polls();
	selects();
	epolls();
}

void option_cases(void)
{
	socklen_t len = sizeof(int);
	int i, on, fd;

	stream_send(N);
	for (i = 0; i < nbad; i++) {
		char *b = bad[i].p;

		now_at = bad[i].name;
		FAILS(ioctl(fd_b, FIONREAD, b), EFAULT);
		FAILS(ioctl(fd_a, SIOCOUTQ, b), EFAULT);
		FAILS(getsockopt(fd_b, SOL_SOCKET, SO_RCVLOWAT, b, &len), EFAULT);
		FAILS(getsockopt(fd_b, SOL_SOCKET, SO_RCVLOWAT, &on, (socklen_t *)b), EFAULT);
		FAILS(getsockopt(fd_b, SOL_SOCKET, SO_ERROR, b, &len), EFAULT);
		FAILS(getsockopt(fd_b, SOL_SOCKET, SO_ERROR, &on, (socklen_t *)b), EFAULT);
		if (bad[i].reads)
			continue;
		FAILS(ioctl(fd_b, FIONBIO, b), EFAULT);
		FAILS(ioctl(fd_b, FIOASYNC, b), EFAULT);
		FAILS(setsockopt(fd_b, SOL_SOCKET, SO_RCVLOWAT, b, sizeof(int)), EFAULT);
		FAILS(setsockopt(fd_b, SOL_SOCKET, SO_RCVTIMEO, b, sizeof(struct timeval)), EFAULT);
		if (b)
			FAILS(setsockopt(fd_b, SOL_SOCKET, SO_PEEK_OFF, b, sizeof(int)), EFAULT);
		FAILS(setsockopt(fd_b, IPPROTO_TCP, TCP_NODELAY, b, sizeof(int)), EFAULT);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		FAILS(connect(fd, (struct sockaddr *)b, sizeof(struct sockaddr_in)), EFAULT);
		close(fd);
	}
	stream_take(N);
}
