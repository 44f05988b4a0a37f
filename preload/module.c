/* SPDX-License-Identifier: BSD-2-Clause */
/* Where the module for connections to other hosts is found.  See module.h. */
#include "hook.h"
#include "module.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include "autoconf.h"
#include "log.h"
#include "mem.h"
#include "xrdma.h"

#define MODULE		"libxrdma-rdma.so"

static char module_dir[256];

void xr_module_init(void)
{
	const char *dir = secure_getenv("XRDMA_MODULE_DIR");

	if (xr_cfg.rdma && dir)
		xr_snprintf(module_dir, sizeof(module_dir), "%s", dir);
}

static int module_path(char *path, size_t size, int attempt)
{
	const char *dir = XR_LIBDIR, *slash;
	int n = (int)strlen(dir);
	Dl_info info;

	if (attempt == 0) {
		dir = module_dir;
		n = (int)strlen(dir);
		if (!n)
			return -ENOENT;
	} else if (attempt == 1) {
		if (!dladdr((void *)(uintptr_t)&xr_module_init, &info) || !info.dli_fname)
			return -ENOENT;
		dir = info.dli_fname;
		slash = strrchr(dir, '/');
		if (!slash)
			return -ENOENT;
		n = (int)(slash - dir);
	}
	if (xr_snprintf(path, size, "%.*s/" MODULE, n, dir) >= (int)size)
		return -ENAMETOOLONG;
	return (int)xr_sys4(SYS_faccessat, AT_FDCWD, path, 0 /* F_OK */, 0);
}

const struct xr_bridge_ops *xr_module_open(const struct xr_bridge_host *host)
{
	const struct xr_bridge_ops *ops;
	xr_bridge_module_fn *entry = NULL;
	char path[512];
	void *h = NULL;
	int i;

	for (i = 0; i < 3 && !h; i++) {
		if (module_path(path, sizeof(path), i))
			continue;
		/* its symbols, and those of what it needs, are nobody else's business */
		h = dlopen(path, RTLD_LOCAL | RTLD_NOW | RTLD_NODELETE);
		if (!h) {
			xr_info("connections to other hosts stay on TCP: %s", dlerror());
			return NULL;
		}
	}
	if (!h) {
		xr_info("connections to other hosts stay on TCP: " MODULE " is not installed");
		return NULL;
	}
	*(void **)&entry = dlsym(h, "xr_bridge_module");
	ops = entry ? entry(host) : NULL;
	if (ops && ops->abi != XR_BRIDGE_ABI)
		ops = NULL;
	if (!ops)
		xr_warn("connections to other hosts stay on TCP: %s is of another version", path);
	return ops;
}
