/* SPDX-License-Identifier: BSD-2-Clause */
/* io_uring, by system calls that go through syscall(): rings that are made, and what reads and writes through them. */
#include "pattern.h"
#include "xrsh.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 8

static struct ring {
	int fd;
	struct io_uring_params p;
	uint8_t *sq, *cq;
	struct io_uring_sqe *sqe;
} ring = { .fd = -1 };

/* One ring, made when it is first wanted; -1 and errno. */
static int ring_make(void)
{
	struct io_uring_params *p = &ring.p;

	if (ring.fd >= 0)
		return 0;
	memset(p, 0, sizeof(*p));
	ring.fd = syscall(SYS_io_uring_setup, ENTRIES, p);
	if (ring.fd < 0)
		return -1;
	ring.sq = mmap(NULL, p->sq_off.array + p->sq_entries * sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED,
		       ring.fd, IORING_OFF_SQ_RING);
	ring.cq = mmap(NULL, p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		       MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
	ring.sqe = mmap(NULL, p->sq_entries * sizeof(*ring.sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
			IORING_OFF_SQES);
	if (ring.sq == MAP_FAILED || ring.cq == MAP_FAILED || ring.sqe == MAP_FAILED)
		exit(97);
	return 0;
}

static _Atomic uint32_t *at(uint8_t *base, uint32_t off)
{
	return (_Atomic uint32_t *)(void *)(base + off);
}

/* One request, waited for: its result, -errno. */
static int ring_do(int op, int fd, void *b, size_t n, int flags)
{
	struct io_uring_params *p = &ring.p;
	uint32_t tail = *at(ring.sq, p->sq_off.tail), i = tail & (p->sq_entries - 1), head;
	struct io_uring_cqe *done;

	memset(&ring.sqe[i], 0, sizeof(ring.sqe[i]));
	ring.sqe[i].opcode = op;
	ring.sqe[i].fd = fd;
	ring.sqe[i].addr = (uintptr_t)b;
	ring.sqe[i].len = n;
	ring.sqe[i].msg_flags = flags;
	*at(ring.sq, p->sq_off.array + i * sizeof(uint32_t)) = i;
	*at(ring.sq, p->sq_off.tail) = tail + 1;
	while (syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		if (errno != EINTR)
			return -errno;
	head = *at(ring.cq, p->cq_off.head);
	done = (struct io_uring_cqe *)(void *)(ring.cq + p->cq_off.cqes) + (head & (p->cq_entries - 1));
	*at(ring.cq, p->cq_off.head) = head + 1;
	return done->res;
}

/* ring_setup ENTRIES: makes a ring of so many and lets go of it again; errno where it cannot be had */
static long c_ring_setup(struct call *k)
{
	struct io_uring_params p = { 0 };
	long fd = syscall(SYS_io_uring_setup, arg(k, 1), &p);

	return fd < 0 ? -1 : close(fd);
}

/* ring_recv FD N KEY OFF: all of N, or what there is before the end */
static long c_ring_recv(struct call *k)
{
	size_t n = arg(k, 2), done = 0, good;
	uint8_t *b = malloc(n + 1);
	int r = 0;

	if (ring_make())
		return -1;
	while (done < n) {
		r = ring_do(IORING_OP_RECV, arg(k, 1), b + done, n - done, 0);
		if (r <= 0)
			break;
		done += r;
	}
	good = pattern_check(arg(k, 3), arg(k, 4), b, done);
	free(b);
	extra(k, good == done ? " ok %d" : " bad %d at %zu", -r * (r < 0), good);
	return done;
}

/* ring_send FD N FLAGS KEY OFF: all of N */
static long c_ring_send(struct call *k)
{
	size_t n = arg(k, 2), done = 0;
	uint8_t *b = malloc(n + 1);
	int r = 0;

	if (ring_make())
		return -1;
	pattern_fill(arg(k, 4), arg(k, 5), b, n);
	while (done < n) {
		r = ring_do(IORING_OP_SEND, arg(k, 1), b + done, n - done, arg(k, 3));
		if (r <= 0)
			break;
		done += r;
	}
	free(b);
	extra(k, " %d", -r * (r < 0));
	return done;
}

const struct command ring_commands[] = {
	{ "ring_setup", 1, c_ring_setup },
	{ "ring_recv", 4, c_ring_recv },
	{ "ring_send", 5, c_ring_send },
	{},
};
