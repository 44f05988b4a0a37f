/* SPDX-License-Identifier: BSD-2-Clause */
/* Inside actor*.c: one process that does its share of a script. */
#ifndef ORACLE_ACTOR_H
#define ORACLE_ACTOR_H

#include "oracle.h"
#include "calls.h"

#include <pthread.h>

#define CANARY	0xa5

struct actor {
	int side;
	struct shared *sh;
	struct model m;		/* before the operation at hand */
	int fd[SLOTS];		/* -1: empty */
	int ep[EPS];
	uint32_t nests;		/* of these the ones that have had another one as a member */
	int lfd[2];		/* listeners: IPv4, IPv6 */
	int file;		/* what sh is mapped from */
	const void *stats;	/* of this process, once it has some */
	uint32_t at;		/* the operation at hand */
	pid_t child;
	uint8_t *buf[THREADS + 1];	/* what is received; PAT_MAX and a page that faults */
	uint8_t *hole;			/* memory that may not be touched */
};
extern struct actor a;

/* Signals that reached this thread. */
extern _Thread_local volatile int got_sigpipe, got_sigusr;

/* Raw system calls: no hook sees them. */
long raw(long nr, long p1, long p2, long p3, long p4, long p5);
int raw_poll(int fd, int events);
int raw_inq(int fd);

int fd_of(const struct op *o);
const struct m_file *file_of(const struct op *o);
int conn_fd(int conn, int *end);	/* of this process's end; -1 */
void res_extra(struct res *r, int64_t v);
/* The stream's bytes that end `end` of a connection sends from offset off on. */
const uint8_t *pattern_at(int conn, int end, uint64_t off);
/* actor_settle.c: on plain TCP, until all that was sent has arrived. */
void settle(void);
/* Before an operation that may end connections: the FIN finds room in the congestion window. */
void make_room(const struct op *o);
/* After bytes were sent: held back ones are pushed, and an RST that must come is awaited. */
void after_send(int fd, const struct m_file *f, long n);
void count_flows(void);
void yield(void);
uint64_t now_us(void);

/* actor_io.c */
long do_send(const struct op *o, struct res *r);
long do_recv(const struct op *o, struct res *r, const struct m_file *f);
long do_drain(struct res *r);
/* actor_both.c */
long do_warm(const struct op *o, struct res *r);
long do_bulk(const struct op *o, struct res *r);
long do_duplex(const struct op *o, struct res *r);
long do_fill(const struct op *o, struct res *r);
long do_urgent(const struct op *o, struct res *r);
/* actor_wait.c */
long do_poll(const struct op *o, struct res *r);
long do_select(const struct op *o, struct res *r);
long do_epctl(const struct op *o, struct res *r);
long do_epnest(const struct op *o);
long do_epwait(const struct op *o, struct res *r);
/* actor_fd.c */
long do_connect(const struct op *o, struct res *r);
long do_accept(const struct op *o, struct res *r);
long do_dup(const struct op *o, struct res *r);
long do_nonblock(const struct op *o, struct res *r);
long do_setopt(const struct op *o, struct res *r);
long do_getopt(const struct op *o, struct res *r);
long do_ioctl(const struct op *o, struct res *r);
long do_name(const struct op *o, struct res *r);
long do_bad(const struct op *o, struct res *r);
long do_end(struct res *r);

#endif
