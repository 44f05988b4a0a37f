/* SPDX-License-Identifier: BSD-2-Clause */
/* Which [rule] decides about a flow. Pure; see config.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "config.h"
#include "shm_link.h"

/* Host order; -1 when there is none. */
static int sockaddr_port(const struct sockaddr *sa)
{
	if (sa && sa->sa_family == AF_INET)
		return ntohs(((const struct sockaddr_in *)sa)->sin_port);
	if (sa && sa->sa_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)sa)->sin6_port);
	return -1;
}

bool xr_config_plain_path(const char *path)
{
	return *path == '/' && !strstr(path, "//") && !strstr(path, "/./") && !strstr(path, "/../");
}

static bool match_name(const struct xr_rule *rule, const char *program)
{
	const char *slash;

	if (!program)
		return false;
	slash = strrchr(program, '/');
	if (!strchr(rule->program, '/') && slash)
		program = slash + 1;
	return xr_glob(rule->program, program);
}

static bool match_program(const struct xr_rule *rule, const char *program, const char *as)
{
	return !rule->program[0] || match_name(rule, program) || match_name(rule, as);
}

static bool match_address(const struct xr_rule *rule, const struct sockaddr *peer)
{
	for (unsigned int i = 0; i < rule->n_addr; i++)
		if (xr_cidr_match(&rule->addr[i], peer))
			return true;
	return !rule->n_addr;
}

static bool match_port(const struct xr_rule *rule, int port)
{
	for (unsigned int i = 0; i < rule->n_port; i++)
		if (rule->port[i].lo <= port && port <= rule->port[i].hi)
			return true;
	return !rule->n_port;
}

int xr_config_match_rule(const struct xr_config *cfg, const char *program, const char *as,
			 enum xr_role role, const struct sockaddr *peer,
			 const struct sockaddr *local)
{
	int port = sockaddr_port(role == XR_ROLE_SERVER ? local : peer);

	for (uint32_t i = 0; i < cfg->n_rules; i++) {
		const struct xr_rule *rule = &cfg->rule[i];

		if (rule->broken || (rule->role != XR_ROLE_ANY && rule->role != role))
			continue;
		if (match_program(rule, program, as) && match_address(rule, peer) &&
		    match_port(rule, port))
			return (int)i;
	}
	return -ENOENT;
}

enum xr_action xr_config_match(const struct xr_config *cfg, const char *program, const char *as,
			       enum xr_role role, const struct sockaddr *peer,
			       const struct sockaddr *local)
{
	int i = xr_config_match_rule(cfg, program, as, role, peer, local);

	return i < 0 ? XR_ACTION_AUTO : (enum xr_action)cfg->rule[i].action;
}

enum xr_reason xr_config_off(const struct xr_config *cfg)
{
	if (!cfg->enabled || cfg->fabric == XR_FABRIC_NONE)
		return XR_REASON_DISABLED;
	if (!cfg->max_flows)
		return XR_REASON_LIMIT_FLOWS;
	if (cfg->max_memory < XR_ARENA_MIN)
		return XR_REASON_LIMIT_MEMORY;
	return XR_REASON_NONE;
}
