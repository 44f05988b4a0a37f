/* SPDX-License-Identifier: BSD-2-Clause */
/* Two processes that run scripts, and their conductor's view of them. */
#include "oracle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void child_exec(struct pair *p, int side)
{
	const char *run = getenv("ORACLE_RUN");
	char self[512], fd[16], which[16];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	cpu_set_t set;

	if (n < 0)
		_exit(83);
	self[n] = 0;
	setpgid(0, 0);
	if (p->cpu >= 0) {
		CPU_ZERO(&set);
		CPU_SET(p->cpu, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	/* the same number in both pairs: what descriptors a script gets is compared */
	if (p->memfd != 3) {
		dup2(p->memfd, 3);
		close(p->memfd);
	} else {
		fcntl(3, F_SETFD, 0);
	}
	snprintf(fd, sizeof(fd), "%d", 3);
	snprintf(which, sizeof(which), "%d", side);
	if (p->preload)
		execl(run, run, self, "--actor", which, fd, (char *)NULL);
	else
		execl(self, self, "--actor", which, fd, (char *)NULL);
	_exit(84);
}

static int died(struct pair *p)
{
	siginfo_t si;
	int i;

	for (i = 0; i < 2; i++) {
		si.si_pid = 0;
		if (!waitid(P_PID, (id_t)p->pid[i], &si, WEXITED | WNOHANG | WNOWAIT) && si.si_pid)
			return 1;
	}
	return 0;
}

static void spawn(struct pair *p)
{
	struct shared *sh = p->sh;
	uint64_t end = now_ms() + 10000;
	int i;

	atomic_store(&sh->go, 0);
	atomic_store(&sh->done, 0);
	memset((void *)sh->pid, 0, sizeof(sh->pid));
	memset((void *)sh->upgraded, 0, sizeof(sh->upgraded));
	memset((void *)sh->retreated, 0, sizeof(sh->retreated));
	for (i = 0; i < 2; i++) {
		p->pid[i] = fork();
		if (!p->pid[i])
			child_exec(p, i);
	}
	while (!atomic_load(&sh->pid[0]) || !atomic_load(&sh->pid[1])) {
		usleep(200);
		if (died(p) || now_ms() > end) {
			fprintf(stderr, "oracle: the processes of a pair do not start\n");
			exit(2);
		}
	}
}

void pair_init(struct pair *p, int preload, int cpu)
{
	size_t i;
	uint64_t s = 20260101;

	memset(p, 0, sizeof(*p));
	p->preload = preload;
	p->cpu = cpu;
	p->memfd = memfd_create("oracle", MFD_CLOEXEC);
	if (p->memfd < 0 || ftruncate(p->memfd, sizeof(struct shared)))
		exit(2);
	p->sh = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, p->memfd, 0);
	if (p->sh == MAP_FAILED)
		exit(2);
	for (i = 0; i + 8 <= PAT_PERIOD + 7; i += 8) {
		uint64_t v = rnd64(&s);

		memcpy(p->sh->pattern + i, &v, 8);
	}
	for (i = PAT_PERIOD; i < PAT_SIZE; i++)
		p->sh->pattern[i] = p->sh->pattern[i - PAT_PERIOD];
	spawn(p);
}

/* The processes and whatever they forked: groups of their own. */
static void reap(struct pair *p)
{
	int i;

	for (i = 0; i < 2; i++)
		if (p->pid[i] > 0) {
			kill(-p->pid[i], SIGKILL);
			waitpid(p->pid[i], NULL, 0);
			p->pid[i] = 0;
		}
}

static uint64_t both(const _Atomic uint64_t *n)
{
	return atomic_load(&n[0]) + atomic_load(&n[1]);
}

static int run_once(struct pair *p, const struct script *s, enum mode mode, unsigned int patience_ms)
{
	static const struct timespec slice = { 0, 20000000 };
	struct shared *sh = p->sh;
	uint64_t progress = now_ms();
	uint32_t turn = 0;
	int why;

	if (s != &sh->script)
		memcpy(&sh->script, s, offsetof(struct script, op) + s->n * sizeof(s->op[0]));
	memset(sh->res, 0, s->n * sizeof(sh->res[0]));
	memset((void *)sh->sent, 0, sizeof(sh->sent));
	memset((void *)sh->rcvd, 0, sizeof(sh->rcvd));
	atomic_store(&sh->turn, 0);
	atomic_store(&sh->both, 0);
	atomic_store(&sh->warm_round, 0);
	atomic_store(&sh->late, 0);
	p->upgraded = both(sh->upgraded);
	p->retreated = both(sh->retreated);
	atomic_store(&sh->mode, (uint32_t)mode);
	atomic_store(&sh->done, 0);
	atomic_fetch_add(&sh->go, 1);
	syscall(SYS_futex, &sh->go, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	for (;;) {
		uint32_t done = atomic_load(&sh->done), now;

		if (done == 2)
			break;
		syscall(SYS_futex, &sh->done, FUTEX_WAIT, done, &slice, NULL, 0);
		now = atomic_load(&sh->turn);
		if (now != turn) {
			turn = now;
			progress = now_ms();
		}
		if (atomic_load(&sh->done) == 2)
			break;
		why = died(p) ? PAIR_DIED : now_ms() - progress > patience_ms ? PAIR_HANG : PAIR_OK;
		if (why == PAIR_OK)
			continue;
		p->stuck = now;
		reap(p);
		spawn(p);
		p->respawned++;
		return why;
	}
	return PAIR_OK;
}

/* Whether a wait is over in time depends on the machine alone then, on one run as on the other. */
int pair_run(struct pair *p, const struct script *s, enum mode mode, unsigned int patience_ms)
{
	int tries = 0, r;

	do
		r = run_once(p, s, mode, patience_ms);
	while (!r && atomic_load(&p->sh->late) && ++tries < 20);
	return r;
}

void pair_stop(struct pair *p)
{
	atomic_store(&p->sh->quit, 1);
	atomic_fetch_add(&p->sh->go, 1);
	syscall(SYS_futex, &p->sh->go, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	usleep(20000);
	reap(p);
	munmap(p->sh, sizeof(struct shared));
	close(p->memfd);
}
