/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_SETTINGS_H
#define XR_SETTINGS_H

#include "core/config.h"

/* Settings as xrdma-run sees them: its options on top of environment and file. */
struct xr_settings {
	const char *file;		 /* --config, absolute; NULL: as usual */
	const char *option[XR_KEY_COUNT]; /* value of the option, NULL: not given */
	const char *name[XR_KEY_COUNT];	  /* of those that are given, with its dashes */
};

/* "max-flows" for max_flows. */
void xr_settings_option_name(enum xr_config_key_id id, char *buf, size_t size);

/* Takes an option; a value that is none gives one line on stderr and -EINVAL. */
int xr_settings_option(struct xr_settings *s, enum xr_config_key_id id, const char *value);

/* Takes --config. The program and what it starts may be elsewhere. 0 or -errno. */
int xr_settings_file_option(struct xr_settings *s, const char *file);

/* Puts the options into our environment, for the program. 0 or -ENOMEM. */
int xr_settings_export(const struct xr_settings *s);

/*
 * The same, and tells of all mistakes in the configuration as the program would, which then
 * need not, nor anything that it starts.
 */
int xr_settings_tell(const struct xr_settings *s);

/*
 * What a program started now would read; warnings go to stderr, their number is
 * cfg->warnings.
 */
void xr_settings_load(const struct xr_settings *s, struct xr_config *cfg);

/* The file that is read. */
const char *xr_settings_file(const struct xr_settings *s);

/* Prints every setting with its origin, and the rules, as a configuration file. */
void xr_settings_show(const struct xr_settings *s);

/* Prints one rule as the file has it. */
void xr_settings_show_rule(const struct xr_rule *rule);

#endif /* XR_SETTINGS_H */
