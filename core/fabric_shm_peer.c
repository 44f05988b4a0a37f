/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The shm device's connection to another process: a Unix SOCK_SEQPACKET socket for
 * connection management, made by the caller, and the link (shm_link.h) that is set up
 * over it.  The caller says HELLO with its arena and one end of a socket pair for the
 * link, the other end answers HELLO with its own arena; from then on there are
 * requests.  All queue pairs between the two devices share the one link.
 *
 * Everything that arrives here comes from a stranger.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>
#include "fabric_shm.h"
#include "log.h"

#define PEER_BACKLOG	128
#define PEER_KNOCK_NS	5000000ull	/* until the next try at a full backlog */
#define PEER_ACCEPTS	16		/* strangers let in per round */
#define PEER_LATE	16384u		/* messages that wait for a peer to read: four for every queue pair */

int shm_watch(int epoll, int fd, void *object, enum shm_watched kind)
{
	struct epoll_event e = { .events = EPOLLIN };

	e.data.u64 = (object ? (uintptr_t)object : (uint64_t)fd << 2) | kind;
	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

void shm_unwatch(int epoll, int fd)
{
	epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
}

static socklen_t peer_address(struct sockaddr_un *sa, const char *name)
{
	size_t n = strlen(name);

	memset(sa, 0, sizeof(*sa));
	sa->sun_family = AF_UNIX;
	memcpy(sa->sun_path + 1, "xrdma.", 6);
	memcpy(sa->sun_path + 7, name, n);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 7 + n);
}

void shm_peer_timer(struct shm_dev *d, uint64_t deadline)
{
	struct itimerspec it = { 0 };

	if (!deadline || (d->cm_deadline && d->cm_deadline <= deadline))
		return;
	d->cm_deadline = deadline;
	it.it_value.tv_sec = (time_t)(deadline / 1000000000u);
	it.it_value.tv_nsec = (long)(deadline % 1000000000u);
	timerfd_settime(d->cm_timer, TFD_TIMER_ABSTIME, &it, NULL);
}

int shm_peer_listen(struct shm_dev *d, struct shm_id *id)
{
	struct sockaddr_un sa;
	socklen_t len = peer_address(&sa, id->name);
	int r;

	id->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (id->sock < 0)
		return -errno;
	if (bind(id->sock, (struct sockaddr *)&sa, len) || listen(id->sock, PEER_BACKLOG)) {
		r = -errno;
		close(id->sock);
		return r;
	}
	r = shm_watch(d->cm_epoll, id->sock, id, SHM_WATCH_LISTENER);
	if (r)
		close(id->sock);
	return r;
}

static void peer_watch_out(struct shm_peer *p, int on)
{
	struct epoll_event e = { .events = EPOLLIN | (on ? EPOLLOUT : 0) };

	e.data.u64 = (uintptr_t)p | SHM_WATCH_PEER;
	/* it is in there since it was connected */
	epoll_ctl(p->dev->cm_epoll, EPOLL_CTL_MOD, p->sock, &e);
}

/* Many connections begin or end at once: what the socket does not take follows. */
static int peer_late(struct shm_peer *p, const struct shm_cm_msg *m)
{
	struct shm_late *l = p->nlate < PEER_LATE ? malloc(sizeof(*l)) : NULL;

	if (!l) {
		shm_peer_die(p, -ETIMEDOUT);
		return -ENOTCONN;
	}
	l->next = NULL;
	l->m = *m;
	if (!p->late) {
		p->late_tail = &p->late;
		peer_watch_out(p, 1);
	}
	*p->late_tail = l;
	p->late_tail = &l->next;
	p->nlate++;
	return 0;
}

static void peer_late_free(struct shm_peer *p)
{
	while (p->late) {
		struct shm_late *l = p->late;

		p->late = l->next;
		free(l);
	}
	p->nlate = 0;
}

static void peer_late_send(struct shm_peer *p)
{
	struct shm_late *l;

	while ((l = p->late) && p->state == SHM_PEER_UP) {
		ssize_t n = xr_unix_send(p->sock, &l->m, sizeof(l->m), NULL, 0);

		if (n == -EAGAIN || n == -ENOBUFS)
			return;
		if (n != (ssize_t)sizeof(l->m)) {
			shm_peer_die(p, -ECONNRESET);
			return;
		}
		p->late = l->next;
		p->nlate--;
		free(l);
		if (!p->late)
			peer_watch_out(p, 0);
	}
}

int shm_peer_send(struct shm_peer *p, struct shm_cm_msg *m, enum shm_cm_type type)
{
	ssize_t n;

	if (p->state != SHM_PEER_UP)
		return -ENOTCONN;
	m->magic = SHM_CM_MAGIC;
	m->version = SHM_CM_VERSION;
	m->type = (uint16_t)type;
	n = p->late ? -EAGAIN : xr_unix_send(p->sock, m, sizeof(*m), NULL, 0);
	if (n == (ssize_t)sizeof(*m))
		return 0;
	/* a dead one shows as EOF */
	return (n == -EAGAIN || n == -ENOBUFS) && !peer_late(p, m) ? 0 : -ENOTCONN;
}

static int peer_hello(struct shm_peer *p, int ctl)
{
	struct shm_cm_msg m = { .magic = SHM_CM_MAGIC, .version = SHM_CM_VERSION,
				.type = SHM_CM_HELLO };
	int fds[2] = { p->own.fd, ctl };
	ssize_t n = xr_unix_send(p->sock, &m, sizeof(m), fds, ctl < 0 ? 1 : 2);

	if (n != (ssize_t)sizeof(m))
		return n < 0 ? (int)n : -EIO;
	xr_fd_close(p->own.fd);
	p->own.fd = -1;
	return 0;
}

static struct shm_peer *peer_new(struct shm_dev *d)
{
	struct shm_peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->dev = d;
	p->sock = -1;
	p->ctl = -1;
	p->own.fd = -1;
	p->next = d->peers;
	d->peers = p;
	return p;
}

void shm_peer_die(struct shm_peer *p, int error)
{
	struct shm_qp *q, *next;

	if (p->state == SHM_PEER_DEAD)
		return;
	if (p->state == SHM_PEER_HELLO && !p->caller)
		p->dev->strangers--;
	p->state = SHM_PEER_DEAD;
	peer_late_free(p);
	if (p->sock >= 0) {
		shm_unwatch(p->dev->cm_epoll, p->sock);
		/* the peer is told, whoever has a copy of the descriptor */
		shutdown(p->sock, SHUT_RDWR);
		close(p->sock);
	}
	p->sock = -1;
	for (q = p->qps; q; q = next) {
		next = q->peer_next;
		/* its memory is final: what it had published is still delivered */
		shm_qp_gone(q, XR_WC_RETRY_EXC_ERR, q->req_seq + XR_RING_MAX);
	}
	shm_cm_peer_dead(p, error);
}

static void peer_free(struct shm_peer *p)
{
	peer_late_free(p);
	while (p->zombies) {
		struct shm_zombie *z = p->zombies;

		p->zombies = z->next;
		shm_zombie_free(p, z);
	}
	if (p->link) {
		int bell = xr_load_relaxed(&p->link->bell_rx[SHM_WAITER]) - 1;

		if (bell >= 0)
			shm_unwatch(p->dev->cq_epoll, bell);
		xr_shm_link_free(p->link);
	} else {
		xr_shm_arena_destroy(&p->own);
		xr_fd_close(p->ctl);
	}
	free(p);
}

void shm_peer_reap(struct shm_dev *d)
{
	struct shm_peer **pp = &d->peers, *p;

	while ((p = *pp)) {
		if (p->state != SHM_PEER_DEAD || p->qps) {
			pp = &p->next;
			continue;
		}
		*pp = p->next;
		peer_free(p);
	}
}

int shm_peer_get(struct shm_dev *d, const char *name, int fresh, struct shm_peer **peer)
{
	struct shm_peer *p;
	int r;

	for (p = d->peers; p && !fresh; p = p->next) {
		if (p->caller && p->state != SHM_PEER_DEAD && !strcmp(p->name, name)) {
			*peer = p;
			return 0;
		}
	}
	p = peer_new(d);
	if (!p)
		return -ENOMEM;
	p->caller = 1;
	p->state = SHM_PEER_KNOCK;
	memcpy(p->name, name, strlen(name) + 1);
	r = xr_shm_arena_create(&p->own, SHM_ARENA, SHM_SLOTS);
	if (r)
		goto drop;
	p->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->sock < 0) {
		r = -errno;
		goto drop;
	}
	*peer = p;
	return 0;

drop:
	d->peers = p->next;
	peer_free(p);
	return r;
}

void shm_peer_knock(struct shm_peer *p)
{
	struct sockaddr_un sa;
	socklen_t len = peer_address(&sa, p->name);
	int pair[2], r;

	if (connect(p->sock, (struct sockaddr *)&sa, len)) {
		if (errno == EAGAIN || errno == EINTR) {
			p->deadline = xr_now_ns() + PEER_KNOCK_NS;
			shm_peer_timer(p->dev, p->deadline);
			return;
		}
		shm_peer_die(p, -errno);
		return;
	}
	r = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ? -errno : 0;
	if (!r) {
		p->ctl = pair[0];
		r = peer_hello(p, pair[1]);
		close(pair[1]);
	}
	if (!r)
		r = shm_watch(p->dev->cm_epoll, p->sock, p, SHM_WATCH_PEER);
	if (r) {
		shm_peer_die(p, r);
		return;
	}
	p->state = SHM_PEER_HELLO;
	p->deadline = xr_now_ns() + SHM_CONNECT_NS;
	shm_peer_timer(p->dev, p->deadline);
}

/* Both arenas are there: the link, its doorbell, and whoever waited. */
static int peer_up(struct shm_peer *p, struct xr_shm_arena *theirs)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int bell;

	p->link = xr_shm_link_new(p->ctl, &p->own, theirs);
	if (!p->link) {
		xr_shm_arena_destroy(theirs);
		return -ENOMEM;
	}
	if (!getsockopt(p->sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		p->link->peer_pid = cred.pid;
	bell = xr_shm_link_bell(p->link, SHM_WAITER);
	if (bell >= 0)
		bell = shm_watch(p->dev->cq_epoll, bell, NULL, SHM_WATCH_COUNTER);
	if (bell < 0)
		return bell;
	if (p->dev->armed)
		xr_shm_link_sleeping(p->link, SHM_WAITER, 1);
	if (!p->caller)
		p->dev->strangers--;
	p->state = SHM_PEER_UP;
	p->deadline = 0;
	return 0;
}

static int peer_answer(struct shm_peer *p, int *fds, int nfds)
{
	struct xr_shm_arena theirs;
	int r;

	if (nfds != (p->caller ? 1 : 2))
		return -EPROTO;
	r = xr_shm_arena_attach(&theirs, fds[0]);
	if (r)
		return r;
	if (!p->caller) {
		r = xr_shm_arena_create(&p->own, SHM_ARENA, SHM_SLOTS);
		if (!r)
			r = peer_hello(p, -1);
		if (r) {
			xr_shm_arena_destroy(&theirs);
			return r;
		}
		p->ctl = fds[1];
		fds[1] = -1;
	}
	r = peer_up(p, &theirs);
	if (!r && p->caller)
		shm_cm_peer_up(p);
	return r;
}

static int peer_take(struct shm_peer *p, struct shm_cm_msg *m, int *fds, int nfds)
{
	if (m->magic != SHM_CM_MAGIC || m->version != SHM_CM_VERSION ||
	    m->data_len > sizeof(m->data) || !memchr(m->name, 0, sizeof(m->name)))
		return -EPROTO;
	if (p->state == SHM_PEER_HELLO)
		return m->type == SHM_CM_HELLO ? peer_answer(p, fds, nfds) : -EPROTO;
	if (nfds || m->type <= SHM_CM_HELLO || m->type > SHM_CM_NUDGE)
		return -EPROTO;
	shm_cm_message(p, m);
	return 0;
}

static void peer_read(struct shm_peer *p)
{
	while (p->state == SHM_PEER_HELLO || p->state == SHM_PEER_UP) {
		struct shm_cm_msg m;
		int fds[2], nfds = 2, r;
		ssize_t n = xr_unix_recv(p->sock, &m, sizeof(m), fds, &nfds);

		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			return;
		if (n <= 0) {
			shm_peer_die(p, n == -EBADMSG ? -EPROTO : -ECONNRESET);
			return;
		}
		r = n == (ssize_t)sizeof(m) ? peer_take(p, &m, fds, nfds) : -EPROTO;
		while (nfds)
			xr_fd_close(fds[--nfds]);
		if (r) {
			xr_info("a peer at %s was refused: error %d",
				p->caller ? p->name : "our listener", -r);
			shm_peer_die(p, r);
		}
	}
}

static int peer_welcome(const struct shm_id *id, int sock)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (id->any_user)
		return 1;
	return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) &&
	       (cred.uid == geteuid() || !cred.uid);
}

static void peer_accept(struct shm_dev *d, struct shm_id *id)
{
	int i;

	for (i = 0; i < PEER_ACCEPTS; i++) {
		int sock = accept4(id->sock, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct shm_peer *p;

		if (sock < 0)
			return;
		/* too many that say nothing: the next one is turned away, not kept at the door */
		p = d->strangers < SHM_HELLO_MAX && peer_welcome(id, sock) ? peer_new(d) : NULL;
		if (!p) {
			close(sock);
			continue;
		}
		d->strangers++;
		p->sock = sock;
		p->state = SHM_PEER_HELLO;
		p->deadline = xr_now_ns() + SHM_HELLO_NS;
		shm_peer_timer(d, p->deadline);
		if (shm_watch(d->cm_epoll, sock, p, SHM_WATCH_PEER))
			shm_peer_die(p, -ENOMEM);
	}
}

static void peer_expire(struct shm_dev *d)
{
	uint64_t now = xr_now_ns(), next;
	struct shm_peer *p;

	if (!d->cm_deadline || now < d->cm_deadline)
		return;
	d->cm_deadline = 0;
	next = shm_cm_expire(d, now);
	for (p = d->peers; p; p = p->next) {
		if (!p->deadline || p->state == SHM_PEER_DEAD)
			continue;
		if (now >= p->deadline) {
			p->deadline = 0;
			if (p->state == SHM_PEER_KNOCK)
				shm_peer_knock(p);
			else
				shm_peer_die(p, -ETIMEDOUT);
		}
		if (p->deadline && (!next || p->deadline < next))
			next = p->deadline;
	}
	shm_peer_timer(d, next);
}

void shm_peer_progress(struct shm_dev *d)
{
	struct epoll_event ev[32];
	int i, n = epoll_wait(d->cm_epoll, ev, 32, 0);
	struct shm_peer *p;
	uint64_t count, now;

	for (i = 0; i < n; i++) {
		void *object = (void *)(uintptr_t)(ev[i].data.u64 & ~3ull);

		switch (ev[i].data.u64 & 3) {
		case SHM_WATCH_PEER:
			peer_late_send(object);
			peer_read(object);
			break;
		case SHM_WATCH_LISTENER:
			peer_accept(d, object);
			break;
		default:
			/* non-blocking: a count that is gone already is no error */
			if (read((int)(ev[i].data.u64 >> 2), &count, sizeof(count)) < 0)
				continue;
		}
	}
	peer_expire(d);
	now = xr_now_ns();
	for (p = d->peers; p; p = p->next)
		if (p->link)
			xr_shm_link_trim(p->link, now);
	shm_peer_reap(d);
}
