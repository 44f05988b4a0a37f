/* SPDX-License-Identifier: BSD-2-Clause */
#include "diag.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int xr_diag_find(const struct xr_stats_addr *local, const struct xr_stats_addr *peer,
		 struct xr_diag *out)
{
	struct {
		struct nlmsghdr nlh;
		struct inet_diag_req_v2 req;
	} msg = {
		.nlh = {.nlmsg_len = sizeof(msg),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST},
		.req = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u},
	};
	union {
		struct nlmsghdr nlh;
		char buf[4096];
	} answer;
	struct inet_diag_msg *found = NLMSG_DATA(&answer.nlh);
	struct nlmsgerr *error = NLMSG_DATA(&answer.nlh);
	int fd, err = 0;
	ssize_t n;

	if (local->family != peer->family || !local->family)
		return -EINVAL;
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
	if (n < 0) {
		err = -errno;
	} else if (n >= (ssize_t)NLMSG_LENGTH(sizeof(*error)) &&
		   answer.nlh.nlmsg_type == NLMSG_ERROR) {
		err = error->error ? error->error : -EPROTO;
	} else if (n < (ssize_t)NLMSG_LENGTH(sizeof(*found))) {
		err = -EPROTO;
	} else {
		out->inode = found->idiag_inode;
		out->rqueue = found->idiag_rqueue;
		out->wqueue = found->idiag_wqueue;
	}
	close(fd);
	return err;
}
