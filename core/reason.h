/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_REASON_H
#define XR_REASON_H

/*
 * Why a flow is on TCP. One code per flow at any moment (XR_REASON_NONE while a
 * fabric carries it), one counter per code in the statistics segment, one line
 * per code in xrdma(7). Codes travel to peers and to xr-stat of other versions:
 * append only, never renumber, never re-use. Names are at most 24 characters.
 */
#define XR_REASON_TABLE(X)                                                                         \
	X(NONE, 0, "none", "A fabric carries the flow.")                                           \
	X(YOUNG, 1, "young", "The connection has not yet lived long enough to pay for an upgrade.")\
	X(PEER_NOT_XRDMA, 2, "peer-not-xrdma", "The other end does not run under xrdma, or keeps to TCP.")          \
	X(PEER_REFUSED, 3, "peer-refused", "The other end runs xrdma and declined the upgrade.")   \
	X(DISABLED, 4, "disabled", "The configuration switches upgrades off.")                     \
	X(RULE, 5, "rule", "A [rule] of the configuration keeps this flow on TCP.")                \
	X(NOT_TCP, 6, "not-tcp", "The socket is not a TCP stream.")                                \
	X(NOT_LOCAL, 7, "not-local", "No fabric of this process reaches the peer's host.")         \
	X(FAMILY, 8, "family", "The address family is neither IPv4 nor IPv6.")                     \
	X(LISTENER, 9, "listener", "The socket listens; only its connections can be upgraded.")    \
	X(CONNECTING, 10, "connecting", "The connection is not established yet.")                  \
	X(INHERITED, 11, "inherited", "The descriptor was open when the program started.")         \
	X(PASSED_FD, 12, "passed-fd", "The descriptor came from or went to another process.")      \
	X(FORKED, 13, "forked", "More than one process holds the descriptor after a fork.")        \
	X(EXEC, 14, "exec", "The descriptor survives into a program started by exec.")             \
	X(FASTOPEN, 15, "fastopen", "TCP Fast Open was used to connect.")                          \
	X(OOB, 16, "oob", "The program uses urgent (out-of-band) data.")                           \
	X(OPTION, 17, "option", "The program set a socket option that only the kernel models.")    \
	X(IOCTL, 18, "ioctl", "The program used an ioctl that only the kernel models.")            \
	X(ULP, 19, "ulp", "An upper-layer protocol (kernel TLS, for one) is attached.")            \
	X(MPTCP, 20, "mptcp", "The socket is Multipath TCP.")                                      \
	X(SELF_CONNECT, 21, "self-connect", "The socket is connected to itself.")                  \
	X(UNHOOKED_IO, 22, "unhooked-io", "Bytes moved that did not pass through the hooks.")      \
	X(EPOLL_EXCLUSIVE, 23, "epoll-exclusive", "It is registered with epoll in a way that cannot move.")  \
	X(PROOF_FAILED, 24, "proof-failed", "The caller could not prove that it owns the peer.")   \
	X(PROOF_UNAVAILABLE, 25, "proof-unavailable", "The kernel offers no inet_diag to prove ownership with.") \
	X(VERSION_MISMATCH, 26, "version-mismatch", "The other end speaks another protocol version.") \
	X(BAD_HANDSHAKE, 27, "bad-handshake", "The other end sent a handshake that makes no sense.") \
	X(RENDEZVOUS_BUSY, 28, "rendezvous-busy", "Another process holds the name of the rendezvous point.") \
	X(RENDEZVOUS_FAILED, 29, "rendezvous-failed", "The rendezvous point could not be opened or called.") \
	X(LIMIT_FDS, 30, "limit-fds", "Too few descriptors are allowed, or left for xrdma.")      \
	X(LIMIT_FLOWS, 31, "limit-flows", "The process already has max_flows connections.")        \
	X(LIMIT_MEMORY, 32, "limit-memory",                                                        \
	  "The budget max_memory is used up, or a limit (RLIMIT_FSIZE, RLIMIT_AS) leaves no room.") \
	X(NO_SHM, 33, "no-shm", "Shared memory could not be created.")                             \
	X(MEMLOCK, 34, "memlock", "Memory could not be locked (RLIMIT_MEMLOCK).")                  \
	X(MAP_FAILED, 35, "map-failed", "The shared segment could not be mapped.")                 \
	X(PEER_DIED, 36, "peer-died", "The peer process died or closed its end.")                  \
	X(SEGMENT_CORRUPT, 37, "segment-corrupt", "The peer wrote values that make no sense into shared memory.") \
	X(RETREAT_REQUESTED, 38, "retreat-requested", "The other end asked to return to TCP.")     \
	X(RETREAT_CALL, 39, "retreat-unsupported-call", "The program made a call that only the kernel can carry.") \
	X(SECCOMP, 40, "seccomp", "The process put itself under a seccomp filter or a sandbox.")   \
	X(SOFTWARE_DEVICE, 41, "software-device", "The RDMA device is emulated in software and slower than TCP.") \
	X(NO_KEY, 42, "no-key", "There is no key for RDMA between hosts, or none that may be used.")            \
	X(NO_VERBS, 43, "no-verbs", "The RDMA libraries or a usable device are missing.")          \
	X(TIMEOUT, 44, "timeout", "The other end did not answer within rendezvous_timeout.")       \
	X(INTERNAL, 45, "internal", "An internal check failed; the log has the line.")             \
	X(SUBSTITUTED, 46, "substituted", "The descriptor was replaced to hand over unread bytes.") \
	X(CLOSED, 47, "closed", "The connection ended before an upgrade was due, or over.")        \
	X(OPERATOR, 48, "operator", "An operator keeps it on TCP, until told otherwise (xr-stat --return).") \
	X(IWARP, 49, "iwarp", "The device is iWARP, whose ports are those of TCP.")                \
	X(RDMA_UNREACHABLE, 50, "rdma-unreachable", "The peer's host does not answer over RDMA at this address.") \
	X(FABRIC_LOST, 51, "fabric-lost", "The fabric failed, and the connection beneath it lives.") \
	X(LIMIT_THREADS, 52, "limit-threads",                                                      \
	  "The thread that RDMA needs could not be started, or ended for a call that needs it gone.") \
	X(LIMIT_RETURNS, 53, "limit-returns", "The fabric was lost too often: the connection returns later.") \
	X(TRANSLATED, 54, "translated",                                                            \
	  "Its addresses are translated on the way, and others may come from the same one (rdma_nat).") \
	X(SLOWER_PATH, 55, "slower-path",                                                          \
	  "Round trips over RDMA take longer than those of TCP to this host (rdma_compare).")

enum xr_reason {
#define XR_REASON_ENUM(sym, num, name, text) XR_REASON_##sym = num,
	XR_REASON_TABLE(XR_REASON_ENUM)
#undef XR_REASON_ENUM
	XR_REASON_COUNT /* one past the last code */
};

/*
 * Kebab-case name and one sentence of a code. Any number is allowed, also one
 * from a peer: unknown codes give "unknown" and a sentence that says so. The
 * strings are static. Thread-safe, async-signal-safe.
 */
const char *xr_reason_name(unsigned int code);
const char *xr_reason_text(unsigned int code);

/* The code with this name, or -ENOENT. */
int xr_reason_by_name(const char *name);

#endif /* XR_REASON_H */
