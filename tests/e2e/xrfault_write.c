/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes from bad memory: what was not sent is not in the stream. */
#include "xrfault.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#define N	64

static char good[BIG];
static volatile size_t below = 1;	/* the compiler need not know */

static long msg_write(int how, void *p, size_t n)
{
	struct iovec v = { p, n };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };

	switch (how) {
	case 0: return send(fd_a, p, n, 0);
	case 1: return sendto(fd_a, p, n, 0, NULL, 0);
	case 2: return sendmsg(fd_a, &m.msg_hdr, 0);
	case 3: return sendmmsg(fd_a, &m, 1, 0) == 1 ? (long)m.msg_len : -1;
	case 4: return write(fd_a, p, n);
	case 5: return writev(fd_a, &v, 1);
	default: return pwritev2(fd_a, &v, 1, -1, 0);
	}
}

static void buffers(void)
{
	int how, i;

	for (how = 0; how < 7; how++)
		for (i = 0; i < nbad; i++) {
			if (bad[i].reads)
				continue;
			now_at = bad[i].name;
			FAILS(msg_write(how, bad[i].p, N), EFAULT);
			FAILS(msg_write(how, bad[i].p, 3000), EFAULT);
			stream_take(0);
			stream_send(N);
			FAILS(msg_write(how, bad[i].p, N), EFAULT);
			stream_take(N);
			/* nothing is asked for, so nothing is looked at but where it would be */
			if (how == 0 && i >= first_kernel)
				FAILS(msg_write(how, bad[i].p, 0), EFAULT);
			else if (how < 5)
				msg_write(how, bad[i].p, 0);
			stream_take(0);
		}
	now_at = "length";
	FAILS(write(fd_a, good, -below), EFAULT);
	stream_take(0);
	/* memory that can only be read is all that is needed */
	mprotect_rw(1);
	stream_fill(read_only, N);
	mprotect_rw(0);
	IS(send(fd_a, read_only, N, 0), N);
	stream_sent_more(N);
	stream_take(N);
}

/* A part is good: so much of it as the call tells is sent. */
static void part(long r, size_t room)
{
	int err = errno;

	if (r < 0)
		IS(err, EFAULT);
	else if ((size_t)r > room)
		complain(__FILE__, __LINE__, "more than can be read", r, 0);
	else
		stream_sent_more(r);
	stream_works();
}

static void parts(void)
{
	static const size_t size[] = { 1, 40, 119, 120, 121, 4000, 16384, 16385, 50000, 100000, 200000 };
	struct iovec v[3] = { { good, N }, { edge, N }, { good, N } };
	size_t i;

	now_at = "parts";
	for (i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
		stream_fill(edge - size[i], size[i]);
		part(send(fd_a, edge - size[i], size[i] + 1, 0), size[i]);
		stream_fill(edge - size[i], size[i]);
		part(send(fd_a, edge - size[i], size[i] + 20000, MSG_DONTWAIT), size[i]);
		/* behind what is unread, and in a slot that is open */
		stream_send(20000);
		stream_fill(edge - size[i], size[i]);
		part(send(fd_a, edge - size[i], size[i] + N, 0), size[i]);
	}
	stream_fill(edge - 40, 40);
	FAILS(send(fd_a, edge - 40, N, 0), EFAULT);
	stream_fill(good, N);
	part(writev(fd_a, v, 2), N);
	stream_fill(good, N);
	part(writev(fd_a, v, 3), N);
	v[1].iov_base = (void *)-4096l;
	FAILS(writev(fd_a, v, 3), EFAULT);
	v[1].iov_len = (size_t)-1;
	FAILS(writev(fd_a, v, 3), EINVAL);
	stream_take(0);
}

static void headers(void)
{
	struct iovec v = { good, N };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	struct mmsghdr two[2], *vec;
	int i;

	for (i = 0; i < nbad; i++) {
		if (bad[i].reads)
			continue;
		now_at = bad[i].name;
		FAILS(sendmsg(fd_a, (struct msghdr *)bad[i].p, 0), EFAULT);
		FAILS(sendmmsg(fd_a, (struct mmsghdr *)bad[i].p, 2, 0), EFAULT);
		FAILS(writev(fd_a, (struct iovec *)bad[i].p, 2), EFAULT);
		m.msg_iov = (struct iovec *)bad[i].p;
		FAILS(sendmsg(fd_a, &m, 0), EFAULT);
		m.msg_iov = &v;
		stream_take(0);
		if (!bad[i].p)
			continue;
		m.msg_name = bad[i].p;
		m.msg_namelen = 16;
		FAILS(sendmsg(fd_a, &m, 0), EFAULT);
		FAILS(sendto(fd_a, good, N, 0, (struct sockaddr *)bad[i].p, 16), EFAULT);
		FAILS(sendto(fd_a, good, N, 0, (struct sockaddr *)bad[i].p, 200), EINVAL);
		stream_take(0);
		m.msg_namelen = 0;
		stream_fill(good, N);
		IS(sendmsg(fd_a, &m, 0), N);
		stream_sent_more(N);
		stream_fill(good, N);
		IS(sendto(fd_a, good, N, 0, (struct sockaddr *)bad[i].p, 0), N);
		stream_sent_more(N);
		m.msg_name = NULL;
		stream_take(2 * N);
	}
	now_at = "header";
	m.msg_name = good;
	m.msg_namelen = (socklen_t)-1;
	m.msg_iovlen = 5000;
	FAILS(sendmsg(fd_a, &m, 0), EINVAL);
	m.msg_namelen = 1000;
	FAILS(sendmsg(fd_a, &m, 0), EMSGSIZE);
	m.msg_iovlen = 1;
	stream_fill(good, N);
	IS(sendmsg(fd_a, &m, 0), N);
	stream_sent_more(N);
	m.msg_name = NULL;
	m.msg_namelen = 0;

	/* the second message is bad; the number of bytes cannot be told */
	memset(two, 0, sizeof(two));
	two[0].msg_hdr = m;
	two[1].msg_hdr.msg_iov = (struct iovec *)edge;
	two[1].msg_hdr.msg_iovlen = 1;
	stream_fill(good, N);
	IS(sendmmsg(fd_a, two, 2, 0), 1);
	stream_sent_more(N);
	mprotect_rw(1);
	vec = (struct mmsghdr *)read_only;
	vec[0] = two[0];
	mprotect_rw(0);
	stream_fill(good, N);
	FAILS(sendmmsg(fd_a, vec, 1, 0), EFAULT);
	stream_sent_more(N);
	stream_take(3 * N);
}

static void files(void)
{
	char name[] = "/tmp/xrfault-XXXXXX";
	off_t off = 0;
	int fd = mkstemp(name), i;

	unlink(name);
	stream_fill(good, 1000);
	IS(write(fd, good, 1000), 1000);
	for (i = 0; i < nbad; i++) {
		now_at = bad[i].name;
		if (bad[i].p && !bad[i].reads)
			FAILS(sendfile(fd_a, fd, (off_t *)bad[i].p, 100), EFAULT);
	}
	stream_take(0);
	IS(sendfile(fd_a, fd, &off, 500), 500);
	IS(off, 500);
	stream_sent_more(500);
	mprotect_rw(1);
	*(off_t *)read_only = 500;
	mprotect_rw(0);
	/* sent, but it cannot be said how far */
	FAILS(sendfile(fd_a, fd, (off_t *)read_only, 500), EFAULT);
	stream_sent_more(500);
	stream_take(1000);
	close(fd);
}

void write_cases(void)
{
	buffers();
	parts();
	headers();
	files();
}
