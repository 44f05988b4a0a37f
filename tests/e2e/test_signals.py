# SPDX-License-Identifier: BSD-2-Clause
"""Signals, and calls with a time limit, in the middle of blocking calls."""
import signal
import socket

import pytest

import shell
from shell import EV_IN, EV_OUT, WAITALL

pytestmark = [pytest.mark.timeout(30), pytest.mark.tsan]
ALRM, USR1 = int(signal.SIGALRM), int(signal.SIGUSR1)


def test_alarm_interrupts_recv(live):
    """alarm and recv: EINTR, however soon the alarm comes."""
    live.client.ok("sigaction", ALRM, "catch")
    for us in (100, 1000, 20000):
        live.client.ok("timer", us, 20000)
        r = live.c.recv(10, timeout=5)
        assert r.err == "EINTR", r
        live.client.ok("timer", 0, 0)
    live.s.sendall(10)
    assert live.c.recv(10).ret == 10


def test_alarm_interrupts_send(live):
    live.client.ok("sigaction", ALRM, "catch")
    live.c.fill()
    live.client.ok("timer", 20000, 20000)
    for _ in range(5):  # the kernel may find room for a part yet, and then returns that
        r = live.c.send(100000, timeout=5)
        if r.ret < 0:
            break
    live.client.ok("timer", 0, 0)
    assert r.err == "EINTR", r


def test_partial_send_is_counted(live):
    """Interrupted after a part has gone out: the part is returned, not EINTR."""
    live.client.ok("sigaction", ALRM, "catch")
    live.client.ok("timer", 50000, 50000)
    r = live.c.send(64 << 20, timeout=5)
    live.client.ok("timer", 0, 0)
    assert 0 < r.ret < 64 << 20, r
    d = live.s.drain_bg()
    live.c.shutdown(socket.SHUT_WR)
    assert live.s.drained(d) == (r.ret, None)


def test_partial_waitall(live):
    """MSG_WAITALL interrupted: what has come is returned."""
    live.client.ok("sigaction", ALRM, "catch")
    live.s.sendall(300)
    assert live.c.poll(EV_IN, 2000) == EV_IN
    live.client.ok("timer", 30000, 30000)
    assert live.c.recv(1000, WAITALL, timeout=5).ret == 300
    live.client.ok("timer", 0, 0)


def test_restart(live):
    """SA_RESTART: the call goes on; a handler ran all the same."""
    live.client.ok("sigaction", USR1, "restart")
    r = live.c.recv_bg(10)
    live.client.asleep()
    for _ in range(3):
        live.client.ok("tkill", r.id, USR1)
    live.client.asleep()
    assert live.client("caught", USR1).ret >= 1
    assert not r.done()
    live.s.sendall(10)
    assert r.result(2).ret == 10


def test_restart_does_not_hold_for_poll(live):
    """poll and epoll_wait give EINTR in spite of SA_RESTART."""
    live.client.ok("sigaction", USR1, "restart")
    ep = live.client.ok("epoll_create", 0)
    live.client.ok("epoll_ctl", ep, 1, live.c.fd, EV_IN, 1)
    for call in (("poll", -1, live.c.fd, EV_IN), ("ppoll", -1, live.c.fd, EV_IN),
                 ("select", -1, live.c.fd, 1), ("epoll_wait", ep, 8, -1), ("epoll_pwait", ep, 8, -1),
                 ("epoll_pwait2", ep, 8, -1)):
        p = live.client.bg(*call)
        live.client.asleep()
        live.client.ok("tkill", p.id, USR1)
        assert p.result(2).err == "EINTR", call


@pytest.mark.parametrize("how", ["ppoll", "pselect", "epoll_pwait", "epoll_pwait2"])
def test_the_mask_of_a_wait(live, how):
    """A signal that only the call lets through ends it at once, is handled in it, and waits on if there is an event."""
    def masked(events, ms, lets):
        r = live.client("masked", how, live.c.fd, events, ms, lets)
        return (r.err or r.ret, *r.words), r.us
    for _ in range(3):
        r, us = masked(EV_IN, 5000, 1)
        assert r == ("EINTR", "1", "0") and us < 2e6
        r, us = masked(EV_IN, 50, 0)
        assert r == (0, "0", "1") and us > 40e3
        assert masked(EV_OUT, 5000, 1)[0] == (1, "0", "1")
        live.s.sendall(100)
        live.client("poll", 3000, live.c.fd, EV_IN)
        assert masked(EV_IN, 5000, 1)[0] == masked(EV_IN, 0, 0)[0] == (1, "0", "1")
        assert live.c.recv(100, WAITALL).ret == 100
    live.turns(10, 500)


def test_restart_does_not_hold_with_timeout(live):
    """A socket with SO_RCVTIMEO is not restarted."""
    live.client.ok("sigaction", USR1, "restart")
    live.client.ok("timeo", live.c.fd, socket.SO_RCVTIMEO, 5000)
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.client.ok("tkill", r.id, USR1)
    assert r.result(2).err == "EINTR"


def test_ignored_signal_is_no_interruption(live):
    live.client.ok("sigaction", USR1, "ign")
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.client.ok("tkill", r.id, USR1)
    assert not r.done(0.05)
    live.s.sendall(10)
    assert r.result(2).ret == 10


@pytest.mark.parametrize("waitall", [0, WAITALL])
def test_rcvtimeo(live, waitall):
    live.client.ok("timeo", live.c.fd, socket.SO_RCVTIMEO, 60)
    r = live.c.recv(10, waitall)
    assert r.err == "EAGAIN" and 50000 <= r.us < 200000, r
    live.s.sendall(5)
    r = live.c.recv(10, waitall)
    assert r.ret == 5, r
    live.client.ok("timeo", live.c.fd, socket.SO_RCVTIMEO, 0)
    p = live.c.recv_bg(10)
    assert not p.done(0.1)
    live.s.sendall(10)
    assert p.result(2).ret == 10


def test_rcvtimeo_set_before_upgrade(pair):
    pair.client.ok("timeo", pair.c.fd, socket.SO_RCVTIMEO, 2000)
    pair.upgrade()
    pair.client.ok("timeo", pair.c.fd, socket.SO_RCVTIMEO, 60)
    r = pair.c.recv(10)
    assert r.err == "EAGAIN" and 50000 <= r.us < 200000, r


def test_sndtimeo(live):
    live.client.ok("timeo", live.c.fd, socket.SO_SNDTIMEO, 60)
    live.c.fill()
    for _ in range(5):  # as in test_alarm_interrupts_send
        r = live.c.send(100000)
        if r.ret < 0:
            break
    assert r.err == "EAGAIN" and 50000 <= r.us < 300000, r


def test_sndtimeo_partial(live):
    live.client.ok("timeo", live.c.fd, socket.SO_SNDTIMEO, 60)
    r = live.c.send(64 << 20)
    assert 0 < r.ret < 64 << 20, r


def test_rcvlowat(live):
    """SO_RCVLOWAT: recv and poll wait for that much (recv, on Linux, for that much more)."""
    live.client.ok("setsockopt", live.c.fd, socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    live.s.sendall(60)
    assert live.c.poll(EV_IN, 50) == 0
    live.s.sendall(60)
    assert live.c.poll(EV_IN, 2000) == EV_IN
    assert live.c.recv(1000).ret == 120
    live.s.sendall(60)
    r = live.c.recv_bg(1000)
    assert not r.done(0.05)
    live.s.sendall(100)
    assert r.result(2).ret == 160


@pytest.mark.parametrize("where", ("send", "poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait"))
def test_cancel(live, where):
    """A thread cancelled inside a call that sleeps leaves connection, set and other threads as they were."""
    ep = live.client.ok("epoll_create", 0)
    live.client.ok("epoll_ctl", ep, 1, live.c.fd, EV_IN, 7)
    full = live.c.fill() if where == "send" else 0
    for _ in range(3):
        if where == "send":
            r = live.c.send_bg(1 << 20)
        elif where.startswith("epoll"):
            r = live.client.bg(where, ep, 8, -1)
        else:
            r = live.client.bg(where, -1, live.c.fd, 1)  # POLLIN, or the first of the sets
        other = live.client.bg("epoll_wait", ep, 8, 10000)
        live.client.asleep()
        live.client.ok("cancel", r.id)
        live.client.asleep()
        assert not r.done(0.05) and not other.done()
        live.s.sendall(100)
        assert other.result(3).words == ["1:7"]
        assert live.c.recv(100, WAITALL).ret == 100
        assert live.client("epoll_wait", ep, 8, 0).ret == 0
    if full:
        # what the cancelled threads had sent of their megabytes is not known to them, and not torn
        live.c.shutdown(socket.SHUT_WR)
        assert live.s.recv(full, WAITALL).ret == full
        return
    live.turns(10, 500)


def test_cancel_in_recv(live):
    """A thread cancelled inside recv leaves the connection usable."""
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.client.ok("cancel", r.id)
    live.client.asleep()
    assert not r.done(0.05)
    live.s.sendall(100)
    assert live.c.recv(100, WAITALL).ret == 100
    live.turns(10, 500)


def test_cancel_in_accept(pair):
    """The listener is as it was, for threads that wait on and for those that come."""
    r, other = pair.server.bg("accept", pair.lfd, 0), pair.server.bg("accept", pair.lfd, 0)
    pair.server.asleep()
    pair.server.ok("cancel", r.id)
    pair.server.asleep()
    assert not r.done(0.05) and not other.done()
    for i in range(2):
        fd = pair.client.ok("socket", pair.family, socket.SOCK_STREAM, 0)
        pair.client.ok("connect", fd, pair.host, pair.port)
        s = pair.server.ok("accept", pair.lfd, 0) if i else other.result(3).ret
        assert s > 0
        pair.turns(40, 500, shell.End(pair.client, fd, i, i + 2), shell.End(pair.server, s, i + 2, i))
