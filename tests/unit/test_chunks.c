/* SPDX-License-Identifier: BSD-2-Clause */
/* Free chunks of an arena, and memory of links: taken and given back by many threads at once, none of which waits. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sys/wait.h>
#include "child.h"
#include "core/shm_link.h"

#define COUNT	24u	/* fewer than the threads want, now and then */
#define THREADS	4u
#define ROUNDS	200000u

static struct xr_chunks c;
static _Atomic uint32_t holder[COUNT], gone[COUNT], refusals;
static _Atomic int ended;

static void begin(uint32_t count)
{
	memset(&c, 0, sizeof(c));
	xr_chunk_init(&c, calloc(xr_chunk_cells(count), sizeof(struct xr_chunk_cell)), count);
	assert_non_null(c.cell);
}

static void in_order(void **state)
{
	uint32_t i, k;

	(void)state;
	begin(COUNT);
	/* each once, then none */
	for (i = 0; i < COUNT; i++)
		assert_int_equal(xr_chunk_get(&c), i);
	assert_int_equal(xr_chunk_get(&c), XR_CHUNK_NONE);
	assert_int_equal(c.used, COUNT);
	for (i = 0; i < COUNT; i++)
		xr_chunk_put(&c, COUNT - 1 - i);
	/* first in, first out, round after round */
	for (k = 0; k < 1000; k++) {
		i = xr_chunk_get(&c);
		assert_int_equal(i, COUNT - 1 - k % COUNT);
		xr_chunk_put(&c, i);
	}
	assert_int_equal(c.used, 0);
	/* one that is lost is not given out again */
	i = xr_chunk_get(&c);
	xr_chunk_lose(&c);
	for (k = 0; k < COUNT - 1; k++)
		assert_int_not_equal(xr_chunk_get(&c), i);
	assert_int_equal(xr_chunk_get(&c), XR_CHUNK_NONE);
	free(c.cell);
}

/* As few as fit the caches are taken before one is used again. */
static void few_are_used(void **state)
{
	uint32_t i, k;

	(void)state;
	begin(COUNT);
	for (k = 0; k < 100; k++) {
		i = xr_chunk_get(&c);
		assert_true(i < XR_CHUNKS_HOT);
		xr_chunk_put(&c, i);
	}
	free(c.cell);
}

static void trimmed(void **state)
{
	uint32_t i, k;

	(void)state;
	begin(COUNT);
	for (i = 0; i < COUNT; i++)
		xr_chunk_get(&c);
	assert_false(xr_chunk_trim_begin(&c));
	for (i = 0; i < COUNT; i++) {
		assert_false(xr_chunk_trim_begin(&c));
		xr_chunk_put(&c, i);
	}
	assert_true(xr_chunk_trim_begin(&c));
	assert_int_equal(xr_chunk_get(&c), XR_CHUNK_TRIM);
	assert_int_equal(c.used, 0);
	xr_chunk_trim_end(&c, 1);
	for (k = 0; k < 3; k++) {
		for (i = 0; i < COUNT; i++)
			assert_int_equal(xr_chunk_get(&c), i);
		assert_int_equal(xr_chunk_get(&c), XR_CHUNK_NONE);
		for (i = 0; i < COUNT; i++)
			xr_chunk_put(&c, i);
	}
	free(c.cell);
}

static void *take_and_give(void *arg)
{
	uint32_t self = (uint32_t)(uintptr_t)arg, mine[8], n = 0, i, k, none;
	uint64_t x = self;

	for (k = 0; k < ROUNDS; k++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		if (k % 64 == 0) {
			/* now and then nobody has any */
			while (n) {
				xr_store_relaxed(&holder[mine[--n]], 0);
				xr_chunk_put(&c, mine[n]);
			}
			sched_yield();
		}
		if (n < 8 && (x >> 60 & 1 || !n)) {
			i = xr_chunk_get(&c);
			none = 0;
			if (i >= COUNT) {
				xr_fetch_add(&refusals, 1);
				if (i == XR_CHUNK_TRIM)
					sched_yield();
				continue;
			}
			/* nobody else's, and not while all are being taken away */
			if (!xr_cas(&holder[i], &none, self) || xr_load_relaxed(&gone[i]))
				abort();
			mine[n++] = i;
		} else {
			i = mine[--n];
			xr_store_relaxed(&holder[i], 0);
			xr_chunk_put(&c, i);
		}
	}
	while (n) {
		xr_store_relaxed(&holder[mine[--n]], 0);
		xr_chunk_put(&c, mine[n]);
	}
	return NULL;
}

static void *trim(void *arg)
{
	uint64_t *trims = arg;
	uint32_t i;

	while (!xr_load_relaxed(&ended)) {
		sched_yield();
		if (!xr_chunk_trim_begin(&c))
			continue;
		++*trims;
		for (i = 0; i < COUNT; i++)
			xr_store_relaxed(&gone[i], 1);
		for (i = 0; i < COUNT; i++) {
			if (xr_load_relaxed(&holder[i]))
				abort();
			xr_store_relaxed(&gone[i], 0);
		}
		xr_chunk_trim_end(&c, 1);
	}
	return NULL;
}

static void by_many_threads(void **state)
{
	pthread_t t[THREADS + 1];
	uint64_t trims = 0;
	uint32_t i, got = 0;

	(void)state;
	begin(COUNT);
	assert_int_equal(pthread_create(&t[THREADS], NULL, trim, &trims), 0);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, take_and_give, (void *)(uintptr_t)(i + 1)), 0);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	xr_store_relaxed(&ended, 1);
	pthread_join(t[THREADS], NULL);
	print_message("%llu trims, %u refusals\n", (unsigned long long)trims, refusals);
	/* none is lost */
	assert_int_equal(c.used, 0);
	while (xr_chunk_get(&c) < COUNT)
		got++;
	assert_int_equal(got, COUNT);
	free(c.cell);
}

/* A reference is shared while there is one; memory of a link that ended says that there is none. */
static void references(void **state)
{
	struct xr_shm_link *l = xr_shm_link_memory(100000), *other;
	uint32_t i;

	(void)state;
	assert_non_null(l);
	l->map_len = 100000;
	assert_false(xr_shm_link_try_ref(l));
	xr_store_relaxed(&l->nflows, 1);
	assert_true(xr_shm_link_try_ref(l));
	assert_int_equal(l->nflows, 2);
	xr_fetch_or(&l->nflows, XR_LINK_HELD);
	assert_false(xr_shm_link_try_ref(l));
	xr_fetch_and(&l->nflows, ~XR_LINK_HELD);
	assert_true(xr_shm_link_try_ref(l));
	((uint8_t *)l)[99999] = 1;
	xr_shm_link_memory_put(l);
	assert_false(xr_shm_link_try_ref(l));
	/* of another size it is another one's */
	other = xr_shm_link_memory(200000);
	assert_non_null(other);
	assert_ptr_not_equal(other, l);
	other->map_len = 200000;
	assert_ptr_equal(xr_shm_link_memory(100000), l);
	for (i = sizeof(*l); i < 100000; i++)
		assert_int_equal(((uint8_t *)l)[i], 0);
	assert_int_equal(l->nflows, 0);
	l->map_len = 100000;
	xr_shm_link_memory_put(l);
	xr_shm_link_memory_put(other);
}

static void *comes_and_goes(void *arg)
{
	struct xr_shm_link *l;

	while (!xr_load_relaxed(&ended)) {
		l = xr_shm_link_memory(8192);
		if (l) {
			l->map_len = 8192;
			xr_shm_link_memory_put(l);
		}
	}
	return arg;
}

/* A child has no use for what a thread of its parent was at when it was forked, and waits for nobody there. */
static void forked_meanwhile(void **state)
{
	struct xr_shm_link *l;
	pthread_t thread;
	int i, status;
	pid_t pid;

	(void)state;
	xr_store_relaxed(&ended, 0);
	assert_int_equal(pthread_create(&thread, NULL, comes_and_goes, NULL), 0);
	for (i = 0; i < 1000; i++) {
		pid = child_fork();
		if (!pid) {
			alarm(10);
			l = xr_shm_link_memory(8192);
			if (!l)
				_exit(1);
			l->map_len = 8192;
			xr_shm_link_memory_put(l);
			_exit(0);
		}
		assert_true(pid > 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	xr_store_relaxed(&ended, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_order),
		cmocka_unit_test(few_are_used),
		cmocka_unit_test(trimmed),
		cmocka_unit_test(by_many_threads),
		cmocka_unit_test(references),
		cmocka_unit_test(forked_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
