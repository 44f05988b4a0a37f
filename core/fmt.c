/* SPDX-License-Identifier: BSD-2-Clause */
/* snprintf for code that may use neither stdio nor the locale; see log.h. */
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "log.h"

struct out {
	char *buf;
	size_t size; /* of buf */
	size_t len;  /* wanted so far */
};

struct spec {
	bool zero, left;
	int width;
	int precision; /* -1: none */
};

static void put(struct out *o, char c)
{
	if (o->len + 1 < o->size)
		o->buf[o->len] = c;
	if (o->len < INT_MAX)
		o->len++;
}

static void pad(struct out *o, char c, int n)
{
	while (n-- > 0)
		put(o, c);
}

static void put_string(struct out *o, const struct spec *sp, const char *s)
{
	int n = 0;

	if (!s)
		s = "(null)";
	while ((sp->precision < 0 || n < sp->precision) && s[n])
		n++;
	if (!sp->left)
		pad(o, ' ', sp->width - n);
	for (int i = 0; i < n; i++)
		put(o, s[i]);
	if (sp->left)
		pad(o, ' ', sp->width - n);
}

static void put_number(struct out *o, const struct spec *sp, unsigned long long v, unsigned int base,
		       bool negative, const char *prefix)
{
	char digits[24];
	int n = 0, lead, zeros;

	do {
		digits[n++] = "0123456789abcdef"[v % base];
		v /= base;
	} while (v);
	lead = (int)negative + (int)strlen(prefix);
	zeros = sp->precision > n ? sp->precision - n : 0;
	if (sp->zero && !sp->left && sp->precision < 0 && sp->width > n + lead)
		zeros = sp->width - n - lead;
	if (!sp->left)
		pad(o, ' ', sp->width - n - zeros - lead);
	if (negative)
		put(o, '-');
	while (*prefix)
		put(o, *prefix++);
	pad(o, '0', zeros);
	for (int i = n; i-- > 0;)
		put(o, digits[i]);
	if (sp->left)
		pad(o, ' ', sp->width - n - zeros - lead);
}

static int number(const char **f)
{
	int n = 0;

	while (**f >= '0' && **f <= '9' && n < 10000)
		n = n * 10 + *(*f)++ - '0';
	return n;
}

int xr_vsnprintf(char *buf, size_t size, const char *fmt, va_list ap)
{
	struct out o = {buf, size, 0};
	const char *f = fmt;

	while (*f) {
		struct spec sp = {.precision = -1};
		const char *start = f;
		int longs = 0;
		long long sv;
		unsigned long long uv;

		if (*f != '%') {
			put(&o, *f++);
			continue;
		}
		f++;
		for (;; f++) {
			if (*f == '0')
				sp.zero = true;
			else if (*f == '-')
				sp.left = true;
			else
				break;
		}
		if (*f == '*') {
			sp.width = va_arg(ap, int);
			f++;
			if (sp.width < 0) {
				sp.left = true;
				sp.width = sp.width == INT_MIN ? 0 : -sp.width;
			}
		} else {
			sp.width = number(&f);
		}
		if (*f == '.') {
			f++;
			if (*f == '*') {
				sp.precision = va_arg(ap, int);
				f++;
			} else {
				sp.precision = number(&f);
			}
		}
		for (;; f++) {
			if (*f == 'l' || *f == 'z' || *f == 'j' || *f == 't')
				longs++; /* all of them are 64 bits wide where we run */
			else if (*f == 'h')
				longs--; /* promoted to int; narrowed below */
			else
				break;
		}
		switch (*f) {
		case '%':
			put(&o, '%');
			break;
		case 'c': {
			char c[2] = {(char)va_arg(ap, int), 0};

			put_string(&o, &sp, c);
			break;
		}
		case 's':
			put_string(&o, &sp, va_arg(ap, const char *));
			break;
		case 'd':
		case 'i':
			if (longs > 0)
				sv = va_arg(ap, long);
			else
				sv = va_arg(ap, int);
			if (longs == -1)
				sv = (short)sv;
			else if (longs < -1)
				sv = (signed char)sv;
			uv = sv < 0 ? 0 - (unsigned long long)sv : (unsigned long long)sv;
			put_number(&o, &sp, uv, 10, sv < 0, "");
			break;
		case 'u':
		case 'x':
			if (longs > 0)
				uv = va_arg(ap, unsigned long);
			else
				uv = va_arg(ap, unsigned int);
			if (longs == -1)
				uv = (unsigned short)uv;
			else if (longs < -1)
				uv = (unsigned char)uv;
			put_number(&o, &sp, uv, *f == 'x' ? 16 : 10, false, "");
			break;
		case 'p':
			put_number(&o, &sp, (uintptr_t)va_arg(ap, void *), 16, false, "0x");
			break;
		default: /* not ours: show it, and stop trusting the argument list */
			while (*start)
				put(&o, *start++);
			f = start;
			continue;
		}
		f++;
	}
	if (size)
		buf[o.len < size ? o.len : size - 1] = '\0';
	return (int)o.len;
}

int xr_snprintf(char *buf, size_t size, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = xr_vsnprintf(buf, size, fmt, ap);
	va_end(ap);
	return n;
}

_Static_assert(sizeof(long) == 8 && sizeof(long long) == 8 && sizeof(size_t) == 8, "LP64");
