/* SPDX-License-Identifier: BSD-2-Clause */
/* Where registered memory lies, see place.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "log.h"
#include "mem.h"
#include "place.h"

#define PAGE		4096u
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23	/* of kernel 5.14 */
#endif
#define LOOKS		16u	/* pages of one piece of memory that are looked at */

const char *xr_place_sys = "/sys";

/* --- the machine ----------------------------------------------------------------------------- */

/* A file below xr_place_sys as text.  Bytes, or -errno. */
static long place_read(const char *name, char *to, size_t room)
{
	char path[256];
	long fd, n;

	if (xr_snprintf(path, sizeof(path), "%s/%s", xr_place_sys, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = xr_sys4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	n = xr_sys3(SYS_read, fd, to, room - 1);
	xr_sys1(SYS_close, fd);
	if (n >= 0)
		to[n] = '\0';
	return n;
}

/* A number at *s, which moves behind it; -1: there is none. */
static long place_number(const char **s)
{
	long n = -1;

	for (; **s >= '0' && **s <= '9' && n < 1000000; (*s)++)
		n = (n < 0 ? 0 : n) * 10 + (**s - '0');
	return n;
}

/* The next range of a list as the kernel writes them, "0-3,8".  0: there is none. */
static int place_range(const char **s, long *first, long *last)
{
	*s += **s == ',';
	*first = *last = place_number(s);
	if (*first < 0)
		return 0;
	if (**s == '-') {
		(*s)++;
		*last = place_number(s);
	}
	return *last >= *first && (!**s || **s == ',' || **s == '\n');
}

int xr_place_several(void)
{
	char text[1024];
	const char *s = text;
	long first, last, n = 0;

	/* those with memory: one that has only processors is no place for it */
	if (place_read("devices/system/node/has_memory", text, sizeof(text)) < 0)
		return 0;
	while (place_range(&s, &first, &last))
		n += last - first + 1;
	return n > 1;
}

static int place_has_cpu(long node, long cpu)
{
	char name[64], text[4096];
	const char *s = text;
	long first, last;

	xr_snprintf(name, sizeof(name), "devices/system/node/node%ld/cpulist", node);
	if (place_read(name, text, sizeof(text)) < 0)
		return 0;
	while (place_range(&s, &first, &last))
		if (cpu >= first && cpu <= last)
			return 1;
	return 0;
}

int xr_place_of_cpu(unsigned int cpu)
{
	char text[1024];
	const char *s = text;
	long first, last;

	if (place_read("devices/system/node/online", text, sizeof(text)) < 0)
		return XR_PLACE_ANY;
	while (place_range(&s, &first, &last))
		for (; first <= last && first < XR_PLACE_NODES; first++)
			if (place_has_cpu(first, (long)cpu))
				return (int)first;
	return XR_PLACE_ANY;
}

int xr_place_of_thread(void)
{
	unsigned int cpu = 0;

	return xr_sys3(SYS_getcpu, &cpu, 0, 0) ? XR_PLACE_ANY : xr_place_of_cpu(cpu);
}

int xr_place_of_device(const char *name)
{
	char path[128], text[32];
	const char *s = text;
	long n;

	if (xr_snprintf(path, sizeof(path), "class/infiniband/%s/device/numa_node", name) >= (int)sizeof(path) ||
	    place_read(path, text, sizeof(text)) < 0)
		return XR_PLACE_ANY;
	/* "-1": the machine does not say */
	n = place_number(&s);
	return n >= 0 && n < XR_PLACE_NODES ? (int)n : XR_PLACE_ANY;
}

void xr_place_for(struct xr_place *p, const char *device)
{
	p->nodes = (uint8_t)xr_place_several();
	p->device = p->nodes && device ? (int16_t)xr_place_of_device(device) : XR_PLACE_ANY;
}

int xr_place_node(const struct xr_place *p)
{
	if (!p->nodes)
		return XR_PLACE_ANY;
	return p->device >= 0 ? p->device : xr_place_of_thread();
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Before there is a page of it. */
static int place_bind(void *addr, size_t len, int node)
{
	unsigned long mask[(XR_PLACE_NODES + 1) / (8 * sizeof(long))] = { 0 };

	mask[(size_t)node / (8 * sizeof(long))] |= 1ul << (size_t)node % (8 * sizeof(long));
	return (int)xr_sys6(SYS_mbind, addr, len, MPOL_PREFERRED, mask, XR_PLACE_NODES + 1, 0);
}

/*
 * Huge pages: all of them now, or none.  As a fault would, and so on the node that was asked for, but a page that
 * cannot be had is an error and no SIGBUS; where the kernel knows no such call (before 5.14), without the node.
 */
static long place_fill(int fd, void *addr, size_t len)
{
	int tries = 100;
	long r;

	do {
		r = xr_sys3(SYS_madvise, addr, len, MADV_POPULATE_WRITE);
		if (r == -EINVAL)
			r = xr_sys4(SYS_fallocate, fd, 0, 0, len);
		/* a signal: what is there by then stays */
	} while (r == -EINTR && tries--);
	return r;
}

/* memfd: flags of it. */
static int place_map(size_t len, unsigned int memfd, int flags, int node, struct xr_placed *got, void **mem)
{
	long fd = xr_sys2(SYS_memfd_create, "xrdma-pool", MFD_CLOEXEC | memfd), p, r;

	if (fd < 0)
		return (int)fd;
	r = xr_sys2(SYS_ftruncate, fd, len);
	p = r ? r : xr_sys6(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
	if (p < 0 && p > -4096) {
		r = p;
		goto close_fd;
	}
	got->refused = node >= 0 && place_bind((void *)p, len, node);
	if (memfd)
		r = place_fill((int)fd, (void *)p, len);
	if (r)
		xr_sys2(SYS_munmap, p, len);
	*mem = (void *)p;
close_fd:
	xr_sys1(SYS_close, fd);
	return (int)r;
}

int xr_place_memory(size_t *len, int flags, const struct xr_place *want, struct xr_placed *got, void **mem)
{
	size_t n = XR_ALIGN(*len, (size_t)PAGE);
	int node = xr_place_node(want), r;
	struct rlimit rl;

	*got = (struct xr_placed){ .ours = 1 };
	/* beyond the limit ftruncate would raise SIGXFSZ in the program */
	if (!xr_sys4(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &rl) && rl.rlim_cur < n)
		return -EFBIG;
	if (want->huge && n % XR_PLACE_HUGE == 0) {
		r = place_map(n, MFD_HUGETLB | MFD_HUGE_2MB, 0, node, got, mem);
		got->huge = !r;
		got->missed = r != 0;
		if (r)
			xr_debug("no huge pages for %zu bytes: error %d", n, -r);
	}
	r = got->huge ? 0 : place_map(n, 0, flags, node, got, mem);
	if (!r)
		*len = n;
	return r;
}

int xr_place_far(const void *addr, size_t len, int node)
{
	size_t pages = len / PAGE, i;
	const uint8_t *at[LOOKS];
	int where[LOOKS];
	unsigned long n = 0, k;
	long r;

	/* the first ones, which are used first, and some of all */
	for (i = 0; i < pages && n < LOOKS; i += n < LOOKS / 2 ? 1 : pages / (LOOKS / 2) + 1)
		at[n++] = (const uint8_t *)addr + i * PAGE;
	/* without nodes to move them to it says where they are; what is not there, below zero */
	r = xr_sys6(SYS_move_pages, 0, n, at, 0, where, 0);
	if (r < 0)
		return (int)r;
	for (k = 0; k < n; k++)
		if (where[k] >= 0 && where[k] != node)
			return 1;
	return 0;
}
