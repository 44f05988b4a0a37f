# SPDX-License-Identifier: BSD-2-Clause
"""close() and exit() in mid-retreat: they wait for nobody, and what TCP would have delivered is delivered."""
import ctypes
import os
import signal
import socket
import time

import pytest

from shell import WAITALL

import harness
import shell
from test_operator import retreat

pytestmark = pytest.mark.timeout(60)

FD_CLOEXEC, F_SETFD = 1, 2
SOON = .5       # seconds; the peer does not act for longer than that


def caretakers(env):
    return harness.left_behind(env, "xrdma-caretaker")


def ended(pid):
    try:
        return harness.state(pid) == "Z"
    except FileNotFoundError:
        return True


def leave(sh, fd, how):
    """The process that has the last descriptor parts from it; how long that took."""
    began = time.monotonic()
    if how == "close":
        assert sh("close", fd).ret == 0
        return time.monotonic() - began
    if how == "exec":
        sh.ok("fcntl", fd, F_SETFD, FD_CLOEXEC)
        sh.order("0 last %d 0 0 0 exec\n" % fd)
    else:
        sh.order("0 exit 0\n")
    harness.until(lambda: ended(sh.pid), 10, "the end of the process")
    return time.monotonic() - began


HOWS = ["close", "exit", "exec"]


def replays_and_stops(live, me, peer, n):
    """The peer has sent n bytes, goes back to TCP, and stops before it could send them again there."""
    peer.sendall(n)
    if live.env.mode == "both":
        peer.sh.ok("setsockopt", peer.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        retreat(live, peer)
    peer.sh.proc.kill(signal.SIGSTOP)


@pytest.mark.parametrize("how", HOWS)
def test_what_was_read_comes_again_from_a_stopped_peer(live, how):
    """One reads all there is, answers, and goes: a clean end, whenever the peer gets to see it."""
    me, peer, n = live.s, live.c, 2 << 20
    try:
        replays_and_stops(live, me, peer, n)
        assert me.recv(n, WAITALL, timeout=5).ret == n
        assert me.send(1000).ret == 1000
        assert leave(me.sh, me.fd, how) < SOON
        if live.env.mode == "both":
            harness.until(lambda: caretakers(live.env), 5, "a caretaker")
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (1000, None)
    harness.until(lambda: not caretakers(live.env), 5, "no process left")


@pytest.mark.parametrize("how", ["close", "exit"])
@pytest.mark.parametrize("n", [100, 300000, 2 << 20])
def test_a_child_reads_what_a_stopped_peer_has_sent(live, n, how):
    me, peer = live.s, live.c
    peer.sendall(n)
    assert me.recv(50, WAITALL).ret == 50
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        child = live.server.fork()
        began = time.monotonic()
        me.close()
        assert time.monotonic() - began < SOON
        s = me.as_seen_by(child)
        assert s.recv(n - 50, WAITALL, timeout=5).ret == n - 50
        assert s.send(1000).ret == 1000
        assert leave(child, s.fd, how) < SOON
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (1000, None)


@pytest.mark.parametrize("how", HOWS)
def test_what_does_not_fit_into_the_kernel(live, how):
    """More is unread than the socket takes: the peer gets it all, and the end, after this one has gone."""
    me, peer = live.s, live.c
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        n = me.fill()
        # the next retreat finds less room than there was
        live.server.ok("setsockopt", me.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        child = live.server.fork()
        began = time.monotonic()
        me.close()
        assert time.monotonic() - began < SOON
        assert leave(child, me.fd, how) < SOON
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (n, None)
    harness.until(lambda: not caretakers(live.env), 5, "no process left")


def test_nothing_is_held_by_it(live):
    """It has the socket open, and no other file of the program."""
    me, peer, n = live.s, live.c, 2 << 20
    try:
        replays_and_stops(live, me, peer, n)
        assert me.recv(n, WAITALL, timeout=5).ret == n
        me.close()
        if live.env.mode == "both":
            harness.until(lambda: caretakers(live.env), 5, "a caretaker")
            assert live.env.counters(live.server.pid)[0]["caretakers"] == 1
            left = caretakers(live.env)
            assert len(left) == 1
            harness.until(lambda: list(harness.fds(left[0])) == [me.fd], 5, "its only descriptor")
            # wait(2) for any child does not see it
            assert live.server("wait", -1).err == "ECHILD"
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (0, None)
    harness.until(lambda: not caretakers(live.env), 5, "no process left")


@pytest.fixture
def collector():
    """Orphans of this test's programs come to this process, which collects none before its end."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = set(harness.children(os.getpid()))
    assert prctl(36, 1, 0, 0, 0) == 0       # PR_SET_CHILD_SUBREAPER

    def orphans():
        return set(harness.children(os.getpid())) - before
    yield orphans
    prctl(36, 0, 0, 0, 0)
    for pid in orphans():
        if harness.state(pid) == "Z":
            os.waitpid(pid, 0)


def test_no_zombie_stays(env, collector):
    """Of a program that goes on: its next calls collect the caretaker, which wait(2) never shows it."""
    live = shell.Pair(env).upgrade()
    programs = collector()
    me, peer, n = live.s, live.c, 2 << 20
    try:
        replays_and_stops(live, me, peer, n)
        assert me.recv(n, WAITALL, timeout=5).ret == n
        me.close()
        harness.until(lambda: len(caretakers(env)) == (env.mode == "both"), 5, "a caretaker")
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (0, None)
    harness.until(lambda: not caretakers(env), 5, "its end")
    assert live.server("wait", -1).err == "ECHILD"
    live.server.ok("close", live.server.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0))
    assert harness.children(live.server.pid) == []
    assert collector() == programs


def test_a_program_that_becomes_another_one_has_no_child(live):
    """The new program would be told of the end of a child that it never had."""
    me, peer, n = live.s, live.c, 2 << 20
    try:
        replays_and_stops(live, me, peer, n)
        assert me.recv(n, WAITALL, timeout=5).ret == n
        me.close()
        left = live.env.mode == "both"
        harness.until(lambda: len(caretakers(live.env)) == left, 5, "a caretaker")
        live.server.order("0 exec sleep 60\n")

        def is_sleep():
            with open("/proc/%d/comm" % live.server.pid, encoding="ascii") as f:
                return f.read() == "sleep\n"
        harness.until(is_sleep, 10, "the new program")
        assert harness.children(live.server.pid) == []
        assert len(caretakers(live.env)) == left
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    assert peer.drain() == (0, None)
    harness.until(lambda: not caretakers(live.env), 5, "no process left")


def test_the_first_process_of_a_namespace_is_the_programs(live):
    """When the first one ends no other can be made there: it is not for a caretaker to be that."""
    me, peer, n = live.s, live.c, 2 << 20
    r = live.server("unshare", 0x20000000)      # CLONE_NEWPID
    if r.ret < 0:
        pytest.skip("unshare: %s" % r.err)
    try:
        replays_and_stops(live, me, peer, n)
        assert me.recv(n, WAITALL, timeout=5).ret == n
        me.close()
        assert live.server("system", "exit 3").ret == 3 << 8
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    got = peer.drain()
    assert got == ((0, "ECONNRESET") if live.mode == "both" else (0, None))
    if live.mode == "both":
        assert live.env.counters(live.server.pid)[0]["undelivered"] == 1


def test_a_killed_caretaker_is_a_killed_process(live):
    """The peer sees the end that the kernel gives, and this side's memory comes back."""
    me, peer = live.s, live.c
    peer.sh.proc.kill(signal.SIGSTOP)
    try:
        me.fill()
        live.server.ok("setsockopt", me.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        child = live.server.fork()
        me.close()
        child("close", me.fd)
        if live.env.mode == "both":
            harness.until(lambda: caretakers(live.env), 5, "a caretaker")
        left = caretakers(live.env)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    finally:
        peer.sh.proc.kill(signal.SIGCONT)
    if not left:
        assert peer.drain()[1] is None
        return
    # bytes are missing, and the kernel alone knows no reason why the end should not be clean
    peer.drain()
    harness.until(lambda: not caretakers(live.env), 5, "no process left")


def test_more_flows_than_one_caretaker_takes(pair):
    """Forty connections at once, all with bytes that do not fit, and a program that ends."""
    env = pair.env
    ends = [pair.connect() for _ in range(40)]
    for c, s in ends:
        pair.upgrade(c, s)
    pair.client.proc.kill(signal.SIGSTOP)
    sent = []
    try:
        for c, s in ends:
            sent.append(s.send(60000, shell.NOSIGNAL | shell.DONTWAIT).ret)
            pair.server.ok("setsockopt", s.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        child = pair.server.fork()
        for c, s in ends:
            s.close()
        assert leave(child, None, "exit") < 2
    finally:
        pair.client.proc.kill(signal.SIGCONT)
    for (c, s), n in zip(ends, sent):
        assert c.drain() == (n, None)
    harness.until(lambda: not caretakers(env), 5, "no process left")
