/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "core/config.h"

static struct xr_config cfg;
static unsigned int n_warned;
static char last[512];

static void take(void *arg, const char *where, unsigned int line, const char *msg)
{
	(void)arg;
	n_warned++;
	snprintf(last, sizeof(last), "%s:%u: %s", where, line, msg);
}

static void parse(const char *text)
{
	n_warned = 0;
	xr_config_defaults(&cfg);
	assert_int_equal(xr_config_parse(&cfg, text, strlen(text), "r", take, NULL), 0);
}

static const struct sockaddr *addr(const char *host, uint16_t port)
{
	static union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} slots[4];
	static int next;

	next = (next + 1) % 4;
	memset(&slots[next], 0, sizeof(slots[next]));
	slots[next].in.sin_port = htons(port);
	if (inet_pton(AF_INET, host, &slots[next].in.sin_addr) == 1) {
		slots[next].sa.sa_family = AF_INET;
	} else {
		slots[next].sa.sa_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, host, &slots[next].in6.sin6_addr), 1);
	}
	return &slots[next].sa;
}

static enum xr_action client(const char *program, const char *host, uint16_t port)
{
	return xr_config_match(&cfg, program, NULL, XR_ROLE_CLIENT, addr(host, port),
			       addr("127.0.0.1", 40000));
}

static enum xr_action server(const char *program, const char *host, uint16_t port)
{
	return xr_config_match(&cfg, program, NULL, XR_ROLE_SERVER, addr(host, 50000),
			       addr("127.0.0.1", port));
}

static void the_first_rule_that_matches_decides(void **state)
{
	(void)state;
	parse("[rule]\nprogram = redis-*\nport = 6379\naction = shm\n"
	      "[rule]\nport = 6000-7000, 80\naction = tcp\n"
	      "[rule]\naddress = 10.0.0.0/8, 2001:db8::/32\naction = tcp\n"
	      "[rule]\nrole = server\nprogram = /usr/sbin/*\naction = tcp\n");
	assert_int_equal(n_warned, 0);
	assert_int_equal(cfg.n_rules, 4);
	assert_int_equal(client("/usr/bin/redis-cli", "127.0.0.1", 6379), XR_ACTION_SHM);
	assert_int_equal(client("/usr/bin/curl", "127.0.0.1", 6379), XR_ACTION_TCP);
	assert_int_equal(client("/usr/bin/curl", "127.0.0.1", 80), XR_ACTION_TCP);
	assert_int_equal(client("/usr/bin/curl", "127.0.0.1", 81), XR_ACTION_AUTO);
	assert_int_equal(client("x", "10.200.0.1", 81), XR_ACTION_TCP);
	assert_int_equal(client("x", "11.0.0.1", 81), XR_ACTION_AUTO);
	assert_int_equal(client("x", "2001:db8:ffff::1", 81), XR_ACTION_TCP);
	assert_int_equal(client("x", "2001:db9::1", 81), XR_ACTION_AUTO);
	assert_int_equal(client("x", "::ffff:10.1.1.1", 81), XR_ACTION_TCP);
	assert_int_equal(server("/usr/sbin/nginx", "127.0.0.1", 81), XR_ACTION_TCP);
	assert_int_equal(client("/usr/sbin/nginx", "127.0.0.1", 81), XR_ACTION_AUTO);
	assert_int_equal(server("/usr/bin/nginx", "127.0.0.1", 81), XR_ACTION_AUTO);
	/* the port of a rule is the server's, whichever end we are */
	assert_int_equal(server("/usr/bin/redis-server", "127.0.0.1", 6379), XR_ACTION_SHM);
	assert_int_equal(xr_config_match_rule(&cfg, "x", NULL, XR_ROLE_CLIENT, addr("10.0.0.1", 1), NULL),
			 2);
}

static void what_is_unknown_matches_only_any(void **state)
{
	(void)state;
	parse("[rule]\naddress = 0.0.0.0/0\naction = tcp\n");
	assert_int_equal(xr_config_match(&cfg, NULL, NULL, XR_ROLE_CLIENT, NULL, NULL), XR_ACTION_AUTO);
	parse("[rule]\nport = 0-65535\naction = tcp\n");
	assert_int_equal(xr_config_match(&cfg, NULL, NULL, XR_ROLE_CLIENT, NULL, NULL), XR_ACTION_AUTO);
	parse("[rule]\nprogram = *\naction = tcp\n");
	assert_int_equal(xr_config_match(&cfg, NULL, NULL, XR_ROLE_CLIENT, NULL, NULL), XR_ACTION_AUTO);
	parse("[rule]\nprogram = any\nrole = any\naddress = any\nport = any\naction = tcp\n");
	assert_int_equal(n_warned, 0);
	assert_int_equal(xr_config_match(&cfg, NULL, NULL, XR_ROLE_CLIENT, NULL, NULL), XR_ACTION_TCP);
}

static void a_rule_with_a_mistake_matches_nothing(void **state)
{
	static const char *const bad[] = {
		"port = 70000",	    "port = 5-1",      "port = http",	 "port =",
		"port = 1,,2",	    "address = 1.2.3", "address = 1.2.3.4/33", "address = 10.1.0.0/8",
		"address = ::/129", "address =",       "address = 1.2.3.4,", "role = both",
		"prot = 1",	    "qqqqqqqqqqqq = 1", "nonsense",
		"port = 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
		"address = 1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5,1.1.1.6,1.1.1.7,1.1.1.8,1.1.1.9",
	};
	char text[512];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(text, sizeof(text), "\n[rule]\n%s\naction = tcp\n[rule]\naction = shm\n",
			 bad[i]);
		parse(text);
		assert_int_equal(n_warned, 2); /* the mistake, and what it means for the rule */
		assert_string_equal(last, "r:2: this [rule] is ignored because of its mistakes");
		assert_int_equal(client("x", "127.0.0.1", 1), XR_ACTION_SHM);
	}
	parse("[rule]\nport = 80\n");
	assert_string_equal(last, "r:1: this [rule] has no action and is ignored");
	assert_int_equal(client("x", "127.0.0.1", 80), XR_ACTION_AUTO);
	parse("[rule]\naction = udp\n");
	assert_int_equal(client("x", "127.0.0.1", 80), XR_ACTION_AUTO);
}

static void no_more_rules_than_there_is_room_for(void **state)
{
	static char text[XR_CONFIG_RULES * 32];
	size_t len = 0;

	(void)state;
	for (int i = 0; i < XR_CONFIG_RULES + 1; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "[rule]\naction = tcp\n");
	parse(text);
	assert_int_equal(cfg.n_rules, XR_CONFIG_RULES);
	assert_int_equal(n_warned, 1);
	assert_string_equal(last, "r:129: more than 64 rules: this one is ignored");
}

static void networks(void **state)
{
	struct xr_cidr c;

	(void)state;
	assert_int_equal(xr_parse_cidr("0.0.0.0/0", &c), 0);
	assert_true(xr_cidr_match(&c, addr("255.255.255.255", 0)));
	assert_true(xr_cidr_match(&c, addr("::ffff:1.2.3.4", 0)));
	assert_false(xr_cidr_match(&c, addr("::1", 0)));
	assert_int_equal(xr_parse_cidr("192.168.1.128/25", &c), 0);
	assert_true(xr_cidr_match(&c, addr("192.168.1.255", 0)));
	assert_false(xr_cidr_match(&c, addr("192.168.1.127", 0)));
	assert_int_equal(xr_parse_cidr("::/0", &c), 0);
	assert_true(xr_cidr_match(&c, addr("fe80::1", 0)));
	assert_false(xr_cidr_match(&c, addr("1.2.3.4", 0)));
	assert_int_equal(xr_parse_cidr("2001:db8::1", &c), 0);
	assert_int_equal(c.bits, 128);
	assert_true(xr_cidr_match(&c, addr("2001:db8::1", 0)));
	assert_false(xr_cidr_match(&c, addr("2001:db8::2", 0)));
	assert_false(xr_cidr_match(&c, NULL));
	assert_int_equal(xr_parse_cidr("1.2.3.4/", &c), -EINVAL);
	assert_int_equal(xr_parse_cidr("1.2.3.4/8x", &c), -EINVAL);
	assert_int_equal(xr_parse_cidr("1.2.3.4/99999999999999999999", &c), -EINVAL);
	assert_int_equal(xr_parse_cidr("", &c), -EINVAL);
	assert_int_equal(xr_parse_cidr("1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb", &c),
			 -EINVAL);
}

static void patterns(void **state)
{
	static const struct {
		const char *pattern, *s;
		bool match;
	} t[] = {
		{"", "", true},		     {"", "a", false},	      {"*", "", true},
		{"*", "abc", true},	     {"a*c", "abc", true},    {"a*c", "abcd", false},
		{"a*b*c", "aXbYbZc", true},  {"?", "", false},	      {"??", "ab", true},
		{"[abc]x", "bx", true},	     {"[!abc]x", "bx", false}, {"[a-c]*", "cat", true},
		{"[a-c]*", "dog", false},    {"[]]", "]", true},      {"[", "[", true},
		{"[a", "[a", true},	     {"\\*", "*", true},      {"\\*", "x", false},
		{"a\\", "a\\", true},	     {"**", "x", true},	      {"*.so.?", "lib.so.6", true},
		{"[!]", "[!]", true},	     {"[a-]", "-", true},
	};
	static char many[4096], long_string[4096];

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		if (xr_glob(t[i].pattern, t[i].s) != t[i].match)
			fail_msg("'%s' on '%s'", t[i].pattern, t[i].s);
	/* what explodes in a matcher that recurses */
	for (size_t i = 0; i < sizeof(many) - 3; i += 2)
		memcpy(many + i, "*a", 2);
	strcpy(many + sizeof(many) - 4, "*b");
	memset(long_string, 'a', sizeof(long_string) - 1);
	assert_false(xr_glob(many, long_string));
}

static void sizes_and_times(void **state)
{
	uint64_t v = 77;
	bool b;

	(void)state;
	assert_int_equal(xr_parse_size("0", &v), 0);
	assert_int_equal(v, 0);
	assert_int_equal(xr_parse_size("3kib", &v), 0);
	assert_int_equal(v, 3072);
	assert_int_equal(xr_parse_size("16777215T", &v), 0);
	assert_int_equal(xr_parse_size("16777216T", &v), -ERANGE);
	v = 77;
	assert_int_equal(xr_parse_size("", &v), -EINVAL);
	assert_int_equal(xr_parse_size("K", &v), -EINVAL);
	assert_int_equal(xr_parse_size("1.5K", &v), -EINVAL);
	assert_int_equal(xr_parse_size("1KK", &v), -EINVAL);
	assert_int_equal(xr_parse_size("1i", &v), -EINVAL);
	assert_int_equal(xr_parse_size(" 1", &v), -EINVAL);
	assert_int_equal(v, 77); /* outputs are set on success only */
	assert_int_equal(xr_parse_time("1.5ms", &v), 0);
	assert_int_equal(v, 1500000);
	assert_int_equal(xr_parse_time("0.0000000019s", &v), 0);
	assert_int_equal(v, 1);
	assert_int_equal(xr_parse_time("1.999us", &v), 0);
	assert_int_equal(v, 1999);
	assert_int_equal(xr_parse_time("0.5m", &v), 0);
	assert_int_equal(v, 30000000000ull);
	assert_int_equal(xr_parse_time("0.999999999h", &v), 0);
	assert_int_equal(v, 3599999996400ull);
	assert_int_equal(xr_parse_time("0", &v), 0);
	assert_int_equal(xr_parse_time("1", &v), -EINVAL);
	assert_int_equal(xr_parse_time("1.s", &v), -EINVAL);
	assert_int_equal(xr_parse_time(".5s", &v), -EINVAL);
	assert_int_equal(xr_parse_time("5124095h", &v), 0);
	assert_int_equal(xr_parse_time("5124096h", &v), -ERANGE);
	assert_int_equal(xr_parse_bool("On", &b), 0);
	assert_true(b);
	assert_int_equal(xr_parse_bool("FALSE", &b), 0);
	assert_false(b);
	assert_int_equal(xr_parse_bool("", &b), -EINVAL);
	assert_int_equal(xr_parse_bool("yesno", &b), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_rule_that_matches_decides),
		cmocka_unit_test(what_is_unknown_matches_only_any),
		cmocka_unit_test(a_rule_with_a_mistake_matches_nothing),
		cmocka_unit_test(no_more_rules_than_there_is_room_for),
		cmocka_unit_test(networks),
		cmocka_unit_test(patterns),
		cmocka_unit_test(sizes_and_times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
