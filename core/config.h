/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_CONFIG_H
#define XR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config_table.h"
#include "log.h"
#include "reason.h"

/*
 * Settings. The struct is plain data: filled once, read without locks. Precedence,
 * rising: defaults, file, environment (xrdma-run turns its options into the
 * environment of the program it starts).
 *
 * Nothing here uses malloc, stdio or the locale. Nothing here is fatal: what cannot
 * be understood is reported through a warning function and left at its value.
 */
#define XR_CONFIG_RULES	    64
#define XR_CONFIG_ADDRS	    8	    /* per rule */
#define XR_CONFIG_PORTS	    16	    /* per rule */
#define XR_CONFIG_STR	    256	    /* bytes of a TEXT or PATH value, with its NUL */
#define XR_CONFIG_FILE_MAX  (1u << 20) /* longer configuration files are refused */

enum xr_fabric_choice {
	XR_FABRIC_AUTO,
	XR_FABRIC_SHM,
	XR_FABRIC_NONE,
};

enum xr_trust {
	XR_TRUST_KEY,
	XR_TRUST_FABRIC,
};

enum xr_nat {
	XR_NAT_NO,
	XR_NAT_AUTO,
	XR_NAT_YES,
};

enum xr_action {
	XR_ACTION_AUTO, /* upgrade when it pays */
	XR_ACTION_TCP,	/* never upgrade */
	XR_ACTION_SHM,	/* shm or TCP */
};

enum xr_role {
	XR_ROLE_ANY,
	XR_ROLE_CLIENT, /* this end connected */
	XR_ROLE_SERVER, /* this end accepted */
};

enum xr_config_type {
	XR_TYPE_BOOL,
	XR_TYPE_INT,
	XR_TYPE_SIZE,
	XR_TYPE_TIME,
	XR_TYPE_ENUM,
	XR_TYPE_TEXT,
	XR_TYPE_PATH,
};

enum xr_config_origin {
	XR_ORIGIN_DEFAULT,
	XR_ORIGIN_FILE,
	XR_ORIGIN_ENV,
	XR_ORIGIN_OPTION, /* set by xrdma-run only */
};

/* XR_KEY_SPIN ...: index of a setting in xr_config_keys[] and in origin[] */
enum xr_config_key_id {
#define XR_CONFIG_ENUM(section, key, KEY, ...) XR_KEY_##KEY,
	XR_CONFIG_TABLE(XR_CONFIG_ENUM)
#undef XR_CONFIG_ENUM
	XR_KEY_COUNT
};

struct xr_cidr {
	uint8_t addr[16]; /* network order; the first 4 bytes for IPv4 */
	uint16_t family;  /* AF_INET, AF_INET6 */
	uint8_t bits;
};

struct xr_port_range {
	uint16_t lo, hi; /* inclusive, host order */
};

struct xr_rule {
	char program[128]; /* glob; empty: any */
	struct xr_cidr addr[XR_CONFIG_ADDRS];
	struct xr_port_range port[XR_CONFIG_PORTS];
	uint8_t n_addr; /* 0: any */
	uint8_t n_port; /* 0: any */
	uint8_t role;	/* enum xr_role */
	uint8_t action; /* enum xr_action */
	uint8_t has_action;
	uint8_t broken; /* something was not understood, or no action: never matches */
	uint32_t line;	/* of its [rule] in the file */
};

struct xr_config {
	/* BOOL bool; INT SIZE TIME(ns) uint64_t; ENUM int; TEXT PATH char[XR_CONFIG_STR] */
#define XR_FIELD_BOOL(key) bool key;
#define XR_FIELD_INT(key)  uint64_t key;
#define XR_FIELD_SIZE(key) uint64_t key;
#define XR_FIELD_TIME(key) uint64_t key;
#define XR_FIELD_ENUM(key) int key;
#define XR_FIELD_TEXT(key) char key[XR_CONFIG_STR];
#define XR_FIELD_PATH(key) char key[XR_CONFIG_STR];
#define XR_CONFIG_FIELD(section, key, KEY, type, ...) XR_FIELD_##type(key)
	XR_CONFIG_TABLE(XR_CONFIG_FIELD)
#undef XR_CONFIG_FIELD
	uint8_t origin[XR_KEY_COUNT];	   /* enum xr_config_origin */
	uint16_t origin_line[XR_KEY_COUNT]; /* for XR_ORIGIN_FILE; saturates */
	uint32_t n_rules;
	uint32_t warnings; /* given so far */
	uint64_t digest;   /* of what they say; set by xr_config_load() */
	struct xr_rule rule[XR_CONFIG_RULES];
};

struct xr_config_key {
	const char *section, *name, *env; /* "limits", "max_flows", "XRDMA_MAX_FLOWS" */
	enum xr_config_type type;
	const char *def;
	uint64_t min, max;
	const char *names; /* ENUM: "a|b|c" */
	const char *metavar, *help, *man;
	size_t offset; /* in struct xr_config */
};

extern const struct xr_config_key xr_config_keys[XR_KEY_COUNT];

/*
 * One call per warning. where is the file name, the variable, or "environment"; line
 * is 0 outside files. msg has no newline and is valid during the call only.
 */
typedef void (*xr_config_warn_fn)(void *arg, const char *where, unsigned int line, const char *msg);

void xr_config_defaults(struct xr_config *cfg);

/*
 * Adds what text says to cfg, which holds defaults or earlier settings. name is
 * for warnings. text need not be terminated and may hold anything. Returns 0 or
 * -EFBIG (text longer than XR_CONFIG_FILE_MAX, nothing read).
 */
int xr_config_parse(struct xr_config *cfg, const char *text, size_t len, const char *name,
		    xr_config_warn_fn warn, void *arg);

/* Sets one key from text. -ENOENT no such key, -EINVAL not a value, -ERANGE; warned about too. */
int xr_config_set(struct xr_config *cfg, const char *key, const char *value,
		  enum xr_config_origin origin, const char *where, unsigned int line,
		  xr_config_warn_fn warn, void *arg);

/* Applies the XRDMA_* variables in envp (NULL-terminated). */
void xr_config_environment(struct xr_config *cfg, char *const *envp, xr_config_warn_fn warn,
			   void *arg);

/*
 * Defaults, then the file (XRDMA_CONF in envp, else path, else the installed
 * default), then envp. Uses raw system calls only, one short-lived descriptor and
 * one short-lived mapping. A missing default file is no error; a missing or
 * unreadable XRDMA_CONF is a warning. In a set-user-ID process (AT_SECURE) the
 * environment is ignored. warn == NULL logs through log.h, after xr_log_init() with
 * the log_level and log_file just read, arg being NULL or what xr_config_place() takes, all of them
 * and once: not where XR_CONFIG_TOLD
 * in envp, or the environment of the parent process, says that they have been told
 * already. A log_file that cannot be written is a mistake; lines go to stderr then.
 * Returns the number of warnings; cfg is always usable afterwards.
 */
#define XR_CONFIG_TOLD "XRDMA_TOLD" /* set by xrdma-run: the digest in hexadecimal */
int xr_config_load(struct xr_config *cfg, const char *path, char *const *envp,
		   xr_config_warn_fn warn, void *arg);

/*
 * Where a mistake is, as the user knows the place: a variable that an option has set goes by the name
 * of the option. option has a name or NULL for each setting; NULL: there are no options.
 */
const char *xr_config_place(const char *const *option, const char *where);

/* The file that xr_config_load() reads. */
const char *xr_config_path(const char *path, char *const *envp);

/*
 * First rule that matches decides; without one XR_ACTION_AUTO. program is the path
 * of the executable, as the one it was started by (a link, a script); either may match,
 * either may be NULL. address= is compared with the peer's address, port= with the
 * server's port: the peer's for XR_ROLE_CLIENT, ours for XR_ROLE_SERVER. NULL or
 * non-IP addresses match only rules that name none. Lock-free, async-signal-safe.
 */
enum xr_action xr_config_match(const struct xr_config *cfg, const char *program, const char *as,
			       enum xr_role role, const struct sockaddr *peer,
			       const struct sockaddr *local);

/* The same, giving the index of the rule or -ENOENT. */
int xr_config_match_rule(const struct xr_config *cfg, const char *program, const char *as,
			 enum xr_role role, const struct sockaddr *peer,
			 const struct sockaddr *local);

/* A path that a rule can be compared with as it stands: from the root, by no way round. */
bool xr_config_plain_path(const char *path);

/* Why no flow of a process with these settings can leave TCP; XR_REASON_NONE: some can. */
enum xr_reason xr_config_off(const struct xr_config *cfg);

/* Printable value of a key, as the parser would read it; returns its length as snprintf. */
int xr_config_value(const struct xr_config *cfg, enum xr_config_key_id id, char *buf, size_t size);

/* The key nearest to a misspelt one, or NULL when none is near. */
const char *xr_config_suggest(const char *word);

/*
 * Pure parsers; all of s must be used up. 0, -EINVAL or -ERANGE.
 * size: digits with an optional K, M, G, T (powers of 1024), optional B or iB.
 * time: digits with ns, us, ms, s, m, h (decimals allowed; 0 needs no unit).
 */
int xr_parse_size(const char *s, uint64_t *bytes);
int xr_parse_time(const char *s, uint64_t *ns);
int xr_parse_bool(const char *s, bool *value);
int xr_parse_cidr(const char *s, struct xr_cidr *out); /* host bits after the prefix: -EINVAL */
int xr_parse_ports(const char *s, struct xr_port_range *out, unsigned int max); /* count or -err */
bool xr_cidr_match(const struct xr_cidr *cidr, const struct sockaddr *sa); /* v4-mapped is v4 */
bool xr_glob(const char *pattern, const char *s); /* * ? [a-z] [!a]; linear stack, no recursion */

#endif /* XR_CONFIG_H */
