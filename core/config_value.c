/* SPDX-License-Identifier: BSD-2-Clause */
/* Pure parsers of single values: sizes, times, addresses, ports, patterns. See config.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "config.h"

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool same_word(const char *a, const char *b)
{
	while (*a && lower(*a) == lower(*b))
		a++, b++;
	return lower(*a) == lower(*b);
}

/* Digits at *s; moves *s past them. */
static int parse_digits(const char **s, uint64_t *value)
{
	uint64_t v = 0;

	if (!is_digit(**s))
		return -EINVAL;
	for (; is_digit(**s); (*s)++)
		if (__builtin_mul_overflow(v, 10u, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(**s - '0'), &v))
			return -ERANGE;
	*value = v;
	return 0;
}

int xr_parse_size(const char *s, uint64_t *bytes)
{
	static const char units[] = "kmgt";
	const char *unit;
	uint64_t v;
	int err = parse_digits(&s, &v);

	if (err)
		return err;
	unit = *s ? strchr(units, lower(*s)) : NULL;
	if (unit) {
		if (__builtin_mul_overflow(v, 1ull << (10 * (unit - units + 1)), &v))
			return -ERANGE;
		s++;
	}
	if (unit && lower(s[0]) == 'i' && lower(s[1]) == 'b')
		s += 2;
	else if (lower(s[0]) == 'b')
		s++;
	if (*s)
		return -EINVAL;
	*bytes = v;
	return 0;
}

int xr_parse_time(const char *s, uint64_t *ns)
{
	static const struct {
		const char *name;
		uint64_t ns;
	} units[] = {
		{"ns", 1},	      {"us", 1000},	     {"ms", 1000000},
		{"s", 1000000000ull}, {"m", 60000000000ull}, {"h", 3600000000000ull},
	};
	uint64_t whole, fraction = 0, scale = 1, v;
	int err = parse_digits(&s, &whole);

	if (err)
		return err;
	if (*s == '.') {
		s++;
		if (!is_digit(*s))
			return -EINVAL;
		for (; is_digit(*s); s++) {
			if (scale >= 1000000000u) /* finer than we keep */
				continue;
			fraction = fraction * 10 + (uint64_t)(*s - '0');
			scale *= 10;
		}
	}
	if (!*s && !whole && !fraction) {
		*ns = 0;
		return 0;
	}
	for (unsigned int i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!same_word(s, units[i].name))
			continue;
		if (__builtin_mul_overflow(whole, units[i].ns, &v))
			return -ERANGE;
		/* in two steps: fraction < 1e9, and a unit is a multiple of 1e9 or below it */
		fraction = units[i].ns >= scale ? fraction * (units[i].ns / scale)
						: fraction / (scale / units[i].ns);
		if (__builtin_add_overflow(v, fraction, &v))
			return -ERANGE;
		*ns = v;
		return 0;
	}
	return -EINVAL;
}

int xr_parse_bool(const char *s, bool *value)
{
	static const char *const yes[] = {"yes", "on", "true", "1"};
	static const char *const no[] = {"no", "off", "false", "0"};

	for (int i = 0; i < 4; i++) {
		if (same_word(s, yes[i]) || same_word(s, no[i])) {
			*value = same_word(s, yes[i]);
			return 0;
		}
	}
	return -EINVAL;
}

/* The first bits of an address; the rest of the byte counts from the left. */
static bool prefix_equal(const uint8_t *a, const uint8_t *b, unsigned int bits)
{
	unsigned int rest = bits % 8;

	if (memcmp(a, b, bits / 8))
		return false;
	return !rest || !((a[bits / 8] ^ b[bits / 8]) >> (8 - rest));
}

int xr_parse_cidr(const char *s, struct xr_cidr *out)
{
	static const uint8_t zeros[16];
	char text[INET6_ADDRSTRLEN];
	const char *slash = strchr(s, '/');
	size_t len = slash ? (size_t)(slash - s) : strlen(s);
	struct xr_cidr c = {.family = AF_INET};
	uint64_t bits;
	uint8_t host[16];
	unsigned int max;

	if (len >= sizeof(text))
		return -EINVAL;
	memcpy(text, s, len);
	text[len] = '\0';
	if (inet_pton(AF_INET, text, c.addr) != 1) {
		c.family = AF_INET6;
		if (inet_pton(AF_INET6, text, c.addr) != 1)
			return -EINVAL;
	}
	max = c.family == AF_INET ? 32 : 128;
	bits = max;
	if (slash) {
		s = slash + 1;
		if (parse_digits(&s, &bits) || *s)
			return -EINVAL;
		if (bits > max)
			return -ERANGE;
	}
	/* 10.1.2.3/8 is more likely a mistake than a wish */
	memcpy(host, c.addr, sizeof(host));
	for (unsigned int i = 0; i < bits; i++)
		host[i / 8] &= (uint8_t)~(0x80u >> (i % 8));
	if (memcmp(host, zeros, sizeof(host)))
		return -EINVAL;
	c.bits = (uint8_t)bits;
	*out = c;
	return 0;
}

bool xr_cidr_match(const struct xr_cidr *cidr, const struct sockaddr *sa)
{
	const struct sockaddr_in6 *in6;

	if (!sa)
		return false;
	if (sa->sa_family == AF_INET)
		return cidr->family == AF_INET &&
		       prefix_equal(cidr->addr,
				    (const uint8_t *)&((const struct sockaddr_in *)sa)->sin_addr,
				    cidr->bits);
	if (sa->sa_family != AF_INET6)
		return false;
	in6 = (const struct sockaddr_in6 *)sa;
	if (cidr->family == AF_INET)
		return IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) &&
		       prefix_equal(cidr->addr, in6->sin6_addr.s6_addr + 12, cidr->bits);
	return prefix_equal(cidr->addr, in6->sin6_addr.s6_addr, cidr->bits);
}

int xr_parse_ports(const char *s, struct xr_port_range *out, unsigned int max)
{
	unsigned int n = 0;

	for (;;) {
		uint64_t lo, hi;
		int err;

		while (*s == ' ' || *s == '\t')
			s++;
		err = parse_digits(&s, &lo);
		if (err)
			return err;
		hi = lo;
		if (*s == '-') {
			s++;
			err = parse_digits(&s, &hi);
			if (err)
				return err;
		}
		while (*s == ' ' || *s == '\t')
			s++;
		if (lo > 65535 || hi > 65535)
			return -ERANGE;
		if (lo > hi || (*s && *s != ','))
			return -EINVAL;
		if (n == max)
			return -ERANGE;
		out[n].lo = (uint16_t)lo;
		out[n++].hi = (uint16_t)hi;
		if (!*s)
			return (int)n;
		s++;
	}
}

/*
 * [abc], [a-z], [!a] at p (just after the bracket) against c; NULL when there is no
 * closing bracket, else the character after it.
 */
static const char *match_class(const char *p, char c, bool *match)
{
	bool negate = *p == '!' || *p == '^', hit = false;
	const char *first;

	if (negate)
		p++;
	for (first = p; *p && (*p != ']' || p == first); p++) {
		if (p[1] == '-' && p[2] && p[2] != ']') {
			hit |= (unsigned char)p[0] <= (unsigned char)c &&
			       (unsigned char)c <= (unsigned char)p[2];
			p += 2;
		} else {
			hit |= *p == c;
		}
	}
	if (!*p)
		return NULL;
	*match = hit != negate;
	return p + 1;
}

bool xr_glob(const char *pattern, const char *s)
{
	/* after a mismatch only the last star needs another try: no recursion, O(n*m) */
	const char *star = NULL, *retry = NULL, *next;
	const char *p = pattern;
	bool ok;

	while (*s) {
		ok = false;
		next = p + 1;
		if (*p == '*') {
			star = p++;
			retry = s;
			continue;
		}
		if (*p == '?') {
			ok = true;
		} else if (*p == '[') {
			next = match_class(p + 1, *s, &ok);
			if (!next) { /* no class: an ordinary character */
				ok = *s == '[';
				next = p + 1;
			}
		} else if (*p == '\\' && p[1]) {
			ok = p[1] == *s;
			next = p + 2;
		} else {
			ok = *p && *p == *s;
		}
		if (ok) {
			p = next;
			s++;
		} else if (star) {
			p = star + 1;
			s = ++retry;
		} else {
			return false;
		}
	}
	while (*p == '*')
		p++;
	return !*p;
}
