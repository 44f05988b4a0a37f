/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that move bytes. */
#include "actor.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define VEC	IOV_MAX

/* The same bytes in pieces; shape is a number of the script. */
static int cut(struct iovec *v, uint8_t *base, size_t n, int shape)
{
	size_t at = 0, piece, i = 0;
	int left;

	switch (shape) {
	case 0:
		v[0] = (struct iovec){ base, n };
		return 1;
	case 1:
		v[0] = (struct iovec){ base, n / 2 };
		v[1] = (struct iovec){ base + n / 2, n - n / 2 };
		return 2;
	case 2: /* empty pieces in between, whose address is none */
		v[0] = (struct iovec){ NULL, 0 };
		v[1] = (struct iovec){ base, n / 3 };
		v[2] = (struct iovec){ NULL, 0 };
		v[3] = (struct iovec){ base + n / 3, n - n / 3 };
		v[4] = (struct iovec){ NULL, 0 };
		return 5;
	default: /* many, of sizes that differ; the last one takes the rest */
		left = shape == 3 ? 20 : shape == 4 ? 64 : VEC;
		for (; left > 1 && at < n; left--, i++) {
			piece = 1 + i * 7 % 13;
			if (shape == 5)
				piece = 1 + i % 3;
			if (piece > n - at)
				piece = n - at;
			v[i] = (struct iovec){ base + at, piece };
			at += piece;
		}
		v[i] = (struct iovec){ base + at, n - at };
		return (int)i + 1;
	}
}

long do_send(const struct op *o, struct res *r)
{
	int fd = fd_of(o), flags = o->arg[3], cnt;
	const struct m_file *f = file_of(o);
	size_t n = (size_t)o->arg[2];
	struct sockaddr_in sa = { .sin_family = AF_INET };
	static struct iovec v[VEC];
	struct mmsghdr mm = { 0 };
	const uint8_t *p = a.sh->pattern;
	long ret;
	int e;

	if (f)
		p = pattern_at(f->conn, f->end, atomic_load(&a.sh->sent[f->conn][f->end]));
	cnt = send_has_iov(o->arg[1]) ? cut(v, (uint8_t *)(uintptr_t)p, n, o->arg[4]) : 1;
	switch (o->arg[1]) {
	case SEND_SEND:
		ret = send(fd, p, n, flags);
		break;
	case SEND_WRITE:
		ret = write(fd, p, n);
		break;
	case SEND_SENDTO:
		ret = sendto(fd, p, n, flags, NULL, 0);
		break;
	case SEND_SENDTO_ADDR:
		ret = sendto(fd, p, n, flags, (struct sockaddr *)&sa, sizeof(sa));
		break;
	case SEND_WRITEV:
		ret = writev(fd, v, cnt);
		break;
	case SEND_SENDFILE: {
		off_t at = p - (const uint8_t *)a.sh;

		/* the table of bytes is a file as well; its own offset does not move */
		ret = sendfile(fd, a.file, &at, n);
		e = errno;
		res_extra(r, at - (p - (const uint8_t *)a.sh));
		errno = e;
		break;
	}
	case SEND_PWRITEV2:
		ret = pwritev2(fd, v, cnt, -1, 0);
		break;
	case SEND_SENDMSG:
		mm.msg_hdr = (struct msghdr){ .msg_iov = v, .msg_iovlen = (size_t)cnt };
		ret = sendmsg(fd, &mm.msg_hdr, flags);
		break;
	default:
		mm.msg_hdr = (struct msghdr){ .msg_iov = v, .msg_iovlen = (size_t)cnt };
		ret = sendmmsg(fd, &mm, 1, flags);
		e = errno;
		res_extra(r, ret);
		if (ret == 1)
			ret = mm.msg_len;
		errno = e;
		break;
	}
	e = errno;
	if (f)
		after_send(fd, f, ret);
	errno = e;
	return ret;
}

/* What was received is what was sent, and nothing else was written to. */
static void check(struct res *r, const struct m_file *f, const uint8_t *buf, long ret, size_t n,
		  int flags)
{
	size_t got = ret > 0 ? (size_t)ret : 0, i, seen = n - got < 4096 ? n - got : 4096;
	const uint8_t *want;

	if (flags & MSG_TRUNC)
		seen = n < 4096 ? n : 4096;
	if (got && f && !(flags & MSG_TRUNC)) {
		want = pattern_at(f->conn, !f->end, atomic_load(&a.sh->rcvd[f->conn][f->end]));
		if (memcmp(want, buf, got)) {
			for (i = 0; i < got && want[i] == buf[i]; i++)
				;
			r->bad = (int)i + 1;
		}
	}
	buf += flags & MSG_TRUNC ? 0 : got;
	/* as far as the call may not have written: the kernel does not touch it either */
	for (i = 0; i < seen; i++)
		if (buf[i] != CANARY) {
			r->bad = 1000000000 + (int)i;
			break;
		}
	if (got && f && !(flags & MSG_PEEK))
		atomic_fetch_add(&a.sh->rcvd[f->conn][f->end], got);
}

long do_recv(const struct op *o, struct res *r, const struct m_file *f)
{
	int fd = fd_of(o), flags = o->arg[3], cnt, e;
	uint8_t *buf = a.buf[o->thread];
	size_t n = (size_t)o->arg[2];
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char control[128];
	struct iovec v[VEC];
	struct mmsghdr mm = { 0 };
	long ret;

	memset(buf, CANARY, n < 40000 ? n : 40000);
	cnt = recv_has_iov(o->arg[1]) ? cut(v, buf, n, o->arg[4]) : 1;
	switch (o->arg[1]) {
	case RECV_RECV:
		ret = recv(fd, buf, n, flags);
		break;
	case RECV_READ:
		ret = read(fd, buf, n);
		break;
	case RECV_RECVFROM:
		ret = recvfrom(fd, buf, n, flags, NULL, NULL);
		break;
	case RECV_RECVFROM_ADDR:
		ret = recvfrom(fd, buf, n, flags, (struct sockaddr *)&ss, &len);
		if (ret >= 0)
			res_extra(r, len);
		break;
	case RECV_READV:
		ret = readv(fd, v, cnt);
		break;
	case RECV_PREADV2:
		ret = preadv2(fd, v, cnt, -1, 0);
		break;
	case RECV_RECVMSG:
	case RECV_RECVMSG_FULL:
		mm.msg_hdr = (struct msghdr){ .msg_iov = v, .msg_iovlen = (size_t)cnt };
		if (o->arg[1] == RECV_RECVMSG_FULL) {
			mm.msg_hdr.msg_control = control;
			mm.msg_hdr.msg_controllen = sizeof(control);
			mm.msg_hdr.msg_name = &ss;
			mm.msg_hdr.msg_namelen = sizeof(ss);
		}
		mm.msg_hdr.msg_flags = 0x1234;
		ret = recvmsg(fd, &mm.msg_hdr, flags);
		break;
	default:
		mm.msg_hdr = (struct msghdr){ .msg_iov = v, .msg_iovlen = (size_t)cnt };
		ret = recvmmsg(fd, &mm, 1, flags, NULL);
		e = errno;
		res_extra(r, ret);
		if (ret == 1)
			ret = mm.msg_len;
		errno = e;
		break;
	}
	e = errno;
	if (o->arg[1] == RECV_RECVMSG || o->arg[1] == RECV_RECVMSG_FULL ||
	    o->arg[1] == RECV_RECVMMSG) {
		res_extra(r, mm.msg_hdr.msg_flags);
		res_extra(r, (int64_t)mm.msg_hdr.msg_controllen);
		res_extra(r, mm.msg_hdr.msg_namelen);
	}
	if (!recv_has_flags(o->arg[1]))
		flags = 0;
	if (flags & MSG_ERRQUEUE)
		flags = MSG_PEEK;
	check(r, f, buf, ret, n < 40000 ? n : 40000, flags);
	errno = e;
	return ret;
}

/* Reads what is left on every connection of this process, to its end if it has one. */
long do_drain(struct res *r)
{
	struct m_file done[CONNS * 2];
	int i, j, n = 0;
	long sum = 0;

	for (i = 0; i < SLOTS; i++) {
		const struct m_file *f = &a.m.slot[a.side][i];
		uint64_t give_up = 0;

		for (j = 0; j < n && (done[j].conn != f->conn || done[j].end != f->end); j++)
			;
		if (f->conn < 0 || j < n)
			continue;
		done[n++] = *f;
		for (;;) {
			uint64_t sent = atomic_load(&a.sh->sent[f->conn][!f->end]);
			uint64_t rcvd = atomic_load(&a.sh->rcvd[f->conn][f->end]);
			uint8_t *buf = a.buf[0];
			ssize_t k = recv(a.fd[i], buf, 65536, MSG_DONTWAIT);

			if (k > 0) {
				if (memcmp(buf, pattern_at(f->conn, !f->end, rcvd), (size_t)k))
					r->bad = 1;
				atomic_fetch_add(&a.sh->rcvd[f->conn][f->end], (uint64_t)k);
				sum += k;
				continue;
			}
			/* still under way? */
			if (k < 0 && errno == EAGAIN && rcvd < sent) {
				if (!give_up)
					give_up = now_us() + 300000;
				if (now_us() < give_up) {
					yield();
					continue;
				}
			}
			res_extra(r, k < 0 ? errno : 0);
			/* an error is reported once: what follows it is part of the answer */
			if (k < 0 && errno != EAGAIN) {
				k = recv(a.fd[i], buf, 65536, MSG_DONTWAIT);
				res_extra(r, k < 0 ? errno : k);
			}
			break;
		}
	}
	return sum;
}
