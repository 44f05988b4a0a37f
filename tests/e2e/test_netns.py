# SPDX-License-Identifier: BSD-2-Clause
"""Two network namespaces of one machine: their processes cannot look each other's sockets up, and stay on TCP,
unless they have a directory in common."""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import harness
import hosts
import shell

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def apart():
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root, and ip")
    with hosts.Hosts(2, "none", 1500, pin=False) as pair:
        e = harness.Env("both", pair)
        try:
            yield e
        finally:
            e.close()


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_namespaces_stay_on_tcp(apart, family):
    p = shell.Pair(apart, apart.address if family == "v4" else apart.address6)
    for _ in range(5):
        p.turns(40, 2000)
    p.c.sendall(40000)
    assert p.s.recv(40000, shell.WAITALL).ret == 40000
    got = p.carriers()
    assert len(got) == 2
    for f in got.values():
        assert (f["carrier"], f["reason"]) in (("tcp", "not-local"), ("tcp", "no-key")), f
    # of both, wherever xr-stat runs
    for name, end in ("server", p.s), ("client", p.c):
        f = got[name]
        assert (f["tx"]["bytes"]["tcp"], f["rx"]["bytes"]["tcp"]) == (end.tx, end.rx), f


@pytest.mark.parametrize("settings, reason", [
    ({}, "not-local"), ({"XRDMA_RDMA_TRUST": "fabric"}, "not-local"), ({"XRDMA_RDMA": "yes"}, "no-key"),
    ({"XRDMA_RDMA": "yes", "XRDMA_FABRIC": "shm"}, "not-local"),
    ({"XRDMA_RDMA": "yes", "XRDMA_RDMA_TRUST": "fabric"}, "no-verbs")])
def test_the_tools_say_what_the_program_says(apart, settings, reason):
    if reason == "no-verbs" and os.path.exists("/dev/infiniband/rdma_cm"):
        pytest.skip("this kernel has RDMA")
    apart.env.update(XRDMA_RDMA_KEY="/nonexistent", **settings)
    p = shell.Pair(apart, apart.address)
    for _ in range(5):
        p.turns(40, 2000)
    assert {f["reason"] for f in p.carriers().values()} == {reason}
    env = {**os.environ, **apart.env}
    where = "%s:%d" % (apart.address, p.port)
    with apart.on("client"):
        said = subprocess.run([harness.find("xrdma-run", "tools/xrdma-run"), "--check=" + where], env=env, text=True,
                              capture_output=True, check=False)
    assert "would stay on TCP: %s (" % reason in said.stdout, said.stdout
    if not os.path.exists(os.path.join(harness.build_dir(), "tools", "xr-ping")):
        return
    ping = harness.find("tools/xr-ping")
    with apart.on("server"):
        apart.start(None, [ping, "-l"]).line()
    with apart.on("client"):
        said = subprocess.run([ping, apart.address], env=env, text=True, capture_output=True, check=False)
    assert "no: %s (" % reason in said.stdout, said.stdout
    told = "rdma = no" if "XRDMA_RDMA" not in settings else "fabric = shm" if "XRDMA_FABRIC" in settings else None
    assert ("settings do not allow RDMA: %s\n" % told in said.stdout) == bool(told), said.stdout


def test_one_namespace_is_one_host(apart):
    """Both programs in the second namespace: as anywhere else."""
    server, client = (shell.Shell(apart, "client") for _ in range(2))
    p = shell.Pair(apart, "127.0.0.1", server=server, client=client)
    for _ in range(50):
        p.turns(20, 1000)
        if all(f["carrier"] == "shm" for f in p.carriers().values()):
            return
    raise AssertionError(p.carriers())


def moves(p, *conn):
    for _ in range(60):
        p.turns(4, 1000, *conn)
        got = p.carriers()
        if all(f["carrier"] == "shm" for f in got.values()):
            return
    raise AssertionError(got)


def unheard(p, host):
    """Both ends write while their host has not got its address: the kernel counts as sent, again and again, what stays there."""
    hosts.batch(["addr del %s/24 dev %s" % (host.address, host.link)], host.name)
    p.c.sendall(3000)
    p.s.sendall(2000)
    time.sleep(0.7)
    counted = [(e.info(), e) for e in (p.c, p.s)]
    hosts.batch(["addr add %s/24 dev %s" % (host.address, host.link)], host.name)
    assert any(t.bytes_sent - t.bytes_retrans + t.notsent_bytes > e.tx for t, e in counted), counted
    assert p.s.recv(3000, shell.WAITALL).ret == 3000
    assert p.c.recv(2000, shell.WAITALL).ret == 2000


def test_what_did_not_leave_its_host(apart):
    """... and that is no I/O of somebody else, nor shown as bytes of the program."""
    host = apart.hosts["client"]
    p = shell.Pair(apart, host.address, *(shell.Shell(apart, "client") for _ in range(2)))
    unheard(p, host)
    assert sorted((f["tx"]["bytes"]["tcp"], f["rx"]["bytes"]["tcp"]) for f in p.carriers().values()) == [
        (2000, 3000), (3000, 2000)]
    moves(p)
    p.turns(20, 5000)


# ---- with a directory in common ------------------------------------------------------------


@pytest.fixture
def joined(apart):
    """The same, and both have a directory: a bind mount, in containers."""
    with tempfile.TemporaryDirectory(prefix="xrdma-run-") as d:
        apart.env["XRDMA_RUN_DIR"] = d
        yield apart
        harness.until(lambda: not os.listdir(d), 5, lambda: "no name left in %r" % os.listdir(d))


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_a_common_directory(joined, family):
    p = shell.Pair(joined, joined.address if family == "v4" else joined.address6)
    moves(p)
    p.turns(20, 5000)
    where = "%s:%d" % (p.host, p.port) if family == "v4" else "[%s]:%d" % (p.host, p.port)
    with joined.on("client"):
        said = subprocess.run([harness.find("xrdma-run", "tools/xrdma-run"), "--check=" + where], text=True,
                              env={**os.environ, **joined.env}, capture_output=True, check=False)
    assert said.returncode == 0 and "would move to shared memory once they pay, if" in said.stdout, said.stdout


def test_many_over_one_link(joined):
    """The first meets the other end by name; the others are offered to it."""
    p = shell.Pair(joined, joined.address)
    moves(p)
    p.server.bg("answer", p.lfd)
    assert p.client.ok("dial", 100, p.port, 1) == 100
    for _ in range(30):
        assert p.client.ok("crowd", 1) == 100
        up = [f["carrier"] for f in joined.flows(p.client.pid)]
        if up == ["shm"] * 101:
            break
    else:
        raise AssertionError(up)
    # the query socket of the other namespace, beside what any two processes have: once, not for each
    assert joined.counters(p.client.pid)[0]["links_made"] == 1
    got = [os.readlink("/proc/%d/fd/%s" % (p.client.pid, fd)) for fd in os.listdir("/proc/%d/fd" % p.client.pid)]
    assert len(got) < 101 + 20, got


def test_it_comes_back(joined):
    p = shell.Pair(joined, joined.address)
    moves(p)
    stat = [harness.find("xr-stat", "tools/xr-stat")]
    with subprocess.Popen([*stat, "--retreat"], env={**os.environ, **joined.env}) as asked:
        while asked.poll() is None:
            p.turns(1, 1000)
    assert asked.returncode == 0
    assert {f["carrier"] for f in p.carriers().values()} == {"tcp"}
    subprocess.run([*stat, "--return"], env={**os.environ, **joined.env}, capture_output=True, check=True)
    end = time.monotonic() + 10
    while {f["carrier"] for f in p.carriers().values()} != {"shm"}:
        assert time.monotonic() < end, p.carriers()
        p.turns(4, 1000)


@pytest.mark.parametrize("who", ["server", "client"])
def test_what_did_not_leave_its_host_and_a_witness(joined, who):
    p = shell.Pair(joined, joined.address)
    unheard(p, joined.hosts[who])
    moves(p)
    p.turns(20, 5000)


def test_only_one_end_writes(joined):
    """Who only reads takes the word of who writes."""
    p = shell.Pair(joined, joined.address)
    for _ in range(200):
        p.c.sendall(5000)
        assert p.s.recv(5000, shell.WAITALL).ret == 5000
    got = p.carriers()
    assert (got["client"]["carrier_tx"], got["server"]["carrier_rx"]) == ("shm", "shm"), got


def test_bulk(joined):
    """More is queued than there is room for at the other end, at each call that writes."""
    p = shell.Pair(joined, joined.address)
    took = p.s.drain_bg()
    for _ in range(100):
        p.c.sendall(1 << 20)
    p.c.shutdown(1)
    p.s.drained(took)
    f = p.carriers()["client"]
    assert f["tx"]["bytes"]["shm"] > 10 << 20, f


def test_translated(joined):
    """The connecting end knows another port than the accepting one has."""
    if not shutil.which("nft"):
        pytest.skip("needs nft")
    p = shell.Pair(joined, joined.address)
    rules = """table ip nat {
        chain in { type nat hook prerouting priority -100; tcp dport 4444 redirect to :%d; }
    }""" % p.port
    nft = subprocess.run(["ip", "netns", "exec", joined.hosts["server"].name, "nft", "-f", "-"], input=rules, text=True,
                         capture_output=True, check=False)
    if nft.returncode:
        pytest.skip("nft: " + nft.stderr.strip())
    p.port = 4444
    for _ in range(3):
        c, s = p.connect()
        for _ in range(60):
            p.turns(4, 1000, c, s)
            got = [f["carrier"] for f in joined.flows(p.client.pid) if f["fd"] == c.fd]
            if got == ["shm"]:
                break
        assert got == ["shm"], joined.flows()


def test_another_user(joined):
    """The directory says who may come; what the socket belongs to is seen from here."""
    d = joined.env["XRDMA_RUN_DIR"]
    os.chown(d, 0, 65534)
    os.chmod(d, 0o770)

    def become():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    p = shell.Pair(joined, joined.address, server=shell.Shell(joined, "server", preexec=become))
    for _ in range(60):
        p.turns(4, 1000)
    got = [f["carrier"] for f in joined.flows(p.client.pid)]
    assert got == ["shm"], joined.flows()


def test_a_directory_for_everybody(joined):
    os.chmod(joined.env["XRDMA_RUN_DIR"], 0o1777)
    p = shell.Pair(joined, joined.address)
    for _ in range(10):
        p.turns(10, 1000)
    assert {f["reason"] for f in p.carriers().values()} == {"not-local"}
    assert "run_dir %s: others than" % joined.env["XRDMA_RUN_DIR"] in p.client.proc.stderr()


SO_BINDTOIFINDEX = 62


@pytest.mark.parametrize("within", [True, False])
def test_bound_to_a_device(joined, within):
    """The kernel's tables have such a socket under its device: the loopback one is tried, others keep it on TCP."""
    host = joined.hosts["client"]
    index = 1 if within else json.loads(hosts.call("ip", "-n", host.name, "-j", "link", "show", host.link))[0]["ifindex"]
    if within:
        server, client = (shell.Shell(joined, "client") for _ in range(2))
        p = shell.Pair(joined, "127.0.0.1", server=server, client=client)
    else:
        p = shell.Pair(joined, joined.address)
    c, s = p.connect(before=lambda sh, fd: sh.ok("setsockopt", fd, socket.SOL_SOCKET, SO_BINDTOIFINDEX, index))
    for _ in range(60):
        p.turns(4, 1000, c, s)
    got = {(f["carrier"], f["reason"]) for f in joined.flows(p.client.pid) if f["fd"] == c.fd}
    assert {carrier for carrier, _ in got} == {"shm" if within else "tcp"}, got
    # they have met, and it could not be shown
    assert within or joined.counters(p.client.pid)[0]["handshake_refused"] + joined.counters(p.server.pid)[0][
        "handshake_refused"] > 0
    # a name that is open still goes with the connection
    c.close()
    s.close()


# Request and response, all of the same length; what is in a response depends on the name that both were given.
TALK = """
import select, socket, sys, time
role, name, address, port, mine, seconds = *sys.argv[1:4], *map(int, sys.argv[4:])
def answer(i):
    return (name + str(i)).ljust(40).encode()
if role == "server":
    l = socket.create_server((address, port))
    print("up", flush=True)
    c, _ = l.accept()
    i = 0
    while c.recv(40, socket.MSG_WAITALL):
        c.sendall(answer(i))
        i += 1
else:
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    c.bind(("", mine))
    c.connect((address, port))
    end, i = time.monotonic() + seconds, 0
    while time.monotonic() < end and not select.select([0], [], [], 0)[0]:
        c.sendall(b"?" * 40)
        assert c.recv(40, socket.MSG_WAITALL) == answer(i)
        i += 1
    print(i, flush=True)
sys.stdin.read()
"""


def talk(env, role, name, port, mine, seconds, shim):
    return env.start(role, [*(harness.run_prefix() if shim else ()), sys.executable, "-c", TALK, role, name, env.address,
                            port, mine, seconds])


def test_twins(joined):
    """Two pairs of namespaces with the same addresses, and in each a connection with the same ports: each has one end
    under xrdma, and these two meet in the directory. Neither is the other's end, and the kernel says so."""
    env = joined
    env.mode = "plain"
    with hosts.Hosts(2, "none", 1500, pin=False) as pair:
        for h, like in zip(pair, (env.hosts["server"], env.hosts["client"])):
            hosts.batch(["addr add %s/24 dev %s" % (like.address, h.link)], h.name)
        twin = harness.Env("plain", pair)
        twin.env.update(XRDMA_RUN_DIR=env.env["XRDMA_RUN_DIR"], XRDMA_STATS_DIR=env.stats)
        twin.address = env.address
        with contextlib.closing(twin):
            assert talk(env, "server", "one", 5000, 0, 0, False).line() == "up"
            assert talk(twin, "server", "two", 5000, 0, 0, True).line() == "up"
            clients = [talk(env, "client", "one", 5000, 6000, 30, True), talk(twin, "client", "two", 5000, 6000, 30, False)]
            harness.until(lambda: sum(env.counters(f["pid"])[0]["handshake_refused"] for f in env.flows()), 20,
                          "that they meet")
            for c in clients:
                c.say("enough")
            assert all(int(c.line()) > 20 for c in clients)
            got = env.flows()
            assert len(got) == 2 and {f["carrier"] for f in got} == {"tcp"}, got


def test_a_name_that_was_left(joined):
    """By a process that was killed; the next one with that address and port takes it over."""
    joined.mode = "plain"
    names = os.listdir(joined.env["XRDMA_RUN_DIR"])
    server = talk(joined, "server", "one", 5000, 0, 0, False)
    assert server.line() == "up"
    client = talk(joined, "client", "one", 5000, 6000, 30, True)
    harness.until(lambda: os.listdir(joined.env["XRDMA_RUN_DIR"]) != names, 10, "a name")
    client.kill()
    client.wait()
    server.kill()
    server.wait()
    left = os.listdir(joined.env["XRDMA_RUN_DIR"])
    assert left
    assert talk(joined, "server", "two", 5000, 0, 0, True).line() == "up"
    client = talk(joined, "client", "two", 5000, 6000, 1, True)
    assert int(client.line()) > 20
    assert {f["carrier"] for f in joined.flows(client.pid)} == {"shm"}, joined.flows()
