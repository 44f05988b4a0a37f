/* SPDX-License-Identifier: BSD-2-Clause */
/* The reader of statistics segments, tools/segment.c, and files that it must not trust. */
#include <time.h>

#include "core/atomic.h"
#include "child.h"
#include "stats_fixture.h"

static void write_with_changes(void)
{
	struct xr_stats_flow *f;

	if (xr_stats_open(base, "writer", 8))
		_exit(1);
	f = xr_stats_flow_alloc(0, 0, 0, NULL, NULL);
	for (uint32_t i = 1;; i++) {
		xr_stats_ident_begin(f);
		f->ident.fd = (int32_t)i;
		f->ident.inode = i;
		f->ident.peer_pid = i;
		f->ident.upgraded_ns = i;
		xr_stats_ident_end(f);
		/* a reader that finds every look disturbed gives up: leave it some peace */
		for (int k = 0; k < 16; k++)
			xr_cpu_relax();
	}
}

/* Name of the only file in the directory of the test, or false. */
static bool find_file(char *path, size_t size, pid_t pid)
{
	char command[256];
	FILE *p;
	bool found;

	snprintf(command, sizeof(command), "ls -d %s/%d.* 2>/dev/null", mine, (int)pid);
	p = popen(command, "r");
	found = p && fgets(path, (int)size, p);
	if (p)
		pclose(p);
	path[found ? strcspn(path, "\n") : 0] = '\0';
	return found;
}

static void a_reader_never_sees_half_a_change(void **state)
{
	struct xr_segment seg;
	const char *why = "";
	uint32_t seen = 0, last = 0;
	time_t end = time(NULL) + 60;
	char path[256];
	pid_t pid = child_fork();

	(void)state;
	assert_true(pid >= 0);
	if (!pid) {
		xr_stats_after_fork();
		write_with_changes();
	}
	for (int i = 0; i < 1000 && !find_file(path, sizeof(path), pid); i++)
		usleep(5000);
	/* on a busy machine reader and writer may take turns on one core, a change per turn */
	for (int i = 0; i < 20000 || (seen <= 100 && time(NULL) < end); i++) {
		if (read_path(path, &seg, &why))
			continue;
		if (seg.n_flows) {
			const struct xr_stats_ident *id = &seg.flow[0].id;

			assert_int_equal(id->inode, (uint32_t)id->fd);
			assert_int_equal(id->peer_pid, (uint32_t)id->fd);
			assert_int_equal(id->upgraded_ns, (uint32_t)id->fd);
			seen += (uint32_t)id->fd != last;
			last = (uint32_t)id->fd;
		}
		xr_segment_free(&seg);
	}
	assert_true(seen > 100);

	/* a zombie is dead, and so is one that is gone */
	kill(pid, SIGKILL);
	waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOWAIT);
	assert_int_equal(read_path(path, &seg, &why), 0);
	assert_int_equal(seg.life, XR_SEGMENT_DEAD);
	xr_segment_free(&seg);
	waitpid(pid, NULL, 0);
	assert_int_equal(read_path(path, &seg, &why), 0);
	assert_int_equal(seg.life, XR_SEGMENT_DEAD);
	assert_string_equal(seg.program, "writer");
	xr_segment_free(&seg);
}

/* A sound segment with one flow, written to a file that tests may spoil. */
static void make_file(char *path, size_t size)
{
	assert_int_equal(xr_stats_open(base, "victim", 40), 0);
	assert_non_null(xr_stats_flow_alloc(5, 5, 0, v4(1), v4(2)));
	snprintf(path, size, "%s", xr_stats_path());
}

static void spoil(const char *path, off_t at, const void *bytes, size_t n)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, n, at), n);
	close(fd);
}

static void nothing_in_a_segment_is_trusted(void **state)
{
	const uint32_t huge = 0xffffffff, two = 2, other = XR_STATS_VERSION + 1;
	char text[46];
	struct xr_segment seg;
	const char *why;
	char path[256];

	(void)state;
	make_file(path, sizeof(path));
	spoil(path, offsetof(struct xr_stats_header, version), &other, 4);
	assert_int_equal(read_path(path, &seg, &why), -EPROTONOSUPPORT);
	assert_string_equal(why, "is of another version of xrdma");

	xr_stats_after_fork();
	make_file(path, sizeof(path));
	spoil(path, offsetof(struct xr_stats_header, flows_used), &huge, 4);
	assert_int_equal(read_path(path, &seg, &why), -EBADMSG);

	xr_stats_after_fork();
	make_file(path, sizeof(path));
	spoil(path, offsetof(struct xr_stats_header, flow_size), &two, 4);
	assert_int_equal(read_path(path, &seg, &why), -EBADMSG);

	xr_stats_after_fork();
	make_file(path, sizeof(path));
	spoil(path, 0, "something", 8);
	assert_int_equal(read_path(path, &seg, &why), -EBADMSG);
	spoil(path, 0, "\0\0\0\0\0\0\0", 8);
	assert_int_equal(read_path(path, &seg, &why), -EAGAIN);

	/* a writer that died in the middle of a change: the flow is left out */
	xr_stats_after_fork();
	make_file(path, sizeof(path));
	spoil(path, XR_STATS_FLOWS_OFF + (off_t)offsetof(struct xr_stats_flow, seq), "\1", 1);
	assert_int_equal(read_path(path, &seg, &why), 0);
	assert_int_equal(seg.n_flows, 0);
	xr_segment_free(&seg);

	/* enumerations beyond their range are shown as unknown */
	xr_stats_after_fork();
	make_file(path, sizeof(path));
	spoil(path, XR_STATS_FLOWS_OFF + (off_t)offsetof(struct xr_stats_flow, ident.carrier_tx),
	      "\xff\xff\xff\xff\xff\xff", 6);
	assert_int_equal(read_path(path, &seg, &why), 0);
	assert_int_equal(seg.n_flows, 1);
	assert_string_equal(xr_segment_carrier(&seg.flow[0]), "?");
	assert_string_equal(xr_reason_name(seg.flow[0].id.reason), "unknown");
	xr_segment_free(&seg);

	/* a device's name without an end */
	memset(text, 0x1b, sizeof(text));
	xr_stats_after_fork();
	make_file(path, sizeof(path));
	spoil(path, XR_STATS_FLOWS_OFF + (off_t)offsetof(struct xr_stats_flow, rdma), text, 24);
	spoil(path, XR_STATS_FLOWS_OFF + (off_t)offsetof(struct xr_stats_flow, device), text, XR_STATS_DEVICE);
	assert_int_equal(read_path(path, &seg, &why), 0);
	assert_int_equal(seg.n_flows, 1);
	assert_int_equal(seg.flow[0].rdma.qpn, 0x1b1b1b1b);
	assert_string_equal(seg.flow[0].device, "???????????????????????");
	assert_string_equal(xr_segment_gid(&seg.flow[0], text, sizeof(text)),
			    "1b1b:1b1b:1b1b:1b1b:1b1b:1b1b:1b1b:1b1b");
	xr_segment_free(&seg);
}

static void files_that_are_no_segments_are_refused(void **state)
{
	struct xr_segment seg;
	const char *why;
	char path[256], other[300];

	(void)state;
	make_file(path, sizeof(path));
	assert_int_equal(truncate(path, 4095), 0);
	assert_int_equal(read_path(path, &seg, &why), -EBADMSG);
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(read_path(path, &seg, &why), -EAGAIN);
	/* the writer is here as well, and needs its pages */
	assert_int_equal(truncate(path, XR_STATS_FLOWS_OFF), 0);
	/* the header promises a slot that is beyond the end */
	xr_stats_after_fork();
	make_file(path, sizeof(path));
	assert_int_equal(truncate(path, XR_STATS_FLOWS_OFF), 0);
	assert_int_equal(read_path(path, &seg, &why), -EBADMSG);

	snprintf(other, sizeof(other), "%s/1.1", mine);
	assert_int_equal(mkfifo(other, 0600), 0);
	assert_int_equal(read_path(other, &seg, &why), -EBADMSG);
	unlink(other);
	assert_int_equal(symlink(path, other), 0);
	assert_int_equal(read_path(other, &seg, &why), -ELOOP);
	unlink(other);
	assert_int_equal(mkdir(other, 0700), 0);
	assert_int_equal(read_path(other, &seg, &why), -EBADMSG);
	rmdir(other);
	assert_int_equal(read_path(other, &seg, &why), -ENOENT);
}

static void a_file_that_shrinks_under_the_reader_is_an_error(void **state)
{
	struct xr_segment seg;
	const char *why;
	char path[256];
	int bad = 0;
	pid_t pid;

	(void)state;
	/* slots enough that the copy takes longer than a truncation */
	assert_int_equal(xr_stats_open(base, "victim", 20000), 0);
	for (int i = 0; i < 20000; i++)
		assert_non_null(xr_stats_flow_alloc(i, 0, 0, NULL, NULL));
	snprintf(path, sizeof(path), "%s", xr_stats_path());
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct stat st;
		int fd = open(path, O_RDWR);

		if (fstat(fd, &st))
			_exit(1);
		for (;;) {
			/* truncated pages come back as zeros: flows vanish, nothing else */
			if (ftruncate(fd, XR_STATS_FLOWS_OFF) || ftruncate(fd, st.st_size))
				_exit(1);
			usleep(200);
		}
	}
	for (int i = 0; i < 3000 && bad < 5; i++) {
		if (!read_path(path, &seg, &why))
			xr_segment_free(&seg);
		else
			bad++;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(bad > 0);
}

static void names_of_files(void **state)
{
	uint64_t start;
	pid_t pid;

	(void)state;
	assert_int_equal(xr_segment_name("12.345", &pid, &start), 0);
	assert_int_equal(pid, 12);
	assert_int_equal(start, 345);
	assert_int_equal(xr_segment_name("12", &pid, &start), -EINVAL);
	assert_int_equal(xr_segment_name("12.3x", &pid, &start), -EINVAL);
	assert_int_equal(xr_segment_name("-1.3", &pid, &start), -EINVAL);
	assert_int_equal(xr_segment_name("0.3", &pid, &start), -EINVAL);
	assert_int_equal(xr_segment_name(".", &pid, &start), -EINVAL);
	assert_int_equal(xr_segment_name("99999999999.1", &pid, &start), -EINVAL);
	assert_true(xr_segment_gone(getpid(), 1)); /* the number was given to another */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_reader_never_sees_half_a_change),
		TEST(nothing_in_a_segment_is_trusted),
		TEST(files_that_are_no_segments_are_refused),
		TEST(a_file_that_shrinks_under_the_reader_is_an_error),
		TEST(names_of_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
