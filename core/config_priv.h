/* SPDX-License-Identifier: BSD-2-Clause */
/* What the files of the configuration share; not for others. */
#ifndef XR_CONFIG_PRIV_H
#define XR_CONFIG_PRIV_H

#include "config.h"

#define XR_CONFIG_ENV_PREFIX "XRDMA_"

/* Where a warning goes and what it is about. */
struct xr_warner {
	struct xr_config *cfg;
	xr_config_warn_fn fn; /* NULL: only counted */
	void *arg;
	const char *where;
	unsigned int line;
};

void xr_config_warn(const struct xr_warner *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* The word of a list that a misspelt one is nearest to, or NULL. */
const char *xr_config_nearest(const char *word, const char *const *list, size_t n);

/* Number of value in "a|b|c", or -EINVAL after a warning that names what. */
int xr_config_enum(const char *what, const char *names, const char *value,
		   const struct xr_warner *w);

/* Index of a key; a dash counts as an underscore. -ENOENT. */
int xr_config_key_find(const char *name);

#endif /* XR_CONFIG_PRIV_H */
