/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xr-ping: what its parts share.
 *
 *	xr-ping.c	options
 *	ping_path.c	the path, step by step, to a channel
 *	ping_run.c	round trips over it
 *	ping_show.c	what is printed
 *	ping_serve.c	the other end, xr-ping -l
 *
 * Both ends meet as the ends of a program's connection do (bridge/meet.h): over a TCP connection, of which the end that
 * connected listens and the end that accepted calls.  On TCP itself only two lines are said: what is wanted, and, if
 * it came to nothing, why.
 */
#ifndef XR_PING_H
#define XR_PING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "bridge/meet.h"
#include "core/config.h"
#include "core/xrdma.h"

#define PING_PORT	"7447"
#define PING_HELLO	"xr-ping 1 "
#define PING_ROOM	(1u << 20)	/* bytes of a round trip, at most */
#define PING_SIZES	32u

enum { PING_GOOD, PING_NOT, PING_TROUBLE };	/* exit status */

enum ping_op { PING_SEND, PING_READ, PING_WRITE, PING_OPS };
extern const char *const ping_op_name[PING_OPS];

struct ping_series {
	enum ping_op op;
	uint32_t size;
	uint64_t sent, got, bad;	/* bad: what came back was not what was sent */
	uint64_t *ns;			/* of the last `room` that came back */
	size_t room;
};

struct ping_options {
	const char *host, *port, *address;
	bool listen, json, quiet, verbose;
	char not_listening;		/* an option that was given and has no meaning with --listen; 0: none */
	int family;			/* AF_UNSPEC, AF_INET, AF_INET6 */
	int fabric;			/* 0: as the peer is; else 's' or 'r' */
	uint64_t count;			/* round trips of each kind; 0: until it is stopped */
	double interval, deadline, wait; /* s */
	uint32_t size[PING_SIZES], n_sizes;
	bool op[PING_OPS];
	struct xr_config cfg;
	uint8_t key[XR_KEY_LEN];
	int key_error;
};

/* What the server says first over the channel. */
struct ping_offer {
	char magic[8];			/* PING_MAGIC */
	uint32_t reason;		/* enum xr_reason: what would keep such a connection on TCP at its end */
	uint32_t room;
	struct xrdma_remote remote;
};
#define PING_MAGIC "xr-ping"

/* Everything about one path, for showing. */
struct ping_path {
	const struct ping_options *opt;
	char peer[80], local[80];	/* addresses with ports */
	uint64_t tcp_ns, meet_ns;
	bool is_local;			/* the peer is on this host */
	char fabric;			/* 's', 'r' */
	bool have_dev;
	struct xr_dev_caps caps;
	bool up;
	struct meet_result met;
	enum xr_reason why, here, there; /* what ended it; what would keep a connection on TCP at either end */
	/* the channel */
	struct meet *meet;
	struct xrdma_context *ctx;
	struct xrdma_channel *ch;
	struct ping_offer offer;
	bool offered, closed;
	uint64_t answers, dones;	/* that came in */
	const uint8_t *want;		/* what the next answer should be */
	size_t want_len;
	bool good;
};

extern volatile int ping_stopped;	/* by a signal; a sig_atomic_t */

/* --- ping_path.c --- */

/* 0 when there is a channel; else path->why, or -errno that was told. */
int ping_path_open(struct ping_path *path);
void ping_path_close(struct ping_path *path);
/* What the settings say of connections over this fabric and device. */
enum xr_reason ping_policy(const struct ping_options *opt, char fabric, const struct xr_dev_caps *caps);
/* A meet as a program has it, but for software devices, which are measured all the same. */
int ping_meet(const struct ping_options *opt, char fabric, const struct meet_ops *ops, void *arg, struct meet **m);
/* The pattern: position-dependent, of a round's number. */
void ping_fill(uint8_t *p, size_t len, uint64_t seed);

/* --- ping_run.c --- */

/* Exit status. */
int ping_run(struct ping_path *path, struct ping_series *s, size_t n);

/* --- ping_show.c --- */

void ping_show_path(const struct ping_path *path);
void ping_show_round(const struct ping_path *path, const struct ping_series *s, uint64_t seq, uint64_t ns);
void ping_show_end(const struct ping_path *path, struct ping_series *s, size_t n);
int ping_show_json(const struct ping_path *path, struct ping_series *s, size_t n);

/* --- ping_serve.c --- */

int ping_serve(const struct ping_options *opt);

#endif
