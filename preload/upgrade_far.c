/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The upgrade of a flow to another host: the module finds the other end and proves it
 * (bridge/meet.h); what is left to do here is to ask, and to attach to what it has made.  tx_lock
 * of the flow is held.
 */
#include <errno.h>
#include <string.h>
#include "helper.h"
#include "log.h"
#include "mem.h"
#include "upgrade.h"

#define FAR_HANDLER_MS	50u	/* after an attempt within a signal handler */

int xr_up_far_begin(struct xr_upgrade *u)
{
	struct xr_bridge_cmd cmd = { .type = XR_BRIDGE_BEGIN, .id = u->nonce, .tuple = u->tuple,
				     .connecting = u->f->role == XR_FLOW_CONNECT,
				     .rtt_us = xr_ksock_rtt_us(xr_flow_fd(u->f)) };
	int r = xr_helper_link(&u->link);

	u->state = XR_UP_FAR;
	if (!r) {
		cmd.link = u->link->id;
		r = xr_helper_send(&cmd);
	}
	if (r == -EDEADLK) {
		/* a handler is over soon, unless it has forked a child that lives in it */
		u->why = XR_REASON_LIMIT_THREADS;
		u->again_ms = FAR_HANDLER_MS;
		return -ECANCELED;
	}
	if (r != -ENODEV)
		return r;
	u->why = xr_helper_why();
	return -ECANCELED;
}

static int far_attach(struct xr_upgrade *u, const struct xr_bridge_answer *a)
{
	struct xr_bridge_cmd cmd = { .type = XR_BRIDGE_ATTACH, .id = u->nonce, .cookie = u->f->index };
	struct xr_flow *f = u->f;
	int r;

	u->peer_dir_off = a->dir_off;
	u->peer_cookie = a->cookie;
	r = xr_up_own_dir(u);
	if (!r)
		r = xr_up_peer_dir(u);
	if (r)
		return r;
	xr_far_attach(f, a);
	cmd.dir_off = f->dir_off;
	r = xr_helper_send(&cmd);
	if (r) {
		f->link = NULL;
		return r;
	}
	u->state = XR_UP_EXCHANGED;
	return 0;
}

int xr_up_far_step(struct xr_upgrade *u)
{
	struct xr_bridge_answer a;
	int r = xr_helper_answer(u->nonce, &a);

	if (!r)
		return 0;
	if (r < 0) {
		u->why = xr_helper_why();
		return -ECANCELED;
	}
	if (a.type != XR_BRIDGE_UP) {
		u->why = (enum xr_reason)a.reason;
		u->again_ms = a.again_ms;
		return -ECANCELED;
	}
	r = far_attach(u, &a);
	memset(a.secret, 0, sizeof(a.secret));
	return r;
}

void xr_up_far_drop(struct xr_upgrade *u)
{
	struct xr_bridge_cmd cmd = { .type = XR_BRIDGE_CANCEL, .id = u->nonce };

	/* what is attached is told by the state of its direction */
	if (u->state != XR_UP_FAR)
		return;
	xr_helper_forget(u->nonce);
	xr_helper_send(&cmd);
}
