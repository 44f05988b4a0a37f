/* SPDX-License-Identifier: BSD-2-Clause */
/* What xrdma-run is asked to start, and whether anything can be preloaded into it. */
#include "autoconf.h"
#include "target.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/config.h"

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#else
#error "no ELF machine number for this architecture"
#endif

#define SCRIPT_DEPTH 5 /* more levels of #! than the kernel follows */

/* 0 if the file at path could be given to execve, as far as its mode says. */
static int executable(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (!S_ISREG(st.st_mode))
		return -EACCES;
	/* effective ids, as for execve; root too needs one x bit */
	if (faccessat(AT_FDCWD, path, X_OK, AT_EACCESS))
		return -errno;
	return 0;
}

int xr_target_find(const char *name, char path[PATH_MAX])
{
	char standard[256];
	const char *dirs = getenv("PATH"), *end;
	int err = -ENOENT, here;

	if (strlen(name) >= PATH_MAX)
		return -ENAMETOOLONG;
	if (strchr(name, '/')) {
		strcpy(path, name);
		return executable(path);
	}
	if (!*name)
		return -ENOENT;
	if (!dirs) {
		confstr(_CS_PATH, standard, sizeof(standard));
		dirs = standard;
	}
	for (;; dirs = end + 1) {
		end = strchrnul(dirs, ':');
		/* an empty entry is the current directory */
		if (snprintf(path, PATH_MAX, "%.*s%s%s", (int)(end - dirs), dirs,
			     end > dirs ? "/" : "./", name) < PATH_MAX) {
			here = executable(path);
			if (!here)
				return 0;
			/* go on, but remember that something of this name was there */
			if (here == -EACCES)
				err = here;
		}
		if (!*end)
			return err;
	}
}

static const char *elf_obstacle(int fd, const Elf64_Ehdr *eh, const char *path)
{
	static const char *const unreadable = "its ELF headers make no sense";
	const char *base = strrchr(path, '/');
	Elf64_Phdr ph;
	char interp[64] = "";

	base = base ? base + 1 : path;
	if (eh->e_ident[EI_CLASS] == ELFCLASS32)
		return "a 32-bit program, and the preload object is 64-bit";
	if (eh->e_ident[EI_CLASS] != ELFCLASS64 || eh->e_ident[EI_DATA] != ELFDATA2LSB ||
	    eh->e_machine != OUR_MACHINE)
		return "built for another machine";
	if (eh->e_phentsize != sizeof(ph))
		return unreadable;
	for (int i = 0; i < eh->e_phnum; i++) {
		if (pread(fd, &ph, sizeof(ph), (off_t)(eh->e_phoff + (size_t)i * sizeof(ph))) !=
		    sizeof(ph))
			return unreadable;
		if (ph.p_type != PT_INTERP)
			continue;
		if (pread(fd, interp, sizeof(interp) - 1, (off_t)ph.p_offset) <= 0)
			return unreadable;
		if (strstr(interp, "ld-musl"))
			return "linked with musl, and the preload object needs glibc";
		return NULL;
	}
	/* the loader itself has no interpreter and does honour LD_PRELOAD */
	if (!strncmp(base, "ld-linux", 8) || !strcmp(base, "ld.so"))
		return NULL;
	return "statically linked: nothing can be preloaded into it";
}

/* Would execve raise privileges, so that the loader ignores LD_PRELOAD? */
static const char *privilege_obstacle(int fd, const struct stat *st)
{
	struct statvfs fs;

	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return NULL;
	if (!fstatvfs(fd, &fs) && (fs.f_flag & ST_NOSUID))
		return NULL;
	if ((st->st_mode & S_ISUID) && st->st_uid != getuid())
		return "set-user-ID: the loader ignores LD_PRELOAD for it";
	if ((st->st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st->st_gid != getgid())
		return "set-group-ID: the loader ignores LD_PRELOAD for it";
	if (getuid() && fgetxattr(fd, "security.capability", NULL, 0) > 0)
		return "privileged by file capabilities: the loader ignores LD_PRELOAD for it";
	return NULL;
}

static const char *obstacle(const char *path, char *buf, size_t size, int depth)
{
	union {
		Elf64_Ehdr eh;
		char text[256];
	} head = {.text = ""};
	const char *why = NULL;
	struct stat st;
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0)
		return NULL;
	n = pread(fd, head.text, sizeof(head.text) - 1, 0);
	if (n < 0 || fstat(fd, &st)) {
		why = NULL;
	} else if (n >= (ssize_t)sizeof(head.eh) && !memcmp(head.text, ELFMAG, SELFMAG)) {
		why = privilege_obstacle(fd, &st);
		if (!why)
			why = elf_obstacle(fd, &head.eh, path);
	} else if (n > 2 && !memcmp(head.text, "#!", 2) && depth < SCRIPT_DEPTH) {
		char *interp = head.text + 2 + strspn(head.text + 2, " \t");

		interp[strcspn(interp, " \t\r\n")] = '\0';
		why = obstacle(interp, buf, size, depth + 1);
		if (why && why != buf) {
			snprintf(buf, size, "a script for %s, which is %s", interp, why);
			why = buf;
		}
	}
	close(fd);
	return why;
}

const char *xr_target_obstacle(const char *path, char *buf, size_t size)
{
	return obstacle(path, buf, size, 0);
}

/* What stands behind #!, to the blank; or the loader.  0, or -1: none. */
static int read_interpreter(const char *path, char *buf, size_t size)
{
	union {
		Elf64_Ehdr eh;
		char text[256];
	} head = {.text = ""};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), got = -1;
	ssize_t n = fd < 0 ? -1 : pread(fd, head.text, sizeof(head.text) - 1, 0);
	Elf64_Phdr ph;

	if (n > 2 && !memcmp(head.text, "#!", 2)) {
		const char *name = head.text + 2 + strspn(head.text + 2, " \t");

		/* as the kernel reads it: a carriage return belongs to the name */
		snprintf(buf, size, "%.*s", (int)strcspn(name, " \t\n"), name);
		got = 0;
	}
	if (n < (ssize_t)sizeof(head.eh) || memcmp(head.text, ELFMAG, SELFMAG))
		head.eh.e_phnum = 0;
	for (int i = 0; i < head.eh.e_phnum; i++) {
		if (pread(fd, &ph, sizeof(ph), (off_t)(head.eh.e_phoff + (size_t)i * sizeof(ph))) != sizeof(ph))
			break;
		if (ph.p_type != PT_INTERP)
			continue;
		n = pread(fd, buf, ph.p_filesz < size ? ph.p_filesz : size - 1, (off_t)ph.p_offset);
		buf[n > 0 ? n : 0] = '\0';
		got = n > 0 ? 0 : -1;
		break;
	}
	if (fd >= 0)
		close(fd);
	return got;
}

const char *xr_target_interpreter(const char *path, char *buf, size_t size, int *err)
{
	char at[PATH_MAX];

	snprintf(at, sizeof(at), "%s", path);
	for (int depth = 0; depth <= SCRIPT_DEPTH && !read_interpreter(at, buf, size); depth++) {
		*err = executable(buf);
		if (*err)
			return buf;
		snprintf(at, sizeof(at), "%s", buf);
	}
	return NULL;
}

/* What env(1) is told to start by the line of a script; NULL: there is more to it than can be followed here. */
static char *env_program(char *line)
{
	char *rest, *word = strtok_r(line, " \t", &rest);
	bool split = word && !strcmp(word, "-S");

	if (split || (word && !strcmp(word, "--split-string")))
		word = strtok_r(NULL, " \t", &rest);
	else if (word && !strncmp(word, "-S", 2))
		word += 2;
	while (word && strchr(word, '=') && *word != '-')
		word = strtok_r(NULL, " \t", &rest);
	return word && *word && *word != '-' && !strpbrk(word, "\"'\\$") ? word : NULL;
}

/* The line behind #!, without its end.  -1: it has none. */
static int script_line(const char *path, char *line, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	ssize_t n = fd < 0 ? -1 : pread(fd, line, size - 1, 0);

	if (fd >= 0)
		close(fd);
	line[n > 0 ? n : 0] = '\0';
	if (n < 3 || memcmp(line, "#!", 2))
		return n > 0 && memcmp(line, ELFMAG, n < SELFMAG ? (size_t)n : SELFMAG) ? -ENOEXEC : -1;
	line[strcspn(line, "\n")] = '\0';
	memmove(line, line + 2, strlen(line + 2) + 1);
	return 0;
}

/* The way to it without links and dots; it is not followed itself. */
static void plain_path(const char *path, char plain[PATH_MAX])
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	char way[PATH_MAX], *dir;

	snprintf(plain, PATH_MAX, "%s", path);
	if (xr_config_plain_path(path))
		return;
	snprintf(way, sizeof(way), "%.*s", (int)(base - path), path);
	dir = realpath(*way ? way : ".", NULL);
	if (dir && strlen(dir) + strlen(base) + 2 <= PATH_MAX)
		strcpy(stpcpy(stpcpy(plain, dir[1] ? dir : ""), "/"), base);
	free(dir);
}

void xr_target_seen(const char *path, char exe[PATH_MAX], char as[PATH_MAX])
{
	char at[PATH_MAX], line[256], found[PATH_MAX], *interp, *args, *name;

	plain_path(path, as);
	snprintf(at, sizeof(at), "%s", path);
	for (int depth = 0; depth <= SCRIPT_DEPTH; depth++) {
		int err = script_line(at, line, sizeof(line));

		if (err == -ENOEXEC) { /* execvp(3), and xrdma-run, take it for one of the shell */
			strcpy(as, strcpy(at, "/bin/sh"));
			continue;
		}
		if (err)
			break;
		interp = line + strspn(line, " \t");
		args = interp + strcspn(interp, " \t");
		if (*args)
			*args++ = '\0';
		snprintf(at, sizeof(at), "%s", interp);
		name = strrchr(interp, '/');
		if (strcmp(name ? name + 1 : interp, "env"))
			continue;
		name = env_program(args);
		if (!name || xr_target_find(name, found)) {
			*exe = *as = '\0';
			return;
		}
		strcpy(at, found);
		plain_path(found, as);
	}
	if (!realpath(at, exe))
		*exe = '\0';
}

const char *xr_target_object_obstacle(const char *path)
{
	const char *why = NULL;
	Elf64_Ehdr eh;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return strerror(errno);
	if (strpbrk(path, ": "))
		why = "LD_PRELOAD cannot hold a name with a blank or a colon";
	else if (pread(fd, &eh, sizeof(eh), 0) != sizeof(eh) || memcmp(eh.e_ident, ELFMAG, SELFMAG) ||
	    eh.e_type != ET_DYN)
		why = "not a shared object";
	else if (eh.e_ident[EI_CLASS] != ELFCLASS64 || eh.e_machine != OUR_MACHINE)
		why = "built for another machine";
	close(fd);
	return why;
}

/* ../.libs/ of the running program, when that is the tree it was built in. */
static bool build_tree(char path[PATH_MAX])
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash = NULL;

	if (n <= 0)
		return false;
	self[n] = '\0';
	for (int i = 0; i < 2; i++) {
		slash = strrchr(self, '/');
		if (!slash)
			return false;
		*slash = '\0';
	}
	if (snprintf(path, PATH_MAX, "%s/libxrdma_preload.la", self) >= PATH_MAX ||
	    access(path, F_OK))
		return false;
	return snprintf(path, PATH_MAX, "%s/.libs/" XR_PRELOAD_NAME, self) < PATH_MAX &&
	       !access(path, F_OK);
}

int xr_target_preload(const char *explicit, char path[PATH_MAX])
{
	if (!explicit || !*explicit)
		explicit = getenv("XRDMA_PRELOAD");
	if (explicit && *explicit) {
		/* the program may run elsewhere: LD_PRELOAD needs an absolute name */
		if (realpath(explicit, path))
			return 0;
		snprintf(path, PATH_MAX, "%s", explicit);
		return -errno;
	}
	if (build_tree(path))
		return 0;
	snprintf(path, PATH_MAX, "%s", XR_LIBDIR "/" XR_PRELOAD_NAME);
	return access(path, F_OK) ? -errno : 0;
}

char *xr_target_ld_preload(const char *object, const char *old)
{
	static const char separators[] = ": ";
	size_t size = strlen(object) + (old ? strlen(old) : 0) + 2;
	char *value = malloc(size), *end;

	if (!value)
		return NULL;
	end = stpcpy(value, object);
	while (old && *(old += strspn(old, separators))) {
		size_t len = strcspn(old, separators);
		const char *base = memrchr(old, '/', len);

		base = base ? base + 1 : old;
		if (strncmp(base, XR_PRELOAD_NAME, (size_t)(old + len - base)) ||
		    (size_t)(old + len - base) != strlen(XR_PRELOAD_NAME)) {
			*end++ = ':';
			end = mempcpy(end, old, len);
		}
		old += len;
	}
	*end = '\0';
	return value;
}
