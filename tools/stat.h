/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_STAT_H
#define XR_STAT_H

#include <stdbool.h>
#include <stdio.h>

#include "channels.h"
#include "segment.h"

/* What xr-stat was asked for. */
struct xr_stat_options {
	bool all, listeners, numeric, process, totals, info, json, prometheus, dead, resolve;
	bool retreat, back; /* the operator's request */
	uint64_t tune[XR_STATS_TUNES]; /* likewise: settings, plus 1 */
	bool tunes;
	double watch; /* seconds; 0 once */
	double wait;  /* seconds that --retreat may take; 0 not given */
	int fd;	      /* -1 any */
	const char *device; /* of RDMA, or "shm"; NULL any */
	pid_t pid;    /* 0 any */
	const char *program; /* glob or NULL */
	const char *dir;     /* --dir or NULL */
	const char *base;    /* directory in force */
};

struct xr_stat_set {
	struct xr_segment *seg; /* malloc'd, sorted by pid */
	size_t n;
	struct xr_channels *api; /* malloc'd, sorted by pid: programs on the public interface */
	size_t n_api;
	unsigned int errors; /* segments that were there and could not be read; told on stderr */
};

/* Reads every segment that may be read, and unlinks those of dead processes of ours. */
int xr_stat_collect(const struct xr_stat_options *opt, struct xr_stat_set *set);

/*
 * Adds the listening sockets of processes under xrdma, and those processes if they have
 * published nothing. 0 or -ENOMEM.
 */
int xr_stat_add_listeners(const struct xr_stat_options *opt, struct xr_stat_set *set);

/* Processes under xrdma that opt->program admits, as /proc shows them to this user, whatever they publish. */
size_t xr_stat_programs(const struct xr_stat_options *opt);

/* Brings queues and bytes of open connections up to this moment: what a process last wrote is older. */
int xr_stat_live(struct xr_stat_set *set);

void xr_stat_release(struct xr_stat_set *set);

/* Nothing was found of this process since it belongs to somebody else; told on stderr. False: there is none. */
bool xr_stat_foreign(pid_t pid);

/* A line on standard error. */
void xr_stat_complain(const char *dir, const char *name, const char *why);

/* --- stat_channels.c: programs on the public interface --- */

/* Adds what the file name of a directory says, if it is one of channels: 1, 0 when it is none, -ENOMEM. */
int xr_stat_add_channels(const struct xr_stat_options *opt, struct xr_stat_set *set, const char *dirname,
			 int dirfd, const char *name, uid_t uid);
/* Lets go of what was not asked for, and sorts. */
void xr_stat_select_channels(const struct xr_stat_options *opt, struct xr_stat_set *set);
void xr_stat_release_channels(struct xr_stat_set *set);
void xr_stat_print_channels(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set);
void xr_stat_print_channel_totals(FILE *out, const struct xr_stat_set *set);
void xr_stat_print_channel_prometheus(FILE *out, const struct xr_stat_set *set);

/* --- stat_table.c --- */

#define XR_STAT_COLUMNS 10
struct xr_stat_row {
	char *cell[XR_STAT_COLUMNS];
	char *info; /* the second line, or NULL */
};
void xr_stat_cell(struct xr_stat_row *r, int column, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* 4194304 as 4M; only what divides evenly. The text lives in buf. */
const char *xr_stat_human(uint64_t v, char *buf, size_t size);
double xr_stat_age(uint64_t ns);
/* Prints the rows and frees what they hold; `right` columns are aligned to the right. */
void xr_stat_print_rows(FILE *out, const char *const *titles, const bool *right, struct xr_stat_row *rows, size_t n,
			int columns);

/* --- stat_export.c --- */

/* {pid="1",program="x" without the closing brace */
void xr_stat_labels(FILE *out, int pid, const char *program);

/* A flow that the options ask to be listed. */
bool xr_stat_wanted(const struct xr_stat_options *opt, const struct xr_segment_flow *f);

void xr_stat_print_table(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set);
void xr_stat_print_totals(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set);
int xr_stat_print_json(FILE *out, const struct xr_stat_set *set);
void xr_stat_print_prometheus(FILE *out, const struct xr_stat_set *set);

/* Carries out opt->retreat or opt->back and says what came of it; the exit status. */
int xr_stat_control(const struct xr_stat_options *opt);

/* "127.0.0.1:http"; brackets round IPv6. The text lives in buf. */
const char *xr_stat_addr(const struct xr_stats_addr *a, bool numeric, bool resolve, char *buf,
			 size_t size);

#endif /* XR_STAT_H */
