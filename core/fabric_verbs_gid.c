/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Addresses, and the entries of a port's GID table that stand for them.  On RoCE a GID is an IP address, and one
 * address has an entry for each version of the protocol; only version 2 is routable.  An entry moves when addresses
 * come and go, so an index is looked up when it is needed and never kept over a change of the table.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include "fabric_verbs.h"

int v_address(const char *text, struct xr_addr *addr)
{
	const char *colon = strrchr(text, ':'), *end = colon;
	char host[INET6_ADDRSTRLEN], *rest;
	unsigned long port;
	int six = *text == '[';

	memset(addr, 0, sizeof(*addr));
	if (!colon || colon[1] < '0' || colon[1] > '9')
		return -EINVAL;
	port = strtoul(colon + 1, &rest, 10);
	if (*rest || !port || port > 65535)
		return -EINVAL;
	if (six) {
		text++;
		if (end == text || *--end != ']')
			return -EINVAL;
	}
	if ((size_t)(end - text) >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, (size_t)(end - text));
	host[end - text] = 0;
	addr->port = (uint16_t)port;
	addr->family = six ? XR_AF_INET6 : XR_AF_INET;
	if (!six && !strcmp(host, "*"))
		return 0;
	return inet_pton(six ? AF_INET6 : AF_INET, host, addr->ip) == 1 ? 0 : -EINVAL;
}

socklen_t v_sockaddr(const struct xr_addr *addr, const uint8_t *ip, uint16_t port, struct sockaddr_storage *ss)
{
	struct sockaddr_in *in = (struct sockaddr_in *)ss;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ss;

	memset(ss, 0, sizeof(*ss));
	if (addr->family == XR_AF_INET) {
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		memcpy(&in->sin_addr, ip, 4);
		return sizeof(*in);
	}
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(port);
	memcpy(&in6->sin6_addr, ip, 16);
	return sizeof(*in6);
}

void v_addr(const struct sockaddr *sa, struct xr_addr *addr)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

	memset(addr, 0, sizeof(*addr));
	addr->family = sa->sa_family;
	if (sa->sa_family == AF_INET) {
		addr->port = ntohs(in->sin_port);
		memcpy(addr->ip, &in->sin_addr, 4);
	} else if (sa->sa_family == AF_INET6) {
		addr->port = ntohs(in6->sin6_port);
		memcpy(addr->ip, &in6->sin6_addr, 16);
	}
}

void v_gid_of(const struct xr_addr *addr, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (addr->family == XR_AF_INET6) {
		memcpy(gid->raw, addr->ip, 16);
		return;
	}
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, addr->ip, 4);
}

int v_gid_link_local(const union ibv_gid *gid)
{
	return (gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80) ||
	       (!memcmp(gid->raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xa9\xfe", 14));
}

int v_routable(const struct xr_addr *addr)
{
	static const uint8_t loop6[16] = { [15] = 1 };
	union ibv_gid gid;

	v_gid_of(addr, &gid);
	if (v_gid_link_local(&gid))
		return 0;
	return addr->family == XR_AF_INET ? addr->ip[0] != 127 && addr->ip[0] : memcmp(addr->ip, loop6, 16) != 0;
}

int v_gid_index(struct ibv_context *ctx, uint8_t port, const union ibv_gid *gid)
{
	struct ibv_gid_entry e;
	struct ibv_port_attr p;
	int i, misses = 0;

	if (v_gid_link_local(gid) || ibv_query_port(ctx, port, &p))
		return -EADDRNOTAVAIL;
	for (i = 0; i < p.gid_tbl_len; i++) {
		if (ibv_query_gid_ex(ctx, port, (uint32_t)i, &e, 0)) {
			/* the table is long and filled from its beginning, but for what was taken away */
			if (++misses > 64)
				break;
			continue;
		}
		misses = 0;
		if (!memcmp(&e.gid, gid, sizeof(*gid)) && e.gid_type != IBV_GID_TYPE_ROCE_V1)
			return i;
	}
	return -EADDRNOTAVAIL;
}

int v_gid_refresh(struct v_dev *d)
{
	int i = v_gid_index(d->ctx, d->port, &d->gid), was = d->gid_index;

	d->gid_index = i < 0 ? -1 : i;
	return (was < 0) != (i < 0);
}

int v_gid_fix(struct v_dev *d, struct ibv_ah_attr *ah)
{
	struct ibv_gid_entry e;
	int i;

	if (!ah->is_global)
		return 0;	/* InfiniBand within a subnet */
	if (ibv_query_gid_ex(d->ctx, d->port, ah->grh.sgid_index, &e, 0))
		return -EADDRNOTAVAIL;
	if (e.gid_type == IBV_GID_TYPE_IB || e.gid_type == IBV_GID_TYPE_ROCE_V2)
		return 0;
	i = v_gid_index(d->ctx, d->port, &e.gid);
	if (i < 0)
		return i;
	ah->grh.sgid_index = (uint8_t)i;
	return 0;
}
