/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the trace records of all processes; see trace.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trace.h"

static int add(struct xr_trace_set *set, const struct xr_trace_file *f)
{
	struct xr_trace_file *more = reallocarray(set->file, set->n + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	set->file = more;
	set->file[set->n++] = *f;
	return 0;
}

static void complain(struct xr_trace_set *set, const char *dir, const char *name, const char *why)
{
	fprintf(stderr, "xr-trace: %s%s%s: %s\n", dir, *dir ? "/" : "", name, why);
	set->errors++;
}

struct find {
	const struct xr_trace_options *opt;
	struct xr_trace_set *set;
};

static int find_in(void *arg, const char *dirname, DIR *dir, uid_t uid)
{
	const struct xr_trace_options *opt = ((struct find *)arg)->opt;
	struct xr_trace_set *set = ((struct find *)arg)->set;
	bool ours = xr_segment_may_remove(uid), channels;
	struct dirent *de;
	int err = 0, fd = dirfd(dir);

	while (!err && (de = readdir(dir))) {
		struct xr_trace_file f;
		const char *why = "";
		uint64_t start;
		pid_t pid;
		int got;

		if (xr_trace_name(de->d_name, &pid, &start, &channels))
			continue;
		got = xr_trace_read(fd, de->d_name, &f, &why);
		if (got == -ENOENT || got == -EAGAIN)
			continue;
		/* what a crash left goes, unless it is asked for; of another version its name says whose it was */
		if (!opt->dead && ours && (got == -EPROTONOSUPPORT ? xr_segment_gone(pid, start) :
					   !got && f.life == XR_SEGMENT_DEAD && f.pid == pid)) {
			unlinkat(fd, de->d_name, 0);
			if (!got)
				xr_trace_file_free(&f);
			continue;
		}
		if (got || f.pid != pid) {
			complain(set, dirname, de->d_name, got ? why : "claims another process");
			if (!got)
				xr_trace_file_free(&f);
		} else if (f.life == XR_SEGMENT_DEAD && !opt->dead) {
			xr_trace_file_free(&f);
		} else {
			f.channels = channels;
			err = add(set, &f);
		}
	}
	return err;
}

/* Files that were named, of another host for one. */
static int find_files(const struct xr_trace_options *opt, struct xr_trace_set *set)
{
	int err = 0;

	for (char **p = opt->files; *p && !err; p++) {
		const char *suffix = strrchr(*p, '.');
		struct xr_trace_file f;
		const char *why = "";

		if (xr_trace_read(AT_FDCWD, *p, &f, &why)) {
			complain(set, "", *p, why);
			continue;
		}
		f.channels = suffix && !strcmp(suffix, XR_TRACE_CHANNELS);
		err = add(set, &f);
	}
	return err;
}

int xr_trace_find(const struct xr_trace_options *opt, struct xr_trace_set *set)
{
	struct timespec now;

	memset(set, 0, sizeof(*set));
	if (opt->files && *opt->files)
		return find_files(opt, set);
	clock_gettime(CLOCK_REALTIME, &now);
	set->begun = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	return xr_segment_dirs(opt->base, find_in, &(struct find){ opt, set });
}

void xr_trace_set_free(struct xr_trace_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		xr_trace_file_free(&set->file[i]);
	free(set->file);
	memset(set, 0, sizeof(*set));
}
