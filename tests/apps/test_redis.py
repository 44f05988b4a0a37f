# SPDX-License-Identifier: BSD-2-Clause
"""redis-server, redis-cli, redis-benchmark."""
import csv
import io
import random
import time

import pytest

import app
import harness

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def redis(env, tmp_path):
    return Redis(env, tmp_path)


class Redis:
    def __init__(self, env, path, name="a", more=()):
        self.env = env
        server = app.need("redis-server")
        d = path / name
        d.mkdir()
        self.proc, self.port = app.serve(env, lambda port: [
            server, "--port", port, "--bind", env.address, "--dir", d, "--save", "", "--daemonize",
            "no", "--loglevel", "warning", "--protected-mode", "no", *more])

    def where(self):
        return "-h", self.env.address, "-p", self.port

    def cli(self, *args, **kw):
        return app.run(self.env, ["redis-cli", *self.where(), *args], **kw).decode()

    def benchmark(self, *args):
        return self.env.start("client", ["redis-benchmark", *self.where(), "--csv", *args])

    def info(self, field):
        for line in self.cli("INFO").splitlines():
            if line.startswith(field + ":"):
                return line.split(":", 1)[1].strip()
        raise KeyError(field)


def rates(text):
    rows = list(csv.reader(io.StringIO(text)))
    got = {r[0]: float(r[1]) for r in rows if len(r) > 1 and r[0] != "test"}
    assert got and all(v > 0 for v in got.values()), text
    return got


def test_commands(redis):
    assert redis.cli("SET", "k", "hello") == "OK\n"
    assert redis.cli("GET", "k") == "hello\n"
    assert redis.cli("RPUSH", "l", *map(str, range(500))) == "500\n"
    assert redis.cli("LRANGE", "l", "0", "-1") == "".join("%d\n" % i for i in range(500))
    assert redis.cli("GET", "none") == "\n"


def test_big_values(redis):
    """Values of 1 B to 8 MiB come back as they went."""
    for n in (1, 100, 4096, 65536, 1 << 20, 8 << 20):
        v = app.blob(n, n).hex().encode()
        assert redis.cli("-x", "SET", "big", stdin=v) == "OK\n"
        assert redis.cli("GET", "big").encode() == v + b"\n"


def test_pipe(redis):
    """Mass insertion: redis-cli --pipe."""
    rng = random.Random(5)
    data = b"".join(b"SET key:%d %d\r\n" % (i, rng.getrandbits(60)) for i in range(20000))
    assert "errors: 0, replies: 20000" in redis.cli("--pipe", stdin=data)
    assert redis.cli("DBSIZE") == "20000\n"
    rng = random.Random(5)
    values = [rng.getrandbits(60) for _ in range(20000)]
    lines = redis.cli(stdin=b"".join(b"GET key:%d\n" % i for i in range(0, 20000, 10))).split()
    assert lines == [str(v) for v in values[::10]]


@pytest.mark.parametrize("args", [("-c", "1"), ("-c", "50"), ("-c", "1000"), ("-c", "50", "-P", "16")])
def test_benchmark(redis, args):
    # for a second or two, in which its connections are looked at
    n = 2000000 if len(args) > 2 else {"1": 20000, "1000": 100000}.get(args[1], 200000)
    n *= 2 if redis.env.mode == "both" and len(args) == 2 else 1
    n = app.load(n // 2 if redis.env.mode == "plain" else n, 5000)
    p = redis.benchmark("-t", "get", "-n", str(n), *args)
    app.check_live(redis.env, redis.port)
    rates(app.finish(p).decode())
    assert p.returncode == 0, p.describe()
    assert int(redis.info("total_commands_processed")) >= n
    assert int(redis.info("total_error_replies")) == 0


def test_benchmark_many_tests(redis):
    p = redis.benchmark("-t", "set,incr,lpush,lrange_100,mset,sadd", "-n", str(app.load(5000)), "-d", "2000", "-r", "1000")
    got = rates(app.finish(p).decode())
    assert len(got) >= 6


def test_bgsave_under_load(redis):
    """The server forks while its flows are in full use; parent and clients go on."""
    redis.cli("DEBUG", "POPULATE", "20000", "x", "500")
    p = redis.benchmark("-t", "set,get", "-n", str(app.load(150000)), "-c", "20", "-r", "10000")
    app.check_live(redis.env, redis.port)
    for _ in range(3):
        assert "Background saving started" in redis.cli("BGSAVE")
        harness.until(lambda: redis.info("rdb_bgsave_in_progress") == "0", 20, "saved", 0.05)
        assert redis.info("rdb_last_bgsave_status") == "ok"
    rates(app.finish(p).decode())
    assert p.returncode == 0, p.describe()


def test_replication(redis, tmp_path):
    """Two servers: a replica takes 10 MB from the other and follows it."""
    redis.cli("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    redis.cli("DEBUG", "POPULATE", "20000", "x", "500")
    other = Redis(redis.env, tmp_path, "b", ("--replicaof", "%s %d" % (redis.env.address, redis.port)))
    harness.until(lambda: other.info("master_link_status") == "up", 20, "replica up", 0.05)
    redis.cli("INCR", "counter")
    digest = redis.cli("DEBUG", "DIGEST")
    harness.until(lambda: other.cli("DEBUG", "DIGEST") == digest, 10, "the same data", 0.05)


def test_subscribe(redis):
    """A subscriber that hears everything, in order."""
    p = redis.env.start("client", ["redis-cli", *redis.where(), "SUBSCRIBE", "ch"])
    assert [p.line() for _ in range(3)] == ["subscribe", "ch", "1"]
    text = "".join("PUBLISH ch message-%d\n" % i for i in range(3000))
    assert redis.cli(stdin=text.encode()).split() == ["1"] * 3000
    for i in range(3000):
        assert [p.line() for _ in range(3)] == ["message", "ch", "message-%d" % i]


def test_idle_server_sleeps(redis):
    """A client that stays connected and silent costs the server nothing."""
    p = redis.env.start("client", ["redis-cli", *redis.where()])
    p.say("".join("SET a %d\n" % i for i in range(200)))
    for _ in range(200):
        assert p.line() == "OK"
    # between hosts a connection that falls silent gives its memory back, once
    time.sleep(2 if redis.env.fabric == "rdma" else 0)
    cpu, woken = harness.cpu_s(redis.proc.pid), harness.sleeps(redis.proc.pid)
    time.sleep(2)
    cpu, woken = harness.cpu_s(redis.proc.pid) - cpu, harness.sleeps(redis.proc.pid) - woken
    # The server's own clock runs at 10 Hz. In the guest a round of it takes up to 5 ms, without the shim, too.
    assert woken <= 40 and cpu <= (0.3 if harness.IN_GUEST else 0.05), (woken, cpu)
    p.say("GET a\n")
    assert p.line() == "199"


@pytest.mark.one_host     # what carries on TCP between hosts has none of them
@pytest.mark.modes("both")
def test_mechanisms_are_at_work(redis):
    """What xr-stat shows of a program that knows nothing of it: both kinds of messages, windows that move, queues
    that later connections use again, looks at a peer that is silent."""
    env, server = redis.env, redis.proc.pid
    idle = env.start("client", ["redis-cli", *redis.where()])
    idle.say("SET k v\n" * 200)
    for _ in range(200):
        assert idle.line() == "OK"
    # each command's clients are new ones, in the same process
    bench = redis.benchmark("-t", "set,get,incr,lpush,sadd", "-n", str(app.load(60000, 5000)), "-c", "8", "-d", "3000",
                            "-P", "8")
    moved = set()
    while bench.poll() is None:
        for f in env.flows(server):
            if f["carrier"] == env.fabric and f["peer_pid"] == bench.pid:
                moved.add((f["tx"]["credits"], f["tx"]["queue"]))
    rates(app.finish(bench).decode())
    got = env.counters(server)[0]
    assert got["msgs_eager"] > 0 and got["msgs_rendezvous"] > 0, got
    assert got["msgs_eager"] + got["msgs_rendezvous"] + got["msgs_coalesced"] == got["msgs_tx"]
    assert len(moved) > 2, moved
    assert got["qp_cache_hits"] > 0 and got["qp_cache_misses"] >= 8, got
    probes = got["keepalive_probes"]
    harness.until(lambda: env.counters(server)[0]["keepalive_probes"] > probes + 1, 5, "looks at the silent one", 0.1)
    end = [f for f in env.flows(server) if f["peer_pid"] == idle.pid]
    assert len(end) == 1 and end[0]["rx"]["probes"] > 0 and end[0]["carrier"] == env.fabric, end


@pytest.mark.one_host     # what carries on TCP between hosts has none of them
@pytest.mark.modes("both")
def test_reconnects_use_memory_again(redis):
    """One connection after the other: memory is shared once, and queues are used again."""
    script = ("import socket, sys\n"
              "for i in range(12):\n"
              "    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
              "    for k in range(60):\n"
              "        s.sendall(b'PING\\r\\n')\n"
              "        assert s.recv(7, socket.MSG_WAITALL) == b'+PONG\\r\\n'\n"
              "    s.close()\n")
    app.run(redis.env, [app.PYTHON, "-c", script, redis.env.address, str(redis.port)])
    got = redis.env.counters(redis.proc.pid)[0]
    assert got["flows_upgraded"] >= 10, got
    assert got["links_made"] == 1 and got["links_reused"] >= 8, got
    assert got["qp_cache_hits"] >= 8, got
