/* SPDX-License-Identifier: BSD-2-Clause */
/* What the configuration says about a flow, and how the flow shows to xr-stat. */
#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <linux/sockios.h>
#include <sys/syscall.h>
#include "far.h"
#include "flow.h"
#include "log.h"
#include "mem.h"
#include "process.h"
#include "rundir.h"
#include "trace.h"
#include "upgrade.h"

static char policy_program[4096];	/* path of the executable; written once by each first caller */

static char policy_started[4096];	/* its name as a plain path; written by xr_policy_init */

/*
 * What the program was started by, where that is a path: a link to the executable, or a
 * script, which is what people call it.
 */
static const char *policy_name(void)
{
	const char *as = policy_started[0] ? policy_started : (const char *)getauxval(AT_EXECFN);

	return as && *as && strncmp(as, "/dev/fd/", 8) ? as : NULL;
}

/* The link itself stays, only the way to it is made plain; the kernel says where that is. */
void xr_policy_init(void)
{
	const char *as = policy_name(), *base;
	char way[sizeof(policy_started)], link[32];
	size_t room = sizeof(policy_started);
	long fd, n;

	if (!as || !xr_cfg.n_rules || xr_config_plain_path(as))
		return;
	base = strrchr(as, '/');
	base = base ? base + 1 : as;
	if (xr_snprintf(way, sizeof(way), "%.*s", (int)(base - as), as) >= (int)sizeof(way))
		return;
	fd = xr_sys4(SYS_openat, AT_FDCWD, base == as ? "." : way, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	xr_snprintf(link, sizeof(link), "/proc/self/fd/%ld", fd);
	n = xr_sys4(SYS_readlinkat, AT_FDCWD, link, way, sizeof(way) - 1);
	xr_sys1(SYS_close, fd);
	if (n <= 0 || *way != '/' || (size_t)n + 1 + strlen(base) >= room)
		return;
	way[n] = '\0';
	xr_snprintf(policy_started, room, "%s/%s", n > 1 ? way : "", base);
}

static const char *policy_exe(void)
{
	if (!policy_program[0]) {
		long n = xr_sys4(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", policy_program,
				 sizeof(policy_program) - 1);

		if (n <= 0)
			policy_program[0] = '?';
	}
	return policy_program;
}

static enum xr_role policy_role(const struct xr_flow *f)
{
	return f->role == XR_FLOW_ACCEPT ? XR_ROLE_SERVER : XR_ROLE_CLIENT;
}

enum xr_action xr_flow_rule(const struct xr_flow *f, const struct sockaddr *local,
			    const struct sockaddr *peer)
{
	return xr_config_match(&xr_cfg, policy_exe(), policy_name(), policy_role(f), peer, local);
}

/* ---- what xr-stat sees ------------------------------------------------------ */

void xr_policy_publish(void)
{
	static _Atomic uint32_t told;	/* of a directory that was asked for and cannot be used */
	uint32_t no = 0;
	int r;

	/* a sandbox that the process put itself into may kill for opening a file */
	if (!xr_cfg.stats || xr_process_passed())
		return;
	/*
	 * Failure is counted there; slots are NULL then, which every function accepts.  Where there
	 * is no address space for flows, none is taken for slots.
	 */
	r = xr_stats_open(xr_cfg.stats_dir, policy_name() ? policy_name() : policy_exe(),
			  xr_slab.flow ? xr_slab.max : 0);
	if (!r)
		xr_stats_off(xr_config_off(&xr_cfg));
	else if (r != -EALREADY && xr_cfg.origin[XR_KEY_STATS_DIR] != XR_ORIGIN_DEFAULT &&
		 xr_cas(&told, &no, 1))
		xr_warn("stats_dir %s: %s: xr-stat does not show this process", xr_cfg.stats_dir,
			xr_error_text(r));
}

int xr_policy_trace(void)
{
	if (!xr_cfg.stats || xr_process_passed() || xr_vfork_depth)
		return -EPERM;
	return xr_trace_open(xr_cfg.stats_dir, XR_TRACE_FLOWS, policy_name() ? policy_name() : policy_exe());
}

void xr_policy_unlisted(enum xr_reason why)
{
	xr_policy_publish();
	xr_stats_reason(why);
	xr_stats_unlisted(why);
}

void xr_flow_stats_attach(struct xr_flow *f, int fd, const struct sockaddr *local,
			  const struct sockaddr *peer)
{
	struct stat st = { 0 };

	if (!xr_cfg.stats || f->st)
		return;
	xr_policy_publish();
	xr_sys2(SYS_fstat, fd, &st);
	f->st = xr_stats_flow_alloc(fd, st.st_ino, policy_role(f), local, peer);
	if (f->st) {
		/* what was moved before; all of it, once the flow ends or where the kernel says nothing */
		xr_store_relaxed(&f->st->tx.bytes[XR_CARRIER_TCP], xr_load_relaxed(&f->tcp_tx));
		xr_store_relaxed(&f->st->rx.bytes[XR_CARRIER_TCP], xr_load_relaxed(&f->tcp_rx));
	}
	if (!f->st && !f->own->unlisted && *xr_stats_path()) {
		f->own->unlisted = 1;
		xr_stats_unlisted(XR_REASON_NONE);
	}
}

void xr_flow_list(struct xr_flow *f, int fd)
{
	union xr_sockaddr local, peer;
	struct xr_tuple t;

	/* in a vfork child the number may be another file's, and the memory is the parent's */
	if (!xr_cfg.stats || f->st || xr_vfork_depth || xr_process_passed() ||
	    f->owner_pid != xr_getpid() || xr_flow_tx_trylock(f))
		return;
	/* not connected yet: then when it is (xr_flow_connecting) */
	if (!xr_tuple_get(fd, &t, &local, &peer))
		xr_flow_stats_attach(f, fd, &local.sa, &peer.sa);
	xr_flow_tx_unlock(f);
}

void xr_flow_stats_last(struct xr_flow *f, int fd)
{
	struct xr_stats_flow *st = f->st;
	uint64_t written, got, acked;

	if (!st || xr_process_passed() || f->owner_pid != xr_getpid() ||
	    xr_ksock_moved(fd, &written, &got))
		return;
	/* where both disagree the kernel may have counted packets that it could not send */
	if (written != xr_load_relaxed(&f->tcp_tx) && !xr_ksock_written(fd, f->role == XR_FLOW_CONNECT, &acked))
		written = acked;
	xr_store_relaxed(&st->tx.bytes[XR_CARRIER_TCP], written - xr_load_relaxed(&st->tx.twice));
	xr_store_relaxed(&st->rx.bytes[XR_CARRIER_TCP], got - xr_load_relaxed(&st->rx.twice));
}

void xr_flow_stats_child(struct xr_flow *f, enum xr_carrier tx, enum xr_carrier rx)
{
	uint32_t now = 1u << 31 | (uint32_t)f->reason << 8 | (uint32_t)tx << 4 | (uint32_t)rx;
	struct xr_stats_flow *st = f->st, *their;
	struct xr_stats_map map;
	struct stat file = { 0 };

	/* in a sandbox as in xr_policy_publish; a retreat that takes several calls tells it once */
	if (!st || f->own->shown == now || xr_process_passed() || xr_vfork_depth)
		return;
	f->own->shown = now;
	xr_sys2(SYS_fstat, xr_flow_fd(f), &file);
	their = xr_stats_parent_map(st, file.st_ino, &map);
	if (!their)
		return;
	xr_stats_flow_reason(their, (enum xr_reason)f->reason);
	xr_stats_flow_carrier(their, tx, rx, 0);
	xr_stats_parent_unmap(&map);
}

/* ---- eligibility ---------------------------------------------------------- */

static int up_protocol_is_tcp(int fd)
{
	int proto = 0;
	socklen_t len = sizeof(proto);

	return !xr_sys5(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &proto, &len) &&
	       proto == IPPROTO_TCP;
}

/*
 * Nothing of what was sent is acknowledged: the last step of the handshake may not have been taken at
 * the other end, and where that is here, its socket is not there to be found yet.
 */
static int up_unheard(const struct xr_flow *f, int fd)
{
	int outq = 0;

	return !xr_sys3(SYS_ioctl, fd, SIOCOUTQ, &outq) && outq > 0 &&
	       (uint64_t)outq >= xr_load_relaxed(&f->tcp_tx);
}

enum xr_reason xr_up_eligible(struct xr_flow *f, int fd, struct xr_tuple *t, uint32_t *way)
{
	union xr_sockaddr local, peer;
	struct xr_sock_ident id;
	struct xr_tuple far;
	enum xr_action action;
	enum xr_reason why;
	int r;

	r = xr_tuple_get(fd, t, &local, &peer);
	if (r)
		return r == -EAFNOSUPPORT ? XR_REASON_FAMILY : XR_REASON_CONNECTING;
	/* first of all: whatever keeps it on TCP is to be seen */
	xr_flow_stats_attach(f, fd, &local.sa, &peer.sa);
	why = xr_config_off(&xr_cfg);
	if (why != XR_REASON_NONE)
		return why;
	if (xr_flow_holders(f) > 1)
		return XR_REASON_FORKED;
	action = xr_flow_rule(f, &local.sa, &peer.sa);
	if (action == XR_ACTION_TCP)
		return XR_REASON_RULE;
	if (!up_protocol_is_tcp(fd))
		return XR_REASON_MPTCP;
	xr_tuple_mirror(&far, t);
	if (!memcmp(&far, t, sizeof(far)))
		return XR_REASON_SELF_CONNECT;
	/* where the device for other hosts is the one within a host, that is tried out */
	if (xr_far_is_shm()) {
		*way = XR_WAY_FAR;
		return XR_REASON_NONE;
	}
	r = xr_proof_lookup(&far, &id);
	/* EAGAIN: below a signal handler that interrupted a look-up */
	if (r == -EAGAIN || (r == -ENOENT && up_unheard(f, fd)))
		return XR_REASON_YOUNG;
	/* in another network namespace, perhaps; who is there comes to the run directory */
	if (r == -ENOENT && !f->own->not_dir && xr_rundir_usable()) {
		*way = XR_WAY_DIR;
		return XR_REASON_NONE;
	}
	if (r == -ENOENT) {
		why = xr_far_off();
		if (why == XR_REASON_NONE)
			*way = XR_WAY_FAR;
		return why;
	}
	if (r)
		return r == -EMFILE || r == -ENFILE ? XR_REASON_LIMIT_FDS :
						      XR_REASON_PROOF_UNAVAILABLE;
	return XR_REASON_NONE;
}
