# SPDX-License-Identifier: BSD-2-Clause
"""A full window and forked children: who waits for room hears of it, whoever waits and whoever makes it."""
import pytest

from shell import ADD, DONTWAIT, EV_ET, EV_OUT, NOSIGNAL, WAITALL

pytestmark = pytest.mark.timeout(60)

WAITER = pytest.mark.parametrize("waiter", ["parent", "child"])
DRAINER = pytest.mark.parametrize("drainer", ["peer", "peer's child"])


class Full:
    """The server's window is full; its process and the client's each have a child, forked then or before."""

    def __init__(self, live, waiter, drainer, forked):
        self.live = live
        sh, peer = live.server, live.client
        child, other = (sh.fork(), peer.fork()) if forked == "before" else (None, None)
        self.n = live.s.fill()
        if forked == "after":
            child, other = sh.fork(), peer.fork()
        self.sh = sh if waiter == "parent" else child
        self.s = live.s.as_seen_by(self.sh)
        self.c = live.c.as_seen_by(peer if drainer == "peer" else other)

    def make_room(self):
        """The client reads all there is, and waits for more."""
        assert self.c.recv(self.n, WAITALL, timeout=20).ret == self.n
        self.more = self.c.recv_bg(1000, WAITALL)

    def use_it(self):
        r = self.s.send(1000, NOSIGNAL | DONTWAIT)
        assert r.ret == 1000, r
        self.used()

    def used(self):
        r = self.more.result()
        assert r.ret == 1000 and r.words[0] == "ok", r


@WAITER
@DRAINER
@pytest.mark.parametrize("forked", ["before", "after"])
@pytest.mark.parametrize("how", ["poll", "select", "level", "edge", "send"])
def test_room(live, waiter, drainer, forked, how):
    k = Full(live, waiter, drainer, forked)
    s = k.s
    if how in ("level", "edge"):
        ep = k.sh.ok("epoll_create", 0)
        assert k.sh("epoll_ctl", ep, ADD, s.fd, EV_OUT | (EV_ET if how == "edge" else 0), 7).ret == 0
        assert k.sh("epoll_wait", ep, 8, 0).ret == 0
        w = k.sh.bg("epoll_wait", ep, 8, 15000)
    elif how == "poll":
        assert s.poll(EV_OUT) == 0
        w = k.sh.bg("poll", 15000, s.fd, EV_OUT)
    elif how == "select":
        assert k.sh("select", 0, s.fd, 4).ret == 0
        w = k.sh.bg("select", 15000000, s.fd, 4)
    else:
        w = s.send_bg(1000)
    k.sh.asleep()
    # a child has the socket's buffer beside the window, from which its bytes go there
    assert how == "send" or not w.done(0.2)
    k.make_room()
    r = w.result(5)
    if how == "send":
        assert r.ret == 1000, r
        k.used()
    else:
        assert r.ret == 1, r
        k.use_it()


@DRAINER
@pytest.mark.parametrize("order", ["parent first", "child first"])
def test_both_wait_for_room(live, drainer, order):
    k = Full(live, "child", drainer, "before")
    shells = [live.server, k.sh] if order == "parent first" else [k.sh, live.server]
    waits = []
    for sh in shells:
        waits.append(sh.bg("poll", 15000, live.s.fd, EV_OUT))
        sh.asleep()
    assert not any(w.done(0.1) for w in waits)
    k.make_room()
    for w in waits:
        assert w.result(5).ints == [EV_OUT]
    k.use_it()


@WAITER
def test_the_other_process_ends_meanwhile(live, waiter):
    """Who waits is the last one then."""
    k = Full(live, waiter, "peer", "after")
    w = k.sh.bg("poll", 15000, live.s.fd, EV_OUT)
    k.sh.asleep()
    if waiter == "child":
        live.server.order("0 exit 0\n")
        live.server.proc.wait(5)
    k.make_room()
    assert w.result(5).ints == [EV_OUT]
    k.use_it()
