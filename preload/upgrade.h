/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Upgrade to shm: messages of the handshake, between upgrade.c (state machine) and
 * rendezvous.c (the sockets).
 *
 *	connecting end ("host")			accepting end ("caller")
 *	listens on a name made of both endpoints
 *						connects, CALL + proof
 *	ANSWER + proof [+ arena]
 *						SETUP [+ arena]
 *	both attach, set READY in shared memory, and publish START when the other is ready
 *
 * The first handshake of two processes leaves them a link; its connection becomes the
 * link's control connection.  Later ones name that link and prove with a tag under its
 * secret that they come from the very process at its other end.  Mostly they need no name and
 * no connection either (upgrade_link.c): the host offers the flow over the links that lead to
 * where it is connected, the caller answers the offer, and the messages go over the link.
 */
#ifndef XR_UPGRADE_H
#define XR_UPGRADE_H

#include <stdint.h>
#include "flow.h"
#include "proof.h"

#define XR_UP_MAGIC	0x78726d31u
#define XR_UP_VERSION	2u
#define XR_UP_MAX	64		/* handshakes of one process at a time by name, with a descriptor each */
#define XR_UP_LINKED	8192u		/* and over links; a power of two */

enum xr_up_type { XR_UP_CALL = 1, XR_UP_ANSWER = 2, XR_UP_SETUP = 3, XR_UP_OFFER = 4, XR_UP_REFUSE = 5 };

#define XR_UP_LINK	1u		/* over the link `link_id`, `tag` proves it */
#define XR_UP_DIR	2u		/* between network namespaces (rundir.h) */

struct xr_up_msg {
	uint32_t magic, version, type, size;
	uint8_t uuid[16];		/* of the sending process */
	uint64_t nonce;			/* the sender's */
	uint64_t echo;			/* the receiver's nonce, 0 in CALL */
	uint64_t link_id, tag;
	uint64_t dir_off;		/* the sender's direction in its arena; 0 in CALL */
	uint32_t cookie;		/* what the sender calls the flow */
	uint32_t flags;
	struct xr_tuple tuple;		/* as the sender sees it; to DIR it may be other addresses than ours */
};

enum xr_up_state {
	XR_UP_OFFERED,			/* host: over links, nobody has called yet */
	XR_UP_LISTENING,		/* host: name is open */
	XR_UP_CALLED,			/* host: CALL is good, a link to that process is being made */
	XR_UP_ANSWERED,			/* host: waits for SETUP */
	XR_UP_CALLING,			/* caller: waits for ANSWER */
	XR_UP_SETTING,			/* caller: SETUP is ready, the link was full */
	XR_UP_FAR,			/* both, to another host: the module looks for the other end */
	XR_UP_EXCHANGED,		/* both: attached, finish() to go */
	XR_UP_READY,			/* READY said, START not yet published */
};

struct xr_up_box;

struct xr_upgrade {
	_Atomic(struct xr_flow *) f;	/* NULL: free; the rest under its tx_lock */
	int state;
	int lfd, conn;
	uint32_t ios;			/* I/O calls since it began */
	uint32_t refused;
	uint32_t far;			/* the peer is on another host */
	uint32_t dir;			/* it is in another network namespace */
	int diag;			/* its query socket, until there is a link */
	uint32_t counted;		/* as an attempt, of which nothing has come so far */
	enum xr_reason why;		/* it failed for this, and may be tried again after */
	uint32_t again_ms;
	uint32_t turns;			/* the flow's when it began */
	uint64_t bytes;			/* that the socket had carried by then, both ways */
	uint64_t begun;			/* ns */
	uint64_t looked, lived;		/* ns: up_lived */
	uint64_t nonce, peer_nonce;
	struct xr_tuple tuple;		/* what both ends know */
	struct xr_tuple real;		/* the addresses as they are; the same, but for dir */
	struct xr_witness {
		struct xr_tuple claim;	/* addresses of the socket that the peer has shown, in its namespace */
		uint32_t inode, hits, looks, even, broken;
		uint64_t seen;		/* bytes that it had received when it was looked at last */
	} witness;
	struct xr_up_msg call;		/* host: the CALL it answers; caller: the SETUP that it could not send */
	struct xr_up_box *box;		/* over a link: what came in; NULL: by name */
	struct xr_shm_link *via;	/* that link, with a reference; NULL: not known yet */
	struct xr_shm_link *link;	/* with a reference, or NULL */
	struct xr_shm_arena arena;	/* own, while the link is being made */
	int new_link, own_dir;
	uint64_t answered;		/* ns: host, with a link to be made */
	/* of the last time, until this time is agreed upon; link NULL: a first upgrade */
	struct xr_up_past {
		struct xr_shm_link *link;
		struct xr_shm_dir *own, *peer;
		uint64_t dir_off;
		uint32_t gen, cookie;
	} past;
	uint64_t peer_dir_off;
	uint32_t peer_cookie;
};

/* A socket for a rendezvous point, abstract or in the run directory.  Descriptor as below, or -errno. */
int xr_rendezvous_socket(void);
/* Opens the name / calls it.  Descriptor (high, non-blocking) or -errno. */
int xr_rendezvous_listen(const struct xr_tuple *t);
int xr_rendezvous_call(const struct xr_tuple *t);
int xr_rendezvous_accept(int lfd);

/* The flow is due: begins an attempt if it may move (upgrade_begin.c); tx_lock of the flow held. */
void xr_up_begin(struct xr_flow *f, int fd);

/* The number goes first: a child forked in between would close whatever has it by then. */
static inline void xr_up_close(int *fd)
{
	int n = *fd;

	*fd = -1;
	xr_fd_close(n);
}

/* ---- attempts (upgrade_attempt.c); tx_lock of the flow held ---- */

/* A place for an attempt by name, or over a link; perhaps an idle one's.  NULL: there is none. */
struct xr_upgrade *xr_up_claim(struct xr_flow *f);
struct xr_upgrade *xr_up_claim_link(struct xr_flow *f);
/* There is nobody at the other end that would speak.  1: there is another way to try. */
int xr_up_elsewhere(struct xr_flow *f, uint32_t dir);
/* No further attempt: the flow stays where it is, for this reason. */
void xr_up_give_up(struct xr_flow *f, enum xr_reason why);
/* For want of descriptors: another one.  0: waited long enough. */
int xr_up_scarce_later(struct xr_flow *f);
/* Shows that nobody has called yet, where somebody would have. */
void xr_up_unheard(struct xr_upgrade *u);
int xr_up_is_expired(struct xr_upgrade *u);
void xr_up_expired(struct xr_upgrade *u);
/* It ends without result; what it named to the peer is marked gone. */
void xr_up_drop(struct xr_upgrade *u);
/* ... for this reason; the caller has taken the fabric path out of use, or never into it. */
void xr_up_fail(struct xr_upgrade *u, enum xr_reason why);
/* A step of it failed: another attempt, or none. */
void xr_up_step_failed(struct xr_upgrade *u, int r);
/* Its place is free; nothing else is done. */
void xr_up_free(struct xr_upgrade *u);
/* The reason for now; it goes on looking. */
void xr_up_found_nobody(struct xr_flow *f);
/* The same, not counted: the first that is known of it. */
void xr_up_show(struct xr_flow *f, enum xr_reason why);
/* Another attempt when the connection has lived on for a while. */
void xr_up_later(struct xr_flow *f, uint32_t turns, uint64_t bytes);

/* ---- over a link (upgrade_link.c) ---- */

/* An entry with u->f set to f, or NULL: all are taken. */
struct xr_upgrade *xr_up_link_claim(struct xr_flow *f);
void xr_up_link_free(struct xr_upgrade *u);
/* Puts the number of the entry into its nonce, which answers repeat. */
void xr_up_link_nonce(struct xr_upgrade *u);
/* Entry i, in use or not; NULL: never used. */
struct xr_upgrade *xr_up_link_at(uint32_t i);
/* Offers the flow of u.  0; -EAGAIN: links are full; -EBUSY: no credit; -ENOENT: nobody to offer it to. */
int xr_up_offer(struct xr_upgrade *u);
/* Hears the links now and then.  1: there may be offers. */
int xr_up_offers(void);
/* Is the flow on offer?  take: it is no longer; the link with a reference, and the nonce of the offer. */
int xr_up_offered(const struct xr_tuple *t, int take, struct xr_shm_link **l, uint64_t *nonce);
/* An offer that was taken and could not be answered yet. */
void xr_up_offer_back(const struct xr_tuple *t, const struct xr_shm_link *l, uint64_t nonce);
/* What came in for u: 0, -EAGAIN: nothing, -EPIPE: nothing will.  Sets u->via when that is not known. */
int xr_up_link_get(struct xr_upgrade *u, struct xr_up_msg *m, struct xr_proof_seen *s);
/* To be told of every link: what the peer says beyond what a link needs. */
void xr_up_link_open(struct xr_shm_link *l);
void xr_up_link_forked(void);

/* Pure: is this message what `type` should look like?  0, -EPROTONOSUPPORT (version), -EBADMSG. */
int xr_up_check(const struct xr_up_msg *m, size_t len, enum xr_up_type type,
		const struct xr_tuple *own);
uint64_t xr_up_tag(const struct xr_shm_link *l, enum xr_up_type type, uint64_t nonce,
		   uint64_t echo);

/* Handshakes under way; an entry is free when its f is NULL. */
extern struct xr_upgrade xr_up_table[XR_UP_MAX];

/*
 * One step of the exchange (upgrade_exchange.c), tx_lock of the flow held: 0, with
 * u->state moved on or not; or the error that ends the attempt.
 */
int xr_up_host_step(struct xr_upgrade *u, int fd);
int xr_up_call(struct xr_upgrade *u, int fd);
/* The same over u->via, in answer to the offer u->peer_nonce. */
int xr_up_call_link(struct xr_upgrade *u, int fd);
int xr_up_caller_step(struct xr_upgrade *u, int fd);
enum xr_reason xr_up_errno_reason(int r);

/*
 * The switch itself (upgrade_switch.c), tx_lock held: READY, and START once the peer is ready; 0 or -errno, of which
 * xr_up_switch_reason() makes an enum xr_reason.  *waiter: to be told after unlocking.
 */
int xr_up_finish(struct xr_upgrade *u, int fd);
int xr_up_start(struct xr_upgrade *u, int fd, uint32_t *waiter);
int xr_up_switch_reason(int r);

/* The flow's two directions, of a link that is known to both ends.  0 or -errno. */
int xr_up_own_dir(struct xr_upgrade *u);
int xr_up_peer_dir(struct xr_upgrade *u);

/* The same to another host (upgrade_far.c); -ECANCELED: u->why says it. */
int xr_up_far_begin(struct xr_upgrade *u);
int xr_up_far_step(struct xr_upgrade *u);
/* It is given up, in whatever state it is. */
void xr_up_far_drop(struct xr_upgrade *u);

/*
 * May this flow be upgraded, as far as this end knows (policy.c)?  NONE: yes, and which way; YOUNG: ask again.
 */
enum xr_up_way { XR_WAY_NEAR, XR_WAY_FAR, XR_WAY_DIR };
enum xr_reason xr_up_eligible(struct xr_flow *f, int fd, struct xr_tuple *t, uint32_t *way);

/*
 * An attempt of a flow that was on a fabric before (flow_return.c): what there is of the
 * last time is set aside, put back when the attempt fails, given away when it succeeds.
 */
void xr_up_past_keep(struct xr_upgrade *u);
void xr_up_past_restore(struct xr_upgrade *u);
void xr_up_past_forget(struct xr_upgrade *u);

void xr_upgrade_forked(void);

#endif
