/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_CHECK_H
#define XR_CHECK_H

#include <limits.h>
#include <netdb.h>
#include <stdbool.h>

#include "core/reason.h"
#include "settings.h"

/*
 * xrdma-run --check: prints what would happen here and why. preload is the --preload
 * option or NULL, endpoint HOST:PORT or NULL, argv the program (may be empty). 0: an
 * upgrade is possible; 1: it is not, and a line says why.
 */
int xr_check(const struct xr_settings *settings, const char *preload, const char *endpoint, int argc,
	     char **argv);

/* ---- between check.c and check_peer.c ---- */

enum xr_verdict {
	XR_OK,
	XR_NOTE, /* worth knowing; upgrades still work */
	XR_BAD,
};

void xr_check_report(enum xr_verdict v, const char *what, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Connections would be on TCP; the first reason given is the one that they would show. */
void xr_check_blocked(enum xr_reason reason);

/* HOST:PORT of --check, looked up. 0 or -EINVAL after a line on stderr. */
int xr_check_resolve(const char *endpoint, struct addrinfo **ai);

struct xr_check_peer {
	bool refused; /* nobody listens there */
	bool unknown; /* who listens cannot be found out */
	bool far;     /* it is on another host, and RDMA would be tried */
	bool dir;     /* it is in another network namespace, perhaps: run_dir would be tried */
	bool unsaid;  /* it runs under xrdma, and its settings cannot be found out */
};

/* The far end of a connection by program (its path; "": unknown): who it is, and what it would do. */
struct xr_check_peer xr_check_peer(const struct xr_config *cfg, const struct addrinfo *ai,
				   const char *program);

#endif /* XR_CHECK_H */
