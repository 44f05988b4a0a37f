/* SPDX-License-Identifier: BSD-2-Clause */
/* Signals that come in a section: see defer.h. */
#include "defer.h"
#include <sys/syscall.h>
#include <ucontext.h>
#include "mem.h"

__thread uint32_t xr_defer_depth __attribute__((tls_model("initial-exec")));
__thread uint64_t xr_defer_put_off __attribute__((tls_model("initial-exec")));

int xr_defer_signal(int sig, const siginfo_t *info, void *context)
{
	uint64_t bit = 1ull << (sig - 1), *mask = (uint64_t *)&((ucontext_t *)context)->uc_sigmask;
	long pid, tid;

	if (xr_likely(!xr_defer_depth))
		return 0;
	/* blocked before it is sent again, here, and there when this handler has returned */
	xr_sys4(SYS_rt_sigprocmask, SIG_BLOCK, &bit, NULL, sizeof(bit));
	/* asked for, since a vfork child finds its parent's in the cache */
	pid = xr_sys0(SYS_getpid);
	tid = xr_sys0(SYS_gettid);
	if (xr_sys4(SYS_rt_tgsigqueueinfo, pid, tid, sig, info) && xr_sys3(SYS_tgkill, pid, tid, sig))
		return 0;
	*mask |= bit;
	xr_defer_put_off |= bit;
	return 1;
}

void xr_defer_deliver(void)
{
	uint64_t mask = xr_defer_put_off;

	/* before they come: a handler may leave by longjmp */
	xr_defer_put_off = 0;
	atomic_signal_fence(memory_order_seq_cst);
	xr_sys4(SYS_rt_sigprocmask, SIG_UNBLOCK, &mask, NULL, sizeof(mask));
}
