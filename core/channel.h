/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A channel: messages over one queue pair, through fabric.h only.
 *
 * Up to XR_CHANNEL_EAGER bytes travel in the SEND itself; a larger message is announced, and
 * the receiver READs it from the sender's memory in fragments of XR_CHANNEL_FRAGMENT bytes, or says where to, and the
 * sender WRITEs it there (channel_write.c says when which).
 * Messages are delivered in the order they were sent.  The sender's buffer is held until the
 * message is acked and its SEND has completed.
 *
 * A channel at rest has few and short receives, more and longer ones while there is traffic.  Receives are
 * used in the order in which they were posted, whatever comes, and nobody can take one back: so they come
 * in banks.  The next bank is posted behind the one before, and an ACK tells the peer at which of
 * its SENDs, counted from the first, the new bank begins, what it grants and what its receives
 * hold.  The peer fills up to there with SENDs of no bytes, and the old bank is empty.
 *
 * Beside the credits of the peer there is what the network takes (window_adapt.h): a window for what
 * is sent, one for what is READ, and a budget of READs for all channels of a context.
 *
 * Closing: CLOSE follows everything that was sent; its receiver delivers what came before,
 * answers with a CLOSE of its own, whose ack settles all, and the one that asked disconnects.
 *
 * Everything that a peer wrote is checked before it is used; what is impossible ends the
 * channel with -EPROTO.
 */
#ifndef XR_CHANNEL_H
#define XR_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include "atomic.h"
#include "context.h"
#include "mem.h"
#include "pool.h"
#include "trace.h"
#include "window.h"
#include "window_adapt.h"

#define XR_CHANNEL_EAGER	4096u
#define XR_CHANNEL_FRAGMENT	65536u
#define XR_CHANNEL_MAGIC	0x58524348u	/* "XRCH", changes with the layout */
#define XR_CHANNEL_VERSION	4u
#define XR_GENERATIONS		0xffffffu
#define XR_CHANNEL_REST		8u	/* messages that a channel at rest grants */
#define XR_CHANNEL_LEAN		256u	/* bytes of one of its receives */
#define XR_CHANNEL_FILLS	8u	/* SENDs of no bytes under way */

enum xr_msg_type {
	XR_MSG_EAGER = 1, XR_MSG_ANNOUNCE, XR_MSG_ACK, XR_MSG_CLOSE,
	XR_MSG_PLACE,	/* the message with the number of its ack is to be WRITten to id, imm bytes, with the key len */
	XR_MSG_THERE,	/* the message with the number imm was */
};

/* Flags of a header; of data only, but for the last. */
#define XR_MSG_TRACE		1u	/* a trace id follows the header */
#define XR_MSG_REQUEST		2u
#define XR_MSG_RESPONSE		4u
#define XR_MSG_LAST		16u	/* its sender may send no more before it hears of an ack */
#define XR_MSG_ECE		8u	/* what this end received met congestion */

#define XR_MSG_TRACE_LEN	16u
#define XR_MSG_EAGER_MAX	(32u + XR_MSG_TRACE_LEN + XR_CHANNEL_EAGER)

/*
 * In front of every message, then the trace id if there is one, then xr_msg_where or the
 * payload.  Host order: the magic of a peer of the other order does not fit.
 */
struct xr_msg_hdr {
	uint8_t version;
	uint8_t type;
	uint8_t flags;
	uint8_t ctl;		/* control messages received so far */
	uint32_t seq;		/* data: its number; control: the next one */
	uint32_t ack;		/* every message before it is processed */
	uint32_t imm;		/* ACK: XR_GRANT() */
	uint64_t id;		/* ACK: the SEND of its receiver from which on that holds */
	uint64_t len;		/* bytes of the message; ACK: ns of its sender's clock, 0: not said */
};

/* Messages that a peer may send ahead, and bytes of one that travels in its SEND. */
#define XR_GRANT(msgs, eager)	((uint32_t)(msgs) | (uint32_t)(eager) << 16)
#define XR_GRANT_MSGS(g)	((g) & 0xffffu)
#define XR_GRANT_EAGER(g)	((g) >> 16)
#define XR_EAGER_LEAST		64u	/* less is not granted */

struct xr_msg_where {
	uint64_t addr;
	uint32_t rkey;
	uint32_t reserved;
};

/* Private data of connect and accept: what this end grants. */
struct xr_hello {
	uint32_t magic;
	uint16_t version;
	uint16_t most;		/* messages that it may come to grant */
	uint32_t grant;		/* XR_GRANT() */
	uint32_t first;		/* both directions start with this number; accept repeats it */
	uint64_t bytes;
	uint64_t max_msg;
	uint32_t generation;	/* of this end; accept: and the one that it answers */
	uint32_t answers;
	/* peers before these was known end here: it is 0 of them */
	uint32_t features;
	uint32_t zero;
};

#define XR_HELLO_LEAST	offsetof(struct xr_hello, features)
#define XR_HELLO_WRITES	1u	/* it can WRITE what it announced */
#define XR_HELLO_PLACES	2u	/* and wants what is announced to it WRITten */

struct xr_out {			/* a message between send and settled */
	struct xr_buf buf;	/* header, and the payload unless that lies in mem; none: the device copied it */
	struct xrdma_mem *mem;
	const void *data;
	uint64_t id, len;
	uint64_t at;		/* ns: when it went (0: unknown); of traced ones, before that: when it was queued */
	uint32_t imm, rkey, wire;	/* wire: bytes of its SEND */
	uint8_t flags;		/* those of its header, and XR_OUT_* */
	uint8_t announced;	/* it went as an announcement */
	uint8_t trace[XR_MSG_TRACE_LEN];
};

/* Beside XR_MSG_TRACE, and not sent. */
#define XR_OUT_TRACED	64u	/* records are made of it */
#define XR_OUT_QUEUED	128u	/* the first one is */

struct xr_in {			/* a receive, and the message that came in it */
	struct xr_buf buf;	/* none: by reference, unless copied */
	const uint8_t *data;
	uint32_t len, ref;
	uint8_t copied;		/* it came by reference, and has to wait */
	struct xr_msg_hdr h;	/* checked private copies: what is by reference may change */
	struct xr_msg_where where;
	uint8_t trace[XR_MSG_TRACE_LEN];
	const uint8_t *payload;
};

struct xr_bank {		/* receives that were posted together */
	struct xr_in *in;	/* NULL: none */
	uint32_t n;
	uint32_t left;		/* that are posted, or hold a message */
	uint32_t size;		/* bytes of each; 0: by reference */
};

struct xr_call {		/* a request without an answer yet */
	struct xr_call *next;
	uint64_t id;
	xrdma_reply_fn *reply;
	void *arg;
};

#define XR_CALL_BUCKETS	64u
#define XR_ONE_MAX	16u	/* one-sided operations under way */
#define XR_READ_MAX	16u	/* fragments under way */

struct xr_one {
	struct xrdma_mem *mem;
	uint64_t id;
};

enum xr_put {			/* a message that is WRITten */
	XR_PUT_NONE,
	XR_PUT_WRITES,
	XR_PUT_SAYS,		/* all of it is posted */
	XR_PUT_SAID,		/* and THERE behind it */
};

enum xr_rendezvous {		/* XRDMA_OPT_RENDEZVOUS */
	XR_RENDEZVOUS_AUTO, XR_RENDEZVOUS_READ, XR_RENDEZVOUS_WRITE
};

enum xr_channel_state {
	XR_CH_OPENING,
	XR_CH_OPEN,
	XR_CH_CLOSING,		/* the program is out of it; CLOSE and its answer are under way */
	XR_CH_DEAD,		/* the QP is in ERR; freed when that is drained */
};

struct xrdma_channel {
	struct xrdma_context *ctx;
	struct xrdma_channel *next;
	void *user;
	struct xr_qp *qp;
	struct xr_qp_attr attr;	/* that it was made with */
	struct xr_cm_id *id;
	struct xr_addr peer;	/* a network: who connected, or was connected to */
	uint32_t generation;	/* tells this channel from others that had its queue pair */
	uint32_t peer_generation;
	enum xr_channel_state state;
	int error;		/* DEAD: why */
	uint8_t accepting;	/* the peer connected to us */
	uint8_t rejected;	/* DEAD: somebody was there, and did not want it */
	uint8_t silent;		/* no callbacks any more */
	uint8_t draining;	/* DEAD, and the sentinels were posted */
	uint8_t sentinels;	/* that have not completed */
	uint8_t close_sent, close_seen, close_done;
	uint8_t busy;		/* in xr_channel_progress(): callbacks may lead here again */
	uint64_t max_msg;	/* what the peer takes */
	uint64_t own_bytes, own_max;	/* what it was told: options may change later */
	struct xr_window win;
	uint32_t *charge;

	/* send ring, by number & out_mask: released <= una, completed <= snd_nxt <= queued */
	struct xr_out *out;
	uint32_t out_mask, out_most;	/* it grows as it is needed */
	uint32_t released, completed, queued;
	/* control messages have buffers of their own, half in each; they complete in order */
	struct xr_buf ctl[2];
	uint32_t ctl_posted, ctl_done;
	/* the peer's receives: SENDs so far, to be filled up to, and what one may carry before and after */
	uint32_t sends, fill_to, fills;
	uint32_t grant, eager, eager_before;
	uint8_t filling;

	/* receives; arg of XR_WR_ID_RECV is bank : 16 | index : 16 */
	struct xr_bank bank[2];
	uint32_t cur;		/* the other one is being emptied, or none */
	uint32_t posted, begins;	/* receives so far; the first one of the bank */
	uint32_t most;		/* messages that this end may come to grant */
	uint8_t long_wanted;	/* messages come that short receives do not hold */
	uint8_t grant_due;	/* the peer has not heard of the bank */
	uint8_t awake;		/* there was traffic: it is to be looked at */
	uint8_t stirred;	/* since the last look */
	uint8_t cramped;	/* there was no memory for more: so often it is not asked for */
	uint8_t owes;		/* a message is done whose sender's memory waits for the ack */
	/* args of messages that are not delivered, in order; OPENING: of whatever came */
	uint32_t *arrived;
	uint32_t arr_mask, arr_head, arr_tail;

	/* READs of the message at arr_head */
	struct xr_buf rd;
	uint64_t rd_posted, rd_got;
	uint32_t rd_out, rd_max;
	uint64_t rd_at[XR_READ_MAX];
	uint32_t rd_first;	/* oldest one of them, by number */

	/*
	 * channel_write.c.  Whether this end places what the other announces, and the other way round; bytes of the one
	 * at arr_head that is placed and not there, 0: none is.  What this end WRITEs, of the message with that number:
	 * nothing new of it is sent before all of that has completed.
	 */
	uint8_t places, peer_places, put, asked;
	uint64_t placed;
	uint32_t place_rkey, put_rkey, put_seq, put_out, put_first;
	uint64_t put_addr, put_posted, put_at[XR_READ_MAX];
	uint32_t asked_seq, asked_rkey;	/* the next one, for which the peer has asked already */
	uint64_t asked_addr;

	/* what the network takes: SENDs, READs */
	struct xr_adapt tx, rx;
	uint8_t ece;		/* the peer is to be told of congestion */

	/* channel_trace.c: the peer's clock, and the traced message that an ACK would tell of it */
	struct xr_clock clock;
	uint64_t clock_at, clock_said;
	uint64_t trace_no;	/* tells channels of the process apart; 0: nothing was recorded yet */
	uint32_t clock_seq;
	uint8_t clock_due;	/* the peer wants to hear of ours */

	/* rpc.c */
	struct xr_call **calls;	/* XR_CALL_BUCKETS, at the first request */
	uint64_t next_call;
	/* onesided.c: in order */
	struct xr_one one[XR_ONE_MAX];
	uint32_t one_head, one_done;
	/* keepalive.c */
	uint32_t missed;	/* looks at a probe that is not answered */
	uint8_t alive;		/* it was heard of since the last look */
	uint8_t probing;
	uint64_t probe_at;	/* ns */

	/* channel_stats.c */
	_Atomic uint64_t *count;	/* XR_CHAN_COUNT, in the slot, or own */
	struct xr_chanstats_slot *slot;	/* NULL: none */
	struct xrdma_channel *next_untold;
	uint8_t listed;		/* it is counted among those of the process */
	uint8_t untold;		/* something changed that its slot does not say, or there is none */
	_Atomic uint64_t own[XR_CHAN_COUNT];
};

/* --- channel.c: beginning and end --- */

int xr_channel_connect(struct xrdma_context *ctx, const char *name, struct xrdma_channel **ch);
int xr_channel_connect_to(struct xrdma_context *ctx, const struct xr_addr *addr, struct xrdma_channel **ch);
/* Takes or rejects a request. */
void xr_channel_request(struct xrdma_context *ctx, const struct xr_cm_event *ev);
/* ESTABLISHED, REJECTED, UNREACHABLE, DISCONNECTED. */
void xr_channel_event(struct xrdma_channel *ch, const struct xr_cm_event *ev);
void xr_channel_close(struct xrdma_channel *ch);
/* The QP goes to ERR at once; the program is told at the end of the round. */
void xr_channel_fail(struct xrdma_channel *ch, int error);
/* DEAD, and its program knows: 1 when it can be freed, 0 when it is still being drained. */
int xr_channel_drained(struct xrdma_channel *ch);
void xr_channel_free(struct xrdma_channel *ch);

/* --- channel_stats.c: what is counted --- */

/* It is in the list of the context: xr-stat shows it from now on.  listener: where it came in, or NULL. */
void xr_channel_stats_list(struct xrdma_channel *ch, const struct xr_cm_id *listener);
/* Before anything of it is let go. */
void xr_channel_stats_end(struct xrdma_channel *ch);

/* Its slot is to be written when there is time. */
static inline void xr_channel_changed(struct xrdma_channel *ch)
{
	if (ch->untold)
		return;
	ch->untold = 1;
	ch->next_untold = ch->ctx->untold;
	ch->ctx->untold = ch;
}

static inline void xr_channel_count(struct xrdma_channel *ch, enum xr_chanstat id, uint64_t n)
{
	xr_count(&ch->count[id], n);
	xr_channel_changed(ch);
}

/* --- channel_io.c: messages --- */

/* flags: XR_MSG_REQUEST, XR_MSG_RESPONSE. */
int xr_channel_send(struct xrdma_channel *ch, const struct xrdma_msg *msg, uint64_t id,
		    uint32_t flags);
/* Post a request that is not a message; a refusal ends the channel. */
void xr_channel_post(struct xrdma_channel *ch, const struct xr_send_wr *wr);
void xr_channel_complete(struct xrdma_channel *ch, const struct xr_wc *wc);
/* Goes on with whatever waited for memory, credit or queue room. */
void xr_channel_progress(struct xrdma_channel *ch);
/* 1: it is out. 0: its buffers are all under way, try again when one has completed. */
int xr_channel_control(struct xrdma_channel *ch, enum xr_msg_type type);
/* Gives back what a message in the send ring holds. */
void xr_channel_release(struct xrdma_channel *ch, struct xr_out *o);
/* The send ring for so many messages, a power of two that what is in it fits in.  -ENOMEM. */
int xr_channel_ring(struct xrdma_channel *ch, uint32_t n);
/* Buffers that peers are done with are given back. */
void xr_channel_settle(struct xrdma_channel *ch);
/* What the peer says of its receives.  -EPROTO. */
int xr_channel_granted(struct xrdma_channel *ch, uint32_t grant, uint32_t from);

static inline int xr_channel_usable(const struct xrdma_channel *ch)
{
	return ch->state == XR_CH_OPEN || ch->state == XR_CH_CLOSING;
}

/* --- channel_recv.c: what arrives --- */

/* A message, or whatever it is, arrived in this receive. */
void xr_channel_receive(struct xrdma_channel *ch, uint32_t arg);
/* What arrived before the window was known. */
void xr_channel_early(struct xrdma_channel *ch);
/* Delivers what is complete, in order. */
void xr_channel_deliver(struct xrdma_channel *ch);
/* Acks that go alone, and answers to such of the peer. */
void xr_channel_say(struct xrdma_channel *ch);

/* --- channel_bank.c: receives --- */

/* The first bank, before there is a peer. */
int xr_bank_first(struct xrdma_channel *ch);
/* The receive is done with: posted again, or given up with its bank. */
void xr_bank_repost(struct xrdma_channel *ch, uint32_t arg);
/* What goes into an ACK, and what is said in the greeting. */
uint32_t xr_bank_grant(const struct xrdma_channel *ch);
/* A data message came, announced or not. */
void xr_bank_traffic(struct xrdma_channel *ch, const struct xr_msg_hdr *h);
/* Bytes of memory that receives hold. */
uint64_t xr_bank_bytes(const struct xrdma_channel *ch);
/* What came by reference is given back, before the queue pair is; and the rest. */
void xr_bank_let_go(struct xrdma_channel *ch);
void xr_bank_free(struct xrdma_channel *ch);
/* Channels without traffic go to rest, when it is time to look. */
void xr_rest(struct xrdma_context *ctx);
void xr_rest_wake(struct xrdma_channel *ch);

static inline struct xr_in *xr_bank_in(struct xrdma_channel *ch, uint32_t arg)
{
	return &ch->bank[arg >> 16].in[arg & 0xffffu];
}

static inline void xr_rest_stir(struct xrdma_channel *ch)
{
	ch->stirred = 1;
	if (xr_unlikely(!ch->awake))
		xr_rest_wake(ch);
}

/* --- channel_flow.c: what the network takes --- */

/* ns, or 0 where round trips are no signal and nobody needs to know. */
static inline uint64_t xr_channel_now(const struct xrdma_channel *ch)
{
	return ch->tx.p.target ? xr_now_ns() : 0;
}

/* 1 when so many bytes may go; otherwise somebody sees to it when they may. */
int xr_channel_may(struct xrdma_channel *ch, struct xr_adapt *a, uint64_t len);
void xr_channel_sent(struct xrdma_channel *ch, struct xr_out *o, const struct xr_wc *wc);
/* READs the message at arr_head: 1 when it is all here. */
int xr_channel_fetch(struct xrdma_channel *ch, const struct xr_msg_hdr *h, const struct xr_msg_where *w);
void xr_channel_fetched(struct xrdma_channel *ch, uint32_t len, const struct xr_wc *wc);
/* Of `left` bytes: a quarter of what may be under way, so that there are always several; whole units. */
uint32_t xr_channel_fragment(const struct xr_adapt *a, uint64_t left);

/* --- channel_write.c: large messages that are WRITten --- */

/* 1: this end is to say that it wants them so. */
int xr_write_wanted(const struct xrdma_context *ctx);
/* Places the message at arr_head: 1 when it is all here. */
int xr_write_place(struct xrdma_channel *ch, const struct xr_msg_hdr *h);
/* THERE, PLACE came.  0, -EPROTO. */
int xr_write_there(struct xrdma_channel *ch, const struct xr_msg_hdr *h);
int xr_write_asked(struct xrdma_channel *ch, const struct xr_msg_hdr *h);
/* The peer has processed what is before ack.  -EPROTO: what is not there. */
int xr_write_acked(const struct xrdma_channel *ch, uint32_t ack);
/* Goes on with what is WRITten; a WRITE of len bytes has completed. */
void xr_write_progress(struct xrdma_channel *ch);
void xr_write_done(struct xrdma_channel *ch, uint32_t len);

/* Whoever waits for the budget of the context goes on. */
void xr_channel_turns(struct xrdma_context *ctx);
/* Nothing happens: says what others may wait for although it is not due. */
void xr_channel_idle(struct xrdma_channel *ch);

/* --- channel_trace.c: records for xr-trace; not called before a message is traced, or a context traces --- */

/* A message that has an id, or is of a context that traces, is about to be queued. */
void xr_channel_trace_new(struct xrdma_channel *ch, struct xr_out *o, const struct xrdma_msg *m);
/* The message with this number came to a stage. */
void xr_channel_trace_out(struct xrdma_channel *ch, struct xr_out *o, uint32_t seq, enum xr_trace_stage stage);
void xr_channel_trace_in(struct xrdma_channel *ch, const struct xr_in *in, enum xr_trace_stage stage);
/* An ACK says what the peer's clock was when it was sent; it acknowledges what is before `ack`. */
void xr_channel_trace_clock(struct xrdma_channel *ch, uint64_t theirs, uint32_t ack);
/* The option changed.  0 or -errno. */
int xr_trace_sample(struct xrdma_context *ctx, uint64_t value);

/* wr_id is kind : 8 | generation : 24 | argument : 32 */
enum {
	XR_WR_ID_RECV = 1, XR_WR_ID_DATA, XR_WR_ID_CTL, XR_WR_ID_FETCH, XR_WR_ID_ONE, XR_WR_ID_PROBE,
	XR_WR_ID_FILL, XR_WR_ID_SENTINEL, XR_WR_ID_PUT
};
#define XR_WR_ID(ch, kind, arg)	((uint64_t)(kind) << 56 | (uint64_t)(ch)->generation << 32 | (arg))
#define XR_WR_GENERATION(id)	((uint32_t)((id) >> 32) & XR_GENERATIONS)
#define XR_WR_KIND(id)		((id) >> 56)
#define XR_WR_ARG(id)		((uint32_t)(id))

/* --- rpc.c --- */

int xr_rpc_request(struct xrdma_channel *ch, const struct xrdma_msg *msg, xrdma_reply_fn *reply,
		   void *arg);
/* An answer arrived.  -EPROTO: to nothing that was asked. */
int xr_rpc_answer(struct xrdma_channel *ch, const struct xrdma_msg *msg);
/* No more answers: tells the callers, unless error is 0. */
void xr_rpc_end(struct xrdma_channel *ch, int error);

/* --- onesided.c --- */

void xr_onesided_done(struct xrdma_channel *ch);
void xr_onesided_end(struct xrdma_channel *ch);

/* --- keepalive.c --- */

/* Looks after every channel when it is time to. */
void xr_keepalive(struct xrdma_context *ctx);
/* One round trip that needs no program at the other end; -EAGAIN: one is under way, or the channel is not open. */
int xr_channel_probe(struct xrdma_channel *ch);
/* The option changed. */
int xr_keepalive_set(struct xrdma_context *ctx);
/* The context's timer for whatever comes first: the next look, or a channel that is held back. */
int xr_keepalive_timer(struct xrdma_context *ctx);

#endif
