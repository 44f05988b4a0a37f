/* SPDX-License-Identifier: BSD-2-Clause */
/* Clocks, CPU time and latency histograms of the benchmark programs. */
#ifndef BENCH_METER_H
#define BENCH_METER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>

/* The measured part of one end's run: what was counted after the warm-up. */
struct pp_meter {
	uint64_t t0, t1, cpu0, cpu1, bytes;
	bool on;
};

/* Log-linear histogram of nanoseconds: exact below 256, then 128 buckets per power of two. */
#define HIST_N	(256 + 56 * 128)
struct hist {
	uint64_t n, sum, bucket[HIST_N];
};

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t tv_ns(struct timeval tv)
{
	return (uint64_t)tv.tv_sec * 1000000000u + (uint64_t)tv.tv_usec * 1000u;
}

static inline uint64_t cpu_ns(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return tv_ns(ru.ru_utime) + tv_ns(ru.ru_stime);
}

static inline unsigned int hist_index(uint64_t v)
{
	unsigned int e;

	if (v < 256)
		return (unsigned int)v;
	e = 63u - (unsigned int)__builtin_clzll(v);
	return 256 + (e - 8) * 128 + (unsigned int)((v >> (e - 7)) & 127);
}

static inline void hist_add(struct hist *h, uint64_t v)
{
	h->n++;
	h->sum += v;
	h->bucket[hist_index(v)]++;
}

static inline double hist_us(const struct hist *h, double q)
{
	uint64_t want = (uint64_t)((double)h->n * q), seen = 0;
	unsigned int i, e;

	for (i = 0; i < HIST_N; i++) {
		seen += h->bucket[i];
		if (seen <= want)
			continue;
		if (i < 256)
			return i / 1e3;
		e = (i - 256) / 128 + 8;
		return (double)((128ull + (i - 256) % 128) << (e - 7)) / 1e3;
	}
	return 0;
}

static inline double hist_mean_us(const struct hist *h)
{
	return h->n ? (double)h->sum / (double)h->n / 1e3 : 0;
}

/* Starts the meter once the warm-up is over; the bytes given until then are not counted. */
static inline void meter_start(struct pp_meter *m, uint64_t now)
{
	m->on = true;
	m->t0 = now;
	m->cpu0 = cpu_ns();
}

static inline void meter_stop(struct pp_meter *m)
{
	m->t1 = now_ns();
	m->cpu1 = cpu_ns();
}

#endif
