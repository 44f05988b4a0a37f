# SPDX-License-Identifier: BSD-2-Clause
"""Signal handlers that make the socket calls POSIX allows them, on top of calls of all kinds."""
import signal
import socket
import time

import pytest

from shell import EV_IN, EV_RDHUP, WAITALL
import harness

pytestmark = [pytest.mark.timeout(60), pytest.mark.tsan]
SIG = signal.SIGUSR1
FIONREAD = 0x541b


def arrived(end, n):
    harness.until(lambda: end.sh("ioctl", end.fd, FIONREAD, 0).ints[0] >= n, 5, "%d bytes" % n)


def echoed(end, n):
    """n bytes of the end's own stream came back to it."""
    r = end.sh("recv", end.fd, n, WAITALL, end.tx_key, end.tx - n)
    return r.ret == n and r.words == ["ok"]


def test_on_another_connection(live):
    """A thread blocked in recv answers on a second connection out of its handler."""
    c, s = live.connect()
    live.upgrade(c, s)
    live.client.ok("handler", SIG, c.fd, c.fd)
    r = live.c.recv_bg(10)
    for n in (1, 100, 4000) * 5:
        live.client.asleep()
        s.sendall(n)
        arrived(c, n)
        live.client.ok("tkill", r.id, SIG)
        assert echoed(s, n)
    assert not r.done()
    live.s.sendall(10)
    assert r.result(2).ret == 10
    live.c.rx += 10
    live.turns(20, 100)


def test_on_the_connection_it_interrupts(live):
    """The handler sends on the connection that its thread reads from."""
    c, s = live.connect()
    live.client.ok("handler", SIG, c.fd, live.c.fd)
    r = live.c.recv_bg(10)
    got = live.s.rx
    for n in (1, 100, 4000) * 5:
        live.client.asleep()
        s.sendall(n)
        arrived(c, n)
        live.client.ok("tkill", r.id, SIG)
        back = live.server("recv", live.s.fd, n, WAITALL, s.tx_key, s.tx - n)
        assert back.ret == n and back.words == ["ok"]
    live.s.sendall(10)
    assert r.result(2).ret == 10
    assert got == live.s.rx


@pytest.mark.parametrize("call", ["poll", "select", "epoll_wait", "send"])
def test_on_top_of_other_calls(live, call):
    c, s = live.connect()
    live.upgrade(c, s)
    live.client.ok("handler", SIG, c.fd, c.fd)
    if call == "send":
        n = live.c.fill()
        r = live.c.send_bg(1 << 20)
    elif call == "epoll_wait":
        ep = live.client.ok("epoll_create", 0)
        live.client.ok("epoll_ctl", ep, 1, live.c.fd, EV_IN, 1)
        live.client.ok("epoll_ctl", ep, 1, c.fd, 0, 2)
        r = live.client.bg("epoll_wait", ep, 8, -1)
    else:
        r = live.client.bg(call, -1, live.c.fd, EV_IN)
    live.client.asleep()
    s.sendall(500)
    arrived(c, 500)
    live.client.ok("tkill", r.id, SIG)
    assert echoed(s, 500)
    if call == "send":
        # a part that was sent is the answer, and with none the call goes on
        got = live.s.drain_bg()
        done = r.result(10)
        live.c.tx += done.ret
        assert done.ret > 0
        live.c.shutdown(socket.SHUT_WR)
        assert live.s.drained(got) == (n + done.ret, None)
    else:
        assert r.result(2).err == "EINTR"
    c.rx = s.tx
    live.turns(20, 100, c, s)


def test_storm(live):
    """Signals at any instant of a call that is at work: nothing is lost, or torn, or stuck."""
    c, s = live.connect()
    live.upgrade(c, s)
    live.client.ok("handler", SIG, c.fd, c.fd)
    n = 4 << 20
    up = live.client.bg("sendall", live.c.fd, n, 0, live.c.tx_key, live.c.tx)
    down = live.client.bg("drain", live.c.fd, 0, live.c.rx_key, live.c.rx)
    there = live.server.bg("sendall", live.s.fd, n, 0, live.s.tx_key, live.s.tx)
    back = live.server.bg("drain", live.s.fd, 0, live.s.rx_key, live.s.rx)
    first, end = s.tx, time.monotonic() + 15
    while not up.done() and time.monotonic() < end:
        s.sendall(7)
        live.client("tkill", up.id, SIG)
    assert up.result(20).ret == n
    assert there.result(20).ret == n
    live.c.shutdown(socket.SHUT_WR)
    live.s.shutdown(socket.SHUT_WR)
    for whole in (back.result(20), down.result(20)):
        assert whole.ret == n and whole.words == ["0", "ok"]
    # what the handlers have read came back, and the rest is where it was
    s.shutdown(socket.SHUT_WR)
    assert c.poll(EV_RDHUP, 5000) & EV_RDHUP
    left = live.client("ioctl", c.fd, FIONREAD, 0).ints[0]
    if left < s.tx - first:
        echo = live.server("recv", s.fd, s.tx - first - left, WAITALL, s.tx_key, first)
        assert echo.ret == s.tx - first - left and echo.words == ["ok"]
    if left:
        rest = live.client("recv", c.fd, left, WAITALL, s.tx_key, s.tx - left)
        assert rest.ret == left and rest.words == ["ok"]


@pytest.mark.parametrize("how", ["return", "reset", "jump"])
def test_on_calls_that_are_made_all_the_time(live, how):
    """Handlers make and close sockets on top of a thread that does nothing else, and return or jump out of it."""
    r = live.client("on_top", 3000, how, timeout=20)
    assert r.ret > 1000 and r.ints[0] > 1000, r
    if how != "jump":
        assert r.ints[1] == 0, r
    live.turns(20, 100)
    c, s = live.connect()
    live.upgrade(c, s)
