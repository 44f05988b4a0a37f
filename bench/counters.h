/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COUNTERS_H
#define COUNTERS_H

#include "core/stats.h"

/* What this process publishes, to be read while it runs; NULL: it is not under xrdma. */
const struct xr_stats_segment *counters_own(void);

#endif
