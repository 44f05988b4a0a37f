/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections between network namespaces of one host.  Their ends meet by a socket in a directory that both
 * have (setting run_dir), since abstract names end with the namespace; what they say there is that of upgrade.h.
 */
#ifndef XR_RUNDIR_H
#define XR_RUNDIR_H

#include "proof.h"

struct xr_upgrade;

/* 1: there is such a directory, and it can be trusted. */
int xr_rundir_usable(void);

/*
 * What both ends know of a connection, though its addresses may be translated on the way: where it comes
 * from.  server: t is seen from the end that accepted.
 */
static inline void xr_rundir_tuple(struct xr_tuple *out, const struct xr_tuple *t, int server)
{
	*out = *t;
	memset(server ? out->local : out->peer, 0, sizeof(out->local));
	if (server)
		out->lport = 0;
	else
		out->pport = 0;
}

/* As xr_rendezvous_listen() and xr_rendezvous_call(), with what xr_rundir_tuple() has made. */
int xr_rundir_listen(const struct xr_tuple *t);
int xr_rundir_call(const struct xr_tuple *t);
/* Takes the name away. */
void xr_rundir_unlink(const struct xr_tuple *t);

/* ---- the witness: the kernel, asked in both namespaces ---------------------- */

/*
 * Is the socket that was passed (s, by user uid) the one that has the addresses `claim` in the namespace of
 * the query socket diag?  0, -EACCES, other errors: cannot be found out.
 */
int xr_witness_check(int diag, const struct xr_proof_seen *s, uint32_t uid, int own, const struct xr_tuple *claim);

/*
 * What each end sends over TCP must arrive at the socket that the other has shown: looked at before and after
 * calls of the program that write.  tx_lock held.
 */
void xr_witness_look(struct xr_upgrade *u, int fd, int after);
/* 1: seen often enough; 0: not yet; -EACCES: it is another connection's socket. */
int xr_witness_done(const struct xr_upgrade *u);

#endif
