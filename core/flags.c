/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Settings by name: the options of a context, and those settings of the process's connections that can be changed
 * while it runs.  Both are validated by the tables they come from.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "channel.h"
#include "config.h"
#include "option_table.h"
#include "segfile.h"
#include "tune.h"

enum unit { UNIT_NUMBER, UNIT_BYTES, UNIT_MS, UNIT_US };

static const struct {
	const char *name, *text;
	enum unit unit;
	uint64_t least, most;
} option[XRDMA_OPT_COUNT] = {
#define ROW(SYM, name, unit, least, most, preset, text) \
	[XRDMA_OPT_##SYM] = { #name, text, UNIT_##unit, least, most },
	XR_OPTION_TABLE(ROW)
#undef ROW
};

/* "2s", "64K", or a number in the unit of the option.  0, -EINVAL, -ERANGE. */
static int option_value(enum unit unit, const char *text, uint64_t *value)
{
	uint64_t scale = unit == UNIT_MS ? 1000000 : 1000, ns;
	int r = xr_parse_size(text, value);

	/* 5m and 5M: of a time it is minutes */
	if (unit == UNIT_NUMBER || unit == UNIT_BYTES || (!r && !text[strspn(text, "0123456789")]))
		return r;
	r = xr_parse_time(text, &ns);
	if (r)
		return r;
	*value = ns / scale;
	return ns % scale ? -EINVAL : 0;
}

static int option_set(struct xrdma_context *ctx, const char *name, const char *text)
{
	uint64_t v;
	int i, r;

	for (i = 0; i < XRDMA_OPT_COUNT; i++)
		if (!strcmp(option[i].name, name))
			break;
	if (i == XRDMA_OPT_COUNT)
		return -ENOENT;
	r = option_value(option[i].unit, text, &v);
	if (r)
		return r;
	if (v < option[i].least || v > option[i].most)
		return -ERANGE;
	return xrdma_set_option(ctx, (enum xrdma_option)i, v);
}

/* ---- the process's connections ---- */

static void ignore(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg, (void)where, (void)line, (void)msg;
}

/* The statistics of this process, as the preload object keeps them.  A descriptor, or -ENODEV. */
static int own_segment(const struct xr_config *cfg, struct xr_segfile *f, struct xr_stats_header *h)
{
	int r = xr_segfile_name(f, cfg->stats_dir, ""), fd;

	if (r)
		return r;
	fd = open(f->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT ? -ENODEV : -errno;
	r = xr_tune_head(fd, h);
	if (!r)
		return fd;
	close(fd);
	return r;
}

static int process_set(struct xr_config *cfg, const char *name, const char *text)
{
	struct xr_stats_header h;
	struct xr_segfile f;
	uint32_t i;
	int fd, r;

	for (i = 0; i < XR_STATS_TUNES; i++)
		if (!strcmp(xr_config_keys[xr_tune_key[i]].name, name))
			break;
	if (i == XR_STATS_TUNES)
		return -ENOENT;
	r = xr_config_set(cfg, name, text, XR_ORIGIN_OPTION, name, 0, ignore, NULL);
	if (r)
		return r;
	fd = own_segment(cfg, &f, &h);
	if (fd < 0)
		return fd;
	r = xr_tune_put(fd, i, *xr_tune_field(cfg, &xr_config_keys[xr_tune_key[i]]));
	if (!r)
		r = xr_tune_tell(fd, f.path, h.control);
	close(fd);
	return r;
}

static int process_get(struct xr_config *cfg, unsigned int i, struct xrdma_flag *flag)
{
	const struct xr_config_key *k;
	struct xr_stats_header h;
	struct xr_segfile f;
	int fd = own_segment(cfg, &f, &h);

	if (fd < 0)
		return fd;
	close(fd);
	if (i >= XR_STATS_TUNES)
		return -ENOENT;
	k = &xr_config_keys[xr_tune_key[i]];
	*flag = (struct xrdma_flag){ .name = k->name, .text = k->help, .least = k->min, .most = k->max,
				     .value = h.tune[i] ? h.tune[i] - 1 : *xr_tune_field(cfg, k) };
	return 0;
}

/* ---- public ---- */

int xrdma_set_flag(struct xrdma_context *ctx, const char *name, const char *value)
{
	struct xr_config *cfg;
	int r;

	if (!name || !value)
		return -EINVAL;
	if (ctx)
		return option_set(ctx, name, value);
	cfg = malloc(sizeof(*cfg));
	if (!cfg)
		return -ENOMEM;
	xr_config_load(cfg, NULL, environ, ignore, NULL);
	r = process_set(cfg, name, value);
	free(cfg);
	return r;
}

int xrdma_get_flag(const struct xrdma_context *ctx, unsigned int i, struct xrdma_flag *flag)
{
	struct xr_config *cfg;
	int r;

	if (ctx) {
		if (i >= XRDMA_OPT_COUNT)
			return -ENOENT;
		*flag = (struct xrdma_flag){ .name = option[i].name, .text = option[i].text, .least = option[i].least,
					     .most = option[i].most, .value = ctx->option[i] };
		return 0;
	}
	cfg = malloc(sizeof(*cfg));
	if (!cfg)
		return -ENOMEM;
	xr_config_load(cfg, NULL, environ, ignore, NULL);
	r = process_get(cfg, i, flag);
	free(cfg);
	return r;
}
