/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where registered memory lies: in huge pages, when there are any, and on the node of the machine that uses it.
 *
 * Huge pages.  Memory whose length is a multiple of XR_PLACE_HUGE comes from a memfd of such pages.  All of them are
 * there before it is handed out: a page that is only promised would raise SIGBUS in the program when another took the
 * last one.  So it costs its whole length at once, which is why only registered memory is made this way, and not what
 * two processes share for their connections, where a connection at rest has a few pages (shm_arena.c).  Where there
 * are none, or not enough, it is plain memory, and that is counted.
 *
 * Nodes.  On a machine with several nodes memory is asked for on that of the device, when it leads to a network
 * and says which it is on, else on that of the calling thread.  It is a preference: a node that is full is no error.
 * Whether it lies there is looked at afterwards, page by page, and counted (xr_place_far).
 *
 * System calls and files below xr_place_sys alone; no allocation.  Thread-safe.
 */
#ifndef XR_PLACE_H
#define XR_PLACE_H

#include <stddef.h>
#include <stdint.h>

#define XR_PLACE_HUGE	(2u << 20)	/* bytes of a huge page */
#define XR_PLACE_ANY	(-1)		/* no node in particular, or not known */
#define XR_PLACE_NODES	1023

/* What is wished for; all zero: plain memory, anywhere. */
struct xr_place {
	uint8_t huge;		/* 1: huge pages, when there are any */
	uint8_t nodes;		/* 1: there are several nodes */
	int16_t device;		/* nodes: that of the device, or XR_PLACE_ANY: that of the calling thread */
};

/* What came of it. */
struct xr_placed {
	uint8_t ours;		/* 1: xr_place_memory() made it */
	uint8_t huge;		/* 1: it is in huge pages */
	uint8_t missed;		/* 1: that was wished for, and there are not enough */
	uint8_t refused;	/* 1: the kernel takes no wish for a node */
};

/* Where the machine is described: "/sys"; a test has a tree of its own. */
extern const char *xr_place_sys;

/* 1: memory of this machine lies on several nodes. */
int xr_place_several(void);
/* The node of a CPU, of the CPU that runs this thread, of an RDMA device; XR_PLACE_ANY: not known. */
int xr_place_of_cpu(unsigned int cpu);
int xr_place_of_thread(void);
int xr_place_of_device(const char *name);

/* The wish of a device's user: name of the RDMA device, NULL: none. */
void xr_place_for(struct xr_place *p, const char *device);
/* The node that memory is to lie on just now. */
int xr_place_node(const struct xr_place *p);

/*
 * *len, made whole pages, of zeroed memory.  Shared: a child that is forked sees it, and no page of it is ever copied
 * away from the device.  flags: more ones for mmap(2), of plain memory.  0 or -errno.  It goes with munmap(2).
 */
int xr_place_memory(size_t *len, int flags, const struct xr_place *want, struct xr_placed *got, void **mem);

/* 1: a part of it lies on another node; 0: no part that is there does; -errno: the kernel does not say. */
int xr_place_far(const void *addr, size_t len, int node);

#endif
