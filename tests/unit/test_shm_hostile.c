/* SPDX-License-Identifier: BSD-2-Clause */
/* The shm device against strangers at its door and against a peer that has come in and lies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "core/fabric_shm.h"
#include "core/log.h"
#include "ring_rig.h"
#include "fabric_rig.h"

static struct end a, b;

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* --- strangers ---------------------------------------------------------------------- */

static struct xr_addr door;

static int knock(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	size_t n = strlen(door.name);

	memcpy(sa.sun_path + 1, "xrdma.", 6);
	memcpy(sa.sun_path + 7, door.name, n);
	assert_int_equal(connect(s, (struct sockaddr *)&sa,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 7 + n)), 0);
	return s;
}

static struct shm_cm_msg hello(void)
{
	struct shm_cm_msg m = { .magic = SHM_CM_MAGIC, .version = SHM_CM_VERSION,
				.type = SHM_CM_HELLO };

	return m;
}

/* The door closes on this one, and soon. */
static void thrown_out(int s)
{
	struct shm_cm_msg m;
	int fds[4], nfds, i;
	ssize_t r = -EAGAIN;

	for (i = 0; i < 2000 && r == -EAGAIN; i++) {
		end_poll(&a);
		nfds = 4;
		r = xr_unix_recv(s, &m, sizeof(m), fds, &nfds);
		while (nfds)
			xr_fd_close(fds[--nfds]);
	}
	assert_true(r == 0 || r == -ECONNRESET);
	close(s);
}

static void open_door(void)
{
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	end_open(&a);
	end_qp(&a);
	rig_address(&door);
	assert_int_equal(a.ops->cm_listen(a.dev, &door, NULL, &a.listener), 0);
}

/* An honest peer is served as if nothing had happened. */
static void still_serves(void)
{
	uint32_t requests = a.events[XR_CM_CONNECT_REQUEST];

	end_open(&b);
	end_qp(&b);
	assert_int_equal(b.ops->cm_connect(b.dev, &door, b.qp, NULL, 0, &b.id), 0);
	until(&a, &b, a.events[XR_CM_CONNECT_REQUEST] > requests);
	a.id = a.ev.id;
	assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
	until(&a, &b, b.events[XR_CM_ESTABLISHED]);
	assert_int_equal(post_recv(&a, 1, a.mem, 100), 0);
	a.nwc = 0;
	assert_int_equal(post_send(&b, 1, b.mem, 100), 0);
	until(&a, &b, a.nwc == 1 && !a.wc[0].status);
	assert_int_equal(end_close(&b), 0);
	assert_int_equal(end_close(&a), 0);
}

static void garbage_instead_of_hello(void **state)
{
	uint8_t junk[2000];
	int fds, i;

	(void)state;
	open_door();
	fds = open_fds();
	for (i = 0; i < 40; i++) {
		struct shm_cm_msg m = hello();
		int s = knock(), zero = open("/dev/zero", O_RDWR | O_CLOEXEC), two[2] = { zero, zero };
		struct rng g = { (uint64_t)i };
		size_t n = 1 + rng_below(&g, sizeof(junk));

		stream_fill((uint64_t)i, 0, junk, n);
		switch (i % 10) {
		case 0: xr_unix_send(s, junk, n, NULL, 0); break;
		case 1: m.magic++; xr_unix_send(s, &m, sizeof(m), two, 2); break;
		case 2: m.version++; xr_unix_send(s, &m, sizeof(m), two, 2); break;
		case 3: xr_unix_send(s, &m, sizeof(m), NULL, 0); break;
		case 4: xr_unix_send(s, &m, sizeof(m), two, 1); break;
		case 5: xr_unix_send(s, &m, sizeof(m), two, 2); break;
		case 6: xr_unix_send(s, &m, sizeof(m) - 1, two, 2); break;
		case 7: m.type = SHM_CM_REQ; xr_unix_send(s, &m, sizeof(m), two, 2); break;
		case 8: m.data_len = 257; xr_unix_send(s, &m, sizeof(m), two, 2); break;
		case 9: memset(m.name, 'x', sizeof(m.name)); xr_unix_send(s, &m, sizeof(m), two, 2); break;
		}
		thrown_out(s);
		close(zero);
	}
	assert_int_equal(open_fds(), fds);
	still_serves();
}

static void silent_strangers_do_not_stay(void **state)
{
	int s[SHM_HELLO_MAX + 8], i, fds;
	uint64_t t;

	(void)state;
	open_door();
	fds = open_fds();
	t = xr_now_ns();
	for (i = 0; i < (int)XR_ARRAY_LEN(s); i++) {
		s[i] = knock();
		end_poll(&a);
	}
	/* beyond the limit they are turned away at once */
	for (i = SHM_HELLO_MAX; i < (int)XR_ARRAY_LEN(s); i++)
		thrown_out(s[i]);
	assert_true(xr_now_ns() - t < SHM_HELLO_NS);
	/* the others when their time is up */
	while (xr_now_ns() - t < SHM_HELLO_NS + 100000000u)
		end_poll(&a);
	for (i = 0; i < (int)SHM_HELLO_MAX; i++)
		thrown_out(s[i]);
	assert_int_equal(open_fds(), fds);
	still_serves();
}

/* A stranger that does everything right up to here. */
struct guest {
	int s;
	struct xr_shm_arena own, host;
	int ctl;
};

static void come_in(struct guest *g)
{
	struct shm_cm_msg m = hello();
	int pair[2], fds[4], nfds, i;
	ssize_t r = -EAGAIN;

	g->s = knock();
	assert_int_equal(xr_shm_arena_create(&g->own, SHM_ARENA, SHM_SLOTS), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	g->ctl = pair[0];
	fds[0] = g->own.fd;
	fds[1] = pair[1];
	assert_int_equal(xr_unix_send(g->s, &m, sizeof(m), fds, 2), sizeof(m));
	close(pair[1]);
	for (i = 0; i < 2000 && r == -EAGAIN; i++) {
		end_poll(&a);
		nfds = 4;
		r = xr_unix_recv(g->s, &m, sizeof(m), fds, &nfds);
	}
	assert_int_equal(r, sizeof(m));
	assert_int_equal(m.type, SHM_CM_HELLO);
	assert_int_equal(nfds, 1);
	assert_int_equal(xr_shm_arena_attach(&g->host, fds[0]), 0);
	xr_fd_close(fds[0]);
}

static void leave(struct guest *g)
{
	close(g->ctl);
	xr_shm_arena_destroy(&g->own);
	xr_shm_arena_destroy(&g->host);
}

static void say(struct guest *g, struct shm_cm_msg *m, enum shm_cm_type type)
{
	m->magic = SHM_CM_MAGIC;
	m->version = SHM_CM_VERSION;
	m->type = (uint16_t)type;
	xr_unix_send(g->s, m, sizeof(*m), NULL, 0);
	settle(&a, &a);
}

static void messages_about_nothing(void **state)
{
	struct rng r = { 3 };
	struct guest g;
	int i, fds;

	(void)state;
	open_door();
	fds = open_fds();
	come_in(&g);
	for (i = 0; i < 300; i++) {
		struct shm_cm_msg m = { .src = (uint32_t)rng_next(&r), .dst = (uint32_t)rng_next(&r),
					.status = (int)rng_next(&r), .slot = (uint32_t)rng_next(&r),
					.data_len = rng_below(&r, 257) };
		enum shm_cm_type type = SHM_CM_REP + rng_below(&r, 7);

		/* sometimes of a QP that exists and is none of its business */
		if (rng_below(&r, 2))
			m.dst = a.qp->num;
		m.magic = SHM_CM_MAGIC;
		m.version = SHM_CM_VERSION;
		m.type = (uint16_t)type;
		xr_unix_send(g.s, &m, sizeof(m), NULL, 0);
		end_poll(&a);
		/* answers are not read: let them not fill the socket */
		struct shm_cm_msg in;
		int nfds = 0, none[1];

		while (xr_unix_recv(g.s, &in, sizeof(in), none, &nfds) > 0)
			nfds = 0;
	}
	assert_int_equal(a.qp->state, XR_QPS_INIT);
	assert_int_equal(a.events[XR_CM_ESTABLISHED] + a.events[XR_CM_DISCONNECTED] +
			 a.events[XR_CM_REJECTED] + a.events[XR_CM_UNREACHABLE], 0);
	close(g.s);
	leave(&g);
	settle(&a, &a);
	assert_int_equal(open_fds(), fds);
	still_serves();
}

static void unknown_messages_end_the_link(void **state)
{
	static const uint16_t types[] = { 0, SHM_CM_HELLO, SHM_CM_NUDGE + 1, 0xffff };
	size_t i;
	int fds;

	(void)state;
	open_door();
	fds = open_fds();
	for (i = 0; i < XR_ARRAY_LEN(types); i++) {
		struct shm_cm_msg m = { .dst = 1 };
		struct guest g;

		come_in(&g);
		say(&g, &m, types[i]);
		thrown_out(g.s);
		leave(&g);
	}
	assert_int_equal(open_fds(), fds);
	still_serves();
}

static void requests_with_impossible_rings(void **state)
{
	struct guest g;
	uint64_t stride, base;
	size_t i;

	(void)state;
	open_door();
	come_in(&g);
	stride = XR_DIR_BYTES(g.own.hdr.dir_slots);
	base = g.own.hdr.dir_off;
	const uint64_t bad[][2] = {
		{ 0, 0 }, { base, base }, { base, base + 1 }, { base + 8, base },
		{ base, base + stride * g.own.hdr.ndirs }, { UINT64_MAX, base },
		{ base - stride, base }, { g.own.hdr.chunk_off, base }, { 1ull << 63, base },
	};
	for (i = 0; i < XR_ARRAY_LEN(bad); i++) {
		struct shm_cm_msg m = { .src = 77, .off = { bad[i][0], bad[i][1] } };
		uint32_t n = a.events[XR_CM_CONNECT_REQUEST];

		strcpy(m.name, door.name);
		say(&g, &m, SHM_CM_REQ);
		assert_int_equal(a.events[XR_CM_CONNECT_REQUEST], n + 1);
		assert_int_equal(a.ops->cm_accept(a.ev.id, a.qp, NULL, 0), -EPROTO);
		assert_int_equal(a.qp->state, XR_QPS_INIT);
		assert_int_equal(a.ops->cm_reject(a.ev.id, NULL, 0), 0);
	}
	/* no number, too much private data, a name that is not ours */
	for (i = 0; i < 3; i++) {
		struct shm_cm_msg m = { .src = 77, .off = { base, base + stride } };
		uint32_t n = a.events[XR_CM_CONNECT_REQUEST];

		strcpy(m.name, i == 2 ? "elsewhere" : door.name);
		m.src = i == 0 ? 0 : 77;
		m.data_len = i == 1 ? 57 : 0;
		say(&g, &m, SHM_CM_REQ);
		assert_int_equal(a.events[XR_CM_CONNECT_REQUEST], n);
	}
	close(g.s);
	leave(&g);
	still_serves();
}

static void a_flood_of_requests_is_bounded(void **state)
{
	struct guest g;
	int i;

	(void)state;
	open_door();
	come_in(&g);
	for (i = 0; i < 500; i++) {
		struct shm_cm_msg m = { .src = 1 + (uint32_t)i, .off = { g.own.hdr.dir_off,
					g.own.hdr.dir_off + XR_DIR_BYTES(SHM_SLOTS) } };

		strcpy(m.name, door.name);
		m.magic = SHM_CM_MAGIC;
		m.version = SHM_CM_VERSION;
		m.type = SHM_CM_REQ;
		xr_unix_send(g.s, &m, sizeof(m), NULL, 0);
		end_poll(&a);
	}
	/* it never read an answer: either the backlog stopped it or it was thrown out */
	assert_true(a.events[XR_CM_CONNECT_REQUEST] <= 64);
	close(g.s);
	leave(&g);
	settle(&a, &a);
	/* what it asked for cannot be accepted any more */
	assert_int_equal(a.ops->cm_accept(a.ev.id, a.qp, NULL, 0), -ENOTCONN);
	end_close(&a);
}

/* What waits for a peer that never reads is bounded, too, and others are served meanwhile. */
static void answers_that_nobody_reads(void **state)
{
	struct shm_cm_msg m = { .magic = SHM_CM_MAGIC, .version = SHM_CM_VERSION, .type = SHM_CM_REQ, .src = 77 };
	struct guest g;
	ssize_t r = 0;
	uint32_t i;

	(void)state;
	open_door();
	come_in(&g);
	strcpy(m.name, "elsewhere");
	for (i = 0; i < 5 * SHM_MAX_QP && r >= 0; i++) {
		r = xr_unix_send(g.s, &m, sizeof(m), NULL, 0);
		end_poll(&a);
		if (r == -EAGAIN)
			r = 0;
	}
	/* not at once, as when many connections end together; but not for ever */
	assert_true(i > SHM_MAX_QP && i < 5 * SHM_MAX_QP);
	assert_true(r == -EPIPE || r == -ECONNRESET);
	close(g.s);
	leave(&g);
	still_serves();
}

/* --- a peer that lies in shared memory ------------------------------------------------- */

static uint64_t evil(struct rng *g, uint64_t now)
{
	switch (rng_below(g, 6)) {
	case 0:
		return rng_next(g);
	case 1:
		return now ^ (1ull << rng_below(g, 64));
	case 2:
		return now + rng_below(g, 5) - 2;
	case 3:
		return now + ((uint64_t)(rng_below(g, 5) - 2) << 32);
	case 4:
		return 0;
	default:
		return UINT64_MAX >> rng_below(g, 64);
	}
}

/* One word of whatever b shares with a. */
static void scribble(struct shm_qp *q, struct rng *g)
{
	struct xr_shm_tx *tx = rng_below(g, 2) ? &q->req_tx : &q->resp_tx;
	struct xr_shm_rx *rx = rng_below(g, 2) ? &q->req_rx : &q->resp_rx;
	struct xr_shm_slot *s = &tx->slots[(tx->head - rng_below(g, 4)) & tx->mask];

	switch (rng_below(g, 10)) {
	case 0:
		xr_store_relaxed(&s->head, evil(g, xr_load_relaxed(&s->head)));
		break;
	case 1:
		/* a header that passes, over parameters of another operation */
		xr_store_relaxed(&s->head, XR_HEAD(tx->head, rng_below(g, 130), rng_below(g, 16),
						   rng_below(g, XR_OP_MAX + 1)));
		break;
	case 2:
		s->ref.off = evil(g, s->ref.off);
		break;
	case 3:
		xr_store_relaxed(&s->ref.len, (uint32_t)evil(g, xr_load_relaxed(&s->ref.len)));
		break;
	case 4:
		s->ref.rkey = (uint32_t)evil(g, s->ref.rkey);
		break;
	case 5:
		s->ref.raddr = evil(g, s->ref.raddr);
		break;
	case 6:
		s->ref.wr = evil(g, s->ref.wr);
		break;
	case 7:
		xr_store_relaxed(&rx->dir->consumed, evil(g, xr_load_relaxed(&rx->dir->consumed)));
		break;
	case 8:
		xr_store_relaxed(&rx->dir->taken, (uint32_t)evil(g, xr_load_relaxed(&rx->dir->taken)));
		break;
	case 9:
		xr_store_relaxed(&rx->dir->arm, evil(g, xr_load_relaxed(&rx->dir->arm)));
		xr_store_relaxed(&tx->dir->tx_arm, evil(g, xr_load_relaxed(&tx->dir->tx_arm)));
		break;
	}
}

static void a_peer_that_lies(void **state)
{
	struct rng g = { 2026 };
	int round, ended = 0;

	(void)state;
	for (round = 0; round < 200; round++) {
		uint32_t ns = 0, nr = 0, i;

		memset(&a, 0, sizeof(a));
		memset(&b, 0, sizeof(b));
		a.attr.rnr_retry = b.attr.rnr_retry = 7;
		rig_connect(&a, &b);
		for (i = 0; i < 80; i++) {
			struct end *e = rng_below(&g, 2) ? &a : &b;
			uint32_t n = rng_below(&g, 3) ? rng_below(&g, 200) : rng_below(&g, 60000);

			if (e == &a && a.nwc < 400 &&
			    !post(&a, rng_below(&g, 3) ? XR_WR_SEND : XR_WR_READ, ns, a.mem, n,
				  XR_SEND_SIGNALED, (uintptr_t)b.mem, b.mr->rkey))
				ns++;
			if (e == &b)
				post(&b, rng_below(&g, 5), i, b.mem, n, 0,
				     (uintptr_t)a.mem + rng_below(&g, 1 << 19), a.mr->rkey);
			if (rng_below(&g, 2) && !post_recv(&a, nr, rng_below(&g, 2) ? a.mem : NULL, 0))
				nr++;
			post_recv(&b, 1, b.mem, 65536);
			if (rng_below(&g, 2))
				scribble(shm_qp(b.qp), &g);
			both_poll(&a, &b);
			b.nwc = 0;
			while (a.nwc && a.wc[a.nwc - 1].ref && rng_below(&g, 2)) {
				a.ops->recv_release(a.qp, a.wc[a.nwc - 1].ref);
				a.wc[a.nwc - 1].ref = 0;
			}
		}
		ended += a.qp->state == XR_QPS_ERR;
		/* every request of a ends once, whatever b does */
		a.ops->qp_modify(a.qp, XR_QPS_ERR);
		for (i = 0; i < 1000; i++)
			end_poll(&a);
		assert_int_equal(a.nwc, ns + nr);
		assert_int_equal(end_close(&a), 0);
		assert_int_equal(end_close(&b), 0);
	}
	assert_true(ended > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(garbage_instead_of_hello),
		cmocka_unit_test(silent_strangers_do_not_stay),
		cmocka_unit_test(messages_about_nothing),
		cmocka_unit_test(unknown_messages_end_the_link),
		cmocka_unit_test(requests_with_impossible_rings),
		cmocka_unit_test(a_flood_of_requests_is_bounded),
		cmocka_unit_test(answers_that_nobody_reads),
		cmocka_unit_test(a_peer_that_lies),
	};

	/* what is refused is logged, and that is much */
	xr_log_init(XR_LOG_NONE, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
