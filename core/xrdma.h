/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Messages over RDMA queue pairs; within a host over the shm device, which needs no hardware.
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

struct xrdma_msg {
	const void *data;	/* may be NULL when len is 0 */
	size_t len;		/* bytes, 0 to XRDMA_OPT_MAX_MSG of both ends */
	uint64_t id;		/* the sender's, carried as it is: requests and their answers */
	uint32_t imm;		/* the sender's, carried as it is */
	struct xrdma_mem *mem;	/* sending: data lies in it, see xrdma_reg_mem(); received: NULL */
};

/* Any of them may be NULL. `arg` is that of xrdma_context_create(). */
struct xrdma_callbacks {
	/* A peer connected to a name that this context listens to. */
	void (*accepted)(struct xrdma_channel *ch, void *arg);
	/* xrdma_connect() came to its end: from now on messages can be sent. */
	void (*connected)(struct xrdma_channel *ch, void *arg);
	/* A message; it and its data are valid until the callback returns. */
	void (*message)(struct xrdma_channel *ch, const struct xrdma_msg *msg, void *arg);
	/* The peer has processed a message that was sent from registered memory: it may change. */
	void (*sent)(struct xrdma_channel *ch, uint64_t id, void *arg);
	/*
	 * The channel ended without xrdma_close(), the last callback of it; the handle is invalid
	 * after the return. 0: the peer closed it, all it had sent was delivered before. Else
	 * -ECONNREFUSED, -ETIMEDOUT, -EHOSTUNREACH: nothing answered to xrdma_connect();
	 * -ECONNRESET: the peer is gone; -EPROTO: it sent what cannot be; -EMSGSIZE, -ENOMEM: a
	 * message could not be taken; -EIO: the device failed.
	 */
	void (*closed)(struct xrdma_channel *ch, int error, void *arg);
};

/*
 * Opens a device ("shm", or NULL for the default) with all that one thread needs. callbacks is copied.
 * -ENODEV: no such device; -EINVAL; -ENOMEM, -EMFILE. Any thread.
 */
int xrdma_context_create(struct xrdma_context **ctx, const char *device,
			 const struct xrdma_callbacks *callbacks, void *arg);

/*
 * Cuts every channel, without callbacks, deregisters all memory and frees the context; NULL is 0.
 * -EBUSY: called from a callback. The context's thread.
 */
int xrdma_context_destroy(struct xrdma_context *ctx);

enum xrdma_option {
	XRDMA_OPT_WINDOW_MSGS,	/* messages that a peer may send ahead: 1..1024, 64 */
	XRDMA_OPT_WINDOW_BYTES,	/* bytes of them: 65536..2^31, 8 MiB */
	XRDMA_OPT_MAX_MSG,	/* bytes of one message: 1..2^30, 64 MiB; never above a quarter of POOL_BYTES */
	XRDMA_OPT_POOL_BYTES,	/* registered memory of the context: 4 MiB..2^40, 256 MiB */
	XRDMA_OPT_COUNT
};

/*
 * For channels that are made afterwards. -EINVAL: unknown or out of range; -EBUSY: POOL_BYTES once
 * there was a channel. The context's thread.
 */
int xrdma_set_option(struct xrdma_context *ctx, enum xrdma_option option, uint64_t value);

/*
 * Accepts channels on a name: 1..64 characters out of [A-Za-z0-9._-], known within the network
 * namespace, open to processes of the same user and of root. Until the context is destroyed.
 * -EADDRINUSE, -EINVAL, -ENOMEM. The context's thread.
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
 * 4096 bytes and less travel in the SEND, more is READ by the peer.
 * -EAGAIN: 128 messages (twice the window, as a power of two) or half of POOL_BYTES wait for the
 * peer: poll and try again; -EMSGSIZE: more than both ends take; -ENOTCONN: not connected yet;
 * -EPIPE: it has ended; -EINVAL: data is not in mem. The context's thread.
 */
int xrdma_send_msg(struct xrdma_channel *ch, const struct xrdma_msg *msg);

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

/* -EBUSY: a message from it is still under way. NULL is 0. The context's thread. */
int xrdma_dereg_mem(struct xrdma_mem *mem);

/*
 * Ends a channel: what was sent is delivered first, as long as this context is polled and the peer
 * lives. The handle is invalid at once and there are no more callbacks of it. Never fails; NULL is
 * allowed. The context's thread.
 */
void xrdma_close(struct xrdma_channel *ch);

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
