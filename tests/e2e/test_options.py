# SPDX-License-Identifier: BSD-2-Clause
"""Socket options and kinds of sockets that change how a connection is made, known by, or behaves."""
import errno
import socket
import time

import pytest

from shell import EV_IN, WAITALL
import harness
import shell

pytestmark = pytest.mark.timeout(60)

TCP_CORK, TCP_DEFER_ACCEPT, TCP_QUICKACK, TCP_USER_TIMEOUT, TCP_FASTOPEN = 3, 9, 12, 18, 23
TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT = 4, 5, 6
SO_REUSEPORT, SO_BINDTOIFINDEX, SO_INCOMING_CPU = 15, 62, 49
MSG_FASTOPEN, MSG_MORE = 0x20000000, 0x8000


def listen(sh, host, *options, family=socket.AF_INET, port=0):
    """A listener with these options, and its port."""
    fd = sh.ok("socket", family, socket.SOCK_STREAM, 0)
    for level, name, value in options:
        sh.ok("setsockopt", fd, level, name, value)
    sh.ok("bind", fd, host, port)
    sh.ok("listen", fd, 64)
    return fd, int(sh("getsockname", fd).words[1])


def used(p, c, s, up=True):
    """The connection carries data both ways, and is where this mode has it."""
    for i in range(50):
        p.turns(20 if i else 40, 1000, c, s)
        if not p.env.lifts or (up and p.is_up(c)):
            return
        if not up and i == 5:
            assert not p.is_up(c), p.carriers(c)
            return
    raise AssertionError("not upgraded: %r" % p.carriers(c))


def connected(p, lfd, host, port, *options, family=socket.AF_INET):
    """A connection to that listener, by a socket with these options."""
    c = p.client.ok("socket", family, socket.SOCK_STREAM, 0)
    for level, name, value in options:
        p.client.ok("setsockopt", c, level, name, value)
    p.client.ok("connect", c, host, port)
    s = p.server.ok("accept", lfd)
    p.port = port
    k1, k2 = next(p.keys), next(p.keys)
    return shell.End(p.client, c, k1, k2), shell.End(p.server, s, k2, k1)


def test_reuseport_group(pair):
    """Two programs listen on one port: whoever got the connection uses it."""
    env = pair.env
    other = shell.Shell(env, "server")
    option = (socket.SOL_SOCKET, SO_REUSEPORT, 1)
    l1, port = listen(pair.server, env.address, option)
    l2, _ = listen(other, env.address, option, port=port)
    seen = {pair.server: 0, other: 0}
    for _ in range(40):
        fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
        pair.client.ok("connect", fd, env.address, port)
        w = [(sh, lfd) for sh, lfd in ((pair.server, l1), (other, l2)) if sh("poll", 50, lfd, EV_IN).ret]
        assert len(w) == 1
        sh, lfd = w[0]
        s = sh.ok("accept", lfd)
        seen[sh] += 1
        pair.port = port
        k1, k2 = next(pair.keys), next(pair.keys)
        if seen[sh] <= 3:
            used(pair, shell.End(pair.client, fd, k1, k2), shell.End(sh, s, k2, k1))
        if min(seen.values()) >= 2:
            return
    raise AssertionError("all went to one: %r" % seen.values())


def test_defer_accept(pair):
    """accept returns once there is data, and the data is there."""
    env = pair.env
    lfd, port = listen(pair.server, env.address, (6, TCP_DEFER_ACCEPT, 5))
    fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    pair.client.ok("connect", fd, env.address, port)
    w = pair.server.bg("accept", lfd)
    assert not w.done(0.1)
    c = shell.End(pair.client, fd, 1, 2)
    c.sendall(10)
    s = shell.End(pair.server, w.result().ret, 2, 1)
    assert s.recv(10, WAITALL).ret == 10
    pair.port = port
    used(pair, c, s)


def test_fastopen(pair):
    """sendto with MSG_FASTOPEN connects and sends; the connection is one like others."""
    env = pair.env
    lfd, port = listen(pair.server, env.address, (6, TCP_FASTOPEN, 5))
    for _ in range(2):      # without a cookie, and with one where the system permits that
        fd = pair.client.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
        r = pair.client("sendto", fd, 100, MSG_FASTOPEN, 1, 0, env.address, port)
        c = shell.End(pair.client, fd, 1, 2)
        if r.ret < 0:
            assert r.err in ("EOPNOTSUPP", "EINPROGRESS"), r
            pair.client.ok("connect", fd, env.address, port)
            c.sendall(100)
        else:
            assert r.ret == 100
            c.tx = 100
        s = shell.End(pair.server, pair.server.ok("accept", lfd), 2, 1)
        assert s.recv(100, WAITALL).ret == 100
        pair.port = port
        used(pair, c, s, up=r.ret < 0)


@pytest.mark.parametrize("who", ["client", "server", "both"])
def test_bound_to_device(pair, who):
    """SO_BINDTOIFINDEX at either end, or at both."""
    env = pair.env
    if env.hosts:
        pytest.skip("where the device is known")
    lo = (socket.SOL_SOCKET, SO_BINDTOIFINDEX, socket.if_nametoindex("lo"))
    lfd, port = listen(pair.server, env.address, *[lo] * (who != "client"))
    c, s = connected(pair, lfd, env.address, port, *[lo] * (who != "server"))
    used(pair, c, s)


@pytest.mark.one_host
@pytest.mark.parametrize("client", ["127.0.0.1", "::ffff:127.0.0.1", "::1"])
def test_one_listener_for_both_families(pair, client):
    """A listener on :: takes IPv4, which it shows as v4-mapped; the other end may do so as well."""
    lfd, port = listen(pair.server, "::", (41, 26, 0), family=socket.AF_INET6)
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    c, s = connected(pair, lfd, client, port, family=family)
    used(pair, c, s)
    theirs = pair.server("getpeername", s.fd).words[0]
    assert theirs == ("::1" if client == "::1" else "::ffff:127.0.0.1")
    assert pair.client("getpeername", c.fd).words[:2] == [client, str(port)]


def test_cork_holds_nothing_for_long(live):
    """What is corked arrives within the 200 ms of tcp(7), and at once when the cork is drawn."""
    c, s = live.c, live.s
    for name in ("option", "more"):
        if name == "option":
            assert live.client("setsockopt", c.fd, 6, TCP_CORK, 1).ret == 0
            c.sendall(100)
            assert s.poll(EV_IN, 1000) == EV_IN
            c.sendall(100)
            assert live.client("setsockopt", c.fd, 6, TCP_CORK, 0).ret == 0
        else:
            c.sendall(100, shell.NOSIGNAL | MSG_MORE)
            assert s.poll(EV_IN, 1000) == EV_IN
            c.sendall(100, shell.NOSIGNAL)
        assert s.recv(200, WAITALL).ret == 200
    live.turns()


def test_corked_on_the_way(pair):
    """A connection that is corked all the time, while it moves."""
    for e in (pair.c, pair.s):
        assert e.sh("setsockopt", e.fd, 6, TCP_CORK, 1).ret == 0
    for _ in range(6):
        pair.c.sendall(3000)
        assert pair.s.recv(3000, WAITALL).ret == 3000
        pair.s.sendall(3000)
        assert pair.c.recv(3000, WAITALL).ret == 3000
    for e in (pair.c, pair.s):
        assert e.sh("setsockopt", e.fd, 6, TCP_CORK, 0).ret == 0
    used(pair, pair.c, pair.s)


def test_quickack_and_keepalive(live):
    """Set on a connection that is in use, and idle for longer than the probes take: it lives on."""
    for e in (live.c, live.s):
        for level, name, value in ((6, TCP_QUICKACK, 1), (6, TCP_KEEPIDLE, 1), (6, TCP_KEEPINTVL, 1),
                                   (6, TCP_KEEPCNT, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)):
            assert e.sh("setsockopt", e.fd, level, name, value).ret == 0
            assert e.sh("getsockopt", e.fd, level, name).ints[0] == value
    w = live.s.recv_bg(10, WAITALL)
    time.sleep(2.5)
    assert not w.done()
    live.c.sendall(10)
    assert w.result().ret == 10
    live.s.rx += 10
    live.turns()


def test_user_timeout_of_what_moves(live):
    """It is for a peer that takes nothing: one that is slow, or that has nothing to take, is left in peace."""
    assert live.client("setsockopt", live.c.fd, 6, TCP_USER_TIMEOUT, 700).ret == 0
    time.sleep(1.5)
    n = live.c.fill()
    w = live.c.send_bg(100000)
    d = live.s.drain_bg()
    live.c.tx += w.result().ret
    time.sleep(1.5)
    live.c.shutdown(socket.SHUT_WR)
    assert live.s.drained(d) == (n + 100000, None)


@pytest.mark.parametrize("how", ["send", "poll", "epoll"])
def test_user_timeout(live, how):
    """A peer that takes nothing for so long: ETIMEDOUT, whoever sleeps hears of it, and the peer sees a reset."""
    sh, c = live.client, live.c
    assert sh("setsockopt", c.fd, 6, TCP_USER_TIMEOUT, 1000).ret == 0
    c.fill()
    if how == "send":
        # also for a writer that does not come back
        w = c.send_bg(8 << 20)
    elif how == "poll":
        w = sh.bg("poll", 20000, c.fd, EV_IN)
    else:
        ep = sh.ok("epoll_create", 0)
        sh.ok("epoll_ctl", ep, 1, c.fd, EV_IN, 1)
        w = sh.bg("epoll_wait", ep, 4, 20000)
    r = w.result(25)
    assert r.us < 15e6
    if how == "send":
        # a part may have been taken
        r = r if r.ret < 0 else sh("send", c.fd, 1, shell.NOSIGNAL, 0, 0)
        assert r.err in ("ETIMEDOUT", "EPIPE"), r
    else:
        assert r.ret == 1, r
        assert sh("getsockopt", c.fd, socket.SOL_SOCKET, socket.SO_ERROR).ints[0] == errno.ETIMEDOUT
    harness.until(lambda: live.s.poll(EV_IN, 0), 5, "an end")
    assert live.s.drain()[1] == "ECONNRESET"


def test_incoming_cpu(live):
    """A processor that there is."""
    for e in (live.c, live.s):
        with open("/proc/cpuinfo") as f:
            cpus = f.read().count("processor\t")
        assert 0 <= e.sockopt(SO_INCOMING_CPU) < cpus
