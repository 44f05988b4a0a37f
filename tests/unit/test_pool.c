/* SPDX-License-Identifier: BSD-2-Clause */
/* The pool over a device that counts what it hands out, and can refuse. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/pool.h"

static uint32_t regions;
static uint64_t bytes, most;
static int refuse;

static int fake_alloc(struct xr_pd *pd, size_t len, uint32_t access, struct xr_mr **mr)
{
	struct xr_mr *m;

	assert_int_equal(access, XR_ACCESS_LOCAL_WRITE);	/* no peer has access by the region */
	if (refuse)
		return -ENOMEM;
	m = calloc(1, sizeof(*m));
	m->pd = pd;
	m->len = len;
	m->addr = aligned_alloc(4096, len);
	m->lkey = ++regions;
	bytes += len;
	if (bytes > most)
		most = bytes;
	*mr = m;
	return 0;
}

static int fake_dereg(struct xr_mr *m)
{
	bytes -= m->len;
	regions--;
	free(m->addr);
	free(m);
	return 0;
}

static const struct xr_fabric_ops fake = { .mr_alloc = fake_alloc, .mr_dereg = fake_dereg };
static struct xr_pd pd;
static struct xr_pool pool;

static int start(void **state)
{
	(void)state;
	refuse = 0;
	most = 0;
	return xr_pool_init(&pool, &fake, &pd, 4 * XR_POOL_ARENA);
}

static int stop(void **state)
{
	(void)state;
	return xr_pool_destroy(&pool) || regions || bytes;
}

static void get(size_t len, struct xr_buf *b)
{
	assert_int_equal(xr_pool_get(&pool, len, b), 0);
	assert_true(b->size >= len);
	assert_int_equal((uintptr_t)b->addr % XR_POOL_ALIGN, 0);
	assert_true(b->addr >= (uint8_t *)b->mr->addr);
	assert_true(b->addr + b->size <= (uint8_t *)b->mr->addr + b->mr->len);
}

static void put(struct xr_buf *b)
{
	assert_int_equal(xr_pool_put(&pool, b), 0);
	assert_null(b->addr);
}

static void sizes_and_alignment(void **state)
{
	static const size_t size[] = { 1, 63, 256, 257, 1024, 4128, 4224, 4225, 65568, 1048576, 1048577,
				       XR_POOL_ARENA, XR_POOL_ARENA + 1, 2 * XR_POOL_ARENA + 5 };
	struct xr_buf b;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
		get(size[i], &b);
		memset(b.addr, 0x5a, b.size);
		put(&b);
	}
	assert_int_equal(xr_pool_get(&pool, 0, &b), -EINVAL);
}

/* No two buffers that are out share a byte, in whatever order they come and go. */
static void buffers_are_apart(void **state)
{
	static const size_t size[] = { 100, 1000, 4128, 16000, 65568, 262144, 1000000 };
	struct xr_buf b[200];
	uint8_t mark[200];
	uint32_t i, k, n = 0, tag = 0;
	unsigned int seed = 5;

	(void)state;
	for (i = 0; i < 20000; i++) {
		if (n < 200 && rand_r(&seed) % 2) {
			if (xr_pool_get(&pool, size[(unsigned int)rand_r(&seed) % 7], &b[n]))
				continue;
			mark[n] = (uint8_t)++tag;
			b[n].addr[0] = b[n].addr[b[n].size / 2] = b[n].addr[b[n].size - 1] = mark[n];
			n++;
		} else if (n) {
			k = (uint32_t)rand_r(&seed) % n;
			assert_int_equal(b[k].addr[0], mark[k]);
			assert_int_equal(b[k].addr[b[k].size / 2], mark[k]);
			assert_int_equal(b[k].addr[b[k].size - 1], mark[k]);
			put(&b[k]);
			b[k] = b[--n];
			mark[k] = mark[n];
		}
	}
	while (n)
		put(&b[--n]);
	assert_true(most <= 4 * XR_POOL_ARENA);
}

static void exhaustion_and_return(void **state)
{
	static struct xr_buf b[4 * 4096];
	struct xr_buf one;
	uint32_t n = 0;

	(void)state;
	while (n < 4 * 4096 && !xr_pool_get(&pool, 1024, &b[n]))
		n++;
	assert_int_equal(n, 4 * XR_POOL_ARENA / 1024);
	assert_int_equal(xr_pool_get(&pool, 1024, &one), -ENOBUFS);
	assert_int_equal(xr_pool_get(&pool, 200000, &one), -ENOBUFS);
	assert_int_equal(xr_pool_get(&pool, 5000000, &one), -ENOBUFS);
	assert_int_equal(xr_pool_destroy(&pool), -EBUSY);
	put(&b[--n]);
	get(1024, &b[n++]);
	while (n)
		put(&b[--n]);
	/* empty arenas serve another class, and a request larger than any of them */
	get(200000, &one);
	put(&one);
	get(3 * XR_POOL_ARENA, &one);
	assert_true(most <= 4 * XR_POOL_ARENA);
	put(&one);
}

static void budget(void **state)
{
	struct xr_pool p;
	struct xr_buf b;

	(void)state;
	assert_int_equal(xr_pool_init(&p, &fake, &pd, XR_POOL_ARENA - 1), -EINVAL);
	assert_int_equal(xr_pool_get(&pool, 4 * XR_POOL_ARENA + 1, &b), -EMSGSIZE);
	assert_int_equal(xr_pool_get(&pool, SIZE_MAX, &b), -EMSGSIZE);
	assert_int_equal(pool.used, 0);
	refuse = 1;
	assert_int_equal(xr_pool_get(&pool, 100, &b), -ENOMEM);
	assert_int_equal(pool.used, 0);
	refuse = 0;
	get(100, &b);
	assert_int_equal(pool.used, XR_POOL_ARENA);
	put(&b);
}

static void freed_twice(void **state)
{
	struct xr_buf a, b, again, wrong;

	(void)state;
	get(100, &a);
	get(100, &b);
	again = a;
	put(&a);
	assert_int_equal(xr_pool_put(&pool, &again), -EINVAL);
	assert_int_equal(xr_pool_put(&pool, &a), -EINVAL);	/* cleared by the first */
	wrong = b;
	wrong.index = 100000;
	assert_int_equal(xr_pool_put(&pool, &wrong), -EINVAL);
	wrong = b;
	wrong.addr++;
	assert_int_equal(xr_pool_put(&pool, &wrong), -EINVAL);
	assert_int_equal(pool.bufs, 1);
	put(&b);
	get(XR_POOL_ARENA + 1, &a);
	again = a;
	put(&a);
	assert_int_equal(xr_pool_put(&pool, &again), -EINVAL);	/* its arena is gone */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(sizes_and_alignment, start, stop),
		cmocka_unit_test_setup_teardown(buffers_are_apart, start, stop),
		cmocka_unit_test_setup_teardown(exhaustion_and_return, start, stop),
		cmocka_unit_test_setup_teardown(budget, start, stop),
		cmocka_unit_test_setup_teardown(freed_twice, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
