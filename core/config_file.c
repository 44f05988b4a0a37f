/* SPDX-License-Identifier: BSD-2-Clause */
/* The INI text of xrdma.conf(5). Pure; see config.h. */
#include <errno.h>
#include <string.h>

#include "config.h"
#include "config_priv.h"

static const char *const sections[] = {"global", "limits", "thresholds", "rdma", "rule"};
static const char *const rule_keys[] = {"program", "role", "address", "port", "action"};
static const char *const role_names = "any|client|server";
static const char *const action_names = "auto|tcp|shm";

/* A pattern that could match no program is a mistake. */
static int rule_program(struct xr_rule *rule, const char *value, const struct xr_warner *w)
{
	size_t len = strlen(value);

	if (len >= sizeof(rule->program)) {
		xr_config_warn(w, "program: longer than %d characters", (int)sizeof(rule->program) - 1);
	} else if (!len) {
		xr_config_warn(w, "program: no name; all programs are 'any'");
	} else if (len > 1 && strchr("'\"", value[0]) && value[len - 1] == value[0]) {
		xr_config_warn(w, "program: %.64s: quotes are not taken off, leave them out", value);
	} else if (strchr(value, '/') && !strchr("/*?[\\", value[0])) {
		xr_config_warn(w, "program: '%.64s' is neither a file name nor an absolute path", value);
	} else {
		strcpy(rule->program, strcmp(value, "any") ? value : "");
		return 0;
	}
	return -EINVAL;
}

/* One line of a [rule]. */
static void rule_line(struct xr_rule *rule, const char *key, char *value, const struct xr_warner *w)
{
	const char *near;
	int n;

	if (!strcmp(key, "program")) {
		rule->broken |= rule_program(rule, value, w) < 0;
	} else if (!strcmp(key, "role")) {
		n = xr_config_enum("role", role_names, value, w);
		rule->role = (uint8_t)(n < 0 ? 0 : n);
		rule->broken |= n < 0;
	} else if (!strcmp(key, "action")) {
		n = xr_config_enum("action", action_names, value, w);
		rule->action = (uint8_t)(n < 0 ? 0 : n);
		rule->has_action = 1;
		rule->broken |= n < 0;
	} else if (!strcmp(key, "port")) {
		n = strcmp(value, "any") ? xr_parse_ports(value, rule->port, XR_CONFIG_PORTS) : 0;
		rule->n_port = (uint8_t)(n < 0 ? 0 : n);
		rule->broken |= n < 0;
		if (n < 0)
			xr_config_warn(w, "port: '%.64s' is not a list of up to %d ports or ranges N-M", value,
			     XR_CONFIG_PORTS);
	} else if (!strcmp(key, "address")) {
		char *next = strcmp(value, "any") ? value : NULL;

		for (rule->n_addr = 0; next;) {
			char *word = next + strspn(next, " \t"), *end;

			next = strchr(word, ',');
			if (next)
				*next++ = '\0';
			end = word + strcspn(word, " \t");
			if (end[strspn(end, " \t")])
				end = word; /* two words: no address */
			*end = '\0';
			if (rule->n_addr == XR_CONFIG_ADDRS ||
			    xr_parse_cidr(word, &rule->addr[rule->n_addr])) {
				xr_config_warn(w,
				     "address: '%.64s' is not one of up to %d addresses ADDR or "
				     "ADDR/BITS with the bits after the prefix zero",
				     word, XR_CONFIG_ADDRS);
				rule->broken = 1;
				return;
			}
			rule->n_addr++;
		}
	} else {
		int id = xr_config_key_find(key);

		near = xr_config_nearest(key, rule_keys, 5);
		rule->broken = 1;
		if (id >= 0)
			xr_config_warn(w, "%s belongs in [%s], not [rule]", xr_config_keys[id].name,
				       xr_config_keys[id].section);
		else if (near)
			xr_config_warn(w, "unknown key '%.64s' in [rule]; did you mean '%s'?", key, near);
		else
			xr_config_warn(w, "unknown key '%.64s' in [rule]", key);
	}
}

struct parser {
	struct xr_warner w;
	const char *section;  /* of sections[]; NULL inside an unknown one */
	struct xr_rule *rule; /* the open one */
};

/* A rule of which a part was not understood would match too much: it matches nothing. */
static void rule_spoil(struct parser *p)
{
	if (p->rule)
		p->rule->broken = 1;
}

static void rule_done(struct parser *p)
{
	struct xr_warner w = p->w;

	if (!p->rule)
		return;
	w.line = p->rule->line;
	if (!p->rule->has_action && !p->rule->broken) {
		xr_config_warn(&w, "this [rule] has no action and is ignored");
		p->rule->broken = 1;
	} else if (p->rule->broken) {
		xr_config_warn(&w, "this [rule] is ignored because of its mistakes");
	}
	p->rule = NULL;
}

static void section_line(struct parser *p, char *line)
{
	struct xr_config *cfg = p->w.cfg;
	size_t len = strlen(line);
	const char *near;

	rule_done(p);
	p->section = NULL;
	if (len < 2 || line[len - 1] != ']') {
		xr_config_warn(&p->w, "'%.64s' lacks its ]", line);
		return;
	}
	line[len - 1] = '\0';
	line++;
	for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
		if (!strcmp(line, sections[i]))
			p->section = sections[i];
	if (!p->section) {
		near = xr_config_nearest(line, sections, sizeof(sections) / sizeof(sections[0]));
		if (near)
			xr_config_warn(&p->w, "unknown section [%.64s], which is passed over; did you mean [%s]?",
				       line, near);
		else
			xr_config_warn(&p->w, "unknown section [%.64s], which is passed over", line);
	} else if (!strcmp(p->section, "rule")) {
		if (cfg->n_rules == XR_CONFIG_RULES) {
			xr_config_warn(&p->w, "more than %d rules: this one is ignored", XR_CONFIG_RULES);
			p->section = NULL;
			return;
		}
		p->rule = &cfg->rule[cfg->n_rules++];
		memset(p->rule, 0, sizeof(*p->rule));
		p->rule->line = p->w.line;
	}
}

static char *trim(char *s)
{
	size_t len;

	s += strspn(s, " \t\r");
	for (len = strlen(s); len && strchr(" \t\r", s[len - 1]); len--)
		;
	s[len] = '\0';
	return s;
}

static void text_line(struct parser *p, char *line)
{
	struct xr_config *cfg = p->w.cfg;
	char *value, *c;
	int id;

	line = trim(line);
	if (!*line || *line == '#' || *line == ';')
		return;
	for (c = line + 1; *c; c++) { /* a comment after a blank */
		if ((*c == '#' || *c == ';') && (c[-1] == ' ' || c[-1] == '\t')) {
			*c = '\0';
			line = trim(line);
			break;
		}
	}
	if (*line == '[') {
		section_line(p, line);
		return;
	}
	value = strchr(line, '=');
	if (!value || value == line) {
		xr_config_warn(&p->w, "'%.64s' is neither [section] nor key = value", line);
		rule_spoil(p);
		return;
	}
	*value++ = '\0';
	line = trim(line);
	value = trim(value);
	if (p->rule) {
		rule_line(p->rule, line, value, &p->w);
		return;
	}
	if (!p->section)
		return; /* warned about where the section began */
	id = xr_config_key_find(line);
	for (size_t i = 0; id < 0 && i < sizeof(rule_keys) / sizeof(rule_keys[0]); i++)
		if (!strcmp(line, rule_keys[i])) {
			xr_config_warn(&p->w, "%s belongs in [rule], not [%s]", line, p->section);
			return;
		}
	if (id >= 0 && strcmp(xr_config_keys[id].section, p->section))
		xr_config_warn(&p->w, "%s belongs in [%s], not [%s]; taken all the same", xr_config_keys[id].name,
		     xr_config_keys[id].section, p->section);
	xr_config_set(cfg, line, value, XR_ORIGIN_FILE, p->w.where, p->w.line, p->w.fn, p->w.arg);
}

int xr_config_parse(struct xr_config *cfg, const char *text, size_t len, const char *name,
		    xr_config_warn_fn fn, void *arg)
{
	struct parser p = {.w = {cfg, fn, arg, name, 0}, .section = "global"};
	char line[1024];

	if (len > XR_CONFIG_FILE_MAX) {
		xr_config_warn(&p.w, "longer than %u bytes: not read", XR_CONFIG_FILE_MAX);
		return -EFBIG;
	}
	if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
		text += 3;
		len -= 3;
	}
	while (len) {
		const char *end = memchr(text, '\n', len);
		size_t n = end ? (size_t)(end - text) : len;

		p.w.line++;
		if (n >= sizeof(line)) {
			xr_config_warn(&p.w, "longer than %d characters: ignored", (int)sizeof(line) - 1);
			rule_spoil(&p);
		} else if (memchr(text, '\0', n)) {
			xr_config_warn(&p.w, "holds a NUL byte: ignored");
			rule_spoil(&p);
		} else {
			memcpy(line, text, n);
			line[n] = '\0';
			text_line(&p, line);
		}
		n += end != NULL;
		text += n;
		len -= n;
	}
	rule_done(&p);
	return 0;
}
