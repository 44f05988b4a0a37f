/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fabrics by name.  The shm device is built in; verbs is a module of its own, so that nothing here needs
 * the libraries of RDMA, and a program that never asks for it never loads them.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "autoconf.h"
#include "fabric.h"
#include "log.h"
#include "xrdma.h"

#define MODULE "libxrdma-verbs.so"

static const struct xr_fabric_ops *verbs;

/* Where the module is: beside the object that this code is in, or where it was installed. */
static int module_path(char *path, size_t size, int attempt)
{
	const char *dir = XR_LIBDIR, *slash;
	Dl_info info;
	int n = (int)strlen(dir);

	if (attempt == 0) {
		dir = secure_getenv("XRDMA_MODULE_DIR");
		if (!dir || !*dir)
			return -1;
		n = (int)strlen(dir);
	} else if (attempt == 1) {
		if (!dladdr(&xr_fabric_shm, &info) || !info.dli_fname)
			return -1;
		dir = info.dli_fname;
		slash = strrchr(dir, '/');
		if (!slash)
			return -1;
		n = (int)(slash - dir);
	}
	if (xr_snprintf(path, size, "%.*s/" MODULE, n, dir) >= (int)size)
		return -1;
	return access(path, F_OK);
}

static int module_load(void)
{
	struct xr_fabric_host host = { XR_FABRIC_ABI, xrdma_version(), xr_log_threshold, xr_log_path() };
	xr_fabric_module_fn *entry = NULL;
	char path[512];
	void *h = NULL;
	int i;

	for (i = 0; i < 3 && !h; i++) {
		if (module_path(path, sizeof(path), i))
			continue;
		/* its symbols, and those of what it needs, are nobody else's business */
		h = dlopen(path, RTLD_LOCAL | RTLD_NOW | RTLD_NODELETE);
		if (!h) {
			xr_info("no RDMA: %s", dlerror());
			return ELIBACC;
		}
	}
	if (!h) {
		xr_info("no RDMA: " MODULE " is not installed");
		return ENOENT;
	}
	*(void **)&entry = dlsym(h, "xr_fabric_module");
	verbs = entry ? entry(&host) : NULL;
	if (!verbs) {
		xr_warn("no RDMA: %s is of another version", path);
		dlclose(h);
		return EPROTO;
	}
	return 0;
}

const struct xr_fabric_ops *xr_fabric_find(const char *name, const char **what)
{
	const char *colon = strchr(name, ':');
	size_t n = colon ? (size_t)(colon - name) : strlen(name);
	int r = ENODEV;

	if (what)
		*what = colon ? colon + 1 : NULL;
	if (n == 3 && !memcmp(name, "shm", n))
		return &xr_fabric_shm;
	/* a second thread loads the same object and gets the same table */
	if (n == 5 && !memcmp(name, "verbs", n)) {
		r = verbs ? 0 : module_load();
		if (!r)
			return verbs;
	}
	errno = r;
	return NULL;
}

const char *xr_wc_status_name(unsigned int status)
{
	static const char *const name[XR_WC_STATUS_COUNT] = {
		[XR_WC_SUCCESS] = "success",
		[XR_WC_LOC_LEN_ERR] = "local length error",
		[XR_WC_LOC_PROT_ERR] = "local protection error",
		[XR_WC_WR_FLUSH_ERR] = "flushed",
		[XR_WC_REM_INV_REQ_ERR] = "remote invalid request",
		[XR_WC_REM_ACCESS_ERR] = "remote access error",
		[XR_WC_REM_OP_ERR] = "remote operation error",
		[XR_WC_RETRY_EXC_ERR] = "peer does not answer",
		[XR_WC_RNR_RETRY_EXC_ERR] = "receiver not ready",
		[XR_WC_FATAL_ERR] = "fatal error",
	};

	return status < XR_WC_STATUS_COUNT ? name[status] : "unknown status";
}
