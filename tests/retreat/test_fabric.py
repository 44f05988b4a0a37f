# SPDX-License-Identifier: BSD-2-Clause
"""The fabric breaks under connections whose TCP is alive: they go on over TCP, and say why."""
import ctypes
import os
import socket
import time

import pytest

from shell import EV_IN, WAITALL

import harness
import shell

pytestmark = [pytest.mark.fabric, pytest.mark.modes("both"), pytest.mark.timeout(60)]

PIDFD_OPEN, PIDFD_GETFD = 434, 438


def borrow(pid, fd):
    """A descriptor of another process's, as a duplicate."""
    libc = ctypes.CDLL(None, use_errno=True)
    p = libc.syscall(PIDFD_OPEN, pid, 0)
    got = libc.syscall(PIDFD_GETFD, p, fd, 0)
    os.close(p)
    if got < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return got


def controls(pid):
    """The connections of this process over which it passes bells to others."""
    for fd in harness.fds(pid):
        try:
            name = os.readlink("/proc/%d/fd/%d" % (pid, fd))
        except OSError:
            continue
        if not name.startswith("socket:"):
            continue
        try:
            s = socket.socket(fileno=borrow(pid, fd))
        except OSError:     # it has just been closed, or shows only which socket it is
            continue
        if s.family == socket.AF_UNIX and s.type == socket.SOCK_SEQPACKET:
            yield s
        else:
            s.close()


def cut(pid):
    n = 0
    for s in controls(pid):
        try:
            s.shutdown(socket.SHUT_RDWR)
            n += 1
        except OSError:
            pass
        s.close()
    return n


WAYS = ["recv", "poll", "select", "epoll_wait"]


def sleeper(e, how):
    if how == "recv":
        return e.recv_bg(100)
    if how == "poll":
        return e.sh.bg("poll", -1, e.fd, EV_IN)
    if how == "select":
        return e.sh.bg("select", -1, e.fd, 1)
    ep = e.sh.ok("epoll_create", 0)
    e.sh.ok("epoll_ctl", ep, shell.ADD, e.fd, EV_IN, 7)
    return e.sh.bg("epoll_wait", ep, 8, -1)


@pytest.fixture(params=["server", "client"])
def who(request):
    return request.param


@pytest.mark.parametrize("how", WAYS)
def test_the_link_between_two_processes_is_cut(env, how, who):
    """More threads fall asleep than have bells: each is woken, and its connection moves to TCP, and back."""
    env.env["XRDMA_RETURN_AFTER"] = "1ms"
    p = shell.Pair(env).upgrade()
    ends = [(p.c, p.s)] + [p.connect() for _ in range(9)]
    for c, s in ends[1:]:
        p.upgrade(c, s)
    assert cut(p.server.pid) == 1
    for c, s in ends:
        p.turns(2, 1000, c, s)
    asleep = []
    for c, s in ends:
        me, peer = (s, c) if who == "server" else (c, s)
        asleep.append((me, peer, sleeper(me, how)))
    me.sh.asleep()
    assert not any(w.done() for _, _, w in asleep)
    for me, peer, w in asleep:
        peer.sendall(100)
        r = w.result(3)
        assert r.ret == (100 if how == "recv" else 1)
        if how == "recv":
            me.rx += 100
        else:
            assert me.recv(100).ret == 100
    seen = {f["last_reason"] for f in env.flows(me.sh.pid)}
    assert "fabric-lost" in seen, seen
    # a new link takes them
    for c, s in ends:
        for _ in range(200):
            p.turns(10, 300, c, s)
            if p.is_up(c):
                break
            time.sleep(.01)
        else:
            pytest.fail("%r" % p.carriers(c))
    for c, s in ends:
        s.sendall(100000)
        s.close()
        assert c.drain() == (100000, None)


def lose_link(p, end, n):
    """The n-th time; afterwards both ends know."""
    assert cut(end.pid) == 1
    # who looks whether there is something finds that the link is broken
    assert p.server("poll", 30, p.s.fd, EV_IN).ret == p.client("poll", 30, p.c.fd, EV_IN).ret == 0
    for f in p.carriers().values():
        assert f["upgrades"] == n, f


def until_upgraded(p, n, seconds):
    end = time.monotonic() + seconds
    while True:
        p.turns(10, 300)
        ends = p.carriers().values()
        if all((f["upgrades"], f["carrier"]) == (n, "shm") for f in ends):
            return
        assert time.monotonic() < end, "upgrade %d: %r" % (n, ends)
        time.sleep(.01)


def test_a_connection_that_loses_its_link_again_and_again_comes_back(env):
    """Three times at once; then it says why it stays for a while, and what it remembers of old links goes."""
    env.env["XRDMA_RETURN_AFTER"] = "0"
    p = shell.Pair(env).upgrade()
    for lost in range(1, 4):
        lose_link(p, (p.server, p.client)[lost % 2], lost)
        until_upgraded(p, lost + 1, 10)
    lose_link(p, p.server, 4)
    began = time.monotonic()
    while time.monotonic() < began + 5:
        p.turns(10, 300)
        time.sleep(.02)
    for f in p.carriers().values():
        assert (f["carrier"], f["reason"]) == ("tcp", "limit-returns"), f
    for pid in (p.server.pid, p.client.pid):
        assert env.counters(pid)[1]["limit-returns"] == 1
    full = [harness.shared_maps(pid)[0] for pid in (p.server.pid, p.client.pid)]
    until_upgraded(p, 5, 30)
    assert time.monotonic() > began + 9
    for pid, n in zip((p.server.pid, p.client.pid), full):
        assert harness.shared_maps(pid)[0] < n, (pid, n)
    # there is room for two more at once
    for lost in (5, 6):
        lose_link(p, p.client, lost)
        until_upgraded(p, lost + 1, 10)
    p.s.sendall(100000)
    p.s.close()
    assert p.c.drain() == (100000, None)


def test_what_a_closed_connection_has_left_stays(live):
    """Unread at the other end of a cut link: connections that go on do not write over it."""
    c2, s2 = live.connect()
    live.upgrade(c2, s2)
    live.s.sendall(400000)
    assert cut(live.server.pid) == 1
    # finds the link broken, and nobody to wait for
    assert live.server.bg("poll", 0, s2.fd, EV_IN).result().ret == 0
    asleep = [s2.recv_bg(1)]
    asleep[0].done(.05)
    live.s.close()
    for _ in range(60):
        s2.sendall(200000)
        assert c2.recv(200000, WAITALL).ret == 200000
    c2.sendall(1)
    assert asleep[0].result().ret == 1
    s2.rx += 1
    assert live.c.drain() == (400000, None)
    live.turns(20, 3000, c2, s2)


@pytest.mark.parametrize("style", ["stream", "duplex"])
def test_cut_over_and_over_under_load(env, style):
    """Eight connections with verified streams, whose link is cut whenever there is one."""
    env.env["XRDMA_RETURN_AFTER"] = "1ms"
    args = ["--seed=%d" % int.from_bytes(os.urandom(4), "little"), "--conns=8", "--c2s=60m", "--s2c=60m",
            "--proto=%s" % style]
    s = env.start("server", [harness.prog("xrt"), "server", "--wait=epoll", *args])
    c = env.start("client", [harness.prog("xrt"), "client", "--wait=poll",
                             "--port=%d" % s.json()["port"], *args])
    cuts = 0
    while c.poll() is None:
        cuts += cut((s, c)[cuts % 2].pid)
        time.sleep(.01)
    assert c.json(30)["op"] is None and s.json(30)["op"] is None
    assert (s.wait(), c.wait()) == (0, 0)
    assert cuts
