/* SPDX-License-Identifier: BSD-2-Clause */
/* The options of xrdma-run that set something, and --show-config. */
#include "settings.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void xr_settings_option_name(enum xr_config_key_id id, char *buf, size_t size)
{
	snprintf(buf, size, "%s", xr_config_keys[id].name);
	for (; *buf; buf++)
		if (*buf == '_')
			*buf = '-';
}

static void option_warning(void *arg, const char *where, unsigned int line, const char *msg)
{
	const char *value = strstr(msg, ": ");

	(void)arg;
	(void)line;
	fprintf(stderr, "xrdma-run: %s: %s\n", where, value ? value + 2 : msg);
}

int xr_settings_option(struct xr_settings *s, enum xr_config_key_id id, const char *value)
{
	static struct xr_config scratch;
	char name[40] = "--";

	xr_settings_option_name(id, name + 2, sizeof(name) - 2);
	if (xr_config_set(&scratch, xr_config_keys[id].name, value, XR_ORIGIN_OPTION, name, 0,
			  option_warning, NULL))
		return -EINVAL;
	s->name[id] = strdup(name);
	s->option[id] = value;
	return 0;
}

/* file as it is known from everywhere; it need not exist. malloc'd or NULL. */
static char *absolute(const char *file)
{
	char *here, *path = NULL;

	if (file[0] == '/')
		return strdup(file);
	here = getcwd(NULL, 0);
	if (here && asprintf(&path, "%s/%s", here, file) < 0)
		path = NULL;
	free(here);
	return path;
}

int xr_settings_file_option(struct xr_settings *s, const char *file)
{
	s->file = absolute(file);
	return s->file ? 0 : -errno;
}

int xr_settings_export(const struct xr_settings *s)
{
	const char *given = getenv("XRDMA_CONF");
	char *file = NULL;
	int err;

	if (s->file)
		file = strdup(s->file);
	else if (given && *given)
		file = absolute(given);
	if ((s->file || (given && *given)) && !file)
		return -ENOMEM;
	err = file ? setenv("XRDMA_CONF", file, 1) : 0;
	free(file);
	if (err)
		return -ENOMEM;
	for (int i = 0; i < XR_KEY_COUNT; i++)
		if (s->option[i] && setenv(xr_config_keys[i].env, s->option[i], 1))
			return -ENOMEM;
	return 0;
}

int xr_settings_tell(const struct xr_settings *s)
{
	static struct xr_config cfg;
	char digest[20];

	/* told by another or not: whoever says xrdma-run wants to hear of it */
	if (xr_settings_export(s) || setenv(XR_CONFIG_TOLD, "", 1))
		return -ENOMEM;
	if (!xr_config_load(&cfg, NULL, environ, NULL, (void *)s->name))
		return unsetenv(XR_CONFIG_TOLD) ? -ENOMEM : 0;
	snprintf(digest, sizeof(digest), "%016" PRIx64, cfg.digest);
	return setenv(XR_CONFIG_TOLD, digest, 1) ? -ENOMEM : 0;
}

static void file_warning(void *arg, const char *where, unsigned int line, const char *msg)
{
	where = xr_config_place(arg, where);
	if (line)
		fprintf(stderr, "xrdma-run: %s:%u: %s\n", where, line, msg);
	else
		fprintf(stderr, "xrdma-run: %s: %s\n", where, msg);
}

void xr_settings_load(const struct xr_settings *s, struct xr_config *cfg)
{
	if (xr_settings_export(s)) {
		fprintf(stderr, "xrdma-run: %s\n", strerror(ENOMEM));
		exit(125);
	}
	xr_config_load(cfg, NULL, environ, file_warning, (void *)s->name);
	for (int i = 0; i < XR_KEY_COUNT; i++)
		if (s->option[i] && cfg->origin[i] == XR_ORIGIN_ENV)
			cfg->origin[i] = XR_ORIGIN_OPTION;
}

const char *xr_settings_file(const struct xr_settings *s)
{
	return s->file ? s->file : xr_config_path(NULL, environ);
}

static void show_origin(const struct xr_settings *s, const struct xr_config *cfg, int i)
{
	char name[32];

	switch (cfg->origin[i]) {
	case XR_ORIGIN_FILE:
		printf("%s:%u\n", xr_settings_file(s), cfg->origin_line[i]);
		break;
	case XR_ORIGIN_ENV:
		printf("%s\n", xr_config_keys[i].env);
		break;
	case XR_ORIGIN_OPTION:
		xr_settings_option_name((enum xr_config_key_id)i, name, sizeof(name));
		printf("--%s\n", name);
		break;
	default:
		puts("default");
	}
}

void xr_settings_show_rule(const struct xr_rule *rule)
{
	static const char *const roles[] = {"any", "client", "server"};
	static const char *const actions[] = {"auto", "tcp", "shm"};
	char addr[INET6_ADDRSTRLEN];

	if (rule->program[0])
		printf("program = %s\n", rule->program);
	if (rule->role)
		printf("role = %s\n", roles[rule->role]);
	for (int i = 0; i < rule->n_addr; i++)
		printf("%s%s/%u%s", i ? ", " : "address = ",
		       inet_ntop(rule->addr[i].family, rule->addr[i].addr, addr, sizeof(addr)),
		       rule->addr[i].bits, i + 1 == rule->n_addr ? "\n" : "");
	for (int i = 0; i < rule->n_port; i++) {
		printf("%s%u", i ? ", " : "port = ", rule->port[i].lo);
		if (rule->port[i].hi != rule->port[i].lo)
			printf("-%u", rule->port[i].hi);
		fputs(i + 1 == rule->n_port ? "\n" : "", stdout);
	}
	printf("action = %s\n", actions[rule->action]);
}

void xr_settings_show(const struct xr_settings *s)
{
	static struct xr_config cfg;
	const char *section = "";
	char value[XR_CONFIG_STR];
	int width;

	xr_settings_load(s, &cfg);
	printf("# %s%s\n", xr_settings_file(s), access(xr_settings_file(s), R_OK) ? " (not read)" : "");
	for (int i = 0; i < XR_KEY_COUNT; i++) {
		const struct xr_config_key *key = &xr_config_keys[i];

		if (strcmp(section, key->section)) {
			section = key->section;
			printf("\n[%s]\n", section);
		}
		xr_config_value(&cfg, (enum xr_config_key_id)i, value, sizeof(value));
		width = printf("%s = %s", key->name, value);
		printf("%*s # ", width < 31 ? 31 - width : 0, "");
		show_origin(s, &cfg, i);
	}
	for (uint32_t i = 0; i < cfg.n_rules; i++) {
		const struct xr_rule *rule = &cfg.rule[i];

		if (rule->broken)
			continue;
		printf("\n[rule] # %s:%u\n", xr_settings_file(s), rule->line);
		xr_settings_show_rule(rule);
	}
}
