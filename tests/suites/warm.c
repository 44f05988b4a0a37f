/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loaded in front of libxrdma_preload.so: connections that a program opens to itself are on shared
 * memory before the program gets hold of them.
 *
 * Most tests of other people's suites open a connection, send a handful of bytes and close it, often
 * from one thread; such a flow would hardly ever move.  So accept(), when the connecting end is a
 * descriptor of this process that nobody has used yet, plays ping-pong between the two, by way of
 * the hooks, until both directions have left the kernel.  The program sees a fresh connection.
 *
 * "Nobody has used it": the thread that accepts is the one that connected, or the one that connected
 * is still held back in connect() here, for at most WAIT_NS.  Anything else is left alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS	 60000000ll	/* in connect(), for the accept() of another thread */
#define FIND_NS	 5000000ll	/* in accept(), for the connect() of another thread */
#define ENDS	 1024
#define TURNS	 64
#define PORTS	 64

enum end_state { END_FREE, END_IDLE, END_HELD, END_WARMING, END_USED };

/* A connecting socket of this process.  Written under `lock`, but for state. */
struct end {
	_Atomic int state;
	int fd;
	long tid;
	struct sockaddr_storage local;
};

static struct end ends[ENDS];
static unsigned int next_end;
static uint16_t ports[PORTS];	/* this process listens there, or did */
static unsigned int next_port;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int (*next_connect)(int, const struct sockaddr *, socklen_t);
static int (*next_accept)(int, struct sockaddr *, socklen_t *);
static int (*next_accept4)(int, struct sockaddr *, socklen_t *, int);
static int (*next_listen)(int, int);

static void in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(ends, 0, sizeof(ends));
}

static void *need(const char *name)
{
	void *p = dlsym(RTLD_NEXT, name);

	if (!p)
		abort();
	return p;
}

__attribute__((constructor)) static void init(void)
{
	*(void **)&next_connect = need("connect");
	*(void **)&next_accept = need("accept");
	*(void **)&next_accept4 = need("accept4");
	*(void **)&next_listen = need("listen");
	pthread_atfork(NULL, NULL, in_child);
}

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void nap(void)
{
	struct timespec t = { 0, 200000 };

	nanosleep(&t, NULL);
}

static long self(void)
{
	return syscall(SYS_gettid);
}

static int is_alone(void)
{
	struct stat st;

	/* one entry per thread, and two of every folder's */
	return stat("/proc/self/task", &st) || st.st_nlink <= 3;
}

static uint16_t port_of(const struct sockaddr_storage *a)
{
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_port;
	return a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port : 0;
}

static int same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	return port_of(a) && port_of(a) == port_of(b) && a->ss_family == b->ss_family;
}

static int is_tcp(int fd)
{
	int proto = 0;
	socklen_t len = sizeof(proto);

	return !getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &proto, &len) && proto == IPPROTO_TCP;
}

static int is_local_port(uint16_t port)
{
	unsigned int i;

	for (i = 0; i < PORTS; i++)
		if (ports[i] == port)
			return 1;
	return 0;
}

/* What the kernel holds for the reader; the hooks' answer would count the fabric too. */
static int in_kernel(int fd)
{
	int n = -1;
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "0"((long)SYS_ioctl), "D"((long)fd), "S"((long)FIONREAD), "d"(&n)
			 : "rcx", "r11", "memory");
	return r ? -1 : n;
}

static int is_fresh(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	memset(&info, 0, sizeof(info));
	return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) && info.tcpi_state == 1 /* established */ &&
	       !info.tcpi_bytes_received && in_kernel(fd) == 0;
}

/* One byte from here to there.  1: it did not go by way of the kernel.  -1: the connection ended. */
static int ping(int from, int to)
{
	long long end = now_ns() + 5000000000ll;
	char c = 'w', got = 0;
	int kernel;
	ssize_t n;

	n = send(from, &c, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n != 1)
		return -1;
	kernel = in_kernel(to);
	while ((n = recv(to, &got, 1, MSG_DONTWAIT)) < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (now_ns() > end) {
			fprintf(stderr, "warm: a byte from descriptor %d to %d was lost\n", from, to);
			abort();
		}
		sched_yield();
	}
	if (n == 1 && got != c) {
		fprintf(stderr, "warm: a wrong byte from descriptor %d to %d\n", from, to);
		abort();
	}
	return n == 1 ? kernel == 0 : -1;
}

static void warm(int a, int b)
{
	int i, there = 0, back = 0;

	for (i = 0; i < TURNS && (there != 1 || back != 1); i++) {
		there = ping(a, b);
		back = ping(b, a);
		if (there < 0 || back < 0)
			return;
	}
}

static struct end *find(const struct sockaddr_storage *peer)
{
	unsigned int i;

	for (i = 0; i < ENDS; i++)
		if (atomic_load(&ends[i].state) != END_FREE && same(&ends[i].local, peer))
			return &ends[i];
	return NULL;
}

/* Is it still the socket that was connected? */
static int is_still(const struct end *e)
{
	struct sockaddr_storage local;
	socklen_t len = sizeof(local);

	return !getsockname(e->fd, (struct sockaddr *)&local, &len) && same(&local, &e->local);
}

static void accepted(int fd)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);
	long long end = 0;
	struct end *e;
	int held = END_HELD, idle = END_IDLE;

	if (!is_tcp(fd) || getpeername(fd, (struct sockaddr *)&peer, &len))
		return;
	for (;;) {
		pthread_mutex_lock(&lock);
		e = find(&peer);
		pthread_mutex_unlock(&lock);
		if (e || is_alone())
			break;
		if (!end)
			end = now_ns() + FIND_NS;
		else if (now_ns() > end)
			break;
		nap();
	}
	if (!e)
		return;
	if (!atomic_compare_exchange_strong(&e->state, &held, END_WARMING) &&
	    (e->tid != self() || !atomic_compare_exchange_strong(&e->state, &idle, END_WARMING)))
		return;
	if (is_still(e) && is_fresh(fd) && is_fresh(e->fd))
		warm(e->fd, fd);
	atomic_store(&e->state, END_USED);
}

static struct end *connected(int fd, int held)
{
	struct sockaddr_storage local;
	socklen_t len = sizeof(local);
	struct end *e;

	if (getsockname(fd, (struct sockaddr *)&local, &len) || !port_of(&local))
		return NULL;
	pthread_mutex_lock(&lock);
	e = find(&local);
	if (!e)
		e = &ends[next_end++ % ENDS];
	e->fd = fd;
	e->tid = self();
	e->local = local;
	atomic_store(&e->state, held ? END_HELD : END_IDLE);
	pthread_mutex_unlock(&lock);
	return e;
}

static void hold(struct end *e)
{
	long long end = now_ns() + WAIT_NS;
	int state;

	while ((state = atomic_load(&e->state)) == END_HELD || state == END_WARMING) {
		if (now_ns() > end && state == END_HELD && atomic_compare_exchange_strong(&e->state, &state, END_IDLE))
			return;
		nap();
	}
}

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	int r = next_connect(fd, addr, len), e = errno;
	struct sockaddr_storage to;
	struct end *end;
	int held;

	if ((r && e != EINPROGRESS) || !is_tcp(fd) || len > sizeof(to))
		goto out;
	memset(&to, 0, sizeof(to));
	memcpy(&to, addr, len);
	if (!is_local_port(port_of(&to)))
		goto out;
	held = !r && !is_alone();
	end = connected(fd, held);
	if (end && held)
		hold(end);
out:
	errno = e;
	return r;
}

int listen(int fd, int backlog)
{
	int r = next_listen(fd, backlog), e = errno;
	struct sockaddr_storage local;
	socklen_t len = sizeof(local);

	if (!r && !getsockname(fd, (struct sockaddr *)&local, &len) && port_of(&local) &&
	    !is_local_port(port_of(&local)))
		ports[next_port++ % PORTS] = port_of(&local);
	errno = e;
	return r;
}

static int done(int fd)
{
	int e = errno;

	if (fd >= 0)
		accepted(fd);
	errno = e;
	return fd;
}

int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	return done(next_accept(fd, addr, len));
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	return done(next_accept4(fd, addr, len, flags));
}
