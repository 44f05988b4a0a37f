/* SPDX-License-Identifier: BSD-2-Clause */
/* The seq-ack window: arithmetic only. */
#include <errno.h>
#include <string.h>
#include "window.h"

/* Half of a limit, rounded up: two halves cover the whole, so there are never three. */
static uint64_t half(uint64_t limit)
{
	return limit / 2 + (limit & 1);
}

static uint32_t charged(uint64_t limit, uint64_t len)
{
	return (uint32_t)(len < half(limit) ? len : half(limit));
}

static int limits_valid(uint32_t msgs, uint64_t bytes)
{
	return msgs && msgs <= XR_WINDOW_MAX_MSGS && bytes && bytes <= XR_WINDOW_MAX_BYTES;
}

int xr_window_init(struct xr_window *w, uint32_t first, uint32_t snd_msgs, uint64_t snd_bytes,
		   uint32_t rcv_msgs, uint64_t rcv_bytes, uint32_t *charge, uint32_t ring)
{
	if (!limits_valid(snd_msgs, snd_bytes) || !limits_valid(rcv_msgs, rcv_bytes) || !charge ||
	    ring < snd_msgs || (ring & (ring - 1)))
		return -EINVAL;
	memset(w, 0, sizeof(*w));
	w->snd_una = w->snd_nxt = w->rcv_acked = w->rcv_done = w->rcv_nxt = first;
	w->snd_msgs = snd_msgs;
	w->snd_bytes = snd_bytes;
	w->rcv_msgs = rcv_msgs;
	w->rcv_bytes = rcv_bytes;
	w->charge = charge;
	w->mask = ring - 1;
	return 0;
}

int xr_window_granted(struct xr_window *w, uint32_t msgs)
{
	if (!msgs || msgs > w->mask + 1)
		return -EPROTO;
	w->snd_msgs = msgs;
	return 0;
}

int xr_window_grant(struct xr_window *w, uint32_t msgs)
{
	if (!msgs || msgs > XR_WINDOW_MAX_MSGS)
		return -EINVAL;
	w->rcv_msgs = msgs;
	return 0;
}

int xr_window_open(const struct xr_window *w, uint64_t len)
{
	return w->snd_nxt - w->snd_una < w->snd_msgs &&
	       w->snd_out + charged(w->snd_bytes, len) <= w->snd_bytes;
}

int xr_window_send(struct xr_window *w, uint64_t len, uint32_t *seq)
{
	uint32_t c = charged(w->snd_bytes, len);

	if (!xr_window_open(w, len))
		return -EAGAIN;
	w->charge[w->snd_nxt & w->mask] = c;
	w->snd_out += c;
	*seq = w->snd_nxt++;
	return 0;
}

int xr_window_acked(struct xr_window *w, uint32_t ack)
{
	uint32_t n = ack - w->snd_una;

	/* an ack from before una is a huge n: modulo 2^32 it is beyond what was sent, too */
	if (n > w->snd_nxt - w->snd_una)
		return -EPROTO;
	while (w->snd_una != ack)
		w->snd_out -= w->charge[w->snd_una++ & w->mask];
	return (int)n;
}

int xr_window_receive(struct xr_window *w, uint32_t seq, uint64_t len)
{
	uint32_t c = charged(w->rcv_bytes, len);

	if (seq != w->rcv_nxt || w->rcv_nxt - w->rcv_acked >= w->rcv_msgs ||
	    w->rcv_out + c > w->rcv_bytes)
		return -EPROTO;
	w->rcv_nxt++;
	w->rcv_out += c;
	return 0;
}

int xr_window_done(struct xr_window *w, uint64_t len)
{
	if (w->rcv_done == w->rcv_nxt)
		return -EINVAL;
	w->rcv_done++;
	w->rcv_owed += charged(w->rcv_bytes, len);
	return 0;
}

int xr_window_ack_due(const struct xr_window *w)
{
	uint32_t owed = w->rcv_done - w->rcv_acked;

	return owed && (owed >= half(w->rcv_msgs) || w->rcv_owed >= half(w->rcv_bytes));
}

uint32_t xr_window_ack(struct xr_window *w)
{
	w->rcv_out -= w->rcv_owed;
	w->rcv_owed = 0;
	w->rcv_acked = w->rcv_done;
	return w->rcv_done;
}

void xr_window_ctl_send(struct xr_window *w)
{
	w->ctl_sent++;
}

void xr_window_ctl_receive(struct xr_window *w)
{
	w->ctl_got++;
}

uint8_t xr_window_ctl_ack(struct xr_window *w)
{
	return w->ctl_told = w->ctl_got;
}

int xr_window_ctl_acked(struct xr_window *w, uint8_t ack)
{
	if ((uint8_t)(ack - w->ctl_acked) > (uint8_t)(w->ctl_sent - w->ctl_acked))
		return -EPROTO;
	w->ctl_acked = ack;
	return 0;
}

int xr_window_lazy(const struct xr_window *w)
{
	return (uint8_t)(w->ctl_sent - w->ctl_acked) < XR_WINDOW_LAZY;
}

int xr_window_answer_due(const struct xr_window *w)
{
	return (uint8_t)(w->ctl_got - w->ctl_told) >= XR_WINDOW_LAZY;
}

int xr_window_answer_lazy(const struct xr_window *w)
{
	return (uint8_t)(w->ctl_got - w->ctl_told) >= 2;
}
