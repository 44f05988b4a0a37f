/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Included before every source file under check: each access to memory that both ends map
 * becomes a point where the other end may run, and the sizes of the ring become small.
 */
#ifndef MODEL_POINTS_H
#define MODEL_POINTS_H

#include <stddef.h>
#include "core/atomic.h"
#include "core/mem.h"
#include "core/shm_ring.h"

/* The other end may act before this access, if the address is in a shared arena. */
void model_point(const volatile void *p);

#undef xr_load_relaxed
#undef xr_load_acquire
#undef xr_store_relaxed
#undef xr_store_release
#undef xr_xchg
#undef xr_fetch_or
#undef xr_fetch_and
#undef xr_cas
#undef atomic_fetch_or

#define MODEL_AT(p, access)	__extension__({ model_point(p); access; })

#define xr_load_relaxed(p)	MODEL_AT(p, atomic_load_explicit(p, memory_order_relaxed))
#define xr_load_acquire(p)	MODEL_AT(p, atomic_load_explicit(p, memory_order_acquire))
#define xr_store_relaxed(p, v)	MODEL_AT(p, atomic_store_explicit(p, v, memory_order_relaxed))
#define xr_store_release(p, v)	MODEL_AT(p, atomic_store_explicit(p, v, memory_order_release))
#define xr_xchg(p, v)		MODEL_AT(p, atomic_exchange_explicit(p, v, memory_order_acq_rel))
#define xr_fetch_or(p, v)	MODEL_AT(p, atomic_fetch_or_explicit(p, v, memory_order_acq_rel))
#define xr_fetch_and(p, v)	MODEL_AT(p, atomic_fetch_and_explicit(p, v, memory_order_acq_rel))
#define atomic_fetch_or(p, v)	MODEL_AT(p, atomic_fetch_or_explicit(p, v, memory_order_seq_cst))
#define xr_cas(p, old, v)							\
	MODEL_AT(p, atomic_compare_exchange_strong_explicit(p, old, v,		\
		 memory_order_seq_cst, memory_order_seq_cst))

/* Small enough to exhaust: inline, by reference, appended and several chunks all occur. */
#undef XR_SLOT_INLINE
#undef XR_PUBLISH
#undef XR_CHUNK
#define XR_SLOT_INLINE	2u
#define XR_PUBLISH	3u
#define XR_CHUNK	128u

/* Time passes only as the scenario says. */
uint64_t model_cycles(void);
#define xr_cycles	model_cycles

#endif
