/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XRDMA_H
#define XRDMA_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*
 * The version of the library that is loaded, "major.minor.patch". A constant string that the library
 * owns; never NULL, never fails, safe from any thread and from signal handlers.
 */
const char *xrdma_version(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
