/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A process with known statistics, for the tests of xr-stat. Publishes below $1, says
 * "ready", and waits for the end of its input; then leaves in order, or for good and all
 * if $2 is "crash".
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/stats.h"

static const struct sockaddr *addr(const char *host, int port)
{
	static union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} a[2];
	static int next;

	next = !next;
	memset(&a[next], 0, sizeof(a[next]));
	a[next].in.sin_port = htons((uint16_t)port);
	a[next].sa.sa_family = AF_INET;
	if (inet_pton(AF_INET, host, &a[next].in.sin_addr) != 1) {
		a[next].sa.sa_family = AF_INET6;
		inet_pton(AF_INET6, host, &a[next].in6.sin6_addr);
	}
	return &a[next].sa;
}

int main(int argc, char **argv)
{
	static const uint8_t gid[16] = { 0xfe, 0x80, [15] = 1 };
	struct xr_stats_flow *f;
	char c;

	if (argc < 2 || xr_stats_open(argv[1], "/usr/bin/pub\"lish", 100))
		return 1;
	f = xr_stats_flow_alloc(7, 4711, XR_ROLE_CLIENT, addr("127.0.0.1", 40001),
				addr("127.0.0.1", 80));
	xr_stats_flow_carrier(f, XR_CARRIER_SHM, XR_CARRIER_SHM, 4242);
	xr_stats_tx(f, XR_CARRIER_SHM, 1000);
	xr_stats_rx(f, XR_CARRIER_SHM, 2000);
	xr_stats_gauge(&f->tx.queue, 11);
	xr_stats_gauge(&f->rx.queue, 22);
	xr_stats_gauge(&f->tx.window, 4 << 20);
	xr_stats_gauge32(&f->tx.slots, 64);
	xr_stats_gauge32(&f->tx.credits, 62);

	/* on RDMA before, over a device whose name is hostile */
	if (argc > 2 && !strcmp(argv[2], "rdma"))
		xr_stats_flow_rdma(f, "\033[2Jrxe\n0", gid, 17, 4000000000u);

	f = xr_stats_flow_alloc(8, 0, XR_ROLE_SERVER, addr("::1", 443), addr("2001:db8::2", 40002));
	xr_stats_flow_reason(f, XR_REASON_PEER_NOT_XRDMA);
	xr_stats_tx(f, XR_CARRIER_TCP, 5);

	/* one that is over: only in the totals */
	f = xr_stats_flow_alloc(10, 0, XR_ROLE_CLIENT, addr("127.0.0.1", 1), addr("127.0.0.1", 2));
	xr_stats_tx(f, XR_CARRIER_SHM, 10000);
	xr_stats_flow_free(f);

	xr_stats_add(XR_STAT_UPGRADE_ATTEMPTS, 3);
	xr_stats_reason(XR_REASON_PEER_NOT_XRDMA);
	puts("ready");
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
	if (argc > 2 && !strcmp(argv[2], "crash"))
		_exit(0);
	xr_stats_close();
	return 0;
}
