/* SPDX-License-Identifier: BSD-2-Clause */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"
#include "mem.h"
#include "stats.h"

#define PREFIX "xrdma: "

int xr_log_threshold = XR_LOG_WARN;

static char log_file[256];

/* The stderr that we were started with; ino 0: not looked at yet, or none. */
static struct {
	dev_t dev;
	ino_t ino;
	bool usable;
} log_stderr;

static _Atomic uint64_t log_lost;
static _Atomic uint32_t log_told; /* 1: stderr has been told that the file takes no lines */

static long sys_fstat(int fd, struct stat *st)
{
	return xr_sys4(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);
}

int xr_log_init(enum xr_log_level threshold, const char *file)
{
	struct stat st;
	size_t len = file ? strlen(file) : 0;

	xr_log_threshold = threshold;
	if (!log_stderr.ino && !sys_fstat(STDERR_FILENO, &st)) {
		log_stderr.dev = st.st_dev;
		log_stderr.ino = st.st_ino;
		/* a line of ours in a socket could be a frame of somebody's protocol */
		log_stderr.usable = !S_ISSOCK(st.st_mode);
	}
	if (len >= sizeof(log_file))
		return -ENAMETOOLONG;
	memcpy(log_file, file ? file : "", len);
	log_file[len] = '\0';
	return 0;
}

const char *xr_log_path(void)
{
	return log_file;
}

uint64_t xr_log_lost(void)
{
	return xr_load_relaxed(&log_lost);
}

/*
 * Periods and counts race between threads without harm: a line more or less. The
 * fields are reached through atomic built-ins so that the race is a defined one.
 */
static bool site_admit(struct xr_log_site *site, uint32_t *dropped)
{
	struct timespec ts;
	uint64_t now, start;
	uint32_t lines;

	*dropped = 0;
	if (clock_gettime(CLOCK_MONOTONIC_COARSE, &ts))
		return true;
	now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + 1;
	start = __atomic_load_n(&site->start, __ATOMIC_RELAXED);
	if (!start || now - start >= XR_LOG_PERIOD_NS) {
		__atomic_store_n(&site->start, now, __ATOMIC_RELAXED);
		__atomic_store_n(&site->lines, 0, __ATOMIC_RELAXED);
	}
	lines = __atomic_fetch_add(&site->lines, 1, __ATOMIC_RELAXED);
	if (lines >= XR_LOG_BURST) {
		__atomic_fetch_add(&site->dropped, 1, __ATOMIC_RELAXED);
		return false;
	}
	*dropped = __atomic_exchange_n(&site->dropped, 0, __ATOMIC_RELAXED);
	return true;
}

/*
 * One write that neither blocks nor raises a signal: SIGPIPE and SIGXFSZ are blocked
 * around it, and taken away if this write was what made them pending.
 */
static bool write_quietly(int fd, const char *buf, size_t len)
{
	const uint64_t quiet = 1ull << (SIGPIPE - 1) | 1ull << (SIGXFSZ - 1);
	const struct timespec zero = {0, 0};
	struct pollfd pfd = {.fd = fd, .events = POLLOUT};
	uint64_t saved, pending = 0;
	long n;

	/* POLLOUT on a pipe promises PIPE_BUF bytes, and a line is shorter */
	if (xr_sys5(SYS_ppoll, &pfd, 1, &zero, NULL, 0) != 1 || !(pfd.revents & POLLOUT) ||
	    (pfd.revents & (POLLERR | POLLHUP | POLLNVAL)))
		return false;
	if (xr_sys4(SYS_rt_sigprocmask, SIG_BLOCK, &quiet, &saved, sizeof(saved)))
		return false;
	xr_sys2(SYS_rt_sigpending, &pending, sizeof(pending));
	n = xr_sys3(SYS_write, fd, buf, len);
	if (n == -EPIPE || n == -EFBIG) {
		uint64_t ours = quiet & ~pending;

		if (ours)
			xr_sys4(SYS_rt_sigtimedwait, &ours, NULL, &zero, sizeof(ours));
	}
	xr_sys4(SYS_rt_sigprocmask, SIG_SETMASK, &saved, NULL, sizeof(saved));
	return n == (long)len;
}

static bool emit_stderr(const char *line, size_t len)
{
	struct stat st;

	if (!log_stderr.usable || sys_fstat(STDERR_FILENO, &st) || st.st_dev != log_stderr.dev ||
	    st.st_ino != log_stderr.ino)
		return false;
	return write_quietly(STDERR_FILENO, line, len);
}

static bool emit(const char *line, size_t len)
{
	char told[XR_LOG_LINE];
	uint32_t no = 0;
	bool ok = false;
	int fd;

	if (!log_file[0])
		return emit_stderr(line, len);
	/* opened per line: holds no descriptor, and follows a rotated log */
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, log_file,
			  O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
	if (fd >= 0) {
		ok = write_quietly(fd, line, len);
		xr_sys1(SYS_close, fd);
	}
	if (!ok && xr_cas(&log_told, &no, 1)) {
		len = (size_t)xr_snprintf(told, sizeof(told), PREFIX "[%d] log_file %s: %s: lines are lost\n",
					  (int)xr_sys0(SYS_getpid), log_file,
					  fd < 0 ? xr_error_text(fd) : "does not take a line");
		emit_stderr(told, len < sizeof(told) ? len : sizeof(told) - 1);
	}
	return ok;
}

/* Days since 1970 to a date of the Gregorian calendar, whose years begin in March here. */
static void log_date(int64_t days, int *year, int *month, int *day)
{
	int64_t era, y;
	int of_era, of_year, m;

	days += 719468;			/* from 1 March of the year 0; an era has 400 years */
	era = days / 146097;
	of_era = (int)(days % 146097);
	y = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	of_year = of_era - (int)(365 * y + y / 4 - y / 100);
	m = (5 * of_year + 2) / 153;
	*day = of_year - (153 * m + 2) / 5 + 1;
	*month = m < 10 ? m + 3 : m - 9;
	*year = (int)(y + era * 400) + (*month <= 2);
}

/* In a file, which may be that of many programs: when (UTC, RFC 3339) and who. */
static size_t log_head(char *line, size_t room)
{
	struct timespec ts = { 0, 0 };
	char comm[17] = "";
	int year, month, day, s, n;

	clock_gettime(CLOCK_REALTIME, &ts);
	xr_sys2(SYS_prctl, PR_GET_NAME, comm);
	log_date(ts.tv_sec / 86400, &year, &month, &day);
	s = (int)(ts.tv_sec % 86400);
	n = xr_snprintf(line, room, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ xrdma %s[%d]: ", year, month,
			day, s / 3600, s / 60 % 60, s % 60, (int)(ts.tv_nsec / 1000000), comm,
			(int)xr_sys0(SYS_getpid));
	return (size_t)n;
}

void xr_log_write(struct xr_log_site *site, enum xr_log_level level, const char *fmt, ...)
{
	char line[XR_LOG_LINE];
	uint32_t dropped = 0;
	size_t len;
	va_list ap;

	(void)level;
	if (site && !site_admit(site, &dropped))
		return;
	if (log_file[0])
		len = log_head(line, sizeof(line));
	else
		len = (size_t)xr_snprintf(line, sizeof(line), PREFIX);
	va_start(ap, fmt);
	len += (size_t)xr_vsnprintf(line + len, sizeof(line) - len, fmt, ap);
	va_end(ap);
	if (len >= sizeof(line))
		len = sizeof(line) - 1;
	/* what comes from files and peers must not forge lines or drive a terminal */
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = '?';
	if (dropped && len + 48 < sizeof(line))
		len += (size_t)xr_snprintf(line + len, sizeof(line) - len,
					   " (and %u lines like this one)", dropped);
	if (len == sizeof(line) - 1)
		len--;
	line[len++] = '\n';
	if (!emit(line, len)) {
		atomic_fetch_add_explicit(&log_lost, 1, memory_order_relaxed);
		xr_stats_add(XR_STAT_LOG_LOST, 1);
	}
}

const char *xr_error_text(int err)
{
	switch (err < 0 ? -err : err) {
	case ENOENT:
		return "does not exist";
	case EACCES:
	case EPERM:
		return "permission denied";
	case EISDIR:
		return "is a directory";
	case ENOTDIR:
		return "a part of the path is no directory";
	case EROFS:
		return "read-only file system";
	case ENOSPC:
	case EDQUOT:
		return "no space left";
	case EMFILE:
	case ENFILE:
		return "no descriptors left";
	case ENOMEM:
		return "no memory left";
	case ENAMETOOLONG:
		return "the name is too long";
	case EFBIG:
		return "the file would be too large";
	case ELOOP:
		return "is a symbolic link, or too many";
	default:
		return "input/output error";
	}
}

_Static_assert(XR_LOG_LINE <= PIPE_BUF, "a line is one atomic write");
