/* SPDX-License-Identifier: BSD-2-Clause */
#include "reason.h"

#include <errno.h>
#include <string.h>

struct reason {
	const char *name, *text;
};

/* By code; a hole (a code that never existed) has no name. */
static const struct reason reasons[XR_REASON_COUNT] = {
#define ROW(sym, num, name, text) [num] = {name, text},
	XR_REASON_TABLE(ROW)
#undef ROW
};

/* Two rows with one number would silently drop a name: the sums below would differ. */
#define SUM(sym, num, name, text) +1
_Static_assert(XR_REASON_COUNT == 0 XR_REASON_TABLE(SUM), "codes are dense and unique");
#undef SUM

const char *xr_reason_name(unsigned int code)
{
	return code < XR_REASON_COUNT ? reasons[code].name : "unknown";
}

const char *xr_reason_text(unsigned int code)
{
	return code < XR_REASON_COUNT ? reasons[code].text
				      : "A code that this version of xrdma does not know.";
}

int xr_reason_by_name(const char *name)
{
	for (int i = 0; i < XR_REASON_COUNT; i++)
		if (!strcmp(reasons[i].name, name))
			return i;
	return -ENOENT;
}
