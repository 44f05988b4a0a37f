/* SPDX-License-Identifier: BSD-2-Clause */
/* Rules of epoll on fabric flows, with readiness set by hand. */
#include <sys/resource.h>
#include "child.h"
#include "fake_epoll.h"

/* ---- triggers ---------------------------------------------------------------- */

static void level(void **state)
{
	struct fake *k = moved(1, EPOLLIN);

	(void)state;
	expect_none(0);
	fake_send(k, 10);
	expect(0, EPOLLIN, 101);
	expect(0, EPOLLIN, 101);
	fake_drain(k);
	expect_none(0);
	expect_none(5);
	fake_send(k, 1);
	expect(1000, EPOLLIN, 101);
}

static void level_out(void **state)
{
	struct fake *k = moved(1, EPOLLIN | EPOLLOUT);

	(void)state;
	expect(0, EPOLLOUT, 101);
	fake_send(k, 1);
	expect(0, EPOLLIN | EPOLLOUT, 101);
	fake_fill(k);
	fake_drain(k);
	expect_none(5);
	fake_space(k);
	expect(1000, EPOLLOUT, 101);
}

static void edge(void **state)
{
	struct fake *k = moved(1, EPOLLIN | EPOLLET);

	(void)state;
	expect_none(0);
	fake_send(k, 10);
	expect(0, EPOLLIN, 101);
	expect_none(0);
	expect_none(5);
	/* more arrives while the first is unread */
	fake_send(k, 10);
	expect(0, EPOLLIN, 101);
	expect_none(0);
	/* read all, and as much arrives again */
	fake_drain(k);
	fake_send(k, 20);
	expect(0, EPOLLIN, 101);
	fake_drain(k);
	expect_none(5);
	fake_send(k, 1);
	expect(1000, EPOLLIN, 101);
}

static void edge_out(void **state)
{
	struct fake *k = moved(1, EPOLLOUT | EPOLLET);

	(void)state;
	expect(0, EPOLLOUT, 101);
	expect_none(0);
	expect_none(5);
	/* full and empty again between two calls: an edge all the same */
	fake_fill(k);
	fake_space(k);
	expect(0, EPOLLOUT, 101);
	expect_none(5);
	fake_fill(k);
	expect_none(5);
	fake_space(k);
	expect(1000, EPOLLOUT, 101);
}

static void oneshot(void **state)
{
	struct fake *k = moved(1, EPOLLIN);

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, 7), 0);
	fake_send(k, 10);
	expect(0, EPOLLIN, 7);
	expect_none(0);
	fake_send(k, 10);
	expect_none(5);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, 8), 0);
	expect(0, EPOLLIN, 8);
	expect_none(5);
}

static void mod_reports_what_is_there(void **state)
{
	struct fake *k = moved(1, EPOLLIN | EPOLLET);

	(void)state;
	fake_send(k, 1);
	expect(0, EPOLLIN, 101);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLET, 5), 0);
	expect(0, EPOLLIN, 5);
	expect_none(0);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, 0, 6), 0);
	expect_none(0);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLOUT, 9), 0);
	expect(0, EPOLLOUT, 9);
}

static void errors_are_the_kernel_s(void **state)
{
	struct fake *k = moved(1, EPOLLIN), *on_tcp = fake_open(2);
	struct epoll_event ev;

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), -EEXIST);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLEXCLUSIVE, 1), -EINVAL);
	assert_int_equal(ctl(77, k->fd, EPOLLIN, 1), -EINVAL);
	assert_int_equal(ctl_at(ep, EPOLL_CTL_MOD, k->fd, NULL), -EFAULT);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), -ENOENT);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN, 0), -ENOENT);
	assert_int_equal(ctl(EPOLL_CTL_MOD, on_tcp->fd, EPOLLIN, 0), -ENOENT);
	assert_int_equal(ctl(EPOLL_CTL_ADD, ep, EPOLLIN, 0), -EINVAL);
	assert_int_equal(ctl(EPOLL_CTL_ADD, 1000000, EPOLLIN, 0), -EBADF);
	assert_int_equal(wait_ev(&ev, 0, 0), -EINVAL);
	assert_int_equal(wait_ev(&ev, -1, 0), -EINVAL);
}

static void removed_and_added(void **state)
{
	struct fake *k = moved(1, EPOLLIN);

	(void)state;
	fake_send(k, 1);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	expect_none(0);
	expect_none(5);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 55), 0);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 56), -EEXIST);
	expect(0, EPOLLIN, 55);
	/* removed on the fabric, then back on TCP: not there */
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	fake_back(k);
	assert_int_equal(write(k->peer, "x", 1), 1);
	expect_none(5);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 57), 0);
	expect(0, EPOLLIN, 57);
}

/* ---- two worlds ---------------------------------------------------------------- */

static void slots_are_shared(void **state)
{
	struct epoll_event ev[2];
	struct fake *k = moved(1, EPOLLIN);
	int i, seen[2] = { 0, 0 };

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, pipe_fd[0], EPOLLIN, 200), 0);
	assert_int_equal(write(pipe_fd[1], "x", 1), 1);
	fake_send(k, 1);
	/* one slot: they take turns, however soon the calls follow each other */
	for (i = 0; i < 2000; i++) {
		assert_int_equal(wait_ev(ev, 1, 0), 1);
		seen[ev[0].data.u64 == 200]++;
		usleep(i < 100 ? 20 : 0);
	}
	assert_true(seen[0] > 40);
	assert_true(seen[1] > 40);
	/* two slots: both */
	usleep(1000);
	assert_int_equal(wait_ev(ev, 2, 0), 2);
	assert_int_equal(ev[0].data.u64 + ev[1].data.u64, 301);
}

static void busy_fabric_does_not_starve_the_kernel(void **state)
{
	struct epoll_event ev[8];
	uint64_t then;
	int i, n, found = 0;

	(void)state;
	for (i = 0; i < 50; i++)
		fake_send(moved((uint32_t)i, EPOLLIN), 1);
	assert_int_equal(ctl(EPOLL_CTL_ADD, pipe_fd[0], EPOLLIN, 200), 0);
	n = wait_ev(ev, 8, 0);
	assert_true(n > 0);
	assert_int_equal(write(pipe_fd[1], "x", 1), 1);
	then = xr_now_ns();
	while (!found && xr_now_ns() - then < 1000000000u) {
		n = wait_ev(ev, 8, 0);
		for (i = 0; i < n; i++)
			found |= ev[i].data.u64 == 200;
	}
	assert_true(found);
	assert_true(xr_now_ns() - then < 50000000u);
}

static void ready_flows_take_turns(void **state)
{
	struct epoll_event ev[4];
	uint32_t seen[20] = { 0 }, i, j;

	(void)state;
	for (i = 0; i < 20; i++)
		fake_send(moved(i, EPOLLIN), 1);
	for (i = 0; i < 100; i++) {
		int n = wait_ev(ev, 4, 0);

		assert_true(n >= 3);
		for (j = 0; j < (uint32_t)n; j++) {
			assert_true(ev[j].data.u64 >= 100 && ev[j].data.u64 < 120);
			seen[ev[j].data.u64 - 100]++;
		}
	}
	for (i = 0; i < 20; i++)
		assert_in_range(seen[i], 14, 26);
}

static void cost_is_that_of_the_ready(void **state)
{
	struct epoll_event ev[8];
	struct fake *k[1000];
	uint32_t i, before;

	(void)state;
	for (i = 0; i < 1000; i++)
		k[i] = moved(i, EPOLLIN);
	while (wait_ev(ev, 8, 1) > 0)
		;
	before = fake_polls;
	for (i = 0; i < 100; i++) {
		fake_send(k[i * 10], 1);
		assert_int_equal(wait_ev(ev, 8, 1000), 1);
		assert_int_equal(ev[0].data.u64, 100 + i * 10);
		fake_drain(k[i * 10]);
	}
	/* reported, found drained, armed: a handful each, not a thousand */
	assert_in_range(fake_polls - before, 100, 800);
}

static void overrun_of_entries(void **state)
{
	struct epoll_event ev[64];
	struct fake *k[1000];
	uint32_t i, got = 0;
	int n;

	(void)state;
	for (i = 0; i < 1000; i++)
		k[i] = moved(i, EPOLLIN);
	while (wait_ev(ev, 64, 1) > 0)
		;
	/* more than the ring of completion entries holds */
	for (i = 0; i < 1000; i++)
		fake_send(k[i], 1);
	while (got < 1000) {
		n = wait_ev(ev, 64, 1000);
		assert_true(n > 0);
		got += (uint32_t)n;
		for (i = 0; i < (uint32_t)n; i++)
			fake_drain(k[ev[i].data.u64 - 100]);
	}
	expect_none(5);
	assert_int_equal(got, 1000);
}

static void kernel_socket_is_watched(void **state)
{
	struct fake *k = moved(1, EPOLLIN | EPOLLRDHUP | EPOLLET);
	uint32_t events;

	(void)state;
	expect_none(5);
	assert_int_equal(shutdown(k->peer, SHUT_WR), 0);
	expect(1000, EPOLLIN | EPOLLRDHUP, 101);
	assert_true(k->kernel_events > 0);
	/* the condition lasts, and nobody spins on it */
	events = k->kernel_events;
	expect_none(30);
	assert_int_equal(k->kernel_events, events);
}

/* ---- moving -------------------------------------------------------------------- */

static void there_and_back(void **state)
{
	struct fake *k = fake_open(1);

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), 0);
	expect_none(0);
	assert_int_equal(write(k->peer, "x", 1), 1);
	expect(0, EPOLLIN, 1);
	assert_int_equal(fake_move(k), 0);
	/* the socket's own byte is none of the program's business now */
	expect_none(5);
	fake_send(k, 1);
	expect(0, EPOLLIN, 1);
	fake_back(k);
	expect(0, EPOLLIN, 1);
	assert_int_equal(read(k->fd, &(char){ 0 }, 1), 1);
	expect_none(5);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLOUT, 2), 0);
	expect(0, EPOLLOUT, 2);
	assert_int_equal(fake_move(k), 0);
	expect(0, EPOLLOUT, 2);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	expect_none(0);
}

/* A flow that went back without telling us is found by the next look. */
static void back_behind_our_back(void **state)
{
	struct fake *k = moved(1, EPOLLIN);

	(void)state;
	expect_none(0);
	xr_store_release(&k->f->path, XR_PATH_COUNT);
	assert_int_equal(write(k->peer, "x", 1), 1);
	expect(1000, EPOLLIN, 101);
	expect(0, EPOLLIN, 101);
	assert_int_equal(read(k->fd, &(char){ 0 }, 1), 1);
	expect_none(5);
}

static void oneshot_moves_only_when_fired(void **state)
{
	struct fake *k = fake_open(1);

	(void)state;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLONESHOT, 0xabcdef0123456789), 0);
	assert_int_equal(fake_move(k), -EAGAIN);
	assert_int_equal(write(k->peer, "x", 1), 1);
	expect(0, EPOLLIN, 0xabcdef0123456789);
	assert_int_equal(fake_move(k), 0);
	fake_send(k, 1);
	expect_none(5);
	/* back in the kernel it is still fired: silent, and registered */
	fake_back(k);
	expect_none(5);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 1), -EEXIST);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLONESHOT, 3), 0);
	expect(0, EPOLLIN, 3);
	expect_none(0);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), -ENOENT);
}

static void what_cannot_be_followed_stays(void **state)
{
	struct fake *k = fake_open(1);
	int other = epoll_create1(EPOLL_CLOEXEC), stranger = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN };

	(void)state;
	assert_int_equal(xr_epoll_created(other, 0), 0);
	/* EPOLLEXCLUSIVE in one file has nobody to choose from; among several the kernel chooses */
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN | EPOLLEXCLUSIVE, 1), 0);
	assert_int_equal(ctl_at(other, EPOLL_CTL_ADD, k->fd, &ev), 0);
	assert_int_equal(fake_move(k), -EINVAL);
	assert_int_equal(ctl_at(other, EPOLL_CTL_DEL, k->fd, &ev), 0);
	assert_int_equal(fake_move(k), 0);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN, 1), -EINVAL);
	fake_send(k, 1);
	expect(0, EPOLLIN, 1);
	fake_drain(k);
	expect_none(5);
	/* another file takes it back to TCP, and both report */
	assert_int_equal(ctl_at(other, EPOLL_CTL_ADD, k->fd, &ev), 0);
	assert_int_equal(k->retreats, 1);
	assert_int_equal(fake_stay_reason, XR_REASON_EPOLL_EXCLUSIVE);
	assert_int_equal(write(k->peer, "x", 1), 1);
	expect(0, EPOLLIN, 1);
	assert_int_equal(xr_epoll_wait(other, &ev, 1, 0, 1, NULL), 1);
	assert_int_equal(ctl_at(stranger, EPOLL_CTL_ADD, k->fd, &ev), 0);
	assert_int_equal(fake_stay_reason, XR_REASON_INHERITED);
	xr_epoll_close(other);
	close(other);
	close(stranger);
}

/* Young: the flow itself knows where it is registered, until that takes more than one place. */
static void young_flows_keep_their_registration(void **state)
{
	struct fake *k = fake_open(1);
	int other = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 8 };

	(void)state;
	assert_int_equal(xr_epoll_created(other, 0), 0);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLOUT, 1), 0);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLOUT, 1), -EEXIST);
	assert_int_equal(ctl_at(ep, EPOLL_CTL_MOD, k->fd, NULL), -EFAULT);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN | EPOLLEXCLUSIVE, 2), -EINVAL);
	assert_true(xr_epoll_flow_registered(k->f));
	assert_null(k->f->own->regs);
	assert_int_equal(ctl_at(other, EPOLL_CTL_MOD, k->fd, &ev), -ENOENT);
	assert_int_equal(ctl_at(other, EPOLL_CTL_DEL, k->fd, NULL), -ENOENT);
	/* a second place, and the first goes */
	assert_int_equal(ctl_at(other, EPOLL_CTL_ADD, k->fd, &ev), 0);
	assert_non_null(k->f->own->regs);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	assert_int_equal(fake_move(k), 0);
	fake_send(k, 1);
	assert_int_equal(xr_epoll_wait(other, &ev, 1, 0, 1, NULL), 1);
	assert_int_equal(ev.data.u64, 8);
	expect_none(0);
	/* what was last said of it moves along */
	k = fake_open(2);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLOUT, 3), 0);
	assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
	assert_false(xr_epoll_flow_registered(k->f));
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLOUT, 4), 0);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN, 5), 0);
	assert_int_equal(fake_move(k), 0);
	fake_send(k, 1);
	expect(0, EPOLLIN, 5);
	fake_close(k);
	/* the file is closed, and its memory another one's */
	k = fake_open(3);
	assert_int_equal(ctl_at(other, EPOLL_CTL_ADD, k->fd, &ev), 0);
	xr_epoll_close(other);
	close(other);
	assert_false(xr_epoll_flow_registered(k->f));
	other = epoll_create1(EPOLL_CLOEXEC);
	assert_int_equal(xr_epoll_created(other, 0), 0);
	assert_false(xr_epoll_flow_registered(k->f));
	assert_int_equal(ctl_at(other, EPOLL_CTL_MOD, k->fd, &ev), -ENOENT);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 6), 0);
	assert_int_equal(fake_move(k), 0);
	fake_send(k, 1);
	expect(0, EPOLLIN, 6);
	xr_epoll_close(other);
	close(other);
	/* a thread that has left by longjmp, and lives: nobody waits for it, and the flow stays */
	k = fake_open(4);
	xr_store_relaxed(&k->f->own->young.lock.owner, 1);
	fake_stay_reason = XR_REASON_NONE;
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 9), 0);
	assert_int_equal(fake_stay_reason, XR_REASON_EPOLL_EXCLUSIVE);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 9), -EEXIST);
}

static void closed_flows_and_files(void **state)
{
	struct fake *k = moved(1, EPOLLIN);
	int fd = k->fd, copy;

	(void)state;
	fake_send(k, 1);
	expect(0, EPOLLIN, 101);
	fake_close(k);
	expect_none(5);
	/* the number comes again, with another flow behind it */
	k = fake_open(2);
	assert_int_equal(k->fd, fd);
	assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLIN, 1), -ENOENT);
	assert_int_equal(ctl(EPOLL_CTL_ADD, k->fd, EPOLLIN, 77), 0);
	assert_int_equal(fake_move(k), 0);
	fake_send(k, 1);
	expect(0, EPOLLIN, 77);
	/* a duplicate of the epoll descriptor is the same file */
	copy = dup(ep);
	xr_epoll_dup(ep, copy);
	xr_epoll_close(ep);
	close(ep);
	ep = copy;
	expect(0, EPOLLIN, 77);
	fake_drain(k);
	k = moved(3, EPOLLIN);
	fake_send(k, 1);
	expect(0, EPOLLIN, 103);
	/* with the file goes all it held: teardown checks the references */
	xr_epoll_close(ep);
	close(ep);
	ep = -1;
}

static void many_adds_and_closes(void **state)
{
	struct epoll_event ev[16];
	uint32_t i, round;

	(void)state;
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 100; i++) {
			struct fake *k = moved(i, EPOLLIN | (i % 3 ? 0 : EPOLLET));

			k->link = i % 2;
			fake_send(k, 1);
			if (i % 4 == 0)
				assert_int_equal(ctl(EPOLL_CTL_DEL, k->fd, 0, 0), 0);
			if (i % 4 == 1)
				fake_back(k);
			if (i % 4 == 2)
				assert_int_equal(ctl(EPOLL_CTL_MOD, k->fd, EPOLLOUT, i), 0);
			if (i % 7 == 0)
				assert_true(wait_ev(ev, 16, 0) >= 0);
		}
		for (i = 0; i < 100; i++)
			fake_close(&fake[i]);
		expect_none(0);
	}
}

/* In a child, whose limit nobody has to raise again.  What was wrong, as its exit status. */
static int registered_without_descriptors(void)
{
	struct rlimit low = { 100, 100 };
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 77 }, got;
	struct fake *k = fake_open(1);

	if (fake_move(k))
		return 1;
	k->stuck = 1;
	if (setrlimit(RLIMIT_NOFILE, &low))
		return 2;
	/* fewer numbers than we take from a program */
	if (xr_fd_high(dup(0)) != -EMFILE)
		return 3;
	if (ctl_at(ep, EPOLL_CTL_ADD, k->fd, &ev))
		return 4;
	if (!(xr_load_acquire(&k->f->path) & XR_PATH_FABRIC))
		return 5;
	fake_send(k, 1);
	if (wait_ev(&got, 1, 1000) != 1 || got.data.u64 != 77)
		return 6;
	/* one that can be handed over is, and costs no descriptor */
	k = fake_open(2);
	if (fake_move(k))
		return 7;
	close(ep);
	xr_epoll_close(ep);
	ep = epoll_create1(EPOLL_CLOEXEC);
	if (ep < 0 || xr_epoll_created(ep, 0))
		return 8;
	return ctl_at(ep, EPOLL_CTL_ADD, k->fd, &ev) || (xr_load_acquire(&k->f->path) & XR_PATH_FABRIC) ? 9 : 0;
}

/* The kernel registers the socket, so the program hears of no descriptor that we lack. */
static void a_limit_and_a_peer_that_takes_nothing(void **state)
{
	pid_t pid = child_fork();
	int status;

	if (!pid) {
		xr_store_relaxed(&xr_mem_pid, 0);
		setup(state);
		_exit(registered_without_descriptors());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(level), T(level_out), T(edge), T(edge_out), T(oneshot),
		T(mod_reports_what_is_there), T(errors_are_the_kernel_s), T(removed_and_added),
		T(slots_are_shared), T(busy_fabric_does_not_starve_the_kernel),
		T(ready_flows_take_turns), T(cost_is_that_of_the_ready), T(overrun_of_entries),
		T(kernel_socket_is_watched), T(there_and_back), T(back_behind_our_back),
		T(oneshot_moves_only_when_fired), T(what_cannot_be_followed_stays),
		T(young_flows_keep_their_registration), T(closed_flows_and_files), T(many_adds_and_closes),
		cmocka_unit_test(a_limit_and_a_peer_that_takes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
