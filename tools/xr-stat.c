/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-stat(1): the connections of programs under xrdma, as ss(8) would show them. */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/tune.h"
#include "core/xrdma.h"
#include "args.h"
#include "stat.h"
#include "watch.h"

enum {
	OPT_PROMETHEUS = 0x1000,
	OPT_PID,
	OPT_PROGRAM,
	OPT_DIR,
	OPT_DEAD,
	OPT_RETREAT,
	OPT_RETURN,
	OPT_FD,
	OPT_DEVICE,
	OPT_WAIT,
	OPT_SET,
};

static const struct argp_option options[] = {
	{"all", 'a', 0, 0, "all connections, also those on TCP", 1},
	{"listening", 'l', 0, 0, "listening sockets; with -a, besides the connections", 1},
	{"numeric", 'n', 0, 0, "port numbers, not service names", 1},
	{"resolve", 'r', 0, 0, "host names, not addresses", 1},
	{"processes", 'p', 0, 0, "add the process and the descriptor", 1},
	{"info", 'i', 0, 0, "add a line of counters per connection", 1},
	{"totals", 't', 0, 0, "totals per process and reason instead of connections", 1},
	{"watch", 'w', "SECS", 0, "again every SECS seconds", 1},
	{"json", 'j', 0, 0, "everything as JSON", 2},
	{"prometheus", OPT_PROMETHEUS, 0, 0, "totals in the Prometheus text format", 2},
	{"pid", OPT_PID, "PID", 0, "only this process", 3},
	{"program", OPT_PROGRAM, "GLOB", 0, "only programs of this name", 3},
	{"dead", OPT_DEAD, 0, 0, "also what crashed processes left, without removing it", 3},
	{"dir", OPT_DIR, "DIR", 0, "the stats_dir of the programs to look at", 3},
	{"fd", OPT_FD, "FD", 0, "only the connection with this descriptor (--retreat, --return)", 3},
	{"device", OPT_DEVICE, "NAME", 0, "only connections on this device, or shm (--retreat, --return)", 3},
	{"retreat", OPT_RETREAT, 0, 0,
	 "take connections back to TCP, now, and keep them there; open ones and new ones", 4},
	{"return", OPT_RETURN, 0, 0, "let them leave TCP again, when they next carry data", 4},
	{"set", OPT_SET, "NAME=VALUE", 0,
	 "change a setting of the programs, now: spin, upgrade_turns, upgrade_bytes, return_after, trace_sample", 4},
	{"wait", OPT_WAIT, "SECS", 0, "how long --retreat may take (default 5)", 4},
	{0},
};

static const char doc[] =
	"Show the TCP connections of programs under xrdma, what carries them, and why those on "
	"TCP are there. Without options: the connections on a fabric, and a count of the others."
	" With --retreat or --return: move them; with --set: change a setting of the programs."
	"\vExit status: 0 all shown or done, 1 something could not be read or --pid names no such process, "
	"2 trouble.";

static void set_mistake(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg;
	(void)line;
	fprintf(stderr, "xr-stat: %s: %s\n", where, msg);
}

/* NAME=VALUE, as in the configuration file. */
static void set(struct xr_stat_options *opt, const char *arg, struct argp_state *state)
{
	static struct xr_config cfg;
	const char *eq = strchr(arg, '=');
	uint32_t i;

	for (i = 0; i < XR_STATS_TUNES; i++) {
		const struct xr_config_key *k = &xr_config_keys[xr_tune_key[i]];
		size_t n = strlen(k->name);

		if (!eq || (size_t)(eq - arg) != n || strncmp(arg, k->name, n))
			continue;
		if (xr_config_set(&cfg, k->name, eq + 1, XR_ORIGIN_OPTION, "--set", 0, set_mistake, NULL))
			exit(EXIT_TROUBLE);
		opt->tune[i] = *xr_tune_field(&cfg, k) + 1;
		opt->tunes = true;
		return;
	}
	argp_error(state, "'%s' is not NAME=VALUE of spin, upgrade_turns, upgrade_bytes, return_after or "
		   "trace_sample", arg);
}

/* A name with a mistake would be held, and nothing would happen. */
static const char *device(const char *arg, struct argp_state *state)
{
	char path[64];

	if (!strcmp(arg, XR_STATS_SHM))
		return arg;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.*s", XR_STATS_DEVICE - 1, arg);
	if (!*arg || *arg == '.' || strchr(arg, '/') || strlen(arg) >= XR_STATS_DEVICE || access(path, F_OK))
		argp_error(state, "'%s' is neither shm nor an RDMA device of this machine", arg);
	return arg;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct xr_stat_options *opt = state->input;

	switch (key) {
	case 'a':
		opt->all = true;
		return 0;
	case 'l':
		opt->listeners = true;
		return 0;
	case 'n':
		opt->numeric = true;
		return 0;
	case 'r':
		opt->resolve = true;
		return 0;
	case 'p':
		opt->process = true;
		return 0;
	case 'i':
		opt->info = true;
		return 0;
	case 't':
		opt->totals = true;
		return 0;
	case 'w':
		opt->watch = xr_args_seconds(state, "watch", arg, 0.05, 86400);
		return 0;
	case 'j':
		opt->json = true;
		return 0;
	case OPT_PROMETHEUS:
		opt->prometheus = true;
		return 0;
	case OPT_PID:
		opt->pid = (pid_t)xr_args_number(state, "pid", arg, 1, 1 << 30);
		return 0;
	case OPT_PROGRAM:
		opt->program = arg;
		return 0;
	case OPT_DIR:
		opt->dir = arg;
		return 0;
	case OPT_DEAD:
		opt->dead = true;
		return 0;
	case OPT_RETREAT:
		opt->retreat = true;
		return 0;
	case OPT_RETURN:
		opt->back = true;
		return 0;
	case OPT_FD:
		opt->fd = (int)xr_args_number(state, "fd", arg, 0, 1 << 30);
		return 0;
	case OPT_DEVICE:
		opt->device = device(arg, state);
		return 0;
	case OPT_SET:
		set(opt, arg, state);
		return 0;
	case OPT_WAIT:
		opt->wait = xr_args_seconds(state, "wait", arg, 0.05, 86400);
		return 0;
	case ARGP_KEY_END:
		if (opt->retreat && opt->back)
			argp_error(state, "--retreat and --return exclude each other");
		if (opt->fd >= 0 && (!opt->pid || !(opt->retreat || opt->back)))
			argp_error(state, "--fd goes with --pid and --retreat or --return");
		if (opt->device && (opt->fd >= 0 || !(opt->retreat || opt->back)))
			argp_error(state, "--device goes with --retreat or --return, and not with --fd");
		if (opt->json && opt->prometheus)
			argp_error(state, "--json and --prometheus exclude each other");
		if ((opt->json || opt->prometheus || opt->watch > 0) && (opt->retreat || opt->back || opt->tunes))
			argp_error(state, "--retreat, --return and --set print one line, and once");
		if (opt->wait > 0 && !opt->retreat)
			argp_error(state, "--wait goes with --retreat");
		if (!(opt->wait > 0))
			opt->wait = 5;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "xr-stat (xrdma) %s\n", xrdma_version());
}

static int print(FILE *out, const struct xr_stat_options *opt, const struct xr_stat_set *set)
{
	if (opt->json)
		return xr_stat_print_json(out, set);
	if (opt->prometheus)
		xr_stat_print_prometheus(out, set);
	else if (opt->totals)
		xr_stat_print_totals(out, opt, set);
	else
		xr_stat_print_table(out, opt, set);
	return 0;
}

static int show(FILE *out, void *arg)
{
	const struct xr_stat_options *opt = arg;
	struct xr_stat_set set;
	int err = xr_stat_collect(opt, &set), status = EXIT_SHOWN;

	if (err) {
		fprintf(stderr, "xr-stat: %s: %s\n", opt->base, strerror(-err));
		return EXIT_TROUBLE;
	}
	if (print(out, opt, &set))
		status = EXIT_TROUBLE;
	else if (set.errors)
		status = EXIT_PARTLY;
	if (opt->pid && !set.n && !set.n_api && !set.errors) {
		if (!xr_stat_foreign(opt->pid))
			fprintf(stderr, "xr-stat: no process %d under xrdma in %s\n", (int)opt->pid, opt->base);
		status = EXIT_PARTLY;
	}
	xr_stat_release(&set);
	return status;
}

int main(int argc, char **argv)
{
	struct xr_stat_options opt = {.fd = -1};
	struct xr_watch watch = {.tool = "xr-stat", .show = show, .arg = &opt};
	const struct argp argp = {.options = options, .parser = parse, .doc = doc};
	const char *dir;

	argp_err_exit_status = EXIT_TROUBLE;
	argp_program_version_hook = print_version;
	argp_parse(&argp, argc, argv, 0, NULL, &opt);
	dir = xr_watch_directory(watch.tool);
	opt.base = opt.dir ? opt.dir : dir;
	if (opt.retreat || opt.back || opt.tunes)
		return xr_stat_control(&opt);
	watch.seconds = opt.watch;
	watch.page = !opt.json && !opt.prometheus;
	watch.parted = !opt.json;
	return xr_watch(&watch);
}
