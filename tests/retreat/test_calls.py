# SPDX-License-Identifier: BSD-2-Clause
"""Calls and options that only the kernel has, in mid-stream: what comes before, by and after them is whole, and
they answer as on plain TCP.
"""
import os
import select
import signal
import socket

import pytest

import shell
from shell import ADD, DONTWAIT, EV_ET, EV_IN, EV_PRI, PEEK, WAITALL

pytestmark = pytest.mark.timeout(60)

M = 1 << 20
OOB = socket.MSG_OOB
SO_PEEK_OFF = 42
F_SETOWN, F_SETSIG, F_GETFL, F_SETFL = 8, 10, 3, 4


@pytest.fixture(params=["server", "client"])
def who(request, live):
    return (live.s, live.c) if request.param == "server" else (live.c, live.s)


def on_tcp_for(pair, me, *reasons):
    """With the shim at both ends: the flow has left for one of these reasons and stays away."""
    pair.turns(30, 2000)
    if pair.mode == "both":
        flows = pair.carriers()
        mine = flows["server" if me is pair.s else "client"]
        if not pair.env.lifts:  # it was there all the time
            reasons += ("not-local",)
        assert mine["carrier"] == "tcp" and mine["reason"] in reasons, mine
        assert [f["carrier"] for f in flows.values()] == ["tcp", "tcp"], flows


def send_by(me, name, n, *more):
    r = me.sh(name, me.fd, n, *(more or (0,)), me.tx_key, me.tx, timeout=20)
    assert (r.ret, r.words[0]) == (n, "0"), r
    me.tx += n
    return r


# ---- pages -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [1, 4097, 3 * M + 17])
def test_sendfile_in_mid_stream(live, who, n):
    me, peer = who
    for _ in range(3):
        me.sendall(3000)
        d = peer.recv_bg(6000 + n, WAITALL)
        assert send_by(me, "sendfile", n).words[1] == "1"
        me.sendall(3000)
        r = d.result(20)
        assert (r.ret, r.words[0]) == (6000 + n, "ok")
        peer.rx += r.ret
        live.turns(4, 100)
    if live.env.lifts:
        assert live.is_up()    # carried


@pytest.mark.parametrize("source", ["file", "memory"])
@pytest.mark.parametrize("n", [1, 4097, 3 * M + 17])
def test_splice_into_it(live, who, source, n):
    me, peer = who
    me.sendall(3000)
    d = peer.recv_bg(6000 + 2 * n, WAITALL)
    send_by(me, "splice_out", n, source)
    me.sendall(3000)
    send_by(me, "splice_out", n, source)
    r = d.result(20)
    assert (r.ret, r.words[0]) == (6000 + 2 * n, "ok")
    peer.rx += r.ret
    on_tcp_for(live, me, "retreat-unsupported-call")


@pytest.mark.parametrize("n", [1, 4097, 3 * M + 17])
def test_splice_out_of_it(live, who, n):
    """Bytes that wait unread in the fabric are among those that a pipe gets."""
    me, peer = who
    w = peer.sh.bg("sendall", peer.fd, 5 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(3000, WAITALL).ret == 3000
    r = me.sh("splice_in", me.fd, n, 0, me.rx_key, me.rx, timeout=20)
    assert (r.ret, r.words[0]) == (n, "ok"), r
    me.rx += n
    rest = 5 * M - 3000 - n
    assert me.recv(rest, WAITALL).ret == rest
    assert w.result().ret == 5 * M
    peer.tx += 5 * M
    on_tcp_for(live, me, "retreat-unsupported-call")


@pytest.mark.parametrize("way", ["out", "in"])
def test_copy_file_range(live, who, way):
    """It takes files alone: the kernel's answer about a socket, and nothing of the stream is touched."""
    me, peer = who
    w = peer.sh.bg("sendall", peer.fd, 3 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(3000, WAITALL).ret == 3000
    assert me.sh("copy_range", me.fd, 5000, way).err == "EINVAL"
    assert me.recv(3 * M - 3000, WAITALL).ret == 3 * M - 3000
    assert w.result().ret == 3 * M
    peer.tx += 3 * M
    live.turns(20, 1000)
    if live.env.lifts:
        assert live.is_up()


# ---- streams of stdio, and rings ---------------------------------------------------------------------

def both_ways(live, me, peer, read, write, *reasons):
    """The peer sends without a pause; the first part is read by recv, the second by other means. Then back."""
    w = peer.sh.bg("sendall", peer.fd, 5 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(M, WAITALL).ret == M
    r = me.sh(read, me.fd, 3 * M, me.rx_key, me.rx, timeout=20)
    assert (r.ret, r.words[0]) == (3 * M, "ok"), r
    me.rx += 3 * M
    assert me.recv(M, WAITALL).ret == M
    assert w.result().ret == 5 * M
    peer.tx += 5 * M
    d = peer.recv_bg(2 * M + 6000, WAITALL)
    me.sendall(3000)
    send_by(me, write, 2 * M)
    me.sendall(3000)
    r = d.result(20)
    assert (r.ret, r.words[0]) == (2 * M + 6000, "ok"), r
    peer.rx += r.ret
    on_tcp_for(live, me, *reasons)


def test_fdopen(live, who):
    both_ways(live, *who, "fread", "fwrite", "retreat-unsupported-call")


def test_fdopen_writes_first(live, who):
    """What a stream writes comes after what was sent before it, though the peer has read none of that."""
    me, peer = who
    n = 200000
    me.sendall(n)
    send_by(me, "fwrite", 3000)
    me.sendall(3000)
    assert peer.recv(n + 6000, WAITALL).ret == n + 6000
    # between hosts another entry than the program's own is shown for it meanwhile
    if live.env.fabric != "rdma":
        on_tcp_for(live, me, "retreat-unsupported-call")


@pytest.fixture
def rings(env):
    r = shell.Shell(env, None)("ring_setup", 1)
    if r.ret < 0:
        pytest.skip("no io_uring here: %s" % r.err)


def test_io_uring(rings, live, who):
    """The ring is made by syscall(): all connections of the program go to TCP, and no other leaves it."""
    me, peer = who
    both_ways(live, me, peer, "ring_recv", "ring_send", "unhooked-io")
    c, s = live.connect()
    live.turns(60, 1000, c, s)
    assert "shm" not in [f["carrier"] for f in live.carriers(c).values()]


@pytest.mark.parametrize("how", ["recv", "poll", "epoll"])
def test_io_uring_beside_a_sleeper(rings, live, who, how):
    """A thread that waits for the connection is woken by what comes after another has made a ring, not before."""
    me, peer = who
    if how == "recv":
        w = me.recv_bg(100)
    elif how == "poll":
        w = me.sh.bg("poll", 5000, me.fd, EV_IN)
    else:
        ep = me.sh.ok("epoll_create", 0)
        me.sh.ok("epoll_ctl", ep, ADD, me.fd, EV_IN | EV_ET, 7)
        w = me.sh.bg("epoll_wait", ep, 8, 5000)
    assert not w.done(0.05)
    assert me.sh("ring_setup", 1).ret == 0
    assert not w.done(0.1)
    peer.sendall(100)
    assert w.result(3).ret == (100 if how == "recv" else 1)
    if how == "recv":
        me.rx += 100
    else:
        assert me.recv(100).ret == 100
    on_tcp_for(live, me, "unhooked-io")


def test_io_uring_that_cannot_be_had(live, who):
    """No ring, so nothing that could pass by us: connections stay where they are."""
    me, peer = who
    assert me.sh("ring_setup", 0).ret < 0
    live.turns(20, 1000)
    if live.env.lifts:
        assert live.is_up()


# ---- options ---------------------------------------------------------------------------------------

def stream_around(live, me, peer, call):
    """call() while the peer sends and bytes lie unread; then all of them are read. Returns what call gave."""
    w = peer.sh.bg("sendall", peer.fd, 6 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(M, WAITALL).ret == M
    got = call()
    left = 5 * M
    while left:    # a signal may cut a read short
        n = me.recv(left, WAITALL).ret
        assert n > 0
        left -= n
    assert w.result().ret == 6 * M
    peer.tx += 6 * M
    return got


@pytest.mark.parametrize("kind", ["classic", "bpf"])
def test_filters(live, who, kind):
    me, peer = who
    r = stream_around(live, me, peer, lambda: me.sh("filter", me.fd, kind))
    if r.ret < 0:
        pytest.skip("no filter of this kind here: %s" % r.err)
    on_tcp_for(live, me, "option")


def test_ulp_tls(live, who):
    """Attached, but with no keys yet: bytes pass as they are. Absent from the kernel: ENOENT, and no harm."""
    me, peer = who
    with open("/proc/sys/net/ipv4/tcp_available_ulp") as f:
        have = "tls" in f.read().split()
    r = stream_around(live, me, peer, lambda: me.sh("sockopt_text", me.fd, socket.IPPROTO_TCP, 31, "tls"))
    assert r.err == (None if have or r.ret == 0 else "ENOENT")
    on_tcp_for(live, me, "ulp")


def test_repair(live, who):
    """Into the mode in which the kernel's own numbers can be read and set, and out of it."""
    me, peer = who
    repair = 19

    def there_and_back():
        r = me.sh("setsockopt", me.fd, socket.IPPROTO_TCP, repair, 1)
        return me.sh("setsockopt", me.fd, socket.IPPROTO_TCP, repair, 0) if r.ret == 0 else r

    r = stream_around(live, me, peer, there_and_back)
    if r.err == "EPERM":
        pytest.skip("not permitted here")
    assert r.ret == 0, r
    on_tcp_for(live, me, "option")


def test_peek_off(live, who):
    """Each look goes on where the last one ended."""
    me, peer = who
    stream_around(live, me, peer, lambda: me.sh.ok("setsockopt", me.fd, socket.SOL_SOCKET, SO_PEEK_OFF, 0))
    peer.sendall(1000)
    assert me.poll(EV_IN, 2000) == EV_IN
    for off in (0, 300, 600):
        r = me.sh("recv", me.fd, 300, PEEK, me.rx_key, me.rx + off)
        assert (r.ret, r.words) == (300, ["ok"])
    assert me.recv(1000, WAITALL).ret == 1000
    on_tcp_for(live, me, "option")


# ---- urgent data -----------------------------------------------------------------------------------

WAYS = ["look", "poll", "select", "epoll", "epoll ET"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("unread", [0, 5000])
def test_urgent_data(live, who, how, unread):
    """Out of band: the byte is not in the stream; who asks is told at once that it is there, asleep or not."""
    me, peer = who
    if unread:
        peer.sendall(unread)
        assert me.poll(EV_IN, 2000) == EV_IN
    if how == "poll":
        w = me.sh.bg("poll", 5000, me.fd, EV_PRI)
    elif how == "select":
        w = me.sh.bg("select", 5000000, me.fd, 2)
    elif how != "look":
        ep = me.sh.ok("epoll_create", 0)
        me.sh.ok("epoll_ctl", ep, ADD, me.fd, EV_PRI | (EV_ET if "ET" in how else 0), 7)
        w = me.sh.bg("epoll_wait", ep, 8, 5000)
    if how != "look":
        me.sh.asleep()
        assert not w.done(0.05)
    r = peer.sh("send", peer.fd, 1, OOB, 99, 0)
    assert r.ret == 1
    if how == "look":
        assert me.poll(EV_PRI, 2000) == EV_PRI
    else:
        assert w.result().ret == 1
    r = me.sh("recv", me.fd, 1, OOB, 99, 0)
    assert (r.ret, r.words) == (1, ["ok"])
    peer.sendall(3000)
    # a read ends where the urgent byte was
    got = 0
    while got < unread + 3000:
        n = me.recv(unread + 3000 - got).ret
        assert n > 0
        got += n
    on_tcp_for(live, peer, "oob")


def test_urgent_data_inline(live, who):
    me, peer = who
    me.sh.ok("setsockopt", me.fd, socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    w = peer.sh.bg("sendall", peer.fd, 3 * M, 0, peer.tx_key, peer.tx)
    assert me.recv(M, WAITALL).ret == M
    rest = me.recv_bg(2 * M, WAITALL)
    assert w.result().ret == 3 * M
    assert rest.result().ret == 2 * M
    me.rx += 2 * M
    peer.tx += 3 * M
    assert peer.send(5, OOB).ret == 5
    assert me.poll(EV_PRI, 2000) & EV_PRI
    got = 0
    while got < 5:
        n = me.recv(5 - got).ret
        assert n > 0
        got += n
    on_tcp_for(live, peer, "oob")


def test_no_urgent_data(live, who):
    """Asking for it when there is none: EINVAL, and the stream goes on."""
    me, peer = who
    peer.sendall(2000)
    assert me.poll(EV_IN, 2000) == EV_IN
    assert me.sh("recv", me.fd, 1, OOB, 0, 0).err == "EINVAL"
    r = me.recv_bg(2000, WAITALL)
    for _ in range(20):
        peer.poll(0)    # see test_system_reads_from_the_socket
        if r.done(0.05):
            break
    assert r.result().ret == 2000
    me.rx += 2000
    on_tcp_for(live, me, "oob")


# ---- signals ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("sig", [0, signal.SIGUSR1])
def test_asynchronous_io(live, who, sig):
    """F_SETOWN, F_SETSIG and O_ASYNC: a signal for what comes from then on."""
    me, peer = who
    want = sig or signal.SIGIO
    me.sh.ok("sigaction", int(want), "restart")

    def ask():
        me.sh.ok("fcntl", me.fd, F_SETOWN, me.sh.pid)
        if sig:
            me.sh.ok("fcntl", me.fd, F_SETSIG, int(sig))
        me.sh.ok("fcntl", me.fd, F_SETFL, me.sh.ok("fcntl", me.fd, F_GETFL, 0) | os.O_ASYNC)
    stream_around(live, me, peer, ask)
    before = me.sh.ok("caught", int(want))
    for n in range(1, 4):
        peer.sendall(100)
        assert me.poll(select.POLLIN, 2000) == select.POLLIN
        assert me.recv(100).ret == 100
    assert me.recv(1, DONTWAIT).err == "EAGAIN"
    assert me.sh.ok("caught", int(want)) >= before + 3
    on_tcp_for(live, me, "option")
