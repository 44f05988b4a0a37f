/* SPDX-License-Identifier: BSD-2-Clause */
/* What the kernel here grants, tried rather than guessed; for xrdma-run --check. */
#include "probe.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/shm_link.h"
#include "core/shm_ring.h"
#include "diag.h"
#include "target.h"

/* What the preload object takes per connection beside the ring's entries: flow, table, statistics. */
#define PER_FLOW (640 + 64 + sizeof(struct xr_stats_flow))

#define FDS_WORK 6u /* with so many numbers to itself xrdma meets a peer */

int xr_probe_memory(uint64_t size, uint64_t flows, uint32_t slots)
{
	size_t table = flows * (PER_FLOW + slots * sizeof(struct xr_shm_meta));
	struct xr_shm_arena own, peer;
	void *p = mmap(NULL, table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		       -1, 0);
	int err = p == MAP_FAILED ? -errno : xr_shm_arena_create(&own, size, slots);

	if (!err) {
		/* the peer's, in its stead */
		err = xr_shm_arena_create(&peer, size, slots);
		if (!err)
			xr_shm_arena_destroy(&peer);
		xr_shm_arena_destroy(&own);
	}
	if (p != MAP_FAILED)
		munmap(p, table);
	return err;
}

int xr_probe_abstract(void)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int err = 0, server, client;
	socklen_t len;

	server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			  (size_t)snprintf(sun.sun_path + 1, sizeof(sun.sun_path) - 1,
					   "xrdma-check-%d", (int)getpid()));
	if (server < 0 || client < 0 || bind(server, (struct sockaddr *)&sun, len) ||
	    listen(server, 1) || connect(client, (struct sockaddr *)&sun, len))
		err = -errno;
	if (server >= 0)
		close(server);
	if (client >= 0)
		close(client);
	return err;
}

int xr_probe_path_fd(void)
{
	struct stat a, b;
	char name[40];
	int err = 0, path, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	path = open(name, O_PATH | O_CLOEXEC);
	if (path < 0 || fstat(path, &a) || fstat(fd, &b))
		err = -errno;
	else if (a.st_ino != b.st_ino || a.st_dev != b.st_dev)
		err = -ENOENT;
	if (path >= 0)
		close(path);
	close(fd);
	return err;
}

int xr_probe_inet_diag(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in local, peer;
	struct xr_stats_addr from, to;
	socklen_t len = sizeof(sin);
	struct xr_diag diag;
	struct stat st;
	int err = 0, listener, client;

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || client < 0 || bind(listener, (struct sockaddr *)&sin, len) ||
	    listen(listener, 1) || getsockname(listener, (struct sockaddr *)&sin, &len) ||
	    connect(client, (struct sockaddr *)&sin, len) ||
	    getsockname(client, (struct sockaddr *)&local, &len) ||
	    getpeername(client, (struct sockaddr *)&peer, &len) || fstat(client, &st)) {
		err = -errno;
	} else {
		xr_stats_addr_set(&from, (struct sockaddr *)&local);
		xr_stats_addr_set(&to, (struct sockaddr *)&peer);
		err = xr_diag_find(0, &from, &to, &diag);
		if (!err && diag.inode != (uint32_t)st.st_ino)
			err = -ENOENT;
	}
	if (listener >= 0)
		close(listener);
	if (client >= 0)
		close(client);
	return err;
}

/* A soft limit below the hard one is lifted for the moment that it takes to get a number above it. */
bool xr_probe_fds_scarce(uint64_t soft, uint64_t hard)
{
	return soft < XR_FD_SCARCE && hard < soft + FDS_WORK;
}

/* As preload/rundir.c has it; the name that an end makes there has to be possible, too. */
const char *xr_probe_run_dir(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return strerror(errno);
	if (!S_ISDIR(st.st_mode))
		return strerror(ENOTDIR);
	if ((st.st_mode & S_IWOTH) || (st.st_uid && st.st_uid != geteuid()))
		return "others than root, the user and a group may write there";
	return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) ? strerror(errno) : NULL;
}

bool xr_probe_is_local(const struct sockaddr *sa, socklen_t len)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} any;
	bool local;
	int fd;

	if (len > sizeof(any))
		return false;
	memcpy(&any, sa, len);
	any.in.sin_port = 0; /* the same place in both families */
	fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	/* only addresses of this host can be bound */
	local = !bind(fd, &any.sa, len);
	close(fd);
	return local;
}

/* Inode of a socket that listens for sa according to one of the /proc/net tables; 0 none. */
static unsigned long listen_inode(const char *table, const struct sockaddr *sa)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;
	unsigned int want = ntohs(in6->sin6_port), port, state;
	unsigned long inode, found = 0;
	char line[512], addr[40];
	bool any = false;
	FILE *f = fopen(table, "re");

	if (!f)
		return 0;
	while (!found && fgets(line, sizeof(line), f)) {
		char mine[40] = "";

		if (sscanf(line, " %*d: %39[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %lu", addr, &port,
			   &state, &inode) != 4 ||
		    state != TCP_LISTEN || port != want)
			continue;
		any = strspn(addr, "0") == strlen(addr);
		if (sa->sa_family == AF_INET) {
			uint32_t a = ((const struct sockaddr_in *)sa)->sin_addr.s_addr;

			snprintf(mine, sizeof(mine), "%08X", a);
		} else {
			for (int i = 0; i < 4; i++)
				snprintf(mine + 8 * i, sizeof(mine) - 8 * (size_t)i, "%08X",
					 in6->sin6_addr.s6_addr32[i]);
		}
		if (any || !strcmp(addr, mine))
			found = inode;
	}
	fclose(f);
	return found;
}

/* Does /proc/PID/fd hold this socket? */
static bool holds_socket(const char *pid, unsigned long inode)
{
	char path[300], want[40], link[64];
	struct dirent *de;
	bool found = false;
	ssize_t n;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	snprintf(want, sizeof(want), "socket:[%lu]", inode);
	dir = opendir(path);
	while (dir && !found && (de = readdir(dir))) {
		n = readlinkat(dirfd(dir), de->d_name, link, sizeof(link) - 1);
		link[n > 0 ? n : 0] = '\0';
		found = !strcmp(link, want);
	}
	if (dir)
		closedir(dir);
	return found;
}

/* The kernel noted in the auxiliary vector where it left the name that it was given. */
static void read_started_as(pid_t pid, char as[PATH_MAX])
{
	unsigned long aux[128] = {0};
	struct iovec here = {as, PATH_MAX - 1}, there = {NULL, 0};
	char path[40];
	ssize_t n;
	FILE *f;

	*as = '\0';
	snprintf(path, sizeof(path), "/proc/%d/auxv", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return;
	n = (ssize_t)fread(aux, 2 * sizeof(*aux), XR_ARRAY_LEN(aux) / 2, f);
	fclose(f);
	for (ssize_t i = 0; i < n; i++)
		if (aux[2 * i] == AT_EXECFN)
			there.iov_base = (void *)aux[2 * i + 1];
	/* it lies at the end of the stack: no further than to the end of a page, which may be the last */
	while (there.iov_base && here.iov_len) {
		size_t page = 4096 - ((uintptr_t)there.iov_base & 4095);

		there.iov_len = page < here.iov_len ? page : here.iov_len;
		n = process_vm_readv(pid, &here, 1, &there, 1, 0);
		if (n <= 0 || memchr(here.iov_base, '\0', (size_t)n))
			break;
		here.iov_base = (char *)here.iov_base + n;
		here.iov_len -= (size_t)n;
		there.iov_base = (char *)there.iov_base + n;
	}
}

static void look_at_process(const char *pid, struct xr_listener *who)
{
	char path[300], line[4400];
	struct stat st;
	ssize_t n;
	FILE *f;

	who->pid = (pid_t)strtol(pid, NULL, 10);
	snprintf(path, sizeof(path), "/proc/%s", pid);
	if (!stat(path, &st))
		who->uid = st.st_uid;
	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	f = fopen(path, "re");
	if (f) {
		if (fgets(who->program, sizeof(who->program), f))
			who->program[strcspn(who->program, "\n")] = '\0';
		fclose(f);
	}
	snprintf(path, sizeof(path), "/proc/%s/exe", pid);
	n = readlink(path, who->exe, sizeof(who->exe) - 1);
	who->exe[n > 0 ? n : 0] = '\0';
	read_started_as(who->pid, who->as);
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	f = fopen(path, "re");
	if (!f)
		return;
	who->known = true;
	while (!who->preloaded && fgets(line, sizeof(line), f))
		who->preloaded = strstr(line, "/" XR_PRELOAD_NAME) != NULL;
	fclose(f);
}

int xr_probe_listener(const struct sockaddr *sa, struct xr_listener *who)
{
	unsigned long inode = 0;
	struct dirent *de;
	DIR *proc;

	memset(who, 0, sizeof(*who));
	if (sa->sa_family == AF_INET)
		inode = listen_inode("/proc/net/tcp", sa);
	if (!inode)
		inode = listen_inode("/proc/net/tcp6", sa);
	if (!inode)
		return -ENOENT;
	proc = opendir("/proc");
	while (proc && !who->pid && (de = readdir(proc)))
		if (de->d_name[0] >= '0' && de->d_name[0] <= '9' && holds_socket(de->d_name, inode))
			look_at_process(de->d_name, who);
	if (proc)
		closedir(proc);
	return 0;
}
