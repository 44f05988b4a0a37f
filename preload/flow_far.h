/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A flow to another host: what leaves and what comes when a direction goes back to TCP, the fabric
 * being dead or alive.
 *
 * The flow is on a ring like any other, but its peer cannot see that memory: the module (bridge.h)
 * is at the other end of it.  So whoever stops sending on the fabric says so in the TCP stream, by
 * one frame, and goes on there with the bytes that it does not know to be consumed, and with all
 * that follow.  The receiver reads the ring to its end, then the frame, drops what it has already,
 * and goes on as a plain socket.  Every end of a direction is told so, FIN and close included: a
 * FIN without a frame is the end of a process that did not get to say it.
 *
 * A sender that does not know whether START was taken sends no frame: the stream goes on raw from
 * that offset, and a receiver that has got nothing yet over the fabric tells the one from the
 * other by the nonce.
 */
#ifndef XR_FLOW_FAR_H
#define XR_FLOW_FAR_H

#include <stdint.h>
#include <sys/types.h>
#include "bridge.h"

struct xr_flow;

#define XR_FRAME_LEN	32u

enum xr_frame_kind {
	XR_FRAME_RETREAT = 1,	/* the sender awaits the frame of the other direction */
	XR_FRAME_SHUT,		/* this direction ends, the other one goes on */
	XR_FRAME_CLOSE,		/* nobody reads at the sender's end any more: no frame in return */
};

/* In the stream, integers in network order. */
struct xr_frame {
	uint8_t nonce[16];	/* of the direction */
	uint8_t offset[8];	/* of the first byte that follows, in what went over the fabric */
	uint8_t kind, zero[3];
	uint8_t consumed[4];	/* of the other direction, modulo 2^32 */
};

_Static_assert(sizeof(struct xr_frame) == XR_FRAME_LEN, "layout");

/* Beside the flow in family memory.  tx_lock guards what begins with tx, rx_lock the rest. */
struct xr_flow_far {
	uint8_t tx_nonce[16], rx_nonce[16];
	struct xr_frame tx_frame;
	uint8_t tx_left;	/* bytes of it to be written */
	uint8_t tx_framed;	/* it goes before what is sent again: its length, or 0 */
	uint8_t tx_kind;	/* enum xr_frame_kind of the next one */
	_Atomic uint8_t tx_lazy;	/* it waits until there is something to send, or the peer's comes */
	uint8_t rx_due;		/* the peer's frame is to come, behind what the ring holds; 2: it is being taken */
	uint8_t rx_closed;	/* it said CLOSE */
	_Atomic uint8_t answer;	/* its frame has come: this end is to leave as well */
	_Atomic uint8_t lost;	/* what the module said was heeded */
	_Atomic uint8_t tx_told;	/* a send has given the program the error that the peer's end is */
	uint32_t rx_consumed;	/* CLOSE: what it had read */
	uint64_t rx_at;		/* tcp_rx before it is taken */
	uint64_t rx_part;	/* ns: since when a piece of what may be a frame is there */
	uint64_t from;		/* ns: when it left the fabric, or first looked for it; tx_lock */
};

/* The two ends have proved themselves to each other. */
void xr_far_attach(struct xr_flow *f, const struct xr_bridge_answer *a);

/* ---- send direction: tx_lock held */

/* 1: some flow has begun to send again over TCP, and nobody may come to see to the rest; any thread. */
extern _Atomic uint32_t xr_far_owing;
/* It has just been frozen: what goes first into the stream. */
void xr_far_tx_frozen(struct xr_flow *f);
/* Of its frame and what follows n bytes are on the socket, by one who was killed at it: how many of the latter. */
uint32_t xr_far_tx_left(struct xr_flow *f, uint32_t n);
/* What there is to say, said as this instead, if not begun; at once, if it waited. */
void xr_far_tx_kind(struct xr_flow *f, enum xr_frame_kind kind);
/* 0: the frame is in the kernel socket; -EAGAIN, or what the socket says. */
int xr_far_tx_push(struct xr_flow *f, int fd);

/* ---- receive direction: rx_lock held */

/*
 * This end leaves the fabric.  The module gives the other host notice when neither direction is in use, which one that
 * has never left TCP must say as well.  1: the module must hear of it.  tx_lock held.
 */
int xr_far_tx_unused(struct xr_flow *f);
/* This end leaves the fabric (enum xr_retreat).  1: the other end of the ring must hear of it. */
int xr_far_rx_retreat(struct xr_flow *f, int how);
/* Behind the ring: takes the frame off the stream, and says what is late.  0, -EAGAIN, or the end of the flow. */
int xr_far_rx_take(struct xr_flow *f, int fd);
/* Its taking was left half done by one who was killed at it; so many bytes the program has read from the socket. */
void xr_far_rx_left(struct xr_flow *f, uint64_t read);
/* The kernel socket reports `ev` while the ring carries the direction.  1: that is all there is to it. */
int xr_far_rx_event(struct xr_flow *f, int fd, uint32_t ev);
/* The program closes: a frame that is there is no unread data. */
void xr_far_rx_close(struct xr_flow *f, int fd);

/* ---- no lock held: heeds what the peer, or the module, has said */
void xr_far_look(struct xr_flow *f, int fd);
/* 1: what it is to send again waits for room in the socket; racy, a hint. */
int xr_far_owes(const struct xr_flow *f);
/* 1: there is something of that kind.  For spinning. */
int xr_far_peek(const struct xr_flow *f);

#endif
