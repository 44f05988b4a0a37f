/* SPDX-License-Identifier: BSD-2-Clause */
/* The lists of the man pages, from the tables that the code itself uses. */
#include "mantext.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/reason.h"
#include "core/stats.h"
#include "preload/hooks.def"
#include "settings.h"
#include "stat_info.h"

/* Text as mdoc: sentences start lines, and nothing in it is taken for a macro. */
static void text(const char *s)
{
	for (; *s; s++) {
		if (*s == '\\')
			fputs("\\e", stdout);
		else if (*s == '-' && s[1] == '-')
			fputs("\\-", stdout);
		else if (s[0] == '.' && s[1] == ' ')
			fputs(".\n", stdout), s++;
		else
			putchar(*s);
	}
	putchar('\n');
}

/* A phrase of the tables as a sentence. */
static void sentence(const char *s)
{
	printf("%c%s.\n", s[0] >= 'a' && s[0] <= 'z' ? s[0] - 'a' + 'A' : s[0], s + 1);
}

static void words(const char *names)
{
	for (;;) {
		size_t len = strcspn(names, "|");

		printf(".Cm %.*s %c\n", (int)len, names, names[len] ? ',' : ';');
		if (!names[len])
			return;
		names += len + 1;
	}
}

static void settings(void)
{
	static const char *const type[] = {"yes | no", "number", "size", "time", "", "text", "path"};
	const char *section = "";

	for (int i = 0; i < XR_KEY_COUNT; i++) {
		const struct xr_config_key *key = &xr_config_keys[i];

		if (strcmp(section, key->section)) {
			if (*section)
				puts(".El");
			section = key->section;
			printf(".Ss [%s]\n.Bl -tag -width Ds\n", section);
		}
		printf(".It Ic %s No = Ar %s\n", key->name, key->names ? "word" : type[key->type]);
		sentence(key->help);
		text(key->man);
		if (key->names) {
			puts("One of");
			words(key->names);
			printf("default\n.Cm %s .\n", key->def);
		} else if (*key->def) {
			printf("Default:\n.Cm %s .\n", key->def);
		} else {
			puts("Default: empty.");
		}
		if (key->type == XR_TYPE_INT || key->type == XR_TYPE_SIZE ||
		    key->type == XR_TYPE_TIME) {
			static struct xr_config lo, hi;
			char from[40], to[40];

			*(uint64_t *)((char *)&lo + key->offset) = key->min;
			*(uint64_t *)((char *)&hi + key->offset) = key->max;
			xr_config_value(&lo, (enum xr_config_key_id)i, from, sizeof(from));
			xr_config_value(&hi, (enum xr_config_key_id)i, to, sizeof(to));
			printf("Range: %s to %s.\n", from, to);
		}
	}
	puts(".El");
}

static void options(void)
{
	char name[40];

	puts(".Bl -tag -width Ds");
	for (int i = 0; i < XR_KEY_COUNT; i++) {
		const struct xr_config_key *key = &xr_config_keys[i];

		xr_settings_option_name((enum xr_config_key_id)i, name, sizeof(name));
		printf(".It Fl -%s Ns = Ns Ar %s\n", name, key->metavar);
		sentence(key->help);
	}
	puts(".El");
}

static void environment(void)
{
	puts(".Bl -tag -width Ds");
	for (int i = 0; i < XR_KEY_COUNT; i++)
		printf(".It Ev %s\nSetting\n.Ic %s\nof section\n.Cm %s .\n", xr_config_keys[i].env,
		       xr_config_keys[i].name, xr_config_keys[i].section);
	puts(".El");
}

static void reasons(void)
{
	puts(".Bl -tag -width Ds");
	for (unsigned int i = 0; i < XR_REASON_COUNT; i++) {
		printf(".It Cm %s\n", xr_reason_name(i));
		text(xr_reason_text(i));
	}
	puts(".El");
}

static void counters(void)
{
	puts(".Bl -tag -width Ds");
#define ROW(sym, name, what)                                                                       \
	puts(".It Cm " name);                                                                      \
	sentence(what);
	XR_STATS_TABLE(ROW)
#undef ROW
	puts(".El");
}

static void info(void)
{
	puts(".Bl -tag -width Ds");
#define ROW(name, form, what)                                                                      \
	puts(".It Cm " name ": Ns Ar " form);                                                        \
	sentence(what);
	XR_INFO_TABLE(ROW)
#undef ROW
	puts(".El");
}

struct call {
	const char *name, *carried, *kept;
};

static const struct call call[] = {
#define ROW(name, subject, before, carried, kept) {#name, carried, kept},
#define ALIAS(alias, name)
	XR_HOOKS(ROW, ALIAS)
#undef ROW
#undef ALIAS
};

#define N_CALLS (sizeof(call) / sizeof(call[0]))

/* The call whose text stands for this one: itself, or the one that "as NAME" names. */
static size_t leader(size_t i)
{
	for (size_t k = 0; k < N_CALLS && !strncmp(call[i].carried, "as ", 3); k++)
		if (!strcmp(call[i].carried + 3, call[k].name) &&
		    (!strncmp(call[i].kept, "as ", 3) || !strcmp(call[i].kept, call[k].kept)))
			return leader(k);
	for (size_t k = 0; k < i; k++)
		if (!strcmp(call[i].carried, call[k].carried) && !strcmp(call[i].kept, call[k].kept))
			return k;
	return i;
}

/* Calls with the same text stand together; other names of a call in the source are left out. */
static void calls(void)
{
	puts(".Bl -tag -width Ds");
	for (size_t i = 0; i < N_CALLS; i++) {
		if (leader(i) != i)
			continue;
		printf(".It Xo\n");
		for (size_t k = i, first = 1; k < N_CALLS; k++) {
			if (leader(k) != i)
				continue;
			printf("%s.Fn %s", first ? "" : " ,\n", call[k].name);
			first = 0;
		}
		puts("\n.Xc");
		if (*call[i].carried)
			sentence(call[i].carried);
		if (*call[i].kept)
			printf("To TCP: %s.\n", call[i].kept);
	}
	puts(".El");
}

int xr_man_text(const char *part)
{
	static const struct {
		const char *name;
		void (*print)(void);
	} parts[] = {{"settings", settings},
		     {"options", options},
		     {"environment", environment},
		     {"reasons", reasons},
		     {"counters", counters},
		     {"info", info},
		     {"calls", calls}};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (!strcmp(part, parts[i].name)) {
			parts[i].print();
			return 0;
		}
	}
	return -ENOENT;
}
