/* SPDX-License-Identifier: BSD-2-Clause */
/* The handshake that makes the link of two processes, while other threads wait for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/mem.h"
#include "preload/upgrade.h"

#define SLOTS	16u

static struct xr_shm_meta meta[SLOTS];
static struct xr_flow flow;
static struct xr_flow_priv priv;
static struct xr_upgrade *u = &xr_up_table[0];
static struct xr_shm_arena peer;
static int ours, theirs, sock;
static uint64_t taken;		/* by who found the link first */

void __real_xr_links_add(struct xr_shm_link *l);
void __wrap_xr_links_add(struct xr_shm_link *l);

/* Another thread runs at once, and takes a direction for a flow of its own. */
void __wrap_xr_links_add(struct xr_shm_link *l)
{
	__real_xr_links_add(l);
	taken = xr_shm_link_dir_get(l);
}

static int begin(void **state)
{
	int s[2];

	(void)state;
	xr_cfg.max_memory = 64 << 20;
	xr_cfg.flow_window = 1 << 20;
	xr_cfg.rendezvous_timeout = 1000000000;
	xr_slab.slots = SLOTS;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	ours = s[0];
	theirs = s[1];
	sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(sock >= 0);
	assert_int_equal(xr_shm_arena_create(&peer, 8 << 20, SLOTS), 0);
	memset(&flow, 0, sizeof(flow));
	flow.meta = meta;
	flow.priv = &priv;
	memset(u, 0, sizeof(*u));
	u->f = &flow;
	u->state = XR_UP_CALLED;
	u->conn = ours;
	u->lfd = u->diag = u->arena.fd = -1;
	u->nonce = 1;
	u->call.nonce = 2;
	memset(u->call.uuid, 3, 16);
	taken = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	if (u->link) {
		xr_store_release(&u->link->dead, 1);
		xr_link_unref(u->link);
	}
	memset(u, 0, sizeof(*u));
	xr_shm_arena_destroy(&peer);
	close(theirs);
	close(sock);
	return 0;
}

/* The caller's part: takes the ANSWER, says SETUP.  What the ANSWER named. */
static uint64_t set_up(void)
{
	struct xr_up_msg m;
	int fds[2], n = 2, i;

	assert_int_equal(xr_unix_recv(theirs, &m, sizeof(m), fds, &n), sizeof(m));
	assert_int_equal(m.type, XR_UP_ANSWER);
	assert_int_equal(n, 2);
	for (i = 0; i < n; i++)
		close(fds[i]);
	m.type = XR_UP_SETUP;
	m.nonce = 2;
	m.echo = 1;
	memset(m.uuid, 3, 16);
	assert_int_equal(xr_unix_send(theirs, &m, sizeof(m), &peer.fd, 1), sizeof(m));
	return m.dir_off;
}

static void the_direction_that_was_named_is_nobody_elses(void **state)
{
	uint64_t named;

	(void)state;
	assert_int_equal(xr_up_host_step(u, sock), 0);
	assert_int_equal(u->state, XR_UP_ANSWERED);
	named = set_up();
	assert_int_equal(named, flow.dir_off);
	assert_int_equal(xr_up_host_step(u, sock), 0);
	assert_int_equal(u->state, XR_UP_EXCHANGED);
	assert_int_not_equal(taken, 0);
	assert_int_not_equal(taken, named);
}

static void a_budget_that_is_used_up_meanwhile(void **state)
{
	(void)state;
	assert_int_equal(xr_up_host_step(u, sock), 0);
	set_up();
	xr_shm_budget(1);
	assert_int_equal(xr_up_host_step(u, sock), -ENOMEM);
	assert_null(u->link);
	assert_null(flow.link);
	/* what it named went with the link: nothing is left to be marked */
	assert_int_equal(u->own_dir, 0);
	assert_int_equal(taken, 0);
	xr_shm_budget(64 << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_direction_that_was_named_is_nobody_elses, begin, end),
		cmocka_unit_test_setup_teardown(a_budget_that_is_used_up_meanwhile, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
