/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Messages over RDMA queue pairs; within a host over the shm device, which needs no hardware, between
 * hosts over verbs, where the module libxrdma-verbs.so and what it needs are installed.
 *
 * Every function that can fail returns 0 or a count, else -errno (a negative value of
 * <errno.h>); errno itself is not touched.  Outputs are set on success only.
 *
 * Threads: a context and everything made from it is used by one thread at a time, and never by
 * a forked child.  Contexts are independent of each other; a program has one per thread.
 * Nothing blocks, and nothing runs unless the program calls: there is no hidden thread.
 *
 * Callbacks run inside xrdma_polling() and xrdma_process_event() only.  They may call every
 * function but these two and xrdma_context_destroy(), which are -EBUSY there.
 *
 * Sources: the terms are those of "X-RDMA: Effective RDMA Middleware in Large-scale Production
 * Environments" (IEEE CLUSTER 2019); the semantics below the messages are those of a reliable
 * connection, InfiniBand Architecture Specification, volume 1, chapters 9 to 12.
 */
#ifndef XRDMA_H
#define XRDMA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*
 * The version of the library that is loaded, "major.minor.patch". A constant string that the library
 * owns; never NULL, never fails, safe from any thread and from signal handlers.
 */
const char *xrdma_version(void);

struct xrdma_context;	/* what one thread drives */
struct xrdma_channel;	/* one connection: messages both ways, in order */
struct xrdma_mem;	/* memory of the program that is registered */

enum xrdma_kind {
	XRDMA_MESSAGE,
	XRDMA_REQUEST,		/* answer it with xrdma_send_response(), now or later */
	XRDMA_RESPONSE,
};

#define XRDMA_TRACE_LEN 16	/* bytes of a trace id, as in W3C Trace Context */

struct xrdma_msg {
	const void *data;	/* may be NULL when len is 0 */
	size_t len;		/* bytes, 0 to XRDMA_OPT_MAX_MSG of both ends */
	uint64_t id;		/* the sender's, carried as it is; of requests: the library's */
	uint32_t imm;		/* the sender's, carried as it is */
	struct xrdma_mem *mem;	/* sending: data lies in it, see xrdma_reg_mem(); received: NULL */
	const uint8_t *trace;	/* XRDMA_TRACE_LEN bytes that travel along; NULL: none */
	enum xrdma_kind kind;	/* received: what it is; sending: not looked at */
};

/* The answer to a request, valid until the return; NULL when error (-errno) says why there is none. */
typedef void xrdma_reply_fn(struct xrdma_channel *ch, const struct xrdma_msg *msg, int error, void *arg);

/* Any of them may be NULL. `arg` is that of xrdma_context_create(). */
struct xrdma_callbacks {
	/* A peer connected to a name that this context listens to. */
	void (*accepted)(struct xrdma_channel *ch, void *arg);
	/* xrdma_connect() came to its end: from now on messages can be sent. */
	void (*connected)(struct xrdma_channel *ch, void *arg);
	/*
	 * A message or a request; it and its data are valid until the callback returns. The data lies where
	 * the device has it, which on shm is memory that the sender can still write: who checks it copies it
	 * first, or sets XRDMA_OPT_COPY.
	 */
	void (*message)(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg);
	/* The peer has processed a message that was sent from registered memory: it may change. */
	void (*sent)(struct xrdma_channel *ch, uint64_t id, void *arg);
	/* xrdma_read() or xrdma_write() is complete; in the order they were begun. */
	void (*done)(struct xrdma_channel *ch, uint64_t id, void *arg);
	/*
	 * The channel ended without xrdma_close(), the last callback of it; the handle is invalid
	 * after the return. 0: the peer closed it, all it had sent was delivered before. Else
	 * -ECONNREFUSED, -ETIMEDOUT, -EHOSTUNREACH: nothing answered to xrdma_connect();
	 * -ECONNRESET: the peer is gone; -EPROTO: it sent what cannot be; -EMSGSIZE, -ENOMEM: a
	 * message could not be taken; -EIO: the device failed. Memory that was under way is let go of when
	 * the channel is drained, a few rounds later.
	 */
	void (*closed)(struct xrdma_channel *ch, int error, void *arg);
};

/*
 * Opens a device with all that one thread needs. "shm" or NULL is the one within a host; "verbs" is the best RDMA
 * device there is, "verbs:NAME" the one of this name, "verbs:ADDRESS" the one that has this IP address. callbacks
 * is copied. -ENODEV: no such device, or no module for it; -EADDRNOTAVAIL: it has no address that others could
 * reach; -EACCES: not allowed; -EPROTONOSUPPORT: iWARP; -EINVAL; -ENOMEM, -EMFILE. Any thread.
 */
int xrdma_context_create(struct xrdma_context **ctx, const char *device,
			 const struct xrdma_callbacks *callbacks, void *arg);

/*
 * Cuts every channel, without callbacks, deregisters all memory and frees the context; NULL is 0.
 * -EBUSY: called from a callback. The context's thread.
 */
int xrdma_context_destroy(struct xrdma_context *ctx);

enum xrdma_option {
	XRDMA_OPT_WINDOW_MSGS,	/* messages that a peer may send ahead, at most: 1..1024, 64 */
	XRDMA_OPT_WINDOW_BYTES,	/* bytes of them: 65536..2^31, 8 MiB */
	XRDMA_OPT_MAX_MSG,	/* bytes of one message: 1..2^30, 64 MiB; never above a quarter of POOL_BYTES */
	XRDMA_OPT_POOL_BYTES,	/* registered memory of the context: 4 MiB..2^40, 256 MiB */
	XRDMA_OPT_KEEPALIVE_MS,	/* probe what was silent so long, milliseconds: 0 (never)..3600000 */
	XRDMA_OPT_KEEPALIVE_PROBES, /* intervals without an answer that end a channel: 0 (none does)..100 */
	XRDMA_OPT_COPY,		/* 1: messages are delivered from memory of this end alone; 0..1, 0 */
	/*
	 * Microseconds of queue in the network that are aimed at, 0 (round trips say nothing)..1000000; 8, on
	 * shm and on devices that the kernel emulates 0. It bounds what is under way beside the windows that
	 * peers grant.
	 */
	XRDMA_OPT_QUEUE_US,
	XRDMA_OPT_FETCH_BYTES,	/* what is READ at once, over all channels: 65536..2^31, 64 MiB */
	XRDMA_OPT_QP_CACHE,	/* queue pairs that are kept for later channels: 0 (none)..4096, 64 */
	XRDMA_OPT_DETECT_MS,	/* a network: no acknowledgement for so long is the end, ms: 10..60000, 1000 */
	XRDMA_OPT_TOS,		/* a network: traffic class of packets, DSCP in the upper six bits: 0..255, 0 */
	/*
	 * A channel without messages for one to two times so many milliseconds gives back what it had for them,
	 * and grows again with the next ones: 0 (never)..3600000, 1000.
	 */
	XRDMA_OPT_REST_MS,
	/*
	 * What is recorded for xr-trace(1): 0 nothing; else each message that has a trace id, sent or received,
	 * and one in so many of the others that are sent, which then get one: 0..1000000000, 0.
	 */
	XRDMA_OPT_TRACE_SAMPLE,
	XRDMA_OPT_HUGE_PAGES,	/* 1: registered memory is in huge pages, when there are any: 0..1, 1 */
	/*
	 * How large messages of peers come here: 1 they are READ, 2 their senders WRITE them, 0 as suits the device.
	 * With COPY, and from a peer that cannot, they are READ: 0..2, 0.
	 */
	XRDMA_OPT_RENDEZVOUS,
	XRDMA_OPT_COUNT
};

/*
 * The keepalive options, QP_CACHE, REST_MS and TRACE_SAMPLE hold at once, HUGE_PAGES for memory and all others for
 * channels that are made afterwards. Preset for keepalive are 2000 ms and 3 probes, on the shm device 0 and 0: there
 * the kernel tells who died, and a peer that computes is not dead. -EINVAL: unknown or out of range; -EBUSY:
 * POOL_BYTES, QUEUE_US and FETCH_BYTES once there was a channel; -EACCES, -ENOSPC, ...: TRACE_SAMPLE, where records
 * cannot be kept. The context's thread.
 */
int xrdma_set_option(struct xrdma_context *ctx, enum xrdma_option option, uint64_t value);

/* A setting by name; unit of its numbers is what its name ends with, else bytes, a count, or nanoseconds. */
struct xrdma_flag {
	const char *name, *text;	/* constants; text is one line */
	uint64_t value, least, most;
};

/*
 * Changes a setting by name, at run time. With a context: its options, whose names are those of enum xrdma_option
 * without the prefix and in lower case; value is a number, bytes with K, M, G, T, times with us, ms, s, m, h.
 * Without one (NULL): settings of this process's TCP connections under the preload object, those of xr-stat --set.
 * -ENOENT: no such name; -EINVAL: not a value; -ERANGE; -ENODEV (NULL): no statistics of this process; and
 * what xrdma_set_option() says. The context's thread; with NULL any.
 */
int xrdma_set_flag(struct xrdma_context *ctx, const char *name, const char *value);

/* The setting with this index, from 0 on; -ENOENT: there are no more; -ENODEV as above. The context's thread. */
int xrdma_get_flag(const struct xrdma_context *ctx, unsigned int index, struct xrdma_flag *flag);

/*
 * Accepts channels on a name: 1..64 characters out of [A-Za-z0-9._-], known within the network
 * namespace, open to processes of the same user and of root; over verbs on "ADDRESS:PORT", "[IPV6]:PORT" or
 * "*:PORT", open to whoever can reach it. Until the context is destroyed. -EADDRINUSE, -EADDRNOTAVAIL,
 * -EINVAL, -ENOMEM. The context's thread.
 */
int xrdma_listen(struct xrdma_context *ctx, const char *name);

/*
 * Begins a connection; `connected` or `closed` says how it ended, within 10 s. -EINVAL, -ENOMEM,
 * -ENOBUFS (XRDMA_OPT_POOL_BYTES is used up). The context's thread.
 */
int xrdma_connect(struct xrdma_context *ctx, const char *name, struct xrdma_channel **ch);

/*
 * Sends a message, in order behind those before. The data is copied, unless msg->mem says that it is
 * registered and len exceeds 4096: then it must not change until `sent`, or the end of the channel.
 * 4096 bytes and less travel in the SEND, more is READ by the peer, or WRITten to where it says
 * (XRDMA_OPT_RENDEZVOUS); the peer may have receives for less just after a rest (XRDMA_OPT_REST_MS).
 * -EAGAIN: 128 messages (twice the window, as a power of two) or half of POOL_BYTES wait for the
 * peer: poll and try again; -EMSGSIZE: more than both ends take; -ENOTCONN: not connected yet;
 * -EPIPE: it has ended; -EINVAL: data is not in mem. The context's thread.
 */
int xrdma_send_msg(struct xrdma_channel *ch, const struct xrdma_msg *msg);

/*
 * A message that is answered: `reply` is called once, in a later call, with the answer or with what the
 * channel ended with; never when this end closes the channel. id and mem are as in xrdma_send_msg(), but the
 * id that travels is the library's. Errors are those of xrdma_send_msg(), and -EINVAL without reply, -ENOMEM.
 */
int xrdma_send_request(struct xrdma_channel *ch, const struct xrdma_msg *msg, xrdma_reply_fn *reply,
		       void *arg);

/* Answers the request that had this id, once. Errors are those of xrdma_send_msg(). */
int xrdma_send_response(struct xrdma_channel *ch, uint64_t id, const struct xrdma_msg *msg);

/*
 * One round over all channels: the number of things that happened, 0 when there were none.
 * For programs that spin. -EBUSY: from a callback. The context's thread.
 */
int xrdma_polling(struct xrdma_context *ctx);

/*
 * A descriptor that is readable when xrdma_process_event() has something to do; call that once before the
 * first sleep. It belongs to the context. Never fails. The context's thread; poll it from any.
 */
int xrdma_get_event_fd(struct xrdma_context *ctx);

/*
 * Does what there is to do and arms the descriptor. 0: armed, the program may sleep; 1: there is more,
 * call again before sleeping. -EBUSY: from a callback. The context's thread.
 */
int xrdma_process_event(struct xrdma_context *ctx);

/*
 * Registers memory from which large messages are sent without a copy: it must stay mapped until
 * xrdma_dereg_mem(). No peer can read more of it than a message that was sent to it, nor longer than
 * until that is processed. -EINVAL: length 0 or NULL; -ENOMEM. The context's thread.
 */
int xrdma_reg_mem(struct xrdma_context *ctx, void *addr, size_t len, struct xrdma_mem **mem);

/*
 * Allocates memory and registers it; *addr is zeroed and page-aligned, and goes with xrdma_dereg_mem().
 * -EINVAL: length 0; -ENOMEM. The context's thread.
 */
int xrdma_alloc_mem(struct xrdma_context *ctx, size_t len, struct xrdma_mem **mem, void **addr);

/*
 * -EBUSY: a message from it is still under way, or a grant of it is open on a channel. NULL is 0. The
 * context's thread.
 */
int xrdma_dereg_mem(struct xrdma_mem *mem);

/* What a peer may do with granted memory; sent to it in a message, as it is. */
struct xrdma_remote {
	uint64_t addr, len;
	uint32_t key, access;
};

#define XRDMA_GRANT_READ  1u
#define XRDMA_GRANT_WRITE 2u

/*
 * Opens a part of registered memory to the peer of one channel, until xrdma_revoke() or the end of the
 * channel. -EINVAL: not within mem, length 0, no access; -ENOTCONN, -EPIPE, -ENOMEM. The context's thread.
 */
int xrdma_grant(struct xrdma_channel *ch, struct xrdma_mem *mem, void *addr, size_t len,
		unsigned int access, struct xrdma_remote *remote);
void xrdma_revoke(struct xrdma_channel *ch, const struct xrdma_remote *remote);

/*
 * Copies len bytes between registered memory of this end and granted memory of the peer at an offset,
 * without the peer's program; `done` says when. Neither side is touched in between, and the peer is not
 * told. 16 at most are under way: -EAGAIN. -EINVAL: beyond either memory, length 0; -ENOTCONN, -EPIPE.
 * What the peer does not allow (any more) ends the channel with -EIO, as the end of the channel ends what
 * is under way, without `done`. On shm the peer must poll. The context's thread.
 */
int xrdma_read(struct xrdma_channel *ch, struct xrdma_mem *mem, void *to, size_t len,
	       const struct xrdma_remote *remote, uint64_t offset, uint64_t id);
int xrdma_write(struct xrdma_channel *ch, struct xrdma_mem *mem, const void *from, size_t len,
		const struct xrdma_remote *remote, uint64_t offset, uint64_t id);

/*
 * Ends a channel: what was sent is delivered first, as long as this context is polled and the peer
 * lives. The handle is invalid at once and there are no more callbacks of it. Never fails; NULL is
 * allowed. The context's thread.
 */
void xrdma_close(struct xrdma_channel *ch);

struct xrdma_channel_stats {
	uint64_t msgs_sent, bytes_sent, msgs_received, bytes_received;
	uint64_t fetched;		/* of those received: READ from the sender's memory */
	uint64_t control_sent, control_received;	/* acknowledgements alone, closes */
	uint64_t waited;		/* messages that had to wait for the peer's credit */
	uint64_t refused;		/* -EAGAIN */
	uint64_t probes;		/* keepalive */
	uint64_t unacked_msgs, unacked_bytes;		/* gauges: on the way or not yet processed */
	uint64_t queued_msgs;		/* gauge: waiting for credit */
	uint64_t peer_msgs, peer_bytes;	/* what the peer grants */
	uint64_t net_bytes, net_fetch_bytes;	/* gauges: what the network is thought to take, SENDs and READs */
	uint64_t held;			/* times that something waited for that */
	uint64_t marked, rnr;		/* signals of congestion, and receivers that were not ready */
	uint64_t cuts;			/* times that net_bytes or net_fetch_bytes were made smaller */
	uint64_t recv_msgs, recv_bytes;	/* gauges: what this end grants, memory that its receives hold */
	uint64_t resized, fillers;	/* times that these changed; SENDs of no bytes, for those of the peer */
	uint64_t rtt_ns;		/* smoothed, from post to completion; 0: not measured (QUEUE_US 0) */
};

struct xrdma_context_stats {
	uint64_t channels;		/* gauge: those that are being made or ended included */
	uint64_t qp_hits, qp_misses;	/* channels with a queue pair that was used before; with a new one */
	uint64_t qp_cached;		/* gauge: queue pairs that wait to be used again */
	uint64_t qp_dropped;		/* that could not be kept */
	uint64_t stale;			/* completions of earlier users of a queue pair */
	uint64_t pool_bytes, pool_buffers;	/* gauges: registered memory, buffers of it in use */
	uint64_t pool_huge;		/* gauge: of that memory, what is in huge pages */
	uint64_t huge_missed;		/* pieces of it that there were not enough huge pages for */
	uint64_t pool_far;		/* gauge, a second old: of it, and of xrdma_alloc_mem(), on another node */
	uint64_t node_refused;		/* pieces of it whose node could not be chosen */
	uint64_t recv_bytes;		/* gauge: of that memory, what receives hold */
	uint64_t fetching;		/* gauge: bytes that are being READ */
};

/* Never fails. The context's thread. */
void xrdma_get_context_stats(const struct xrdma_context *ctx, struct xrdma_context_stats *stats);

/* Never fails. The context's thread. */
void xrdma_get_channel_stats(const struct xrdma_channel *ch, struct xrdma_channel_stats *stats);

/* A pointer of the program's own, NULL at first. Never fail. The context's thread. */
void xrdma_set_user(struct xrdma_channel *ch, void *user);
void *xrdma_get_user(const struct xrdma_channel *ch);
struct xrdma_context *xrdma_get_context(const struct xrdma_channel *ch);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
