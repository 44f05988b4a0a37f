# SPDX-License-Identifier: BSD-2-Clause
"""Epoll in a forked child, of connections of its parent: it hears of what lies unread, wherever that is."""
import os
import signal
import socket

import pytest

from shell import ADD, DONTWAIT, EV_ET, EV_HUP, EV_IN, EV_ONESHOT, EV_OUT, EV_RDHUP, MOD, WAITALL
import harness
import shell

pytestmark = pytest.mark.timeout(60)

TRIGGER = {"level": 0, "edge": EV_ET, "oneshot": EV_ONESHOT}


def events(sh, ep, ms=0, n=8):
    """What epoll_wait says, by what it was registered with."""
    r = sh("epoll_wait", ep, n, ms)
    assert r.ret == len(r.words), r
    return {int(d): int(e) for e, d in (w.split(":") for w in r.words)}


def arrived(end, n):
    harness.until(lambda: end.recv(n, shell.PEEK | DONTWAIT).ret == n, 2, "%d bytes" % n, 0.002)


class Case:
    """The server's child, with an epoll file that has the connection in it, and bytes that nobody has read."""

    def __init__(self, live, kind, trigger, unread=1000, end=None, parent="stays", peer="awake"):
        self.live, self.kind, self.flags = live, kind, EV_IN | EV_RDHUP | TRIGGER[trigger]
        sh, s = live.server, live.s
        if kind == "parent's":
            self.ep = sh.ok("epoll_create", 0)
            assert sh("epoll_ctl", self.ep, ADD, s.fd, self.flags, 7).ret == 0
        elif kind == "added":
            self.ep = sh.ok("epoll_create", 0)
        if unread:
            live.c.sendall(unread)
            arrived(s, unread)
        if end == "shutdown":
            assert live.c.shutdown(socket.SHUT_WR).ret == 0
        elif end == "close":
            live.c.close()
        elif end == "exit":
            live.client.order("0 exit 0\n")
            live.client.proc.wait(5)
        if end:
            harness.until(lambda: s.poll(EV_RDHUP) & EV_RDHUP, 2, "an end")
        self.child = sh.fork()
        self.s = s.as_seen_by(self.child)
        if peer == "stopped":
            os.kill(live.client.pid, signal.SIGSTOP)
        if parent == "exits":
            sh.order("0 exit 0\n")
            sh.proc.wait(5)
        elif parent == "killed":
            os.kill(sh.pid, signal.SIGKILL)
            sh.proc.wait(5)
        elif parent == "closes":
            s.close()
        if kind == "own":
            self.ep = self.child.ok("epoll_create", 0)
        if kind != "parent's":
            r = self.child("epoll_ctl", self.ep, ADD, s.fd, self.flags, 7)
            assert r.ret == 0, r

    def told(self, ms=0):
        return events(self.child, self.ep, ms)

    def again(self):
        assert self.child("epoll_ctl", self.ep, MOD, self.s.fd, self.flags, 7).ret == 0


KIND = pytest.mark.parametrize("kind", ["own", "added", "parent's"])
TRIGGERS = pytest.mark.parametrize("trigger", list(TRIGGER))
PARENT = pytest.mark.parametrize("parent", ["stays", "closes", "exits", "killed"])


@KIND
@TRIGGERS
@PARENT
def test_bytes(live, kind, trigger, parent):
    k = Case(live, kind, trigger, parent=parent)
    assert k.told() == {7: EV_IN}
    assert k.told() == ({7: EV_IN} if trigger == "level" else {})
    if trigger == "oneshot":
        k.again()
        assert k.told() == {7: EV_IN}
    assert k.s.recv(400, WAITALL).ret == 400
    if trigger == "oneshot":
        assert k.told() == {}
        k.again()
    assert k.told() == ({} if trigger == "edge" else {7: EV_IN})
    assert k.s.recv(1000, DONTWAIT).ret == 600
    if trigger == "oneshot":
        k.again()
    assert k.told() == {}
    w = k.child.bg("epoll_wait", k.ep, 8, 5000)
    live.c.sendall(1000)
    r = w.result()
    assert (r.ret, r.words) == (1, ["%d:7" % EV_IN]) and r.us < 3e6, r
    assert k.s.recv(1000, WAITALL).ret == 1000
    k.s.sendall(2000)
    assert live.c.recv(2000, WAITALL).ret == 2000


@KIND
@TRIGGERS
@pytest.mark.parametrize("end", ["shutdown", "close", "exit"])
@pytest.mark.parametrize("parent", ["stays", "killed"])
def test_bytes_and_an_end(live, kind, trigger, end, parent):
    k = Case(live, kind, trigger, end=end, parent=parent)
    assert k.told() == {7: EV_IN | EV_RDHUP}
    assert k.s.recv(1000, WAITALL).ret == 1000
    if trigger == "oneshot":
        k.again()
    # at an end that was told of nothing new is to come
    assert k.told() == ({} if trigger == "edge" else {7: EV_IN | EV_RDHUP})
    assert k.s.recv(1, DONTWAIT).ret == 0


@KIND
@pytest.mark.parametrize("end", ["shutdown", "close", "exit"])
@pytest.mark.parametrize("parent", ["stays", "killed"])
def test_an_end_alone(live, kind, end, parent):
    k = Case(live, kind, "level", unread=0, end=end, parent=parent)
    assert k.told() == {7: EV_IN | EV_RDHUP}
    assert k.s.recv(1, DONTWAIT).ret == 0


@KIND
@pytest.mark.parametrize("parent", ["stays", "killed"])
def test_the_peer_need_do_nothing(live, kind, parent):
    """It is stopped, and the bytes are here."""
    k = Case(live, kind, "level", parent=parent, peer="stopped")
    assert k.told() == {7: EV_IN}
    assert k.s.recv(2000, DONTWAIT).ret == 1000
    assert k.told() == {}
    w = k.child.bg("epoll_wait", k.ep, 8, 8000)
    os.kill(live.client.pid, signal.SIGCONT)
    live.c.sendall(10)
    assert w.result().words == ["%d:7" % EV_IN]
    assert k.s.recv(10, WAITALL).ret == 10


@KIND
@pytest.mark.parametrize("n", [100, 40000])
def test_parent_and_child_read_in_turn(live, kind, n):
    """Both are told for as long as something is left, whoever reads."""
    k = Case(live, kind, "level", unread=n)
    ep = live.server.ok("epoll_create", 0)
    assert live.server("epoll_ctl", ep, ADD, live.s.fd, EV_IN, 5).ret == 0
    me = live.s
    for i in range(4):
        assert k.told(1000) == {7: EV_IN} and events(live.server, ep, 1000) == {5: EV_IN}, i
        s = me.as_seen_by((k.child, live.server)[i % 2])
        assert s.recv(n // 4, WAITALL).ret == n // 4
        me.rx = s.rx
    assert k.told() == {} and events(live.server, ep) == {}
    live.c.sendall(10)
    assert k.told(1000) == {7: EV_IN} and events(live.server, ep, 1000) == {5: EV_IN}
    k.s.rx = me.rx
    assert k.s.recv(10).ret == 10


@KIND
def test_what_is_told_of_several(live, kind):
    """One has bytes unread, one gets some over TCP, one has nothing."""
    pairs = [(live.c, live.s)] + [live.connect() for _ in range(2)]
    for c, s in pairs[1:]:
        live.upgrade(c, s)
    k = Case(live, kind, "level")
    for i, (c, s) in enumerate(pairs[1:]):
        if kind == "parent's":
            continue
        assert k.child("epoll_ctl", k.ep, ADD, s.fd, EV_IN, 10 + i).ret == 0
    assert k.told() == {7: EV_IN}
    if kind == "parent's":
        return
    pairs[1][0].sendall(5)
    harness.until(lambda: k.told() == {7: EV_IN, 10: EV_IN}, 3, "both")
    # one place for events: each has its turn
    seen = set()
    for _ in range(20):
        seen |= set(events(k.child, k.ep, 0, 1))
    assert seen == {7, 10}


@KIND
def test_room_to_write(live, kind):
    """A replay that is owed keeps the child from writing, and it hears when that is over."""
    n = live.s.fill()
    k = Case(live, kind, "level", unread=500)
    k.flags = EV_IN | EV_OUT
    k.again()
    assert k.told() == {7: EV_IN}
    assert live.c.recv(n, WAITALL, timeout=20).ret == n
    # what it has read already comes again, and goes when it next makes a call
    harness.until(lambda: live.c.poll(EV_IN) == 0 and k.told() == {7: EV_IN | EV_OUT}, 5, "room")
    assert k.s.recv(500, WAITALL).ret == 500
    k.s.sendall(1000)
    assert live.c.recv(1000, WAITALL).ret == 1000


@KIND
def test_a_set_in_a_set_and_poll(live, kind):
    """What is in the child's file shows in whatever waits for that file."""
    k = Case(live, kind, "level")
    outer = k.child.ok("epoll_create", 0)
    assert k.child("epoll_ctl", outer, ADD, k.ep, EV_IN, 9).ret == 0
    assert events(k.child, outer, 1000) == {9: EV_IN}
    assert k.child("poll", 1000, k.ep, EV_IN).ints == [EV_IN]
    assert k.told() == {7: EV_IN}
    assert k.s.recv(1000, WAITALL).ret == 1000
    assert k.told() == {}


@KIND
def test_a_child_s_child(live, kind):
    k = Case(live, kind, "level")
    grand = k.child.fork()
    ep = grand.ok("epoll_create", 0)
    assert grand("epoll_ctl", ep, ADD, live.s.fd, EV_IN, 3).ret == 0
    assert events(grand, ep) == {3: EV_IN}
    s = live.s.as_seen_by(grand)
    assert s.recv(1000, WAITALL).ret == 1000
    assert events(grand, ep) == {} and k.told() == {}
    grand.end()


@KIND
def test_taken_out_and_put_back(live, kind):
    k = Case(live, kind, "level")
    assert k.child("epoll_ctl", k.ep, shell.DEL, k.s.fd, 0, 0).ret == 0
    assert k.told() == {}
    assert k.child("epoll_ctl", k.ep, shell.DEL, k.s.fd, 0, 0).err == "ENOENT"
    assert k.child("epoll_ctl", k.ep, ADD, k.s.fd, EV_IN, 8).ret == 0
    assert k.child("epoll_ctl", k.ep, ADD, k.s.fd, EV_IN, 8).err == "EEXIST"
    assert k.told() == {8: EV_IN}
    assert k.child("epoll_ctl", k.ep, MOD, k.s.fd, EV_OUT, 9).ret == 0
    assert k.told() == {9: EV_OUT}
    assert k.s.recv(1000, WAITALL).ret == 1000
    k.s.close()


@pytest.mark.parametrize("moved", ["before the fork", "after it"])
def test_both_wait_on_one_set(live, moved):
    """A child that sleeps in the same epoll instance keeps nothing from its parent."""
    sh = live.server
    ep = sh.ok("epoll_create", 0)
    if moved == "before the fork":
        assert sh("epoll_ctl", ep, ADD, live.s.fd, EV_IN, 7).ret == 0
        assert events(sh, ep) == {}
    child = sh.fork()
    c, s = live.connect()
    assert sh("epoll_ctl", ep, ADD, s.fd, EV_IN, 8).ret == 0
    live.upgrade(c, s)
    for i in range(12):
        p = sh.bg("epoll_wait", ep, 8, 20000)
        sh.asleep()
        # the last to come is the first whom the kernel wakes
        w = child.bg("epoll_wait", ep, 8, 300 if i % 4 else 1500)
        child.asleep()
        c.sendall(100)
        r = p.result(4)
        assert r.words == ["%d:8" % EV_IN], (i, r)
        # on TCP the kernel tells the child, too, of what only its parent has
        assert w.result(4).words in ([], ["%d:8" % EV_IN])
        assert s.recv(100, WAITALL).ret == 100
    child.end()


@KIND
@TRIGGERS
def test_a_child_s_child_in_the_same_set(live, kind, trigger):
    k = Case(live, kind, trigger)
    grand = k.child.fork()
    assert events(grand, k.ep) == {7: EV_IN}
    s = live.s.as_seen_by(grand)
    assert s.recv(1000, WAITALL).ret == 1000
    assert events(grand, k.ep) == {} and k.told() == {}
    grand.end()


@pytest.mark.parametrize("kind", ["added", "parent's"])
def test_the_child_closes_the_set(live, kind):
    """It stays the parent's, with all that is registered there."""
    k = Case(live, kind, "level")
    assert k.told() == {7: EV_IN}
    assert k.child("close", k.ep).ret == 0
    live.c.sendall(10)
    harness.until(lambda: events(live.server, k.ep) == {7: EV_IN}, 2, "the parent")
    assert live.s.recv(1010, WAITALL).ret == 1010
    # what the child had read comes over TCP once more, for nobody, and goes by this
    assert live.s.recv(1, DONTWAIT).err == "EAGAIN"
    assert events(live.server, k.ep) == {}
    live.c.sendall(10)
    assert events(live.server, k.ep, 2000) == {7: EV_IN}
    k.child.end()
    assert live.server("epoll_ctl", k.ep, shell.DEL, live.s.fd, 0, 0).ret == 0
    assert live.server("epoll_ctl", k.ep, shell.DEL, live.s.fd, 0, 0).err == "ENOENT"


@pytest.mark.parametrize("kind", ["parent's"])
@pytest.mark.parametrize("reads", ["child", "parent"])
def test_fired_in_the_child_armed_by_the_parent(live, kind, reads):
    k = Case(live, kind, "oneshot")
    assert k.told() == {7: EV_IN} and k.told() == {}
    who = k.child if reads == "child" else live.server
    assert live.s.as_seen_by(who).recv(1000, WAITALL).ret == 1000
    assert k.told() == {}
    assert live.server("epoll_ctl", k.ep, MOD, live.s.fd, EV_IN | EV_ONESHOT, 8).ret == 0
    assert events(live.server, k.ep) == {}
    live.c.sendall(10)
    assert events(live.server, k.ep, 2000) == {8: EV_IN}
    assert k.told() == {} and events(live.server, k.ep) == {}
