/* SPDX-License-Identifier: BSD-2-Clause */
#include "xrsh.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call *running; /* under lock: calls that have threads */
static int out_fd = 1;
static FILE *orders;

long long arg(const struct call *k, int i)
{
	return i < k->argc ? strtoll(k->argv[i], NULL, 0) : 0;
}

void extra(struct call *k, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(k->extra + k->extra_len, sizeof(k->extra) - k->extra_len, fmt, ap);
	va_end(ap);
	if (n > 0 && k->extra_len + n < sizeof(k->extra))
		k->extra_len += n;
}

int thread_of(long id, pthread_t *t)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (struct call *k = running; k; k = k->next)
		if (k->id == id) {
			*t = k->thread;
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

int reopen(const char *in, const char *out)
{
	/* Threads did not come along. */
	pthread_mutex_init(&lock, NULL);
	running = NULL;
	orders = fopen(in, "re");
	out_fd = open(out, O_WRONLY | O_CLOEXEC);
	return orders && out_fd >= 0 ? 0 : -1;
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void reply(const char *text, size_t len)
{
	pthread_mutex_lock(&lock);
	while (len) {
		ssize_t n = write(out_fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(90);
		text += n;
		len -= n;
	}
	pthread_mutex_unlock(&lock);
}

static void run(struct call *k)
{
	static const struct command *const tables[] = { io_commands, sys_commands,
							 load_commands, shape_commands,
							 hand_commands, ring_commands };
	const struct command *c = NULL;
	char text[sizeof(k->extra) + 100];
	double t;
	long ret;
	int e;

	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables) && !c; i++)
		for (const struct command *p = tables[i]; p->name && !c; p++)
			if (!strcmp(p->name, k->argv[0]))
				c = p;
	if (!c || k->argc - 1 < c->min_args) {
		fprintf(stderr, "xrsh: bad order: %s (%d words)\n", k->argv[0], k->argc);
		exit(91);
	}
	errno = 0;
	t = now_us();
	ret = c->fn(k);
	e = errno;
	t = now_us() - t;
	if (ret == -1000000) /* a forked child: the parent answers */
		return;
	reply(text, snprintf(text, sizeof(text), "%ld %ld %d %.0f%.*s\n", k->id, ret, ret < 0 ? e : 0, t,
			     (int)k->extra_len, k->extra));
}

static void forget(struct call *k)
{
	free(k->line);
	free(k->argv);
	free(k);
}

static void *thread(void *p)
{
	struct call *k = p, **at;

	run(k);
	pthread_mutex_lock(&lock);
	for (at = &running; *at && *at != k; at = &(*at)->next)
		;
	if (*at)
		*at = k->next;
	pthread_mutex_unlock(&lock);
	forget(k);
	return NULL;
}

static void obey(char *line)
{
	struct call *k = calloc(1, sizeof(*k));
	char *save = NULL, *w;
	int background;

	k->line = strdup(line);
	k->argv = calloc(XRSH_ARGS + 1, sizeof(char *));
	w = strtok_r(k->line, " \n", &save);
	if (!w) {
		forget(k);
		return;
	}
	k->id = atol(w);
	while (k->argc < XRSH_ARGS && (w = strtok_r(NULL, " \n", &save)))
		k->argv[k->argc++] = w;
	if (!k->argc)
		exit(91);
	background = k->argv[0][0] == '&';
	k->argv[0] += background;
	if (!background) {
		run(k);
		forget(k);
		return;
	}
	pthread_mutex_lock(&lock);
	k->next = running;
	running = k;
	/* The thread unlinks itself under the lock, so it cannot be gone before it is listed. */
	if (pthread_create(&k->thread, NULL, thread, k))
		exit(92);
	pthread_detach(k->thread);
	pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t cap = 0;

	(void)argv;
	if (argc > 1) { /* a call before all others, made of the arguments */
		char text[4096] = "0";

		for (int i = 1; i < argc; i++)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), " %s", argv[i]);
		obey(text);
	}
	orders = stdin;
	for (;;) {
		errno = 0;
		if (getline(&line, &cap, orders) > 0)
			obey(line);
		else if (errno == EINTR) /* a signal, between two orders */
			clearerr(orders);
		else
			return 0;
	}
}
