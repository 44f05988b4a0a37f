/* SPDX-License-Identifier: BSD-2-Clause */
/* One process of a pair: takes its turns. */
#include "actor.h"
#include "stats.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct actor a;
_Thread_local volatile int got_sigpipe, got_sigusr;

long raw(long nr, long p1, long p2, long p3, long p4, long p5)
{
	register long r10 __asm__("r10") = p4;
	register long r8 __asm__("r8") = p5;
	register long r9 __asm__("r9") = 0;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(p1), "S"(p2), "d"(p3), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

int raw_poll(int fd, int events)
{
	struct pollfd p = { .fd = fd, .events = (short)events };
	struct timespec zero = { 0, 0 };

	return raw(SYS_ppoll, (long)&p, 1, (long)&zero, 0, 8) > 0 ? (unsigned short)p.revents : 0;
}

int raw_inq(int fd)
{
	int n = 0;

	return raw(SYS_ioctl, fd, FIONREAD, (long)&n, 0, 0) ? -1 : n;
}

uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

void yield(void)
{
	raw(SYS_sched_yield, 0, 0, 0, 0, 0);
}

int fd_of(const struct op *o)
{
	return o->arg[0] >= 0 && o->arg[0] < SLOTS ? a.fd[o->arg[0]] : -1;
}

const struct m_file *file_of(const struct op *o)
{
	const struct m_file *f;

	if (o->arg[0] < 0 || o->arg[0] >= SLOTS)
		return NULL;
	f = &a.m.slot[a.side][o->arg[0]];
	return f->conn < 0 ? NULL : f;
}

int conn_fd(int conn, int *end)
{
	int i;

	for (i = 0; i < SLOTS; i++)
		if (a.m.slot[a.side][i].conn == conn) {
			*end = a.m.slot[a.side][i].end;
			return a.fd[i];
		}
	return -1;
}

void res_extra(struct res *r, int64_t v)
{
	if (r->nextra < EXTRA)
		r->extra[r->nextra++] = v;
}

const uint8_t *pattern_at(int conn, int end, uint64_t off)
{
	return a.sh->pattern + (off + (uint64_t)(conn * 2 + end) * 170003u) % PAT_PERIOD;
}

/* The preload object's own count of what moved: flows of this process, in its statistics file. */
void count_flows(void)
{
	const struct xr_stats_segment *s = a.stats;
	const char *dir = getenv("XRDMA_STATS_DIR");
	char path[512], want[32];
	struct dirent *e;
	DIR *d;
	int fd;

	if (a.side > B || atomic_load(&a.sh->mode) == PLAIN || !dir)
		return;
	if (!s) {
		snprintf(path, sizeof(path), "%s/xrdma-%u", dir, (unsigned int)geteuid());
		snprintf(want, sizeof(want), "%d.", (int)getpid());
		d = opendir(path);
		while (d && (e = readdir(d))) {
			size_t len = strlen(want);

			if (strncmp(e->d_name, want, len) ||
			    e->d_name[len + strspn(e->d_name + len, "0123456789")])
				continue;
			snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s", e->d_name);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			s = mmap(NULL, XR_STATS_FLOWS_OFF, PROT_READ, MAP_SHARED, fd, 0);
			close(fd);
			a.stats = s == MAP_FAILED ? NULL : s;
			break;
		}
		if (d)
			closedir(d);
		s = a.stats;
	}
	if (!s)
		return;
	atomic_store(&a.sh->upgraded[a.side],
		     atomic_load_explicit(&s->counter[XR_STAT_FLOWS_UPGRADED], memory_order_relaxed));
	atomic_store(&a.sh->retreated[a.side],
		     atomic_load_explicit(&s->counter[XR_STAT_RETREATS], memory_order_relaxed));
}

/* ---- turns --------------------------------------------------------------- */

static void wait_turn(uint32_t want)
{
	static const struct timespec nap = { 0, 2000000 };
	int i;

	for (i = 0; atomic_load(&a.sh->turn) != want; i++) {
		uint32_t seen;

		if (i < 500) {
			yield();
			continue;
		}
		atomic_fetch_add(&a.sh->sleepers, 1);
		seen = atomic_load(&a.sh->turn);
		if (seen != want)
			raw(SYS_futex, (long)&a.sh->turn, FUTEX_WAIT, seen, (long)&nap, 0);
		atomic_fetch_sub(&a.sh->sleepers, 1);
	}
}

static void pass_turn(uint32_t next)
{
	atomic_store(&a.sh->turn, next);
	if (atomic_load(&a.sh->sleepers))
		raw(SYS_futex, (long)&a.sh->turn, FUTEX_WAKE, INT_MAX, 0, 0);
}

static long do_close(const struct op *o)
{
	int fd = fd_of(o);
	long r = close(fd);

	if (o->arg[0] >= 0 && o->arg[0] < SLOTS)
		a.fd[o->arg[0]] = -1;
	return r;
}

static long do_signal(const struct op *o, struct res *r);

static long operation(const struct op *o, struct res *r, const struct m_file *f)
{
	switch (o->kind) {
	case OP_CONNECT:
		return do_connect(o, r);
	case OP_ACCEPT:
		return do_accept(o, r);
	case OP_WARM:
		return do_warm(o, r);
	case OP_SEND:
		return do_send(o, r);
	case OP_RECV:
		return do_recv(o, r, f);
	case OP_BULK:
		return do_bulk(o, r);
	case OP_DUPLEX:
		return do_duplex(o, r);
	case OP_FILL:
		return do_fill(o, r);
	case OP_URGENT:
		return do_urgent(o, r);
	case OP_SHUTDOWN:
		return shutdown(fd_of(o), o->arg[1]);
	case OP_CLOSE:
		return do_close(o);
	case OP_DUP:
		return do_dup(o, r);
	case OP_NONBLOCK:
		return do_nonblock(o, r);
	case OP_SETOPT:
		return do_setopt(o, r);
	case OP_GETOPT:
		return do_getopt(o, r);
	case OP_IOCTL:
		return do_ioctl(o, r);
	case OP_NAME:
		return do_name(o, r);
	case OP_POLL:
		return do_poll(o, r);
	case OP_SELECT:
		return do_select(o, r);
	case OP_EPCREATE:
		a.nests &= ~(1u << o->arg[0]);
		a.ep[o->arg[0]] = epoll_create1(EPOLL_CLOEXEC);
		return a.ep[o->arg[0]];
	case OP_EPCTL:
		return do_epctl(o, r);
	case OP_EPNEST:
		return do_epnest(o);
	case OP_EPWAIT:
		return do_epwait(o, r);
	case OP_EPCLOSE: {
		int ep = a.ep[o->arg[0]];

		a.ep[o->arg[0]] = -1;
		return close(ep);
	}
	case OP_BAD:
		return do_bad(o, r);
	case OP_SIGNAL:
		return do_signal(o, r);
	case OP_DRAIN:
		return do_drain(r);
	case OP_END:
		return do_end(r);
	default:
		return 0;
	}
}

static void perform(const struct op *o, struct res *r, const struct m_file *f)
{
	int pipes = got_sigpipe, usrs = got_sigusr;

	errno = 0;
	r->ret = operation(o, r, f);
	r->err = r->ret < 0 ? errno : 0;
	r->sigpipe = got_sigpipe - pipes;
	r->sigusr = got_sigusr - usrs;
	atomic_thread_fence(memory_order_seq_cst);
	__atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
}

/* ---- threads ------------------------------------------------------------- */

struct job {
	struct op op;
	struct res *r;
	struct m_file f;
	int has_file;
	pthread_t thread;
	int running;
	_Atomic uint64_t begun;	/* us */
};
static struct job job[THREADS + 1];

static void *thread_main(void *arg)
{
	struct job *j = arg;

	atomic_store(&j->begun, now_us());
	atomic_store(&a.sh->tid[a.side][j->op.thread], (int)raw(SYS_gettid, 0, 0, 0, 0, 0));
	perform(&j->op, j->r, j->has_file ? &j->f : NULL);
	return NULL;
}

/* Asleep in the kernel, or through already. */
static void await_blocked(struct job *j)
{
	char path[64], text[256];
	uint64_t end = now_us() + 2000000;
	int tid, fd, asleep = 0;

	while (now_us() < end && !__atomic_load_n(&j->r->done, __ATOMIC_ACQUIRE)) {
		long n;
		char *p;

		yield();
		tid = atomic_load(&a.sh->tid[a.side][j->op.thread]);
		if (!tid)
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
		fd = (int)raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0, 0);
		if (fd < 0)
			continue;
		n = raw(SYS_read, fd, (long)text, sizeof(text) - 1, 0, 0);
		raw(SYS_close, fd, 0, 0, 0, 0);
		text[n > 0 ? n : 0] = 0;
		p = strrchr(text, ')');
		asleep = p && p[1] == ' ' && p[2] == 'S' ? asleep + 1 : 0;
		if (asleep == 4)
			return;
	}
}

static void start_job(const struct op *o, struct res *r)
{
	struct job *j = &job[o->thread];
	const struct m_file *f = file_of(o);

	j->op = *o;
	j->r = r;
	j->has_file = f != NULL;
	if (f)
		j->f = *f;
	atomic_store(&a.sh->tid[a.side][o->thread], 0);
	if (pthread_create(&j->thread, NULL, thread_main, j))
		abort();
	j->running = 1;
	await_blocked(j);
}

static long do_signal(const struct op *o, struct res *r)
{
	struct job *j = &job[o->arg[0]];
	uint32_t before = atomic_load(&a.sh->handled);
	uint64_t end = now_us() + 1000000;

	(void)r;
	/* it sleeps, having done with what came before; or has returned: then its result says so */
	await_blocked(j);
	raw(SYS_tgkill, getpid(), atomic_load(&a.sh->tid[a.side][o->arg[0]]),
	    o->arg[1] ? SIGUSR1 : SIGUSR2, 0, 0);
	while (atomic_load(&a.sh->handled) == before && now_us() < end &&
	       !__atomic_load_n(&j->r->done, __ATOMIC_ACQUIRE))
		yield();
	await_blocked(j);
	return 0;
}

/* ms that the call waits at most; 0: it has no such limit */
static int job_timeout(const struct op *o)
{
	return o->kind == OP_SELECT ? o->arg[4] : o->kind == OP_POLL || o->kind == OP_EPWAIT ? o->arg[3] : 0;
}

static void join_job(const struct op *o, struct res *r)
{
	struct job *j = &job[o->arg[0]];
	int ms = job_timeout(&j->op);

	/* what was to end the wait is done, or nothing is */
	if (j->running && ms > 0 && now_us() - atomic_load(&j->begun) > 500u * (uint64_t)ms)
		atomic_fetch_add(&a.sh->late, 1);
	if (j->running)
		pthread_join(j->thread, NULL);
	j->running = 0;
	r->done = 1;
}

/* ---- the script ---------------------------------------------------------- */

static void apply(const struct op *o)
{
	if (!model_step(&a.m, o))
		abort(); /* the conductor has let no such script through */
}

static void run_from(uint32_t i)
{
	struct shared *sh = a.sh;

	for (; i < sh->script.n; i++) {
		const struct op *o = &sh->script.op[i];
		int child = o->side >= CHILD_A && o->side < SIDES;
		struct res *r = &sh->res[i][o->side == BOTH && a.side == B];

		if (o->kind == OP_EXIT && a.side == o->side) {
			wait_turn(i);
			make_room(o);
			r->done = 1;
			if (o->arg[0])
				exit(0);
			_exit(0);
		}
		if (o->kind == OP_EXIT && a.side == o->side - CHILD_A) {
			int status = 0;

			wait_turn(i);
			waitpid(a.child, &status, 0);
			r->ret = status;
			apply(o);
			pass_turn(i + 1);
			continue;
		}
		if (o->side == BOTH ? a.side > B : a.side != o->side) {
			apply(o);
			continue;
		}
		(void)child;
		wait_turn(i);
		a.at = i;
		settle();
		make_room(o);
		if (o->side == BOTH) {
			perform(o, r, NULL);
			apply(o);
			if (atomic_fetch_add(&sh->both, 1) == 1) {
				atomic_store(&sh->both, 0);
				atomic_store(&sh->warm_round, 0);
				pass_turn(i + 1);
			}
			continue;
		}
		if (o->kind == OP_FORK) {
			pid_t pid = fork();

			if (!pid) {
				a.side += CHILD_A;
				a.stats = NULL;
				atomic_store(&sh->pid[a.side], (int)getpid());
				apply(o);
				run_from(i + 1);
				_exit(0);
			}
			a.child = pid;
			r->ret = pid > 0 ? 0 : -1;
			r->done = 1;
		} else if (o->thread) {
			start_job(o, r);
		} else if (o->kind == OP_JOIN) {
			join_job(o, r);
		} else {
			perform(o, r, file_of(o));
		}
		apply(o);
		pass_turn(i + 1);
	}
}

/* ---- life ---------------------------------------------------------------- */

static void on_pipe(int sig)
{
	(void)sig;
	got_sigpipe++;
}

static void on_usr(int sig)
{
	(void)sig;
	got_sigusr++;
	atomic_fetch_add(&a.sh->handled, 1);
}

static int listener(int family, uint16_t *port)
{
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	struct sockaddr_in6 sa = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in s4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = family == AF_INET ? sizeof(s4) : sizeof(sa);
	struct sockaddr *p = family == AF_INET ? (struct sockaddr *)&s4 : (struct sockaddr *)&sa;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, p, len) || listen(fd, 16) || getsockname(fd, p, &len)) {
		close(fd);
		return -1;
	}
	*port = ntohs(family == AF_INET ? s4.sin_port : sa.sin6_port);
	return fd;
}

static void prepare(int side, int memfd)
{
	struct sigaction act = { .sa_handler = on_pipe };
	uint8_t *p;
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	a.side = side;
	a.sh = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (a.sh == MAP_FAILED)
		_exit(81);
	a.file = fcntl(memfd, F_DUPFD_CLOEXEC, 300);
	close(memfd);
	sigaction(SIGPIPE, &act, NULL);
	act.sa_handler = on_usr;
	sigaction(SIGUSR2, &act, NULL);
	act.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &act, NULL);
	for (i = 0; i < SLOTS; i++)
		a.fd[i] = -1;
	for (i = 0; i < EPS; i++)
		a.ep[i] = -1;
	for (i = 0; i <= THREADS; i++) {
		p = mmap(NULL, PAT_MAX + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);
		mprotect(p + PAT_MAX + 4096, 4096, PROT_NONE);
		a.buf[i] = p;
		a.hole = p + PAT_MAX + 4096;
	}
	a.lfd[0] = listener(AF_INET, &a.sh->port[side][0]);
	a.lfd[1] = listener(AF_INET6, &a.sh->port[side][1]);
	if (a.lfd[0] < 0)
		_exit(82);
}

int actor_main(int side, int memfd)
{
	uint32_t seen = 0;

	prepare(side, memfd);
	atomic_store(&a.sh->pid[side], (int)getpid());
	for (;;) {
		while (atomic_load(&a.sh->go) == seen)
			raw(SYS_futex, (long)&a.sh->go, FUTEX_WAIT, seen, 0, 0);
		seen = atomic_load(&a.sh->go);
		if (atomic_load(&a.sh->quit))
			exit(0);
		model_init(&a.m);
		count_flows();
		run_from(0);
		count_flows();
		if (atomic_fetch_add(&a.sh->done, 1) == 1)
			raw(SYS_futex, (long)&a.sh->done, FUTEX_WAKE, 1, 0, 0);
	}
}
