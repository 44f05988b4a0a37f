# SPDX-License-Identifier: BSD-2-Clause
"""
Connections that take the way of those to other hosts, over the device that needs none: a channel between the helper
threads of both programs. Other tests take it with --bridge.
"""
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest

import harness
import shell
from test_stream import K, M, long_lived, transfer

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(
    not os.path.exists(os.path.join(harness.build_dir(), ".libs/libxrdma-rdma.so")), reason="built without nettle")]


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = harness.Env("both")
    try:
        yield e
    finally:
        e.close()


@pytest.mark.parametrize("io", ["send", "iov", "peek"])
def test_both_ways_at_once(far, io):
    transfer(far, io=io, wait="threads", c2s=8 * M + 17, s2c=8 * M + 5)


@pytest.mark.parametrize("wait", ["block", "poll", "epollet"])
def test_turns(far, wait):
    long_lived(far, 30000, wait=wait, proto="pingpong", turn=3000, c2s=600000, s2c=600000)


def test_half_close(far):
    transfer(far, wait="poll", proto="halfclose", c2s=700 * K, s2c=2 * M)


@pytest.mark.parametrize("who", [0, 1], ids=["client", "server"])
def test_half_closed_while_it_moves(far, who):
    """
    An end that is through before its own direction has left TCP, when the other direction is about to: it cannot go
    back by a frame in the stream, which it has ended. The other end is to hear of it all the same.
    """
    live = shell.Pair(far)
    a, b = (live.c, live.s) if who == 0 else (live.s, live.c)
    # sleeps in the kernel, where its direction cannot be taken from it
    sent = a.send_bg(8 * M)
    end = time.monotonic() + 20
    other = "server" if who == 0 else "client"
    while live.carriers().get(other, {}).get("carrier") != "rdma/tcp":
        assert time.monotonic() < end, live.carriers()
        b.sendall(1000)
        assert a.recv(1000, shell.WAITALL).ret == 1000
    b.sendall(1000)
    assert a.recv(1000, shell.WAITALL).ret == 1000
    got = b.drain_bg()
    assert sent.result(20).ret == 8 * M
    a.shutdown(socket.SHUT_WR)
    assert b.drained(got, 20) == (8 * M, None)
    got = a.drain_bg()
    b.sendall(3 * M)
    b.close()
    assert a.drained(got, 20) == (3 * M, None)


def test_left_alone(far):
    """
    What goes back to TCP does not fit into the socket at once, and the program waits for something else from then on:
    as with TCP all of it, and the end, comes to who reads.
    """
    live = shell.Pair(far).upgrade()
    c, s = live.c, live.s
    sent = c.tx - s.rx + c.fill()
    c.sh.ok("setsockopt", c.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    c.shutdown(socket.SHUT_WR)
    assert s.drain(timeout=20) == (sent, None)


def test_shown(far):
    """The carrier is that of connections between hosts; the descriptors that the program sees are its own."""
    live = shell.Pair(far).upgrade()
    assert [f["carrier"] for f in far.flows()] == ["rdma", "rdma"]
    both = live.carriers()
    a, b = both["client"]["rdma"], both["server"]["rdma"]
    assert a["qpn"] > 0 and b["qpn"] > 0 and (a["qpn"], a["peer_qpn"]) == (b["peer_qpn"], b["qpn"]), (a, b)
    assert a["device"] == b["device"] == "shm"
    line = harness.xr_stat({**os.environ, **far.env}, "-ni", "--pid=%d" % live.client.pid)
    assert "qpn:%d/%d gid:%s device:shm" % (a["qpn"], a["peer_qpn"], a["gid"]) in line, line
    for end in (live.client, live.server):
        assert max(n for n in harness.fds(end.pid) if n < 1000) < 20


CLONE_THREAD, NEWNS, NEWUSER = 0x10000, 0x20000, 0x10000000
RDMA_THREADS = {"xrdma-helper", "xrdma-agent"}


def names_of_threads(pid):
    return sorted(open("/proc/%d/task/%s/comm" % (pid, t), encoding="ascii").read().strip()
                  for t in os.listdir("/proc/%d/task" % pid))


@pytest.mark.parametrize("call", ["unshare", "setns"])
def test_a_call_for_processes_of_one_thread(far, call):
    """
    A new user namespace, and the mounts of another one, are not for a program with a second thread: the helper is none
    of the program's. Again and again, since it comes back; and not in vain, where the program has threads of its own.
    """
    live = shell.Pair(far).upgrade()
    me, peer = live.c, live.s
    there = shell.Shell(far, None)
    if there("unshare", NEWUSER | NEWNS).ret < 0:
        pytest.skip("no namespaces here")
    if call == "setns":
        orders = 3 * [("setns", "/proc/%d/ns/mnt" % there.pid, NEWNS)]
    else:
        orders = [("unshare", NEWUSER)] + 2 * [("unshare", CLONE_THREAD)]
    held = []
    assert RDMA_THREADS <= set(names_of_threads(me.sh.pid))
    # a thread of its own: refused as ever, and nothing is taken from anybody for it
    waits = me.recv_bg(1)
    me.sh.asleep()
    assert me.sh(*orders[0]).err == "EINVAL"
    assert {f["carrier"] for f in far.flows()} == {"rdma"}
    peer.sendall(1)
    assert waits.result().ret == 1
    me.rx += 1
    for order in orders:
        sent = peer.send_bg(2 * M)
        assert me.recv(M, shell.WAITALL).ret == M
        me.sendall(100000)
        me.sh.ok(*order)
        assert len(names_of_threads(me.sh.pid)) == 1
        assert me.recv(M, shell.WAITALL).ret == M
        assert sent.result().ret == 2 * M
        peer.tx += 2 * M
        assert peer.recv(100000, shell.WAITALL).ret == 100000
        # the word behind the last byte may come later, and is found with a call
        harness.until(lambda: me.poll(0) is not None and [(f["carrier"], f["reason"]) for f in far.flows(me.sh.pid)] ==
                      [("tcp", "limit-threads")], 5, lambda: far.flows(me.sh.pid))
        end = time.monotonic() + 20
        while {f["carrier"] for f in far.flows()} != {"rdma"}:
            assert time.monotonic() < end, far.flows()
            live.turns(30, 2000)
        assert RDMA_THREADS <= set(names_of_threads(me.sh.pid))
        held.append(harness.fds(me.sh.pid))
    # links of three earlier times are kept for a while, with three of them each; calls see to that
    harness.until(lambda: me.poll(0) is not None and len(harness.fds(me.sh.pid)) <= len(held[0]) + 9, 5,
                  lambda: "\n".join(str(sorted(h.items())) for h in held))
    me.close()
    assert peer.drain() == (0, None)


MODULE = "libxrdma-rdma.so"


@pytest.mark.parametrize("what", ["missing", "damaged", "something-else", "other-version"])
def test_without_its_module(far, tmp_path, what):
    """No module that fits: connections work, on TCP, and say so."""
    libs = os.path.join(harness.build_dir(), ".libs")
    far.env["XRDMA_MODULE_DIR"] = str(tmp_path)
    if what == "missing":
        # beside the preload object is where it is looked for next
        far.mode = "plain"
        far.env["LD_PRELOAD"] = shutil.copy(os.path.join(libs, "libxrdma_preload.so"), tmp_path)
    elif what == "damaged":
        (tmp_path / MODULE).write_bytes(b"\x7fELF")
    elif what == "something-else":
        shutil.copy(os.path.join(libs, "libxrdma_preload.so"), tmp_path / MODULE)
    else:
        version = subprocess.run([harness.find("tools/xr-stat"), "--version"], stdout=subprocess.PIPE, check=True)
        version = version.stdout.split()[-1]
        with open(os.path.join(libs, MODULE), "rb") as f:
            code = f.read()
        assert b"\0" + version + b"\0" in code
        (tmp_path / MODULE).write_bytes(code.replace(b"\0" + version + b"\0", b"\0" + b"9" * len(version) + b"\0"))
    stays_on_tcp(far, shell.Pair(far), "no-verbs")


def stays_on_tcp(far, live, reason):
    def turns(n):
        # without threads of the programs' own
        for _ in range(n):
            for a, b in ((live.c, live.s), (live.s, live.c)):
                a.sendall(3000)
                assert b.recv(3000, shell.WAITALL).ret == 3000
    turns(20)
    harness.until(lambda: turns(5) or live.carriers()["server"]["reason"] == reason, 10,
                  lambda: "%s: %r" % (reason, live.carriers()), 0.05)
    assert live.carriers()["server"]["carrier"] == "tcp"
    counters, reasons = far.counters(live.server.pid)
    assert reasons[reason] >= 1 and counters["upgrade_failed"] >= 1
    turns(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a program as somebody else")
def test_without_threads(far, monkeypatch):
    """A user who may have no more of them."""
    def nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    os.chmod(far.stats, 0o777)
    start = far.start
    monkeypatch.setattr(far, "start", lambda role, argv, **kw: start(
        role, argv, **kw, **({"preexec": nobody} if role == "server" else {})))
    live = shell.Pair(far)
    stays_on_tcp(far, live, "limit-threads")


def test_forced_retreats(far):
    """To TCP and back at random instants, under load: no byte is lost, repeated or misplaced."""
    far.env["XRDMA_RETURN_AFTER"] = "0"
    seed = random.getrandbits(30)
    args = ["--seed=%d" % seed, "--conns=4", "--c2s=%d" % (30 * M), "--s2c=%d" % (30 * M), "--seg=5000", "--io=peek"]
    s = far.start("server", [harness.prog("xrt"), "server", "--wait=poll", *args])
    c = far.start("client", [harness.prog("xrt"), "client", "--wait=epollet", "--port=%d" % s.json()["port"], *args])
    force = far.start(None, [harness.find("tests/retreat/xrforce"), far.stats, str(seed), "3000"])
    try:
        rc, rs = c.json(40), s.json(40)
    finally:
        force.p.stdin.close()
        done = force.json(10)
    assert (rs["op"], rc["op"]) == (None, None), (seed, rs, rc)
    assert rs["tx_sum"] == rc["rx_sum"] and rs["rx_sum"] == rc["tx_sum"], seed
    assert done["retreats"] > 5 and done["upgrades"] > 2, done


@pytest.mark.parametrize("how", ["exit", "exec"])
def test_the_process_ends_under_a_close(far, how):
    """A thread lingers in close(2) when another one ends the process, and it with that: the kernel goes on delivering."""
    live = shell.Pair(far).upgrade()
    me, peer = live.s, live.c
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        n = me.fill()
        me.sh.ok("setsockopt", me.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        me.sh.ok("linger", me.fd, 1, 20)
        other = me.sh.ok("dup", 1)
        me.sh.bg("close", me.fd)
        me.sh.asleep()
        me.sh.order("0 last %d 0 0 0 %s\n" % (other, how))
        harness.until(lambda: harness.state(me.sh.pid) == "Z", 10, "the end of the process")
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (n, None)
    harness.until(lambda: not harness.left_behind(far, "xrdma-caretaker"), 5, "no process left")


@pytest.mark.parametrize("how", ["exit", "_exit", "quick_exit"])
def test_the_module_stands_still_when_its_process_ends(far, how, tmp_path):
    """Libraries that it uses have destructors, which must not find it at work."""
    far.env["XRDMA_LOG_LEVEL"], far.env["XRDMA_LOG_FILE"] = "debug", str(tmp_path / "log")
    live = shell.Pair(far).upgrade()
    live.s.sendall(100)
    live.server.order("0 last %d 0 0 0 %s\n" % (live.server.ok("dup", 1), how))
    harness.until(lambda: harness.state(live.server.pid) == "Z", 10, "the end of the process")
    log = (tmp_path / "log").read_text()
    assert "xrdma-helper[%d]: the process ends: the module stands still" % live.server.pid in log, log
    assert live.c.drain() == (100, None)


def test_a_killed_peer(far):
    """A process that cannot say what it had sent: what came of it, then an error, where TCP tells of an end."""
    live = shell.Pair(far).upgrade()
    live.server.proc.reap()
    harness.until(lambda: live.c.poll(shell.EV_IN, 0), 5, "the end")
    assert live.c.recv(100).err == "ECONNRESET"
    assert live.c.recv(100).ret == 0


IN_A_HANDLER = """
import ctypes, os, socket
l = socket.create_server(("127.0.0.1", 0))
print(l.getsockname()[1], flush=True)
c = l.accept()[0]
def serve(_):
    if not os.fork():
        while d := c.recv(1000):
            c.sendall(d)
        os._exit(0)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(serve)
ctypes.CDLL(None).signal(10, handler)
os.kill(os.getpid(), 10)
c.close()
os.wait()
"""


def test_a_child_that_lives_in_a_handler(far):
    """It gets no thread, as the handler may have come upon malloc. It says so, and does not try with each turn."""
    server = far.start("server", ["/usr/bin/python3", "-c", IN_A_HANDLER])
    sh = shell.Shell(far, "client")
    fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    sh.ok("connect", fd, "127.0.0.1", int(server.line()))
    me = shell.End(sh, fd, 7, 7)     # an echo
    for _ in range(300):
        me.sendall(100)
        assert me.recv(100, shell.WAITALL).ret == 100
    theirs = [f for f in far.flows() if f["pid"] not in (sh.proc.pid, server.pid)]
    assert [(f["carrier"], f["reason"]) for f in theirs] == [("tcp", "limit-threads")], theirs
    assert theirs[0]["upgrade_attempts"] < 30, theirs


def test_memory_is_counted(far):
    """What the helper registers is shown, and where huge pages are not to be taken, nobody misses any."""
    far.env["XRDMA_RDMA_HUGE_PAGES"] = "no"
    p = shell.Pair(far).upgrade()
    assert p.carriers()["client"]["carrier"] == "rdma"
    for sh in (p.client, p.server):
        c = far.counters(sh.pid)[0]
        assert c["rdma_memory"] >= 4 * M and c["rdma_memory"] % (4 * M) == 0
        assert c["rdma_memory_huge"] == c["rdma_huge_missed"] == c["rdma_memory_far"] == c["rdma_node_refused"] == 0


def test_memory_in_huge_pages(far):
    """As much of it as there are huge pages for is in such, and the rest is counted as missed."""
    aside = "/proc/sys/vm/nr_hugepages"
    with open(aside, encoding="ascii") as f:
        before = int(f.read())
    try:
        try:
            with open(aside, "w", encoding="ascii") as f:
                f.write(str(before + 64))
        except OSError:
            pass
        p = shell.Pair(far).upgrade()
        p.c.sendall(100000)
        assert p.s.recv(100000, shell.WAITALL).ret == 100000
        for sh in (p.client, p.server):
            c = far.counters(sh.pid)[0]
            assert c["rdma_memory_huge"] + 4 * M * c["rdma_huge_missed"] >= c["rdma_memory"] >= 4 * M
            with open("/proc/%d/smaps" % sh.pid, encoding="ascii") as f:
                huge = any(line.split() == ["KernelPageSize:", "2048", "kB"] for line in f)
            assert huge == bool(c["rdma_memory_huge"])
    finally:
        try:
            with open(aside, "w", encoding="ascii") as f:
                f.write(str(before))
        except OSError:
            pass
