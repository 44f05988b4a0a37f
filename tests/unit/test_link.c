/* SPDX-License-Identifier: BSD-2-Clause */
/* Links: arenas from strangers, doorbells, completion entries, the control connection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "child.h"
#include "core/mem.h"
#include "core/shm_link.h"

#define SIZE	(16ull << 20)
#define SLOTS	32u
#define SEALS	(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* --- arenas ------------------------------------------------------------------------ */

static void an_arena_is_attached(void **state)
{
	struct xr_shm_arena a, b;

	(void)state;
	assert_int_equal(xr_shm_arena_create(&a, SIZE, SLOTS), 0);
	assert_int_equal(xr_shm_arena_attach(&b, a.fd), 0);
	assert_memory_equal(&a.hdr, &b.hdr, sizeof(a.hdr));
	a.base[SIZE - 1] = 77;
	assert_int_equal(b.base[SIZE - 1], 77);
	assert_true(b.hdr.chunk_off + (uint64_t)b.hdr.nchunks * XR_CHUNK <= SIZE);
	assert_true(b.hdr.dir_off + b.hdr.ndirs * XR_DIR_BYTES(SLOTS) <= b.hdr.chunk_off);
	/* the seals hold against the owner too */
	assert_int_equal(ftruncate(a.fd, 4096), -1);
	assert_int_equal(ftruncate(a.fd, SIZE * 2), -1);
	xr_shm_arena_destroy(&b);
	xr_shm_arena_destroy(&a);
	/* wrong sizes */
	assert_int_equal(xr_shm_arena_create(&a, 4096, SLOTS), -EINVAL);
	assert_int_equal(xr_shm_arena_create(&a, 1ull << 40, SLOTS), -EINVAL);
	assert_int_equal(xr_shm_arena_create(&a, SIZE, 8), -EINVAL);
	assert_int_equal(xr_shm_arena_create(&a, SIZE, 33), -EINVAL);
	assert_int_equal(xr_shm_arena_create(&a, SIZE, 8192), -EINVAL);
}

/* A memfd as an arena, but for what the caller changes. */
static int forge(uint64_t size, const struct xr_shm_hdr *h, unsigned int flags)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	if (h)
		assert_int_equal(pwrite(fd, h, sizeof(*h), 0), sizeof(*h));
	return fd;
}

static void refused(int fd)
{
	struct xr_shm_arena a = { .fd = -2 };

	assert_int_not_equal(xr_shm_arena_attach(&a, fd), 0);
	/* nothing is set, nothing is taken */
	assert_int_equal(a.fd, -2);
	close(fd);
}

static void seals_are_asked_for(void **state)
{
	static const int seals[] = { 0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_WRITE,
				     F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };
	struct xr_shm_arena a;
	size_t i;
	int fd;

	(void)state;
	assert_int_equal(xr_shm_arena_create(&a, SIZE, SLOTS), 0);
	for (i = 0; i < XR_ARRAY_LEN(seals); i++) {
		fd = forge(SIZE, &a.hdr, 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals[i]), 0);
		refused(fd);
	}
	/* the same with the right ones is taken */
	fd = forge(SIZE, &a.hdr, 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, SEALS), 0);
	xr_shm_arena_destroy(&a);
	assert_int_equal(xr_shm_arena_attach(&a, fd), 0);
	xr_shm_arena_destroy(&a);
	close(fd);
}

static void other_files_are_refused(void **state)
{
	struct xr_shm_arena a;
	int p[2], fd;

	(void)state;
	assert_int_equal(pipe(p), 0);
	refused(p[0]);
	refused(p[1]);
	refused(open("/dev/zero", O_RDWR));
	refused(open("/proc/self/exe", O_RDONLY));
	refused(-1);
	assert_int_equal(xr_shm_arena_create(&a, SIZE, SLOTS), 0);
	/* pages of a kind that the kernel may not have: touching one is SIGBUS */
	fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	if (fd >= 0) {
		assert_int_equal(ftruncate(fd, SIZE), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, SEALS), 0);
		refused(fd);
	}
	xr_shm_arena_destroy(&a);
}

static void truncated_arenas(void **state)
{
	static const uint64_t size[] = { 0, 1, 4096, 1 << 20, SIZE - XR_CHUNK, SIZE - 1, SIZE + 1,
					 SIZE + XR_CHUNK, 8ull << 30 };
	struct xr_shm_arena a;
	size_t i;

	(void)state;
	assert_int_equal(xr_shm_arena_create(&a, SIZE, SLOTS), 0);
	for (i = 0; i < XR_ARRAY_LEN(size); i++) {
		int fd = forge(size[i], size[i] > 4096 ? &a.hdr : NULL, 0);

		assert_int_equal(fcntl(fd, F_ADD_SEALS, SEALS), 0);
		refused(fd);
	}
	xr_shm_arena_destroy(&a);
}

static void every_header_field_counts(void **state)
{
	struct xr_shm_arena a;
	size_t i;

	(void)state;
	assert_int_equal(xr_shm_arena_create(&a, SIZE, SLOTS), 0);
	for (i = 0; i < sizeof(a.hdr); i += 4) {
		static const uint32_t delta[] = { 1, UINT32_MAX, 0x80000000u, 64, 4096 };
		size_t k;

		for (k = 0; k < XR_ARRAY_LEN(delta); k++) {
			struct xr_shm_hdr h = a.hdr;
			uint32_t v;
			int fd;

			memcpy(&v, (uint8_t *)&h + i, 4);
			v += delta[k];
			memcpy((uint8_t *)&h + i, &v, 4);
			fd = forge(SIZE, &h, 0);
			assert_int_equal(fcntl(fd, F_ADD_SEALS, SEALS), 0);
			refused(fd);
		}
	}
	xr_shm_arena_destroy(&a);
}

/* --- links ------------------------------------------------------------------------- */

static void link_pair(struct xr_shm_link **a, struct xr_shm_link **b)
{
	struct xr_shm_arena own[2], peer[2];
	int s[2], i;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	for (i = 0; i < 2; i++) {
		assert_int_equal(xr_shm_arena_create(&own[i], SIZE, SLOTS), 0);
		assert_int_equal(xr_shm_arena_attach(&peer[i], own[i].fd), 0);
	}
	*a = xr_shm_link_new(s[0], &own[0], &peer[1]);
	*b = xr_shm_link_new(s[1], &own[1], &peer[0]);
	assert_non_null(*a);
	assert_non_null(*b);
}

struct seen {
	uint32_t cookie[2000], n, all;
};

static void see(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	struct seen *s = arg;

	(void)l;
	if (cookie == UINT32_MAX)
		s->all++;
	else
		s->cookie[s->n++ % 2000] = cookie;
}

static void directions_are_named_exactly(void **state)
{
	uint64_t off[4], stride = XR_DIR_BYTES(SLOTS), i;
	struct xr_shm_link *a, *b;
	uint32_t n;

	(void)state;
	link_pair(&a, &b);
	for (i = 0; i < 4; i++) {
		off[i] = xr_shm_link_dir_get(a);
		assert_ptr_equal(xr_shm_link_peer_dir(b, off[i]), b->peer.base + off[i]);
	}
	for (i = 1; i < stride; i += 8)
		assert_null(xr_shm_link_peer_dir(b, off[0] + i));
	assert_null(xr_shm_link_peer_dir(b, 0));
	assert_null(xr_shm_link_peer_dir(b, off[0] - stride));
	assert_null(xr_shm_link_peer_dir(b, a->own.hdr.dir_off + a->own.hdr.ndirs * stride));
	assert_null(xr_shm_link_peer_dir(b, UINT64_MAX));
	assert_null(xr_shm_link_peer_dir(b, UINT64_MAX - UINT64_MAX % stride));
	/* given back ones come again, and no two are the same */
	xr_shm_link_dir_put(a, off[1]);
	assert_int_equal(xr_shm_link_dir_get(a), off[1]);
	for (n = 4; xr_shm_link_dir_get(a); n++)
		;
	assert_int_equal(n, a->own.hdr.ndirs);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
	assert_int_equal(xr_shm_used(), 0);
}

static void chunks_run_out_and_come_back(void **state)
{
	static uint8_t used[4096];
	struct xr_shm_chunks c;
	struct xr_shm_link *a, *b;
	uint32_t n, i, last = 0;

	(void)state;
	link_pair(&a, &b);
	xr_shm_link_chunks(a, &c);
	memset(used, 0, sizeof(used));
	for (n = 0; (i = c.get(c.ctx)) != XR_NO_CHUNK; n++) {
		assert_true(i < a->own.hdr.nchunks);
		assert_int_equal(used[i]++, 0);
		last = i;
	}
	assert_int_equal(n, a->own.hdr.nchunks);
	c.put(c.ctx, last);
	assert_int_equal(c.get(c.ctx), last);
	/* the budget of the process */
	c.put(c.ctx, last);
	xr_shm_budget(xr_shm_used());
	assert_int_equal(c.get(c.ctx), XR_NO_CHUNK);
	assert_int_equal(xr_shm_link_dir_get(a), 0);
	xr_shm_budget(UINT64_MAX);
	assert_int_equal(c.get(c.ctx), last);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
	assert_int_equal(xr_shm_used(), 0);
}

static int readable(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };

	return poll(&p, 1, 0);
}

static void bells_ring_for_sleepers(void **state)
{
	struct xr_shm_link *a, *b;
	struct seen s = { .n = 0 };
	uint64_t count;
	int bell;

	(void)state;
	link_pair(&a, &b);
	assert_int_equal(xr_shm_link_bell(b, 0), -EINVAL);
	assert_int_equal(xr_shm_link_bell(b, XR_WAITERS), -EINVAL);
	bell = xr_shm_link_bell(b, 5);
	assert_true(bell >= 0);
	assert_int_equal(xr_shm_link_bell(b, 5), bell);
	/* awake: an entry, no bell */
	assert_int_equal(xr_shm_link_notify(a, 5, 100), 0);
	assert_false(readable(bell));
	assert_true(xr_shm_link_pending(b, 5));
	assert_false(xr_shm_link_pending(b, 6));
	/* asleep: the bell was passed and is found in the socket */
	xr_shm_link_sleeping(b, 5, 1);
	assert_int_equal(xr_shm_link_notify(a, 5, 101), 1);
	assert_true(readable(bell));
	assert_int_equal(read(bell, &count, 8), 8);
	xr_shm_link_sleeping(b, 5, 0);
	xr_shm_link_harvest(b, 5, see, &s);
	assert_int_equal(s.n, 2);
	assert_int_equal(s.cookie[0], 100);
	assert_int_equal(s.cookie[1], 101);
	assert_int_equal(s.all, 0);
	assert_false(xr_shm_link_pending(b, 5));
	/* a waiter that sleeps without ever having passed a bell */
	xr_shm_link_sleeping(b, 6, 1);
	assert_int_equal(xr_shm_link_notify(a, 6, 1), -ENOENT);
	/* a waiter that cannot be */
	assert_int_equal(xr_shm_link_notify(a, 0, 1), 0);
	assert_int_equal(xr_shm_link_notify(a, XR_WAITERS, 1), 0);
	assert_int_equal(xr_shm_link_notify(a, UINT32_MAX, 1), 0);
	/* a bell that its owner has filled is still a bell */
	count = UINT64_MAX - 1;
	assert_int_equal(write(bell, &count, 8), 8);
	xr_shm_link_sleeping(b, 5, 1);
	assert_int_equal(xr_shm_link_notify(a, 5, 102), 1);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

static void overrun_means_look_everywhere(void **state)
{
	struct xr_shm_link *a, *b;
	struct seen s = { .n = 0 };
	uint32_t i;

	(void)state;
	link_pair(&a, &b);
	for (i = 0; i < XR_CQ_ENTRIES; i++)
		xr_shm_link_notify(a, 1, i);
	xr_shm_link_harvest(b, 1, see, &s);
	assert_int_equal(s.n, XR_CQ_ENTRIES);
	assert_int_equal(s.all, 0);
	for (i = 0; i <= XR_CQ_ENTRIES; i++)
		xr_shm_link_notify(a, 1, i);
	xr_shm_link_harvest(b, 1, see, &s);
	assert_int_equal(s.all, 1);
	assert_false(xr_shm_link_pending(b, 1));
	s.n = 0;
	xr_shm_link_notify(a, 1, 42);
	xr_shm_link_harvest(b, 1, see, &s);
	assert_int_equal(s.n, 1);
	assert_int_equal(s.cookie[0], 42);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

/* A peer that writes anything into its completion entries costs a bounded look, no more. */
static void entries_may_lie(void **state)
{
	static const uint32_t tails[] = { 1, 511, 512, 513, 0x7fffffff, 0x80000000u, UINT32_MAX, 3, 0 };
	struct xr_shm_link *a, *b;
	struct xr_shm_cq *cq;
	size_t i, k;

	(void)state;
	link_pair(&a, &b);
	cq = xr_shm_arena_cq(&a->own, 1);
	for (i = 0; i < XR_ARRAY_LEN(tails); i++) {
		struct seen s = { .n = 0 };

		for (k = 0; k < XR_CQ_ENTRIES; k++)
			xr_store_relaxed(&cq->entry[k], (uint64_t)k * 0x9e3779b97f4a7c15ull);
		xr_store_release(&cq->tail, tails[i]);
		xr_shm_link_harvest(b, 1, see, &s);
		assert_true(s.n + s.all <= XR_CQ_ENTRIES + 1);
		assert_true(s.all >= 1 || s.n > 0 || tails[i] == 0);
		assert_false(xr_shm_link_pending(b, 1));
	}
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

/* Its copy of the connection is closed, and the number may be another file's by now. */
static void a_child_hears_nothing(void **state)
{
	struct xr_shm_link *a, *b;
	int status, p[2];
	pid_t pid;

	(void)state;
	link_pair(&a, &b);
	assert_int_equal(pipe(p), 0);
	pid = child_fork();
	if (!pid) {
		xr_process_forked();
		dup2(p[0], a->conn);
		_exit(xr_shm_link_progress(a) || xr_load_acquire(&a->dead) ||
		      fcntl(a->conn, F_GETFD) < 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(p[0]);
	close(p[1]);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

static void control_connection_takes_bells_only(void **state)
{
	static const struct {
		uint32_t word[3];
		size_t len;
		int nfds;
	} bad[] = {
		{ { 1, 5, 0 }, 8, 0 }, { { 1, 0, 0 }, 8, 1 }, { { 1, XR_WAITERS, 0 }, 8, 1 },
		{ { 2, 5, 0 }, 8, 1 }, { { 1, 5, 0 }, 7, 1 }, { { 1, 5, 0 }, 12, 1 },
		{ { 1, 5, 0 }, 8, 2 }, { { 1, 5, 0 }, 200, 1 }, { { 0, 0, 0 }, 0, 0 },
	};
	int fds = open_fds();
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(bad); i++) {
		struct xr_shm_link *a, *b;
		int spare[2] = { 0, 0 };

		link_pair(&a, &b);
		if (bad[i].len)
			assert_int_equal(xr_unix_send(a->conn, bad[i].word, bad[i].len, spare,
						      bad[i].nfds), bad[i].len);
		else
			assert_int_equal(shutdown(a->conn, SHUT_WR), 0);
		xr_shm_link_progress(b);
		/* the truncated one counts as a lost bell, every other ends the link */
		assert_int_equal(xr_load_acquire(&b->dead), bad[i].len != 200);
		/* without a connection there is no new bell, and no crash */
		if (xr_load_acquire(&b->dead))
			assert_true(xr_shm_link_progress(b) == -EPIPE && xr_shm_link_bell(b, 9) == -EPIPE);
		xr_shm_link_free(a);
		xr_shm_link_free(b);
	}
	assert_int_equal(open_fds(), fds);
}

/* Whoever rings has its number in hand: another file must not come in its place. */
static void a_bell_is_not_replaced(void **state)
{
	uint32_t m[2] = { 1, 5 };
	struct xr_shm_link *a, *b;
	int now;

	(void)state;
	link_pair(&a, &b);
	now = open_fds();
	assert_int_equal(xr_unix_send(a->conn, m, 8, (int[]){ 0 }, 1), 8);
	assert_int_equal(xr_shm_link_progress(b), 0);
	assert_int_equal(xr_unix_send(a->conn, m, 8, (int[]){ 0 }, 1), 8);
	assert_int_equal(xr_shm_link_progress(b), -EPROTO);
	assert_true(xr_load_acquire(&b->dead));
	/* the connection and the second bell are gone */
	assert_int_equal(open_fds(), now);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

static void all_descriptors_are_given_back(void **state)
{
	struct xr_shm_link *a, *b;
	uint32_t i;
	int fds;

	(void)state;
	link_pair(&a, &b);
	fds = open_fds();
	for (i = 1; i <= 3; i++)
		assert_true(xr_shm_link_bell(a, i) >= 0 && xr_shm_link_bell(b, i + 10) >= 0);
	assert_int_equal(xr_shm_link_progress(a), 0);
	assert_int_equal(open_fds(), fds + 9);
	/* somebody is about to ring: all but the connection stays */
	xr_fetch_add(&a->ringing, 1);
	assert_int_equal(xr_shm_link_strip(a), 1);
	xr_fetch_sub(&a->ringing, 1);
	assert_int_equal(xr_shm_link_strip(a), 6);
	assert_int_equal(open_fds(), fds + 2);
	assert_int_equal(xr_shm_link_bell(a, 1), -EPIPE);
	xr_shm_link_sleeping(b, 11, 1);
	assert_int_equal(xr_shm_link_notify(a, 11, 0), -ENOENT);
	xr_shm_link_notify_own(a, 1, 0);
	assert_int_equal(xr_shm_link_progress(b), -EPIPE);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

/* --- many notifiers, one sleeper ----------------------------------------------------- */

#define NOTES 20000u

struct crowd {
	struct xr_shm_link *l;
	uint32_t id;
	_Atomic uint32_t *flag;
};

static void *notifier(void *arg)
{
	struct crowd *c = arg;
	uint32_t i;

	for (i = 0; i < NOTES; i++) {
		/* relaxed: the notification publishes it */
		xr_store_relaxed(c->flag, i + 1);
		xr_shm_link_notify(c->l, 1, c->id);
	}
	return NULL;
}

static uint32_t crowd_woken[3], crowd_all;

static void crowd_see(void *arg, struct xr_shm_link *l, uint32_t cookie)
{
	(void)arg;
	(void)l;
	if (cookie < 3)
		crowd_woken[cookie]++;
	else
		crowd_all++;
}

/* The last thing that each of three threads says is seen, however the sleep falls. */
static void no_wake_up_is_lost(void **state)
{
	static _Atomic uint32_t flag[3];
	struct xr_shm_link *a, *b;
	struct crowd c[3];
	pthread_t t[3];
	uint32_t seen[3] = { 0 }, i, done = 0, sleeps = 0;
	int bell;

	(void)state;
	link_pair(&a, &b);
	bell = xr_shm_link_bell(b, 1);
	for (i = 0; i < 3; i++) {
		c[i] = (struct crowd){ a, i, &flag[i] };
		assert_int_equal(pthread_create(&t[i], NULL, notifier, &c[i]), 0);
	}
	while (done < 3) {
		memset(crowd_woken, 0, sizeof(crowd_woken));
		crowd_all = 0;
		xr_shm_link_harvest(b, 1, crowd_see, NULL);
		for (i = 0; i < 3; i++) {
			uint32_t v;

			if (!crowd_woken[i] && !crowd_all)
				continue;
			v = xr_load_acquire(&flag[i]);
			if (v == NOTES && seen[i] != NOTES)
				done++;
			seen[i] = v;
		}
		if (done == 3 || xr_shm_link_pending(b, 1))
			continue;
		xr_shm_link_sleeping(b, 1, 1);
		if (!xr_shm_link_pending(b, 1)) {
			struct pollfd p = { bell, POLLIN, 0 };
			uint64_t n;

			sleeps++;
			assert_int_equal(poll(&p, 1, 10000), 1);
			assert_int_equal(read(bell, &n, 8), 8);
		}
		xr_shm_link_sleeping(b, 1, 0);
	}
	for (i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	/* how often the reader slept is the scheduler's business: it is told, the rest is asserted */
	print_message("%llu sleeps\n", (unsigned long long)sleeps);
	xr_shm_link_free(a);
	xr_shm_link_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_arena_is_attached),
		cmocka_unit_test(seals_are_asked_for),
		cmocka_unit_test(other_files_are_refused),
		cmocka_unit_test(truncated_arenas),
		cmocka_unit_test(every_header_field_counts),
		cmocka_unit_test(directions_are_named_exactly),
		cmocka_unit_test(chunks_run_out_and_come_back),
		cmocka_unit_test(bells_ring_for_sleepers),
		cmocka_unit_test(overrun_means_look_everywhere),
		cmocka_unit_test(entries_may_lie),
		cmocka_unit_test(a_child_hears_nothing),
		cmocka_unit_test(control_connection_takes_bells_only),
		cmocka_unit_test(a_bell_is_not_replaced),
		cmocka_unit_test(all_descriptors_are_given_back),
		cmocka_unit_test(no_wake_up_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
