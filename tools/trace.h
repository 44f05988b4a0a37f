/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-trace: trace_read.c reads one ring of records, trace_find.c all of them, trace_join.c makes messages of records,
 * trace_show.c prints them, trace_export.c as JSON. */
#ifndef XR_TOOL_TRACE_H
#define XR_TOOL_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "core/trace.h"
#include "segment.h"

/* A copy of one process's records.  Nothing in the file is trusted. */
struct xr_trace_file {
	char program[128];	/* printable ASCII */
	char version[32];
	pid_t pid;
	uid_t uid;
	bool channels;		/* of the library; else of the preload object */
	enum xr_segment_life life;
	uint64_t time_ns;	/* inode of the time namespace */
	uint8_t boot[16];
	bool here;		/* by the clock of this moment: of this kernel, and no copy of a file */
	uint64_t real_off;	/* CLOCK_REALTIME less CLOCK_MONOTONIC, modulo 2^64 */
	uint64_t written, lost, skipped;
	size_t n;
	struct xr_trace_data *rec;	/* malloc'd, oldest first */
};

/*
 * Reads the file name in the directory dirfd.  0, or -errno with a phrase in *why: -EAGAIN being made,
 * -EPROTONOSUPPORT another version, -EBADMSG not a sound ring, or what open and read gave.
 */
int xr_trace_read(int dirfd, const char *name, struct xr_trace_file *f, const char **why);
void xr_trace_file_free(struct xr_trace_file *f);

/* "PID.STARTTIME.trace": 0 or -EINVAL. */
int xr_trace_name(const char *name, pid_t *pid, uint64_t *start, bool *channels);

struct xr_trace_options {
	bool json, otlp, dead, connections, waterfall;
	bool messages;
	unsigned int last;	/* how many messages are shown one by one */
	double watch;
	pid_t pid;
	const char *program, *id, *dir, *base;
	char **files;		/* instead of what base has */
};

struct xr_trace_set {
	struct xr_trace_file *file;
	size_t n;
	unsigned int errors;	/* told on stderr */
	/*
	 * ns of the epoch at which reading began; 0: files that were named.  One is read after the other while
	 * programs go on: of what began later only that end is known which was read last.
	 */
	uint64_t begun;
};

int xr_trace_find(const struct xr_trace_options *opt, struct xr_trace_set *set);
void xr_trace_set_free(struct xr_trace_set *set);

/* One end of a message; NULL file: nothing of it could be read. */
struct xr_trace_end {
	const struct xr_trace_file *file;
	const struct xr_trace_data *rec;	/* any one of it */
};

struct xr_trace_msg {
	uint64_t id[2], span, len;
	struct xr_trace_end sender, receiver;
	unsigned int have;		/* stages, as bits */
	unsigned int far;		/* of them: those that are the other end's word */
	uint64_t at[XR_TRACE_STAGES];	/* ns of the epoch, all by one clock */
	bool offset_known;
	int64_t offset_ns;		/* the receiver's clock less the sender's; it has been taken out of `at` */
	uint64_t error_ns;
};

struct xr_trace_msgs {
	struct xr_trace_msg *msg;	/* malloc'd, oldest first */
	size_t n;
};

/* 0 or -ENOMEM.  The set must outlive it. */
int xr_trace_join(const struct xr_trace_set *set, struct xr_trace_msgs *msgs);

/* What lies between two stages. */
struct xr_trace_part {
	const char *name;
	enum xr_trace_stage from, to;
	const char *text;
};

#define XR_TRACE_PARTS 6
extern const struct xr_trace_part xr_trace_part[XR_TRACE_PARTS];
extern const char *const xr_trace_stage_name[XR_TRACE_STAGES];

/* ns that a part took; false: it is not known.  What the clocks' error makes negative is 0. */
bool xr_trace_took(const struct xr_trace_msg *m, unsigned int part, uint64_t *ns);

struct xr_trace_sum {
	size_t n;
	uint64_t p50, p90, p99, max;
};

/* Of all messages, or of those that `same` is true for (arg).  0 or -ENOMEM. */
int xr_trace_summarise(const struct xr_trace_msgs *msgs, unsigned int part,
		       bool (*same)(const struct xr_trace_msg *m, const void *arg), const void *arg,
		       struct xr_trace_sum *sum);

/* A message that the options ask for. */
bool xr_trace_wanted(const struct xr_trace_options *opt, const struct xr_trace_msg *m);

int xr_trace_show(FILE *out, const struct xr_trace_options *opt, const struct xr_trace_set *set,
		  const struct xr_trace_msgs *msgs);
int xr_trace_json(FILE *out, const struct xr_trace_set *set, const struct xr_trace_msgs *msgs);
/* Spans of OpenTelemetry: opentelemetry/proto/trace/v1, in its JSON mapping. */
int xr_trace_otlp(FILE *out, const struct xr_trace_set *set, const struct xr_trace_msgs *msgs);

/* 32 and 16 hexadecimal digits, in the order of the bytes. */
void xr_trace_id_text(const uint64_t id[2], char text[33]);
void xr_trace_span_text(uint64_t span, char text[17]);
/* "127.0.0.1:7000", or "-" */
void xr_trace_addr_text(const struct xr_stats_addr *a, char *text, size_t size);

#endif
