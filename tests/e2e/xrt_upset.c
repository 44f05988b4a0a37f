/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a program itself does to a connection so that it has to leave the fabric, in mid-stream, at random
 * instants: some calls are made by a forked child, whose bytes are part of the stream; and on connections with
 * a number of the form 4n+3 now and then something that keeps them on TCP for good.
 */
#include "xrt.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_BYTES 4000u /* with what is said of them one write into a pipe (PIPE_BUF) */

enum upset {
	CHILD_MOVES, CHILD_PEEKS, CHILD_LOOKS,
	FOR_GOOD, PASSED = FOR_GOOD, SPAWNED, STREAMED, OPTION, OWNED,
	UPSETS
};

static const char *const names[UPSETS] = { "child-moves", "child-peeks", "child-looks", "passed", "spawned",
					   "fdopen", "option", "owner" };
static _Atomic uint64_t done[UPSETS];

/* In the child: async-signal-safe only, other threads may have held anything. */
static _Noreturn void child(int fd, int to, enum upset what, bool tx, uint8_t *buf, size_t len)
{
	struct { ssize_t n; int err; } r = { 0, 0 };
	struct iovec v[2] = { { &r, sizeof(r) }, { buf, 0 } };

	/* nobody may be left to wait for it */
	alarm(60);
	if (what == CHILD_LOOKS)
		r.n = recv(fd, buf, 1, MSG_PEEK | MSG_DONTWAIT);
	else if (what == CHILD_PEEKS)
		r.n = recv(fd, buf, len, MSG_PEEK | MSG_DONTWAIT);
	else if (tx)
		r.n = send(fd, buf, len, MSG_NOSIGNAL);
	else
		r.n = recv(fd, buf, len, 0);
	r.err = errno;
	if (what == CHILD_MOVES && !tx && r.n > 0)
		v[1].iov_len = (size_t)r.n;
	_exit(writev(to, v, 2) != (ssize_t)(sizeof(r) + v[1].iov_len));
}

/* What the child's call returned, with its bytes and errno. */
static ssize_t by_child(struct conn *c, enum upset what, bool tx, uint8_t *buf, size_t len)
{
	struct { ssize_t n; int err; } r = { -1, ECHILD };
	int p[2], st;
	pid_t pid;
	ssize_t n;

	if (len > CHILD_BYTES)
		len = CHILD_BYTES;
	if (pipe2(p, O_CLOEXEC))
		return -1;
	pid = fork();
	if (!pid)
		child(c->fd, p[1], what, tx, buf, len);
	close(p[1]);
	if (pid > 0) {
		struct iovec v[2] = { { &r, sizeof(r) }, { buf, tx ? 0 : len } };

		do
			n = readv(p[0], v, 2);
		while (n < 0 && errno == EINTR);
		while (waitpid(pid, &st, 0) < 0 && errno == EINTR)
			;
		if (n < (ssize_t)sizeof(r) || !WIFEXITED(st) || WEXITSTATUS(st))
			r.n = -1, r.err = ECHILD;
	} else {
		r.err = errno;
	}
	close(p[0]);
	errno = r.err;
	return r.n;
}

static int passed(int fd)
{
	union { struct cmsghdr h; char room[CMSG_SPACE(sizeof(int))]; } u = { .h = {
		.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	char byte = 0;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = sizeof(u.room) };
	int s[2], got, r = -1;

	memcpy(CMSG_DATA(&u.h), &fd, sizeof(fd));
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s))
		return -1;
	if (sendmsg(s[0], &m, 0) == 1 && recvmsg(s[1], &m, MSG_CMSG_CLOEXEC) == 1 && m.msg_controllen) {
		memcpy(&got, CMSG_DATA(&u.h), sizeof(got));
		r = close(got);
	}
	close(s[0]);
	close(s[1]);
	return r;
}

/* A program of its own that has the connection open, and does nothing with it. */
static int spawned(int fd)
{
	extern char **environ;
	char *const argv[] = { "true", NULL };
	int st, survives = dup(fd), r;
	pid_t pid;

	if (survives < 0)
		return -1;
	r = posix_spawnp(&pid, "true", NULL, NULL, argv, environ);
	close(survives);
	if (r) {
		errno = r;
		return -1;
	}
	while (waitpid(pid, &st, 0) < 0)
		if (errno != EINTR)
			return -1;
	return 0;
}

static int streamed(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	FILE *f = copy < 0 ? NULL : fdopen(copy, "r");

	if (f)
		return fclose(f);
	if (copy >= 0)
		close(copy);
	return -1;
}

static int for_good(int fd, enum upset what)
{
	int one = 1;

	switch (what) {
	case PASSED:
		return passed(fd);
	case SPAWNED:
		return spawned(fd);
	case STREAMED:
		return streamed(fd);
	case OPTION:
		return setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof(one));
	default:
		return fcntl(fd, F_SETOWN, getpid());
	}
}

ssize_t upset_or(struct conn *c, bool tx, uint8_t *buf, size_t len)
{
	uint64_t *rng = tx ? &c->rng_tx : &c->rng_rx;
	enum upset what;

	if (xrt_rand(rng) % c->o->upset)
		return tx ? c->o->io->tx(c, buf, len) : c->o->io->rx(c, buf, len);
	what = xrt_rand(rng) % FOR_GOOD;
	if (c->id % 4 == 3 && xrt_rand(rng) % 8 == 0)
		what = FOR_GOOD + xrt_rand(rng) % (UPSETS - FOR_GOOD);
	atomic_fetch_add(&done[what], 1);
	if (what == CHILD_MOVES)
		return by_child(c, what, tx, buf, len);
	if (what >= FOR_GOOD) {
		if (for_good(c->fd, what))
			return -1;
	} else if (by_child(c, what, tx, buf, len) < 0 && errno != EAGAIN) {
		return -1;
	}
	return tx ? c->o->io->tx(c, buf, len) : c->o->io->rx(c, buf, len);
}

void upset_report(FILE *f)
{
	const char *sep = "";

	fprintf(f, ", \"upsets\": {");
	for (int i = 0; i < UPSETS; i++, sep = ", ")
		fprintf(f, "%s\"%s\": %lu", sep, names[i], atomic_load(&done[i]));
	fprintf(f, "}");
}
