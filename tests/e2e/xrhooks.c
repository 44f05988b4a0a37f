/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xrhooks MODE NAME: calls the libc function NAME on a connection that is in use, and looks whether it did
 * there what it does on kernel TCP; says "ok".  With the mode "fabric" the connection must first have moved,
 * and what passes through its kernel socket tells whether the call was carried; with "tcp" it stays.
 * xrhooks list: the names.  xrhooks after FD: is what a program is that was given the connection by exec.
 */
#include "xrhooks.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct hook *const hooks[] = { hooks_io, hooks_fd, hooks_open, hooks_process, hooks_signal };

bool lifts;
int conn;
const char *program;
char text[TEXT + 1];

static const char *name = "";
static int echo_port, told;
static unsigned int texts;

/* Seen by children as well. */
static struct {
	long said;   /* texts on the connection so far */
	bool failed; /* some process has found something wrong */
} *all;

void failed(const char *file, int line, const char *what)
{
	int e = errno;
	const char *slash = strrchr(file, '/');

	if (all)
		all->failed = true;
	dprintf(2, "%s: %s:%d: %s (errno %d: %s)\n", name, slash ? slash + 1 : file, line, what, e, strerror(e));
	_exit(1);
}

void *libc_symbol(const char *symbol)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), *f;

	MUST(libc && (f = dlsym(libc, symbol)));
	return f;
}

/* ---- what is said ------------------------------------------------------------------------------- */

/* Letters only, so that a shell takes them for one word; no two texts are the same. */
void new_text(void)
{
	unsigned int x = ++texts * 2654435761u;

	for (int i = 0; i < TEXT; i++, x = x * 1664525u + 1013904223u)
		text[i] = (char)('a' + (x >> 24) % 26);
	all->said++;
}

void no_answer(void)
{
	text[0] = 'Z';
}

void said_elsewhere(void)
{
	all->said++;
}

void is_text(const void *got)
{
	MUST(!memcmp(got, text, TEXT));
}

static int waiting(void)
{
	int n = -1;

	MUST(!ioctl(conn, FIONREAD, &n));
	return n;
}

void pending(void)
{
	new_text();
	MUST(send(conn, text, TEXT, 0) == TEXT);
	for (int ms = 0; waiting() != TEXT; ms++) {
		MUST(ms < 10000);
		usleep(1000);
	}
}

void echoed(void)
{
	char got[TEXT];

	MUST(recv(conn, got, TEXT, MSG_WAITALL) == TEXT);
	is_text(got);
}

void turns(int n)
{
	while (n--) {
		new_text();
		MUST(send(conn, text, TEXT, 0) == TEXT);
		echoed();
	}
}

/* ---- the connection ------------------------------------------------------------------------------ */

long kernel_bytes(void)
{
	struct tcp_info i;
	socklen_t len = sizeof(i);

	MUST(!LIBC(getsockopt)(conn, IPPROTO_TCP, TCP_INFO, &i, &len));
	return (long)(i.tcpi_bytes_sent + i.tcpi_bytes_received);
}

void stayed(long before)
{
	MUST(!lifts || kernel_bytes() == before);
}

void passed(long before)
{
	MUST(kernel_bytes() > before);
}

void used(void)
{
	time_t end = time(NULL) + 20;
	long before;

	turns(20);
	if (!lifts)
		return;
	do {
		before = kernel_bytes();
		turns(3);
		MUST(time(NULL) < end);
	} while (kernel_bytes() != before);
}

static struct sockaddr_in at(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
				     .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

int listener(int *port)
{
	struct sockaddr_in a = at(0);
	socklen_t len = sizeof(a);
	int s = socket(AF_INET, SOCK_STREAM, 0);

	MUST(s >= 0 && !bind(s, (struct sockaddr *)&a, sizeof(a)));
	MUST(!getsockname(s, (struct sockaddr *)&a, &len));
	*port = ntohs(a.sin_port);
	return s;
}

int dial_port(void)
{
	all->said = 0;
	return echo_port;
}

void dial(void)
{
	struct sockaddr_in a = at(dial_port());

	conn = socket(AF_INET, SOCK_STREAM, 0);
	MUST(conn >= 0 && !connect(conn, (struct sockaddr *)&a, sizeof(a)));
	used();
}

/* ---- the other end: how each connection ended goes into a pipe --------------------------------- */

struct end {
	long total;
	int error;
};

static void echo(int s, int tell)
{
	char b[4096];
	struct end e = {};
	ssize_t n;

	while ((n = recv(s, b, sizeof(b), 0)) > 0) {
		e.total += n;
		if (b[0] != 'Z' && send(s, b, (size_t)n, MSG_NOSIGNAL) != n)
			break;
	}
	e.error = n ? errno : 0;
	close(s);
	MUST(write(tell, &e, sizeof(e)) == sizeof(e));
}

pid_t child(void)
{
	pid_t pid = fork();

	MUST(pid >= 0);
	return pid;
}

/* What is forked here ends with who forked it. */
static pid_t fork_end(void)
{
	pid_t parent = getpid(), pid = child();

	if (!pid) {
		MUST(!LIBC(prctl)(PR_SET_PDEATHSIG, SIGKILL));
		if (getppid() != parent) /* which has ended by now */
			_exit(0);
	}
	return pid;
}

static void start_echo(void)
{
	int p[2], l = listener(&echo_port);

	MUST(!listen(l, 8) && !pipe(p));
	if (!fork_end()) {
		close(p[0]);
		for (int s; (s = accept(l, NULL, NULL)) >= 0;)
			echo(s, p[1]);
		_exit(1);
	}
	/* l is not closed: the numbers from that of the connection on are free then */
	told = p[0];
	close(p[1]);
}

void be_called(int port)
{
	struct sockaddr_in a = at(port);
	int p[2], s;

	all->said = 0;
	MUST(!pipe(p));
	if (!fork_end()) {
		s = socket(AF_INET, SOCK_STREAM, 0);
		MUST(s >= 0 && !connect(s, (struct sockaddr *)&a, sizeof(a)));
		echo(s, p[1]);
		_exit(0);
	}
	close(p[1]);
	told = p[0];
}

void ended(void)
{
	struct end e;

	MUST(read(told, &e, sizeof(e)) == sizeof(e));
	errno = e.error;
	MUST(!e.error);
	MUST(e.total == all->said * TEXT);
}

int status(pid_t pid)
{
	int s;

	MUST(waitpid(pid, &s, 0) == pid && WIFEXITED(s));
	return WEXITSTATUS(s);
}

/* Not under the shim: what had come and was not read, then what comes. */
static int after(int fd)
{
	char got[TEXT];

	conn = fd;
	MUST(recv(conn, got, TEXT, MSG_WAITALL) == TEXT);
	MUST(send(conn, got, TEXT, 0) == TEXT);
	MUST(recv(conn, text, TEXT, MSG_WAITALL) == TEXT);
	is_text(got);
	return 0;
}

int main(int argc, char **argv)
{
	program = argv[0];
	if (argc == 3 && !strcmp(argv[1], "after"))
		return after(atoi(argv[2]));
	if (argc == 3)
		name = argv[2];
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(all != MAP_FAILED);
	lifts = argc == 3 && !strcmp(argv[1], "fabric");
	for (size_t i = 0; i < sizeof(hooks) / sizeof(*hooks); i++)
		for (const struct hook *h = hooks[i]; h->name; h++) {
			void *f = dlsym(RTLD_DEFAULT, h->name);

			if (argc == 2) {
				puts(h->name);
			} else if (!strcmp(name, h->name)) {
				MUST(f);
				start_echo();
				h->check(f);
				MUST(!all->failed);
				puts("ok");
				return fflush(stdout);
			}
		}
	return argc != 2;
}
