/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * usage: xrforce STATS-DIR SEED MEAN-US [stop:PID]...
 *
 * An operator who cannot make up his mind: takes connections of all processes below STATS-DIR
 * to TCP and lets them go again, whole processes, what a device carries, or single connections, at random instants
 * MEAN-US apart, and stops and continues the processes PID for moments. Ends with standard input; then prints
 * how many retreats the processes count.
 *
 * usage: xrforce STATS-DIR time PID
 *
 * Takes the connections of one process to TCP and lets them go; prints the microseconds from the wish
 * until all of its connections say that they are there, and until those of all processes do.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/stats.h"

#define SEGMENTS 16

static struct target {
	struct xr_stats_segment *seg;
	size_t size;
	char path[512];
} target[SEGMENTS];
static int targets;
static uint64_t rng;

static uint64_t pick(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return n ? rng % n : 0;
}

static void rest(uint64_t us)
{
	struct timespec ts = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };

	nanosleep(&ts, NULL);
}

static void adopt(const char *path)
{
	struct target *t = &target[targets];
	struct stat st;
	int fd;

	for (int i = 0; i < targets; i++)
		if (!strcmp(target[i].path, path))
			return;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (targets == SEGMENTS || fd < 0)
		return;
	if (!fstat(fd, &st) && st.st_size > XR_STATS_FLOWS_OFF) {
		t->size = (size_t)st.st_size;
		t->seg = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (t->seg != MAP_FAILED && xr_load_acquire(&t->seg->h.magic) == XR_STATS_MAGIC) {
			snprintf(t->path, sizeof(t->path), "%s", path);
			targets++;
		}
	}
	close(fd);
}

static void find(const char *base)
{
	char dir[200], path[500];
	struct dirent *de;
	DIR *d;

	snprintf(dir, sizeof(dir), "%s/xrdma-%u", base, (unsigned int)geteuid());
	d = opendir(dir);
	while (d && (de = readdir(d))) {
		size_t len = strlen(de->d_name);

		if (de->d_name[0] == '.' || (len > 5 && !strcmp(de->d_name + len - 5, XR_STATS_BELL)))
			continue;
		snprintf(path, sizeof(path), "%s/%.250s", dir, de->d_name);
		adopt(path);
	}
	if (d)
		closedir(d);
}

static void tell(struct target *t)
{
	char bell[600];
	int fd;

	/* seq_cst: the wish is there before the number that announces it */
	xr_fetch_add(&t->seg->h.control, 1);
	snprintf(bell, sizeof(bell), "%s" XR_STATS_BELL, t->path);
	fd = open(bell, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, "", 1) < 0)
		rest(1);
	close(fd);
}

static struct xr_stats_flow *any_flow(struct target *t)
{
	uint32_t used = xr_load_relaxed(&t->seg->h.flows_used);
	char *base = (char *)t->seg + XR_STATS_FLOWS_OFF;

	return used ? (struct xr_stats_flow *)(base + pick(used) * sizeof(struct xr_stats_flow)) : NULL;
}

/* The device that carries connections within a host. */
static void hold_device(struct target *t, const char *name)
{
	uint64_t is[XR_STATS_DEVICE / 8] = { 0 };

	memcpy(is, name, strlen(name));
	/* relaxed: tell() announces it */
	for (size_t k = 0; k < XR_STATS_DEVICE / 8; k++)
		xr_store_relaxed(&t->seg->h.hold_device[0][k], is[k]);
}

static void force(uint64_t mean)
{
	struct target *t = &target[pick((uint64_t)targets)];
	struct xr_stats_flow *f = pick(2) ? any_flow(t) : NULL;
	_Atomic uint32_t *hold = f ? &f->hold : &t->seg->h.hold;

	if (!f && pick(2)) {
		hold_device(t, "shm");
		tell(t);
		if (pick(3))
			rest(pick(2 * mean));
		hold_device(t, "");
		tell(t);
		return;
	}
	xr_store_release(hold, 1);
	tell(t);
	/* often the way back is open before the retreat is over */
	if (pick(3))
		rest(pick(2 * mean));
	xr_store_release(hold, 0);
	tell(t);
}

static int on_tcp(const struct target *t)
{
	uint32_t used = xr_load_acquire(&t->seg->h.flows_used);
	char *base = (char *)t->seg + XR_STATS_FLOWS_OFF;

	for (uint32_t i = 0; i < used; i++) {
		struct xr_stats_flow *f = (struct xr_stats_flow *)(base + i * sizeof(*f));
		uint32_t seq = xr_load_acquire(&f->seq);
		int fabric = f->ident.carrier_tx || f->ident.carrier_rx;

		/* acquire: what was looked at comes before the second look at its number */
		atomic_thread_fence(memory_order_acquire);
		if (seq & 1 || seq != xr_load_relaxed(&f->seq) || fabric)
			return 0;
	}
	return 1;
}

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int time_it(const char *base, int pid)
{
	struct target *me = NULL;
	double t, own, both;

	find(base);
	for (int i = 0; i < targets; i++)
		if (target[i].seg->h.pid == pid)
			me = &target[i];
	if (!me || on_tcp(me))
		return 3;
	t = now_us();
	xr_store_release(&me->seg->h.hold, 1);
	tell(me);
	while (!on_tcp(me))
		if (now_us() - t > 5e6)
			return 4;
	own = now_us() - t;
	for (int i = 0; i < targets; i++)
		while (!on_tcp(&target[i]))
			if (now_us() - t > 5e6)
				return 4;
	both = now_us() - t;
	xr_store_release(&me->seg->h.hold, 0);
	tell(me);
	printf("{\"own_us\": %.1f, \"both_us\": %.1f}\n", own, both);
	return 0;
}

int main(int argc, char **argv)
{
	struct pollfd in = { STDIN_FILENO, POLLIN, 0 };
	uint64_t retreats = 0, upgrades = 0, mean;

	if (argc < 4)
		return 2;
	if (!strcmp(argv[2], "time"))
		return time_it(argv[1], atoi(argv[3]));
	rng = strtoull(argv[2], NULL, 0) * 2654435761u + 88172645463325252u;
	mean = strtoull(argv[3], NULL, 0);
	for (uint64_t n = 0; !poll(&in, 1, 0); n++) {
		if (n % 64 == 0 || !targets)
			find(argv[1]);
		if (targets)
			force(mean);
		rest(pick(2 * mean));
		if (argc > 4 && !pick(64)) {
			pid_t pid = atoi(strchr(argv[4 + pick((uint64_t)argc - 4)], ':') + 1);

			kill(pid, SIGSTOP);
			rest(pick(3000));
			kill(pid, SIGCONT);
		}
	}
	for (int i = 0; i < targets; i++) {
		retreats += xr_load_relaxed(&target[i].seg->counter[XR_STAT_RETREATS]);
		upgrades += xr_load_relaxed(&target[i].seg->counter[XR_STAT_FLOWS_UPGRADED]);
	}
	printf("{\"retreats\": %llu, \"upgrades\": %llu, \"processes\": %d}\n",
	       (unsigned long long)retreats, (unsigned long long)upgrades, targets);
	return 0;
}
