/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xrsandbox PORT: a client that echoes 8 bytes 2000 times, installs a filter that ends it at any system call but the
 * few that it makes itself from then on, and goes on for as long again.  Exit 0: all was well; the number of that
 * call, modulo 256; 254: what came was wrong.
 */
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TURNS	2000u

static void turns(int fd, uint64_t from)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t i, back;

	for (i = from; i < from + TURNS; i++) {
		if (send(fd, &i, sizeof(i), 0) != sizeof(i) || poll(&p, 1, 5000) != 1)
			_exit(254);
		if (recv(fd, &back, sizeof(back), MSG_WAITALL) != sizeof(back) || back != i)
			_exit(254);
	}
}

static void on_other(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	syscall(SYS_exit_group, info->si_syscall);
}

static int only_its_own(void)
{
	struct sigaction sa = { .sa_sigaction = on_other, .sa_flags = SA_SIGINFO };
	static const uint32_t own[] = { SYS_sendto, SYS_recvfrom, SYS_poll, SYS_close, SYS_exit_group };
	enum { N = sizeof(own) / sizeof(own[0]) };
	struct sock_filter f[2 * N + 2] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	struct sock_fprog prog = { 2 * N + 2, f };
	uint32_t i;

	for (i = 0; i < N; i++) {
		f[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, own[i], 0, 1);
		f[2 * i + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	f[2 * N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
	if (sigaction(SIGSYS, &sa, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);

	a.sin_port = htons((uint16_t)(argc == 2 ? atoi(argv[1]) : 0));
	if (fd < 0 || other < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)))
		return 254;
	turns(fd, 0);
	if (only_its_own())
		return 254;
	turns(fd, TURNS);
	if (close(other) || close(fd))
		return 254;
	_exit(0);
}
