/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "atomic.h"
#include "mem.h"

long xr_sys(long nr, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ __volatile__("syscall"
			     : "=a"(ret)
			     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			     : "rcx", "r11", "memory");
	return ret;
#else
	int saved = errno;
	long ret = syscall(nr, a, b, c, d, e, f);

	if (ret == -1)
		ret = -errno;
	errno = saved;
	return ret;
#endif
}

static void *mem_map(size_t len, int flags)
{
	long p = xr_sys6(SYS_mmap, 0, len, PROT_READ | PROT_WRITE,
			 MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);

	return p < 0 && p > -4096 ? NULL : (void *)p;
}

void *xr_map_private(size_t len)
{
	return mem_map(len, MAP_PRIVATE);
}

void *xr_map_own(size_t len)
{
	void *p = mem_map(len, MAP_PRIVATE);

	/* where the kernel cannot, a child has copies, and pages for each fork to share */
	if (p)
		xr_sys3(SYS_madvise, p, len, MADV_WIPEONFORK);
	return p;
}

#define KEEP_LEN	(2ul << 20)
#define KEEP_MAX	32u
#define KEEP_USED(w)	((w) & ((1ull << 48) - 1))

/* Regions that fill one after the other.  A forked child goes on with its copy. */
struct mem_keep {
	_Atomic uint64_t word;			/* number of the region that is being filled:16 | bytes used:48 */
	_Atomic(uint8_t *) base[KEEP_MAX];	/* region 0 is none */
};

/* Under a limit of what may be mapped the program is left what is not used. */
static int keep_limited(void)
{
	struct rlimit as, data;

	return xr_sys4(SYS_prlimit64, 0, RLIMIT_AS, 0, &as) || xr_sys4(SYS_prlimit64, 0, RLIMIT_DATA, 0, &data) ||
	       as.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY;
}

/* Region i is there.  -errno: it cannot be had. */
static int keep_more(struct mem_keep *k, uint64_t i, void *(*map)(size_t))
{
	uint8_t *none = NULL, *p;

	if (i >= KEEP_MAX || keep_limited())
		return -ENOMEM;
	if (xr_load_relaxed(&k->base[i]))
		return 0;
	p = map(KEEP_LEN);
	if (!p)
		return -ENOMEM;
	/* a program that uses little of it is not to pay for all */
	xr_sys3(SYS_madvise, p, KEEP_LEN, MADV_NOHUGEPAGE);
	if (!xr_cas(&k->base[i], &none, p))
		xr_unmap(p, KEEP_LEN);
	return 0;
}

static void *mem_keep(struct mem_keep *k, size_t len, void *(*map)(size_t))
{
	uint64_t w, i;

	len = XR_ALIGN(len, 4096ul);
	if (len > KEEP_LEN)
		return map(len);
	/* acquire: pairs with the exchange that made the region the one to fill, its base is there */
	w = xr_load_acquire(&k->word);
	for (;;) {
		i = w >> 48;
		if (i && KEEP_USED(w) + len <= KEEP_LEN) {
			if (xr_cas(&k->word, &w, w + len))
				return xr_load_relaxed(&k->base[i]) + KEEP_USED(w);
		} else if (keep_more(k, i + 1, map)) {
			return map(len);
		} else {
			xr_cas(&k->word, &w, (i + 1) << 48);
			w = xr_load_acquire(&k->word);
		}
	}
}

static struct mem_keep keep_private, keep_own;

void *xr_keep_private(size_t len)
{
	return mem_keep(&keep_private, len, xr_map_private);
}

void *xr_keep_own(size_t len)
{
	return mem_keep(&keep_own, len, xr_map_own);
}

void *xr_map_family(size_t len)
{
	return mem_map(len, MAP_SHARED);
}

void xr_unmap(void *p, size_t len)
{
	if (p)
		xr_sys2(SYS_munmap, p, len);
}

uint64_t xr_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t xr_now_tick(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t xr_tick_ns(void)
{
	struct timespec ts;

	return clock_getres(CLOCK_MONOTONIC_COARSE, &ts) ? 10000000u :
	       (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

__thread int xr_mem_tid;
XR_FORK_DATA _Atomic int xr_mem_pid;

int xr_gettid_ask(void)
{
	xr_mem_tid = (int)xr_sys0(SYS_gettid);
	return xr_mem_tid;
}

int xr_getpid_ask(void)
{
	int pid = (int)xr_sys0(SYS_getpid);

	/* relaxed: it is the same number, whichever thread asks */
	xr_store_relaxed(&xr_mem_pid, pid);
	return pid;
}

void xr_process_forked(void)
{
	xr_mem_tid = 0;
	xr_store_relaxed(&xr_mem_pid, 0);
}

int xr_random(void *p, size_t len)
{
	uint8_t *b = p;

	while (len) {
		long n = xr_sys3(SYS_getrandom, b, len, 0);

		if (n == -EINTR)
			continue;
		if (n <= 0)
			return n ? (int)n : -EIO;
		b += n;
		len -= (size_t)n;
	}
	return 0;
}

/*
 * A bit per descriptor of ours.  Only numbers below MEM_FD_MAX are recorded; a
 * descriptor that ended up above it is out of reach of any close loop that respects
 * RLIMIT_NOFILE of today's systems.
 */
#define MEM_FD_MAX	(1u << 20)
static _Atomic uint64_t mem_ours[MEM_FD_MAX / 64];
static _Atomic uint32_t mem_nours;

#define MEM_FD_TOP	8192u	/* fork copies a table as large as the highest number */
#define MEM_FD_SHARE	8u	/* where the program cannot be spared: this part of its limit, no more */

XR_NEAR _Atomic uint32_t xr_fd_press = UINT32_MAX;

/*
 * Numbers at and above the soft limit are none of the program's: the limit is one of numbers,
 * not of files.  So it is lifted for the moment that it takes to get one there.
 */
static long mem_fd_above(int fd, const struct rlimit *rl)
{
	static _Atomic uint32_t lifting;
	struct rlimit up = *rl, now;
	uint32_t free = 0;
	long r;

	if (rl->rlim_cur >= MEM_FD_TOP || rl->rlim_max <= rl->rlim_cur)
		return -EMFILE;
	/* somebody else has lifted it just now, perhaps this very thread below a signal handler */
	if (!xr_cas(&lifting, &free, 1))
		return -EMFILE;
	up.rlim_cur = rl->rlim_max < 2 * MEM_FD_TOP ? rl->rlim_max : 2 * MEM_FD_TOP;
	r = xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, &up, &now);
	if (!r) {
		r = xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, (long)rl->rlim_cur);
		/* unless the program has set another one meanwhile */
		if (!xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &now) && now.rlim_cur == up.rlim_cur)
			xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, rl, 0);
	}
	/* release: the next one reads the limit that is the program's */
	xr_store_release(&lifting, 0);
	return r;
}

static uint32_t mem_fd_press(const struct rlimit *rl)
{
	return rl->rlim_cur < UINT32_MAX ? (uint32_t)(rl->rlim_cur / 4 * 3) : UINT32_MAX;
}

/*
 * Candidates are tried downwards from the soft limit, or from MEM_FD_TOP; fcntl(F_DUPFD)
 * alone gives the lowest free number above its argument, so a window that begins near the
 * top and doubles downwards finds a free number in a few calls without disturbing low ones.
 */
static long mem_fd_below(int fd, const struct rlimit *rl)
{
	unsigned long top = rl->rlim_cur > MEM_FD_TOP ? MEM_FD_TOP : rl->rlim_cur, span;
	long r;

	if (rl->rlim_cur < XR_FD_SCARCE || xr_load_relaxed(&mem_nours) >= rl->rlim_cur / MEM_FD_SHARE)
		return -EMFILE;
	/* the kernel has just given it out as the lowest that was free */
	if ((unsigned long)fd >= rl->rlim_cur / 2)
		return -EMFILE;
	for (span = 64; ; span *= 2) {
		long base = top > span ? (long)(top - span) : 3;

		r = xr_sys3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, base);
		if (r >= 0)
			xr_store_relaxed(&xr_fd_press, mem_fd_press(rl));
		if (r != -EMFILE || base == 3)
			return r;
	}
}

int xr_fd_pressed(int fd)
{
	struct rlimit rl;
	uint32_t press;

	if (xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl))
		return 0;
	press = mem_fd_press(&rl);
	xr_store_relaxed(&xr_fd_press, press);
	return (uint32_t)fd >= press;
}

__thread int xr_fd_must __attribute__((tls_model("initial-exec")));

int xr_fd_high(int fd)
{
	struct rlimit rl;
	long r = xr_sys4(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl);

	if (r)
		return (int)r;
	r = mem_fd_above(fd, &rl);
	if (r < 0)
		r = mem_fd_below(fd, &rl);
	if (r < 0 && xr_fd_must)
		r = fd;
	if (r < 0)
		return (int)r;
	if ((unsigned long)r < MEM_FD_MAX) {
		xr_fetch_or(&mem_ours[r / 64], 1ull << (r % 64));
		xr_fetch_add(&mem_nours, 1);
	}
	if (r != fd)
		xr_sys1(SYS_close, fd);
	return (int)r;
}

int xr_fd_is_ours(int fd)
{
	if (fd < 0 || (unsigned int)fd >= MEM_FD_MAX)
		return 0;
	/* relaxed: a racing close loop may meet the descriptor before or after its birth */
	return (xr_load_relaxed(&mem_ours[fd / 64]) >> (fd % 64)) & 1;
}

int xr_fd_next_ours(int fd)
{
	unsigned int i = fd < 0 ? 0 : (unsigned int)fd;

	while (i < MEM_FD_MAX) {
		uint64_t word = xr_load_relaxed(&mem_ours[i / 64]) >> (i % 64);

		if (word)
			return (int)i + __builtin_ctzll(word);
		i = (i / 64 + 1) * 64;
	}
	return -1;
}

void xr_fd_close(int fd)
{
	if (fd < 0)
		return;
	/* the bit goes first: the number may be the program's the moment it is closed */
	if ((unsigned int)fd < MEM_FD_MAX &&
	    xr_fetch_and(&mem_ours[fd / 64], ~(1ull << (fd % 64))) & (1ull << (fd % 64)))
		xr_fetch_sub(&mem_nours, 1);
	xr_sys1(SYS_close, fd);
}
