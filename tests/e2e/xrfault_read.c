/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads into bad memory: nothing is lost. */
#include "xrfault.h"

#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define N	64

static char good[BIG];
static volatile size_t below = 1;	/* the compiler need not know */

static long msg_read(int how, void *p, size_t n, int flags)
{
	struct iovec v = { p, n };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };

	switch (how) {
	case 0: return recv(fd_b, p, n, flags);
	case 1: return recvfrom(fd_b, p, n, flags, NULL, NULL);
	case 2: return recvmsg(fd_b, &m.msg_hdr, flags);
	case 3: return recvmmsg(fd_b, &m, 1, flags, NULL) == 1 ? (long)m.msg_len : -1;
	case 4: return read(fd_b, p, n);
	case 5: return readv(fd_b, &v, 1);
	default: return preadv2(fd_b, &v, 1, -1, 0);
	}
}

static void buffers(void)
{
	int how, i;

	for (how = 0; how < 7; how++)
		for (i = 0; i < nbad; i++) {
			now_at = bad[i].name;
			stream_send(N);
			FAILS(msg_read(how, bad[i].p, N, 0), EFAULT);
			IS(stream_queued(), N);
			if (how < 4) {
				FAILS(msg_read(how, bad[i].p, N, MSG_PEEK), EFAULT);
				FAILS(msg_read(how, bad[i].p, N, MSG_PEEK | MSG_WAITALL), EFAULT);
				FAILS(msg_read(how, bad[i].p, N, MSG_WAITALL), EFAULT);
			}
			stream_take(N);
		}
}

/* What is looked at when there is nothing to read, or nothing wanted. */
static void empty(void)
{
	int i;

	for (i = 0; i < nbad; i++) {
		int want = i >= first_kernel ? EFAULT : EAGAIN;

		now_at = bad[i].name;
		FAILS(recv(fd_b, bad[i].p, N, MSG_DONTWAIT), want);
		FAILS(msg_read(2, bad[i].p, N, MSG_DONTWAIT), want);
		stream_send(N);
		if (i >= first_kernel) {
			FAILS(recv(fd_b, bad[i].p, 0, MSG_DONTWAIT), EFAULT);
			FAILS(read(fd_b, bad[i].p, 0), EFAULT);
		} else {
			IS(recv(fd_b, bad[i].p, 0, MSG_DONTWAIT), 0);
			IS(read(fd_b, bad[i].p, 0), 0);
		}
		IS(stream_queued(), N);
		stream_take(N);
	}
	now_at = "length";
	stream_send(N);
	FAILS(read(fd_b, good, -below), EFAULT);
	FAILS(read(fd_b, good, (size_t)-1 / 2 + 1 + below), EFAULT);
	IS(recv(fd_b, good, (size_t)1 << 32, 0), N);
	stream_check(good, N);
	/* on TCP what is not wanted needs no room */
	stream_send(N);
	IS(recv(fd_b, NULL, N, MSG_TRUNC), N);
	stream_got += N;
	stream_send(N);
	IS(recv(fd_b, edge - 5, N, MSG_TRUNC), N);
	stream_got += N;
}

/* A part of the room is good: the part that is told is read, the rest is there still. */
static void part(long r, size_t room)
{
	int err = errno;

	if (r < 0)
		IS(err, EFAULT);
	else if ((size_t)r > room)
		complain(__FILE__, __LINE__, "more than there is room for", r, 0);
	else
		stream_check(edge - room, r);
	stream_take(stream_sent - stream_got);
}

static void parts(void)
{
	struct iovec v[3];
	size_t i;

	now_at = "parts";
	stream_send(N);
	FAILS(recv(fd_b, edge - 40, N, 0), EFAULT);
	stream_take(N);
	for (i = 0; i < 2; i++) {
		int flags = i ? MSG_WAITALL : 0;

		stream_send(N);
		stream_send(N);
		part(recv(fd_b, edge - N, 2 * N, flags), N);
		stream_send(100000);
		part(recv(fd_b, edge - 50000, 100000, flags), 50000);
		stream_send(80000);
		stream_send(20000);
		part(recv(fd_b, edge - 90000, 100000, flags), 90000);
	}
	/* a look that waits for more than it can put down must end */
	stream_send(N);
	stream_send(N);
	recv(fd_b, edge - N, 2 * N, MSG_PEEK | MSG_WAITALL);
	stream_take(2 * N);
	stream_send(N);
	v[0].iov_base = good;
	v[0].iov_len = 32;
	v[1].iov_base = edge;
	v[1].iov_len = 32;
	FAILS(readv(fd_b, v, 2), EFAULT);
	v[2] = v[0];
	FAILS(readv(fd_b, v, 3), EFAULT);
	v[0].iov_len = N;
	IS(readv(fd_b, v, 2), N);
	stream_check(good, N);
	stream_send(N);
	v[1].iov_base = (void *)-4096l;
	FAILS(readv(fd_b, v, 2), EFAULT);
	v[1].iov_len = (size_t)-1;
	FAILS(readv(fd_b, v, 2), EINVAL);
	stream_take(N);
}

static void headers(void)
{
	struct iovec v = { good, N };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	struct timespec *ts;
	struct mmsghdr *vec;
	int i;

	for (i = 0; i < nbad; i++) {
		now_at = bad[i].name;
		stream_send(N);
		if (!bad[i].reads) {
			FAILS(recvmsg(fd_b, (struct msghdr *)bad[i].p, 0), EFAULT);
			FAILS(recvmmsg(fd_b, (struct mmsghdr *)bad[i].p, 1, 0, NULL), EFAULT);
			if (bad[i].p)
				FAILS(recvmmsg(fd_b, (struct mmsghdr *)good, 1, 0,
					       (struct timespec *)bad[i].p), EFAULT);
			FAILS(readv(fd_b, (struct iovec *)bad[i].p, 2), EFAULT);
			m.msg_iov = (struct iovec *)bad[i].p;
			FAILS(recvmsg(fd_b, &m, 0), EFAULT);
			m.msg_iov = &v;
		}
		IS(readv(fd_b, (struct iovec *)bad[i].p, 0), 0);
		IS(stream_queued(), N);
		/* told last, when the bytes have been read */
		if (bad[i].p) {
			m.msg_name = bad[i].p;
			m.msg_namelen = 16;
			m.msg_control = bad[i].p;
			m.msg_controllen = 100;
			IS(recvmsg(fd_b, &m, 0), N);
			stream_check(good, N);
			IS(m.msg_namelen, 0);
			IS(m.msg_controllen, 0);
			stream_send(N);
		}
		FAILS(recvfrom(fd_b, good, N, 0, (struct sockaddr *)good, (socklen_t *)bad[i].p),
		      EFAULT);
		stream_check(good, N);
		stream_take(0);
	}
	m.msg_control = NULL;
	m.msg_controllen = 0;
	now_at = "header";
	stream_send(N);
	m.msg_namelen = (socklen_t)-1;
	m.msg_iovlen = 5000;
	FAILS(recvmsg(fd_b, &m, 0), EINVAL);
	m.msg_namelen = 0;
	FAILS(recvmsg(fd_b, &m, 0), EMSGSIZE);
	m.msg_iovlen = 1;
	m.msg_name = NULL;
	m.msg_namelen = (socklen_t)-1;
	IS(recvmsg(fd_b, &m, 0), N);
	stream_check(good, N);

	/* everything but the bytes in a page that cannot be written */
	m.msg_namelen = 0;
	vec = (struct mmsghdr *)read_only;
	mprotect_rw(1);
	vec[0].msg_hdr = m;
	vec[1].msg_hdr = m;
	ts = (struct timespec *)(read_only + 1024);
	ts->tv_sec = 1;
	ts->tv_nsec = 0;
	*(socklen_t *)(read_only + 2048) = 16;
	mprotect_rw(0);
	stream_send(N);
	FAILS(recvmsg(fd_b, &vec[0].msg_hdr, 0), EFAULT);
	stream_check(good, N);
	stream_send(N);
	FAILS(recvmmsg(fd_b, vec, 1, 0, NULL), EFAULT);
	stream_check(good, N);
	stream_send(N);
	FAILS(recvfrom(fd_b, good, N, 0, (struct sockaddr *)good + 100, (socklen_t *)(read_only + 2048)),
	      EFAULT);
	stream_check(good, N);
	{
		struct mmsghdr one[2] = { { .msg_hdr = m }, { .msg_hdr = m } };
		struct iovec w = { edge, N };
		socklen_t len = sizeof(i);

		stream_send(N);
		FAILS(recvmmsg(fd_b, one, 1, 0, ts), EFAULT);
		stream_check(good, N);
		/* an error behind a message waits for the next call */
		one[1].msg_hdr.msg_iov = &w;
		stream_send(N);
		stream_send(N);
		IS(recvmmsg(fd_b, one, 2, 0, NULL), 1);
		stream_check(good, N);
		IS(getsockopt(fd_b, SOL_SOCKET, SO_ERROR, &i, &len), 0);
		IS(i, EFAULT);
		stream_take(N);
		len = (socklen_t)-1;
		stream_send(N);
		FAILS(recvfrom(fd_b, good, N, 0, (struct sockaddr *)good + 100, &len), EINVAL);
		stream_check(good, N);
		len = 16;
		stream_send(N);
		IS(recvfrom(fd_b, good, N, 0, (struct sockaddr *)edge, &len), N);
		stream_check(good, N);
		IS(len, 0);
	}
}

void read_cases(void)
{
	buffers();
	empty();
	parts();
	headers();
}
