/* SPDX-License-Identifier: BSD-2-Clause */
/* A flow is sent back to TCP on somebody else's wish, while another thread of the program closes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/single_threaded.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/mem.h"
#include "preload/hook.h"

#define OTHERS	8

static struct {
	struct xr_flow *flow;
	int fd, port;
	int others[OTHERS];	/* sockets that the program makes as soon as it has closed fd */
	int calls, held, same, reused;
} t;

int __real_xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns);
int __wrap_xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns);

static int port_of(int fd)
{
	struct sockaddr_in a = { .sin_port = 0 };
	socklen_t len = sizeof(a);

	return getsockname(fd, (struct sockaddr *)&a, &len) ? -1 : ntohs(a.sin_port);
}

static void *close_and_go_on(void *unused)
{
	int i;

	close(t.fd);
	for (i = 0; i < OTHERS; i++)
		t.others[i] = socket(AF_INET, SOCK_STREAM, 0);
	return unused;
}

/* The other thread runs in the gap between the look at the table and the locks of the flow. */
int __wrap_xr_flow_retreat(struct xr_flow *f, int fd, enum xr_reason why, uint64_t wait_ns)
{
	pthread_t other;
	int i;

	if (f != t.flow || t.calls++)
		return __real_xr_flow_retreat(f, fd, why, wait_ns);
	pthread_create(&other, NULL, close_and_go_on, NULL);
	pthread_join(other, NULL);
	t.held = xr_load_relaxed(&f->priv->fds) != 0;
	t.same = port_of(fd) == t.port;
	for (i = 0; i < OTHERS; i++)
		t.reused |= xr_fd_flow(t.others[i]) == f;
	return __real_xr_flow_retreat(f, fd, why, wait_ns);
}

static void *nothing(void *unused)
{
	return unused;
}

static void closed_meanwhile(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int l = socket(AF_INET, SOCK_STREAM, 0), peer, i;
	socklen_t len = sizeof(a);
	pthread_t second;
	char c;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip();		/* its calls are not ours: it has hooks of its own */
#endif
	/* a process that had one thread only is not asked to hold anything */
	pthread_create(&second, NULL, nothing, NULL);
	pthread_join(second, NULL);
	assert_false(__libc_single_threaded);
	t.fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(l, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(connect(t.fd, (struct sockaddr *)&a, len), 0);
	peer = accept(l, NULL, NULL);
	assert_true(peer >= 0);
	t.flow = xr_fd_flow(t.fd);
	assert_non_null(t.flow);
	t.port = port_of(t.fd);
	xr_fds_retreat(t.flow, XR_REASON_OPERATOR);
	assert_int_equal(t.calls, 1);
	assert_true(t.held);
	assert_true(t.same);
	assert_false(t.reused);
	/* the connection ended with the hold, and the flow is free for the next one */
	assert_int_equal(recv(peer, &c, 1, 0), 0);
	assert_int_equal(xr_load_relaxed(&t.flow->priv->fds), 0);
	for (i = 0; i < OTHERS; i++)
		close(t.others[i]);
	close(peer);
	close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(closed_meanwhile) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
