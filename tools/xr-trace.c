/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-trace(1): where the time of messages went. */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/xrdma.h"
#include "args.h"
#include "trace.h"
#include "watch.h"

enum {
	OPT_OTLP = 0x1000,
	OPT_PID,
	OPT_PROGRAM,
	OPT_DIR,
	OPT_DEAD,
	OPT_ID,
};

static const struct argp_option options[] = {
	{"connections", 'c', 0, 0, "a line per connection and direction", 1},
	{"messages", 'm', 0, 0, "two lines per message", 1},
	{"waterfall", 'W', 0, 0, "a picture of each message", 1},
	{"last", 'n', "N", 0, "so many messages, the latest (10; 0: all)", 1},
	{"watch", 'w', "SECS", 0, "again every SECS seconds", 1},
	{"json", 'j', 0, 0, "everything as JSON", 2},
	{"otlp", OPT_OTLP, 0, 0, "spans of OpenTelemetry, as OTLP/JSON", 2},
	{"pid", OPT_PID, "PID", 0, "only messages from or to this process", 3},
	{"program", OPT_PROGRAM, "GLOB", 0, "only messages from or to programs of this name", 3},
	{"id", OPT_ID, "HEX", 0, "only messages whose trace id begins so", 3},
	{"dead", OPT_DEAD, 0, 0, "also what crashed processes left, without removing it", 3},
	{"dir", OPT_DIR, "DIR", 0, "the stats_dir of the programs to look at", 3},
	{0},
};

static const char doc[] =
	"Show where the time of messages went that programs under xrdma, or on libxrdma, have traced: "
	"by default percentiles over all of them. With FILE: of records that were copied from elsewhere, instead of "
	"those of this host."
	"\vThe setting trace_sample makes programs trace; xr-stat --set=trace_sample=100 does so while they run.\n"
	"Exit status: 0 all shown, 1 something could not be read, 2 trouble.";

static const char *hex(const char *arg, struct argp_state *state)
{
	size_t n = strspn(arg, "0123456789abcdef");

	if (!n || arg[n] || n > 32)
		argp_error(state, "'%s' is not 1 to 32 hexadecimal digits", arg);
	return arg;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct xr_trace_options *opt = state->input;

	switch (key) {
	case 'c':
		opt->connections = true;
		return 0;
	case 'm':
		opt->messages = true;
		return 0;
	case 'W':
		opt->waterfall = true;
		return 0;
	case 'n':
		opt->last = (unsigned int)xr_args_number(state, "last", arg, 0, 1 << 30);
		if (!opt->last)
			opt->last = 1u << 30;
		return 0;
	case 'w':
		opt->watch = xr_args_seconds(state, "watch", arg, 0.05, 86400);
		return 0;
	case 'j':
		opt->json = true;
		return 0;
	case OPT_OTLP:
		opt->otlp = true;
		return 0;
	case OPT_PID:
		opt->pid = (pid_t)xr_args_number(state, "pid", arg, 1, 1 << 30);
		return 0;
	case OPT_PROGRAM:
		opt->program = arg;
		return 0;
	case OPT_ID:
		opt->id = hex(arg, state);
		return 0;
	case OPT_DEAD:
		opt->dead = true;
		return 0;
	case OPT_DIR:
		opt->dir = arg;
		return 0;
	case ARGP_KEY_ARGS:
		opt->files = state->argv + state->next;
		return 0;
	case ARGP_KEY_END:
		if (opt->json + opt->otlp + opt->connections + opt->messages + opt->waterfall > 1)
			argp_error(state, "-c, -m, -W, -j and --otlp exclude each other");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "xr-trace (xrdma) %s\n", xrdma_version());
}

static bool end_wanted(const struct xr_trace_options *opt, const struct xr_trace_end *e)
{
	return e->file && (!opt->pid || opt->pid == e->file->pid) &&
	       (!opt->program || xr_glob(opt->program, e->file->program));
}

bool xr_trace_wanted(const struct xr_trace_options *opt, const struct xr_trace_msg *m)
{
	char id[33];

	xr_trace_id_text(m->id, id);
	return (!opt->id || !strncmp(id, opt->id, strlen(opt->id))) &&
	       (end_wanted(opt, &m->sender) || end_wanted(opt, &m->receiver));
}

static int print(FILE *out, const struct xr_trace_options *opt, const struct xr_trace_set *set)
{
	struct xr_trace_msgs msgs;
	size_t kept = 0;
	int err = xr_trace_join(set, &msgs);

	if (err)
		return err;
	for (size_t i = 0; i < msgs.n; i++)
		if (xr_trace_wanted(opt, &msgs.msg[i]))
			msgs.msg[kept++] = msgs.msg[i];
	msgs.n = kept;
	if (opt->json)
		err = xr_trace_json(out, set, &msgs);
	else if (opt->otlp)
		err = xr_trace_otlp(out, set, &msgs);
	else
		err = xr_trace_show(out, opt, set, &msgs);
	free(msgs.msg);
	return err;
}

/* --pid names nobody who could have been traced; told on stderr. */
static bool nobody(const struct xr_trace_options *opt, const struct xr_trace_set *set)
{
	bool foreign = opt->pid && xr_segment_foreign(opt->pid);

	if (!opt->pid || (opt->files && *opt->files) || (!foreign && (!kill(opt->pid, 0) || errno != ESRCH)))
		return false;
	for (size_t i = 0; i < set->n; i++)
		if (set->file[i].pid == opt->pid)
			return false;
	if (foreign)
		fprintf(stderr, "xr-trace: process %d is another user's: only that user and root see its messages\n",
			(int)opt->pid);
	else
		fprintf(stderr, "xr-trace: no process %d, and no records of it in %s\n", (int)opt->pid, opt->base);
	return true;
}

static int show(FILE *out, void *arg)
{
	const struct xr_trace_options *opt = arg;
	struct xr_trace_set set;
	int err = xr_trace_find(opt, &set), status = EXIT_SHOWN;

	if (err) {
		fprintf(stderr, "xr-trace: %s: %s\n", opt->base, strerror(-err));
		return EXIT_TROUBLE;
	}
	err = print(out, opt, &set);
	if (err) {
		fprintf(stderr, "xr-trace: %s\n", strerror(-err));
		status = EXIT_TROUBLE;
	} else if (nobody(opt, &set) || set.errors) {
		status = EXIT_PARTLY;
	}
	xr_trace_set_free(&set);
	return status;
}

int main(int argc, char **argv)
{
	struct xr_trace_options opt = {.last = 10};
	struct xr_watch watch = {.tool = "xr-trace", .show = show, .arg = &opt};
	const struct argp argp = {.options = options, .parser = parse, .args_doc = "[FILE...]", .doc = doc};
	const char *dir;

	argp_err_exit_status = EXIT_TROUBLE;
	argp_program_version_hook = print_version;
	argp_parse(&argp, argc, argv, 0, NULL, &opt);
	dir = xr_watch_directory(watch.tool);
	opt.base = opt.dir ? opt.dir : dir;
	watch.seconds = opt.watch;
	watch.page = watch.parted = !opt.json && !opt.otlp;
	return xr_watch(&watch);
}
