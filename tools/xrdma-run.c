/* SPDX-License-Identifier: BSD-2-Clause */
/* xrdma-run(1): starts a program with the preload object in front. */
#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "core/config.h"
#include "core/key.h"
#include "core/xrdma.h"
#include "mantext.h"
#include "settings.h"
#include "target.h"

enum {
	OPT_SETTING = 0x1000, /* + index of the setting */
	OPT_SHOW_CONFIG = 0x2000,
	OPT_CHECK,
	OPT_CONFIG,
	OPT_PRELOAD,
	OPT_OR_PLAIN,
	OPT_MAKE_KEY,
	OPT_MAN,
};

static struct {
	bool show_config, check, or_plain;
	const char *endpoint; /* of --check */
	const char *preload, *man, *key;
	struct xr_settings settings;
	char **argv; /* the program and its arguments */
	int argc;
} run;

static const char doc[] =
	"Run PROGRAM with its TCP connections carried by shared memory when both "
	"ends run under xrdma, and by kernel TCP otherwise."
	"\vThe options that set something override XRDMA_* variables, which override the "
	"configuration file; see xrdma.conf(5).\n\n"
	"Exit status: that of PROGRAM, or 125 if xrdma-run itself fails, 126 if PROGRAM is found "
	"but cannot be run under xrdma, 127 if it is not found.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case OPT_SHOW_CONFIG:
		run.show_config = true;
		return 0;
	case OPT_CHECK:
		run.check = true;
		run.endpoint = arg;
		return 0;
	case OPT_CONFIG:
		if (!*arg) {
			fputs("xrdma-run: --config: no file is named\n", stderr);
			exit(XR_EXIT_SELF);
		}
		if (xr_settings_file_option(&run.settings, arg)) {
			fprintf(stderr, "xrdma-run: %s: %s\n", arg, strerror(errno));
			exit(XR_EXIT_SELF);
		}
		return 0;
	case OPT_PRELOAD:
		run.preload = arg;
		return 0;
	case OPT_OR_PLAIN:
		run.or_plain = true;
		return 0;
	case OPT_MAKE_KEY:
		run.key = arg;
		return 0;
	case OPT_MAN:
		run.man = arg;
		return 0;
	case ARGP_KEY_ARG: /* the program: what follows is its own */
		run.argv = state->argv + state->next - 1;
		run.argc = state->argc - state->next + 1;
		state->next = state->argc;
		return 0;
	default:
		if (key < OPT_SETTING || key >= OPT_SETTING + XR_KEY_COUNT)
			return ARGP_ERR_UNKNOWN;
		if (xr_settings_option(&run.settings, (enum xr_config_key_id)(key - OPT_SETTING),
				       arg))
			exit(XR_EXIT_SELF);
		return 0;
	}
}

/* One argp option per setting, under a heading per section, then ours. */
static const struct argp_option *options(void)
{
	static const struct argp_option own[] = {
		{0, 0, 0, 0, "xrdma-run itself:", 9},
		{"check", OPT_CHECK, "HOST:PORT", OPTION_ARG_OPTIONAL,
		 "do not run anything; say what would happen here and why", 9},
		{"show-config", OPT_SHOW_CONFIG, 0, 0,
		 "do not run anything; print the settings in force and where each comes from", 9},
		{"config", OPT_CONFIG, "FILE", 0, "configuration file (as XRDMA_CONF)", 9},
		{"preload", OPT_PRELOAD, "FILE", 0, "the preload object to use (as XRDMA_PRELOAD)", 9},
		{"or-plain", OPT_OR_PLAIN, 0, 0,
		 "run PROGRAM without xrdma if it cannot be run with it", 9},
		{"make-key", OPT_MAKE_KEY, "FILE", 0,
		 "do not run anything; make a key for RDMA between the hosts of a cluster", 9},
		{"man-text", OPT_MAN, "PART", OPTION_HIDDEN, 0, 9},
		{0},
	};
	static struct argp_option all[XR_KEY_COUNT + 8 + sizeof(own) / sizeof(own[0])];
	static char names[XR_KEY_COUNT][32], help[XR_KEY_COUNT][160];
	static const struct xr_config none;
	const char *section = "";
	int n = 0, group = 0;

	for (int i = 0; i < XR_KEY_COUNT; i++) {
		const struct xr_config_key *key = &xr_config_keys[i];
		const char *def = *key->def ? key->def : i == XR_KEY_RDMA_KEY ? xr_key_path(&none) : "none";

		if (strcmp(section, key->section)) {
			static const char *const title[] = {"Settings:", "Limits:", "Thresholds:", "RDMA:"};

			section = key->section;
			all[n++] = (struct argp_option){.doc = title[group], .group = group + 1};
			group++;
		}
		xr_settings_option_name((enum xr_config_key_id)i, names[i], sizeof(names[i]));
		snprintf(help[i], sizeof(help[i]), "%s (%s%s%s)", key->help,
			 key->names ? key->names : "default", key->names ? "; default " : " ",
			 def);
		all[n++] = (struct argp_option){names[i], OPT_SETTING + i, key->metavar, 0, help[i],
						group};
	}
	memcpy(all + n, own, sizeof(own));
	return all;
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "xrdma-run (xrdma) %s\n", xrdma_version());
}

static void __attribute__((format(printf, 2, 3), noreturn)) die(int status, const char *fmt, ...)
{
	va_list ap;

	fputs("xrdma-run: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(status);
}

/* As execvp does when the kernel knows no format: a script without #!. */
static void exec_shell(const char *path)
{
	char **argv = calloc((size_t)run.argc + 2, sizeof(*argv));

	if (!argv)
		return;
	argv[0] = (char *)"/bin/sh";
	argv[1] = (char *)path;
	memcpy(argv + 2, run.argv + 1, (size_t)(run.argc - 1) * sizeof(*argv));
	execv(argv[0], argv);
	free(argv);
}

static void set_preload(void)
{
	char object[PATH_MAX];
	const char *why;
	char *value;
	int err = xr_target_preload(run.preload, object);

	why = err ? strerror(-err) : xr_target_object_obstacle(object);
	if (why && run.or_plain)
		return;
	if (why)
		die(XR_EXIT_SELF, "preload object '%s': %s", object, why);
	value = xr_target_ld_preload(object, getenv("LD_PRELOAD"));
	if (!value || setenv("LD_PRELOAD", value, 1) || xr_settings_tell(&run.settings))
		die(XR_EXIT_SELF, "%s", strerror(ENOMEM));
	free(value);
}

static int exec_program(void)
{
	char path[PATH_MAX], buf[512];
	const char *why, *interp;
	int err = xr_target_find(run.argv[0], path), bad;

	if (err)
		die(err == -ENOENT || err == -ENOTDIR ? XR_EXIT_NOT_FOUND : XR_EXIT_CANNOT_RUN,
		    "'%s': %s", run.argv[0], strerror(-err));
	why = xr_target_obstacle(path, buf, sizeof(buf));
	if (why && !run.or_plain)
		die(XR_EXIT_CANNOT_RUN, "'%s' is %s; --or-plain runs it without xrdma", path, why);
	if (!why)
		set_preload();
	execv(path, run.argv);
	err = errno;
	if (err == ENOEXEC)
		exec_shell(path);
	interp = xr_target_interpreter(path, buf, sizeof(buf), &bad);
	if (interp && err != ENOEXEC)
		die(bad == -ENOENT || bad == -ENOTDIR ? XR_EXIT_NOT_FOUND : XR_EXIT_CANNOT_RUN,
		    "'%s' needs '%.*s'%s to run: %s", run.argv[0], (int)strcspn(interp, "\r"), interp,
		    strchr(interp, '\r') ? " and a carriage return (DOS line ends)" : "", strerror(-bad));
	die(err == ENOENT ? XR_EXIT_NOT_FOUND : XR_EXIT_CANNOT_RUN, "'%s': %s", run.argv[0],
	    strerror(err));
}

/* Output that could not be written is a failure of ours. */
static int finish(int status)
{
	if (fflush(stdout) || ferror(stdout))
		die(XR_EXIT_SELF, "standard output: %s", strerror(errno));
	return status;
}

int main(int argc, char **argv)
{
	struct argp argp = {.options = options(), .parser = parse,
			    .args_doc = "PROGRAM [ARG...]", .doc = doc};

	argp_err_exit_status = XR_EXIT_SELF;
	argp_program_version_hook = print_version;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, NULL);
	if (run.man) {
		if (xr_man_text(run.man))
			die(XR_EXIT_SELF, "no such part: '%s'", run.man);
		return finish(0);
	}
	if (run.key) {
		int err = xr_key_make(run.key);

		if (err)
			die(XR_EXIT_SELF, "key '%s': %s", run.key, strerror(-err));
		return finish(0);
	}
	if (run.show_config) {
		xr_settings_show(&run.settings);
		if (!run.check)
			return finish(0);
		putchar('\n');
	}
	if (run.check)
		return finish(xr_check(&run.settings, run.preload, run.endpoint, run.argc,
				       run.argv));
	if (!run.argv)
		die(XR_EXIT_SELF, "no program given; try --help");
	return exec_program();
}
