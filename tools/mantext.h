/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_MANTEXT_H
#define XR_MANTEXT_H

/*
 * Prints a part of the man pages from the tables of the source, as mdoc(7): "settings"
 * (xrdma.conf), "options" (xrdma-run), "reasons", "counters", "calls" and "environment" (xrdma), "info" (xr-stat).
 * man/sync puts them into the pages. 0 or -ENOENT.
 */
int xr_man_text(const char *part);

#endif /* XR_MANTEXT_H */
