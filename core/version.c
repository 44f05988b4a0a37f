/* SPDX-License-Identifier: BSD-2-Clause */
#include "autoconf.h"
#include "core/xrdma.h"

const char *xrdma_version(void)
{
	return PACKAGE_VERSION;
}
