/* SPDX-License-Identifier: BSD-2-Clause */
/* Trace records: core/trace.c writes them, tools/trace_read.c and trace_join.c take them from whoever did. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "child.h"
#include "core/mem.h"
#include "stats_fixture.h"
#include "tools/trace.h"

static int trace_setup(void **state)
{
	xr_trace_forked(); /* nothing of the test before */
	return setup(state);
}

static int trace_teardown(void **state)
{
	xr_trace_close();
	return teardown(state);
}

static int read_trace(const char *path, struct xr_trace_file *f, const char **why)
{
	return xr_trace_read(AT_FDCWD, path, f, why);
}

static void write_one(uint64_t n, enum xr_trace_stage stage)
{
	struct xr_trace_data d = {.id = {n, n}, .span = n, .at_ns = n, .len = n, .flow = n, .fd = -1,
				  .stage = (uint8_t)stage, .carrier = XR_CARRIER_SHM};

	xr_trace_write(&d);
}

static void what_is_written_is_read_and_the_oldest_goes(void **state)
{
	struct xr_trace_file f;
	const char *why = "";

	(void)state;
	assert_int_equal(xr_trace_open(base, XR_TRACE_FLOWS, "/usr/bin/tester"), 0);
	assert_int_equal(read_trace(xr_trace_path(), &f, &why), 0);
	assert_int_equal(f.n, 0);
	xr_trace_file_free(&f);
	for (uint64_t i = 1; i <= XR_TRACE_RECORDS + 10; i++)
		write_one(i, XR_TRACE_SENT);
	assert_int_equal(read_trace(xr_trace_path(), &f, &why), 0);
	assert_string_equal(f.program, "tester");
	assert_int_equal(f.pid, getpid());
	assert_int_equal(f.life, XR_SEGMENT_LIVE);
	assert_int_equal(f.n, XR_TRACE_RECORDS);
	assert_int_equal(f.written, XR_TRACE_RECORDS + 10);
	assert_int_equal(f.lost, 0);
	for (size_t i = 0; i < f.n; i++)
		assert_int_equal(f.rec[i].span, i + 11);
	assert_int_equal(f.rec[0].tid, xr_gettid());
	xr_trace_file_free(&f);
}

static void *write_many(void *arg)
{
	for (;;)
		write_one(xr_now_ns() | 1, XR_TRACE_QUEUED);
	return arg;
}

/* Writers that go round the ring all the time, killed at any moment: what is read is whole, then and later. */
static void a_record_is_never_torn(void **state)
{
	struct xr_trace_file f;
	const char *why = "";
	char path[160] = "";
	size_t seen = 0;
	pid_t pid;
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		pthread_t t;

		if (xr_trace_open(base, XR_TRACE_FLOWS, "writer") ||
		    write(p[1], xr_trace_path(), strlen(xr_trace_path())) < 0 ||
		    pthread_create(&t, NULL, write_many, NULL))
			_exit(1);
		write_many(NULL);
	}
	assert_true(read(p[0], path, sizeof(path) - 1) > 0);
	for (int i = 0; i < 400; i++) {
		if (i == 300) {
			kill(pid, SIGKILL);
			waitpid(pid, NULL, 0);
		}
		assert_int_equal(read_trace(path, &f, &why), 0);
		for (size_t j = 0; j < f.n; j++) {
			const struct xr_trace_data *d = &f.rec[j];

			assert_true(d->id[0] == d->span && d->id[1] == d->span && d->at_ns == d->span &&
				    d->len == d->span && d->flow == d->span);
		}
		seen += f.n;
		if (i > 300) {
			assert_int_equal(f.life, XR_SEGMENT_DEAD);
			/* each of the two may have died over one */
			assert_true(f.n >= XR_TRACE_RECORDS - 2);
		}
		xr_trace_file_free(&f);
	}
	assert_true(seen > 10000);
	close(p[0]);
	close(p[1]);
}

static struct xr_trace_rec *map(const char *path, struct xr_trace_header **h)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *p = mmap(NULL, XR_TRACE_OFF + XR_TRACE_RECORDS * sizeof(struct xr_trace_rec), PROT_READ | PROT_WRITE,
		       MAP_SHARED, fd, 0);

	assert_true(fd >= 0 && p != MAP_FAILED);
	close(fd);
	*h = p;
	return (struct xr_trace_rec *)((char *)p + XR_TRACE_OFF);
}

static void a_place_that_a_dead_thread_holds_is_left_alone(void **state)
{
	struct xr_trace_header *h;
	struct xr_trace_file f;
	struct xr_trace_rec *r;
	const char *why = "";

	(void)state;
	assert_int_equal(xr_trace_open(base, XR_TRACE_FLOWS, "t"), 0);
	r = map(xr_trace_path(), &h);
	r[1].seq = XR_TRACE_BUSY | 2;
	for (uint64_t i = 1; i <= XR_TRACE_RECORDS; i++)
		write_one(i, XR_TRACE_ACKED);
	assert_int_equal(read_trace(xr_trace_path(), &f, &why), 0);
	assert_int_equal(f.n, XR_TRACE_RECORDS - 1);
	assert_int_equal(f.lost, 1);
	assert_int_equal(f.rec[0].span, 1);
	assert_int_equal(f.rec[1].span, 3);
	xr_trace_file_free(&f);
	/* a number that is not of this place, one from the future, a stage that there is not */
	r[1].seq = 3;
	r[2].seq = 4 * XR_TRACE_RECORDS + 3;
	((struct xr_trace_data *)r[3].word)->stage = 255;
	((struct xr_trace_data *)r[4].word)->span = 0;
	assert_int_equal(read_trace(xr_trace_path(), &f, &why), 0);
	assert_int_equal(f.n, XR_TRACE_RECORDS - 3);
	/* the last one by its number is a lie that hurts nobody */
	assert_int_equal(f.rec[f.n - 1].span, 3);
	xr_trace_file_free(&f);
}

static void spoil(const char *path, off_t at, const void *what, size_t len)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, what, len, at), (ssize_t)len);
	close(fd);
}

#define SPOILT(field, v, error) do {								\
	struct xr_trace_header h_;								\
	__typeof__(h_.field) new_ = (v), old_;							\
	int fd_ = open(path, O_RDONLY | O_CLOEXEC);						\
	assert_int_equal(pread(fd_, &old_, sizeof(old_), offsetof(struct xr_trace_header, field)), sizeof(old_)); \
	close(fd_);										\
	spoil(path, offsetof(struct xr_trace_header, field), &new_, sizeof(new_));		\
	assert_int_equal(read_trace(path, &f, &why), (error));					\
	spoil(path, offsetof(struct xr_trace_header, field), &old_, sizeof(old_));		\
} while (0)

static void files_that_make_no_sense_are_refused(void **state)
{
	static const off_t sizes[] = {0, 1, 100, sizeof(struct xr_trace_header), XR_TRACE_OFF, XR_TRACE_OFF + 64,
				      XR_TRACE_OFF + 128 * 100};
	const char *why = "";
	struct xr_trace_file f;
	char path[100], other[100], command[400];

	(void)state;
	assert_int_equal(xr_trace_open(base, XR_TRACE_FLOWS, "\033[2Jevil"), 0);
	for (uint64_t i = 1; i < 200; i++)
		write_one(i, XR_TRACE_SENT);
	/* a copy: who cuts off what a process has mapped can only be its own user */
	snprintf(path, sizeof(path), "%s/copy", base);
	snprintf(command, sizeof(command), "cp %s %s", xr_trace_path(), path);
	assert_int_equal(system(command), 0);
	SPOILT(magic, 0, -EAGAIN);
	SPOILT(magic, 1, -EBADMSG);
	SPOILT(version, XR_TRACE_VERSION + 1, -EPROTONOSUPPORT);
	SPOILT(header_size, 8, -EBADMSG);
	SPOILT(record_size, 64, -EBADMSG);
	SPOILT(record_off, 0, -EBADMSG);
	SPOILT(records, 0, -EBADMSG);
	SPOILT(records, 3, -EBADMSG);
	SPOILT(records, 1u << 31, -EBADMSG);
	SPOILT(records, 2 * XR_TRACE_RECORDS, -EBADMSG); /* longer than the file */
	SPOILT(pid, -1, -EBADMSG);
	SPOILT(pid, 0, -EBADMSG);
	assert_int_equal(read_trace(path, &f, &why), 0);
	assert_string_equal(f.program, "?[2Jevil");
	xr_trace_file_free(&f);
	for (size_t i = sizeof(sizes) / sizeof(sizes[0]); i-- > 0;) {
		assert_int_equal(truncate(path, sizes[i]), 0);
		assert_int_equal(read_trace(path, &f, &why), sizes[i] ? -EBADMSG : -EAGAIN);
	}
	/* neither waits for a writer nor follows a link */
	snprintf(other, sizeof(other), "%s/fifo", base);
	assert_int_equal(mkfifo(other, 0600), 0);
	assert_int_equal(read_trace(other, &f, &why), -EBADMSG);
	snprintf(other, sizeof(other), "%s/link", base);
	assert_int_equal(symlink(path, other), 0);
	assert_int_equal(read_trace(other, &f, &why), -ELOOP);
	assert_int_equal(read_trace(base, &f, &why), -EBADMSG);
	assert_int_equal(read_trace("/nowhere", &f, &why), -ENOENT);
}

/* Any bytes at all: read, put together, summed up; the sanitizers watch. */
static void any_bytes_are_harmless(void **state)
{
	uint64_t seed = 1, v;
	struct xr_trace_file f;
	const char *why = "";

	(void)state;
	assert_int_equal(xr_trace_open(base, XR_TRACE_FLOWS, "t"), 0);
	for (uint64_t i = 1; i <= XR_TRACE_RECORDS; i++)
		write_one(i, (enum xr_trace_stage)(i % XR_TRACE_STAGES));
	for (int round = 0; round < 300; round++) {
		for (int k = 0; k < 40; k++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			v = seed;
			/* mostly records, whose numbers stay what they were now and then */
			spoil(xr_trace_path(), round % 3 ? (off_t)(XR_TRACE_OFF + (v >> 8) % (128u * 64)) :
			      (off_t)(24 + (v >> 8) % 400), &v, 1 + v % 8);
		}
		if (!read_trace(xr_trace_path(), &f, &why)) {
			struct xr_trace_set set = {.file = &f, .n = 1};
			struct xr_trace_msgs msgs;
			struct xr_trace_sum sum;

			assert_int_equal(xr_trace_join(&set, &msgs), 0);
			for (unsigned int p = 0; p < XR_TRACE_PARTS; p++)
				assert_int_equal(xr_trace_summarise(&msgs, p, NULL, NULL, &sum), 0);
			free(msgs.msg);
			xr_trace_file_free(&f);
		}
	}
}

/* ---- putting together ---- */

static struct xr_trace_data record(enum xr_trace_stage stage, uint64_t at, uint8_t flags, int64_t offset)
{
	return (struct xr_trace_data){.id = {7, 8}, .span = 9, .stage = (uint8_t)stage, .at_ns = at, .len = 5,
				      .flags = flags, .offset_ns = offset, .error_ns = 10, .carrier = XR_CARRIER_SHM};
}

/* The receiver's clock is 1000000 ahead; who knows that differs. */
static void clocks_are_set_by_what_either_end_knows(void **state)
{
	for (int who = 0; who < 3; who++) {
		struct xr_trace_data s[] = {
			record(XR_TRACE_QUEUED, 100, 0, 0), record(XR_TRACE_POSTED, 110, 0, 0),
			record(XR_TRACE_SENT, 120, 0, 0),
			record(XR_TRACE_ACKED, 400, who == 0 ? XR_TRACE_CLOCK : 0, 1000000)};
		struct xr_trace_data r[] = {
			record(XR_TRACE_POSTED, 110, XR_TRACE_FAR, 0),
			record(XR_TRACE_RECEIVED, 1000200, who ? XR_TRACE_CLOCK : 0, -1000000),
			record(XR_TRACE_DELIVERED, 1000300, 0, 0)};
		/* 2: nothing of the sender can be read */
		struct xr_trace_file f[] = {{.rec = r, .n = 3, .real_off = 5000}, {.rec = s, .n = 4, .real_off = 6000}};
		struct xr_trace_set set = {.file = f, .n = who == 2 ? 1 : 2};
		struct xr_trace_msgs m;
		uint64_t ns;

		(void)state;
		assert_int_equal(xr_trace_join(&set, &m), 0);
		assert_int_equal(m.n, 1);
		assert_true(m.msg->offset_known);
		assert_int_equal(m.msg->offset_ns, 1000000);
		assert_true(xr_trace_took(m.msg, 2, &ns)); /* travel */
		assert_int_equal(ns, 90);
		assert_true(xr_trace_took(m.msg, 3, &ns)); /* deliver */
		assert_int_equal(ns, 100);
		if (who == 2) {
			assert_int_equal(m.msg->far, 1u << XR_TRACE_POSTED);
			assert_int_equal(m.msg->at[XR_TRACE_RECEIVED], 1000200 + 5000);
			assert_false(xr_trace_took(m.msg, 4, &ns));
		} else {
			assert_int_equal(m.msg->far, 0);
			assert_int_equal(m.msg->at[XR_TRACE_RECEIVED], 200 + 6000);
			assert_true(xr_trace_took(m.msg, 4, &ns)); /* ack */
			assert_int_equal(ns, 100);
		}
		free(m.msg);
	}
}

static void one_kernel_has_one_clock(void **state)
{
	struct xr_trace_data s[] = {record(XR_TRACE_POSTED, 110, 0, 0)};
	struct xr_trace_data r[] = {record(XR_TRACE_RECEIVED, 200, XR_TRACE_CLOCK, 12345)};
	struct xr_trace_file f[] = {{.rec = r, .n = 1, .time_ns = 3, .boot = {1}},
				    {.rec = s, .n = 1, .time_ns = 3, .boot = {1}}};
	struct xr_trace_set set = {.file = f, .n = 2};
	struct xr_trace_msgs m;
	uint64_t ns;

	(void)state;
	assert_int_equal(xr_trace_join(&set, &m), 0);
	assert_int_equal(m.msg->offset_ns, 0);
	assert_true(xr_trace_took(m.msg, 2, &ns));
	assert_int_equal(ns, 90);
	free(m.msg);
	/* another time namespace: then what was measured */
	f[0].time_ns = 4;
	assert_int_equal(xr_trace_join(&set, &m), 0);
	assert_int_equal(m.msg->offset_ns, -12345);
	free(m.msg);
}

static void percentiles_are_of_the_nearest_rank(void **state)
{
	struct xr_trace_msg m[200];
	struct xr_trace_msgs msgs = {.msg = m, .n = 200};
	struct xr_trace_sum s;

	(void)state;
	memset(m, 0, sizeof(m));
	for (unsigned int i = 0; i < 200; i++) {
		/* 100 down to 1, and as many of which nothing is known */
		m[i].have = i < 100 ? 1u << XR_TRACE_QUEUED | 1u << XR_TRACE_POSTED : 1u << XR_TRACE_QUEUED;
		m[i].at[XR_TRACE_POSTED] = 100 - i;
	}
	assert_int_equal(xr_trace_summarise(&msgs, 0, NULL, NULL, &s), 0);
	assert_int_equal(s.n, 100);
	assert_int_equal(s.p50, 50);
	assert_int_equal(s.p90, 90);
	assert_int_equal(s.p99, 99);
	assert_int_equal(s.max, 100);
}

/* ---- clocks, numbers ---- */

static void bounds_of_a_clock_close_in_and_drift(void **state)
{
	struct xr_clock c = {0, 0, 0};
	uint64_t error;
	int64_t offset;

	(void)state;
	assert_int_equal(xr_clock_get(&c, 1, &offset, &error), 0);
	xr_clock_bound(&c, -100, 300, 1000);
	assert_int_equal(xr_clock_get(&c, 1000, &offset, &error), 1);
	assert_int_equal(offset, 100);
	assert_int_equal(error, 200);
	xr_clock_bound(&c, 0, 500, 1000);
	xr_clock_get(&c, 1000, &offset, &error);
	assert_int_equal(offset, 150);
	assert_int_equal(error, 150);
	/* nonsense */
	xr_clock_bound(&c, 5, 4, 1000);
	xr_clock_get(&c, 1000, &offset, &error);
	assert_int_equal(error, 150);
	/* a second later it may be 10 us off */
	xr_clock_get(&c, 1000 + 1000000000, &offset, &error);
	assert_int_equal(offset, 150);
	assert_int_equal(error, 150 + 10000);
	/* a clock was set: what was known is of no use */
	xr_clock_bound(&c, 1000000, 1000010, 2000);
	xr_clock_get(&c, 2000, &offset, &error);
	assert_int_equal(offset, 1000005);
	assert_int_equal(error, 5);
	/* as far apart as there can be */
	xr_clock_bound(&c, INT64_MIN, INT64_MAX, 2000);
	xr_clock_get(&c, 2000, &offset, &error);
	assert_int_equal(offset, 1000005);
}

static void one_in_so_many_is_due(void **state)
{
	int n = 0;

	(void)state;
	assert_int_equal(xr_trace_due(0), 0);
	for (int i = 0; i < 100; i++)
		assert_int_equal(xr_trace_due(1), 1);
	for (int i = 0; i < 100000; i++)
		n += xr_trace_due(50);
	/* 2000 are expected, give or take five times the square root of what they vary by */
	assert_in_range(n, 1800, 2200);
	/* from rare to often without waiting for the rare one */
	xr_trace_due(1000000000);
	for (int i = 0; i < 3 && !xr_trace_due(1); i++)
		;
	assert_int_equal(xr_trace_due(1), 1);
}

static void a_child_does_not_write_into_its_parents_ring(void **state)
{
	struct xr_trace_file f;
	const char *why = "";
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(xr_trace_open(base, XR_TRACE_FLOWS, "t"), 0);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		xr_trace_forked();
		write_one(1, XR_TRACE_SENT);
		if (xr_trace_open(base, XR_TRACE_FLOWS, "t"))
			_exit(1);
		write_one(2, XR_TRACE_SENT);
		_exit(read_trace(xr_trace_path(), &f, &why) || f.n != 1 || f.rec[0].span != 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(read_trace(xr_trace_path(), &f, &why), 0);
	assert_int_equal(f.n, 0);
	xr_trace_file_free(&f);
}

static void names_say_whose_they_are(void **state)
{
	uint64_t start;
	bool channels;
	pid_t pid;

	(void)state;
	assert_int_equal(xr_trace_name("12.345.trace", &pid, &start, &channels), 0);
	assert_true(pid == 12 && start == 345 && !channels);
	assert_int_equal(xr_trace_name("12.345.trace-api", &pid, &start, &channels), 0);
	assert_true(channels);
	assert_int_equal(xr_trace_name("12.345", &pid, &start, &channels), -EINVAL);
	assert_int_equal(xr_trace_name("12.345.bell", &pid, &start, &channels), -EINVAL);
	assert_int_equal(xr_trace_name("12.345.traces", &pid, &start, &channels), -EINVAL);
	assert_int_equal(xr_trace_name("x.345.trace", &pid, &start, &channels), -EINVAL);
	assert_int_equal(xr_trace_name("12..trace", &pid, &start, &channels), -EINVAL);
	assert_int_equal(xr_trace_name("", &pid, &start, &channels), -EINVAL);
}

#define TRACED(f) cmocka_unit_test_setup_teardown(f, trace_setup, trace_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TRACED(what_is_written_is_read_and_the_oldest_goes),
		TRACED(a_record_is_never_torn),
		TRACED(a_place_that_a_dead_thread_holds_is_left_alone),
		TRACED(files_that_make_no_sense_are_refused),
		TRACED(any_bytes_are_harmless),
		TRACED(clocks_are_set_by_what_either_end_knows),
		TRACED(one_kernel_has_one_clock),
		TRACED(percentiles_are_of_the_nearest_rank),
		TRACED(bounds_of_a_clock_close_in_and_drift),
		TRACED(one_in_so_many_is_due),
		TRACED(a_child_does_not_write_into_its_parents_ring),
		TRACED(names_say_whose_they_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
