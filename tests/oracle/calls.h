/* SPDX-License-Identifier: BSD-2-Clause */
/* Numbers in scripts: which call of a family, which option.  Stored cases know them: append only. */
#ifndef ORACLE_CALLS_H
#define ORACLE_CALLS_H

enum send_call {
	SEND_SEND, SEND_WRITE, SEND_SENDTO, SEND_WRITEV, SEND_SENDMSG, SEND_SENDMMSG,
	SEND_PWRITEV2, SEND_SENDTO_ADDR, SEND_SENDFILE, SEND_CALLS
};
enum recv_call {
	RECV_RECV, RECV_READ, RECV_RECVFROM, RECV_READV, RECV_RECVMSG, RECV_RECVMMSG,
	RECV_PREADV2, RECV_RECVFROM_ADDR, RECV_RECVMSG_FULL, RECV_CALLS
};
enum dup_call { DUP_DUP, DUP_FCNTL, DUP_FCNTL_CLOEXEC, DUP_DUP2, DUP_DUP3, DUP_CALLS };
enum option {
	OPT_RCVLOWAT, OPT_RCVTIMEO, OPT_SNDTIMEO, OPT_LINGER, OPT_NODELAY, OPT_CORK, OPT_KEEPALIVE,
	OPT_OOBINLINE, OPT_RXQ_OVFL, OPT_QUICKACK, OPT_PRIORITY, OPT_USER_TIMEOUT, OPT_RCVBUF,
	OPT_SNDBUF, OPT_ERROR, OPT_TYPE, OPT_DOMAIN, OPT_PROTOCOL, OPT_ACCEPTCONN, OPT_STATE,
	OPT_KEEPIDLE, OPT_MAXSEG, OPT_UNKNOWN, OPT_CALLS,
	OPT_SETS = OPT_ERROR
};
enum ioctl_call {
	IOC_FIONREAD, IOC_SIOCOUTQ, IOC_GETFL, IOC_GETFD, IOC_SETFD, IOC_SIOCATMARK, IOC_UNKNOWN,
	IOC_FSTAT, IOC_LSEEK, IOC_CALLS
};

/* Of do_bad. */
enum { BAD_WRITEV_MIXED = 44, BAD_EPWAIT = 57, BAD_EPWAIT_TOP = 65, BAD_CALLS = 68 };

static inline int send_has_flags(int call)
{
	return call != SEND_WRITE && call != SEND_WRITEV && call != SEND_PWRITEV2 &&
	       call != SEND_SENDFILE;
}

static inline int send_has_iov(int call)
{
	return call >= SEND_WRITEV && call <= SEND_PWRITEV2;
}

/* File calls, which return 0 for a length of 0. */
static inline int recv_is_read(int call)
{
	return call == RECV_READ || call == RECV_READV || call == RECV_PREADV2;
}

static inline int recv_has_flags(int call)
{
	return !recv_is_read(call);
}

static inline int recv_has_iov(int call)
{
	return call == RECV_READV || call == RECV_RECVMSG || call == RECV_RECVMMSG ||
	       call == RECV_PREADV2 || call == RECV_RECVMSG_FULL;
}

static inline int dup_names_target(int call)
{
	return call == DUP_DUP2 || call == DUP_DUP3;
}

/* In an event's data: a set, not a slot. */
#define EP_NESTED	0x100u

enum { THREAD_FREE, THREAD_READS, THREAD_WAITS, THREAD_WOKEN, THREAD_DONE };

#endif
