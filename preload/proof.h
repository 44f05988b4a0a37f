/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who is at the other end: the 4-tuple of a flow, and evidence that a process on this
 * host owns the socket at its far end.
 */
#ifndef XR_PROOF_H
#define XR_PROOF_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>

/* Fixed layout, goes over the rendezvous socket; IPv4-mapped addresses become IPv4. */
struct xr_tuple {
	uint8_t local[16], peer[16];	/* network order, IPv4 in the first 4 bytes */
	uint16_t lport, pport;		/* network order */
	uint16_t family;		/* AF_INET or AF_INET6 */
	uint16_t zero;
};

union xr_sockaddr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_storage ss;
};

/* The flow's addresses.  0, -ENOTCONN, -EAFNOSUPPORT; local and peer may be NULL. */
int xr_tuple_get(int fd, struct xr_tuple *t, union xr_sockaddr *local, union xr_sockaddr *peer);
/* The same connection seen from the other end. */
static inline void xr_tuple_mirror(struct xr_tuple *to, const struct xr_tuple *from)
{
	*to = *from;
	memcpy(to->local, from->peer, 16);
	memcpy(to->peer, from->local, 16);
	to->lport = from->pport;
	to->pport = from->lport;
}

struct xr_sock_ident {
	uint32_t inode, uid;
	uint32_t shut;		/* 1: for reading, 2: for writing, 3: both, as close(2) begins */
};

/*
 * The socket in this network namespace with exactly the addresses of t (its own side as
 * local), by inet_diag.  0, -ENOENT: none here, other errors: the kernel will not tell.
 */
int xr_proof_lookup(const struct xr_tuple *t, struct xr_sock_ident *id);

/*
 * The same by a query socket that another process made, in its network namespace, with what the kernel
 * counts there.  -EACCES: that is not such a socket.
 */
struct tcp_info;
int xr_proof_lookup_by(int diag, const struct xr_tuple *t, struct xr_sock_ident *id, struct tcp_info *info);
/* A fresh query socket for another process to use: a low descriptor, or -errno. */
int xr_proof_diag(void);

/* An O_PATH descriptor of a socket: shows which one it is, gives no access to it.  -errno. */
int xr_proof_open(int fd);

/* Which socket a descriptor that a peer passed is of; not one: `is` 0. */
struct xr_proof_seen {
	uint64_t dev, ino;
	uint32_t uid;			/* who made it, as seen from here */
	int is;
};

void xr_proof_see(int fd, struct xr_proof_seen *s);

/* The same as xr_proof_check, when it was passed by user uid. */
int xr_proof_match(const struct xr_proof_seen *s, uint32_t uid, int own, const struct xr_tuple *t);

/*
 * Does `fd`, received over `conn`, denote the socket at the far end of the flow `own`
 * (tuple t)?  0, -EACCES: no, other errors: cannot be found out.
 */
int xr_proof_check(int fd, int conn, int own, const struct xr_tuple *t);

/* Closes the query socket until it is needed again.  1: there was one. */
int xr_proof_strip(void);

/* After fork: the query socket is shared with the parent, forget it. */
void xr_proof_forked(void);

#endif
