# SPDX-License-Identifier: BSD-2-Clause
"""What is measured. A Work is one row: it starts a server per contender and takes samples.

A contender says which ends run under xrdma-run; the programs and their arguments are the same.
"""
import collections
import hashlib
import json
import os
import re
import subprocess

from . import proc
from .proc import BenchError

Contender = collections.namedtuple("Contender", "name server client spin", defaults=(False,))
Floor = collections.namedtuple("Floor", "who against ratio")
Sample = collections.namedtuple("Sample", "value ops cpu extra", defaults=({},))


def on_shm(lines):
    """(on shm, all) of the flow ends in what xr-stat printed."""
    estab = [ln.split() for ln in lines[1:] if "LISTEN" not in ln.split()]
    return sum("shm" in words for words in estab), len(estab)


PLAIN = Contender("plain", False, False)
XRDMA = Contender("xrdma", True, True)


class Setup:
    """Where the programs are and which cores the two ends use."""

    def __init__(self, build, pin, null):
        self.build, self.null = build, null
        self.xrdma_run = self.tool("xrdma-run")
        self.xr_stat = self.tool("xr-stat")
        self.pingpong = os.path.join(build, "bench", "xr-pingpong")
        cores = sorted(os.sched_getaffinity(0))
        self.cores = len(cores)
        self.one = {cores[-1]}
        self.two = ({cores[0]}, {cores[-1]})
        self.apps = self.two if pin and self.cores > 1 else (None, None)
        wanted = [self.pingpong] + ([] if null else [self.xrdma_run, self.xr_stat])
        for p in wanted:
            if not os.access(p, os.X_OK):
                raise BenchError(f"{p} is missing: build first (make bench-programs), or give the "
                                 "build directory with --build")

    def tool(self, name):
        top = os.path.join(self.build, name)
        return top if os.path.exists(top) else os.path.join(self.build, "tools", name)

    def wrap(self, on, cmd):
        return [self.xrdma_run] + cmd if on and not self.null else cmd

    def snapshot(self, port):
        """xr-stat's header and its lines about a port."""
        r = subprocess.run([self.xr_stat, "-a", "-n"], stdin=subprocess.DEVNULL, timeout=10,
                           capture_output=True, text=True, check=False)
        if r.returncode:
            raise BenchError(f"xr-stat ended with status {r.returncode}: {r.stderr.strip()}")
        lines = r.stdout.splitlines()
        mine = [ln for ln in lines[1:] if re.search(rf":{port}\b", ln)]
        return lines[:1] + mine


class Work:
    """One row. Subclasses say how to serve, how to sample and how to verify."""
    lower = False               # is a lower value better?
    floors = ()
    contenders = (PLAIN, XRDMA)
    carried = True              # do xrdma flows have to be on shm?
    cpu_unit, cpu_scale = "us/request", 1e6
    programs = ()
    one_core = False

    def __init__(self, ident, title, **kw):
        self.ident, self.title = ident, title
        for k, v in kw.items():
            setattr(self, k, v)
        self.servers, self.count, self.port_now = {}, {}, None

    @property
    def close(self):
        """Is a floor closer to 1 than the noise of a few rounds?"""
        return any(.9 < f.ratio < 1 for f in self.floors)

    def cpus(self, setup):
        return (setup.one, setup.one) if self.one_core else setup.apps

    def start(self, setup):
        proc.need(*self.programs)
        for c in self.contenders:
            self.servers[c.name] = self.serve(setup, c)
            self.verify(setup, c)

    def stop(self):
        for s in self.servers.values():
            s.stop()
        self.servers = {}

    def verify(self, setup, c):
        """Checks bytes end to end before anything is measured."""

    def probe(self, setup, c, seconds):
        """An unmeasured run: calibrates, and looks at the live flows. Returns xr-stat's lines."""
        lines = []

        def look():
            """Keeps what showed most flows on shm; content when half of them are."""
            seen = setup.snapshot(self.servers[c.name].port)
            shm, n = on_shm(seen)
            if not lines or (shm, n) > on_shm(lines):
                lines[:] = seen
            return shm and shm * 2 >= n
        watch = not setup.null and (c.server or c.client)
        self.sample(setup, c, seconds, look if watch else None)
        return lines

    def client(self, setup, c, cmd, seconds, during=None):
        """Runs the client and returns it with the CPU seconds of both ends."""
        server = self.servers[c.name]
        before = server.cpu()
        done = proc.run(setup.wrap(c.client, cmd), self.cpus(setup)[1], timeout=seconds * 8 + 20,
                        during=during)
        if not server.alive():
            raise BenchError(f"the server ended: {server.tail()}")
        return done, done.cpu + server.cpu() - before


class PingPong(Work):
    """bench/xr-pingpong: every byte or a sample of them is verified in every run."""
    mode, args = "rtt", ()
    unit, key = "us", "p50_us"

    def cpus(self, setup):
        return (setup.one, setup.one) if self.one_core else setup.two

    def start(self, setup):
        if not self.one_core and setup.cores < 2:
            raise BenchError("needs two cores")
        super().start(setup)

    def serve(self, setup, c):
        return proc.Server(setup.wrap(c.server, [setup.pingpong, "server"]),
                           cpus=self.cpus(setup)[0])

    def command(self, setup, c, seconds, *more):
        return [setup.pingpong, self.mode, "--port", str(self.servers[c.name].port), "--seconds",
                str(seconds), *self.args, *(["--spin"] if c.spin else []), *more]

    def verify(self, setup, c):
        if self.mode in ("stream", "rate"):     # all bytes, once; then a sample in timed runs
            self.client(setup, c, self.command(setup, c, .2, "--warm", ".1", "--full"), 1)

    def sample(self, setup, c, seconds, during=None):
        done, _ = self.client(setup, c, self.command(setup, c, seconds), seconds, during)
        r = json.loads(done.out)
        if r["errors"]:
            raise BenchError(f"{r['errors']} blocks of wrong data")
        ops = r["messages"] if self.mode != "stream" else r["gbytes_per_s"] * r["seconds"]
        return Sample(r[self.key] / (1e6 if self.mode == "rate" else 1), ops,
                      r["cpu_client_s"] + r["cpu_server_s"], r)


class Redis(Work):
    """redis-server with redis-benchmark; a 64-byte value is read back with redis-cli first."""
    unit, clients, pipeline = "k/s", 1, 1
    programs = ("redis-server", "redis-benchmark", "redis-cli")
    KEY, VALUE = "key:__rand_int__", hashlib.sha256(b"redis").hexdigest()

    def serve(self, setup, c):
        port = proc.free_port()
        cmd = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
               "--appendonly", "no", "--dir", proc.private_dir(), "--loglevel", "warning"]
        return proc.Server(setup.wrap(c.server, cmd), port, self.cpus(setup)[0])

    def verify(self, setup, c):
        cli = ["redis-cli", "-h", "127.0.0.1", "-p", str(self.servers[c.name].port)]
        self.client(setup, c, cli + ["SET", self.KEY, self.VALUE], 5)
        done, _ = self.client(setup, c, cli + ["GET", self.KEY], 5)
        if done.out.decode().strip() != self.VALUE:
            raise BenchError(f"GET answers {done.out[:80]!r}")

    def bench(self, setup, c, n, seconds, during=None):
        cmd = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(self.servers[c.name].port), "-t",
               "get", "-n", str(n), "-c", str(self.clients), "-P", str(self.pipeline), "--csv"]
        done, cpu = self.client(setup, c, cmd, seconds, during)
        row = done.out.decode().splitlines()[-1].replace('"', "").split(",")
        if row[0] != "GET" or float(row[1]) <= 0:
            raise BenchError(f"redis-benchmark says {done.out[-200:]!r}")
        self.count[c.name] = float(row[1])
        return Sample(float(row[1]) / 1e3, n, cpu, {"p50_ms": float(row[4]), "p99_ms": float(row[6])})

    def sample(self, setup, c, seconds, during=None):
        if c.name not in self.count:
            self.bench(setup, c, 4000 * self.pipeline, 2)
            self.bench(setup, c, int(self.count[c.name] * .3) + 100, 2)
        return self.bench(setup, c, int(self.count[c.name] * seconds) + 100, seconds, during)


class Iperf(Work):
    unit, programs = "Gbit/s", ("iperf3",)
    cpu_unit, cpu_scale = "ms/GB", 1e3

    def serve(self, setup, c):
        port = proc.free_port()
        return proc.Server(setup.wrap(c.server, ["iperf3", "-s", "-B", "127.0.0.1", "-p", str(port)]),
                           port, self.cpus(setup)[0])

    def sample(self, setup, c, seconds, during=None):
        cmd = ["iperf3", "-c", "127.0.0.1", "-p", str(self.servers[c.name].port), "-J", "-t",
               str(max(1, round(seconds)))]
        done, cpu = self.client(setup, c, cmd, seconds, during)
        r = json.loads(done.out)
        if "error" in r:
            raise BenchError(f"iperf3: {r['error']}")
        got, sent = r["end"]["sum_received"], r["end"]["sum_sent"]
        if not 0 < got["bytes"] <= sent["bytes"]:
            raise BenchError(f"iperf3: {sent['bytes']} bytes sent, {got['bytes']} received")
        return Sample(got["bits_per_second"] / 1e9, got["bytes"] / 1e9, cpu)


NGINX_CONF = """\
user {user};
worker_processes 1;
daemon off;
pid {dir}/pid;
error_log {dir}/error.log;
events {{ worker_connections 768; }}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    default_type application/octet-stream;
    access_log off;
    client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
    uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
    server {{ listen 127.0.0.1:{port}; root {dir}/www; }}
}}
"""     # sendfile, tcp_nopush and everything unsaid as in Debian's nginx.conf


class Nginx(Work):
    """nginx serving one page of 1 KiB; curl checks its sha256 first."""
    unit, tool, clients, user = "k/s", "wrk", 50, "www-data"
    programs = ("nginx", "curl")
    PAGE = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(32))

    def start(self, setup):
        proc.need(self.tool)
        super().start(setup)

    def serve(self, setup, c):
        d, port = proc.private_dir(), proc.free_port()
        os.mkdir(os.path.join(d, "www"))
        with open(os.path.join(d, "www", "1k.bin"), "wb") as f:
            f.write(self.PAGE)
        conf = os.path.join(d, "nginx.conf")
        with open(conf, "w", encoding="ascii") as f:
            f.write(NGINX_CONF.format(dir=d, port=port, user=self.user))
        cmd = ["nginx", "-c", conf, "-p", d, "-e", os.path.join(d, "error.log")]
        return proc.Server(setup.wrap(c.server, cmd), port, self.cpus(setup)[0])

    def url(self, c):
        return f"http://127.0.0.1:{self.servers[c.name].port}/1k.bin"

    def verify(self, setup, c):
        done, _ = self.client(setup, c, ["curl", "-sS", "-f", self.url(c)], 5)
        if hashlib.sha256(done.out).digest() != hashlib.sha256(self.PAGE).digest():
            raise BenchError(f"curl got {len(done.out)} other bytes than the page")

    @staticmethod
    def field(text, pattern, default=None):
        m = re.search(pattern, text)
        if not m and default is None:
            raise BenchError(f"no {pattern!r} in: {text[-300:]}")
        return float(m.group(1)) if m else default

    def wrk(self, setup, c, seconds, during):
        cmd = ["wrk", "-t1", f"-c{self.clients}", f"-d{max(1, round(seconds))}s", self.url(c)]
        done, cpu = self.client(setup, c, cmd, seconds, during)
        out = done.out.decode()
        if "Socket errors" in out or "Non-2xx" in out:
            raise BenchError("wrk: " + " ".join(out.split("\n")[-6:]))
        n = self.field(out, r"(\d+) requests in")
        return Sample(self.field(out, r"Requests/sec:\s+([\d.]+)") / 1e3, n, cpu)

    def ab(self, setup, c, n, seconds, during):
        cmd = ["ab", "-q", "-n", str(n), "-c", str(self.clients), self.url(c)]
        done, cpu = self.client(setup, c, cmd, seconds, during)
        out = done.out.decode()
        if self.field(out, r"Failed requests:\s+(\d+)") or self.field(out, r"Non-2xx.*?(\d+)", 0):
            raise BenchError("ab: " + out[-500:])
        if self.field(out, r"HTML transferred:\s+(\d+)") != n * len(self.PAGE):
            raise BenchError("ab: the pages do not add up: " + out[-500:])
        self.count[c.name] = self.field(out, r"Requests per second:\s+([\d.]+)")
        return Sample(self.count[c.name] / 1e3, n, cpu)

    def sample(self, setup, c, seconds, during=None):
        if self.tool == "wrk":
            return self.wrk(setup, c, seconds, during)
        if c.name not in self.count:
            self.ab(setup, c, 5000, 2, None)
        return self.ab(setup, c, int(self.count[c.name] * seconds) + 100, seconds, during)


SERVER_ONLY = (PLAIN, Contender("server-only", True, False))
CLIENT_ONLY = (PLAIN, Contender("client-only", False, True))
SPIN = Contender("plain-spin", False, False, True)


def faster(ratio, who="xrdma", against="plain"):
    return Floor(who, against, ratio)


def catalogue():
    """Every row, in the order of the report."""
    trip = {"cpu_unit": "us/round trip"}
    return [
        PingPong("rtt", "64 B ping-pong, one core each", contenders=(PLAIN, XRDMA, SPIN), lower=True,
                 floors=(faster(40), faster(5, against="plain-spin")), **trip),
        PingPong("rtt-one-core", "64 B ping-pong, both on one core", one_core=True, lower=True,
                 floors=(faster(1),), **trip),
        PingPong("stream", "64 KiB sends, one flow", mode="stream", unit="GB/s", key="gbytes_per_s",
                 cpu_unit="ms/GB", cpu_scale=1e3, floors=(faster(2.5),)),
        PingPong("rate", "64 B sends, one way", mode="rate", unit="M/s", key="messages_per_s",
                 floors=(faster(10),), cpu_unit="us/message"),
        Redis("redis-1", "redis GET, 1 client", floors=(faster(5),)),
        Redis("redis-50", "redis GET, 50 clients", clients=50, floors=(faster(1.8),)),
        Redis("redis-50-p16", "redis GET, 50 clients, -P 16", clients=50, pipeline=16,
              floors=(faster(1),)),
        Nginx("nginx", "nginx + wrk, 1 KiB, 50 conn.", floors=(faster(1.5),)),
        Nginx("nginx-1", "nginx + wrk, 1 KiB, 1 conn.", clients=1),
        Iperf("iperf3", "iperf3, one flow"),
        Nginx("ab", "ab, one connection per request", tool="ab", clients=10, carried=None,
              floors=(faster(.97),)),
        PingPong("connect", "connect(), median", mode="connect", lower=True, carried=None,
                 floors=(faster(.97),), cpu_unit="us/connection"),
        PingPong("connect-answer", "connect() to first answer, median", mode="connect", lower=True,
                 key="first_answer_p50_us", carried=None, floors=(faster(.97),),
                 cpu_unit="us/connection"),
        Redis("redis-50-server", "redis GET, 50 cl., only server", clients=50, carried=False,
              contenders=SERVER_ONLY, floors=(faster(.97, "server-only"),)),
        Redis("redis-50-client", "redis GET, 50 cl., only client", clients=50, carried=False,
              contenders=CLIENT_ONLY, floors=(faster(.97, "client-only"),)),
    ]
