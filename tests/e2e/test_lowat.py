# SPDX-License-Identifier: BSD-2-Clause
"""SO_RCVLOWAT of bytes that lie in two places, and options that a socket has from its listener."""
import socket
import time

import pytest

from shell import ADD, DONTWAIT, EV_ET, EV_IN, WAITALL
import harness
import shell

pytestmark = pytest.mark.timeout(60)

SO_RXQ_OVFL = 40


def arrived(end, n):
    harness.until(lambda: end.recv(n, shell.PEEK | DONTWAIT).ret == n, 2, "%d bytes" % n, 0.002)


def parted(live, low, unread):
    """So many bytes lie unread where they were, and what is sent from now on comes over TCP."""
    s = live.s
    assert s.sh("setsockopt", s.fd, socket.SOL_SOCKET, socket.SO_RCVLOWAT, low).ret == 0
    live.c.sendall(unread)
    arrived(s, unread)
    assert s.sh("setsockopt", s.fd, socket.SOL_SOCKET, SO_RXQ_OVFL, 1).ret == 0
    return s


class Sleeper:
    """A wait for input in a thread, in one of several ways."""

    def __init__(self, s, how):
        self.s, self.how = s, how
        if how.startswith("epoll"):
            self.ep = s.sh.ok("epoll_create", 0)
            s.sh.ok("epoll_ctl", self.ep, ADD, s.fd, EV_IN | (EV_ET if how == "epoll-et" else 0), 7)

    def begin(self):
        if self.how.startswith("epoll"):
            return self.s.sh.bg("epoll_wait", self.ep, 4, 8000)
        if self.how == "select":
            return self.s.sh.bg("select", 8000000, self.s.fd, 1)
        return self.s.sh.bg("poll", 8000, self.s.fd, EV_IN)


HOW = pytest.mark.parametrize("how", ["poll", "select", "epoll", "epoll-et"])


@HOW
def test_the_byte_that_is_missing_wakes(live, how):
    s = parted(live, 10, 9)
    w = Sleeper(s, how).begin()
    s.sh.asleep()
    live.c.sendall(1)
    r = w.result()
    assert r.ret == 1 and r.us < 0.8e6, r
    assert s.recv(20).ret == 10


@HOW
def test_fewer_wake_nobody_and_cost_nothing(live, how):
    """... though there are bytes in both places."""
    s = parted(live, 10, 5)
    w = Sleeper(s, how).begin()
    s.sh.asleep()
    live.c.sendall(3)
    before = harness.cpu_s(s.sh.pid)
    time.sleep(0.5)
    assert harness.cpu_s(s.sh.pid) - before < 0.1
    assert not w.done()
    live.c.sendall(2)
    r = w.result()
    assert r.ret == 1 and r.us < 1.5e6, r
    assert s.recv(20).ret == 10


@HOW
def test_what_is_read_counts_no_more(live, how):
    s = parted(live, 10, 9)
    assert s.recv(6, DONTWAIT).ret == 6
    w = Sleeper(s, how).begin()
    s.sh.asleep()
    live.c.sendall(6)
    time.sleep(0.2)
    assert not w.done()
    live.c.sendall(1)
    assert w.result().ret == 1
    assert s.recv(20).ret == 10


def test_an_edge_for_each_that_comes(live):
    """Enough is there already, in the one place; what comes in the other is news."""
    s = parted(live, 10, 10)
    e = Sleeper(s, "epoll-et")
    assert s.sh("epoll_wait", e.ep, 4, 0).ret == 1
    for _ in range(3):
        assert s.sh("epoll_wait", e.ep, 4, 0).ret == 0
        w = e.begin()
        s.sh.asleep()
        live.c.sendall(1)
        assert w.result().ret == 1


def test_the_option_is_the_program_s(live):
    s = parted(live, 10, 9)
    assert s.poll(EV_IN) == 0
    assert s.sockopt(socket.SO_RCVLOWAT) == 10
    assert s.sh("setsockopt", s.fd, socket.SOL_SOCKET, socket.SO_RCVLOWAT, 20).ret == 0
    assert s.sockopt(socket.SO_RCVLOWAT) == 20
    live.c.sendall(5)
    time.sleep(0.1)
    assert s.poll(EV_IN) == 0
    assert s.recv(100, DONTWAIT).ret == 14
    assert s.sockopt(socket.SO_RCVLOWAT) == 20
    # nothing is left but the socket: the kernel's threshold is the whole again
    live.c.sendall(19)
    time.sleep(0.1)
    assert s.poll(EV_IN) == 0
    live.c.sendall(1)
    assert s.poll(EV_IN, 2000) == EV_IN


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_child_knows_it(live, side):
    """The threshold is of the connection, whichever process reads."""
    s = parted(live, 10, 9)
    if side == "after":
        assert s.poll(EV_IN) == 0
    child = s.sh.fork()
    mine = s.as_seen_by(child)
    w = child.bg("poll", 8000, mine.fd, EV_IN)
    time.sleep(0.2)
    assert not w.done()
    live.c.sendall(1)
    assert w.result().ret == 1
    assert mine.recv(20).ret == 10
    assert mine.sockopt(socket.SO_RCVLOWAT) == 10


def test_what_a_listener_hands_down(env):
    """An accepted socket has its listener's time-outs and SO_RCVLOWAT, moved or not."""
    p = shell.Pair(env)
    p.server.ok("timeo", p.lfd, socket.SO_RCVTIMEO, 300)
    p.server.ok("timeo", p.lfd, socket.SO_SNDTIMEO, 400)
    p.server.ok("setsockopt", p.lfd, socket.SOL_SOCKET, socket.SO_RCVLOWAT, 4)
    c, s = p.connect()
    p.upgrade(c, s)
    r = s.recv(1)
    assert r.err == "EAGAIN" and 0.2e6 < r.us < 2e6, r
    c.sendall(3)
    time.sleep(0.1)
    assert s.poll(EV_IN) == 0
    c.sendall(1)
    assert s.poll(EV_IN, 2000) == EV_IN
    assert s.recv(10).ret == 4
    s.fill()
    r = s.send(1 << 20)
    while r.ret > 0:        # the peer's window has grown meanwhile: it took what it could, and waited
        assert 0.2e6 < r.us < 3e6, r
        r = s.send(1 << 20)
    assert r.err == "EAGAIN" and 0.2e6 < r.us < 3e6, r
    assert s.sockopt(socket.SO_RCVLOWAT) == 4


def test_what_the_socket_was_told_goes_before_that(env):
    p = shell.Pair(env)
    p.server.ok("timeo", p.lfd, socket.SO_RCVTIMEO, 300)
    c, s = p.connect()
    p.server.ok("timeo", s.fd, socket.SO_RCVTIMEO, 0)
    p.upgrade(c, s)
    w = s.recv_bg(1, WAITALL)
    time.sleep(0.7)
    assert not w.done()
    c.sendall(1)
    assert w.result().ret == 1


def test_a_look_waits_for_it_too(live):
    """MSG_PEEK without MSG_WAITALL: as a read would, until there is enough, or the end."""
    s = live.s
    assert s.sh("setsockopt", s.fd, socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100).ret == 0
    w = s.recv_bg(100, shell.PEEK)
    live.c.sendall(1)
    time.sleep(0.3)
    assert not w.done()
    live.c.sendall(99)
    assert w.result().ret == 100
    assert s.recv(100, WAITALL).ret == 100
    w = s.recv_bg(100, shell.PEEK)
    live.c.sendall(2)
    assert live.c.shutdown(socket.SHUT_WR).ret == 0
    assert w.result().ret == 2
