/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_STAT_INFO_H
#define XR_STAT_INFO_H

/*
 * The fields of xr-stat --info, in their order: X(name, form, phrases). The printing code is in
 * stat_table.c; the list in xr-stat(1) is made from here, and a test compares both.
 */
#define XR_INFO_TABLE(X)                                                                           \
	X("ino", "N", "inode of the socket, as in /proc/PID/fd")                                   \
	X("role", "client | server", "whether this end connected or accepted")                     \
	X("peer_pid", "N", "process at the other end, once it was met")                            \
	X("age", "seconds", "since the connection came into the list")                             \
	X("upgraded", "seconds", "since it last moved to a fabric; left out if it never did")      \
	X("turns", "N", "changes of direction, as of the last attempt to upgrade it")              \
	X("attempts", "N", "attempts to upgrade it")                                               \
	X("upgrades", "N", "attempts that moved it to a fabric")                                   \
	X("retreats", "N", "times that it came back to TCP")                                       \
	X("last_reason", "reason", "of the last failed attempt or retreat; left out if there was none") \
	X("again", "seconds", "until this end may leave TCP again, 0 with the next data; left out if "    \
	  "nothing waits for that")                                                                \
	X("bytes_tcp", "bytes/bytes", "sent and received over TCP, from the first byte on")        \
	X("bytes_shm", "bytes/bytes", "sent and received over shared memory")                      \
	X("bytes_rdma", "bytes/bytes", "sent and received over RDMA")                              \
	X("msgs", "N/N", "sends and receives that a fabric served")                                \
	X("window", "bytes/bytes", "most that may be under way; only the sender's is known")       \
	X("slots", "N/N", "message slots of the ring, towards the peer and from it")               \
	X("credits", "N/N", "of these free now; only the sender's are known")                      \
	X("rnr", "N/N", "times that a send found no free slot or no window") \
	X("rendezvous", "N", "of the messages sent, those that were too long for a slot: the "     \
	  "receiver fetched them from memory of the sender")                                       \
	X("coalesced", "N", "of the messages sent, those that were added to one that the receiver " \
	  "had not come to yet")                                                                   \
	X("probes", "N", "looks at the other end while nothing came from there")                   \
	X("qpn", "N/N", "numbers of the queue pair that carries it over RDMA, or did last, and of " \
	  "the peer's; this and the next two are left out if it never was there")                  \
	X("gid", "address", "GID that the queue pair goes by")                                     \
	X("device", "name", "RDMA device that the queue pair is of")

#endif /* XR_STAT_INFO_H */
