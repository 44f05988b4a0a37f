/* SPDX-License-Identifier: BSD-2-Clause */
/* The writer of trace records; see trace.h. */
#include "autoconf.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#ifdef HAVE_SYS_SDT_H
#include <sys/sdt.h>
#else
#define DTRACE_PROBE4(provider, name, a, b, c, d) ((void)0)
#endif

#include "log.h"
#include "mem.h"
#include "segfile.h"
#include "trace.h"
#include "xrdma.h"

XR_FORK_DATA _Atomic int xr_trace_state;
static struct xr_trace_header *trace_seg;
static struct xr_segfile trace_file;
static uint64_t trace_key[2];

const char *xr_trace_path(void)
{
	return xr_load_acquire(&xr_trace_state) == XR_TRACE_OPEN ? trace_file.path : "";
}

static struct xr_trace_rec *trace_rec(uint64_t i)
{
	return (struct xr_trace_rec *)((char *)trace_seg + XR_TRACE_OFF) + (i & (trace_seg->records - 1));
}

static uint64_t inode(const char *path)
{
	struct stat st;

	return xr_sys4(SYS_newfstatat, AT_FDCWD, path, &st, 0) ? 0 : st.st_ino;
}

/* A UUID in text: pairs of hexadecimal digits, with dashes. */
static void boot_id(uint8_t id[16])
{
	char buf[64];
	int n = 0, fd = (int)xr_sys4(SYS_openat, AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC, 0);
	long len = fd < 0 ? 0 : xr_sys3(SYS_read, fd, buf, sizeof(buf));

	if (fd >= 0)
		xr_sys1(SYS_close, fd);
	for (long i = 0; i < len && n < 32; i++) {
		int c = buf[i], v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

		if (v < 0)
			continue;
		id[n / 2] = (uint8_t)(id[n / 2] << 4 | v);
		n++;
	}
	if (n < 32)
		memset(id, 0, 16);
}

static void fill_header(struct xr_trace_header *h, const char *program, uint32_t records)
{
	struct timespec real;

	h->version = XR_TRACE_VERSION;
	h->header_size = sizeof(*h);
	h->record_size = sizeof(struct xr_trace_rec);
	h->record_off = XR_TRACE_OFF;
	h->records = records;
	h->pid = trace_file.pid;
	h->uid = trace_file.uid;
	h->pid_ns = xr_segfile_pid_namespace();
	h->time_ns = inode("/proc/self/ns/time");
	h->start_time = trace_file.start;
	xr_sys2(SYS_clock_gettime, CLOCK_REALTIME, &real);
	h->mono_ns = xr_now_ns();
	h->real_ns = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
	boot_id(h->boot);
	xr_snprintf(h->program, sizeof(h->program), "%s", xr_segfile_program(program));
	xr_snprintf(h->xrdma_version, sizeof(h->xrdma_version), "%s", xrdma_version());
	/* release: whoever sees the magic number sees the header */
	xr_store_release(&h->magic, XR_TRACE_MAGIC);
}

static int map_file(int fd, void **seg, uint32_t *records)
{
	size_t size;
	int err = xr_segfile_size(XR_TRACE_OFF + XR_TRACE_RECORDS * sizeof(struct xr_trace_rec),
				  XR_TRACE_OFF + 64 * sizeof(struct xr_trace_rec), &size);

	if (err)
		return err;
	for (*records = XR_TRACE_RECORDS; XR_TRACE_OFF + *records * sizeof(struct xr_trace_rec) > size; *records /= 2)
		;
	/* all of it: no record may meet a file system that is full */
	return xr_segfile_map(fd, size, size, seg);
}

int xr_trace_open(const char *dir, const char *suffix, const char *program)
{
	int state = xr_load_acquire(&xr_trace_state), err; /* pairs with the release below */
	struct xr_trace_header *seg;
	void *map;
	uint32_t records = 0;

	if (xr_likely(state))
		return state == XR_TRACE_OPEN ? 0 : state == XR_TRACE_OPENING ? -EALREADY : state;
	if (!xr_cas(&xr_trace_state, &state, XR_TRACE_OPENING))
		return -EALREADY;
	err = xr_random(trace_key, sizeof(trace_key));
	if (!err)
		err = xr_segfile_create(&trace_file, dir, suffix);
	if (err)
		goto fail;
	err = map_file(trace_file.fd, &map, &records);
	xr_sys1(SYS_close, trace_file.fd);
	if (err) {
		xr_segfile_remove(trace_file.path);
		goto fail;
	}
	seg = map;
	fill_header(seg, program, records);
	trace_seg = seg;
	xr_store_release(&xr_trace_state, XR_TRACE_OPEN);
	return 0;
fail:
	xr_stats_add(XR_STAT_STATS_ERRORS, 1);
	xr_info("no traces below %s: error %d", dir, -err);
	xr_store_release(&xr_trace_state, err);
	return err;
}

static void probe(const struct xr_trace_data *d)
{
	switch (d->stage) {
	case XR_TRACE_QUEUED:
		DTRACE_PROBE4(xrdma, queued, d->id, d->span, d->len, d->at_ns);
		break;
	case XR_TRACE_POSTED:
		DTRACE_PROBE4(xrdma, posted, d->id, d->span, d->len, d->at_ns);
		break;
	case XR_TRACE_SENT:
		DTRACE_PROBE4(xrdma, sent, d->id, d->span, d->len, d->at_ns);
		break;
	case XR_TRACE_RECEIVED:
		DTRACE_PROBE4(xrdma, received, d->id, d->span, d->len, d->at_ns);
		break;
	case XR_TRACE_DELIVERED:
		DTRACE_PROBE4(xrdma, delivered, d->id, d->span, d->len, d->at_ns);
		break;
	case XR_TRACE_ACKED:
		DTRACE_PROBE4(xrdma, acked, d->id, d->span, d->len, d->at_ns);
		break;
	}
}

void xr_trace_write(struct xr_trace_data *d)
{
	uint64_t words[XR_TRACE_WORDS], no, old;
	struct xr_trace_rec *r;

	if (xr_load_acquire(&xr_trace_state) != XR_TRACE_OPEN)
		return;
	d->tid = (uint32_t)xr_gettid();
	d->zero = 0;
	d->spare[0] = 0;
	if (!(d->flags & XR_TRACE_FAR))
		probe(d);
	memcpy(words, d, sizeof(words));
	no = atomic_fetch_add_explicit(&trace_seg->head, 1, memory_order_relaxed) + 1;
	r = trace_rec(no - 1);
	old = xr_load_relaxed(&r->seq);
	/* whoever had the place a round ago is still at it, or somebody was faster by a whole round */
	if (old >= no || !xr_cas(&r->seq, &old, no | XR_TRACE_BUSY)) {
		atomic_fetch_add_explicit(&trace_seg->lost, 1, memory_order_relaxed);
		return;
	}
	/* BUSY before any word: a reader that sees a new word sees the number changed, too */
	atomic_thread_fence(memory_order_release);
	for (unsigned int i = 0; i < XR_TRACE_WORDS; i++)
		xr_store_relaxed(&r->word[i], words[i]);
	/* release: all words before the number that makes them valid */
	xr_store_release(&r->seq, no);
}

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): one to one, and no two numbers near each other stay so. */
static uint64_t mix(uint64_t v)
{
	v += 0x9e3779b97f4a7c15;
	v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9;
	v = (v ^ v >> 27) * 0x94d049bb133111eb;
	v ^= v >> 31;
	/* ids of zeros are invalid */
	return v + !v;
}

uint64_t xr_trace_span_of(const uint64_t id[2], uint32_t sender, uint32_t receiver, uint32_t seq)
{
	return mix(mix(mix(id[0] ^ mix(id[1])) ^ ((uint64_t)sender << 32 | receiver)) ^ seq);
}

void xr_trace_skipped(void)
{
	if (xr_load_acquire(&xr_trace_state) == XR_TRACE_OPEN)
		atomic_fetch_add_explicit(&trace_seg->skipped, 1, memory_order_relaxed);
}

void xr_trace_close(void)
{
	if (xr_load_acquire(&xr_trace_state) != XR_TRACE_OPEN)
		return;
	xr_store_release(&trace_seg->exited, 1);
	xr_segfile_remove(trace_file.path);
}

void xr_trace_forked(void)
{
	/* mapped still, and never written to again: the slow way out of a rare case costs addresses only */
	xr_store_relaxed(&xr_trace_state, XR_TRACE_NONE);
}

void xr_trace_new(uint64_t no, uint64_t id[2], uint64_t *span)
{
	id[0] = mix(trace_key[0] + no);
	id[1] = mix(trace_key[1] + no);
	*span = mix(id[0] + id[1]);
}

int xr_trace_due(uint64_t every)
{
	static __thread uint64_t left, random;

	if (every <= 1)
		return every == 1;
	if (left > 2 * every)
		left = 0;	/* it was rarer before */
	if (left && --left)
		return 0;
	/* xorshift (Marsaglia 2003): with equal steps what comes every so often is always traced, or never */
	if (!random)
		random = xr_now_ns() | 1;
	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	left = 1 + random % (2 * every - 1);
	return 1;
}

/* How far the two may have drifted apart since. */
static int64_t drift(const struct xr_clock *c, uint64_t now)
{
	return now > c->at ? (int64_t)((now - c->at) / XR_CLOCK_DRIFT) : 0;
}

void xr_clock_bound(struct xr_clock *c, int64_t lo, int64_t hi, uint64_t now)
{
	int64_t d, was_lo, was_hi;

	if (lo > hi)
		return;
	if (c->at) {
		d = drift(c, now);
		was_lo = c->lo - d;
		was_hi = c->hi + d;
		/* both hold; where they contradict each other a clock was set, and the new one is true */
		if (lo <= was_hi && hi >= was_lo) {
			lo = lo > was_lo ? lo : was_lo;
			hi = hi < was_hi ? hi : was_hi;
		}
	}
	c->lo = lo;
	c->hi = hi;
	c->at = now ? now : 1;
}

int xr_clock_get(const struct xr_clock *c, uint64_t now, int64_t *offset, uint64_t *error)
{
	uint64_t width;

	if (!c->at)
		return 0;
	width = (uint64_t)c->hi - (uint64_t)c->lo;
	*offset = (int64_t)((uint64_t)c->lo + width / 2);
	*error = width - width / 2 + (uint64_t)drift(c, now);
	return 1;
}
