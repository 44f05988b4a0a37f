/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is assumed of a kind of device, all of it.  Anything that is not here is asked of the device itself.
 *
 * rxe and siw are drivers of the kernel and were tried; what stands at the others is from their documents and
 * has not been tried on hardware.
 */
#include "fabric_verbs.h"

static const struct v_quirk quirks[] = {
	/*
	 * Tried.  Emulated by the kernel over UDP; has windows of type 2.  A send whose memory is wrong is flushed like
	 * those behind it, and a receive that is too small ends as one with a wrong key does.  A window opens all of
	 * the region that it lies in: it gets one of its own.  A READ whose answer comes out of order, after packets
	 * were lost or late, fails with the queue pair, but is said to have succeeded (rxe_completer, where it warns).
	 * A packet without a route ends the queue pair that sends it, that of the connection manager too, for good.
	 */
	{ .driver = "rxe", .vendor = 0xffffff, .software = 1, .silent = 1, .loose_window = 1, .hollow = 1,
	  .brittle = 1 },
	/* Tried.  iWARP over the kernel's TCP; has no windows. */
	{ .driver = "siw", .vendor = 0x626d74, .software = 1, .no_window = 1 },
	/* Not tried.  Nothing is assumed but what they report. */
	{ .driver = "mlx5", .vendor = 0x2c9 },
	/* Not tried.  Its queue pairs are of a kind of their own, and have no windows; READs are an option of it. */
	{ .driver = "efa", .vendor = 0x1d0f, .no_reuse = 1, .no_window = 1, .slow_read = 1 },
};

/* Not tried either: whatever else there is. */
static const struct v_quirk plain = { .driver = "unknown" };

const struct v_quirk *v_quirk(uint32_t vendor)
{
	size_t i;

	for (i = 0; i < XR_ARRAY_LEN(quirks); i++)
		if (quirks[i].vendor == vendor)
			return &quirks[i];
	return &plain;
}
