/* SPDX-License-Identifier: BSD-2-Clause */
/* xrdma-run --check: what would happen here, and why. */
#include "check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/shm_link.h"
#include "core/stats.h"
#include "probe.h"
#include "target.h"

/* What the lines add up to. */
static enum xr_reason check_reason;

static const struct xr_config *check_cfg;

void xr_check_report(enum xr_verdict v, const char *what, const char *fmt, ...)
{
	static const char *const mark[] = {"ok", "note", "no"};
	va_list ap;

	printf("%-5s %-16s ", mark[v], what);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

void xr_check_blocked(enum xr_reason reason)
{
	if (!check_reason)
		check_reason = reason;
}

static void check_object(const char *explicit)
{
	char path[PATH_MAX];
	int err = xr_target_preload(explicit, path);
	const char *why = err ? strerror(-err) : xr_target_object_obstacle(path);

	xr_check_report(why ? XR_BAD : XR_OK, "preload object", "%s%s%s", path, why ? ": " : "", why ? why : "");
	if (why)
		xr_check_blocked(XR_REASON_PEER_NOT_XRDMA);
}

static void check_config(const struct xr_settings *settings)
{
	const struct xr_config *cfg = check_cfg;
	const char *file = xr_settings_file(settings);

	if (access(file, R_OK))
		xr_check_report(errno == ENOENT ? XR_OK : XR_NOTE, "configuration", "%s: %s; defaults", file,
				errno == ENOENT ? "does not exist" : strerror(errno));
	else
		xr_check_report(cfg->warnings ? XR_NOTE : XR_OK, "configuration", "%s: %u rule%s, %u warning%s", file,
				cfg->n_rules, cfg->n_rules == 1 ? "" : "s", cfg->warnings,
				cfg->warnings == 1 ? "" : "s");
	if (!xr_config_off(cfg))
		return;
	for (int i = 0; i < 4; i++) {
		static const enum xr_config_key_id key[] = {XR_KEY_ENABLED, XR_KEY_FABRIC,
							    XR_KEY_MAX_FLOWS, XR_KEY_MAX_MEMORY};
		static struct xr_config def;
		const struct xr_config_key *k = &xr_config_keys[key[i]];
		char value[XR_CONFIG_STR];

		/* which of them is it? */
		xr_config_defaults(&def);
		xr_config_value(cfg, key[i], value, sizeof(value));
		xr_config_set(&def, k->name, value, XR_ORIGIN_DEFAULT, "", 0, NULL, NULL);
		if (xr_config_off(&def))
			xr_check_report(XR_BAD, "upgrades", "switched off: %s = %s", k->name, value);
	}
	xr_check_blocked(xr_config_off(cfg));
}

static void check_one(const char *what, const char *purpose, int err, enum xr_reason reason)
{
	xr_check_report(err ? XR_BAD : XR_OK, what, "%s%s%s", purpose, err ? ": " : "",
	       err ? strerror(-err) : "");
	if (err)
		xr_check_blocked(reason);
}

static void check_stats(void)
{
	const char *dir = check_cfg->stats_dir;
	struct statvfs fs;
	int err;

	if (!check_cfg->stats) {
		xr_check_report(XR_NOTE, "statistics", "switched off: xr-stat will not show the process");
		return;
	}
	err = xr_stats_open(dir, "xrdma-run", 1);
	if (err) {
		xr_check_report(XR_NOTE, "statistics", "%s: %s; xr-stat will not show the process", dir,
		       err == -EACCES ? "not writable, or its xrdma directory is not ours alone"
				      : strerror(-err));
		return;
	}
	xr_stats_close();
	if (statvfs(dir, &fs))
		memset(&fs, 0, sizeof(fs));
	xr_check_report(XR_OK, "statistics", "%s, %llu MiB free", dir,
	       (unsigned long long)fs.f_bavail * fs.f_frsize >> 20);
}

static void check_limits(void)
{
	struct rlimit rl;
	char value[32];

	if (!getrlimit(RLIMIT_NOFILE, &rl)) {
		bool scarce = xr_probe_fds_scarce(rl.rlim_cur, rl.rlim_max);

		xr_check_report(scarce ? XR_BAD : XR_OK, "open files",
				"limit %llu%s; a few descriptors per peer process, none per connection",
				(unsigned long long)rl.rlim_cur,
				scarce ? ", 128 are needed, or a hard limit that is higher" : "");
		if (scarce)
			xr_check_blocked(XR_REASON_LIMIT_FDS);
	}
	if (!getrlimit(RLIMIT_AS, &rl) && rl.rlim_cur != RLIM_INFINITY &&
	    rl.rlim_cur < check_cfg->max_memory) {
		xr_config_value(check_cfg, XR_KEY_MAX_MEMORY, value, sizeof(value));
		xr_check_report(XR_NOTE, "address space", "limit %llu MiB is below max_memory = %s",
		       (unsigned long long)rl.rlim_cur >> 20, value);
	}
}

static void check_run_dir(void)
{
	const char *dir = check_cfg->run_dir, *why = *dir ? xr_probe_run_dir(dir) : NULL;

	if (why)
		xr_check_report(XR_NOTE, "run_dir", "%s: %s: connections to other network namespaces stay on TCP",
				dir, why);
	else if (*dir)
		xr_check_report(XR_OK, "run_dir", "programs in another network namespace of this host are met in %s",
				dir);
}

/* The exit status that starting it would end in, or 0. */
static int check_program(char *const *argv, char path[PATH_MAX])
{
	char buf[512];
	const char *why;
	int err;

	*path = '\0';
	if (!argv)
		return 0;
	err = xr_target_find(argv[0], path);
	why = err ? strerror(-err) : xr_target_obstacle(path, buf, sizeof(buf));
	xr_check_report(why ? XR_BAD : XR_OK, "program", "%s%s%s", err ? argv[0] : path,
			!why ? " can be preloaded" : err ? ": " : " is ",
			why ? why : "");
	if (err)
		*path = '\0';
	return !why ? 0 : err == -ENOENT || err == -ENOTDIR ? XR_EXIT_NOT_FOUND : XR_EXIT_CANNOT_RUN;
}

/* As an upgrade does it: all that the budget allows, else less. */
static void check_memory(void)
{
	const struct xr_config *cfg = check_cfg;
	uint64_t most = 512ull << 20, least = 32ull << 20;
	int err;

	if (cfg->max_memory < XR_ARENA_MIN || !cfg->max_flows)
		return; /* said already */
	if (most > cfg->max_memory)
		most = cfg->max_memory;
	err = xr_probe_memory(most, cfg->max_flows, (uint32_t)cfg->ring_slots);
	if (err && err != -EMFILE && err != -ENFILE)
		err = xr_probe_memory(least, cfg->max_flows, (uint32_t)cfg->ring_slots);
	check_one("shared memory", err == -EFBIG ? "memfd with seals, below RLIMIT_FSIZE" : "memfd with seals", err,
		  err == -EMFILE || err == -ENFILE			 ? XR_REASON_LIMIT_FDS
		  : err == -ENOMEM || err == -EFBIG || err == -ENOSPC ? XR_REASON_LIMIT_MEMORY
								       : XR_REASON_NO_SHM);
}

static int verdict(const char *endpoint, const char *program, int found, struct xr_check_peer peer)
{
	const char *to = endpoint ? "to " : "";
	const char *where = endpoint ? endpoint : "here";

	putchar('\n');
	if (found == XR_EXIT_NOT_FOUND)
		printf("'%s' would not be started: it is not found (exit status %d).\n", program, found);
	else if (found)
		printf("'%s' would not be started (exit status %d); with --or-plain, what can be run "
		       "without xrdma is, on TCP.\n", program, found);
	else if (peer.refused)
		printf("Connections to %s would be refused: nobody listens there.\n", endpoint);
	else if (check_reason)
		printf("Connections %s%s would stay on TCP: %s (%s)\n", to, where,
		       xr_reason_name(check_reason), xr_reason_text(check_reason));
	else if (peer.dir)
		printf("Connections to %s would move to shared memory once they pay, if the other end is on this host "
		       "and has the directory %s; %s.\n", endpoint, check_cfg->run_dir,
		       peer.far ? "else they would be tried over RDMA" : "else they would stay on TCP");
	else if (peer.unsaid)
		printf("Connections to %s would move to shared memory once they pay, if the settings of the server "
		       "allow it.\n", endpoint);
	else if (peer.far)
		printf("Connections to %s would be tried over RDMA once they pay; xr-ping(1) tells what comes "
		       "of it.\n", endpoint);
	else if (peer.unknown)
		printf("Connections to %s would move to shared memory once they pay, if the server runs "
		       "under xrdma.\n", endpoint);
	else if (endpoint)
		printf("Connections to %s would move to shared memory once they pay.\n", endpoint);
	else
		puts("Connections between programs under xrdma here would move to shared memory "
		     "once they pay.");
	return found || check_reason || peer.refused;
}

int xr_check(const struct xr_settings *settings, const char *preload, const char *endpoint, int argc,
	     char **argv)
{
	static struct xr_config cfg;
	struct xr_check_peer peer = {.far = false};
	struct addrinfo *ai = NULL;
	char program[PATH_MAX];
	int found;

	/* "--check HOST:PORT" reads as naturally as "--check=HOST:PORT" */
	if (argc && !endpoint && strchr(argv[0], ':') && access(argv[0], F_OK)) {
		endpoint = *argv++;
		argc--;
	}
	if (endpoint && xr_check_resolve(endpoint, &ai))
		return XR_EXIT_SELF;
	check_cfg = &cfg;
	xr_settings_load(settings, &cfg);
	check_object(preload);
	found = check_program(argc ? argv : NULL, program);
	check_config(settings);
	check_memory();
	check_one("rendezvous", "abstract Unix sockets", xr_probe_abstract(),
		  XR_REASON_RENDEZVOUS_FAILED);
	check_one("proof", "O_PATH descriptors of sockets", xr_probe_path_fd(),
		  XR_REASON_PROOF_UNAVAILABLE);
	check_one("proof", "inet_diag", xr_probe_inet_diag(), XR_REASON_PROOF_UNAVAILABLE);
	check_limits();
	check_stats();
	check_run_dir();
	if (ai) {
		peer = xr_check_peer(&cfg, ai, program); /* the one a program tries first */
		freeaddrinfo(ai);
	}
	return verdict(endpoint, argc ? argv[0] : "", found, peer);
}
