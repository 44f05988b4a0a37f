/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds and reads the statistics of all processes; see stat.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/config.h"
#include "core/trace.h"
#include "stat.h"

/* A file that is still empty after this long has lost its maker. */
#define NEWBORN_SECONDS 60

void xr_stat_complain(const char *dir, const char *name, const char *why)
{
	fprintf(stderr, "xr-stat: %s/%s %s\n", dir, name, why);
}

static bool selected(const struct xr_stat_options *opt, const struct xr_segment *seg)
{
	return (!opt->pid || opt->pid == seg->pid) &&
	       (!opt->program || xr_glob(opt->program, seg->program));
}

/* Lets go of what was not asked for. */
static void select_asked(const struct xr_stat_options *opt, struct xr_stat_set *set)
{
	size_t kept = 0;

	for (size_t i = 0; i < set->n; i++) {
		if (selected(opt, &set->seg[i]))
			set->seg[kept++] = set->seg[i];
		else
			xr_segment_free(&set->seg[i]);
	}
	set->n = kept;
}

/* Nobody made this into a segment for a minute, and its process is gone. */
static bool abandoned(int dirfd, const char *name, pid_t pid, uint64_t start)
{
	struct stat st;

	return !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) &&
	       time(NULL) - st.st_mtime > NEWBORN_SECONDS && xr_segment_gone(pid, start);
}

/* What lies beside the segment of a process that died: the FIFO, and with it its traces. */
static void sweep_beside(const struct xr_stat_options *opt, int dirfd, const char *name, uid_t uid)
{
	static const char *const suffixes[] = {XR_STATS_BELL, XR_TRACE_FLOWS, XR_TRACE_CHANNELS};
	const char *dot = strchr(name, '.');
	char segment[64];
	uint64_t start;
	pid_t pid;

	dot = dot ? strchr(dot + 1, '.') : NULL;
	if (!dot || (size_t)(dot - name) >= sizeof(segment))
		return;
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		if (strcmp(dot, suffixes[i]) || (i && opt->dead))
			continue;
		snprintf(segment, sizeof(segment), "%.*s", (int)(dot - name), name);
		if (xr_segment_may_remove(uid) && !xr_segment_name(segment, &pid, &start) &&
		    xr_segment_gone(pid, start))
			unlinkat(dirfd, name, 0);
	}
}

static int add(struct xr_stat_set *set, const struct xr_segment *seg)
{
	struct xr_segment *more = reallocarray(set->seg, set->n + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	set->seg = more;
	set->seg[set->n++] = *seg;
	return 0;
}

struct collect {
	const struct xr_stat_options *opt;
	struct xr_stat_set *set;
};

static int collect_dir(void *arg, const char *dirname, DIR *dir, uid_t uid)
{
	const struct xr_stat_options *opt = ((struct collect *)arg)->opt;
	struct xr_stat_set *set = ((struct collect *)arg)->set;
	struct dirent *de;
	int err = 0, fd = dirfd(dir);

	while (!err && (de = readdir(dir))) {
		struct xr_segment seg;
		const char *why = "";
		uint64_t start;
		pid_t pid;
		int got;

		sweep_beside(opt, fd, de->d_name, uid);
		err = xr_stat_add_channels(opt, set, dirname, fd, de->d_name, uid);
		if (err) {
			err = err > 0 ? 0 : err;
			continue;
		}
		if (xr_segment_name(de->d_name, &pid, &start))
			continue;
		got = xr_segment_read(fd, de->d_name, &seg, &why);
		if (got == -ENOENT) /* gone since readdir */
			continue;
		if (got == -EAGAIN && !abandoned(fd, de->d_name, pid, start))
			continue;
		if (got == -EAGAIN) {
			if (xr_segment_may_remove(uid))
				unlinkat(fd, de->d_name, 0);
			continue;
		}
		/* what a crash left before an upgrade says by its name whose it was */
		if (got == -EPROTONOSUPPORT && xr_segment_gone(pid, start)) {
			if (xr_segment_may_remove(uid))
				unlinkat(fd, de->d_name, 0);
			continue;
		}
		if (got) {
			/* of others only the far ends of connections are of interest */
			if (!opt->pid || opt->pid == pid) {
				xr_stat_complain(dirname, de->d_name, why);
				set->errors++;
			}
			continue;
		}
		/* only what is surely dead, surely ours, and was not asked for */
		if (seg.life == XR_SEGMENT_DEAD && !opt->dead && xr_segment_may_remove(uid) && seg.pid == pid)
			unlinkat(fd, de->d_name, 0);
		if (seg.pid != pid) {
			xr_stat_complain(dirname, de->d_name, "claims another process");
			set->errors++;
			xr_segment_free(&seg);
		} else if (seg.life == XR_SEGMENT_DEAD && !opt->dead) {
			xr_segment_free(&seg);
		} else {
			snprintf(seg.file, sizeof(seg.file), "%.47s", de->d_name);
			err = add(set, &seg);
		}
	}
	return err;
}

static int by_pid(const void *a, const void *b)
{
	const struct xr_segment *x = a, *y = b;

	return x->pid != y->pid ? (x->pid > y->pid) - (x->pid < y->pid)
				: (x->opened_ns > y->opened_ns) - (x->opened_ns < y->opened_ns);
}

int xr_stat_collect(const struct xr_stat_options *opt, struct xr_stat_set *set)
{
	int err;

	memset(set, 0, sizeof(*set));
	err = xr_segment_dirs(opt->base, collect_dir, &(struct collect){ opt, set });
	if (!err)
		err = xr_stat_live(set);
	select_asked(opt, set);
	xr_stat_select_channels(opt, set);
	if (!err && opt->listeners)
		err = xr_stat_add_listeners(opt, set);
	if (set->n)
		qsort(set->seg, set->n, sizeof(*set->seg), by_pid);
	return err;
}

bool xr_stat_foreign(pid_t pid)
{
	if (!pid || !xr_segment_foreign(pid))
		return false;
	fprintf(stderr, "xr-stat: process %d is another user's: only that user and root see its connections\n",
		(int)pid);
	return true;
}

void xr_stat_release(struct xr_stat_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		xr_segment_free(&set->seg[i]);
	free(set->seg);
	xr_stat_release_channels(set);
	memset(set, 0, sizeof(*set));
}

bool xr_stat_wanted(const struct xr_stat_options *opt, const struct xr_segment_flow *f)
{
	if (f->id.state == XR_STATE_LISTEN)
		return opt->listeners;
	if (opt->listeners && !opt->all)
		return false;
	return opt->all || xr_segment_on_fabric(f) || f->id.state == XR_STATE_RETREATING;
}
