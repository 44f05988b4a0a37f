/* SPDX-License-Identifier: BSD-2-Clause */
/* Operations of both sides at once: many bytes, in pieces whose sizes do not matter. */
#include "actor.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS	2000
#define FILL_MAX	(16u << 20)

static int wait_for(int fd, short events, int ms)
{
	struct pollfd p = { .fd = fd, .events = events };

	return poll(&p, 1, ms) > 0 ? (unsigned short)p.revents : 0;
}

/* One piece; 1 moved, 0 would block, -1 failed. */
static int put(int conn, int end, int fd, uint64_t left, size_t piece, int flags, long *n)
{
	uint64_t off = atomic_load(&a.sh->sent[conn][end]);

	if (piece > left)
		piece = left;
	*n = send(fd, pattern_at(conn, end, off), piece, flags | MSG_NOSIGNAL);
	if (*n > 0)
		atomic_fetch_add(&a.sh->sent[conn][end], (uint64_t)*n);
	return *n > 0 ? 1 : errno == EAGAIN ? 0 : -1;
}

static int take(int conn, int end, int fd, uint64_t left, size_t piece, int flags, long *n,
		struct res *r)
{
	uint64_t off = atomic_load(&a.sh->rcvd[conn][end]);

	if (piece > left)
		piece = left;
	*n = recv(fd, a.buf[0], piece, flags);
	if (*n > 0) {
		if (memcmp(a.buf[0], pattern_at(conn, !end, off), (size_t)*n))
			r->bad = 1;
		atomic_fetch_add(&a.sh->rcvd[conn][end], (uint64_t)*n);
	}
	return *n > 0 ? 1 : *n < 0 && errno == EAGAIN ? 0 : -1;
}

static void raise_signal(_Atomic int32_t *at, int v)
{
	atomic_store(at, v);
}

static int await_signal(_Atomic int32_t *at, int v)
{
	uint64_t end = now_us() + PATIENCE_MS * 1000;
	int i;

	for (i = 0; atomic_load(at) < v; i++) {
		if (i < 1000)
			yield();
		else
			usleep(100);
		if (now_us() > end)
			return -1;
	}
	return 0;
}

/* Single bytes to and fro; on the upgraded pair until the connection is on shm both ways. */
long do_warm(const struct op *o, struct res *r)
{
	int conn = o->arg[0], end = 0, fd = conn_fd(conn, &end), turn;
	int leads = a.m.conn[conn].connector == a.side, mode = (int)atomic_load(&a.sh->mode);
	_Atomic int32_t *round = &a.sh->warm_round;
	uint64_t base[2] = { atomic_load(&a.sh->upgraded[0]), atomic_load(&a.sh->upgraded[1]) };
	uint64_t end_us = now_us() + 1500000;
	long n = 1;

	/* round: 2k + 1 leader has sent, 2k + 2 follower has answered, -1 no more */
	for (turn = 0; n == 1; turn++) {
		int32_t seen;

		if (leads) {
			int more = mode == UP ? turn < 1000 && now_us() < end_us && (turn < o->arg[1] ||
				   atomic_load(&a.sh->upgraded[0]) == base[0] ||
				   atomic_load(&a.sh->upgraded[1]) == base[1]) :
				   turn < (mode == MID ? (int)a.sh->script.warm : o->arg[1]);

			/* a handshake that failed is tried again, after more turns and some time */
			if (turn > 40)
				usleep(300);
			if (!more) {
				raise_signal(round, INT32_MAX);
				break;
			}
			if (put(conn, end, fd, 1, 1, 0, &n) != 1)
				break;
			raise_signal(round, 2 * turn + 1);
		}
		if (await_signal(round, leads ? 2 * turn + 2 : 2 * turn + 1))
			return -1;
		seen = atomic_load(round);
		if (seen == INT32_MAX)
			break;
		wait_for(fd, POLLIN, PATIENCE_MS);
		if (take(conn, end, fd, 1, 1, 0, &n, r) != 1)
			return -1;
		count_flows();
		if (!leads) {
			if (put(conn, end, fd, 1, 1, 0, &n) != 1)
				return -1;
			raise_signal(round, 2 * turn + 2);
		}
	}
	return 0;
}

long do_bulk(const struct op *o, struct res *r)
{
	int conn = o->arg[0], end = 0, fd = conn_fd(conn, &end), sends = end == o->arg[1], k = 1;
	uint64_t left = (uint64_t)o->arg[2];
	long n;

	while (left && k >= 0) {
		k = sends ? put(conn, end, fd, left, (size_t)o->arg[3], 0, &n) :
			    take(conn, end, fd, left, (size_t)o->arg[4], 0, &n, r);
		if (k > 0)
			left -= (uint64_t)n;
		else if (!k && !wait_for(fd, sends ? POLLOUT : POLLIN, PATIENCE_MS))
			break;
	}
	return k < 0 ? -1 : (long)((uint64_t)o->arg[2] - left);
}

long do_duplex(const struct op *o, struct res *r)
{
	int conn = o->arg[0], end = 0, fd = conn_fd(conn, &end), kt = 1, kr = 1;
	uint64_t tx = (uint64_t)o->arg[1], rx = tx;
	long n;

	while ((tx || rx) && kt >= 0 && kr >= 0) {
		kt = kr = 0;
		if (tx) {
			kt = put(conn, end, fd, tx, (size_t)o->arg[2], MSG_DONTWAIT, &n);
			tx -= kt > 0 ? (uint64_t)n : 0;
		}
		if (rx) {
			kr = take(conn, end, fd, rx, (size_t)o->arg[3], MSG_DONTWAIT, &n, r);
			rx -= kr > 0 ? (uint64_t)n : 0;
		}
		if (!kt && !kr && !wait_for(fd, (short)((tx ? POLLOUT : 0) | (rx ? POLLIN : 0)),
					    PATIENCE_MS))
			break;
	}
	res_extra(r, (int64_t)tx);
	res_extra(r, (int64_t)rx);
	return kt < 0 || kr < 0 ? -1 : 0;
}

/* As many bytes as there are before the mark, or behind it: a read ends at it, whatever it asks for. */
static uint64_t take_up_to(int conn, int end, int fd, uint64_t n, size_t ask, struct res *r)
{
	uint64_t left = n, until = now_us() + PATIENCE_MS * 1000;
	long got;
	int k;

	while (left && now_us() < until) {
		k = take(conn, end, fd, ask, ask, MSG_DONTWAIT, &got, r);
		if (k < 0)
			break;
		if (k && (uint64_t)got > left)
			return n + 1;
		left -= k ? (uint64_t)got : 0;
		if (!k)
			wait_for(fd, POLLIN, 10);
	}
	return n - left;
}

/* Bytes, an urgent one, bytes; it is looked at (0), got apart from the others (1), or left out (2). */
long do_urgent(const struct op *o, struct res *r)
{
	int conn = o->arg[0], end = 0, fd = conn_fd(conn, &end), mark = -1, in_line = 0, k;
	_Atomic int32_t *phase = &a.sh->warm_round;
	uint64_t before = (uint64_t)o->arg[2], after = (uint64_t)o->arg[3], off;
	socklen_t len = sizeof(in_line);
	unsigned char byte = 0;
	long n;

	if (end == o->arg[1]) {
		for (k = 1; before && k >= 0; before -= k > 0 ? (uint64_t)n : 0)
			k = put(conn, end, fd, before, before, 0, &n);
		if (k >= 0)
			k = put(conn, end, fd, 1, 1, MSG_OOB, &n);
		for (; after && k > 0; after -= k > 0 ? (uint64_t)n : 0)
			k = put(conn, end, fd, after, after, 0, &n);
		raise_signal(phase, 1);
		return k;
	}
	if (await_signal(phase, 1))
		return -2;
	res_extra(r, wait_for(fd, POLLPRI, PATIENCE_MS));
	getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &in_line, &len);
	res_extra(r, ioctl(fd, SIOCATMARK, &mark) ? -errno : mark);
	res_extra(r, (int64_t)take_up_to(conn, end, fd, before, before + after, r));
	res_extra(r, ioctl(fd, SIOCATMARK, &mark) ? -errno : mark);
	off = atomic_load(&a.sh->rcvd[conn][end]);
	if (o->arg[4] < 2) {
		n = recv(fd, &byte, 1, MSG_OOB | (o->arg[4] ? 0 : MSG_PEEK));
		if (n > 0 && byte != *(const unsigned char *)pattern_at(conn, !end, off))
			r->bad = 1;
		res_extra(r, n < 0 ? -errno : n);
	}
	/* not in line it is no part of what is read */
	if (in_line)
		after++;
	else
		atomic_fetch_add(&a.sh->rcvd[conn][end], 1);
	res_extra(r, (int64_t)take_up_to(conn, end, fd, after, after, r));
	res_extra(r, ioctl(fd, SIOCATMARK, &mark) ? -errno : mark);
	res_extra(r, recv(fd, &byte, 1, MSG_OOB) < 0 ? -errno : 1);
	res_extra(r, wait_for(fd, POLLPRI, 0));
	return 0;
}

/* Until nothing more goes in; then all of it is read. */
long do_fill(const struct op *o, struct res *r)
{
	int conn = o->arg[0], end = 0, fd = conn_fd(conn, &end), k = 1;
	_Atomic int32_t *phase = &a.sh->warm_round;
	uint64_t sum = 0, until;
	long n;

	if (end == o->arg[1]) {
		while (sum < FILL_MAX && (k = put(conn, end, fd, FILL_MAX - sum, (size_t)o->arg[2],
						  MSG_DONTWAIT, &n)) > 0)
			sum += (uint64_t)n;
		res_extra(r, wait_for(fd, POLLOUT, 0));
		raise_signal(phase, 1);
		if (await_signal(phase, 2))
			return -2;
		res_extra(r, wait_for(fd, POLLOUT, PATIENCE_MS));
		return k < 0 ? -1 : k;
	}
	if (await_signal(phase, 1))
		return -2;
	until = atomic_load(&a.sh->sent[conn][!end]);
	while (k > 0 && atomic_load(&a.sh->rcvd[conn][end]) < until) {
		k = take(conn, end, fd, PAT_MAX, 100000, MSG_DONTWAIT, &n, r);
		if (!k)
			k = wait_for(fd, POLLIN, PATIENCE_MS) ? 1 : 0;
	}
	raise_signal(phase, 2);
	return k;
}
