# SPDX-License-Identifier: BSD-2-Clause
"""TCP_INFO of a connection that has moved says what it would say had TCP carried all of it."""
import os
import socket
import subprocess
import time

import pytest

from shell import WAITALL
import harness

pytestmark = pytest.mark.timeout(60)

ESTABLISHED, FIN_WAIT2, CLOSED, CLOSE_WAIT = 1, 5, 7, 8


def settled(end, n):
    """TCP_INFO once all that the end has written is acknowledged."""
    harness.until(lambda: end.info().bytes_acked == n, 5, lambda: "acknowledged: %r" % (end.info(),))
    return end.info()


def check(live):
    """Every byte of the program, in both directions, and nothing else; one more for a client's SYN."""
    for a, b, syn in ((live.c, live.s, 1), (live.s, live.c, 0)):
        t = settled(a, a.tx + syn)
        assert t.bytes_sent - t.bytes_retrans == a.tx and t.notsent_bytes == 0 and t.unacked == 0, t
        r = b.info()
        assert r.bytes_received == a.tx, (r, a.tx)
        assert t.data_segs_out > 0 and t.segs_out >= t.data_segs_out, t
        assert r.data_segs_in > 0 and r.segs_in >= r.data_segs_in, r
        assert t.state == r.state == ESTABLISHED


def test_bytes_of_the_stream(live):
    """Before and after bytes of every size, read at once, late, and in parts."""
    check(live)
    for n in (1, 100, 5000, 40000):
        live.c.sendall(n)
        check(live)                     # unread
        assert live.s.recv(n // 2 + 1, WAITALL).ret == n // 2 + 1
        check(live)
        if n > n // 2 + 1:
            assert live.s.recv(n, WAITALL if n < 2 else 0).ret > 0
        while live.s.rx < live.c.tx:
            assert live.s.recv(n).ret > 0
        live.turns(5, n // 10 + 1)
    check(live)


def test_messages_are_counted(live):
    """A connection of n turns has sent n segments with data at least, and received as many."""
    before = [e.info() for e in (live.c, live.s)]
    live.turns(100, 50)
    for e, b in zip((live.c, live.s), before):
        t = e.info()
        assert t.data_segs_out - b.data_segs_out >= 100 and t.segs_out - b.segs_out >= 100
        assert t.data_segs_in - b.data_segs_in >= 100 and t.segs_in - b.segs_in >= 100


def test_times_since_the_last_data(live):
    """Milliseconds since something was sent, and since something came, read or not."""
    live.turns(3)
    time.sleep(0.4)
    for e in (live.c, live.s):
        t = e.info()
        assert 300 <= t.last_data_sent < 3000 and 300 <= t.last_data_recv < 3000, t
    live.c.sendall(10)
    harness.until(lambda: live.s.info().bytes_received == live.c.tx, 5, "it has come")
    # on a machine that is busy some time goes by between two orders
    assert live.c.info().last_data_sent < 200 and live.s.info().last_data_recv < 200
    assert live.c.info().last_data_recv >= 300 and live.s.info().last_data_sent >= 300
    time.sleep(0.4)
    assert 300 <= live.s.info().last_data_recv < 3000   # unread, and no news
    assert live.s.recv(10, WAITALL).ret == 10
    assert 300 <= live.s.info().last_data_recv < 3000   # reading is not receiving


def test_path(live):
    """What a program computes from: never 0, and the window fits what is said about it."""
    for e in (live.c, live.s):
        t = e.info()
        assert 1 <= t.rtt < 1000000 and 1 <= t.min_rtt <= max(t.rtt, t.min_rtt)
        assert 536 <= t.snd_mss <= 65536 and t.snd_cwnd >= 2
        # 0 on kernels that do not tell
        assert t.snd_wnd <= 1 << 30
        if live.is_up():
            assert t.rtt <= 20, t
            assert t.snd_wnd >= 65536 and t.snd_cwnd * t.snd_mss >= t.snd_wnd


@pytest.mark.parametrize("first", ["c", "s"])
def test_state_of_closing(live, first):
    """FIN_WAIT2 and CLOSE_WAIT after the first half, closed after the second."""
    a, b = (live.c, live.s) if first == "c" else (live.s, live.c)
    a.sendall(100)
    a.shutdown(socket.SHUT_WR)
    harness.until(lambda: (a.info().state, b.info().state) == (FIN_WAIT2, CLOSE_WAIT), 5,
                  lambda: "half closed: %r" % ((a.info(), b.info()),))
    # the other direction goes on
    b.sendall(100)
    assert a.recv(100, WAITALL).ret == 100
    assert b.drain() == (100, None)
    assert (a.info().state, b.info().state) == (FIN_WAIT2, CLOSE_WAIT)
    b.shutdown(socket.SHUT_WR)
    harness.until(lambda: (a.info().state, b.info().state) == (CLOSED, CLOSED), 5,
                  lambda: "closed: %r" % ((a.info(), b.info()),))
    assert a.drain() == (0, None)


def test_state_after_shut_rd(live):
    """SHUT_RD is between the program and its socket: the connection is as it was."""
    live.c.shutdown(socket.SHUT_RD)
    assert (live.c.info().state, live.s.info().state) == (ESTABLISHED, ESTABLISHED)


def test_state_when_the_peer_closes(live):
    live.s.close()
    harness.until(lambda: live.c.info().state == CLOSE_WAIT, 5, lambda: "CLOSE_WAIT: %r" % live.c.info())


def test_state_when_the_peer_resets(live):
    live.c.sendall(10)
    harness.until(lambda: live.s.sh("ioctl", live.s.fd, 0x541B, 0).ints[0] == 10, 2, "there")
    live.s.close()
    harness.until(lambda: live.c.info().state == CLOSED, 5, lambda: "closed: %r" % live.c.info())


@pytest.mark.parametrize("size", [0, 1, 8, 100, 104, 192, 232, 4096])
def test_as_much_as_was_asked_for(live, size):
    """A structure of any age: what fits is there, what does not is left alone."""
    t = live.c.info(size)
    assert t.len == min(size, live.c.info().len)
    assert t.state == (ESTABLISHED if size else 0)
    if size <= 100:
        assert t.bytes_sent == t.bytes_received == 0
    if size >= 232:
        assert t.bytes_sent - t.bytes_retrans == live.c.tx


def test_bad_arguments(live):
    """As the kernel answers them."""
    assert live.client("tcp_info", live.c.fd, -1).err == "EINVAL"
    assert live.client("tcp_info", 999).err == "EBADF"
    live.turns(3)


@pytest.mark.parametrize("unread", [0, 50000])
def test_totals_go_on_through_a_retreat(live, unread):
    """Back to TCP, with and without bytes that have to be sent again: no jump, up or down."""
    live.turns(30, 1000)
    for e in (live.c, live.s):
        if unread:
            e.sendall(unread)
    # urgent data belongs to TCP: the flow goes back for good
    assert live.client("send", live.c.fd, 1, socket.MSG_OOB, live.c.tx_key, live.c.tx).ret == 1
    for a, b in ((live.c, live.s), (live.s, live.c)):
        n = 0
        while n < unread:
            r = b.recv(min(1000, unread - n), WAITALL)
            assert r.ret > 0
            n += r.ret
            t = a.info()
            sent = t.bytes_sent - t.bytes_retrans
            assert sent <= a.tx + 1 and sent + t.notsent_bytes >= a.tx, (t, a.tx)
            assert b.info().bytes_received <= a.tx + 1
            assert b.info().bytes_received >= b.rx
    # one byte more, the urgent one, which is not in the stream
    live.c.tx += 1
    live.s.sendall(10)
    assert live.c.recv(10, WAITALL).ret == 10
    check(live)


def operate(live, what):
    """Ask for it by xr-stat, while the programs make calls, in which they see it."""
    p = subprocess.Popen([harness.find("xr-stat", "tools/xr-stat"), what, "--pid=%d" % live.client.pid],
                         env={**os.environ, **live.env.env}, stdout=subprocess.DEVNULL)
    while p.poll() is None:
        live.c.poll(0)
        live.s.poll(0)
    assert p.wait() == 0


@pytest.mark.fabric
@pytest.mark.modes("both")
def test_totals_go_on_through_a_return(live):
    """To TCP and to the fabric again, twice, with bytes under way."""
    live.env.env["XRDMA_RETURN_AFTER"] = "1ms"
    for _ in range(2):
        live.turns(20, 3000)
        check(live)
        live.c.sendall(5000)
        operate(live, "--retreat")
        check(live)
        assert live.s.recv(5000, WAITALL).ret == 5000
        live.turns(20, 3000)
        check(live)
        operate(live, "--return")
        for _ in range(200):
            live.turns(10, 300)
            if live.is_up():
                break
            time.sleep(0.01)
        assert live.is_up()
        check(live)
