/* SPDX-License-Identifier: BSD-2-Clause */
/* The links of this process to others, or to itself, and who refers to them. */
#ifndef XR_LINKS_H
#define XR_LINKS_H

#include <stdint.h>
#include "shm_link.h"

struct xr_flow;
struct xr_tuple;

/*
 * A live one to the process uuid, taken with a reference.
 * id 0: any.  side: -1 any, else that end of it (both may be in this process).
 */
struct xr_shm_link *xr_links_find(const uint8_t uuid[16], uint64_t id, int side);
void xr_links_add(struct xr_shm_link *l);
/* A connection to where t goes is on this link: remembered. */
void xr_links_goes_to(struct xr_shm_link *l, const struct xr_tuple *t);
/*
 * Links, with a reference each, to processes that other connections to the same place led to; dir: to
 * those in other network namespaces.
 */
int xr_links_to(const struct xr_tuple *t, int dir, struct xr_shm_link **out, int max);
struct xr_shm_link *xr_links_by_id(uint64_t id, int side);
/* Takes what came in on `max` links from number `from` on.  The number to go on with, 0: those were all. */
uint32_t xr_links_hear(uint32_t from, uint32_t max);
/* Takes what has come in on all control connections: a child is to know the peers' bells. */
void xr_links_progress(void);
/* 1: this process shares memory with some other. */
int xr_links_any(void);
void xr_link_ref(struct xr_shm_link *l);
/* The flow's link with a reference, however the flow may change meanwhile; NULL: it has none. */
struct xr_shm_link *xr_flow_link_get(struct xr_flow *f);
/* Lets go; a link that nobody refers to is kept for a while, and then unmapped. */
void xr_link_unref(struct xr_shm_link *l);
/*
 * Gives back the descriptors of all links that no flow is on now and nobody sleeps on; flows that
 * were on them keep the memory.  Returns how many.
 */
int xr_links_strip(void);
/* Lets go of links that no flow has come back to. */
void xr_links_sweep(void);
void xr_links_forked(void);

#endif
