/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A copy of what one process says of its channels (core/chanstats.h), which was written by a stranger, as in
 * segment.h.
 */
#ifndef XR_CHANNELS_H
#define XR_CHANNELS_H

#include "core/chanstats.h"
#include "segment.h"

struct xr_channels_one {
	struct xr_chanstats_ident id; /* texts are printable ASCII, and end */
	unsigned int state; /* enum xr_chanstats_state */
	uint32_t qpn, peer_qpn;
	uint64_t v[XR_CHAN_COUNT];
};

struct xr_channels {
	char program[128], version[32]; /* printable ASCII */
	pid_t pid;
	uid_t uid;
	enum xr_segment_life life;
	uint64_t opened_ns;
	uint64_t total[XR_CHAN_COUNT]; /* with those of open channels; of gauges their sum */
	uint64_t proc[XR_CHANPROC_COUNT];
	uint32_t n;
	struct xr_channels_one *chan; /* malloc'd */
};

/* "PID.STARTTIME.channels": 0, or -EINVAL. */
int xr_channels_name(const char *name, pid_t *pid, uint64_t *start_time);
/* As xr_segment_read(). */
int xr_channels_read(int dirfd, const char *name, struct xr_channels *c, const char **why);
void xr_channels_free(struct xr_channels *c);

const char *xr_channels_state(const struct xr_channels_one *one);

struct xr_channels_field {
	const char *name, *text;
	bool gauge;
};

extern const struct xr_channels_field xr_channels_fields[XR_CHAN_COUNT];
extern const struct xr_channels_field xr_channels_proc_fields[XR_CHANPROC_COUNT];

#endif
