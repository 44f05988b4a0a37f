/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * TCP_INFO of a connection that is, or was, on a fabric.  The kernel fills it in for its socket, which
 * has been silent since; what the program would be told of a TCP connection that had carried all
 * of it is put in here.  Totals are those of the stream: they go on without a jump when it moves.
 */
#include "info.h"
#include <errno.h>
#include <linux/tcp.h>
#include <sys/syscall.h>
#include <asm/ioctls.h>
#include "flow_rx.h"
#include "mem.h"
#include "user.h"

/* TCP_*: netinet/tcp.h has the states, and an older struct tcp_info */
enum { ESTABLISHED = 1, FIN_WAIT1 = 4, FIN_WAIT2, CLOSED = 7, CLOSE_WAIT, LAST_ACK, CLOSING = 11 };

/*
 * What a shared cache line needs to go there and back is below the microsecond in which TCP_INFO
 * counts, and 0 there means that nothing was measured.
 */
#define RTT_SHM_US	1u

/* One direction's share, as its lock showed it. */
struct share {
	uint64_t bytes;		/* of the stream, that the kernel socket never saw */
	uint64_t owed;		/* of them, those that it is about to see: a replay */
	uint32_t msgs;
	int on;			/* the fabric carries it now */
	int ended;
	uint64_t at;		/* cycle count of the last message; 0: none */
	uint64_t room;		/* bytes that the peer takes now, and at most */
	uint64_t window;
};

void xr_info_tx_again(struct xr_flow *f)
{
	f->moved_tx += f->tx.sent;
	f->moved_tx_msgs += f->tx.head > 2 ? f->tx.head - 2 : 0;
}

void xr_info_rx_again(struct xr_flow *f)
{
	f->moved_rx += f->rx.taken;
	f->moved_rx_msgs += f->rx.seq > 2 ? f->rx.seq - 2 : 0;
}

/* In a handler that came upon its own thread within the lock: no more than can be read. */
static void info_tx(struct xr_flow *f, struct share *s, int locked)
{
	uint32_t state = xr_load_relaxed(&f->tx_state);

	/* slot 1 is START */
	s->msgs = f->moved_tx_msgs + (f->tx.head > 2 ? f->tx.head - 2 : 0);
	s->bytes = f->moved_tx + f->tx.sent;
	s->owed = state == XR_TX_REPLAY && locked ? xr_shm_tx_owed(&f->tx) : 0;
	s->on = state == XR_TX_RING;
	s->ended = s->on && f->tx_shut;
	if (s->on) {
		s->at = xr_load_relaxed(&f->tx.dir->sent_at);
		s->window = f->tx.inflight_max;
		s->room = locked ? xr_shm_tx_space(&f->tx) : s->window;
	}
}

static void info_rx(struct xr_flow *f, int fd, struct share *s, int locked)
{
	long all = locked ? xr_rx_unread(f, fd) : -EAGAIN;
	uint32_t state = xr_load_relaxed(&f->rx_state);
	int inq = 0;

	s->msgs = f->moved_rx_msgs + (f->rx.seq > 2 ? f->rx.seq - 2 : 0);
	/* what the program has read, and what it could; the kernel counts what lies on its socket */
	s->bytes = f->moved_rx + f->rx.taken;
	if (all >= 0 && !xr_sys3(SYS_ioctl, fd, FIONREAD, &inq)) {
		if (all > inq) {
			s->bytes += (uint64_t)(all - inq);
			s->msgs++;
		} else {
			/* bytes that were read here have come again */
			s->owed = (uint64_t)(inq - all);
		}
	}
	s->on = state == XR_RX_RING;
	/* as soon as the peer says so, wherever the reader is: TCP has the FIN before its bytes are read */
	s->ended = state != XR_RX_TCP && (xr_flow_peer_state(f) & (XR_DIR_ENDED | XR_DIR_CLOSED));
	/* the peer's word, and its clock: looked at, and bounded, below */
	if (s->on)
		s->at = xr_load_relaxed(&f->rx.dir->sent_at);
}

/* The state that TCP would be in.  The kernel's FIN is sent when both directions have ended. */
static uint8_t info_state(uint8_t kernel, int out, int in)
{
	out |= kernel == FIN_WAIT1 || kernel == FIN_WAIT2 || kernel == LAST_ACK || kernel == CLOSING;
	in |= kernel == CLOSE_WAIT || kernel == LAST_ACK || kernel == CLOSING;
	if (kernel == CLOSED || (!out && !in))
		return kernel;
	if (out && in)
		return kernel == LAST_ACK || kernel == CLOSING ? kernel : CLOSED;
	if (in)
		return CLOSE_WAIT;
	return kernel == FIN_WAIT1 ? FIN_WAIT1 : FIN_WAIT2;
}

/* How long ago, in ms: between the move, of which both times are known, and now. */
static uint32_t info_age(const struct xr_flow *f, uint64_t at, uint32_t kernel)
{
	uint64_t now = xr_cycles(), ns = xr_now_ns() - f->moved_ns;
	uint64_t span = now - f->moved_cycles, ms;

	if (!at || !f->moved_ns || now <= f->moved_cycles)
		return kernel;
	/* a peer that lies does so about its own writes, and within the time since the move */
	if (at > now)
		at = now;
	if (at < f->moved_cycles)
		at = f->moved_cycles;
	ms = (uint64_t)((unsigned __int128)(now - at) * ns / span / 1000000u);
	return ms < kernel ? (uint32_t)ms : kernel;
}

static void info_put(const struct xr_flow *f, struct tcp_info *t, const struct share *tx,
		     const struct share *rx)
{
	uint32_t cwnd;

	t->tcpi_state = info_state(t->tcpi_state, tx->ended, rx->ended);
	/* as SIOCOUTQ has it: what lies in the peer's memory is sent, and acknowledged */
	t->tcpi_bytes_sent += tx->bytes - tx->owed;
	t->tcpi_bytes_acked += tx->bytes - tx->owed;
	t->tcpi_notsent_bytes += (uint32_t)tx->owed;
	t->tcpi_bytes_received += rx->bytes - rx->owed;
	t->tcpi_segs_out += tx->msgs;
	t->tcpi_data_segs_out += tx->msgs;
	t->tcpi_delivered += tx->msgs;
	t->tcpi_segs_in += rx->msgs;
	t->tcpi_data_segs_in += rx->msgs;
	t->tcpi_last_data_sent = info_age(f, tx->at, t->tcpi_last_data_sent);
	t->tcpi_last_ack_recv = info_age(f, tx->at, t->tcpi_last_ack_recv);
	t->tcpi_last_data_recv = info_age(f, rx->at, t->tcpi_last_data_recv);
	if (!tx->on)
		return;
	t->tcpi_rtt = RTT_SHM_US;
	t->tcpi_min_rtt = RTT_SHM_US;
	t->tcpi_rttvar = 0;
	t->tcpi_snd_wnd = (uint32_t)tx->room;
	/* the fabric has no congestion: the window alone bounds what is under way */
	cwnd = (uint32_t)(tx->window / (t->tcpi_snd_mss ? t->tcpi_snd_mss : 1)) + 1;
	if (t->tcpi_snd_cwnd < cwnd)
		t->tcpi_snd_cwnd = cwnd;
	/* the rate is the kernel's last sample, of a connection that it did not fill */
	t->tcpi_delivery_rate_app_limited = 1;
}

void xr_info_amend(struct xr_flow *f, int fd, void *val, socklen_t len)
{
	struct share tx = { 0 }, rx = { 0 };
	struct tcp_info t = { 0 };
	int locked;

	if (len > sizeof(t))
		len = sizeof(t);
	if (xr_user_get(&t, val, len))
		return;
	locked = !xr_flow_tx_lock(f);
	info_tx(f, &tx, locked);
	if (locked)
		xr_flow_tx_unlock(f);
	locked = !xr_flow_rx_lock(f);
	info_rx(f, fd, &rx, locked);
	if (locked)
		xr_flow_rx_unlock(f);
	info_put(f, &t, &tx, &rx);
	xr_user_put(val, &t, len);
}
