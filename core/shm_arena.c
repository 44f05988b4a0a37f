/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Arenas: sealed memfds, one written by each end of a link.
 *
 * Of small pages, which are there when they are first written to: a connection at rest has a few of them, on the node
 * of the thread that wrote.  Huge ones would all have to be there from the start (place.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include "log.h"
#include "mem.h"
#include "shm_link.h"

#define ARENA_MIN	XR_ARENA_MIN
#define ARENA_MAX	(4ull << 30)
#define ARENA_SEALS	(F_SEAL_SHRINK | F_SEAL_GROW)
#define ARENA_SLEEP_STRIDE	XR_CACHELINE

static void arena_layout(struct xr_shm_hdr *h, uint64_t size, uint32_t dir_slots)
{
	memset(h, 0, sizeof(*h));
	h->magic = XR_SHM_MAGIC;
	h->version = XR_SHM_VERSION;
	h->size = size;
	h->waiters = XR_WAITERS;
	h->dir_slots = dir_slots;
	h->sleep_off = 4096;
	h->cq_off = h->sleep_off + (uint64_t)XR_WAITERS * ARENA_SLEEP_STRIDE;
	h->dir_off = XR_ALIGN(h->cq_off + (uint64_t)XR_WAITERS * sizeof(struct xr_shm_cq),
			      (uint64_t)4096);
	h->ndirs = (uint32_t)(size / 4 / XR_DIR_BYTES(dir_slots));
	h->chunk_off = XR_ALIGN(h->dir_off + (uint64_t)h->ndirs * XR_DIR_BYTES(dir_slots),
				(uint64_t)XR_CHUNK);
	h->nchunks = h->chunk_off < size ? (uint32_t)((size - h->chunk_off) / XR_CHUNK) : 0;
}

/* A layout is a function of size and slots: a header that says anything else is refused. */
static int arena_valid(const struct xr_shm_hdr *h, uint64_t size)
{
	struct xr_shm_hdr want;

	if (h->magic != XR_SHM_MAGIC || h->version != XR_SHM_VERSION || h->size != size)
		return 0;
	if (size < ARENA_MIN || size > ARENA_MAX || size % XR_CHUNK)
		return 0;
	if (h->dir_slots < XR_RING_MIN || h->dir_slots > XR_RING_MAX ||
	    (h->dir_slots & (h->dir_slots - 1)))
		return 0;
	arena_layout(&want, size, h->dir_slots);
	return want.ndirs && want.nchunks && !memcmp(&want, h, sizeof(want));
}

static uint8_t *arena_map(int fd, uint64_t size)
{
	long p = xr_sys6(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			 fd, 0);

	if (p < 0 && p > -4096)
		return NULL;
	/* a core file of the program needs none of it */
	xr_sys3(SYS_madvise, p, size, MADV_DONTDUMP);
	return (uint8_t *)p;
}

int xr_shm_arena_create(struct xr_shm_arena *a, uint64_t size, uint32_t dir_slots)
{
	struct rlimit rl;
	struct xr_shm_hdr h;
	uint8_t *base;
	long fd, r;

	size = XR_ALIGN(size, (uint64_t)XR_CHUNK);
	arena_layout(&h, size, dir_slots);
	if (!arena_valid(&h, size))
		return -EINVAL;
	/* beyond the limit ftruncate would raise SIGXFSZ in the program */
	if (!xr_sys4(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &rl) && rl.rlim_cur < size)
		return -EFBIG;
	fd = xr_sys2(SYS_memfd_create, "xrdma", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return (int)fd;
	r = xr_fd_high((int)fd);
	if (r < 0)
		goto close_fd;
	fd = r;
	r = xr_sys2(SYS_ftruncate, fd, size);
	if (r)
		goto close_fd;
	r = xr_sys3(SYS_fcntl, fd, F_ADD_SEALS, ARENA_SEALS | F_SEAL_SEAL);
	if (r)
		goto close_fd;
	base = arena_map((int)fd, size);
	if (!base) {
		r = -ENOMEM;
		goto close_fd;
	}
	memcpy(base, &h, sizeof(h));
	a->base = base;
	a->size = size;
	a->fd = (int)fd;
	a->hdr = h;
	return 0;

close_fd:
	xr_fd_close((int)fd);
	xr_info("no shared memory for a peer: error %d", (int)-r);
	return (int)r;
}

int xr_shm_arena_attach(struct xr_shm_arena *a, int fd)
{
	struct xr_shm_hdr h;
	struct statfs fs;
	struct stat st;
	uint8_t *base;
	long seals = xr_sys2(SYS_fcntl, fd, F_GET_SEALS);

	/* without both seals the peer could make any access of ours raise SIGBUS */
	if (seals < 0 || (seals & ARENA_SEALS) != ARENA_SEALS)
		return -EPROTO;
	/* so could a memfd of huge pages, where the kernel has none to spare */
	if (xr_sys2(SYS_fstatfs, fd, &fs) || fs.f_type != TMPFS_MAGIC)
		return -EPROTO;
	if (xr_sys2(SYS_fstat, fd, &st) || st.st_size < (off_t)ARENA_MIN ||
	    st.st_size > (off_t)ARENA_MAX)
		return -EPROTO;
	base = arena_map(fd, (uint64_t)st.st_size);
	if (!base)
		return -ENOMEM;
	memcpy(&h, base, sizeof(h));
	if (!arena_valid(&h, (uint64_t)st.st_size)) {
		xr_unmap(base, (size_t)st.st_size);
		return -EPROTO;
	}
	a->base = base;
	a->size = (uint64_t)st.st_size;
	a->fd = -1;
	a->hdr = h;
	return 0;
}

void xr_shm_arena_destroy(struct xr_shm_arena *a)
{
	int fd = a->fd;

	if (a->base)
		xr_unmap(a->base, a->size);
	a->base = NULL;
	/* first: a child forked in between would close whatever has the number by then */
	a->fd = -1;
	xr_fd_close(fd);
}
