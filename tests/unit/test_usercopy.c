/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies that may fault: the bytes of memcpy(), not one beside them, and -EFAULT wherever the
 * program's side ends too early, whichever end of it.  A fault on our own side is no answer.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/usercopy.h"

#define PAGE	4096u
#define ROOM	(8 * PAGE)
#define MAX	700u
#define BESIDE	0xa5

/* A page that faults, ROOM that does not, a page that faults. */
static uint8_t *user, *own;
static sigjmp_buf back;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	if (!xr_usercopy_fixup(context, (uintptr_t)info->si_addr, info->si_code == SI_KERNEL))
		siglongjmp(back, 1);
}

static uint8_t *area(void)
{
	uint8_t *p = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_int_equal(mprotect(p + PAGE, ROOM, PROT_READ | PROT_WRITE), 0);
	return p + PAGE;
}

static int setup(void **state)
{
	(void)state;
	user = area();
	own = area();
	return 0;
}

/* In each test: cmocka has handlers of its own before it. */
static void guard(void **state)
{
	struct sigaction a = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	(void)state;
	assert_int_equal(sigaction(SIGSEGV, &a, NULL), 0);
}

static void fill(uint8_t *p, int seed)
{
	size_t i;

	for (i = 0; i < ROOM; i++)
		p[i] = (uint8_t)(i * 31 + i / 256 + (size_t)seed);
}

static void copies(int (*copy)(void *, const void *, size_t), uint8_t *dst, uint8_t *src, size_t n)
{
	memset(dst - 64, BESIDE, n + 128);
	assert_int_equal(copy(dst, src, n), 0);
	assert_memory_equal(dst, src, n);
	for (size_t i = 1; i <= 64; i++)
		if (dst[-(ptrdiff_t)i] != BESIDE || dst[n + i - 1] != BESIDE)
			fail_msg("a byte beside %zu was written", n);
}

static int to(void *d, const void *s, size_t n)
{
	return xr_copy_to_user(d, s, n);
}

static int from(void *d, const void *s, size_t n)
{
	return xr_copy_from_user(d, s, n);
}

static void every_length(void **state)
{
	static const size_t large[] = { 2047, 2048, 4095, 4096, 4097, 16384, 20000 };
	size_t n, i;

	guard(state);
	fill(own, 1);
	for (n = 0; n < MAX; n++) {
		copies(to, user + 100 + n % 17, own + n % 13, n);
		copies(from, user + 100 + n % 19, own + n % 11, n);
	}
	for (n = 0; n < sizeof(large) / sizeof(large[0]); n++)
		for (i = 0; i < 70; i += 7) {
			copies(to, user + 100 + i, own, large[n]);
			copies(from, user + 100, own + i, large[n]);
		}
}

/* `past` bytes of n lie behind the end, or before the beginning, of the program's side. */
static void every_edge(void **state)
{
	size_t n, past;

	guard(state);
	fill(own, 3);
	for (n = 1; n < MAX; n++)
		for (past = 1; past <= n; past += n > 150 ? 13 : 1) {
			uint8_t *end = user + ROOM - n + past, *begin = user - past;

			assert_int_equal(xr_copy_to_user(end, own, n), -EFAULT);
			assert_int_equal(xr_copy_to_user(begin, own, n), -EFAULT);
			assert_int_equal(xr_copy_from_user(own, end, n), -EFAULT);
			assert_int_equal(xr_copy_from_user(own, begin, n), -EFAULT);
		}
	/* exactly up to both edges there is no fault */
	for (n = 0; n < MAX; n++) {
		assert_int_equal(xr_copy_to_user(user + ROOM - n, own, n), 0);
		assert_int_equal(xr_copy_to_user(user, own, n), 0);
		assert_int_equal(xr_copy_from_user(own, user + ROOM - n, n), 0);
	}
	assert_int_equal(xr_copy_to_user(user + ROOM - 10000, own, 20000), -EFAULT);
	assert_int_equal(xr_copy_from_user(own, user + ROOM - 10000, 20000), -EFAULT);
	assert_int_equal(xr_copy_from_user(own, user, ROOM), 0);
}

static void no_address(void **state)
{
	static const uintptr_t bad[] = { 0, 8, (uintptr_t)1 << 47, (uintptr_t)1 << 62, (uintptr_t)-4096,
					 (uintptr_t)-20 };
	size_t i;

	guard(state);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(xr_copy_to_user((void *)bad[i], own, 20), -EFAULT);
		assert_int_equal(xr_copy_from_user(own, (void *)bad[i], 300), -EFAULT);
		assert_int_equal(xr_copy_from_user(own, (void *)bad[i], 0), 0);
	}
}

/* What is ours is not taken for the program's: the handler is told that it is somebody's fault. */
static void own_side(void **state)
{
	volatile int faults = 0;

	guard(state);
	if (sigsetjmp(back, 1))
		faults++;
	else
		xr_copy_to_user(user, own + ROOM, 64);
	if (sigsetjmp(back, 1))
		faults++;
	else
		xr_copy_from_user(own + ROOM - 10, user, 600);
	assert_int_equal(faults, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_length),
		cmocka_unit_test(every_edge),
		cmocka_unit_test(no_address),
		cmocka_unit_test(own_side),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
