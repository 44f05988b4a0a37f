/* SPDX-License-Identifier: BSD-2-Clause */
/* The writer of the statistics of channels; see chanstats.h. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "chanstats.h"
#include "config.h"
#include "log.h"
#include "mem.h"
#include "segfile.h"
#include "xrdma.h"

#define PAGE	4096u

/*
 * The process that is at it, 0: none.  A child that was forked meanwhile takes it from its parent, of which it has no
 * thread that would ever let go.
 */
static _Atomic int chanstats_lock;

/* Under the lock: */
static struct xr_chanstats_seg *chanstats_seg;
static struct xr_segfile chanstats_file;	/* pid: whose chanstats_seg is, which a child does not write to */
static uint32_t chanstats_refs;
static size_t chanstats_size;
static int chanstats_failed;			/* said already */

/* Any thread of a context, which holds a reference: */
static _Atomic uint64_t chanstats_committed;	/* bytes */
static _Atomic uint32_t chanstats_next;		/* no slot below is free, or hardly any */

static void chanstats_enter(void)
{
	int me = getpid(), is = 0;

	/* acquire, with the release of whoever was here before */
	while (!xr_cas(&chanstats_lock, &is, me)) {
		if (is == me) {
			sched_yield();
			is = 0;
		}
		/* otherwise it is a parent's: the next exchange takes it from there */
	}
	if (chanstats_seg && chanstats_file.pid != me) {
		/* the parent's; contexts of the parent that this child destroys may still count there */
		chanstats_seg = NULL;
		chanstats_refs = 0;
		chanstats_failed = 0;
	}
}

static void chanstats_leave(void)
{
	/* release: with the exchange of the next one */
	xr_store_release(&chanstats_lock, 0);
}

const char *xr_chanstats_path(void)
{
	return chanstats_seg && chanstats_file.pid == getpid() ? chanstats_file.path : "";
}

static struct xr_chanstats_slot *chanstats_slot(struct xr_chanstats_seg *seg, uint32_t i)
{
	return (struct xr_chanstats_slot *)((char *)seg + XR_CHANSTATS_OFF) + i;
}

static void ignore(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg, (void)where, (void)line, (void)msg;
}

static void chanstats_header(struct xr_chanstats_seg *h, const char *exe, uint32_t slots)
{
	struct stat st;

	h->version = XR_CHANSTATS_VERSION;
	h->header_size = sizeof(*h);
	h->slot_size = sizeof(struct xr_chanstats_slot);
	h->slots_off = XR_CHANSTATS_OFF;
	h->n_counters = XR_CHAN_COUNT;
	h->n_proc = XR_CHANPROC_COUNT;
	h->max_slots = slots;
	h->pid = chanstats_file.pid;
	h->uid = chanstats_file.uid;
	h->pid_ns = xr_segfile_pid_namespace();
	h->start_time = chanstats_file.start;
	h->opened_ns = xr_now_ns();
	if (!stat("/proc/self/exe", &st)) {
		h->exe_dev = st.st_dev;
		h->exe_ino = st.st_ino;
	}
	xr_snprintf(h->program, sizeof(h->program), "%s", xr_segfile_program(exe));
	xr_snprintf(h->xrdma_version, sizeof(h->xrdma_version), "%s", xrdma_version());
	/* release: whoever sees the magic number sees the header */
	xr_store_release(&h->magic, XR_CHANSTATS_MAGIC);
}

static int chanstats_make(const char *dir)
{
	const size_t slot = sizeof(struct xr_chanstats_slot), first = XR_CHANSTATS_OFF + PAGE;
	char exe[512];
	void *map = NULL;
	size_t size;
	ssize_t n;
	int r = xr_segfile_create(&chanstats_file, dir, XR_CHANSTATS_SUFFIX);

	if (r)
		return r;
	r = xr_segfile_size(XR_CHANSTATS_OFF + XR_CHANSTATS_SLOTS * slot, first, &size);
	if (!r)
		r = xr_segfile_map(chanstats_file.fd, size, first, &map);
	close(chanstats_file.fd);
	if (r) {
		xr_segfile_remove(chanstats_file.path);
		return r;
	}
	n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	chanstats_size = size;
	xr_store_relaxed(&chanstats_committed, first);
	xr_store_relaxed(&chanstats_next, 0);
	chanstats_header(map, exe, (uint32_t)((size - XR_CHANSTATS_OFF) / slot));
	chanstats_seg = map;
	return 0;
}

int xr_chanstats_open(void)
{
	struct xr_config *cfg;
	int r = 0;

	chanstats_enter();
	if (!chanstats_seg) {
		cfg = malloc(sizeof(*cfg));
		r = cfg ? 0 : -ENOMEM;
		if (cfg) {
			xr_config_load(cfg, NULL, environ, ignore, NULL);
			r = cfg->stats ? chanstats_make(cfg->stats_dir) : -ECANCELED;
			if (r && r != -ECANCELED && !chanstats_failed)
				xr_info("no statistics of channels below %s: error %d", cfg->stats_dir, -r);
		}
		free(cfg);
		if (r && r != -ECANCELED) {
			chanstats_failed = 1;
			xr_stats_add(XR_STAT_STATS_ERRORS, 1);
		}
	}
	if (!r)
		chanstats_refs++;
	chanstats_leave();
	return r;
}

void xr_chanstats_close(void)
{
	chanstats_enter();
	/* 0: a child that lets go of what its parent made */
	if (chanstats_refs && !--chanstats_refs) {
		/* release: all that was counted before */
		xr_store_release(&chanstats_seg->exited, 1);
		xr_segfile_remove(chanstats_file.path);
		xr_unmap(chanstats_seg, chanstats_size);
		chanstats_seg = NULL;
	}
	chanstats_leave();
}

/* A program need not destroy its contexts before it returns from main(); what crashed is found by its file. */
static __attribute__((destructor)) void chanstats_exit(void)
{
	chanstats_enter();
	if (chanstats_seg) {
		xr_store_release(&chanstats_seg->exited, 1);
		xr_segfile_remove(chanstats_file.path);
	}
	chanstats_leave();
}

/* 1: the slot lies in pages that there are. */
static int chanstats_has(uint32_t i)
{
	/* acquire: pairs with the exchange below, its pages are there */
	uint64_t have = xr_load_acquire(&chanstats_committed), step;

	while (XR_CHANSTATS_OFF + (uint64_t)(i + 1) * sizeof(struct xr_chanstats_slot) > have) {
		step = have < 64 * PAGE ? have : 64 * PAGE;
		if (step > chanstats_size - have)
			step = chanstats_size - have;
		if (!step || xr_segfile_commit((char *)chanstats_seg + have, step))
			return 0;
		/* another thread may have been there first, from the same place */
		if (xr_cas(&chanstats_committed, &have, have + step))
			have += step;
	}
	return 1;
}

static struct xr_chanstats_slot *chanstats_find(uint32_t from, uint32_t *at)
{
	uint32_t i, none;

	for (i = from; i < chanstats_seg->max_slots && chanstats_has(i); i++) {
		struct xr_chanstats_slot *s = chanstats_slot(chanstats_seg, i);

		none = 0;
		/* the exchange pairs with the release of whoever gave it back: it is clear */
		if (!xr_load_relaxed(&s->taken) && xr_cas(&s->taken, &none, 1)) {
			*at = i;
			return s;
		}
	}
	return NULL;
}

struct xr_chanstats_slot *xr_chanstats_take(const struct xr_chanstats_ident *ident)
{
	uint32_t from = xr_load_relaxed(&chanstats_next), i = 0, used;
	struct xr_chanstats_slot *s = chanstats_find(from, &i);

	/* relaxed: where to look first, and wrong at times */
	if (!s && from)
		s = chanstats_find(0, &i);
	if (!s) {
		xr_chanstats_add(XR_CHANPROC_UNLISTED, 1);
		return NULL;
	}
	xr_store_relaxed(&chanstats_next, i + 1);
	used = xr_load_relaxed(&chanstats_seg->used);
	while (used < i + 1 && !xr_cas(&chanstats_seg->used, &used, i + 1))
		;
	/* all of an exchange: odd must be visible before any field of the change */
	xr_fetch_add(&s->seq, 1);
	s->ident = *ident;
	xr_store_relaxed(&s->state, XR_CHANSTATS_OPENING);
	/* release: all fields before the number that says that they are there */
	xr_store_release(&s->seq, xr_load_relaxed(&s->seq) + 1);
	return s;
}

void xr_chanstats_give(struct xr_chanstats_slot *s, _Atomic uint64_t *v)
{
	static const uint8_t gauge[XR_CHAN_COUNT] = {
#define GAUGE(SYM, name, gauge, text) [XR_CHAN_##SYM] = gauge,
		XR_CHANSTATS_TABLE(GAUGE)
#undef GAUGE
	};
	uint32_t i;

	if (s) {
		/* odd before any field of the change; a reader that met the slot before finds the totals moved */
		xr_fetch_add(&s->seq, 1);
		xr_store_relaxed(&s->state, XR_CHANSTATS_FREE);
		xr_store_relaxed(&s->qpn, 0);
		xr_store_relaxed(&s->peer_qpn, 0);
	}
	for (i = 0; i < XR_CHAN_COUNT; i++) {
		uint64_t n = xr_load_relaxed(&v[i]);

		if (n && !gauge[i])
			atomic_fetch_add_explicit(&chanstats_seg->total[i], n, memory_order_relaxed);
		xr_store_relaxed(&v[i], 0);
	}
	xr_chanstats_add(XR_CHANPROC_CLOSED, 1);
	if (!s)
		return;
	/* release: all fields before the number that says that they are there */
	xr_store_release(&s->seq, xr_load_relaxed(&s->seq) + 1);
	i = (uint32_t)(s - chanstats_slot(chanstats_seg, 0));
	if (i < xr_load_relaxed(&chanstats_next))
		xr_store_relaxed(&chanstats_next, i);
	/* release: whoever takes it finds it clear */
	xr_store_release(&s->taken, 0);
}

void xr_chanstats_add(enum xr_chanproc id, uint64_t n)
{
	/* relaxed: a count orders nothing */
	atomic_fetch_add_explicit(&chanstats_seg->proc[id], n, memory_order_relaxed);
}
