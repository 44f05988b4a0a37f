/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xrfault: both ends of a connection in one program, which gives every call addresses that
 * are bad, and looks at what the call says, at what is left in the stream, and at whether the
 * next call works.  It expects the same of kernel TCP and of a fabric.
 */
#ifndef XRFAULT_H
#define XRFAULT_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#define PAGE	4096u
#define BIG	(256u << 10)

/* The ends.  Bytes go from a to b; `sent` and `got` are where the stream stands. */
extern int fd_a, fd_b;
extern uint64_t stream_sent, stream_got;

/*
 * Addresses of which the kernel says EFAULT when it gets there.  Those for which it does not
 * go there at all come last: FIRST_KERNEL and on.
 */
struct bad {
	const char *name;
	char *p;
	int reads;		/* it may be read */
};
extern struct bad bad[];
extern int nbad, first_kernel;

extern char *edge;		/* BIG good bytes before it, none from here on */
extern char *read_only;		/* a page */
extern const char *now_at;	/* for complaints */
extern long failures, checks;

void complain(const char *file, int line, const char *what, long got, int err);

#define IS(call, want)								\
	do {									\
		long is_r;							\
										\
		errno = 0;							\
		is_r = (long)(call);						\
		checks++;							\
		if (is_r != (long)(want))					\
			complain(__FILE__, __LINE__, #call " is not " #want, is_r, errno);	\
	} while (0)

#define FAILS(call, want)							\
	do {									\
		long fails_r;							\
										\
		errno = 0;							\
		fails_r = (long)(call);						\
		checks++;							\
		if (fails_r != -1 || errno != (want))				\
			complain(__FILE__, __LINE__, #call " does not fail with " #want, fails_r,	\
				 errno);					\
	} while (0)

/* n bytes of the stream into p, to be sent; what was sent of them is to be told. */
void stream_fill(char *p, size_t n);
void stream_sent_more(long n);
/* n bytes at p were read: they must be the next. */
void stream_check(const char *p, long n);
/* Sends n bytes and waits until they can be read. */
void stream_send(size_t n);
/* Reads exactly n bytes, and then there are none. */
void stream_take(size_t n);
/* Both directions work, and nothing else is in them. */
void stream_works(void);
/* Whether the page read_only may be written just now. */
void mprotect_rw(int on);
/* Bytes to be read at b. */
long stream_queued(void);

void read_cases(void);
void write_cases(void);
void wait_cases(void);
void option_cases(void);
void signal_cases(void);
int signal_child(const char *what);

#endif
