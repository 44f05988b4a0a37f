/* SPDX-License-Identifier: BSD-2-Clause */
/* The state machine of a flow, receive direction: every state meets every event. */
#include "flow_rig.h"

/* ---- the receive direction ------------------------------------------------------------- */

enum rx_at {
	AT_TCP, AT_READY, AT_DRAIN, AT_RING, AT_SEALED, AT_SKIP, AT_KEPT, AT_READY_KEPT, AT_DRAIN_KEPT,
	RX_STATES
};

enum rx_event {
	EV_NOTHING, EV_TCP, EV_START, EV_RING, EV_END, EV_CLOSE, EV_FREEZE, EV_FREEZE_FULL, EV_SEAL,
	EV_EXEC, EV_FIN, EV_DEATH, EV_RST, EV_ABORT, EV_GONE, EV_NONSENSE, EV_SHUT_RD, EV_OWN_CLOSE,
	RX_EVENTS
};

static const char *const rx_state_name[] = { "TCP", "READY", "DRAIN", "RING", "SEALED", "SKIP", "KEPT",
					     "READY, KEPT", "DRAIN, KEPT" };
static const char *const rx_event_name[] = {
	"nothing", "bytes over TCP", "START", "bytes in the ring", "END", "END and close",
	"the sender freezes an empty ring", "the sender freezes bytes", "retreat", "retreat for exec",
	"FIN, and the peer lives", "FIN, and the peer is dead", "RST", "close without END", "GONE",
	"nonsense", "shutdown(SHUT_RD)", "close()"
};

/* Sealed, and the sender has taken notice and goes on over TCP: two bytes lie here alone. */
static void rx_keep(void)
{
	far_send("ab");
	assert_int_equal(xr_shm_rx_seal(&R.f->rx), 0);
	xr_shm_tx_freeze(&R.tx);
}

static void rx_enter(enum rx_at at)
{
	static const char *const sends = "ab";

	if (at == AT_TCP)
		return;
	if (at == AT_READY || at == AT_DRAIN || at == AT_READY_KEPT || at == AT_DRAIN_KEPT) {
		R.f->rx_state = XR_RX_READY;
		xr_shm_rx_ready(&R.f->rx);
	}
	if (at == AT_READY)
		return;
	if (at == AT_DRAIN || at == AT_DRAIN_KEPT) {
		far_start(4);
		far_write("12");
		assert_int_equal(flow_recv(), 2);
		assert_int_equal(R.f->rx_state, XR_RX_DRAIN);
	}
	if (at == AT_DRAIN)
		return;
	if (at == AT_READY_KEPT)
		far_start(0);
	if (at == AT_READY_KEPT || at == AT_DRAIN_KEPT) {
		rx_keep();
		return;
	}
	flow_on_ring();
	if (at == AT_SEALED) {
		far_send(sends);
		/* the send direction goes on: it is what keeps the hooks on the flow */
		assert_int_equal(xr_shm_rx_seal(&R.f->rx), 0);
	} else if (at == AT_KEPT) {
		rx_keep();
	} else if (at == AT_SKIP) {
		far_send(sends);
		xr_shm_tx_freeze(&R.tx);
		assert_int_equal(flow_recv(), 2);
		assert_int_equal(flow_recv(), -EAGAIN);
		assert_int_equal(R.f->rx_state, XR_RX_SKIP);
	}
}

/* What the peer does; NULL, or why it cannot. */
static const char *rx_event(enum rx_at at, enum rx_event ev)
{
	int frozen = xr_shm_tx_is_frozen(&R.tx);

	switch (ev) {
	case EV_NOTHING:
		break;
	case EV_TCP:
		far_write("xyz");
		break;
	case EV_START:
		if (frozen)
			return "nothing is published behind a freeze";
		far_start(0);
		break;
	case EV_RING:
		if (frozen)
			return "nothing is published behind a freeze";
		far_send("xyz");
		break;
	case EV_END:
	case EV_CLOSE:
		if (frozen)
			return "nothing is published behind a freeze";
		far_end(ev == EV_CLOSE);
		if (ev == EV_CLOSE)
			far_close();
		break;
	case EV_FREEZE:
	case EV_FREEZE_FULL:
		if (at >= AT_SEALED)
			return "it is frozen";
		if (ev == EV_FREEZE_FULL) {
			if (at == AT_READY)
				far_start(0);
			far_send("xyz");
		}
		xr_shm_tx_freeze(&R.tx);
		break;
	case EV_SEAL:
		xr_flow_retreat(R.f, R.fd, XR_REASON_OPERATOR, 0);
		break;
	case EV_EXEC:
		xr_flow_retreat(R.f, R.fd, XR_REASON_EXEC, 0);
		break;
	case EV_FIN:
		far_shut();
		break;
	case EV_DEATH:
		far_close();
		far_hang_up();
		break;
	case EV_RST:
		far_rst();
		break;
	case EV_ABORT:
		xr_fetch_or(&R.tx.dir->state, XR_DIR_CLOSED);
		far_rst();
		break;
	case EV_GONE:
		xr_fetch_or(&R.tx.dir->state, XR_DIR_GONE);
		break;
	case EV_NONSENSE:
		if (frozen)
			return "nothing is published behind a freeze";
		xr_shm_tx_control(&R.tx, (enum xr_slot_op)77, 0);
		break;
	case EV_SHUT_RD:
		assert_int_equal(xr_flow_shutdown(R.f, R.fd, SHUT_RD), 0);
		break;
	case EV_OWN_CLOSE:
		xr_flow_last_close(R.f, R.fd);
		R.closed = 1;
		break;
	default:
		fail();
	}
	return NULL;
}

static const char *rx_now(void)
{
	if (R.f->rx_state == XR_RX_SKIP)
		return "SKIP";
	return rx_state_name[R.f->rx_state == XR_RX_RING && R.f->rx.sealed ? AT_SEALED : R.f->rx_state];
}

/* State, and what the first two reads give; "!" for what cannot be. */
static void rx_cell(enum rx_at at, enum rx_event ev, char *out, size_t len)
{
	char a[16], b[16];
	const char *not, *first, *second;

	flow_make();
	rx_enter(at);
	not = rx_event(at, ev);
	if (not) {
		snprintf(out, len, "! %s", not);
	} else if (ev == EV_OWN_CLOSE) {
		snprintf(out, len, "%s", rx_now());
	} else {
		first = told(flow_recv(), a, sizeof(a));
		second = told(flow_recv(), b, sizeof(b));
		snprintf(out, len, "%s %s %s", rx_now(), first, second);
	}
	flow_end();
}

#define FROZEN	"! nothing is published behind a freeze"
#define ONCE	"! it is frozen"

/*
 * After the event: the state, and what two reads give, a number being bytes.  "kernel": the
 * hooks let go of the flow.
 */
static const char *const rx_table[RX_STATES][RX_EVENTS] = {
	[AT_TCP] = {
		[EV_NOTHING] = "TCP none none",
		[EV_TCP] = "TCP 3 none",
		/* nobody looks at the ring any more, whatever a peer writes there */
		[EV_START] = "TCP none none",
		[EV_RING] = "TCP none none",
		[EV_END] = "TCP none none",
		[EV_CLOSE] = "TCP 0 0",
		[EV_FREEZE] = "TCP none none",
		[EV_FREEZE_FULL] = "TCP none none",
		[EV_SEAL] = "TCP kernel kernel",
		[EV_EXEC] = "TCP kernel kernel",
		[EV_FIN] = "TCP 0 0",
		[EV_DEATH] = "TCP 0 0",
		[EV_RST] = "TCP reset 0",
		[EV_ABORT] = "TCP reset 0",
		[EV_GONE] = "TCP none none",
		[EV_NONSENSE] = "TCP none none",
		[EV_SHUT_RD] = "TCP 0 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	[AT_READY] = {
		[EV_NOTHING] = "READY none none",
		[EV_TCP] = "READY 3 none",
		[EV_START] = "RING none none",
		/* the first slot is START, or the peer is no peer */
		[EV_RING] = "READY reset 0",
		[EV_END] = "READY reset 0",
		[EV_CLOSE] = "READY reset 0",
		[EV_FREEZE] = "TCP none none",
		[EV_FREEZE_FULL] = "SKIP 3 none",
		[EV_SEAL] = "TCP kernel kernel",
		[EV_EXEC] = "TCP kernel kernel",
		[EV_FIN] = "READY 0 0",
		[EV_DEATH] = "READY 0 0",
		[EV_RST] = "READY reset 0",
		[EV_ABORT] = "READY reset 0",
		[EV_GONE] = "TCP none none",
		[EV_NONSENSE] = "READY reset 0",
		[EV_SHUT_RD] = "READY 0 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	/* two bytes are still to come over TCP: until then the ring is not looked at */
	[AT_DRAIN] = {
		[EV_NOTHING] = "DRAIN none none",
		[EV_TCP] = "RING 2 none",
		[EV_START] = "DRAIN none none",
		[EV_RING] = "DRAIN none none",
		[EV_END] = "DRAIN none none",
		[EV_CLOSE] = "DRAIN 0 0",
		[EV_FREEZE] = "DRAIN none none",
		[EV_FREEZE_FULL] = "DRAIN none none",
		[EV_SEAL] = "TCP kernel kernel",
		[EV_EXEC] = "TCP kernel kernel",
		[EV_FIN] = "DRAIN 0 0",
		[EV_DEATH] = "DRAIN 0 0",
		[EV_RST] = "DRAIN reset 0",
		[EV_ABORT] = "DRAIN reset 0",
		[EV_GONE] = "DRAIN none none",
		[EV_NONSENSE] = "DRAIN none none",
		[EV_SHUT_RD] = "DRAIN 0 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	[AT_RING] = {
		[EV_NOTHING] = "RING none none",
		/* no data is sent over TCP while the ring carries it */
		[EV_TCP] = "RING none none",
		[EV_START] = "RING reset 0",
		[EV_RING] = "RING 3 none",
		[EV_END] = "RING 0 0",
		[EV_CLOSE] = "RING 0 0",
		[EV_FREEZE] = "TCP none none",
		[EV_FREEZE_FULL] = "SKIP 3 none",
		[EV_SEAL] = "TCP kernel kernel",
		[EV_EXEC] = "TCP kernel kernel",
		/* neither END nor a freeze: only its death puts a FIN there */
		[EV_FIN] = "RING 0 0",
		[EV_DEATH] = "RING 0 0",
		[EV_RST] = "RING reset 0",
		[EV_ABORT] = "RING reset 0",
		[EV_GONE] = "RING none none",
		[EV_NONSENSE] = "RING reset 0",
		[EV_SHUT_RD] = "RING 0 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	/* RING, sealed by this end with two bytes unread */
	[AT_SEALED] = {
		[EV_NOTHING] = "TCP 2 none",
		[EV_TCP] = "TCP 5 none",
		[EV_START] = FROZEN,
		[EV_RING] = FROZEN,
		[EV_END] = FROZEN,
		[EV_CLOSE] = FROZEN,
		[EV_FREEZE] = ONCE,
		[EV_FREEZE_FULL] = ONCE,
		[EV_SEAL] = "TCP 2 kernel",
		[EV_EXEC] = "TCP kernel kernel",
		[EV_FIN] = "TCP 2 0",
		[EV_DEATH] = "TCP 2 0",
		[EV_RST] = "TCP 2 reset",
		[EV_ABORT] = "TCP 2 reset",
		[EV_GONE] = "TCP 2 none",
		[EV_NONSENSE] = FROZEN,
		[EV_SHUT_RD] = "TCP 2 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	/* two bytes that were read in the ring come once more */
	[AT_SKIP] = {
		[EV_NOTHING] = "SKIP none none",
		[EV_TCP] = "TCP 1 none",
		[EV_START] = FROZEN,
		[EV_RING] = FROZEN,
		[EV_END] = FROZEN,
		[EV_CLOSE] = FROZEN,
		[EV_FREEZE] = ONCE,
		[EV_FREEZE_FULL] = ONCE,
		[EV_SEAL] = "SKIP none none",
		[EV_EXEC] = "SKIP none none",
		[EV_FIN] = "SKIP 0 0",
		[EV_DEATH] = "SKIP 0 0",
		[EV_RST] = "SKIP reset 0",
		[EV_ABORT] = "SKIP reset 0",
		[EV_GONE] = "SKIP none none",
		[EV_NONSENSE] = FROZEN,
		[EV_SHUT_RD] = "SKIP 0 0",
		[EV_OWN_CLOSE] = "SKIP",
	},
	/* sealed with two bytes unread, and its sender has gone on behind the seal: nobody else can bring them */
	[AT_KEPT] = {
		[EV_NOTHING] = "TCP 2 none",
		[EV_TCP] = "TCP 5 none",
		[EV_START] = FROZEN,
		[EV_RING] = FROZEN,
		[EV_END] = FROZEN,
		[EV_CLOSE] = FROZEN,
		[EV_FREEZE] = ONCE,
		[EV_FREEZE_FULL] = ONCE,
		[EV_SEAL] = "TCP 2 kernel",
		[EV_EXEC] = "TCP 2 kernel",
		[EV_FIN] = "TCP 2 0",
		[EV_DEATH] = "TCP 2 0",
		[EV_RST] = "TCP 2 reset",
		[EV_ABORT] = "TCP 2 reset",
		[EV_GONE] = "TCP 2 none",
		[EV_NONSENSE] = FROZEN,
		[EV_SHUT_RD] = "TCP 2 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	[AT_READY_KEPT] = {
		[EV_NOTHING] = "TCP 2 none",
		[EV_TCP] = "TCP 5 none",
		[EV_START] = FROZEN,
		[EV_RING] = FROZEN,
		[EV_END] = FROZEN,
		[EV_CLOSE] = FROZEN,
		[EV_FREEZE] = ONCE,
		[EV_FREEZE_FULL] = ONCE,
		[EV_SEAL] = "TCP 2 kernel",
		[EV_EXEC] = "TCP 2 kernel",
		[EV_FIN] = "TCP 2 0",
		[EV_DEATH] = "TCP 2 0",
		[EV_RST] = "TCP 2 reset",
		[EV_ABORT] = "TCP 2 reset",
		[EV_GONE] = "TCP 2 none",
		[EV_NONSENSE] = FROZEN,
		[EV_SHUT_RD] = "TCP 2 0",
		[EV_OWN_CLOSE] = "TCP",
	},
	/* two bytes are still to come over TCP before the two that are kept */
	[AT_DRAIN_KEPT] = {
		[EV_NOTHING] = "DRAIN none none",
		[EV_TCP] = "TCP 5 none",
		[EV_START] = FROZEN,
		[EV_RING] = FROZEN,
		[EV_END] = FROZEN,
		[EV_CLOSE] = FROZEN,
		[EV_FREEZE] = ONCE,
		[EV_FREEZE_FULL] = ONCE,
		[EV_SEAL] = "DRAIN none none",
		[EV_EXEC] = "DRAIN none none",
		[EV_FIN] = "DRAIN 0 0",
		[EV_DEATH] = "DRAIN 0 0",
		[EV_RST] = "DRAIN reset 0",
		[EV_ABORT] = "DRAIN reset 0",
		[EV_GONE] = "DRAIN none none",
		[EV_NONSENSE] = FROZEN,
		[EV_SHUT_RD] = "DRAIN 0 0",
		[EV_OWN_CLOSE] = "TCP",
	},
};

static void every_receive_state_meets_every_event(void **state)
{
	char s[128];
	int at, ev, bad = 0;

	(void)state;
	for (at = 0; at < RX_STATES; at++)
		for (ev = 0; ev < RX_EVENTS; ev++) {
			rx_cell((enum rx_at)at, (enum rx_event)ev, s, sizeof(s));
			bad += cell_is_wrong(rx_state_name[at], rx_event_name[ev], s, rx_table[at][ev]);
		}
	assert_int_equal(bad, 0);
}

/* What poll() says is what a read then finds, and looking takes nothing from it. */
static void readable_is_what_a_read_finds(void **state)
{
	int at, ev, i, bad = 0;

	(void)state;
	for (at = 0; at < RX_STATES; at++)
		for (ev = 0; ev < RX_EVENTS; ev++) {
			int rounds = 2, resets = strstr(rx_table[at][ev], "reset") != NULL;

			flow_make();
			rx_enter((enum rx_at)at);
			if (ev == EV_OWN_CLOSE || rx_event((enum rx_at)at, (enum rx_event)ev))
				rounds = resets = 0;
			for (i = 0; i < rounds; i++) {
				uint32_t mask;
				ssize_t n;

				R.f->rx_checked = 0;
				mask = xr_flow_poll(R.f, R.fd);
				n = flow_recv();
				resets -= n == -ECONNRESET;
				if (mask == UINT32_MAX || n == -EREMOTEIO)
					break;
				if (!(mask & POLLIN) != (n == -EAGAIN)) {
					print_error("%s, %s: poll 0x%x, read %zd\n", rx_state_name[at],
						    rx_event_name[ev], mask, n);
					bad++;
				}
			}
			flow_end();
			if (resets) {
				print_error("%s, %s: reads told %d resets\n", rx_state_name[at],
					    rx_event_name[ev], 1 - resets);
				bad++;
			}
		}
	assert_int_equal(bad, 0);
}

/* Another program gets the connection: it cannot have what lies here alone, which is said, and can still be read. */
static void kept_bytes_are_not_handed_over(void **state)
{
	static const enum rx_at kept[] = { AT_KEPT, AT_READY_KEPT, AT_DRAIN_KEPT };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(kept) / sizeof(*kept); i++) {
		flow_make();
		rx_enter(kept[i]);
		assert_int_equal(xr_flow_hand_over(R.f, R.fd, XR_REASON_PASSED_FD, 0), -EAGAIN);
		if (kept[i] == AT_DRAIN_KEPT)
			far_write("34");
		assert_int_equal(flow_recv(), kept[i] == AT_DRAIN_KEPT ? 4 : 2);
		flow_end();
	}
}

/*
 * A thread in epoll_wait looks at a flow without a lock of its own, and another one ends it
 * meanwhile: what the first then finds says that the kernel carries it, and can be used.
 */
static void a_look_may_come_after_the_end(void **state)
{
	struct xr_flow_priv *priv;
	struct xr_shm_meta *meta;
	struct xr_flow *f;

	(void)state;
	flow_make();
	flow_on_ring();
	f = R.f;
	priv = f->priv;
	meta = f->meta;
	assert_non_null(priv);
	flow_end();
	/* it is free: no link, and the next connection gets the place */
	assert_null(f->link);
	assert_ptr_equal(f->priv, priv);
	assert_ptr_equal(f->meta, meta);
	assert_int_equal(xr_flow_poll(f, -1), UINT32_MAX);
	assert_null(f->own->regs);
}

/*
 * One thread has read, and not yet added it up, when another one closes the connection and accepts
 * the next: what was added to that one's account made its upgrade fail, and it was reset.
 */
static void a_call_may_end_after_the_close(void **state)
{
	struct xr_flow *f = xr_flow_new(-1, AF_INET, XR_FLOW_ACCEPT, 0), *next, *third;

	(void)state;
	assert_non_null(f);
	assert_int_equal(xr_flow_tcp_rx_begin(f), 1);
	assert_int_equal(xr_flow_tcp_tx_begin(f), 1);
	xr_store_relaxed(&f->priv->fds, 0);
	xr_flow_release(f);
	next = xr_flow_new(-1, AF_INET, XR_FLOW_ACCEPT, 0);
	assert_ptr_not_equal(next, f);
	xr_flow_tcp_rx_end(f, -1, 5);
	xr_flow_sweep_now();
	/* a writer is inside still */
	third = xr_flow_new(-1, AF_INET, XR_FLOW_ACCEPT, 0);
	assert_ptr_not_equal(third, f);
	xr_flow_tcp_tx_end(f, -1, 7);
	assert_int_equal(xr_load_relaxed(&next->tcp_rx), 0);
	assert_int_equal(xr_load_relaxed(&third->tcp_tx), 0);
	usleep(150000);
	xr_flow_sweep_now();
	assert_ptr_equal(xr_flow_new(-1, AF_INET, XR_FLOW_ACCEPT, 0), f);
	assert_int_equal(xr_load_relaxed(&f->tcp_rx), 0);
}

/*
 * One thread's epoll_wait is at a connection, holding its lock, when another one closes it: what that
 * thread has seen of it was then done to the next connection in the slot, which was reset.
 */
static void a_look_keeps_the_slot(void **state)
{
	struct xr_flow *f, *next;
	int side;

	(void)state;
	for (side = 0; side < 2; side++) {
		struct xr_lock *l;

		flow_make();
		flow_on_ring();
		f = R.f;
		l = side ? &f->tx_lock : &f->rx_lock;
		/* another thread: one that lives */
		xr_store_relaxed(&l->owner, 1);
		flow_end();
		next = xr_flow_new(-1, AF_INET, XR_FLOW_ACCEPT, 0);
		assert_ptr_not_equal(next, f);
		assert_int_equal(xr_load_relaxed(&l->owner), 1);
		assert_int_equal(f->tx_state, XR_TX_RING);
		assert_non_null(f->link);
		xr_unlock(l);
		usleep(150000);
		xr_flow_sweep_now();
		assert_null(f->link);
		assert_int_equal(f->tx_state, XR_TX_TCP);
		xr_flow_release(next);
	}
	/* one that was killed lets go of nothing, and keeps nothing */
	flow_make();
	flow_on_ring();
	f = R.f;
	xr_store_relaxed(&f->rx_lock.owner, 0x3fffffff);
	flow_end();
	assert_null(f->link);
}

/* END is published, and its sender has stopped before it said so: it is there for whoever looks, too. */
static void an_end_that_is_not_announced(void **state)
{
	char c;
	struct iovec iov = { &c, 1 };

	(void)state;
	flow_make();
	flow_on_ring();
	far_send("x");
	assert_int_equal(xr_shm_tx_control(&R.tx, XR_OP_END, 0), 0);
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, MSG_PEEK), 1);
	assert_int_equal(flow_recv(), 1);
	assert_true(xr_flow_poll(R.f, R.fd) & POLLIN);
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, MSG_PEEK), 0);
	iov.iov_len = 0;
	assert_int_equal(xr_flow_recv(R.f, R.fd, &iov, 1, 0), 0);
	assert_true(xr_flow_poll(R.f, R.fd) & POLLIN);
	assert_int_equal(flow_recv(), 0);
	flow_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_receive_state_meets_every_event),
		cmocka_unit_test(readable_is_what_a_read_finds),
		cmocka_unit_test(kept_bytes_are_not_handed_over),
		cmocka_unit_test(a_look_may_come_after_the_end),
		cmocka_unit_test(an_end_that_is_not_announced),
		cmocka_unit_test(a_look_keeps_the_slot),
		cmocka_unit_test(a_call_may_end_after_the_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
