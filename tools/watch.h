/* SPDX-License-Identifier: BSD-2-Clause */
/* What xr-stat and xr-trace have in common: what is shown once, or every so many seconds. */
#ifndef XR_WATCH_H
#define XR_WATCH_H

#include <stdbool.h>
#include <stdio.h>

enum xr_watch_exit {
	EXIT_SHOWN,
	EXIT_PARTLY, /* something could not be read, or what was asked for is not there */
	EXIT_TROUBLE,
};

struct xr_watch {
	const char *tool;
	double seconds; /* 0: once */
	bool page;	/* for people: drawn anew on a terminal */
	bool parted;	/* where it is not, by an empty line */
	/* Writes it; enum xr_watch_exit. */
	int (*show)(FILE *out, void *arg);
	void *arg;
};

/* Until the first trouble.  The exit status. */
int xr_watch(const struct xr_watch *w);

/* Where statistics are published, from the configuration; mistakes that make us look elsewhere are told. */
const char *xr_watch_directory(const char *tool);

#endif /* XR_WATCH_H */
