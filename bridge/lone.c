/* SPDX-License-Identifier: BSD-2-Clause */
/* Who else may have a local address and port, see lone.h. */
#include "lone.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "log.h"
#include "mem.h"

#define LONE_WAIT_US	200000	/* the kernel answers within the call that asks */

/*
 * Sockets that have a connection, or are about to.  Not those in TIME_WAIT: the other end of such a one has seen
 * the end of the stream, and connections that have do not move.
 */
#define LONE_STATES	(~(1u << TCP_LISTEN | 1u << TCP_CLOSE | 1u << TCP_TIME_WAIT))

/* ---- sockets ------------------------------------------------------------------ */

struct lone_seen {
	uint32_t own, others;
};

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

/* Addresses as in a tuple, where IPv4 is four bytes and zeros, whatever family the socket has. */
static uint16_t lone_addr(const struct inet_diag_msg *m, const __be32 from[4], uint8_t to[16])
{
	memset(to, 0, 16);
	if (m->idiag_family == AF_INET) {
		memcpy(to, from, 4);
		return AF_INET;
	}
	if (!memcmp(from, mapped, sizeof(mapped))) {
		memcpy(to, (const uint8_t *)from + 12, 4);
		return AF_INET;
	}
	memcpy(to, from, 16);
	return AF_INET6;
}

static void lone_count(const struct inet_diag_msg *m, const struct xr_tuple *own, struct lone_seen *seen)
{
	struct xr_tuple t;

	memset(&t, 0, sizeof(t));
	lone_addr(m, m->id.idiag_dst, t.peer);
	t.family = lone_addr(m, m->id.idiag_src, t.local);
	t.lport = m->id.idiag_sport;
	t.pport = m->id.idiag_dport;
	if (t.family != own->family || t.lport != own->lport || memcmp(t.local, own->local, 16))
		return;
	if (memcmp(&t, own, sizeof(t)))
		seen->others++;
	else
		seen->own++;
}

/* 1: the list is complete. */
static int lone_take(const uint8_t *buf, size_t n, uint32_t seq, const struct xr_tuple *own, struct lone_seen *seen)
{
	struct nlmsghdr h;
	size_t at = 0;

	while (n - at >= sizeof(h)) {
		memcpy(&h, buf + at, sizeof(h));
		if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > n - at || h.nlmsg_seq != seq)
			return -EBADMSG;
		if (h.nlmsg_type == NLMSG_DONE)
			return h.nlmsg_flags & NLM_F_DUMP_INTR ? -EAGAIN : 1;
		if (h.nlmsg_type == NLMSG_ERROR) {
			struct nlmsgerr e;

			if (h.nlmsg_len < NLMSG_HDRLEN + sizeof(e))
				return -EBADMSG;
			memcpy(&e, buf + at + NLMSG_HDRLEN, sizeof(e));
			return e.error < 0 ? e.error : -EBADMSG;
		}
		if (h.nlmsg_type == SOCK_DIAG_BY_FAMILY) {
			struct inet_diag_msg m;

			if (h.nlmsg_len < NLMSG_HDRLEN + sizeof(m))
				return -EBADMSG;
			memcpy(&m, buf + at + NLMSG_HDRLEN, sizeof(m));
			lone_count(&m, own, seen);
		}
		at += NLMSG_ALIGN(h.nlmsg_len);
		if (at > n)
			break;
	}
	return 0;
}

static int lone_list(int fd, uint8_t family, uint32_t seq, const struct xr_tuple *own, struct lone_seen *seen)
{
	static const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct {
		struct nlmsghdr h;
		struct inet_diag_req_v2 r;
	} q = {
		.h = { sizeof(q), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, seq, 0 },
		.r = { .sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = LONE_STATES,
		       .id = { .idiag_sport = own->lport } },
	};
	size_t size = 32768;
	uint8_t *buf;
	int r = 0;

	if (sendto(fd, &q, sizeof(q), 0, (const struct sockaddr *)&kernel, sizeof(kernel)) != (ssize_t)sizeof(q))
		return -errno;
	buf = malloc(size);
	if (!buf)
		return -ENOMEM;
	while (!r) {
		struct sockaddr_nl from;
		socklen_t len = sizeof(from);
		ssize_t n = recvfrom(fd, buf, size, MSG_TRUNC, (struct sockaddr *)&from, &len);

		if (n < 0)
			r = -errno;
		else if (from.nl_pid)
			continue;	/* not from the kernel */
		else
			r = (size_t)n > size ? -EMSGSIZE : lone_take(buf, (size_t)n, seq, own, seen);
	}
	free(buf);
	return r < 0 ? r : 0;
}

int lone_socket(const struct xr_tuple *own)
{
	const struct timeval tv = { .tv_usec = LONE_WAIT_US };
	struct lone_seen seen = { 0, 0 };
	uint32_t seq = 0;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), r;

	if (fd < 0)
		return -errno;
	r = setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) ? -errno : xr_random(&seq, sizeof(seq));
	/* IPv4 connections of IPv6 sockets are in the list of those */
	if (!r)
		r = lone_list(fd, AF_INET6, seq, own, &seen);
	if (!r && own->family == AF_INET)
		r = lone_list(fd, AF_INET, seq + 1, own, &seen);
	close(fd);
	if (r)
		return r;
	/* one that has itself been closed, or is in another namespace than this thread */
	if (seen.own != 1 && !seen.others)
		return -ENOENT;
	return seen.others ? -EADDRINUSE : 0;
}

/* ---- namespace ----------------------------------------------------------------- */

/* The number in a file, -ENOENT: no such file. */
static int lone_number(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC), r;
	char text[24];
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, text, sizeof(text) - 1);
	r = n < 0 ? -errno : 0;
	close(fd);
	if (n <= 0)
		return r ? r : -EIO;
	text[n] = 0;
	return text[0] == '0' && (text[1] == '\n' || !text[1]) ? 0 : 1;
}

/* Any interface: what it receives may go on. */
static int lone_forwards(int root, const char *conf)
{
	int fd = openat(root, conf, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	struct dirent *e;
	char name[300];
	DIR *d;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	d = fdopendir(fd);
	if (!d) {
		r = -errno;
		close(fd);
		return r;
	}
	while (!r && (e = readdir(d)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		xr_snprintf(name, sizeof(name), "%s/forwarding", e->d_name);
		r = lone_number(fd, name);
		/* an interface that has just gone */
		if (r == -ENOENT)
			r = 0;
	}
	closedir(d);
	return r;
}

int lone_namespace(const char *root)
{
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	if (fd < 0)
		return -errno;
	/* where connections are tracked this one is, too: the number is not 0 */
	r = lone_number(fd, "netfilter/nf_conntrack_count");
	if (r == -ENOENT)
		r = 0;
	if (!r)
		r = lone_forwards(fd, "ipv4/conf");
	if (!r)
		r = lone_forwards(fd, "ipv6/conf");
	close(fd);
	return r > 0 ? -EPERM : r;
}

int lone_check(const struct xr_tuple *own, int trust_namespace)
{
	int r = trust_namespace ? 0 : lone_namespace("/proc/sys/net");

	return r ? r : lone_socket(own);
}
