/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xrt: one end of a verified byte stream, in any of many I/O styles.
 *
 * A style is a pair: how bytes are moved (struct io) and how the program waits for its turn (the
 * engine). Every byte is a function of the seed, the direction, the connection and its offset, so a
 * receiver can tell a lost, repeated or misplaced byte without having seen the sender.
 */
#ifndef XRT_H
#define XRT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define XRT_BUF (256 * 1024)

struct conn;

struct io {
	const char *name;
	bool blocking_only; /* cannot run on a non-blocking socket */
	ssize_t (*tx)(struct conn *c, uint8_t *buf, size_t len);
	ssize_t (*rx)(struct conn *c, uint8_t *buf, size_t len);
};

struct opts {
	bool client, v6, nagle, endless;
	int port, conns, sndbuf, rcvbuf, stall;
	uint64_t seed, c2s, s2c, turn, hold, upset;
	size_t seg;
	const struct io *io;
	const char *wait, *proto;
};

struct conn {
	const struct opts *o;
	int id, fd, fd2; /* fd2 is a dup of fd, or fd itself */
	FILE *in, *out;
	int txpipe[2], rxpipe[2], mem;
	size_t txpipe_left;
	uint64_t tx_key, rx_key, tx_total, rx_total;
	uint64_t tx_room;	 /* what the protocol lets tx send now; for the io's eyes */
	uint64_t tx_off, rx_off; /* under lock when two threads share the connection */
	uint64_t tx_sum, rx_sum, rng_tx, rng_rx;
	bool tx_shut, rx_eof;
	uint32_t armed;	 /* epoll interest now registered */
	int false_wakes; /* in a row: reported ready, and nothing moved */
	double connect_us;
	const char *bad_op; /* first failure: the call, its errno and the offset */
	int bad_errno;
	uint64_t bad_off;
	pthread_mutex_t lock;
	pthread_cond_t turned;
	uint8_t *txbuf, *rxbuf, *want;
};

/* xrt_io.c */
const struct io *io_find(const char *name);
void io_list(FILE *f);
int io_open(struct conn *c);
void io_close(struct conn *c);
uint64_t xrt_rand(uint64_t *state);

/* xrt_upset.c: one call of the style, or on average once in o->upset something that upsets the connection as well */
ssize_t upset_or(struct conn *c, bool tx, uint8_t *buf, size_t len);
void upset_report(FILE *f);

/* xrt_wait.c */
int wait_find(const char *name);
/* A sleep of so many seconds is a lost wake-up. */
void wait_patience(int seconds);
void wait_run(const char *name, struct conn *c, int n);

/* xrt.c: one step of a connection */
uint64_t conn_may_tx(const struct conn *c);
int conn_tx(struct conn *c); /* 1 progress, 0 would block, -1 failed */
int conn_rx(struct conn *c);
bool conn_done(const struct conn *c);
void conn_fail(struct conn *c, const char *op, int err, uint64_t off);

#endif
