# SPDX-License-Identifier: BSD-2-Clause
"""Processes: fork, exec, popen, daemon, and descriptors that change hands."""
import os
import socket
import time

import pytest

from shell import DONTWAIT, EV_IN, WAITALL
import harness
import shell

pytestmark = pytest.mark.timeout(60)


def end_child(parent, child):
    child.end()
    assert parent("wait", child.pid).ret == child.pid


def test_accept_then_fork(pair):
    """The parent accepts and closes, the child serves."""
    child = pair.server.fork()
    s = pair.s.as_seen_by(child)
    pair.s.close()
    for _ in range(10):
        pair.turns(20, 1000, pair.c, s)
    end_child(pair.server, child)
    assert pair.c.drain() == (0, None)


def test_upgraded_then_fork_child_serves(live):
    child = live.server.fork()
    s = live.s.as_seen_by(child)
    live.s.close()
    for _ in range(10):
        live.turns(20, 1000, live.c, s)
    live.c.sendall(5000)
    assert s.recv(5000, WAITALL).ret == 5000
    end_child(live.server, child)
    assert live.c.drain() == (0, None)


@pytest.mark.fabric
@pytest.mark.modes("both")
@pytest.mark.parametrize("end", ["client", "server"])
def test_the_parent_s_list_says_what_a_child_made_of_it(live, end):
    """The parent itself does not use the connection any more, and sleeps."""
    sh, me, peer = (live.client, live.c, live.s) if end == "client" else (live.server, live.s, live.c)
    child = sh.fork()
    mine = me.as_seen_by(child)
    mine.sendall(1000)
    assert peer.recv(1000, WAITALL).ret == 1000
    for _ in range(5):
        peer.sendall(1000)
        assert mine.recv(1000, WAITALL).ret == 1000
        mine.sendall(1000)
        assert peer.recv(1000, WAITALL).ret == 1000
    f, = live.env.flows(sh.pid)
    assert (f["carrier"], f["reason"], f["retreats"], f["fd"]) == ("tcp", "forked", 1, me.fd)
    harness.until(lambda: [(f["tx"]["queue"], f["rx"]["queue"]) for f in live.env.flows(sh.pid)] == [(0, 0)], 5,
                  "the kernel's queues, all acknowledged")
    end_child(sh, child)
    me.tx, me.rx = mine.tx, mine.rx
    live.turns()


def test_fork_with_unread_data(live):
    """Bytes that had arrived before the fork are read by the child."""
    live.c.sendall(60000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    assert live.s.recv(1000, WAITALL).ret == 1000
    child = live.server.fork()
    s = live.s.as_seen_by(child)
    live.s.close()
    live.c.sendall(1000)
    assert s.recv(60000, WAITALL).ret == 60000
    live.turns(c=live.c, s=s)


def test_fork_in_mid_stream(live):
    """A peer that is sending as fast as it can does not notice the hand-over."""
    n = 8 << 20
    w = live.client.bg("sendall", live.c.fd, n, 0, live.c.tx_key, live.c.tx)
    assert live.s.recv(1 << 20, WAITALL).ret == 1 << 20
    child = live.server.fork()
    s = live.s.as_seen_by(child)
    live.s.close()
    assert s.recv(n - (1 << 20), WAITALL).ret == n - (1 << 20)
    assert w.result().ret == n


def test_parent_and_child_take_turns(live):
    """Both use the one socket, strictly in turn."""
    child = live.server.fork()
    me = live.s
    for i in range(6):
        s = me.as_seen_by(child if i % 2 else live.server)
        live.turns(5, 500, live.c, s)
        me.tx, me.rx = s.tx, s.rx
    end_child(live.server, child)
    live.turns()
    live.s.close()
    assert live.c.drain() == (0, None)


def test_child_writes_parent_reads(live):
    """The two directions in two processes (telnet, nc)."""
    child = live.server.fork()
    s = live.s.as_seen_by(child)
    for _ in range(20):
        s.sendall(3000)
        live.c.sendall(2000)
        assert live.s.recv(2000, WAITALL).ret == 2000
        assert live.c.recv(3000, WAITALL).ret == 3000
    assert s.shutdown(socket.SHUT_WR).ret == 0
    assert live.c.drain() == (0, None)
    live.c.sendall(10)
    assert live.s.recv(10).ret == 10


def test_parent_leaves_child_stays(live):
    child = live.server.fork()
    live.server.order("0 exit 0\n")
    live.server.proc.wait(5)
    s = live.s.as_seen_by(child)
    live.turns(20, 1000, live.c, s)
    child.end()
    assert live.c.drain() == (0, None)


def test_child_that_does_nothing(live):
    """A child that never touches the socket and ends: the flow goes on as it was."""
    child = live.server.fork()
    live.turns()
    end_child(live.server, child)
    live.turns()
    live.c.sendall(100000)
    assert live.s.recv(100000, WAITALL).ret == 100000
    live.s.close()
    assert live.c.drain() == (0, None)


def test_child_holds_connection_open(live):
    """The connection ends when the last process lets go, not before."""
    child = live.server.fork()
    live.s.close()
    assert live.c.recv(1, DONTWAIT).err == "EAGAIN"
    live.turns(5, 100, live.c, live.s.as_seen_by(child))
    assert live.c.recv(1, DONTWAIT).err == "EAGAIN"
    end_child(live.server, child)
    assert live.c.drain(0) == (0, None)


def test_prefork(env):
    """Children that each accept from one listener; their flows are as good as anyone's."""
    p = shell.Pair(env)
    children = [p.server.fork() for _ in range(2)]
    for child in children:
        c, s = p.connect(server=child)
        p.upgrade(c, s)
        c.close()
        assert s.drain() == (0, None)


def test_fork_then_new_connections(live):
    """Parent and child both open flows of their own afterwards."""
    child = live.server.fork()
    for sh in (live.server, child):
        c, s = live.connect(server=sh)
        live.upgrade(c, s)
        s.close()
        assert c.drain() == (0, None)
    live.turns()


@pytest.mark.fabric
@pytest.mark.modes("both")
@pytest.mark.parametrize("end", ["client", "server"])
def test_child_of_one_that_was_on_the_fabric(live, end):
    """Its parent has no connection any more, and it has new ones of its own there; so has its own child."""
    live.c.close()
    assert live.s.drain() == (0, None)
    live.s.close()
    time.sleep(0.2)     # until the parent has done with it
    for _ in range(2):
        setattr(live, end, getattr(live, end).fork())
        ends = live.connect()
        live.upgrade(*ends)
        ends[0].close()
        assert ends[1].drain() == (0, None)
        ends[1].close()
        time.sleep(0.2)


def test_child_accepts_as_many_as_its_parent_did(live):
    """The first between two processes is moved by name, the next over what they share; so again in the child."""
    for _ in range(4):
        live.upgrade(*live.connect())
    child = live.server.fork()
    ends = [live.connect(server=child) for _ in range(4)]
    for c, s in ends:
        live.upgrade(c, s)
    for c, s in ends:
        live.turns(5, 500, c, s)
    end_child(live.server, child)
    live.turns()


@pytest.mark.parametrize("unread", [0, 5000])
def test_inetd(live, unread):
    """The socket becomes 0, 1 and 2 of a program that knows nothing: cat."""
    if unread:
        live.c.sendall(unread)
        assert live.s.poll(EV_IN, 2000) == EV_IN
    pid = live.server.ok("inetd", live.s.fd, "cat")
    live.s.close()
    live.c.sendall(20000)
    # cat returns what was sent: read it with the key it was written with.
    echo = shell.End(live.client, live.c.fd, 0, live.c.tx_key)
    echo.rx = live.c.tx - 20000 - unread
    assert echo.recv(20000 + unread, WAITALL, timeout=10).ret == 20000 + unread
    live.c.shutdown(socket.SHUT_WR)
    assert echo.drain() == (0, None)
    assert live.server("wait", pid).ints == [0]


def test_inetd_fresh(pair):
    pid = pair.server.ok("inetd", pair.s.fd, "cat")
    pair.s.close()
    pair.c.sendall(3000)
    echo = shell.End(pair.client, pair.c.fd, 0, pair.c.tx_key)
    assert echo.recv(3000, WAITALL).ret == 3000
    pair.c.shutdown(socket.SHUT_WR)
    assert echo.drain() == (0, None)
    assert pair.server("wait", pid).ints == [0]


def test_system_and_popen(live):
    """Children that glibc makes for us; the flow does not notice."""
    for _ in range(3):
        assert live.server("system", "true").ret == 0
        assert live.server("system", "exit 3").ret == 3 << 8
        r = live.client("popen", "echo hello")
        assert (r.ret, r.words) == (0, ["hello"])
        live.turns()


def test_system_writes_to_the_socket(live):
    """A shell that inherits the socket writes raw bytes into it; they arrive, in their place."""
    live.s.sendall(1000)
    assert live.server("system", "printf hello >&%d" % live.s.fd).ret == 0
    assert live.c.recv(1000, WAITALL).ret == 1000
    r = live.client("recv", live.c.fd, 5, WAITALL, 0, 0)
    assert r.ret == 5
    live.turns()


def test_system_reads_from_the_socket(live):
    live.c.sendall(2000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    r = live.server.bg("popen", "head -c 2000 <&%d | wc -c" % live.s.fd)
    # unread bytes reach a reader without hooks when the peer next makes a call on the flow
    harness.until(lambda: live.c.poll(EV_IN, 0) is not None and r.done(0.01), 5, "head has its bytes")
    assert r.result().words == ["2000"]
    live.s.rx += 2000
    live.turns()


@pytest.mark.parametrize("noclose", [0, 1])
def test_daemon(live, noclose):
    """daemon(): the process that goes on is another one."""
    child = live.server.daemon(noclose)
    s = live.s.as_seen_by(child)
    live.turns(20, 1000, live.c, s)
    live.c.sendall(50000)
    assert s.recv(50000, WAITALL).ret == 50000
    child.end()
    assert live.c.drain() == (0, None)


def test_pass_fd_within_process(live):
    a, b = live.server("socketpair").ints
    live.server.ok("sendfd", a, live.s.fd)
    fd = live.server.ok("recvfd", b)
    live.s.close()
    s = live.s.as_seen_by(live.server, fd)
    live.turns(20, 1000, live.c, s)
    s.close()
    assert live.c.drain() == (0, None)


@pytest.mark.parametrize("unread", [0, 3000])
def test_pass_fd_to_other_process(pair, unread):
    """Accept here, serve there; also with bytes that had already come."""
    a, b = pair.server("socketpair").ints
    child = pair.server.fork()
    c, s = pair.connect()
    pair.upgrade(c, s)
    if unread:
        c.sendall(unread)
        assert s.poll(EV_IN, 2000) == EV_IN
    pair.server.ok("sendfd", a, s.fd)
    fd = child.ok("recvfd", b)
    s.close()
    s = s.as_seen_by(child, fd)
    if unread:
        r = s.recv_bg(unread, WAITALL)
        # as in test_system_reads_from_the_socket
        harness.until(lambda: c.poll(EV_IN, 0) is not None and r.done(0.01), 5, "unread bytes")
        assert r.result().ret == unread
        s.rx += unread
    pair.turns(20, 1000, c, s)
    s.close()
    assert c.drain() == (0, None)


def test_many_forks(live):
    """Fifty children in a row, the flow in use between them; nothing piles up."""
    def maps():
        return harness.shared_maps(live.server.pid)[0], harness.shared_maps(live.server.pid, pool=False)

    before = None
    for i in range(50):
        assert live.server("system", ":").ret == 0
        live.turns(2, 300)
        if i == 10:
            before = len(harness.fds(live.server.pid)), maps()
    # a doorbell is made when somebody first sleeps
    assert len(harness.fds(live.server.pid)) <= before[0] + 2
    now = maps()
    assert now[1] == before[1][1]
    # registered memory goes and comes back when the machine stood still for so long that the flow was at rest; a
    # mapping of each child would be 39
    assert now[0] <= before[1][0] + 5
    assert os.path.exists("/proc/%d" % live.server.pid)


def test_fork_by_one_of_many_threads(live):
    """A thread sleeps in recv while another forks; both go on."""
    r = live.s.recv_bg(10)
    live.server.asleep()
    child = live.server.fork()
    assert child("socket", 2, 1, 0).ret > 0
    live.c.sendall(10)
    assert r.result(2).ret == 10
    end_child(live.server, child)
    live.s.rx += 10
    live.turns()
