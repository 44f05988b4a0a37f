/* SPDX-License-Identifier: BSD-2-Clause */
/* The operator's hand: connections go back to TCP, and may leave it again. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/tune.h"
#include "stat.h"

/* Where a request stands, over all processes. */
struct tally {
	unsigned int processes, flows, waiting, held, refused, backing_off;
	double again; /* seconds until the last of those backing off may leave TCP */
	struct asked {
		uid_t uid;
		char file[sizeof(((struct xr_segment *)0)->file)];
	} *asked;
	size_t n_asked;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int put(int fd, off_t at, uint32_t v)
{
	return pwrite(fd, &v, sizeof(v), at) == sizeof(v) ? 0 : -EIO;
}

/* The word of each open slot with that descriptor; how many there were, or -errno. */
static int put_flows(int fd, const struct xr_stats_header *h, int want, uint32_t hold)
{
	struct xr_stats_flow f;
	int n = 0;

	for (uint32_t i = 0; i < h->flows_used && i < h->max_flows; i++) {
		off_t at = XR_STATS_FLOWS_OFF + (off_t)i * (off_t)sizeof(f);

		if (pread(fd, &f, sizeof(f), at) != sizeof(f))
			break;
		if (f.ident.state == XR_STATE_FREE || f.ident.fd != want)
			continue;
		if (put(fd, at + (off_t)offsetof(struct xr_stats_flow, hold), hold))
			return -EIO;
		n++;
	}
	return n;
}

/* The name of the device into the list of those that are held, or out of it.  0 or -errno. */
static int put_device(int fd, const struct xr_stats_header *h, const char *name, bool hold)
{
	char want[XR_STATS_DEVICE] = "", is[XR_STATS_DEVICE];
	int room = -1;

	snprintf(want, sizeof(want), "%s", name);
	for (int i = 0; i < XR_STATS_HOLDS; i++) {
		off_t at = (off_t)(offsetof(struct xr_stats_header, hold_device) + (size_t)i * sizeof(is));

		memcpy(is, (const char *)h->hold_device[i], sizeof(is));
		if (!memcmp(is, want, sizeof(is))) {
			memset(is, 0, sizeof(is));
			return hold || pwrite(fd, is, sizeof(is), at) == sizeof(is) ? 0 : -EIO;
		}
		if (!*is)
			room = i;
	}
	if (!hold)
		return 0;
	if (room < 0)
		return -ENOSPC;
	return pwrite(fd, want, sizeof(want), (off_t)(offsetof(struct xr_stats_header, hold_device) +
						      (size_t)room * sizeof(want))) == sizeof(want) ? 0 : -EIO;
}

/* Writes the wish, changes the number that hooks compare, rings the bell. */
static int ask(const char *path, const struct xr_stat_options *opt)
{
	struct xr_stats_header h;
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), r;

	if (fd < 0)
		return -errno;
	r = xr_tune_head(fd, &h);
	if (!r && opt->fd >= 0) {
		r = put_flows(fd, &h, opt->fd, opt->retreat);
		r = r > 0 ? 0 : r ? r : -ENOENT;
	} else if (!r && opt->device) {
		r = put_device(fd, &h, opt->device, opt->retreat);
	} else if (!r && (opt->retreat || opt->back)) {
		r = put(fd, offsetof(struct xr_stats_header, hold), opt->retreat);
	}
	for (uint32_t i = 0; !r && i < XR_STATS_TUNES; i++)
		if (opt->tune[i])
			r = xr_tune_put(fd, i, opt->tune[i] - 1);
	if (!r)
		r = xr_tune_tell(fd, path, h.control);
	close(fd);
	return r;
}

static const char *cause(int err)
{
	return err == -ENOENT ? "no connection with that descriptor" :
	       err == -EPROTONOSUPPORT ? "is of another version of xrdma" :
	       err == -ENOSPC ? "too many devices are held already" :
	       err == -EBADMSG ? "is no segment of statistics" : strerror(-err);
}

static bool was_asked(const struct tally *t, const struct xr_segment *seg)
{
	for (size_t i = 0; i < t->n_asked; i++)
		if (t->asked[i].uid == seg->uid && !strcmp(t->asked[i].file, seg->file))
			return true;
	return false;
}

/* Each process once: whom an earlier look has not met may be a child of those that were asked then.  0 or -ENOMEM. */
static int ask_all(const struct xr_stat_options *opt, const struct xr_stat_set *set,
		   struct tally *t)
{
	for (size_t i = 0; i < set->n; i++) {
		const struct xr_segment *seg = &set->seg[i];
		struct asked *more;
		char path[512];
		int r;

		/* programs that have published nothing have no connections to move */
		if (seg->life != XR_SEGMENT_LIVE || !seg->file[0] || was_asked(t, seg))
			continue;
		more = realloc(t->asked, (t->n_asked + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		t->asked = more;
		more[t->n_asked].uid = seg->uid;
		snprintf(more[t->n_asked++].file, sizeof(more->file), "%s", seg->file);
		snprintf(path, sizeof(path), "%s/xrdma-%u/%s", opt->base, (unsigned int)seg->uid,
			 seg->file);
		r = ask(path, opt);
		/* it has ended meanwhile */
		if (r == -ENOENT && access(path, F_OK))
			continue;
		if (r) {
			fprintf(stderr, "xr-stat: process %d: %s\n", (int)seg->pid, cause(r));
			t->refused++;
			continue;
		}
		t->processes++;
	}
	return 0;
}

static void look(const struct xr_stat_options *opt, const struct xr_stat_set *set, struct tally *t)
{
	double again;

	t->flows = 0;
	t->waiting = 0;
	t->held = 0;
	t->backing_off = 0;
	t->again = 0;
	for (size_t i = 0; i < set->n; i++)
		for (uint32_t j = 0; was_asked(t, &set->seg[i]) && j < set->seg[i].n_flows; j++) {
			const struct xr_segment_flow *f = &set->seg[i].flow[j];

			if ((opt->fd >= 0 && f->id.fd != opt->fd) ||
			    (opt->device && strcmp(opt->device, xr_segment_device(f))) ||
			    f->id.state == XR_STATE_LISTEN)
				continue;
			t->flows++;
			t->waiting += xr_segment_on_fabric(f);
			t->held += f->held;
			if (xr_segment_again(f, &again) && again >= 0.05) {
				t->backing_off++;
				t->again = again > t->again ? again : t->again;
			}
		}
}

static void say_return(const struct tally *t)
{
	unsigned int n = t->flows - t->held;

	printf("%u connection%s of %u process%s may leave TCP", n, n == 1 ? "" : "s", t->processes,
	       t->processes == 1 ? "" : "es");
	if (t->backing_off)
		printf(", %u of them in %s%.1f s", t->backing_off, t->backing_off == 1 ? "" : "up to ", t->again);
	if (t->held)
		printf(", %u %s still held by another --retreat", t->held, t->held == 1 ? "is" : "are");
	printf("\n");
}

/* Returns the exit status. */
int xr_stat_control(const struct xr_stat_options *opt)
{
	const struct timespec pause = { 0, 2000000 };
	uint64_t end = now_ns() + (uint64_t)(opt->wait * 1e9);
	struct xr_stat_set set;
	struct tally t = { 0 };
	size_t before;
	int err;

	do {
		before = t.n_asked;
		err = xr_stat_collect(opt, &set);
		if (err)
			goto trouble;
		err = ask_all(opt, &set, &t);
		look(opt, &set, &t);
		xr_stat_release(&set);
		if (err)
			goto trouble;
	} while (t.n_asked != before);
	while (opt->retreat && t.waiting && now_ns() < end) {
		nanosleep(&pause, NULL);
		err = xr_stat_collect(opt, &set);
		if (err)
			goto trouble;
		look(opt, &set, &t);
		xr_stat_release(&set);
	}
	free(t.asked);
	if (!t.processes && !t.refused) {
		if (xr_stat_foreign(opt->pid))
			return 1;
		fprintf(stderr, "xr-stat: no such process under xrdma in %s\n", opt->base);
		return 1;
	}
	/* what went wrong was said, and nothing was done */
	if (!t.processes)
		return 1;
	if (opt->tunes)
		printf("set in %u process%s\n", t.processes, t.processes == 1 ? "" : "es");
	if (opt->tunes && !opt->retreat && !opt->back)
		return t.refused ? 1 : 0;
	if (!opt->retreat)
		say_return(&t);
	else if (t.waiting)
		printf("%u of %u connections not on TCP yet: a program computes or has bytes "
		       "to read, or a peer does not read\n", t.waiting, t.flows);
	else
		printf("%u connection%s of %u process%s on TCP\n", t.flows, t.flows == 1 ? "" : "s",
		       t.processes, t.processes == 1 ? "" : "es");
	return t.refused || (opt->retreat && t.waiting) ? 1 : 0;

trouble:
	free(t.asked);
	fprintf(stderr, "xr-stat: %s: %s\n", opt->base, strerror(-err));
	return 2;
}
