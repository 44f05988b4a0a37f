# SPDX-License-Identifier: BSD-2-Clause
"""close() under calls that sleep: the number is free at once, the connection ends with the last call."""
import signal
import time

import pytest

from shell import EV_IN, EV_RDHUP, WAITALL
import harness

EV_NVAL = 0x20

pytestmark = [pytest.mark.timeout(60), pytest.mark.tsan]


def end_seen(live, within=0.0):
    """The peer sees an end of the stream."""
    return bool(live.s.poll(EV_RDHUP, int(within * 1000)) & EV_RDHUP)


def test_no_end_until_the_reader_leaves(live):
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    assert not end_seen(live, 0.1)
    assert not r.done()
    live.s.sendall(10)
    got = r.result(2)
    assert got.ret == 10 and got.words == ["ok"]
    assert end_seen(live, 2)
    assert live.s.drain() == (0, None)


def test_the_end_of_the_peer_comes_through(live):
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    live.s.close()
    assert r.result(2).ret == 0


def test_number_is_used_again(live):
    """The reader reads the connection it began with, whatever its number names by now."""
    r = live.c.recv_bg(10, WAITALL)
    live.client.asleep()
    live.c.close()
    c, s = live.connect()
    assert c.fd == live.c.fd
    live.turns(30, 1000, c, s)
    s.sendall(5)
    live.s.sendall(4)
    time.sleep(0.05)
    assert not r.done()
    live.s.sendall(6)
    got = r.result(2)
    assert got.ret == 10 and got.words == ["ok"]
    assert c.recv(5, WAITALL).ret == 5
    assert live.s.drain() == (0, None)
    live.turns(30, 1000, c, s)


def test_blocked_writer(live):
    """It writes all it has, and the stream ends behind that."""
    n = live.c.fill()
    w = live.c.send_bg(1 << 20)
    live.client.asleep()
    live.c.close()
    assert not w.done(0.05)
    got = live.s.drain()
    assert w.result(5).ret == 1 << 20
    assert got == (n + (1 << 20), None)


def test_what_the_reader_leaves_is_reset(live):
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    live.s.sendall(100)
    assert r.result(2).ret == 10
    harness.until(lambda: live.s.poll(EV_IN, 0), 2, "an end")
    assert live.s.drain() == (0, "ECONNRESET")


def test_two_readers(live):
    """The first to leave ends nothing."""
    a, b = live.c.recv_bg(1), live.c.recv_bg(1)
    live.client.asleep()
    live.c.close()
    live.s.sendall(1)
    harness.until(lambda: a.done(0.01) or b.done(0.01), 3, "one reader awake")
    last = b if a.done() else a
    assert not last.done(0.05)
    assert not end_seen(live, 0.05)
    live.s.sendall(1)
    assert last.result(3).ret == 1
    assert live.s.drain() == (0, None)


def test_cancelled_reader(live):
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    live.client.ok("cancel", r.id)
    assert end_seen(live, 2)
    assert live.s.drain() == (0, None)


@pytest.mark.parametrize("how, err", [("interrupt", "EINTR"), ("restart", "EBADF")])
def test_signal_after_close(live, how, err):
    """A call that is restarted looks for its descriptor again, and finds none."""
    live.client.ok("sigaction", signal.SIGUSR1, how)
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    live.client.ok("tkill", r.id, signal.SIGUSR1)
    assert r.result(2).err == err
    assert end_seen(live, 2)
    assert live.s.drain() == (0, None)


def test_child_does_not_keep_it(live):
    """A child that is forked meanwhile has not got the connection."""
    r = live.c.recv_bg(10)
    live.client.asleep()
    live.c.close()
    child = live.client.fork()
    assert child("recv", live.c.fd, 1, 0, 0, 0).err in ("EBADF", "ENOTSOCK")
    live.s.sendall(10)
    assert r.result(2).ret == 10
    assert end_seen(live, 2)
    assert live.s.drain() == (0, None)
    child.end()


def test_peer_goes_back_to_tcp_meanwhile(live):
    """The peer's child takes its end over: the reader gets what that sends."""
    r = live.c.recv_bg(10, WAITALL)
    live.client.asleep()
    live.c.close()
    child = live.server.fork()
    s = live.s.as_seen_by(child)
    assert s.sendall(4).ret == 4
    live.s.close()
    assert not r.done(0.05)
    assert s.sendall(6).ret == 6
    got = r.result(3)
    assert got.ret == 10 and got.words == ["ok"]
    assert s.drain() == (0, None)
    child.end()


def test_reader_on_tcp_and_the_next_connection(pair):
    """What a call that slept in the kernel counts is not the next connection's."""
    c, s = pair.connect()
    r = c.recv_bg(10)
    pair.client.asleep()
    c.close()
    pair.c, pair.s = pair.connect()
    pair.turns(2, 100)
    s.sendall(10)
    assert r.result(2).ret == 10
    assert s.drain() == (0, None)
    pair.upgrade()
    pair.turns()


def test_poller(live):
    """poll looks its descriptor up when it wakes; until then it sleeps, and the connection lives."""
    p = live.client.bg("poll", -1, live.c.fd, EV_IN)
    live.client.asleep()
    live.c.close()
    if live.env.mode == "both":  # listed in xrdma(7): the connection ends, and the call soon after
        assert end_seen(live, 2)
    else:
        assert not p.done(0.1)
        assert not end_seen(live)
        live.s.sendall(1)
    assert p.result(3).ints == [EV_NVAL]
