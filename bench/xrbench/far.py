# SPDX-License-Identifier: BSD-2-Clause
"""The same socket program between two hosts of the guest: kernel TCP, rsockets, xrdma; and perftest, the limit.

Everything runs below tests/guest/hosts. A sample of what should go over RDMA counts only if the device sent packets
enough for its bytes: an end that finds no device, or moves late, is on TCP.
"""
import collections
import contextlib
import json
import os
import re
import statistics
import subprocess
import time

RSOCKETS = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
NAMES = ("perftest", "rsockets", "tcp", "xrdma")
PACKETS = 50            # of a sample: less is what a device says of itself
PAYLOAD = 4096          # bytes of a packet, at most
WARM = 1                # s: until a connection has moved

# cpu: us of both programs for each operation; moved: bytes that were counted
Sample = collections.namedtuple("Sample", "value cpu moved", defaults=(0,))
Row = collections.namedtuple("Row", "ident title unit lower")
ROWS = (Row("rtt", "64 B, there and back", "us", True),
        Row("stream", "64 KiB sends, one flow", "MB/s", False),
        Row("flows4", "64 KiB sends, 4 flows", "MB/s", False),
        Row("connect", "connect and first byte", "us", True),
        Row("redis", "redis SET, 4 clients", "1/s", False))

# What is not measured, and why.
WITHOUT = {
    ("connect", "perftest"): "makes one connection for each run",
    ("redis", "perftest"): "has no such program",
    ("redis", "rsockets"): "redis waits by epoll, which librspreload does not carry",
}
SMC = "SMC-R: not measured; it needs a user EID, which smc-tools sets, and Debian has no package of these."


class Failed(Exception):
    """A sample could not be taken; the text says why."""


class Host:
    def __init__(self, number):
        env = os.environ
        self.name, self.address = env["HOST%d" % number], env["HOST%d_ADDRESS" % number]
        self.device, self.cpus = env["HOST%d_DEVICE" % number], env["HOST%d_CPUS" % number]

    def start(self, cmd, env=(), **kw):
        # the variables are for the program alone, not for what starts it
        return subprocess.Popen(["ip", "netns", "exec", self.name, "taskset", "-c", self.cpus, "env",
                                 *["%s=%s" % kv for kv in dict(env).items()], *cmd], text=True, **kw)

    def packets(self):
        path = "/sys/class/infiniband/%s/ports/1/hw_counters/sent_pkts" % self.device
        with open(path, encoding="ascii") as f:
            return int(f.read())


class Bench:
    def __init__(self, build, seconds):
        self.a, self.b = Host(1), Host(2)
        self.seconds, self.port = seconds, 7000
        self.pingpong = os.path.join(build, "bench", "xr-pingpong")
        libs = os.path.join(build, ".libs")
        self.env = {
            "tcp": {}, "rsockets": {"LD_PRELOAD": RSOCKETS},
            "xrdma": {"LD_PRELOAD": libs + "/libxrdma_preload.so", "XRDMA_MODULE_DIR": libs, "XRDMA_RDMA": "yes",
                      "XRDMA_RDMA_TRUST": "fabric", "XRDMA_RDMA_SOFTWARE": "yes",
                      "XRDMA_RDMA_COMPARE": "no", "XRDMA_STATS_DIR": "/tmp"}}

    def take(self, row, name):
        """One sample, and whether it went the way that it should have gone."""
        before = self.b.packets()
        sample = getattr(self, row.ident)(name)
        packets = self.b.packets() - before
        if name == "tcp" and packets > PACKETS:
            raise Failed("RDMA carried it")
        # what is over at once stays on TCP, and is meant to
        least = max(PACKETS, sample.moved / PAYLOAD)
        if name != "tcp" and packets < least and (row.ident, name) != ("connect", "xrdma"):
            raise Failed("it was on TCP, or part of it (%d packets)" % packets)
        return sample

    @contextlib.contextmanager
    def served(self, cmd, env, ready):
        p = self.a.start(cmd, env, stdout=subprocess.PIPE if ready else subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        try:
            if ready:
                p.stdout.readline()
            else:
                time.sleep(.5)
            yield p
        finally:
            p.kill()
            p.wait()
            if p.stdout:
                p.stdout.close()

    def finish(self, clients):
        outs = []
        try:
            for p in clients:
                out, err = p.communicate(timeout=30 + 8 * self.seconds)
                if p.returncode:
                    raise Failed("%s: status %d: %s" % (p.args[-1], p.returncode, (err or out)[-200:]))
                outs.append(out)
        except subprocess.TimeoutExpired as e:
            raise Failed("it did not end") from e
        finally:
            for p in clients:
                if p.poll() is None:
                    p.kill()
                    p.communicate()
        return outs

    def pingpongs(self, name, mode, n=1):
        """What n pairs of programs print."""
        env = self.env[name]
        with contextlib.ExitStack() as stack:
            ports = range(self.port + 1, self.port + 1 + n)
            self.port += n
            for port in ports:
                stack.enter_context(self.served([self.pingpong, "server", "--address", self.a.address,
                                                 "--port", str(port)], env, True))
            clients = [self.b.start([self.pingpong, mode, "--address", self.a.address, "--port", str(port),
                                     "--seconds", str(self.seconds), "--warm", str(WARM)], env,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) for port in ports]
            got = [json.loads(o) for o in self.finish(clients)]
        if any(g["errors"] for g in got):
            raise Failed("bytes came that were not sent")
        return got

    @staticmethod
    def cpu(got):
        ops = sum(g["messages"] for g in got)
        return sum(g["cpu_client_s"] + g["cpu_server_s"] for g in got) / max(ops, 1) * 1e6

    def perftest(self, tool, *options):
        """The columns of its line, and its CPU time is not told."""
        cmd = [tool, "-R", "-F", *options]
        with self.served(cmd + ["-d", self.a.device], {}, False) as server:
            client = self.b.start(cmd + ["-d", self.b.device, self.a.address], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
            out = self.finish([client])[0]
            server.wait(10)
        lines = re.findall(r"^ *\d+ +\d+ +[\d. \t]+$", out, re.M)
        if not lines:
            raise Failed("%s printed no result" % tool)
        return [float(w) for w in lines[-1].split()]

    def rtt(self, name):
        if name == "perftest":
            # it tells half of a round trip: size, iterations, least, most, typical
            n = str(int(3000 * self.seconds) + 100)
            return Sample(2 * self.perftest("ib_send_lat", "-s", "64", "-n", n)[4], None)
        got = self.pingpongs(name, "rtt")
        return Sample(got[0]["p50_us"], self.cpu(got))

    def bandwidth(self, flows):
        # size, iterations, peak, average
        n = str(int(400 * self.seconds) + 20)
        mib = self.perftest("ib_read_bw", "-s", "65536", "-n", n, "-q", str(flows))[3]
        # on a busy machine its clock now and then comes to nothing
        if mib <= 0:
            raise Failed("ib_read_bw says %g MB/s" % mib)
        return Sample(mib * 1.048576, None)

    def stream(self, name, flows=1):
        if name == "perftest":
            return self.bandwidth(flows)
        got = self.pingpongs(name, "stream", flows)
        moved = sum(g["messages"] for g in got) * 65536
        return Sample(sum(g["gbytes_per_s"] for g in got) * 1e3, self.cpu(got), moved)

    def flows4(self, name):
        return self.stream(name, 4)

    def connect(self, name):
        got = self.pingpongs(name, "connect")
        return Sample(got[0]["first_answer_p50_us"], self.cpu(got))

    def redis(self, name):
        self.port += 1
        server = ["redis-server", "--bind", self.a.address, "--port", str(self.port), "--save", "",
                  "--protected-mode", "no"]
        n = int(2000 * self.seconds) + 200
        with self.served(server, self.env[name], False):
            time.sleep(.5)
            client = self.b.start(["redis-benchmark", "-h", self.a.address, "-p", str(self.port), "-c", "4",
                                   "-n", str(n), "-t", "set", "--csv"], self.env[name],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out = self.finish([client])[0]
        m = re.search(r'^"SET","([\d.]+)"', out, re.M)
        if not m:
            raise Failed("redis-benchmark printed no result")
        return Sample(float(m[1]), None)


def measure(build, rows, rounds, seconds, say):
    """{row: {name: [Sample or None]}}, {row: {name: why}}"""
    bench = Bench(build, seconds)
    got = {r.ident: {n: [] for n in NAMES if (r.ident, n) not in WITHOUT} for r in rows}
    why = {r.ident: {n: w for (i, n), w in WITHOUT.items() if i == r.ident} for r in rows}
    for k in range(rounds):
        for r in rows:
            # by turns first and last: what drifts would favour one of them
            for n in list(got[r.ident])[::-1 if k % 2 else 1]:
                try:
                    s = bench.take(r, n)
                    say("round %d: %s: %s %.4g %s" % (k + 1, r.title, n, s.value, r.unit))
                except (Failed, OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as e:
                    s = None
                    why[r.ident][n] = str(e) or type(e).__name__
                    say("round %d: %s: %s: %s" % (k + 1, r.title, n, why[r.ident][n]))
                got[r.ident][n].append(s and s._asdict())
    return {"rows": [{**r._asdict(), "samples": got[r.ident], "why": why[r.ident]} for r in rows],
            "rounds": rounds, "seconds": seconds}


# --- what comes of it: runs outside as well -----------------------------------------------------------

def values(row, name, what="value"):
    return [s[what] for s in row["samples"].get(name, ()) if s and s[what] is not None]


def median(row, name, what="value"):
    v = values(row, name, what)
    return statistics.median(v) if v else None


def ratio(row, against):
    """How many times faster xrdma was, from the medians; None without both."""
    a, b = median(row, against), median(row, "xrdma")
    return (a / b if row["lower"] else b / a) if a and b else None


def number(v):
    return "-" if v is None else "%.0f" % v if v >= 100 else "%.3g" % v


def times(v):
    return "-" if v is None else "%.2fx" % v


def table(results):
    head = ["work", "", *NAMES, *["xrdma/" + n for n in NAMES[:3]], *["CPU " + n for n in NAMES[1:]]]
    lines = [[r["title"], r["unit"], *[number(median(r, n)) for n in NAMES],
              *[times(ratio(r, n)) for n in NAMES[:3]], *[number(median(r, n, "cpu")) for n in NAMES[1:]]] for r in results["rows"]]
    width = [max(len(ln[i]) for ln in [head, *lines]) for i in range(len(head))]
    out = ["  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(ln, width))).rstrip()
           for ln in [head, *lines]]
    out.insert(1, "-" * len(out[0]))
    out += ["", "Medians of %d interleaved rounds. xrdma/X: how many times faster than X; CPU: us of both programs,"
            % results["rounds"], "helper threads included, the kernel's own threads not, for each operation."]
    for r in results["rows"]:
        for n, w in sorted(r["why"].items()):
            missing = results["rounds"] - len(values(r, n))
            if r["samples"].get(n):
                w = "%d of %d samples missing: %s" % (missing, results["rounds"], w)
            out.append("%s: %s: %s" % (r["ident"], n, w))
    return "\n".join(out + [SMC])


def plot(path, results):
    """Each row's contenders as bars, with the range of their samples; needs matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows = results["rows"]
    fig, axes = pyplot.subplots(1, len(rows), figsize=(2.6 * len(rows), 3.2), squeeze=False)
    color = dict(zip(NAMES, ("#8a8f98", "#3a6ea5", "#b3432b", "#2a7f4f")))
    for ax, r in zip(axes[0], rows):
        for i, n in enumerate(NAMES):
            v = values(r, n)
            if not v:
                continue
            m = statistics.median(v)
            ax.bar(i, m, color=color[n], yerr=[[m - min(v)], [max(v) - m]], capsize=3)
            ax.annotate(number(m), (i, m), ha="center", va="bottom", fontsize=8)
        ax.set_title("%s\n%s, %s is better" % (r["title"], r["unit"], "less" if r["lower"] else "more"), fontsize=8)
        ax.set_xticks(range(len(NAMES)), NAMES, rotation=40, ha="right", fontsize=8)
        ax.tick_params(axis="y", labelsize=7)
    fig.tight_layout()
    fig.savefig(path, dpi=120)
