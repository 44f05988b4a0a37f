/* SPDX-License-Identifier: BSD-2-Clause */
/* What the configuration says about a flow, and how the flow shows to xr-stat. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "flow.h"
#include "mem.h"

static char policy_program[4096];	/* path of the executable; written once by each first caller */

static const char *policy_exe(void)
{
	if (!policy_program[0]) {
		long n = xr_sys4(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", policy_program,
				 sizeof(policy_program) - 1);

		if (n <= 0)
			policy_program[0] = '?';
	}
	return policy_program;
}

static enum xr_role policy_role(const struct xr_flow *f)
{
	return f->role == XR_FLOW_ACCEPT ? XR_ROLE_SERVER : XR_ROLE_CLIENT;
}

enum xr_action xr_flow_rule(const struct xr_flow *f, const struct sockaddr *local,
			    const struct sockaddr *peer)
{
	return xr_config_match(&xr_cfg, policy_exe(), policy_role(f), peer, local);
}

void xr_flow_stats_attach(struct xr_flow *f, int fd, const struct sockaddr *local,
			  const struct sockaddr *peer)
{
	struct stat st = { 0 };

	if (!xr_cfg.stats)
		return;
	/* failure is counted there; slots are NULL then, which every function accepts */
	xr_stats_open(xr_cfg.stats_dir, policy_exe(), (uint32_t)xr_cfg.max_flows);
	xr_sys2(SYS_fstat, fd, &st);
	f->st = xr_stats_flow_alloc(fd, st.st_ino, policy_role(f), local, peer);
}
