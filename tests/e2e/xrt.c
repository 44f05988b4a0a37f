/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * usage: xrt server|client [--option=value]...; prints JSON lines, exits 0 when every byte of both
 * directions was right, 3 when a call failed or a byte was wrong (the line says which and where).
 *
 * The protocol decides when an end may send:
 *   duplex    at once, both directions together
 *   halfclose the client at once; the server when it has read the client's end of stream
 *   pingpong  turns of --turn bytes, the client first
 * Each end shuts its direction down after its last byte and reads until the peer's end of stream.
 *
 * With --upset=N something is done to a connection once in N calls that makes it leave the fabric (xrt_upset.c).
 *
 * With --endless there is no last byte before SIGUSR1, at each end on its own; the sums tell whether all came.
 */
#include "pattern.h"
#include "where.h"
#include "xrt.h"

#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

void conn_fail(struct conn *c, const char *op, int err, uint64_t off)
{
	if (c->bad_op)
		return;
	c->bad_op = op;
	c->bad_errno = err;
	c->bad_off = off;
}

uint64_t conn_may_tx(const struct conn *c)
{
	uint64_t left = c->tx_total - c->tx_off, upto;

	if (!left || !strcmp(c->o->proto, "duplex"))
		return left;
	if (!strcmp(c->o->proto, "halfclose"))
		return c->o->client || c->rx_eof ? left : 0;
	upto = (c->rx_off / c->o->turn + c->o->client) * c->o->turn;
	if (c->rx_eof)
		return left;
	return upto > c->tx_off ? (upto - c->tx_off < left ? upto - c->tx_off : left) : 0;
}

static volatile sig_atomic_t ended;

static void on_end(int sig)
{
	(void)sig;
	ended = 1;
}

bool conn_done(const struct conn *c)
{
	return c->bad_op || (c->tx_shut && c->rx_eof);
}

/* Log-uniform, so that single bytes and full buffers both happen. */
static size_t segment(const struct opts *o, uint64_t *rng, uint64_t room)
{
	uint64_t r = xrt_rand(rng);
	size_t n = o->seg;

	if (r & 1)
		n = 1 + (r >> 8) % ((o->seg >> (r >> 1) % 16) | 1);
	if (n > o->seg)
		n = o->seg;
	return n < room ? n : room;
}

static uint64_t sum(uint64_t h, const uint8_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3ULL;
	return h;
}

static _Atomic uint64_t next_hold;

/*
 * The program stops here, its flow live, until the test has looked and says so on our stdin: "go"
 * to stop again after as many bytes more, anything else to run through.
 */
static void hold(struct conn *c, uint64_t at)
{
	char go[64] = "";
	ssize_t n;

	/* one connection, one of its threads */
	if (!atomic_compare_exchange_strong(&next_hold, &at, UINT64_MAX))
		return;
	printf("{\"hold\": %d, \"tx\": %lu, \"rx\": %lu}\n", c->id, c->tx_off, c->rx_off);
	fflush(stdout);
	do
		n = read(STDIN_FILENO, go, sizeof(go));
	while (n < 0 && errno == EINTR);
	if (n > 0 && go[0] == 'g')
		atomic_store(&next_hold, c->tx_off + c->rx_off + c->o->hold);
}

static void shut(struct conn *c)
{
	if (c->out)
		fflush(c->out);
	if (shutdown(c->fd, SHUT_WR))
		conn_fail(c, "shutdown", errno, c->tx_off);
	c->tx_shut = true;
}

int conn_tx(struct conn *c)
{
	uint64_t at, moved;
	size_t len;
	ssize_t n;

	pthread_mutex_lock(&c->lock);
	if (ended)
		c->tx_total = c->tx_off;
	c->tx_room = conn_may_tx(c);
	moved = c->tx_off + c->rx_off;
	pthread_mutex_unlock(&c->lock);
	if (c->tx_off == c->tx_total) {
		if (c->tx_shut || (!c->o->client && !strcmp(c->o->proto, "halfclose") && !c->rx_eof))
			return 0;
		shut(c);
		return c->bad_op ? -1 : 1;
	}
	if (!c->tx_room)
		return 0;
	at = atomic_load(&next_hold);
	if (moved >= at)
		hold(c, at);
	len = segment(c->o, &c->rng_tx, c->tx_room);
	pattern_fill(c->tx_key, c->tx_off, c->txbuf, len);
	n = c->o->upset ? upset_or(c, true, c->txbuf, len) : c->o->io->tx(c, c->txbuf, len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return errno == EINTR;
	if (n <= 0 || (size_t)n > len) {
		conn_fail(c, c->o->io->name, n < 0 ? errno : EPROTO, c->tx_off);
		return -1;
	}
	c->tx_sum = sum(c->tx_sum, c->txbuf, n);
	pthread_mutex_lock(&c->lock);
	c->tx_off += n;
	pthread_mutex_unlock(&c->lock);
	return 1;
}

/* Where in the stream do the wrong bytes belong? Tells loss from repetition from rubbish. */
static void mismatch(struct conn *c, const uint8_t *got, size_t n)
{
	uint64_t from = c->rx_off > (8 << 20) ? c->rx_off - (8 << 20) : 0;
	uint8_t probe[16];
	size_t at = 0;

	while (got[at] == c->want[at])
		at++;
	conn_fail(c, "data", EBADMSG, c->rx_off + at);
	fprintf(stderr, "xrt: seed %lu conn %d: wrong byte at offset %lu (in a read of %zu)", c->o->seed,
		c->id, c->rx_off + at, n);
	if (n - at < sizeof(probe)) {
		fprintf(stderr, "\n");
		return;
	}
	for (uint64_t o = from; o < from + (16 << 20); o++) {
		pattern_fill(c->rx_key, o, probe, sizeof(probe));
		if (!memcmp(probe, got + at, sizeof(probe))) {
			fprintf(stderr, ": these bytes belong at %lu\n", o);
			return;
		}
	}
	fprintf(stderr, ": these bytes belong nowhere near\n");
}

int conn_rx(struct conn *c)
{
	uint64_t left = c->rx_total - c->rx_off, room = left;
	size_t len;
	ssize_t n;

	if (c->rx_eof)
		return 0;
	if (!strcmp(c->o->proto, "pingpong") && left)
		room = c->o->turn - c->rx_off % c->o->turn;
	if (room > left)
		room = left;
	len = left ? segment(c->o, &c->rng_rx, room) : 1;
	n = c->o->upset ? upset_or(c, false, c->rxbuf, len) : c->o->io->rx(c, c->rxbuf, len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return errno == EINTR;
	if (n < 0 || (size_t)n > len) {
		conn_fail(c, c->o->io->name, n < 0 ? errno : EPROTO, c->rx_off);
		return -1;
	}
	if (n && !left) {
		conn_fail(c, "surplus", EBADMSG, c->rx_off);
		return -1;
	}
	pattern_fill(c->rx_key, c->rx_off, c->want, n);
	if (memcmp(c->want, c->rxbuf, n)) {
		mismatch(c, c->rxbuf, n);
		return -1;
	}
	c->rx_sum = sum(c->rx_sum, c->rxbuf, n);
	pthread_mutex_lock(&c->lock);
	c->rx_off += n;
	c->rx_eof = n == 0;
	pthread_cond_broadcast(&c->turned);
	pthread_mutex_unlock(&c->lock);
	if (c->rx_eof && c->rx_off != c->rx_total && !c->o->endless)
		conn_fail(c, "early-eof", 0, c->rx_off);
	return 1;
}

static void conn_init(struct conn *c, const struct opts *o, int id)
{
	*c = (struct conn){ .o = o, .id = id, .fd = -1 };
	c->tx_key = pattern_mix(o->seed * 4 + o->client) + id;
	c->rx_key = pattern_mix(o->seed * 4 + !o->client) + id;
	c->rng_tx = c->tx_key ^ 0x55;
	c->rng_rx = c->rx_key ^ 0xaaaa;
	c->tx_total = o->client ? o->c2s : o->s2c;
	c->rx_total = o->client ? o->s2c : o->c2s;
	if (o->endless)
		c->tx_total = c->rx_total = UINT64_MAX;
	c->tx_sum = c->rx_sum = 0xcbf29ce484222325ULL;
	c->txbuf = malloc(XRT_BUF);
	c->rxbuf = malloc(XRT_BUF);
	c->want = malloc(XRT_BUF);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->turned, NULL);
}

static void die(const char *what)
{
	fprintf(stderr, "xrt: %s: %s\n", what, strerror(errno));
	exit(2);
}

static socklen_t address(const struct opts *o, struct sockaddr_storage *ss)
{
	struct sockaddr_in a = where4(o->port);
	struct sockaddr_in6 a6 = where6(o->port);

	if (o->v6) {
		memcpy(ss, &a6, sizeof(a6));
		return sizeof(a6);
	}
	memcpy(ss, &a, sizeof(a));
	return sizeof(a);
}

static int make_socket(const struct opts *o)
{
	int s = socket(o->v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (s < 0)
		die("socket");
	if (o->sndbuf)
		setsockopt(s, SOL_SOCKET, SO_SNDBUF, &o->sndbuf, sizeof(o->sndbuf));
	if (o->rcvbuf)
		setsockopt(s, SOL_SOCKET, SO_RCVBUF, &o->rcvbuf, sizeof(o->rcvbuf));
	if (!o->client)
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	return s;
}

static int do_listen(const struct opts *o)
{
	struct sockaddr_storage ss;
	socklen_t n = address(o, &ss);
	int s = make_socket(o);

	if (bind(s, (struct sockaddr *)&ss, n) || listen(s, 512))
		die("listen");
	n = sizeof(ss);
	getsockname(s, (struct sockaddr *)&ss, &n);
	printf("{\"port\": %d}\n", ntohs(((struct sockaddr_in *)&ss)->sin_port));
	fflush(stdout);
	return s;
}

static void open_conns(struct opts *o, struct conn *c)
{
	struct sockaddr_storage ss;
	socklen_t n = address(o, &ss);
	int l = o->client ? -1 : do_listen(o), e;

	for (int i = 0; i < o->conns; i++) {
		double t;
		uint32_t id;

		conn_init(&c[i], o, i);
		t = now_us();
		if (o->client) {
			c[i].fd = make_socket(o);
			if (connect(c[i].fd, (struct sockaddr *)&ss, n))
				die("connect");
		} else {
			c[i].fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
			if (c[i].fd < 0)
				die("accept");
		}
		c[i].connect_us = now_us() - t;
		/* A turn cut into pieces under Nagle and delayed acks takes 40 ms a piece. */
		e = !o->nagle;
		setsockopt(c[i].fd, IPPROTO_TCP, TCP_NODELAY, &e, sizeof(e));
		/* Connections in the order of accept are not in the order of connect. */
		id = i;
		if (o->client && send(c[i].fd, &id, sizeof(id), 0) != sizeof(id))
			die("send id");
		if (!o->client) {
			if (recv(c[i].fd, &id, sizeof(id), MSG_WAITALL) != sizeof(id))
				die("recv id");
			e = c[i].fd;
			free(c[i].txbuf);
			free(c[i].rxbuf);
			free(c[i].want);
			conn_init(&c[i], o, id);
			c[i].fd = e;
		}
		e = io_open(&c[i]);
		if (e) {
			errno = -e;
			die("io_open");
		}
	}
	if (l >= 0)
		close(l);
}

static int report(const struct opts *o, struct conn *c, double t)
{
	uint64_t tx = 0, rx = 0, txs = 0, rxs = 0;
	int bad = 0;

	for (int i = 0; i < o->conns; i++) {
		tx += c[i].tx_off;
		rx += c[i].rx_off;
		txs ^= pattern_mix(c[i].tx_sum + c[i].id);
		rxs ^= pattern_mix(c[i].rx_sum + c[i].id);
		if (c[i].bad_op && !bad++)
			printf("{\"role\": \"%s\", \"seed\": %lu, \"conn\": %d, \"op\": \"%s\", \"errno\": %d, "
			       "\"error\": \"%s\", \"off\": %lu, \"tx\": %lu, \"rx\": %lu, \"us\": %.0f}\n",
			       o->client ? "client" : "server", o->seed, c[i].id, c[i].bad_op,
			       c[i].bad_errno, strerrorname_np(c[i].bad_errno), c[i].bad_off, c[i].tx_off,
			       c[i].rx_off, t);
	}
	if (!bad) {
		printf("{\"role\": \"%s\", \"seed\": %lu, \"tx\": %lu, \"rx\": %lu, \"tx_sum\": %lu, "
		       "\"rx_sum\": %lu, \"connect_us\": %.1f, \"us\": %.0f, \"op\": null",
		       o->client ? "client" : "server", o->seed, tx, rx, txs, rxs, c[0].connect_us, t);
		if (o->upset)
			upset_report(stdout);
		printf("}\n");
	}
	fflush(stdout);
	return bad ? 3 : 0;
}

static uint64_t size_arg(const char *s)
{
	char *end;
	uint64_t n = strtoull(s, &end, 0);

	return *end == 'k' ? n << 10 : *end == 'm' ? n << 20 : n;
}

static void usage(void)
{
	fprintf(stderr, "usage: xrt server|client [--port=N] [--seed=N] [--c2s=BYTES] [--s2c=BYTES]\n"
			"  [--proto=duplex|halfclose|pingpong] [--turn=BYTES] [--seg=BYTES] [--hold=BYTES]\n"
			"  [--conns=N] [--v6] [--nagle] [--sndbuf=N] [--rcvbuf=N] [--io=NAME] [--wait=NAME]\n"
			"  [--endless] [--stall=SECONDS] [--upset=CALLS]\n  io:");
	io_list(stderr);
	fprintf(stderr, "\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "port", 1, 0, 'p' },	 { "seed", 1, 0, 's' },	  { "c2s", 1, 0, 'c' },
		{ "s2c", 1, 0, 'S' },	 { "proto", 1, 0, 'P' },  { "turn", 1, 0, 't' },
		{ "seg", 1, 0, 'g' },	 { "hold", 1, 0, 'h' },	  { "conns", 1, 0, 'n' },
		{ "endless", 0, 0, 'e' }, { "stall", 1, 0, 'T' },
		{ "v6", 0, 0, '6' },	 { "sndbuf", 1, 0, 'B' }, { "rcvbuf", 1, 0, 'R' },
		{ "io", 1, 0, 'i' },	 { "wait", 1, 0, 'w' },	  { "nagle", 0, 0, 'N' },
		{ "upset", 1, 0, 'u' },	 {},
	};
	struct opts o = { .conns = 1, .seed = 1, .turn = 4096, .seg = 65536, .io = io_find("send"),
			  .wait = "block", .proto = "duplex", .stall = 20 };
	struct conn *c;
	double t;
	int k;

	o.client = argc > 1 && !strcmp(argv[1], "client");
	if (argc < 2 || (!o.client && strcmp(argv[1], "server")))
		usage();
	while ((k = getopt_long(argc - 1, argv + 1, "", longs, NULL)) != -1) {
		switch (k) {
		case 'p': o.port = atoi(optarg); break;
		case 's': o.seed = strtoull(optarg, NULL, 0); break;
		case 'c': o.c2s = size_arg(optarg); break;
		case 'S': o.s2c = size_arg(optarg); break;
		case 'P': o.proto = optarg; break;
		case 't': o.turn = size_arg(optarg); break;
		case 'g': o.seg = size_arg(optarg); break;
		case 'h': o.hold = size_arg(optarg); break;
		case 'n': o.conns = atoi(optarg); break;
		case '6': o.v6 = true; break;
		case 'B': o.sndbuf = size_arg(optarg); break;
		case 'N': o.nagle = true; break;
		case 'e': o.endless = true; break;
		case 'T': o.stall = atoi(optarg); break;
		case 'R': o.rcvbuf = size_arg(optarg); break;
		case 'i': o.io = io_find(optarg); break;
		case 'w': o.wait = optarg; break;
		case 'u': o.upset = size_arg(optarg); break;
		default: usage();
		}
	}
	if (!o.io || wait_find(o.wait) || !o.turn || o.seg < 1 || o.seg > XRT_BUF || o.conns < 1)
		usage();
	next_hold = o.hold ? o.hold : UINT64_MAX;
	signal(SIGPIPE, SIG_IGN);
	if (o.endless)
		signal(SIGUSR1, on_end);
	wait_patience(o.stall);
	c = calloc(o.conns, sizeof(*c));
	open_conns(&o, c);
	t = now_us();
	wait_run(o.wait, c, o.conns);
	t = now_us() - t;
	for (int i = 0; i < o.conns; i++)
		io_close(&c[i]);
	return report(&o, c, t);
}
