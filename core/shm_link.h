/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What two processes share: a link.  One control connection (a Unix SOCK_SEQPACKET
 * socket), one arena each (a memfd of sealed size, written by its owner but for the
 * receiver's control lines), doorbells and completion entries.  All flows between
 * the same two processes ride on one link, so that a flow costs no descriptor and
 * no mapping.
 *
 *	arena:	header page
 *		sleeping[w]	written by the owner: "waiter w of mine sleeps, ring its bell"
 *		cq[w]		written by the owner: entries for the peer's waiter w
 *		directions	struct xr_shm_dir blocks, one size
 *		chunks		64 KiB each
 *
 * A waiter is whatever sleeps in a process: a thread in a blocking call, or an
 * epoll file.  Its doorbell towards one peer is an eventfd of its own, passed over
 * the control connection at first use, since a peer can drain or fill a doorbell
 * it holds.
 *
 * Ownership: a link is private to the process that made it; a forked child may
 * still notify over it and replay from its arena, but never allocates from it.
 * Thread-safe unless said otherwise (one internal spin lock guards allocation and
 * the table of bells; notification takes none).
 */
#ifndef XR_SHM_LINK_H
#define XR_SHM_LINK_H

#include <stddef.h>
#include <stdint.h>
#include "atomic.h"
#include "shm_chunk.h"
#include "shm_ring.h"

#define XR_SHM_MAGIC	0x78724134u	/* changes with the layout of the arena */
#define XR_SHM_VERSION	1u
#define XR_WAITERS	1024u		/* per process */
#define XR_ARENA_MIN	(1ull << 20)
#define XR_CQ_ENTRIES	512u		/* per waiter; overrun makes the reader scan its flows */

/*
 * Several threads of the writer append without a lock: an entry carries its own
 * number, and one that does not (not yet written, overwritten, or a lie) makes the
 * reader look at every flow of the link instead.
 */
struct xr_shm_cq {
	_Atomic uint32_t tail;			/* entries ever begun */
	uint32_t pad[31];
	_Atomic uint64_t entry[XR_CQ_ENTRIES];	/* number + 1:32 | the receiver's cookie:32 */
};

struct xr_shm_hdr {
	uint32_t magic, version;
	uint64_t size;
	uint32_t ndirs, dir_slots, nchunks, waiters;
	uint64_t sleep_off, cq_off, dir_off, chunk_off;
};

struct xr_shm_arena {
	uint8_t *base;
	uint64_t size;
	int fd;			/* memfd; -1 once it has been passed on */
	struct xr_shm_hdr hdr;	/* own copy, validated; the mapped one is never read again */
};

/*
 * Creates an arena for directions of `dir_slots` slots (power of two, XR_RING_MIN..
 * XR_RING_MAX).  -ENOMEM, -EMFILE, -EFBIG (RLIMIT_FSIZE), -ENOSYS.  Memory is taken
 * page by page at first touch.
 */
int xr_shm_arena_create(struct xr_shm_arena *a, uint64_t size, uint32_t dir_slots);

/*
 * Maps a peer's arena from a memfd that the peer passed.  -EPROTO when seals, size
 * or header are not what this version writes.  Does not take the descriptor over.
 */
int xr_shm_arena_attach(struct xr_shm_arena *a, int fd);
void xr_shm_arena_destroy(struct xr_shm_arena *a);

/* In nflows, under the list's lock: who wants a reference comes by that lock, so none is added without a look. */
#define XR_LINK_HELD	(1u << 31)

struct xr_shm_link {
	struct xr_shm_link *next;	/* list of the process; its lock is the owner's */
	int conn;			/* control connection; -1 when dead */
	int peer_pid;			/* SO_PEERCRED, of when the connection was made */
	uint32_t peer_uid;		/* likewise */
	uint8_t peer_uuid[16];
	uint64_t secret[2];		/* known to the two processes alone, binds later flows */
	uint64_t id;			/* which of possibly several links between the two */
	int side;			/* 0: this end called, 1: it was called */
	int diag;			/* the peer's query socket, where it is in another network namespace; else -1 */
	int owner_pid;
	_Atomic uint32_t nflows;	/* flows attached, and who has it in hand; XR_LINK_HELD */
	_Atomic uint32_t dead;
	struct xr_shm_arena own, peer;

	_Atomic uint32_t lock;		/* directions, bells, control connection */
	uint32_t dir_fresh, dir_free;	/* never used from here on; head of the free list */
	uint32_t *dir_next;		/* free list, private memory */
	uint32_t dirs_used;
	struct xr_chunks chunks;	/* without the lock */

	/* descriptor + 1, 0: none */
	_Atomic int *bell_rx;		/* own eventfd by own waiter */
	_Atomic int *bell_tx;		/* the peer's eventfd by the peer's waiter */
	uint32_t *cq_head;		/* entries taken, by own waiter */
	_Atomic uint32_t ringing;	/* threads between the look for a bell and its ring */
	uint64_t idle_ns;		/* no reference since then; under the list's lock */
	_Atomic uint64_t probed;	/* ns: a sleeper looked whether it is broken */
	/* the least that a traced message took to here, by the two clocks; INT64_MAX: none came.  For display. */
	_Atomic int64_t heard;
	uint32_t counted;		/* scratch of whoever counts references, under the list's lock */

	/*
	 * Messages that are not the link's own, under its lock, or NULL: a breach then.  The
	 * descriptors are closed afterwards.  0, or -errno: a breach.
	 */
	int (*said)(struct xr_shm_link *l, const void *msg, size_t len, const int *fds, int nfds);
	uint32_t queue;			/* bytes that may wait in the control connection for the peer */
	uint32_t queued;		/* that wait there, at most; under lock */

	/* handshakes over the link (upgrade_link.c) */
	struct xr_link_dest {		/* where connections to that process went; list's lock */
		uint8_t addr[16];
		uint16_t port, family;
	} dest[4];
	uint32_t ndest;
	_Atomic uint32_t credit;	/* offers that may be made */
	_Atomic uint64_t earned;	/* ns: credit for the time before has been given */
	uint64_t opened;		/* ns */
	_Atomic uint32_t calls;		/* that were made over it from here */
	uint32_t offers;		/* that came in; the link's lock */
	_Atomic uint32_t liar;		/* the peer claimed what it could not prove */
	_Atomic uint64_t looked_ns;	/* a handshake over it looked for its answer, ... */
	_Atomic uint32_t looked_by;	/* ... and which: its entry */
	size_t map_len;
};

/* Takes over conn and both arenas.  NULL when memory is short (nothing taken over then). */
struct xr_shm_link *xr_shm_link_new(int conn, const struct xr_shm_arena *own,
				    const struct xr_shm_arena *peer);
/* Unmaps what is shared; no flow may refer to the link any more.  Its own memory stays readable, and says so. */
void xr_shm_link_free(struct xr_shm_link *l);
/* Zeroed, for a link; NULL.  And back, when nobody refers to it. */
struct xr_shm_link *xr_shm_link_memory(size_t len);
void xr_shm_link_memory_put(struct xr_shm_link *l);

/*
 * A reference of a link that may have ended, or be another one by now: 1, or 0 where there is none to share, or
 * not now.  The caller looks whether it is the one that was meant, and lets go of it if not.
 */
static inline int xr_shm_link_try_ref(struct xr_shm_link *l)
{
	uint32_t n = xr_load_relaxed(&l->nflows);

	while (n && !(n & XR_LINK_HELD))
		if (xr_cas(&l->nflows, &n, n + 1))
			return 1;
	return 0;
}
/*
 * Gives all its descriptors back; the link is dead then, and its memory stays.  For when nobody
 * sleeps on it and no flow uses it.  Returns how many; 0 also when somebody rings just now.
 */
int xr_shm_link_strip(struct xr_shm_link *l);

/*
 * The budget of the process: beyond it no direction is to be had (the flow stays on TCP)
 * and no chunk (windows shrink to what the slots themselves hold).
 */
void xr_shm_budget(uint64_t bytes);
uint64_t xr_shm_used(void);

/* A direction block in the own arena, zeroed; returns its arena offset or 0. */
uint64_t xr_shm_link_dir_get(struct xr_shm_link *l);
void xr_shm_link_dir_put(struct xr_shm_link *l, uint64_t off);

/* The peer's direction block at an offset that the peer named; NULL when it is none. */
struct xr_shm_dir *xr_shm_link_peer_dir(struct xr_shm_link *l, uint64_t off);

/*
 * Gives the memory of chunks back to the kernel, but for a few, when none has been in use for half a second.
 * 1: it did.
 */
int xr_shm_link_trim(struct xr_shm_link *l, uint64_t now);

/* Chunk source for xr_shm_tx_init. */
void xr_shm_link_chunks(struct xr_shm_link *l, struct xr_shm_chunks *c);

/*
 * Tells the peer's waiter about the flow that the peer calls `cookie`: a completion
 * entry, and the doorbell when the waiter sleeps.  Returns 1 if the bell was rung, 0
 * if there was no need, -ENOENT if there is no bell to ring (its descriptor was lost:
 * the caller must reach the peer another way, by retreating the flow).  The caller has
 * published what the peer shall see.  Works in a forked child of the owner too.
 */
int xr_shm_link_notify(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie);

/*
 * The same towards a waiter of the own process, or of the parent in a forked child: for what
 * changes about a flow without the peer's doing.  A bell made after the fork is not known
 * to the child, and not rung.
 */
void xr_shm_link_notify_own(struct xr_shm_link *l, uint32_t waiter, uint32_t cookie);

/*
 * The eventfd that wakes own waiter w on this link; made and passed at first use, kept
 * for whoever has the number w next.  -errno.
 */
int xr_shm_link_bell(struct xr_shm_link *l, uint32_t w);
/* Says whether own waiter w sleeps; after "1" the caller looks at everything once more. */
void xr_shm_link_sleeping(struct xr_shm_link *l, uint32_t w, uint32_t on);

/* 1 if completion entries wait for own waiter w. */
static inline int xr_shm_link_pending(struct xr_shm_link *l, uint32_t w);

/*
 * Calls fn for each completion entry of waiter w; cookie UINT32_MAX means "overrun:
 * look at every flow of this link".  One caller per waiter at a time.
 */
void xr_shm_link_harvest(struct xr_shm_link *l, uint32_t w,
			 void (*fn)(void *arg, struct xr_shm_link *l, uint32_t cookie), void *arg);

/*
 * Takes what came in on the control connection.  0, or -errno once the link is dead
 * (the peer process is gone or wrote nonsense).  Never blocks.  A forked child
 * has no control connections, and hears nothing.
 */
int xr_shm_link_progress(struct xr_shm_link *l);

/*
 * A message over the control connection: 0, -EPIPE, -EAGAIN: enough lies there already (there is
 * always room for doorbells).  Never blocks.
 */
int xr_shm_link_send(struct xr_shm_link *l, const void *msg, size_t len, const int *fds, int nfds);

/* Keyed 64-bit tag (SipHash-2-4) over a message, for the secret of a link. */
uint64_t xr_siphash(const uint64_t key[2], const void *msg, size_t len);

/* SOCK_SEQPACKET helpers with descriptors; raw system calls, never block.  Bytes or -errno. */
ssize_t xr_unix_send(int fd, const void *msg, size_t len, const int *fds, int nfds);
/*
 * *nfds: room on entry, descriptors taken on return (high, close-on-exec).  -EBADMSG when
 * the message or its descriptors were truncated (all of them are closed then); 0 is the end.
 */
ssize_t xr_unix_recv(int fd, void *msg, size_t len, int *fds, int *nfds);
/* The same in two steps: descriptors as they came, to be closed at once, or to be kept. */
ssize_t xr_unix_recv_low(int fd, void *msg, size_t len, int *fds, int *nfds);
int xr_unix_raise(int *fds, int *nfds);

static inline struct xr_shm_cq *xr_shm_arena_cq(const struct xr_shm_arena *a, uint32_t w)
{
	return (struct xr_shm_cq *)(a->base + a->hdr.cq_off + (size_t)w * sizeof(struct xr_shm_cq));
}

static inline int xr_shm_link_pending(struct xr_shm_link *l, uint32_t w)
{
	/* acquire: pairs with the release of tail in xr_shm_link_notify */
	return xr_load_acquire(&xr_shm_arena_cq(&l->peer, w)->tail) != l->cq_head[w];
}

#endif
