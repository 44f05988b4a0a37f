/* SPDX-License-Identifier: BSD-2-Clause */
/* What the two programs may do.  A connected, B accepted. */
#include <stdlib.h>
#include <string.h>
#include "fabric.h"
#include "scenario.h"

#define RECV		[ACT_RECV] = ALWAYS
#define RECVS(n)	[ACT_RECV] = (n)
#define SEND(n)		[ACT_SEND] = (n)
#define BULK(n)		[ACT_BULK] = (n)
#define BYTE		[ACT_RECV1] = 1		/* a read of one byte, whatever there is */
#define POLL		[ACT_POLL] = 1
#define SLEEP		[ACT_WAIT_IN] = 1
#define SLEEP_OUT	[ACT_WAIT_OUT] = 1
#define SHUT		[ACT_SHUT] = 1
#define CLOSE		[ACT_CLOSE] = 1
#define BACK		[ACT_SEAL] = 1		/* a retreat; the hooks go on */
#define BACKS(n)	[ACT_SEAL] = (n)
#define LEAVE(n)	[ACT_LEAVE] = (n)	/* a retreat after which it may come back */
#define EXEC		[ACT_EXEC] = 1		/* a retreat; a raw reader and writer goes on */
#define KILL		[ACT_KILL] = 1

const struct scenario scenarios[] = {
	/* every instant of a freeze, from either end and from both */
	{ "one-way", .left = { { SEND(1), BULK(1), BACK }, { RECV, BYTE, BACK } } },
	{ "one-way-exec", .left = { { SEND(1), BULK(1), RECV, BACK }, { RECV, EXEC } } },
	{ "both-ways", .left = { { SEND(1), RECV, BACK }, { SEND(1), RECV, BACK } } },
	{ "both-ways-exec", .left = { { SEND(1), RECV, BACK }, { SEND(1), RECV, EXEC } } },
	{ "both-ways-lag", .lag = 1, .left = { { SEND(1), RECV, BACK }, { SEND(1), RECV, BACK } } },
	{ "both-exec", .left = { { SEND(1), RECV, EXEC }, { SEND(1), RECV, EXEC } } },
	{ "exec-lag", .lag = 1, .left = { { SEND(2), RECV }, { SEND(1), RECV, EXEC } } },
	{ "bulk-both", .left = { { BULK(1), RECV, BACK }, { BULK(1), RECV } } },
	{ "twice", .left = { { SEND(1), RECV, BACKS(2) }, { SEND(1), RECV, BACK } } },
	{ "back-exec", .handover = 1, .left = { { SEND(2), RECV }, { SEND(1), RECV, BACK, EXEC } } },

	/* the ends of a connection */
	{ "half-close", .left = { { SEND(1), SHUT, RECV, BACK }, { SHUT, RECV } } },
	{ "half-close-poll", .left = { { SEND(2), POLL, RECV }, { EXEC, SHUT, RECV } } },
	{ "half-close-both-exec", .left = { { SEND(1), SHUT, RECV }, { SHUT, RECV, EXEC } } },
	{ "half-close-exec", .left = { { SEND(1), SHUT, RECV }, { SEND(1), RECV, EXEC } } },
	{ "half-close-lag", .lag = 1, .left = { { SEND(1), SHUT, RECV, BACK }, { SHUT, RECV } } },
	{ "close", .left = { { SEND(1), CLOSE, RECV, BACK }, { SEND(1), RECV } } },
	{ "close-both", .left = { { SEND(1), CLOSE, RECV, BACK }, { CLOSE, RECV } } },
	{ "close-exec", .handover = 1, .left = { { SEND(1), CLOSE, RECV }, { SEND(1), RECV, EXEC } } },
	{ "close-lag", .lag = 1, .left = { { SEND(1), CLOSE, RECV, BACK }, { SEND(1), RECV } } },
	{ "close-hurried", .hurried = 1,
	  .left = { { SEND(1), CLOSE, RECV, BACK }, { SEND(1), RECV } } },

	/* death at any step: memory is final, then the FIN and the hang-up come in any order */
	{ "kill", .left = { { SEND(1), BULK(1), RECV, KILL }, { SEND(1), RECV } } },
	{ "kill-half-close", .left = { { SEND(1), RECV, SHUT, KILL }, { SEND(1), SHUT, RECV } } },
	{ "kill-close", .left = { { SEND(1), RECV, CLOSE }, { SEND(1), RECV, KILL } } },
	{ "kill-both", .left = { { SEND(1), RECV, KILL, SHUT }, { SEND(1), RECV, KILL } } },
	{ "kill-lag", .lag = 1, .left = { { SEND(1), RECV, KILL }, { SEND(1), RECV } } },
	{ "kill-hurried", .hurried = 1, .left = { { SEND(2), RECV, KILL }, { SEND(1), RECV } } },
	{ "kill-sealed", .left = { { SEND(2), RECV, KILL }, { RECV, BACK } } },
	{ "kill-retreat", .left = { { SEND(1), RECV, BACK, KILL }, { RECV, BACK } } },

	/* the upgrade, and all that may come in between */
	{ "upgrade", .on_tcp = 1, .left = { { SEND(3), RECV }, { SEND(2), RECV } } },
	{ "upgrade-lag", .on_tcp = 1, .lag = 1, .left = { { SEND(2), RECV }, { SEND(2), RECV } } },
	{ "upgrade-back", .on_tcp = 1, .left = { { SEND(2), RECV, BACK }, { SEND(2), RECV } } },
	{ "upgrade-back-caller", .on_tcp = 1, .left = { { SEND(2), RECV }, { SEND(2), RECV, BACK } } },
	{ "upgrade-exec", .on_tcp = 1, .left = { { SEND(2), RECV, EXEC }, { SEND(2), RECV } } },
	{ "upgrade-exec-caller", .on_tcp = 1, .left = { { SEND(2), RECV }, { SEND(2), RECV, EXEC } } },
	{ "upgrade-shut", .on_tcp = 1, .left = { { SEND(2), RECV, SHUT }, { SEND(2), RECV } } },
	{ "upgrade-shut-caller", .on_tcp = 1, .left = { { SEND(2), RECV }, { SEND(2), RECV, SHUT } } },
	{ "upgrade-close", .on_tcp = 1, .left = { { SEND(2), RECV, CLOSE }, { SEND(2), RECV } } },
	{ "upgrade-close-caller", .on_tcp = 1, .left = { { SEND(2), RECV }, { SEND(2), RECV, CLOSE } } },
	{ "upgrade-kill", .on_tcp = 1, .left = { { SEND(2), RECV, KILL }, { SEND(2), RECV } } },
	{ "upgrade-kill-caller", .on_tcp = 1, .left = { { SEND(2), RECV }, { SEND(2), RECV, KILL } } },

	/* once more, with fresh blocks: from each stage of the way back */
	{ "return-1", .after = 1, .left = { { SEND(1), RECV, LEAVE(1) }, { SEND(2), RECV } } },
	{ "return-1-kill", .after = 1, .left = { { SEND(1), RECV, KILL }, { SEND(2), RECV } } },
	{ "return-2-caller", .after = 2, .left = { { SEND(1), RECV }, { SEND(2), RECV, LEAVE(1) } } },
	{ "return-2-close", .after = 2, .left = { { SEND(1), RECV, CLOSE }, { SEND(2), RECV } } },
	{ "return-2-exec", .after = 2, .left = { { SEND(2), RECV }, { SEND(1), RECV, EXEC } } },
	{ "return-3-caller", .after = 3, .left = { { SEND(1), RECV }, { SEND(1), RECV, LEAVE(1) } } },
	{ "return-3-kill", .after = 3, .left = { { SEND(1), RECV, KILL }, { SEND(2), RECV } } },
	{ "return-3-shut", .after = 3, .left = { { SEND(1), RECV }, { SEND(2), RECV, SHUT } } },
	{ "return-4", .after = 4, .left = { { SEND(1), RECV, LEAVE(1) }, { SEND(1), RECV } } },
	{ "return-4-back", .after = 4, .left = { { SEND(1), RECV }, { SEND(1), RECV, BACK } } },
	{ "return-5", .after = 5, .left = { { SEND(1), RECV, LEAVE(1) }, { SEND(1), RECV } } },
	{ "sleep-return", .after = 4,
	  .left = { { SEND(1), RECVS(1), SLEEP }, { SEND(2), RECVS(1) } } },

	/* sleepers, who call again only when they are woken */
	{ "sleep", .left = { { SEND(1), SLEEP }, { SEND(1), RECVS(1), SLEEP, BACK } } },
	{ "sleep-sealed", .left = { { RECVS(1), SLEEP, BACK }, { SEND(2), RECV } } },
	{ "sleep-room", .left = { { BULK(2), SLEEP_OUT }, { RECV, BACK } } },
	{ "sleep-shut", .left = { { SEND(1), RECVS(1), SLEEP, BACK }, { SEND(1), SHUT } } },
	{ "sleep-exec", .left = { { SEND(1), RECVS(1), SLEEP }, { SEND(1), RECVS(1), EXEC } } },
	{ "sleep-close", .left = { { SEND(1), CLOSE }, { SEND(1), RECVS(1), SLEEP, SLEEP_OUT } } },
	{ "sleep-close-hurried", .hurried = 1,
	  .left = { { SEND(1), CLOSE, RECVS(1) }, { RECVS(1), SLEEP, SLEEP_OUT } } },
	{ "sleep-kill", .left = { { SEND(1), KILL }, { RECVS(1), SLEEP } } },
	{ "sleep-upgrade", .on_tcp = 1,
	  .left = { { SEND(2), RECVS(1), SLEEP }, { SEND(2), RECVS(2) } } },

	/* with the store buffers of x86 */
	{ "tso-one-way", .tso = 1, .left = { { SEND(1), BULK(1), RECV }, { RECV, BACK } } },
	{ "tso-one-way-back", .tso = 1, .left = { { SEND(2), RECV, BACK }, { RECV } } },
	{ "tso-sleep", .tso = 1, .left = { { SEND(2) }, { RECVS(1), SLEEP } } },
	{ "tso-sleep-back", .tso = 1, .left = { { RECVS(1), SLEEP }, { SEND(1), BACK } } },
	{ "tso-sleep-sealed", .tso = 1, .left = { { RECVS(1), SLEEP, BACK }, { SEND(2) } } },
	{ "tso-sleep-room", .tso = 1, .left = { { BULK(2), SLEEP_OUT }, { RECV } } },
	{ "tso-sleep-shut", .tso = 1, .left = { { SEND(1), SHUT }, { RECVS(1), SLEEP } } },
	{ "tso-upgrade", .tso = 1, .on_tcp = 1,
	  .left = { { SEND(2), RECVS(1), SLEEP }, { SEND(2), RECVS(1) } } },
	{ "tso-close", .tso = 1, .left = { { SEND(1), CLOSE, RECV }, { SEND(1), RECV } } },

	/* between hosts: the channel dies, or is left, at any step */
	{ "far-fine", .far = 1, .fine = 1, .deaths = 1, .left = { { SEND(1) }, { RECV } } },
	{ "far-one-way", .far = 1, .deaths = 1, .left = { { SEND(2) }, { RECVS(2) } } },
	{ "far-bulk", .far = 1, .deaths = 1, .left = { { BULK(1) }, { RECV } } },
	{ "far-both-ways", .far = 1, .deaths = 1, .left = { { SEND(1) }, { SEND(1), RECV } } },
	{ "far-back", .far = 1, .left = { { SEND(1), BACK }, { RECV } } },
	{ "far-back-exec", .far = 1, .handover = 1, .left = { { SEND(2) }, { BACK, EXEC } } },
	{ "far-back-reader", .far = 1, .left = { { SEND(1) }, { RECV, BACK } } },
	{ "far-leave", .far = 1, .left = { { SEND(1), LEAVE(1) }, { RECVS(2) } } },
	{ "far-lag", .far = 1, .deaths = 1, .lag = 1, .left = { { SEND(1) }, { RECV } } },
	{ "far-shut", .far = 1, .deaths = 1, .left = { { SHUT }, { SEND(1), RECV } } },
	{ "far-shut-sent", .far = 1, .deaths = 1, .left = { { SEND(1), SHUT }, { RECV } } },
	{ "far-close", .far = 1, .left = { { SEND(1), CLOSE }, { RECVS(2) } } },
	{ "far-close-unread", .far = 1, .deaths = 1, .left = { { CLOSE }, { SEND(1), RECVS(1) } } },
	{ "far-kill", .far = 1, .left = { { SEND(1), KILL }, { SEND(1), RECV } } },
	{ "far-kill-dies", .far = 1, .deaths = 1, .left = { { SEND(1), KILL }, { RECV } } },
	{ "far-return-4", .far = 1, .after = 4, .deaths = 1, .left = { { SEND(1), RECVS(1) }, { SEND(1) } } },
	{ "far-again", .far = 1, .after = 5, .deaths = 1, .left = { { SEND(1) }, { RECV } } },
	{ "far-sleep", .far = 1, .deaths = 1, .left = { { SEND(1) }, { RECVS(1), SLEEP } } },

	/* the same with more of everything: minutes */
	{ "deep-one-way", .deep = 1, .left = { { SEND(2), BULK(1), BACK, POLL }, { RECV, BYTE, BACK } } },
	{ "deep-both-ways", .deep = 1, .left = { { SEND(2), RECV, BACK }, { SEND(2), RECV, BACK } } },
	{ "deep-close", .deep = 1, .left = { { SEND(1), CLOSE, RECV, BACK }, { SEND(1), CLOSE, RECV, BACK } } },
	{ "deep-half-close", .deep = 1,
	  .left = { { SEND(2), SHUT, RECV, BACK }, { SEND(1), SHUT, RECV, BACK } } },
	{ "deep-poll", .deep = 1,
	  .left = { { SEND(2), POLL, BACK, RECVS(1) }, { SEND(1), POLL, RECV, SHUT } } },
	{ "deep-upgrade", .deep = 1, .on_tcp = 1,
	  .left = { { SEND(2), RECV, BACK }, { SEND(2), RECV, BACK } } },
	{ "deep-sleep", .deep = 1,
	  .left = { { SEND(2), RECVS(1), SLEEP, BACK }, { SEND(2), RECVS(1), SLEEP } } },
	{ "deep-sleep-upgrade", .deep = 1, .on_tcp = 1,
	  .left = { { SEND(2), RECVS(2), SLEEP }, { SEND(2), RECVS(2), SLEEP } } },
	{ "deep-return-kill", .deep = 1, .after = 1, .left = { { SEND(2), RECV, KILL }, { SEND(2), RECV } } },
	{ "deep-return", .deep = 1, .after = 1, .left = { { SEND(3), RECV, LEAVE(1) }, { SEND(3), RECV } } },
	{ "deep-return-both", .deep = 1, .after = 3,
	  .left = { { SEND(2), RECV, LEAVE(1) }, { SEND(2), RECV, LEAVE(1) } } },
	{ "deep-sleep-return", .deep = 1, .after = 4,
	  .left = { { SEND(2), RECVS(1), SLEEP, LEAVE(1) }, { SEND(2), RECVS(1), SLEEP } } },
	{ NULL, .deep = 0 }
};

static void call(int e, enum act a)
{
	world_begin(e, a);
	while (world_may_run(e))
		world_resume(e);
	fabric_pump();
}

/* Each byte takes a step of an upgrade. */
static void exchange(void)
{
	int e;

	for (e = 0; e < 2; e++) {
		call(e, ACT_SEND);
		call(1 - e, ACT_RECV);
	}
}

void scenario_start(const struct scenario *s)
{
	int e, i;

	coarse = 1;
	plain = tso = lag = hurried = 0;
	wrong = NULL;
	hosts = s->far;
	world_init();
	for (i = 0; !s->on_tcp && i < 8; i++)
		exchange();
	if (s->after)
		call(0, ACT_LEAVE);
	for (i = 0; i < s->after - 1; i++)
		exchange();
	/* what waits for a step of the other end's replay, or of its module */
	for (i = 0; s->far && i < 8 && (W.side[0].got != W.side[1].sent || W.side[1].got != W.side[0].sent); i++)
		call(i & 1, ACT_RECV);
	coarse = 0;
	plain = s->far && !s->fine;
	tso = s->tso;
	lag = s->lag;
	hurried = s->hurried;
	handover = s->handover;
	X.deaths = s->deaths;
	for (e = 0; e < 2; e++) {
		if (!s->on_tcp && !s->after && (W.flow[e].tx_state != XR_TX_RING || W.flow[e].rx_state != XR_RX_RING))
			abort();
		W.side[e].sent = W.side[e].tried = W.side[e].got = 0;
		memcpy(W.side[e].left, s->left[e], sizeof(s->left[e]));
		end_settle(e);
	}
}
