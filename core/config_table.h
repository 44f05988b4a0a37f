/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_CONFIG_TABLE_H
#define XR_CONFIG_TABLE_H

/*
 * Every setting, once. From this table come the fields of struct xr_config, the
 * parser, the XRDMA_<KEY> variables, the options of xrdma-run (--key-with-dashes),
 * its --help, --show-config and the list in xrdma.conf(5).
 *
 * X(section, key, KEY, type, default, min, max, names, metavar, help, man)
 *   type     BOOL INT SIZE (bytes) TIME (nanoseconds) ENUM TEXT PATH
 *   min/max  inclusive, in the type's base unit; the length for TEXT and PATH
 *   names    for ENUM: the words, separated by |, numbered from 0
 *   help     one line, no full stop; man: sentences, plain text
 */
#define XR_CONFIG_TABLE(X)                                                                         \
	X(global, enabled, ENABLED, BOOL, "yes", 0, 1, NULL, "BOOL",                               \
	  "upgrade connections at all",                                                            \
	  "With no, every connection stays on TCP with the reason disabled, which xr-stat shows; " \
	  "the program runs as if xrdma were not there.")                                          \
	X(global, fabric, FABRIC, ENUM, "auto", 0, 2, "auto|shm|none", "FABRIC",                   \
	  "fabric that may carry connections",                                                     \
	  "auto takes the best fabric that reaches the peer, shm only shared memory within "       \
	  "this host, none keeps every connection on TCP.")                                        \
	X(global, stats, STATS, BOOL, "yes", 0, 1, NULL, "BOOL",                                   \
	  "publish statistics for xr-stat",                                                        \
	  "With no, nothing is written below stats_dir and xr-stat does not see the process.")     \
	X(global, stats_dir, STATS_DIR, PATH, "/dev/shm", 1, 200, NULL, "DIR",                     \
	  "directory that holds the statistics",                                                   \
	  "The process writes its statistics to xrdma-UID/PID.STARTTIME below this directory. "    \
	  "It should be memory-backed. One that cannot be used costs a line in the log, not the program.") \
	X(global, run_dir, RUN_DIR, PATH, "", 0, 60, NULL, "DIR",                                   \
	  "directory by which programs in other network namespaces are met",                       \
	  "Where containers of one host all have this directory, connections between them move "   \
	  "to shared memory; when empty they are taken for connections to other hosts. It must "   \
	  "belong to root or to the user of the program, and only its owner and its group may "    \
	  "write to it: whoever may is trusted not to make up a connection.")                      \
	X(global, log_level, LOG_LEVEL, ENUM, "warn", 0, 4, "none|error|warn|info|debug", "LEVEL", \
	  "what is worth a line",                                                                  \
	  "Lines of this importance and above are written.")                                       \
	X(global, log_file, LOG_FILE, PATH, "", 0, 250, NULL, "FILE",                              \
	  "file that takes the lines instead of stderr",                                           \
	  "Lines are appended to this file, each with time (UTC), program and process; one that it " \
	  "takes no more is lost and counted (log_lines_lost), and standard error is told so once. " \
	  "When empty, or when it cannot be written at the start, they go to standard error, as long " \
	  "as that is the one that the program was started with.")         \
	X(global, trace_sample, TRACE_SAMPLE, INT, "0", 0, 1000000000, NULL, "N",                  \
	  "trace one in N sends on a fabric; 0 traces none",                                       \
	  "On average, at random. Where the time of such a message went is shown by xr-trace, for " \
	  "both ends when both have the setting. Can be changed while programs run "               \
	  "(xr-stat --set). It needs the setting stats.")                                          \
	X(limits, max_flows, MAX_FLOWS, INT, "64K", 0, 1048576, NULL, "N",                         \
	  "connections of one process that may leave TCP, at once",                                \
	  "Sockets count from the moment they are made. Further connections stay on TCP with the " \
	  "reason limit-flows; xr-stat counts them and cannot list them. Under a limit of address "  \
	  "space (RLIMIT_AS) the number is what has room in a sixteenth of it.")                   \
	X(limits, max_memory, MAX_MEMORY, SIZE, "1G", 0, 1ull << 46, NULL, "SIZE",                 \
	  "shared memory that one process may use",                                                \
	  "The budget of all segments that this process creates. When it is used up, further "     \
	  "connections stay on TCP with the reason limit-memory. So do all where the limits of "   \
	  "file size (RLIMIT_FSIZE) or address space (RLIMIT_AS) leave no room for a segment.")    \
	X(limits, flow_window, FLOW_WINDOW, SIZE, "4M", 65536, 1ull << 30, NULL, "SIZE",           \
	  "bytes in flight per direction of a connection",                                         \
	  "The most that a sender may have sent and the receiving program not yet read.")          \
	X(limits, ring_slots, RING_SLOTS, INT, "64", XR_RING_MIN, XR_RING_MAX, NULL, "N",         \
	  "message slots per direction of a connection",                                           \
	  "Rounded up to a power of two. Each slot takes 128 bytes.")                              \
	X(limits, rendezvous_timeout, RENDEZVOUS_TIMEOUT, TIME, "1s", 1000000, 60000000000ull,     \
	  NULL, "TIME", "longest wait for the peer to answer an upgrade",                          \
	  "The connection works on TCP all the while; afterwards the attempt is given up.")        \
	X(thresholds, upgrade_turns, UPGRADE_TURNS, INT, "4", 0, 1000000, NULL, "N",               \
	  "changes of direction that make a connection worth an upgrade",                          \
	  "A turn is a read that follows a write. Whichever of upgrade_turns and upgrade_bytes "   \
	  "is reached first starts the upgrade; 0 starts it with the first byte.")                 \
	X(thresholds, upgrade_bytes, UPGRADE_BYTES, SIZE, "32K", 0, 1ull << 40, NULL, "SIZE",      \
	  "bytes that make a connection worth an upgrade",                                         \
	  "Counted over both directions; 0 starts the upgrade with the first byte.")               \
	X(thresholds, return_after, RETURN_AFTER, TIME, "100ms", 0, 3600000000000ull, NULL, "TIME",\
	  "shortest stay on TCP before a connection that came back moves again",                   \
	  "Doubled with each return to TCP and each failed attempt, up to 512 times; forgotten "   \
	  "when the connection stayed on a fabric for 64 times as long.")                          \
	X(thresholds, spin, SPIN, TIME, "50us", 0, 1000000000, NULL, "TIME",                       \
	  "longest busy wait before sleeping",                                                     \
	  "A call that would block polls the fabric for at most this long, and for less when "     \
	  "polling did not pay lately; 0 sleeps at once. For connections to other hosts, four "    \
	  "times as long. While other threads keep the core a thread gives polling up, for "\
	  "up to 0.64 s at a time; where more threads want to run than there are cores, 0 can "    \
	  "still be better.")                                                                      \
	X(rdma, rdma, RDMA, BOOL, "no", 0, 1, NULL, "BOOL",                                        \
	  "move connections to other hosts onto RDMA",                                             \
	  "New, and tried on an emulated device only: OTHER HOSTS in xrdma(7) has what is known to "\
	  "differ from TCP. The settings of this section are those of xr-ping(1), too.")           \
	X(rdma, rdma_device, RDMA_DEVICE, TEXT, "auto", 1, 63, NULL, "DEVICE",                     \
	  "device for connections to other hosts",                                                 \
	  "auto takes the device that has the local address of the connection; a name, mlx5_0 "    \
	  "for one, that device only, where it has the address.")                                  \
	X(rdma, rdma_key, RDMA_KEY, PATH, "", 0, 250, NULL, "FILE",                                \
	  "key that the hosts of a cluster share",                                                 \
	  "Ends of a connection on different hosts prove to each other that they have the same "   \
	  "key. The option make-key of xrdma-run makes one. It must belong to root or to the user of the "     \
	  "program, and only its owner and its group may read it. When empty, it is the file key " \
	  "beside the installed configuration file.")                                              \
	X(rdma, rdma_trust, RDMA_TRUST, ENUM, "key", 0, 1, "key|fabric", "TRUST",                  \
	  "what makes the other end of an RDMA connection trusted",                                \
	  "key takes the common key. fabric takes the network's word: whoever can use RDMA from "  \
	  "the address of a peer can then take over its connections; for closed networks only.")   \
	X(rdma, rdma_compare, RDMA_COMPARE, BOOL, "yes", 0, 1, NULL, "BOOL",                       \
	  "leave a way over RDMA that is slower than TCP",                                         \
	  "Round trips over RDMA are compared with the least one of TCP, before a connection moves and, while it is "\
	  "used, afterwards. A way on which none of many is short enough is left, and the host is not tried again for "\
	  "a minute and then ever longer, up to an hour (reason slower-path).")                    \
	X(rdma, rdma_nat, RDMA_NAT, ENUM, "auto", 0, 2, "no|auto|yes", "NAT",                      \
	  "RDMA where the server's address is translated on the way",                              \
	  "Between hosts that have a common key. The connecting end then knows a connection by its own " \
	  "address and port alone. auto permits that where no other can come from there: no other socket has "\
	  "them, and the network namespace neither tracks nor forwards connections. yes trusts that none that "\
	  "this host forwards or translates has them. With no, such a connection stays on TCP.")   \
	X(rdma, rdma_software, RDMA_SOFTWARE, BOOL, "no", 0, 1, NULL, "BOOL",                      \
	  "use RDMA devices that the kernel emulates",                                             \
	  "They are slower than TCP; yes is for tests.")                                           \
	X(rdma, rdma_huge_pages, RDMA_HUGE_PAGES, BOOL, "yes", 0, 1, NULL, "BOOL",                 \
	  "take memory for RDMA from huge pages, when there are any",                              \
	  "Registered memory is taken in pieces of 4 MiB, from the huge pages of 2 MiB that the "  \
	  "administrator has put aside. Where these do not suffice it is plain memory, and "       \
	  "rdma_huge_missed counts that.")

#endif /* XR_CONFIG_TABLE_H */
