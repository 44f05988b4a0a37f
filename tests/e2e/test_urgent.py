# SPDX-License-Identifier: BSD-2-Clause
"""Urgent data: only the kernel has it, so a connection that gets some goes back to TCP, whatever is unread then."""
import signal
import socket

import pytest

from shell import DONTWAIT, EV_IN, EV_PRI, NOSIGNAL, PEEK, WAITALL
import harness

pytestmark = pytest.mark.timeout(60)

OOB, SIOCATMARK, F_SETOWN = socket.MSG_OOB, 0x8905, 8


def urgent(end):
    """One byte of the stream, sent so."""
    r = end.send(1, OOB | NOSIGNAL)
    assert r.ret == 1, r


def at_mark(end):
    r = end.sh("ioctl", end.fd, SIOCATMARK, 0)
    assert r.ret == 0, r
    return r.ints[0]


def inline(end):
    assert end.sh("setsockopt", end.fd, socket.SOL_SOCKET, socket.SO_OOBINLINE, 1).ret == 0


UNREAD = pytest.mark.parametrize("before", [0, 100, 30000])


def read_to_the_mark(c, s, before):
    """So many bytes, an urgent one and fifty more are sent; a read ends at the mark, whatever it asks for."""
    if before:
        c.sendall(before)
    urgent(c)
    c.sendall(50)
    harness.until(lambda: s.poll(EV_PRI) == EV_PRI, 3, "an urgent byte")
    assert at_mark(s) == (0 if before else 1)
    if before:
        assert 0 < s.recv(before + 100, PEEK).ret <= before
        assert s.recv(before + 100, WAITALL if before > 100 else 0).ret == before
    assert at_mark(s) == 1


@UNREAD
def test_out_of_line(live, before):
    """A read ends at the mark, the byte is got apart, and what follows is as it was sent."""
    c, s = live.c, live.s
    read_to_the_mark(c, s, before)
    r = s.sh("recv", s.fd, 1, OOB | DONTWAIT, s.rx_key, s.rx)
    assert r.ret == 1 and r.words == ["ok"], r
    s.rx += 1
    assert s.recv(50, WAITALL).ret == 50
    assert at_mark(s) == 0
    assert s.sh("recv", s.fd, 1, OOB | DONTWAIT, s.rx_key, s.rx).err in ("EINVAL", "EAGAIN")
    assert s.poll(EV_PRI) == 0
    live.turns(5, 100)


@UNREAD
def test_in_line(live, before):
    """The byte is in its place, and a read ends before it."""
    c, s = live.c, live.s
    inline(s)
    read_to_the_mark(c, s, before)
    assert s.recv(51, WAITALL).ret == 51
    live.turns(5, 100)


def test_nobody_asks_for_it(live):
    """The byte that was not got is left out of the stream."""
    c, s = live.c, live.s
    c.sendall(10)
    urgent(c)
    c.sendall(10)
    harness.until(lambda: s.poll(EV_PRI) == EV_PRI, 3, "an urgent byte")
    assert s.recv(100).ret == 10
    s.rx += 1
    assert s.recv(10, WAITALL).ret == 10
    live.turns(5, 100)


def test_none_there(live):
    for e in (live.c, live.s):
        assert e.sh("recv", e.fd, 1, OOB | DONTWAIT, e.rx_key, e.rx).err == "EINVAL"
        assert at_mark(e) == 0
    live.turns(5, 100)


def test_it_wakes_who_waits_for_it(live):
    c, s = live.c, live.s
    w = s.sh.bg("poll", 8000, s.fd, EV_PRI)
    s.sh.asleep()
    c.sendall(10)
    urgent(c)
    r = w.result()
    assert r.ints == [EV_PRI] and r.us < 3e6, r
    assert s.poll(EV_IN, 1000) == EV_IN
    assert s.recv(10, WAITALL).ret == 10


def test_a_signal_for_it(live):
    """SIGURG goes to who has said that the socket is his."""
    c, s = live.c, live.s
    s.sh.ok("sigaction", signal.SIGURG, 0)
    s.sh.ok("fcntl", s.fd, F_SETOWN, s.sh.pid)
    c.sendall(10)
    urgent(c)
    harness.until(lambda: s.sh("caught", signal.SIGURG).ret == 1, 3, "SIGURG")
    assert s.recv(10, WAITALL).ret == 10


def test_one_that_sends_and_one_that_reads(live):
    """Urgent bytes among others, again and again."""
    c, s = live.c, live.s
    inline(s)
    for i in range(10):
        c.sendall(100 * i + 1)
        urgent(c)
        # up to the mark, if it is known by then, and from there on
        r = s.recv(100 * i + 2, WAITALL)
        assert r.ret in (100 * i + 1, 100 * i + 2), r
        if r.ret == 100 * i + 1:
            assert s.recv(1, WAITALL).ret == 1
    s.sendall(1000)
    assert c.recv(1000, WAITALL).ret == 1000
    live.turns(5, 100)
