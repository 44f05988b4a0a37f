/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The process that has a flow is killed inside a call, at each instruction that has changed anything; another one of
 * its family has the connection too, and goes on with it over TCP: no byte is lost, or comes twice, on either side.
 */
#include "flow_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include "child.h"

#define KILLS	400u		/* more than any call has */

/* In memory that the child shares. */
static struct {
	_Atomic uint32_t done, took;
} *S;

static char stream[8192];
static const char *const last = "<and the rest over TCP>";

/* ---- one who is killed at the k-th change --------------------------------------------- */

static int changed(void)
{
	static uint8_t is[sizeof(struct xr_flow)], dir[2][XR_DIR_BYTES(SLOTS)], frame[sizeof(struct xr_flow_far)];
	const void *own = R.near->own.base + R.f->dir_off, *peer = R.far->own.base + R.far_off;
	static int inq, outq;
	int in = 0, out = 0, r;

	ioctl(R.fd, 0x541b /* FIONREAD */, &in);
	ioctl(R.far_fd, 0x541b, &out);
	r = in != inq || out != outq || memcmp(is, R.f, sizeof(is)) || memcmp(dir[0], own, sizeof(dir[0])) ||
	    memcmp(dir[1], peer, sizeof(dir[1]));
	r = r || (R.f->far && memcmp(frame, R.f->far, sizeof(frame)));
	inq = in;
	outq = out;
	if (R.f->far)
		memcpy(frame, R.f->far, sizeof(frame));
	memcpy(is, R.f, sizeof(is));
	memcpy(dir[0], own, sizeof(dir[0]));
	memcpy(dir[1], peer, sizeof(dir[1]));
	return r;
}

/* 1: it was; 0: it came to its end before. */
static int killed_at(void (*deed)(void), uint32_t k)
{
	int st, dead = 0;
	pid_t pid;

	xr_store_relaxed(&S->done, 0);
	xr_store_relaxed(&S->took, 0);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		xr_process_forked();
		R.f->owner_pid = xr_getpid();
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(7);
		raise(SIGSTOP);
		deed();
		xr_store_relaxed(&S->done, 1);
		for (;;)
			pause();
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	if (WIFEXITED(st) && WEXITSTATUS(st) == 7) {
		print_message("no ptrace here\n");
		skip();
	}
	changed();
	while (!dead && !xr_load_relaxed(&S->done)) {
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_true(WIFSTOPPED(st));
		dead = changed() && !k--;
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	return dead;
}

static void end(void)
{
	R.f->owner_pid = xr_getpid();
	flow_end();
}

/* ---- those who are left --------------------------------------------------------------- */

/* The peer, which goes on: what was not consumed it sends again, and then the rest. */
static void peer_goes_on(void)
{
	struct iovec iov[8];
	uint32_t w;
	size_t n, i;

	xr_shm_tx_armed(&R.tx, &w);
	assert_int_equal(xr_shm_tx_is_frozen(&R.tx), 1);
	xr_shm_tx_freeze(&R.tx);
	assert_int_equal(R.tx.lied, 0);
	while ((n = xr_shm_tx_replay(&R.tx, iov, 8)) > 0)
		for (i = 0; i < n; i++) {
			assert_int_equal(send(R.far_fd, iov[i].iov_base, iov[i].iov_len, 0), iov[i].iov_len);
			xr_shm_tx_replayed(&R.tx, iov[i].iov_len);
		}
	far_write(last);
}

/* Of the other process of the family: all that there is, in whichever place. */
static size_t read_all(char *to, size_t room)
{
	struct iovec iov;
	size_t got = 0;
	ssize_t n;

	do {
		iov = (struct iovec){ to + got, room - got };
		R.f->rx_checked = 0;
		n = xr_load_acquire(&R.f->path) & XR_PATH_FABRIC ? xr_flow_recv(R.f, R.fd, &iov, 1, 0) : -EREMOTEIO;
		if (n == -EREMOTEIO)
			n = recv(R.fd, iov.iov_base, iov.iov_len, MSG_DONTWAIT);
		got += n > 0 ? (size_t)n : 0;
	} while (n > 0);
	return got;
}

/* What was read is the end of the stream, and not less than the one who was killed has not read. */
static void is_the_end(const char *got, size_t n, size_t took, size_t call)
{
	size_t len = strlen(stream);

	assert_true(n <= len);
	if (memcmp(stream + len - n, got, n))
		fail_msg("read: %.*s", (int)n, got);
	assert_true(n + took + call >= len);
}

static void takes(size_t n)
{
	char buf[64];
	struct iovec iov = { buf, n };
	ssize_t r;

	R.f->rx_checked = 0;
	r = xr_flow_recv(R.f, R.fd, &iov, 1, 0);
	if (r == -EREMOTEIO)
		r = recv(R.fd, buf, n, MSG_DONTWAIT);
	if (r > 0)
		xr_store_relaxed(&S->took, xr_load_relaxed(&S->took) + (uint32_t)r);
}

static void reader(void (*begin)(void), void (*deed)(void), size_t call, int plays)
{
	char got[sizeof(stream)];
	uint32_t k;
	size_t n;
	int dead = 1;

	for (k = 0; dead && k < KILLS; k++) {
		flow_make();
		begin();
		dead = killed_at(deed, k);
		/* sees that nobody of those who send over the ring is left at this end */
		n = read_all(got, sizeof(got));
		if (plays)
			peer_goes_on();
		n += read_all(got + n, sizeof(got) - n);
		is_the_end(got, n, xr_load_relaxed(&S->took), call);
		assert_int_equal(R.f->reason, XR_REASON_FORKED);
		end();
	}
	print_message("killed %u times\n", k - 1);
	assert_false(dead);
	assert_true(k > 4);
}

/* ---- it reads -------------------------------------------------------------------------- */

static void before_start(void)
{
	R.f->rx_state = XR_RX_READY;
	xr_shm_rx_ready(&R.f->rx);
	far_write("0123456789");
	far_start(10);
	far_send("abcdefghij");
	far_send("klmnop");
	snprintf(stream, sizeof(stream), "0123456789abcdefghijklmnop%s", last);
}

static void reads_on(void)
{
	int i;

	for (i = 0; i < 5; i++)
		takes(7);
}

static void over_to_the_ring(void **state)
{
	(void)state;
	reader(before_start, reads_on, 7, 1);
}

/* The peer has frozen, and sends again what was read since; not all of it has come. */
static void comes_again(void)
{
	flow_on_ring();
	far_send("abcdefghij");
	far_send("klmnop");
	xr_shm_tx_freeze(&R.tx);
	takes(16);
	assert_int_equal(R.f->rx.late, 16);
	far_write("abcdefghi");
	snprintf(stream, sizeof(stream), "%s", last);
}

static void peer_sends_again(void)
{
	/* what its replay has left to send */
	far_write("jklmnop");
	far_write(last);
}

static void throws_away(void **state)
{
	char got[256];
	uint32_t k;
	size_t n;
	int dead = 1;

	(void)state;
	for (k = 0; dead && k < KILLS; k++) {
		flow_make();
		comes_again();
		dead = killed_at(reads_on, k);
		peer_sends_again();
		n = read_all(got, sizeof(got));
		is_the_end(got, n, 0, 0);
		end();
	}
	print_message("killed %u times\n", k - 1);
	assert_false(dead);
	assert_true(k > 4);
}

/* ---- it writes -------------------------------------------------------------------------- */

static size_t sent;

static ssize_t puts_on(const char *s, size_t n)
{
	struct iovec iov = { (void *)(uintptr_t)s, n };
	ssize_t r;

	R.f->tx_checked = R.f->rx_checked = 0;
	r = xr_flow_send(R.f, R.fd, &iov, 1, MSG_NOSIGNAL);
	return r == -EREMOTEIO ? send(R.fd, s, n, MSG_DONTWAIT) : r;
}

static void fill(void)
{
	uint32_t i;

	for (i = 0; i < sizeof(stream) - 1; i++)
		stream[i] = (char)('!' + (i * 7 + i / 90) % 90);
}

static void sends_on(void)
{
	ssize_t n;

	for (n = 1; n > 0 && sent < 60;) {
		n = puts_on(stream + sent, 20);
		if (n > 0) {
			sent += (size_t)n;
			xr_store_relaxed(&S->took, (uint32_t)sent);
		}
	}
}

static void leaves_tcp(void)
{
	if (!xr_flow_tx_start(R.f, 0))
		sends_on();
}

/* At the peer: the ring, up to where it was frozen, and then the socket. */
static size_t peer_reads(char *to, size_t room)
{
	struct xr_view v;
	size_t n = 0;
	ssize_t r;

	while (xr_shm_rx_peek(&R.rx, &v) == 1) {
		memcpy(to + n, v.data, v.len);
		n += v.len;
		xr_shm_rx_take(&R.rx, &v, v.len);
		assert_int_equal(xr_shm_rx_commit(&R.rx), 0);
	}
	assert_int_equal(R.rx.lied, 0);
	for (;;) {
		char skip[64];
		size_t late = R.rx.late < sizeof(skip) ? R.rx.late : sizeof(skip);

		r = recv(R.far_fd, late ? skip : to + n, late ? late : room - n, MSG_DONTWAIT);
		if (r <= 0)
			return n;
		if (late)
			R.rx.late -= (size_t)r;
		else
			n += (size_t)r;
	}
}

static void writer(void (*begin)(void), void (*deed)(void), int from_tcp)
{
	char got[sizeof(stream)];
	size_t n, has, was;
	int dead = 1, i;
	uint32_t k;

	fill();
	for (k = 0; dead && k < KILLS; k++) {
		flow_make();
		sent = 0;
		if (from_tcp) {
			R.f->tx_state = XR_TX_TCP;
			xr_fetch_or(&R.f->path, XR_PATH_TX);
		}
		begin();
		was = sent;
		dead = killed_at(deed, k);
		if (!dead || xr_load_relaxed(&S->took) > was)
			was = xr_load_relaxed(&S->took);
		/* all of what it sent, or as much of it as it came to */
		for (i = 0; i < 8 && puts_on(last, strlen(last)) != (ssize_t)strlen(last); i++)
			;
		n = peer_reads(got, sizeof(got));
		assert_int_equal(xr_shm_rx_is_frozen(&R.rx), 1);
		n += peer_reads(got + n, sizeof(got) - n);
		assert_true(n >= strlen(last) + was);
		has = n - strlen(last);
		if (memcmp(got, stream, has) || memcmp(got + has, last, strlen(last)))
			fail_msg("came: %.*s", (int)n, got);
		end();
	}
	print_message("killed %u times\n", k - 1);
	assert_false(dead);
	assert_true(k > 4);
}

static void nothing(void)
{
}

static void from_tcp_to_the_ring(void **state)
{
	(void)state;
	writer(nothing, leaves_tcp, 1);
}

static void into_the_ring(void **state)
{
	(void)state;
	writer(nothing, sends_on, 0);
}

/* The peer has frozen it: what lies in the ring is to be sent again. */
static void frozen(void)
{
	char was[8];

	/* TCP carried some before */
	assert_int_equal(send(R.fd, "before", 6, 0), 6);
	R.f->tcp_tx = 6;
	assert_int_equal(recv(R.far_fd, was, 6, MSG_WAITALL), 6);
	sends_on();
	assert_int_equal(sent, 60);
	assert_int_equal(xr_shm_rx_freeze(&R.rx), 0);
}

static void sends_again(void)
{
	ssize_t n = puts_on(stream + sent, 20);

	if (n > 0)
		xr_store_relaxed(&S->took, (uint32_t)(sent + (size_t)n));
}

static void out_of_the_ring(void **state)
{
	(void)state;
	writer(frozen, sends_again, 0);
}

/* ---- to another host -------------------------------------------------------------------- */

/* The peer has read the first of it, when its module goes. */
static void frozen_far(void)
{
	struct xr_bridge_answer a = { .type = XR_BRIDGE_UP };
	struct xr_view v;

	memset(a.secret, 7, sizeof(a.secret));
	xr_far_attach(R.f, &a);
	sends_on();
	assert_int_equal(sent, 60);
	assert_int_equal(xr_shm_rx_peek(&R.rx, &v), 1);
	assert_int_equal(v.len, 20);
	xr_shm_rx_take(&R.rx, &v, v.len);
	assert_int_equal(xr_shm_rx_commit(&R.rx), 0);
	assert_int_equal(xr_shm_rx_freeze(&R.rx), 0);
}

/* Behind one frame all that it has not read, once. */
static void frame_and_rest(void **state)
{
	static const uint8_t offset[8] = { [7] = 20 };
	char got[sizeof(stream)];
	struct xr_frame m;
	int dead = 1, i;
	size_t n, has;
	uint32_t k;

	(void)state;
	fill();
	for (k = 0; dead && k < KILLS; k++) {
		flow_make();
		sent = 0;
		frozen_far();
		dead = killed_at(sends_again, k);
		n = dead && !xr_load_relaxed(&S->took) ? 60 : xr_load_relaxed(&S->took);
		for (i = 0; i < 8 && puts_on(last, strlen(last)) != (ssize_t)strlen(last); i++)
			;
		assert_int_equal(recv(R.far_fd, &m, sizeof(m), MSG_WAITALL), sizeof(m));
		assert_memory_equal(m.nonce, R.f->far->tx_nonce, sizeof(m.nonce));
		assert_memory_equal(m.offset, offset, sizeof(offset));
		has = (size_t)recv(R.far_fd, got, sizeof(got), MSG_DONTWAIT);
		assert_true(has >= n - 20 + strlen(last) && has <= 80 - 20 + strlen(last));
		has -= strlen(last);
		if (memcmp(got, stream + 20, has) || memcmp(got + has, last, strlen(last)))
			fail_msg("killed at %u, came: %.*s", k, (int)(has + strlen(last)), got);
		end();
	}
	print_message("killed %u times\n", k - 1);
	assert_false(dead);
	assert_true(k > 4);
}

/* The peer's frame says that it has not heard of the last ten bytes that were read: they come again. */
static void frame_comes(void)
{
	struct xr_bridge_answer a = { .type = XR_BRIDGE_UP };
	struct xr_frame m = { .offset = { [7] = 6 }, .kind = XR_FRAME_RETREAT };

	memset(a.secret, 7, sizeof(a.secret));
	xr_far_attach(R.f, &a);
	flow_on_ring();
	far_send("abcdefghij");
	far_send("klmnop");
	takes(16);
	memcpy(m.nonce, R.f->far->rx_nonce, sizeof(m.nonce));
	assert_int_equal(send(R.far_fd, &m, sizeof(m), 0), sizeof(m));
	far_write("ghijklmnop");
	far_write(last);
	snprintf(stream, sizeof(stream), "%s", last);
}

static void frame_and_late(void **state)
{
	char got[sizeof(stream)];
	uint32_t k;
	size_t n;
	int dead = 1;

	(void)state;
	for (k = 0; dead && k < KILLS; k++) {
		flow_make();
		frame_comes();
		xr_store_relaxed(&S->took, 0);
		dead = killed_at(reads_on, k);
		n = read_all(got, sizeof(got));
		assert_int_equal(R.f->rx_reset, 0);
		is_the_end(got, n, xr_load_relaxed(&S->took), 7);
		end();
	}
	print_message("killed %u times\n", k - 1);
	assert_false(dead);
	assert_true(k > 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(over_to_the_ring),
		cmocka_unit_test(throws_away),
		cmocka_unit_test(from_tcp_to_the_ring),
		cmocka_unit_test(into_the_ring),
		cmocka_unit_test(out_of_the_ring),
		cmocka_unit_test(frame_and_rest),
		cmocka_unit_test(frame_and_late),
	};

#ifdef __SANITIZE_THREAD__
	return 77;	/* single steps through its instructions take minutes; a test of one thread tells it nothing */
#endif
	xr_cfg.rdma = 1;
	S = xr_map_family(sizeof(*S));
	return S ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
