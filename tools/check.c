/* SPDX-License-Identifier: BSD-2-Clause */
/* xrdma-run --check: what would happen here, and why. */
#include "check.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/reason.h"
#include "core/stats.h"
#include "probe.h"
#include "target.h"

/* What the lines add up to. */
static enum xr_reason check_reason;

static bool check_refused; /* nobody listens at the endpoint */

static const struct xr_config *check_cfg;

enum verdict {
	OK,
	NOTE, /* worth knowing; upgrades still work */
	BAD,
};

static void __attribute__((format(printf, 3, 4))) report(enum verdict v, const char *what,
							  const char *fmt, ...)
{
	static const char *const mark[] = {"ok", "note", "no"};
	va_list ap;

	printf("%-5s %-16s ", mark[v], what);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

/* The first obstacle is the reason that flows would show. */
static void blocked(enum xr_reason reason)
{
	if (!check_reason)
		check_reason = reason;
}

static void check_object(const char *explicit)
{
	char path[PATH_MAX];
	int err = xr_target_preload(explicit, path);
	const char *why = err ? strerror(-err) : xr_target_object_obstacle(path);

	report(why ? BAD : OK, "preload object", "%s%s%s", path, why ? ": " : "", why ? why : "");
	if (why)
		blocked(XR_REASON_PEER_NOT_XRDMA);
}

static void check_config(const struct xr_settings *settings)
{
	const struct xr_config *cfg = check_cfg;
	const char *file = xr_settings_file(settings);

	if (access(file, R_OK))
		report(OK, "configuration", "%s does not exist; defaults", file);
	else
		report(cfg->warnings ? NOTE : OK, "configuration", "%s: %u rules, %u warnings", file,
		       cfg->n_rules, cfg->warnings);
	if (!cfg->enabled || cfg->fabric == XR_FABRIC_NONE) {
		report(BAD, "upgrades", "switched off: %s",
		       cfg->enabled ? "fabric = none" : "enabled = no");
		blocked(XR_REASON_DISABLED);
	}
}

static void check_one(const char *what, const char *purpose, int err, enum xr_reason reason)
{
	report(err ? BAD : OK, what, "%s%s%s", purpose, err ? ": " : "",
	       err ? strerror(-err) : "");
	if (err)
		blocked(reason);
}

static void check_stats(void)
{
	const char *dir = check_cfg->stats_dir;
	struct statvfs fs;
	int err;

	if (!check_cfg->stats) {
		report(NOTE, "statistics", "switched off: xr-stat will not show the process");
		return;
	}
	err = xr_stats_open(dir, "xrdma-run", 1);
	if (err) {
		report(NOTE, "statistics", "%s: %s; xr-stat will not show the process", dir,
		       err == -EACCES ? "not writable, or its xrdma directory is not ours alone"
				      : strerror(-err));
		return;
	}
	xr_stats_close();
	if (statvfs(dir, &fs))
		memset(&fs, 0, sizeof(fs));
	report(OK, "statistics", "%s, %llu MiB free", dir,
	       (unsigned long long)fs.f_bavail * fs.f_frsize >> 20);
}

static void check_limits(void)
{
	struct rlimit rl;
	char value[32];

	if (!getrlimit(RLIMIT_NOFILE, &rl))
		report(rl.rlim_cur < 64 ? NOTE : OK, "open files",
		       "limit %llu; a few descriptors per peer process, none per connection",
		       (unsigned long long)rl.rlim_cur);
	if (!getrlimit(RLIMIT_AS, &rl) && rl.rlim_cur != RLIM_INFINITY &&
	    rl.rlim_cur < check_cfg->max_memory) {
		xr_config_value(check_cfg, XR_KEY_MAX_MEMORY, value, sizeof(value));
		report(NOTE, "address space", "limit %llu MiB is below max_memory = %s",
		       (unsigned long long)rl.rlim_cur >> 20, value);
	}
}

static void check_program(char *const *argv, char path[PATH_MAX])
{
	char buf[512];
	const char *why;
	int err;

	*path = '\0';
	if (!argv)
		return;
	err = xr_target_find(argv[0], path);
	why = err ? strerror(-err) : xr_target_obstacle(path, buf, sizeof(buf));
	report(why ? BAD : OK, "program", "%s%s%s", err ? argv[0] : path,
	       !why  ? " can be preloaded"
	       : err ? ": "
	       : !strncmp(why, "has ", 4) ? " "
		     : " is ",
	       why ? why : "");
	if (why)
		blocked(XR_REASON_PEER_NOT_XRDMA);
}

static void check_rule(const char *program, enum xr_role role, const struct sockaddr *peer,
		       const struct sockaddr *local)
{
	static const char *const actions[] = {"auto", "tcp", "shm"};
	char exe[PATH_MAX];
	int i = xr_config_match_rule(check_cfg, *program ? realpath(program, exe) : NULL,
				     *program ? program : NULL, role, peer, local);
	const char *side = role == XR_ROLE_SERVER ? "as its server" : "as its client";

	if (i < 0) {
		report(OK, "rule", "%s: none matches: auto", side);
		return;
	}
	report(OK, "rule", "%s: the one of line %u matches: %s", side, check_cfg->rule[i].line,
	       actions[check_cfg->rule[i].action]);
	if (role == XR_ROLE_CLIENT && check_cfg->rule[i].action == XR_ACTION_TCP)
		blocked(XR_REASON_RULE);
}

static void check_address(const struct addrinfo *ai, const char *program)
{
	char host[NI_MAXHOST], port[NI_MAXSERV];
	struct xr_listener who;

	getnameinfo(ai->ai_addr, ai->ai_addrlen, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	if (!xr_probe_is_local(ai->ai_addr, ai->ai_addrlen)) {
		report(BAD, "path", "%s is another host, and no RDMA fabric is available", host);
		blocked(XR_REASON_NOT_LOCAL);
	} else {
		report(OK, "path", "%s is this host: shared memory", host);
		if (xr_probe_listener(ai->ai_addr, &who)) {
			report(BAD, "listener", "nobody listens on port %s", port);
			check_refused = true;
		} else if (!who.known) {
			report(NOTE, "listener", "port %s is served by a process that is not ours to see",
			       port);
		} else {
			report(who.preloaded ? OK : BAD, "listener", "%s[%d] runs %s xrdma",
			       who.program, (int)who.pid, who.preloaded ? "under" : "without");
			if (!who.preloaded)
				blocked(XR_REASON_PEER_NOT_XRDMA);
		}
	}
	check_rule(program, XR_ROLE_CLIENT, ai->ai_addr, NULL);
	check_rule(program, XR_ROLE_SERVER, NULL, ai->ai_addr);
}

static int check_endpoint(const char *endpoint, const char *program)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(endpoint, ':');
	struct xr_port_range port;
	char host[NI_MAXHOST];
	struct addrinfo *ai;
	size_t len;
	int err;

	/* getaddrinfo takes port numbers modulo 65536 */
	if (!colon || colon == endpoint || xr_parse_ports(colon + 1, &port, 1) != 1 ||
	    port.lo != port.hi || !port.lo) {
		fprintf(stderr, "xrdma-run: '%s' is not HOST:PORT with a port from 1 to 65535\n",
			endpoint);
		return -EINVAL;
	}
	len = (size_t)(colon - endpoint);
	if (endpoint[0] == '[' && len > 2 && colon[-1] == ']') { /* [v6]:port */
		endpoint++;
		len -= 2;
	}
	snprintf(host, sizeof(host), "%.*s", (int)len, endpoint);
	err = getaddrinfo(host, colon + 1, &hints, &ai);
	if (err) {
		fprintf(stderr, "xrdma-run: %s: %s\n", host, gai_strerror(err));
		return -EINVAL;
	}
	check_address(ai, program); /* the one a program tries first */
	freeaddrinfo(ai);
	return 0;
}

int xr_check(const struct xr_settings *settings, const char *preload, const char *endpoint, int argc,
	     char **argv)
{
	static struct xr_config cfg;
	char program[PATH_MAX];

	check_cfg = &cfg;
	xr_settings_load(settings, &cfg);
	/* "--check HOST:PORT" reads as naturally as "--check=HOST:PORT" */
	if (argc && !endpoint && strchr(argv[0], ':') && access(argv[0], F_OK)) {
		endpoint = *argv++;
		argc--;
	}
	check_object(preload);
	check_program(argc ? argv : NULL, program);
	check_config(settings);
	check_one("shared memory", "memfd with seals", xr_probe_memfd(), XR_REASON_NO_SHM);
	check_one("rendezvous", "abstract Unix sockets", xr_probe_abstract(),
		  XR_REASON_RENDEZVOUS_FAILED);
	check_one("proof", "O_PATH descriptors of sockets", xr_probe_path_fd(),
		  XR_REASON_PROOF_UNAVAILABLE);
	check_one("proof", "inet_diag", xr_probe_inet_diag(), XR_REASON_PROOF_UNAVAILABLE);
	check_limits();
	check_stats();
	if (endpoint && check_endpoint(endpoint, program))
		return XR_EXIT_SELF;
	putchar('\n');
	if (check_refused)
		printf("Connections to %s would be refused: nobody listens there.\n", endpoint);
	else if (check_reason)
		printf("Connections %s%s would stay on TCP: %s (%s)\n", endpoint ? "to " : "",
		       endpoint ? endpoint : "here", xr_reason_name(check_reason),
		       xr_reason_text(check_reason));
	else if (endpoint)
		printf("Connections to %s would move to shared memory once they pay.\n", endpoint);
	else
		puts("Connections between programs under xrdma here would move to shared memory "
		     "once they pay.");
	return check_reason || check_refused;
}
