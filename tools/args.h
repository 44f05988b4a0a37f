/* SPDX-License-Identifier: BSD-2-Clause */
/* Numbers that options take.  what: the option's name, for the message with which argp ends the program. */
#ifndef XR_ARGS_H
#define XR_ARGS_H

#include <argp.h>
#include <stdint.h>

uint64_t xr_args_number(struct argp_state *state, const char *what, const char *text, uint64_t least, uint64_t most);
double xr_args_seconds(struct argp_state *state, const char *what, const char *text, double least, double most);

#endif
