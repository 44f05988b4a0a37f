/* SPDX-License-Identifier: BSD-2-Clause */
/* What is under way arrives before the next operation, so that outcomes do not depend on time. */
#include "actor.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * What a connection on TCP was given leaves the sender at once: many small segments fill the
 * congestion window, and the peer's next acknowledgement may be 40 ms away.
 */
static void leaves_now(int fd, int fin)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	uint64_t end = now_us() + 200000;
	int n = 0;

	while (now_us() < end) {
		if (raw(SYS_ioctl, fd, SIOCOUTQNSD, (long)&n, 0, 0))
			return;
		if (!n && !fin)
			return;
		if (!n && (raw(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&len) ||
			   info.tcpi_unacked < info.tcpi_snd_cwnd))
			return;
		usleep(100);
	}
}

/* Before what may end connections: the FIN must find room as well. */
void make_room(const struct op *o)
{
	int i;

	if (o->kind != OP_SHUTDOWN && o->kind != OP_CLOSE && o->kind != OP_DUP && o->kind != OP_EXIT &&
	    o->kind != OP_END)
		return;
	for (i = 0; i < SLOTS; i++)
		if (a.fd[i] >= 0)
			leaves_now(a.fd[i], 1);
}

void after_send(int fd, const struct m_file *f, long n)
{
	const struct m_conn *c = &a.m.conn[f->conn];
	int on = 1, i;

	if (n <= 0)
		return;
	atomic_fetch_add(&a.sh->sent[f->conn][f->end], (uint64_t)n);
	/* MSG_MORE, TCP_CORK: sends what is held back, whether or not the option was set */
	raw(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, (long)&on, sizeof(on));
	leaves_now(fd, 0);
	if (!c->end[!f->end].closed)
		return;
	for (i = 0; i < 2000 && !(raw_poll(fd, 0) & (POLLERR | POLLHUP)); i++)
		i < 200 ? yield() : (void)usleep(50);
}

/*
 * The plain pair waits until all that was sent has arrived, so that what it reports does not
 * depend on when the kernel delivers.
 */
void settle(void)
{
	int i, tries, waited = 0;

	if (atomic_load(&a.sh->mode) != PLAIN)
		return;
	for (i = 0; i < SLOTS; i++) {
		const struct m_file *f = &a.m.slot[a.side][i];

		if (f->conn < 0 || a.m.conn[f->conn].connected != 2)
			continue;
		for (tries = 0; tries < 1000; tries++) {
			uint64_t sent = atomic_load(&a.sh->sent[f->conn][!f->end]);
			uint64_t rcvd = atomic_load(&a.sh->rcvd[f->conn][f->end]);

			if ((uint64_t)raw_inq(a.fd[i]) >= sent - rcvd ||
			    raw_poll(a.fd[i], 0) & (POLLERR | POLLHUP))
				break;
			waited = 1;
			tries < 200 ? yield() : (void)usleep(100);
		}
		for (tries = 0; tries < 1000 && a.m.conn[f->conn].end[f->end].fin &&
				!(raw_poll(a.fd[i], POLLRDHUP) & (POLLRDHUP | POLLERR)); tries++) {
			waited = 1;
			tries < 200 ? yield() : (void)usleep(100);
		}
	}
	if (waited)
		atomic_fetch_add(&a.sh->settled, 1);
}
