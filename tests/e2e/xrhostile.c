/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer that lies. It is one end of a TCP connection, echoes what it reads there, and at the
 * rendezvous point of that connection does what ATTACK says:
 *
 *	xrhostile caller ATTACK SEED		listens, prints its port; the victim connected
 *	xrhostile host ATTACK SEED PORT		connects to the victim
 *
 * The first part of an attack's name is the stage: "call-..." is the first message that the victim
 * sees, "setup-..." what follows a good first message, "ring-..." what follows a good handshake.
 * Prints one JSON line at the end: how far the victim let it come.
 */
#include "pattern.h"
#include "core/mem.h"
#include "preload/upgrade.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
	const char *attack;
	uint64_t rng, nonce, peer_nonce;
	int caller, tcp, conn, lfd, tries;
	struct xr_tuple t;
	struct xr_up_msg theirs;
	struct xr_shm_arena mine, victim;
	uint64_t echoed;
	int attacked, answered, setup, ring;
} h;

static uint64_t rnd(void)
{
	h.rng += 0x9e3779b97f4a7c15ULL;
	return pattern_mix(h.rng);
}

static int is(const char *name)
{
	return !strcmp(h.attack, name);
}

static int stage(const char *name)
{
	return !strncmp(h.attack, name, strlen(name));
}

static void die(const char *what)
{
	fprintf(stderr, "xrhostile: %s: %s\n", what, strerror(errno));
	exit(2);
}

/* Any number of descriptors, any length. */
static void say(const void *msg, size_t len, const int *fds, int nfds)
{
	char control[CMSG_SPACE(64 * sizeof(int))] = {};
	struct iovec v = { (void *)msg, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	if (nfds) {
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
	}
	(void)!sendmsg(h.conn, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void compose(struct xr_up_msg *m, enum xr_up_type type)
{
	*m = (struct xr_up_msg){ .magic = XR_UP_MAGIC,
				 .version = XR_UP_VERSION,
				 .type = type,
				 .size = sizeof(*m),
				 .nonce = h.nonce,
				 .echo = h.peer_nonce,
				 .cookie = 1,
				 .tuple = h.t };
	memset(m->uuid, 0x5a, sizeof(m->uuid));
	m->uuid[0] = getpid();
	m->uuid[1] = getpid() >> 8;
}

/* One to eight bits of the message, anywhere. */
static void flip(void *p, size_t len)
{
	for (uint64_t n = 1 + rnd() % 8; n; n--)
		((uint8_t *)p)[rnd() % len] ^= 1 << rnd() % 8;
}

static int other_socket(void)
{
	return xr_proof_open(socket(AF_INET, SOCK_STREAM, 0));
}

/* Garbage in one field, by its name. */
static int spoil(struct xr_up_msg *m, const char *name)
{
#define FIELD(f) { #f, offsetof(struct xr_up_msg, f), sizeof(m->f) }
	const struct {
		const char *name;
		size_t off, len;
	} fields[] = { { "all", 0, sizeof(*m) }, FIELD(magic), FIELD(version), FIELD(type), FIELD(size), FIELD(uuid),
		       FIELD(nonce), FIELD(echo),    FIELD(flags), FIELD(tuple) };

	for (size_t i = 0, k = 0; i < sizeof(fields) / sizeof(*fields); i++)
		for (; !strcmp(name, fields[i].name); ((uint8_t *)m)[fields[i].off + k++] = rnd())
			if (k == fields[i].len)
				return 1;
	return 0;
}

/* ---- the first message that the victim sees ---------------------------------- */

static void attack_call(enum xr_up_type type)
{
	static uint8_t big[65536];
	struct xr_up_msg m;
	int fds[64], n = 1;

	h.attacked = 1;
	compose(&m, type);
	fds[0] = xr_proof_open(h.tcp);
	if (is("call-silent"))
		return;
	if (is("call-close")) {
		close(h.conn);
		h.conn = -1;
		return;
	}
	if (is("call-partial")) {
		say(&m, rnd() % sizeof(m), fds, 1);
		return;
	}
	if (is("call-oversize")) {
		memcpy(big, &m, sizeof(m));
		say(big, sizeof(m) + 1 + rnd() % (sizeof(big) - sizeof(m) - 1), fds, 1);
		return;
	}
	if (is("call-random")) {
		spoil(&m, "all");
	} else if (is("call-nofd")) {
		n = 0;
	} else if (is("call-file")) {
		fds[0] = open("/dev/null", O_RDONLY);
	} else if (is("call-other-socket")) {
		fds[0] = other_socket();
	} else if (is("call-many-fds")) {
		for (n = 1; n < 64; n++)
			fds[n] = fds[0];
	} else if (is("call-two-fds")) {
		fds[n++] = fds[0];
	} else if (is("call-nonce")) {
		m.nonce = 0;
	} else if (is("call-flip")) {
		flip(&m, sizeof(m));
	} else if (!spoil(&m, h.attack + strlen("call-"))) {
		die("no such attack");
	}
	say(&m, sizeof(m), fds, n);
}

/* ---- after a good first message ------------------------------------------------ */

/* An arena as the victim would make it, or one that is wrong in some way. */
static int bad_arena(void)
{
	uint64_t size = h.mine.size;
	uint8_t page[4096] = {};
	int fd = memfd_create("x", MFD_ALLOW_SEALING);

	memcpy(page, &h.mine.hdr, sizeof(h.mine.hdr));
	if (is("setup-tiny"))
		size = rnd() % 8192;
	else if (is("setup-odd-size"))
		size += 1 + rnd() % 4096;
	else if (is("setup-huge"))
		size = 1ull << 42;
	else if (is("setup-header"))
		flip(page, sizeof(h.mine.hdr));
	else if (is("setup-zero"))
		memset(page, 0, sizeof(page));
	if (ftruncate(fd, size) || pwrite(fd, page, size < 4096 ? size : 4096, 0) < 0)
		die("memfd");
	if (!is("setup-unsealed"))
		fcntl(fd, F_ADD_SEALS,
		      is("setup-half-sealed") ? F_SEAL_GROW : F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
	return fd;
}

static void attack_setup(struct xr_up_msg *m, int *fds, int n)
{
	int arena = n - 1; /* the last descriptor */

	h.attacked = 1;
	if (is("setup-silent"))
		return;
	if (is("setup-close")) {
		close(h.conn);
		h.conn = -1;
		return;
	}
	if (is("setup-partial")) {
		say(m, rnd() % sizeof(*m), fds, n);
		return;
	}
	if (is("setup-flip"))
		flip(m, sizeof(*m));
	else if (is("setup-nofd"))
		n--;
	else if (is("setup-dir-off"))
		m->dir_off = rnd() % 2 ? rnd() % h.mine.size : rnd() >> rnd() % 64;
	else if (is("setup-link"))
		m->flags = XR_UP_LINK, m->link_id = rnd(), m->tag = rnd();
	else if (is("setup-file"))
		fds[arena] = open("/dev/zero", O_RDWR);
	else if (!spoil(m, h.attack + strlen("setup-")))
		fds[arena] = bad_arena();
	say(m, sizeof(*m), fds, n);
}

/* ---- after a good handshake: shared memory full of lies --------------------------- */

static uint64_t nasty(void)
{
	static const uint64_t n[] = { 0,	 1,	     -1,	 1ull << 63, 1ull << 31,
				      0xffffffff, 0x7fffffff, 0xffff,	 65536,	     65537,
				      1ull << 32, 512,	     0x100000001 };

	switch (rnd() % 3) {
	case 0:
		return n[rnd() % (sizeof(n) / sizeof(*n))];
	case 1:
		return rnd();
	default:
		return rnd() >> rnd() % 64;
	}
}

static void scribble_slots(uint8_t *dir, uint32_t slots, uint32_t seq)
{
	struct xr_shm_slot *s = (struct xr_shm_slot *)(dir + sizeof(struct xr_shm_dir));

	for (uint32_t i = 0; i < 4; i++, seq++) {
		struct xr_shm_slot *at = &s[seq & (slots - 1)];

		for (size_t k = 8; k + 8 <= sizeof(*at); k += 8)
			memcpy((uint8_t *)at + k, &(uint64_t){ nasty() }, 8);
		atomic_store(&at->head, XR_HEAD(seq, nasty(), rnd() % 32, rnd() % (XR_OP_MAX + 2)));
	}
}

#define VICTIM ((struct xr_shm_dir *)(h.victim.base + h.theirs.dir_off))

/* Leaves TCP as it should; the slots in which it would go on. */
static struct xr_shm_slot *leave_tcp(void)
{
	struct xr_shm_dir *d = (struct xr_shm_dir *)(h.mine.base + h.mine.hdr.dir_off);
	struct xr_shm_slot *s = (struct xr_shm_slot *)(d + 1);

	atomic_store(&d->consumed, XR_CONSUMED(1, 0));
	s[1].arg = h.echoed;
	atomic_store(&s[1].head, XR_HEAD(1, 0, 0, XR_OP_START));
	return s;
}

static void *scribble(void *unused)
{
	uint8_t *a = h.mine.base + h.mine.hdr.dir_off, *b = (uint8_t *)VICTIM;
	struct xr_shm_dir *vd = VICTIM, *md = (struct xr_shm_dir *)a;
	size_t len = XR_DIR_BYTES(h.mine.hdr.dir_slots);

	/* Lure it onto the ring first: say READY, leave TCP at the right offset. */
	atomic_store(&vd->ready, 1);
	if (!is("ring-noise"))
		leave_tcp(), usleep(20000);
	for (int i = 0; i < 30000; i++) {
		uint64_t v = nasty();

		switch (rnd() % 8) {
		case 0: /* any word of either direction */
			memcpy((rnd() % 2 ? a : b) + rnd() % (len / 8) * 8, &v, 8);
			break;
		case 1:
			atomic_store(&vd->consumed, v);
			break;
		case 2:
			atomic_store(&vd->arm, v);
			break;
		case 3:
			atomic_store(&md->state, (uint32_t)v % 64);
			break;
		case 4:
			atomic_store(&md->tx_arm, v);
			break;
		case 5: /* completion entries and sleep flags */
			memcpy((rnd() % 2 ? h.mine.base : h.victim.base) + h.mine.hdr.sleep_off +
				       rnd() % ((h.mine.hdr.dir_off - h.mine.hdr.sleep_off) / 8) * 8,
			       &v, 8);
			break;
		default:
			scribble_slots(a, h.mine.hdr.dir_slots, 2 + rnd() % 6);
		}
		if (i % 300 == 0)
			usleep(500);
	}
	return unused;
}

/*
 * Retreats that are lies: frozen by whoever, from any offset, replayed never, over and over;
 * gone, back, named, staying, closed, in any order.
 */
static void *scribble_retreat(void *unused)
{
	uint8_t *a = h.mine.base + h.mine.hdr.dir_off;
	struct xr_shm_dir *vd = VICTIM, *md = (struct xr_shm_dir *)a;

	atomic_store(&vd->ready, 1);
	leave_tcp();
	usleep(rnd() % 20000);
	for (int i = 0; i < 3000; i++) {
		uint64_t bits = (rnd() % 3 ? XR_FROZEN : 0) | (rnd() % 2 ? XR_REPLAYING : 0);
		uint64_t at = rnd() % 2 ? XR_CONSUMED(rnd() % 6, rnd() % 200) : nasty();

		switch (rnd() % 6) {
		case 0: /* what we receive: the victim is to replay from there */
			atomic_store(&vd->consumed, bits | at);
			break;
		case 1: /* what it receives: we are about to replay */
			atomic_fetch_or(&md->consumed, bits);
			break;
		case 2:
			atomic_store(&md->consumed, bits | at);
			break;
		case 3:
			atomic_store(&vd->arm, rnd() << 32 | (rnd() % 2 ? XR_ARM_FROZEN : 0) | rnd() % 8);
			break;
		case 4:
			atomic_store(&md->state, rnd() % 64);
			break;
		default:
			scribble_slots(a, h.mine.hdr.dir_slots, 2 + rnd() % 6);
		}
		if (i % 30 == 0)
			usleep(500);
	}
	return unused;
}

/* What there is no word for. */
static void say_nonsense(void)
{
	atomic_store(&leave_tcp()[2].head, XR_HEAD(2, 0, 0, 15));
	/* last: once it knows that it may leave, nothing comes over TCP that would make it look */
	atomic_store(&VICTIM->ready, 1);
}

/* Answers a retreat wrongly: it has read what was never sent, or has not what it had. */
static void say_consumed(void)
{
	struct xr_shm_slot *theirs = (struct xr_shm_slot *)(VICTIM + 1);

	leave_tcp();
	atomic_store(&VICTIM->ready, 1);
	/* once the victim has left TCP and sent something */
	for (int i = 0; i < 1000 && XR_HEAD_SEQ(atomic_load(&theirs[2].head)) != 2; i++)
		usleep(1000);
	atomic_store(&VICTIM->consumed, XR_FROZEN | XR_CONSUMED(rnd() % 2 ? 1000000 : 0, 0));
	atomic_store(&VICTIM->arm, 1ull << 32 | XR_ARM_FROZEN);
}

/* Rubbish on the control connection, with and without descriptors. */
static void attack_control(void)
{
	uint8_t junk[4096];
	int fds[8];

	for (int i = 0; i < 200; i++) {
		for (size_t k = 0; k < sizeof(junk); k++)
			junk[k] = rnd();
		*(uint32_t *)junk = rnd() % 4 ? rnd() % 16 : rnd();
		for (int k = 0; k < 8; k++)
			fds[k] = open("/dev/null", O_RDONLY);
		say(junk, 1 + rnd() % (rnd() % 2 ? 64 : sizeof(junk)), fds, rnd() % 8);
		for (int k = 0; k < 8; k++)
			close(fds[k]);
	}
}

/* Messages of handshakes over the link: offers of anything, answers to nothing, and too many of them. */
static void attack_offers(void)
{
	struct xr_up_msg m;
	int fds[2];

	for (int i = 0; i < 400; i++) {
		int n = 0;

		compose(&m, rnd() % 8 ? XR_UP_OFFER : 1 + rnd() % 6);
		m.nonce = rnd() % 8 ? rnd() : 0;
		m.echo = rnd() % 2 ? rnd() : h.peer_nonce;
		if (rnd() % 2)
			m.tuple.lport = rnd();
		if (m.type == XR_UP_CALL || m.type == XR_UP_ANSWER)
			fds[n++] = rnd() % 2 ? xr_proof_open(h.tcp) : other_socket();
		say(&m, sizeof(m), fds, n);
		while (n)
			close(fds[--n]);
	}
}

static void attack_ring(void)
{
	h.ring = h.attacked = 1;
	printf("{\"stage\": \"ring\"}\n");
	fflush(stdout);
	if (is("ring-control"))
		attack_control();
	else if (is("ring-offers"))
		attack_offers();
	else if (is("ring-retreat"))
		scribble_retreat(NULL);
	else if (is("ring-nonsense"))
		say_nonsense();
	else if (is("ring-consumed"))
		say_consumed();
	else if (is("ring-close"))
		close(h.conn), h.conn = -1;
	else
		scribble(NULL);
}

/* ---- the handshake ------------------------------------------------------------------ */

/* ANSWER as host, SETUP as caller: the message that carries our arena. */
static void second(enum xr_up_type type)
{
	struct xr_up_msg m;
	int fds[2], n = 0;

	if (xr_shm_arena_create(&h.mine, 64 << 20, 64))
		die("arena");
	compose(&m, type);
	m.dir_off = h.mine.hdr.dir_off;
	if (type == XR_UP_ANSWER)
		fds[n++] = xr_proof_open(h.tcp);
	fds[n++] = h.mine.fd;
	if (stage("setup-"))
		return attack_setup(&m, fds, n);
	say(&m, sizeof(m), fds, n);
	h.setup = 1;
	if (type == XR_UP_SETUP)
		attack_ring();
}

static void first(void)
{
	struct xr_up_msg m;
	int proof;

	if (stage("call-"))
		return attack_call(XR_UP_CALL);
	compose(&m, XR_UP_CALL);
	proof = xr_proof_open(h.tcp);
	say(&m, sizeof(m), &proof, 1);
	close(proof);
}

static void heard(void)
{
	int fds[4], n = 4;
	struct xr_up_msg m;
	ssize_t r = xr_unix_recv(h.conn, &m, sizeof(m), fds, &n);

	if (r <= 0) {
		close(h.conn);
		h.conn = -1;
		return;
	}
	if (h.attacked || r != sizeof(m))
		return;
	h.theirs = m;
	h.peer_nonce = m.nonce;
	h.answered = 1;
	if (h.caller) { /* ANSWER: proof and arena */
		if (n == 2 && xr_shm_arena_attach(&h.victim, fds[1]))
			die("the victim's arena");
		second(XR_UP_SETUP);
	} else if (m.type == XR_UP_CALL) {
		if (stage("call-"))
			attack_call(XR_UP_ANSWER);
		else
			second(XR_UP_ANSWER);
	} else if (m.type == XR_UP_SETUP && n == 1) {
		if (xr_shm_arena_attach(&h.victim, fds[0]))
			die("the victim's arena");
		attack_ring();
	}
}

static int echo(void)
{
	char b[16384];
	ssize_t n = recv(h.tcp, b, sizeof(b), 0), at = 0;

	if (n <= 0)
		return 0;
	while (at < n) {
		ssize_t k = send(h.tcp, b + at, n - at, MSG_NOSIGNAL);

		if (k <= 0)
			return 0;
		at += k;
	}
	h.echoed += n;
	return 1;
}

static void open_tcp(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	socklen_t n = sizeof(a);
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!h.caller) {
		if (connect(s, (struct sockaddr *)&a, n))
			die("connect");
		h.tcp = s;
	} else {
		if (bind(s, (struct sockaddr *)&a, n) || listen(s, 1) ||
		    getsockname(s, (struct sockaddr *)&a, &n))
			die("listen");
		printf("{\"port\": %d}\n", ntohs(a.sin_port));
		fflush(stdout);
		h.tcp = accept(s, NULL, NULL);
		close(s);
	}
	setsockopt(h.tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (xr_tuple_get(h.tcp, &h.t, NULL, NULL))
		die("tuple");
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	h.caller = !strcmp(argv[1], "caller");
	h.attack = argv[2];
	h.rng = strtoull(argv[3], NULL, 0);
	h.conn = h.lfd = -1;
	h.nonce = rnd() | 1;
	open_tcp(argc > 4 ? atoi(argv[4]) : 0);
	if (!h.caller) {
		h.lfd = xr_rendezvous_listen(&h.t);
		if (h.lfd < 0)
			die("rendezvous");
		printf("{\"ready\": true}\n");
		fflush(stdout);
	}
	for (;;) {
		struct pollfd p[3] = { { h.tcp, POLLIN, 0 }, { h.conn, POLLIN, 0 }, { h.lfd, POLLIN, 0 } };

		if (poll(p, 3, -1) < 0)
			continue;
		if (p[1].revents)
			heard();
		if (p[2].revents && h.conn < 0)
			h.conn = xr_rendezvous_accept(h.lfd);
		if (p[0].revents && !echo())
			break;
		/* Like any caller: after each turn, is the victim's name open? Strangers insist. */
		if (h.caller && h.conn < 0 && h.tries < (stage("call-") ? 3 : 1)) {
			h.conn = xr_rendezvous_call(&h.t);
			if (h.conn >= 0) {
				h.tries++;
				first();
			}
		}
	}
	printf("{\"attacked\": %d, \"answered\": %d, \"setup\": %d, \"ring\": %d, \"echoed\": %lu}\n",
	       h.attacked, h.answered, h.setup, h.ring, (unsigned long)h.echoed);
	return 0;
}
