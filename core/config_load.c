/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where settings come from: the file and the XRDMA_* variables. Raw system calls
 * only, since the C library's open and read may be hooked by the caller. See config.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "autoconf.h"
#include "config.h"
#include "config_priv.h"
#include "mem.h"
#include "shm_link.h"

/* Variables with the prefix that are no settings. Those of the test suite start XRDMA_TEST_. */
static const char *const env_reserved[] = {"XRDMA_CONF", "XRDMA_PRELOAD", "XRDMA_BUILD", "XRDMA_MODULE_DIR",
					   XR_CONFIG_TOLD};

static const char *env_get(char *const *envp, const char *name)
{
	size_t len = strlen(name);

	for (; envp && *envp; envp++)
		if (!strncmp(*envp, name, len) && (*envp)[len] == '=')
			return *envp + len + 1;
	return NULL;
}

/* Nearest setting to a variable's name, as a key name; NULL when none is near. */
static const char *env_suggest(const char *name)
{
	char word[32];
	size_t i;

	name += strlen(XR_CONFIG_ENV_PREFIX);
	for (i = 0; name[i] && i < sizeof(word) - 1; i++)
		word[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] | 0x20 : name[i]);
	word[i] = '\0';
	return xr_config_suggest(word);
}

static int env_find(const char *name)
{
	for (int i = 0; i < XR_KEY_COUNT; i++)
		if (!strcmp(name, xr_config_keys[i].env))
			return i;
	return -ENOENT;
}

static bool env_is_reserved(const char *name)
{
	for (size_t i = 0; i < XR_ARRAY_LEN(env_reserved); i++)
		if (!strcmp(name, env_reserved[i]))
			return true;
	return !strncmp(name, "XRDMA_TEST_", 11);
}

void xr_config_environment(struct xr_config *cfg, char *const *envp, xr_config_warn_fn fn, void *arg)
{
	const struct xr_warner w = {cfg, fn, arg, "environment", 0};
	bool seen[XR_KEY_COUNT] = {false};

	for (; envp && *envp; envp++) {
		const char *eq = strchr(*envp, '='), *near;
		char name[48];
		size_t len;
		int id;

		if (strncmp(*envp, XR_CONFIG_ENV_PREFIX, strlen(XR_CONFIG_ENV_PREFIX)) || !eq)
			continue;
		len = (size_t)(eq - *envp);
		if (len >= sizeof(name))
			len = sizeof(name) - 1;
		memcpy(name, *envp, len);
		name[len] = '\0';
		id = env_find(name);
		if (id >= 0) {
			if (!seen[id]) /* the first one counts, as for getenv */
				xr_config_set(cfg, xr_config_keys[id].name, eq + 1, XR_ORIGIN_ENV,
					      name, 0, fn, arg);
			seen[id] = true;
			continue;
		}
		if (env_is_reserved(name))
			continue;
		near = env_suggest(name);
		if (near)
			xr_config_warn(&w, "unknown variable %s; did you mean %s?", name,
				       xr_config_keys[xr_config_key_find(near)].env);
		else
			xr_config_warn(&w, "unknown variable %s", name);
	}
}

/* The file that was asked for; an empty name asks for none. */
static const char *env_path(char *const *envp)
{
	const char *env = env_get(envp, "XRDMA_CONF");

	return env && *env ? env : NULL;
}

const char *xr_config_path(const char *path, char *const *envp)
{
	const char *env = env_path(envp);

	if (env)
		return env;
	return path ? path : XR_SYSCONFDIR "/xrdma/xrdma.conf";
}

/*
 * The whole file, one byte more than XR_CONFIG_FILE_MAX at most, into a mapping that
 * the caller unmaps (XR_CONFIG_FILE_MAX + 1 bytes). Length or -errno.
 */
static long read_file(const char *path, char **text)
{
	const size_t room = XR_CONFIG_FILE_MAX + 1;
	struct stat st;
	size_t len = 0;
	char *buf;
	long n;
	int fd;

	/* O_NONBLOCK: a FIFO must not stop the program */
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
			  0);
	if (fd < 0)
		return fd;
	n = xr_sys4(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH);
	if (!n && !S_ISREG(st.st_mode))
		n = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	if (n)
		goto close;
	buf = xr_map_private(room);
	if (!buf) {
		n = -ENOMEM;
		goto close;
	}
	do {
		n = xr_sys3(SYS_read, fd, buf + len, room - len);
		if (n > 0)
			len += (size_t)n;
	} while ((n > 0 && len < room) || n == -EINTR);
	if (n < 0) {
		xr_unmap(buf, room);
		goto close;
	}
	*text = buf;
	n = (long)len;
close:
	xr_sys1(SYS_close, fd);
	return n;
}

const char *xr_config_place(const char *const *option, const char *where)
{
	int id = option ? env_find(where) : -ENOENT;

	return id >= 0 && option[id] ? option[id] : where;
}

/* Each of them: a mistake that is not told of is not found. */
static void log_warning(void *arg, const char *where, unsigned int line, const char *msg)
{
	where = xr_config_place(arg, where);
	if (xr_log_threshold < XR_LOG_WARN)
		return;
	if (line)
		xr_log_write(NULL, XR_LOG_WARN, "%s:%u: %s", where, line, msg);
	else
		xr_log_write(NULL, XR_LOG_WARN, "%s: %s", where, msg);
}

static void digest_warning(void *arg, const char *where, unsigned int line, const char *msg)
{
	uint64_t *digest = arg, key[2] = {*digest, line};

	key[0] = xr_siphash(key, where, strlen(where));
	*digest = xr_siphash(key, msg, strlen(msg));
}

/* The text of an environment, as /proc has it, holds this "NAME=value". */
static bool has_entry(const char *text, size_t len, const char *entry)
{
	size_t want = strlen(entry) + 1;

	for (const char *p = text; (p = memmem(p, len - (size_t)(p - text), entry, want)); p++)
		if (p == text || !p[-1])
			return true;
	return false;
}

/*
 * Does the parent run with the same settings under the same object? Then it has told of the
 * mistakes: a program started from a shell is not the first, those that it starts are not either.
 */
static bool parent_told(char *const *envp)
{
	char path[40], *text = NULL;
	const char *preload = env_get(envp, "LD_PRELOAD");
	bool same = preload && *preload;
	long len;

	xr_snprintf(path, sizeof(path), "/proc/%d/environ", (int)xr_sys0(SYS_getppid));
	len = same ? read_file(path, &text) : -ENOENT;
	if (len < 0)
		return false;
	for (; *envp && same; envp++)
		if (!strncmp(*envp, XR_CONFIG_ENV_PREFIX, strlen(XR_CONFIG_ENV_PREFIX)) ||
		    !strncmp(*envp, "LD_PRELOAD=", 11))
			same = has_entry(text, (size_t)len, *envp);
	xr_unmap(text, XR_CONFIG_FILE_MAX + 1);
	return same;
}

static bool is_told(const struct xr_config *cfg, char *const *envp)
{
	const char *told = env_get(envp, XR_CONFIG_TOLD);
	char mine[20];

	if (!told)
		return envp && parent_told(envp);
	xr_snprintf(mine, sizeof(mine), "%016lx", (unsigned long)cfg->digest);
	return !strcmp(told, mine);
}

static void normalise(struct xr_config *cfg)
{
	uint64_t slots = 1;

	while (slots < cfg->ring_slots)
		slots *= 2;
	cfg->ring_slots = slots;
}

static const char *error_text(long err)
{
	switch (err) {
	case -EISDIR:
	case -EINVAL:
		return "is not a regular file";
	default:
		return xr_error_text((int)err);
	}
}

/* Can lines be appended to the log file? Asked, not tried: nothing is made, no reader woken. */
static long log_file_error(const struct xr_config *cfg)
{
	char dir[XR_CONFIG_STR];
	struct stat st;
	char *slash;
	long err;

	if (!cfg->log_file[0])
		return 0;
	err = xr_sys3(SYS_faccessat, AT_FDCWD, cfg->log_file, W_OK);
	if (!err && !xr_sys4(SYS_newfstatat, AT_FDCWD, cfg->log_file, &st, 0) && S_ISDIR(st.st_mode))
		return -EISDIR;
	if (err != -ENOENT)
		return err;
	strcpy(dir, cfg->log_file);
	slash = strrchr(dir, '/');
	slash[slash == dir] = '\0';
	return xr_sys3(SYS_faccessat, AT_FDCWD, dir, W_OK | X_OK);
}

static void check_log_file(struct xr_config *cfg, const char *path, xr_config_warn_fn fn, void *arg)
{
	bool file = cfg->origin[XR_KEY_LOG_FILE] == XR_ORIGIN_FILE;
	const struct xr_warner w = {cfg, fn, arg, file ? path : xr_config_keys[XR_KEY_LOG_FILE].env,
				    file ? cfg->origin_line[XR_KEY_LOG_FILE] : 0};
	long err = log_file_error(cfg);

	if (err)
		xr_config_warn(&w, "log_file: '%.200s' cannot be written: %s; lines go to standard error",
			       cfg->log_file, xr_error_text((int)err));
}

/* 0 is a wish; what is too little for anything is a mistake, in a unit for one. */
static void check_memory(struct xr_config *cfg, const char *path, xr_config_warn_fn fn, void *arg)
{
	bool file = cfg->origin[XR_KEY_MAX_MEMORY] == XR_ORIGIN_FILE;
	const struct xr_warner w = {cfg, fn, arg, file ? path : xr_config_keys[XR_KEY_MAX_MEMORY].env,
				    file ? cfg->origin_line[XR_KEY_MAX_MEMORY] : 0};
	char value[XR_CONFIG_STR];

	if (!cfg->max_memory || cfg->max_memory >= XR_ARENA_MIN)
		return;
	xr_config_value(cfg, XR_KEY_MAX_MEMORY, value, sizeof(value));
	xr_config_warn(&w, "max_memory: %s is less than any segment takes (1M): all connections stay on TCP", value);
}

static void apply(struct xr_config *cfg, const char *path, const char *text, long len,
		  char *const *envp, xr_config_warn_fn fn, void *arg)
{
	const struct xr_warner w = {cfg, fn, arg, path, 0};

	xr_config_defaults(cfg);
	if (len >= 0)
		xr_config_parse(cfg, text, (size_t)len, path, fn, arg);
	else if (len != -ENOENT || env_path(envp))
		xr_config_warn(&w, "not read: %s", error_text(len));
	xr_config_environment(cfg, envp, fn, arg);
	check_log_file(cfg, path, fn, arg);
	check_memory(cfg, path, fn, arg);
	normalise(cfg);
}

int xr_config_load(struct xr_config *cfg, const char *path, char *const *envp, xr_config_warn_fn fn,
		   void *arg)
{
	uint64_t digest = 0;
	char *text = NULL;
	long len;

	if (getauxval(AT_SECURE))
		envp = NULL;
	path = xr_config_path(path, envp);
	len = read_file(path, &text);
	if (!fn) {
		/* once in silence, to learn where warnings go and whether they are wanted */
		apply(cfg, path, text, len, envp, digest_warning, &digest);
		cfg->digest = digest;
		xr_log_init((enum xr_log_level)cfg->log_level,
			    log_file_error(cfg) ? "" : cfg->log_file);
		fn = cfg->warnings && !is_told(cfg, envp) ? log_warning : NULL;
	}
	if (fn) {
		apply(cfg, path, text, len, envp, fn, arg);
		cfg->digest = digest;
	}
	if (text)
		xr_unmap(text, XR_CONFIG_FILE_MAX + 1);
	return (int)cfg->warnings;
}
