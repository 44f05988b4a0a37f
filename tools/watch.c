/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/config.h"
#include "watch.h"

/* A screenful: no line wraps, none scrolls away. */
static void show_screen(const char *text)
{
	struct winsize ws = {0};
	int rows, columns;

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws);
	rows = ws.ws_row ? ws.ws_row : 24;
	columns = ws.ws_col ? ws.ws_col : 80;
	fputs("\033[H\033[J", stdout);
	for (int row = 1; row < rows && *text; row++) {
		int len = (int)strcspn(text, "\n");

		printf("%.*s\n", len < columns ? len : columns, text);
		text += len + (text[len] == '\n');
	}
}

static int once(const struct xr_watch *w, bool screen)
{
	char *text = NULL;
	size_t size;
	FILE *out = screen ? open_memstream(&text, &size) : stdout;
	int status;

	if (!out) {
		fprintf(stderr, "%s: %s\n", w->tool, strerror(errno));
		return EXIT_TROUBLE;
	}
	status = w->show(out, w->arg);
	if (screen && !fclose(out) && status != EXIT_TROUBLE)
		show_screen(text);
	free(text);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "%s: standard output: %s\n", w->tool, strerror(errno));
		status = EXIT_TROUBLE;
	}
	return status;
}

int xr_watch(const struct xr_watch *w)
{
	bool screen = w->seconds > 0 && w->page && isatty(STDOUT_FILENO);
	struct timespec pause = {.tv_sec = (time_t)w->seconds};
	int status;

	pause.tv_nsec = (long)((w->seconds - (double)pause.tv_sec) * 1e9);
	for (;;) {
		status = once(w, screen);
		if (!(w->seconds > 0) || status == EXIT_TROUBLE)
			return status;
		nanosleep(&pause, NULL);
		if (!screen && w->parted)
			putchar('\n');
	}
}

/* Of all mistakes, those that make us look in the wrong place. */
static void where_to_look(void *arg, const char *where, unsigned int line, const char *msg)
{
	const char *tool = arg;

	if (strncmp(msg, "stats_dir", 9) && strncmp(msg, "not read", 8))
		return;
	if (line)
		fprintf(stderr, "%s: %s:%u: %s\n", tool, where, line, msg);
	else
		fprintf(stderr, "%s: %s: %s\n", tool, where, msg);
}

const char *xr_watch_directory(const char *tool)
{
	static struct xr_config cfg;

	xr_config_load(&cfg, NULL, environ, where_to_look, (void *)(uintptr_t)tool);
	return cfg.stats_dir;
}
