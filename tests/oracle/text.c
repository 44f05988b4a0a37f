/* SPDX-License-Identifier: BSD-2-Clause */
/* Scripts as text: one operation a line, "A send slot=0 call=1 n=100 flags=PEEK iov=0". */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <poll.h>
#include <sys/socket.h>

#define X(sym, name, args) name,
const char *const op_name[OP_KINDS] = { OP_TABLE(X) };
#undef X
#define X(sym, name, args) args,
const char *const op_args[OP_KINDS] = { OP_TABLE(X) };
#undef X

static const char *const side_name[] = { "A", "B", "a", "b", "AB" };

struct word {
	const char *name;
	uint32_t bit;
};
static const struct word msg_words[] = {
	{ "PEEK", MSG_PEEK }, { "WAITALL", MSG_WAITALL }, { "DONTWAIT", MSG_DONTWAIT },
	{ "NOSIGNAL", MSG_NOSIGNAL }, { "MORE", MSG_MORE }, { "TRUNC", MSG_TRUNC },
	{ "OOB", MSG_OOB }, { "ERRQUEUE", MSG_ERRQUEUE }, { "CLOEXEC", MSG_CMSG_CLOEXEC },
	{ "EOR", MSG_EOR }, { "CONFIRM", MSG_CONFIRM }, { "WAITFORONE", MSG_WAITFORONE },
	{ NULL, 0 },
};
static const struct word poll_words[] = {
	{ "IN", POLLIN }, { "OUT", POLLOUT }, { "PRI", POLLPRI }, { "RDHUP", POLLRDHUP },
	{ "RDNORM", POLLRDNORM }, { "WRNORM", POLLWRNORM }, { "RDBAND", POLLRDBAND },
	{ "WRBAND", POLLWRBAND }, { NULL, 0 },
};
static const struct word epoll_words[] = {
	{ "IN", EPOLLIN }, { "OUT", EPOLLOUT }, { "PRI", EPOLLPRI }, { "RDHUP", EPOLLRDHUP },
	{ "ET", EPOLLET }, { "ONESHOT", EPOLLONESHOT }, { "EXCLUSIVE", EPOLLEXCLUSIVE },
	{ "WAKEUP", EPOLLWAKEUP }, { "RDNORM", EPOLLRDNORM }, { "WRNORM", EPOLLWRNORM },
	{ NULL, 0 },
};

static const struct word *words_of(char kind)
{
	return kind == 'm' ? msg_words : kind == 'p' ? poll_words : kind == 'e' ? epoll_words : NULL;
}

int op_nargs(enum kind k)
{
	const char *p = op_args[k];
	int n = 0;

	for (; (p = strchr(p, ':')); p++)
		n++;
	return n;
}

static void print_bits(FILE *f, const struct word *w, uint32_t v)
{
	const char *sep = "";

	for (; w->name; w++)
		if (v & w->bit) {
			fprintf(f, "%s%s", sep, w->name);
			v &= ~w->bit;
			sep = "|";
		}
	if (v || !*sep)
		fprintf(f, *sep ? "%s0x%x" : "%s%x", sep, v);
}

void op_print(FILE *f, const struct op *o)
{
	const char *p = op_args[o->kind];
	int i = 0;

	fprintf(f, "%s", side_name[o->side]);
	if (o->thread)
		fprintf(f, "%d", o->thread);
	fprintf(f, " %s", op_name[o->kind]);
	while (*p) {
		const char *colon = strchr(p, ':');

		fprintf(f, " %.*s=", (int)(colon - p), p);
		if (words_of(colon[1]))
			print_bits(f, words_of(colon[1]), (uint32_t)o->arg[i]);
		else if (colon[1] == 'x' || colon[1] == 's')
			fprintf(f, "0x%x", (uint32_t)o->arg[i]);
		else
			fprintf(f, "%d", o->arg[i]);
		i++;
		p = colon + 2;
		while (*p == ' ')
			p++;
	}
	fputc('\n', f);
}

static int read_bits(const struct word *words, char *text, int32_t *out)
{
	char *save = NULL, *t;
	uint32_t v = 0;

	for (t = strtok_r(text, "|", &save); t; t = strtok_r(NULL, "|", &save)) {
		const struct word *w;
		char *end;

		for (w = words; w->name && strcmp(w->name, t); w++)
			;
		if (w->name) {
			v |= w->bit;
			continue;
		}
		v |= (uint32_t)strtoul(t, &end, 0);
		if (*end)
			return -1;
	}
	*out = (int32_t)v;
	return 0;
}

static int read_side(const char *text, struct op *o)
{
	int i;

	for (i = BOTH; i >= 0; i--)
		if (!strncmp(text, side_name[i], strlen(side_name[i])))
			break;
	if (i < 0)
		return -1;
	o->side = (uint8_t)i;
	o->thread = (uint8_t)atoi(text + strlen(side_name[i]));
	return o->thread > THREADS ? -1 : 0;
}

static int op_read(char *line, struct op *o)
{
	char *save = NULL, *word = strtok_r(line, " \n", &save);
	const char *p;
	int k, i = 0;

	memset(o, 0, sizeof(*o));
	if (!word || read_side(word, o))
		return -1;
	word = strtok_r(NULL, " \n", &save);
	for (k = 0; word && k < OP_KINDS && strcmp(op_name[k], word); k++)
		;
	if (!word || k == OP_KINDS)
		return -1;
	o->kind = (uint8_t)k;
	for (p = op_args[k]; *p; i++) {
		const char *colon = strchr(p, ':');
		size_t len = (size_t)(colon - p);

		word = strtok_r(NULL, " \n", &save);
		if (!word || strncmp(word, p, len) || word[len] != '=')
			return -1;
		if (words_of(colon[1])) {
			if (read_bits(words_of(colon[1]), word + len + 1, &o->arg[i]))
				return -1;
		} else {
			o->arg[i] = (int32_t)strtoll(word + len + 1, NULL, 0);
		}
		for (p = colon + 2; *p == ' '; p++)
			;
	}
	return strtok_r(NULL, " \n", &save) ? -1 : 0;
}

int script_read(FILE *f, struct script *s, const char *path)
{
	char line[512];
	int at = 0;

	memset(s, 0, sizeof(*s));
	while (fgets(line, sizeof(line), f)) {
		at++;
		if (line[0] == '#' || line[0] == '\n')
			continue;
		if (sscanf(line, "warm %u", &s->warm) == 1)
			continue;
		if (!strncmp(line, "mode ", 5))
			continue;
		if (s->n == OPS_MAX || op_read(line, &s->op[s->n])) {
			fprintf(stderr, "%s:%d: no operation\n", path, at);
			return -1;
		}
		s->n++;
	}
	return 0;
}

void script_print(FILE *f, const struct script *s)
{
	uint32_t i;

	fprintf(f, "warm %u\n", s->warm);
	for (i = 0; i < s->n; i++)
		op_print(f, &s->op[i]);
}

void res_print(FILE *f, const struct res *r)
{
	int i;

	if (!r->done) {
		fprintf(f, "did not return");
		return;
	}
	fprintf(f, "%lld", (long long)r->ret);
	if (r->ret < 0 || r->err)
		fprintf(f, " (%s)", r->err ? strerrorname_np(r->err) : "no errno");
	for (i = 0; i < r->nextra; i++)
		fprintf(f, " 0x%llx", (unsigned long long)r->extra[i]);
	if (r->sigpipe)
		fprintf(f, " SIGPIPE x%d", r->sigpipe);
	if (r->sigusr)
		fprintf(f, " SIGUSR x%d", r->sigusr);
	if (r->bad)
		fprintf(f, " wrong byte at %d", r->bad - 1);
}
