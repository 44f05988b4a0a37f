/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads a ring of trace records that core/trace.c writes; see trace.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trace.h"

#define RECORDS_MAX	(1u << 20)

int xr_trace_name(const char *name, pid_t *pid, uint64_t *start, bool *channels)
{
	const char *dot = strchr(name, '.');
	char stem[64];

	dot = dot ? strchr(dot + 1, '.') : NULL;
	if (!dot || (size_t)(dot - name) >= sizeof(stem))
		return -EINVAL;
	*channels = !strcmp(dot, XR_TRACE_CHANNELS);
	if (!*channels && strcmp(dot, XR_TRACE_FLOWS))
		return -EINVAL;
	memcpy(stem, name, (size_t)(dot - name));
	stem[dot - name] = '\0';
	return xr_segment_name(stem, pid, start);
}

/* All of it, as far as there is any: bytes or -errno. */
static ssize_t read_at(int fd, void *to, size_t len, off_t at)
{
	size_t done = 0;
	ssize_t n;

	do {
		n = pread(fd, (char *)to + done, len - done, at + (off_t)done);
		if (n > 0)
			done += (size_t)n;
	} while ((n > 0 && done < len) || (n < 0 && errno == EINTR));
	return n < 0 ? -errno : (ssize_t)done;
}

static void copy_text(char *dst, const char *src, size_t size)
{
	size_t i;

	for (i = 0; i < size - 1 && src[i]; i++)
		dst[i] = src[i] >= ' ' && src[i] < 0x7f ? src[i] : '?';
	dst[i] = '\0';
}

static int check_header(const struct xr_trace_header *h, const char **why)
{
	uint64_t magic = h->magic;

	if (!magic)
		return *why = "is being made", -EAGAIN;
	if (magic != XR_TRACE_MAGIC)
		return *why = "is no ring of trace records", -EBADMSG;
	if (h->version != XR_TRACE_VERSION)
		return *why = "is of another version of xrdma", -EPROTONOSUPPORT;
	if (h->header_size != sizeof(*h) || h->record_size != sizeof(struct xr_trace_rec) ||
	    h->record_off != XR_TRACE_OFF || !h->records || h->records > RECORDS_MAX ||
	    (h->records & (h->records - 1)) || h->pid <= 0)
		return *why = "has a header that makes no sense", -EBADMSG;
	return 0;
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Is the clock of that process ours? */
static bool same_clock(const struct xr_trace_header *h)
{
	uint8_t boot[16] = {0}, zero[16] = {0};
	char text[64] = "";
	struct stat st;
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	int n = 0;

	if (f && !fgets(text, sizeof(text), f))
		text[0] = '\0';
	if (f)
		fclose(f);
	for (const char *p = text; *p && n < 32; p++) {
		const char *digits = "0123456789abcdef", *d = strchr(digits, *p);

		if (!d)
			continue;
		boot[n / 2] = (uint8_t)(boot[n / 2] << 4 | (d - digits));
		n++;
	}
	return n == 32 && memcmp(h->boot, zero, 16) && !memcmp(h->boot, boot, 16) &&
	       h->time_ns && !stat("/proc/self/ns/time", &st) && st.st_ino == h->time_ns;
}

static enum xr_segment_life life(const struct xr_trace_header *h, bool ours)
{
	struct stat st;

	if (h->exited)
		return XR_SEGMENT_DEAD;
	if (!ours || (h->pid_ns && (stat("/proc/self/ns/pid", &st) || st.st_ino != h->pid_ns)))
		return XR_SEGMENT_FOREIGN;
	return xr_segment_gone(h->pid, h->start_time) ? XR_SEGMENT_DEAD : XR_SEGMENT_LIVE;
}

static void fill(struct xr_trace_file *f, const struct xr_trace_header *h)
{
	bool ours = same_clock(h);

	copy_text(f->program, h->program, sizeof(f->program));
	copy_text(f->version, h->xrdma_version, sizeof(f->version));
	f->pid = h->pid;
	f->time_ns = h->time_ns;
	memcpy(f->boot, h->boot, sizeof(f->boot));
	/* the same for all who share our clock: two pairs of readings never agree to the nanosecond */
	f->real_off = ours ? clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC) : h->real_ns - h->mono_ns;
	f->here = ours;
	f->written = h->head;
	f->lost = h->lost;
	f->skipped = h->skipped;
	f->life = life(h, ours);
}

static int by_number(const void *a, const void *b)
{
	/* `zero` and spare are nobody's: spare has the number here */
	const struct xr_trace_data *x = a, *y = b;

	return (x->spare[0] > y->spare[0]) - (x->spare[0] < y->spare[0]);
}

/*
 * Three readings: a record whose number is the same in the first and the last was not written to while the one
 * between them was made.
 */
static int read_records(int fd, uint32_t records, struct xr_trace_file *f, const char **why)
{
	size_t size = records * sizeof(struct xr_trace_rec);
	struct xr_trace_rec *copy[3];
	ssize_t got = (ssize_t)size;
	int err = 0;

	for (int i = 0; i < 3; i++)
		copy[i] = calloc(1, size);
	f->rec = calloc(records, sizeof(*f->rec));
	if (!copy[0] || !copy[1] || !copy[2] || !f->rec) {
		*why = "is too large for memory";
		err = -ENOMEM;
	}
	for (int i = 0; i < 3 && !err; i++) {
		ssize_t n = read_at(fd, copy[i], size, XR_TRACE_OFF);

		got = n < got ? n : got;
		if (n < 0) {
			*why = strerror((int)-n);
			err = (int)n;
		} else if ((size_t)n != size) {
			*why = "is shorter than its header says";
			err = -EBADMSG;
		}
	}
	for (uint32_t i = 0; i < records && !err; i++) {
		uint64_t seq = copy[0][i].seq;
		struct xr_trace_data *d = &f->rec[f->n];

		if (!seq || seq & XR_TRACE_BUSY || ((seq - 1) & (records - 1)) != i ||
		    seq != copy[1][i].seq || seq != copy[2][i].seq)
			continue;
		memcpy(d, copy[1][i].word, sizeof(*d));
		if (d->stage >= XR_TRACE_STAGES || d->carrier >= XR_CARRIER_COUNT || !d->span ||
		    !(d->id[0] | d->id[1]))
			continue;
		d->spare[0] = seq;
		f->n++;
	}
	for (int i = 0; i < 3; i++)
		free(copy[i]);
	if (!err && f->n)
		qsort(f->rec, f->n, sizeof(*f->rec), by_number);
	return err;
}

int xr_trace_read(int dirfd, const char *name, struct xr_trace_file *f, const char **why)
{
	struct xr_trace_header h;
	struct stat st;
	ssize_t n;
	int err, fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	memset(f, 0, sizeof(*f));
	if (fd < 0) {
		*why = strerror(errno);
		return -errno;
	}
	if (fstat(fd, &st)) {
		err = -errno;
		*why = strerror(errno);
	} else if (!S_ISREG(st.st_mode)) {
		err = -EBADMSG;
		*why = "is no ring of trace records";
	} else {
		f->uid = st.st_uid;
		n = read_at(fd, &h, sizeof(h), 0);
		if (n < 0) {
			err = (int)n;
			*why = strerror((int)-n);
		} else if ((size_t)n < sizeof(h)) {
			err = n ? -EBADMSG : -EAGAIN;
			*why = "is too short";
		} else {
			err = check_header(&h, why);
		}
	}
	if (!err) {
		fill(f, &h);
		err = read_records(fd, h.records, f, why);
	}
	close(fd);
	if (err)
		xr_trace_file_free(f);
	return err;
}

void xr_trace_file_free(struct xr_trace_file *f)
{
	free(f->rec);
	f->rec = NULL;
	f->n = 0;
}
