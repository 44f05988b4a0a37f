/* SPDX-License-Identifier: BSD-2-Clause */
#include "diag.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* TCP_* states; their header and linux/tcp.h exclude each other */
#define FIN_SENT     (1u << 4 | 1u << 5 | 1u << 6 | 1u << 9 | 1u << 11)
#define FIN_RECEIVED (1u << 6 | 1u << 8 | 1u << 9 | 1u << 11)

/* A FIN counts as a byte, in either direction; in the receive queue until it is read. */
static void take_counts(const struct inet_diag_msg *msg, const struct tcp_info *ti, struct xr_diag *out)
{
	bool fin_read = !msg->idiag_rqueue && (FIN_RECEIVED >> msg->idiag_state & 1);

	out->counted = true;
	out->written = ti->tcpi_bytes_sent - ti->tcpi_bytes_retrans + ti->tcpi_notsent_bytes -
		       (FIN_SENT >> msg->idiag_state & 1);
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

int xr_diag_find(const struct xr_stats_addr *local, const struct xr_stats_addr *peer,
		 struct xr_diag *out)
{
	static int fd = -1;
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
	if (fd < 0)
		fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (fd < 0)
		return -errno;
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
