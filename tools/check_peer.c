/* SPDX-License-Identifier: BSD-2-Clause */
/* The other end of a connection, for xrdma-run --check: who listens, and what it does with connections. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "core/key.h"
#include "core/mem.h"
#include "core/reach.h"
#include "probe.h"
#include "segment.h"
#include "target.h"

int xr_check_resolve(const char *endpoint, struct addrinfo **ai)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(endpoint, ':');
	struct xr_port_range port;
	char host[NI_MAXHOST];
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
	err = getaddrinfo(host, colon + 1, &hints, ai);
	if (!err)
		return 0;
	fprintf(stderr, "xrdma-run: %s: %s\n", host, gai_strerror(err));
	return -EINVAL;
}

static void check_rule(const struct xr_config *cfg, const char *exe, const char *as, enum xr_role role,
		       const struct sockaddr *peer, const struct sockaddr *local, enum xr_reason why)
{
	static const char *const actions[] = {"auto", "tcp", "shm"};
	int i = xr_config_match_rule(cfg, exe, as, role, peer, local);
	const char *side = role == XR_ROLE_SERVER ? "as its server" : "as its client";

	if (i < 0) {
		xr_check_report(XR_OK, "rule", "%s: none matches: auto", side);
		return;
	}
	xr_check_report(cfg->rule[i].action == XR_ACTION_TCP && why ? XR_BAD : XR_OK, "rule",
			"%s: the one of line %u matches: %s", side, cfg->rule[i].line,
			actions[cfg->rule[i].action]);
	if (cfg->rule[i].action == XR_ACTION_TCP && why)
		xr_check_blocked(why);
}

static void no_warning(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg, (void)where, (void)line, (void)msg;
}

/*
 * What the process was told when it started, as far as its environment and the files of today say. False: that cannot
 * be known; what is read may be what the program has written there since, its title for one.
 */
static bool peer_config(pid_t pid, struct xr_config *cfg)
{
	static char text[1 << 18];
	char *envp[4096], path[40], *p = text;
	size_t n = 0, len;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	len = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[len] = '\0';
	for (; p < text + len && n < XR_ARRAY_LEN(envp) - 1; p += strlen(p) + 1) {
		if (!strchr(p, '='))
			return false;
		envp[n++] = p;
	}
	envp[n] = NULL;
	xr_config_load(cfg, NULL, envp, no_warning, NULL);
	return true;
}

/* What it publishes, if it does and may be read. */
static bool peer_segment(const struct xr_listener *who, const char *stats_dir, struct xr_segment *seg)
{
	char path[512];
	struct dirent *de;
	const char *why;
	bool found = false;
	uint64_t start;
	pid_t pid;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/xrdma-%u", stats_dir, (unsigned int)who->uid);
	dir = opendir(path);
	while (dir && !found && (de = readdir(dir)))
		if (!xr_segment_name(de->d_name, &pid, &start) && pid == who->pid &&
		    !xr_segment_read(dirfd(dir), de->d_name, seg, &why)) {
			found = seg->life == XR_SEGMENT_LIVE;
			if (!found)
				xr_segment_free(seg);
		}
	if (dir)
		closedir(dir);
	return found;
}

/* The limits of another process. */
static bool peer_is_short_of_fds(pid_t pid)
{
	uint64_t soft = XR_FD_SCARCE, hard = soft;
	char path[40], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/limits", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Max open files %" SCNu64 " %" SCNu64, &soft, &hard) == 2)
			break;
	if (f)
		fclose(f);
	return xr_probe_fds_scarce(soft, hard);
}

/* Where it was when it started by a relative name is gone; of that name the part behind the last slash is compared. */
static void check_server_rule(const struct xr_config *cfg, const struct xr_listener *who, const char *name,
			      const struct sockaddr *sa)
{
	check_rule(cfg, who->exe, *who->as ? who->as : name, XR_ROLE_SERVER, sa, sa, XR_REASON_PEER_NOT_XRDMA);
	for (uint32_t i = 0; i < cfg->n_rules && !xr_config_plain_path(who->as); i++)
		if (strchr(cfg->rule[i].program, '/')) {
			xr_check_report(XR_NOTE, "rule", "as its server: by which path it was started cannot be known; "
					"the rule of line %u names one", cfg->rule[i].line);
			return;
		}
}

/* A server under xrdma: does it keep its connections, or this one, to TCP? False: its settings are not known. */
static bool check_server(const struct xr_config *ours, const struct xr_listener *who, const struct sockaddr *sa)
{
	static struct xr_config cfg;
	struct xr_segment seg = {.n_flows = 0};
	enum xr_reason why = XR_REASON_NONE;
	bool config, segment;

	config = peer_config(who->pid, &cfg);
	if (config)
		why = xr_config_off(&cfg);
	segment = config ? cfg.stats && peer_segment(who, cfg.stats_dir, &seg) :
			   peer_segment(who, ours->stats_dir, &seg);
	/* its own word counts */
	if (segment)
		why = (enum xr_reason)xr_segment_off(&seg);
	if (!why && peer_is_short_of_fds(who->pid))
		why = XR_REASON_LIMIT_FDS;
	xr_check_report(why ? XR_BAD : XR_OK, "listener", "%s[%d] runs under xrdma%s%s", who->program,
			(int)who->pid, why ? " and keeps to TCP: " : "",
			why ? xr_reason_name(why) : "");
	/* that is what its client can tell of it */
	if (why)
		xr_check_blocked(XR_REASON_PEER_NOT_XRDMA);
	if (config)
		check_server_rule(&cfg, who, segment ? seg.program : NULL, sa);
	else
		xr_check_report(XR_NOTE, "listener", "its settings cannot be known: its environment is overwritten, or "
				"not ours to read");
	if (segment)
		xr_segment_free(&seg);
	return config;
}

/* Another host: may a connection to it be tried over RDMA? dir: a program here would look in run_dir first. */
static bool check_far(const struct xr_config *cfg, const char *host, bool dir)
{
	const char *path = xr_key_path(cfg);
	uint8_t key[XR_KEY_LEN];
	int err = xr_key_load(path, key);
	enum xr_reason why = xr_reach_off(cfg, err);

	explicit_bzero(key, sizeof(key));
	if (why == XR_REASON_NO_KEY)
		xr_check_report(dir ? XR_NOTE : XR_BAD, "key", "%s: %s", path, xr_key_error_text(err));
	xr_check_report(!why ? XR_OK : dir ? XR_NOTE : XR_BAD, "path", "%s is another host%s: %s", host,
			dir ? ", or another network namespace" : "",
			why == XR_REASON_NOT_LOCAL ? "the settings do not allow RDMA" :
			why == XR_REASON_NO_VERBS ? "the kernel here has no RDMA, or none for this user" :
			why ? "nothing proves its programs" : "RDMA");
	if (why && !dir)
		xr_check_blocked(why);
	return !why;
}

struct xr_check_peer xr_check_peer(const struct xr_config *cfg, const struct addrinfo *ai,
				   const char *program)
{
	struct xr_check_peer peer = {.far = false};
	char host[NI_MAXHOST], port[NI_MAXSERV], exe[PATH_MAX] = "", as[PATH_MAX] = "";
	struct xr_listener who;

	getnameinfo(ai->ai_addr, ai->ai_addrlen, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	if (*program)
		xr_target_seen(program, exe, as);
	check_rule(cfg, *program ? exe : NULL, *program ? as : NULL, XR_ROLE_CLIENT, ai->ai_addr, NULL,
		   XR_REASON_RULE);
	if (!xr_probe_is_local(ai->ai_addr, ai->ai_addrlen)) {
		peer.dir = *cfg->run_dir && !xr_probe_run_dir(cfg->run_dir);
		peer.far = check_far(cfg, host, peer.dir);
		return peer;
	}
	xr_check_report(XR_OK, "path", "%s is this host: shared memory", host);
	if (xr_probe_listener(ai->ai_addr, &who)) {
		xr_check_report(XR_BAD, "listener", "nobody listens on port %s", port);
		peer.refused = true;
	} else if (!who.known) {
		xr_check_report(XR_NOTE, "listener",
				"port %s is served by a process that is not ours to see", port);
		peer.unknown = true;
	} else if (!who.preloaded) {
		xr_check_report(XR_BAD, "listener", "%s[%d] runs without xrdma", who.program,
				(int)who.pid);
		xr_check_blocked(XR_REASON_PEER_NOT_XRDMA);
	} else {
		peer.unsaid = !check_server(cfg, &who, ai->ai_addr);
	}
	return peer;
}
