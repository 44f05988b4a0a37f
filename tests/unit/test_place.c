/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where registered memory lies.  What is decided is tested on a machine of two nodes that is described by a directory;
 * what the kernel is asked for, by what it says of the memory afterwards.  Huge pages are put aside for the time of
 * the test where that is allowed, and elsewhere those tests are skipped: all others run always.
 */
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/channel.h"
#include "core/context.h"
#include "core/place.h"
#include "pair_rig.h"

#define ARENA	(2ul * XR_PLACE_HUGE)
#define PATIENCE 20	/* others on this machine may take the huge pages that were put aside for us */

/* --- a machine ------------------------------------------------------------------------------- */

static char tree[64];

static void tree_file(const char *name, const char *text)
{
	char path[256], *slash;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", tree, name);
	for (slash = path + strlen(tree) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
		*slash = '\0';
		mkdir(path, 0700);
	}
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* Two nodes with these processors; mlx5_0 is on the second one, mlx5_1 does not say. */
static void tree_nodes(const char *first, const char *second)
{
	tree_file("devices/system/node/online", "0-1\n");
	tree_file("devices/system/node/has_memory", "0-1\n");
	tree_file("devices/system/node/node0/cpulist", first);
	tree_file("devices/system/node/node1/cpulist", second);
	tree_file("class/infiniband/mlx5_0/device/numa_node", "1\n");
	tree_file("class/infiniband/mlx5_1/device/numa_node", "-1\n");
}

static int tree_start(void **state)
{
	(void)state;
	strcpy(tree, "/tmp/xrdma-place.XXXXXX");
	if (!mkdtemp(tree))
		return -1;
	xr_place_sys = tree;
	return 0;
}

static int tree_stop(void **state)
{
	char rm[128];

	(void)state;
	xr_place_sys = "/sys";
	snprintf(rm, sizeof(rm), "rm -r %s", tree);
	return system(rm);
}

/* --- what is decided --------------------------------------------------------------------------- */

static void nodes_of_processors(void **state)
{
	(void)state;
	tree_nodes("0-3,8\n", "4-7,9-11\n");
	assert_true(xr_place_several());
	assert_int_equal(xr_place_of_cpu(0), 0);
	assert_int_equal(xr_place_of_cpu(3), 0);
	assert_int_equal(xr_place_of_cpu(4), 1);
	assert_int_equal(xr_place_of_cpu(8), 0);
	assert_int_equal(xr_place_of_cpu(11), 1);
	assert_int_equal(xr_place_of_cpu(12), XR_PLACE_ANY);
	/* a node that is not on line is not looked at */
	tree_file("devices/system/node/online", "1\n");
	assert_int_equal(xr_place_of_cpu(0), XR_PLACE_ANY);
	assert_int_equal(xr_place_of_cpu(4), 1);
}

/* Nodes without memory do not count, nor does a machine that does not describe itself. */
static void several_nodes(void **state)
{
	static const struct { const char *list; int several; } c[] = {
		{ "0\n", 0 }, { "0-1\n", 1 }, { "1\n", 0 }, { "0,2\n", 1 }, { "\n", 0 }, { "x\n", 0 }, { "3-1\n", 0 },
		{ "0-\n", 0 }, { "99999999999999999999\n", 0 },
	};
	size_t i;

	(void)state;
	assert_false(xr_place_several());
	for (i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		tree_file("devices/system/node/has_memory", c[i].list);
		assert_int_equal(xr_place_several(), c[i].several);
	}
}

/* The device's node before the thread's; where there is but one, nobody is asked. */
static void whose_node(void **state)
{
	struct xr_place p = { .huge = 1 };

	(void)state;
	tree_nodes("0-1023\n", "\n");
	assert_int_equal(xr_place_of_device("mlx5_0"), 1);
	assert_int_equal(xr_place_of_device("mlx5_1"), XR_PLACE_ANY);
	assert_int_equal(xr_place_of_device("mlx5_2"), XR_PLACE_ANY);
	xr_place_for(&p, "mlx5_0");
	assert_int_equal(xr_place_node(&p), 1);
	xr_place_for(&p, "mlx5_1");
	assert_int_equal(xr_place_node(&p), 0);
	xr_place_for(&p, NULL);
	assert_int_equal(xr_place_node(&p), 0);
	/* the thread's is that of now, whatever it was */
	tree_nodes("\n", "0-1023\n");
	assert_int_equal(xr_place_node(&p), 1);
	assert_int_equal(p.huge, 1);
	tree_file("devices/system/node/has_memory", "0\n");
	xr_place_for(&p, "mlx5_0");
	assert_int_equal(xr_place_node(&p), XR_PLACE_ANY);
}

static void a_pinned_thread(void **state)
{
	struct xr_place p = { .huge = 0 };
	cpu_set_t was, one;
	int i;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(was), &was), 0);
	tree_nodes("0\n", "1-1023\n");
	xr_place_for(&p, NULL);
	for (i = 0; i < 8; i++) {
		if (!CPU_ISSET(i, &was))
			continue;
		CPU_ZERO(&one);
		CPU_SET(i, &one);
		assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
		assert_int_equal(xr_place_node(&p), i > 0);
	}
	sched_setaffinity(0, sizeof(was), &was);
}

/* --- what the kernel makes of it --------------------------------------------------------------- */

/* The policy of the memory at p; its node, when it is one that is preferred. */
static int policy(void *p, int *node)
{
	unsigned long mask[16] = { 0 };
	int mode;

	assert_int_equal(syscall(SYS_get_mempolicy, &mode, mask, sizeof(mask) * 8, p, MPOL_F_ADDR), 0);
	*node = mask[0] ? __builtin_ctzl(mask[0]) : -1;
	return mode;
}

static void memory_on_a_node(void **state)
{
	struct xr_place here = { .nodes = 1, .device = 0 }, gone = { .nodes = 1, .device = 1000 }, any = { 0 };
	struct xr_placed got;
	size_t len = ARENA - 5;
	uint8_t *m;
	int node;
	void *p;

	(void)state;
	assert_int_equal(xr_place_memory(&len, 0, &here, &got, &p), 0);
	assert_int_equal(len, ARENA);
	assert_true(got.ours && !got.refused && !got.huge && !got.missed);
	assert_int_equal(policy(p, &node), MPOL_PREFERRED);
	assert_int_equal(node, 0);
	/* what is not there is nowhere */
	assert_int_equal(xr_place_far(p, len, 0), 0);
	assert_int_equal(xr_place_far(p, len, 1), 0);
	m = p;
	m[len - 1] = 1;
	assert_int_equal(xr_place_far(p, XR_PLACE_HUGE, 1), 0);
	memset(p, 1, len);
	assert_int_equal(xr_place_far(p, len, 0), 0);
	assert_int_equal(xr_place_far(p, len, 1), 1);
	munmap(p, len);
	/* a node that is none of this machine: it is said, and there is memory all the same */
	assert_int_equal(xr_place_memory(&len, 0, &gone, &got, &p), 0);
	assert_true(got.refused);
	assert_int_equal(policy(p, &node), MPOL_DEFAULT);
	memset(p, 1, len);
	munmap(p, len);
	/* one node alone: the kernel is not asked */
	assert_int_equal(xr_place_memory(&len, 0, &any, &got, &p), 0);
	assert_false(got.refused);
	assert_int_equal(policy(p, &node), MPOL_DEFAULT);
	munmap(p, len);
}

static void message(struct xrdma_channel *ch, const struct xrdma_msg *m, void *arg)
{
	(void)ch;
	(void)m;
	++*(int *)arg;
}

/* A context that sends and receives, and says where its memory lies. */
static void use(struct xrdma_context **a, struct xrdma_context **b, uint64_t huge)
{
	static const struct xrdma_callbacks cb = { .message = message };
	static uint8_t data[100000];
	struct xrdma_msg m = { .data = data, .len = sizeof(data) };
	struct xrdma_channel *ch;
	char name[XR_ADDR_NAME];
	static int came;

	came = 0;
	assert_int_equal(pair_start(a, b, "shm", &cb, &came, &came, name), 0);
	assert_int_equal(xrdma_set_option(*a, XRDMA_OPT_HUGE_PAGES, huge), 0);
	assert_int_equal(xrdma_set_option(*b, XRDMA_OPT_HUGE_PAGES, huge), 0);
	assert_int_equal(xrdma_connect(*b, name, &ch), 0);
	pair_wait(*a, *b, ch->state == XR_CH_OPEN);
	assert_int_equal(xrdma_send_msg(ch, &m), 0);
	pair_wait(*a, *b, came == 1);
}

static struct xrdma_context_stats stats_of(struct xrdma_context *ctx)
{
	struct xrdma_context_stats s;

	ctx->placed_at = 0;
	xr_context_tell(ctx);
	xrdma_get_context_stats(ctx, &s);
	return s;
}

/* All memory of this machine lies on node 0, whatever the tree says of it. */
static void contexts_tell(void **state)
{
	static uint8_t brought[1 << 20];
	struct xrdma_context *a = NULL, *b = NULL;
	struct xrdma_mem *mem, *other;
	struct xrdma_context_stats s;
	uint64_t far;
	void *at;

	(void)state;
	tree_nodes("0-1023\n", "\n");
	use(&a, &b, 0);
	s = stats_of(a);
	assert_true(s.pool_bytes >= ARENA);
	assert_int_equal(s.pool_far, 0);
	assert_int_equal(s.node_refused, 0);
	assert_int_equal(s.huge_missed, 0);
	/* the thread moves; what no page is there of lies nowhere */
	tree_nodes("\n", "0-1023\n");
	s = stats_of(a);
	assert_true(s.pool_far >= ARENA && s.pool_far <= s.pool_bytes);
	/* what the program was given counts, too, while it has it; what it brought does not */
	far = s.pool_far;
	assert_int_equal(xrdma_alloc_mem(a, ARENA, &mem, &at), 0);
	assert_int_equal(xrdma_reg_mem(a, brought, sizeof(brought), &other), 0);
	memset(at, 1, ARENA);
	memset(brought, 1, sizeof(brought));
	assert_int_equal(stats_of(a).pool_far, far + ARENA);
	assert_int_equal(xrdma_dereg_mem(mem), 0);
	xrdma_get_context_stats(a, &s);
	assert_int_equal(s.pool_far, far);
	assert_int_equal(xrdma_dereg_mem(other), 0);
	assert_int_equal(stats_of(a).pool_far, far);
	/* not more often than once in a second */
	tree_nodes("0-1023\n", "\n");
	xr_context_tell(a);
	xrdma_get_context_stats(a, &s);
	assert_true(s.pool_far >= ARENA);
	s = stats_of(a);
	assert_int_equal(s.pool_far, 0);
	pair_stop(a, b);
	/* one that was there from the start: node 1 does not take anything */
	tree_nodes("\n", "0-1023\n");
	use(&a, &b, 0);
	s = stats_of(b);
	assert_true(s.pool_far >= ARENA && s.pool_far <= s.pool_bytes);
	assert_true(s.node_refused >= 1);
	pair_stop(a, b);
	/* one node: nobody looks */
	tree_file("devices/system/node/has_memory", "0\n");
	use(&a, &b, 0);
	s = stats_of(b);
	assert_int_equal(s.pool_far, 0);
	assert_int_equal(s.node_refused, 0);
	pair_stop(a, b);
}

/* --- huge pages -------------------------------------------------------------------------------- */

static long aside_get(void)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", "r");
	long n = -1;

	if (f && fscanf(f, "%ld", &n) != 1)
		n = -1;
	if (f)
		fclose(f);
	return n;
}

static int aside_set(long n)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", "w");

	if (!f)
		return -1;
	fprintf(f, "%ld\n", n);
	return fclose(f) || aside_get() < n ? -1 : 0;
}

static void sigbus_is_the_end(uint8_t *p, size_t len)
{
	size_t i;

	for (i = 0; i < len; i += 4096)
		p[i] = (uint8_t)(i >> 12);
}

/* KernelPageSize of the mapping at p, in KiB. */
static long page_kib(const void *p)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long from, to;
	long kib = 0;
	char line[512];
	int in = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			in = from <= (uintptr_t)p && (uintptr_t)p < to;
		else if (in)
			sscanf(line, "KernelPageSize: %ld", &kib);
	}
	fclose(f);
	return kib;
}

static void none_left(void **state)
{
	struct xr_place want = { .huge = 1, .device = XR_PLACE_ANY };
	struct xr_placed got;
	void *had[256], *p;
	size_t len = ARENA;
	int n = 0;

	(void)state;
	/* what is aside on this machine is used up first */
	do {
		assert_true(n < 256);
		assert_int_equal(xr_place_memory(&len, 0, &want, &got, &had[n]), 0);
	} while (had[n++] && got.huge);
	p = had[n - 1];
	assert_true(got.missed && got.ours);
	assert_int_equal(page_kib(p), 4);
	sigbus_is_the_end(p, len);
	while (n--)
		munmap(had[n], len);
	/* not of a length that they have: none is wished for */
	len = ARENA + 4096;
	assert_int_equal(xr_place_memory(&len, 0, &want, &got, &p), 0);
	assert_true(!got.huge && !got.missed);
	munmap(p, len);
}

static void huge_memory(void)
{
	struct xr_place want = { .huge = 1, .nodes = 1, .device = 0 };
	struct xr_placed got = { 0 };
	long was = aside_get();
	size_t len = ARENA;
	int i, status, node;
	uint8_t *p = NULL;
	pid_t pid;

	for (i = 1; i <= PATIENCE && !got.huge; i++) {
		if (p)
			munmap(p, len);
		assert_int_equal(aside_set(was + 8 * i), 0);
		assert_int_equal(xr_place_memory(&len, 0, &want, &got, (void **)&p), 0);
	}
	assert_true(got.huge && !got.missed && !got.refused);
	assert_int_equal(page_kib(p), 2048);
	assert_int_equal(policy(p, &node), MPOL_PREFERRED);
	/* all of it is there before it is touched, so nobody can take it away */
	aside_set(0);
	for (i = 0; i < (int)(len / 4096); i++)
		assert_int_equal(p[(size_t)i * 4096], 0);
	sigbus_is_the_end(p, len);
	assert_int_equal(xr_place_far(p, len, 0), 0);
	assert_int_equal(xr_place_far(p, len, 1), 1);
	pid = fork();
	if (!pid) {
		/* a child reads what is written after the fork, and has no copy */
		while (!xr_load_acquire((_Atomic uint32_t *)(p + 64)))
			usleep(1000);
		p[4096] = 77;
		_exit(p[len - 1] == 99 ? 0 : 1);
	}
	p[len - 1] = 99;
	/* release: the byte above before the word that says so */
	xr_store_release((_Atomic uint32_t *)(p + 64), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(p[4096], 77);
	munmap(p, len);
}

static void huge_contexts(void)
{
	struct xrdma_context *a = NULL, *b = NULL;
	long was = aside_get();
	struct xrdma_context_stats s, t;
	int i;

	for (i = 1; i <= PATIENCE; i++) {
		assert_int_equal(aside_set(was + 16 * i), 0);
		use(&a, &b, 1);
		s = stats_of(a);
		t = stats_of(b);
		pair_stop(a, b);
		if (!s.huge_missed && !t.huge_missed)
			break;
	}
	assert_int_equal(s.pool_huge, s.pool_bytes);
	assert_int_equal(t.pool_huge, t.pool_bytes);
	assert_true(s.pool_huge >= ARENA);
	/* the option */
	use(&a, &b, 0);
	s = stats_of(a);
	assert_int_equal(s.pool_huge, 0);
	assert_int_equal(s.huge_missed, 0);
	pair_stop(a, b);
}

/* Whatever becomes of it, the machine has afterwards what it had. */
static void with_pages_aside(void (*test)(void))
{
	long was = aside_get();
	int status;
	pid_t pid;

	if (was < 0 || aside_set(was + 2)) {
		aside_set(was < 0 ? 0 : was);
		print_message("no huge pages can be put aside here\n");
		skip();
	}
	fflush(stdout);
	pid = fork();
	if (!pid) {
		test();
		fflush(stdout);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	aside_set(was);
	assert_int_equal(status, 0);
}

static void huge_pages(void **state)
{
	(void)state;
	with_pages_aside(huge_memory);
}

static void huge_pages_of_contexts(void **state)
{
	(void)state;
	with_pages_aside(huge_contexts);
}

/* Without any a context works, and says so. */
static void no_huge_pages_of_contexts(void **state)
{
	struct xrdma_context *a = NULL, *b = NULL;
	struct xrdma_context_stats s;

	(void)state;
	use(&a, &b, 1);
	s = stats_of(a);
	assert_true(s.pool_huge + s.huge_missed * XR_POOL_ARENA >= s.pool_bytes);
	pair_stop(a, b);
}

#define on_a_tree(test) cmocka_unit_test_setup_teardown(test, tree_start, tree_stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_a_tree(nodes_of_processors),
		on_a_tree(several_nodes),
		on_a_tree(whose_node),
		on_a_tree(a_pinned_thread),
		cmocka_unit_test(memory_on_a_node),
		on_a_tree(contexts_tell),
		cmocka_unit_test(none_left),
		cmocka_unit_test(no_huge_pages_of_contexts),
		cmocka_unit_test(huge_pages),
		cmocka_unit_test(huge_pages_of_contexts),
	};

	return rig_run(tests);
}
