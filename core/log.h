/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_LOG_H
#define XR_LOG_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Logging for code that lives in somebody else's process: no malloc, no stdio,
 * no locale, no descriptor held open. A line is one raw write(2) of at most
 * XR_LOG_LINE bytes that starts "xrdma: ". It never blocks (a full pipe drops
 * the line), never raises SIGPIPE or SIGXFSZ, and never goes to a descriptor 2
 * that is not the stderr the process started with, nor to one that is a socket.
 * The first line that a log file does not take is told of on stderr.
 * errno is preserved. Thread-safe, async-signal-safe.
 */
#define XR_LOG_LINE 512

enum xr_log_level {
	XR_LOG_NONE, /* as a threshold only */
	XR_LOG_ERROR,
	XR_LOG_WARN,
	XR_LOG_INFO,
	XR_LOG_DEBUG,
};

/* One per call site: at most XR_LOG_BURST lines in XR_LOG_PERIOD_NS, then a count of the rest. */
#define XR_LOG_BURST	 5
#define XR_LOG_PERIOD_NS (10ull * 1000 * 1000 * 1000)

struct xr_log_site {
	uint64_t start;	  /* ns, CLOCK_MONOTONIC_COARSE; start of the period */
	uint32_t lines;	  /* lines asked for in it */
	uint32_t dropped; /* lines not written since the last one that was */
};

extern int xr_log_threshold __attribute__((visibility("hidden")));

/*
 * Sets threshold and destination; file == NULL or "" is stderr. The path is
 * copied (over 255 bytes: -ENAMETOOLONG, stderr is kept). Call it once at start
 * and again after the configuration is known; not while other threads log.
 */
int xr_log_init(enum xr_log_level threshold, const char *file);

/* The file that takes the lines, "" for stderr. */
const char *xr_log_path(void);

/* Lines that could not be written since start; they are counted in the statistics too. */
uint64_t xr_log_lost(void);

/* A phrase for an errno value, with or without its sign: "permission denied". */
const char *xr_error_text(int err);

/* site NULL: written however many there are. */
void xr_log_write(struct xr_log_site *site, enum xr_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define xr_log(level, ...)                                                                         \
	do {                                                                                       \
		if (__builtin_expect((int)(level) <= xr_log_threshold, 0)) {                       \
			static struct xr_log_site xr_log_site_;                                    \
			xr_log_write(&xr_log_site_, level, __VA_ARGS__);                           \
		}                                                                                  \
	} while (0)

#define xr_error(...) xr_log(XR_LOG_ERROR, __VA_ARGS__)
#define xr_warn(...)  xr_log(XR_LOG_WARN, __VA_ARGS__)
#define xr_info(...)  xr_log(XR_LOG_INFO, __VA_ARGS__)
#define xr_debug(...) xr_log(XR_LOG_DEBUG, __VA_ARGS__)

/*
 * snprintf without stdio or locale: %% %c %s %d %i %u %x %p, the lengths
 * hh h l ll z j t, the flags 0 and -, width and precision (also *). Anything
 * else is copied as it stands. Returns the length it would have had; always
 * terminates when size > 0. Thread-safe, async-signal-safe.
 */
int xr_vsnprintf(char *buf, size_t size, const char *fmt, va_list ap);
int xr_snprintf(char *buf, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif /* XR_LOG_H */
