/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Proof for connections between network namespaces (rundir.h).  The addresses of one namespace say nothing
 * in another one: two containers may have the same, and a translation on the way shows neither end those of
 * the other.  So the kernel is asked, by a query socket that the other end made in its namespace, what the
 * socket that it has shown has received, before and after calls of this program that write: on one kernel
 * bytes are in the receiver's socket when the call that sent them returns.  What arrives there, to the byte,
 * WITNESS_HITS times, comes from here.
 *
 * Nothing is written into the stream for that.  Who speaks first in band cannot know who will read it; and a
 * proxy that has taken the place of both ends would pass a word on, where these counts part.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <netinet/in.h>
#include "log.h"
#include "mem.h"
#include "rundir.h"
#include "upgrade.h"

#define WITNESS_HITS	8u
#define WITNESS_LOOKS	8192u	/* without so many: it will not be seen */
#define ESTABLISHED	1	/* TCP_ESTABLISHED */

int xr_witness_check(int diag, const struct xr_proof_seen *s, uint32_t uid, int own, const struct xr_tuple *claim)
{
	struct xr_sock_ident id;
	struct tcp_info info;
	struct stat self;
	int r;

	if (xr_sys2(SYS_fstat, own, &self))
		return -EACCES;
	r = xr_proof_lookup_by(diag, claim, &id, &info);
	if (r == -ENOENT)
		return -EACCES;
	if (r)
		return r;
	if (!s->is || s->dev != self.st_dev || !id.inode || s->ino != id.inode)
		return -EACCES;
	/* not what the query says: that is in numbers of another user namespace, perhaps */
	return uid == s->uid || uid == 0 ? 0 : -EACCES;
}

/* What this end has written, all in all, and what of it is acknowledged. */
static int witness_own(const struct xr_flow *f, int fd, uint64_t *written, uint64_t *acked)
{
	struct tcp_info i;
	socklen_t len = sizeof(i);

	if (xr_sys5(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &i, &len) ||
	    len < offsetof(struct tcp_info, tcpi_bytes_retrans) + 8 || i.tcpi_state != ESTABLISHED)
		return -EAGAIN;
	*written = i.tcpi_bytes_sent - i.tcpi_bytes_retrans + i.tcpi_notsent_bytes;
	if (*written != xr_load_relaxed(&f->tcp_tx) && xr_ksock_written(fd, f->role == XR_FLOW_CONNECT, written))
		return -EAGAIN;
	/* the SYN of the connecting end was acknowledged as a byte */
	*acked = i.tcpi_bytes_acked - (f->role == XR_FLOW_CONNECT && i.tcpi_bytes_acked);
	return 0;
}

void xr_witness_look(struct xr_upgrade *u, int fd, int after)
{
	struct xr_witness *w = &u->witness;
	uint64_t wrote, acked, wrote2, acked2;
	struct xr_sock_ident id;
	struct tcp_info far;
	uint32_t was = w->even;
	int r;

	w->even = 0;
	if (w->hits >= WITNESS_HITS || (after && !was) || witness_own(u->f, fd, &wrote, &acked))
		return;
	r = xr_proof_lookup_by(u->link->diag, &w->claim, &id, &far);
	if (r == -EAGAIN || witness_own(u->f, fd, &wrote2, &acked2))
		return;
	if (++w->looks > WITNESS_LOOKS || r == -ENOENT || r == -EACCES)
		w->broken = 1;
	if (r)
		return;
	/* it has more than was ever written, or less than was acknowledged */
	if (far.tcpi_state != ESTABLISHED || id.inode != w->inode ||
	    far.tcpi_bytes_received > wrote2 || far.tcpi_bytes_received < acked) {
		w->broken = 1;
	} else if (far.tcpi_bytes_received == wrote && wrote == wrote2) {
		/* all that was written is there: before the call, and with what it wrote after it */
		if (after)
			w->hits += wrote > w->seen;
		else
			w->even = 1;
		w->seen = wrote;
	} else if (far.tcpi_bytes_received == acked && acked == acked2 && acked > w->seen) {
		/* more is queued than it has room for, and the kernel's account of that agrees */
		w->hits++;
		w->seen = acked;
	}
}

int xr_witness_done(const struct xr_upgrade *u)
{
	if (u->witness.broken)
		return -EACCES;
	if (u->witness.hits >= WITNESS_HITS)
		return 1;
	/* an end that only reads: the other one has seen its bytes arrive here, and says so by being ready */
	return xr_load_acquire(&u->f->tx.dir->ready) != 0;
}
