# SPDX-License-Identifier: BSD-2-Clause
"""Readiness, exactly: what epoll, poll and select report, when, and when they do not."""
import socket
import time

import pytest

from shell import (ADD, DEL, DONTWAIT, EV_ERR, EV_ET, EV_EXCLUSIVE, EV_HUP, EV_IN, EV_ONESHOT, EV_OUT,
                   EV_RDHUP, MOD, NOSIGNAL, WAITALL)
import harness

pytestmark = pytest.mark.timeout(30)


class Set:
    """An epoll instance of the server's shell."""

    def __init__(self, sh):
        self.sh = sh
        self.fd = sh.ok("epoll_create", 0)

    def ctl(self, op, fd, events=0, data=0):
        return self.sh("epoll_ctl", self.fd, op, fd, events, data)

    def add(self, fd, events, data=None):
        r = self.ctl(ADD, fd, events, fd if data is None else data)
        assert r.ret == 0, r

    def wait(self, ms=0, max=64, how="epoll_wait"):
        r = self.sh(how, self.fd, max, ms)
        assert r.ret >= 0, r
        return parse(r)

    def wait_bg(self, ms=-1, max=64, how="epoll_wait"):
        return self.sh.bg(how, self.fd, max, ms)


def parse(r):
    assert r.ret == len(r.words), r
    return sorted((int(d), int(e)) for e, d in (w.split(":") for w in r.words))


def arrived(end, n):
    """Until n bytes can be read here (peeked through the program's own calls)."""
    harness.until(lambda: end.recv(n, 2 | DONTWAIT).ret == n, 2, "%d bytes" % n, 0.002)


@pytest.fixture
def ep(live):
    return Set(live.server)


@pytest.mark.parametrize("when", ["before", "after"])
def test_level_trigger(pair, when):
    """Reported as long as something is left, whether added before the upgrade or after it."""
    if when == "after":
        pair.upgrade()
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_IN, 7)
    if when == "before":
        pair.upgrade()
    assert ep.wait() == []
    pair.c.sendall(100)
    assert ep.wait(2000) == [(7, EV_IN)]
    assert ep.wait() == [(7, EV_IN)]
    arrived(pair.s, 100)
    assert pair.s.recv(60).ret == 60
    assert ep.wait() == [(7, EV_IN)]
    assert pair.s.recv(60).ret == 40
    assert ep.wait() == []
    assert ep.wait(20) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_edge_trigger(pair, when):
    """Reported on new data only, also when the old is still unread."""
    if when == "after":
        pair.upgrade()
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_IN | EV_ET, 9)
    if when == "before":
        pair.upgrade()
        ep.wait()  # edges of the busy time
    pair.c.sendall(100)
    assert ep.wait(2000) == [(9, EV_IN)]
    arrived(pair.s, 100)
    ep.wait(0)
    assert ep.wait(20) == []
    assert pair.s.recv(60).ret == 60
    assert ep.wait(20) == []
    pair.c.sendall(10)
    assert ep.wait(2000) == [(9, EV_IN)]
    arrived(pair.s, 50)
    assert pair.s.recv(100).ret == 50
    pair.c.sendall(10)
    assert ep.wait(2000) == [(9, EV_IN)]


def test_edge_on_add(live, ep):
    """ADD and MOD report what is there already, once."""
    live.c.sendall(100)
    arrived(live.s, 100)
    ep.add(live.s.fd, EV_IN | EV_ET, 1)
    assert ep.wait() == [(1, EV_IN)]
    assert ep.wait() == []
    assert ep.ctl(MOD, live.s.fd, EV_IN | EV_ET, 2).ret == 0
    assert ep.wait() == [(2, EV_IN)]
    assert ep.wait() == []


def test_oneshot(live, ep):
    """One report, then silence until MOD."""
    ep.add(live.s.fd, EV_IN | EV_ONESHOT, 3)
    live.c.sendall(100)
    assert ep.wait(2000) == [(3, EV_IN)]
    assert ep.wait(20) == []
    live.c.sendall(100)
    arrived(live.s, 200)
    assert ep.wait(20) == []
    assert ep.ctl(MOD, live.s.fd, EV_IN | EV_ONESHOT, 4).ret == 0
    assert ep.wait(2000) == [(4, EV_IN)]
    assert ep.wait(20) == []
    assert live.s.recv(200).ret == 200
    assert ep.ctl(MOD, live.s.fd, EV_IN | EV_ONESHOT, 5).ret == 0
    assert ep.wait(20) == []
    live.c.sendall(1)
    assert ep.wait(2000) == [(5, EV_IN)]


def test_oneshot_disables_everything(live, ep):
    """After the one report not even hang-up is told."""
    ep.add(live.s.fd, EV_IN | EV_ONESHOT, 3)
    live.c.sendall(1)
    assert ep.wait(2000) == [(3, EV_IN)]
    live.c.close()
    assert ep.wait(50) == []
    assert ep.ctl(MOD, live.s.fd, EV_IN | EV_RDHUP | EV_ONESHOT, 3).ret == 0
    assert ep.wait(2000) == [(3, EV_IN | EV_RDHUP)]


def test_out_is_level(live, ep):
    ep.add(live.s.fd, EV_IN | EV_OUT, 1)
    assert ep.wait() == [(1, EV_OUT)]
    assert ep.wait() == [(1, EV_OUT)]
    live.c.sendall(10)
    arrived(live.s, 10)
    assert ep.wait() == [(1, EV_IN | EV_OUT)]


def test_out_is_edge(live, ep):
    """EPOLLOUT edge: once when registered, again when a full window opens."""
    ep.add(live.s.fd, EV_OUT | EV_ET, 1)
    assert ep.wait() == [(1, EV_OUT)]
    assert ep.wait() == []
    n = live.s.fill()
    ep.wait()
    assert ep.wait(20) == []
    w = ep.wait_bg(5000)
    got = 0
    while got < n:
        got += live.c.recv(min(n - got, 1 << 20), WAITALL).ret
    assert parse(w.result(5)) == [(1, EV_OUT)]
    assert live.s.send(10).ret == 10


def test_out_when_window_opens(live, ep):
    """Level: no OUT while full, OUT when the peer has read."""
    n = live.s.fill()
    ep.add(live.s.fd, EV_OUT, 1)
    assert ep.wait(20) == []
    assert live.s.poll(EV_OUT) == 0
    w = ep.wait_bg(5000)
    got = 0
    while got < n:
        got += live.c.recv(min(n - got, 1 << 20), WAITALL).ret
    assert parse(w.result(5)) == [(1, EV_OUT)]


def test_in_and_rdhup(live, ep):
    ep.add(live.s.fd, EV_IN | EV_RDHUP, 1)
    live.c.sendall(10)
    live.c.shutdown(socket.SHUT_WR)
    harness.until(lambda: ep.wait() == [(1, EV_IN | EV_RDHUP)], 2, "IN and RDHUP")
    assert live.s.recv(10).ret == 10
    assert ep.wait() == [(1, EV_IN | EV_RDHUP)]
    assert live.s.recv(10).ret == 0
    assert ep.wait() == [(1, EV_IN | EV_RDHUP)]


def test_hup(live, ep):
    """Both directions over: HUP, asked for or not."""
    ep.add(live.s.fd, 0, 1)
    assert ep.wait() == []
    live.s.shutdown(socket.SHUT_WR)
    assert ep.wait() == []
    live.c.close()
    harness.until(lambda: ep.wait() == [(1, EV_HUP)], 2, "HUP")


def test_reset(live, ep):
    ep.add(live.s.fd, EV_IN | EV_RDHUP, 1)
    live.client.ok("linger", live.c.fd, 1, 0)
    live.c.close()
    harness.until(lambda: ep.wait() == [(1, EV_IN | EV_RDHUP | EV_ERR | EV_HUP)], 2, "ERR and HUP")
    assert live.s.recv(1).err == "ECONNRESET"


def test_sleeper_is_woken(live, ep):
    ep.add(live.s.fd, EV_IN, 1)
    for how in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
        w = ep.wait_bg(-1, how=how)
        live.server.asleep()
        live.c.sendall(10)
        assert parse(w.result(2)) == [(1, EV_IN)]
        assert live.s.recv(10).ret == 10


def test_sleeper_survives_upgrade(pair):
    """A thread that went to sleep on TCP is woken by data on the fabric."""
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_IN | EV_RDHUP, 1)
    other_c, other_s = pair.connect()
    ep.add(other_s.fd, EV_IN, 2)
    w = ep.wait_bg(-1)
    pair.server.asleep()
    # The server's I/O on pair.s goes on in another thread, though one sleeps on it.
    for _ in range(40):
        pair.turns(5, 2000)
        if w.done():
            w.result()
            w = ep.wait_bg(-1)
    pair.upgrade()
    if w.done():
        w.result()
        w = ep.wait_bg(-1)
    pair.server.asleep()
    pair.c.sendall(10)
    assert parse(w.result(2)) == [(1, EV_IN)]
    assert pair.s.recv(10).ret == 10
    w = ep.wait_bg(-1)
    pair.server.asleep()
    other_c.sendall(10)
    assert parse(w.result(2)) == [(2, EV_IN)]


@pytest.mark.parametrize("how", ["poll", "ppoll"])
def test_poll_sleeper_is_woken(live, how):
    w = live.server.bg(how, -1, live.s.fd, EV_IN)
    live.server.asleep()
    live.c.sendall(10)
    r = w.result(2)
    assert (r.ret, r.ints) == (1, [EV_IN])


@pytest.mark.parametrize("how", ["select", "pselect"])
def test_select_sleeper_is_woken(live, how):
    w = live.server.bg(how, -1, live.s.fd, 1)
    live.server.asleep()
    live.c.sendall(10)
    r = w.result(2)
    assert (r.ret, r.ints[0]) == (1, 1)


@pytest.mark.parametrize("what,unit,args", [("poll", 1, (EV_IN,)), ("ppoll", 1, (EV_IN,)),
                                            ("select", 1000, (1,)), ("pselect", 1000, (1,))])
def test_timeouts(live, what, unit, args):
    r = live.server(what, 50 * unit, live.s.fd, *args)
    assert r.ret == 0 and 50000 <= r.us < 120000, r
    r = live.server(what, 0, live.s.fd, *args)
    assert r.ret == 0 and r.us < 20000, r


@pytest.mark.parametrize("how", ["epoll_wait", "epoll_pwait", "epoll_pwait2"])
def test_epoll_timeouts(live, ep, how):
    ep.add(live.s.fd, EV_IN)
    r = live.server(how, ep.fd, 8, 50)
    assert r.ret == 0 and 50000 <= r.us < 120000, r
    r = live.server(how, ep.fd, 8, 0)
    assert r.ret == 0 and r.us < 20000, r


def test_select_updates_timeout(live):
    """Linux writes back the time left."""
    w = live.server.bg("select", 1000000, live.s.fd, 1)
    live.server.asleep()
    time.sleep(0.05)
    live.c.sendall(1)
    r = w.result(2)
    assert r.ret == 1 and 500000 < r.ints[1] < 960000, r


def test_select_sees_eof(live):
    live.c.close()
    r = live.server("select", 2000000, live.s.fd, 1 | 4)
    assert r.ret >= 1 and r.ints[0] & 1
    harness.until(lambda: live.server("select", 0, live.s.fd, 5).ints[0] == 5, 2, "read and write")
    assert live.s.recv(1).ret == 0


def test_poll_reports_nothing_for_nothing(live):
    """Events 0: only errors and hang-up; a negative fd is skipped; a closed one is NVAL."""
    live.c.sendall(10)
    arrived(live.s, 10)
    r = live.server("poll", 0, live.s.fd, 0, -1, EV_IN, 999, EV_IN)
    assert (r.ret, r.ints) == (1, [0, 0, 0x20])


def test_del_stops_reports(live, ep):
    ep.add(live.s.fd, EV_IN)
    live.c.sendall(10)
    arrived(live.s, 10)
    assert ep.ctl(DEL, live.s.fd).ret == 0
    assert ep.wait(20) == []
    assert ep.ctl(DEL, live.s.fd).err == "ENOENT"
    assert ep.ctl(MOD, live.s.fd, EV_IN).err == "ENOENT"
    ep.add(live.s.fd, EV_IN, 5)
    assert ep.ctl(ADD, live.s.fd, EV_IN).err == "EEXIST"
    assert ep.wait() == [(5, EV_IN)]


def test_del_during_wait(live, ep):
    """A sleeper whose only member is deleted sleeps on, and is woken by the next one added."""
    ep.add(live.s.fd, EV_IN, 1)
    w = ep.wait_bg(-1)
    live.server.asleep()
    assert ep.ctl(DEL, live.s.fd).ret == 0
    live.c.sendall(10)
    assert not w.done(0.05)
    ep.add(live.s.fd, EV_IN, 2)
    assert parse(w.result(2)) == [(2, EV_IN)]


def test_mod_during_wait(live, ep):
    """MOD to something that is ready wakes the sleeper."""
    ep.add(live.s.fd, EV_IN, 1)
    w = ep.wait_bg(-1)
    live.server.asleep()
    assert ep.ctl(MOD, live.s.fd, EV_OUT, 2).ret == 0
    assert parse(w.result(2)) == [(2, EV_OUT)]
    live.c.sendall(10)
    arrived(live.s, 10)
    assert ep.wait() == [(2, EV_OUT)]
    assert ep.ctl(MOD, live.s.fd, 0, 2).ret == 0
    assert ep.wait() == []


def test_errors(live, ep):
    sh = live.server
    assert sh("epoll_wait", ep.fd, 0, 0).err == "EINVAL"
    assert sh("epoll_wait", ep.fd, -1, 0).err == "EINVAL"
    assert sh("epoll_wait", live.s.fd, 1, 0).err == "EINVAL"
    assert sh("epoll_wait", 999, 1, 0).err == "EBADF"
    assert ep.ctl(ADD, 999, EV_IN).err == "EBADF"
    assert ep.ctl(99, live.s.fd, EV_IN).err == "EINVAL"
    assert ep.ctl(ADD, ep.fd, EV_IN).err == "EINVAL"
    assert sh("epoll_ctl", live.s.fd, ADD, ep.fd, 1, 1).err == "EINVAL"


def test_closed_member_disappears(live, ep):
    """Closing the last descriptor takes the member out; its number may be used again at once."""
    ep.add(live.s.fd, EV_IN, 1)
    live.s.close()
    assert ep.wait() == []
    c, s = live.connect()
    assert s.fd == live.s.fd
    ep.add(s.fd, EV_IN, 2)
    live.upgrade(c, s)
    c.sendall(10)
    assert ep.wait(2000) == [(2, EV_IN)]


def test_closed_dup_still_reports(live, ep):
    """A member belongs to the open file: closing its number while a dup lives changes nothing."""
    d = live.server.ok("dup", live.s.fd)
    ep.add(live.s.fd, EV_IN, 1)
    live.s.close()
    live.c.sendall(10)
    assert ep.wait(2000) == [(1, EV_IN)]
    other = live.s.as_seen_by(live.server, d)
    assert other.recv(10).ret == 10
    assert ep.wait() == []


def test_both_dups_are_members(live, ep):
    d = live.server.ok("dup", live.s.fd)
    ep.add(live.s.fd, EV_IN, 1)
    ep.add(d, EV_IN, 2)
    live.c.sendall(10)
    assert harness.until(lambda: len(ep.wait()) == 2, 2, "both")
    assert ep.wait() == [(1, EV_IN), (2, EV_IN)]


def test_one_flow_in_two_sets(live, ep):
    other = Set(live.server)
    ep.add(live.s.fd, EV_IN, 1)
    other.add(live.s.fd, EV_IN | EV_ET, 2)
    w1, w2 = ep.wait_bg(), other.wait_bg()
    live.server.asleep()
    live.c.sendall(10)
    assert parse(w1.result(2)) == [(1, EV_IN)]
    assert parse(w2.result(2)) == [(2, EV_IN)]
    arrived(live.s, 10)
    assert live.s.recv(10).ret == 10
    assert ep.wait() == [] and other.wait() == []


def test_nested(live, ep):
    """An epoll instance is readable when a member of it is ready."""
    outer = Set(live.server)
    ep.add(live.s.fd, EV_IN, 1)
    outer.add(ep.fd, EV_IN, 100)
    assert outer.wait() == []
    w = outer.wait_bg(-1)
    live.server.asleep()
    live.c.sendall(10)
    assert parse(w.result(2)) == [(100, EV_IN)]
    assert ep.wait() == [(1, EV_IN)]
    assert live.server("poll", 0, ep.fd, EV_IN).ints == [EV_IN]
    arrived(live.s, 10)
    assert live.s.recv(10).ret == 10
    assert ep.wait() == []
    assert outer.wait() == []
    assert live.server("poll", 0, ep.fd, EV_IN).ints == [0]


def test_mixed_members(live, ep):
    """A fabric flow, a plain socket pair and a listener in one set: each is reported, none starves."""
    a, b = live.server("socketpair").ints
    ep.add(live.s.fd, EV_IN, 1)
    ep.add(a, EV_IN, 2)
    ep.add(live.lfd, EV_IN, 3)
    live.c.sendall(10)
    live.server.ok("write", b, 4, 0, 0, 0)
    cfd = live.client.ok("socket", 2, 1, 0)
    live.client.ok("connect", cfd, live.host, live.port)
    harness.until(lambda: ep.wait() == [(1, EV_IN), (2, EV_IN), (3, EV_IN)], 2, "all three")
    seen = set()
    for _ in range(12):  # one event a call: all come round
        seen |= {d for d, _ in ep.wait(1000, max=1)}
    assert seen == {1, 2, 3}


def test_many_ready(live, ep):
    """More ready flows than slots: nobody is forgotten."""
    ends = [live.connect() for _ in range(30)]
    for i, (c, s) in enumerate(ends):
        live.turns(20, 1000, c, s)
        ep.add(s.fd, EV_IN, i)
    for c, _ in ends:
        c.sendall(10)
    harness.until(lambda: len(ep.wait()) == 30, 3, "30 ready")
    seen = set()
    for _ in range(40):
        seen |= {d for d, _ in ep.wait(0, max=4)}
    assert seen == set(range(30))
    for _, s in ends:
        assert s.recv(10).ret == 10
    assert ep.wait() == []


def test_exclusive(live, ep):
    """EPOLLEXCLUSIVE works as it does on TCP (and MOD of it does not)."""
    ep.add(live.s.fd, EV_IN | EV_EXCLUSIVE, 1)
    assert ep.ctl(MOD, live.s.fd, EV_IN, 1).err == "EINVAL"
    live.c.sendall(10)
    assert ep.wait(2000) == [(1, EV_IN)]
    arrived(live.s, 10)
    assert live.s.recv(10).ret == 10
    assert ep.wait(10) == []


def test_exclusive_before_upgrade(pair):
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_IN | EV_EXCLUSIVE, 1)
    pair.upgrade()
    pair.c.sendall(10)
    assert ep.wait(2000) == [(1, EV_IN)]


def test_exclusive_in_two_sets(pair):
    """At least one of those that sleep is woken, and the bytes are there for it."""
    one, two = Set(pair.server), Set(pair.server)
    for s in (one, two):
        s.add(pair.s.fd, EV_IN | EV_EXCLUSIVE, 1)
    for _ in range(6):
        pair.turns(20, 1000)
    for _ in range(4):
        sleepers = [s.wait_bg(2000) for s in (one, two)]
        pair.server.asleep()
        pair.c.sendall(10)
        harness.until(lambda w=sleepers: any(r.done(0.001) for r in w), 2, "one of them awake")
        arrived(pair.s, 10)
        assert pair.s.recv(10).ret == 10
        for i, r in enumerate(sleepers):  # the other one by bytes that come later
            if not r.done(0.02):
                pair.c.sendall(1)
                assert parse(r.result(3)) == [(1, EV_IN)], i
                assert pair.s.recv(1, WAITALL).ret == 1


def test_two_sets(pair):
    """A connection in two sets, before it moves and after: both are told, asleep or not, and it stays moved."""
    one, two, three = Set(pair.server), Set(pair.server), Set(pair.server)
    one.add(pair.s.fd, EV_IN, 1)
    two.add(pair.s.fd, EV_IN | EV_ET, 2)
    pair.upgrade()
    three.add(pair.s.fd, EV_IN | EV_OUT | EV_ONESHOT, 3)
    assert three.wait() == [(3, EV_OUT)]
    assert one.wait() == two.wait() == []
    for i in range(12):
        sleepers = [s.wait_bg(3000) for s in (one, two)[i % 3 == 1:2 if i % 3 else 0]]
        pair.server.asleep() if sleepers else None
        pair.c.sendall(10)
        for r in sleepers:
            assert len(parse(r.result(5))) == 1
        arrived(pair.s, 10)
        if i % 3 != 2:
            assert two.wait(0 if i % 3 == 1 else 1000) == ([] if i % 3 == 1 else [(2, EV_IN)])
        assert one.wait(1000) == [(1, EV_IN)]
        assert pair.s.recv(10).ret == 10
        assert one.wait(2) == two.wait(2) == []
    assert three.wait() == []
    assert three.ctl(MOD, pair.s.fd, EV_IN | EV_ONESHOT, 4).ret == 0
    pair.c.sendall(10)
    assert three.wait(1000) == [(4, EV_IN)]
    assert pair.is_up() or not pair.env.lifts
    # one of them lets it go, one is closed, the last one is told as before
    assert one.ctl(DEL, pair.s.fd).ret == 0
    pair.server.ok("close", two.fd)
    assert three.ctl(MOD, pair.s.fd, EV_IN | EV_ET, 5).ret == 0
    assert three.wait(1000) == [(5, EV_IN)]
    pair.c.shutdown(socket.SHUT_WR)
    harness.until(lambda: three.wait(100) == [(5, EV_IN)], 3, "the end")


def test_all_64_bits_of_data(live, ep):
    for v in (0, 0xffffffff, 0xfffffffffffffff0 >> 1, 0xdeadbeefcafe >> 0):
        assert ep.ctl(ADD, live.s.fd, EV_OUT, v).ret == 0
        assert ep.wait() == [(v, EV_OUT)]
        assert ep.ctl(DEL, live.s.fd).ret == 0


def test_connect_readiness(pair):
    """A socket in the set before it is connected: HUP first, OUT once connected, IN with data."""
    sh = pair.client
    ep = Set(sh)
    fd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0)
    ep.add(fd, EV_IN | EV_OUT | EV_ET, 1)
    assert ep.wait() == [(1, EV_OUT | EV_HUP)]
    r = sh("connect", fd, pair.host, pair.port)
    assert r.err == "EINPROGRESS" or r.ret == 0
    assert ep.wait(2000) == [(1, EV_OUT)]
    assert sh("getsockopt", fd, socket.SOL_SOCKET, socket.SO_ERROR).ints[0] == 0


def test_add_before_upgrade_mod_after(pair):
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_OUT, 1)
    pair.upgrade()
    assert ep.ctl(MOD, pair.s.fd, EV_IN, 2).ret == 0
    assert ep.wait() == []
    pair.c.sendall(1)
    assert ep.wait(2000) == [(2, EV_IN)]
    assert ep.ctl(DEL, pair.s.fd).ret == 0
    assert ep.wait() == []
    assert pair.s.recv(1, NOSIGNAL).ret == 1


def test_two_threads_one_edge(live, ep):
    """Two threads asleep in one set: one edge wakes at least one, and the other takes the next."""
    ep.add(live.s.fd, EV_IN | EV_ET, 1)
    w = [ep.wait_bg(3000), ep.wait_bg(3000)]
    live.server.asleep()
    live.c.sendall(10)
    harness.until(lambda: w[0].done() or w[1].done(), 2, "one thread awake")
    arrived(live.s, 10)
    assert live.s.recv(10).ret == 10
    rest = [x for x in w if not x.done(0.05)]
    assert len(rest) == 1, "one edge, one thread"
    live.c.sendall(10)
    assert parse(rest[0].result(2)) == [(1, EV_IN)]


# ---- a file that parent and child share --------------------------------------------------------------

@pytest.mark.parametrize("when", ["young", "moved"])
@pytest.mark.parametrize("what", ["del", "mod", "oneshot"])
def test_a_child_changes_its_parent_s_registration(pair, what, when):
    """What a forked child does to it holds for both, whatever carried the connection; the child ends at once."""
    ep = Set(pair.server)
    ep.add(pair.s.fd, EV_IN, 5)
    if when == "moved":
        pair.upgrade()
    child = pair.server.fork()
    op, events, data = {"del": (DEL, 0, 0), "mod": (MOD, EV_OUT, 77), "oneshot": (MOD, EV_IN | EV_ONESHOT, 88)}[what]
    assert child("epoll_ctl", ep.fd, op, pair.s.fd, events, data).ret == 0
    child.end()
    assert pair.server("wait", child.pid).ret == child.pid
    pair.turns(40, 100)
    pair.c.sendall(3)
    arrived(pair.s, 3)
    if what == "del":
        assert ep.wait() == [] and ep.ctl(DEL, pair.s.fd).err == "ENOENT"
        ep.add(pair.s.fd, EV_IN, 6)
        assert ep.wait(2000) == [(6, EV_IN)]
    elif what == "mod":
        assert ep.wait(2000) == [(77, EV_OUT)] == ep.wait()
        assert ep.ctl(ADD, pair.s.fd, EV_IN, 1).err == "EEXIST"
        assert ep.ctl(MOD, pair.s.fd, EV_IN, 6).ret == 0
        assert ep.wait(2000) == [(6, EV_IN)]
    else:
        assert ep.wait(0) == [(88, EV_IN)] and ep.wait() == []
        assert ep.ctl(ADD, pair.s.fd, EV_IN, 1).err == "EEXIST"
        assert ep.ctl(MOD, pair.s.fd, EV_IN, 6).ret == 0
        assert ep.wait(2000) == [(6, EV_IN)]
    assert pair.s.recv(3).ret == 3
    pair.turns(5, 100)


@pytest.mark.parametrize("what", ["mod", "del"])
@pytest.mark.parametrize("flags", [0, EV_ET])
def test_the_parent_changes_what_a_child_registered(live, what, flags):
    """A connection of both, in a set of both, put there by the child after the fork."""
    sh, s, ep = live.server, live.s, Set(live.server)
    child = sh.fork()
    assert child("epoll_ctl", ep.fd, ADD, s.fd, EV_IN | flags, 5).ret == 0
    live.c.sendall(3)
    arrived(s, 3)
    assert ep.wait(2000) == [(5, EV_IN)]
    assert ep.ctl(ADD, s.fd, EV_IN, 1).err == "EEXIST"
    if what == "mod":
        assert ep.ctl(MOD, s.fd, EV_OUT, 6).ret == 0
        assert ep.wait(2000) == [(6, EV_OUT)] == ep.wait()
    else:
        assert ep.ctl(DEL, s.fd).ret == 0
        assert ep.wait() == [] and ep.ctl(DEL, s.fd).err == "ENOENT"
    child.end()
    assert s.recv(3).ret == 3
    live.turns(5, 100)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_child_registers_a_connection_of_its_own(live, when):
    """In its parent's set: both are told of it, as by the kernel, which then carries it."""
    ep = Set(live.server)
    child = live.server.fork()
    c, s = live.connect(server=child)
    if when == "after":
        live.upgrade(c, s)
    assert child("epoll_ctl", ep.fd, ADD, s.fd, EV_IN, 5).ret == 0
    if when == "before":
        live.turns(30, 100, c, s)
    for n in (3, 30, 3000):
        c.sendall(n)
        assert parse(child("epoll_wait", ep.fd, 8, 2000)) == [(5, EV_IN)]
        assert ep.wait(2000) == [(5, EV_IN)]
        assert s.recv(n, WAITALL).ret == n
        assert parse(child("epoll_wait", ep.fd, 8, 0)) == []
    child.end()
    assert ep.wait() == []


def test_a_child_changes_one_of_two_registrations(live):
    """The other file, which the child leaves alone, goes on as it was."""
    mine, shared = Set(live.server), Set(live.server)
    for e in (mine, shared):
        e.add(live.s.fd, EV_IN, e.fd)
    child = live.server.fork()
    assert child("epoll_ctl", shared.fd, DEL, live.s.fd, 0, 0).ret == 0
    child.end()
    assert live.server("wait", child.pid).ret == child.pid
    live.c.sendall(3)
    assert mine.wait(2000) == [(mine.fd, EV_IN)]
    assert shared.wait(50) == []
    assert live.s.recv(3).ret == 3
    live.turns(5, 100)
