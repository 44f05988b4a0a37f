/* SPDX-License-Identifier: BSD-2-Clause */
/* xroracle: runs scripts on both pairs, and says where they differ. */
#include "oracle.h"

#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Without a step forward for so long: hangs. On a machine that others use, operations take seconds. */
#define PATIENCE_MS 10000

static const char *const mode_name[MODES] = { "plain", "up", "mid" };

/* What the workers add up. */
struct totals {
	_Atomic uint64_t cases, ops, compared, failed, settled;
	_Atomic uint64_t connections[MODES], upgraded[MODES], retreated;
	_Atomic uint64_t not_repeated, respawned, per_kind[OP_KINDS];
};

static struct totals *sum;
static uint64_t first_seed, want_ops = 1000000, max_failures = 1;
static unsigned int seconds, jobs = 1, modes = 1u << UP | 1u << MID;
static const char *keep_dir;
static int verbose, no_shrink;
static char stats_dir[] = "/dev/shm/xrdma-oracle-XXXXXX";

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static pid_t main_pid;

static void cleanup(void)
{
	if (getpid() == main_pid)
		nftw(stats_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void on_term(int sig)
{
	cleanup();
	_exit(128 + sig);
}

/* ---- what went wrong ------------------------------------------------------ */

static void explain(FILE *f, const struct script *s, const struct pair *plain,
		    const struct pair *other, enum mode mode, const char *why, uint32_t op, int part)
{
	fprintf(f, "# difference in mode %s: %s\n# operation %u: ", mode_name[mode], why, op);
	if (op >= s->n) {
		fprintf(f, "none\n");
		return;
	}
	op_print(f, &s->op[op]);
	fprintf(f, "#   tcp:   ");
	res_print(f, &plain->sh->res[op][part]);
	fprintf(f, "\n#   xrdma: ");
	res_print(f, &other->sh->res[op][part]);
	fprintf(f, "\n");
}

static void failure(struct pair *plain, struct pair *other, struct script *s, enum mode mode,
		    const char *why, uint32_t op, int part)
{
	uint64_t seed = s->seed;
	int i, again = 0, r = 0, kind = 0;
	const char *what = why;
	char path[512];
	FILE *f;

	printf("seed %llu, mode %s\n", (unsigned long long)seed, mode_name[mode]);
	explain(stdout, s, plain, other, mode, why, op, part);
	fflush(stdout);
	for (i = 0; i < 5; i++) {
		r = differs(plain, other, s, mode, 1500, &what, &op, &part);
		if (r > 0) {
			again++;
			why = what;
			kind = op < s->n ? s->op[op].kind : 0;
		}
	}
	if (!again) {
		printf("# did not come again in 5 runs\n");
		atomic_fetch_add(&sum->not_repeated, 1);
	} else if (!no_shrink) {
		printf("# came again in %d of 5 runs\n", again);
		shrink(plain, other, s, mode, why, kind);
	}
	for (i = 0, r = 0; i < 5 && again && r <= 0; i++)
		r = differs(plain, other, s, mode, 1500, &why, &op, &part);
	if (again && r > 0)
		explain(stdout, s, plain, other, mode, why, op, part);
	printf("mode %s\n", mode_name[mode]);
	script_print(stdout, s);
	printf("\n");
	fflush(stdout);
	if (!keep_dir)
		return;
	snprintf(path, sizeof(path), "%s/seed-%llu-%s.case", keep_dir, (unsigned long long)seed,
		 mode_name[mode]);
	f = fopen(path, "w");
	if (!f)
		return;
	if (again && r > 0)
		explain(f, s, plain, other, mode, why, op, part);
	fprintf(f, "mode %s\n", mode_name[mode]);
	script_print(f, s);
	fclose(f);
}

/* ---- a worker ------------------------------------------------------------- */

static void count_script(const struct script *s, unsigned int compared)
{
	uint32_t i;

	atomic_fetch_add(&sum->cases, 1);
	atomic_fetch_add(&sum->ops, s->n);
	atomic_fetch_add(&sum->compared, (uint64_t)s->n * compared);
	for (i = 0; i < s->n; i++) {
		atomic_fetch_add(&sum->per_kind[s->op[i].kind], 1);
	}
}

static uint64_t both(const _Atomic uint64_t *n)
{
	return atomic_load(&n[0]) + atomic_load(&n[1]);
}

/* How many of a script's connections were on shm: those that were made in this mode. */
static void count_flows_of(const struct script *s, const struct pair *p, enum mode mode)
{
	uint32_t i, n = 0;

	for (i = 0; i < s->n; i++)
		n += s->op[i].kind == OP_ACCEPT;
	atomic_fetch_add(&sum->connections[mode], n);
	if (verbose)
		printf("seed %llu, mode %s: %u connections, %llu on shm\n", (unsigned long long)s->seed,
		       mode_name[mode], n, (unsigned long long)(both(p->sh->upgraded) - p->upgraded) / 2);
	/* two ends, each counted when it begins to read from the fabric */
	atomic_fetch_add(&sum->upgraded[mode], (both(p->sh->upgraded) - p->upgraded) / 2);
	atomic_fetch_add(&sum->retreated, (both(p->sh->retreated) - p->retreated) / 2);
}

static int run_case(struct pair *plain, struct pair *other, struct script *s)
{
	int mode, part = 0, bad = 0, r;
	const char *why = NULL;
	unsigned int n = 0;
	uint32_t op = 0;

	r = pair_run(plain, s, PLAIN, PATIENCE_MS);
	if (r) {
		printf("seed %llu: plain TCP %s at operation %u: the oracle is at fault\n",
		       (unsigned long long)s->seed, r == PAIR_HANG ? "hangs" : "lost a process",
		       plain->stuck);
		script_print(stdout, s);
		atomic_fetch_add(&sum->failed, 1);
		return 1;
	}
	for (mode = UP; mode < MODES; mode++) {
		if (!(modes & 1u << mode))
			continue;
		n++;
		r = pair_run(other, s, (enum mode)mode, PATIENCE_MS);
		if (r) {
			why = r == PAIR_HANG ? "hangs" : "a process died";
			op = other->stuck;
		} else {
			why = compare(s, plain->sh, other->sh, &op, &part);
		}
		if (!why) {
			count_flows_of(s, other, (enum mode)mode);
			continue;
		}
		bad = 1;
		atomic_fetch_add(&sum->failed, 1);
		failure(plain, other, s, (enum mode)mode, why, op, part);
		break;
	}
	count_script(s, n);
	return bad;
}

static void worker(int index)
{
	static struct script s;
	struct pair plain, other;
	double end = now_s() + seconds;
	uint64_t seed = first_seed + (uint64_t)index, failures = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pair_init(&plain, 0, jobs > 1 ? index : -1);
	pair_init(&other, 1, jobs > 1 ? index : -1);
	for (; atomic_load(&sum->compared) < want_ops && (!seconds || now_s() < end); seed += jobs) {
		generate(&s, seed);
		if (verbose)
			printf("seed %llu: %u operations\n", (unsigned long long)seed, s.n);
		if (run_case(&plain, &other, &s) && ++failures >= max_failures)
			break;
	}
	atomic_fetch_add(&sum->settled, atomic_load(&plain.sh->settled));
	atomic_fetch_add(&sum->respawned, plain.respawned + other.respawned);
	pair_stop(&plain);
	pair_stop(&other);
	if (index == 0 && verbose)
		legal_print(stdout);
	fflush(stdout);
	_exit(0);
}

/* ---- one stored case ------------------------------------------------------ */

static int replay(const char *path, int times)
{
	static struct script s;
	char line[64];
	struct pair plain, other;
	FILE *f = fopen(path, "r");
	int bad = 0, i;
	unsigned int mode;

	if (!f || script_read(f, &s, path)) {
		fprintf(stderr, "oracle: cannot read %s\n", path);
		return 2;
	}
	rewind(f);
	while (fgets(line, sizeof(line), f))
		for (mode = UP; mode < MODES; mode++)
			if (!strncmp(line, "mode ", 5) &&
			    !strncmp(line + 5, mode_name[mode], strlen(mode_name[mode])))
				modes = 1u << mode;
	fclose(f);
	if (!model_accepts(&s)) {
		fprintf(stderr, "oracle: %s: not a script that has one outcome\n", path);
		return 2;
	}
	pair_init(&plain, 0, -1);
	pair_init(&other, 1, -1);
	for (i = 0; i < times && !bad; i++)
		for (mode = UP; mode < MODES && !bad; mode++) {
			const char *why;
			uint32_t op, k;
			int part;

			if (!(modes & 1u << mode))
				continue;
			bad = differs(&plain, &other, &s, (enum mode)mode, PATIENCE_MS, &why, &op, &part);
			if (verbose)
				for (k = 0; k < s.n; k++) {
					printf("%3u ", k);
					op_print(stdout, &s.op[k]);
					printf("      tcp   ");
					res_print(stdout, &plain.sh->res[k][0]);
					printf("\n      xrdma ");
					res_print(stdout, &other.sh->res[k][0]);
					printf("\n");
				}
			if (verbose)
				printf("    on shm: A %llu, B %llu; back: A %llu, B %llu; %llu bytes to and fro\n",
				       (unsigned long long)other.sh->upgraded[0],
				       (unsigned long long)other.sh->upgraded[1],
				       (unsigned long long)other.sh->retreated[0],
				       (unsigned long long)other.sh->retreated[1],
				       (unsigned long long)(other.sh->sent[0][0] + other.sh->sent[0][1]));
			if (bad)
				explain(stdout, &s, &plain, &other, (enum mode)mode, why, op, part);
		}
	pair_stop(&plain);
	pair_stop(&other);
	printf("%s: %s\n", path, bad ? "differs" : "the same");
	return bad != 0;
}

/* ---- the whole ------------------------------------------------------------ */

static void usage(FILE *f)
{
	fputs("Usage: xroracle [OPTION]...\n"
	      "Random socket operations on TCP and under xrdma; the outcomes must be the same.\n\n"
	      "  --seed N        where the scripts begin (default: a fresh one, printed)\n"
	      "  --ops N         operations to compare (default 1000000)\n"
	      "  --seconds N     stop after this time\n"
	      "  --jobs N        pairs of pairs at a time, each on a processor of its own\n"
	      "  --mode MODE     up: on shm before the script; mid: the upgrade falls within it\n"
	      "  --failures N    go on until so many were found\n"
	      "  --keep DIR      store scripts that fail there\n"
	      "  --replay FILE   run this script\n"
	      "  --times N       so many times\n"
	      "  --print         only print the script of the seed\n"
	      "  --no-shrink     leave scripts that fail as they are\n"
	      "  --run PROGRAM   xrdma-run\n"
	      "  --verbose       more\n", f);
}

static void find_run(void)
{
	static const char *const names[] = { "xrdma-run", "tools/xrdma-run" };
	char self[512], path[600];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *top;
	size_t i;

	if (getenv("ORACLE_RUN"))
		return;
	self[n < 0 ? 0 : n] = 0;
	top = dirname(dirname(dirname(self)));
	for (i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", top, names[i]);
		if (!access(path, X_OK)) {
			setenv("ORACLE_RUN", path, 1);
			return;
		}
	}
}

static int random_run(void)
{
	double begun = now_s();
	unsigned int i;

	sum = mmap(NULL, sizeof(*sum), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	printf("seed %llu\n", (unsigned long long)first_seed);
	fflush(stdout);
	for (i = 0; i < jobs; i++)
		if (!fork())
			worker((int)i);
	while (wait(NULL) > 0)
		;
	printf("%llu scripts, %llu operations, %llu compared with TCP in %.1f s\n",
	       (unsigned long long)sum->cases, (unsigned long long)sum->ops,
	       (unsigned long long)sum->compared, now_s() - begun);
	for (i = UP; i < MODES; i++)
		if (sum->connections[i])
			printf("mode %s: %llu connections, %.1f %% of them on shm in both directions\n",
			       mode_name[i], (unsigned long long)sum->connections[i],
			       100.0 * (double)sum->upgraded[i] / (double)sum->connections[i]);
	printf("%llu connections went back to TCP\n", (unsigned long long)sum->retreated);
	printf("%llu differences, %llu of them seen once\n", (unsigned long long)sum->failed,
	       (unsigned long long)sum->not_repeated);
	for (i = 0; verbose && i < OP_KINDS; i++)
		printf("%10llu  %s\n", (unsigned long long)sum->per_kind[i], op_name[i]);
	if (verbose)
		printf("%llu waits for bytes to arrive, %llu restarts\n",
		       (unsigned long long)sum->settled, (unsigned long long)sum->respawned);
	return sum->failed != 0 || !sum->compared;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "seed", 1, NULL, 's' }, { "ops", 1, NULL, 'o' }, { "seconds", 1, NULL, 't' },
		{ "jobs", 1, NULL, 'j' }, { "mode", 1, NULL, 'm' }, { "failures", 1, NULL, 'f' },
		{ "keep", 1, NULL, 'k' }, { "replay", 1, NULL, 'r' }, { "times", 1, NULL, 'n' },
		{ "no-shrink", 0, NULL, 'S' }, { "run", 1, NULL, 'R' }, { "verbose", 0, NULL, 'v' },
		{ "print", 0, NULL, 'P' }, { "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	const char *file = NULL;
	static struct script shown;
	int c, times = 1, print = 0;

	if (argc == 4 && !strcmp(argv[1], "--actor"))
		return actor_main(atoi(argv[2]), atoi(argv[3]));
	if (getrandom(&first_seed, sizeof(first_seed), 0) < 0)
		first_seed = (uint64_t)time(NULL);
	first_seed %= 1000000000000ull;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		switch (c) {
		case 's': first_seed = strtoull(optarg, NULL, 0); break;
		case 'o': want_ops = strtoull(optarg, NULL, 0); break;
		case 't': seconds = (unsigned int)atoi(optarg); break;
		case 'j': jobs = (unsigned int)atoi(optarg); break;
		case 'm': modes = !strcmp(optarg, "up") ? 1u << UP : 1u << MID; break;
		case 'f': max_failures = strtoull(optarg, NULL, 0); break;
		case 'k': keep_dir = optarg; break;
		case 'r': file = optarg; break;
		case 'n': times = atoi(optarg); break;
		case 'S': no_shrink = 1; break;
		case 'R': setenv("ORACLE_RUN", optarg, 1); break;
		case 'P': print = 1; break;
		case 'v': verbose = 1; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	if (print) {
		generate(&shown, first_seed);
		script_print(stdout, &shown);
		return 0;
	}
	find_run();
	if (!getenv("ORACLE_RUN")) {
		fprintf(stderr, "oracle: xrdma-run not found, see --run\n");
		return 2;
	}
	if (!mkdtemp(stats_dir))
		return 2;
	main_pid = getpid();
	atexit(cleanup);
	signal(SIGTERM, on_term);
	signal(SIGINT, on_term);
	setenv("XRDMA_STATS_DIR", stats_dir, 1);
	setenv("XRDMA_UPGRADE_TURNS", "1", 1);
	setenv("XRDMA_UPGRADE_BYTES", "4K", 1);
	return file ? replay(file, times) : random_run();
}
