/* SPDX-License-Identifier: BSD-2-Clause */
/* Numbers that options take: see args.h. */
#include "args.h"

#include <errno.h>
#include <stdlib.h>

uint64_t xr_args_number(struct argp_state *state, const char *what, const char *text, uint64_t least, uint64_t most)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || v < least || v > most)
		argp_error(state, "%s: '%s' is not a number from %llu to %llu", what, text, (unsigned long long)least,
			   (unsigned long long)most);
	return v;
}

double xr_args_seconds(struct argp_state *state, const char *what, const char *text, double least, double most)
{
	char *end;
	double v;

	errno = 0;
	v = strtod(text, &end);
	if (errno || end == text || *end || !(v >= least && v <= most))
		argp_error(state, "%s: '%s' is not a number of seconds from %g to %.0f", what, text, least, most);
	return v;
}
