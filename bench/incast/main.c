/* SPDX-License-Identifier: BSD-2-Clause */
/* xr-incast: one run or the whole table, see README.md beside this file. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sim.h"

static const char *const mode_name[] = { "none", "dcqcn", "xrdma", "both" };
static int json;

static void print(const struct settings *set, const struct result *r)
{
	if (json) {
		printf("{\"mode\": \"%s\", \"senders\": %u, \"size\": %u, \"depth\": %u, \"gbps\": %u, "
		       "\"pfc\": %u, \"rtt_signal\": %u, \"ecn_signal\": %u, "
		       "\"goodput_gbps\": %.3f, \"share\": %.4f, \"mean_us\": %.1f, \"p50_us\": %.1f, "
		       "\"p99_us\": %.1f, "
		       "\"wire_mean_us\": %.1f, \"wire_p99_us\": %.1f, \"queue_mean\": %.0f, \"queue_max\": %.0f, "
		       "\"jain\": %.4f, \"messages\": %llu, \"drops\": %llu, \"timeouts\": %llu, "
		       "\"retransmitted\": %llu, \"pauses\": %llu, \"paused\": %.4f, \"marks\": %llu, "
		       "\"leave_ms\": %.2f, \"join_ms\": %.2f, \"load\": %u, \"backlog\": %llu, \"events\": %llu}\n",
		       mode_name[set->mode], set->senders, set->size, set->depth, set->gbps, set->pfc,
		       set->rtt_signal, set->ecn_signal,
		       r->goodput, r->share, r->mean, r->p50, r->p99, r->wire_mean, r->wire_p99, r->queue_mean,
		       r->queue_max, r->jain, (unsigned long long)r->messages, (unsigned long long)r->drops,
		       (unsigned long long)r->timeouts, (unsigned long long)r->retransmitted,
		       (unsigned long long)r->pauses, r->paused, (unsigned long long)r->marks, r->leave_ms,
		       r->join_ms, set->load, (unsigned long long)r->backlog, (unsigned long long)r->events);
		return;
	}
	printf("%-5s %4u x %7u  %3u Gb/s %s %8.2f %6.1f%% %10.0f %10.0f %9.0f %9.0f %7.0f %6.3f %8llu %6llu "
	       "%7llu",
	       mode_name[set->mode], set->senders, set->size, set->gbps, set->pfc ? "pfc " : "lossy", r->goodput,
	       100 * r->share, r->mean, r->p99, r->wire_mean, r->wire_p99, r->queue_mean / 1024, r->jain,
	       (unsigned long long)r->drops, (unsigned long long)r->timeouts, (unsigned long long)r->pauses);
	if (set->churn)
		printf("  left %.2f ms, joined %.2f ms", r->leave_ms, r->join_ms);
	printf("\n");
	fflush(stdout);
}

static void head(void)
{
	if (!json)
		printf("mode  senders x bytes  link           Gb/s  useful    mean us     p99 us   wire us   w p99 us "
		       "queue K  Jain    drops  t-out  pauses\n");
}

static int one(const struct settings *set)
{
	struct result r;

	if (sim_run(set, &r)) {
		fprintf(stderr, "xr-incast: settings that make no sense, or no memory\n");
		return 1;
	}
	print(set, &r);
	return 0;
}

/* All sizes and counts of senders for the baseline with and without PFC, and for the library. */
static int table(const struct settings *preset)
{
	static const uint32_t sizes[] = { 1024, 4096, 65536, 1048576 };
	static const uint32_t counts[] = { 16, 64, 256, 1024 };
	size_t i, k, m;
	int bad = 0;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
			for (m = 0; m < 3; m++) {
				struct settings set = *preset;
				uint64_t round;

				set.size = sizes[i];
				set.senders = counts[k];
				set.depth = sizes[i] >= 1048576 ? 1 : sizes[i] >= 65536 ? 4 : 16;
				set.mode = m < 2 ? MODE_DCQCN : MODE_XRDMA;
				set.pfc = m == 1;
				/* every sender has its turn a few times */
				round = (uint64_t)set.senders * set.depth * set.size * 8000 / set.gbps;
				set.warm = set.warm > 2 * round ? set.warm : 2 * round;
				set.time = set.time > 4 * round ? set.time : 4 * round;
				bad |= one(&set);
			}
		}
	}
	return bad;
}

static int usage(FILE *to)
{
	fprintf(to, "usage: xr-incast [option]...\n"
		"  --mode none|dcqcn|xrdma|both   who holds senders back: nobody, the NIC, the library, both\n"
		"  --senders N  --size BYTES  --depth MESSAGES  --gbps N  --buffer BYTES  --seed N\n"
		"  --load PERCENT          messages come at random, together so much of the link\n"
		"  --pfc  --no-ecn  --no-rtt-signal  --no-ecn-signal\n"
		"  --warm MS  --time MS    run in, measured\n"
		"  --churn MS              half of the senders leave after so long, and are back after twice that\n"
		"  --table                 all sizes, counts and modes\n"
		"  --json                  a line of JSON for each run\n");
	return to == stderr;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "mode", 1, NULL, 'm' }, { "senders", 1, NULL, 'n' }, { "size", 1, NULL, 's' },
		{ "depth", 1, NULL, 'd' }, { "gbps", 1, NULL, 'g' }, { "buffer", 1, NULL, 'b' },
		{ "seed", 1, NULL, 'r' }, { "pfc", 0, NULL, 'p' }, { "no-ecn", 0, NULL, 'e' },
		{ "no-rtt-signal", 0, NULL, 'R' }, { "no-ecn-signal", 0, NULL, 'E' }, { "warm", 1, NULL, 'w' },
		{ "time", 1, NULL, 't' }, { "churn", 1, NULL, 'c' }, { "table", 0, NULL, 'T' },
		{ "load", 1, NULL, 'l' }, { "json", 0, NULL, 'j' }, { "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	struct settings set;
	int c, all = 0;
	uint32_t i;

	sim_defaults(&set);
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		uint64_t v = optarg ? strtoull(optarg, NULL, 0) : 0;

		switch (c) {
		case 'm':
			for (i = 0; i < 4 && strcmp(optarg, mode_name[i]); i++)
				;
			if (i == 4)
				return usage(stderr);
			set.mode = (enum mode)i;
			break;
		case 'n': set.senders = (uint32_t)v; break;
		case 's': set.size = (uint32_t)v; break;
		case 'd': set.depth = (uint32_t)v; break;
		case 'g': set.gbps = (uint32_t)v; break;
		case 'b': set.buffer = v; break;
		case 'r': set.seed = v; break;
		case 'p': set.pfc = 1; break;
		case 'e': set.ecn = 0; break;
		case 'R': set.rtt_signal = 0; break;
		case 'E': set.ecn_signal = 0; break;
		case 'w': set.warm = v * MS; break;
		case 't': set.time = v * MS; break;
		case 'l': set.load = (uint32_t)v; break;
		case 'c': set.churn = v * MS; break;
		case 'T': all = 1; break;
		case 'j': json = 1; break;
		case 'h': return usage(stdout);
		default: return usage(stderr);
		}
	}
	if (optind != argc)
		return usage(stderr);
	head();
	return all ? table(&set) : one(&set);
}
