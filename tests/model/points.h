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

/*
 * Stores wait in a buffer of the end that makes them, as on x86, until the next locked
 * operation, barrier or system call at the latest; its own loads see them.
 */
void model_store(volatile void *p, uint64_t v, size_t size);
uint64_t model_load(const volatile void *p, uint64_t v, size_t size);
void model_barrier(void);

#define MODEL_STORE(p, v)	model_store(p, (uint64_t)(__typeof__(atomic_load(p)))(v), sizeof(*(p)))
#define MODEL_LOAD(p)									\
	__extension__({									\
		model_point(p);								\
		(__typeof__(atomic_load(p)))model_load(p, (uint64_t)atomic_load(p), sizeof(*(p))); \
	})
#define MODEL_RMW(p, access)	__extension__({ model_point(p); model_barrier(); access; })

#define xr_load_relaxed(p)	MODEL_LOAD(p)
#define xr_load_acquire(p)	MODEL_LOAD(p)
#define xr_store_relaxed(p, v)	MODEL_STORE(p, v)
#define xr_store_release(p, v)	MODEL_STORE(p, v)
#define xr_xchg(p, v)		MODEL_RMW(p, atomic_exchange_explicit(p, v, memory_order_acq_rel))
#define xr_fetch_or(p, v)	MODEL_RMW(p, atomic_fetch_or_explicit(p, v, memory_order_acq_rel))
#define xr_fetch_and(p, v)	MODEL_RMW(p, atomic_fetch_and_explicit(p, v, memory_order_acq_rel))
#define atomic_fetch_or(p, v)	MODEL_RMW(p, atomic_fetch_or_explicit(p, v, memory_order_seq_cst))
#define xr_cas(p, old, v)							\
	MODEL_RMW(p, atomic_compare_exchange_strong_explicit(p, old, v,		\
		  memory_order_seq_cst, memory_order_seq_cst))
#define xr_fence_store_load()	model_barrier()

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
