/* SPDX-License-Identifier: BSD-2-Clause */
/* The writer of the statistics segment; see stats.h. Readers: tools/segment.c. */
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "atomic.h"
#include "log.h"
#include "mem.h"
#include "segfile.h"
#include "tune.h"
#include "xrdma.h"

#define PAGE 4096u

/* What is counted before, without, or after a segment. */
static struct xr_stats_segment stats_private __attribute__((aligned(4096)));

XR_NEAR struct xr_stats_segment *xr_stats_seg = &stats_private;

enum { /* of stats_state; an errno (negative) after a failure */
	STATS_NONE,
	STATS_OPENING,
	STATS_OPEN,
};

static XR_FORK_DATA _Atomic int stats_state;
static size_t stats_size;     /* of the mapping */
static uint32_t stats_max;    /* slots in it */
static struct xr_segfile stats_file;

/* The segment of the parent; or of an ancestor, where the parent has none. */
static XR_FORK_DATA struct {
	char path[XR_SEGFILE_PATH];
	uintptr_t at;	/* where it was mapped */
	size_t size;
	bool ask;	/* what it was asked counts for this process */
} stats_parent;

/*
 * Slots. Never used ones lie from stats_bump on, returned ones form a stack; its head
 * is index + 1 in the low half and a tag in the high half that changes with every
 * push and pop, so that a slot that left and came back in between is noticed (ABA).
 */
static XR_FORK_DATA _Atomic uint32_t stats_bump;
static XR_FORK_DATA _Atomic uint64_t stats_free;
static XR_FORK_DATA _Atomic uint64_t stats_committed; /* bytes of the file that have pages */

const char *xr_stats_path(void)
{
	return xr_load_acquire(&stats_state) == STATS_OPEN ? stats_file.path : "";
}

static struct xr_stats_flow *slot(struct xr_stats_segment *seg, uint32_t i)
{
	return (struct xr_stats_flow *)((char *)seg + XR_STATS_FLOWS_OFF) + i;
}

/* Sizes the file and maps it with its first page committed. */
static int map_file(int fd, uint32_t max_flows, void **seg)
{
	size_t size;
	int err = xr_segfile_size(XR_STATS_FLOWS_OFF + (size_t)max_flows * sizeof(struct xr_stats_flow),
				  XR_STATS_FLOWS_OFF, &size);

	if (!err)
		err = xr_segfile_map(fd, size, PAGE, seg);
	if (err)
		return err;
	stats_size = size;
	stats_max = (uint32_t)((size - XR_STATS_FLOWS_OFF) / sizeof(struct xr_stats_flow));
	return 0;
}

static void fill_header(struct xr_stats_header *h, const char *program)
{
	h->version = XR_STATS_VERSION;
	h->header_size = sizeof(*h);
	h->flow_size = sizeof(struct xr_stats_flow);
	h->flows_off = XR_STATS_FLOWS_OFF;
	h->n_counters = XR_STAT_COUNT;
	h->n_reasons = XR_REASON_COUNT;
	h->max_flows = stats_max;
	h->pid_ns = xr_segfile_pid_namespace();
	h->start_time = stats_file.start;
	h->opened_ns = xr_now_ns();
	h->pid = stats_file.pid;
	h->uid = stats_file.uid;
	xr_snprintf(h->program, sizeof(h->program), "%s", xr_segfile_program(program));
	xr_snprintf(h->xrdma_version, sizeof(h->xrdma_version), "%s", xrdma_version());
	/* release: whoever sees the magic number sees the header */
	xr_store_release(&h->magic, XR_STATS_MAGIC);
}

/* Moves what was counted privately. A thread that still holds the old pointer may lose a count. */
static void adopt_counts(struct xr_stats_segment *seg)
{
	for (int i = 0; i < XR_STATS_COUNTER_ROOM; i++) {
		uint64_t n = xr_xchg(&stats_private.counter[i], 0);
		uint64_t m = xr_xchg(&stats_private.reason[i], 0);
		uint64_t u = xr_xchg(&stats_private.unlisted[i], 0);

		if (n)
			xr_fetch_add(&seg->counter[i], n);
		if (m)
			xr_fetch_add(&seg->reason[i], m);
		if (u)
			xr_fetch_add(&seg->unlisted[i], u);
	}
}

/* What operators ask for.  relaxed: nobody looks at `to` yet, or xr-stat may write there at any time */
static void take_wishes(struct xr_stats_header *to, const struct xr_stats_header *from)
{
	uint32_t i, k;

	xr_store_relaxed(&to->hold, xr_load_relaxed(&from->hold));
	for (i = 0; i < XR_STATS_TUNES; i++)
		xr_store_relaxed(&to->tune[i], xr_load_relaxed(&from->tune[i]));
	for (i = 0; i < XR_STATS_HOLDS; i++)
		for (k = 0; k < XR_STATS_DEVICE / 8; k++)
			xr_store_relaxed(&to->hold_device[i][k], xr_load_relaxed(&from->hold_device[i][k]));
	/* release: what is asked for before the number that announces it */
	xr_store_release(&to->control, xr_load_relaxed(&from->control));
}

/*
 * A child that had no segment could not be asked itself: what its parent was asked since the fork counts for it.
 * Only now that its own can be found: xr-stat asks the parent first, then looks for segments that are new.
 */
static void ask_parent(struct xr_stats_header *h)
{
	uint32_t seen = xr_load_relaxed(&stats_private.h.control);
	struct xr_stats_header parent;
	int fd;

	if (!stats_parent.ask)
		return;
	stats_parent.ask = false;
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, stats_parent.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
	/* it has ended, or is out of reach: what it was asked before the fork holds */
	if (fd < 0)
		return;
	/* not where the child was asked meanwhile, which is newer */
	if (!xr_tune_head(fd, &parent) && xr_load_relaxed(&parent.control) != seen &&
	    xr_load_relaxed(&h->control) == seen)
		take_wishes(h, &parent);
	xr_sys1(SYS_close, fd);
}

int xr_stats_open(const char *dir, const char *program, uint32_t max_flows)
{
	struct xr_stats_segment *seg;
	void *map;
	int state = xr_load_acquire(&stats_state); /* pairs with the release below */
	int err;

	if (state)
		return state == STATS_OPEN ? 0 : state == STATS_OPENING ? -EALREADY : state;
	if (!xr_cas(&stats_state, &state, STATS_OPENING))
		return -EALREADY;
	err = xr_segfile_create(&stats_file, dir, "");
	if (err)
		goto fail;
	err = map_file(stats_file.fd, max_flows, &map);
	xr_sys1(SYS_close, stats_file.fd);
	if (err)
		goto unlink;
	seg = map;
	take_wishes(&seg->h, &stats_private.h);
	fill_header(&seg->h, program);
	ask_parent(&seg->h);
	xr_store_relaxed(&stats_bump, 0);
	xr_store_relaxed(&stats_free, 0);
	xr_store_relaxed(&stats_committed, PAGE);
	__atomic_store_n(&xr_stats_seg, seg, __ATOMIC_RELEASE);
	adopt_counts(seg);
	xr_store_release(&stats_state, STATS_OPEN);
	return 0;
unlink:
	xr_segfile_remove(stats_file.path);
fail:
	xr_stats_add(XR_STAT_STATS_ERRORS, 1);
	xr_info("no statistics below %s: error %d", dir, -err);
	xr_store_release(&stats_state, err);
	return err;
}

void xr_stats_close(void)
{
	if (xr_load_acquire(&stats_state) != STATS_OPEN)
		return;
	xr_store_release(&xr_stats_seg->h.exited, 1);
	xr_segfile_remove(stats_file.path);
}

void xr_stats_after_fork(void)
{
	struct xr_stats_segment *seg = xr_stats_seg;
	struct xr_stats_header wishes;

	take_wishes(&wishes, &seg->h);
	if (*xr_stats_path()) {
		memcpy(stats_parent.path, stats_file.path, sizeof(stats_parent.path));
		stats_parent.at = (uintptr_t)seg;
		stats_parent.size = stats_size;
		stats_parent.ask = true;
	}
	if (seg != &stats_private)
		/*
		 * Same addresses, private zero pages, never unmapped: slots that the child
		 * still points to stay writable. Costs addresses only. Where even that is
		 * refused (strict overcommit), such stores would reach the parent's
		 * numbers, as they would have without this call.
		 */
		xr_sys6(SYS_mmap, seg, stats_size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	memset(&stats_private, 0, sizeof(stats_private));
	take_wishes(&stats_private.h, &wishes);
	xr_stats_seg = &stats_private;
	xr_store_relaxed(&stats_bump, 0);
	xr_store_relaxed(&stats_free, 0);
	xr_store_relaxed(&stats_committed, 0);
	xr_store_relaxed(&stats_state, STATS_NONE);
}

struct xr_stats_flow *xr_stats_parent_map(const struct xr_stats_flow *f, uint64_t inode, struct xr_stats_map *m)
{
	uintptr_t off = (uintptr_t)f - stats_parent.at, from = off & ~(uintptr_t)(PAGE - 1);
	struct xr_stats_header h;
	struct xr_stats_flow *their;
	long p = -1;
	int fd;

	if ((uintptr_t)f < stats_parent.at || off > stats_parent.size - sizeof(*f))
		return NULL;
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, stats_parent.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0)
		return NULL;
	m->len = (off + sizeof(*f) - from + PAGE - 1) & ~(size_t)(PAGE - 1);
	/* slots that have been used lie in pages that are there */
	if (!xr_tune_head(fd, &h) && off + sizeof(*f) <= XR_STATS_FLOWS_OFF + (uint64_t)h.flows_used * sizeof(*f))
		p = xr_sys6(SYS_mmap, 0, m->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, from);
	xr_sys1(SYS_close, fd);
	if (p < 0 && p > -4096)
		return NULL;
	m->at = (void *)p;
	their = (struct xr_stats_flow *)((char *)m->at + (off - from));
	/* the parent may have closed it, and the slot be another connection's */
	if (xr_load_relaxed(&their->ident.state) != XR_STATE_FREE && inode && their->ident.inode == inode)
		return their;
	xr_stats_parent_unmap(m);
	return NULL;
}

void xr_stats_parent_unmap(struct xr_stats_map *m)
{
	xr_sys2(SYS_munmap, m->at, m->len);
}

/* Slots that lie wholly in committed pages. */
static uint32_t committed_slots(uint64_t bytes)
{
	return bytes <= XR_STATS_FLOWS_OFF
		       ? 0
		       : (uint32_t)((bytes - XR_STATS_FLOWS_OFF) / sizeof(struct xr_stats_flow));
}

/* More pages: as many as there are, but 4 at least and 64 at most. */
static bool grow(struct xr_stats_segment *seg)
{
	uint64_t have = xr_load_acquire(&stats_committed), want;
	uint64_t step = have < 4 * PAGE ? 4 * PAGE : have > 64 * PAGE ? 64 * PAGE : have;

	want = have + step > stats_size ? stats_size : have + step;
	if (want == have || xr_segfile_commit((char *)seg + have, want - have)) {
		xr_stats_add(XR_STAT_STATS_ERRORS, 1);
		return false;
	}
	/* lost to another thread: fine, it committed pages from the same place */
	xr_cas(&stats_committed, &have, want);
	return true;
}

static struct xr_stats_flow *take_returned(struct xr_stats_segment *seg)
{
	uint64_t head = xr_load_acquire(&stats_free); /* pairs with the release of the push */

	while ((uint32_t)head) {
		uint32_t i = (uint32_t)head - 1;
		uint64_t next;

		if (i >= stats_max) /* somebody wrote over next_free */
			return NULL;
		next = ((head >> 32) + 1) << 32 | xr_load_relaxed(&slot(seg, i)->next_free);
		if (atomic_compare_exchange_weak_explicit(&stats_free, &head, next,
							  memory_order_acquire,
							  memory_order_acquire))
			return slot(seg, i);
	}
	return NULL;
}

static struct xr_stats_flow *take_new(struct xr_stats_segment *seg)
{
	uint32_t i = xr_load_relaxed(&stats_bump), used;

	for (;;) {
		if (i >= stats_max)
			return NULL;
		if (i >= committed_slots(xr_load_acquire(&stats_committed)) && !grow(seg))
			return NULL;
		if (i < committed_slots(xr_load_acquire(&stats_committed)) &&
		    xr_cas(&stats_bump, &i, i + 1))
			break;
	}
	used = xr_load_relaxed(&seg->h.flows_used);
	while (used < i + 1 && !xr_cas(&seg->h.flows_used, &used, i + 1))
		;
	return slot(seg, i);
}

void xr_stats_addr_set(struct xr_stats_addr *a, const struct sockaddr *sa)
{
	memset(a, 0, sizeof(*a));
	if (sa && sa->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)sa;

		memcpy(a->addr, &in->sin_addr, 4);
		a->port = ntohs(in->sin_port);
		a->family = AF_INET;
	} else if (sa && sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

		memcpy(a->addr, &in6->sin6_addr, 16);
		a->port = ntohs(in6->sin6_port);
		a->family = AF_INET6;
	}
}

struct xr_stats_flow *xr_stats_flow_alloc(int fd, uint64_t inode, unsigned int role,
					  const struct sockaddr *local, const struct sockaddr *peer)
{
	struct xr_stats_segment *seg;
	struct xr_stats_flow *f;

	/* acquire: pairs with xr_stats_open, perhaps in another thread this moment: before it there are no slots */
	if (xr_load_acquire(&stats_state) != STATS_OPEN)
		return NULL;
	seg = xr_stats_seg;
	f = take_returned(seg);
	if (!f)
		f = take_new(seg);
	if (!f)
		return NULL;
	xr_stats_ident_begin(f);
	memset(&f->ident, 0, sizeof(f->ident));
	memset(f->device, 0, sizeof(f->device));
	xr_store_relaxed(&f->rdma.qpn, 0);
	xr_store_relaxed(&f->hold, 0);
	xr_store_relaxed(&f->again_ms, 0);
	xr_stats_addr_set(&f->ident.local, local);
	xr_stats_addr_set(&f->ident.peer, peer);
	xr_store_relaxed(&f->ident.fd, fd);
	f->ident.inode = inode;
	f->ident.role = (uint8_t)role;
	f->ident.opened_ns = xr_now_ns();
	xr_store_relaxed(&f->ident.reason, XR_REASON_YOUNG);
	xr_store_relaxed(&f->ident.state, XR_STATE_ESTAB);
	/* nobody else writes here: the slot was free, and free ones are zeroed below */
	xr_stats_ident_end(f);
	return f;
}

/* Adds a counter of the slot to a total and zeroes it. */
static void fold(enum xr_stat id, _Atomic uint64_t *p)
{
	uint64_t n = xr_load_relaxed(p);

	if (!n)
		return;
	xr_stats_add(id, n);
	xr_store_relaxed(p, 0);
}

static void clear_gauges(struct xr_stats_dir *d)
{
	xr_store_relaxed(&d->queue, 0);
	xr_store_relaxed(&d->window, 0);
	xr_store_relaxed(&d->slots, 0);
	xr_store_relaxed(&d->credits, 0);
	xr_store_relaxed(&d->base, 0);
	xr_store_relaxed(&d->twice, 0);
	xr_store_relaxed(&d->probes, 0);
}

void xr_stats_flow_free(struct xr_stats_flow *f)
{
	struct xr_stats_segment *seg = xr_stats_seg;
	uint64_t head, next;
	uint64_t i = ((uintptr_t)f - (uintptr_t)slot(seg, 0)) / sizeof(*f);

	/* not of this segment: from before a fork */
	if (!f || seg == &stats_private || (uintptr_t)f < (uintptr_t)slot(seg, 0) || i >= stats_max)
		return;
	xr_stats_ident_begin(f);
	xr_store_relaxed(&f->ident.state, XR_STATE_FREE);
	/*
	 * In the bracket too: a reader that met the slot before looks at the totals again,
	 * sees that they moved, and starts over.
	 */
	fold(XR_STAT_BYTES_TX_TCP, &f->tx.bytes[XR_CARRIER_TCP]);
	fold(XR_STAT_BYTES_TX_SHM, &f->tx.bytes[XR_CARRIER_SHM]);
	fold(XR_STAT_BYTES_TX_RDMA, &f->tx.bytes[XR_CARRIER_RDMA]);
	fold(XR_STAT_BYTES_RX_TCP, &f->rx.bytes[XR_CARRIER_TCP]);
	fold(XR_STAT_BYTES_RX_SHM, &f->rx.bytes[XR_CARRIER_SHM]);
	fold(XR_STAT_BYTES_RX_RDMA, &f->rx.bytes[XR_CARRIER_RDMA]);
	fold(XR_STAT_MSGS_TX, &f->tx.msgs);
	fold(XR_STAT_MSGS_RX, &f->rx.msgs);
	fold(XR_STAT_MSGS_RENDEZVOUS, &f->tx.rendezvous);
	fold(XR_STAT_MSGS_COALESCED, &f->tx.coalesced);
	fold(XR_STAT_RNR, &f->tx.rnr);
	fold(XR_STAT_RNR, &f->rx.rnr);
	clear_gauges(&f->tx);
	clear_gauges(&f->rx);
	memset(&f->ctl, 0, sizeof(f->ctl));
	xr_stats_ident_end(f);
	head = xr_load_relaxed(&stats_free);
	do {
		xr_store_relaxed(&f->next_free, (uint32_t)head);
		next = ((head >> 32) + 1) << 32 | (uint32_t)(i + 1);
		/* release: whoever pops it sees the slot cleared */
	} while (!atomic_compare_exchange_weak_explicit(&stats_free, &head, next,
							memory_order_release,
							memory_order_relaxed));
}

void xr_stats_flow_closing(struct xr_stats_flow *f)
{
	if (!f)
		return;
	xr_stats_ident_begin(f);
	xr_store_relaxed(&f->ident.state, XR_STATE_CLOSING);
	xr_store_relaxed(&f->ident.fd, -1);
	xr_stats_ident_end(f);
}

void xr_stats_flow_state(struct xr_stats_flow *f, enum xr_stats_state state)
{
	if (!f)
		return;
	xr_stats_ident_begin(f);
	xr_store_relaxed(&f->ident.state, (uint8_t)state);
	xr_stats_ident_end(f);
}

void xr_stats_flow_reason(struct xr_stats_flow *f, enum xr_reason reason)
{
	if (!f)
		return;
	xr_stats_ident_begin(f);
	xr_store_relaxed(&f->ident.reason, (uint16_t)reason);
	if (reason != XR_REASON_NONE && reason != XR_REASON_YOUNG)
		xr_store_relaxed(&f->ident.last_reason, (uint16_t)reason);
	xr_stats_ident_end(f);
}

void xr_stats_flow_again(struct xr_stats_flow *f, uint64_t at_ns)
{
	uint32_t ms = (uint32_t)(at_ns / 1000000u);

	if (f)
		xr_store_relaxed(&f->again_ms, at_ns && !ms ? 1 : ms);
}

void xr_stats_flow_carrier(struct xr_stats_flow *f, enum xr_carrier tx, enum xr_carrier rx,
			   uint32_t peer_pid)
{
	uint8_t was_tx, was_rx;

	if (!f)
		return;
	xr_stats_ident_begin(f);
	was_tx = xr_load_relaxed(&f->ident.carrier_tx);
	was_rx = xr_load_relaxed(&f->ident.carrier_rx);
	if (tx != XR_CARRIER_TCP && was_tx == XR_CARRIER_TCP)
		xr_store_relaxed(&f->ident.upgraded_ns, xr_now_ns());
	if (tx == XR_CARRIER_TCP && rx == XR_CARRIER_TCP &&
	    (was_tx != XR_CARRIER_TCP || was_rx != XR_CARRIER_TCP))
		xr_stats_inc(&f->ctl.retreats, 1);
	xr_store_relaxed(&f->ident.carrier_tx, (uint8_t)tx);
	xr_store_relaxed(&f->ident.carrier_rx, (uint8_t)rx);
	if (peer_pid)
		xr_store_relaxed(&f->ident.peer_pid, peer_pid);
	if (tx != XR_CARRIER_TCP && rx != XR_CARRIER_TCP)
		xr_store_relaxed(&f->ident.reason, XR_REASON_NONE);
	xr_stats_ident_end(f);
	if (tx != XR_CARRIER_TCP)
		xr_store_relaxed(&f->again_ms, 0);
}

int xr_stats_device_held(const struct xr_stats_header *h, const char *name)
{
	uint64_t want[XR_STATS_DEVICE / 8] = { 0 };
	uint32_t i, k;

	memcpy(want, name, strnlen(name, sizeof(want)));
	for (i = 0; i < XR_STATS_HOLDS; i++) {
		/* relaxed: the number that announces a name is read before */
		for (k = 0; k < XR_STATS_DEVICE / 8 && xr_load_relaxed(&h->hold_device[i][k]) == want[k]; k++)
			;
		if (k == XR_STATS_DEVICE / 8)
			return 1;
	}
	return 0;
}

void xr_stats_flow_rdma(struct xr_stats_flow *f, const char *device, const uint8_t gid[16],
			uint32_t qpn, uint32_t peer_qpn)
{
	if (!f)
		return;
	xr_store_relaxed(&f->rdma.qpn, 0);
	/* none must be visible before any field of the change */
	atomic_thread_fence(memory_order_release);
	xr_snprintf(f->device, sizeof(f->device), "%s", device);
	memcpy(f->rdma.gid, gid, sizeof(f->rdma.gid));
	xr_store_relaxed(&f->rdma.peer_qpn, peer_qpn);
	/* release: all fields before the number that says that they are there */
	xr_store_release(&f->rdma.qpn, qpn);
}
