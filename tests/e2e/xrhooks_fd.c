/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that make, copy, set and end descriptors. */
#include "xrhooks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static char got[TEXT];
static long before;

static void still_good(void)
{
	stayed(before);
	turns(3);
	stayed(before);
}

static void readable(void)
{
	dial();
	before = kernel_bytes();
	pending();
}

static void is_read_by(int fd)
{
	MUST(recv(fd, got, TEXT, 0) == TEXT);
	is_text(got);
	still_good();
}

/* ---- sockets: what is made by these calls moves, so they were seen ---- */

static struct sockaddr_in echo_at(void)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)dial_port()),
				     .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

static void c_socket(void *f)
{
	FUNCTION(int, (int, int, int));
	struct sockaddr_in a = echo_at();

	conn = g(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	MUST(conn >= 0 && fcntl(conn, F_GETFD) == FD_CLOEXEC);
	MUST(!connect(conn, (struct sockaddr *)&a, sizeof(a)));
	used();
}

static void c_connect(void *f)
{
	FUNCTION(int, (int, const struct sockaddr *, socklen_t));
	struct sockaddr_in a = echo_at();

	conn = socket(AF_INET, SOCK_STREAM, 0);
	MUST(conn >= 0 && !g(conn, (struct sockaddr *)&a, sizeof(a)));
	MUST(g(conn, (struct sockaddr *)&a, sizeof(a)) == -1 && errno == EISCONN);
	used();
}

static void c_socketpair(void *f)
{
	FUNCTION(int, (int, int, int, int[2]));
	int s[2];

	MUST(!g(AF_UNIX, SOCK_STREAM, 0, s));
	new_text();
	MUST(send(s[0], text, TEXT, 0) == TEXT && recv(s[1], got, TEXT, 0) == TEXT);
	is_text(got);
}

static void c_listen(void *f)
{
	FUNCTION(int, (int, int));
	int port, l = listener(&port);

	MUST(!g(l, 4));
	be_called(port);
	conn = accept(l, NULL, NULL);
	MUST(conn >= 0);
	used();
}

static void c_accept(void *f)
{
	FUNCTION(int, (int, struct sockaddr *, socklen_t *));
	struct sockaddr_in a = {};
	socklen_t len = sizeof(a);
	int port, l = listener(&port);

	MUST(!listen(l, 4));
	be_called(port);
	conn = g(l, (struct sockaddr *)&a, &len);
	MUST(conn >= 0 && len == sizeof(a) && a.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	used();
}

static void c_accept4(void *f)
{
	FUNCTION(int, (int, struct sockaddr *, socklen_t *, int));
	int port, l = listener(&port);

	MUST(!listen(l, 4));
	be_called(port);
	conn = g(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	MUST(conn >= 0 && fcntl(conn, F_GETFD) == FD_CLOEXEC && fcntl(conn, F_GETFL) & O_NONBLOCK);
	MUST(!fcntl(conn, F_SETFL, 0));
	used();
}

/* The kernel socket of what a fabric carries is not shut down; the end comes after all that was written. */
static void c_shutdown(void *f)
{
	FUNCTION(int, (int, int));

	dial();
	new_text();
	MUST(send(conn, text, TEXT, 0) == TEXT && !g(conn, SHUT_WR));
	MUST(send(conn, text, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
	echoed();
	MUST(recv(conn, got, TEXT, 0) == 0);
	ended();
}

/* ---- descriptors ---- */

static void unheard(void)
{
	dial();
	new_text();
	no_answer();
	MUST(send(conn, text, TEXT, 0) == TEXT);
}

/* What was written arrives, the number is free, and the next connection moves as well. */
static void was_closed(int r)
{
	int fd = conn;

	MUST(r == 0);
	MUST(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
	ended();
	dial();
	MUST(conn == fd);
}

static void c_close(void *f)
{
	FUNCTION(int, (int));

	unheard();
	was_closed(g(conn));
	MUST(g(9999) == -1 && errno == EBADF);
}

static void c_close_range(void *f)
{
	FUNCTION(int, (unsigned int, unsigned int, int));

	unheard();
	was_closed(g((unsigned int)conn, ~0u, 0));
}

static void c_closefrom(void *f)
{
	FUNCTION(void, (int));

	unheard();
	g(conn);
	was_closed(0);
}

static void c_dup(void *f)
{
	FUNCTION(int, (int));
	int fd;

	readable();
	fd = g(conn);
	MUST(fd > conn);
	is_read_by(fd);
}

static void c_dup2(void *f)
{
	FUNCTION(int, (int, int));

	readable();
	MUST(g(conn, 100) == 100);
	is_read_by(100);
	/* over a connection that lives: that one ends */
	MUST(g(0, conn) == conn && close(100) == 0);
	ended();
}

static void c_dup3(void *f)
{
	FUNCTION(int, (int, int, int));

	readable();
	MUST(g(conn, 100, O_CLOEXEC) == 100 && fcntl(100, F_GETFD) == FD_CLOEXEC);
	is_read_by(100);
}

static void c_fcntl(void *f)
{
	FUNCTION(int, (int, int, ...));
	int fd;

	readable();
	fd = g(conn, F_DUPFD_CLOEXEC, 50);
	MUST(fd >= 50 && g(fd, F_GETFD) == FD_CLOEXEC);
	is_read_by(fd);
	MUST(!g(conn, F_SETFL, O_NONBLOCK));
	MUST(recv(fd, got, 1, 0) == -1 && errno == EAGAIN);
	MUST(!g(conn, F_SETFL, 0));
	still_good();
}

static void c_ioctl(void *f)
{
	FUNCTION(int, (int, unsigned long, ...));
	int n = -1;

	readable();
	MUST(!g(conn, FIONREAD, &n) && n == TEXT);
	is_read_by(conn);
	n = 1;
	MUST(!g(conn, FIONBIO, &n));
	MUST(recv(conn, got, 1, 0) == -1 && errno == EAGAIN);
}

/* ---- options ---- */

static void c_getsockopt(void *f)
{
	FUNCTION(int, (int, int, int, void *, socklen_t *));
	struct tcp_info was, is;
	socklen_t len = sizeof(was);

	dial();
	before = kernel_bytes();
	MUST(!g(conn, IPPROTO_TCP, TCP_INFO, &was, &len));
	pending();
	is_read_by(conn);
	MUST(!g(conn, IPPROTO_TCP, TCP_INFO, &is, &len));
	MUST(is.tcpi_bytes_received - was.tcpi_bytes_received == 4 * TEXT);
	stayed(before);
}

static void c_setsockopt(void *f)
{
	FUNCTION(int, (int, int, int, const void *, socklen_t));
	struct timeval t = { 0, 30000 };
	struct timespec a, b;

	dial();
	before = kernel_bytes();
	MUST(!g(conn, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)));
	clock_gettime(CLOCK_MONOTONIC, &a);
	MUST(recv(conn, got, 1, 0) == -1 && errno == EAGAIN);
	clock_gettime(CLOCK_MONOTONIC, &b);
	MUST((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec >= 25000000);
	t.tv_usec = 0;
	MUST(!g(conn, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)));
	still_good();
}

/* ---- what makes other descriptors: where no number is left but those of xrdma, these give way ---- */

static void nothing_left(void)
{
	struct rlimit low = { 256, 256 };
	int n = 0;

	MUST(!setrlimit(RLIMIT_NOFILE, &low));
	dial();
	while (LIBC(dup)(0) >= 0)
		n++;
	MUST(errno == EMFILE && n > 100);
	if (!lifts) /* that is as many as xrdma leaves */
		MUST(!LIBC(close)(200) && !LIBC(close)(201));
}

static void was_made(int r)
{
	MUST(r >= 0);
	turns(3);
}

static void c_open(void *f)
{
	FUNCTION(int, (const char *, int, ...));

	nothing_left();
	was_made(g("/dev/null", O_RDONLY));
}

static void c_openat(void *f)
{
	FUNCTION(int, (int, const char *, int, ...));

	nothing_left();
	was_made(g(AT_FDCWD, "/dev/null", O_RDONLY));
}

static void c_creat(void *f)
{
	FUNCTION(int, (const char *, mode_t));

	nothing_left();
	was_made(g("/dev/null", 0600));
}

static void c_fopen(void *f)
{
	FUNCTION(FILE *, (const char *, const char *));

	nothing_left();
	MUST(g("/dev/null", "r"));
	turns(3);
}

static void c_tmpfile(void *f)
{
	FUNCTION(FILE *, (void));

	nothing_left();
	MUST(g());
	turns(3);
}

static void c_opendir(void *f)
{
	FUNCTION(DIR *, (const char *));

	nothing_left();
	MUST(g("/"));
	turns(3);
}

static void c_pipe(void *f)
{
	FUNCTION(int, (int[2]));
	int p[2];

	nothing_left();
	was_made(g(p));
}

static void c_pipe2(void *f)
{
	FUNCTION(int, (int[2], int));
	int p[2];

	nothing_left();
	was_made(g(p, O_CLOEXEC));
}

static void c_eventfd(void *f)
{
	FUNCTION(int, (unsigned int, int));

	nothing_left();
	was_made(g(0, 0));
}

static void c_timerfd_create(void *f)
{
	FUNCTION(int, (int, int));

	nothing_left();
	was_made(g(CLOCK_MONOTONIC, 0));
}

static void c_signalfd(void *f)
{
	FUNCTION(int, (int, const sigset_t *, int));
	sigset_t none;

	sigemptyset(&none);
	nothing_left();
	was_made(g(-1, &none, 0));
}

static void c_memfd_create(void *f)
{
	FUNCTION(int, (const char *, unsigned int));

	nothing_left();
	was_made(g("x", 0));
}

static void c_inotify_init(void *f)
{
	FUNCTION(int, (void));

	nothing_left();
	was_made(g());
}

static void c_inotify_init1(void *f)
{
	FUNCTION(int, (int));

	nothing_left();
	was_made(g(IN_CLOEXEC));
}

const struct hook hooks_fd[] = {
	{ "socket", c_socket }, { "socketpair", c_socketpair }, { "accept", c_accept }, { "accept4", c_accept4 },
	{ "connect", c_connect }, { "__connect", c_connect }, { "listen", c_listen }, { "shutdown", c_shutdown },
	{ "close", c_close }, { "__close", c_close }, { "close_range", c_close_range }, { "closefrom", c_closefrom },
	{ "dup", c_dup }, { "dup2", c_dup2 }, { "__dup2", c_dup2 }, { "dup3", c_dup3 }, { "fcntl", c_fcntl },
	{ "fcntl64", c_fcntl }, { "__fcntl", c_fcntl }, { "ioctl", c_ioctl }, { "getsockopt", c_getsockopt },
	{ "setsockopt", c_setsockopt }, {}
};

const struct hook hooks_open[] = {
	{ "open", c_open }, { "open64", c_open }, { "__open", c_open }, { "__open64", c_open }, { "__open_2", c_open },
	{ "__open64_2", c_open }, { "openat", c_openat }, { "openat64", c_openat }, { "__openat_2", c_openat },
	{ "__openat64_2", c_openat }, { "creat", c_creat }, { "creat64", c_creat }, { "fopen", c_fopen },
	{ "fopen64", c_fopen }, { "tmpfile", c_tmpfile }, { "tmpfile64", c_tmpfile }, { "opendir", c_opendir },
	{ "pipe", c_pipe }, { "__pipe", c_pipe }, { "pipe2", c_pipe2 }, { "eventfd", c_eventfd },
	{ "timerfd_create", c_timerfd_create }, { "signalfd", c_signalfd }, { "memfd_create", c_memfd_create },
	{ "inotify_init", c_inotify_init }, { "inotify_init1", c_inotify_init1 }, {}
};
