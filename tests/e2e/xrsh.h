/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xrsh: a program that makes one libc call per line of input, so that a test can lead two of them
 * step by step and see every return value.
 *
 * In:  ID [&]NAME ARG...     with & the call is made in a thread of its own
 * Out: ID RET ERRNO MICROSECONDS [WORD...]
 */
#ifndef XRSH_H
#define XRSH_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define XRSH_ARGS 4100

struct call {
	long id;
	int argc;
	char **argv; /* argv[0] is the name */
	char *line;
	char extra[8192];
	size_t extra_len;
	pthread_t thread;
	struct call *next;
};

struct command {
	const char *name;
	int min_args;
	long (*fn)(struct call *k);
};

extern const struct command hand_commands[], io_commands[], load_commands[], ring_commands[],
	shape_commands[], sys_commands[];

long long arg(const struct call *k, int i);
void extra(struct call *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The thread that now runs call id; 0 when it has none. */
int thread_of(long id, pthread_t *t);
/* Take orders from these paths from now on (in a forked child). */
int reopen(const char *in, const char *out);

#endif
