/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two processes of one user on one machine: is one copy by process_vm_readv, which the kernel makes page by page,
 * faster than two, into shared memory and out of it?  Bytes per second of CPU, the best of several rounds; hot is the
 * same memory each time, cold 64 MiB in a row.  The sender of the first must wait, that of the second need not.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "copies.h"

#define SPAN	((size_t)64 << 20)
#define RING	((size_t)512 << 10)	/* of shared memory, in use again and again */
#define PIECE	((size_t)16 << 10)	/* published at once */
#define TOTAL	((size_t)128 << 20)
#define ROUNDS	5

static uint8_t *from, *to, *ring;

static double cpu(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int one(pid_t peer, size_t off, size_t n)
{
	struct iovec mine = { to + off, n }, theirs = { from + off, n };

	return process_vm_readv(peer, &mine, 1, &theirs, 1, 0) == (ssize_t)n;
}

static int two(pid_t peer, size_t off, size_t n)
{
	size_t k;

	(void)peer;
	for (k = 0; k < n; k += PIECE) {
		uint8_t *shared = ring + (off + k) % RING;

		memcpy(shared, from + off + k, PIECE);
		/* the other process would do this, and nothing is left out */
		__asm__ volatile("" : : "r"(shared) : "memory");
		memcpy(to + off + k, shared, PIECE);
	}
	return 1;
}

/* GB/s, < 0: not allowed here. */
static double rate(int (*move)(pid_t, size_t, size_t), pid_t peer, size_t n, size_t span)
{
	double best = 0, begun, got;
	size_t sum, off;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		begun = cpu();
		for (sum = off = 0; sum < TOTAL; sum += n, off = (off + n) % span)
			if (!move(peer, off, n))
				return -1;
		got = (double)TOTAL / (cpu() - begun) / 1e9;
		best = got > best ? got : best;
	}
	return best;
}

static uint8_t *memory(int flags, size_t n)
{
	uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : memset(p, 1, n);
}

int copies(void)
{
	static const size_t sizes[] = { 16 << 10, 64 << 10, 1 << 20 };
	int end[2], i, cold;
	uint8_t byte;
	pid_t peer;

	from = memory(MAP_PRIVATE, SPAN);
	to = memory(MAP_PRIVATE, SPAN);
	ring = memory(MAP_SHARED, RING);
	if (!from || !to || !ring || pipe(end))
		return 1;
	peer = fork();
	if (!peer) {
		close(end[1]);
		_exit(read(end[0], &byte, 1) != 0);
	}
	for (cold = 0; cold < 2; cold++)
		for (i = 0; i < 3; i++)
			printf("{\"what\": \"copies\", \"cold\": %d, \"bytes\": %zu, "
			       "\"one_gbps\": %.1f, \"two_gbps\": %.1f}\n", cold, sizes[i],
			       rate(one, peer, sizes[i], cold ? SPAN : sizes[i]),
			       rate(two, peer, sizes[i], cold ? SPAN : sizes[i]));
	close(end[1]);
	waitpid(peer, NULL, 0);
	return 0;
}
