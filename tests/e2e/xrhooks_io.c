/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that read, write and wait. */
#include "xrhooks.h"

#include <aio.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static char got[TEXT];

/* ---- reads: what waits on a fabric is not in the kernel socket at all ---- */

static long before;

static void readable(void)
{
	dial();
	before = kernel_bytes();
	pending();
}

static void was_read(ssize_t n)
{
	MUST(n == TEXT);
	is_text(got);
	stayed(before);
	turns(3);
	stayed(before);
}

static void c_read(void *f)
{
	FUNCTION(ssize_t, (int, void *, size_t));

	readable();
	was_read(g(conn, got, TEXT));
}

static void c_read_chk(void *f)
{
	FUNCTION(ssize_t, (int, void *, size_t, size_t));

	readable();
	was_read(g(conn, got, TEXT, sizeof(got)));
}

static struct iovec *two(void *p)
{
	static struct iovec v[2];

	v[0] = (struct iovec){ p, 7 };
	v[1] = (struct iovec){ (char *)p + 7, TEXT - 7 };
	return v;
}

static void c_readv(void *f)
{
	FUNCTION(ssize_t, (int, const struct iovec *, int));

	readable();
	was_read(g(conn, two(got), 2));
}

static void c_preadv2(void *f)
{
	FUNCTION(ssize_t, (int, const struct iovec *, int, off_t, int));

	readable();
	was_read(g(conn, two(got), 2, -1, 0));
}

static void c_recv(void *f)
{
	FUNCTION(ssize_t, (int, void *, size_t, int));

	readable();
	MUST(g(conn, got, TEXT, MSG_PEEK) == TEXT);
	is_text(got);
	memset(got, 0, sizeof(got));
	was_read(g(conn, got, TEXT, MSG_DONTWAIT));
}

static void c_recv_chk(void *f)
{
	FUNCTION(ssize_t, (int, void *, size_t, size_t, int));

	readable();
	was_read(g(conn, got, TEXT, sizeof(got), MSG_WAITALL));
}

static void c_recvfrom(void *f)
{
	FUNCTION(ssize_t, (int, void *, size_t, int, struct sockaddr *, socklen_t *));

	readable();
	was_read(g(conn, got, TEXT, 0, NULL, NULL));
}

static void c_recvfrom_chk(void *f)
{
	FUNCTION(ssize_t, (int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *));

	readable();
	was_read(g(conn, got, TEXT, sizeof(got), 0, NULL, NULL));
}

static void c_recvmsg(void *f)
{
	FUNCTION(ssize_t, (int, struct msghdr *, int));
	struct msghdr m = { .msg_iov = two(got), .msg_iovlen = 2 };

	readable();
	was_read(g(conn, &m, 0));
}

static void c_recvmmsg(void *f)
{
	FUNCTION(int, (int, struct mmsghdr *, unsigned int, int, struct timespec *));
	struct mmsghdr m[2] = { { .msg_hdr = { .msg_iov = two(got), .msg_iovlen = 1 } } };

	m[1].msg_hdr = (struct msghdr){ .msg_iov = two(got) + 1, .msg_iovlen = 1 };
	readable();
	MUST(g(conn, m, 2, 0, NULL) == 2);
	was_read(m[0].msg_len + m[1].msg_len);
}

/* ---- writes: the kernel socket sees nothing of what a fabric carries ---- */

static void writable(void)
{
	dial();
	before = kernel_bytes();
	new_text();
}

static void was_written(ssize_t n)
{
	MUST(n == TEXT);
	echoed();
	stayed(before);
	turns(3);
	stayed(before);
}

static void c_write(void *f)
{
	FUNCTION(ssize_t, (int, const void *, size_t));

	writable();
	was_written(g(conn, text, TEXT));
}

static void c_writev(void *f)
{
	FUNCTION(ssize_t, (int, const struct iovec *, int));

	writable();
	was_written(g(conn, two(text), 2));
}

static void c_pwritev2(void *f)
{
	FUNCTION(ssize_t, (int, const struct iovec *, int, off_t, int));

	writable();
	was_written(g(conn, two(text), 2, -1, 0));
}

static void c_send(void *f)
{
	FUNCTION(ssize_t, (int, const void *, size_t, int));

	writable();
	was_written(g(conn, text, TEXT, MSG_NOSIGNAL));
}

static void c_sendto(void *f)
{
	FUNCTION(ssize_t, (int, const void *, size_t, int, const struct sockaddr *, socklen_t));

	writable();
	was_written(g(conn, text, TEXT, 0, NULL, 0));
}

static void c_sendmsg(void *f)
{
	FUNCTION(ssize_t, (int, const struct msghdr *, int));
	struct msghdr m = { .msg_iov = two(text), .msg_iovlen = 2 };

	writable();
	was_written(g(conn, &m, 0));
}

static void c_sendmmsg(void *f)
{
	FUNCTION(int, (int, struct mmsghdr *, unsigned int, int));
	struct mmsghdr m[2] = { { .msg_hdr = { .msg_iov = two(text), .msg_iovlen = 1 } } };

	m[1].msg_hdr = (struct msghdr){ .msg_iov = two(text) + 1, .msg_iovlen = 1 };
	writable();
	MUST(g(conn, m, 2, 0) == 2);
	was_written(m[0].msg_len + m[1].msg_len);
}

static void c_sendfile(void *f)
{
	FUNCTION(ssize_t, (int, int, off_t *, size_t));
	FILE *file = tmpfile();
	off_t off = 0;

	writable();
	MUST(file && pwrite(fileno(file), text, TEXT, 0) == TEXT);
	was_written(g(conn, fileno(file), &off, TEXT));
	MUST(off == TEXT);
}

/* Of the calls that only the kernel can do the bytes pass through its socket, behind all that went before. */
static void was_passed(ssize_t n)
{
	MUST(n == TEXT);
	echoed();
	passed(before);
	turns(3);
}

static void c_splice(void *f)
{
	FUNCTION(ssize_t, (int, off_t *, int, off_t *, size_t, unsigned int));
	int p[2];

	writable();
	MUST(!pipe(p) && write(p[1], text, TEXT) == TEXT);
	was_passed(g(p[0], NULL, conn, NULL, TEXT, 0));
}

static void c_dprintf(void *f)
{
	FUNCTION(int, (int, const char *, ...));

	writable();
	was_passed(g(conn, "%s", text));
}

static void c_dprintf_chk(void *f)
{
	FUNCTION(int, (int, int, const char *, ...));

	writable();
	was_passed(g(conn, 1, "%s", text));
}

static int with_list(void *f, const char *format, ...)
{
	FUNCTION(int, (int, const char *, va_list));
	va_list args;
	int n;

	va_start(args, format);
	n = g(conn, format, args);
	va_end(args);
	return n;
}

static int with_list_chk(void *f, const char *format, ...)
{
	FUNCTION(int, (int, int, const char *, va_list));
	va_list args;
	int n;

	va_start(args, format);
	n = g(conn, 1, format, args);
	va_end(args);
	return n;
}

static void c_vdprintf(void *f)
{
	writable();
	was_passed(with_list(f, "%s", text));
}

static void c_vdprintf_chk(void *f)
{
	writable();
	was_passed(with_list_chk(f, "%s", text));
}

static ssize_t result(struct aiocb *a)
{
	const struct aiocb *list[] = { a };

	while (aio_error(a) == EINPROGRESS)
		MUST(!aio_suspend(list, 1, NULL) || errno == EINTR);
	return aio_return(a);
}

static void was_passed_on(ssize_t n)
{
	MUST(n == TEXT);
	is_text(got);
	passed(before);
	turns(3);
}

static void c_aio_read(void *f)
{
	FUNCTION(int, (struct aiocb *));
	struct aiocb a = { .aio_buf = got, .aio_nbytes = TEXT };

	readable();
	a.aio_fildes = conn;
	MUST(!g(&a));
	was_passed_on(result(&a));
}

static void c_aio_write(void *f)
{
	FUNCTION(int, (struct aiocb *));
	struct aiocb a = { .aio_buf = text, .aio_nbytes = TEXT };

	writable();
	a.aio_fildes = conn;
	MUST(!g(&a));
	was_passed(result(&a));
}

static void c_lio_listio(void *f)
{
	FUNCTION(int, (int, struct aiocb *const[], int, struct sigevent *));
	struct aiocb a = { .aio_buf = got, .aio_nbytes = TEXT, .aio_lio_opcode = LIO_READ };
	struct aiocb *list[] = { &a };

	readable();
	a.aio_fildes = conn;
	MUST(!g(LIO_WAIT, list, 1, NULL));
	was_passed_on(result(&a));
}

static void c_fdopen(void *f)
{
	FUNCTION(FILE *, (int, const char *));
	FILE *s;

	readable();
	s = g(conn, "r+");
	MUST(s && fread(got, 1, TEXT, s) == TEXT);
	is_text(got);
	new_text();
	MUST(fputs(text, s) >= 0 && !fflush(s));
	MUST(fread(got, 1, TEXT, s) == TEXT);
	is_text(got);
	passed(before);
	MUST(!fclose(s));
	ended();
}

/* The number is free, and what gets it is a connection as good as any. */
static void c_fclose(void *f)
{
	FUNCTION(int, (FILE *));
	FILE *s;
	int fd;

	dial();
	s = fdopen(fd = conn, "r+");
	new_text();
	no_answer();
	MUST(s && fputs(text, s) >= 0 && !g(s));
	ended();
	dial();
	MUST(conn == fd);
}

/* ---- waiting ---- */

static void was_ready(int n)
{
	MUST(n == 1);
	MUST(recv(conn, got, TEXT, 0) == TEXT);
	was_read(TEXT);
}

static struct pollfd *in(void)
{
	static struct pollfd p;

	p = (struct pollfd){ conn, POLLIN, 0 };
	return &p;
}

static const struct timespec second = { 1, 0 };

static void c_poll(void *f)
{
	FUNCTION(int, (struct pollfd *, nfds_t, int));

	readable();
	was_ready(g(in(), 1, 1000));
}

static void c_poll_chk(void *f)
{
	FUNCTION(int, (struct pollfd *, nfds_t, int, size_t));

	readable();
	was_ready(g(in(), 1, 1000, sizeof(struct pollfd)));
}

static void c_ppoll(void *f)
{
	FUNCTION(int, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *));

	readable();
	was_ready(g(in(), 1, &second, NULL));
}

static void c_ppoll_chk(void *f)
{
	FUNCTION(int, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t));

	readable();
	was_ready(g(in(), 1, &second, NULL, sizeof(struct pollfd)));
}

static void c_select(void *f)
{
	FUNCTION(int, (int, fd_set *, fd_set *, fd_set *, struct timeval *));
	struct timeval t = { 1, 0 };
	fd_set set;

	readable();
	FD_ZERO(&set);
	FD_SET(conn, &set);
	was_ready(g(conn + 1, &set, NULL, NULL, &t));
}

static void c_pselect(void *f)
{
	FUNCTION(int, (int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *));
	fd_set set;

	readable();
	FD_ZERO(&set);
	FD_SET(conn, &set);
	was_ready(g(conn + 1, &set, NULL, NULL, &second, NULL));
}

static struct epoll_event ev;

static int registered(int ep)
{
	ev = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 4711 };
	MUST(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, conn, &ev));
	memset(&ev, 0, sizeof(ev));
	return ep;
}

static void was_told(int n)
{
	MUST(n == 1 && ev.data.u64 == 4711 && ev.events == EPOLLIN);
	was_ready(n);
}

static void c_epoll_create(void *f)
{
	FUNCTION(int, (int));

	readable();
	was_told(epoll_wait(registered(g(1)), &ev, 1, 1000));
}

static void c_epoll_create1(void *f)
{
	FUNCTION(int, (int));

	readable();
	was_told(epoll_wait(registered(g(EPOLL_CLOEXEC)), &ev, 1, 1000));
}

static void c_epoll_ctl(void *f)
{
	FUNCTION(int, (int, int, int, struct epoll_event *));
	int ep = epoll_create1(0);

	readable();
	MUST(ep >= 0);
	ev = (struct epoll_event){ .events = EPOLLOUT, .data.u64 = 1 };
	MUST(!g(ep, EPOLL_CTL_ADD, conn, &ev));
	MUST(g(ep, EPOLL_CTL_ADD, conn, &ev) == -1 && errno == EEXIST);
	ev = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 4711 };
	MUST(!g(ep, EPOLL_CTL_MOD, conn, &ev));
	was_told(epoll_wait(ep, &ev, 1, 1000));
	MUST(!g(ep, EPOLL_CTL_DEL, conn, NULL));
	MUST(g(ep, EPOLL_CTL_DEL, conn, NULL) == -1 && errno == ENOENT);
}

static void c_epoll_wait(void *f)
{
	FUNCTION(int, (int, struct epoll_event *, int, int));

	readable();
	was_told(g(registered(epoll_create1(0)), &ev, 1, 1000));
}

static void c_epoll_pwait(void *f)
{
	FUNCTION(int, (int, struct epoll_event *, int, int, const sigset_t *));

	readable();
	was_told(g(registered(epoll_create1(0)), &ev, 1, 1000, NULL));
}

static void c_epoll_pwait2(void *f)
{
	FUNCTION(int, (int, struct epoll_event *, int, const struct timespec *, const sigset_t *));

	readable();
	was_told(g(registered(epoll_create1(0)), &ev, 1, &second, NULL));
}

const struct hook hooks_io[] = {
	{ "read", c_read }, { "__read", c_read }, { "readv", c_readv }, { "preadv2", c_preadv2 },
	{ "preadv64v2", c_preadv2 }, { "recv", c_recv }, { "recvfrom", c_recvfrom }, { "recvmsg", c_recvmsg },
	{ "recvmmsg", c_recvmmsg }, { "__read_chk", c_read_chk }, { "__recv_chk", c_recv_chk },
	{ "__recvfrom_chk", c_recvfrom_chk }, { "write", c_write }, { "__write", c_write }, { "writev", c_writev },
	{ "pwritev2", c_pwritev2 }, { "pwritev64v2", c_pwritev2 }, { "send", c_send }, { "__send", c_send },
	{ "sendto", c_sendto }, { "sendmsg", c_sendmsg }, { "sendmmsg", c_sendmmsg }, { "sendfile", c_sendfile },
	{ "sendfile64", c_sendfile }, { "splice", c_splice }, { "dprintf", c_dprintf },
	{ "__dprintf_chk", c_dprintf_chk }, { "vdprintf", c_vdprintf }, { "__vdprintf_chk", c_vdprintf_chk },
	{ "aio_read", c_aio_read }, { "aio_read64", c_aio_read }, { "aio_write", c_aio_write },
	{ "aio_write64", c_aio_write }, { "lio_listio", c_lio_listio }, { "lio_listio64", c_lio_listio },
	{ "fdopen", c_fdopen }, { "_IO_fdopen", c_fdopen }, { "fclose", c_fclose }, { "_IO_fclose", c_fclose },
	{ "poll", c_poll }, { "__poll", c_poll }, { "__poll_chk", c_poll_chk }, { "ppoll", c_ppoll },
	{ "__ppoll_chk", c_ppoll_chk }, { "select", c_select }, { "__select", c_select }, { "pselect", c_pselect },
	{ "epoll_create", c_epoll_create }, { "epoll_create1", c_epoll_create1 }, { "epoll_ctl", c_epoll_ctl },
	{ "epoll_wait", c_epoll_wait }, { "epoll_pwait", c_epoll_pwait }, { "epoll_pwait2", c_epoll_pwait2 }, {}
};
