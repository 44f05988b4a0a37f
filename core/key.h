/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The key that the hosts of a cluster share: 256 random bits in a file of one line,
 *
 *	xrdma-key-1 HEX
 *
 * Whoever has it can pass for any process of the cluster, so a file that strangers may read, or put
 * there, is not taken.  A program reads it once, when it starts: later it may not be allowed to any more.
 */
#ifndef XR_KEY_H
#define XR_KEY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "config.h"

#define XR_KEY_LEN	32u
#define XR_KEY_TEXT	80u	/* room for the line, with its 0 */

/* Pure.  0, or -EINVAL: nothing but such a line is a key; nor is one of zeros. */
int xr_key_parse(const char *text, size_t len, uint8_t key[XR_KEY_LEN]);
size_t xr_key_format(const uint8_t key[XR_KEY_LEN], char text[XR_KEY_TEXT]);

/* Pure: whether a file of this mode and owner may be a key of a process of user euid.  0, -EPERM. */
int xr_key_safe(mode_t mode, uid_t owner, uid_t euid);

/* The setting, or where the installed one is. */
const char *xr_key_path(const struct xr_config *cfg);

/*
 * Raw system calls only.  -ENOENT, -EACCES; -EPERM: not safe; -EINVAL: not a key, or not a file.
 * The key is not touched on failure.
 */
int xr_key_load(const char *path, uint8_t key[XR_KEY_LEN]);

/* What is wrong with the file, for an error of xr_key_load(). */
const char *xr_key_error_text(int err);

/* Makes a key in a file that does not exist yet, for its owner alone.  -EEXIST, ... */
int xr_key_make(const char *path);

#endif
