/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef XR_OPTION_TABLE_H
#define XR_OPTION_TABLE_H

/*
 * Every option of a context, once, in the order of enum xrdma_option.  From this table come ranges and presets of
 * xrdma_set_option() and the flags of xrdma_set_flag(); tests/check-man compares the ranges with the header's.
 *
 * X(SYMBOL, name, unit, least, most, preset, text)
 *   unit   NUMBER BYTES MS US: what a value without a unit is in
 */
#define XR_OPTION_TABLE(X)								\
	X(WINDOW_MSGS, window_msgs, NUMBER, 1, XR_WINDOW_MAX_MSGS, 64,			\
	  "messages that a peer may send ahead, at most")				\
	X(WINDOW_BYTES, window_bytes, BYTES, 65536, XR_WINDOW_MAX_BYTES, 8u << 20,	\
	  "bytes of the messages that a peer may send ahead")				\
	X(MAX_MSG, max_msg, BYTES, 1, 1ull << 30, 64u << 20, "bytes of one message")	\
	X(POOL_BYTES, pool_bytes, BYTES, XR_POOL_ARENA, 1ull << 40, 256u << 20,		\
	  "registered memory of the context; not once there was a channel")		\
	X(KEEPALIVE_MS, keepalive_ms, MS, 0, 3600000, 2000,				\
	  "a channel that was silent for so long is probed; 0: never")			\
	X(KEEPALIVE_PROBES, keepalive_probes, NUMBER, 0, 100, 3,			\
	  "intervals without an answer that end a channel; 0: none does")		\
	X(COPY, copy, NUMBER, 0, 1, 0, "1: messages are delivered from memory of this end alone") \
	X(QUEUE_US, queue_us, US, 0, 1000000, 8,					\
	  "queue in the network that is aimed at; 0: round trips say nothing; not once there was a channel") \
	X(FETCH_BYTES, fetch_bytes, BYTES, 65536, XR_WINDOW_MAX_BYTES, 64u << 20,	\
	  "bytes that are READ at once, over all channels; not once there was a channel") \
	X(QP_CACHE, qp_cache, NUMBER, 0, 4096, 64, "queue pairs that are kept for later channels") \
	X(DETECT_MS, detect_ms, MS, 10, 60000, 1000,					\
	  "over a network: without an acknowledgement for so long a peer is gone")	\
	X(TOS, tos, NUMBER, 0, 255, 0, "over a network: traffic class of packets")	\
	X(REST_MS, rest_ms, MS, 0, 3600000, 1000,					\
	  "a channel without messages for so long goes to rest; 0: never")		\
	X(TRACE_SAMPLE, trace_sample, NUMBER, 0, 1000000000, 0,				\
	  "one in so many messages is recorded for xr-trace; 0: none")			\
	X(HUGE_PAGES, huge_pages, NUMBER, 0, 1, 1,					\
	  "1: registered memory that is made afterwards is in huge pages, when there are any") \
	X(RENDEZVOUS, rendezvous, NUMBER, 0, 2, 0,					\
	  "large messages of peers: 0: as suits the device, 1: are READ, 2: are WRITten by them")

#endif
