/* SPDX-License-Identifier: BSD-2-Clause */
/* Where the server of a test is: $TEST_ADDRESS and $TEST_ADDRESS6, else this machine's loopback. */
#ifndef WHERE_H
#define WHERE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>

static inline struct sockaddr_in where4(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	const char *text = getenv("TEST_ADDRESS");

	if (!text || inet_pton(AF_INET, text, &a.sin_addr) != 1)
		a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

static inline struct sockaddr_in6 where6(int port)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
	const char *text = getenv("TEST_ADDRESS6");

	if (!text || inet_pton(AF_INET6, text, &a.sin6_addr) != 1)
		a.sin6_addr = in6addr_loopback;
	return a;
}

#endif
