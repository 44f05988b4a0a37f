/* SPDX-License-Identifier: BSD-2-Clause */
#include "diag.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* TCP_* states; their header and linux/tcp.h exclude each other */
#define FIN_SENT     (1u << 4 | 1u << 5 | 1u << 6 | 1u << 9 | 1u << 11)
#define FIN_RECEIVED (1u << 6 | 1u << 8 | 1u << 9 | 1u << 11)

/* A FIN counts as a byte, in either direction; in the receive queue until it is read. */
static void take_counts(const struct inet_diag_msg *msg, const struct tcp_info *ti, struct xr_diag *out)
{
	uint64_t fin_sent = FIN_SENT >> msg->idiag_state & 1;
	bool fin_read = !msg->idiag_rqueue && (FIN_RECEIVED >> msg->idiag_state & 1);

	out->counted = true;
	out->written = ti->tcpi_bytes_sent - ti->tcpi_bytes_retrans + ti->tcpi_notsent_bytes - fin_sent;
	out->confirmed = ti->tcpi_bytes_acked + msg->idiag_wqueue - fin_sent;
	out->read = ti->tcpi_bytes_received - msg->idiag_rqueue - fin_read;
}

static int take(const struct nlmsghdr *nlh, size_t n, struct xr_diag *out)
{
	const struct inet_diag_msg *found = NLMSG_DATA(nlh);
	const struct nlmsgerr *error = NLMSG_DATA(nlh);
	const struct rtattr *a = (const struct rtattr *)(found + 1);
	int left = (int)n - (int)NLMSG_LENGTH(sizeof(*found));

	if (n >= NLMSG_LENGTH(sizeof(*error)) && nlh->nlmsg_type == NLMSG_ERROR)
		return error->error ? error->error : -EPROTO;
	if (left < 0)
		return -EPROTO;
	memset(out, 0, sizeof(*out));
	out->inode = found->idiag_inode;
	out->rqueue = found->idiag_rqueue;
	out->wqueue = found->idiag_wqueue;
	for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		struct tcp_info ti;

		if (a->rta_type != INET_DIAG_INFO ||
		    RTA_PAYLOAD(a) < offsetof(struct tcp_info, tcpi_bytes_retrans) + 8)
			continue;
		memcpy(&ti, RTA_DATA(a), RTA_PAYLOAD(a) < sizeof(ti) ? RTA_PAYLOAD(a) : sizeof(ti));
		take_counts(found, &ti, out);
	}
	return 0;
}

static int query_socket(void)
{
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

	return fd < 0 ? -errno : fd;
}

/* A socket belongs to the network namespace it was made in, for good. */
static int query_socket_in(int theirs)
{
	int ours = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), fd;

	if (ours < 0)
		return -errno;
	fd = setns(theirs, CLONE_NEWNET) ? -errno : query_socket();
	/* only the first can fail for want of a right, and then nothing has changed */
	setns(ours, CLONE_NEWNET);
	close(ours);
	return fd;
}

/* Whom to ask for the sockets of a process, one for all that share its namespace.  -errno: one may not. */
static int query(pid_t pid)
{
	static struct {
		dev_t dev;
		ino_t ino;
		int fd;
	} known[64];
	static size_t n;
	struct stat st;
	char path[64];
	int theirs, fd;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", pid ? (int)pid : (int)getpid());
	/* not for us to know: the namespace is taken to be our own */
	if (stat(path, &st) && stat("/proc/self/ns/net", &st))
		return -errno;
	for (size_t i = 0; i < n; i++)
		if (known[i].dev == st.st_dev && known[i].ino == st.st_ino)
			return known[i].fd;
	if (n == sizeof(known) / sizeof(known[0]))
		return -EMFILE;
	known[n].dev = st.st_dev;
	known[n].ino = st.st_ino;
	if (stat("/proc/self/ns/net", &st) || (st.st_ino == known[n].ino && st.st_dev == known[n].dev)) {
		fd = query_socket();
	} else {
		theirs = open(path, O_RDONLY | O_CLOEXEC);
		fd = theirs < 0 ? -errno : query_socket_in(theirs);
		if (theirs >= 0)
			close(theirs);
	}
	known[n++].fd = fd;
	return fd;
}

int xr_diag_find(pid_t pid, const struct xr_stats_addr *local, const struct xr_stats_addr *peer,
		 struct xr_diag *out)
{
	int fd;
	struct {
		struct nlmsghdr nlh;
		struct inet_diag_req_v2 req;
	} msg = {
		.nlh = {.nlmsg_len = sizeof(msg),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST},
		.req = {.sdiag_protocol = IPPROTO_TCP,
			.idiag_ext = 1 << (INET_DIAG_INFO - 1),
			.idiag_states = ~0u},
	};
	union {
		struct nlmsghdr nlh;
		char buf[8192];
	} answer;
	ssize_t n;

	if (local->family != peer->family || !local->family)
		return -EINVAL;
	fd = query(pid);
	if (fd < 0)
		return fd;
	msg.req.sdiag_family = (uint8_t)local->family;
	msg.req.id.idiag_sport = htons(local->port);
	msg.req.id.idiag_dport = htons(peer->port);
	memcpy(msg.req.id.idiag_src, local->addr, sizeof(local->addr));
	memcpy(msg.req.id.idiag_dst, peer->addr, sizeof(peer->addr));
	msg.req.id.idiag_cookie[0] = msg.req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	n = send(fd, &msg, sizeof(msg), 0);
	if (n >= 0)
		n = recv(fd, &answer, sizeof(answer), 0);
	return n < 0 ? -errno : take(&answer.nlh, (size_t)n, out);
}
