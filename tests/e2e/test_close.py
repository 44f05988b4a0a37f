# SPDX-License-Identifier: BSD-2-Clause
"""The end of a connection: what the other end gets, and what it sees."""
import socket

import pytest

from shell import DONTWAIT, EV_ERR, EV_HUP, EV_IN, EV_OUT, EV_RDHUP, NOSIGNAL, WAITALL
import harness
import shell

pytestmark = pytest.mark.timeout(30)

SO_TIMESTAMP = 29
SHUT_RD, SHUT_WR, SHUT_RDWR = socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR
ALL = EV_IN | EV_OUT | EV_RDHUP


@pytest.mark.parametrize("size", [1, 5000, 300000])
@pytest.mark.parametrize("how", ["close", "exit", "_exit", "shutdown"])
def test_write_then_end_delivers(live, how, size):
    """Everything written before close, exit or shutdown arrives, then end of stream."""
    got = live.s.drain_bg() if size > 100000 else None
    live.c.sendall(size)
    if how == "close":
        live.c.close()
    elif how == "shutdown":
        assert live.c.shutdown(SHUT_WR).ret == 0
    else:
        live.client.order("0 %s 0\n" % how)
        assert live.client.proc.wait() == 0
    assert live.s.drained(got or live.s.drain_bg()) == (size, None)


def test_exit_before_reader_starts(live):
    """The writer is long gone when the reader begins; its bytes are there."""
    n = live.c.fill()
    live.client.order("0 exit 0\n")
    assert live.client.proc.wait() == 0
    assert live.s.drain() == (n, None)


def test_fresh_write_then_exit(pair):
    """A connection that never lived long enough for an upgrade."""
    pair.c.sendall(10)
    pair.client.order("0 exit 0\n")
    pair.client.proc.wait()
    assert pair.s.drain() == (10, None)


def test_close_with_unread_data_resets(live):
    """The closing end has not read all: the other end gets ECONNRESET, once."""
    live.c.sendall(1000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    live.s.close()
    r = live.c.recv(100, timeout=3)
    assert r.err == "ECONNRESET", r
    assert live.c.recv(100).ret == 0
    assert live.c.send(1).err == "EPIPE"


def test_reset_seen_by_poll(live):
    live.c.sendall(1000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    live.s.close()
    got = live.c.poll(EV_IN, 2000)
    assert got == EV_IN | EV_ERR | EV_HUP, got
    assert live.c.sockopt(socket.SO_ERROR) == 104
    assert live.c.sockopt(socket.SO_ERROR) == 0
    assert live.c.recv(1).ret == 0


def test_reset_with_unread_data(live):
    """Linger zero: the reset is seen by poll at once; read still gives the data, then the error."""
    live.c.sendall(1000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    live.client.ok("linger", live.c.fd, 1, 0)
    live.c.close()
    harness.until(lambda: live.s.poll(ALL) & EV_HUP, 2, "reset")
    assert live.s.poll(ALL) == EV_IN | EV_OUT | EV_RDHUP | EV_ERR | EV_HUP
    assert live.s.recv(400).ret == 400
    assert live.s.recv(1000).ret == 600
    assert live.s.recv(100).err == "ECONNRESET"
    assert live.s.recv(100).ret == 0


def test_reset_then_send(live):
    """The error goes to whichever call comes first: send takes it, read then gives data and end."""
    live.c.sendall(1000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    live.client.ok("linger", live.c.fd, 1, 0)
    live.c.close()
    harness.until(lambda: live.s.poll(ALL) & EV_HUP, 2, "reset")
    assert live.s.send(1).err == "ECONNRESET"
    assert live.s.send(1).err == "EPIPE"
    assert live.s.recv(2000).ret == 1000
    assert live.s.recv(100).ret == 0


def test_half_close_client(live):
    """After SHUT_WR the other direction still carries."""
    live.c.sendall(500)
    assert live.c.shutdown(SHUT_WR).ret == 0
    assert live.s.drain() == (500, None)
    live.s.sendall(200000 // 2)
    live.s.sendall(1000)
    r = live.c.drain_bg()
    live.s.close()
    assert live.c.drained(r) == (101000, None)
    live.c.close()


def test_half_close_both_ways(live):
    for e, o in ((live.s, live.c), (live.c, live.s)):
        e.sendall(777)
        assert e.shutdown(SHUT_WR).ret == 0
        assert o.drain() == (777, None)
    assert live.c.poll(ALL) == EV_IN | EV_OUT | EV_RDHUP | EV_HUP
    assert live.c.shutdown(SHUT_WR).err in (None, "ENOTCONN")


def test_half_close_poll(live):
    """RDHUP and IN when the peer will send no more; HUP only when both directions have ended."""
    assert live.s.poll(ALL) == EV_OUT
    assert live.c.shutdown(SHUT_WR).ret == 0
    harness.until(lambda: live.s.poll(ALL) == EV_IN | EV_OUT | EV_RDHUP, 2, "RDHUP")
    assert live.c.poll(ALL) == EV_OUT
    assert live.s.shutdown(SHUT_WR).ret == 0
    harness.until(lambda: live.c.poll(ALL) == EV_IN | EV_OUT | EV_RDHUP | EV_HUP, 2, "HUP")


def test_rdhup_with_unread_data(live):
    live.c.sendall(100)
    live.c.shutdown(SHUT_WR)
    harness.until(lambda: live.s.poll(ALL) & EV_RDHUP, 2, "RDHUP")
    assert live.s.recv(60).ret == 60
    assert live.s.poll(ALL) == EV_IN | EV_OUT | EV_RDHUP
    assert live.s.recv(60).ret == 40
    assert live.s.recv(60).ret == 0
    assert live.s.recv(60).ret == 0


def test_send_after_own_shutdown(live):
    live.c.shutdown(SHUT_WR)
    assert live.c.send(1).err == "EPIPE"
    assert live.c.send(0).err in ("EPIPE", None)
    live.s.sendall(10)
    assert live.c.recv(10).ret == 10


def test_shut_rd(live):
    """Nothing more to read here: read gives 0, data already here is still given."""
    live.s.sendall(10)
    assert live.c.poll(EV_IN, 2000) == EV_IN
    assert live.c.shutdown(SHUT_RD).ret == 0
    assert live.c.recv(100).ret == 10
    assert live.c.recv(100).ret == 0
    assert live.c.poll(ALL) == EV_IN | EV_OUT | EV_RDHUP
    live.c.sendall(10)
    assert live.s.recv(10).ret == 10


def test_shut_rdwr(live):
    live.c.shutdown(SHUT_RDWR)
    assert live.c.recv(1).ret == 0
    assert live.c.send(1).err == "EPIPE"
    assert live.s.drain() == (0, None)


@pytest.mark.parametrize("how", [SHUT_RD, SHUT_RDWR])
def test_shutdown_wakes_blocked_reader(live, how):
    r = live.c.recv_bg(100)
    live.client.asleep()
    assert live.c.shutdown(how).ret == 0
    assert r.result(2).ret == 0


def test_peer_end_wakes_blocked_reader(live):
    r = live.s.recv_bg(100)
    live.server.asleep()
    live.c.close()
    assert r.result(2).ret == 0


def test_peer_end_wakes_blocked_poll(live):
    r = live.server.bg("poll", -1, live.s.fd, EV_IN | EV_RDHUP)
    live.server.asleep()
    live.c.shutdown(SHUT_WR)
    assert r.result(2).ints == [EV_IN | EV_RDHUP]


def test_peer_reset_wakes_blocked_writer(live):
    live.c.fill()
    w = live.c.send_bg(100000)
    live.client.asleep()
    live.s.close()
    r = w.result(2)
    # what found room at the last instant is counted, and the next call has the error
    assert r.err in ("ECONNRESET", "EPIPE") or 0 < r.ret
    harness.until(lambda: live.c.send(1).err in ("ECONNRESET", "EPIPE"), 1, "reset")


def test_epipe_and_sigpipe(live):
    """The peer is gone: the first write may go out, later ones get EPIPE and SIGPIPE."""
    live.client.ok("sigaction", 13, "catch")
    live.s.close()
    assert live.c.poll(EV_IN, 2000) & EV_IN
    assert live.c.recv(1).ret == 0
    r = [live.c.send(10, 0)]

    def later():
        r.append(live.c.send(10, 0))
        return r[-1].ret < 0
    harness.until(later, 2, "EPIPE")
    assert r[-1].err in ("EPIPE", "ECONNRESET")
    while r[-1].err != "EPIPE":
        r.append(live.c.send(10, 0))
    assert live.client("caught", 13).ret == 1
    assert live.c.send(10, NOSIGNAL).err == "EPIPE"
    assert live.client("caught", 13).ret == 1


def test_sigpipe_kills(live):
    """Default action: the program dies of SIGPIPE as on TCP."""
    live.client.ok("sigaction", 13, "dfl")
    live.c.shutdown(SHUT_WR)
    live.client.order("0 send %d 1 0 0 0\n" % live.c.fd)
    assert live.client.proc.wait() == -13


def test_dup_keeps_open(live):
    """The connection ends with the last descriptor, not the first."""
    d = live.client.ok("dup", live.c.fd)
    live.c.close()
    other = live.c.as_seen_by(live.client, d)
    other.sendall(100)
    assert live.s.recv(100).ret == 100
    live.s.sendall(100)
    assert other.recv(100).ret == 100
    assert live.s.recv(1, DONTWAIT).err == "EAGAIN"
    other.close()
    assert live.s.drain() == (0, None)


def test_dup2_over_live(live):
    """dup2 over the flow's number closes the flow."""
    tmp = live.client.ok("dup", 2)
    live.client.ok("dup3", tmp, live.c.fd, 0)
    assert live.s.drain() == (0, None)


@pytest.mark.parametrize("how", ["close_range", "closefrom", "close_loop"])
def test_bulk_close(live, how):
    """All descriptors closed at once: the peer sees the end, and new sockets still work."""
    lo = live.c.fd
    args = {"close_range": (lo, 0xffffffff, 0), "closefrom": (lo,), "close_loop": (lo, 5000)}[how]
    assert live.client(how, *args).ret == 0
    assert live.s.drain() == (0, None)
    assert live.client("socket", 2, 1, 0).ret == lo
    live.client.ok("close", lo)
    c, s = live.connect()
    assert c.fd == lo
    live.turns(c=c, s=s)


def test_fd_numbers_are_lowest_free(live):
    """Programs rely on getting the lowest free number; nothing of ours may sit there."""
    a = live.client.ok("socket", 2, 1, 0)
    b = live.client.ok("socket", 2, 1, 0)
    assert b == a + 1
    live.client.ok("close", a)
    assert live.client.ok("dup", 2) == a


def test_closed_fd_is_ebadf(live):
    live.c.close()
    for call in (("send", 1, 0, 0, 0), ("recv", 1, 0, 0, 0), ("write", 1, 0, 0, 0), ("read", 1, 0, 0, 0)):
        r = live.client(call[0], live.c.fd, *call[1:])
        assert r.err == "EBADF", (call, r)
    assert live.client("close", live.c.fd).err == "EBADF"
    assert live.client("poll", 0, live.c.fd, EV_IN).ints == [0x20]


def test_reconnect_cycles(pair):
    """Short connections, one after the other, leave nothing behind."""
    ends = pair.client, pair.server

    def cycle(turns):
        c, s = pair.connect()
        pair.turns(turns, 500, c, s)
        c.close()
        assert s.drain() == (0, None)
        s.close()

    def few():
        # What two processes shared for a connection is given back by a call that comes a moment later.
        cycle(1)
        return [len(harness.fds(p.pid)) <= have + kept for p, have in zip(ends, before)] == [True, True]
    # between hosts the link with the helper thread stays, and the pair of sockets to it
    kept = 7 if pair.env.fabric == "rdma" else 5
    before = [len(harness.fds(p.pid)) for p in ends]
    for i in range(120):
        cycle(5 + i % 80)
    harness.until(few, 5, lambda: "%s descriptors, now %s" % (before, [harness.fds(p.pid) for p in ends]), .15)


def test_linger_blocks_until_read(live):
    """SO_LINGER with data that the peer has room for: close returns, all is delivered."""
    live.client.ok("linger", live.c.fd, 1, 5)
    live.c.sendall(50000)
    live.c.close()
    assert live.s.drain() == (50000, None)


def test_shut_rd_with_unread_data_at_the_peer(live):
    """Own SHUT_RD looks to poll as the peer's FIN does: nobody has died, and writing goes on."""
    live.c.sendall(1000)
    assert live.s.poll(EV_IN, 2000) == EV_IN
    assert live.c.shutdown(socket.SHUT_RD).ret == 0
    assert live.c.poll(EV_IN, 2000) & EV_IN
    assert live.c.recv(1).ret == 0
    assert live.c.sockopt(socket.SO_ERROR) == 0
    live.c.sendall(1000)
    assert live.s.recv(2000, WAITALL).ret == 2000


@pytest.mark.fabric
@pytest.mark.modes("both")
@pytest.mark.parametrize("how", ["recv", "poll", "epoll_wait"])
def test_what_was_closed_goes_while_another_connection_is_used(live, how):
    """Its place in the list, its link and descriptors: the process opens and closes nothing for that."""
    me = live.server
    ep = me.ok("epoll_create", 0)
    assert me("epoll_ctl", ep, 1, live.s.fd, EV_IN, 7).ret == 0
    before = len(harness.fds(me.pid))
    others = [shell.Pair(live.env, server=me).upgrade() for _ in range(3)]
    for p in others:
        me("close", p.lfd)
        p.s.sendall(1000)
        p.s.close()
    # one has gone without a word, one reads all and leaves, one reads all and stays
    others[0].client.proc.kill()
    for p in others[1:]:
        assert p.c.drain() == (1000, None)
    others[1].c.close()

    def used():
        if how == "recv":
            w = live.s.recv_bg(10)
        elif how == "poll":
            w = me.bg("poll", -1, live.s.fd, EV_IN)
        else:
            w = me.bg("epoll_wait", ep, 8, -1)
        me.asleep()
        live.c.sendall(10)
        w.result()
        if how == "recv":
            live.s.rx += 10
        else:
            assert live.s.recv(10).ret == 10
        return [f["state"] for f in live.env.flows(me.pid)] == ["ESTAB"] and len(harness.fds(me.pid)) < before + 12
    harness.until(used, 5, lambda: "only the connection that is used: %s, %d descriptors more" % (
        live.env.flows(me.pid), len(harness.fds(me.pid)) - before), 0.1)


@pytest.mark.fabric
@pytest.mark.modes("plain", "both")
@pytest.mark.parametrize("how", ["recv", "asleep", "poll", "epoll_wait", "edge"])
def test_the_end_of_a_sender_that_is_elsewhere(live, how):
    """
    What goes back to TCP does not fit into the socket, the program shuts the connection down and does not come back to
    it. Who has read all there is hears of the end; of plain TCP the kernel takes care.
    """
    c, s = live.c, live.s
    sent = c.fill()
    ep, events = s.sh.ok("epoll_create", 0), EV_IN | EV_RDHUP | (shell.EV_ET if how == "edge" else 0)
    assert s.sh("epoll_ctl", ep, 1, s.fd, events, 7).ret == 0
    c.sh.ok("setsockopt", c.fd, socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    # not modelled: this connection is one of TCP from here on
    c.sh.ok("setsockopt", c.fd, socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    got = s.drain_bg() if how == "asleep" else None
    left = 0 if got else sent
    while left:
        r = s.recv(min(1 << 19, left), WAITALL)
        assert r.ret > 0, r
        left -= r.ret
    if how == "poll":
        got = s.sh.bg("poll", -1, s.fd, EV_IN | EV_RDHUP)
    elif how in ("epoll_wait", "edge"):
        s.sh.ok("epoll_wait", ep, 8, 0)
        got = s.sh.bg("epoll_wait", ep, 8, -1)
    if got:
        s.sh.asleep()
    assert c.shutdown(SHUT_WR).ret == 0
    if how == "asleep":
        assert s.drained(got) == (sent, None)
    elif got:
        assert got.result(5).ret == 1
        assert s.poll(EV_IN | EV_RDHUP) == EV_IN | EV_RDHUP
    assert s.drain() == (0, None)
    s.sendall(1000)
    assert c.recv(1000, WAITALL).ret == 1000
