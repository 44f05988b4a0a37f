/* SPDX-License-Identifier: BSD-2-Clause */
/* The table of descriptors: every number of an int, racing takers, racing first touches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <pthread.h>
#include "fdtab.h"

#define LIMIT	(XR_FDTAB_L1 * XR_FDTAB_L2)

static uint64_t thing[4];

static void set_and_take(void **state)
{
	(void)state;
	assert_int_equal(xr_fd_entry(5), 0);
	assert_int_equal(xr_fd_set(5, &thing[0], XR_FD_FLOW), 0);
	assert_ptr_equal(xr_fd_flow(5), &thing[0]);
	assert_null(xr_fd_epoll(5));
	/* the old entry comes back, so that nobody loses a reference */
	assert_int_equal(xr_fd_set(5, &thing[1], XR_FD_EPOLL), (uintptr_t)&thing[0] | XR_FD_FLOW);
	assert_null(xr_fd_flow(5));
	assert_ptr_equal(xr_fd_epoll(5), &thing[1]);
	assert_int_equal(xr_fd_take(5), (uintptr_t)&thing[1] | XR_FD_EPOLL);
	assert_int_equal(xr_fd_take(5), 0);
	assert_int_equal(xr_fd_entry(5), 0);
}

static void listener(void **state)
{
	(void)state;
	xr_fd_set_new(6, XR_FD_LISTENER(10), XR_FD_LISTEN);
	assert_int_equal(xr_fd_entry(6) >> 2, 10);
	assert_null(xr_fd_flow(6));
	assert_null(xr_fd_epoll(6));
	/* never over another entry */
	xr_fd_set_new(6, XR_FD_LISTENER(2), XR_FD_LISTEN);
	assert_int_equal(xr_fd_entry(6) >> 2, 10);
	assert_int_equal(xr_fd_take(6) & 3, XR_FD_LISTEN);
}

static void out_of_range(void **state)
{
	static const int fds[] = { -1, INT_MIN, INT_MAX, LIMIT, LIMIT + 1 };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		assert_int_equal(xr_fd_entry(fds[i]), 0);
		assert_int_equal(xr_fd_set(fds[i], &thing[0], XR_FD_FLOW), (uintptr_t)-1);
		xr_fd_set_new(fds[i], &thing[0], XR_FD_FLOW);
		assert_int_equal(xr_fd_take(fds[i]), 0);
		assert_null(xr_fd_flow(fds[i]));
	}
	assert_int_equal(xr_fd_set(LIMIT - 1, &thing[0], XR_FD_FLOW), 0);
	assert_ptr_equal(xr_fd_flow(LIMIT - 1), &thing[0]);
	assert_int_not_equal(xr_fd_take(LIMIT - 1), 0);
}

struct seen {
	int fd[8], n;
};

static void see(void *arg, int fd, uintptr_t entry)
{
	struct seen *s = arg;

	assert_int_equal(entry, (uintptr_t)&thing[fd & 3] | XR_FD_FLOW);
	assert_true(s->n < 8);
	s->fd[s->n++] = fd;
	/* taking it while it is visited is allowed */
	assert_int_not_equal(xr_fd_take(fd), 0);
}

static void each_in_order(void **state)
{
	static const int fds[] = { 0, 3, XR_FDTAB_L2 - 1, XR_FDTAB_L2, 300000, LIMIT - 1 };
	struct seen s = { .n = 0 };
	int i;

	(void)state;
	for (i = 0; i < 6; i++)
		assert_int_equal(xr_fd_set(fds[i], &thing[fds[i] & 3], XR_FD_FLOW), 0);
	assert_int_equal(xr_fd_next(1), 3);
	assert_int_equal(xr_fd_next(4), XR_FDTAB_L2 - 1);
	assert_int_equal(xr_fd_next(-7), 0);
	xr_fd_each(see, &s);
	assert_int_equal(s.n, 6);
	for (i = 0; i < 6; i++)
		assert_int_equal(s.fd[i], fds[i]);
	assert_int_equal(xr_fd_next(0), -1);
}

/* ---- races ----------------------------------------------------------------- */

#define THREADS	4
#define ROUNDS	20000

static pthread_barrier_t barrier;
static _Atomic int taken[ROUNDS];

static void *take_all(void *arg)
{
	int i;

	(void)arg;
	pthread_barrier_wait(&barrier);
	for (i = 0; i < ROUNDS; i++)
		if (xr_fd_take(i))
			atomic_fetch_add(&taken[i], 1);
	return NULL;
}

static void one_taker(void **state)
{
	pthread_t t[THREADS];
	int i;

	(void)state;
	for (i = 0; i < ROUNDS; i++)
		xr_fd_set(i, &thing[0], XR_FD_FLOW);
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, take_all, NULL), 0);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	pthread_barrier_destroy(&barrier);
	for (i = 0; i < ROUNDS; i++)
		assert_int_equal(taken[i], 1);
}

/* Numbers of one untouched second level each: all threads map it, one mapping stays. */
static void *set_own(void *arg)
{
	int id = *(int *)arg, i;

	pthread_barrier_wait(&barrier);
	for (i = 40; i < 100; i++)
		xr_fd_set(i * (int)XR_FDTAB_L2 + id, &thing[id], XR_FD_FLOW);
	return NULL;
}

static void first_touch(void **state)
{
	pthread_t t[THREADS];
	int id[THREADS], i, k;

	(void)state;
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (k = 0; k < THREADS; k++) {
		id[k] = k;
		assert_int_equal(pthread_create(&t[k], NULL, set_own, &id[k]), 0);
	}
	for (k = 0; k < THREADS; k++)
		pthread_join(t[k], NULL);
	pthread_barrier_destroy(&barrier);
	for (i = 40; i < 100; i++)
		for (k = 0; k < THREADS; k++)
			assert_ptr_equal(xr_fd_flow(i * (int)XR_FDTAB_L2 + k), &thing[k]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(set_and_take),
		cmocka_unit_test(listener),
		cmocka_unit_test(out_of_range),
		cmocka_unit_test(each_in_order),
		cmocka_unit_test(one_taker),
		cmocka_unit_test(first_touch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
