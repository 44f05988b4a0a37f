/* SPDX-License-Identifier: BSD-2-Clause */
/* The state machine of a flow, send direction: every state meets every event. */
#include "flow_rig.h"

/* ---- the send direction ------------------------------------------------------------------ */

enum tx_at { AT_TX_TCP, AT_TX_RING, AT_TX_FULL, AT_TX_SHUT, AT_TX_REPLAY, TX_STATES };

enum tx_event {
	TX_NOTHING, TX_SEALED, TX_FROZEN, TX_ROOM, TX_FIN, TX_DEATH, TX_RST, TX_CLOSED, TX_GONE, TX_SHUT,
	TX_RETREAT, TX_EXEC, TX_NO_BELL, TX_OWN_CLOSE, TX_EVENTS
};

static const char *const tx_state_name[] = { "TCP", "RING", "FULL", "SHUT", "REPLAY" };
static const char *const tx_event_name[] = {
	"nothing", "the receiver seals", "the receiver freezes", "the receiver reads all",
	"FIN, and the peer lives", "FIN, and the peer is dead", "RST", "END and close", "GONE",
	"shutdown(SHUT_WR)", "retreat", "retreat for exec", "the peer cannot be woken", "close()"
};

static void far_read_all(void)
{
	char buf[4096];
	struct xr_view v;

	while (xr_shm_rx_peek(&R.rx, &v) == 1)
		xr_shm_rx_take(&R.rx, &v, v.len);
	xr_shm_rx_commit(&R.rx);
	while (recv(R.far_fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
}

/* Until neither the kernel takes more nor the peer's. */
static void kernel_fill(void)
{
	static char buf[65536];

	do {
		while (send(R.fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			;
		while (send(R.fd, buf, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			;
		/* a delayed ack would make room later */
		usleep(60000);
	} while (send(R.fd, buf, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
}

static void tx_enter(enum tx_at at)
{
	/* the receive direction is on the ring: the hooks carry the flow */
	flow_on_ring();
	switch (at) {
	case AT_TX_TCP:
		R.f->tx_state = XR_TX_TCP;
		break;
	case AT_TX_FULL:
		while (flow_send(100) > 0)
			;
		break;
	case AT_TX_SHUT:
		assert_int_equal(xr_flow_shutdown(R.f, R.fd, SHUT_WR), 0);
		break;
	case AT_TX_REPLAY:
		kernel_fill();
		assert_int_equal(flow_send(2), 2);
		xr_flow_tx_start_replay(R.f, XR_REASON_OPERATOR);
		assert_int_equal(xr_flow_tx_push_replay(R.f, R.fd), -EAGAIN);
		break;
	default:
		break;
	}
}

static void tx_event(enum tx_event ev)
{
	switch (ev) {
	case TX_NOTHING:
		break;
	case TX_SEALED:
		xr_shm_rx_seal(&R.rx);
		break;
	case TX_FROZEN:
		xr_shm_rx_freeze(&R.rx);
		break;
	case TX_ROOM:
		far_read_all();
		break;
	case TX_FIN:
		far_shut();
		break;
	case TX_DEATH:
		far_close();
		far_hang_up();
		break;
	case TX_RST:
		far_rst();
		break;
	case TX_CLOSED:
		far_end(1);
		far_close();
		break;
	case TX_GONE:
		xr_fetch_or(&R.tx.dir->state, XR_DIR_GONE);
		break;
	case TX_SHUT:
		assert_int_equal(xr_flow_shutdown(R.f, R.fd, SHUT_WR), 0);
		break;
	case TX_RETREAT:
		xr_flow_retreat(R.f, R.fd, XR_REASON_OPERATOR, 0);
		break;
	case TX_EXEC:
		xr_flow_retreat(R.f, R.fd, XR_REASON_EXEC, 0);
		break;
	case TX_NO_BELL:
		/* it sleeps, and has passed no doorbell */
		xr_shm_link_sleeping(R.far, 3, 1);
		xr_shm_rx_arm(&R.rx, 3);
		break;
	case TX_OWN_CLOSE:
		xr_flow_last_close(R.f, R.fd);
		R.closed = 1;
		break;
	default:
		fail();
	}
}

/* What a send of one byte gives, and the state after it. */
static void tx_cell(enum tx_at at, enum tx_event ev, char *out, size_t len)
{
	static const char *const name[] = { "TCP", "RING", "REPLAY" };
	char a[16];

	flow_make();
	tx_enter(at);
	tx_event(ev);
	if (ev == TX_OWN_CLOSE)
		snprintf(out, len, "%s", name[R.f->tx_state]);
	else {
		const char *first = told(flow_send(1), a, sizeof(a));

		snprintf(out, len, "%s %s", name[R.f->tx_state], first);
	}
	flow_end();
}

static const char *const tx_table[TX_STATES][TX_EVENTS] = {
	[AT_TX_TCP] = {
		[TX_NOTHING] = "TCP 1",
		[TX_SEALED] = "TCP 1",
		[TX_FROZEN] = "TCP 1",
		[TX_ROOM] = "TCP 1",
		[TX_FIN] = "TCP 1",
		[TX_DEATH] = "TCP 1",
		[TX_RST] = "TCP reset",
		[TX_CLOSED] = "TCP 1",
		[TX_GONE] = "TCP 1",
		[TX_SHUT] = "TCP pipe",
		[TX_RETREAT] = "TCP kernel",
		[TX_EXEC] = "TCP kernel",
		[TX_NO_BELL] = "TCP 1",
		[TX_OWN_CLOSE] = "TCP",
	},
	[AT_TX_RING] = {
		[TX_NOTHING] = "RING 1",
		[TX_SEALED] = "TCP 1",
		[TX_FROZEN] = "TCP 1",
		[TX_ROOM] = "RING 1",
		/* as on TCP, the first send to a peer that has gone is taken */
		[TX_FIN] = "TCP 1",
		[TX_DEATH] = "TCP 1",
		[TX_RST] = "TCP reset",
		[TX_CLOSED] = "TCP 1",
		[TX_GONE] = "RING 1",
		[TX_SHUT] = "RING pipe",
		[TX_RETREAT] = "TCP kernel",
		[TX_EXEC] = "TCP kernel",
		[TX_NO_BELL] = "TCP 1",
		[TX_OWN_CLOSE] = "RING",
	},
	/* RING, and what is in it the peer has not read: its end with that unread was an RST on TCP */
	[AT_TX_FULL] = {
		[TX_NOTHING] = "RING none",
		[TX_SEALED] = "TCP 1",
		[TX_FROZEN] = "TCP 1",
		[TX_ROOM] = "RING 1",
		[TX_FIN] = "RING reset",
		[TX_DEATH] = "RING reset",
		[TX_RST] = "TCP reset",
		[TX_CLOSED] = "TCP pipe",
		[TX_GONE] = "RING none",
		[TX_SHUT] = "RING pipe",
		[TX_RETREAT] = "TCP kernel",
		[TX_EXEC] = "TCP kernel",
		[TX_NO_BELL] = "RING none",
		[TX_OWN_CLOSE] = "RING",
	},
	/* RING, END is published */
	[AT_TX_SHUT] = {
		[TX_NOTHING] = "RING pipe",
		[TX_SEALED] = "RING pipe",
		[TX_FROZEN] = "RING pipe",
		[TX_ROOM] = "RING pipe",
		[TX_FIN] = "RING pipe",
		[TX_DEATH] = "RING pipe",
		[TX_RST] = "RING reset",
		[TX_CLOSED] = "RING pipe",
		[TX_GONE] = "RING pipe",
		[TX_SHUT] = "RING pipe",
		[TX_RETREAT] = "TCP kernel",
		[TX_EXEC] = "TCP kernel",
		[TX_NO_BELL] = "RING pipe",
		[TX_OWN_CLOSE] = "RING",
	},
	/* the kernel does not take the two bytes that are to be replayed */
	[AT_TX_REPLAY] = {
		[TX_NOTHING] = "REPLAY none",
		[TX_SEALED] = "REPLAY none",
		[TX_FROZEN] = "REPLAY none",
		[TX_ROOM] = "TCP 1",
		[TX_FIN] = "REPLAY none",
		[TX_DEATH] = "TCP reset",
		[TX_RST] = "TCP reset",
		[TX_CLOSED] = "TCP reset",
		[TX_GONE] = "REPLAY none",
		[TX_SHUT] = "REPLAY pipe",
		[TX_RETREAT] = "REPLAY none",
		[TX_EXEC] = "REPLAY none",
		[TX_NO_BELL] = "REPLAY none",
		[TX_OWN_CLOSE] = "REPLAY",
	},
};

static void every_send_state_meets_every_event(void **state)
{
	char s[128];
	int at, ev, bad = 0;

	(void)state;
	for (at = 0; at < TX_STATES; at++)
		for (ev = 0; ev < TX_EVENTS; ev++) {
			tx_cell((enum tx_at)at, (enum tx_event)ev, s, sizeof(s));
			bad += cell_is_wrong(tx_state_name[at], tx_event_name[ev], s, tx_table[at][ev]);
		}
	assert_int_equal(bad, 0);
}

/* What poll() says is what a send then finds. */
static void writable_is_what_a_send_finds(void **state)
{
	int at, ev, bad = 0;

	(void)state;
	for (at = 0; at < TX_STATES; at++)
		for (ev = 0; ev < TX_EVENTS; ev++) {
			uint32_t mask;
			ssize_t n;

			flow_make();
			tx_enter((enum tx_at)at);
			tx_event((enum tx_event)ev);
			if (ev != TX_OWN_CLOSE) {
				R.f->rx_checked = 0;
				mask = xr_flow_poll(R.f, R.fd);
				n = flow_send(1);
				if (mask != UINT32_MAX && n != -EREMOTEIO &&
				    !(mask & POLLOUT) != (n == -EAGAIN)) {
					print_error("%s, %s: poll 0x%x, send %zd\n", tx_state_name[at],
						    tx_event_name[ev], mask, n);
					bad++;
				}
			}
			flow_end();
		}
	assert_int_equal(bad, 0);
}

/* No time passes from one to the next: how fast this machine is, or a sanitizer, does not matter. */
static void small_send(void)
{
	static char buf[64];
	struct iovec iov = { buf, sizeof(buf) };
	struct xr_view v;

	R.f->tx.stamp = xr_cycles() + ((uint64_t)1 << 40);
	assert_int_equal(xr_flow_send(R.f, R.fd, &iov, 1, MSG_NOSIGNAL), sizeof(buf));
	while (xr_shm_rx_peek(&R.rx, &v) == 1)
		xr_shm_rx_take(&R.rx, &v, v.len);
	assert_int_equal(xr_shm_rx_commit(&R.rx), 0);
}

static int small_recv(void)
{
	char c;
	struct iovec iov = { &c, 1 };

	far_send("y");
	return xr_flow_recv(R.f, R.fd, &iov, 1, 0) == 1;
}

/* However fast the answers come: each would wait in its reader for others to come with it. */
static void questions_and_answers_are_no_stream(void **state)
{
	int i, streamed = 0;

	(void)state;
	flow_make();
	tx_enter(AT_TX_RING);
	for (i = 0; i < 1000 && !R.f->tx.stream; i++)
		small_send();
	assert_int_equal(R.f->tx.stream, 1);
	for (i = 0; i < 1000; i++) {
		assert_int_equal(small_recv(), 1);
		small_send();
		streamed += R.f->tx.stream;
	}
	assert_int_equal(streamed, 0);
	flow_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_send_state_meets_every_event),
		cmocka_unit_test(writable_is_what_a_send_finds),
		cmocka_unit_test(questions_and_answers_are_no_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
