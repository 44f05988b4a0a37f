/* SPDX-License-Identifier: BSD-2-Clause */
/* Settings: the table, and one value at a time. See config.h and config_table.h. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "config_priv.h"
#include "shm_ring.h"

const struct xr_config_key xr_config_keys[XR_KEY_COUNT] = {
#define ROW(section, key, KEY, type, def, min, max, names, metavar, help, man)                     \
	[XR_KEY_##KEY] = {#section, #key, XR_CONFIG_ENV_PREFIX #KEY, XR_TYPE_##type, def, min, max, names,   \
			  metavar, help, man, offsetof(struct xr_config, key)},
	XR_CONFIG_TABLE(ROW)
#undef ROW
};

void xr_config_warn(const struct xr_warner *w, const char *fmt, ...)
{
	char msg[XR_LOG_LINE];
	va_list ap;

	va_start(ap, fmt);
	xr_vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	w->cfg->warnings++;
	if (w->fn)
		w->fn(w->arg, w->where, w->line, msg);
}

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Optimal string alignment: insert, delete, replace, swap neighbours. Cut at 31 characters. */
static unsigned int distance(const char *a, const char *b)
{
	unsigned int row[3][33];
	size_t la = min_size(strlen(a), 31), lb = min_size(strlen(b), 31);

	for (size_t j = 0; j <= lb; j++)
		row[0][j] = (unsigned int)j;
	for (size_t i = 1; i <= la; i++) {
		unsigned int *cur = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];

		cur[0] = (unsigned int)i;
		for (size_t j = 1; j <= lb; j++) {
			unsigned int d = up[j - 1] + (a[i - 1] != b[j - 1]);

			if (up[j] + 1 < d)
				d = up[j] + 1;
			if (cur[j - 1] + 1 < d)
				d = cur[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    up2[j - 2] + 1 < d)
				d = up2[j - 2] + 1;
			cur[j] = d;
		}
	}
	return row[la % 3][lb];
}

/* Keeps the nearer of *best and candidate. */
static void consider(const char *word, const char *candidate, const char **best, unsigned int *d)
{
	unsigned int n = distance(word, candidate);

	if (n < *d) {
		*d = n;
		*best = candidate;
	}
}

/* Distances from here on are no misspelling any more. */
static unsigned int too_far(const char *word)
{
	size_t len = strlen(word);

	return len <= 3 ? 2 : len <= 8 ? 3 : 4;
}

const char *xr_config_nearest(const char *word, const char *const *list, size_t n)
{
	const char *best = NULL;
	unsigned int d = too_far(word);

	for (size_t i = 0; i < n; i++)
		consider(word, list[i], &best, &d);
	return best;
}

const char *xr_config_suggest(const char *word)
{
	const char *best = NULL;
	unsigned int d = too_far(word);

	for (int i = 0; i < XR_KEY_COUNT; i++)
		consider(word, xr_config_keys[i].name, &best, &d);
	return best;
}

/* "a|b|c": the number of word, or -ENOENT. */
static int enum_parse(const char *names, const char *word)
{
	size_t len = strlen(word);

	for (int i = 0;; i++) {
		const char *bar = strchrnul(names, '|');

		if ((size_t)(bar - names) == len && !memcmp(names, word, len))
			return i;
		if (!*bar)
			return -ENOENT;
		names = bar + 1;
	}
}

static const char *enum_name(const char *names, int n, size_t *len)
{
	const char *bar;

	for (;; names = bar + 1) {
		bar = strchrnul(names, '|');
		if (!n-- || !*bar)
			break;
	}
	*len = (size_t)(bar - names);
	return names;
}

int xr_config_key_find(const char *name)
{
	for (int i = 0; i < XR_KEY_COUNT; i++) {
		const char *a = name, *b = xr_config_keys[i].name;

		while (*a && (*a == '-' ? '_' : *a) == *b)
			a++, b++;
		if (!*a && !*b)
			return i;
	}
	return -ENOENT;
}

static void value_print(const struct xr_config_key *key, uint64_t v, char *buf, size_t size)
{
	static const struct {
		uint64_t ns;
		const char *name;
	} times[] = {{1000000000, "s"}, {1000000, "ms"}, {1000, "us"}, {1, "ns"}};
	int i;

	switch (key->type) {
	case XR_TYPE_SIZE:
		for (i = 4; i > 0 && (!v || v & ((1ull << (10 * i)) - 1)); i--)
			;
		xr_snprintf(buf, size, "%lu%.*s", (unsigned long)(v >> (10 * i)), i > 0, &" KMGT"[i]);
		break;
	case XR_TYPE_TIME:
		for (i = 0; i < 3 && v % times[i].ns; i++)
			;
		xr_snprintf(buf, size, "%lu%s", (unsigned long)(v / times[i].ns),
			    v ? times[i].name : "");
		break;
	default:
		xr_snprintf(buf, size, "%lu", (unsigned long)v);
	}
}

int xr_config_value(const struct xr_config *cfg, enum xr_config_key_id id, char *buf, size_t size)
{
	const struct xr_config_key *key = &xr_config_keys[id];
	const char *field = (const char *)cfg + key->offset;
	char text[40];
	size_t len;

	switch (key->type) {
	case XR_TYPE_BOOL:
		return xr_snprintf(buf, size, "%s", *(const bool *)field ? "yes" : "no");
	case XR_TYPE_ENUM:
		field = enum_name(key->names, *(const int *)field, &len);
		return xr_snprintf(buf, size, "%.*s", (int)len, field);
	case XR_TYPE_TEXT:
	case XR_TYPE_PATH:
		return xr_snprintf(buf, size, "%s", field);
	default:
		value_print(key, *(const uint64_t *)field, text, sizeof(text));
		return xr_snprintf(buf, size, "%s", text);
	}
}

static int set_number(struct xr_config *cfg, const struct xr_config_key *key, const char *value,
		      const struct xr_warner *w)
{
	char lo[40], hi[40];
	uint64_t v;
	int err = key->type == XR_TYPE_TIME ? xr_parse_time(value, &v) : xr_parse_size(value, &v);

	if (err == -EINVAL) {
		xr_config_warn(w, "%s: '%.64s' is not a %s", key->name, value,
		     key->type == XR_TYPE_TIME	 ? "time (such as 50us, 2ms, 1s)"
		     : key->type == XR_TYPE_SIZE ? "size (such as 4096, 64K, 4M)"
						 : "number");
		return err;
	}
	if (err || v < key->min || v > key->max) {
		value_print(key, key->min, lo, sizeof(lo));
		value_print(key, key->max, hi, sizeof(hi));
		xr_config_warn(w, "%s: '%.64s' is out of range (%s to %s)", key->name, value, lo, hi);
		return -ERANGE;
	}
	*(uint64_t *)((char *)cfg + key->offset) = v;
	return 0;
}

int xr_config_enum(const char *what, const char *names, const char *value,
		   const struct xr_warner *w)
{
	const char *best = NULL;
	unsigned int d = too_far(value);
	char word[8][16];
	size_t len;
	int n = enum_parse(names, value);

	if (n >= 0)
		return n;
	for (n = 0; n < 8; n++) {
		const char *name = enum_name(names, n, &len);

		xr_snprintf(word[n], sizeof(word[n]), "%.*s", (int)len, name);
		consider(value, word[n], &best, &d);
		if (!name[len])
			break;
	}
	if (best)
		xr_config_warn(w, "%s: '%.64s' is none of %s; did you mean '%s'?", what, value, names, best);
	else
		xr_config_warn(w, "%s: '%.64s' is none of %s", what, value, names);
	return -EINVAL;
}

static int set_value(struct xr_config *cfg, int id, const char *value, const struct xr_warner *w)
{
	const struct xr_config_key *key = &xr_config_keys[id];
	char *field = (char *)cfg + key->offset;
	size_t len = strlen(value);
	bool flag;
	int n;

	switch (key->type) {
	case XR_TYPE_BOOL:
		if (xr_parse_bool(value, &flag)) {
			xr_config_warn(w, "%s: '%.64s' is neither yes nor no", key->name, value);
			return -EINVAL;
		}
		*(bool *)field = flag;
		return 0;
	case XR_TYPE_ENUM:
		n = xr_config_enum(key->name, key->names, value, w);
		if (n < 0)
			return n;
		*(int *)field = n;
		return 0;
	case XR_TYPE_TEXT:
	case XR_TYPE_PATH:
		if (len < key->min || len > key->max) {
			xr_config_warn(w, "%s: the value must have %lu to %lu characters", key->name,
			     (unsigned long)key->min, (unsigned long)key->max);
			return -ERANGE;
		}
		if (key->type == XR_TYPE_PATH && len && value[0] != '/') {
			xr_config_warn(w, "%s: '%.64s' is not an absolute path", key->name, value);
			return -EINVAL;
		}
		memcpy(field, value, len + 1);
		return 0;
	default:
		return set_number(cfg, key, value, w);
	}
}

static int set_key(struct xr_config *cfg, int id, const char *value, enum xr_config_origin origin,
		   const struct xr_warner *w)
{
	int err = set_value(cfg, id, value, w);

	if (err)
		return err;
	cfg->origin[id] = (uint8_t)origin;
	cfg->origin_line[id] = (uint16_t)(w->line > 65535 ? 65535 : w->line);
	return 0;
}

int xr_config_set(struct xr_config *cfg, const char *key, const char *value,
		  enum xr_config_origin origin, const char *where, unsigned int line,
		  xr_config_warn_fn fn, void *arg)
{
	const struct xr_warner w = {cfg, fn, arg, where, line};
	const char *near;
	int id = xr_config_key_find(key);

	if (id >= 0)
		return set_key(cfg, id, value, origin, &w);
	near = xr_config_suggest(key);
	if (near)
		xr_config_warn(&w, "unknown key '%.64s'; did you mean '%s'?", key, near);
	else
		xr_config_warn(&w, "unknown key '%.64s'", key);
	return id;
}

void xr_config_defaults(struct xr_config *cfg)
{
	const struct xr_warner w = {.cfg = cfg};

	memset(cfg, 0, sizeof(*cfg));
	for (int i = 0; i < XR_KEY_COUNT; i++)
		set_value(cfg, i, xr_config_keys[i].def, &w);
}
