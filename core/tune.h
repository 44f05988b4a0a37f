/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Settings that an operator can change in a process that runs (xr-stat --set), and so can the process itself
 * (xrdma_set_flag()).  The wish lies in the statistics segment, in a word per setting: the value plus 1, 0: none.
 * The process takes what is within the bounds that the table of settings gives; everything else it leaves alone.
 */
#ifndef XR_TUNE_H
#define XR_TUNE_H

#include "atomic.h"
#include "config.h"
#include "stats.h"

static const uint8_t xr_tune_key[XR_STATS_TUNES] = {
	XR_KEY_SPIN, XR_KEY_UPGRADE_TURNS, XR_KEY_UPGRADE_BYTES, XR_KEY_RETURN_AFTER,
	XR_KEY_TRACE_SAMPLE,
};

/* Of a process's own settings: another thread may change it.  Relaxed: it orders nothing. */
static inline uint64_t xr_tuned(const uint64_t *setting)
{
	return xr_load_relaxed((const _Atomic uint64_t *)setting);
}

/*
 * Of the statistics file that is open for reading and writing: its header, checked.  Then a wish is put there, and the
 * process is told, `path` being the file's name and `control` of the header.  0 or -errno; -EBADMSG, -EPROTONOSUPPORT.
 */
int xr_tune_head(int fd, struct xr_stats_header *h);
int xr_tune_put(int fd, uint32_t i, uint64_t value);
int xr_tune_tell(int fd, const char *path, uint32_t control);

static inline uint64_t *xr_tune_field(struct xr_config *cfg, const struct xr_config_key *k)
{
	return (uint64_t *)(void *)((char *)cfg + k->offset);
}

#endif
