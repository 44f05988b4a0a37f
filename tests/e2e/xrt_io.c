/* SPDX-License-Identifier: BSD-2-Clause */
/* How bytes are moved: one pair of functions per family of calls. */
#include "pattern.h"
#include "xrt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define NVEC 5

/* What gcc emits under _FORTIFY_SOURCE; called by name so that no build flag decides it. */
ssize_t __recv_chk(int fd, void *buf, size_t n, size_t buflen, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t n, size_t buflen, int flags, struct sockaddr *from,
		       socklen_t *fromlen);
ssize_t __read_chk(int fd, void *buf, size_t n, size_t buflen);

uint64_t xrt_rand(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ULL;
	return pattern_mix(*state);
}

/* Cut a buffer into NVEC pieces of uneven size; pieces may be empty, as programs' often are. */
static int cut(uint64_t *rng, uint8_t *buf, size_t len, struct iovec *v)
{
	for (int i = 0; i < NVEC; i++) {
		size_t n = i == NVEC - 1 ? len : xrt_rand(rng) % (len + 1);

		v[i] = (struct iovec){ .iov_base = buf, .iov_len = n };
		buf += n;
		len -= n;
	}
	return NVEC;
}

static ssize_t tx_send(struct conn *c, uint8_t *buf, size_t len)
{
	return send(c->fd, buf, len, MSG_NOSIGNAL);
}

static ssize_t rx_recv(struct conn *c, uint8_t *buf, size_t len)
{
	return recv(c->fd, buf, len, 0);
}

static ssize_t tx_sendto(struct conn *c, uint8_t *buf, size_t len)
{
	/* Never corked on the last bytes of a turn: the kernel would hold them back for 200 ms. */
	int more = c->tx_room > len && len % 2 ? MSG_MORE : 0;

	return sendto(c->fd, buf, len, MSG_NOSIGNAL | more, NULL, 0);
}

static ssize_t rx_recvfrom(struct conn *c, uint8_t *buf, size_t len)
{
	struct sockaddr_storage from;
	socklen_t n = sizeof(from);

	return recvfrom(c->fd, buf, len, 0, (struct sockaddr *)&from, &n);
}

static ssize_t tx_write(struct conn *c, uint8_t *buf, size_t len)
{
	return write(c->fd, buf, len);
}

static ssize_t rx_read(struct conn *c, uint8_t *buf, size_t len)
{
	return read(c->fd, buf, len);
}

static ssize_t tx_writev(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];

	return writev(c->fd, v, cut(&c->rng_tx, buf, len, v));
}

static ssize_t rx_readv(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];

	return readv(c->fd, v, cut(&c->rng_rx, buf, len, v));
}

static ssize_t tx_pwritev2(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];

	return pwritev2(c->fd, v, cut(&c->rng_tx, buf, len, v), -1, 0);
}

static ssize_t rx_preadv2(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];

	return preadv2(c->fd, v, cut(&c->rng_rx, buf, len, v), -1, 0);
}

static ssize_t tx_sendmsg(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];
	struct msghdr m = { .msg_iov = v, .msg_iovlen = cut(&c->rng_tx, buf, len, v) };

	return sendmsg(c->fd, &m, MSG_NOSIGNAL);
}

static ssize_t rx_recvmsg(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];
	char control[256];
	struct msghdr m = { .msg_iov = v,
			    .msg_iovlen = cut(&c->rng_rx, buf, len, v),
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(c->fd, &m, 0);

	if (n >= 0 && m.msg_controllen != 0) /* nothing on TCP asked for control data */
		conn_fail(c, "recvmsg-control", EPROTO, c->rx_off);
	return n;
}

static ssize_t tx_sendmmsg(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];
	struct mmsghdr m[NVEC] = {};
	int n = cut(&c->rng_tx, buf, len, v), k = 0;
	ssize_t sum = 0;

	for (int i = 0; i < n; i++)
		if (v[i].iov_len)
			m[k++].msg_hdr = (struct msghdr){ .msg_iov = &v[i], .msg_iovlen = 1 };
	n = sendmmsg(c->fd, m, k, MSG_NOSIGNAL);
	for (int i = 0; i < n; i++)
		sum += m[i].msg_len;
	return n < 0 ? -1 : sum;
}

static ssize_t rx_recvmmsg(struct conn *c, uint8_t *buf, size_t len)
{
	struct iovec v[NVEC];
	struct mmsghdr m[NVEC] = {};
	int n = cut(&c->rng_rx, buf, len, v), k = 0;
	ssize_t sum = 0;
	bool gap = false;

	for (int i = 0; i < n; i++)
		if (v[i].iov_len)
			m[k++].msg_hdr = (struct msghdr){ .msg_iov = &v[i], .msg_iovlen = 1 };
	n = recvmmsg(c->fd, m, k, MSG_WAITFORONE, NULL);
	for (int i = 0; i < n; i++) {
		/* A short message leaves a hole before the next: close it up. */
		if (gap)
			memmove(buf + sum, m[i].msg_hdr.msg_iov->iov_base, m[i].msg_len);
		sum += m[i].msg_len;
		gap |= m[i].msg_len < m[i].msg_hdr.msg_iov->iov_len;
	}
	return n < 0 ? -1 : sum;
}

static ssize_t tx_stdio(struct conn *c, uint8_t *buf, size_t len)
{
	if (fwrite(buf, 1, len, c->out) != len || fflush(c->out))
		return -1;
	return len;
}

static ssize_t rx_stdio(struct conn *c, uint8_t *buf, size_t len)
{
	size_t n = fread(buf, 1, len, c->in);

	return n == 0 && ferror(c->in) ? -1 : (ssize_t)n;
}

/* The byte that is peeked is the byte that is read, however often and at whatever length. */
static ssize_t rx_peek(struct conn *c, uint8_t *buf, size_t len)
{
	static _Thread_local uint8_t seen[4096];
	size_t ask = len < sizeof(seen) ? len : sizeof(seen);
	ssize_t p = recv(c->fd, seen, ask, MSG_PEEK), again, n;

	if (p <= 0)
		return p;
	again = recv(c->fd, seen, p, MSG_PEEK | MSG_DONTWAIT);
	if (again != p)
		conn_fail(c, "peek-shrank", EPROTO, c->rx_off);
	n = recv(c->fd, buf, len, 0);
	if (n < (ssize_t)p && (size_t)n != len)
		conn_fail(c, "read-less-than-peeked", EPROTO, c->rx_off);
	if (n > 0 && memcmp(seen, buf, n < p ? n : p))
		conn_fail(c, "peek-differs", EPROTO, c->rx_off);
	if (c->bad_op)
		fprintf(stderr, "xrt: peeked %zd of %zu, then %zd, then read %zd of %zu\n", p, ask, again, n,
			len);
	return n;
}

static ssize_t rx_waitall(struct conn *c, uint8_t *buf, size_t len)
{
	ssize_t n = recv(c->fd, buf, len, MSG_WAITALL);

	/* Blocking and no end of stream before len: WAITALL may not come back short. */
	if (n >= 0 && (size_t)n != len && c->rx_off + len <= c->rx_total)
		conn_fail(c, "waitall-short", EPROTO, c->rx_off + n);
	return n;
}

static void wait_one(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
}

static ssize_t tx_dontwait(struct conn *c, uint8_t *buf, size_t len)
{
	ssize_t n;

	while ((n = send(c->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL)) < 0 && errno == EAGAIN)
		wait_one(c->fd, POLLOUT);
	return n;
}

static ssize_t rx_dontwait(struct conn *c, uint8_t *buf, size_t len)
{
	ssize_t n;

	while ((n = recv(c->fd, buf, len, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
		wait_one(c->fd, POLLIN);
	return n;
}

static ssize_t tx_splice(struct conn *c, uint8_t *buf, size_t len)
{
	ssize_t n;

	if (c->txpipe_left == 0) {
		n = write(c->txpipe[1], buf, len < 65536 ? len : 65536);
		if (n < 0)
			return n;
		c->txpipe_left = n;
	}
	/* After a short splice the rest is in the pipe already and buf repeats it. */
	n = splice(c->txpipe[0], NULL, c->fd, NULL, len < c->txpipe_left ? len : c->txpipe_left,
		   SPLICE_F_MOVE);
	if (n > 0)
		c->txpipe_left -= n;
	return n;
}

static ssize_t rx_splice(struct conn *c, uint8_t *buf, size_t len)
{
	ssize_t n = splice(c->fd, NULL, c->rxpipe[1], NULL, len < 65536 ? len : 65536, 0), got = 0;

	while (got < n) {
		ssize_t k = read(c->rxpipe[0], buf + got, n - got);

		if (k <= 0)
			return -1;
		got += k;
	}
	return n;
}

/*
 * sendfile sends the page, not a copy: a byte written over before it is delivered is delivered
 * changed. So each stream offset has its own place in the file.
 */
static ssize_t tx_sendfile(struct conn *c, uint8_t *buf, size_t len)
{
	off_t off = c->tx_off;

	if (pwrite(c->mem, buf, len, off) != (ssize_t)len)
		return -1;
	return sendfile(c->fd, c->mem, &off, len);
}

static ssize_t tx_sendfile64(struct conn *c, uint8_t *buf, size_t len)
{
	if (pwrite(c->mem, buf, len, c->tx_off) != (ssize_t)len ||
	    lseek(c->mem, c->tx_off, SEEK_SET) < 0)
		return -1;
	return sendfile64(c->fd, c->mem, NULL, len);
}

/* Reads on one descriptor, writes on its duplicate, and the reverse the next time. */
static ssize_t tx_dup(struct conn *c, uint8_t *buf, size_t len)
{
	return write(xrt_rand(&c->rng_tx) & 1 ? c->fd : c->fd2, buf, len);
}

static ssize_t rx_dup(struct conn *c, uint8_t *buf, size_t len)
{
	return read(xrt_rand(&c->rng_rx) & 1 ? c->fd : c->fd2, buf, len);
}

static ssize_t rx_chk(struct conn *c, uint8_t *buf, size_t len)
{
	switch (xrt_rand(&c->rng_rx) % 3) {
	case 0:
		return __read_chk(c->fd, buf, len, XRT_BUF);
	case 1:
		return __recv_chk(c->fd, buf, len, XRT_BUF, 0);
	default:
		return __recvfrom_chk(c->fd, buf, len, XRT_BUF, 0, NULL, NULL);
	}
}

static ssize_t tx_mix(struct conn *c, uint8_t *buf, size_t len)
{
	static ssize_t (*const f[])(struct conn *, uint8_t *, size_t) = {
		tx_send, tx_sendto, tx_write,    tx_writev,   tx_pwritev2,   tx_sendmsg,
		tx_dup,  tx_splice, tx_sendmmsg, tx_sendfile, tx_sendfile64,
	};
	/* What waits in the pipe is next in the stream. */
	if (c->txpipe_left)
		return tx_splice(c, buf, len);
	return f[xrt_rand(&c->rng_tx) % (sizeof(f) / sizeof(*f))](c, buf, len);
}

static ssize_t rx_mix(struct conn *c, uint8_t *buf, size_t len)
{
	static ssize_t (*const f[])(struct conn *, uint8_t *, size_t) = {
		rx_recv, rx_recvfrom, rx_read,     rx_readv, rx_preadv2, rx_recvmsg,
		rx_dup,  rx_splice,   rx_recvmmsg, rx_peek,  rx_chk,
	};

	return f[xrt_rand(&c->rng_rx) % (sizeof(f) / sizeof(*f))](c, buf, len);
}

static const struct io ios[] = {
	{ "send", false, tx_send, rx_recv },
	{ "sendto", false, tx_sendto, rx_recvfrom },
	{ "rw", false, tx_write, rx_read },
	{ "iov", false, tx_writev, rx_readv },
	{ "v2", false, tx_pwritev2, rx_preadv2 },
	{ "msg", false, tx_sendmsg, rx_recvmsg },
	{ "mmsg", false, tx_sendmmsg, rx_recvmmsg },
	{ "stdio", true, tx_stdio, rx_stdio },
	{ "peek", false, tx_send, rx_peek },
	{ "waitall", true, tx_send, rx_waitall },
	{ "dontwait", true, tx_dontwait, rx_dontwait },
	{ "splice", false, tx_splice, rx_splice },
	{ "sendfile", false, tx_sendfile, rx_read },
	{ "sendfile64", false, tx_sendfile64, rx_recv },
	{ "dup", false, tx_dup, rx_dup },
	{ "chk", false, tx_write, rx_chk },
	{ "mix", false, tx_mix, rx_mix },
};

const struct io *io_find(const char *name)
{
	for (size_t i = 0; i < sizeof(ios) / sizeof(*ios); i++)
		if (!strcmp(ios[i].name, name))
			return &ios[i];
	return NULL;
}

void io_list(FILE *f)
{
	for (size_t i = 0; i < sizeof(ios) / sizeof(*ios); i++)
		fprintf(f, " %s", ios[i].name);
}

int io_open(struct conn *c)
{
	const char *n = c->o->io->name;
	bool mix = !strcmp(n, "mix");

	c->fd2 = c->fd;
	c->mem = c->txpipe[0] = c->rxpipe[0] = -1;
	if ((mix || !strcmp(n, "dup")) && (c->fd2 = dup(c->fd)) < 0)
		return -errno;
	if ((mix || !strcmp(n, "splice")) && (pipe(c->txpipe) || pipe(c->rxpipe)))
		return -errno;
	if ((mix || !strncmp(n, "sendfile", 8)) && (c->mem = memfd_create("xrt", MFD_CLOEXEC)) < 0)
		return -errno;
	if (!strcmp(n, "stdio")) {
		c->fd2 = dup(c->fd);
		c->in = fdopen(c->fd, "r");
		c->out = fdopen(c->fd2, "w");
		if (!c->in || !c->out)
			return -errno;
	}
	return 0;
}

void io_close(struct conn *c)
{
	if (c->in) {
		fclose(c->in);
		fclose(c->out);
		return;
	}
	if (c->fd2 != c->fd)
		close(c->fd2);
	if (c->mem >= 0)
		close(c->mem);
	for (int i = 0; i < 2; i++) {
		if (c->txpipe[0] >= 0)
			close(c->txpipe[i]);
		if (c->rxpipe[0] >= 0)
			close(c->rxpipe[i]);
	}
	close(c->fd);
}
