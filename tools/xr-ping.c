/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-ping(1): would a connection to there be upgraded, and how fast is what it would be upgraded to? */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/key.h"
#include "core/mem.h"
#include "args.h"
#include "ping.h"

#define PING_SAMPLES 100000u

volatile int ping_stopped;

static const char doc[] =
	"Say whether a TCP connection to HOST would be upgraded, by which fabric, or why not; and measure round trips "
	"over it. There must be an xr-ping -l on HOST."
	"\vExit status: 0 it would be upgraded, and every round trip came back; 1 if not; 2 for trouble.";

static const struct argp_option options[] = {
	{"listen", 'l', 0, 0, "be the other end, for any number of others, until it is stopped", 1},
	{"port", 'p', "PORT", 0, "port (" PING_PORT ")", 1},
	{"count", 'c', "N", 0, "round trips of each operation and size; 0: until it is stopped (100)", 2},
	{"interval", 'i', "SECS", 0, "pause between round trips (0)", 2},
	{"size", 's', "N[,N...]", 0, "bytes of a round trip, 1 to 1048576 (64,4096,65536)", 2},
	{"op", 'm', "OP[,OP...]", 0, "operations: send, read, write (all)", 2},
	{"deadline", 'w', "SECS", 0, "stop after so long", 2},
	{"timeout", 'W', "SECS", 0, "longest wait for an answer (5)", 2},
	{"fabric", 'F', "FABRIC", 0, "shm or rdma, wherever HOST is", 2},
	{"ipv4", '4', 0, 0, "IPv4 only", 2},
	{"ipv6", '6', 0, 0, "IPv6 only", 2},
	{"json", 'j', 0, 0, "print JSON", 3},
	{"quiet", 'q', 0, 0, "print nothing but the figures; with -l: nothing", 3},
	{"verbose", 'v', 0, 0, "print a line for each round trip", 3},
	{0},
};

static void sizes(struct argp_state *state, struct ping_options *opt, char *text)
{
	char *word, *next = text;

	opt->n_sizes = 0;
	while ((word = strsep(&next, ","))) {
		if (opt->n_sizes == PING_SIZES)
			argp_error(state, "size: more than %u of them", PING_SIZES);
		else
			opt->size[opt->n_sizes++] = (uint32_t)xr_args_number(state, "size", word, 1, PING_ROOM);
	}
}

static void operations(struct argp_state *state, struct ping_options *opt, char *text)
{
	char *word, *next = text;
	int i;

	memset(opt->op, 0, sizeof(opt->op));
	while ((word = strsep(&next, ","))) {
		for (i = 0; i < PING_OPS && strcmp(word, ping_op_name[i]); i++)
			;
		if (i == PING_OPS)
			argp_error(state, "op: '%s' is none of send, read, write", word);
		else
			opt->op[i] = true;
	}
}

static void target(struct argp_state *state, struct ping_options *opt)
{
	if (opt->listen && opt->host) {
		opt->address = opt->host;
		opt->host = NULL;
	} else if (!opt->listen && !opt->host) {
		argp_error(state, "no HOST given");
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct ping_options *opt = state->input;

	/* what measures, or prints what was measured */
	if (key > 0 && key < 128 && strchr("cismwWFj", key))
		opt->not_listening = (char)key;
	switch (key) {
	case 'l': opt->listen = true; return 0;
	case 'p':
		xr_args_number(state, "port", arg, 1, 65535);
		opt->port = arg;
		return 0;
	case 'c': opt->count = xr_args_number(state, "count", arg, 0, 1ull << 40); return 0;
	case 'i': opt->interval = xr_args_seconds(state, "interval", arg, 0, 1e6); return 0;
	case 's': sizes(state, opt, arg); return 0;
	case 'm': operations(state, opt, arg); return 0;
	case 'w': opt->deadline = xr_args_seconds(state, "deadline", arg, 0, 1e6); return 0;
	case 'W': opt->wait = xr_args_seconds(state, "timeout", arg, 0.001, 1e6); return 0;
	case 'F':
		if (strcmp(arg, "shm") && strcmp(arg, "rdma"))
			argp_error(state, "fabric: '%s' is none of shm, rdma", arg);
		opt->fabric = *arg;
		return 0;
	case '4': opt->family = AF_INET; return 0;
	case '6': opt->family = AF_INET6; return 0;
	case 'j': opt->json = true; return 0;
	case 'q': opt->quiet = true; return 0;
	case 'v': opt->verbose = true; return 0;
	case ARGP_KEY_ARG:
		if (opt->host)
			argp_error(state, "one HOST only");
		opt->host = arg;
		return 0;
	case ARGP_KEY_END:
		if (opt->listen && opt->not_listening)
			argp_error(state, "-%c does not go with -l: the other end says what is measured",
				   opt->not_listening);
		target(state, opt);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "xr-ping (xrdma) %s\n", xrdma_version());
}

static void on_signal(int sig)
{
	(void)sig;
	ping_stopped = 1;
}

/* Where settings that this program goes by are not understood it would answer for others. */
static void mistake(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg;
	if (line)
		fprintf(stderr, "xr-ping: %s:%u: %s\n", where, line, msg);
	else
		fprintf(stderr, "xr-ping: %s: %s\n", where, msg);
}

static struct ping_series *series(const struct ping_options *opt, size_t *n)
{
	struct ping_series *s = calloc(PING_OPS * PING_SIZES, sizeof(*s));
	size_t room = opt->count && opt->count < PING_SAMPLES ? (size_t)opt->count : PING_SAMPLES;
	uint32_t i;
	int op;

	*n = 0;
	for (op = 0; s && op < PING_OPS; op++) {
		for (i = 0; opt->op[op] && i < opt->n_sizes; i++) {
			s[*n] = (struct ping_series){ .op = (enum ping_op)op, .size = opt->size[i], .room = room };
			s[*n].ns = calloc(room, sizeof(*s->ns));
			if (!s[(*n)++].ns)
				return NULL;
		}
	}
	return s;
}

static int ping(const struct ping_options *opt)
{
	struct ping_path path = { .opt = opt };
	size_t n, i;
	struct ping_series *s = series(opt, &n);
	int status = PING_TROUBLE, r;

	if (!s) {
		fprintf(stderr, "xr-ping: %s\n", strerror(ENOMEM));
		return PING_TROUBLE;
	}
	r = ping_path_open(&path);
	if (!r || r == -ECONNREFUSED) {
		if (!path.peer[0]) {
			status = PING_TROUBLE;	/* no TCP connection, which was told */
			goto done;
		}
		if (!opt->quiet)
			ping_show_path(&path);
		status = r ? PING_NOT : ping_run(&path, s, n);
		if (path.here != XR_REASON_NONE || path.there != XR_REASON_NONE)
			status = status == PING_GOOD ? PING_NOT : status;
		if (opt->json)
			status = ping_show_json(&path, s, n) ? PING_TROUBLE : status;
		else if (!r)
			ping_show_end(&path, s, n);
	}
done:
	ping_path_close(&path);
	for (i = 0; i < n; i++)
		free(s[i].ns);
	free(s);
	return status;
}

int main(int argc, char **argv)
{
	static struct ping_options opt = {
		.port = PING_PORT, .family = AF_UNSPEC, .count = 100, .wait = 5,
		.size = { 64, 4096, 65536 }, .n_sizes = 3, .op = { true, true, true },
	};
	const struct argp argp = { .options = options, .parser = parse, .args_doc = "HOST\n-l [ADDRESS]", .doc = doc };
	struct sigaction sa = { .sa_handler = on_signal };
	int status;

	argp_err_exit_status = PING_TROUBLE;
	argp_program_version_hook = print_version;
	argp_parse(&argp, argc, argv, 0, NULL, &opt);
	xr_config_load(&opt.cfg, NULL, environ, mistake, NULL);
	opt.key_error = xr_key_load(xr_key_path(&opt.cfg), opt.key);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	status = opt.listen ? ping_serve(&opt) : ping(&opt);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "xr-ping: standard output: %s\n", strerror(errno));
		status = PING_TROUBLE;
	}
	return status;
}
