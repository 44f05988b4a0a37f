/* SPDX-License-Identifier: BSD-2-Clause */
/* Reader of the statistics segments that core/stats.c writes; see segment.h. */
#include "segment.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIZE_MAX_SANE (1ll << 31)

const char *const xr_segment_counter_names[XR_STAT_COUNT] = {
#define NAME(sym, name, text) [XR_STAT_##sym] = name,
	XR_STATS_TABLE(NAME)
#undef NAME
};

bool xr_segment_is_gauge(enum xr_stat id)
{
	return id == XR_STAT_FLOWS_SHM || id == XR_STAT_FLOWS_RDMA || id == XR_STAT_PAIRS ||
	       (id >= XR_STAT_RDMA_MEMORY && id <= XR_STAT_RDMA_MEMORY_FAR);
}

/* The file shrank under the mapping. Thread-directed, so this is the thread that reads. */
static sigjmp_buf shrunk;

static void on_sigbus(int sig)
{
	(void)sig;
	siglongjmp(shrunk, 1);
}

int xr_segment_open_dir(int base, const char *name, uid_t *uid)
{
	struct stat st;
	char *end;
	unsigned long owner = strtoul(name + strlen(XR_SEGMENT_DIR), &end, 10);
	int fd;

	if (*end || end == name + strlen(XR_SEGMENT_DIR))
		return -EINVAL;
	fd = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || st.st_uid != owner || (st.st_mode & 022)) {
		close(fd);
		return -EACCES;
	}
	*uid = st.st_uid;
	return fd;
}

bool xr_segment_may_remove(uid_t uid)
{
	return uid == geteuid() || !geteuid();
}

int xr_segment_dirs(const char *base, xr_segment_dir_fn *in, void *arg)
{
	struct dirent *de;
	DIR *dir = opendir(base);
	int r = 0;

	if (!dir)
		return -errno;
	while (!r && (de = readdir(dir))) {
		char name[512];
		uid_t uid = 0;
		DIR *one;
		int fd;

		if (strncmp(de->d_name, XR_SEGMENT_DIR, strlen(XR_SEGMENT_DIR)))
			continue;
		fd = xr_segment_open_dir(dirfd(dir), de->d_name, &uid);
		if (fd < 0)
			continue; /* not a directory of ours, or not ours to read */
		one = fdopendir(fd);
		if (!one) {
			r = -errno;
			close(fd);
			break;
		}
		snprintf(name, sizeof(name), "%s/%s", base, de->d_name);
		r = in(arg, name, one, uid);
		closedir(one);
		/* the last file may just have gone */
		if (xr_segment_may_remove(uid))
			unlinkat(dirfd(dir), de->d_name, AT_REMOVEDIR);
	}
	closedir(dir);
	return r;
}

int xr_segment_name(const char *name, pid_t *pid, uint64_t *start_time)
{
	unsigned long long start;
	int n = 0, p;

	if (sscanf(name, "%9d.%20llu%n", &p, &start, &n) != 2 || name[n] || p <= 0)
		return -EINVAL;
	*pid = p;
	*start_time = start;
	return 0;
}

bool xr_segment_foreign(pid_t pid)
{
	char path[40];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	return geteuid() && !stat(path, &st) && st.st_uid != geteuid();
}

bool xr_segment_gone(pid_t pid, uint64_t start_time)
{
	unsigned long long start = 0;
	char path[40], line[1024], state = 0, *p;
	bool read_it;
	FILE *f;

	if (kill(pid, 0) && errno == ESRCH)
		return true;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return errno == ENOENT;
	read_it = fgets(line, sizeof(line), f);
	fclose(f);
	p = read_it ? strrchr(line, ')') : NULL;
	if (!p || sscanf(p + 1,
			 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
			 "%*d %llu",
			 &state, &start) != 2)
		return false;
	return start != start_time || state == 'Z' || state == 'X';
}

enum xr_segment_life xr_segment_life(bool exited, uint64_t pid_ns, pid_t pid, uint64_t start_time)
{
	struct stat st;

	if (exited)
		return XR_SEGMENT_DEAD;
	if (pid_ns && (stat("/proc/self/ns/pid", &st) || st.st_ino != pid_ns))
		return XR_SEGMENT_FOREIGN;
	return xr_segment_gone(pid, start_time) ? XR_SEGMENT_DEAD : XR_SEGMENT_LIVE;
}

static enum xr_segment_life life(const struct xr_stats_header *h)
{
	return xr_segment_life(xr_load_acquire(&h->exited), h->pid_ns, h->pid, h->start_time);
}

void xr_segment_text(char *dst, const char *src, size_t size)
{
	size_t i;

	for (i = 0; i < size - 1 && src[i]; i++)
		dst[i] = src[i] >= ' ' && src[i] < 0x7f ? src[i] : '?';
	dst[i] = '\0';
}

/* The header makes sense, given the size of the file. Copies what loops depend on. */
static int check_header(const struct xr_stats_header *h, size_t size, uint32_t *flows,
			const char **why)
{
	uint64_t magic = xr_load_acquire(&h->magic); /* pairs with the writer's release */
	uint32_t version = __atomic_load_n(&h->version, __ATOMIC_RELAXED);

	if (!magic)
		return *why = "is being made", -EAGAIN;
	if (magic != XR_STATS_MAGIC)
		return *why = "is no statistics segment", -EBADMSG;
	if (version != XR_STATS_VERSION)
		return *why = "is of another version of xrdma", -EPROTONOSUPPORT;
	*flows = xr_load_acquire(&h->flows_used);
	if (h->header_size != sizeof(*h) || h->flow_size != sizeof(struct xr_stats_flow) ||
	    h->flows_off != XR_STATS_FLOWS_OFF ||
	    *flows > (size - XR_STATS_FLOWS_OFF) / sizeof(struct xr_stats_flow) || h->pid <= 0)
		return *why = "has a header that makes no sense", -EBADMSG;
	return 0;
}

#define COPY_DIR(dst, src)                                                                         \
	do {                                                                                       \
		for (int c_ = 0; c_ < XR_CARRIER_COUNT; c_++)                                      \
			(dst).bytes[c_] = xr_load_relaxed(&(src).bytes[c_]);                       \
		(dst).msgs = xr_load_relaxed(&(src).msgs);                                         \
		(dst).queue = xr_load_relaxed(&(src).queue);                                       \
		(dst).window = xr_load_relaxed(&(src).window);                                     \
		(dst).rnr = xr_load_relaxed(&(src).rnr);                                           \
		(dst).rendezvous = xr_load_relaxed(&(src).rendezvous);                             \
		(dst).coalesced = xr_load_relaxed(&(src).coalesced);                               \
		(dst).probes = xr_load_relaxed(&(src).probes);                                     \
		(dst).slots = xr_load_relaxed(&(src).slots);                                       \
		(dst).credits = xr_load_relaxed(&(src).credits);                                   \
		(dst).base = xr_load_relaxed(&(src).base);                                         \
		(dst).twice = xr_load_relaxed(&(src).twice);                                       \
	} while (0)

/* What is written while qpn is 0; false if it has changed meanwhile. */
static bool copy_rdma(const struct xr_stats_flow *f, struct xr_segment_flow *out)
{
	out->rdma.qpn = xr_load_acquire(&f->rdma.qpn); /* before the fields */
	out->rdma.peer_qpn = xr_load_relaxed(&f->rdma.peer_qpn);
	memcpy(out->rdma.gid, f->rdma.gid, sizeof(out->rdma.gid));
	xr_segment_text(out->device, f->device, sizeof(out->device));
	/* the fields before the second look */
	atomic_thread_fence(memory_order_acquire);
	return xr_load_relaxed(&f->rdma.qpn) == out->rdma.qpn;
}

/* One slot; false if it is free, or changes all the time (its writer died in a change). */
static bool copy_flow(const struct xr_stats_flow *f, struct xr_segment_flow *out)
{
	for (int i = 0; i < 1000; i++) {
		uint32_t seq = xr_load_acquire(&f->seq); /* before the fields */

		if (seq & 1)
			continue;
		memcpy(&out->id, &f->ident, sizeof(out->id));
		COPY_DIR(out->tx, f->tx);
		COPY_DIR(out->rx, f->rx);
		out->turns = xr_load_relaxed(&f->ctl.turns);
		out->attempts = xr_load_relaxed(&f->ctl.attempts);
		out->upgrades = xr_load_relaxed(&f->ctl.upgrades);
		out->retreats = xr_load_relaxed(&f->ctl.retreats);
		out->again_ms = xr_load_relaxed(&f->again_ms);
		if (!copy_rdma(f, out))
			continue;
		out->held = xr_load_relaxed(&f->hold) != 0;
		/* the fields before the second look */
		atomic_thread_fence(memory_order_acquire);
		if (xr_load_relaxed(&f->seq) == seq)
			return out->id.state != XR_STATE_FREE && out->id.state < XR_STATE_COUNT;
	}
	return false;
}

static const enum xr_stat folded[] = {
	XR_STAT_BYTES_TX_TCP, XR_STAT_BYTES_RX_TCP,  XR_STAT_BYTES_TX_SHM,  XR_STAT_BYTES_RX_SHM,
	XR_STAT_BYTES_TX_RDMA, XR_STAT_BYTES_RX_RDMA, XR_STAT_MSGS_TX, XR_STAT_MSGS_RX, XR_STAT_RNR,
	XR_STAT_MSGS_RENDEZVOUS, XR_STAT_MSGS_COALESCED,
};

static void add_open_flows(struct xr_segment *seg)
{
	static const enum xr_stat tx[] = {XR_STAT_BYTES_TX_TCP, XR_STAT_BYTES_TX_SHM,
					  XR_STAT_BYTES_TX_RDMA};
	static const enum xr_stat rx[] = {XR_STAT_BYTES_RX_TCP, XR_STAT_BYTES_RX_SHM,
					  XR_STAT_BYTES_RX_RDMA};

	for (uint32_t i = 0; i < seg->n_flows; i++) {
		const struct xr_segment_flow *f = &seg->flow[i];

		for (int c = 0; c < XR_CARRIER_COUNT; c++) {
			seg->counter[tx[c]] += f->tx.bytes[c];
			seg->counter[rx[c]] += f->rx.bytes[c];
		}
		seg->counter[XR_STAT_FLOWS_SHM] += f->id.carrier_tx == XR_CARRIER_SHM ||
						   f->id.carrier_rx == XR_CARRIER_SHM;
		seg->counter[XR_STAT_FLOWS_RDMA] += f->id.carrier_tx == XR_CARRIER_RDMA ||
						    f->id.carrier_rx == XR_CARRIER_RDMA;
		seg->counter[XR_STAT_MSGS_TX] += f->tx.msgs;
		seg->counter[XR_STAT_MSGS_RX] += f->rx.msgs;
		seg->counter[XR_STAT_MSGS_RENDEZVOUS] += f->tx.rendezvous;
		seg->counter[XR_STAT_MSGS_COALESCED] += f->tx.coalesced;
		seg->counter[XR_STAT_RNR] += f->tx.rnr + f->rx.rnr;
	}
	/* the writer counts what is rarer */
	seg->counter[XR_STAT_MSGS_EAGER] = seg->counter[XR_STAT_MSGS_TX] - seg->counter[XR_STAT_MSGS_RENDEZVOUS] -
					   seg->counter[XR_STAT_MSGS_COALESCED];
	if (seg->counter[XR_STAT_MSGS_EAGER] > seg->counter[XR_STAT_MSGS_TX])
		seg->counter[XR_STAT_MSGS_EAGER] = 0;
}

static void copy_segment(const struct xr_stats_segment *from, uint32_t flows, struct xr_segment *seg)
{
	const struct xr_stats_flow *slots =
		(const struct xr_stats_flow *)((const char *)from + XR_STATS_FLOWS_OFF);
	bool moved = true;

	/*
	 * A flow that is closed while we look takes its counters to the totals: it must not
	 * be seen in both, or in neither. So look again when a total has moved.
	 */
	for (int attempt = 0; attempt < 8 && moved; attempt++) {
		for (int i = 0; i < XR_STAT_COUNT; i++)
			seg->counter[i] = xr_load_acquire(&from->counter[i]);
		seg->n_flows = 0;
		for (uint32_t i = 0; i < flows; i++)
			seg->n_flows += copy_flow(&slots[i], &seg->flow[seg->n_flows]);
		atomic_thread_fence(memory_order_acquire);
		moved = false;
		for (size_t i = 0; i < sizeof(folded) / sizeof(folded[0]); i++)
			moved |= seg->counter[folded[i]] != xr_load_relaxed(&from->counter[folded[i]]);
	}
	for (int i = 0; i < XR_REASON_COUNT; i++) {
		seg->reason[i] = xr_load_relaxed(&from->reason[i]);
		seg->unlisted[i] = xr_load_relaxed(&from->unlisted[i]);
	}
	add_open_flows(seg);
}

static int read_mapped(const void *map, size_t size, void *arg, const char **why)
{
	const struct xr_stats_segment *from = map;
	struct xr_segment *seg = arg;
	uint32_t flows;
	int err = check_header(&from->h, size, &flows, why);

	if (err)
		return err;
	seg->flow = calloc(flows ? flows : 1, sizeof(*seg->flow));
	if (!seg->flow) {
		*why = "is too large for memory";
		return -ENOMEM;
	}
	seg->pid = from->h.pid;
	seg->opened_ns = from->h.opened_ns;
	seg->helper_thread = xr_load_relaxed(&from->h.helper_thread);
	seg->held = xr_load_relaxed(&from->h.hold) != 0;
	for (uint32_t i = 0; i < XR_STATS_TUNES; i++)
		seg->tune[i] = xr_load_relaxed(&from->h.tune[i]);
	seg->off = xr_load_relaxed(&from->h.off);
	xr_segment_text(seg->program, from->h.program, sizeof(seg->program));
	xr_segment_text(seg->version, from->h.xrdma_version, sizeof(seg->version));
	seg->life = life(&from->h);
	copy_segment(from, flows, seg);
	for (uint32_t i = 0; i < XR_STATS_HOLDS; i++)
		xr_segment_text(seg->held_device[i], (const char *)from->h.hold_device[i], XR_STATS_DEVICE);
	for (uint32_t i = 0; i < seg->n_flows; i++)
		seg->flow[i].held |= seg->held ||
				     xr_stats_device_held(&from->h, xr_segment_device(&seg->flow[i]));
	return 0;
}

/* Under the handler; what `read` has made by then lies in arg, which is not of this frame. */
static int guarded(const void *map, size_t size, xr_segment_reader *read, void *arg, const char **why)
{
	struct sigaction sa = {.sa_handler = on_sigbus}, old;
	int err;

	sigaction(SIGBUS, &sa, &old);
	if (sigsetjmp(shrunk, 1)) {
		*why = "shrank while it was read";
		err = -EBADMSG;
	} else {
		err = read(map, size, arg, why);
	}
	sigaction(SIGBUS, &old, NULL);
	return err;
}

int xr_segment_map(int dirfd, const char *name, size_t least, uid_t *uid, xr_segment_reader *read, void *arg,
		   const char **why)
{
	struct stat st;
	void *p;
	int err, fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0) {
		*why = strerror(errno);
		return -errno;
	}
	if (fstat(fd, &st)) {
		err = -errno;
		*why = strerror(errno);
	} else if (!S_ISREG(st.st_mode) || st.st_size > SIZE_MAX_SANE) {
		err = -EBADMSG;
		*why = "is no statistics segment";
	} else if (st.st_size < (off_t)least) {
		err = st.st_size ? -EBADMSG : -EAGAIN;
		*why = "is too short";
	} else {
		p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (p == MAP_FAILED) {
			err = -errno;
			*why = strerror(errno);
		} else {
			*uid = st.st_uid;
			err = guarded(p, (size_t)st.st_size, read, arg, why);
			munmap(p, (size_t)st.st_size);
		}
	}
	close(fd);
	return err;
}

int xr_segment_read(int dirfd, const char *name, struct xr_segment *seg, const char **why)
{
	int err;

	memset(seg, 0, sizeof(*seg));
	err = xr_segment_map(dirfd, name, XR_STATS_FLOWS_OFF, &seg->uid, read_mapped, seg, why);
	if (err)
		xr_segment_free(seg);
	return err;
}

void xr_segment_free(struct xr_segment *seg)
{
	free(seg->flow);
	seg->flow = NULL;
	seg->n_flows = 0;
}

const char *xr_segment_state(const struct xr_segment_flow *f)
{
	static const char *const names[XR_STATE_COUNT] = {
		[XR_STATE_FREE] = "-",		  [XR_STATE_ESTAB] = "ESTAB",
		[XR_STATE_UPGRADING] = "UPGRADE", [XR_STATE_RETREATING] = "RETREAT",
		[XR_STATE_FIN_TX] = "FIN-WAIT",	  [XR_STATE_FIN_RX] = "CLOSE-WAIT",
		[XR_STATE_CLOSING] = "CLOSING",	  [XR_STATE_LISTEN] = "LISTEN",
	};

	return names[f->id.state < XR_STATE_COUNT ? f->id.state : 0];
}

const char *xr_segment_carrier(const struct xr_segment_flow *f)
{
	static const char *const names[4][4] = {
		{"tcp", "tcp/shm", "tcp/rdma", "tcp/?"},
		{"shm/tcp", "shm", "shm/rdma", "shm/?"},
		{"rdma/tcp", "rdma/shm", "rdma", "rdma/?"},
		{"?/tcp", "?/shm", "?/rdma", "?"},
	};
	unsigned int tx = f->id.carrier_tx, rx = f->id.carrier_rx;

	return names[tx < 3 ? tx : 3][rx < 3 ? rx : 3];
}

unsigned int xr_segment_off(const struct xr_segment *seg)
{
	return seg->held ? XR_REASON_OPERATOR : seg->off;
}

const char *xr_segment_gid(const struct xr_segment_flow *f, char *buf, size_t size)
{
	return inet_ntop(AF_INET6, f->rdma.gid, buf, (socklen_t)size) ? buf : "?";
}

const char *xr_segment_device(const struct xr_segment_flow *f)
{
	return *f->device ? f->device : XR_STATS_SHM;
}

bool xr_segment_again(const struct xr_segment_flow *f, double *seconds)
{
	struct timespec ts;
	int32_t left;

	if (!f->again_ms || f->held || !f->id.reason || xr_segment_on_fabric(f))
		return false;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	left = (int32_t)(f->again_ms - (uint32_t)((uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000));
	*seconds = left > 0 ? left / 1e3 : 0;
	/* what is due is tried all the time but for an operator's, of whom one wants to know that he let it go */
	return left > 0 || f->id.reason == XR_REASON_OPERATOR;
}

bool xr_segment_on_fabric(const struct xr_segment_flow *f)
{
	return f->id.carrier_tx != XR_CARRIER_TCP || f->id.carrier_rx != XR_CARRIER_TCP;
}
