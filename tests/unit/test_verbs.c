/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What only a device of the verbs libraries can show.  It wants one that can talk to itself (XRDMA_TEST_FABRIC) on
 * a link that it may do everything to (XRDMA_TEST_LINK), and another host (XRDMA_TEST_FAR, the file of its network
 * namespace); elsewhere there is nothing to run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include "child.h"
#include "core/channel.h"
#include "fabric_rig.h"
#include "ring_rig.h"

static struct end a, b;

static int clean(void **state)
{
	(void)state;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	a.attr.rnr_retry = b.attr.rnr_retry = 7;
	/* what hangs has failed */
	alarm(60);
	return 0;
}

static void end_both(void)
{
	assert_int_equal(end_close(&a), 0);
	assert_int_equal(end_close(&b), 0);
}

static int command(const char *format, const char *x, const char *y)
{
	char line[256];

	snprintf(line, sizeof(line), format, x, y);
	return system(line);
}

static const char *own_link(void)
{
	const char *l = getenv("XRDMA_TEST_LINK");

	return l ? l : "eth0";
}

static void what_it_says_of_itself(void **state)
{
	(void)state;
	end_open(&a);
	assert_string_equal(a.caps.name, "verbs");
	assert_true(a.caps.network && a.caps.passive && a.caps.up && a.caps.port);
	assert_true(a.caps.max_inline >= 64 && a.caps.max_rd_atomic >= 1 && a.caps.max_sge >= 2);
	assert_true(a.caps.mtu >= 256 && a.caps.quarantine_us > 100000);
	/* a link-local GID is chosen */
	assert_true(a.caps.gid[0] != 0xfe);
	assert_int_equal(end_close(&a), 0);
}

static void names_of_devices(void **state)
{
	static const struct { const char *what; int want; } t[] = {
		{ "no-such-device", -ENODEV }, { "127.0.0.1", -EADDRNOTAVAIL }, { "fe80::1", -EADDRNOTAVAIL },
		{ "192.0.2.1", -EADDRNOTAVAIL },
	};
	struct xr_dev *dev;
	const char *what;
	size_t i;

	(void)state;
	for (i = 0; i < XR_ARRAY_LEN(t); i++)
		assert_int_equal(rig_ops(&what)->open(t[i].what, &dev), t[i].want);
	end_open(&a);
	assert_int_equal(a.ops->open(a.caps.device, &dev), 0);
	assert_int_equal(a.ops->close(dev), 0);
	assert_int_equal(a.ops->open(NULL, &dev), 0);
	assert_int_equal(a.ops->close(dev), 0);
	assert_int_equal(end_close(&a), 0);
}

/* Requests that end well in silence: ERR and RESET know that they have ended. */
static void silence_before_the_end(void **state)
{
	uint32_t i;

	(void)state;
	rig_connect(&a, &b);
	for (i = 0; i < 5; i++) {
		assert_int_equal(post_recv(&b, i, b.mem, 64), 0);
		assert_int_equal(post(&a, XR_WR_SEND, i, a.mem, 64, 0, 0, 0), 0);
	}
	until(&a, &b, b.nwc == 5);
	settle(&a, &b);
	assert_int_equal(a.nwc, 0);
	assert_int_equal(a.ops->qp_modify(a.qp, XR_QPS_ERR), 0);
	assert_int_equal(post_send(&a, 77, a.mem, 64), 0);
	until(&a, &b, a.nwc && a.wc[a.nwc - 1].wr_id == 77);
	assert_int_equal(a.wc[a.nwc - 1].status, XR_WC_WR_FLUSH_ERR);
	settle(&a, &b);
	assert_int_equal(a.ops->qp_modify(a.qp, XR_QPS_RESET), 0);
	end_both();
}

/* Unacknowledged CQ events hang destroy. */
static void events_are_acknowledged(void **state)
{
	uint32_t i;

	(void)state;
	rig_connect(&a, &b);
	for (i = 0; i < 50; i++) {
		b.ops->cq_arm(b.cq);
		assert_int_equal(post_recv(&b, i, b.mem, 64), 0);
		assert_int_equal(post_send(&a, i, a.mem, 64), 0);
		until(&a, &b, b.nwc == i + 1);
		if (i % 2)
			b.ops->cq_event(b.cq);	/* the others stay where they are */
	}
	end_both();
}

/* PSN repeats on re-use. */
static void packet_numbers(void **state)
{
	unsigned int psn[2][20], k, i, j;
	struct xr_addr addr;
	char line[512];

	(void)state;
	rig_address(&addr);
	end_open(&a);
	end_open(&b);
	end_qp(&a);
	end_qp(&b);
	assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
	for (i = 0; i < 20; i++) {
		a.events[XR_CM_CONNECT_REQUEST] = a.events[XR_CM_ESTABLISHED] = b.events[XR_CM_ESTABLISHED] = 0;
		assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
		until(&a, &b, a.events[XR_CM_CONNECT_REQUEST]);
		a.id = a.ev.id;
		assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
		until(&a, &b, a.events[XR_CM_ESTABLISHED] && b.events[XR_CM_ESTABLISHED]);
		for (k = 0; k < 2; k++) {
			struct xr_qp *q = k ? b.qp : a.qp;
			const char *at;
			FILE *f;

			snprintf(line, sizeof(line), "rdma res show qp link %s/1 lqpn %u", a.caps.device, q->num);
			f = popen(line, "r");
			assert_non_null(f);
			assert_non_null(fgets(line, sizeof(line), f));
			pclose(f);
			at = strstr(line, "sq-psn ");
			assert_non_null(at);
			psn[k][i] = (unsigned int)strtoul(at + 7, NULL, 10);
			for (j = 0; j < i; j++)
				assert_int_not_equal(psn[k][j], psn[k][i]);
		}
		a.ops->cm_destroy(a.id);
		b.ops->cm_destroy(b.id);
		a.id = b.id = NULL;
		for (k = 0; k < 2; k++) {
			assert_int_equal(a.ops->qp_modify(k ? b.qp : a.qp, XR_QPS_RESET), 0);
			assert_int_equal(a.ops->qp_modify(k ? b.qp : a.qp, XR_QPS_INIT), 0);
		}
	}
	end_both();
}

/* Unaligned MR and fork. */
static void memory_across_fork(void **state)
{
	uint8_t *p = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct xr_mr *mr;
	struct xr_recv_wr wr;
	int st;
	pid_t pid;

	(void)state;
	rig_connect(&a, &b);
	memset(p, 1, 4 * 4096);
	assert_int_equal(b.ops->mr_reg(b.pd, p + 4000, 5000, XR_ACCESS_LOCAL_WRITE, &mr), 0);
	memset(b.mem, 0x33, 100);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid) {
		/* what was allocated for RDMA is shared, what the program registered is its own as ever */
		sleep(1);
		_exit(b.mem[0] == 0x44 && p[4000] == 1 && p[0] == 1 ? 0 : 1);
	}
	/* parent and child write to the pages: the device must go with the parent */
	memset(p, 2, 4 * 4096);
	b.mem[0] = 0x44;
	wr = (struct xr_recv_wr){ 1, { p + 4000, 5000, mr->lkey } };
	assert_int_equal(b.ops->post_recv(b.qp, &wr), 0);
	stream_fill(4, 0, a.mem, 5000);
	assert_int_equal(post_send(&a, 1, a.mem, 5000), 0);
	until(&a, &b, b.nwc == 1);
	assert_int_equal(b.wc[0].status, XR_WC_SUCCESS);
	assert_int_equal(stream_check(4, 0, p + 4000, 5000), 5000);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	assert_int_equal(st, 0);
	assert_int_equal(b.ops->mr_dereg(mr), 0);
	munmap(p, 4 * 4096);
	end_both();
}

/* ENOMEM from create_cq is memlock; and nobody may use a device that he has no right to. */
static void limits(void **state)
{
	struct rlimit l = { 65536, 65536 };
	int how, st;

	(void)state;
	for (how = 0; how < 2; how++) {
		pid_t pid;

		assert_int_equal(command("chmod %s /dev/infiniband/*%s", how ? "0600" : "0666", ""), 0);
		pid = child_fork();
		assert_true(pid >= 0);
		if (!pid) {
			struct xr_dev *dev;
			struct xr_pd *pd;
			struct xr_mr *mr;
			const char *what;
			const struct xr_fabric_ops *ops = rig_ops(&what);
			int r;

			if (setrlimit(RLIMIT_MEMLOCK, &l) || setresgid(65534, 65534, 65534) ||
			    setresuid(65534, 65534, 65534))
				_exit(10);
			r = ops->open(what, &dev);
			if (how)
				_exit(r == -EACCES || r == -EPERM ? 0 : -r);
			if (r)
				_exit(11);
			if (ops->pd_alloc(dev, &pd))
				_exit(12);
			_exit(ops->mr_alloc(pd, 4u << 20, XR_ACCESS_LOCAL_WRITE, &mr) == -ENOMEM ? 0 : 13);
		}
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_int_equal(st, 0);
	}
	assert_int_equal(command("chmod 0666 /dev/infiniband/*%s%s", "", ""), 0);
}

static void device_events(struct end *e, int status)
{
	uint64_t end = xr_now_ns() + 5000000000ull;
	struct xr_cm_event ev;

	for (;;) {
		if (e->ops->cm_get_event(e->dev, &ev) && ev.type == XR_CM_DEVICE) {
			assert_int_equal(ev.status, status);
			return;
		}
		assert_true(xr_now_ns() < end);
	}
}

/* The GID index moves after a flap. */
static void the_address_comes_and_goes(void **state)
{
	const char *ip = rig_device() + 6;

	(void)state;
	end_open(&a);
	assert_int_equal(command("ip addr del %s/24 dev %s", ip, own_link()), 0);
	device_events(&a, -EADDRNOTAVAIL);
	a.ops->query(a.dev, &a.caps);
	assert_int_equal(a.caps.gid[10] + a.caps.gid[15], 0);
	/* another one takes its place in the table */
	assert_int_equal(command("ip addr add 10.99.1.1/24 dev %s%s", own_link(), ""), 0);
	assert_int_equal(command("ip addr add %s/24 dev %s", ip, own_link()), 0);
	device_events(&a, 0);
	assert_int_equal(end_close(&a), 0);
	clean(NULL);
	rig_connect(&a, &b);
	assert_int_equal(post_recv(&b, 1, b.mem, 64), 0);
	assert_int_equal(post_send(&a, 1, a.mem, 64), 0);
	until(&a, &b, b.nwc == 1);
	assert_int_equal(command("ip addr del 10.99.1.1/24 dev %s%s", own_link(), ""), 0);
	end_both();
}

/* A port goes down and comes back: both are told, and connections are left to their timers. */
static void the_port_comes_and_goes(void **state)
{
	(void)state;
	end_open(&a);
	assert_int_equal(command("ip link set %s down%s", own_link(), ""), 0);
	device_events(&a, -ENETDOWN);
	a.ops->query(a.dev, &a.caps);
	assert_int_equal(a.caps.up, 0);
	assert_int_equal(command("ip link set %s up%s", own_link(), ""), 0);
	device_events(&a, 0);
	assert_int_equal(end_close(&a), 0);
}

/* Every request completes once when the device is taken away, and it can be taken: nothing of ours holds it. */
static void the_device_goes_away(void **state)
{
	uint32_t i, sends = 0;
	struct xr_mr *mr;
	struct xr_qp *qp;
	char name[64];
	pid_t pid;
	int st;

	(void)state;
	rig_connect(&a, &b);
	memcpy(name, a.caps.device, sizeof(name));
	for (i = 0; i < 40; i++)
		assert_int_equal(post_recv(&b, i, b.mem + i * 4096, 4096), 0);
	for (i = 0; i < 64; i++)
		sends += !post_send(&a, i, a.mem, 4096);
	pid = child_fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(command("rdma link del %s%s", name, "") ? 1 : 0);
	until(&a, &b, a.events[XR_CM_DEVICE] && b.events[XR_CM_DEVICE]);
	until(&a, &b, a.nwc == sends && b.nwc == 40);
	settle(&a, &b);
	assert_int_equal(a.nwc, sends);
	assert_int_equal(b.nwc, 40);
	assert_int_equal(a.events[XR_CM_DISCONNECTED], 1);
	assert_int_equal(b.events[XR_CM_DISCONNECTED], 1);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	assert_int_equal(st, 0);
	/* what is left is dead, and goes in the usual order */
	assert_int_equal(a.ops->mr_alloc(a.pd, 4096, XR_ACCESS_LOCAL_WRITE, &mr), -ENODEV);
	assert_int_equal(a.ops->qp_create(a.dev, &a.attr, &qp), -ENODEV);
	assert_int_equal(post_send(&a, 1000, a.mem, 64), 0);
	until(&a, &b, a.nwc == sends + 1);
	assert_int_equal(a.wc[sends].status, XR_WC_WR_FLUSH_ERR);
	end_both();
	/* and it comes back */
	assert_int_equal(command("rdma link add %s type rxe netdev %s", name, own_link()), 0);
	usleep(500000);
	clean(NULL);
	rig_connect(&a, &b);
	end_both();
}

/* --- another host ------------------------------------------------------------------------- */

static void enter(const char *netns)
{
	int fd = open(netns, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(setns(fd, CLONE_NEWNET), 0);
	close(fd);
}

/* Retry timers default to 4.3 s detection: the end is seen when the setting says. */
static void detection(void **state)
{
	static const struct { uint32_t ms, least, most; } t[] = { { 100, 50, 1500 }, { 2000, 900, 9000 } };
	const char *far = getenv("XRDMA_TEST_FAR");
	char home[64];
	uint32_t i;

	(void)state;
	if (!far)
		skip();
	/* that of the thread, and not by a name that setns() changes the meaning of */
	snprintf(home, sizeof(home), "/proc/self/fd/%d", open("/proc/thread-self/ns/net", O_RDONLY));
	for (i = 0; i < XR_ARRAY_LEN(t); i++) {
		struct xr_addr addr;
		uint64_t took;

		clean(NULL);
		b.attr.detect_ms = t[i].ms;
		b.attr.tos = 0x68;
		rig_address(&addr);
		end_open(&a);
		end_qp(&a);
		assert_int_equal(a.ops->cm_listen(a.dev, &addr, NULL, &a.listener), 0);
		/* the other end, on the other host: the namespace counts where something is made */
		enter(far);
		assert_int_equal(setenv("XRDMA_TEST_FABRIC_WAS", rig_device(), 1), 0);
		assert_int_equal(setenv("XRDMA_TEST_FABRIC", "verbs", 1), 0);
		end_open(&b);
		end_qp(&b);
		assert_int_equal(b.ops->cm_connect(b.dev, &addr, b.qp, NULL, 0, &b.id), 0);
		until(&a, &b, a.events[XR_CM_CONNECT_REQUEST]);
		enter(home);
		assert_int_equal(setenv("XRDMA_TEST_FABRIC", getenv("XRDMA_TEST_FABRIC_WAS"), 1), 0);
		a.id = a.ev.id;
		assert_int_equal(a.ops->cm_accept(a.id, a.qp, NULL, 0), 0);
		until(&a, &b, a.events[XR_CM_ESTABLISHED] && b.events[XR_CM_ESTABLISHED]);
		assert_int_equal(post_recv(&a, 1, a.mem, 64), 0);
		assert_int_equal(post_send(&b, 1, b.mem, 64), 0);
		until(&a, &b, b.nwc == 1);
		assert_int_equal(b.wc[0].status, XR_WC_SUCCESS);
		assert_int_equal(command("tc qdisc add dev %s root netem loss 100%%%s", own_link(), ""), 0);
		took = xr_now_ns();
		assert_int_equal(post_send(&b, 2, b.mem, 64), 0);
		while (b.nwc < 2 && xr_now_ns() - took < 20000000000ull)
			end_poll(&b);
		took = (xr_now_ns() - took) / 1000000;
		end_poll(&b);
		assert_int_equal(b.nwc, 2);
		assert_int_equal(b.wc[1].status, XR_WC_RETRY_EXC_ERR);
		print_message("detect_ms %u: seen after %u ms\n", t[i].ms, (uint32_t)took);
		assert_in_range(took, t[i].least, t[i].most);
		assert_int_equal(b.events[XR_CM_DISCONNECTED], 1);
		assert_int_equal(b.ev.status, -ECONNRESET);
		assert_int_equal(command("tc qdisc del dev %s root%s", own_link(), ""), 0);
		end_both();
		usleep(300000);
	}
}

/* --- channels ------------------------------------------------------------------------------- */

struct side {
	struct xrdma_context *ctx;
	uint32_t opened, closed;
};

static void on_open(struct xrdma_channel *ch, void *arg)
{
	(void)ch;
	((struct side *)arg)->opened++;
}

static void on_closed(struct xrdma_channel *ch, int error, void *arg)
{
	(void)ch;
	(void)error;
	((struct side *)arg)->closed++;
}

static int by_time(const void *x, const void *y)
{
	const uint64_t *p = x, *q = y;

	return *p < *q ? -1 : *p > *q;
}

/* What a queue pair that is used again saves: shown, and counted. */
static void setting_up(void **state)
{
	static const struct xrdma_callbacks cb = { .accepted = on_open, .connected = on_open, .closed = on_closed };
	struct xrdma_context_stats st;
	struct side x = { 0 }, y = { 0 };
	uint64_t took[2][30], get[2];
	char name[XR_ADDR_NAME];
	uint32_t cached, i;

	(void)state;
	rig_name(name);
	assert_int_equal(xrdma_context_create(&x.ctx, rig_device(), &cb, &x), 0);
	assert_int_equal(xrdma_context_create(&y.ctx, rig_device(), &cb, &y), 0);
	assert_int_equal(xrdma_listen(x.ctx, name), 0);
	x.ctx->qps.quarantine = y.ctx->qps.quarantine = 0;
	for (cached = 0; cached < 2; cached++) {
		xrdma_set_option(x.ctx, XRDMA_OPT_QP_CACHE, cached * 8);
		xrdma_set_option(y.ctx, XRDMA_OPT_QP_CACHE, cached * 8);
		get[cached] = 0;
		for (i = 0; i < 30; i++) {
			struct xrdma_channel *ch;
			uint64_t t = xr_now_ns(), end = t + 10000000000ull;

			x.opened = y.opened = 0;
			assert_int_equal(xrdma_connect(y.ctx, name, &ch), 0);
			get[cached] += xr_now_ns() - t;
			while (!(x.opened && y.opened) && xr_now_ns() < end) {
				xrdma_process_event(x.ctx);
				xrdma_process_event(y.ctx);
			}
			assert_true(x.opened && y.opened);
			took[cached][i] = xr_now_ns() - t;
			xrdma_close(ch);
			while ((x.ctx->channels || y.ctx->channels) && xr_now_ns() < end) {
				xrdma_process_event(x.ctx);
				xrdma_process_event(y.ctx);
			}
			assert_true(!x.ctx->channels && !y.ctx->channels);
		}
		qsort(took[cached], 30, sizeof(uint64_t), by_time);
	}
	xrdma_get_context_stats(y.ctx, &st);
	assert_int_equal(st.qp_hits, 29);
	assert_int_equal(st.qp_misses, 31);
	print_message("set-up, median of 30: new queue pairs %llu us (xrdma_connect %llu), cached %llu us (%llu)\n",
		      (unsigned long long)took[0][15] / 1000, (unsigned long long)get[0] / 30000,
		      (unsigned long long)took[1][15] / 1000, (unsigned long long)get[1] / 30000);
	assert_int_equal(xrdma_context_destroy(x.ctx), 0);
	assert_int_equal(xrdma_context_destroy(y.ctx), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(what_it_says_of_itself, clean),
		cmocka_unit_test_setup(names_of_devices, clean),
		cmocka_unit_test_setup(silence_before_the_end, clean),
		cmocka_unit_test_setup(events_are_acknowledged, clean),
		cmocka_unit_test_setup(packet_numbers, clean),
		cmocka_unit_test_setup(memory_across_fork, clean),
		cmocka_unit_test_setup(limits, clean),
		cmocka_unit_test_setup(the_address_comes_and_goes, clean),
		cmocka_unit_test_setup(the_port_comes_and_goes, clean),
		cmocka_unit_test_setup(setting_up, clean),
		cmocka_unit_test_setup(detection, clean),
		cmocka_unit_test_setup(the_device_goes_away, clean),
	};

	if (!rig_verbs())
		return 77;
	return rig_run(tests);
}
