/* SPDX-License-Identifier: BSD-2-Clause */
/* The writer of the statistics segment, core/stats.c. */
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "child.h"
#include "stats_fixture.h"

static void what_is_written_is_read(void **state)
{
	struct xr_stats_flow *f;
	struct xr_segment seg;
	struct stat st;

	(void)state;
	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 3); /* before there is a segment */
	xr_stats_reason(XR_REASON_TIMEOUT);
	assert_string_equal(xr_stats_path(), "");
	assert_null(xr_stats_flow_alloc(1, 1, 1, NULL, NULL));
	assert_int_equal(xr_stats_open(base, "/usr/bin/te\x01st", 100), 0);
	assert_int_equal(xr_stats_open("/elsewhere", "x", 1), 0); /* idempotent */
	assert_int_equal(stat(xr_stats_path(), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(stat(mine, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);

	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 1);
	f = xr_stats_flow_alloc(7, 12345, 1, v4(1111), v4(2222));
	assert_non_null(f);
	xr_stats_tx(f, XR_CARRIER_TCP, 10);
	xr_stats_tx(f, XR_CARRIER_SHM, 1000);
	xr_stats_rx(f, XR_CARRIER_SHM, 500);
	xr_stats_gauge(&f->tx.queue, 42);
	xr_stats_gauge32(&f->tx.slots, 64);
	xr_stats_flow_carrier(f, XR_CARRIER_SHM, XR_CARRIER_TCP, 99);
	xr_stats_reason(XR_REASON_OOB);
	xr_stats_flow_reason(f, XR_REASON_OOB);

	read_mine(&seg);
	assert_int_equal(seg.life, XR_SEGMENT_LIVE);
	assert_int_equal(seg.pid, getpid());
	assert_string_equal(seg.program, "te?st");
	assert_int_equal(seg.counter[XR_STAT_UPGRADE_ATTEMPTS], 4);
	assert_int_equal(seg.reason[XR_REASON_TIMEOUT], 1);
	assert_int_equal(seg.reason[XR_REASON_OOB], 1);
	assert_int_equal(seg.counter[XR_STAT_BYTES_TX_SHM], 1000);
	assert_int_equal(seg.counter[XR_STAT_MSGS_TX], 1);
	assert_int_equal(seg.n_flows, 1);
	assert_int_equal(seg.flow[0].id.fd, 7);
	assert_int_equal(seg.flow[0].id.inode, 12345);
	assert_int_equal(seg.flow[0].id.local.port, 1111);
	assert_int_equal(seg.flow[0].id.peer.port, 2222);
	assert_int_equal(seg.flow[0].id.peer_pid, 99);
	assert_int_equal(seg.flow[0].id.reason, XR_REASON_OOB);
	assert_int_equal(seg.flow[0].tx.queue, 42);
	assert_int_equal(seg.flow[0].tx.slots, 64);
	assert_string_equal(xr_segment_carrier(&seg.flow[0]), "shm/tcp");
	assert_true(xr_segment_on_fabric(&seg.flow[0]));
	assert_int_equal(seg.flow[0].retreats, 0);
	xr_segment_free(&seg);

	xr_stats_flow_carrier(f, XR_CARRIER_TCP, XR_CARRIER_TCP, 0);
	xr_stats_flow_carrier(f, XR_CARRIER_TCP, XR_CARRIER_TCP, 0);
	read_mine(&seg);
	assert_int_equal(seg.flow[0].retreats, 1);
	assert_false(xr_segment_on_fabric(&seg.flow[0]));
	xr_segment_free(&seg);

	/* the totals keep what the flow had; the slot comes back clean */
	xr_stats_flow_free(f);
	read_mine(&seg);
	assert_int_equal(seg.n_flows, 0);
	assert_int_equal(seg.counter[XR_STAT_BYTES_TX_SHM], 1000);
	assert_int_equal(seg.counter[XR_STAT_BYTES_TX_TCP], 10);
	assert_int_equal(seg.counter[XR_STAT_BYTES_RX_SHM], 500);
	assert_int_equal(seg.counter[XR_STAT_MSGS_TX], 1);
	xr_segment_free(&seg);
	assert_ptr_equal(xr_stats_flow_alloc(8, 1, 2, NULL, NULL), f);
	read_mine(&seg);
	assert_int_equal(seg.flow[0].tx.bytes[XR_CARRIER_SHM], 0);
	assert_int_equal(seg.flow[0].tx.queue, 0);
	assert_int_equal(seg.flow[0].id.peer_pid, 0);
	assert_int_equal(seg.flow[0].id.local.family, 0);
	xr_segment_free(&seg);

	xr_stats_close();
	assert_int_equal(access(mine, F_OK), -1); /* the last file took the directory along */
}

static void slots_run_out_and_come_back(void **state)
{
	static struct xr_stats_flow *f[5000];
	struct xr_segment seg;
	struct stat st;
	int n = 0;

	(void)state;
	assert_int_equal(xr_stats_open(base, "x", 4000), 0);
	while (n < 5000 && (f[n] = xr_stats_flow_alloc(n, 0, 0, NULL, NULL)))
		n++;
	assert_in_range(n, 4000, 4010); /* rounded up to a page */
	read_mine(&seg);
	assert_int_equal(seg.n_flows, n);
	for (int i = 0; i < n; i++)
		assert_int_equal(seg.flow[i].id.fd, i);
	xr_segment_free(&seg);
	for (int i = 0; i < n; i++)
		xr_stats_flow_free(f[i]);
	xr_stats_flow_free(NULL);
	for (int i = 0; i < n; i++)
		assert_non_null(xr_stats_flow_alloc(i, 0, 0, NULL, NULL));
	assert_null(xr_stats_flow_alloc(0, 0, 0, NULL, NULL));
	/* only pages in use are paid for */
	xr_stats_after_fork();
	assert_int_equal(xr_stats_open(base, "x", 65536), 0);
	assert_non_null(xr_stats_flow_alloc(0, 0, 0, NULL, NULL));
	assert_int_equal(stat(xr_stats_path(), &st), 0);
	assert_true(st.st_size > 65536 * 384);
	assert_in_range(st.st_blocks * 512, 4096, 32768);
}

#define THREADS 4

static _Atomic int in_use[256];

static void *churn(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	struct xr_stats_flow *held[16] = {NULL};
	const char *first = (const char *)xr_stats_now() + XR_STATS_FLOWS_OFF;

	for (int i = 0; i < 60000; i++) {
		int k = rand_r(&seed) % 16;

		if (held[k]) {
			size_t n = (size_t)((const char *)held[k] - first) / sizeof(*held[k]);

			if (atomic_fetch_sub(&in_use[n], 1) != 1)
				return "two owners of one slot";
			xr_stats_tx(held[k], XR_CARRIER_SHM, 1);
			xr_stats_flow_free(held[k]);
			held[k] = NULL;
		} else {
			size_t n;

			held[k] = xr_stats_flow_alloc(i, 0, 0, NULL, NULL);
			if (!held[k])
				return "no slot";
			n = (size_t)((const char *)held[k] - first) / sizeof(*held[k]);
			if (n >= 256 || atomic_fetch_add(&in_use[n], 1))
				return "slot in use";
			xr_stats_add(XR_STAT_FLOWS_OPENED, 1);
		}
	}
	for (int k = 0; k < 16; k++) {
		if (held[k]) {
			in_use[((const char *)held[k] - first) / (ptrdiff_t)sizeof(*held[k])]--;
			xr_stats_tx(held[k], XR_CARRIER_SHM, 1);
			xr_stats_flow_free(held[k]);
		}
	}
	return NULL;
}

static void threads_share_the_slots(void **state)
{
	pthread_t t[THREADS];
	struct xr_segment seg;
	void *complaint;

	(void)state;
	memset(in_use, 0, sizeof(in_use));
	assert_int_equal(xr_stats_open(base, "x", 256), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, churn, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(t[i], &complaint), 0);
		if (complaint)
			fail_msg("%s", (const char *)complaint);
	}
	read_mine(&seg);
	assert_int_equal(seg.n_flows, 0);
	/* every slot that was taken carried one byte into the totals */
	assert_true(seg.counter[XR_STAT_FLOWS_OPENED] > 50000);
	assert_int_equal(seg.counter[XR_STAT_BYTES_TX_SHM], seg.counter[XR_STAT_FLOWS_OPENED]);
	xr_segment_free(&seg);
}

/* Runs f in a child, which must exit 0 (a failed check there exits 1, a signal is a failure). */
static void in_child(int (*f)(void))
{
	int status;
	pid_t pid = child_fork();

	assert_true(pid >= 0);
	if (!pid) {
		xr_stats_after_fork();
		_exit(f());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		fail_msg("signal %d", WTERMSIG(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	if (WEXITSTATUS(status))
		fail_msg("line %d or %d", WEXITSTATUS(status), WEXITSTATUS(status) + 256);
}

/* In a child: leave with the line number as far as an exit status holds it. */
#define CHECK(x)                                                                                   \
	do {                                                                                       \
		if (!(x))                                                                          \
			return __LINE__ % 256 == 77 || __LINE__ % 256 == 0 ? 1 : __LINE__ % 256;   \
	} while (0)

static struct xr_stats_flow *parents;

static int count_as_a_child(void)
{
	struct xr_stats_flow *f;
	struct xr_segment seg;
	const char *why;

	/* slots of the parent may be written to and given back, in vain */
	xr_stats_tx(parents, XR_CARRIER_SHM, 1000000);
	xr_stats_flow_free(parents);
	CHECK(!xr_stats_get(XR_STAT_UPGRADE_ATTEMPTS));
	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 100);
	CHECK(!xr_stats_open(base, "child", 8));
	xr_stats_flow_free(parents);
	f = xr_stats_flow_alloc(3, 3, 0, NULL, NULL);
	CHECK(f && f != parents);
	xr_stats_tx(parents, XR_CARRIER_SHM, 1000000);
	CHECK(!read_path(xr_stats_path(), &seg, &why));
	CHECK(seg.pid == getpid() && seg.n_flows == 1);
	CHECK(seg.counter[XR_STAT_UPGRADE_ATTEMPTS] == 100);
	CHECK(seg.counter[XR_STAT_BYTES_TX_SHM] == 0);
	xr_stats_close();
	return 0;
}

#define CHANGES 200000
#define CHANGED 40

static void *change(void *arg)
{
	uint32_t i;

	for (i = 0; i < CHANGES; i++)
		xr_stats_flow_reason(arg, XR_REASON_FORKED);
	return NULL;
}

static void two_threads_change_a_slot_at_once(void **state)
{
	struct xr_segment seg;
	pthread_t t;

	(void)state;
	assert_int_equal(xr_stats_open(base, "x", CHANGED), 0);
	/* the number of a slot is odd or even in the end: many, so that one of them is found */
	for (int n = 0; n < CHANGED; n++) {
		struct xr_stats_flow *f = xr_stats_flow_alloc(n, 1, 1, NULL, NULL);

		assert_non_null(f);
		assert_int_equal(pthread_create(&t, NULL, change, f), 0);
		for (uint32_t i = 0; i < CHANGES; i++)
			xr_stats_flow_carrier(f, XR_CARRIER_SHM, i & 1 ? XR_CARRIER_SHM : XR_CARRIER_TCP, 7);
		assert_int_equal(pthread_join(t, NULL), 0);
	}
	/* a slot that seems to be changed for ever is not shown */
	read_mine(&seg);
	assert_int_equal(seg.n_flows, CHANGED);
	xr_segment_free(&seg);
	xr_stats_close();
}

static void a_forked_child_counts_for_itself(void **state)
{
	struct xr_segment seg;

	(void)state;
	assert_int_equal(xr_stats_open(base, "parent", 8), 0);
	parents = xr_stats_flow_alloc(1, 1, 0, NULL, NULL);
	xr_stats_tx(parents, XR_CARRIER_SHM, 5);
	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 1);
	in_child(count_as_a_child);
	read_mine(&seg);
	assert_int_equal(seg.pid, getpid());
	assert_int_equal(seg.n_flows, 1);
	assert_int_equal(seg.counter[XR_STAT_UPGRADE_ATTEMPTS], 1);
	assert_int_equal(seg.counter[XR_STAT_BYTES_TX_SHM], 5);
	xr_segment_free(&seg);
}

static void an_exec_replaces_the_file_of_the_image_before(void **state)
{
	char first[256];
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(xr_stats_open(base, "old", 8), 0);
	snprintf(first, sizeof(first), "%s", xr_stats_path());
	fd = open(first, O_RDONLY);
	assert_true(fd >= 0);
	xr_stats_after_fork(); /* what an exec leaves: the file, and a program that knows nothing */
	assert_int_equal(xr_stats_open(base, "new", 8), 0);
	assert_string_equal(xr_stats_path(), first);
	assert_int_equal(stat(first, &st), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 0); /* the one of that name is another file */
	close(fd);
}

static void a_directory_that_is_not_ours_alone_is_refused(void **state)
{
	char other[96];

	(void)state;
	assert_int_equal(mkdir(mine, 0700), 0);
	assert_int_equal(chmod(mine, 0777), 0);
	assert_int_equal(xr_stats_open(base, "x", 8), -EACCES);
	assert_int_equal(xr_stats_open(base, "x", 8), -EACCES); /* once is enough */
	assert_int_equal(xr_stats_get(XR_STAT_STATS_ERRORS), 1);
	xr_stats_add(XR_STAT_RETREATS, 1); /* counting goes on */
	assert_int_equal(xr_stats_get(XR_STAT_RETREATS), 1);
	assert_null(xr_stats_flow_alloc(1, 1, 1, NULL, NULL));
	xr_stats_tx(NULL, XR_CARRIER_SHM, 1);
	xr_stats_flow_reason(NULL, XR_REASON_OOB);
	assert_int_equal(rmdir(mine), 0);

	xr_stats_after_fork();
	snprintf(other, sizeof(other), "%s/real", base);
	assert_int_equal(mkdir(other, 0700), 0);
	assert_int_equal(symlink(other, mine), 0);
	assert_int_equal(xr_stats_open(base, "x", 8), -EACCES);
	assert_int_equal(unlink(mine), 0);

	xr_stats_after_fork();
	close(creat(mine, 0600));
	assert_int_equal(xr_stats_open(base, "x", 8), -EACCES);
	assert_int_equal(unlink(mine), 0);

	xr_stats_after_fork();
	if (!geteuid()) { /* root does not trust what a user made for it */
		assert_int_equal(mkdir(mine, 0700), 0);
		assert_int_equal(chown(mine, 65534, 65534), 0);
		assert_int_equal(xr_stats_open(base, "x", 8), -EACCES);
		xr_stats_after_fork();
	}
	assert_int_equal(xr_stats_open("/nonexistent", "x", 8), -ENOENT);
	xr_stats_after_fork();
	memset(other, 'a', sizeof(other) - 1);
	other[0] = '/';
	other[sizeof(other) - 1] = '\0';
	assert_true(xr_stats_open(other, "x", 8) < 0);
}

static int open_under_a_file_size_limit(void)
{
	struct rlimit rl = {1024, RLIM_INFINITY};
	int n = 0;

	CHECK(!setrlimit(RLIMIT_FSIZE, &rl));
	CHECK(xr_stats_open(base, "x", 100) == -EFBIG); /* and no SIGXFSZ */
	xr_stats_after_fork();
	rl.rlim_cur = 4096 + 20 * 384;
	CHECK(!setrlimit(RLIMIT_FSIZE, &rl));
	CHECK(!xr_stats_open(base, "x", 100));
	while (n < 100 && xr_stats_flow_alloc(n, 0, 0, NULL, NULL))
		n++;
	CHECK(n > 0 && n <= 20);
	xr_stats_close();
	return 0;
}

static void a_file_size_limit_means_fewer_slots_or_none(void **state)
{
	(void)state;
	in_child(open_under_a_file_size_limit);
}

/* A file system of a few pages: statistics end there, the program does not. */
static int fill_a_small_file_system(void)
{
	struct xr_stats_flow *f;
	int n = 0;

	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", base, "tmpfs", 0, "size=32k"))
		return 77;
	CHECK(!xr_stats_open(base, "x", 65536));
	while (n < 65536 && (f = xr_stats_flow_alloc(n, 0, 0, NULL, NULL))) {
		memset(&f->tx, 0x5a, sizeof(f->tx)); /* every byte of a slot can be written */
		memset(&f->rx, 0x5a, sizeof(f->rx));
		n++;
	}
	CHECK(n > 10 && n < 90);
	CHECK(xr_stats_get(XR_STAT_STATS_ERRORS) > 0);
	xr_stats_close();
	xr_stats_after_fork();

	/* no page at all */
	CHECK(!mount("none", base, "tmpfs", 0, "size=4k"));
	{
		char path[128];
		int fd;

		snprintf(path, sizeof(path), "%s/full", base);
		fd = open(path, O_WRONLY | O_CREAT, 0600);
		CHECK(fd >= 0 && write(fd, path, sizeof(path)) > 0);
		close(fd);
	}
	CHECK(xr_stats_open(base, "x", 16) == -ENOSPC);
	CHECK(!mount("none", base, "tmpfs", MS_RDONLY, "size=4k"));
	xr_stats_after_fork();
	CHECK(xr_stats_open(base, "x", 16) == -EROFS);
	return 0;
}

static void a_full_file_system_never_becomes_a_signal(void **state)
{
	(void)state;
	in_child(fill_a_small_file_system);
}

static _Atomic int opened;

static void *first_slot(void *arg)
{
	struct xr_stats_flow *f;

	(void)arg;
	while (!(f = xr_stats_flow_alloc(1, 1, 1, NULL, NULL)))
		if (opened < 0)
			return (void *)"there is no segment";
	/* below it: far away */
	return (uintptr_t)f - (uintptr_t)xr_stats_seg < 1u << 24 ? NULL : (void *)"a slot of no segment";
}

/* A slot is one of the segment that is opened, not of what stood in its place before. */
static int race_for_slots(void)
{
	void *complaint, *first = NULL;
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		if (pthread_create(&t[i], NULL, first_slot, NULL))
			return 2;
	sched_yield();
	opened = xr_stats_open(base, "x", 100);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &complaint);
		first = first ? first : complaint;
	}
	if (first)
		fprintf(stderr, "%s\n", (const char *)first);
	return first != NULL;
}

static void slots_while_another_thread_opens_it(void **state)
{
	(void)state;
	for (int round = 0; round < 200; round++) {
		xr_stats_after_fork();
		opened = 0;
		assert_int_equal(race_for_slots(), 0);
		xr_stats_close();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_written_is_read),
		TEST(slots_run_out_and_come_back),
		TEST(threads_share_the_slots),
		TEST(slots_while_another_thread_opens_it),
		TEST(two_threads_change_a_slot_at_once),
		TEST(a_forked_child_counts_for_itself),
		TEST(an_exec_replaces_the_file_of_the_image_before),
		TEST(a_directory_that_is_not_ours_alone_is_refused),
		TEST(a_file_size_limit_means_fewer_slots_or_none),
		TEST(a_full_file_system_never_becomes_a_signal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
