/* SPDX-License-Identifier: BSD-2-Clause */
/* An epoll file that a forked child takes up: its owner hears of that, and no other file does. */
#include "child.h"
#include <sys/mman.h>
#include "fake_epoll.h"

#define OTHERS	400u

/* Of parent and child. */
static struct common {
	_Atomic uint32_t go, through;
} *common;

static int others[OTHERS];

static int setup_others(void **state)
{
	uint32_t i;

	setup(state);
	for (i = 0; i < OTHERS; i++) {
		others[i] = epoll_create1(EPOLL_CLOEXEC);
		assert_true(others[i] >= 0);
		assert_int_equal(xr_epoll_created(others[i], 0), 0);
	}
	common = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(common != MAP_FAILED);
	return 0;
}

static int teardown_others(void **state)
{
	uint32_t i;

	munmap(common, 4096);
	for (i = 0; i < OTHERS; i++) {
		xr_epoll_close(others[i]);
		close(others[i]);
	}
	return teardown(state);
}

static void until(_Atomic uint32_t *what)
{
	int i;

	for (i = 0; i < 5000 && !xr_load_acquire(what); i++)
		usleep(1000);
	assert_int_equal(xr_load_acquire(what), 1);
}

/* A child that comes for n of the files when it is told to. */
static pid_t child_of(const int *epfd, uint32_t n)
{
	pid_t pid = child_fork();
	uint32_t i;

	if (pid)
		return pid;
	xr_process_forked();
	xr_epoll_forked();
	while (!xr_load_acquire(&common->go))
		usleep(100);
	for (i = 0; i < n; i++)
		if (!xr_ep_adopt(xr_fd_epoll(epfd[i]), epfd[i]))
			_exit(1);
	xr_store_release(&common->through, 1);
	_exit(0);
}

static void ended_well(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int on_fabric(const struct fake *k)
{
	return (xr_load_acquire(&k->f->path) & XR_PATH_FABRIC) != 0;
}

/* However many others a child takes up, what is in a file that it leaves alone stays on the fabric. */
static void one_of_many_is_left_alone(void **state)
{
	struct fake *k = moved(1, EPOLLIN);
	uint32_t i;
	pid_t pid;

	(void)state;
	pid = child_of(others, OTHERS);
	xr_store_release(&common->go, 1);
	ended_well(pid);
	for (i = 0; i < OTHERS; i++)
		assert_true(xr_ep_is_taken(xr_fd_epoll(others[i])));
	assert_false(xr_ep_is_taken(xr_fd_epoll(ep)));
	fake_send(k, 1);
	expect(0, EPOLLIN, 101);
	assert_true(on_fabric(k));
	/* and what comes to it may move */
	k = moved(2, EPOLLIN);
	assert_true(on_fabric(k));
}

/* The memory of a file that is closed is the next one's: a child that comes for the first does not meet that. */
static void a_file_that_is_closed_is_no_other(void **state)
{
	struct xr_epoll *file = xr_fd_epoll(ep);
	struct fake *k;
	pid_t pid;

	(void)state;
	pid = child_of(&ep, 1);
	xr_epoll_close(ep);
	close(ep);
	ep = epoll_create1(EPOLL_CLOEXEC);
	assert_true(ep >= 0);
	assert_int_equal(xr_epoll_created(ep, 0), 0);
	assert_ptr_equal(xr_fd_epoll(ep), file);
	xr_store_release(&common->go, 1);
	ended_well(pid);
	assert_false(xr_ep_is_taken(file));
	k = moved(1, EPOLLIN);
	fake_send(k, 1);
	expect(0, EPOLLIN, 101);
	assert_true(on_fabric(k));
	/* one that comes for this one does */
	xr_store_release(&common->go, 0);
	pid = child_of(&ep, 1);
	xr_store_release(&common->go, 1);
	ended_well(pid);
	assert_true(xr_ep_is_taken(file));
	assert_false(on_fabric(k));
}

static void *sleeping_thread(void *arg)
{
	struct epoll_event ev;

	(void)arg;
	wait_ev(&ev, 1, 2000);
	return NULL;
}

/* 1: the child was through while its parent had not lent the file; 0: it was not; -1: too slow to tell. */
static int through_too_early(int lend_others)
{
	struct xr_epoll *file = xr_fd_epoll(ep);
	uint64_t then;
	int through;
	uint32_t i;
	pid_t pid;

	memset(common, 0, sizeof(*common));
	pid = child_of(&ep, 1);
	/* who is rung for cannot come before the lock is given back */
	assert_int_equal(xr_ep_lock(file), 0);
	then = xr_now_ns();
	xr_store_release(&common->go, 1);
	while (!xr_ep_must_lend(file))
		usleep(100);
	for (i = 0; lend_others && i < OTHERS; i++)
		if (xr_ep_must_lend(xr_fd_epoll(others[i])))
			xr_ep_lend(xr_fd_epoll(others[i]));
	usleep(5000);
	through = (int)xr_load_acquire(&common->through);
	/* a child does not wait for more than a second */
	if (xr_now_ns() - then > 500000000)
		through = -1;
	xr_ep_unlock(file);
	until(&common->through);
	ended_well(pid);
	return through;
}

static void waits_for_its_owner(int lend_others)
{
	int i, through = -1;
	pthread_t t;

	for (i = 0; i < 50 && through < 0; i++) {
		struct fake *k = moved((uint32_t)i, EPOLLIN);

		pthread_create(&t, NULL, sleeping_thread, NULL);
		while (!xr_load_acquire(&xr_fd_epoll(ep)->share->asleep))
			usleep(1000);
		through = through_too_early(lend_others);
		assert_false(on_fabric(k));
		assert_int_equal(write(k->peer, "x", 1), 1);
		pthread_join(t, NULL);
		if (through < 0) {
			/* what a child has taken up is not lent twice: another file */
			xr_epoll_close(ep);
			close(ep);
			ep = epoll_create1(EPOLL_CLOEXEC);
			assert_int_equal(xr_epoll_created(ep, 0), 0);
		}
	}
	assert_int_equal(through, 0);
}

/* A thread that is awake but has not got to it is none that has done it. */
static void a_child_waits_for_its_owner(void **state)
{
	(void)state;
	waits_for_its_owner(0);
}

/* What the owner does for other files is nothing that this child waits for. */
static void a_child_waits_for_its_own_file(void **state)
{
	(void)state;
	waits_for_its_owner(1);
}

#define O(f)	cmocka_unit_test_setup_teardown(f, setup_others, teardown_others)

int main(void)
{
	const struct CMUnitTest tests[] = {
		O(one_of_many_is_left_alone), O(a_file_that_is_closed_is_no_other),
		O(a_child_waits_for_its_owner), O(a_child_waits_for_its_own_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
