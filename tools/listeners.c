/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Listening sockets of programs under xrdma. A listener has no carrier and its program need
 * not publish anything yet, so they are found from the outside: sockets that the kernel
 * lists as listening, held by processes that have the preload object mapped.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "stat.h"
#include "target.h"

struct listener {
	unsigned long inode;
	struct xr_stats_addr local;
};

struct listeners {
	struct listener *list; /* malloc'd, sorted by inode */
	size_t n;
};

static int by_inode(const void *a, const void *b)
{
	const struct listener *x = a, *y = b;

	return (x->inode > y->inode) - (x->inode < y->inode);
}

/* Adds what one of the tables under /proc/net says. A table that is not there is empty. */
static int read_table(const char *path, uint16_t family, struct listeners *all)
{
	char line[512], addr[40];
	unsigned int port, state;
	FILE *f = fopen(path, "re");
	int err = 0;

	while (f && !err && fgets(line, sizeof(line), f)) {
		struct listener l = {.local.family = family}, *more;

		if (sscanf(line, " %*d: %39[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %lu", addr, &port,
			   &state, &l.inode) != 4 ||
		    state != TCP_LISTEN || strlen(addr) != (family == AF_INET ? 8 : 32))
			continue;
		/* words of 32 bits, each printed as a number of this machine */
		for (int i = 0; addr[8 * i]; i++) {
			char word[9] = "";
			uint32_t v;

			memcpy(word, addr + 8 * i, 8);
			v = (uint32_t)strtoul(word, NULL, 16);
			memcpy(l.local.addr + 4 * i, &v, 4);
		}
		l.local.port = (uint16_t)port;
		more = reallocarray(all->list, all->n + 1, sizeof(*more));
		if (!more) {
			err = -ENOMEM;
			continue;
		}
		all->list = more;
		all->list[all->n++] = l;
	}
	if (f)
		fclose(f);
	return err;
}

static bool under_xrdma(const char *pid)
{
	char path[40], line[4400];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.16s/maps", pid);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, "/" XR_PRELOAD_NAME) != NULL;
	if (f)
		fclose(f);
	return found;
}

static void read_name(const char *pid, char *name, size_t size)
{
	char path[40];
	FILE *f;

	*name = '\0';
	snprintf(path, sizeof(path), "/proc/%.16s/comm", pid);
	f = fopen(path, "re");
	if (f) {
		if (!fgets(name, (int)size, f))
			*name = '\0';
		fclose(f);
	}
	name[strcspn(name, "\n")] = '\0';
	for (char *p = name; *p; p++)
		if (*p < ' ' || *p >= 0x7f)
			*p = '?';
}

size_t xr_stat_programs(const struct xr_stat_options *opt)
{
	DIR *proc = opendir("/proc");
	struct dirent *de;
	size_t n = 0;

	while (proc && (de = readdir(proc))) {
		char *end, name[64];
		long pid = strtol(de->d_name, &end, 10);

		if (*end || pid <= 0)
			continue;
		read_name(de->d_name, name, sizeof(name));
		n += (!opt->program || xr_glob(opt->program, name)) && under_xrdma(de->d_name);
	}
	if (proc)
		closedir(proc);
	return n;
}

/* The entry of a process in the set, made if it has published nothing. */
static struct xr_segment *segment_of(struct xr_stat_set *set, const char *pid)
{
	struct xr_segment *seg;
	pid_t n = (pid_t)strtol(pid, NULL, 10);

	for (size_t i = 0; i < set->n; i++)
		if (set->seg[i].pid == n && set->seg[i].life == XR_SEGMENT_LIVE)
			return &set->seg[i];
	seg = reallocarray(set->seg, set->n + 1, sizeof(*seg));
	if (!seg)
		return NULL;
	set->seg = seg;
	seg += set->n++;
	memset(seg, 0, sizeof(*seg));
	seg->pid = n;
	read_name(pid, seg->program, sizeof(seg->program));
	return seg;
}

static int add_flow(struct xr_stat_set *set, const char *pid, int fd, const struct listener *l)
{
	struct xr_segment *seg = segment_of(set, pid);
	struct xr_segment_flow *f;

	if (!seg)
		return -ENOMEM;
	f = reallocarray(seg->flow, seg->n_flows + 1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	seg->flow = f;
	f += seg->n_flows++;
	memset(f, 0, sizeof(*f));
	f->id.state = XR_STATE_LISTEN;
	f->id.reason = XR_REASON_LISTENER;
	f->id.local = l->local;
	f->id.inode = l->inode;
	f->id.fd = fd;
	return 0;
}

/* Adds the listeners among the descriptors of one process. */
static int look_at(const char *pid, const struct listeners *all, struct xr_stat_set *set)
{
	char path[40], link[64];
	struct listener key;
	struct dirent *de;
	int err = 0, preloaded = -1;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%.16s/fd", pid);
	dir = opendir(path);
	while (dir && !err && preloaded && (de = readdir(dir))) {
		const struct listener *l;
		ssize_t n = readlinkat(dirfd(dir), de->d_name, link, sizeof(link) - 1);

		link[n > 0 ? n : 0] = '\0';
		if (sscanf(link, "socket:[%lu]", &key.inode) != 1)
			continue;
		l = bsearch(&key, all->list, all->n, sizeof(key), by_inode);
		if (!l)
			continue;
		if (preloaded < 0)
			preloaded = under_xrdma(pid);
		if (preloaded)
			err = add_flow(set, pid, atoi(de->d_name), l);
	}
	if (dir)
		closedir(dir);
	return err;
}

int xr_stat_add_listeners(const struct xr_stat_options *opt, struct xr_stat_set *set)
{
	struct listeners all = {0};
	struct dirent *de;
	DIR *proc;
	int err = read_table("/proc/net/tcp", AF_INET, &all);

	if (!err)
		err = read_table("/proc/net/tcp6", AF_INET6, &all);
	if (err || !all.n)
		goto free;
	qsort(all.list, all.n, sizeof(*all.list), by_inode);
	proc = opendir("/proc");
	while (proc && !err && (de = readdir(proc))) {
		char *end;
		long pid = strtol(de->d_name, &end, 10);

		if (!*end && pid > 0 && (!opt->pid || opt->pid == pid))
			err = look_at(de->d_name, &all, set);
	}
	if (proc)
		closedir(proc);
	/* the name was not known before */
	for (size_t i = 0; opt->program && i < set->n;) {
		if (xr_glob(opt->program, set->seg[i].program)) {
			i++;
			continue;
		}
		xr_segment_free(&set->seg[i]);
		set->seg[i] = set->seg[--set->n];
	}
free:
	free(all.list);
	return err;
}
