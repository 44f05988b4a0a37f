/* SPDX-License-Identifier: BSD-2-Clause */
/* See xrfault.h.  In: "more" for more turns, or the cases' name; out: "ready", or the result. */
#include "pattern.h"
#include "xrfault.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEY	77

int fd_a, fd_b;
uint64_t stream_sent, stream_got;
struct bad bad[16];
int nbad, first_kernel;
char *edge, *read_only;
const char *now_at = "";
long failures, checks;

void complain(const char *file, int line, const char *what, long got, int err)
{
	const char *slash = strrchr(file, '/');

	printf("FAIL %s:%d %s [%s]: %ld, %s\n", slash ? slash + 1 : file, line, what, now_at, got,
	       got < 0 ? strerror(err) : "-");
	failures++;
}

/* ---- the stream ------------------------------------------------------------ */

void stream_fill(char *p, size_t n)
{
	pattern_fill(KEY, stream_sent, (uint8_t *)p, n);
}

void stream_sent_more(long n)
{
	if (n > 0)
		stream_sent += n;
}

void stream_check(const char *p, long n)
{
	if (n > 0 && pattern_check(KEY, stream_got, (const uint8_t *)p, n) != (size_t)n)
		complain(__FILE__, __LINE__, "wrong bytes", n, 0);
	if (n > 0)
		stream_got += n;
}

long stream_queued(void)
{
	int n = -1;

	ioctl(fd_b, FIONREAD, &n);
	return n;
}

/* What was sent arrives: at once, but for a kernel that has other things to do. */
static void settle(void)
{
	int i;

	for (i = 0; i < 2000 && stream_queued() != (long)(stream_sent - stream_got); i++)
		usleep(1000);
	IS(stream_queued(), stream_sent - stream_got);
}

void stream_send(size_t n)
{
	static char buf[BIG];

	stream_fill(buf, n);
	IS(send(fd_a, buf, n, 0), n);
	stream_sent += n;
	settle();
}

void stream_take(size_t n)
{
	static char buf[BIG];
	size_t done = 0;
	long r;

	settle();
	while (done < n) {
		r = recv(fd_b, buf, n - done, 0);
		if (r <= 0) {
			complain(__FILE__, __LINE__, "the rest is not there", r, errno);
			return;
		}
		stream_check(buf, r);
		done += r;
	}
	FAILS(recv(fd_b, buf, 1, MSG_DONTWAIT), EAGAIN);
}

void stream_works(void)
{
	char there = 'x', back = 0;

	stream_take(stream_sent - stream_got);
	stream_send(100);
	stream_take(100);
	IS(send(fd_b, &there, 1, 0), 1);
	IS(recv(fd_a, &back, 1, 0), 1);
	IS(back, 'x');
}

/* ---- addresses ------------------------------------------------------------- */

static void bad_add(const char *name, void *p, int reads)
{
	bad[nbad].name = name;
	bad[nbad].p = p;
	bad[nbad++].reads = reads;
}

static void bad_make(void)
{
	char *area = mmap(NULL, BIG + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char name[] = "/tmp/xrfault-XXXXXX", *cut;
	int fd = mkstemp(name);

	edge = area + BIG;
	mprotect(edge, PAGE, PROT_NONE);
	read_only = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bad_add("null", NULL, 0);
	bad_add("low", (void *)16, 0);
	bad_add("no access", edge, 0);
	bad_add("across the edge", edge - 3, 0);
	bad_add("read-only", read_only, 1);
	/* a file that became shorter: SIGBUS */
	unlink(name);
	if (ftruncate(fd, PAGE))
		exit(2);
	cut = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ftruncate(fd, 0))
		exit(2);
	close(fd);
	bad_add("truncated file", cut, 0);
	first_kernel = nbad;
	bad_add("kernel", (void *)-4096l, 0);
	bad_add("around the end", (void *)-8l, 0);
	bad_add("kernel's half", (void *)0xffff888000001000ul, 0);
}

void mprotect_rw(int on)
{
	mprotect(read_only, PAGE, on ? PROT_READ | PROT_WRITE : PROT_READ);
}

/* ---- the connection --------------------------------------------------------- */

static int connection(void)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(fd, (struct sockaddr *)&sa, len) || listen(fd, 1) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len))
		return -1;
	fd_a = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd_a, (struct sockaddr *)&sa, len))
		return -1;
	fd_b = accept(fd, NULL, NULL);
	close(fd);
	return ntohs(sa.sin_port);
}

static void turns(void)
{
	char buf[1000];
	int i;

	for (i = 0; i < 50; i++) {
		stream_send(1000);
		stream_take(1000);
		IS(send(fd_b, buf, 1000, 0), 1000);
		IS(recv(fd_a, buf, 1000, MSG_WAITALL), 1000);
	}
}

static int run(const char *cases)
{
	if (!strcmp(cases, "read"))
		read_cases();
	else if (!strcmp(cases, "write"))
		write_cases();
	else if (!strcmp(cases, "wait"))
		wait_cases();
	else if (!strcmp(cases, "option"))
		option_cases();
	else if (!strcmp(cases, "signal"))
		signal_cases();
	else
		return 0;
	stream_works();
	return 1;
}

int main(int argc, char **argv)
{
	char order[64];

	if (argc > 1 && !strncmp(argv[1], "child-", 6))
		return signal_child(argv[1] + 6);
	if (argc > 1 && !strcmp(argv[1], "ignore"))
		signal(SIGSEGV, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(120);
	bad_make();
	if (connection() < 0)
		return 2;
	memset(read_only, 1, PAGE);
	mprotect_rw(0);
	while (fgets(order, sizeof(order), stdin)) {
		order[strcspn(order, "\n")] = 0;
		if (!strcmp(order, "more"))
			turns();
		else if (!run(order))
			return 2;
		printf("done %ld %ld\n", checks, failures);
	}
	return failures != 0;
}
