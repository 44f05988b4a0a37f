/* SPDX-License-Identifier: BSD-2-Clause */
/* What xr-stat reads of programs on the public interface. */
#include <pthread.h>
#include <sys/mman.h>
#include "core/channel.h"
#include "core/config.h"
#include "pair_rig.h"
#include "stats_fixture.h"
#include "tools/channels.h"

static struct xrdma_context *a, *b;
static struct xrdma_channel *near, *far;
static int received;

static void on_accepted(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	far = ch;
}

static void on_connected(struct xrdma_channel *ch, void *arg)
{
	(void)arg;
	near = ch;
}

static void on_message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	(void)ch, (void)m, (void)arg;
	received++;
}

static const struct xrdma_callbacks callbacks = {
	.accepted = on_accepted, .connected = on_connected, .message = on_message,
};

static char name[XR_ADDR_NAME];

static int place(void **state)
{
	near = far = NULL;
	received = 0;
	a = b = NULL;
	return setup(state) || setenv("XRDMA_STATS_DIR", base, 1) || setenv("XRDMA_CONF", "/dev/null", 1);
}

static int start(void **state)
{
	struct xrdma_channel *ch;

	if (place(state) || pair_start(&a, &b, "shm", &callbacks, NULL, NULL, name) || xrdma_connect(b, name, &ch))
		return -1;
	pair_wait(a, b, near && far);
	return 0;
}

static int end(void **state)
{
	return pair_stop(a, b) || teardown(state);
}

static int files(void)
{
	char command[160];

	snprintf(command, sizeof(command), "exit $(ls %s 2>&- | grep -c channels)", mine);
	return WEXITSTATUS(system(command));
}

static int read_channels(const char *path, struct xr_channels *c, const char **why)
{
	int dir = open(mine, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	assert_true(dir >= 0);
	r = xr_channels_read(dir, strrchr(path, '/') + 1, c, why);
	close(dir);
	return r;
}

static void look(struct xr_channels *c)
{
	const char *why = "";

	assert_int_equal(read_channels(xr_chanstats_path(), c, &why), 0);
}

static void traffic(int n, size_t len)
{
	static char data[20000];
	struct xrdma_msg m = { .data = data, .len = len };
	int until = received + n;

	for (int i = 0; i < n; i++) {
		int r;

		while ((r = xrdma_send_msg(near, &m)) == -EAGAIN)
			pair_turn(a, b);
		assert_int_equal(r, 0);
	}
	pair_wait(a, b, received == until);
}

/* As a program does that is about to sleep. */
static void sleep_both(void)
{
	while (xrdma_process_event(a) || xrdma_process_event(b))
		;
}

static const struct xr_channels_one *one(const struct xr_channels *c, enum xr_role role)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->chan[i].id.role == role)
			return &c->chan[i];
	fail_msg("no channel of that role");
	return NULL;
}

static void same(const struct xr_channels_one *o, const struct xrdma_channel *ch)
{
	struct xrdma_channel_stats s;

	xrdma_get_channel_stats(ch, &s);
#define SAME(SYM, name, gauge, text) assert_int_equal(o->v[XR_CHAN_##SYM], s.name);
	XR_CHANSTATS_PUBLIC(SAME)
#undef SAME
	assert_int_equal(o->qpn, ch->qp->num);
	assert_int_equal(o->peer_qpn, ch->qp->peer_num);
}

static void a_reader_sees_what_the_program_does(void **state)
{
	const struct xr_channels_one *client, *server;
	struct xr_channels c;

	(void)state;
	traffic(7, 100);
	traffic(3, 20000);
	sleep_both();
	look(&c);
	assert_int_equal(c.n, 2);
	assert_int_equal(c.life, XR_SEGMENT_LIVE);
	assert_int_equal(c.pid, getpid());
	assert_string_equal(c.program, "test_chanstats");
	client = one(&c, XR_ROLE_CLIENT);
	server = one(&c, XR_ROLE_SERVER);
	same(client, near);
	same(server, far);
	assert_int_equal(client->v[XR_CHAN_MSGS_SENT], 10);
	assert_int_equal(client->v[XR_CHAN_BYTES_SENT], 60700);
	assert_int_equal(client->v[XR_CHAN_ANNOUNCED], 3);
	assert_int_equal(server->v[XR_CHAN_MSGS_RECEIVED], 10);
	assert_int_equal(server->v[XR_CHAN_FETCHED], 3);
	assert_true(client->v[XR_CHAN_PEER_MSGS] > 0 && client->v[XR_CHAN_PEER_BYTES] > 0);
	assert_string_equal(client->id.name, name);
	assert_string_equal(server->id.name, name);
	assert_string_equal(client->id.device, "shm");
	assert_int_equal(client->id.carrier, XR_CARRIER_SHM);
	assert_string_equal(xr_channels_state(client), "OPEN");
	assert_true(client->id.context != server->id.context);
	assert_true(client->qpn && client->peer_qpn == server->qpn && server->peer_qpn == client->qpn);
	assert_int_equal(c.proc[XR_CHANPROC_CONTEXTS], 2);
	assert_int_equal(c.proc[XR_CHANPROC_OPENED], 2);
	assert_true(c.proc[XR_CHANPROC_POOL_BYTES] >= 2 * XR_POOL_ARENA);
	assert_int_equal(c.total[XR_CHAN_MSGS_SENT], 10);
	xr_channels_free(&c);
}

/* Counts are exact at once, and gauges soon, in a program that never sleeps. */
static void a_program_that_spins_is_seen(void **state)
{
	uint64_t until = xr_now_ns() + 20000000000ull;
	struct xr_channels c;
	int seen = 0;

	(void)state;
	traffic(1000, 64);
	look(&c);
	assert_int_equal(one(&c, XR_ROLE_CLIENT)->v[XR_CHAN_MSGS_SENT], 1000);
	assert_int_equal(one(&c, XR_ROLE_SERVER)->v[XR_CHAN_MSGS_RECEIVED], 1000);
	xr_channels_free(&c);
	while (!seen && xr_now_ns() < until) {
		pair_turn(a, b);
		look(&c);
		seen = one(&c, XR_ROLE_CLIENT)->state == XR_CHANSTATS_OPEN &&
		       one(&c, XR_ROLE_CLIENT)->v[XR_CHAN_PEER_MSGS] == near->win.snd_msgs;
		xr_channels_free(&c);
	}
	assert_true(seen);
}

static void what_is_gone_stays_in_the_totals(void **state)
{
	const struct xr_chanstats_slot *first = near->slot < far->slot ? near->slot : far->slot;
	struct xr_channels c;
	struct xrdma_channel *ch;

	(void)state;
	for (int round = 0; round < 3; round++) {
		traffic(5, 100);
		xrdma_close(near);
		sleep_both();
		pair_wait(a, b, !a->channels && !b->channels);
		sleep_both();
		look(&c);
		assert_int_equal(c.n, 0);
		assert_int_equal(c.total[XR_CHAN_MSGS_SENT], 5 * (round + 1));
		assert_int_equal(c.total[XR_CHAN_BYTES_RECEIVED], 500 * (round + 1));
		assert_int_equal(c.proc[XR_CHANPROC_OPENED], 2 * (round + 1));
		assert_int_equal(c.proc[XR_CHANPROC_CLOSED], 2 * (round + 1));
		assert_int_equal(c.proc[XR_CHANPROC_QP_HITS] + c.proc[XR_CHANPROC_QP_MISSES], 2 * (round + 1));
		/* of what is gone no gauge is left */
		assert_int_equal(c.total[XR_CHAN_PEER_MSGS], 0);
		xr_channels_free(&c);
		near = far = NULL;
		assert_int_equal(xrdma_connect(b, name, &ch), 0);
		pair_wait(a, b, near && far);
	}
	/* slots are used again, where they were */
	look(&c);
	assert_int_equal(c.n, 2);
	assert_int_equal(c.proc[XR_CHANPROC_OPENED], 8);
	xr_channels_free(&c);
	assert_true(near->slot < first + 4 && far->slot < first + 4);
}

static void contexts_that_end_take_the_file_with_them(void **state)
{
	struct xr_channels c;

	(void)state;
	assert_int_equal(files(), 1);
	assert_int_equal(xrdma_context_destroy(b), 0);
	b = NULL;
	for (int i = 0; i < 1000; i++)
		pair_turn(a, NULL);
	while (xrdma_process_event(a))
		;
	look(&c);
	assert_int_equal(c.proc[XR_CHANPROC_CONTEXTS], 1);
	assert_int_equal(c.proc[XR_CHANPROC_CLOSED], 2);
	xr_channels_free(&c);
	assert_int_equal(xrdma_context_destroy(a), 0);
	a = NULL;
	assert_int_equal(files(), 0);
	assert_string_equal(xr_chanstats_path(), "");
	/* and the next one has a new one */
	assert_int_equal(xrdma_context_create(&a, "shm", &callbacks, NULL), 0);
	look(&c);
	assert_int_equal(c.proc[XR_CHANPROC_CONTEXTS], 1);
	assert_int_equal(c.proc[XR_CHANPROC_OPENED], 0);
	xr_channels_free(&c);
}

static void a_process_that_was_killed_can_be_read(void **state)
{
	struct xr_channels c;
	char path[256] = "";
	int fd[2], status;
	const char *why;
	pid_t pid;

	if (place(state) || pipe(fd))
		fail();
	pid = fork();
	if (!pid) {
		struct xrdma_channel *ch;

		if (pair_start(&a, &b, "shm", &callbacks, NULL, NULL, name) || xrdma_connect(b, name, &ch))
			_exit(1);
		pair_wait(a, b, near && far);
		traffic(9, 5000);
		sleep_both();
		/* counted, and killed before any round */
		if (xrdma_send_msg(near, &(struct xrdma_msg){ .data = "x", .len = 1 }) ||
		    write(fd[1], xr_chanstats_path(), strlen(xr_chanstats_path()) + 1) < 0)
			_exit(1);
		raise(SIGKILL);
	}
	assert_true(read(fd[0], path, sizeof(path) - 1) > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(read_channels(path, &c, &why), 0);
	assert_int_equal(c.life, XR_SEGMENT_DEAD);
	assert_int_equal(c.pid, pid);
	assert_int_equal(c.n, 2);
	assert_int_equal(one(&c, XR_ROLE_CLIENT)->v[XR_CHAN_MSGS_SENT], 10);
	assert_int_equal(one(&c, XR_ROLE_CLIENT)->v[XR_CHAN_BYTES_SENT], 45001);
	assert_int_equal(one(&c, XR_ROLE_SERVER)->v[XR_CHAN_MSGS_RECEIVED], 9);
	xr_channels_free(&c);
	close(fd[0]);
	close(fd[1]);
}

/* The parent's file is not touched, and the child's own is another. */
static void a_child_has_its_own(void **state)
{
	struct xr_channels c;
	int status, r = 1;
	pid_t pid;

	(void)state;
	traffic(2, 100);
	pid = fork();
	if (!pid) {
		struct xrdma_context *own;

		if (*xr_chanstats_path() || xrdma_context_create(&own, "shm", &callbacks, NULL))
			_exit(2);
		if (files() == 2 && !xrdma_context_destroy(own) && files() == 1)
			r = 0;
		_exit(r);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* one that runs its destructors, too */
	pid = fork();
	if (!pid)
		exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	look(&c);
	assert_int_equal(c.n, 2);
	assert_int_equal(c.life, XR_SEGMENT_LIVE);
	assert_int_equal(c.proc[XR_CHANPROC_CONTEXTS], 2);
	xr_channels_free(&c);
}

static void without_a_place_channels_work_and_count(void **state)
{
	struct xrdma_channel_stats s;
	struct xrdma_channel *ch;
	uint64_t errors;

	assert_int_equal(place(state), 0);
	errors = xr_load_relaxed(&xr_stats_now()->counter[XR_STAT_STATS_ERRORS]);
	setenv("XRDMA_STATS_DIR", "/nowhere", 1);
	assert_int_equal(pair_start(&a, &b, "shm", &callbacks, NULL, NULL, name), 0);
	assert_int_equal(xrdma_connect(b, name, &ch), 0);
	pair_wait(a, b, near && far);
	traffic(10, 64);
	xrdma_get_channel_stats(near, &s);
	assert_int_equal(s.msgs_sent, 10);
	assert_true(s.peer_msgs > 0);
	assert_string_equal(xr_chanstats_path(), "");
	/* each context says so */
	assert_int_equal(xr_load_relaxed(&xr_stats_now()->counter[XR_STAT_STATS_ERRORS]), errors + 2);
}

static void switched_off_is_no_mistake(void **state)
{
	uint64_t errors;

	assert_int_equal(place(state), 0);
	errors = xr_load_relaxed(&xr_stats_now()->counter[XR_STAT_STATS_ERRORS]);
	setenv("XRDMA_STATS", "no", 1);
	assert_int_equal(xrdma_context_create(&a, "shm", &callbacks, NULL), 0);
	unsetenv("XRDMA_STATS");
	assert_string_equal(xr_chanstats_path(), "");
	assert_int_equal(files(), 0);
	assert_int_equal(xr_load_relaxed(&xr_stats_now()->counter[XR_STAT_STATS_ERRORS]), errors);
}

/* More slots than the first pages hold, taken and given back by threads at once; each is one's own. */
#define THREADS 4
#define EACH 500

static void *churn(void *arg)
{
	static const struct xr_chanstats_ident id;
	struct xr_chanstats_slot *s[EACH];
	uint64_t mark = (uint64_t)(uintptr_t)arg;

	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < EACH; i++) {
			s[i] = xr_chanstats_take(&id);
			if (!s[i] || xr_load_relaxed(&s[i]->v[XR_CHAN_MSGS_SENT]))
				return (void *)1;
			xr_count(&s[i]->v[XR_CHAN_MSGS_SENT], mark);
		}
		for (int i = 0; i < EACH; i++) {
			if (xr_load_relaxed(&s[i]->v[XR_CHAN_MSGS_SENT]) != mark)
				return (void *)2;
			xr_chanstats_give(s[i], s[i]->v);
		}
	}
	return NULL;
}

static void threads_take_slots_at_once(void **state)
{
	pthread_t t[THREADS];
	struct xr_channels c;
	void *bad;

	assert_int_equal(place(state), 0);
	assert_int_equal(xr_chanstats_open(), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, churn, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(t[i], &bad), 0);
		assert_null(bad);
	}
	look(&c);
	assert_int_equal(c.n, 0);
	assert_int_equal(c.proc[XR_CHANPROC_CLOSED], 20 * EACH * THREADS);
	assert_int_equal(c.total[XR_CHAN_MSGS_SENT], 20 * EACH * (1 + 2 + 3 + 4));
	xr_channels_free(&c);
	xr_chanstats_close();
}

static void a_full_list_is_said(void **state)
{
	static struct xr_chanstats_slot *s[XR_CHANSTATS_SLOTS];
	static _Atomic uint64_t own[XR_CHAN_COUNT];
	static const struct xr_chanstats_ident id;
	struct xr_channels c;

	assert_int_equal(place(state), 0);
	assert_int_equal(xr_chanstats_open(), 0);
	for (uint32_t i = 0; i < XR_CHANSTATS_SLOTS; i++)
		assert_non_null(s[i] = xr_chanstats_take(&id));
	assert_null(xr_chanstats_take(&id));
	xr_count(&own[XR_CHAN_MSGS_SENT], 3);
	xr_chanstats_give(NULL, own);
	xr_chanstats_give(s[100], s[100]->v);
	assert_ptr_equal(xr_chanstats_take(&id), s[100]);
	look(&c);
	assert_int_equal(c.n, XR_CHANSTATS_SLOTS);
	assert_int_equal(c.proc[XR_CHANPROC_UNLISTED], 1);
	assert_int_equal(c.total[XR_CHAN_MSGS_SENT], 3);
	xr_channels_free(&c);
	xr_chanstats_close();
}

/* Whatever stands in the file, it is refused or read, and nothing else. */
static void nonsense_is_refused(void **state)
{
	struct xr_chanstats_seg *h;
	struct xr_chanstats_slot *slot;
	struct xr_channels c;
	const char *why = "";
	int fd;

	(void)state;
	traffic(1, 10);
	sleep_both();
	fd = open(xr_chanstats_path(), O_RDWR);
	h = mmap(NULL, 2 * XR_CHANSTATS_OFF, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(fd >= 0 && h != MAP_FAILED);
	slot = (struct xr_chanstats_slot *)((char *)h + XR_CHANSTATS_OFF);
#define REFUSED(field, value, error)								\
	do {											\
		__typeof__(h->field + 0) was_ = h->field;					\
		h->field = (value);								\
		assert_int_equal(read_channels(xr_chanstats_path(), &c, &why), error);		\
		h->field = was_;								\
	} while (0)
	REFUSED(magic, 0, -EAGAIN);
	REFUSED(magic, 77, -EBADMSG);
	REFUSED(version, 77, -EPROTONOSUPPORT);
	REFUSED(header_size, 77, -EBADMSG);
	REFUSED(slot_size, 8, -EBADMSG);
	REFUSED(slots_off, 0, -EBADMSG);
	REFUSED(used, UINT32_MAX, -EBADMSG);
	REFUSED(pid, -1, -EBADMSG);
	/* a slot that changes for ever, or is in a state that is none, is left out */
	xr_store_relaxed(&slot[0].seq, xr_load_relaxed(&slot[0].seq) + 1);
	look(&c);
	assert_int_equal(c.n, 1);
	xr_channels_free(&c);
	xr_store_relaxed(&slot[0].seq, xr_load_relaxed(&slot[0].seq) + 1);
	xr_store_relaxed(&slot[1].state, 99);
	look(&c);
	assert_int_equal(c.n, 1);
	xr_channels_free(&c);
	xr_store_relaxed(&slot[1].state, XR_CHANSTATS_OPEN);
	/* text without an end, and fit for no terminal */
	memset(slot[0].ident.name, '\033', sizeof(slot[0].ident.name));
	memset(h->program, 0xff, sizeof(h->program));
	look(&c);
	assert_int_equal(c.n, 2);
	assert_int_equal(strlen(c.chan[0].id.name), sizeof(c.chan[0].id.name) - 1);
	assert_int_equal(strspn(c.chan[0].id.name, "?"), sizeof(c.chan[0].id.name) - 1);
	assert_int_equal(strspn(c.program, "?"), sizeof(c.program) - 1);
	xr_channels_free(&c);
	/* it has executed another program: what it was is dead */
	h->exe_ino++;
	look(&c);
	assert_int_equal(c.life, XR_SEGMENT_DEAD);
	xr_channels_free(&c);
	h->exe_ino--;
	munmap(h, 2 * XR_CHANSTATS_OFF);
	/* too short */
	assert_int_equal(ftruncate(fd, 100), 0);
	assert_int_equal(read_channels(xr_chanstats_path(), &c, &why), -EBADMSG);
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	close(fd);
}

#define BOTH(f) cmocka_unit_test_setup_teardown(f, start, end)
#define ALONE(f) cmocka_unit_test_setup_teardown(f, NULL, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(a_reader_sees_what_the_program_does),
		BOTH(a_program_that_spins_is_seen),
		BOTH(what_is_gone_stays_in_the_totals),
		BOTH(contexts_that_end_take_the_file_with_them),
		ALONE(a_process_that_was_killed_can_be_read),
		BOTH(a_child_has_its_own),
		ALONE(without_a_place_channels_work_and_count),
		ALONE(switched_off_is_no_mistake),
		ALONE(threads_take_slots_at_once),
		ALONE(a_full_list_is_said),
		BOTH(nonsense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
