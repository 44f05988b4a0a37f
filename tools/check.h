/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_CHECK_H
#define XR_CHECK_H

#include "settings.h"

/*
 * xrdma-run --check: prints what would happen here and why. preload is the --preload
 * option or NULL, endpoint HOST:PORT or NULL, argv the program (may be empty). 0: an
 * upgrade is possible; 1: it is not, and a line says why.
 */
int xr_check(const struct xr_settings *settings, const char *preload, const char *endpoint, int argc,
	     char **argv);

#endif /* XR_CHECK_H */
